//! [`RbacState`]: the index that requests and watches share; [`RbacAuthorizer`] decides with it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use listwatch_meta::UserInfo;
use listwatch_meta::go::quote;
use parking_lot::{Mutex, RwLock};

use super::covers::uncovered_by;
use super::index::{GrantedRules, RbacIndex, aggregate};
use super::policy::{InvalidRbacObject, PolicyRule, RbacObject, quoted_list};
use crate::authorizer::{Attributes, Authorization, Authorizer};
use crate::maybe_future::MaybeFuture;
use crate::rules::{NonResourceRule, ResourceRule, UserRules};

/// The reason of decisions before all four kinds were listed.
const NOT_SYNCED: &str = "RBAC: the roles and bindings are not known yet";

/// The largest size of the rules in a SelfSubjectRulesReview, in bytes. Further rules are omitted, and the status is
/// incomplete.
const USER_RULES_BYTES_MAX: usize = 4 << 20;
/// The evaluation error of a status that is incomplete because of [`USER_RULES_BYTES_MAX`].
const TOO_MANY_RULES: &str = "the user has too many rules to list all of them";

/// The kinds of `rbac.authorization.k8s.io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RbacKind {
    /// ClusterRole.
    ClusterRole,
    /// Role.
    Role,
    /// ClusterRoleBinding.
    ClusterRoleBinding,
    /// RoleBinding.
    RoleBinding,
}

impl RbacKind {
    /// All kinds.
    pub const ALL: [RbacKind; 4] =
        [RbacKind::ClusterRole, RbacKind::Role, RbacKind::ClusterRoleBinding, RbacKind::RoleBinding];

    /// The plural name of the resource.
    pub fn resource(self) -> &'static str {
        match self {
            RbacKind::ClusterRole => "clusterroles",
            RbacKind::Role => "roles",
            RbacKind::ClusterRoleBinding => "clusterrolebindings",
            RbacKind::RoleBinding => "rolebindings",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }

    fn is_namespaced(self) -> bool {
        matches!(self, RbacKind::Role | RbacKind::RoleBinding)
    }

    fn is_role(self) -> bool {
        matches!(self, RbacKind::Role | RbacKind::ClusterRole)
    }

    fn parse(self, json: &[u8]) -> Result<RbacObject, InvalidRbacObject> {
        if self.is_role() { RbacObject::role(json) } else { RbacObject::binding(json) }
    }
}

/// The roles and bindings of a server. Watches change it, requests read it.
#[derive(Debug, Default)]
pub struct RbacState {
    index: RwLock<RbacIndex>,
    /// Held by each change, so that a relist builds its index without the lock that requests need.
    changes: Mutex<()>,
    /// One bit for each kind that was listed.
    listed: AtomicU8,
}

impl RbacState {
    /// Whether all four kinds were listed. Until then, RBAC allows nothing.
    pub fn is_synced(&self) -> bool {
        self.listed.load(Ordering::Acquire) == RbacKind::ALL.iter().fold(0, |bits, kind| bits | kind.bit())
    }

    /// Adds or replaces one object. The namespace is empty for cluster-scoped kinds.
    ///
    /// # Errors
    /// [`InvalidRbacObject`] for an object that cannot be read. Such an object grants nothing.
    pub fn set(&self, kind: RbacKind, namespace: &str, name: &str, json: &[u8]) -> Result<(), InvalidRbacObject> {
        let parsed = kind.parse(json);
        let _change = self.changes.lock();
        let mut index = self.index.write();
        match parsed {
            Ok(object) => {
                put(&mut index, namespace, name, object);
                Ok(())
            }
            Err(error) => {
                remove(&mut index, kind, namespace, name);
                Err(error)
            }
        }
    }

    /// Removes one object.
    pub fn remove(&self, kind: RbacKind, namespace: &str, name: &str) {
        let _change = self.changes.lock();
        remove(&mut self.index.write(), kind, namespace, name);
    }

    /// Replaces all objects of a kind: `(namespace, name, JSON)`. Objects that cannot be read grant nothing; their
    /// namespaces and names are returned.
    pub fn replace<'a>(
        &self,
        kind: RbacKind,
        objects: impl IntoIterator<Item = (&'a str, &'a str, &'a [u8])>,
    ) -> Vec<(&'a str, &'a str)> {
        let (mut readable, mut unreadable) = (Vec::new(), Vec::new());
        for (namespace, name, json) in objects {
            match kind.parse(json) {
                Ok(object) => readable.push((namespace, name, object)),
                Err(_) => unreadable.push((namespace, name)),
            }
        }
        let change = self.changes.lock();
        let present = self.index.read();
        let mut index = relisted(&present, kind, readable);
        drop(present);
        // Requests wait for the exchange only. The former index is dropped after it.
        std::mem::swap(&mut *self.index.write(), &mut index);
        drop(change);
        self.listed.fetch_or(kind.bit(), Ordering::AcqRel);
        unreadable
    }

    /// Decides on a request.
    pub fn authorize(&self, attributes: &Attributes<'_>) -> Authorization {
        if !self.is_synced() {
            return Authorization { reason: NOT_SYNCED.into(), ..Authorization::no_opinion() };
        }
        self.index.read().authorize(attributes)
    }

    /// The rules of a user in a namespace.
    pub(super) fn rules_for(&self, user: &UserInfo, namespace: &str) -> GrantedRules {
        self.index.read().rules_for(user, namespace)
    }

    /// Checks that a user holds all permissions of some rules, as the writer of a role or binding must
    /// (`ConfirmNoEscalation`).
    ///
    /// # Errors
    /// The message of kube-apiserver's 403, which names the missing permissions.
    pub fn confirm_no_escalation(&self, user: &UserInfo, namespace: &str, wanted: &[PolicyRule]) -> Result<(), String> {
        let held = self.rules_for(user, namespace);
        let rules: Vec<&PolicyRule> = held.rules().collect();
        let missing = uncovered_by(&rules, wanted).map_err(|error| error.to_string())?;
        if missing.is_empty() {
            return Ok(());
        }
        let mut lines: Vec<String> = missing.iter().map(PolicyRule::compact_string).collect();
        lines.sort();
        lines.dedup();
        let mut text = format!(
            "user {} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            quote(&user.username),
            quoted_list(&user.groups),
            lines.join("\n")
        );
        if !held.missing.is_empty() {
            text.push_str(&format!("; resolution errors: [{}]", aggregate(&held.missing)));
        }
        Err(text)
    }
}

/// The index after a relist of a kind.
fn relisted(present: &RbacIndex, kind: RbacKind, objects: Vec<(&str, &str, RbacObject)>) -> RbacIndex {
    let kept: HashSet<(&str, &str)> = objects.iter().map(|(namespace, name, _)| (*namespace, *name)).collect();
    let mut index = present.clone();
    // Objects of the other kind with and without namespaces stay.
    let keep =
        |namespace: &str, name: &str| namespace.is_empty() == kind.is_namespaced() || kept.contains(&(namespace, name));
    if kind.is_role() {
        index.retain_roles(keep)
    } else {
        index.retain_bindings(keep)
    }
    objects.into_iter().for_each(|(namespace, name, object)| put(&mut index, namespace, name, object));
    index
}

fn put(index: &mut RbacIndex, namespace: &str, name: &str, object: RbacObject) {
    match object {
        RbacObject::Role(rules) => index.set_role(namespace, name, rules),
        RbacObject::Binding(role_ref, subjects) => index.set_binding(namespace, name, role_ref, subjects),
    }
}

fn remove(index: &mut RbacIndex, kind: RbacKind, namespace: &str, name: &str) {
    if kind.is_role() { index.remove_role(namespace, name) } else { index.remove_binding(namespace, name) }
}

/// Returns an upper bound on the size of a rule in a response, in bytes.
fn text_bytes(rule: &PolicyRule) -> usize {
    let PolicyRule { verbs, api_groups, resources, resource_names, non_resource_urls } = rule;
    let lists = [verbs, verbs, api_groups, resources, resource_names, non_resource_urls];
    // A string has two quotes and a comma. The names of the fields have less than 100 bytes.
    lists.into_iter().flatten().fold(100, |sum, text| sum + text.len() + 3)
}

/// Decides by roles and bindings (`--authorization-mode=RBAC`).
#[derive(Clone, Debug)]
pub struct RbacAuthorizer(Arc<RbacState>);

impl RbacAuthorizer {
    /// An authorizer that reads the roles and bindings of this state.
    pub fn new(state: Arc<RbacState>) -> Self {
        RbacAuthorizer(state)
    }
}

impl Authorizer for RbacAuthorizer {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
        MaybeFuture::ready(self.0.authorize(attributes))
    }

    fn rules<'a>(&'a self, user: &'a UserInfo, namespace: &'a str) -> MaybeFuture<'a, UserRules> {
        let granted = self.0.rules_for(user, namespace);
        let mut rules = UserRules { incomplete: !self.0.is_synced(), ..UserRules::default() };
        if !granted.missing.is_empty() {
            rules.evaluation_error = aggregate(&granted.missing);
        }
        let texts = |list: &[String]| list.iter().cloned().map(Into::into).collect();
        let mut bytes = 0_usize;
        for rule in granted.rules() {
            bytes = bytes.saturating_add(text_bytes(rule));
            if bytes > USER_RULES_BYTES_MAX {
                rules.incomplete = true;
                let separator = if rules.evaluation_error.is_empty() { "" } else { ", " };
                rules.evaluation_error.push_str(separator);
                rules.evaluation_error.push_str(TOO_MANY_RULES);
                break;
            }
            if !rule.resources.is_empty() {
                rules.resource_rules.push(ResourceRule {
                    verbs: texts(&rule.verbs),
                    api_groups: texts(&rule.api_groups),
                    resources: texts(&rule.resources),
                    resource_names: texts(&rule.resource_names),
                });
            }
            if !rule.non_resource_urls.is_empty() {
                rules.non_resource_rules.push(NonResourceRule {
                    verbs: texts(&rule.verbs),
                    non_resource_urls: texts(&rule.non_resource_urls),
                });
            }
        }
        MaybeFuture::ready(rules)
    }
}
