//! Counts the usage of each namespace's quotas, and writes the usage to the status of the quotas
//! (`pkg/controller/resourcequota`). The admission plugin ResourceQuota charges each write. This controller sets the
//! status of new quotas, and subtracts the usage of deleted objects.
//!
//! ```text
//!  quota written ────────────────┐
//!  counted object deleted ───────┼─▶ namespace due ─▶ count: quotas, then objects, then compare and swap
//!  pod, service, claim changed ──┘        ▲                      │ changed meanwhile, or a creation in progress
//!                                         └──────────────────────┘
//! ```
//!
//! An object whose creation is charged but not stored yet would be missing from the count. The controller therefore
//! reads the quotas first, then waits until this server creates nothing in the namespace. The status is written only if
//! the quotas have not changed since the read. Creations on other servers may be missed until the next count, as in
//! upstream.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use listwatch_admission::resource_quota::{DeviceObjects, Evaluator, counted_status};
use listwatch_cacher::{Cacher, Delivery, Scope};
use listwatch_json::Value;
use listwatch_meta::{Change, FieldSelector, LabelSelector, ListRequest, ReadAt, Status, WatchFrom, WatchRequest};
use listwatch_registry::Resource;
use listwatch_validation::{Object, child, is_same, metadata, text};
use listwatch_write::{Amendment, Writer};
use time::OffsetDateTime;
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Delay between a change and the count, so that one count covers many changes.
const PAUSE: Duration = Duration::from_millis(20);
/// Delay before a count is repeated, after a failure or because a quota changed during the count.
const RETRY: Duration = Duration::from_millis(200);
/// Maximum wait for creations in progress. After that time, the count may miss some objects.
const CREATIONS_WAIT: Duration = Duration::from_secs(2);
/// The interval of the checks whether creations are in progress.
const CREATIONS_POLL: Duration = Duration::from_millis(5);
/// Interval between two counts of all quotas (`--resource-quota-sync-period`).
const RESYNC: Duration = Duration::from_secs(300);
/// The duration of one watch. Any value is correct, because an ended watch is restarted.
const WATCH_TIME: Duration = Duration::from_secs(3600);
/// Maximum number of changed namespaces in the channel. When the channel is full, the watches pause.
const NEWS_MAX: usize = 1024;

/// Updates the usage in all quotas until the future is dropped.
pub async fn run(writer: Arc<Writer>) {
    let Some(quotas) = find(&writer, "", "resourcequotas") else { return };
    let (sender, mut news) = channel(NEWS_MAX);
    let mut watches = JoinSet::new();
    let mut watched: HashSet<(String, String)> = HashSet::new();
    watches.spawn(follow(Arc::clone(&writer), (String::new(), "resourcequotas".to_owned()), sender.clone()));
    let mut due: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        let next = due.values().min().copied();
        tokio::select! {
            Some(namespace) = news.recv() => {
                due.entry(namespace).or_insert_with(|| Instant::now() + PAUSE);
            }
            () = sleep_until(next) => {
                let now = Instant::now();
                let ready: Vec<String> =
                    due.iter().filter(|(_, at)| **at <= now).map(|(namespace, _)| namespace.clone()).collect();
                for namespace in ready {
                    due.remove(&namespace);
                    let counted = count(&writer, &quotas, &namespace).await;
                    let (counted, is_done) = counted.unwrap_or_else(|status| {
                        tracing::warn!(namespace, %status, "cannot count what a namespace uses of its quotas");
                        (Vec::new(), false)
                    });
                    for resource in counted {
                        if resource.1 != "resourcequotas" && watched.insert(resource.clone()) {
                            watches.spawn(follow(Arc::clone(&writer), resource, sender.clone()));
                        }
                    }
                    if !is_done {
                        due.insert(namespace, Instant::now() + RETRY);
                    }
                }
            }
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Returns a served resource with this group and plural, in any version.
fn find(writer: &Writer, group: &str, plural: &str) -> Option<Arc<Resource>> {
    let registry = writer.backend().registry();
    registry.resources().iter().find(|one| &*one.group == group && &*one.plural == plural).cloned()
}

/// Watches one resource, and reports the namespaces whose usage may have changed. Reports all namespaces with quotas
/// again after [`RESYNC`].
async fn follow(writer: Arc<Writer>, (group, plural): (String, String), news: Sender<String>) {
    let is_quota = group.is_empty() && plural == "resourcequotas";
    // A change of these objects can change what they use.
    let changes_count = group.is_empty() && matches!(&*plural, "pods" | "services" | "persistentvolumeclaims");
    loop {
        let Some(resource) = find(&writer, &group, &plural) else {
            tokio::time::sleep(RESYNC).await;
            continue;
        };
        let request = WatchRequest {
            from: WatchFrom::InitialEvents { at: ReadAt::Any, mark_end: false },
            bookmarks: false,
            timeout_seconds: None,
            labels: LabelSelector::default(),
            fields: FieldSelector::default(),
            shard: None,
        };
        let time = if is_quota { RESYNC } else { WATCH_TIME };
        let watcher = writer.backend().cacher(&resource).watch(&Scope::All, &request, Instant::now() + time).await;
        let Ok(mut watcher) = watcher else {
            tokio::time::sleep(RETRY).await;
            continue;
        };
        while let Some(delivery) = watcher.next().await {
            match delivery {
                Delivery::Event(event) => {
                    let concerns = is_quota
                        || event.change() == Change::Deleted
                        || (changes_count && event.change() == Change::Modified);
                    if concerns && news.send(event.object().namespace().to_owned()).await.is_err() {
                        return;
                    }
                }
                Delivery::Bookmark { .. } => {}
                Delivery::Error(_) => {
                    tokio::time::sleep(RETRY).await;
                    break;
                }
            }
        }
    }
}

/// Lists the objects of a namespace, or all objects of a cluster-scoped resource.
async fn list(cacher: &Cacher, resource: &Resource, namespace: &str) -> Result<Vec<Object>, Status> {
    let request = ListRequest {
        at: ReadAt::MostRecent,
        limit: None,
        resume: None,
        labels: LabelSelector::default(),
        fields: FieldSelector::default(),
        shard: None,
    };
    let scope = if resource.namespaced { Scope::Namespace(namespace.to_owned()) } else { Scope::All };
    let list = cacher.list(&scope, &request).await;
    let list = list.map_err(|error| error.status(resource.gr()))?;
    let mut objects = Vec::new();
    for (index, object) in list.items.enumerate() {
        if index % 64 == 63 {
            tokio::task::yield_now().await;
        }
        objects.extend(serde_json::from_slice::<Object>(object.json_slice()).ok());
    }
    Ok(objects)
}

/// Reads the objects on which the usage of the ResourceClaims of a namespace depends.
async fn device_objects(writer: &Writer, namespace: &str, claims: &[Object]) -> Result<DeviceObjects, Status> {
    let listed = async |group, plural| match find(writer, group, plural) {
        Some(resource) => list(&writer.backend().cacher(&resource), &resource, namespace).await,
        None => Ok(Vec::new()),
    };
    let classes = listed("resource.k8s.io", "deviceclasses").await?;
    let pods = if claims.iter().any(DeviceObjects::is_claim_of_pod) { listed("", "pods").await? } else { Vec::new() };
    Ok(DeviceObjects::new(&classes, &pods, claims, OffsetDateTime::now_utc()))
}

/// Counts the usage of the quotas of one namespace. Returns the counted resources, and whether all quotas are now
/// correct.
///
/// # Errors
/// The error of the store.
async fn count(
    writer: &Writer,
    resource: &Arc<Resource>,
    namespace: &str,
) -> Result<(Vec<(String, String)>, bool), Status> {
    let backend = writer.backend();
    let quotas = list(&backend.cacher(resource), resource, namespace).await?;
    if quotas.is_empty() {
        return Ok((Vec::new(), true));
    }
    let waited = Instant::now();
    while backend.is_creating_in(namespace) && waited.elapsed() < CREATIONS_WAIT {
        tokio::time::sleep(CREATIONS_POLL).await;
    }
    let names = quotas.iter().flat_map(|quota| child(child(quota, "spec"), "hard").keys());
    let mut counted: Vec<(String, String)> = names
        .flat_map(|name| Evaluator::resources_of(name))
        .map(|(group, plural)| (group.to_owned(), plural.to_owned()))
        .collect();
    counted.sort();
    counted.dedup();
    let mut objects: Vec<(Evaluator, Vec<Object>)> = Vec::new();
    for (group, plural) in &counted {
        if let Some(resource) = find(writer, group, plural) {
            let found = list(&backend.cacher(&resource), &resource, namespace).await?;
            let evaluator = match Evaluator::new(group, plural) {
                Evaluator::DeviceClaims(_) => Evaluator::DeviceClaims(device_objects(writer, namespace, &found).await?),
                evaluator => evaluator,
            };
            objects.push((evaluator, found));
        }
    }
    let mut is_done = true;
    for quota in &quotas {
        let all = objects.iter().flat_map(|(evaluator, objects)| objects.iter().map(move |object| (evaluator, object)));
        let Some(status) = counted_status(quota, all, OffsetDateTime::now_utc()) else { continue };
        let key = resource.key(Some(namespace), text(metadata(quota), "name"))?;
        let mut is_changed = false;
        let write = |stored: &mut Object| {
            is_changed = !["spec", "status"].iter().all(|part| is_same(stored.get(part), quota.get(part)));
            if is_changed {
                return Amendment::Leave;
            }
            stored.insert("status", Value::clone(&status));
            Amendment::Write
        };
        writer.amend(resource, &key, write).await?;
        is_done &= !is_changed;
    }
    Ok((counted, is_done))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use listwatch_admission::AdmissionChain;
    use listwatch_cacher::Limits;
    use listwatch_json::json;
    use listwatch_meta::UserInfo;
    use listwatch_registry::{Backend, Registry};
    use listwatch_storage::MemoryStorage;
    use listwatch_wire::query::Query;
    use listwatch_write::{WriteRequest, WriteVerb};

    use super::*;

    async fn create(writer: &Writer, plural: &str, body: Value) -> Result<(), Status> {
        create_in(writer, ("", plural), Some("default"), body).await
    }

    async fn create_in(
        writer: &Writer,
        (group, plural): (&str, &str),
        namespace: Option<&str>,
        body: Value,
    ) -> Result<(), Status> {
        let resource = find(writer, group, plural).unwrap();
        let request = WriteRequest {
            verb: WriteVerb::Create,
            resource: &resource,
            namespace,
            name: None,
            subresource: None,
            query: &Query::default(),
            content_type: None,
            user: UserInfo::admin(),
            user_agent: None,
            body: Bytes::from(body.to_string()),
        };
        writer.write(request).await.map(drop)
    }

    async fn wait_for_used(writer: &Writer, expected: Value) {
        let quotas = find(writer, "", "resourcequotas").unwrap();
        let key = quotas.key(Some("default"), "q").unwrap();
        let wait = async {
            loop {
                let (found, _) = writer.backend().storage().get(&key).await.unwrap();
                let found: Value = serde_json::from_slice(&found.unwrap().value).unwrap();
                if found["status"]["used"] == expected {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait).await.expect("the controller counts");
    }

    #[tokio::test]
    async fn quota_is_enforced_after_its_first_count_and_deletions_reduce_its_usage() {
        let backend = Backend::new(MemoryStorage::new(), Registry::builtin(), true, Limits::default());
        let writer = Arc::new(Writer::new(Arc::new(backend), AdmissionChain::default()));
        crate::namespaces::ensure_system_namespaces(&writer).await.unwrap();
        let map = |name: &str| json!({"metadata": {"name": name}});
        create(&writer, "configmaps", map("a")).await.unwrap();
        let controller = tokio::spawn(run(Arc::clone(&writer)));
        let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "2", "count/secrets": "0"}}});
        create(&writer, "resourcequotas", quota).await.unwrap();
        wait_for_used(&writer, json!({"configmaps": "1", "count/secrets": "0"})).await;
        create(&writer, "configmaps", map("b")).await.unwrap();
        let refused = create(&writer, "configmaps", map("c")).await.unwrap_err();
        assert_eq!(
            refused.message,
            "configmaps \"c\" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=2, limited: configmaps=2"
        );
        assert!(create(&writer, "secrets", map("s")).await.is_err());
        let maps = find(&writer, "", "configmaps").unwrap();
        writer.remove(&maps, &maps.key(Some("default"), "a").unwrap()).await.unwrap();
        wait_for_used(&writer, json!({"configmaps": "1", "count/secrets": "0"})).await;
        create(&writer, "configmaps", map("c")).await.unwrap();
        controller.abort();
    }

    #[tokio::test]
    async fn quota_of_an_extended_resource_counts_the_claims_of_its_device_class() {
        let backend = Backend::new(MemoryStorage::new(), Registry::builtin(), true, Limits::default());
        let writer = Arc::new(Writer::new(Arc::new(backend), AdmissionChain::default()));
        crate::namespaces::ensure_system_namespaces(&writer).await.unwrap();
        let class = json!({"metadata": {"name": "gold"}, "spec": {"extendedResourceName": "example.com/gpu"}});
        create_in(&writer, ("resource.k8s.io", "deviceclasses"), None, class).await.unwrap();
        let claims = ("resource.k8s.io", "resourceclaims");
        let exactly = json!({"deviceClassName": "gold", "allocationMode": "ExactCount", "count": 2});
        let claim = |name: &str| json!({"metadata": {"name": name}, "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}});
        create_in(&writer, claims, Some("default"), claim("a")).await.unwrap();
        let controller = tokio::spawn(run(Arc::clone(&writer)));
        let implicit = "requests.deviceclass.resource.kubernetes.io/gold";
        let quota =
            json!({"metadata": {"name": "q"}, "spec": {"hard": {implicit: "9", "requests.example.com/gpu": "3"}}});
        create(&writer, "resourcequotas", quota).await.unwrap();
        wait_for_used(&writer, json!({implicit: "2", "requests.example.com/gpu": "2"})).await;
        let refused = create_in(&writer, claims, Some("default"), claim("b")).await.unwrap_err();
        assert_eq!(
            refused.message,
            "resourceclaims.resource.k8s.io \"b\" is forbidden: exceeded quota: q, requested: requests.example.com/gpu=2, used: requests.example.com/gpu=2, limited: requests.example.com/gpu=3"
        );
        controller.abort();
    }
}
