//! Tests kinds with two versions on one store. No field may be lost in a conversion.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_json::{Map, Value, json};
use listwatch_wire::protobuf;
use proptest::prelude::*;

use listwatch_apiserver::{ApiServer, Controllers};
use listwatch_kinds::versions::SECOND_VERSIONS;

const OLD_EVENTS: &str = "/api/v1/namespaces/default/events";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const SCALERS: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
const OLD_SCALERS: &str = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";

const MERGE: &str = "application/merge-patch+json";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

struct World {
    server: ApiServer,
    /// The resource version before the first write of a test.
    start: String,
}

impl World {
    async fn new() -> Self {
        let controllers = Controllers::NONE;
        let server = ApiServer::builder().controllers(controllers).build().await.unwrap();
        let mut world = World { server, start: String::new() };
        // The lists start the caches, so that watches can start at this version.
        for path in [EVENTS, OLD_SCALERS] {
            let list = world.get(path).await;
            list["metadata"]["resourceVersion"].as_str().unwrap().clone_into(&mut world.start);
        }
        world
    }

    /// Sends `<method> <path> [content type]`, and returns code and body.
    async fn bytes(&self, line: &str, accept: &str, body: &[u8]) -> (u16, Bytes) {
        let mut words = line.split(' ');
        let request = Request::builder().method(words.next().unwrap()).uri(words.next().unwrap());
        let request = request.header("user-agent", "test/1").header("accept", accept);
        let request = request.header("content-type", words.next().unwrap_or("application/json"));
        let body = Full::new(Bytes::copy_from_slice(body));
        let response = self.server.service().handle(request.body(body).unwrap()).await;
        (response.status().as_u16(), response.into_body().collect().await.unwrap().to_bytes())
    }

    /// Sends a request that must succeed, and returns the response.
    async fn send(&self, line: &str, body: Value) -> Value {
        self.seen(line, "application/json", body).await
    }

    /// Sends a request as [`World::send`] does, with an `Accept` header.
    async fn seen(&self, line: &str, accept: &str, body: Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (code, answer) = self.bytes(line, accept, body.as_bytes()).await;
        assert!((200..300).contains(&code), "{line}: {code} {}", String::from_utf8_lossy(&answer));
        serde_json::from_slice(&answer).unwrap()
    }

    async fn get(&self, path: &str) -> Value {
        self.send(&format!("GET {path}"), Value::Null).await
    }

    /// Sends a request that must be rejected, and compares code and message.
    async fn refuse(&self, line: &str, body: Value, code: u16, message: &str) {
        let (found, answer) = self.bytes(line, "application/json", body.to_string().as_bytes()).await;
        let status: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!((found, status["message"].as_str().unwrap_or_default()), (code, message), "{line}");
    }

    /// Returns the events of a watch from the start, which ends after its timeout.
    async fn watch(&self, path: &str, query: &str, accept: &str) -> Vec<Value> {
        let line = format!("GET {path}?watch=true&resourceVersion={}&timeoutSeconds=1&{query}", self.start);
        let (code, frames) = self.bytes(&line, accept, b"").await;
        assert_eq!(code, 200);
        let frames = frames.split(|byte| *byte == b'\n').filter(|frame| !frame.is_empty());
        frames.map(|frame| serde_json::from_slice(frame).unwrap()).collect()
    }

    async fn names(&self, path: &str, selector: &str) -> Vec<String> {
        let list = self.get(&format!("{path}?fieldSelector={selector}")).await;
        let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
        list["items"].as_array().unwrap().iter().map(name).collect()
    }
}

/// Removes the metadata that differs between writes.
fn plain(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    for name in ["resourceVersion", "uid", "creationTimestamp", "managedFields"] {
        metadata.shift_remove(name);
    }
    object
}

fn old_event(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "involvedObject": {"kind": "Pod", "name": "web", "namespace": "default", "fieldPath": "spec"},
        "reason": "Pulled", "message": "is here", "type": "Normal", "count": 3,
        "source": {"component": "kubelet", "host": "n1"},
        "firstTimestamp": "2024-01-01T00:00:00Z", "lastTimestamp": "2024-01-01T00:01:00Z",
    })
}

fn new_event(name: &str) -> Value {
    json!({
        "metadata": {"name": name}, "eventTime": "2024-01-01T00:00:00.000001Z",
        "reportingController": "example.com/c", "reportingInstance": "c-1", "action": "Binding", "reason": "Scheduled",
        "regarding": {"kind": "Pod", "name": "db", "namespace": "default"}, "note": "on n1", "type": "Normal",
        "series": {"count": 2, "lastObservedTime": "2024-01-01T00:00:01.000000Z"},
    })
}

#[tokio::test(start_paused = true)]
async fn event_is_readable_and_writable_in_both_versions() {
    let world = World::new().await;
    let made = world.send(&format!("POST {OLD_EVENTS}"), old_event("a")).await;
    let shown = world.get(&format!("{EVENTS}/a")).await;
    assert_eq!(
        plain(shown.clone()),
        json!({
            "kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": {"name": "a", "namespace": "default"},
            "eventTime": null, "reason": "Pulled",
            "regarding": {"kind": "Pod", "name": "web", "namespace": "default", "fieldPath": "spec"},
            "note": "is here", "type": "Normal", "deprecatedSource": {"component": "kubelet", "host": "n1"},
            "deprecatedFirstTimestamp": "2024-01-01T00:00:00Z", "deprecatedLastTimestamp": "2024-01-01T00:01:00Z",
            "deprecatedCount": 3,
        })
    );
    assert_eq!(made["metadata"], shown["metadata"], "the same object, at the same version");

    let made = world.send(&format!("POST {EVENTS}"), new_event("b")).await;
    assert_eq!(made["apiVersion"], "events.k8s.io/v1");
    assert_eq!(made["deprecatedSource"], json!({}));
    let shown = world.get(&format!("{OLD_EVENTS}/b")).await;
    assert_eq!(
        plain(shown.clone()),
        json!({
            "kind": "Event", "apiVersion": "v1", "metadata": {"name": "b", "namespace": "default"},
            "involvedObject": {"kind": "Pod", "name": "db", "namespace": "default"}, "reason": "Scheduled",
            "message": "on n1", "source": {}, "firstTimestamp": null, "lastTimestamp": null, "type": "Normal",
            "eventTime": "2024-01-01T00:00:00.000001Z",
            "series": {"count": 2, "lastObservedTime": "2024-01-01T00:00:01.000000Z"},
            "action": "Binding", "reportingComponent": "example.com/c", "reportingInstance": "c-1",
        })
    );
    assert_eq!(made["metadata"], shown["metadata"]);

    let (list, old) = (world.get(EVENTS).await, world.get(OLD_EVENTS).await);
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("EventList"), &json!("events.k8s.io/v1")));
    assert_eq!(list["metadata"], old["metadata"]);
    assert_eq!((&list["items"][0]["note"], &old["items"][0]["message"]), (&json!("is here"), &json!("is here")));
}

#[tokio::test(start_paused = true)]
async fn watches_of_both_versions_receive_the_same_changes() {
    let world = World::new().await;
    world.send(&format!("POST {OLD_EVENTS}"), old_event("a")).await;
    world.send(&format!("PATCH {EVENTS}/a {MERGE}"), json!({"metadata": {"labels": {"x": "y"}}})).await;
    world.send(&format!("DELETE {EVENTS}/a"), Value::Null).await;
    let (new, old) = (world.watch(EVENTS, "", "").await, world.watch(OLD_EVENTS, "", "").await);
    let tell = |event: &Value| (event["type"].clone(), event["object"]["metadata"].clone());
    assert_eq!(new.iter().map(tell).collect::<Vec<_>>(), old.iter().map(tell).collect::<Vec<_>>());
    assert_eq!(
        new.iter().map(|event| event["type"].as_str().unwrap()).collect::<Vec<_>>(),
        ["ADDED", "MODIFIED", "DELETED"]
    );
    for event in &new {
        assert_eq!(
            (&event["object"]["apiVersion"], &event["object"]["note"]),
            (&json!("events.k8s.io/v1"), &json!("is here"))
        );
        assert_eq!(event["object"].get("message"), None);
    }
    assert!(old.iter().all(|event| event["object"]["message"] == "is here" && event["object"]["apiVersion"] == "v1"));

    // Tables have the same columns and cells. The objects in their rows have the requested version.
    let include = "includeObject=Object";
    let (new, old) = (world.watch(EVENTS, include, TABLE).await, world.watch(OLD_EVENTS, include, TABLE).await);
    assert_eq!(new.len(), 3);
    for (new, old) in new.iter().zip(&old) {
        let (new, old) = (&new["object"], &old["object"]);
        assert_eq!(
            (&new["columnDefinitions"], &new["rows"][0]["cells"]),
            (&old["columnDefinitions"], &old["rows"][0]["cells"])
        );
        assert!(new["rows"][0]["cells"].as_array().unwrap().contains(&json!("pod/web")));
        assert_eq!(new["rows"][0]["object"]["apiVersion"], "events.k8s.io/v1");
        assert_eq!(old["rows"][0]["object"]["apiVersion"], "v1");
    }
    let partial = world.watch(EVENTS, "", PARTIAL).await;
    assert!(partial.iter().all(|event| event["object"]["kind"] == "PartialObjectMetadata"));
    assert_eq!(partial[2]["object"]["metadata"]["labels"]["x"], "y");
    let (_, frames) = world
        .bytes(
            &format!("GET {EVENTS}?watch=true&resourceVersion={}&timeoutSeconds=1", world.start),
            "application/vnd.kubernetes.protobuf;stream=watch",
            b"",
        )
        .await;
    let text = String::from_utf8_lossy(&frames);
    assert!(text.matches("events.k8s.io/v1").count() >= 3, "{text}");
}

#[tokio::test(start_paused = true)]
async fn list_of_a_second_version_is_served_in_every_view() {
    let world = World::new().await;
    world.send(&format!("POST {OLD_EVENTS}"), old_event("a")).await;
    let (new, old) = (
        world.seen(&format!("GET {EVENTS}"), TABLE, Value::Null).await,
        world.seen(&format!("GET {OLD_EVENTS}"), TABLE, Value::Null).await,
    );
    assert_eq!(
        (&new["columnDefinitions"], &new["rows"][0]["cells"]),
        (&old["columnDefinitions"], &old["rows"][0]["cells"])
    );
    let partial = world.seen(&format!("GET {EVENTS}"), PARTIAL_LIST, Value::Null).await;
    assert_eq!(partial["items"][0]["metadata"]["name"], "a");
    for path in [format!("{EVENTS}/a"), EVENTS.to_owned()] {
        let (code, body) = world.bytes(&format!("GET {path}"), PROTOBUF, b"").await;
        assert_eq!(code, 200, "{}", String::from_utf8_lossy(&body));
        let decoded = protobuf::decode(&body).unwrap();
        assert!(String::from_utf8_lossy(&decoded.json).contains(r#""note":"is here""#));
    }
    let event = json!({"kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": {"name": "p"}, "note": "n",
        "eventTime": "2024-01-01T00:00:00.000001Z", "reportingController": "c", "reportingInstance": "i", "action": "a",
        "reason": "r", "type": "Normal", "regarding": {"namespace": "default"}});
    let body = protobuf::encode("events.k8s.io/v1", "Event", event.to_string().as_bytes()).unwrap();
    let (code, answer) = world.bytes(&format!("POST {EVENTS} {PROTOBUF}"), "application/json", &body).await;
    assert_eq!(code, 201, "{}", String::from_utf8_lossy(&answer));
    assert_eq!(world.get(&format!("{OLD_EVENTS}/p")).await["message"], "n");
}

#[tokio::test(start_paused = true)]
async fn each_version_has_its_own_field_selectors() {
    let world = World::new().await;
    world.send(&format!("POST {OLD_EVENTS}"), old_event("a")).await;
    world.send(&format!("POST {EVENTS}"), new_event("b")).await;
    for (selector, expected) in [
        ("regarding.name=web", "a"),
        ("regarding.name=db", "b"),
        ("regarding.name!=db", "a"),
        ("reportingController=example.com/c", "b"),
        ("regarding.fieldPath=spec,type=Normal", "a"),
        ("reason=Scheduled", "b"),
        ("metadata.name=b", "b"),
    ] {
        assert_eq!(world.names(EVENTS, selector).await, [expected], "{selector}");
        let seen = world.watch(EVENTS, &format!("fieldSelector={selector}"), "").await;
        let names: Vec<&Value> = seen.iter().map(|event| &event["object"]["metadata"]["name"]).collect();
        assert_eq!(names, [expected], "{selector}");
    }
    assert_eq!(world.names(OLD_EVENTS, "involvedObject.name=db").await, ["b"]);
    for (path, label) in [(EVENTS, "involvedObject.name"), (EVENTS, "source"), (OLD_EVENTS, "regarding.name")] {
        let line = format!("GET {path}?fieldSelector={label}=x");
        world.refuse(&line, Value::Null, 400, &format!("field label not supported: {label}")).await;
    }
    let removed = world.send(&format!("DELETE {EVENTS}?fieldSelector=regarding.name=web"), Value::Null).await;
    assert_eq!((&removed["apiVersion"], &removed["items"][0]["note"]), (&json!("events.k8s.io/v1"), &json!("is here")));
    assert_eq!(world.names(OLD_EVENTS, "").await, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn event_is_validated_in_the_version_of_its_request() {
    let world = World::new().await;
    let line = format!("POST {EVENTS}");
    let changed = |changes: Value| {
        let mut event = new_event("c");
        let changes = changes.as_object().unwrap().clone();
        event.as_object_mut().unwrap().extend(changes);
        event
    };
    for (changes, message) in [
        (
            json!({"reportingController": "", "reportingInstance": "", "action": "", "reason": ""}),
            "[reportingController: Required value, reportingController: Invalid value: \"\": name part must be non-empty, reportingController: Invalid value: \"\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]'), reportingInstance: Required value, action: Required value, reason: Required value]",
        ),
        (json!({"eventTime": null, "series": null}), "eventTime: Required value"),
        (json!({"type": "Odd"}), "type: Invalid value: \"\": has invalid value: Odd"),
        (
            json!({"series": {"count": 1}}),
            "[series.count: Invalid value: \"\": should be at least 2, series.lastObservedTime: Required value]",
        ),
        (
            json!({"deprecatedCount": 1, "deprecatedSource": {"host": "x"}, "deprecatedFirstTimestamp": "2024-01-01T00:00:00Z"}),
            "[firstTimestamp: Invalid value: \"\": needs to be unset, count: Invalid value: \"\": needs to be unset, source: Invalid value: \"\": needs to be unset]",
        ),
        (json!({"note": "x".repeat(1025)}), "message: Invalid value: \"\": can have at most 1024 characters"),
        (
            json!({"regarding": {"namespace": "other"}, "eventTime": null}),
            "[involvedObject.namespace: Invalid value: \"other\": does not match event.namespace, eventTime: Required value]",
        ),
    ] {
        world.refuse(&line, changed(changes), 422, &format!("Event \"c\" is invalid: {message}")).await;
    }
    let mut odd = new_event("C_1");
    odd["metadata"]["name"] = json!("C_1");
    let (code, _) = world.bytes(&line, "", odd.to_string().as_bytes()).await;
    assert_eq!(code, 422, "names are names of the new kind");
    let old = json!({"metadata": {"name": "C_1"}, "involvedObject": {"namespace": "default"}});
    world.send(&format!("POST {OLD_EVENTS}"), old).await;

    let event = world.send(&line, new_event("c")).await;
    let mut update = event.clone();
    update["note"] = json!("other");
    update["series"] = json!({"count": 7, "lastObservedTime": "2024-01-01T00:00:09.000000Z"});
    let message = "Event \"c\" is invalid: message: Invalid value: \"other\": field is immutable";
    world.refuse(&format!("PUT {EVENTS}/c"), update.clone(), 422, message).await;
    update["note"] = event["note"].clone();
    let updated = world.send(&format!("PUT {EVENTS}/c"), update).await;
    assert_eq!(updated["series"]["count"], 7);
    // In the old version, old fields can still be changed.
    world.send(&format!("PATCH {OLD_EVENTS}/c {MERGE}"), json!({"message": "other"})).await;
    assert_eq!(world.get(&format!("{EVENTS}/c")).await["note"], "other");
    world.refuse(&format!("GET {EVENTS}/nope"), Value::Null, 404, "events.events.k8s.io \"nope\" not found").await;
}

#[tokio::test(start_paused = true)]
async fn patch_is_applied_in_the_version_of_its_request() {
    let world = World::new().await;
    world.send(&format!("POST {EVENTS}"), new_event("a")).await;
    let series = |count: i64| json!({"count": count, "lastObservedTime": "2024-01-01T00:00:02.000000Z"});
    let patch = |media_type: &str| format!("PATCH {EVENTS}/a {media_type}");
    let merge = world.send(&patch(MERGE), json!({"series": series(3)})).await;
    assert_eq!((&merge["series"]["count"], &merge["note"]), (&json!(3), &json!("on n1")));
    let strategic = "application/strategic-merge-patch+json";
    assert_eq!(world.send(&patch(strategic), json!({"series": series(4)})).await["series"]["count"], 4);
    let json_patch = json!([{"op": "test", "path": "/note", "value": "on n1"}, {"op": "replace", "path": "/series/count", "value": 5}]);
    assert_eq!(world.send(&patch("application/json-patch+json"), json_patch).await["series"]["count"], 5);
    let before = world.get(&format!("{OLD_EVENTS}/a")).await;
    assert_eq!(before["series"]["count"], 5);
    let same = world.send(&patch(MERGE), json!({"note": "on n1"})).await;
    assert_eq!(same["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"], "nothing changed");
    let dry = format!("PATCH {EVENTS}/a?dryRun=All {MERGE}");
    assert_eq!(world.send(&dry, json!({"series": series(6)})).await["series"]["count"], 6);
    assert_eq!(world.get(&format!("{OLD_EVENTS}/a")).await, before);
    let dry = world.send(&format!("POST {EVENTS}?dryRun=All"), new_event("z")).await;
    assert_eq!((&dry["apiVersion"], &dry["note"]), (&json!("events.k8s.io/v1"), &json!("on n1")));
}

#[tokio::test(start_paused = true)]
async fn managed_fields_are_converted_between_versions_of_a_group() {
    const OLD: &str = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    const NEW: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let world = World::new().await;
    let apply = |path: &str, query: &str| format!("PATCH {path}/a?fieldManager={query} application/apply-patch+yaml");
    let autoscaler = |version: &str, spec: Value| {
        json!({"kind": "HorizontalPodAutoscaler", "apiVersion": format!("autoscaling/{version}"),
            "metadata": {"name": "a"}, "spec": spec})
    };
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"});
    let mut config = autoscaler("v2", json!({"maxReplicas": 3, "minReplicas": 2, "scaleTargetRef": target}));
    world.send(&apply(NEW, "new"), config.clone()).await;
    // A field has the same manager in both versions.
    let old = autoscaler("v1", json!({"maxReplicas": 5, "scaleTargetRef": target}));
    let message = "Apply failed with 1 conflict: conflict with \"new\": .spec.maxReplicas";
    world.refuse(&apply(OLD, "old"), old.clone(), 409, message).await;
    let forced = world.send(&apply(OLD, "old&force=true"), old).await;
    let owners = forced["metadata"]["managedFields"].as_array().unwrap();
    let owns = |manager: &str, field: &str| {
        let entry = owners.iter().find(|entry| entry["manager"] == manager).unwrap();
        entry["fieldsV1"]["f:spec"].get(field).is_some()
    };
    assert!(
        owns("old", "f:maxReplicas") && !owns("new", "f:maxReplicas") && owns("new", "f:minReplicas"),
        "{owners:?}"
    );
    // A field that the manager of the new version no longer applies is removed, although the old version was written
    // last.
    config["spec"] = json!({"scaleTargetRef": target});
    let applied = world.send(&apply(NEW, "new"), config).await;
    assert_eq!((&applied["spec"]["minReplicas"], &applied["spec"]["maxReplicas"]), (&json!(1), &json!(5)));
}

/// Like kube-apiserver 1.36.2, which converts managed fields only within a group.
#[tokio::test(start_paused = true)]
async fn apply_of_an_event_drops_the_managers_of_the_other_api_group() {
    let world = World::new().await;
    let apply = |path: &str, query: &str| format!("PATCH {path}/a?fieldManager={query} application/apply-patch+yaml");
    let mut config = new_event("a");
    config["kind"] = json!("Event");
    config["apiVersion"] = json!("events.k8s.io/v1");
    config.as_object_mut().unwrap().shift_remove("series");
    let made = world.send(&apply(EVENTS, "new"), config.clone()).await;
    let entry = &made["metadata"]["managedFields"][0];
    assert_eq!((&entry["apiVersion"], &entry["fieldsV1"]["f:note"]), (&json!("events.k8s.io/v1"), &json!({})));
    let old = json!({"kind": "Event", "apiVersion": "v1", "metadata": {"name": "a"}, "message": "mine"});
    let applied = world.send(&apply(OLD_EVENTS, "old"), old).await;
    let owners = |event: &Value| {
        let entries = event["metadata"]["managedFields"].as_array().unwrap().clone();
        entries.into_iter().map(|entry| entry["manager"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((&applied["message"], owners(&applied)), (&json!("mine"), vec!["old".to_owned()]));
    config.as_object_mut().unwrap().shift_remove("note");
    let applied = world.send(&apply(EVENTS, "new"), config).await;
    assert_eq!((&applied["note"], owners(&applied)), (&json!("mine"), vec!["new".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn discovery_lists_both_versions_of_a_kind() {
    let world = World::new().await;
    let groups = world.get("/apis").await;
    let group =
        |name: &str| groups["groups"].as_array().unwrap().iter().find(|group| group["name"] == name).unwrap().clone();
    assert_eq!(group("autoscaling")["preferredVersion"]["version"], "v2");
    assert_eq!(group("autoscaling")["versions"].as_array().unwrap().len(), 2);
    let names: Vec<&str> =
        groups["groups"].as_array().unwrap().iter().map(|group| group["name"].as_str().unwrap()).collect();
    let at = |name: &str| names.iter().position(|known| *known == name).unwrap();
    assert!(at("apps") < at("events.k8s.io") && at("events.k8s.io") < at("authentication.k8s.io"), "{names:?}");
    for (old, new, plural) in [
        ("/api/v1", "/apis/events.k8s.io/v1", "events"),
        ("/apis/autoscaling/v1", "/apis/autoscaling/v2", "horizontalpodautoscalers"),
    ] {
        let resource = async |path: &str| {
            let list = world.get(path).await;
            list["resources"].as_array().unwrap().iter().find(|resource| resource["name"] == plural).unwrap().clone()
        };
        assert_eq!(resource(old).await, resource(new).await, "{plural}, and the hash of what is stored");
    }
    for (path, schema) in [
        ("/openapi/v3/apis/events.k8s.io/v1", "io.k8s.api.events.v1.Event"),
        ("/openapi/v3/apis/autoscaling/v1", "io.k8s.api.autoscaling.v1.HorizontalPodAutoscaler"),
    ] {
        assert!(world.get(path).await["components"]["schemas"].get(schema).is_some(), "{path}");
    }
}

fn scaler(metrics: Value) -> Value {
    json!({
        "metadata": {"name": "web"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"}, "maxReplicas": 3, "metrics": metrics},
    })
}

fn of_cpu(utilization: i64) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": utilization}}})
}

#[tokio::test(start_paused = true)]
async fn autoscaler_written_in_v1_is_readable_in_v2() {
    let world = World::new().await;
    let old = json!({
        "metadata": {"name": "web"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"},
            "maxReplicas": 3, "targetCPUUtilizationPercentage": 50},
    });
    let made = world.send(&format!("POST {OLD_SCALERS}"), old.clone()).await;
    assert_eq!(
        plain(made.clone()),
        json!({
            "kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v1", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"},
                "minReplicas": 1, "maxReplicas": 3, "targetCPUUtilizationPercentage": 50},
            "status": {"currentReplicas": 0, "desiredReplicas": 0},
        })
    );
    let new = world.get(&format!("{SCALERS}/web")).await;
    assert_eq!((&new["apiVersion"], &new["spec"]["metrics"]), (&json!("autoscaling/v2"), &json!([of_cpu(50)])));
    assert_eq!(new["metadata"], made["metadata"]);
    // A Table shows the same two metrics.
    let old_table = world.seen(&format!("GET {OLD_SCALERS}"), TABLE, Value::Null).await;
    let new_table = world.seen(&format!("GET {SCALERS}"), TABLE, Value::Null).await;
    assert_eq!(old_table["rows"][0]["cells"], new_table["rows"][0]["cells"]);
    let without = json!({"metadata": {"name": "bare"}, "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"}, "maxReplicas": 3}});
    let made = world.send(&format!("POST {OLD_SCALERS}"), without).await;
    assert_eq!(made["spec"]["targetCPUUtilizationPercentage"], 80, "what is wanted where nothing is");
    // Errors name the fields of the new version.
    let mut wrong = old;
    wrong["spec"]["maxReplicas"] = json!(0);
    let (code, answer) = world.bytes(&format!("POST {OLD_SCALERS}"), "", wrong.to_string().as_bytes()).await;
    assert_eq!(code, 422, "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test(start_paused = true)]
async fn autoscaler_fields_unknown_to_the_old_version_are_kept_in_annotations() {
    let world = World::new().await;
    let memory = json!({"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}});
    let mut new = scaler(json!([memory, of_cpu(60)]));
    new["metadata"]["annotations"] =
        json!({"own": "x", "autoscaling.alpha.kubernetes.io/behavior": "no annotation here"});
    new["spec"]["behavior"] = json!({"scaleDown": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}});
    let made = world.send(&format!("POST {SCALERS}"), new).await;
    assert_eq!(made["metadata"]["annotations"], json!({"own": "x"}));
    let old = world.get(&format!("{OLD_SCALERS}/web")).await;
    assert_eq!(old["spec"]["targetCPUUtilizationPercentage"], 60);
    assert_eq!(
        old["metadata"]["annotations"],
        json!({
            "own": "x",
            "autoscaling.alpha.kubernetes.io/metrics": r#"[{"type":"Resource","resource":{"name":"memory","targetAverageValue":"1Gi"}}]"#,
            "autoscaling.alpha.kubernetes.io/behavior": r#"{"ScaleUp":{"StabilizationWindowSeconds":0,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":4,"PeriodSeconds":15},{"Type":"Percent","Value":100,"PeriodSeconds":15}],"Tolerance":null},"ScaleDown":{"StabilizationWindowSeconds":null,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":1,"PeriodSeconds":60}],"Tolerance":null}}"#,
        })
    );
    // A client of the old version that changes known fields keeps the others.
    let mut update = old.clone();
    update["spec"]["maxReplicas"] = json!(9);
    world.send(&format!("PUT {OLD_SCALERS}/web"), update).await;
    let after = world.get(&format!("{SCALERS}/web")).await;
    assert_eq!((&after["spec"]["maxReplicas"], &after["spec"]["metrics"]), (&json!(9), &json!([memory, of_cpu(60)])));
    assert_eq!(after["spec"]["behavior"], made["spec"]["behavior"]);
    // A client that writes back an unchanged object causes no change.
    let old = world.get(&format!("{OLD_SCALERS}/web")).await;
    let again = world.send(&format!("PUT {OLD_SCALERS}/web"), old.clone()).await;
    assert_eq!(again["metadata"]["resourceVersion"], old["metadata"]["resourceVersion"]);

    let status = json!({"status": {"currentReplicas": 2, "desiredReplicas": 2,
        "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 40, "averageValue": "100m"}}}],
        "conditions": [{"type": "AbleToScale", "status": "True", "lastTransitionTime": "2024-01-01T00:00:00Z", "message": "<ok>"}]}});
    world.send(&format!("PATCH {SCALERS}/web/status {MERGE}"), status).await;
    let old = world.get(&format!("{OLD_SCALERS}/web")).await;
    assert_eq!(old["status"]["currentCPUUtilizationPercentage"], 40);
    let conditions = old["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/conditions"].as_str().unwrap();
    assert!(conditions.contains(r"\u003cok\u003e"), "{conditions}");
    // Metadata views have the annotations of their version, also in a watch.
    let partial = world.watch(OLD_SCALERS, "", PARTIAL).await;
    let last = &partial.last().unwrap()["object"]["metadata"];
    assert_eq!(last, &old["metadata"]);
    let partial = world.watch(SCALERS, "", PARTIAL).await;
    assert_eq!(partial.last().unwrap()["object"]["metadata"]["annotations"], json!({"own": "x"}));
    world.send(&format!("PATCH {OLD_SCALERS}/web/status {MERGE}"), json!({"status": {"currentReplicas": 5}})).await;
    let new = world.get(&format!("{SCALERS}/web")).await;
    assert_eq!(
        (&new["status"]["currentReplicas"], &new["status"]["conditions"][0]["message"]),
        (&json!(5), &json!("<ok>"))
    );
}

#[test]
fn invalid_conversion_annotations_are_ignored() {
    let kept = |annotations: Value, wanted: Value| -> Value {
        let mut old = json!({"metadata": {"annotations": annotations}, "spec": {"maxReplicas": 3}});
        if !wanted.is_null() {
            old["spec"]["targetCPUUtilizationPercentage"] = wanted;
        }
        let Value::Object(old) = old else { unreachable!() };
        Value::Object((SECOND_VERSIONS[1].to_stored)(old))
    };
    let metrics = |text: &str| {
        kept(json!({"autoscaling.alpha.kubernetes.io/metrics": text}), json!(50))["spec"]["metrics"].clone()
    };
    for text in [
        "",
        "{}",
        "[1]",
        r#"[{"type":1}]"#,
        r#"[{"type":"Pods","pods":{"metricName":"m","targetAverageValue":"lots"}}]"#,
    ] {
        assert_eq!(metrics(text), json!([of_cpu(50)]), "{text}");
    }
    assert_eq!(metrics("null"), json!([of_cpu(50)]));
    assert_eq!(kept(json!({}), Value::Null)["spec"]["metrics"], json!([of_cpu(80)]));
    let behavior = |text: &str| {
        kept(json!({"autoscaling.alpha.kubernetes.io/behavior": text}), Value::Null)["spec"].get("behavior").cloned()
    };
    for text in
        ["", "[]", "{}", r#"{"ScaleUp":null}"#, r#"{"ScaleUp":{"Policies":1}}"#, r#"{"ScaleUp":{"Tolerance":"x"}}"#]
    {
        assert_eq!(behavior(text), None, "{text}");
    }
    let lower = r#"{"scaleUp":{"selectPolicy":"Min"}}"#;
    assert_eq!(behavior(lower), Some(json!({"scaleUp": {"selectPolicy": "Min"}})));
}

fn name() -> impl Strategy<Value = Value> {
    "[a-z<&]{1,6}".prop_map(Value::from)
}

fn amount() -> impl Strategy<Value = Value> {
    (1..900_i64, prop::sample::select(vec!["", "m", "Ki", "Gi"])).prop_map(|(count, unit)| {
        let mut amount = json!(format!("{count}{unit}"));
        listwatch_validation::quantities::canonicalize(&mut amount).unwrap();
        amount
    })
}

/// Generates an object with a subset of these members.
fn some(members: Vec<(&'static str, BoxedStrategy<Value>)>) -> impl Strategy<Value = Value> {
    let members: Vec<_> =
        members.into_iter().map(|(name, value)| prop::option::of(value).prop_map(move |value| (name, value))).collect();
    members.prop_map(|members| {
        members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect::<Map>().into()
    })
}

fn reference() -> impl Strategy<Value = Value> {
    (name(), name(), prop::option::of(name())).prop_map(|(kind, name, version)| {
        let mut reference = json!({"kind": kind, "name": name});
        if let Some(version) = version {
            reference["apiVersion"] = version;
        }
        reference
    })
}

fn identifier() -> impl Strategy<Value = Value> {
    (name(), prop::option::of(name())).prop_map(|(name, label)| match label {
        Some(label) => json!({"name": name, "selector": {"matchLabels": {"l": label}}}),
        None => json!({"name": name}),
    })
}

/// Generates a valid metric of the new version, for the spec or for the status. The CPU utilization is the last metric,
/// as in objects that are converted from the old version.
fn metric(wanted: bool) -> impl Strategy<Value = Value> {
    let numbers = move |of: &'static str, number: Value| {
        if wanted { json!({"type": of, "x": number}) } else { json!({"x": number}) }
    };
    let put = move |numbers: Value, name: &str| {
        let mut numbers = numbers.as_object().unwrap().clone();
        let number = numbers.shift_remove("x").unwrap();
        numbers.insert(name.to_owned(), number);
        Value::Object(numbers)
    };
    let member = if wanted { "target" } else { "current" };
    let average = move |amount: Value| put(numbers("AverageValue", amount), "averageValue");
    let value = move |amount: Value| put(numbers("Value", amount), "value");
    prop_oneof![
        (identifier(), amount()).prop_map(move |(metric, amount)| json!({"type": "Pods", "pods": {"metric": metric, member: average(amount)}})),
        (identifier(), amount(), reference())
            .prop_map(move |(metric, amount, about)| json!({"type": "Object", "object": {"metric": metric, member: value(amount), "describedObject": about}})),
        (identifier(), amount()).prop_map(move |(metric, amount)| json!({"type": "External", "external": {"metric": metric, member: value(amount)}})),
        amount().prop_map(move |amount| json!({"type": "Resource", "resource": {"name": "memory", member: average(amount)}})),
        (name(), amount()).prop_map(move |(container, amount)| json!({"type": "ContainerResource",
            "containerResource": {"name": "cpu", "container": container, member: average(amount)}})),
    ]
}

fn rule() -> impl Strategy<Value = Value> {
    let policy = (name(), 1..9, 1..99)
        .prop_map(|(of, value, seconds)| json!({"type": of, "value": value, "periodSeconds": seconds}));
    some(vec![
        ("stabilizationWindowSeconds", (0..99).prop_map(Value::from).boxed()),
        ("selectPolicy", name().boxed()),
        ("policies", prop::collection::vec(policy, 0..3).prop_map(Value::from).boxed()),
        ("tolerance", amount().boxed()),
    ])
}

/// Generates a stored autoscaler.
fn stored_scaler() -> impl Strategy<Value = Value> {
    let spec = (
        prop::collection::vec(metric(true), 0..4),
        prop::option::of(1..99_i64),
        prop::option::of(some(vec![("scaleUp", rule().boxed()), ("scaleDown", rule().boxed())])),
    );
    let condition = (name(), name()).prop_map(
        |(of, message)| json!({"type": of, "status": "True", "lastTransitionTime": null, "message": message}),
    );
    let status = (prop::collection::vec(metric(false), 1..3), prop::collection::vec(condition, 0..3));
    (spec, status, prop::option::of(name())).prop_map(|((mut metrics, utilization, behavior), (current, conditions), annotation)| {
        if let Some(utilization) = utilization.or(metrics.is_empty().then_some(80)) {
            metrics.push(of_cpu(utilization));
        }
        let mut scaler = json!({
            "kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v2", "metadata": {"name": "a"},
            "spec": {"scaleTargetRef": {"kind": "D", "name": "d"}, "minReplicas": 1, "maxReplicas": 2, "metrics": metrics},
            "status": {"desiredReplicas": 1, "currentMetrics": current},
        });
        if let Some(behavior) = behavior.filter(|behavior| behavior != &json!({})) {
            scaler["spec"]["behavior"] = behavior;
        }
        if !conditions.is_empty() {
            scaler["status"]["conditions"] = json!(conditions);
        }
        if let Some(annotation) = annotation {
            scaler["metadata"]["annotations"] = json!({"own": annotation});
        }
        scaler
    })
}

/// Generates a stored event with the members that Go always prints.
fn stored_event() -> impl Strategy<Value = Value> {
    let time = || (0..60).prop_map(|second| json!(format!("2024-01-01T00:00:{second:02}Z"))).boxed();
    let series = (1..9).prop_map(|count| json!({"count": count, "lastObservedTime": null}));
    let source = || some(vec![("component", name().boxed()), ("host", name().boxed())]).boxed();
    let given = some(vec![
        ("involvedObject", reference().boxed()),
        ("reason", name().boxed()),
        ("message", name().boxed()),
        ("source", source()),
        ("firstTimestamp", time()),
        ("lastTimestamp", time()),
        ("count", (1..9).prop_map(Value::from).boxed()),
        ("type", name().boxed()),
        ("eventTime", time()),
        ("series", series.boxed()),
        ("action", name().boxed()),
        ("related", reference().boxed()),
        ("reportingComponent", name().boxed()),
        ("reportingInstance", name().boxed()),
    ]);
    given.prop_map(|given| {
        let mut event = json!({
            "kind": "Event", "apiVersion": "v1", "metadata": {"name": "a"}, "involvedObject": {}, "source": {},
            "firstTimestamp": null, "lastTimestamp": null, "eventTime": null, "reportingComponent": "", "reportingInstance": "",
        });
        event.as_object_mut().unwrap().extend(given.as_object().unwrap().clone());
        event
    })
}

proptest! {
    /// Checks that an object stays the same in both versions after it is read and written in the second version.
    #[test]
    fn random_objects_lose_no_field_in_version_conversion(event in stored_event(), scaler in stored_scaler()) {
        for (version, stored) in [(SECOND_VERSIONS[0], event), (SECOND_VERSIONS[1], scaler)] {
            let shown = version.from_storage_version(stored.as_object().unwrap().clone());
            let kept = version.to_storage_version(shown.clone());
            prop_assert_eq!(Value::Object(kept.clone()), stored);
            prop_assert_eq!(version.from_storage_version(kept), shown);
        }
    }
}
