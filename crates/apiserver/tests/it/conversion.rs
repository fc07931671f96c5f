//! Tests custom resources with the conversion strategy `Webhook`, from request to response.
//!
//! Widgets have two versions: `v1` with `spec.hostPort` and `spec.count`, `v2` with `spec.host`, `spec.port` and
//! `spec.replicas`.

mod managers;
mod remote;
mod stored_versions;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use listwatch_apiserver::ApiServer;
use listwatch_apiserver::webhook::ConversionRequest;
use listwatch_json::{Value, json};

use crate::crds::world::{CRDS, World, widget};

const V1: &str = "/apis/example.com/v1/namespaces/default/widgets";
const V2: &str = "/apis/example.com/v2/namespaces/default/widgets";
const MERGE: &str = "application/merge-patch+json";

/// The behavior of the converter in a test.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Mode {
    #[default]
    Correct,
    Fails,
    Panics,
    Hangs,
    Slow,
    ReturnsNothing,
    Renames,
    DropsMetadata,
    /// Fails for objects with this host.
    FailsFor(&'static str),
}

/// A converter of widgets that counts its calls.
#[derive(Clone, Default)]
struct Converter {
    calls: Arc<AtomicUsize>,
    objects: Arc<AtomicUsize>,
    mode: Arc<Mutex<Mode>>,
}

impl Converter {
    fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }

    /// Returns the numbers of calls and objects since the last call of this function.
    fn take_counts(&self) -> (usize, usize) {
        (self.calls.swap(0, Ordering::SeqCst), self.objects.swap(0, Ordering::SeqCst))
    }

    async fn convert(self, request: ConversionRequest) -> Result<Vec<Value>, String> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.objects.fetch_add(request.objects.len(), Ordering::SeqCst);
        let mode = *self.mode.lock().unwrap();
        let desired = request.desired_api_version;
        let mut converted: Vec<Value> = request.objects.iter().map(|object| convert_widget(object, &desired)).collect();
        let hosts = |host: &str| request.objects.iter().any(|object| host_of(object).0 == host);
        match mode {
            Mode::Correct => {}
            Mode::Fails => return Err("the converter is broken".to_owned()),
            Mode::FailsFor(host) if hosts(host) => return Err(format!("{host} cannot be converted")),
            Mode::FailsFor(_) => {}
            Mode::Panics => panic!("the converter panics"),
            Mode::Hangs => std::future::pending().await,
            Mode::Slow => tokio::time::sleep(Duration::from_millis(500)).await,
            Mode::ReturnsNothing => converted.clear(),
            Mode::Renames => converted[0]["metadata"]["name"] = json!("other"),
            Mode::DropsMetadata => drop(converted[0].as_object_mut().unwrap().shift_remove("metadata")),
        }
        Ok(converted)
    }

    async fn world(&self) -> World {
        let converter = self.clone();
        let server = ApiServer::builder()
            .converter("widgets.example.com", move |request| converter.clone().convert(request))
            .build()
            .await
            .unwrap();
        let world = World::of(Arc::new(server));
        world.define(&definition("v1")).await;
        world
    }
}

fn host_of(object: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let spec = &object["spec"];
    if object["apiVersion"] == "example.com/v1" {
        let host_port = text(&spec["hostPort"]);
        let (host, port) = host_port.split_once(':').unwrap_or((&host_port, ""));
        (host.to_owned(), port.to_owned())
    } else {
        (text(&spec["host"]), text(&spec["port"]))
    }
}

fn convert_widget(object: &Value, desired: &str) -> Value {
    let mut converted = object.clone();
    let (host, port) = host_of(object);
    let from_v1 = object["apiVersion"] == "example.com/v1";
    let count = &object["spec"][if from_v1 { "count" } else { "replicas" }];
    converted["apiVersion"] = json!(desired);
    if object["spec"].is_object() {
        let mut spec = if desired == "example.com/v1" {
            json!({"hostPort": format!("{host}:{port}"), "count": count})
        } else {
            json!({"host": host, "port": port, "replicas": count})
        };
        spec.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        converted["spec"] = spec;
    }
    converted
}

/// Returns the definition of widgets with this storage version.
fn definition(storage: &str) -> Value {
    let version = |name: &str, fields: Value, replicas: &str| {
        json!({"name": name, "served": true, "storage": name == storage,
            "subresources": {"status": {}, "scale": {"specReplicasPath": replicas, "statusReplicasPath": ".status.replicas"}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": fields},
                "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}}}}}})
    };
    let text = || json!({"type": "string"});
    let mut v2 =
        version("v2", json!({"host": text(), "port": text(), "replicas": {"type": "integer"}}), ".spec.replicas");
    v2["selectableFields"] = json!([{"jsonPath": ".spec.host"}]);
    v2["additionalPrinterColumns"] = json!([{"name": "Host", "type": "string", "jsonPath": ".spec.host"}]);
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [version("v1", json!({"hostPort": text(), "count": {"type": "integer"}}), ".spec.count"), v2],
            "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
                "clientConfig": {"url": "https://127.0.0.1:1/convert"}}},
        },
    })
}

fn v1(name: &str, host_port: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"hostPort": host_port}})
}

fn v2(name: &str, host: &str, port: &str) -> Value {
    json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": name},
        "spec": {"host": host, "port": port}})
}

/// Asserts version and spec of an object.
fn check(object: &Value, version: &str, spec: Value) {
    assert_eq!((&object["apiVersion"], &object["spec"]), (&json!(format!("example.com/{version}")), &spec), "{object}");
}

#[tokio::test]
async fn writes_and_responses_have_the_version_of_their_path() {
    let world = Converter::default().world().await;
    let (code, created) = world.post(V2, &v2("a", "h", "1")).await;
    assert_eq!(code, 201, "{created}");
    check(&created, "v2", json!({"host": "h", "port": "1"}));
    check(&world.get(&format!("{V1}/a")).await.1, "v1", json!({"hostPort": "h:1"}));
    check(&world.get(&format!("{V2}/a")).await.1, "v2", json!({"host": "h", "port": "1"}));
    let managed = &created["metadata"]["managedFields"][0];
    assert_eq!(managed["apiVersion"], "example.com/v2", "{managed}");

    let mut update = created.clone();
    update["spec"]["port"] = json!("2");
    let (code, updated) = world.put(&format!("{V2}/a"), &update).await;
    assert_eq!((code, &updated["metadata"]["generation"]), (200, &json!(2)), "{updated}");
    check(&updated, "v2", json!({"host": "h", "port": "2"}));
    let (_, patched) = world.patch(&format!("{V1}/a"), MERGE, json!({"spec": {"count": 3}})).await;
    check(&patched, "v1", json!({"hostPort": "h:2", "count": 3}));
    let operations = json!([{"op": "test", "path": "/spec/replicas", "value": 3},
        {"op": "replace", "path": "/spec/host", "value": "i"}]);
    let (_, patched) = world.patch(&format!("{V2}/a"), "application/json-patch+json", operations).await;
    check(&patched, "v2", json!({"host": "i", "port": "2", "replicas": 3}));

    let (code, status) = world.patch(&format!("{V2}/a/status"), MERGE, json!({"status": {"replicas": 7}})).await;
    assert_eq!((code, &status["status"]), (200, &json!({"replicas": 7})), "{status}");
    check(&status, "v2", json!({"host": "i", "port": "2", "replicas": 3}));
    for path in [V1, V2] {
        let (_, scale) = world.get(&format!("{path}/a/scale")).await;
        assert_eq!((&scale["spec"], &scale["status"]), (&json!({"replicas": 3}), &json!({"replicas": 7})), "{scale}");
    }
    let (code, scale) = world.patch(&format!("{V2}/a/scale"), MERGE, json!({"spec": {"replicas": 5}})).await;
    assert_eq!((code, &scale["spec"]), (200, &json!({"replicas": 5})), "{scale}");
    check(&world.get(&format!("{V1}/a")).await.1, "v1", json!({"hostPort": "i:2", "count": 5}));

    let (code, dry) = world.post(&format!("{V2}?dryRun=All"), &v2("dry", "h", "1")).await;
    assert_eq!(code, 201);
    check(&dry, "v2", json!({"host": "h", "port": "1"}));
    let held = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    assert_eq!(world.patch(&format!("{V1}/a"), MERGE, held).await.0, 200);
    let (code, marked) = world.delete(&format!("{V2}/a")).await;
    assert_eq!(code, 200);
    check(&marked, "v2", json!({"host": "i", "port": "2", "replicas": 5}));
    let (code, _) = world.patch(&format!("{V2}/a"), MERGE, json!({"metadata": {"finalizers": null}})).await;
    assert_eq!((code, world.get(&format!("{V1}/a")).await.0), (200, 404));
}

#[tokio::test]
async fn write_is_pruned_and_validated_in_the_version_of_its_path() {
    let world = Converter::default().world().await;
    let mut unknown = v2("a", "h", "1");
    unknown["spec"]["hostPort"] = json!("x:9");
    let (code, created) = world.post(V2, &unknown).await;
    assert_eq!(code, 201, "{created}");
    check(&created, "v2", json!({"host": "h", "port": "1"}));
    let mut wrong = v2("b", "h", "1");
    wrong["spec"]["port"] = json!(1);
    let (code, status) = world.post(V2, &wrong).await;
    let text = "spec.port: Invalid value: \"integer\": spec.port in body must be of type string: \"integer\"";
    assert!(code == 422 && status["message"].as_str().unwrap().contains(text), "{status}");
}

#[tokio::test]
async fn lists_are_converted_in_one_call_and_filtered_in_their_version() {
    let converter = Converter::default();
    let world = converter.world().await;
    for number in 0..20 {
        world.post(V1, &v1(&format!("w{number:02}"), &format!("h{}:{number}", number % 2))).await;
    }
    converter.take_counts();
    let (_, list) = world.get(V2).await;
    assert_eq!((&list["apiVersion"], &list["kind"]), (&json!("example.com/v2"), &json!("WidgetList")));
    assert_eq!(list["items"].as_array().unwrap().len(), 20);
    check(&list["items"][3], "v2", json!({"host": "h1", "port": "3"}));
    assert_eq!(converter.take_counts(), (1, 20), "one review for the list");
    for query in ["", "?resourceVersion=0", "?limit=7", "?fieldSelector=spec.host%3Dh1"] {
        let (code, list) = world.get(&format!("{V2}{query}")).await;
        assert_eq!(code, 200, "{list}");
        let wanted = if query.contains("limit") {
            7
        } else if query.contains("host") {
            10
        } else {
            20
        };
        assert_eq!(list["items"].as_array().unwrap().len(), wanted, "{query}");
    }
    let (_, page) = world.get(&format!("{V2}?limit=7")).await;
    let token = page["metadata"]["continue"].as_str().unwrap();
    let (_, page) = world.get(&format!("{V2}?limit=7&continue={token}")).await;
    check(&page["items"][0], "v2", json!({"host": "h1", "port": "7"}));
    let table = world.table(V2).await;
    assert_eq!(table["rows"][2]["cells"], json!(["w02", "h0"]));
    assert_eq!(table["rows"][2]["object"]["apiVersion"], "meta.k8s.io/v1");
    assert_eq!(converter.take_counts(), (0, 0), "the cache of the version answers");
    assert_eq!(world.get(&format!("{V1}?fieldSelector=spec.host%3Dh1")).await.0, 400);
    world.get(V1).await;
    world.get(&format!("{V1}/w00")).await;
    assert_eq!(converter.take_counts(), (0, 0), "stored objects have this version");
    let (_, deleted) = world.delete(&format!("{V2}?fieldSelector=spec.host%3Dh1")).await;
    check(&deleted["items"][0], "v2", json!({"host": "h1", "port": "1"}));
    assert_eq!(world.get(V1).await.1["items"].as_array().unwrap().len(), 10);
}

#[tokio::test]
async fn event_is_converted_once_for_all_watchers_of_a_version() {
    let converter = Converter::default();
    let world = converter.world().await;
    let from = world.get(V2).await.1["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut watches = Vec::new();
    for number in 0..100 {
        // Views and selectors share the conversion, too.
        let selector = if number % 2 == 0 { "" } else { "&fieldSelector=spec.host%3Dh" };
        watches.push(world.stream(&format!("{V2}?watch=true&resourceVersion={from}{selector}")).await);
    }
    let mut own = world.stream(&format!("{V1}?watch=true&resourceVersion={from}")).await;
    converter.take_counts();
    world.post(V1, &v1("a", "h:1")).await;
    for watch in &mut watches {
        let event = watch.next().await.unwrap();
        assert_eq!(event["type"], "ADDED");
        check(&event["object"], "v2", json!({"host": "h", "port": "1"}));
    }
    check(&own.next().await.unwrap()["object"], "v1", json!({"hostPort": "h:1"}));
    assert_eq!(converter.take_counts(), (1, 1), "one call for one event");
    // The deleted object is that of the cache.
    world.delete(&format!("{V1}/a")).await;
    for watch in &mut watches {
        let event = watch.next().await.unwrap();
        assert_eq!(event["type"], "DELETED");
        check(&event["object"], "v2", json!({"host": "h", "port": "1"}));
    }
    assert_eq!(converter.take_counts(), (0, 0));
    let late = world.watch(&format!("{V2}?watch=true&resourceVersion={from}&timeoutSeconds=1")).await;
    assert_eq!(late.len(), 2, "{late:?}");
    assert_eq!(converter.take_counts(), (0, 0), "the history holds converted events");
}

#[tokio::test]
async fn watch_list_and_partial_metadata_have_the_version_of_the_path() {
    let world = Converter::default().world().await;
    world.post(V1, &v1("a", "h:1")).await;
    let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = world.stream(&format!("{V2}?{query}")).await;
    check(&watch.next().await.unwrap()["object"], "v2", json!({"host": "h", "port": "1"}));
    let bookmark = watch.next().await.unwrap();
    assert_eq!((&bookmark["type"], &bookmark["object"]["apiVersion"]), (&json!("BOOKMARK"), &json!("example.com/v2")));
    let partial = world.accept(V2, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").await.1;
    let partial: Value = serde_json::from_slice(&partial).unwrap();
    assert_eq!(partial["items"][0]["metadata"]["name"], "a");
}

const FAILED: &str = "conversion webhook for example.com/v1, Kind=Widget failed: the converter is broken";

#[tokio::test]
async fn failed_conversion_ends_watches_of_the_version_without_losing_events() {
    let converter = Converter::default();
    let world = converter.world().await;
    let from = world.get(V2).await.1["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut watch = world.stream(&format!("{V2}?watch=true&resourceVersion={from}")).await;
    let mut other = world.stream(&format!("{V1}?watch=true&resourceVersion={from}")).await;
    world.post(V1, &v1("a", "h:1")).await;
    let seen = watch.next().await.unwrap()["object"]["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    other.next().await.unwrap();
    converter.set(Mode::Fails);
    world.post(V1, &v1("b", "h:2")).await;
    let error = watch.next().await.unwrap();
    let status = &error["object"];
    assert_eq!((&error["type"], &status["code"], &status["message"]), (&json!("ERROR"), &json!(500), &json!(FAILED)));
    assert_eq!(status.get("reason"), None, "{status}");
    assert_eq!(watch.next().await, None, "the watch ends");
    check(&other.next().await.unwrap()["object"], "v1", json!({"hostPort": "h:2"}));
    for (path, code) in [(V1.to_owned(), 200), (format!("{V1}/b"), 200), (format!("{V2}/b"), 500), (V2.to_owned(), 500)]
    {
        let (found, body) = world.get(&path).await;
        assert_eq!(found, code, "{path}: {body}");
        assert!(code == 200 || body["message"] == FAILED, "{path}: {body}");
    }
    assert_eq!(world.get("/readyz").await.0, 200, "the server stays ready");
    let (code, status) = world.post(V2, &v2("c", "h", "3")).await;
    let text = FAILED.replace("/v1", "/v2");
    assert_eq!((code, &status["message"], status.get("reason")), (500, &json!(text), None));
    assert_eq!(world.get(&format!("{V1}/c")).await.0, 404, "nothing is stored");
    converter.set(Mode::Correct);
    let mut resumed = world.stream(&format!("{V2}?watch=true&resourceVersion={seen}")).await;
    loop {
        // The watch may begin before the cache has tried again.
        let event = resumed.next().await.unwrap();
        if event["type"] == "ADDED" {
            check(&event["object"], "v2", json!({"host": "h", "port": "2"}));
            break;
        }
        assert_eq!(event["object"]["message"], FAILED);
        resumed = world.stream(&format!("{V2}?watch=true&resourceVersion={seen}")).await;
    }
}

#[tokio::test]
async fn events_before_an_unconvertible_object_are_delivered() {
    let converter = Converter::default();
    let world = converter.world().await;
    let from = world.get(V2).await.1["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut watch = world.stream(&format!("{V2}?watch=true&resourceVersion={from}")).await;
    // The first event keeps the converter busy, so that the next ones form one burst.
    converter.take_counts();
    converter.set(Mode::Slow);
    world.post(V1, &v1("a", "good:1")).await;
    while converter.calls.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    converter.set(Mode::FailsFor("bad"));
    for (name, host) in [("b", "good"), ("c", "good"), ("d", "bad")] {
        world.post(V1, &v1(name, host)).await;
    }
    let mut seen = Vec::new();
    loop {
        let event = watch.next().await.expect("the error comes before the end");
        if event["type"] == "ERROR" {
            let message = event["object"]["message"].as_str().unwrap();
            assert!(message.ends_with("failed: bad cannot be converted"), "{message}");
            break;
        }
        seen.push(event["object"]["metadata"]["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(seen, ["a", "b", "c"]);
    let (calls, objects) = converter.take_counts();
    assert!(calls >= 5 && objects >= 7, "a burst of three, then one by one: {calls} {objects}");
}

#[tokio::test]
async fn read_fails_with_upstreams_text_if_the_converter_violates_a_rule() {
    let converter = Converter::default();
    let world = converter.world().await;
    world.post(V1, &v1("a", "h:1")).await;
    for (mode, expected) in [
        (Mode::Fails, "failed: the converter is broken"),
        (Mode::Panics, "failed: the converter panicked"),
        (Mode::ReturnsNothing, "returned 0 objects, expected 1"),
        (Mode::Renames, "returned invalid object: must have the same name: a != other"),
        (Mode::DropsMetadata, "returned invalid object: must have the same name: a != "),
    ] {
        converter.set(mode);
        let (code, status) = world.get(&format!("{V2}/a")).await;
        let text = format!("conversion webhook for example.com/v1, Kind=Widget {expected}");
        assert_eq!((code, &status["message"]), (500, &json!(text)), "{mode:?}");
    }
    converter.set(Mode::Correct);
    assert_eq!(world.get(&format!("{V2}/a")).await.0, 200);
    let metrics = world.get("/metrics").await.1;
    let metrics = metrics.as_str().unwrap();
    // The cache of the version fails, too, while it is filled, so the counts are not fixed.
    for series in [
        "apiserver_conversion_webhook_request_total{failure_type=\"conversion_webhook_partial_response_failure\",result=\"failure\"} ",
        "apiserver_conversion_webhook_request_total{failure_type=\"conversion_webhook_invalid_converted_object_failure\",result=\"failure\"} ",
        "apiserver_crd_conversion_webhook_duration_seconds_count{crd_name=\"widgets.example.com\",from_version=\"v1\",succeeded=\"true\",to_version=\"v2\"} ",
    ] {
        let count = metrics.lines().find_map(|line| line.strip_prefix(series)?.parse::<u64>().ok());
        assert!(count.is_some_and(|count| count > 0), "no {series}");
    }
}

#[tokio::test]
async fn hanging_converter_delays_only_requests_for_the_other_version() {
    let converter = Converter::default();
    let world = converter.world().await;
    world.post(V1, &v1("a", "h:1")).await;
    converter.set(Mode::Hangs);
    let begun = Instant::now();
    let (code, status) = world.get(&format!("{V2}/a?timeout=1s")).await;
    assert_eq!(code, 504, "{status}");
    let (code, status) = world.post(&format!("{V2}?timeout=1s"), &v2("b", "h", "1")).await;
    assert!(code == 500 || code == 504, "{code} {status}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let (code, status) = world.get(V2).await;
    assert_eq!((code, &status["reason"]), (429, &json!("TooManyRequests")), "the cache is not filled: {status}");
    for path in [V1, "/api/v1/namespaces", "/readyz"] {
        assert_eq!(world.get(path).await.0, 200, "{path}");
    }
    assert_eq!(world.post(V1, &v1("c", "h:1")).await.0, 201);
}

#[tokio::test]
async fn changed_conversion_strategy_takes_effect_at_once_and_ends_watches() {
    let converter = Converter::default();
    let world = converter.world().await;
    world.post(V1, &v1("a", "h:1")).await;
    let mut watch = world.stream(&format!("{V2}?watch=true")).await;
    check(&watch.next().await.unwrap()["object"], "v2", json!({"host": "h", "port": "1"}));
    let path = format!("{CRDS}/widgets.example.com");
    let none = json!({"spec": {"conversion": {"strategy": "None", "webhook": null}}});
    let (code, status) = world.patch(&path, MERGE, none).await;
    assert_eq!(code, 200, "{status}");
    assert_eq!(watch.next().await, None);
    check(&world.get(&format!("{V2}/a")).await.1, "v2", json!({}));
}

#[tokio::test]
async fn hanging_converter_does_not_affect_other_custom_resources() {
    let converter = Converter::default();
    let world = converter.world().await;
    let mut other = crate::crds::world::definition();
    other["metadata"]["name"] = json!("gadgets.example.com");
    other["spec"]["names"] = json!({"plural": "gadgets", "kind": "Gadget"});
    world.define(&other).await;
    converter.set(Mode::Hangs);
    world.post(V1, &v1("a", "h:1")).await;
    let gadgets = "/apis/example.com/v1/namespaces/default/gadgets";
    let mut gadget = widget("g");
    gadget["kind"] = json!("Gadget");
    assert_eq!(world.post(gadgets, &gadget).await.0, 201);
    assert_eq!(world.get(gadgets).await.1["items"].as_array().unwrap().len(), 1);
}
