//! The stream of one watch, which reads the shared history at its own pace. Recent values are in
//! memory. A lagging watcher reads older values from disk: a few on the polling task, many in a
//! task for blocking work.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use futures_core::Stream;
use listwatch_meta::{Key, KeyRange, Revision};
use tokio::task::{JoinHandle, coop};

use super::engine::{EngineError, Snapshot};
use super::plan::Length;
use super::{INLINE_READS_MAX, Inner, State};
use crate::error::StoreFault;
use crate::hub::{NextAction, WatcherId};
use crate::mvcc::{Entry, Stored};
use crate::types::{KeyValue, StoreEvent, WatchItem};

/// The number of events that a watcher takes from the history at a time, which bounds a stalled
/// watcher's memory.
const WATCH_BATCH: usize = 64;

/// Bytes of values after which a watcher stops taking events.
const WATCH_BATCH_BYTES: usize = 1 << 20;

/// The number of history entries that a watcher examines while it holds the lock.
const WATCH_SCAN: usize = 4096;

/// A watcher's registration in the hub; dropping it removes the watcher.
pub(super) struct Registration {
    pub inner: Arc<Inner>,
    pub id: WatcherId,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.inner.hub.leave(self.id);
    }
}

/// A watch of an embedded store.
pub(super) struct EmbeddedWatch {
    place: Arc<Registration>,
    range: KeyRange,
    /// Events taken from the history but not yet delivered; bounded by [`WATCH_BATCH`] and
    /// [`WATCH_BATCH_BYTES`].
    ready: VecDeque<WatchItem>,
    loading: Option<JoinHandle<Result<Vec<StoreEvent>, EngineError>>>,
    ended: bool,
}

/// An event whose values may still be on disk.
struct Unloaded {
    key: Key,
    revision: Revision,
    current: Option<Side>,
    previous: Option<Side>,
}

/// One of the states of an event.
struct Side {
    stored: Stored<Length>,
    value: Option<Bytes>,
}

impl Side {
    fn load(self, key: &Key, snapshot: &Snapshot) -> Result<KeyValue, EngineError> {
        let Stored { created, modified, .. } = self.stored;
        let value = match self.value {
            Some(value) => value,
            None => snapshot.value(modified)?,
        };
        Ok(KeyValue { key: key.clone(), value, created, modified, stale: false })
    }
}

impl Unloaded {
    fn new(state: &State, revision: Revision, entry: &Entry<Length>) -> Self {
        let recent = &state.recent;
        let current = entry.current.map(|stored| Side { stored, value: recent.value(revision).cloned() });
        let previous = entry.previous.map(|stored| {
            let value = recent.previous(revision).or_else(|| recent.value(stored.modified));
            Side { stored, value: value.cloned() }
        });
        Unloaded { key: entry.key.clone(), revision, current, previous }
    }

    fn sides(&self) -> impl Iterator<Item = &Side> {
        self.current.iter().chain(&self.previous)
    }

    fn load(self, snapshot: &Snapshot) -> Result<StoreEvent, EngineError> {
        let Unloaded { key, revision, current, previous } = self;
        let previous = previous.map(|side| side.load(&key, snapshot)).transpose()?;
        Ok(match current {
            Some(side) => StoreEvent::Put { current: side.load(&key, snapshot)?, previous },
            None => StoreEvent::Delete { key, revision, previous },
        })
    }
}

impl EmbeddedWatch {
    pub(super) fn new(place: Arc<Registration>, range: KeyRange) -> Self {
        EmbeddedWatch { place, range, ready: VecDeque::new(), loading: None, ended: false }
    }

    /// Takes the next events of the range from the history. Returns false if there are none.
    fn refill(&mut self, waker: &Waker) -> bool {
        let place = self.place.clone();
        let state = place.inner.state.read();
        if place.inner.poll_readable(&state, waker).is_pending() {
            return false;
        }
        match place.inner.hub.turn(place.id, waker) {
            NextAction::Read(after) if after < state.index.mvcc.oldest() => {
                self.end(WatchItem::Expired { oldest: Some(state.index.mvcc.oldest()) });
            }
            NextAction::Read(after) => {
                let snapshot = match &state.snapshot {
                    Ok(snapshot) => snapshot.clone(),
                    Err(StoreFault::Closed) => {
                        self.ended = true;
                        return true;
                    }
                    Err(fault) => {
                        self.end(WatchItem::Lost(fault.clone()));
                        return true;
                    }
                };
                let (events, behind) = self.take(&state, after);
                place.inner.hub.moved(place.id, behind);
                // Disk reads must not hold the lock.
                drop(state);
                self.load(events, snapshot);
            }
            NextAction::Progress => self.ready.push_back(WatchItem::Progress(state.index.mvcc.current())),
            NextAction::Closed => self.ended = true,
            NextAction::Wait => return false,
        }
        true
    }

    /// Takes the next events after `after`. Returns the revision at which the next call continues,
    /// if this one does not reach the end.
    fn take(&self, state: &State, after: Revision) -> (Vec<Unloaded>, Option<Revision>) {
        let mut events = Vec::new();
        let mut bytes = 0;
        for (scanned, (revision, entry)) in state.index.mvcc.entries_after(after).enumerate() {
            if events.len() == WATCH_BATCH || bytes > WATCH_BATCH_BYTES || scanned == WATCH_SCAN {
                return (events, Some(revision.previous()));
            }
            if self.range.contains(entry.key.as_str()) {
                let event = Unloaded::new(state, revision, entry);
                bytes += event.sides().map(|side| side.stored.value as usize).sum::<usize>();
                events.push(event);
            }
        }
        (events, None)
    }

    fn load(&mut self, events: Vec<Unloaded>, snapshot: Arc<Snapshot>) {
        let on_disk = events.iter().flat_map(Unloaded::sides).filter(|side| side.value.is_none()).count();
        let load = move || events.into_iter().map(|event| event.load(&snapshot)).collect();
        if on_disk <= INLINE_READS_MAX {
            self.loaded(load());
        } else {
            self.loading = Some(tokio::task::spawn_blocking(load));
        }
    }

    fn loaded(&mut self, events: Result<Vec<StoreEvent>, EngineError>) {
        match events {
            Ok(events) => self.ready.extend(events.into_iter().map(WatchItem::Event)),
            Err(error) => {
                let fault = self.place.inner.reading_failed(error);
                self.end(WatchItem::Lost(fault));
            }
        }
    }

    fn end(&mut self, last: WatchItem) {
        self.ready.push_back(last);
        self.ended = true;
    }
}

impl Stream for EmbeddedWatch {
    type Item = WatchItem;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchItem>> {
        // Yields to other tasks while a reader drains a long history.
        let budget = ready!(coop::poll_proceed(cx));
        loop {
            if let Some(item) = self.ready.pop_front() {
                budget.made_progress();
                return Poll::Ready(Some(item));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            if let Some(loading) = &mut self.loading {
                let events = ready!(Pin::new(loading).poll(cx));
                self.loading = None;
                // Blocking work is lost only when the runtime shuts down.
                self.loaded(events.unwrap_or_else(|_| Err(EngineError::Io("the runtime is shutting down".into()))));
            } else if !self.refill(cx.waker()) {
                return Poll::Pending;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::super::engine::Engine;
    use super::super::faults::SimDisk;
    use super::super::plan::Plan;
    use super::super::{EmbeddedOptions, EmbeddedStorage};
    use super::*;

    /// Makes changes of pods with values of these lengths, `None` for changes of other keys, and takes events until
    /// the end. Returns the sizes of the batches.
    fn check(lengths: impl IntoIterator<Item = Option<usize>>, expected: &[usize], why: &str) {
        let disk = SimDisk::default();
        Engine::create(&disk, 1 << 20).unwrap().close();
        let options = EmbeddedOptions::default();
        let committer = EmbeddedStorage::load(Arc::new(disk), options, SystemTime::now).unwrap();
        let inner = committer.inner.clone();
        let mut state = inner.state.write();
        let start = state.index.mvcc.current();
        for (n, length) in lengths.into_iter().enumerate() {
            let resource = if length.is_some() { "pods" } else { "nodes" };
            let key = Key::new(resource, Some("ns"), &format!("k{n}")).unwrap();
            let mut plan = Plan::new(&state.index.mvcc);
            plan.put(&key, Revision::ZERO, vec![0; length.unwrap_or(1)].into(), 0).unwrap();
            for (revision, header, _) in plan.into_records() {
                state.index.apply(revision, &header).unwrap();
            }
        }
        let pods = KeyRange::resource("pods");
        let id = inner.hub.join(pods.clone(), start, state.index.mvcc.current());
        drop(state);
        let watch = EmbeddedWatch::new(Arc::new(Registration { inner: inner.clone(), id }), pods);
        let state = inner.state.read();
        let (mut after, mut batches, mut revisions) = (Some(start), Vec::new(), Vec::new());
        while let Some(at) = after {
            let (events, next) = watch.take(&state, at);
            assert!(next.is_none_or(|next| at < next && next < state.index.mvcc.current()), "{why}: each call goes on");
            batches.push(events.len());
            revisions.extend(events.iter().map(|event| event.revision));
            after = next;
        }
        assert_eq!(batches, expected, "{why}");
        let all = state.index.mvcc.entries_after(start);
        let all: Vec<_> = all.filter(|(_, entry)| entry.key.as_str().starts_with("/pods/")).map(|(at, _)| at).collect();
        assert_eq!(revisions, all, "{why}: no event is missed or repeated");
    }

    #[test]
    fn watcher_takes_a_bounded_batch_from_the_history() {
        let pods = |count: usize, length: usize| std::iter::repeat_n(Some(length), count);
        check(pods(150, 1), &[WATCH_BATCH, WATCH_BATCH, 150 - 2 * WATCH_BATCH], "many events");
        check(pods(WATCH_BATCH, 1), &[WATCH_BATCH], "as many events as a batch holds");
        check(pods(5, 400 << 10), &[3, 2], "the third value exceeds the bytes of a batch");
        check(pods(5, WATCH_BATCH_BYTES / 2), &[3, 2], "two values reach the bound, the third exceeds it");
        let others = std::iter::repeat_n(None, WATCH_SCAN);
        check(others.clone().chain(pods(1, 1)), &[0, 1], "a long history of other keys");
        check(others, &[0], "a history that is examined at once");
    }
}
