//! Snapshots kept for paged lists ([`Pins`]): the pages of one list show one revision, so the first
//! page keeps its snapshot for those that follow.
//!
//! A pinned snapshot costs what has changed since; the history could rebuild it, but not for long,
//! and not for nothing.

use std::time::Instant;

use listwatch_meta::Revision;

use crate::limits::PINNED_SNAPSHOT_IDLE;
use crate::snapshot::Snapshot;

/// Snapshots by revision; the least recently used one leaves first.
pub(crate) struct Pins {
    /// The most recently used is the last.
    entries: Vec<(Revision, Instant, Snapshot)>,
    max: usize,
}

impl Pins {
    /// Keeps at most `max` snapshots.
    pub(crate) fn new(max: usize) -> Self {
        Pins { entries: Vec::new(), max }
    }

    /// Keeps a snapshot.
    pub(crate) fn pin(&mut self, now: Instant, revision: Revision, snapshot: Snapshot) {
        self.entries.retain(|(known, ..)| *known != revision);
        self.entries.push((revision, now, snapshot));
        if self.entries.len() > self.max {
            self.entries.remove(0);
        }
    }

    /// The snapshot of exactly this revision, if it is kept.
    pub(crate) fn get(&mut self, now: Instant, revision: Revision) -> Option<Snapshot> {
        let position = self.entries.iter().position(|(known, ..)| *known == revision)?;
        let (revision, _, snapshot) = self.entries.remove(position);
        self.entries.push((revision, now, snapshot.clone()));
        Some(snapshot)
    }

    /// Drops what was not used for long.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.entries.retain(|(_, used, _)| now.saturating_duration_since(*used) < PINNED_SNAPSHOT_IDLE);
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// How many are kept.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_leaves_first_and_the_unused_leave_in_time() {
        let (now, r) = (Instant::now(), Revision::new);
        let mut pins = Pins::new(2);
        let snapshot = || Snapshot::new(&[]);
        pins.pin(now, r(1), snapshot());
        pins.pin(now, r(2), snapshot());
        assert!(pins.get(now, r(1)).is_some());
        pins.pin(now, r(3), snapshot());
        assert!(pins.get(now, r(2)).is_none());
        let later = now + PINNED_SNAPSHOT_IDLE / 2;
        assert!(pins.get(later, r(1)).is_some());
        pins.handle_timeout(now + PINNED_SNAPSHOT_IDLE);
        assert_eq!(pins.len(), 1, "the one that was used in between stays");
    }
}
