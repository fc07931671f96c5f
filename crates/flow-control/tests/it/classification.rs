//! Tests the classification of requests by flow schemas.

use std::time::Instant;

use listwatch_flow_control::{Classifier, FlowController, FlowSchema, PriorityLevel};
use listwatch_json::json;

use crate::objects::{digest, everything, level, level_json, schema, user};

fn classifier(schemas: Vec<FlowSchema>) -> Classifier {
    let (mut controller, _) = FlowController::<()>::new(Instant::now(), 600, 7);
    controller.configure(Instant::now(), vec![level("a", 10, 0, None)], schemas).classifier
}

/// Whether the only rule of a schema matches a request.
#[track_caller]
fn check(rule: listwatch_json::Value, name: &str, groups: &[&str], line: &str, expected: bool) {
    let classifier = classifier(vec![schema("x", "a", 5, json!([rule]))]);
    let user = user(name, groups);
    let found = classifier.classify(&digest(&user, line)).name() == "x";
    assert_eq!(found, expected, "{name} {groups:?} {line}: {rule}");
}

#[test]
fn subjects_match_users_groups_and_service_accounts() {
    let check = |subject: listwatch_json::Value, name: &str, groups: &[&str], expected: bool| {
        let rule = json!({"subjects": [subject], "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"],
            "resources": ["*"], "namespaces": ["*"]}]});
        // `/pods` in this notation is a path.
        check(rule, name, groups, "get /pods", false);
        let rule = json!({"subjects": [subject], "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]});
        check(rule, name, groups, "get /x", expected);
    };
    let user = |name: &str| json!({"kind": "User", "user": {"name": name}});
    check(user("bob"), "bob", &[], true);
    check(user("bob"), "bobby", &["bob"], false);
    check(user("*"), "bob", &[], true);
    let group = |name: &str| json!({"kind": "Group", "group": {"name": name}});
    check(group("devs"), "bob", &["ops", "devs"], true);
    check(group("devs"), "devs", &["ops"], false);
    check(group("*"), "bob", &[], true);
    let account = |namespace: &str, name: &str| json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": namespace, "name": name}});
    check(account("a", "x"), "system:serviceaccount:a:x", &[], true);
    check(account("a", "x"), "system:serviceaccount:a:xy", &[], false);
    check(account("a", "x"), "system:serviceaccount:aa:x", &[], false);
    check(account("a", "*"), "system:serviceaccount:a:y", &[], true);
    check(account("a", "*"), "system:serviceaccount:ab:y", &[], false);
    check(account("a", "*"), "a", &[], false);
    check(json!({"kind": "User"}), "", &[], false);
    check(json!({"kind": "Robot", "user": {"name": "*"}}), "bob", &[], false);
}

#[test]
fn resource_rules_match_verb_group_resource_and_namespace() {
    let check = |rule: listwatch_json::Value, line: &str, expected: bool| {
        let subjects = json!([{"kind": "User", "user": {"name": "*"}}]);
        check(json!({"subjects": subjects, "resourceRules": [rule]}), "bob", &[], line, expected);
    };
    let rule = |verbs: &str, groups: &str, resources: &str, namespaces: &str, cluster: bool| {
        let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        json!({"verbs": list(verbs), "apiGroups": list(groups), "resources": list(resources),
            "namespaces": list(namespaces), "clusterScope": cluster})
    };
    let pods = || rule("get,list", "apps,batch", "jobs,jobs/status", "a,b", false);
    check(pods(), "get batch/jobs in a", true);
    check(pods(), "get batch/jobs/status in b", true);
    check(pods(), "get batch/jobs/scale in b", false);
    check(pods(), "get batch/job in b", false);
    check(pods(), "watch batch/jobs in a", false);
    check(pods(), "get core/jobs in a", false);
    check(pods(), "get batch/jobs in c", false);
    check(pods(), "get batch/jobs", false);
    check(pods(), "get /jobs", false);
    let all = |cluster| rule("*", "*", "*", "*", cluster);
    check(all(false), "delete apps/deployments/scale in c", true);
    check(all(false), "list apps/deployments", false);
    check(all(true), "list apps/deployments", true);
    // `*` next to other values is a value.
    check(rule("*,get", "*", "*", "*", true), "list apps/deployments", false);
}

#[test]
fn non_resource_rules_match_paths_and_their_subpaths() {
    let check = |url: &str, line: &str, expected: bool| {
        let rule = json!({"subjects": [{"kind": "Group", "group": {"name": "*"}}],
            "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": [url]}]});
        check(rule, "bob", &[], line, expected);
    };
    check("*", "get /", true);
    check("/healthz", "get /healthz", true);
    check("/healthz", "get /healthz/ping", true);
    check("/healthz", "get /healthzz", false);
    check("/healthz/*", "get /healthz/ping", true);
    check("/healthz/*", "get /healthz", false);
    check("/healthz*", "get /healthz/ping", true);
    check("/healthz*", "get /healthzz", false);
    check("/", "get /version", true);
    check("*", "post /", false);
}

#[test]
fn schema_with_smallest_precedence_then_smallest_name_wins() {
    let schemas = vec![
        schema("c", "a", 10, everything()),
        schema("b", "a", 20, everything()),
        schema("a", "a", 10, everything()),
        schema("z", "absent", 2, everything()),
    ];
    let classifier = classifier(schemas);
    let bob = user("bob", &["system:authenticated"]);
    let found = classifier.classify(&digest(&bob, "get core/pods in a"));
    let parts = (found.name(), found.uid(), found.level_name(), found.level_uid());
    assert_eq!(parts, ("a", "uid-a", "a", "uid-a"), "a schema whose level does not exist matches nothing");
    let admin = user("admin", &["system:masters"]);
    assert_eq!(classifier.classify(&digest(&admin, "get core/pods in a")).name(), "exempt");
}

#[test]
fn request_that_no_schema_matches_belongs_to_catch_all() {
    let classifier = classifier(Vec::new());
    let nobody = user("nobody", &[]);
    let found = classifier.classify(&digest(&nobody, "get /x"));
    assert_eq!((found.name(), found.level_name(), found.uid()), ("catch-all", "catch-all", ""));
}

#[test]
fn flows_are_distinguished_by_user_or_namespace() {
    let by = |method: listwatch_json::Value| {
        let object = json!({"metadata": {"name": "x"}, "spec": {"priorityLevelConfiguration": {"name": "a"},
            "matchingPrecedence": 5, "distinguisherMethod": method, "rules": everything()}});
        FlowSchema::parse(object.to_string().as_bytes())
    };
    let same = |method: listwatch_json::Value, other_user: bool, other_namespace: bool| {
        let classifier = classifier(vec![by(method).unwrap()]);
        let (bob, eve) = (user("bob", &[]), user("eve", &[]));
        let first = digest(&bob, "get core/pods in a");
        let second = digest(
            if other_user { &eve } else { &bob },
            if other_namespace { "get core/pods in b" } else { "get core/pods in a" },
        );
        let schema = classifier.classify(&first);
        schema.flow_hash(&first) == schema.flow_hash(&second)
    };
    assert!(same(json!({"type": "ByUser"}), false, true));
    assert!(!same(json!({"type": "ByUser"}), true, false));
    assert!(same(json!({"type": "ByNamespace"}), true, false));
    assert!(!same(json!({"type": "ByNamespace"}), false, true));
    assert!(same(json!(null), true, true));
    assert!(by(json!({"type": "ByMood"})).is_err());
}

#[test]
fn priority_level_with_contradictory_fields_is_rejected() {
    let check = |change: fn(&mut listwatch_json::Value), message: &str| {
        let mut object = level_json("a", 1, 0, None);
        change(&mut object);
        let error = PriorityLevel::parse(object.to_string().as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), message);
    };
    check(|level| level["spec"]["type"] = json!("Exempt"), "broken union structure at the top, for Limited");
    check(|level| level["spec"]["exempt"] = json!({}), "broken union structure at the top, for Exempt");
    check(|level| level["metadata"]["name"] = json!("exempt"), "non-alignment between name and type");
    let response =
        |level: &mut listwatch_json::Value| level["spec"]["limited"]["limitResponse"]["type"] = json!("Reject");
    check(response, "broken union structure for limit response");
    let hand = |level: &mut listwatch_json::Value| {
        level["spec"]["limited"]["limitResponse"]["queuing"]["handSize"] = json!(17);
    };
    check(hand, "no hand of 17 can be dealt from 16 queues");
}
