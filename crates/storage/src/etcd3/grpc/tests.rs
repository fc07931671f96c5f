//! Calls against a server in the test's process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{self, SendResponse};
use http::{HeaderMap, Request, Response};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::frame::encode;
use super::{Channel, Code, Settings, Status};
use crate::etcd3::connector::Connector;
use crate::etcd3::proto::{RangeRequest, RangeResponse};

/// The time limit for a call that must end.
const PATIENCE: Duration = Duration::from_secs(20);

const KEEP_ALIVE: Settings = Settings {
    stream_window_bytes: 1 << 20,
    keep_alive_interval: Duration::from_millis(50),
    keep_alive_timeout: Duration::from_millis(200),
};

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
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let channel = channel(&listener);
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                connections.spawn(async move {
                    let mut connection = server::handshake(tcp).await.unwrap();
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        match request.uri().path() {
                            "/hang-up" => return,
                            // Without `accept`, the server neither reads nor answers pings.
                            "/freeze" => std::future::pending().await,
                            "/pause" => {
                                answer(request, respond);
                                // The response leaves with the next call of `accept`.
                                let _ = tokio::time::timeout(Duration::from_millis(50), connection.accept()).await;
                                tokio::time::sleep(Duration::from_millis(600)).await;
                            }
                            _ => answer(request, respond),
                        }
                    }
                });
            }
        });
        Server { channel, accepted, task }
    }

    async fn call(&self, path: &'static str) -> Result<RangeResponse, Status> {
        let request = RangeRequest { key: b"key".to_vec(), ..RangeRequest::default() };
        let call = self.channel.unary(path, &request, &[]);
        tokio::time::timeout(PATIENCE, call).await.expect("the call ends")
    }
}

fn channel(listener: &TcpListener) -> Channel {
    let authority = listener.local_addr().unwrap().to_string().parse().unwrap();
    Channel::new(Connector::new(authority, None, PATIENCE), KEEP_ALIVE)
}

fn response(count: i64) -> RangeResponse {
    RangeResponse { count, ..RangeResponse::default() }
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

#[tokio::test]
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
    let channel = channel(&closed);
    drop(closed);
    let request = RangeRequest::default();
    let call = || channel.unary::<RangeResponse>("/ok", &request, &[]);
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
    let server = Server::start().await;
    let status = server.call("/freeze").await.unwrap_err();
    assert!(!status.unsent, "the server may have processed the request");
    assert_eq!(server.call("/ok").await, Ok(response(7)));
    assert_eq!(server.accepted.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn connection_without_a_call_sends_no_ping() {
    let server = Server::start().await;
    assert_eq!(server.call("/pause").await, Ok(response(7)));
    // The server answers no ping for a longer time than pings are waited for.
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(server.call("/ok").await, Ok(response(7)));
    assert_eq!(server.accepted.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn dropped_call_frees_its_room_on_the_connection() {
    let server = Server::start().await;
    for _ in 0..50 {
        let _ = tokio::time::timeout(Duration::from_millis(1), server.call("/ok")).await;
    }
    assert_eq!(server.call("/ok").await, Ok(response(7)));
    assert_eq!(server.accepted.load(Ordering::SeqCst), 1);
}
