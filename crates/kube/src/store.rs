//! listwatch's cache through kube-rs' reads: [`KubeStore`].

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::{Lookup, ObjectRef};
use listwatch_client::{Object, ObjectKey, Store, WaitError};
use serde::de::DeserializeOwned;

/// A reader with the methods of `kube::runtime::reflector::Store`, over listwatch's cache. Objects
/// are kept as their bytes and decoded when they are read; what was decoded is kept for the next
/// reader until the object changes. Memory is what was read, not what is there. Cheap to clone.
///
/// An object that cannot be decoded is not there for these reads; [`KubeStore::undecodable`] knows
/// it.
pub struct KubeStore<K> {
    store: Store,
    decoded: Arc<Mutex<HashMap<ObjectKey, Decoded<K>>>>,
}

/// A state of an object and what it was decoded into.
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
    /// A reader of this cache, whose objects have to be of the kind `K`.
    pub fn new(store: Store) -> Self {
        KubeStore { store, decoded: Arc::default() }
    }

    /// The cache that is read, for what kube-rs has no call for: its version, namespaces, order.
    pub fn inner(&self) -> &Store {
        &self.store
    }

    /// The object of this reference, if it is there.
    pub fn get(&self, key: &ObjectRef<K>) -> Option<Arc<K>> {
        let key = ObjectKey::new(key.namespace.as_deref().unwrap_or_default(), &key.name);
        let snapshot = self.store.snapshot();
        self.decode(snapshot.get(key.as_str())?).ok()
    }

    /// Every object, in the order of the server's lists; kube-rs has none.
    pub fn state(&self) -> Vec<Arc<K>> {
        self.state_filter(|_| true)
    }

    /// The objects for which this holds.
    pub fn state_filter(&self, predicate: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        let snapshot = self.store.snapshot();
        self.forget_all_but(snapshot.len());
        snapshot.iter().filter_map(|object| self.decode(object).ok()).filter(|value| predicate(value)).collect()
    }

    /// The first object for which this holds.
    pub fn find(&self, predicate: impl Fn(&K) -> bool) -> Option<Arc<K>> {
        let snapshot = self.store.snapshot();
        snapshot.iter().filter_map(|object| self.decode(object).ok()).find(|value| predicate(value))
    }

    /// How many objects there are, decodable or not.
    pub fn len(&self) -> usize {
        self.store.snapshot().len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The objects that are there and cannot be decoded into `K`, with the reason.
    pub fn undecodable(&self) -> Vec<(ObjectKey, String)> {
        let snapshot = self.store.snapshot();
        snapshot.iter().filter_map(|object| Some((object.key().clone(), self.decode(object).err()?))).collect()
    }

    /// Waits until the initial state was loaded, for ever if need be.
    ///
    /// # Errors
    /// When nobody keeps the cache any more.
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

    /// What was decoded of objects that are gone is let go when it is as much as what is there.
    fn forget_all_but(&self, present: usize) {
        let mut decoded = self.decoded.lock().unwrap_or_else(PoisonError::into_inner);
        if decoded.len() > 2 * present + 16 {
            let snapshot = self.store.snapshot();
            decoded.retain(|key, _| snapshot.get(key.as_str()).is_some());
        }
    }
}
