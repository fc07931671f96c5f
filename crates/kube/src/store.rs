//! Reads listwatch's cache with kube-rs' methods: [`KubeStore`].

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::{Lookup, ObjectRef};
use listwatch_client::{Object, ObjectKey, Snapshot, Store, WaitError};
use serde::de::DeserializeOwned;

/// The number of decoded values of deleted objects, beyond the number of existing objects, above
/// which a read drops the values of all deleted objects.
const DELETED_VALUES_MAX: usize = 16;

/// A reader with the methods of `kube::runtime::reflector::Store` over listwatch's cache. Objects
/// are stored as JSON and decoded when they are read. A decoded object is cached until the object
/// changes, so memory grows with the existing objects that were read. Values of deleted objects
/// are dropped by later reads, of any object. Cheap to clone.
///
/// These methods skip objects that cannot be decoded; [`KubeStore::undecodable`] lists them.
pub struct KubeStore<K> {
    store: Store,
    decoded: Arc<Mutex<HashMap<ObjectKey, Decoded<K>>>>,
}

/// A version of an object and its decoded value.
struct Decoded<K> {
    object: Object,
    value: Result<Arc<K>, String>,
}

impl<K> Clone for KubeStore<K> {
    fn clone(&self) -> Self {
        KubeStore { store: self.store.clone(), decoded: self.decoded.clone() }
    }
}

impl<K> fmt::Debug for KubeStore<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KubeStore({} objects)", self.store.snapshot().len())
    }
}

impl<K: Lookup + DeserializeOwned + Clone + 'static> KubeStore<K>
where
    K::DynamicType: Eq + std::hash::Hash + Clone,
{
    /// Creates a reader of this cache. The objects in the cache must be of the kind `K`.
    pub fn new(store: Store) -> Self {
        KubeStore { store, decoded: Arc::default() }
    }

    /// The underlying cache, for its version, namespaces and order.
    pub fn inner(&self) -> &Store {
        &self.store
    }

    /// The object of this reference, if it exists and can be decoded.
    pub fn get(&self, key: &ObjectRef<K>) -> Option<Arc<K>> {
        let key = ObjectKey::new(key.namespace.as_deref().unwrap_or_default(), &key.name);
        let snapshot = self.store.snapshot();
        let Some(object) = snapshot.get(key.as_str()) else {
            self.decoded().remove(&key);
            return None;
        };
        self.decode(&snapshot, object).ok()
    }

    /// All objects, in the order of the server's lists. The store of kube-rs has no order.
    pub fn state(&self) -> Vec<Arc<K>> {
        self.state_filter(|_| true)
    }

    /// The objects that satisfy a predicate.
    pub fn state_filter(&self, predicate: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        let snapshot = self.store.snapshot();
        snapshot
            .iter()
            .filter_map(|object| self.decode(&snapshot, object).ok())
            .filter(|value| predicate(value))
            .collect()
    }

    /// The first object that satisfies a predicate.
    pub fn find(&self, predicate: impl Fn(&K) -> bool) -> Option<Arc<K>> {
        let snapshot = self.store.snapshot();
        snapshot.iter().filter_map(|object| self.decode(&snapshot, object).ok()).find(|value| predicate(value))
    }

    /// The number of objects, decodable or not.
    pub fn len(&self) -> usize {
        self.store.snapshot().len()
    }

    /// True if there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The objects that cannot be decoded into `K`, with the errors.
    pub fn undecodable(&self) -> Vec<(ObjectKey, String)> {
        let snapshot = self.store.snapshot();
        snapshot
            .iter()
            .filter_map(|object| Some((object.key().clone(), self.decode(&snapshot, object).err()?)))
            .collect()
    }

    /// Waits until the initial state is loaded, without a time limit.
    ///
    /// # Errors
    /// [`WaitError::Ended`] if the writer of the cache was dropped.
    pub async fn wait_until_ready(&self) -> Result<(), WaitError> {
        self.store.wait_until_synced(Duration::MAX).await.map(drop)
    }

    fn decoded(&self) -> MutexGuard<'_, HashMap<ObjectKey, Decoded<K>>> {
        self.decoded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The decoded value of an object of this snapshot.
    fn decode(&self, snapshot: &Snapshot, object: &Object) -> Result<Arc<K>, String> {
        let mut decoded = self.decoded();
        // At least half of the examined values are dropped, so the cost per decoded value is constant.
        if decoded.len() > 2 * snapshot.len() + DELETED_VALUES_MAX {
            decoded.retain(|key, _| snapshot.get(key.as_str()).is_some());
        }
        if let Some(known) = decoded.get(object.key())
            && known.object.is_same(object)
        {
            return known.value.clone();
        }
        let value = serde_json::from_slice::<K>(object.json()).map(Arc::new).map_err(|error| error.to_string());
        decoded.insert(object.key().clone(), Decoded { object: object.clone(), value: value.clone() });
        value
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt as _;
    use listwatch_client::{Delta, Indexer};

    use super::*;
    use crate::testing::object;

    #[test]
    fn values_of_deleted_objects_are_dropped_by_later_reads() {
        type Read = fn(&KubeStore<ConfigMap>, &str) -> Option<Arc<ConfigMap>>;
        // A read of an object that exists, and of one that was deleted.
        fn check(what: &str, read: Read, read_deleted: Read, values_max: usize) {
            let mut indexer = Indexer::new();
            let store = KubeStore::<ConfigMap>::new(indexer.reader());
            for round in 0..1_000 {
                let name = format!("m{round}");
                let created = object(&name, "1");
                let key = created.key().clone();
                indexer.apply(Delta::Upsert(created), &mut Vec::new());
                indexer.publish();
                let found = read(&store, &name).map(|map| map.name_any());
                assert_eq!(found.as_deref(), Some(&*name), "{what}: an existing object is not read");
                indexer.apply(Delta::Delete { key, last: None }, &mut Vec::new());
                indexer.publish();
                assert_eq!(read_deleted(&store, &name), None, "{what}: a deleted object is read");
                let values = store.decoded().len();
                assert!(values <= values_max, "{what}: {values} values of deleted objects use memory after {round}");
            }
        }
        let get: Read = |store, name| store.get(&ObjectRef::new(name).within("default"));
        let find: Read = |store, name| store.find(|map| map.name_any() == name);
        let state: Read = |store, name| store.state().into_iter().find(|map| map.name_any() == name);
        let none: Read = |_, _| None;
        check("get of the deleted object", get, get, 0);
        let bound = 2 + DELETED_VALUES_MAX + 1;
        check("get", get, none, bound);
        check("find", find, find, bound);
        check("state", state, state, bound);
    }
}
