//! [`WebhookIndex`]: finds the few webhooks that can match a request among many.

use std::collections::{BTreeSet, HashMap};

use crate::attributes::ResourceName;
use crate::webhook::Webhook;

/// The webhooks of a server in the order of their calls, indexed by group and resource.
///
/// A request costs a few hash look-ups and one step for each webhook with a rule for the group and the resource, however
/// many other webhooks there are.
#[derive(Debug, Default)]
pub struct WebhookIndex {
    webhooks: Vec<Webhook>,
    /// Group, then resource; both may be `*`. The positions are ascending.
    by_group: HashMap<String, HashMap<String, Vec<usize>>>,
}

impl WebhookIndex {
    /// Creates an index of webhooks. Webhooks are called in the order of their configurations' names, and in the order of
    /// each configuration.
    pub fn new(webhooks: impl IntoIterator<Item = Webhook>) -> Self {
        let mut webhooks: Vec<Webhook> = webhooks.into_iter().collect();
        // The sort is stable, so that the webhooks of one configuration keep their order.
        webhooks.sort_by(|a, b| a.configuration.cmp(&b.configuration));
        let mut by_group: HashMap<String, HashMap<String, Vec<usize>>> = HashMap::new();
        for (position, webhook) in webhooks.iter().enumerate() {
            for rule in &webhook.rules {
                for (group, (resource, _)) in
                    rule.groups.iter().flat_map(|group| rule.resources.iter().map(move |resource| (group, resource)))
                {
                    let of_group = by_group.entry(group.clone()).or_default();
                    let positions = of_group.entry(resource.clone()).or_default();
                    if positions.last() != Some(&position) {
                        positions.push(position);
                    }
                }
            }
        }
        WebhookIndex { webhooks, by_group }
    }

    /// True without webhooks.
    pub fn is_empty(&self) -> bool {
        self.webhooks.is_empty()
    }

    /// All webhooks, in the order of their calls.
    pub fn webhooks(&self) -> &[Webhook] {
        &self.webhooks
    }

    /// Returns the webhooks that may match a request for a resource, in the order of their calls. `equivalents` are the
    /// other versions and groups of the resource. Allocates nothing if there is no such webhook.
    pub fn candidates(
        &self,
        resource: &ResourceName<'_>,
        equivalents: &[ResourceName<'_>],
    ) -> impl Iterator<Item = &Webhook> + use<'_> {
        let mut found = BTreeSet::new();
        for ResourceName { group, resource, .. } in std::iter::once(resource).chain(equivalents) {
            for of_group in [*group, "*"].iter().filter_map(|group| self.by_group.get(*group)) {
                for name in [*resource, "*"] {
                    found.extend(of_group.get(name).into_iter().flatten().copied());
                }
            }
        }
        found.into_iter().map(|position| &self.webhooks[position])
    }
}
