//! [`WatchCounts`]: how many watches receive the event of a write (`flowcontrol/watch_tracker.go`).

use std::collections::HashMap;

use crate::flow_hash::FlowHash;

/// The objects that a watch can receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchScope<'a> {
    /// The API group.
    pub api_group: &'a str,
    /// The plural name of the resource.
    pub resource: &'a str,
    /// The namespace, or empty for all namespaces.
    pub namespace: &'a str,
    /// The only object name of the watch; empty for all names.
    pub name: &'a str,
}

/// The key of a watch that was counted.
#[derive(Debug, PartialEq, Eq)]
pub struct WatchKey(u64);

/// Counts watches by scope. The keys are hashes: two scopes with the same hash are counted together, which happens once
/// in 2⁶⁴ pairs.
#[derive(Debug)]
pub(crate) struct WatchCounts {
    hash: FlowHash,
    counts: HashMap<u64, u64>,
}

impl WatchCounts {
    pub(crate) fn new(hash: FlowHash) -> Self {
        WatchCounts { hash, counts: HashMap::new() }
    }

    fn key(&self, scope: &WatchScope<'_>) -> u64 {
        self.hash.hash(&[scope.api_group, scope.resource, scope.namespace, scope.name])
    }

    /// Counts a watch until [`WatchCounts::remove`].
    pub(crate) fn add(&mut self, scope: &WatchScope<'_>) -> WatchKey {
        let key = self.key(scope);
        *self.counts.entry(key).or_default() += 1;
        WatchKey(key)
    }

    pub(crate) fn remove(&mut self, key: WatchKey) {
        if let Some(count) = self.counts.get_mut(&key.0) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&key.0);
            }
        }
    }

    /// The number of watches that may receive the event of a write.
    pub(crate) fn interested(&self, write: &WatchScope<'_>) -> u64 {
        if self.counts.is_empty() {
            return 0;
        }
        let count = |scope: &WatchScope<'_>| self.counts.get(&self.key(scope)).copied().unwrap_or(0);
        let of_resource = count(&WatchScope { namespace: "", name: "", ..*write });
        let of_namespace = if write.namespace.is_empty() { 0 } else { count(&WatchScope { name: "", ..*write }) };
        let of_object = if write.name.is_empty() { 0 } else { count(write) };
        of_resource + of_namespace + of_object
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope<'a>(namespace: &'a str, name: &'a str) -> WatchScope<'a> {
        WatchScope { api_group: "apps", resource: "deployments", namespace, name }
    }

    #[test]
    fn write_is_counted_for_watches_of_its_object_namespace_and_resource() {
        let mut counts = WatchCounts::new(FlowHash::new(1));
        let mut keys = Vec::new();
        for (namespace, name, watches) in [("", "", 3), ("a", "", 5), ("a", "x", 7), ("b", "", 100), ("a", "y", 100)] {
            keys.extend((0..watches).map(|_| counts.add(&scope(namespace, name))));
        }
        assert_eq!(counts.interested(&scope("a", "x")), 15);
        assert_eq!(counts.interested(&scope("a", "")), 8, "a create has no name in its path");
        assert_eq!(counts.interested(&scope("c", "x")), 3);
        assert_eq!(counts.interested(&WatchScope { resource: "replicasets", ..scope("a", "x") }), 0);
        keys.into_iter().for_each(|key| counts.remove(key));
        assert_eq!(counts.interested(&scope("a", "x")), 0);
        assert!(counts.counts.is_empty(), "counts without watches are removed");
    }
}
