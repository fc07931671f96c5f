//! The writes of a cluster as its components send them: protobuf bodies and responses, strategic merge patches of the
//! status, bindings, events, leases. Each goes through the whole server, without sockets; the store is in memory.

use std::hint::black_box;

use bytes::Bytes;
use http::{Request, StatusCode};
use listwatch_apiserver::{ApiServer, ApiService, Controllers};
use listwatch_benches::cluster::{self, ACCEPT, PROTOBUF, PodCondition, PodStatus, STRATEGIC_MERGE_PATCH, protobuf_of};
use listwatch_benches::runtime;
use listwatch_wire::protobuf;

use crate::server::send_and_read;

const PODS: &str = "/api/v1/namespaces/default/pods";
const EVENTS: &str = "/api/v1/namespaces/default/events";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const NODES: &str = "/api/v1/nodes";

/// The pods that a path binds or patches. A path of more turns starts again at the first one.
const PREPARED_PODS: u64 = 200;

/// Starts a server without controllers, because controllers write at unpredictable times.
async fn server() -> ApiService {
    let server = ApiServer::builder().controllers(Controllers::NONE).build().await.expect("a server");
    let service = server.service();
    let account = protobuf_of("v1", "ServiceAccount", r#"{"metadata":{"name":"default"}}"#);
    write(&service, Request::post("/api/v1/namespaces/default/serviceaccounts"), account, StatusCode::CREATED).await;
    service
}

/// Sends a protobuf body and reads a protobuf response.
async fn write(service: &ApiService, request: http::request::Builder, body: Bytes, status: StatusCode) -> Bytes {
    send_and_read(service, as_component(request).header("content-type", PROTOBUF), body, status).await
}

/// The headers that client-go sends with each request of a component.
fn as_component(request: http::request::Builder) -> http::request::Builder {
    request.header("accept", ACCEPT).header("user-agent", "counts/1")
}

/// The name of pod number `n`.
fn pod_name(n: u64) -> String {
    format!("{}-{n:05}", cluster::REPLICA_SET)
}

/// A pod as the ReplicaSet controller creates it.
fn pod_of(n: u64) -> Bytes {
    let owner_uid = "5f0c1d1e-0000-4000-8000-000000000001";
    cluster::Pod { name: &pod_name(n), owner_uid, ..cluster::Pod::default() }.body()
}

/// Creates the pods that a path binds or patches.
async fn prepare_pods(service: &ApiService) {
    for n in 0..PREPARED_PODS {
        write(service, Request::post(PODS), pod_of(n), StatusCode::CREATED).await;
    }
}

/// Binds a pod to the node `node-1`, as the scheduler does.
async fn bind_pod(service: &ApiService, n: u64) {
    let name = pod_name(n);
    let binding = cluster::binding("default", &name, "node-1");
    let request = Request::post(format!("{PODS}/{name}/binding"));
    black_box(write(service, request, binding, StatusCode::CREATED).await);
}

/// Runs a path whose turns are single requests: `request` sends the request of a turn. `prepare` runs once, before the
/// first turn.
fn turns_of(turns: u64, prepare: impl AsyncFn(&ApiService), request: impl AsyncFn(&ApiService, u64)) {
    runtime().block_on(async {
        let service = server().await;
        prepare(&service).await;
        for turn in 0..turns {
            request(&service, turn).await;
        }
    });
}

pub(crate) fn create_pod(turns: u64) {
    turns_of(
        turns,
        async |_| (),
        async |service, turn| {
            black_box(write(service, Request::post(PODS), pod_of(turn), StatusCode::CREATED).await);
        },
    );
}

pub(crate) fn bind(turns: u64) {
    assert!(turns <= PREPARED_PODS, "a pod is bound once");
    turns_of(turns, prepare_pods, bind_pod);
}

pub(crate) fn patch_pod_status(turns: u64) {
    const PODS_OF_NODE: u64 = 10;
    turns_of(
        turns,
        async |service| {
            for n in 0..PODS_OF_NODE {
                write(service, Request::post(PODS), pod_of(n), StatusCode::CREATED).await;
                bind_pod(service, n).await;
            }
        },
        async |service, turn| {
            let (n, ready) = (turn % PODS_OF_NODE, (turn / PODS_OF_NODE).is_multiple_of(2));
            let (name, time) = (pod_name(n), cluster::time(8 * 3600 + turn));
            let condition = |kind| PodCondition { kind, status: if ready { "True" } else { "False" }, reason: None };
            let conditions = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"].map(condition);
            let body = PodStatus {
                identity: ("name", &name),
                phase: "Running",
                conditions: &conditions,
                time: &time,
                container_id: Some(&format!("fake://{turn}")),
                ready,
                container_state: &format!(r#"{{"running":{{"startedAt":"{time}"}}}}"#),
                host_ip: "10.0.0.1",
                pod_ip: Some(&format!("10.1.0.{n}")),
            }
            .patch();
            let request = Request::patch(format!("{PODS}/{name}/status"));
            let request = as_component(request).header("content-type", STRATEGIC_MERGE_PATCH);
            black_box(send_and_read(service, request, body, StatusCode::OK).await);
        },
    );
}

pub(crate) fn create_event(turns: u64) {
    turns_of(
        turns,
        async |_| (),
        async |service, turn| {
            let json = format!(
                r#"{{"metadata":{{"name":"web-5d7f9c6b8-00001.{turn:016x}","namespace":"default"}},
                "involvedObject":{{"kind":"Pod","namespace":"default","name":"web-5d7f9c6b8-00001",
                "uid":"5f0c1d1e-0000-4000-8000-000000000001","apiVersion":"v1","resourceVersion":"1234",
                "fieldPath":"spec.containers{{web}}"}},"reason":"Started","message":"Container started",
                "source":{{"component":"kubelet","host":"node-1"}},"firstTimestamp":"2026-01-05T08:00:00Z",
                "lastTimestamp":"2026-01-05T08:00:00Z","count":1,"type":"Normal","eventTime":null,
                "reportingComponent":"kubelet","reportingInstance":"node-1"}}"#
            );
            black_box(
                write(service, Request::post(EVENTS), protobuf_of("v1", "Event", &json), StatusCode::CREATED).await,
            );
        },
    );
}

/// A lease as a kubelet renews it; `version` is empty for a new lease.
fn lease_of(turn: u64, version: &str) -> Bytes {
    let renew_time = cluster::time(turn).replace('Z', ".123456Z");
    let node_uid = Some("5f0c1d1e-0000-4000-8000-000000000002");
    cluster::Lease { namespace: "default", name: "node-1", node_uid, renew_time: &renew_time, version }.body()
}

pub(crate) fn renew_lease(turns: u64) {
    runtime().block_on(async {
        let service = server().await;
        let created = write(&service, Request::post(LEASES), lease_of(0, ""), StatusCode::CREATED).await;
        let created = protobuf::decode(&created).expect("a lease").json;
        let created = String::from_utf8(created).expect("JSON");
        let version = created.split("\"resourceVersion\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let first: u64 = version.and_then(|version| version.parse().ok()).expect("a resource version");
        for turn in 0..turns {
            // Nothing else writes, so that each renewal has the next revision.
            let body = lease_of(turn + 1, &(first + turn).to_string());
            black_box(write(&service, Request::put(format!("{LEASES}/node-1")), body, StatusCode::OK).await);
        }
    });
}

pub(crate) fn patch_node_status(turns: u64) {
    turns_of(
        turns,
        async |service| {
            let node = cluster::Node { name: "node-1", pod_cidr: "10.1.0.0/24", ..cluster::Node::default() };
            write(service, Request::post(NODES), node.body(), StatusCode::CREATED).await;
        },
        async |service, turn| {
            let body = cluster::node_status_patch(&cluster::time(turn));
            let request = Request::patch(format!("{NODES}/node-1/status"));
            let request = as_component(request).header("content-type", STRATEGIC_MERGE_PATCH);
            black_box(send_and_read(service, request, body, StatusCode::OK).await);
        },
    );
}
