//! The life of namespaces: those that every cluster has, and the loop that empties a namespace
//! before it goes (`pkg/controlplane/controller/systemnamespaces`, `pkg/controller/namespace`).
//!
//! ```text
//!  DELETE ─▶ Terminating ─▶ run: watch ─▶ Agenda ─▶ empty: every resource, page by page
//!                                          ▲              │ something is held up: conditions say
//!                                          ├── back off ──┤ what, and it is tried again
//!                                          │              │
//!                                          └── settle ────┤ empty for the first time: once more, later
//!                                                         ▼
//!                                     finalizer "kubernetes" goes, and with the last the namespace
//! ```
//!
//! Several servers on one store may all do this at the same time: each step tolerates that another
//! server was faster. Nothing stays behind in a namespace that is gone: this server lets none go while
//! it creates an object there, and who creates one on another server has [`SETTLE`] to see the deletion
//! and to be through (5 s from its beginning in Kubernetes). A restart loses nothing, for the watch begins with every namespace there is.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use listwatch_cacher::{Cacher, Delivery, Scope, Watcher};
use listwatch_meta::status::reason;
use listwatch_meta::{Change, FieldSelector, Key, LabelSelector, Object, ReadAt, Status, WatchFrom, WatchRequest};
use listwatch_storage::ListQuery;
use listwatch_wire::query::Query;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::auth::User;
use crate::backend::Backend;
use crate::controllers::survive;
use crate::crd;
use crate::registry::Resource;
use crate::write::{self, Amendment, Removal, WriteRequest, WriteVerb};
use listwatch_kinds::conditions::{self, Saying};
use listwatch_validation::object_meta::FINALIZER_KUBERNETES;

/// The namespaces that every cluster has.
const SYSTEM_NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// The name of this loop in what `/readyz` says.
const NAME: &str = "namespaces";
/// A watch of the namespaces is renewed after this time; any value does.
const WATCH_TIME: Duration = Duration::from_secs(3600);
/// After a failed watch the next one begins so much later.
const WATCH_RETRY: Duration = Duration::from_secs(1);
/// So many namespaces are emptied at the same time; more wait.
const NAMESPACES_AT_ONCE: usize = 4;
/// Objects are listed in pages of so many.
const PAGE_ITEMS: usize = 500;
/// A namespace that could not be emptied is tried again after this time, then after twice of it,
/// and so on.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// But not later than after this time: it is also how long a namespace may stay behind what held it.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// A namespace that was found empty is looked at again after this time, and goes if it still is: so far
/// may the caches of other servers be behind, and so long may their creations take.
const SETTLE: Duration = Duration::from_secs(2);
/// How often to look whether this server still creates objects in a namespace that is to go; who was
/// let in before is through when the request's time is up.
const CREATIONS_POLL: Duration = Duration::from_millis(20);

/// Creates the namespaces that every cluster has, where they are missing.
///
/// # Errors
/// What the store or the registry says; that another server created one meanwhile is no error.
pub(crate) async fn ensure_system_namespaces(backend: &Arc<Backend>) -> Result<(), Status> {
    let registry = backend.registry();
    let Some(resource) = registry.find("", "v1", "namespaces") else { return Ok(()) };
    for name in SYSTEM_NAMESPACES {
        let key = resource.key(None, name)?;
        if let Ok((Some(_), _)) = backend.storage().get(&key).await {
            continue;
        }
        let request = WriteRequest {
            verb: WriteVerb::Create,
            resource,
            namespace: None,
            name: None,
            subresource: None,
            query: &Query::default(),
            content_type: None,
            user: User::admin(),
            user_agent: None,
            body: Bytes::from(json!({"metadata": {"name": name}}).to_string()),
        };
        match write::write(backend, request).await {
            Ok(_) => {}
            Err(status) if status.code == 409 => {}
            Err(status) => return Err(status),
        }
    }
    Ok(())
}

/// Empties and removes namespaces that are being deleted, for as long as it is polled.
pub(crate) async fn run(backend: Arc<Backend>) {
    let Some(resource) = backend.registry().find("", "v1", "namespaces").cloned() else { return };
    let cacher = backend.cacher(&resource);
    let mut agenda = Agenda::default();
    let mut passes: JoinSet<(String, Pass)> = JoinSet::new();
    // What cannot be read, by namespace; the namespaces themselves have the name "".
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
            while passes.len() < NAMESPACES_AT_ONCE
                && let Some(name) = agenda.start(Instant::now())
            {
                let (backend, resource) = (Arc::clone(&backend), Arc::clone(&resource));
                let settled = agenda.is_settled(&name);
                passes.spawn(async move {
                    let pass = survive(&name, empty(&backend, &resource, &name, settled)).await;
                    (name, pass.unwrap_or(Pass::Again))
                });
            }
            let due = agenda.due().filter(|_| passes.len() < NAMESPACES_AT_ONCE);
            tokio::select! {
                delivery = watcher.next() => match delivery {
                    Some(Delivery::Event(event)) => {
                        unreadable.remove("");
                        agenda.see(event.object(), event.change(), Instant::now());
                        // Another server may have finished what this one could not read.
                        unreadable.retain(|name, _| agenda.is_known(name));
                    }
                    Some(Delivery::Bookmark { .. }) => {}
                    Some(Delivery::Error(status)) => {
                        // Without the pause a store that fails at once would make this loop spin.
                        tracing::warn!(%status, "the watch of namespaces ended");
                        if status.reason == reason::STORAGE_READ_ERROR {
                            unreadable.insert(String::new(), status.message);
                            tell_unreadable(&backend, &unreadable);
                        }
                        tokio::time::sleep(WATCH_RETRY).await;
                        break;
                    }
                    None => break,
                },
                Some(ended) = passes.join_next() => match ended {
                    Ok((name, pass)) => {
                        match &pass {
                            Pass::Unreadable(why) => unreadable.insert(name.clone(), why.clone()),
                            _ => unreadable.remove(&name),
                        };
                        agenda.finish(&name, pass, Instant::now());
                    }
                    // Nobody cancels a pass, and its panics are caught.
                    Err(error) => tracing::error!(%error, "emptying a namespace broke off"),
                },
                () = sleep_until(due) => {}
            }
            tell_unreadable(&backend, &unreadable);
        }
    }
}

fn tell_unreadable(backend: &Backend, unreadable: &BTreeMap<String, String>) {
    let problem = unreadable.first_key_value().map(|(namespace, why)| match namespace.as_str() {
        "" => format!("none is emptied: {why}"),
        namespace => format!("cannot empty {} of them, the first is {namespace}: {why}", unreadable.len()),
    });
    backend.problems().set(NAME, problem);
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

/// What one attempt to empty a namespace came to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pass {
    /// Nothing is left to do for it.
    Done,
    /// Something holds it up, or something failed.
    Again,
    /// Some of what is in it cannot be read, and of that kind nothing was asked to go.
    Unreadable(String),
    /// It is empty, but was not looked at before.
    Settle,
}

/// Which namespaces are being deleted, and when each is to be looked at next. Pure: the time is an
/// argument.
#[derive(Debug, Default)]
struct Agenda {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// When to look; `None` while somebody looks.
    due: Option<Instant>,
    /// Attempts that failed so far.
    failed: u32,
    /// It was empty once, and [`SETTLE`] is over when it is looked at again.
    settled: bool,
    /// It changed while somebody looked.
    changed: bool,
}

impl Agenda {
    /// Whether a namespace is being deleted, as far as was seen.
    fn is_known(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// A namespace was seen to change.
    fn see(&mut self, namespace: &Object, change: Change, now: Instant) {
        let name = namespace.name();
        if change == Change::Deleted || !namespace.is_being_deleted() {
            // While somebody looks the entry must stay, or two would look.
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
            // It waits for its turn anyway; our own condition updates must not shorten the wait.
            Some(_) => {}
        }
    }

    /// The next namespace to look at, if one is due; it counts as being looked at.
    fn start(&mut self, now: Instant) -> Option<String> {
        let due = |entry: &Entry| entry.due.is_some_and(|due| due <= now);
        let (name, entry) = self.entries.iter_mut().find(|(_, entry)| due(entry))?;
        entry.due = None;
        entry.changed = false;
        Some(name.clone())
    }

    /// Was it found empty before, and given time?
    fn is_settled(&self, name: &str) -> bool {
        self.entries.get(name).is_some_and(|entry| entry.settled)
    }

    /// Somebody has looked.
    fn finish(&mut self, name: &str, pass: Pass, now: Instant) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        if pass == Pass::Settle {
            entry.settled = true;
            entry.due = Some(now + SETTLE);
            return;
        }
        if pass == Pass::Done && !entry.changed {
            self.entries.remove(name);
            return;
        }
        let wait = RETRY_MIN.saturating_mul(1 << entry.failed.min(16)).min(RETRY_MAX);
        entry.failed = entry.failed.saturating_add(1);
        entry.due = Some(now + wait);
    }

    /// When the next namespace is due.
    fn due(&self) -> Option<Instant> {
        self.entries.values().filter_map(|entry| entry.due).min()
    }
}

/// Looks at a namespace once: removes what is in it and, when nothing is left, the namespace.
async fn empty(backend: &Backend, namespaces: &Resource, name: &str, settled: bool) -> Pass {
    match try_empty(backend, namespaces, name, settled).await {
        Ok(pass) => pass,
        Err(status) => {
            tracing::warn!(namespace = name, %status, "cannot empty a namespace");
            Pass::Again
        }
    }
}

async fn try_empty(backend: &Backend, namespaces: &Resource, name: &str, settled: bool) -> Result<Pass, Status> {
    let key = namespaces.key(None, name)?;
    let (found, _) = backend.storage().get(&key).await.map_err(Status::internal)?;
    let Some(found) = found else { return Ok(Pass::Done) };
    let Ok(namespace) = serde_json::from_slice::<Value>(&found.value) else {
        return Ok(Pass::Unreadable(format!("the namespace {name} itself cannot be read")));
    };
    if namespace.pointer("/metadata/deletionTimestamp").is_none_or(Value::is_null) {
        return Ok(Pass::Done);
    }
    let finalizers = namespace.pointer("/spec/finalizers").and_then(Value::as_array);
    if finalizers.is_some_and(|list| list.contains(&json!(FINALIZER_KUBERNETES))) {
        // Who asks from now on is refused, by what this server has seen already.
        while backend.is_creating_in(name) {
            tokio::time::sleep(CREATIONS_POLL).await;
        }
        let findings = remove_content(backend, name).await?;
        report(backend, namespaces, &key, &findings).await?;
        if let Some(why) = findings.unreadable {
            return Ok(Pass::Unreadable(why));
        }
        if !findings.is_clear() {
            return Ok(Pass::Again);
        }
        if !settled {
            return Ok(Pass::Settle);
        }
    }
    write::amend(backend, namespaces, &key, release).await?;
    Ok(Pass::Done)
}

/// Takes our finalizer off, and removes the namespace when it was the last.
fn release(namespace: &mut Map<String, Value>) -> Amendment {
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

/// What is left in a namespace after everything was asked to go.
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    /// Objects that are still there, by `resource.group`.
    remaining: BTreeMap<String, usize>,
    /// Finalizers that hold objects up, and how many each.
    finalizers: BTreeMap<String, usize>,
    /// What could not be deleted, and why.
    failures: Vec<String>,
    /// The first failure that was a value that cannot be read.
    unreadable: Option<String>,
}

impl Findings {
    fn is_clear(&self) -> bool {
        self.remaining.is_empty() && self.failures.is_empty()
    }
}

/// Asks every object of the namespace to go.
async fn remove_content(backend: &Backend, namespace: &str) -> Result<Findings, Status> {
    let registry = backend.registry();
    let mut findings = Findings::default();
    // A kind whose definition cannot be read is not served, and its objects would stay behind.
    let unreadable = crd::unreadable(backend, ReadAt::MostRecent).await;
    if let Some(why) = unreadable.unwrap_or_else(|status| Some(status.message)) {
        findings.failures.push(format!("customresourcedefinitions.apiextensions.k8s.io: {why}"));
        findings.unreadable = Some(why);
        return Ok(findings);
    }
    // One prefix may be served in several versions; it is emptied once.
    let mut prefixes = HashSet::new();
    for resource in registry.resources().iter().filter(|resource| resource.namespaced) {
        if !prefixes.insert(resource.storage_prefix.as_str()) {
            continue;
        }
        if let Err(status) = remove_objects(backend, resource, namespace, &mut findings).await {
            findings.failures.push(format!("{}: {}", resource.gr(), status.message));
            if status.reason == reason::STORAGE_READ_ERROR {
                findings.unreadable.get_or_insert(status.message);
            }
        }
    }
    Ok(findings)
}

async fn remove_objects(
    backend: &Backend,
    resource: &Resource,
    namespace: &str,
    findings: &mut Findings,
) -> Result<(), Status> {
    let mut range = resource.range(Some(namespace));
    // A kind whose list would fail for a client is left alone as a whole.
    write::check_readable(backend, resource, &range).await?;
    loop {
        let query = ListQuery { range: range.clone(), at: None, limit: PAGE_ITEMS };
        let page = backend.storage().list(query).await.map_err(Status::internal)?;
        for item in &page.items {
            match write::remove(backend, resource, &item.key).await {
                Ok(Removal::Gone) => {}
                Ok(Removal::Held) => {
                    let label = format!("{}.{}", resource.plural, resource.group);
                    *findings.remaining.entry(label).or_default() += 1;
                    for finalizer in finalizers(&item.value) {
                        *findings.finalizers.entry(finalizer).or_default() += 1;
                    }
                }
                Err(status) => findings.failures.push(format!("{}: {}", resource.gr(), status.message)),
            }
        }
        let Some(last) = page.items.last().filter(|_| page.more) else { return Ok(()) };
        range = range.starting_at(&format!("{}\0", last.key));
    }
}

fn finalizers(object: &[u8]) -> Vec<String> {
    let object: Value = serde_json::from_slice(object).unwrap_or_default();
    let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    finalizers.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Writes what is left into the namespace's conditions, where that changes anything.
async fn report(backend: &Backend, namespaces: &Resource, key: &Key, findings: &Findings) -> Result<(), Status> {
    // An empty namespace that never had anything held up goes without a word.
    let now = write::Clock::default().now();
    write::amend(backend, namespaces, key, |namespace| {
        let told = namespace.get("status").is_some_and(|status| status.get("conditions").is_some());
        if findings.is_clear() && !told {
            return Amendment::Leave;
        }
        let Some(Value::Object(status)) = namespace.get_mut("status") else { return Amendment::Leave };
        let conditions = status.entry("conditions").or_insert_with(|| json!([]));
        if let Value::Array(conditions) = conditions {
            for Condition(kind, truth, reason, message) in conditions_of(findings) {
                let status = if truth { "True" } else { "False" };
                conditions::set(conditions, Saying { kind, status, reason, message: &message }, &now);
            }
        }
        Amendment::Write
    })
    .await
}

/// A condition: type, true or false, reason, message.
struct Condition(&'static str, bool, &'static str, String);

fn conditions_of(findings: &Findings) -> [Condition; 5] {
    let Findings { remaining, finalizers, failures, .. } = findings;
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
