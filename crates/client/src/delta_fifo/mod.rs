//! The queue between a reflector and its store: [`DeltaFifo`].
//!
//! ```text
//!             push, collect                       pop_batch
//!   reflector ────────────▶ decode, compare ─▶ ▣ ▣ ▣ ▣ ▣ ─▶ Indexer ─▶ changes
//!                               │    ▲            queue
//!                               ▼    └── the state at the end of the queue
//!                           quarantine       = the store, with what is queued on top
//! ```
//!
//! The queue is pure: it owns no lock, task or clock. The caller passes the store's state to each
//! call.
//!
//! - **Order.** Deltas leave the queue in the order of their arrival, across objects.
//! - **Once.** A version of an object is decoded (and transformed) exactly once. A version that the
//!   store or the queue already holds is recognized by uid and version before decoding. An
//!   unchanged object of a relist costs one look-up, keeps its allocation, and causes no change.
//! - **Exact differences after a gap.** A complete state ([`DeltaFifo::commit_replace`]) is
//!   compared with the state at the end of the queue, queued deltas included. A missing object is a
//!   delete; a name with another uid is a delete and an add.
//! - **No time travel.** An event older than the known state of its object is dropped.
//! - **Quarantine.** An object that cannot be decoded affects no other object. The key of the object
//!   is quarantined with the error and (up to [`QUARANTINE_BYTES_MAX`]) the bytes; the store keeps
//!   the last good state of the same uid, if there was one. A version that can be decoded, the deletion, or
//!   [`DeltaFifo::retry_quarantined`] releases the key.
//! - **Bounded.** [`DeltaFifo::has_room`] turns false at [`FifoConfig::bytes_max`]; the producer
//!   then stops reading from the network until the consumer has caught up. Nothing is dropped.
//!   With [`Compaction::LatestPerKey`] the queue holds at most one state per object, and one
//!   deletion before it.
//!
//! The order of calls: the producer calls [`DeltaFifo::push`], or [`DeltaFifo::begin_replace`],
//! [`DeltaFifo::collect`], [`DeltaFifo::commit_replace`]. The consumer calls
//! [`DeltaFifo::pop_batch`], applies the batch to the [`Indexer`](crate::Indexer), and repeats. The
//! snapshot that is passed to these calls must include every batch except the last one, and may
//! include that.

mod delta;
mod replace;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use imbl::OrdMap;
use listwatch_meta::Change as EventChange;
use listwatch_wire::Metadata;

use crate::decode::{Decode, DecodeError};
use crate::indexer::Snapshot;
use crate::object::{ObjectKey, RawObject, TypeName, compare_versions};
use crate::stored::Stored;
pub use delta::{Delta, Quarantined, Replacement};
use replace::Collecting;

/// Bytes of queued objects, plus [`DELTA_BYTES`] for each delta, above which
/// [`DeltaFifo::has_room`] returns false. A producer that stops then exceeds the bound by at most
/// one network chunk.
pub const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The accounted bytes of a delta besides its object: its slot, its key, and its entry in the table of queued keys.
pub const DELTA_BYTES: usize = 192;

/// Bytes of undecodable objects that are kept for inspection and another attempt. Above the limit
/// an object is quarantined with its error but without its bytes, and it is not decoded again.
pub const QUARANTINE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The number of empty slots above which the queue removes them, in addition to its number of
/// deltas.
const EMPTY_SLOTS_MAX: usize = 64;

/// The treatment of several queued states of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compaction {
    /// The consumer receives each state of the watch.
    #[default]
    KeepEvery,
    /// The consumer receives only the newest queued state, at the position of that state. An object that was created
    /// and deleted within the queue is omitted. Memory is bounded by the number of objects, at any rate of change.
    LatestPerKey,
}

/// The options of a queue.
#[derive(Clone, Copy, Debug)]
pub struct FifoConfig {
    /// The limit of queued bytes: see [`QUEUE_BYTES_MAX`].
    pub bytes_max: usize,
    /// The handling of several states of one object.
    pub compaction: Compaction,
    /// A batch contains each object at most once, so the store shows each reported state when it is
    /// reported. Otherwise the store may already show later deltas of the same batch.
    pub distinct_keys: bool,
}

impl Default for FifoConfig {
    fn default() -> Self {
        FifoConfig { bytes_max: QUEUE_BYTES_MAX, compaction: Compaction::default(), distinct_keys: false }
    }
}

/// The result of passing an object to a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushOutcome {
    /// The object is queued, or is part of the collected state.
    Queued,
    /// The version is already known, or the deleted object is unknown.
    Unchanged,
    /// A newer version of this object is known.
    Stale,
    /// The object could not be decoded, and its key is quarantined now.
    Quarantined(Arc<Quarantined>),
    /// No complete state is being collected.
    NotCollecting,
}

/// The queue of deltas between a reflector and its store; see the [module](self).
pub struct DeltaFifo<D: Decode> {
    decoder: D,
    config: FifoConfig,
    type_name: Option<TypeName>,
    queue: VecDeque<Slot<D::Stored>>,
    /// The number of the queue's first slot, counted since the queue was created.
    first: u64,
    bytes: usize,
    /// The number of queued deltas, without empty slots.
    len: usize,
    /// Queued and currently applied states by key: one layer for each complete state in the queue,
    /// and one below them. Only the last layer describes the end of the queue.
    layers: VecDeque<Layer<D::Stored>>,
    /// The keys of the batch that is being applied.
    taken: Vec<ObjectKey>,
    taken_replacement: bool,
    batch: u64,
    collecting: Option<Collecting<D::Stored>>,
    /// The quarantined objects at the end of the queue.
    quarantine: OrdMap<ObjectKey, Arc<Quarantined>>,
    quarantine_bytes: usize,
    /// The last key of a running resync; the resync continues after it.
    resync: Option<Option<ObjectKey>>,
    /// A buffer for the text of a key.
    text: String,
}

struct Slot<S: Stored> {
    /// `None` after a newer state replaced it.
    delta: Option<Delta<S>>,
    bytes: usize,
}

/// The changes on top of the store or of a complete state.
struct Layer<S: Stored> {
    /// The complete state below, until the store shows it.
    below: Option<OrdMap<ObjectKey, S>>,
    keys: HashMap<ObjectKey, Tail<S>>,
}

impl<S: Stored> Default for Layer<S> {
    fn default() -> Self {
        Layer { below: None, keys: HashMap::new() }
    }
}

/// The state of one object at the end of the queue.
struct Tail<S> {
    /// The object's state; `None` if it is deleted.
    latest: Option<S>,
    /// The version of the deletion, or the newest version that could not be decoded.
    floor: Option<Box<str>>,
    /// The slot of `latest`, and whether the consumer knew the object before that slot.
    upsert: Option<(u64, bool)>,
    /// The number of deltas of this key that are queued or being applied.
    deltas: usize,
    /// The last batch that took a delta of this key.
    batch: u64,
}

impl<D: Decode> DeltaFifo<D> {
    /// An empty queue.
    pub fn new(decoder: D, config: FifoConfig) -> Self {
        DeltaFifo {
            decoder,
            config,
            type_name: None,
            queue: VecDeque::new(),
            first: 0,
            bytes: 0,
            len: 0,
            layers: VecDeque::from([Layer::default()]),
            taken: Vec::new(),
            taken_replacement: false,
            batch: 0,
            collecting: None,
            quarantine: OrdMap::new(),
            quarantine_bytes: 0,
            resync: None,
            text: String::new(),
        }
    }

    /// Changes the options. Queued deltas are not affected.
    pub(crate) fn set_config(&mut self, config: FifoConfig) {
        self.config = config;
    }

    /// Sets the type of list items without a type.
    pub fn set_type_name(&mut self, type_name: &TypeName) {
        if self.type_name.as_ref() != Some(type_name) {
            self.type_name = Some(type_name.clone());
        }
    }

    /// The number of queued deltas.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if no delta is queued. A resync may still be in progress.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes of queued objects and deltas: see [`QUEUE_BYTES_MAX`].
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the producer may push. If false, the producer should wait until the consumer has caught up. Deltas that
    /// are pushed anyway are accepted.
    pub fn has_room(&self) -> bool {
        self.bytes < self.config.bytes_max
    }

    // ===== the producer: live events =====

    /// Pushes a watch event. `known` is the store's snapshot; the [module](self) docs state which
    /// batches it must include.
    pub fn push(&mut self, known: &Snapshot<D::Stored>, change: EventChange, raw: &RawObject) -> PushOutcome {
        self.push_with_metadata(known, change, raw, &raw.metadata())
    }

    /// As [`DeltaFifo::push`], for a caller that has read the metadata of `raw` already.
    pub(crate) fn push_with_metadata(
        &mut self,
        known: &Snapshot<D::Stored>,
        change: EventChange,
        raw: &RawObject,
        metadata: &Metadata<'_>,
    ) -> PushOutcome {
        let older_than =
            |than: &str| compare_versions(&metadata.resource_version, than).is_some_and(|order| order.is_lt());
        // A known version needs no allocation for its key.
        let mut text = std::mem::take(&mut self.text);
        write_key(&mut text, metadata);
        let (held, floor) = self.tail(known, &text);
        let is_stale = held.is_some_and(|held| older_than(&held.resource_version())) || floor.is_some_and(older_than);
        let held = held.cloned();
        self.text = text;
        if is_stale {
            return PushOutcome::Stale;
        }
        let key = match &held {
            Some(held) => held.key().clone(),
            None => ObjectKey::new(&metadata.namespace, &metadata.name),
        };
        // Most stores never have a quarantined object.
        let was_quarantined = if self.quarantine.is_empty() { None } else { self.quarantine.get(&key).cloned() };
        if was_quarantined.as_ref().is_some_and(|entry| older_than(&entry.version)) {
            return PushOutcome::Stale;
        }
        let same_uid = held.as_ref().is_some_and(|held| held.uid() == metadata.uid);
        if change == EventChange::Deleted {
            if held.is_none() && was_quarantined.is_none() {
                return PushOutcome::Unchanged;
            }
            // The deletion carries the final state, if that is decodable and has the known uid.
            let last = if same_uid { self.decode(raw, key.clone()).ok() } else { None };
            self.release(&key);
            self.push_delete(known, key, last, &metadata.resource_version);
            return PushOutcome::Queued;
        }
        let seen = match (&was_quarantined, &held) {
            // This version was already tried.
            (Some(entry), _) => *entry.uid == *metadata.uid && *entry.version == *metadata.resource_version,
            (None, Some(held)) => same_uid && held.resource_version() == metadata.resource_version,
            (None, None) => false,
        };
        if seen {
            return PushOutcome::Unchanged;
        }
        match self.decode(raw, key.clone()) {
            Ok(object) => {
                self.release(&key);
                self.push_upsert(held.as_ref(), was_quarantined.is_some(), object);
                PushOutcome::Queued
            }
            Err(error) => {
                // The stored object had another uid, so it is reported as deleted.
                let held = if held.is_some() && !same_uid {
                    self.push_delete(known, key.clone(), None, &metadata.resource_version);
                    None
                } else {
                    held
                };
                let entry = self.quarantine_object(raw, key.clone(), error);
                let delta = Delta::Quarantine { key: key.clone(), entry: entry.clone() };
                let (_, tail) = self.enqueue_keyed(key, delta, DELTA_BYTES, held);
                // The consumer receives the object here, independently of its earlier state.
                if let Some((_, known_before)) = &mut tail.upsert {
                    *known_before = true;
                }
                PushOutcome::Quarantined(entry)
            }
        }
    }

    /// Records that everything up to this version was pushed: at a bookmark, or at the end of a
    /// batch of events.
    pub fn push_version(&mut self, version: &str) {
        if let Some(Slot { delta: Some(Delta::Version(last)), .. }) = self.queue.back_mut() {
            version.clone_into(last);
            return;
        }
        self.enqueue(Delta::Version(version.to_owned()), DELTA_BYTES);
    }

    // ===== the producer: asking again =====

    /// Starts a resync, which reports every object once more in key order, after the queued deltas.
    /// Each object is reported with its state at that time, and only while no delta is queued. An
    /// object that changes before its turn is not reported again. A running resync starts again.
    pub fn resync(&mut self) {
        self.resync = Some(None);
    }

    /// True while a resync has objects to report.
    pub(crate) fn is_resyncing(&self) -> bool {
        self.resync.is_some()
    }

    /// Decodes quarantined objects again if their bytes were kept, for transforms that depend on
    /// other state. Returns the number of objects that could be decoded.
    pub(crate) fn retry_quarantined(&mut self, known: &Snapshot<D::Stored>) -> usize {
        let waiting: Vec<_> = self.quarantine.iter().map(|(key, entry)| (key.clone(), entry.clone())).collect();
        let mut released = 0;
        for (key, entry) in waiting {
            let Some(raw) = entry.raw.clone().and_then(|raw| RawObject::new(raw).ok()) else { continue };
            if let Ok(object) = self.decode(&raw, key.clone()) {
                let held = self.tail(known, key.as_str()).0.cloned();
                self.release(&key);
                self.push_upsert(held.as_ref(), true, object);
                released += 1;
            }
        }
        released
    }

    // ===== the consumer =====

    /// Returns the next deltas, at most `max`, in order; none if the queue is empty. A complete
    /// state is a separate batch. The call confirms that `known` includes the previous batch.
    pub fn pop_batch(&mut self, known: &Snapshot<D::Stored>, max: usize) -> Vec<Delta<D::Stored>> {
        self.finish_batch();
        self.batch += 1;
        let mut batch = Vec::new();
        while let Some(slot) = self.queue.front() {
            match &slot.delta {
                Some(Delta::Replace(_)) if !batch.is_empty() => break,
                Some(delta) if batch.len() >= max.max(1) || !self.may_join(delta) => break,
                _ => {}
            }
            let Some(slot) = self.queue.pop_front() else { break };
            self.first += 1;
            let Some(delta) = slot.delta else { continue };
            self.bytes -= slot.bytes;
            self.len -= 1;
            if let Some(key) = delta.key() {
                self.taken.push(key.clone());
                let batch = self.batch;
                if let Some(tail) = self.front_layer().keys.get_mut(key) {
                    tail.batch = batch;
                }
            }
            let alone = matches!(delta, Delta::Replace(_));
            batch.push(delta);
            if alone {
                self.taken_replacement = true;
                break;
            }
        }
        if batch.is_empty() {
            self.pop_resync(known, max, &mut batch);
        }
        batch
    }

    /// Confirms that the last batch was applied and that all later snapshots include it.
    pub fn finish_batch(&mut self) {
        let mut taken = std::mem::take(&mut self.taken);
        let keys = &mut self.front_layer().keys;
        for key in taken.drain(..) {
            if let Some(tail) = keys.get_mut(&key) {
                tail.deltas -= 1;
                if tail.deltas == 0 {
                    keys.remove(&key);
                }
            }
        }
        self.taken = taken;
        if std::mem::take(&mut self.taken_replacement) {
            self.layers.pop_front();
            self.front_layer().below = None;
        }
    }

    /// True if this delta may be in one batch with the taken ones.
    fn may_join(&self, delta: &Delta<D::Stored>) -> bool {
        let Some(key) = delta.key().filter(|_| self.config.distinct_keys) else { return true };
        let tail = self.layers.front().and_then(|layer| layer.keys.get(key));
        tail.is_none_or(|tail| tail.batch != self.batch)
    }

    fn pop_resync(&mut self, known: &Snapshot<D::Stored>, max: usize, batch: &mut Vec<Delta<D::Stored>>) {
        let Some(behind) = self.resync.take() else { return };
        batch.extend(known.after(behind.as_ref()).take(max.max(1)).cloned().map(Delta::Sync));
        if batch.len() == max.max(1) {
            self.resync = batch.last().map(|delta| delta.key().cloned());
        }
    }

    // ===== inside =====

    fn decode(&self, raw: &RawObject, key: ObjectKey) -> Result<D::Stored, DecodeError> {
        self.decoder.decode(raw, key, self.type_name.as_ref())
    }

    fn front_layer(&mut self) -> &mut Layer<D::Stored> {
        if self.layers.is_empty() {
            self.layers.push_back(Layer::default());
        }
        &mut self.layers[0]
    }

    fn back_layer(&mut self) -> &mut Layer<D::Stored> {
        if self.layers.is_empty() {
            self.layers.push_back(Layer::default());
        }
        let last = self.layers.len() - 1;
        &mut self.layers[last]
    }

    /// The state of an object at the end of the queue, and a version below which events of it are
    /// stale.
    fn tail<'a>(&'a self, known: &'a Snapshot<D::Stored>, key: &str) -> (Option<&'a D::Stored>, Option<&'a str>) {
        let Some(layer) = self.layers.back() else { return (known.objects.get(key), None) };
        if let Some(tail) = layer.keys.get(key) {
            return (tail.latest.as_ref(), tail.floor.as_deref());
        }
        let below = layer.below.as_ref().unwrap_or(&known.objects);
        (below.get(key), None)
    }

    fn enqueue(&mut self, delta: Delta<D::Stored>, bytes: usize) -> u64 {
        self.queue.push_back(Slot { delta: Some(delta), bytes });
        self.bytes += bytes;
        self.len += 1;
        self.first + self.queue.len() as u64 - 1
    }

    /// Queues a delta of one object. `held` is the object's known state.
    fn enqueue_keyed(
        &mut self,
        key: ObjectKey,
        delta: Delta<D::Stored>,
        bytes: usize,
        held: Option<D::Stored>,
    ) -> (u64, &mut Tail<D::Stored>) {
        let position = self.enqueue(delta, bytes);
        let new = || Tail { latest: held, floor: None, upsert: None, deltas: 0, batch: 0 };
        let tail = self.back_layer().keys.entry(key).or_insert_with(new);
        tail.deltas += 1;
        (position, tail)
    }

    /// Queues an upsert. `held` is the object's state at the end of the queue. `was_quarantined` is true if its key was
    /// quarantined there.
    fn push_upsert(&mut self, held: Option<&D::Stored>, was_quarantined: bool, object: D::Stored) {
        let key = object.key().clone();
        // If a newer state replaces a queued one, the consumer still has the state from before the queued one. Another
        // uid is another object: the previous object is reported as deleted.
        let same = held.is_some_and(|held| held.uid() == object.uid());
        let replaced = if same { self.remove_queued(&key) } else { None };
        let known_before = replaced.unwrap_or(held.is_some()) || was_quarantined;
        let bytes = object.size_bytes() + DELTA_BYTES;
        let (position, tail) = self.enqueue_keyed(key, Delta::Upsert(object.clone()), bytes, None);
        tail.upsert = Some((position, known_before));
        tail.latest = Some(object);
        tail.floor = None;
    }

    fn push_delete(&mut self, known: &Snapshot<D::Stored>, key: ObjectKey, last: Option<D::Stored>, version: &str) {
        if self.remove_queued(&key) == Some(false) {
            // The consumer never received the object, so it does not receive the deletion either.
            let layer = self.back_layer();
            let below = layer.below.as_ref().unwrap_or(&known.objects);
            let below_has_it = below.contains_key(&key);
            if let Some(tail) = layer.keys.get_mut(&key) {
                tail.latest = None;
                tail.floor = Some(version.into());
                if tail.deltas == 0 && !below_has_it {
                    layer.keys.remove(&key);
                }
            }
            return;
        }
        let bytes = last.as_ref().map_or(0, Stored::size_bytes) + DELTA_BYTES;
        let (_, tail) = self.enqueue_keyed(key.clone(), Delta::Delete { key, last }, bytes, None);
        tail.upsert = None;
        tail.latest = None;
        tail.floor = Some(version.into());
    }

    /// Removes the queued state of an object, if the policy keeps only the newest one and no batch
    /// has taken it. Returns whether the consumer knew the object before that slot.
    fn remove_queued(&mut self, key: &ObjectKey) -> Option<bool> {
        if self.config.compaction == Compaction::KeepEvery {
            return None;
        }
        let first = self.first;
        let tail = self.back_layer().keys.get_mut(key)?;
        let (position, known_before) = tail.upsert.filter(|(position, _)| *position >= first)?;
        tail.upsert = None;
        tail.deltas -= 1;
        let slot = &mut self.queue[(position - first) as usize];
        slot.delta = None;
        self.bytes -= std::mem::take(&mut slot.bytes);
        self.len -= 1;
        self.remove_empty_slots();
        Some(known_before)
    }

    /// Removes empty slots if there are more of them than deltas. A constantly changing object
    /// therefore does not lengthen the queue.
    fn remove_empty_slots(&mut self) {
        if self.queue.len() < 2 * self.len + EMPTY_SLOTS_MAX {
            return;
        }
        let slots = std::mem::take(&mut self.queue);
        for (offset, slot) in slots.into_iter().enumerate() {
            let Some(delta) = &slot.delta else { continue };
            let (before, now) = (self.first + offset as u64, self.first + self.queue.len() as u64);
            if let Some(key) = delta.key().cloned()
                && let Some((position, _)) = self.back_layer().keys.get_mut(&key).and_then(|tail| tail.upsert.as_mut())
                && *position == before
            {
                *position = now;
            }
            self.queue.push_back(slot);
        }
    }

    // ===== quarantine =====

    fn quarantine_object(&mut self, raw: &RawObject, key: ObjectKey, error: DecodeError) -> Arc<Quarantined> {
        self.release(&key);
        let entry = Arc::new(quarantined(raw, error, self.quarantine_bytes));
        self.quarantine_bytes += entry.raw.as_ref().map_or(0, bytes::Bytes::len);
        self.quarantine.insert(key, entry.clone());
        entry
    }

    fn release(&mut self, key: &ObjectKey) {
        // Most stores never have a quarantined object.
        if !self.quarantine.is_empty()
            && let Some(entry) = self.quarantine.remove(key)
        {
            self.quarantine_bytes -= entry.raw.as_ref().map_or(0, bytes::Bytes::len);
        }
    }
}

/// Writes the text of an object's key, like [`ObjectKey`].
fn write_key(text: &mut String, metadata: &Metadata<'_>) {
    text.clear();
    if !metadata.namespace.is_empty() {
        text.push_str(&metadata.namespace);
        text.push('/');
    }
    text.push_str(&metadata.name);
}

/// Creates a quarantine entry, with a copy of the object's bytes if the limit allows it.
fn quarantined(raw: &RawObject, error: DecodeError, kept_bytes: usize) -> Quarantined {
    let metadata = raw.metadata();
    let room = kept_bytes + raw.json().len() <= QUARANTINE_BYTES_MAX;
    Quarantined {
        uid: metadata.uid.into(),
        version: metadata.resource_version.into(),
        error,
        raw: room.then(|| bytes::Bytes::copy_from_slice(raw.json())),
    }
}
