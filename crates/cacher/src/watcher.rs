//! The state of one watcher: its queued deliveries, and its position in the history ([`Mailbox`]).
//!
//! ```text
//!                     initial state, in key order
//!   with initial ┌────────┐  complete                 ┌─────────┐  reached the end of      ┌──────┐
//!   events ─────▶│ Replay │──────────────────────────▶│ Lagging │─────── history ─────────▶│ Live │
//!                └───┬────┘                           └──┬──────┘                          └─┬─┬──┘
//!                    │         after a revision ─────────▲ │ ▲     queue full: drop it,       │ │
//!                    │                                     │ └──── keep its first position ───┘ │
//!                    │ position left the window            │                                    │
//!                    ▼                                     ▼ position left the window           ▼
//!              ┌─────────────────────────────────────────────────────────────────────────────────┐
//!              │ Closed: queued deliveries, then the last status (410, another, or none), then ∎ │
//!              └─────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! * **Replay** walks a snapshot. Nothing is queued meanwhile. The live part is read from the history afterwards,
//!   right after the snapshot, so there is no gap and no overlap. The reader takes the walk out for each step and
//!   returns it, so that a long walk holds no lock. Between the steps the walk is stored here. The walk is dropped
//!   when the watcher can no longer continue after the walk.
//! * **Lagging** reads the shared history at the reader's pace, from a remembered position. Events
//!   are not dispatched to a lagging watcher. A watcher that has just started also begins in this
//!   state.
//! * **Live** receives pushed events: up to a bounded number of them wait in the queue.
//! * **Closed** is the end, with a reason. A deadline and a stop end the stream cleanly; all other reasons are sent as
//!   a last status. Before this state, a watcher is briefly **Finishing**: the remaining changes of the last delivered
//!   revision are read from the history. A client that resumes from a partly delivered revision would miss these
//!   changes.
//!
//! A mailbox is a plain value: no lock, no task, no clock. The dispatcher calls `handle_event`, the
//! reader calls `poll_delivery`. If that returns [`Step::Walk`] or [`Step::NeedHistory`], the
//! reader performs the walk or reads the history, and returns the result.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use listwatch_meta::{Change, Revision, Status, canary};

use crate::delivery::SharedEvent;
use crate::history::WindowStart;
use crate::limits::IDLE_QUEUE_CAPACITY;
use crate::snapshot::ListItems;

/// The state and queue of a watcher.
pub(crate) struct Mailbox {
    state: State,
    queue: VecDeque<Queued>,
    /// Events at or below this revision are skipped: the watcher begins after them.
    floor: Revision,
    /// The newest revision in the queue, as an event or as a bookmark.
    last: Revision,
    /// The revision of the last delivered event.
    last_delivered: Revision,
    /// While live: the position after the newest queued event.
    queued_end: u64,
    /// The waker of the task that waits for the next delivery.
    waker: Option<Waker>,
}

enum State {
    Replay(Box<Replay>),
    Lagging {
        position: u64,
    },
    Live,
    /// Before Closed: the remaining changes of the last delivered revision begin at `position`.
    Finishing {
        position: u64,
        last_status: Option<Box<Status>>,
    },
    Closed(Option<Box<Status>>),
}

/// The initial state that the reader walks.
pub(crate) struct Replay {
    /// The remaining objects; `None` while the reader walks, and after the last.
    items: Option<ListItems>,
    /// The revision of the bookmark after the objects, if requested.
    end: Option<Revision>,
    /// The position at which the live part begins.
    position: u64,
}

impl Replay {
    /// Delivers these objects, then a bookmark at `end`, then the history from `position` on.
    pub(crate) fn new(items: ListItems, end: Option<Revision>, position: u64) -> Self {
        Replay { items: Some(items), end, position }
    }
}

/// A delivery that is ready.
#[derive(Clone, Debug)]
pub(crate) enum Queued {
    Event(Arc<SharedEvent>, Change),
    Bookmark(Revision),
}

/// The result of [`Mailbox::handle_event`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Push {
    /// The event was queued.
    Queued,
    /// The event is not part of this watch.
    Ignored,
    /// The queue was full and was dropped; the dispatcher must detach the watcher.
    Overflow,
    /// The watch ends here.
    Closed,
}

/// The next action of the reader.
#[derive(Debug)]
pub(crate) enum Step {
    /// Deliver this item.
    Deliver(Queued),
    /// Continue this walk of the initial state, then return it.
    Walk(ListItems),
    /// Deliver the bookmark that ends the initial state.
    InitialEnd(Revision),
    /// Read the history from this position and return the result.
    NeedHistory(u64),
    /// Wait for a wake-up.
    Wait,
    /// Deliver this as the last status.
    LastStatus(Box<Status>),
    /// The stream has ended.
    End,
}

/// The name of a state, for statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Replay,
    Live,
    Lagging,
    Closed,
}

impl Mailbox {
    /// Creates a watcher that begins with initial events.
    pub(crate) fn replay(replay: Replay, floor: Revision) -> Self {
        Self::new(State::Replay(Box::new(replay)), floor)
    }

    /// Creates a watcher that begins at a position in the history, with events after `floor`.
    pub(crate) fn from_history(position: u64, floor: Revision) -> Self {
        Self::new(State::Lagging { position }, floor)
    }

    /// Creates a watcher that has already ended.
    pub(crate) fn closed(last_status: Option<Status>) -> Self {
        Self::new(State::Closed(last_status.map(Box::new)), Revision::ZERO)
    }

    fn new(state: State, floor: Revision) -> Self {
        Mailbox {
            state,
            queue: VecDeque::new(),
            floor,
            last: floor,
            last_delivered: Revision::ZERO,
            queued_end: 0,
            waker: None,
        }
    }

    // ------------------------------------------------------------------- calls of the dispatcher

    /// Queues an event that this watcher sees as `change`. At most `limit` deliveries are queued.
    pub(crate) fn handle_event(&mut self, event: &Arc<SharedEvent>, change: Change, limit: usize) -> Push {
        if !matches!(self.state, State::Live) || event.revision() <= self.floor {
            return Push::Ignored;
        }
        if self.queue.len() >= limit {
            // A bookmark in the queue has no position; the next event has one.
            let oldest = self.queue.iter().find_map(|queued| match queued {
                Queued::Event(event, _) => Some(event.sequence),
                Queued::Bookmark(_) => None,
            });
            let oldest = oldest.filter(|_| !canary!("cacher-loses-a-full-queue"));
            self.state = State::Lagging { position: oldest.unwrap_or(event.sequence) };
            self.queue = VecDeque::new();
            return Push::Overflow;
        }
        self.last = event.revision();
        self.queued_end = event.sequence + 1;
        self.queue.push_back(Queued::Event(event.clone(), change));
        Push::Queued
    }

    /// Ends the watch with `410 Expired`, because an object that it showed became undecodable.
    pub(crate) fn handle_undecodable(&mut self, event: &SharedEvent, expired: impl FnOnce(Revision) -> Status) -> Push {
        if !matches!(self.state, State::Live) || event.revision() <= self.floor {
            return Push::Ignored;
        }
        let last_status = Some(Box::new(expired(self.last)));
        self.state = State::Finishing { position: event.sequence + 1, last_status };
        Push::Closed
    }

    /// Queues a bookmark at `revision`, up to which everything has been dispatched. Does nothing
    /// unless the watcher is live, has room, and is behind `revision`.
    pub(crate) fn handle_bookmark(&mut self, revision: Revision, limit: usize) -> Push {
        if !matches!(self.state, State::Live) || revision <= self.last || self.queue.len() >= limit {
            return Push::Ignored;
        }
        self.last = revision;
        self.queue.push_back(Queued::Bookmark(revision));
        Push::Queued
    }

    /// Ends the watch: queued deliveries are still delivered, then the last status. Returns a walk that
    /// is no longer needed; the caller drops it outside of any lock, because freeing a state takes
    /// time. Events before `dispatched` have been dispatched.
    #[must_use = "to be dropped outside of any lock"]
    pub(crate) fn handle_close(&mut self, last_status: Option<Status>, dispatched: u64) -> Option<ListItems> {
        if matches!(self.state, State::Finishing { .. } | State::Closed(_)) {
            return None;
        }
        let last_status = last_status.map(Box::new);
        match std::mem::replace(&mut self.state, State::Closed(None)) {
            State::Lagging { position } => self.state = State::Finishing { position, last_status },
            // All dispatched events were offered to it, so the rest of its revision is behind them.
            State::Live => self.state = State::Finishing { position: self.queued_end.max(dispatched), last_status },
            State::Replay(replay) => {
                self.state = State::Closed(last_status);
                return replay.items;
            }
            State::Finishing { .. } | State::Closed(_) => unreachable!("seen above"),
        }
        None
    }

    /// Closes a watcher whose initial state is still being read, if the window has moved past its
    /// start, so that its snapshot is freed. A lagging watcher holds no memory, and detects the
    /// eviction at its next read. Returns `Some` when it was closed, with the walk to be dropped outside of any lock.
    pub(crate) fn handle_eviction(
        &mut self,
        window_start: WindowStart,
        last_status: impl FnOnce(Revision) -> Status,
    ) -> Option<Option<ListItems>> {
        let State::Replay(replay) = &self.state else { return None };
        let late = replay.position < window_start.cleared
            || (replay.position < window_start.start && window_start.floor > self.floor);
        late.then(|| {
            let last_status = last_status(self.last);
            self.handle_close(Some(last_status), 0)
        })
    }

    /// Takes the waker of the waiting reader, to be called after a change.
    pub(crate) fn take_waker(&mut self) -> Option<Waker> {
        self.waker.take()
    }

    // ----------------------------------------------------------------------- calls of the reader

    /// The reader's next action.
    pub(crate) fn poll_delivery(&mut self) -> Step {
        if let Some(queued) = self.queue.pop_front() {
            if self.queue.is_empty() && self.queue.capacity() > IDLE_QUEUE_CAPACITY {
                self.queue = VecDeque::new();
            }
            if let Queued::Event(event, _) = &queued {
                self.last_delivered = event.revision();
            }
            return Step::Deliver(queued);
        }
        match &mut self.state {
            State::Replay(replay) => {
                if let Some(items) = replay.items.take() {
                    return Step::Walk(items);
                }
                let skipped = u64::from(canary!("cacher-skips-after-initial-events"));
                let (end, position) = (replay.end, replay.position + skipped);
                self.state = State::Lagging { position };
                match end {
                    Some(revision) => Step::InitialEnd(revision),
                    None => Step::NeedHistory(position),
                }
            }
            State::Lagging { position } => Step::NeedHistory(*position),
            State::Finishing { position, last_status } => {
                // No event was delivered, so no revision is incomplete.
                if self.last_delivered == Revision::ZERO {
                    let last_status = last_status.take();
                    self.state = State::Closed(last_status);
                    return self.poll_delivery();
                }
                Step::NeedHistory(*position)
            }
            State::Live => Step::Wait,
            State::Closed(last_status) => last_status.take().map_or(Step::End, Step::LastStatus),
        }
    }

    /// Stores the reader's waker after [`Step::Wait`], before the lock is released.
    pub(crate) fn wait(&mut self, waker: &Waker) {
        match &mut self.waker {
            Some(kept) => kept.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// Returns the walk of the initial state; `done` when it is complete. The result is to be
    /// dropped outside of any lock: the whole walk when the watch was closed meanwhile.
    #[must_use = "to be dropped outside of any lock"]
    pub(crate) fn handle_walked(&mut self, items: ListItems, done: bool) -> Option<ListItems> {
        match &mut self.state {
            State::Replay(replay) if !done => replay.items.replace(items),
            _ => Some(items),
        }
    }

    /// Queues the events from `position` on, as this watcher sees them. Ignored when the watcher's
    /// position has changed meanwhile. Returns the number of events that it sees.
    ///
    /// The watch ends at an object that became undecodable. `expired` creates the last status from the newest revision
    /// that the watcher has received and the revision of that event.
    pub(crate) fn handle_history(
        &mut self,
        position: u64,
        events: &[Arc<SharedEvent>],
        view: impl Fn(&SharedEvent) -> Option<Change>,
        expired: impl FnOnce(Revision, Revision) -> Status,
    ) -> usize {
        if let State::Finishing { position: expected, last_status } = &mut self.state
            && *expected == position
        {
            let mut last_status = last_status.take();
            let rest = events.iter().take_while(|event| event.revision() <= self.last_delivered);
            for event in rest.filter(|event| event.revision() == self.last_delivered) {
                match view(event) {
                    // A client that resumes after this revision would not hear of it.
                    Some(_) if event.undecodable => {
                        last_status = Some(Box::new(expired(self.last, event.revision())));
                        break;
                    }
                    Some(change) => self.queue.push_back(Queued::Event(event.clone(), change)),
                    None => {}
                }
            }
            self.state = State::Closed(last_status);
            return self.queue.len();
        }
        let State::Lagging { position: expected } = &mut self.state else { return 0 };
        if *expected != position {
            return 0;
        }
        *expected += events.len() as u64;
        let before = self.queue.len();
        for event in events {
            if event.revision() <= self.floor && !canary!("cacher-repeats-the-start") {
                continue;
            }
            if let Some(change) = view(event) {
                if event.undecodable {
                    let last_status = Some(Box::new(expired(self.last, event.revision())));
                    self.state = State::Finishing { position: event.sequence + 1, last_status };
                    break;
                }
                self.queue.push_back(Queued::Event(event.clone(), change));
            }
            self.last = event.revision();
        }
        self.queue.len() - before
    }

    /// Ends the watch because its position left the history, unless all evicted events precede the
    /// watch's start. A position in a replaced history always ends the watch, because the revisions of the
    /// two histories cannot be compared.
    pub(crate) fn handle_gone(
        &mut self,
        position: u64,
        window_start: WindowStart,
        last_status: impl FnOnce(Revision) -> Status,
    ) {
        let (State::Lagging { position: expected } | State::Finishing { position: expected, .. }) = &mut self.state
        else {
            return;
        };
        if *expected != position {
            return;
        }
        let is_replaced = position < window_start.cleared;
        if (!is_replaced && window_start.floor <= self.floor) || canary!("cacher-continues-after-eviction") {
            *expected = window_start.start;
        } else {
            self.state = State::Closed(Some(Box::new(last_status(self.last))));
        }
    }

    /// Makes a watcher at the end of the history live. Returns false if its position has changed meanwhile.
    pub(crate) fn handle_attached(&mut self, position: u64) -> bool {
        match &mut self.state {
            State::Lagging { position: expected } if *expected == position => {
                self.state = State::Live;
                self.queued_end = position;
                true
            }
            // The revision has no more changes.
            State::Finishing { position: expected, last_status } if *expected == position => {
                let last_status = last_status.take();
                self.state = State::Closed(last_status);
                false
            }
            _ => false,
        }
    }

    // -------------------------------------------------------------------------------- getters

    /// The newest revision that the watcher has queued.
    pub(crate) fn last(&self) -> Revision {
        self.last
    }

    /// The name of the watcher's state.
    pub(crate) fn phase(&self) -> Phase {
        match self.state {
            State::Replay(_) => Phase::Replay,
            State::Lagging { .. } => Phase::Lagging,
            State::Live => Phase::Live,
            State::Finishing { .. } | State::Closed(_) => Phase::Closed,
        }
    }

    /// The position of the next event to deliver; `None` when nothing remains to catch up with.
    pub(crate) fn position(&self) -> Option<u64> {
        let queued = self.queue.iter().find_map(|queued| match queued {
            Queued::Event(event, _) => Some(event.sequence),
            Queued::Bookmark(_) => None,
        });
        queued.or(match &self.state {
            State::Replay(replay) => Some(replay.position),
            State::Lagging { position } => Some(*position),
            State::Live | State::Finishing { .. } | State::Closed(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use listwatch_meta::{Event, Key, Object, ObjectShape};

    use super::*;

    fn event(sequence: u64) -> Arc<SharedEvent> {
        event_at(sequence, 100 + sequence)
    }

    fn event_at(sequence: u64, revision: u64) -> Arc<SharedEvent> {
        let key = Key::new("pods", Some("a"), "x").unwrap();
        let shape = ObjectShape::new(true, Vec::new());
        let revision = Revision::new(revision);
        let object = Object::from_stored(key, revision, Change::Added, br#"{"metadata":{}}"#, &shape).unwrap();
        let event = Event { change: Change::Added, object, previous: None };
        Arc::new(SharedEvent::new(sequence, Instant::now(), event, Arc::default()))
    }

    fn expired(seen: Revision, floor: Revision) -> Status {
        Status::expired_watch(seen.get(), floor.get())
    }

    /// Formats one line per step, until the watcher waits, ends or needs history.
    fn drain(mailbox: &mut Mailbox) -> Vec<String> {
        let mut steps = Vec::new();
        loop {
            let (text, last) = match mailbox.poll_delivery() {
                Step::Deliver(Queued::Event(event, change)) => (format!("{change} {:?}", event.revision()), false),
                Step::Deliver(Queued::Bookmark(revision)) => (format!("BOOKMARK {revision:?}"), false),
                Step::Walk(mut items) => match items.next() {
                    Some(object) => {
                        assert!(mailbox.handle_walked(items, false).is_none());
                        (format!("INITIAL {object:?}"), false)
                    }
                    None => {
                        assert!(mailbox.handle_walked(items, true).is_some());
                        continue;
                    }
                },
                Step::InitialEnd(revision) => (format!("END {revision:?}"), false),
                Step::NeedHistory(position) => (format!("history {position}"), true),
                Step::Wait => ("wait".to_owned(), true),
                Step::LastStatus(status) => (format!("last_status {}", status.code), false),
                Step::End => ("end".to_owned(), true),
            };
            steps.push(text);
            if last {
                return steps;
            }
        }
    }

    fn window_start(start: u64, floor: u64) -> WindowStart {
        WindowStart { start, floor: Revision::new(floor), cleared: 0 }
    }

    fn live(floor: u64) -> Mailbox {
        let mut mailbox = Mailbox::from_history(7, Revision::new(floor));
        assert!(mailbox.handle_attached(7));
        mailbox
    }

    #[test]
    fn full_queue_makes_the_watcher_lag_from_its_first_event() {
        let mut mailbox = live(0);
        for sequence in 7..9 {
            assert_eq!(mailbox.handle_event(&event(sequence), Change::Added, 2), Push::Queued);
        }
        assert_eq!(mailbox.handle_event(&event(9), Change::Added, 2), Push::Overflow);
        assert_eq!(mailbox.handle_event(&event(10), Change::Added, 2), Push::Ignored);
        assert_eq!(mailbox.phase(), Phase::Lagging);
        assert_eq!(drain(&mut mailbox), ["history 7"]);
        mailbox.handle_history(7, &[event(7), event(8)], |_| Some(Change::Added), expired);
        assert_eq!(drain(&mut mailbox), ["ADDED r107", "ADDED r108", "history 9"]);
        assert!(mailbox.handle_attached(9));
        assert_eq!(drain(&mut mailbox), ["wait"]);
    }

    #[test]
    fn overflow_after_partial_read_lags_from_the_first_unread_event() {
        let mut mailbox = live(0);
        for sequence in 7..9 {
            mailbox.handle_event(&event(sequence), Change::Added, 2);
        }
        assert!(matches!(mailbox.poll_delivery(), Step::Deliver(_)));
        mailbox.handle_event(&event(9), Change::Added, 2);
        assert_eq!(mailbox.handle_event(&event(10), Change::Added, 2), Push::Overflow);
        assert_eq!(drain(&mut mailbox), ["history 8"]);
    }

    #[test]
    fn events_at_or_below_the_floor_are_ignored() {
        let mut mailbox = live(108);
        assert_eq!(mailbox.handle_event(&event(8), Change::Added, 9), Push::Ignored);
        assert_eq!(mailbox.handle_event(&event(9), Change::Added, 9), Push::Queued);
        let mut lagging = Mailbox::from_history(7, Revision::new(108));
        lagging.handle_history(7, &[event(7), event(8), event(9)], |_| Some(Change::Added), expired);
        assert_eq!(drain(&mut lagging), ["ADDED r109", "history 10"]);
    }

    #[test]
    fn bookmark_is_queued_only_for_a_newer_revision() {
        let mut mailbox = live(100);
        assert_eq!(mailbox.handle_bookmark(Revision::new(100), 9), Push::Ignored);
        assert_eq!(mailbox.handle_bookmark(Revision::new(101), 9), Push::Queued);
        assert_eq!(mailbox.handle_bookmark(Revision::new(101), 9), Push::Ignored);
        mailbox.handle_event(&event(7), Change::Added, 9);
        assert_eq!(mailbox.handle_bookmark(Revision::new(107), 9), Push::Ignored);
        assert_eq!(mailbox.handle_bookmark(Revision::new(120), 2), Push::Ignored, "no room");
        assert_eq!(drain(&mut mailbox), ["BOOKMARK r101", "ADDED r107", "wait"]);
    }

    #[test]
    fn close_with_status_delivers_it_last() {
        let mut mailbox = live(0);
        mailbox.handle_event(&event(7), Change::Added, 9);
        assert!(mailbox.handle_close(Some(Status::expired_list()), 0).is_none());
        assert!(mailbox.handle_close(None, 0).is_none());
        assert_eq!(drain(&mut mailbox), ["ADDED r107", "history 8"]);
        mailbox.handle_history(8, &[event(8)], |_| Some(Change::Added), expired);
        assert_eq!(drain(&mut mailbox), ["last_status 410", "end"]);

        let last_status = |seen: Revision| Status::expired_watch(seen.get(), 9);
        let replay = Replay::new(ListItems::ready(Vec::new()), None, 7);
        let mut replaying = Mailbox::replay(replay, Revision::new(3));
        assert!(replaying.handle_eviction(window_start(7, 9), last_status).is_none());
        assert!(
            replaying.handle_eviction(window_start(8, 3), last_status).is_none(),
            "evicted events precede the watch"
        );
        assert!(replaying.handle_eviction(window_start(8, 9), last_status).is_some_and(|items| items.is_some()));
        assert_eq!(drain(&mut replaying), ["last_status 410", "end"]);

        let mut lagging = Mailbox::from_history(7, Revision::new(3));
        assert!(lagging.handle_eviction(window_start(8, 9), last_status).is_none());
        lagging.handle_gone(7, window_start(8, 3), last_status);
        assert_eq!(drain(&mut lagging), ["history 8"]);
        lagging.handle_gone(8, window_start(9, 9), last_status);
        assert_eq!(drain(&mut lagging), ["last_status 410", "end"]);
    }

    #[test]
    fn close_delivers_the_rest_of_a_revision_first() {
        let other = |sequence| event_at(sequence, 107);
        for (late, rest) in [(other(8), vec!["ADDED r107"]), (event(8), vec![])] {
            let mut mailbox = live(0);
            mailbox.handle_event(&event(7), Change::Added, 9);
            assert!(matches!(mailbox.poll_delivery(), Step::Deliver(_)));
            assert!(mailbox.handle_close(None, 0).is_none());
            assert_eq!(mailbox.handle_event(&late, Change::Added, 9), Push::Ignored, "it is not live any more");
            assert_eq!(drain(&mut mailbox), ["history 8"]);
            mailbox.handle_history(8, &[late, event(9)], |_| Some(Change::Added), expired);
            assert_eq!(drain(&mut mailbox), [rest, vec!["end"]].concat());
        }
        let mut gone = live(0);
        gone.handle_event(&event(7), Change::Added, 9);
        assert!(matches!(gone.poll_delivery(), Step::Deliver(_)));
        assert!(gone.handle_close(None, 0).is_none());
        gone.handle_gone(8, window_start(9, 108), |seen| Status::expired_watch(seen.get(), 108));
        assert_eq!(drain(&mut gone), ["last_status 410", "end"], "an incomplete revision ends with an error");
        let mut quiet = live(0);
        quiet.handle_event(&event(7), Change::Added, 9);
        assert!(matches!(quiet.poll_delivery(), Step::Deliver(_)));
        assert!(quiet.handle_close(None, 500).is_none());
        assert_eq!(drain(&mut quiet), ["history 500"], "dispatched positions are not read again");
        let mut nothing = live(0);
        assert!(nothing.handle_close(None, 0).is_none());
        assert_eq!(drain(&mut nothing), ["end"]);
    }

    #[test]
    fn initial_state_ends_with_its_bookmark_and_continues_in_history() {
        let objects = vec![event(1).event.object.clone(), event(2).event.object.clone()];
        let replay = Replay::new(ListItems::ready(objects), Some(Revision::new(105)), 6);
        let mut mailbox = Mailbox::replay(replay, Revision::new(105));
        assert_eq!(mailbox.handle_event(&event(6), Change::Added, 9), Push::Ignored, "not attached yet");
        assert_eq!(drain(&mut mailbox), ["INITIAL /pods/a/x@r101", "INITIAL /pods/a/x@r102", "END r105", "history 6"]);
    }

    #[test]
    fn watch_closed_during_its_initial_events_delivers_only_the_status() {
        let objects = vec![event(1).event.object.clone(), event(2).event.object.clone()];
        let mut mailbox = Mailbox::replay(Replay::new(ListItems::ready(objects), None, 6), Revision::new(105));
        let Step::Walk(items) = mailbox.poll_delivery() else { panic!("a walk") };
        assert!(mailbox.handle_close(Some(Status::expired_list()), 0).is_none(), "the reader has it");
        assert!(mailbox.handle_walked(items, false).is_some(), "to be dropped");
        assert_eq!(drain(&mut mailbox), ["last_status 410", "end"]);
    }

    #[test]
    fn object_that_becomes_unreadable_ends_the_watch_after_the_events_of_the_same_revision() {
        let hidden = |sequence, revision| {
            let event = Arc::into_inner(event_at(sequence, revision)).unwrap();
            Arc::new(event.into_undecodable())
        };
        // A lagging watcher finds it in the history.
        let mut mailbox = Mailbox::from_history(7, Revision::ZERO);
        let events = [event_at(7, 107), hidden(8, 107), event_at(9, 107)];
        mailbox.handle_history(7, &events, |_| Some(Change::Added), expired);
        assert_eq!(drain(&mut mailbox), ["ADDED r107", "history 9"]);
        mailbox.handle_history(9, &events[2..], |_| Some(Change::Added), expired);
        assert_eq!(drain(&mut mailbox), ["ADDED r107", "last_status 410", "end"]);
        // A live watcher is closed at dispatch.
        let mut mailbox = Mailbox::from_history(7, Revision::ZERO);
        assert!(mailbox.handle_attached(7));
        mailbox.handle_event(&event(7), Change::Added, 9);
        assert_eq!(mailbox.handle_undecodable(&hidden(8, 108), |seen| expired(seen, seen)), Push::Closed);
        assert_eq!(drain(&mut mailbox), ["ADDED r107", "history 9"]);
        assert!(!mailbox.handle_attached(9));
        assert_eq!(drain(&mut mailbox), ["last_status 410", "end"]);
        // A deadline between two changes of one revision: the client would resume after both.
        let mut mailbox = Mailbox::from_history(7, Revision::ZERO);
        assert!(mailbox.handle_attached(7));
        mailbox.handle_event(&event_at(7, 107), Change::Added, 9);
        assert!(mailbox.handle_close(None, 8).is_none());
        assert_eq!(drain(&mut mailbox), ["ADDED r107", "history 8"]);
        mailbox.handle_history(8, &events[1..], |_| Some(Change::Added), expired);
        assert_eq!(drain(&mut mailbox), ["last_status 410", "end"]);
    }

    #[test]
    fn watch_that_did_not_show_an_undecodable_object_continues() {
        let hidden = event(8).event.clone();
        let hidden = SharedEvent::new(8, Instant::now(), hidden, Arc::default()).into_undecodable();
        let end = |mailbox: &mut Mailbox| mailbox.handle_undecodable(&hidden, |seen| expired(seen, seen));
        let mut later = live(108);
        assert_eq!(end(&mut later), Push::Ignored, "the watch begins after the event");
        assert_eq!(drain(&mut later), ["wait"]);
        let mut lagging = Mailbox::from_history(7, Revision::ZERO);
        assert_eq!(end(&mut lagging), Push::Ignored, "it finds the event in the history");
        assert_eq!(drain(&mut lagging), ["history 7"]);
    }

    #[test]
    fn empty_queue_keeps_little_memory() {
        let mut mailbox = live(0);
        for sequence in 7..107 {
            assert_eq!(mailbox.handle_event(&event(sequence), Change::Added, 100), Push::Queued);
        }
        assert_eq!(drain(&mut mailbox).len(), 101);
        assert!(mailbox.queue.capacity() <= IDLE_QUEUE_CAPACITY);
        mailbox.handle_event(&event(107), Change::Added, 100);
        drain(&mut mailbox);
        assert_ne!(mailbox.queue.capacity(), 0, "a watcher that keeps up does not allocate for each event");
    }

    #[test]
    fn stale_reader_results_do_not_move_the_watcher() {
        let mut elsewhere = Mailbox::from_history(7, Revision::ZERO);
        assert!(!elsewhere.handle_attached(9));
        assert_eq!(drain(&mut elsewhere), ["history 7"]);
        let mut finishing = live(0);
        finishing.handle_event(&event(7), Change::Added, 9);
        assert!(finishing.handle_close(None, 8).is_none());
        assert_eq!(drain(&mut finishing), ["ADDED r107", "history 8"]);
        assert!(!finishing.handle_attached(7));
        assert_eq!(drain(&mut finishing), ["history 8"], "its revision may have more changes");
        let mut mailbox = Mailbox::from_history(7, Revision::ZERO);
        assert!(mailbox.handle_close(None, 0).is_none());
        mailbox.handle_history(7, &[event(7)], |_| Some(Change::Added), expired);
        assert!(!mailbox.handle_attached(7));
        mailbox.handle_gone(7, window_start(9, 9), |_| Status::expired_list());
        assert_eq!(drain(&mut mailbox), ["end"]);
    }
}
