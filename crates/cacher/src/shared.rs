//! The state shared by the driver, the handles and the watchers of one cache ([`Shared`]): the plain values of the
//! core, each with its own lock.
//!
//! | lock | held for | by |
//! |---|---|---|
//! | `cache` (read) | the clone of a snapshot, a read of 64 events | lists, lagging watchers |
//! | `cache` (write) | a burst of events, about a microsecond each | the driver |
//! | `hub` | one event to all its watchers; a watcher's start, attachment and end | the driver, watchers |
//! | `hub` | each mailbox once: to close all watches; every 5 s for eviction, while any is detached | the driver, a stop |
//! | `hub` | the due timers; a clone of every handle | the driver; statistics |
//! | a mailbox | one push or one pop | the driver, its watcher |
//! | `freshness`, `pins`, `store_history` | a map operation | reads, the driver |
//!
//! So a starting watcher waits for one event's dispatch, or rarely for one pass over all watchers.
//! If two locks are needed, the order is `hub`, then a mailbox; or `cache`, then `store_history`. No lock is held across an `await`
//! or while a waker is called. A list never waits for a dispatch, because it takes a snapshot.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;
use std::time::Instant;

use listwatch_meta::{FieldSelector, LabelSelector, Revision, ShardSelector, Status, canary};
use listwatch_storage::{Storage, StoreFault};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, oneshot, watch};

use crate::cache::Cache;
use crate::error::ReadError;
use crate::filter::{Filter, Scope};
use crate::freshness::{Freshness, Ticket};
use crate::handle::ResourceConfig;
use crate::hub::Hub;
use crate::offered::OfferedObjects;
use crate::pins::Pins;
use crate::readiness::Readiness;
use crate::snapshot::Snapshot;
use crate::stats::{CacherStats, Counters, WatcherStats};
use crate::store_history::StoreHistory;
use crate::watcher::{Mailbox, Phase};

/// A mailbox, shared by the hub and its watcher.
pub(crate) type Cell = Arc<Mutex<Mailbox>>;

pub(crate) struct Shared {
    pub(crate) config: ResourceConfig,
    /// The positions of the indexed fields in the shape.
    pub(crate) indexed: Vec<usize>,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) cache: RwLock<Cache>,
    pub(crate) hub: Mutex<Hub<Cell>>,
    pub(crate) freshness: Mutex<Freshness<oneshot::Sender<()>>>,
    pub(crate) pins: Mutex<Pins>,
    /// Objects of writes whose events have not arrived.
    pub(crate) offered: OfferedObjects,
    pub(crate) readiness: watch::Sender<Readiness>,
    /// The revisions of the store, to detect those of a history before a restore.
    pub(crate) store_history: Mutex<StoreHistory>,
    /// Whether the state does not continue in the store, and a new one is being listed.
    pub(crate) relisting: watch::Sender<bool>,
    /// Wakes the driver after a change that affects its timers.
    pub(crate) kick: Notify,
    /// Notified when the cache is stopped.
    pub(crate) stopped: Notify,
}

impl Shared {
    pub(crate) fn new(storage: Arc<dyn Storage>, config: ResourceConfig) -> Self {
        let indexed = config.indexed();
        let counters = Arc::new(Counters::default());
        let cache = Cache::new(config.shape.clone(), indexed.clone(), config.limits.clone(), counters.clone());
        let since = now();
        Shared {
            cache: RwLock::new(cache),
            hub: Mutex::new(Hub::new(&indexed)),
            freshness: Mutex::new(Freshness::new()),
            pins: Mutex::new(Pins::new(config.limits.pinned_snapshots_max)),
            offered: OfferedObjects::default(),
            readiness: watch::Sender::new(Readiness::Pending { since, cause: None }),
            store_history: Mutex::default(),
            relisting: watch::Sender::new(false),
            kick: Notify::new(),
            stopped: Notify::new(),
            config,
            indexed,
            storage,
            counters,
        }
    }

    pub(crate) fn filter(
        &self,
        scope: &Scope,
        labels: &LabelSelector,
        fields: &FieldSelector,
        shard: Option<&ShardSelector>,
    ) -> Arc<Filter> {
        let ResourceConfig { prefix, shape, .. } = &self.config;
        Arc::new(Filter::new(prefix, shape, &self.indexed, scope, labels.clone(), fields).sharded(shard))
    }

    pub(crate) fn revision(&self) -> Revision {
        self.cache.read().revision()
    }

    /// The current state and its revision.
    pub(crate) fn current(&self) -> (Snapshot, Revision) {
        let cache = self.cache.read();
        (cache.snapshot().clone(), cache.revision())
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(*self.readiness.borrow(), Readiness::Ready(_))
    }

    pub(crate) fn is_stopped(&self) -> bool {
        *self.readiness.borrow() == Readiness::Stopped
    }

    /// Waits without a limit until the cache is filled.
    pub(crate) async fn filled(&self) -> Result<(), ReadError> {
        if self.is_ready() {
            return Ok(());
        }
        let mut readiness = self.readiness.subscribe();
        let settled = readiness.wait_for(|state| !matches!(state, Readiness::Pending { .. })).await;
        match settled.as_deref() {
            Ok(Readiness::Ready(_)) => Ok(()),
            _ => Err(StoreFault::Closed.into()),
        }
    }

    /// Waits until the cache is filled, for at most [`Limits::ready_wait`](crate::Limits::ready_wait).
    pub(crate) async fn filled_in_time(&self) -> Result<(), ReadError> {
        if let Some(filled) = in_time(self.config.limits.ready_wait, self.filled()).await {
            return filled;
        }
        Err(match &*self.readiness.borrow() {
            Readiness::Pending { since, cause } => ReadError::NotReady {
                retry_after_seconds: Readiness::retry_after_seconds(*since, now()),
                cause: cause.clone(),
            },
            Readiness::Ready(_) => return Ok(()),
            Readiness::Stopped => StoreFault::Closed.into(),
        })
    }

    /// Whether the state may belong to a history that the store no longer has.
    pub(crate) fn is_relisting(&self) -> bool {
        *self.relisting.borrow()
    }

    /// Waits until the state is one of the store's present history, for at most
    /// [`Limits::ready_wait`](crate::Limits::ready_wait).
    pub(crate) async fn relisted_in_time(&self) -> Result<(), ReadError> {
        if !self.is_relisting() {
            return Ok(());
        }
        let mut relisting = self.relisting.subscribe();
        let relisted = relisting.wait_for(|relisting| !*relisting);
        if in_time(self.config.limits.ready_wait, relisted).await.is_none() {
            return Err(Self::relisting_error());
        }
        if self.is_stopped() { Err(StoreFault::Closed.into()) } else { Ok(()) }
    }

    /// The error of a consistent read while the state may belong to a history that the store no longer has.
    pub(crate) fn relisting_error() -> ReadError {
        ReadError::NotReady { retry_after_seconds: 1, cause: Some("the store is being listed again".to_owned()) }
    }

    /// The current revision of the store.
    pub(crate) async fn store_revision(&self) -> Result<Revision, ReadError> {
        let history = self.store_history.lock().id();
        let revision = self.storage.current_revision().await.map_err(ReadError::from_store)?;
        self.store_history.lock().handle_revision(history, revision);
        Ok(revision)
    }

    /// Waits until the cache has reached `revision`, for at most
    /// [`Limits::freshness_wait`](crate::Limits::freshness_wait).
    ///
    /// # Errors
    /// [`ReadError::TooLarge`] after the wait.
    pub(crate) async fn reach(&self, revision: Revision) -> Result<(), ReadError> {
        if self.revision() >= revision {
            return Ok(());
        }
        let (sender, receiver) = oneshot::channel();
        let Some(ticket) = self.freshness.lock().handle_wait(now(), revision, sender) else { return Ok(()) };
        self.kick.notify_one();
        let _waiting = WaitGuard { shared: self, ticket };
        let reached = in_time(self.config.limits.freshness_wait, receiver).await;
        if matches!(reached, Some(Ok(()))) {
            return Ok(());
        }
        if self.is_stopped() {
            return Err(StoreFault::Closed.into());
        }
        Err(ReadError::TooLarge { requested: revision, current: self.revision(), retry_after_seconds: 1 })
    }

    /// Returns the state at `revision` or later, waiting as in [`Shared::reach`].
    ///
    /// # Errors
    /// [`ReadError::TooLarge`] after the wait, or if an older state replaced the reached state meanwhile.
    pub(crate) async fn current_since(&self, revision: Revision) -> Result<(Snapshot, Revision), ReadError> {
        if canary!("cacher-lists-without-waiting") {
            return Ok(self.current());
        }
        self.reach(revision).await?;
        let (snapshot, current) = self.current();
        Self::check_reached(revision, current)?;
        Ok((snapshot, current))
    }

    /// Checks that the state that was read has the awaited revision. The store, and with it the
    /// cache, may have been restored to an older state after the wait.
    pub(crate) fn check_reached(requested: Revision, current: Revision) -> Result<(), ReadError> {
        if current < requested {
            return Err(ReadError::TooLarge { requested, current, retry_after_seconds: 1 });
        }
        Ok(())
    }

    /// Stops the cache: watchers get the last status (`None` for a clean end) and reads fail.
    pub(crate) fn stop(&self, last_status: Option<&Status>) {
        if matches!(self.readiness.send_replace(Readiness::Stopped), Readiness::Stopped) {
            return;
        }
        self.close_watchers(|_| last_status.cloned());
        *self.freshness.lock() = Freshness::new();
        self.relisting.send_replace(false);
        self.stopped.notify_one();
    }

    /// Closes every current watch.
    pub(crate) fn close_watchers(&self, last_status: impl Fn(&Mailbox) -> Option<Status>) {
        let (mut wakers, mut unneeded) = (Vec::new(), Vec::new());
        {
            let mut hub = self.hub.lock();
            let dispatched = hub.dispatched();
            hub.for_each(|cell| {
                let mut mailbox = cell.lock();
                let last_status = last_status(&mailbox);
                unneeded.extend(mailbox.handle_close(last_status, dispatched));
                wakers.extend(mailbox.take_waker());
            });
            hub.handle_reset();
        }
        self.wake(&mut wakers);
    }

    /// Wakes watchers; the caller must not hold a lock.
    pub(crate) fn wake(&self, wakers: &mut Vec<Waker>) {
        self.counters.wake_ups.fetch_add(wakers.len() as u64, Relaxed);
        wakers.drain(..).for_each(Waker::wake);
    }

    /// The status for a watcher whose position was evicted; `seen` is the last revision that the watcher has received.
    pub(crate) fn expired(&self, seen: Revision, floor: Revision) -> Status {
        self.counters.expired.fetch_add(1, Relaxed);
        Status::expired_watch(seen.get(), floor.get())
    }

    pub(crate) fn stats(&self) -> CacherStats {
        let now = now();
        let watchers = self.watcher_stats(now);
        let readiness = self.readiness.borrow().clone();
        let pinned_snapshots = self.pins.lock().len();
        let waiting_reads = self.freshness.lock().len();
        let cache = self.cache.read();
        let history = cache.history();
        let Counters {
            received,
            queued,
            caught_up,
            initial,
            bookmarks,
            wake_ups,
            encodes,
            encodings_bytes,
            replays,
            open_walks,
            overflows,
            expired,
            started,
            cache_lists,
            store_lists,
            fallbacks,
            rebuilt,
            progress_requests,
            resumed,
            repeated,
            audits,
            mismatches,
            failed_audits,
        } = &*self.counters;
        CacherStats {
            name: self.config.name.clone(),
            ready: matches!(readiness, Readiness::Ready(_)),
            generation: if let Readiness::Ready(generation) = readiness { generation } else { 0 },
            revision: cache.revision(),
            objects: cache.snapshot().len(),
            object_bytes: cache.object_bytes(),
            history_events: history.len(),
            history_bytes: history.bytes(),
            history_span: history.span(now),
            oldest: history.floor(),
            pinned_snapshots,
            watchers,
            waiting_reads,
            events_received: received.load(Relaxed),
            events_queued: queued.load(Relaxed),
            events_caught_up: caught_up.load(Relaxed),
            replays: replays.load(Relaxed),
            initial_events: initial.load(Relaxed),
            open_walks: open_walks.load(Relaxed),
            bookmarks: bookmarks.load(Relaxed),
            wake_ups: wake_ups.load(Relaxed),
            encodings: encodes.load(Relaxed),
            encodings_bytes: encodings_bytes.load(Relaxed),
            overflows: overflows.load(Relaxed),
            expired_watches: expired.load(Relaxed),
            watches_started: started.load(Relaxed),
            cache_lists: cache_lists.load(Relaxed),
            store_lists: store_lists.load(Relaxed),
            consistent_fallbacks: fallbacks.load(Relaxed),
            rebuilt_snapshots: rebuilt.load(Relaxed),
            progress_requests: progress_requests.load(Relaxed),
            resumed_watches: resumed.load(Relaxed),
            repeated_events: repeated.load(Relaxed),
            undecodable: cache.undecodable().take(crate::limits::UNDECODABLE_KEYS_MAX).cloned().collect(),
            audits: audits.load(Relaxed),
            audit_mismatches: mismatches.load(Relaxed),
            failed_audits: failed_audits.load(Relaxed),
        }
    }

    fn watcher_stats(&self, now: Instant) -> WatcherStats {
        let mut cells = Vec::new();
        self.hub.lock().for_each(|cell| cells.push(cell.clone()));
        let mut stats = WatcherStats::default();
        let mut slowest: Option<u64> = None;
        for cell in cells {
            let mailbox = cell.lock();
            match mailbox.phase() {
                Phase::Replay => stats.replaying += 1,
                Phase::Live => stats.live += 1,
                Phase::Lagging => stats.lagging += 1,
                Phase::Closed => stats.closed += 1,
            }
            if let Some(position) = mailbox.position() {
                slowest = Some(slowest.map_or(position, |slowest| slowest.min(position)));
            }
        }
        let cache = self.cache.read();
        let history = cache.history();
        // An evicted position counts as the oldest one that is held.
        if let Some(event) = slowest.and_then(|position| history.get(position.max(history.window_start().start))) {
            stats.slowest_lag_revisions = cache.revision().get() - event.revision().previous().get();
            stats.slowest_lag = now.saturating_duration_since(event.at);
        }
        stats
    }
}

/// A waiting read; leaves the queue when the client drops it.
struct WaitGuard<'a> {
    shared: &'a Shared,
    ticket: Ticket,
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.shared.freshness.lock().handle_cancel(self.ticket);
    }
}

async fn in_time<F: Future>(limit: std::time::Duration, future: F) -> Option<F::Output> {
    tokio::time::timeout(limit, future).await.ok()
}

/// The current time on tokio's clock, which tests can pause.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use listwatch_meta::ObjectShape;
    use listwatch_storage::MemoryStorage;

    use super::*;
    use crate::cache::Input;
    use crate::limits::Limits;

    #[tokio::test(start_paused = true)]
    async fn read_is_not_answered_with_a_state_older_than_its_revision() {
        let config = ResourceConfig {
            name: "pods".to_owned(),
            prefix: "pods".to_owned(),
            shape: Arc::new(ObjectShape::new(true, Vec::new())),
            indexed_fields: Vec::new(),
            limits: Limits::default(),
        };
        let shared = Shared::new(MemoryStorage::new(), config);
        let r = Revision::new;
        shared.cache.write().handle_input(now(), Input::Progress(r(5)), &mut Vec::new());
        // A waiter was released at 9; then the store, and with it the cache, was restored to 5.
        assert!(shared.freshness.lock().handle_revision(r(9)).is_empty());
        let revision = |state: Result<(Snapshot, Revision), ReadError>| state.map(|(_, revision)| revision);
        assert_eq!(revision(shared.current_since(r(5)).await), Ok(r(5)));
        let too_large = ReadError::TooLarge { requested: r(8), current: r(5), retry_after_seconds: 1 };
        assert_eq!(revision(shared.current_since(r(8)).await), Err(too_large));
    }
}
