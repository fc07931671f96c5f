//! [`Feed`]: a store that generates the listed objects and delivers the given changes. A benchmark
//! with a feed measures the cache and not a store.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use listwatch_cacher::{Cacher, Limits, ResourceConfig};
use listwatch_meta::{Key, KeyRange, ObjectShape, Revision};
use listwatch_storage::{
    Capabilities, CreateError, DeleteError, KeyValue, ListPage, ListQuery, ReadError, Storage, StoreEvent, StoreFault,
    StoreStats, UpdateError, Watch, WatchError, WatchItem,
};

/// Creates the value of an object from its number.
pub type MakeValue = fn(usize) -> Vec<u8>;

/// A store that generates the listed objects and delivers the given changes. Object number `n` was
/// written at revision `n + 2`.
pub struct Feed {
    objects: usize,
    value: MakeValue,
    queue: Arc<Mutex<Queue>>,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<WatchItem>,
    waker: Option<Waker>,
}

impl Feed {
    /// A store that lists this number of objects.
    pub fn new(objects: usize, value: MakeValue) -> Arc<Self> {
        Arc::new(Feed { objects, value, queue: Arc::default() })
    }

    /// The revision of the list.
    pub fn listed(&self) -> Revision {
        Revision::new(self.objects as u64 + 1)
    }

    /// Delivers these items to the watch.
    ///
    /// # Panics
    /// Never: no code panics while it holds the lock.
    pub fn push(&self, items: impl IntoIterator<Item = WatchItem>) {
        let mut queue = self.queue.lock().expect("no thread panics while it holds the lock");
        queue.items.extend(items);
        if let Some(waker) = queue.waker.take() {
            waker.wake();
        }
    }

    /// An update of object `n` at a revision.
    pub fn update(&self, n: usize, revision: u64, value: Bytes) -> WatchItem {
        let entry =
            |modified, value| KeyValue { key: crate::key(n), value, created: Revision::new(1), modified, stale: false };
        let previous = Some(entry(Revision::new(1), Bytes::new()));
        WatchItem::Event(StoreEvent::Put { current: entry(Revision::new(revision), value), previous })
    }
}

/// A loaded cache of a [`Feed`] with indexes on these fields.
///
/// # Panics
/// If the cache cannot be loaded.
pub async fn fed(feed: &Arc<Feed>, shape: Arc<ObjectShape>, indexed: &[&str]) -> Cacher {
    let config = ResourceConfig {
        name: "configmaps".to_owned(),
        prefix: "configmaps".to_owned(),
        shape,
        indexed_fields: indexed.iter().map(|field| (*field).to_owned()).collect(),
        limits: Limits { audit_interval: None, ready_wait: Duration::from_secs(60), ..Limits::default() },
    };
    let cacher = Cacher::start(feed.clone(), config);
    cacher.wait_ready().await.expect("the cache fills");
    cacher
}

struct Items(Arc<Mutex<Queue>>);

impl Stream for Items {
    type Item = WatchItem;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchItem>> {
        let mut queue = self.0.lock().expect("no thread panics while it holds the lock");
        match queue.items.pop_front() {
            Some(item) => Poll::Ready(Some(item)),
            None => {
                queue.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

const READ_ONLY: &str = "a feed takes no writes";

#[async_trait]
impl Storage for Feed {
    async fn get(&self, _: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        Ok((None, self.listed()))
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        // The keys are ordered by namespace, the numbers are not. Sorting is cheap enough.
        let mut keys: Vec<(Key, usize)> = (0..self.objects).map(|n| (crate::key(n), n)).collect();
        keys.sort();
        let from = keys.partition_point(|(key, _)| key.as_str() < query.range.start());
        let to = if query.limit == 0 { keys.len() } else { keys.len().min(from + query.limit) };
        let entry = |(key, n): &(Key, usize)| {
            let revision = Revision::new(*n as u64 + 2);
            KeyValue {
                key: key.clone(),
                value: (self.value)(*n).into(),
                created: revision,
                modified: revision,
                stale: false,
            }
        };
        Ok(ListPage {
            items: keys[from..to].iter().map(entry).collect(),
            revision: self.listed(),
            more: to < keys.len(),
            remaining: None,
        })
    }

    async fn create(&self, _: &Key, _: Bytes, _: Option<Duration>) -> Result<Revision, CreateError> {
        Err(StoreFault::Unavailable(READ_ONLY.to_owned()).into())
    }

    async fn update(&self, _: &Key, _: Revision, _: Bytes, _: Option<Duration>) -> Result<Revision, UpdateError> {
        Err(StoreFault::Unavailable(READ_ONLY.to_owned()).into())
    }

    async fn delete(&self, _: &Key, _: Revision) -> Result<Revision, DeleteError> {
        Err(StoreFault::Unavailable(READ_ONLY.to_owned()).into())
    }

    async fn watch(&self, _: KeyRange, _: Revision) -> Result<Watch, WatchError> {
        Ok(Watch::new(Items(self.queue.clone()), || ()))
    }

    async fn current_revision(&self) -> Result<Revision, ReadError> {
        Ok(self.listed())
    }

    async fn compact(&self, _: Revision) -> Result<(), ReadError> {
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { progress_requests: false }
    }

    async fn health(&self) -> Result<(), StoreFault> {
        Ok(())
    }

    async fn stats(&self) -> Result<StoreStats, StoreFault> {
        Ok(StoreStats { description: "feed".to_owned(), revision: self.listed(), ..StoreStats::default() })
    }
}
