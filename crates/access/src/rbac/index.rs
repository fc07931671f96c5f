//! [`RbacIndex`]: roles and bindings, compiled so that a decision visits only the grants of the user.
//!
//! ```text
//!  users  "alice" ──┐               ┌─ whole cluster ─▶ [grant, grant]
//!  groups "dev" ────┴─▶ Grants ─────┤                       │   grant = role, binding, subject
//!                                   └─ namespace "a" ─▶ [grant]
//!                                                           │
//!  roles  ("a", "pod-reader") ─▶ slot ◀─────────────────────┘   rules, or none if the role does not exist
//! ```
//!
//! A change of one object touches only the entries of that object. The size is linear in the size of the objects:
//! each binding has one grant per subject, and each role one copy of its rules.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use listwatch_meta::UserInfo;
use listwatch_meta::go::quote;

use super::policy::{PolicyRule, RoleRef, Subject, SubjectKind};
use super::role_rules::{RequestedResource, RoleRules};
use crate::authorizer::{Attributes, Authorization};

/// The largest number of missing roles in the reason of a refusal or in the rules of a user. Further roles are omitted.
const MISSING_ROLES_MAX: usize = 32;

/// Several errors as Go prints them (`utilerrors.NewAggregate`).
pub(super) fn aggregate<E: std::fmt::Display>(errors: &[E]) -> String {
    match errors {
        [one] => one.to_string(),
        several => format!("[{}]", several.iter().map(E::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// Roles and bindings, compiled for decisions.
///
/// Namespaces are empty for ClusterRoles and ClusterRoleBindings. A clone shares rules and bindings.
#[derive(Clone, Debug, Default)]
pub struct RbacIndex {
    slots: Vec<RoleSlot>,
    free_slots: Vec<RoleId>,
    roles: HashMap<RoleKey, RoleId>,
    bindings: HashMap<ObjectKey, Arc<Binding>>,
    users: GrantsByName,
    groups: GrantsByName,
}

/// The grants of users or groups. Each request looks up its user and each of its groups, so the hash is fast; it has a
/// random seed per map, so that the author of a binding cannot choose names that collide.
type GrantsByName = HashMap<Box<str>, Grants, foldhash::quality::RandomState>;

type RoleId = u32;

/// Namespace and name.
type ObjectKey = (Box<str>, Box<str>);

/// The role that a binding refers to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RoleKey {
    /// A Role, or a ClusterRole with an empty namespace.
    Role(ObjectKey),
    /// A reference of an unknown kind, which grants nothing.
    Unsupported(Box<str>),
}

/// A role, or a placeholder for a missing role that bindings refer to.
#[derive(Clone, Debug)]
struct RoleSlot {
    key: RoleKey,
    rules: Option<Arc<RoleRules>>,
    /// The number of bindings that refer to the role.
    references: usize,
}

#[derive(Debug)]
struct Binding {
    namespace: Box<str>,
    name: Box<str>,
    role: RoleId,
    role_ref: RoleRef,
    subjects: Box<[Subject]>,
}

/// The grants of one user or group.
#[derive(Clone, Debug, Default)]
struct Grants {
    cluster: Vec<Grant>,
    /// Most users have grants in few namespaces, which are compared faster than hashed.
    namespaces: BTreeMap<Box<str>, Vec<Grant>>,
}

/// One subject of one binding. Lists are sorted by role, so that each role is evaluated once.
#[derive(Clone, Debug)]
struct Grant {
    role: RoleId,
    binding: Arc<Binding>,
    subject: u32,
    /// The reason of an allowed request. The first request formats it, and later requests share it.
    reason: OnceLock<Arc<str>>,
}

impl Grant {
    fn order(&self) -> (RoleId, &str, u32) {
        (self.role, &self.binding.name, self.subject)
    }
}

/// The error of a reference to a role that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub(super) enum RoleNotFound {
    /// There is no Role of this name in the namespace.
    #[error("role.rbac.authorization.k8s.io {} not found", quote(.0))]
    Role(String),
    /// There is no ClusterRole of this name.
    #[error("clusterrole.rbac.authorization.k8s.io {} not found", quote(.0))]
    ClusterRole(String),
    /// The reference has another kind.
    #[error("unsupported role reference kind: {}", quote(.0))]
    Unsupported(String),
}

/// The rules of a user in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GrantedRules {
    /// The rules of each role that exists, shared with the index.
    roles: Vec<Arc<[PolicyRule]>>,
    /// The roles that bindings of the user refer to and that do not exist. At most [`MISSING_ROLES_MAX`].
    pub(super) missing: Vec<RoleNotFound>,
}

impl GrantedRules {
    pub(super) fn rules(&self) -> impl Iterator<Item = &PolicyRule> {
        self.roles.iter().flat_map(|rules| rules.iter())
    }
}

impl RbacIndex {
    /// Adds or replaces a Role or ClusterRole.
    pub fn set_role(&mut self, namespace: &str, name: &str, rules: Vec<PolicyRule>) {
        let id = self.slot(RoleKey::Role((namespace.into(), name.into())));
        self.slots[id as usize].rules = Some(Arc::new(RoleRules::new(rules)));
    }

    /// Removes a Role or ClusterRole.
    pub fn remove_role(&mut self, namespace: &str, name: &str) {
        if let Some(&id) = self.roles.get(&RoleKey::Role((namespace.into(), name.into()))) {
            self.slots[id as usize].rules = None;
            self.release_slot(id);
        }
    }

    /// Adds or replaces a RoleBinding or ClusterRoleBinding.
    pub fn set_binding(&mut self, namespace: &str, name: &str, role_ref: RoleRef, subjects: Vec<Subject>) {
        self.remove_binding(namespace, name);
        let role = self.slot(role_key(&role_ref, namespace));
        self.slots[role as usize].references += 1;
        let (namespace, name): ObjectKey = (namespace.into(), name.into());
        let binding = Arc::new(Binding {
            namespace: namespace.clone(),
            name: name.clone(),
            role,
            role_ref,
            subjects: subjects.into(),
        });
        self.bindings.insert((namespace, name), Arc::clone(&binding));
        // A repeated subject has one grant, so that a binding cannot make the lists of a user long.
        let mut seen = HashSet::new();
        for (position, subject) in (0_u32..).zip(&binding.subjects) {
            let Some((is_group, key)) = subject_key(subject, &binding.namespace) else { continue };
            if !seen.insert((is_group, key.clone())) {
                continue;
            }
            let by_name = if is_group { &mut self.groups } else { &mut self.users };
            let grants = by_name.entry(key.into()).or_default().list_mut(&binding.namespace);
            let grant = Grant { role, binding: Arc::clone(&binding), subject: position, reason: OnceLock::new() };
            let at = grants.partition_point(|other| other.order() < grant.order());
            grants.insert(at, grant);
        }
    }

    /// Removes a RoleBinding or ClusterRoleBinding.
    pub fn remove_binding(&mut self, namespace: &str, name: &str) {
        let Some(binding) = self.bindings.remove(&(namespace.into(), name.into())) else { return };
        for (position, subject) in (0_u32..).zip(&binding.subjects) {
            let Some((is_group, key)) = subject_key(subject, &binding.namespace) else { continue };
            let by_name = if is_group { &mut self.groups } else { &mut self.users };
            let Entry::Occupied(mut entry) = by_name.entry(key.into()) else { continue };
            entry.get_mut().remove(&binding, position);
            if entry.get().is_empty() {
                entry.remove();
            }
        }
        let slot = &mut self.slots[binding.role as usize];
        slot.references -= 1;
        self.release_slot(binding.role);
    }

    /// Removes the roles for which `keep` returns false: `keep(namespace, name)`.
    pub fn retain_roles(&mut self, keep: impl Fn(&str, &str) -> bool) {
        let existing = self.roles.iter().filter(|(_, id)| self.slots[**id as usize].rules.is_some());
        let gone: Vec<ObjectKey> = existing
            .filter_map(|(key, _)| match key {
                RoleKey::Role((namespace, name)) if !keep(namespace, name) => Some((namespace.clone(), name.clone())),
                _ => None,
            })
            .collect();
        gone.iter().for_each(|(namespace, name)| self.remove_role(namespace, name));
    }

    /// Removes the bindings for which `keep` returns false: `keep(namespace, name)`.
    pub fn retain_bindings(&mut self, keep: impl Fn(&str, &str) -> bool) {
        let gone: Vec<ObjectKey> =
            self.bindings.keys().filter(|(namespace, name)| !keep(namespace, name)).cloned().collect();
        gone.iter().for_each(|(namespace, name)| self.remove_binding(namespace, name));
    }

    /// Decides on a request. The reason has upstream's text.
    pub fn authorize(&self, attributes: &Attributes<'_>) -> Authorization {
        let request = RequestedResource::new(attributes);
        let mut missing = Vec::new();
        // The lists of the namespace are evaluated after those of the whole cluster. Most users have one, which needs no
        // allocation.
        let (mut local, mut more_local) = (&[][..], Vec::new());
        for grants in self.grants_of(attributes.user) {
            if let Some(grant) = self.allowing(&grants.cluster, &request, &mut missing) {
                return grant.allow();
            }
            match grants.in_namespace(attributes.namespace) {
                [] => {}
                list if local.is_empty() => local = list,
                list => more_local.push(list),
            }
        }
        for grants in std::iter::once(local).chain(more_local) {
            if let Some(grant) = self.allowing(grants, &request, &mut missing) {
                return grant.allow();
            }
        }
        if missing.is_empty() {
            return Authorization::no_opinion();
        }
        let missing: Vec<RoleNotFound> = missing.into_iter().map(|role| self.not_found(role)).collect();
        Authorization { reason: format!("RBAC: {}", aggregate(&missing)).into(), ..Authorization::no_opinion() }
    }

    /// The first grant that allows a request. Adds the roles that do not exist to `missing`.
    fn allowing<'s>(
        &self,
        grants: &'s [Grant],
        request: &RequestedResource<'_>,
        missing: &mut Vec<RoleId>,
    ) -> Option<&'s Grant> {
        let mut last_role = None;
        for grant in grants {
            if last_role == Some(grant.role) {
                continue;
            }
            last_role = Some(grant.role);
            match &self.slots[grant.role as usize].rules {
                Some(rules) if rules.allow(request) => return Some(grant),
                Some(_) => {}
                None if missing.len() < MISSING_ROLES_MAX && !missing.contains(&grant.role) => missing.push(grant.role),
                None => {}
            }
        }
        None
    }

    /// The rules of a user in a namespace, or in the whole cluster if the namespace is empty (`RulesFor`). Copies no
    /// rule.
    pub(super) fn rules_for(&self, user: &UserInfo, namespace: &str) -> GrantedRules {
        let mut granted = GrantedRules::default();
        let mut seen = HashSet::new();
        let cluster = self.grants_of(user).map(|grants| &*grants.cluster);
        let local = self.grants_of(user).map(|grants| grants.in_namespace(namespace));
        for grant in cluster.chain(local).flatten() {
            if !seen.insert(grant.role) {
                continue;
            }
            match &self.slots[grant.role as usize].rules {
                Some(rules) => granted.roles.push(Arc::clone(rules.rules())),
                None if granted.missing.len() < MISSING_ROLES_MAX => granted.missing.push(self.not_found(grant.role)),
                None => {}
            }
        }
        granted
    }

    /// The number of grants.
    #[cfg(test)]
    pub(super) fn grants_count(&self) -> usize {
        let lists = self.users.values().chain(self.groups.values());
        lists.map(|grants| grants.cluster.len() + grants.namespaces.values().map(Vec::len).sum::<usize>()).sum()
    }

    /// Whether the index holds nothing.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let RbacIndex { slots, free_slots, roles, bindings, users, groups } = self;
        slots.len() == free_slots.len()
            && roles.is_empty()
            && bindings.is_empty()
            && users.is_empty()
            && groups.is_empty()
    }

    /// The grants of a user and of its groups.
    fn grants_of<'s>(&'s self, user: &'s UserInfo) -> impl Iterator<Item = &'s Grants> {
        let own = self.users.get(user.username.as_str());
        own.into_iter().chain(user.groups.iter().filter_map(|group| self.groups.get(group.as_str())))
    }

    /// The slot of a role, which is created if it is missing.
    fn slot(&mut self, key: RoleKey) -> RoleId {
        if let Some(&id) = self.roles.get(&key) {
            return id;
        }
        let slot = RoleSlot { key: key.clone(), rules: None, references: 0 };
        let id = match self.free_slots.pop() {
            Some(id) => {
                self.slots[id as usize] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                RoleId::try_from(self.slots.len() - 1).unwrap_or(RoleId::MAX)
            }
        };
        self.roles.insert(key, id);
        id
    }

    /// Frees the slot of a role that does not exist and that no binding refers to.
    fn release_slot(&mut self, id: RoleId) {
        let slot = &self.slots[id as usize];
        if slot.rules.is_none() && slot.references == 0 {
            self.roles.remove(&slot.key);
            self.free_slots.push(id);
        }
    }

    fn not_found(&self, role: RoleId) -> RoleNotFound {
        not_found(&self.slots[role as usize].key)
    }
}

fn role_key(role_ref: &RoleRef, namespace: &str) -> RoleKey {
    match role_ref.kind.as_str() {
        "ClusterRole" => RoleKey::Role(("".into(), role_ref.name.as_str().into())),
        // A Role has a namespace, so a ClusterRoleBinding refers to none.
        "Role" if !namespace.is_empty() => RoleKey::Role((namespace.into(), role_ref.name.as_str().into())),
        kind => RoleKey::Unsupported(kind.into()),
    }
}

fn not_found(key: &RoleKey) -> RoleNotFound {
    match key {
        RoleKey::Role((namespace, name)) if namespace.is_empty() => RoleNotFound::ClusterRole(name.to_string()),
        RoleKey::Role((_, name)) => RoleNotFound::Role(name.to_string()),
        RoleKey::Unsupported(kind) => RoleNotFound::Unsupported(kind.to_string()),
    }
}

/// Whether a subject is a group, and the name of the user or group. `None` for a subject that matches no user.
fn subject_key(subject: &Subject, namespace: &str) -> Option<(bool, String)> {
    match subject.kind {
        SubjectKind::Group => Some((true, subject.name.clone())),
        _ => subject.username(namespace).map(|name| (false, name)),
    }
}

impl Grants {
    fn list_mut(&mut self, namespace: &str) -> &mut Vec<Grant> {
        match namespace {
            "" => &mut self.cluster,
            namespace => self.namespaces.entry(namespace.into()).or_default(),
        }
    }

    /// The grants in a namespace; none without a namespace.
    fn in_namespace(&self, namespace: &str) -> &[Grant] {
        match namespace {
            "" => &[],
            namespace => self.namespaces.get(namespace).map_or(&[], |list| list),
        }
    }

    fn remove(&mut self, binding: &Arc<Binding>, position: u32) {
        let order = (binding.role, &*binding.name, position);
        let list = self.list_mut(&binding.namespace);
        if let Ok(at) = list.binary_search_by(|grant| grant.order().cmp(&order)) {
            list.remove(at);
        }
        if list.is_empty() {
            self.namespaces.remove(&*binding.namespace);
        }
    }

    fn is_empty(&self) -> bool {
        self.cluster.is_empty() && self.namespaces.is_empty()
    }
}

impl Grant {
    /// Allows a request.
    fn allow(&self) -> Authorization {
        Authorization::allow(Arc::clone(self.reason.get_or_init(|| self.describe().into())))
    }

    /// The reason of an allowed request (`clusterRoleBindingDescriber`, `roleBindingDescriber`).
    fn describe(&self) -> String {
        let Binding { namespace, name, role_ref, subjects, .. } = &*self.binding;
        let (kind, binding) = match &**namespace {
            "" => ("ClusterRoleBinding", quote(name)),
            namespace => ("RoleBinding", quote(&format!("{name}/{namespace}"))),
        };
        let subject = subjects[self.subject as usize].describe(namespace);
        format!("RBAC: allowed by {kind} {binding} of {} {} to {subject}", role_ref.kind, quote(&role_ref.name))
    }
}
