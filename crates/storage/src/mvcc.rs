//! The multi-version core that `memory` and `embedded` share: which key had which value at which
//! revision, for every revision since the last compaction.
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
//! Every revision after `oldest` has exactly one entry, so the entry of a revision is found by
//! subtraction, and a watcher's place in history is a number. A key's state at revision R is its
//! newest state, walked back along `earlier` while the change is newer than R: no version lists
//! have to be kept per key, and a key that was never changed in the window costs nothing extra.
//!
//! The core is pure: no lock, clock or task. What a value is, is the caller's affair: the memory
//! store keeps the bytes here, the embedded store keeps nothing and reads the disk by revision.
#![cfg_attr(not(feature = "embedded"), allow(dead_code, reason = "restoring a history is for the durable store"))]

use std::collections::{BTreeMap, VecDeque, btree_map};
use std::ops::Bound;

use listwatch_meta::{Key, KeyRange, Revision};

use crate::error::ReadError;

/// The revision of a store that was never written to. The first write takes the next one; etcd
/// does the same, so that a list of an empty store has a resource version above zero.
pub(crate) const FIRST_REVISION: Revision = Revision::new(1);

/// A state of a key: what was written and when.
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
    /// The state before; `None` when the key did not exist.
    pub previous: Option<Stored<V>>,
    /// The revision of this key's change before this one, removals included; zero when there is
    /// none. It may already be forgotten.
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
    /// Keys of the range that follow behind the last item.
    pub remaining: u64,
}

/// See the file's head.
#[derive(Debug)]
pub(crate) struct Mvcc<V> {
    keys: BTreeMap<Key, Slot<V>>,
    /// Keys that exist now.
    live: u64,
    /// The entries of the revisions `logged_after + 1 ..= current`.
    log: VecDeque<Entry<V>>,
    /// `logged_after <= oldest`: forgetting is decided at once and carried out in steps.
    logged_after: Revision,
    oldest: Revision,
    current: Revision,
}

impl<V> Mvcc<V> {
    /// An empty store whose history begins at `oldest`: nothing before is known.
    /// A new store begins at [`FIRST_REVISION`] with `oldest` zero.
    pub(crate) fn new(oldest: Revision, current: Revision) -> Self {
        // The revisions up to `current` that are not in the log hold nothing.
        Mvcc { keys: BTreeMap::new(), live: 0, log: VecDeque::new(), logged_after: current, oldest, current }
    }

    // ---- what is there ----

    /// The revision of the last change.
    pub(crate) fn current(&self) -> Revision {
        self.current
    }

    /// The oldest revision that can be read, and watched from.
    pub(crate) fn oldest(&self) -> Revision {
        self.oldest
    }

    /// How many keys exist now.
    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    /// Does [`Mvcc::trim`] have something to do?
    pub(crate) fn has_untrimmed(&self) -> bool {
        self.logged_after < self.oldest && !self.log.is_empty()
    }

    /// Entries held, those included that wait for [`Mvcc::trim`].
    #[cfg(test)]
    pub(crate) fn log_len(&self) -> usize {
        self.log.len()
    }

    /// The newest state of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Stored<V>> {
        self.keys.get(key)?.live.as_ref()
    }

    /// Can this revision be read?
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

    /// The keys of a range at a revision, at most `limit` of them (0: all), and how many follow.
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

    /// The first `limit` keys of a range at a revision: [`Mvcc::list`] for who does not ask how many
    /// follow.
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

    /// The state of a slot as it was at `at`, which must be readable.
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

    /// The change of one revision; `None` when it is forgotten or has not happened.
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

    /// Writes a key at the next revision, whatever was there before.
    pub(crate) fn put(&mut self, key: &Key, value: V) -> Revision
    where
        V: Clone,
    {
        let revision = self.current.next();
        let entry = match self.keys.entry(key.clone()) {
            btree_map::Entry::Occupied(mut slot) => {
                // Entries share the text of the map's key, so history costs no copy of it.
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

    /// Removes a key at the next revision. `None`, and no revision is taken, when it is not there.
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

    /// Puts back a state that was written before this history begins, in place of an older one,
    /// which is handed back: how a store that was opened again fills in what its log no longer
    /// holds. Before the first change only.
    pub(crate) fn restore(&mut self, key: &Key, stored: Stored<V>) -> Option<Stored<V>> {
        debug_assert!(self.log.is_empty(), "what is put back comes before what changes it");
        let last = stored.modified;
        self.live += 1;
        let former = self.keys.insert(key.clone(), Slot { live: Some(stored), last })?.live;
        self.live -= u64::from(former.is_some());
        former
    }

    /// Takes back what [`Mvcc::restore`] put there: the key was removed before this history
    /// begins.
    pub(crate) fn unrestore(&mut self, key: &str) -> Option<Stored<V>> {
        debug_assert!(self.log.is_empty(), "what is taken back comes before what changes it");
        let former = self.keys.remove(key)?.live;
        self.live -= u64::from(former.is_some());
        former
    }

    // ---- forgetting ----

    /// Decides that revisions before `revision` can no longer be read or watched from. The
    /// entries go in [`Mvcc::trim`].
    ///
    /// # Errors
    /// Future when the revision has not happened yet.
    pub(crate) fn compact(&mut self, revision: Revision) -> Result<(), ReadError> {
        if revision > self.current {
            return Err(ReadError::Future { requested: revision, current: self.current });
        }
        self.oldest = self.oldest.max(revision);
        Ok(())
    }

    /// Drops the oldest entry that nobody can ask for any more, and says its revision. `None` when
    /// there is none.
    pub(crate) fn trim(&mut self) -> Option<(Revision, Entry<V>)> {
        if self.logged_after >= self.oldest {
            return None;
        }
        let entry = self.log.pop_front()?;
        self.logged_after = self.logged_after.next();
        // A removal whose turn has come takes the key's slot along, unless the key came back.
        if entry.current.is_none()
            && self.keys.get(entry.key.as_str()).is_some_and(|slot| slot.last == self.logged_after)
        {
            self.keys.remove(entry.key.as_str());
        }
        Some((self.logged_after, entry))
    }
}
