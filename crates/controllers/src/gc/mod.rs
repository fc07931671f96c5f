//! Garbage collection by owner references (`pkg/controller/garbagecollector`).
//!
//! ```text
//!   store: list, then one watch of everything ─▶ facts ─▶ Graph ─▶ Job ─▶ live reads ─▶ decide_dependent ─▶ write
//!                                                          ▲                                      │
//!                                                          └───────────── an event ◀──────────────┘
//! ```
//!
//! - An object is deleted if it has owner references and all owners are absent (background).
//! - An object deleted with `propagationPolicy=Foreground` stays until its blocking dependents are deleted.
//! - An object deleted with `propagationPolicy=Orphan` stays until its dependents no longer refer to the object.
//!
//! The collector watches all kinds with one watch of the store. The watch delivers all events in one order, starts no
//! cache for kinds that no client reads, and includes kinds that are defined later. The collector keeps only references
//! in memory, no objects; see [`graph`].
//!
//! The collector never deletes an object based on the references in memory alone. Before a deletion, the collector
//! reads the object and each owner from the store. The deletion has the uid and resource version of that read as
//! preconditions. If another client writes a reference in between, the deletion fails with a conflict. Several servers
//! on one store may therefore all run the collector. Events are neither owners nor dependents.
//!
//! An unreadable value is an existing object and is never treated as absent: see [`unreadable`].

mod facts;
mod graph;
#[cfg(test)]
mod tests;
mod unreadable;
mod work_queue;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use listwatch_json::{Value, json};
use listwatch_meta::{Key, KeyRange, Revision, Status};
use listwatch_storage::{KeyValue, ListQuery, ReadError, StoreEvent, Watch, WatchItem};
use listwatch_wire::query::Query;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::facts::{DeletionState, Facts, OwnerRef};
use self::graph::{CrossNamespaceReference, DependentAction, Graph, Job, OwnerState, Report, decide_dependent};
use self::unreadable::{Blocked, Unreadable};
use listwatch_meta::UserInfo;
use listwatch_registry::{Registry, Resource};
use listwatch_validation::clock::Clock;
use listwatch_validation::object_meta::{FINALIZER_FOREGROUND, FINALIZER_ORPHAN};
use listwatch_write::Writer;
use listwatch_write::{Propagation, WriteRequest, WriteVerb};

/// Maximum number of concurrent jobs; the others wait.
const JOBS_AT_ONCE: usize = 16;
/// Number of objects per page when the store is listed.
const PAGE_ITEMS: usize = 500;
/// Maximum number of events that are applied before ready jobs are started.
const EVENTS_AT_ONCE: usize = 1_024;
/// Delay before the next list or watch after a failed one.
const WATCH_RETRY: Duration = Duration::from_secs(1);
/// Maximum number of immediate attempts of a write after conflicts with other writers. After that, the job is retried
/// with backoff, like a failed job.
const OVERTAKEN_MAX: usize = 5;
/// The name of this controller in the output of `/readyz`.
const NAME: &str = "garbage collector";
/// User agent of the collector's writes.
const USER_AGENT: &str = "garbage-collector-controller";

/// Runs the garbage collector until the future is dropped.
pub async fn run(writer: Arc<Writer>) {
    let mut collector = Collector {
        writer,
        graph: Graph::default(),
        unreadable: Unreadable::default(),
        started: false,
        jobs: JoinSet::new(),
    };
    loop {
        let why = match collector.list().await {
            Ok(revision) => collector.follow(revision).await,
            Err(error) => error.to_string(),
        };
        tracing::warn!(%why, "the garbage collector starts again");
        tokio::time::sleep(WATCH_RETRY).await;
    }
}

struct Collector {
    writer: Arc<Writer>,
    graph: Graph,
    unreadable: Unreadable,
    /// Whether all values were readable at some time since the server started. No job starts before that.
    started: bool,
    jobs: JoinSet<(Job, Report)>,
}

impl Collector {
    /// Lists the whole store into the graph. Returns the revision of the list.
    async fn list(&mut self) -> Result<Revision, ReadError> {
        self.graph.begin_sync();
        self.unreadable.begin_sync();
        let mut range = KeyRange::below("/");
        let mut at = None;
        loop {
            let query = ListQuery { range: range.clone(), at, limit: PAGE_ITEMS };
            let page = self.writer.backend().storage().list(query).await?;
            at = Some(page.revision);
            let registry = self.writer.backend().registry();
            for item in &page.items {
                self.put(&registry, item);
            }
            match page.items.last().filter(|_| page.more) {
                Some(last) => range = range.starting_at(&format!("{}\0", last.key)),
                None => break,
            }
        }
        self.graph.end_sync();
        Ok(at.unwrap_or(Revision::ZERO))
    }

    /// Watches the store from a revision. Returns the reason why the watch cannot continue.
    async fn follow(&mut self, mut after: Revision) -> String {
        loop {
            let mut watch = match self.writer.backend().storage().watch(KeyRange::below("/"), after).await {
                Ok(watch) => watch,
                Err(error) => {
                    tracing::warn!(%error, "the garbage collector cannot watch the store");
                    tokio::time::sleep(WATCH_RETRY).await;
                    continue;
                }
            };
            match self.work(&mut watch, &mut after).await {
                Some(WatchItem::Expired { .. }) => return "its place in the store's history is gone".to_owned(),
                // The next watch continues after the last event.
                _ => tokio::time::sleep(WATCH_RETRY).await,
            }
        }
    }

    /// Applies events and runs jobs until the watch ends. Returns the last item of the watch.
    async fn work(&mut self, watch: &mut Watch, after: &mut Revision) -> Option<WatchItem> {
        loop {
            self.update_readiness();
            self.begin_jobs();
            let due = self
                .graph
                .due(Instant::now().into_std())
                .map(Instant::from_std)
                .filter(|_| self.started && self.jobs.len() < JOBS_AT_ONCE);
            tokio::select! {
                item = watch.next() => {
                    // All ready events are applied together, so jobs see the state after a burst.
                    let (mut next, mut left) = (item, EVENTS_AT_ONCE);
                    loop {
                        match next {
                            Some(WatchItem::Event(event)) => {
                                *after = event.revision();
                                self.event(event);
                            }
                            Some(WatchItem::Progress(revision)) => *after = revision,
                            end => return end,
                        }
                        left -= 1;
                        if left == 0 {
                            break;
                        }
                        match watch.next().now_or_never() {
                            Some(item) => next = item,
                            None => break,
                        }
                    }
                }
                Some(ended) = self.jobs.join_next() => match ended {
                    Ok((job, report)) => self.ended(&job, report),
                    Err(error) => tracing::error!(%error, "a job of the garbage collector ended unexpectedly"),
                },
                () = sleep_until(due) => {}
            }
        }
    }

    /// Allows jobs to start once all values are readable. Reports unreadable values as the problem of this controller.
    fn update_readiness(&mut self) {
        self.unreadable.handle_registry(&self.writer.backend().registry());
        let problem = self.unreadable.problem();
        self.started |= problem.is_none();
        let consequence = if self.started { "leaves these kinds alone" } else { "does not start" };
        self.writer.backend().problems().set(NAME, problem.map(|problem| format!("{consequence}: {problem}")));
    }

    fn begin_jobs(&mut self) {
        while self.started
            && self.jobs.len() < JOBS_AT_ONCE
            && let Some(job) = self.graph.poll_job(Instant::now().into_std())
        {
            let context = JobContext { writer: Arc::clone(&self.writer), blocked: self.unreadable.blocked().clone() };
            self.jobs.spawn(async move {
                // A job that panics must report its end; otherwise the job would stay marked as running.
                let done = std::panic::AssertUnwindSafe(carry_out(&context, &job)).catch_unwind().await;
                let report = match done {
                    Ok(Ok(report)) => report,
                    Ok(Err(status)) => {
                        tracing::warn!(?job, %status, "a job of the garbage collector failed");
                        Report::Again
                    }
                    Err(_) => Report::Again,
                };
                (job, report)
            });
        }
    }

    fn ended(&mut self, job: &Job, report: Report) {
        self.graph.handle_outcome(job, report, Instant::now().into_std());
        while let Some(reference) = self.graph.poll_cross_namespace_reference() {
            let writer = Arc::clone(&self.writer);
            tracing::warn!(dependent = %reference.key, owner = ?reference.claim, "an owner is not in its dependent's namespace");
            tokio::spawn(async move {
                if let Err(status) = record_event(&writer, &reference).await {
                    tracing::debug!(%status, "an event could not be written");
                }
            });
        }
    }

    fn event(&mut self, event: StoreEvent) {
        match event {
            StoreEvent::Put { current, .. } => {
                let registry = self.writer.backend().registry();
                self.put(&registry, &current);
            }
            StoreEvent::Delete { key, previous, .. } => {
                if is_event(&key) {
                    return;
                }
                self.unreadable.handle_readable(&key);
                let facts = previous.and_then(|previous| Facts::read(&previous.value));
                let uid = facts.as_ref().map(|facts| facts.uid.as_str()).filter(|uid| !uid.is_empty());
                self.graph.handle_delete(&key, uid);
            }
        }
    }

    fn put(&mut self, registry: &Registry, item: &KeyValue) {
        if is_event(&item.key) {
            return;
        }
        let Some(facts) = Facts::read(&item.value) else {
            self.unreadable.handle_unreadable(registry, &item.key);
            self.graph.handle_unreadable(&item.key);
            return;
        };
        self.unreadable.handle_readable(&item.key);
        // A stored object without a uid was not written by an API server. It owns nothing, and its owners are
        // unknown.
        if facts.uid.is_empty() {
            return;
        }
        // The key of an unknown kind still reveals the scope: a name, or a namespace and a name, follows the
        // prefix. The live reads detect a wrong guess.
        let namespace = match registry.find_stored_at(&item.key) {
            Some(resource) if !resource.namespaced => "",
            _ => item.key.namespace(),
        };
        self.graph.handle_put(&item.key, namespace, facts);
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

fn is_event(key: &Key) -> bool {
    key.as_str().starts_with("/events/")
}

/// The context of a job: the writer and the blocked kinds.
struct JobContext {
    writer: Arc<Writer>,
    blocked: Blocked,
}

/// Runs a job.
async fn carry_out(context: &JobContext, job: &Job) -> Result<Report, Status> {
    match job {
        Job::Verify(claim) => {
            let owner = OwnerRef {
                api_version: claim.api_version.clone(),
                kind: claim.kind.clone(),
                name: claim.name.clone(),
                uid: claim.uid.to_string(),
                blocks: false,
            };
            Ok(match find_owner(context, &owner, &claim.namespace).await? {
                OwnerState::Absent => Report::Absent,
                OwnerState::Unknown => Report::Again,
                OwnerState::Solid | OwnerState::Waiting => {
                    Report::Present { namespaced: is_namespaced(&context.writer, &owner) }
                }
                OwnerState::Invalid => Report::Present { namespaced: false },
            })
        }
        Job::Examine { key, uid, owns } => retry_on_conflict(context, Step::Examine { key, uid, owns: *owns }).await,
        Job::Release { key, uid, deletion_state } => {
            retry_on_conflict(context, Step::Release { key, uid, deletion_state: *deletion_state }).await
        }
        Job::Orphan { uid, dependents, .. } => {
            for key in dependents {
                if retry_on_conflict(context, Step::RemoveOwner { key, owner: uid }).await? == Report::Again {
                    return Ok(Report::Again);
                }
            }
            Ok(Report::Done)
        }
    }
}

/// One attempt of a job: a live read and the write based on it.
#[derive(Clone, Copy)]
enum Step<'a> {
    Examine { key: &'a Key, uid: &'a str, owns: bool },
    Release { key: &'a Key, uid: &'a str, deletion_state: DeletionState },
    RemoveOwner { key: &'a Key, owner: &'a str },
}

/// Runs a step. Repeats the step after a conflict with another writer, up to [`OVERTAKEN_MAX`] attempts.
async fn retry_on_conflict(context: &JobContext, step: Step<'_>) -> Result<Report, Status> {
    for _ in 0..OVERTAKEN_MAX {
        let taken = match step {
            Step::Examine { key, uid, owns } => examine(context, key, uid, owns).await,
            Step::Release { key, uid, deletion_state } => release(context, key, uid, deletion_state).await,
            Step::RemoveOwner { key, owner } => remove_owner_reference(&context.writer, key, owner).await,
        };
        match taken {
            Err(status) if status.code == 409 => {}
            // The object was deleted between the read and the write.
            Err(status) if status.code == 404 => return Ok(Report::Done),
            other => return other,
        }
    }
    Ok(Report::Again)
}

/// An object that a step has read from the store.
struct Live {
    resource: Arc<Resource>,
    facts: Facts,
    object: Value,
    revision: Revision,
}

/// Reads an object. Returns `None` if no object with this uid is stored at the key.
///
/// # Errors
/// The error of the store, or a 500 if the stored value is unreadable.
async fn read(writer: &Writer, key: &Key, uid: &str) -> Result<Option<Live>, Status> {
    let (found, _) = writer.backend().storage().get(key).await.map_err(Status::internal)?;
    let Some(found) = found else { return Ok(None) };
    let facts = facts_of(&found)?;
    if facts.uid != uid {
        return Ok(None);
    }
    let registry = writer.backend().registry();
    let resource = registry
        .find_stored_at(key)
        .ok_or_else(|| Status::internal(format_args!("the kind of the object at {key} is not served")))?;
    let object = serde_json::from_slice(&found.value).map_err(Status::internal)?;
    Ok(Some(Live { resource: Arc::clone(resource), facts, object, revision: found.modified }))
}

/// Parses the facts of a stored object.
///
/// # Errors
/// A 500 if the value is unreadable. Callers must not treat the object as absent.
fn facts_of(found: &KeyValue) -> Result<Facts, Status> {
    Facts::read(&found.value)
        .ok_or_else(|| Status::internal(format_args!("the object at {} cannot be read", found.key)))
}

/// Returns the resource of an owner's kind, if the kind is served.
fn resource_of_owner<'a>(registry: &'a Registry, owner: &OwnerRef) -> Option<&'a Arc<Resource>> {
    let (group, version) = owner.api_version.rsplit_once('/').unwrap_or(("", &owner.api_version));
    registry.find_kind(group, version, &owner.kind)
}

fn is_namespaced(writer: &Writer, owner: &OwnerRef) -> bool {
    resource_of_owner(&writer.backend().registry(), owner).is_some_and(|resource| resource.namespaced)
}

/// Looks up an owner (`isDangling`). `namespace` is the namespace of the dependent, `""` for a cluster-scoped
/// dependent.
async fn find_owner(context: &JobContext, owner: &OwnerRef, namespace: &str) -> Result<OwnerState, Status> {
    let registry = context.writer.backend().registry();
    let Some(resource) = resource_of_owner(&registry, owner) else { return Ok(OwnerState::Unknown) };
    if resource.namespaced && namespace.is_empty() {
        return Ok(OwnerState::Invalid);
    }
    // No object can have a name that is not valid in a key.
    let Ok(key) = resource.key(Some(namespace), &owner.name) else { return Ok(OwnerState::Absent) };
    let (found, _) = context.writer.backend().storage().get(&key).await.map_err(Status::internal)?;
    let facts = match found.map(|found| Facts::read(&found.value)) {
        None => None,
        Some(Some(facts)) if !facts.uid.is_empty() => Some(facts).filter(|facts| facts.uid == owner.uid),
        // The object exists, but its uid is unreadable.
        Some(_) => return Ok(OwnerState::Unknown),
    };
    Ok(match facts {
        None if context.blocked.covers(&resource.storage_prefix) => OwnerState::Unknown,
        None => OwnerState::Absent,
        Some(facts) if facts.deleted && facts.foreground => OwnerState::Waiting,
        Some(_) => OwnerState::Solid,
    })
}

/// Deletes an object without existing owners, or removes the object's references to absent owners.
async fn examine(context: &JobContext, key: &Key, uid: &str, owns: bool) -> Result<Report, Status> {
    let writer = &context.writer;
    let Some(live) = read(writer, key, uid).await? else { return Ok(Report::Done) };
    if live.facts.deletion_state() != DeletionState::Alive {
        return Ok(Report::Done);
    }
    if context.blocked.covers(&live.resource.storage_prefix) {
        return Ok(Report::Again);
    }
    let namespace = if live.resource.namespaced { key.namespace() } else { "" };
    let mut owner_states = Vec::with_capacity(live.facts.owners.len());
    for owner in &live.facts.owners {
        let owner_state = find_owner(context, owner, namespace).await?;
        if owner_state == OwnerState::Invalid {
            tracing::debug!(dependent = %key, ?owner, "an object of the cluster refers to a namespaced owner");
        }
        owner_states.push(owner_state);
    }
    let propagation = match decide_dependent(&owner_states, owns) {
        DependentAction::Leave => return Ok(Report::Done),
        DependentAction::Again => return Ok(Report::Again),
        DependentAction::Unlink(void) => {
            unlink(writer, key, &live, &void).await?;
            return Ok(Report::Done);
        }
        DependentAction::Foreground => Propagation::Foreground,
        // Finalizers on the dependent select the propagation policy.
        DependentAction::Delete if live.facts.orphan => Propagation::Orphan,
        DependentAction::Delete if live.facts.foreground => Propagation::Foreground,
        DependentAction::Delete => Propagation::Background,
    };
    tracing::debug!(%key, ?propagation, "deleting an object without owners");
    writer.collect(&live.resource, key, (uid, live.revision), propagation).await?;
    Ok(Report::Done)
}

/// Removes the references to `owner` from an object.
async fn remove_owner_reference(writer: &Arc<Writer>, key: &Key, owner: &str) -> Result<Report, Status> {
    let (found, _) = writer.backend().storage().get(key).await.map_err(Status::internal)?;
    let Some(found) = found else { return Ok(Report::Done) };
    let Some(live) = read(writer, key, &facts_of(&found)?.uid).await? else { return Ok(Report::Done) };
    let owners = &live.facts.owners;
    let void: Vec<usize> = (0..owners.len()).filter(|position| owners[*position].uid == owner).collect();
    if !void.is_empty() {
        unlink(writer, key, &live, &void).await?;
    }
    Ok(Report::Done)
}

/// Removes the references at these positions from an object.
async fn unlink(writer: &Arc<Writer>, key: &Key, live: &Live, void: &[usize]) -> Result<(), Status> {
    let references = live.object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let kept: Vec<&Value> = references
        .into_iter()
        .flatten()
        .enumerate()
        .filter(|(position, _)| !void.contains(position))
        .map(|(_, reference)| reference)
        .collect();
    let kept = if kept.is_empty() { Value::Null } else { json!(kept) };
    patch(writer, key, live, json!({"ownerReferences": kept})).await
}

/// Removes the collector's finalizer from an object that no longer waits for its dependents.
async fn release(context: &JobContext, key: &Key, uid: &str, deletion_state: DeletionState) -> Result<Report, Status> {
    let writer = &context.writer;
    // An unreadable value may be a dependent.
    if context.blocked.is_any() {
        return Ok(Report::Again);
    }
    let Some(live) = read(writer, key, uid).await?.filter(|live| live.facts.deletion_state() == deletion_state) else {
        return Ok(Report::Done);
    };
    let ours = if deletion_state == DeletionState::Orphaning { FINALIZER_ORPHAN } else { FINALIZER_FOREGROUND };
    let finalizers = live.object.pointer("/metadata/finalizers").and_then(Value::as_array);
    let kept: Vec<&Value> = finalizers.into_iter().flatten().filter(|name| *name != ours).collect();
    patch(writer, key, &live, json!({"finalizers": kept})).await?;
    Ok(Report::Done)
}

/// Patches metadata as a client would, with the uid and resource version of the read as preconditions.
async fn patch(writer: &Arc<Writer>, key: &Key, live: &Live, mut metadata: Value) -> Result<(), Status> {
    metadata["uid"] = json!(live.facts.uid);
    metadata["resourceVersion"] = json!(live.revision.to_string());
    let request = WriteRequest {
        verb: WriteVerb::Patch,
        resource: &live.resource,
        namespace: live.resource.namespaced.then(|| key.namespace()),
        name: Some(key.name()),
        subresource: None,
        query: &Query::default(),
        content_type: Some("application/merge-patch+json"),
        user: UserInfo::admin(),
        user_agent: Some(USER_AGENT),
        body: Bytes::from(json!({"metadata": metadata}).to_string()),
    };
    writer.write(request).await.map(drop)
}

/// Records the warning event of a dependent whose owner is in another namespace (`reportInvalidNamespaceOwnerRef`).
async fn record_event(writer: &Arc<Writer>, reference: &CrossNamespaceReference) -> Result<(), Status> {
    let registry = writer.backend().registry();
    let (Some(events), Some(resource)) = (registry.find("", "v1", "events"), registry.find_stored_at(&reference.key))
    else {
        return Ok(());
    };
    let (found, _) = writer.backend().storage().get(&reference.key).await.map_err(Status::internal)?;
    let Some(facts) = found.and_then(|found| Facts::read(&found.value)) else { return Ok(()) };
    let claim = &*reference.claim;
    let namespace = if claim.namespace.is_empty() { "default" } else { claim.namespace.as_str() };
    let now = Clock::default().now();
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let body = json!({
        "metadata": {"name": format!("{}.{nanos:x}", reference.key.name()), "namespace": namespace},
        "involvedObject": {
            "kind": resource.kind, "namespace": claim.namespace, "name": reference.key.name(), "uid": facts.uid,
            "apiVersion": resource.api_version(),
        },
        "reason": "OwnerRefInvalidNamespace",
        "message": format!(
            "ownerRef [{}/{}, namespace: {}, name: {}, uid: {}] does not exist in namespace {:?}",
            claim.api_version, claim.kind, claim.namespace, claim.name, claim.uid, claim.namespace
        ),
        "source": {"component": USER_AGENT},
        "firstTimestamp": now, "lastTimestamp": now, "count": 1, "type": "Warning",
        "reportingComponent": USER_AGENT, "reportingInstance": "",
    });
    let request = WriteRequest {
        verb: WriteVerb::Create,
        resource: events,
        namespace: Some(namespace),
        name: None,
        subresource: None,
        query: &Query::default(),
        content_type: None,
        user: UserInfo::admin(),
        user_agent: Some(USER_AGENT),
        body: Bytes::from(body.to_string()),
    };
    writer.write(request).await.map(drop)
}
