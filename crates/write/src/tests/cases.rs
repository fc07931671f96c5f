//! Validation cases, one JSON object per line. In `cases/*.jsonl`, each case creates `object` or replaces `old` by
//! `object`, and lists the causes of the rejection by kube-apiserver v1.36. Accepted objects have no causes.
//! `oldStatus` is written first. `refused.jsonl` contains complete error messages, and `accepted.jsonl` contains
//! accepted objects.

use std::sync::Arc;

use listwatch_json::{Map, Value, json};
use listwatch_meta::Status;
use listwatch_registry::{StorageMediaType, StoredForm};
use listwatch_storage::MemoryStorage;

use listwatch_kinds::{CreateContext, Kind, StoredText, UpdateContext, before_create, before_update};
use listwatch_meta::UserInfo;
use listwatch_registry::{Registry, Resource};
use listwatch_validation::{Errors, Object, metadata};

use super::World;
use super::hostile::in_time;
use crate::request::WriteBody;

const CASES: [(&str, &str); 11] = [
    ("csi", include_str!("cases/csi.jsonl")),
    ("devices", include_str!("cases/devices.jsonl")),
    ("endpoints", include_str!("cases/endpoints.jsonl")),
    ("extension", include_str!("cases/extension.jsonl")),
    ("networking", include_str!("cases/networking.jsonl")),
    ("nodes", include_str!("cases/nodes.jsonl")),
    ("pods", include_str!("cases/pods.jsonl")),
    ("quotas", include_str!("cases/quotas.jsonl")),
    ("services", include_str!("cases/services.jsonl")),
    ("volumes", include_str!("cases/volumes.jsonl")),
    ("workloads", include_str!("cases/workloads.jsonl")),
];

/// Decodes the object of a case.
fn decoded(resource: &Resource, object: &Value) -> Map {
    let Value::Object(mut object) = object.clone() else { panic!("not an object: {object}") };
    object.insert("kind", resource.kind.clone().into());
    if resource.namespaced {
        object["metadata"]["namespace"] = "gcns".into();
    }
    resource.strategy.apply_defaults(&mut object).unwrap();
    resource.strategy.to_storage_version(&mut object).unwrap();
    object
}

fn refused(resource: &Resource, object: &Object, errors: &Errors) -> Result<(), Status> {
    let name = metadata(object)["name"].as_str().unwrap_or_default();
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid(&resource.group, &resource.kind, name, errors)) }
}

/// Creates the object of a case, or replaces its old object.
fn write(registry: &Registry, case: &Value) -> Result<(), Status> {
    let path: Vec<&str> = case["resource"].as_str().unwrap().split('/').collect();
    let resource = registry.find(path[0], path[1], path[2]).unwrap();
    let making = CreateContext { uid: "u", now: "2024-01-01T00:00:00Z", user: UserInfo::admin() };
    let mut object = decoded(resource, &case["object"]);
    if case["old"].is_null() {
        let errors = before_create(&*resource.strategy, &mut object, making);
        return refused(resource, &object, &errors);
    }
    let mut old = decoded(resource, &case["old"]);
    let errors = before_create(&*resource.strategy, &mut old, making);
    refused(resource, &old, &errors).expect("the old object is valid");
    if let Some(status) = case.get("oldStatus") {
        old.insert("status", status.clone());
    }
    let subresource = case["subresource"].as_str().map(|name| resource.subresource(name).unwrap());
    for name in ["uid", "creationTimestamp"] {
        object["metadata"][name] = old["metadata"][name].clone();
    }
    let context = UpdateContext { subresource, now: time::OffsetDateTime::now_utc() };
    let errors = before_update(&*resource.strategy, &mut object, &old, context);
    refused(resource, &object, &errors)
}

/// Returns the error message for an object, or an empty string.
fn judge(registry: &Registry, case: &Value) -> String {
    write(registry, case).err().map(|status| status.message).unwrap_or_default()
}

#[test]
fn invalid_objects_are_rejected_with_the_causes_of_kube_apiserver() {
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

/// Compares the errors without the formatted spec: kube-apiserver formats the internal type, this server the API type.
#[test]
fn mandatory_flow_control_objects_with_another_spec_are_rejected() {
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

/// Tests limits with objects that are too long for a line of `cases`.
#[test]
fn object_at_a_limit_is_accepted_and_object_above_it_is_rejected() {
    let registry = Registry::builtin();
    let check = |resource: &str, object: Value, expected: &str| {
        let said = judge(&registry, &json!({"resource": resource, "object": object}));
        let shown: String = said.chars().take(300).collect();
        assert!(said.ends_with(expected) && said.is_empty() == expected.is_empty(), "{resource}: {shown}");
    };
    let many = |count: usize, make: &dyn Fn(usize) -> Value| (0..count).map(make).collect::<Value>();
    let slice = |endpoints: usize, ports: usize| {
        json!({"metadata": {"name": "x"}, "addressType": "IPv4",
            "endpoints": many(endpoints, &|_| json!({"addresses": ["10.0.0.1"]})),
            "ports": many(ports, &|at| json!({"name": format!("p{at}"), "port": 1}))})
    };
    let slices = "discovery.k8s.io/v1/endpointslices";
    check(slices, slice(1_000, 0), "");
    check(slices, slice(1_001, 0), "is invalid: endpoints: Too many: 1001: must have at most 1000 items");
    check(slices, slice(1, 20_001), "is invalid: ports: Too many: 20001: must have at most 20000 items");
    let devices = |count: usize, device: Value| {
        let device = |at: usize| {
            let mut device = device.clone();
            device["name"] = format!("d{at}").into();
            device
        };
        json!({"metadata": {"name": "x"}, "spec": {"driver": "d", "nodeName": "n",
            "pool": {"name": "p", "resourceSliceCount": 1}, "devices": many(count, &device)}})
    };
    let slices = "resource.k8s.io/v1/resourceslices";
    check(slices, devices(128, json!({})), "");
    check(slices, devices(129, json!({})), "is invalid: spec.devices: Too many: 129: must have at most 128 items");
    let tainted = json!({"taints": [{"key": "a", "effect": "NoSchedule"}]});
    check(slices, devices(64, tainted.clone()), "");
    check(slices, devices(65, tainted), "is invalid: spec.devices: Too many: 65: must have at most 64 items");
    let class = |parameters: Value| json!({"metadata": {"name": "x"}, "provisioner": "p", "parameters": parameters});
    let classes = "storage.k8s.io/v1/storageclasses";
    let parameters = |count: usize| (0..count).map(|at| (at.to_string(), "x".into())).collect::<Map>();
    check(classes, class(parameters(512).into()), "");
    check(classes, class(parameters(513).into()), "is invalid: parameters: Too long: may not be more than 512 bytes");
    let long = json!({"a": "x".repeat(256 * 1024)});
    check(classes, class(long), "is invalid: parameters: Too long: may not be more than 262144 bytes");
    let claim = |expression: &str| {
        json!({"metadata": {"name": "x"}, "spec": {"devices": {"requests": [{"name": "r", "exactly":
            {"deviceClassName": "c", "selectors": [{"cel": {"expression": expression}}]}}]}}})
    };
    let long = format!("true{}", " ".repeat(10 * 1024));
    let refused = "selectors[0].cel.expression: Too long: may not be more than 10240 bytes";
    check("resource.k8s.io/v1/resourceclaims", claim(&long), refused);
    check("resource.k8s.io/v1/resourceclaims", claim(&long[..10 * 1024]), "");
}

/// A rule with quadratic time would take minutes for these objects.
#[test]
fn objects_with_20_000_equal_items_are_rejected_in_time() {
    let registry = Registry::builtin();
    for (resource, member, item) in [
        ("storage.k8s.io/v1/storageclasses", "/allowedTopologies", json!({})),
        ("/v1/resourcequotas", "/spec/scopes", json!("BestEffort")),
        ("/v1/limitranges", "/spec/limits", json!({"type": "Pod"})),
        ("/v1/endpoints", "/subsets", json!({"addresses": [{"ip": "x"}]})),
        ("/v1/nodes", "/spec/taints", json!({"key": "a", "effect": "NoSchedule"})),
        ("/v1/nodes", "/status/declaredFeatures", json!("A")),
        ("/v1/services", "/spec/ports", json!({"port": 1, "name": "a"})),
        ("networking.k8s.io/v1/ingresses", "/spec/rules", json!({"host": "A_"})),
        ("storage.k8s.io/v1/csinodes", "/spec/drivers", json!({"name": "d", "nodeID": "n"})),
    ] {
        let mut object = json!({"metadata": {"name": "x"}, "provisioner": "p", "spec": {}, "status": {}});
        let hard: Map = (0..1_000).map(|at| (format!("hugepages-{at}"), "1".into())).collect();
        object["spec"]["hard"] = hard.into();
        let (parent, name) = member.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[name] = Value::from(vec![item; 20_000]);
        let case = json!({"resource": resource, "object": object});
        let said = in_time(&format!("{resource} {member}"), || judge(&registry, &case));
        assert!(!said.is_empty(), "{resource} {member} is accepted");
    }
}

#[test]
fn invalid_objects_are_rejected_with_the_message_of_kube_apiserver() {
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
fn objects_that_kube_apiserver_accepts_are_accepted() {
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

/// Whether a read of the JSON of an object would build its tree, because a text of complete objects is absent.
fn lacks_text(kind: &Kind, json: &str) -> bool {
    kind.stored_texts.iter().any(|text| match *text {
        StoredText::Always(text) => !json.contains(text),
        StoredText::With(with, text) => json.contains(with) && !json.contains(text),
        StoredText::Before(text, other) => {
            json.find(text).is_some_and(|first| json.find(other).is_some_and(|other| other < first))
        }
        StoredText::Rare(text) => json.contains(text),
    })
}

#[tokio::test]
async fn update_without_a_change_writes_no_revision_in_any_encoding() {
    let mut rewritten = Vec::new();
    let mut updated = 0;
    for line in include_str!("accepted.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let path: Vec<&str> = case["resource"].as_str().unwrap().split('/').collect();
        for media_type in [StorageMediaType::Json, StorageMediaType::Protobuf] {
            let form = Arc::new(StoredForm::new(None, media_type, "/registry"));
            let world = World::over(form.storage(MemoryStorage::new())).await;
            let registry = world.writer.backend().registry();
            let resource = registry.find(path[0], path[1], path[2]).unwrap();
            let api = if path[0].is_empty() { "/api".to_owned() } else { format!("/apis/{}", path[0]) };
            let namespace = if resource.namespaced { "/namespaces/default" } else { "" };
            let collection = format!("{api}/{}{namespace}/{}", path[1], path[2]);
            let Ok(created) = world.send(&format!("POST {collection}"), &case["object"].to_string()).await else {
                continue;
            };
            let WriteBody::Object(created) = created.body else { continue };
            let stored = world.writer.backend().storage().get(created.key()).await.unwrap().0.unwrap();
            assert!(!stored.stale, "{media_type:?} {line}: a read completes the stored object");
            let (json, body) = [&*stored.value, created.json_slice()].map(|json| str::from_utf8(json).unwrap()).into();
            assert!(!resource.builtin.is_some_and(|kind| lacks_text(kind, json)), "{media_type:?} {json}");
            let item = format!("PUT {collection}/{}", created.name());
            // The first update with the body of the client may own other fields than the create.
            for (body, owns_others) in [(body, false), (&case["object"].to_string(), true)] {
                for round in 0..3 {
                    let before = world.revision().await;
                    match world.send(&item, body).await {
                        Ok(_) => updated += 1,
                        Err(_) if owns_others => break,
                        Err(status) => panic!("{media_type:?} {item} {body}: {status}"),
                    }
                    if world.revision().await != before && round >= usize::from(owns_others) {
                        rewritten.push((media_type, path[2].to_owned(), round));
                    }
                }
            }
        }
    }
    assert!(updated > 900, "{updated} updates");
    assert!(rewritten.is_empty(), "updates without a change wrote {rewritten:?}");
}
