//! The loop that keeps the registry as the definitions are, and writes what it came to into their
//! status: a thin shell around [`Catalog`].

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use listwatch_cacher::{Cacher, Delivery, Scope, Watcher};
use listwatch_meta::status::reason;
use listwatch_meta::{
    Change, FieldSelector, LabelSelector, ListRequest, ReadAt, Revision, Status, WatchFrom, WatchRequest,
};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::catalog::{Catalog, Reserved, StatusWork, Work};
use super::status::{set_accepted, set_condition};
use super::{GROUP, PLURAL, VERSION, cleanup};
use crate::backend::Backend;
use crate::controllers::survive;
use crate::registry::Resource;
use crate::write::{self, Amendment};

/// The name of this loop in what `/readyz` says.
pub(crate) const NAME: &str = "definitions";
/// A watch of the definitions is renewed after this time; any value does.
const WATCH_TIME: Duration = Duration::from_secs(3600);
/// A definition whose objects cannot all be read is worked on again after this time.
const RETRY_UNREADABLE: Duration = Duration::from_secs(10);
/// After a failed watch, or a status that could not be written, the next attempt begins so much later.
const RETRY: Duration = Duration::from_secs(1);
/// After a job that panicked, the next one for the same definition begins so much later.
const RETRY_BROKEN: Duration = Duration::from_secs(5);
/// A server that cannot read the definitions within this time does not start.
const LOAD_MAX: Duration = Duration::from_secs(60);
/// The store is asked again after this, and after twice as long each time that it fails…
const LOAD_PAUSE_MIN: Duration = Duration::from_millis(20);
/// …up to this.
const LOAD_PAUSE_MAX: Duration = Duration::from_secs(2);
/// So many definitions are written to, or have their objects removed, at the same time; more wait.
const JOBS_AT_ONCE: usize = 8;
/// A request waits so long for this server to serve a definition that is stored; then it is answered as if
/// the definition were not there yet.
const CATCH_UP_MAX: Duration = Duration::from_secs(3);
/// So many events are taken in before the registry is made anew.
const BATCH_EVENTS_MAX: usize = 1000;

/// What this server knows of the definitions.
pub(crate) struct Definitions {
    catalog: Mutex<Catalog>,
    /// Counts how often the catalog was brought up to date.
    applied: watch::Sender<u64>,
}

impl Definitions {
    /// Nothing is known yet, and these resources are built in.
    pub(crate) fn new(builtin: &[Arc<Resource>]) -> Self {
        Definitions { catalog: Mutex::new(Catalog::new(Reserved::of(builtin))), applied: watch::Sender::new(0) }
    }

    /// Waits until this server serves what a definition says that is in the store now. False when
    /// there is no such definition, or it took too long.
    pub(crate) async fn catch_up(&self, backend: &Backend, group: &str, plural: &str) -> bool {
        let Some(definitions) = resource(backend) else { return false };
        let name = format!("{plural}.{group}");
        let Ok(key) = definitions.key(None, &name) else { return false };
        match backend.storage().get(&key).await {
            Ok((Some(found), _)) => self.has_settled(&name, found.modified).await,
            _ => false,
        }
    }

    /// Waits until this server has seen a definition in this state or a later one, and has written its
    /// conditions. False when it took too long.
    pub(crate) async fn has_settled(&self, name: &str, revision: Revision) -> bool {
        let mut applied = self.applied.subscribe();
        let seen = async {
            while !self.catalog.lock().is_settled(name, revision) {
                if applied.changed().await.is_err() {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(CATCH_UP_MAX, seen).await.unwrap_or(false)
    }
}

fn resource(backend: &Backend) -> Option<Arc<Resource>> {
    backend.registry().find(GROUP, VERSION, PLURAL).cloned()
}

/// Serves the definitions that are in the store: before the first request, so that none is answered
/// as if they were not there.
///
/// A store that fails is asked again, as a server may start together with it; at most [`LOAD_MAX`].
///
/// # Errors
/// What the store said last.
pub(crate) async fn load(backend: &Backend) -> Result<(), Status> {
    let deadline = tokio::time::Instant::now() + LOAD_MAX;
    let mut pause = LOAD_PAUSE_MIN;
    loop {
        match load_once(backend).await {
            Err(status) if tokio::time::Instant::now() + pause < deadline => {
                tracing::warn!(error = status.message, "the definitions of custom resources cannot be read yet");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LOAD_PAUSE_MAX);
            }
            outcome => return outcome,
        }
    }
}

async fn load_once(backend: &Backend) -> Result<(), Status> {
    let Some(definitions) = resource(backend) else { return Ok(()) };
    // Out of the cache that the watch will read from, so that each definition is kept once.
    let cacher = backend.cacher(&definitions);
    tokio::time::timeout(LOAD_MAX, cacher.wait_ready())
        .await
        .map_err(|_| Status::timeout("the store did not list the definitions"))?
        .map_err(|error| error.status(definitions.gr()))?;
    let everything = ListRequest {
        at: ReadAt::MostRecent,
        limit: None,
        resume: None,
        labels: LabelSelector::default(),
        fields: FieldSelector::default(),
        shard: None,
    };
    let list = cacher.list(&Scope::All, &everything).await.map_err(|error| error.status(definitions.gr()))?;
    let mut catalog = backend.definitions().catalog.lock();
    list.items.for_each(|object| catalog.handle(Change::Added, &object));
    drop(catalog);
    let unreadable = list.undecodable.first().map(|key| format!("the definition at {key} cannot be read"));
    backend.problems().set(NAME, unreadable);
    install(backend);
    Ok(())
}

/// Brings the registry up to date with the catalog, and tells who waits for that.
fn install(backend: &Backend) -> Vec<Work> {
    let definitions = backend.definitions();
    let mut catalog = definitions.catalog.lock();
    catalog.settle();
    if let Some(resources) = catalog.take_changed() {
        backend.install(&resources);
    }
    let work = catalog.work();
    drop(catalog);
    definitions.applied.send_modify(|count| *count += 1);
    work
}

/// Follows the definitions, for as long as it is polled.
pub(crate) async fn run(backend: Arc<Backend>) {
    let Some(resource) = resource(&backend) else { return };
    let cacher = backend.cacher(&resource);
    let mut jobs = Jobs { backend: Arc::clone(&backend), resource, running: JoinSet::new(), state: State::default() };
    loop {
        let mut watcher = match follow(&cacher).await {
            Ok(watcher) => watcher,
            Err(why) => {
                tracing::warn!(%why, "cannot watch definitions");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let mut initial = Some(HashSet::new());
        loop {
            tokio::select! {
                delivery = watcher.next() => {
                    let Some(delivery) = delivery else { break };
                    let mut next = Some(Some(delivery));
                    let mut ended = false;
                    let mut taken = 0;
                    while let Some(delivery) = next.take() {
                        match delivery {
                            Some(delivery) => ended = take(&backend, delivery, &mut initial).is_err(),
                            None => ended = true,
                        }
                        taken += 1;
                        if !ended && taken < BATCH_EVENTS_MAX {
                            next = watcher.next().now_or_never();
                        }
                    }
                    jobs.add(install(&backend));
                    if ended {
                        // Without the pause a store that fails at once would make this loop spin.
                        tokio::time::sleep(RETRY).await;
                        break;
                    }
                }
                Some(name) = jobs.next() => jobs.finish(&name),
            }
        }
    }
}

/// Takes in one delivery. `initial` collects what a watch began with, until its end.
fn take(backend: &Backend, delivery: Delivery, initial: &mut Option<HashSet<String>>) -> Result<(), ()> {
    let mut catalog = backend.definitions().catalog.lock();
    match delivery {
        Delivery::Event(event) => {
            if let Some(initial) = initial {
                initial.insert(event.object().name().to_owned());
            }
            catalog.handle(event.change(), event.object());
        }
        Delivery::Bookmark { initial_events_end: true, .. } => {
            if let Some(there) = initial.take() {
                catalog.retain(|name| there.contains(name));
            }
            backend.problems().set(NAME, None);
        }
        Delivery::Bookmark { .. } => {}
        Delivery::Error(status) => {
            tracing::warn!(%status, "the watch of definitions ended");
            // What is known stays as it is: a definition that cannot be read is not gone.
            if status.reason == reason::STORAGE_READ_ERROR {
                backend.problems().set(NAME, Some(status.message));
            }
            return Err(());
        }
    }
    Ok(())
}

async fn follow(cacher: &Cacher) -> Result<Watcher, String> {
    let request = WatchRequest {
        from: WatchFrom::InitialEvents { at: ReadAt::MostRecent, mark_end: true },
        bookmarks: true,
        timeout_seconds: None,
        labels: LabelSelector::default(),
        fields: FieldSelector::default(),
        shard: None,
    };
    cacher.watch(&Scope::All, &request, Instant::now() + WATCH_TIME).await.map_err(|error| error.to_string())
}

/// What is being done about definitions, one job for each at most.
struct Jobs {
    backend: Arc<Backend>,
    resource: Arc<Resource>,
    running: JoinSet<(String, bool)>,
    state: State,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    busy: BTreeSet<String>,
    /// They changed while somebody was busy with them.
    again: BTreeSet<String>,
}

impl Jobs {
    fn add(&mut self, work: Vec<Work>) {
        self.state.waiting.extend(work);
        self.start();
    }

    fn start(&mut self) {
        while self.running.len() < JOBS_AT_ONCE
            && let Some(work) = self.state.waiting.pop_front()
        {
            let name = match &work {
                Work::Status(status) => status.name.clone(),
                Work::Clean(name) => name.clone(),
            };
            if !self.state.busy.insert(name.clone()) {
                self.state.again.insert(name);
                continue;
            }
            let (backend, resource) = (Arc::clone(&self.backend), Arc::clone(&self.resource));
            self.running.spawn(async move {
                let work = async {
                    match work {
                        Work::Status(status) => write_status(&backend, &resource, status).await,
                        Work::Clean(name) => cleanup::clean(&backend, &resource, &name).await,
                    }
                };
                let done = survive(&name, work).await;
                match &done {
                    Some(Ok(())) => {}
                    Some(Err(status)) => {
                        tracing::warn!(definition = name, %status, "cannot keep up a definition");
                        // Each try reads the objects of the kind.
                        let unreadable = status.reason == reason::STORAGE_READ_ERROR;
                        tokio::time::sleep(if unreadable { RETRY_UNREADABLE } else { RETRY }).await;
                    }
                    None => tokio::time::sleep(RETRY_BROKEN).await,
                }
                (name, !matches!(done, Some(Ok(()))))
            });
        }
    }

    /// Waits for a job to end; never, when there is none.
    async fn next(&mut self) -> Option<String> {
        match self.running.join_next().await {
            Some(Ok((name, failed))) => {
                if failed {
                    self.state.again.insert(name.clone());
                }
                Some(name)
            }
            Some(Err(error)) => {
                // Nobody cancels a job, and its panics are caught.
                tracing::error!(%error, "a job about a definition broke off");
                Some(String::new())
            }
            None => None,
        }
    }

    fn finish(&mut self, name: &str) {
        self.state.busy.remove(name);
        if self.state.again.remove(name) {
            let work = self.backend.definitions().catalog.lock().work_of(name);
            self.state.waiting.extend(work);
        }
        self.start();
    }
}

/// Writes what was decided about a definition into its status, if the definition is still the one
/// that it was decided about.
async fn write_status(backend: &Backend, resource: &Resource, work: StatusWork) -> Result<(), Status> {
    let now = write::Clock::default().now();
    let key = resource.key(None, &work.name)?;
    write::amend(backend, resource, &key, |tree: &mut Map<String, Value>| {
        let metadata = tree.get("metadata");
        let uid = metadata.and_then(|metadata| metadata.get("uid")?.as_str());
        let generation = metadata.and_then(|metadata| metadata.get("generation")?.as_i64());
        if uid != Some(&work.uid) || generation.unwrap_or_default() != work.generation {
            return Amendment::Leave;
        }
        set_accepted(tree, &work.accepted);
        for condition in &work.conditions {
            set_condition(tree, condition, &now);
        }
        Amendment::Write
    })
    .await
}
