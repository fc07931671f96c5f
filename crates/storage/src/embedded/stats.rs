//! Statistics of an embedded store: [`EmbeddedStats`], its size and the reach of its history.

use std::collections::VecDeque;
use std::time::SystemTime;

use listwatch_meta::Revision;

use crate::ttl::Millis;

/// The content of an embedded store. All values except the file's size are kept in memory, so the
/// call is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedStats {
    /// The revision of the last write.
    pub revision: Revision,
    /// The oldest revision that can be read or watched from.
    pub oldest: Revision,
    /// The time at which the oldest revision was current, accurate to about a hundredth of the time
    /// since; `None` if that was before this process opened the store.
    pub oldest_at: Option<SystemTime>,
    /// Existing keys.
    pub live_keys: u64,
    /// Bytes of the existing keys and their values.
    pub live_bytes: u64,
    /// Changes in the history: those after [`EmbeddedStats::oldest`].
    pub history_revisions: u64,
    /// Bytes of history as counted by [`Retention::bytes`](crate::Retention::bytes): replaced and
    /// removed values, and a fixed amount per change.
    pub history_bytes: u64,
    /// Bytes that the file occupies on the file system, if known. The file can be longer, because
    /// the engine leaves a hole at its end.
    pub file_bytes: Option<u64>,
    /// Free bytes on the file system, if known.
    pub free_bytes: Option<u64>,
}

impl EmbeddedStats {
    /// Bytes of the file that hold neither a live value nor history. These bytes belong to the engine, are removed and
    /// not yet reused, or are still to be removed. In a dense file most belong to the engine: values occupy pages of 4
    /// KiB or a larger power of two, which are seldom full. Only
    /// [`EmbeddedStorage::defragment`](super::EmbeddedStorage::defragment) shows how many bytes can be freed.
    pub fn other_bytes(&self) -> Option<u64> {
        Some(self.file_bytes?.saturating_sub(self.live_bytes + self.history_bytes))
    }
}

/// The maximum number of marks of a timeline. At the bound every second mark is dropped.
const MARKS_MAX: usize = 256;

/// Minimum time between two marks, in milliseconds.
const MARKS_APART: Millis = 1000;

/// The times at which some revisions were the latest. In a longer history, the recorded revisions are farther apart.
#[derive(Debug)]
pub(super) struct Timeline {
    /// Pairs of a revision and the time at which it was the last one, oldest first.
    marks: VecDeque<(Revision, Millis)>,
    apart: Millis,
}

impl Default for Timeline {
    fn default() -> Self {
        Timeline { marks: VecDeque::new(), apart: MARKS_APART }
    }
}

impl Timeline {
    /// Records that the store is at `current` at the time `now`, and that the history begins at `oldest`.
    pub(super) fn note(&mut self, oldest: Revision, current: Revision, now: Millis) {
        if self.marks.back().is_none_or(|(_, at)| now.saturating_sub(*at) >= self.apart) {
            self.marks.push_back((current, now));
        }
        // The last mark at or before the oldest revision determines its time.
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

    /// The time at which a revision was current; `None` before the first mark.
    pub(super) fn at(&self, revision: Revision) -> Option<Millis> {
        let after = self.marks.partition_point(|(mark, _)| *mark <= revision);
        Some(self.marks.get(after.checked_sub(1)?)?.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeline_is_accurate_to_a_hundredth_within_its_mark_limit() {
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

    #[test]
    fn timeline_drops_every_second_mark_beyond_its_limit() {
        let mut timeline = Timeline::default();
        let mut note = |second: u64| {
            timeline.note(Revision::ZERO, Revision::new(second), second * MARKS_APART);
            timeline.marks.len()
        };
        let limit = MARKS_MAX as u64;
        assert_eq!((1..=limit).map(&mut note).max(), Some(MARKS_MAX), "every mark is kept up to the limit");
        assert_eq!(note(limit + 1), MARKS_MAX / 2 + 1);
        assert_eq!(note(limit + 2), MARKS_MAX / 2 + 1, "marks are twice as far apart from then on");
        assert_eq!(note(limit + 3), MARKS_MAX / 2 + 2);
    }

    #[test]
    fn other_bytes_are_the_file_size_minus_live_and_history_bytes() {
        let stats = |file_bytes| EmbeddedStats {
            revision: Revision::new(9),
            oldest: Revision::new(2),
            oldest_at: None,
            live_keys: 1,
            live_bytes: 300,
            history_revisions: 7,
            history_bytes: 500,
            file_bytes,
            free_bytes: None,
        };
        for (file, other) in [(Some(1000), Some(200)), (Some(800), Some(0)), (Some(10), Some(0)), (None, None)] {
            assert_eq!(stats(file).other_bytes(), other, "a file of {file:?} bytes");
        }
    }
}
