//! Matches changes to the watchers of a store, and tracks the position of each watcher.
//!
//! A watcher has no queue. A watcher is either `Current` (every change of its range is delivered) or `Behind` a
//! revision. From that revision the watcher reads the shared history at its own pace. A change makes the `Current`
//! watchers of its key `Behind` and wakes them; a watcher that is already behind costs nothing more. A stalled watcher
//! therefore needs the memory of one number. A watcher of a quiet range never expires because of other writes.
//!
//! A change finds its watchers through the prefixes of its key, so watchers of other objects or namespaces do not slow
//! a write.

use std::collections::HashMap;
use std::task::Waker;

use foldhash::quality::RandomState;
use listwatch_meta::{KeyRange, Revision, canary};
use parking_lot::Mutex;

/// The identifier of a watcher within one [`Hub`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatcherId(usize);

/// The next action of a watcher.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextAction {
    /// Read history after this revision, then report the new position with [`Hub::moved`].
    Read(Revision),
    /// Deliver a progress item at the store's current revision.
    Progress,
    /// Wait: the waker is stored.
    Wait,
    /// The store was closed.
    Closed,
}

#[derive(Debug)]
struct Watcher {
    range: KeyRange,
    /// The position of a lagging watcher, after which it reads history; `None` while it is current.
    behind: Option<Revision>,
    /// Changes up to this revision are skipped, because the watcher begins later.
    floor: Revision,
    progress_asked: bool,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct Registry {
    watchers: Vec<Option<Watcher>>,
    free: Vec<usize>,
    /// Watchers of all keys below a prefix, and of single keys, by the range's start.
    by_start: HashMap<Box<str>, Vec<usize>, RandomState>,
    /// Watchers of any other range.
    odd: Vec<usize>,
    closed: bool,
}

/// The watchers of one store. Lock order: the store's state first, then the hub. All calls are made
/// while the state is locked, so that no change comes in between.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    registry: Mutex<Registry>,
}

impl Hub {
    /// Adds a watcher of everything in a range after `after`; the store is at `current`.
    pub(crate) fn join(&self, range: KeyRange, after: Revision, current: Revision) -> WatcherId {
        let mut registry = self.registry.lock();
        let behind = (after < current && !canary!("storage-joins-watches-at-the-end")).then_some(after);
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

    /// Removes a watcher.
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

    /// Records a change of a key. Adds the wakers of its watchers to `wake`, to be called once no
    /// lock is held.
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

    /// The watcher's next action, while the store's state is locked. `waker` is stored when the
    /// result is [`NextAction::Wait`].
    pub(crate) fn turn(&self, id: WatcherId, waker: &Waker) -> NextAction {
        let mut registry = self.registry.lock();
        let closed = registry.closed;
        let Some(watcher) = registry.watchers[id.0].as_mut() else { return NextAction::Closed };
        if let Some(after) = watcher.behind {
            return NextAction::Read(after.max(watcher.floor));
        }
        if closed {
            return NextAction::Closed;
        }
        if std::mem::take(&mut watcher.progress_asked) {
            return NextAction::Progress;
        }
        match &mut watcher.waker {
            Some(kept) => kept.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        NextAction::Wait
    }

    /// Records a watcher's position: a revision if it lags, or `None` if it is current. Called while the
    /// store's state is locked.
    pub(crate) fn moved(&self, id: WatcherId, behind: Option<Revision>) {
        if let Some(watcher) = self.registry.lock().watchers[id.0].as_mut() {
            watcher.behind = behind;
        }
    }

    /// Records a progress request of a watcher.
    pub(crate) fn request_progress_of(&self, id: WatcherId) {
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

    /// Closes the store: watchers end after reading the remaining history.
    pub(crate) fn close(&self) {
        let wakers: Vec<Waker> = {
            let mut registry = self.registry.lock();
            registry.closed = true;
            registry.watchers.iter_mut().flatten().filter_map(|watcher| watcher.waker.take()).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The number of watchers.
    #[cfg(any(test, feature = "embedded"))]
    pub(crate) fn len(&self) -> usize {
        let registry = self.registry.lock();
        registry.watchers.len() - registry.free.len()
    }
}

/// Whether each key in the range has the range's start as a prefix, so that [`Hub::changed`] finds
/// the watchers of the range by the key. True for all keys below a prefix and for single keys.
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
    fn change_wakes_only_the_watchers_of_its_key() {
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
        {
            let registry = hub.registry.lock();
            let mut starts: Vec<&str> = registry.by_start.keys().map(|start| &**start).collect();
            starts.sort_unstable();
            let expected = ["/", "/nodes/", "/pods/", "/pods/a/", "/pods/a/x", "/pods/a/xx", "/pods/ab/"];
            assert_eq!(starts, expected, "a change finds prefixes and single keys without a search");
            assert_eq!(registry.odd.len(), 2, "only other ranges are compared with each change");
        }
        assert_eq!(hub.len(), concerned.len() + others.len());
        hub.changed(key.as_str(), Revision::new(6), &mut Vec::new());
        hub.changed(key.as_str(), Revision::new(7), &mut Vec::new());
        let waker = Waker::noop();
        for id in concerned {
            assert_eq!(hub.turn(id, waker), NextAction::Read(current), "{id:?} is concerned from its first change");
        }
        for id in others {
            assert_eq!(hub.turn(id, waker), NextAction::Wait, "{id:?} is not concerned");
        }
        concerned.into_iter().chain(others).for_each(|id| hub.leave(id));
        assert_eq!(hub.len(), 0);
        assert!(hub.registry.lock().by_start.is_empty(), "nothing stays behind");
    }
}
