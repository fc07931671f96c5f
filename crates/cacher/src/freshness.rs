//! [`Freshness`]: the reads that wait for a revision. Progress requests to the store are scheduled
//! while any read waits.

use std::collections::BTreeMap;
use std::time::Instant;

use listwatch_meta::Revision;

use crate::limits::Limits;

/// Waiters ordered by revision. `W` is the caller's handle of a waiter.
pub(crate) struct Freshness<W> {
    revision: Revision,
    waiters: BTreeMap<(Revision, u64), W>,
    next_id: u64,
    /// The time of the next progress request, while any read waits.
    ask_at: Option<Instant>,
}

/// A waiter's entry in the queue; needed to cancel the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(Revision, u64);

impl<W> Freshness<W> {
    pub(crate) fn new() -> Self {
        Freshness { revision: Revision::ZERO, waiters: BTreeMap::new(), next_id: 0, ask_at: None }
    }

    /// Adds a waiter for `revision`. Returns `None` if the revision is already reached.
    pub(crate) fn handle_wait(&mut self, now: Instant, revision: Revision, waiter: W) -> Option<Ticket> {
        if revision <= self.revision {
            return None;
        }
        self.next_id += 1;
        let ticket = Ticket(revision, self.next_id);
        self.waiters.insert((ticket.0, ticket.1), waiter);
        // The first waiter asks at once: the revision may be a write of another resource.
        self.ask_at.get_or_insert(now);
        Some(ticket)
    }

    /// Removes a waiter.
    pub(crate) fn handle_cancel(&mut self, ticket: Ticket) {
        self.waiters.remove(&(ticket.0, ticket.1));
        self.rest();
    }

    /// Records that the cache is complete up to `revision`. Returns the waiters that are done.
    pub(crate) fn handle_revision(&mut self, revision: Revision) -> Vec<W> {
        if revision <= self.revision {
            return Vec::new();
        }
        self.revision = revision;
        if self.waiters.is_empty() {
            return Vec::new();
        }
        let waiting = self.waiters.split_off(&(revision.next(), 0));
        let served = std::mem::replace(&mut self.waiters, waiting);
        self.rest();
        served.into_values().collect()
    }

    /// Records that a state of this revision, perhaps an older one, is about to replace the current
    /// state. Waiters stay, because they wait for revisions newer than both.
    pub(crate) fn handle_replacing(&mut self, revision: Revision) {
        self.revision = self.revision.min(revision);
    }

    /// Returns true if progress should be requested from the store now.
    pub(crate) fn poll_progress(&mut self, now: Instant, limits: &Limits) -> bool {
        let due = self.ask_at.is_some_and(|at| at <= now);
        if due {
            self.ask_at = Some(now + limits.progress_interval);
        }
        due
    }

    /// The time of the next call of [`Freshness::poll_progress`].
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.ask_at
    }

    /// The number of waiters.
    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    fn rest(&mut self) {
        if self.waiters.is_empty() {
            self.ask_at = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiter_is_released_when_its_revision_is_reached() {
        let (now, r) = (Instant::now(), Revision::new);
        let mut freshness = Freshness::new();
        assert!(freshness.handle_revision(r(5)).is_empty());
        assert_eq!(freshness.handle_wait(now, r(5), 'a'), None);
        for (revision, waiter) in [(7, 'b'), (6, 'c'), (9, 'd'), (7, 'e')] {
            assert!(freshness.handle_wait(now, r(revision), waiter).is_some());
        }
        assert_eq!(freshness.len(), 4);
        assert_eq!(freshness.handle_revision(r(7)), ['c', 'b', 'e']);
        assert!(freshness.handle_revision(r(8)).is_empty());
        assert_eq!(freshness.handle_revision(r(20)), ['d']);
    }

    #[test]
    fn waiter_stays_after_a_replacement_until_the_new_state_reaches_its_revision() {
        let (now, r) = (Instant::now(), Revision::new);
        let mut freshness = Freshness::new();
        freshness.handle_revision(r(9));
        assert!(freshness.handle_wait(now, r(12), 'a').is_some());
        freshness.handle_replacing(r(5));
        assert_eq!(freshness.handle_wait(now, r(5), 'b'), None);
        assert!(freshness.handle_wait(now, r(8), 'c').is_some(), "the former state's revision no longer counts");
        assert!(freshness.handle_revision(r(7)).is_empty());
        assert_eq!(freshness.handle_revision(r(8)), ['c']);
        freshness.handle_replacing(r(20));
        assert!(freshness.handle_wait(now, r(9), 'd').is_some(), "a newer revision counts once its state is in place");
        assert_eq!(freshness.handle_revision(r(20)), ['d', 'a']);
    }

    #[test]
    fn progress_is_requested_at_once_and_every_100_ms_while_a_read_waits() {
        let limits = Limits::default();
        let now = Instant::now();
        let mut freshness = Freshness::new();
        assert!(!freshness.poll_progress(now, &limits));
        let ticket = freshness.handle_wait(now, Revision::new(1), ()).unwrap();
        assert!(freshness.poll_progress(now, &limits));
        assert!(!freshness.poll_progress(now, &limits));
        assert_eq!(freshness.poll_timeout(), Some(now + limits.progress_interval));
        freshness.handle_wait(now, Revision::new(2), ());
        assert!(!freshness.poll_progress(now, &limits), "a second waiter does not ask sooner");
        freshness.handle_revision(Revision::new(2));
        assert_eq!(freshness.poll_timeout(), None);
        let other = freshness.handle_wait(now, Revision::new(3), ()).unwrap();
        assert_ne!(ticket, other);
        freshness.handle_cancel(other);
        assert_eq!((freshness.poll_timeout(), freshness.len()), (None, 0));
    }
}
