//! `conversion`: the events per second that watches of a converted version deliver, compared with watches of a
//! definition without conversion. The converter runs in this process. Prints a table. The sizes are small unless
//! `cargo bench` runs it.
//!
//! Events enter the store directly, so their writes cost little. The server, its watches and the converter share one
//! runtime with two workers. Watchers read every byte of their responses. No sockets, no TLS.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::webhook::ConversionRequest;
use listwatch_apiserver::{ApiServer, Body};
use listwatch_benches::{answers_list, measured};
use listwatch_json::{Value, json};
use listwatch_meta::Key;
use listwatch_storage::{MemoryStorage, Storage as _};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// The smallest rate of converted watches, as a share of the rate of unconverted ones.
const SHARE_MIN: f64 = 0.5;

async fn send(server: &ApiServer, method: &str, path: &str, body: &Value) -> http::Response<Body> {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    server.service().handle(request.body(Full::new(body)).expect("a request")).await
}

/// The definition of gadgets in two versions, with or without schemas and conversion.
fn definition(with_schema: bool, is_converted: bool) -> Value {
    let text = || json!({"type": "string"});
    let version = |name: &str, field: &str| {
        let schema = match with_schema {
            true => json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
                field: text(), "payload": text(), "turn": {"type": "integer"}}}}}),
            false => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        };
        json!({"name": name, "served": true, "storage": name == "v1", "schema": {"openAPIV3Schema": schema}})
    };
    let conversion = match is_converted {
        true => json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:1/"}}}),
        false => json!({"strategy": "None"}),
    };
    json!({"metadata": {"name": "gadgets.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"},
        "versions": [version("v1", "size"), version("v2", "length")],
        "conversion": conversion}})
}

/// Renames a field, as a typical converter does.
async fn convert(request: ConversionRequest) -> Result<Vec<Value>, String> {
    let (from, to) = if request.desired_api_version.ends_with("/v2") { ("size", "length") } else { ("length", "size") };
    let convert = |mut object: Value| {
        object["apiVersion"] = json!(request.desired_api_version);
        if let Some(Value::Object(spec)) = object.get_mut("spec")
            && let Some(value) = spec.shift_remove(from)
        {
            spec.insert(to.to_owned(), value);
        }
        object
    };
    Ok(request.objects.into_iter().map(convert).collect())
}

/// The stored bytes of a gadget of about 1 KiB.
fn gadget(number: usize, turn: usize) -> Bytes {
    let payload = "0123456789abcdef".repeat(40);
    format!(
        "{{\"kind\":\"Gadget\",\"apiVersion\":\"example.com/v1\",\"metadata\":{{\"name\":\"g{number:04}\",\"namespace\":\"default\",\
         \"uid\":\"5f0c1d1e-0000-4000-8000-{number:012}\",\"generation\":1,\"creationTimestamp\":\"2026-01-05T08:00:00Z\",\
         \"labels\":{{\"app\":\"shop\",\"tier\":\"front\"}},\"managedFields\":[{{\"manager\":\"bench\",\"operation\":\"Update\",\
         \"apiVersion\":\"example.com/v1\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{{\"f:spec\":{{\"f:size\":{{}},\"f:payload\":{{}}}}}}}}]}},\
         \"spec\":{{\"size\":\"m\",\"turn\":{turn},\"payload\":\"{payload}\"}}}}"
    )
    .into()
}

/// Reads a watch until it has delivered this number of events.
async fn read(mut body: Body, events: usize, version: &'static str) {
    let field: &[u8] = if version == "v2" { b"\"length\":\"m\"" } else { b"\"size\":\"m\"" };
    let mut seen = 0;
    let mut checked = false;
    while seen < events {
        let frame = body.frame().await.expect("the watch ended").expect("a whole response");
        let data = frame.into_data().expect("data");
        if !checked && data.len() > 100 {
            assert!(data.windows(field.len()).any(|window| window == field), "the objects are in {version}");
            checked = true;
        }
        seen += data.iter().filter(|byte| **byte == b'\n').count();
    }
}

/// The time that `watchers` of a version need for `events` changes: of v2 with conversion, or of v1 without.
async fn round(version: &'static str, watchers: usize, events: usize, with_schema: bool) -> Duration {
    let store = MemoryStorage::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let converter = move |request: ConversionRequest| {
        counted.fetch_add(request.objects.len(), Ordering::Relaxed);
        convert(request)
    };
    let server = ApiServer::builder().storage(store.clone()).converter("gadgets.example.com", converter);
    let server = server.build().await.expect("a server");
    assert_eq!(send(&server, "POST", DEFINITIONS, &definition(with_schema, version == "v2")).await.status(), 201);
    let path = format!("/apis/example.com/{version}/namespaces/default/gadgets");
    assert_eq!(send(&server, "GET", &path, &Value::Null).await.status(), 200, "the cache is filled");
    let mut readers = Vec::new();
    for _ in 0..watchers {
        let response = send(&server, "GET", &format!("{path}?watch=true"), &Value::Null).await;
        assert_eq!(response.status(), 200);
        readers.push(tokio::spawn(read(response.into_body(), events, version)));
    }
    let begun = Instant::now();
    for number in 0..events {
        let key = Key::new("example.com/gadgets", Some("default"), &format!("g{number:04}")).expect("a name");
        store.create(&key, gadget(number, number), None).await.expect("stored");
        if number % 64 == 63 {
            tokio::task::yield_now().await;
        }
    }
    for reader in readers {
        reader.await.expect("all events");
    }
    let took = begun.elapsed();
    let converted = calls.load(Ordering::Relaxed);
    assert_eq!(converted, if version == "v2" { events } else { 0 }, "each event is converted once");
    took
}

fn main() {
    if answers_list("conversion") {
        return;
    }
    let (events, rounds) = if measured() { (9_000, 5) } else { (50, 1) };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    println!("| watchers | schema | unconverted, events per second | converted, events per second | share |");
    println!("|---|---|---|---|---|");
    for with_schema in [false, true] {
        for watchers in [1, 100] {
            let rate = |version: &'static str| {
                let times = (0..rounds).map(|_| runtime.block_on(round(version, watchers, events, with_schema)));
                let best = times.min().expect("a round");
                events as f64 / best.as_secs_f64()
            };
            let (own, converted) = (rate("v1"), rate("v2"));
            let share = converted / own;
            println!("| {watchers} | {with_schema} | {own:.0} | {converted:.0} | {:.0} % |", share * 100.0);
            assert!(!measured() || share >= SHARE_MIN, "converted watches deliver {share:.2} of the unconverted rate");
        }
    }
}
