//! The queue between many writers and the one committer thread.
//!
//! While one commit is being synced the next writers gather here; the committer then takes them
//! all. That is the whole of group commit. The queue's length is bounded by the room that a writer
//! takes before it comes here.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use listwatch_meta::{Key, Revision};
use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::engine::Engine;
use super::repack::Copy;
use crate::error::StoreFault;

/// One commit takes at most this many requests. More would make the first of them wait longer
/// than a sync takes.
const BATCH_REQUESTS_MAX: usize = 1024;

/// One commit takes at most about this many bytes of values.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// What a writer wants.
#[derive(Debug)]
pub(super) enum Wish {
    /// Write a key that is at this revision; zero is "not there".
    Put {
        /// The revision the key must be at.
        expected: Revision,
        /// The value to write.
        value: Bytes,
        /// How long the key lives.
        ttl: Option<Duration>,
    },
    /// Remove a key that is at this revision.
    Delete {
        /// The revision the key must be at.
        expected: Revision,
    },
}

/// Why a wish was not granted.
#[derive(Debug)]
pub(super) enum Denial {
    /// The key is not at the expected revision.
    Lost,
    /// The store failed.
    Fault(StoreFault),
}

/// What the committer is asked for.
#[derive(Debug)]
pub(super) enum Request {
    /// A change of one key.
    Write {
        /// Which key.
        key: Key,
        /// What to do with it.
        wish: Wish,
        /// Told when the change is durable, or why it is not made.
        answer: oneshot::Sender<Result<Revision, Denial>>,
        /// The writer's share of the queue's room.
        room: OwnedSemaphorePermit,
    },
    /// Go on in a copy that is denser.
    Replace {
        /// The copy, almost complete.
        copy: Copy,
        /// Handed the former engine when the copy has taken its place.
        answer: oneshot::Sender<Result<Engine, StoreFault>>,
    },
    /// Forget history before a revision.
    Compact {
        /// The revision.
        to: Revision,
        /// Told when this is accepted, durably.
        answer: oneshot::Sender<Result<(), StoreFault>>,
    },
}

impl Request {
    /// Bytes of the value that it writes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Request::Write { wish: Wish::Put { value, .. }, .. } => value.len(),
            _ => 0,
        }
    }

    /// Tells the asker that the store failed.
    pub(super) fn fail(self, fault: StoreFault) {
        // An asker that went away does not care.
        match self {
            Request::Write { answer, .. } => drop(answer.send(Err(Denial::Fault(fault)))),
            Request::Compact { answer, .. } => drop(answer.send(Err(fault))),
            Request::Replace { answer, .. } => drop(answer.send(Err(fault))),
        }
    }
}

#[derive(Default)]
struct State {
    requests: VecDeque<Request>,
    /// The committer sleeps until so many are here.
    wanted: usize,
    nudged: bool,
    closed: bool,
}

/// See the file's head.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
}

/// How many writers are likely to come back soon, having been answered, and how long to wait for
/// them. Without that wait the first of them would be written alone, with a sync of its own, and all
/// others wait for two.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Crowd {
    pub requests: usize,
    pub patience: Duration,
}

/// What the committer finds.
pub(super) enum Taken {
    /// Requests, in the order they came; at least one.
    Requests(Vec<Request>),
    /// Nothing came in time.
    Nothing,
    /// The store is to be closed, and no request is left.
    Closed,
}

impl Queue {
    /// Adds a request.
    ///
    /// # Errors
    /// Hands it back when the store is closed.
    pub(super) fn push(&self, request: Request) -> Result<(), Request> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(request);
        }
        state.requests.push_back(request);
        let enough = state.requests.len() >= state.wanted;
        drop(state);
        if enough {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// So many requests wait.
    pub(super) fn len(&self) -> usize {
        self.state.lock().requests.len()
    }

    /// The committer looks at once whether it has something to do by itself.
    pub(super) fn nudge(&self) {
        self.state.lock().nudged = true;
        self.filled.notify_one();
    }

    /// Takes the next batch, waiting until `deadline` for one; then waits for the rest of `crowd`
    /// requests that are likely to come, but no longer than that says.
    pub(super) fn take(&self, deadline: Instant, crowd: Crowd) -> Taken {
        let mut state = self.state.lock();
        state.wanted = 1;
        while state.requests.is_empty() {
            if state.closed {
                return Taken::Closed;
            }
            if std::mem::take(&mut state.nudged) {
                return Taken::Nothing;
            }
            if self.filled.wait_until(&mut state, deadline).timed_out() && state.requests.is_empty() && !state.closed {
                return Taken::Nothing;
            }
        }
        state.wanted = crowd.requests.min(BATCH_REQUESTS_MAX);
        let patience = Instant::now() + crowd.patience;
        while state.requests.len() < state.wanted && !state.closed && !state.nudged {
            if self.filled.wait_until(&mut state, patience).timed_out() {
                break;
            }
        }
        state.wanted = 1;
        let mut bytes = 0;
        let mut count = 0;
        for request in state.requests.iter().take(BATCH_REQUESTS_MAX) {
            bytes += request.bytes();
            if count > 0 && bytes > BATCH_BYTES_MAX {
                break;
            }
            count += 1;
        }
        Taken::Requests(state.requests.drain(..count).collect())
    }

    /// Nothing is added any more; what is there is still taken.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_one();
    }
}
