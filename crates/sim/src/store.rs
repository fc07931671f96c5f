//! [`FaultyStore`]: the store of the simulation, with the faults of an etcd cluster.
//!
//! ```text
//!  server ──▶ FaultyStore ──▶ MemoryStorage       every applied write of a ConfigMap ──▶ trace (the truth)
//!              delays, refuses, forgets answers;
//!              watches lag, end and lose their leader
//! ```
//!
//! The true history is recorded when writes are applied, not by a watch of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{Stream, stream};
use listwatch_history::{Change, Compaction, Record};
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::{
    Capabilities, CreateError, DeleteError, KeyValue, ListPage, ListQuery, MemoryStorage, ReadError, Retention,
    Storage, StoreFault, StoreStats, UpdateError, Watch, WatchError, WatchItem,
};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::objects::state_of_json;
use crate::plan::{FaultKind, Plan};
use crate::trace::Recorder;

/// The resource whose changes are recorded.
const RECORDED: &str = "/configmaps/";

/// Probability that a call is refused.
const REFUSAL: f64 = 0.05;

/// Probability that a write is ambiguous.
const AMBIGUITY: f64 = 0.08;

/// Probability that a watch of a lagging member pauses before an item.
const LAG: f64 = 0.2;

/// The store of the simulation. Clones share the store.
#[derive(Clone)]
pub(crate) struct FaultyStore {
    inner: Arc<Inner>,
}

struct Inner {
    memory: Arc<MemoryStorage>,
    plan: Plan,
    recorder: Recorder,
    rng: Mutex<StdRng>,
    is_healed: AtomicBool,
    /// The term of the leader. Watches end when it changes.
    term: watch::Sender<u64>,
    /// The time until which the store has no leader.
    leaderless_until: Mutex<Instant>,
    /// The number of writes that were answered with an error and will be applied later.
    pending: AtomicU64,
}

/// A write, with the expected revision of the key.
enum Write {
    Create(Bytes, Option<Duration>),
    Update(Revision, Bytes, Option<Duration>),
    Delete(Revision),
}

/// The result of a write on the store in memory.
enum Written {
    Create(Result<Revision, CreateError>),
    Update(Result<Revision, UpdateError>),
    Delete(Result<Revision, DeleteError>),
}

impl FaultyStore {
    pub(crate) fn new(plan: &Plan, recorder: &Recorder) -> Self {
        // The store retains everything. It compacts only when a fault requests it.
        let retention = Retention { age: Duration::MAX, revisions: u64::MAX, bytes: u64::MAX };
        let inner = Inner {
            memory: MemoryStorage::with_retention(retention),
            plan: plan.clone(),
            recorder: recorder.clone(),
            rng: Mutex::new(StdRng::seed_from_u64(plan.seed ^ 0x5707e)),
            is_healed: AtomicBool::new(false),
            term: watch::Sender::new(1),
            leaderless_until: Mutex::new(Instant::now()),
            pending: AtomicU64::new(0),
        };
        FaultyStore { inner: Arc::new(inner) }
    }

    /// Ends all faults.
    pub(crate) fn heal(&self) {
        self.inner.is_healed.store(true, Ordering::Relaxed);
        *self.inner.leaderless_until.lock() = Instant::now();
    }

    /// Whether no write remains that was answered with an error and will be applied later.
    pub(crate) fn is_settled(&self) -> bool {
        self.inner.pending.load(Ordering::Relaxed) == 0
    }

    /// The revision of the store, without faults.
    pub(crate) async fn head(&self) -> u64 {
        self.inner.memory.current_revision().await.map_or(0, Revision::get)
    }

    /// Ends all watches, and leaves the store without a leader for `time`.
    pub(crate) fn lose_leader(&self, time: Duration) {
        self.inner.recorder.note(format!("the store has no leader for {time:?}"));
        *self.inner.leaderless_until.lock() = Instant::now() + time;
        self.inner.term.send_modify(|term| *term += 1);
    }

    /// Compacts the history up to `keep` revisions before the latest.
    pub(crate) async fn forget(&self, keep: u64) {
        let oldest = self.head().await.saturating_sub(keep).max(1);
        let _ = self.compact(Revision::new(oldest)).await;
    }

    fn has(&self, kind: FaultKind) -> bool {
        self.inner.plan.has(kind) && !self.inner.is_healed.load(Ordering::Relaxed)
    }

    fn draw(&self, kind: FaultKind, probability: f64) -> bool {
        self.has(kind) && self.inner.rng.lock().random_bool(probability)
    }

    async fn delay(&self) {
        if self.has(FaultKind::StoreDelay) {
            let ms = self.inner.rng.lock().random_range(0..=30);
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }

    /// Injects the faults of a call before its effect: a delay, a missing leader or a refusal.
    async fn arrive(&self) -> Result<(), StoreFault> {
        self.delay().await;
        let until = *self.inner.leaderless_until.lock();
        if until > Instant::now() {
            tokio::time::sleep_until(until).await;
            return Err(unavailable("no leader"));
        }
        if self.draw(FaultKind::StoreRefusal, REFUSAL) {
            return Err(unavailable("refused"));
        }
        Ok(())
    }

    /// Applies a write, and records its change before any other task runs.
    async fn apply(&self, key: &Key, write: Write) -> Written {
        let memory = &self.inner.memory;
        let (written, value) = match write {
            Write::Create(value, ttl) => (Written::Create(memory.create(key, value.clone(), ttl).await), Some(value)),
            Write::Update(expected, value, ttl) => {
                (Written::Update(memory.update(key, expected, value.clone(), ttl).await), Some(value))
            }
            Write::Delete(expected) => (Written::Delete(memory.delete(key, expected).await), None),
        };
        let revision = match &written {
            Written::Create(Ok(revision)) | Written::Update(Ok(revision)) | Written::Delete(Ok(revision)) => *revision,
            _ => return written,
        };
        if key.as_str().starts_with(RECORDED) {
            self.inner.recorder.record(Record::Change(Change {
                revision: revision.get(),
                object: format!("{}/{}", key.namespace(), key.name()),
                state: value.map(|value| state_of_json(&value)),
            }));
        }
        written
    }

    /// Applies a write with faults. Returns an error if the call is refused or the answer is lost.
    async fn write(&self, key: &Key, write: Write) -> Result<Written, StoreFault> {
        self.arrive().await?;
        if self.draw(FaultKind::AmbiguousWrite, AMBIGUITY) {
            let delay = {
                let mut rng = self.inner.rng.lock();
                if rng.random_bool(0.3) { Duration::ZERO } else { Duration::from_millis(rng.random_range(0..400)) }
            };
            self.inner.recorder.note(format!("the store does not answer a write of {key}, applied after {delay:?}"));
            if delay.is_zero() {
                self.apply(key, write).await;
            } else {
                let (store, key) = (self.clone(), key.clone());
                self.inner.pending.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    store.apply(&key, write).await;
                    store.inner.pending.fetch_sub(1, Ordering::Relaxed);
                });
            }
            return Err(unavailable("the answer is lost"));
        }
        let written = self.apply(key, write).await;
        self.delay().await;
        Ok(written)
    }

    /// Adds faults to a watch.
    fn faulty(&self, watch: Watch) -> Watch {
        let (items, progress) = watch.into_parts();
        let remaining = match self.has(FaultKind::StoreWatchLost) {
            true => self.inner.rng.lock().random_range(1..=60),
            false => usize::MAX,
        };
        let term = self.inner.term.subscribe();
        let state = WatchState { store: self.clone(), items, term, remaining, has_ended: false };
        Watch::new(follow(state), progress)
    }
}

struct WatchState<S> {
    store: FaultyStore,
    items: S,
    term: watch::Receiver<u64>,
    remaining: usize,
    has_ended: bool,
}

fn follow<S: Stream<Item = WatchItem> + Send + Unpin + 'static>(
    state: WatchState<S>,
) -> impl Stream<Item = WatchItem> + Send + 'static {
    use futures_util::StreamExt as _;
    stream::unfold(state, |mut state| async move {
        if state.has_ended {
            return None;
        }
        let item = tokio::select! {
            biased;
            _ = state.term.changed() => Some(WatchItem::Lost(unavailable("the leader is lost"))),
            item = state.items.next() => item,
        };
        let item = item?;
        if state.store.draw(FaultKind::LaggingMember, LAG) {
            // The items behind this one wait, too, and are then delivered without a pause.
            let ms = state.store.inner.rng.lock().random_range(0..300);
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        state.remaining = state.remaining.saturating_sub(1);
        let is_lost = state.remaining == 0 && state.store.has(FaultKind::StoreWatchLost);
        let item = if is_lost { WatchItem::Lost(unavailable("the stream is lost")) } else { item };
        state.has_ended = matches!(item, WatchItem::Lost(_) | WatchItem::Expired { .. });
        Some((item, state))
    })
    .boxed()
}

fn unavailable(why: &str) -> StoreFault {
    StoreFault::Unavailable(format!("injected: {why}"))
}

#[async_trait]
impl Storage for FaultyStore {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        self.arrive().await?;
        let found = self.inner.memory.get(key).await;
        self.delay().await;
        found
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        self.arrive().await?;
        let page = self.inner.memory.list(query).await;
        self.delay().await;
        page
    }

    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        match self.write(key, Write::Create(value, ttl)).await? {
            Written::Create(created) => created,
            _ => Err(unavailable("another write was applied").into()),
        }
    }

    async fn update(
        &self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, UpdateError> {
        match self.write(key, Write::Update(expected, value, ttl)).await? {
            Written::Update(updated) => updated,
            _ => Err(unavailable("another write was applied").into()),
        }
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
        match self.write(key, Write::Delete(expected)).await? {
            Written::Delete(deleted) => deleted,
            _ => Err(unavailable("another write was applied").into()),
        }
    }

    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
        self.arrive().await?;
        Ok(self.faulty(self.inner.memory.watch(range, after).await?))
    }

    async fn current_revision(&self) -> Result<Revision, ReadError> {
        self.arrive().await?;
        let revision = self.inner.memory.current_revision().await;
        self.delay().await;
        revision
    }

    async fn compact(&self, revision: Revision) -> Result<(), ReadError> {
        let at = self.inner.recorder.now();
        self.inner.recorder.record(Record::Compaction(Compaction { at, revision: revision.get() }));
        self.inner.memory.compact(revision).await
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.memory.capabilities()
    }

    async fn health(&self) -> Result<(), StoreFault> {
        Ok(())
    }

    async fn stats(&self) -> Result<StoreStats, StoreFault> {
        self.inner.memory.stats().await
    }
}
