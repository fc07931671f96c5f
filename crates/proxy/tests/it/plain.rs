//! Tests plain requests: headers, streaming, reuse, retries, redirects.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use listwatch_proxy::{Destination, ExternalLocation, Limits, Proxy, Redirects};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::backend::{Backend, get, outcome, read_header};

#[tokio::test]
async fn request_reaches_the_backend_with_forwarding_headers() {
    let (seen, mut headers) = mpsc::channel(1);
    let backend = Backend::start(move |mut stream| {
        let seen = seen.clone();
        async move {
            let header = read_header(&mut stream).await;
            stream
                .write_all(b"HTTP/1.1 204 No Content\r\naccess-control-allow-origin: *\r\nx-a: b\r\n\r\n")
                .await
                .unwrap();
            seen.send(header).await.unwrap();
        }
    })
    .await;
    let proxy = Proxy::new(Limits::default());
    let mut to = backend.at(&proxy, "/apis/g/v1/things/?limit=5");
    to.client_address = Some(IpAddr::from([10, 1, 2, 3]));
    to.external = ExternalLocation { scheme: "https".into(), host: "api:6443".into(), path_prefix: String::new() };
    let request = Request::get("/apis/g/v1/things/?limit=5")
        .header("host", "api.example")
        .header("connection", "keep-alive, x-hop")
        .header("x-hop", "1")
        .header("accept", "application/json")
        .body(http_body_util::Empty::<Bytes>::new())
        .unwrap();
    let response = proxy.handle(request, &to).await.unwrap();
    assert_eq!(response.status(), 204);
    assert_eq!(response.headers().get("x-a").unwrap(), "b");
    assert!(!response.headers().contains_key("access-control-allow-origin"));
    let header = headers.recv().await.unwrap();
    let mut lines: Vec<&str> = header.trim_end().lines().collect();
    assert_eq!(lines.remove(0), "GET /apis/g/v1/things/?limit=5 HTTP/1.1");
    lines.sort_unstable();
    let host = format!("host: 127.0.0.1:{}", backend.port);
    let expected = [
        "accept: application/json",
        host.as_str(),
        "x-forwarded-for: 10.1.2.3",
        "x-forwarded-host: api:6443",
        "x-forwarded-proto: https",
        "x-forwarded-uri: /apis/g/v1/things/",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn watch_frames_are_streamed_and_client_disconnect_ends_the_backend_request() {
    let (go, gone) = (Arc::new(tokio::sync::Notify::new()), Arc::new(AtomicBool::new(false)));
    let (next, ended) = (Arc::clone(&go), Arc::clone(&gone));
    let backend = Backend::start(move |mut stream| {
        let (next, ended) = (Arc::clone(&next), Arc::clone(&ended));
        async move {
            read_header(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
            for frame in ["3\r\nadd\r\n", "6\r\nmodify\r\n"] {
                next.notified().await;
                stream.write_all(frame.as_bytes()).await.unwrap();
            }
            let closed = stream.read(&mut [0]).await;
            ended.store(matches!(closed, Ok(0) | Err(_)), Ordering::SeqCst);
        }
    })
    .await;
    let proxy = Proxy::new(Limits::default());
    let to = backend.at(&proxy, "/watch");
    // The header arrives before any frame.
    let mut body = proxy.handle(get("/watch"), &to).await.unwrap().into_body();
    for frame in ["add", "modify"] {
        go.notify_one();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), frame);
    }
    drop(body);
    for _ in 0..100 {
        if gone.load(Ordering::SeqCst) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the backend still sends to a client that has gone");
}

#[tokio::test]
async fn request_body_is_forwarded_with_trailers() {
    let backend = Backend::start(|mut stream| async move {
        let header = read_header(&mut stream).await;
        assert!(header.contains("transfer-encoding: chunked"), "{header}");
        let mut body = Vec::new();
        while !body.ends_with(b"x-sum: 7\r\n\r\n") {
            let mut bytes = [0; 1024];
            let length = stream.read(&mut bytes).await.unwrap();
            assert!(length > 0, "the request ended without its trailer: {:?}", String::from_utf8_lossy(&body));
            body.extend_from_slice(&bytes[..length]);
        }
        let answer =
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-end\r\n\r\n2\r\nok\r\n0\r\nx-end: 1\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    let proxy = Proxy::new(Limits::default());
    let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "7".parse().unwrap())]);
    let data = |part: &'static str| Ok(Frame::data(Bytes::from_static(part.as_bytes())));
    let body = StreamBody::new(futures(vec![data("one"), data("two"), Ok(Frame::trailers(trailers))]));
    let request = Request::post("/upload").header("trailer", "x-sum").header("te", "trailers").body(body).unwrap();
    let response = proxy.handle(request, &backend.at(&proxy, "/upload")).await.unwrap();
    let collected = response.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["x-end"], "1");
    assert_eq!(collected.to_bytes(), "ok");
}

#[tokio::test]
async fn idle_connection_is_reused_for_the_next_request() {
    let backend = Backend::answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let proxy = Proxy::new(Limits::default());
    let to = backend.at(&proxy, "/");
    for _ in 0..5 {
        assert_eq!(outcome(proxy.handle(get("/"), &to).await).await, Ok((200, "ok".to_owned())));
    }
    assert_eq!(backend.connections(), 1);
}

/// Starts a backend that answers one request, and closes the connection when the next request arrives.
async fn forgetful() -> Backend {
    Backend::start(|mut stream| async move {
        read_header(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        read_header(&mut stream).await;
    })
    .await
}

#[tokio::test]
async fn get_is_retried_when_a_reused_connection_closes() {
    let backend = forgetful().await;
    let proxy = Proxy::new(Limits::default());
    let to = backend.at(&proxy, "/");
    for _ in 0..2 {
        assert_eq!(outcome(proxy.handle(get("/"), &to).await).await, Ok((200, "ok".to_owned())));
    }
    assert_eq!(backend.connections(), 2);
}

#[tokio::test]
async fn post_is_not_retried_when_a_reused_connection_closes() {
    let backend = forgetful().await;
    let proxy = Proxy::new(Limits::default());
    let to = backend.at(&proxy, "/");
    let post = || Request::post("/").body(Full::new(Bytes::from_static(b"{}"))).unwrap();
    let first = Backend::start(|mut stream| async move {
        read_header(&mut stream).await;
    })
    .await;
    let failed = outcome(proxy.handle(post(), &first.at(&proxy, "/")).await).await.unwrap_err();
    assert!(failed.starts_with("error trying to reach service: "), "{failed}");
    assert_eq!(first.connections(), 1);
    assert_eq!(outcome(proxy.handle(get("/"), &to).await).await, Ok((200, "ok".to_owned())));
}

#[tokio::test]
async fn redirect_is_rejected_or_rewritten_but_not_followed() {
    let answer = "HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n";
    let backend = Backend::answering(answer).await;
    let proxy = Proxy::new(Limits::default());
    let to = backend.at(&proxy, "/");
    let refused = "the backend attempted to redirect this request, which is not permitted".to_owned();
    assert_eq!(outcome(proxy.handle(get("/"), &to).await).await, Ok((502, refused)));
    let external = ExternalLocation { path_prefix: "/proxy".to_owned(), ..ExternalLocation::default() };
    let to = Destination { redirects: Redirects::PassOn, external, ..to };
    let response = proxy.handle(get("/"), &to).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), response.headers()["location"].to_str().unwrap()),
        (302, "/proxy/elsewhere")
    );
    drop(response);
    let refusals = Backend::answering("HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\ngone").await;
    let found = outcome(proxy.handle(get("/"), &refusals.at(&proxy, "/")).await).await;
    assert_eq!(found, Ok((404, "gone".to_owned())), "a response of the backend is passed on");
}

#[tokio::test]
async fn unreachable_backend_returns_503_with_gos_text() {
    let port = {
        let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        free.local_addr().unwrap().port()
    };
    let proxy = Proxy::new(Limits::default());
    let to = Destination::new(proxy.plain_transport(), "127.0.0.1", port, "/");
    let error = proxy.handle(get("/"), &to).await.unwrap_err();
    let text = format!("error trying to reach service: dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!(error.to_text(), (http::StatusCode::SERVICE_UNAVAILABLE, text.clone()));
    assert_eq!((error.to_status().code, error.to_status().message), (503, text));
}

/// Go names the address that it dialed, not the host.
#[tokio::test]
async fn unreachable_host_name_is_reported_with_its_first_address() {
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let first = tokio::net::lookup_host(("localhost", port)).await.unwrap().next().unwrap();
    let proxy = Proxy::new(Limits::default());
    let to = Destination::new(proxy.plain_transport(), "localhost", port, "/");
    let text = proxy.handle(get("/"), &to).await.unwrap_err().to_text().1;
    assert_eq!(text, format!("error trying to reach service: dial tcp {first}: connect: connection refused"));
    let to = Destination::new(proxy.plain_transport(), "no-such-host.invalid", port, "/");
    let text = proxy.handle(get("/"), &to).await.unwrap_err().to_text().1;
    assert_eq!(text, "error trying to reach service: dial tcp: lookup no-such-host.invalid: no such host");
}

#[tokio::test]
async fn interrupted_request_body_is_reported_as_a_client_fault() {
    let backend = Backend::start(|mut stream| async move {
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all).await;
    })
    .await;
    let proxy = Proxy::new(Limits::default());
    let frames = futures(vec![Ok(Frame::data(Bytes::from_static(b"part"))), Err(std::io::Error::other("client left"))]);
    let request = Request::post("/").body(StreamBody::new(frames)).unwrap();
    let error = proxy.handle(request, &backend.at(&proxy, "/")).await.unwrap_err();
    assert_eq!(error.to_text(), (http::StatusCode::BAD_REQUEST, "client left".to_owned()));
}

/// Creates a stream of the given frames.
fn futures(
    frames: Vec<Result<Frame<Bytes>, std::io::Error>>,
) -> impl futures_core::Stream<Item = Result<Frame<Bytes>, std::io::Error>> + Send + 'static {
    futures_util::stream::iter(frames)
}
