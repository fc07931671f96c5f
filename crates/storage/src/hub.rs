//! Where the watchers of a store stand: which of them a change concerns, who has to be woken.
//!
//! A watcher owns no queue. It is either `Current` (everything of its range was handed out) or
//! `Behind` a revision from which it reads the shared history at its own pace. A change makes the
//! `Current` watchers of its key `Behind` and wakes them; a watcher that is already behind costs
//! nothing more. So a stalled watcher is one number, and a watcher of a quiet range never loses
//! its place because others write.
//!
//! A change finds its watchers through the prefixes of its key, so thousands of watchers of single
//! objects or namespaces cost a write nothing.

use std::collections::HashMap;
use std::task::Waker;

use listwatch_meta::{KeyRange, Revision};
use parking_lot::Mutex;

/// Names a watcher of one [`Hub`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatcherId(usize);

/// What a watcher should do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Read history after this revision, then say how far with [`Hub::moved`].
    Read(Revision),
    /// Hand out a progress item at the store's current revision.
    Progress,
    /// Nothing to do: the waker is kept.
    Wait,
    /// The store was closed.
    Closed,
}

#[derive(Debug)]
struct Watcher {
    range: KeyRange,
    /// `Some(after)`: behind. `None`: current.
    behind: Option<Revision>,
    /// Changes up to here are not this watcher's: it asked to begin later.
    floor: Revision,
    progress_asked: bool,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct Registry {
    watchers: Vec<Option<Watcher>>,
    free: Vec<usize>,
    /// Watchers of all keys below a prefix, and of single keys, by the range's start.
    by_start: HashMap<Box<str>, Vec<usize>>,
    /// Watchers of ranges of another form.
    odd: Vec<usize>,
    closed: bool,
}

/// The watchers of one store. Lock order: the store's state first, then the hub; and the hub is
/// asked and told while the state is locked, so that no change slips in between.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    registry: Mutex<Registry>,
}

impl Hub {
    /// A watcher that wants everything of a range after `after`; the store is at `current`.
    pub(crate) fn join(&self, range: KeyRange, after: Revision, current: Revision) -> WatcherId {
        let mut registry = self.registry.lock();
        let behind = (after < current).then_some(after);
        let index_key = indexable(&range).then(|| Box::<str>::from(range.start()));
        let watcher = Watcher { range, behind, floor: after, progress_asked: false, waker: None };
        let id = if let Some(id) = registry.free.pop() {
            registry.watchers[id] = Some(watcher);
            id
        } else {
            registry.watchers.push(Some(watcher));
            registry.watchers.len() - 1
        };
        match index_key {
            Some(start) => registry.by_start.entry(start).or_default().push(id),
            None => registry.odd.push(id),
        }
        WatcherId(id)
    }

    /// The watcher is gone.
    pub(crate) fn leave(&self, id: WatcherId) {
        let mut registry = self.registry.lock();
        let Some(watcher) = registry.watchers[id.0].take() else { return };
        registry.free.push(id.0);
        if indexable(&watcher.range) {
            if let Some(ids) = registry.by_start.get_mut(watcher.range.start()) {
                ids.retain(|other| *other != id.0);
                if ids.is_empty() {
                    registry.by_start.remove(watcher.range.start());
                }
            }
        } else {
            registry.odd.retain(|other| *other != id.0);
        }
    }

    /// A key changed at `revision`: its watchers' wakers are added to `wake`, to be woken when no
    /// lock is held any more.
    pub(crate) fn changed(&self, key: &str, revision: Revision, wake: &mut Vec<Waker>) {
        let mut registry = self.registry.lock();
        let Registry { watchers, by_start, odd, .. } = &mut *registry;
        let mut tell = |ids: &[usize]| {
            for id in ids {
                if let Some(watcher) = watchers[*id].as_mut()
                    && watcher.behind.is_none()
                    && revision > watcher.floor
                    && watcher.range.contains(key)
                {
                    watcher.behind = Some(revision.previous());
                    wake.extend(watcher.waker.take());
                }
            }
        };
        tell(odd);
        if by_start.is_empty() {
            return;
        }
        for (slash, _) in key.match_indices('/') {
            if let Some(ids) = by_start.get(&key[..=slash]) {
                tell(ids);
            }
        }
        if let Some(ids) = by_start.get(key) {
            tell(ids);
        }
    }

    /// What a watcher should do, asked while the store's state is locked. `waker` is kept when
    /// the answer is [`Turn::Wait`].
    pub(crate) fn turn(&self, id: WatcherId, waker: &Waker) -> Turn {
        let mut registry = self.registry.lock();
        let closed = registry.closed;
        let Some(watcher) = registry.watchers[id.0].as_mut() else { return Turn::Closed };
        if let Some(after) = watcher.behind {
            return Turn::Read(after.max(watcher.floor));
        }
        if closed {
            return Turn::Closed;
        }
        if std::mem::take(&mut watcher.progress_asked) {
            return Turn::Progress;
        }
        match &mut watcher.waker {
            Some(kept) => kept.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        Turn::Wait
    }

    /// How far a watcher has read: behind a revision, or current (`None`). Told while the store's
    /// state is locked.
    pub(crate) fn moved(&self, id: WatcherId, behind: Option<Revision>) {
        if let Some(watcher) = self.registry.lock().watchers[id.0].as_mut() {
            watcher.behind = behind;
        }
    }

    /// The watcher's reader asks for progress.
    pub(crate) fn ask_progress(&self, id: WatcherId) {
        let waker = {
            let mut registry = self.registry.lock();
            registry.watchers.get_mut(id.0).and_then(Option::as_mut).and_then(|watcher| {
                watcher.progress_asked = true;
                watcher.waker.take()
            })
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The store is closed: watchers end when they have read what is there.
    pub(crate) fn close(&self) {
        let wakers: Vec<Waker> = {
            let mut registry = self.registry.lock();
            registry.closed = true;
            registry.watchers.iter_mut().flatten().filter_map(|watcher| watcher.waker.take()).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// How many watchers there are.
    #[cfg(any(test, feature = "embedded"))]
    pub(crate) fn len(&self) -> usize {
        let registry = self.registry.lock();
        registry.watchers.len() - registry.free.len()
    }
}

/// Can every key of this range find it by a prefix of its own text? True for all keys below a
/// prefix and for single keys.
fn indexable(range: &KeyRange) -> bool {
    let (start, end) = (range.start(), range.end());
    let below = start.strip_suffix('/').is_some_and(|stem| end.strip_suffix('0') == Some(stem));
    below || end.strip_suffix('\0') == Some(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use listwatch_meta::Key;

    #[test]
    fn a_change_finds_its_watchers_and_no_others() {
        let key = Key::new("pods", Some("a"), "x").unwrap();
        let hub = Hub::default();
        let current = Revision::new(5);
        let join = |range| hub.join(range, current, current);
        let concerned = [
            join(KeyRange::resource("pods")),
            join(KeyRange::namespace("pods", "a")),
            join(KeyRange::single(&key)),
            join(KeyRange::below("/")),
            join(KeyRange::resource("pods").starting_at("/pods/a/w")),
        ];
        let others = [
            join(KeyRange::resource("nodes")),
            join(KeyRange::namespace("pods", "ab")),
            join(KeyRange::single(&Key::new("pods", Some("a"), "xx").unwrap())),
            join(KeyRange::resource("pods").starting_at("/pods/a/y")),
            hub.join(KeyRange::resource("pods"), Revision::new(7), current),
        ];
        hub.changed(key.as_str(), Revision::new(6), &mut Vec::new());
        hub.changed(key.as_str(), Revision::new(7), &mut Vec::new());
        let waker = Waker::noop();
        for id in concerned {
            assert_eq!(hub.turn(id, waker), Turn::Read(current), "{id:?} is concerned from its first change");
        }
        for id in others {
            assert_eq!(hub.turn(id, waker), Turn::Wait, "{id:?} is not concerned");
        }
        concerned.into_iter().chain(others).for_each(|id| hub.leave(id));
        assert_eq!(hub.len(), 0);
        assert!(hub.registry.lock().by_start.is_empty(), "nothing stays behind");
    }
}
