//! Reads listwatch's cache with kube-rs' methods: [`KubeStore`].

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::{Lookup, ObjectRef};
use listwatch_client::{Object, ObjectKey, Store, WaitError};
use serde::de::DeserializeOwned;

/// A reader with the methods of `kube::runtime::reflector::Store` over listwatch's cache. Objects
/// are stored as JSON and decoded when they are read. A decoded object is cached until the object
/// changes, so memory grows with the objects that were read. Cheap to clone.
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
        self.decode(snapshot.get(key.as_str())?).ok()
    }

    /// All objects, in the order of the server's lists. The store of kube-rs has no order.
    pub fn state(&self) -> Vec<Arc<K>> {
        self.state_filter(|_| true)
    }

    /// The objects that satisfy a predicate.
    pub fn state_filter(&self, predicate: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        let snapshot = self.store.snapshot();
        self.drop_stale_values(snapshot.len());
        snapshot.iter().filter_map(|object| self.decode(object).ok()).filter(|value| predicate(value)).collect()
    }

    /// The first object that satisfies a predicate.
    pub fn find(&self, predicate: impl Fn(&K) -> bool) -> Option<Arc<K>> {
        let snapshot = self.store.snapshot();
        snapshot.iter().filter_map(|object| self.decode(object).ok()).find(|value| predicate(value))
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
        snapshot.iter().filter_map(|object| Some((object.key().clone(), self.decode(object).err()?))).collect()
    }

    /// Waits until the initial state is loaded, without a time limit.
    ///
    /// # Errors
    /// [`WaitError::Ended`] if the writer of the cache was dropped.
    pub async fn wait_until_ready(&self) -> Result<(), WaitError> {
        self.store.wait_until_synced(Duration::MAX).await.map(drop)
    }

    fn decode(&self, object: &Object) -> Result<Arc<K>, String> {
        let mut decoded = self.decoded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = decoded.get(object.key())
            && known.object.is_same(object)
        {
            return known.value.clone();
        }
        let value = serde_json::from_slice::<K>(object.json()).map(Arc::new).map_err(|error| error.to_string());
        decoded.insert(object.key().clone(), Decoded { object: object.clone(), value: value.clone() });
        value
    }

    /// Drops the decoded values of deleted objects if there are more than `2 * present + 16` decoded
    /// values. `present` is the number of existing objects.
    fn drop_stale_values(&self, present: usize) {
        let mut decoded = self.decoded.lock().unwrap_or_else(PoisonError::into_inner);
        if decoded.len() > 2 * present + 16 {
            let snapshot = self.store.snapshot();
            decoded.retain(|key, _| snapshot.get(key.as_str()).is_some());
        }
    }
}
