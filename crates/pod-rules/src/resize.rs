//! Validates `/resize` of pods, which changes CPU and memory of running containers.
//!
//! Source: `ValidatePodResize` in `pkg/apis/core/validation` of Kubernetes v1.36.

use listwatch_json::{Map, Value, json};
use listwatch_meta::FieldError;

use crate::qos::quality_of_service;
use crate::update::{is_static, items, spec, text};
use listwatch_validation::{Errors, Object};

/// The resources that can be resized.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// Validates a resize. The two pods differ only in containers and in fields that a resize writes.
pub fn validate_resize(new: &Object, old: &Object, errors: &mut Errors) {
    let whole = |why: &str| FieldError::forbidden("", why);
    if is_static(old) {
        errors.push(whole("static pods cannot be resized"));
        return;
    }
    if spec(old).and_then(|spec| spec.get("os")?.get("name")).is_some_and(|os| os == "windows") {
        errors.push(whole("windows pods cannot be resized"));
        return;
    }
    let of_status = |name: &str| old.get("status").and_then(|status| status.get(name));
    let class = of_status("qosClass").and_then(Value::as_str);
    if class.unwrap_or_else(|| quality_of_service(old.get("spec"))) != quality_of_service(new.get("spec")) {
        let why = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid("spec", json!(class.unwrap_or_default()), why));
    }
    let running = items(old.get("status").and_then(Value::as_object), "containerStatuses")
        .iter()
        .find(|status| status.pointer("/state/running").is_some());
    if running.is_some_and(|status| status.get("resources").is_none()) {
        errors.push(FieldError::forbidden("spec", "Pod running on node without support for resize"));
    }
    validate_pod_level_resources(new, old, errors);
    if !same_order(new, old, errors) {
        return;
    }
    for list in ["initContainers", "containers"] {
        for (position, (after, before)) in pairs(new, old, list) {
            let at = format!("spec.{list}[{position}].resources");
            validate_kept(after.get("resources"), before.get("resources"), &at, "", errors);
        }
    }
    for (_, (after, before)) in pairs(new, old, "containers") {
        if changes_more_than_cpu_and_memory(after, before) {
            errors.push(FieldError::forbidden("spec", "only cpu and memory resources are mutable"));
        }
    }
    for (position, (after, before)) in pairs(new, old, "initContainers") {
        validate_init_container(after, before, position, errors);
    }
}

/// The containers of a list, each with its position and its old state.
fn pairs<'a>(
    new: &'a Object,
    old: &'a Object,
    list: &str,
) -> impl Iterator<Item = (usize, (&'a Value, &'a Value))> + use<'a> {
    items(spec(new), list).iter().zip(items(spec(old), list)).enumerate()
}

/// Validates the resources of the pod itself (`validatePodLevelResourcesResize`).
fn validate_pod_level_resources(new: &Object, old: &Object, errors: &mut Errors) {
    let of_pod = |pod| spec(pod).and_then(|spec| spec.get("resources"));
    let (after, before) = (of_pod(new), of_pod(old));
    if before.is_some() && after.is_none() {
        errors.push(FieldError::forbidden("spec.resources", "pod-level resources cannot be removed"));
        return;
    }
    validate_kept(after, before, "spec.resources", "pod-level ", errors);
    if without_resizable(after) != without_resizable(before) {
        errors.push(FieldError::forbidden("spec", "only cpu and memory resources are mutable at pod-level"));
    }
}

fn changes_more_than_cpu_and_memory(new: &Value, old: &Value) -> bool {
    new.get("resizePolicy") != old.get("resizePolicy")
        || without_resizable(new.get("resources")) != without_resizable(old.get("resources"))
}

/// Validates the resize of an init container. Containers that run once can be resized, because the feature
/// InPlacePodVerticalScalingInitContainers is on.
fn validate_init_container(new: &Value, old: &Value, position: usize, errors: &mut Errors) {
    let at = || format!("spec.initContainers[{position}]");
    if changes_more_than_cpu_and_memory(new, old) {
        let why = "only cpu and memory resources for init or sidecar containers are mutable";
        errors.push(FieldError::forbidden(at(), why));
    }
    let is_sidecar = text(new, "restartPolicy") == "Always";
    if !is_sidecar && new != old {
        let policies = items(new.as_object(), "resizePolicy").iter();
        for _ in policies.filter(|policy| text(policy, "restartPolicy") == "RestartContainer") {
            let why = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
            errors.push(FieldError::forbidden(at(), why));
        }
    }
}

/// Reports containers that are added, removed, renamed or reordered. Returns whether the order is unchanged.
fn same_order(new: &Object, old: &Object, errors: &mut Errors) -> bool {
    let found = errors.len();
    for list in ["containers", "initContainers"] {
        let (after, before) = (items(spec(new), list), items(spec(old), list));
        if after.len() != before.len() {
            let why = format!("{list} may not be added or removed on resize");
            errors.push(FieldError::forbidden(format!("spec.{list}"), why));
            continue;
        }
        for (position, (after, before)) in after.iter().zip(before).enumerate() {
            if after.get("name") != before.get("name") {
                let why = format!("{list} may not be renamed or reordered on resize");
                errors.push(FieldError::forbidden(format!("spec.{list}[{position}].name"), why));
            }
        }
    }
    errors.len() == found
}

/// Reports removed requests and limits. `level` is the word before `resource` in the error text.
fn validate_kept(new: Option<&Value>, old: Option<&Value>, at: &str, level: &str, errors: &mut Errors) {
    for kind in ["requests", "limits"] {
        let has = |name: &str| new.and_then(|new| new.get(kind)?.get(name)).is_some();
        let mut before = old.and_then(|old| old.get(kind)?.as_object()).into_iter().flat_map(Map::keys);
        if before.any(|name| !has(name)) {
            let why = format!("{level}resource {kind} cannot be removed");
            errors.push(FieldError::forbidden(format!("{at}.{kind}"), why));
        }
    }
}

/// Returns the resources without CPU and memory; `None` if there are no others.
fn without_resizable(resources: Option<&Value>) -> Option<Map> {
    let mut rest = resources?.as_object()?.clone();
    for kind in ["requests", "limits"] {
        let Some(Value::Object(amounts)) = rest.get_mut(kind) else { continue };
        for name in RESIZABLE {
            amounts.shift_remove(name);
        }
        if amounts.is_empty() {
            rest.shift_remove(kind);
        }
    }
    Some(rest).filter(|rest| !rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::transition_errors;

    fn container(name: &str, requests: Value) -> Value {
        json!({"name": name, "resources": {"requests": requests}})
    }

    fn check(new: Value, old: Value, expected: &[&str]) {
        let pod = |spec: Value| json!({"metadata": {}, "spec": spec});
        assert_eq!(transition_errors(validate_resize, pod(new), pod(old)), expected);
    }

    #[test]
    fn resize_rejects_changes_other_than_cpu_and_memory() {
        let one = |requests: Value| json!({"containers": [container("c", requests)]});
        check(one(json!({"cpu": "2"})), one(json!({"cpu": "1"})), &[]);
        check(one(json!({"cpu": "1", "memory": "1Gi"})), one(json!({"cpu": "1"})), &[]);
        check(
            one(json!({"memory": "1Gi"})),
            one(json!({"cpu": "1", "memory": "1Gi"})),
            &["spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed"],
        );
        check(
            one(json!({"cpu": "1", "ephemeral-storage": "1Gi"})),
            one(json!({"cpu": "1"})),
            &["spec: Forbidden: only cpu and memory resources are mutable"],
        );
        check(
            one(json!({"cpu": "1"})),
            json!({"containers": [{"name": "c"}]}),
            &["spec: Invalid value: \"\": Pod QOS Class may not change as a result of resizing"],
        );
        let policy = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}},
            "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}]});
        check(policy, one(json!({"cpu": "1"})), &["spec: Forbidden: only cpu and memory resources are mutable"]);
        let whole = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}, "containers": [{"name": "c"}]});
        check(whole("2"), whole("1"), &[]);
        check(
            json!({"resources": {"requests": {"cpu": "1", "hugepages-2Mi": "2Mi"}}, "containers": [{"name": "c"}]}),
            whole("1"),
            &["spec: Forbidden: only cpu and memory resources are mutable at pod-level"],
        );
    }

    #[test]
    fn resize_rejects_added_renamed_or_reordered_containers() {
        let cpu = || json!({"cpu": "1"});
        let both =
            |first: &str, second: &str| json!({"containers": [container(first, cpu()), container(second, cpu())]});
        check(
            both("b", "a"),
            both("a", "b"),
            &[
                "spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize",
                "spec.containers[1].name: Forbidden: containers may not be renamed or reordered on resize",
            ],
        );
        check(
            json!({"containers": [container("a", cpu())]}),
            both("a", "b"),
            &["spec.containers: Forbidden: containers may not be added or removed on resize"],
        );
    }

    #[test]
    fn resize_changes_cpu_and_memory_of_init_containers() {
        let with = |policy: &str, restart: Value, requests: Value| {
            let mut container = container("i", requests);
            for (name, value) in [("restartPolicy", json!(policy)), ("resizePolicy", restart)] {
                if value != json!("") && !value.is_null() {
                    container[name] = value;
                }
            }
            json!({"containers": [super::tests::container("c", json!({"cpu": "1"}))], "initContainers": [container]})
        };
        let cpu = |amount: &str| json!({ "cpu": amount });
        let restarts = || json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
        let stays = || json!([{"resourceName": "cpu", "restartPolicy": "NotRequired"}]);
        let at = "spec.initContainers[0]";
        let only = format!("{at}: Forbidden: only cpu and memory resources for init or sidecar containers are mutable");
        for policy in ["", "Always"] {
            check(with(policy, Value::Null, cpu("2")), with(policy, Value::Null, cpu("1")), &[]);
            check(with(policy, stays(), cpu("2")), with(policy, stays(), cpu("1")), &[]);
            let more = json!({"cpu": "1", "ephemeral-storage": "1Gi"});
            check(with(policy, Value::Null, more), with(policy, Value::Null, cpu("1")), &[&only]);
            let removed = format!("{at}.resources.requests: Forbidden: resource requests cannot be removed");
            let both = json!({"cpu": "1", "memory": "1Gi"});
            check(with(policy, Value::Null, cpu("1")), with(policy, Value::Null, both), &[&removed]);
            check(with(policy, stays(), cpu("1")), with(policy, Value::Null, cpu("1")), &[&only]);
        }
        let restart = format!(
            "{at}: Forbidden: non-sidecar init containers with a resize policy of RestartContainer cannot be resized"
        );
        check(with("", restarts(), cpu("2")), with("", restarts(), cpu("1")), &[&restart]);
        check(with("", restarts(), cpu("1")), with("", restarts(), cpu("1")), &[]);
        check(with("Always", restarts(), cpu("2")), with("Always", restarts(), cpu("1")), &[]);
    }

    #[test]
    fn resize_keeps_pod_level_resources() {
        let pod = |resources: Value| json!({"resources": resources, "containers": [{"name": "c"}]});
        check(
            pod(json!({"requests": {"cpu": "1"}})),
            pod(json!({"requests": {"cpu": "1", "memory": "1Gi"}})),
            &["spec.resources.requests: Forbidden: pod-level resource requests cannot be removed"],
        );
        check(
            json!({"containers": [container("c", json!({"cpu": "1"}))]}),
            json!({"resources": {"requests": {"cpu": "1"}}, "containers": [container("c", json!({"cpu": "1"}))]}),
            &["spec.resources: Forbidden: pod-level resources cannot be removed"],
        );
    }

    #[test]
    fn resize_rejects_static_and_windows_pods_and_old_nodes() {
        let pod = |extra: Value| {
            let mut pod = json!({"metadata": {}, "spec": {"containers": [container("c", json!({"cpu": "1"}))]}});
            for (name, value) in extra.as_object().unwrap() {
                for (member, value) in value.as_object().unwrap() {
                    pod[name][member] = value.clone();
                }
            }
            pod
        };
        for (extra, why) in [
            (
                json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}),
                ": Forbidden: static pods cannot be resized",
            ),
            (json!({"spec": {"os": {"name": "windows"}}}), ": Forbidden: windows pods cannot be resized"),
            (
                json!({"status": {"containerStatuses": [{"name": "c", "state": {"running": {}}}]}}),
                "spec: Forbidden: Pod running on node without support for resize",
            ),
        ] {
            let found = transition_errors(validate_resize, pod(extra.clone()), pod(extra));
            assert_eq!(found, [why]);
        }
    }
}
