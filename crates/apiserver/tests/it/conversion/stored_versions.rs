//! Tests changes of the storage version.

use std::sync::Arc;

use listwatch_apiserver::ApiServer;
use listwatch_json::{Value, json};
use listwatch_meta::Key;
use listwatch_storage::{MemoryStorage, Storage as _};

use super::{Converter, MERGE, Mode, V1, V2, check, definition, v1};
use crate::crds::world::{CRDS, World};

async fn stored(store: &MemoryStorage, name: &str) -> Value {
    let key = Key::new("example.com/widgets", Some("default"), name).unwrap();
    serde_json::from_slice(&store.get(&key).await.unwrap().0.unwrap().value).unwrap()
}

#[tokio::test(start_paused = true)]
async fn storage_version_changes_while_objects_stay_readable() {
    let store = MemoryStorage::new();
    let converter = Converter::default();
    let called = converter.clone();
    let builder = ApiServer::builder().storage(store.clone());
    let builder = builder.converter("widgets.example.com", move |request| called.clone().convert(request));
    let world = World::of(Arc::new(builder.build().await.unwrap()));
    world.define(&definition("v1")).await;
    for name in ["a", "b"] {
        assert_eq!(world.post(V1, &v1(name, "h:1")).await.0, 201);
    }
    let path = format!("{CRDS}/widgets.example.com");
    let changed = world.patch(&path, MERGE, json!({"spec": {"versions": definition("v2")["spec"]["versions"]}})).await;
    assert_eq!((changed.0, &changed.1["status"]["storedVersions"]), (200, &json!(["v1", "v2"])), "{changed:?}");
    assert_eq!(stored(&store, "a").await["apiVersion"], "example.com/v1", "stored objects do not change");
    for (path, version, spec) in [(V1, "v1", json!({"hostPort": "h:1"})), (V2, "v2", json!({"host": "h", "port": "1"}))]
    {
        check(&world.get(&format!("{path}/a")).await.1, version, spec.clone());
        check(&world.get(path).await.1["items"][1], version, spec);
    }
    converter.take_counts();
    world.get(&format!("{V1}/a")).await;
    assert_eq!(converter.take_counts(), (0, 0), "the object is stored in this version");

    // A write that changes nothing stores the object in the storage version.
    let (code, same) = world.patch(&format!("{V1}/a"), MERGE, json!({})).await;
    assert_eq!(code, 200, "{same}");
    assert_eq!(stored(&store, "a").await["apiVersion"], "example.com/v2");
    check(&same, "v1", json!({"hostPort": "h:1"}));

    // The last object of the former version blocks its removal only by the status.
    let v2_only = json!({"spec": {"versions": [definition("v2")["spec"]["versions"][1]]}});
    let (code, status) = world.patch(&path, MERGE, v2_only.clone()).await;
    let text = "missing from spec.versions; v1 was previously a storage version";
    assert!(code == 422 && status["message"].as_str().unwrap().contains(text), "{status}");
    assert_eq!(world.patch(&format!("{V2}/b"), MERGE, json!({})).await.0, 200);
    assert_eq!(stored(&store, "b").await["apiVersion"], "example.com/v2");
    let migrated = json!({"status": {"storedVersions": ["v2"]}});
    assert_eq!(world.patch(&format!("{path}/status"), MERGE, migrated).await.0, 200);
    let (code, status) = world.patch(&path, MERGE, v2_only).await;
    assert_eq!(code, 200, "{status}");
    assert_eq!(world.get(V1).await.0, 404);
    check(&world.get(&format!("{V2}/b")).await.1, "v2", json!({"host": "h", "port": "1"}));
}

#[tokio::test(start_paused = true)]
async fn namespace_is_removed_even_if_the_converter_fails() {
    let converter = Converter::default();
    let world = converter.world().await;
    let namespace = json!({"metadata": {"name": "n"}});
    assert_eq!(world.post("/api/v1/namespaces", &namespace).await.0, 201);
    assert_eq!(world.post("/apis/example.com/v1/namespaces/n/widgets", &v1("a", "h:1")).await.0, 201);
    converter.set(Mode::Fails);
    world.delete("/api/v1/namespaces/n").await;
    world.gone("/api/v1/namespaces/n").await;
}

#[tokio::test(start_paused = true)]
async fn definition_and_objects_are_deleted_even_if_the_converter_fails() {
    let converter = Converter::default();
    let world = converter.world().await;
    world.post(V1, &v1("a", "h:1")).await;
    converter.set(Mode::Fails);
    let path = format!("{CRDS}/widgets.example.com");
    world.delete(&path).await;
    world.gone(&path).await;
}
