//! The loop that keeps the registry in step with the stored definitions and writes their status: a thin shell
//! around [`Catalog`].

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use listwatch_cacher::{Cacher, Delivery, List, ReadError, Scope, UNDECODABLE_KEYS_MAX, Watcher};
use listwatch_meta::status::reason;
use listwatch_meta::{
    Change, FieldSelector, Key, LabelSelector, ListRequest, ReadAt, Revision, Status, WatchFrom, WatchRequest,
};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::catalog::{Catalog, Reserved, StatusWork, Work};
use super::{GROUP, PLURAL, VERSION, cleanup};
use crate::backend::Backend;
use crate::controllers::survive;
use crate::registry::Resource;
use crate::write::{self, Amendment};
use listwatch_kinds::definitions::{set_accepted, set_condition};

/// The name of this loop in what `/readyz` says.
pub(crate) const NAME: &str = "definitions";
/// A watch of the definitions is renewed after this time; any value does.
const WATCH_TIME: Duration = Duration::from_secs(3600);
/// A definition whose objects cannot all be read is worked on again after this time.
const RETRY_UNREADABLE: Duration = Duration::from_secs(10);
/// Definitions that cannot be read are looked for each time that this has passed.
const REPORT_UNREADABLE: Duration = Duration::from_secs(5);
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
    /// Whether this is the resource of definitions.
    pub(crate) fn is_resource(&self, resource: &Resource) -> bool {
        !resource.custom && resource.group == GROUP && resource.plural == PLURAL
    }

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
    // From the cache that the watch will read from, so that each definition is kept once.
    let cacher = backend.cacher(&definitions);
    tokio::time::timeout(LOAD_MAX, cacher.wait_ready())
        .await
        .map_err(|_| Status::timeout("the store did not list the definitions"))?
        .map_err(|error| error.status(definitions.gr()))?;
    relist(backend, &cacher, &definitions).await?;
    install(backend);
    Ok(())
}

async fn list(cacher: &Cacher, definitions: &Resource, at: ReadAt) -> Result<List, Status> {
    let everything = ListRequest {
        at,
        limit: None,
        resume: None,
        labels: LabelSelector::default(),
        fields: FieldSelector::default(),
        shard: None,
    };
    cacher.list(&Scope::All, &everything).await.map_err(|error| error.status(definitions.gr()))
}

/// Brings the catalog to the state of the store, and returns the revision of that state. A definition that
/// cannot be read stays as it was known last.
async fn relist(backend: &Backend, cacher: &Cacher, definitions: &Resource) -> Result<Revision, Status> {
    let List { revision, items, undecodable, .. } = list(cacher, definitions, ReadAt::MostRecent).await?;
    let mut there: HashSet<String> = undecodable.iter().map(|key| key.name().to_owned()).collect();
    // Behind that many, a definition that is missing from the list may be unreadable.
    let complete = undecodable.len() < UNDECODABLE_KEYS_MAX;
    let mut catalog = backend.definitions().catalog.lock();
    for object in items {
        there.insert(object.name().to_owned());
        catalog.handle(Change::Added, &object);
    }
    if complete {
        catalog.retain(|name| there.contains(name));
    }
    drop(catalog);
    backend.problems().set(NAME, unreadable_problem(definitions, undecodable));
    Ok(revision)
}

/// Why not all definitions that are stored are served; `None` when all of them can be read.
///
/// # Errors
/// The failure of the store.
pub(crate) async fn unreadable(backend: &Backend, at: ReadAt) -> Result<Option<String>, Status> {
    let Some(definitions) = resource(backend) else { return Ok(None) };
    let list = list(&backend.cacher(&definitions), &definitions, at).await?;
    Ok(unreadable_problem(&definitions, list.undecodable))
}

fn unreadable_problem(definitions: &Resource, keys: Vec<Key>) -> Option<String> {
    (!keys.is_empty()).then(|| ReadError::Undecodable { keys }.status(definitions.gr()).message)
}

/// Reports the definitions that cannot be read.
async fn report_unreadable(backend: &Backend) {
    match unreadable(backend, ReadAt::Any).await {
        Ok(problem) => backend.problems().set(NAME, problem),
        Err(status) => tracing::debug!(%status, "cannot list definitions"),
    }
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
///
/// The watch shows every definition that can be read, and ends when one of them becomes unreadable. The
/// list that follows names that one and has all others. A definition that could never be read shows only in
/// lists, so the loop makes one every [`REPORT_UNREADABLE`].
pub(crate) async fn run(backend: Arc<Backend>) {
    let Some(resource) = resource(&backend) else { return };
    let running = JoinSet::new();
    let mut jobs =
        Jobs { backend: Arc::clone(&backend), resource: Arc::clone(&resource), running, state: State::default() };
    let mut report = tokio::time::interval(REPORT_UNREADABLE);
    report.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut watcher = match follow(&backend, &resource).await {
            Ok(watcher) => watcher,
            Err(status) => {
                tracing::warn!(%status, "cannot watch definitions");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        jobs.add(install(&backend));
        loop {
            tokio::select! {
                delivery = watcher.next() => {
                    let Some(delivery) = delivery else { break };
                    let mut next = Some(Some(delivery));
                    let mut ended = false;
                    let mut taken = 0;
                    while let Some(delivery) = next.take() {
                        match delivery {
                            Some(delivery) => ended = take(&backend, delivery).is_err(),
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
                    // An event may have been the repair.
                    if backend.problems().get(NAME).is_some() {
                        report_unreadable(&backend).await;
                    }
                }
                Some(name) = jobs.next() => jobs.finish(&name),
                _ = report.tick() => report_unreadable(&backend).await,
            }
        }
    }
}

/// Takes in one delivery.
fn take(backend: &Backend, delivery: Delivery) -> Result<(), ()> {
    match delivery {
        Delivery::Event(event) => backend.definitions().catalog.lock().handle(event.change(), event.object()),
        Delivery::Bookmark { .. } => {}
        Delivery::Error(status) => {
            tracing::warn!(%status, "the watch of definitions ended");
            return Err(());
        }
    }
    Ok(())
}

/// Lists the definitions into the catalog, and watches them from there on.
async fn follow(backend: &Backend, definitions: &Resource) -> Result<Watcher, Status> {
    let cacher = backend.cacher(definitions);
    let revision = relist(backend, &cacher, definitions).await?;
    let request = WatchRequest {
        from: WatchFrom::After(revision),
        bookmarks: true,
        timeout_seconds: None,
        labels: LabelSelector::default(),
        fields: FieldSelector::default(),
        shard: None,
    };
    let watcher = cacher.watch(&Scope::All, &request, Instant::now() + WATCH_TIME).await;
    watcher.map_err(|error| error.status(definitions.gr()))
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
