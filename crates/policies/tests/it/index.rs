//! Tests the selection of policies for a request.

use listwatch_admission::Operation;
use std::sync::Arc;

use listwatch_json::{Value, json};
use listwatch_policies::{Binding, PolicyIndex, ValidatingPolicy, is_exempt};
use listwatch_webhooks::{Matching, NamespaceLabels};

use crate::support::{DEPLOYMENTS, attributes, resource, web};

fn policy(name: &str, group: &str, resources: &[&str]) -> Arc<ValidatingPolicy> {
    let policy = json!({"metadata": {"name": name}, "spec": {"matchConstraints": {"resourceRules": [
        {"operations": ["*"], "apiGroups": [group], "apiVersions": ["*"], "resources": resources}]}}});
    Arc::new(ValidatingPolicy::parse(policy.as_object().unwrap()))
}

fn binding(name: &str, policy: &str) -> Arc<Binding> {
    let binding = json!({"metadata": {"name": name}, "spec": {"policyName": policy}});
    Arc::new(Binding::parse(binding.as_object().unwrap()))
}

#[test]
fn only_bound_policies_for_the_resource_are_candidates() {
    let policies = [
        policy("z", "apps", &["deployments"]),
        policy("a", "*", &["*/*", "deployments/scale"]),
        policy("pods", "", &["pods"]),
        policy("unbound", "apps", &["*"]),
    ];
    let bindings =
        [binding("2", "z"), binding("1", "z"), binding("3", "a"), binding("4", "pods"), binding("5", "none")];
    let index = PolicyIndex::new(policies, bindings);
    let found: Vec<(&str, Vec<&str>)> = index
        .candidates(Operation::Create, &DEPLOYMENTS, &[])
        .map(|bound| {
            let bindings = bound.bindings.iter().map(|binding| binding.name.as_str());
            ((*bound.policy).as_ref().name.as_str(), bindings.collect())
        })
        .collect();
    assert_eq!(found, [("a", vec!["3"]), ("z", vec!["1", "2"])]);
    assert_eq!(index.policies().len(), 3);
    let services = resource("", "v1", "services", "Service");
    assert_eq!(index.candidates(Operation::Create, &services, &[]).count(), 1);
    assert_eq!(index.candidates(Operation::Create, &services, &[DEPLOYMENTS]).count(), 2, "equivalents count");
    assert!(PolicyIndex::<ValidatingPolicy>::default().is_empty());
}

#[test]
fn match_resources_select_by_rules_names_and_selectors() {
    let object = web();
    let matches = |resources: Value| {
        let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "matchResources": resources}});
        let binding = Binding::parse(binding.as_object().unwrap());
        let labels = json!({"env": "test"});
        let namespace = NamespaceLabels::Read(labels.as_object().unwrap());
        match binding.criteria.matching(&attributes(object.as_object()), &[], namespace).unwrap() {
            Matching::Call(_) => true,
            Matching::Skip => false,
            Matching::NeedsNamespace => panic!("the labels are known"),
        }
    };
    let rule = |fields: Value| {
        let mut rule = json!({"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"],
            "resources": ["deployments"]});
        rule.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        rule
    };
    for (resources, expected) in [
        (json!({}), true),
        (json!({"resourceRules": [rule(json!({}))]}), true),
        (json!({"resourceRules": [rule(json!({"operations": ["UPDATE"]}))]}), false),
        (json!({"resourceRules": [rule(json!({"resourceNames": ["web", "x"]}))]}), true),
        (json!({"resourceRules": [rule(json!({"resourceNames": ["x"]}))]}), false),
        (json!({"excludeResourceRules": [rule(json!({}))]}), false),
        (
            json!({"resourceRules": [rule(json!({}))], "excludeResourceRules": [rule(json!({"resourceNames": ["x"]}))]}),
            true,
        ),
        (
            json!({"resourceRules": [rule(json!({}))], "excludeResourceRules": [rule(json!({"resourceNames": ["web"]}))]}),
            false,
        ),
        (json!({"namespaceSelector": {"matchLabels": {"env": "test"}}}), true),
        (json!({"namespaceSelector": {"matchLabels": {"env": "prod"}}}), false),
        (json!({"objectSelector": {"matchLabels": {"app": "web"}}}), true),
        (json!({"objectSelector": {"matchLabels": {"app": "other"}}}), false),
    ] {
        assert_eq!(matches(resources.clone()), expected, "{resources}");
    }
}

#[test]
fn policies_bindings_and_reviews_are_exempt_from_policies() {
    for (group, resource, expected) in [
        ("admissionregistration.k8s.io", "validatingadmissionpolicies", true),
        ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings", true),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations", false),
        ("authorization.k8s.io", "subjectaccessreviews", true),
        ("example.com", "validatingadmissionpolicies", false),
        ("", "pods", false),
    ] {
        assert_eq!(is_exempt(group, resource), expected, "{group}/{resource}");
    }
}
