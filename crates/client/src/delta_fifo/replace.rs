//! Collects a complete state beside the current one and compares the two: the relist half of
//! [`DeltaFifo`].
//!
//! Unchanged objects are found by uid and version, marked, and dropped on arrival. Collecting a
//! known state therefore costs one pointer per object. Changed objects are inserted into a copy
//! that shares all other objects.

use std::collections::HashSet;
use std::sync::Arc;

use imbl::OrdMap;
use listwatch_meta::Change as EventChange;
use listwatch_meta::canary;
use listwatch_wire::Metadata;

use super::{DELTA_BYTES, Delta, DeltaFifo, Layer, PushOutcome, Quarantined, Replacement, quarantined, write_key};
use crate::decode::Decode;
use crate::indexer::Snapshot;
use crate::object::{ObjectKey, RawObject, compare_versions};
use crate::stored::Stored;

pub(super) struct Collecting<S: Stored> {
    /// The state at the end of the queue.
    before: OrdMap<ObjectKey, S>,
    /// The collected state: `before` with the changes so far.
    after: OrdMap<ObjectKey, S>,
    /// The objects of `before` whose names have arrived, by the address of their key. `before`
    /// is never changed, so an address belongs to one key.
    seen: HashSet<usize>,
    /// The keys that may differ. Empty if `before` is empty: then all differ.
    touched: Vec<ObjectKey>,
    quarantine: OrdMap<ObjectKey, Arc<Quarantined>>,
    quarantine_bytes: usize,
}

/// The address of a key in memory.
fn address(key: &ObjectKey) -> usize {
    std::ptr::from_ref(key).addr()
}

impl<S: Stored> Collecting<S> {
    fn mark(&mut self, key: &str) {
        if let Some(before) = self.before.get(key) {
            self.seen.insert(address(before.key()));
        }
    }

    fn unmark(&mut self, key: &str) {
        if let Some(before) = self.before.get(key) {
            self.seen.remove(&address(before.key()));
        }
    }
}

impl<D: Decode> DeltaFifo<D> {
    /// Begins to collect a complete state and drops an earlier collection. The current state is not
    /// affected. Nothing may be pushed before [`DeltaFifo::commit_replace`] or
    /// [`DeltaFifo::discard_replace`].
    pub fn begin_replace(&mut self, known: &Snapshot<D::Stored>) {
        let before = self.state(known);
        self.collecting = Some(Collecting {
            after: before.clone(),
            before,
            seen: HashSet::new(),
            touched: Vec::new(),
            quarantine: OrdMap::new(),
            quarantine_bytes: 0,
        });
    }

    /// Drops the collected state.
    pub fn discard_replace(&mut self) {
        self.collecting = None;
    }

    /// Collects one object of the complete state; a deletion removes it again. Versions are not
    /// compared with the current state, because a server may have lost its history.
    pub fn collect(&mut self, change: EventChange, raw: &RawObject) -> PushOutcome {
        let Some(mut collecting) = self.collecting.take() else { return PushOutcome::NotCollecting };
        let metadata = raw.metadata();
        let mut text = std::mem::take(&mut self.text);
        write_key(&mut text, &metadata);
        let pushed = self.collect_into(&mut collecting, change, raw, &metadata, &text);
        self.text = text;
        self.collecting = Some(collecting);
        pushed
    }

    /// Collects one object. Unchanged objects are found by the text of their key, without an
    /// allocation.
    fn collect_into(
        &self,
        collecting: &mut Collecting<D::Stored>,
        change: EventChange,
        raw: &RawObject,
        metadata: &Metadata<'_>,
        text: &str,
    ) -> PushOutcome {
        let before = collecting.before.get(text);
        let now = collecting.after.get(text);
        let collected = match (before, now) {
            (Some(before), Some(now)) => !before.is_same(now),
            (None, Some(_)) => true,
            (_, None) => false,
        };
        // Within one collected state a later version of an object may not be older.
        let is_older =
            |than: &str| compare_versions(&metadata.resource_version, than).is_some_and(|order| order.is_lt());
        if collected && now.is_some_and(|now| is_older(&now.resource_version())) {
            return PushOutcome::Stale;
        }
        if change == EventChange::Deleted {
            collecting.unmark(text);
            let known = collecting.after.remove(text).is_some();
            let was_quarantined = collecting.quarantine.remove(text).is_some();
            return if known || was_quarantined { PushOutcome::Queued } else { PushOutcome::Unchanged };
        }
        let is_version_of = |uid: &str, version: &str| {
            uid == metadata.uid && version == metadata.resource_version && !version.is_empty()
        };
        let tried = |entry: &&Arc<Quarantined>| is_version_of(&entry.uid, &entry.version);
        if collecting.quarantine.get(text).is_some_and(|entry| tried(&entry)) {
            return PushOutcome::Unchanged;
        }
        if let Some(entry) = self.quarantine.get(text).filter(tried) {
            collecting.mark(text);
            collecting.quarantine_bytes += entry.raw.as_ref().map_or(0, bytes::Bytes::len);
            let key = ObjectKey::new(&metadata.namespace, &metadata.name);
            collecting.quarantine.insert(key, entry.clone());
            return PushOutcome::Unchanged;
        }
        if let Some(now) = now
            && is_version_of(&now.uid(), &now.resource_version())
        {
            collecting.mark(text);
            return PushOutcome::Unchanged;
        }
        let is_same_uid = now.is_some_and(|now| now.uid() == metadata.uid);
        let key = before.map(|before| before.key().clone());
        let key = key.unwrap_or_else(|| ObjectKey::new(&metadata.namespace, &metadata.name));
        match self.decode(raw, key.clone()) {
            Ok(object) => {
                collecting.mark(text);
                collecting.quarantine.remove(text);
                if !collecting.before.is_empty() {
                    collecting.touched.push(key.clone());
                }
                collecting.after.insert(key, object);
                PushOutcome::Queued
            }
            Err(error) => {
                // The last decodable state stays, unless it has another uid.
                if is_same_uid {
                    collecting.mark(text);
                } else {
                    collecting.unmark(text);
                    collecting.after.remove(text);
                }
                let entry = Arc::new(quarantined(raw, error, collecting.quarantine_bytes));
                collecting.quarantine_bytes += entry.raw.as_ref().map_or(0, bytes::Bytes::len);
                collecting.quarantine.insert(key, entry.clone());
                PushOutcome::Quarantined(entry)
            }
        }
    }

    /// Queues the collected state as its difference from the state at the end of the queue. Returns
    /// false if no state was collected.
    pub fn commit_replace(&mut self, version: &str) -> bool {
        let Some(collecting) = self.collecting.take() else { return false };
        let Collecting { before, mut after, seen, mut touched, quarantine, quarantine_bytes } = collecting;
        let vanished: Vec<ObjectKey> = before
            .iter()
            .filter(|(_, object)| !seen.contains(&address(object.key())) && !canary!("client-keeps-vanished-objects"))
            .map(|(key, _)| key.clone())
            .collect();
        for key in &vanished {
            // A name that was removed and added again during the collection stays.
            if after.get(key).is_some_and(|now| before.get(key).is_some_and(|before| before.is_same(now))) {
                after.remove(key);
            }
        }
        let upserted = (!before.is_empty()).then(|| {
            touched.sort_unstable();
            touched.dedup();
            touched.retain(|key| {
                let (before, after) = (before.get(key), after.get(key));
                after.is_some_and(|after| before.is_none_or(|before| !before.is_same(after)))
            });
            touched
        });
        self.quarantine = quarantine.clone();
        self.quarantine_bytes = quarantine_bytes;
        let layer = Layer { below: Some(after.clone()), ..Layer::default() };
        let replacement = Replacement { before, after, quarantine, vanished, upserted, version: version.to_owned() };
        let (gone, changed) = replacement.differences();
        self.enqueue(Delta::Replace(replacement), DELTA_BYTES * (gone + changed + 1));
        self.layers.push_back(layer);
        true
    }

    /// The state at the end of the queue.
    fn state(&self, known: &Snapshot<D::Stored>) -> OrdMap<ObjectKey, D::Stored> {
        let Some(layer) = self.layers.back() else { return known.objects.clone() };
        let mut state = layer.below.as_ref().unwrap_or(&known.objects).clone();
        for (key, tail) in &layer.keys {
            match &tail.latest {
                Some(latest) => drop(state.insert(key.clone(), latest.clone())),
                None => drop(state.remove(key)),
            }
        }
        state
    }
}
