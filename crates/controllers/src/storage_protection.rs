//! Maintains the finalizers that keep storage objects while they are in use. The admission plugin
//! StorageObjectInUseProtection adds the finalizers to new objects
//! (`pkg/controller/volume/{pvcprotection,pvprotection,vacprotection}`).
//!
//! | object | in use |
//! |---|---|
//! | PersistentVolumeClaim | a pod that is assigned to a node has a volume of the claim |
//! | PersistentVolume | the phase of the volume is `Bound` |
//! | VolumeAttributesClass | a claim or a volume names the class |
//!
//! ```text
//!  object without finalizer ──▶ add it
//!  object being deleted ──▶ in use? ── no ──▶ remove the finalizer
//!                            ▲  │ yes
//!     a user changes or ends ┘  └──▶ wait: watch the users
//! ```
//!
//! The objects that can use a protected object are watched only while a protected object is being deleted. Several
//! servers on one store may all run this controller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use listwatch_cacher::{Cacher, Delivery, Scope, Watcher};
use listwatch_json::Value;
use listwatch_meta::{Change, FieldSelector, LabelSelector, ListRequest, ReadAt, Status, WatchFrom, WatchRequest};
use listwatch_registry::Resource;
use listwatch_validation::{Object, child, given, metadata, metadata_mut, number, objects, text, texts};
use listwatch_write::{Amendment, Writer};
use tokio::time::Instant;

/// Delay before a retry after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// The duration of one watch. Any value is correct, because an ended watch is restarted.
const WATCH_TIME: Duration = Duration::from_secs(3600);

/// The rules for the protected objects of one resource.
#[derive(Debug)]
pub struct Protection {
    group: &'static str,
    plural: &'static str,
    finalizer: &'static str,
    /// The resources in the core group whose objects may use a protected object.
    users: &'static [&'static str],
    /// Whether an object of `users` uses a protected object.
    is_used_by: fn(&Object, &str, &Object) -> bool,
    /// Whether the status of a protected object shows that the object is in use.
    is_in_use: fn(&Object) -> bool,
}

/// Protects PersistentVolumeClaims while pods use them.
pub static CLAIMS: Protection = Protection {
    group: "",
    plural: "persistentvolumeclaims",
    finalizer: "kubernetes.io/pvc-protection",
    users: &["pods"],
    is_used_by: |claim, _, pod| uses_claim(pod, claim),
    is_in_use: |_| false,
};

/// Protects PersistentVolumes while they are bound to claims.
pub static VOLUMES: Protection = Protection {
    group: "",
    plural: "persistentvolumes",
    finalizer: "kubernetes.io/pv-protection",
    users: &[],
    is_used_by: |_, _, _| false,
    is_in_use: |volume| text(child(volume, "status"), "phase") == "Bound",
};

/// Protects VolumeAttributesClasses while claims or volumes name them.
pub static ATTRIBUTES_CLASSES: Protection = Protection {
    group: "storage.k8s.io",
    plural: "volumeattributesclasses",
    finalizer: "kubernetes.io/vac-protection",
    users: &["persistentvolumeclaims", "persistentvolumes"],
    is_used_by: |class, resource, user| uses_attributes_class(user, resource, text(metadata(class), "name")),
    is_in_use: |_| false,
};

/// Whether a pod uses a claim (`podUsesPVC`). Kubelets start no pod whose claim is being deleted, so a pod without a
/// node does not count.
fn uses_claim(pod: &Object, claim: &Object) -> bool {
    let spec = child(pod, "spec");
    let name = text(metadata(claim), "name");
    let uses = |volume: &Object| {
        let is_ephemeral = || {
            given(volume, "ephemeral").is_some()
                && !is_shut_down(pod)
                && name == format!("{}-{}", text(metadata(pod), "name"), text(volume, "name"))
                && is_controlled_by(claim, text(metadata(pod), "uid"))
        };
        text(child(volume, "persistentVolumeClaim"), "claimName") == name || is_ephemeral()
    };
    !text(spec, "nodeName").is_empty() && objects(spec, "volumes").any(|(_, volume)| uses(volume))
}

/// Whether the kubelet has shut down a pod, or the pod was force-deleted.
fn is_shut_down(pod: &Object) -> bool {
    let metadata = metadata(pod);
    given(metadata, "deletionTimestamp").is_some() && number(metadata, "deletionGracePeriodSeconds") == Some(0)
}

fn is_controlled_by(object: &Object, uid: &str) -> bool {
    let is_controller =
        |owner: &Object| owner.get("controller").and_then(Value::as_bool) == Some(true) && text(owner, "uid") == uid;
    objects(metadata(object), "ownerReferences").any(|(_, owner)| is_controller(owner))
}

fn uses_attributes_class(user: &Object, resource: &str, name: &str) -> bool {
    const MEMBER: &str = "volumeAttributesClassName";
    let status = child(user, "status");
    text(child(user, "spec"), MEMBER) == name
        || (resource == "persistentvolumeclaims"
            && (text(status, "currentVolumeAttributesClassName") == name
                || text(child(status, "modifyVolumeStatus"), "targetVolumeAttributesClassName") == name))
}

/// The next action for a protected object.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// No action.
    Nothing,
    /// Add the finalizer.
    Add,
    /// Remove the finalizer, unless the object is in use.
    Release,
}

fn step(object: &Object, finalizer: &str) -> Step {
    let metadata = metadata(object);
    let has_finalizer = texts(metadata, "finalizers").any(|one| one == finalizer);
    match (given(metadata, "deletionTimestamp").is_some(), has_finalizer) {
        (true, true) => Step::Release,
        (false, false) => Step::Add,
        _ => Step::Nothing,
    }
}

/// Adds or removes a finalizer in the stored tree, if the change is still needed.
fn apply(stored: &mut Object, finalizer: &str, wanted: &Step, holds: bool) -> Amendment {
    if step(stored, finalizer) != *wanted || holds {
        return Amendment::Leave;
    }
    let metadata = metadata_mut(stored);
    let mut finalizers: Vec<Value> =
        texts(metadata, "finalizers").filter(|one| *one != finalizer).map(Value::from).collect();
    if *wanted == Step::Add {
        finalizers.push(Value::from(finalizer));
    }
    if finalizers.is_empty() {
        return Amendment::Remove;
    }
    metadata.insert("finalizers", Value::Array(finalizers));
    Amendment::Write
}

/// The namespace (`""` if cluster-scoped) and the name of a protected object.
type Name = (String, String);

/// Protects the objects of a resource until the future is dropped.
pub async fn run(writer: Arc<Writer>, protection: &'static Protection) {
    loop {
        if let Err(why) = (Controller { writer: &writer, protection }).follow().await {
            tracing::warn!(why, resource = protection.plural, "cannot protect storage objects");
        }
        // The delay keeps this loop from spinning on a store that fails immediately.
        tokio::time::sleep(RETRY).await;
    }
}

struct Controller<'a> {
    writer: &'a Writer,
    protection: &'static Protection,
}

impl Controller<'_> {
    fn find(&self, group: &str, plural: &str) -> Option<Arc<Resource>> {
        let registry = self.writer.backend().registry();
        registry.resources().iter().find(|one| &*one.group == group && &*one.plural == plural).cloned()
    }

    fn cacher(&self, resource: &Resource) -> Cacher {
        self.writer.backend().cacher(resource)
    }

    async fn watch(&self, resource: &Resource, from: WatchFrom) -> Result<Watcher, String> {
        let request = WatchRequest {
            from,
            bookmarks: false,
            timeout_seconds: None,
            labels: LabelSelector::default(),
            fields: FieldSelector::default(),
            shard: None,
        };
        let deadline = Instant::now() + WATCH_TIME;
        self.cacher(resource).watch(&Scope::All, &request, deadline).await.map_err(|error| error.to_string())
    }

    /// Watches the protected objects, and their users while an object waits for them, until a watch ends.
    async fn follow(&self) -> Result<(), String> {
        let Protection { group, plural, .. } = *self.protection;
        let Some(resource) = self.find(group, plural) else { return std::future::pending().await };
        let all = WatchFrom::InitialEvents { at: ReadAt::Any, mark_end: false };
        let mut protected = self.watch(&resource, all).await?;
        let mut users: Vec<Watcher> = Vec::new();
        // The objects in use, and those whose change failed.
        let mut waiting: BTreeSet<Name> = BTreeSet::new();
        let mut failed: BTreeMap<Name, Instant> = BTreeMap::new();
        loop {
            let retry_at = failed.values().min().copied();
            let due: Vec<Name> = tokio::select! {
                delivery = protected.next() => match event(delivery)? {
                    None => return Ok(()),
                    Some(None) => Vec::new(),
                    Some(Some((name, Change::Deleted))) => {
                        waiting.remove(&name);
                        failed.remove(&name);
                        Vec::new()
                    }
                    Some(Some((name, _))) => vec![name],
                },
                delivery = next_of(&mut users) => match event(delivery)? {
                    None => return Ok(()),
                    Some(None) => Vec::new(),
                    Some(Some(((namespace, _), _))) => {
                        waiting.iter().filter(|(of, _)| of.is_empty() || *of == namespace).cloned().collect()
                    }
                },
                () = sleep_until(retry_at) => failed.keys().cloned().collect(),
            };
            for name in due {
                failed.remove(&name);
                match self.settle(&resource, &name, &mut users).await {
                    Ok(true) => {
                        waiting.insert(name);
                    }
                    Ok(false) => {
                        waiting.remove(&name);
                    }
                    Err(status) => {
                        tracing::warn!(?name, %status, "cannot change the finalizer of a storage object");
                        failed.insert(name, Instant::now() + RETRY);
                    }
                }
            }
            if waiting.is_empty() {
                users.clear();
            }
        }
    }

    /// Adds or removes the finalizer of an object. Returns true if the object is still in use; `users` then watches the
    /// users of the object.
    async fn settle(
        &self,
        resource: &Resource,
        (namespace, name): &Name,
        users: &mut Vec<Watcher>,
    ) -> Result<bool, Status> {
        let Protection { finalizer, is_in_use, .. } = *self.protection;
        let key = resource.key(Some(namespace.as_str()).filter(|name| !name.is_empty()), name)?;
        let found = self.cacher(resource).get(&key, ReadAt::Any).await.map_err(|error| error.status(resource.gr()))?;
        let Some(found) = found else { return Ok(false) };
        let object: Object = serde_json::from_slice(found.json_slice()).map_err(Status::internal)?;
        let wanted = step(&object, finalizer);
        match wanted {
            Step::Nothing => return Ok(false),
            Step::Release if is_in_use(&object) => return Ok(false),
            Step::Release if self.is_used(&object, namespace, users).await? => return Ok(true),
            Step::Release | Step::Add => {}
        }
        let change = |stored: &mut Object| {
            let holds = wanted == Step::Release && is_in_use(stored);
            apply(stored, finalizer, &wanted, holds)
        };
        self.writer.amend(resource, &key, change).await?;
        Ok(false)
    }

    /// Whether an object is in use. The watches of possible users start before the lists, so that no change is missed.
    async fn is_used(&self, object: &Object, namespace: &str, users: &mut Vec<Watcher>) -> Result<bool, Status> {
        let resources = self.protection.users.iter().filter_map(|plural| self.find("", plural));
        let resources: Vec<Arc<Resource>> = resources.collect();
        if users.is_empty() {
            for resource in &resources {
                let watcher = self.watch(resource, WatchFrom::Now(ReadAt::MostRecent)).await;
                users.push(watcher.map_err(Status::internal)?);
            }
        }
        for resource in &resources {
            let request = ListRequest {
                at: ReadAt::MostRecent,
                limit: None,
                resume: None,
                labels: LabelSelector::default(),
                fields: FieldSelector::default(),
                shard: None,
            };
            let scope = match namespace {
                "" => Scope::All,
                namespace => Scope::Namespace(namespace.to_owned()),
            };
            let list = self.cacher(resource).list(&scope, &request).await;
            let list = list.map_err(|error| error.status(resource.gr()))?;
            for (index, found) in list.items.enumerate() {
                if index % 64 == 63 {
                    tokio::task::yield_now().await;
                }
                let user: Object = serde_json::from_slice(found.json_slice()).unwrap_or_default();
                if (self.protection.is_used_by)(object, &resource.plural, &user) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Returns the name and the change in an event of a watch. `None` means that the watch has ended, `Some(None)` is a
/// bookmark.
#[allow(clippy::option_option, reason = "the three outcomes are named in the documentation")]
fn event(delivery: Option<Delivery>) -> Result<Option<Option<(Name, Change)>>, String> {
    match delivery {
        None => Ok(None),
        Some(Delivery::Bookmark { .. }) => Ok(Some(None)),
        Some(Delivery::Error(status)) => Err(status.message),
        Some(Delivery::Event(event)) => {
            let name = (event.object().namespace().to_owned(), event.object().name().to_owned());
            Ok(Some(Some((name, event.change()))))
        }
    }
}

/// Waits for the next delivery of any of these watches. Never completes without watches.
async fn next_of(watchers: &mut [Watcher]) -> Option<Delivery> {
    if watchers.is_empty() {
        return std::future::pending().await;
    }
    let mut all: FuturesUnordered<_> = watchers.iter_mut().map(Watcher::next).collect();
    all.next().await.flatten()
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use listwatch_admission::AdmissionChain;
    use listwatch_cacher::Limits;
    use listwatch_json::json;
    use listwatch_registry::{Backend, Registry};
    use listwatch_storage::MemoryStorage;

    use super::*;

    fn tree(value: Value) -> Object {
        match value {
            Value::Object(object) => object,
            other => panic!("{other} is not an object"),
        }
    }

    #[test]
    fn claim_is_in_use_if_a_scheduled_pod_has_a_volume_of_the_claim() {
        let claim = tree(json!({"metadata": {"name": "p-v", "ownerReferences": [{"uid": "1", "controller": true}]}}));
        let ephemeral = json!([{"name": "v", "ephemeral": {}}]);
        for (pod, expected) in [
            (json!({"spec": {"nodeName": "n", "volumes": [{"persistentVolumeClaim": {"claimName": "p-v"}}]}}), true),
            (json!({"spec": {"nodeName": "n", "volumes": [{"persistentVolumeClaim": {"claimName": "other"}}]}}), false),
            (json!({"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "p-v"}}]}}), false),
            (json!({"metadata": {"name": "p", "uid": "1"}, "spec": {"nodeName": "n", "volumes": ephemeral}}), true),
            (json!({"metadata": {"name": "p", "uid": "2"}, "spec": {"nodeName": "n", "volumes": ephemeral}}), false),
            (json!({"metadata": {"name": "q", "uid": "1"}, "spec": {"nodeName": "n", "volumes": ephemeral}}), false),
            (
                json!({"metadata": {"name": "p", "uid": "1", "deletionTimestamp": "x", "deletionGracePeriodSeconds": 0},
                    "spec": {"nodeName": "n", "volumes": ephemeral}}),
                false,
            ),
        ] {
            assert_eq!(uses_claim(&tree(pod.clone()), &claim), expected, "{pod}");
        }
    }

    #[test]
    fn volume_attributes_class_is_in_use_if_a_claim_or_volume_names_it() {
        for (resource, user, expected) in [
            ("persistentvolumes", json!({"spec": {"volumeAttributesClassName": "c"}}), true),
            ("persistentvolumes", json!({"spec": {"volumeAttributesClassName": "d"}}), false),
            ("persistentvolumeclaims", json!({"spec": {"volumeAttributesClassName": "c"}}), true),
            ("persistentvolumeclaims", json!({"status": {"currentVolumeAttributesClassName": "c"}}), true),
            (
                "persistentvolumeclaims",
                json!({"status": {"modifyVolumeStatus": {"targetVolumeAttributesClassName": "c"}}}),
                true,
            ),
            ("persistentvolumeclaims", json!({}), false),
        ] {
            assert_eq!(uses_attributes_class(&tree(user.clone()), resource, "c"), expected, "{user}");
        }
    }

    #[test]
    fn protection_finalizer_is_changed_only_if_the_stored_object_still_needs_it() {
        let object = |finalizers: &[&str], deleting: bool| {
            let deleted = if deleting { json!("x") } else { json!(null) };
            tree(json!({"metadata": {"finalizers": finalizers, "deletionTimestamp": deleted}}))
        };
        let applied = |mut stored: Object, wanted: Step, holds: bool| {
            let amendment = apply(&mut stored, "f", &wanted, holds);
            (amendment, stored["metadata"]["finalizers"].clone())
        };
        assert_eq!(applied(object(&["a"], false), Step::Add, false), (Amendment::Write, json!(["a", "f"])));
        assert_eq!(applied(object(&["f", "a"], true), Step::Release, false), (Amendment::Write, json!(["a"])));
        assert_eq!(applied(object(&["f"], true), Step::Release, false).0, Amendment::Remove, "it was the last one");
        assert_eq!(applied(object(&["f"], true), Step::Release, true).0, Amendment::Leave, "it is bound meanwhile");
        assert_eq!(applied(object(&["f"], false), Step::Add, false).0, Amendment::Leave, "another server was faster");
        assert_eq!(applied(object(&[], true), Step::Release, false).0, Amendment::Leave);
    }

    struct Cluster(Arc<Writer>);

    impl Cluster {
        fn new() -> Self {
            let backend = Backend::new(MemoryStorage::new(), Registry::builtin(), true, Limits::default());
            Cluster(Arc::new(Writer::new(Arc::new(backend), AdmissionChain::default())))
        }

        async fn put(&self, plural: &str, object: Value) {
            let registry = self.0.backend().registry();
            let resource = registry.find("", "v1", plural).unwrap();
            let of = |name: &str| object["metadata"][name].as_str();
            let key = resource.key(of("namespace"), of("name").unwrap()).unwrap();
            let value = bytes::Bytes::from(object.to_string());
            self.0.backend().storage().create(&key, value, None).await.unwrap();
        }

        async fn stored(&self, plural: &str, namespace: Option<&str>, name: &str) -> Option<Value> {
            let registry = self.0.backend().registry();
            let key = registry.find("", "v1", plural).unwrap().key(namespace, name).unwrap();
            let (found, _) = self.0.backend().storage().get(&key).await.unwrap();
            found.map(|found| serde_json::from_slice(&found.value).unwrap())
        }

        async fn amend(
            &self,
            plural: &str,
            namespace: Option<&str>,
            name: &str,
            change: impl Fn(&mut Object) -> Amendment,
        ) {
            let registry = self.0.backend().registry();
            let resource = registry.find("", "v1", plural).unwrap();
            self.0.amend(resource, &resource.key(namespace, name).unwrap(), change).await.unwrap();
        }

        async fn wait_for(&self, plural: &str, namespace: Option<&str>, is: impl Fn(Option<&Value>) -> bool) {
            let wait = async {
                while !is(self.stored(plural, namespace, "x").await.as_ref()) {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), wait).await.expect("the controller does its work");
        }
    }

    fn mark_deleted(stored: &mut Object) -> Amendment {
        metadata_mut(stored).insert("deletionTimestamp", json!("2026-01-01T00:00:00Z"));
        Amendment::Write
    }

    #[tokio::test]
    async fn deleted_claim_is_kept_until_its_last_pod_is_deleted() {
        let cluster = Cluster::new();
        let controller = tokio::spawn(run(Arc::clone(&cluster.0), &CLAIMS));
        let named = |name: &str| json!({"name": name, "namespace": "a", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"});
        cluster
            .put(
                "persistentvolumeclaims",
                json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": named("x")}),
            )
            .await;
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}]);
        let spec = json!({"nodeName": "n", "volumes": volumes});
        cluster.put("pods", json!({"apiVersion": "v1", "kind": "Pod", "metadata": named("p"), "spec": spec})).await;
        let has_finalizer = |claim: Option<&Value>| {
            claim.is_some_and(|claim| claim["metadata"]["finalizers"] == json!(["kubernetes.io/pvc-protection"]))
        };
        cluster.wait_for("persistentvolumeclaims", Some("a"), has_finalizer).await;
        cluster.amend("persistentvolumeclaims", Some("a"), "x", mark_deleted).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(
            has_finalizer(cluster.stored("persistentvolumeclaims", Some("a"), "x").await.as_ref()),
            "a pod uses it"
        );
        cluster.amend("pods", Some("a"), "p", |_| Amendment::Remove).await;
        cluster.wait_for("persistentvolumeclaims", Some("a"), |claim| claim.is_none()).await;
        controller.abort();
    }

    #[tokio::test]
    async fn deleted_volume_is_kept_while_it_is_bound() {
        let cluster = Cluster::new();
        let controller = tokio::spawn(run(Arc::clone(&cluster.0), &VOLUMES));
        let metadata = json!({"name": "x", "uid": "x", "finalizers": ["kubernetes.io/pv-protection"],
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let volume =
            json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "status": {"phase": "Bound"}});
        cluster.put("persistentvolumes", volume).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(cluster.stored("persistentvolumes", None, "x").await.is_some(), "it is bound");
        let release = |stored: &mut Object| {
            stored.insert("status", json!({"phase": "Released"}));
            Amendment::Write
        };
        cluster.amend("persistentvolumes", None, "x", release).await;
        cluster.wait_for("persistentvolumes", None, |volume| volume.is_none()).await;
        controller.abort();
    }
}
