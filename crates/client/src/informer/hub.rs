//! From one informer to its handlers: [`Hub`].
//!
//! The hub knows the state that was told last. A handler that joins begins with that state and gets
//! everything after it, both under the hub's lock, so it has no gap and nothing twice. The lock is
//! held while a batch is put into the views, never while somebody waits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// The state that was told last; `None` before there is one.
    told: Option<Arc<Snapshot<S>>>,
    /// It was the whole state at the beginning, or followed it.
    whole: bool,
    stopped: Option<Stop>,
    closed: bool,
    slots: Vec<Arc<Slot<S>>>,
}

/// A batch that a handler under [`Policy::Block`] has not taken whole.
pub(crate) struct Backlog<S: Stored> {
    pub(crate) slot: Arc<Slot<S>>,
    /// How many changes of the batch it has.
    pub(crate) taken: usize,
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

    /// There is a state, the first one; what it holds is part of it, not news.
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

    /// Tells everybody what changed, and returns those who could not take all of it: see
    /// [`Slot::push_rest`].
    pub(crate) fn push(&self, changes: &[Change<S>], why: Option<Reason>, told: &Arc<Snapshot<S>>) -> Vec<Backlog<S>> {
        let mut state = self.lock();
        state.told = Some(told.clone());
        state.slots.retain(|slot| !slot.has_ended());
        let now = Instant::now().into_std();
        let mut behind = Vec::new();
        for slot in &state.slots {
            if matches!(slot.policy(), Policy::Block { .. }) {
                let taken = slot.begin_parts(changes, why, told);
                if taken < changes.len() {
                    behind.push(Backlog { slot: slot.clone(), taken });
                } else {
                    slot.change(super::view::View::end_parts);
                }
            } else {
                slot.change(|view| view.push(now, changes, why, told.clone()));
            }
        }
        behind
    }

    /// An object could not be decoded.
    pub(crate) fn push_quarantined(&self, key: &ObjectKey, entry: &Arc<Quarantined>) {
        let state = self.lock();
        // Those who have not begun find it in the state they begin with.
        for slot in state.slots.iter().filter(|_| state.told.is_some()) {
            slot.change(|view| view.push_quarantined(key, entry));
        }
    }

    /// The informer stands still.
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
