//! [`RuleIndex`] and [`WebhookIndex`]: find the webhooks or policies that can match a request without a scan of all.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use listwatch_admission::{Operation, ResourceName};

use crate::matching::MatchCriteria;
use crate::rule::Rule;
use crate::webhook::Webhook;

/// All operations, in the order of [`RuleIndex::by_operation`].
const OPERATIONS: [Operation; 4] = [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];

/// Ascending positions by API group and resource. Group and resource may be `*`.
type ByGroup = HashMap<String, HashMap<String, Vec<usize>>>;

/// Positions of criteria in a list, indexed by operation, group and resource.
///
/// A lookup takes a few hash lookups, and one step per item with a rule for the operation, group and resource. Other
/// items are not visited.
#[derive(Debug, Default)]
pub struct RuleIndex {
    by_operation: [ByGroup; OPERATIONS.len()],
    /// The items that match every resource.
    everything: Vec<usize>,
}

impl RuleIndex {
    /// Creates an index of a list of criteria.
    pub fn new<'a>(criteria: impl IntoIterator<Item = &'a MatchCriteria>) -> Self {
        let mut index = RuleIndex::default();
        for (position, criteria) in criteria.into_iter().enumerate() {
            if criteria.rules.is_empty() && criteria.matches_without_rules {
                index.everything.push(position);
            }
            for rule in &criteria.rules {
                for (operation, by_group) in OPERATIONS.into_iter().zip(&mut index.by_operation) {
                    if rule.has_operation(operation) {
                        add(by_group, rule, position);
                    }
                }
            }
        }
        index
    }

    /// Returns the ascending positions of the criteria that may match an operation on a resource. `equivalents` are the
    /// other versions and groups of the resource. Does not allocate if there are no candidates.
    pub fn candidates(
        &self,
        operation: Operation,
        resource: &ResourceName<'_>,
        equivalents: &[ResourceName<'_>],
    ) -> BTreeSet<usize> {
        let mut found: BTreeSet<usize> = self.everything.iter().copied().collect();
        let Some(at) = OPERATIONS.iter().position(|known| *known == operation) else { return found };
        let by_group = &self.by_operation[at];
        for ResourceName { group, resource, .. } in std::iter::once(resource).chain(equivalents) {
            for of_group in [*group, "*"].iter().filter_map(|group| by_group.get(*group)) {
                for name in [*resource, "*"] {
                    found.extend(of_group.get(name).into_iter().flatten().copied());
                }
            }
        }
        found
    }
}

fn add(by_group: &mut ByGroup, rule: &Rule, position: usize) {
    for group in &rule.groups {
        let of_group = by_group.entry(group.clone()).or_default();
        for (resource, _) in &rule.resources {
            let positions = of_group.entry(resource.clone()).or_default();
            if positions.last() != Some(&position) {
                positions.push(position);
            }
        }
    }
}

/// The webhooks of a server in the order of their calls, indexed by their rules.
#[derive(Debug, Default)]
pub struct WebhookIndex {
    webhooks: Vec<Arc<Webhook>>,
    index: RuleIndex,
}

impl WebhookIndex {
    /// Creates an index of webhooks. Webhooks are called in the order of their configurations' names, and in the order
    /// of each configuration.
    pub fn new(webhooks: impl IntoIterator<Item = Arc<Webhook>>) -> Self {
        let mut webhooks: Vec<Arc<Webhook>> = webhooks.into_iter().collect();
        // The sort is stable, so that the webhooks of one configuration keep their order.
        webhooks.sort_by(|a, b| a.configuration.cmp(&b.configuration));
        let index = RuleIndex::new(webhooks.iter().map(|webhook| webhook.criteria()));
        WebhookIndex { webhooks, index }
    }

    /// Returns true if there are no webhooks.
    pub fn is_empty(&self) -> bool {
        self.webhooks.is_empty()
    }

    /// All webhooks, in the order of their calls.
    pub fn webhooks(&self) -> &[Arc<Webhook>] {
        &self.webhooks
    }

    /// Returns the webhooks that may match an operation on a resource, in the order of their calls, each with its
    /// position among all webhooks. `equivalents` are the other versions and groups of the resource. Does not allocate
    /// if there are no candidates.
    pub fn candidates(
        &self,
        operation: Operation,
        resource: &ResourceName<'_>,
        equivalents: &[ResourceName<'_>],
    ) -> impl Iterator<Item = (usize, &Arc<Webhook>)> + use<'_> {
        let found = self.index.candidates(operation, resource, equivalents);
        found.into_iter().map(|position| (position, &self.webhooks[position]))
    }
}
