//! Tests what mutating admission plugins may change, and when they run.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use listwatch_cacher::Limits;
use listwatch_json::json;
use listwatch_registry::{Backend, Registry};
use listwatch_validation::{metadata, metadata_mut};

use super::*;
use listwatch_admission::{AdmissionChain, AdmissionFuture, AdmissionRequest, MutatingAdmission, Operation};

const NAMESPACES: &str = "/api/v1/namespaces";

/// Writes the members of the annotation `set`, a JSON object, into the metadata of ConfigMaps. Rejects objects with the
/// annotation `reject`.
#[derive(Default)]
struct SetMetadata {
    calls: AtomicUsize,
    /// The metadata of the last object before the change.
    seen: Mutex<String>,
}

impl MutatingAdmission for SetMetadata {
    fn name(&self) -> &str {
        "SetMetadata"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.resource == "configmaps" && request.operation != Operation::Delete
    }

    fn admit<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a mut Map) -> AdmissionFuture<'a, ()> {
        Box::pin(async move {
            self.calls.fetch_add(1, Ordering::Relaxed);
            let mut seen = metadata(object).clone();
            seen.shift_remove("managedFields");
            *self.seen.lock().unwrap() = Value::Object(seen).to_string();
            let annotations = metadata(object).get("annotations").cloned().unwrap_or(Value::Null);
            if annotations.get("reject").is_some() {
                return Err(request.forbidden("rejected"));
            }
            let Some(set) = annotations.get("set").and_then(Value::as_str) else { return Ok(()) };
            let Value::Object(set) = serde_json::from_str(set).unwrap() else { panic!("no object: {set}") };
            metadata_mut(object).extend(set);
            Ok(())
        })
    }
}

async fn mutating() -> (World, Arc<SetMetadata>) {
    let plugin = Arc::new(SetMetadata::default());
    let mut admission = AdmissionChain::default();
    admission.add_mutating(plugin.clone());
    let backend = Backend::new(MemoryStorage::new(), Registry::builtin(), true, Limits::default());
    let writer = Arc::new(Writer::new(Arc::new(backend), admission));
    let world = World { writer, clock: Clock::fixed(parse_timestamp(NOW).unwrap()) };
    world.send(&post(NAMESPACES), r#"{"metadata":{"name":"default"}}"#).await.unwrap();
    (world, plugin)
}

/// A ConfigMap with these members of the metadata, into which the plugin writes `set`.
fn map(members: &str, set: &Value) -> String {
    let set = Value::from(set.to_string());
    format!(r#"{{"metadata":{{{members},"annotations":{{"set":{set}}}}}}}"#)
}

/// The keys and names of the stored ConfigMaps.
async fn names(world: &World) -> Vec<String> {
    let name = |entry: String| {
        let (key, value) = entry.split_once('=').unwrap();
        let object: Value = serde_json::from_str(value).unwrap();
        format!("{key} {}", object["metadata"]["name"].as_str().unwrap())
    };
    world.stored("/configmaps/").await.into_iter().map(name).collect()
}

/// The warnings of the response.
async fn warnings(world: &World, line: &str, body: &str) -> Vec<String> {
    world.send(line, body).await.unwrap().warnings
}

#[tokio::test]
async fn posted_object_is_stored_with_the_name_that_a_plugin_sets() {
    let (world, plugin) = mutating().await;
    let b = json!({"name": "b"});
    let created = world.answer(&post(MAPS), &map(r#""name":"a""#, &b)).await;
    assert!(created.starts_with("201") && created.contains(r#""name":"b""#), "{created}");
    assert_eq!(names(&world).await, ["/configmaps/default/b b"]);
    world.refuse(&post(MAPS), &map(r#""name":"c""#, &b), 409, "configmaps \"b\" already exists").await;
    world
        .refuse(&post(&format!("{MAPS}?dryRun=All")), &map(r#""name":"c""#, &b), 409, "configmaps \"b\" already exists")
        .await;
    let calls = plugin.calls.load(Ordering::Relaxed);
    let generated = world.answer(&post(MAPS), &map(r#""generateName":"x-""#, &json!({"name": "fixed"}))).await;
    assert!(generated.starts_with("201") && generated.contains(r#""name":"fixed""#), "{generated}");
    assert_eq!(plugin.calls.load(Ordering::Relaxed), calls + 1, "the plugin runs once");
    assert_eq!(names(&world).await, ["/configmaps/default/b b", "/configmaps/default/fixed fixed"]);
    let taken = "configmaps \"fixed\" already exists, the server was not able to generate a unique name for the object";
    world.refuse(&post(MAPS), &map(r#""generateName":"x-""#, &json!({"name": "fixed"})), 409, taken).await;
    assert_eq!(plugin.calls.load(Ordering::Relaxed), calls + 2, "another generated name would change nothing");
    let status = world.send(&post(MAPS), &map(r#""name":"a""#, &json!({"name": "Bad_"}))).await.unwrap_err();
    assert_eq!((status.code, &*status.details.unwrap().causes[0].field), (422, "metadata.name"));
    world.send(&format!("DELETE {MAPS}/b"), "").await.unwrap();
    assert_eq!(names(&world).await, ["/configmaps/default/fixed fixed"]);
}

#[tokio::test]
async fn plugin_cannot_change_the_namespace_or_the_name_of_an_existing_object() {
    let (world, _) = mutating().await;
    let other = "the namespace of the provided object does not match the namespace sent on the request";
    world.refuse(&post(MAPS), &map(r#""name":"a""#, &json!({"namespace": "x"})), 400, other).await;
    world.send(&post(MAPS), r#"{"metadata":{"name":"a"}}"#).await.unwrap();
    world.refuse(&put(MAPS, "a"), &map(r#""name":"a""#, &json!({"namespace": "x"})), 400, other).await;
    let renamed = "ConfigMap \"b\" is invalid: metadata.name: Invalid value: \"b\": field is immutable";
    world.refuse(&put(MAPS, "a"), &map(r#""name":"a""#, &json!({"name": "b"})), 422, renamed).await;
    assert_eq!(names(&world).await, ["/configmaps/default/a a"]);
}

#[tokio::test]
async fn owner_references_that_a_plugin_repeats_are_removed_with_a_warning() {
    let (world, _) = mutating().await;
    let owner = json!({"apiVersion": "v1", "kind": "A", "name": "o", "uid": "u"});
    let after = ".metadata.ownerReferences contains duplicate entries after mutating admission happens; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: u, u";
    let before = after.replace(" after mutating admission happens", "");
    let repeated = json!({"ownerReferences": [owner, owner, owner]});
    let made = warnings(&world, &post(MAPS), &map(r#""name":"a""#, &repeated)).await;
    assert_eq!(made, [after], "a plugin repeats them");
    let body = json!({"metadata": {"name": "b", "ownerReferences": [owner, owner, owner]}}).to_string();
    assert_eq!(warnings(&world, &post(MAPS), &body).await, [&*before]);
    let body = json!({"metadata": {"ownerReferences": [owner, owner, owner]}}).to_string();
    assert_eq!(warnings(&world, &patch(MAPS, "b", MERGE), &body).await, [after]);
    for value in world.stored("/configmaps/").await {
        assert_eq!(value.matches(r#""uid":"u""#).count(), 1, "{value}");
    }
}

#[tokio::test]
async fn plugin_rejects_an_update_before_its_version_is_checked() {
    let (world, plugin) = mutating().await;
    world.send(&post(MAPS), r#"{"metadata":{"name":"a"}}"#).await.unwrap();
    let stale = r#"{"metadata":{"name":"a","resourceVersion":"1","annotations":{"reject":""}}}"#;
    world.refuse(&put(MAPS, "a"), stale, 403, "configmaps \"a\" is forbidden: rejected").await;
    let calls = plugin.calls.load(Ordering::Relaxed);
    let stale = r#"{"metadata":{"name":"a","resourceVersion":"1"}}"#;
    let modified = "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again";
    world.refuse(&put(MAPS, "a"), stale, 409, modified).await;
    assert!(plugin.calls.load(Ordering::Relaxed) > calls);
}

#[tokio::test]
async fn plugin_sees_a_posted_object_without_the_fields_of_the_server() {
    let (world, plugin) = mutating().await;
    let body = r#"{"metadata":{"name":"a","uid":"mine","creationTimestamp":"2001-01-01T00:00:00Z","deletionTimestamp":"2001-01-01T00:00:00Z","deletionGracePeriodSeconds":5,"selfLink":"/x","generation":7}}"#;
    let answer = world.answer(&post(MAPS), body).await;
    assert!(answer.starts_with("201") && answer.contains(r#""generation":7"#), "{answer}");
    let seen = plugin.seen.lock().unwrap().clone();
    assert_eq!(seen, r#"{"name":"a","generation":7,"namespace":"default"}"#);
    let negative = r#"{"metadata":{"name":"b","generation":-1}}"#;
    let why = "ConfigMap \"b\" is invalid: metadata.generation: Invalid value: -1: must be greater than or equal to 0";
    world.refuse(&post(MAPS), negative, 422, why).await;
}
