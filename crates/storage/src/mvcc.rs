//! The multi-version core of `memory` and `embedded`: the value of each key at each revision since
//! the last compaction.
//!
//! ```text
//!   keys   BTreeMap   /pods/a ─▶ Slot { last: 9, live: v@9 }     newest state, for reads at "now"
//!                     /pods/b ─▶ Slot { last: 8, live: none }    deleted, but history needs it
//!
//!   log    VecDeque   │ 7: /pods/a put  previous v@3  earlier 3 │
//!   one entry per     │ 8: /pods/b del  previous v@5  earlier 5 │
//!   revision, dense   │ 9: /pods/a put  previous v@7  earlier 7 │
//!          oldest = 6 ┘                                         └ current = 9
//! ```
//!
//! Every revision after `oldest` has exactly one entry, so a revision's entry is found by
//! subtraction, and a watcher's position is a number. A key's state at revision R is its newest
//! state, followed back along `earlier` while the change is newer than R. So there are no version
//! lists per key, and a key without changes in the window costs nothing extra.
//!
//! The core is pure: no lock, clock or task. The value type is the caller's: the memory store keeps
//! the bytes here; the embedded store keeps only lengths and reads the disk by revision.
#![cfg_attr(not(feature = "embedded"), allow(dead_code, reason = "restoring a history is for the durable store"))]

use std::collections::{BTreeMap, VecDeque, btree_map};
use std::ops::Bound;

use listwatch_meta::{Key, KeyRange, Revision};

use crate::error::ReadError;

/// The revision of a store without writes. The first write takes the next one; etcd does the same,
/// so that a list of an empty store has a resource version above zero.
pub(crate) const FIRST_REVISION: Revision = Revision::new(1);

/// A state of a key: the value and its revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored<V> {
    pub value: V,
    /// The revision that created this incarnation of the key.
    pub created: Revision,
    /// The revision that wrote this value.
    pub modified: Revision,
}

/// One change: the entry of one revision.
#[derive(Clone, Debug)]
pub(crate) struct Entry<V> {
    pub key: Key,
    /// The state after; `None` is a removal.
    pub current: Option<Stored<V>>,
    /// The state before; `None` if the key did not exist.
    pub previous: Option<Stored<V>>,
    /// The revision of this key's previous change, including removals; zero if there is none. This
    /// revision may already be compacted.
    earlier: Revision,
}

#[derive(Debug)]
struct Slot<V> {
    live: Option<Stored<V>>,
    /// The revision of this key's last change.
    last: Revision,
}

/// A page of keys with their states, borrowed.
pub(crate) struct Page<'a, V> {
    pub items: Vec<(&'a Key, &'a Stored<V>)>,
    /// Keys of the range that follow after the last item.
    pub remaining: u64,
}

/// The multi-version core.
#[derive(Debug)]
pub(crate) struct Mvcc<V> {
    keys: BTreeMap<Key, Slot<V>>,
    /// Keys that exist now.
    live: u64,
    /// The entries of the revisions `logged_after + 1 ..= current`.
    log: VecDeque<Entry<V>>,
    /// `logged_after <= oldest`: a compaction takes effect at once and is carried out in steps.
    logged_after: Revision,
    oldest: Revision,
    current: Revision,
}

impl<V> Mvcc<V> {
    /// Creates an empty store whose history begins at `oldest`. A new store begins at
    /// [`FIRST_REVISION`] with `oldest` zero.
    pub(crate) fn new(oldest: Revision, current: Revision) -> Self {
        // The revisions up to `current` have no entries.
        Mvcc { keys: BTreeMap::new(), live: 0, log: VecDeque::new(), logged_after: current, oldest, current }
    }

    // ---- the current state ----

    /// The revision of the last change.
    pub(crate) fn current(&self) -> Revision {
        self.current
    }

    /// The oldest revision that can be read, and watched from.
    pub(crate) fn oldest(&self) -> Revision {
        self.oldest
    }

    /// The number of existing keys.
    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    /// Whether [`Mvcc::trim`] has work to do.
    pub(crate) fn has_untrimmed(&self) -> bool {
        self.logged_after < self.oldest && !self.log.is_empty()
    }

    /// The number of entries, including those that wait for [`Mvcc::trim`].
    #[cfg(test)]
    pub(crate) fn log_len(&self) -> usize {
        self.log.len()
    }

    /// The newest state of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Stored<V>> {
        self.keys.get(key)?.live.as_ref()
    }

    /// Checks that this revision is readable.
    ///
    /// # Errors
    /// Compacted below [`Mvcc::oldest`], Future above [`Mvcc::current`].
    pub(crate) fn check_readable(&self, at: Revision) -> Result<(), ReadError> {
        if at < self.oldest {
            return Err(ReadError::Compacted { requested: at, oldest: Some(self.oldest) });
        }
        if at > self.current {
            return Err(ReadError::Future { requested: at, current: self.current });
        }
        Ok(())
    }

    /// Lists the keys of a range at a revision, at most `limit` (0 for all), and counts the rest.
    ///
    /// # Errors
    /// As [`Mvcc::check_readable`].
    pub(crate) fn list(&self, range: &KeyRange, at: Revision, limit: usize) -> Result<Page<'_, V>, ReadError> {
        self.check_readable(at)?;
        let mut page = Page { items: Vec::new(), remaining: 0 };
        if range.is_empty() {
            return Ok(page);
        }
        let bounds = (Bound::Included(range.start()), Bound::Excluded(range.end()));
        for (key, slot) in self.keys.range::<str, _>(bounds) {
            if let Some(stored) = self.state_at(slot, at) {
                if limit == 0 || page.items.len() < limit {
                    page.items.push((key, stored));
                } else {
                    page.remaining += 1;
                }
            }
        }
        Ok(page)
    }

    /// Lists the first `limit` keys of a range at a revision, without counting the rest as
    /// [`Mvcc::list`] does.
    ///
    /// # Errors
    /// As [`Mvcc::check_readable`].
    pub(crate) fn first(
        &self,
        range: &KeyRange,
        at: Revision,
        limit: usize,
    ) -> Result<Vec<(&Key, &Stored<V>)>, ReadError> {
        self.check_readable(at)?;
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let bounds = (Bound::Included(range.start()), Bound::Excluded(range.end()));
        let states = self.keys.range::<str, _>(bounds);
        Ok(states.filter_map(|(key, slot)| Some((key, self.state_at(slot, at)?))).take(limit).collect())
    }

    /// The state of a slot at the readable revision `at`.
    fn state_at<'a>(&'a self, slot: &'a Slot<V>, at: Revision) -> Option<&'a Stored<V>> {
        let mut state = slot.live.as_ref();
        let mut changed = slot.last;
        while changed > at {
            let entry = self.entry(changed)?;
            state = entry.previous.as_ref();
            changed = entry.earlier;
        }
        state
    }

    /// The change of one revision; `None` if it is compacted or in the future.
    pub(crate) fn entry(&self, revision: Revision) -> Option<&Entry<V>> {
        let index = revision.get().checked_sub(self.logged_after.get() + 1)?;
        self.log.get(usize::try_from(index).ok()?)
    }

    /// The changes after a revision, oldest first, each with its revision. The caller has checked
    /// that `after` is not below [`Mvcc::oldest`].
    pub(crate) fn entries_after(&self, after: Revision) -> impl Iterator<Item = (Revision, &Entry<V>)> {
        let first = after.max(self.logged_after).next();
        let skip = usize::try_from(first.get() - self.logged_after.get() - 1).unwrap_or(usize::MAX);
        let rest = self.log.range(skip.min(self.log.len())..);
        rest.zip(first.get()..).map(|(entry, revision)| (Revision::new(revision), entry))
    }

    // ---- changes ----

    /// Writes a key at the next revision, whether or not it exists.
    pub(crate) fn put(&mut self, key: &Key, value: V) -> Revision
    where
        V: Clone,
    {
        let revision = self.current.next();
        let entry = match self.keys.entry(key.clone()) {
            btree_map::Entry::Occupied(mut slot) => {
                // Entries share the text of the map's key, so history does not copy it.
                let key = slot.key().clone();
                let slot = slot.get_mut();
                let created = slot.live.as_ref().map_or(revision, |stored| stored.created);
                let stored = Stored { value, created, modified: revision };
                let previous = slot.live.replace(stored.clone());
                let earlier = std::mem::replace(&mut slot.last, revision);
                Entry { key, current: Some(stored), previous, earlier }
            }
            btree_map::Entry::Vacant(slot) => {
                let stored = Stored { value, created: revision, modified: revision };
                slot.insert(Slot { live: Some(stored.clone()), last: revision });
                Entry { key: key.clone(), current: Some(stored), previous: None, earlier: Revision::ZERO }
            }
        };
        self.live += u64::from(entry.previous.is_none());
        self.append(entry);
        revision
    }

    /// Removes a key at the next revision. `None` if the key is absent; then no revision is taken.
    pub(crate) fn delete(&mut self, key: &str) -> Option<Revision> {
        let revision = self.current.next();
        let shared = self.keys.get_key_value(key)?.0.clone();
        let slot = self.keys.get_mut(key)?;
        let previous = Some(slot.live.take()?);
        let earlier = std::mem::replace(&mut slot.last, revision);
        self.live -= 1;
        self.append(Entry { key: shared, current: None, previous, earlier });
        Some(revision)
    }

    fn append(&mut self, entry: Entry<V>) {
        self.current = self.current.next();
        self.log.push_back(entry);
    }

    /// Adds a state that was written before this history begins. Returns the older state of the key
    /// that is replaced. A reopened store fills in the states that are not in its log with this
    /// method, before the first change.
    pub(crate) fn restore(&mut self, key: &Key, stored: Stored<V>) -> Option<Stored<V>> {
        debug_assert!(self.log.is_empty(), "what is put back comes before what changes it");
        let last = stored.modified;
        self.live += 1;
        let former = self.keys.insert(key.clone(), Slot { live: Some(stored), last })?.live;
        self.live -= u64::from(former.is_some());
        former
    }

    /// Removes a restored state, because the key was removed before this history begins. Returns
    /// the removed state.
    pub(crate) fn unrestore(&mut self, key: &str) -> Option<Stored<V>> {
        debug_assert!(self.log.is_empty(), "what is taken back comes before what changes it");
        let former = self.keys.remove(key)?.live;
        self.live -= u64::from(former.is_some());
        former
    }

    // ---- compaction ----

    /// Makes revisions before `revision` unreadable. [`Mvcc::trim`] drops the entries.
    ///
    /// # Errors
    /// Future when the store has not reached the revision.
    pub(crate) fn compact(&mut self, revision: Revision) -> Result<(), ReadError> {
        if revision > self.current {
            return Err(ReadError::Future { requested: revision, current: self.current });
        }
        self.oldest = self.oldest.max(revision);
        Ok(())
    }

    /// Drops the oldest unreadable entry, and returns it with its revision; `None` if there is
    /// none.
    pub(crate) fn trim(&mut self) -> Option<(Revision, Entry<V>)> {
        if self.logged_after >= self.oldest {
            return None;
        }
        let entry = self.log.pop_front()?;
        self.logged_after = self.logged_after.next();
        // The slot of a removed key is dropped too, unless the key was created again.
        if entry.current.is_none()
            && self.keys.get(entry.key.as_str()).is_some_and(|slot| slot.last == self.logged_after)
        {
            self.keys.remove(entry.key.as_str());
        }
        Some((self.logged_after, entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("pods", Some("ns"), name).unwrap()
    }

    #[test]
    fn history_has_untrimmed_entries_from_a_compaction_until_they_are_dropped() {
        let mut mvcc = Mvcc::new(Revision::ZERO, FIRST_REVISION);
        assert!(!mvcc.has_untrimmed(), "an empty history");
        for n in 0..4_u32 {
            mvcc.put(&key("a"), n);
        }
        assert!(!mvcc.has_untrimmed(), "a readable history");
        mvcc.compact(Revision::new(3)).unwrap();
        for revision in [2, 3] {
            assert!(mvcc.has_untrimmed(), "revision {revision} is unreadable");
            assert_eq!(mvcc.trim().map(|(at, _)| at), Some(Revision::new(revision)));
        }
        assert!(!mvcc.has_untrimmed() && mvcc.trim().is_none(), "the rest is readable");
        mvcc.compact(mvcc.current()).unwrap();
        while mvcc.trim().is_some() {}
        assert!(!mvcc.has_untrimmed() && mvcc.log_len() == 0, "nothing is left");
    }

    /// A store that is opened again begins behind the revisions whose entries are gone.
    #[test]
    fn history_without_entries_has_nothing_to_trim() {
        let mut mvcc = Mvcc::new(Revision::new(7), Revision::new(9));
        assert!(!mvcc.has_untrimmed());
        mvcc.compact(Revision::new(9)).unwrap();
        assert!(!mvcc.has_untrimmed() && mvcc.trim().is_none());
        mvcc.put(&key("a"), 1_u32);
        assert!(!mvcc.has_untrimmed());
    }
}
