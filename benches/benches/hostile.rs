//! `hostile`: the latencies of `/livez`, a lease renewal and a watch while other clients send
//! expensive requests. Prints a table. The sizes are small unless `cargo bench` runs it.
//!
//! Server, probes and loads share one runtime with two workers in one process, so a request that
//! blocks a worker delays the probes. No sockets, no TLS.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::ApiServer;
use listwatch_benches::{answers_list, measured};
use listwatch_json::{Value, json};

const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

/// The number of clients per kind of load. Each sends one request after the other.
const CLIENTS: usize = 8;

/// The maximum 99th percentile of any probe under any load.
const P99_MAX: Duration = Duration::from_millis(50);

/// A kind of request.
struct Load {
    name: &'static str,
    method: &'static str,
    path: String,
    content_type: &'static str,
    body: Bytes,
}

async fn send(server: &ApiServer, method: &str, path: &str, content_type: &str, body: Bytes) -> u16 {
    exchange(server, method, path, content_type, body).await.0
}

/// Sends a request and returns the status code and the size of the body in bytes.
async fn exchange(server: &ApiServer, method: &str, path: &str, content_type: &str, body: Bytes) -> (u16, usize) {
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    let response = server.service().handle(request.body(Full::new(body)).expect("a request")).await;
    let code = response.status().as_u16();
    (code, response.into_body().collect().await.expect("a body").to_bytes().len())
}

fn json_bytes(value: &Value) -> Bytes {
    value.to_string().into()
}

fn widget(name: &str, members: Value) -> Bytes {
    let mut widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}});
    if let (Value::Object(widget), Value::Object(members)) = (&mut widget, members) {
        widget.extend(members);
    }
    json_bytes(&widget)
}

/// The definition of widgets, with an expensive schema.
fn definition() -> Value {
    let allowed: Vec<String> = (0..20_000).map(|number| format!("value-{number}")).collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object",
                "properties": {
                    "one": {"type": "array", "items": {"type": "string", "enum": allowed}},
                    "text": {"type": "string", "pattern": "(a|b|ab|ba){30}c"},
                    "unique": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                    "any": {"type": "array", "items": {"x-kubernetes-int-or-string": true}},
                    "rule": {"type": "array", "maxItems": 400, "items": {"type": "integer"},
                        "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x + y >= 0))"}]},
                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    "filled": {"type": "array", "items": {"type": "object", "properties": {
                        "a": {"type": "string", "default": "x".repeat(50_000)}}}},
                },
            }}}],
        },
    })
}

fn loads() -> Vec<Load> {
    let post = |name, members| Load {
        name,
        method: "POST",
        path: format!("{WIDGETS}?dryRun=All"),
        content_type: "application/json",
        body: widget("w", members),
    };
    let strings = |count: usize| (0..count).map(|number| format!("item-{number}")).collect::<Vec<_>>();
    let members = |count: usize| {
        let members: listwatch_json::Map = (0..count).map(|number| (format!("key-{number}"), json!("v"))).collect();
        Value::Object(members)
    };
    let apply = |name, body: String| Load {
        name,
        method: "PATCH",
        path: format!("{MAPS}/m?fieldManager=m&force=true&dryRun=All"),
        content_type: "application/apply-patch+yaml",
        body: body.into(),
    };
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": members(40_000)});
    let lines: String = (0..120_000).map(|number| format!("  key-{number}: value\n")).collect();
    let inserts: Vec<Value> = (0..3_000).map(|_| json!({"op": "add", "path": "/free/list/0", "value": 1})).collect();
    vec![
        post("regular expression", json!({"text": "ab".repeat(500_000)})),
        post("enum", json!({"one": vec!["value-19999"; 7_000]})),
        post("many errors", json!({"one": vec!["x"; 1_000]})),
        post("large defaults", json!({"filled": vec![json!({}); 20_000]})),
        post("unique items", json!({"unique": strings(100_000)})),
        post("rules", json!({"rule": (0..400).collect::<Vec<u32>>()})),
        post("large body", json!({"free": members(100_000)})),
        apply("deep YAML", "{a: ".repeat(100_000)),
        apply("wide YAML", format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\ndata:\n{lines}")),
        apply("large apply", config.to_string()),
        Load {
            name: "JSON patch",
            method: "PATCH",
            path: format!("{WIDGETS}/large?dryRun=All"),
            content_type: "application/json-patch+json",
            body: json_bytes(&Value::Array(inserts)),
        },
    ]
}

/// The responses to the clients of one load.
struct Answers {
    by_code: [AtomicUsize; 600],
    /// The size of the largest response in bytes.
    largest: AtomicUsize,
}

/// The latencies of one probe, sorted.
struct Waits(Vec<Duration>);

impl Waits {
    fn at(&self, share: f64) -> Duration {
        let last = self.0.len().saturating_sub(1);
        self.0.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
    }
}

async fn probe(server: Arc<ApiServer>, over: Arc<AtomicBool>, which: &'static str) -> Waits {
    let mut waits = Vec::new();
    let mut round = 0_u64;
    while !over.load(Ordering::Relaxed) {
        round += 1;
        let begun = Instant::now();
        let code = match which {
            "livez" => send(&server, "GET", "/livez", "", Bytes::new()).await,
            "lease" => {
                let patch = json!({"spec": {"holderIdentity": format!("{round}")}});
                send(&server, "PATCH", &format!("{LEASES}/l"), "application/merge-patch+json", json_bytes(&patch)).await
            }
            _ => watch_one(&server, round).await,
        };
        assert!((200..300).contains(&code), "{which}: {code}");
        waits.push(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    waits.sort_unstable();
    Waits(waits)
}

/// Writes a lease and waits until an open watch delivers it.
async fn watch_one(server: &ApiServer, round: u64) -> u16 {
    let watch = Request::get(format!("{LEASES}?watch=1&fieldSelector=metadata.name%3Dw&timeoutSeconds=30"));
    let response = server.service().handle(watch.body(Full::new(Bytes::new())).expect("a request")).await;
    let mut body = response.into_body();
    let patch = json!({"spec": {"holderIdentity": format!("{round}")}});
    let path = format!("{LEASES}/w");
    let code = send(server, "PATCH", &path, "application/merge-patch+json", json_bytes(&patch)).await;
    let wanted = format!("\"holderIdentity\":\"{round}\"");
    while let Some(frame) = body.frame().await {
        let data = frame.expect("a frame").into_data().unwrap_or_default();
        if String::from_utf8_lossy(&data).contains(&wanted) {
            break;
        }
    }
    code
}

async fn heavy(server: Arc<ApiServer>, over: Arc<AtomicBool>, load: Arc<Load>, answers: Arc<Answers>) {
    while !over.load(Ordering::Relaxed) {
        let (code, bytes) = exchange(&server, load.method, &load.path, load.content_type, load.body.clone()).await;
        answers.by_code[usize::from(code).min(599)].fetch_add(1, Ordering::Relaxed);
        answers.largest.fetch_max(bytes, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
}

async fn run(small: bool) {
    let server = Arc::new(ApiServer::builder().build().await.expect("a server"));
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(send(&server, "POST", definitions, "application/json", json_bytes(&definition())).await, 201);
    for name in ["l", "w"] {
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
            "spec": {"holderIdentity": "0"}});
        assert_eq!(send(&server, "POST", LEASES, "application/json", json_bytes(&lease)).await, 201);
    }
    let list: Vec<u32> = (0..200_000).collect();
    let large = widget("large", json!({"free": {"list": list}}));
    assert_eq!(send(&server, "POST", WIDGETS, "application/json", large).await, 201);

    println!(
        "| load | requests/s | answers | largest answer | livez p50 | livez p99 | lease p99 | watch p99 | longest |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let time = if small { Duration::from_millis(50) } else { Duration::from_secs(5) };
    let loads = std::iter::once(None).chain(loads().into_iter().map(Some));
    for load in loads.take(if small { 2 } else { usize::MAX }) {
        let over = Arc::new(AtomicBool::new(false));
        let answers = Answers { by_code: [const { AtomicUsize::new(0) }; 600], largest: AtomicUsize::new(0) };
        let answers = Arc::new(answers);
        let name = load.as_ref().map_or("none", |load| load.name);
        let mut clients = Vec::new();
        if let Some(load) = load.map(Arc::new) {
            for _ in 0..CLIENTS {
                let client = heavy(Arc::clone(&server), Arc::clone(&over), Arc::clone(&load), Arc::clone(&answers));
                clients.push(tokio::spawn(client));
            }
        }
        let probes =
            ["livez", "lease", "watch"].map(|which| tokio::spawn(probe(Arc::clone(&server), Arc::clone(&over), which)));
        tokio::time::sleep(time).await;
        over.store(true, Ordering::Relaxed);
        let mut waits = Vec::new();
        for probe in probes {
            waits.push(probe.await.expect("no panic"));
        }
        for client in clients {
            client.abort();
        }
        let codes: Vec<String> = (0..600)
            .filter_map(|code| {
                Some((code, answers.by_code[code].load(Ordering::Relaxed))).filter(|(_, count)| *count > 0)
            })
            .map(|(code, count)| format!("{count}× {code}"))
            .collect();
        let total: usize = answers.by_code.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        let longest = waits.iter().map(|waits| waits.at(1.0)).max().unwrap_or_default();
        println!(
            "| {name} | {:.1} | {} | {} B | {:.2?} | {:.2?} | {:.2?} | {:.2?} | {longest:.2?} |",
            total as f64 / time.as_secs_f64(),
            codes.join(", "),
            answers.largest.load(Ordering::Relaxed),
            waits[0].at(0.5),
            waits[0].at(0.99),
            waits[1].at(0.99),
            waits[2].at(0.99),
        );
        if !small {
            let worst = waits.iter().map(|waits| waits.at(0.99)).max().unwrap_or_default();
            assert!(worst < P99_MAX, "beside {name} a probe waits {worst:?}");
        }
    }
}

fn main() {
    if answers_list("hostile") {
        return;
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(run(!measured()));
    runtime.shutdown_background();
}
