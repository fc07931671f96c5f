//! Each line of `cases/*.jsonl` is an object that is created, or that replaces `old`, and the causes with
//! which a kube-apiserver v1.36 refuses it; one that it accepts has none. `refused.jsonl` has the whole
//! message instead, and `accepted.jsonl` objects that are accepted.

use listwatch_meta::Status;
use serde_json::{Map, Value, json};

use crate::auth::User;
use crate::registry::{Registry, Resource};
use crate::write::kinds::Making;
use crate::write::{Clock, prepare};

const CASES: [(&str, &str); 1] = [("extension", include_str!("cases/extension.jsonl"))];

/// An object of a case as it is when it was decoded.
fn decoded(resource: &Resource, object: &Value) -> Map<String, Value> {
    let Value::Object(mut object) = object.clone() else { panic!("not an object: {object}") };
    object.insert("kind".to_owned(), resource.kind.clone().into());
    if resource.namespaced {
        object["metadata"]["namespace"] = "gcns".into();
    }
    prepare::complete(resource, &mut object).unwrap();
    object
}

/// Creates the object of a case, or replaces its old one by it.
fn write(registry: &Registry, case: &Value) -> Result<(), Status> {
    let path: Vec<&str> = case["resource"].as_str().unwrap().split('/').collect();
    let resource = registry.find(path[0], path[1], path[2]).unwrap();
    let making = Making { uid: "u", now: "2024-01-01T00:00:00Z", user: User::admin() };
    let mut object = decoded(resource, &case["object"]);
    if case["old"].is_null() {
        return prepare::create(resource, &mut object, making);
    }
    let mut old = decoded(resource, &case["old"]);
    prepare::create(resource, &mut old, making).expect("the old object is valid");
    let subresource = case["subresource"].as_str().map(|name| resource.subresource(name).unwrap());
    for name in ["uid", "creationTimestamp"] {
        object["metadata"][name] = old["metadata"][name].clone();
    }
    prepare::update(resource, subresource, &mut object, &old, &Clock::default())
}

/// The message with which an object is refused, or nothing.
fn judge(registry: &Registry, case: &Value) -> String {
    write(registry, case).err().map(|status| status.message).unwrap_or_default()
}

#[test]
fn cases_have_the_causes_of_kube_apiserver() {
    let registry = Registry::builtin();
    let mut wrong = Vec::new();
    for (table, lines) in CASES {
        for line in lines.lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            let refusal = write(&registry, &case).err();
            let causes = refusal.and_then(|status| status.details).map(|details| details.causes).unwrap_or_default();
            let found: Vec<Value> =
                causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message).into()).collect();
            if case["causes"] != Value::Array(found.clone()) {
                wrong.push(format!("{table}: {line}\n   found {}", Value::Array(found)));
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases have other causes:\n{}", wrong.len(), wrong.join("\n"));
}

/// The value in the error is the spec in the API's words, where kube-apiserver shows its internal form.
#[test]
fn mandatory_flow_control_objects_keep_their_specs() {
    let registry = Registry::builtin();
    let group = "flowcontrol.apiserver.k8s.io/v1";
    let check = |plural: &str, name: &str, spec: Value, expected: &str| {
        let object = json!({"metadata": {"name": name}, "spec": spec});
        let said = judge(&registry, &json!({"resource": format!("{group}/{plural}"), "object": object}));
        assert!(said.ends_with(expected) && said.is_empty() == expected.is_empty(), "{plural} {name}: {said}");
    };
    let schema = |precedence: i64, method: Value, groups: &[&str]| {
        let subjects: Vec<Value> =
            groups.iter().map(|name| json!({"kind": "Group", "group": {"name": name}})).collect();
        json!({"priorityLevelConfiguration": {"name": "catch-all"}, "matchingPrecedence": precedence,
            "distinguisherMethod": method, "rules": [{"subjects": subjects,
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true,
                    "namespaces": ["*"]}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]})
    };
    let by_user = json!({"type": "ByUser"});
    let everybody = ["system:unauthenticated", "system:authenticated"];
    check("flowschemas", "catch-all", schema(10_000, by_user.clone(), &everybody), "");
    let fixed = "spec of 'catch-all' must equal the fixed value";
    check("flowschemas", "catch-all", schema(9_999, by_user, &everybody), fixed);
    check("flowschemas", "catch-all", schema(10_000, Value::Null, &everybody), fixed);
    let limited = |shares: i64| {
        json!({"type": "Limited",
            "limited": {"nominalConcurrencyShares": shares, "limitResponse": {"type": "Reject"}}})
    };
    check("prioritylevelconfigurations", "catch-all", limited(5), "");
    check("prioritylevelconfigurations", "catch-all", limited(6), fixed);
    check("prioritylevelconfigurations", "exempt", json!({"type": "Exempt"}), "");
}

#[test]
fn objects_are_refused_in_kube_apiservers_words() {
    let registry = Registry::builtin();
    let mut wrong = Vec::new();
    for line in include_str!("refused.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let said = judge(&registry, &case);
        let expected = case["message"].as_str().unwrap();
        if said != expected {
            wrong.push(format!("{line}\n   says {said}"));
        }
    }
    assert!(wrong.is_empty(), "{} objects are not refused in the right words:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn good_objects_are_taken() {
    let registry = Registry::builtin();
    let mut wrong = Vec::new();
    for line in include_str!("accepted.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let said = judge(&registry, &case);
        if !said.is_empty() {
            wrong.push(format!("{line}\n   says {said}"));
        }
    }
    assert!(wrong.is_empty(), "{} good objects are refused:\n{}", wrong.len(), wrong.join("\n"));
}
