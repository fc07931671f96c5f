//! Tests calls over HTTPS against a TLS server in this process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use listwatch_aggregator::{EndpointSlice, Service, ServiceObjects, ServiceResolver};
use listwatch_json::{Value, json};
use listwatch_webhook_admission::{HttpsCaller, RESPONSE_BYTES_MAX, WebhookAnswer, WebhookCall, WebhookCaller as _};
use listwatch_webhooks::Webhook;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};
use tokio_rustls::TlsAcceptor;

/// The service `ns/hook` with the cluster address `127.0.0.1`, the headless service `ns/headless`, and one endpoint of
/// both: `127.0.0.1` at the port of the test server. No port: no endpoints.
#[derive(Default)]
struct Services {
    port: Option<u16>,
    /// The number of services that were read.
    reads: AtomicUsize,
}

/// Creates a caller that dials endpoints.
fn endpoint_caller(port: Option<u16>) -> HttpsCaller {
    let services = Arc::new(Services { port, ..Services::default() });
    HttpsCaller::new(ServiceResolver::new(services).with_endpoint_routing(true))
}

#[async_trait]
impl ServiceObjects for Services {
    async fn service(&self, namespace: &str, name: &str) -> Result<Option<Service>, String> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let ports = [443, self.port.unwrap_or(444)].map(|port| ("https".to_owned(), port));
        let service = Service {
            service_type: "ClusterIP".to_owned(),
            cluster_ip: if name == "headless" { "None" } else { "127.0.0.1" }.to_owned(),
            ip_family: "IPv4".to_owned(),
            ports: ports.to_vec(),
            ..Service::default()
        };
        Ok((namespace == "ns" && matches!(name, "hook" | "headless")).then_some(service))
    }

    async fn endpoint_slices(&self, _: &str, _: &str) -> Result<Vec<EndpointSlice>, String> {
        Ok(Vec::from_iter(self.port.map(|port| EndpointSlice {
            address_type: "IPv4".to_owned(),
            ports: vec![("https".to_owned(), port)],
            ready_addresses: vec!["127.0.0.1".to_owned()],
        })))
    }
}

/// A server that responds to each request with the same bytes.
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) ca: String,
    pub(crate) connections: Arc<AtomicUsize>,
    pub(crate) requests: Arc<AtomicUsize>,
    /// The request line and the headers of the last request.
    pub(crate) head: Arc<Mutex<String>>,
}

/// Responds to the requests of one connection. Without response bytes, the connection stays silent.
async fn answer(
    mut io: impl AsyncRead + AsyncWrite + Unpin,
    response: &[u8],
    head: &Mutex<String>,
    requests: &AtomicUsize,
) {
    let mut received = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        match io.read(&mut buffer).await {
            Ok(count) if count > 0 => received.extend_from_slice(&buffer[..count]),
            _ => return,
        }
        let text = String::from_utf8_lossy(&received).into_owned();
        let Some((read, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = read.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() < length.unwrap_or(0_usize) {
            continue;
        }
        *head.lock().unwrap() = read.to_owned();
        requests.fetch_add(1, Ordering::Relaxed);
        received.clear();
        if response.is_empty() {
            std::future::pending::<()>().await;
        }
        if io.write_all(response).await.is_err() {
            return;
        }
    }
}

impl Server {
    /// Starts a server with a certificate for `hook.ns.svc` and `localhost`.
    async fn start(response: Vec<u8>, with_tls: bool) -> Server {
        Server::start_with_names(&["hook.ns.svc", "localhost"], response, with_tls).await
    }

    /// Starts a server with a certificate for these names.
    pub(crate) async fn start_with_names(names: &[&str], response: Vec<u8>, with_tls: bool) -> Server {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let certified = rcgen::generate_simple_self_signed(names).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_no_client_auth();
        let config = config.with_single_cert(vec![certified.cert.der().clone()], key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (connections, head) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<String>>::default());
        let (counted, seen) = (Arc::clone(&connections), Arc::clone(&head));
        let requests = Arc::<AtomicUsize>::default();
        let counted_requests = Arc::clone(&requests);
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                counted.fetch_add(1, Ordering::Relaxed);
                let (acceptor, response, seen) = (acceptor.clone(), response.clone(), Arc::clone(&seen));
                let requests = Arc::clone(&counted_requests);
                tokio::spawn(async move {
                    if !with_tls {
                        // A server without TLS reads the handshake as a malformed request.
                        let mut stream = stream;
                        let _ = stream.read(&mut [0; 4096]).await;
                        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
                        return;
                    }
                    if let Ok(stream) = acceptor.accept(stream).await {
                        answer(stream, &response, &seen, &requests).await;
                    }
                });
            }
        });
        Server { port, ca: certified.cert.pem(), connections, requests, head }
    }
}

pub(crate) fn ok(body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").into()
}

pub(crate) async fn call(caller: &HttpsCaller, config: Value, timeout: Duration) -> Result<WebhookAnswer, String> {
    let configuration = json!({"metadata": {"name": "c"}, "webhooks": [{"name": "a.b.c", "clientConfig": config}]});
    let webhook = Webhook::parse(configuration.as_object().unwrap()).remove(0);
    let target = webhook.client_config.target(timeout).unwrap();
    let ca_bundle = webhook.client_config.ca_bundle();
    let body = br#"{"kind":"AdmissionReview"}"#.as_slice().into();
    caller.call(WebhookCall { target: &target, ca_bundle, body, timeout }).await
}

pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn service_webhook_is_called_at_an_endpoint_with_the_dns_name_of_the_service() {
    let server = Server::start(ok("{}"), true).await;
    let caller = endpoint_caller(Some(server.port));
    let config =
        json!({"service": {"namespace": "ns", "name": "hook", "path": "/v"}, "caBundle": STANDARD.encode(&server.ca)});
    for _ in 0..3 {
        let answer = call(&caller, config.clone(), TIMEOUT).await.unwrap();
        assert_eq!((answer.code, &*answer.content_type, &answer.body[..]), (200, "application/json", &b"{}"[..]));
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), 1, "the connection is kept alive");
    let head = server.head.lock().unwrap().to_lowercase();
    assert!(head.starts_with("post /v?timeout=20s http/1.1\r\n"), "{head}");
    let own = "user-agent: kube-apiserver-admission";
    for line in ["host: hook.ns.svc:443", "content-type: application/json", "accept: application/json, */*", own] {
        assert!(head.lines().any(|found| found == line), "no {line} in {head}");
    }
}

#[tokio::test]
async fn service_webhook_is_called_at_the_cluster_address_by_default() {
    let server = Server::start(ok("{}"), true).await;
    let services = Arc::new(Services { port: Some(server.port), ..Services::default() });
    let caller = HttpsCaller::new(ServiceResolver::new(Arc::clone(&services) as Arc<dyn ServiceObjects>));
    let config = |name: &str, port: u16| json!({"service": {"namespace": "ns", "name": name, "port": port}, "caBundle": STANDARD.encode(&server.ca)});
    for _ in 0..3 {
        assert_eq!(call(&caller, config("hook", server.port), TIMEOUT).await.unwrap().code, 200);
    }
    assert_eq!(services.reads.load(Ordering::Relaxed), 1, "an open connection needs no address");
    let headless = call(&caller, config("headless", 443), TIMEOUT).await;
    assert_eq!(headless, Err("cannot route to service with ClusterIP \"None\"".to_owned()));
    let missing = call(&caller, config("hook", 9), TIMEOUT).await;
    assert_eq!(missing, Err("no service port 9 found for service \"hook\"".to_owned()));
}

#[tokio::test]
async fn call_is_retried_after_a_response_with_retry_after() {
    let busy = |code: &str, after: &str, body: &str| {
        let length = body.len();
        format!("HTTP/1.1 {code} Busy\r\nretry-after: {after}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
    };
    for (response, requests, connections) in [
        (busy("429", "0", "later"), 11, 1),
        (busy("503", "0", ""), 11, 1),
        (busy("500", "-1", "broken"), 11, 1),
        (busy("429", "soon", ""), 1, 1),
        (busy("400", "0", ""), 1, 1),
    ] {
        let server = Server::start(response.clone(), true).await;
        let config =
            json!({"url": format!("https://localhost:{}", server.port), "caBundle": STANDARD.encode(&server.ca)});
        let answer = call(&endpoint_caller(None), config, TIMEOUT).await.unwrap();
        let shown = String::from_utf8_lossy(&response[..40]).into_owned();
        assert!(shown.contains(&answer.code.to_string()), "{shown}: the last response counts");
        assert_eq!(server.requests.load(Ordering::Relaxed), requests, "{shown}");
        assert_eq!(server.connections.load(Ordering::Relaxed), connections, "{shown}");
    }
    let server = Server::start(busy("429", "30", ""), true).await;
    let config = json!({"url": format!("https://localhost:{}", server.port), "caBundle": STANDARD.encode(&server.ca)});
    let late = call(&endpoint_caller(None), config, Duration::from_millis(500)).await;
    assert_eq!(late, Err("context deadline exceeded".to_owned()), "the pause is within the timeout of the call");
}

#[tokio::test]
async fn call_of_an_unreachable_webhook_fails_with_the_error_text_of_go() {
    let server = Server::start(ok("{}"), true).await;
    let plain = Server::start(Vec::new(), false).await;
    let silent = Server::start(Vec::new(), true).await;
    // The socket does not listen, and keeps its port from others.
    let unreachable = TcpSocket::new_v4().unwrap();
    unreachable.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let refused = unreachable.local_addr().unwrap().port();
    let caller = endpoint_caller(None);
    let bundle = |server: &Server| STANDARD.encode(&server.ca);
    let url = |port: u16| format!("https://localhost:{port}");
    let check = async |config: Value, timeout: Duration, expected: &str| {
        let error = call(&caller, config, timeout).await.unwrap_err();
        assert!(error.contains(expected), "{error} does not contain {expected}");
    };
    let down = json!({"url": format!("https://127.0.0.1:{refused}")});
    check(down, TIMEOUT, &format!("dial tcp 127.0.0.1:{refused}: connect: connection refused")).await;
    let foreign = json!({"url": url(server.port), "caBundle": bundle(&plain)});
    check(foreign, TIMEOUT, "tls: failed to verify certificate: x509: certificate signed by unknown authority").await;
    let other_name = json!({"url": format!("https://127.0.0.1:{}", server.port), "caBundle": bundle(&server)});
    check(other_name, TIMEOUT, "tls: failed to verify certificate: x509: certificate is not valid").await;
    let no_tls = json!({"url": url(plain.port), "caBundle": bundle(&plain)});
    check(no_tls, TIMEOUT, "http: server gave HTTP response to HTTPS client").await;
    let slow = json!({"url": url(silent.port), "caBundle": bundle(&silent)});
    check(slow, Duration::from_millis(200), "context deadline exceeded").await;
    let broken = json!({"url": url(server.port), "caBundle": STANDARD.encode("nonsense")});
    check(broken, TIMEOUT, "unable to load root certificates").await;
    let service = |name: &str| json!({"service": {"namespace": "ns", "name": name}, "caBundle": bundle(&server)});
    check(service("none"), TIMEOUT, "service \"none\" not found").await;
    check(service("hook"), TIMEOUT, "no endpoints available for service \"hook\"").await;
}

#[tokio::test]
async fn redirects_are_not_followed_and_large_bodies_are_rejected() {
    let location = "HTTP/1.1 307 Temporary Redirect\r\nlocation: https://example.com/\r\ncontent-length: 0\r\n\r\n";
    let redirecting = Server::start(location.into(), true).await;
    let large = Server::start(ok(&"x".repeat(10 * 1024 * 1024)), true).await;
    let caller = endpoint_caller(None);
    let config = |server: &Server| json!({"url": format!("https://localhost:{}", server.port), "caBundle": STANDARD.encode(&server.ca)});
    assert_eq!(call(&caller, config(&redirecting), TIMEOUT).await.unwrap().code, 307);
    let error = call(&caller, config(&large), TIMEOUT).await.unwrap_err();
    assert_eq!(error, format!("the response has more than {RESPONSE_BYTES_MAX} bytes"));
}
