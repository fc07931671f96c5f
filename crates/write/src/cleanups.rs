//! [`Cleanups`]: runs work to its end although the request that started the work is dropped.
//!
//! ```text
//!  complete(work) ─▶ the request polls the work ─▶ result
//!                        │ request dropped
//!                        ▼
//!                    arrived ─▶ running (run or finish poll all of them) ─▶ end
//! ```
//!
//! Dropped work is polled at once, and never waits in a queue: it can hold a lock for which running work waits. New work
//! is refused while [`DROPPED_MAX`] pieces of dropped work have not ended. No work that has started is lost.
//!
//! The crate has no runtime, so it spawns no task. The server calls [`Cleanups::run`] in a task, and
//! [`Cleanups::finish`] at the end of its shutdown.

use std::convert::Infallible;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::stream::FuturesUnordered;
use futures_util::task::AtomicWaker;
use futures_util::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;

/// The number of pieces of dropped work that have not ended, above which new work is refused. The work of requests in
/// flight can exceed this number.
const DROPPED_MAX: usize = 256;

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The error of work that did not start, because too much dropped work has not ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooManyDropped;

/// The work whose requests were dropped.
#[derive(Default)]
pub(super) struct Cleanups {
    /// Work that [`Cleanups::run`] has not seen yet.
    arrived: Mutex<Vec<Work<()>>>,
    /// The work stays here when the future of [`Cleanups::run`] is dropped, so that [`Cleanups::finish`] can continue it.
    running: Mutex<FuturesUnordered<Work<()>>>,
    /// The number of pieces of dropped work that have not ended.
    dropped: Arc<AtomicUsize>,
    driver: AtomicWaker,
}

impl std::fmt::Debug for Cleanups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cleanups")
    }
}

impl Cleanups {
    /// Runs `work` and returns its result. If the returned future is dropped after its first poll, the work continues
    /// in [`Cleanups::run`].
    ///
    /// # Errors
    /// [`TooManyDropped`] if the work did not start.
    pub(super) async fn complete<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, TooManyDropped> {
        if self.dropped.load(Ordering::Relaxed) >= DROPPED_MAX {
            return Err(TooManyDropped);
        }
        Ok(Completion { cleanups: self, work: Some(Box::pin(work)) }.await)
    }

    /// Runs the work whose requests were dropped. Only one caller may poll this method or [`Cleanups::finish`] at a
    /// time.
    pub(super) async fn run(&self) -> Infallible {
        poll_fn(|context| {
            // Other requests may be dropped later.
            let _ = self.poll(context);
            Poll::Pending
        })
        .await
    }

    /// Runs the work whose requests were dropped, and returns when none is left.
    pub(super) async fn finish(&self) {
        poll_fn(|context| self.poll(context)).await;
    }

    /// Is ready when all dropped work has ended.
    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        // Before the look at the new work, so that work that arrives afterwards wakes this task.
        self.driver.register(context.waker());
        let mut running = self.running.lock();
        loop {
            running.extend(std::mem::take(&mut *self.arrived.lock()));
            match running.poll_next_unpin(context) {
                Poll::Ready(Some(())) => {}
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn push(&self, work: Work<()>) {
        self.arrived.lock().push(work);
        self.driver.wake();
    }
}

/// Counts a piece of dropped work until it ends.
struct Dropped(Arc<AtomicUsize>);

impl Dropped {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Dropped(Arc::clone(count))
    }
}

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Polls a piece of work, and hands it to [`Cleanups`] if it is dropped before the end.
struct Completion<'a, T: Send + 'static> {
    cleanups: &'a Cleanups,
    /// `None` after the end.
    work: Option<Work<T>>,
}

impl<T: Send + 'static> Future for Completion<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Taken, because work that panics cannot be polled again.
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        let result = work.as_mut().poll(context);
        if result.is_pending() {
            self.work = Some(work);
        }
        result
    }
}

impl<T: Send + 'static> Drop for Completion<'_, T> {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        let (work, dropped) = (AssertUnwindSafe(work).catch_unwind(), Dropped::new(&self.cleanups.dropped));
        self.cleanups.push(Box::pin(async move {
            let _dropped = dropped;
            if work.await.is_err() {
                tracing::error!("a clean-up after a dropped request panicked");
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Work of three polls that counts its ends.
    fn work(ended: &Arc<AtomicUsize>) -> impl Future<Output = ()> + Send + 'static {
        let ended = Arc::clone(ended);
        async move {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Starts work and drops the request after the first poll.
    fn abandon<T: Send + 'static>(cleanups: &Cleanups, work: impl Future<Output = T> + Send + 'static) {
        assert!(cleanups.complete(work).now_or_never().is_none());
    }

    #[tokio::test]
    async fn cleanup_of_a_dropped_request_runs_to_its_end() {
        let (cleanups, ended) = (Arc::new(Cleanups::default()), Arc::default());
        assert_eq!(cleanups.complete(work(&ended)).await, Ok(()));
        assert_eq!(ended.load(Ordering::Relaxed), 1);
        let driver = tokio::spawn({
            let cleanups = Arc::clone(&cleanups);
            async move { cleanups.run().await }
        });
        tokio::task::yield_now().await;
        for _ in 0..50 {
            abandon(&cleanups, work(&ended));
        }
        while ended.load(Ordering::Relaxed) < 1 + 50 {
            tokio::task::yield_now().await;
        }
        assert_eq!(cleanups.dropped.load(Ordering::Relaxed), 0);
        driver.abort();
    }

    #[tokio::test]
    async fn shutdown_finishes_new_and_running_cleanups() {
        let (cleanups, ended) = (Cleanups::default(), Arc::default());
        abandon(&cleanups, work(&ended));
        assert!(cleanups.run().now_or_never().is_none(), "the task of the server ends here");
        abandon(&cleanups, work(&ended));
        assert_eq!((cleanups.running.lock().len(), cleanups.arrived.lock().len()), (1, 1));
        cleanups.finish().await;
        assert_eq!(ended.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn cleanup_that_holds_a_lock_is_polled_beside_any_number_that_wait_for_it() {
        let (cleanups, ended) = (Cleanups::default(), Arc::<AtomicUsize>::default());
        let lock = Arc::new(futures_util::lock::Mutex::new(()));
        let locked = || {
            let (lock, ended) = (Arc::clone(&lock), Arc::clone(&ended));
            async move {
                let _guard = lock.lock().await;
                tokio::task::yield_now().await;
                ended.fetch_add(1, Ordering::Relaxed);
            }
        };
        let mut owner = Box::pin(cleanups.complete(locked()));
        assert!((&mut owner).now_or_never().is_none(), "the owner has the lock");
        for _ in 1..DROPPED_MAX {
            abandon(&cleanups, locked());
        }
        // The last one that arrives owns the lock.
        drop(owner);
        assert!(cleanups.running.lock().is_empty());
        let finished = tokio::time::timeout(std::time::Duration::from_secs(60), cleanups.finish()).await;
        assert_eq!((finished, ended.load(Ordering::Relaxed)), (Ok(()), DROPPED_MAX));
    }

    #[tokio::test]
    async fn panic_of_a_cleanup_does_not_stop_the_others() {
        let (cleanups, ended) = (Cleanups::default(), Arc::default());
        abandon(&cleanups, async {
            tokio::task::yield_now().await;
            panic!("planted");
        });
        abandon(&cleanups, work(&ended));
        cleanups.finish().await;
        assert_eq!(ended.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn work_is_refused_while_too_much_dropped_work_has_not_ended() {
        let (cleanups, ended) = (Cleanups::default(), Arc::default());
        for _ in 0..DROPPED_MAX {
            abandon(&cleanups, work(&ended));
        }
        assert_eq!(cleanups.complete(work(&ended)).await, Err(TooManyDropped));
        cleanups.finish().await;
        assert_eq!(ended.load(Ordering::Relaxed), DROPPED_MAX, "all work that has started ends");
        assert_eq!(cleanups.complete(work(&ended)).await, Ok(()));
    }
}
