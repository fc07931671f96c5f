//! Snapshots kept for paged lists ([`Pins`]). All pages of a list show one revision, so the first
//! page keeps its snapshot for the following pages.
//!
//! A pinned snapshot costs the memory of all later changes, at most the bytes of the resource at
//! its revision. The history could rebuild the snapshot, but only for a limited time and at some
//! cost. So the number of snapshots ([`pinned_snapshots_max`](crate::Limits::pinned_snapshots_max))
//! and their idle time are bounded.
//!
//! A client that repeats one page would keep its snapshot forever. So the pages of a list also expire
//! [`PAGED_LIST_MAX`] after its first page, even if the state could still be read.
//!
//! Evicted snapshots are returned to the caller, because freeing them takes time and must happen
//! outside of the lock.

use std::collections::VecDeque;
use std::time::Instant;

use listwatch_meta::Revision;

use crate::limits::{PAGED_LIST_MAX, PINNED_SNAPSHOT_IDLE};
use crate::snapshot::Snapshot;

/// The number of expired revisions that are remembered. Older ones are served again if the state can still be read.
const EXPIRED_MAX: usize = 64;

/// Snapshots by revision, evicted in least-recently-used order.
pub(crate) struct Pins {
    /// The entries; the most recently used one is last.
    entries: Vec<Pin>,
    max: usize,
    /// Incremented by [`Pins::clear`].
    generation: u64,
    /// The revisions whose lists have expired, the oldest first.
    expired: VecDeque<Revision>,
}

/// The circumstances of a page that is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinning {
    /// [`Pins::generation`] before the state of the page was taken.
    pub(crate) generation: u64,
    /// Whether the page begins a list.
    pub(crate) begins: bool,
}

struct Pin {
    revision: Revision,
    /// The time of the latest page that began a list, or of the first other page that found no entry.
    begun: Instant,
    used: Instant,
    snapshot: Snapshot,
}

impl Pins {
    /// Creates a set that keeps at most `max` snapshots.
    pub(crate) fn new(max: usize) -> Self {
        Pins { entries: Vec::new(), max, generation: 0, expired: VecDeque::new() }
    }

    /// The number of calls of [`Pins::clear`]. A reader takes it before the state that it pins later.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Adds the snapshot of a page. Returns the snapshots that are evicted. A page that begins a list resets the
    /// expiry of this revision; other pages do not. A snapshot of a generation that [`Pins::clear`] has ended is not
    /// added, because the new history may have another state at its revision.
    #[must_use = "to be dropped outside of any lock"]
    pub(crate) fn pin(
        &mut self,
        now: Instant,
        revision: Revision,
        snapshot: Snapshot,
        pinning: Pinning,
    ) -> Vec<Snapshot> {
        let Pinning { generation, begins } = pinning;
        if generation != self.generation {
            return vec![snapshot];
        }
        let known = self.entries.iter().find(|pin| pin.revision == revision).map(|pin| pin.begun);
        if begins {
            self.expired.retain(|expired| *expired != revision);
        }
        let begun = known.filter(|_| !begins).unwrap_or(now);
        let mut left = self.take(|pin| pin.revision == revision);
        self.entries.push(Pin { revision, begun, used: now, snapshot });
        if self.entries.len() > self.max {
            left.push(self.entries.remove(0).snapshot);
        }
        left
    }

    /// The snapshot of exactly this revision, if it is kept.
    pub(crate) fn get(&mut self, now: Instant, revision: Revision) -> Option<Snapshot> {
        let position = self.entries.iter().position(|pin| pin.revision == revision)?;
        let pin = Pin { used: now, ..self.entries.remove(position) };
        let snapshot = pin.snapshot.clone();
        self.entries.push(pin);
        Some(snapshot)
    }

    /// Whether the lists of this revision have expired.
    pub(crate) fn is_expired(&self, revision: Revision) -> bool {
        self.expired.contains(&revision)
    }

    /// Evicts the snapshots that exceeded the idle time or whose lists expire, and returns them.
    #[must_use = "to be dropped outside of any lock"]
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Vec<Snapshot> {
        let is_over = |pin: &Pin| now.saturating_duration_since(pin.begun) >= PAGED_LIST_MAX;
        for pin in self.entries.iter().filter(|pin| is_over(pin)) {
            self.expired.push_back(pin.revision);
        }
        let too_many = self.expired.len().saturating_sub(EXPIRED_MAX);
        self.expired.drain(..too_many);
        self.take(|pin| is_over(pin) || now.saturating_duration_since(pin.used) >= PINNED_SNAPSHOT_IDLE)
    }

    /// Removes and returns all snapshots, because another state replaced the cached one.
    #[must_use = "to be dropped outside of any lock"]
    pub(crate) fn clear(&mut self) -> Vec<Snapshot> {
        self.generation += 1;
        self.take(|_| true)
    }

    fn take(&mut self, which: impl Fn(&Pin) -> bool) -> Vec<Snapshot> {
        self.entries.extract_if(.., |pin| which(pin)).map(|pin| pin.snapshot).collect()
    }

    /// The number of pinned snapshots.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Pinning = Pinning { generation: 0, begins: true };
    const OTHER: Pinning = Pinning { generation: 0, begins: false };

    #[test]
    fn pins_evict_least_recently_used_and_idle_snapshots() {
        let (now, r) = (Instant::now(), Revision::new);
        let mut pins = Pins::new(2);
        let snapshot = || Snapshot::new(&[]);
        assert!(pins.pin(now, r(1), snapshot(), FIRST).is_empty());
        assert!(pins.pin(now, r(2), snapshot(), FIRST).is_empty());
        assert!(pins.get(now, r(1)).is_some());
        assert_eq!(pins.pin(now, r(3), snapshot(), FIRST).len(), 1);
        assert!(pins.get(now, r(2)).is_none());
        let later = now + PINNED_SNAPSHOT_IDLE / 2;
        assert!(pins.get(later, r(1)).is_some());
        assert_eq!(pins.handle_timeout(now + PINNED_SNAPSHOT_IDLE).len(), 1);
        assert_eq!(pins.len(), 1, "the one that was used in between stays");
        assert_eq!((pins.clear().len(), pins.len()), (1, 0));
    }

    #[test]
    fn snapshot_taken_before_a_start_over_is_not_pinned_after_it() {
        let (now, r) = (Instant::now(), Revision::new);
        let mut pins = Pins::new(2);
        let late = Pinning { generation: pins.generation(), begins: true };
        assert!(pins.clear().is_empty());
        assert_eq!(pins.pin(now, r(1), Snapshot::new(&[]), late).len(), 1, "it is returned, to be dropped");
        assert!(pins.get(now, r(1)).is_none(), "promise: no time travel");
        let fresh = Pinning { generation: pins.generation(), begins: true };
        assert!(pins.pin(now, r(1), Snapshot::new(&[]), fresh).is_empty());
        assert!(pins.get(now, r(1)).is_some());
    }

    #[test]
    fn pages_of_a_list_expire_a_fixed_time_after_the_first_even_if_read_repeatedly() {
        let (start, r) = (Instant::now(), Revision::new(1));
        let mut pins = Pins::new(2);
        let snapshot = || Snapshot::new(&[]);
        assert!(pins.pin(start, r, snapshot(), FIRST).is_empty());
        let late = start + PAGED_LIST_MAX - PINNED_SNAPSHOT_IDLE / 2;
        for now in [start + PINNED_SNAPSHOT_IDLE / 2, late] {
            assert!(pins.handle_timeout(now).is_empty() && pins.get(now, r).is_some());
            assert_eq!(pins.pin(now, r, snapshot(), OTHER).len(), 1);
        }
        let over = start + PAGED_LIST_MAX;
        assert_eq!(pins.handle_timeout(over).len(), 1);
        assert!(pins.is_expired(r) && pins.get(over, r).is_none());
        // A new list at the same revision has a time of its own.
        assert!(pins.pin(over, r, snapshot(), FIRST).is_empty());
        assert!(!pins.is_expired(r) && pins.handle_timeout(over).is_empty());
        for n in 2..=u64::try_from(EXPIRED_MAX).unwrap() + 2 {
            let _ = pins.pin(start, Revision::new(n), snapshot(), FIRST);
            let _ = pins.handle_timeout(over);
        }
        assert_eq!(pins.expired.len(), EXPIRED_MAX);
    }
}
