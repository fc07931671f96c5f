//! Tests the connection of a client to its server: proxies, black holes, full connections, compressed responses, and
//! changing credentials.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use http::{Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use listwatch_client::config::{Auth, Certificate, Config, ExecPlugin, ExecVersion, InteractiveMode, TlsOptions};
use listwatch_client::transport::{
    Dialer, HttpTransport, Protocols, ProxyUrl, RequestBody, Transport as _, TransportOptions,
};
use listwatch_client::{
    Client, GET_RECONNECT_WAIT, GET_TRIES_MAX, Notice, Problem, Reflection, ReflectorConfig, Scope,
};
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// The time limit of each step, which only a hang reaches.
const TIMEOUT: Duration = Duration::from_secs(30);

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Responds to a request; the number is the number of client certificates.
type Answer = dyn Fn(&Request<Incoming>, usize) -> Response<Body> + Send + Sync;

fn json(text: impl Into<Bytes>) -> Response<Body> {
    Response::new(Full::new(text.into()).boxed_unsync())
}

fn unauthorized() -> Response<Body> {
    let mut response = json(
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#,
    );
    *response.status_mut() = StatusCode::UNAUTHORIZED;
    response
}

/// A watch that sends one event and stays open.
fn open_watch() -> Response<Body> {
    let event = r#"{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"late","namespace":"shop","uid":"u","resourceVersion":"9"}}}"#;
    let first = futures_util::stream::iter([Ok(Frame::data(Bytes::from(format!("{event}\n"))))]);
    Response::new(StreamBody::new(first.chain(futures_util::stream::pending())).boxed_unsync())
}

/// A server that runs as long as the runtime.
async fn serve(tls: Option<TlsAcceptor>, answer: Arc<Answer>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (tls, answer) = (tls.clone(), answer.clone());
            tokio::spawn(async move {
                let builder = auto::Builder::new(TokioExecutor::new());
                let service = |certificates| {
                    service_fn(move |request: Request<Incoming>| {
                        let response = answer(&request, certificates);
                        async move { Ok::<_, Infallible>(response) }
                    })
                };
                match tls {
                    None => drop(builder.serve_connection(TokioIo::new(stream), service(0)).await),
                    Some(tls) => {
                        let Ok(stream) = tls.accept(stream).await else { return };
                        let certificates = stream.get_ref().1.peer_certificates().map_or(0, <[_]>::len);
                        drop(builder.serve_connection(TokioIo::new(stream), service(certificates)).await);
                    }
                }
            });
        }
    });
    address
}

/// A TLS server for `localhost` and its certificate. With `clients`, certificates of this authority
/// are accepted but not required.
fn certify(clients: Option<CertificateDer<'static>>) -> (TlsAcceptor, CertificateDer<'static>) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let authority = signed.cert.der().clone();
    let key = rustls_pki_types::PrivateKeyDer::try_from(signed.signing_key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider.clone());
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(clients) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(clients).unwrap();
            let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            config.with_client_cert_verifier(verifier.allow_unauthenticated().build().unwrap())
        }
    };
    let mut config = config.with_single_cert(vec![authority.clone()], key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    (TlsAcceptor::from(Arc::new(config)), authority)
}

fn config(address: SocketAddr, authority: &CertificateDer<'static>) -> Config {
    Config {
        tls: TlsOptions { authorities: vec![Certificate::from_der(authority.to_vec())], ..TlsOptions::default() },
        ..Config::new(&format!("https://localhost:{}", address.port())).unwrap()
    }
}

/// Forwards connections to one address until [`Forwarder::swallow`] drops their data. Then open connections
/// stay open without data, as behind a failed router. Later connections are forwarded again.
struct Forwarder {
    address: SocketAddr,
    generation: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
}

impl Forwarder {
    async fn new(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let forwarder = Forwarder { address, generation: Arc::default(), connections: Arc::default() };
        let (generation, connections) = (forwarder.generation.clone(), forwarder.connections.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                let server = TcpStream::connect(to).await.unwrap();
                let born = generation.load(Ordering::SeqCst);
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                for (mut from, mut to) in [(from_client, to_server), (from_server, to_client)] {
                    let generation = generation.clone();
                    tokio::spawn(async move {
                        let mut chunk = vec![0; 16 * 1024];
                        while let Ok(n @ 1..) = from.read(&mut chunk).await {
                            if generation.load(Ordering::SeqCst) == born && to.write_all(&chunk[..n]).await.is_err() {
                                return;
                            }
                        }
                        // The ends of dropped connections are dropped too.
                        if generation.load(Ordering::SeqCst) != born {
                            std::future::pending::<()>().await;
                        }
                    });
                }
            }
        });
        forwarder
    }

    /// Drops all data of the open connections from now on.
    fn swallow(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }
}

const PODS: &str = r#"{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["get","list","watch"]}]}"#;
const NO_PODS: &str = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"3"},"items":[]}"#;

fn pods(request: &Request<Incoming>) -> Response<Body> {
    let query = request.uri().query().unwrap_or_default();
    match request.uri().path() {
        "/api/v1" => json(PODS),
        _ if query.contains("watch=true") => open_watch(),
        _ => json(NO_PODS),
    }
}

#[tokio::test]
async fn half_open_connection_is_closed_within_the_silence_limit() {
    let (tls, authority) = certify(None);
    let server = serve(Some(tls), Arc::new(|request: &Request<Incoming>, _| pods(request))).await;
    let forwarder = Forwarder::new(server).await;
    let options = TransportOptions {
        ping_interval: Duration::from_millis(300),
        // Longer than a stall of a slow machine, during which nobody answers a ping.
        ping_limit: Duration::from_secs(5),
        ..TransportOptions::default()
    };
    let limit = options.silence_limit();
    let client = Client::new(Config { transport: options, ..config(forwarder.address, &authority) }).unwrap();
    let resource = client.discover("pods").await.unwrap();
    let reflector = ReflectorConfig { watch_list: false, ..ReflectorConfig::default() };
    let mut reflection = Reflection::new(client.list_watch(&resource, &Scope::Cluster), reflector);
    while !matches!(reflection.next().await, Notice::Changes(_)) {}
    // The connection is quiet but alive, so it must stay open.
    let quiet =
        tokio::time::timeout(limit * 3 / 2, async { while !matches!(reflection.next().await, Notice::Problem(_)) {} });
    assert!(quiet.await.is_err(), "a quiet watch was given up");
    let before = forwarder.connections.load(Ordering::SeqCst);

    forwarder.swallow();
    let swallowed = tokio::time::Instant::now();
    let problem = tokio::time::timeout(TIMEOUT, async {
        loop {
            if let Notice::Problem(problem) = reflection.next().await {
                return problem;
            }
        }
    });
    let problem = problem.await.expect("a dead connection was never noticed");
    assert!(matches!(problem, Problem::Disconnected { .. }), "{problem}");
    // The limit has a factor of three for slow machines.
    assert!(swallowed.elapsed() < limit * 3, "noticed after {:?}, stated is {limit:?}", swallowed.elapsed());
    let watching = tokio::time::timeout(TIMEOUT, async {
        while !matches!(reflection.next().await, Notice::State(listwatch_client::ReflectorState::Watching { .. })) {}
    });
    watching.await.expect("it never came back");
    assert_eq!(forwarder.connections.load(Ordering::SeqCst), before + 1, "one new connection");
}

#[tokio::test]
async fn new_connection_is_opened_when_all_streams_are_in_use() {
    let (tls, authority) = certify(None);
    let server = serve(Some(tls), Arc::new(|request: &Request<Incoming>, _| pods(request))).await;
    let forwarder = Forwarder::new(server).await;
    let config = config(forwarder.address, &authority);
    let options = TransportOptions { streams_max: 2, ..TransportOptions::default() };
    let transport = HttpTransport::new(&config.server, config.tls, options).unwrap();
    let mut open = Vec::new();
    for _ in 0..5 {
        let mut request = Request::new(RequestBody::empty());
        *request.uri_mut() = "/api/v1/pods?watch=true".parse().unwrap();
        let response =
            tokio::time::timeout(TIMEOUT, transport.send(request)).await.expect("a watch waited for a place");
        open.push(response.unwrap().into_body());
    }
    assert_eq!(transport.open_streams(), [2, 2, 1]);
    assert_eq!(forwarder.connections.load(Ordering::SeqCst), 3);
    open.truncate(1);
    let mut request = Request::new(RequestBody::empty());
    *request.uri_mut() = "/api/v1/pods".parse().unwrap();
    let body = transport.send(request).await.unwrap().into_body();
    assert_eq!(body.collect().await.unwrap().to_bytes(), NO_PODS);
    assert_eq!(transport.open_streams(), [1], "what is empty is let go");
}

/// A proxy that records its requests and always connects to `to`.
async fn proxy(to: SocketAddr, socks: bool) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = asked.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let question = if socks { ask_socks(&mut client).await } else { ask_http(&mut client).await };
            noted.lock().unwrap().push(question);
            let mut server = TcpStream::connect(to).await.unwrap();
            tokio::spawn(async move { drop(tokio::io::copy_bidirectional(&mut client, &mut server).await) });
        }
    });
    (address, asked)
}

async fn ask_http(client: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    client.write_all(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n").await.unwrap();
    String::from_utf8(head).unwrap().replace("\r\n", "|")
}

async fn ask_socks(client: &mut TcpStream) -> String {
    let mut offer = [0; 4];
    client.read_exact(&mut offer).await.unwrap();
    assert_eq!(offer, [5, 2, 0, 2]);
    client.write_all(&[5, 2]).await.unwrap();
    let mut login = [0; 11];
    client.read_exact(&mut login).await.unwrap();
    client.write_all(&[1, 0]).await.unwrap();
    let mut request = [0; 5];
    client.read_exact(&mut request).await.unwrap();
    let mut host = vec![0; usize::from(request[4]) + 2];
    client.read_exact(&mut host).await.unwrap();
    client.write_all(&[5, 0, 0, 1, 127, 0, 0, 1, 0, 80]).await.unwrap();
    let name = String::from_utf8_lossy(&host[..host.len() - 2]).into_owned();
    format!("{} {name}", String::from_utf8_lossy(&login[2..]).replace(|c: char| c.is_control(), ":"))
}

#[tokio::test]
async fn requests_are_sent_through_the_configured_proxy() {
    let (tls, authority) = certify(None);
    let server = serve(Some(tls), Arc::new(|request: &Request<Incoming>, _| pods(request))).await;
    for (socks, scheme) in [(false, "http"), (true, "socks5")] {
        let (address, asked) = proxy(server, socks).await;
        let url = format!("{scheme}://user:pass@127.0.0.1:{}", address.port());
        let options = TransportOptions { proxy: Some(ProxyUrl::parse(&url).unwrap()), ..TransportOptions::default() };
        let client = Client::new(Config { transport: options, ..config(server, &authority) }).unwrap();
        client.discover("pods").await.unwrap();
        let target = format!("localhost:{}", server.port());
        let expected = if socks {
            "user:pass localhost".to_owned()
        } else {
            format!("CONNECT {target} HTTP/1.1|Host: {target}|Proxy-Authorization: Basic dXNlcjpwYXNz||")
        };
        assert_eq!(*asked.lock().unwrap(), [expected]);
    }
}

#[tokio::test]
async fn error_names_the_proxy_that_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut head = [0; 16];
            let _ = client.read(&mut head).await;
            let _ = client.write_all(b"HTTP/1.1 407 Who are you\r\n\r\n").await;
        }
    });
    let options = TransportOptions {
        proxy: Some(ProxyUrl::parse(&format!("http://127.0.0.1:{port}")).unwrap()),
        ..TransportOptions::default()
    };
    let client = Client::new(Config { transport: options, ..Config::new("https://localhost:1").unwrap() }).unwrap();
    let error = client.discover("pods").await.unwrap_err().to_string();
    assert!(
        error.contains(&format!("the proxy 127.0.0.1:{port} did not connect: it said \"HTTP/1.1 407 Who are you\"")),
        "{error}"
    );
}

#[tokio::test]
async fn only_lists_are_compressed() {
    let (tls, authority) = certify(None);
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = asked.clone();
    let answer = move |request: &Request<Incoming>, _| {
        let coding =
            request.headers().get(http::header::ACCEPT_ENCODING).map(|value| value.to_str().unwrap().to_owned());
        let watch = request.uri().query().unwrap_or_default().contains("watch=true");
        if request.uri().path() != "/api/v1" {
            noted.lock().unwrap().push(format!(
                "{} {}",
                if watch { "watch" } else { "list" },
                coding.clone().unwrap_or_default()
            ));
        }
        let response = pods(request);
        if watch || coding.is_none() || request.uri().path() == "/api/v1" {
            return response;
        }
        use std::io::Write as _;
        let items: Vec<String> = (0..500)
            .map(|n| {
                format!(r#"{{"metadata":{{"name":"p{n}","namespace":"shop","uid":"{n}","resourceVersion":"1"}}}}"#)
            })
            .collect();
        let list = NO_PODS.replace("[]", &format!("[{}]", items.join(",")));
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(list.as_bytes()).unwrap();
        let mut response = json(encoder.finish().unwrap());
        response.headers_mut().insert(http::header::CONTENT_ENCODING, http::HeaderValue::from_static("gzip"));
        response
    };
    let server = serve(Some(tls), Arc::new(answer)).await;
    let client = Client::new(Config { compression: true, ..config(server, &authority) }).unwrap();
    let resource = client.discover("pods").await.unwrap();
    let reflector = ReflectorConfig { watch_list: false, ..ReflectorConfig::default() };
    let mut reflection = Reflection::new(client.list_watch(&resource, &Scope::Cluster), reflector);
    while !matches!(reflection.next().await, Notice::Synced) {}
    assert_eq!(reflection.store().snapshot().len(), 500);
    while !matches!(reflection.next().await, Notice::Changes(_)) {}
    assert_eq!(*asked.lock().unwrap(), ["list gzip", "watch "]);
}

#[tokio::test]
async fn rotated_token_is_read_after_401() {
    let (tls, authority) = certify(None);
    let answer = |request: &Request<Incoming>, _| {
        let good = request.headers().get(http::header::AUTHORIZATION).is_some_and(|value| value == "Bearer new");
        if good { pods(request) } else { unauthorized() }
    };
    let server = serve(Some(tls), Arc::new(answer)).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, "old").unwrap();
    let client = Client::new(Config { auth: Auth::TokenFile(path.clone()), ..config(server, &authority) }).unwrap();
    assert!(client.discover("pods").await.is_err(), "asked once more, and refused for good");
    std::fs::write(&path, "new").unwrap();
    client.discover("pods").await.expect("the token in the file is good");
}

/// An authority for client certificates.
fn issuer() -> rcgen::CertifiedIssuer<'static, rcgen::KeyPair> {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap()
}

/// The output of a credential plugin with a new client certificate.
fn client_certificate(
    issuer: &rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
    expiry: Option<&str>,
) -> serde_json::Value {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut leaf = rcgen::CertificateParams::new(Vec::new()).unwrap();
    leaf.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = leaf.signed_by(&key, issuer).unwrap();
    let mut status =
        serde_json::json!({"clientCertificateData": certificate.pem(), "clientKeyData": key.serialize_pem()});
    if let Some(expiry) = expiry {
        status["expirationTimestamp"] = expiry.into();
    }
    serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": status,
    })
}

/// A credential plugin that is a shell script.
fn shell_plugin(script: String) -> Auth {
    Auth::Exec(Box::new(ExecPlugin {
        command: "sh".into(),
        args: vec!["-c".to_owned(), script],
        env: Vec::new(),
        version: ExecVersion::V1,
        interactive: InteractiveMode::Never,
        install_hint: String::new(),
        cluster: None,
    }))
}

#[tokio::test]
async fn exec_plugin_certificate_is_replaced_after_401() {
    let issuer = issuer();
    let (tls, authority) = certify(Some(issuer.der().clone()));
    // The first session is rejected although its certificate is valid, as after a revocation.
    let refusals = Arc::new(AtomicUsize::new(1));
    let left = refusals.clone();
    let answer = move |request: &Request<Incoming>, certificates: usize| {
        let refused = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if certificates == 0 || refused { unauthorized() } else { pods(request) }
    };
    let server = serve(Some(tls), Arc::new(answer)).await;
    let folder = tempfile::tempdir().unwrap();
    for run in [1, 2] {
        let credential = client_certificate(&issuer, None);
        std::fs::write(folder.path().join(format!("credential-{run}")), credential.to_string()).unwrap();
    }
    let script =
        format!("cd '{}'; echo x >> runs; cat credential-$(wc -l < runs | tr -d ' ')", folder.path().display());
    let config = Config { auth: shell_plugin(script), ..config(server, &authority) };
    let client = Client::new(config).unwrap();
    client.discover("pods").await.expect("the second certificate is believed");
    client.discover("pods").await.expect("and used again");
    let runs = std::fs::read_to_string(folder.path().join("runs")).unwrap().lines().count();
    assert_eq!((runs, refusals.load(Ordering::SeqCst)), (2, 0));
}

#[tokio::test]
async fn connections_are_kept_while_the_exec_plugin_returns_the_same_certificate() {
    let issuer = issuer();
    let (tls, authority) = certify(Some(issuer.der().clone()));
    let answer = |request: &Request<Incoming>, certificates: usize| {
        if certificates == 0 { unauthorized() } else { pods(request) }
    };
    let server = serve(Some(tls), Arc::new(answer)).await;
    let forwarder = Forwarder::new(server).await;
    let folder = tempfile::tempdir().unwrap();
    // An expired credential is good for one request, so the plugin runs before each.
    let write = || {
        let credential = client_certificate(&issuer, Some("2000-01-01T00:00:00Z"));
        std::fs::write(folder.path().join("credential"), credential.to_string()).unwrap();
    };
    let auth = shell_plugin(format!("cd '{}'; echo x >> runs; cat credential", folder.path().display()));
    let client = Client::new(Config { auth, ..config(forwarder.address, &authority) }).unwrap();
    write();
    for _ in 0..3 {
        client.discover("pods").await.unwrap();
    }
    assert_eq!(std::fs::read_to_string(folder.path().join("runs")).unwrap().lines().count(), 3);
    assert_eq!(forwarder.connections.load(Ordering::SeqCst), 1, "the same certificate needs no new connection");
    write();
    client.discover("pods").await.unwrap();
    assert_eq!(forwarder.connections.load(Ordering::SeqCst), 2, "a connection has one certificate");
}

#[tokio::test]
async fn unknown_certificate_is_accepted_only_if_verification_is_off() {
    let (tls, _) = certify(None);
    let server = serve(Some(tls), Arc::new(|request: &Request<Incoming>, _| pods(request))).await;
    for insecure_skip_verify in [false, true] {
        let tls = TlsOptions { insecure_skip_verify, ..TlsOptions::default() };
        let url = format!("https://127.0.0.1:{}", server.port());
        let client = Client::new(Config { tls, ..Config::new(&url).unwrap() }).unwrap();
        assert_eq!(client.discover("pods").await.is_ok(), insecure_skip_verify);
    }
}

#[tokio::test]
async fn response_body_reports_its_exact_length_and_an_empty_body_is_at_its_end() {
    let answer = |request: &Request<Incoming>, _| json(if request.uri().path() == "/empty" { "" } else { NO_PODS });
    let server = serve(None, Arc::new(answer)).await;
    let url = format!("http://{server}").parse().unwrap();
    let transport = HttpTransport::new(&url, TlsOptions::default(), TransportOptions::default()).unwrap();
    for (path, length) in [("/list", NO_PODS.len()), ("/empty", 0)] {
        let mut request = Request::new(RequestBody::empty());
        *request.uri_mut() = path.parse().unwrap();
        let body = transport.send(request).await.unwrap().into_body();
        assert_eq!(body.size_hint().exact(), Some(length as u64), "{path}");
        assert_eq!(body.is_end_stream(), length == 0, "{path}");
        assert_eq!(body.collect().await.unwrap().to_bytes().len(), length, "{path}");
    }
}

/// Accepts one connection, reads it to its end, and sends the bytes back.
async fn echo(tls: Option<TlsAcceptor>) -> SocketAddr {
    async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        stream.shutdown().await.unwrap();
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        match tls {
            None => answer(stream).await,
            Some(tls) => answer(tls.accept(stream).await.unwrap()).await,
        }
    });
    address
}

#[tokio::test]
async fn dialed_connection_carries_bytes_and_its_end_both_ways() {
    let (tls, authority) = certify(None);
    for (secure, protocols, http2) in [
        (false, Protocols::Any, false),
        (true, Protocols::Http1, false),
        (true, Protocols::Http2, true),
        (true, Protocols::Any, true),
    ] {
        let address = echo(secure.then(|| tls.clone())).await;
        let config =
            if secure { config(address, &authority) } else { Config::new(&format!("http://{address}")).unwrap() };
        let mut connection = Dialer::new(&config, protocols).unwrap().dial().await.unwrap();
        assert_eq!(connection.chose_http2(), http2, "{protocols:?}, TLS: {secure}");
        let talk = async {
            connection.write_all(b"a question").await.unwrap();
            connection.shutdown().await.unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let answer = tokio::time::timeout(TIMEOUT, talk).await.expect("the end of the question did not arrive");
        assert_eq!(answer, "a question", "{protocols:?}, TLS: {secure}");
    }
}

#[tokio::test]
async fn flush_of_a_dialed_connection_sends_every_written_byte() {
    let (tls, authority) = certify(None);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (start, started) = tokio::sync::oneshot::channel();
    let reading = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = tls.accept(stream).await.unwrap();
        let mut bytes = vec![0; started.await.unwrap()];
        stream.read_exact(&mut bytes).await.unwrap();
    });
    let mut connection = Dialer::new(&config(address, &authority), Protocols::Http1).unwrap().dial().await.unwrap();
    // The server does not read yet, so the connection takes bytes until all buffers are full, including that of TLS.
    let mut written = 0;
    while let Some(taken) = tokio::task::unconstrained(connection.write(&[0; 16 * 1024])).now_or_never() {
        written += taken.unwrap();
    }
    start.send(written).unwrap();
    connection.flush().await.unwrap();
    let read = tokio::time::timeout(TIMEOUT, reading).await;
    read.expect("bytes stay in the buffer of TLS after a flush").unwrap();
}

#[tokio::test]
async fn missing_exec_plugin_sends_no_request() {
    let asked = Arc::new(AtomicBool::new(false));
    let noted = asked.clone();
    let (tls, authority) = certify(None);
    let answer = move |request: &Request<Incoming>, _| {
        noted.store(true, Ordering::SeqCst);
        pods(request)
    };
    let server = serve(Some(tls), Arc::new(answer)).await;
    let plugin = ExecPlugin {
        command: "no-such-plugin-anywhere".into(),
        args: Vec::new(),
        env: Vec::new(),
        version: ExecVersion::V1Beta1,
        interactive: InteractiveMode::Never,
        install_hint: "see https://example.com".to_owned(),
        cluster: None,
    };
    let client = Client::new(Config { auth: Auth::Exec(Box::new(plugin)), ..config(server, &authority) }).unwrap();
    let error = client.discover("pods").await.unwrap_err().to_string();
    assert_eq!(error, "the credential plugin no-such-plugin-anywhere is not installed: see https://example.com");
    assert!(!asked.load(Ordering::SeqCst));
}

/// Accepts connections and handles them: `R` resets after the request, `E` ends after it, `T` sends no HTTP, and `A`
/// answers. The last letter is for all further connections. Returns the number of accepted connections.
async fn flaky(letters: &'static str) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, accepted) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = accepted.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let number = count.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read(&mut [0; 4_096]).await;
            match letters.chars().nth(number).or(letters.chars().last()) {
                Some('R') => socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap(),
                Some('T') => drop(stream.write_all(b"220 no HTTP at all\r\n\r\n").await),
                Some('A') => drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await),
                _ => {}
            }
        }
    });
    (address, accepted)
}

/// As client-go (`isErrRetryableFunc` of rest/request.go).
#[tokio::test]
async fn get_is_sent_again_after_a_lost_connection_only() {
    async fn check(letters: &'static str, tries: usize, succeeds: bool) {
        let (address, accepted) = flaky(letters).await;
        let client = Client::new(Config::new(&format!("http://{address}")).unwrap()).unwrap();
        let document = tokio::time::timeout(TIMEOUT, client.get_document("/version")).await.unwrap();
        assert_eq!(document.is_ok(), succeeds, "{letters}: {document:?}");
        assert_eq!(accepted.load(Ordering::SeqCst), tries, "{letters}: {document:?}");
    }
    tokio::join!(check("A", 1, true), check("RA", 2, true), check("EA", 2, true), check("TA", 1, false));
    let client = |url: String| Client::new(Config::new(&url).unwrap()).unwrap();
    // Nobody listens.
    let port = listwatch_test_ports::free_port().unwrap();
    let begun = tokio::time::Instant::now();
    assert!(client(format!("http://127.0.0.1:{port}")).get("/version").await.is_err(), "nobody listens");
    // A refused GET that is retried until its last try waits at least this long.
    let waits = GET_RECONNECT_WAIT * u32::try_from(GET_TRIES_MAX - 1).unwrap();
    assert!(begun.elapsed() < waits, "a refused connection is retried");
    // The certificate is not trusted.
    let (acceptor, _) = certify(None);
    let server = serve(Some(acceptor), Arc::new(|_, _| json("{}"))).await;
    let forwarder = Forwarder::new(server).await;
    let answered = client(format!("https://localhost:{}", forwarder.address.port())).get("/version").await;
    assert!(answered.is_err(), "the authority is not known");
    assert_eq!(forwarder.connections.load(Ordering::SeqCst), 1, "a TLS failure is retried");
}

#[tokio::test]
async fn get_is_sent_again_after_a_lost_http_2_connection() {
    let (acceptor, authority) = certify(None);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::new(AtomicUsize::new(0));
    let count = requests.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, count) = (acceptor.clone(), count.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let lost = Arc::new(tokio::sync::Notify::new());
                let in_service = lost.clone();
                let service = service_fn(move |_: Request<Incoming>| {
                    let (first, lost) = (count.fetch_add(1, Ordering::SeqCst) == 0, in_service.clone());
                    async move {
                        if first {
                            lost.notify_one();
                            std::future::pending::<()>().await;
                        }
                        Ok::<_, Infallible>(json("{}"))
                    }
                });
                let builder = auto::Builder::new(TokioExecutor::new());
                tokio::select! {
                    _ = builder.serve_connection(TokioIo::new(stream), service) => {}
                    () = lost.notified() => {}
                }
            });
        }
    });
    let client = Client::new(config(address, &authority)).unwrap();
    let document = tokio::time::timeout(TIMEOUT, client.get_document("/version")).await.unwrap();
    assert_eq!(document.unwrap(), "{}", "a connection that is lost once fails a GET");
    assert_eq!(requests.load(Ordering::SeqCst), 2);
}
