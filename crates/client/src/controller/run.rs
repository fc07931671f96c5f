//! Runs a controller: tasks that read the sources, the workers, and the shutdown.
//! [`ControllerHandle`] is the handle.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::metrics::ControllerMetrics;
use super::source::{EventSource, Mapping, SourceEvent, priority};
use super::writes::{PendingWrites, WriteCheck};
use super::{Controller, ControllerConfig, ControllerError, Outcome, Reconcile, Request, SourceId};
use crate::Store;
use crate::object::ObjectKey;
use listwatch_work_queue::{WorkItem, WorkQueue};

/// The state shared by workers, source tasks and handles.
pub(super) struct Shared {
    pub(super) stores: Vec<Store>,
    counts: Mutex<ControllerMetrics>,
    /// The writes of each key that the caches may not show yet.
    pub(super) writes: PendingWrites,
    /// The number of sources that have loaded their initial state.
    synced: watch::Sender<usize>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({} sources)", self.stores.len())
    }
}

impl Shared {
    fn count(&self, change: impl FnOnce(&mut ControllerMetrics)) {
        change(&mut lock(&self.counts));
    }

    pub(super) fn record_write(&self, key: &ObjectKey, source: SourceId, object: Option<&ObjectKey>, version: &str) {
        self.writes.record(&self.stores, key, source, object, version);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running controller. Dropping the handle stops it at once, without draining.
pub struct ControllerHandle {
    name: String,
    queue: WorkQueue<ObjectKey>,
    pub(super) shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<(), ControllerError>>,
    /// The result of the task after its end.
    over: Option<Result<(), ControllerError>>,
}

impl fmt::Debug for ControllerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ControllerHandle({:?})", self.name)
    }
}

impl Drop for ControllerHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ControllerHandle {
    /// The queue, for keys from other origins.
    pub fn queue(&self) -> &WorkQueue<ObjectKey> {
        &self.queue
    }

    /// The metrics of the controller.
    pub fn metrics(&self) -> ControllerMetrics {
        ControllerMetrics { queue: self.queue.metrics(), ..lock(&self.shared.counts).clone() }
    }

    /// Waits until every source has loaded its initial state and the workers have started, or until
    /// the controller ends.
    pub async fn synced(&self) {
        let mut synced = self.shared.synced.subscribe();
        let all = self.shared.stores.len();
        // The sender is in `shared`, which this handle holds.
        let loaded = async { drop(synced.wait_for(|count| *count >= all).await) };
        let ended = async {
            while !self.task.is_finished() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            () = loaded => {}
            () = ended => {}
        }
    }

    /// Stops the controller and returns after its end. Sources are no longer read, ready keys are
    /// processed for up to [`ControllerConfig::drain_wait`], and running reconciles are then
    /// dropped.
    ///
    /// # Errors
    /// [`ControllerError`] if the controller had already ended.
    pub async fn stop(mut self) -> Result<(), ControllerError> {
        self.stop.send_replace(true);
        self.ended().await
    }

    /// Waits until the controller ends by itself, which happens only when a source ends.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`ControllerError`] names the source that ended.
    pub async fn ended(&mut self) -> Result<(), ControllerError> {
        if let Some(over) = &self.over {
            return over.clone();
        }
        let over = match (&mut self.task).await {
            Ok(result) => result,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The task was aborted. While the handle exists, only the end of the runtime does that.
            Err(_) => Ok(()),
        };
        self.over = Some(over.clone());
        over
    }
}

pub(super) fn start<R: Reconcile>(controller: Controller, reconcile: R) -> ControllerHandle {
    let Controller { config, queue, sources } = controller;
    let workers = config.workers.max(1);
    let shared = Arc::new(Shared {
        stores: sources.iter().map(|(source, _)| source.store()).collect(),
        counts: Mutex::new(ControllerMetrics { max_workers: workers, ..ControllerMetrics::default() }),
        writes: PendingWrites::new(config.write_wait),
        synced: watch::Sender::new(0),
    });
    let (stop, stopped) = watch::channel(false);
    let (name, handle_queue, handle_shared) = (config.name.clone(), queue.clone(), shared.clone());
    let running = Running { config, queue, shared, reconcile: Arc::new(reconcile) };
    let task = tokio::spawn(running.run(sources, stopped));
    ControllerHandle { name, queue: handle_queue, shared: handle_shared, stop, task, over: None }
}

struct Running<R> {
    config: ControllerConfig,
    queue: WorkQueue<ObjectKey>,
    shared: Arc<Shared>,
    reconcile: Arc<R>,
}

impl<R: Reconcile> Running<R> {
    /// Runs the controller. Dropping this future aborts the tasks that it started.
    async fn run(
        self,
        sources: Vec<(Box<dyn EventSource>, Mapping)>,
        mut stopped: watch::Receiver<bool>,
    ) -> Result<(), ControllerError> {
        let all = sources.len();
        let mut pumps = JoinSet::new();
        for (index, (source, mapping)) in sources.into_iter().enumerate() {
            let (queue, shared) = (self.queue.clone(), self.shared.clone());
            pumps.spawn(async move {
                let pumped = catch_panic(pump(source, mapping, queue, shared)).await;
                let which = SourceId(index);
                match pumped {
                    Ok(()) => ControllerError::SourceEnded { which },
                    Err(message) => ControllerError::SourcePanicked { which, message },
                }
            });
        }
        let mut workers = JoinSet::new();
        let mut synced = self.shared.synced.subscribe();
        // Without the guard that `wait_for` returns, because it must not be held while workers run.
        let loaded = async { drop(synced.wait_for(|count| *count >= all).await) };
        let outcome = tokio::select! {
            () = loaded => {
                tracing::debug!(controller = self.config.name, "every source is synced; workers begin");
                for _ in 0..self.config.workers.max(1) {
                    workers.spawn(work(self.config.clone(), self.queue.clone(), self.shared.clone(), self.reconcile.clone()));
                }
                tokio::select! {
                    error = ended(&mut pumps) => Err(error),
                    () = stop_requested(&mut stopped) => Ok(()),
                }
            }
            error = ended(&mut pumps) => Err(error),
            () = stop_requested(&mut stopped) => Ok(()),
        };
        pumps.shutdown().await;
        self.queue.shut_down();
        if tokio::time::timeout(self.config.drain_wait, async { while workers.join_next().await.is_some() {} })
            .await
            .is_err()
        {
            let aborted = lock(&self.shared.counts).active_workers as u64;
            tracing::warn!(
                controller = self.config.name,
                aborted,
                "reconciles took longer than there was time to stop"
            );
            self.shared.count(|counts| counts.aborted += aborted);
            workers.shutdown().await;
        }
        outcome
    }
}

async fn ended(pumps: &mut JoinSet<ControllerError>) -> ControllerError {
    match pumps.join_next().await {
        Some(Ok(error)) => error,
        Some(Err(error)) => ControllerError::SourcePanicked { which: SourceId::OWN, message: error.to_string() },
        // A controller has at least one source.
        None => std::future::pending().await,
    }
}

async fn stop_requested(stopped: &mut watch::Receiver<bool>) {
    if stopped.wait_for(|stopped| *stopped).await.is_err() {
        // The sender is gone; the drop of the handle ends this task.
        std::future::pending::<()>().await;
    }
}

/// Passes the changes of one source to the queue. The queue never blocks, because it holds each key
/// once.
async fn pump(mut source: Box<dyn EventSource>, mapping: Mapping, queue: WorkQueue<ObjectKey>, shared: Arc<Shared>) {
    let mut synced = false;
    while let Some(event) = source.next().await {
        match event {
            SourceEvent::Changes(changes) => {
                for change in &changes {
                    for key in mapping.keys(change) {
                        queue.add_with_priority(key, priority(change));
                    }
                }
            }
            SourceEvent::Synced if !synced => {
                synced = true;
                shared.synced.send_modify(|count| *count += 1);
            }
            SourceEvent::Synced => {}
        }
    }
}

async fn work<R: Reconcile>(
    config: ControllerConfig,
    queue: WorkQueue<ObjectKey>,
    shared: Arc<Shared>,
    reconcile: Arc<R>,
) {
    while let Some(item) = queue.get().await {
        let behind = match shared.writes.check(&shared.stores, item.key()) {
            WriteCheck::Shown => false,
            WriteCheck::Behind => true,
            // The worker goes on with other keys. The failures of this key still count. A change of an object adds the key
            // earlier; the key is then reconciled once more after the delay. A queue that is shut down drops the key,
            // because no cache advances then.
            WriteCheck::Pending(delay) => {
                queue.add_after_with_priority(item.key().clone(), delay, item.priority());
                continue;
            }
        };
        shared.count(|counts| {
            counts.active_workers += 1;
            counts.behind += u64::from(behind);
        });
        let active = ActiveWorkerGuard(&shared);
        let request = Request { key: item.key().clone(), failures: item.failures(), behind, shared: shared.clone() };
        let begun = Instant::now();
        // Inside the block, so that a panic before the future exists is caught as well.
        let reconciling = catch_panic(async { reconcile.reconcile(request).await });
        let result = match config.timeout {
            Some(limit) => match tokio::time::timeout(limit, reconciling).await {
                Ok(result) => result.map_err(Failure::Panic),
                Err(_) => Err(Failure::Timeout(limit)),
            },
            None => reconciling.await.map_err(Failure::Panic),
        };
        drop(active);
        shared.count(|counts| counts.reconcile_duration.observe(begun.elapsed()));
        settle(&config.name, item, &shared, result);
    }
}

/// Decrements the number of active workers when dropped, even if the worker is aborted.
struct ActiveWorkerGuard<'s>(&'s Shared);

impl Drop for ActiveWorkerGuard<'_> {
    fn drop(&mut self) {
        self.0.count(|counts| counts.active_workers -= 1);
    }
}

enum Failure {
    Panic(String),
    Timeout(Duration),
}

fn settle<E: fmt::Display>(
    controller: &str,
    item: WorkItem<ObjectKey>,
    shared: &Shared,
    result: Result<Result<Outcome, E>, Failure>,
) {
    let key = item.key().clone();
    let retry = |item: WorkItem<ObjectKey>, why: &dyn fmt::Display| {
        let failures = item.failures() + 1;
        let delay = item.retry();
        tracing::warn!(controller, %key, failures, ?delay, "reconcile failed: {why}");
    };
    match result {
        Ok(Ok(Outcome::Done)) => {
            shared.count(|counts| counts.done += 1);
            item.finish();
        }
        Ok(Ok(Outcome::RequeueAfter(after))) => {
            shared.count(|counts| counts.requeued += 1);
            item.finish_and_requeue(after);
        }
        Ok(Err(error)) => {
            shared.count(|counts| counts.errors += 1);
            retry(item, &error);
        }
        Err(Failure::Panic(message)) => {
            shared.count(|counts| counts.panics += 1);
            retry(item, &format_args!("it panicked: {message}"));
        }
        Err(Failure::Timeout(limit)) => {
            shared.count(|counts| counts.timeouts += 1);
            retry(item, &format_args!("it took longer than {} s", limit.as_secs_f64()));
        }
    }
}

/// Runs a future and returns its panic as an error. The future is not polled after a panic.
async fn catch_panic<F: Future>(future: F) -> Result<F::Output, String> {
    let mut future = pin!(future);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(panic) => Poll::Ready(Err(message_of(&*panic))),
    })
    .await
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
