//! Tests the objects that every cluster has, and their maintenance.

use std::time::Instant;

use listwatch_flow_control::{BootstrapKind, BootstrapObject, FlowController, FlowSchema, PriorityLevel, is_obsolete};
use listwatch_json::{Map, Value, json};

use crate::objects::{digest, user};

fn object(kind: BootstrapKind, name: &str) -> BootstrapObject {
    BootstrapObject::all().into_iter().find(|object| object.kind() == kind && object.name() == name).unwrap()
}

fn map(value: Value) -> Map {
    let Value::Object(map) = value else { panic!("no object") };
    map
}

#[test]
fn default_objects_classify_the_requests_of_a_cluster_as_upstream() {
    let (mut levels, mut schemas) = (Vec::new(), Vec::new());
    for object in BootstrapObject::all() {
        let json = object.manifest().to_string();
        match object.kind() {
            BootstrapKind::PriorityLevel => levels.push(PriorityLevel::parse(json.as_bytes()).unwrap()),
            BootstrapKind::FlowSchema => schemas.push(FlowSchema::parse(json.as_bytes()).unwrap()),
        }
    }
    let (mut controller, _) = FlowController::<()>::new(Instant::now(), 600, 7);
    let configured = controller.configure(Instant::now(), levels, schemas);
    assert!(configured.conditions.iter().all(|condition| condition.status == "False"), "a schema dangles");
    let check = |name: &str, group: &str, line: &str, schema: &str, level: &str| {
        let user = user(name, &[group, "system:authenticated"]);
        let request = digest(&user, line);
        let found = configured.classifier.classify(&request);
        assert_eq!((found.name(), found.level_name()), (schema, level), "{name} {group} {line}");
    };
    let lease = "update coordination.k8s.io/leases in kube-system";
    check("admin", "system:masters", "list /pods", "exempt", "exempt");
    check("bob", "", "get /healthz", "probes", "exempt");
    check("bob", "", "get /readyz/etcd", "probes", "exempt");
    check("bob", "", "post /healthz", "global-default", "global-default");
    check("system:kube-scheduler", "", lease, "system-leader-election", "leader-election");
    check("system:kube-scheduler", "", "list apps/deployments", "kube-scheduler", "workload-high");
    check("system:kube-controller-manager", "", lease, "system-leader-election", "leader-election");
    check("system:kube-controller-manager", "", "watch apps/deployments", "kube-controller-manager", "workload-high");
    check("system:node:a", "system:nodes", lease, "system-node-high", "node-high");
    check("system:node:a", "system:nodes", "patch core/pods in a", "system-nodes", "system");
    let (theirs, ours) = ("system:serviceaccount:a:x", "system:serviceaccount:kube-system:x");
    check(theirs, "system:serviceaccounts", lease, "service-accounts", "workload-low");
    check(ours, "system:serviceaccounts", lease, "system-leader-election", "leader-election");
    check(ours, "system:serviceaccounts", "list apps/deployments", "kube-system-service-accounts", "workload-high");
    check("bob", "", "list apps/deployments", "global-default", "global-default");
}

#[test]
fn unchanged_bootstrap_object_is_not_updated() {
    for object in BootstrapObject::all() {
        let mut stored = map(object.manifest());
        stored["metadata"]["generation"] = json!(3);
        assert!(!object.revise(&mut stored), "{}", object.name());
        // Other servers write the values of absent fields.
        if object.kind() == BootstrapKind::FlowSchema {
            stored["spec"]["rules"][0].as_object_mut().unwrap().entry("resourceRules").or_insert(json!(null));
            assert!(!object.revise(&mut stored), "{}", object.name());
        }
    }
}

#[test]
fn stored_bootstrap_object_is_reset_unless_a_user_maintains_it() {
    let check = |name: &str, annotation: Value, generation: u64, set_back: bool, after: &str| {
        let object = object(BootstrapKind::FlowSchema, name);
        let mut stored = map(object.manifest());
        stored["metadata"] = json!({"name": name, "generation": generation, "annotations": annotation});
        stored["spec"]["matchingPrecedence"] = json!(77);
        object.revise(&mut stored);
        let was_set_back = stored["spec"]["matchingPrecedence"] != json!(77);
        assert_eq!(was_set_back, set_back, "{name} {annotation} {generation}");
        assert_eq!(
            stored["metadata"]["annotations"]["apf.kubernetes.io/autoupdate-spec"], after,
            "{name} {annotation}"
        );
        assert!(!object.revise(&mut stored), "{name} {annotation}: a second revision changes nothing");
    };
    let with = |value: &str| json!({"apf.kubernetes.io/autoupdate-spec": value});
    check("service-accounts", with("true"), 5, true, "true");
    check("service-accounts", with("T"), 5, true, "T");
    check("service-accounts", with("false"), 1, false, "false");
    check("service-accounts", json!(null), 1, true, "true");
    check("service-accounts", json!({}), 2, false, "false");
    check("service-accounts", with("perhaps"), 2, false, "false");
    check("catch-all", with("false"), 9, true, "true");
    check("exempt", json!(null), 9, true, "true");
}

#[test]
fn update_of_the_exempt_level_keeps_its_stored_shares() {
    let object = object(BootstrapKind::PriorityLevel, "exempt");
    let mut stored = map(object.manifest());
    stored["spec"]["exempt"] = json!({"nominalConcurrencyShares": 50, "lendablePercent": 10});
    assert!(!object.revise(&mut stored));
    stored.insert("spec".to_owned(), json!({"type": "Exempt"}));
    assert!(object.revise(&mut stored));
    assert_eq!(stored["spec"]["exempt"]["nominalConcurrencyShares"], 0);
}

#[test]
fn unknown_bootstrap_object_is_obsolete_only_with_auto_update() {
    let check = |kind, name: &str, annotation: Value, expected: bool| {
        let stored = map(json!({"metadata": {"annotations": annotation}}));
        assert_eq!(is_obsolete(kind, name, &stored), expected, "{kind:?} {name} {stored:?}");
    };
    let with = |value: &str| json!({"apf.kubernetes.io/autoupdate-spec": value});
    check(BootstrapKind::FlowSchema, "old", with("true"), true);
    check(BootstrapKind::FlowSchema, "old", with("false"), false);
    check(BootstrapKind::FlowSchema, "old", with("perhaps"), false);
    check(BootstrapKind::FlowSchema, "old", json!(null), false);
    check(BootstrapKind::FlowSchema, "probes", with("true"), false);
    check(BootstrapKind::PriorityLevel, "probes", with("true"), true);
}
