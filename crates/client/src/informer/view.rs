//! The events that one handler has not received yet: [`View`], a state machine without I/O.
//!
//! ```text
//!   informer ── push ──▶ ┌ entries, oldest first ───────────────┐
//!                        │ web: saw @3, now @9   db: gone @7    │ ─┐
//!                        └──────────────────────────────────────┘  │ take, in turns
//!                        ┌ replay of a snapshot, key by key ────┐  ├──────▶ the handler
//!                        │ sent up to "shop/web"                │ ─┤
//!                        └──────────────────────────────────────┘  │
//!                        ┌ resync, when it is due ──────────────┐ ─┘
//!                        └──────────────────────────────────────┘
//! ```
//!
//! A view has at most one entry per object, however often the object changes, so its memory is
//! bounded by the number of objects. Several changes of one object coalesce into the events that
//! lead from the state that the handler saw last to the current one:
//!
//! | object seen before | changes | events |
//! |---|---|---|
//! | no | added, updated… | added, in the latest state |
//! | no | added, …, deleted | nothing |
//! | yes | updated, updated… | updated, from the last seen state to the latest |
//! | yes | …, deleted | deleted |
//! | yes | deleted, added with the same uid (left a selector and matched again) | updated, or nothing if the version is the same |
//! | yes | deleted, added with another uid | deleted, and added |
//! | yes | deleted, added, deleted | deleted, once |
//!
//! An entry keeps its position while it changes: objects are delivered in the order of their first
//! change, so a constantly changing object does not starve the others.
//! **The initial state** is not queued. The view iterates over the newest snapshot in key order (a
//! replay). A change of a key that was already delivered becomes an entry. A change of a later key
//! needs no entry, because the replay will deliver the new state. A handler that joins late
//! therefore costs one pointer, and receives each object exactly once.
//!
//! **Resync** also iterates over the snapshot, spread over the period, and yields to entries ([`RESYNC_TURN`]). A
//! resync skips an object with an entry, because the entry delivers a newer state.
//!
//! The caller passes the time with each call, and [`View::poll_timeout`] returns the time of the
//! next call. Order of calls: [`View::begin`] with the first state, then [`View::push`] for each
//! change after it, and [`View::end_initial`] when the initial state is complete. [`View::take`]
//! may be called at any time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use listwatch_meta::canary;

use super::event::{Event, Reason, StopReason};
use crate::deadline::{WAIT_MAX, deadline};
use crate::delta_fifo::Quarantined;
use crate::indexer::{Change, Snapshot};
use crate::object::ObjectKey;
use crate::stored::Stored;

/// The default number of changes by which a handler under [`Policy::Block`] may lag before the
/// informer waits for it.
pub const BLOCK_CHANGES_MAX: usize = 1024;

/// The default total time for which the informer waits for stuck handlers under [`Policy::Block`].
/// Other handlers are delayed by at most this time, however many handlers are stuck.
pub const BLOCK_WAIT_MAX: Duration = Duration::from_secs(10);

/// The default number of objects whose changes may wait for a handler under
/// [`Policy::DropAndResync`].
pub const DROP_OBJECTS_MAX: usize = 10_000;

/// The maximum number of other events before a due resync event.
pub const RESYNC_TURN: u32 = 8;

/// Resync events that are due within this time are delivered together, so that a large cache does
/// not wake its handlers once per object.
pub const RESYNC_TICK: Duration = Duration::from_millis(100);

/// The shortest resync period (client-go's `minimumResyncPeriod`). A shorter period is raised to this value, except zero,
/// which means no resync.
pub const RESYNC_PERIOD_MIN: Duration = Duration::from_secs(1);

/// The treatment of a handler that is slower than the changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The handler receives the latest state of each object; states in between are omitted. The handler delays no other
    /// handler, and its queue is bounded by the number of objects.
    #[default]
    Coalesce,
    /// The handler receives each change. While `changes_max` changes wait for it, the informer
    /// reads nothing from the server, which delays all its handlers. If the handler takes no event
    /// for `timeout`, its changes are coalesced until half of its queue is processed, and the
    /// informer continues.
    ///
    /// The informer waits for all such handlers at the same time. Each wait counts against the
    /// timeout of every handler that takes nothing during it. Stuck handlers therefore delay the
    /// others by the longest of their timeouts in total.
    ///
    /// The initial state is delivered without the history before it.
    Block {
        /// The number of changes that may wait; at least one.
        changes_max: usize,
        /// The total time for which the informer waits for a stuck handler since the handler last
        /// took an event.
        timeout: Duration,
    },
    /// As `Coalesce`, up to changes of `objects_max` objects. Above that limit all waiting changes
    /// are dropped: the handler receives [`Event::Reset`], then the complete state at its own
    /// speed. For handlers that mirror the state.
    DropAndResync {
        /// The number of objects whose changes may wait; at least one.
        objects_max: usize,
    },
}

impl Policy {
    /// [`Policy::Block`] with [`BLOCK_CHANGES_MAX`] and [`BLOCK_WAIT_MAX`].
    pub fn block() -> Self {
        Policy::Block { changes_max: BLOCK_CHANGES_MAX, timeout: BLOCK_WAIT_MAX }
    }

    /// [`Policy::DropAndResync`] with [`DROP_OBJECTS_MAX`].
    pub fn drop_and_resync() -> Self {
        Policy::DropAndResync { objects_max: DROP_OBJECTS_MAX }
    }
}

/// The lag of a handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// The number of objects with waiting changes; under [`Policy::Block`], the number of waiting
    /// changes. Objects of an unfinished replay are not counted.
    pub waiting: usize,
    /// Whether a replay of the complete state, initially or after a reset, is in progress.
    pub replaying: bool,
    /// The age of the oldest event that waits or is being processed; zero if there is none.
    pub age: Duration,
    /// The difference between the newest resource version and the one that the handler has
    /// processed; zero if it is current. `None` during a replay, and if versions are not numbers.
    pub versions: Option<u64>,
}

/// The counters of a view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events that the handler took, including [`Event::Synced`], [`Event::Reset`] and
    /// [`Event::Stopped`].
    pub delivered: u64,
    /// Changes that were merged into a waiting one.
    pub coalesced: u64,
    /// The number of times that all waiting events were dropped ([`Policy::DropAndResync`]).
    pub resets: u64,
    /// The number of times that the informer stopped waiting for the handler after its timeout
    /// ([`Policy::Block`]).
    pub block_timeouts: u64,
}

/// The events that wait for one handler; see the [module](self).
#[derive(Debug)]
pub struct View<S: Stored> {
    policy: Policy,
    /// The newest state, after all pushed changes.
    latest: Arc<Snapshot<S>>,
    latest_version: Option<u64>,
    /// The events to deliver, oldest first.
    entries: BTreeMap<u64, Entry<S>>,
    /// The newest entry of each object, into which further changes are merged.
    index: HashMap<ObjectKey, u64>,
    next_entry: u64,
    /// The undecodable objects to report.
    quarantined: BTreeMap<ObjectKey, Arc<Quarantined>>,
    replay: Option<Replay>,
    /// The last event was one of the replay, so the next one is an entry.
    replayed: bool,
    synced: Synced,
    resync: Option<Resync>,
    reset_due: bool,
    /// [`Policy::Block`]: the timeout was reached, so the informer does not wait for the handler
    /// until half of its queue is processed.
    block_timed_out: bool,
    /// While a batch is pushed in parts, the state before it; `latest` is already the state after
    /// it.
    feeding: Option<Arc<Snapshot<S>>>,
    /// The stop that was not delivered yet.
    stop: Option<StopReason>,
    /// Whether the informer does not run.
    stopped: bool,
    closed: bool,
    in_hand: Option<WaitingSince>,
    last_take: Option<Instant>,
    /// The time for which the informer has waited; see [`View::stalled`].
    stalled: Duration,
    counts: Counts,
}

/// The changes of one object from the state that the handler saw last to the current one.
#[derive(Debug)]
struct Entry<S> {
    key: ObjectKey,
    /// The state that the handler has at the time of this event.
    seen: Option<S>,
    /// The deletion of the object in `seen`.
    deleted: Option<Deletion<S>>,
    /// The current state; `None` if the object is deleted.
    now: Option<(S, Reason)>,
    since: WaitingSince,
}

#[derive(Debug)]
struct Deletion<S> {
    last: S,
    last_is_final: bool,
    reason: Reason,
}

/// The time since which an event waits, and the version whose changes were delivered before it.
#[derive(Clone, Copy, Debug)]
struct WaitingSince {
    at: Instant,
    version: Option<u64>,
}

/// A replay: an iteration over the newest snapshot.
#[derive(Debug)]
struct Replay {
    /// The last delivered key.
    last_delivered: Option<ObjectKey>,
    reason: Reason,
    since: Instant,
}

#[derive(Debug)]
enum Synced {
    /// The state is not complete.
    Loading,
    /// The initial state is complete and is delivered before this entry.
    Marked(u64),
    Delivered,
}

#[derive(Debug)]
struct Resync {
    period: Duration,
    /// The current pass over the objects.
    pass: Option<Pass>,
    /// The start of the next pass.
    next: Option<Instant>,
    /// Other events since the last resync that was due.
    others: u32,
}

#[derive(Debug)]
struct Pass {
    began: Instant,
    objects: usize,
    done: usize,
    last_delivered: Option<ObjectKey>,
}

impl<S: Stored> View<S> {
    /// Creates a view without a state. A resync period is at least [`RESYNC_PERIOD_MIN`]; a period of zero means no
    /// resync.
    pub fn new(policy: Policy, resync: Option<Duration>) -> Self {
        // `AddEventHandlerWithOptions` of client-go's shared_informer.go has the same meaning of zero.
        let resync = resync.filter(|period| !period.is_zero());
        let resync = resync.map(|period| Resync {
            period: period.clamp(RESYNC_PERIOD_MIN, WAIT_MAX),
            pass: None,
            next: None,
            others: 0,
        });
        View {
            policy,
            latest: Arc::default(),
            latest_version: None,
            entries: BTreeMap::new(),
            index: HashMap::new(),
            next_entry: 0,
            quarantined: BTreeMap::new(),
            replay: None,
            replayed: false,
            synced: Synced::Loading,
            resync,
            reset_due: false,
            block_timed_out: false,
            feeding: None,
            stop: None,
            stopped: false,
            closed: false,
            in_hand: None,
            last_take: None,
            stalled: Duration::ZERO,
            counts: Counts::default(),
        }
    }

    // ===== what happens =====

    /// Sets the initial state, which is delivered object by object. Call this once, first.
    pub fn begin(&mut self, now: Instant, state: Arc<Snapshot<S>>) {
        if self.closed {
            return;
        }
        for (key, entry) in state.quarantine() {
            self.quarantined.insert(key.clone(), Arc::new(entry.clone()));
        }
        self.set_latest(state);
        self.replay = Some(Replay { last_delivered: None, reason: Reason::Initial, since: now });
    }

    /// Marks the initial state as complete: [`Event::Synced`] follows the current entries.
    pub fn end_initial(&mut self) {
        if matches!(self.synced, Synced::Loading) {
            self.synced = Synced::Marked(self.next_entry);
        }
    }

    /// Pushes changes and the state after them. `why` replaces the reasons of the changes.
    pub fn push(&mut self, now: Instant, changes: &[Change<S>], why: Option<Reason>, state: Arc<Snapshot<S>>) {
        self.push_whole(now, changes, why, state);
    }

    /// Reports an object whose newest version could not be decoded. The report is delivered once per object
    /// and version, or not at all if a decodable version or the deletion comes first.
    pub(crate) fn push_quarantined(&mut self, key: &ObjectKey, entry: &Arc<Quarantined>) {
        if !self.closed {
            self.quarantined.insert(key.clone(), entry.clone());
        }
    }

    /// Sets the newest state without a change for this view.
    pub(crate) fn set_latest(&mut self, state: Arc<Snapshot<S>>) {
        self.latest_version = state.version().parse().ok();
        self.latest = state;
    }

    /// Begins to push a batch in parts, for [`Policy::Block`]. Returns the number of changes that
    /// were taken. Pass the rest to [`View::push_part`], then call [`View::end_parts`].
    ///
    /// All changes are taken while the initial state is being delivered.
    pub fn begin_parts(
        &mut self,
        now: Instant,
        changes: &[Change<S>],
        why: Option<Reason>,
        state: Arc<Snapshot<S>>,
    ) -> usize {
        if self.closed {
            return changes.len();
        }
        if self.replay.is_some() || !matches!(self.policy, Policy::Block { .. }) {
            self.push_whole(now, changes, why, state);
            return changes.len();
        }
        self.feeding = Some(self.latest.clone());
        self.set_latest(state);
        self.push_part(now, changes, why)
    }

    /// Pushes more of a batch. Returns the number of changes that were taken.
    pub fn push_part(&mut self, now: Instant, changes: &[Change<S>], why: Option<Reason>) -> usize {
        let Some(before) = self.feeding.clone().filter(|_| !self.closed) else { return changes.len() };
        let since = WaitingSince::new(now, &before);
        for (taken, change) in changes.iter().enumerate() {
            if !self.has_room() {
                return taken;
            }
            self.push_one(since, change, why, &before, self.block_timed_out);
        }
        changes.len()
    }

    /// Ends a batch that was pushed in parts.
    pub fn end_parts(&mut self) {
        self.feeding = None;
    }

    /// [`Policy::Block`]: records that the timeout was reached. The informer does not wait for the
    /// handler until half of its queue is processed.
    pub fn stop_blocking(&mut self) {
        self.block_timed_out = true;
        self.counts.block_timeouts += 1;
    }

    /// Records that the informer waited for this handler or others during this time.
    pub(crate) fn record_wait(&mut self, from: Instant, to: Instant) {
        if !self.is_idle() {
            let from = self.last_take.map_or(from, |last_take| last_take.max(from));
            self.stalled += to.saturating_duration_since(from);
        }
    }

    /// Records that the informer stopped: [`Event::Stopped`] follows the current entries. The resync pauses.
    pub fn stop(&mut self, why: StopReason) {
        self.stop = Some(why);
        self.stopped = true;
    }

    /// Records that the informer was started again. A new resync period begins.
    pub fn restart(&mut self) {
        self.stop = None;
        if std::mem::take(&mut self.stopped)
            && let Some(resync) = &mut self.resync
        {
            resync.pass = None;
            resync.next = None;
        }
    }

    /// Closes the view, which ignores later states. Waiting events are dropped unless `drain`. So are the snapshots:
    /// the handle of an ended handler may exist for long, and must not hold an old state of the whole cache.
    pub fn close(&mut self, drain: bool) {
        self.closed = true;
        if !drain {
            self.latest = Arc::default();
            self.feeding = None;
            self.entries.clear();
            self.index.clear();
            self.quarantined.clear();
            self.replay = None;
            self.reset_due = false;
            self.stop = None;
            self.synced = Synced::Delivered;
        }
        self.resync = None;
    }

    /// The next event for the handler. The call also confirms that the previous event is processed.
    /// `None` if no event is ready.
    pub fn take(&mut self, now: Instant) -> Option<Event<S>> {
        self.in_hand = None;
        let event = self.next_event(now)?;
        self.last_take = Some(now);
        self.stalled = Duration::ZERO;
        self.counts.delivered += 1;
        if let Policy::Block { changes_max, .. } = self.policy
            && self.entries.len() <= changes_max.max(1) / 2
        {
            self.block_timed_out = false;
        }
        Some(event)
    }

    // ===== questions =====

    /// The time at which [`View::take`] may return an event without a further push.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.may_resync() {
            return None;
        }
        let resync = self.resync.as_ref()?;
        match &resync.pass {
            Some(pass) => Some(pass.due_at(resync.period)),
            None => resync.next,
        }
    }

    /// True once the handler has processed the initial state, which is when it takes the event
    /// after [`Event::Synced`].
    pub fn has_synced(&self) -> bool {
        matches!(self.synced, Synced::Delivered)
    }

    /// True if the view is closed and all events were delivered.
    pub fn is_over(&self) -> bool {
        self.closed && self.is_empty()
    }

    /// True if no event waits or is being processed.
    pub fn is_idle(&self) -> bool {
        self.in_hand.is_none() && self.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty()
            && self.quarantined.is_empty()
            && self.replay.is_none()
            && !self.reset_due
            && self.stop.is_none()
            && !matches!(self.synced, Synced::Marked(_))
    }

    /// True if another change can be pushed without a wait ([`Policy::Block`]).
    pub fn has_room(&self) -> bool {
        match self.policy {
            Policy::Block { changes_max, .. } => {
                self.block_timed_out || self.closed || self.replay.is_some() || self.entries.len() < changes_max.max(1)
            }
            Policy::Coalesce | Policy::DropAndResync { .. } => true,
        }
    }

    /// The policy.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The time at which the handler last took an event.
    pub(crate) fn last_take(&self) -> Option<Instant> {
        self.last_take
    }

    /// The time for which the informer has waited for handlers since this handler, with events
    /// available, last took one.
    pub fn stalled(&self) -> Duration {
        self.stalled
    }

    /// The counters so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The lag of the handler.
    pub fn lag(&self, now: Instant) -> Lag {
        let oldest = self.entries.values().next().map(|entry| entry.since);
        let replay = self.replay.as_ref().map(|replay| replay.since);
        let since = [oldest.map(|since| since.at), self.in_hand.map(|since| since.at), replay];
        let since = since.into_iter().flatten().min();
        let versions = match (&self.replay, self.latest_version) {
            (Some(_), _) => None,
            (None, _) if oldest.is_none() && self.in_hand.is_none() => Some(0),
            (None, Some(latest)) => [oldest, self.in_hand]
                .into_iter()
                .flatten()
                .map(|since| since.version)
                .try_fold(latest, |least, version| Some(least.min(version?)))
                .map(|processed| latest - processed),
            (None, None) => None,
        };
        Lag {
            waiting: self.entries.len(),
            replaying: self.replay.is_some(),
            age: since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since)),
            versions,
        }
    }

    // ===== inside =====

    fn push_whole(&mut self, now: Instant, changes: &[Change<S>], why: Option<Reason>, state: Arc<Snapshot<S>>) {
        if self.closed {
            return;
        }
        let before = self.latest.clone();
        self.set_latest(state);
        let since = WaitingSince::new(now, &before);
        for change in changes {
            self.push_one(since, change, why, &before, true);
        }
    }

    fn push_one(
        &mut self,
        since: WaitingSince,
        change: &Change<S>,
        why: Option<Reason>,
        before: &Snapshot<S>,
        coalesce: bool,
    ) {
        let key = change.key();
        self.quarantined.remove(key);
        // The replay will deliver the new state of a key that it has not reached.
        if self
            .replay
            .as_ref()
            .is_some_and(|replay| replay.last_delivered.as_ref().is_none_or(|last_delivered| key > last_delivered))
        {
            return;
        }
        let reason = why.unwrap_or_else(|| change.origin().into());
        let waiting = self.index.get(key).copied();
        if reason == Reason::Resync && waiting.is_some() {
            return;
        }
        if coalesce && let Some(place) = waiting {
            self.counts.coalesced += 1;
            let keep = self.entries.get_mut(&place).is_some_and(|entry| entry.merge(change, reason));
            if !keep {
                self.entries.remove(&place);
                self.index.remove(key);
            }
            return;
        }
        let place = self.next_entry;
        self.next_entry += 1;
        self.index.insert(key.clone(), place);
        // A deletion carries the final state, which is newer than the seen one.
        let seen = match waiting {
            Some(place) => self.entries.get(&place).and_then(|entry| entry.now.as_ref().map(|(now, _)| now)),
            None => before.get(key.as_str()),
        };
        let entry = Entry::new(since, change, seen, reason);
        self.entries.insert(place, entry);
        if let Policy::DropAndResync { objects_max } = self.policy
            && self.entries.len() > objects_max.max(1)
        {
            self.reset(since.at);
        }
    }

    fn reset(&mut self, now: Instant) {
        self.entries.clear();
        self.index.clear();
        self.replay = Some(Replay { last_delivered: None, reason: Reason::Refill, since: now });
        self.reset_due = true;
        self.counts.resets += 1;
        if !matches!(self.synced, Synced::Loading) {
            self.synced = Synced::Marked(self.next_entry);
        }
        if let Some(resync) = &mut self.resync {
            resync.pass = None;
            resync.next = None;
        }
    }

    fn next_event(&mut self, now: Instant) -> Option<Event<S>> {
        if std::mem::take(&mut self.reset_due) {
            return Some(Event::Reset);
        }
        if let Some((key, entry)) = self.quarantined.pop_first() {
            return Some(Event::Quarantined { key, entry });
        }
        // The replay and the entries are about different objects, so they alternate.
        if self.replay.is_some()
            && (self.entries.is_empty() || !self.replayed)
            && let Some(event) = self.next_replayed()
        {
            self.replayed = true;
            return Some(event);
        }
        self.replayed = false;
        if let Synced::Marked(place) = self.synced
            && self.replay.is_none()
            && self.entries.keys().next().is_none_or(|first| *first >= place)
        {
            self.synced = Synced::Delivered;
            return Some(Event::Synced);
        }
        if self.resync_is_next()
            && let Some(event) = self.next_resynced(now)
        {
            return Some(event);
        }
        if let Some(event) = self.next_entry() {
            if let Some(resync) = &mut self.resync {
                resync.others = resync.others.saturating_add(1);
            }
            return Some(event);
        }
        if let Some(why) = self.stop.take() {
            return Some(Event::Stopped(why));
        }
        self.next_resynced(now)
    }

    fn next_replayed(&mut self) -> Option<Event<S>> {
        let replay = self.replay.as_mut()?;
        match self.latest.after(replay.last_delivered.as_ref()).next() {
            Some(object) => {
                replay.last_delivered = Some(object.key().clone());
                let (object, reason) = (object.clone(), replay.reason);
                self.in_hand = Some(WaitingSince { at: replay.since, version: None });
                Some(Event::Added { object, reason })
            }
            None => {
                self.replay = None;
                None
            }
        }
    }

    fn next_entry(&mut self) -> Option<Event<S>> {
        let mut first = self.entries.first_entry()?;
        let place = *first.key();
        let entry = first.get_mut();
        self.in_hand = Some(entry.since);
        if let Some(deleted) = entry.deleted.take() {
            entry.seen = None;
            let over = entry.now.is_none();
            let event =
                Event::Deleted { last: deleted.last, last_is_final: deleted.last_is_final, reason: deleted.reason };
            if over {
                self.remove_first(place);
            }
            return Some(event);
        }
        let entry = self.remove_first(place)?;
        let (new, reason) = entry.now?;
        Some(match entry.seen {
            Some(old) => Event::Updated { old, new, reason },
            None => Event::Added { object: new, reason },
        })
    }

    fn remove_first(&mut self, place: u64) -> Option<Entry<S>> {
        let entry = self.entries.remove(&place)?;
        if self.index.get(&entry.key) == Some(&place) {
            self.index.remove(&entry.key);
        }
        Some(entry)
    }

    fn may_resync(&self) -> bool {
        self.has_synced() && self.replay.is_none() && self.feeding.is_none() && !self.closed && !self.stopped
    }

    /// Whether a due resync event is delivered now: after [`RESYNC_TURN`] other events, so that it does not starve.
    fn resync_is_next(&self) -> bool {
        self.may_resync() && self.resync.as_ref().is_some_and(|resync| resync.others >= RESYNC_TURN)
    }

    fn next_resynced(&mut self, now: Instant) -> Option<Event<S>> {
        if !self.may_resync() {
            return None;
        }
        let resync = self.resync.as_mut()?;
        resync.others = 0;
        loop {
            let Some(pass) = &mut resync.pass else {
                let next = *resync.next.get_or_insert(deadline(now, resync.period));
                if now < next {
                    return None;
                }
                resync.pass = Some(Pass { began: now, objects: self.latest.len(), done: 0, last_delivered: None });
                continue;
            };
            if now < pass.due_at(resync.period) {
                return None;
            }
            let Some(object) = self.latest.after(pass.last_delivered.as_ref()).next() else {
                // The next pass begins one period after this one, or now if this one took longer.
                resync.next = Some(deadline(pass.began, resync.period));
                resync.pass = None;
                continue;
            };
            pass.last_delivered = Some(object.key().clone());
            pass.done += 1;
            // The object has an entry, which delivers a newer state.
            if self.index.contains_key(object.key()) {
                continue;
            }
            self.in_hand = Some(WaitingSince { at: now, version: self.latest_version });
            return Some(Event::Updated { old: object.clone(), new: object.clone(), reason: Reason::Resync });
        }
    }
}

impl WaitingSince {
    fn new<S: Stored>(at: Instant, before: &Snapshot<S>) -> Self {
        WaitingSince { at, version: before.version().parse().ok() }
    }
}

impl Pass {
    /// The time of the next object: objects are spread evenly over the period, at multiples of
    /// [`RESYNC_TICK`].
    fn due_at(&self, period: Duration) -> Instant {
        let share = self.done as f64 / self.objects.max(1) as f64;
        let offset = period.mul_f64(share.min(1.0));
        let ticks = offset.as_millis() / RESYNC_TICK.as_millis();
        self.began + RESYNC_TICK * u32::try_from(ticks).unwrap_or(u32::MAX)
    }
}

impl<S: Stored> Entry<S> {
    fn new(since: WaitingSince, change: &Change<S>, seen: Option<&S>, reason: Reason) -> Self {
        let key = change.key().clone();
        match change {
            Change::Added { object, .. } => {
                Entry { key, seen: None, deleted: None, now: Some((object.clone(), reason)), since }
            }
            Change::Updated { old, new, .. } => {
                Entry { key, seen: Some(old.clone()), deleted: None, now: Some((new.clone(), reason)), since }
            }
            Change::Deleted { last, last_is_final, .. } => {
                let deleted = Deletion { last: last.clone(), last_is_final: *last_is_final, reason };
                Entry { key, seen: Some(seen.unwrap_or(last).clone()), deleted: Some(deleted), now: None, since }
            }
        }
    }

    /// Merges a further change of the same object. Returns false if nothing remains to deliver.
    fn merge(&mut self, change: &Change<S>, reason: Reason) -> bool {
        match change {
            Change::Added { object: new, .. } | Change::Updated { new, .. } => {
                let came_back =
                    self.deleted.is_some() && self.seen.as_ref().is_some_and(|seen| seen.uid() == new.uid());
                if came_back {
                    self.deleted = None;
                }
                // An object that was never delivered keeps its first reason: it is still part of
                // the initial state, in a newer version.
                let reason = match (&self.now, &self.seen, &self.deleted) {
                    (Some((_, first)), None, None) => *first,
                    _ => reason,
                };
                self.now = Some((new.clone(), reason));
                let same = |seen: &S| seen.uid() == new.uid() && seen.resource_version() == new.resource_version();
                !(self.deleted.is_none() && self.seen.as_ref().is_some_and(same))
            }
            Change::Deleted { last, last_is_final, .. } => {
                self.now = None;
                if self.deleted.is_none() && self.seen.is_some() {
                    self.deleted = Some(Deletion { last: last.clone(), last_is_final: *last_is_final, reason });
                }
                self.deleted.is_some() && !canary!("client-merges-deletions-away")
            }
        }
    }
}
