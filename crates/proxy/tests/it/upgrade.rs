//! Tests upgrades between a client, a server that contains the proxy, and a backend.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use listwatch_proxy::{Destination, IncompleteBody, Limits, Proxy, ProxyErrorKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::backend::{Backend, MOMENT, get, read_header};

const ASK: &str = "POST /exec?command=sh HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\
                   x-stream-protocol-version: v4.channel.k8s.io\r\ncontent-length: 0\r\n\r\n";
const SWITCH: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\n";

/// Starts a server that forwards every request to a backend, as an API server does.
async fn server(proxy: Proxy, backend: &Backend) -> SocketAddr {
    let to = backend.at(&proxy, "/exec?command=sh");
    server_to(proxy, to).await
}

async fn server_to(proxy: Proxy, to: Destination) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (proxy, to) = (proxy.clone(), to.clone());
            let answer = service_fn(move |request: Request<Incoming>| {
                let (proxy, to) = (proxy.clone(), to.clone());
                async move {
                    let response: Response<UnsyncBoxBody<Bytes, IncompleteBody>> =
                        match proxy.handle(request, &to).await {
                            Ok(response) => response.map(|body| body.boxed_unsync()),
                            Err(error) => {
                                let (code, text) = error.to_text();
                                let body = http_body_util::Full::new(Bytes::from(text)).map_err(|never| match never {});
                                Response::builder().status(code).body(body.boxed_unsync()).unwrap()
                            }
                        };
                    Ok::<_, Infallible>(response)
                }
            });
            let builder = hyper::server::conn::http1::Builder::new();
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), answer).with_upgrades());
        }
    });
    address
}

/// Sends the upgrade request and returns the connection with the header of the response.
async fn ask(address: SocketAddr) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(ASK.as_bytes()).await.unwrap();
    let header = tokio::time::timeout(Duration::from_secs(20), read_header(&mut stream)).await.unwrap();
    (stream, header)
}

/// Reads the rest of a connection until its end.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let reading = stream.read_to_end(&mut bytes);
    let _ = tokio::time::timeout(Duration::from_secs(20), reading).await.expect("the connection stays open");
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn upgraded_connection_copies_bytes_both_ways() {
    let backend = Backend::start(|mut stream| async move {
        let header = read_header(&mut stream).await;
        assert!(header.starts_with("POST /exec?command=sh HTTP/1.1\r\n"), "{header}");
        for line in ["connection: Upgrade", "upgrade: SPDY/3.1", "x-stream-protocol-version: v4.channel.k8s.io"] {
            assert!(header.contains(line), "{line} is missing: {header}");
        }
        // The first bytes come together with the handshake.
        stream.write_all(&[SWITCH, b"hello "].concat()).await.unwrap();
        let mut question = Vec::new();
        // The client closes its direction. The backend then responds.
        stream.read_to_end(&mut question).await.unwrap();
        stream.write_all(&question).await.unwrap();
    })
    .await;
    let address = server(Proxy::new(Limits::default()), &backend).await;
    let (mut stream, header) = ask(address).await;
    assert!(header.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{header}");
    assert!(header.contains("upgrade: SPDY/3.1"), "{header}");
    stream.write_all(b"world").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(rest(&mut stream).await, "hello world");
}

#[tokio::test]
async fn half_closed_upgrade_ends_after_the_half_closed_timeout() {
    let backend = Backend::start(|mut stream| async move {
        read_header(&mut stream).await;
        stream.write_all(SWITCH).await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let address = server(Proxy::new(Limits { half_closed_timeout: MOMENT, ..Limits::default() }), &backend).await;
    let (mut stream, header) = ask(address).await;
    assert!(header.starts_with("HTTP/1.1 101"), "{header}");
    stream.shutdown().await.unwrap();
    assert_eq!(rest(&mut stream).await, "");
}

#[tokio::test]
async fn upgrade_rejected_by_the_backend_returns_its_response() {
    let backend =
        Backend::answering("HTTP/1.1 403 Forbidden\r\nx-why: rules\r\ncontent-length: 9\r\n\r\nforbidden").await;
    let address = server(Proxy::new(Limits::default()), &backend).await;
    let (mut stream, header) = ask(address).await;
    assert!(header.starts_with("HTTP/1.1 403 Forbidden\r\n") && header.contains("x-why: rules"), "{header}");
    let mut body = [0; 9];
    stream.read_exact(&mut body).await.unwrap();
    assert_eq!(&body, b"forbidden");
}

#[tokio::test]
async fn endless_body_of_a_rejected_upgrade_is_cut_off_at_the_byte_limit() {
    let backend = Backend::start(|mut stream| async move {
        read_header(&mut stream).await;
        stream.write_all(b"HTTP/1.1 500 Oops\r\n\r\n").await.unwrap();
        while stream.write_all(&[b'a'; 1000]).await.is_ok() {}
    })
    .await;
    let address = server(Proxy::new(Limits { refusal_bytes_max: 10_000, ..Limits::default() }), &backend).await;
    let (mut stream, header) = ask(address).await;
    assert!(header.starts_with("HTTP/1.1 500"), "{header}");
    let length = rest(&mut stream).await.len();
    assert!(length <= 11_000, "{length} bytes of a refusal were relayed");
}

#[tokio::test]
async fn slow_body_of_a_rejected_upgrade_is_cut_off_after_its_timeout() {
    let backend = Backend::start(|mut stream| async move {
        read_header(&mut stream).await;
        stream.write_all(b"HTTP/1.1 500 Oops\r\ncontent-length: 1000\r\n\r\na").await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    // The first byte of the body must be copied within this time, also on a slow machine.
    let limits = Limits { refusal_timeout: Duration::from_secs(5), ..Limits::default() };
    let address = server(Proxy::new(limits), &backend).await;
    let (mut stream, header) = ask(address).await;
    assert!(header.starts_with("HTTP/1.1 500"), "{header}");
    assert_eq!(rest(&mut stream).await, "a");
}

#[tokio::test]
async fn upgrade_answered_with_200_is_an_invalid_upgrade() {
    let backend = Backend::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let address = server(Proxy::new(Limits::default()), &backend).await;
    let (mut stream, header) = ask(address).await;
    assert!(header.starts_with("HTTP/1.1 503"), "{header}");
    let mut body = vec![0; 41];
    stream.read_exact(&mut body).await.unwrap();
    assert_eq!(String::from_utf8(body).unwrap(), "invalid upgrade response: status code 200");
}

#[tokio::test]
async fn upgrade_without_a_response_fails_after_the_header_timeout() {
    let backend = Backend::start(|mut stream| async move {
        read_header(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let address = server(Proxy::new(Limits { header_timeout: MOMENT, ..Limits::default() }), &backend).await;
    let (_, header) = ask(address).await;
    assert!(header.starts_with("HTTP/1.1 503"), "{header}");
}

#[tokio::test]
async fn upgrade_over_the_limit_is_rejected_until_a_slot_is_free() {
    let backend = Backend::start(|mut stream| async move {
        read_header(&mut stream).await;
        stream.write_all(SWITCH).await.unwrap();
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all).await;
    })
    .await;
    let address = server(Proxy::new(Limits { upgrades_max: 1, ..Limits::default() }), &backend).await;
    let (first, header) = ask(address).await;
    assert!(header.starts_with("HTTP/1.1 101"), "{header}");
    let (_, header) = ask(address).await;
    assert!(header.starts_with("HTTP/1.1 429"), "{header}");
    drop(first);
    for _ in 0..6_000 {
        let (_, header) = ask(address).await;
        if header.starts_with("HTTP/1.1 101") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the seat of an ended upgrade is not returned");
}

#[tokio::test]
async fn dropping_the_proxy_closes_upgraded_connections() {
    let backend = Backend::start(|mut stream| async move {
        read_header(&mut stream).await;
        stream.write_all(SWITCH).await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let proxy = Proxy::new(Limits::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let to = backend.at(&proxy, "/exec");
    let serving = async move {
        let (stream, _) = listener.accept().await.unwrap();
        // The proxy lives in the closure, which ends with the connection's task.
        let (ended, end) = tokio::sync::oneshot::channel::<()>();
        let held = proxy.clone();
        let answer = service_fn(move |request: Request<Incoming>| {
            let (proxy, to) = (proxy.clone(), to.clone());
            async move { Ok::<_, Infallible>(proxy.handle(request, &to).await.unwrap()) }
        });
        let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
        tokio::spawn(async move {
            let _ = connection.with_upgrades().await;
            let _ = ended.send(());
        });
        let _ = end.await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        drop(held);
    };
    tokio::spawn(serving);
    let (mut stream, header) = ask(address).await;
    assert!(header.starts_with("HTTP/1.1 101"), "{header}");
    assert_eq!(rest(&mut stream).await, "");
}

#[tokio::test]
async fn upgrade_of_a_connection_without_upgrade_support_is_rejected() {
    let backend = Backend::answering(SWITCH).await;
    let proxy = Proxy::new(Limits::default());
    let mut request = get("/exec");
    request.headers_mut().insert("connection", "Upgrade".parse().unwrap());
    let error = proxy.handle(request, &backend.at(&proxy, "/exec")).await.unwrap_err();
    assert_eq!(error.kind(), &ProxyErrorKind::NotUpgradable);
    assert_eq!(backend.connections(), 0, "the backend was dialed for nothing");
}

/// Plain and upgrade requests arrive at the backend with the headers of the destination. The client's `Connection`
/// header cannot remove them.
#[tokio::test]
async fn client_cannot_remove_the_headers_of_the_destination() {
    let names = ["x-remote-user", "x-remote-uid", "x-remote-group", "x-remote-extra-scopes", "audit-id"];
    let (seen, mut headers) = tokio::sync::mpsc::unbounded_channel();
    let backend = Backend::start(move |mut stream| {
        let seen = seen.clone();
        async move {
            let header = read_header(&mut stream).await;
            let is_upgrade = header.to_lowercase().contains("upgrade: spdy/3.1");
            let plain = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            stream.write_all(if is_upgrade { SWITCH } else { plain }).await.unwrap();
            seen.send(header.to_lowercase()).unwrap();
        }
    })
    .await;
    let proxy = Proxy::new(Limits::default());
    let mut to = backend.at(&proxy, "/exec");
    for name in names {
        to.headers.append(name, "own".parse().unwrap());
    }
    to.headers.append("x-remote-group", "second".parse().unwrap());
    let address = server_to(proxy, to).await;
    for connection in ["keep-alive", "Upgrade"] {
        let forged: String = names.iter().map(|name| format!("{name}: forged\r\n")).collect();
        let upgrade = if connection == "Upgrade" { "upgrade: SPDY/3.1\r\n" } else { "" };
        let named = names.join(", ");
        let request = format!(
            "POST /exec HTTP/1.1\r\nhost: x\r\nconnection: {connection}, {named}\r\n{upgrade}{forged}\
             proxy-authorization: Basic x\r\nhttp2-settings: AAMAAABkAAQAAP__\r\ncontent-length: 0\r\n\r\n"
        );
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let header = tokio::time::timeout(Duration::from_secs(20), headers.recv()).await.unwrap().unwrap();
        for name in names {
            assert!(header.contains(&format!("{name}: own\r\n")), "{connection}: {name} is missing: {header}");
        }
        assert!(header.contains("x-remote-group: second\r\n"), "{header}");
        assert!(!header.contains("forged") && !header.contains("proxy-authorization"), "{header}");
        let named = header.lines().filter(|line| line.starts_with("connection:")).collect::<Vec<_>>().join("");
        assert!(!named.contains("x-remote"), "another proxy would remove the identity: {named}");
    }
}
