//! Distributes the changes of one informer to its handlers: [`Hub`].
//!
//! The hub holds the last distributed state. A new handler begins with that state and receives all
//! later changes. Both happen under the hub's lock, so there is no gap and no duplicate. The lock
//! is held while a batch is added to the views, never during a wait.

use std::future::{Future as _, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::time::Instant;

use listwatch_meta::canary;

use super::event::{Reason, StopReason};
use super::slot::Slot;
use super::view::Policy;
use crate::delta_fifo::Quarantined;
use crate::indexer::{Change, Snapshot};
use crate::object::ObjectKey;
use crate::stored::Stored;

/// Distributes the changes of an informer to its handlers; see the [module](self).
#[derive(Debug)]
pub(crate) struct Hub<S: Stored> {
    state: Mutex<HubState<S>>,
}

#[derive(Debug)]
struct HubState<S: Stored> {
    /// The last distributed state; `None` before the first.
    distributed: Option<Arc<Snapshot<S>>>,
    /// Whether the distributed state contains the complete initial state.
    whole: bool,
    stopped: Option<StopReason>,
    closed: bool,
    slots: Vec<Arc<Slot<S>>>,
}

/// A batch that all handlers have received, except those under [`Policy::Block`] without room for
/// all of it. Before the next batch is pushed, [`Hub::feed`] or [`PartialPush::finish_now`]
/// delivers the rest.
#[must_use = "the handlers that are behind never get the rest otherwise"]
pub(crate) struct PartialPush<S: Stored> {
    changes: Vec<Change<S>>,
    why: Option<Reason>,
    behind: Vec<PendingHandler<S>>,
}

/// A handler that has received only the first changes of a batch.
struct PendingHandler<S: Stored> {
    slot: Arc<Slot<S>>,
    /// The number of changes in the batch.
    taken: usize,
}

impl<S: Stored> PartialPush<S> {
    /// Coalesces the rest for each lagging handler without waiting.
    pub(crate) fn finish_now(self) {
        for PendingHandler { slot, taken } in &self.behind {
            slot.push_rest_now(&self.changes[*taken..], self.why);
        }
    }
}

impl<S: Stored> Hub<S> {
    pub(crate) fn new() -> Self {
        let state = HubState { distributed: None, whole: false, stopped: None, closed: false, slots: Vec::new() };
        Hub { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, HubState<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a handler.
    pub(crate) fn add(&self, slot: Arc<Slot<S>>) {
        let mut state = self.lock();
        let now = Instant::now().into_std();
        slot.change(|view| {
            if let Some(distributed) = &state.distributed
                && !canary!("client-starts-late-handlers-empty")
            {
                view.begin(now, distributed.clone());
            }
            if state.whole {
                view.end_initial();
            }
            if let Some(why) = &state.stopped {
                view.stop(why.clone());
            }
            if state.closed {
                view.close(true);
            }
        });
        state.slots.retain(|slot| !slot.has_ended());
        state.slots.push(slot);
    }

    /// Sets the first state, whose objects are not changes.
    pub(crate) fn begin(&self, distributed: &Arc<Snapshot<S>>) {
        let mut state = self.lock();
        if state.distributed.is_some() {
            return;
        }
        state.distributed = Some(distributed.clone());
        let now = Instant::now().into_std();
        for slot in &state.slots {
            slot.change(|view| view.begin(now, distributed.clone()));
        }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.lock().distributed.is_some()
    }

    /// Marks the initial state as complete.
    pub(crate) fn end_initial(&self) {
        let mut state = self.lock();
        state.whole = true;
        for slot in &state.slots {
            slot.change(super::view::View::end_initial);
        }
    }

    /// Pushes changes to every handler. A handler without room for all of them receives the rest
    /// through [`Hub::feed`].
    pub(crate) fn push(
        &self,
        changes: Vec<Change<S>>,
        why: Option<Reason>,
        distributed: &Arc<Snapshot<S>>,
    ) -> PartialPush<S> {
        let mut state = self.lock();
        state.distributed = Some(distributed.clone());
        state.slots.retain(|slot| !slot.has_ended());
        let now = Instant::now().into_std();
        let mut behind = Vec::new();
        for slot in &state.slots {
            if matches!(slot.policy(), Policy::Block { .. }) {
                let taken = slot.begin_parts(&changes, why, distributed);
                if taken < changes.len() {
                    behind.push(PendingHandler { slot: slot.clone(), taken });
                } else {
                    slot.change(super::view::View::end_parts);
                }
            } else {
                slot.change(|view| view.push(now, &changes, why, distributed.clone()));
            }
        }
        PartialPush { changes, why, behind }
    }

    /// Waits for all lagging handlers at the same time. The wait counts against the timeout of
    /// every handler that has events and takes none, including handlers that still have room. Stuck
    /// handlers therefore delay the others by one timeout in total. The order in which queues fill
    /// up is irrelevant.
    ///
    /// If this future is dropped before its end, call [`PartialPush::finish_now`].
    pub(crate) async fn feed(&self, pushed: &mut PartialPush<S>) {
        let PartialPush { changes, why, behind } = pushed;
        if behind.is_empty() {
            return;
        }
        let from = Instant::now().into_std();
        let waits =
            behind.iter_mut().map(|PendingHandler { slot, taken }| Box::pin(slot.push_rest(changes, *why, taken)));
        let mut waits: Vec<_> = waits.collect();
        poll_fn(|context| {
            waits.retain_mut(|wait| wait.as_mut().poll(context).is_pending());
            if waits.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        drop(waits);
        behind.clear();
        let to = Instant::now().into_std();
        for slot in &self.lock().slots {
            slot.record_wait(from, to);
        }
    }

    /// Reports an object that could not be decoded.
    pub(crate) fn push_quarantined(&self, key: &ObjectKey, entry: &Arc<Quarantined>) {
        let state = self.lock();
        // A handler without a state finds the object in the state with which it begins.
        for slot in state.slots.iter().filter(|_| state.distributed.is_some()) {
            slot.change(|view| view.push_quarantined(key, entry));
        }
    }

    /// Records that the informer stopped.
    pub(crate) fn stop(&self, why: &StopReason) {
        let mut state = self.lock();
        state.stopped = Some(why.clone());
        for slot in &state.slots {
            slot.change(|view| view.stop(why.clone()));
        }
    }

    /// Records that the informer was started again.
    pub(crate) fn restart(&self) {
        let mut state = self.lock();
        state.stopped = None;
        for slot in &state.slots {
            slot.change(super::view::View::restart);
        }
    }

    /// Closes all views: handlers end after they have processed the waiting events.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        for slot in &state.slots {
            slot.change(|view| view.close(true));
        }
    }

    /// The handlers that have not ended.
    pub(crate) fn slots(&self) -> Vec<Arc<Slot<S>>> {
        let mut state = self.lock();
        state.slots.retain(|slot| !slot.has_ended());
        state.slots.clone()
    }
}
