//! Tests DELETE of objects, collections and namespaces.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use listwatch_cacher::Limits;
use listwatch_meta::GroupResource;
use listwatch_registry::{Backend, Registry};

use super::*;
use listwatch_admission::{AdmissionChain, AdmissionFuture, AdmissionRequest, Operation, ValidatingAdmission};

const NAMESPACES: &str = "/api/v1/namespaces";

fn delete(path: &str) -> String {
    format!("DELETE {path}")
}

fn map(revision: u32, metadata: &str, rest: &str) -> String {
    format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"resourceVersion":"{revision}","name":"a","namespace":"default","uid":"UID","creationTimestamp":"NOW"{metadata}}}{rest}}}"#
    )
}

#[tokio::test]
async fn delete_without_finalizers_removes_the_object_at_once() {
    let world = World::new().await;
    world.send(&post(MAPS), r#"{"metadata":{"name":"a"}}"#).await.unwrap();
    let gone = r#"200 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","details":{"name":"a","kind":"configmaps","uid":"UID"}}"#;
    world.check(&delete(&format!("{MAPS}/a")), "", gone).await;
    world.refuse(&delete(&format!("{MAPS}/a")), "", 404, "configmaps \"a\" not found").await;
    assert_eq!(world.stored("/configmaps/").await, [""; 0]);
}

#[tokio::test]
async fn delete_with_a_failed_precondition_returns_409() {
    let world = World::new().await;
    world.send(&post(MAPS), r#"{"metadata":{"name":"a"}}"#).await.unwrap();
    let path = delete(&format!("{MAPS}/a"));
    world
        .refuse(
            &path,
            r#"{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"zzz"}}"#,
            409,
            "Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (zzz) does not match the UID in record (UID). The object might have been deleted and then recreated",
        )
        .await;
    world
        .refuse(
            &path,
            r#"{"preconditions":{"resourceVersion":"1"}}"#,
            409,
            "Operation cannot be fulfilled on ConfigMap \"a\": the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (3). The object might have been modified",
        )
        .await;
    let in_query = "Operation cannot be fulfilled on ConfigMap \"a\": the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (3). The object might have been modified";
    world.refuse(&delete(&format!("{MAPS}/a?resourceVersion=1")), "", 409, in_query).await;
    let right = format!(r#"{{"preconditions":{{"uid":"{UID}","resourceVersion":"3"}}}}"#);
    assert_eq!(world.send(&path, &right).await.unwrap().code, 200);
}

#[tokio::test]
async fn deleted_object_is_kept_until_its_last_finalizer_is_removed() {
    let world = World::new().await;
    world.send(&post(MAPS), r#"{"metadata":{"name":"a","finalizers":["x.io/a"]}}"#).await.unwrap();
    let deleting = r#","deletionTimestamp":"NOW","deletionGracePeriodSeconds":0"#;
    let held = format!(r#"{deleting},"finalizers":["x.io/a"]"#);
    let path = delete(&format!("{MAPS}/a"));
    world.check(&path, "", &format!("200 {}", map(4, &held, ""))).await;
    world.check(&path, "", &format!("200 {}", map(4, &held, ""))).await;
    let code = world.send(&path, r#"{"orphanDependents":false}"#).await.unwrap().code;
    assert_eq!(code, 202, "a deletion that waits says so to whoever still uses orphanDependents");
    world
        .refuse(
            &post(MAPS),
            r#"{"metadata":{"name":"a"}}"#,
            409,
            "object is being deleted: configmaps \"a\" already exists",
        )
        .await;
    world
        .refuse(
            &patch(MAPS, "a", MERGE),
            r#"{"metadata":{"finalizers":["x.io/a","x.io/b"]}}"#,
            422,
            "ConfigMap \"a\" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"x.io/b\"}",
        )
        .await;
    // A patch cannot cancel the deletion, but may change the object.
    world
        .check(
            &patch(MAPS, "a", MERGE),
            r#"{"metadata":{"deletionTimestamp":null,"deletionGracePeriodSeconds":null},"data":{"x":"y"}}"#,
            &format!("200 {}", map(5, &held, r#","data":{"x":"y"}"#)),
        )
        .await;
    world
        .check(
            &patch(MAPS, "a", JSON_PATCH),
            r#"[{"op":"remove","path":"/metadata/finalizers"}]"#,
            &format!("200 {}", map(5, deleting, r#","data":{"x":"y"}"#)),
        )
        .await;
    assert_eq!(world.stored("/configmaps/").await, [""; 0]);
    assert_eq!(world.revision().await, 6, "taking the last finalizer off is one event: the deletion");
}

#[tokio::test]
async fn graceful_deletion_increments_the_generation() {
    let world = World::new().await;
    world.send(&post(DEPLOYMENTS), DEPLOYMENT).await.unwrap();
    let answer = world.answer(&delete(&format!("{DEPLOYMENTS}/w?propagationPolicy=Foreground")), "").await;
    let expected = r#""generation":2,"creationTimestamp":"2024-01-01T00:00:00Z","deletionTimestamp":"2024-01-01T00:00:00Z","deletionGracePeriodSeconds":0,"finalizers":["foregroundDeletion"]"#;
    assert!(answer.contains(expected), "{answer}");
}

#[tokio::test]
async fn delete_collection_removes_only_the_selected_objects() {
    let world = World::new().await;
    for (name, labels) in [("a", r#"{"q":"1"}"#), ("b", r#"{"q":"2"}"#), ("c", r#"{"q":"1"}"#)] {
        let body = format!(r#"{{"metadata":{{"name":"{name}","labels":{labels}}}}}"#);
        world.send(&post(MAPS), &body).await.unwrap();
    }
    world.send("POST /api/v1/namespaces", r#"{"metadata":{"name":"other"}}"#).await.unwrap();
    world
        .send("POST /api/v1/namespaces/other/configmaps", r#"{"metadata":{"name":"a","labels":{"q":"1"}}}"#)
        .await
        .unwrap();
    let names = async |line: &str| {
        let WriteBody::List(meta, objects) = world.send(line, "").await.unwrap().body else { panic!("no list") };
        assert_eq!((meta.kind.as_str(), meta.api_version.as_str()), ("ConfigMapList", "v1"));
        assert_eq!(meta.continue_token.is_empty(), !line.contains("limit=1"), "a page says where the next begins");
        objects.iter().map(|object| object.name().to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&delete(&format!("{MAPS}?dryRun=All"))).await, "a b c");
    assert_eq!(names(&delete(&format!("{MAPS}?labelSelector=q%3D1&limit=1"))).await, "a");
    assert_eq!(names(&delete(&format!("{MAPS}?fieldSelector=metadata.name%3Dc"))).await, "c");
    assert_eq!(names(&delete(MAPS)).await, "b");
    assert_eq!(names(&delete(MAPS)).await, "");
    assert_eq!(world.stored("/configmaps/").await.len(), 1, "another namespace was touched");
    world
        .refuse(
            &delete(&format!("{MAPS}?fieldSelector=x.y%3Dz")),
            "",
            400,
            "\"x.y\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
        )
        .await;
}

#[tokio::test]
async fn delete_collection_with_a_failed_precondition_returns_409() {
    let world = World::new().await;
    world.send(&post(MAPS), r#"{"metadata":{"name":"a"}}"#).await.unwrap();
    for (preconditions, message) in [
        (
            r#"{"resourceVersion":"1"}"#,
            "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (3). The object might have been modified",
        ),
        (
            r#"{"uid":"zzz"}"#,
            "the UID in the precondition (zzz) does not match the UID in record (UID). The object might have been deleted and then recreated",
        ),
    ] {
        let options = format!(r#"{{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{preconditions}}}"#);
        let message = format!("Operation cannot be fulfilled on ConfigMap \"a\": {message}");
        world.refuse(&delete(MAPS), &options, 409, &message).await;
    }
    let in_query = "Operation cannot be fulfilled on ConfigMap \"a\": the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (3). The object might have been modified";
    world.refuse(&delete(&format!("{MAPS}/a?resourceVersion=1")), "", 409, in_query).await;
    let right = format!(r#"{{"preconditions":{{"uid":"{UID}","resourceVersion":"3"}}}}"#);
    assert_eq!(world.send(&delete(MAPS), &right).await.unwrap().code, 200);
    assert_eq!(world.stored("/configmaps/").await, [""; 0]);
}

/// Replaces the object by another one with the same name, or rejects its deletion with 409.
struct ReplaceOrConflict {
    storage: Arc<MemoryStorage>,
    replaces: bool,
}

impl ValidatingAdmission for ReplaceOrConflict {
    fn name(&self) -> &str {
        "ReplaceOrConflict"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.operation == Operation::Delete
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, _: &'a Map) -> AdmissionFuture<'a, ()> {
        Box::pin(async move {
            if !self.replaces {
                return Err(Status::conflict(GroupResource { group: "", resource: request.resource }, "a", "not now"));
            }
            let key = Key::from_path("/configmaps/default/a").unwrap();
            let found = self.storage.get(&key).await.unwrap().0.unwrap();
            let other = String::from_utf8_lossy(&found.value).replace(UID, "another");
            self.storage.update(&key, found.modified, other.into(), None).await.unwrap();
            Ok(())
        })
    }
}

#[tokio::test]
async fn delete_collection_skips_a_replaced_object_and_reports_any_other_conflict() {
    for (replaces, expected) in
        [(true, Ok(0)), (false, Err((409, "Operation cannot be fulfilled on configmaps \"a\": not now".to_owned())))]
    {
        let storage = MemoryStorage::new();
        let mut admission = AdmissionChain::default();
        admission.add_validating(Arc::new(ReplaceOrConflict { storage: storage.clone(), replaces }));
        let backend = Backend::new(storage, Registry::builtin(), true, Limits::default());
        let writer = Arc::new(Writer::new(Arc::new(backend), admission));
        let world = World { writer, clock: Clock::fixed(parse_timestamp(NOW).unwrap()) };
        world.send(&post(NAMESPACES), r#"{"metadata":{"name":"default"}}"#).await.unwrap();
        world.send(&post(MAPS), r#"{"metadata":{"name":"a"}}"#).await.unwrap();
        let found = world.send(&delete(MAPS), "").await.map_err(|status| (status.code, status.message));
        let found = found.map(|response| match response.body {
            WriteBody::List(_, deleted) => deleted.len(),
            _ => panic!("no list"),
        });
        assert_eq!(found, expected, "replaces: {replaces}");
        assert_eq!(world.stored("/configmaps/").await.len(), 1, "replaces: {replaces}");
    }
}

#[tokio::test]
async fn namespace_is_terminating_until_its_finalizers_are_removed() {
    let world = World::new().await;
    let namespace = |revision: u32, deleting: &str, finalizers: &str, spec: &str, phase: &str| {
        format!(
            r#"{{"kind":"Namespace","apiVersion":"v1","metadata":{{"resourceVersion":"{revision}","name":"n","uid":"UID","creationTimestamp":"NOW"{deleting},"labels":{{"kubernetes.io/metadata.name":"n"}}{finalizers}}},"spec":{spec},"status":{{"phase":"{phase}"}}}}"#
        )
    };
    let held = r#","finalizers":["a.b/c"]"#;
    world
        .check(
            &post(NAMESPACES),
            r#"{"metadata":{"name":"n","finalizers":["a.b/c"]},"spec":{"finalizers":["kubernetes"]},"status":{"phase":"Terminating"}}"#,
            &format!("201 {}", namespace(3, "", held, r#"{"finalizers":["kubernetes"]}"#, "Active")),
        )
        .await;
    let deleting = r#","deletionTimestamp":"NOW""#;
    let terminating = namespace(4, deleting, held, r#"{"finalizers":["kubernetes"]}"#, "Terminating");
    let path = format!("{NAMESPACES}/n");
    world.check(&delete(&path), "", &format!("200 {terminating}")).await;
    world.check(&delete(&path), "", &format!("200 {terminating}")).await;
    world
        .check(
            "POST /api/v1/namespaces/n/configmaps",
            r#"{"metadata":{"name":"f"}}"#,
            r#"403 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"configmaps \"f\" is forbidden: unable to create new content in namespace n because it is being terminated","reason":"Forbidden","details":{"name":"f","kind":"configmaps","causes":[{"reason":"NamespaceTerminating","message":"namespace n is being terminated","field":"metadata.namespace"}]},"code":403}"#,
        )
        .await;
    // Only the subresource finalizes. The patch still removes the manager from the managed fields.
    let disowned = namespace(5, deleting, held, r#"{"finalizers":["kubernetes"]}"#, "Terminating");
    world.check(&patch(NAMESPACES, "n", MERGE), r#"{"spec":{"finalizers":null}}"#, &format!("200 {disowned}")).await;
    world
        .check(
            &put(NAMESPACES, "n/finalize"),
            r#"{"metadata":{"name":"n","finalizers":["a.b/c"]},"spec":{"finalizers":[]}}"#,
            &format!("200 {}", namespace(6, deleting, held, "{}", "Terminating")),
        )
        .await;
    world
        .check(
            &patch(NAMESPACES, "n", MERGE),
            r#"{"metadata":{"finalizers":[]}}"#,
            &format!("200 {}", namespace(6, deleting, "", "{}", "Terminating")),
        )
        .await;
    assert_eq!(world.stored("/namespaces/").await.len(), 1, "the namespace is gone with its last finalizer");
}

#[tokio::test]
async fn delete_of_the_default_namespace_is_forbidden() {
    let world = World::new().await;
    world
        .refuse(
            &delete(&format!("{NAMESPACES}/default")),
            "",
            403,
            "namespaces \"default\" is forbidden: this namespace may not be deleted",
        )
        .await;
}

#[tokio::test]
async fn delete_of_a_job_warns_that_its_pods_are_preserved() {
    const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
    let world = World::new().await;
    let job = r#"{"metadata":{"name":"j"},"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}"#;
    let warning = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";
    for (line, warned) in [
        (format!("DELETE {JOBS}/j"), true),
        (format!("DELETE {JOBS}"), true),
        (format!("DELETE {JOBS}/j?propagationPolicy=Orphan"), false),
        (format!("DELETE {JOBS}?propagationPolicy=Background"), false),
        (format!("DELETE {JOBS}/j?orphanDependents=false"), false),
    ] {
        world.send(&post(JOBS), job).await.unwrap();
        let warnings = world.send(&line, "").await.unwrap().warnings;
        assert_eq!(warnings, Vec::from_iter(warned.then_some(warning)), "{line}");
        let left = world.stored("/jobs/").await.concat();
        assert_eq!(left.contains(r#""finalizers":["orphan"]"#), warned || line.contains("Orphan"), "{line}: {left}");
        world.send(&format!("DELETE {JOBS}/j?propagationPolicy=Background"), "").await.ok();
    }
}

/// Rejects the deletion of objects with the label `protected`, and counts its calls. The first call also lets another
/// client set that label, after the plugin has read the object.
struct ProtectLabeled {
    storage: Arc<MemoryStorage>,
    /// The key that another client changes during the first call.
    raced: Mutex<Option<Key>>,
    calls: AtomicUsize,
}

impl ValidatingAdmission for ProtectLabeled {
    fn name(&self) -> &str {
        "ProtectLabeled"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.operation == Operation::Delete
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a Map) -> AdmissionFuture<'a, ()> {
        Box::pin(async move {
            self.calls.fetch_add(1, Ordering::Relaxed);
            let raced = self.raced.lock().unwrap().take();
            if let Some(key) = raced {
                let found = self.storage.get(&key).await.unwrap().0.unwrap();
                let mut changed: Value = serde_json::from_slice(&found.value).unwrap();
                changed["metadata"]["labels"] = listwatch_json::json!({"protected": "yes"});
                self.storage.update(&key, found.modified, changed.to_string().into(), None).await.unwrap();
            }
            match object["metadata"].get("labels").is_some_and(|labels| labels.get("protected").is_some()) {
                true => Err(request.forbidden("the object is protected")),
                false => Ok(()),
            }
        })
    }
}

/// Returns a server with [`ProtectLabeled`], and the plugin.
async fn protecting(raced: Option<&str>) -> (World, Arc<ProtectLabeled>) {
    let storage = MemoryStorage::new();
    let raced = Mutex::new(raced.map(|path| Key::from_path(path).unwrap()));
    let plugin = Arc::new(ProtectLabeled { storage: storage.clone(), raced, calls: AtomicUsize::new(0) });
    let mut admission = AdmissionChain::default();
    admission.add_validating(plugin.clone());
    let backend = Backend::new(storage, Registry::builtin(), true, Limits::default());
    let writer = Arc::new(Writer::new(Arc::new(backend), admission));
    let world = World { writer, clock: Clock::fixed(parse_timestamp(NOW).unwrap()) };
    world.send(&post(NAMESPACES), r#"{"metadata":{"name":"default"}}"#).await.unwrap();
    (world, plugin)
}

#[tokio::test]
async fn deletion_of_an_object_that_changed_during_admission_runs_admission_again() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let pod = r#"{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;
    let cases = [
        (delete(&format!("{MAPS}/a")), "", MAPS, r#"{"metadata":{"name":"a"}}"#, "/configmaps/default/a"),
        (delete(MAPS), "", MAPS, r#"{"metadata":{"name":"a"}}"#, "/configmaps/default/a"),
        (delete(&format!("{PODS}/a")), "", PODS, pod, "/pods/default/a"),
    ];
    for (line, body, collection, object, key) in cases {
        let (world, plugin) = protecting(Some(key)).await;
        world.send(&post(collection), object).await.unwrap();
        let refused = world.send(&line, body).await.unwrap_err();
        assert_eq!(refused.code, 403, "{line}: {}", refused.message);
        assert_eq!(plugin.calls.load(Ordering::Relaxed), 2, "{line}");
        let left = world.stored(key.trim_end_matches("default/a")).await.concat();
        assert!(!left.is_empty() && !left.contains("deletionTimestamp"), "{line}: {left}");
    }
}

#[tokio::test]
async fn eviction_runs_no_deletion_admission() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let (world, plugin) = protecting(None).await;
    let pod =
        r#"{"metadata":{"name":"a","labels":{"protected":"yes"}},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;
    world.send(&post(PODS), pod).await.unwrap();
    let eviction = r#"{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"a"}}"#;
    world.send(&post(&format!("{PODS}/a/eviction")), eviction).await.unwrap();
    assert_eq!(world.stored("/pods/").await, [""; 0]);
    assert_eq!(plugin.calls.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn delete_of_a_namespace_or_definition_with_a_failed_precondition_names_the_resource() {
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let world = World::new().await;
    let definition = r#"{"metadata":{"name":"as.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"as","kind":"A"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}"#;
    world.send(&post(DEFINITIONS), definition).await.unwrap();
    world.send(&post(NAMESPACES), r#"{"metadata":{"name":"n"}}"#).await.unwrap();
    for (object, resource, name, revision) in [
        (format!("{NAMESPACES}/n"), "namespaces", "n", 4),
        (
            format!("{DEFINITIONS}/as.example.com"),
            "customresourcedefinitions.apiextensions.k8s.io",
            "as.example.com",
            3,
        ),
    ] {
        let failed = |what: &str, wanted: &str, found: &str| {
            format!(
                "Operation cannot be fulfilled on {resource} \"{name}\": Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
            )
        };
        let other_uid = failed("UID", "x", "UID");
        world.refuse(&delete(&format!("{object}?uid=x")), "", 409, &other_uid).await;
        let stale = failed("ResourceVersion", "1", &revision.to_string());
        world.refuse(&delete(&format!("{object}?resourceVersion=1")), "", 409, &stale).await;
    }
}

#[tokio::test]
async fn delete_that_changes_nothing_runs_no_admission() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let (world, plugin) = protecting(None).await;
    let pod = r#"{"metadata":{"name":"p"},"spec":{"nodeName":"n","containers":[{"name":"c","image":"i"}]}}"#;
    world.send(&post(PODS), pod).await.unwrap();
    world.send(&post(NAMESPACES), r#"{"metadata":{"name":"n"}}"#).await.unwrap();
    for (line, calls) in [(delete(&format!("{PODS}/p")), 1), (delete(&format!("{NAMESPACES}/n")), 2)] {
        for _ in 0..2 {
            world.send(&line, "").await.unwrap();
            assert_eq!(plugin.calls.load(Ordering::Relaxed), calls, "{line}");
        }
    }
    // A shorter grace period is a change.
    world.send(&delete(&format!("{PODS}/p?gracePeriodSeconds=5")), "").await.unwrap();
    assert_eq!(plugin.calls.load(Ordering::Relaxed), 3);
}
