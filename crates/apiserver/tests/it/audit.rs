//! Tests the events that requests write to the audit log.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_access::{Authentication, AuthenticationRequest, Authenticator, MaybeFuture};
use listwatch_apiserver::admission::{AdmissionFuture, AdmissionRequest, ValidatingAdmission};
use listwatch_apiserver::audit_log::{AuditBackend, AuditMode, AuditOptions, AuditTarget, Client, Policy};
use listwatch_apiserver::{ApiServer, Auth, AuthorizationMode};
use listwatch_json::{Map, Value, json};
use listwatch_meta::UserInfo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Builds a server with a policy and a log file in the mode `batch`, which preserves the order of the requests.
async fn server(directory: &Path, rules: &str) -> ApiServer {
    let backend = AuditBackend::log(directory.join("audit.log").to_str().unwrap());
    server_with(rules, AuditBackend { mode: AuditMode::Batch, ..backend }).await
}

async fn server_with(rules: &str, backend: AuditBackend) -> ApiServer {
    let policy = Policy::parse(&format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{rules}\n")).unwrap();
    let builder = ApiServer::builder().auth(Auth::Token("s3cret".to_owned())).authorization([AuthorizationMode::Rbac]);
    builder.audit_log(AuditOptions { policy, backends: vec![backend] }).build().await.unwrap()
}

/// Sends `METHOD path` with headers and a body, and returns the code and the body.
async fn send(server: &ApiServer, line: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
    let (method, path) = line.split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(path).header("audit-id", line);
    if !headers.iter().any(|(name, _)| *name == "content-type") {
        request = request.header("content-type", "application/json");
    }
    if !headers.iter().any(|(name, _)| *name == "authorization") {
        request = request.header("authorization", "Bearer s3cret");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
    let response = server.service().handle(request).await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    (code, String::from_utf8_lossy(&bytes).into_owned())
}

/// Closes the log, and returns its events.
async fn events(server: &ApiServer, directory: &Path) -> Vec<Value> {
    server.close_audit_log().await;
    let text = std::fs::read_to_string(directory.join("audit.log")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).expect("each line is an event")).collect()
}

#[tokio::test]
async fn audit_event_at_level_metadata_has_user_object_decision_and_response() {
    let directory = tempfile::tempdir().unwrap();
    let server = server(directory.path(), "- {level: Metadata, omitStages: [RequestReceived]}").await;
    let map = r#"{"metadata":{"name":"a"},"data":{"k":"s3cret data"}}"#;
    assert_eq!(
        send(&server, "POST /api/v1/namespaces/default/configmaps", &[("user-agent", "test")], map).await.0,
        201
    );
    assert_eq!(send(&server, "GET /api/v1/namespaces/default/pods/x", &[("impersonate-user", "bob")], "").await.0, 403);
    assert_eq!(send(&server, "GET /api/v1/namespaces/default/pods/x", &[], "").await.0, 404);
    assert_eq!(send(&server, "DELETE /api/v1/namespaces/default/configmaps/a", &[], "").await.0, 200);
    let events = events(&server, directory.path()).await;
    let [created, forbidden, missing, deleted] = &events[..] else { panic!("four events: {events:?}") };
    assert_eq!(created["stage"], "ResponseComplete");
    assert_eq!(created["auditID"], "POST /api/v1/namespaces/default/configmaps");
    assert_eq!((&created["verb"], &created["user"]["username"]), (&json!("create"), &json!("admin")));
    assert_eq!(created["userAgent"], "test");
    let reference = json!({"resource": "configmaps", "namespace": "default", "name": "a", "apiVersion": "v1"});
    assert_eq!(created["objectRef"], reference);
    assert_eq!(created["responseStatus"], json!({"metadata": {}, "code": 201}));
    assert_eq!(created["annotations"]["authorization.k8s.io/decision"], "allow");
    assert_eq!(forbidden["impersonatedUser"], json!({"username": "bob", "groups": ["system:authenticated"]}));
    let constraint = json!({"impersonationConstraint": "impersonate:user-info"});
    assert_eq!(forbidden["authenticationMetadata"], constraint);
    assert_eq!(forbidden["user"]["username"], "admin");
    assert_eq!(forbidden["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(forbidden["responseStatus"]["reason"], "Forbidden");
    assert_eq!(missing["responseStatus"]["message"], "pods \"x\" not found");
    assert_eq!(deleted["responseStatus"]["status"], "Success");
    let text = std::fs::read_to_string(directory.path().join("audit.log")).unwrap();
    assert!(!text.contains("s3cret"), "neither bodies nor credentials are in metadata: {text}");
}

#[tokio::test]
async fn audit_level_determines_which_bodies_are_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let rules = "- {level: None, verbs: [list]}\n- {level: Request, resources: [{resources: [secrets]}]}\n\
                 - {level: RequestResponse, omitManagedFields: true, omitStages: [RequestReceived]}";
    let server = server(directory.path(), rules).await;
    let path = "/api/v1/namespaces/default/configmaps";
    let indented = "{\n  \"metadata\": {\"name\": \"a\"},\n  \"data\": {\"k\": \"v\"}\n}";
    assert_eq!(send(&server, &format!("POST {path}"), &[], indented).await.0, 201);
    let yaml = "metadata: {name: b}\ndata: {k: v}";
    assert_eq!(send(&server, &format!("POST {path}"), &[("content-type", "application/yaml")], yaml).await.0, 201);
    let protobuf = [("accept", "application/vnd.kubernetes.protobuf")];
    assert_eq!(send(&server, &format!("GET {path}/a"), &protobuf, "").await.0, 200);
    assert_eq!(send(&server, &format!("GET {path}"), &[], "").await.0, 200);
    let patch = [("content-type", "application/merge-patch+json")];
    assert_eq!(send(&server, &format!("PATCH {path}/a"), &patch, r#"{"data":{"k":"w"}}"#).await.0, 200);
    let secret = r#"{"metadata":{"name":"s"}}"#;
    assert_eq!(send(&server, "POST /api/v1/namespaces/default/secrets", &[], secret).await.0, 201);
    let events = events(&server, directory.path()).await;
    let [json_created, yaml_created, read, patched, received, of_secret] = &events[..] else {
        panic!("six events: {events:?}")
    };
    for (event, name) in [(json_created, "a"), (yaml_created, "b")] {
        assert_eq!(event["requestObject"], json!({"metadata": {"name": name}, "data": {"k": "v"}}));
        assert_eq!(event["responseObject"]["metadata"]["name"], name);
        assert_eq!(event["responseObject"]["metadata"].get("managedFields"), None);
    }
    assert_eq!(read["responseObject"]["data"]["k"], "v", "a protobuf response is recorded as JSON");
    assert_eq!(read.get("requestObject"), None);
    assert_eq!(patched["requestObject"], json!({"data": {"k": "w"}}));
    assert_eq!((&received["stage"], received.get("requestObject")), (&json!("RequestReceived"), None));
    assert_eq!(of_secret["requestObject"]["metadata"]["name"], "s");
    assert_eq!(of_secret.get("responseObject"), None);
}

#[tokio::test]
async fn audited_list_response_has_the_form_that_the_client_received() {
    let directory = tempfile::tempdir().unwrap();
    let server = server(directory.path(), "- {level: RequestResponse, omitStages: [RequestReceived]}").await;
    let path = "GET /api/v1/namespaces";
    let (_, full) = send(&server, path, &[], "").await;
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    assert_eq!(send(&server, path, &table, "").await.0, 200);
    let gzip = [("accept-encoding", "gzip"), ("accept", "application/vnd.kubernetes.protobuf")];
    assert_eq!(send(&server, path, &gzip, "").await.0, 200);
    let events = events(&server, directory.path()).await;
    let full: Value = serde_json::from_str(&full).unwrap();
    assert_eq!(events[0]["responseObject"], full);
    assert_eq!(events[1]["responseObject"]["kind"], "Table");
    assert_eq!(events[2]["responseObject"]["items"], full["items"]);
}

/// Annotates each request with a token, and authenticates the token `valid`.
struct Annotating;

impl Authenticator for Annotating {
    fn authenticate<'a>(&'a self, request: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication> {
        let (Some(token), Some(recorder)) = (request.token, request.recorder) else {
            return MaybeFuture::ready(Authentication::NotRecognized);
        };
        recorder.annotate("example.com/token", token.to_owned());
        recorder.warn("renew the token");
        MaybeFuture::ready(match token {
            "valid" => Authentication::of_user(UserInfo::admin().clone()),
            _ => Authentication::Rejected("not valid".to_owned()),
        })
    }
}

#[tokio::test]
async fn annotations_and_warnings_of_authenticators_are_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let backend = AuditBackend::log(directory.path().join("audit.log").to_str().unwrap());
    let policy = Policy::parse("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]").unwrap();
    let options = AuditOptions { policy, backends: vec![AuditBackend { mode: AuditMode::Batch, ..backend }] };
    let server = ApiServer::builder().auth(Auth::Token("s3cret".to_owned())).authenticator(Annotating);
    let server = server.audit_log(options).build().await.unwrap();
    let ask = async |token: &str| {
        let request = Request::builder().uri("/api/v1/pods").header("authorization", format!("Bearer {token}"));
        let response = server.service().handle(request.body(Full::new(Bytes::new())).unwrap()).await;
        let warning = response.headers().get("warning").map(|value| value.to_str().unwrap().to_owned());
        (response.status().as_u16(), warning)
    };
    let warning = Some("299 - \"renew the token\"".to_owned());
    assert_eq!(ask("valid").await, (200, warning.clone()));
    assert_eq!(ask("other").await, (401, warning));
    let review = r#"{"spec": {"token": "valid"}}"#;
    assert_eq!(send(&server, "POST /apis/authentication.k8s.io/v1/tokenreviews", &[], review).await.0, 201);
    let account = "/api/v1/namespaces/default/serviceaccounts";
    assert_eq!(send(&server, &format!("POST {account}"), &[], r#"{"metadata": {"name": "a"}}"#).await.0, 201);
    assert_eq!(send(&server, &format!("POST {account}/a/token"), &[], "{}").await.0, 201);
    let events = events(&server, directory.path()).await;
    let annotated = |key: &str| -> Vec<(String, String)> {
        let annotation = |event: &Value| event["annotations"][key].as_str().map(str::to_owned);
        let stage = |event: &Value| event["stage"].as_str().unwrap().to_owned();
        events.iter().filter_map(|event| Some((stage(event), annotation(event)?))).collect()
    };
    let expected = [("RequestReceived", "valid"), ("ResponseComplete", "valid"), ("ResponseStarted", "other")];
    let found = annotated("example.com/token");
    let own = found.iter().filter(|(_, token)| token != "s3cret").cloned().collect::<Vec<_>>();
    assert_eq!(own, expected.map(|(stage, token)| (stage.to_owned(), token.to_owned())));
    let issued = annotated("authentication.kubernetes.io/issued-credential-id");
    assert!(
        matches!(&issued[..], [(stage, id)] if stage == "ResponseComplete" && id.starts_with("JTI=")),
        "{issued:?}"
    );
}

#[tokio::test]
async fn failed_authentication_is_audited_without_the_credential() {
    let directory = tempfile::tempdir().unwrap();
    let server = server(directory.path(), "- {level: Metadata}").await;
    for authorization in ["Bearer wr0ng", ""] {
        assert_eq!(send(&server, "GET /api/v1/pods", &[("authorization", authorization)], "").await.0, 401);
    }
    let events = events(&server, directory.path()).await;
    let messages: Vec<&str> = events.iter().map(|event| event["responseStatus"]["message"].as_str().unwrap()).collect();
    let expected = ["Authentication failed, attempted: bearer", "Authentication failed, no credentials provided"];
    assert_eq!(messages, expected);
    for event in &events {
        assert_eq!((&event["stage"], &event["user"]), (&json!("ResponseStarted"), &json!({})));
        assert_eq!(event["responseStatus"]["code"], 401);
    }
    let text = std::fs::read_to_string(directory.path().join("audit.log")).unwrap();
    assert!(!text.contains("wr0ng"), "{text}");
}

#[tokio::test]
async fn watch_is_recorded_in_the_audit_log_at_its_start_and_end() {
    let directory = tempfile::tempdir().unwrap();
    let server = server(directory.path(), "- {level: RequestResponse}").await;
    let request = Request::get("/api/v1/namespaces?watch=true").header("authorization", "Bearer s3cret");
    let response = server.service().handle(request.body(Full::new(Bytes::new())).unwrap()).await;
    assert_eq!(response.status(), 200);
    drop(response);
    let events = events(&server, directory.path()).await;
    let stages: Vec<&str> = events.iter().map(|event| event["stage"].as_str().unwrap()).collect();
    assert_eq!(stages, ["RequestReceived", "ResponseStarted", "ResponseComplete"]);
    assert_eq!(events[2]["responseStatus"], json!({"metadata": {}, "code": 200}));
    assert_eq!(events[2].get("responseObject"), None, "events of a watch are not recorded");
}

#[tokio::test]
async fn request_of_a_disconnected_client_is_recorded_in_the_audit_log() {
    let directory = tempfile::tempdir().unwrap();
    let server = server(directory.path(), "- {level: Metadata, omitStages: [RequestReceived]}").await;
    // The body never arrives.
    let body =
        http_body_util::StreamBody::new(futures_util::stream::pending::<Result<http_body::Frame<Bytes>, String>>());
    let request = Request::post("/api/v1/namespaces").header("authorization", "Bearer s3cret").body(body).unwrap();
    let answered = tokio::time::timeout(Duration::from_millis(50), server.service().handle(request)).await;
    assert!(answered.is_err());
    let events = events(&server, directory.path()).await;
    assert_eq!(events[0]["responseStatus"]["message"], "Connection closed early");
    assert_eq!(events.len(), 1);
}

/// Annotates each ConfigMap, and rejects those with the name `bad`.
struct Annotates;

impl ValidatingAdmission for Annotates {
    fn name(&self) -> &str {
        "Annotates"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.resource == "configmaps"
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, _: &'a Map) -> AdmissionFuture<'a, ()> {
        request.recorder.annotate("example.com/seen", request.name);
        let verdict = if request.name == "bad" { Err(request.forbidden("it is bad")) } else { Ok(()) };
        Box::pin(async move { verdict })
    }
}

#[tokio::test]
async fn audit_annotations_of_admission_plugins_are_recorded_even_for_rejected_writes() {
    let directory = tempfile::tempdir().unwrap();
    let backend = AuditBackend::log(directory.path().join("audit.log").to_str().unwrap());
    let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata, omitStages: [RequestReceived]}]";
    let options = AuditOptions { policy: Policy::parse(policy).unwrap(), backends: vec![backend] };
    let server = ApiServer::builder().validating_admission(Annotates).audit_log(options).build().await.unwrap();
    for (name, code) in [("good", 201), ("bad", 403)] {
        let body = format!(r#"{{"metadata":{{"name":"{name}"}}}}"#);
        assert_eq!(send(&server, "POST /api/v1/namespaces/default/configmaps", &[], &body).await.0, code);
    }
    let events = events(&server, directory.path()).await;
    let seen: Vec<&Value> = events.iter().map(|event| &event["annotations"]["example.com/seen"]).collect();
    assert_eq!(seen, ["good", "bad"]);
}

#[tokio::test]
async fn patch_of_a_webhook_is_recorded_from_the_level_request_on() {
    let rules =
        json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]);
    let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": "default"}});
    let hook = json!({"name": "w.example.com", "rules": rules, "namespaceSelector": selector});
    let webhook = json!({"metadata": {"name": "c"}, "webhooks": [hook]});
    let key = "patch.webhook.admission.k8s.io/round_0_index_0";
    let value = r#"{"configuration":"c","webhook":"w.example.com","patch":[{"op":"add","path":"/data","value":{"k":"\u003c"}}],"patchType":"JSONPatch"}"#;
    for (level, expected) in [("Metadata", Value::Null), ("Request", json!(value)), ("RequestResponse", json!(value))] {
        let directory = tempfile::tempdir().unwrap();
        let backend = AuditBackend::log(directory.path().join("audit.log").to_str().unwrap());
        let policy = format!(
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{{level: {level}, omitStages: [RequestReceived]}}]"
        );
        let options = AuditOptions { policy: Policy::parse(&policy).unwrap(), backends: vec![backend] };
        let handler = |_: Value| async {
            json!({"allowed": true, "patch": [{"value": {"k": "<"}, "path": "/data", "op": "add"}],
                "auditAnnotations": {"valid": "v", "not/valid": "v"}})
        };
        let builder = ApiServer::builder().mutating_webhook(webhook.clone(), handler).audit_log(options);
        let server = builder.build().await.unwrap();
        let body = r#"{"metadata":{"name":"a"}}"#;
        assert_eq!(send(&server, "POST /api/v1/namespaces/default/configmaps", &[], body).await.0, 201);
        let events = events(&server, directory.path()).await;
        let annotations = &events.last().unwrap()["annotations"];
        assert_eq!(annotations[key], expected, "{level}: {annotations}");
        assert_eq!(annotations["w.example.com/valid"], "v");
        assert!(annotations.get("w.example.com/not/valid").is_none(), "{annotations}");
    }
}

#[tokio::test]
async fn blocking_audit_log_is_written_before_the_response() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let server = server_with("- {level: Metadata}", AuditBackend::log(path.to_str().unwrap())).await;
    assert_eq!(send(&server, "GET /version", &[], "").await.0, 200);
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2, "both events are in the file");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn unwritable_audit_log_in_blocking_strict_mode_fails_the_request() {
    let metrics = async |mode| {
        // Every write to this device fails.
        let backend = AuditBackend { mode, ..AuditBackend::log("/dev/full") };
        let server = server_with("- {level: Metadata, nonResourceURLs: [/version]}", backend).await;
        let (code, text) = send(&server, "GET /version", &[], "").await;
        let (_, metrics) = send(&server, "GET /metrics", &[], "").await;
        (code, text, metrics)
    };
    let (code, text, found) = metrics(AuditMode::BlockingStrict).await;
    assert_eq!((code, text.as_str()), (500, "Internal Server Error: \"/version\": failed to store audit event\n"));
    assert!(found.contains("apiserver_audit_requests_rejected_total 1\n"), "{found}");
    let (code, _, found) = metrics(AuditMode::Blocking).await;
    assert_eq!(code, 200, "the mode blocking ignores errors");
    assert!(found.contains("apiserver_audit_error_total{plugin=\"log\"} 2\n"), "{found}");
    assert!(found.contains("apiserver_audit_level_total{level=\"Metadata\"} 1\n"), "{found}");
}

#[tokio::test]
async fn audit_webhook_receives_batches_as_event_lists() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/audit", listener.local_addr().unwrap());
    let received = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut bytes = Vec::new();
        loop {
            let mut more = [0; 4096];
            let count = connection.read(&mut more).await.unwrap();
            bytes.extend_from_slice(&more[..count]);
            let text = String::from_utf8_lossy(&bytes);
            if let Some((_, body)) = text.split_once("\r\n\r\n")
                && let Ok(list) = serde_json::from_str::<Value>(body)
            {
                connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                return list;
            }
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let text = format!(
        "clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\ncontexts: [{{name: x, context: {{cluster: c}}}}]\n\
         current-context: x\n"
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let backend = AuditBackend::webhook(Client::try_from(kubeconfig.as_path()).unwrap());
    assert!(matches!(backend.target, AuditTarget::Webhook { .. }));
    let server = server_with("- {level: Metadata, nonResourceURLs: [/version]}", backend).await;
    for _ in 0..2 {
        assert_eq!(send(&server, "GET /version", &[], "").await.0, 200);
    }
    // The batch is sent early, because no further event can come.
    server.close_audit_log().await;
    let list = received.await.unwrap();
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("EventList"), &json!("audit.k8s.io/v1")));
    assert_eq!(list["items"].as_array().unwrap().len(), 4);
    assert_eq!(list["items"][0].get("kind"), None);
}
