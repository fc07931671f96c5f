//! [`WorkQueue`]: the queue of jobs. Each job runs at most once at the same time. Failed jobs are retried with backoff.
//! The queue has no clock: the current time is an argument.
//!
//! ```text
//!   add ─▶ Ready ──pop──▶ Running ──finish(Done)──▶ removed, or Ready if added meanwhile
//!            ▲               └──finish(Again)──▶ Later ──due time or add──▶ Ready
//!            └────────────────────────────────────┘
//! ```

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Delay before the first retry of a failed job. Each further failure doubles the delay.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// Maximum retry delay. A job that waits for a kind unknown to this server waits at most this long after the kind
/// is served.
pub(super) const RETRY_MAX: Duration = Duration::from_secs(30);

/// The result of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The job needs no retry. Later events add the job again.
    Done,
    /// The job failed and is retried.
    Again,
}

enum State {
    Ready,
    Later(Instant, u64),
    Running { added: bool },
}

struct Entry {
    state: State,
    failed: u32,
}

/// A queue of jobs, each in one of the states of the module's diagram.
pub(super) struct WorkQueue<J> {
    entries: HashMap<J, Entry>,
    /// The jobs in state Ready, each once, in the order in which they became ready.
    ready: VecDeque<J>,
    /// The jobs in state Later, by due time. The number distinguishes jobs with the same due time.
    later: BTreeMap<(Instant, u64), J>,
    next: u64,
}

impl<J> Default for WorkQueue<J> {
    fn default() -> Self {
        WorkQueue { entries: HashMap::new(), ready: VecDeque::new(), later: BTreeMap::new(), next: 0 }
    }
}

impl<J: Clone + Eq + Hash> WorkQueue<J> {
    /// Adds a job. A running job runs once more after it ends.
    pub(super) fn add(&mut self, job: &J) {
        match self.entries.get_mut(job) {
            None => {
                self.entries.insert(job.clone(), Entry { state: State::Ready, failed: 0 });
                self.ready.push_back(job.clone());
            }
            Some(entry) => match &mut entry.state {
                State::Ready => {}
                State::Running { added } => *added = true,
                State::Later(at, number) => {
                    self.later.remove(&(*at, *number));
                    entry.state = State::Ready;
                    self.ready.push_back(job.clone());
                }
            },
        }
    }

    /// Returns the next ready job and marks the job as running.
    pub(super) fn pop(&mut self, now: Instant) -> Option<J> {
        while let Some(first) = self.later.first_entry().filter(|first| first.key().0 <= now) {
            let job = first.remove();
            if let Some(entry) = self.entries.get_mut(&job) {
                entry.state = State::Ready;
                self.ready.push_back(job);
            }
        }
        let job = self.ready.pop_front()?;
        if let Some(entry) = self.entries.get_mut(&job) {
            entry.state = State::Running { added: false };
        }
        Some(job)
    }

    /// Records the result of a running job.
    pub(super) fn finish(&mut self, job: &J, outcome: Outcome, now: Instant) {
        let Some(entry) = self.entries.get_mut(job) else { return };
        let State::Running { added } = entry.state else { return };
        match outcome {
            Outcome::Done if added => {
                (entry.state, entry.failed) = (State::Ready, 0);
                self.ready.push_back(job.clone());
            }
            Outcome::Done => {
                self.entries.remove(job);
            }
            Outcome::Again => {
                let wait = RETRY_MIN.saturating_mul(1 << entry.failed.min(16)).min(RETRY_MAX);
                entry.failed = entry.failed.saturating_add(1);
                self.next += 1;
                entry.state = State::Later(now + wait, self.next);
                self.later.insert((now + wait, self.next), job.clone());
            }
        }
    }

    /// Returns the earliest time at which [`WorkQueue::pop`] returns a job. The result is not later than `now` if a
    /// job is ready.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        if !self.ready.is_empty() {
            return Some(now);
        }
        self.later.first_key_value().map(|((at, _), _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gc_queue_runs_each_job_once_at_a_time_and_doubles_its_retry_delay() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let mut work_queue = WorkQueue::default();
        assert_eq!((work_queue.pop(at(0)), work_queue.due(at(0))), (None, None));
        work_queue.add(&"a");
        work_queue.add(&"b");
        work_queue.add(&"a");
        assert_eq!(work_queue.due(at(0)), Some(at(0)));
        assert_eq!((work_queue.pop(at(0)), work_queue.pop(at(0)), work_queue.pop(at(0))), (Some("a"), Some("b"), None));

        work_queue.add(&"a");
        assert_eq!(work_queue.pop(at(0)), None, "a job that is being done is not begun again");
        work_queue.finish(&"a", Outcome::Done, at(0));
        assert_eq!(work_queue.pop(at(0)), Some("a"), "but once more when it was added meanwhile");
        work_queue.finish(&"a", Outcome::Done, at(0));
        assert_eq!(work_queue.pop(at(0)), None);

        work_queue.finish(&"b", Outcome::Again, at(0));
        assert_eq!((work_queue.pop(at(49)), work_queue.due(at(49))), (None, Some(at(50))));
        assert_eq!(work_queue.pop(at(50)), Some("b"));
        work_queue.finish(&"b", Outcome::Again, at(50));
        assert_eq!(work_queue.due(at(50)), Some(at(150)), "the wait doubles");
        work_queue.add(&"b");
        assert_eq!(work_queue.pop(at(60)), Some("b"), "news end the wait");
        for _ in 0..40 {
            work_queue.finish(&"b", Outcome::Again, at(0));
            assert!(work_queue.due(at(0)).unwrap() <= at(0) + RETRY_MAX, "a wait has an end");
            work_queue.pop(at(0) + RETRY_MAX).unwrap();
        }
        work_queue.finish(&"b", Outcome::Done, at(0));
        assert_eq!(work_queue.due(at(0)), None);
        assert!(
            work_queue.entries.is_empty() && work_queue.later.is_empty() && work_queue.ready.is_empty(),
            "nothing is left over"
        );
    }
}
