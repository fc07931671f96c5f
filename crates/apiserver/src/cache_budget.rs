//! What all watch caches of a server may take together, and which resources go without one while
//! that is too much.
//!
//! ```text
//!   cached ──── together above the budget: those that nobody watches first, then the largest ───▶ without
//!     ▲                                                                                              │
//!     └──────── after a while, when there is room for it and a quarter of the budget besides ────────┘
//! ```
//!
//! Without a cache a resource is served straight from the store, with the same semantics: a list is a
//! read of the store, each watch a watch of the store. That is slower, and costs no memory that grows
//! with the objects. Its watches end cleanly at the change, and their clients come back where they
//! were; nobody is told a lie, and the server lives.
//!
//! A cache counts when it is filled; while it fills, nobody knows how large it will be.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use listwatch_meta::KeyRange;
use listwatch_storage::ListQuery;
use tokio::time::Instant;

use crate::backend::Backend;

/// How often the caches are weighed.
const WEIGH_INTERVAL: Duration = Duration::from_secs(1);

/// A resource goes without a cache for at least so long: filling one costs a read of everything.
const WITHOUT_MIN: Duration = Duration::from_secs(60);

/// A cache comes back when it leaves this part of the budget free.
const ROOM_DIVISOR: usize = 4;

/// One cache that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    /// The resource's prefix in the store.
    pub(crate) prefix: String,
    /// Bytes of its state.
    pub(crate) bytes: usize,
    /// Objects in it.
    pub(crate) objects: usize,
    /// Does anybody watch it?
    pub(crate) watched: bool,
}

impl Without {
    fn is_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= WITHOUT_MIN
    }
}

/// What follows from weighing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// This resource goes without a cache from now on.
    Drop(String),
    /// It may have one again.
    Restore(String),
}

/// A resource without a cache.
#[derive(Clone, Copy, Debug)]
struct Without {
    /// What a cache of it would take.
    bytes: usize,
    /// What an object took on average when its cache was given up.
    object_bytes: usize,
    /// Since it was given up, or last found to be too large.
    since: Instant,
}

/// The budget, and who goes without. A plain value.
#[derive(Debug)]
pub(crate) struct CacheBudget {
    bytes_max: usize,
    without: HashMap<String, Without>,
}

impl CacheBudget {
    pub(crate) fn new(bytes_max: usize) -> Self {
        CacheBudget { bytes_max, without: HashMap::new() }
    }

    /// Does this resource go without a cache?
    pub(crate) fn is_without(&self, prefix: &str) -> bool {
        self.without.contains_key(prefix)
    }

    /// Resources that go without.
    pub(crate) fn without(&self) -> usize {
        self.without.len()
    }

    /// The bound in bytes.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Those that may come back if they have become small enough: find out how many objects each has.
    pub(crate) fn due(&self, now: Instant) -> Vec<String> {
        self.without.iter().filter(|(_, without)| without.is_due(now)).map(|(prefix, _)| prefix.clone()).collect()
    }

    /// A resource that goes without has so many objects now.
    pub(crate) fn handle_count(&mut self, prefix: &str, objects: usize) {
        if let Some(without) = self.without.get_mut(prefix) {
            without.bytes = without.object_bytes.saturating_mul(objects);
        }
    }

    /// These caches run. Who has to go without, and who comes back.
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
                    Without { bytes, object_bytes: bytes.div_ceil(objects.max(1)), since: now },
                );
                changes.push(Change::Drop(prefix));
            }
        }
        // Smallest first: so most of them come back.
        let mut waiting: Vec<(usize, String)> = self
            .without
            .iter()
            .filter(|(_, without)| without.is_due(now))
            .map(|(prefix, without)| (without.bytes, prefix.clone()))
            .collect();
        waiting.sort();
        for (bytes, prefix) in waiting {
            if total.saturating_add(bytes) > self.bytes_max - self.bytes_max / ROOM_DIVISOR {
                // It is asked about again after a while.
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

/// Weighs the caches as long as the server lives.
pub(crate) async fn run(backend: Weak<Backend>) {
    let mut tick = tokio::time::interval(WEIGH_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let Some(backend) = backend.upgrade() else { return };
        let now = Instant::now();
        for prefix in backend.caches_due(now) {
            let query = ListQuery { range: KeyRange::resource(&prefix), at: None, limit: 1 };
            // A store that does not count, or not now: what is known stays.
            if let Ok(page) = backend.storage().list(query).await
                && let Some(remaining) = page.remaining
            {
                backend.handle_count(&prefix, page.items.len() + remaining as usize);
            }
        }
        for change in backend.weigh_caches(now) {
            match change {
                Change::Drop(prefix) => tracing::warn!(
                    resource = prefix,
                    "the caches are above --cache-bytes: this resource is served from the store"
                ),
                Change::Restore(prefix) => tracing::info!(resource = prefix, "there is room for a cache again"),
            }
        }
    }
}

/// Starts [`run`] where there is a budget.
pub(crate) fn spawn(backend: &Arc<Backend>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(run(Arc::downgrade(backend)))
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

    /// What changed, as text: `-pods +events`.
    fn weigh(budget: &mut CacheBudget, now: Instant, weights: &[(&str, usize, bool)]) -> String {
        let text = |change| match change {
            Change::Drop(prefix) => format!("-{prefix}"),
            Change::Restore(prefix) => format!("+{prefix}"),
        };
        budget.handle_weights(now, caches(weights)).into_iter().map(text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn those_that_nobody_watches_go_first_then_the_largest() {
        let now = Instant::now();
        for (budget, expected) in
            [(100, ""), (99, "-events"), (80, "-events"), (69, "-events -leases"), (9, "-events -leases -pods -nodes")]
        {
            let weights = [("pods", 40, true), ("nodes", 20, true), ("leases", 10, false), ("events", 30, false)];
            assert_eq!(weigh(&mut CacheBudget::new(budget), now, &weights), expected, "a budget of {budget}");
        }
    }

    #[test]
    fn a_cache_comes_back_after_a_while_and_where_there_is_room() {
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
    fn one_that_was_too_large_comes_back_when_its_objects_are_gone() {
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
        /// Whatever is weighed, what stays is within the budget, and nobody is dropped without need.
        #[test]
        fn what_stays_is_within_the_budget(
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
