//! Where expensive computations of requests run: [`Compute`], a bounded pool beside the I/O workers.
//!
//! ```text
//!  write ──▶ inline, INLINE_UNITS_MAX ──done──▶ answer
//!                    │ used up: thrown away
//!                    ▼
//!            queue, a turn per user ──▶ a seat, OFFLOADED_UNITS_MAX until the deadline ──▶ answer, or 504
//!              429 when it is full
//! ```
//!
//! Each write runs inline first, with fuel for about a millisecond ([`listwatch_meta::fuel`]). A write that needs
//! more is thrown away before it had an effect and runs again on the blocking threads of the runtime, of which
//! no more compute at once than there are seats. A seat is held while a future is polled, and given back while
//! it waits for the store. When the request's deadline passes or its client goes, the computation notices within
//! a slice of fuel and ends.
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

/// Units of fuel (50 ns each) that a request may take on an I/O worker: about one millisecond. Beyond, it is
/// computed again on a compute seat.
pub(crate) const INLINE_UNITS_MAX: u64 = 20_000;

/// Units of fuel that a request may take on a compute seat: about 20 s. Beyond, it is answered with a 504, as
/// when its time is up.
pub(crate) const OFFLOADED_UNITS_MAX: u64 = 400_000_000;

/// Requests that wait for a compute seat. One more is answered with a 429.
pub(crate) const QUEUE_MAX: usize = 200;

/// Requests of one user that wait for a compute seat. One more is answered with a 429.
pub(crate) const QUEUE_PER_USER_MAX: usize = 50;

/// The pool of one server.
#[derive(Debug)]
pub(crate) struct Compute {
    seats: Arc<Seats>,
}

/// Why a request is not computed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotComputed {
    /// Too many wait.
    Overloaded,
    /// Its fuel or its time is used up.
    Exhausted,
}

impl From<NotComputed> for Status {
    fn from(why: NotComputed) -> Self {
        match why {
            NotComputed::Overloaded => {
                Status::too_many_requests("too many expensive requests, please try again later", 1)
            }
            NotComputed::Exhausted => timed_out(),
        }
    }
}

/// The answer to a request whose time is up.
pub(crate) fn timed_out() -> Status {
    Status::timeout("request did not complete within the allotted timeout")
}

impl Compute {
    /// A pool for this machine: a seat for every second processor.
    pub(crate) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Compute::with_seats((processors / 2).max(1))
    }

    fn with_seats(seats: usize) -> Self {
        Compute { seats: Arc::new(Seats { state: Mutex::new(SeatsState { free: seats, ..SeatsState::default() }) }) }
    }

    /// Runs a future on the compute seats, in the turn of its user.
    ///
    /// # Errors
    /// [`NotComputed`]; the future is then dropped unfinished, or its result thrown away.
    pub(crate) async fn run<T, E>(
        &self,
        user: &str,
        deadline: Instant,
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
        let bell = Arc::new(Bell(Notify::new()));
        loop {
            let seat = self.seats.take(user).await?;
            let waker = Waker::from(Arc::clone(&bell));
            let polled = tokio::task::spawn_blocking(move || {
                let poll = Pin::new(&mut metered).poll(&mut Context::from_waker(&waker));
                drop(seat);
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
                Poll::Ready((Err(_), true)) => return Err(NotComputed::Exhausted),
                Poll::Ready((result, _)) => return Ok(result),
                Poll::Pending => bell.0.notified().await,
            }
        }
    }
}

/// Runs a future on the spot with [`INLINE_UNITS_MAX`]; `None` when it was cut short before it had an effect.
pub(crate) async fn inline<T, E>(work: impl Future<Output = Result<T, E>>) -> Option<Result<T, E>> {
    let work = std::pin::pin!(work);
    match (Metered { tank: Tank::new(INLINE_UNITS_MAX), future: work }).await {
        (Err(_), true) => None,
        // What has succeeded took effect before its fuel was used up.
        (result, _) => Some(result),
    }
}

/// A future that runs on a tank. Gives its result, and whether it was cut short.
struct Metered<F> {
    tank: Tank,
    future: F,
}

impl<F: Future + Unpin> Future for Metered<F> {
    type Output = (F::Output, bool);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Metered { tank, future } = &mut *self;
        tank.run(|| Pin::new(future).poll(cx)).map(|output| (output, tank.is_exhausted()))
    }
}

/// Wakes the request when its future can go on.
struct Bell(Notify);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// Ends a computation whose request is gone.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The right to compute, handed out in turn: first a request of one user, then one of the next.
#[derive(Debug)]
struct Seats {
    state: Mutex<SeatsState>,
}

#[derive(Debug, Default)]
struct SeatsState {
    free: usize,
    /// Who waits, by user.
    waiting: HashMap<String, VecDeque<oneshot::Sender<Seat>>>,
    /// The users who wait, in the order of their turns.
    turns: VecDeque<String>,
    count: usize,
}

/// A right to compute; given back when it is dropped.
#[derive(Debug)]
struct Seat(Option<Arc<Seats>>);

impl Seats {
    async fn take(self: &Arc<Self>, user: &str) -> Result<Seat, NotComputed> {
        let waiter = {
            let mut state = self.state.lock();
            if state.free > 0 {
                state.free -= 1;
                return Ok(Seat(Some(Arc::clone(self))));
            }
            let of_user = state.waiting.get(user).map_or(0, VecDeque::len);
            if state.count >= QUEUE_MAX || of_user >= QUEUE_PER_USER_MAX {
                return Err(NotComputed::Overloaded);
            }
            let (sender, waiter) = oneshot::channel();
            if of_user == 0 {
                state.turns.push_back(user.to_owned());
            }
            state.waiting.entry(user.to_owned()).or_default().push_back(sender);
            state.count += 1;
            waiter
        };
        // A sender is dropped only with the pool.
        waiter.await.map_err(|_| NotComputed::Exhausted)
    }

    /// The next one who waits, if anybody does; else the seat becomes free.
    fn next(&self) -> Option<oneshot::Sender<Seat>> {
        let SeatsState { free, waiting, turns, count } = &mut *self.state.lock();
        while let Some(user) = turns.pop_front() {
            let Some(queue) = waiting.get_mut(&user) else { continue };
            let next = queue.pop_front();
            if queue.is_empty() {
                waiting.remove(&user);
            } else {
                turns.push_back(user);
            }
            if next.is_some() {
                *count -= 1;
                return next;
            }
        }
        *free += 1;
        None
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(seats) = self.0.take() else { return };
        while let Some(next) = seats.next() {
            match next.send(Seat(Some(Arc::clone(&seats)))) {
                Ok(()) => return,
                // Its request is gone. The seat is not to come back here by being dropped.
                Err(mut seat) => seat.0 = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
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
    async fn cheap_work_runs_inline_and_expensive_work_is_thrown_away() {
        assert_eq!(inline(async { Ok::<_, ()>(fuel::charge(INLINE_UNITS_MAX)) }).await, Some(Ok(true)));
        let cut = |result: Result<(), ()>| async move { if fuel::charge(INLINE_UNITS_MAX + 1) { Ok(()) } else { result } };
        assert_eq!(inline(cut(Err(()))).await, None);
        assert_eq!(inline(cut(Ok(()))).await, Some(Ok(())), "what succeeded has had its effect");
    }

    #[tokio::test]
    async fn offloaded_work_waits_without_a_seat() {
        let compute = Compute::with_seats(1);
        let (sender, receiver) = oneshot::channel::<u8>();
        let waits = compute.run("a", later(), async { receiver.await });
        let computes = async {
            let done = compute.run("b", later(), async { Ok::<_, ()>(fuel::charge(INLINE_UNITS_MAX * 2)) }).await;
            sender.send(7).unwrap();
            done
        };
        let (waited, computed) = tokio::join!(waits, computes);
        assert_eq!((waited, computed), (Ok(Ok(7)), Ok(Ok(true))));
    }

    #[tokio::test]
    async fn offloaded_work_ends_at_its_deadline_and_when_its_request_is_dropped() {
        let compute = Compute::with_seats(1);
        let spin = || async {
            while fuel::charge(1) {}
            Err::<(), _>(())
        };
        let soon = Instant::now() + Duration::from_millis(20);
        assert_eq!(compute.run("a", soon, spin()).await, Err(NotComputed::Exhausted));
        let dropped = tokio::time::timeout(Duration::from_millis(20), compute.run("a", later(), spin())).await;
        assert!(dropped.is_err());
        let next = compute.run("a", later(), async { Ok::<_, ()>(()) });
        assert_eq!(tokio::time::timeout(LONG, next).await.expect("the seat came back"), Ok(Ok(())));
    }

    #[tokio::test]
    async fn users_take_turns_and_their_queues_are_bounded() {
        let seats = Compute::with_seats(1).seats;
        let first = seats.take("a").await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiters = Vec::new();
        for user in ["a", "a", "a", "b", "c"] {
            let (seats, order) = (Arc::clone(&seats), Arc::clone(&order));
            waiters.push(tokio::spawn(async move {
                let _seat = seats.take(user).await.unwrap();
                order.lock().push(user);
            }));
            tokio::task::yield_now().await;
        }
        // One that gives up is passed over.
        waiters[1].abort();
        tokio::task::yield_now().await;
        drop(first);
        for waiter in waiters {
            let _ = waiter.await;
        }
        assert_eq!(*order.lock(), ["a", "b", "c", "a"]);
        assert_eq!(seats.state.lock().free, 1);

        let _held = seats.take("a").await.unwrap();
        let mut full: Vec<_> = (0..QUEUE_PER_USER_MAX).map(|_| Box::pin(seats.take("a"))).collect();
        for waiter in &mut full {
            assert!(poll_once(waiter.as_mut()).is_pending());
        }
        assert_eq!(seats.take("a").await.unwrap_err(), NotComputed::Overloaded);
        assert!(poll_once(Box::pin(seats.take("b")).as_mut()).is_pending());
    }

    #[tokio::test]
    async fn panic_of_offloaded_work_reaches_its_request() {
        let compute = Compute::with_seats(1);
        let work = compute.run("a", later(), async {
            if fuel::charge(1) {
                panic!("on purpose");
            }
            Ok::<(), ()>(())
        });
        let caught = futures_util::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(work)).await;
        assert!(caught.is_err());
        assert_eq!(compute.run("a", later(), async { Ok::<_, ()>(1) }).await, Ok(Ok(1)), "the seat came back");
    }
}
