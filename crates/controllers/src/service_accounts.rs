//! Creates the objects that kube-controller-manager keeps in each namespace: the service account `default`
//! (`pkg/controller/serviceaccount`) and the ConfigMap `kube-root-ca.crt`
//! (`pkg/controller/certificates/rootcacertpublisher`).
//!
//! ```text
//!  namespace created ────────────┐
//!  account or ConfigMap deleted ─┼─▶ ensure: create what is missing, mend the ConfigMap ─▶ failed: again after a second
//!  ConfigMap changed ────────────┘
//! ```
//!
//! Several servers on one store may all run this controller. An object that another server has created is kept.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use listwatch_cacher::{Delivery, Scope, Watcher};
use listwatch_json::{Value, json};
use listwatch_meta::{Change, FieldSelector, LabelSelector, ReadAt, Status, UserInfo, WatchFrom, WatchRequest};
use listwatch_validation::{child, child_mut, text};
use listwatch_wire::query::Query;
use listwatch_write::{Amendment, WriteRequest, WriteVerb, Writer};
use tokio::time::Instant;

/// The name of the account of each namespace.
const ACCOUNT: &str = "default";
/// The name of the ConfigMap of each namespace.
const ROOT_CA: &str = "kube-root-ca.crt";
/// The annotation that upstream's controller writes on the ConfigMap.
const DESCRIPTION: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.",
);
/// Delay before a retry after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// The duration of one watch. Any value is correct, because an ended watch is restarted.
const WATCH_TIME: Duration = Duration::from_secs(3600);

/// The objects to create in each namespace.
#[derive(Debug, Clone, Default)]
pub struct NamespaceObjects {
    /// Whether to create the ServiceAccount `default` in each namespace.
    pub service_account: bool,
    /// The CA certificates for the ConfigMap `kube-root-ca.crt`, in PEM. `None`: the ConfigMap is not created.
    pub root_ca: Option<String>,
}

/// Creates the objects in all namespaces until the future is dropped.
pub async fn run(writer: Arc<Writer>, wanted: NamespaceObjects) {
    loop {
        if let Err(why) = follow(&writer, &wanted).await {
            tracing::warn!(why, "cannot watch namespaces for their service accounts");
        }
        // The delay keeps this loop from spinning on a store that fails immediately.
        tokio::time::sleep(RETRY).await;
    }
}

/// Watches the resources and creates missing objects, until a watch ends.
async fn follow(writer: &Arc<Writer>, wanted: &NamespaceObjects) -> Result<(), String> {
    let mut namespaces = watch(writer, "namespaces", "").await?;
    let mut accounts = watch(writer, "serviceaccounts", ACCOUNT).await?;
    let mut maps = watch(writer, "configmaps", ROOT_CA).await?;
    let mut failed: BTreeSet<String> = BTreeSet::new();
    let mut retry_at = Instant::now();
    loop {
        let (delivery, of_namespaces) = tokio::select! {
            delivery = namespaces.next() => (delivery, true),
            delivery = accounts.next(), if wanted.service_account => (delivery, false),
            delivery = maps.next(), if wanted.root_ca.is_some() => (delivery, false),
            () = tokio::time::sleep_until(retry_at), if !failed.is_empty() => {
                for namespace in std::mem::take(&mut failed) {
                    ensure_noting_failure(writer, wanted, namespace, &mut failed).await;
                }
                retry_at = Instant::now() + RETRY;
                continue;
            }
        };
        let event = match delivery {
            None => return Ok(()),
            Some(Delivery::Bookmark { .. }) => continue,
            Some(Delivery::Error(status)) => return Err(status.message),
            Some(Delivery::Event(event)) => event,
        };
        let (object, is_deleted) = (event.object(), event.change() == Change::Deleted);
        let namespace = match of_namespaces {
            true if is_deleted || object.is_being_deleted() => {
                failed.remove(object.name());
                continue;
            }
            true => object.name(),
            // Initial states need no work: the namespaces themselves are visited.
            false if event.is_initial() => continue,
            false => object.namespace(),
        };
        if failed.is_empty() {
            retry_at = Instant::now() + RETRY;
        }
        ensure_noting_failure(writer, wanted, namespace.to_owned(), &mut failed).await;
    }
}

async fn watch(writer: &Writer, plural: &str, name: &str) -> Result<Watcher, String> {
    let registry = writer.backend().registry();
    let resource = registry.find("", "v1", plural).ok_or_else(|| format!("{plural} are not served"))?;
    let fields = if name.is_empty() { String::new() } else { format!("metadata.name={name}") };
    let request = WatchRequest {
        from: WatchFrom::InitialEvents { at: ReadAt::Any, mark_end: false },
        bookmarks: false,
        timeout_seconds: None,
        labels: LabelSelector::default(),
        fields: FieldSelector::parse(&fields).map_err(|error| error.to_string())?,
        shard: None,
    };
    let cacher = writer.backend().cacher(resource);
    cacher.watch(&Scope::All, &request, Instant::now() + WATCH_TIME).await.map_err(|error| error.to_string())
}

async fn ensure_noting_failure(
    writer: &Arc<Writer>,
    wanted: &NamespaceObjects,
    namespace: String,
    failed: &mut BTreeSet<String>,
) {
    if let Err(status) = ensure(writer, wanted, &namespace).await {
        tracing::warn!(namespace, %status, "cannot create the service account or the root CA of a namespace");
        failed.insert(namespace);
    }
}

/// Creates the missing objects of one namespace. Does nothing if the namespace is deleted or being deleted.
///
/// # Errors
/// The error of the store or of the write.
async fn ensure(writer: &Arc<Writer>, wanted: &NamespaceObjects, namespace: &str) -> Result<(), Status> {
    if wanted.service_account {
        create(writer, "serviceaccounts", namespace, &json!({"metadata": {"name": ACCOUNT}})).await?;
    }
    if let Some(root_ca) = &wanted.root_ca {
        let (key, value) = DESCRIPTION;
        let metadata = json!({"name": ROOT_CA, "annotations": {key: value}});
        create(writer, "configmaps", namespace, &json!({"metadata": metadata, "data": {"ca.crt": root_ca}})).await?;
        let registry = writer.backend().registry();
        let Some(resource) = registry.find("", "v1", "configmaps") else { return Ok(()) };
        let key = resource.key(Some(namespace), ROOT_CA)?;
        let mend = |map: &mut listwatch_json::Map| {
            let data = child(map, "data");
            if data.len() == 1 && text(data, "ca.crt") == root_ca {
                return Amendment::Leave;
            }
            let data = child_mut(map, "data");
            data.clear();
            data.insert("ca.crt", json!(root_ca));
            Amendment::Write
        };
        writer.amend(resource, &key, mend).await?;
    }
    Ok(())
}

/// Creates an object if it is missing.
async fn create(writer: &Arc<Writer>, plural: &str, namespace: &str, body: &Value) -> Result<(), Status> {
    let registry = writer.backend().registry();
    let Some(resource) = registry.find("", "v1", plural) else { return Ok(()) };
    let key = resource.key(
        Some(namespace),
        text(child(body.as_object().unwrap_or(&listwatch_json::Map::new()), "metadata"), "name"),
    )?;
    let (found, _) = writer.backend().storage().get(&key).await.map_err(Status::internal)?;
    if found.is_some() {
        return Ok(());
    }
    let request = WriteRequest {
        verb: WriteVerb::Create,
        resource,
        namespace: Some(namespace),
        name: None,
        subresource: None,
        query: &Query::default(),
        content_type: None,
        user: UserInfo::admin(),
        user_agent: Some("kube-controller-manager"),
        body: Bytes::from(body.to_string()),
    };
    match writer.write(request).await {
        Ok(_) => Ok(()),
        // Another server was faster, or the namespace is being deleted or gone.
        Err(status) if matches!(status.code, 404 | 409) => Ok(()),
        Err(status) if status.message.contains("because it is being terminated") => Ok(()),
        Err(status) => Err(status),
    }
}

#[cfg(test)]
mod tests {
    use listwatch_admission::AdmissionChain;
    use listwatch_cacher::Limits;
    use listwatch_registry::{Backend, Registry};
    use listwatch_storage::MemoryStorage;

    use super::*;

    async fn stored(writer: &Writer, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let registry = writer.backend().registry();
        let key = registry.find("", "v1", plural).unwrap().key(Some(namespace), name).unwrap();
        let (found, _) = writer.backend().storage().get(&key).await.unwrap();
        found.map(|found| serde_json::from_slice(&found.value).unwrap())
    }

    /// Waits until the stored object satisfies `is`.
    async fn wait_for(writer: &Writer, plural: &str, name: &str, is: impl Fn(Option<&Value>) -> bool) {
        let wait = async {
            while !is(stored(writer, plural, "default", name).await.as_ref()) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait).await.expect("the controller does its work");
    }

    #[tokio::test]
    async fn default_account_and_root_ca_of_a_namespace_are_recreated_after_deletion() {
        let backend = Backend::new(MemoryStorage::new(), Registry::builtin(), true, Limits::default());
        let writer = Arc::new(Writer::new(Arc::new(backend), AdmissionChain::default()));
        crate::namespaces::ensure_system_namespaces(&writer).await.unwrap();
        let wanted = NamespaceObjects { service_account: true, root_ca: Some("PEM".to_owned()) };
        let controller = tokio::spawn(run(Arc::clone(&writer), wanted));
        let has_pem = |map: Option<&Value>| map.is_some_and(|map| map["data"] == json!({"ca.crt": "PEM"}));
        wait_for(&writer, "serviceaccounts", ACCOUNT, |account| account.is_some()).await;
        wait_for(&writer, "configmaps", ROOT_CA, has_pem).await;
        let registry = writer.backend().registry();
        for (plural, name) in [("serviceaccounts", ACCOUNT), ("configmaps", ROOT_CA)] {
            let resource = registry.find("", "v1", plural).unwrap();
            let uid = |object: &Value| object["metadata"]["uid"].clone();
            let before = uid(&stored(&writer, plural, "default", name).await.unwrap());
            writer.remove(resource, &resource.key(Some("default"), name).unwrap()).await.unwrap();
            wait_for(&writer, plural, name, |found| found.is_some_and(|found| uid(found) != before)).await;
        }
        let maps = registry.find("", "v1", "configmaps").unwrap();
        let spoil = |map: &mut listwatch_json::Map| {
            map.insert("data", json!({"ca.crt": "other"}));
            Amendment::Write
        };
        writer.amend(maps, &maps.key(Some("default"), ROOT_CA).unwrap(), spoil).await.unwrap();
        wait_for(&writer, "configmaps", ROOT_CA, has_pem).await;
        controller.abort();
    }
}
