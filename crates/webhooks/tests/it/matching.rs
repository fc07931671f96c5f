//! Tests rules, selectors, equivalent resources and the index.

use std::sync::Arc;

use listwatch_admission::{Operation, ResourceName};
use listwatch_json::{Value, json};
use listwatch_webhooks::{Attributes, Matching, NamespaceLabels, Webhook, WebhookIndex, is_exempt};

use crate::support::{PODS, attributes, resource, webhook};

const NAMESPACES: ResourceName<'static> = resource("", "v1", "namespaces", "Namespace");
const NODES: ResourceName<'static> = resource("", "v1", "nodes", "Node");

fn rule(rule: Value) -> Webhook {
    let mut whole = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]});
    whole.as_object_mut().unwrap().extend(rule.as_object().unwrap().clone());
    webhook(json!({"rules": [whole]}))
}

fn is_called(webhook: &Webhook, attributes: &Attributes<'_>) -> bool {
    match webhook.criteria().matching(attributes, &[], NamespaceLabels::Unread).unwrap() {
        Matching::Skip => false,
        Matching::Call(_) => true,
        Matching::NeedsNamespace => panic!("there is no namespace selector"),
    }
}

#[test]
fn rule_matches_operation_group_version_and_resource() {
    let check = |fields: Value, operation: Operation, subresource: &str, expected: bool| {
        let attributes = Attributes { operation, subresource, ..attributes(None) };
        assert_eq!(is_called(&rule(fields.clone()), &attributes), expected, "{fields} {operation:?} {subresource}");
    };
    let create = Operation::Create;
    for (operations, expected) in
        [(json!(["CREATE"]), true), (json!(["UPDATE", "DELETE"]), false), (json!(["*"]), true)]
    {
        check(json!({"operations": operations}), create, "", expected);
    }
    check(json!({"operations": ["CONNECT"]}), Operation::Connect, "exec", true);
    for (groups, expected) in [(json!([""]), true), (json!(["apps"]), false), (json!(["apps", "*"]), true)] {
        check(json!({"apiGroups": groups}), create, "", expected);
    }
    for (versions, expected) in [(json!(["v1"]), true), (json!(["v1beta1"]), false)] {
        check(json!({"apiVersions": versions, "resources": ["pods"]}), create, "", expected);
    }
    for (resource, subresource, expected) in [
        ("pods", "", true),
        ("pods", "status", false),
        ("pods/status", "", false),
        ("pods/status", "status", true),
        ("pods/*", "", true),
        ("pods/*", "exec", true),
        ("*/scale", "scale", true),
        ("*/scale", "status", false),
        ("*", "", true),
        ("*", "status", false),
        ("*/*", "", true),
        ("*/*", "status", true),
        ("nodes", "", false),
    ] {
        check(json!({"resources": [resource]}), create, subresource, expected);
    }
    check(json!({"resources": []}), create, "", false);
}

#[test]
fn rule_scope_treats_namespaces_as_cluster_scoped() {
    let check = |scope: &str, resource: ResourceName<'_>, namespace: &str, expected: bool| {
        let attributes = Attributes { resource, namespace, ..attributes(None) };
        assert_eq!(is_called(&rule(json!({"scope": scope})), &attributes), expected, "{scope} {resource:?}");
    };
    for (scope, pods, nodes, namespaces) in [
        ("*", true, true, true),
        ("Cluster", false, true, true),
        ("Namespaced", true, false, false),
        ("Other", false, false, false),
    ] {
        check(scope, PODS, "ns", pods);
        check(scope, NODES, "", nodes);
        check(scope, NAMESPACES, "ns", namespaces);
    }
}

#[test]
fn object_selector_matches_the_new_or_the_old_object() {
    let labeled = |value: &str| json!({"metadata": {"labels": {"a": value}}});
    let check = |selector: Value, new: Option<Value>, old: Option<Value>, expected: bool| {
        let (new, old) = (new.as_ref().and_then(Value::as_object), old.as_ref().and_then(Value::as_object));
        let attributes = Attributes { old_object: old, ..attributes(new) };
        assert_eq!(
            is_called(&webhook(json!({"objectSelector": selector})), &attributes),
            expected,
            "{selector} {new:?}"
        );
    };
    let x = json!({"matchLabels": {"a": "x"}});
    check(x.clone(), Some(labeled("x")), None, true);
    check(x.clone(), Some(labeled("y")), None, false);
    check(x.clone(), Some(labeled("y")), Some(labeled("x")), true);
    check(x.clone(), None, Some(labeled("x")), true);
    check(x, None, None, false);
    let absent = json!({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]});
    check(absent.clone(), Some(json!({"metadata": {}})), None, true);
    // The options of a connection have no labels at all.
    check(absent, Some(json!({"kind": "PodExecOptions"})), None, false);
    check(json!({}), None, None, true);
}

#[test]
fn namespace_selector_matches_labels_of_the_objects_namespace() {
    let hook = webhook(json!({"namespaceSelector": {"matchLabels": {"a": "x"}}}));
    let x = json!({"a": "x"});
    let (x, none) = (NamespaceLabels::Read(x.as_object().unwrap()), json!({}));
    let none = NamespaceLabels::Read(none.as_object().unwrap());
    let called = |attributes: &Attributes<'_>, labels| match hook.criteria().matching(attributes, &[], labels).unwrap()
    {
        Matching::Skip => "skip",
        Matching::Call(_) => "call",
        Matching::NeedsNamespace => "needs namespace",
    };
    let pod = attributes(None);
    assert_eq!(called(&pod, NamespaceLabels::Unread), "needs namespace");
    assert_eq!(called(&pod, x), "call");
    assert_eq!(called(&pod, none), "skip");
    let node = Attributes { resource: NODES, namespace: "", ..pod };
    assert_eq!(called(&node, NamespaceLabels::Unread), "call", "cluster-scoped objects are never exempted");
    let sent = json!({"metadata": {"labels": {"a": "x"}}});
    let namespace = Attributes { resource: NAMESPACES, object: sent.as_object(), ..pod };
    assert_eq!(called(&namespace, NamespaceLabels::Unread), "call", "a new namespace has the labels that are sent");
    let status = Attributes { subresource: "status", operation: Operation::Update, ..namespace };
    assert_eq!(called(&status, NamespaceLabels::Unread), "needs namespace");
    let delete = Attributes { operation: Operation::Delete, object: None, ..namespace };
    assert_eq!(called(&delete, NamespaceLabels::Unread), "needs namespace");
}

#[test]
fn namespace_is_not_needed_if_no_rule_or_object_matches() {
    let selector = json!({"matchLabels": {"a": "x"}});
    for fields in [
        json!({"namespaceSelector": selector, "rules": []}),
        json!({"namespaceSelector": selector, "objectSelector": selector}),
    ] {
        let found = webhook(fields).criteria().matching(&attributes(None), &[], NamespaceLabels::Unread);
        assert_eq!(found, Ok(Matching::Skip), "a missing namespace fails only requests that everything else matches");
    }
}

#[test]
fn webhook_for_an_equivalent_resource_is_called_in_the_version_of_the_rule() {
    let name = |group, version| resource(group, version, "events", "Event");
    let equivalents = [name("", "v1"), name("events.k8s.io", "v1"), name("events.k8s.io", "v1beta1")];
    let rule = |group: &str, version: &str| json!({"operations": ["*"], "apiGroups": [group], "apiVersions": [version], "resources": ["events"]});
    let request = Attributes { resource: equivalents[0], ..attributes(None) };
    let check = |policy: &str, rules: Value, expected: Option<ResourceName<'_>>| {
        let hook = webhook(json!({"matchPolicy": policy, "rules": rules}));
        let found = match hook.criteria().matching(&request, &equivalents, NamespaceLabels::Unread).unwrap() {
            Matching::Call(invocation) => Some(invocation.resource),
            _ => None,
        };
        assert_eq!(found, expected, "{policy} {rules}");
    };
    let (other, beta) = (rule("events.k8s.io", "v1"), rule("events.k8s.io", "v1beta1"));
    check("Exact", json!([other]), None);
    check("Equivalent", json!([other]), Some(equivalents[1]));
    check("Equivalent", json!([beta, other]), Some(equivalents[2]));
    check("Equivalent", json!([other, rule("", "v1")]), Some(equivalents[0]));
    check("Equivalent", json!([rule("apps", "v1")]), None);
}

#[test]
fn index_returns_only_webhooks_for_the_resource_in_the_order_of_calls() {
    let configuration = |name: &str, group: &str, resources: &[&str]| {
        let hook = |hook: &str| {
            json!({"name": format!("{hook}.b.c"), "rules": [
                {"operations": ["*"], "apiGroups": [group], "apiVersions": ["*"], "resources": resources}]})
        };
        Webhook::parse(json!({"metadata": {"name": name}, "webhooks": [hook("z"), hook("y")]}).as_object().unwrap())
    };
    let parts = [
        configuration("c", "", &["pods", "pods/*"]),
        configuration("b", "*", &["*"]),
        configuration("a", "*", &["nodes", "pods/status"]),
        configuration("d", "apps", &["*"]),
        configuration("e", "", &["*/scale"]),
    ];
    let index = WebhookIndex::new(parts.into_iter().flatten().map(Arc::new));
    let ids = |resource: ResourceName<'_>, equivalents: &[ResourceName<'_>]| -> Vec<String> {
        index.candidates(Operation::Create, &resource, equivalents).map(|(_, hook)| hook.id.clone()).collect()
    };
    let all = |names: &[&str]| -> Vec<String> {
        names.iter().flat_map(|name| ["z", "y"].map(|hook| format!("{name}/{hook}.b.c/0"))).collect()
    };
    assert_eq!(ids(PODS, &[]), all(&["a", "b", "c", "e"]));
    let deployments = resource("apps", "v1", "deployments", "Deployment");
    assert_eq!(ids(deployments, &[]), all(&["b", "d"]));
    assert_eq!(ids(deployments, &[PODS]), all(&["a", "b", "c", "d", "e"]));
    let deleting = json!({"metadata": {"name": "a"}, "webhooks": [{"name": "a.b.c", "rules": [
        {"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["*"], "resources": ["pods"]}]}]});
    let deleting = WebhookIndex::new(Webhook::parse(deleting.as_object().unwrap()).into_iter().map(Arc::new));
    assert_eq!(deleting.candidates(Operation::Create, &PODS, &[]).count(), 0, "so do those for other operations");
    assert_eq!(deleting.candidates(Operation::Delete, &PODS, &[]).count(), 1);
    let others = (0..1000).flat_map(|n| configuration(&n.to_string(), &format!("g{n}.io"), &["*"]));
    let others = WebhookIndex::new(others.map(Arc::new));
    assert_eq!(others.candidates(Operation::Create, &PODS, &[]).count(), 0, "webhooks for other groups cost nothing");
}

#[test]
fn candidates_include_every_webhook_that_matches() {
    use proptest::prelude::*;
    let names = |names: &'static [&'static str]| prop::collection::vec(prop::sample::select(names), 1..3);
    let rule = (
        names(&["", "apps", "*"]),
        names(&["pods", "nodes", "*", "*/scale", "pods/*", "*/*"]),
        names(&["CREATE", "UPDATE", "DELETE", "CONNECT", "*"]),
    );
    let rules = prop::collection::vec(rule, 0..4);
    let operations = [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];
    let request = (
        prop::sample::select(&["", "apps", "x"][..]),
        prop::sample::select(&["pods", "nodes", "z"][..]),
        prop::sample::select(operations.to_vec()),
    );
    proptest!(|(rules in rules, (group, resource, operation) in request, scaled in any::<bool>())| {
        let hooks = rules.iter().map(|(groups, resources, operations)| {
            webhook(json!({"matchPolicy": "Exact", "rules": [
                {"operations": operations, "apiGroups": groups, "apiVersions": ["*"], "resources": resources}]}))
        });
        let index = WebhookIndex::new(hooks.map(Arc::new));
        let resource = crate::support::resource(group, "v1", resource, "K");
        let attributes = Attributes { operation, resource, subresource: if scaled { "scale" } else { "" }, ..attributes(None) };
        let matching = index.webhooks().iter().filter(|hook| is_called(hook, &attributes)).count();
        let found = index.candidates(operation, &resource, &[]).filter(|(_, hook)| is_called(hook, &attributes)).count();
        prop_assert_eq!(found, matching, "a write slipped through the index");
    });
}

#[test]
fn webhook_and_policy_configurations_are_exempt_from_webhooks() {
    for (kind, expected) in
        [("MutatingWebhookConfiguration", true), ("ValidatingAdmissionPolicyBinding", true), ("Other", false)]
    {
        assert_eq!(is_exempt("admissionregistration.k8s.io", kind), expected, "{kind}");
        assert!(!is_exempt("example.com", kind));
    }
    assert!(!is_exempt("authorization.k8s.io", "SubjectAccessReview"));
}
