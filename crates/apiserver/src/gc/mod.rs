//! Garbage collection by owner references, as a built-in (`pkg/controller/garbagecollector`).
//!
//! ```text
//!   store: list, then one watch of everything ─▶ facts ─▶ Graph ─▶ Job ─▶ live reads ─▶ judge ─▶ write
//!                                                          ▲                                      │
//!                                                          └───────────── an event ◀──────────────┘
//! ```
//!
//! - An object whose owners are all gone is deleted (background).
//! - An object deleted with `propagationPolicy=Foreground` stays, marked, until its dependents with
//!   `blockOwnerDeletion` are gone.
//! - One deleted with `Orphan` stays until its dependents no longer refer to it.
//!
//! The watch is the store's, over all kinds at once: so it has one order, it starts no cache of kinds
//! that nobody reads, and it knows kinds that are defined later without being told. What is remembered
//! is in [`graph`]: references, no objects.
//!
//! Nothing is deleted on the word of that memory. Every deletion rests on live reads of the object and
//! of each owner, and is bound to the uid and the version that were read; a reference that was written
//! meanwhile makes it fail. Several servers on one store may therefore all do this at the same time.
//! Events are neither owners nor owned.
//!
//! A value that cannot be read is an object all the same. It is never taken for absent: see [`unreadable`].

mod agenda;
mod facts;
mod graph;
#[cfg(test)]
mod tests;
mod unreadable;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use listwatch_meta::{Key, KeyRange, Revision, Status};
use listwatch_storage::{KeyValue, ListQuery, ReadError, StoreEvent, Watch, WatchItem};
use listwatch_wire::query::Query;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::facts::{Facts, Life, OwnerRef};
use self::graph::{Finding, Graph, Job, Report, Stray, Verdict, judge};
use self::unreadable::{Blocked, Unreadable};
use crate::auth::User;
use crate::backend::Backend;
use crate::registry::{Registry, Resource};
use crate::write::{self, Propagation, WriteRequest, WriteVerb};
use listwatch_validation::object_meta::{FINALIZER_FOREGROUND, FINALIZER_ORPHAN};

/// So many jobs are done at the same time; more wait.
const JOBS_AT_ONCE: usize = 16;
/// The store is listed in pages of so many.
const PAGE_ITEMS: usize = 500;
/// At most so many events are taken before jobs are looked at again.
const EVENTS_AT_ONCE: usize = 1_024;
/// After a failed list or watch the next one begins so much later.
const WATCH_RETRY: Duration = Duration::from_secs(1);
/// A change that was overtaken by somebody else's is tried again so many times at once; after that it
/// waits as a failed one does.
const OVERTAKEN_MAX: usize = 5;
/// The name of this loop in what `/readyz` says.
const NAME: &str = "garbage collector";
/// How the collector's writes are signed.
const USER_AGENT: &str = "garbage-collector-controller";

/// Collects garbage for as long as it is polled.
pub(crate) async fn run(backend: Arc<Backend>) {
    let mut collector = Collector {
        backend,
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
        tracing::warn!(%why, "the garbage collector begins anew");
        tokio::time::sleep(WATCH_RETRY).await;
    }
}

struct Collector {
    backend: Arc<Backend>,
    graph: Graph,
    unreadable: Unreadable,
    /// Everything could be read at one time since the server started. Before that, no job begins.
    started: bool,
    jobs: JoinSet<(Job, Report)>,
}

impl Collector {
    /// Shows the graph all that is stored. Returns the revision of the list.
    async fn list(&mut self) -> Result<Revision, ReadError> {
        self.graph.begin_sync();
        self.unreadable.begin_sync();
        let mut range = KeyRange::below("/");
        let mut at = None;
        loop {
            let query = ListQuery { range: range.clone(), at, limit: PAGE_ITEMS };
            let page = self.backend.storage().list(query).await?;
            at = Some(page.revision);
            let registry = self.backend.registry();
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

    /// Follows the store from a revision on. Returns why that has come to an end.
    async fn follow(&mut self, mut after: Revision) -> String {
        loop {
            let mut watch = match self.backend.storage().watch(KeyRange::below("/"), after).await {
                Ok(watch) => watch,
                Err(error) => {
                    tracing::warn!(%error, "the garbage collector cannot watch the store");
                    tokio::time::sleep(WATCH_RETRY).await;
                    continue;
                }
            };
            match self.work(&mut watch, &mut after).await {
                Some(WatchItem::Expired { .. }) => return "its place in the store's history is gone".to_owned(),
                // It goes on where it was.
                _ => tokio::time::sleep(WATCH_RETRY).await,
            }
        }
    }

    /// Takes events and does jobs until the watch ends. Returns its last item.
    async fn work(&mut self, watch: &mut Watch, after: &mut Revision) -> Option<WatchItem> {
        loop {
            self.look_at_unreadable();
            self.begin_jobs();
            let due = self.graph.due(Instant::now()).filter(|_| self.started && self.jobs.len() < JOBS_AT_ONCE);
            tokio::select! {
                item = watch.next() => {
                    // What is ready is taken at once, so that a burst is judged by its end.
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
                    Err(error) => tracing::error!(%error, "a job of the garbage collector broke off"),
                },
                () = sleep_until(due) => {}
            }
        }
    }

    /// Begins the work when everything can be read, and says what cannot be read.
    fn look_at_unreadable(&mut self) {
        self.unreadable.handle_registry(&self.backend.registry());
        let problem = self.unreadable.problem();
        self.started |= problem.is_none();
        let consequence = if self.started { "leaves these kinds alone" } else { "does not start" };
        self.backend.problems().set(NAME, problem.map(|problem| format!("{consequence}: {problem}")));
    }

    fn begin_jobs(&mut self) {
        while self.started
            && self.jobs.len() < JOBS_AT_ONCE
            && let Some(job) = self.graph.poll_job(Instant::now())
        {
            let site = Site { backend: Arc::clone(&self.backend), blocked: self.unreadable.blocked().clone() };
            self.jobs.spawn(async move {
                // A job that panics must not be forgotten: it would be taken for one that runs.
                let done = std::panic::AssertUnwindSafe(carry_out(&site, &job)).catch_unwind().await;
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
        self.graph.handle_outcome(job, report, Instant::now());
        while let Some(stray) = self.graph.poll_stray() {
            let backend = Arc::clone(&self.backend);
            tracing::warn!(dependent = %stray.key, owner = ?stray.claim, "an owner is not in its dependent's namespace");
            tokio::spawn(async move {
                if let Err(status) = tell_of(&backend, &stray).await {
                    tracing::debug!(%status, "an event could not be written");
                }
            });
        }
    }

    fn event(&mut self, event: StoreEvent) {
        match event {
            StoreEvent::Put { current, .. } => {
                let registry = self.backend.registry();
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
        // An object that no server has written has no uid. It owns nothing, and nobody can say whose it is.
        if facts.uid.is_empty() {
            return;
        }
        // A kind that is not known yet has its scope in its key all the same: what is below a prefix
        // is a name, or a namespace and a name. A wrong guess is found out by the live reads.
        let namespace = match resource_of(registry, &item.key) {
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

/// The resource whose objects are stored at such a key.
fn resource_of<'a>(registry: &'a Registry, key: &Key) -> Option<&'a Arc<Resource>> {
    registry.resources().iter().find(|resource| {
        let rest = key.as_str().strip_prefix('/').and_then(|key| key.strip_prefix(resource.storage_prefix.as_str()));
        let below = rest.and_then(|rest| rest.strip_prefix('/'));
        below.is_some_and(|below| below.matches('/').count() == usize::from(resource.namespaced))
    })
}

/// Where a job is done.
struct Site {
    backend: Arc<Backend>,
    blocked: Blocked,
}

/// Does a job.
async fn carry_out(site: &Site, job: &Job) -> Result<Report, Status> {
    match job {
        Job::Verify(claim) => {
            let owner = OwnerRef {
                api_version: claim.api_version.clone(),
                kind: claim.kind.clone(),
                name: claim.name.clone(),
                uid: claim.uid.to_string(),
                blocks: false,
            };
            Ok(match find_owner(site, &owner, &claim.namespace).await? {
                Finding::Absent => Report::Absent,
                Finding::Unknown => Report::Again,
                Finding::Solid | Finding::Waiting => {
                    Report::Present { namespaced: is_namespaced(&site.backend, &owner) }
                }
                Finding::Invalid => Report::Present { namespaced: false },
            })
        }
        Job::Examine { key, uid, owns } => insist(site, Step::Examine { key, uid, owns: *owns }).await,
        Job::Release { key, uid, life } => insist(site, Step::Release { key, uid, life: *life }).await,
        Job::Orphan { uid, dependents, .. } => {
            for key in dependents {
                if insist(site, Step::LetGo { key, owner: uid }).await? == Report::Again {
                    return Ok(Report::Again);
                }
            }
            Ok(Report::Done)
        }
    }
}

/// A read and the write that rests on it.
#[derive(Clone, Copy)]
enum Step<'a> {
    Examine { key: &'a Key, uid: &'a str, owns: bool },
    Release { key: &'a Key, uid: &'a str, life: Life },
    LetGo { key: &'a Key, owner: &'a str },
}

/// Takes a step, again when somebody else's write has overtaken it.
async fn insist(site: &Site, step: Step<'_>) -> Result<Report, Status> {
    for _ in 0..OVERTAKEN_MAX {
        let taken = match step {
            Step::Examine { key, uid, owns } => examine(site, key, uid, owns).await,
            Step::Release { key, uid, life } => release(site, key, uid, life).await,
            Step::LetGo { key, owner } => let_go(&site.backend, key, owner).await,
        };
        match taken {
            Err(status) if status.code == 409 => {}
            // It went away between the read and the write.
            Err(status) if status.code == 404 => return Ok(Report::Done),
            other => return other,
        }
    }
    Ok(Report::Again)
}

/// An object as it is in the store now.
struct Live {
    resource: Arc<Resource>,
    facts: Facts,
    object: Value,
    revision: Revision,
}

/// Reads an object; `None` when there is none of that uid at that place.
///
/// # Errors
/// What the store says, and 500 when what is stored there cannot be read.
async fn read(backend: &Backend, key: &Key, uid: &str) -> Result<Option<Live>, Status> {
    let (found, _) = backend.storage().get(key).await.map_err(Status::internal)?;
    let Some(found) = found else { return Ok(None) };
    let facts = facts_of(&found)?;
    if facts.uid != uid {
        return Ok(None);
    }
    let registry = backend.registry();
    let resource = resource_of(&registry, key)
        .ok_or_else(|| Status::internal(format_args!("the kind of the object at {key} is not served")))?;
    let object = serde_json::from_slice(&found.value).map_err(Status::internal)?;
    Ok(Some(Live { resource: Arc::clone(resource), facts, object, revision: found.modified }))
}

/// What the collector knows of a stored object.
///
/// # Errors
/// 500 when the value cannot be read. Nobody may conclude anything from that.
fn facts_of(found: &KeyValue) -> Result<Facts, Status> {
    Facts::read(&found.value)
        .ok_or_else(|| Status::internal(format_args!("the object at {} cannot be read", found.key)))
}

/// The resource of an owner's kind, if that is served.
fn resource_of_owner<'a>(registry: &'a Registry, owner: &OwnerRef) -> Option<&'a Arc<Resource>> {
    let (group, version) = owner.api_version.rsplit_once('/').unwrap_or(("", &owner.api_version));
    registry.find_kind(group, version, &owner.kind)
}

fn is_namespaced(backend: &Backend, owner: &OwnerRef) -> bool {
    resource_of_owner(&backend.registry(), owner).is_some_and(|resource| resource.namespaced)
}

/// Looks an owner up (`isDangling`). `namespace` is the dependent's, `""` for the cluster.
async fn find_owner(site: &Site, owner: &OwnerRef, namespace: &str) -> Result<Finding, Status> {
    let registry = site.backend.registry();
    let Some(resource) = resource_of_owner(&registry, owner) else { return Ok(Finding::Unknown) };
    if resource.namespaced && namespace.is_empty() {
        return Ok(Finding::Invalid);
    }
    // A name that can be no key is the name of nothing.
    let Ok(key) = resource.key(Some(namespace), &owner.name) else { return Ok(Finding::Absent) };
    let (found, _) = site.backend.storage().get(&key).await.map_err(Status::internal)?;
    let facts = match found.map(|found| Facts::read(&found.value)) {
        None => None,
        Some(Some(facts)) if !facts.uid.is_empty() => Some(facts).filter(|facts| facts.uid == owner.uid),
        // It is there, and nobody can say who it is.
        Some(_) => return Ok(Finding::Unknown),
    };
    Ok(match facts {
        None if site.blocked.covers(&resource.storage_prefix) => Finding::Unknown,
        None => Finding::Absent,
        Some(facts) if facts.deleted && facts.foreground => Finding::Waiting,
        Some(_) => Finding::Solid,
    })
}

/// Deletes an object that has no owner left, or takes off the references that lead nowhere.
async fn examine(site: &Site, key: &Key, uid: &str, owns: bool) -> Result<Report, Status> {
    let backend = &site.backend;
    let Some(live) = read(backend, key, uid).await? else { return Ok(Report::Done) };
    if live.facts.life() != Life::Alive {
        return Ok(Report::Done);
    }
    if site.blocked.covers(&live.resource.storage_prefix) {
        return Ok(Report::Again);
    }
    let namespace = if live.resource.namespaced { key.namespace() } else { "" };
    let mut findings = Vec::with_capacity(live.facts.owners.len());
    for owner in &live.facts.owners {
        let finding = find_owner(site, owner, namespace).await?;
        if finding == Finding::Invalid {
            tracing::debug!(dependent = %key, ?owner, "an object of the cluster refers to a namespaced owner");
        }
        findings.push(finding);
    }
    let propagation = match judge(&findings, owns) {
        Verdict::Leave => return Ok(Report::Done),
        Verdict::Again => return Ok(Report::Again),
        Verdict::Unlink(void) => {
            unlink(backend, key, &live, &void).await?;
            return Ok(Report::Done);
        }
        Verdict::Foreground => Propagation::Foreground,
        // What its finalizers ask for is honoured.
        Verdict::Delete if live.facts.orphan => Propagation::Orphan,
        Verdict::Delete if live.facts.foreground => Propagation::Foreground,
        Verdict::Delete => Propagation::Background,
    };
    tracing::debug!(%key, ?propagation, "deleting an object without owners");
    write::collect(backend, &live.resource, key, (uid, live.revision), propagation).await?;
    Ok(Report::Done)
}

/// Takes the references to `owner` off an object.
async fn let_go(backend: &Arc<Backend>, key: &Key, owner: &str) -> Result<Report, Status> {
    let (found, _) = backend.storage().get(key).await.map_err(Status::internal)?;
    let Some(found) = found else { return Ok(Report::Done) };
    let Some(live) = read(backend, key, &facts_of(&found)?.uid).await? else { return Ok(Report::Done) };
    let owners = &live.facts.owners;
    let void: Vec<usize> = (0..owners.len()).filter(|position| owners[*position].uid == owner).collect();
    if !void.is_empty() {
        unlink(backend, key, &live, &void).await?;
    }
    Ok(Report::Done)
}

/// Takes the references at these positions off an object.
async fn unlink(backend: &Arc<Backend>, key: &Key, live: &Live, void: &[usize]) -> Result<(), Status> {
    let references = live.object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let kept: Vec<&Value> = references
        .into_iter()
        .flatten()
        .enumerate()
        .filter(|(position, _)| !void.contains(position))
        .map(|(_, reference)| reference)
        .collect();
    let kept = if kept.is_empty() { Value::Null } else { json!(kept) };
    patch(backend, key, live, json!({"ownerReferences": kept})).await
}

/// Takes the finalizer off an object that has waited.
async fn release(site: &Site, key: &Key, uid: &str, life: Life) -> Result<Report, Status> {
    let backend = &site.backend;
    // A value that cannot be read may be a dependent.
    if site.blocked.is_any() {
        return Ok(Report::Again);
    }
    let Some(live) = read(backend, key, uid).await?.filter(|live| live.facts.life() == life) else {
        return Ok(Report::Done);
    };
    let ours = if life == Life::Orphaning { FINALIZER_ORPHAN } else { FINALIZER_FOREGROUND };
    let finalizers = live.object.pointer("/metadata/finalizers").and_then(Value::as_array);
    let kept: Vec<&Value> = finalizers.into_iter().flatten().filter(|name| *name != ours).collect();
    patch(backend, key, &live, json!({"finalizers": kept})).await?;
    Ok(Report::Done)
}

/// Changes metadata as a client would, bound to what was read.
async fn patch(backend: &Arc<Backend>, key: &Key, live: &Live, mut metadata: Value) -> Result<(), Status> {
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
        user: User::admin(),
        user_agent: Some(USER_AGENT),
        body: Bytes::from(json!({"metadata": metadata}).to_string()),
    };
    write::write(backend, request).await.map(drop)
}

/// Writes the event of a dependent in another namespace than its owner (`reportInvalidNamespaceOwnerRef`).
async fn tell_of(backend: &Arc<Backend>, stray: &Stray) -> Result<(), Status> {
    let registry = backend.registry();
    let (Some(events), Some(resource)) = (registry.find("", "v1", "events"), resource_of(&registry, &stray.key)) else {
        return Ok(());
    };
    let (found, _) = backend.storage().get(&stray.key).await.map_err(Status::internal)?;
    let Some(facts) = found.and_then(|found| Facts::read(&found.value)) else { return Ok(()) };
    let claim = &*stray.claim;
    let namespace = if claim.namespace.is_empty() { "default" } else { claim.namespace.as_str() };
    let now = write::Clock::default().now();
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let body = json!({
        "metadata": {"name": format!("{}.{nanos:x}", stray.key.name()), "namespace": namespace},
        "involvedObject": {
            "kind": resource.kind, "namespace": claim.namespace, "name": stray.key.name(), "uid": facts.uid,
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
        user: User::admin(),
        user_agent: Some(USER_AGENT),
        body: Bytes::from(body.to_string()),
    };
    write::write(backend, request).await.map(drop)
}
