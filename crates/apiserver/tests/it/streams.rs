//! Tests many requests on one HTTP/2 connection.

use std::convert::Infallible;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use listwatch_apiserver::{ApiServer, Auth, Serving};
use listwatch_meta::Key;
use listwatch_storage::{MemoryStorage, Storage as _};
use tokio::net::TcpStream;

/// The time limit of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(60);
/// The number of bytes of one stream that a client accepts before it reads them.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;

struct World {
    server: ApiServer,
    store: Arc<MemoryStorage>,
    serving: Serving,
}

impl World {
    async fn new() -> Self {
        World::with_streams(300).await
    }

    /// Creates a server with a limit of streams per connection.
    async fn with_streams(streams_max: u32) -> Self {
        let store = MemoryStorage::new();
        let builder = ApiServer::builder().storage(store.clone()).auth(Auth::Token("secret".to_owned()));
        let server = builder.http2_max_streams_per_connection(streams_max).build().await.expect("a server");
        let serving = server.serve_plain(TcpListener::bind("127.0.0.1:0").expect("a port")).expect("listening");
        World { server, store, serving }
    }

    async fn create(&self, name: &str, bytes: usize) {
        let key = Key::new("configmaps", Some("shop"), name).expect("a key");
        let data = "x".repeat(bytes);
        let json = format!(
            r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"shop"}},"data":{{"d":"{data}"}}}}"#
        );
        self.store.create(&key, json.into(), None).await.expect("created");
    }

    async fn connect(&self) -> Client {
        self.connect_with_window(STREAM_WINDOW_BYTES).await
    }

    /// Connects a client with a flow-control window of `bytes` per response.
    async fn connect_with_window(&self, bytes: u32) -> Client {
        let stream = TcpStream::connect(self.serving.address()).await.expect("connected");
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(bytes)
            .initial_connection_window_size(8 << 20)
            .handshake(TokioIo::new(stream))
            .await
            .expect("a handshake");
        tokio::spawn(connection);
        Client(sender)
    }
}

#[derive(Clone)]
struct Client(SendRequest<BoxBody<Bytes, Infallible>>);

impl Client {
    async fn send(
        &self,
        method: Method,
        path: &str,
        token: &str,
        body: BoxBody<Bytes, Infallible>,
    ) -> Response<Incoming> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://x{path}"))
            .header("authorization", format!("Bearer {token}"))
            .body(body)
            .expect("a request");
        let answer = tokio::time::timeout(PATIENCE, self.0.clone().send_request(request)).await;
        answer.expect("an answer in time").expect("an answer")
    }

    async fn get(&self, path: &str) -> Response<Incoming> {
        self.send(Method::GET, path, "secret", Empty::new().boxed()).await
    }
}

async fn next(body: &mut Incoming) -> Bytes {
    let frame = tokio::time::timeout(PATIENCE, body.frame()).await.expect("in time");
    frame.expect("open").expect("well").into_data().expect("data")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_streams_do_not_block_other_streams_of_their_connection() {
    let world = World::new().await;
    for n in 0..400 {
        world.create(&format!("large-{n}"), 8 * 1024).await;
    }
    let client = world.connect().await;
    // Some clients accept the head of a long list and read none of its body.
    let mut stalled = Vec::new();
    for _ in 0..20 {
        stalled.push(client.get("/api/v1/namespaces/shop/configmaps").await);
    }
    let mut watches = Vec::new();
    for _ in 0..200 {
        let path =
            "/api/v1/namespaces/shop/configmaps?watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
        watches.push(client.get(path).await.into_body());
    }
    for n in 0..5 {
        world.create(&format!("small-{n}"), 10).await;
        for watch in &mut watches {
            let event = next(watch).await;
            let name = format!("\"name\":\"small-{n}\"");
            assert!(event.windows(name.len()).any(|window| window == name.as_bytes()), "{event:?}");
        }
    }
    let list = client.get("/api/v1/namespaces/shop/configmaps").await.into_body().collect();
    let list = tokio::time::timeout(PATIENCE, list).await.expect("in time").expect("whole").to_bytes();
    assert!(list.len() > 400 * 8 * 1024 && list.ends_with(b"]}\n"));
    // The stalled clients still receive their complete lists.
    for response in stalled {
        let list =
            tokio::time::timeout(PATIENCE, response.into_body().collect()).await.expect("in time").expect("whole");
        assert!(list.to_bytes().ends_with(b"]}\n"));
    }
}

/// A body of many pieces, with a count of the pieces that were read.
struct Pieces {
    left: usize,
    taken: Arc<AtomicUsize>,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        self.taken.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![b' '; 16 * 1024])))))
    }
}

#[tokio::test]
async fn rejected_upload_is_drained_then_answered() {
    let world = World::new().await;
    let client = world.connect().await;
    for (path, token, code) in [
        ("/api/v1/nonsense", "secret", 404),
        ("/api/v1/pods", "secret", 405),
        ("/api/v1/namespaces/shop/configmaps?timeout=nonsense", "secret", 400),
        ("/api/v1/namespaces/shop/configmaps", "wrong", 401),
    ] {
        let client = world.connect().await;
        let taken = Arc::new(AtomicUsize::new(0));
        let body = Pieces { left: 12, taken: Arc::clone(&taken) };
        let response = client.send(Method::POST, path, token, BoxBody::new(body)).await;
        assert_eq!(response.status(), code, "{path}");
        assert_eq!(taken.load(Ordering::Relaxed), 12, "the client was cut off while it was sending: {path}");
        response.into_body().collect().await.expect("a whole answer");
    }
    // The connection of an authenticated client can still be used.
    let body = Pieces { left: 12, taken: Arc::default() };
    assert_eq!(client.send(Method::POST, "/api/v1/nonsense", "secret", BoxBody::new(body)).await.status(), 404);
    assert_eq!(client.get("/api/v1/namespaces/shop/configmaps").await.status(), 200);
}

/// Returns the number of reads in flight from `/metrics`, without this request; `None` if no slot is free for the
/// request.
async fn reads_in_flight(client: &Client) -> Option<usize> {
    let response = client.get("/metrics").await;
    if response.status() != 200 {
        return None;
    }
    let body = response.into_body().collect().await.expect("whole").to_bytes();
    let text = std::str::from_utf8(&body).expect("text");
    let line = "apiserver_current_inflight_requests{request_kind=\"readOnly\"} ";
    let figure = text.lines().find_map(|found| found.strip_prefix(line)).expect("the figure");
    Some(figure.parse::<usize>().expect("a number") - 1)
}

/// Sends requests from clients that accept only a few bytes of the responses and never read them.
async fn stalled(world: &World, answers: usize, path: &str) -> Vec<Response<Incoming>> {
    let mut stalled = Vec::new();
    while stalled.len() < answers {
        let client = world.connect_with_window(16).await;
        for _ in 0..100.min(answers - stalled.len()) {
            let response = client.get(path).await;
            assert_eq!(response.status(), 200);
            stalled.push(response);
        }
    }
    stalled
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_are_aborted_when_requests_wait_for_slots() {
    let world = World::with_streams(100).await;
    for n in 0..4 {
        world.create(&format!("large-{n}"), 32 * 1024).await;
    }
    let client = world.connect().await;
    assert_eq!(reads_in_flight(&client).await, Some(0));
    // Lists produce their chunks on demand, and objects are the bytes of the cache.
    let mut unread = stalled(&world, 350, "/api/v1/namespaces/shop/configmaps").await;
    unread.extend(stalled(&world, 49, "/api/v1/namespaces/shop/configmaps/large-1").await);
    let in_flight = reads_in_flight(&client).await;
    assert_eq!(in_flight, Some(399), "an unread response has lost its slot");
    unread.extend(stalled(&world, 1, "/api/v1/namespaces/shop/configmaps").await);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    // All slots are taken, and clients that read are still served.
    for _ in 0..20 {
        let response = client.get("/api/v1/namespaces/shop/configmaps").await;
        assert_eq!(response.status(), 200);
        let list = response.into_body().collect().await.expect("whole").to_bytes();
        assert!(list.ends_with(b"]}\n"));
    }
    // All requests used one freed slot in turn, because each request freed the slot after its response was read.
    let ended = unread.into_iter().filter_map(|response| response.into_body().collect().now_or_never());
    let cut = ended.filter(Result::is_err).count();
    assert!((1..=20).contains(&cut), "{cut} answers were cut");
    while reads_in_flight(&client).await != Some(0) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_response_is_aborted_at_its_request_deadline() {
    let world = World::new().await;
    for n in 0..4 {
        world.create(&format!("large-{n}"), 32 * 1024).await;
    }
    let client = world.connect().await;
    let unread = stalled(&world, 10, "/api/v1/namespaces/shop/configmaps?timeout=10s").await;
    let read_slowly = client.get("/api/v1/namespaces/shop/configmaps?timeout=50s").await;
    assert_eq!(reads_in_flight(&client).await, Some(11));
    let begun = std::time::Instant::now();
    while reads_in_flight(&client).await != Some(1) {
        assert!(begun.elapsed() < PATIENCE, "the responses keep their slots");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for response in unread {
        response.into_body().collect().await.expect_err("cut");
    }
    read_slowly.into_body().collect().await.expect("whole: it has more time");
}

#[tokio::test]
async fn http2_connection_has_the_configured_number_of_streams() {
    let world = World::with_streams(3).await;
    let client = world.connect().await;
    let mut watches = Vec::new();
    for _ in 0..3 {
        watches.push(client.get("/api/v1/namespaces/shop/configmaps?watch=true").await);
    }
    let fourth = tokio::time::timeout(Duration::from_millis(200), client.get("/version")).await;
    assert!(fourth.is_err(), "a stream too many");
    assert_eq!(world.connect().await.get("/version").await.status(), 200, "another connection has its own");
    watches.pop();
    assert_eq!(client.get("/version").await.status(), 200, "a stream that ended leaves its place");
}

#[tokio::test]
async fn http2_connection_accepts_no_requests_after_an_unauthenticated_one_but_keeps_watches() {
    let world = World::new().await;
    for (path, token, code) in [("/api/v1/namespaces/shop/configmaps", "wrong", 401), ("/readyz", "", 200)] {
        let client = world.connect().await;
        let path_of_watch =
            "/api/v1/namespaces/shop/configmaps?watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
        let mut watch = client.get(path_of_watch).await.into_body();
        assert_eq!(client.get("/version").await.status(), 200);
        let refused = client.send(Method::GET, path, token, Empty::new().boxed()).await;
        assert_eq!(refused.status(), code);
        refused.into_body().collect().await.expect("a whole answer");
        let begun = std::time::Instant::now();
        let another = || Request::get("http://x/version").body(Empty::new().boxed()).expect("a request");
        while client.0.clone().send_request(another()).await.is_ok() {
            assert!(begun.elapsed() < PATIENCE, "no GOAWAY after {path}");
        }
        world.create(&format!("after-{code}"), 10).await;
        let event = next(&mut watch).await;
        assert!(event.windows(5).any(|window| window == b"after"), "{event:?}");
    }
}

#[tokio::test]
async fn shutdown_ends_all_watches_cleanly_one_after_the_other() {
    let world = World::new().await;
    let client = world.connect().await;
    let mut watches = Vec::new();
    for _ in 0..40 {
        watches.push(client.get("/api/v1/namespaces/shop/configmaps?watch=true").await.into_body());
    }
    let begun = std::time::Instant::now();
    world.server.shutdown();
    for watch in watches {
        let end = tokio::time::timeout(PATIENCE, watch.collect()).await.expect("in time");
        assert_eq!(end.expect("a clean end").to_bytes(), "");
    }
    // 200 watches end per second, so the last of forty ends after 195 ms.
    assert!(begun.elapsed() >= Duration::from_millis(190), "all at once: {:?}", begun.elapsed());
    tokio::time::timeout(PATIENCE, world.serving.shutdown()).await.expect("nothing is left");
}
