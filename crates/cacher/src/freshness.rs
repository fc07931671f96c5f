//! Reads that wait for a revision: [`Freshness`]. It knows who waits for what and until when, and
//! when the store should be asked for progress: only while somebody waits.

use std::collections::BTreeMap;
use std::time::Instant;

use listwatch_meta::Revision;

use crate::limits::Limits;

/// Who waits, ordered by what they wait for. `W` is how the shell reaches a waiter.
pub(crate) struct Freshness<W> {
    revision: Revision,
    waiters: BTreeMap<(Revision, u64), W>,
    next_id: u64,
    /// When the store is asked next, while somebody waits.
    ask_at: Option<Instant>,
}

/// A place in the queue; needed to leave it early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(Revision, u64);

impl<W> Freshness<W> {
    pub(crate) fn new() -> Self {
        Freshness { revision: Revision::ZERO, waiters: BTreeMap::new(), next_id: 0, ask_at: None }
    }

    /// Somebody wants to know when `revision` is reached; `None` when it is already.
    pub(crate) fn handle_wait(&mut self, now: Instant, revision: Revision, waiter: W) -> Option<Ticket> {
        if revision <= self.revision {
            return None;
        }
        self.next_id += 1;
        let ticket = Ticket(revision, self.next_id);
        self.waiters.insert((ticket.0, ticket.1), waiter);
        // The first to come asks at once: the revision may be another resource's write.
        self.ask_at.get_or_insert(now);
        Some(ticket)
    }

    /// Somebody does not wait any more.
    pub(crate) fn handle_cancel(&mut self, ticket: Ticket) {
        self.waiters.remove(&(ticket.0, ticket.1));
        self.rest();
    }

    /// Everything up to `revision` is known: returns who need not wait any more.
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

    /// The state is about to be replaced by one of this revision, which may be an older one: from now
    /// on only that much counts as known. Waiters stay: what they wait for is newer than both.
    pub(crate) fn handle_replacing(&mut self, revision: Revision) {
        self.revision = self.revision.min(revision);
    }

    /// True when the store should be asked for progress now.
    pub(crate) fn poll_progress(&mut self, now: Instant, limits: &Limits) -> bool {
        let due = self.ask_at.is_some_and(|at| at <= now);
        if due {
            self.ask_at = Some(now + limits.progress_interval);
        }
        due
    }

    /// When to call [`Freshness::poll_progress`] again.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.ask_at
    }

    /// How many wait.
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
    fn whoever_waits_is_served_when_the_revision_is_reached_and_not_before() {
        let (now, r) = (Instant::now(), Revision::new);
        let mut freshness = Freshness::new();
        assert!(freshness.handle_revision(r(5)).is_empty());
        assert_eq!(freshness.handle_wait(now, r(5), 'a'), None);
        for (revision, waiter) in [(7, 'b'), (6, 'c'), (9, 'd'), (7, 'e')] {
            assert!(freshness.handle_wait(now, r(revision), waiter).is_some());
        }
        assert_eq!(freshness.handle_revision(r(7)), ['c', 'b', 'e']);
        assert!(freshness.handle_revision(r(8)).is_empty());
        assert_eq!(freshness.handle_revision(r(20)), ['d']);
    }

    #[test]
    fn wait_for_a_revision_of_a_replaced_state_lasts_until_the_new_state_reaches_it() {
        let (now, r) = (Instant::now(), Revision::new);
        let mut freshness = Freshness::new();
        freshness.handle_revision(r(9));
        assert!(freshness.handle_wait(now, r(12), 'a').is_some());
        freshness.handle_replacing(r(5));
        assert_eq!(freshness.handle_wait(now, r(5), 'b'), None);
        assert!(freshness.handle_wait(now, r(8), 'c').is_some(), "the former state's revision counts no more");
        assert!(freshness.handle_revision(r(7)).is_empty());
        assert_eq!(freshness.handle_revision(r(8)), ['c']);
        freshness.handle_replacing(r(20));
        assert!(freshness.handle_wait(now, r(9), 'd').is_some(), "a newer state is known when it is in place");
        assert_eq!(freshness.handle_revision(r(20)), ['d', 'a']);
    }

    #[test]
    fn the_store_is_asked_at_once_then_every_tenth_of_a_second_and_only_while_somebody_waits() {
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
