//! Fault injection: [`FaultyStorage`] wraps the store between the servers and the memory store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::KeyValue;
use listwatch_storage::{
    Capabilities, CreateError, DeleteError, ListPage, ListQuery, MemoryStorage, ReadError, Storage, StoreFault,
    StoreStats, UpdateError, Watch, WatchError, WatchItem,
};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// The rate of each fault in a run. A run usually has only some kinds of faults (swarm testing).
#[derive(Debug, Clone)]
pub struct Faults {
    /// Probability that a read fails.
    pub refuse_reads: f64,
    /// Approximate number of items after which a store watch is lost; 0 for never.
    pub watch_lost_after: usize,
    /// Probability that a write is followed by a compaction near the latest revision.
    pub compact: f64,
    /// Longest delay of a store call, in virtual milliseconds.
    pub delay_ms_max: u64,
    healed: Arc<AtomicBool>,
}

impl Faults {
    /// Draws the faults of a run.
    pub fn draw(rng: &mut StdRng) -> Self {
        let mut sometimes = |value: f64| if rng.random_bool(0.5) { value } else { 0.0 };
        Faults {
            refuse_reads: sometimes(0.1),
            watch_lost_after: sometimes(40.0) as usize,
            compact: sometimes(0.05),
            delay_ms_max: sometimes(30.0) as u64,
            healed: Arc::default(),
        }
    }

    /// Stops all faults.
    pub fn heal(&self) {
        self.healed.store(true, Ordering::Relaxed);
    }

    /// Whether faults are still injected.
    pub fn active(&self) -> bool {
        !self.healed.load(Ordering::Relaxed)
    }
}

/// A store that fails, delays and loses watches, but never returns wrong data.
pub struct FaultyStorage {
    inner: Arc<MemoryStorage>,
    faults: Faults,
    rng: Mutex<StdRng>,
}

impl FaultyStorage {
    /// Wraps a store.
    pub fn new(inner: Arc<MemoryStorage>, faults: Faults, seed: u64) -> Arc<Self> {
        Arc::new(FaultyStorage { inner, faults, rng: Mutex::new(StdRng::seed_from_u64(seed)) })
    }

    async fn delay(&self) {
        if self.faults.delay_ms_max > 0 && self.faults.active() {
            let ms = self.rng.lock().random_range(0..=self.faults.delay_ms_max);
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }

    async fn inject_fault(&self) -> Result<(), StoreFault> {
        self.delay().await;
        if self.faults.active() && self.rng.lock().random_bool(self.faults.refuse_reads) {
            return Err(StoreFault::Unavailable("injected".to_owned()));
        }
        Ok(())
    }
}

#[async_trait]
impl Storage for FaultyStorage {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        self.inject_fault().await?;
        self.inner.get(key).await
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        self.inject_fault().await?;
        self.inner.list(query).await
    }

    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        self.delay().await;
        self.inner.create(key, value, ttl).await
    }

    async fn update(
        &self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, UpdateError> {
        self.delay().await;
        self.inner.update(key, expected, value, ttl).await
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
        self.delay().await;
        self.inner.delete(key, expected).await
    }

    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
        self.inject_fault().await?;
        let (items, progress) = self.inner.watch(range, after).await?.into_parts();
        let budget = match self.faults.watch_lost_after {
            0 => usize::MAX,
            about => self.rng.lock().random_range(1..=about * 2),
        };
        let faults = self.faults.clone();
        let items = items.enumerate().scan(false, move |ended, (position, item)| {
            // No item follows a lost watch.
            if *ended {
                return std::future::ready(None);
            }
            let item = if position >= budget && faults.active() {
                WatchItem::Lost(StoreFault::Unavailable("injected".to_owned()))
            } else {
                item
            };
            *ended = matches!(item, WatchItem::Lost(_) | WatchItem::Expired { .. });
            std::future::ready(Some(item))
        });
        Ok(Watch::new(items, progress))
    }

    async fn current_revision(&self) -> Result<Revision, ReadError> {
        self.inject_fault().await?;
        self.inner.current_revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<(), ReadError> {
        self.inner.compact(revision).await
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn health(&self) -> Result<(), StoreFault> {
        Ok(())
    }

    async fn stats(&self) -> Result<StoreStats, StoreFault> {
        self.inner.stats().await
    }
}
