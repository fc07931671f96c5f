//! The server on a port: TLS, HTTP/1.1 on the wire, and peers that misbehave.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use listwatch_apiserver::pki::Pki;
use listwatch_apiserver::{ApiServer, Auth, Serving};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Far above what anything here takes; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(20);

struct World {
    server: ApiServer,
    serving: Serving,
    pki: Pki,
}

impl World {
    async fn new() -> Self {
        let pki = Pki::in_memory(&[]).expect("certificates");
        let server = ApiServer::builder().auth(Auth::Token(pki.token().to_owned())).build().await.expect("a server");
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

    /// Sends raw HTTP/1.1 and reads until the server closes.
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
    // A peer that closes without a TLS goodbye is an error here, and no news.
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
async fn without_the_token_only_health_and_version_answer() {
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
async fn a_watch_is_chunked_over_http1_and_an_event_arrives_at_once() {
    let world = World::new().await;
    let mut watch = world.connect(b"http/1.1").await;
    let path = "/api/v1/configmaps?watch=true&allowWatchBookmarks=true";
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

    // The end is clean: the last chunk.
    world.server.shutdown();
    assert!(read_until(&mut watch, "0\r\n\r\n").await.ends_with("0\r\n\r\n"));
}

/// The client's half of a WebSocket.
struct Socket {
    stream: TlsStream<TcpStream>,
    decoder: listwatch_wire::websocket::Decoder,
}

impl Socket {
    /// Asks for a watch; what the server answers up to the end of its headers.
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
async fn a_watch_goes_over_a_websocket() {
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
        let event: serde_json::Value = serde_json::from_slice(&event).expect("one document");
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

    // Protobuf without its length, the token among the subprotocols, and a close that is answered.
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

    // The end of the server is a close, too.
    world.server.shutdown();
    let Message::Close(Some(close)) = socket.next().await else { panic!("a close") };
    assert_eq!(close.code, 1000);
}

#[tokio::test]
async fn a_websocket_that_is_no_good_is_refused() {
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
async fn http2_is_chosen_by_alpn() {
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
async fn the_server_survives_peers_that_misbehave() {
    let world = World::new().await;

    // Not TLS at all, but HTTP: told so in a way that an HTTP client can show.
    let mut plain = TcpStream::connect(world.address()).await.expect("connected");
    plain.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    let answer = read_to_end(&mut plain).await;
    assert!(answer.starts_with("HTTP/1.0 400 Bad Request\r\n") && answer.contains("HTTPS server"), "{answer}");

    // A broken hello.
    let mut broken = TcpStream::connect(world.address()).await.expect("connected");
    broken.write_all(&[22, 3, 1, 0, 5, 1, 2, 3, 4, 5, 6]).await.expect("sent");
    read_to_end(&mut broken).await;

    // Half a request, then nothing; and one that hangs up.
    let mut half = world.connect(b"http/1.1").await;
    half.write_all(b"GET /api/v1/po").await.expect("sent");
    let mut hung_up = world.connect(b"http/1.1").await;
    hung_up
        .write_all(b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        .await
        .expect("sent");
    drop(hung_up);

    // Not HTTP.
    let nonsense = world.exchange("NONSENSE\r\n\r\n").await;
    assert!(nonsense.is_empty() || nonsense.starts_with("HTTP/1.1 400 "), "{nonsense}");

    let answer = world.exchange("GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok"), "the server goes on: {answer}");
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let world = World::new().await;
    let limit = listwatch_apiserver::REQUEST_BODY_BYTES_MAX;
    let mut stream = world.connect(b"http/1.1").await;
    let head = format!(
        "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\n{}Content-Length: {}\r\nConnection: close\r\n\r\n",
        world.bearer(),
        limit + 1
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(&vec![b' '; limit + 1]).await;
    let answer = read_until(&mut stream, "\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

#[tokio::test]
async fn shutdown_lets_requests_finish_and_then_closes() {
    let world = World::new().await;
    let mut idle = world.connect(b"http/1.1").await;
    let address = world.address();
    world.server.shutdown();
    let readyz = world.exchange("GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(readyz.starts_with("HTTP/1.1 500 ") && readyz.contains("[-]shutdown failed"), "{readyz}");
    tokio::time::timeout(PATIENCE, world.serving.shutdown()).await.expect("shutdown ends");
    assert!(read_to_end(&mut idle).await.is_empty());
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn the_kubeconfig_of_a_free_port_opens_the_server_it_belongs_to() {
    let server = ApiServer::builder().auth(Auth::Token("a-token-of-the-test".to_owned())).build().await.expect("built");
    let served = server.serve_on_free_port().await.expect("served");
    assert!(served.kubeconfig().contains("token: a-token-of-the-test\n"), "{}", served.kubeconfig());
    assert!(served.kubeconfig().contains(&served.address().to_string()));
}

#[tokio::test]
async fn a_protobuf_body_is_understood_and_a_broken_one_refused() {
    let world = World::new().await;
    // What `kubectl create namespace web` sends: k8s\0, then Unknown{TypeMeta, raw}.
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
