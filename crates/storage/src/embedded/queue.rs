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
        /// The writer's share of the memory for waiting writes.
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
    /// The number of waiting requests at which the committer wakes.
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

    /// Takes the next batch, waiting for one until `deadline`. Then waits until the batch has the expected number of
    /// requests, for at most the `patience` of `expected_writers`.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;

    /// Longer than any test runs.
    const LONG: Duration = Duration::from_secs(60);

    type Answer = oneshot::Receiver<Result<Revision, WriteError>>;

    fn put(bytes: usize) -> (Request, Answer) {
        let (answer, answered) = oneshot::channel();
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let op = WriteOp::Put { expected: Revision::ZERO, value: vec![0; bytes].into(), ttl: None };
        (Request::Write { key: Key::new("nodes", None, "n").unwrap(), op, answer, room }, answered)
    }

    fn delete() -> Request {
        let Request::Write { key, answer, room, .. } = put(0).0 else { unreachable!() };
        Request::Write { key, op: WriteOp::Delete { expected: Revision::new(1) }, answer, room }
    }

    fn queue(requests: impl IntoIterator<Item = Request>) -> Queue {
        let queue = Queue::default();
        requests.into_iter().for_each(|request| queue.push(request).map_err(drop).expect("the queue is open"));
        queue
    }

    /// Takes a batch while `requests` are expected for a long time, and returns its size. A take that waits for its
    /// deadline fails.
    fn take(queue: &Queue, requests: usize) -> Option<usize> {
        let deadline = Instant::now() + LONG;
        let taken = match queue.take(deadline, ExpectedWriters { requests, patience: LONG }) {
            Batch::Requests(requests) => Some(requests.len()),
            Batch::Nothing => Some(0),
            Batch::Closed => None,
        };
        assert!(Instant::now() < deadline, "the committer sleeps though there is work");
        taken
    }

    #[test]
    fn batch_is_bounded_in_requests_and_bytes() {
        let mib = |sizes: &[usize]| queue(sizes.iter().map(|mib| put(mib << 20).0));
        let check = |queue: Queue, expected: &[usize], why: &str| {
            let taken: Vec<_> = expected.iter().map(|_| take(&queue, 0).unwrap()).collect();
            assert_eq!((&taken[..], queue.len()), (expected, 0), "{why}");
        };
        check(mib(&[3, 3, 3, 3]), &[2, 2], "a third one exceeds the bytes of a batch");
        check(mib(&[4, 4, 1]), &[2, 1], "a batch may reach the bound");
        check(mib(&[9, 9]), &[1, 1], "one request of any size is a batch");
        check(queue((0..1500).map(|_| put(1).0)), &[BATCH_REQUESTS_MAX, 1500 - BATCH_REQUESTS_MAX], "many requests");
        check(queue((0..3).map(|_| delete())), &[3], "deletes have no bytes");
    }

    #[test]
    fn committer_waits_for_expected_writers_until_they_come() {
        assert_eq!(take(&queue([put(1).0, put(1).0]), 2), Some(2), "all are there");
        assert_eq!(take(&queue([put(1).0, put(1).0, put(1).0]), 2), Some(3), "more are there");
        let closed = queue([put(1).0]);
        closed.close();
        assert_eq!(take(&closed, 2), Some(1), "a closed queue gets no more");
        assert_eq!(take(&closed, 2), None, "and ends when it is empty");
        assert!(closed.push(put(1).0).is_err(), "a closed queue refuses requests");
        let nudged = queue([put(1).0]);
        nudged.nudge();
        assert_eq!(take(&nudged, 2), Some(1), "other work does not wait for writers");
        let impatient = ExpectedWriters { requests: 2, patience: Duration::ZERO };
        let taken = queue([put(1).0]).take(Instant::now(), impatient);
        assert!(matches!(taken, Batch::Requests(requests) if requests.len() == 1), "the wait is bounded");
    }

    #[test]
    fn sleeping_committer_wakes_for_requests_and_other_work() {
        let check = |queue: Queue, expected: usize, wake: fn(&Queue), result: Option<usize>, why: &str| {
            std::thread::scope(|scope| {
                let taking = scope.spawn(|| take(&queue, expected));
                // The number of requests that the sleeping committer waits for; it is set under the lock.
                let wanted = if queue.len() == 0 { 1 } else { expected };
                while queue.state.lock().wanted != wanted {
                    std::thread::yield_now();
                }
                wake(&queue);
                assert_eq!(taking.join().expect("the committer wakes"), result, "{why}");
                let nudged = queue.state.lock().nudged;
                assert!(!nudged || result != Some(0), "{why}: a nudge is used up by one wake-up");
            });
        };
        check(queue([]), 0, |queue| drop(queue.push(put(1).0)), Some(1), "a request");
        check(queue([]), 0, Queue::nudge, Some(0), "other work");
        check(queue([]), 0, Queue::close, None, "the end");
        check(queue([put(1).0]), 2, |queue| drop(queue.push(put(1).0)), Some(2), "the last expected writer");
        check(queue([put(1).0]), 2, Queue::nudge, Some(1), "other work while writers are expected");
    }

    #[test]
    fn nudge_before_the_committer_sleeps_is_not_lost() {
        let queue = queue([]);
        queue.nudge();
        assert_eq!(take(&queue, 0), Some(0));
        let now = Instant::now();
        assert!(matches!(queue.take(now, ExpectedWriters::default()), Batch::Nothing), "a deadline ends the sleep");
        assert!(!queue.state.lock().nudged, "a nudge is used up by one wake-up");
    }

    #[test]
    fn failed_request_receives_the_fault() {
        let fault = StoreFault::Corrupt("a test".to_owned());
        let (request, mut answered) = put(1);
        request.fail(fault.clone());
        assert!(matches!(answered.try_recv(), Ok(Err(WriteError::Fault(found))) if found == fault));
        let (answer, mut answered) = oneshot::channel();
        Request::Compact { to: Revision::new(1), answer }.fail(fault.clone());
        assert_eq!(answered.try_recv(), Ok(Err(fault)));
    }
}
