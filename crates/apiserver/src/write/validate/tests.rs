//! Each line of `refused.jsonl` is an object that a kube-apiserver v1.36 was given to create, and the
//! message with which it refused. `accepted.jsonl` are objects that it took.

use serde_json::Value;

use crate::auth::User;
use crate::registry::Registry;
use crate::write::kinds::Making;
use crate::write::prepare;

/// What is said to an object: the message of the refusal, or nothing.
fn judge(registry: &Registry, case: &Value) -> String {
    let path: Vec<&str> = case["resource"].as_str().unwrap().split('/').collect();
    let resource = registry.find(path[0], path[1], path[2]).unwrap();
    let Value::Object(mut object) = case["object"].clone() else { panic!("not an object: {case}") };
    object.insert("kind".to_owned(), resource.kind.clone().into());
    if resource.namespaced {
        object["metadata"]["namespace"] = "gcns".into();
    }
    prepare::complete(resource, &mut object).unwrap();
    let making = Making { uid: "u", now: "2024-01-01T00:00:00Z", user: User::admin() };
    match prepare::create(resource, &mut object, making) {
        Ok(()) => String::new(),
        Err(status) => status.message,
    }
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
