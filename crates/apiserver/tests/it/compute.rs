//! Tests expensive writes and cheap requests on one thread. Expensive writes run on compute slots, end at their
//! deadline, and take effect once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::ApiServer;
use listwatch_json::{Value, json};

const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

/// The number of values in the enumeration, and of items that are compared with each value.
const COUNT: usize = 4_000;
/// The time limit until the kind of the tests is served.
const DEFINITION_WAIT: Duration = Duration::from_secs(60);

struct World {
    server: Arc<ApiServer>,
}

impl World {
    /// Creates a server with a kind whose objects are expensive to validate.
    async fn new() -> Self {
        let world = World { server: Arc::new(ApiServer::builder().build().await.expect("a server")) };
        let allowed: Vec<String> = (0..COUNT).map(|number| format!("value-{number}")).collect();
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "items": {"type": "array", "items": {"type": "string", "enum": allowed}},
                        "text": {"type": "string", "pattern": "^(a|b|ab|ba){1,300}$"},
                        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    },
                }}}],
            },
        });
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let (code, answer) = world.send("POST", path, definition.to_string()).await;
        assert_eq!(code, 201, "{answer}");
        // A request that follows the definition waits at most 3 s for it, which is too short for a slow machine.
        let begun = Instant::now();
        while world.send("GET", "/apis/example.com/v1", String::new()).await.0 != 200 {
            assert!(begun.elapsed() < DEFINITION_WAIT, "the kind is not served");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        world
    }

    async fn send(&self, method: &str, path: &str, body: String) -> (u16, Value) {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.body(Full::new(Bytes::from(body))).expect("a request");
        let response = self.server.service().handle(request).await;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (code, serde_json::from_slice(&body).unwrap_or_else(|_| json!(String::from_utf8_lossy(&body))))
    }
}

fn widget(name: &str, members: Value) -> String {
    let mut widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}});
    let Value::Object(members) = members else { panic!("members") };
    widget.as_object_mut().expect("an object").extend(members);
    widget.to_string()
}

/// Returns a widget whose validation compares each item with all values.
fn expensive(name: &str) -> String {
    widget(name, json!({"items": vec![format!("value-{}", COUNT - 1); COUNT]}))
}

/// Requests `/livez` and writes a lease in a loop. Counts the responses, and returns the longest wait.
async fn probe(world: Arc<World>, answers: Arc<AtomicUsize>) -> Duration {
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
        "spec": {"holderIdentity": "me"}});
    world.send("POST", LEASES, lease.to_string()).await;
    let mut longest = Duration::ZERO;
    for round in 0.. {
        let begun = Instant::now();
        assert_eq!(world.send("GET", "/livez", String::new()).await.0, 200);
        let patch = json!([{"op": "replace", "path": "/spec/holderIdentity", "value": format!("{round}")}]);
        let request = Request::patch(format!("{LEASES}/l")).header("content-type", "application/json-patch+json");
        let request = request.body(Full::new(Bytes::from(patch.to_string()))).expect("a request");
        assert_eq!(world.server.service().handle(request).await.status(), 200);
        longest = longest.max(begun.elapsed());
        if answers.fetch_add(1, Ordering::Relaxed) == usize::MAX / 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        if answers.load(Ordering::Relaxed) > usize::MAX / 2 {
            break;
        }
    }
    longest
}

#[tokio::test]
async fn expensive_write_does_not_delay_other_writes() {
    let world = Arc::new(World::new().await);
    let answers = Arc::new(AtomicUsize::new(0));
    let probes = tokio::spawn(probe(Arc::clone(&world), Arc::clone(&answers)));
    let begun = Instant::now();
    let (code, _) = world.send("POST", WIDGETS, expensive("a")).await;
    let took = begun.elapsed();
    assert_eq!(code, 201, "it takes time and is valid");
    let answered = answers.fetch_add(usize::MAX / 2 + 1, Ordering::Relaxed);
    let longest = probes.await.expect("no panic");
    // One thread serves all requests. If it had validated the widget, there would be no responses.
    assert!(answered >= 3, "{answered} answers in {took:?}");
    assert!(longest < took.max(Duration::from_millis(200)), "one waited {longest:?} of {took:?}");
}

#[tokio::test]
async fn expensive_write_ends_at_the_timeout_of_its_request() {
    let world = World::new().await;
    let begun = Instant::now();
    let (code, status) = world.send("POST", &format!("{WIDGETS}?timeout=100ms"), expensive("a")).await;
    assert_eq!((code, &status["reason"]), (504, &json!("Timeout")), "{status}");
    assert_eq!(status["message"], "Timeout: request did not complete within the allotted timeout");
    assert!(begun.elapsed() < Duration::from_secs(30), "it took {:?}", begun.elapsed());
    assert_eq!(world.send("GET", &format!("{WIDGETS}/a"), String::new()).await.0, 404, "it had no effect");
    // The compute slot is free again.
    assert_eq!(world.send("POST", WIDGETS, widget("b", json!({"text": "ab"}))).await.0, 201);
    assert_eq!(world.send("POST", WIDGETS, expensive("c")).await.0, 201);
}

#[tokio::test]
async fn expensive_write_takes_effect_exactly_once() {
    let world = World::new().await;
    let mut generated: Value = serde_json::from_str(&expensive("x")).expect("JSON");
    generated["metadata"] = json!({"generateName": "w-"});
    let (code, created) = world.send("POST", WIDGETS, generated.to_string()).await;
    assert_eq!(code, 201);
    let (_, list) = world.send("GET", WIDGETS, String::new()).await;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    let name = created["metadata"]["name"].as_str().expect("a name");
    let (code, updated) = world.send("PUT", &format!("{WIDGETS}/{name}"), created.to_string()).await;
    assert_eq!((code, &updated["metadata"]["resourceVersion"]), (200, &created["metadata"]["resourceVersion"]));
}

#[tokio::test]
async fn expensive_pattern_match_is_rejected_with_504_within_the_timeout() {
    let world = World::new().await;
    let begun = Instant::now();
    let (code, status) = world.send("POST", WIDGETS, widget("a", json!({"text": "ab".repeat(1_000_000)}))).await;
    assert_eq!(code, 504, "{}", status["message"]);
    // The deadline of the request is 60 s.
    assert!(begun.elapsed() < Duration::from_secs(40), "it took {:?}", begun.elapsed());
}

#[tokio::test]
async fn object_nested_100_levels_deep_is_stored_and_read() {
    let world = World::new().await;
    let nested = |levels: usize| {
        let spec = format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
        let head = r#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"deep"},"free":"#;
        format!("{head}{spec}}}")
    };
    let (code, created) = world.send("POST", WIDGETS, nested(100)).await;
    assert_eq!(code, 201, "{created}");
    let (_, list) = world.send("GET", WIDGETS, String::new()).await;
    assert_eq!(list["items"][0]["free"], created["free"]);
    let apply = Request::patch(format!("{WIDGETS}/deep?fieldManager=m&force=true"));
    let apply = apply.header("content-type", "application/apply-patch+yaml");
    let apply = apply.body(Full::new(Bytes::from(nested(101)))).expect("a request");
    let response = world.server.service().handle(apply).await;
    assert_eq!(response.status(), 200);
    let (code, status) = world.send("POST", WIDGETS, nested(200).replace("deep", "deeper")).await;
    assert_eq!(code, 400);
    assert!(status["message"].as_str().is_some_and(|text| text.contains("exceeded max depth")), "{status}");
}

/// Maximum delay of a response after its deadline, on a machine that parses 3 MB of JSON in less than 0.4 s.
const GRACE: Duration = Duration::from_secs(4);
/// Maximum delay on a slower machine, as a multiple of the time to parse 3 MB of JSON.
const PARSE_TIMES_MAX: u32 = 10;
/// Maximum number of attempts. The fastest response counts, because a stall of the machine delays only one.
const ATTEMPTS_MAX: usize = 3;

/// Returns the shortest of three times to parse 3 MB of JSON.
fn parse_time() -> Duration {
    let body = format!("[{}]", vec!["{}"; 1_000_000].join(","));
    let parse = || {
        let begun = Instant::now();
        let _: Value = serde_json::from_slice(body.as_bytes()).expect("JSON");
        begun.elapsed()
    };
    parse().min(parse()).min(parse())
}

#[tokio::test]
async fn expensive_hostile_body_gets_a_response_within_the_request_timeout() {
    let world = World::new().await;
    let strings = |count: usize| (0..count).map(|number| format!("{number}")).collect::<Vec<_>>();
    // A repeated create must not fail early because the name exists.
    let generated = |body: String| body.replacen(r#""name":"x""#, r#""generateName":"x-""#, 1);
    let patch = |count: usize| vec![json!({"op": "add", "path": "/free/list/0", "value": 1}); count];
    assert_eq!(world.send("POST", WIDGETS, widget("large", json!({"free": {"list": strings(50_000)}}))).await.0, 201);
    let maps = "/api/v1/namespaces/default/configmaps";
    let yaml = "application/apply-patch+yaml";
    let timeout = Duration::from_secs(1);
    let lines: String = (0..100_000).map(|number| format!("  key-{number}: value\n")).collect();
    for (what, method, path, content_type, body) in [
        ("enum", "POST", WIDGETS.to_owned(), "application/json", generated(expensive("x"))),
        (
            "regular expression",
            "POST",
            WIDGETS.to_owned(),
            "application/json",
            generated(widget("x", json!({"text": "ab".repeat(40_000)}))),
        ),
        (
            "unknown members",
            "POST",
            WIDGETS.to_owned(),
            "application/json",
            generated(widget("x", json!({"items": strings(200_000)}))),
        ),
        ("nested YAML", "PATCH", format!("{maps}/y?fieldManager=m"), yaml, "{a: ".repeat(500_000)),
        ("wide YAML", "PATCH", format!("{maps}/y?fieldManager=m"), yaml, format!("data:\n{lines}")),
        ("broken JSON", "PATCH", format!("{maps}/y?fieldManager=m"), yaml, r#"{"a":"#.repeat(500_000)),
        (
            "YAML of a review",
            "POST",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews".to_owned(),
            "application/yaml",
            format!("spec:\n{lines}"),
        ),
        ("YAML of a delete", "DELETE", format!("{maps}/none"), "application/yaml", format!("x:\n{lines}")),
        (
            "JSON patch",
            "PATCH",
            format!("{WIDGETS}/large"),
            "application/json-patch+json",
            json!(patch(10_000)).to_string(),
        ),
    ] {
        let separator = if path.contains('?') { '&' } else { '?' };
        let body = Bytes::from(body);
        let mut fastest = Duration::MAX;
        for _ in 0..ATTEMPTS_MAX {
            let request = Request::builder().method(method).uri(format!("{path}{separator}timeout=1s"));
            let request = request.header("content-type", content_type).body(Full::new(body.clone()));
            let begun = Instant::now();
            let response = world.server.service().handle(request.expect("a request")).await;
            fastest = fastest.min(begun.elapsed());
            assert!(
                [200, 201, 400, 404, 422, 500, 504].contains(&response.status().as_u16()),
                "{what}: {}",
                response.status()
            );
            if fastest < timeout + GRACE {
                break;
            }
        }
        let is_timely = fastest < timeout + GRACE || fastest < timeout + PARSE_TIMES_MAX * parse_time();
        assert!(is_timely, "{what} took {fastest:?}");
    }
}

#[tokio::test]
async fn impersonated_requests_use_the_compute_slots_of_the_authenticated_user() {
    const REQUESTS: usize = 190;
    let world = Arc::new(World::new().await);
    let body = Bytes::from(expensive("x").replace(r#""name":"x""#, r#""generateName":"x-""#));
    let mut requests = tokio::task::JoinSet::new();
    for number in 0..REQUESTS {
        let request = Request::post(WIDGETS).header("content-type", "application/json");
        let request = request.header("impersonate-user", format!("user-{number}"));
        let request = request.header("impersonate-group", "system:masters").body(Full::new(body.clone()));
        let (world, request) = (Arc::clone(&world), request.expect("a request"));
        requests.spawn(async move { world.server.service().handle(request).await.status().as_u16() });
    }
    // Up to a few requests compute and 50 wait. The queue of all users has room for more requests than these.
    while let Some(code) = requests.join_next().await {
        match code.expect("no panic") {
            429 => return,
            code => assert!([201, 504].contains(&code), "{code}"),
        }
    }
    panic!("each impersonated name has turns of its own");
}
