//! Tests pods: binding, eviction, grace period, resize, ephemeral containers.

use listwatch_json::{Value, json};

use super::*;

const PODS: &str = "/api/v1/namespaces/default/pods";

fn pod(revision: u32, generation: u32, deleting: &str, spec: &str, status: &str) -> String {
    format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"resourceVersion":"{revision}","name":"p","namespace":"default","uid":"UID","generation":{generation},"creationTimestamp":"NOW"{deleting}}},"spec":{{"containers":[{{"name":"c","image":"nginx:1","resources":{{}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}}],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","securityContext":{{}},"schedulerName":"default-scheduler","enableServiceLinks":true,"priority":0,"preemptionPolicy":"PreemptLowerPriority","tolerations":[{{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}},{{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}}]{spec}}},"status":{status}}}"#
    )
}

const POD: &str =
    r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"nginx:1"}]},"status":{"phase":"Running"}}"#;
const PENDING: &str = r#"{"phase":"Pending","qosClass":"BestEffort"}"#;
const BOUND: &str = r#"{"phase":"Pending","qosClass":"BestEffort","conditions":[{"type":"PodScheduled","status":"True","lastProbeTime":null,"lastTransitionTime":"NOW"}]}"#;
const ON_NODE: &str = r#","nodeName":"n1""#;
const SUCCESS: &str = r#"201 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}"#;
const BINDING: &str = r#"{"metadata":{"name":"p"},"target":{"kind":"Node","name":"n1"}}"#;

#[tokio::test]
async fn second_binding_of_a_pod_returns_409() {
    let world = World::new().await;
    world.check(&post(PODS), POD, &format!("201 {}", pod(3, 1, "", "", PENDING))).await;
    let binding = format!("POST {PODS}/p/binding");
    world
        .refuse(&binding, r#"{"metadata":{"name":"p"},"target":{"kind":"Node"}}"#, 500, "target.name: Required value")
        .await;
    world.check(&binding, BINDING, SUCCESS).await;
    world.check(&patch(PODS, "p", MERGE), "{}", &format!("200 {}", pod(4, 1, "", ON_NODE, BOUND))).await;
    world
        .refuse(
            &binding,
            BINDING,
            409,
            "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n1\"",
        )
        .await;
    let nope = r#"{"metadata":{"name":"nope"},"target":{"kind":"Node","name":"n1"}}"#;
    world.refuse(&format!("POST {PODS}/nope/binding"), nope, 404, "pods \"nope\" not found").await;
}

#[tokio::test]
async fn delete_of_an_unbound_pod_removes_it_at_once() {
    let world = World::new().await;
    world.send(&post(PODS), POD).await.unwrap();
    let gone = r#","deletionTimestamp":"NOW","deletionGracePeriodSeconds":0"#;
    world.check(&format!("DELETE {PODS}/p"), "", &format!("200 {}", pod(5, 2, gone, "", PENDING))).await;
    assert_eq!(world.stored("/pods/").await, [""; 0]);
    assert_eq!(world.revision().await, 5, "watchers see it marked, then gone");
}

#[tokio::test]
async fn delete_of_a_bound_pod_waits_for_the_grace_period() {
    let world = World::new().await;
    world.send(&post(PODS), POD).await.unwrap();
    world.send(&format!("POST {PODS}/p/binding"), BINDING).await.unwrap();
    let grace = |seconds: u32| {
        format!(r#","deletionTimestamp":"2024-01-01T00:00:{seconds:02}Z","deletionGracePeriodSeconds":{seconds}"#)
    };
    let line = |query: &str| format!("DELETE {PODS}/p{query}");
    let shown = |revision: u32, deleting: &str| format!("200 {}", pod(revision, 2, deleting, ON_NODE, BOUND));
    world.check(&line("?dryRun=All"), "", &shown(4, &grace(30))).await;
    world.check(&line(""), "", &shown(5, &grace(30))).await;
    world.check(&line("?gracePeriodSeconds=60"), "", &shown(5, &grace(30))).await;
    world.check(&line("?gracePeriodSeconds=5"), "", &shown(6, &grace(5))).await;
    let over = r#","deletionTimestamp":"NOW","deletionGracePeriodSeconds":0"#;
    world.check(&line("?gracePeriodSeconds=0"), "", &shown(8, over)).await;
    assert_eq!(world.stored("/pods/").await, [""; 0]);
}

#[tokio::test]
async fn eviction_deletes_the_named_pod() {
    let world = World::new().await;
    world.send(&post(PODS), POD).await.unwrap();
    let line = format!("POST {PODS}/p/eviction");
    world
        .refuse(&line, r#"{"metadata":{"name":"q"}}"#, 400, "name in URL does not match name in Eviction object")
        .await;
    // Clients before Kubernetes 1.22 send this version.
    let older = r#"{"apiVersion":"policy/v1beta1","kind":"Eviction","metadata":{"name":"p"}}"#;
    world.check(&format!("{line}?dryRun=All"), older, SUCCESS).await;
    let unknown = older.replace("v1beta1", "v1beta2");
    world
        .refuse(
            &line,
            &unknown,
            400,
            "the API version in the data (policy/v1beta2) does not match the expected API version (policy/v1)",
        )
        .await;
    world.check(&line, r#"{"metadata":{"name":"p"}}"#, SUCCESS).await;
    world.refuse(&line, older, 404, "pods \"p\" not found").await;
}

#[tokio::test]
async fn pod_gets_the_priority_of_its_class_and_cannot_choose_another() {
    let world = World::new().await;
    let class = r#"{"metadata":{"name":"high"},"value":7,"preemptionPolicy":"Never"}"#;
    world.send("POST /apis/scheduling.k8s.io/v1/priorityclasses", class).await.unwrap();
    let pod = |name: &str, spec: &str| {
        format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{"containers":[{{"name":"c","image":"i"}}],{spec}}}}}"#)
    };
    let answer = world.answer(&post(PODS), &pod("a", r#""priorityClassName":"high""#)).await;
    assert!(answer.contains(r#""priority":7"#) && answer.contains(r#""preemptionPolicy":"Never""#), "{answer}");
    let refuse = async |spec: &str, why: &str| {
        let message = format!("pods \"b\" is forbidden: {why}");
        world.refuse(&post(PODS), &pod("b", spec), 403, &message).await;
    };
    refuse(r#""priorityClassName":"nope""#, "no PriorityClass with name nope was found").await;
    refuse(
        r#""priority":5"#,
        "the integer value of priority (5) must not be provided in pod spec; priority admission controller computed 0 from the given PriorityClass name",
    )
    .await;
    refuse(
        r#""priorityClassName":"high","preemptionPolicy":"PreemptLowerPriority""#,
        "the string value of PreemptionPolicy (PreemptLowerPriority) must not be provided in pod spec; priority admission controller computed Never from the given PriorityClass name",
    )
    .await;
    // An apply that creates a pod gets its priority, too.
    let apply = |name: &str| format!("PATCH {PODS}/{name}?fieldManager=test application/apply-patch+yaml");
    let body = |spec: &str| pod("c", spec).replacen('{', r#"{"kind":"Pod","apiVersion":"v1","#, 1);
    let answer = world.answer(&apply("c"), &body(r#""priorityClassName":"high""#)).await;
    assert!(answer.starts_with("201 ") && answer.contains(r#""priority":7"#), "{answer}");
    for (spec, why) in [
        (r#""priorityClassName":"nope""#, "no PriorityClass with name nope was found"),
        (
            r#""priority":5"#,
            "the integer value of priority (5) must not be provided in pod spec; priority admission controller computed 0 from the given PriorityClass name",
        ),
    ] {
        let body = body(spec).replace(r#""name":"c"}"#, r#""name":"d"}"#);
        world.refuse(&apply("d"), &body, 403, &format!("pods \"d\" is forbidden: {why}")).await;
    }
}

#[tokio::test]
async fn binding_without_a_pod_in_the_path_binds_the_pod_in_its_body() {
    let world = World::new().await;
    world.send(&post(PODS), POD).await.unwrap();
    let bindings = "POST /api/v1/namespaces/default/bindings";
    let at = |version: &str| BINDING.replace(r#""name":"p""#, &format!(r#""name":"p","resourceVersion":"{version}""#));
    world.refuse(bindings, &BINDING.replace(r#""name":"p""#, ""), 400, "Name parameter required.").await;
    let stale = "Operation cannot be fulfilled on pods \"p\": StorageError: invalid object, Code: 4, Key: /registry/pods/default/p, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: ResourceVersion in precondition: 1, ResourceVersion in object meta: 3";
    world.refuse(bindings, &at("1"), 409, stale).await;
    let of_uid = BINDING.replace(r#""name":"p""#, r#""name":"p","uid":"other""#);
    let other = stale.replace("ResourceVersion in", "UID in").replace(": 1,", ": other,").replace(": 3", ": UID");
    world.refuse(&format!("POST {PODS}/p/binding"), &of_uid, 409, &other).await;
    world.send(&patch(PODS, "p/status", MERGE), r#"{"status":{"nominatedNodeName":"n2"}}"#).await.unwrap();
    world.check(bindings, &at("4"), SUCCESS).await;
    let stored = world.stored("/pods/").await.concat();
    assert!(stored.contains(r#""nodeName":"n1""#) && !stored.contains("nominatedNodeName"), "{stored}");
    let other = BINDING.replace(r#""name":"p""#, r#""name":"q""#);
    let why = "name in URL does not match name in Binding object";
    world.refuse(&format!("POST {PODS}/p/binding"), &other, 400, why).await;
}

#[tokio::test]
async fn posted_subresource_is_rejected_in_a_terminating_or_absent_namespace() {
    let world = World::new().await;
    let namespaces = "/api/v1/namespaces";
    world.send(&post(namespaces), r#"{"metadata":{"name":"n","finalizers":["a.b/c"]}}"#).await.unwrap();
    world.send(&post(&format!("{namespaces}/n/pods")), POD).await.unwrap();
    world.send(&post(&format!("{namespaces}/n/serviceaccounts")), r#"{"metadata":{"name":"s"}}"#).await.unwrap();
    world.send(&format!("DELETE {namespaces}/n"), "").await.unwrap();
    for (path, body, object) in [
        ("pods/p/binding", BINDING, "pods \"p\""),
        ("bindings", BINDING, "pods \"p\""),
        ("pods/p/eviction", r#"{"metadata":{"name":"p"}}"#, "pods \"p\""),
        ("serviceaccounts/s/token", r#"{"spec":{}}"#, "serviceaccounts \"s\""),
    ] {
        let why = "is forbidden: unable to create new content in namespace n because it is being terminated";
        let terminating = post(&format!("{namespaces}/n/{path}"));
        world.refuse(&terminating, body, 403, &format!("{object} {why}")).await;
        let causes = world.send(&terminating, body).await.unwrap_err().details.unwrap_or_default().causes;
        assert_eq!(causes.first().map(|cause| cause.reason.as_str()), Some("NamespaceTerminating"), "{path}");
        let absent = post(&format!("{namespaces}/absent/{path}"));
        world.refuse(&absent, body, 404, "namespaces \"absent\" not found").await;
    }
}

const SIZED: &str = r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"nginx:1","resources":{"requests":{"cpu":"1"}}}]}}"#;

/// Returns the managed fields of the pod that were written through a subresource.
async fn owned_through(world: &World, subresource: &str) -> Value {
    let answered = world.send(&patch(PODS, "p", MERGE), "{}").await.unwrap();
    let WriteBody::Object(object) = answered.body else { panic!("no object") };
    let pod: Value = serde_json::from_slice(object.json_slice()).unwrap();
    let entries = pod["metadata"]["managedFields"].as_array().unwrap();
    let found = entries.iter().find(|entry| entry["subresource"] == subresource);
    found.unwrap_or_else(|| panic!("nothing is owned through {subresource}: {entries:?}"))["fieldsV1"].clone()
}

#[tokio::test]
async fn resize_changes_only_the_resources_of_containers() {
    let world = World::new().await;
    world.send(&post(PODS), SIZED).await.unwrap();
    let sized = r#"{"metadata":{"labels":{"a":"b"}},"spec":{"nodeName":"x","containers":[{"name":"c","image":"other","resources":{"requests":{"cpu":"2000m"}}}]}}"#;
    world.send(&patch(PODS, "p/resize", MERGE), sized).await.unwrap();
    let stored = world.stored("/pods/").await.concat();
    assert!(stored.contains(r#""resources":{"requests":{"cpu":"2"}}"#), "{stored}");
    assert!(stored.contains(r#""generation":2"#), "{stored}");
    assert!(stored.contains("nginx:1") && !stored.contains("nodeName") && !stored.contains(r#""a":"b""#), "{stored}");
    let owned = owned_through(&world, "resize").await;
    let amount = json!({"f:resources": {"f:requests": {"f:cpu": {}}}});
    assert_eq!(owned, json!({"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": amount}}}));
    for (resources, why) in [
        (
            r#"{"requests":{"cpu":null}}"#,
            "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed",
        ),
        (
            r#"{"requests":{"cpu":"3"},"limits":{"cpu":"2"}}"#,
            "spec.containers[0].resources.requests: Invalid value: \"3\": must be less than or equal to cpu limit of 2",
        ),
    ] {
        let body = format!(r#"{{"spec":{{"containers":[{{"name":"c","resources":{resources}}}]}}}}"#);
        let status = world.send(&patch(PODS, "p/resize", STRATEGIC), &body).await.unwrap_err();
        assert!(status.code == 422 && status.message.contains(why), "{}", status.message);
    }
    let two = r#"{"spec":{"containers":[{"name":"c","image":"i"},{"name":"d","image":"i"}]}}"#;
    let status = world.send(&patch(PODS, "p/resize", MERGE), two).await.unwrap_err();
    assert!(status.message.contains("containers may not be added or removed on resize"), "{}", status.message);
}

#[tokio::test]
async fn apply_to_a_pod_subresource_owns_only_the_applied_fields() {
    let world = World::new().await;
    world.send(&post(PODS), SIZED).await.unwrap();
    let apply = |subresource: &str| {
        format!("PATCH {PODS}/p/{subresource}?fieldManager=m&force=true application/apply-patch+yaml")
    };
    let body = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","labels":{"a":"b"}},"spec":{"nodeName":"x",
        "containers":[{"name":"c","image":"nginx:1","resources":{"requests":{"cpu":"2"}}}],
        "ephemeralContainers":[{"name":"e","image":"i"}]}}"#;
    world.send(&apply("resize"), body).await.unwrap();
    world.send(&apply("ephemeralcontainers"), body).await.unwrap();
    let stored = world.stored("/pods/").await.concat();
    for (subresource, mine, others) in [
        ("resize", "f:resources", ["f:labels", "f:nodeName", "f:image", "f:ephemeralContainers"]),
        ("ephemeralcontainers", "f:ephemeralContainers", ["f:labels", "f:nodeName", "f:resources", "f:containers"]),
    ] {
        let owned = owned_through(&world, subresource).await.to_string();
        assert!(owned.contains(mine), "{subresource} owns {owned}");
        assert!(others.iter().all(|name| !owned.contains(name)), "{subresource} owns {owned}");
    }
    assert!(!stored.contains(r#""a":"b""#) && !stored.contains(r#""nodeName""#), "{stored}");
}

const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

async fn budget(world: &World, name: &str) {
    let body = format!(
        r#"{{"metadata":{{"name":"{name}"}},"spec":{{"minAvailable":1,"selector":{{"matchLabels":{{"a":"b"}}}}}}}}"#
    );
    world.send(&post(BUDGETS), &body).await.unwrap();
}

#[tokio::test]
async fn eviction_of_a_running_pod_respects_its_disruption_budget() {
    let world = World::new().await;
    for name in ["p", "q"] {
        let pod = format!(
            r#"{{"metadata":{{"name":"{name}","labels":{{"a":"b"}}}},"spec":{{"containers":[{{"name":"c","image":"i"}}]}}}}"#
        );
        world.send(&post(PODS), &pod).await.unwrap();
        let running = r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}"#;
        world.send(&patch(PODS, &format!("{name}/status"), MERGE), running).await.unwrap();
    }
    budget(&world, "one").await;
    let evict = |name: &str| (format!("POST {PODS}/{name}/eviction"), format!(r#"{{"metadata":{{"name":"{name}"}}}}"#));
    let (line, body) = evict("p");
    let refusal = |cause: &str, retry: &str| {
        format!(
            r#"429 {{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"Cannot evict pod as it would violate the pod's disruption budget.","reason":"TooManyRequests","details":{{"causes":[{{"reason":"DisruptionBudget","message":"{cause}"}}]{retry}}},"code":429}}"#
        )
    };
    let pending =
        refusal("The disruption budget one is still being processed by the server.", r#","retryAfterSeconds":10"#);
    world.check(&line, &body, &pending).await;
    let status = r#"{"status":{"observedGeneration":1,"disruptionsAllowed":1,"currentHealthy":2,"desiredHealthy":1,"expectedPods":2}}"#;
    world.send(&patch(BUDGETS, "one/status", MERGE), status).await.unwrap();
    world.check(&line, &body, SUCCESS).await;
    let stored = world.stored("/poddisruptionbudgets/").await.concat();
    assert!(
        stored.contains(r#""disruptionsAllowed":0"#) && stored.contains(r#""disruptedPods":{"p":"NOW"}"#),
        "{stored}"
    );
    let (line, body) = evict("q");
    let why = refusal("The disruption budget one does not allow evicting pods currently", "");
    world.check(&line, &body, &why).await;
    budget(&world, "two").await;
    world
        .refuse(
            &line,
            &body,
            500,
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        )
        .await;
}

#[tokio::test]
async fn pod_spec_is_immutable_except_for_ephemeral_containers() {
    let world = World::new().await;
    world.send(&post(PODS), POD).await.unwrap();
    let status = world.send(&patch(PODS, "p", MERGE), r#"{"spec":{"nodeName":"x"}}"#).await.unwrap_err();
    assert_eq!(status.code, 422);
    assert!(status.message.starts_with("Pod \"p\" is invalid: spec: Forbidden: pod updates may not change fields"));
    let ephemeral = r#"{"spec":{"nodeName":"x","ephemeralContainers":[{"name":"d","image":"busybox"}]}}"#;
    let added = r#","ephemeralContainers":[{"name":"d","image":"busybox","resources":{},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"Always"}]"#;
    world
        .check(
            &patch(PODS, "p/ephemeralcontainers", STRATEGIC),
            ephemeral,
            &format!("200 {}", pod(4, 2, "", added, PENDING)),
        )
        .await;
}

/// Sends a request and returns the object in the response.
async fn written(world: &World, line: &str, body: &str) -> Value {
    let answer = world.answer(line, body).await;
    let (code, json) = answer.split_at(3);
    assert!(code.starts_with('2'), "{line} {body}: {answer}");
    serde_json::from_str(json.split(" warning: ").next().unwrap()).unwrap()
}

#[tokio::test]
async fn every_write_of_the_status_synchronizes_pod_ip_and_pod_ips() {
    let world = World::new().await;
    world.send(&post(PODS), POD).await.unwrap();
    let apply = format!("PATCH {PODS}/p/status?fieldManager=test&force=true application/apply-patch+yaml");
    let whole = |status: &str| {
        format!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"p"}},"status":{{"qosClass":"BestEffort",{status}}}}}"#
        )
    };
    for (line, body, expected) in [
        (patch(PODS, "p/status", MERGE), r#"{"status":{"podIP":"10.0.0.1"}}"#.to_owned(), "10.0.0.1"),
        (patch(PODS, "p/status", MERGE), r#"{"status":{"podIP":"10.0.0.2"}}"#.to_owned(), "10.0.0.2"),
        (patch(PODS, "p/status", STRATEGIC), r#"{"status":{"podIP":"10.0.0.3"}}"#.to_owned(), "10.0.0.3"),
        (put(PODS, "p/status"), whole(r#""podIPs":[{"ip":"10.0.0.4"}]"#), "10.0.0.4"),
        (put(PODS, "p/status"), whole(r#""podIP":"10.0.0.5","podIPs":[{"ip":"10.0.0.4"}]"#), "10.0.0.5"),
        (apply, whole(r#""podIP":"10.0.0.6""#), "10.0.0.6"),
    ] {
        let pod = written(&world, &line, &body).await;
        let found = (&pod["status"]["podIP"], &pod["status"]["podIPs"]);
        assert_eq!(found, (&json!(expected), &json!([{ "ip": expected }])), "{line} {body}");
    }
}

#[tokio::test]
async fn fields_that_the_server_completes_in_a_new_pod_have_no_manager() {
    let world = World::new().await;
    let annotation = "container.apparmor.security.beta.kubernetes.io/c";
    let pod = json!({
        "metadata": {"name": "p", "labels": {"hash": "1"}, "annotations": {annotation: "unconfined"}},
        "spec": {
            "containers": [{"name": "c", "image": "nginx:1"}],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {}, "matchLabelKeys": ["hash"]}],
        },
    });
    let answer = world.answer(&post(PODS), &pod.to_string()).await;
    let warning = format!(
        " warning: metadata.annotations[{annotation}]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
    );
    assert!(answer.contains(&warning), "{answer}");
    let pod = written(&world, &patch(PODS, "p", MERGE), "{}").await;
    assert_eq!(
        pod["spec"]["topologySpreadConstraints"][0]["labelSelector"],
        json!({"matchExpressions": [{"key": "hash", "operator": "In", "values": ["1"]}]})
    );
    let profile = pod.pointer("/spec/containers/0/securityContext/appArmorProfile");
    assert_eq!(profile, Some(&json!({"type": "Unconfined"})));
    let owned = pod["metadata"]["managedFields"].to_string();
    assert!(!owned.contains("f:appArmorProfile") && !owned.contains("f:matchExpressions"), "{owned}");
}
