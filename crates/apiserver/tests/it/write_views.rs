//! Tests the views of the responses to writes: as a Table and as metadata, with and without `dryRun`.

use http::Method;
use http_body_util::BodyExt as _;
use listwatch_json::{Value, json};

use crate::crds::world::{WIDGETS, World, definition, widget};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const MERGE: &str = "application/merge-patch+json";

/// Sends a write, and returns the code and the body.
async fn send(world: &World, method: Method, path: &str, accept: &str, body: &Value) -> (u16, Value) {
    let content_type = if method == Method::PATCH { MERGE } else { "application/json" };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let response = world.send(method, path, &[("accept", accept), ("content-type", content_type)], body).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (code, serde_json::from_slice(&body).expect("JSON"))
}

/// Sends a write of one object `a` for a Table and for metadata.
async fn check(world: &World, method: Method, path: &str, body: &Value, expected: u16) {
    let (code, table) = send(world, method.clone(), path, TABLE, body).await;
    assert_eq!((code, &table["kind"]), (expected, &json!("Table")), "{method} {path}: {table}");
    assert_eq!(table["columnDefinitions"][0]["name"], "Name", "{method} {path}");
    assert_eq!(table["rows"][0]["cells"][0], "a", "{method} {path}");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata", "{method} {path}");
    let (code, partial) = send(world, method.clone(), path, PARTIAL, body).await;
    let found = (code, &partial["kind"], &partial["metadata"]["name"]);
    assert_eq!(found, (expected, &json!("PartialObjectMetadata"), &json!("a")), "{method} {path}");
}

#[tokio::test]
async fn dry_run_response_is_served_as_table_and_as_metadata() {
    let world = World::new().await;
    world.define(&definition()).await;
    let map = json!({"metadata": {"name": "a"}, "data": {"x": "y"}});
    for (collection, object) in [("/api/v1/namespaces/default/configmaps", map), (WIDGETS, widget("a"))] {
        let (item, all) = (format!("{collection}/a?dryRun=All"), format!("{collection}?dryRun=All"));
        check(&world, Method::POST, &all, &object, 201).await;
        let whole = format!("{all}&includeObject=Object");
        let (_, table) = send(&world, Method::POST, &whole, TABLE, &object).await;
        assert_eq!(table["rows"][0]["object"]["kind"], world.post(&all, &object).await.1["kind"], "{collection}");
        assert_eq!(world.post(collection, &object).await.0, 201, "a dry run stores nothing");
        let stored = world.get(&format!("{collection}/a")).await.1;
        check(&world, Method::PUT, &item, &stored, 200).await;
        check(&world, Method::PATCH, &item, &json!({"metadata": {"labels": {"a": "b"}}}), 200).await;
        let (code, status) = send(&world, Method::DELETE, &item, TABLE, &Value::Null).await;
        assert_eq!((code, &status["kind"]), (200, &json!("Status")), "a Status has no Table");
    }
}

#[tokio::test]
async fn deleted_collection_is_served_as_table_and_as_metadata() {
    let world = World::new().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    assert_eq!(world.post(maps, &json!({"metadata": {"name": "a"}})).await.0, 201);
    let dry = format!("{maps}?dryRun=All");
    let (code, list) = send(&world, Method::DELETE, &dry, PARTIAL, &Value::Null).await;
    assert_eq!((code, &list["kind"]), (200, &json!("PartialObjectMetadataList")), "{list}");
    assert_eq!(list["items"][0]["metadata"]["name"], "a");
    for path in [dry.as_str(), maps] {
        let (code, table) = send(&world, Method::DELETE, path, TABLE, &Value::Null).await;
        assert_eq!(
            (code, &table["kind"], &table["rows"][0]["cells"][0]),
            (200, &json!("Table"), &json!("a")),
            "{path}"
        );
    }
    let (code, list) = send(&world, Method::DELETE, maps, "application/json", &Value::Null).await;
    assert_eq!((code, &list["kind"], &list["items"]), (200, &json!("ConfigMapList"), &json!([])));
}
