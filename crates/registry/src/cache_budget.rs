//! The shared memory budget of all watch caches of a server. While the caches exceed the budget, some resources are
//! served without a cache.
//!
//! ```text
//!   cached ──── total above the budget: unwatched caches first, then the largest ──────────────▶ without
//!     ▲                                                                                              │
//!     └──────── after 60 s, if the cache fits and leaves a quarter of the budget free ───────────────┘
//! ```
//!
//! A resource without a cache is served from the store with the same semantics: lists read the store, and each watch is
//! a watch of the store. These reads are slower, but their memory does not grow with the number of objects. When a
//! cache is dropped or restored, the watches of the resource end cleanly. Clients then resume from their last resource
//! version.
//!
//! Only filled caches are measured: the size of a cache is unknown while it fills.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Minimum time that a resource has no cache. Filling a cache costs a read of all objects.
const WITHOUT_MIN: Duration = Duration::from_secs(60);

/// A cache is restored only if `budget / ROOM_DIVISOR` bytes stay free.
const ROOM_DIVISOR: usize = 4;

/// Size of one running cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    /// The storage prefix of the resource.
    pub prefix: String,
    /// Size of the cached objects in bytes.
    pub bytes: usize,
    /// Number of cached objects.
    pub objects: usize,
    /// True if the cache has at least one watcher.
    pub watched: bool,
}

impl UncachedResource {
    fn is_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= WITHOUT_MIN
    }
}

/// A change that keeps the caches within the budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Stop the cache of the resource with this storage prefix.
    Drop(String),
    /// Allow a cache for the resource with this storage prefix again.
    Restore(String),
}

/// The size estimate of a resource without a cache.
#[derive(Clone, Copy, Debug)]
struct UncachedResource {
    /// Estimated size of a cache of the resource, in bytes.
    bytes: usize,
    /// Average size of an object when the cache was dropped, in bytes.
    object_bytes: usize,
    /// Time when the cache was dropped, or last found too large to be restored.
    since: Instant,
}

/// The memory budget and the resources without a cache. Performs no I/O.
#[derive(Debug)]
pub(crate) struct CacheBudget {
    bytes_max: usize,
    without: HashMap<String, UncachedResource>,
}

impl CacheBudget {
    pub(crate) fn new(bytes_max: usize) -> Self {
        CacheBudget { bytes_max, without: HashMap::new() }
    }

    /// Reports whether this resource has no cache because of the budget.
    pub(crate) fn is_without(&self, prefix: &str) -> bool {
        self.without.contains_key(prefix)
    }

    /// Returns the number of resources without a cache.
    pub(crate) fn without(&self) -> usize {
        self.without.len()
    }

    /// Returns the budget in bytes.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Returns the resources whose objects must be counted to decide whether their caches can be restored.
    pub(crate) fn due(&self, now: Instant) -> Vec<String> {
        self.without.iter().filter(|(_, without)| without.is_due(now)).map(|(prefix, _)| prefix.clone()).collect()
    }

    /// Records the current number of objects of a resource without a cache.
    pub(crate) fn handle_count(&mut self, prefix: &str, objects: usize) {
        if let Some(without) = self.without.get_mut(prefix) {
            without.bytes = without.object_bytes.saturating_mul(objects);
        }
    }

    /// Compares the sizes of the running caches with the budget. Returns the caches to drop and to restore.
    pub(crate) fn handle_weights(&mut self, now: Instant, mut caches: Vec<Weight>) -> Vec<Change> {
        let mut total: usize = caches.iter().map(|cache| cache.bytes).sum();
        let mut changes = Vec::new();
        caches.sort_by(|a, b| (a.watched, b.bytes, &a.prefix).cmp(&(b.watched, a.bytes, &b.prefix)));
        for Weight { prefix, bytes, objects, .. } in caches {
            if total <= self.bytes_max {
                break;
            }
            if bytes > 0 {
                total -= bytes;
                self.without.insert(
                    prefix.clone(),
                    UncachedResource { bytes, object_bytes: bytes.div_ceil(objects.max(1)), since: now },
                );
                changes.push(Change::Drop(prefix));
            }
        }
        // The smallest caches come first, so that as many as possible are restored.
        let mut waiting: Vec<(usize, String)> = self
            .without
            .iter()
            .filter(|(_, without)| without.is_due(now))
            .map(|(prefix, without)| (without.bytes, prefix.clone()))
            .collect();
        waiting.sort();
        for (bytes, prefix) in waiting {
            if total.saturating_add(bytes) > self.bytes_max - self.bytes_max / ROOM_DIVISOR {
                // The resource is checked again after `WITHOUT_MIN`.
                self.without.entry(prefix).and_modify(|without| without.since = now);
                continue;
            }
            total += bytes;
            self.without.remove(&prefix);
            changes.push(Change::Restore(prefix));
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn caches(weights: &[(&str, usize, bool)]) -> Vec<Weight> {
        let weight = |&(prefix, bytes, watched): &(&str, usize, bool)| Weight {
            prefix: prefix.into(),
            bytes,
            objects: 10,
            watched,
        };
        weights.iter().map(weight).collect()
    }

    /// Returns the changes as text: `-pods +events`.
    fn weigh(budget: &mut CacheBudget, now: Instant, weights: &[(&str, usize, bool)]) -> String {
        let text = |change| match change {
            Change::Drop(prefix) => format!("-{prefix}"),
            Change::Restore(prefix) => format!("+{prefix}"),
        };
        budget.handle_weights(now, caches(weights)).into_iter().map(text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn unwatched_caches_are_dropped_first_then_the_largest() {
        let now = Instant::now();
        for (budget, expected) in
            [(100, ""), (99, "-events"), (80, "-events"), (69, "-events -leases"), (9, "-events -leases -pods -nodes")]
        {
            let weights = [("pods", 40, true), ("nodes", 20, true), ("leases", 10, false), ("events", 30, false)];
            assert_eq!(weigh(&mut CacheBudget::new(budget), now, &weights), expected, "a budget of {budget}");
        }
    }

    #[test]
    fn cache_is_restored_after_60_seconds_if_the_budget_has_room() {
        let (mut budget, start) = (CacheBudget::new(100), Instant::now());
        assert_eq!(weigh(&mut budget, start, &[("pods", 60, true), ("events", 50, false)]), "-events");
        assert!(budget.is_without("events") && !budget.is_without("pods"));
        assert_eq!(weigh(&mut budget, start + WITHOUT_MIN / 2, &[]), "", "not before a while");
        let later = start + WITHOUT_MIN;
        assert_eq!(weigh(&mut budget, later, &[("pods", 26, true)]), "", "a quarter stays free");
        assert_eq!(weigh(&mut budget, later, &[("pods", 25, true)]), "", "nor at once after it was refused");
        assert_eq!(weigh(&mut budget, later + WITHOUT_MIN, &[("pods", 25, true)]), "+events");
        assert!(!budget.is_without("events"));
    }

    #[test]
    fn oversized_cache_is_restored_after_its_objects_are_deleted() {
        let (mut budget, start) = (CacheBudget::new(100), Instant::now());
        assert_eq!(weigh(&mut budget, start, &[("pods", 500, true)]), "-pods");
        let later = start + WITHOUT_MIN;
        assert_eq!(budget.due(later), ["pods"]);
        budget.handle_count("pods", 2);
        assert_eq!(weigh(&mut budget, later, &[]), "", "two of 50 bytes leave no quarter free");
        assert_eq!(budget.due(later), Vec::<String>::new(), "asked once in a while");
        budget.handle_count("pods", 1);
        assert_eq!(weigh(&mut budget, later + WITHOUT_MIN, &[]), "+pods");
    }

    proptest! {
        /// Random measurements: the remaining caches always fit the budget, and no cache is dropped unnecessarily.
        #[test]
        fn remaining_caches_never_exceed_the_budget(
            bytes in proptest::collection::vec((0usize..100, any::<bool>()), 0..20), bytes_max in 1usize..500,
        ) {
            let names: Vec<String> = (0..bytes.len()).map(|n| format!("r{n}")).collect();
            let weights: Vec<Weight> = names
                .iter()
                .zip(&bytes)
                .map(|(prefix, &(bytes, watched))| Weight { prefix: prefix.clone(), bytes, objects: 1, watched })
                .collect();
            let mut budget = CacheBudget::new(bytes_max);
            let total: usize = weights.iter().map(|weight| weight.bytes).sum();
            let changes = budget.handle_weights(Instant::now(), weights.clone());
            let left: usize =
                weights.iter().filter(|weight| !budget.is_without(&weight.prefix)).map(|weight| weight.bytes).sum();
            prop_assert!(left <= bytes_max, "the caches that stay are above the budget");
            prop_assert_eq!(changes.is_empty(), total <= bytes_max, "somebody was dropped without need");
            let unwatched_left = weights.iter().any(|w| !w.watched && w.bytes > 0 && !budget.is_without(&w.prefix));
            let watched_gone = weights.iter().any(|w| w.watched && budget.is_without(&w.prefix));
            prop_assert!(!(unwatched_left && watched_gone), "one that is watched went before one that is not");
        }
    }
}
