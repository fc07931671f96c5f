//! The driver of the core: one task per cache. The task lists and watches the store, passes the results to the core,
//! and dispatches the core's events.
//!
//! ```text
//!              ┌────────────── failed: wait ───────────────┐
//!              ▼                                           │
//!   start ─▶ list ──▶ watch after the last revision ──▶ serve bursts, timers, audits
//!              ▲              ▲                            │ │ │
//!              │              └──── Lost: wait, resume ────┘ │ │
//!              └──── Expired: list again, start over ────────┘ │
//!              └──── audit found a difference: start over ─────┘
//! ```
//!
//! Until the list after an expiry or a difference is complete, consistent lists are served from the store, and
//! consistent watches wait: the state may be one of a history that the store no longer has.
//!
//! # The initial list reads a former revision
//!
//! A cache that lists the latest state has no history. A watch from an hour-old version that the store still holds
//! would end with `410 Expired`. After a restart, every watch of every client would end this way. So the initial list
//! reads a former revision, as old as the store and
//! [`Limits::history_refill_revisions_max`](crate::Limits::history_refill_revisions_max) allow. The store's watch then
//! delivers all later changes, which fill the history window.
//!
//! The cache is ready at the revision that was current when the driver started. So no read returns a state older than
//! its request. In three cases the cache lists the latest state instead, and its window begins there. The refill takes
//! longer than [`HISTORY_REFILL_WAIT`], the store compacts the former revision meanwhile, or the store cannot report
//! progress.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use futures_core::Stream;
use listwatch_meta::{KeyRange, Revision, Status, canary};
use listwatch_storage::{ListQuery, ReadError, StoreFault, Watch, WatchItem};
use tokio::sync::oneshot;

use crate::audit::{self, AuditResult};
use crate::cache::{Input, Listing, Relist};
use crate::delivery::SharedEvent;
use crate::hub::Due;
use crate::limits::{
    BURST_EVENTS_MAX, EVICTION_PAUSE, HISTORY_REFILL_WAIT, HOUSEKEEPING_INTERVAL, IDLE_PROGRESS_INTERVAL, RETRY_MAX,
    RETRY_MIN,
};
use crate::readiness::Readiness;
use crate::shared::{Shared, now};
use crate::watcher::Push;

/// Runs a cache until it is stopped or its store is closed.
pub(crate) async fn run(shared: Arc<Shared>) {
    // A panic of this task must still end its watchers with an error.
    let _stop = StopOnDrop(shared.clone());
    let first_audit = shared.config.limits.audit_interval.map(|interval| now() + interval);
    let mut driver = Driver {
        burst: Vec::new(),
        undispatched: Vec::new(),
        wakers: Vec::new(),
        housekeeping_at: now(),
        progress_at: now() + IDLE_PROGRESS_INTERVAL,
        audit_at: first_audit,
        audit_failed: false,
        retry: RETRY_MIN,
        filled_at: None,
        refill: HistoryRefill::NotStarted,
        shared,
    };
    driver.run().await;
}

/// Stops the cache when the driver ends, even by a panic, so that no reader waits forever.
struct StopOnDrop(Arc<Shared>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        let last_status = if std::thread::panicking() {
            tracing::error!(resource = self.0.config.name, "the cache failed and stops");
            Status::internal("the watch cache failed")
        } else {
            // The store is closed, all handles are dropped, or the runtime shuts down.
            Status::unavailable(StoreFault::Closed.to_string())
        };
        self.0.stop(Some(&last_status));
    }
}

struct Driver {
    shared: Arc<Shared>,
    /// Items from the store that the core has not processed.
    burst: Vec<WatchItem>,
    /// Events that the core has recorded and that are not dispatched yet.
    undispatched: Vec<Arc<SharedEvent>>,
    /// Wakers to call once no lock is held.
    wakers: Vec<Waker>,
    housekeeping_at: Instant,
    /// The time of the next progress request while no read waits. A store without progress requests is checked again
    /// at this time.
    progress_at: Instant,
    audit_at: Option<Instant>,
    /// Whether the last audit found a difference. After a second difference in a row the cache starts over.
    audit_failed: bool,
    /// The wait after the next failure.
    retry: Duration,
    /// The time when the last list was complete.
    filled_at: Option<Instant>,
    /// The progress of the initial history refill.
    refill: HistoryRefill,
}

/// The progress of the initial history refill.
#[derive(Clone, Copy, Debug)]
enum HistoryRefill {
    /// The store has not been listed yet.
    NotStarted,
    /// A former revision was listed. The cache becomes ready at `revision`. If that does not happen
    /// before `until`, the latest state is listed instead.
    Running { revision: Revision, until: Instant },
    /// The refill is complete, or was replaced by a list of the latest state.
    Done,
}

/// The reason why a watch of the store ended.
enum WatchEnd {
    /// The watch broke: resume it after its last revision.
    Lost(StoreFault),
    /// The store has compacted the cache's revision: list again.
    Expired,
    /// The cached state is wrong: list again, and close all watches.
    Wrong,
    /// The store was closed, or the cache was stopped.
    Closed,
}

impl Driver {
    async fn run(&mut self) {
        let mut start_over = false;
        loop {
            match self.fill(start_over).await {
                Ok(()) => {}
                Err(WatchEnd::Closed) => return,
                Err(_) => continue,
            }
            start_over = loop {
                match self.follow().await {
                    WatchEnd::Closed => return,
                    end @ (WatchEnd::Expired | WatchEnd::Wrong) => {
                        // Consistent reads must not show this state any more.
                        self.shared.relisting.send_replace(true);
                        break matches!(end, WatchEnd::Wrong);
                    }
                    WatchEnd::Lost(fault) => {
                        let Shared { counters, config, .. } = &*self.shared;
                        counters.resumed.fetch_add(1, Relaxed);
                        if let StoreFault::Unconvertible(text) = &fault {
                            // Readers must learn that changes are missing. They continue from their last revision.
                            self.shared.close_watchers(|_| Some(Status::unknown(text.as_str())));
                        }
                        tracing::warn!(resource = config.name, %fault, "the store's watch was lost; resuming");
                        if self.back_off().await.is_err() {
                            return;
                        }
                    }
                }
            };
        }
    }

    /// Lists the store once. Returns an error other than [`WatchEnd::Closed`] only after the backoff.
    async fn fill(&mut self, start_over: bool) -> Result<(), WatchEnd> {
        let shared = self.shared.clone();
        // Delays the next list if the store expires revisions that it has just listed.
        if self.filled_at.is_some_and(|at| now() < at + self.retry) {
            self.back_off().await?;
        }
        let first = matches!(self.refill, HistoryRefill::NotStarted);
        let listed =
            async { if first { list_former(&shared).await } else { list_all(&shared, None).await.map(fresh) } };
        match self.with_timers(listed).await? {
            Ok(InitialList { listing, behind }) => {
                self.refill = match behind {
                    Some(revision) => HistoryRefill::Running { revision, until: now() + HISTORY_REFILL_WAIT },
                    None => HistoryRefill::Done,
                };
                self.handle_list(listing, start_over);
                self.filled_at = behind.is_none().then(now);
                Ok(())
            }
            Err(ReadError::Fault(StoreFault::Closed)) => Err(WatchEnd::Closed),
            Err(error) => {
                tracing::warn!(resource = shared.config.name, %error, "listing the store failed; trying again");
                shared.readiness.send_if_modified(|readiness| match readiness {
                    Readiness::Pending { cause, .. } => {
                        *cause = Some(error.to_string());
                        true
                    }
                    _ => false,
                });
                self.back_off().await?;
                Err(WatchEnd::Expired)
            }
        }
    }

    /// Watches the store from the cache's revision until the watch ends.
    async fn follow(&mut self) -> WatchEnd {
        let shared = self.shared.clone();
        let range = KeyRange::resource(&shared.config.prefix);
        let after = shared.cache.read().resume_after();
        let mut watch = match self.with_timers(shared.storage.watch(range, after)).await {
            Err(end) => return end,
            Ok(Ok(watch)) => watch,
            Ok(Err(listwatch_storage::WatchError::Fault(StoreFault::Closed))) => return WatchEnd::Closed,
            Ok(Err(listwatch_storage::WatchError::Fault(fault))) => return WatchEnd::Lost(fault),
        };
        let mut ahead = None;
        if matches!(self.refill, HistoryRefill::Running { .. }) {
            self.progress_at = now();
        }
        let mut audit: Option<Pin<Box<dyn Future<Output = AuditResult> + Send>>> = None;
        loop {
            let refilling = match self.refill {
                HistoryRefill::Running { until, .. } if until <= now() => {
                    tracing::info!(
                        resource = shared.config.name,
                        "the history refill exceeded its wait; listing the latest state"
                    );
                    return WatchEnd::Expired;
                }
                HistoryRefill::Running { .. } => true,
                HistoryRefill::NotStarted | HistoryRefill::Done => false,
            };
            let idle = self.progress_at <= now();
            if self.tick() || idle {
                let interval = if refilling { shared.config.limits.progress_interval } else { IDLE_PROGRESS_INTERVAL };
                self.progress_at = now() + interval;
                // Read each time, because a member of etcd may be upgraded or reached while this watch goes on. Reads
                // that wait for progress rely on the present value.
                if shared.storage.capabilities().progress_requests {
                    shared.counters.progress_requests.fetch_add(1, Relaxed);
                    watch.request_progress();
                }
            }
            if audit.is_none() && self.audit_at.is_some_and(|at| at <= now()) {
                audit = Some(Box::pin(audit::compare(shared.clone())));
                // An audit ends with the watch beside which it runs, so it is scheduled again.
                self.audit_at = self.next_audit();
            }
            let audit_at = self.audit_at.filter(|_| audit.is_none());
            let wake_at = [self.next_tick(), audit_at, Some(self.progress_at)].into_iter().flatten().min();
            let (watched, ahead) = (&mut watch, &mut ahead);
            tokio::select! {
                biased;
                () = shared.stopped.notified() => return WatchEnd::Closed,
                closed = next_burst(watched, ahead, &mut self.burst) => {
                    let full = self.burst.len() >= BURST_EVENTS_MAX;
                    let end = self.handle_burst();
                    if let Some(end) = end {
                        return end;
                    }
                    if closed {
                        return WatchEnd::Closed;
                    }
                    if full {
                        // Lets the woken watchers run before the next burst.
                        tokio::task::yield_now().await;
                    }
                }
                finding = running(&mut audit) => {
                    audit = None;
                    if self.handle_audit(finding) {
                        return WatchEnd::Wrong;
                    }
                }
                () = shared.kick.notified() => {}
                () = sleep_until(wake_at) => {}
            }
        }
    }

    // ------------------------------------------------------------------------ calls of the core

    fn handle_list(&mut self, listing: Listing, start_over: bool) {
        let shared = self.shared.clone();
        let plan = shared.cache.read().plan_list(listing, start_over);
        // InitialList, because a read that waits for a revision of the old state must not get the new
        // one.
        shared.freshness.lock().handle_replacing(plan.revision());
        // Before the state, so that no watch from a former revision begins in the new state.
        let former = shared.revision(); // not under the lock, because watches lock the cache first
        shared.store_history.lock().handle_replacing(former, plan.revision());
        let (relist, replaced) = shared.cache.write().handle_list(plan);
        drop(replaced); // not under the lock
        if relist == Relist::Continued || !shared.is_ready() {
            self.dispatch_events();
            self.close_ahead();
        } else {
            let (revision, floor, end) = {
                let cache = shared.cache.read();
                (cache.revision(), cache.history().floor(), cache.history().end())
            };
            let resource = &shared.config.name;
            if start_over {
                tracing::error!(resource, "the cache differed from the store and starts over");
            } else {
                tracing::warn!(resource, "the store has compacted the cache's revision; the cache starts over");
            }
            let unneeded = shared.pins.lock().clear();
            drop(unneeded); // not under the lock
            shared.close_watchers(|mailbox| Some(shared.expired(mailbox.last(), floor)));
            shared.hub.lock().handle_progress(revision, end);
            let served = shared.freshness.lock().handle_revision(revision);
            release(served);
        }
        shared.relisting.send_replace(false);
        if !matches!(self.refill, HistoryRefill::Running { .. }) {
            shared.readiness.send_if_modified(Readiness::after_list);
        }
    }

    /// Makes the cache ready once it reached the revision that was current at its start.
    fn poll_refilled(&mut self) {
        if let HistoryRefill::Running { revision, .. } = self.refill
            && self.shared.revision() >= revision
        {
            self.refill = HistoryRefill::Done;
            self.filled_at = Some(now());
            self.progress_at = now() + IDLE_PROGRESS_INTERVAL;
            self.shared.readiness.send_if_modified(Readiness::after_list);
        }
    }

    /// Closes the watches that have seen later revisions than the store has. After a store was restored to an older
    /// state, the cache's own state may match it, if the cache was behind. But a watch that has seen a later state
    /// would wait without an error until the store has passed that revision.
    fn close_ahead(&mut self) {
        let Driver { shared, wakers, .. } = self;
        let (revision, floor) = {
            let cache = shared.cache.read();
            (cache.revision(), cache.history().floor())
        };
        let mut unneeded = Vec::new();
        let hub = shared.hub.lock();
        let dispatched = hub.dispatched();
        hub.for_each(|cell| {
            let mut mailbox = cell.lock();
            if mailbox.last() > revision {
                let last_status = shared.expired(mailbox.last(), floor);
                unneeded.extend(mailbox.handle_close(Some(last_status), dispatched));
                wakers.extend(mailbox.take_waker());
            }
        });
        drop(hub);
        shared.wake(wakers);
    }

    /// Passes a burst to the core and dispatches its events. Returns `Some` if the watch ended.
    fn handle_burst(&mut self) -> Option<WatchEnd> {
        let shape = &self.shared.config.shape;
        let mut end = None;
        // All work that needs no access to the state precedes the lock.
        let mut inputs = Vec::with_capacity(self.burst.len());
        for item in self.burst.drain(..) {
            match item {
                WatchItem::Expired { .. } => end = Some(WatchEnd::Expired),
                WatchItem::Lost(StoreFault::Closed) => end = Some(WatchEnd::Closed),
                WatchItem::Lost(fault) => end = Some(WatchEnd::Lost(fault)),
                item => inputs.extend(Input::read(item, shape, &self.shared.offered)),
            }
        }
        if !inputs.is_empty() {
            self.retry = RETRY_MIN;
            let now = now();
            let mut cache = self.shared.cache.write();
            for input in inputs {
                cache.handle_input(now, input, &mut self.undispatched);
            }
            drop(cache);
            self.dispatch_events();
            self.poll_refilled();
        }
        end
    }

    /// Dispatches new events to reads and watchers.
    ///
    /// The state is updated before any dispatch, so that a client that reads after an event sees
    /// the event's change.
    fn dispatch_events(&mut self) {
        let Driver { shared, undispatched, wakers, .. } = self;
        let (revision, end) = {
            let cache = shared.cache.read();
            (cache.revision(), cache.history().end())
        };
        let served = shared.freshness.lock().handle_revision(revision);
        release(served);

        let limit = shared.config.limits.watcher_queue_events_max;
        let (mut queued, mut overflows) = (0, 0);
        for events in undispatched.chunks(BURST_EVENTS_MAX) {
            for event in events {
                // The lock is released after each event, so that a starting watcher waits for at
                // most one event's dispatch.
                if event.undecodable {
                    end_watches_of(shared, event, wakers);
                    continue;
                }
                shared.hub.lock().handle_event(event, &shared.config.shape, |cell, change| {
                    let mut mailbox = cell.lock();
                    let push = mailbox.handle_event(event, change, limit);
                    match push {
                        Push::Queued => queued += 1,
                        Push::Overflow => overflows += 1,
                        Push::Ignored | Push::Closed => return push,
                    }
                    wakers.extend(mailbox.take_waker());
                    push
                });
            }
            shared.wake(wakers);
        }
        undispatched.clear();
        shared.hub.lock().handle_progress(revision, end);
        shared.counters.queued.fetch_add(queued, Relaxed);
        shared.counters.overflows.fetch_add(overflows, Relaxed);
    }

    /// Handles all due timers. Returns true if progress should be requested from the store.
    fn tick(&mut self) -> bool {
        let Driver { shared, wakers, .. } = self;
        let limits = &shared.config.limits;
        let now = now();
        let mut ask = shared.freshness.lock().poll_progress(now, limits);
        let mut unneeded = Vec::new();
        {
            let mut hub = shared.hub.lock();
            ask |= hub.poll_progress(now);
            let dispatched = hub.dispatched();
            hub.handle_timeout(now, limits, |due| {
                let waker = match due {
                    Due::Bookmark(cell, revision) => {
                        let mut mailbox = cell.lock();
                        mailbox.handle_bookmark(revision, limits.watcher_queue_events_max);
                        mailbox.take_waker()
                    }
                    Due::Deadline(cell) => {
                        let mut mailbox = cell.lock();
                        unneeded.extend(mailbox.handle_close(None, dispatched));
                        mailbox.take_waker()
                    }
                };
                wakers.extend(waker);
            });
        }
        if self.housekeeping_at <= now {
            self.housekeeping_at = now + HOUSEKEEPING_INTERVAL;
            self.evict_unused(now);
        }
        self.shared.wake(&mut self.wakers);
        ask
    }

    /// Frees the memory of stalled watchers, idle snapshots and old events.
    fn evict_unused(&mut self, now: Instant) {
        let Driver { shared, wakers, .. } = self;
        let unused = shared.pins.lock().handle_timeout(now);
        let more = shared.cache.write().handle_timeout(now);
        if more {
            self.housekeeping_at = now + EVICTION_PAUSE;
        }
        let window_start = shared.cache.read().history().window_start();
        let mut unneeded = Vec::new();
        let hub = shared.hub.lock();
        if hub.detached() > 0 {
            hub.for_each(|cell| {
                let mut mailbox = cell.lock();
                if let Some(items) =
                    mailbox.handle_eviction(window_start, |seen| shared.expired(seen, window_start.floor))
                {
                    unneeded.extend(items);
                    wakers.extend(mailbox.take_waker());
                }
            });
        }
        drop(hub);
        drop((unused, unneeded)); // not under a lock
    }

    /// The time of the next call of [`Driver::tick`].
    fn next_tick(&self) -> Option<Instant> {
        let Shared { freshness, hub, pins, cache, config, .. } = &*self.shared;
        let (timer, detached) = {
            let hub = hub.lock();
            (hub.poll_timeout(), hub.detached() > 0)
        };
        let untidy =
            detached || pins.lock().len() > 0 || cache.read().history().len() > config.limits.history_events_min;
        let housekeeping = untidy.then_some(self.housekeeping_at);
        [timer, freshness.lock().poll_timeout(), housekeeping].into_iter().flatten().min()
    }

    fn next_audit(&self) -> Option<Instant> {
        self.shared.config.limits.audit_interval.map(|interval| now() + interval)
    }

    /// Handles the result of an audit. Returns true if the cache must start over.
    fn handle_audit(&mut self, finding: AuditResult) -> bool {
        let Shared { counters, config, .. } = &*self.shared;
        match finding {
            AuditResult::Failed => {
                counters.failed_audits.fetch_add(1, Relaxed);
            }
            AuditResult::Equal => {
                counters.audits.fetch_add(1, Relaxed);
                self.audit_failed = false;
            }
            AuditResult::Different(key) => {
                counters.audits.fetch_add(1, Relaxed);
                counters.mismatches.fetch_add(1, Relaxed);
                tracing::error!(resource = config.name, %key, "cache and store differ");
                if std::mem::replace(&mut self.audit_failed, true) {
                    self.audit_failed = false;
                    return true;
                }
                self.audit_at = Some(now()); // repeat the audit before closing any watch
            }
        }
        false
    }

    // ---------------------------------------------------------------------------------- waiting

    /// Waits for a future of the store while timers run.
    async fn with_timers<F: Future>(&mut self, future: F) -> Result<F::Output, WatchEnd> {
        let shared = self.shared.clone();
        let mut future = pin!(future);
        loop {
            self.tick();
            let wake_at = self.next_tick();
            tokio::select! {
                biased;
                () = shared.stopped.notified() => return Err(WatchEnd::Closed),
                output = &mut future => return Ok(output),
                () = shared.kick.notified() => {}
                () = sleep_until(wake_at) => {}
            }
        }
    }

    async fn back_off(&mut self) -> Result<(), WatchEnd> {
        let wait = self.retry;
        self.retry = (wait * 2).min(RETRY_MAX);
        self.with_timers(tokio::time::sleep(wait)).await
    }
}

/// Ends the watches that show an object whose stored value became undecodable.
#[cold]
fn end_watches_of(shared: &Shared, event: &Arc<SharedEvent>, wakers: &mut Vec<Waker>) {
    shared.hub.lock().handle_event(event, &shared.config.shape, |cell, _| {
        let mut mailbox = cell.lock();
        let push = mailbox.handle_undecodable(event, |seen| shared.expired(seen, event.revision()));
        wakers.extend(mailbox.take_waker());
        push
    });
}

/// Takes ready items from the store after waiting for the first. Returns true if the watch ended.
///
/// A burst has at most [`BURST_EVENTS_MAX`] items, and more only to keep the changes of one
/// revision together. Only the following item shows that a revision is complete. That item is kept
/// in `ahead`, which belongs to this watch, and begins the next burst.
async fn next_burst(watch: &mut Watch, ahead: &mut Option<WatchItem>, burst: &mut Vec<WatchItem>) -> bool {
    std::future::poll_fn(|cx| {
        burst.extend(ahead.take());
        loop {
            match Pin::new(&mut *watch).poll_next(cx) {
                Poll::Ready(Some(item))
                    if burst.len() >= BURST_EVENTS_MAX
                        && !burst.last().is_some_and(|last| same_revision(last, &item)) =>
                {
                    *ahead = Some(item).filter(|_| !canary!("cacher-loses-the-item-after-a-burst"));
                    return Poll::Ready(false);
                }
                Poll::Ready(Some(item)) => burst.push(item),
                Poll::Ready(None) => return Poll::Ready(true),
                Poll::Pending if burst.is_empty() => return Poll::Pending,
                Poll::Pending => return Poll::Ready(false),
            }
        }
    })
    .await
}

/// Whether both changes have the same revision.
fn same_revision(first: &WatchItem, second: &WatchItem) -> bool {
    match (first, second) {
        (WatchItem::Event(first), WatchItem::Event(second)) => first.revision() == second.revision(),
        _ => false,
    }
}

/// The result of the initial list of the store.
struct InitialList {
    listing: Listing,
    /// The revision that was current, if the list is of a former one.
    behind: Option<Revision>,
}

fn fresh(listing: Listing) -> InitialList {
    InitialList { listing, behind: None }
}

/// Lists a former revision, as old as the refill limit and the store allow, else the latest state.
async fn list_former(shared: &Shared) -> Result<InitialList, ReadError> {
    let storage = &shared.storage;
    let revisions = shared.config.limits.history_refill_revisions_max;
    if revisions > 0 && storage.capabilities().progress_requests {
        let present = storage.current_revision().await?;
        let mut from = Revision::new(present.get().saturating_sub(revisions).max(1));
        // If the revision is compacted, one more try reads the store's oldest revision, which may
        // be compacted by then too.
        for _ in 0..2 {
            if from >= present {
                break;
            }
            match list_all(shared, Some(from)).await {
                Ok(listing) => return Ok(InitialList { listing, behind: Some(present) }),
                Err(ReadError::Compacted { oldest: Some(oldest), .. }) => from = oldest.max(from.next()),
                Err(ReadError::Compacted { oldest: None, .. }) => match storage.stats().await {
                    Ok(stats) => from = stats.oldest.max(from.next()),
                    Err(_) => break,
                },
                Err(error) => return Err(error),
            }
        }
    }
    list_all(shared, None).await.map(fresh)
}

/// Lists the whole resource page by page. If compaction overtakes the pages of the latest state, the rest is read
/// without pages. A list slower than compaction therefore completes (kubernetes #136950).
async fn list_all(shared: &Shared, at: Option<Revision>) -> Result<Listing, ReadError> {
    match list_pages(shared, at, shared.config.limits.list_page_objects).await {
        Err(ReadError::Compacted { .. }) if at.is_none() => {
            tracing::info!(resource = shared.config.name, "compaction overtook the list; listing in one piece");
            list_pages(shared, at, 0).await
        }
        listed => listed,
    }
}

async fn list_pages(shared: &Shared, mut at: Option<Revision>, limit: usize) -> Result<Listing, ReadError> {
    let mut range = KeyRange::resource(&shared.config.prefix);
    let mut listing = Listing::default();
    loop {
        let query = ListQuery { range: range.clone(), at, limit };
        let page = shared.storage.list(query).await?;
        let last = page.items.last().map(|entry| entry.key.clone());
        listing.revision = at.unwrap_or(page.revision);
        at = Some(listing.revision);
        listing.extend(page.items, &shared.config.shape);
        match last {
            Some(last) if page.more => range = range.starting_at(&format!("{last}\0")),
            _ => return Ok(listing),
        }
    }
}

/// Wakes waiting reads. A read that was dropped meanwhile is ignored.
fn release(waiters: Vec<oneshot::Sender<()>>) {
    for waiter in waiters {
        let _ = waiter.send(());
    }
}

async fn running(audit: &mut Option<Pin<Box<dyn Future<Output = AuditResult> + Send>>>) -> AuditResult {
    match audit {
        Some(audit) => audit.await,
        None => pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use listwatch_meta::Key;
    use listwatch_storage::{MemoryStorage, StoreEvent};

    use super::*;
    use crate::handle::ResourceConfig;
    use crate::limits::Limits;

    /// A watch with these ready items, which then stays pending.
    fn ready(items: impl IntoIterator<Item = WatchItem>) -> Watch {
        struct Items(VecDeque<WatchItem>);
        impl Stream for Items {
            type Item = WatchItem;
            fn poll_next(mut self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<Option<WatchItem>> {
                self.0.pop_front().map_or(Poll::Pending, |item| Poll::Ready(Some(item)))
            }
        }
        Watch::new(Items(items.into_iter().collect()), || ())
    }

    fn removal(revision: u64, n: usize) -> WatchItem {
        let key = Key::new("pods", Some("a"), &format!("p{n}")).unwrap();
        WatchItem::Event(StoreEvent::Delete { key, revision: Revision::new(revision), previous: None })
    }

    /// The revisions of the bursts that these items form.
    async fn bursts(items: impl IntoIterator<Item = WatchItem>) -> Vec<Vec<u64>> {
        let items: Vec<_> = items.into_iter().collect();
        let (count, mut taken) = (items.len(), 0);
        let (mut watch, mut ahead, mut bursts) = (ready(items), None, Vec::new());
        while taken < count {
            let mut burst = Vec::new();
            assert!(!next_burst(&mut watch, &mut ahead, &mut burst).await);
            taken += burst.len();
            bursts.push(burst.iter().map(revision).collect());
        }
        assert_eq!(taken, count, "promise: nothing is lost between two bursts");
        bursts
    }

    fn revision(item: &WatchItem) -> u64 {
        match item {
            WatchItem::Event(event) => event.revision().get(),
            WatchItem::Progress(revision) => revision.get(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn burst_never_splits_a_revision() {
        const FULL: usize = BURST_EVENTS_MAX;
        let singles = |from: usize, count: usize| (from..from + count).map(|n| removal(n as u64, n));
        let transaction = |revision: usize, count: usize| (0..count).map(move |n| removal(revision as u64, n));
        for before in [0, 1, FULL - 2, FULL - 1, FULL, FULL + 1, 2 * FULL - 1] {
            for size in [2, 3, FULL, 2 * FULL] {
                let at = before + 1;
                let items = singles(1, before).chain(transaction(at, size)).chain(singles(at + 1, 2 * FULL));
                let bursts = bursts(items).await;
                let holding = bursts.iter().filter(|burst| burst.contains(&(at as u64))).count();
                assert_eq!(holding, 1, "promise: atomic, with {size} changes at once behind {before} others");
                for burst in &bursts {
                    let distinct = burst.iter().collect::<std::collections::BTreeSet<_>>().len();
                    assert!(distinct <= FULL, "bounded: {distinct} revisions in a burst");
                }
                let revisions = bursts.concat();
                assert!(revisions.is_sorted(), "promise: ordered, also from burst to burst: {revisions:?}");
            }
        }
    }

    #[tokio::test]
    async fn watch_end_is_returned_after_a_full_burst() {
        let items = (0..BURST_EVENTS_MAX).map(|n| removal(n as u64, n)).chain([WatchItem::Expired { oldest: None }]);
        let (mut watch, mut ahead, mut burst) = (ready(items), None, Vec::new());
        assert!(!next_burst(&mut watch, &mut ahead, &mut burst).await);
        assert_eq!(burst.len(), BURST_EVENTS_MAX);
        burst.clear();
        assert!(!next_burst(&mut watch, &mut ahead, &mut burst).await);
        assert_eq!(burst, [WatchItem::Expired { oldest: None }], "complete: the end is returned too");
    }

    #[test]
    fn idle_cache_stays_below_its_memory_bound() {
        let config = ResourceConfig {
            name: "pods".to_owned(),
            prefix: "pods".to_owned(),
            shape: Arc::new(listwatch_meta::ObjectShape::new(true, Vec::new())),
            indexed_fields: Vec::new(),
            limits: Limits::default(),
        };
        let shared = Arc::new(Shared::new(MemoryStorage::new(), config));
        let bytes = size_of::<Shared>() + size_of_val(&run(shared));
        assert!(bytes <= 8 * 1024, "{bytes} bytes of state and task");
    }
}
