//! [`TestStore`]: a memory store with injected faults. Tests can hold, lose and expire the watches,
//! omit keys from lists, and disable progress.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::{
    Capabilities, CreateError, DeleteError, KeyValue, ListPage, ListQuery, MemoryStorage, ReadError, Storage,
    StoreEvent, StoreFault, StoreStats, UpdateError, Watch, WatchError, WatchItem,
};
use parking_lot::Mutex;

pub struct TestStore {
    inner: Arc<MemoryStorage>,
    faults: Arc<Mutex<Faults>>,
}

#[derive(Default)]
struct Faults {
    /// Whether watches deliver nothing.
    held: bool,
    /// The last item of the ended watches; `None` if no watch was ended.
    ending: Option<WatchItem>,
    /// The generation of watches that `ending` applies to. Later watches are unaffected.
    generation: u64,
    /// Whether polling a watch panics.
    broken: bool,
    /// Whether lists and reads of the revision fail.
    down: bool,
    /// Whether progress requests are ignored, as by an old etcd.
    old: bool,
    /// The key that lists omit.
    hidden: Option<Key>,
    /// Whether events lack the former states.
    forgetful: bool,
    /// Whether history is compacted after every page of a list.
    hasty: bool,
    wakers: Vec<Waker>,
    lists: u64,
}

impl TestStore {
    pub fn new() -> Arc<Self> {
        Arc::new(TestStore { inner: MemoryStorage::new(), faults: Arc::default() })
    }

    /// Holds all items of watches until they are released.
    pub fn hold(&self, held: bool) {
        self.change(|faults| faults.held = held);
    }

    /// Breaks the current watches. New watches work.
    pub fn lose(&self) {
        self.end_watches(WatchItem::Lost(StoreFault::Unavailable("cut".to_owned())));
    }

    /// Expires the current watches. New watches work.
    pub fn expire(&self) {
        self.end_watches(WatchItem::Expired { oldest: None });
    }

    /// Makes watches panic from now on.
    pub fn break_down(&self) {
        self.change(|faults| faults.broken = true);
    }

    /// Makes reads fail until the store is up again.
    pub fn down(&self, down: bool) {
        self.change(|faults| faults.down = down);
    }

    /// Ignores progress requests.
    pub fn old(&self) {
        self.change(|faults| faults.old = true);
    }

    /// Delivers events without the former states, like a store that has compacted them.
    pub fn forget(&self) {
        self.change(|faults| faults.forgetful = true);
    }

    /// Omits a key from lists.
    pub fn hide(&self, key: Option<Key>) {
        self.change(|faults| faults.hidden = key);
    }

    /// Writes a key after every page except the last, and compacts up to that write, so that the
    /// revision of the first page is compacted.
    pub fn hasty(&self) {
        self.change(|faults| faults.hasty = true);
    }

    /// The number of listed pages.
    pub fn lists(&self) -> u64 {
        self.faults.lock().lists
    }

    fn end_watches(&self, item: WatchItem) {
        self.change(|faults| {
            faults.ending = Some(item);
            faults.generation += 1;
        });
    }

    fn change(&self, change: impl FnOnce(&mut Faults)) {
        let wakers = {
            let mut faults = self.faults.lock();
            change(&mut faults);
            std::mem::take(&mut faults.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn up(&self) -> Result<(), StoreFault> {
        if self.faults.lock().down { Err(StoreFault::Unavailable("down".to_owned())) } else { Ok(()) }
    }
}

#[async_trait]
impl Storage for TestStore {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        self.up()?;
        self.inner.get(key).await
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        self.up()?;
        let mut page = self.inner.list(query).await?;
        let hasty = self.faults.lock().hasty;
        if hasty && page.more {
            let key = Key::new("elsewhere", None, &format!("at-{}", page.revision)).expect("a valid name");
            let now = self.inner.create(&key, Bytes::from_static(b"{}"), None).await.expect("a key that is new");
            self.inner.compact(now).await?;
        }
        let mut faults = self.faults.lock();
        faults.lists += 1;
        if let Some(hidden) = &faults.hidden {
            page.items.retain(|entry| entry.key != *hidden);
        }
        Ok(page)
    }

    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        self.inner.create(key, value, ttl).await
    }

    async fn update(
        &self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, UpdateError> {
        self.inner.update(key, expected, value, ttl).await
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
        self.inner.delete(key, expected).await
    }

    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
        self.up()?;
        let watch = Arc::new(Mutex::new(self.inner.watch(range, after).await?));
        let generation = self.faults.lock().generation;
        let items = TestWatch { watch: watch.clone(), faults: self.faults.clone(), generation, ended: false };
        let faults = self.faults.clone();
        Ok(Watch::new(items, move || {
            if !faults.lock().old {
                watch.lock().request_progress();
            }
        }))
    }

    async fn current_revision(&self) -> Result<Revision, ReadError> {
        self.up()?;
        self.inner.current_revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<(), ReadError> {
        self.inner.compact(revision).await
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { progress_requests: !self.faults.lock().old }
    }

    async fn health(&self) -> Result<(), StoreFault> {
        self.up()
    }

    async fn stats(&self) -> Result<StoreStats, StoreFault> {
        self.inner.stats().await
    }
}

struct TestWatch {
    watch: Arc<Mutex<Watch>>,
    faults: Arc<Mutex<Faults>>,
    generation: u64,
    ended: bool,
}

impl Stream for TestWatch {
    type Item = WatchItem;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchItem>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let forgetful;
        {
            let mut faults = self.faults.lock();
            let ending = faults.ending.clone().filter(|_| faults.generation > self.generation);
            faults.wakers.push(cx.waker().clone());
            let (held, broken) = (faults.held, faults.broken);
            forgetful = faults.forgetful;
            drop(faults);
            assert!(!broken, "the store is broken, as the test wants it");
            if let Some(ending) = ending {
                self.ended = true;
                return Poll::Ready(Some(ending));
            }
            if held {
                return Poll::Pending;
            }
        }
        let watch = self.watch.clone();
        let mut watch = watch.lock();
        let mut item = Pin::new(&mut *watch).poll_next(cx);
        if forgetful && let Poll::Ready(Some(WatchItem::Event(event))) = &mut item {
            let (StoreEvent::Put { previous, .. } | StoreEvent::Delete { previous, .. }) = event;
            *previous = None;
        }
        item
    }
}
