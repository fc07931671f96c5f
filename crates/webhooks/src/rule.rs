//! One rule of a webhook or a policy (`NamedRuleWithOperations`, `predicates/rules/rules.go`).

use listwatch_admission::{Operation, ResourceName};
use listwatch_validation::{Object, text, texts};

use crate::attributes::Attributes;

/// The wildcard of operations, groups, versions, resources, subresources and scopes.
const ANY: &str = "*";

/// One rule: a request must match all of its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    operations: Vec<String>,
    pub(crate) groups: Vec<String>,
    versions: Vec<String>,
    /// Pairs of resource and subresource; the subresource is empty for the object itself.
    pub(crate) resources: Vec<(String, String)>,
    scope: Scope,
    /// The names of objects (`resourceNames` of policies). Empty for all names.
    names: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    All,
    Cluster,
    Namespaced,
    /// An unknown scope, which matches nothing, as in upstream.
    Unknown,
}

impl Rule {
    pub(crate) fn parse(rule: &Object) -> Self {
        let list = |name| texts(rule, name).map(str::to_owned).collect();
        let split = |resource: &str| match resource.split_once('/') {
            Some((resource, subresource)) => (resource.to_owned(), subresource.to_owned()),
            None => (resource.to_owned(), String::new()),
        };
        Rule {
            operations: list("operations"),
            groups: list("apiGroups"),
            versions: list("apiVersions"),
            resources: texts(rule, "resources").map(split).collect(),
            scope: match text(rule, "scope") {
                "" | ANY => Scope::All,
                "Cluster" => Scope::Cluster,
                "Namespaced" => Scope::Namespaced,
                _ => Scope::Unknown,
            },
            names: list("resourceNames"),
        }
    }

    /// Whether the rule names the operation.
    pub(crate) fn has_operation(&self, operation: Operation) -> bool {
        has(&self.operations, operation.as_str())
    }

    /// Whether the rule matches the request with `resource` in place of the requested resource.
    pub(crate) fn matches(&self, attributes: &Attributes<'_>, resource: &ResourceName<'_>) -> bool {
        let scope = match self.scope {
            Scope::All => true,
            Scope::Cluster => attributes.is_cluster_scoped(),
            Scope::Namespaced => !attributes.is_cluster_scoped(),
            Scope::Unknown => false,
        };
        scope
            && self.has_operation(attributes.operation)
            && has(&self.groups, resource.group)
            && has(&self.versions, resource.version)
            && self
                .resources
                .iter()
                .any(|(name, subresource)| is(name, resource.resource) && is(subresource, attributes.subresource))
            && (self.names.is_empty() || self.names.iter().any(|name| name == attributes.name))
    }
}

fn is(pattern: &str, name: &str) -> bool {
    pattern == ANY || pattern == name
}

fn has(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| is(pattern, name))
}
