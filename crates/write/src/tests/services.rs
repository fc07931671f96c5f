//! Tests the allocation of addresses and node ports of services.

use std::collections::BTreeSet;
use std::time::Duration;

use listwatch_storage::{
    Capabilities, CreateError, DeleteError, ListPage, ReadError as StoreReadError, StoreFault, StoreStats, UpdateError,
    Watch, WatchError,
};

use base64::Engine as _;
use listwatch_json::json;

use super::allocations::Allocations;
use super::*;

pub(super) const SERVICES: &str = "/api/v1/namespaces/default/services";

/// Sends a request and returns the `spec` of the object in the response.
pub(super) async fn spec(world: &World, line: &str, body: &str) -> Value {
    let answer = world.answer(line, body).await;
    let (code, json) = answer.split_once(' ').unwrap();
    assert!(code.starts_with('2'), "{line} {body}: {answer}");
    serde_json::from_str::<Value>(json).unwrap()["spec"].take()
}

/// Returns the number of claimed addresses and the number of allocated node ports.
pub(super) async fn claims(world: &World) -> (usize, usize) {
    (world.stored("/ipaddresses/").await.len(), allocated_ports(world).await.len())
}

/// Returns the node ports that are allocated in the stored bitmap.
pub(super) async fn allocated_ports(world: &World) -> Vec<u32> {
    let (stored, _) = world.writer.backend().storage().get(&bitmap_key()).await.unwrap();
    stored.map(|stored| ports_of_bitmap(&stored.value)).unwrap_or_default()
}

/// Returns the node ports whose bits are set in a stored bitmap.
pub(super) fn ports_of_bitmap(value: &[u8]) -> Vec<u32> {
    let object: Value = serde_json::from_slice(value).unwrap();
    let (first, _) = object["range"].as_str().unwrap().split_once('-').unwrap();
    let data = base64::engine::general_purpose::STANDARD.decode(object["data"].as_str().unwrap()).unwrap();
    let bits = data.iter().rev().flat_map(|byte| (0..8).map(move |bit| byte & (1 << bit) != 0));
    let first: u32 = first.parse().unwrap();
    bits.zip(first..).filter(|(is_set, _)| *is_set).map(|(_, port)| port).collect()
}

pub(super) fn bitmap_key() -> Key {
    Key::new("ranges", None, "servicenodeports").unwrap()
}

/// Sends a create that must fail after the claim of the address.
async fn fail_create(world: &World, body: &str, message: &str) {
    assert_eq!(world.send(&post(SERVICES), body).await.unwrap_err().message, message);
}

/// Runs several repairs in a row.
async fn repair(world: &World, rounds: usize) {
    let mut repair = crate::NodePortRepair::default();
    for _ in 0..rounds {
        world.writer.repair_node_ports(&mut repair).await.unwrap();
    }
}

pub(super) fn body(name: &str, spec: &str) -> String {
    format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{spec}}}"#)
}

#[tokio::test]
async fn service_address_is_allocated_kept_on_update_and_released() {
    let world = World::new().await;
    let created = spec(&world, &post(SERVICES), &body("s", r#"{"ports":[{"port":80}],"selector":{"a":"b"}}"#)).await;
    let address = created["clusterIP"].as_str().unwrap().to_owned();
    assert!(address.starts_with("10.96."), "{address}");
    assert_eq!(created["clusterIPs"], listwatch_json::json!([address]));
    assert_eq!(
        world.stored("/ipaddresses/").await,
        [format!(
            r#"/ipaddresses/{address}={{"kind":"IPAddress","apiVersion":"networking.k8s.io/v1","metadata":{{"name":"{address}","uid":"UID","creationTimestamp":"NOW","labels":{{"ipaddress.kubernetes.io/ip-family":"IPv4","ipaddress.kubernetes.io/managed-by":"ipallocator.k8s.io"}}}},"spec":{{"parentRef":{{"resource":"services","namespace":"default","name":"s"}}}}}}"#
        )]
    );
    // An update without the address keeps the address.
    let updated =
        spec(&world, &put(SERVICES, "s"), &body("s", r#"{"ports":[{"port":81}],"selector":{"a":"b"}}"#)).await;
    assert_eq!(updated["clusterIP"], address.as_str());
    world
        .refuse(
            &patch(SERVICES, "s", MERGE),
            r#"{"spec":{"clusterIP":"10.96.3.3"}}"#,
            422,
            "Service \"s\" is invalid: spec.clusterIPs[0]: Invalid value: [\"10.96.3.3\"]: may not change once set",
        )
        .await;
    let external = spec(
        &world,
        &patch(SERVICES, "s", MERGE),
        r#"{"spec":{"type":"ExternalName","externalName":"a.b","clusterIP":null}}"#,
    )
    .await;
    assert_eq!((external.get("clusterIP"), external.get("internalTrafficPolicy")), (None, None));
    assert_eq!(claims(&world).await, (0, 0), "an external name needs no address");
    let again =
        spec(&world, &patch(SERVICES, "s", MERGE), r#"{"spec":{"type":"ClusterIP","externalName":null}}"#).await;
    assert!(again["clusterIP"].as_str().unwrap().starts_with("10.96."));
    world.send(&format!("DELETE {SERVICES}/s"), "").await.unwrap();
    assert_eq!(claims(&world).await, (0, 0), "a service that is gone holds nothing");
}

#[tokio::test]
async fn create_rejects_taken_and_out_of_range_addresses() {
    let world = World::new().await;
    let chosen = r#"{"clusterIP":"10.96.0.10","ports":[{"port":53}]}"#;
    assert_eq!(spec(&world, &post(SERVICES), &body("dns", chosen)).await["clusterIP"], "10.96.0.10");
    let refuse = async |name: &str, wanted: &str, message: &str| {
        world.refuse(&post(SERVICES), &body(name, wanted), 422, message).await;
    };
    refuse(
        "other",
        chosen,
        "Service \"other\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.0.10\"]: failed to allocate IP 10.96.0.10: provided IP is already allocated",
    )
    .await;
    refuse(
        "other",
        r#"{"clusterIP":"1.2.3.4","ports":[{"port":80}]}"#,
        "Service \"other\" is invalid: spec.clusterIPs: Invalid value: [\"1.2.3.4\"]: failed to allocate IP 1.2.3.4: the provided network does not match the current range",
    )
    .await;
    assert_eq!(
        spec(&world, &post(SERVICES), &body("h", r#"{"clusterIP":"None"}"#)).await["clusterIPs"],
        listwatch_json::json!(["None"])
    );
    assert_eq!(claims(&world).await, (1, 0));
    // A failed create releases its claims.
    world.send(&post(SERVICES), &body("dns", "{}")).await.unwrap_err();
    assert_eq!(claims(&world).await, (1, 0));
}

/// Returns the same server with a later clock.
pub(super) fn later(world: &World, seconds: i64) -> World {
    let time = parse_timestamp(NOW).unwrap() + time::Duration::seconds(seconds);
    World { writer: Arc::clone(&world.writer), clock: Clock::fixed(time) }
}

/// Removes a service directly from the store. The claims of the service remain, as after a crash.
pub(super) async fn lose(world: &World, name: &str) {
    remove_stored(world, &format!("/services/specs/default/{name}")).await;
}

/// Removes an object directly from the store.
pub(super) async fn remove_stored(world: &World, path: &str) {
    let (storage, key) = (world.writer.backend().storage(), Key::from_path(path).unwrap());
    let (found, _) = storage.get(&key).await.unwrap();
    storage.delete(&key, found.unwrap().modified).await.unwrap();
}

/// Changes an object directly in the store.
pub(super) async fn edit_stored(world: &World, path: &str, edit: impl FnOnce(&mut Value)) {
    let (storage, key) = (world.writer.backend().storage(), Key::from_path(path).unwrap());
    let found = storage.get(&key).await.unwrap().0.unwrap();
    let mut object: Value = serde_json::from_slice(&found.value).unwrap();
    edit(&mut object);
    storage.update(&key, found.modified, object.to_string().into(), None).await.unwrap();
}

#[tokio::test]
async fn abandoned_address_claim_is_taken_over_only_after_pending_wait() {
    let world = World::new().await;
    let chosen = r#"{"type":"ClusterIP","clusterIP":"10.96.0.10","ports":[{"port":80}]}"#;
    world.send(&post(SERVICES), &body("s", chosen)).await.unwrap();
    lose(&world, "s").await;
    // The service may still be on its way to the store.
    let soon = later(&world, 60);
    let taken = "Service \"t\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.0.10\"]: failed to allocate IP 10.96.0.10: provided IP is already allocated";
    soon.refuse(&post(SERVICES), &body("t", chosen), 422, taken).await;
    let world = later(&world, 120);
    let created = spec(&world, &post(SERVICES), &body("t", chosen)).await;
    assert_eq!(created["clusterIP"], "10.96.0.10");
    Allocations::read(&world).await.check_at_rest().unwrap_or_else(|broken| panic!("{broken}"));
    world.send(&format!("DELETE {SERVICES}/t"), "").await.unwrap();
    assert_eq!(claims(&world).await, (0, 0));
}

#[tokio::test]
async fn node_port_of_a_lost_service_is_free_after_three_repairs() {
    let world = World::new().await;
    let chosen = r#"{"type":"NodePort","ports":[{"port":80,"nodePort":30080}]}"#;
    world.send(&post(SERVICES), &body("s", chosen)).await.unwrap();
    let kept = r#"{"type":"NodePort","ports":[{"port":80,"nodePort":30090}]}"#;
    world.send(&post(SERVICES), &body("kept", kept)).await.unwrap();
    lose(&world, "s").await;
    let taken =
        "Service \"t\" is invalid: spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated";
    repair(&world, 2).await;
    fail_create(&world, &body("t", chosen), taken).await;
    assert_eq!(allocated_ports(&world).await, [30_080, 30_090]);
    repair(&world, 3).await;
    assert_eq!(allocated_ports(&world).await, [30_090]);
    world.send(&post(SERVICES), &body("t", chosen)).await.unwrap();
}

#[tokio::test]
async fn repair_allocates_the_ports_of_services_without_allocation_and_changes_nothing_twice() {
    let world = World::new().await;
    let chosen = r#"{"type":"NodePort","ports":[{"port":80,"nodePort":30080}]}"#;
    world.send(&post(SERVICES), &body("s", chosen)).await.unwrap();
    let storage = world.writer.backend().storage();
    // An administrator deletes the bitmap.
    let (found, _) = storage.get(&bitmap_key()).await.unwrap();
    storage.delete(&bitmap_key(), found.unwrap().modified).await.unwrap();
    let taken =
        "Service \"t\" is invalid: spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated";
    fail_create(&world, &body("t", chosen), taken).await;
    let (found, _) = storage.get(&bitmap_key()).await.unwrap();
    let empty = br#"{"kind":"RangeAllocation","apiVersion":"v1","metadata":{},"range":"30000-32767","data":""}"#;
    storage.update(&bitmap_key(), found.unwrap().modified, Bytes::from_static(empty), None).await.unwrap();
    repair(&world, 1).await;
    assert_eq!(allocated_ports(&world).await, [30_080]);
    let modified = storage.get(&bitmap_key()).await.unwrap().0.unwrap().modified;
    repair(&world, 3).await;
    assert_eq!(storage.get(&bitmap_key()).await.unwrap().0.unwrap().modified, modified);
}

#[tokio::test]
async fn node_port_bitmap_of_another_range_is_used_only_after_a_repair() {
    let world = World::new().await;
    let storage = world.writer.backend().storage();
    let other = br#"{"kind":"RangeAllocation","apiVersion":"v1","metadata":{},"range":"30000-30015","data":"AQ=="}"#;
    storage.create(&bitmap_key(), Bytes::from_static(other), None).await.unwrap();
    let chosen = r#"{"type":"NodePort","ports":[{"port":80,"nodePort":30080}]}"#;
    let why = "Internal error occurred: the provided range does not match the current range";
    fail_create(&world, &body("s", chosen), why).await;
    repair(&world, 1).await;
    world.send(&post(SERVICES), &body("s", chosen)).await.unwrap();
    assert_eq!(allocated_ports(&world).await, [30_000, 30_080]);
    let (found, _) = storage.get(&bitmap_key()).await.unwrap();
    storage.update(&bitmap_key(), found.unwrap().modified, "k8s\0".into(), None).await.unwrap();
    let answer = world.send(&post(SERVICES), &body("t", chosen)).await.unwrap_err();
    assert_eq!(answer.code, 500, "{}", answer.message);
    assert!(world.writer.repair_node_ports(&mut crate::NodePortRepair::default()).await.is_err());
}

#[tokio::test]
async fn node_port_claims_of_earlier_releases_are_moved_into_the_bitmap() {
    let world = World::new().await;
    let storage = world.writer.backend().storage();
    let claim = |port: u16| {
        let value = json!({"metadata": {"name": port.to_string(), "creationTimestamp": NOW},
            "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "s"}}});
        (Key::new("ranges/servicenodeports", None, &port.to_string()).unwrap(), Bytes::from(value.to_string()))
    };
    let service = json!({"kind": "Service", "apiVersion": "v1",
        "metadata": {"name": "s", "namespace": "default", "uid": "1"},
        "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_080}]}});
    let key = Key::from_path("/services/specs/default/s").unwrap();
    storage.create(&key, service.to_string().into(), None).await.unwrap();
    for port in [30_080, 30_081] {
        let (key, value) = claim(port);
        storage.create(&key, value, None).await.unwrap();
    }
    // The service of the second claim may still be on its way to the store.
    repair(&world, 1).await;
    assert_eq!(world.stored("/ranges/servicenodeports/").await, Vec::<String>::new());
    assert_eq!(allocated_ports(&world).await, [30_080, 30_081]);
    repair(&world, 3).await;
    assert_eq!(allocated_ports(&world).await, [30_080]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_creates_of_two_servers_get_different_node_ports() {
    const CREATES: usize = 40;
    let storage = MemoryStorage::new();
    let first = World::over(storage.clone()).await;
    let second = World { writer: Arc::new(testing::writer(storage)), clock: later(&first, 0).clock };
    let servers = [Arc::new(first), Arc::new(second)];
    let creates: Vec<_> = (0..CREATES)
        .map(|number| {
            let world = Arc::clone(&servers[number % 2]);
            tokio::spawn(async move {
                let wanted = r#"{"type":"NodePort","ports":[{"port":80,"name":"a"},{"port":81,"name":"b"}]}"#;
                spec(&world, &post(SERVICES), &body(&format!("s{number}"), wanted)).await
            })
        })
        .collect();
    let mut ports = BTreeSet::new();
    for create in creates {
        let created = create.await.unwrap();
        ports.extend(created["ports"].as_array().unwrap().iter().map(|port| port["nodePort"].as_u64().unwrap()));
    }
    assert_eq!(ports.len(), 2 * CREATES, "Allocated once: two responses contain the same node port");
    Allocations::read(&servers[0]).await.check_at_rest().unwrap_or_else(|broken| panic!("{broken}"));
    assert_eq!(allocated_ports(&servers[0]).await.len(), 2 * CREATES);
}

#[tokio::test]
async fn removal_of_the_last_finalizer_releases_the_ports_of_the_last_state() {
    let world = World::new().await;
    let held = r#"{"metadata":{"name":"s","finalizers":["example.com/a"]},"spec":{"type":"NodePort","ports":[{"port":80,"nodePort":30080}]}}"#;
    world.send(&post(SERVICES), held).await.unwrap();
    world.send(&format!("DELETE {SERVICES}/s"), "").await.unwrap();
    assert_eq!(allocated_ports(&world).await, [30_080]);
    world.send(&patch(SERVICES, "s", MERGE), r#"{"spec":{"ports":[{"port":80,"nodePort":30081}]}}"#).await.unwrap();
    assert_eq!(allocated_ports(&world).await, [30_081]);
    world.send(&patch(SERVICES, "s", MERGE), r#"{"metadata":{"finalizers":null}}"#).await.unwrap();
    assert_eq!(claims(&world).await, (0, 0));
}

#[tokio::test]
async fn address_claimed_by_another_resource_is_not_allocated() {
    let world = World::new().await;
    let gateway = r#"{"metadata":{"name":"10.96.0.10"},"spec":{"parentRef":{"group":"gateway.networking.k8s.io","resource":"gateways","namespace":"default","name":"g"}}}"#;
    world.send("POST /apis/networking.k8s.io/v1/ipaddresses", gateway).await.unwrap();
    let taken = "Service \"t\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.0.10\"]: failed to allocate IP 10.96.0.10: provided IP is already allocated";
    let chosen = r#"{"clusterIP":"10.96.0.10","ports":[{"port":80}]}"#;
    later(&world, 1000).refuse(&post(SERVICES), &body("t", chosen), 422, taken).await;
}

#[tokio::test]
async fn unreadable_claims_and_services_keep_their_addresses() {
    let taken = "Service \"t\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.0.10\"]: failed to allocate IP 10.96.0.10: provided IP is already allocated";
    let chosen = r#"{"clusterIP":"10.96.0.10","ports":[{"port":80}]}"#;
    for unreadable in ["/ipaddresses/10.96.0.10", "/services/specs/default/s"] {
        let world = World::new().await;
        world.send(&post(SERVICES), &body("s", chosen)).await.unwrap();
        let (storage, key) = (world.writer.backend().storage(), Key::from_path(unreadable).unwrap());
        let (found, _) = storage.get(&key).await.unwrap();
        storage.update(&key, found.unwrap().modified, "k8s\0".into(), None).await.unwrap();
        later(&world, 1000).refuse(&post(SERVICES), &body("t", chosen), 422, taken).await;
    }
}

#[tokio::test]
async fn deleted_service_does_not_release_a_claim_that_was_taken_over() {
    // Another service takes over the claim after the deletion of its service and before the release of the claim.
    let world = World::new().await;
    let chosen = r#"{"clusterIP":"10.96.0.10","ports":[{"port":80}]}"#;
    world.send(&post(SERVICES), &body("s", chosen)).await.unwrap();
    let key = Key::from_path("/services/specs/default/s").unwrap();
    let (found, _) = world.writer.backend().storage().get(&key).await.unwrap();
    let found = found.unwrap();
    let gone = world.writer.backend().storage().delete(&key, found.modified).await.unwrap();
    let world = later(&world, 120);
    world.send(&post(SERVICES), &body("t", chosen)).await.unwrap();
    let registry = world.writer.backend().registry();
    let before = store::parse(&found).unwrap();
    let allocators = super::super::services::Allocators {
        backend: world.writer.backend(),
        registry: &registry,
        ranges: world.writer.service_ranges(),
        service_cidrs: world.writer.service_cidrs(),
        node_ports: &crate::node_ports::NodePorts::default(),
    };
    super::super::services::release_unused(allocators, &before, None, gone, world.clock.time()).await;
    Allocations::read(&world).await.check_at_rest().unwrap_or_else(|broken| panic!("{broken}"));
    assert_eq!(claims(&world).await, (1, 0));
}

#[tokio::test]
async fn deleted_service_keeps_the_claim_of_another_service_with_its_address() {
    let world = World::new().await;
    let chosen = r#"{"clusterIP":"10.96.0.10","ports":[{"port":80}]}"#;
    world.send(&post(SERVICES), &body("holder", chosen)).await.unwrap();
    world.send(&post(SERVICES), &body("other", r#"{"clusterIP":"10.96.0.11","ports":[{"port":80}]}"#)).await.unwrap();
    edit_stored(&world, "/services/specs/default/other", |service| {
        service["spec"]["clusterIP"] = json!("10.96.0.10");
        service["spec"]["clusterIPs"] = json!(["10.96.0.10"]);
    })
    .await;
    remove_stored(&world, "/ipaddresses/10.96.0.11").await;
    world.send(&format!("DELETE {SERVICES}/other"), "").await.unwrap();
    Allocations::read(&world).await.check_at_rest().unwrap_or_else(|broken| panic!("{broken}"));
    assert_eq!(claims(&world).await, (1, 0));
    world.send(&format!("DELETE {SERVICES}/holder"), "").await.unwrap();
    assert_eq!(claims(&world).await, (0, 0));
}

#[tokio::test]
async fn deleted_service_releases_its_addresses_of_both_families() {
    let claim = |address: &str, name: &str| {
        json!({"kind": "IPAddress", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": address},
            "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": name}}})
    };
    for (owner, left) in [("s", 0), ("t", 1)] {
        let world = World::new().await;
        world.send(&post(SERVICES), &body("s", r#"{"clusterIP":"10.96.0.10","ports":[{"port":80}]}"#)).await.unwrap();
        edit_stored(&world, "/services/specs/default/s", |service| {
            service["spec"]["clusterIPs"] = json!(["10.96.0.10", "FD00:0:0::1"]);
        })
        .await;
        let key = Key::from_path("/ipaddresses/fd00::1").unwrap();
        let stored = claim("fd00::1", owner).to_string();
        world.writer.backend().storage().create(&key, stored.into(), None).await.unwrap();
        world.send(&format!("DELETE {SERVICES}/s"), "").await.unwrap();
        assert_eq!(claims(&world).await, (left, 0), "{owner}");
    }
}

#[tokio::test]
async fn released_claim_with_a_finalizer_is_only_marked() {
    let world = World::new().await;
    world.send(&post(SERVICES), &body("s", r#"{"clusterIP":"10.96.0.10","ports":[{"port":80}]}"#)).await.unwrap();
    edit_stored(&world, "/ipaddresses/10.96.0.10", |claim| claim["metadata"]["finalizers"] = json!(["a.b/c"])).await;
    world.send(&format!("DELETE {SERVICES}/s"), "").await.unwrap();
    let claims = world.stored("/ipaddresses/").await.concat();
    assert!(claims.contains("deletionTimestamp"), "{claims}");
}

/// A store that fails to create services.
struct FailingServices {
    inner: Arc<MemoryStorage>,
    fault: StoreFault,
}

#[async_trait::async_trait]
impl Storage for FailingServices {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), StoreReadError> {
        self.inner.get(key).await
    }
    async fn list(&self, query: ListQuery) -> Result<ListPage, StoreReadError> {
        self.inner.list(query).await
    }
    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        if key.as_str().starts_with("/services/specs/") {
            return Err(CreateError::Fault(self.fault.clone()));
        }
        self.inner.create(key, value, ttl).await
    }
    async fn update(
        &self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, UpdateError> {
        self.inner.update(key, expected, value, ttl).await
    }
    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
        self.inner.delete(key, expected).await
    }
    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
        self.inner.watch(range, after).await
    }
    async fn current_revision(&self) -> Result<Revision, StoreReadError> {
        self.inner.current_revision().await
    }
    async fn compact(&self, revision: Revision) -> Result<(), StoreReadError> {
        self.inner.compact(revision).await
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn health(&self) -> Result<(), StoreFault> {
        self.inner.health().await
    }
    async fn stats(&self) -> Result<StoreStats, StoreFault> {
        self.inner.stats().await
    }
}

#[tokio::test]
async fn create_with_unknown_outcome_keeps_its_claims() {
    for (fault, left) in [
        (StoreFault::Unavailable("timeout".to_owned()), 1),
        (StoreFault::NoSpace("full".to_owned()), 1),
        (StoreFault::Denied("user".to_owned()), 0),
    ] {
        let world = World::over(Arc::new(FailingServices { inner: MemoryStorage::new(), fault: fault.clone() })).await;
        let service = body("s", r#"{"type":"ClusterIP","ports":[{"port":80}]}"#);
        assert!(world.send(&post(SERVICES), &service).await.is_err(), "{fault:?}");
        assert_eq!(claims(&world).await, (left, 0), "{fault:?}");
    }
}

#[tokio::test]
async fn service_ports_with_equal_number_and_different_protocol_share_a_node_port() {
    let world = World::new().await;
    let dns = r#"{"type":"NodePort","ports":[{"port":53,"name":"u","protocol":"UDP"},{"port":53,"name":"t"},{"port":80,"name":"h"}]}"#;
    let created = spec(&world, &post(SERVICES), &body("dns", dns)).await;
    assert_eq!(created["ports"][0]["nodePort"], created["ports"][1]["nodePort"]);
    assert_ne!(created["ports"][0]["nodePort"], created["ports"][2]["nodePort"]);
    assert_eq!(claims(&world).await, (1, 2));
    let chosen = r#"{"type":"NodePort","ports":[{"port":53,"name":"u","protocol":"UDP"},{"port":53,"name":"t","nodePort":30053}]}"#;
    let created = spec(&world, &post(SERVICES), &body("chosen", chosen)).await;
    assert_eq!(created["ports"][0]["nodePort"], 30053);
    let both = r#"{"type":"NodePort","ports":[{"port":53,"name":"u","protocol":"UDP","nodePort":30054},{"port":53,"name":"t","nodePort":30054}]}"#;
    let created = spec(&world, &post(SERVICES), &body("both", both)).await;
    assert_eq!(created["ports"][0]["nodePort"], 30054);
    assert_eq!(claims(&world).await, (3, 4));
    for name in ["dns", "chosen", "both"] {
        world.send(&format!("DELETE {SERVICES}/{name}"), "").await.unwrap();
    }
    assert_eq!(claims(&world).await, (0, 0));
}

#[tokio::test]
async fn load_balancer_with_local_traffic_policy_gets_a_health_check_port() {
    let world = World::new().await;
    let local = r#"{"type":"LoadBalancer","externalTrafficPolicy":"Local","ports":[{"port":80}]}"#;
    let created = spec(&world, &post(SERVICES), &body("s", local)).await;
    let given = created["healthCheckNodePort"].as_u64().unwrap();
    assert!((30_000..=32_767).contains(&given) && created["ports"][0]["nodePort"] != given, "{created}");
    assert_eq!(claims(&world).await, (1, 2));
    let updated = spec(&world, &put(SERVICES, "s"), &body("s", local)).await;
    assert_eq!(updated["healthCheckNodePort"], given);
    let taken = format!(r#"{{"type":"NodePort","ports":[{{"port":80,"nodePort":{given}}}]}}"#);
    world.send(&post(SERVICES), &body("t", &taken)).await.unwrap_err();
    let cluster = spec(&world, &patch(SERVICES, "s", MERGE), r#"{"spec":{"externalTrafficPolicy":"Cluster"}}"#).await;
    assert_eq!(cluster.get("healthCheckNodePort"), None);
    assert_eq!(claims(&world).await, (1, 1));
    let chosen = r#"{"spec":{"externalTrafficPolicy":"Local","healthCheckNodePort":30099}}"#;
    assert_eq!(spec(&world, &patch(SERVICES, "s", MERGE), chosen).await["healthCheckNodePort"], 30099);
    assert_eq!(claims(&world).await, (1, 2));
}

#[tokio::test]
async fn node_ports_are_allocated_kept_on_update_and_released() {
    let world = World::new().await;
    let wanted = r#"{"type":"NodePort","ports":[{"port":80,"name":"a"},{"port":81,"name":"b","nodePort":30080}]}"#;
    let created = spec(&world, &post(SERVICES), &body("s", wanted)).await;
    let given = created["ports"][0]["nodePort"].as_u64().unwrap();
    assert!((30_000..=32_767).contains(&given), "{given}");
    assert_eq!(created["ports"][1]["nodePort"], 30080);
    assert_eq!(created["externalTrafficPolicy"], "Cluster");
    assert_eq!(claims(&world).await, (1, 2));
    let applied = r#"{"type":"NodePort","ports":[{"port":80,"name":"a"},{"port":81,"name":"b"}]}"#;
    let updated = spec(&world, &put(SERVICES, "s"), &body("s", applied)).await;
    assert_eq!(updated["ports"], created["ports"]);
    let refused = |port: u32| body("t", &format!(r#"{{"type":"NodePort","ports":[{{"port":80,"nodePort":{port}}}]}}"#));
    world
        .refuse(
            &post(SERVICES),
            &refused(1),
            422,
            "Service \"t\" is invalid: spec.ports[0].nodePort: Invalid value: 1: provided port is not in the valid range. The range of valid ports is 30000-32767",
        )
        .await;
    let taken = world.send(&post(SERVICES), &refused(30080)).await.unwrap_err();
    assert_eq!(
        taken.message,
        "Service \"t\" is invalid: spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated"
    );
    let inside = spec(&world, &patch(SERVICES, "s", MERGE), r#"{"spec":{"type":"ClusterIP"}}"#).await;
    assert_eq!(inside["ports"][1].get("nodePort"), None);
    assert_eq!(inside.get("externalTrafficPolicy"), None);
    assert_eq!(claims(&world).await, (1, 0));
}

#[tokio::test]
async fn dry_run_of_a_service_makes_no_claims() {
    let world = World::new().await;
    let line = post(&format!("{SERVICES}?dryRun=All"));
    let tried = spec(&world, &line, &body("s", r#"{"type":"LoadBalancer","ports":[{"port":80}]}"#)).await;
    assert!(tried["clusterIP"].as_str().unwrap().starts_with("10.96."));
    assert_eq!(claims(&world).await, (0, 0));
}

#[tokio::test]
async fn dry_run_rejects_taken_addresses_and_ports() {
    let world = World::new().await;
    let chosen = r#"{"type":"NodePort","clusterIP":"10.96.0.10","ports":[{"port":80,"nodePort":30080}]}"#;
    world.send(&post(SERVICES), &body("s", chosen)).await.unwrap();
    let line = post(&format!("{SERVICES}?dryRun=All"));
    let no_address = "Service \"t\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.0.10\"]: failed to allocate IP 10.96.0.10: provided IP is already allocated";
    world.refuse(&line, &body("t", chosen), 422, no_address).await;
    let two = r#"{"type":"NodePort","ports":[{"port":80,"name":"a"},{"port":81,"name":"b","nodePort":30080}]}"#;
    let no_port =
        "Service \"t\" is invalid: spec.ports[1].nodePort: Invalid value: 30080: provided port is already allocated";
    world.refuse(&line, &body("t", two), 422, no_port).await;
    world.send(&post(SERVICES), &body("t", r#"{"type":"NodePort","ports":[{"port":80}]}"#)).await.unwrap();
    let change = r#"{"spec":{"ports":[{"port":80,"nodePort":30080}]}}"#;
    let no_port =
        "Service \"t\" is invalid: spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated";
    world.refuse(&patch(SERVICES, "t?dryRun=All", MERGE), change, 422, no_port).await;
    assert_eq!(claims(&world).await, (2, 2));
    // A dry run accepts an abandoned claim and does not change it.
    lose(&world, "s").await;
    let world = later(&world, 120);
    let address = r#"{"clusterIP":"10.96.0.10","ports":[{"port":80}]}"#;
    assert_eq!(spec(&world, &line, &body("u", address)).await["clusterIP"], "10.96.0.10");
    assert!(world.stored("/ipaddresses/").await.concat().contains(r#""namespace":"default","name":"s""#));
}

#[tokio::test]
async fn dry_run_gives_400_ports_different_node_ports() {
    const PORTS: usize = 400;
    let world = World::new().await;
    let line = post(&format!("{SERVICES}?dryRun=All"));
    let ports: Vec<String> = (1..=PORTS).map(|port| format!(r#"{{"port":{port},"name":"p{port}"}}"#)).collect();
    let wanted = format!(r#"{{"type":"NodePort","ports":[{}]}}"#, ports.join(","));
    let tried = spec(&world, &line, &body("s", &wanted)).await;
    let drawn: std::collections::HashSet<_> =
        tried["ports"].as_array().unwrap().iter().map(|port| port["nodePort"].as_u64().unwrap()).collect();
    assert_eq!(drawn.len(), PORTS);
}

#[tokio::test]
async fn service_rejects_the_same_node_port_for_two_ports() {
    let world = World::new().await;
    let two = |first: &str, second: &str| format!(r#"{{"type":"NodePort","ports":[{first},{second}]}}"#);
    let a = r#"{"port":80,"name":"a","nodePort":30080}"#;
    let taken =
        "Service \"s\" is invalid: spec.ports[1].nodePort: Invalid value: 30080: provided port is already allocated";
    for other in
        [r#"{"port":81,"name":"b","nodePort":30080}"#, r#"{"port":81,"name":"b","nodePort":30080,"protocol":"UDP"}"#]
    {
        world.refuse(&post(SERVICES), &body("s", &two(a, other)), 422, taken).await;
    }
    let same = r#"{"port":80,"name":"b","nodePort":30080}"#;
    let answer = world.send(&post(SERVICES), &body("s", &two(a, same))).await.unwrap_err();
    assert!(answer.message.contains("[spec.ports[1].nodePort: Duplicate value: 30080, "), "{}", answer.message);
    assert_eq!(claims(&world).await, (0, 0));
    spec(&world, &post(SERVICES), &body("s", &two(a, r#"{"port":81,"name":"b"}"#))).await;
    let twice = two(a, r#"{"port":81,"name":"b","nodePort":30080}"#);
    let duplicate = "Service \"s\" is invalid: spec.ports[1].nodePort: Duplicate value: 30080";
    world.refuse(&put(SERVICES, "s"), &body("s", &twice), 422, duplicate).await;
    // On an update, two protocols may share a node port, even for different port numbers.
    let shared = two(a, r#"{"port":81,"name":"b","nodePort":30080,"protocol":"UDP"}"#);
    assert_eq!(spec(&world, &put(SERVICES, "s"), &body("s", &shared)).await["ports"][1]["nodePort"], 30080);
    assert_eq!(claims(&world).await, (1, 1));
}

#[tokio::test]
async fn health_check_port_must_differ_from_all_node_ports() {
    let world = World::new().await;
    let local = |rest: &str| format!(r#"{{"type":"LoadBalancer","externalTrafficPolicy":"Local",{rest}}}"#);
    let both = local(r#""healthCheckNodePort":30080,"ports":[{"port":80,"nodePort":30080}]"#);
    let refused = "Internal error occurred: failed to allocate requested HealthCheck NodePort 30080: provided port is already allocated";
    world.refuse(&post(SERVICES), &body("s", &both), 500, refused).await;
    assert_eq!(claims(&world).await, (0, 0));
    let cluster = r#"{"type":"LoadBalancer","ports":[{"port":80,"nodePort":30080}]}"#;
    world.send(&post(SERVICES), &body("s", cluster)).await.unwrap();
    world.refuse(&put(SERVICES, "s"), &body("s", &both), 500, refused).await;
    let apart = local(r#""healthCheckNodePort":30081,"ports":[{"port":80,"nodePort":30080}]"#);
    spec(&world, &put(SERVICES, "s"), &body("s", &apart)).await;
    let taken =
        "Service \"s\" is invalid: spec.ports[0].nodePort: Invalid value: 30081: provided port is already allocated";
    for health in [r#""healthCheckNodePort":30081,"#, ""] {
        let moved = local(&format!(r#"{health}"ports":[{{"port":80,"nodePort":30081}}]"#));
        world.refuse(&put(SERVICES, "s"), &body("s", &moved), 422, taken).await;
    }
    let other = local(r#""healthCheckNodePort":30080,"ports":[{"port":80}]"#);
    let answer = world.send(&post(SERVICES), &body("t", &other)).await.unwrap_err();
    assert_eq!((answer.code, answer.message.as_str()), (500, refused));
    assert_eq!(claims(&world).await, (1, 2));
}

#[tokio::test]
async fn change_to_node_port_allocates_one_port_per_protocol() {
    let world = World::new().await;
    let dns = r#"{"ports":[{"port":53,"name":"u","protocol":"UDP"},{"port":53,"name":"t"}]}"#;
    world.send(&post(SERVICES), &body("dns", dns)).await.unwrap();
    let outside = spec(&world, &patch(SERVICES, "dns", MERGE), r#"{"spec":{"type":"NodePort"}}"#).await;
    assert_ne!(outside["ports"][0]["nodePort"], outside["ports"][1]["nodePort"]);
    assert_eq!(claims(&world).await, (1, 2));
}

#[tokio::test]
async fn parent_ref_of_a_claimed_address_is_immutable() {
    let world = World::new().await;
    let chosen = r#"{"clusterIP":"10.96.0.10","ports":[{"port":80}]}"#;
    world.send(&post(SERVICES), &body("s", chosen)).await.unwrap();
    let line = patch("/apis/networking.k8s.io/v1/ipaddresses", "10.96.0.10", MERGE);
    let refused = world.send(&line, r#"{"spec":{"parentRef":{"name":"gone"}}}"#).await.unwrap_err();
    assert_eq!(refused.code, 422);
    assert!(refused.message.contains("spec.parentRef: Invalid value: "), "{}", refused.message);
    assert!(refused.message.ends_with(": field is immutable"), "{}", refused.message);
    world.send(&line, r#"{"metadata":{"labels":{"a":"b"}}}"#).await.unwrap();
}

#[tokio::test]
async fn services_get_addresses_and_ports_from_the_configured_ranges() {
    let world = World::new().await;
    let ranges = crate::ServiceRanges::default().with_cluster_addresses("10.43.0.0/28").unwrap();
    let ranges = ranges.with_node_ports("40000-40001").unwrap();
    let writer = testing::writer(world.writer.backend().storage().clone()).with_service_ranges(ranges);
    let world = World { writer: Arc::new(writer), clock: world.clock };
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}}).to_string()
    };
    let mut ports = Vec::new();
    for name in ["a", "b"] {
        let created = world.send(&format!("POST {services}"), &service(name)).await.unwrap();
        let WriteBody::Object(created) = created.body else { panic!("no object") };
        let created: Value = serde_json::from_slice(created.json_slice()).unwrap();
        let address = created["spec"]["clusterIP"].as_str().unwrap();
        assert!(address.starts_with("10.43.0."), "{address}");
        ports.push(created["spec"]["ports"][0]["nodePort"].as_u64().unwrap());
    }
    ports.sort_unstable();
    assert_eq!(ports, [40_000, 40_001]);
    let full = "failed to allocate a nodePort: range is full";
    let refused = world.send(&format!("POST {services}"), &service("c")).await.unwrap_err();
    assert!(refused.message.contains(full), "{}", refused.message);
    let outside = json!({"metadata": {"name": "d"}, "spec": {"type": "NodePort",
        "ports": [{"port": 80, "nodePort": 30_000}]}});
    let refused = world.send(&format!("POST {services}"), &outside.to_string()).await.unwrap_err();
    assert!(refused.message.ends_with("The range of valid ports is 40000-40001"), "{}", refused.message);
}

#[tokio::test]
async fn first_and_last_address_of_the_range_cannot_be_chosen() {
    let world = World::new().await;
    for address in ["10.96.0.0", "10.96.255.255"] {
        let service = json!({"metadata": {"name": "a"}, "spec": {"clusterIP": address, "ports": [{"port": 80}]}});
        let line = "POST /api/v1/namespaces/default/services";
        let refused = world.send(line, &service.to_string()).await.unwrap_err();
        let why = "the provided network does not match the current range";
        assert!(refused.code == 422 && refused.message.ends_with(why), "{}", refused.message);
    }
}

#[tokio::test]
async fn all_values_of_a_small_range_can_be_allocated() {
    const LINE: &str = "POST /api/v1/namespaces/default/services";
    for (bits, hosts) in [(29, 6), (28, 14), (27, 30), (24, 254)] {
        let world = World::new().await;
        let ranges = crate::ServiceRanges::default().with_cluster_addresses(&format!("10.43.0.0/{bits}")).unwrap();
        let ranges = ranges.with_node_ports(&format!("40000+{}", hosts - 1)).unwrap();
        let writer = testing::writer(world.writer.backend().storage().clone()).with_service_ranges(ranges);
        let world = World { writer: Arc::new(writer), clock: world.clock };
        let service = |number: u32, kind: &str| {
            body(&format!("s{number}"), &format!(r#"{{"type":"{kind}","ports":[{{"port":80}}]}}"#))
        };
        for number in 0..hosts {
            let created = world.send(LINE, &service(number, "NodePort")).await;
            assert!(created.is_ok(), "service {number} of {hosts}: {created:?}");
        }
        let allocations = Allocations::read(&world).await;
        assert_eq!(allocations.services.len(), 2 * hosts as usize, "/{bits}");
        let full =
            format!(r#"Internal error occurred: failed to allocate a serviceIP for Service "s{hosts}": range is full"#);
        world.refuse(LINE, &service(hosts, "ClusterIP"), 500, &full).await;
    }
}
