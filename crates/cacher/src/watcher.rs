//! One watcher: what it still has to hand out, and from where it goes on ([`Mailbox`]).
//!
//! ```text
//!                     initial state, in key order
//!   with initial ┌────────┐  all of it handed out    ┌─────────┐  stands at the end of    ┌──────┐
//!   events ─────▶│ Replay │─────────────────────────▶│ Lagging │─────── history ─────────▶│ Live │
//!                └───┬────┘                          └──┬──────┘                          └─┬─┬──┘
//!                    │        after a revision ─────────▲ │ ▲      queue full:              │ │
//!                    │                                    │ └───── drop it, keep the ───────┘ │
//!                    │ place left the window              │        place it began at          │
//!                    ▼                                    ▼ place left the window             ▼
//!              ┌─────────────────────────────────────────────────────────────────────────────────┐
//!              │ Closed(why): what is queued, then the goodbye (410, a status, or nothing), then ∎│
//!              └─────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! * **Replay** walks a snapshot. Nothing is queued meanwhile; the live part is found in the
//!   history afterwards, beginning right behind the snapshot, so there is no gap and no overlap.
//!   The reader takes the walk out for each step and brings it back, so that a long one (few objects
//!   of many match) keeps nobody waiting; between the steps it lies here, where it is let go when
//!   the watcher can no longer go on behind it.
//! * **Lagging** reads the shared history at the reader's pace, from a place it remembers. It costs
//!   nobody anything: it is not even looked at when an event happens. A watcher that has just
//!   started is one that lags by a little.
//! * **Live** is where events are pushed: up to a named number of them wait in the queue.
//! * **Closed** is the end. There is always a reason: the deadline and a stop are clean ends, all
//!   others are told in the stream. Before it a watcher is **Finishing** for a moment: a client that
//!   was told one change of a revision and resumes from there would never hear of the others, so
//!   those are taken from the history first.
//!
//! A mailbox is a plain value: no lock, no task, no clock. The dispatcher calls `handle_event`, the
//! reader calls `poll_delivery`; when that answers [`Step::Walk`] or [`Step::NeedHistory`] the
//! reader brings what the walk or the history says.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use listwatch_meta::{Change, Revision, Status};

use crate::delivery::SharedEvent;
use crate::history::Edge;
use crate::limits::IDLE_QUEUE_CAPACITY;
use crate::snapshot::ListItems;

/// A watcher's state and queue.
pub(crate) struct Mailbox {
    state: State,
    queue: VecDeque<Queued>,
    /// Events at or below this revision are not for this watcher: it begins behind them.
    floor: Revision,
    /// The newest revision that was queued, as an event or as a bookmark.
    last: Revision,
    /// The revision of the event that was handed out last.
    handed: Revision,
    /// While live: the place behind the newest event that was queued.
    pushed: u64,
    /// Who waits for the next delivery.
    waker: Option<Waker>,
}

enum State {
    Replay(Box<Replay>),
    Lagging {
        place: u64,
    },
    Live,
    /// On its way to Closed: what else happened at the last revision handed out stands from `place`
    /// on.
    Finishing {
        place: u64,
        goodbye: Option<Box<Status>>,
    },
    Closed(Option<Box<Status>>),
}

/// The initial state on its way to the reader.
pub(crate) struct Replay {
    /// The objects that are still to come; `None` while the reader walks, and after the last.
    items: Option<ListItems>,
    /// The bookmark behind them, if asked for.
    end: Option<Revision>,
    /// Where the live part begins.
    place: u64,
}

impl Replay {
    /// These objects, then a bookmark at `end`, then what stands in the history from `place` on.
    pub(crate) fn new(items: ListItems, end: Option<Revision>, place: u64) -> Self {
        Replay { items: Some(items), end, place }
    }
}

/// Something ready to be handed out.
#[derive(Clone, Debug)]
pub(crate) enum Queued {
    Event(Arc<SharedEvent>, Change),
    Bookmark(Revision),
}

/// What [`Mailbox::handle_event`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Push {
    /// It waits in the queue.
    Queued,
    /// It is none of this watcher's business.
    Ignored,
    /// The queue was full: it is gone, and the watcher has to be left alone from now on.
    Overflow,
    /// The watch ends here.
    Closed,
}

/// What the reader should do next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Hand this out.
    Deliver(Queued),
    /// Go on with this walk of the initial state, and bring it back.
    Walk(ListItems),
    /// The initial state is complete: hand the bookmark out.
    InitialEnd(Revision),
    /// Read the history from this place and bring what it says.
    NeedHistory(u64),
    /// Nothing now.
    Wait,
    /// Hand this out as the last thing.
    Goodbye(Box<Status>),
    /// Nothing ever.
    End,
}

/// A state's name, for statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Replay,
    Live,
    Lagging,
    Closed,
}

impl Mailbox {
    /// A watcher that begins with initial events.
    pub(crate) fn replay(replay: Replay, floor: Revision) -> Self {
        Self::new(State::Replay(Box::new(replay)), floor)
    }

    /// A watcher that begins at a place in history, with events after `floor`.
    pub(crate) fn from_history(place: u64, floor: Revision) -> Self {
        Self::new(State::Lagging { place }, floor)
    }

    /// A watch that is over before it began.
    pub(crate) fn closed(goodbye: Option<Status>) -> Self {
        Self::new(State::Closed(goodbye.map(Box::new)), Revision::ZERO)
    }

    fn new(state: State, floor: Revision) -> Self {
        Mailbox { state, queue: VecDeque::new(), floor, last: floor, handed: Revision::ZERO, pushed: 0, waker: None }
    }

    // ------------------------------------------------------------------ the dispatcher's side

    /// An event happened that this watcher sees as `change`. At most `limit` deliveries wait.
    pub(crate) fn handle_event(&mut self, event: &Arc<SharedEvent>, change: Change, limit: usize) -> Push {
        if !matches!(self.state, State::Live) || event.revision() <= self.floor {
            return Push::Ignored;
        }
        if self.queue.len() >= limit {
            // A bookmark in the queue has no place; what follows it has.
            let oldest = self.queue.iter().find_map(|queued| match queued {
                Queued::Event(event, _) => Some(event.sequence),
                Queued::Bookmark(_) => None,
            });
            self.state = State::Lagging { place: oldest.unwrap_or(event.sequence) };
            self.queue = VecDeque::new();
            return Push::Overflow;
        }
        self.last = event.revision();
        self.pushed = event.sequence + 1;
        self.queue.push_back(Queued::Event(event.clone(), change));
        Push::Queued
    }

    /// An object that this watcher shows cannot be read any more: the watch ends with `410 Expired`.
    pub(crate) fn handle_undecodable(&mut self, event: &SharedEvent, expired: impl FnOnce(Revision) -> Status) -> Push {
        if !matches!(self.state, State::Live) || event.revision() <= self.floor {
            return Push::Ignored;
        }
        let goodbye = Some(Box::new(expired(self.last)));
        self.state = State::Finishing { place: event.sequence + 1, goodbye };
        Push::Closed
    }

    /// Everything up to `revision` has been dispatched: queue a bookmark, if the watcher is live,
    /// has room, and would learn something.
    pub(crate) fn handle_bookmark(&mut self, revision: Revision, limit: usize) -> Push {
        if !matches!(self.state, State::Live) || revision <= self.last || self.queue.len() >= limit {
            return Push::Ignored;
        }
        self.last = revision;
        self.queue.push_back(Queued::Bookmark(revision));
        Push::Queued
    }

    /// The watch ends: what is queued is still handed out, then the goodbye. Returns what is not
    /// needed any more: it may be the last to hold a state, which takes time to free, so that the
    /// caller drops it when he holds no lock. Events before `dispatched` have been dispatched.
    #[must_use = "to be dropped outside of any lock"]
    pub(crate) fn handle_close(&mut self, goodbye: Option<Status>, dispatched: u64) -> Option<ListItems> {
        if matches!(self.state, State::Finishing { .. } | State::Closed(_)) {
            return None;
        }
        let goodbye = goodbye.map(Box::new);
        match std::mem::replace(&mut self.state, State::Closed(None)) {
            State::Lagging { place } => self.state = State::Finishing { place, goodbye },
            // It has seen what was dispatched, wanted or not: the rest of a revision stands behind that.
            State::Live => self.state = State::Finishing { place: self.pushed.max(dispatched), goodbye },
            State::Replay(replay) => {
                self.state = State::Closed(goodbye);
                return replay.items;
            }
            State::Finishing { .. } | State::Closed(_) => unreachable!("seen above"),
        }
        None
    }

    /// The window has moved. A watcher that is still at its initial state and
    /// could not go on behind it is closed now, so that its snapshot is not kept for nothing; one
    /// that lags costs nothing and finds out by itself. `Some` when it was closed, with what is to
    /// be dropped outside of any lock.
    pub(crate) fn handle_eviction(
        &mut self,
        edge: Edge,
        goodbye: impl FnOnce(Revision) -> Status,
    ) -> Option<Option<ListItems>> {
        let late = matches!(&self.state, State::Replay(replay) if replay.place < edge.start) && edge.floor > self.floor;
        late.then(|| {
            let goodbye = goodbye(self.last);
            self.handle_close(Some(goodbye), 0)
        })
    }

    /// Who has to be woken, now that something changed.
    pub(crate) fn take_waker(&mut self) -> Option<Waker> {
        self.waker.take()
    }

    // ---------------------------------------------------------------------- the reader's side

    /// What to do next.
    pub(crate) fn poll_delivery(&mut self) -> Step {
        if let Some(queued) = self.queue.pop_front() {
            if self.queue.is_empty() && self.queue.capacity() > IDLE_QUEUE_CAPACITY {
                self.queue = VecDeque::new();
            }
            if let Queued::Event(event, _) = &queued {
                self.handed = event.revision();
            }
            return Step::Deliver(queued);
        }
        match &mut self.state {
            State::Replay(replay) => {
                if let Some(items) = replay.items.take() {
                    return Step::Walk(items);
                }
                let (end, place) = (replay.end, replay.place);
                self.state = State::Lagging { place };
                match end {
                    Some(revision) => Step::InitialEnd(revision),
                    None => Step::NeedHistory(place),
                }
            }
            State::Lagging { place } => Step::NeedHistory(*place),
            State::Finishing { place, goodbye } => {
                // No event was handed out: there is nothing to finish.
                if self.handed == Revision::ZERO {
                    let goodbye = goodbye.take();
                    self.state = State::Closed(goodbye);
                    return self.poll_delivery();
                }
                Step::NeedHistory(*place)
            }
            State::Live => Step::Wait,
            State::Closed(goodbye) => goodbye.take().map_or(Step::End, Step::Goodbye),
        }
    }

    /// Keeps who waits; call it when [`Step::Wait`] was the answer, before the lock is given up.
    pub(crate) fn wait(&mut self, waker: &Waker) {
        match &mut self.waker {
            Some(kept) => kept.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// The walk of the initial state went on; with `done` it is over. Returns what is to be dropped
    /// outside of any lock: all of it when the watch was closed meanwhile.
    #[must_use = "to be dropped outside of any lock"]
    pub(crate) fn handle_walked(&mut self, items: ListItems, done: bool) -> Option<ListItems> {
        match &mut self.state {
            State::Replay(replay) if !done => replay.items.replace(items),
            _ => Some(items),
        }
    }

    /// What the history holds from `place` on, with what this watcher sees of it. Ignored when the
    /// watcher has moved on meanwhile. Returns how many of them it sees.
    ///
    /// The watch ends where it sees an object that cannot be read any more. `expired` makes its last
    /// status, of the newest revision that the watcher knows and the revision of that event.
    pub(crate) fn handle_history(
        &mut self,
        place: u64,
        events: &[Arc<SharedEvent>],
        view: impl Fn(&SharedEvent) -> Option<Change>,
        expired: impl FnOnce(Revision, Revision) -> Status,
    ) -> usize {
        if let State::Finishing { place: expected, goodbye } = &mut self.state
            && *expected == place
        {
            let mut goodbye = goodbye.take();
            let rest = events.iter().take_while(|event| event.revision() <= self.handed);
            for event in rest.filter(|event| event.revision() == self.handed) {
                match view(event) {
                    // A client that resumes behind this revision would not hear of it.
                    Some(_) if event.undecodable => {
                        goodbye = Some(Box::new(expired(self.last, event.revision())));
                        break;
                    }
                    Some(change) => self.queue.push_back(Queued::Event(event.clone(), change)),
                    None => {}
                }
            }
            self.state = State::Closed(goodbye);
            return self.queue.len();
        }
        let State::Lagging { place: expected } = &mut self.state else { return 0 };
        if *expected != place {
            return 0;
        }
        *expected += events.len() as u64;
        let before = self.queue.len();
        for event in events {
            if event.revision() <= self.floor {
                continue;
            }
            if let Some(change) = view(event) {
                if event.undecodable {
                    let goodbye = Some(Box::new(expired(self.last, event.revision())));
                    self.state = State::Finishing { place: event.sequence + 1, goodbye };
                    break;
                }
                self.queue.push_back(Queued::Event(event.clone(), change));
            }
            self.last = event.revision();
        }
        self.queue.len() - before
    }

    /// The place is no longer in the history: the end, unless all that has left is older than what
    /// this watcher begins behind.
    pub(crate) fn handle_gone(&mut self, place: u64, edge: Edge, goodbye: impl FnOnce(Revision) -> Status) {
        let (State::Lagging { place: expected } | State::Finishing { place: expected, .. }) = &mut self.state else {
            return;
        };
        if *expected != place {
            return;
        }
        if edge.floor <= self.floor {
            *expected = edge.start;
        } else {
            self.state = State::Closed(Some(Box::new(goodbye(self.last))));
        }
    }

    /// The watcher stands at the end of the history and is dispatched to from now on. False when
    /// it has moved on meanwhile.
    pub(crate) fn handle_attached(&mut self, place: u64) -> bool {
        match &mut self.state {
            State::Lagging { place: expected } if *expected == place => {
                self.state = State::Live;
                self.pushed = place;
                true
            }
            // There is nothing more at that revision.
            State::Finishing { place: expected, goodbye } if *expected == place => {
                let goodbye = goodbye.take();
                self.state = State::Closed(goodbye);
                false
            }
            _ => false,
        }
    }

    // -------------------------------------------------------------------------------- getters

    /// The newest revision that it knows of.
    pub(crate) fn last(&self) -> Revision {
        self.last
    }

    /// Which state it is in.
    pub(crate) fn phase(&self) -> Phase {
        match self.state {
            State::Replay(_) => Phase::Replay,
            State::Lagging { .. } => Phase::Lagging,
            State::Live => Phase::Live,
            State::Finishing { .. } | State::Closed(_) => Phase::Closed,
        }
    }

    /// The place of the next event that it has not handed out; `None` when it has nothing to catch
    /// up with.
    pub(crate) fn place(&self) -> Option<u64> {
        let queued = self.queue.iter().find_map(|queued| match queued {
            Queued::Event(event, _) => Some(event.sequence),
            Queued::Bookmark(_) => None,
        });
        queued.or(match &self.state {
            State::Replay(replay) => Some(replay.place),
            State::Lagging { place } => Some(*place),
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

    /// One line per step, until the watcher waits, ends or needs history.
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
                Step::NeedHistory(place) => (format!("history {place}"), true),
                Step::Wait => ("wait".to_owned(), true),
                Step::Goodbye(status) => (format!("goodbye {}", status.code), false),
                Step::End => ("end".to_owned(), true),
            };
            steps.push(text);
            if last {
                return steps;
            }
        }
    }

    fn edge(start: u64, floor: u64) -> Edge {
        Edge { start, floor: Revision::new(floor) }
    }

    fn live(floor: u64) -> Mailbox {
        let mut mailbox = Mailbox::from_history(7, Revision::new(floor));
        assert!(mailbox.handle_attached(7));
        mailbox
    }

    #[test]
    fn a_live_watcher_takes_events_up_to_its_limit_and_then_lags_from_the_first_of_them() {
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
    fn a_reader_that_took_some_lags_from_the_rest() {
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
    fn events_at_or_below_the_floor_are_not_its_business() {
        let mut mailbox = live(108);
        assert_eq!(mailbox.handle_event(&event(8), Change::Added, 9), Push::Ignored);
        assert_eq!(mailbox.handle_event(&event(9), Change::Added, 9), Push::Queued);
        let mut lagging = Mailbox::from_history(7, Revision::new(108));
        lagging.handle_history(7, &[event(7), event(8), event(9)], |_| Some(Change::Added), expired);
        assert_eq!(drain(&mut lagging), ["ADDED r109", "history 10"]);
    }

    #[test]
    fn a_bookmark_comes_only_when_it_says_something_new() {
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
    fn an_end_is_never_silent_unless_it_is_clean() {
        let mut mailbox = live(0);
        mailbox.handle_event(&event(7), Change::Added, 9);
        assert!(mailbox.handle_close(Some(Status::expired_list()), 0).is_none());
        assert!(mailbox.handle_close(None, 0).is_none());
        assert_eq!(drain(&mut mailbox), ["ADDED r107", "history 8"]);
        mailbox.handle_history(8, &[event(8)], |_| Some(Change::Added), expired);
        assert_eq!(drain(&mut mailbox), ["goodbye 410", "end"]);

        let goodbye = |seen: Revision| Status::expired_watch(seen.get(), 9);
        let replay = Replay::new(ListItems::ready(Vec::new()), None, 7);
        let mut replaying = Mailbox::replay(replay, Revision::new(3));
        assert!(replaying.handle_eviction(edge(7, 9), goodbye).is_none());
        assert!(replaying.handle_eviction(edge(8, 3), goodbye).is_none(), "what has left is not its business");
        assert!(replaying.handle_eviction(edge(8, 9), goodbye).is_some_and(|items| items.is_some()));
        assert_eq!(drain(&mut replaying), ["goodbye 410", "end"]);

        let mut lagging = Mailbox::from_history(7, Revision::new(3));
        assert!(lagging.handle_eviction(edge(8, 9), goodbye).is_none());
        lagging.handle_gone(7, edge(8, 3), goodbye);
        assert_eq!(drain(&mut lagging), ["history 8"]);
        lagging.handle_gone(8, edge(9, 9), goodbye);
        assert_eq!(drain(&mut lagging), ["goodbye 410", "end"]);
    }

    #[test]
    fn an_end_waits_for_the_rest_of_a_revision() {
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
        gone.handle_gone(8, edge(9, 108), |seen| Status::expired_watch(seen.get(), 108));
        assert_eq!(drain(&mut gone), ["goodbye 410", "end"], "what cannot be finished is said");
        let mut quiet = live(0);
        quiet.handle_event(&event(7), Change::Added, 9);
        assert!(matches!(quiet.poll_delivery(), Step::Deliver(_)));
        assert!(quiet.handle_close(None, 500).is_none());
        assert_eq!(drain(&mut quiet), ["history 500"], "what was dispatched to others is not asked for again");
        let mut nothing = live(0);
        assert!(nothing.handle_close(None, 0).is_none());
        assert_eq!(drain(&mut nothing), ["end"]);
    }

    #[test]
    fn the_initial_state_ends_with_its_bookmark_and_goes_on_in_history() {
        let objects = vec![event(1).event.object.clone(), event(2).event.object.clone()];
        let replay = Replay::new(ListItems::ready(objects), Some(Revision::new(105)), 6);
        let mut mailbox = Mailbox::replay(replay, Revision::new(105));
        assert_eq!(mailbox.handle_event(&event(6), Change::Added, 9), Push::Ignored, "not attached yet");
        assert_eq!(drain(&mut mailbox), ["INITIAL /pods/a/x@r101", "INITIAL /pods/a/x@r102", "END r105", "history 6"]);
    }

    #[test]
    fn a_watch_that_is_closed_while_its_reader_walks_does_not_go_back_to_the_walk() {
        let objects = vec![event(1).event.object.clone(), event(2).event.object.clone()];
        let mut mailbox = Mailbox::replay(Replay::new(ListItems::ready(objects), None, 6), Revision::new(105));
        let Step::Walk(items) = mailbox.poll_delivery() else { panic!("a walk") };
        assert!(mailbox.handle_close(Some(Status::expired_list()), 0).is_none(), "the reader has it");
        assert!(mailbox.handle_walked(items, false).is_some(), "to be dropped");
        assert_eq!(drain(&mut mailbox), ["goodbye 410", "end"]);
    }

    #[test]
    fn object_that_becomes_unreadable_ends_the_watch_after_the_events_of_the_same_revision() {
        let hidden = |sequence, revision| {
            let event = Arc::into_inner(event_at(sequence, revision)).unwrap();
            Arc::new(event.into_undecodable())
        };
        // In the history, for a watcher that catches up.
        let mut mailbox = Mailbox::from_history(7, Revision::ZERO);
        let events = [event_at(7, 107), hidden(8, 107), event_at(9, 107)];
        mailbox.handle_history(7, &events, |_| Some(Change::Added), expired);
        assert_eq!(drain(&mut mailbox), ["ADDED r107", "history 9"]);
        mailbox.handle_history(9, &events[2..], |_| Some(Change::Added), expired);
        assert_eq!(drain(&mut mailbox), ["ADDED r107", "goodbye 410", "end"]);
        // As it happens, for a watcher that is live.
        let mut mailbox = Mailbox::from_history(7, Revision::ZERO);
        assert!(mailbox.handle_attached(7));
        mailbox.handle_event(&event(7), Change::Added, 9);
        assert_eq!(mailbox.handle_undecodable(&hidden(8, 108), |seen| expired(seen, seen)), Push::Closed);
        assert_eq!(drain(&mut mailbox), ["ADDED r107", "history 9"]);
        assert!(!mailbox.handle_attached(9));
        assert_eq!(drain(&mut mailbox), ["goodbye 410", "end"]);
        // A deadline between two changes of one revision: the client would resume behind both.
        let mut mailbox = Mailbox::from_history(7, Revision::ZERO);
        assert!(mailbox.handle_attached(7));
        mailbox.handle_event(&event_at(7, 107), Change::Added, 9);
        assert!(mailbox.handle_close(None, 8).is_none());
        assert_eq!(drain(&mut mailbox), ["ADDED r107", "history 8"]);
        mailbox.handle_history(8, &events[1..], |_| Some(Change::Added), expired);
        assert_eq!(drain(&mut mailbox), ["goodbye 410", "end"]);
    }

    #[test]
    fn a_watcher_that_moved_on_is_not_moved_again() {
        let mut mailbox = Mailbox::from_history(7, Revision::ZERO);
        assert!(mailbox.handle_close(None, 0).is_none());
        mailbox.handle_history(7, &[event(7)], |_| Some(Change::Added), expired);
        assert!(!mailbox.handle_attached(7));
        mailbox.handle_gone(7, edge(9, 9), |_| Status::expired_list());
        assert_eq!(drain(&mut mailbox), ["end"]);
    }
}
