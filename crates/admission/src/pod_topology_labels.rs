//! PodTopologyLabels: copies the zone and region labels of a node to its pods
//! (`plugin/pkg/admission/podtopologylabels`).

use listwatch_meta::Status;
use listwatch_validation::{Object, child, child_mut, metadata, metadata_mut, text};

use super::plugin::Mutator;
use super::{AdmissionRequest, Operation};

/// The labels that are copied from a node to its pods.
const TOPOLOGY_LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

/// The plugin that copies labels of nodes to pods.
pub(super) struct PodTopologyLabels;

impl Mutator for PodTopologyLabels {
    const NAME: &'static str = "PodTopologyLabels";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.resource == "pods"
            && request.group.is_empty()
            && request.operation == Operation::Create
            && matches!(request.subresource, None | Some("binding"))
    }

    async fn mutate(&self, request: &AdmissionRequest<'_>, object: &mut Object) -> Result<(), Status> {
        let node = match request.subresource {
            None => text(child(object, "spec"), "nodeName"),
            Some(_) => match child(object, "target") {
                target if text(target, "kind") == "Node" => text(target, "name"),
                _ => "",
            },
        };
        if node.is_empty() {
            return Ok(());
        }
        let node = request.get_cached("", "nodes", None, node).await;
        let Some(node) = node.map_err(|status| request.forbid(object, status.message))? else { return Ok(()) };
        let labels = child(metadata(&node), "labels");
        for (key, value) in labels.iter().filter(|(key, _)| TOPOLOGY_LABELS.contains(&key.as_str())) {
            child_mut(metadata_mut(object), "labels").insert(key.clone(), value.clone());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::{Value, json};

    use super::super::testing::{Fixture, create, object};
    use super::*;

    #[tokio::test]
    async fn pod_and_binding_get_the_zone_and_region_labels_of_the_node() {
        let labels = json!({"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r", "other": "o"});
        let fixture = Fixture::new(&[("nodes", json!({"metadata": {"name": "n", "labels": labels}}))]);
        let both = json!({"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r"});
        for (subresource, given, expected) in [
            (None, json!({"spec": {"nodeName": "n"}}), both.clone()),
            (Some("binding"), json!({"target": {"kind": "Node", "name": "n"}}), both),
            (None, json!({"spec": {}}), json!(null)),
            (None, json!({"spec": {"nodeName": "gone"}}), json!(null)),
            (Some("binding"), json!({"target": {"kind": "Machine", "name": "n"}}), json!(null)),
        ] {
            let request = AdmissionRequest { subresource, ..create(&fixture, "", "pods", "", "p") };
            let mut found = object(given.clone());
            assert!(PodTopologyLabels::concerns(&request));
            PodTopologyLabels.mutate(&request, &mut found).await.unwrap();
            let found = Value::Object(found);
            assert_eq!(found.pointer("/metadata/labels").cloned().unwrap_or_default(), expected, "{given}");
        }
    }
}
