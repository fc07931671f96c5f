//! The shell around the core: one task per cache that lists and watches the store, hands what it
//! learns to the core, and passes on what the core decides.
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
//! # The first list is an old one
//!
//! A cache that lists the present knows nothing of the past: a watch from an hour-old version that
//! the store still holds would be told `410 Expired`, after a restart every watch of every client
//! at once. So the first list is of a former revision, as far back as the store holds it and
//! [`Limits::history_refill_revisions_max`](crate::Limits::history_refill_revisions_max) allows, and
//! what happened since comes through the watch and fills the history window on its way. The cache
//! is ready when it has seen the revision that was the present when it began: nobody reads a state
//! older than his request. When that takes longer than [`HISTORY_REFILL_WAIT`], when the store
//! forgets the old revision meanwhile, or where it cannot say how far its watch is, the cache lists
//! the present, and its window begins there.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use futures_core::Stream;
use listwatch_meta::{KeyRange, Revision, Status};
use listwatch_storage::{ListQuery, ReadError, StoreFault, Watch, WatchItem};
use tokio::sync::oneshot;

use crate::audit::{self, Finding};
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
    // A task that panics is dropped without a word; its watchers must hear one.
    let _stop = StopOnDrop(shared.clone());
    let first_audit = shared.config.limits.audit_interval.map(|interval| now() + interval);
    let mut driver = Driver {
        burst: Vec::new(),
        told: Vec::new(),
        wakers: Vec::new(),
        housekeeping_at: now(),
        progress_at: now() + IDLE_PROGRESS_INTERVAL,
        audit_at: first_audit,
        suspicious: false,
        retry: RETRY_MIN,
        filled_at: None,
        refill: Refill::Untried,
        shared,
    };
    driver.run().await;
}

/// Stops the cache with its driver, however that ends: nobody may be left waiting.
struct StopOnDrop(Arc<Shared>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        let goodbye = if std::thread::panicking() {
            tracing::error!(resource = self.0.config.name, "the cache failed and stops");
            Status::internal("the watch cache failed")
        } else {
            // The store is closed, everyone has gone, or the runtime ends.
            Status::unavailable(StoreFault::Closed.to_string())
        };
        self.0.stop(Some(&goodbye));
    }
}

struct Driver {
    shared: Arc<Shared>,
    /// What the store has handed out and the core has not seen.
    burst: Vec<WatchItem>,
    /// What the core has recorded and the watchers have not been told.
    told: Vec<Arc<SharedEvent>>,
    /// Who has to be woken when no lock is held any more.
    wakers: Vec<Waker>,
    housekeeping_at: Instant,
    /// When the store is asked for progress though nobody waits for it.
    progress_at: Instant,
    audit_at: Option<Instant>,
    /// The last audit found a difference; one more, and the cache starts over.
    suspicious: bool,
    /// The next wait after a failure.
    retry: Duration,
    /// When the last list was complete.
    filled_at: Option<Instant>,
    /// The first list was of a former revision; the cache is not ready before it has seen what
    /// followed.
    refill: Refill,
}

/// Where the first filling of the history stands.
#[derive(Clone, Copy, Debug)]
enum Refill {
    /// The store was not listed yet.
    Untried,
    /// A former revision was listed. The cache is ready at `revision`, which was the present; if
    /// that does not come before `until`, the present is listed after all.
    Running { revision: Revision, until: Instant },
    /// Done, or given up.
    Over,
}

/// Why the store has to be asked anew.
enum End {
    /// The watch broke: go on where it stood.
    Lost(StoreFault),
    /// The store no longer holds our place: list again.
    Expired,
    /// What we hold is wrong: list again, and tell everyone.
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
                Err(End::Closed) => return,
                Err(_) => continue,
            }
            start_over = loop {
                match self.follow().await {
                    End::Closed => return,
                    End::Expired => break false,
                    End::Wrong => break true,
                    End::Lost(fault) => {
                        let Shared { counters, config, .. } = &*self.shared;
                        counters.resumed.fetch_add(1, Relaxed);
                        tracing::warn!(resource = config.name, %fault, "the store's watch was lost; resuming");
                        if self.back_off().await.is_err() {
                            return;
                        }
                    }
                }
            };
        }
    }

    /// Lists the store once. An error other than [`End::Closed`] has been waited for.
    async fn fill(&mut self, start_over: bool) -> Result<(), End> {
        let shared = self.shared.clone();
        // A store that expires what it has just listed is not asked again and again.
        if self.filled_at.is_some_and(|at| now() < at + self.retry) {
            self.back_off().await?;
        }
        let first = matches!(self.refill, Refill::Untried);
        let listed =
            async { if first { list_former(&shared).await } else { list_all(&shared, None).await.map(fresh) } };
        match self.meanwhile(listed).await? {
            Ok(First { listing, behind }) => {
                self.refill = match behind {
                    Some(revision) => Refill::Running { revision, until: now() + HISTORY_REFILL_WAIT },
                    None => Refill::Over,
                };
                self.handle_list(listing, start_over);
                self.filled_at = behind.is_none().then(now);
                Ok(())
            }
            Err(ReadError::Fault(StoreFault::Closed)) => Err(End::Closed),
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
                Err(End::Expired)
            }
        }
    }

    /// Watches the store from where the cache stands, until that ends.
    async fn follow(&mut self) -> End {
        let shared = self.shared.clone();
        let range = KeyRange::resource(&shared.config.prefix);
        let after = shared.cache.read().resume_after();
        let mut watch = match self.meanwhile(shared.storage.watch(range, after)).await {
            Err(end) => return end,
            Ok(Ok(watch)) => watch,
            Ok(Err(listwatch_storage::WatchError::Fault(StoreFault::Closed))) => return End::Closed,
            Ok(Err(listwatch_storage::WatchError::Fault(fault))) => return End::Lost(fault),
        };
        let mut ahead = None;
        let progress = shared.storage.capabilities().progress_requests;
        if matches!(self.refill, Refill::Running { .. }) {
            self.progress_at = now();
        }
        let mut audit: Option<Pin<Box<dyn Future<Output = Finding> + Send>>> = None;
        loop {
            let refilling = match self.refill {
                Refill::Running { until, .. } if until <= now() => {
                    tracing::info!(resource = shared.config.name, "the history does not come in time; starting afresh");
                    return End::Expired;
                }
                Refill::Running { .. } => true,
                Refill::Untried | Refill::Over => false,
            };
            let idle = self.progress_at <= now();
            if (self.tick() || idle) && progress {
                let interval = if refilling { shared.config.limits.progress_interval } else { IDLE_PROGRESS_INTERVAL };
                self.progress_at = now() + interval;
                shared.counters.progress_requests.fetch_add(1, Relaxed);
                watch.request_progress();
            }
            if audit.is_none() && self.audit_at.is_some_and(|at| at <= now()) {
                audit = Some(Box::pin(audit::compare(shared.clone())));
                // Set anew now: an audit dies with the watch it runs beside.
                self.audit_at = self.next_audit();
            }
            let audit_at = self.audit_at.filter(|_| audit.is_none());
            let progress_at = progress.then_some(self.progress_at);
            let wake_at = [self.next_tick(), audit_at, progress_at].into_iter().flatten().min();
            let (watched, ahead) = (&mut watch, &mut ahead);
            tokio::select! {
                biased;
                () = shared.stopped.notified() => return End::Closed,
                closed = next_burst(watched, ahead, &mut self.burst) => {
                    let full = self.burst.len() >= BURST_EVENTS_MAX;
                    let end = self.handle_burst();
                    if let Some(end) = end {
                        return end;
                    }
                    if closed {
                        return End::Closed;
                    }
                    if full {
                        // More is waiting; those who were woken have their turn first.
                        tokio::task::yield_now().await;
                    }
                }
                finding = running(&mut audit) => {
                    audit = None;
                    if self.handle_audit(finding) {
                        return End::Wrong;
                    }
                }
                () = shared.kick.notified() => {}
                () = sleep_until(wake_at) => {}
            }
        }
    }

    // -------------------------------------------------------------------------- the core's turn

    fn handle_list(&mut self, listing: Listing, start_over: bool) {
        let shared = self.shared.clone();
        let plan = shared.cache.read().plan_list(listing, start_over);
        // First, so that nobody who waits for a revision of the former state is handed this one for it.
        shared.freshness.lock().handle_replacing(plan.revision());
        let (relist, replaced) = shared.cache.write().handle_list(plan);
        drop(replaced); // not under the lock
        if relist == Relist::Continued || !shared.is_ready() {
            self.tell();
            self.close_ahead();
        } else {
            let (revision, floor, end) = {
                let cache = shared.cache.read();
                (cache.revision(), cache.history().floor(), cache.history().end())
            };
            let resource = &shared.config.name;
            if start_over {
                tracing::error!(resource, "the cache was wrong and starts over");
            } else {
                tracing::warn!(resource, "the store no longer holds the cache's place; the cache starts over");
            }
            let unneeded = shared.pins.lock().clear();
            drop(unneeded); // not under the lock
            shared.close_watchers(|mailbox| Some(shared.expired(mailbox.last(), floor)));
            shared.hub.lock().handle_progress(revision, end);
            let served = shared.freshness.lock().handle_revision(revision);
            release(served);
        }
        if !matches!(self.refill, Refill::Running { .. }) {
            shared.readiness.send_if_modified(Readiness::after_list);
        }
    }

    /// A cache that has seen what was the present when it began is ready.
    fn poll_refilled(&mut self) {
        if let Refill::Running { revision, .. } = self.refill
            && self.shared.revision() >= revision
        {
            self.refill = Refill::Over;
            self.filled_at = Some(now());
            self.progress_at = now() + IDLE_PROGRESS_INTERVAL;
            self.shared.readiness.send_if_modified(Readiness::after_list);
        }
    }

    /// Ends the watches that were shown more than the store has. A store that went back may now show
    /// what the cache held, when the cache was behind: nothing is new then, but who was shown a
    /// later state by the store itself would wait in silence until the store has grown past it.
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
                let goodbye = shared.expired(mailbox.last(), floor);
                unneeded.extend(mailbox.handle_close(Some(goodbye), dispatched));
                wakers.extend(mailbox.take_waker());
            }
        });
        drop(hub);
        shared.wake(wakers);
    }

    /// Hands a burst to the core and tells everyone; `Some` when the watch is over.
    fn handle_burst(&mut self) -> Option<End> {
        let shape = &self.shared.config.shape;
        let mut end = None;
        // Everything that can be done without the state is done before the lock is taken.
        let mut inputs = Vec::with_capacity(self.burst.len());
        for item in self.burst.drain(..) {
            match item {
                WatchItem::Expired { .. } => end = Some(End::Expired),
                WatchItem::Lost(StoreFault::Closed) => end = Some(End::Closed),
                WatchItem::Lost(fault) => end = Some(End::Lost(fault)),
                item => inputs.extend(Input::read(item, shape)),
            }
        }
        if !inputs.is_empty() {
            self.retry = RETRY_MIN;
            let now = now();
            let mut cache = self.shared.cache.write();
            for input in inputs {
                cache.handle_input(now, input, &mut self.told);
            }
            drop(cache);
            self.tell();
            self.poll_refilled();
        }
        end
    }

    /// Tells readers and watchers what is new.
    ///
    /// The state is in place before anyone is told: who hears of a change and then reads, sees it.
    fn tell(&mut self) {
        let Driver { shared, told, wakers, .. } = self;
        let (revision, end) = {
            let cache = shared.cache.read();
            (cache.revision(), cache.history().end())
        };
        let served = shared.freshness.lock().handle_revision(revision);
        release(served);

        let limit = shared.config.limits.watcher_queue_events_max;
        let (mut queued, mut overflows) = (0, 0);
        for events in told.chunks(BURST_EVENTS_MAX) {
            for event in events {
                // The lock is given up after each event: a watcher that starts waits for one
                // event's dispatch at most.
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
        told.clear();
        shared.hub.lock().handle_progress(revision, end);
        shared.counters.queued.fetch_add(queued, Relaxed);
        shared.counters.overflows.fetch_add(overflows, Relaxed);
    }

    /// Serves all timers; true when the store should be asked for progress.
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
            self.keep_house(now);
        }
        self.shared.wake(&mut self.wakers);
        ask
    }

    /// Gives back what stalled watchers, unused snapshots and old events hold.
    fn keep_house(&mut self, now: Instant) {
        let Driver { shared, wakers, .. } = self;
        let unused = shared.pins.lock().handle_timeout(now);
        let more = shared.cache.write().handle_timeout(now);
        if more {
            self.housekeeping_at = now + EVICTION_PAUSE;
        }
        let edge = shared.cache.read().history().edge();
        let mut unneeded = Vec::new();
        let hub = shared.hub.lock();
        if hub.detached() > 0 {
            hub.for_each(|cell| {
                let mut mailbox = cell.lock();
                if let Some(items) = mailbox.handle_eviction(edge, |seen| shared.expired(seen, edge.floor)) {
                    unneeded.extend(items);
                    wakers.extend(mailbox.take_waker());
                }
            });
        }
        drop(hub);
        drop((unused, unneeded)); // not under a lock
    }

    /// When [`Driver::tick`] has something to do next.
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

    /// Judges what an audit found; true when the cache has to start over.
    fn handle_audit(&mut self, finding: Finding) -> bool {
        let Shared { counters, config, .. } = &*self.shared;
        match finding {
            Finding::Skipped => {}
            Finding::Equal => {
                counters.audits.fetch_add(1, Relaxed);
                self.suspicious = false;
            }
            Finding::Different(key) => {
                counters.audits.fetch_add(1, Relaxed);
                counters.mismatches.fetch_add(1, Relaxed);
                tracing::error!(resource = config.name, %key, "cache and store differ");
                if std::mem::replace(&mut self.suspicious, true) {
                    self.suspicious = false;
                    return true;
                }
                self.audit_at = Some(now()); // look again before anyone is troubled
            }
        }
        false
    }

    // ------------------------------------------------------------------------------- waiting

    /// Waits for something of the store while timers go on.
    async fn meanwhile<F: Future>(&mut self, future: F) -> Result<F::Output, End> {
        let shared = self.shared.clone();
        let mut future = pin!(future);
        loop {
            self.tick();
            let wake_at = self.next_tick();
            tokio::select! {
                biased;
                () = shared.stopped.notified() => return Err(End::Closed),
                output = &mut future => return Ok(output),
                () = shared.kick.notified() => {}
                () = sleep_until(wake_at) => {}
            }
        }
    }

    async fn back_off(&mut self) -> Result<(), End> {
        let wait = self.retry;
        self.retry = (wait * 2).min(RETRY_MAX);
        self.meanwhile(tokio::time::sleep(wait)).await
    }
}

/// Ends the watches that show an object whose stored value cannot be read any more.
#[cold]
fn end_watches_of(shared: &Shared, event: &Arc<SharedEvent>, wakers: &mut Vec<Waker>) {
    shared.hub.lock().handle_event(event, &shared.config.shape, |cell, _| {
        let mut mailbox = cell.lock();
        let push = mailbox.handle_undecodable(event, |seen| shared.expired(seen, event.revision()));
        wakers.extend(mailbox.take_waker());
        push
    });
}

/// Takes what is ready from the store, waiting for the first item; true when the watch has ended.
///
/// A burst is at most [`BURST_EVENTS_MAX`] items, and more only to keep the changes of one revision
/// together. Whether a revision is complete is seen on the item that follows it: that one is kept
/// in `ahead`, which is this watch's alone, and begins the next burst.
async fn next_burst(watch: &mut Watch, ahead: &mut Option<WatchItem>, burst: &mut Vec<WatchItem>) -> bool {
    std::future::poll_fn(|cx| {
        burst.extend(ahead.take());
        loop {
            match Pin::new(&mut *watch).poll_next(cx) {
                Poll::Ready(Some(item))
                    if burst.len() >= BURST_EVENTS_MAX
                        && !burst.last().is_some_and(|last| same_revision(last, &item)) =>
                {
                    *ahead = Some(item);
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

/// Are these two changes of one revision?
fn same_revision(first: &WatchItem, second: &WatchItem) -> bool {
    match (first, second) {
        (WatchItem::Event(first), WatchItem::Event(second)) => first.revision() == second.revision(),
        _ => false,
    }
}

/// The first list of the store.
struct First {
    listing: Listing,
    /// The list is of a former revision; this one was the present.
    behind: Option<Revision>,
}

fn fresh(listing: Listing) -> First {
    First { listing, behind: None }
}

/// Lists a former revision, as far back as the window may be filled and the store still holds it;
/// else the present.
async fn list_former(shared: &Shared) -> Result<First, ReadError> {
    let storage = &shared.storage;
    let revisions = shared.config.limits.history_refill_revisions_max;
    if revisions > 0 && storage.capabilities().progress_requests {
        let present = storage.current_revision().await?;
        let mut from = Revision::new(present.get().saturating_sub(revisions).max(1));
        // What is compacted is asked for once more, at the oldest revision that is held; it may
        // be compacted by then too.
        for _ in 0..2 {
            if from >= present {
                break;
            }
            match list_all(shared, Some(from)).await {
                Ok(listing) => return Ok(First { listing, behind: Some(present) }),
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

/// Everything of the resource, page by page. Where compaction overtakes the pages of the present it
/// is read in one piece, so that a list which is slower than compaction ends all the same
/// (kubernetes #136950).
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

/// Lets reads go on. One that has left meanwhile does not hear it.
fn release(waiters: Vec<oneshot::Sender<()>>) {
    for waiter in waiters {
        let _ = waiter.send(());
    }
}

async fn running(audit: &mut Option<Pin<Box<dyn Future<Output = Finding> + Send>>>) -> Finding {
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

    /// A watch that has these items ready and then nothing more for now.
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

    /// The revisions of the bursts in which these items come.
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
    async fn a_burst_never_splits_a_revision() {
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
    async fn what_ends_a_watch_comes_behind_a_full_burst() {
        let items = (0..BURST_EVENTS_MAX).map(|n| removal(n as u64, n)).chain([WatchItem::Expired { oldest: None }]);
        let (mut watch, mut ahead, mut burst) = (ready(items), None, Vec::new());
        assert!(!next_burst(&mut watch, &mut ahead, &mut burst).await);
        assert_eq!(burst.len(), BURST_EVENTS_MAX);
        burst.clear();
        assert!(!next_burst(&mut watch, &mut ahead, &mut burst).await);
        assert_eq!(burst, [WatchItem::Expired { oldest: None }], "complete: the end is told too");
    }

    #[test]
    fn an_idle_cache_is_small() {
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
