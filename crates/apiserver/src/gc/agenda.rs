//! [`Agenda`]: which jobs are to be done, one at a time each, and when those that failed are tried
//! again. A plain value; the time is an argument.
//!
//! ```text
//!   add ─▶ Ready ──pop──▶ Running ──finish(Done)──▶ forgotten, or Ready if added meanwhile
//!            ▲               └──finish(Again)──▶ Later ──its time, or add──▶ Ready
//!            └────────────────────────────────────┘
//! ```

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// A job that failed is tried again after this time, then after twice of it, and so on.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// But not later than after this time. It is also how long a job may wait for a kind of which this
/// server has not heard.
pub(super) const RETRY_MAX: Duration = Duration::from_secs(30);

/// What a job came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing is left to do, or an event will say what is.
    Done,
    /// It failed, and may not fail next time.
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

/// Jobs, each in one of the states above.
pub(super) struct Agenda<J> {
    entries: HashMap<J, Entry>,
    /// Every job in state Ready stands here once, in the order in which they became ready.
    ready: VecDeque<J>,
    /// Every job in state Later; the number keeps jobs of one moment apart.
    later: BTreeMap<(Instant, u64), J>,
    next: u64,
}

impl<J> Default for Agenda<J> {
    fn default() -> Self {
        Agenda { entries: HashMap::new(), ready: VecDeque::new(), later: BTreeMap::new(), next: 0 }
    }
}

impl<J: Clone + Eq + Hash> Agenda<J> {
    /// This is to be done: soon, or once more when it is being done.
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

    /// The next job, which is being done from now on.
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

    /// A job has been done.
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

    /// When [`Agenda::pop`] is worth a call: a time that has come when something is ready.
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
    fn each_job_is_done_once_at_a_time_and_backs_off() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let mut agenda = Agenda::default();
        assert_eq!((agenda.pop(at(0)), agenda.due(at(0))), (None, None));
        agenda.add(&"a");
        agenda.add(&"b");
        agenda.add(&"a");
        assert_eq!(agenda.due(at(0)), Some(at(0)));
        assert_eq!((agenda.pop(at(0)), agenda.pop(at(0)), agenda.pop(at(0))), (Some("a"), Some("b"), None));

        agenda.add(&"a");
        assert_eq!(agenda.pop(at(0)), None, "a job that is being done is not begun again");
        agenda.finish(&"a", Outcome::Done, at(0));
        assert_eq!(agenda.pop(at(0)), Some("a"), "but once more when it was added meanwhile");
        agenda.finish(&"a", Outcome::Done, at(0));
        assert_eq!(agenda.pop(at(0)), None);

        agenda.finish(&"b", Outcome::Again, at(0));
        assert_eq!((agenda.pop(at(49)), agenda.due(at(49))), (None, Some(at(50))));
        assert_eq!(agenda.pop(at(50)), Some("b"));
        agenda.finish(&"b", Outcome::Again, at(50));
        assert_eq!(agenda.due(at(50)), Some(at(150)), "the wait doubles");
        agenda.add(&"b");
        assert_eq!(agenda.pop(at(60)), Some("b"), "news end the wait");
        for _ in 0..40 {
            agenda.finish(&"b", Outcome::Again, at(0));
            assert!(agenda.due(at(0)).unwrap() <= at(0) + RETRY_MAX, "a wait has an end");
            agenda.pop(at(0) + RETRY_MAX).unwrap();
        }
        agenda.finish(&"b", Outcome::Done, at(0));
        assert_eq!(agenda.due(at(0)), None);
        assert!(
            agenda.entries.is_empty() && agenda.later.is_empty() && agenda.ready.is_empty(),
            "nothing is left over"
        );
    }
}
