//! [`EmbeddedStats`]: what the store weighs, and how far back its history goes.

use std::collections::VecDeque;
use std::time::SystemTime;

use listwatch_meta::Revision;

use crate::ttl::Millis;

/// What an embedded store holds. All but the file's size is reckoned in memory, so asking is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedStats {
    /// The revision of the last write.
    pub revision: Revision,
    /// The oldest revision that can be read or watched from.
    pub oldest: Revision,
    /// When the oldest revision was the present, to about a hundredth of the time since; `None` when
    /// that was before this process opened the store.
    pub oldest_at: Option<SystemTime>,
    /// Keys that exist.
    pub live_keys: u64,
    /// Bytes of those keys and their values.
    pub live_bytes: u64,
    /// Changes that history holds: those after [`EmbeddedStats::oldest`].
    pub history_revisions: u64,
    /// Bytes of history as [`Retention::bytes`](crate::Retention::bytes) reckons them: values that
    /// were replaced or removed, and some for each change.
    pub history_bytes: u64,
    /// What the file takes on the file system, where it can be told. It can be longer: the engine lets
    /// it end in a hole.
    pub file_bytes: Option<u64>,
    /// Free room on the file system, where it can be told.
    pub free_bytes: Option<u64>,
}

impl EmbeddedStats {
    /// Bytes of the file that hold neither a living value nor history: the engine's own, which are
    /// most of it in a dense file (values lie in pages of 4 KiB or of a power of two above, which
    /// are seldom full), what was removed and not used again, and what is still to be removed. How
    /// much [`EmbeddedStorage::defragment`](super::EmbeddedStorage::defragment) gives back only
    /// doing it tells.
    pub fn other_bytes(&self) -> Option<u64> {
        Some(self.file_bytes?.saturating_sub(self.live_bytes + self.history_bytes))
    }
}

/// A timeline has at most this many marks; every second one goes when it is full.
const MARKS_MAX: usize = 256;

/// Marks are at least this far apart.
const MARKS_APART: Millis = 1000;

/// When revisions were the present: marks that grow sparser the longer history is kept.
#[derive(Debug)]
pub(super) struct Timeline {
    /// (a revision, when it was the last), oldest first.
    marks: VecDeque<(Revision, Millis)>,
    apart: Millis,
}

impl Default for Timeline {
    fn default() -> Self {
        Timeline { marks: VecDeque::new(), apart: MARKS_APART }
    }
}

impl Timeline {
    /// The store is at `current`, and its history begins at `oldest`.
    pub(super) fn note(&mut self, oldest: Revision, current: Revision, now: Millis) {
        if self.marks.back().is_none_or(|(_, at)| now.saturating_sub(*at) >= self.apart) {
            self.marks.push_back((current, now));
        }
        // The last mark at or before the oldest revision tells its time.
        while self.marks.get(1).is_some_and(|(revision, _)| *revision <= oldest) {
            self.marks.pop_front();
        }
        if self.marks.len() > MARKS_MAX {
            let mut keep = false;
            self.marks.retain(|_| {
                keep = !keep;
                keep
            });
            self.apart *= 2;
        }
    }

    /// When a revision was the present; `None` before the first mark.
    pub(super) fn at(&self, revision: Revision) -> Option<Millis> {
        let after = self.marks.partition_point(|(mark, _)| *mark <= revision);
        Some(self.marks.get(after.checked_sub(1)?)?.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_tells_about_when_and_stays_small() {
        let mut timeline = Timeline::default();
        for second in 1..=100_000_u64 {
            let oldest = Revision::new(second.saturating_sub(50_000));
            timeline.note(oldest, Revision::new(second), second * 1000);
            assert!(timeline.marks.len() <= MARKS_MAX);
        }
        for revision in [50_000, 60_123, 99_000] {
            let at = timeline.at(Revision::new(revision)).unwrap() / 1000;
            assert!(at.abs_diff(revision) <= 1000, "revision {revision} was at {revision} s, not {at} s");
        }
        assert_eq!(timeline.at(Revision::new(40_000)), None, "what is forgotten has no time");
    }
}
