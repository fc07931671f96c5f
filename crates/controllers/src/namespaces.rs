//! Creates the system namespaces, and deletes the content of terminating namespaces
//! (`pkg/controlplane/controller/systemnamespaces`, `pkg/controller/namespace`).
//!
//! ```text
//!  DELETE ─▶ Terminating ─▶ run: watch ─▶ WorkQueue ─▶ empty: every resource, page by page
//!                                          ▲                 │ content remains: conditions report
//!                                          ├── back off ─────┤ it, and the namespace is retried
//!                                          │                 │
//!                                          └── settle ───────┤ empty for the first time: checked once more
//!                                                            ▼
//!                                     finalizer "kubernetes" is removed; without finalizers, the namespace is too
//! ```
//!
//! Several servers on one store may all run this controller, because each step tolerates changes by another server.
//!
//! A server does not remove a namespace while the server itself creates an object there. For creations on other
//! servers, the controller waits for [`SETTLE`] (5 s in Kubernetes). If a creation checked the namespace longer than
//! [`NAMESPACE_RECHECK`] ago, half of that time, the creation reads the namespace again directly before the store
//! write. An object can remain in a deleted namespace only in two cases: another server's cache of namespaces lags by
//! more than a second, or one store write takes that long. After a restart, the watch starts with all existing
//! namespaces, so no deletion is forgotten.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use listwatch_cacher::{Cacher, Delivery, Scope, Watcher};
use listwatch_json::{Map, Value, json};
use listwatch_meta::status::{STATUS_TEXT_BYTES_MAX, cut, reason};
use listwatch_meta::{Change, FieldSelector, Key, LabelSelector, Object, ReadAt, Status, WatchFrom, WatchRequest};
use listwatch_storage::ListQuery;
use listwatch_wire::query::Query;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::controllers::catch_panic;
use crate::definitions;
use listwatch_kinds::conditions::{self, NewCondition};
use listwatch_meta::UserInfo;
use listwatch_registry::Resource;
use listwatch_validation::clock::Clock;
use listwatch_validation::object_meta::FINALIZER_KUBERNETES;
use listwatch_write::Writer;
use listwatch_write::{Amendment, NAMESPACE_RECHECK, Removal, WriteRequest, WriteVerb};

/// The namespaces that every cluster has.
const SYSTEM_NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// The name of this controller in the output of `/readyz`.
const NAME: &str = "namespaces";
/// Maximum duration of one watch of the namespaces. Any value is correct, because an ended watch is restarted.
const WATCH_TIME: Duration = Duration::from_secs(3600);
/// Delay before the next watch after a failed one.
const WATCH_RETRY: Duration = Duration::from_secs(1);
/// Maximum number of namespaces that are emptied concurrently; the others wait.
const NAMESPACES_AT_ONCE: usize = 4;
/// Number of objects per page of a list.
const PAGE_ITEMS: usize = 500;
/// Delay before the next attempt to empty a namespace with remaining content. Each failed attempt doubles the delay.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// Maximum delay between two attempts. A namespace can stay this long after its last object was removed.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Delay between the first time a namespace is found empty and the check that removes the namespace. The delay
/// covers the lag of other servers' caches and the time between their last check of a namespace and their store write.
const SETTLE: Duration = NAMESPACE_RECHECK.saturating_mul(2);
/// Interval between two checks whether this server still creates objects in a namespace to be removed. Each
/// admitted creation ends at the latest with its request timeout.
const CREATIONS_POLL: Duration = Duration::from_millis(20);

/// Creates the system namespaces that are missing.
///
/// # Errors
/// The error of the store or of the write. A namespace created meanwhile by another server is not an error.
pub async fn ensure_system_namespaces(writer: &Arc<Writer>) -> Result<(), Status> {
    let registry = writer.backend().registry();
    let Some(resource) = registry.find("", "v1", "namespaces") else { return Ok(()) };
    let missing = SYSTEM_NAMESPACES.map(|name| ensure_namespace(writer, resource, name));
    join_all(missing).await.into_iter().collect()
}

async fn ensure_namespace(writer: &Arc<Writer>, resource: &Arc<Resource>, name: &str) -> Result<(), Status> {
    let key = resource.key(None, name)?;
    if let Ok((Some(_), _)) = writer.backend().storage().get(&key).await {
        return Ok(());
    }
    let request = WriteRequest {
        verb: WriteVerb::Create,
        resource,
        namespace: None,
        name: None,
        subresource: None,
        query: &Query::default(),
        content_type: None,
        user: UserInfo::admin(),
        user_agent: None,
        body: Bytes::from(json!({"metadata": {"name": name}}).to_string()),
    };
    match writer.write(request).await {
        Err(status) if status.code != 409 => Err(status),
        _ => Ok(()),
    }
}

/// Empties and removes terminating namespaces until the future is dropped.
pub async fn run(writer: Arc<Writer>) {
    let Some(resource) = writer.backend().registry().find("", "v1", "namespaces").cloned() else { return };
    let cacher = writer.backend().cacher(&resource);
    let mut queue = WorkQueue::default();
    let mut syncs: JoinSet<(String, SyncResult)> = JoinSet::new();
    // Unreadable content by namespace. The key "" means the namespace objects themselves.
    let mut unreadable: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let mut watcher = match watch(&cacher).await {
            Ok(watcher) => watcher,
            Err(why) => {
                tracing::warn!(%why, "cannot watch namespaces");
                tokio::time::sleep(WATCH_RETRY).await;
                continue;
            }
        };
        loop {
            while syncs.len() < NAMESPACES_AT_ONCE
                && let Some(name) = queue.start(Instant::now())
            {
                let (writer, resource) = (Arc::clone(&writer), Arc::clone(&resource));
                let settled = queue.is_settled(&name);
                syncs.spawn(async move {
                    let result = catch_panic(&name, empty(&writer, &resource, &name, settled)).await;
                    (name, result.unwrap_or(SyncResult::Again))
                });
            }
            let due = queue.due().filter(|_| syncs.len() < NAMESPACES_AT_ONCE);
            tokio::select! {
                delivery = watcher.next() => match delivery {
                    Some(Delivery::Event(event)) => {
                        unreadable.remove("");
                        queue.handle_event(event.object(), event.change(), Instant::now());
                        // Another server may have emptied a namespace whose content this server could not read.
                        unreadable.retain(|name, _| queue.is_known(name));
                    }
                    Some(Delivery::Bookmark { .. }) => {}
                    Some(Delivery::Error(status)) => {
                        // The delay keeps this loop from spinning on a store that fails immediately.
                        tracing::warn!(%status, "the watch of namespaces ended");
                        if status.reason == reason::STORAGE_READ_ERROR {
                            unreadable.insert(String::new(), status.message);
                            report_unreadable(&writer, &unreadable);
                        }
                        tokio::time::sleep(WATCH_RETRY).await;
                        break;
                    }
                    None => break,
                },
                Some(ended) = syncs.join_next() => match ended {
                    Ok((name, result)) => {
                        match &result {
                            SyncResult::Unreadable(why) => unreadable.insert(name.clone(), why.clone()),
                            _ => unreadable.remove(&name),
                        };
                        queue.finish(&name, result, Instant::now());
                    }
                    // Syncs are never canceled, and their panics are caught.
                    Err(error) => tracing::error!(%error, "emptying a namespace ended unexpectedly"),
                },
                () = sleep_until(due) => {}
            }
            report_unreadable(&writer, &unreadable);
        }
    }
}

fn report_unreadable(writer: &Writer, unreadable: &BTreeMap<String, String>) {
    let problem = unreadable.first_key_value().map(|(namespace, why)| match namespace.as_str() {
        "" => format!("none is emptied: {why}"),
        namespace => format!("cannot empty {} of them, the first is {namespace}: {why}", unreadable.len()),
    });
    writer.backend().problems().set(NAME, problem);
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

async fn watch(cacher: &Cacher) -> Result<Watcher, String> {
    let request = WatchRequest {
        from: WatchFrom::InitialEvents { at: ReadAt::Any, mark_end: false },
        bookmarks: false,
        timeout_seconds: None,
        labels: LabelSelector::default(),
        fields: FieldSelector::default(),
        shard: None,
    };
    cacher.watch(&Scope::All, &request, Instant::now() + WATCH_TIME).await.map_err(|error| error.to_string())
}

/// The result of one attempt to empty a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SyncResult {
    /// The namespace needs no further work.
    Done,
    /// Content remains, or a request failed; the namespace is retried.
    Again,
    /// Some content is unreadable. No object of that kind was deleted.
    Unreadable(String),
    /// The namespace was found empty for the first time.
    Settle,
}

/// The terminating namespaces, and the time of the next attempt for each. Has no clock: the current time is an
/// argument.
#[derive(Debug, Default)]
struct WorkQueue {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// Time of the next attempt; `None` while an attempt is running.
    due: Option<Instant>,
    /// Number of consecutive failed attempts.
    failed: u32,
    /// True if the namespace was found empty once. The next attempt starts after [`SETTLE`].
    settled: bool,
    /// True if the namespace changed during the running attempt.
    changed: bool,
}

impl WorkQueue {
    /// Reports whether this namespace is known to be terminating.
    fn is_known(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Records a change of a namespace.
    fn handle_event(&mut self, namespace: &Object, change: Change, now: Instant) {
        let name = namespace.name();
        if change == Change::Deleted || !namespace.is_being_deleted() {
            // The entry of a running attempt stays; otherwise a second attempt could start.
            if self.entries.get(name).is_some_and(|entry| entry.due.is_some()) {
                self.entries.remove(name);
            }
            return;
        }
        match self.entries.get_mut(name) {
            None => {
                self.entries
                    .insert(name.to_owned(), Entry { due: Some(now), failed: 0, settled: false, changed: false });
            }
            Some(entry) if entry.due.is_none() => entry.changed = true,
            // The next attempt is already scheduled; condition updates written by this controller must not shorten
            // the delay.
            Some(_) => {}
        }
    }

    /// Starts the next attempt that is due. Returns the name of the namespace.
    fn start(&mut self, now: Instant) -> Option<String> {
        let due = |entry: &Entry| entry.due.is_some_and(|due| due <= now);
        let (name, entry) = self.entries.iter_mut().find(|(_, entry)| due(entry))?;
        entry.due = None;
        entry.changed = false;
        Some(name.clone())
    }

    /// Reports whether the namespace was found empty before and [`SETTLE`] has passed.
    fn is_settled(&self, name: &str) -> bool {
        self.entries.get(name).is_some_and(|entry| entry.settled)
    }

    /// Records the result of the running attempt.
    fn finish(&mut self, name: &str, result: SyncResult, now: Instant) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        if result == SyncResult::Settle {
            entry.settled = true;
            entry.due = Some(now + SETTLE);
            return;
        }
        if result == SyncResult::Done && !entry.changed {
            self.entries.remove(name);
            return;
        }
        let wait = RETRY_MIN.saturating_mul(1 << entry.failed.min(16)).min(RETRY_MAX);
        entry.failed = entry.failed.saturating_add(1);
        entry.due = Some(now + wait);
    }

    /// Returns the time of the next attempt.
    fn due(&self) -> Option<Instant> {
        self.entries.values().filter_map(|entry| entry.due).min()
    }
}

/// Makes one attempt: deletes the content of a namespace and, if no content is left, removes the namespace.
async fn empty(writer: &Writer, namespaces: &Resource, name: &str, settled: bool) -> SyncResult {
    match try_empty(writer, namespaces, name, settled).await {
        Ok(result) => result,
        Err(status) => {
            tracing::warn!(namespace = name, %status, "cannot empty a namespace");
            SyncResult::Again
        }
    }
}

async fn try_empty(writer: &Writer, namespaces: &Resource, name: &str, settled: bool) -> Result<SyncResult, Status> {
    let key = namespaces.key(None, name)?;
    let (found, _) = writer.backend().storage().get(&key).await.map_err(Status::internal)?;
    let Some(found) = found else { return Ok(SyncResult::Done) };
    let Ok(namespace) = serde_json::from_slice::<Value>(&found.value) else {
        return Ok(SyncResult::Unreadable(format!("the namespace {name} itself cannot be read")));
    };
    if namespace.pointer("/metadata/deletionTimestamp").is_none_or(Value::is_null) {
        return Ok(SyncResult::Done);
    }
    let finalizers = namespace.pointer("/spec/finalizers").and_then(Value::as_array);
    if finalizers.is_some_and(|list| list.contains(&json!(FINALIZER_KUBERNETES))) {
        // New requests are rejected, because this server has already seen the deletion.
        while writer.backend().is_creating_in(name) {
            tokio::time::sleep(CREATIONS_POLL).await;
        }
        let content = remove_content(writer, name).await?;
        report(writer, namespaces, &key, &content).await?;
        if let Some(why) = content.unreadable {
            return Ok(SyncResult::Unreadable(why));
        }
        if !content.is_clear() {
            return Ok(SyncResult::Again);
        }
        if !settled {
            return Ok(SyncResult::Settle);
        }
    }
    writer.amend(namespaces, &key, release).await?;
    Ok(SyncResult::Done)
}

/// Removes the finalizer `kubernetes`, and removes the namespace if no finalizer is left.
fn release(namespace: &mut Map) -> Amendment {
    let metadata = namespace.get("metadata").and_then(Value::as_object);
    if !metadata.is_some_and(|metadata| metadata.contains_key("deletionTimestamp")) {
        return Amendment::Leave; // another one of that name
    }
    let some = |finalizers: Option<&Value>| finalizers.and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    let held = some(metadata.and_then(|metadata| metadata.get("finalizers")));
    let Some(Value::Object(spec)) = namespace.get_mut("spec") else {
        return if held { Amendment::Leave } else { Amendment::Remove };
    };
    if let Some(Value::Array(finalizers)) = spec.get_mut("finalizers") {
        finalizers.retain(|name| *name != json!(FINALIZER_KUBERNETES));
        if finalizers.is_empty() {
            spec.shift_remove("finalizers");
        }
    }
    if held || some(spec.get("finalizers")) { Amendment::Write } else { Amendment::Remove }
}

/// The content left in a namespace after a delete request for each object.
#[derive(Debug, Default, PartialEq, Eq)]
struct RemainingContent {
    /// Number of remaining objects, by `resource.group`.
    remaining: BTreeMap<String, usize>,
    /// Number of remaining objects, by finalizer.
    finalizers: BTreeMap<String, usize>,
    /// Error messages of failed deletions, one per resource.
    failures: Vec<String>,
    /// The first error about an unreadable value.
    unreadable: Option<String>,
}

impl RemainingContent {
    fn is_clear(&self) -> bool {
        self.remaining.is_empty() && self.failures.is_empty()
    }
}

/// Deletes every object of the namespace once. Pods are deleted first; other objects are deleted only when no pod is
/// left. A pod therefore never outlives an object that protects the pod, such as a NetworkPolicy
/// (`OrderedNamespaceDeletion`, KEP-5080).
async fn remove_content(writer: &Writer, namespace: &str) -> Result<RemainingContent, Status> {
    let registry = writer.backend().registry();
    let mut content = RemainingContent::default();
    // A kind with an unreadable definition is not served, so its objects would stay behind.
    let unreadable = definitions::unreadable(writer, ReadAt::MostRecent).await;
    if let Some(why) = unreadable.unwrap_or_else(|status| Some(status.message)) {
        content.failures.push(format!("customresourcedefinitions.apiextensions.k8s.io: {why}"));
        content.unreadable = Some(why);
        return Ok(content);
    }
    // Versions of a kind share one prefix, which is emptied once. In the storage version, no conversion webhook is
    // called, which may have run in this namespace.
    let is_stored = |resource: &Resource| resource.storage_version.as_ref() == Some(&resource.version);
    let mut resources: Vec<_> = registry.resources().iter().filter(|resource| resource.namespaced).collect();
    let is_pods = |resource: &Resource| resource.group.is_empty() && resource.plural == "pods";
    resources.sort_by_key(|resource| (!is_pods(resource), resource.converts_by_webhook() && !is_stored(resource)));
    let mut prefixes = HashSet::new();
    for resource in resources {
        if !prefixes.insert(resource.storage_prefix.as_str()) {
            continue;
        }
        if let Err(status) = remove_objects(writer, resource, namespace, &mut content).await {
            content.failures.push(format!("{}: {}", resource.gr(), status.message));
            if status.reason == reason::STORAGE_READ_ERROR {
                content.unreadable.get_or_insert(status.message);
            }
        }
        if is_pods(resource) && !content.remaining.is_empty() {
            break;
        }
    }
    Ok(content)
}

/// Deletes every object of one resource. Stops after an error of the store.
async fn remove_objects(
    writer: &Writer,
    resource: &Resource,
    namespace: &str,
    content: &mut RemainingContent,
) -> Result<(), Status> {
    let mut range = resource.range(Some(namespace));
    // If a list for clients would fail, no object of this kind is deleted.
    listwatch_write::check_readable(writer.backend(), resource, &range).await?;
    // The first rejected deletion, and the number of all of them.
    let mut rejected: Option<(Status, usize)> = None;
    loop {
        let query = ListQuery { range: range.clone(), at: None, limit: PAGE_ITEMS };
        let page = writer.backend().storage().list(query).await.map_err(Status::internal)?;
        for item in &page.items {
            match writer.remove(resource, &item.key).await {
                Ok(Removal::Gone) => {}
                Ok(Removal::Held) => {
                    let label = format!("{}.{}", resource.plural, resource.group);
                    *content.remaining.entry(label).or_default() += 1;
                    for finalizer in finalizers(&item.value) {
                        *content.finalizers.entry(finalizer).or_default() += 1;
                    }
                }
                Err(status) if is_store_failure(&status) => return Err(status),
                Err(status) => rejected.get_or_insert((status, 0)).1 += 1,
            }
        }
        let Some(last) = page.items.last().filter(|_| page.more) else { break };
        range = range.starting_at(&format!("{}\0", last.key));
    }
    if let Some((first, count)) = rejected {
        let message = cut(first.message, STATUS_TEXT_BYTES_MAX);
        let more = if count > 1 { format!(" (and {} more objects)", count - 1) } else { String::new() };
        content.failures.push(format!("{}: {message}{more}", resource.gr()));
    }
    Ok(())
}

/// Whether the store failed, so that the deletion of the next object would fail as well.
fn is_store_failure(status: &Status) -> bool {
    [reason::SERVER_TIMEOUT, reason::SERVICE_UNAVAILABLE, reason::TIMEOUT]
        .iter()
        .any(|failure| status.reason == *failure)
}

fn finalizers(object: &[u8]) -> Vec<String> {
    let object: Value = serde_json::from_slice(object).unwrap_or_default();
    let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    finalizers.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Writes the remaining content to the namespace's conditions, if these change.
async fn report(writer: &Writer, namespaces: &Resource, key: &Key, content: &RemainingContent) -> Result<(), Status> {
    // No condition is written for an empty namespace that never had remaining content.
    let now = Clock::default().now();
    writer
        .amend(namespaces, key, |namespace| {
            let has_conditions = namespace.get("status").is_some_and(|status| status.get("conditions").is_some());
            if content.is_clear() && !has_conditions {
                return Amendment::Leave;
            }
            let Some(Value::Object(status)) = namespace.get_mut("status") else { return Amendment::Leave };
            let conditions = status.entry("conditions").or_insert_with(|| json!([]));
            if let Value::Array(conditions) = conditions {
                for Condition(kind, truth, reason, message) in conditions_of(content) {
                    let status = if truth { "True" } else { "False" };
                    let message = cut(message, STATUS_TEXT_BYTES_MAX);
                    conditions::set(conditions, NewCondition { kind, status, reason, message: &message }, &now);
                }
            }
            Amendment::Write
        })
        .await
}

/// A condition: type, status, reason and message.
struct Condition(&'static str, bool, &'static str, String);

fn conditions_of(content: &RemainingContent) -> [Condition; 5] {
    let RemainingContent { remaining, finalizers, failures, .. } = content;
    let listed = |counts: &BTreeMap<String, usize>, link: &str| {
        let items = counts.iter().map(|(name, count)| format!("{name} {link} {count} resource instances"));
        items.collect::<Vec<_>>().join(", ")
    };
    [
        Condition(
            "NamespaceDeletionDiscoveryFailure",
            false,
            "ResourcesDiscovered",
            "All resources successfully discovered".to_owned(),
        ),
        Condition(
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed".to_owned(),
        ),
        if failures.is_empty() {
            let message = "All content successfully deleted, may be waiting on finalization".to_owned();
            Condition("NamespaceDeletionContentFailure", false, "ContentDeleted", message)
        } else {
            let message =
                format!("Failed to delete all resource types, {} remaining: {}", failures.len(), failures.join(", "));
            Condition("NamespaceDeletionContentFailure", true, "ContentDeletionFailed", message)
        },
        if remaining.is_empty() {
            let message = "All content successfully removed".to_owned();
            Condition("NamespaceContentRemaining", false, "ContentRemoved", message)
        } else {
            let message = format!("Some resources are remaining: {}", listed(remaining, "has"));
            Condition("NamespaceContentRemaining", true, "SomeResourcesRemain", message)
        },
        if finalizers.is_empty() {
            let message = "All content-preserving finalizers finished".to_owned();
            Condition("NamespaceFinalizersRemaining", false, "ContentHasNoFinalizers", message)
        } else {
            let message =
                format!("Some content in the namespace has finalizers remaining: {}", listed(finalizers, "in"));
            Condition("NamespaceFinalizersRemaining", true, "SomeFinalizersRemain", message)
        },
    ]
}

#[cfg(test)]
mod tests;
