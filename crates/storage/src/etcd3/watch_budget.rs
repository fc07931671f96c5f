//! Bounds the bytes of the responses that wait in watches: [`WatchBudget`].
//!
//! ```text
//!              own reserve        borrowed from all watches
//!   watch A  ├── 256 KiB ──┤├───── up to 16 MiB ─────┤
//!   watch B  ├── 256 KiB ──┤├──────┤                    128 MiB for all watches of the store
//!   watch C  ├── 256 KiB ──┤
//! ```
//!
//! Without a watch cache, each client has a watch of its own. Clients that do not read would otherwise hold the largest
//! budget each. With the reserve, a watch continues although stalled watches hold everything that can be borrowed.
//!
//! A revision is delivered only as a whole, and etcd may send it in several responses. The bytes of an incomplete revision
//! become free only after its rest has arrived. So the rest passes over the budget, one response at a time, but only when
//! the caller has received everything else. A revision that is larger than the budget passes in this way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Bytes of keys and values, before and after the change, that one watch holds at most. A larger single response, or
/// revision, passes alone.
pub const WATCH_BYTES: usize = 16 << 20;

/// Bytes that each watch may hold in any case. Beyond them it borrows from [`WATCHES_BYTES`], or waits.
pub const WATCH_RESERVE_BYTES: usize = 256 << 10;

/// Bytes that all watches of a store hold together, beyond the reserve of each. At the bound, a watch has only its
/// reserve, and etcd keeps the rest.
pub const WATCHES_BYTES: usize = 128 << 20;

/// The bytes that all watches of a store can borrow.
#[derive(Clone, Debug)]
pub(super) struct SharedBudget(Arc<Semaphore>);

impl SharedBudget {
    pub(super) fn new() -> Self {
        SharedBudget(Arc::new(Semaphore::new(WATCHES_BYTES)))
    }

    /// The budget of a new watch.
    pub(super) fn watch(&self) -> WatchBudget {
        WatchBudget {
            reserve: Arc::new(Semaphore::new(WATCH_RESERVE_BYTES)),
            borrowable: Arc::new(Semaphore::new(WATCH_BYTES - WATCH_RESERVE_BYTES)),
            shared: self.0.clone(),
            deliverable: Arc::default(),
        }
    }
}

/// The budget of one watch, for all its connections.
#[derive(Clone, Debug)]
pub(super) struct WatchBudget {
    reserve: Arc<Semaphore>,
    borrowable: Arc<Semaphore>,
    shared: Arc<Semaphore>,
    deliverable: Arc<DeliverableCount>,
}

/// The number of [`Deliverable`] guards of one watch.
#[derive(Debug, Default)]
struct DeliverableCount {
    count: AtomicUsize,
    is_zero: Notify,
}

/// A guard of bytes that the caller can receive without a further response.
#[derive(Debug)]
pub(super) struct Deliverable(Arc<DeliverableCount>);

impl Drop for Deliverable {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.is_zero.notify_waiters();
        }
    }
}

/// The share of a response in the budgets, until it is delivered.
#[derive(Debug)]
pub(super) struct Share {
    _own: Option<OwnedSemaphorePermit>,
    _shared: Option<OwnedSemaphorePermit>,
    /// After the permits, so that they are free when a waiter sees the guard dropped.
    deliverable: Option<Deliverable>,
}

impl Share {
    /// Records that this share belongs to an incomplete revision only: it becomes free after a further response.
    pub(super) fn handle_incomplete(&mut self) {
        self.deliverable = None;
    }
}

impl WatchBudget {
    /// Waits for room for a response of so many bytes. `None` if the watch has ended.
    pub(super) async fn acquire(&self, bytes: usize) -> Option<Share> {
        if let Some(share) = self.try_acquire(bytes) {
            return Some(share);
        }
        let own = self.reserve.clone().acquire_many_owned(permits(bytes.min(WATCH_RESERVE_BYTES))).await.ok()?;
        Some(self.share(Some(own), None))
    }

    /// Waits for room for a response that may contain the rest of an incomplete revision. Such a response passes over the
    /// budget when the incomplete revision alone holds the room. `None` if the watch has ended.
    pub(super) async fn acquire_for_continuation(&self, bytes: usize) -> Option<Share> {
        tokio::select! {
            biased;
            share = self.acquire(bytes) => share,
            () = self.all_delivered() => Some(self.try_acquire(bytes).unwrap_or_else(|| self.share(None, None))),
        }
    }

    /// A guard of bytes that the caller can receive without a further response.
    pub(super) fn deliverable(&self) -> Deliverable {
        self.deliverable.count.fetch_add(1, Ordering::AcqRel);
        Deliverable(self.deliverable.clone())
    }

    /// Completes when no bytes are deliverable.
    async fn all_delivered(&self) {
        loop {
            let is_zero = self.deliverable.is_zero.notified();
            tokio::pin!(is_zero);
            is_zero.as_mut().enable();
            if self.deliverable.count.load(Ordering::Acquire) == 0 {
                return;
            }
            is_zero.await;
        }
    }

    fn share(&self, own: Option<OwnedSemaphorePermit>, shared: Option<OwnedSemaphorePermit>) -> Share {
        Share { _own: own, _shared: shared, deliverable: Some(self.deliverable()) }
    }

    /// Takes room without waiting.
    pub(super) fn try_acquire(&self, bytes: usize) -> Option<Share> {
        let take = |from: &Arc<Semaphore>, bytes| from.clone().try_acquire_many_owned(permits(bytes)).ok();
        if bytes <= WATCH_RESERVE_BYTES
            && let Some(own) = take(&self.reserve, bytes)
        {
            return Some(self.share(Some(own), None));
        }
        let bytes = bytes.min(WATCH_BYTES - WATCH_RESERVE_BYTES);
        let own = take(&self.borrowable, bytes)?;
        let shared = take(&self.shared, bytes)?;
        Some(self.share(Some(own), Some(shared)))
    }
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes shares of this size until the budget has no more.
    fn fill(budget: &WatchBudget, bytes: usize) -> Vec<Share> {
        std::iter::from_fn(|| budget.try_acquire(bytes)).collect()
    }

    #[test]
    fn stalled_watches_hold_at_most_their_reserves_and_the_shared_bytes() {
        const PART: usize = 64 << 10;
        let shared = SharedBudget::new();
        let watches: Vec<_> = (0..100).map(|_| shared.watch()).collect();
        let held: Vec<_> = watches.iter().map(|watch| fill(watch, PART)).collect();
        assert_eq!(held[0].len() * PART, WATCH_BYTES, "one watch alone uses its whole budget");
        let total: usize = held.iter().map(Vec::len).sum::<usize>() * PART;
        assert!(total <= WATCHES_BYTES + watches.len() * WATCH_RESERVE_BYTES, "bounded: {total} bytes");
        assert_eq!(held[99].len() * PART, WATCH_RESERVE_BYTES, "each watch has its reserve");
        drop(held);
        assert_eq!(shared.0.available_permits(), WATCHES_BYTES, "all of it is returned");
    }

    #[tokio::test]
    async fn response_larger_than_the_reserve_passes_alone() {
        let shared = SharedBudget::new();
        let (stalled, watch): (Vec<_>, _) = ((0..10).map(|_| shared.watch()).collect(), shared.watch());
        let _held: Vec<_> = stalled.iter().map(|watch| fill(watch, 1 << 20)).collect();
        let large = watch.acquire(WATCH_BYTES * 2).await.expect("an open watch");
        assert!(watch.try_acquire(1).is_none(), "it passes alone");
        let next = watch.acquire(1);
        tokio::pin!(next);
        assert!(tokio::time::timeout(std::time::Duration::ZERO, next.as_mut()).await.is_err(), "it waits");
        drop(large);
        assert!(next.await.is_some());
    }

    #[tokio::test]
    async fn continuation_exceeds_the_budget_only_while_nothing_else_is_held() {
        const PART: usize = 1 << 20;
        let watch = SharedBudget::new().watch();
        let mut held = fill(&watch, PART);
        held.extend(fill(&watch, WATCH_RESERVE_BYTES));
        let (first, rest) = held.split_first_mut().expect("shares");
        rest.iter_mut().for_each(Share::handle_incomplete);
        let next = watch.acquire_for_continuation(PART);
        tokio::pin!(next);
        assert!(tokio::time::timeout(std::time::Duration::ZERO, next.as_mut()).await.is_err(), "bounded");
        first.handle_incomplete();
        let next = next.await.expect("an open watch");
        let further = watch.acquire_for_continuation(PART);
        tokio::pin!(further);
        assert!(tokio::time::timeout(std::time::Duration::ZERO, further.as_mut()).await.is_err(), "one at a time");
        drop(next);
        assert!(further.await.is_some());
    }
}
