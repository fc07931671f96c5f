//! Tests a server whose cache budget is smaller than its objects. The server must return the same responses from the
//! store.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::{ApiServer, ApiService, Body};

const PATH: &str = "/api/v1/namespaces/default/configmaps";
const BUDGET_BYTES: usize = 64 << 10;

async fn ask(service: &ApiService, request: http::request::Builder, body: String) -> http::Response<Body> {
    service.handle(request.body(Full::new(Bytes::from(body))).expect("a request")).await
}

async fn text(service: &ApiService, path: &str) -> String {
    let response = ask(service, Request::get(path), String::new()).await;
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    let body = response.into_body().collect().await.expect("a whole body").to_bytes();
    String::from_utf8(body.to_vec()).expect("text")
}

async fn create(service: &ApiService, name: &str, bytes: usize) {
    let body = format!(r#"{{"metadata":{{"name":"{name}"}},"data":{{"d":"{}"}}}}"#, "x".repeat(bytes));
    let request = Request::post(PATH).header("content-type", "application/json");
    assert_eq!(ask(service, request, body).await.status(), StatusCode::CREATED);
}

/// Returns the names in a list or a watch stream, in order.
fn names(text: &str) -> Vec<String> {
    text.split("\"name\":\"map-").skip(1).map(|rest| rest[..3].to_owned()).collect()
}

async fn without(service: &ApiService) -> String {
    let metrics = text(service, "/metrics").await;
    let line = metrics.lines().find(|line| line.starts_with("listwatch_resources_without_cache "));
    line.expect("the figure of a server with a budget").rsplit(' ').next().unwrap_or_default().to_owned()
}

#[tokio::test(start_paused = true)]
async fn server_above_its_cache_budget_returns_the_same_responses_from_the_store() {
    let server = ApiServer::builder().cache_bytes_max(Some(BUDGET_BYTES)).build().await.expect("a server");
    let service = server.service();
    let expected: Vec<String> = (0..100).map(|n| format!("{n:03}")).collect();

    let watch = ask(&service, Request::get(format!("{PATH}?watch=true")), String::new()).await;
    let watched = tokio::spawn(watch.into_body().collect());
    for name in &expected {
        create(&service, &format!("map-{name}"), 1024).await;
    }
    // When the cache is dropped, the watch ends cleanly after it has delivered all its events.
    let stream = watched.await.expect("no panic").expect("a clean end").to_bytes();
    let stream = String::from_utf8(stream.to_vec()).expect("text");
    let seen = names(&stream);
    assert_eq!(seen, expected[..seen.len()], "a watch that was ended had told everything up to there");
    assert_eq!(without(&service).await, "1");

    // The client resumes its watch, and reads are served.
    let last = stream.rsplit("\"resourceVersion\":\"").next().expect("an event");
    let version = last.split('"').next().expect("a version");
    let again = ask(
        &service,
        Request::get(format!("{PATH}?watch=true&resourceVersion={version}&timeoutSeconds=5")),
        String::new(),
    );
    let again = again.await;
    assert_eq!(again.status(), StatusCode::OK);
    create(&service, "map-100", 1024).await;
    let rest = again.into_body().collect().await.expect("a clean end").to_bytes();
    let rest = names(std::str::from_utf8(&rest).expect("text"));
    let told: Vec<String> = seen.into_iter().chain(rest).collect();
    let all: Vec<String> = (0..=100).map(|n| format!("{n:03}")).collect();
    assert_eq!(told, all, "between the two watches something was lost or told twice");
    assert_eq!(names(&text(&service, PATH).await), all);
    assert_eq!(names(&text(&service, &format!("{PATH}?resourceVersion=0")).await), all);

    // When the objects are deleted, the cache is restored.
    let request = Request::delete(PATH);
    assert_eq!(ask(&service, request, String::new()).await.status(), StatusCode::OK);
    tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    assert_eq!(names(&text(&service, PATH).await), Vec::<String>::new());
    assert_eq!(without(&service).await, "0", "there is room, and no cache");
}
