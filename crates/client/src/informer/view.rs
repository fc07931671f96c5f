//! The events that one handler has not received yet: [`View`], a state machine without I/O.
//!
//! ```text
//!   informer ── push ──▶ ┌ entries, oldest first ───────────────┐
//!                        │ web: saw @3, now @9   db: gone @7    │ ─┐
//!                        └──────────────────────────────────────┘  │ take, in turns
//!                        ┌ replay of a snapshot, key by key ────┐  ├──────▶ the handler
//!                        │ told up to "shop/web"                │ ─┤
//!                        └──────────────────────────────────────┘  │
//!                        ┌ resync, when it is due ──────────────┐ ─┘
//!                        └──────────────────────────────────────┘
//! ```
//!
//! A view has at most one entry per object, however often the object changes, so its memory is
//! bounded by the number of objects. Several changes of one object coalesce into the events that lead
//! from the state that the handler saw last to the current one:
//!
//! | saw it | then | told |
//! |---|---|---|
//! | no | added, updated… | added, in the latest state |
//! | no | added, …, deleted | nothing |
//! | yes | updated, updated… | updated, from the state it saw to the latest |
//! | yes | …, deleted | deleted |
//! | yes | deleted, added with the same uid (it left a selector and came back) | updated, or nothing if it is in the same version |
//! | yes | deleted, added with another uid | deleted, and added |
//! | yes | deleted, added, deleted | deleted, once |
//!
//! An entry keeps its position while it changes: objects are delivered in the order of their first
//! change, so a constantly changing object does not starve the others.
//!
//! **The initial state** is not queued. The view walks through the newest snapshot in key order. A
//! change behind the walk becomes an entry; a change ahead of it is left to the walk. A handler that
//! joins late therefore costs one pointer, and receives each object exactly once.
//!
//! **Resync** also walks through the snapshot, spread over the period, and yields to entries
//! ([`RESYNC_TURN`]). It skips an object with an entry, because a newer state of it follows.
//!
//! The caller passes the time with each call, and [`View::poll_timeout`] returns when to call again.
//! Order of calls: [`View::begin`] with the first state, then [`View::push`] for each change after it,
//! and [`View::end_initial`] when the initial state is complete; [`View::take`] at any time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::event::{Event, Reason, Stop};
use crate::delta_fifo::Quarantined;
use crate::indexer::{Change, Snapshot};
use crate::object::ObjectKey;
use crate::stored::Stored;

/// Default number of changes by which a handler that requires each of them may lag before the
/// informer waits for it.
pub const BLOCK_CHANGES_MAX: usize = 1024;

/// Default total time for which the informer waits for stuck handlers under [`Policy::Block`].
/// Other handlers are delayed by at most this time, however many handlers are stuck.
pub const BLOCK_PATIENCE: Duration = Duration::from_secs(10);

/// Of how many objects a handler under [`Policy::DropAndResync`] may have changes to see, unless its
/// policy says otherwise.
pub const DROP_OBJECTS_MAX: usize = 10_000;

/// Maximum number of other events before a due resync is delivered.
pub const RESYNC_TURN: u32 = 8;

/// Resyncs that are due within this time are delivered together, so that a large cache does not
/// wake its handlers for every object.
pub const RESYNC_TICK: Duration = Duration::from_millis(100);

/// The shortest resync period; a shorter one is raised to it. client-go's `minimumResyncPeriod`.
pub const RESYNC_PERIOD_MIN: Duration = Duration::from_secs(1);

/// The behavior towards a handler that is slower than the changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The handler receives the latest state of each object; states in between are left out. It delays
    /// no other handler, and its queue is bounded by the number of objects.
    #[default]
    Coalesce,
    /// The handler receives each change. While `changes_max` changes wait for it, the informer
    /// reads nothing from the server, which delays all its handlers. After `patience` without
    /// progress of the handler, its changes are coalesced until half of the queue is processed, and
    /// the informer continues.
    ///
    /// The informer waits for all such handlers at the same time, and each wait counts against the
    /// patience of every handler that takes nothing during it. Stuck handlers therefore delay the
    /// others by one patience in total, the longest of theirs.
    ///
    /// The initial state is delivered as it is at the time, without its history.
    Block {
        /// The number of changes that may wait; at least one.
        changes_max: usize,
        /// The total time for which the informer waits for a stuck handler, since the handler last
        /// took an event.
        patience: Duration,
    },
    /// As `Coalesce`, but when changes of more than `objects_max` objects wait, all of them are
    /// dropped: the handler receives [`Event::Reset`], then the whole state at its own pace. Its queue
    /// is bounded by `objects_max`. For handlers that mirror the state.
    DropAndResync {
        /// Of how many objects changes may wait; at least one.
        objects_max: usize,
    },
}

impl Policy {
    /// [`Policy::Block`] with [`BLOCK_CHANGES_MAX`] and [`BLOCK_PATIENCE`].
    pub fn block() -> Self {
        Policy::Block { changes_max: BLOCK_CHANGES_MAX, patience: BLOCK_PATIENCE }
    }

    /// [`Policy::DropAndResync`] with [`DROP_OBJECTS_MAX`].
    pub fn drop_and_resync() -> Self {
        Policy::DropAndResync { objects_max: DROP_OBJECTS_MAX }
    }
}

/// The lag of a handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Waiting objects (for [`Policy::Block`] changes). Objects that a walk through the state has
    /// not reached are not counted.
    pub waiting: usize,
    /// A walk through the state, at the beginning or after a reset, is not over.
    pub replaying: bool,
    /// The age of the oldest waiting or processed event; zero if there is none.
    pub age: Duration,
    /// The number of versions between the handler's processed state and the newest state; zero when
    /// it is current. `None` during a replay, and if versions are not numbers.
    pub versions: Option<u64>,
}

/// The counters of a view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events that the handler took, markers included.
    pub told: u64,
    /// Changes that were collapsed into one that waited already.
    pub coalesced: u64,
    /// The number of times that all waiting events were dropped ([`Policy::DropAndResync`]).
    pub resets: u64,
    /// The number of times that the informer's patience with the handler ended ([`Policy::Block`]).
    pub impatience: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub struct View<S: Stored> {
    policy: Policy,
    /// The state that everything pushed so far leads to.
    latest: Arc<Snapshot<S>>,
    latest_version: Option<u64>,
    /// The events to deliver, oldest first.
    entries: BTreeMap<u64, Entry<S>>,
    /// The newest entry of each object, into which further changes are merged.
    index: HashMap<ObjectKey, u64>,
    next_entry: u64,
    /// Undecodable objects to report.
    notes: BTreeMap<ObjectKey, Arc<Quarantined>>,
    replay: Option<Replay>,
    /// The last event was one of the replay: an entry is next.
    replayed: bool,
    synced: Synced,
    resync: Option<Resync>,
    reset_due: bool,
    /// [`Policy::Block`]: the informer no longer waits for the handler, until it has caught up.
    impatient: bool,
    /// A batch is being pushed in parts, and `latest` is ahead of the entries: the state before it.
    feeding: Option<Arc<Snapshot<S>>>,
    stop: Option<Stop>,
    closed: bool,
    in_hand: Option<Since>,
    last_take: Option<Instant>,
    /// See [`View::stalled`].
    stalled: Duration,
    counts: Counts,
}

/// The changes from the state that the handler saw to the current one.
#[derive(Debug)]
struct Entry<S> {
    key: ObjectKey,
    /// The state that the handler will have seen at this event.
    saw: Option<S>,
    /// The deletion of the object that the handler saw.
    gone: Option<Gone<S>>,
    /// The current state.
    now: Option<(S, Reason)>,
    since: Since,
}

#[derive(Debug)]
struct Gone<S> {
    last: S,
    last_is_final: bool,
    reason: Reason,
}

/// The time since which an event waits, and the version up to which everything before was
/// delivered.
#[derive(Clone, Copy, Debug)]
struct Since {
    at: Instant,
    version: Option<u64>,
}

/// A walk through the newest snapshot.
#[derive(Debug)]
struct Replay {
    /// The last delivered key.
    told: Option<ObjectKey>,
    reason: Reason,
    since: Instant,
}

#[derive(Debug)]
enum Synced {
    /// The state is not whole.
    Loading,
    /// The initial state is complete and is delivered before this entry.
    Marked(u64),
    Told,
}

#[derive(Debug)]
struct Resync {
    period: Duration,
    /// The current pass: its start, its number of objects, and the completed ones.
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
    told: Option<ObjectKey>,
}

impl<S: Stored> View<S> {
    /// A view that knows of no state yet. A resync period is at least [`RESYNC_PERIOD_MIN`].
    pub fn new(policy: Policy, resync: Option<Duration>) -> Self {
        let resync =
            resync.map(|period| Resync { period: period.max(RESYNC_PERIOD_MIN), pass: None, next: None, others: 0 });
        View {
            policy,
            latest: Arc::default(),
            latest_version: None,
            entries: BTreeMap::new(),
            index: HashMap::new(),
            next_entry: 0,
            notes: BTreeMap::new(),
            replay: None,
            replayed: false,
            synced: Synced::Loading,
            resync,
            reset_due: false,
            impatient: false,
            feeding: None,
            stop: None,
            closed: false,
            in_hand: None,
            last_take: None,
            stalled: Duration::ZERO,
            counts: Counts::default(),
        }
    }

    // ===== what happens =====

    /// Sets the initial state, which is delivered object by object, before or between later pushes.
    /// To be called once, first.
    pub fn begin(&mut self, now: Instant, state: Arc<Snapshot<S>>) {
        for (key, entry) in state.quarantine() {
            self.notes.insert(key.clone(), Arc::new(entry.clone()));
        }
        self.set_latest(state);
        self.replay = Some(Replay { told: None, reason: Reason::Initial, since: now });
    }

    /// Marks the initial state as complete: [`Event::Synced`] follows the current entries.
    pub fn end_initial(&mut self) {
        if matches!(self.synced, Synced::Loading) {
            self.synced = Synced::Marked(self.next_entry);
        }
    }

    /// Some changes, and the state that they lead to. `why` replaces the changes' own reason.
    pub fn push(&mut self, now: Instant, changes: &[Change<S>], why: Option<Reason>, state: Arc<Snapshot<S>>) {
        self.push_whole(now, changes, why, state);
    }

    /// Reports an object whose newest version could not be decoded. It is delivered once per object
    /// and version, or not at all if a decodable version or the deletion comes first.
    pub(crate) fn push_quarantined(&mut self, key: &ObjectKey, entry: &Arc<Quarantined>) {
        if !self.closed {
            self.notes.insert(key.clone(), entry.clone());
        }
    }

    /// Advances the state's version without a change for this view.
    pub(crate) fn set_latest(&mut self, state: Arc<Snapshot<S>>) {
        self.latest_version = state.version().parse().ok();
        self.latest = state;
    }

    /// Begins to push a batch in parts, for [`Policy::Block`]: how many of the changes were taken
    /// at once. The rest goes through [`View::push_part`], then [`View::end_parts`].
    ///
    /// All pushes are accepted while the initial state is being delivered.
    pub fn begin_parts(
        &mut self,
        now: Instant,
        changes: &[Change<S>],
        why: Option<Reason>,
        state: Arc<Snapshot<S>>,
    ) -> usize {
        if self.replay.is_some() || !matches!(self.policy, Policy::Block { .. }) {
            self.push_whole(now, changes, why, state);
            return changes.len();
        }
        self.feeding = Some(self.latest.clone());
        self.set_latest(state);
        self.push_part(now, changes, why)
    }

    /// Pushes more of a batch: how many of these changes were taken.
    pub fn push_part(&mut self, now: Instant, changes: &[Change<S>], why: Option<Reason>) -> usize {
        let Some(before) = self.feeding.clone() else { return changes.len() };
        let since = Since::new(now, &before);
        for (taken, change) in changes.iter().enumerate() {
            if !self.has_room() {
                return taken;
            }
            self.push_one(since, change, why, &before, self.impatient);
        }
        changes.len()
    }

    /// The batch was pushed.
    pub fn end_parts(&mut self) {
        self.feeding = None;
    }

    /// [`Policy::Block`]: the informer does not wait for the handler until it has processed half of
    /// its queue.
    pub fn lose_patience(&mut self) {
        self.impatient = true;
        self.counts.impatience += 1;
    }

    /// The informer waited for handlers, this one or others, from then to then.
    pub(crate) fn note_wait(&mut self, from: Instant, to: Instant) {
        if !self.is_idle() {
            let from = self.last_take.map_or(from, |last_take| last_take.max(from));
            self.stalled += to.saturating_duration_since(from);
        }
    }

    /// Records that the informer stopped: [`Event::Stopped`] follows the current entries.
    pub fn stop(&mut self, why: Stop) {
        self.stop = Some(why);
    }

    /// The informer was started again.
    pub fn restart(&mut self) {
        self.stop = None;
    }

    /// Closes the view; waiting events are dropped unless `drain`.
    pub fn close(&mut self, drain: bool) {
        self.closed = true;
        if !drain {
            self.entries.clear();
            self.index.clear();
            self.notes.clear();
            self.replay = None;
            self.reset_due = false;
            self.stop = None;
            self.synced = Synced::Told;
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
        self.counts.told += 1;
        if let Policy::Block { changes_max, .. } = self.policy
            && self.entries.len() <= changes_max.max(1) / 2
        {
            self.impatient = false;
        }
        Some(event)
    }

    // ===== questions =====

    /// When [`View::take`] may have something although nothing happened.
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

    /// True once the handler took [`Event::Synced`], and has processed the initial state.
    pub fn has_synced(&self) -> bool {
        matches!(self.synced, Synced::Told)
    }

    /// True when the view is closed and everything was delivered.
    pub fn is_over(&self) -> bool {
        self.closed && self.is_empty()
    }

    /// True when no event waits or is being processed.
    pub fn is_idle(&self) -> bool {
        self.in_hand.is_none() && self.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty()
            && self.notes.is_empty()
            && self.replay.is_none()
            && !self.reset_due
            && self.stop.is_none()
            && !matches!(self.synced, Synced::Marked(_))
    }

    /// [`Policy::Block`]: may another change be pushed without anybody having to wait?
    pub fn has_room(&self) -> bool {
        match self.policy {
            Policy::Block { changes_max, .. } => {
                self.impatient || self.closed || self.replay.is_some() || self.entries.len() < changes_max.max(1)
            }
            Policy::Coalesce | Policy::DropAndResync { .. } => true,
        }
    }

    /// The policy.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// When the handler last took something.
    pub(crate) fn last_take(&self) -> Option<Instant> {
        self.last_take
    }

    /// The time for which the informer has waited for any handler since this one, with events
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
        let before = self.latest.clone();
        self.set_latest(state);
        let since = Since::new(now, &before);
        for change in changes {
            self.push_one(since, change, why, &before, true);
        }
    }

    fn push_one(
        &mut self,
        since: Since,
        change: &Change<S>,
        why: Option<Reason>,
        before: &Snapshot<S>,
        coalesce: bool,
    ) {
        if self.closed {
            return;
        }
        let key = change.key();
        self.notes.remove(key);
        // What the walk has not reached it will find as it is then.
        if self.replay.as_ref().is_some_and(|replay| replay.told.as_ref().is_none_or(|told| key > told)) {
            return;
        }
        let reason = why.unwrap_or_else(|| change.origin().into());
        let waiting = self.index.get(key).copied();
        if reason == Reason::Resync && waiting.is_some() {
            return;
        }
        if coalesce && let Some(place) = waiting {
            self.counts.coalesced += 1;
            let keep = self.entries.get_mut(&place).is_some_and(|entry| entry.absorb(change, reason));
            if !keep {
                self.entries.remove(&place);
                self.index.remove(key);
            }
            return;
        }
        let place = self.next_entry;
        self.next_entry += 1;
        self.index.insert(key.clone(), place);
        // A deletion carries the state at the deletion, which is newer than what was seen.
        let saw = match waiting {
            Some(place) => self.entries.get(&place).and_then(|entry| entry.now.as_ref().map(|(now, _)| now)),
            None => before.get(key.as_str()),
        };
        let entry = Entry::new(since, change, saw, reason);
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
        self.replay = Some(Replay { told: None, reason: Reason::Refill, since: now });
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
        if let Some((key, entry)) = self.notes.pop_first() {
            return Some(Event::Quarantined { key, entry });
        }
        // The walk and the entries are about different objects: they take turns.
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
            self.synced = Synced::Told;
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
        match self.latest.after(replay.told.as_ref()).next() {
            Some(object) => {
                replay.told = Some(object.key().clone());
                let (object, reason) = (object.clone(), replay.reason);
                self.in_hand = Some(Since { at: replay.since, version: None });
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
        if let Some(gone) = entry.gone.take() {
            entry.saw = None;
            let over = entry.now.is_none();
            let event = Event::Deleted { last: gone.last, last_is_final: gone.last_is_final, reason: gone.reason };
            if over {
                self.remove_first(place);
            }
            return Some(event);
        }
        let entry = self.remove_first(place)?;
        let (new, reason) = entry.now?;
        Some(match entry.saw {
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
        self.has_synced() && self.replay.is_none() && self.feeding.is_none() && !self.closed
    }

    /// With entries waiting a resync has a turn now and then; it must not starve either.
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
                let next = *resync.next.get_or_insert(now + resync.period);
                if now < next {
                    return None;
                }
                resync.pass = Some(Pass { began: now, objects: self.latest.len(), done: 0, told: None });
                continue;
            };
            if now < pass.due_at(resync.period) {
                return None;
            }
            let Some(object) = self.latest.after(pass.told.as_ref()).next() else {
                // The next pass begins a period after this one, or now if this one took longer.
                resync.next = Some(pass.began + resync.period);
                resync.pass = None;
                continue;
            };
            pass.told = Some(object.key().clone());
            pass.done += 1;
            // Something newer is about to be told.
            if self.index.contains_key(object.key()) {
                continue;
            }
            self.in_hand = Some(Since { at: now, version: self.latest_version });
            return Some(Event::Updated { old: object.clone(), new: object.clone(), reason: Reason::Resync });
        }
    }
}

impl Since {
    fn new<S: Stored>(at: Instant, before: &Snapshot<S>) -> Self {
        Since { at, version: before.version().parse().ok() }
    }
}

impl Pass {
    /// When the next object is due: spread evenly over the period, at whole ticks.
    fn due_at(&self, period: Duration) -> Instant {
        let share = self.done as f64 / self.objects.max(1) as f64;
        let offset = period.mul_f64(share.min(1.0));
        let ticks = offset.as_millis() / RESYNC_TICK.as_millis();
        self.began + RESYNC_TICK * u32::try_from(ticks).unwrap_or(u32::MAX)
    }
}

impl<S: Stored> Entry<S> {
    fn new(since: Since, change: &Change<S>, saw: Option<&S>, reason: Reason) -> Self {
        let key = change.key().clone();
        match change {
            Change::Added { object, .. } => {
                Entry { key, saw: None, gone: None, now: Some((object.clone(), reason)), since }
            }
            Change::Updated { old, new, .. } => {
                Entry { key, saw: Some(old.clone()), gone: None, now: Some((new.clone(), reason)), since }
            }
            Change::Deleted { last, last_is_final, .. } => {
                let gone = Gone { last: last.clone(), last_is_final: *last_is_final, reason };
                Entry { key, saw: Some(saw.unwrap_or(last).clone()), gone: Some(gone), now: None, since }
            }
        }
    }

    /// Merges a further change of the same object; false when nothing remains to deliver.
    fn absorb(&mut self, change: &Change<S>, reason: Reason) -> bool {
        match change {
            Change::Added { object: new, .. } | Change::Updated { new, .. } => {
                let came_back = self.gone.is_some()
                    && self.now.is_none()
                    && self.saw.as_ref().is_some_and(|saw| saw.uid() == new.uid());
                if came_back {
                    self.gone = None;
                }
                // Of something that was never told the first reason counts: it is still part of
                // the initial state, in a newer version.
                let reason = match (&self.now, &self.saw, &self.gone) {
                    (Some((_, first)), None, None) => *first,
                    _ => reason,
                };
                self.now = Some((new.clone(), reason));
                let same = |saw: &S| saw.uid() == new.uid() && saw.resource_version() == new.resource_version();
                !(self.gone.is_none() && self.saw.as_ref().is_some_and(same))
            }
            Change::Deleted { last, last_is_final, .. } => {
                self.now = None;
                if self.gone.is_none() && self.saw.is_some() {
                    self.gone = Some(Gone { last: last.clone(), last_is_final: *last_is_final, reason });
                }
                self.gone.is_some()
            }
        }
    }
}
