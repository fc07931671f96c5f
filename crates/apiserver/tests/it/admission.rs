//! Admission plugins that a program adds to the server.

use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::ApiServer;
use listwatch_apiserver::admission::{
    AdmissionFuture, AdmissionRequest, MutatingAdmission, Operation, ValidatingAdmission,
};
use serde_json::{Map, Value, json};

/// Copies the label `tier` of the namespace to new ConfigMaps.
struct CopyTier;

impl MutatingAdmission for CopyTier {
    fn name(&self) -> &str {
        "CopyTier"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.resource == "configmaps" && request.operation == Operation::Create
    }

    fn admit<'a>(
        &'a self,
        request: &'a AdmissionRequest<'_>,
        object: &'a mut Map<String, Value>,
    ) -> AdmissionFuture<'a, ()> {
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

/// Rejects ConfigMaps without a tier, and the deletion of those of the tier `prod`.
struct GuardTier;

impl ValidatingAdmission for GuardTier {
    fn name(&self) -> &str {
        "GuardTier"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.resource == "configmaps"
    }

    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'_>,
        object: &'a Map<String, Value>,
    ) -> AdmissionFuture<'a, ()> {
        Box::pin(async move {
            match (request.operation, object["metadata"]["labels"]["tier"].as_str()) {
                (Operation::Delete, Some("prod")) => Err(request.forbidden("it is in production")),
                (_, None) => Err(request.forbidden("it has no tier")),
                _ => Ok(()),
            }
        })
    }
}

/// Rejects services without an address.
struct NeedsAddress;

impl ValidatingAdmission for NeedsAddress {
    fn name(&self) -> &str {
        "NeedsAddress"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.resource == "services" && request.operation == Operation::Create
    }

    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'_>,
        object: &'a Map<String, Value>,
    ) -> AdmissionFuture<'a, ()> {
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
async fn mutating_plugin_changes_what_validating_plugin_sees_and_store_keeps() {
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
async fn validating_plugin_is_asked_for_updates_patches_and_deletes() {
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
async fn mutating_plugin_cannot_rename_an_object() {
    let server = server().await;
    let map = json!({"metadata": {"name": "rename-me"}});
    let (code, status) = send(&server, Method::POST, "/api/v1/namespaces/dev/configmaps", map).await;
    assert_eq!(code, 500, "{status}");
    assert_eq!(send(&server, Method::GET, "/api/v1/namespaces/dev/configmaps/renamed", Value::Null).await.0, 404);
}

#[tokio::test]
async fn validating_plugin_sees_the_allocated_address_of_a_service() {
    let server = server().await;
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    assert_eq!(send(&server, Method::POST, "/api/v1/namespaces/dev/services", service).await.0, 201);
}
