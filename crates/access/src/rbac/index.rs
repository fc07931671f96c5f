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
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use listwatch_meta::UserInfo;
use listwatch_meta::go::quote;

use super::authorizer::aggregate;
use super::policy::{PolicyRule, RoleRef, Subject, SubjectKind};
use super::role_rules::{RequestedResource, RoleRules};
use crate::authorizer::{Attributes, Authorization};

/// The largest number of missing roles that the reason of a refusal or the rules of a user name. Further ones are left out.
const MISSING_ROLES_MAX: usize = 32;

/// Roles and bindings, compiled for decisions. A plain value.
///
/// Namespaces are empty for ClusterRoles and ClusterRoleBindings. A clone shares rules and bindings.
#[derive(Clone, Debug, Default)]
pub struct RbacIndex {
    slots: Vec<RoleSlot>,
    free_slots: Vec<RoleId>,
    roles: HashMap<RoleKey, RoleId>,
    bindings: HashMap<ObjectKey, Arc<Binding>>,
    users: HashMap<Box<str>, Grants>,
    groups: HashMap<Box<str>, Grants>,
}

type RoleId = u32;

/// Namespace and name.
type ObjectKey = (Box<str>, Box<str>);

/// What a binding refers to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RoleKey {
    /// A Role, or a ClusterRole with an empty namespace.
    Role(ObjectKey),
    /// A reference of an unknown kind, which grants nothing.
    Unsupported(Box<str>),
}

/// A role, or the place of a role that bindings refer to and that does not exist.
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
    namespaces: HashMap<Box<str>, Vec<Grant>>,
}

/// One subject of one binding. Lists are sorted by role, so that each role is evaluated once.
#[derive(Clone, Debug)]
struct Grant {
    role: RoleId,
    binding: Arc<Binding>,
    subject: u32,
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
            let grant = Grant { role, binding: Arc::clone(&binding), subject: position };
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
        let mut missing: Vec<RoleId> = Vec::new();
        for grants in self.grants_of(attributes.user, attributes.namespace) {
            let mut last_role = None;
            for grant in grants {
                if last_role == Some(grant.role) {
                    continue;
                }
                last_role = Some(grant.role);
                match &self.slots[grant.role as usize].rules {
                    Some(rules) if rules.allow(&request) => {
                        return Authorization::allow(grant.reason());
                    }
                    Some(_) => {}
                    None if missing.len() < MISSING_ROLES_MAX && !missing.contains(&grant.role) => {
                        missing.push(grant.role);
                    }
                    None => {}
                }
            }
        }
        if missing.is_empty() {
            return Authorization::no_opinion();
        }
        let missing: Vec<RoleNotFound> = missing.into_iter().map(|role| self.not_found(role)).collect();
        Authorization { reason: format!("RBAC: {}", aggregate(&missing)).into(), ..Authorization::no_opinion() }
    }

    /// The rules of a user in a namespace, or in the whole cluster if the namespace is empty (`RulesFor`). Copies no
    /// rule.
    pub(super) fn rules_for(&self, user: &UserInfo, namespace: &str) -> GrantedRules {
        let mut granted = GrantedRules::default();
        let mut seen = HashSet::new();
        for grant in self.grants_of(user, namespace).into_iter().flatten() {
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

    /// The lists of grants that apply to a user, those of the whole cluster first.
    fn grants_of<'s>(&'s self, user: &UserInfo, namespace: &str) -> Vec<&'s [Grant]> {
        let own = self.users.get(user.username.as_str());
        let grants = || own.into_iter().chain(user.groups.iter().filter_map(|group| self.groups.get(group.as_str())));
        let cluster = grants().map(|grants| &*grants.cluster);
        let local = grants().filter_map(|grants| grants.namespaces.get(namespace).map(|list| &**list));
        cluster.chain(local).filter(|list| !list.is_empty()).collect()
    }

    /// The slot of a role. Creates it if there is none.
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

/// Whether a subject is a group, and the name of the user or group. `None` for a subject that matches nobody.
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
    /// The reason of an allowed request (`clusterRoleBindingDescriber`, `roleBindingDescriber`).
    fn reason(&self) -> String {
        let Binding { namespace, name, role_ref, subjects, .. } = &*self.binding;
        let (kind, binding) = match &**namespace {
            "" => ("ClusterRoleBinding", quote(name)),
            namespace => ("RoleBinding", quote(&format!("{name}/{namespace}"))),
        };
        let subject = subjects[self.subject as usize].describe(namespace);
        format!("RBAC: allowed by {kind} {binding} of {} {} to {subject}", role_ref.kind, quote(&role_ref.name))
    }
}
