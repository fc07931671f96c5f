//! The public face: [`Cacher`] and what it takes and gives.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use listwatch_meta::{
    GroupResource, Key, ListRequest, Object, ObjectShape, ReadAt, Revision, Status, WatchFrom, WatchRequest,
};
use listwatch_storage::{Storage, StoreFault};

use crate::cache::Cache;
use crate::direct::Direct;
use crate::driver;
use crate::error::ReadError;
use crate::filter::{Filter, Scope};
use crate::limits::{Limits, UNDECODABLE_KEYS_MAX};
use crate::readiness::Readiness;
use crate::route::{self, Route, Situation};
use crate::shared::{Shared, now};
use crate::snapshot::{ListItems, Snapshot};
use crate::stats::CacherStats;
use crate::store_read;
use crate::stream::Watcher;
use crate::watcher::{Mailbox, Replay};

/// What a cache is told about its resource.
#[derive(Clone, Debug)]
pub struct ResourceConfig {
    /// The name in logs and metrics: `pods`, `deployments.apps`.
    pub name: String,
    /// The resource's prefix in the store: `pods`, `services/specs`.
    pub prefix: String,
    /// What is read from its objects.
    pub shape: Arc<ObjectShape>,
    /// Selector labels of fields with an index, e.g. `spec.nodeName`: lists and watches that pin
    /// such a field cost as much as they show. Those the shape does not have are ignored.
    pub indexed_fields: Vec<String>,
    /// The bounds.
    pub limits: Limits,
}

impl ResourceConfig {
    /// Positions of the indexed fields in the shape.
    pub(crate) fn indexed(&self) -> Vec<usize> {
        let mut indexed: Vec<usize> =
            self.indexed_fields.iter().filter_map(|label| self.shape.field_position(label)).collect();
        indexed.sort_unstable();
        indexed.dedup();
        indexed
    }

    /// The resource as error texts name it.
    pub(crate) fn group_resource(&self) -> GroupResource<'_> {
        let (resource, group) = self.name.split_once('.').unwrap_or((&self.name, ""));
        GroupResource { group, resource }
    }
}

/// A list: which revision it shows, and its objects.
#[derive(Debug)]
pub struct List {
    /// The revision of the whole list.
    pub revision: Revision,
    /// Where the next page begins; `None` when this is the last one. The last page may be empty:
    /// with a selector it is not known whether any of the keys that follow match.
    pub continue_token: Option<String>,
    /// How many objects follow on further pages, where that is known for certain.
    pub remaining: Option<u64>,
    /// The objects, in key order.
    pub items: ListItems,
    /// Keys in the list's scope that hold something that is no object (the first hundred). They
    /// are not among the items; a reader that must not overlook anything can be warned.
    pub undecodable: Vec<Key>,
}

/// The watch cache of one resource: one list and watch of the store in, any number of reads and
/// watches out. Cheap to clone.
///
/// It ends when the last handle and the last watcher are gone, or with [`Cacher::stop`].
#[derive(Clone)]
pub struct Cacher(Inner);

#[derive(Clone)]
enum Inner {
    Cached(Arc<Handle>),
    Direct(Arc<Direct>),
}

/// Keeps the driver alive: the cache stops when the last of these goes.
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
    /// Starts a cache. It fills itself in the background; reads that come before wait for it a
    /// little.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    pub fn start(storage: Arc<dyn Storage>, config: ResourceConfig) -> Cacher {
        let shared = Arc::new(Shared::new(storage, config));
        tokio::spawn(driver::run(shared.clone()));
        Cacher(Inner::Cached(Arc::new(Handle { shared })))
    }

    /// No cache: every read and watch goes to the store, with the same semantics. For resources
    /// that are written much and read rarely, and for comparing.
    pub fn direct(storage: Arc<dyn Storage>, config: ResourceConfig) -> Cacher {
        Cacher(Inner::Direct(Arc::new(Direct::new(storage, config))))
    }

    /// One object.
    ///
    /// [`ReadAt::MostRecent`] is answered by the store, linearizably; a cache that is not filled
    /// leaves the others to the store too.
    ///
    /// # Errors
    /// [`ReadError::TooLarge`], [`ReadError::Expired`] (only for [`ReadAt::Exact`]),
    /// [`ReadError::Undecodable`], [`ReadError::Fault`].
    pub async fn get(&self, key: &Key, at: ReadAt) -> Result<Option<Object>, ReadError> {
        match &self.0 {
            Inner::Cached(handle) => handle.get(key, at).await,
            Inner::Direct(direct) => direct.get(key, at).await,
        }
    }

    /// What the cache holds at a key right now, however old: a first guess for an optimistic
    /// write. `None` when there is nothing, or no cache.
    pub fn peek(&self, key: &Key) -> Option<Object> {
        match &self.0 {
            Inner::Cached(handle) => handle.shared.cache.read().snapshot().get(key.as_str()).cloned(),
            Inner::Direct(_) => None,
        }
    }

    /// A list of the scope.
    ///
    /// # Errors
    /// Every [`ReadError`].
    pub async fn list(&self, scope: &Scope, request: &ListRequest) -> Result<List, ReadError> {
        match &self.0 {
            Inner::Cached(handle) => handle.list(scope, request).await,
            Inner::Direct(direct) => direct.list(scope, request).await,
        }
    }

    /// A watch of the scope, which ends at `deadline`.
    ///
    /// # Errors
    /// Only what a client gets as an HTTP error: [`ReadError::NotReady`], and
    /// [`ReadError::Fault`] with [`StoreFault::Closed`] after a stop. Everything else is told in
    /// the stream, as [`Delivery::Error`](crate::Delivery::Error).
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

    /// Waits until the cache is filled, as long as it takes; put a timeout around it.
    ///
    /// # Errors
    /// [`ReadError::Fault`] with [`StoreFault::Closed`] when it was stopped.
    pub async fn wait_ready(&self) -> Result<(), ReadError> {
        match &self.0 {
            Inner::Cached(handle) => handle.shared.filled().await,
            Inner::Direct(direct) => direct.wait_ready(),
        }
    }

    /// Is the cache filled?
    pub fn is_ready(&self) -> bool {
        match &self.0 {
            Inner::Cached(handle) => handle.shared.is_ready(),
            Inner::Direct(direct) => direct.wait_ready().is_ok(),
        }
    }

    /// Is the cache over? It was stopped, its store was closed, or it failed. It does not come
    /// back: who still needs one starts another.
    pub fn is_stopped(&self) -> bool {
        match &self.0 {
            Inner::Cached(handle) => handle.shared.is_stopped(),
            Inner::Direct(direct) => direct.wait_ready().is_err(),
        }
    }

    /// Everything up to and including this revision is known to the cache.
    pub fn revision(&self) -> Revision {
        match &self.0 {
            Inner::Cached(handle) => handle.shared.revision(),
            Inner::Direct(direct) => direct.stats().revision,
        }
    }

    /// The cache in figures. Looks at every watcher: meant for metrics, not for every request.
    pub fn stats(&self) -> CacherStats {
        match &self.0 {
            Inner::Cached(handle) => handle.shared.stats(),
            Inner::Direct(direct) => direct.stats(),
        }
    }

    /// Bytes of the current state; 0 without a cache. Cheap, unlike [`Cacher::stats`].
    pub fn object_bytes(&self) -> usize {
        match &self.0 {
            Inner::Cached(handle) => handle.shared.cache.read().object_bytes(),
            Inner::Direct(_) => 0,
        }
    }

    /// What is read from the objects.
    pub fn shape(&self) -> &Arc<ObjectShape> {
        match &self.0 {
            Inner::Cached(handle) => &handle.shared.config.shape,
            Inner::Direct(direct) => &direct.config().shape,
        }
    }

    /// Ends the cache and its watches: what is queued is still handed out, then `goodbye`; `None`
    /// is a clean end of the stream, which clients take as an invitation to come back. Later reads
    /// fail with [`StoreFault::Closed`]. Stopping twice does nothing.
    pub fn stop(&self, goodbye: Option<Status>) {
        match &self.0 {
            Inner::Cached(handle) => handle.shared.stop(goodbye.as_ref()),
            Inner::Direct(direct) => direct.stop(goodbye),
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
            _ => return store_read::get(&shared.storage, key, at, shape).await,
        }
        let required = match at {
            ReadAt::NotOlderThan(revision) => revision,
            _ => Revision::ZERO,
        };
        shared.reach(required).await?;
        let cache = shared.cache.read();
        Shared::check_reached(required, cache.revision())?;
        if cache.is_undecodable(key) {
            return Err(ReadError::Undecodable { keys: vec![key.clone()] });
        }
        Ok(cache.snapshot().get(key.as_str()).cloned())
    }

    async fn list(&self, scope: &Scope, request: &ListRequest) -> Result<List, ReadError> {
        let shared = &self.shared;
        let filter = shared.filter(scope, &request.labels, &request.fields, request.shard.as_ref());
        let mut situation = Situation {
            ready: shared.is_ready(),
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
            Route::CacheConsistent => {
                let revision = shared.storage.current_revision().await.map_err(ReadError::from_store)?;
                match shared.current_since(revision).await {
                    Ok(current) => current,
                    Err(ReadError::TooLarge { .. }) => {
                        shared.counters.fallbacks.fetch_add(1, Relaxed);
                        return self.list_store(&filter, request).await;
                    }
                    Err(error) => return Err(error),
                }
            }
            Route::Former(revision) => match self.former(revision, situation.progress).await? {
                Some(snapshot) => (snapshot, revision),
                None => {
                    let list = self.list_store(&filter, request).await;
                    return list.map_err(|error| match error {
                        // The wait did not help: waiting again may.
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
        Ok(self.page(snapshot, revision, filter, request))
    }

    async fn list_store(&self, filter: &Filter, request: &ListRequest) -> Result<List, ReadError> {
        let shared = &self.shared;
        shared.counters.store_lists.fetch_add(1, Relaxed);
        store_read::list(&shared.storage, filter, request, &shared.config.shape, &shared.config.limits).await
    }

    /// The state at exactly this revision; `None` when only the store may still know it.
    async fn former(&self, revision: Revision, progress: bool) -> Result<Option<Snapshot>, ReadError> {
        let shared = &self.shared;
        if let Some(snapshot) = shared.pins.lock().get(now(), revision) {
            return Ok(Some(snapshot));
        }
        if revision > shared.revision() {
            if !progress {
                return Ok(None);
            }
            // What the cache does not reach in time the store may have: a page may come from a
            // list that the store answered.
            match shared.reach(revision).await {
                Ok(()) => {}
                Err(ReadError::TooLarge { .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let Some(former) = shared.cache.read().former(revision) else { return Ok(None) };
        let snapshot = former.rebuild(&shared.config.shape);
        shared.counters.rebuilt.fetch_add(1, Relaxed);
        // Whoever asks for a former revision usually asks again: for the next page.
        self.pin(revision, &snapshot);
        Ok(Some(snapshot))
    }

    fn pin(&self, revision: Revision, snapshot: &Snapshot) {
        let unneeded = self.shared.pins.lock().pin(now(), revision, snapshot.clone());
        drop(unneeded); // not under the lock
        self.shared.kick.notify_one();
    }

    fn page(&self, snapshot: Snapshot, revision: Revision, filter: Arc<Filter>, request: &ListRequest) -> List {
        let shared = &self.shared;
        let undecodable = undecodable_in(&shared.cache.read(), &filter);
        let start = store_read::start_key(&filter, request);
        let mut items = ListItems::walk(snapshot.clone(), filter.clone(), shared.config.shape.clone(), &start);
        let Some(limit) = request.limit else {
            let items = items.counted(&shared.counters);
            return List { revision, continue_token: None, remaining: None, items, undecodable };
        };
        // What stands in the list's head depends on where the page ends: a page is collected.
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let objects: Vec<Object> = items.by_ref().take(limit).collect();
        let last = objects.last().filter(|_| objects.len() == limit).map(|object| object.key().clone());
        let more = last.filter(|last| snapshot.any_behind(filter.range(), last.as_str()));
        let continue_token = more.as_ref().map(|last| store_read::token(&filter, revision, last));
        let remaining =
            more.filter(|_| !filter.selects()).map(|last| snapshot.count_behind(filter.range(), last.as_str()));
        if continue_token.is_some() {
            self.pin(revision, &snapshot);
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
            Err(ReadError::Fault(StoreFault::Closed)) => return Err(StoreFault::Closed.into()),
            Err(error) => return Ok(Watcher::over(error.status(shared.config.group_resource()))),
        };
        Ok(self.register(mailbox, filter, request.bookmarks, deadline))
    }

    /// Where and with what a watch begins.
    async fn begin(&self, filter: &Arc<Filter>, request: &WatchRequest) -> Result<Mailbox, ReadError> {
        let shared = &self.shared;
        let current_revision = async || shared.storage.current_revision().await.map_err(ReadError::from_store);
        let after = match request.from {
            WatchFrom::InitialEvents { at, mark_end } => {
                let mark_end = mark_end && request.bookmarks;
                let required = match at {
                    ReadAt::MostRecent => current_revision().await?,
                    ReadAt::NotOlderThan(revision) | ReadAt::Exact(revision) => revision,
                    ReadAt::Any => Revision::ZERO,
                };
                let consistent = at == ReadAt::MostRecent;
                let progress = shared.storage.capabilities().progress_requests;
                // Without truthful progress a quiet cache cannot know how fresh it is: the store
                // shows the state, and the cache goes on from there.
                let hopeless = consistent && !progress && shared.revision() < required;
                let replay = async {
                    shared.reach(required).await?;
                    self.replay_cache(filter, required, mark_end)
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
            WatchFrom::Now(_) => current_revision().await?,
            WatchFrom::After(revision) => revision,
        };
        let cache = shared.cache.read();
        match cache.history().place_after(after) {
            Ok(place) => Ok(Mailbox::from_history(place, after)),
            Err(_) => Ok(Mailbox::closed(Some(shared.expired(after, cache.history().floor())))),
        }
    }

    /// The current state of the cache, which is to be at `required` or later, as initial events.
    ///
    /// # Errors
    /// [`ReadError::Undecodable`]: a client would take what is left out for deleted.
    fn replay_cache(&self, filter: &Arc<Filter>, required: Revision, mark_end: bool) -> Result<Mailbox, ReadError> {
        let shared = &self.shared;
        let (snapshot, revision, place) = {
            let cache = shared.cache.read();
            refuse_undecodable(undecodable_in(&cache, filter))?;
            (cache.snapshot().clone(), cache.revision(), cache.history().end())
        };
        Shared::check_reached(required, revision)?;
        let items = ListItems::walk(snapshot, filter.clone(), shared.config.shape.clone(), "");
        shared.counters.replays.fetch_add(1, Relaxed);
        let replay = Replay::new(items.counted(&shared.counters), mark_end.then_some(revision), place);
        Ok(Mailbox::replay(replay, revision))
    }

    /// The store's state as initial events. The live part begins behind its revision, wherever the
    /// cache is: ahead (then in the history) or behind (then what is older is left out).
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
        match cache.history().place_after(revision) {
            Ok(place) => {
                shared.counters.replays.fetch_add(1, Relaxed);
                Ok(Mailbox::replay(Replay::new(items, mark_end.then_some(revision), place), revision))
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
            // A stop that came first has told everyone it knew of.
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

/// The keys in the scope of a filter whose values are no objects, at most [`UNDECODABLE_KEYS_MAX`].
fn undecodable_in(cache: &Cache, filter: &Filter) -> Vec<Key> {
    cache.undecodable().filter(|key| filter.covers(key)).take(UNDECODABLE_KEYS_MAX).cloned().collect()
}

/// Refuses an initial state that would leave something out.
pub(crate) fn refuse_undecodable(keys: Vec<Key>) -> Result<(), ReadError> {
    if keys.is_empty() { Ok(()) } else { Err(ReadError::Undecodable { keys }) }
}

impl Readiness {
    /// The next state after a successful list; a stop is final.
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
