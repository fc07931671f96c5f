//! The public API: [`Cacher`], its configuration and its results.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use bytes::Bytes;
use listwatch_meta::{
    GroupResource, Key, ListRequest, Object, ObjectShape, ReadAt, Revision, Status, WatchFrom, WatchRequest, canary,
};
use listwatch_storage::{Storage, StoreFault};

use crate::direct::Direct;
use crate::driver;
use crate::error::{ReadError, UndecodableValue};
use crate::filter::{Filter, Scope};
use crate::limits::Limits;
use crate::offered;
use crate::pins::Pinning;
use crate::readiness::Readiness;
use crate::route::{self, Route, RouteInput};
use crate::shared::{Shared, now};
use crate::snapshot::{ListItems, Snapshot};
use crate::stats::CacherStats;
use crate::store_read;
use crate::stream::Watcher;
use crate::watcher::{Mailbox, Replay};

/// The configuration of a resource's cache.
#[derive(Clone, Debug)]
pub struct ResourceConfig {
    /// The name in logs and metrics: `pods`, `deployments.apps`.
    pub name: String,
    /// The resource's key prefix in the store: `pods`, `services/specs`.
    pub prefix: String,
    /// The labels and fields that are read from objects.
    pub shape: Arc<ObjectShape>,
    /// Selector labels of indexed fields, e.g. `spec.nodeName`. The cost of lists and watches that require an exact
    /// value of such a field depends only on the matching objects. Labels that are not in the shape are ignored.
    pub indexed_fields: Vec<String>,
    /// The bounds of the cache.
    pub limits: Limits,
}

impl ResourceConfig {
    /// The positions of the indexed fields in the shape.
    pub(crate) fn indexed(&self) -> Vec<usize> {
        let mut indexed: Vec<usize> =
            self.indexed_fields.iter().filter_map(|label| self.shape.field_position(label)).collect();
        indexed.sort_unstable();
        indexed.dedup();
        indexed
    }

    /// The resource as error messages name it.
    pub(crate) fn group_resource(&self) -> GroupResource<'_> {
        let (resource, group) = self.name.split_once('.').unwrap_or((&self.name, ""));
        GroupResource { group, resource }
    }
}

/// A list: its revision and its objects.
#[derive(Debug)]
pub struct List {
    /// The revision of the whole list.
    pub revision: Revision,
    /// The token of the next page; `None` when this is the last one. The last page may be empty,
    /// because a selector's remaining matches are unknown.
    pub continue_token: Option<String>,
    /// The number of objects on further pages, if it is known exactly.
    pub remaining: Option<u64>,
    /// The objects, in key order.
    pub items: ListItems,
    /// The stored values in the list's scope that are not objects (the first hundred). The items do not
    /// include them, so a reader that needs a complete list can detect the gap.
    pub undecodable: Vec<UndecodableValue>,
}

/// The watch cache of one resource: one list and one watch of the store serve any number of reads
/// and watches. Cheap to clone.
///
/// The cache ends when the last handle and the last watcher are dropped, or with [`Cacher::stop`].
#[derive(Clone)]
pub struct Cacher(Inner);

#[derive(Clone)]
enum Inner {
    Cached(Arc<Handle>),
    Direct(Arc<Direct>),
}

/// The number of states that a consistent list takes from the cache while the cache lists again. At the bound, the client
/// receives `429`.
const CONSISTENT_ATTEMPTS_MAX: usize = 3;

/// Keeps the driver alive: the cache stops when the last handle is dropped.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.stop(None);
    }
}

impl fmt::Debug for Cacher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Inner::Cached(handle) => write!(f, "Cacher({})", handle.shared.config.name),
            Inner::Direct(direct) => write!(f, "Cacher({}, direct)", direct.config().name),
        }
    }
}

impl Cacher {
    /// Starts a cache, which is filled in the background. Early reads wait up to
    /// [`Limits::ready_wait`](crate::Limits::ready_wait).
    ///
    /// # Panics
    /// When called outside of a tokio runtime with time enabled.
    pub fn start(storage: Arc<dyn Storage>, config: ResourceConfig) -> Cacher {
        let shared = Arc::new(Shared::new(storage, config));
        tokio::spawn(driver::run(shared.clone()));
        Cacher(Inner::Cached(Arc::new(Handle { shared })))
    }

    /// Creates an uncached resource: every read and watch goes to the store, with the same
    /// semantics. Suits many writes with few reads, and comparisons with a cache.
    pub fn direct(storage: Arc<dyn Storage>, config: ResourceConfig) -> Cacher {
        Cacher(Inner::Direct(Arc::new(Direct::new(storage, config))))
    }

    /// Reads one object.
    ///
    /// [`ReadAt::MostRecent`] is a linearizable read of the store. All other reads also use the store while the cache
    /// is not filled.
    ///
    /// # Errors
    /// [`ReadError::TooLarge`], [`ReadError::Expired`] (only for [`ReadAt::Exact`]),
    /// [`ReadError::UndecodableObject`], [`ReadError::Fault`].
    pub async fn get(&self, key: &Key, at: ReadAt) -> Result<Option<Object>, ReadError> {
        match &self.0 {
            Inner::Cached(handle) => handle.get(key, at).await,
            Inner::Direct(direct) => direct.get(key, at).await,
        }
    }

    /// The cached object at a key, which can be outdated, as a suggestion for an optimistic write. `None` if there is
    /// no object or no cache.
    pub fn peek(&self, key: &Key) -> Option<Object> {
        match &self.0 {
            Inner::Cached(handle) => handle.shared.cache.read().snapshot().get(key.as_str()).cloned(),
            Inner::Direct(_) => None,
        }
    }

    /// The object of a state that this process has written at `revision`. If the cache has the state, its object is
    /// returned. Otherwise `build` builds the object from the stored `value`, and the cache uses the same object for the
    /// event of the write, unless the event arrives in between. `build` must return what [`Object::from_stored`] returns
    /// for the shape of the cache.
    ///
    /// # Errors
    /// The error of `build`.
    pub fn written<E>(
        &self,
        key: &Key,
        revision: Revision,
        value: &Bytes,
        build: impl FnOnce() -> Result<Object, E>,
    ) -> Result<Object, E> {
        let Inner::Cached(handle) = &self.0 else { return build() };
        let cached = self.peek(key).filter(|object| object.revision() == revision);
        if let Some(object) = cached.filter(|object| offered::is_built_from(object, value)) {
            return Ok(object);
        }
        let object = build()?;
        handle.shared.offered.offer(value, &object);
        Ok(object)
    }

    /// Lists the objects of the scope.
    ///
    /// # Errors
    /// Any [`ReadError`].
    pub async fn list(&self, scope: &Scope, request: &ListRequest) -> Result<List, ReadError> {
        match &self.0 {
            Inner::Cached(handle) => handle.list(scope, request).await,
            Inner::Direct(direct) => direct.list(scope, request).await,
        }
    }

    /// Watches the scope until `deadline`.
    ///
    /// # Errors
    /// The errors that a client gets as an HTTP error: [`ReadError::NotReady`], and
    /// [`ReadError::Fault`] with [`StoreFault::Closed`] after a stop. Any other error is an item of
    /// the stream: [`Delivery::Error`](crate::Delivery::Error).
    pub async fn watch(
        &self,
        scope: &Scope,
        request: &WatchRequest,
        deadline: tokio::time::Instant,
    ) -> Result<Watcher, ReadError> {
        match &self.0 {
            Inner::Cached(handle) => handle.watch(scope, request, deadline.into_std()).await,
            Inner::Direct(direct) => direct.watch(scope, request, deadline).await,
        }
    }

    /// Waits without a limit until the cache is filled. Add a timeout if needed.
    ///
    /// # Errors
    /// [`ReadError::Fault`] with [`StoreFault::Closed`] when the cache was stopped.
    pub async fn wait_ready(&self) -> Result<(), ReadError> {
        match &self.0 {
            Inner::Cached(handle) => handle.shared.filled().await,
            Inner::Direct(direct) => direct.wait_ready(),
        }
    }

    /// Whether the cache is filled.
    pub fn is_ready(&self) -> bool {
        match &self.0 {
            Inner::Cached(handle) => handle.shared.is_ready(),
            Inner::Direct(direct) => direct.wait_ready().is_ok(),
        }
    }

    /// Whether the cache has ended: it was stopped, its store was closed, or it failed. An ended cache never restarts;
    /// start another one.
    pub fn is_stopped(&self) -> bool {
        match &self.0 {
            Inner::Cached(handle) => handle.shared.is_stopped(),
            Inner::Direct(direct) => direct.wait_ready().is_err(),
        }
    }

    /// Whether reads go to the store, because the resource has no cache.
    pub fn is_direct(&self) -> bool {
        matches!(self.0, Inner::Direct(_))
    }

    /// The revision up to which the cache is complete.
    pub fn revision(&self) -> Revision {
        match &self.0 {
            Inner::Cached(handle) => handle.shared.revision(),
            Inner::Direct(direct) => direct.stats().revision,
        }
    }

    /// Statistics of the cache. The call visits every watcher: use it for metrics, not for every
    /// request.
    pub fn stats(&self) -> CacherStats {
        match &self.0 {
            Inner::Cached(handle) => handle.shared.stats(),
            Inner::Direct(direct) => direct.stats(),
        }
    }

    /// Bytes of the current state; 0 without a cache. The call is cheap, unlike [`Cacher::stats`].
    pub fn object_bytes(&self) -> usize {
        match &self.0 {
            Inner::Cached(handle) => handle.shared.cache.read().object_bytes(),
            Inner::Direct(_) => 0,
        }
    }

    /// The number and the bytes of the objects in the current state; zeros without a cache. The call is cheap.
    pub fn object_totals(&self) -> (usize, usize) {
        match &self.0 {
            Inner::Cached(handle) => {
                let cache = handle.shared.cache.read();
                (cache.object_count(), cache.object_bytes())
            }
            Inner::Direct(_) => (0, 0),
        }
    }

    /// The labels and fields that are read from objects.
    pub fn shape(&self) -> &Arc<ObjectShape> {
        match &self.0 {
            Inner::Cached(handle) => &handle.shared.config.shape,
            Inner::Direct(direct) => &direct.config().shape,
        }
    }

    /// Stops the cache and its watches. Queued deliveries are still delivered, then `last_status`;
    /// `None` is a clean end of the stream, after which clients reconnect. Later reads fail with
    /// [`StoreFault::Closed`]. A second stop has no effect.
    pub fn stop(&self, last_status: Option<Status>) {
        match &self.0 {
            Inner::Cached(handle) => handle.shared.stop(last_status.as_ref()),
            Inner::Direct(direct) => direct.stop(last_status),
        }
    }
}

impl Handle {
    async fn get(&self, key: &Key, at: ReadAt) -> Result<Option<Object>, ReadError> {
        let shared = &self.shared;
        let shape = &shared.config.shape;
        if shared.is_stopped() {
            return Err(StoreFault::Closed.into());
        }
        match at {
            ReadAt::Any | ReadAt::NotOlderThan(_) if shared.is_ready() => {}
            _ => {
                let cached = shared.is_ready().then(|| shared.cache.read().snapshot().get(key.as_str()).cloned());
                return store_read::get(&shared.storage, key, at, shape, cached.flatten()).await;
            }
        }
        let required = match at {
            ReadAt::NotOlderThan(revision) => revision,
            _ => Revision::ZERO,
        };
        shared.reach(required).await?;
        let cache = shared.cache.read();
        Shared::check_reached(required, cache.revision())?;
        if let Some(reason) = cache.undecodable_reason(key) {
            return Err(ReadError::UndecodableObject(UndecodableValue { key: key.clone(), reason }));
        }
        Ok(cache.snapshot().get(key.as_str()).cloned())
    }

    async fn list(&self, scope: &Scope, request: &ListRequest) -> Result<List, ReadError> {
        let shared = &self.shared;
        let filter = shared.filter(scope, &request.labels, &request.fields, request.shard.as_ref());
        // Before the state is taken, so that a state that is replaced meanwhile is not kept.
        let mut generation = shared.pins.lock().generation();
        let mut situation = RouteInput {
            ready: shared.is_ready(),
            relisting: shared.is_relisting(),
            progress: shared.storage.capabilities().progress_requests,
            single: filter.is_single(),
            bounded: request.limit.is_some() && !filter.selects(),
        };
        let mut route = route::list(request.at, situation);
        if route == Route::NotReady || shared.is_stopped() {
            shared.filled_in_time().await?;
            situation.ready = true;
            route = route::list(request.at, situation);
        }
        let (snapshot, revision) = match route {
            Route::Cache => shared.current(),
            Route::CacheAt(revision) => shared.current_since(revision).await?,
            Route::CacheConsistent | Route::Relisted => match self.consistent_state(situation).await? {
                Some((current, since)) => {
                    generation = since;
                    current
                }
                None => return self.list_store(&filter, request).await,
            },
            Route::Snapshot(revision) => match self
                .past_state(revision, situation.progress)
                .await
                .map_err(|error| store_read::expired_page(error, request))?
            {
                Some(snapshot) => (snapshot, revision),
                None => {
                    let list = self.list_store(&filter, request).await;
                    return list.map_err(|error| match error {
                        // A retry may succeed although the wait did not.
                        ReadError::TooLarge { requested, current, .. } => {
                            ReadError::TooLarge { requested, current, retry_after_seconds: 1 }
                        }
                        error => error,
                    });
                }
            },
            Route::Store | Route::NotReady => return self.list_store(&filter, request).await,
        };
        shared.counters.cache_lists.fetch_add(1, Relaxed);
        // Only a list of the current state begins one. Reads of a former revision must not prolong it.
        let begins = !matches!(route, Route::Snapshot(_));
        Ok(self.page(snapshot, revision, filter, request, Pinning { generation, begins }).await)
    }

    /// The state of the cache at the store's revision or later, and the generation of pins that it belongs to. `None` when
    /// the store serves the list.
    ///
    /// # Errors
    /// [`ReadError::NotReady`] if the cache lists again for too long, and the list may not use the store meanwhile.
    async fn consistent_state(&self, situation: RouteInput) -> Result<Option<((Snapshot, Revision), u64)>, ReadError> {
        let shared = &self.shared;
        let route = || route::list(ReadAt::MostRecent, RouteInput { relisting: shared.is_relisting(), ..situation });
        for _ in 0..CONSISTENT_ATTEMPTS_MAX {
            if route() == Route::Relisted {
                shared.relisted_in_time().await?;
            }
            let generation = shared.pins.lock().generation();
            let revision = shared.store_revision().await?;
            match shared.current_since(revision).await {
                // In this order: the generation changes before the new list is complete.
                Ok(current) if !shared.is_relisting() && shared.pins.lock().generation() == generation => {
                    return Ok(Some((current, generation)));
                }
                // The state was replaced meanwhile, or will be.
                Ok(_) if route() != Route::Store => {}
                Err(ReadError::TooLarge { .. }) if route() == Route::Relisted => {}
                Ok(_) | Err(ReadError::TooLarge { .. }) => {
                    shared.counters.fallbacks.fetch_add(1, Relaxed);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Err(Shared::relisting_error())
    }

    async fn list_store(&self, filter: &Filter, request: &ListRequest) -> Result<List, ReadError> {
        let shared = &self.shared;
        shared.counters.store_lists.fetch_add(1, Relaxed);
        let history = shared.store_history.lock().id();
        let ResourceConfig { shape, limits, .. } = &shared.config;
        let list = store_read::list(&shared.storage, filter, request, shape, limits).await?;
        shared.store_history.lock().handle_revision(history, list.revision);
        Ok(list)
    }

    /// Returns the state at exactly this revision; `None` when only the store may still have it.
    ///
    /// # Errors
    /// [`ReadError::Expired`] once the pages of a list at this revision have expired.
    async fn past_state(&self, revision: Revision, progress: bool) -> Result<Option<Snapshot>, ReadError> {
        let shared = &self.shared;
        if canary!("cacher-pages-the-current-state") {
            return Ok(Some(shared.current().0));
        }
        let generation = {
            let mut pins = shared.pins.lock();
            if pins.is_expired(revision) {
                return Err(ReadError::Expired { requested: revision });
            }
            if let Some(snapshot) = pins.get(now(), revision) {
                return Ok(Some(snapshot));
            }
            pins.generation()
        };
        let reached = shared.revision();
        if shared.store_history.lock().is_former(revision, reached) {
            return Err(ReadError::Expired { requested: revision });
        }
        if revision > reached {
            if !progress {
                return Ok(None);
            }
            // The store may have a revision that the cache does not reach in time: a page's first
            // list may have come from the store.
            match shared.reach(revision).await {
                Ok(()) => {}
                Err(ReadError::TooLarge { .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let Some(former) = shared.cache.read().past_state(revision) else { return Ok(None) };
        let snapshot = former.rebuild(&shared.config.shape);
        shared.counters.rebuilt.fetch_add(1, Relaxed);
        // A client that reads a former revision usually requests its next page.
        self.pin(revision, &snapshot, Pinning { generation, begins: false });
        Ok(Some(snapshot))
    }

    fn pin(&self, revision: Revision, snapshot: &Snapshot, pinning: Pinning) {
        let unneeded = self.shared.pins.lock().pin(now(), revision, snapshot.clone(), pinning);
        drop(unneeded); // not under the lock
        self.shared.kick.notify_one();
    }

    async fn page(
        &self,
        snapshot: Snapshot,
        revision: Revision,
        filter: Arc<Filter>,
        request: &ListRequest,
        pinning: Pinning,
    ) -> List {
        let shared = &self.shared;
        let undecodable = shared.cache.read().undecodable_in(&filter);
        let start = store_read::start_key(&filter, request);
        let items = ListItems::walk(snapshot.clone(), filter.clone(), shared.config.shape.clone(), &start);
        let items = items.counted(&shared.counters);
        let Some(limit) = request.limit else {
            // A chunk of a body cannot pause. If a chunk could examine any number of other objects, the matching ones are
            // collected first.
            let items = if items.examines_only_matches() {
                items
            } else {
                ListItems::ready(items.collected(usize::MAX).await).counted(&shared.counters)
            };
            return List { revision, continue_token: None, remaining: None, items, undecodable };
        };
        // The metadata at the head of the list depends on the page's end, so a page is collected.
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let objects = items.collected(limit).await;
        let last = objects.last().filter(|_| objects.len() == limit).map(|object| object.key().clone());
        let more = last.filter(|last| snapshot.any_behind(filter.range(), last.as_str()));
        let continue_token = more.as_ref().map(|last| store_read::token(&filter, revision, last));
        let remaining =
            more.filter(|_| !filter.selects()).map(|last| snapshot.count_behind(filter.range(), last.as_str()));
        if continue_token.is_some() {
            self.pin(revision, &snapshot, pinning);
        }
        List { revision, continue_token, remaining, items: ListItems::ready(objects), undecodable }
    }

    async fn watch(
        self: &Arc<Self>,
        scope: &Scope,
        request: &WatchRequest,
        deadline: Instant,
    ) -> Result<Watcher, ReadError> {
        let shared = &self.shared;
        shared.filled_in_time().await?;
        shared.counters.started.fetch_add(1, Relaxed);
        let filter = shared.filter(scope, &request.labels, &request.fields, request.shard.as_ref());
        let mailbox = match self.begin(&filter, request).await {
            Ok(mailbox) => mailbox,
            Err(error @ (ReadError::Fault(StoreFault::Closed) | ReadError::NotReady { .. })) => return Err(error),
            Err(error) => return Ok(Watcher::over(error.status(shared.config.group_resource()))),
        };
        Ok(self.register(mailbox, filter, request.bookmarks, deadline))
    }

    /// Determines how a watch begins.
    async fn begin(&self, filter: &Arc<Filter>, request: &WatchRequest) -> Result<Mailbox, ReadError> {
        let shared = &self.shared;
        if is_consistent(request.from) {
            // Neither the state nor the history may be of a former history of the store.
            shared.relisted_in_time().await?;
        }
        let after = match request.from {
            WatchFrom::InitialEvents { at, mark_end } => {
                let mark_end = mark_end && request.bookmarks;
                let required = match at {
                    ReadAt::MostRecent => shared.store_revision().await?,
                    ReadAt::NotOlderThan(revision) | ReadAt::Exact(revision) | ReadAt::LegacyExact(revision) => {
                        revision
                    }
                    ReadAt::Any => Revision::ZERO,
                };
                let consistent = at == ReadAt::MostRecent;
                let progress = shared.storage.capabilities().progress_requests;
                // Without reliable progress a quiet cache does not know its freshness: the store
                // serves the initial state, and the cache continues from there.
                let hopeless = consistent && !progress && shared.revision() < required;
                let replay = async {
                    shared.reach(required).await?;
                    let mailbox = self.replay_cache(filter, required, mark_end)?;
                    // The store may have been restored since its revision was read.
                    if consistent && shared.is_relisting() { Err(Shared::relisting_error()) } else { Ok(mailbox) }
                };
                let replayed = if hopeless { None } else { Some(replay.await) };
                return match replayed {
                    Some(Ok(mailbox)) => Ok(mailbox),
                    Some(Err(error)) if !matches!(error, ReadError::TooLarge { .. }) => Err(error),
                    Some(Err(error)) if !consistent && progress => Err(error),
                    _ => {
                        shared.counters.fallbacks.fetch_add(u64::from(progress), Relaxed);
                        self.replay_store(filter, at, mark_end).await
                    }
                };
            }
            WatchFrom::Now(ReadAt::Any) => shared.revision(),
            WatchFrom::Now(_) => shared.store_revision().await?,
            WatchFrom::After(_) if canary!("cacher-watches-from-now") => shared.revision(),
            WatchFrom::After(revision) => revision,
        };
        let cache = shared.cache.read();
        let is_former = matches!(request.from, WatchFrom::After(_))
            && shared.store_history.lock().is_former(after, cache.revision());
        match cache.history().position_after(after) {
            _ if is_former => Ok(Mailbox::closed(Some(shared.expired(after, cache.history().floor())))),
            Ok(position) => Ok(Mailbox::from_history(position, after)),
            Err(_) => Ok(Mailbox::closed(Some(shared.expired(after, cache.history().floor())))),
        }
    }

    /// Serves the cache's current state, at `required` or later, as initial events.
    ///
    /// # Errors
    /// [`ReadError::Undecodable`], because a client would consider the omitted objects deleted.
    fn replay_cache(&self, filter: &Arc<Filter>, required: Revision, mark_end: bool) -> Result<Mailbox, ReadError> {
        let shared = &self.shared;
        let (snapshot, revision, position) = {
            let cache = shared.cache.read();
            refuse_undecodable(cache.undecodable_in(filter))?;
            (cache.snapshot().clone(), cache.revision(), cache.history().end())
        };
        Shared::check_reached(required, revision)?;
        let items = ListItems::walk(snapshot, filter.clone(), shared.config.shape.clone(), "");
        shared.counters.replays.fetch_add(1, Relaxed);
        let replay = Replay::new(items.counted(&shared.counters), mark_end.then_some(revision), position);
        Ok(Mailbox::replay(replay, revision))
    }

    /// Serves the store's state as initial events. The live part begins after the revision of the state. If the cache
    /// is ahead, it begins in the history; if the cache is behind, older events are skipped.
    async fn replay_store(&self, filter: &Arc<Filter>, at: ReadAt, mark_end: bool) -> Result<Mailbox, ReadError> {
        let shared = &self.shared;
        let request = ListRequest {
            at,
            limit: None,
            resume: None,
            labels: listwatch_meta::LabelSelector::default(),
            fields: listwatch_meta::FieldSelector::default(),
            shard: None,
        };
        let List { revision, items, undecodable, .. } = self.list_store(filter, &request).await?;
        refuse_undecodable(undecodable)?;
        let cache = shared.cache.read();
        match cache.history().position_after(revision) {
            Ok(position) => {
                shared.counters.replays.fetch_add(1, Relaxed);
                Ok(Mailbox::replay(Replay::new(items, mark_end.then_some(revision), position), revision))
            }
            Err(_) => Ok(Mailbox::closed(Some(shared.expired(revision, cache.history().floor())))),
        }
    }

    fn register(
        self: &Arc<Self>,
        mailbox: Mailbox,
        filter: Arc<Filter>,
        bookmarks: bool,
        deadline: Instant,
    ) -> Watcher {
        let shared = &self.shared;
        let cell = Arc::new(parking_lot::Mutex::new(mailbox));
        let mut unneeded = None;
        let id = {
            let mut hub = shared.hub.lock();
            let id = hub.handle_watch(now(), cell.clone(), filter.clone(), deadline, bookmarks, &shared.config.limits);
            // An earlier stop has closed only the watchers that it knew.
            if shared.is_stopped() {
                unneeded = cell.lock().handle_close(None, hub.dispatched());
            }
            id
        };
        drop(unneeded); // not under the lock
        shared.kick.notify_one();
        Watcher::cached(self.clone(), id, cell, filter)
    }
}

/// Whether a watch begins at the most recent state of the store.
fn is_consistent(from: WatchFrom) -> bool {
    match from {
        WatchFrom::InitialEvents { at, .. } => at == ReadAt::MostRecent,
        WatchFrom::Now(at) => at != ReadAt::Any,
        WatchFrom::After(_) => false,
    }
}

/// Fails if the initial state lacks objects because their values are undecodable.
pub(crate) fn refuse_undecodable(values: Vec<UndecodableValue>) -> Result<(), ReadError> {
    if values.is_empty() { Ok(()) } else { Err(ReadError::Undecodable(values)) }
}

impl Readiness {
    /// Marks the cache as ready after a list. Returns false if the cache is stopped, which is final.
    pub(crate) fn after_list(&mut self) -> bool {
        let generation = match self {
            Readiness::Stopped => return false,
            Readiness::Pending { .. } => 1,
            Readiness::Ready(generation) => *generation + 1,
        };
        *self = Readiness::Ready(generation);
        true
    }
}

#[cfg(test)]
mod tests {
    use listwatch_meta::SelectableField;

    use super::*;

    #[test]
    fn indexed_fields_are_deduplicated_and_unknown_fields_are_ignored() {
        let fields = ["spec.a", "spec.b", "spec.c"].map(SelectableField::string).to_vec();
        let config = ResourceConfig {
            name: "pods".to_owned(),
            prefix: "pods".to_owned(),
            shape: Arc::new(ObjectShape::new(true, fields)),
            indexed_fields: ["spec.c", "spec.unknown", "spec.a", "spec.c"].map(str::to_owned).to_vec(),
            limits: Limits::default(),
        };
        assert_eq!(config.indexed(), [0, 2]);
    }
}
