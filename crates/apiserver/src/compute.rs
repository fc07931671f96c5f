//! [`Compute`]: a bounded pool for expensive computations, separate from the I/O workers.
//!
//! ```text
//!  write ──▶ inline, INLINE_UNITS_MAX ──done──▶ answer
//!                    │ used up: discarded
//!                    ▼
//!            queue, a turn per user ──▶ a slot, OFFLOADED_UNITS_MAX until the deadline ──▶ answer, or 504
//!              429 when it is full
//! ```
//!
//! Each write runs inline first, with fuel for about a millisecond ([`listwatch_meta::fuel`]). A write that needs more,
//! or that calls an admission webhook, is discarded before it has an effect. Then the write runs again on a blocking
//! thread of the runtime, when a slot is free. So no admission webhook is called twice because of fuel, and what follows its
//! answer runs on a slot, too. Requests with several effects are never discarded; see [`INLINE_BODY_BYTES_MAX`]. A write holds a slot while its future is polled, and frees the slot while it waits for the store. The
//! computation stops soon after the deadline of the request or after the client disconnects.
//!
//! Slots are assigned by the authenticated user and not by the impersonated user. Otherwise a user with permission to
//! impersonate could take any number of slots.
//!
//! Decision: `docs/decisions/0008-compute-pool.md`.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use listwatch_meta::Status;
use listwatch_meta::fuel::Tank;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::auth::Access;
use listwatch_write::{self as write, WriteContext, WriteRequest, WriteResponse, Writer};

/// Maximum fuel of a request on an I/O worker: about 1 ms, at 50 ns per unit. A request that needs more is restarted on
/// a compute slot.
pub(crate) const INLINE_UNITS_MAX: u64 = 20_000;

/// Maximum fuel of a request on a compute slot: about 10 s, at 50 ns per unit. A request that needs more receives a
/// 504, as at the deadline.
pub(crate) const OFFLOADED_UNITS_MAX: u64 = 200_000_000;

/// The smallest number of compute slots. A machine with more processors has one slot for every second processor. One
/// slot is reserved: one user never holds all slots, so that the requests of other users do not wait for that user.
pub(crate) const SLOTS_MIN: usize = 2;

/// The largest body of a delete, eviction, binding or token request that an I/O worker reads, in bytes. A request with
/// a larger body runs completely on a compute slot, because a write with several effects cannot start again.
pub(crate) const INLINE_BODY_BYTES_MAX: usize = 4 * 1024;

/// The largest number of requests that wait for a compute slot. Further requests receive a 429.
pub(crate) const QUEUE_MAX: usize = 200;

/// The largest number of requests of one user that wait for a compute slot. Further requests receive a 429.
pub(crate) const QUEUE_PER_USER_MAX: usize = 50;

/// The compute pool of one server.
#[derive(Debug)]
pub(crate) struct Compute {
    slots: Arc<Slots>,
    /// Whether request bodies may be CBOR.
    cbor: bool,
}

/// The reason why a request was not computed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotComputed {
    /// Too many requests wait for a slot.
    Overloaded,
    /// The fuel or the time of the request is used up.
    Exhausted,
}

impl From<NotComputed> for Status {
    fn from(why: NotComputed) -> Self {
        match why {
            NotComputed::Overloaded => {
                Status::too_many_requests("too many expensive requests, please try again later", 1)
            }
            NotComputed::Exhausted => Status::request_timed_out(),
        }
    }
}

impl Compute {
    /// Creates a pool for this machine. If `cbor` is true, request bodies may be CBOR.
    pub(crate) fn new(cbor: bool) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Compute { cbor, ..Compute::with_slots((processors / 2).max(SLOTS_MIN)) }
    }

    /// Runs a write inline if it is cheap, and otherwise on a compute slot of the authenticated user (`requester`).
    ///
    /// # Errors
    /// The [`Status`] of the write; 504 if fuel or time is used up; 429 if too many requests wait.
    pub(crate) async fn write(
        &self,
        writer: &Arc<Writer>,
        request: WriteRequest<'_>,
        context: &Arc<WriteContext>,
        requester: &str,
        deadline: Instant,
    ) -> Result<WriteResponse, Status> {
        let mut turn = Turn::First;
        if request.has_one_effect() {
            let work = async { writer.write_in(read(request.clone(), self.cbor)?, context).await };
            turn = match inline(work).await {
                Inline::Done(written) => return written,
                Inline::Discarded(next) => next,
            };
        } else if request.body.len() <= INLINE_BODY_BYTES_MAX {
            return writer.write_in(read(request, self.cbor)?, context).await;
        }
        let (writer, owned, cbor) = (Arc::clone(writer), request.to_owned(), self.cbor);
        let context = Arc::clone(context);
        let work = async move { writer.write_in(read(owned.request(), cbor)?, &context).await };
        // The future is boxed, because few writes take this path and each future is moved several times.
        Box::pin(self.run(requester, deadline, turn, work)).await?
    }

    /// Runs a review in the same way as [`Compute::write`] runs a write.
    ///
    /// # Errors
    /// The errors of [`Compute::write`].
    pub(crate) async fn review(
        &self,
        writer: &Arc<Writer>,
        access: &Arc<Access>,
        request: WriteRequest<'_>,
        context: &Arc<WriteContext>,
        (requester, deadline): (&str, Instant),
    ) -> Result<WriteResponse, Status> {
        let work = async {
            let request = read(request.clone(), self.cbor)?;
            writer.review(&access.authenticators, &access.authorizers, &request, context).await
        };
        let turn = match inline(work).await {
            Inline::Done(answer) => return answer,
            Inline::Discarded(next) => next,
        };
        let (writer, access, context) = (Arc::clone(writer), Arc::clone(access), Arc::clone(context));
        let (owned, cbor) = (request.to_owned(), self.cbor);
        let work = async move {
            let request = read(owned.request(), cbor)?;
            writer.review(&access.authenticators, &access.authorizers, &request, &context).await
        };
        // The future is boxed, because few reviews take this path and each future is moved several times.
        Box::pin(self.run(requester, deadline, turn, work)).await?
    }

    fn with_slots(slots: usize) -> Self {
        let state = Mutex::new(SlotsState { free: slots, ..SlotsState::default() });
        Compute { slots: Arc::new(Slots { state, per_user_max: slots.saturating_sub(1).max(1) }), cbor: false }
    }

    /// Runs a future on a compute slot of its user.
    ///
    /// # Errors
    /// [`NotComputed`]. The future is then dropped, or its result is discarded.
    pub(crate) async fn run<T, E>(
        &self,
        user: &str,
        deadline: Instant,
        mut turn: Turn,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<Result<T, E>, NotComputed>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        let cancelled = Arc::new(AtomicBool::new(false));
        let _cancels = CancelOnDrop(Arc::clone(&cancelled));
        let tank = Tank::new(OFFLOADED_UNITS_MAX).until(deadline).unless(cancelled);
        let mut metered = Metered { tank, future: Box::pin(work) };
        let bell = Arc::new(RequestWaker(Notify::new()));
        loop {
            let slot = self.slots.take(user, turn).await?;
            turn = Turn::Again;
            let waker = Waker::from(Arc::clone(&bell));
            let polled = tokio::task::spawn_blocking(move || {
                let poll = Pin::new(&mut metered).poll(&mut Context::from_waker(&waker));
                drop(slot);
                (metered, poll)
            });
            let poll;
            (metered, poll) = match polled.await {
                Ok(polled) => polled,
                Err(failed) => match failed.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    // The runtime is shutting down.
                    Err(_) => return Err(NotComputed::Exhausted),
                },
            };
            match poll {
                Poll::Ready((Err(_), tank)) if tank.is_exhausted() => return Err(NotComputed::Exhausted),
                Poll::Ready((result, _)) => return Ok(result),
                Poll::Pending => bell.0.notified().await,
            }
        }
    }
}

/// Converts a CBOR body to JSON, if the server supports CBOR.
fn read(request: WriteRequest<'_>, cbor: bool) -> Result<WriteRequest<'_>, Status> {
    if cbor { write::cbor::to_json(request) } else { Ok(request) }
}

/// The result of a future that ran inline.
#[derive(Debug, PartialEq, Eq)]
enum Inline<T> {
    /// The future is complete.
    Done(T),
    /// The future ended before it had an effect. It must run again on a slot, which it takes in this turn.
    Discarded(Turn),
}

/// Runs a future inline with [`INLINE_UNITS_MAX`].
async fn inline<T, E>(work: impl Future<Output = Result<T, E>>) -> Inline<Result<T, E>> {
    let tank = Tank::new(INLINE_UNITS_MAX).discardable();
    match (Metered { tank, future: std::pin::pin!(work) }).await {
        // It calls a webhook, and may be cheap.
        (Err(_), tank) if tank.is_ended_by_commit() => Inline::Discarded(Turn::Waits),
        (Err(_), tank) if tank.is_exhausted() => Inline::Discarded(Turn::First),
        // Successful work took effect before its fuel was used up.
        (result, _) => Inline::Done(result),
    }
}

/// A future that uses the fuel of a tank. Returns the result and the tank.
struct Metered<F> {
    tank: Tank,
    future: F,
}

impl<F: Future + Unpin> Future for Metered<F> {
    type Output = (F::Output, Tank);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Metered { tank, future } = &mut *self;
        tank.run(|| Pin::new(future).poll(cx)).map(|output| (output, std::mem::replace(tank, Tank::new(0))))
    }
}

/// Wakes the request when its future can continue.
struct RequestWaker(Notify);

impl Wake for RequestWaker {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// Cancels a computation when its request is dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The compute slots, which are assigned to users round-robin.
#[derive(Debug)]
struct Slots {
    state: Mutex<SlotsState>,
    /// The largest number of slots of one user.
    per_user_max: usize,
}

#[derive(Debug, Default)]
struct SlotsState {
    free: usize,
    /// The number of slots that each user holds.
    held: HashMap<String, usize>,
    /// The waiting requests of each user. No queue is empty.
    waiting: HashMap<String, VecDeque<Waiter>>,
    /// The users of `waiting`, in the order of their turns.
    turns: VecDeque<String>,
    /// The total number of waiting requests.
    count: usize,
    /// The number of the next waiter.
    next: u64,
}

/// A request that waits for a slot.
#[derive(Debug)]
struct Waiter {
    number: u64,
    sender: oneshot::Sender<Slot>,
}

/// Removes a waiter from the queue when its request is dropped.
struct Waiting<'a> {
    slots: &'a Slots,
    user: &'a str,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // The waiter holds no slot: slots are given only to waiters that are removed from the queue.
        drop(self.slots.state.lock().remove(self.user, self.number));
    }
}

impl SlotsState {
    fn remove(&mut self, user: &str, number: u64) -> Option<Waiter> {
        let queue = self.waiting.get_mut(user)?;
        let position = queue.iter().position(|waiter| waiter.number == number)?;
        let waiter = queue.remove(position);
        self.count -= 1;
        if queue.is_empty() {
            self.waiting.remove(user);
            self.turns.retain(|waits| waits != user);
        }
        waiter
    }
}

/// Whether a request that waits for a slot may be rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The request is expensive and has had no effect, so that it is rejected if too many requests wait.
    First,
    /// The request calls a webhook and may be cheap, so that it is never rejected. Flow control bounds these requests.
    Waits,
    /// The request has computed on a slot before and may have changed the store. It is never rejected, so that the response
    /// reports the change.
    Again,
}

/// A compute slot, which is released when it is dropped.
#[derive(Debug)]
struct Slot {
    /// The pool, and the user who holds the slot.
    of: Option<(Arc<Slots>, String)>,
}

impl Slots {
    async fn take(self: &Arc<Self>, user: &str, turn: Turn) -> Result<Slot, NotComputed> {
        let (waiting, granted) = {
            let mut state = self.state.lock();
            let held = state.held.get(user).copied().unwrap_or(0);
            if state.free > 0 && held < self.per_user_max {
                state.free -= 1;
                state.held.insert(user.to_owned(), held + 1);
                return Ok(Slot { of: Some((Arc::clone(self), user.to_owned())) });
            }
            let of_user = state.waiting.get(user).map_or(0, VecDeque::len);
            let full = state.count >= QUEUE_MAX || of_user >= QUEUE_PER_USER_MAX;
            if full && turn == Turn::First {
                return Err(NotComputed::Overloaded);
            }
            let (sender, granted) = oneshot::channel();
            let number = state.next;
            state.next += 1;
            if of_user == 0 {
                state.turns.push_back(user.to_owned());
            }
            let queue = state.waiting.entry(user.to_owned()).or_default();
            match turn {
                Turn::First | Turn::Waits => queue.push_back(Waiter { number, sender }),
                Turn::Again => queue.push_front(Waiter { number, sender }),
            }
            state.count += 1;
            (Waiting { slots: self, user, number }, granted)
        };
        // A sender is dropped only with the pool.
        let slot = granted.await.map_err(|_| NotComputed::Exhausted);
        drop(waiting);
        slot
    }

    /// Moves a slot from a user to the next waiting user. If no user waits, the slot becomes free.
    fn pass_on(&self, from: &str) -> Option<(String, oneshot::Sender<Slot>)> {
        let SlotsState { free, held, waiting, turns, count, .. } = &mut *self.state.lock();
        match held.get_mut(from) {
            Some(slots) if *slots > 1 => *slots -= 1,
            _ => {
                held.remove(from);
            }
        }
        for _ in 0..turns.len() {
            let Some(user) = turns.pop_front() else { break };
            if held.get(&user).is_some_and(|slots| *slots >= self.per_user_max) {
                turns.push_back(user);
                continue;
            }
            let Some(queue) = waiting.get_mut(&user) else { continue };
            let next = queue.pop_front();
            if queue.is_empty() {
                waiting.remove(&user);
            } else {
                turns.push_back(user.clone());
            }
            if let Some(Waiter { sender: next, .. }) = next {
                *count -= 1;
                *held.entry(user.clone()).or_default() += 1;
                return Some((user, next));
            }
        }
        *free += 1;
        None
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some((slots, mut user)) = self.of.take() else { return };
        while let Some((next_user, next)) = slots.pass_on(&user) {
            match next.send(Slot { of: Some((Arc::clone(&slots), next_user.clone())) }) {
                Ok(()) => return,
                // The request was dropped. The slot must not be released twice.
                Err(mut slot) => slot.of = None,
            }
            user = next_user;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use listwatch_meta::fuel;

    use super::*;

    fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    const LONG: Duration = Duration::from_secs(60);

    fn later() -> Instant {
        Instant::now() + LONG
    }

    #[tokio::test]
    async fn inline_work_above_its_fuel_limit_is_discarded() {
        let done = Inline::Done(Ok::<_, ()>(true));
        assert_eq!(inline(async { Ok::<_, ()>(fuel::charge(INLINE_UNITS_MAX)) }).await, done);
        let cut =
            |result: Result<(), ()>| async move { if fuel::charge(INLINE_UNITS_MAX + 1) { Ok(()) } else { result } };
        assert_eq!(inline(cut(Err(()))).await, Inline::Discarded(Turn::First));
        assert_eq!(inline(cut(Ok(()))).await, Inline::Done(Ok(())), "what succeeded has had its effect");
    }

    #[tokio::test]
    async fn work_that_calls_a_webhook_runs_on_a_compute_slot() {
        let calls = AtomicUsize::new(0);
        let work = async {
            if !fuel::commit() {
                return Err(());
            }
            calls.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        assert_eq!(inline(work).await, Inline::Discarded(Turn::Waits));
        assert_eq!(calls.load(Ordering::Relaxed), 0, "the webhook was called on an I/O worker");
        let work = async { if fuel::commit() && fuel::charge(OFFLOADED_UNITS_MAX) { Ok(()) } else { Err(()) } };
        assert_eq!(Compute::with_slots(1).run("a", later(), Turn::Waits, work).await, Ok(Ok(())));
    }

    #[tokio::test]
    async fn offloaded_work_frees_its_compute_slot_while_it_waits() {
        let compute = Compute::with_slots(1);
        let (sender, receiver) = oneshot::channel::<u8>();
        let waits = compute.run("a", later(), Turn::First, receiver);
        let computes = async {
            let done =
                compute.run("b", later(), Turn::First, async { Ok::<_, ()>(fuel::charge(INLINE_UNITS_MAX * 2)) }).await;
            sender.send(7).unwrap();
            done
        };
        let (waited, computed) = tokio::join!(waits, computes);
        assert_eq!((waited, computed), (Ok(Ok(7)), Ok(Ok(true))));
    }

    #[tokio::test]
    async fn offloaded_work_ends_at_its_deadline_and_when_its_request_is_dropped() {
        let compute = Compute::with_slots(1);
        // The fuel would be used up only after 200 s.
        let spin = || async {
            while fuel::charge(OFFLOADED_UNITS_MAX / 200_000) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err::<(), _>(())
        };
        let begun = Instant::now();
        let soon = begun + Duration::from_millis(20);
        assert_eq!(compute.run("a", soon, Turn::First, spin()).await, Err(NotComputed::Exhausted));
        let dropped =
            tokio::time::timeout(Duration::from_millis(20), compute.run("a", later(), Turn::First, spin())).await;
        assert!(dropped.is_err());
        let next = compute.run("a", later(), Turn::First, async { Ok::<_, ()>(()) });
        assert_eq!(tokio::time::timeout(LONG, next).await.expect("the slot came back"), Ok(Ok(())));
        // Work that is not canceled ends at its own deadline, after `LONG`.
        assert!(begun.elapsed() < LONG * 2 / 3, "it took {:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn compute_slots_rotate_between_users_with_bounded_queues() {
        let slots = Compute::with_slots(1).slots;
        let first = slots.take("a", Turn::First).await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiters = Vec::new();
        for user in ["a", "a", "a", "b", "c"] {
            let (slots, order) = (Arc::clone(&slots), Arc::clone(&order));
            waiters.push(tokio::spawn(async move {
                let _slot = slots.take(user, Turn::First).await.unwrap();
                order.lock().push(user);
            }));
            tokio::task::yield_now().await;
        }
        // A waiter whose request was dropped is skipped.
        waiters[1].abort();
        tokio::task::yield_now().await;
        drop(first);
        for waiter in waiters {
            let _ = waiter.await;
        }
        assert_eq!(*order.lock(), ["a", "b", "c", "a"]);
        assert_eq!(slots.state.lock().free, 1);

        let _held = slots.take("a", Turn::First).await.unwrap();
        let mut full: Vec<_> = (0..QUEUE_PER_USER_MAX).map(|_| Box::pin(slots.take("a", Turn::First))).collect();
        for waiter in &mut full {
            assert!(poll_once(waiter.as_mut()).is_pending());
        }
        let Poll::Ready(refused) = poll_once(Box::pin(slots.take("a", Turn::First)).as_mut()) else {
            panic!("the queue of a user has no bound")
        };
        assert_eq!(refused.unwrap_err(), NotComputed::Overloaded);
        let mut again = Box::pin(slots.take("a", Turn::Again));
        assert!(poll_once(again.as_mut()).is_pending(), "a request that has computed before is never refused");
        assert!(poll_once(Box::pin(slots.take("b", Turn::First)).as_mut()).is_pending());

        // A request that calls a webhook is never refused either, and does not overtake others.
        let mut webhook = Box::pin(slots.take("a", Turn::Waits));
        assert!(poll_once(webhook.as_mut()).is_pending(), "a request that calls a webhook is never refused");
        let places: Vec<u64> = slots.state.lock().waiting["a"].iter().map(|waiter| waiter.number).collect();
        assert_eq!(places.iter().max(), places.last(), "the newest request is the last");
        drop(webhook);

        // Dropped requests free their places in the queue at once.
        full.truncate(1);
        let mut next = Box::pin(slots.take("a", Turn::First));
        assert!(poll_once(next.as_mut()).is_pending(), "a waiter that was dropped still counts");
        assert_eq!(slots.state.lock().count, 3);
        drop((full, again, next));
        let state = slots.state.lock();
        assert_eq!((state.count, state.waiting.len(), state.turns.len()), (0, 0, 0));
    }

    #[tokio::test]
    async fn one_user_cannot_hold_all_compute_slots() {
        let slots = Compute::with_slots(2).slots;
        let first = slots.take("a", Turn::First).await.unwrap();
        let mut second = Box::pin(slots.take("a", Turn::First));
        assert!(poll_once(second.as_mut()).is_pending(), "one of two slots is not for the same user");
        let other = slots.take("b", Turn::First).await.unwrap();
        drop(other);
        assert!(poll_once(second.as_mut()).is_pending());
        drop(first);
        assert!(poll_once(second.as_mut()).is_ready());
        drop(second);
        let state = slots.state.lock();
        assert_eq!((state.free, state.held.len(), state.count), (2, 0, 0));
    }

    #[tokio::test]
    async fn panic_of_offloaded_work_propagates_to_its_request() {
        let compute = Compute::with_slots(1);
        let work = compute.run("a", later(), Turn::First, async {
            if fuel::charge(1) {
                panic!("on purpose");
            }
            Ok::<(), ()>(())
        });
        let caught = futures_util::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(work)).await;
        assert!(caught.is_err());
        assert_eq!(
            compute.run("a", later(), Turn::First, async { Ok::<_, ()>(1) }).await,
            Ok(Ok(1)),
            "the slot came back"
        );
    }
}
