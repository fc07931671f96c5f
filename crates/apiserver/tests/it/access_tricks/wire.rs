//! Tests malformed bytes on a connection: ambiguous HTTP/1.1 heads, requests inside other bodies (request smuggling),
//! and HTTP/2 frames with invalid pseudo headers.

use std::net::{SocketAddr, TcpListener};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

/// The read timeout of a connection that the server may keep open.
const QUIET: Duration = Duration::from_millis(300);
/// The read timeout of a connection on which an answer must come.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends bytes, and returns all bytes that the server sends until the connection closes or is quiet for [`QUIET`].
async fn answers(address: SocketAddr, bytes: &[u8]) -> String {
    answers_until(address, bytes, |_| true).await
}

/// Sends bytes as [`answers`] does, but waits up to [`PATIENCE`] for each read until the answer is complete.
async fn answers_until(address: SocketAddr, bytes: &[u8], is_complete: impl Fn(&str) -> bool) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    stream.write_all(bytes).await.expect("sent");
    let (mut all, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    let mut wait = if is_complete("") { QUIET } else { PATIENCE };
    while let Ok(Ok(count @ 1..)) = tokio::time::timeout(wait, stream.read(&mut buffer)).await {
        all.extend_from_slice(&buffer[..count]);
        if is_complete(&String::from_utf8_lossy(&all)) {
            wait = QUIET;
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// Whether an answer has the data of the Secret.
fn has_secret(text: &str) -> bool {
    text.contains(SECRET_DATA)
}

#[tokio::test]
async fn ambiguous_http1_head_or_smuggled_request_cannot_read_a_secret() {
    let target = Target::start().await;
    let serving = target.0.serve_plain(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let address = serving.address();
    let get = |path: &str, rest: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\n{rest}\r\n");
    let admin = "Authorization: Bearer admins\r\n";
    let bob = "Authorization: Bearer bobs\r\n";
    let secret = get(SECRET_PATH, admin);
    let plain = answers_until(address, secret.as_bytes(), has_secret).await;
    assert!(has_secret(&plain), "the plain request is right: {plain:?}");
    // The body of a request of bob is a request of nobody, or the head names the token in a way that is none.
    let inner = get(SECRET_PATH, "");
    let post = |framing: &str, body: &str| {
        format!("POST {MAPS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{bob}{framing}\r\n{body}")
    };
    let chunked = format!("{:x}\r\n{inner}\r\n0\r\n\r\n", inner.len());
    for bytes in [
        post("Content-Length: 0\r\n", &inner),
        post(&format!("Content-Length: {}\r\nTransfer-Encoding: chunked\r\n", chunked.len()), &chunked),
        post("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", &chunked),
        post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", &chunked),
        post("Transfer-Encoding: xchunked\r\n", &chunked),
        post("Transfer-Encoding : chunked\r\n", &chunked),
        post("Transfer-Encoding:\u{b}chunked\r\n", &chunked),
        post("Content-Length: 0\r\nContent-Length: 5\r\n", &inner),
        post("Content-Length: +0\r\n", &inner),
        post("Content-Length: 0, 5\r\n", &inner),
        post("Transfer-Encoding: chunked\r\n", &format!("0;ext=\n\r\n\r\n{inner}")),
        post("Transfer-Encoding: chunked\r\n", &format!("0\r\nAuthorization: Bearer admins\r\n\r\n{inner}")),
        post("Expect: 100-continue\r\nContent-Length: 0\r\n", &inner),
        // Odd lines of a head.
        get(SECRET_PATH, "Authorization : Bearer admins\r\n"),
        get(SECRET_PATH, " Authorization: Bearer admins\r\n"),
        get(SECRET_PATH, "X: a\r\n Authorization: Bearer admins\r\n"),
        get(SECRET_PATH, "X: a\rAuthorization: Bearer admins\r\n"),
        get(SECRET_PATH, "X: a\0\r\nAuthorization\0: Bearer admins\r\n"),
        get(SECRET_PATH, "Authorization: Bearer bobs\r\nAuthorization: Bearer admins\r\n"),
        get(SECRET_PATH, "Authorization: Bearer\r\n admins\r\n"),
        get(SECRET_PATH, "Authorization_: Bearer admins\r\n"),
        get(&format!("{SECRET_PATH} HTTP/1.1\r\nX: y"), bob),
        format!("GET {SECRET_PATH}\r\n\r\n"),
        format!("GET\t{SECRET_PATH}\tHTTP/1.1\r\nHost: x\r\n{bob}\r\n"),
        format!("GET http://x{SECRET_PATH} HTTP/1.1\r\nHost: x\r\n{bob}\r\n"),
        format!("GET //x{SECRET_PATH} HTTP/1.1\r\nHost: x\r\n{bob}\r\n"),
        format!("CONNECT x:443 HTTP/1.1\r\nHost: x\r\n{bob}\r\n{inner}"),
        format!("GET {SECRET_PATH} HTTP/1.0\r\n{bob}\r\n"),
        format!("GET {SECRET_PATH} HTTP/3.0\r\nHost: x\r\n{bob}\r\n"),
        format!("{}GET {SECRET_PATH} HTTP/1.1\r\nHost: x\r\n\r\n", get("/version", bob)),
    ] {
        let text = answers(address, bytes.as_bytes()).await;
        assert!(!text.contains(SECRET_DATA), "{bytes:?}: {text}");
    }
    let plain = answers_until(address, secret.as_bytes(), has_secret).await;
    assert!(has_secret(&plain), "the server still serves: {plain:?}");
}

#[tokio::test]
async fn identity_of_a_request_does_not_apply_to_the_next_request_on_a_connection() {
    let target = Target::start().await;
    let serving = target.0.serve_plain(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let get = |path: &str, rest: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\n{rest}\r\n");
    let admin = "Authorization: Bearer admins\r\n";
    let as_bob = "Authorization: Bearer admins\r\nImpersonate-User: bob\r\n";
    for second in ["", "Authorization: Bearer bobs\r\n", as_bob, "Authorization: Bearer wrong\r\n"] {
        let both = get("/api/v1/namespaces/default", admin) + &get(SECRET_PATH, second);
        let is_rejected = |text: &str| text.contains("HTTP/1.1 403 ") || text.contains("HTTP/1.1 401 ");
        let text = answers_until(serving.address(), both.as_bytes(), is_rejected).await;
        assert!(text.starts_with("HTTP/1.1 200 ") && !text.contains(SECRET_DATA), "{second:?}: {text}");
        assert!(is_rejected(&text), "{second:?}: {text}");
    }
}

/// Encodes an HPACK field without index and without compression (RFC 7541, section 6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| {
        let length = u8::try_from(text.len()).ok().filter(|length| *length < 127).expect("a short text");
        [&[length], text.as_bytes()].concat()
    };
    [vec![0], text(name), text(value)].concat()
}

/// Encodes a request on stream `id` as HTTP/2 frames.
fn headers_frame(id: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    let block: Vec<u8> = fields.iter().flat_map(|(name, value)| field(name, value)).collect();
    let length = u16::try_from(block.len()).expect("a short block").to_be_bytes();
    // END_STREAM and END_HEADERS.
    [&[0, length[0], length[1], 1, 5, 0, 0, 0, id], &block[..]].concat()
}

#[tokio::test]
async fn http2_request_with_invalid_or_repeated_pseudo_headers_cannot_read_a_secret() {
    let target = Target::start().await;
    let serving = target.0.serve_plain(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    let open = |requests: &[&[(&str, &str)]]| {
        let frames = requests.iter().zip([1, 3, 5]).flat_map(|(fields, id)| headers_frame(id, fields));
        preface.iter().copied().chain(frames).collect::<Vec<u8>>()
    };
    let (method, scheme) = ((":method", "GET"), (":scheme", "http"));
    let (authority, path) = ((":authority", "x"), (":path", SECRET_PATH));
    let (admin, bob) = (("authorization", "Bearer admins"), ("authorization", "Bearer bobs"));
    let plain = open(&[&[method, scheme, authority, path, admin]]);
    let plain = answers_until(serving.address(), &plain, has_secret).await;
    assert!(has_secret(&plain), "the plain request is right: {plain:?}");
    let version = (":path", "/version");
    for requests in [
        &[&[method, scheme, authority, path, bob][..]][..],
        &[&[method, scheme, authority, path]],
        &[&[method, scheme, authority, version, path, bob]],
        &[&[method, scheme, authority, path, version]],
        &[&[method, scheme, authority, version, bob, path]],
        &[&[method, method, scheme, authority, path, bob]],
        &[&[(":method", "get"), scheme, authority, path, bob]],
        &[&[(":method", "CONNECT"), authority, bob], &[method, scheme, authority, path]],
        &[&[(":method", "CONNECT"), (":protocol", "websocket"), scheme, authority, path, bob]],
        &[&[method, scheme, authority, (":path", ""), bob]],
        &[&[method, scheme, authority, (":path", "http://x/api/v1/namespaces/default/secrets/s"), bob]],
        &[&[method, scheme, authority, (":path", "api/v1/namespaces/default/secrets/s"), bob]],
        &[&[method, (":scheme", "admins"), authority, path, bob]],
        &[&[method, scheme, (":authority", "admins@x"), path, bob]],
        &[&[method, scheme, authority, path, bob, admin]],
        &[&[method, scheme, authority, path, ("Authorization", "Bearer admins")]],
        &[&[method, scheme, authority, path, (":authorization", "Bearer admins")]],
        &[&[method, scheme, authority, path, ("connection", "authorization"), bob]],
        &[&[method, scheme, authority, path, ("te", "chunked"), bob]],
        &[&[method, scheme, authority, path, ("host", "y"), bob]],
        &[&[method, scheme, authority, path, ("x", "a\r\nauthorization: Bearer admins")]],
        // The second request of a connection is not that of the first one's user.
        &[&[method, scheme, authority, version, admin], &[method, scheme, authority, path]],
        &[&[method, scheme, authority, version, admin], &[method, scheme, authority, path, bob]],
    ] {
        let text = answers_until(serving.address(), &open(requests), |text| !text.is_empty()).await;
        assert!(!text.contains(SECRET_DATA), "{requests:?}: {text:?}");
        assert!(!text.is_empty(), "{requests:?}: the server answers");
    }
}
