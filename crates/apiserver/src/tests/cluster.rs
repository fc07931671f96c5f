//! Tests several servers on one store: published addresses and Leases, shutdown, and the served APIs.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use listwatch_json::{Value, json};
use listwatch_registry::RuntimeConfig;
use listwatch_storage::MemoryStorage;

use crate::ApiServer;
use crate::response::body::Body;

const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints/kubernetes";
const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
const LEASES: &str =
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?labelSelector=apiserver.kubernetes.io/identity";
/// Longer than the interval between two renewals.
const REST: Duration = Duration::from_secs(15);

async fn respond(server: &ApiServer, method: &str, path: &str, body: &Value) -> Response<Body> {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    server.service().handle(request.body(Full::new(body)).unwrap()).await
}

async fn get(server: &ApiServer, path: &str) -> (u16, Value) {
    let response = respond(server, "GET", path, &Value::Null).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

async fn server(storage: &Arc<MemoryStorage>, address: [u8; 4], host_name: &str) -> ApiServer {
    let builder = ApiServer::builder().storage(storage.clone());
    builder.advertise_address(IpAddr::from(address)).host_name(host_name).build().await.unwrap()
}

/// Returns the addresses in the Endpoints of the service. Asserts that the EndpointSlice has the same addresses.
async fn published(server: &ApiServer) -> Vec<String> {
    let texts = |list: &Value, field: &str| -> Vec<String> {
        let list = list.as_array().cloned().unwrap_or_default();
        list.iter().filter_map(|one| one.pointer(field)?.as_str().map(str::to_owned)).collect()
    };
    let endpoints = texts(&get(server, ENDPOINTS).await.1["subsets"][0]["addresses"], "/ip");
    assert_eq!(texts(&get(server, SLICE).await.1["endpoints"], "/addresses/0"), endpoints);
    endpoints
}

/// Returns the hosts whose servers have an identity Lease.
async fn hosts(server: &ApiServer) -> Vec<String> {
    let leases = get(server, LEASES).await.1["items"].as_array().cloned().unwrap_or_default();
    let host = |lease: &Value| lease["metadata"]["labels"]["kubernetes.io/hostname"].as_str().unwrap().to_owned();
    let mut hosts: Vec<String> = leases.iter().map(host).collect();
    hosts.sort();
    hosts
}

#[tokio::test(start_paused = true)]
async fn endpoints_list_all_servers_of_a_store_until_they_withdraw_or_crash() {
    let storage = MemoryStorage::new();
    let one = server(&storage, [192, 0, 2, 1], "one").await;
    let two = server(&storage, [192, 0, 2, 2], "two").await;
    tokio::time::sleep(REST).await;
    assert_eq!(published(&one).await, ["192.0.2.1", "192.0.2.2"]);
    assert_eq!(hosts(&two).await, ["one", "two"]);
    one.fail_readiness();
    one.withdraw().await;
    assert_eq!(published(&two).await, ["192.0.2.2"], "the address is gone before the server stops");
    assert_eq!(hosts(&two).await, ["two"]);
    assert_eq!(get(&one, "/livez").await.0, 200, "the server still serves");
    let three = server(&storage, [192, 0, 2, 3], "three").await;
    tokio::time::sleep(REST).await;
    assert_eq!(published(&three).await, ["192.0.2.2", "192.0.2.3"]);
    // This server ends without a shutdown.
    drop(two);
    tokio::time::sleep(REST * 3).await;
    assert_eq!(published(&three).await, ["192.0.2.3"]);
    assert_eq!(hosts(&three).await, ["three", "two"], "the Lease lives for an hour");
}

#[tokio::test(start_paused = true)]
async fn server_without_an_address_publishes_nothing() {
    let storage = MemoryStorage::new();
    let server = ApiServer::builder().storage(storage.clone()).build().await.unwrap();
    tokio::time::sleep(REST).await;
    assert_eq!(get(&server, ENDPOINTS).await.0, 404);
    assert_eq!(hosts(&server).await, [""; 0]);
}

#[tokio::test]
async fn draining_server_rejects_new_requests_and_finishes_running_requests() {
    let server = ApiServer::builder().build().await.unwrap();
    let watch = respond(&server, "GET", "/api/v1/pods?watch=true", &Value::Null).await;
    let (parts, ()) = Request::get("/api/v1/pods").body(()).unwrap().into_parts();
    let Ok(running) = server.shared.request_drain.admit(&parts) else { panic!("a running server admits") };
    let drain = tokio::spawn({
        let server = server.clone();
        async move { server.drain().await }
    });
    while !server.shared.is_stopping() {
        tokio::task::yield_now().await;
    }
    let rejected = respond(&server, "GET", "/api/v1/pods", &Value::Null).await;
    assert_eq!(rejected.status(), 429);
    assert_eq!(rejected.headers()[RETRY_AFTER], "5");
    assert_eq!(get(&server, "/readyz").await.0, 500);
    assert_eq!(get(&server, "/livez").await.0, 200);
    let ended = tokio::time::timeout(Duration::from_secs(60), watch.into_body().collect()).await;
    ended.expect("the watch ends").expect("the watch ends cleanly");
    assert!(!drain.is_finished(), "a request is still running");
    drop(running);
    tokio::time::timeout(Duration::from_secs(60), drain).await.expect("the drain ends").unwrap();
}

#[tokio::test]
async fn disabled_group_version_is_neither_served_nor_discovered() {
    let config = RuntimeConfig::parse(["batch/v1=false", "apps/v1/daemonsets=false", "autoscaling/v1=false"]).unwrap();
    let server = ApiServer::builder().runtime_config(config).build().await.unwrap();
    for (path, code) in [
        ("/apis/batch", 404),
        ("/apis/batch/v1", 404),
        ("/apis/batch/v1/jobs", 404),
        ("/apis/batch/v1/namespaces/default/jobs/a", 404),
        ("/apis/apps/v1", 200),
        ("/apis/apps/v1/deployments", 200),
        ("/apis/apps/v1/daemonsets", 404),
        ("/apis/autoscaling/v1/horizontalpodautoscalers", 404),
        ("/apis/autoscaling/v2/horizontalpodautoscalers", 200),
        ("/apis/apiregistration.k8s.io/v1/apiservices/v1.batch", 404),
        ("/apis/apiregistration.k8s.io/v1/apiservices/v1.apps", 200),
    ] {
        assert_eq!(get(&server, path).await.0, code, "{path}");
    }
    let groups = get(&server, "/apis").await.1;
    let names: Vec<&str> =
        groups["groups"].as_array().unwrap().iter().map(|group| group["name"].as_str().unwrap()).collect();
    assert!(!names.contains(&"batch") && names.contains(&"apps"), "{names:?}");
    let apps = get(&server, "/apis/apps/v1").await.1.to_string();
    assert!(!apps.contains("daemonsets") && apps.contains("deployments"), "{apps}");
    let documents = get(&server, "/openapi/v3").await.1["paths"].clone();
    assert!(documents.get("apis/batch/v1").is_none() && documents.get("apis/apps/v1").is_some(), "{documents}");
    let autoscaler = json!({"metadata": {"name": "a"}, "spec": {"maxReplicas": 2,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}});
    let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let created = respond(&server, "POST", path, &autoscaler).await;
    assert_eq!(created.status(), 201, "the other version of a kind is served");
}

#[tokio::test(start_paused = true)]
async fn events_expire_after_the_event_ttl() {
    let server = ApiServer::builder().event_ttl(Duration::from_secs(90)).build().await.unwrap();
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}, "type": "Normal"});
    let path = "/api/v1/namespaces/default/events";
    assert_eq!(respond(&server, "POST", path, &event).await.status(), 201);
    tokio::time::sleep(Duration::from_secs(80)).await;
    assert_eq!(get(&server, &format!("{path}/e")).await.0, 200);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(get(&server, &format!("{path}/e")).await.0, 404);
}
