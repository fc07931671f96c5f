//! Tests connections to a kubelet over TLS: logs, streams and proxied requests, and kubelets that do not respond.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use listwatch_apiserver::{ApiServer, Body, Builder, KubeletOptions};
use listwatch_json::{Value, json};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

const POD: &str = "/api/v1/namespaces/default/pods/p";
/// The time limit of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn leaf(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap(), key)
    }

    /// Returns the options of a server whose client certificate for kubelets is signed by this CA.
    fn options(&self, trusted: &Authority) -> KubeletOptions {
        let (certificate, key) = self.leaf("apiserver");
        KubeletOptions {
            client_certificate: Some((certificate.pem(), key.serialize_pem())),
            certificate_authority: Some(trusted.0.pem()),
            ..KubeletOptions::default()
        }
    }
}

/// An event that the kubelet reports to the test.
#[derive(Debug, PartialEq)]
enum Event {
    /// The client of a followed log disconnected.
    LogEnded,
    /// The bytes that an upgraded connection had received at its end.
    StreamEnded(String),
}

/// A kubelet that accepts only clients with a certificate from its CA.
struct Kubelet {
    port: u16,
    /// The lines of a followed log.
    lines: mpsc::UnboundedSender<&'static str>,
    events: mpsc::UnboundedReceiver<Event>,
}

impl Kubelet {
    async fn start(authority: &Authority) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(authority.0.der().clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let builder =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_client_cert_verifier(verifier.build().unwrap());
        let (certificate, key) = authority.leaf("localhost");
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (lines, followed) = mpsc::unbounded_channel();
        let (told, events) = mpsc::unbounded_channel();
        let followed = Arc::new(tokio::sync::Mutex::new(followed));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, followed, told) = (acceptor.clone(), Arc::clone(&followed), told.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let answer = service_fn(move |request| answer(request, Arc::clone(&followed), told.clone()));
                    let builder = hyper::server::conn::http1::Builder::new();
                    let _ = builder.serve_connection(TokioIo::new(stream), answer).with_upgrades().await;
                });
            }
        });
        Kubelet { port, lines, events }
    }

    async fn event(&mut self) -> Event {
        tokio::time::timeout(PATIENCE, self.events.recv()).await.expect("no event").unwrap()
    }
}

fn full(code: u16, text: impl Into<Bytes>) -> Answer {
    Response::builder().status(code).body(Full::new(text.into()).boxed_unsync()).unwrap()
}

/// Reports to the test that the body of a followed log was dropped.
struct DropReporter(mpsc::UnboundedSender<Event>);

impl Drop for DropReporter {
    fn drop(&mut self) {
        let _ = self.0.send(Event::LogEnded);
    }
}

async fn answer(
    mut request: Request<Incoming>,
    followed: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<&'static str>>>,
    told: mpsc::UnboundedSender<Event>,
) -> Result<Answer, Infallible> {
    let target = request.uri().to_string();
    let secrets = ["authorization", "impersonate-user", "x-remote-user"];
    assert!(secrets.iter().all(|name| !request.headers().contains_key(*name)), "{:?}", request.headers());
    Ok(match request.uri().path() {
        "/containerLogs/default/p/c" if target.contains("follow=true") => {
            let told = DropReporter(told);
            let lines = futures_util::stream::unfold((followed, told), |(followed, told)| async {
                let line = followed.lock().await.recv().await?;
                Some((Ok(Frame::data(Bytes::from_static(line.as_bytes()))), (followed, told)))
            });
            Response::new(StreamBody::new(lines.boxed()).boxed_unsync())
        }
        "/containerLogs/default/p/c" if target.contains("previous=true") => full(400, "previous container not found"),
        "/containerLogs/default/p/c" if target.contains("timestamps=true") => full(404, "gone"),
        "/containerLogs/default/p/c" if target.contains("tailLines=7") => {
            Response::builder().status(302).header("location", "/elsewhere").body(full(200, "").into_body()).unwrap()
        }
        "/containerLogs/default/p/c" => full(200, format!("log of {target}")),
        path if path.starts_with("/exec/") || path.starts_with("/attach/") || path.starts_with("/portForward/") => {
            let protocol = request.headers()["upgrade"].clone();
            if target.contains("command=refuse") {
                return Ok(full(403, "no"));
            }
            let on = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut io = TokioIo::new(on.await.unwrap());
                io.write_all(target.as_bytes()).await.unwrap();
                let mut received = Vec::new();
                let mut buffer = [0; 1024];
                while let Ok(read @ 1..) = io.read(&mut buffer).await {
                    received.extend_from_slice(&buffer[..read]);
                    io.write_all(&buffer[..read]).await.unwrap();
                    if received.ends_with(b"exit") {
                        break;
                    }
                }
                let _ = told.send(Event::StreamEnded(String::from_utf8_lossy(&received).into_owned()));
            });
            let switch = Response::builder().status(101).header("connection", "Upgrade").header("upgrade", protocol);
            switch.body(full(200, "").into_body()).unwrap()
        }
        "/moved" => {
            Response::builder().status(302).header("location", "/a?b=c").body(full(200, "").into_body()).unwrap()
        }
        _ => {
            let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
            let (method, forwarded) = (request.method().to_string(), header("x-forwarded-uri").unwrap_or_default());
            let bytes = request.into_body().collect().await.unwrap().to_bytes().len();
            full(200, format!("{method} {target} {forwarded} {bytes}"))
        }
    })
}

async fn open(server: &ApiServer, line: &str, body: Bytes) -> Response<Body> {
    let (method, path) = line.split_once(' ').unwrap();
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    // The front proxy's header has no effect without its certificate, and must not reach the kubelet.
    let request = request.header("x-remote-user", "forged");
    server.service().handle(request.body(Full::new(body)).unwrap()).await
}

/// Sends a request, and returns the code and the text or the message of the response.
async fn send(server: &ApiServer, line: &str, body: Bytes) -> (u16, String) {
    let response = tokio::time::timeout(PATIENCE, open(server, line, body)).await.expect("no response");
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let message = serde_json::from_slice::<Value>(&bytes).ok().and_then(|it| it["message"].as_str().map(str::to_owned));
    (code, message.unwrap_or_else(|| String::from_utf8_lossy(&bytes).into_owned()))
}

async fn get(server: &ApiServer, path: &str) -> (u16, String) {
    send(server, &format!("GET {path}"), Bytes::new()).await
}

/// Builds a server with the pod `p` on the node `n`. The kubelet of `n` listens on this port of this machine.
async fn server(options: KubeletOptions, port: u16) -> ApiServer {
    build(ApiServer::builder().kubelet(options), port).await
}

async fn build(builder: Builder, port: u16) -> ApiServer {
    let server = builder.build().await.unwrap();
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    let status = json!({"status": {"addresses": [{"type": "Hostname", "address": "localhost"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    for (line, body) in [
        ("POST /api/v1/nodes", json!({"metadata": {"name": "n"}})),
        ("PATCH /api/v1/nodes/n/status", status),
        ("POST /api/v1/namespaces/default/pods", pod),
    ] {
        let (code, text) = send(&server, line, Bytes::from(body.to_string())).await;
        assert!((200..=201).contains(&code), "{line}: {text}");
    }
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_is_streamed_from_the_kubelet_with_its_options() {
    let authority = Authority::new();
    let mut kubelet = Kubelet::start(&authority).await;
    let server = server(authority.options(&authority), kubelet.port).await;
    let log = format!("{POD}/log");
    let plain = get(&server, &format!("{log}?tailLines=5&sinceSeconds=60&container=c&pretty=true")).await;
    assert_eq!(plain, (200, "log of /containerLogs/default/p/c?sinceSeconds=60&tailLines=5".to_owned()));

    // A followed log arrives line by line, and its end reaches the kubelet.
    kubelet.lines.send("one\n").unwrap();
    let response = open(&server, &format!("GET {log}?follow=true"), Bytes::new()).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (200, &"text/plain".parse().unwrap())
    );
    let mut body = response.into_body();
    for line in ["one\n", "two\n"] {
        if line != "one\n" {
            kubelet.lines.send(line).unwrap();
        }
        let frame = tokio::time::timeout(PATIENCE, body.frame()).await.expect("no line").unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), line);
    }
    drop(body);
    kubelet.lines.send("three\n").unwrap();
    assert_eq!(kubelet.event().await, Event::LogEnded);

    // Errors of the kubelet become those of kube-apiserver.
    assert_eq!(get(&server, &format!("{log}?previous=true")).await, (400, "previous container not found".to_owned()));
    let missing = "the server could not find the requested resource ( pods/log p)".to_owned();
    assert_eq!(get(&server, &format!("{log}?timestamps=true")).await, (404, missing));
    let (code, text) = get(&server, &format!("{log}?tailLines=7")).await;
    assert!(code == 500 && text.ends_with(": redirects forbidden"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_or_untrusted_kubelet_returns_upstreams_error() {
    let (authority, other) = (Authority::new(), Authority::new());
    let kubelet = Kubelet::start(&authority).await;
    let log = format!("{POD}/log");
    let url = |port: u16| format!("Get \"https://localhost:{port}/containerLogs/default/p/c\": ");

    let wrong_ca = server(authority.options(&other), kubelet.port).await;
    let unknown = "tls: failed to verify certificate: x509: certificate signed by unknown authority";
    assert_eq!(get(&wrong_ca, &log).await, (500, format!("{}{unknown}", url(kubelet.port))));
    let unverified = get(&wrong_ca, &format!("{log}?insecureSkipTLSVerifyBackend=true")).await;
    assert_eq!(unverified, (200, "log of /containerLogs/default/p/c".to_owned()));
    let proxied = get(&wrong_ca, "/api/v1/nodes/n/proxy/healthz").await;
    assert_eq!(proxied, (503, format!("error trying to reach service: {unknown}")));

    // Without a CA the kubelet's certificate is not verified; the kubelet still wants the server's.
    let unverifying = KubeletOptions { certificate_authority: None, ..authority.options(&other) };
    assert_eq!(get(&server(unverifying, kubelet.port).await, &log).await.0, 200);
    let stranger = other.options(&authority);
    let (code, text) = get(&server(stranger, kubelet.port).await, &log).await;
    assert!(code == 500 && text.starts_with(&url(kubelet.port)), "{text}");

    let closed = listwatch_test_ports::free_port().unwrap();
    let down = server(KubeletOptions::default(), closed).await;
    let address = std::net::ToSocketAddrs::to_socket_addrs(&("localhost", closed)).unwrap().next().unwrap();
    let refused = format!("dial tcp {address}: connect: connection refused");
    assert_eq!(get(&down, &log).await, (500, format!("{}{refused}", url(closed))));
    let serving = down.serve_plain(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let (mut stream, head) = upgrade(serving.address(), "POST", &format!("{POD}/exec?command=ls"), "SPDY/3.1").await;
    assert!(head.starts_with("HTTP/1.1 500 "), "{head}");
    let mut body = vec![0; 2048];
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut body)).await.unwrap().unwrap();
    let body = String::from_utf8_lossy(&body[..read]).into_owned();
    assert!(body.contains(&format!("error dialing backend: {refused}")), "{body}");
}

#[test]
fn server_with_an_unusable_kubelet_certificate_does_not_start() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let options = KubeletOptions { certificate_authority: Some("garbage".to_owned()), ..KubeletOptions::default() };
    let built = runtime.block_on(ApiServer::builder().kubelet(options).build());
    let text = built.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(text.starts_with("cannot use the certificates for kubelets: unable to load root certificates"), "{text}");
}

/// Sends the header of an upgrade, and returns the connection with the header of the response.
async fn upgrade(to: std::net::SocketAddr, method: &str, path: &str, protocol: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let header = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: {protocol}\r\nx-remote-user: forged\r\n\
         x-stream-protocol-version: v4.channel.k8s.io\r\ncontent-length: 0\r\n\r\n"
    );
    stream.write_all(header.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tokio::time::timeout(PATIENCE, stream.read_u8()).await.expect("no response").unwrap());
    }
    (stream, String::from_utf8(head).unwrap())
}

async fn expect(stream: &mut TcpStream, expected: impl AsRef<[u8]>) {
    let mut bytes = vec![0; expected.as_ref().len()];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut bytes)).await.expect("no bytes").unwrap();
    assert_eq!(bytes, expected.as_ref());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_streams_are_relayed_unchanged_until_one_side_closes() {
    let authority = Authority::new();
    let kubelet = Kubelet::start(&authority).await;
    let server = server(authority.options(&authority), kubelet.port).await;
    let serving = server.serve_plain(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    for (method, path, protocol, target) in [
        ("POST", "exec?command=sh&stdin=true&stdout=1", "SPDY/3.1", "/exec/default/p/c?command=sh&input=1&output=1"),
        ("GET", "exec?command=sh&container=c", "websocket", "/exec/default/p/c?command=sh"),
        ("GET", "attach?stdout=true&tty=true", "websocket", "/attach/default/p/c?output=1&tty=1"),
        ("POST", "portforward", "SPDY/3.1", "/portForward/default/p"),
    ] {
        let (mut stream, head) = upgrade(serving.address(), method, &format!("{POD}/{path}"), protocol).await;
        assert!(head.starts_with("HTTP/1.1 101 ") && head.contains(&format!("upgrade: {protocol}")), "{head}");
        expect(&mut stream, target).await;
        stream.write_all(b"\x80\x03\0bytes").await.unwrap();
        expect(&mut stream, b"\x80\x03\0bytes").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_of_a_relayed_stream_is_forwarded_to_the_other_side() {
    let authority = Authority::new();
    let mut kubelet = Kubelet::start(&authority).await;
    let server = server(authority.options(&authority), kubelet.port).await;
    let serving = server.serve_plain(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let exec = format!("{POD}/exec?command=sh");
    let target = "/exec/default/p/c?command=sh";

    let (mut client, _) = upgrade(serving.address(), "POST", &exec, "SPDY/3.1").await;
    expect(&mut client, target).await;
    client.write_all(b"hello").await.unwrap();
    expect(&mut client, "hello").await;
    drop(client);
    assert_eq!(kubelet.event().await, Event::StreamEnded("hello".to_owned()));

    let (mut client, _) = upgrade(serving.address(), "POST", &exec, "SPDY/3.1").await;
    expect(&mut client, target).await;
    client.write_all(b"exit").await.unwrap();
    expect(&mut client, "exit").await;
    let mut rest = Vec::new();
    tokio::time::timeout(PATIENCE, client.read_to_end(&mut rest)).await.expect("the stream stays open").unwrap();
    assert!(rest.is_empty());

    let (_, head) = upgrade(serving.address(), "POST", &format!("{POD}/exec?command=refuse"), "SPDY/3.1").await;
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_that_a_webhook_has_changed_reach_the_kubelet() {
    let authority = Authority::new();
    let kubelet = Kubelet::start(&authority).await;
    let rules = json!([{"operations": ["CONNECT"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["*/*"]}]);
    let webhook = json!({"metadata": {"name": "c"}, "webhooks": [{"name": "w.example.com", "rules": rules}]});
    let handler = |request: Value| async move {
        let patch = match request["subResource"].as_str() {
            Some("proxy") => json!([{"op": "replace", "path": "/path", "value": "other/pa th?x"}]),
            _ => {
                json!([{"op": "add", "path": "/tty", "value": true}, {"op": "replace", "path": "/command/0", "value": "pwd"}])
            }
        };
        json!({"allowed": true, "patch": patch})
    };
    let builder = ApiServer::builder().kubelet(authority.options(&authority)).mutating_webhook(webhook, handler);
    let server = build(builder, kubelet.port).await;
    let proxy = "/api/v1/nodes/n/proxy";
    let proxied = get(&server, &format!("{proxy}/pods?a=b")).await;
    assert_eq!(proxied, (200, format!("GET /other/pa%20th%3Fx?a=b {proxy}/other/pa%20th%3Fx 0")));
    let serving = server.serve_plain(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let exec = format!("{POD}/exec?command=ls&stdout=1");
    let (mut stream, head) = upgrade(serving.address(), "POST", &exec, "SPDY/3.1").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    expect(&mut stream, "/exec/default/p/c?command=pwd&output=1&tty=1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_proxy_forwards_requests_of_any_size_and_method() {
    let authority = Authority::new();
    let kubelet = Kubelet::start(&authority).await;
    let server = server(authority.options(&authority), kubelet.port).await;
    let proxy = "/api/v1/nodes/n/proxy";
    let listed = get(&server, &format!("{proxy}/pods/?a=b&c")).await;
    assert_eq!(listed, (200, format!("GET /pods/?a=b&c {proxy}/pods/ 0")));
    for (sent, received) in [("%65xec", "exec"), ("a%20b%3Fc%23d", "a%20b%3Fc%23d"), ("%2565xec/", "%2565xec/")] {
        let decoded = get(&server, &format!("{proxy}/{sent}")).await;
        assert_eq!(decoded, (200, format!("GET /{received} {proxy}/{received} 0")), "{sent}");
    }
    let (code, _) = get(&server, &format!("{proxy}/%ff")).await;
    assert_eq!(code, 400, "the path is not UTF-8");
    let above = get(&server, &format!("{proxy}/a/../../../b")).await;
    assert_eq!(above, (200, format!("GET /b {proxy}/b 0")));
    // More than the largest body of a write.
    let large = Bytes::from(vec![b'x'; listwatch_apiserver::REQUEST_BODY_BYTES_MAX + 1]);
    let sent = send(&server, &format!("POST {proxy}/run"), large).await;
    assert_eq!(sent, (200, format!("POST /run {proxy}/run {}", listwatch_apiserver::REQUEST_BODY_BYTES_MAX + 1)));
    let named = get(&server, &format!("/api/v1/nodes/https:n:{}/proxy/stats", kubelet.port)).await;
    assert!(named.0 == 200 && named.1.starts_with("GET /stats "), "{named:?}");
    let moved = open(&server, &format!("GET {proxy}/moved"), Bytes::new()).await;
    assert_eq!(
        (moved.status().as_u16(), &moved.headers()["location"]),
        (302, &format!("{proxy}/a?b=c").parse().unwrap())
    );
    let slash = open(&server, &format!("GET {proxy}?a=b"), Bytes::new()).await;
    assert_eq!(
        (slash.status().as_u16(), &slash.headers()["location"]),
        (301, &format!("{proxy}/?a=b").parse().unwrap())
    );
}

/// Returns an address of this machine that is not a loopback address; `None` without a network.
fn own_address() -> Option<std::net::IpAddr> {
    // Connecting a datagram socket sends nothing: it only chooses the local address.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("203.0.113.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_and_service_proxies_forward_to_a_pod_of_the_namespace() {
    let Some(ip) = own_address() else {
        eprintln!("skipped: loopback addresses are refused, and this machine has no other");
        return;
    };
    let listener = TcpListener::bind((ip, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (told, (_, followed)) = (mpsc::unbounded_channel().0, mpsc::unbounded_channel());
            let followed = Arc::new(tokio::sync::Mutex::new(followed));
            let answer = service_fn(move |request| answer(request, Arc::clone(&followed), told.clone()));
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
        }
    });
    let server = server(KubeletOptions::default(), 1).await;
    let ready = json!({"ip": ip, "targetRef": {"kind": "Pod", "namespace": "default", "name": "p"}});
    // The second address belongs to no pod of the namespace.
    let foreign = json!({"ip": "192.0.2.99", "targetRef": {"kind": "Pod", "namespace": "default", "name": "p"}});
    let subsets = json!([{"addresses": [ready, foreign], "ports": [{"name": "web", "port": port}]}]);
    for (line, body) in [
        (format!("PATCH {POD}/status"), json!({"status": {"podIPs": [{"ip": ip}], "podIP": ip}})),
        (
            "POST /api/v1/namespaces/default/services".to_owned(),
            json!({"metadata": {"name": "s"}, "spec": {"ports": [{"name": "web", "port": 80}]}}),
        ),
        (
            "POST /api/v1/namespaces/default/endpoints".to_owned(),
            json!({"metadata": {"name": "s"}, "subsets": subsets}),
        ),
    ] {
        let (code, text) = send(&server, &line, Bytes::from(body.to_string())).await;
        assert!((200..=201).contains(&code), "{line}: {text}");
    }
    let of_pod = format!("/api/v1/namespaces/default/pods/p:{port}/proxy");
    assert_eq!(get(&server, &format!("{of_pod}/a?b=c")).await, (200, format!("GET /a?b=c {of_pod}/a 0")));
    for id in ["s:80", "s:web", "http:s:web"] {
        let of_service = format!("/api/v1/namespaces/default/services/{id}/proxy");
        // Whichever address is tried first, the one of the pod is found.
        for _ in 0..8 {
            assert_eq!(get(&server, &format!("{of_service}/")).await, (200, format!("GET / {of_service}/ 0")));
        }
    }
    let closed = listwatch_test_ports::free_port().unwrap();
    let down = get(&server, &format!("/api/v1/namespaces/default/pods/p:{closed}/proxy/")).await;
    let text = format!("error trying to reach service: dial tcp {ip}:{closed}: connect: connection refused");
    assert_eq!(down, (503, text));
}
