//! Tests aggregation from end to end: an extension server in another process, behind an APIService.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::{ApiServer, Body, Builder};
use listwatch_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const THINGS: &str = "/apis/ext.example.com/v1/namespaces/default/things";
const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1.ext.example.com";
/// The time limit of a wait for a connection or a stream.
const PATIENCE: Duration = Duration::from_secs(60);
/// The number of requests, 20 ms apart, until a state must be reached.
const POLLS_MAX: usize = 3_000;
/// The number of times that a request is sent, if it misses a short deadline because the machine is slow.
const ATTEMPTS_MAX: usize = 10;

/// An extension server, which ends with the test.
pub(crate) struct Extension {
    process: Child,
    port: u16,
    certificate: String,
}

impl Drop for Extension {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Extension {
    /// Starts the server as the service `default/things`.
    pub(crate) fn start(folder: &std::path::Path) -> Self {
        let certified = rcgen::generate_simple_self_signed(vec!["things.default.svc".to_owned()]).unwrap();
        let (certificate, key) = (folder.join("tls.crt"), folder.join("tls.key"));
        std::fs::write(&certificate, certified.cert.pem()).unwrap();
        std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/extension_server.py");
        let mut command = Command::new("python3");
        let mut process = command.arg(script).args([&certificate, &key]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Extension { process, port: line.trim().parse().unwrap(), certificate: certified.cert.pem() }
    }

    /// Returns the APIService of the extension server.
    pub(crate) fn api_service(&self) -> Value {
        let bundle = base64::engine::general_purpose::STANDARD.encode(&self.certificate);
        json!({"metadata": {"name": "v1.ext.example.com"}, "spec": {"group": "ext.example.com", "version": "v1",
            "groupPriorityMinimum": 100, "versionPriority": 10, "caBundle": bundle,
            "service": {"namespace": "default", "name": "things", "port": self.port}}})
    }
}

/// Returns a service of the type ExternalName that resolves to this machine. Cluster addresses are not reachable in
/// this test.
pub(crate) fn service() -> Value {
    json!({"metadata": {"name": "things"}, "spec": {"type": "ExternalName", "externalName": "localhost"}})
}

async fn open(server: &ApiServer, line: &str, body: &Value, accept: &str) -> http::Response<Body> {
    let (method, path) = line.split_once(' ').unwrap();
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let request =
        request.header("accept", accept).header("x-remote-user", "forged").header("content-length", body.len());
    server.service().handle(request.body(Full::new(Bytes::from(body))).unwrap()).await
}

async fn send(server: &ApiServer, line: &str, body: Value) -> (u16, Value) {
    let response = open(server, line, &body, "application/json").await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let text = || Value::from(String::from_utf8_lossy(&bytes));
    (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
}

/// Waits until the APIService has the condition `Available` with this reason.
async fn available(server: &ApiServer, reason: &str) {
    let mut found = Value::Null;
    for _ in 0..POLLS_MAX {
        found = send(server, &format!("GET {API_SERVICE}"), Value::Null).await.1;
        if found["status"]["conditions"][0]["reason"] == reason {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("no condition {reason}: {found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_and_documents_of_an_extension_server_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let extension = Extension::start(folder.path());
    let server = ApiServer::builder().build().await.unwrap();
    let get = async |path: &str| send(&server, &format!("GET {path}"), Value::Null).await;

    let api_services = "POST /apis/apiregistration.k8s.io/v1/apiservices";
    assert_eq!(send(&server, api_services, extension.api_service()).await.0, 201);
    available(&server, "ServiceNotFound").await;
    assert_eq!(get(THINGS).await, (503, json!("service unavailable\n")));
    assert_eq!(send(&server, "POST /api/v1/namespaces/default/services", service()).await.0, 201);
    available(&server, "Passed").await;
    // The route opens a moment after the condition.
    for _ in 0..POLLS_MAX {
        if get(THINGS).await.0 == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    // As `kubectl get apiservices` shows it.
    let (line, accept) = (format!("GET {API_SERVICE}"), "application/json;as=Table;v=v1;g=meta.k8s.io");
    let table = open(&server, &line, &Value::Null, accept).await.into_body().collect().await.unwrap().to_bytes();
    let table: Value = serde_json::from_slice(&table).unwrap();
    assert_eq!(table["rows"][0]["cells"].as_array().unwrap()[..3], ["v1.ext.example.com", "default/things", "True"]);

    // Reads, writes and a watch.
    let response = open(&server, &format!("GET {THINGS}?watch=true"), &Value::Null, "application/json").await;
    assert_eq!(response.status(), 200);
    let mut watch = response.into_body();
    for name in ["a", "b"] {
        let (code, thing) = send(&server, &format!("POST {THINGS}"), json!({"metadata": {"name": name}})).await;
        assert_eq!((code, &thing["metadata"]["name"]), (201, &json!(name)));
        let seen = &thing["metadata"]["annotations"];
        assert!(seen["user"] != "forged" && seen["user"].is_string() && seen["token"].is_null(), "{seen}");
        assert!(seen["groups"].as_str().unwrap().contains("system:"), "{seen}");
        let frame = tokio::time::timeout(PATIENCE, watch.frame()).await.expect("no frame").unwrap();
        let event: Value = serde_json::from_slice(&frame.unwrap().into_data().unwrap()).unwrap();
        assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("ADDED"), &json!(name)));
    }
    drop(watch);
    assert_eq!(get(THINGS).await.1["items"].as_array().unwrap().len(), 2);
    assert_eq!(get(&format!("{THINGS}/a")).await.0, 200);
    assert_eq!(get(&format!("{THINGS}/none")).await.0, 404);

    documents_describe_both_servers(&server).await;
    tokio::time::timeout(PATIENCE, upgrade_reaches_the_extension_server(&server)).await.unwrap();

    // Without its service the group version is unavailable; without its APIService it is unknown.
    assert_eq!(send(&server, "DELETE /api/v1/namespaces/default/services/things", Value::Null).await.0, 200);
    available(&server, "ServiceNotFound").await;
    assert_eq!(get(THINGS).await.0, 503);
    assert_eq!(send(&server, &format!("DELETE {API_SERVICE}"), Value::Null).await.0, 200);
    for _ in 0..POLLS_MAX {
        if get(THINGS).await.0 == 404 {
            let found = get("/").await.1;
            assert!(!found.to_string().contains("ext.example.com"), "{found}");
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("a deleted APIService is still served");
}

/// Checks that a connection is upgraded through both servers, and that bytes pass both ways.
async fn upgrade_reaches_the_extension_server(server: &ApiServer) {
    let serving = server.serve_plain(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let mut stream = tokio::net::TcpStream::connect(serving.address()).await.unwrap();
    let header = format!("GET {THINGS}/a/attach HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: echo\r\n\r\n");
    stream.write_all(header.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 101 ") && answer.to_lowercase().contains("upgrade: echo"), "{answer}");
    for text in [b"hello", b"world"] {
        stream.write_all(text).await.unwrap();
        let mut echoed = [0; 5];
        stream.read_exact(&mut echoed).await.unwrap();
        assert_eq!(&echoed, text);
    }
}

/// Checks that discovery and OpenAPI contain local and remote group versions.
async fn documents_describe_both_servers(server: &ApiServer) {
    let get = async |path: &str| send(server, &format!("GET {path}"), Value::Null).await.1;
    let names = |groups: &Value| -> Vec<String> {
        let name = |group: &Value| group["name"].as_str().or(group["metadata"]["name"].as_str()).unwrap().to_owned();
        groups.as_array().unwrap().iter().map(name).collect()
    };
    let has_both =
        |names: &[String]| ["apps", "ext.example.com"].iter().all(|name| names.iter().any(|found| found == name));
    let groups = get("/apis").await;
    assert!(has_both(&names(&groups["groups"])), "{groups}");
    for index in ["/", "/index.html"] {
        let found = get(index).await;
        let is_listed = |path: &&str| found["paths"].as_array().unwrap().iter().any(|listed| *listed == *path);
        let paths = ["/apis/ext.example.com", "/apis/ext.example.com/v1", "/apis/apps/v1", "/version"];
        assert!(paths.iter().all(is_listed), "{index}: {found}");
    }
    assert_eq!(get("/apis/ext.example.com").await["preferredVersion"]["version"], "v1");
    assert_eq!(get("/apis/ext.example.com/v1").await["resources"][0]["name"], "things");
    assert_eq!(get("/apis/apps").await["preferredVersion"]["version"], "v1", "a local group changed");

    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let mut version = Value::Null;
    for _ in 0..POLLS_MAX {
        let aggregated = open(server, "GET /apis", &Value::Null, accept).await.into_body().collect().await.unwrap();
        let aggregated: Value = serde_json::from_slice(&aggregated.to_bytes()).unwrap();
        assert!(has_both(&names(&aggregated["items"])), "{aggregated}");
        let items = aggregated["items"].as_array().unwrap();
        let remote = items.iter().find(|item| item["metadata"]["name"] == "ext.example.com").unwrap();
        version = remote["versions"][0].clone();
        if version["freshness"] == "Current" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!((&version["freshness"], &version["resources"][0]["resource"]), (&json!("Current"), &json!("things")));

    let path = "/openapi/v3/apis/ext.example.com/v1";
    for _ in 0..POLLS_MAX {
        if get("/openapi/v3").await["paths"]["apis/ext.example.com/v1"].is_object() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let index = get("/openapi/v3").await;
    let url = &index["paths"]["apis/ext.example.com/v1"]["serverRelativeURL"];
    assert_eq!(url, &json!(format!("{path}?hash=1")), "{index}");
    assert!(index["paths"]["apis/apps/v1"].is_object());
    assert_eq!(get(path).await["info"]["title"], "things");
    let spec = get("/openapi/v2").await;
    assert!(spec["paths"][THINGS].is_object() && spec["definitions"]["com.example.Thing"].is_object());
    let local = "/apis/apps/v1/namespaces/{namespace}/deployments";
    assert!(spec["paths"][local].is_object());
    // The binary form has the same paths and the same ETag.
    let etag = |response: &http::Response<Body>| response.headers()["etag"].clone();
    let json = open(server, "GET /openapi/v2", &Value::Null, "application/json").await;
    let accept = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    let protobuf = open(server, "GET /openapi/v2", &Value::Null, accept).await;
    assert_eq!((protobuf.headers()["content-type"].to_str().unwrap(), etag(&protobuf)), (accept, etag(&json)));
    let protobuf = protobuf.into_body().collect().await.unwrap().to_bytes();
    for name in [THINGS, "com.example.Thing", local] {
        let is_described = protobuf.windows(name.len()).any(|window| window == name.as_bytes());
        assert!(is_described, "the binary form lacks {name}");
    }
}

/// Creates an object. The request is repeated, because the server may have a short deadline for requests.
async fn create(server: &ApiServer, line: &str, object: Value) {
    for attempt in 0..ATTEMPTS_MAX {
        let answer = send(server, line, object.clone()).await;
        match answer.0 {
            201 => return,
            // A request that missed its deadline may have created the object.
            409 if attempt > 0 => return,
            504 => {}
            _ => panic!("{line}: {answer:?}"),
        }
    }
    panic!("{line}: no response within the deadline in {ATTEMPTS_MAX} attempts");
}

/// Builds a server with an available extension server.
async fn with_extension(builder: Builder) -> (ApiServer, Extension, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let extension = Extension::start(folder.path());
    let server = builder.build().await.unwrap();
    create(&server, "POST /api/v1/namespaces/default/services", service()).await;
    create(&server, "POST /apis/apiregistration.k8s.io/v1/apiservices", extension.api_service()).await;
    available(&server, "Passed").await;
    for _ in 0..POLLS_MAX {
        if send(&server, &format!("GET {THINGS}"), Value::Null).await.0 == 200 {
            return (server, extension, folder);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the route does not open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extension_server_receives_the_authorized_path() {
    let (server, _extension, _folder) = with_extension(ApiServer::builder()).await;
    let base = "/apis/ext.example.com/v1";
    let delete = async |path: &str| send(&server, &format!("DELETE {base}/{path}"), Value::Null).await;
    let (code, deleted) = delete("%6eamespaces/default/things/a%252Fb").await;
    assert_eq!((code, &deleted["deleted"]), (200, &json!(format!("{base}/namespaces/default/things/a%252Fb"))));
    for path in [
        "namespaces%2Fkube-system%2Fthings%2Fx",
        "namespaces%2fkube-system%2fthings%2fx",
        "namespaces/default/things/..%2F..%2Fkube-system",
        "namespaces/default/../kube-system/things/x",
        "namespaces/default/%2e%2e/kube-system/things/x",
        "namespaces/default/./things/x",
        "namespaces//default/things/x",
        "namespaces/default/things/x%00",
    ] {
        let (code, found) = delete(path).await;
        assert!(code == 404 && found["deleted"].is_null(), "{path}: {code} {found}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxied_requests_take_slots_and_have_deadlines() {
    let builder = ApiServer::builder().requests_in_flight_max(400, 1).request_timeout(Duration::from_secs(1));
    let (server, _extension, _folder) = with_extension(builder).await;
    let create = async |name: &str| send(&server, &format!("POST {THINGS}"), json!({"metadata": {"name": name}})).await;
    let mut attempts = 0;
    let (slow, second) = loop {
        attempts += 1;
        let answers = tokio::join!(create("slow"), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            create("b").await
        });
        // If the machine stops for a moment, the first request may end before the second one begins.
        if attempts == 5 || (answers.0.0, answers.1.0) == (504, 429) {
            break answers;
        }
    };
    assert_eq!((slow.0, slow.1["reason"].as_str()), (504, Some("Timeout")), "{}", slow.1);
    assert_eq!(second.0, 429, "{}", second.1);

    // The log takes three seconds, although a request has one second.
    let serving = server.serve_plain(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let mut stream = tokio::net::TcpStream::connect(serving.address()).await.unwrap();
    let request = format!("GET {THINGS}/a/log?follow=true HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut log = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut log)).await.unwrap().unwrap();
    let log = String::from_utf8(log).unwrap();
    assert!(log.starts_with("HTTP/1.1 200") && log.contains("\r\n5\r\n"), "the log is cut: {log}");

    // The extension server learns the client's address and the id of the request.
    let body = json!({"metadata": {"name": "c"}}).to_string();
    let request = format!(
        "POST {THINGS} HTTP/1.1\r\nhost: x\r\nconnection: close, x-remote-user, audit-id\r\naudit-id: one\r\n\
         x-forwarded-for: 10.0.0.9\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut answer = String::new();
    for _ in 0..ATTEMPTS_MAX {
        let mut stream = tokio::net::TcpStream::connect(serving.address()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        answer.clear();
        tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        if !answer.starts_with("HTTP/1.1 504 ") {
            break;
        }
    }
    assert!(answer.contains(r#""address": "10.0.0.9, 127.0.0.1""#), "{answer}");
    assert!(answer.contains(r#""audit": "one""#) && !answer.contains(r#""user": null"#), "{answer}");
}
