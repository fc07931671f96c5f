//! Tests backends that are slow, endless or silent. Each test ends within seconds by the limit in its name.

use std::future::Future;
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use listwatch_proxy::{Destination, Limits, Proxy, ProxyErrorKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::backend::{Backend, MOMENT, get, outcome, read_header};

/// Fails the test if the future takes longer than all limits of the proxy.
async fn bounded<T>(waiting: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("the proxy waits without a limit")
}

#[tokio::test]
async fn request_to_a_silent_backend_fails_after_the_header_timeout() {
    let backend = Backend::start(|mut stream| async move {
        read_header(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let proxy = Proxy::new(Limits { header_timeout: MOMENT, ..Limits::default() });
    let error = bounded(proxy.handle(get("/"), &backend.at(&proxy, "/"))).await.unwrap_err();
    assert!(matches!(error.kind(), ProxyErrorKind::HeaderTimeout { .. }), "{error}");
    assert_eq!(error.to_string(), "error trying to reach service: net/http: timeout awaiting response headers");
}

#[tokio::test]
async fn request_to_a_silent_tls_backend_fails_after_the_handshake_timeout() {
    let backend = Backend::start(|mut stream| async move {
        let mut hello = Vec::new();
        let _ = stream.read_to_end(&mut hello).await;
    })
    .await;
    let proxy = Proxy::new(Limits { tls_handshake_timeout: MOMENT, ..Limits::default() });
    let settings = listwatch_proxy::TlsSettings { insecure_skip_verify: true, ..Default::default() };
    let transport = proxy.tls_transport(settings).unwrap();
    let to = Destination::new(transport, "127.0.0.1", backend.port, "/");
    let error = bounded(proxy.handle(get("/"), &to)).await.unwrap_err();
    assert_eq!(error.to_string(), "error trying to reach service: net/http: TLS handshake timeout");
}

#[tokio::test]
async fn endless_response_header_fails_at_the_byte_limit() {
    let backend = Backend::start(|mut stream| async move {
        read_header(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n").await.unwrap();
        let line = format!("x-filler: {}\r\n", "a".repeat(1000));
        while stream.write_all(line.as_bytes()).await.is_ok() {}
    })
    .await;
    let proxy = Proxy::new(Limits { header_timeout: Duration::from_secs(30), ..Limits::default() });
    let error = bounded(proxy.handle(get("/"), &backend.at(&proxy, "/"))).await.unwrap_err();
    assert!(matches!(error.kind(), ProxyErrorKind::Response(_)), "{error:?}");
    assert_eq!(error.to_text().0, 503);
}

#[tokio::test]
async fn slow_response_header_fails_after_the_header_timeout() {
    let backend = Backend::start(|mut stream| async move {
        read_header(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nx: ").await.unwrap();
        while stream.write_all(b"a").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let proxy = Proxy::new(Limits { header_timeout: MOMENT, ..Limits::default() });
    let error = bounded(proxy.handle(get("/"), &backend.at(&proxy, "/"))).await.unwrap_err();
    assert!(matches!(error.kind(), ProxyErrorKind::HeaderTimeout { .. }), "{error}");
}

#[tokio::test]
async fn endless_interim_responses_fail_after_the_header_timeout() {
    let backend = Backend::start(|mut stream| async move {
        read_header(&mut stream).await;
        while stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let proxy = Proxy::new(Limits { header_timeout: MOMENT, ..Limits::default() });
    let error = bounded(proxy.handle(get("/"), &backend.at(&proxy, "/"))).await.unwrap_err();
    assert!(matches!(error.kind(), ProxyErrorKind::HeaderTimeout { .. }), "{error}");
}

#[tokio::test]
async fn endless_response_body_is_cut_off_after_the_total_timeout() {
    let backend = Backend::start(|mut stream| async move {
        read_header(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
        while stream.write_all(b"1\r\na\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let proxy = Proxy::new(Limits::default());
    let to = Destination { total_timeout: Some(Duration::from_secs(5)), ..backend.at(&proxy, "/") };
    let begun = Instant::now();
    let mut body = bounded(proxy.handle(get("/"), &to)).await.unwrap().into_body();
    let mut frames = 0;
    let error = loop {
        match bounded(body.frame()).await {
            Some(Ok(_)) => frames += 1,
            Some(Err(error)) => break error,
            None => panic!("an endless body ended cleanly after {frames} frames"),
        }
    };
    assert_eq!(error.to_string(), "the body of the backend was interrupted: it exceeded its time limit");
    assert!(frames > 0 && begun.elapsed() < Duration::from_secs(30), "{frames} frames, {:?}", begun.elapsed());
}

#[tokio::test]
async fn slow_client_applies_backpressure_to_the_backend() {
    // The backend reports the number of bytes that it wrote before the proxy stopped reading.
    let (report, mut written) = tokio::sync::mpsc::channel(1);
    let backend = Backend::start(move |mut stream| {
        let report = report.clone();
        async move {
            read_header(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let (mut bytes, piece) = (0_usize, [0; 64 * 1024]);
            while let Ok(Ok(length)) = tokio::time::timeout(Duration::from_millis(500), stream.write(&piece)).await {
                bytes += length;
            }
            report.send(bytes).await.unwrap();
        }
    })
    .await;
    let proxy = Proxy::new(Limits::default());
    let response = bounded(proxy.handle(get("/"), &backend.at(&proxy, "/"))).await.unwrap();
    let bytes = bounded(written.recv()).await.unwrap();
    assert!(bytes < 64 * 1024 * 1024, "the proxy took {bytes} bytes that nobody reads");
    drop(response);
}

#[tokio::test]
async fn connection_over_the_limit_is_rejected_until_a_slot_is_free() {
    let backend = Backend::answering("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n").await;
    let proxy = Proxy::new(Limits { connections_max: 2, ..Limits::default() });
    let to = backend.at(&proxy, "/");
    let first = proxy.handle(get("/"), &to).await.unwrap();
    let second = proxy.handle(get("/"), &to).await.unwrap();
    let error = proxy.handle(get("/"), &to).await.unwrap_err();
    assert_eq!(error.kind(), &ProxyErrorKind::TooManyConnections(2));
    assert_eq!((error.to_text().0.as_u16(), error.to_status().code), (429, 429));
    drop((first, second));
    let retried = async {
        while proxy.handle(get("/"), &to).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    bounded(retried).await;
}

#[tokio::test]
async fn malformed_response_of_the_backend_becomes_503() {
    for answer in ["nonsense\r\n\r\n", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"] {
        let backend = Backend::answering(answer).await;
        let proxy = Proxy::new(Limits { header_timeout: MOMENT, ..Limits::default() });
        let failed = bounded(async { outcome(proxy.handle(get("/"), &backend.at(&proxy, "/")).await).await }).await;
        let text = failed.unwrap_err();
        assert!(text.starts_with("error trying to reach service: "), "{answer:?}: {text}");
    }
}
