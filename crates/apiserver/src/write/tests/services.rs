//! Addresses and node ports of services.

use super::*;

const SERVICES: &str = "/api/v1/namespaces/default/services";

/// The `spec` of the object that a request answers.
async fn spec(world: &World, line: &str, body: &str) -> Value {
    let answer = world.answer(line, body).await;
    let (code, json) = answer.split_once(' ').unwrap();
    assert!(code.starts_with('2'), "{line} {body}: {answer}");
    serde_json::from_str::<Value>(json).unwrap()["spec"].take()
}

async fn claims(world: &World) -> (usize, usize) {
    (world.stored("/ipaddresses/").await.len(), world.stored("/ranges/servicenodeports/").await.len())
}

fn body(name: &str, spec: &str) -> String {
    format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{spec}}}"#)
}

#[tokio::test]
async fn an_address_is_given_kept_and_given_back() {
    let world = World::new().await;
    let created = spec(&world, &post(SERVICES), &body("s", r#"{"ports":[{"port":80}],"selector":{"a":"b"}}"#)).await;
    let address = created["clusterIP"].as_str().unwrap().to_owned();
    assert!(address.starts_with("10.96."), "{address}");
    assert_eq!(created["clusterIPs"], serde_json::json!([address]));
    assert_eq!(
        world.stored("/ipaddresses/").await,
        [format!(
            r#"/ipaddresses/{address}={{"kind":"IPAddress","apiVersion":"networking.k8s.io/v1","metadata":{{"name":"{address}","uid":"UID","creationTimestamp":"NOW","labels":{{"ipaddress.kubernetes.io/ip-family":"IPv4","ipaddress.kubernetes.io/managed-by":"ipallocator.k8s.io"}}}},"spec":{{"parentRef":{{"resource":"services","namespace":"default","name":"s"}}}}}}"#
        )]
    );
    // A manifest without the address keeps it, whatever the type becomes.
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
async fn addresses_that_cannot_be() {
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
        serde_json::json!(["None"])
    );
    assert_eq!(claims(&world).await, (1, 0));
    // A create that fails gives back what it had claimed.
    world.send(&post(SERVICES), &body("dns", "{}")).await.unwrap_err();
    assert_eq!(claims(&world).await, (1, 0));
}

#[tokio::test]
async fn a_claim_without_an_owner_is_taken_over() {
    let world = World::new().await;
    let chosen = r#"{"clusterIP":"10.96.0.10","ports":[{"port":80}]}"#;
    world.send(&post(SERVICES), &body("s", chosen)).await.unwrap();
    let key = Key::from_path("/services/specs/default/s").unwrap();
    let (found, _) = world.backend.storage().get(&key).await.unwrap();
    world.backend.storage().delete(&key, found.unwrap().modified).await.unwrap();
    assert_eq!(spec(&world, &post(SERVICES), &body("t", chosen)).await["clusterIP"], "10.96.0.10");
    let claimed = world.stored("/ipaddresses/").await;
    assert!(claimed[0].contains(r#""name":"t""#), "{claimed:?}");
}

#[tokio::test]
async fn node_ports_are_given_kept_and_given_back() {
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
async fn a_dry_run_claims_nothing() {
    let world = World::new().await;
    let line = post(&format!("{SERVICES}?dryRun=All"));
    let tried = spec(&world, &line, &body("s", r#"{"type":"LoadBalancer","ports":[{"port":80}]}"#)).await;
    assert!(tried["clusterIP"].as_str().unwrap().starts_with("10.96."));
    assert_eq!(claims(&world).await, (0, 0));
}
