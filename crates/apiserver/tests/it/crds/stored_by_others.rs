//! Tests of definitions and objects that another program put into the store: old releases of kube-apiserver accepted
//! definitions without structural schemas, and objects with malformed metadata.

use std::sync::Arc;

use listwatch_json::{Value, json};
use listwatch_meta::Key;
use listwatch_storage::{MemoryStorage, Storage as _};

use super::world::{CRDS, WIDGETS, World, condition, definition, widget};

const NOXUS: &str = "/apis/mygroup.example.com/v1beta1/noxus";
const NAME: &str = "noxus.mygroup.example.com";
const MERGE: &str = "application/merge-patch+json";

/// Returns a definition as kube-apiserver stored it before `apiextensions.k8s.io/v1`. Unknown fields are preserved by
/// default, and the definition has neither a uid nor a generation.
fn old_definition() -> Value {
    json!({
        "kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1beta1", "metadata": {"name": NAME},
        "spec": {
            "group": "mygroup.example.com", "version": "v1beta1", "scope": "Cluster",
            "names": {"plural": "noxus", "singular": "noxu", "kind": "Noxu", "listKind": "NoxuList"},
            "validation": {"openAPIV3Schema": {"properties": {"TypeFooBar": {"type": "array"}}}},
            "versions": [{"name": "v1beta1", "served": true, "storage": true}],
            "conversion": {"strategy": "None"},
        },
        "status": {"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": ["v1beta1"]},
    })
}

/// Starts a server over a store with the old definition.
async fn old_world() -> (World, Arc<MemoryStorage>) {
    let storage = MemoryStorage::new();
    let key = Key::from_path(&format!("/apiextensions.k8s.io/customresourcedefinitions/{NAME}")).expect("a key");
    storage.create(&key, old_definition().to_string().into(), None).await.expect("created");
    let world = World::over(storage.clone()).await;
    world.established(NAME).await;
    (world, storage)
}

fn noxu(name: &str) -> Value {
    json!({"apiVersion": "mygroup.example.com/v1beta1", "kind": "Noxu", "metadata": {"name": name},
        "spec": {"replicas": 1}})
}

#[tokio::test(start_paused = true)]
async fn object_of_an_old_definition_keeps_unknown_fields() {
    let (world, storage) = old_world().await;
    let path = format!("{NOXUS}/a");
    let apply = async |query: &str| {
        let path = format!("{path}?fieldManager=apply_test{query}");
        world.patch(&path, "application/apply-patch+yaml", noxu("a")).await
    };
    let (code, applied) = apply("").await;
    assert_eq!((code, &applied["spec"]), (201, &json!({"replicas": 1})), "{applied}");
    let (code, patched) = world.patch(&path, MERGE, json!({"spec": {"replicas": 5}})).await;
    assert_eq!((code, &patched["spec"]), (200, &json!({"replicas": 5})), "{patched}");
    let (code, conflict) = apply("").await;
    assert_eq!((code, conflict["details"]["causes"].as_array().map(Vec::len)), (409, Some(1)), "{conflict}");
    let (code, forced) = apply("&force=true").await;
    assert_eq!((code, &forced["spec"]), (200, &json!({"replicas": 1})), "{forced}");

    let key = Key::from_path("/mygroup.example.com/noxus/a").expect("a key");
    let (stored, _) = storage.get(&key).await.expect("read");
    let stored: Value = serde_json::from_slice(&stored.expect("it is stored").value).expect("an object");
    assert_eq!(stored["spec"], json!({"replicas": 1}));
    let restarted = World::over(storage).await;
    assert_eq!(restarted.get(&path).await.1["spec"], json!({"replicas": 1}));
    assert_eq!(restarted.get(NOXUS).await.1["items"][0]["spec"], json!({"replicas": 1}));
}

#[tokio::test(start_paused = true)]
async fn object_of_an_old_definition_is_validated_but_has_no_unknown_fields() {
    let (world, _) = old_world().await;
    let strict = format!("{NOXUS}?fieldValidation=Strict");
    assert_eq!(world.post(&strict, &noxu("a")).await.0, 201, "every field is known");
    let mut object = noxu("b");
    object["metadata"]["unknown"] = json!(1);
    let (code, refused) = world.post(&strict, &object).await;
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(code == 400 && message.contains("unknown field \"metadata.unknown\""), "{refused}");
    let mut object = noxu("b");
    object["TypeFooBar"] = json!("text");
    let (code, refused) = world.post(NOXUS, &object).await;
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(code == 422 && message.contains("TypeFooBar in body must be of type array"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn schema_of_an_old_definition_is_published_only_if_it_is_structural() {
    let (world, _) = old_world().await;
    let model = "com.example.mygroup.v1beta1.Noxu";
    let v2 = async || world.get("/openapi/v2").await.1["definitions"][model].clone();
    let v3 = async || {
        let document = world.get("/openapi/v3/apis/mygroup.example.com/v1beta1").await.1;
        document["components"]["schemas"][model].clone()
    };
    let kind = json!([{"group": "mygroup.example.com", "kind": "Noxu", "version": "v1beta1"}]);
    let any = json!({"type": "object", "x-kubernetes-group-version-kind": kind});
    assert_eq!((v2().await, v3().await), (any.clone(), any.clone()));

    let path = format!("{CRDS}/{NAME}");
    let structural = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "a": {"type": "string"}}}}});
    let mut changed = world.until(&path, |found| !condition(found, "NonStructuralSchema").is_null()).await;
    changed["spec"]["versions"][0]["schema"] = json!({"openAPIV3Schema": structural});
    let (code, answer) = world.put(&path, &changed).await;
    assert_eq!(code, 200, "{answer}");
    assert_eq!(v2().await, any, "kubectl would reject the fields that are preserved");
    assert_eq!(v3().await["properties"]["spec"]["properties"]["a"]["type"], "string");
    let (code, created) = world.post(NOXUS, &noxu("a")).await;
    assert_eq!((code, &created["spec"]), (201, &json!({"replicas": 1})), "unknown fields are still preserved");
}

#[tokio::test(start_paused = true)]
async fn old_definition_reports_violations_until_its_schema_is_structural() {
    let (world, _) = old_world().await;
    let path = format!("{CRDS}/{NAME}");
    let found = world.until(&path, |found| !condition(found, "NonStructuralSchema").is_null()).await;
    let reported = condition(&found, "NonStructuralSchema");
    assert_eq!((&reported["status"], &reported["reason"]), (&json!("True"), &json!("Violations")));
    let schema = "spec.versions[0].schema.openAPIV3Schema";
    assert_eq!(
        reported["message"],
        format!(
            "[spec.preserveUnknownFields: Invalid value: true: must be false, {schema}.properties[TypeFooBar].items: Required value: must be specified, {schema}.type: Required value: must not be empty at the root]"
        )
    );
    // An update may keep the violations.
    let mut changed = found;
    changed["spec"]["names"]["shortNames"] = json!(["nx"]);
    let (code, answer) = world.put(&path, &changed).await;
    assert_eq!(code, 200, "{answer}");
    // A write of the status would be a conflict for the next update.
    let has_short_name = |found: &Value| found["status"]["acceptedNames"]["shortNames"] == json!(["nx"]);
    changed = world.until(&path, has_short_name).await;
    // Rules need a structural schema.
    let mut ruled = changed.clone();
    ruled["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] =
        json!([{"rule": "has(self.spec)"}]);
    assert_eq!(world.put(&path, &ruled).await.0, 422);

    changed = world.get(&path).await.1;
    changed["spec"]["versions"][0]["schema"] =
        json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    changed["spec"]["preserveUnknownFields"] = json!(false);
    let (code, answer) = world.put(&path, &changed).await;
    assert_eq!(code, 200, "{answer}");
    changed = world.until(&path, |found| condition(found, "NonStructuralSchema").is_null()).await;
    changed["spec"]["preserveUnknownFields"] = json!(true);
    let (code, refused) = world.put(&path, &changed).await;
    let message = refused["message"].as_str().unwrap_or_default();
    let error = "spec.preserveUnknownFields: Invalid value: true: cannot set to true";
    assert!(code == 422 && message.contains(error), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn old_definition_without_a_uid_is_deleted_with_its_objects() {
    let (world, _) = old_world().await;
    assert_eq!(world.post(NOXUS, &noxu("a")).await.0, 201);
    let path = format!("{CRDS}/{NAME}");
    world.delete(&path).await;
    world.gone(&path).await;
}

#[tokio::test(start_paused = true)]
async fn malformed_metadata_of_a_stored_object_is_not_served() {
    let storage = MemoryStorage::new();
    let world = World::over(storage.clone()).await;
    world.define(&definition()).await;
    let key = Key::new("example.com/widgets", Some("default"), "a").expect("a key");
    let mut stored = widget("a");
    stored["metadata"] = json!({"name": "a", "namespace": "default", "uid": "u", "unknown": 42, "generation": null,
        "annotations": {"foo": 42, "bar": "abc"}, "labels": {"invalid": "x y"}});
    storage.create(&key, stored.to_string().into(), None).await.expect("created");
    let check = |found: &Value| {
        let metadata = &found["metadata"];
        assert_eq!((&metadata["generation"], &metadata["labels"]), (&json!(1), &json!({"invalid": "x y"})), "{found}");
        assert_eq!((metadata.get("unknown"), metadata.get("annotations")), (None, None), "{found}");
    };
    let path = format!("{WIDGETS}/a");
    check(&world.get(&path).await.1);
    check(&world.get(WIDGETS).await.1["items"][0]);
    world.delete(&path).await;
    world.gone(&path).await;
}
