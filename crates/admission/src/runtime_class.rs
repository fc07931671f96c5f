//! RuntimeClass: copies overhead and scheduling of a pod's RuntimeClass into the pod
//! (`plugin/pkg/admission/runtimeclass`).

use listwatch_json::Value;
use listwatch_meta::Status;
use listwatch_meta::go::quote;
use listwatch_validation::{Object, child, child_mut, given, items, text};

use super::amounts::amounts;
use super::plugin::{Mutator, Validator};
use super::{AdmissionRequest, tolerations};

const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
const UNDEFINED: &str = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";

/// The plugin that applies RuntimeClasses.
pub(super) struct RuntimeClass;

/// Reads the RuntimeClass of a pod; `None` if the pod does not specify one.
async fn class_of(request: &AdmissionRequest<'_>, pod: &Object) -> Result<Option<Object>, Status> {
    let name = text(child(pod, "spec"), "runtimeClassName");
    if name.is_empty() {
        return Ok(None);
    }
    let found = request.get_cached("node.k8s.io", "runtimeclasses", None, name).await?;
    let missing = || request.forbid(pod, format_args!("pod rejected: RuntimeClass {} not found", quote(name)));
    found.map(Some).ok_or_else(missing)
}

/// Returns the overhead that a class defines.
fn overhead_of(class: Option<&Object>) -> Option<&Object> {
    given(class?, "overhead")?.as_object().map(|overhead| child(overhead, "podFixed"))
}

fn set_overhead(class: &Object, pod: &mut Object) -> Result<(), String> {
    let Some(overhead) = overhead_of(Some(class)) else { return Ok(()) };
    let spec = child_mut(pod, "spec");
    if let Some(Value::Object(own)) = given(spec, "overhead")
        && amounts(own) != amounts(overhead)
    {
        return Err(MISMATCH.to_owned());
    }
    spec.insert("overhead", Value::Object(overhead.clone()));
    Ok(())
}

fn set_scheduling(class: &Object, pod: &mut Object) -> Result<(), String> {
    let Some(Value::Object(scheduling)) = given(class, "scheduling") else { return Ok(()) };
    let spec = child_mut(pod, "spec");
    let selector = child(scheduling, "nodeSelector");
    if !selector.is_empty() {
        let own = child_mut(spec, "nodeSelector");
        for (key, value) in selector {
            let wanted = value.as_str().unwrap_or_default();
            match own.get(key) {
                Some(present) if present != value => {
                    let present = present.as_str().unwrap_or_default();
                    return Err(format!(
                        "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; pod.spec.nodeSelector[{key}] = {present}"
                    ));
                }
                _ => {
                    own.insert(key.clone(), value.clone());
                }
            }
        }
    }
    let added = items(scheduling, "tolerations");
    if !added.is_empty() {
        let merged = tolerations::merge(items(spec, "tolerations"), added);
        spec.insert("tolerations", Value::Array(merged));
    }
    Ok(())
}

fn check_overhead(class: Option<&Object>, pod: &Object) -> Result<(), &'static str> {
    let own = given(child(pod, "spec"), "overhead").and_then(Value::as_object);
    match (overhead_of(class), own) {
        (Some(overhead), own) if own.map(amounts).unwrap_or_default() != amounts(overhead) => Err(MISMATCH),
        (None, Some(_)) => Err(UNDEFINED),
        _ => Ok(()),
    }
}

impl Mutator for RuntimeClass {
    const NAME: &'static str = "RuntimeClass";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.creates("", "pods")
    }

    async fn mutate(&self, request: &AdmissionRequest<'_>, object: &mut Object) -> Result<(), Status> {
        let Some(class) = class_of(request, object).await? else { return Ok(()) };
        let applied = set_overhead(&class, object).and_then(|()| set_scheduling(&class, object));
        applied.map_err(|why| request.forbid(object, why))
    }
}

impl Validator for RuntimeClass {
    const NAME: &'static str = "RuntimeClass";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.creates("", "pods")
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        let class = class_of(request, object).await?;
        check_overhead(class.as_ref(), object).map_err(|why| request.forbid(object, why))
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::super::testing::{Fixture, create, object};
    use super::*;

    async fn admitted(spec: Value) -> Result<Value, String> {
        let class = json!({"metadata": {"name": "kata"}, "overhead": {"podFixed": {"cpu": "250m"}}, "scheduling": {
            "nodeSelector": {"vm": "yes"}, "tolerations": [{"key": "vm", "operator": "Exists"}]}});
        let fixture =
            Fixture::new(&[("runtimeclasses", class), ("runtimeclasses", json!({"metadata": {"name": "plain"}}))]);
        let request = create(&fixture, "", "pods", "Pod", "p");
        let mut pod = object(json!({"metadata": {"name": "p"}, "spec": spec}));
        let why = |status: Status| status.message.replace("pods \"p\" is forbidden: ", "");
        RuntimeClass.mutate(&request, &mut pod).await.map_err(why)?;
        RuntimeClass.check(&request, &pod).await.map_err(why)?;
        Ok(pod["spec"].clone())
    }

    #[tokio::test]
    async fn pod_gets_overhead_and_scheduling_of_its_runtime_class() {
        let found =
            admitted(json!({"runtimeClassName": "kata", "tolerations": [{"key": "a", "operator": "Exists"}]})).await;
        let expected = json!({"runtimeClassName": "kata", "overhead": {"cpu": "250m"}, "nodeSelector": {"vm": "yes"},
            "tolerations": [{"key": "a", "operator": "Exists"}, {"key": "vm", "operator": "Exists"}]});
        assert_eq!(found, Ok(expected.clone()));
        assert_eq!(admitted(expected.clone()).await, Ok(expected), "a second run changes nothing");
        assert_eq!(admitted(json!({})).await, Ok(json!({})));
        let plain = json!({"runtimeClassName": "plain"});
        assert_eq!(admitted(plain.clone()).await, Ok(plain));
    }

    #[tokio::test]
    async fn pod_with_overhead_or_node_selector_different_from_its_runtime_class_is_rejected() {
        for (spec, expected) in [
            (json!({"runtimeClassName": "gone"}), "pod rejected: RuntimeClass \"gone\" not found"),
            (json!({"runtimeClassName": "kata", "overhead": {"cpu": "1"}}), MISMATCH),
            (json!({"runtimeClassName": "plain", "overhead": {"cpu": "1"}}), UNDEFINED),
            (json!({"overhead": {"cpu": "1"}}), UNDEFINED),
            (
                json!({"runtimeClassName": "kata", "nodeSelector": {"vm": "no"}}),
                "conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no",
            ),
        ] {
            assert_eq!(admitted(spec.clone()).await, Err(expected.to_owned()), "{spec}");
        }
        let same = admitted(json!({"runtimeClassName": "kata", "overhead": {"cpu": "0.25"}})).await;
        assert!(same.is_ok(), "quantities compare by value");
    }
}
