//! Tests the views of `/scale`: reads and writes of a Scale as a Table or as metadata, through the service and without a
//! network.

use http::Method;
use http_body_util::BodyExt as _;
use listwatch_json::{Value, json};

use crate::crds::world::{WIDGETS, World, definition, widget};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const MERGE: &str = "application/merge-patch+json";

/// Sends a request with an `Accept` header, and returns code, content type and body.
async fn send(world: &World, method: Method, path: &str, accept: &str, body: Value) -> (u16, String, Vec<u8>) {
    let content_type = if method == Method::PATCH { MERGE } else { "application/json" };
    let headers = [("accept", accept), ("content-type", content_type)];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let response = world.send(method, path, &headers, body).await;
    let code = response.status().as_u16();
    let content_type = response.headers()["content-type"].to_str().expect("text").to_owned();
    (code, content_type, response.into_body().collect().await.expect("a body").to_bytes().to_vec())
}

async fn as_json(world: &World, method: Method, path: &str, accept: &str, body: Value) -> Value {
    let (code, _, body) = send(world, method, path, accept, body).await;
    assert_eq!(code, 200, "{path}: {}", String::from_utf8_lossy(&body));
    serde_json::from_slice(&body).expect("JSON")
}

/// Checks the views of the Scale of one object, which has three desired replicas.
async fn check(world: &World, object: &str) {
    let path = &format!("{object}/scale");
    let plain = as_json(world, Method::GET, path, "application/json", Value::Null).await;
    assert_eq!((&plain["kind"], &plain["spec"]), (&json!("Scale"), &json!({"replicas": 3})), "{plain}");
    let mut wanted = plain.clone();
    wanted["metadata"].as_object_mut().expect("metadata").remove("resourceVersion");
    wanted["spec"]["replicas"] = json!(4);
    for (method, body, replicas) in
        [(Method::GET, Value::Null, 3), (Method::PUT, wanted, 4), (Method::PATCH, json!({"spec": {"replicas": 5}}), 5)]
    {
        let table = as_json(world, method.clone(), path, TABLE, body.clone()).await;
        let columns = table["columnDefinitions"].as_array().unwrap_or_else(|| panic!("{method} {path}: {table}"));
        let names: Vec<_> = columns.iter().map(|column| column["name"].as_str().expect("a name")).collect();
        assert_eq!(names, ["Name", "Desired", "Available", "Age"], "{method} {path}");
        let cells = &table["rows"][0]["cells"];
        assert_eq!((&cells[0], &cells[1]), (&plain["metadata"]["name"], &json!(replicas)), "{method} {path}");
        let row = &table["rows"][0]["object"];
        assert_eq!(row["kind"], "PartialObjectMetadata", "{method} {path}");

        let partial = as_json(world, method.clone(), path, PARTIAL, body).await;
        assert_eq!(
            (&partial["kind"], &partial["metadata"]["uid"], &partial["spec"]),
            (&json!("PartialObjectMetadata"), &plain["metadata"]["uid"], &Value::Null),
            "{method} {path}"
        );
    }
    let whole = as_json(world, Method::GET, &format!("{path}?includeObject=Object"), TABLE, Value::Null).await;
    let object = &whole["rows"][0]["object"];
    assert_eq!((&object["kind"], &object["spec"]), (&json!("Scale"), &json!({"replicas": 5})), "{path}");
    let (code, _, _) = send(world, Method::GET, &format!("{path}?includeObject=x"), TABLE, Value::Null).await;
    assert_eq!(code, 400, "{path}");
    // A Scale is a typed object, for a custom resource too.
    let protobuf = "application/vnd.kubernetes.protobuf";
    let (code, content_type, body) = send(world, Method::GET, path, protobuf, Value::Null).await;
    assert_eq!((code, content_type.as_str(), body.get(..4)), (200, protobuf, Some(&b"k8s\0"[..])), "{path}");
}

#[tokio::test]
async fn scale_of_built_in_workload_is_served_as_table_and_as_metadata() {
    let world = World::new().await;
    let labels = json!({"app": "web"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    for (collection, selector) in [
        ("/apis/apps/v1/namespaces/default/deployments", json!({"matchLabels": labels})),
        ("/apis/apps/v1/namespaces/default/replicasets", json!({"matchLabels": labels})),
        ("/apis/apps/v1/namespaces/default/statefulsets", json!({"matchLabels": labels})),
        ("/api/v1/namespaces/default/replicationcontrollers", labels.clone()),
    ] {
        let object =
            json!({"metadata": {"name": "web"}, "spec": {"replicas": 3, "selector": selector, "template": template}});
        let (code, body) = world.post(collection, &object).await;
        assert_eq!(code, 201, "{collection}: {body}");
        check(&world, &format!("{collection}/web")).await;
    }
}

#[tokio::test]
async fn scale_of_custom_resource_is_served_as_table_and_as_metadata() {
    let world = World::new().await;
    let mut defined = definition();
    defined["spec"]["versions"][0]["subresources"] =
        json!({"scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}});
    world.define(&defined).await;
    let mut object = widget("a");
    object["spec"]["replicas"] = json!(3);
    object["status"] = json!({"replicas": 2});
    let (code, body) = world.post(WIDGETS, &object).await;
    assert_eq!(code, 201, "{body}");
    let (_, table) = world.accept(&format!("{WIDGETS}/a/scale"), TABLE).await;
    let table: Value = serde_json::from_slice(&table).expect("a table");
    assert_eq!(table["rows"][0]["cells"][2], 2, "without the status subresource, a create sets the status");
    check(&world, &format!("{WIDGETS}/a")).await;
}
