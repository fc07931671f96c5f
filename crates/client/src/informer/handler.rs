//! Receivers of events: callbacks ([`Handler`]) and streams ([`EventStream`]). Each has its own
//! view.
//!
//! A callback runs in its own task and receives one event at a time. A panic in the callback ends
//! only that handler, with [`HandlerEnd::Panicked`]. A stream is polled by its owner: an event
//! counts as processed when the next one is requested. Dropping the stream removes the handler.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;

use super::event::Event;
use super::slot::{Slot, Timer};
use super::status::NotSynced;
use super::view::{Counts, Lag, Policy};
use crate::object::Object;
use crate::stored::Stored;

/// The options of a handler.
#[derive(Clone, Debug, Default)]
pub struct HandlerOptions {
    /// The name in logs, metrics and errors; a number when empty.
    pub name: String,
    /// The behavior when the handler is slower than the changes.
    pub policy: Policy,
    /// The period in which the handler receives every unchanged object again, spread over the
    /// period; `None` or zero for no resync. At least
    /// [`RESYNC_PERIOD_MIN`](super::RESYNC_PERIOD_MIN).
    pub resync: Option<Duration>,
}

impl HandlerOptions {
    /// Options with this name, [`Policy::Coalesce`] and no resync.
    pub fn named(name: &str) -> Self {
        HandlerOptions { name: name.to_owned(), ..HandlerOptions::default() }
    }

    /// Sets the treatment of the handler when it is slower than the changes.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the resync period; zero means no resync.
    #[must_use]
    pub fn resync(mut self, period: Duration) -> Self {
        self.resync = Some(period);
        self
    }
}

/// The reason why a handler receives no more events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandlerEnd {
    /// The handler was removed, or its informer was shut down. Waiting events were processed or
    /// dropped as requested.
    Removed,
    /// The handler's stream was dropped.
    Dropped,
    /// The callback panicked.
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// The tokio runtime ended the handler's task.
    Aborted,
}

impl fmt::Display for HandlerEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandlerEnd::Removed => f.write_str("removed"),
            HandlerEnd::Dropped => f.write_str("its stream was dropped"),
            HandlerEnd::Panicked { message } => write!(f, "it panicked: {message}"),
            HandlerEnd::Aborted => f.write_str("the runtime ended its task"),
        }
    }
}

/// The treatment of events that wait for a removed handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remaining {
    /// Waiting events are delivered first.
    Drain,
    /// Waiting events are dropped.
    Drop,
}

/// A registered callback. Dropping this handle does not remove the callback, but the handle no
/// longer keeps the informer running: an informer without handles stops.
#[derive(Clone)]
pub struct Handler<S: Stored = Object> {
    pub(super) slot: Arc<Slot<S>>,
    pub(super) _hold: Arc<dyn Any + Send + Sync>,
}

impl<S: Stored> Handler<S> {
    /// The name of the handler.
    pub fn name(&self) -> &str {
        &self.slot.name
    }

    /// True once the handler has processed the initial state.
    pub fn has_synced(&self) -> bool {
        self.slot.has_synced()
    }

    /// Waits until the handler has processed the initial state, for at most `timeout`. Dropping the
    /// future ends the wait.
    ///
    /// # Errors
    /// [`NotSynced::Ended`] if the handler has ended, [`NotSynced::TimedOut`] after the time limit.
    /// [`SharedInformer::wait_until_synced`](super::SharedInformer::wait_until_synced) reports why
    /// the informer itself is not synced.
    pub async fn wait_until_synced(&self, timeout: Duration) -> Result<(), NotSynced> {
        let mut progress = self.slot.progress();
        let wait = progress.wait_for(|progress| progress.synced || progress.ended.is_some());
        match tokio::time::timeout(timeout, wait).await {
            Ok(Ok(progress)) if progress.synced => Ok(()),
            Ok(Ok(progress)) => Err(NotSynced::Ended { why: progress.ended.clone().unwrap_or(HandlerEnd::Removed) }),
            Ok(Err(_)) => Err(NotSynced::Ended { why: HandlerEnd::Removed }),
            Err(_) => Err(NotSynced::TimedOut { waited: timeout, parts: Vec::new() }),
        }
    }

    /// The lag of the handler.
    pub fn lag(&self) -> Lag {
        self.slot.lag()
    }

    /// The counters of the handler.
    pub fn counts(&self) -> Counts {
        self.slot.counts()
    }

    /// Removes the handler and waits until its task has processed or dropped the waiting events.
    pub async fn remove(&self, remaining: Remaining) -> HandlerEnd {
        self.slot.change(|view| view.close(remaining == Remaining::Drain));
        self.ended().await
    }

    /// Waits until the handler ends, and returns the reason.
    pub async fn ended(&self) -> HandlerEnd {
        let mut progress = self.slot.progress();
        let ended = progress.wait_for(|progress| progress.ended.is_some()).await;
        ended.ok().and_then(|progress| progress.ended.clone()).unwrap_or(HandlerEnd::Removed)
    }
}

impl<S: Stored> fmt::Debug for Handler<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handler({})", self.slot.name)
    }
}

/// The events of an informer as a stream. After a shutdown the stream ends with [`Event::Stopped`],
/// then `None`. The stream keeps the informer running while it exists.
pub struct EventStream<S: Stored = Object> {
    pub(super) slot: Arc<Slot<S>>,
    pub(super) timer: Timer,
    pub(super) _hold: Arc<dyn Any + Send + Sync>,
}

impl<S: Stored> EventStream<S> {
    /// Returns the next event. The call confirms that the previous one is processed. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event<S>> {
        poll_fn(|context| self.slot.poll_take(context, &mut self.timer)).await
    }

    /// The lag of the stream's reader.
    pub fn lag(&self) -> Lag {
        self.slot.lag()
    }

    /// The counters of this stream.
    pub fn counts(&self) -> Counts {
        self.slot.counts()
    }
}

impl<S: Stored> Stream for EventStream<S> {
    type Item = Event<S>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event<S>>> {
        let this = &mut *self;
        this.slot.poll_take(context, &mut this.timer)
    }
}

impl<S: Stored> Drop for EventStream<S> {
    fn drop(&mut self) {
        self.slot.end(HandlerEnd::Dropped);
    }
}

impl<S: Stored> fmt::Debug for EventStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventStream({})", self.slot.name)
    }
}

/// Passes events to a callback, one at a time, until the view is closed or the callback panics.
pub(super) async fn run_handler<S, F, Fut>(slot: Arc<Slot<S>>, mut callback: F)
where
    S: Stored,
    F: FnMut(Event<S>) -> Fut + Send,
    Fut: Future<Output = ()> + Send,
{
    // Records the end if the runtime drops this task.
    struct Guard<S: Stored>(Arc<Slot<S>>);
    impl<S: Stored> Drop for Guard<S> {
        fn drop(&mut self) {
            self.0.end(HandlerEnd::Aborted);
        }
    }
    let guard = Guard(slot);
    let mut timer = Timer::default();
    while let Some(event) = poll_fn(|context| guard.0.poll_take(context, &mut timer)).await {
        let call = AssertUnwindSafe(|| callback(event));
        let told = match std::panic::catch_unwind(call) {
            Ok(future) => catch_panic(future).await,
            Err(panic) => Err(panic_message(&*panic)),
        };
        if let Err(message) = told {
            tracing::error!(handler = %guard.0.name, %message, "a handler panicked and receives no more events");
            guard.0.end(HandlerEnd::Panicked { message });
            return;
        }
        // A long queue must not occupy a thread of the runtime.
        tokio::task::consume_budget().await;
    }
}

/// Runs a future and returns its panic as an error with the panic's message.
pub(super) async fn catch_panic<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let mut future = pin!(future);
    poll_fn(|context| match std::panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(panic) => Poll::Ready(Err(panic_message(&*panic))),
    })
    .await
}

pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
