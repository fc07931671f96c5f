//! What is: the state of a resource and the events that led to it ([`Cache`]).
//!
//! This is one of the three plain values that make the core (the others are
//! [`Hub`](crate::hub::Hub), who wants to know, and [`Mailbox`](crate::watcher::Mailbox), one
//! watcher). Inputs come as `handle_*`, with the time as an argument; what follows from them stands
//! in the history, from where the driver dispatches it.
//!
//! # When the store has to be listed again
//!
//! The store says [`Expired`](listwatch_storage::WatchItem::Expired) when it no longer holds our
//! place: what happened between the last event we saw and the new list is known only by its result.
//! No sequence of events with truthful revisions leads from one to the other: a delete's revision
//! is lost, and a client that was told half of a made-up sequence and resumes elsewhere would miss
//! the other half. So the cache starts over from the list, and every watch is told `410 Expired`:
//! its client lists again, which the new state answers.
//!
//! Only when the list shows that nothing at all was written since, the cache and its watches go on.
//!
//! # When a value is no object
//!
//! The object exists, and its content is unknown. A DELETED event would be wrong, and clients act on it: a
//! garbage collector that watches here would delete the object's dependents. Lists and initial states that
//! cover the key are refused until the value is mended or deleted.
//!
//! If the object could be read before, the history records the change with
//! [`SharedEvent::undecodable`]. A watch that showed the object ends there with `410 Expired`, now or when it
//! resumes from before that place. No other watch ends. An object that could never be read was shown
//! to no watch, so its creation and its rewrites end none.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use listwatch_meta::scan::Malformed;
use listwatch_meta::{Change, Event, Key, Object, ObjectShape, Revision};
use listwatch_storage::{KeyValue, StoreEvent, WatchItem};

use crate::delivery::SharedEvent;
use crate::encodings::Encodings;
use crate::history::History;
use crate::limits::{Limits, UNDECODABLE_LOGGED_MAX};
use crate::snapshot::Snapshot;
use crate::stats::Counters;

/// The state of one resource, and the window of its history.
pub(crate) struct Cache {
    shape: Arc<ObjectShape>,
    indexed: Vec<usize>,
    limits: Limits,
    snapshot: Snapshot,
    history: History,
    /// Was the store ever listed?
    filled: bool,
    /// Everything up to and including this revision is known.
    revision: Revision,
    /// The last event's revision and the keys it changed: a transaction may be taken up in its
    /// middle when a store watch is resumed.
    tail: (Revision, Vec<Key>),
    object_bytes: usize,
    undecodable: BTreeMap<Key, Revision>,
    /// At revisions before this one, some key held a value that was no object and is one now, or is gone.
    /// The history does not say at which of them.
    undecodable_before: Revision,
    counters: Arc<Counters>,
}

/// What the store handed out, read as far as it can be without the state.
pub(crate) enum Input {
    /// An object was written.
    Put(Object),
    /// Something was written that is no object.
    Undecodable(Key, Revision, NoObject),
    /// A key is gone.
    Delete(Key, Revision),
    /// Nothing more up to this revision.
    Progress(Revision),
}

impl Input {
    /// Reads what a watch handed out; `None` for the items that end it.
    pub(crate) fn read(item: WatchItem, shape: &ObjectShape) -> Option<Self> {
        match item {
            WatchItem::Event(StoreEvent::Put { current, .. }) => {
                let change = if current.created == current.modified { Change::Added } else { Change::Modified };
                Some(match decode(&current, change, shape) {
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
    /// In key order.
    pub(crate) objects: Vec<Object>,
    pub(crate) undecodable: Vec<(Key, Revision, NoObject)>,
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

/// Reads what the store holds.
pub(crate) fn decode(entry: &KeyValue, change: Change, shape: &ObjectShape) -> Result<Object, NoObject> {
    Object::from_stored(entry.key.clone(), entry.modified, change, &entry.value, shape).map_err(|malformed| {
        if entry.value.starts_with(KUBE_PROTOBUF) { NoObject::Protobuf } else { NoObject::Malformed(malformed) }
    })
}

/// What kube-apiserver puts before every object that it stores as protobuf.
const KUBE_PROTOBUF: &[u8] = b"k8s\0";

/// Why a stored value is no object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoObject {
    /// A built-in kind, written by a kube-apiserver.
    #[error(
        "it is protobuf, as kube-apiserver stores built-in kinds; this server stores and reads JSON, which \
         kube-apiserver writes with --storage-media-type=application/json"
    )]
    Protobuf,
    /// Nothing that was an object once.
    #[error("{0}")]
    Malformed(Malformed),
}

/// What a list meant for those who watch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Relist {
    /// The cache is filled, or nothing had happened; everyone goes on.
    Continued,
    /// The state was replaced; nobody can go on.
    StartedOver,
}

/// What a list put an end to.
pub(crate) type Replaced = (Snapshot, std::collections::VecDeque<Arc<SharedEvent>>);

/// A former state, to be rebuilt by whoever asked for it, outside of any lock.
pub(crate) struct Former {
    snapshot: Snapshot,
    /// What happened since, oldest first.
    events: Vec<Arc<SharedEvent>>,
}

impl Former {
    /// The state before the events.
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
    /// An empty cache; the shape's fields at the positions `indexed` have a list index.
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

    /// Takes one item of the store's watch, and adds the events to dispatch to `told`.
    pub(crate) fn handle_input(&mut self, now: Instant, input: Input, told: &mut Vec<Arc<SharedEvent>>) {
        match input {
            Input::Put(object) => {
                if self.admit(object.key(), object.revision()) {
                    told.push(self.put(now, object));
                }
            }
            Input::Undecodable(key, revision, why) => {
                if self.admit(&key, revision) {
                    told.extend(self.hide(now, &key, revision));
                    self.note_undecodable(key, revision, why);
                }
            }
            Input::Delete(key, revision) => {
                if self.admit(&key, revision) {
                    told.extend(self.remove(now, &key, revision));
                }
            }
            Input::Progress(revision) => self.revision = self.revision.max(revision),
        }
    }

    /// Works out what a list of the store means. Separate from [`Cache::handle_list`] because it
    /// takes time and needs no write access: nobody is kept waiting.
    ///
    /// The first list fills the cache; what a later one means is said at the top of this file.
    /// With `start_over` the present state is known to be wrong.
    pub(crate) fn plan_list(&self, listing: Listing, start_over: bool) -> Plan {
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
        Plan { state, undecodable, revision }
    }

    /// The store was listed, and nothing else happened since the plan was made. Returns the former
    /// state and history too, if they were replaced: to be dropped outside of any lock.
    pub(crate) fn handle_list(&mut self, plan: Plan) -> (Relist, Option<Replaced>) {
        let Plan { state, undecodable, revision } = plan;
        let started_over = self.filled && state.is_some();
        let mut replaced = None;
        if let Some((snapshot, bytes)) = state {
            self.object_bytes = bytes;
            replaced = Some((std::mem::replace(&mut self.snapshot, snapshot), self.history.clear(revision)));
        }
        // A list is complete, also where it shows what was known: the watch goes on behind it. From
        // before it, it may not be able to (the store may have compacted up to it).
        self.tail = (Revision::ZERO, Vec::new());
        self.filled = true;
        self.revision = revision;
        let known = std::mem::take(&mut self.undecodable);
        for (key, revision, why) in undecodable {
            if known.contains_key(&key) {
                self.undecodable.insert(key, revision);
            } else {
                self.note_undecodable(key, revision, why);
            }
        }
        self.undecodable_before = revision;
        (if started_over { Relist::StartedOver } else { Relist::Continued }, replaced)
    }

    /// Time went by. True when there is more to do than may be done at once: call again soon.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> bool {
        self.history.evict(now, &self.limits)
    }

    // -------------------------------------------------------------------------------- getters

    /// Everything up to and including this revision is known.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    /// From where a store watch that broke goes on: behind the last revision that is surely
    /// complete.
    pub(crate) fn resume_after(&self) -> Revision {
        if self.tail.0 == self.revision { self.revision.previous() } else { self.revision }
    }

    /// The current state; cheap to clone.
    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The window.
    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    /// The state as of a former revision, if the window reaches back that far with no more than
    /// the allowed number of events.
    pub(crate) fn former(&self, revision: Revision) -> Option<Former> {
        // The history cannot tell a state with unreadable objects from one without them; the store can.
        if revision > self.revision || revision < self.undecodable_before || !self.undecodable.is_empty() {
            return None;
        }
        let place = self.history.place_after(revision).ok()?;
        if self.history.end().saturating_sub(place) > self.limits.undo_events_max as u64 {
            return None;
        }
        let events = self.history.read(place, usize::MAX).ok()?;
        Some(Former { snapshot: self.snapshot.clone(), events })
    }

    /// Is what is stored at this key no object?
    pub(crate) fn is_undecodable(&self, key: &Key) -> bool {
        self.undecodable.contains_key(key)
    }

    /// Keys whose stored values are no objects.
    pub(crate) fn undecodable(&self) -> impl Iterator<Item = &Key> {
        self.undecodable.keys()
    }

    /// Bytes of the current state.
    pub(crate) fn object_bytes(&self) -> usize {
        self.object_bytes
    }

    // -------------------------------------------------------------------------------- helpers

    /// Takes note of the revision of an event; false when the event was here before.
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
        self.history.append(now, Event { change, object, previous }, &self.limits).clone()
    }

    fn remove(&mut self, now: Instant, key: &Key, revision: Revision) -> Option<Arc<SharedEvent>> {
        self.forget_undecodable(key, revision);
        let event = self.take_out(key, revision)?;
        Some(self.history.append(now, event, &self.limits).clone())
    }

    /// Takes an object out of the state whose value cannot be read any more; `None` when the state does
    /// not have it.
    fn hide(&mut self, now: Instant, key: &Key, revision: Revision) -> Option<Arc<SharedEvent>> {
        let event = self.take_out(key, revision)?;
        Some(self.history.append_undecodable(now, event, &self.limits).clone())
    }

    /// Takes a key out of the state and returns its deletion.
    fn take_out(&mut self, key: &Key, revision: Revision) -> Option<Event> {
        let previous = self.snapshot.remove(key.as_str(), &self.shape)?;
        self.object_bytes -= previous.heap_size();
        let object = previous.at_change(revision, Change::Deleted, &self.shape);
        Some(Event { change: Change::Deleted, object, previous: Some(previous) })
    }

    /// The value of a key can be read as of `revision`, or is gone.
    fn forget_undecodable(&mut self, key: &Key, revision: Revision) {
        if self.undecodable.remove(key).is_some() {
            self.undecodable_before = revision;
        }
    }

    /// Keeps a key whose value is no object, and logs it the first time. A server of another kind may
    /// rewrite such a value every second.
    fn note_undecodable(&mut self, key: Key, revision: Revision, why: NoObject) {
        // A store that another server has filled may hold a hundred thousand of them.
        let known = self.undecodable.len();
        let Entry::Vacant(entry) = self.undecodable.entry(key) else { return };
        let key = entry.key();
        match known {
            0..UNDECODABLE_LOGGED_MAX => {
                tracing::error!(%key, %revision, "the stored value is no object; lists that cover it fail, and watches that showed it end with 410 Expired: {why}");
            }
            UNDECODABLE_LOGGED_MAX => {
                tracing::error!(%key, %revision, "more such values of this resource are not logged: {why}");
            }
            _ => {}
        }
        entry.insert(revision);
    }

    /// Is the present state that of a list?
    fn is_showing(&self, objects: &[Object]) -> bool {
        let present = self.snapshot.iter().map(|object| (object.key(), object.revision()));
        present.eq(objects.iter().map(|object| (object.key(), object.revision())))
    }
}

/// What a list means, worked out.
pub(crate) struct Plan {
    /// The state to put in place of the present one, and its size; `None` when it is the same.
    state: Option<(Snapshot, usize)>,
    undecodable: Vec<(Key, Revision, NoObject)>,
    revision: Revision,
}

impl Plan {
    /// The revision of the state that the list leads to.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

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
    fn undecodable_value_is_logged_once_however_often_it_is_rewritten_or_listed() {
        let shape = Arc::new(ObjectShape::new(true, Vec::new()));
        let mut cache = Cache::new(shape.clone(), Vec::new(), Limits::default(), Arc::default());
        let key = Key::new("pods", Some("a"), "x").unwrap();
        let logged = Arc::new(AtomicUsize::new(0));
        tracing::subscriber::with_default(Errors(logged.clone()), || {
            let mut told = Vec::new();
            for revision in 2..5 {
                let input = Input::Undecodable(key.clone(), Revision::new(revision), NoObject::Protobuf);
                cache.handle_input(Instant::now(), input, &mut told);
            }
            let undecodable = vec![(key.clone(), Revision::new(4), NoObject::Protobuf)];
            let plan = cache.plan_list(Listing { undecodable, revision: Revision::new(6), ..Listing::default() }, true);
            drop(cache.handle_list(plan));
            assert!(told.is_empty(), "it was never shown");
        });
        assert_eq!(logged.load(Relaxed), 1);
        assert!(cache.is_undecodable(&key));
    }
}
