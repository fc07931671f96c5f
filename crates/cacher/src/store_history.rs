//! The revisions of the store that clients of this cache may have seen: [`StoreHistory`].
//!
//! An operator can restore the store to an older state. Its revisions then count on from there, and a client may hold a
//! resource version that belongs to the former history only. A watch from this version would wait without an error until
//! the new history has reached it, and would then skip all changes before it. So such a watch expires.
//!
//! Once the new history has passed a former revision, the number alone does not tell to which history it belongs. From
//! then on it counts as one of the new history.

use listwatch_meta::Revision;

/// The newest known revisions of the store's present history and of its former ones.
#[derive(Debug, Default)]
pub(crate) struct StoreHistory {
    /// The number of histories that a restore has ended.
    ended: u64,
    /// The newest revision that the store has reported in the present history.
    present: Revision,
    /// The newest revision of any former history.
    former: Revision,
}

/// Identifies the history that was present when a request was sent to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HistoryId(u64);

impl StoreHistory {
    /// The present history.
    pub(crate) fn id(&self) -> HistoryId {
        HistoryId(self.ended)
    }

    /// Records the revision in a response to a request that was sent during the history `id`.
    pub(crate) fn handle_revision(&mut self, id: HistoryId, revision: Revision) {
        if id == self.id() {
            self.present = self.present.max(revision);
        }
    }

    /// Records that a state at `new` is about to replace the state at `old`. An older one shows that the store was
    /// restored.
    pub(crate) fn handle_replacing(&mut self, old: Revision, new: Revision) {
        if new < old {
            self.former = self.former.max(self.present).max(old);
            self.present = new;
            self.ended += 1;
        }
    }

    /// Whether `revision` belongs to a former history only, as far as known. `reached` is the revision of the cache.
    pub(crate) fn is_former(&self, revision: Revision, reached: Revision) -> bool {
        revision > self.present.max(reached) && revision <= self.former
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_revisions_that_the_new_history_has_not_reached_are_former() {
        let r = Revision::new;
        let mut history = StoreHistory::default();
        let check = |history: &StoreHistory, reached: u64, expected: &[u64]| {
            let former: Vec<u64> = (0..12).filter(|n| history.is_former(r(*n), r(reached))).collect();
            assert_eq!(former, expected, "{history:?}, reached {reached}");
        };
        let first = history.id();
        history.handle_replacing(r(0), r(5));
        history.handle_replacing(r(5), r(6));
        history.handle_revision(first, r(9));
        check(&history, 6, &[]);
        history.handle_replacing(r(6), r(3));
        check(&history, 3, &[4, 5, 6, 7, 8, 9]);
        history.handle_revision(first, r(8));
        check(&history, 3, &[4, 5, 6, 7, 8, 9]);
        history.handle_revision(history.id(), r(5));
        check(&history, 3, &[6, 7, 8, 9]);
        check(&history, 8, &[9]);
        check(&history, 9, &[]);
        history.handle_replacing(r(10), r(2));
        check(&history, 2, &[3, 4, 5, 6, 7, 8, 9, 10]);
    }
}
