//! [`RoleRules`]: the rules of one role, found by the resource of a request.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::policy::{ALL, PolicyRule, path_matches};
use crate::authorizer::Attributes;

/// The length of `resourceNames` from which names are found by their hash.
const HASHED_NAMES_MIN: usize = 16;

/// Positions of rules in their role.
type Positions = Box<[u32]>;

/// The rules of one role. A decision visits only the rules for the requested resource. The aggregated role `admin` with
/// 40 rules therefore costs as much as a role with two.
#[derive(Debug, Default)]
pub(super) struct RoleRules {
    rules: Arc<[PolicyRule]>,
    /// Rules by an entry of `resources`: `pods`, `pods/log`, `*/scale`. Sorted by the length and then by the bytes of the
    /// entry. Most roles have few entries, and a search compares fewer bytes than a hash reads.
    by_resource: Box<[(Box<str>, Positions)]>,
    /// Rules with the resource `*`.
    all_resources: Positions,
    /// Rules with `nonResourceURLs`.
    paths: Positions,
    /// The names of rules with many of them.
    names: HashMap<u32, HashSet<Box<str>>>,
}

fn by_length(one: &str, other: &str) -> Ordering {
    one.len().cmp(&other.len()).then_with(|| one.cmp(other))
}

/// The resource of a request, in the forms in which rules name it.
pub(super) struct RequestedResource<'a> {
    attributes: &'a Attributes<'a>,
    /// The resource with its subresource, e.g. `pods/log`; `None` without a subresource.
    combined: Option<String>,
    /// The wildcard with the subresource, e.g. `*/log`; `None` without a subresource.
    starred: Option<String>,
}

impl<'a> RequestedResource<'a> {
    pub(super) fn new(attributes: &'a Attributes<'a>) -> Self {
        let has_subresource = attributes.is_resource_request && !attributes.subresource.is_empty();
        let join = |resource: &str| [resource, "/", attributes.subresource].concat();
        RequestedResource {
            attributes,
            combined: has_subresource.then(|| join(attributes.resource)),
            starred: has_subresource.then(|| join(ALL)),
        }
    }

    /// The resource as a rule names it that is for no other one.
    fn exact(&self) -> &str {
        self.combined.as_deref().unwrap_or(self.attributes.resource)
    }
}

impl RoleRules {
    pub(super) fn new(rules: Vec<PolicyRule>) -> Self {
        let mut by_resource: HashMap<Box<str>, Vec<u32>> = HashMap::new();
        let (mut all_resources, mut paths, mut names) = (Vec::new(), Vec::new(), HashMap::new());
        for (position, rule) in (0_u32..).zip(&rules) {
            if rule.resources.iter().any(|resource| resource == ALL) {
                all_resources.push(position);
            } else {
                for resource in &rule.resources {
                    let positions = by_resource.entry(resource.as_str().into()).or_default();
                    if positions.last() != Some(&position) {
                        positions.push(position);
                    }
                }
            }
            if !rule.non_resource_urls.is_empty() {
                paths.push(position);
            }
            if rule.resource_names.len() >= HASHED_NAMES_MIN {
                names.insert(position, rule.resource_names.iter().map(|name| name.as_str().into()).collect());
            }
        }
        let mut by_resource: Vec<(Box<str>, Positions)> =
            by_resource.into_iter().map(|(resource, positions)| (resource, positions.into())).collect();
        by_resource.sort_unstable_by(|(one, _), (other, _)| by_length(one, other));
        RoleRules {
            rules: rules.into(),
            by_resource: by_resource.into(),
            all_resources: all_resources.into(),
            paths: paths.into(),
            names,
        }
    }

    pub(super) fn rules(&self) -> &Arc<[PolicyRule]> {
        &self.rules
    }

    /// Whether a rule allows the request. The result is true if [`PolicyRule::allows`] is true for any rule.
    pub(super) fn allow(&self, request: &RequestedResource<'_>) -> bool {
        let attributes = request.attributes;
        if !attributes.is_resource_request {
            return self.paths.iter().map(|&position| &self.rules[position as usize]).any(|rule| {
                rule.allows_verb(attributes.verb)
                    && rule.non_resource_urls.iter().any(|url| path_matches(url, attributes.path))
            });
        }
        // Written out, because the parts that a role does not have are most of the work.
        (!self.all_resources.is_empty() && self.allow_at(&self.all_resources, attributes))
            || (!self.by_resource.is_empty()
                && (self.allow_at(self.positions(request.exact()), attributes)
                    || request.starred.as_deref().is_some_and(|all| self.allow_at(self.positions(all), attributes))))
    }

    /// Whether one of these rules allows the request of a resource.
    fn allow_at(&self, positions: &[u32], attributes: &Attributes<'_>) -> bool {
        positions.iter().any(|&position| {
            let rule = &self.rules[position as usize];
            rule.allows_verb(attributes.verb)
                && rule.allows_group(attributes.api_group)
                && self.allows_name(position, rule, attributes.name)
        })
    }

    /// The rules with this entry in `resources`.
    fn positions(&self, resource: &str) -> &[u32] {
        let found = self.by_resource.binary_search_by(|(entry, _)| by_length(entry, resource));
        found.map_or(&[], |at| &self.by_resource[at].1)
    }

    fn allows_name(&self, position: u32, rule: &PolicyRule, name: &str) -> bool {
        match rule.resource_names.len() >= HASHED_NAMES_MIN {
            true => self.names.get(&position).is_some_and(|names| names.contains(name)),
            false => rule.allows_name(name),
        }
    }
}
