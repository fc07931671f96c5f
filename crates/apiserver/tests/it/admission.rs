//! Tests admission plugins that a program adds to the server.

use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use listwatch_access::{Attributes, Authorization, Authorizer, MaybeFuture};
use listwatch_apiserver::ApiServer;
use listwatch_apiserver::admission::{
    AdmissionFuture, AdmissionRequest, MutatingAdmission, Operation, ValidatingAdmission,
};
use listwatch_json::{Map, Value, json};

/// Copies the label `tier` of the namespace to new ConfigMaps.
struct CopyTier;

impl MutatingAdmission for CopyTier {
    fn name(&self) -> &str {
        "CopyTier"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.resource == "configmaps" && request.operation == Operation::Create
    }

    fn admit<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a mut Map) -> AdmissionFuture<'a, ()> {
        Box::pin(async move {
            let namespace = request.namespace.unwrap_or_default();
            let found = request.objects.get("", "v1", "namespaces", None, namespace).await?;
            if let Some(tier) = found.and_then(|namespace| namespace["metadata"]["labels"].get("tier").cloned()) {
                object["metadata"]["labels"] = json!({"tier": tier});
            }
            if object["metadata"]["name"] == "rename-me" {
                object["metadata"]["name"] = json!("renamed");
            }
            Ok(())
        })
    }
}

/// Rejects ConfigMaps without a tier, and the deletion of ConfigMaps with the tier `prod`.
struct GuardTier;

impl ValidatingAdmission for GuardTier {
    fn name(&self) -> &str {
        "GuardTier"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.resource == "configmaps"
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a Map) -> AdmissionFuture<'a, ()> {
        Box::pin(async move {
            match (request.operation, object["metadata"]["labels"]["tier"].as_str()) {
                (Operation::Delete, Some("prod")) => Err(request.forbidden("it is in production")),
                (_, None) => Err(request.forbidden("it has no tier")),
                _ => Ok(()),
            }
        })
    }
}

/// Rejects services without a cluster address.
struct NeedsAddress;

impl ValidatingAdmission for NeedsAddress {
    fn name(&self) -> &str {
        "NeedsAddress"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.resource == "services" && request.operation == Operation::Create
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a Map) -> AdmissionFuture<'a, ()> {
        let has_address = object["spec"]["clusterIP"].is_string();
        let result = if has_address { Ok(()) } else { Err(request.forbidden("it has no address")) };
        Box::pin(std::future::ready(result))
    }
}

async fn send(server: &ApiServer, method: Method, path: &str, body: Value) -> (u16, Value) {
    let content_type = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { bytes::Bytes::new() } else { body.to_string().into() };
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    let response = server.service().handle(request.body(Full::new(body)).unwrap()).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

async fn server() -> ApiServer {
    let builder = ApiServer::builder().mutating_admission(CopyTier).validating_admission(GuardTier);
    let server = builder.validating_admission(NeedsAddress).build().await.unwrap();
    for (name, labels) in [("prod", json!({"tier": "prod"})), ("dev", json!({"tier": "dev"})), ("bare", json!({}))] {
        let namespace = json!({"metadata": {"name": name, "labels": labels}});
        assert_eq!(send(&server, Method::POST, "/api/v1/namespaces", namespace).await.0, 201);
    }
    server
}

#[tokio::test]
async fn validating_plugin_and_store_receive_the_mutated_object() {
    let server = server().await;
    let maps = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps");
    let map = json!({"metadata": {"name": "a"}});
    let (code, created) = send(&server, Method::POST, &maps("dev"), map.clone()).await;
    assert_eq!((code, &created["metadata"]["labels"]["tier"]), (201, &json!("dev")));
    let (code, refused) = send(&server, Method::POST, &maps("bare"), map).await;
    assert_eq!((code, &refused["message"]), (403, &json!("configmaps \"a\" is forbidden: it has no tier")));
    let generated = json!({"metadata": {"generateName": "g-"}});
    let (_, refused) = send(&server, Method::POST, &maps("bare"), generated).await;
    assert_ne!(refused["details"]["name"], json!(""), "the error names the generated name");
}

#[tokio::test]
async fn validating_plugin_runs_on_updates_patches_and_deletes() {
    let server = server().await;
    for namespace in ["prod", "dev"] {
        let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
        assert_eq!(send(&server, Method::POST, &maps, json!({"metadata": {"name": "a"}})).await.0, 201);
        let one = format!("{maps}/a");
        let without = json!({"metadata": {"name": "a"}});
        assert_eq!(send(&server, Method::PUT, &one, without).await.0, 403, "PUT removes the tier");
        let patch = json!({"metadata": {"labels": null}});
        assert_eq!(send(&server, Method::PATCH, &one, patch).await.0, 403, "PATCH removes the tier");
        let expected = if namespace == "prod" { 403 } else { 200 };
        assert_eq!(send(&server, Method::DELETE, &one, Value::Null).await.0, expected, "{namespace}");
    }
}

#[tokio::test]
async fn mutating_plugin_renames_a_posted_object() {
    let server = server().await;
    let map = json!({"metadata": {"name": "rename-me"}});
    let (code, created) = send(&server, Method::POST, "/api/v1/namespaces/dev/configmaps", map).await;
    assert_eq!((code, &created["metadata"]["name"]), (201, &json!("renamed")), "{created}");
    for (name, code) in [("renamed", 200), ("rename-me", 404)] {
        let path = format!("/api/v1/namespaces/dev/configmaps/{name}");
        assert_eq!(send(&server, Method::GET, &path, Value::Null).await.0, code, "{name}");
    }
}

#[tokio::test]
async fn validating_plugin_receives_the_allocated_address_of_a_service() {
    let server = server().await;
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    assert_eq!(send(&server, Method::POST, "/api/v1/namespaces/dev/services", service).await.0, 201);
}

/// Rejects the eviction of pods.
struct KeepPods;

impl ValidatingAdmission for KeepPods {
    fn name(&self) -> &str {
        "KeepPods"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.resource == "pods" && request.subresource == Some("eviction")
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, _: &'a Map) -> AdmissionFuture<'a, ()> {
        Box::pin(std::future::ready(Err(request.forbidden("it is kept"))))
    }
}

#[tokio::test]
async fn eviction_rejected_by_a_plugin_changes_neither_pod_nor_budget() {
    let server = ApiServer::builder().validating_admission(KeepPods).build().await.unwrap();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p", "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(send(&server, Method::POST, pods, pod).await.0, 201);
    let running = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    assert_eq!(send(&server, Method::PATCH, &format!("{pods}/p/status"), running).await.0, 200);
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget =
        json!({"metadata": {"name": "b"}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "a"}}}});
    assert_eq!(send(&server, Method::POST, budgets, budget).await.0, 201);
    let counted = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 1,
        "desiredHealthy": 0, "expectedPods": 1}});
    let (code, before) = send(&server, Method::PATCH, &format!("{budgets}/b/status"), counted).await;
    assert_eq!(code, 200, "{before}");

    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let (code, refused) = send(&server, Method::POST, &format!("{pods}/p/eviction"), eviction).await;
    assert_eq!((code, &refused["message"]), (403, &json!("pods \"p\" is forbidden: it is kept")));
    let (_, after) = send(&server, Method::GET, &format!("{budgets}/b"), Value::Null).await;
    assert_eq!(after["status"], before["status"], "the budget was counted down");
    let (_, pod) = send(&server, Method::GET, &format!("{pods}/p"), Value::Null).await;
    assert!(!pod["status"].to_string().contains("DisruptionTarget"), "the pod was marked: {}", pod["status"]);
}

#[tokio::test]
async fn object_name_that_is_invalid_in_a_key_is_rejected_by_validation() {
    let server = server().await;
    let maps = "/api/v1/namespaces/prod/configmaps";
    let taken = json!({"metadata": {"name": "unnamed"}});
    assert_eq!(send(&server, Method::POST, maps, taken).await.0, 201);
    let map = json!({"metadata": {"name": "a/b"}});
    let (code, refused) = send(&server, Method::POST, maps, map).await;
    assert_eq!((code, &refused["reason"]), (422, &json!("Invalid")), "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("metadata.name"), "{refused}");
}

/// Allows all requests except the creation of Endpoints.
struct NoNewEndpoints;

impl Authorizer for NoNewEndpoints {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
        let creates = attributes.verb == "create" && attributes.resource == "endpoints";
        MaybeFuture::ready(if creates { Authorization::deny("not here") } else { Authorization::allow("") })
    }
}

/// Allows all requests except creations with a name, and fails for the name `failed`.
struct NoNamedCreate;

impl Authorizer for NoNamedCreate {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
        MaybeFuture::ready(match (attributes.verb, attributes.name) {
            ("create", "failed") => Authorization::deny("").with_error("the webhook is down"),
            ("create", name) if !name.is_empty() => Authorization::deny("named"),
            _ => Authorization::allow(""),
        })
    }
}

#[tokio::test]
async fn post_is_authorized_once_without_the_name_of_the_object() {
    let server = ApiServer::builder().authorizer(NoNamedCreate).build().await.unwrap();
    let maps = "/api/v1/namespaces/default/endpoints";
    let of = |name: &str| json!({"metadata": {"name": name}});
    let (code, created) = send(&server, Method::POST, maps, of("e")).await;
    assert_eq!(code, 201, "{created}");
    let (code, refused) = send(&server, Method::PUT, &format!("{maps}/f"), of("f")).await;
    assert_eq!(code, 403, "{refused}");
    let (code, failed) = send(&server, Method::PUT, &format!("{maps}/failed"), of("failed")).await;
    assert_eq!((code, &failed["message"]), (500, &json!("Internal error occurred: the webhook is down")));
}

#[tokio::test]
async fn update_that_creates_an_object_requires_the_verb_create() {
    let server = ApiServer::builder().authorizer(NoNewEndpoints).build().await.unwrap();
    let item = "/api/v1/namespaces/default/endpoints/e";
    let (code, refused) = send(&server, Method::PUT, item, json!({"metadata": {"name": "e"}})).await;
    let text = "endpoints \"e\" is forbidden: User \"admin\" cannot create resource \"endpoints\" in API group \"\" in the namespace \"default\": not here";
    assert_eq!((code, &refused["message"]), (403, &json!(text)));
    assert_eq!(send(&server, Method::GET, item, Value::Null).await.0, 404);
}
