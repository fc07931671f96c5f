//! Tests the Node authorizer and NodeRestriction on a complete server: allowed and forbidden requests of a kubelet.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::{ApiServer, AuthorizationMode};
use listwatch_json::{Value, json};

const ADMIN: (&str, &str) = ("root", "system:masters");
const A: (&str, &str) = ("system:node:a", "system:nodes");
const B: (&str, &str) = ("system:node:b", "system:nodes");
const PODS: &str = "/api/v1/namespaces/default/pods";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

struct Server(ApiServer);

impl Server {
    /// Starts a server with two nodes, a pod on each node, and a pod without a node.
    async fn start() -> Self {
        let builder = ApiServer::builder().authorization([AuthorizationMode::Node, AuthorizationMode::Rbac]);
        let server = Server(builder.node_restriction(true).build().await.unwrap());
        for node in ["a", "b"] {
            let taints = json!([{"key": "t", "effect": "NoSchedule"}]);
            let node =
                json!({"metadata": {"name": node, "labels": {"kubernetes.io/x": "y"}}, "spec": {"taints": taints}});
            server.create("/api/v1/nodes", node).await;
        }
        for account in ["sa-a", "sa-b"] {
            let path = "/api/v1/namespaces/default/serviceaccounts";
            server.create(path, json!({"metadata": {"name": account}})).await;
        }
        for secret in ["s-a", "s-b", "s-none"] {
            server.create(SECRETS, json!({"metadata": {"name": secret}})).await;
        }
        for node in ["a", "b"] {
            server.create(PODS, pod(node, Some(node))).await;
        }
        server.create(PODS, pod("none", None)).await;
        server.wait(A, "GET /api/v1/namespaces/default/secrets/s-a", 200).await;
        server.wait(B, "GET /api/v1/namespaces/default/secrets/s-b", 200).await;
        server
    }

    async fn send(&self, who: (&str, &str), line: &str, body: Value) -> (u16, Value) {
        let (method, path) = line.split_once(' ').unwrap();
        let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", content_type);
        let request = request.header("impersonate-user", who.0).header("impersonate-group", who.1);
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let response = self.0.service().handle(request.body(Full::new(body)).unwrap()).await;
        let code = response.status().as_u16();
        let is_stream = code == 200 && path.contains("watch=");
        let bytes = match is_stream {
            true => Bytes::new(),
            false => response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default(),
        };
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn create(&self, path: &str, object: Value) -> Value {
        let (code, answer) = self.send(ADMIN, &format!("POST {path}"), object).await;
        assert_eq!(code, 201, "{path}: {answer}");
        answer
    }

    async fn uid(&self, path: &str) -> Value {
        self.send(ADMIN, &format!("GET {path}"), Value::Null).await.1["metadata"]["uid"].clone()
    }

    /// Waits until the authorizer has read the earlier writes.
    async fn wait(&self, who: (&str, &str), line: &str, expected: u16) {
        let mut code = 0;
        for _ in 0..1_000 {
            code = self.send(who, line, Value::Null).await.0;
            if code == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(code, expected, "the graph must follow within 10 s: {} {line}", who.0);
    }

    /// Checks the code of a response, and that the message of an error contains a text.
    async fn check(&self, who: (&str, &str), line: &str, body: Value, expected: (u16, &str)) {
        let (code, answer) = self.send(who, line, body).await;
        assert_eq!(code, expected.0, "{} {line}: {answer}", who.0);
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(message.contains(expected.1), "{} {line}: {message:?} lacks {:?}", who.0, expected.1);
    }
}

fn pod(name: &str, node: Option<&str>) -> Value {
    json!({"metadata": {"name": format!("pod-{name}")}, "spec": {
        "nodeName": node,
        "serviceAccountName": format!("sa-{name}"),
        "containers": [{"name": "c", "image": "i", "envFrom": [{"secretRef": {"name": format!("s-{name}")}}]}],
    }})
}

#[tokio::test]
async fn kubelet_reads_only_the_objects_that_its_pods_reference() {
    let server = Server::start().await;
    for (line, expected) in [
        ("GET /api/v1/namespaces/default/secrets/s-a", 200),
        ("GET /api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Ds-a", 200),
        ("GET /api/v1/namespaces/default/secrets?watch=1&fieldSelector=metadata.name%3Ds-a", 200),
        ("GET /api/v1/namespaces/default/secrets/s-b", 403),
        ("GET /api/v1/namespaces/default/secrets/s-none", 403),
        ("GET /api/v1/namespaces/default/secrets", 403),
        ("GET /api/v1/secrets?fieldSelector=metadata.name%3Ds-a", 403),
        // The terms are sorted, so the first line has the name `s-a`. It selects nothing.
        ("GET /api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Ds-b,metadata.name%3Ds-a", 200),
        ("GET /api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Ds-none,metadata.name%3Ds-b", 403),
        ("GET /api/v1/namespaces/default/secrets?fieldSelector=metadata.name!%3Ds-b", 403),
        ("GET /api/v1/watch/namespaces/default/secrets?fieldSelector=metadata.name%3Ds-a", 403),
        ("GET /api/v1/pods?fieldSelector=spec.nodeName%3Da", 200),
        ("GET /api/v1/pods?fieldSelector=spec.nodeName%3D%3Da", 200),
        ("GET /api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Da", 200),
        ("GET /api/v1/pods?fieldSelector=spec.nodeName%3Db&fieldSelector=spec.nodeName%3Da", 403),
        ("GET /api/v1/pods?fieldSelector=spec.nodeName!%3Db", 403),
        ("GET /api/v1/pods?fieldSelector=spec.nodeName%3Da%00", 403),
        // The second term narrows the request, and its field does not exist.
        ("GET /api/v1/pods?fieldSelector=spec.nodeName%3Da,%3D,", 400),
        ("GET /api/v1/pods?labelSelector=spec.nodeName%3Da", 403),
        ("GET /api/v1/pods", 403),
        ("GET /api/v1/watch/pods?fieldSelector=spec.nodeName%3Da", 403),
        ("GET /api/v1/namespaces/default/pods/pod-a", 200),
        ("GET /api/v1/namespaces/default/pods/pod-b", 403),
        ("GET /api/v1/namespaces/default/pods/pod-none", 403),
        ("GET /api/v1/namespaces/default/pods/pod-a/log?container=c", 403),
        ("GET /api/v1/nodes/a", 200),
        ("GET /api/v1/nodes?fieldSelector=metadata.name%3Da", 200),
        ("GET /api/v1/nodes/b", 403),
        ("GET /api/v1/nodes", 403),
        ("GET /api/v1/nodes?fieldSelector=metadata.name%3Db", 403),
        ("GET /api/v1/namespaces/default/serviceaccounts/sa-a", 200),
        ("GET /api/v1/namespaces/default/serviceaccounts/sa-b", 403),
        ("GET /api/v1/services", 200),
        ("GET /apis/rbac.authorization.k8s.io/v1/clusterroles", 403),
    ] {
        server.check(A, line, Value::Null, (expected, "")).await;
    }
    // The selector that was authorized is the one that selects.
    let (_, list) = server.send(A, "GET /api/v1/pods?fieldSelector=spec.nodeName%3Da", Value::Null).await;
    let items = list["items"].as_array().unwrap().iter().map(|pod| pod["spec"]["nodeName"].clone());
    assert_eq!(items.collect::<Vec<_>>(), ["a"]);
    // Neither the name nor the group alone makes a node.
    for who in [("system:node:a", "system:authenticated"), ("alice", "system:nodes"), ("system:node:", "system:nodes")]
    {
        server.check(who, "GET /api/v1/nodes/a", Value::Null, (403, "cannot get resource \"nodes\"")).await;
    }
    let (_, binding) =
        server.send(ADMIN, "GET /apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:node", Value::Null).await;
    assert!(binding["subjects"].is_null(), "the role of nodes has no subjects: {binding}");
}

#[tokio::test]
async fn node_loses_access_to_objects_of_a_deleted_pod() {
    let server = Server::start().await;
    let line = "DELETE /api/v1/namespaces/default/pods/pod-a?gracePeriodSeconds=0";
    server
        .check(A, "DELETE /api/v1/namespaces/default/pods/pod-b", Value::Null, (403, "node \"a\" can only delete pods"))
        .await;
    server.check(A, line, Value::Null, (200, "")).await;
    server.wait(A, "GET /api/v1/namespaces/default/secrets/s-a", 403).await;
    server.wait(B, "GET /api/v1/namespaces/default/secrets/s-b", 200).await;
}

#[tokio::test]
async fn access_review_evaluates_the_selectors_of_a_request() {
    let server = Server::start().await;
    let ask = async |selector: Value| {
        let attributes = json!({"verb": "list", "resource": "pods", "fieldSelector": selector});
        let spec = json!({"user": A.0, "groups": [A.1], "resourceAttributes": attributes});
        let line = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews";
        let (code, answer) = server.send(ADMIN, line, json!({"spec": spec})).await;
        (code, answer["status"]["allowed"].as_bool().unwrap_or_default(), answer["status"]["evaluationError"].clone())
    };
    let requirement = |operator: &str, values: Value| json!({"requirements": [{"key": "spec.nodeName", "operator": operator, "values": values}]});
    let unparsed = json!("spec.resourceAttributes.fieldSelector ignored due to parse error");
    for (selector, expected) in [
        (Value::Null, (201, false, Value::Null)),
        (json!({"rawSelector": "spec.nodeName=a"}), (201, true, Value::Null)),
        (json!({"rawSelector": "spec.nodeName=b"}), (201, false, Value::Null)),
        (json!({"rawSelector": "spec.nodeName!=a"}), (201, false, Value::Null)),
        (json!({"rawSelector": "spec.nodeName"}), (201, false, unparsed.clone())),
        (requirement("In", json!(["a"])), (201, true, Value::Null)),
        (requirement("NotIn", json!(["a"])), (201, false, Value::Null)),
        (requirement("In", json!(["a", "b"])), (201, false, unparsed.clone())),
        (requirement("Exists", json!([])), (201, false, unparsed)),
        (json!({}), (422, false, Value::Null)),
        (
            json!({"rawSelector": "a=b", "requirements": [{"key": "a", "operator": "In", "values": ["b"]}]}),
            (422, false, Value::Null),
        ),
    ] {
        assert_eq!(ask(selector.clone()).await, expected, "{selector}");
    }
}

#[tokio::test]
async fn kubelet_writes_only_its_own_node_and_pods() {
    let server = Server::start().await;
    let own = "PATCH /api/v1/nodes/a";
    let label = |key: &str| json!({"metadata": {"labels": {key: "z"}}});
    for (line, body, expected) in [
        (own, label("example.com/x"), (200, "")),
        (own, label("kubernetes.io/os"), (200, "")),
        (own, label("kubernetes.io/x"), (403, "is not allowed to modify labels: kubernetes.io/x")),
        (own, json!({"metadata": {"labels": {"kubernetes.io/x": null}}}), (403, "is not allowed to modify labels")),
        (own, label("node-restriction.kubernetes.io/x"), (403, "node-restriction.kubernetes.io/x")),
        (own, label("node-role.kubernetes.io/control-plane"), (403, "is not allowed to modify labels")),
        (own, json!({"spec": {"taints": null}}), (403, "node \"a\" is not allowed to modify taints")),
        (own, json!({"spec": {"taints": [{"key": "u", "effect": "NoSchedule"}]}}), (403, "taints")),
        (
            own,
            json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "b", "uid": "u"}]}}),
            (403, "node \"a\" is not allowed to modify ownerReferences"),
        ),
        (own, json!({"spec": {"configSource": {"configMap": {"name": "x"}}}}), (403, "configSource")),
        ("PATCH /api/v1/nodes/a/status", json!({"status": {"phase": "Running"}}), (200, "")),
        ("PATCH /api/v1/nodes/a/status", label("kubernetes.io/y"), (403, "is not allowed to modify labels")),
        ("PATCH /api/v1/nodes/b", label("x"), (403, "node \"a\" is not allowed to modify node \"b\"")),
        (
            "PATCH /api/v1/nodes/b/status",
            json!({"status": {}}),
            (403, "node \"a\" is not allowed to modify node \"b\""),
        ),
        ("DELETE /api/v1/nodes/a", Value::Null, (403, "cannot delete resource \"nodes\"")),
        ("POST /api/v1/nodes", json!({"metadata": {"name": "c"}}), (403, "is not allowed to modify node \"c\"")),
        ("PATCH /api/v1/namespaces/default/pods/pod-a/status", json!({"status": {"phase": "Running"}}), (200, "")),
        (
            "PATCH /api/v1/namespaces/default/pods/pod-a/status",
            json!({"metadata": {"labels": {"a": "b"}}}),
            (403, "node \"a\" cannot update labels through pod status"),
        ),
        (
            "PATCH /api/v1/namespaces/default/pods/pod-b/status",
            json!({"status": {"phase": "Failed"}}),
            (403, "node \"a\" can only update pod status for pods with spec.nodeName set to itself"),
        ),
        (
            "POST /api/v1/namespaces/default/pods/pod-b/eviction",
            json!({"metadata": {"name": "pod-b"}}),
            (403, "node a can only evict pods with spec.nodeName set to itself"),
        ),
        ("PATCH /api/v1/namespaces/default/pods/pod-a", label("x"), (403, "cannot patch resource \"pods\"")),
        (
            "POST /api/v1/namespaces/default/pods",
            pod("new", Some("a")),
            (
                403,
                "pod does not have \"kubernetes.io/config.mirror\" annotation, node \"a\" can only create mirror pods",
            ),
        ),
        (&format!("POST {LEASES}"), json!({"metadata": {"name": "a"}}), (201, "")),
        (&format!("POST {LEASES}"), json!({"metadata": {"name": "b"}}), (403, "same name as the requesting node")),
        (&format!("DELETE {LEASES}/b"), Value::Null, (403, "same name as the requesting node")),
        (
            "POST /apis/storage.k8s.io/v1/csinodes",
            json!({"metadata": {"name": "b"}, "spec": {"drivers": []}}),
            (403, "CSINode"),
        ),
        (
            "POST /apis/resource.k8s.io/v1/resourceslices",
            json!({"metadata": {"name": "s"}, "spec": {"nodeName": "b", "driver": "d.example.com", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}}),
            (403, "can only create ResourceSlice with the same NodeName as the requesting node"),
        ),
    ] {
        server.check(A, line, body, expected).await;
    }
    server
        .check(
            A,
            "POST /api/v1/namespaces/default/pods/pod-a/eviction",
            json!({"metadata": {"name": "pod-a"}}),
            (201, ""),
        )
        .await;
}

#[tokio::test]
async fn mirror_pod_of_another_node_or_with_api_references_is_rejected() {
    let server = Server::start().await;
    let uid = server.uid("/api/v1/nodes/a").await;
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "a", "uid": uid, "controller": true});
    let second = json!({"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "second"});
    let mirror = json!({
        "metadata": {"name": "m", "annotations": {"kubernetes.io/config.mirror": "h"}, "ownerReferences": [owner]},
        "spec": {"nodeName": "a", "containers": [{"name": "c", "image": "i"}]},
    });
    for (pointer, value, expected) in [
        ("/spec/nodeName", json!("b"), "can only create pods with spec.nodeName set to itself"),
        ("/metadata/ownerReferences", json!([]), "with an owner reference set to itself"),
        ("/metadata/ownerReferences", json!([owner, second]), "with a single owner reference set to itself"),
        ("/metadata/ownerReferences/0/name", json!("b"), "with an owner reference set to itself"),
        ("/metadata/ownerReferences/0/kind", json!("Pod"), "with an owner reference set to itself"),
        ("/metadata/ownerReferences/0/controller", json!(false), "with a controller owner reference set to itself"),
        ("/metadata/ownerReferences/0/uid", json!("other"), "node a UID mismatch: expected other got"),
        (
            "/spec/containers/0",
            json!({"name": "c", "image": "i", "envFrom": [{"secretRef": {"name": "s-b"}}]}),
            "can not create pods that reference secrets",
        ),
    ] {
        let mut pod = mirror.clone();
        *pod.pointer_mut(pointer).unwrap() = value;
        server.check(A, &format!("POST {PODS}"), pod, (403, expected)).await;
    }
    let mut with_account = mirror.clone();
    with_account["spec"]["serviceAccountName"] = json!("sa-b");
    server
        .check(A, &format!("POST {PODS}"), with_account, (403, "can not create pods that reference serviceaccounts"))
        .await;
    server.check(A, &format!("POST {PODS}"), mirror, (201, "")).await;
    server.check(A, &format!("GET {SECRETS}/s-b"), Value::Null, (403, "no relationship found")).await;
}

#[tokio::test]
async fn kubelet_can_request_tokens_only_for_its_own_pods() {
    let server = Server::start().await;
    let [own, other] = [server.uid(&format!("{PODS}/pod-a")).await, server.uid(&format!("{PODS}/pod-b")).await];
    let line = "POST /api/v1/namespaces/default/serviceaccounts/sa-a/token";
    let bound = |name: &str, uid: &Value, audiences: Value| {
        let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
        json!({"spec": {"boundObjectRef": reference, "audiences": audiences}})
    };
    for (body, expected) in [
        (json!({"spec": {}}), (403, "node requested token not bound to a pod")),
        (bound("pod-a", &Value::Null, json!([])), (403, "node requested token with a pod binding without a uid")),
        (bound("pod-b", &other, json!([])), (403, "node requested token bound to a pod scheduled on a different node")),
        (bound("pod-a", &other, json!([])), (403, "does not match the UID in record")),
        (bound("gone", &own, json!([])), (404, "pod \"gone\" not found")),
        (bound("pod-a", &own, json!(["x", "y"])), (403, "node may only request 0 or 1 audiences")),
        (
            bound("pod-a", &own, json!(["vault"])),
            (
                403,
                "audience \"vault\" not found in pod spec volume, system:node:a is not authorized to request tokens for this audience",
            ),
        ),
    ] {
        server.check(A, line, body, expected).await;
    }
    let other_line = "POST /api/v1/namespaces/default/serviceaccounts/sa-b/token";
    server.check(A, other_line, bound("pod-b", &other, json!([])), (403, "no relationship found")).await;
    // A volume of the pod names the audience.
    let mut with_token = pod("a", Some("a"));
    with_token["metadata"]["name"] = json!("pod-t");
    let source = json!({"serviceAccountToken": {"path": "t", "audience": "vault"}});
    with_token["spec"]["volumes"] = json!([{"name": "t", "projected": {"sources": [source]}}]);
    let uid = server.create(PODS, with_token).await["metadata"]["uid"].clone();
    server.check(A, line, bound("pod-t", &uid, json!(["vault"])), (201, "")).await;
    server.check(A, line, bound("pod-t", &uid, json!(["bank"])), (403, "audience \"bank\" not found")).await;
}
