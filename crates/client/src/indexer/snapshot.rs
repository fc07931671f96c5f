//! Readers of a store: [`Store`], for any task at any time, and its [`Snapshot`]s.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use imbl::OrdMap;
use listwatch_meta::LabelSelector;
use listwatch_meta::selector::LabelOperator;
use tokio::sync::watch;

use super::index::{Index, IndexValue, Indexes};
use crate::delta_fifo::Quarantined;
use crate::object::{Object, ObjectKey, compare_versions};
use crate::stored::Stored;

/// One published state. Immutable; a clone costs a few pointers.
#[derive(Clone, Debug)]
pub struct Snapshot<S: Stored = Object> {
    pub(crate) objects: OrdMap<ObjectKey, S>,
    pub(crate) indexes: Indexes<S>,
    pub(crate) labels: Option<Index<S, Box<str>>>,
    pub(crate) quarantine: OrdMap<ObjectKey, Arc<Quarantined>>,
    pub(crate) version: String,
    pub(crate) synced: bool,
}

impl<S: Stored> Default for Snapshot<S> {
    fn default() -> Self {
        Snapshot {
            objects: OrdMap::new(),
            indexes: Indexes::default(),
            labels: None,
            quarantine: OrdMap::new(),
            version: String::new(),
            synced: false,
        }
    }
}

impl<S: Stored> Snapshot<S> {
    /// The object with this key (`namespace/name`, or `name`).
    pub fn get(&self, key: &str) -> Option<&S> {
        self.objects.get(key)
    }

    /// Every object, in key order.
    pub fn iter(&self) -> impl Iterator<Item = &S> {
        self.objects.values()
    }

    /// The objects of one namespace, in key order. The cost depends only on the result, because
    /// keys begin with their namespace.
    pub fn namespace<'s>(&'s self, namespace: &'s str) -> impl Iterator<Item = &'s S> {
        let first = ObjectKey::new(namespace, "");
        let inside = move |(key, _): &(&'s ObjectKey, &'s S)| key.namespace() == namespace;
        self.objects.range(first..).take_while(inside).map(|(_, object)| object)
    }

    /// The objects after a key, in key order, to read a large store in parts over several
    /// snapshots. `None` begins with the first object.
    pub fn after<'s>(&'s self, key: Option<&ObjectKey>) -> impl Iterator<Item = &'s S> + use<'s, S> {
        use std::ops::Bound::{Excluded, Unbounded};
        let start = key.cloned().map_or(Unbounded, Excluded);
        self.objects.range((start, Unbounded)).map(|(_, object)| object)
    }

    /// The objects with this value in an index, in key order.
    ///
    /// If the snapshot is older than the index, every object is examined.
    pub fn by_index<'s, V: IndexValue>(
        &'s self,
        index: &Index<S, V>,
        value: &V,
    ) -> Box<dyn Iterator<Item = &'s S> + 's> {
        if let Some(index) = self.indexes.get(index) {
            return Box::new(index.keys(value).filter_map(|key| self.objects.get(key)));
        }
        let (index, value) = (index.clone(), value.clone());
        Box::new(self.objects.values().filter(move |object| (index.function)(object).contains(&value)))
    }

    /// The keys of the objects with this value in an index, in order.
    pub fn keys_by_index<V: IndexValue>(&self, index: &Index<S, V>, value: &V) -> Vec<ObjectKey> {
        match self.indexes.get(index) {
            Some(index) => index.keys(value).cloned().collect(),
            None => self.by_index(index, value).map(|object| object.key().clone()).collect(),
        }
    }

    /// The values of an index that at least one object has, in order.
    pub fn index_values<V: IndexValue>(&self, index: &Index<S, V>) -> Vec<V> {
        if let Some(index) = self.indexes.get(index) {
            return index.values().cloned().collect();
        }
        let mut values: Vec<V> = self.objects.values().flat_map(|object| (index.function)(object)).collect();
        values.sort_unstable();
        values.dedup();
        values
    }

    /// The objects whose labels match, in key order.
    ///
    /// With a label index ([`Indexer::add_label_index`](super::Indexer::add_label_index)), a
    /// requirement that a label exists or has one of some values finds the candidates. Otherwise
    /// every object is examined.
    pub fn select(&self, selector: &LabelSelector) -> Vec<&S> {
        let matches = |object: &&S| selector.matches(|key| object.label(key));
        match self.candidates(selector) {
            Some(keys) => keys.iter().filter_map(|key| self.objects.get(key)).filter(matches).collect(),
            None => self.objects.values().filter(matches).collect(),
        }
    }

    /// The sorted keys that satisfy one requirement of the selector. `None` if the label index
    /// cannot determine them.
    fn candidates(&self, selector: &LabelSelector) -> Option<Vec<ObjectKey>> {
        let index = self.indexes.get(self.labels.as_ref()?)?;
        let requirements = selector.requirements();
        let in_values = requirements.iter().find_map(|requirement| match requirement.operator() {
            LabelOperator::In(values) => Some((requirement.key(), values)),
            _ => None,
        });
        let mut keys: Vec<ObjectKey> = if let Some((key, values)) = in_values {
            let labels = values.iter().map(|value| super::label_text(key, value));
            labels.flat_map(|label| index.keys(&label).cloned().collect::<Vec<_>>()).collect()
        } else {
            let there = |operator: &LabelOperator| {
                matches!(operator, LabelOperator::Exists | LabelOperator::GreaterThan(_) | LabelOperator::LessThan(_))
            };
            let requirement = requirements.iter().find(|requirement| there(requirement.operator()))?;
            let first = super::label_text(requirement.key(), "");
            let labels = index.from(&first).take_while(|(label, _)| label.starts_with(&*first));
            labels.map(|(_, key)| key.clone()).collect()
        };
        keys.sort_unstable();
        keys.dedup();
        Some(keys)
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// True when there are no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The resource version up to which this state is current; empty before the first state.
    /// Bookmarks advance it without a change of an object.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether both states contain the same objects in memory. Takes constant time for states that share their map.
    pub(crate) fn has_same_objects(&self, other: &Self) -> bool {
        let both = || self.objects.iter().zip(other.objects.iter());
        self.objects.ptr_eq(&other.objects)
            || (self.objects.len() == other.objects.len()
                && both().all(|((key, object), (other_key, other))| key == other_key && object.is_same(other)))
    }

    /// Whether this state includes everything up to `version`. `None` if the versions differ and
    /// one of them is not a number.
    pub fn has_reached(&self, version: &str) -> Option<bool> {
        if self.version == version {
            return Some(true);
        }
        if self.version.is_empty() {
            return Some(false);
        }
        compare_versions(&self.version, version).map(std::cmp::Ordering::is_ge)
    }

    /// Whether this state includes a write of the object with this key, at `version`. The object itself can show this
    /// before the whole state has reached the version: the version of a merged state is that of its slowest part.
    pub(crate) fn shows_write(&self, key: &str, version: &str) -> Option<bool> {
        let is_at_least =
            |stored: &S| compare_versions(&stored.resource_version(), version).is_some_and(|order| order.is_ge());
        if self.get(key).is_some_and(is_at_least) { Some(true) } else { self.has_reached(version) }
    }

    /// True once the initial state was loaded.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// The error of an object whose newest version could not be decoded. [`Snapshot::get`] returns
    /// its last decodable state, if any.
    pub fn quarantined(&self, key: &str) -> Option<&Quarantined> {
        self.quarantine.get(key).map(|entry| &**entry)
    }

    /// Every object whose newest version could not be decoded, in key order.
    pub fn quarantine(&self) -> impl Iterator<Item = (&ObjectKey, &Quarantined)> {
        self.quarantine.iter().map(|(key, entry)| (key, &**entry))
    }
}

/// A reader of the local copy. Cheap to clone. A reader never blocks the writer and never waits.
pub struct Store<S: Stored = Object> {
    pub(super) shared: Arc<Shared<S>>,
    /// Changes at each publication.
    pub(super) publications: watch::Receiver<()>,
}

#[derive(Debug)]
pub(super) struct Shared<S: Stored> {
    pub(super) published: ArcSwap<Snapshot<S>>,
}

/// The error of a wait for a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The time limit was reached. The store may lag, or the version may belong to another
    /// resource.
    #[error("version {wanted} was not reached in {waited:?}: the store is at {reached:?}")]
    TimedOut {
        /// The awaited version.
        wanted: String,
        /// The version that the store has reached.
        reached: String,
        /// The duration of the wait.
        waited: Duration,
    },
    /// One of the versions is not a number, so they cannot be compared.
    #[error("version {wanted:?} cannot be compared with the store's {reached:?}")]
    Incomparable {
        /// The awaited version.
        wanted: String,
        /// The version that the store has reached.
        reached: String,
    },
    /// The store's writer was dropped.
    #[error("the store is no longer kept: it ended at version {reached:?}")]
    Ended {
        /// The version that the store has reached.
        reached: String,
    },
}

impl<S: Stored> Store<S> {
    /// The current state. Later changes do not affect the returned snapshot.
    pub fn snapshot(&self) -> Arc<Snapshot<S>> {
        self.shared.published.load_full()
    }

    /// The object with this key in the current state.
    pub fn get(&self, key: &str) -> Option<S> {
        self.shared.published.load().get(key).cloned()
    }

    /// Waits until the store includes everything up to `version`, for example the version of a
    /// write's response, for at most `timeout`. Dropping the future ends the wait.
    ///
    /// The store of an informer over several namespaces or shards includes a version when all of them do.
    ///
    /// # Errors
    /// [`WaitError`], with the version that the store has reached.
    pub async fn wait_for_version(&self, version: &str, timeout: Duration) -> Result<Arc<Snapshot<S>>, WaitError> {
        self.wait_until_included(|snapshot| snapshot.has_reached(version), timeout, version).await
    }

    /// Waits until `includes` is true. `None` means that the version cannot be compared.
    async fn wait_until_included(
        &self,
        includes: impl Fn(&Snapshot<S>) -> Option<bool>,
        timeout: Duration,
        version: &str,
    ) -> Result<Arc<Snapshot<S>>, WaitError> {
        let is_there = |snapshot: &Snapshot<S>| {
            includes(snapshot).ok_or_else(|| WaitError::Incomparable {
                wanted: version.to_owned(),
                reached: snapshot.version.clone(),
            })
        };
        self.wait_until(is_there, timeout, version).await
    }

    /// Waits until the initial state is loaded, for at most `timeout`.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`] and [`WaitError::Ended`]. For the reason see
    /// [`ReflectorState`](crate::ReflectorState).
    pub async fn wait_until_synced(&self, timeout: Duration) -> Result<Arc<Snapshot<S>>, WaitError> {
        self.wait_until(|snapshot| Ok(snapshot.synced), timeout, "of the initial state").await
    }

    /// Waits for a publication later than `seen`; returns at once if there was one. Returns false
    /// if the store's writer was dropped.
    pub async fn changed(&self, seen: &Arc<Snapshot<S>>) -> bool {
        let mut publications = self.publications.clone();
        loop {
            publications.borrow_and_update();
            if !Arc::ptr_eq(seen, &*self.shared.published.load()) {
                return true;
            }
            if publications.changed().await.is_err() {
                return !Arc::ptr_eq(seen, &*self.shared.published.load());
            }
        }
    }

    async fn wait_until(
        &self,
        is_there: impl Fn(&Snapshot<S>) -> Result<bool, WaitError>,
        timeout: Duration,
        wanted: &str,
    ) -> Result<Arc<Snapshot<S>>, WaitError> {
        let wait = async {
            let mut publications = self.publications.clone();
            loop {
                // Marked as seen before the check, so that no publication in between is missed.
                publications.borrow_and_update();
                let snapshot = self.snapshot();
                if is_there(&snapshot)? {
                    return Ok(snapshot);
                }
                if publications.changed().await.is_err() {
                    let snapshot = self.snapshot();
                    let reached = snapshot.version.clone();
                    return if is_there(&snapshot)? { Ok(snapshot) } else { Err(WaitError::Ended { reached }) };
                }
            }
        };
        match tokio::time::timeout(timeout, wait).await {
            Ok(found) => found,
            Err(_) => {
                let reached = self.snapshot().version.clone();
                Err(WaitError::TimedOut { wanted: wanted.to_owned(), reached, waited: timeout })
            }
        }
    }
}

impl<S: Stored> Clone for Store<S> {
    fn clone(&self) -> Self {
        Store { shared: self.shared.clone(), publications: self.publications.clone() }
    }
}

impl<S: Stored> fmt::Debug for Store<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let snapshot = self.shared.published.load();
        write!(f, "Store({} objects at {:?})", snapshot.len(), snapshot.version())
    }
}
