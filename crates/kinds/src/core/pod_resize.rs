//! Validates `/resize` of pods, which changes CPU and memory of running containers.
//!
//! Source: `ValidatePodResize` in `pkg/apis/core/validation` of Kubernetes v1.36.

use listwatch_json::{Map, Value, json};
use listwatch_meta::FieldError;

use super::pod_qos::quality_of_service;
use super::pod_update::{is_static, items, spec};
use listwatch_validation::{Errors, Object};

/// The resources that can be resized.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// Validates a resize. The two pods differ only in containers and in fields that a resize writes.
pub(crate) fn validate_resize(new: &Object, old: &Object, errors: &mut Errors) {
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
    if !same_order(new, old, errors) {
        return;
    }
    if let (Some(after), Some(before)) = (spec(new), spec(old)) {
        let of_pod = |spec: &Object| spec.get("resources").cloned().unwrap_or_else(|| json!({}));
        validate_kept(&of_pod(after), &of_pod(before), "spec.resources", errors);
        if without_resizable(&of_pod(after)) != without_resizable(&of_pod(before)) {
            errors.push(FieldError::forbidden("spec", "only cpu and memory resources are mutable at pod-level"));
        }
    }
    for list in ["initContainers", "containers"] {
        let pairs = items(spec(new), list).iter().zip(items(spec(old), list));
        for (position, (after, before)) in pairs.enumerate() {
            let resources = |container: &Value| container.get("resources").cloned().unwrap_or_else(|| json!({}));
            let (sized, former) = (resources(after), resources(before));
            let sidecar = before.get("restartPolicy").is_some_and(|policy| policy == "Always");
            let why = match list {
                "containers" => "only cpu and memory resources are mutable",
                _ if sidecar => "only cpu and memory resources for sidecar containers are mutable",
                _ => {
                    if after != before {
                        let why = "resources for non-sidecar init containers are immutable";
                        errors.push(FieldError::forbidden("spec", why));
                    }
                    continue;
                }
            };
            validate_kept(&sized, &former, &format!("spec.{list}[{position}].resources"), errors);
            if without_resizable(&sized) != without_resizable(&former)
                || after.get("resizePolicy") != before.get("resizePolicy")
            {
                errors.push(FieldError::forbidden("spec", why));
            }
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

/// Reports removed requests and limits.
fn validate_kept(new: &Value, old: &Value, at: &str, errors: &mut Errors) {
    for kind in ["requests", "limits"] {
        let has =
            |resources: &Value, name: &str| resources.get(kind).is_some_and(|amounts| amounts.get(name).is_some());
        let mut before = old.get(kind).and_then(Value::as_object).into_iter().flat_map(Map::keys);
        if before.any(|name| !has(new, name)) {
            errors.push(FieldError::forbidden(format!("{at}.{kind}"), format!("resource {kind} cannot be removed")));
        }
    }
}

/// Returns the resources without CPU and memory.
fn without_resizable(resources: &Value) -> Value {
    let mut rest = resources.clone();
    for kind in ["requests", "limits"] {
        let Some(amounts) = rest.get_mut(kind).and_then(Value::as_object_mut) else { continue };
        for name in RESIZABLE {
            amounts.shift_remove(name);
        }
        if amounts.is_empty()
            && let Some(resources) = rest.as_object_mut()
        {
            resources.shift_remove(kind);
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Subresource;
    use crate::core::pod::KIND;
    use crate::testing::transition_errors;

    fn container(name: &str, requests: Value) -> Value {
        json!({"name": name, "resources": {"requests": requests}})
    }

    fn check(new: Value, old: Value, expected: &[&str]) {
        let pod = |spec: Value| json!({"metadata": {}, "spec": spec});
        assert_eq!(transition_errors(&KIND, pod(new), pod(old), Some(&Subresource::Resize)), expected);
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
        let with = |policy: Value, cpu: &str| {
            json!({"containers": [container("c", json!({"cpu": "1"}))],
                "initContainers": [{"name": "i", "restartPolicy": policy, "resources": {"requests": {"cpu": cpu}}}]})
        };
        let fixed = "spec: Forbidden: resources for non-sidecar init containers are immutable";
        check(with(Value::Null, "2"), with(Value::Null, "1"), &[fixed]);
        check(with(json!("Always"), "2"), with(json!("Always"), "1"), &[]);
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
            let found = transition_errors(&KIND, pod(extra.clone()), pod(extra), Some(&Subresource::Resize));
            assert_eq!(found, [why]);
        }
    }
}
