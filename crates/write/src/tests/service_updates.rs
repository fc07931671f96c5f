//! Tests updates of services: changes of the type, kept node ports, IP families, and the cleanup after a deletion.

use listwatch_json::json;
use listwatch_registry::{StorageMediaType, StoredForm};

use super::allocations::Allocations;
use super::services::{SERVICES, allocated_ports, body, claims, edit_stored, spec};
use super::*;

const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";

/// Creates a service with an address of a load balancer, changes its type, and updates it again.
///
/// `claimed` is the number of addresses and of ports that the service has after the change, `gone` are the fields that
/// the change removes.
async fn check_type_change(created: &str, change: &str, claimed: (usize, usize), gone: &[&str]) {
    let world = World::new().await;
    let before = spec(&world, &post(SERVICES), &body("s", created)).await;
    if before["type"] == "LoadBalancer" {
        let status = r#"{"status":{"loadBalancer":{"ingress":[{"ip":"1.2.3.4"}]}}}"#;
        world.send(&patch(SERVICES, "s/status", MERGE), status).await.unwrap();
    }
    let after = spec(&world, &patch(SERVICES, "s", MERGE), &format!(r#"{{"spec":{change}}}"#)).await;
    for field in gone {
        assert!(before.get(field).is_some(), "{created}: the field {field} is absent before the change");
        assert_eq!(after.get(field), None, "{created} {change}: the field {field} remains");
    }
    assert_eq!(claims(&world).await, claimed, "{created} {change}");
    Allocations::read(&world).await.check_at_rest().unwrap_or_else(|broken| panic!("{broken}"));
    let stored = world.stored("/services/specs/").await.concat();
    assert!(stored.contains(r#""status":{"loadBalancer":{}}"#), "Status cleared: {stored}");
    let again = spec(&world, &patch(SERVICES, "s", MERGE), r#"{"metadata":{"labels":{"a":"b"}}}"#).await;
    assert_eq!(again, after, "{created} {change}: the second update changes the spec");
    world.send(&put(SERVICES, "s"), &body("s", &after.to_string())).await.unwrap();
    world.send(&format!("DELETE {SERVICES}/s"), "").await.unwrap();
    assert_eq!(claims(&world).await, (0, 0), "{created} {change}");
}

#[tokio::test]
async fn service_of_another_type_can_be_updated_again_and_releases_what_it_does_not_need() {
    let balancer = r#"{"type":"LoadBalancer","ports":[{"port":80}]}"#;
    let class = r#"{"type":"LoadBalancer","loadBalancerClass":"a.io/b","ports":[{"port":80}]}"#;
    let local = r#"{"type":"LoadBalancer","externalTrafficPolicy":"Local","ports":[{"port":80}]}"#;
    let node_port = r#"{"type":"NodePort","ports":[{"port":80}]}"#;
    let to_node_port = r#"{"type":"NodePort"}"#;
    let to_inside = r#"{"type":"ClusterIP"}"#;
    let external = r#"{"type":"ExternalName","externalName":"a.b"}"#;
    let addresses = ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "externalTrafficPolicy"];
    check_type_change(balancer, to_node_port, (1, 1), &["allocateLoadBalancerNodePorts"]).await;
    check_type_change(class, to_inside, (1, 0), &["loadBalancerClass", "externalTrafficPolicy"]).await;
    check_type_change(local, to_node_port, (1, 1), &["healthCheckNodePort"]).await;
    check_type_change(local, external, (0, 0), &addresses).await;
    check_type_change(class, external, (0, 0), &["loadBalancerClass", "allocateLoadBalancerNodePorts"]).await;
    check_type_change(node_port, to_inside, (1, 0), &["externalTrafficPolicy"]).await;
}

#[tokio::test]
async fn external_name_service_with_an_internal_traffic_policy_is_written_once() {
    for media_type in [StorageMediaType::Json, StorageMediaType::Protobuf] {
        let form = Arc::new(StoredForm::new(None, media_type, "/registry"));
        let world = World::over(form.storage(MemoryStorage::new())).await;
        let service = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},"spec":{"type":"ExternalName","externalName":"a.b","internalTrafficPolicy":"Cluster"}}"#;
        let apply = format!("PATCH {SERVICES}/s?fieldManager=a application/apply-patch+yaml");
        for line in [apply, put(SERVICES, "s")] {
            let first = spec(&world, &line, service).await;
            assert_eq!(first.get("internalTrafficPolicy"), None, "{media_type:?} {line}");
            let before = world.revision().await;
            for _ in 0..2 {
                world.send(&line, service).await.unwrap();
            }
            assert_eq!(world.revision().await, before, "{media_type:?} {line}: the same write changes the service");
        }
    }
}

#[tokio::test]
async fn type_change_with_a_changed_field_of_the_former_type_is_rejected() {
    let world = World::new().await;
    let balancer = r#"{"type":"LoadBalancer","loadBalancerClass":"a.io/b","ports":[{"port":80,"nodePort":30080}]}"#;
    world.send(&post(SERVICES), &body("s", balancer)).await.unwrap();
    for (change, message) in [
        (
            r#"{"type":"NodePort","loadBalancerClass":"a.io/c"}"#,
            "Service \"s\" is invalid: spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'",
        ),
        (
            r#"{"type":"ClusterIP","externalTrafficPolicy":"Local"}"#,
            "Service \"s\" is invalid: spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services",
        ),
        (
            r#"{"type":"ClusterIP","ports":[{"port":80,"nodePort":30081}]}"#,
            "Service \"s\" is invalid: spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
    ] {
        world.refuse(&patch(SERVICES, "s", MERGE), &format!(r#"{{"spec":{change}}}"#), 422, message).await;
    }
    assert_eq!(allocated_ports(&world).await, [30_080]);
}

#[tokio::test]
async fn update_without_node_ports_keeps_them_by_the_name_of_the_port() {
    let world = World::new().await;
    let ports = |ports: &str| format!(r#"{{"type":"NodePort","ports":[{ports}]}}"#);
    let created = ports(r#"{"name":"a","port":80,"nodePort":30080},{"name":"b","port":81,"nodePort":30081}"#);
    world.send(&post(SERVICES), &body("s", &created)).await.unwrap();
    // The number and the protocol of `a` change.
    let moved = ports(r#"{"name":"b","port":80},{"name":"a","port":8080,"protocol":"UDP"}"#);
    let updated = spec(&world, &put(SERVICES, "s"), &body("s", &moved)).await;
    assert_eq!(updated["ports"][0]["nodePort"], 30_081, "{updated}");
    assert_eq!(updated["ports"][1]["nodePort"], 30_080, "{updated}");
    // Another port takes over the node port of `a`.
    let taken = ports(r#"{"name":"a","port":80},{"name":"b","port":81,"nodePort":30080}"#);
    let updated = spec(&world, &put(SERVICES, "s"), &body("s", &taken)).await;
    let other = updated["ports"][0]["nodePort"].as_u64().unwrap();
    assert_ne!(other, 30_080, "{updated}");
    assert_eq!(claims(&world).await, (1, 2));
    // A port with another name is another port.
    let renamed = ports(r#"{"name":"c","port":80},{"name":"b","port":81}"#);
    let updated = spec(&world, &put(SERVICES, "s"), &body("s", &renamed)).await;
    assert_eq!(updated["ports"][1]["nodePort"], 30_080, "{updated}");
    assert_eq!(claims(&world).await, (1, 2));
    Allocations::read(&world).await.check_at_rest().unwrap_or_else(|broken| panic!("{broken}"));
}

#[tokio::test]
async fn load_balancer_without_allocation_gives_up_a_node_port_that_an_update_omits() {
    let world = World::new().await;
    let declined =
        |ports: &str| format!(r#"{{"type":"LoadBalancer","allocateLoadBalancerNodePorts":false,"ports":[{ports}]}}"#);
    world.send(&post(SERVICES), &body("s", &declined(r#"{"port":80,"nodePort":30080}"#))).await.unwrap();
    let updated = spec(&world, &put(SERVICES, "s"), &body("s", &declined(r#"{"port":80}"#))).await;
    assert_eq!(updated["ports"][0].get("nodePort"), None);
    assert_eq!(claims(&world).await, (1, 0));
}

#[tokio::test]
async fn new_service_gets_the_ip_families_of_a_cluster_with_ipv4() {
    let world = World::new().await;
    for (number, (created, policy, families)) in [
        (r#"{"ports":[{"port":80}]}"#, "SingleStack", json!(["IPv4"])),
        (r#"{"ports":[{"port":80}],"ipFamilyPolicy":"PreferDualStack"}"#, "PreferDualStack", json!(["IPv4"])),
        (r#"{"clusterIP":"None","selector":{"a":"b"}}"#, "SingleStack", json!(["IPv4"])),
        (
            r#"{"clusterIP":"None","selector":{"a":"b"},"ipFamilyPolicy":"PreferDualStack"}"#,
            "PreferDualStack",
            json!(["IPv4"]),
        ),
        (r#"{"clusterIP":"None"}"#, "RequireDualStack", json!(["IPv4", "IPv6"])),
        (r#"{"clusterIP":"None","ipFamilies":["IPv6"]}"#, "RequireDualStack", json!(["IPv6", "IPv4"])),
        (r#"{"clusterIP":"None","ipFamilyPolicy":"SingleStack"}"#, "SingleStack", json!(["IPv4"])),
        (
            r#"{"clusterIP":"None","ipFamilyPolicy":"SingleStack","ipFamilies":["IPv6"]}"#,
            "SingleStack",
            json!(["IPv6"]),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("s{number}");
        let found = spec(&world, &post(SERVICES), &body(&name, created)).await;
        assert_eq!((&found["ipFamilyPolicy"], &found["ipFamilies"]), (&json!(policy), &families), "{created}");
        let again = spec(&world, &put(SERVICES, &name), &body(&name, &found.to_string())).await;
        assert_eq!(again, found, "{created}");
    }
}

#[tokio::test]
async fn create_rejects_ip_families_that_the_cluster_does_not_have() {
    let world = World::new().await;
    for (fields, message) in [
        (
            r#""ipFamilyPolicy":"RequireDualStack""#,
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
        ),
        (r#""ipFamilies":["IPv6"]"#, "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster"),
        (
            r#""ipFamilyPolicy":"PreferDualStack","ipFamilies":["IPv4","IPv6"]"#,
            "spec.ipFamilies[1]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
        (
            r#""ipFamilies":["IPv4","IPv6"]"#,
            "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified",
        ),
        (
            r#""clusterIP":"2001:db8::1""#,
            "spec.clusterIPs[0]: Invalid value: [\"2001:db8::1\"]: IPv6 is not configured on this cluster",
        ),
        (
            r#""ipFamilyPolicy":"PreferDualStack","clusterIP":"10.96.0.9","clusterIPs":["10.96.0.9","2001:db8::1"]"#,
            "spec.clusterIPs[1]: Invalid value: [\"10.96.0.9\",\"2001:db8::1\"]: IPv6 is not configured on this cluster",
        ),
        (
            r#""clusterIP":"None","selector":{"a":"b"},"ipFamilies":["IPv6"]"#,
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
    ] {
        let refused = format!("Service \"s\" is invalid: {message}");
        let created = format!(r#"{{"ports":[{{"port":80}}],{fields}}}"#);
        world.refuse(&post(SERVICES), &body("s", &created), 422, &refused).await;
    }
    assert_eq!(claims(&world).await, (0, 0));
}

#[tokio::test]
async fn update_rejects_dual_stack_and_keeps_a_preferred_second_address() {
    let world = World::new().await;
    world.send(&post(SERVICES), &body("s", r#"{"clusterIP":"10.96.0.9","ports":[{"port":80}]}"#)).await.unwrap();
    let single = "Service \"s\" is invalid: spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services";
    let require = r#"{"spec":{"ipFamilyPolicy":"RequireDualStack"}}"#;
    world.refuse(&patch(SERVICES, "s", MERGE), require, 422, single).await;
    // A former dual-stack cluster stored the second address.
    edit_stored(&world, "/services/specs/default/s", |service| {
        service["spec"]["clusterIPs"] = json!(["10.96.0.9", "2001:db8::1"]);
        service["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
        service["spec"]["ipFamilyPolicy"] = json!("PreferDualStack");
    })
    .await;
    let kept = spec(&world, &patch(SERVICES, "s", MERGE), r#"{"metadata":{"labels":{"a":"b"}}}"#).await;
    assert_eq!(kept["clusterIPs"], json!(["10.96.0.9", "2001:db8::1"]));
    let reduced = "Service \"s\" is invalid: [spec.ipFamilyPolicy: Invalid value: \"PreferDualStack\": must be 'SingleStack' to release the secondary IP family, spec.clusterIPs[1]: Invalid value: [\"10.96.0.9\",\"2001:db8::1\"]: IPv6 is not configured on this cluster]";
    world.refuse(&patch(SERVICES, "s", MERGE), r#"{"spec":{"ipFamilies":["IPv4"]}}"#, 422, reduced).await;
    let released = spec(&world, &patch(SERVICES, "s", MERGE), r#"{"spec":{"ipFamilyPolicy":"SingleStack"}}"#).await;
    assert_eq!((&released["clusterIPs"], &released["ipFamilies"]), (&json!(["10.96.0.9"]), &json!(["IPv4"])));
}

#[tokio::test]
async fn service_with_families_of_another_cluster_can_be_updated_and_deleted() {
    let world = World::new().await;
    world.send(&post(SERVICES), &body("s", r#"{"type":"LoadBalancer","ports":[{"port":80}]}"#)).await.unwrap();
    edit_stored(&world, "/services/specs/default/s", |service| {
        service["spec"]["ipFamilyPolicy"] = json!("RequireDualStack");
    })
    .await;
    let status = r#"{"status":{"loadBalancer":{"ingress":[{"ip":"1.2.3.4"}]}}}"#;
    world.send(&patch(SERVICES, "s/status", MERGE), status).await.unwrap();
    let labels = r#"{"metadata":{"labels":{"a":"b"},"finalizers":["a.io/b"]}}"#;
    world.send(&patch(SERVICES, "s", MERGE), labels).await.unwrap();
    let families = r#"{"spec":{"ipFamilies":["IPv6"]}}"#;
    world.send(&patch(SERVICES, "s", MERGE), families).await.unwrap_err();
    world.send(&format!("DELETE {SERVICES}/s"), "").await.unwrap();
    world.send(&patch(SERVICES, "s", MERGE), r#"{"metadata":{"finalizers":null}}"#).await.unwrap();
    assert!(world.stored("/services/specs/").await.is_empty(), "the last finalizer ends the deletion");
}

#[tokio::test]
async fn deletion_of_a_service_deletes_the_endpoints_of_the_same_name() {
    let world = World::new().await;
    let service = r#"{"ports":[{"port":80}]}"#;
    for name in ["s", "t", "u"] {
        world.send(&post(SERVICES), &body(name, service)).await.unwrap();
        world.send(&post(ENDPOINTS), &format!(r#"{{"metadata":{{"name":"{name}"}}}}"#)).await.unwrap();
    }
    let count = async || world.stored("/services/endpoints/").await.len();
    world.send(&format!("DELETE {SERVICES}/s?dryRun=All"), "").await.unwrap();
    assert_eq!(count().await, 3, "a dry run deletes nothing");
    world.send(&format!("DELETE {SERVICES}/s"), "").await.unwrap();
    assert_eq!(count().await, 2);
    // The last finalizer delays the deletion.
    world.send(&patch(SERVICES, "t", MERGE), r#"{"metadata":{"finalizers":["a.io/b"]}}"#).await.unwrap();
    world.send(&format!("DELETE {SERVICES}/t"), "").await.unwrap();
    assert_eq!(count().await, 2, "a marked service keeps its Endpoints");
    world.send(&patch(SERVICES, "t", MERGE), r#"{"metadata":{"finalizers":null}}"#).await.unwrap();
    assert_eq!(count().await, 1);
    // Endpoints with finalizers are only marked.
    world.send(&patch(ENDPOINTS, "u", MERGE), r#"{"metadata":{"finalizers":["a.io/b"]}}"#).await.unwrap();
    world.send(&format!("DELETE {SERVICES}/u"), "").await.unwrap();
    let marked = world.stored("/services/endpoints/").await.concat();
    assert!(marked.contains(r#""deletionTimestamp":"NOW""#), "{marked}");
    // The Endpoints may be absent.
    world.send(&post(SERVICES), &body("v", service)).await.unwrap();
    world.send(&format!("DELETE {SERVICES}/v"), "").await.unwrap();
}

/// The fuel that the server gives to a write on an I/O worker.
const FUEL: u64 = 20_000;

#[tokio::test]
async fn deletion_with_little_fuel_cleans_up_after_a_service_with_large_objects() {
    let large = |bytes: usize| "a".repeat(bytes);
    for (service_bytes, endpoints_bytes) in [(1, 200_000), (100_000, 1)] {
        for finalizer in [false, true].into_iter().filter(|finalizer| !finalizer || service_bytes == 1) {
            let world = World::new().await;
            let annotated = |bytes| format!(r#"{{"metadata":{{"name":"s","annotations":{{"a":"{}"}}}}"#, large(bytes));
            let service = annotated(service_bytes) + r#","spec":{"type":"NodePort","ports":[{"port":80}]}}"#;
            world.send(&post(SERVICES), &service).await.unwrap();
            world.send(&post(ENDPOINTS), &(annotated(endpoints_bytes) + "}")).await.unwrap();
            let (mut line, mut body) = (format!("DELETE {SERVICES}/s"), "");
            if finalizer {
                world.send(&patch(SERVICES, "s", MERGE), r#"{"metadata":{"finalizers":["a.io/b"]}}"#).await.unwrap();
                world.send(&line, "").await.unwrap();
                (line, body) = (patch(SERVICES, "s", MERGE), r#"{"metadata":{"finalizers":null}}"#);
            }
            let mut tank = listwatch_meta::fuel::Tank::new(FUEL);
            let mut sent = Box::pin(world.send(&line, body));
            std::future::poll_fn(|context| tank.run(|| sent.as_mut().poll(context))).await.unwrap();
            let case = format!("{service_bytes} {endpoints_bytes} {finalizer}");
            assert!(world.stored("/services/endpoints/").await.is_empty(), "{case}: the Endpoints remain");
            assert_eq!(claims(&world).await, (0, 0), "{case}");
        }
    }
}

#[tokio::test]
async fn service_that_a_controller_removes_is_cleaned_up() {
    let world = World::new().await;
    world.send(&post(SERVICES), &body("s", r#"{"type":"NodePort","ports":[{"port":80}]}"#)).await.unwrap();
    world.send(&post(ENDPOINTS), r#"{"metadata":{"name":"s"}}"#).await.unwrap();
    let registry = world.writer.backend().registry();
    let services = registry.find("", "v1", "services").unwrap();
    let key = services.key(Some("default"), "s").unwrap();
    world.writer.amend(services, &key, |_| crate::Amendment::Remove).await.unwrap();
    assert!(world.stored("/services/endpoints/").await.is_empty());
    assert_eq!(claims(&world).await, (0, 0));
}
