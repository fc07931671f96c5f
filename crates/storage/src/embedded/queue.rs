//! The queue between many writers and the committer thread.
//!
//! While a commit is being synced, the next writers gather here; the committer then takes all of them (group commit).
//! Each writer acquires a share of a fixed amount of memory before it enters the queue, which bounds the queue.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use listwatch_meta::{Key, Revision};
use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::engine::Engine;
use super::repack::Copy;
use crate::error::StoreFault;

/// The maximum number of requests of one commit. With more requests, the first would wait longer than a sync takes.
const BATCH_REQUESTS_MAX: usize = 1024;

/// Approximate bytes of values in one commit.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// The operation of a writer.
#[derive(Debug)]
pub(super) enum WriteOp {
    /// Writes a key that is at this revision; zero means absent.
    Put {
        /// The expected revision of the key.
        expected: Revision,
        /// The value to write.
        value: Bytes,
        /// The key's time to live.
        ttl: Option<Duration>,
    },
    /// Removes a key that is at this revision.
    Delete {
        /// The expected revision of the key.
        expected: Revision,
    },
}

/// The error of a write.
#[derive(Debug)]
pub(super) enum WriteError {
    /// The key is not at the expected revision.
    Conflict,
    /// The store failed.
    Fault(StoreFault),
}

/// A request to the committer.
#[derive(Debug)]
pub(super) enum Request {
    /// A change of one key.
    Write {
        /// The key.
        key: Key,
        /// The operation.
        op: WriteOp,
        /// Receives the revision once the change is durable, or the error.
        answer: oneshot::Sender<Result<Revision, WriteError>>,
        /// The writer's share of the queue's room.
        room: OwnedSemaphorePermit,
    },
    /// Switches to a compacted copy of the database.
    Replace {
        /// The almost complete copy.
        copy: Copy,
        /// Receives the former engine when the copy has replaced it.
        answer: oneshot::Sender<Result<Engine, StoreFault>>,
    },
    /// Compacts history before a revision.
    Compact {
        /// The revision.
        to: Revision,
        /// Receives the result once the compaction is durably accepted.
        answer: oneshot::Sender<Result<(), StoreFault>>,
    },
}

impl Request {
    /// Bytes of the value to write.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Request::Write { op: WriteOp::Put { value, .. }, .. } => value.len(),
            _ => 0,
        }
    }

    /// Fails the request with a fault.
    pub(super) fn fail(self, fault: StoreFault) {
        // A dropped receiver needs no answer.
        match self {
            Request::Write { answer, .. } => drop(answer.send(Err(WriteError::Fault(fault)))),
            Request::Compact { answer, .. } => drop(answer.send(Err(fault))),
            Request::Replace { answer, .. } => drop(answer.send(Err(fault))),
        }
    }
}

#[derive(Default)]
struct State {
    requests: VecDeque<Request>,
    /// The committer sleeps until this many requests wait.
    wanted: usize,
    nudged: bool,
    closed: bool,
}

/// The request queue.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
}

/// The number of writers that are likely to write again soon after their result, and the time to wait for them. Without
/// the wait, the first writer would be written alone with its own sync, and all others would wait for two syncs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpectedWriters {
    pub requests: usize,
    pub patience: Duration,
}

/// The result of taking a batch.
pub(super) enum Batch {
    /// Requests in order of arrival; at least one.
    Requests(Vec<Request>),
    /// No request came in time.
    Nothing,
    /// The store is being closed, and no request is left.
    Closed,
}

impl Queue {
    /// Adds a request.
    ///
    /// # Errors
    /// Returns the request when the store is closed.
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

    /// The number of waiting requests.
    pub(super) fn len(&self) -> usize {
        self.state.lock().requests.len()
    }

    /// Wakes the committer to check for work without a request.
    pub(super) fn nudge(&self) {
        self.state.lock().nudged = true;
        self.filled.notify_one();
    }

    /// Takes the next batch, waiting for one until `deadline`. Then waits for the other `expected_writers`
    /// requests that are likely to come, up to the time given there.
    pub(super) fn take(&self, deadline: Instant, expected_writers: ExpectedWriters) -> Batch {
        let mut state = self.state.lock();
        state.wanted = 1;
        while state.requests.is_empty() {
            if state.closed {
                return Batch::Closed;
            }
            if std::mem::take(&mut state.nudged) {
                return Batch::Nothing;
            }
            if self.filled.wait_until(&mut state, deadline).timed_out() && state.requests.is_empty() && !state.closed {
                return Batch::Nothing;
            }
        }
        state.wanted = expected_writers.requests.min(BATCH_REQUESTS_MAX);
        let patience = Instant::now() + expected_writers.patience;
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
        Batch::Requests(state.requests.drain(..count).collect())
    }

    /// Rejects further requests; queued ones are still taken.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_one();
    }
}
