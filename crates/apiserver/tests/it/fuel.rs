//! Tests writes whose fuel is used up at a given step: later steps do not run, and nothing is stored.
//!
//! A plugin that calls [`fuel::exhaust`] simulates a computation that uses all fuel. Each write runs twice, inline and
//! on a compute slot (`docs/decisions/0008-compute-pool.md`). If the plugin ends both runs, the response is a 504.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::ApiServer;
use listwatch_apiserver::admission::{AdmissionFuture, AdmissionRequest, MutatingAdmission, ValidatingAdmission};
use listwatch_json::{Map, Value, json};
use listwatch_meta::{KeyRange, fuel};
use listwatch_storage::{MemoryStorage, Storage, StoreEvent, WatchItem};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SERVICES: &str = "/api/v1/namespaces/default/services";

/// The annotation that selects a plugin, `mutating` or `validating`, which then exhausts the fuel.
const EXHAUST: &str = "exhaust";

/// Counts the objects with the annotation `counted`, and exhausts the fuel for objects that select this plugin.
struct Exhaust {
    stage: &'static str,
    seen: Arc<AtomicUsize>,
}

impl Exhaust {
    fn see(&self, object: &Map) -> AdmissionFuture<'static, ()> {
        let annotations = &object["metadata"]["annotations"];
        if annotations["counted"].is_string() {
            self.seen.fetch_add(1, Ordering::Relaxed);
        }
        if annotations[EXHAUST] == self.stage {
            fuel::exhaust();
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

impl MutatingAdmission for Exhaust {
    fn name(&self) -> &str {
        "Exhaust"
    }

    fn handles(&self, _: &AdmissionRequest<'_>) -> bool {
        true
    }

    fn admit<'a>(&'a self, _: &'a AdmissionRequest<'_>, object: &'a mut Map) -> AdmissionFuture<'a, ()> {
        self.see(object)
    }
}

impl ValidatingAdmission for Exhaust {
    fn name(&self) -> &str {
        "Exhaust"
    }

    fn handles(&self, _: &AdmissionRequest<'_>) -> bool {
        true
    }

    fn validate<'a>(&'a self, _: &'a AdmissionRequest<'_>, object: &'a Map) -> AdmissionFuture<'a, ()> {
        self.see(object)
    }
}

struct World {
    server: ApiServer,
    store: Arc<dyn Storage>,
    /// The number of counted objects that the mutating plugin received.
    mutated: Arc<AtomicUsize>,
    /// The number of counted objects that the validating plugin received.
    validated: Arc<AtomicUsize>,
}

impl World {
    async fn new() -> Self {
        let store: Arc<dyn Storage> = MemoryStorage::new();
        let (mutated, validated) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let server = ApiServer::builder()
            .storage(Arc::clone(&store))
            .mutating_admission(Exhaust { stage: "mutating", seen: Arc::clone(&mutated) })
            .validating_admission(Exhaust { stage: "validating", seen: Arc::clone(&validated) });
        World { server: server.build().await.expect("a server"), store, mutated, validated }
    }

    async fn send(&self, method: Method, path: &str, body: String) -> (u16, Value) {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let response =
            self.server.service().handle(request.body(Full::new(Bytes::from(body))).expect("a request")).await;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (code, serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.send(Method::GET, path, String::new()).await
    }
}

fn map(name: &str, stage: &str, data: Value) -> Value {
    json!({"metadata": {"name": name, "annotations": {"counted": "", EXHAUST: stage}}, "data": data})
}

#[tokio::test]
async fn write_that_exhausts_its_fuel_stores_nothing() {
    let world = World::new().await;
    let cut_short = map("a", "validating", json!({"x": "1"}));
    assert_eq!(world.send(Method::POST, MAPS, cut_short.to_string()).await.0, 504, "create");
    assert!(world.validated.load(Ordering::Relaxed) > 0, "the write came to its last step");
    let one = format!("{MAPS}/a");
    assert_eq!(world.get(&one).await.0, 404, "the create stored an object");

    let whole = map("a", "", json!({"x": "2"}));
    assert_eq!(world.send(Method::POST, MAPS, whole.to_string()).await.0, 201);
    let (_, stored) = world.get(&one).await;
    assert_eq!(world.send(Method::PUT, &one, cut_short.to_string()).await.0, 504, "update");
    assert_eq!(world.get(&one).await.1, stored, "the update changed the object");
}

#[tokio::test]
async fn validating_plugin_is_not_called_after_the_fuel_is_used_up() {
    let world = World::new().await;
    let (code, status) = world.send(Method::POST, MAPS, map("a", "mutating", json!({})).to_string()).await;
    assert_eq!(code, 504, "{status}");
    assert_eq!(world.mutated.load(Ordering::Relaxed), 2, "inline and on a slot");
    assert_eq!(world.validated.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn mutating_plugin_is_not_called_after_the_fuel_is_used_up() {
    let world = World::new().await;
    // The body takes 15,000 units to read. Sorting the warnings about two kinds of fields takes as many units again.
    // That exceeds the inline fuel, but the decoder continues without an error.
    let body = format!(
        r#"{{"metadata":{{"name":"a","annotations":{{"counted":""}}}},"unknown":1,"data":{{"x":"1","x":"2","y":"{}"}}}}"#,
        "y".repeat(120_000)
    );
    assert_eq!(world.send(Method::POST, MAPS, body).await.0, 201);
    assert_eq!(world.mutated.load(Ordering::Relaxed), 1, "on a slot only");
}

#[tokio::test]
async fn service_address_is_not_allocated_after_the_fuel_is_used_up() {
    let world = World::new().await;
    let before = world.store.current_revision().await.expect("a read");
    let service = |name: &str, stage: &str| {
        let spec = json!({"type": "NodePort", "ports": [{"port": 80}]});
        json!({"metadata": {"name": name, "annotations": {EXHAUST: stage}}, "spec": spec}).to_string()
    };
    assert_eq!(world.send(Method::POST, SERVICES, service("cut-short", "mutating")).await.0, 504);
    assert_eq!(world.send(Method::POST, SERVICES, service("whole", "")).await.0, 201);
    // The claims of a failed write are released, so only the history contains them.
    let mut watch = world.store.watch(KeyRange::below("/"), before).await.expect("a watch");
    let mut claims = 0;
    loop {
        let Some(WatchItem::Event(event)) = watch.next().await else { panic!("an event") };
        let StoreEvent::Put { current, .. } = event else { continue };
        let value = String::from_utf8_lossy(&current.value);
        assert!(!value.contains("cut-short"), "{} was claimed: {value}", current.key);
        claims += usize::from(value.contains("whole") || current.key.as_str() == "/ranges/servicenodeports");
        if current.key.as_str().starts_with("/services/specs/default/whole") {
            break;
        }
    }
    assert_eq!(claims, 3, "an address, the node ports, and the service");
}
