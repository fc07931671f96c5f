//! Tests the allocation of cluster addresses from the ranges of ServiceCIDRs (`test/integration/servicecidr`).

use listwatch_json::json;

use super::allocations::Allocations;
use super::services::{SERVICES, body, spec};
use super::*;

/// Returns a server whose flag has the range 10.43.0.0/29, with 6 addresses.
async fn small_world() -> World {
    let world = World::new().await;
    let ranges = crate::ServiceRanges::default().with_cluster_addresses("10.43.0.0/29").unwrap();
    let writer = testing::writer(world.writer.backend().storage().clone()).with_service_ranges(ranges);
    World { writer: Arc::new(writer), clock: world.clock }
}

/// Creates services until the range of the flag is full.
async fn fill(world: &World) {
    for number in 0..6 {
        let address = create(world, &format!("s{number}")).await;
        assert!(address.starts_with("10.43.0."), "{address}");
    }
}

/// Creates a service and returns its address.
async fn create(world: &World, name: &str) -> String {
    let created = spec(world, &post(SERVICES), &body(name, r#"{"ports":[{"port":80}]}"#)).await;
    created["clusterIP"].as_str().unwrap().to_owned()
}

async fn refuse_as_full(world: &World, name: &str) {
    let full =
        format!(r#"Internal error occurred: failed to allocate a serviceIP for Service "{name}": range is full"#);
    world.refuse(&post(SERVICES), &body(name, r#"{"ports":[{"port":80}]}"#), 500, &full).await;
}

async fn refuse_address(world: &World, address: &str) {
    let message = format!(
        "Service \"x\" is invalid: spec.clusterIPs: Invalid value: [\"{address}\"]: failed to allocate IP {address}: the provided network does not match the current range"
    );
    let wanted = format!(r#"{{"clusterIP":"{address}","ports":[{{"port":80}}]}}"#);
    world.refuse(&post(SERVICES), &body("x", &wanted), 422, &message).await;
}

/// Passes the state of the ServiceCIDR `extra` with the range 10.200.0.0/24 to the server.
fn set_extra(world: &World, ready: &str, is_deleted: bool) {
    let mut object = json!({"metadata": {"name": "extra"}, "spec": {"cidrs": ["10.200.0.0/24"]},
        "status": {"conditions": [{"type": "Ready", "status": ready}]}});
    if is_deleted {
        object["metadata"]["deletionTimestamp"] = json!(NOW);
    }
    assert!(world.writer.service_cidrs().set("extra", object.to_string().as_bytes()));
}

#[tokio::test]
async fn services_get_addresses_of_a_ready_service_cidr_when_the_first_range_is_full() {
    let world = small_world().await;
    fill(&world).await;
    refuse_as_full(&world, "a").await;
    set_extra(&world, "False", false);
    refuse_as_full(&world, "a").await;
    refuse_address(&world, "10.200.0.7").await;
    set_extra(&world, "True", false);
    let address = create(&world, "a").await;
    assert!(address.starts_with("10.200.0."), "{address}");
    let chosen = r#"{"clusterIP":"10.200.0.7","ports":[{"port":80}]}"#;
    assert_eq!(spec(&world, &post(SERVICES), &body("chosen", chosen)).await["clusterIP"], "10.200.0.7");
    for no_host in ["10.200.0.0", "10.200.0.255", "10.201.0.1"] {
        refuse_address(&world, no_host).await;
    }
    let allocations = Allocations::read(&world).await;
    allocations.check_at_rest().unwrap_or_else(|broken| panic!("{broken}"));
    assert_eq!(allocations.services.len(), 8);
}

#[tokio::test]
async fn service_cidr_that_is_being_deleted_or_gone_gives_no_addresses() {
    let world = small_world().await;
    fill(&world).await;
    set_extra(&world, "True", false);
    let address = create(&world, "a").await;
    set_extra(&world, "True", true);
    refuse_as_full(&world, "b").await;
    refuse_address(&world, "10.200.0.8").await;
    world.writer.service_cidrs().remove("extra");
    refuse_as_full(&world, "b").await;
    // An existing service keeps its address, and releases it.
    let updated = spec(&world, &put(SERVICES, "a"), &body("a", r#"{"ports":[{"port":81}]}"#)).await;
    assert_eq!(updated["clusterIP"], address.as_str());
    world.send(&format!("DELETE {SERVICES}/a"), "").await.unwrap();
    assert_eq!(world.stored("/ipaddresses/").await.len(), 6);
}

#[tokio::test]
async fn range_of_the_flag_gives_no_addresses_while_its_service_cidr_is_being_deleted() {
    let world = small_world().await;
    set_extra(&world, "True", false);
    let metadata = json!({"name": "kubernetes", "deletionTimestamp": NOW});
    let object = json!({"metadata": metadata, "spec": {"cidrs": ["10.43.0.0/29"]}});
    assert!(world.writer.service_cidrs().set("kubernetes", object.to_string().as_bytes()));
    let address = create(&world, "a").await;
    assert!(address.starts_with("10.200.0."), "{address}");
    refuse_address(&world, "10.43.0.3").await;
    world.writer.service_cidrs().remove("extra");
    refuse_as_full(&world, "b").await;
}

#[tokio::test]
async fn write_of_a_service_cidr_returns_no_warning() {
    let world = World::new().await;
    let object = r#"{"metadata":{"name":"extra"},"spec":{"cidrs":["10.200.0.0/24"]}}"#;
    let registry = world.writer.backend().registry();
    let request = WriteRequest {
        verb: WriteVerb::Create,
        resource: registry.find("networking.k8s.io", "v1", "servicecidrs").unwrap(),
        namespace: None,
        name: None,
        subresource: None,
        query: &Query::default(),
        content_type: None,
        user: UserInfo::admin(),
        user_agent: None,
        body: Bytes::from_static(object.as_bytes()),
    };
    let created = world.writer.write(request).await.unwrap();
    assert_eq!((created.code, created.warnings), (201, Vec::new()));
}
