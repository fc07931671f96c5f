//! Updates the registry from the stored CustomResourceDefinitions and writes their status. This controller performs the
//! I/O for [`Definitions`](listwatch_registry::Definitions).

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use listwatch_cacher::{Cacher, Delivery, List, ReadError, Scope, UNDECODABLE_KEYS_MAX, UndecodableValue, Watcher};
use listwatch_json::Map;
use listwatch_meta::status::reason;
use listwatch_meta::{FieldSelector, LabelSelector, ListRequest, ReadAt, Revision, Status, WatchFrom, WatchRequest};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use crate::controllers::catch_panic;
use listwatch_registry::{SchemaWork, StatusWork, Work};
use listwatch_validation::clock::Clock;
use listwatch_write::Writer;

mod cleanup;
use listwatch_apiextensions::{non_structural_condition, remove_condition, set_accepted, set_condition};
use listwatch_registry::Resource;
use listwatch_write::Amendment;

/// The name of this controller in the output of `/readyz`.
pub(crate) const NAME: &str = "definitions";
/// Maximum duration of one watch of the definitions. Any value is correct, because an ended watch is restarted.
const WATCH_TIME: Duration = Duration::from_secs(3600);
/// Delay before the objects of a definition are deleted again after an unreadable object was found.
const RETRY_UNREADABLE: Duration = Duration::from_secs(10);
/// Interval between two checks for unreadable definitions.
const REPORT_UNREADABLE: Duration = Duration::from_secs(5);
/// Delay before the next attempt after a failed watch or a failed status update.
const RETRY: Duration = Duration::from_secs(1);
/// Delay before the next job for a definition after a job for that definition panicked.
const RETRY_BROKEN: Duration = Duration::from_secs(5);
/// Timeout for reading the definitions at start. The server does not start after this timeout.
const LOAD_MAX: Duration = Duration::from_secs(60);
/// Delay before the first retry of a failed read at start. Each failure doubles the delay.
const LOAD_PAUSE_MIN: Duration = Duration::from_millis(20);
/// Maximum delay between two reads at start.
const LOAD_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Maximum number of definitions with a running job; the others wait.
const JOBS_AT_ONCE: usize = 8;
/// Length of the pause after a replacement of the registry, as a multiple of the duration of the replacement.
const INSTALL_PAUSES: u32 = 4;
/// Maximum pause after an update of the registry.
const INSTALL_PAUSE_MAX: Duration = Duration::from_millis(50);
/// Maximum number of events that are applied before the registry is rebuilt.
const BATCH_EVENTS_MAX: usize = 1000;

/// Loads the stored definitions into the registry. A server calls this before it accepts requests, so that no
/// custom resource is reported as missing.
///
/// A failing store is retried for at most [`LOAD_MAX`], because the store may start together with the server.
///
/// # Errors
/// The last error of the store.
pub async fn load(writer: &Writer) -> Result<(), Status> {
    let deadline = tokio::time::Instant::now() + LOAD_MAX;
    let mut pause = LOAD_PAUSE_MIN;
    loop {
        match load_once(writer).await {
            Err(status) if tokio::time::Instant::now() + pause < deadline => {
                tracing::warn!(error = status.message, "the definitions of custom resources cannot be read yet");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LOAD_PAUSE_MAX);
            }
            outcome => return outcome,
        }
    }
}

async fn load_once(writer: &Writer) -> Result<(), Status> {
    let Some(definitions) = writer.backend().definitions_resource() else { return Ok(()) };
    // The list comes from the cache that the watch reads later, so each definition is kept in memory once.
    let cacher = writer.backend().cacher(&definitions);
    tokio::time::timeout(LOAD_MAX, cacher.wait_ready())
        .await
        .map_err(|_| Status::timeout("the store did not list the definitions"))?
        .map_err(|error| error.status(definitions.gr()))?;
    relist(writer, &cacher, &definitions).await?;
    install(writer);
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

/// Lists the definitions into the catalog and returns the revision of the list. An unreadable definition keeps its
/// last known state.
async fn relist(writer: &Writer, cacher: &Cacher, definitions: &Resource) -> Result<Revision, Status> {
    let List { revision, items, undecodable, .. } = list(cacher, definitions, ReadAt::MostRecent).await?;
    let mut there: HashSet<String> = undecodable.iter().map(|value| value.key.name().to_owned()).collect();
    // If the list of unreadable keys is full, a definition missing from the list may be unreadable.
    let complete = undecodable.len() < UNDECODABLE_KEYS_MAX;
    let items: Vec<_> = items.collect();
    there.extend(items.iter().map(|object| object.name().to_owned()));
    let keep = |name: &str| there.contains(name);
    writer.backend().definitions().relist(items, complete.then_some(&keep));
    writer.backend().problems().set(NAME, unreadable_problem(definitions, undecodable));
    Ok(revision)
}

/// Describes the stored definitions that are not served because they cannot be read. Returns `None` if all
/// definitions are readable.
///
/// # Errors
/// The error of the store.
pub(crate) async fn unreadable(writer: &Writer, at: ReadAt) -> Result<Option<String>, Status> {
    let Some(definitions) = writer.backend().definitions_resource() else { return Ok(None) };
    let list = list(&writer.backend().cacher(&definitions), &definitions, at).await?;
    Ok(unreadable_problem(&definitions, list.undecodable))
}

fn unreadable_problem(definitions: &Resource, values: Vec<UndecodableValue>) -> Option<String> {
    (!values.is_empty()).then(|| ReadError::Undecodable(values).status(definitions.gr()).message)
}

/// Sets the problem of this controller to the definitions that cannot be read.
async fn report_unreadable(writer: &Writer) {
    match unreadable(writer, ReadAt::Any).await {
        Ok(problem) => writer.backend().problems().set(NAME, problem),
        Err(status) => tracing::debug!(%status, "cannot list definitions"),
    }
}

/// Updates the registry from the catalog and wakes the requests that wait for a definition. Returns the resulting work,
/// and the duration of the replacement of the registry; `None` if its resources are unchanged.
fn install(writer: &Writer) -> (Vec<Work>, Option<Duration>) {
    let backend = writer.backend();
    backend.definitions().apply_changes(|resources| backend.install(resources))
}

/// Updates the registry, then applies no events during the [`pause`]. All events that arrive meanwhile share the next
/// update.
async fn install_and_pause(writer: &Writer, jobs: &mut Jobs) {
    let begun = std::time::Instant::now();
    let (work, replaced_in) = install(writer);
    let pause = pause(begun.elapsed(), replaced_in);
    jobs.add(work);
    jobs.run_for(pause).await;
}

/// The pause after an update of the registry: as long as the update, or [`INSTALL_PAUSES`] times as long as the replacement
/// of the registry, if that is more. The duration of a replacement grows with the number of all definitions, so the
/// creation of many definitions would take quadratic time without the pause.
fn pause(updated_in: Duration, replaced_in: Option<Duration>) -> Duration {
    updated_in.max(replaced_in.unwrap_or_default() * INSTALL_PAUSES).min(INSTALL_PAUSE_MAX)
}

/// Runs the controller until the future is dropped.
///
/// The watch delivers every readable definition, and ends when a definition becomes unreadable. The following list
/// names the unreadable definition and contains all others. A definition that was never readable appears only in
/// lists, so the controller makes a list every [`REPORT_UNREADABLE`].
pub async fn run(writer: Arc<Writer>) {
    let Some(resource) = writer.backend().definitions_resource() else { return };
    let running = JoinSet::new();
    let mut jobs =
        Jobs { writer: Arc::clone(&writer), resource: Arc::clone(&resource), running, state: State::default() };
    let mut report = tokio::time::interval(REPORT_UNREADABLE);
    report.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut watcher = match follow(&writer, &resource).await {
            Ok(watcher) => watcher,
            Err(status) => {
                tracing::warn!(%status, "cannot watch definitions");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        jobs.add(install(&writer).0);
        loop {
            tokio::select! {
                delivery = watcher.next() => {
                    let Some(delivery) = delivery else { break };
                    let mut next = Some(Some(delivery));
                    let mut ended = false;
                    let mut taken = 0;
                    while let Some(delivery) = next.take() {
                        match delivery {
                            Some(delivery) => ended = take(&writer, delivery).is_err(),
                            None => ended = true,
                        }
                        taken += 1;
                        if !ended && taken < BATCH_EVENTS_MAX {
                            next = watcher.next().now_or_never();
                        }
                    }
                    install_and_pause(&writer, &mut jobs).await;
                    if ended {
                        // The delay keeps this loop from spinning on a store that fails immediately.
                        tokio::time::sleep(RETRY).await;
                        break;
                    }
                    // The event may have replaced an unreadable definition.
                    if writer.backend().problems().get(NAME).is_some() {
                        report_unreadable(&writer).await;
                    }
                }
                Some(name) = jobs.next() => jobs.finish(&name),
                _ = report.tick() => report_unreadable(&writer).await,
            }
        }
    }
}

/// Applies one delivery of the watch to the catalog.
fn take(writer: &Writer, delivery: Delivery) -> Result<(), ()> {
    match delivery {
        Delivery::Event(event) => writer.backend().definitions().handle(event.change(), event.object()),
        Delivery::Bookmark { .. } => {}
        Delivery::Error(status) => {
            tracing::warn!(%status, "the watch of definitions ended");
            return Err(());
        }
    }
    Ok(())
}

/// Lists the definitions into the catalog, then watches them from the revision of the list.
async fn follow(writer: &Writer, definitions: &Resource) -> Result<Watcher, Status> {
    let cacher = writer.backend().cacher(definitions);
    let revision = relist(writer, &cacher, definitions).await?;
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

/// The running jobs, at most one per definition.
struct Jobs {
    writer: Arc<Writer>,
    resource: Arc<Resource>,
    /// Each job returns the name of its definition, and whether the definition may need another job.
    running: JoinSet<(String, bool)>,
    state: State,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    busy: BTreeSet<String>,
    /// Definitions that may need another job after the running one: they changed meanwhile, or the job says so.
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
                Work::CheckSchemas(check) => check.name.clone(),
                Work::Clean(name) => name.clone(),
            };
            if !self.state.busy.insert(name.clone()) {
                self.state.again.insert(name);
                continue;
            }
            let (writer, resource) = (Arc::clone(&self.writer), Arc::clone(&self.resource));
            self.running.spawn(async move {
                let work = async {
                    match work {
                        Work::Status(status) => write_status(&writer, &resource, status).await.map(|()| false),
                        // The result may need a write.
                        Work::CheckSchemas(check) => check_schemas(&writer, check).await.map(|()| true),
                        Work::Clean(name) => cleanup::clean(&writer, &resource, &name).await.map(|()| false),
                    }
                };
                let done = catch_panic(&name, work).await;
                match &done {
                    Some(Ok(_)) => {}
                    Some(Err(status)) => {
                        tracing::warn!(definition = name, %status, "cannot update a definition");
                        // Each attempt reads all objects of the kind.
                        let unreadable = status.reason == reason::STORAGE_READ_ERROR;
                        tokio::time::sleep(if unreadable { RETRY_UNREADABLE } else { RETRY }).await;
                    }
                    None => tokio::time::sleep(RETRY_BROKEN).await,
                }
                (name, !matches!(done, Some(Ok(false))))
            });
        }
    }

    /// Starts jobs as others end, for this time.
    async fn run_for(&mut self, time: Duration) {
        let mut end = std::pin::pin!(tokio::time::sleep(time));
        loop {
            tokio::select! {
                () = &mut end => return,
                Some(name) = self.next() => self.finish(&name),
            }
        }
    }

    /// Waits for a job to end. Never completes while no job is running.
    async fn next(&mut self) -> Option<String> {
        match self.running.join_next().await {
            Some(Ok((name, again))) => {
                if again {
                    self.state.again.insert(name.clone());
                }
                Some(name)
            }
            Some(Err(error)) => {
                // Jobs are never canceled, and their panics are caught.
                tracing::error!(%error, "a job about a definition ended unexpectedly");
                Some(String::new())
            }
            None => None,
        }
    }

    fn finish(&mut self, name: &str) {
        self.state.busy.remove(name);
        if self.state.again.remove(name) {
            let work = self.writer.backend().definitions().pending_work(name);
            self.state.waiting.extend(work);
        }
        self.start();
    }
}

/// Writes a status update to a definition, unless the stored definition has another uid or generation.
async fn write_status(writer: &Writer, resource: &Resource, work: StatusWork) -> Result<(), Status> {
    let now = Clock::default().now();
    let key = resource.key(None, &work.name)?;
    writer
        .amend(resource, &key, |tree: &mut Map| {
            let metadata = tree.get("metadata");
            let uid = metadata.and_then(|metadata| metadata.get("uid")?.as_str());
            let generation = metadata.and_then(|metadata| metadata.get("generation")?.as_i64());
            // A definition that another program put into the store may have no uid.
            if uid.unwrap_or_default() != work.uid || generation.unwrap_or_default() != work.generation {
                return Amendment::Leave;
            }
            set_accepted(tree, &work.accepted);
            for condition in &work.conditions {
                set_condition(tree, condition, &now);
            }
            for kind in &work.removed_conditions {
                remove_condition(tree, kind);
            }
            Amendment::Write
        })
        .await
}

/// Checks the schemas of a definition, and passes the result to the catalog.
async fn check_schemas(writer: &Writer, work: SchemaWork) -> Result<(), Status> {
    let source = work.source.clone();
    // The check compiles each regular expression of the schemas, and the I/O workers answer requests.
    let check = move || serde_json::from_slice(&source).map(|definition: Map| non_structural_condition(&definition));
    let condition = tokio::task::spawn_blocking(check).await.map_err(Status::internal)?.map_err(Status::internal)?;
    writer.backend().definitions().schemas_checked(&work, condition);
    Ok(())
}

#[cfg(test)]
mod tests {
    use listwatch_apiextensions::Names;
    use listwatch_storage::MemoryStorage;
    use listwatch_write::testing;

    use super::*;

    #[test]
    fn pause_grows_with_the_replacement_of_the_registry_up_to_a_limit() {
        let ms = Duration::from_millis;
        assert_eq!(pause(ms(3), None), ms(3), "an update without a replacement");
        assert_eq!(pause(ms(5), Some(ms(2))), ms(8));
        assert_eq!(pause(ms(9), Some(ms(2))), ms(9), "many new definitions");
        assert_eq!(pause(ms(30), Some(ms(20))), INSTALL_PAUSE_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn all_waiting_jobs_run_during_the_pause_after_an_update() {
        let writer = Arc::new(testing::writer(MemoryStorage::new()));
        let resource = writer.backend().definitions_resource().expect("the resource of definitions");
        let mut jobs = Jobs { writer, resource, running: JoinSet::new(), state: State::default() };
        // These definitions do not exist, so each job ends after one read.
        let status = |n: usize| StatusWork {
            name: format!("widget{n}s.example.com"),
            uid: String::new(),
            generation: 1,
            accepted: Names::default(),
            conditions: Vec::new(),
            removed_conditions: Vec::new(),
        };
        jobs.add((0..3 * JOBS_AT_ONCE).map(|n| Work::Status(status(n))).collect());
        assert_eq!(jobs.running.len(), JOBS_AT_ONCE);
        jobs.run_for(INSTALL_PAUSE_MAX).await;
        assert_eq!((jobs.running.len(), jobs.state.waiting.len()), (0, 0));
    }
}
