//! Tests the work queue without I/O, and complete namespace deletions on the in-memory store.

use listwatch_meta::{ObjectShape, Revision};
use listwatch_storage::{MemoryStorage, Storage};

use super::*;
use listwatch_admission::{AdmissionChain, AdmissionFuture, AdmissionRequest, Operation, ValidatingAdmission};
use listwatch_cacher::Limits;
use listwatch_registry::{Backend, Registry};
use listwatch_write::testing;

fn namespace(name: &str, deleting: bool) -> Object {
    let deletion = if deleting { r#","deletionTimestamp":"2024-01-01T00:00:00Z""# } else { "" };
    let value = format!(r#"{{"metadata":{{"name":"{name}"{deletion}}}}}"#);
    let key = Key::new("namespaces", None, name).unwrap();
    let shape = ObjectShape::new(false, Vec::new());
    Object::from_stored(key, Revision::new(1), Change::Modified, value.as_bytes(), &shape).unwrap()
}

#[test]
fn namespace_queue_doubles_the_retry_delay_and_drops_deleted_namespaces() {
    let start = Instant::now();
    let at = |millis: u64| start + Duration::from_millis(millis);
    let mut queue = WorkQueue::default();
    queue.handle_event(&namespace("quiet", false), Change::Added, at(0));
    assert_eq!(queue.start(at(0)), None, "only what is being deleted is looked at");

    queue.handle_event(&namespace("n", true), Change::Modified, at(0));
    assert_eq!(queue.start(at(0)).as_deref(), Some("n"));
    assert_eq!(queue.start(at(0)), None, "one look at a time");
    queue.finish("n", SyncResult::Again, at(0));
    assert_eq!((queue.start(at(99)), queue.due()), (None, Some(at(100))));
    queue.handle_event(&namespace("n", true), Change::Modified, at(50));
    assert_eq!(queue.due(), Some(at(100)), "our own condition update must not shorten the wait");
    assert_eq!(queue.start(at(100)).as_deref(), Some("n"));
    queue.finish("n", SyncResult::Again, at(100));
    assert_eq!(queue.due(), Some(at(300)), "the wait doubles");
    for _ in 0..40 {
        queue.start(queue.due().unwrap()).unwrap();
        queue.finish("n", SyncResult::Again, at(0));
    }
    assert_eq!(queue.due(), Some(at(0) + RETRY_MAX), "and has an end");

    assert_eq!(queue.start(at(60_000)).as_deref(), Some("n"));
    assert!(!queue.is_settled("n"));
    queue.finish("n", SyncResult::Settle, at(60_000));
    assert_eq!(queue.due(), Some(at(60_000) + SETTLE), "an empty namespace is looked at once more");
    assert!(queue.is_settled("n") && queue.start(at(60_000) + SETTLE).is_some());
    queue.finish("n", SyncResult::Done, at(60_000));
    assert_eq!(queue.due(), None);

    queue.handle_event(&namespace("gone", true), Change::Modified, at(0));
    queue.handle_event(&namespace("gone", true), Change::Deleted, at(1));
    assert_eq!(queue.due(), None, "what is gone needs no look");

    queue.handle_event(&namespace("again", true), Change::Modified, at(0));
    queue.start(at(0)).unwrap();
    queue.handle_event(&namespace("again", true), Change::Modified, at(1));
    queue.finish("again", SyncResult::Done, at(1));
    assert!(queue.due().is_some(), "what changed during the look is looked at again");
}

struct World {
    writer: Arc<Writer>,
}

impl World {
    fn over(storage: Arc<dyn Storage>) -> Self {
        World { writer: Arc::new(testing::writer(storage)) }
    }

    async fn send(
        &self,
        verb: WriteVerb,
        path: (&str, &str, &str),
        namespace: Option<&str>,
        name: Option<&str>,
        body: &str,
    ) {
        let registry = self.writer.backend().registry();
        let request = WriteRequest {
            verb,
            resource: registry.find(path.0, path.1, path.2).unwrap(),
            namespace,
            name,
            subresource: None,
            query: &Query::default(),
            content_type: (verb == WriteVerb::Patch).then_some("application/merge-patch+json"),
            user: UserInfo::admin(),
            user_agent: None,
            body: Bytes::copy_from_slice(body.as_bytes()),
        };
        self.writer.write(request).await.unwrap();
    }

    async fn get(&self, path: &str) -> Option<Value> {
        let key = Key::from_path(path).unwrap();
        let (found, _) = self.writer.backend().storage().get(&key).await.unwrap();
        found.map(|found| serde_json::from_slice(&found.value).unwrap())
    }

    /// Waits until the value at a key satisfies `wanted`, by watching the store.
    async fn until(&self, path: &str, wanted: impl Fn(Option<&Value>) -> bool) {
        let key = Key::from_path(path).unwrap();
        let range = listwatch_meta::KeyRange::single(&key);
        let (_, now) = self.writer.backend().storage().get(&key).await.unwrap();
        let mut watch = self.writer.backend().storage().watch(range, now).await.unwrap();
        let waiting = async {
            while !wanted(self.get(path).await.as_ref()) {
                watch.next().await.expect("the store is open");
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("the namespace loop came to nothing");
    }
}

const NAMESPACES: (&str, &str, &str) = ("", "v1", "namespaces");
const MAPS: (&str, &str, &str) = ("", "v1", "configmaps");
const DEPLOYMENTS: (&str, &str, &str) = ("apps", "v1", "deployments");

#[tokio::test]
async fn servers_starting_together_create_each_system_namespace_once() {
    let storage = MemoryStorage::new();
    let servers: Vec<_> = (0..4).map(|_| World::over(storage.clone())).collect();
    let starts: Vec<_> = servers
        .iter()
        .map(|world| {
            let writer = Arc::clone(&world.writer);
            tokio::spawn(async move { ensure_system_namespaces(&writer).await })
        })
        .collect();
    for start in starts {
        start.await.unwrap().unwrap();
    }
    let revision = storage.current_revision().await.unwrap();
    ensure_system_namespaces(&servers[0].writer).await.unwrap();
    assert_eq!(storage.current_revision().await.unwrap(), revision, "a second start writes nothing");
    for name in SYSTEM_NAMESPACES {
        let namespace = servers[0].get(&format!("/namespaces/{name}")).await.unwrap();
        assert_eq!(namespace["spec"]["finalizers"], json!(["kubernetes"]));
        assert_eq!(namespace["status"]["phase"], "Active");
    }
}

/// Creates the namespace `n` with a few objects. One of them has a finalizer.
async fn furnished(world: &World) {
    world.send(WriteVerb::Create, NAMESPACES, None, None, r#"{"metadata":{"name":"n"}}"#).await;
    world.send(WriteVerb::Create, NAMESPACES, None, None, r#"{"metadata":{"name":"nn"}}"#).await;
    let create = async |path, body: &str| world.send(WriteVerb::Create, path, Some("n"), None, body).await;
    create(MAPS, r#"{"metadata":{"name":"a"}}"#).await;
    create(MAPS, r#"{"metadata":{"name":"held","finalizers":["x.io/y"]}}"#).await;
    let deployment = r#"{"metadata":{"name":"w"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}"#;
    create(DEPLOYMENTS, deployment).await;
    create(("", "v1", "services"), r#"{"metadata":{"name":"s"},"spec":{"ports":[{"port":80}]}}"#).await;
    world.send(WriteVerb::Create, MAPS, Some("nn"), None, r#"{"metadata":{"name":"neighbour"}}"#).await;
}

#[tokio::test]
async fn deleted_namespace_is_emptied_and_then_removed() {
    let world = World::over(MemoryStorage::new());
    furnished(&world).await;
    let running = tokio::spawn(run(Arc::clone(&world.writer)));
    world.send(WriteVerb::Delete, NAMESPACES, None, Some("n"), "").await;

    // The object with the finalizer stays, and the namespace conditions report it.
    let remains = |namespace: Option<&Value>| {
        let conditions = namespace.and_then(|namespace| namespace["status"]["conditions"].as_array());
        conditions.is_some_and(|conditions| {
            let message = |kind: &str| {
                let found =
                    conditions.iter().find(|condition| condition["type"] == kind && condition["status"] == "True");
                found.and_then(|condition| condition["message"].as_str()).map(str::to_owned)
            };
            message("NamespaceContentRemaining").as_deref()
                == Some("Some resources are remaining: configmaps. has 1 resource instances")
                && message("NamespaceFinalizersRemaining").as_deref()
                    == Some("Some content in the namespace has finalizers remaining: x.io/y in 1 resource instances")
        })
    };
    world.until("/namespaces/n", remains).await;
    assert_eq!(world.get("/configmaps/n/a").await, None);
    assert_eq!(world.get("/deployments/n/w").await, None);
    assert_eq!(world.get("/services/specs/n/s").await, None);

    let free = r#"{"metadata":{"finalizers":null}}"#;
    world.send(WriteVerb::Patch, MAPS, Some("n"), Some("held"), free).await;
    world.until("/namespaces/n", |namespace| namespace.is_none()).await;
    assert!(world.get("/configmaps/nn/neighbour").await.is_some(), "a neighbour was emptied too");
    running.abort();
}

#[tokio::test]
async fn pods_of_a_deleted_namespace_are_gone_before_its_other_objects() {
    const PODS: (&str, &str, &str) = ("", "v1", "pods");
    let world = World::over(MemoryStorage::new());
    furnished(&world).await;
    let pod = r#"{"metadata":{"name":"p","finalizers":["x.io/y"]},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;
    world.send(WriteVerb::Create, PODS, Some("n"), None, pod).await;
    world.send(WriteVerb::Patch, MAPS, Some("n"), Some("held"), r#"{"metadata":{"finalizers":null}}"#).await;
    let running = tokio::spawn(run(Arc::clone(&world.writer)));
    world.send(WriteVerb::Delete, NAMESPACES, None, Some("n"), "").await;

    let reports_the_pod = |namespace: Option<&Value>| {
        namespace.is_some_and(|namespace| namespace.to_string().contains("pods. has 1 resource instances"))
    };
    world.until("/namespaces/n", reports_the_pod).await;
    let pod = world.get("/pods/n/p").await.expect("its finalizer holds the pod");
    assert!(pod["metadata"]["deletionTimestamp"].is_string(), "{pod}");
    for path in ["/configmaps/n/a", "/deployments/n/w", "/services/specs/n/s"] {
        assert!(world.get(path).await.is_some(), "{path} is deleted before the pod");
    }
    world.send(WriteVerb::Patch, PODS, Some("n"), Some("p"), r#"{"metadata":{"finalizers":null}}"#).await;
    world.until("/namespaces/n", |namespace| namespace.is_none()).await;
    assert_eq!(world.get("/configmaps/n/a").await, None);
    running.abort();
}

#[tokio::test]
async fn started_servers_complete_the_deletion_of_terminating_namespaces() {
    let storage = MemoryStorage::new();
    let world = World::over(storage.clone());
    furnished(&world).await;
    world.send(WriteVerb::Delete, NAMESPACES, None, Some("n"), "").await;
    world.send(WriteVerb::Patch, MAPS, Some("n"), Some("held"), r#"{"metadata":{"finalizers":null}}"#).await;
    // No server has run the controller yet; three servers start it at once.
    let servers: Vec<_> = (0..3).map(|_| World::over(storage.clone())).collect();
    let loops: Vec<_> = servers.iter().map(|world| tokio::spawn(run(Arc::clone(&world.writer)))).collect();
    world.until("/namespaces/n", |namespace| namespace.is_none()).await;
    assert_eq!(world.get("/configmaps/n/a").await, None);
    assert!(world.get("/namespaces/nn").await.is_some());
    loops.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn namespace_with_a_custom_finalizer_stays_until_the_finalizer_is_removed() {
    let world = World::over(MemoryStorage::new());
    let body = r#"{"metadata":{"name":"n","finalizers":["x.io/y"]}}"#;
    world.send(WriteVerb::Create, NAMESPACES, None, None, body).await;
    let running = tokio::spawn(run(Arc::clone(&world.writer)));
    world.send(WriteVerb::Delete, NAMESPACES, None, Some("n"), "").await;
    world.until("/namespaces/n", |namespace| namespace.is_some_and(|n| n["spec"].get("finalizers").is_none())).await;
    world.send(WriteVerb::Patch, NAMESPACES, None, Some("n"), r#"{"metadata":{"finalizers":null}}"#).await;
    assert_eq!(world.get("/namespaces/n").await, None);
    running.abort();
}

#[tokio::test]
async fn namespace_controller_skips_kinds_with_unreadable_values() {
    let storage = MemoryStorage::new();
    let world = World::over(storage.clone());
    furnished(&world).await;
    let key = Key::from_path("/configmaps/n/held").unwrap();
    let (found, _) = storage.get(&key).await.unwrap();
    let held = found.unwrap();
    let damaged = storage.update(&key, held.modified, "k8s\0".into(), None).await.unwrap();
    let running = tokio::spawn(run(Arc::clone(&world.writer)));
    world.send(WriteVerb::Delete, NAMESPACES, None, Some("n"), "").await;
    let failed = |namespace: Option<&Value>| {
        let conditions = namespace.and_then(|namespace| namespace["status"]["conditions"].as_array());
        conditions.into_iter().flatten().any(|condition| {
            condition["type"] == "NamespaceDeletionContentFailure"
                && condition["status"] == "True"
                && condition["message"].as_str().unwrap().contains("/configmaps/n/held")
        })
    };
    world.until("/namespaces/n", failed).await;
    assert!(world.get("/configmaps/n/a").await.is_some(), "an object beside an unreadable one was deleted");
    assert_eq!(world.get("/deployments/n/w").await, None, "a kind that can be read was not deleted");
    let problem = async {
        while world.writer.backend().problems().text().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), problem).await.expect("no problem is reported");
    let problem = world.writer.backend().problems().text().unwrap();
    assert!(problem.starts_with("namespaces: cannot empty 1 of them, the first is n: "), "{problem}");

    let mended = storage.update(&key, damaged, held.value, None).await.unwrap();
    storage.delete(&key, mended).await.unwrap();
    world.until("/namespaces/n", |namespace| namespace.is_none()).await;
    running.abort();
}

#[tokio::test]
async fn unreadable_namespace_stops_the_namespace_controller_and_is_kept() {
    let storage = MemoryStorage::new();
    let world = World::over(storage.clone());
    furnished(&world).await;
    let key = Key::from_path("/namespaces/nn").unwrap();
    let (found, _) = storage.get(&key).await.unwrap();
    let found = found.unwrap();
    let damaged = storage.update(&key, found.modified, "k8s:enc:x".into(), None).await.unwrap();
    let running = tokio::spawn(run(Arc::clone(&world.writer)));
    let problem = async {
        while world.writer.backend().problems().text().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), problem).await.expect("no problem is reported");
    let problem = world.writer.backend().problems().text().unwrap();
    assert!(problem.starts_with("namespaces: none is emptied: failed to read one or more namespaces"), "{problem}");
    storage.update(&key, damaged, found.value, None).await.unwrap();
    world.send(WriteVerb::Patch, MAPS, Some("n"), Some("held"), r#"{"metadata":{"finalizers":null}}"#).await;
    world.send(WriteVerb::Delete, NAMESPACES, None, Some("n"), "").await;
    world.until("/namespaces/n", |namespace| namespace.is_none()).await;
    assert_eq!(world.writer.backend().problems().text(), None);
    running.abort();
}

/// Rejects each deletion of a ConfigMap.
struct KeepConfigMaps;

impl ValidatingAdmission for KeepConfigMaps {
    fn name(&self) -> &str {
        "KeepConfigMaps"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.operation == Operation::Delete && request.resource == "configmaps"
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, _: &'a Map) -> AdmissionFuture<'a, ()> {
        Box::pin(async move { Err(request.forbidden("kept")) })
    }
}

#[tokio::test]
async fn rejected_deletions_of_one_resource_are_reported_once_with_their_number() {
    let backend = Backend::new(MemoryStorage::new(), Registry::builtin(), true, Limits::default());
    let mut admission = AdmissionChain::default();
    admission.add_validating(Arc::new(KeepConfigMaps));
    let world = World { writer: Arc::new(Writer::new(Arc::new(backend), admission)) };
    furnished(&world).await;
    for number in 0..20 {
        let body = format!(r#"{{"metadata":{{"name":"map-{number}"}}}}"#);
        world.send(WriteVerb::Create, MAPS, Some("n"), None, &body).await;
    }
    let content = remove_content(&world.writer, "n").await.unwrap();
    assert_eq!(content.failures, ["configmaps: configmaps \"a\" is forbidden: kept (and 21 more objects)"]);
    assert_eq!(content.remaining, BTreeMap::new());
}

#[tokio::test]
async fn long_error_messages_are_truncated_in_the_namespace_condition() {
    let world = World::over(MemoryStorage::new());
    furnished(&world).await;
    let registry = world.writer.backend().registry();
    let namespaces = registry.find("", "v1", "namespaces").unwrap();
    let key = namespaces.key(None, "n").unwrap();
    let failures = (0..100).map(|number| format!("kind{number}: {}", "x".repeat(STATUS_TEXT_BYTES_MAX))).collect();
    report(&world.writer, namespaces, &key, &RemainingContent { failures, ..RemainingContent::default() })
        .await
        .unwrap();
    let namespace = world.get("/namespaces/n").await.unwrap();
    let conditions = namespace["status"]["conditions"].as_array().unwrap();
    let failed = conditions.iter().find(|condition| condition["type"] == "NamespaceDeletionContentFailure").unwrap();
    let message = failed["message"].as_str().unwrap();
    assert!(message.starts_with("Failed to delete all resource types, 100 remaining: kind0: "));
    assert_eq!(message.len(), STATUS_TEXT_BYTES_MAX + '…'.len_utf8());
}
