//! Tests HTTP/1.1 with raw bytes, as sent by hostile or incorrect clients.

use std::net::TcpListener;
use std::time::Duration;

use listwatch_apiserver::{ApiServer, Auth, Serving};
use listwatch_meta::Key;
use listwatch_storage::{MemoryStorage, Storage as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

/// The time limit of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(60);
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

struct World {
    _server: ApiServer,
    serving: Serving,
}

impl World {
    async fn new() -> Self {
        World::over(MemoryStorage::new()).await
    }

    async fn over(store: std::sync::Arc<MemoryStorage>) -> Self {
        let auth = Auth::Token("secret".to_owned());
        let server = ApiServer::builder().storage(store).auth(auth).build().await.expect("a server");
        let serving = server.serve_plain(TcpListener::bind("127.0.0.1:0").expect("a port")).expect("listening");
        World { _server: server, serving }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.serving.address()).await.expect("connected")
    }

    /// Sends the bytes of a request, and reads the response until the server closes the connection.
    async fn exchange(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        read.expect("an answer in time").expect("a clean end");
        String::from_utf8(answer).expect("text")
    }

    /// Sends a GET that closes the connection.
    async fn get(&self, path: &str) -> String {
        self.exchange(&request("GET", path, "Connection: close\r\n")).await
    }

    async fn create(&self, name: &str) -> String {
        let body = format!(r#"{{"metadata":{{"name":"{name}"}}}}"#);
        let headers = format!("Connection: close\r\nContent-Length: {}\r\n", body.len());
        self.exchange(&(request("POST", CONFIG_MAPS, &headers) + &body)).await
    }
}

/// Returns the head of a request with a valid token.
fn request(method: &str, path: &str, headers: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n{headers}\r\n")
}

#[tokio::test]
async fn request_without_exactly_one_host_header_is_rejected() {
    let world = World::new().await;
    let ask = async |version: &str, hosts: &str| {
        world.exchange(&format!("GET /version HTTP/{version}\r\n{hosts}Connection: close\r\n\r\n")).await
    };
    for (version, hosts, expected) in [
        ("1.1", "", "400 Bad Request: missing required Host header"),
        ("1.1", "Host: a\r\nHost: a\r\n", "400 Bad Request"),
        ("1.0", "Host: a\r\nHost: b\r\n", "400 Bad Request"),
        ("1.1", "Host: a/b\r\n", "400 Bad Request: malformed Host header"),
    ] {
        let answer = ask(version, hosts).await;
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with(&format!("HTTP/{version} 400 ")), "{hosts:?}: {head}");
        assert!(head.to_ascii_lowercase().contains("connection: close"), "{head}");
        assert_eq!(body, expected, "{hosts:?}");
    }
    for (version, hosts) in
        [("1.1", "Host: a.b:1\r\n"), ("1.1", "Host:\r\n"), ("1.1", "Host: [::1]:1\r\n"), ("1.0", "")]
    {
        let answer = ask(version, hosts).await;
        assert!(answer.starts_with(&format!("HTTP/{version} 200 ")), "{hosts:?}: {answer}");
    }
}

#[tokio::test]
async fn collection_of_a_namespace_named_with_dots_is_rejected() {
    let world = World::new().await;
    for (method, namespace, key) in [
        ("GET", "%2e%2e", "/configmaps/.."),
        ("GET", "..", "/configmaps/.."),
        ("GET", ".", "/configmaps/."),
        ("DELETE", "%2E.", "/configmaps/.."),
    ] {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let answer = world.exchange(&request(method, &path, "Connection: close\r\n")).await;
        let message = format!(r#""message":"invalid key: \"{key}\"""#);
        assert!(answer.starts_with("HTTP/1.1 500 ") && answer.contains(&message), "{method} {namespace}: {answer}");
        assert!(!answer.contains("\"reason\""), "{answer}");
    }
    let watch = world.get("/api/v1/namespaces/%2e%2e/configmaps?watch=true").await;
    assert!(watch.starts_with("HTTP/1.1 500 "), "{watch}");
}

#[tokio::test]
async fn slow_request_bodies_occupy_no_write_slots() {
    let world = World::new().await;
    let mut slow = Vec::new();
    for _ in 0..220 {
        let mut stream = world.connect().await;
        let head = request("POST", CONFIG_MAPS, "Content-Type: application/json\r\nContent-Length: 100\r\n");
        stream.write_all((head + "{").as_bytes()).await.expect("sent");
        slow.push(stream);
    }
    let metrics = world.get("/metrics").await;
    assert!(metrics.contains("apiserver_current_inflight_requests{request_kind=\"mutating\"} 0\n"), "{metrics}");
    for n in 0..20 {
        let answer = world.create(&format!("map-{n}")).await;
        assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    }
    // The clients that send the rest of their bodies are served as well.
    for (n, stream) in slow.iter_mut().take(5).enumerate() {
        let rest = format!(r#""metadata":{{"name":"slow-{n}"}}}}"#);
        stream.write_all(format!("{rest:<99}").as_bytes()).await.expect("sent");
        let mut answer = [0; 12];
        tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer)).await.expect("in time").expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 201");
    }
}

#[tokio::test]
async fn client_that_is_still_sending_receives_the_complete_error_response() {
    let world = World::new().await;
    let bytes = 6 << 20;
    for (path, token, code) in [
        (CONFIG_MAPS, "secret", "413"),
        (CONFIG_MAPS, "wrong", "401"),
        ("/api/v1/nonsense", "secret", "404"),
        ("/api/v1/pods", "secret", "405"),
    ] {
        for framing in [format!("Content-Length: {bytes}"), "Transfer-Encoding: chunked".to_owned()] {
            let mut stream = world.connect().await;
            let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{framing}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.expect("sent");
            if framing.starts_with('T') {
                stream.write_all(format!("{bytes:x}\r\n").as_bytes()).await.expect("sent");
            }
            // The client sends the whole body before it reads the response, as simple clients do.
            stream.write_all(&vec![b' '; bytes]).await.expect("the server takes what it does not want");
            let mut answer = Vec::new();
            let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
            read.expect("an end in time").expect("no reset");
            let answer = String::from_utf8(answer).expect("text");
            assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{framing}: {answer}");
            assert!(answer.to_ascii_lowercase().contains("connection: close\r\n"), "{framing}: {answer}");
            assert!(answer.ends_with("}\n") || answer.ends_with("}"), "{framing}: the Status is cut off: {answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_http1_response_holds_its_slot_until_the_deadline() {
    let store = MemoryStorage::new();
    let data = "x".repeat(16 * 1024);
    for n in 0..1_000 {
        let name = format!("large-{n}");
        let key = Key::new("configmaps", Some("default"), &name).expect("a key");
        let json = format!(
            r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"default"}},"data":{{"d":"{data}"}}}}"#
        );
        store.create(&key, json.into(), None).await.expect("created");
    }
    let world = World::over(store).await;
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let mut unread = socket.connect(world.serving.address()).await.expect("connected");
    let begun = std::time::Instant::now();
    unread.write_all(request("GET", &format!("{CONFIG_MAPS}?timeout=10s"), "").as_bytes()).await.expect("sent");
    let mut first = [0; 12];
    unread.read_exact(&mut first).await.expect("an answer");
    assert_eq!(&first, b"HTTP/1.1 200");
    let reads = async || {
        let metrics = world.get("/metrics").await;
        let line = "apiserver_current_inflight_requests{request_kind=\"readOnly\"} ";
        metrics.lines().find_map(|found| found.strip_prefix(line)).expect("the figure").to_owned()
    };
    assert_eq!(reads().await, "2", "the list and the one that asks");
    while reads().await != "1" {
        assert!(begun.elapsed() < PATIENCE, "the response keeps its slot");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(begun.elapsed() >= Duration::from_secs(10), "cut before its time");
    let mut rest = Vec::new();
    let end = tokio::time::timeout(PATIENCE, unread.read_to_end(&mut rest)).await.expect("closed");
    assert!(end.is_err() || !rest.ends_with(b"0\r\n\r\n"), "a list that broke off ends as if it were whole");
}
