//! Tests that conditions and documents follow the extension server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use listwatch_aggregator::{Aggregator, ApiServiceObjects, merge_aggregated};
use listwatch_json::{Value, json};

use crate::extension::{Objects, aggregator, json_response, start};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Polls until `fact` returns true. `promise` describes the expectation.
async fn eventually(fact: impl Fn() -> bool, promise: &str) {
    for _ in 0..6_000 {
        if fact() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{promise}");
}

fn run(aggregator: &Arc<Aggregator>, objects: &Arc<Objects>) {
    let api_services: Arc<dyn ApiServiceObjects> = Arc::<Objects>::clone(objects);
    tokio::spawn(Arc::clone(aggregator).run(api_services));
}

fn document(aggregator: &Aggregator) -> Option<(usize, bool)> {
    let documents = aggregator.documents();
    let discovery = documents.by_name.get("v1.g")?.discovery.clone()?;
    Some((discovery.resources.len(), discovery.is_current))
}

#[tokio::test]
async fn availability_and_documents_follow_changes_of_the_service() {
    let answer = |request: &Request<Incoming>| {
        let path = request.uri().path();
        assert_eq!(request.headers()["x-remote-user"].to_str().unwrap().split(':').next(), Some("system"));
        match path {
            "/apis/g/v1" => json_response(200, "application/json", &json!({"resources": []})),
            "/apis" => {
                let things = json!({"resource": "things"});
                let group = json!({"metadata": {"name": "g"}, "versions": [{"version": "v1", "resources": [things]}]});
                json_response(200, AGGREGATED, &json!({ "items": [group] }))
            }
            "/openapi/v3" => {
                let item = json!({"serverRelativeURL": "/openapi/v3/apis/g/v1?hash=1"});
                json_response(200, "application/json", &json!({"paths": {"apis/g/v1": item}}))
            }
            _ => json_response(404, "text/plain", &Value::Null),
        }
    };
    let (port, certificate) = start(Arc::new(answer)).await;
    let objects = Arc::new(Objects::default());
    let aggregator = aggregator(&objects);
    run(&aggregator, &objects);
    objects.put_api_service(&certificate);
    eventually(|| objects.condition().1 == "ServiceNotFound", "a missing service is not noticed").await;
    assert_eq!(objects.condition().2, "service/api in \"ns\" is not present");
    eventually(|| document(&aggregator) == Some((0, false)), "an unknown server is not stale").await;

    objects.put_service(port);
    eventually(|| objects.condition().1 == "Passed", "a new service is not noticed").await;
    eventually(|| document(&aggregator) == Some((1, true)), "discovery is not fetched").await;
    eventually(|| aggregator.route("/apis/g/v1").unwrap().api_service().is_available, "the route is not opened").await;
    let has_index = || aggregator.documents().by_name["v1.g"].openapi_v3.is_some();
    eventually(has_index, "the OpenAPI index is not fetched").await;

    // Requests use the observed service. The controller may still read objects for the conditions and documents.
    let mut reads = objects.reads();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = std::mem::replace(&mut reads, objects.reads());
        if before == reads {
            break;
        }
    }
    for _ in 0..20 {
        let route = aggregator.route("/apis/g/v1").unwrap();
        let request = Request::get("/apis/g/v1").body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap();
        let user = listwatch_meta::UserInfo { username: "system:x".to_owned(), ..Default::default() };
        assert_eq!(aggregator.handle(&route, request, &user, Default::default()).await.status(), 200);
    }
    assert_eq!(objects.reads(), reads, "a request reads objects");
}

#[tokio::test]
async fn malformed_discovery_leaves_only_its_version_stale() {
    let answer = |request: &Request<Incoming>| match request.uri().path() {
        "/apis" => {
            let broken = json!({"resource": "things", "verbs": "get"});
            let group = json!({"metadata": {"name": "g"}, "versions": [{"version": "v1", "resources": [broken]}]});
            json_response(200, AGGREGATED, &json!({ "items": [group] }))
        }
        _ => json_response(200, "application/json", &json!({"resources": []})),
    };
    let (port, certificate) = start(Arc::new(answer)).await;
    let objects = Arc::new(Objects::default());
    let aggregator = aggregator(&objects);
    run(&aggregator, &objects);
    objects.put_service(port);
    objects.put_api_service(&certificate);
    eventually(|| objects.condition().1 == "Passed", "the probe does not pass").await;
    eventually(|| document(&aggregator) == Some((0, false)), "a malformed document is taken").await;
    let local = json!({"items": [{"metadata": {"name": "apps"}, "versions": [{"version": "v1"}]}]});
    let merged = merge_aggregated(&local, &aggregator.services(), &aggregator.documents().discovery());
    let versions: Vec<&Value> = merged["items"].as_array().unwrap().iter().map(|group| &group["versions"][0]).collect();
    assert_eq!(versions, [&json!({"version": "v1"}), &json!({"version": "v1", "freshness": "Stale"})]);
}

#[tokio::test]
async fn failing_discovery_is_reported_and_probed_again_with_backoff() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&requests);
    let answer = move |_: &Request<Incoming>| {
        counter.fetch_add(1, Ordering::Relaxed);
        json_response(403, "text/plain", &Value::Null)
    };
    let (port, certificate) = start(Arc::new(answer)).await;
    let objects = Arc::new(Objects::default());
    let aggregator = aggregator(&objects);
    run(&aggregator, &objects);
    objects.put_service(port);
    objects.put_api_service(&certificate);
    eventually(|| objects.condition().1 == "FailedDiscoveryCheck", "a failing server is not noticed").await;
    let url = format!("https://127.0.0.1:{port}/apis/g/v1");
    let message = format!("failing or missing response from {url}: bad status from {url}: 403");
    assert_eq!(objects.condition(), ("False".to_owned(), "FailedDiscoveryCheck".to_owned(), message));
    eventually(|| requests.load(Ordering::Relaxed) >= 10, "a failing server is not probed again").await;
    let before = requests.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let sent = requests.load(Ordering::Relaxed) - before;
    // Probes with doubling delays, and the requests for documents.
    assert!(sent < 110, "{sent} requests in two seconds");
}

#[tokio::test]
async fn oversized_discovery_document_leaves_the_version_stale() {
    let answer = |request: &Request<Incoming>| {
        let resources: Vec<Value> = match request.uri().path() {
            "/apis" => vec![json!({"resource": "x".repeat(5 * 1024 * 1024)})],
            _ => Vec::new(),
        };
        let group = json!({"metadata": {"name": "g"}, "versions": [{"version": "v1", "resources": resources}]});
        json_response(200, AGGREGATED, &json!({ "items": [group] }))
    };
    let (port, certificate) = start(Arc::new(answer)).await;
    let objects = Arc::new(Objects::default());
    let aggregator = aggregator(&objects);
    run(&aggregator, &objects);
    objects.put_service(port);
    objects.put_api_service(&certificate);
    eventually(|| objects.condition().1 == "Passed", "the probe does not pass").await;
    eventually(|| document(&aggregator).is_some(), "discovery is not fetched").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(document(&aggregator), Some((0, false)), "an oversized document is taken");
}

#[tokio::test]
async fn silent_server_fails_the_availability_check_within_its_timeout() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut silent = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            silent.push(stream);
        }
    });
    let objects = Arc::new(Objects::default());
    let aggregator = aggregator(&objects);
    run(&aggregator, &objects);
    objects.put_service(port);
    let certified = rcgen::generate_simple_self_signed(vec!["api.ns.svc".to_owned()]).unwrap();
    objects.put_api_service(&certified.cert.pem());
    let begun = std::time::Instant::now();
    eventually(|| objects.condition().1 == "FailedDiscoveryCheck", "a silent server passes").await;
    assert!(begun.elapsed() < Duration::from_secs(24), "noticed after {:?}", begun.elapsed());
    assert!(objects.condition().2.starts_with("timed out waiting for https://127.0.0.1:"), "{:?}", objects.condition());
}
