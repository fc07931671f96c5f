//! PodResizeValidator: allows a resize only on Linux nodes, and only up to what the node has
//! (`plugin/pkg/admission/podresize`).

use listwatch_meta::Status;
use listwatch_meta::quantity::Quantity;
use listwatch_meta::status::StatusCause;
use listwatch_validation::{Object, child, metadata, text};

use super::amounts::{Amounts, add, amounts, of_pod};
use super::plugin::Validator;
use super::{AdmissionRequest, Operation};

const NODE_CAPACITY: &str = "NodeCapacity";
const UNSUPPORTED_PLATFORM: &str = "UnsupportedPlatform";
const NANOS_PER_MILLI: i128 = 1_000_000;
const NANOS_PER_UNIT: i128 = 1_000_000_000;

/// The plugin that compares the requests of a resized pod with its node.
pub(super) struct PodResizeValidator;

impl Validator for PodResizeValidator {
    const NAME: &'static str = "PodResizeValidator";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.resource == "pods"
            && request.group.is_empty()
            && request.subresource == Some("resize")
            && request.operation == Operation::Update
    }

    async fn check(&self, request: &AdmissionRequest<'_>, pod: &Object) -> Result<(), Status> {
        let Some(name) = node_of_changed_pod(request, pod) else { return Ok(()) };
        let node = bound_node(request, pod, name).await?;
        let refuse = |why: String, reason: &str| {
            let mut status = request.forbid(pod, why);
            let details = status.details.get_or_insert_default();
            details.causes.push(StatusCause { reason: reason.to_owned(), ..StatusCause::default() });
            status
        };
        let system = text(child(metadata(&node), "labels"), "kubernetes.io/os");
        if !system.is_empty() && system != "linux" {
            let why = format!("pod resize is only supported on linux nodes, node {name:?} is {system:?}");
            return Err(refuse(why, UNSUPPORTED_PLATFORM));
        }
        let mut requests = of_pod(pod, false).requests;
        add(&mut requests, &amounts(child(child(pod, "spec"), "overhead")));
        match excess(&requests, &amounts(child(child(&node, "status"), "allocatable"))) {
            Some(excess) => {
                Err(refuse(format!("node didn't have enough allocatable resources: {excess}"), NODE_CAPACITY))
            }
            None => Ok(()),
        }
    }
}

/// The node of a pod whose spec the update changes. `None` for a pod without a node.
pub(super) fn node_of_changed_pod<'a>(request: &AdmissionRequest<'_>, pod: &'a Object) -> Option<&'a str> {
    let spec = child(pod, "spec");
    let node = text(spec, "nodeName");
    let changed = request.old_object.is_some_and(|old| child(old, "spec") != spec);
    (changed && !node.is_empty()).then_some(node)
}

/// Reads the node of a pod.
pub(super) async fn bound_node(request: &AdmissionRequest<'_>, pod: &Object, name: &str) -> Result<Object, Status> {
    match request.get_cached("", "nodes", None, name).await {
        Ok(Some(node)) => Ok(node),
        Ok(None) => Err(request.forbid(pod, format_args!("node {name:?} not found"))),
        Err(status) => Err(request.forbid(pod, format_args!("failed to get node {name:?}: {}", status.message))),
    }
}

/// Formats the amounts by which the requests exceed the allocatable resources of the node, as upstream does.
fn excess(requests: &Amounts, allocatable: &Amounts) -> Option<String> {
    let of = |list: &Amounts, name: &str| list.get(name).copied().unwrap_or(Quantity::ZERO);
    let mut parts = Vec::new();
    for (name, unit) in [("cpu", NANOS_PER_MILLI), ("memory", NANOS_PER_UNIT)] {
        let (requested, available) = (of(requests, name), of(allocatable, name));
        if requested > available {
            let rounded = |amount: Quantity| (amount.nanos() + unit - 1).div_euclid(unit);
            parts.push(format!("{name}, requested: {}, allocatable: {}", rounded(requested), rounded(available)));
        }
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests {
    use listwatch_json::{Value, json};

    use super::super::testing::{Fixture, create, object};
    use super::*;

    fn pod(node: &str, cpu: &str, memory: &str) -> Value {
        let container = json!({"name": "a", "resources": {"requests": {"cpu": cpu, "memory": memory}}});
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": node, "containers": [container]}})
    }

    fn node(name: &str, system: Option<&str>) -> (&'static str, Value) {
        let labels = system.map_or(json!({}), |system| json!({ "kubernetes.io/os": system }));
        let allocatable = json!({"cpu": "2", "memory": "1Gi"});
        ("nodes", json!({"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}))
    }

    #[tokio::test]
    async fn resize_is_rejected_beyond_the_allocatable_resources_of_the_node() {
        let fixture = Fixture::new(&[node("n", Some("linux")), node("bare", None), node("w", Some("windows"))]);
        let lacks = "node didn't have enough allocatable resources: ";
        for (new, expected) in [
            (pod("n", "2", "1Gi"), Ok(())),
            (pod("bare", "2", "1Gi"), Ok(())),
            (pod("", "9", "1Gi"), Ok(())),
            (pod("n", "1", "1Mi"), Ok(())),
            (
                pod("n", "2001m", "1Gi"),
                Err((format!("{lacks}cpu, requested: 2001, allocatable: 2000"), Some(NODE_CAPACITY))),
            ),
            (
                pod("n", "3", "2Gi"),
                Err((
                    format!(
                        "{lacks}cpu, requested: 3000, allocatable: 2000; \
                         memory, requested: 2147483648, allocatable: 1073741824"
                    ),
                    Some(NODE_CAPACITY),
                )),
            ),
            (
                pod("w", "2", "1Mi"),
                Err((
                    "pod resize is only supported on linux nodes, node \"w\" is \"windows\"".to_owned(),
                    Some(UNSUPPORTED_PLATFORM),
                )),
            ),
            (pod("gone", "2", "1Mi"), Err(("node \"gone\" not found".to_owned(), None))),
        ] {
            let node = new["spec"]["nodeName"].as_str().unwrap();
            let old = object(pod(node, "1", "1Mi"));
            let request = create(&fixture, "", "pods", "", "p");
            let subresource = Some("resize");
            let request =
                AdmissionRequest { operation: Operation::Update, old_object: Some(&old), subresource, ..request };
            assert!(PodResizeValidator::concerns(&request));
            let found = PodResizeValidator.check(&request, &object(new.clone())).await;
            let found = found.map_err(|status| {
                let causes = status.details.map(|details| details.causes).unwrap_or_default();
                (status.message, causes.first().map(|cause| cause.reason.clone()))
            });
            let expected =
                expected.map_err(|(why, cause)| (format!("pods \"p\" is forbidden: {why}"), cause.map(str::to_owned)));
            assert_eq!(found, expected, "{new}");
        }
    }

    #[tokio::test]
    async fn overhead_of_the_runtime_class_counts_in_a_resize() {
        let fixture = Fixture::new(&[node("n", None)]);
        let mut new = pod("n", "2", "1Mi");
        new["spec"]["overhead"] = json!({"cpu": "1m"});
        let old = object(pod("n", "1", "1Mi"));
        let request = create(&fixture, "", "pods", "", "p");
        let request = AdmissionRequest { operation: Operation::Update, old_object: Some(&old), ..request };
        let found = PodResizeValidator.check(&request, &object(new)).await.unwrap_err();
        assert!(found.message.ends_with("cpu, requested: 2001, allocatable: 2000"), "{}", found.message);
    }
}
