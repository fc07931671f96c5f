//! The history window: the newest events of a resource, addressed by position or by revision, and
//! bounded by bytes and age. Events are shared and immutable.
//!
//! ```text
//!   floor        start                                    end
//!     │   gone     │  e₁₇ e₁₈ e₁₉ ...              e₉₉     │ ◀── append
//!     ▼            ▼                                       ▼
//!   ──────────────────────────────────────────────────────────▶ revisions
//!   a watch may begin after any revision ≥ floor
//! ```
//!
//! A watcher remembers a position instead of a revision. One transaction of the store may change
//! several objects at one revision, and a watcher may stop between two of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use listwatch_meta::{Change, Event, Revision, canary};

use crate::budget::{HistoryBudget, WindowAccount};
use crate::delivery::SharedEvent;
use crate::encodings::Encodings;
use crate::limits::{EVICTED_EVENTS_MAX, Limits, MEMO_EVENTS_MAX};

/// The events of a resource within the limits. A plain value, to which its owner synchronizes access.
pub(crate) struct History {
    events: VecDeque<Arc<SharedEvent>>,
    /// The position of the first event in `events`; never decreases.
    start: u64,
    /// Earlier positions belong to a replaced history.
    cleared: u64,
    /// A watch may begin after this revision or a later one, because all later events are held.
    floor: Revision,
    /// The bytes that only the window keeps alive ([`cost`]), and the shared budget.
    account: WindowAccount,
    encodings: Arc<Encodings>,
}

/// The start of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowStart {
    /// The position of the oldest held event.
    pub(crate) start: u64,
    /// The oldest revision that a watch may begin after.
    pub(crate) floor: Revision,
    /// Earlier positions belong to a replaced history. A watch cannot continue from them, whatever its revision.
    pub(crate) cleared: u64,
}

/// The error for a position that has left the window.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Evicted;

impl History {
    /// Creates an empty window; a watch may begin after `floor`.
    pub(crate) fn new(floor: Revision, encodings: Arc<Encodings>, budget: Option<&HistoryBudget>) -> Self {
        let account = budget.map_or_else(WindowAccount::default, HistoryBudget::open);
        History { events: VecDeque::new(), start: 0, cleared: 0, floor, account, encodings }
    }

    /// The position after the last event.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.events.len() as u64
    }

    /// The start of the window.
    pub(crate) fn window_start(&self) -> WindowStart {
        WindowStart { start: self.start, floor: self.floor, cleared: self.cleared }
    }

    /// The oldest revision that a watch may begin after.
    pub(crate) fn floor(&self) -> Revision {
        self.floor
    }

    /// The number of held events.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// Bytes that only the window keeps alive.
    pub(crate) fn bytes(&self) -> usize {
        self.account.bytes()
    }

    /// The time from the oldest event to `now`.
    pub(crate) fn span(&self, now: Instant) -> Duration {
        self.events.front().map_or(Duration::ZERO, |event| now.saturating_duration_since(event.at))
    }

    /// Adds an event and evicts those that exceed the limits.
    ///
    /// Revisions must not decrease; equal ones belong to one transaction.
    pub(crate) fn append(&mut self, now: Instant, event: Event, limits: &Limits) -> &Arc<SharedEvent> {
        self.push(SharedEvent::new(self.end(), now, event, self.encodings.clone()), limits)
    }

    /// Adds the deletion of an object whose stored value became undecodable.
    pub(crate) fn append_undecodable(&mut self, now: Instant, event: Event, limits: &Limits) -> &Arc<SharedEvent> {
        let event = SharedEvent::new(self.end(), now, event, self.encodings.clone());
        self.push(event.into_undecodable(), limits)
    }

    fn push(&mut self, event: SharedEvent, limits: &Limits) -> &Arc<SharedEvent> {
        debug_assert!(self.events.back().is_none_or(|last| last.revision() <= event.revision()));
        let now = event.at;
        self.account.add(cost(&event.event));
        self.events.push_back(Arc::new(event));
        if let Some(aged) = self.events.len().checked_sub(MEMO_EVENTS_MAX + 1) {
            self.events[aged].forget_encodings();
        }
        self.evict(now, limits);
        self.events.back().expect("just added, and the newest event never leaves")
    }

    /// Evicts some of the events that exceed the limits. Returns true if more remain.
    ///
    /// After a burst and a pause, all events exceed the age at once. Evicting them in parts keeps
    /// the lock's hold time short.
    pub(crate) fn evict(&mut self, now: Instant, limits: &Limits) -> bool {
        let mut left = EVICTED_EVENTS_MAX;
        while self.events.len() > 1 {
            let oldest = &self.events[0];
            let aged = now.saturating_duration_since(oldest.at) > limits.history_age
                && self.events.len() > limits.history_events_min;
            if !aged && self.bytes() <= limits.history_bytes_max && !self.account.is_over_share() {
                break;
            }
            if left == 0 {
                return true;
            }
            left -= 1;
            self.drop_oldest();
        }
        false
    }

    /// Marks the changes up to `floor` as unknown: a new watch may begin only after `floor`. The
    /// events stay for watchers that are reading them.
    pub(crate) fn raise_floor(&mut self, floor: Revision) {
        self.floor = self.floor.max(floor);
    }

    /// Clears the window and returns its events. All earlier positions become invalid.
    pub(crate) fn clear(&mut self, floor: Revision) -> VecDeque<Arc<SharedEvent>> {
        // Skips one position, so that a reader at the very end also gets an error.
        self.start = self.end() + 1;
        self.cleared = self.start;
        self.account.subtract(self.account.bytes());
        self.floor = floor;
        std::mem::take(&mut self.events)
    }

    /// The position of the first event after `revision`, if every event after it is held.
    pub(crate) fn position_after(&self, revision: Revision) -> Result<u64, Evicted> {
        if revision < self.floor && !canary!("cacher-resumes-after-eviction") {
            return Err(Evicted);
        }
        if canary!("cacher-expires-held-versions") && revision.get().is_multiple_of(2) {
            return Err(Evicted);
        }
        let from = if canary!("cacher-repeats-the-start") { revision.previous() } else { revision };
        let skipped = self.events.partition_point(|event| event.revision() <= from);
        Ok(self.start + skipped as u64)
    }

    /// Returns up to `limit` events from `position` on, and more only to complete a revision; empty at
    /// the end.
    pub(crate) fn read(&self, position: u64, limit: usize) -> Result<Vec<Arc<SharedEvent>>, Evicted> {
        let skip = position.checked_sub(self.start).ok_or(Evicted)? as usize;
        if skip >= self.events.len() {
            return Ok(Vec::new());
        }
        let mut to = self.events.len().min(skip.saturating_add(limit.max(1)));
        while self.events.get(to).is_some_and(|next| next.revision() == self.events[to - 1].revision()) {
            to += 1;
        }
        Ok(self.events.range(skip..to).cloned().collect())
    }

    /// The event at a position, if it is held.
    pub(crate) fn get(&self, position: u64) -> Option<&Arc<SharedEvent>> {
        self.events.get(position.checked_sub(self.start)? as usize)
    }

    fn drop_oldest(&mut self) {
        if let Some(event) = self.events.pop_front() {
            self.start += 1;
            self.account.subtract(cost(&event.event));
            // The rest of a transaction is of no use without its first event.
            let late = canary!("cacher-raises-the-floor-too-late");
            self.raise_floor(if late { event.revision().previous() } else { event.revision() });
        }
    }
}

/// The bytes that only the window keeps alive: the replaced state, and for a deletion the last
/// state too. The current state is accounted elsewhere.
fn cost(event: &Event) -> usize {
    let previous = event.previous.as_ref().map_or(0, listwatch_meta::Object::heap_size);
    let deleted = if event.change == Change::Deleted { event.object.heap_size() } else { 0 };
    size_of::<SharedEvent>() + 2 * size_of::<usize>() + size_of::<Arc<SharedEvent>>() + previous + deleted
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use listwatch_meta::{Key, Object, ObjectShape};

    use super::*;
    use crate::delivery::Delivered;
    use crate::encoding_cache::EncodingId;

    fn added(revision: u64) -> Event {
        let key = Key::new("pods", Some("a"), &format!("p{revision}")).unwrap();
        let shape = ObjectShape::new(true, Vec::new());
        let object =
            Object::from_stored(key, Revision::new(revision), Change::Added, br#"{"metadata":{}}"#, &shape).unwrap();
        Event { change: Change::Added, object, previous: None }
    }

    fn history(revisions: &[u64], limits: &Limits, step: Duration) -> (History, Instant) {
        let mut history = History::new(Revision::new(10), Arc::default(), limits.history_budget.as_ref());
        let mut now = Instant::now();
        for revision in revisions {
            now += step;
            history.append(now, added(*revision), limits);
        }
        (history, now)
    }

    #[test]
    fn position_after_covered_revision_is_found() {
        let (history, _) = history(&[11, 13, 13, 20], &Limits::default(), Duration::ZERO);
        let r = Revision::new;
        for (after, expected) in [(9, Err(Evicted)), (10, Ok(0)), (11, Ok(1)), (12, Ok(1)), (13, Ok(3)), (99, Ok(4))] {
            assert_eq!(history.position_after(r(after)), expected, "after {after}");
        }
        assert_eq!(history.read(0, 1).unwrap().len(), 1);
        assert_eq!(history.read(1, 1).unwrap().len(), 2, "a revision is not split");
        assert_eq!(history.read(4, 2), Ok(Vec::new()));
    }

    impl PartialEq for SharedEvent {
        fn eq(&self, other: &Self) -> bool {
            self.sequence == other.sequence
        }
    }

    #[test]
    fn old_events_are_evicted_down_to_the_minimum_count() {
        let limits = Limits { history_events_min: 3, ..Limits::default() };
        let (history, now) = history(&[11, 12, 13, 14, 15], &limits, Duration::from_secs(60));
        assert_eq!((history.len(), history.floor()), (3, Revision::new(12)));
        assert_eq!(history.position_after(Revision::new(11)), Err(Evicted));
        assert_eq!(history.position_after(Revision::new(12)), Ok(2));
        assert_eq!(history.read(1, 9), Err(Evicted));
        assert_eq!(history.span(now), Duration::from_secs(120));
    }

    #[test]
    fn young_events_are_evicted_at_the_byte_bound() {
        let one = cost(&added(1));
        let limits = Limits { history_events_min: 0, history_bytes_max: 10 * one, ..Limits::default() };
        let revisions: Vec<u64> = (11..100).collect();
        let (history, _) = history(&revisions, &limits, Duration::from_millis(1));
        assert_eq!((history.len(), history.bytes()), (10, 10 * one));
    }

    #[test]
    fn shared_budget_evicts_from_the_busy_window() {
        let one = cost(&added(1));
        let limits =
            Limits { history_events_min: 0, history_budget: Some(HistoryBudget::new(20 * one)), ..Limits::default() };
        let (quiet, _) = history(&[11, 12, 13, 14, 15], &limits, Duration::ZERO);
        let revisions: Vec<u64> = (16..100).collect();
        let (busy, now) = history(&revisions, &limits, Duration::from_millis(1));
        assert_eq!((quiet.len(), busy.len()), (5, 15), "the quiet window keeps what it has");
        drop(quiet);
        let mut busy = busy;
        busy.append(now, added(100), &limits);
        assert_eq!(busy.len(), 16, "there is room again");
        busy.clear(Revision::new(100));
        assert_eq!(limits.history_budget.as_ref().map(HistoryBudget::bytes), Some(0));
    }

    #[test]
    fn expired_events_are_evicted_in_batches() {
        let revisions: Vec<u64> = (11..11 + 3 * EVICTED_EVENTS_MAX as u64).collect();
        let (mut history, now) = history(&revisions, &Limits::default(), Duration::ZERO);
        let later = now + Duration::from_secs(76);
        let mut lengths = Vec::new();
        while history.evict(later, &Limits::default()) {
            lengths.push(history.len());
        }
        assert_eq!(lengths, [2 * EVICTED_EVENTS_MAX, EVICTED_EVENTS_MAX]);
        assert_eq!(history.len(), 100);
    }

    #[test]
    fn newest_event_is_kept_even_above_the_byte_bound() {
        let limits = Limits { history_events_min: 0, history_bytes_max: 0, ..Limits::default() };
        let (history, _) = history(&[11, 12, 13], &limits, Duration::ZERO);
        assert_eq!((history.len(), history.floor()), (1, Revision::new(12)));
    }

    #[test]
    fn history_accounts_each_event_and_the_states_that_only_the_window_keeps_alive() {
        let state = added(11).object;
        let entry = cost(&added(11));
        let counts_and_reference = 3 * size_of::<usize>();
        assert_eq!(entry - size_of::<SharedEvent>(), counts_and_reference, "an `Arc`, and one reference to it");
        for (change, has_previous, states) in
            [(Change::Added, false, 0), (Change::Modified, true, 1), (Change::Deleted, true, 2)]
        {
            let event = Event { change, object: state.clone(), previous: has_previous.then(|| state.clone()) };
            assert_eq!(cost(&event), entry + states * state.heap_size(), "{change}");
        }
    }

    #[test]
    fn encodings_of_the_newest_256_events_stay_cached() {
        let (mut history, now) = history(&[11], &Limits::default(), Duration::ZERO);
        let first = history.get(0).unwrap().clone();
        let shape = ObjectShape::new(true, Vec::new());
        Delivered::new(first.clone(), Change::Added, &shape).encoded(EncodingId::new(1), |_, _| Bytes::from("x"));
        for revision in 12..11 + 256 {
            history.append(now, added(revision), &Limits::default());
        }
        assert!(first.has_encodings(), "it is among the newest 256 events");
        history.append(now, added(11 + 256), &Limits::default());
        assert!(!first.has_encodings(), "it is older");
    }

    #[test]
    fn clear_invalidates_every_earlier_position() {
        let (mut history, _) = history(&[11, 12], &Limits::default(), Duration::ZERO);
        let end = history.end();
        assert_eq!(history.clear(Revision::new(50)).len(), 2);
        assert_eq!(history.read(end, 1), Err(Evicted));
        assert_eq!(history.position_after(Revision::new(50)), Ok(history.end()));
        assert_eq!(history.position_after(Revision::new(49)), Err(Evicted));
    }
}
