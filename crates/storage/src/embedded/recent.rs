//! The values of the last changes in memory, so that current watchers and reads after writes do not
//! touch the disk.

use std::collections::VecDeque;

use bytes::Bytes;
use listwatch_meta::Revision;

/// Bytes of values in the ring; the oldest are dropped first. Older values are read from the disk.
pub(super) const RECENT_BYTES_MAX: usize = 4 << 20;

/// The number of accounted bytes of a change without values.
const CHANGE_BYTES: usize = 128;

#[derive(Debug)]
struct Change {
    value: Option<Bytes>,
    previous: Option<Bytes>,
}

impl Change {
    fn bytes(&self) -> usize {
        let length = |value: &Option<Bytes>| value.as_ref().map_or(0, Bytes::len);
        CHANGE_BYTES + length(&self.value) + length(&self.previous)
    }
}

/// The recent values: a contiguous run of revisions that ends at the newest.
#[derive(Debug)]
pub(super) struct Recent {
    changes: VecDeque<Change>,
    /// The revision before the first one in the ring.
    after: Revision,
    bytes: usize,
}

impl Recent {
    /// Creates an empty ring of a store at revision `current`.
    pub(super) fn new(current: Revision) -> Self {
        Recent { changes: VecDeque::new(), after: current, bytes: 0 }
    }

    /// Adds the values of the next revision: the written one, and the replaced one if it was
    /// loaded.
    pub(super) fn push(&mut self, value: Option<Bytes>, previous: Option<Bytes>) {
        let change = Change { value, previous };
        self.bytes += change.bytes();
        self.changes.push_back(change);
        while self.bytes > RECENT_BYTES_MAX
            && let Some(oldest) = self.changes.pop_front()
        {
            self.bytes -= oldest.bytes();
            self.after = self.after.next();
        }
    }

    /// The value that a revision wrote, if it is in the ring.
    pub(super) fn value(&self, revision: Revision) -> Option<&Bytes> {
        self.change(revision)?.value.as_ref()
    }

    /// The value that a revision replaced, if it was loaded and is in the ring.
    pub(super) fn previous(&self, revision: Revision) -> Option<&Bytes> {
        self.change(revision)?.previous.as_ref()
    }

    fn change(&self, revision: Revision) -> Option<&Change> {
        let index = revision.get().checked_sub(self.after.get() + 1)?;
        self.changes.get(usize::try_from(index).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_values_keep_the_newest_within_their_byte_bound() {
        let mut recent = Recent::new(Revision::new(10));
        let value = |n: u64| Bytes::from(vec![n as u8; 100_000]);
        for n in 11..=200 {
            recent.push(Some(value(n)), None);
            assert!(recent.bytes <= RECENT_BYTES_MAX);
        }
        assert_eq!(recent.value(Revision::new(200)), Some(&value(200)));
        assert_eq!(recent.value(Revision::new(165)), Some(&value(165)));
        for gone in [0, 10, 11, 150, 201] {
            assert_eq!(recent.value(Revision::new(gone)), None, "{gone}");
        }
        recent.push(None, Some(value(200)));
        assert_eq!(recent.previous(Revision::new(201)), Some(&value(200)));
        recent.push(Some(Bytes::from(vec![0; RECENT_BYTES_MAX])), None);
        assert_eq!((recent.bytes, recent.changes.len()), (0, 0), "a value that is too large is not held");
        recent.push(Some(value(1)), None);
        assert_eq!(recent.value(Revision::new(203)), Some(&value(1)), "and the ring goes on behind it");
        recent.push(Some(Bytes::from(vec![0; RECENT_BYTES_MAX - CHANGE_BYTES])), None);
        assert_eq!((recent.bytes, recent.changes.len()), (RECENT_BYTES_MAX, 1), "a value may fill the ring");
    }
}
