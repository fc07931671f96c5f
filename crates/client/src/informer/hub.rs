//! Distributes the changes of one informer to its handlers: [`Hub`].
//!
//! The hub holds the last distributed state. A joining handler begins with that state and receives
//! all later changes; both happen under the hub's lock, so there is no gap and no duplicate. The
//! lock is held while a batch is added to the views, never during a wait.

use std::future::{Future as _, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::time::Instant;

use super::event::{Reason, Stop};
use super::slot::Slot;
use super::view::Policy;
use crate::delta_fifo::Quarantined;
use crate::indexer::{Change, Snapshot};
use crate::object::ObjectKey;
use crate::stored::Stored;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Hub<S: Stored> {
    state: Mutex<State<S>>,
}

#[derive(Debug)]
struct State<S: Stored> {
    /// The last distributed state; `None` before the first.
    told: Option<Arc<Snapshot<S>>>,
    /// It was the whole state at the beginning, or followed it.
    whole: bool,
    stopped: Option<Stop>,
    closed: bool,
    slots: Vec<Arc<Slot<S>>>,
}

/// A batch that every handler has, but for those under [`Policy::Block`] that have no room for all of
/// it. Before the next batch is pushed, [`Hub::feed`] or [`Pushed::finish_now`] hands out the rest.
#[must_use = "the handlers that are behind never get the rest otherwise"]
pub(crate) struct Pushed<S: Stored> {
    changes: Vec<Change<S>>,
    why: Option<Reason>,
    behind: Vec<Backlog<S>>,
}

/// A handler that has taken only the first changes of a batch.
struct Backlog<S: Stored> {
    slot: Arc<Slot<S>>,
    /// The number of changes in the batch.
    taken: usize,
}

impl<S: Stored> Pushed<S> {
    /// Does not wait: each lagging handler gets the rest coalesced.
    pub(crate) fn finish_now(self) {
        for Backlog { slot, taken } in &self.behind {
            slot.push_rest_now(&self.changes[*taken..], self.why);
        }
    }
}

impl<S: Stored> Hub<S> {
    pub(crate) fn new() -> Self {
        let state = State { told: None, whole: false, stopped: None, closed: false, slots: Vec::new() };
        Hub { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a handler in.
    pub(crate) fn add(&self, slot: Arc<Slot<S>>) {
        let mut state = self.lock();
        let now = Instant::now().into_std();
        slot.change(|view| {
            if let Some(told) = &state.told {
                view.begin(now, told.clone());
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
    pub(crate) fn begin(&self, told: &Arc<Snapshot<S>>) {
        let mut state = self.lock();
        if state.told.is_some() {
            return;
        }
        state.told = Some(told.clone());
        let now = Instant::now().into_std();
        for slot in &state.slots {
            slot.change(|view| view.begin(now, told.clone()));
        }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.lock().told.is_some()
    }

    /// The state at the beginning is whole.
    pub(crate) fn end_initial(&self) {
        let mut state = self.lock();
        state.whole = true;
        for slot in &state.slots {
            slot.change(super::view::View::end_initial);
        }
    }

    /// Tells every handler what changed. Those that have no room for all of it get the rest through
    /// [`Hub::feed`].
    pub(crate) fn push(&self, changes: Vec<Change<S>>, why: Option<Reason>, told: &Arc<Snapshot<S>>) -> Pushed<S> {
        let mut state = self.lock();
        state.told = Some(told.clone());
        state.slots.retain(|slot| !slot.has_ended());
        let now = Instant::now().into_std();
        let mut behind = Vec::new();
        for slot in &state.slots {
            if matches!(slot.policy(), Policy::Block { .. }) {
                let taken = slot.begin_parts(&changes, why, told);
                if taken < changes.len() {
                    behind.push(Backlog { slot: slot.clone(), taken });
                } else {
                    slot.change(super::view::View::end_parts);
                }
            } else {
                slot.change(|view| view.push(now, &changes, why, told.clone()));
            }
        }
        Pushed { changes, why, behind }
    }

    /// Waits for all handlers that are behind, at the same time. The wait counts against the patience of
    /// every handler that takes nothing during it although it could, including handlers that still have
    /// room. Stuck handlers therefore delay the others by one patience in total, in whatever order their
    /// queues fill up.
    ///
    /// If this future is dropped before it ends, call [`Pushed::finish_now`].
    pub(crate) async fn feed(&self, pushed: &mut Pushed<S>) {
        let Pushed { changes, why, behind } = pushed;
        if behind.is_empty() {
            return;
        }
        let from = Instant::now().into_std();
        let waits = behind.iter_mut().map(|Backlog { slot, taken }| Box::pin(slot.push_rest(changes, *why, taken)));
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
            slot.note_wait(from, to);
        }
    }

    /// An object could not be decoded.
    pub(crate) fn push_quarantined(&self, key: &ObjectKey, entry: &Arc<Quarantined>) {
        let state = self.lock();
        // Those who have not begun find it in the state they begin with.
        for slot in state.slots.iter().filter(|_| state.told.is_some()) {
            slot.change(|view| view.push_quarantined(key, entry));
        }
    }

    /// Records that the informer stopped.
    pub(crate) fn stop(&self, why: &Stop) {
        let mut state = self.lock();
        state.stopped = Some(why.clone());
        for slot in &state.slots {
            slot.change(|view| view.stop(why.clone()));
        }
    }

    /// The informer runs again.
    pub(crate) fn restart(&self) {
        let mut state = self.lock();
        state.stopped = None;
        for slot in &state.slots {
            slot.change(super::view::View::restart);
        }
    }

    /// There will be no more, ever: handlers end when they have processed what there is.
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
