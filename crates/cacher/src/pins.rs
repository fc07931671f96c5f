//! Snapshots kept for paged lists ([`Pins`]). All pages of a list show one revision, so the first
//! page keeps its snapshot for the following pages.
//!
//! A pinned snapshot costs the memory of all later changes, at most the bytes of the resource at
//! its revision. The history could rebuild the snapshot, but only for a limited time and at some
//! cost. So the number of snapshots ([`pinned_snapshots_max`](crate::Limits::pinned_snapshots_max))
//! and their idle time are bounded.
//!
//! Evicted snapshots are returned to the caller, because freeing them takes time and must happen
//! outside of the lock.

use std::time::Instant;

use listwatch_meta::Revision;

use crate::limits::PINNED_SNAPSHOT_IDLE;
use crate::snapshot::Snapshot;

/// Snapshots by revision, evicted in least-recently-used order.
pub(crate) struct Pins {
    /// The entries; the most recently used one is last.
    entries: Vec<(Revision, Instant, Snapshot)>,
    max: usize,
}

impl Pins {
    /// Creates a set that keeps at most `max` snapshots.
    pub(crate) fn new(max: usize) -> Self {
        Pins { entries: Vec::new(), max }
    }

    /// Adds a snapshot. Returns the snapshots that it evicts.
    #[must_use = "to be dropped outside of any lock"]
    pub(crate) fn pin(&mut self, now: Instant, revision: Revision, snapshot: Snapshot) -> Vec<Snapshot> {
        let mut left = self.take(|known, _| known == revision);
        self.entries.push((revision, now, snapshot));
        if self.entries.len() > self.max {
            left.push(self.entries.remove(0).2);
        }
        left
    }

    /// The snapshot of exactly this revision, if it is kept.
    pub(crate) fn get(&mut self, now: Instant, revision: Revision) -> Option<Snapshot> {
        let position = self.entries.iter().position(|(known, ..)| *known == revision)?;
        let (revision, _, snapshot) = self.entries.remove(position);
        self.entries.push((revision, now, snapshot.clone()));
        Some(snapshot)
    }

    /// Evicts the snapshots that exceeded the idle time, and returns them.
    #[must_use = "to be dropped outside of any lock"]
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Vec<Snapshot> {
        self.take(|_, used| now.saturating_duration_since(used) >= PINNED_SNAPSHOT_IDLE)
    }

    /// Removes and returns all snapshots.
    #[must_use = "to be dropped outside of any lock"]
    pub(crate) fn clear(&mut self) -> Vec<Snapshot> {
        self.take(|_, _| true)
    }

    fn take(&mut self, which: impl Fn(Revision, Instant) -> bool) -> Vec<Snapshot> {
        self.entries
            .extract_if(.., |(revision, used, _)| which(*revision, *used))
            .map(|(.., snapshot)| snapshot)
            .collect()
    }

    /// The number of pinned snapshots.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_evict_least_recently_used_and_idle_snapshots() {
        let (now, r) = (Instant::now(), Revision::new);
        let mut pins = Pins::new(2);
        let snapshot = || Snapshot::new(&[]);
        assert!(pins.pin(now, r(1), snapshot()).is_empty());
        assert!(pins.pin(now, r(2), snapshot()).is_empty());
        assert!(pins.get(now, r(1)).is_some());
        assert_eq!(pins.pin(now, r(3), snapshot()).len(), 1);
        assert!(pins.get(now, r(2)).is_none());
        let later = now + PINNED_SNAPSHOT_IDLE / 2;
        assert!(pins.get(later, r(1)).is_some());
        assert_eq!(pins.handle_timeout(now + PINNED_SNAPSHOT_IDLE).len(), 1);
        assert_eq!(pins.len(), 1, "the one that was used in between stays");
    }
}
