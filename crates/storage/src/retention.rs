//! How much history a store keeps: [`Retention`], and the pure bookkeeping that turns it into "the
//! revisions before this one may go".

use std::collections::VecDeque;
use std::time::Duration;

use listwatch_meta::Revision;

use crate::ttl::Millis;

/// How much history a store of this crate keeps by itself. What goes beyond is compacted in the
/// background; [`Storage::compact`](crate::Storage::compact) forgets earlier.
///
/// A revision is kept while it is younger than [`age`](Retention::age) **or** among the newest
/// [`revisions`](Retention::revisions), but never beyond [`bytes`](Retention::bytes): a reader that
/// is further behind is told [`Expired`](crate::WatchItem::Expired) and lists again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// History is kept at least this long. kube-apiserver on etcd keeps 5 to 10 minutes.
    pub age: Duration,
    /// At least this many revisions are kept, however old. Keeps a quiet store watchable after a
    /// long pause.
    pub revisions: u64,
    /// At most this many bytes of history: superseded and removed values, plus
    /// [`ENTRY_BYTES`] and the key for each change. Live values do not count.
    pub bytes: u64,
}

/// What one change costs in the reckoning of [`Retention::bytes`], in bytes, besides its key and
/// the value it replaced.
pub const ENTRY_BYTES: u64 = 160;

/// [`Retention::age`] by default.
pub const RETENTION_AGE: Duration = Duration::from_secs(10 * 60);
/// [`Retention::revisions`] by default.
pub const RETENTION_REVISIONS: u64 = 10_000;
/// [`Retention::bytes`] by default.
pub const RETENTION_BYTES: u64 = 64 << 20;

impl Default for Retention {
    fn default() -> Self {
        Retention { age: RETENTION_AGE, revisions: RETENTION_REVISIONS, bytes: RETENTION_BYTES }
    }
}

/// The age of history, sampled: at most [`AGE_MARKS`] + 1 marks, so that no entry needs a clock
/// reading of its own. History is kept up to one part in [`AGE_MARKS`] longer than asked.
const AGE_MARKS: u64 = 20;

/// Says which revisions may be forgotten. Fed with every change and every forgotten one.
#[derive(Debug)]
pub(crate) struct Keeper {
    retention: Retention,
    bytes: u64,
    /// (a revision, a time at which it had already happened), oldest first.
    marks: VecDeque<(Revision, Millis)>,
    /// Everything up to here is older than `retention.age`.
    aged: Revision,
}

impl Keeper {
    pub(crate) fn new(retention: Retention) -> Self {
        Keeper { retention, bytes: 0, marks: VecDeque::new(), aged: Revision::ZERO }
    }

    /// What a change of a key with a replaced value costs.
    pub(crate) fn cost(key_bytes: usize, previous_bytes: usize) -> u64 {
        ENTRY_BYTES + (key_bytes + previous_bytes) as u64
    }

    /// A change was added to the history.
    pub(crate) fn added(&mut self, cost: u64) {
        self.bytes += cost;
    }

    /// The oldest change was dropped from the history.
    pub(crate) fn dropped(&mut self, cost: u64) {
        self.bytes = self.bytes.saturating_sub(cost);
    }

    /// Bytes of history as [`Retention::bytes`] reckons them.
    #[cfg(any(test, feature = "embedded"))]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True when the oldest change must go whatever its age.
    pub(crate) fn over_bytes(&self) -> bool {
        self.bytes > self.retention.bytes
    }

    /// Up to which revision history may go by age and number, when the clock is at `now` and the
    /// store at `current`. Nothing is forgotten by size here, see [`Keeper::over_bytes`].
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

    /// Feeds one change a second and says what may be forgotten at the end.
    fn check(retention: Retention, seconds: u64) -> u64 {
        let mut keeper = Keeper::new(retention);
        let mut forget = Revision::ZERO;
        for second in 1..=seconds {
            forget = keeper.forget_to(Revision::new(second), second * 1000);
            assert!(keeper.marks.len() as u64 <= AGE_MARKS + 2, "the marks are bounded");
        }
        forget.get()
    }

    #[test]
    fn history_is_kept_while_it_is_young_or_among_the_newest() {
        let keep = |seconds, revisions| Retention { age: Duration::from_secs(seconds), revisions, bytes: u64::MAX };
        assert_eq!(check(keep(100, 1000), 500), 0, "few revisions are kept however old");
        let forgotten = check(keep(100, 10), 500);
        assert!((390..=400).contains(&forgotten), "older than 100 s goes, up to a twentieth later: {forgotten}");
        assert_eq!(check(keep(100, 300), 500), 200, "the newest 300 stay");
        assert_eq!(check(keep(0, 7), 500), 493, "without an age the number decides");
        assert_eq!(check(keep(1000, 7), 500), 0, "young history is kept however long");
    }
}
