//! The state of a resource and the events that led to it ([`Cache`]).
//!
//! The core consists of three plain values: this one, [`Hub`](crate::hub::Hub) (the watchers and
//! their timers) and [`Mailbox`](crate::watcher::Mailbox) (one watcher). Inputs are `handle_*`
//! methods with the time as an argument. The resulting events are appended to the history, from
//! which the driver dispatches them.
//!
//! # The store's history is lost
//!
//! The store reports [`Expired`](listwatch_storage::WatchItem::Expired) when it no longer holds the cache's revision.
//! The changes between the last event and the new list are then unknown. No sequence of events with true revisions
//! leads from one to the other, because the revision of a delete is lost. A client that received half of an invented
//! sequence and resumes at another server would miss the other half. So the cache starts over from the list and ends
//! every watch with `410 Expired`. The clients list again and receive the new state.
//!
//! If the list shows that nothing was written since, the cache and its watches continue.
//!
//! # A stored value is not an object
//!
//! The object exists, but its content is unknown. A DELETED event would be false, and clients act
//! on it: a garbage collector that watches here would delete the object's dependents. Lists and
//! initial states that cover the key fail until an operator repairs or deletes the value.
//!
//! If the object was readable before, the history records the change with
//! [`SharedEvent::undecodable`]. A watch that showed the object ends there with `410 Expired`, at
//! once or when it resumes from an earlier position. No other watch ends. An object that was never
//! readable was shown to no watch, so its creation and its rewrites end none.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use listwatch_meta::scan::Malformed;
use listwatch_meta::{Change, Event, Key, Object, ObjectShape, Revision, canary};
use listwatch_storage::{KeyValue, StoreEvent, WatchItem, unreadable_reason};

use crate::delivery::SharedEvent;
use crate::encodings::Encodings;
use crate::error::UndecodableValue;
use crate::filter::Filter;
use crate::history::History;
use crate::limits::{Limits, UNDECODABLE_KEYS_MAX, UNDECODABLE_LOGGED_MAX, UNDECODABLE_REASON_BYTES_MAX};
use crate::offered::OfferedObjects;
use crate::snapshot::Snapshot;
use crate::stats::Counters;

/// The state of one resource, and the window of its history.
pub(crate) struct Cache {
    shape: Arc<ObjectShape>,
    indexed: Vec<usize>,
    limits: Limits,
    snapshot: Snapshot,
    history: History,
    /// Whether the store has been listed.
    filled: bool,
    /// The revision up to which the cache is complete.
    revision: Revision,
    /// The last event's revision and its changed keys. A resumed store watch may repeat a part of
    /// that transaction.
    tail: (Revision, Vec<Key>),
    object_bytes: usize,
    /// The keys whose stored values are not objects, and why.
    undecodable: BTreeMap<Key, Arc<str>>,
    /// The revision at which a key last ceased to have an undecodable value. Before this revision, that key's value
    /// was not an object, and the history does not record since when.
    undecodable_before: Revision,
    counters: Arc<Counters>,
}

/// An item from the store. Decoding that needs the cached state is not done yet.
pub(crate) enum Input {
    /// An object was written.
    Put(Object),
    /// A value was written that is not an object.
    Undecodable(Key, Revision, DecodeError),
    /// A key was deleted.
    Delete(Key, Revision),
    /// No further changes exist up to this revision.
    Progress(Revision),
}

impl Input {
    /// Decodes an item of a watch, or takes the object that its writer has offered; `None` for the items that end the
    /// watch.
    pub(crate) fn read(item: WatchItem, shape: &ObjectShape, offered: &OfferedObjects) -> Option<Self> {
        match item {
            WatchItem::Event(StoreEvent::Put { current, .. }) => {
                let change = if current.created == current.modified { Change::Added } else { Change::Modified };
                let taken = offered.take(&current, change);
                Some(match taken.map_or_else(|| decode(&current, change, shape), Ok) {
                    Ok(object) => Input::Put(object),
                    Err(why) => Input::Undecodable(current.key, current.modified, why),
                })
            }
            WatchItem::Event(StoreEvent::Delete { key, revision, .. }) => Some(Input::Delete(key, revision)),
            WatchItem::Progress(revision) => Some(Input::Progress(revision)),
            WatchItem::Expired { .. } | WatchItem::Lost(_) => None,
        }
    }
}

/// A complete list of the store.
#[derive(Default)]
pub(crate) struct Listing {
    /// The objects in key order.
    pub(crate) objects: Vec<Object>,
    pub(crate) undecodable: Vec<(Key, Revision, DecodeError)>,
    pub(crate) revision: Revision,
}

impl Listing {
    /// Adds a page.
    pub(crate) fn extend(&mut self, page: Vec<KeyValue>, shape: &ObjectShape) {
        for entry in page {
            match decode(&entry, Change::Added, shape) {
                Ok(object) => self.objects.push(object),
                Err(why) => self.undecodable.push((entry.key, entry.modified, why)),
            }
        }
    }
}

/// Decodes a stored value.
pub(crate) fn decode(entry: &KeyValue, change: Change, shape: &ObjectShape) -> Result<Object, DecodeError> {
    Object::from_stored(entry.key.clone(), entry.modified, change, &entry.value, shape).map_err(|malformed| {
        match unreadable_reason(&entry.value) {
            Some(why) => DecodeError::Unreadable(shortened(why).into()),
            None if entry.value.starts_with(KUBE_PROTOBUF) => DecodeError::Protobuf,
            None => DecodeError::Malformed(malformed),
        }
    })
}

/// The beginning of a reason, which may contain a part of the stored value.
fn shortened(why: &str) -> &str {
    let end = (0..=UNDECODABLE_REASON_BYTES_MAX.min(why.len())).rev().find(|end| why.is_char_boundary(*end));
    &why[..end.unwrap_or(0)]
}

/// The prefix of every object that kube-apiserver stores as protobuf.
const KUBE_PROTOBUF: &[u8] = b"k8s\0";

/// The reason why a stored value is not an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    /// The store cannot convert the value, for the reason that it gives.
    #[error("{0}")]
    Unreadable(Box<str>),
    /// The value is protobuf, and the store does not convert it.
    #[error("it is protobuf, as kube-apiserver stores built-in kinds")]
    Protobuf,
    /// The value is not the JSON of an object.
    #[error("{0}")]
    Malformed(Malformed),
}

/// The consequence of a list for watches.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Relist {
    /// The cache was filled, or the list equals the state. All watches continue.
    Continued,
    /// The state was replaced; no watch can continue.
    StartedOver,
}

/// The former state and history, after a list replaced them.
pub(crate) type Replaced = (Snapshot, std::collections::VecDeque<Arc<SharedEvent>>);

/// The parts of a former state. The caller rebuilds the state outside of any lock.
pub(crate) struct PastState {
    snapshot: Snapshot,
    /// The events since that state, oldest first.
    events: Vec<Arc<SharedEvent>>,
}

impl PastState {
    /// Rebuilds the state before the events, by undoing the events from the newest to the oldest.
    pub(crate) fn rebuild(mut self, shape: &ObjectShape) -> Snapshot {
        for event in self.events.iter().rev() {
            match &event.event.previous {
                Some(previous) => {
                    self.snapshot.insert(previous.clone(), shape);
                }
                None => {
                    self.snapshot.remove(event.event.object.key().as_str(), shape);
                }
            }
        }
        self.snapshot
    }
}

impl Cache {
    /// Creates an empty cache; the fields at the positions `indexed` have a list index.
    pub(crate) fn new(shape: Arc<ObjectShape>, indexed: Vec<usize>, limits: Limits, counters: Arc<Counters>) -> Self {
        Cache {
            snapshot: Snapshot::new(&indexed),
            history: History::new(
                Revision::ZERO,
                Encodings::new(limits.encodings_bytes_max, counters.clone()),
                limits.history_budget.as_ref(),
            ),
            shape,
            indexed,
            limits,
            filled: false,
            revision: Revision::ZERO,
            tail: (Revision::ZERO, Vec::new()),
            object_bytes: 0,
            undecodable: BTreeMap::new(),
            undecodable_before: Revision::ZERO,
            counters,
        }
    }

    // --------------------------------------------------------------------------------- inputs

    /// Applies an item of the store's watch and appends the resulting events to `undispatched`.
    pub(crate) fn handle_input(&mut self, now: Instant, input: Input, undispatched: &mut Vec<Arc<SharedEvent>>) {
        match input {
            Input::Put(object) => {
                if self.admit(object.key(), object.revision()) {
                    undispatched.push(self.put(now, object));
                }
            }
            Input::Undecodable(key, revision, why) => {
                if self.admit(&key, revision) {
                    undispatched.extend(self.remove_undecodable(now, &key, revision));
                    self.note_undecodable(key, revision, why);
                }
            }
            Input::Delete(key, revision) => {
                if self.admit(&key, revision) {
                    undispatched.extend(self.remove(now, &key, revision));
                }
            }
            Input::Progress(revision) => self.revision = self.revision.max(revision),
        }
    }

    /// Prepares the effect of a list. The plan is separate from [`Cache::handle_list`], because it takes
    /// time and needs no write access.
    ///
    /// The first list fills the cache; the module documentation describes later ones. With `start_over`, the current
    /// state is wrong and is always replaced.
    pub(crate) fn plan_list(&self, listing: Listing, start_over: bool) -> ListPlan {
        let Listing { objects, undecodable, revision } = listing;
        let same = self.filled && !start_over && revision == self.revision && self.is_showing(&objects);
        let state = (!same).then(|| {
            let mut snapshot = Snapshot::new(&self.indexed);
            let mut bytes = 0;
            for object in objects {
                bytes += object.heap_size();
                snapshot.insert(object, &self.shape);
            }
            (snapshot, bytes)
        });
        ListPlan { state, undecodable, revision }
    }

    /// Applies a list, if the cache has not changed since the plan was made. Returns the former state and history if
    /// they were replaced, to be dropped outside of any lock.
    pub(crate) fn handle_list(&mut self, plan: ListPlan) -> (Relist, Option<Replaced>) {
        let ListPlan { state, undecodable, revision } = plan;
        let started_over = self.filled && state.is_some();
        let mut replaced = None;
        let is_silent = canary!("cacher-hides-the-gap-of-a-relist");
        if is_silent && let Some((snapshot, bytes)) = state {
            (self.object_bytes, self.snapshot) = (bytes, snapshot);
            (self.tail, self.revision) = ((Revision::ZERO, Vec::new()), revision);
            return (Relist::Continued, None);
        }
        if let Some((snapshot, bytes)) = state {
            self.object_bytes = bytes;
            replaced = Some((std::mem::replace(&mut self.snapshot, snapshot), self.history.clear(revision)));
        }
        // The store's watch must resume after the list, even if the list changed nothing. Resuming
        // before it may fail, because the store may have compacted up to it.
        self.tail = (Revision::ZERO, Vec::new());
        self.filled = true;
        self.revision = revision;
        let known = std::mem::take(&mut self.undecodable);
        for (key, revision, why) in undecodable {
            if known.contains_key(&key) {
                let why = self.shared_reason(&why);
                self.undecodable.insert(key, why);
            } else {
                self.note_undecodable(key, revision, why);
            }
        }
        self.undecodable_before = revision;
        (if started_over { Relist::StartedOver } else { Relist::Continued }, replaced)
    }

    /// Evicts old events. Returns true if more remain, so that the caller should call again soon.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> bool {
        self.history.evict(now, &self.limits)
    }

    // -------------------------------------------------------------------------------- getters

    /// The revision up to which the cache is complete.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    /// The revision after which a broken store watch resumes: the last one that is certainly
    /// complete.
    pub(crate) fn resume_after(&self) -> Revision {
        if self.tail.0 == self.revision { self.revision.previous() } else { self.revision }
    }

    /// The current state; cheap to clone.
    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The history window.
    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    /// The state at a former revision. `None` if the window begins later, if too many events must be undone, or if a
    /// value was not an object since then.
    pub(crate) fn past_state(&self, revision: Revision) -> Option<PastState> {
        // Only the store can distinguish a state with unreadable objects from one without them.
        if revision > self.revision || revision < self.undecodable_before || !self.undecodable.is_empty() {
            return None;
        }
        let off = canary!("cacher-rebuilds-another-revision");
        let position = self.history.position_after(if off { revision.next() } else { revision }).ok()?;
        if self.history.end().saturating_sub(position) > self.limits.undo_events_max as u64 {
            return None;
        }
        let events = self.history.read(position, usize::MAX).ok()?;
        Some(PastState { snapshot: self.snapshot.clone(), events })
    }

    /// Why the value at this key is not an object; `None` for all other keys.
    pub(crate) fn undecodable_reason(&self, key: &Key) -> Option<Arc<str>> {
        self.undecodable.get(key).cloned()
    }

    /// The keys whose stored values are not objects.
    pub(crate) fn undecodable(&self) -> impl Iterator<Item = &Key> {
        self.undecodable.keys()
    }

    /// The stored values in the scope of a filter that are not objects, at most [`UNDECODABLE_KEYS_MAX`].
    pub(crate) fn undecodable_in(&self, filter: &Filter) -> Vec<UndecodableValue> {
        let covered = self.undecodable.iter().filter(|(key, _)| filter.covers(key)).take(UNDECODABLE_KEYS_MAX);
        covered.map(|(key, reason)| UndecodableValue { key: key.clone(), reason: Arc::clone(reason) }).collect()
    }

    /// Bytes of the current state.
    pub(crate) fn object_bytes(&self) -> usize {
        self.object_bytes
    }

    /// The number of objects in the current state.
    pub(crate) fn object_count(&self) -> usize {
        self.snapshot.len()
    }

    // -------------------------------------------------------------------------------- helpers

    /// Records the revision of an event. Returns false for a duplicate event.
    fn admit(&mut self, key: &Key, revision: Revision) -> bool {
        self.counters.received.fetch_add(1, Relaxed);
        let fresh = if revision > self.revision {
            self.tail.0 = revision;
            self.tail.1.clear();
            true
        } else {
            revision == self.tail.0 && !self.tail.1.contains(key)
        };
        if fresh {
            self.tail.1.push(key.clone());
            self.revision = self.revision.max(revision);
        } else {
            self.counters.repeated.fetch_add(1, Relaxed);
        }
        fresh
    }

    fn put(&mut self, now: Instant, object: Object) -> Arc<SharedEvent> {
        self.forget_undecodable(object.key(), object.revision());
        self.object_bytes += object.heap_size();
        let previous = self.snapshot.insert(object.clone(), &self.shape);
        let change = if let Some(previous) = &previous {
            self.object_bytes -= previous.heap_size();
            Change::Modified
        } else {
            Change::Added
        };
        let previous = previous.filter(|_| !canary!("cacher-forgets-the-previous-state"));
        self.history.append(now, Event { change, object, previous }, &self.limits).clone()
    }

    fn remove(&mut self, now: Instant, key: &Key, revision: Revision) -> Option<Arc<SharedEvent>> {
        self.forget_undecodable(key, revision);
        let event = self.take_out(key, revision)?;
        Some(self.history.append(now, event, &self.limits).clone())
    }

    /// Removes an object whose value became undecodable from the state; `None` when the state does
    /// not have it.
    fn remove_undecodable(&mut self, now: Instant, key: &Key, revision: Revision) -> Option<Arc<SharedEvent>> {
        let event = self.take_out(key, revision)?;
        Some(self.history.append_undecodable(now, event, &self.limits).clone())
    }

    /// Removes a key from the state and returns its deletion.
    fn take_out(&mut self, key: &Key, revision: Revision) -> Option<Event> {
        let previous = self.snapshot.remove(key.as_str(), &self.shape)?;
        self.object_bytes -= previous.heap_size();
        let object = previous.at_change(revision, Change::Deleted, &self.shape);
        Some(Event { change: Change::Deleted, object, previous: Some(previous) })
    }

    /// Records that the value of a key is decodable as of `revision`, or deleted.
    fn forget_undecodable(&mut self, key: &Key, revision: Revision) {
        if self.undecodable.remove(key).is_some() {
            self.undecodable_before = revision;
        }
    }

    /// Records a key whose value is not an object, and logs it the first time. Another server may
    /// rewrite such a value every second.
    fn note_undecodable(&mut self, key: Key, revision: Revision, why: DecodeError) {
        // A store filled by another program may contain a hundred thousand of them.
        let known = self.undecodable.len();
        let reason = self.shared_reason(&why);
        let entry = match self.undecodable.entry(key) {
            Entry::Vacant(entry) => entry,
            Entry::Occupied(mut entry) => {
                entry.insert(reason);
                return;
            }
        };
        let key = entry.key();
        match known {
            0..UNDECODABLE_LOGGED_MAX => {
                tracing::error!(%key, %revision, "the stored value is not an object; lists that cover it fail, and watches that showed it end with 410 Expired: {why}");
            }
            UNDECODABLE_LOGGED_MAX => {
                tracing::error!(%key, %revision, "more such values of this resource are not logged: {why}");
            }
            _ => {}
        }
        entry.insert(reason);
    }

    /// Returns the text of a decode error. Values that are listed one after the other share an equal text.
    fn shared_reason(&self, why: &DecodeError) -> Arc<str> {
        let text = why.to_string();
        match self.undecodable.last_key_value() {
            Some((_, last)) if **last == *text => Arc::clone(last),
            _ => text.into(),
        }
    }

    /// Whether the state equals these objects.
    fn is_showing(&self, objects: &[Object]) -> bool {
        let present = self.snapshot.iter().map(|object| (object.key(), object.revision()));
        present.eq(objects.iter().map(|object| (object.key(), object.revision())))
    }
}

/// The prepared effect of a list.
pub(crate) struct ListPlan {
    /// The new state and its size; `None` when it equals the current one.
    state: Option<(Snapshot, usize)>,
    undecodable: Vec<(Key, Revision, DecodeError)>,
    revision: Revision,
}

impl ListPlan {
    /// The revision of the state after the list.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use listwatch_storage::UNREADABLE_PREFIX;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Level, Metadata, Subscriber};

    use super::*;

    /// Counts the errors that are logged.
    struct Errors(Arc<AtomicUsize>);

    impl Subscriber for Errors {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            self.0.fetch_add(usize::from(*event.metadata().level() == Level::ERROR), Relaxed);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn reason_of_an_undecodable_value_is_cut_at_a_character() {
        assert_eq!(shortened("no kind"), "no kind");
        let long = format!("a{}", "ü".repeat(1 << 20));
        assert_eq!(shortened(&long), format!("a{}", "ü".repeat(255)));
        let stored = KeyValue {
            key: Key::new("pods", Some("a"), "x").unwrap(),
            value: [UNREADABLE_PREFIX, long.as_bytes()].concat().into(),
            created: Revision::ZERO,
            modified: Revision::new(1),
            stale: false,
        };
        let why = decode(&stored, Change::Added, &shape()).unwrap_err();
        assert_eq!(why.to_string().len(), 511);
    }

    fn shape() -> Arc<ObjectShape> {
        Arc::new(ObjectShape::new(true, Vec::new()))
    }

    fn empty() -> Cache {
        Cache::new(shape(), Vec::new(), Limits::default(), Arc::default())
    }

    fn state(name: &str, revision: u64, json: &str) -> Object {
        let key = Key::new("pods", Some("a"), name).unwrap();
        Object::from_stored(key, Revision::new(revision), Change::Added, json.as_bytes(), &shape()).unwrap()
    }

    #[test]
    fn first_bytes_of_an_undecodable_value_determine_the_decode_error() {
        let why = |value: &'static [u8]| {
            let key = Key::new("pods", Some("a"), "x").unwrap();
            let (created, modified) = (Revision::new(2), Revision::new(2));
            let entry = KeyValue { key, value: value.into(), created, modified, stale: false };
            decode(&entry, Change::Added, &shape()).unwrap_err()
        };
        assert_eq!(why(b"k8s\0\n\x0c"), DecodeError::Protobuf);
        assert_eq!(why(b"\0unreadable: no such key"), DecodeError::Unreadable("no such key".into()));
        for value in [&b""[..], b"k8s", b"[]", b"no object"] {
            assert!(matches!(why(value), DecodeError::Malformed(_)), "{value:?}");
        }
    }

    #[test]
    fn watches_continue_after_a_relist_only_if_it_equals_the_trusted_state() {
        let json = r#"{"metadata":{}}"#;
        let listing = |names: [&str; 2], revision| {
            let objects = names.map(|name| state(name, 2, json)).to_vec();
            Listing { objects, undecodable: Vec::new(), revision: Revision::new(revision) }
        };
        for (names, revision, start_over, expected) in [
            (["x", "y"], 5, false, Relist::Continued),
            (["x", "y"], 5, true, Relist::StartedOver),
            (["x", "z"], 5, false, Relist::StartedOver),
            (["x", "y"], 6, false, Relist::StartedOver),
        ] {
            let mut cache = empty();
            let first = cache.plan_list(listing(["x", "y"], 5), false);
            assert_eq!(cache.handle_list(first).0, Relist::Continued, "the first list fills the cache");
            let plan = cache.plan_list(listing(names, revision), start_over);
            assert_eq!(cache.handle_list(plan).0, expected, "{names:?} at {revision}, start over: {start_over}");
        }
    }

    #[test]
    fn object_bytes_are_those_of_the_current_state() {
        let mut cache = empty();
        let (short, long) = (r#"{"metadata":{}}"#, r#"{"metadata":{"labels":{"app":"web"}}}"#);
        let key = |name: &str| Key::new("pods", Some("a"), name).unwrap();
        let size = |json: &str| state("x", 2, json).heap_size();
        for (input, expected) in [
            (Input::Put(state("x", 2, short)), size(short)),
            (Input::Put(state("x", 3, long)), size(long)),
            (Input::Put(state("y", 4, short)), size(long) + size(short)),
            (Input::Delete(key("x"), Revision::new(5)), size(short)),
            (Input::Undecodable(key("y"), Revision::new(6), DecodeError::Protobuf), 0),
        ] {
            cache.handle_input(Instant::now(), input, &mut Vec::new());
            assert_eq!(cache.object_bytes(), expected, "at {:?}", cache.revision());
        }
    }

    #[test]
    fn only_the_first_ten_undecodable_values_are_logged_by_key() {
        let mut cache = empty();
        let logged = Arc::new(AtomicUsize::new(0));
        tracing::subscriber::with_default(Errors(logged.clone()), || {
            for n in 0..30 {
                let key = Key::new("pods", Some("a"), &format!("x{n}")).unwrap();
                cache.note_undecodable(key, Revision::new(2), DecodeError::Protobuf);
            }
        });
        assert_eq!(logged.load(Relaxed), UNDECODABLE_LOGGED_MAX + 1);
        assert_eq!(cache.undecodable().count(), 30, "all of them are known");
    }

    #[test]
    fn undecodable_value_is_logged_once_despite_rewrites_and_lists() {
        let mut cache = empty();
        let key = Key::new("pods", Some("a"), "x").unwrap();
        let logged = Arc::new(AtomicUsize::new(0));
        tracing::subscriber::with_default(Errors(logged.clone()), || {
            let mut undispatched = Vec::new();
            for revision in 2..5 {
                let input = Input::Undecodable(key.clone(), Revision::new(revision), DecodeError::Protobuf);
                cache.handle_input(Instant::now(), input, &mut undispatched);
            }
            let undecodable = vec![(key.clone(), Revision::new(4), DecodeError::Protobuf)];
            let plan = cache.plan_list(Listing { undecodable, revision: Revision::new(6), ..Listing::default() }, true);
            drop(cache.handle_list(plan));
            assert!(undispatched.is_empty(), "it was never shown");
        });
        assert_eq!(logged.load(Relaxed), 1);
        assert_eq!(cache.undecodable_reason(&key).as_deref(), Some(DecodeError::Protobuf.to_string().as_str()));
    }
}
