//! The parts of RBAC objects that decide on requests: [`PolicyRule`], [`RoleRef`] and [`Subject`]
//! (`rbac.authorization.k8s.io/v1`).

use listwatch_meta::go::quote;
use serde::{Deserialize, Deserializer, Serialize};

use crate::authorizer::Attributes;

/// Matches every verb, API group, resource or path.
pub(super) const ALL: &str = "*";

/// Permissions on resources or on non-resource paths (`rbac.PolicyRule`). An empty list of `resource_names` covers all
/// names; any other empty list matches nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRule {
    /// The verbs; `*` for all.
    #[serde(default, deserialize_with = "null_as_default")]
    pub verbs: Vec<String>,
    /// The API groups; `*` for all, empty for the core group.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    /// The resources: `pods`, `pods/log`, `*/scale`, or `*` for all resources and subresources.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// The names of the objects; empty for all.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    /// The paths of non-resource requests; a trailing `*` matches any suffix.
    #[serde(
        rename = "nonResourceURLs",
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub non_resource_urls: Vec<String>,
}

/// The role that a binding grants (`rbac.RoleRef`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
pub struct RoleRef {
    /// `Role` or `ClusterRole`.
    #[serde(default)]
    pub kind: String,
    /// The name of the role. A Role is in the namespace of the binding.
    #[serde(default)]
    pub name: String,
}

/// The kind of a [`Subject`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubjectKind {
    /// A user, by name.
    User,
    /// The members of a group.
    Group,
    /// A service account.
    ServiceAccount,
    /// A kind that matches no user.
    Other,
}

/// A subject of a binding (`rbac.Subject`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
pub struct Subject {
    /// The kind of the subject.
    #[serde(default = "other_kind")]
    pub kind: SubjectKind,
    /// The name of the user, group or service account.
    #[serde(default)]
    pub name: String,
    /// The namespace of a service account. In a RoleBinding, empty is the namespace of the binding.
    #[serde(default, deserialize_with = "null_as_default")]
    pub namespace: String,
}

impl<'de> Deserialize<'de> for SubjectKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match String::deserialize(deserializer)?.as_str() {
            "User" => SubjectKind::User,
            "Group" => SubjectKind::Group,
            "ServiceAccount" => SubjectKind::ServiceAccount,
            _ => SubjectKind::Other,
        })
    }
}

fn other_kind() -> SubjectKind {
    SubjectKind::Other
}

/// Reads `null` as the default value, as Go does.
fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The content of an RBAC object without its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RbacObject {
    /// The rules of a Role or a ClusterRole.
    Role(Vec<PolicyRule>),
    /// The role and the subjects of a RoleBinding or a ClusterRoleBinding.
    Binding(RoleRef, Vec<Subject>),
}

/// The error of an object that is not a valid RBAC object.
#[derive(Debug, thiserror::Error)]
#[error("invalid RBAC object: {0}")]
pub struct InvalidRbacObject(#[from] serde_json::Error);

impl RbacObject {
    /// Reads the rules of a Role or ClusterRole from its JSON form.
    ///
    /// # Errors
    /// [`InvalidRbacObject`] if a field has the wrong type.
    pub(super) fn role(json: &[u8]) -> Result<Self, InvalidRbacObject> {
        #[derive(Deserialize)]
        struct Role {
            #[serde(default, deserialize_with = "null_as_default")]
            rules: Vec<PolicyRule>,
        }
        Ok(RbacObject::Role(serde_json::from_slice::<Role>(json)?.rules))
    }

    /// Reads the role and the subjects of a RoleBinding or ClusterRoleBinding from its JSON form.
    ///
    /// # Errors
    /// [`InvalidRbacObject`] if a field has the wrong type.
    pub(super) fn binding(json: &[u8]) -> Result<Self, InvalidRbacObject> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Binding {
            #[serde(default, deserialize_with = "null_as_default")]
            role_ref: RoleRef,
            #[serde(default, deserialize_with = "null_as_default")]
            subjects: Vec<Subject>,
        }
        let binding: Binding = serde_json::from_slice(json)?;
        Ok(RbacObject::Binding(binding.role_ref, binding.subjects))
    }
}

impl Subject {
    /// The subject as reasons print it (`describeSubject`). `namespace` is that of the binding.
    pub(super) fn describe(&self, namespace: &str) -> String {
        let (kind, name) = match self.kind {
            SubjectKind::User => ("User", quote(&self.name)),
            SubjectKind::Group => ("Group", quote(&self.name)),
            SubjectKind::Other => ("", quote(&self.name)),
            SubjectKind::ServiceAccount => {
                let namespace = if self.namespace.is_empty() { namespace } else { &self.namespace };
                ("ServiceAccount", quote(&format!("{}/{namespace}", self.name)))
            }
        };
        format!("{kind} {name}")
    }

    /// The user name of a subject that is a user or a service account (`appliesToUser`). `namespace` is that of the
    /// binding.
    pub(super) fn username(&self, namespace: &str) -> Option<String> {
        match self.kind {
            SubjectKind::User => Some(self.name.clone()),
            SubjectKind::ServiceAccount => {
                let namespace = if self.namespace.is_empty() { namespace } else { &self.namespace };
                // Without a namespace, the subject matches no user.
                (!namespace.is_empty()).then(|| format!("system:serviceaccount:{namespace}:{}", self.name))
            }
            SubjectKind::Group | SubjectKind::Other => None,
        }
    }
}

impl PolicyRule {
    /// A rule for resources.
    pub fn resources(verbs: &[&str], api_groups: &[&str], resources: &[&str]) -> Self {
        let [verbs, api_groups, resources] = [verbs, api_groups, resources].map(strings);
        PolicyRule { verbs, api_groups, resources, ..PolicyRule::default() }
    }

    /// A rule for non-resource paths.
    pub fn paths(verbs: &[&str], paths: &[&str]) -> Self {
        PolicyRule { verbs: strings(verbs), non_resource_urls: strings(paths), ..PolicyRule::default() }
    }

    /// The same rule for objects with these names.
    #[must_use]
    pub fn with_names(mut self, names: &[&str]) -> Self {
        self.resource_names = strings(names);
        self
    }

    /// Whether the rule allows the request (`RuleAllows`).
    pub fn allows(&self, attributes: &Attributes<'_>) -> bool {
        if !self.allows_verb(attributes.verb) {
            return false;
        }
        if !attributes.is_resource_request {
            return self.non_resource_urls.iter().any(|url| path_matches(url, attributes.path));
        }
        self.allows_group(attributes.api_group)
            && self.resources.iter().any(|rule| resource_matches(rule, attributes.resource, attributes.subresource))
            && self.allows_name(attributes.name)
    }

    pub(super) fn allows_verb(&self, verb: &str) -> bool {
        has(&self.verbs, verb)
    }

    pub(super) fn allows_group(&self, group: &str) -> bool {
        has(&self.api_groups, group)
    }

    pub(super) fn allows_name(&self, name: &str) -> bool {
        self.resource_names.is_empty() || self.resource_names.iter().any(|one| one == name)
    }

    /// The rule as Go prints it, without its empty lists (`rbacv1helpers.CompactString`).
    pub fn compact_string(&self) -> String {
        let mut parts = Vec::new();
        for (name, list) in [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ] {
            if !list.is_empty() {
                parts.push(format!("{name}:{}", quoted_list(list)));
            }
        }
        format!("{{{}}}", parts.join(", "))
    }
}

/// A list as Go prints it with `%q`.
pub(super) fn quoted_list(list: &[String]) -> String {
    format!("[{}]", list.iter().map(|text| quote(text)).collect::<Vec<_>>().join(" "))
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn has(list: &[String], text: &str) -> bool {
    list.iter().any(|one| one == ALL || one == text)
}

/// Whether an entry of `resources` matches a resource and subresource (`ResourceMatches`).
fn resource_matches(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == ALL {
        return true;
    }
    if subresource.is_empty() {
        return rule == resource;
    }
    // `*/scale`, or `deployments/scale`.
    let of_resource = rule.strip_suffix(subresource).and_then(|rest| rest.strip_suffix('/'));
    of_resource.is_some_and(|rest| rest == ALL || rest == resource)
}

/// Whether an entry of `nonResourceURLs` matches a path (`NonResourceURLMatches`).
pub(super) fn path_matches(rule: &str, path: &str) -> bool {
    rule == ALL || rule == path || (rule.ends_with('*') && path.starts_with(rule.trim_end_matches('*')))
}
