//! [`Backend`]: the state that all request handlers share: the store, the registry, and one watch cache per resource.
//! The first read of a resource starts the cache of that resource.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use listwatch_access::ServiceAccountTokenOptions;
use listwatch_cacher::{Cacher, Limits, ResourceConfig};
use listwatch_storage::Storage;
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

use crate::cache_budget::{CacheBudget, Change, Weight};
use crate::conversion::{ConversionCallers, ConvertedStorage, PreviousValues};
use crate::custom::CustomKind;
use crate::definitions::{DEFINITIONS_GROUP, DEFINITIONS_PLURAL, DEFINITIONS_VERSION, Definitions};
use crate::legacy_token_uses::LegacyTokenUses;
use crate::problems::Problems;
use crate::registry::Registry;
use crate::resource::Resource;
use crate::tokens::Tokens;

/// Delay between the removal or change of a definition and the end of its watches (`customresource_handler.go`:
/// `tearDown` waits a second before it destroys the storage).
const TEARDOWN_DELAY: Duration = Duration::from_secs(1);

/// The state of a server below HTTP. All requests of a server share one value.
pub struct Backend {
    storage: Arc<dyn Storage>,
    builtin: Arc<Registry>,
    registry: ArcSwap<Registry>,
    definitions: Definitions,
    conversion: Arc<ConversionCallers>,
    tokens: Tokens,
    legacy_token_uses: LegacyTokenUses,
    problems: Problems,
    bootstrap: Problems,
    registry_changed: Notify,
    cachers: Mutex<HashMap<String, CacheEntry, RandomState>>,
    /// Number of creations in progress, by namespace name. Bounded by the number of writes in flight.
    creations: Mutex<HashMap<Box<str>, usize>>,
    watch_cache: bool,
    limits: Limits,
    /// Memory budget of all caches together. `None`: no limit.
    budget: Option<Mutex<CacheBudget>>,
}

/// Guard that marks the creation of an object in a namespace as in progress.
pub struct CreatingIn<'a> {
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

/// A cache and the definition generation for which the cache was started.
struct CacheEntry {
    cacher: Cacher,
    prefix: String,
    kind: Option<Arc<CustomKind>>,
}

impl CacheEntry {
    fn is_of(&self, resource: &Resource) -> bool {
        match (&self.kind, &resource.form) {
            (Some(kind), Some(form)) => Arc::ptr_eq(kind, form.kind()),
            (None, None) => true,
            _ => false,
        }
    }
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Backend")
    }
}

impl Backend {
    /// Creates the state for a store, without custom resources. If `watch_cache` is set, reads are served from one
    /// cache per resource. `limits` applies to each cache.
    pub fn new(storage: Arc<dyn Storage>, registry: Registry, watch_cache: bool, limits: Limits) -> Self {
        let builtin = Arc::new(registry);
        let conversion = Arc::<ConversionCallers>::default();
        Backend {
            storage,
            definitions: Definitions::new(builtin.resources(), Arc::clone(&conversion)),
            conversion,
            tokens: Tokens::default(),
            legacy_token_uses: LegacyTokenUses::default(),
            problems: Problems::default(),
            bootstrap: Problems::default(),
            registry_changed: Notify::new(),
            registry: ArcSwap::new(Arc::clone(&builtin)),
            builtin,
            cachers: Mutex::default(),
            creations: Mutex::new(HashMap::new()),
            watch_cache,
            limits,
            budget: None,
        }
    }

    /// Limits the memory of all caches together to `bytes_max` bytes.
    pub fn with_cache_budget(mut self, bytes_max: Option<usize>) -> Self {
        self.budget = bytes_max.map(|bytes_max| Mutex::new(CacheBudget::new(bytes_max)));
        self
    }

    /// Sets how service account tokens are issued and accepted.
    pub fn with_service_account_tokens(mut self, options: ServiceAccountTokenOptions) -> Self {
        self.tokens = Tokens::new(options);
        self
    }

    /// Returns the uses of tokens in Secrets that wait for their label.
    pub fn legacy_token_uses(&self) -> &LegacyTokenUses {
        &self.legacy_token_uses
    }

    /// Returns the store.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// Returns the current registry.
    pub fn registry(&self) -> Arc<Registry> {
        self.registry.load_full()
    }

    /// Returns the converters of custom resources: webhooks and functions in this process.
    pub fn conversion(&self) -> &Arc<ConversionCallers> {
        &self.conversion
    }

    /// Returns the watch cache of a resource. The first call starts the cache.
    ///
    /// A cache costs memory and a store watch, so a cache starts only at the first read. All versions of a kind share
    /// one cache, unless a webhook converts between them.
    pub fn cacher(&self, resource: &Resource) -> Cacher {
        let resource = resource.stored();
        let name = resource.cache_name();
        let mut cachers = self.cachers.lock();
        // A request older than the current definition must not start a cache for the former definition. Such a
        // request reads from the current cache or from the store.
        let outdated = resource.form.is_some() && !self.is_current(resource);
        // A failed cache has been stopped and has ended its watches. The next reader starts a new one.
        if let Some(kept) = cachers.get(&name).filter(|kept| !kept.cacher.is_stopped())
            && (outdated || kept.is_of(resource))
        {
            return kept.cacher.clone();
        }
        if outdated {
            return self.direct(resource);
        }
        let without = self.budget.as_ref().is_some_and(|budget| budget.lock().is_without(&name));
        // Without a cache, each watcher would cost a call of the webhook per event.
        let cacher = if (self.watch_cache || resource.has_own_cache()) && !without {
            Cacher::start(self.storage_of(resource, PreviousValues::Dropped), self.config(resource))
        } else {
            self.direct(resource)
        };
        let kind = resource.form.as_ref().map(|form| Arc::clone(form.kind()));
        let prefix = resource.storage_prefix.clone();
        let former = cachers.insert(name, CacheEntry { cacher: cacher.clone(), prefix, kind });
        if let Some(former) = former {
            former.cacher.stop(None);
        }
        cacher
    }

    fn direct(&self, resource: &Resource) -> Cacher {
        Cacher::direct(self.storage_of(resource, PreviousValues::Converted), self.config(resource))
    }

    /// Returns the store from which a cache reads a resource. If a webhook converts the versions, this store converts
    /// the objects.
    fn storage_of(&self, resource: &Resource, previous: PreviousValues) -> Arc<dyn Storage> {
        match &resource.form {
            Some(form) if form.converts() => {
                Arc::new(ConvertedStorage::new(Arc::clone(&self.storage), form.clone(), previous))
            }
            _ => Arc::clone(&self.storage),
        }
    }

    fn config(&self, resource: &Resource) -> ResourceConfig {
        let mut limits = self.limits.clone();
        if resource.has_own_cache() {
            // A starting cache must not send the history to the webhook.
            limits.history_refill_revisions_max = 0;
        }
        ResourceConfig {
            name: resource.gr().to_string(),
            prefix: resource.storage_prefix.clone(),
            shape: Arc::clone(&resource.shape),
            indexed_fields: resource.indexed_fields.clone(),
            limits,
        }
    }

    /// Reports whether the registry serves this resource in the same generation of its definition.
    fn is_current(&self, resource: &Resource) -> bool {
        let registry = self.registry();
        let present = registry.find(&resource.group, &resource.version, &resource.plural);
        match (present.and_then(|present| present.form.as_ref()), &resource.form) {
            (Some(present), Some(form)) => Arc::ptr_eq(present.kind(), form.kind()),
            _ => false,
        }
    }

    /// Returns the cache of a resource if it is already running. Never starts a cache.
    pub fn running_cacher(&self, resource: &Resource) -> Option<Cacher> {
        self.cachers.lock().get(&resource.cache_name()).map(|kept| kept.cacher.clone())
    }

    /// Compares the memory of the caches with the budget, and drops or restores caches. Dropping or restoring a cache
    /// ends the watches of its resource cleanly, so that their clients reconnect at once.
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
        let weight = |(name, cacher): (String, Cacher)| {
            let stats = cacher.stats();
            let watchers = stats.watchers;
            let watched = watchers.replaying + watchers.live + watchers.lagging > 0;
            Weight { prefix: name, bytes: stats.object_bytes, objects: stats.objects, watched }
        };
        let weights = running.into_iter().map(weight).collect();
        // Both locks are taken in the same order as in `cacher`, so no cache starts between them.
        let mut cachers = self.cachers.lock();
        let changes = budget.lock().handle_weights(now, weights);
        let changed = |change: &Change| match change {
            Change::Drop(name) | Change::Restore(name) => cachers.remove(name),
        };
        let former: Vec<CacheEntry> = changes.iter().filter_map(changed).collect();
        drop(cachers);
        former.iter().for_each(|former| former.cacher.stop(None));
        changes
    }

    /// Returns the resources without a cache whose objects must be counted before the cache can be restored.
    pub(crate) fn caches_due(&self, now: Instant) -> Vec<String> {
        self.budget.as_ref().map_or_else(Vec::new, |budget| budget.lock().due(now))
    }

    /// Records the current number of objects of a resource without a cache.
    pub(crate) fn handle_count(&self, prefix: &str, objects: usize) {
        if let Some(budget) = &self.budget {
            budget.lock().handle_count(prefix, objects);
        }
    }

    /// Returns the budget of all caches in bytes, and the number of resources without a cache because of the
    /// budget.
    pub fn cache_budget(&self) -> Option<(usize, usize)> {
        let budget = self.budget.as_ref()?.lock();
        Some((budget.bytes_max(), budget.without()))
    }

    /// Returns the storage prefixes of the running caches that are not filled, for readiness. Caches that read through a
    /// conversion webhook are ignored, because a failing webhook must not make the server unready.
    pub fn unfilled_caches(&self) -> Vec<String> {
        let cachers = self.cachers.lock();
        let unfilled = cachers
            .values()
            .filter(|kept| !kept.kind.as_ref().is_some_and(|kind| kind.has_converter()) && !kept.cacher.is_ready());
        unfilled.map(|kept| kept.prefix.clone()).collect()
    }

    /// Returns the running caches with their names, for metrics.
    pub fn running_cachers(&self) -> Vec<(String, Cacher)> {
        self.cachers.lock().iter().map(|(name, kept)| (name.clone(), kept.cacher.clone())).collect()
    }

    /// Marks the creation of an object in a namespace as in progress until the returned guard is dropped.
    pub fn creating_in(&self, namespace: &str) -> CreatingIn<'_> {
        *self.creations.lock().entry(namespace.into()).or_default() += 1;
        CreatingIn { creations: &self.creations, namespace: namespace.into() }
    }

    /// Reports whether this server is creating an object in this namespace.
    pub fn is_creating_in(&self, namespace: &str) -> bool {
        self.creations.lock().contains_key(namespace)
    }

    /// Returns the options and keys of service account tokens.
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Returns the errors of creating bootstrap objects, by the name of kube-apiserver's health check.
    pub fn bootstrap(&self) -> &Problems {
        &self.bootstrap
    }

    /// Waits for the next change of the registry. Supports only one waiter. A change without a waiter completes the
    /// next call at once.
    pub async fn registry_changed(&self) {
        self.registry_changed.notified().await;
    }

    /// Returns the current problems of the controllers.
    pub fn problems(&self) -> &Problems {
        &self.problems
    }

    /// Returns the resource of CustomResourceDefinitions, or `None` if the registry has none.
    pub fn definitions_resource(&self) -> Option<Arc<Resource>> {
        self.registry().find(DEFINITIONS_GROUP, DEFINITIONS_VERSION, DEFINITIONS_PLURAL).cloned()
    }

    /// Waits until this server serves the stored revision of a custom resource's definition. Returns false if there is
    /// no such definition, or after a timeout of three seconds.
    pub async fn catch_up_definition(&self, group: &str, plural: &str) -> bool {
        let Some(definitions) = self.definitions_resource() else { return false };
        let name = format!("{plural}.{group}");
        let Ok(key) = definitions.key(None, &name) else { return false };
        match self.storage().get(&key).await {
            Ok((Some(found), _)) => self.definitions.has_applied(&name, found.modified).await,
            _ => false,
        }
    }

    /// Returns the catalog of CustomResourceDefinitions.
    pub fn definitions(&self) -> &Definitions {
        &self.definitions
    }

    /// Reports whether a built-in resource is stored below this prefix.
    pub fn is_built_in_prefix(&self, prefix: &str) -> bool {
        self.builtin.resources().iter().any(|resource| resource.storage_prefix == prefix)
    }

    /// Replaces the custom resources of the registry. After [`TEARDOWN_DELAY`], stops the caches of removed or changed
    /// resources and ends their watches. With the delay, watches still receive the deletion of the objects of a deleted
    /// definition.
    pub fn install(&self, custom: &[Arc<Resource>]) {
        let registry = Arc::new(Registry::extended(&self.builtin, custom));
        self.registry.store(Arc::clone(&registry));
        self.registry_changed.notify_one();
        let is_kept = |kept: &CacheEntry| match &kept.kind {
            Some(kind) => registry.custom_kind(&kept.prefix).is_some_and(|present| Arc::ptr_eq(present, kind)),
            None => true,
        };
        let mut gone = Vec::new();
        self.cachers.lock().retain(|_, kept| {
            let keep = is_kept(kept);
            if !keep {
                gone.push(kept.cacher.clone());
            }
            keep
        });
        if gone.is_empty() {
            return;
        }
        let stop = move || gone.iter().for_each(|cacher| cacher.stop(None));
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move {
                tokio::time::sleep(TEARDOWN_DELAY).await;
                stop();
            })),
            Err(_) => stop(),
        }
    }
}
