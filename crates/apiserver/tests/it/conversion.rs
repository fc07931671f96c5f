//! Tests custom resources with the conversion strategy `Webhook`, from request to response.
//!
//! Widgets have two versions: `v1` with `spec.hostPort` and `spec.count`, `v2` with `spec.host`, `spec.port` and
//! `spec.replicas`.
//!
//! Most tests pause the clock, so that no deadline passes while the server computes on a slow machine.

mod managers;
mod remote;
mod stored_versions;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use listwatch_apiserver::webhook::ConversionRequest;
use listwatch_apiserver::{ApiServer, Builder};
use listwatch_json::{Value, json};

use crate::crds::world::{CRDS, Stream, World, widget};

const V1: &str = "/apis/example.com/v1/namespaces/default/widgets";
const V2: &str = "/apis/example.com/v2/namespaces/default/widgets";
const MERGE: &str = "application/merge-patch+json";
/// The number of watches of v2 in a measurement of conversions.
const WATCHES: usize = 100;
/// The wait for an event. After it, the event counts as missing.
const EVENT_WAIT: Duration = Duration::from_secs(60);
/// The memory limit of the caches of a server that has no room for widgets, in bytes.
const CACHE_BYTES_MAX: usize = 512 << 10;

/// The behavior of the converter in a test.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Mode {
    #[default]
    Correct,
    Fails,
    Panics,
    Hangs,
    /// Returns correct objects, but only after the mode was changed.
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

    fn mode(&self) -> Mode {
        *self.mode.lock().unwrap()
    }

    /// Returns the numbers of calls and objects since the last call of this function.
    fn take_counts(&self) -> (usize, usize) {
        (self.calls.swap(0, Ordering::SeqCst), self.objects.swap(0, Ordering::SeqCst))
    }

    async fn convert(self, request: ConversionRequest) -> Result<Vec<Value>, String> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.objects.fetch_add(request.objects.len(), Ordering::SeqCst);
        let mode = self.mode();
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
            Mode::Slow => {
                while self.mode() == Mode::Slow {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            Mode::ReturnsNothing => converted.clear(),
            Mode::Renames => converted[0]["metadata"]["name"] = json!("other"),
            Mode::DropsMetadata => drop(converted[0].as_object_mut().unwrap().shift_remove("metadata")),
        }
        Ok(converted)
    }

    async fn world(&self) -> World {
        self.world_of(ApiServer::builder()).await
    }

    async fn world_of(&self, builder: Builder) -> World {
        let converter = self.clone();
        let builder = builder.converter("widgets.example.com", move |request| converter.clone().convert(request));
        let world = World::of(Arc::new(builder.build().await.unwrap()));
        world.define(&definition("v1")).await;
        world.serves("example.com/v2").await;
        world
    }

    /// Returns a world whose server has dropped the cache of v2, so that each watch of v2 converts its own events.
    async fn world_without_cache(&self) -> World {
        let world = self.world_of(ApiServer::builder().cache_bytes_max(Some(CACHE_BYTES_MAX))).await;
        let large = v1("large", &format!("{}:1", "l".repeat(2 * CACHE_BYTES_MAX)));
        assert_eq!(world.post(V1, &large).await.0, 201);
        let begun = Instant::now();
        loop {
            // The first list fills the cache, if there is one. The second list is converted only without a cache.
            let (code, _) = world.get(V2).await;
            self.take_counts();
            world.get(V2).await;
            if self.take_counts() != (0, 0) && code == 200 {
                return world;
            }
            assert!(begun.elapsed() < EVENT_WAIT, "this test needs a server that drops the cache of v2");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
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

#[tokio::test(start_paused = true)]
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

#[tokio::test(start_paused = true)]
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

#[tokio::test(start_paused = true)]
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

/// Returns the resource version of the list of v2.
async fn current_version(world: &World) -> String {
    world.get(V2).await.1["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

async fn watch_after(world: &World, path: &str, version: &str) -> Stream {
    world.stream(&format!("{path}?watch=true&resourceVersion={version}")).await
}

/// Returns the next event of a watch; `None` if the watch ends or delivers nothing for [`EVENT_WAIT`].
async fn next_event(watch: &mut Stream) -> Option<Value> {
    tokio::time::timeout(EVENT_WAIT, watch.next()).await.ok().flatten()
}

/// Returns the type of each event, and the version and spec of its object.
fn contents(events: &[Value]) -> Value {
    events.iter().map(|event| json!([event["type"], event["object"]["apiVersion"], event["object"]["spec"]])).collect()
}

/// The events of one created and deleted object, and the conversions for these events.
#[derive(Clone, Debug, Default)]
struct Conversions {
    /// The events of each watch of v2.
    converted: Vec<Vec<Value>>,
    /// The events of a watch of v2 that starts after the deletion, from the version before the creation.
    late: Vec<Value>,
    /// The events of a watch of v1, the storage version.
    stored: Vec<Value>,
    /// The calls of the converter and the converted objects: for the creation, the deletion and the late watch.
    counts: Vec<(usize, usize)>,
}

/// Creates and deletes an object in v1 beside [`WATCHES`] watches of v2.
async fn measure_conversions(world: &World, converter: &Converter) -> Conversions {
    let from = current_version(world).await;
    let mut watches = Vec::new();
    for number in 0..WATCHES {
        // Views and selectors share the conversion, too.
        let selector = if number % 2 == 0 { "" } else { "&fieldSelector=spec.host%3Dh" };
        watches.push(world.stream(&format!("{V2}?watch=true&resourceVersion={from}{selector}")).await);
    }
    let mut own = watch_after(world, V1, &from).await;
    let mut found = Conversions { converted: vec![Vec::new(); WATCHES], ..Conversions::default() };
    converter.take_counts();
    for is_deletion in [false, true] {
        if is_deletion {
            world.delete(&format!("{V1}/a")).await;
        } else {
            world.post(V1, &v1("a", "h:1")).await;
        }
        for (watch, events) in watches.iter_mut().zip(&mut found.converted) {
            // One missing event is enough to report.
            let Some(event) = next_event(watch).await else { break };
            events.push(event);
        }
        found.stored.extend(next_event(&mut own).await);
        found.counts.push(converter.take_counts());
    }
    found.late = world.watch(&format!("{V2}?watch=true&resourceVersion={from}&timeoutSeconds=1")).await;
    found.counts.push(converter.take_counts());
    found
}

/// Judges the events and conversions of one created and deleted object.
///
/// # Errors
/// The broken guarantee.
fn judge_conversions(found: &Conversions) -> Result<(), String> {
    let expected = |version: &str, spec: Value| {
        let version = format!("example.com/{version}");
        json!([["ADDED", version, spec], ["DELETED", version, spec]])
    };
    let converted = expected("v2", json!({"host": "h", "port": "1"}));
    for received in found.converted.iter().chain([&found.late]).map(|events| contents(events)) {
        if received != converted {
            return Err(format!("Converted once: a watch of v2 lacks a converted event: {received}"));
        }
    }
    let received = contents(&found.stored);
    if received != expected("v1", json!({"hostPort": "h:1"})) {
        return Err(format!("Converted once: a watch of the storage version lacks an event: {received}"));
    }
    // The deleted object is that of the cache, and the history holds converted events.
    if found.counts != [(1, 1), (0, 0), (0, 0)] {
        let counts = &found.counts;
        return Err(format!("Converted once: an event is converted again, with (calls, objects) {counts:?}"));
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn event_is_converted_once_for_all_watchers_of_a_version() {
    let converter = Converter::default();
    let world = converter.world().await;
    let found = measure_conversions(&world, &converter).await;
    judge_conversions(&found).unwrap_or_else(|broken| panic!("{broken}"));
}

#[tokio::test(start_paused = true)]
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

/// The responses to clients before, during and after a failure of the converter.
#[derive(Clone, Debug, Default)]
struct FailedConversion {
    /// The events of a watch of v2: one before the failure, and the error.
    converted: Vec<Value>,
    /// Whether the watch of v2 ended after the error.
    has_ended: bool,
    /// The events of a watch of v1, the storage version.
    stored: Vec<Value>,
    /// The codes and bodies of the responses to [`requests_during_failure`].
    responses: Vec<(u16, Value)>,
    /// The events of v2 after the last event before the failure.
    resumed: Vec<Value>,
}

/// Returns the method, path and expected code of each request. A create sends an object of v2 with the name `c`.
fn requests_during_failure() -> [(&'static str, String, u16); 7] {
    [
        ("GET", V1.to_owned(), 200),
        ("GET", format!("{V1}/b"), 200),
        ("GET", format!("{V2}/b"), 500),
        ("GET", V2.to_owned(), 500),
        ("GET", "/readyz".to_owned(), 200),
        ("POST", V2.to_owned(), 500),
        // The rejected object is not stored.
        ("GET", format!("{V1}/c"), 404),
    ]
}

/// Creates one object before the converter has the mode `failure`, one during it, and one after it.
async fn observe_failure(world: &World, converter: &Converter, failure: Mode) -> FailedConversion {
    let mut found = FailedConversion::default();
    let mut seen = current_version(world).await;
    let mut watch = watch_after(world, V2, &seen).await;
    let mut other = watch_after(world, V1, &seen).await;
    world.post(V1, &v1("a", "h:1")).await;
    found.converted.extend(next_event(&mut watch).await);
    found.stored.extend(next_event(&mut other).await);
    converter.set(failure);
    world.post(V1, &v1("b", "h:2")).await;
    found.converted.extend(next_event(&mut watch).await);
    if found.converted.last().is_some_and(|event| event["type"] == "ERROR") {
        found.has_ended = matches!(tokio::time::timeout(EVENT_WAIT, watch.next()).await, Ok(None));
    }
    found.stored.extend(next_event(&mut other).await);
    for (method, path, _) in requests_during_failure() {
        found.responses.push(match method {
            "POST" => world.post(&path, &v2("c", "h", "3")).await,
            _ => world.get(&path).await,
        });
    }
    converter.set(Mode::Correct);
    world.post(V1, &v1("d", "h:4")).await;
    let version_of = |event: &Value| event["object"]["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    seen = found.converted.iter().filter_map(version_of).next_back().unwrap_or(seen);
    let begun = Instant::now();
    let mut resumed = watch_after(world, V2, &seen).await;
    while found.resumed.len() < 2 && begun.elapsed() < EVENT_WAIT {
        let Some(event) = next_event(&mut resumed).await else { break };
        if event["object"]["message"] == FAILED {
            // The watch began before the cache tried again.
            resumed = watch_after(world, V2, &seen).await;
            continue;
        }
        seen = version_of(&event).unwrap_or(seen);
        found.resumed.push(event);
    }
    found
}

/// Judges the responses to clients before, during and after a failure of the converter.
///
/// # Errors
/// The broken guarantee.
fn judge_failure(found: &FailedConversion) -> Result<(), String> {
    let added = |version: &str, specs: [Value; 2]| -> Value {
        let version = format!("example.com/{version}");
        specs.into_iter().map(|spec| json!(["ADDED", version, spec])).collect()
    };
    let FailedConversion { converted, has_ended, stored, responses, resumed } = found;
    let is_failure = |event: &Value| {
        let status = &event["object"];
        let has_text = status["message"] == FAILED && status.get("reason").is_none();
        event["type"] == "ERROR" && status["code"] == 500 && has_text
    };
    let is_as_promised = matches!(&converted[..], [first, error] if first["type"] == "ADDED" && is_failure(error));
    if !is_as_promised || !has_ended {
        return Err(format!("Converted once: a failed conversion does not end a watch with its error: {converted:?}"));
    }
    let received = contents(stored);
    if received != added("v1", [json!({"hostPort": "h:1"}), json!({"hostPort": "h:2"})]) {
        return Err(format!("Converted once: a failed conversion affects a watch of another version: {received}"));
    }
    for ((method, path, expected), (code, body)) in requests_during_failure().iter().zip(responses) {
        let is_create = *method == "POST";
        let text = if is_create { FAILED.replace("/v1", "/v2") } else { FAILED.to_owned() };
        let is_explained = *code != 500 || body["message"] == text;
        if code != expected || !is_explained || (is_create && body.get("reason").is_some()) {
            let found = format!("{method} {path}: {code} {body}");
            return Err(format!("Converted once: an unexpected response during a failed conversion: {found}"));
        }
    }
    let received = contents(resumed);
    if received != added("v2", [json!({"host": "h", "port": "2"}), json!({"host": "h", "port": "4"})]) {
        return Err(format!("Converted once: a watch after a failed conversion misses an event: {received}"));
    }
    Ok(())
}

#[tokio::test]
async fn failed_conversion_ends_watches_of_the_version_without_losing_events() {
    let converter = Converter::default();
    let world = converter.world().await;
    let found = observe_failure(&world, &converter, Mode::Fails).await;
    judge_failure(&found).unwrap_or_else(|broken| panic!("{broken}"));
}

/// Asserts that a judge reports a bug with this text.
fn assert_reported(judged: Result<(), String>, broken: &str) {
    let expected = format!("Converted once: {broken}");
    assert!(judged.as_ref().is_err_and(|text| text.starts_with(&expected)), "{expected:?} is reported as {judged:?}");
}

/// The expected part of a report, and the change of a record that must cause the report.
type PlantedBug<R> = (&'static str, fn(&mut R));

#[tokio::test]
async fn checker_reports_each_planted_bug_of_the_conversion() {
    let converter = Converter::default();
    let uncached = measure_conversions(&converter.world_without_cache().await, &converter).await;
    assert_reported(judge_conversions(&uncached), "an event is converted again");
    let converter = Converter::default();
    let sound = measure_conversions(&converter.world().await, &converter).await;
    assert_eq!(judge_conversions(&sound), Ok(()));
    let bugs: [PlantedBug<Conversions>; 8] = [
        ("a watch of v2 lacks", |found| drop(found.converted[57].remove(0))),
        ("a watch of v2 lacks", |found| drop(found.converted[58].pop())),
        ("a watch of v2 lacks", |found| found.converted[59][0] = found.stored[0].clone()),
        ("a watch of v2 lacks", |found| found.late.clear()),
        ("a watch of the storage version lacks", |found| drop(found.stored.pop())),
        ("an event is converted again", |found| found.counts[0] = (2, 2)),
        ("an event is converted again", |found| found.counts[1] = (1, 1)),
        ("an event is converted again", |found| found.counts[2] = (1, 2)),
    ];
    for (broken, plant) in bugs {
        let mut found = sound.clone();
        plant(&mut found);
        assert_reported(judge_conversions(&found), broken);
    }

    // A converter that does not fail stands for a watch that continues past a failed conversion.
    let converter = Converter::default();
    let continued = observe_failure(&converter.world().await, &converter, Mode::Correct).await;
    assert_reported(judge_failure(&continued), "a failed conversion does not end a watch");
    let converter = Converter::default();
    let sound = observe_failure(&converter.world().await, &converter, Mode::Fails).await;
    assert_eq!(judge_failure(&sound), Ok(()));
    let bugs: [PlantedBug<FailedConversion>; 9] = [
        ("a failed conversion does not end a watch", |found| found.has_ended = false),
        ("a failed conversion does not end a watch", |found| drop(found.converted.pop())),
        ("a failed conversion does not end a watch", |found| drop(found.converted.remove(0))),
        ("a failed conversion does not end a watch", |found| found.converted[1]["object"]["code"] = json!(410)),
        ("a failed conversion affects a watch", |found| drop(found.stored.pop())),
        ("an unexpected response during", |found| found.responses[0].0 = 500),
        ("an unexpected response during", |found| found.responses[5].0 = 201),
        ("a watch after a failed conversion misses", |found| drop(found.resumed.remove(0))),
        ("a watch after a failed conversion misses", |found| drop(found.resumed.pop())),
    ];
    for (broken, plant) in bugs {
        let mut found = sound.clone();
        plant(&mut found);
        assert_reported(judge_failure(&found), broken);
    }
}

#[tokio::test(start_paused = true)]
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
    for (name, host) in [("b", "good"), ("c", "good"), ("d", "bad")] {
        world.post(V1, &v1(name, host)).await;
    }
    converter.set(Mode::FailsFor("bad"));
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

#[tokio::test(start_paused = true)]
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
    // The limit for a call of the converter is 30 s.
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    let (code, status) = world.get(V2).await;
    assert_eq!((code, &status["reason"]), (429, &json!("TooManyRequests")), "the cache is not filled: {status}");
    for path in [V1, "/api/v1/namespaces", "/readyz"] {
        assert_eq!(world.get(path).await.0, 200, "{path}");
    }
    assert_eq!(world.post(V1, &v1("c", "h:1")).await.0, 201);
}

#[tokio::test(start_paused = true)]
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

#[tokio::test(start_paused = true)]
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
