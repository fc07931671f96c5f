//! Tests the managed fields of every kind of write, and server-side apply, with complete requests.

use listwatch_apiextensions::Definition;
use listwatch_json::json;
use listwatch_registry::{CustomKind, resources_of};

use super::*;

const APPLY: &str = "application/apply-patch+yaml";

impl World {
    /// Sends a request and returns the object in the response.
    async fn object(&self, line: &str, body: &str) -> Value {
        let answer = self.answer(line, body).await;
        let (code, json) = answer.split_at(3);
        assert!(code.starts_with('2'), "{line} {body}: {answer}");
        serde_json::from_str(json.split(" warning: ").next().unwrap()).unwrap()
    }

    /// Sends a request and lists the managed fields in the response: `manager operation: fieldsV1`.
    async fn owners(&self, line: &str, body: &str) -> Vec<String> {
        let object = self.object(line, body).await;
        let entries = object["metadata"].get("managedFields").and_then(Value::as_array).cloned().unwrap_or_default();
        let show = |entry: &Value| {
            let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
            let below = match entry.get("subresource") {
                Some(subresource) => format!(" {}", subresource.as_str().unwrap()),
                None => String::new(),
            };
            format!("{} {}{below}: {}", text("manager"), text("operation"), entry["fieldsV1"])
        };
        entries.iter().map(show).collect()
    }
}

fn apply(path: &str, name: &str, query: &str) -> String {
    format!("PATCH {path}/{name}?{query} {APPLY}")
}

fn config(data: Value) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}).to_string()
}

#[tokio::test]
async fn managed_fields_record_the_manager_of_every_write() {
    let world = World::new().await;
    let owners = world.owners(&post(MAPS), r#"{"metadata":{"name":"a"},"data":{"x":"1"}}"#).await;
    assert_eq!(owners, [r#"test Update: {"f:data":{".":{},"f:x":{}}}"#], "the client's name is in its User-Agent");
    let owners = world.owners(&format!("PATCH {MAPS}/a?fieldManager=m {MERGE}"), r#"{"data":{"y":"1"}}"#).await;
    assert_eq!(owners, [r#"m Update: {"f:data":{"f:y":{}}}"#, r#"test Update: {"f:data":{".":{},"f:x":{}}}"#]);
    let owners = world
        .owners(&format!("PUT {MAPS}/a?fieldManager=n"), r#"{"metadata":{"name":"a"},"data":{"x":"2","y":"1"}}"#)
        .await;
    assert_eq!(
        owners,
        [
            r#"m Update: {"f:data":{"f:y":{}}}"#,
            r#"n Update: {"f:data":{"f:x":{}}}"#,
            r#"test Update: {"f:data":{".":{}}}"#
        ]
        .map(|owner| owner.replace(r#"{"f:data":{".":{}}}"#, r#"{"f:data":{}}"#))
    );
    let before = world.revision().await;
    world.object(&format!("PATCH {MAPS}/a?fieldManager=o {MERGE}"), r#"{"data":{"y":"1"}}"#).await;
    assert_eq!(world.revision().await, before, "a patch without effect is no write");
}

#[tokio::test]
async fn apply_creates_the_object_and_removes_omitted_fields() {
    let world = World::new().await;
    let line = apply(MAPS, "a", "fieldManager=m");
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: \"1\", \"y\": \"1\"}\n";
    let answer = world.answer(&line, yaml).await;
    assert!(answer.starts_with("201 "), "{answer}");
    assert!(answer.contains(r#""fieldsV1":{"f:data":{"f:x":{},"f:y":{}}}"#), "{answer}");
    assert_eq!(world.owners(&line, &config(json!({"y": "2"}))).await, [r#"m Apply: {"f:data":{"f:y":{}}}"#]);
    assert!(world.stored("/configmaps/").await[0].ends_with(r#""data":{"y":"2"}}"#), "what is left out goes");

    let before = world.revision().await;
    world.object(&line, &config(json!({"y": "2"}))).await;
    assert_eq!(world.revision().await, before, "an apply of what is there is no write");
    world.object(&apply(MAPS, "a", "fieldManager=m&dryRun=All"), &config(json!({"y": "3"}))).await;
    assert_eq!(world.revision().await, before, "a dry run writes nothing");
}

#[tokio::test]
async fn apply_of_a_field_of_another_manager_returns_409_with_causes() {
    let world = World::new().await;
    world.object(&apply(MAPS, "a", "fieldManager=m"), &config(json!({"x": "1"}))).await;
    let answer = world.answer(&apply(MAPS, "a", "fieldManager=n"), &config(json!({"x": "2"}))).await;
    assert_eq!(
        answer,
        r#"409 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Apply failed with 1 conflict: conflict with \"m\": .data.x","reason":"Conflict","details":{"causes":[{"reason":"FieldManagerConflict","message":"conflict with \"m\"","field":".data.x"}]},"code":409}"#
    );
    let owners = world.owners(&apply(MAPS, "a", "fieldManager=n&force=true"), &config(json!({"x": "2"}))).await;
    assert_eq!(owners, [r#"n Apply: {"f:data":{"f:x":{}}}"#]);
}

#[tokio::test]
async fn invalid_apply_is_rejected_with_upstreams_error() {
    let world = World::new().await;
    world.object(&apply(MAPS, "a", "fieldManager=m"), &config(json!({"x": "1"}))).await;
    let refuse = async |query: &str, body: &str, code: u16, message: &str| {
        world.refuse(&apply(MAPS, "a", query), body, code, message).await;
    };
    refuse(
        "",
        &config(json!({})),
        422,
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
    )
    .await;
    refuse("fieldManager=m", r#"{"apiVersion":"v1","kind":"Pod"}"#, 400, "invalid object type: /v1, Kind=Pod").await;
    refuse(
        "fieldManager=m",
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","managedFields":[]}}"#,
        400,
        "metadata.managedFields must be nil",
    )
    .await;
    refuse(
        "fieldManager=m",
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"odd":1}"#,
        500,
        "failed to create typed patch object (/a; /v1, Kind=ConfigMap): .odd: field not declared in schema",
    )
    .await;
    refuse(
        "fieldManager=m",
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"}}"#,
        400,
        "the name of the object (b) does not match the name on the URL (a)",
    )
    .await;
    refuse(
        "fieldManager=m",
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"1"},"data":{"x":"2"}}"#,
        409,
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again",
    )
    .await;
    refuse(
        "fieldManager=m",
        "[1]",
        400,
        "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal array into Go value of type map[string]interface {}",
    )
    .await;
    refuse(
        "fieldManager=m&fieldValidation=Strict",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: a, x: b}\n",
        400,
        "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  line 4: key \"x\" already set in map",
    )
    .await;
    refuse(
        "fieldManager=m&fieldValidation=Strict",
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"x":"a","x":"b"}}"#,
        400,
        "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  line 1: key \"x\" already set in map",
    )
    .await;
    refuse(
        "fieldManager=m",
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","managedFields":"x"}}"#,
        500,
        "failed to create typed patch object (/a; /v1, Kind=ConfigMap): .metadata.managedFields: expected list, got &{x}",
    )
    .await;
    // A value may fit the schema and still fail to decode.
    let fraction = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"replicas":1.5}}"#;
    let why =
        "failed to convert new typed object (/d; apps/v1, Kind=Deployment) to object: cannot convert float64 to int32";
    world.refuse(&apply(DEPLOYMENTS, "d", "fieldManager=m"), fraction, 500, why).await;
    let other = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"z","uid":"u"}}"#;
    let wrong = "invalid object type: /v1, Kind=Pod";
    world.refuse(&apply(MAPS, "z", "fieldManager=m"), other, 400, wrong).await;
    let absent = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "z", "uid": "u"}}).to_string();
    world
        .refuse(
            &apply(MAPS, "z", "fieldManager=m"),
            &absent,
            409,
            "Operation cannot be fulfilled on configmaps \"z\": uid mismatch: the provided object specified uid u, and no existing object was found",
        )
        .await;
}

const DEPLOYMENT: &str = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"n","image":"i","ports":[{"containerPort":80}]}]}}}}"#;

#[tokio::test]
async fn apply_does_not_own_defaults_or_items_of_other_managers() {
    let world = World::new().await;
    let line = |manager: &str| apply(DEPLOYMENTS, "d", &format!("fieldManager={manager}"));
    let owners = world.owners(&line("m"), DEPLOYMENT).await;
    assert_eq!(
        owners,
        [
            r#"m Apply: {"f:spec":{"f:replicas":{},"f:selector":{},"f:template":{"f:metadata":{"f:labels":{"f:a":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"n\"}":{".":{},"f:image":{},"f:name":{},"f:ports":{"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}}}}}}}}"#
        ]
    );
    let sidecar = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"template":{"spec":{"containers":[{"name":"side","image":"s"}]}}}}"#;
    let object = world.object(&line("n"), sidecar).await;
    let names = |object: &Value| {
        let containers = object["spec"]["template"]["spec"]["containers"].as_array().unwrap().clone();
        containers.iter().map(|container| container["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&object), "n side");
    let object = world.object(&line("m"), DEPLOYMENT).await;
    assert_eq!(names(&object), "n side", "what another one applied stays");
    let none = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"}}"#;
    assert_eq!(names(&world.object(&line("n"), none).await), "n");
}

#[tokio::test]
async fn managed_fields_of_subresources_have_separate_entries() {
    let world = World::new().await;
    world.object(&apply(DEPLOYMENTS, "d", "fieldManager=m"), DEPLOYMENT).await;
    let status = r#"{"metadata":{"labels":{"x":"y"}},"status":{"replicas":2}}"#;
    let owners = world.owners(&format!("PATCH {DEPLOYMENTS}/d/status?fieldManager=c {MERGE}"), status).await;
    assert_eq!(owners[1..], [r#"c Update status: {"f:status":{"f:replicas":{}}}"#], "labels are not the status'");
    world
        .send(&format!("PATCH {DEPLOYMENTS}/d/scale?fieldManager=s {MERGE}"), r#"{"spec":{"replicas":3}}"#)
        .await
        .unwrap();
    let owners = world.owners(&format!("PATCH {DEPLOYMENTS}/d?fieldManager=z {MERGE}"), "{}").await;
    assert!(!owners[0].contains("f:replicas"), "{owners:?}");
    assert!(owners.contains(&r#"s Update scale: {"f:spec":{"f:replicas":{}}}"#.to_owned()), "{owners:?}");
    let scale = r#"{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"d"},"spec":{"replicas":4}}"#;
    world
        .refuse(
            &apply(&format!("{DEPLOYMENTS}/d"), "scale", "fieldManager=t"),
            scale,
            409,
            "Apply failed with 1 conflict: conflict with \"s\" with subresource \"scale\" using autoscaling/v1: .spec.replicas",
        )
        .await;
    world.send(&apply(&format!("{DEPLOYMENTS}/d"), "scale", "fieldManager=t&force=true"), scale).await.unwrap();
    let owners = world.owners(&format!("PATCH {DEPLOYMENTS}/d?fieldManager=z {MERGE}"), "{}").await;
    assert!(owners.contains(&r#"t Apply scale: {"f:spec":{"f:replicas":{}}}"#.to_owned()), "{owners:?}");
}

#[tokio::test]
async fn patch_can_test_and_clear_managed_fields() {
    let world = World::new().await;
    world.object(&post(MAPS), r#"{"metadata":{"name":"a"},"data":{"x":"1"}}"#).await;
    let test = |manager: &str| {
        json!([{"op": "test", "path": "/metadata/managedFields/0/manager", "value": manager},
            {"op": "replace", "path": "/data/x", "value": "2"}])
        .to_string()
    };
    let line = format!("PATCH {MAPS}/a?fieldManager=n {JSON_PATCH}");
    let owners = world.owners(&line, &test("test")).await;
    assert_eq!(owners, [r#"n Update: {"f:data":{"f:x":{}}}"#, r#"test Update: {"f:data":{}}"#]);
    let refused = world.answer(&line, &test("nobody")).await;
    assert!(refused.starts_with("422 "), "such a manager has no entry: {refused}");

    let merge = |owners: Value| json!({"metadata": {"managedFields": owners}}).to_string();
    let refused = world.answer(&patch(MAPS, "a", MERGE), &merge(json!("[]"))).await;
    assert!(
        refused.starts_with("422 ") && refused.contains("cannot unmarshal string into Go struct field"),
        "{refused}"
    );
    // An error that contains the object shows managed fields as a tree.
    let refused = world.answer(&patch(MAPS, "a", MERGE), r#"{"data":{"x":5}}"#).await;
    assert!(
        refused.starts_with("422 ") && refused.replace('\\', "").contains(r#""managedFields":[{"manager":"n""#),
        "{refused}"
    );
    let strict = format!("PATCH {MAPS}/a?fieldValidation=Strict {MERGE}");
    let refused = world.answer(&strict, r#"{"odd":{"x":5}}"#).await;
    assert!(
        refused.starts_with("422 ") && refused.replace('\\', "").contains(r#""managedFields":[{"manager":"n""#),
        "{refused}"
    );

    let owners = world.owners(&patch(MAPS, "a", STRATEGIC), &merge(json!([{}]))).await;
    assert_eq!(owners, [""; 0], "all ownership is forgotten");
    let answer = world.answer(&format!("PATCH {MAPS}/a {MERGE}"), r#"{"data":{"z":"1"}}"#).await;
    assert!(!answer.contains("managedFields"), "who has no account gets none by an update: {answer}");
}

/// kube-apiserver 1.36.2 behaves in the same way.
#[tokio::test]
async fn event_written_through_another_group_loses_the_managed_fields_of_the_first_group() {
    let world = World::new().await;
    let core = "/api/v1/namespaces/default/events";
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let event = r#"{"metadata":{"name":"a"},"involvedObject":{"namespace":"default"},"reason":"r","message":"m"}"#;
    let created = world.owners(&post(core), event).await;
    assert_eq!(created, [r#"test Update: {"f:involvedObject":{},"f:message":{},"f:reason":{}}"#]);
    let same = world.object(&format!("PATCH {core}/a {MERGE}"), "{}").await;
    assert!(same["metadata"]["managedFields"].is_array(), "the same group keeps them: {same}");
    let other = world.object(&format!("PATCH {events}/a {MERGE}"), r#"{"metadata":{"labels":{"x":"y"}}}"#).await;
    let owners = &other["metadata"]["managedFields"];
    assert_eq!(owners.as_array().map(Vec::len), Some(1), "{other}");
    assert_eq!(owners[0]["apiVersion"], "events.k8s.io/v1");
    assert_eq!(owners[0]["fieldsV1"], json!({"f:metadata": {"f:labels": {".": {}, "f:x": {}}}}));
}

/// As in kube-apiserver 1.36.2, no field manager owns the copied `dataSource`.
#[tokio::test]
async fn put_of_an_unchanged_claim_with_data_source_changes_nothing() {
    let world = World::new().await;
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({"metadata": {"name": "a"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}, "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "b"}}});
    let created = world.object(&post(claims), &claim.to_string()).await;
    let expected = json!({"apiGroup": null, "kind": "PersistentVolumeClaim", "name": "b"});
    assert_eq!((&created["spec"]["dataSource"], &created["spec"]["dataSourceRef"]), (&expected, &expected));
    let same = world.object(&format!("PUT {claims}/a?fieldManager=other"), &created.to_string()).await;
    assert_eq!(same["metadata"], created["metadata"]);
}

#[test]
fn manager_of_a_version_that_is_not_served_keeps_its_fields() {
    const DEFINITION: &str = r#"{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Cluster",
        "names":{"plural":"widgets","kind":"Widget"},"versions":[
        {"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}},
        {"name":"v1beta1","served":false,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}"#;
    let definition = Definition::parse(DEFINITION.as_bytes()).unwrap();
    let kind = Arc::new(CustomKind::new(&definition, &definition.spec.names, DEFINITION.into()));
    let served = resources_of(&definition, &definition.spec.names, &kind);
    let [v1] = served.as_slice() else { panic!("one version is served") };
    let entry = |version: &str| {
        json!({"manager": version, "operation": "Update", "apiVersion": format!("example.com/{version}"),
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:size": {}}}})
    };
    let live = json!({"apiVersion": "example.com/v1", "kind": "Widget", "spec": {"size": 1, "color": "red"},
        "metadata": {"name": "a", "managedFields": [entry("v1beta1"), entry("v0")]}});
    let mut new = live.clone();
    new["spec"]["color"] = json!("blue");
    let reset = listwatch_apply::Set::default();
    let now = parse_timestamp(NOW).unwrap();
    let by = listwatch_apply::Writer { manager: "now", subresource: "", now, reset: &reset };
    crate::ownership::kind(v1).update(Some(&live), &mut new, by);
    let managers = new["metadata"]["managedFields"].as_array().unwrap();
    let managers: Vec<&str> = managers.iter().map(|entry| entry["manager"].as_str().unwrap()).collect();
    assert_eq!(managers, ["v1beta1", "now"], "a version that the definition does not list is forgotten");
}
