//! Tests of CustomResourceDefinitions from definition to deletion, through the service and without a network.
//!
//! A request waits at most 3 s until the server serves a definition. Most tests pause the clock, so that these seconds
//! do not pass while the server computes on a slow machine.

mod stored_by_others;
pub(crate) mod world;

use std::sync::Arc;
use std::time::Duration;

use listwatch_apiserver::ApiServer;
use listwatch_json::{Value, json};
use listwatch_meta::Key;
use listwatch_storage::{MemoryStorage, Storage as _};

use world::{CRDS, WIDGETS, World, condition, definition, names, widget};

#[tokio::test(start_paused = true)]
async fn definition_is_served_when_its_create_returns() {
    let world = World::new().await;
    let created = world.define(&definition()).await;
    assert_eq!(created["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(created["spec"]["names"]["listKind"], "WidgetList");
    assert_eq!(created["metadata"]["generation"], 1);
    let (code, _) = world.post(WIDGETS, &widget("a")).await;
    assert_eq!(code, 201, "the first object is accepted immediately");

    let group = world.get("/apis/example.com/v1").await.1;
    assert_eq!(names(&group["resources"]), ["widgets"]);
    assert_eq!(group["resources"][0]["shortNames"], json!(["wd"]));
    let groups = world.get("/apis").await.1;
    assert!(groups["groups"].as_array().unwrap().iter().any(|group| group["name"] == "example.com"));
    let openapi = world.get("/openapi/v3").await.1;
    assert!(openapi["paths"].get("apis/example.com/v1").is_some(), "{openapi}");
}

#[tokio::test(start_paused = true)]
async fn definition_status_becomes_established() {
    let world = World::new().await;
    world.define(&definition()).await;
    let established = world.established("widgets.example.com").await;
    assert_eq!(established["status"]["acceptedNames"], established["spec"]["names"]);
    let accepted = condition(&established, "NamesAccepted");
    assert_eq!((&accepted["status"], &accepted["reason"]), (&json!("True"), &json!("NoConflicts")));
    assert_eq!(condition(&established, "Established")["reason"], "InitialNamesAccepted");
    assert_eq!(established["metadata"]["generation"], 1, "a status is no change of what is wanted");
}

#[tokio::test(start_paused = true)]
async fn created_definition_can_be_updated_without_conflict() {
    let world = World::new().await;
    for number in 0..20 {
        let mut wanted = definition();
        wanted["metadata"]["name"] = json!(format!("w{number}s.example.com"));
        wanted["spec"]["names"] = json!({"plural": format!("w{number}s"), "kind": format!("W{number}")});
        world.define(&wanted).await;
        let path = format!("{CRDS}/w{number}s.example.com");
        let (_, mut found) = world.get(&path).await;
        assert_eq!(condition(&found, "Established")["status"], "True", "its conditions are still to be written");
        found["spec"]["versions"][0]["schema"] =
            json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let (code, answer) = world.put(&path, &found).await;
        assert_eq!(code, 200, "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn definition_with_conflicting_names_is_not_served_and_reports_the_conflict() {
    let world = World::new().await;
    world.define(&definition()).await;
    let mut other = definition();
    other["metadata"]["name"] = json!("wonders.example.com");
    other["spec"]["names"] = json!({"plural": "wonders", "kind": "Wonder", "shortNames": ["wd"]});
    world.define(&other).await;
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/wonders.example.com";
    let told = world.until(path, |found| condition(found, "NamesAccepted")["status"] == "False").await;
    assert_eq!(condition(&told, "NamesAccepted")["reason"], "ShortNamesConflict");
    assert_eq!(condition(&told, "NamesAccepted")["message"], "\"wd\" is already in use");
    assert_eq!(condition(&told, "Established")["reason"], "NotAccepted");
    assert_eq!(world.get("/apis/example.com/v1/wonders").await.0, 404);

    world.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com").await;
    world.established("wonders.example.com").await;
    assert_eq!(world.get("/apis/example.com/v1/wonders").await.0, 200, "the name became free");
}

#[tokio::test(start_paused = true)]
async fn stored_definitions_are_served_after_a_server_start() {
    let store = MemoryStorage::new();
    let first = World::over(store.clone()).await;
    first.define(&definition()).await;
    first.post(WIDGETS, &widget("a")).await;
    let second = World::over(store).await;
    let (code, found) = second.get(&format!("{WIDGETS}/a")).await;
    assert_eq!((code, &found["metadata"]["name"]), (200, &json!("a")));
}

#[tokio::test(start_paused = true)]
async fn created_definition_is_served_at_once_by_another_server_with_the_same_store() {
    let store = MemoryStorage::new();
    let (first, second) = (World::over(store.clone()).await, World::over(store).await);
    for round in 0..20 {
        let mut own = definition();
        own["metadata"]["name"] = json!(format!("widgets.g{round}.example.com"));
        own["spec"]["group"] = json!(format!("g{round}.example.com"));
        first.define(&own).await;
        let (code, body) = second.get(&format!("/apis/g{round}.example.com/v1/namespaces/default/widgets")).await;
        assert_eq!(code, 200, "round {round}: {body}");
    }
    assert_eq!(second.get("/apis/nobody.example.com/v1/widgets").await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn writes_of_custom_objects_have_the_results_of_kube_apiserver() {
    let world = World::new().await;
    let mut defined = definition();
    defined["spec"]["versions"][0]["subresources"] = json!({"status": {},
        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}});
    world.define(&defined).await;
    let mut object = widget("a");
    object["status"] = json!({"replicas": 9});
    let (_, created) = world.post(WIDGETS, &object).await;
    assert_eq!(created.get("status"), None, "the status has a door of its own");
    assert_eq!(created["metadata"]["generation"], 1);

    // The generation counts only changes of the spec.
    let path = format!("{WIDGETS}/a");
    let merge = |body: Value| world.patch(&path, "application/merge-patch+json", body);
    assert_eq!(merge(json!({"metadata": {"labels": {"x": "y"}}})).await.1["metadata"]["generation"], 1);
    assert_eq!(merge(json!({"spec": {"replicas": 2}})).await.1["metadata"]["generation"], 2);
    let status = json!({"status": {"replicas": 1, "selector": "app=a"}, "spec": {"replicas": 7}});
    let (code, body) = world.patch(&format!("{path}/status"), "application/merge-patch+json", status).await;
    assert_eq!((code, &body["spec"]["replicas"], &body["metadata"]["generation"]), (200, &json!(2), &json!(2)));

    let (_, scale) = world.get(&format!("{path}/scale")).await;
    assert_eq!(
        (&scale["spec"]["replicas"], &scale["status"]),
        (&json!(2), &json!({"replicas": 1, "selector": "app=a"}))
    );
    world.patch(&format!("{path}/scale"), "application/merge-patch+json", json!({"spec": {"replicas": 5}})).await;
    assert_eq!(world.get(&path).await.1["spec"]["replicas"], 5);

    let (code, _) = world.patch(&path, "application/strategic-merge-patch+json", json!({})).await;
    assert_eq!(code, 415);
    let (_, mut stored) = world.get(&path).await;
    stored["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let (code, body) = world.put(&path, &stored).await;
    assert_eq!(code, 422, "an update says what it has read: {body}");
    assert_eq!(world.put(&path, &widget("b")).await.0, 400);
    assert_eq!(world.post("/apis/example.com/v1/widgets", &widget("c")).await.0, 404, "it lives in a namespace");
    assert_eq!(world.get(&format!("{path}/nonsense")).await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn scale_of_object_without_replicas_path_is_rejected() {
    let world = World::new().await;
    let mut defined = definition();
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    defined["spec"]["versions"][0]["schema"] = json!({"openAPIV3Schema": open});
    world.define(&defined).await;
    for (name, spec) in [("none", json!({})), ("text", json!({"replicas": "x"})), ("list", json!([5]))] {
        let mut object = widget(name);
        object["spec"] = spec;
        assert_eq!(world.post(WIDGETS, &object).await.0, 201);
    }
    // The objects were created before the scale subresource.
    let definition = format!("{CRDS}/widgets.example.com");
    let mut scaled = world.get(&definition).await.1;
    scaled["spec"]["versions"][0]["subresources"] =
        json!({"scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}});
    let (code, body) = world.put(&definition, &scaled).await;
    assert_eq!(code, 200, "{body}");

    let told = |(code, body): (u16, Value)| (code, body["message"].as_str().unwrap_or_default().to_owned());
    for (name, why) in [
        ("none", "Internal error occurred: the spec replicas field \".spec.replicas\" does not exist"),
        ("text", ".spec.replicas accessor error: x is of the type string, expected int64"),
        ("list", ".spec.replicas accessor error: [5] is of the type []interface {}, expected map[string]interface{}"),
    ] {
        assert_eq!(told(world.get(&format!("{WIDGETS}/{name}/scale")).await), (500, why.to_owned()));
    }
    let (path, merge) = (format!("{WIDGETS}/none/scale"), "application/merge-patch+json");
    assert_eq!(
        told(world.patch(&path, merge, json!({"metadata": {"labels": {}}})).await),
        (400, "the spec replicas field \".spec.replicas\" cannot be empty".to_owned())
    );
    assert_eq!(world.patch(&path, merge, json!({"spec": {"replicas": 3}})).await.1["spec"]["replicas"], 3);
    assert_eq!(world.get(&path).await.1["spec"]["replicas"], 3);
}

#[tokio::test(start_paused = true)]
async fn unsupported_method_of_custom_resource_returns_405() {
    let world = World::new().await;
    let mut defined = definition();
    defined["spec"]["versions"][0]["subresources"] = json!({"status": {}});
    world.define(&defined).await;
    // The name in the path of a POST is ignored.
    assert_eq!(world.post(&format!("{WIDGETS}/other"), &widget("a")).await.1["metadata"]["name"], "a");
    let (code, told) = world.post(&format!("{WIDGETS}/a/status"), &widget("a")).await;
    let why = "create is not supported on resources of kind \"widgets.example.com\"";
    assert_eq!((code, &told["reason"], &told["message"]), (405, &json!("MethodNotAllowed"), &json!(why)));
    let (code, told) = world.post(&format!("{WIDGETS}/a/nonsense"), &widget("a")).await;
    assert_eq!((code, &told["message"]), (404, &json!("widgets.example.com \"a\" not found")));
}

#[tokio::test(start_paused = true)]
async fn unqualified_finalizer_causes_a_warning() {
    let world = World::new().await;
    world.define(&definition()).await;
    let named = |finalizers: Value| {
        let mut object = widget("a");
        object["metadata"]["finalizers"] = finalizers;
        object
    };
    let warnings = |headers: &http::HeaderMap| -> Vec<String> {
        headers.get_all("warning").iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    };
    let about = |name: &str, path: &str| {
        format!(
            r#"299 - "metadata.finalizers: \"{name}\": prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other finalizer writers""#
        )
    };
    let object = named(json!(["plain", "a.b", "example.com/x", "orphan"]));
    let (code, headers, _) = world.post_headers(WIDGETS, &object).await;
    assert_eq!((code, warnings(&headers)), (201, vec![about("a.b", " including a path (/)"), about("plain", "")]));
    let mut object = named(json!(["plain", "more", "a.b"]));
    object["metadata"]["resourceVersion"] =
        world.get(&format!("{WIDGETS}/a")).await.1["metadata"]["resourceVersion"].clone();
    let (code, headers) = world.put_headers(&format!("{WIDGETS}/a"), &object).await;
    assert_eq!((code, warnings(&headers)), (200, vec![about("more", "")]), "those that were there are known");
}

#[tokio::test(start_paused = true)]
async fn versions_of_a_custom_resource_share_stored_objects() {
    let world = World::new().await;
    let mut defined = definition();
    let v1 = defined["spec"]["versions"][0].clone();
    let mut v2 = v1.clone();
    (v2["name"], v2["storage"]) = (json!("v2"), json!(false));
    v2["additionalPrinterColumns"] = json!([{"name": "Size", "type": "string", "jsonPath": ".spec.size"}]);
    defined["spec"]["versions"] = json!([v1, v2]);
    world.define(&defined).await;
    let v2_path = WIDGETS.replace("/v1/", "/v2/");
    let mut object = widget("a");
    object["apiVersion"] = json!("example.com/v2");
    let (code, created) = world.post(&v2_path, &object).await;
    assert_eq!((code, &created["apiVersion"]), (201, &json!("example.com/v2")));
    assert_eq!(world.get(&format!("{WIDGETS}/a")).await.1["apiVersion"], "example.com/v1");
    assert_eq!(world.get(&format!("{v2_path}/a")).await.1["apiVersion"], "example.com/v2");
    let list = world.get(&v2_path).await.1;
    assert_eq!(
        (&list["apiVersion"], &list["items"][0]["apiVersion"]),
        (&json!("example.com/v2"), &json!("example.com/v2"))
    );
    for (path, version) in [(WIDGETS, "example.com/v1"), (v2_path.as_str(), "example.com/v2")] {
        let events = world.watch(&format!("{path}?watch=true&resourceVersion=0&timeoutSeconds=1")).await;
        assert_eq!(events[0]["object"]["apiVersion"], version, "{path}");
    }
    // Each version has its own columns.
    let columns = |table: Value| names(&table["columnDefinitions"]);
    assert_eq!(columns(world.table(WIDGETS).await), ["Name", "Age"]);
    assert_eq!(columns(world.table(&v2_path).await), ["Name", "Size"]);
    let (code, _) = world.get("/apis/example.com/v3/widgets").await;
    assert_eq!(code, 404);
    // An update through one version also changes the object in the other version.
    let patched =
        world.patch(&format!("{WIDGETS}/a"), "application/merge-patch+json", json!({"spec": {"size": "xl"}})).await.1;
    assert_eq!(patched["apiVersion"], "example.com/v1");
    assert_eq!(world.get(&format!("{v2_path}/a")).await.1["spec"]["size"], "xl");
}

#[tokio::test(start_paused = true)]
async fn object_is_stored_in_the_new_storage_version_at_its_next_write() {
    let store = MemoryStorage::new();
    let world = World::over(store.clone()).await;
    world.define(&definition()).await;
    world.post(WIDGETS, &widget("a")).await;
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
    let mut defined = world.established("widgets.example.com").await;
    let mut v2 = defined["spec"]["versions"][0].clone();
    (v2["name"], v2["storage"]) = (json!("v2"), json!(true));
    defined["spec"]["versions"][0]["storage"] = json!(false);
    defined["spec"]["versions"].as_array_mut().unwrap().push(v2);
    let (code, changed) = world.put(path, &defined).await;
    assert_eq!((code, &changed["status"]["storedVersions"]), (200, &json!(["v1", "v2"])));
    let stored = || async {
        use listwatch_storage::Storage as _;
        let key = listwatch_meta::Key::new("example.com/widgets", Some("default"), "a").unwrap();
        let (found, _) = store.get(&key).await.unwrap();
        serde_json::from_slice::<Value>(&found.unwrap().value).unwrap()["apiVersion"].clone()
    };
    assert_eq!(world.get(&format!("{WIDGETS}/a")).await.1["apiVersion"], "example.com/v1");
    assert_eq!(stored().await, "example.com/v1", "a read changes nothing");
    let (_, same) = world.get(&format!("{WIDGETS}/a")).await;
    assert_eq!(world.put(&format!("{WIDGETS}/a"), &same).await.0, 200);
    assert_eq!(stored().await, "example.com/v2", "what is written is written in the storage version");
    // A version in which objects may be stored cannot be removed.
    defined = world.get(path).await.1;
    defined["spec"]["versions"].as_array_mut().unwrap().remove(0);
    assert_eq!(world.put(path, &defined).await.0, 422);
}

#[tokio::test(start_paused = true)]
async fn selectable_fields_of_the_definition_filter_lists_and_watches() {
    let world = World::new().await;
    let mut defined = definition();
    defined["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.size"}]);
    world.define(&defined).await;
    for (name, size) in [("a", "s"), ("b", "xl"), ("c", "s")] {
        let mut object = widget(name);
        object["spec"]["size"] = json!(size);
        world.post(WIDGETS, &object).await;
    }
    let found = world.get(&format!("{WIDGETS}?fieldSelector=spec.size%3Ds")).await.1;
    let found: Vec<&str> =
        found["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(found, ["a", "c"]);
    let (code, body) = world.get(&format!("{WIDGETS}?fieldSelector=spec.color%3Dred")).await;
    assert_eq!((code, &body["message"]), (400, &json!("field label not supported: spec.color")));
}

#[tokio::test(start_paused = true)]
async fn deprecated_version_causes_a_warning() {
    let world = World::new().await;
    let mut defined = definition();
    defined["spec"]["versions"][0]["deprecated"] = json!(true);
    world.define(&defined).await;
    let (_, headers) = world.headers(WIDGETS).await;
    assert_eq!(headers.get("warning").unwrap(), "299 - \"example.com/v1 Widget is deprecated\"");
}

#[tokio::test(start_paused = true)]
async fn watch_ends_only_when_the_definition_spec_changes() {
    let world = World::new().await;
    world.define(&definition()).await;
    let defined = world.established("widgets.example.com").await;
    let mut watch = world.stream(&format!("{WIDGETS}?watch=true")).await;
    world.post(WIDGETS, &widget("a")).await;
    assert_eq!(watch.next().await.unwrap()["object"]["metadata"]["name"], "a");
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
    world.patch(path, "application/merge-patch+json", json!({"metadata": {"labels": {"a": "b"}}})).await;
    world.post(WIDGETS, &widget("b")).await;
    assert_eq!(watch.next().await.unwrap()["object"]["metadata"]["name"], "b", "labels do not end a watch");
    let mut other = definition();
    other["metadata"]["name"] = json!("gadgets.example.com");
    other["spec"]["names"] = json!({"plural": "gadgets", "kind": "Gadget"});
    world.define(&other).await;
    world.established("gadgets.example.com").await;
    // The caches of changed definitions stop a second after the registry was replaced.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    world.post(WIDGETS, &widget("c")).await;
    let event = watch.next().await.expect("another definition does not end a watch");
    assert_eq!(event["object"]["metadata"]["name"], "c");
    let mut changed = world.get(path).await.1;
    changed["spec"]["names"]["categories"] = json!(["all"]);
    assert_eq!(world.put(path, &changed).await.0, 200);
    assert_eq!(watch.next().await, None, "another spec ends the watch");
    assert!(defined["spec"]["names"].get("categories").is_none());
    assert_eq!(names_of(&world.get(WIDGETS).await.1), ["a", "b", "c"]);
}

fn names_of(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn deletion_of_a_definition_deletes_its_objects() {
    let world = World::new().await;
    world.define(&definition()).await;
    world.established("widgets.example.com").await;
    world.post(WIDGETS, &widget("a")).await;
    let mut held = widget("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    world.post(WIDGETS, &held).await;
    let mut watch = world.stream(&format!("{WIDGETS}?watch=true&resourceVersion=0")).await;
    assert_eq!(watch.next().await.unwrap()["type"], "ADDED");
    assert_eq!(watch.next().await.unwrap()["type"], "ADDED");

    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
    let (code, deleted) = world.delete(path).await;
    assert_eq!(code, 200);
    assert_eq!(deleted["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    assert_eq!(condition(&deleted, "Terminating")["reason"], "InstanceDeletionPending");
    let gone = watch.next().await.unwrap();
    assert_eq!((&gone["type"], &gone["object"]["metadata"]["name"]), (&json!("DELETED"), &json!("a")));
    assert_eq!(watch.next().await.unwrap()["type"], "MODIFIED", "what is held up is marked");

    let told =
        world.until(path, |found| condition(found, "Terminating")["reason"] == "InstanceDeletionInProgress").await;
    assert!(told["metadata"]["deletionTimestamp"].is_string());
    let (code, refused) = world.post(WIDGETS, &widget("late")).await;
    assert_eq!(
        (code, &refused["message"]),
        (
            403,
            &json!(
                "widgets.example.com \"late\" is forbidden: create not allowed while custom resource definition is terminating"
            )
        )
    );
    let verbs = &world.get("/apis/example.com/v1").await.1["resources"][0]["verbs"];
    assert_eq!(verbs, &json!(["delete", "deletecollection", "get", "list", "watch"]));

    world
        .patch(&format!("{WIDGETS}/held"), "application/merge-patch+json", json!({"metadata": {"finalizers": null}}))
        .await;
    world.gone(path).await;
    assert_eq!(watch.next().await.unwrap()["type"], "DELETED");
    assert_eq!(watch.next().await, None, "the watch ends cleanly");
    assert_eq!(world.get(WIDGETS).await.0, 404);
    assert_eq!(world.get("/apis/example.com/v1").await.0, 404);

    // A new definition of the same name starts without objects.
    world.define(&definition()).await;
    assert_eq!(names_of(&world.get(WIDGETS).await.1), [""; 0]);
    assert_eq!(world.post(WIDGETS, &widget("a")).await.0, 201);
}

/// Replaces a value directly in the store, and returns the old value.
async fn overwrite(storage: &MemoryStorage, path: &str, value: bytes::Bytes) -> bytes::Bytes {
    let key = Key::from_path(path).expect("a key");
    let (found, _) = storage.get(&key).await.expect("read");
    let found = found.expect("something is there");
    storage.update(&key, found.modified, value, None).await.expect("updated");
    found.value
}

#[tokio::test(start_paused = true)]
async fn definition_with_unreadable_objects_deletes_none_of_them() {
    let storage = MemoryStorage::new();
    let world = World::over(storage.clone()).await;
    world.define(&definition()).await;
    for name in ["a", "b"] {
        assert_eq!(world.post(WIDGETS, &widget(name)).await.0, 201);
    }
    let path = "/example.com/widgets/default/b";
    let value = overwrite(&storage, path, "k8s:enc:x".into()).await;
    let definition = format!("{CRDS}/widgets.example.com");
    world.delete(&definition).await;
    // The deletion has failed several times by this time.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let key = Key::from_path("/example.com/widgets/default/a").expect("a key");
    assert!(storage.get(&key).await.expect("read").0.is_some(), "an object beside an unreadable one was deleted");
    assert_eq!(world.get(&definition).await.0, 200);
    overwrite(&storage, path, value).await;
    world.gone(&definition).await;
}

#[tokio::test(start_paused = true)]
async fn unreadable_definition_is_still_served_and_reported_in_readyz() {
    let storage = MemoryStorage::new();
    let world = World::over(storage.clone()).await;
    world.define(&definition()).await;
    world.established("widgets.example.com").await;
    assert_eq!(world.post(WIDGETS, &widget("a")).await.0, 201);
    let path = "/apiextensions.k8s.io/customresourcedefinitions/widgets.example.com";
    let value = overwrite(&storage, path, "k8s\0".into()).await;
    let check = "/readyz/controllers-sync";
    world.until(check, |body| body.to_string().contains("definitions: failed to read one or more")).await;
    let item = format!("{WIDGETS}/a");
    assert_eq!(world.get(&item).await.0, 200, "a definition that cannot be read is not gone");
    overwrite(&storage, path, value).await;
    world.until(check, |body| body == "ok").await;
    assert_eq!(world.get(&item).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn unreadable_definition_does_not_affect_other_definitions() {
    let storage = MemoryStorage::new();
    let world = World::over(storage.clone()).await;
    let prefix = "/apiextensions.k8s.io/customresourcedefinitions";
    // One definition was never readable, and the other one was served before.
    let never = Key::from_path(&format!("{prefix}/nevers.example.com")).expect("a key");
    let created = storage.create(&never, "k8s\0".into(), None).await.expect("created");
    world.define(&definition()).await;
    assert_eq!(world.post(WIDGETS, &widget("a")).await.0, 201);
    let path = format!("{prefix}/widgets.example.com");
    let value = overwrite(&storage, &path, "k8s\0".into()).await;
    let check = "/readyz/controllers-sync";
    let named = |body: &Value, name: &str| body.to_string().contains(name);
    world.until(check, |body| named(body, "nevers.example.com") && named(body, "(and 1 more)")).await;

    let second = |plural: &str, kind: &str| {
        let mut second = definition();
        second["metadata"]["name"] = json!(format!("{plural}.example.com"));
        second["spec"]["names"] = json!({"plural": plural, "singular": plural, "kind": kind});
        second
    };
    let begun = tokio::time::Instant::now();
    world.define(&second("gears", "Gear")).await;
    assert!(begun.elapsed() < Duration::from_secs(2), "an unreadable definition delays no request");
    let gear = json!({"apiVersion": "example.com/v1", "kind": "Gear", "metadata": {"name": "a"}});
    assert_eq!(world.post("/apis/example.com/v1/namespaces/default/gears", &gear).await.0, 201);
    assert_eq!(world.get(&format!("{WIDGETS}/a")).await.0, 200, "a definition that cannot be read is not gone");
    // The resources are not served while their definition is unreadable, and are served again afterwards.
    world.delete(&format!("{CRDS}/gears.example.com")).await;
    world.gone(&format!("{CRDS}/gears.example.com")).await;
    overwrite(&storage, &path, value).await;
    world.until(check, |body| named(body, "nevers.example.com") && !named(body, "(and 1 more)")).await;
    storage.delete(&never, created).await.expect("deleted");
    world.until(check, |body| body == "ok").await;
    assert_eq!(world.get(&format!("{WIDGETS}/a")).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn watch_started_after_a_definition_delete_receives_the_deletion() {
    let world = World::new().await;
    world.define(&definition()).await;
    world.established("widgets.example.com").await;
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(world.delete(&format!("{crds}/widgets.example.com")).await.0, 200);
    // As in the examples of kube-rs: the watch starts from the current state, some time after the response to the
    // deletion.
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
    let query = "watch=true&resourceVersion=0&timeoutSeconds=10&fieldSelector=metadata.name%3Dwidgets.example.com";
    let mut watch = world.stream(&format!("{crds}?{query}")).await;
    let mut seen = Vec::new();
    while let Some(event) = watch.next().await {
        seen.push(event["type"].as_str().unwrap().to_owned());
        if event["type"] == "DELETED" {
            break;
        }
    }
    assert_eq!((seen.first(), seen.last()), (Some(&"ADDED".to_owned()), Some(&"DELETED".to_owned())), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn deleted_namespace_deletes_its_custom_objects() {
    let world = World::new().await;
    world.define(&definition()).await;
    world.post("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}})).await;
    let shop = WIDGETS.replace("/default/", "/shop/");
    assert_eq!(world.post(&shop, &widget("a")).await.0, 201);
    world.delete("/api/v1/namespaces/shop").await;
    world.gone("/api/v1/namespaces/shop").await;
    assert_eq!(names_of(&world.get("/apis/example.com/v1/widgets").await.1), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn invalid_definition_is_rejected_with_its_validation_errors() {
    let world = World::new().await;
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let mut wrong = definition();
    wrong["spec"]["versions"][0]["storage"] = json!(false);
    let (code, body) = world.post(crds, &wrong).await;
    assert_eq!((code, &body["reason"]), (422, &json!("Invalid")));
    let message = body["message"].as_str().unwrap();
    assert!(
        message.starts_with("CustomResourceDefinition.apiextensions.k8s.io \"widgets.example.com\" is invalid: "),
        "{message}"
    );
    assert!(message.contains("must have exactly one version marked as storage version"), "{message}");
    assert_eq!(world.get("/apis/example.com/v1/widgets").await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn custom_objects_are_served_in_every_encoding_and_view() {
    let world = World::new().await;
    world.define(&definition()).await;
    world.post(WIDGETS, &widget("a")).await;
    let path = format!("{WIDGETS}/a");
    let (code, _) = world.accept(&path, "application/vnd.kubernetes.protobuf").await;
    assert_eq!(code, 406);
    let (code, body) = world.accept(&path, "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io").await;
    let metadata: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((code, &metadata["kind"], metadata.get("spec")), (200, &json!("PartialObjectMetadata"), None));
    let (code, body) = world.accept(&path, "application/yaml").await;
    assert_eq!(code, 200);
    assert!(String::from_utf8(body.to_vec()).unwrap().contains("kind: Widget"));
}

/// Serves hundreds of definitions without a cache for each. The time must not be quadratic in the number of
/// definitions: with quadratic time, the last hundred of them would take five times as long as the first.
#[tokio::test]
async fn last_hundred_of_300_definitions_takes_less_than_3_times_the_first() {
    let mut seen = Vec::new();
    // A stall of the machine delays one attempt, and quadratic time delays each.
    for _ in 0..3 {
        let hundreds = define_300().await;
        if hundreds[2] < 3 * hundreds[0] && hundreds.iter().sum::<Duration>() < Duration::from_secs(30) {
            return;
        }
        seen.push(hundreds);
    }
    panic!("each hundred definitions took, in three attempts, {seen:?}");
}

/// Creates 300 definitions, and returns the time of each hundred.
async fn define_300() -> [Duration; 3] {
    let server = Arc::new(ApiServer::builder().build().await.expect("a server"));
    let world = World::of(server);
    let mut hundreds = [Duration::ZERO; 3];
    for (hundred, took) in hundreds.iter_mut().enumerate() {
        let begun = std::time::Instant::now();
        for number in hundred * 100..(hundred + 1) * 100 {
            let mut own = definition();
            own["metadata"]["name"] = json!(format!("widgets.g{number}.example.com"));
            own["spec"]["group"] = json!(format!("g{number}.example.com"));
            world.define(&own).await;
        }
        *took = begun.elapsed();
    }
    let groups = world.get("/apis").await.1;
    assert!(groups["groups"].as_array().unwrap().len() > 300);
    hundreds
}

/// Returns a definition whose schema has one example of each feature.
fn strict_definition() -> Value {
    let mut defined = definition();
    defined["spec"]["versions"][0]["subresources"] = json!({"status": {}});
    defined["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = json!({
        "type": "object",
        "properties": {
            "spec": {"type": "object", "required": ["size"], "properties": {
                "size": {"type": "string", "maxLength": 5},
                "replicas": {"type": "integer", "minimum": 0, "default": 1},
                "color": {"type": "string", "enum": ["red", "blue"]},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            }},
            "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
        },
    });
    defined
}

#[tokio::test(start_paused = true)]
async fn custom_object_is_validated_against_its_schema() {
    let world = World::new().await;
    world.define(&strict_definition()).await;
    let mut object = widget("a");
    object["spec"] = json!({"size": "m", "bogus": 1, "free": {"any": ["thing"]}, "also": {"x": 1}});
    let (code, headers, created) = world.post_headers(WIDGETS, &object).await;
    assert_eq!((code, &created["spec"]), (201, &json!({"size": "m", "free": {"any": ["thing"]}, "replicas": 1})));
    let warnings: Vec<&str> = headers.get_all("warning").iter().map(|value| value.to_str().unwrap()).collect();
    assert_eq!(warnings, [r#"299 - "unknown field \"spec.also\"""#, r#"299 - "unknown field \"spec.bogus\"""#]);
    object["metadata"]["name"] = json!("b");
    let (code, refused) = world.post(&format!("{WIDGETS}?fieldValidation=Strict"), &object).await;
    let text = r#"Widget in version "v1" cannot be handled as a Widget: strict decoding error: unknown field "spec.also", unknown field "spec.bogus""#;
    assert_eq!((code, &refused["message"]), (400, &json!(text)));

    for (spec, field, message) in [
        (json!({}), "spec.size", "Required value"),
        (json!({"size": "far too long"}), "spec.size", "Too long: may not be more than 5 bytes"),
        (
            json!({"size": "m", "color": "green"}),
            "spec.color",
            "Unsupported value: \"green\": supported values: \"red\", \"blue\"",
        ),
        (
            json!({"size": 5}),
            "spec.size",
            "Invalid value: \"integer\": spec.size in body must be of type string: \"integer\"",
        ),
        (
            json!({"size": "m", "replicas": -1}),
            "spec.replicas",
            "Invalid value: -1: spec.replicas in body should be greater than or equal to 0",
        ),
    ] {
        let mut wrong = widget("wrong");
        wrong["spec"] = spec;
        let (code, body) = world.post(WIDGETS, &wrong).await;
        let cause = &body["details"]["causes"][0];
        assert_eq!((code, &cause["field"], &cause["message"]), (422, &json!(field), &json!(message)), "{body}");
    }
    let path = format!("{WIDGETS}/a");
    let merge = "application/merge-patch+json";
    assert_eq!(world.patch(&path, merge, json!({"spec": {"size": "far too long"}})).await.0, 422);
    let (_, kept) = world.patch(&path, merge, json!({"spec": {"junk": true, "color": "red"}})).await;
    assert_eq!((&kept["spec"]["color"], kept["spec"].get("junk")), (&json!("red"), None));
    assert_eq!(world.patch(&format!("{path}/status"), merge, json!({"status": {"replicas": "x"}})).await.0, 422);
    let (code, told) =
        world.patch(&format!("{path}/status"), merge, json!({"status": {"replicas": 2, "junk": 1}})).await;
    assert_eq!((code, &told["status"]), (200, &json!({"replicas": 2})));
}

#[tokio::test(start_paused = true)]
async fn floats_without_fraction_in_custom_objects_become_integers() {
    let world = World::new().await;
    let mut defined = definition();
    let schema = &mut defined["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    schema["properties"]["replicas"] = json!({"type": "integer", "minimum": 0.0, "default": 2.0});
    schema["properties"]["free"] = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    world.define(&defined).await;
    let shown = world.established("widgets.example.com").await;
    let shown = &shown["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    assert_eq!(shown["replicas"].to_string(), r#"{"type":"integer","minimum":0,"default":2}"#);

    let path = format!("{WIDGETS}/a");
    let check = async |(code, answered): (u16, Value), expected: &str| {
        assert!(matches!(code, 200 | 201), "{answered}");
        assert_eq!(answered["spec"].to_string(), expected, "in the answer");
        assert_eq!(world.get(&path).await.1["spec"].to_string(), expected, "as stored");
        answered
    };
    let mut object = widget("a");
    object["spec"] = json!({"free": {"a": [3.0, 1.5, 1e2, -0.0, 1e30]}});
    let free = r#""free":{"a":[3,1.5,100,0,1e+30]}"#;
    let created = check(world.post(WIDGETS, &object).await, &format!(r#"{{{free},"replicas":2}}"#)).await;
    object = created.clone();
    object["spec"]["replicas"] = json!(2.0);
    let same = check(world.put(&path, &object).await, &format!(r#"{{{free},"replicas":2}}"#)).await;
    assert_eq!(same["metadata"]["generation"], 2, "Go's float 2 is not equal to the integer 2");
    object = world.put(&path, &same).await.1;
    assert_eq!(object["metadata"]["generation"], 2, "nothing was changed");
    let mut text = widget("b");
    text["spec"]["size"] = json!(1.0);
    let (code, refused) = world.post(WIDGETS, &text).await;
    let told = r#"Invalid value: "number": spec.size in body must be of type string: "number""#;
    assert_eq!((code, &refused["details"]["causes"][0]["message"]), (422, &json!(told)));
    text["metadata"]["generation"] = json!(1.0);
    text["spec"]["size"] = json!("s");
    assert_eq!(world.post(WIDGETS, &text).await.0, 201);
    let metadata = json!({"metadata": {"generation": 2.0}});
    assert_eq!(world.patch(&path, "application/merge-patch+json", metadata).await.0, 200);
    object["spec"]["replicas"] = json!(4.0);
    check(world.put(&path, &object).await, &format!(r#"{{{free},"replicas":4}}"#)).await;
    let merge = json!({"spec": {"replicas": 5.0, "free": null}});
    check(world.patch(&path, "application/merge-patch+json", merge).await, r#"{"replicas":5}"#).await;
    let steps = json!([{"op": "add", "path": "/spec/free", "value": {"b": 6.0}}]);
    let patched = world.patch(&path, "application/json-patch+json", steps).await;
    check(patched, r#"{"replicas":5,"free":{"b":6}}"#).await;
    object = widget("a");
    object["spec"] = json!({"replicas": 7.0, "free": {"b": 8.0}});
    let applied =
        world.patch(&format!("{path}?fieldManager=m&force=true"), "application/apply-patch+yaml", object).await;
    check(applied, r#"{"replicas":7,"free":{"b":8}}"#).await;
}

#[tokio::test(start_paused = true)]
async fn custom_object_with_another_kind_is_rejected_as_in_kubernetes() {
    let world = World::new().await;
    world.define(&strict_definition()).await;
    for (body, code, message) in [
        (
            json!({"metadata": {"name": "d"}}),
            400,
            "the object provided is unrecognized (must be of type Widget): Object 'Kind' is missing in '{\"metadata\":{\"name\":\"d\"}}' ({\"metadata\":{\"name\":\"d\"}})",
        ),
        (
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "d"}}),
            400,
            "the API version in the data (v1) does not match the expected API version (example.com/v1)",
        ),
        (
            json!({"apiVersion": "example.com/v1", "kind": "Widgets", "metadata": {"name": "d"}}),
            422,
            "Widgets.example.com \"d\" is invalid: kind: Invalid value: \"Widgets\": must be Widget",
        ),
    ] {
        let (found, answer) = world.post(WIDGETS, &body).await;
        assert_eq!((found, &answer["message"]), (code, &json!(message)));
    }
    assert_eq!(world.post(WIDGETS, &widget("patched")).await.0, 201);
    let path = format!("{WIDGETS}/patched");
    let merge = "application/merge-patch+json";
    let (code, refused) = world.patch(&path, merge, json!({"kind": "Other"})).await;
    let why = "Other.example.com \"patched\" is invalid: kind: Invalid value: \"Other\": must be Widget";
    assert_eq!((code, &refused["message"]), (422, &json!(why)));
    let (code, refused) = world.patch(&path, merge, json!({"kind": null})).await;
    let told = refused["message"].as_str().unwrap();
    assert!(
        code == 422 && told.starts_with(" \"\" is invalid: patch: ") && told.contains("Object 'Kind' is missing in '{"),
        "{told}"
    );
}

#[tokio::test(start_paused = true)]
async fn default_added_later_applies_to_stored_objects() {
    let world = World::new().await;
    world.define(&definition()).await;
    world.post(WIDGETS, &widget("a")).await;
    let path = format!("{WIDGETS}/a");
    assert_eq!(world.get(&path).await.1["spec"], json!({"size": "m"}));
    let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
    let mut changed = world.established("widgets.example.com").await;
    let spec = &mut changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    spec["color"] = json!({"type": "string", "default": "red"});
    spec.as_object_mut().unwrap().remove("size");
    assert_eq!(world.put(crd, &changed).await.0, 200);
    let shown = json!({"color": "red"});
    let (_, old) = world.get(&path).await;
    assert_eq!(old["spec"], shown, "the new default shows, and what is not known any more does not");
    assert_eq!(world.get(WIDGETS).await.1["items"][0]["spec"], shown);
    let events = world.watch(&format!("{WIDGETS}?watch=true&resourceVersion=0&timeoutSeconds=1")).await;
    assert_eq!(events[0]["object"]["spec"], shown);
    let (_, written) = world.put(&path, &old).await;
    assert_ne!(
        written["metadata"]["resourceVersion"], old["metadata"]["resourceVersion"],
        "a write stores what was shown"
    );
    assert_eq!(written["metadata"]["generation"], old["metadata"]["generation"]);
    let (_, again) = world.put(&path, &written).await;
    assert_eq!(again["metadata"]["resourceVersion"], written["metadata"]["resourceVersion"], "now nothing changes");
}

#[tokio::test(start_paused = true)]
async fn empty_list_as_a_default_changes_the_definition() {
    let world = World::new().await;
    let mut defined = definition();
    let parts = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    defined.pointer_mut(parts).unwrap()["parts"] = json!({"type": "array", "items": {"type": "string"}});
    world.define(&defined).await;
    let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
    let mut changed = world.established("widgets.example.com").await;
    let generation = changed["metadata"]["generation"].as_i64().unwrap();
    changed.pointer_mut(parts).unwrap()["parts"]["default"] = json!([]);
    let (code, written) = world.put(crd, &changed).await;
    assert_eq!((code, written["metadata"]["generation"].as_i64()), (200, Some(generation + 1)));
    world.post(WIDGETS, &widget("a")).await;
    assert_eq!(world.get(&format!("{WIDGETS}/a")).await.1["spec"]["parts"], json!([]));
}

/// Returns a definition of widgets with an additional version `v2`, which has `spec.extra` and lacks `spec.replicas`.
/// `storage` is the storage version.
fn two_versions(storage: &str) -> Value {
    let mut defined = definition();
    let mut v2 = defined["spec"]["versions"][0].clone();
    v2["name"] = json!("v2");
    let fields = &mut v2["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    fields["extra"] = json!({"type": "string"});
    fields.as_object_mut().unwrap().remove("replicas");
    defined["spec"]["versions"].as_array_mut().unwrap().push(v2);
    for version in defined["spec"]["versions"].as_array_mut().unwrap() {
        version["storage"] = json!(version["name"] == storage);
    }
    defined
}

#[tokio::test(start_paused = true)]
async fn field_unknown_to_the_storage_version_is_not_stored() {
    let world = World::new().await;
    let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
    world.define(&two_versions("v1")).await;
    let v2_path = WIDGETS.replace("/v1/", "/v2/");
    let mut old = widget("old");
    old["spec"]["replicas"] = json!(5);
    assert_eq!(world.post(WIDGETS, &old).await.1["spec"], json!({"size": "m", "replicas": 5}));
    let mut new = widget("new");
    new["apiVersion"] = json!("example.com/v2");
    new["spec"]["extra"] = json!("hi");
    // A write in another version returns only the stored fields, also in a dry run.
    for query in ["?dryRun=All", ""] {
        let (code, created) = world.post(&format!("{v2_path}{query}"), &new).await;
        let told = (&created["apiVersion"], &created["spec"]);
        assert_eq!((code, told), (201, (&json!("example.com/v2"), &json!({"size": "m"}))), "{query}");
    }
    let apply = async |path: &str, name: &str, body: &Value| {
        let path = format!("{path}/{name}?fieldManager=me&force=true");
        world.patch(&path, "application/apply-patch+yaml", body.clone()).await
    };
    let shown = async |path: &str, name: &str, expected: Value| {
        assert_eq!(world.get(&format!("{path}/{name}")).await.1["spec"], expected, "{name} by {path}");
        let list = world.get(path).await.1;
        let item = list["items"].as_array().unwrap().iter().find(|item| item["metadata"]["name"] == name).cloned();
        assert_eq!(item.unwrap()["spec"], expected, "{name} in the list of {path}");
        let query = format!("{path}?watch=true&resourceVersion=0&timeoutSeconds=1&fieldSelector=metadata.name={name}");
        assert_eq!(world.watch(&query).await[0]["object"]["spec"], expected, "{name} watched by {path}");
    };
    shown(&v2_path, "old", json!({"size": "m"})).await;
    shown(&v2_path, "new", json!({"size": "m"})).await;

    // A change of the storage version applies only to later writes.
    let mut defined = world.established("widgets.example.com").await;
    defined["spec"]["versions"] = two_versions("v2")["spec"]["versions"].clone();
    assert_eq!(world.put(crd, &defined).await.0, 200);
    shown(WIDGETS, "old", json!({"size": "m", "replicas": 5})).await;
    shown(&v2_path, "old", json!({"size": "m"})).await;
    let (_, applied) = apply(&v2_path, "new", &new).await;
    assert_eq!(applied["spec"], json!({"size": "m", "extra": "hi"}));
    shown(&v2_path, "new", json!({"size": "m", "extra": "hi"})).await;
    shown(WIDGETS, "new", json!({"size": "m"})).await;
    old["spec"]["size"] = json!("l");
    let (code, applied) = apply(WIDGETS, "old", &old).await;
    assert_eq!((code, &applied["spec"]), (200, &json!({"size": "l"})), "v2 does not know replicas");
    shown(WIDGETS, "old", json!({"size": "l"})).await;
}

#[tokio::test(start_paused = true)]
async fn field_removed_from_the_schema_of_a_version_is_not_served_in_other_versions() {
    let store = MemoryStorage::new();
    let world = World::over(store.clone()).await;
    world.define(&two_versions("v1")).await;
    // An older definition may have left this object: v1 no longer has `extra`.
    use listwatch_storage::Storage as _;
    let key = listwatch_meta::Key::new("example.com/widgets", Some("default"), "a").unwrap();
    let mut left = widget("a");
    left["metadata"]["namespace"] = json!("default");
    left["spec"]["extra"] = json!("left");
    store.create(&key, left.to_string().into(), None).await.unwrap();
    let v2_path = WIDGETS.replace("/v1/", "/v2/");
    for path in [WIDGETS, &v2_path] {
        assert_eq!(world.get(&format!("{path}/a")).await.1["spec"], json!({"size": "m"}), "{path}");
    }
}
