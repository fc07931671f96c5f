//! What every handler stands on: the store, the registry, and one watch cache per resource,
//! started when it is first asked for.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use listwatch_cacher::{Cacher, Limits, ResourceConfig};
use listwatch_storage::Storage;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::cache_budget::{CacheBudget, Change, Weight};
use crate::controllers::Problems;
use crate::crd::{CustomKind, Definitions};
use crate::registry::{Registry, Resource};
use crate::tokens::Tokens;
use crate::write::admission::AdmissionChain;

/// The server's state below HTTP. One per server, shared by all requests.
pub(crate) struct Backend {
    storage: Arc<dyn Storage>,
    builtin: Arc<Registry>,
    registry: ArcSwap<Registry>,
    definitions: Definitions,
    tokens: Tokens,
    problems: Problems,
    bootstrap: Problems,
    registry_changed: Notify,
    cachers: Mutex<HashMap<String, Kept>>,
    /// How many creations are under way in a namespace, by its name; one for each write in flight at
    /// most.
    creations: Mutex<HashMap<Box<str>, usize>>,
    admission: AdmissionChain,
    watch_cache: bool,
    limits: Limits,
    /// What all caches may take together; `None` is no bound.
    budget: Option<Mutex<CacheBudget>>,
}

/// An object is being created in a namespace.
pub(crate) struct CreatingIn<'a> {
    creations: &'a Mutex<HashMap<Box<str>, usize>>,
    namespace: Box<str>,
}

impl Drop for CreatingIn<'_> {
    fn drop(&mut self) {
        let mut creations = self.creations.lock();
        if let Some(count) = creations.get_mut(&self.namespace) {
            *count -= 1;
            if *count == 0 {
                creations.remove(&self.namespace);
            }
        }
    }
}

/// A cache, and the generation of a definition that it was started for.
struct Kept {
    cacher: Cacher,
    kind: Option<Arc<CustomKind>>,
}

impl Kept {
    fn is_of(&self, resource: &Resource) -> bool {
        match (&self.kind, &resource.form) {
            (Some(kind), Some(form)) => Arc::ptr_eq(kind, form.kind()),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Backend {
    pub(crate) fn new(storage: Arc<dyn Storage>, registry: Registry, watch_cache: bool, limits: Limits) -> Self {
        let builtin = Arc::new(registry);
        Backend {
            storage,
            definitions: Definitions::new(builtin.resources()),
            tokens: Tokens::default(),
            problems: Problems::default(),
            bootstrap: Problems::default(),
            registry_changed: Notify::new(),
            registry: ArcSwap::new(Arc::clone(&builtin)),
            builtin,
            cachers: Mutex::new(HashMap::new()),
            creations: Mutex::new(HashMap::new()),
            admission: AdmissionChain::default(),
            watch_cache,
            limits,
            budget: None,
        }
    }

    /// Bounds what the states of all caches take together.
    pub(crate) fn with_cache_budget(mut self, bytes_max: Option<usize>) -> Self {
        self.budget = bytes_max.map(|bytes_max| Mutex::new(CacheBudget::new(bytes_max)));
        self
    }

    /// Replaces the admission plugins.
    pub(crate) fn with_admission(mut self, admission: AdmissionChain) -> Self {
        self.admission = admission;
        self
    }

    /// The admission plugins.
    pub(crate) fn admission(&self) -> &AdmissionChain {
        &self.admission
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
        let resource = resource.stored();
        let mut cachers = self.cachers.lock();
        // A request that is older than its definition's present state must not bring back a cache of
        // the former state; what it reads then is of the present one, or comes from the store.
        let outdated = resource.form.is_some() && !self.is_current(resource);
        // One that failed was stopped and has told its watchers; the next reader begins anew.
        if let Some(kept) = cachers.get(&resource.storage_prefix).filter(|kept| !kept.cacher.is_stopped())
            && (outdated || kept.is_of(resource))
        {
            return kept.cacher.clone();
        }
        if outdated {
            return Cacher::direct(Arc::clone(&self.storage), self.config(resource));
        }
        let config = self.config(resource);
        let without = self.budget.as_ref().is_some_and(|budget| budget.lock().is_without(&resource.storage_prefix));
        let cacher = if self.watch_cache && !without {
            Cacher::start(Arc::clone(&self.storage), config)
        } else {
            Cacher::direct(Arc::clone(&self.storage), config)
        };
        let kind = resource.form.as_ref().map(|form| Arc::clone(form.kind()));
        let former = cachers.insert(resource.storage_prefix.clone(), Kept { cacher: cacher.clone(), kind });
        if let Some(former) = former {
            former.cacher.stop(None);
        }
        cacher
    }

    fn config(&self, resource: &Resource) -> ResourceConfig {
        ResourceConfig {
            name: resource.gr().to_string(),
            prefix: resource.storage_prefix.clone(),
            shape: Arc::clone(&resource.shape),
            indexed_fields: resource.indexed_fields.clone(),
            limits: self.limits.clone(),
        }
    }

    /// Is this what is served now, in the same generation of its definition?
    fn is_current(&self, resource: &Resource) -> bool {
        let registry = self.registry();
        let present = registry.find(&resource.group, &resource.version, &resource.plural);
        match (present.and_then(|present| present.form.as_ref()), &resource.form) {
            (Some(present), Some(form)) => Arc::ptr_eq(present.kind(), form.kind()),
            _ => false,
        }
    }

    /// The cache of a resource if it runs already; never starts one.
    pub(crate) fn running_cacher(&self, resource: &Resource) -> Option<Cacher> {
        self.cachers.lock().get(&resource.storage_prefix).map(|kept| kept.cacher.clone())
    }

    /// Weighs the caches against the budget, and does what follows. A cache that is given up, or that
    /// comes back, ends the watches there were, cleanly: their clients come back at once.
    pub(crate) fn weigh_caches(&self, now: Instant) -> Vec<Change> {
        let Some(budget) = &self.budget else { return Vec::new() };
        let running = self.running_cachers();
        let total: usize = running.iter().map(|(_, cacher)| cacher.object_bytes()).sum();
        let nothing_to_do = {
            let budget = budget.lock();
            total <= budget.bytes_max() && budget.without() == 0
        };
        if nothing_to_do {
            return Vec::new();
        }
        let weight = |(prefix, cacher): (String, Cacher)| {
            let stats = cacher.stats();
            let watchers = stats.watchers;
            let watched = watchers.replaying + watchers.live + watchers.lagging > 0;
            Weight { prefix, bytes: stats.object_bytes, objects: stats.objects, watched }
        };
        let weights = running.into_iter().map(weight).collect();
        // Both locks, in the order that `cacher` takes them: nobody starts a cache in between.
        let mut cachers = self.cachers.lock();
        let changes = budget.lock().handle_weights(now, weights);
        let changed = |change: &Change| match change {
            Change::Drop(prefix) | Change::Restore(prefix) => cachers.remove(prefix),
        };
        let former: Vec<Kept> = changes.iter().filter_map(changed).collect();
        drop(cachers);
        former.iter().for_each(|former| former.cacher.stop(None));
        changes
    }

    /// Resources without a cache that may have one again, if they have become small enough.
    pub(crate) fn caches_due(&self, now: Instant) -> Vec<String> {
        self.budget.as_ref().map_or_else(Vec::new, |budget| budget.lock().due(now))
    }

    /// A resource without a cache has so many objects now.
    pub(crate) fn handle_count(&self, prefix: &str, objects: usize) {
        if let Some(budget) = &self.budget {
            budget.lock().handle_count(prefix, objects);
        }
    }

    /// The budget of all caches, and how many resources go without one because of it.
    pub(crate) fn cache_budget(&self) -> Option<(usize, usize)> {
        let budget = self.budget.as_ref()?.lock();
        Some((budget.bytes_max(), budget.without()))
    }

    /// The caches that run, for metrics and readiness.
    pub(crate) fn running_cachers(&self) -> Vec<(String, Cacher)> {
        self.cachers.lock().iter().map(|(prefix, kept)| (prefix.clone(), kept.cacher.clone())).collect()
    }

    /// Says that an object is being created in a namespace, until the answer is dropped.
    pub(crate) fn creating_in(&self, namespace: &str) -> CreatingIn<'_> {
        *self.creations.lock().entry(namespace.into()).or_default() += 1;
        CreatingIn { creations: &self.creations, namespace: namespace.into() }
    }

    /// Is an object being created in this namespace, by this server?
    pub(crate) fn is_creating_in(&self, namespace: &str) -> bool {
        self.creations.lock().contains_key(namespace)
    }

    /// Who signs and judges service accounts' tokens.
    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Which of the objects that every cluster has could not be made, by kube-apiserver's health check.
    pub(crate) fn bootstrap(&self) -> &Problems {
        &self.bootstrap
    }

    /// Waits until other kinds are served. For one waiter: a change that nobody waits for is remembered.
    pub(crate) async fn registry_changed(&self) {
        self.registry_changed.notified().await;
    }

    /// What keeps built-in loops from their work.
    pub(crate) fn problems(&self) -> &Problems {
        &self.problems
    }

    /// What is known of the definitions of custom resources.
    pub(crate) fn definitions(&self) -> &Definitions {
        &self.definitions
    }

    /// Is something built in stored below this prefix?
    pub(crate) fn is_built_in_prefix(&self, prefix: &str) -> bool {
        self.builtin.resources().iter().any(|resource| resource.storage_prefix == prefix)
    }

    /// Serves these custom resources besides the built-in ones, and no others. Caches of what is not
    /// served any more, or no longer as it was, end, and their watches with them.
    pub(crate) fn install(&self, custom: &[Arc<Resource>]) {
        self.registry.store(Arc::new(Registry::extended(&self.builtin, custom)));
        self.registry_changed.notify_one();
        let current: HashMap<&str, &Arc<CustomKind>> = custom
            .iter()
            .filter_map(|resource| Some((resource.storage_prefix.as_str(), resource.form.as_ref()?.kind())))
            .collect();
        let is_kept = |prefix: &str, kept: &Kept| match &kept.kind {
            Some(kind) => current.get(prefix).is_some_and(|present| Arc::ptr_eq(present, kind)),
            None => true,
        };
        let mut gone = Vec::new();
        self.cachers.lock().retain(|prefix, kept| {
            let keep = is_kept(prefix, kept);
            if !keep {
                gone.push(kept.cacher.clone());
            }
            keep
        });
        gone.iter().for_each(|cacher| cacher.stop(None));
    }
}
