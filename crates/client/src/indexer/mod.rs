//! The local copy: one [`Indexer`] that writes, any number of [`Store`] readers, and the
//! [`Change`]s between two states.
//!
//! A reader takes a snapshot: an immutable ordered map with its indexes. A snapshot costs one pointer and never
//! changes. The writer builds the next state beside the snapshot and publishes whole batches. Readers therefore never
//! wait and never delay the writer. They never see half a batch or an index that disagrees with the objects.
//!
//! | task | method |
//! |---|---|
//! | find by key, or in key order | [`Snapshot::get`], [`Snapshot::iter`], [`Snapshot::namespace`] |
//! | find by an index | [`Indexer::add_index`], [`Snapshot::by_index`] |
//! | find by label selector | [`Snapshot::select`] |
//! | read your own write: wait for its version | [`Store::wait_for_version`] |
//! | read your own write: overlay it until the store catches up | [`OwnWrites`] |
//!
//! # Example
//! ```
//! use bytes::Bytes;
//! use listwatch_client::delta_fifo::{DeltaFifo, FifoConfig};
//! use listwatch_client::{Indexer, KeepJson, RawObject};
//! use listwatch_meta::Change;
//!
//! let mut fifo = DeltaFifo::new(KeepJson, FifoConfig::default());
//! let mut indexer = Indexer::new();
//! let by_length = indexer.add_index(|object: &listwatch_client::Object| [object.name().len()]);
//! let store = indexer.reader();
//!
//! for name in ["web", "db", "api"] {
//!     let json = format!(r#"{{"metadata":{{"name":"{name}","uid":"{name}","resourceVersion":"1"}}}}"#);
//!     fifo.push(indexer.current(), Change::Added, &RawObject::new(Bytes::from(json)).unwrap());
//! }
//! let mut changes = Vec::new();
//! for delta in fifo.pop_batch(indexer.current(), 100) {
//!     indexer.apply(delta, &mut changes);
//! }
//! indexer.publish();
//! assert_eq!(changes.len(), 3);
//! let snapshot = store.snapshot();
//! let three: Vec<_> = snapshot.by_index(&by_length, &3).map(|object| object.name()).collect();
//! assert_eq!(three, ["api", "web"]);
//! ```

mod change;
mod index;
mod snapshot;
#[cfg(test)]
mod tests;
mod writes;

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use listwatch_meta::canary;

use crate::delta_fifo::{Delta, Replacement};
use crate::object::{Object, ObjectKey, compare_versions};
use crate::stored::Stored;
pub use change::{Change, Origin};
use index::IndexBy;
pub use index::{Index, IndexValue};
use snapshot::Shared;
pub use snapshot::{Snapshot, Store, WaitError};
pub use writes::{OWN_WRITES_MAX, OwnWrites, RecordError};

/// The effect of a delta on the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyOutcome {
    /// The state changed.
    Changed,
    /// The store already has this version, or never had the deleted object.
    Unchanged,
    /// The store holds a newer version; the delta was skipped.
    Stale,
}

/// The only writer of the store. Readers have a [`Store`].
pub struct Indexer<S: Stored = Object> {
    current: Snapshot<S>,
    shared: Arc<Shared<S>>,
    /// Wakes waiting readers at each publication.
    publications: watch::Sender<()>,
    /// Whether `current` has changes that readers do not see yet.
    unpublished: bool,
}

impl<S: Stored> Indexer<S> {
    /// An empty store.
    pub fn new() -> Self {
        let shared = Arc::new(Shared { published: ArcSwap::from_pointee(Snapshot::default()) });
        Indexer { current: Snapshot::default(), shared, publications: watch::Sender::new(()), unpublished: false }
    }

    /// Creates a reader.
    pub fn reader(&self) -> Store<S> {
        Store { shared: self.shared.clone(), publications: self.publications.subscribe() }
    }

    /// The state that readers see.
    pub(crate) fn published(&self) -> Arc<Snapshot<S>> {
        self.shared.published.load_full()
    }

    /// Marks the state as synced, for a writer that merges several sources.
    pub(crate) fn set_synced(&mut self) {
        self.unpublished |= !self.current.synced;
        self.current.synced = true;
    }

    /// The state that the writer sees, published or not.
    pub fn current(&self) -> &Snapshot<S> {
        &self.current
    }

    /// Adds an index. `function` returns any number of values of an object, and must return equal
    /// values for equal objects. Existing objects are indexed and published at once. Each object
    /// costs one entry per value; equal values share one allocation.
    ///
    /// # Panics
    /// A panic of `function` propagates to the caller that applies an object.
    pub fn add_index<V, I>(&mut self, function: impl Fn(&S) -> I + Send + Sync + 'static) -> Index<S, V>
    where
        V: IndexValue,
        I: IntoIterator<Item = V>,
    {
        let function: Arc<index::IndexFunction<S, V>> =
            Arc::new(move |object: &S| function(object).into_iter().collect());
        let mut by = IndexBy::new(function.clone());
        index::AnyIndex::rebuild(&mut by, &self.current.objects);
        let index = Index { function, slot: self.current.indexes.len() };
        self.current.indexes.push(by);
        self.unpublished = true;
        self.publish();
        index
    }

    /// Adds the index that [`Snapshot::select`] uses to find candidates. The index has one entry for each label of each
    /// object. A second call has no effect.
    pub fn add_label_index(&mut self) {
        if self.current.labels.is_some() {
            return;
        }
        let labels = self.add_index(|object: &S| {
            let mut labels = Vec::new();
            object.for_each_label(|key, value| labels.push(label_text(key, value)));
            labels
        });
        self.current.labels = Some(labels);
        self.unpublished = true;
        self.publish();
    }

    /// Applies one delta and appends its changes to `changes`: none, one, or a delete and an add if
    /// the uid differs. A replacement appends all its differences: first the removed objects, then
    /// the others, each in key order.
    ///
    /// An object older than the stored one is skipped, so the store never goes back in time. A
    /// [`Replacement`] is accepted at any version. The replacement must be relative to the store's current
    /// state, like those of [`DeltaFifo`](crate::DeltaFifo).
    pub fn apply(&mut self, delta: Delta<S>, changes: &mut Vec<Change<S>>) -> ApplyOutcome {
        match delta {
            Delta::Upsert(object) => self.upsert(object, changes),
            Delta::Delete { key, last } => self.delete(&key, last, changes),
            Delta::Quarantine { key, entry } => {
                self.unpublished = true;
                self.current.quarantine.insert(key, entry);
                ApplyOutcome::Changed
            }
            Delta::Sync(object) => {
                // A later change of the object was already reported.
                if !self.current.objects.get(object.key()).is_some_and(|stored| stored.is_same(&object)) {
                    return ApplyOutcome::Stale;
                }
                changes.push(Change::Updated { old: object.clone(), new: object, origin: Origin::Resync });
                ApplyOutcome::Unchanged
            }
            Delta::Version(version) => {
                if self.current.version == version {
                    return ApplyOutcome::Unchanged;
                }
                self.current.version = version;
                self.unpublished = true;
                ApplyOutcome::Changed
            }
            Delta::Replace(replacement) => {
                self.replace(replacement, changes);
                ApplyOutcome::Changed
            }
        }
    }

    fn upsert(&mut self, object: S, changes: &mut Vec<Change<S>>) -> ApplyOutcome {
        // One search for the comparison and the replacement.
        let Some(held) = self.current.objects.get_mut(object.key()) else {
            self.unpublished = true;
            self.release(object.key());
            self.current.objects.insert(object.key().clone(), object.clone());
            self.current.indexes.update(None, Some(&object));
            difference(None, object, false, Origin::Live, changes);
            return ApplyOutcome::Changed;
        };
        let order = compare_versions(&object.resource_version(), &held.resource_version());
        if order.is_some_and(std::cmp::Ordering::is_lt) || canary!("client-drops-live-updates") {
            return ApplyOutcome::Stale;
        }
        let same_uid = held.uid() == object.uid();
        if same_uid && held.resource_version() == object.resource_version() {
            self.release(object.key());
            return ApplyOutcome::Unchanged;
        }
        let old = std::mem::replace(held, object.clone());
        self.unpublished = true;
        self.release(object.key());
        self.current.indexes.update(Some(&old), Some(&object));
        difference(Some(old), object, same_uid, Origin::Live, changes);
        ApplyOutcome::Changed
    }

    fn delete(&mut self, key: &ObjectKey, last: Option<S>, changes: &mut Vec<Change<S>>) -> ApplyOutcome {
        let released = self.release(key);
        let Some(stored) = self.current.objects.remove(key) else {
            return if released { ApplyOutcome::Changed } else { ApplyOutcome::Unchanged };
        };
        self.unpublished = true;
        self.current.indexes.update(Some(&stored), None);
        let last = last.filter(|last| last.uid() == stored.uid());
        let last_is_final = last.is_some();
        changes.push(Change::Deleted { last: last.unwrap_or(stored), last_is_final, origin: Origin::Live });
        ApplyOutcome::Changed
    }

    fn replace(&mut self, replacement: Replacement<S>, changes: &mut Vec<Change<S>>) {
        let origin = if self.current.synced { Origin::Relist } else { Origin::Initial };
        let Replacement { before, after, quarantine, vanished, upserted, version } = replacement;
        for last in vanished.iter().filter_map(|key| before.get(key)) {
            self.current.indexes.update(Some(last), None);
            changes.push(Change::Deleted { last: last.clone(), last_is_final: false, origin });
        }
        match upserted {
            Some(keys) => {
                changes.reserve(keys.len());
                for new in keys.iter().filter_map(|key| after.get(key)) {
                    let old = before.get(new.key());
                    self.current.indexes.update(old, Some(new));
                    let same_uid = old.is_some_and(|old| old.uid() == new.uid());
                    difference(old.cloned(), new.clone(), same_uid, origin, changes);
                }
            }
            None => {
                self.current.indexes.rebuild(&after);
                changes.extend(after.values().map(|object| Change::Added { object: object.clone(), origin }));
            }
        }
        self.current.objects = after;
        self.current.quarantine = quarantine;
        self.current.version = version;
        self.current.synced = true;
        self.unpublished = true;
    }

    fn release(&mut self, key: &ObjectKey) -> bool {
        let released = !self.current.quarantine.is_empty() && self.current.quarantine.remove(key).is_some();
        self.unpublished |= released;
        released
    }

    /// Releases the quarantined objects for which `keep` is false, for a writer that merges several sources.
    pub(crate) fn retain_quarantined(&mut self, keep: impl Fn(&ObjectKey) -> bool) {
        let released: Vec<_> = self.current.quarantine.keys().filter(|key| !keep(key)).cloned().collect();
        for key in &released {
            self.release(key);
        }
    }

    /// Publishes the state to the readers if it changed, and wakes waiting readers. Call it once
    /// per batch, because each publication costs one snapshot.
    pub fn publish(&mut self) {
        if std::mem::take(&mut self.unpublished) {
            self.shared.published.store(Arc::new(self.current.clone()));
            self.publications.send_replace(());
        }
    }
}

impl<S: Stored> Default for Indexer<S> {
    fn default() -> Self {
        Indexer::new()
    }
}

impl<S: Stored> fmt::Debug for Indexer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Indexer({} objects at {:?})", self.current.len(), self.current.version())
    }
}

/// Appends the changes from `old` to `new`. A changed uid gives a delete and an add, because it is
/// another object.
fn difference<S: Stored>(old: Option<S>, new: S, same_uid: bool, origin: Origin, changes: &mut Vec<Change<S>>) {
    match old {
        None => changes.push(Change::Added { object: new, origin }),
        Some(old) if same_uid => changes.push(Change::Updated { old, new, origin }),
        Some(old) => {
            changes.push(Change::Deleted { last: old, last_is_final: false, origin });
            changes.push(Change::Added { object: new, origin });
        }
    }
}

/// The text of a label in the label index. A label key cannot contain `=`, so the labels of one key
/// are adjacent.
pub(crate) fn label_text(key: &str, value: &str) -> Box<str> {
    format!("{key}={value}").into()
}
