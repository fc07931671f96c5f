//! Tests the checks before a connection, through the whole request chain.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_access::{Attributes, Authorization, Authorizer, MaybeFuture};
use listwatch_admission::{AdmissionFuture, AdmissionRequest, MutatingAdmission, Operation, ValidatingAdmission};
use listwatch_json::{Map, Value, json};

use crate::ApiServer;

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn send(server: &ApiServer, line: &str, headers: &[(&str, &str)], body: Value) -> (u16, String) {
    let (method, path) = line.split_once(' ').unwrap();
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = server.service().handle(request.body(Full::new(Bytes::from(body))).unwrap()).await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let status: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    (code, status["message"].as_str().map_or_else(|| String::from_utf8_lossy(&bytes).into_owned(), str::to_owned))
}

/// Creates pods, a node and services.
async fn fill(server: &ApiServer) {
    let pod = |name: &str, node: &str, containers: &[&str]| {
        let containers: Vec<Value> = containers.iter().map(|name| json!({"name": name, "image": "i"})).collect();
        json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": containers}})
    };
    let service = |name: &str| json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
    let services = "/api/v1/namespaces/default/services";
    let endpoints = "/api/v1/namespaces/default/endpoints";
    let foreign = json!({"ip": "10.0.0.9", "targetRef": {"kind": "Pod", "namespace": "default", "name": "placed"}});
    for (path, body) in [
        (PODS, pod("waits", "", &["c"])),
        (PODS, pod("two", "", &["c", "d"])),
        (PODS, pod("lost", "gone", &["c"])),
        (PODS, pod("placed", "n", &["c"])),
        ("/api/v1/nodes", json!({"metadata": {"name": "n"}})),
        (services, service("s")),
        (services, service("empty")),
        (services, service("foreign")),
        (endpoints, json!({"metadata": {"name": "empty"}})),
        (
            endpoints,
            json!({"metadata": {"name": "foreign"}, "subsets": [{"addresses": [foreign], "ports": [{"port": 80}]}]}),
        ),
    ] {
        let json = [("content-type", "application/json")];
        let (code, text) = send(server, &format!("POST {path}"), &json, body).await;
        assert_eq!(code, 201, "{path}: {text}");
    }
}

#[tokio::test]
async fn connect_request_is_rejected_by_the_first_failing_check() {
    let server = ApiServer::builder().build().await.unwrap();
    fill(&server).await;
    let check = async |line: &str, code: u16, text: &str| {
        let line = line.replacen(" pods/", &format!(" {PODS}/"), 1);
        let line = line.replacen(" services/", " /api/v1/namespaces/default/services/", 1);
        assert_eq!(send(&server, &line, &[], Value::Null).await, (code, text.to_owned()), "{line}");
    };
    check("GET pods/none/log", 404, "pods \"none\" not found").await;
    check("GET pods/waits/log", 204, "").await;
    check("GET pods/waits/log?container=x", 400, "container x is not valid for pod waits").await;
    let lines = "PodLogOptions \"none\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0";
    check("GET pods/none/log?tailLines=-1", 422, lines).await;
    let choose = "a container name must be specified for pod two, choose one of: [c d]";
    check("POST pods/two/exec?command=ls", 400, choose).await;
    check("GET pods/waits/exec?command=ls", 400, "pod waits does not have a host assigned").await;
    check("POST pods/two/portforward", 400, "pod two does not have a host assigned").await;
    check("POST pods/placed/exec?dryRun=All", 400, "dryRun is not supported").await;
    check("GET pods/lost/log", 404, "nodes \"gone\" not found").await;
    check("GET pods/placed/log", 500, "no preferred addresses found; known addresses: []").await;
    check("GET /api/v1/nodes/n/proxy/stats", 500, "no preferred addresses found; known addresses: []").await;
    check("GET /api/v1/nodes/none/proxy/stats", 404, "nodes \"none\" not found").await;
    check("PUT pods/placed/proxy/a/b", 400, "address not allowed").await;
    check("GET pods/a:b:c:d/proxy", 400, "invalid pod request \"a:b:c:d\"").await;
    check("GET services/s/proxy/", 404, "endpoints \"s\" not found").await;
    check("GET services/empty/proxy/", 503, "no endpoints available for service \"empty\"").await;
    check("GET services/https:s:81/proxy", 503, "no service port 81 found for service \"s\"").await;
    let elsewhere = "no endpoints available for service \"foreign:80\"";
    check("GET services/foreign:80/proxy/", 503, elsewhere).await;
    // Each subresource has its own methods.
    let method = "the server does not allow this method on the requested resource";
    check("POST pods/placed/log", 405, method).await;
    check("PUT pods/placed/exec", 405, method).await;
    check("GET pods/placed/log/more", 404, "the server could not find the requested resource").await;
}

#[tokio::test]
async fn stream_without_upgrade_is_rejected_after_the_target_is_found() {
    let server = ApiServer::builder().build().await.unwrap();
    fill(&server).await;
    let addresses = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
    let merge = [("content-type", "application/merge-patch+json")];
    assert_eq!(send(&server, "PATCH /api/v1/nodes/n/status", &merge, addresses).await.0, 200);
    for line in ["POST pods/placed/exec", "GET pods/placed/attach", "POST pods/placed/portforward"] {
        let line = line.replacen(" pods/", &format!(" {PODS}/"), 1);
        let refused = send(&server, &line, &[], Value::Null).await;
        assert_eq!(refused, (400, "Upgrade request required".to_owned()), "{line}");
    }
    // This node's other ports lead to this machine.
    let local = json!({"status": {"addresses": [{"type": "Hostname", "address": "localhost"}]}});
    assert_eq!(send(&server, "PATCH /api/v1/nodes/n/status", &merge, local).await.0, 200);
    let refused = send(&server, "GET /api/v1/nodes/n:9100/proxy/metrics", &[], Value::Null).await;
    assert_eq!(refused, (400, "address not allowed".to_owned()));
    let redirect = send(&server, "GET /api/v1/nodes/n/proxy?a=b", &[], Value::Null).await;
    assert_eq!(redirect, (301, String::new()));
}

/// Allows all verbs except `create`.
struct NoCreate;

impl Authorizer for NoCreate {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
        let is_stream = attributes.verb == "create" && !attributes.subresource.is_empty();
        MaybeFuture::ready(if is_stream { Authorization::deny("") } else { Authorization::allow("") })
    }
}

#[tokio::test]
async fn exec_by_get_requires_the_verb_create() {
    let server = ApiServer::builder().authorizer(NoCreate).build().await.unwrap();
    fill(&server).await;
    for subresource in ["exec", "attach", "portforward"] {
        let (code, text) = send(&server, &format!("GET {PODS}/placed/{subresource}"), &[], Value::Null).await;
        assert_eq!((code, &*text), (403, "pods \"placed\" is forbidden: "), "{subresource}");
    }
    assert_eq!(send(&server, &format!("GET {PODS}/waits/log"), &[], Value::Null).await.0, 204, "a log is read");
}

/// Rejects connections; the error contains the options.
struct NoConnect;

impl ValidatingAdmission for NoConnect {
    fn name(&self) -> &str {
        "NoConnect"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.operation == Operation::Connect
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, options: &'a Map) -> AdmissionFuture<'a, ()> {
        let subresource = request.subresource.unwrap_or_default();
        let why = format!("{} {subresource} {}", request.kind, Value::Object(options.clone()));
        Box::pin(std::future::ready(Err(request.forbidden(why))))
    }
}

#[tokio::test]
async fn connect_runs_validating_admission_with_its_options_before_any_lookup() {
    let server = ApiServer::builder().validating_admission(NoConnect).build().await.unwrap();
    fill(&server).await;
    let services = "/api/v1/namespaces/default/services";
    for (line, options) in [
        (
            format!("POST {PODS}/none/exec?command=ls&command=-l&stdin=1&tty=false&container=c"),
            r#"exec {"kind":"PodExecOptions","apiVersion":"v1","stdin":true,"container":"c","command":["ls","-l"]}"#,
        ),
        (
            format!("GET {PODS}/none/attach?stdout=true&command=ls"),
            r#"attach {"kind":"PodAttachOptions","apiVersion":"v1","stdout":true}"#,
        ),
        (
            format!("POST {PODS}/none/portforward?ports=80&ports=443,8080"),
            r#"portforward {"kind":"PodPortForwardOptions","apiVersion":"v1","ports":[80,443,8080]}"#,
        ),
        (
            format!("PUT {PODS}/none/proxy/a/b?c=d"),
            r#"proxy {"kind":"PodProxyOptions","apiVersion":"v1","path":"/a/b"}"#,
        ),
        (format!("GET {services}/none/proxy"), r#"proxy {"kind":"ServiceProxyOptions","apiVersion":"v1"}"#),
        (
            "GET /api/v1/nodes/none/proxy/stats".to_owned(),
            r#"proxy {"kind":"NodeProxyOptions","apiVersion":"v1","path":"/stats"}"#,
        ),
        (
            "POST /api/v1/nodes/none/proxy/a%2f..%2F%65xec/%2565?b=c".to_owned(),
            r#"proxy {"kind":"NodeProxyOptions","apiVersion":"v1","path":"/exec/%65"}"#,
        ),
    ] {
        let (code, text) = send(&server, &line, &[], Value::Null).await;
        assert!(code == 403 && text.ends_with(options), "{line}: {code} {text}");
    }
    assert_eq!(send(&server, &format!("GET {PODS}/waits/log"), &[], Value::Null).await.0, 204, "a log is read");
}

/// Selects another container.
struct ChangeOptions;

impl MutatingAdmission for ChangeOptions {
    fn name(&self) -> &str {
        "ChangeOptions"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.operation == Operation::Connect
    }

    fn admit<'a>(&'a self, _: &'a AdmissionRequest<'_>, options: &'a mut Map) -> AdmissionFuture<'a, ()> {
        options.insert("container", "other".into());
        Box::pin(std::future::ready(Ok(())))
    }
}

#[tokio::test]
async fn connect_uses_the_options_that_a_plugin_has_changed() {
    let server = ApiServer::builder().mutating_admission(ChangeOptions).build().await.unwrap();
    fill(&server).await;
    let (code, text) = send(&server, &format!("POST {PODS}/waits/exec?command=ls"), &[], Value::Null).await;
    assert!(code == 400 && text.contains("container other is not valid for pod waits"), "{code} {text}");
}
