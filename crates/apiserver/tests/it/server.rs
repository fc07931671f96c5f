//! Tests a server on a port: TLS, raw HTTP/1.1, and misbehaving peers.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use listwatch_apiserver::pki::Pki;
use listwatch_apiserver::{ApiServer, Auth, Controllers, Serving};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The time limit of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

struct World {
    server: ApiServer,
    serving: Serving,
    pki: Pki,
}

impl World {
    async fn new() -> Self {
        World::with(Controllers::ALL).await
    }

    async fn with(controllers: Controllers) -> Self {
        let pki = Pki::in_memory(&[]).expect("certificates");
        let auth = Auth::Token(pki.token().to_owned());
        let server = ApiServer::builder().auth(auth).controllers(controllers).build().await.expect("a server");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let serving = server.serve(listener, &pki).expect("listening");
        World { server, serving, pki }
    }

    fn address(&self) -> SocketAddr {
        self.serving.address()
    }

    async fn connect(&self, alpn: &[u8]) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pki.ca_pem().as_bytes()).expect("PEM")).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![alpn.to_vec()];
        let stream = TcpStream::connect(self.address()).await.expect("connected");
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("a handshake")
    }

    /// Sends raw HTTP/1.1, and reads until the server closes the connection.
    async fn exchange(&self, request: &str) -> String {
        let mut stream = self.connect(b"http/1.1").await;
        stream.write_all(request.as_bytes()).await.expect("sent");
        read_to_end(&mut stream).await
    }

    fn bearer(&self) -> String {
        format!("Authorization: Bearer {}\r\n", self.pki.token())
    }
}

async fn read_to_end(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    // A peer that closes without a TLS close_notify causes an error, which is expected.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the server answers in time");
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn read_until(stream: &mut (impl tokio::io::AsyncRead + Unpin), what: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0_u8; 4096];
    while !text.contains(what) {
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await;
        let count = read.unwrap_or_else(|_| panic!("{what:?} did not come in time after {text:?}")).expect("open");
        assert_ne!(count, 0, "closed before {what:?}: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    text
}

#[tokio::test]
async fn request_without_token_reaches_only_health_and_version() {
    let world = World::new().await;
    let ask = async |path: &str, credential: &str| {
        world.exchange(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n{credential}Connection: close\r\n\r\n")).await
    };
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        assert!(ask(path, "").await.starts_with("HTTP/1.1 200 "), "{path}");
    }
    for path in ["/", "/api", "/apis", "/openapi/v2", "/api/v1/pods", "/api/v1/pods?watch=1", "/nonsense"] {
        let answer = ask(path, "").await;
        assert!(
            answer.starts_with("HTTP/1.1 401 ") && answer.contains("\"reason\":\"Unauthorized\""),
            "{path}: {answer}"
        );
    }
    assert!(ask("/api/v1/pods", &world.bearer()).await.starts_with("HTTP/1.1 200 "));
    assert!(ask("/api/v1/pods", "Authorization: Bearer x\r\n").await.starts_with("HTTP/1.1 401 "));
}

#[tokio::test]
async fn http1_watch_is_chunked_and_sends_events_without_delay() {
    let world = World::new().await;
    let mut watch = world.connect(b"http/1.1").await;
    let path = "/api/v1/namespaces/default/configmaps?watch=true&allowWatchBookmarks=true";
    watch
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n{}\r\n", world.bearer()).as_bytes())
        .await
        .expect("sent");
    let head = read_until(&mut watch, "initial-events-end").await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.to_ascii_lowercase().contains("transfer-encoding: chunked\r\n"), "{head}");
    assert!(head.to_ascii_lowercase().contains("content-type: application/json\r\n"), "{head}");

    let body = r#"{"metadata":{"name":"one"},"data":{"a":"b"}}"#;
    let created = world
        .exchange(&format!(
            "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\n{}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            world.bearer(),
            body.len()
        ))
        .await;
    assert!(created.starts_with("HTTP/1.1 201 "), "{created}");
    let event = read_until(&mut watch, "}\n\r\n").await;
    assert!(event.contains("{\"type\":\"ADDED\",\"object\":{\"kind\":\"ConfigMap\""), "{event}");

    // The stream ends cleanly with the last chunk.
    world.server.shutdown();
    assert!(read_until(&mut watch, "0\r\n\r\n").await.ends_with("0\r\n\r\n"));
}

const SHORT_WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=true&resourceVersion=0&timeoutSeconds=1";

#[tokio::test]
async fn http1_connection_is_reused_after_a_watch() {
    let world = World::new().await;
    let mut stream = world.connect(b"http/1.1").await;
    let request = |path: &str, more: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\n{}{more}\r\n", world.bearer());
    for _ in 0..2 {
        stream.write_all(request(SHORT_WATCH, "").as_bytes()).await.expect("sent");
        let watched = read_until(&mut stream, "0\r\n\r\n").await;
        assert!(watched.starts_with("HTTP/1.1 200 OK\r\n"), "{watched}");
    }
    // The early request is longer than the limit for early bytes.
    let padding = "x".repeat(5_000);
    let early = [request(SHORT_WATCH, ""), request("/version", &format!("X-Padding: {padding}\r\n"))].concat();
    stream.write_all(early.as_bytes()).await.expect("sent");
    let both = read_until(&mut stream, "gitVersion").await;
    let (watched, next) = both.split_once("\r\n0\r\n\r\n").unwrap_or_else(|| panic!("no end of the watch in {both}"));
    assert!(watched.starts_with("HTTP/1.1 200 OK\r\n") && next.starts_with("HTTP/1.1 200 OK\r\n"), "{both}");
    // The second request starts only after the watch, byte by byte.
    let (first, second) = (request(SHORT_WATCH, ""), request("/healthz", "Connection: close\r\n"));
    stream.write_all(first.as_bytes()).await.expect("sent");
    read_until(&mut stream, "\r\n\r\n").await;
    for byte in second.as_bytes() {
        stream.write_all(&[*byte]).await.expect("sent");
        stream.flush().await.expect("sent");
    }
    let rest = read_to_end(&mut stream).await;
    assert!(rest.contains("0\r\n\r\nHTTP/1.1 200 OK\r\n") && rest.ends_with("ok"), "{rest}");
}

#[tokio::test]
async fn http1_connection_closes_after_a_watch_if_requested() {
    let world = World::new().await;
    for (version, more, end) in [("1.1", "Connection: keep-alive, Close\r\n", "0\r\n\r\n"), ("1.0", "", "\r\n\r\n")] {
        let request = format!("GET {SHORT_WATCH} HTTP/{version}\r\nHost: x\r\n{}{more}\r\n", world.bearer());
        let watched = world.exchange(&request).await;
        assert!(watched.starts_with(&format!("HTTP/{version} 200 OK\r\n")) && watched.ends_with(end), "{watched}");
    }
    let mut open = world.connect(b"http/1.1").await;
    let path = "/api/v1/namespaces/default/configmaps?watch=true&resourceVersion=0";
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{}\r\n", world.bearer());
    open.write_all(request.as_bytes()).await.expect("sent");
    read_until(&mut open, "\r\n\r\n").await;
    world.server.shutdown();
    tokio::time::timeout(PATIENCE, world.serving.shutdown()).await.expect("nothing is left");
    assert_eq!(read_to_end(&mut open).await, "0\r\n\r\n");
}

#[tokio::test]
async fn watch_of_a_disconnected_client_ends() {
    // Only the clients of this test watch ConfigMaps.
    let world = World::with(Controllers::NONE).await;
    let open = async || -> usize {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{}Connection: close\r\n\r\n", world.bearer());
        let metrics = world.exchange(&request).await;
        let of_config_maps = |line: &&str| line.starts_with("listwatch_watchers{") && line.contains("\"configmaps\"");
        let counts = metrics.lines().filter(of_config_maps).map(|line| line.rsplit(' ').next().expect("a number"));
        counts.map(|count| count.parse::<usize>().expect("a number")).sum()
    };
    let mut watches = Vec::new();
    for _ in 0..3 {
        let mut watch = world.connect(b"http/1.1").await;
        let request = format!(
            "GET /api/v1/namespaces/default/configmaps?watch=true HTTP/1.1\r\nHost: x\r\n{}\r\n",
            world.bearer()
        );
        watch.write_all(request.as_bytes()).await.expect("sent");
        read_until(&mut watch, "\r\n\r\n").await;
        watches.push(watch);
    }
    assert_eq!(open().await, 3);
    watches.pop();
    let begun = std::time::Instant::now();
    while open().await != 2 {
        assert!(begun.elapsed() < PATIENCE, "the client is gone, and its watch is not");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The client's side of a WebSocket.
struct Socket {
    stream: TlsStream<TcpStream>,
    decoder: listwatch_wire::websocket::Decoder,
}

impl Socket {
    /// Opens a watch, and returns the response up to the end of its headers.
    async fn open(world: &World, path: &str, headers: &str) -> (String, Self) {
        let mut stream = world.connect(b"http/1.1").await;
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
        );
        stream.write_all(request.as_bytes()).await.expect("sent");
        let (mut head, mut byte) = (String::new(), [0]);
        while !head.ends_with("\r\n\r\n") {
            let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut byte)).await;
            read.expect("an answer in time").expect("open");
            head.push(char::from(byte[0]));
        }
        let decoder = listwatch_wire::websocket::Decoder::new(listwatch_wire::websocket::Role::Client);
        (head, Socket { stream, decoder })
    }

    async fn next(&mut self) -> listwatch_wire::websocket::Message {
        let mut buffer = [0_u8; 4096];
        loop {
            if let Some(message) = self.decoder.next_message().expect("frames") {
                return message;
            }
            let read = tokio::time::timeout(PATIENCE, self.stream.read(&mut buffer)).await;
            let bytes = read.expect("a message in time").expect("open");
            assert_ne!(bytes, 0, "closed without a word");
            self.decoder.feed(&buffer[..bytes]);
        }
    }

    async fn send(&mut self, kind: listwatch_wire::websocket::Kind, payload: &[u8]) {
        let frame = listwatch_wire::websocket::frame(kind, payload, Some([1, 2, 3, 4]));
        self.stream.write_all(&frame).await.expect("sent");
    }
}

#[tokio::test]
async fn watch_is_served_over_websocket() {
    use listwatch_wire::websocket::{Kind, Message};
    let world = World::new().await;
    let path = "/api/v1/namespaces?watch=true&allowWatchBookmarks=true";
    let bearer = format!("Origin: http://x\r\n{}", world.bearer());
    let (head, mut socket) = Socket::open(&world, path, &bearer).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.to_ascii_lowercase().contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n"), "{head}");
    let mut names = 0;
    loop {
        let Message::Text(event) = socket.next().await else { panic!("JSON is text") };
        let event: listwatch_json::Value = serde_json::from_slice(&event).expect("one document");
        if event["type"] == "BOOKMARK" {
            break;
        }
        assert_eq!(event["type"], "ADDED");
        names += 1;
    }
    assert_eq!(names, 4, "every namespace there is, one message each");
    socket.send(Kind::Text, b"whatever a browser says").await;
    socket.send(Kind::Ping, b"there?").await;
    assert_eq!(socket.next().await, Message::Pong("there?".into()));

    // The options are protobuf without lengths and a token in the subprotocols. The server responds to the close frame.
    let token = base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, world.pki.token());
    let headers = format!(
        "Origin: http://x\r\nAccept: application/vnd.kubernetes.protobuf\r\nSec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.{token}, chat\r\n"
    );
    let (head, mut binary) = Socket::open(&world, "/api/v1/watch/namespaces", &headers).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.to_ascii_lowercase().contains("sec-websocket-protocol: chat\r\n"), "{head}");
    let Message::Binary(event) = binary.next().await else { panic!("protobuf is binary") };
    let event = listwatch_wire::protobuf::WatchMessage::parse(&event).expect("an event");
    assert_eq!(listwatch_wire::protobuf::decode(&event.envelope).expect("an object").kind, "Namespace");
    binary.send(Kind::Close, &1000_u16.to_be_bytes()).await;
    let code = loop {
        if let Message::Close(close) = binary.next().await {
            break close.expect("a code").code;
        }
    };
    assert_eq!(code, 1000);

    // The server also ends with a close frame.
    world.server.shutdown();
    let Message::Close(Some(close)) = socket.next().await else { panic!("a close") };
    assert_eq!(close.code, 1000);
}

#[tokio::test]
async fn invalid_websocket_request_is_rejected() {
    let world = World::new().await;
    let bearer = world.bearer();
    let good = format!("{bearer}Origin: http://x\r\n");
    for (path, headers, expected) in [
        ("/api/v1/namespaces?watch=true", bearer.clone(), "403"),
        ("/api/v1/namespaces?watch=true", "Origin: http://x\r\n".to_owned(), "401"),
        ("/api/v1/namespaces?watch=true", format!("{good}Sec-WebSocket-Protocol: a, b\r\n"), "400"),
        ("/api/v1/namespaces?watch=true&resourceVersionMatch=x", good.clone(), "422"),
        ("/api/v1/namespaces", good, "200"),
    ] {
        let (head, _) = Socket::open(&world, path, &headers).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {expected} ")), "{path}: {head}");
    }
}

#[tokio::test]
async fn http2_is_negotiated_by_alpn() {
    let world = World::new().await;
    let mut stream = world.connect(b"h2").await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    // The preface and empty settings; the server answers with its own settings frame (type 4).
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("sent");
    let mut frame = [0_u8; 9];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut frame)).await.expect("in time").expect("a frame");
    assert_eq!(frame[3], 4, "{frame:?}");
}

#[tokio::test]
async fn long_list_and_watch_are_complete_over_http2_with_tls() {
    use http_body_util::{BodyExt as _, Empty};
    let world = World::with(Controllers::NONE).await;
    let data = "x".repeat(700_000);
    for name in ["a", "b", "c"] {
        let body = format!(r#"{{"metadata":{{"name":"{name}"}},"data":{{"d":"{data}"}}}}"#);
        let head = format!("POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\n{}", world.bearer());
        let request = format!("{head}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
        assert!(world.exchange(&request).await.starts_with("HTTP/1.1 201 "));
    }
    let io = hyper_util::rt::TokioIo::new(world.connect(b"h2").await);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.expect("a handshake");
    tokio::spawn(connection);
    let get = async |path: &str| {
        let token = world.pki.token();
        let request = http::Request::get(format!("https://x{path}")).header("authorization", format!("Bearer {token}"));
        let answer = sender.clone().send_request(request.body(Empty::<bytes::Bytes>::new()).expect("a request"));
        tokio::time::timeout(PATIENCE, answer).await.expect("in time").expect("an answer").into_body()
    };
    let watch = "/api/v1/namespaces/default/configmaps?watch=true&resourceVersion=0&timeoutSeconds=10";
    let bodies = [
        get("/api/v1/namespaces/default/configmaps").await,
        get(watch).await,
        get("/api/v1/namespaces/default/configmaps").await,
        get(watch).await,
    ];
    for body in bodies {
        let bytes = tokio::time::timeout(PATIENCE, body.collect()).await.expect("in time").expect("whole").to_bytes();
        let text = String::from_utf8(bytes.to_vec()).expect("text");
        assert_eq!(text.matches(&data).count(), 3, "{} bytes", text.len());
        let documents = serde_json::Deserializer::from_str(&text).into_iter::<listwatch_json::Value>();
        for document in documents {
            document.expect("JSON");
        }
    }
}

#[tokio::test]
async fn server_survives_misbehaving_peers() {
    let world = World::new().await;

    // A client of plain HTTP on a TLS port receives a response that it can show.
    let mut plain = TcpStream::connect(world.address()).await.expect("connected");
    plain.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    let answer = read_to_end(&mut plain).await;
    assert!(answer.starts_with("HTTP/1.0 400 Bad Request\r\n") && answer.contains("HTTPS server"), "{answer}");

    // An invalid TLS hello.
    let mut broken = TcpStream::connect(world.address()).await.expect("connected");
    broken.write_all(&[22, 3, 1, 0, 5, 1, 2, 3, 4, 5, 6]).await.expect("sent");
    read_to_end(&mut broken).await;

    // Half a request without an end, and a connection that closes at once.
    let mut half = world.connect(b"http/1.1").await;
    half.write_all(b"GET /api/v1/po").await.expect("sent");
    let mut hung_up = world.connect(b"http/1.1").await;
    hung_up
        .write_all(b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        .await
        .expect("sent");
    drop(hung_up);

    // Bytes that are not HTTP.
    let nonsense = world.exchange("NONSENSE\r\n\r\n").await;
    assert!(nonsense.is_empty() || nonsense.starts_with("HTTP/1.1 400 "), "{nonsense}");

    let answer = world.exchange("GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok"), "the server continues to serve: {answer}");
}

#[tokio::test]
async fn body_over_the_limit_returns_413() {
    let world = World::new().await;
    let limit = listwatch_apiserver::REQUEST_BODY_BYTES_MAX;
    let mut stream = world.connect(b"http/1.1").await;
    let head = format!(
        "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\n{}Content-Length: {}\r\nConnection: close\r\n\r\n",
        world.bearer(),
        limit + 1
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    // The server may respond and close before it has read everything.
    let _ = stream.write_all(&vec![b' '; limit + 1]).await;
    let answer = read_until(&mut stream, "\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

#[tokio::test]
async fn shutdown_completes_requests_then_closes_connections() {
    let world = World::new().await;
    let mut idle = world.connect(b"http/1.1").await;
    let address = world.address();
    world.server.shutdown();
    let readyz = world.exchange("GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(readyz.starts_with("HTTP/1.1 500 ") && readyz.contains("[-]shutdown failed"), "{readyz}");
    tokio::time::timeout(PATIENCE, world.serving.shutdown()).await.expect("shutdown ends");
    assert!(read_to_end(&mut idle).await.is_empty());
    assert!(TcpStream::connect(address).await.is_err(), "the listener is closed");
}

#[tokio::test]
async fn kubeconfig_of_a_test_server_connects_to_its_port() {
    let server = ApiServer::builder().auth(Auth::Token("a-token-of-the-test".to_owned())).build().await.expect("built");
    let served = server.serve_on_free_port().await.expect("served");
    assert!(served.kubeconfig().contains("token: a-token-of-the-test\n"), "{}", served.kubeconfig());
    assert!(served.kubeconfig().contains(&served.address().to_string()));
}

#[tokio::test]
async fn protobuf_body_is_decoded_and_an_invalid_protobuf_body_is_rejected() {
    let world = World::new().await;
    // The bytes of `kubectl create namespace web`: k8s\0, then Unknown{TypeMeta, raw}.
    let namespace: &[u8] =
        b"k8s\0\n\x0f\n\x02v1\x12\tNamespace\x12\x17\n\x11\n\x03web\x12\0\x1a\0\"\0*\0\x32\0\x38\0B\0\x12\0\x1a\0\x1a\0\"\0";
    for (body, expected) in
        [(namespace, "HTTP/1.1 201 "), (&namespace[..20], "HTTP/1.1 400 "), (b"{}", "HTTP/1.1 400 ")]
    {
        let mut stream = world.connect(b"http/1.1").await;
        let head = format!(
            "POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\n{}Content-Type: application/vnd.kubernetes.protobuf\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            world.bearer(),
            body.len()
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        stream.write_all(body).await.expect("sent");
        let answer = read_to_end(&mut stream).await;
        assert!(answer.starts_with(expected), "{answer}");
        assert!(expected.contains("400") || answer.contains("\"name\":\"web\""), "{answer}");
    }
}
