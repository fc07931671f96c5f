//! The watchers of a resource: the events that each one receives, and the times of its bookmarks
//! and deadline ([`Hub`]).
//!
//! The hub holds only the data for dispatching: each watcher's filter, its key in the [`Interest`]
//! index, and its timers. The queued deliveries are in the [`Mailbox`](crate::watcher::Mailbox),
//! behind a handle `W` that is opaque to the hub.
//!
//! A watcher is *attached* while events are pushed to it. A watcher is detached when its queue
//! overflows, and attached again when its reader has reached the end of the history. So a slow
//! watcher costs nothing at dispatch.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use listwatch_meta::{Change, ObjectShape, Revision, canary};

use crate::bookmark;
use crate::delivery::SharedEvent;
use crate::filter::{EventLabels, Filter};
use crate::interest::Interest;
use crate::limits::{BOOKMARK_PROGRESS_LEAD, Limits, TIMER_SLACK};
use crate::watcher::Push;

/// The watchers of one resource. `W` is the handle of a watcher's mailbox.
pub(crate) struct Hub<W> {
    watchers: Vec<Option<Entry<W>>>,
    free: Vec<u32>,
    interest: Interest,
    attached: usize,
    /// The position of the next event to dispatch.
    dispatched: u64,
    /// The revision up to which everything has been dispatched.
    revision: Revision,
    /// One timer per watcher: its next bookmark or its deadline.
    timers: BTreeSet<(Instant, u32)>,
    /// The latest due time of the bookmarks for which progress was already requested from the
    /// store.
    asked_until: Option<Instant>,
    /// Watchers to detach after the current dispatch; kept for its allocation.
    overflowed: Vec<u32>,
}

/// The identifier of a watcher within one hub; only the watcher's owner has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatcherId(u32);

struct Entry<W> {
    handle: W,
    filter: Arc<Filter>,
    /// The position from which events are pushed; `None` while detached.
    attached_at: Option<u64>,
    deadline: Instant,
    /// The watcher's time in `timers`.
    timer: Instant,
    /// The time of the next bookmark, if the watcher accepts bookmarks.
    bookmark: Option<Instant>,
}

/// An action of a watcher that is due at its time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due<'a, W> {
    /// Send a bookmark at this revision.
    Bookmark(&'a W, Revision),
    /// End the watch.
    Deadline(&'a W),
}

impl<W> Hub<W> {
    /// Creates a hub without watchers; the fields at the positions `indexed` have a dispatch index.
    pub(crate) fn new(indexed: &[usize]) -> Self {
        Hub {
            watchers: Vec::new(),
            free: Vec::new(),
            interest: Interest::new(indexed),
            attached: 0,
            dispatched: 0,
            revision: Revision::ZERO,
            timers: BTreeSet::new(),
            asked_until: None,
            overflowed: Vec::new(),
        }
    }

    // --------------------------------------------------------------------------------- inputs

    /// Adds a watcher, detached. With `bookmarks` the watcher gets bookmarks until its deadline.
    pub(crate) fn handle_watch(
        &mut self,
        now: Instant,
        handle: W,
        filter: Arc<Filter>,
        deadline: Instant,
        bookmarks: bool,
        limits: &Limits,
    ) -> WatcherId {
        let bookmark = bookmarks.then(|| bookmark::next_due(now, deadline, limits)).flatten();
        let timer = bookmark.unwrap_or(deadline);
        let entry = Entry { handle, filter, attached_at: None, deadline, timer, bookmark };
        let id = if let Some(id) = self.free.pop() {
            self.watchers[id as usize] = Some(entry);
            id
        } else {
            self.watchers.push(Some(entry));
            u32::try_from(self.watchers.len() - 1).expect("fewer than 2^32 watchers")
        };
        self.timers.insert((timer, id));
        WatcherId(id)
    }

    /// Attaches a watcher that has read everything before `position`. Returns false if more events
    /// were dispatched meanwhile, so that the reader must continue to read.
    pub(crate) fn handle_attach(&mut self, id: WatcherId, position: u64) -> bool {
        if position < self.dispatched {
            return false;
        }
        if let Some(entry) = &mut self.watchers[id.0 as usize]
            && entry.attached_at.is_none()
        {
            entry.attached_at = Some(position);
            self.interest.insert(id.0, entry.filter.index_key());
            self.attached += 1;
        }
        true
    }

    /// Detaches a watcher. The hub dispatches no further events to the watcher.
    pub(crate) fn handle_detach(&mut self, id: WatcherId) {
        self.detach(id.0);
    }

    /// Removes a watcher. Returns the handle, to be dropped outside of any lock.
    pub(crate) fn handle_gone(&mut self, id: WatcherId) -> Option<W> {
        self.detach(id.0);
        let entry = self.watchers[id.0 as usize].take()?;
        self.timers.remove(&(entry.timer, id.0));
        self.free.push(id.0);
        if self.free.len() == self.watchers.len() {
            self.watchers = Vec::new();
            self.free = Vec::new();
        }
        Some(entry.handle)
    }

    /// Dispatches an event: calls `push` once for each attached watcher that sees it.
    ///
    /// Every event must be dispatched, in the order of the history.
    pub(crate) fn handle_event(
        &mut self,
        event: &Arc<SharedEvent>,
        shape: &ObjectShape,
        mut push: impl FnMut(&W, Change) -> Push,
    ) {
        debug_assert!(event.sequence >= self.dispatched, "events are dispatched in order");
        let Hub { watchers, interest, overflowed, .. } = self;
        let labeled_event = EventLabels::new(&event.event, shape);
        interest.candidates(&labeled_event, |id| {
            let Some(entry) = &watchers[id as usize] else { return };
            if entry.attached_at.is_none_or(|position| event.sequence < position) {
                return;
            }
            if let Some(change) = entry.filter.view(&labeled_event)
                && matches!(push(&entry.handle, change), Push::Overflow | Push::Closed)
            {
                overflowed.push(id);
            }
        });
        self.dispatched = event.sequence + 1;
        while let Some(id) = self.overflowed.pop() {
            self.detach(id);
        }
    }

    /// The position of the next event to dispatch.
    pub(crate) fn dispatched(&self) -> u64 {
        self.dispatched
    }

    /// Records that everything up to `revision`, whose last event precedes `end`, is dispatched.
    pub(crate) fn handle_progress(&mut self, revision: Revision, end: u64) {
        self.revision = revision;
        self.dispatched = end;
    }

    /// Calls `due` for each watcher whose timer has expired.
    pub(crate) fn handle_timeout(&mut self, now: Instant, limits: &Limits, mut due: impl FnMut(Due<'_, W>)) {
        if self.timers.first().is_none_or(|(timer, _)| *timer > now) {
            return;
        }
        // Timers that are set here are not handled in the same call, however soon they are due.
        let mut again = Vec::new();
        while let Some((timer, id)) = self.timers.first().copied() {
            let Some(entry) = &mut self.watchers[id as usize] else { break };
            // The driver is awake, so bookmarks that are due shortly are sent now.
            if timer > now && (entry.bookmark.is_none() || timer > now + TIMER_SLACK) {
                break;
            }
            self.timers.pop_first();
            if now >= entry.deadline {
                // The owner removes the watcher; until then it has no due timer.
                entry.bookmark = None;
                due(Due::Deadline(&entry.handle));
                self.detach(id);
                continue;
            }
            if entry.attached_at.is_some() {
                let ahead = canary!("cacher-sends-bookmarks-ahead");
                due(Due::Bookmark(&entry.handle, if ahead { self.revision.next() } else { self.revision }));
            }
            entry.bookmark = bookmark::next_due(timer.max(now), entry.deadline, limits);
            entry.timer = entry.bookmark.unwrap_or(entry.deadline);
            again.push((entry.timer, id));
        }
        self.timers.extend(again);
    }

    /// Calls `visit` for every watcher.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&W)) {
        self.watchers.iter().flatten().for_each(|entry| visit(&entry.handle));
    }

    /// Detaches all watchers, because none can continue.
    pub(crate) fn handle_reset(&mut self) {
        for id in 0..self.watchers.len() {
            self.detach(id as u32);
        }
    }

    // ------------------------------------------------------------------------------- polling

    /// Returns true if progress should be requested from the store, so that the next bookmarks have
    /// a newer revision.
    pub(crate) fn poll_progress(&mut self, now: Instant) -> bool {
        let Some(first) = self.next_bookmark() else { return false };
        if self.asked_until >= Some(first) || first.checked_sub(BOOKMARK_PROGRESS_LEAD).is_some_and(|ask| now < ask) {
            return false;
        }
        self.asked_until = Some(first + TIMER_SLACK);
        true
    }

    /// The time of the next call of [`Hub::poll_progress`] and [`Hub::handle_timeout`].
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let first = self.timers.first().map(|(timer, _)| *timer)?;
        let ask = self.next_bookmark().filter(|due| self.asked_until < Some(*due));
        Some(ask.and_then(|due| due.checked_sub(BOOKMARK_PROGRESS_LEAD)).map_or(first, |ask| ask.min(first)))
    }

    /// The number of watchers.
    pub(crate) fn len(&self) -> usize {
        self.watchers.len() - self.free.len()
    }

    /// The number of detached watchers.
    pub(crate) fn detached(&self) -> usize {
        self.len() - self.attached
    }

    fn next_bookmark(&self) -> Option<Instant> {
        let (timer, id) = self.timers.first()?;
        self.watchers[*id as usize].as_ref().and_then(|entry| entry.bookmark).map(|_| *timer)
    }

    fn detach(&mut self, id: u32) {
        let Some(entry) = &mut self.watchers[id as usize] else { return };
        if entry.attached_at.take().is_some() {
            self.interest.remove(id, entry.filter.index_key());
            self.attached -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use listwatch_meta::{Event, FieldSelector, Key, LabelSelector, Object};

    use super::*;
    use crate::filter::Scope;

    const SECOND: Duration = Duration::from_secs(1);

    fn shape() -> ObjectShape {
        ObjectShape::new(true, Vec::new())
    }

    fn event(sequence: u64, namespace: &str) -> Arc<SharedEvent> {
        let key = Key::new("pods", Some(namespace), "x").unwrap();
        let revision = Revision::new(100 + sequence);
        let object = Object::from_stored(key, revision, Change::Added, br#"{"metadata":{}}"#, &shape()).unwrap();
        let event = Event { change: Change::Added, object, previous: None };
        Arc::new(SharedEvent::new(sequence, Instant::now(), event, Arc::default()))
    }

    fn join(
        hub: &mut Hub<char>,
        start: Instant,
        name: char,
        scope: &Scope,
        seconds: u32,
        bookmarks: bool,
    ) -> WatcherId {
        let filter = Filter::new("pods", &shape(), &[], scope, LabelSelector::default(), &FieldSelector::default());
        hub.handle_watch(start, name, Arc::new(filter), start + seconds * SECOND, bookmarks, &Limits::default())
    }

    fn pushed(hub: &mut Hub<char>, event: &Arc<SharedEvent>, answer: Push) -> String {
        let mut to = Vec::new();
        hub.handle_event(event, &shape(), |name, _| {
            to.push(*name);
            answer
        });
        to.sort_unstable();
        to.into_iter().collect()
    }

    #[test]
    fn event_is_pushed_to_attached_watchers_that_match() {
        let start = Instant::now();
        let mut hub = Hub::new(&[]);
        let all = join(&mut hub, start, 'a', &Scope::All, 60, false);
        let one = join(&mut hub, start, 'b', &Scope::Namespace("one".to_owned()), 60, false);
        assert_eq!(pushed(&mut hub, &event(0, "one"), Push::Queued), "", "no watcher is attached");
        assert!(!hub.handle_attach(all, 0), "event 0 has been dispatched meanwhile");
        assert!(hub.handle_attach(all, 1));
        assert!(hub.handle_attach(one, 3), "it has read further than was dispatched");
        assert_eq!(pushed(&mut hub, &event(1, "one"), Push::Queued), "a");
        assert_eq!(pushed(&mut hub, &event(2, "one"), Push::Queued), "a");
        assert_eq!(pushed(&mut hub, &event(3, "one"), Push::Queued), "ab");
        assert_eq!(pushed(&mut hub, &event(4, "two"), Push::Overflow), "a");
        assert_eq!((hub.len(), hub.detached()), (2, 1));
        assert_eq!(pushed(&mut hub, &event(5, "one"), Push::Queued), "b", "the overflowed watcher is detached");
        hub.handle_detach(one);
        assert_eq!(pushed(&mut hub, &event(6, "one"), Push::Queued), "", "a detached watcher gets no event");
        assert!(hub.handle_attach(one, 7) && hub.handle_attach(all, 7));
        hub.handle_reset();
        assert_eq!(pushed(&mut hub, &event(7, "one"), Push::Queued), "", "a reset detaches all");
        assert_eq!(hub.handle_gone(one), Some('b'));
        assert_eq!((hub.len(), hub.detached()), (1, 1));
        assert_eq!(hub.handle_gone(all), Some('a'));
        assert_eq!((hub.len(), hub.detached(), hub.timers.len()), (0, 0, 0));
    }

    fn due(hub: &mut Hub<char>, now: Instant) -> Vec<String> {
        let mut seen = Vec::new();
        hub.handle_timeout(now, &Limits::default(), |due| {
            seen.push(match due {
                Due::Bookmark(name, revision) => format!("{name} bookmark {revision}"),
                Due::Deadline(name) => format!("{name} deadline"),
            });
        });
        seen
    }

    #[test]
    fn watcher_gets_bookmarks_each_interval_and_ends_at_its_deadline() {
        let start = Instant::now();
        let mut hub = Hub::new(&[]);
        for (name, seconds, bookmarks) in [('a', 100, true), ('b', 63, true), ('c', 70, false), ('d', 100, true)] {
            let id = join(&mut hub, start, name, &Scope::All, seconds, bookmarks);
            assert!(name == 'd' || hub.handle_attach(id, 0));
        }
        hub.handle_progress(Revision::new(9), 0);
        let at = |seconds: u32| start + seconds * SECOND;
        let ask = at(60) - BOOKMARK_PROGRESS_LEAD;
        assert_eq!(hub.poll_timeout(), Some(ask));
        assert!(!hub.poll_progress(at(59)));
        assert!(hub.poll_progress(ask), "the store is asked a little before");
        assert!(!hub.poll_progress(ask), "and once");
        assert_eq!(hub.poll_timeout(), Some(at(60)));
        assert_eq!(due(&mut hub, at(59)), Vec::<String>::new());
        assert_eq!(due(&mut hub, at(60)), ["a bookmark 9", "b bookmark 9"], "detached watchers get no bookmark");
        assert_eq!(due(&mut hub, at(61)), ["b bookmark 9"], "two seconds before its deadline");
        assert_eq!(due(&mut hub, at(63)), ["b deadline"]);
        assert_eq!(due(&mut hub, at(70)), ["c deadline"]);
        assert_eq!(due(&mut hub, at(98)), ["a bookmark 9"]);
        assert_eq!(due(&mut hub, at(100)), ["a deadline", "d deadline"]);
        assert_eq!(hub.poll_timeout(), None);
    }

    #[test]
    fn bookmarks_within_a_second_are_sent_together() {
        let start = Instant::now();
        let mut hub = Hub::new(&[]);
        let after = |millis: u64| start + Duration::from_millis(millis);
        for (name, begun) in [('a', 0), ('b', 500), ('c', 1_000), ('d', 1_001)] {
            let id = join(&mut hub, after(begun), name, &Scope::All, 1_000, true);
            assert!(hub.handle_attach(id, 0));
        }
        hub.handle_progress(Revision::new(9), 0);
        assert_eq!(due(&mut hub, after(60_000)), ["a bookmark 9", "b bookmark 9", "c bookmark 9"]);
        assert_eq!(due(&mut hub, after(61_001)), ["d bookmark 9"]);
    }

    #[test]
    fn bookmark_covered_by_a_progress_request_causes_no_further_request() {
        let start = Instant::now();
        let mut hub = Hub::new(&[]);
        join(&mut hub, start, 'a', &Scope::All, 100, true);
        assert!(hub.poll_progress(start + 60 * SECOND));
        due(&mut hub, start + 60 * SECOND);
        // Due at 61 s, the last time that the request covers.
        join(&mut hub, start + 60 * SECOND, 'b', &Scope::All, 3, true);
        assert_eq!(hub.poll_timeout(), Some(start + 61 * SECOND));
        assert!(!hub.poll_progress(start + 61 * SECOND));
    }
}
