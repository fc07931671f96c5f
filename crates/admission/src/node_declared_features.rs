//! NodeDeclaredFeatureValidator: rejects updates of a pod that need a feature which its node has not declared
//! (`plugin/pkg/admission/nodedeclaredfeatures`, `component-helpers/nodedeclaredfeatures`).

use listwatch_json::Value;
use listwatch_meta::Status;
use listwatch_validation::{Object, child, items, text};

use super::plugin::Validator;
use super::pod_resize::{bound_node, node_of_changed_pod};
use super::{AdmissionRequest, Operation};

/// Whether an update needs a feature. Arguments: the old and the new spec of the pod.
type IsNeeded = fn(&Object, &Object) -> bool;

/// The features that an update of a pod can need, sorted by name. Upstream's other features decide only about scheduling.
const FEATURES: [(&str, IsNeeded); 2] = [
    ("InPlacePodLevelResourcesVerticalScaling", changes_resources_of_the_pod),
    ("InPlacePodVerticalScalingInitContainers", changes_resources_of_an_init_container),
];

/// The plugin that compares updates of pods with `status.declaredFeatures` of their node.
pub(super) struct NodeDeclaredFeatureValidator;

impl Validator for NodeDeclaredFeatureValidator {
    const NAME: &'static str = "NodeDeclaredFeatureValidator";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.resource == "pods"
            && request.group.is_empty()
            && matches!(request.subresource, None | Some("resize"))
            && request.operation == Operation::Update
    }

    async fn check(&self, request: &AdmissionRequest<'_>, pod: &Object) -> Result<(), Status> {
        let (Some(name), Some(old)) = (node_of_changed_pod(request, pod), request.old_object) else { return Ok(()) };
        let (old, new) = (child(old, "spec"), child(pod, "spec"));
        let required: Vec<&str> =
            FEATURES.iter().filter(|(_, is_needed)| is_needed(old, new)).map(|(feature, _)| *feature).collect();
        if required.is_empty() {
            return Ok(());
        }
        let node = bound_node(request, pod, name).await?;
        let declared = items(child(&node, "status"), "declaredFeatures");
        let missing: Vec<&str> = required
            .into_iter()
            .filter(|feature| !declared.iter().any(|declared| declared.as_str() == Some(feature)))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let missing = missing.join(", ");
        let why = format_args!("pod update requires features {missing} which are not available on node {name:?}");
        Err(request.forbid(pod, why))
    }
}

fn changes_resources_of_the_pod(old: &Object, new: &Object) -> bool {
    child(old, "resources") != child(new, "resources")
}

/// Whether the resources of an init container change. Sidecars are ignored.
fn changes_resources_of_an_init_container(old: &Object, new: &Object) -> bool {
    let containers = |spec| items(spec, "initContainers").iter().filter_map(Value::as_object);
    containers(old)
        .zip(containers(new))
        .any(|(old, new)| text(old, "restartPolicy") != "Always" && child(old, "resources") != child(new, "resources"))
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::super::testing::{Fixture, create, object};
    use super::*;

    fn pod(node: &str, own: &str, init: &str, sidecar: &str) -> Object {
        let resources = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let init = json!([{"name": "i", "resources": resources(init)},
            {"name": "s", "restartPolicy": "Always", "resources": resources(sidecar)}]);
        object(json!({"metadata": {"name": "p"},
            "spec": {"nodeName": node, "resources": resources(own), "initContainers": init}}))
    }

    #[tokio::test]
    async fn pod_update_that_needs_an_undeclared_node_feature_is_rejected() {
        let node = |name: &str, features: &[&str]| {
            ("nodes", json!({"metadata": {"name": name}, "status": {"declaredFeatures": features}}))
        };
        let [own, init] = FEATURES.map(|(name, _)| name);
        let fixture = Fixture::new(&[node("all", &[init, "Other", own]), node("some", &["Other", own])]);
        let lacks = |features: &str| {
            format!("pod update requires features {features} which are not available on node \"some\"")
        };
        for (new, expected) in [
            (pod("some", "1", "1", "1"), Ok(())),
            (pod("some", "2", "1", "2"), Ok(())),
            (pod("all", "2", "2", "1"), Ok(())),
            (pod("some", "1", "2", "1"), Err(lacks(init))),
            (pod("", "2", "2", "1"), Ok(())),
            (pod("gone", "1", "1", "2"), Ok(())),
            (pod("gone", "2", "1", "1"), Err("node \"gone\" not found".to_owned())),
        ] {
            let old = pod(text(child(&new, "spec"), "nodeName"), "1", "1", "1");
            for subresource in [None, Some("resize")] {
                let request = create(&fixture, "", "pods", "", "p");
                let request =
                    AdmissionRequest { operation: Operation::Update, old_object: Some(&old), subresource, ..request };
                assert!(NodeDeclaredFeatureValidator::concerns(&request));
                let found = NodeDeclaredFeatureValidator.check(&request, &new).await;
                let expected = expected.clone().map_err(|why| format!("pods \"p\" is forbidden: {why}"));
                assert_eq!(found.map_err(|status| status.message), expected, "{new:?}");
            }
        }
    }

    #[tokio::test]
    async fn all_features_that_a_node_lacks_are_named_in_the_order_of_their_names() {
        let fixture = Fixture::new(&[("nodes", json!({"metadata": {"name": "n"}}))]);
        let old = pod("n", "1", "1", "1");
        let request = create(&fixture, "", "pods", "", "p");
        let request = AdmissionRequest { operation: Operation::Update, old_object: Some(&old), ..request };
        let found = NodeDeclaredFeatureValidator.check(&request, &pod("n", "2", "2", "2")).await.unwrap_err();
        let both =
            "features InPlacePodLevelResourcesVerticalScaling, InPlacePodVerticalScalingInitContainers which are not";
        assert!(found.message.contains(both), "{}", found.message);
    }
}
