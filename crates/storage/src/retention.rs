//! The retention of history: [`Retention`], and the pure bookkeeping of which revisions may be
//! dropped.

use std::collections::VecDeque;
use std::time::Duration;

use listwatch_meta::Revision;

use crate::ttl::Millis;

/// The history that a store of this crate keeps by itself. Older history is compacted in the
/// background; [`Storage::compact`](crate::Storage::compact) compacts earlier.
///
/// A revision is kept while it is younger than [`age`](Retention::age) **or** among the newest
/// [`revisions`](Retention::revisions), but never beyond [`bytes`](Retention::bytes). A reader that
/// is further behind receives [`Expired`](crate::WatchItem::Expired) and lists again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The minimum age of kept history. kube-apiserver on etcd keeps 5 to 10 minutes.
    pub age: Duration,
    /// The number of newest revisions that are kept at any age, so that a quiet store can be
    /// watched after a long pause.
    pub revisions: u64,
    /// Bytes of history: replaced and removed values, plus [`ENTRY_BYTES`] and the key for each
    /// change. Live values do not count.
    pub bytes: u64,
}

/// The number of accounted bytes of one change in [`Retention::bytes`], besides its key and the
/// replaced value.
pub const ENTRY_BYTES: u64 = 160;

/// Default of [`Retention::age`].
pub const RETENTION_AGE: Duration = Duration::from_secs(10 * 60);
/// Default of [`Retention::revisions`].
pub const RETENTION_REVISIONS: u64 = 10_000;
/// Default of [`Retention::bytes`].
pub const RETENTION_BYTES: u64 = 64 << 20;

impl Default for Retention {
    fn default() -> Self {
        Retention { age: RETENTION_AGE, revisions: RETENTION_REVISIONS, bytes: RETENTION_BYTES }
    }
}

/// The number of time marks per maximum age. A mark has the time of all entries since the previous
/// mark, so that entries need no timestamps. History is therefore kept up to 1/20 longer than
/// requested.
const AGE_MARKS: u64 = 20;

/// Determines which revisions may be dropped. The owner reports every added and dropped change.
#[derive(Debug)]
pub(crate) struct RetentionTracker {
    retention: Retention,
    bytes: u64,
    /// Pairs of a revision and a time at which it existed already, oldest first.
    marks: VecDeque<(Revision, Millis)>,
    /// Everything up to this revision exceeds `retention.age`.
    aged: Revision,
}

impl RetentionTracker {
    pub(crate) fn new(retention: Retention) -> Self {
        RetentionTracker { retention, bytes: 0, marks: VecDeque::new(), aged: Revision::ZERO }
    }

    /// The accounted bytes of a change of a key with a replaced value.
    pub(crate) fn cost(key_bytes: usize, previous_bytes: usize) -> u64 {
        ENTRY_BYTES + (key_bytes + previous_bytes) as u64
    }

    /// Records a change added to the history.
    pub(crate) fn added(&mut self, cost: u64) {
        self.bytes += cost;
    }

    /// Records that the oldest change was dropped from the history.
    pub(crate) fn dropped(&mut self, cost: u64) {
        self.bytes = self.bytes.saturating_sub(cost);
    }

    /// Bytes of history as counted by [`Retention::bytes`].
    #[cfg(any(test, feature = "embedded"))]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True when the oldest change must be dropped because of the byte bound.
    pub(crate) fn over_bytes(&self) -> bool {
        self.bytes > self.retention.bytes
    }

    /// The revision up to which history may be dropped by age and number, at time `now` and
    /// revision `current`. The bound in bytes is separate, see [`RetentionTracker::over_bytes`].
    pub(crate) fn forget_to(&mut self, current: Revision, now: Millis) -> Revision {
        let age = u64::try_from(self.retention.age.as_millis()).unwrap_or(u64::MAX);
        let apart = age / AGE_MARKS;
        if self.marks.back().is_none_or(|(_, time)| now.saturating_sub(*time) >= apart.max(1)) {
            self.marks.push_back((current, now));
        }
        while let Some((revision, time)) = self.marks.front() {
            if now.saturating_sub(*time) < age {
                break;
            }
            self.aged = *revision;
            self.marks.pop_front();
        }
        let many = Revision::new(current.get().saturating_sub(self.retention.revisions));
        self.aged.min(many)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds one change a second and returns the revision up to which history may be dropped.
    fn check(retention: Retention, seconds: u64) -> u64 {
        let mut keeper = RetentionTracker::new(retention);
        let mut forget = Revision::ZERO;
        for second in 1..=seconds {
            forget = keeper.forget_to(Revision::new(second), second * 1000);
            assert!(keeper.marks.len() as u64 <= AGE_MARKS + 2, "the marks are bounded");
        }
        forget.get()
    }

    #[test]
    fn history_is_kept_while_young_or_among_the_newest() {
        let keep = |seconds, revisions| Retention { age: Duration::from_secs(seconds), revisions, bytes: u64::MAX };
        assert_eq!(check(keep(100, 1000), 500), 0, "few revisions are kept however old");
        let forgotten = check(keep(100, 10), 500);
        assert!((390..=400).contains(&forgotten), "older than 100 s goes, up to a twentieth later: {forgotten}");
        assert_eq!(check(keep(100, 300), 500), 200, "the newest 300 stay");
        assert_eq!(check(keep(0, 7), 500), 493, "without an age the number decides");
        assert_eq!(check(keep(1000, 7), 500), 0, "young history is kept however long");
    }

    #[test]
    fn history_may_reach_its_byte_bound() {
        let retention = Retention { bytes: 1000, ..Retention::default() };
        let mut keeper = RetentionTracker::new(retention);
        for (added, dropped, over) in [(600, 0, false), (400, 0, false), (1, 0, true), (0, 1, false), (0, 5000, false)]
        {
            keeper.added(added);
            keeper.dropped(dropped);
            assert_eq!(keeper.over_bytes(), over, "{} bytes of {}", keeper.bytes(), retention.bytes);
        }
    }
}
