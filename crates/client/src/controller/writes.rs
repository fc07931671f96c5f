//! The writes of each key that the caches may not show yet: [`PendingWrites`].
//!
//! A reconcile that begins before the caches show the writes of the last one repeats them, and for example creates a
//! second object. client-go's expectations (`ControllerExpectations` in `pkg/controller/controller_utils.go`) count
//! events for the same purpose; this module compares resource versions.
//!
//! ```text
//!            record            shown, or not comparable
//!   (none) ─────────▶ pending ─────────────────────────▶ (none)
//!                      │   ▲ record of a newer version      ▲
//!            time limit│   │                                │
//!                      ▼   │                                │
//!                     overdue ──────────────────────────────┘
//!                          shown, or older than OVERDUE_MAX
//! ```
//!
//! A key waits for its pending writes, and only checks its overdue ones. While a write is overdue, the key is behind.
//! A waiting key holds no worker: the queue returns it after a delay, or at its next change.
//! An overdue write ends after [`OVERDUE_MAX`], because a cache may never show it: a server that was restored from a
//! backup continues at a lower version.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::SourceId;
use super::run::lock;
use crate::object::{Object, ObjectKey, compare_versions};
use crate::{Snapshot, Store};

/// The age at which a recorded write that no cache shows is dropped. Then its key is no longer behind: the server was
/// probably restored from a backup and has lost the write.
pub const OVERDUE_MAX: Duration = Duration::from_secs(10 * 60);

/// The shortest time until a waiting key is checked again. The time doubles up to [`CHECK_DELAY_MAX`].
const CHECK_DELAY_MIN: Duration = Duration::from_millis(5);

/// The longest time until a waiting key is checked again.
const CHECK_DELAY_MAX: Duration = Duration::from_secs(1);

/// The number of keys above which written keys are searched for writes that can be dropped.
const SWEEP_KEYS_MIN: usize = 64;

/// The writes that the caches do not show yet. A write stays until its cache shows it, also after a wait that timed out,
/// but not beyond [`OVERDUE_MAX`].
#[derive(Debug)]
pub(super) struct PendingWrites {
    /// The time for which a key waits for its pending writes.
    wait_max: Duration,
    keys: Mutex<Keys>,
}

#[derive(Debug)]
struct Keys {
    writes: HashMap<ObjectKey, KeyWrites>,
    /// The number of keys at which all of them are searched. Twice the number that the last search left, so that the
    /// cost per recorded key is constant.
    sweep_at: usize,
}

/// The writes of one key.
#[derive(Debug, Default)]
struct KeyWrites {
    targets: HashMap<Target, Write>,
    /// The time at which the key began to wait for pending writes.
    waiting_since: Option<Instant>,
}

/// Whether a key can be reconciled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteCheck {
    /// The caches show all writes of the key.
    Shown,
    /// A cache does not show a write. The key is checked again after this time.
    Pending(Duration),
    /// A cache does not show a write within the time limit.
    Behind,
}

/// The object that was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Target {
    source: SourceId,
    /// `None` if the caller did not name the object.
    object: Option<ObjectKey>,
}

#[derive(Clone, Debug)]
struct Write {
    version: String,
    recorded_at: Instant,
    /// Whether a wait for this version has timed out.
    overdue: bool,
}

impl Write {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.recorded_at)
    }

    /// Whether `newer`, which was recorded later, takes this write's place. A named object that gets a lower version
    /// proves that the server went back, so that no cache will show an overdue write. Without a name, the lower version
    /// may be that of another object which an update did not change.
    fn is_replaced_by(&self, newer: &str, names_the_object: bool) -> bool {
        compare_versions(newer, &self.version)
            .is_some_and(|order| order.is_gt() || (order.is_lt() && self.overdue && names_the_object))
    }
}

impl Target {
    /// Whether this state of the source includes the write. `None` if their versions cannot be compared.
    fn is_shown(&self, snapshot: &Snapshot<Object>, write: &Write) -> Option<bool> {
        match &self.object {
            Some(object) => snapshot.shows_write(object.as_str(), &write.version),
            None => snapshot.has_reached(&write.version),
        }
    }
}

impl PendingWrites {
    pub(super) fn new(wait_max: Duration) -> Self {
        let keys = Keys { writes: HashMap::new(), sweep_at: SWEEP_KEYS_MIN };
        PendingWrites { wait_max, keys: Mutex::new(keys) }
    }

    /// Records a write of the key's reconcile. Only the newest version of each object counts, or the last one of a named
    /// object whose server went back. A version that is not a number has no effect, because it cannot be compared.
    pub(super) fn record(
        &self,
        stores: &[Store],
        key: &ObjectKey,
        source: SourceId,
        object: Option<&ObjectKey>,
        version: &str,
    ) {
        if compare_versions(version, version).is_none() {
            return;
        }
        let write = Write { version: version.to_owned(), recorded_at: Instant::now(), overdue: false };
        let mut keys = lock(&self.keys);
        if keys.writes.len() >= keys.sweep_at && !keys.writes.contains_key(key) {
            keys.sweep(stores, self.wait_max, write.recorded_at);
        }
        let of_key = keys.writes.entry(key.clone()).or_default();
        let known = of_key.targets.entry(Target { source, object: object.cloned() }).or_insert_with(|| write.clone());
        if known.is_replaced_by(version, object.is_some()) {
            *known = write;
        }
    }

    /// Checks whether the caches show the key's writes. A key whose writes are pending waits from its first check, for at
    /// most the time limit. Then these writes are overdue. The key does not wait for them again, but is behind until the
    /// caches show them or they are as old as [`OVERDUE_MAX`].
    pub(super) fn check(&self, stores: &[Store], key: &ObjectKey) -> WriteCheck {
        let mut keys = lock(&self.keys);
        let Some(of_key) = keys.writes.get_mut(key) else { return WriteCheck::Shown };
        let now = Instant::now();
        of_key.targets.retain(|target, write| {
            if write.overdue && write.age(now) >= OVERDUE_MAX {
                tracing::warn!(%key, version = write.version, "no cache shows a recorded write; it is dropped");
                return false;
            }
            // Versions that cannot be compared are not waited for. The id may be one of another controller.
            stores.get(target.source.0).is_some_and(|store| target.is_shown(&store.snapshot(), write) == Some(false))
        });
        if of_key.targets.is_empty() {
            keys.writes.remove(key);
            return WriteCheck::Shown;
        }
        if of_key.targets.values().all(|write| write.overdue) {
            of_key.waiting_since = None;
            return WriteCheck::Behind;
        }
        let waited = now.saturating_duration_since(*of_key.waiting_since.get_or_insert(now));
        let left = self.wait_max.saturating_sub(waited);
        if left.is_zero() {
            of_key.waiting_since = None;
            of_key.targets.values_mut().for_each(|write| write.overdue = true);
            return WriteCheck::Behind;
        }
        // The time so far doubles.
        WriteCheck::Pending(waited.clamp(CHECK_DELAY_MIN, CHECK_DELAY_MAX).min(left))
    }

    /// The number of keys with recorded writes.
    #[cfg(test)]
    pub(super) fn keys(&self) -> usize {
        lock(&self.keys).writes.len()
    }
}

impl Keys {
    /// Drops the writes that need no wait: their cache shows them, their versions are not comparable, or they are as old
    /// as [`OVERDUE_MAX`]. A key may never be reconciled again, e.g. after a deletion, so nothing else drops its writes.
    fn sweep(&mut self, stores: &[Store], wait_max: Duration, now: Instant) {
        let snapshots: Vec<_> = stores.iter().map(Store::snapshot).collect();
        // A key still waits for a younger write.
        let age_max = OVERDUE_MAX.max(wait_max);
        self.writes.retain(|_, of_key| {
            of_key.targets.retain(|target, write| {
                let Some(snapshot) = snapshots.get(target.source.0) else { return false };
                target.is_shown(snapshot, write) == Some(false) && write.age(now) < age_max
            });
            !of_key.targets.is_empty()
        });
        self.sweep_at = SWEEP_KEYS_MIN.max(2 * self.writes.len());
    }
}
