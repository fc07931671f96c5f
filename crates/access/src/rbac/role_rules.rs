//! [`RoleRules`]: the rules of one role, found by the resource of a request.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::policy::{ALL, PolicyRule, path_matches};
use crate::authorizer::Attributes;

/// The length of `resourceNames` from which names are found by their hash.
const HASHED_NAMES_MIN: usize = 16;

/// The rules of one role. A decision visits only the rules for the requested resource, so the aggregated role `admin`
/// with 40 rules costs as much as a role with two.
#[derive(Debug, Default)]
pub(super) struct RoleRules {
    rules: Arc<[PolicyRule]>,
    /// Rules by an entry of `resources`: `pods`, `pods/log`, `*/scale`.
    by_resource: HashMap<Box<str>, Box<[u32]>>,
    /// Rules with the resource `*`.
    all_resources: Box<[u32]>,
    /// Rules with `nonResourceURLs`.
    paths: Box<[u32]>,
    /// The names of rules with many of them.
    names: HashMap<u32, HashSet<Box<str>>>,
}

/// The resource of a request, in the forms in which rules name it.
pub(super) struct RequestedResource<'a> {
    attributes: &'a Attributes<'a>,
    /// `pods/log`, if the request has a subresource.
    combined: Option<String>,
    /// `*/log`.
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
        RoleRules {
            rules: rules.into(),
            by_resource: by_resource.into_iter().map(|(resource, positions)| (resource, positions.into())).collect(),
            all_resources: all_resources.into(),
            paths: paths.into(),
            names,
        }
    }

    pub(super) fn rules(&self) -> &Arc<[PolicyRule]> {
        &self.rules
    }

    /// Whether a rule allows the request. Equals [`PolicyRule::allows`] on each rule.
    pub(super) fn allow(&self, request: &RequestedResource<'_>) -> bool {
        let attributes = request.attributes;
        if !attributes.is_resource_request {
            return self.at(&self.paths).any(|(_, rule)| {
                rule.allows_verb(attributes.verb)
                    && rule.non_resource_urls.iter().any(|url| path_matches(url, attributes.path))
            });
        }
        let positions = |resource: &str| self.by_resource.get(resource).map_or(&[][..], |positions| positions);
        let exact = positions(request.combined.as_deref().unwrap_or(attributes.resource));
        let starred = request.starred.as_deref().map_or(&[][..], positions);
        [&*self.all_resources, exact, starred].into_iter().any(|positions| {
            self.at(positions).any(|(position, rule)| {
                rule.allows_verb(attributes.verb)
                    && rule.allows_group(attributes.api_group)
                    && self.allows_name(position, rule, attributes.name)
            })
        })
    }

    fn at<'s>(&'s self, positions: &'s [u32]) -> impl Iterator<Item = (u32, &'s PolicyRule)> {
        positions.iter().map(|&position| (position, &self.rules[position as usize]))
    }

    fn allows_name(&self, position: u32, rule: &PolicyRule, name: &str) -> bool {
        match rule.resource_names.len() >= HASHED_NAMES_MIN {
            true => self.names.get(&position).is_some_and(|names| names.contains(name)),
            false => rule.allows_name(name),
        }
    }
}
