//! The writes of a cluster as its components send them: protobuf bodies and responses, strategic merge patches of the
//! status, bindings, events, leases. Each goes through the whole server, without sockets; the store is in memory.

use std::hint::black_box;

use bytes::Bytes;
use http::{Request, StatusCode};
use listwatch_apiserver::{ApiServer, ApiService, Controllers};
use listwatch_benches::runtime;
use listwatch_wire::protobuf;

use crate::server::send_and_read;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PODS: &str = "/api/v1/namespaces/default/pods";
const EVENTS: &str = "/api/v1/namespaces/default/events";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const NODES: &str = "/api/v1/nodes";

/// The pods that a path binds or patches. A path of more turns starts again at the first one.
const PREPARED_PODS: u64 = 200;

/// A server without controllers, which work at times of their own.
async fn server() -> ApiService {
    let server = ApiServer::builder().controllers(Controllers::NONE).build().await.expect("a server");
    let service = server.service();
    let account = protobuf_of("v1", "ServiceAccount", r#"{"metadata":{"name":"default"}}"#);
    write(&service, Request::post("/api/v1/namespaces/default/serviceaccounts"), account, StatusCode::CREATED).await;
    service
}

/// A JSON object as a protobuf body.
fn protobuf_of(api_version: &str, kind: &str, json: &str) -> Bytes {
    protobuf::encode(api_version, kind, json.as_bytes()).expect("a protobuf body").into()
}

/// Sends a protobuf body and reads a protobuf response.
async fn write(service: &ApiService, request: http::request::Builder, body: Bytes, status: StatusCode) -> Bytes {
    send_and_read(service, as_component(request).header("content-type", PROTOBUF), body, status).await
}

/// The headers that client-go sends with each request of a component.
fn as_component(request: http::request::Builder) -> http::request::Builder {
    request.header("accept", "application/vnd.kubernetes.protobuf,application/json").header("user-agent", "counts/1")
}

/// A pod as the ReplicaSet controller creates it.
fn pod_of(n: u64) -> Bytes {
    let env: Vec<String> = (0..4).map(|at| format!(r#"{{"name":"SETTING_{at}","value":"value-{at}"}}"#)).collect();
    let json = format!(
        r#"{{"metadata":{{"name":"web-5d7f9c6b8-{n:05}","generateName":"web-5d7f9c6b8-",
        "labels":{{"app":"web","pod-template-hash":"5d7f9c6b8"}},
        "ownerReferences":[{{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-5d7f9c6b8",
        "uid":"5f0c1d1e-0000-4000-8000-000000000001","controller":true,"blockOwnerDeletion":true}}]}},
        "spec":{{"containers":[{{"name":"web","image":"shop:1","env":[{}],
        "ports":[{{"name":"http","containerPort":8080,"protocol":"TCP"}}],
        "resources":{{"requests":{{"cpu":"100m","memory":"64Mi"}}}},
        "terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}}],
        "restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","securityContext":{{}},
        "schedulerName":"default-scheduler"}}}}"#,
        env.join(",")
    );
    protobuf_of("v1", "Pod", &json)
}

/// Creates the pods that a path binds or patches.
async fn prepare_pods(service: &ApiService) {
    for n in 0..PREPARED_PODS {
        write(service, Request::post(PODS), pod_of(n), StatusCode::CREATED).await;
    }
}

/// Binds a pod to the node `node-1`, as the scheduler does.
async fn bind_pod(service: &ApiService, n: u64) {
    let json = format!(
        r#"{{"metadata":{{"name":"web-5d7f9c6b8-{n:05}","namespace":"default"}},
        "target":{{"kind":"Node","name":"node-1"}}}}"#
    );
    let request = Request::post(format!("{PODS}/web-5d7f9c6b8-{n:05}/binding"));
    black_box(write(service, request, protobuf_of("v1", "Binding", &json), StatusCode::CREATED).await);
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
            let (status, started) = if ready { ("True", "true") } else { ("False", "false") };
            let time = format!("2026-01-05T08:{:02}:{:02}Z", turn / 60 % 60, turn % 60);
            let condition = |kind: &str| {
                format!(
                    r#"{{"lastProbeTime":null,"lastTransitionTime":"{time}","observedGeneration":1,"status":"{status}","type":"{kind}"}}"#
                )
            };
            // The form of kubelet's patch: a merge of lists by key, with the order of the conditions.
            let body = format!(
                r#"{{"metadata":{{"name":"web-5d7f9c6b8-{n:05}"}},"status":{{"$setElementOrder/conditions":[{{"type":"PodReadyToStartContainers"}},
                {{"type":"Initialized"}},{{"type":"Ready"}},{{"type":"ContainersReady"}},{{"type":"PodScheduled"}}],
                "conditions":[{},{},{},{}],"containerStatuses":[{{"containerID":"fake://{turn}","image":"shop:1","imageID":"fake://shop",
                "lastState":{{}},"name":"web","ready":{started},"restartCount":0,"started":{started},
                "state":{{"running":{{"startedAt":"{time}"}}}}}}],"hostIP":"10.0.0.1","hostIPs":[{{"ip":"10.0.0.1"}}],"phase":"Running",
                "podIP":"10.1.0.{n}","podIPs":[{{"ip":"10.1.0.{n}"}}],"startTime":"2026-01-05T08:00:00Z"}}}}"#,
                condition("PodReadyToStartContainers"),
                condition("Initialized"),
                condition("Ready"),
                condition("ContainersReady"),
            );
            let request = Request::patch(format!("{PODS}/web-5d7f9c6b8-{n:05}/status"));
            let request = as_component(request).header("content-type", "application/strategic-merge-patch+json");
            black_box(send_and_read(service, request, body.into(), StatusCode::OK).await);
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
    let json = format!(
        r#"{{"metadata":{{"name":"node-1","namespace":"default","resourceVersion":"{version}","ownerReferences":[{{"apiVersion":"v1",
        "kind":"Node","name":"node-1","uid":"5f0c1d1e-0000-4000-8000-000000000002"}}]}},"spec":{{"holderIdentity":"node-1",
        "leaseDurationSeconds":40,"renewTime":"2026-01-05T{:02}:{:02}:{:02}.123456Z"}}}}"#,
        turn / 3600 % 24,
        turn / 60 % 60,
        turn % 60
    );
    protobuf_of("coordination.k8s.io/v1", "Lease", &json)
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
            let images: Vec<String> = (0..20)
                .map(|n| format!(r#"{{"names":["registry.example.com/image-{n}:1"],"sizeBytes":1{n:02}000000}}"#))
                .collect();
            let json = format!(
                r#"{{"metadata":{{"name":"node-1","labels":{{"kubernetes.io/hostname":"node-1","kubernetes.io/os":"linux"}}}},
                "spec":{{"podCIDR":"10.1.0.0/24","podCIDRs":["10.1.0.0/24"]}},
                "status":{{"capacity":{{"cpu":"8","memory":"32Gi","pods":"110"}},"allocatable":{{"cpu":"8","memory":"32Gi","pods":"110"}},
                "images":[{}]}}}}"#,
                images.join(",")
            );
            write(service, Request::post(NODES), protobuf_of("v1", "Node", &json), StatusCode::CREATED).await;
        },
        async |service, turn| {
            let time = format!("2026-01-05T{:02}:{:02}:{:02}Z", turn / 3600 % 24, turn / 60 % 60, turn % 60);
            let condition = |kind: &str, status: &str, reason: &str| {
                format!(
                    r#"{{"lastHeartbeatTime":"{time}","lastTransitionTime":"2026-01-05T00:00:00Z","message":"kubelet says so","reason":"{reason}","status":"{status}","type":"{kind}"}}"#
                )
            };
            let body = format!(
                r#"{{"status":{{"$setElementOrder/conditions":[{{"type":"MemoryPressure"}},{{"type":"DiskPressure"}},{{"type":"PIDPressure"}},
                {{"type":"Ready"}}],"conditions":[{},{},{},{}]}}}}"#,
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                condition("Ready", "True", "KubeletReady"),
            );
            let request = Request::patch(format!("{NODES}/node-1/status"));
            let request = as_component(request).header("content-type", "application/strategic-merge-patch+json");
            black_box(send_and_read(service, request, body.into(), StatusCode::OK).await);
        },
    );
}
