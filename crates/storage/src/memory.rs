//! The store in memory: [`MemoryStorage`]. The store is also the executable specification of the [`Storage`]
//! contract, with which the other implementations are compared.
//!
//! ```text
//!   create ──┐  one write lock        ┌── Hub: watchers of this key become "behind", are woken
//!   update ──┼─▶ Mvcc: map + log ─────┤
//!   delete ──┘  (bytes shared)        └── Deadlines: the reaper task removes what is due
//!
//!   watch  ────▶ reads the log from its own position, WATCH_BATCH events at a time
//! ```
//!
//! A write costs one lock, one map insertion and one log entry; the map, the log and every reader
//! share the value's bytes. The store has no background task until a key with a TTL is written;
//! then one task sleeps until the next deadline.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use listwatch_meta::{Key, KeyRange, Revision, canary};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, coop};
use tokio::time::Instant;

use crate::error::{CreateError, DeleteError, ReadError, StoreFault, UpdateError, WatchError};
use crate::hub::{Hub, NextAction, WatcherId};
use crate::mvcc::{Entry, FIRST_REVISION, Mvcc, Stored};
use crate::page_counts::PageCounts;
use crate::retention::{Retention, RetentionTracker};
use crate::transfer::{self, PAGE_RECORDS_MAX, Record, Records, RecordsError, Source};
use crate::ttl::{self, Deadlines, Millis};
use crate::types::{
    Capabilities, KeyValue, ListPage, ListQuery, Reread, Storage, StoreEvent, StoreStats, VALUE_BYTES_MAX, Watch,
    WatchItem,
};

/// The number of events that a watcher takes from the history at a time. A stalled watcher holds no more; the rest of
/// its backlog is its position in the shared history.
const WATCH_BATCH: usize = 64;

/// The number of history entries that a watcher examines while it holds the lock; then writers can proceed.
const WATCH_SCAN: usize = 4096;

/// The number of entries outside of the retention window that a write drops. More than one, so that dropping keeps up
/// with writes; few, so that no write is slow.
const TRIM_PER_WRITE: usize = 16;

/// The number of entries that an explicit compaction drops before it releases the lock.
const TRIM_PER_STEP: usize = 1024;

/// The number of expired keys that are removed before the lock is released.
const EXPIRE_PER_STEP: usize = 128;

/// A store in memory, without any durability and with the least overhead.
///
/// Dropping it ends its watches and its TTL task.
///
/// # Example
/// ```
/// use listwatch_meta::{Key, KeyRange, Revision};
/// use listwatch_storage::{ListQuery, MemoryStorage, Storage, WatchItem};
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let store = MemoryStorage::new();
/// let key = Key::new("pods", Some("default"), "web")?;
/// let created = store.create(&key, "{}".into(), None).await?;
///
/// let mut watch = store.watch(KeyRange::resource("pods"), Revision::ZERO).await?;
/// assert!(matches!(watch.next().await, Some(WatchItem::Event(event)) if event.revision() == created));
/// let page = store.list(ListQuery { range: KeyRange::resource("pods"), at: None, limit: 0 }).await?;
/// assert_eq!((page.items.len(), page.revision), (1, created));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MemoryStorage {
    inner: Arc<Inner>,
}

struct Inner {
    state: RwLock<State>,
    hub: Hub,
    page_counts: PageCounts,
    /// The origin of this store's millisecond clock.
    origin: Instant,
    /// Notifies the TTL task that the next deadline changed or the store is closed.
    rearm: Notify,
    reaper: Mutex<Option<AbortHandle>>,
}

struct State {
    mvcc: Mvcc<Bytes>,
    keeper: RetentionTracker,
    deadlines: Deadlines,
    closed: bool,
}

impl MemoryStorage {
    /// Creates an empty store with the default [`Retention`].
    ///
    /// The store needs a tokio runtime only for keys with a TTL.
    pub fn new() -> Arc<Self> {
        Self::with_retention(Retention::default())
    }

    /// Creates an empty store with this retention.
    pub fn with_retention(retention: Retention) -> Arc<Self> {
        Arc::new(MemoryStorage {
            inner: Arc::new(Inner {
                state: RwLock::new(State {
                    mvcc: Mvcc::new(Revision::ZERO, FIRST_REVISION),
                    keeper: RetentionTracker::new(retention),
                    deadlines: Deadlines::default(),
                    closed: false,
                }),
                hub: Hub::default(),
                page_counts: PageCounts::default(),
                origin: Instant::now(),
                rearm: Notify::new(),
                reaper: Mutex::new(None),
            }),
        })
    }
}

impl Drop for MemoryStorage {
    fn drop(&mut self) {
        self.inner.state.write().closed = true;
        self.inner.hub.close();
        self.inner.rearm.notify_one();
    }
}

impl Inner {
    /// The whole milliseconds since the start.
    fn now(&self) -> Millis {
        ttl::millis_rounded_down(self.origin.elapsed())
    }

    /// Runs one change under the lock and then wakes the watchers concerned. `change` receives the time at which TTLs
    /// begin, rounded up, and returns the revision of its log entry.
    fn write<E>(&self, change: impl FnOnce(&mut State, Millis) -> Result<Revision, E>) -> Result<Revision, E> {
        let elapsed = self.origin.elapsed();
        let (now, ttl_start) = (ttl::millis_rounded_down(elapsed), ttl::millis_rounded_up(elapsed));
        let mut wake = Vec::new();
        let revision = {
            let mut state = self.state.write();
            let revision = change(&mut state, ttl_start)?;
            state.record_change(revision, now, &self.hub, &mut wake);
            revision
        };
        wake.into_iter().for_each(Waker::wake);
        Ok(revision)
    }

    /// Notifies the TTL task, or starts it, if the deadline of `revision` is the next one.
    fn arm(self: &Arc<Self>, revision: Revision) {
        let is_next = {
            let state = self.state.read();
            state.deadlines.of(revision).is_some_and(|deadline| state.deadlines.next() == Some(deadline))
        };
        if !is_next {
            return;
        }
        let mut reaper = self.reaper.lock();
        // A finished task belonged to a runtime that was shut down; this one replaces it.
        if reaper.as_ref().is_none_or(AbortHandle::is_finished) {
            *reaper = Some(tokio::spawn(reap(Arc::downgrade(self))).abort_handle());
        } else {
            self.rearm.notify_one();
        }
    }

    /// Removes up to [`EXPIRE_PER_STEP`] expired keys. Returns true if more may be due.
    fn expire(&self) -> bool {
        let now = self.now();
        let mut wake = Vec::new();
        let mut removed = 0;
        {
            let mut state = self.state.write();
            while removed < EXPIRE_PER_STEP
                && let Some((key, revision)) = state.deadlines.due(now)
            {
                state.deadlines.forget(revision);
                if let Some(removal) = state.mvcc.delete(key.as_str()) {
                    state.record_change(removal, now, &self.hub, &mut wake);
                }
                removed += 1;
            }
        }
        wake.into_iter().for_each(Waker::wake);
        removed == EXPIRE_PER_STEP
    }
}

impl State {
    /// Notifies the watchers of a change, accounts its bytes, and drops history outside of the window.
    fn record_change(&mut self, revision: Revision, now: Millis, hub: &Hub, wake: &mut Vec<Waker>) {
        if let Some(entry) = self.mvcc.entry(revision) {
            self.keeper.added(cost(entry));
            hub.changed(entry.key.as_str(), revision, wake);
        }
        let forget = self.keeper.forget_to(revision, now);
        // `forget` never exceeds the current revision.
        let _ = self.mvcc.compact(forget);
        self.trim(TRIM_PER_WRITE);
    }

    /// Drops up to `limit` unreadable entries; returns true when it dropped that many.
    fn trim(&mut self, limit: usize) -> bool {
        for _ in 0..limit {
            if let Some((_, entry)) = self.mvcc.trim() {
                self.keeper.dropped(cost(&entry));
            } else if self.keeper.over_bytes() && self.mvcc.oldest() < self.mvcc.current() {
                let _ = self.mvcc.compact(self.mvcc.oldest().next());
            } else {
                return false;
            }
        }
        true
    }

    fn put(&mut self, key: &Key, value: Bytes, ttl: Option<Duration>, now: Millis) -> Revision {
        let revision = self.mvcc.put(key, value);
        if let Some(ttl) = ttl {
            let deadline = ttl::deadline(now, ttl);
            self.deadlines.set(key.clone(), revision, deadline, deadline);
        }
        revision
    }

    /// Fails with the current state of a key that is not at `expected`.
    fn conflict(&self, key: &Key, expected: Revision) -> Result<(), Option<KeyValue>> {
        match self.mvcc.get(key.as_str()) {
            Some(stored) if stored.modified == expected => Ok(()),
            other => Err(other.map(|stored| key_value(key, stored))),
        }
    }
}

fn cost(entry: &Entry<Bytes>) -> u64 {
    RetentionTracker::cost(entry.key.as_str().len(), entry.previous.as_ref().map_or(0, |stored| stored.value.len()))
}

fn key_value(key: &Key, stored: &Stored<Bytes>) -> KeyValue {
    KeyValue {
        key: key.clone(),
        value: stored.value.clone(),
        created: stored.created,
        modified: stored.modified,
        stale: false,
    }
}

fn store_event(revision: Revision, entry: &Entry<Bytes>) -> StoreEvent {
    let previous = entry.previous.as_ref().map(|stored| key_value(&entry.key, stored));
    match &entry.current {
        Some(stored) => StoreEvent::Put { current: key_value(&entry.key, stored), previous },
        None => StoreEvent::Delete { key: entry.key.clone(), revision, previous },
    }
}

/// Removes expired keys until the store is dropped.
async fn reap(store: Weak<Inner>) {
    loop {
        let Some(inner) = store.upgrade() else { return };
        while inner.expire() {
            tokio::task::yield_now().await;
        }
        let next = {
            let state = inner.state.read();
            if state.closed {
                return;
            }
            state.deadlines.next()
        };
        // The store may be dropped meanwhile: `Drop` notifies `rearm`, and `closed` is seen.
        match next {
            None => inner.rearm.notified().await,
            Some(deadline) => {
                let at = inner.origin + Duration::from_millis(deadline);
                let _ = tokio::time::timeout_at(at, inner.rearm.notified()).await;
            }
        }
    }
}

fn check_size(key: &Key, value: &Bytes) -> Result<(), StoreFault> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(StoreFault::TooLarge(format!(
            "the value of {key} has {} bytes, the limit is {VALUE_BYTES_MAX}",
            value.len()
        )));
    }
    Ok(())
}

#[async_trait]
impl Storage for MemoryStorage {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        let state = self.inner.state.read();
        let found = state.mvcc.get(key.as_str()).map(|stored| key_value(key, stored));
        Ok((found, state.mvcc.current()))
    }

    async fn get_unless(&self, key: &Key, known: Revision) -> Result<(Reread, Revision), ReadError> {
        let state = self.inner.state.read();
        let read = match state.mvcc.get(key.as_str()) {
            Some(stored) if stored.modified == known => Reread::Unchanged,
            stored => Reread::Changed(stored.map(|stored| key_value(key, stored))),
        };
        Ok((read, state.mvcc.current()))
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        let state = self.inner.state.read();
        let at = query.at.filter(|at| !at.is_zero() && !canary!("storage-lists-the-current-state"));
        let revision = at.unwrap_or(state.mvcc.current());
        let page = self.inner.page_counts.list(&state.mvcc, &query.range, revision, query.limit)?;
        let items = page.items.into_iter().map(|(key, stored)| key_value(key, stored)).collect();
        Ok(ListPage { items, revision, more: page.remaining > 0, remaining: Some(page.remaining) })
    }

    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        check_size(key, &value)?;
        let revision = self.inner.write(|state, now| match state.mvcc.get(key.as_str()) {
            Some(stored) => Err(CreateError::AlreadyExists { key: key.clone(), current: key_value(key, stored) }),
            None => Ok(state.put(key, value, ttl, now)),
        })?;
        if ttl.is_some() {
            self.inner.arm(revision);
        }
        Ok(revision)
    }

    async fn update(
        &self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, UpdateError> {
        check_size(key, &value)?;
        let revision = self.inner.write(|state, now| {
            if !canary!("storage-ignores-the-expected-revision") {
                state.conflict(key, expected).map_err(|current| UpdateError::Conflict { current })?;
            }
            state.deadlines.forget(expected);
            Ok::<_, UpdateError>(state.put(key, value, ttl, now))
        })?;
        if ttl.is_some() {
            self.inner.arm(revision);
        }
        Ok(revision)
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
        self.inner.write(|state, _| {
            state.conflict(key, expected).map_err(|current| DeleteError::Conflict { current })?;
            state.deadlines.forget(expected);
            state.mvcc.delete(key.as_str()).ok_or(DeleteError::Conflict { current: None })
        })
    }

    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
        let state = self.inner.state.read();
        if state.closed {
            return Err(StoreFault::Closed.into());
        }
        let id = self.inner.hub.join(range.clone(), after, state.mvcc.current());
        drop(state);
        let place = Arc::new(Registration { inner: self.inner.clone(), id });
        let asked = place.clone();
        let items = MemoryWatch { place, range, ready: VecDeque::new(), ended: false };
        Ok(Watch::new(items, move || asked.inner.hub.request_progress_of(asked.id)))
    }

    async fn current_revision(&self) -> Result<Revision, ReadError> {
        Ok(self.inner.state.read().mvcc.current())
    }

    async fn compact(&self, revision: Revision) -> Result<(), ReadError> {
        self.inner.state.write().mvcc.compact(revision)?;
        // Each step takes the lock again, so that other calls can proceed in between.
        while self.inner.state.write().trim(TRIM_PER_STEP) {
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { progress_requests: true }
    }

    async fn health(&self) -> Result<(), StoreFault> {
        Ok(())
    }

    async fn stats(&self) -> Result<StoreStats, StoreFault> {
        let state = self.inner.state.read();
        Ok(StoreStats {
            description: "memory".to_owned(),
            revision: state.mvcc.current(),
            oldest: state.mvcc.oldest(),
            keys: Some(state.mvcc.live()),
            disk_bytes: None,
        })
    }
}

#[async_trait]
impl Source for MemoryStorage {
    async fn records(&self) -> Result<Box<dyn Records + '_>, ReadError> {
        let state = self.inner.state.read();
        let (at, count, deadlines) = (state.mvcc.current(), state.mvcc.live(), state.deadlines.all());
        Ok(Box::new(MemoryRecords { store: self, at, count, deadlines, last: None }))
    }
}

/// All records at one revision.
struct MemoryRecords<'a> {
    store: &'a MemoryStorage,
    at: Revision,
    count: u64,
    /// The deadlines at the start. The store forgets those of keys that are changed or removed meanwhile.
    deadlines: HashMap<Revision, Millis>,
    last: Option<Key>,
}

#[async_trait]
impl Records for MemoryRecords<'_> {
    fn revision(&self) -> Revision {
        self.at
    }

    fn count(&self) -> Option<u64> {
        Some(self.count)
    }

    async fn next_page(&mut self) -> Result<Vec<Record>, RecordsError> {
        let inner = &self.store.inner;
        let now = inner.now();
        let state = inner.state.read();
        // The bytes are shared, so only the number of records costs memory.
        let page = state.mvcc.list(&transfer::behind(self.last.as_ref()), self.at, PAGE_RECORDS_MAX)?;
        let record = |(key, stored): (&Key, &Stored<Bytes>)| {
            let deadline = self.deadlines.get(&stored.modified);
            // A key that is due but not yet removed expires at once in the target.
            let ttl = deadline.map(|deadline| Duration::from_millis(deadline.saturating_sub(now).max(1)));
            Record { entry: key_value(key, stored), ttl }
        };
        let records: Vec<Record> = page.items.into_iter().map(record).collect();
        self.last = records.last().map(|record| record.entry.key.clone()).or(self.last.take());
        Ok(records)
    }
}

/// A watcher's registration in the hub; dropping it removes the watcher.
struct Registration {
    inner: Arc<Inner>,
    id: WatcherId,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.inner.hub.leave(self.id);
    }
}

/// The stream of one watch.
struct MemoryWatch {
    place: Arc<Registration>,
    range: KeyRange,
    /// Events taken from the history but not yet delivered; at most [`WATCH_BATCH`].
    ready: VecDeque<WatchItem>,
    ended: bool,
}

impl MemoryWatch {
    /// Takes the next events of the range from the history. Returns false if there are none.
    fn refill(&mut self, waker: &Waker) -> bool {
        let Registration { inner, id } = &*self.place;
        let state = inner.state.read();
        match inner.hub.turn(*id, waker) {
            NextAction::Read(after) if after < state.mvcc.oldest() => {
                self.ready.push_back(WatchItem::Expired { oldest: Some(state.mvcc.oldest()) });
                self.ended = true;
            }
            NextAction::Read(after) => {
                let current = state.mvcc.current();
                // The revision at which the next call continues, if this one does not reach the
                // end.
                let mut behind = None;
                for (scanned, (revision, entry)) in state.mvcc.entries_after(after).enumerate() {
                    if self.ready.len() == WATCH_BATCH || scanned == WATCH_SCAN {
                        behind = Some(revision.previous());
                        break;
                    }
                    if self.range.contains(entry.key.as_str()) {
                        self.ready.push_back(WatchItem::Event(store_event(revision, entry)));
                    }
                }
                debug_assert!(behind.is_none_or(|behind| after < behind && behind < current), "each turn goes on");
                inner.hub.moved(*id, behind);
            }
            NextAction::Progress => self.ready.push_back(WatchItem::Progress(state.mvcc.current())),
            NextAction::Closed => self.ended = true,
            NextAction::Wait => return false,
        }
        true
    }
}

impl Stream for MemoryWatch {
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
            if !self.refill(cx.waker()) {
                return Poll::Pending;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> Key {
        Key::new("pods", Some("default"), name).unwrap()
    }

    #[tokio::test]
    async fn history_stays_within_its_byte_bound() {
        let retention = Retention { age: Duration::from_secs(3600), revisions: 1_000_000, bytes: 64 << 10 };
        let store = MemoryStorage::with_retention(retention);
        let mut at = store.create(&pod("a"), Bytes::new(), None).await.unwrap();
        for _ in 0..1000 {
            at = store.update(&pod("a"), at, vec![b'x'; 1024].into(), None).await.unwrap();
        }
        let state = store.inner.state.read();
        assert!(state.keeper.bytes() <= retention.bytes + 2048, "{} bytes of history", state.keeper.bytes());
        let kept = state.mvcc.log_len();
        assert!((50..=54).contains(&kept), "{kept} revisions of 1.2 KiB are kept in 64 KiB");
        let held: u64 = (state.mvcc.oldest().next().get()..=at.get())
            .filter_map(|revision| state.mvcc.entry(Revision::new(revision)).map(cost))
            .sum();
        assert_eq!(held, state.keeper.bytes(), "what is reckoned is what is held");
    }

    #[tokio::test]
    async fn watcher_of_a_quiet_range_never_expires() {
        let retention = Retention { age: Duration::ZERO, revisions: 10, bytes: u64::MAX };
        let store = MemoryStorage::with_retention(retention);
        let start = store.create(&pod("a"), Bytes::new(), None).await.unwrap();
        let mut quiet = store.watch(KeyRange::resource("nodes"), start).await.unwrap();
        let mut stalled = store.watch(KeyRange::resource("pods"), start).await.unwrap();
        for n in 0..100 {
            store.create(&pod(&format!("p{n}")), Bytes::new(), None).await.unwrap();
        }
        let node = Key::new("nodes", None, "n").unwrap();
        let revision = store.create(&node, Bytes::new(), None).await.unwrap();
        assert!(matches!(quiet.next().await, Some(WatchItem::Event(event)) if event.revision() == revision));
        let oldest = store.stats().await.unwrap().oldest;
        assert_eq!(stalled.next().await, Some(WatchItem::Expired { oldest: Some(oldest) }));
        assert_eq!(stalled.next().await, None);
    }

    #[tokio::test]
    async fn dropping_the_store_ends_watches_and_frees_its_memory() {
        let store = MemoryStorage::new();
        let inner = store.inner.clone();
        let mut watch = store.watch(KeyRange::resource("pods"), Revision::ZERO).await.unwrap();
        let revision = store.create(&pod("a"), Bytes::new(), Some(Duration::from_secs(3600))).await.unwrap();
        drop(store);
        assert!(matches!(watch.next().await, Some(WatchItem::Event(event)) if event.revision() == revision));
        assert_eq!(watch.next().await, None, "a closed store ends its watches after what is there");
        drop(watch);
        assert_eq!(inner.hub.len(), 0);
        while !inner.reaper.lock().as_ref().unwrap().is_finished() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ttl_task_survives_the_runtime_that_started_it() {
        let store = MemoryStorage::new();
        let other = store.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(other.create(&pod("long"), Bytes::new(), Some(Duration::from_secs(60)))).unwrap();
        })
        .join()
        .unwrap();
        let created = store.create(&pod("short"), Bytes::new(), Some(Duration::from_secs(30))).await.unwrap();
        let mut watch = store.watch(KeyRange::resource("pods"), created).await.unwrap();
        for name in ["short", "long"] {
            let item = watch.next().await;
            assert!(
                matches!(&item, Some(WatchItem::Event(StoreEvent::Delete { key, .. })) if *key == pod(name)),
                "{name} removes itself: {item:?}"
            );
        }
    }

    #[tokio::test]
    async fn create_rejects_value_above_the_size_limit() {
        let store = MemoryStorage::new();
        store.create(&pod("fits"), vec![0; VALUE_BYTES_MAX].into(), None).await.unwrap();
        let error = store.create(&pod("large"), vec![0; VALUE_BYTES_MAX + 1].into(), None).await.unwrap_err();
        assert!(matches!(error, CreateError::Fault(StoreFault::TooLarge(_))), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn key_written_within_a_millisecond_is_not_removed_before_its_ttl() {
        let advance = async |micros: u64| tokio::time::advance(Duration::from_micros(micros)).await;
        let store = MemoryStorage::new();
        advance(500).await;
        store.create(&pod("a"), Bytes::new(), Some(Duration::from_millis(10))).await.unwrap();
        let is_stored = async || {
            store.inner.expire();
            store.get(&pod("a")).await.unwrap().0.is_some()
        };
        advance(9_600).await;
        assert!(is_stored().await, "removed after 9.6 ms of 10");
        advance(1_000).await;
        assert!(!is_stored().await, "stored after 10.6 ms of 10");
    }

    #[tokio::test(start_paused = true)]
    async fn expired_keys_are_removed_in_bounded_steps() {
        let store = MemoryStorage::new();
        let keys = 2 * EXPIRE_PER_STEP as u64 + 10;
        {
            let mut state = store.inner.state.write();
            for n in 0..keys {
                state.put(&pod(&format!("p{n}")), Bytes::new(), Some(Duration::from_secs(1)), 0);
            }
        }
        assert!(!store.inner.expire(), "nothing is due yet");
        assert_eq!(store.stats().await.unwrap().keys, Some(keys));
        tokio::time::advance(Duration::from_secs(1)).await;
        for (more, left) in [(true, EXPIRE_PER_STEP as u64 + 10), (true, 10), (false, 0)] {
            assert_eq!(store.inner.expire(), more, "whether more keys may be due");
            assert_eq!(store.stats().await.unwrap().keys, Some(left));
        }
    }

    #[tokio::test]
    async fn record_count_of_an_export_equals_the_number_of_keys() {
        let store = MemoryStorage::new();
        for count in 0..4_u64 {
            assert_eq!(store.records().await.unwrap().count(), Some(count), "existing keys");
            store.create(&pod(&format!("p{count}")), Bytes::new(), None).await.unwrap();
        }
    }

    #[tokio::test]
    async fn watcher_takes_a_bounded_batch_from_the_history() {
        let store = MemoryStorage::new();
        let node = |n: usize| Key::new("nodes", None, &format!("n{n}")).unwrap();
        let check = async |keys: Vec<Key>, expected: &[usize], why: &str| {
            let start = store.current_revision().await.unwrap();
            let pods = keys.iter().filter(|key| key.as_str().starts_with("/pods/")).count();
            for key in keys {
                store.create(&key, Bytes::new(), None).await.unwrap();
            }
            let range = KeyRange::resource("pods");
            let id = store.inner.hub.join(range.clone(), start, store.current_revision().await.unwrap());
            let place = Arc::new(Registration { inner: store.inner.clone(), id });
            let mut watch = MemoryWatch { place, range, ready: VecDeque::new(), ended: false };
            let (mut batches, mut revisions) = (Vec::new(), Vec::new());
            while watch.refill(Waker::noop()) {
                batches.push(watch.ready.len());
                revisions.extend(watch.ready.drain(..).map(|item| match item {
                    WatchItem::Event(event) => event.revision(),
                    other => panic!("{why}: {other:?}"),
                }));
            }
            assert_eq!(batches, expected, "{why}");
            assert!(revisions.len() == pods && revisions.is_sorted(), "{why}: no event is missed or repeated");
        };
        let pods = |name: &str, count: usize| (0..count).map(|n| pod(&format!("{name}{n}"))).collect::<Vec<_>>();
        check(pods("a", 150), &[WATCH_BATCH, WATCH_BATCH, 150 - 2 * WATCH_BATCH], "many events").await;
        check(pods("b", WATCH_BATCH), &[WATCH_BATCH], "as many events as a batch holds").await;
        let others = (0..WATCH_SCAN).map(node).chain([pod("c")]);
        check(others.collect(), &[0, 1], "a long history of other keys").await;
    }
}
