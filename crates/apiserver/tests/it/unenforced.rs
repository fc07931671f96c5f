//! Tests the warnings for objects that are stored but not enforced.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use listwatch_apiserver::admission::AdmissionPlugins;
use listwatch_apiserver::{ApiServer, AuthorizationMode};
use listwatch_json::{Value, json};

#[tokio::test]
async fn object_that_is_stored_but_not_enforced_returns_a_warning() {
    let server = ApiServer::builder().admission_plugins(AdmissionPlugins::NONE).build().await.unwrap();
    let send = async |line: &str, body: Value| -> (u16, Vec<String>) {
        let (method, path) = line.split_once(' ').unwrap();
        let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", content_type);
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let response = server.service().handle(request.body(Full::new(body)).unwrap()).await;
        let warnings = response.headers().get_all("warning").iter();
        let warnings = warnings.map(|value| value.to_str().unwrap().to_owned()).collect();
        (response.status().as_u16(), warnings)
    };
    let warned = |code: u16, text: &str| (code, vec![format!("299 - \"{text}\"")]);
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}});
    let text = "ResourceQuota is stored and has no effect on this server: the namespace may exceed it";
    let (quotas, one) = ("/api/v1/namespaces/default/resourcequotas", "/api/v1/namespaces/default/resourcequotas/q");
    assert_eq!(send(&format!("POST {quotas}?dryRun=All"), quota.clone()).await, warned(201, text));
    assert_eq!(send(&format!("POST {quotas}"), quota.clone()).await, warned(201, text));
    assert_eq!(send(&format!("PUT {one}"), quota.clone()).await, warned(200, text));
    assert_eq!(send(&format!("PATCH {one}"), json!({"spec": {"hard": {"pods": "2"}}})).await, warned(200, text));
    for (line, body, code) in [
        (format!("PATCH {one}/status"), json!({"status": {"used": {"pods": "1"}}}), 200),
        (format!("GET {one}"), Value::Null, 200),
        (format!("POST {quotas}"), quota.clone(), 409),
        (format!("DELETE {one}"), Value::Null, 200),
        (
            "POST /api/v1/namespaces/default/configmaps".to_owned(),
            json!({"metadata": {"name": "q"}, "data": {"a": "b"}}),
            201,
        ),
        ("POST /api/v1/namespaces".to_owned(), json!({"metadata": {"name": "plain"}}), 201),
    ] {
        assert_eq!(send(&line, body).await, (code, Vec::new()), "{line}");
    }
    let namespace = json!({"metadata": {"name": "safe", "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
    let text = "label pod-security.kubernetes.io/* of Namespace is stored and has no effect on this server: pods are not checked against the Pod Security Standards";
    assert_eq!(send("POST /api/v1/namespaces", namespace).await, warned(201, text));
    let roles = "POST /apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
    let text = "Role is stored and has no effect on this server: the authorization mode RBAC is off";
    assert_eq!(send(roles, json!({"metadata": {"name": "r"}})).await, warned(201, text));
}

#[tokio::test]
async fn quota_is_stored_without_a_warning_if_its_plugin_is_enabled() {
    let server = ApiServer::builder().build().await.unwrap();
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}});
    let quotas = Request::post("/api/v1/namespaces/default/resourcequotas").header("content-type", "application/json");
    let response = server.service().handle(quotas.body(Full::new(Bytes::from(quota.to_string()))).unwrap()).await;
    assert_eq!((response.status().as_u16(), response.headers().get("warning")), (201, None));
}

#[tokio::test]
async fn role_is_stored_without_a_warning_if_rbac_is_enabled() {
    let modes = [AuthorizationMode::Rbac];
    let server = ApiServer::builder().authorization(modes).build().await.unwrap();
    let body = Full::new(Bytes::from(json!({"metadata": {"name": "r"}}).to_string()));
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
    let request = Request::builder().method("POST").uri(roles).header("content-type", "application/json");
    let response = server.service().handle(request.body(body).unwrap()).await;
    assert_eq!((response.status().as_u16(), response.headers().get("warning")), (201, None));
}
