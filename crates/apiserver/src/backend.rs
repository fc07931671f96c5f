//! What every handler stands on: the store, the registry, and one watch cache per resource,
//! started when it is first asked for.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use listwatch_cacher::{Cacher, Limits, ResourceConfig};
use listwatch_storage::Storage;
use parking_lot::Mutex;

use crate::registry::{Registry, Resource};

/// The server's state below HTTP. One per server, shared by all requests.
pub(crate) struct Backend {
    storage: Arc<dyn Storage>,
    registry: ArcSwap<Registry>,
    cachers: Mutex<HashMap<String, Cacher>>,
    watch_cache: bool,
    limits: Limits,
}

impl Backend {
    pub(crate) fn new(storage: Arc<dyn Storage>, registry: Registry, watch_cache: bool, limits: Limits) -> Self {
        Backend {
            storage,
            registry: ArcSwap::from_pointee(registry),
            cachers: Mutex::new(HashMap::new()),
            watch_cache,
            limits,
        }
    }

    /// The store, for writes.
    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// What is served now.
    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.registry.load_full()
    }

    /// The watch cache of a resource; the first call starts it.
    ///
    /// A cache costs memory and a store watch, so a resource that nobody reads has none. Keyed by
    /// the storage prefix: what is stored once is cached once.
    pub(crate) fn cacher(&self, resource: &Resource) -> Cacher {
        let mut cachers = self.cachers.lock();
        // One that failed was stopped and has told its watchers; the next reader begins anew.
        if let Some(cacher) = cachers.get(&resource.storage_prefix).filter(|cacher| !cacher.is_stopped()) {
            return cacher.clone();
        }
        let config = ResourceConfig {
            name: resource.gr().to_string(),
            prefix: resource.storage_prefix.clone(),
            shape: Arc::clone(&resource.shape),
            indexed_fields: resource.indexed_fields.clone(),
            limits: self.limits.clone(),
        };
        let cacher = if self.watch_cache {
            Cacher::start(Arc::clone(&self.storage), config)
        } else {
            Cacher::direct(Arc::clone(&self.storage), config)
        };
        cachers.insert(resource.storage_prefix.clone(), cacher.clone());
        cacher
    }

    /// The cache of a resource if it runs already; never starts one.
    pub(crate) fn running_cacher(&self, resource: &Resource) -> Option<Cacher> {
        self.cachers.lock().get(&resource.storage_prefix).cloned()
    }

    /// The caches that run, for metrics and readiness.
    pub(crate) fn running_cachers(&self) -> Vec<(String, Cacher)> {
        self.cachers.lock().iter().map(|(prefix, cacher)| (prefix.clone(), cacher.clone())).collect()
    }
}
