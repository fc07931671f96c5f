//! Tests [`FlowControl`].

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;

use super::*;
use crate::filters::flow_control::hold_until_sent;
use crate::filters::request_deadline::{REQUEST_TIMEOUT, RequestDeadline};
use crate::response::body::Body;
use crate::{ApiServer, AuthorizationMode};

/// Builds a server without priority and fairness.
async fn without_fairness(reads: usize, writes: usize) -> ApiServer {
    let builder = ApiServer::builder().priority_and_fairness(false).requests_in_flight_max(reads, writes);
    builder.build().await.unwrap()
}

/// Admits a request. If `has_body` is set, also takes the slot of a write.
async fn admit<'a>(server: &'a ApiServer, line: &str, has_body: bool) -> Result<Admission<'a>, TooManyRequests> {
    admit_from(server, line, has_body, false).await
}

/// Admits a request, which the server sends to itself if `is_loopback` is set.
async fn admit_from<'a>(
    server: &'a ApiServer,
    line: &str,
    has_body: bool,
    is_loopback: bool,
) -> Result<Admission<'a>, TooManyRequests> {
    let (method, target) = line.split_once(' ').unwrap();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let method: Method = method.parse().unwrap();
    let query = Query::parse(query);
    let info = RequestInfo::new(&method, path, &query);
    let deadline = RequestDeadline::new(&info, &query, Instant::now(), REQUEST_TIMEOUT).unwrap().at();
    let (user, backend) = (&UserInfo::admin(), &*server.shared.backend);
    let request = FlowRequest { info: &info, user, is_loopback, query: &query, backend, deadline };
    let control = &server.shared.flow_control;
    let mut admission = control.admit(control.classify(&info, user), request).await?;
    if has_body {
        admission.take_write_slot(request).await?;
    }
    Ok(admission)
}

#[tokio::test]
async fn only_reads_take_a_slot_on_admission() {
    let server = without_fairness(1, 1).await;
    let control = &server.shared.flow_control;
    let streams = ["GET /api/v1/pods?watch=1", "POST /api/v1/namespaces/a/pods/x/exec", "GET /api/v1/nodes/x/proxy/a"];
    let others = ["GET /readyz", "GET /version", "POST /api/v1/namespaces/a/pods"];
    for exempt in streams.into_iter().chain(others) {
        let _admission = admit(&server, exempt, false).await.unwrap();
        assert_eq!(control.in_flight(), (0, 0), "{exempt}");
    }
    for read in ["GET /api/v1/pods", "GET /apis", "GET /metrics"] {
        let first = admit(&server, read, false).await.unwrap();
        assert_eq!(control.in_flight(), (1, 0), "{read}");
        assert_eq!(admit(&server, "GET /api/v1/nodes", false).await.err(), Some(TooManyRequests::default()));
        drop(first);
    }
}

#[tokio::test]
async fn write_takes_a_slot_only_after_its_body_has_arrived() {
    let server = without_fairness(1, 1).await;
    let control = &server.shared.flow_control;
    let _sending = admit(&server, "POST /api/v1/namespaces", false).await.unwrap();
    let first = admit(&server, "POST /api/v1/namespaces", true).await.unwrap();
    let second = admit(&server, "PUT /api/v1/namespaces/a", true).await;
    assert_eq!(second.err(), Some(TooManyRequests::default()));
    let mut response = Response::new(Body::empty());
    hold_until_sent(first, &mut response, Instant::now());
    assert_eq!(control.in_flight(), (0, 1), "the response holds the slot");
    drop(response);
    assert_eq!(control.in_flight(), (0, 0));
}

#[tokio::test]
async fn requests_of_the_server_to_itself_need_no_slot() {
    let line = "POST /apis/ext.example.com/v1/reviews";
    for is_fair in [false, true] {
        let builder = ApiServer::builder().priority_and_fairness(is_fair).requests_in_flight_max(1, 1);
        let server = builder.build().await.unwrap();
        let _read = admit(&server, "GET /api/v1/pods", false).await.unwrap();
        let _write = admit(&server, line, true).await.unwrap();
        assert_eq!(admit(&server, line, true).await.err(), Some(TooManyRequests::default()), "{is_fair}");
        for (line, has_body) in [(line, true), ("GET /api/v1/pods", false)] {
            let admitted = admit_from(&server, line, has_body, true).await;
            assert_eq!(admitted.err(), None, "{line}, priority and fairness: {is_fair}");
        }
    }
}

#[tokio::test]
async fn large_write_waits_for_memory_and_small_write_does_not() {
    let server = &crate::ApiServer::builder().build().await.unwrap();
    let send = |annotation: usize| async move {
        let annotations = format!(r#"{{"a":"{}"}}"#, "x".repeat(annotation));
        let body = format!(r#"{{"metadata":{{"generateName":"n","annotations":{annotations}}}}}"#);
        let body = http_body_util::Full::new(Bytes::from(body));
        let request = Request::post("/api/v1/namespaces").header("content-type", "application/json");
        server.service().handle(request.body(body).unwrap()).await.status()
    };
    let memory = &server.shared.flow_control.writes_bytes;
    let taken = Arc::clone(memory).acquire_many_owned(WRITES_BYTES_MAX as u32).await.unwrap();
    let mut waiting = std::pin::pin!(send(100_000));
    let soon = tokio::time::timeout(Duration::from_millis(100), &mut waiting).await;
    assert!(soon.is_err(), "no memory is free for a large body");
    assert_eq!(send(1).await, StatusCode::CREATED, "a small write does not wait behind large ones");
    drop(taken);
    assert_eq!(waiting.await, StatusCode::CREATED);
    assert_eq!(memory.available_permits(), WRITES_BYTES_MAX);
}

/// Returns the numbers of executing and waiting requests of a level, and their seats.
fn occupancy(server: &ApiServer, level: &str) -> listwatch_flow_control::Occupancy {
    let fairness = server.shared.flow_control.fairness().unwrap();
    fairness.inspect(|found| found.levels().find(|found| found.name == level).unwrap().occupancy)
}

async fn send(server: &ApiServer, user: &str, line: &str) -> Response<Body> {
    let (method, target) = line.split_once(' ').unwrap();
    let request = Request::builder().method(method).uri(target).body(http_body_util::Empty::<Bytes>::new()).unwrap();
    server.client_as(user, &[]).handle(request).await
}

async fn create(server: &ApiServer, path: &str, object: &str) {
    let body = http_body_util::Full::new(Bytes::from(object.to_owned()));
    let request = Request::post(path).header("content-type", "application/json").body(body).unwrap();
    assert_eq!(server.client_as("admin", &["system:masters"]).handle(request).await.status(), 201);
}

/// Builds a server on which all ordinary users share the level `one`, which has one seat.
async fn with_one_seat() -> ApiServer {
    let modes = [AuthorizationMode::AlwaysAllow];
    let server = ApiServer::builder().authorization(modes).requests_in_flight_max(6, 4).build().await.unwrap();
    let level = r#"{"metadata": {"name": "one"}, "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 10,
        "borrowingLimitPercent": 0, "limitResponse": {"type": "Queue", "queuing": {"queues": 1, "handSize": 1}}}}}"#;
    create(&server, "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations", level).await;
    let schema = r#"{"metadata": {"name": "one"}, "spec": {"priorityLevelConfiguration": {"name": "one"},
        "matchingPrecedence": 50, "rules": [{"subjects": [{"kind": "Group", "group": {"name": "system:authenticated"}}],
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"],
        "clusterScope": true}]}]}}"#;
    create(&server, "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", schema).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(seats_of(&server, "one"), 1);
    server
}

fn seats_of(server: &ApiServer, level: &str) -> u64 {
    let fairness = server.shared.flow_control.fairness().unwrap();
    fairness.inspect(|found| found.levels().find(|found| found.name == level).unwrap().current_seats)
}

#[tokio::test(start_paused = true)]
async fn response_holds_its_seat_until_sent_and_the_next_request_waits() {
    let server = with_one_seat().await;
    let first = send(&server, "ann", "GET /api/v1/pods").await;
    assert_eq!((first.status().as_u16(), occupancy(&server, "one").seats_in_use), (200, 1));
    let waiting = tokio::spawn({
        let server = server.clone();
        async move { send(&server, "bob", "GET /api/v1/pods").await.status().as_u16() }
    });
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(occupancy(&server, "one").waiting, 1);
    assert!(!waiting.is_finished(), "a request executes without a seat");
    drop(first);
    assert_eq!(waiting.await.unwrap(), 200);
    assert_eq!(occupancy(&server, "one"), listwatch_flow_control::Occupancy::default());
}

#[tokio::test(start_paused = true)]
async fn request_without_seat_is_rejected_after_a_quarter_of_its_time() {
    let server = with_one_seat().await;
    let _first = send(&server, "ann", "GET /api/v1/pods").await;
    let begun = Instant::now();
    let rejected = send(&server, "bob", "GET /api/v1/pods?timeout=20s").await;
    assert_eq!((rejected.status().as_u16(), begun.elapsed().as_secs()), (429, 5));
    assert_eq!(rejected.headers()[RETRY_AFTER], "1");
    assert!(rejected.headers().contains_key("x-kubernetes-pf-flowschema-uid"));
    let text = rejected.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text, "Too many requests, please try again later.\n");
    assert_eq!(occupancy(&server, "one").waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn disconnected_client_leaves_the_flow_control_queue() {
    let server = with_one_seat().await;
    let first = send(&server, "ann", "GET /api/v1/pods").await;
    let mut waiting = Box::pin(send(&server, "bob", "GET /api/v1/pods"));
    assert!(tokio::time::timeout(Duration::from_millis(10), &mut waiting).await.is_err());
    assert_eq!(occupancy(&server, "one").waiting, 1);
    drop(waiting);
    assert_eq!(occupancy(&server, "one").waiting, 0);
    drop(first);
    assert_eq!(occupancy(&server, "one").seats_in_use, 0);
}

#[tokio::test(start_paused = true)]
async fn watch_holds_its_seat_until_its_initial_events_are_read() {
    let server = with_one_seat().await;
    let mut watch = send(&server, "ann", "GET /api/v1/namespaces?watch=true").await.into_body();
    assert_eq!(occupancy(&server, "one").executing, 1);
    let first = watch.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(first.starts_with(b"{\"type\":\"ADDED\""), "{first:?}");
    assert_eq!(occupancy(&server, "one").executing, 0);
    // A watch whose client reads nothing loses its seat to a waiting request, and continues.
    let mut unread = send(&server, "ann", "GET /api/v1/namespaces?watch=true").await.into_body();
    assert_eq!(occupancy(&server, "one").executing, 1);
    let begun = Instant::now();
    assert_eq!(send(&server, "bob", "GET /api/v1/namespaces").await.status(), 200);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(unread.frame().await.unwrap().is_ok());
    drop((watch, unread));
    assert_eq!(occupancy(&server, "one").seats_in_use, 0);
}

#[tokio::test(start_paused = true)]
async fn seats_of_a_write_linger_for_its_watches() {
    let server = ApiServer::builder().authorization([AuthorizationMode::AlwaysAllow]).build().await.unwrap();
    let mut watches = Vec::new();
    for _ in 0..100 {
        let mut watch = send(&server, "ann", "GET /api/v1/namespaces?watch=true").await.into_body();
        watch.frame().await.unwrap().unwrap();
        watches.push(watch);
    }
    let body = http_body_util::Full::new(Bytes::from(r#"{"metadata":{"name":"n"}}"#));
    let request = Request::post("/api/v1/namespaces").header("content-type", "application/json").body(body).unwrap();
    let created = server.client_as("bob", &["system:masters"]).handle(request).await;
    assert_eq!(created.status(), 201);
    drop(created);
    assert_eq!(occupancy(&server, "exempt").executing, 0);
    assert_eq!(occupancy(&server, "exempt").seats_in_use, 10, "100 watches are ten seats");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(occupancy(&server, "exempt").seats_in_use, 0, "the seats are never freed");
}

#[tokio::test]
async fn exempt_requests_are_limited_by_the_in_flight_limits() {
    let server = ApiServer::builder().requests_in_flight_max(2, 1).build().await.unwrap();
    let first = admit(&server, "GET /api/v1/pods", false).await.unwrap();
    let _second = admit(&server, "GET /api/v1/pods", false).await.unwrap();
    assert_eq!(admit(&server, "GET /api/v1/pods", false).await.err(), Some(TooManyRequests::default()));
    assert!(admit(&server, "GET /readyz", false).await.is_ok(), "probes have no limit");
    drop(first);
    assert!(admit(&server, "GET /api/v1/pods", false).await.is_ok());
}
