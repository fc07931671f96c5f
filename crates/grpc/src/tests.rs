//! Calls against a server in the test's process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{self, SendResponse};
use http::{HeaderMap, Request, Response};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::frame::{Frames, encode};
use super::{Channel, Code, Connector, Settings, Status};

/// The time limit for a call that must end.
const PATIENCE: Duration = Duration::from_secs(20);

const KEEP_ALIVE: Settings = Settings {
    stream_window_bytes: 1 << 20,
    keep_alive_interval: Duration::from_millis(100),
    keep_alive_timeout: Duration::from_secs(30),
};

/// The settings for a server that does not answer pings.
const SHORT_KEEP_ALIVE: Settings = Settings { keep_alive_timeout: Duration::from_secs(1), ..KEEP_ALIVE };

/// The message of each response.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Answer {
    #[prost(int64, tag = "1")]
    count: i64,
}

struct Server {
    channel: Channel,
    /// The number of accepted connections.
    accepted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start() -> Self {
        Self::start_for(KEEP_ALIVE).await
    }

    /// Starts a server for a client with these settings.
    async fn start_for(settings: Settings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let channel = channel(&listener, settings);
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                connections.spawn(async move {
                    let mut connection = server::handshake(tcp).await.unwrap();
                    let mut unread = Vec::new();
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        match request.uri().path() {
                            "/hang-up" => return,
                            // Without `accept`, the server neither reads nor answers pings.
                            "/go-away" => {
                                answer(request, respond);
                                connection.graceful_shutdown();
                            }
                            "/echo" => drop(tokio::spawn(echo(request, respond))),
                            "/large" => drop(tokio::spawn(send_large(respond))),
                            "/unread" => {
                                let mut respond = respond;
                                let body = respond.send_response(Response::new(()), false).unwrap();
                                unread.push((request, body));
                            }
                            "/freeze" => std::future::pending().await,
                            "/pause" => {
                                answer(request, respond);
                                // The response leaves with the next call of `accept`.
                                let _ = tokio::time::timeout(Duration::from_millis(50), connection.accept()).await;
                                tokio::time::sleep(Duration::from_millis(1_500)).await;
                            }
                            _ => answer(request, respond),
                        }
                    }
                });
            }
        });
        Server { channel, accepted, task }
    }

    async fn call(&self, path: &'static str) -> Result<Answer, Status> {
        let request = "key".to_owned();
        let call = self.channel.unary(path, &request, &[]);
        tokio::time::timeout(PATIENCE, call).await.expect("the call ends")
    }
}

fn channel(listener: &TcpListener, settings: Settings) -> Channel {
    let authority = listener.local_addr().unwrap().to_string().parse().unwrap();
    Channel::new(Connector::new(authority, None, PATIENCE), settings)
}

fn response(count: i64) -> Answer {
    Answer { count }
}

/// Sends each request back in two parts. The request 0 ends the stream as grpc-go ends it: with a status and a reset.
async fn echo(request: Request<h2::RecvStream>, mut respond: SendResponse<Bytes>) {
    let mut body = respond.send_response(Response::new(()), false).unwrap();
    let mut requests = request.into_body();
    let mut frames = Frames::default();
    while let Some(Ok(chunk)) = requests.data().await {
        frames.push(chunk);
        while let Some(message) = frames.next::<Answer>().unwrap() {
            if message.count == 0 {
                let code = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
                body.send_trailers(code).unwrap();
                // A reset would remove trailers that were not sent yet.
                tokio::time::sleep(Duration::from_millis(20)).await;
                respond.send_reset(h2::Reason::NO_ERROR);
                return;
            }
            let mut frame = encode(&message).unwrap();
            body.send_data(frame.split_to(3), false).unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            body.send_data(frame, false).unwrap();
        }
    }
}

/// Sends a message of three windows.
async fn send_large(mut respond: SendResponse<Bytes>) {
    let mut body = respond.send_response(Response::new(()), false).unwrap();
    let text = "x".repeat(3 * KEEP_ALIVE.stream_window_bytes as usize);
    body.send_data(encode(&text).unwrap(), false).unwrap();
    let code = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
    body.send_trailers(code).unwrap();
}

/// Answers as the path says.
fn answer(request: Request<h2::RecvStream>, mut respond: SendResponse<Bytes>) {
    let path = request.uri().path().to_owned();
    let head = |code: u16| Response::builder().status(code).header("content-type", "application/grpc");
    let status = |code: &str| HeaderMap::from_iter([("grpc-status".parse().unwrap(), code.parse().unwrap())]);
    if path == "/denied" {
        let head = head(200).header("grpc-status", "7").header("grpc-message", "no%21").body(()).unwrap();
        respond.send_response(head, true).unwrap();
        return;
    }
    if path == "/proxy" {
        respond.send_response(head(503).body(()).unwrap(), true).unwrap();
        return;
    }
    if path == "/refuse" {
        respond.send_reset(h2::Reason::REFUSED_STREAM);
        return;
    }
    let mut body = respond.send_response(head(200).body(()).unwrap(), false).unwrap();
    if path == "/empty" {
        body.send_trailers(status("0")).unwrap();
        return;
    }
    let frame = encode(&response(7)).unwrap();
    for at in 0..frame.len() {
        body.send_data(frame.slice(at..=at), false).unwrap();
    }
    match &*path {
        "/cut" => body.send_data(Bytes::new(), true).unwrap(),
        "/two" => {
            body.send_data(frame, false).unwrap();
            body.send_trailers(status("0")).unwrap();
        }
        "/half" => {
            body.send_data(Bytes::from_static(&[0, 0]), false).unwrap();
            body.send_trailers(status("0")).unwrap();
        }
        "/late-error" => body.send_trailers(status("14")).unwrap(),
        "/reset" => body.send_reset(h2::Reason::CANCEL),
        _ => body.send_trailers(status("0")).unwrap(),
    }
}

#[tokio::test]
async fn outcome_of_a_call_is_that_of_its_response() {
    let server = Server::start().await;
    assert_eq!(server.call("/ok").await, Ok(response(7)));
    for (path, code, message, unsent) in [
        ("/denied", Code::PermissionDenied, "no!", false),
        ("/proxy", Code::Unavailable, "the server answers HTTP 503 Service Unavailable", false),
        ("/empty", Code::Internal, "the response has no message", false),
        ("/cut", Code::Internal, "the response ends without a status", false),
        ("/two", Code::Internal, "the response has several messages", false),
        ("/half", Code::Internal, "the response ends inside a message", false),
        ("/late-error", Code::Unavailable, "", false),
        ("/reset", Code::Cancelled, "", false),
        ("/refuse", Code::Unavailable, "", true),
    ] {
        let status = server.call(path).await.expect_err(path);
        assert_eq!((status.code, status.unsent), (code, unsent), "{path}: {status}");
        assert!(status.message.contains(message), "{path}: {status}");
    }
    assert_eq!(server.call("/ok").await, Ok(response(7)));
    assert_eq!(server.accepted.load(Ordering::SeqCst), 1, "all calls used one connection");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_at_the_same_time_share_one_connection_and_one_failure() {
    let server = Arc::new(Server::start().await);
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let server = server.clone();
            tokio::spawn(async move { server.call("/ok").await })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), Ok(response(7)));
    }
    assert_eq!(server.accepted.load(Ordering::SeqCst), 1);

    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let channel = channel(&closed, KEEP_ALIVE);
    drop(closed);
    let request = String::new();
    let call = || channel.unary::<Answer>("/ok", &request, &[]);
    let (one, other) = tokio::join!(call(), call());
    for status in [one.unwrap_err(), other.unwrap_err()] {
        assert!(status.unsent && status.message.contains("refused"), "{status}");
    }
}

#[tokio::test]
async fn call_after_the_end_of_a_connection_opens_another_one() {
    let server = Server::start().await;
    assert_eq!(server.call("/ok").await, Ok(response(7)));
    let status = server.call("/hang-up").await.unwrap_err();
    assert!(!status.unsent, "the server may have processed the request");
    assert_eq!(server.call("/ok").await, Ok(response(7)));
    assert_eq!(server.accepted.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn call_ends_if_the_server_answers_no_ping() {
    let server = Server::start_for(SHORT_KEEP_ALIVE).await;
    let status = server.call("/freeze").await.unwrap_err();
    assert!(!status.unsent, "the server may have processed the request");
    assert_eq!(server.call("/ok").await, Ok(response(7)));
    assert_eq!(server.accepted.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn connection_without_a_call_sends_no_ping() {
    let server = Server::start_for(SHORT_KEEP_ALIVE).await;
    assert_eq!(server.call("/pause").await, Ok(response(7)));
    // The server answers no ping for a longer time than pings are waited for.
    tokio::time::sleep(Duration::from_millis(1_700)).await;
    assert_eq!(server.call("/ok").await, Ok(response(7)));
    assert_eq!(server.accepted.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn response_larger_than_the_window_is_received() {
    let server = Server::start().await;
    let channel = server.channel.clone();
    let size = 3 * KEEP_ALIVE.stream_window_bytes as usize;
    for _ in 0..2 {
        let request = String::new();
        let large = tokio::time::timeout(PATIENCE, channel.unary::<String>("/large", &request, &[])).await;
        assert_eq!(large.expect("the window is opened again").unwrap().len(), size);
    }
}

#[tokio::test]
async fn stream_carries_messages_in_both_directions_until_its_end() {
    let server = Server::start().await;
    let first = Answer { count: 1 };
    let (mut requests, mut answers) =
        server.channel.streaming::<Answer, Answer>("/echo", &first, &[]).await.expect("the stream opens");
    assert_eq!(answers.next().await, Ok(Some(first)));
    // The echo of the next request arrives in parts. A dropped wait loses none of them.
    for count in [2, 300, 70_000] {
        assert!(requests.send(&Answer { count }));
        let answer = loop {
            tokio::select! {
                biased;
                answer = answers.next() => break answer,
                () = tokio::task::yield_now() => {}
            }
        };
        assert_eq!(answer, Ok(Some(Answer { count })));
    }
    assert!(requests.send(&Answer { count: 0 }), "0 ends the stream");
    // The reset has arrived too.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(answers.next().await, Ok(None));
    assert_eq!(answers.next().await, Ok(None), "the end stays the end");
}

#[tokio::test]
async fn requests_to_a_server_that_reads_none_are_bounded() {
    let server = Server::start().await;
    let first = "x".repeat(60_000);
    let (mut requests, _answers) =
        server.channel.streaming::<String, Answer>("/unread", &first, &[]).await.expect("the stream opens");
    let sent = (0..1_000).take_while(|_| requests.send(&first)).count();
    assert!((1..=200).contains(&sent), "{sent} requests were accepted");
}

#[tokio::test]
async fn call_after_a_graceful_shutdown_opens_another_connection() {
    let server = Server::start().await;
    assert_eq!(server.call("/go-away").await, Ok(response(7)));
    assert_eq!(server.call("/ok").await, Ok(response(7)));
    assert_eq!(server.accepted.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn attempt_to_connect_outlives_the_call_that_began_it() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = silent.local_addr().unwrap().to_string().parse().unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let connector = Connector::new(authority, Some(Arc::new(tls)), Duration::from_millis(500));
    let channel = Channel::new(connector, KEEP_ALIVE);
    let request = String::new();
    let call = || channel.unary::<Answer>("/ok", &request, &[]);
    let cancelled = tokio::time::timeout(Duration::from_millis(50), call());
    let (cancelled, failed) = tokio::join!(cancelled, call());
    assert!(cancelled.is_err() && failed.unwrap_err().unsent);
    let count_connections = async {
        let mut connections = Vec::new();
        while let Ok(Ok((tcp, _))) = tokio::time::timeout(Duration::from_millis(100), silent.accept()).await {
            connections.push(tcp);
        }
        connections.len()
    };
    assert_eq!(count_connections.await, 1, "the second call waited for the attempt of the first");
}
