//! [`Fairness`]: API priority and fairness of one server (`filters/priority-and-fairness.go`).
//!
//! ```text
//!  classify ─▶ seat ─┬▶ a seat is free ───────────────────────────────▶ Seat ── dropped ─▶ end, wakes the next
//!                    ├▶ waits ── woken ───────────────────────────────▶ Seat
//!                    │    ├ a quarter of the time of the request is over ─▶ 429
//!                    │    └ the client went away ─▶ leaves the queue
//!                    └▶ 429
//! ```
//!
//! [`FlowController`] makes the decisions. This module contains the lock, the clock and the channels that wake waiting
//! requests. The classifier and the configuration change together, when a FlowSchema or PriorityLevelConfiguration
//! changes.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use listwatch_controllers::flow_control::FlowConfiguration;
use listwatch_flow_control::{
    ActiveSchema, DanglingCondition, FlowController, FlowSchema, PriorityLevel, RejectReason, RequestDigest, RequestId,
    StartError, Started, WatchKey, WatchScope, WorkEstimate,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::classification::{CachedClassifier, Classification};
use super::too_many_requests::TooManyRequests;
use super::work::Work;

/// The maximum time that a request waits for a seat. A request with a deadline waits for a quarter of the remaining
/// time (`getRequestWaitContext`).
pub(crate) const QUEUE_WAIT_MAX: Duration = Duration::from_secs(60);
/// The remaining time of a request divided by this number is the maximum wait for a seat.
const QUEUE_WAIT_DIVISOR: u32 = 4;
/// Maximum number of classifications of a request. A request is classified again if its level was removed in the
/// meantime.
const CLASSIFICATIONS_MAX: usize = 3;

type Controller = FlowController<oneshot::Sender<()>>;

/// The levels, queues and seats of one server.
pub(crate) struct Fairness {
    controller: Mutex<Controller>,
    classifier: ArcSwap<CachedClassifier>,
    /// Wakes the task that calls [`Fairness::handle_timeout`].
    pub(super) timer: Notify,
    /// The timeout for which the task is currently waiting. Changes only while the controller is locked.
    armed: Mutex<std::time::Instant>,
}

impl Fairness {
    /// Creates the mandatory levels of a server with `seats` seats.
    pub(crate) fn new(seats: usize) -> Arc<Self> {
        let now = Instant::now().into_std();
        let (controller, classifier) = FlowController::new(now, seats as u64, rand::random());
        Arc::new(Fairness {
            controller: Mutex::new(controller),
            classifier: ArcSwap::from_pointee(CachedClassifier::new(classifier)),
            timer: Notify::new(),
            armed: Mutex::new(now),
        })
    }

    /// The flow schema and the flow of a request.
    pub(crate) fn classify(&self, digest: &RequestDigest<'_>) -> Classification {
        self.classifier.load().classify(digest)
    }

    /// Waits for the seats of a request, at most until `wait_until`. `reclaim(level)` aborts a slow response of the
    /// level, and returns whether there was one.
    ///
    /// # Errors
    /// [`TooManyRequests`] if the level rejects the request, or if no seat was free in time.
    pub(super) async fn seat(
        self: &Arc<Self>,
        digest: &RequestDigest<'_>,
        mut found: Classification,
        work: &Work<'_>,
        wait_until: Instant,
        reclaim: impl Fn(&str) -> bool,
    ) -> Result<Seat, TooManyRequests> {
        let (mut classifications, mut is_reclaimed) = (1, false);
        loop {
            match self.start(&found, work) {
                Ok((seat, None)) => return Ok(seat),
                Ok((seat, Some(woken))) => {
                    reclaim(found.schema().level_name());
                    self.timer.notify_one();
                    return self.wait(seat, woken, wait_until).await;
                }
                // The request may be the next one after a slow response of its level is aborted.
                Err(StartError::Rejected { .. }) if !is_reclaimed && reclaim(found.schema().level_name()) => {
                    is_reclaimed = true;
                }
                Err(StartError::Rejected { retry_after_seconds, .. }) => {
                    return Err(TooManyRequests { retry_after_seconds });
                }
                Err(StartError::LevelRemoved) if classifications < CLASSIFICATIONS_MAX => {
                    classifications += 1;
                    found = self.classify(digest);
                }
                Err(StartError::LevelRemoved) => return Err(TooManyRequests::default()),
            }
        }
    }

    /// Starts a request. If the request must wait, returns a receiver.
    fn start(
        self: &Arc<Self>,
        found: &Classification,
        work: &Work<'_>,
    ) -> Result<(Seat, Option<oneshot::Receiver<()>>), StartError> {
        let now = Instant::now().into_std();
        let mut woken = None;
        let mut controller = self.controller.lock();
        let estimate = work.estimate(&controller, found.schema().request_seats_max());
        let started = controller.start(now, found.schema(), found.flow, estimate, || {
            let (waker, receiver) = oneshot::channel();
            woken = Some(receiver);
            waker
        })?;
        let receiver = match started {
            Started::Executing(_) => None,
            Started::Waiting(_) => woken,
        };
        wake(controller);
        Ok((Seat::new(self, started.id(), found, estimate), receiver))
    }

    async fn wait(
        &self,
        mut seat: Seat,
        woken: oneshot::Receiver<()>,
        wait_until: Instant,
    ) -> Result<Seat, TooManyRequests> {
        match tokio::time::timeout_at(wait_until, woken).await {
            Ok(_) => Ok(seat),
            Err(_) => {
                // The request may be dispatched at this moment. It has waited for its whole time all the same.
                let retry_after = seat.end(RejectReason::TimeOut);
                Err(retry_after.map_or_else(TooManyRequests::default, |retry_after_seconds| TooManyRequests {
                    retry_after_seconds,
                }))
            }
        }
    }

    /// Returns the time of the next call of [`Fairness::handle_timeout`]. The timer is woken if a seat must be freed
    /// earlier.
    pub(super) fn next_timeout(&self) -> Instant {
        let controller = self.controller.lock();
        let next = controller.next_timeout();
        *self.armed.lock() = next;
        Instant::from_std(next)
    }

    /// Frees the seats of requests whose additional latency is over, and moves seats between levels.
    pub(super) fn handle_timeout(&self, now: Instant) {
        let mut controller = self.controller.lock();
        controller.handle_timeout(now.into_std());
        wake(controller);
    }

    /// Returns the levels with waiting requests, and the number of waiting requests in each.
    pub(super) fn waiting(&self) -> Vec<(String, usize)> {
        let controller = self.controller.lock();
        let levels = controller.levels().filter(|level| level.occupancy.waiting > 0);
        levels.map(|level| (level.name.to_owned(), level.occupancy.waiting)).collect()
    }

    /// Registers a watch, which increases the estimated cost of writes that the watch observes.
    pub(super) fn register_watch(self: &Arc<Self>, scope: &WatchScope<'_>) -> WatchRegistration {
        let key = self.controller.lock().add_watch(scope);
        WatchRegistration { fairness: Arc::clone(self), key: Some(key) }
    }

    /// Reads the controller, for metrics.
    pub(crate) fn inspect<T>(&self, read: impl FnOnce(&Controller) -> T) -> T {
        read(&self.controller.lock())
    }
}

impl FlowConfiguration for Fairness {
    fn configure(&self, levels: Vec<PriorityLevel>, schemas: Vec<FlowSchema>) -> Vec<DanglingCondition> {
        let mut controller = self.controller.lock();
        let configured = controller.configure(Instant::now().into_std(), levels, schemas);
        // Under the lock, so that the newest classifier always belongs to the newest configuration.
        self.classifier.store(Arc::new(CachedClassifier::new(configured.classifier)));
        wake(controller);
        self.timer.notify_one();
        configured.conditions
    }

    fn has_removable_level(&self) -> bool {
        self.controller.lock().has_removable_level()
    }
}

/// Releases the lock, then wakes the requests that were dispatched.
fn wake(mut controller: MutexGuard<'_, Controller>) {
    let Some((_, first)) = controller.poll_dispatched() else { return };
    let others: Vec<_> = std::iter::from_fn(|| controller.poll_dispatched()).collect();
    drop(controller);
    // A receiver that is gone ends its request itself.
    let _ = first.send(());
    for (_, waker) in others {
        let _ = waker.send(());
    }
}

/// Returns the time until which a request with a deadline waits for a seat.
pub(super) fn wait_limit(now: Instant, deadline: Instant) -> Instant {
    let quarter = deadline.saturating_duration_since(now) / QUEUE_WAIT_DIVISOR;
    now + quarter.min(QUEUE_WAIT_MAX)
}

/// The seats of a request, or its entry in a queue. Dropping the value ends the request.
pub(crate) struct Seat {
    fairness: Arc<Fairness>,
    id: Option<RequestId>,
    schema: Arc<ActiveSchema>,
    /// Whether the seats stay occupied for some time after the request ends.
    lingers: bool,
}

impl Seat {
    fn new(fairness: &Arc<Fairness>, id: RequestId, found: &Classification, estimate: WorkEstimate) -> Self {
        let schema = Arc::clone(found.schema());
        Seat { fairness: Arc::clone(fairness), id: Some(id), schema, lingers: !estimate.additional_latency.is_zero() }
    }

    /// Returns the name of the level.
    pub(crate) fn level_name(&self) -> &str {
        self.schema.level_name()
    }

    fn end(&mut self, reason: RejectReason) -> Option<u64> {
        let id = self.id.take()?;
        let mut controller = self.fairness.controller.lock();
        let retry_after = controller.end(Instant::now().into_std(), id, reason);
        let is_earlier = self.lingers && controller.next_timeout() < *self.fairness.armed.lock();
        wake(controller);
        if is_earlier {
            self.fairness.timer.notify_one();
        }
        retry_after
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.end(RejectReason::Cancelled);
    }
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Seat").field(&self.level_name()).finish()
    }
}

/// The registration of a watch for the cost estimates of writes. Dropping the value removes the registration.
pub(crate) struct WatchRegistration {
    fairness: Arc<Fairness>,
    key: Option<WatchKey>,
}

impl Drop for WatchRegistration {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.fairness.controller.lock().remove_watch(key);
        }
    }
}
