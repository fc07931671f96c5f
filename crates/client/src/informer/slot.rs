//! One handler's [`View`] behind a lock, with its waiters. The handler waits for events, the
//! informer waits for room, and handles wait for the handler to be synced or to end.
//!
//! A waiter checks its condition and stores its waker under the same lock, so no wake-up is lost. The
//! lock is held for a few map operations, never across an `await`.

use std::future::{Future as _, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant as StdInstant};

use tokio::sync::watch;
use tokio::time::Instant;

use super::event::{Event, Reason};
use super::handler::HandlerEnd;
use super::view::{Counts, Lag, Policy, View};
use crate::deadline::deadline;
use crate::indexer::{Change, Snapshot};
use crate::stored::Stored;

/// The view of one handler, shared by the handler's task and the informer; see the [module](self).
#[derive(Debug)]
pub(crate) struct Slot<S: Stored> {
    pub(crate) name: Arc<str>,
    state: Mutex<SlotState<S>>,
    progress: watch::Sender<Progress>,
}

#[derive(Debug)]
struct SlotState<S: Stored> {
    view: View<S>,
    consumer: Option<Waker>,
    producer: Option<Waker>,
}

/// The values that other tasks wait for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Progress {
    /// Whether the handler has processed the initial state.
    pub(crate) synced: bool,
    pub(crate) ended: Option<HandlerEnd>,
    /// Whether the handler has processed all events.
    pub(crate) idle: bool,
}

impl<S: Stored> Slot<S> {
    pub(crate) fn new(name: &str, policy: Policy, resync: Option<Duration>) -> Self {
        let state = SlotState { view: View::new(policy, resync), consumer: None, producer: None };
        let progress = Progress { idle: true, ..Progress::default() };
        Slot { name: name.into(), state: Mutex::new(state), progress: watch::Sender::new(progress) }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState<S>> {
        // Changes of a view do not panic halfway, so a poisoned lock holds a valid view.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the view and wakes its handler.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut View<S>) -> R) -> R {
        let mut state = self.lock();
        let result = change(&mut state.view);
        self.set_idle(state.view.is_idle());
        let consumer = state.consumer.take();
        let producer = state.producer.take().filter(|_| state.view.has_room());
        drop(state);
        for waker in [consumer, producer].into_iter().flatten() {
            waker.wake();
        }
        result
    }

    /// The next event for the handler. `Ready(None)` after the view is closed.
    pub(crate) fn poll_take(&self, context: &mut Context<'_>, timer: &mut Timer) -> Poll<Option<Event<S>>> {
        loop {
            let mut state = self.lock();
            let event = state.view.take(Instant::now().into_std());
            // Taking an event makes room.
            let producer = if state.view.has_room() { state.producer.take() } else { None };
            let over = event.is_none() && state.view.is_over();
            let timeout = state.view.poll_timeout();
            self.set_idle(state.view.is_idle());
            if event.is_none() && !over {
                state.consumer = Some(context.waker().clone());
            }
            drop(state);
            if let Some(producer) = producer {
                producer.wake();
            }
            if let Some(event) = event {
                if matches!(event, Event::Synced) {
                    self.progress.send_if_modified(|progress| !std::mem::replace(&mut progress.synced, true));
                }
                return Poll::Ready(Some(event));
            }
            if over {
                self.end(HandlerEnd::Removed);
                return Poll::Ready(None);
            }
            match timer.poll(context, timeout) {
                Poll::Ready(()) => continue,
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Records that the handler takes no more events. The first reason is kept.
    pub(crate) fn end(&self, why: HandlerEnd) {
        self.change(|view| view.close(false));
        self.progress.send_if_modified(|progress| {
            let first = progress.ended.is_none();
            if first {
                progress.ended = Some(why);
            }
            first
        });
    }

    pub(crate) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.progress.borrow().ended.is_some()
    }

    pub(crate) fn has_synced(&self) -> bool {
        self.progress.borrow().synced
    }

    pub(crate) fn lag(&self) -> Lag {
        self.lock().view.lag(Instant::now().into_std())
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lock().view.counts()
    }

    pub(crate) fn policy(&self) -> Policy {
        self.lock().view.policy()
    }

    /// Publishes whether the handler is idle. The call is made under the lock, so that the last published value is
    /// current.
    fn set_idle(&self, idle: bool) {
        self.progress.send_if_modified(|progress| std::mem::replace(&mut progress.idle, idle) != idle);
    }

    /// Waits until the handler has processed all events, or has ended.
    pub(crate) async fn idle(&self) {
        // The sender is in this slot, so there is no error.
        let _ = self.progress.subscribe().wait_for(|progress| progress.idle || progress.ended.is_some()).await;
    }

    /// Pushes a batch into the view of a handler under [`Policy::Block`]. Returns the number of
    /// changes that it has taken. See [`View::begin_parts`].
    pub(crate) fn begin_parts(&self, changes: &[Change<S>], why: Option<Reason>, state: &Arc<Snapshot<S>>) -> usize {
        let now = Instant::now().into_std();
        self.change(|view| view.begin_parts(now, changes, why, state.clone()))
    }

    /// Pushes the rest of a batch of [`Slot::begin_parts`] while there is room. The wait ends when the handler takes
    /// nothing for its policy's timeout; earlier waits count, see [`View::stalled`]. If this future
    /// is dropped, call [`Slot::push_rest_now`] for the rest of the batch.
    pub(crate) async fn push_rest(&self, changes: &[Change<S>], why: Option<Reason>, taken: &mut usize) {
        let Policy::Block { timeout, .. } = self.policy() else { return };
        let mut waiting_since = Instant::now();
        let mut allowed = timeout.saturating_sub(self.lock().view.stalled());
        while *taken < changes.len() {
            let waiter = poll_fn(|context| {
                let mut state = self.lock();
                if state.view.has_room() {
                    return Poll::Ready(());
                }
                state.producer = Some(context.waker().clone());
                Poll::Pending
            });
            let has_room = tokio::time::timeout_at(deadline(waiting_since, allowed), waiter).await.is_ok();
            if has_room {
                waiting_since = Instant::now();
                let now = waiting_since.into_std();
                *taken += self.change(|view| view.push_part(now, &changes[*taken..], why));
            } else {
                let last_take = self.lock().view.last_take().map(Instant::from_std);
                match last_take.filter(|at| *at > waiting_since) {
                    Some(at) => waiting_since = at,
                    None => {
                        tracing::warn!(handler = %self.name, ?timeout, "a handler that needs each change accepted none in time; its further changes are coalesced");
                        self.change(View::stop_blocking);
                    }
                }
            }
            // The handler took an event, or its timeout was reached.
            allowed = timeout;
        }
        self.change(View::end_parts);
    }

    /// Records that the informer waited for handlers during this time. See [`View::record_wait`].
    pub(crate) fn record_wait(&self, from: StdInstant, to: StdInstant) {
        self.lock().view.record_wait(from, to);
    }

    /// Pushes the rest of a batch of [`Slot::begin_parts`] at once, coalesced.
    pub(crate) fn push_rest_now(&self, changes: &[Change<S>], why: Option<Reason>) {
        let now: StdInstant = Instant::now().into_std();
        self.change(|view| {
            view.stop_blocking();
            view.push_part(now, changes, why);
            view.end_parts();
        });
    }
}

/// A timer that is kept between polls.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    sleep: Option<std::pin::Pin<Box<tokio::time::Sleep>>>,
}

impl Timer {
    /// Ready at `due`; pending forever without it.
    fn poll(&mut self, context: &mut Context<'_>, due: Option<StdInstant>) -> Poll<()> {
        let Some(due) = due.map(Instant::from_std) else {
            self.sleep = None;
            return Poll::Pending;
        };
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        if sleep.deadline() != due {
            sleep.as_mut().reset(due);
        }
        sleep.as_mut().poll(context)
    }
}
