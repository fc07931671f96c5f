//! Validates updates of pods, their annotations and their ephemeral containers.
//!
//! Source: `ValidatePodUpdate`, `ValidatePodSpecificAnnotationUpdates` and `ValidatePodEphemeralContainersUpdate` in
//! `pkg/apis/core/validation` of Kubernetes v1.36. Some of upstream's messages end with Go's `cmp.Diff`; those of
//! this module omit it.

use std::collections::{HashMap, HashSet};

use listwatch_json::{JsonString, Map, Value, json};
use listwatch_meta::{FieldError, go};
use listwatch_schema::Path;
use listwatch_validation::pod_spec::{APPARMOR_OF_CONTAINER, MIRROR_ANNOTATION, validate_pod_annotations};
use listwatch_validation::{Errors, Object, child, metadata};

/// The error of an update that changes an immutable field.
const IMMUTABLE_FIELDS: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// How error texts name an annotation that does not change after the pod is created. `None` for other annotations.
fn immutable_annotation(name: &str) -> Option<&'static str> {
    match name {
        MIRROR_ANNOTATION => Some("mirror pod annotation"),
        _ if name.starts_with(APPARMOR_OF_CONTAINER) => Some("AppArmor annotations"),
        _ => None,
    }
}

/// Whether the pod is the mirror pod of a static pod.
pub(crate) fn is_static(pod: &Object) -> bool {
    metadata(pod).get("annotations").and_then(|all| all.get(MIRROR_ANNOTATION)).is_some()
}

/// The items of a list member; an empty slice if the object or the list is absent.
pub(crate) fn items<'a>(object: Option<&'a Object>, name: &str) -> &'a [Value] {
    object.and_then(|object| object.get(name)?.as_array()).map(Vec::as_slice).unwrap_or_default()
}

/// The spec of a pod.
pub(crate) fn spec(pod: &Object) -> Option<&Object> {
    pod.get("spec").and_then(Value::as_object)
}

/// The string of a member; `""` if it is absent.
pub(crate) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Validates an update of a pod itself (`ValidatePodUpdate`).
pub fn validate_update(new: &Object, old: &Object, errors: &mut Errors) {
    validate_annotations(new, old, errors);
    let (Some(after), Some(before)) = (spec(new), spec(old)) else { return };
    for list in ["containers", "initContainers"] {
        if items(Some(after), list).len() != items(Some(before), list).len() {
            let why = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(format!("spec.{list}"), why));
            return;
        }
    }
    let deadline = |spec: &Object| spec.get("activeDeadlineSeconds").and_then(Value::as_i64);
    let wrong = |given: Value, why: &str| FieldError::invalid("spec.activeDeadlineSeconds", given, why);
    match (deadline(after), deadline(before)) {
        (Some(after), Some(before)) if after > before => {
            errors.push(wrong(json!(after), "must be less than or equal to previous value"));
            return;
        }
        (None, Some(_)) => errors.push(wrong(Value::Null, "must not update from a positive integer to nil value")),
        _ => {}
    }
    // Only tolerationSeconds of an existing toleration may change.
    let without_seconds = |toleration: &Value| -> Option<Map> {
        let members = toleration.as_object()?.iter().filter(|(name, _)| *name != "tolerationSeconds");
        Some(members.map(|(name, value)| (name.clone(), value.clone())).collect())
    };
    let tolerations = |spec| items(Some(spec), "tolerations").iter().map(without_seconds);
    let kept: HashSet<_> = tolerations(after).collect();
    if tolerations(before).any(|toleration| !kept.contains(&toleration)) {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden("spec.tolerations", why));
    }
    let names = |spec| items(Some(spec), "schedulingGates").iter().map(|gate| text(gate, "name"));
    let gates: HashSet<&str> = names(before).collect();
    for gate in names(after).filter(|gate| !gates.contains(gate)) {
        let why = format!("only deletion is allowed, but found new scheduling gate '{gate}'");
        errors.push(FieldError::forbidden("spec.schedulingGates", why));
    }
    if !gates.is_empty() {
        validate_node_selection(after, before, errors);
    }
    if !equal_immutable_fields(after, before) {
        errors.push(FieldError::forbidden("spec", IMMUTABLE_FIELDS));
    }
}

/// Reports changes of the mirror pod annotation and of AppArmor annotations, then validates the annotations
/// (`ValidatePodSpecificAnnotationUpdates`).
pub(crate) fn validate_annotations(new: &Object, old: &Object, errors: &mut Errors) {
    let annotations = |pod| child(metadata(pod), "annotations");
    let (after, before) = (annotations(new), annotations(old));
    if after.is_empty() && before.is_empty() {
        return;
    }
    let metadata_at = Path::root("metadata");
    let at = metadata_at.child("annotations");
    for (name, value) in before {
        if let Some(what) = immutable_annotation(name)
            && after.get(name) != Some(value)
        {
            errors.forbidden(&at.key(name), &format!("may not remove or update {}", what));
        }
    }
    for name in after.keys() {
        if let Some(what) = immutable_annotation(name)
            && !before.contains_key(name)
        {
            errors.forbidden(&at.key(name), &format!("may not add {}", what));
        }
    }
    validate_pod_annotations(new, old, errors);
}

/// Reports changes of a gated pod's node selectors that would allow more nodes (`validateNodeSelectorMutation`,
/// `validateNodeAffinityMutation`).
fn validate_node_selection(new: &Object, old: &Object, errors: &mut Errors) {
    let selector = |spec: &Object| spec.get("nodeSelector").and_then(Value::as_object).cloned().unwrap_or_default();
    let (after, before) = (selector(new), selector(old));
    if before.iter().any(|(name, value)| after.get(name) != Some(value)) {
        let why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        errors.push(FieldError::invalid("spec.nodeSelector", Value::Object(after), why));
    }
    let terms = |spec: &Object| -> Vec<Value> {
        let affinity = spec.get("affinity").and_then(|affinity| affinity.get("nodeAffinity"));
        let terms =
            affinity.and_then(|it| it.pointer("/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms"));
        terms.and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let at = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let (after, before) = (terms(new), terms(old));
    if before.is_empty() {
        return;
    }
    if after.len() != before.len() {
        let why = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errors.push(FieldError::invalid(at, Value::Array(after), why));
        return;
    }
    for (position, (after, before)) in after.into_iter().zip(&before).enumerate() {
        // New requirements follow the existing ones.
        let grows = ["matchExpressions", "matchFields"].iter().all(|list| {
            let of = |term: &Value| term.get(*list).and_then(Value::as_array).cloned().unwrap_or_default();
            // A term without requirements selects nothing, so an addition would select more.
            of(&after).starts_with(&of(before))
        });
        let nothing = |term: &Value| term.as_object().is_none_or(|term| term.values().all(is_nothing));
        if !grows || (nothing(before) && !nothing(&after)) {
            let why = "only additions are allowed (no mutations or deletions)";
            errors.push(FieldError::invalid(format!("{at}[{position}]"), after, why));
        }
    }
}

fn is_gated(spec: &Object) -> bool {
    !items(Some(spec), "schedulingGates").is_empty()
}

fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

/// Whether two affinities are equal, apart from their node affinity.
fn equal_except_node_affinity(new: Option<&Value>, old: Option<&Value>) -> bool {
    let rest = |affinity: Option<&Value>| {
        let mut rest = affinity.and_then(Value::as_object).cloned().unwrap_or_default();
        rest.shift_remove("nodeAffinity");
        rest
    };
    rest(new) == rest(old)
}

/// Whether two specs are equal in all fields that are immutable in an update of a pod.
fn equal_immutable_fields(new: &Object, old: &Object) -> bool {
    let same = |name: &str| new.get(name) == old.get(name);
    new.keys().chain(old.keys()).map(JsonString::as_str).all(|name| match name {
        "activeDeadlineSeconds" | "tolerations" | "schedulingGates" => true,
        "containers" | "initContainers" => {
            let without_image = |spec: &Object| -> Vec<Value> {
                let mut containers = items(Some(spec), name).to_vec();
                for container in containers.iter_mut().filter_map(Value::as_object_mut) {
                    container.shift_remove("image");
                }
                containers
            };
            without_image(new) == without_image(old)
        }
        "terminationGracePeriodSeconds" => {
            same(name)
                || (old.get(name).and_then(Value::as_i64).is_some_and(|seconds| seconds < 0)
                    && new.get(name) == Some(&json!(1)))
        }
        // The node selection of a gated pod is validated separately.
        "nodeSelector" if is_gated(old) => true,
        "affinity" if is_gated(old) => equal_except_node_affinity(new.get(name), old.get(name)),
        _ => same(name),
    })
}

/// Reports ephemeral containers that are removed or changed (`ValidatePodEphemeralContainersUpdate`).
pub fn validate_ephemeral_containers(new: &Object, old: &Object, errors: &mut Errors) {
    if is_static(old) {
        errors.push(FieldError::forbidden("", "static pods do not support ephemeral containers"));
        return;
    }
    let after = items(spec(new), "ephemeralContainers").iter();
    let after: HashMap<&str, &Value> = after.map(|container| (text(container, "name"), container)).collect();
    for before in items(spec(old), "ephemeralContainers") {
        let name = text(before, "name");
        let why = match after.get(name) {
            None => "removed",
            Some(same) if *same != before => "changed",
            Some(_) => continue,
        };
        let why = format!("existing ephemeral containers {} may not be {why}\n", go::quote(name));
        errors.push(FieldError::forbidden("spec.ephemeralContainers", why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use listwatch_validation::pod_spec::validate_pod;

    use crate::status::validate_status;
    use crate::testing::{map, transition_errors};

    #[test]
    fn update_rejects_changes_of_immutable_pod_fields() {
        let check = |new: Value, old: Value, expected: &[&str]| {
            assert_eq!(transition_errors(validate_update, json!({"spec": new}), json!({"spec": old})), expected);
        };
        let refused: &str = &format!("spec: Forbidden: {IMMUTABLE_FIELDS}");
        let spec = || json!({"containers": [{"name": "a", "image": "x"}], "tolerations": [{"key": "k"}]});
        let with = |name: &str, value: Value| {
            let mut spec = spec();
            spec[name] = value;
            spec
        };
        check(spec(), spec(), &[]);
        check(with("containers", json!([{"name": "a", "image": "y"}])), spec(), &[]);
        check(with("containers", json!([{"name": "b", "image": "x"}])), spec(), &[refused]);
        let added = "spec.initContainers: Forbidden: pod updates may not add or remove containers";
        check(with("initContainers", json!([{"name": "b"}])), spec(), &[added]);
        check(with("nodeName", json!("n")), spec(), &[refused]);
        check(with("tolerations", json!([{"key": "k", "tolerationSeconds": 3}, {"key": "l"}])), spec(), &[]);
        let changed =
            "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds";
        check(with("tolerations", json!([])), spec(), &[changed]);
        check(with("activeDeadlineSeconds", json!(5)), spec(), &[]);
        let deadline = "spec.activeDeadlineSeconds: Invalid value:";
        let later = format!("{deadline} 5: must be less than or equal to previous value");
        check(with("activeDeadlineSeconds", json!(5)), with("activeDeadlineSeconds", json!(3)), &[&later]);
        let none = format!("{deadline} null: must not update from a positive integer to nil value");
        check(spec(), with("activeDeadlineSeconds", json!(3)), &[&none]);
        check(spec(), with("schedulingGates", json!([{"name": "g"}])), &[]);
        let gated = "spec.schedulingGates: Forbidden: only deletion is allowed, but found new scheduling gate 'g'";
        check(with("schedulingGates", json!([{"name": "g"}])), spec(), &[gated]);
    }

    #[test]
    fn update_of_gated_pod_can_only_narrow_node_selection() {
        let pod = |spec: Value| {
            let mut whole = json!({"containers": [{"name": "a"}], "schedulingGates": [{"name": "g"}]});
            whole.as_object_mut().unwrap().extend(map(spec));
            json!({ "spec": whole })
        };
        let check = |new: Value, old: Value, expected: &[&str]| {
            let found = transition_errors(validate_update, pod(new), pod(old));
            let found: Vec<&str> = found.iter().map(String::as_str).collect();
            assert_eq!(found, expected);
        };
        let select = |selector: Value| json!({ "nodeSelector": selector });
        check(select(json!({"a": "b", "c": "d"})), select(json!({"a": "b"})), &[]);
        let only = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        let refused = format!("spec.nodeSelector: Invalid value: {{\"a\":\"x\"}}: {only}");
        check(select(json!({"a": "x"})), select(json!({"a": "b"})), &[&refused]);
        let refused = format!("spec.nodeSelector: Invalid value: {{}}: {only}");
        check(json!({}), select(json!({"a": "b"})), &[&refused]);

        let affinity = |terms: Value| {
            let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
            json!({"affinity": {"nodeAffinity": required}})
        };
        let wants = |keys: &[&str]| -> Value {
            let all: Vec<Value> = keys.iter().map(|key| json!({"key": key, "operator": "Exists"})).collect();
            json!({ "matchExpressions": all })
        };
        check(affinity(json!([wants(&["a"])])), json!({}), &[]);
        check(affinity(json!([wants(&["a", "b"])])), affinity(json!([wants(&["a"])])), &[]);
        let (one, other) = (pod(affinity(json!([wants(&["a"])]))), pod(affinity(json!([wants(&["b"])]))));
        let found = transition_errors(validate_update, other, one);
        assert!(found[0].ends_with("nodeSelectorTerms[0]: Invalid value: {\"matchExpressions\":[{\"key\":\"b\",\"operator\":\"Exists\"}]}: only additions are allowed (no mutations or deletions)"), "{found:?}");
        let two = affinity(json!([wants(&["a"]), wants(&["b"])]));
        let found = transition_errors(validate_update, pod(two), pod(affinity(json!([wants(&["a"])]))));
        assert!(
            found[0].ends_with("no additions/deletions to non-empty NodeSelectorTerms list are allowed"),
            "{found:?}"
        );
        let refused = format!("spec: Forbidden: {IMMUTABLE_FIELDS}");
        check(json!({"affinity": {"podAffinity": {}}}), json!({}), &[&refused]);
        check(json!({"schedulingGates": [], "nodeSelector": {"a": "b"}}), json!({"schedulingGates": []}), &[&refused]);
    }

    #[test]
    fn update_and_status_update_reject_changed_mirror_and_app_armor_annotations() {
        let check = |new: Value, old: Value, expected: &[&str]| {
            let pod = |annotations: Value| json!({"metadata": {"annotations": annotations}, "spec": {"nodeName": "n", "containers": [{"name": "c"}]}});
            for validate in [validate_update, validate_status] {
                assert_eq!(transition_errors(validate, pod(new.clone()), pod(old.clone())), expected);
            }
        };
        let app_armor = format!("{APPARMOR_OF_CONTAINER}c");
        for (name, value, other, what) in [
            (MIRROR_ANNOTATION, "a", "b", "mirror pod annotation"),
            (&app_armor, "unconfined", "runtime/default", "AppArmor annotations"),
        ] {
            let with = |value: &str| Value::from_iter([(name, value), ("example.com/other", value)]);
            let removed = format!("metadata.annotations[{name}]: Forbidden: may not remove or update {what}");
            let added = format!("metadata.annotations[{name}]: Forbidden: may not add {what}");
            check(with(value), with(value), &[]);
            check(with(other), with(value), &[&removed]);
            check(json!({}), with(value), &[&removed]);
            check(with(value), json!({}), &[&added]);
        }
        check(json!({"a": "b"}), json!({"a": "c", "d": "e"}), &[]);
        check(
            json!({"controller.kubernetes.io/pod-deletion-cost": "x"}),
            json!({}),
            &[
                "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: \"x\": must be a 32bit integer",
            ],
        );
    }

    #[test]
    fn pod_and_status_with_a_stored_invalid_deletion_cost_can_be_updated() {
        const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
        let pod = |cost: Option<&str>| {
            let annotations: Value = cost.into_iter().map(|cost| (COST, cost)).collect();
            json!({"metadata": {"annotations": annotations}, "spec": {"nodeName": "n"}})
        };
        let refused = format!("metadata.annotations[{COST}]: Invalid value: \"x\": must be a 32bit integer");
        for (old, new, valid) in [
            (Some("x"), Some("x"), true),
            (Some("y"), Some("x"), true),
            (Some("x"), Some("1"), true),
            (Some("x"), None, true),
            (Some("1"), Some("x"), false),
            (None, Some("x"), false),
        ] {
            let (old, new) = (pod(old), pod(new));
            let expected: &[&str] = if valid { &[] } else { &[&refused] };
            for validate in [validate_update, validate_status] {
                let found = transition_errors(validate, new.clone(), old.clone());
                assert_eq!(found, expected, "{old} {new}");
            }
            let mut errors = Errors::default();
            validate_pod(&map(new.clone()), Some(&map(old.clone())), &mut errors);
            let found = errors.iter().map(FieldError::to_string).filter(|error| error.contains(COST));
            assert_eq!(found.collect::<Vec<_>>(), expected, "{old} {new}");
        }
    }

    #[test]
    fn pod_whose_tolerations_annotation_is_null_can_be_updated() {
        let pod = || json!({"metadata": {"annotations": {"scheduler.alpha.kubernetes.io/tolerations": "null"}}});
        assert_eq!(transition_errors(validate_status, pod(), pod()), [""; 0]);
    }

    #[test]
    fn removed_or_changed_ephemeral_container_is_rejected() {
        let check = |new: Value, old: Value, expected: &[&str]| {
            let pod = |containers: Value| json!({"metadata": {}, "spec": {"ephemeralContainers": containers}});
            assert_eq!(transition_errors(validate_ephemeral_containers, pod(new), pod(old)), expected);
        };
        let (a, b) = (json!({"name": "a", "image": "i"}), json!({"name": "b", "image": "i"}));
        check(json!([a, b]), json!([b]), &[]);
        check(
            json!([a]),
            json!([a, b]),
            &["spec.ephemeralContainers: Forbidden: existing ephemeral containers \"b\" may not be removed\n"],
        );
        check(
            json!([{"name": "a", "image": "j"}]),
            json!([a]),
            &["spec.ephemeralContainers: Forbidden: existing ephemeral containers \"a\" may not be changed\n"],
        );
        let mirror =
            json!({"metadata": {"annotations": {MIRROR_ANNOTATION: "x"}}, "spec": {"ephemeralContainers": [a]}});
        assert_eq!(
            transition_errors(validate_ephemeral_containers, mirror.clone(), mirror),
            [": Forbidden: static pods do not support ephemeral containers"]
        );
    }
}
