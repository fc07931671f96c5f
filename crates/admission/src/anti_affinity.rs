//! LimitPodHardAntiAffinityTopology: rejects pods with a required anti-affinity for a larger
//! topology than a node (`plugin/pkg/admission/antiaffinity`).

use listwatch_meta::Status;
use listwatch_validation::{Object, child, objects, text};

use super::AdmissionRequest;
use super::plugin::Validator;

const HOST_NAME: &str = "kubernetes.io/hostname";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// The plugin that limits required anti-affinity.
pub(super) struct LimitPodHardAntiAffinityTopology;

impl Validator for LimitPodHardAntiAffinityTopology {
    const NAME: &'static str = "LimitPodHardAntiAffinityTopology";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.writes("", "pods")
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        let affinity = child(child(child(object, "spec"), "affinity"), "podAntiAffinity");
        let mut keys = objects(affinity, REQUIRED).map(|(_, term)| text(term, "topologyKey"));
        match keys.find(|key| *key != HOST_NAME) {
            Some(key) => Err(request.forbid(
                object,
                format_args!(
                    "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but only key {HOST_NAME} is allowed"
                ),
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::super::testing::{Fixture, create, object};
    use super::*;

    #[tokio::test]
    async fn required_anti_affinity_for_another_topology_than_hostname_is_rejected() {
        let fixture = Fixture::new(&[]);
        let request = create(&fixture, "", "pods", "Pod", "p");
        let check = async |key: &str| {
            let pod = json!({"metadata": {"name": "p"}, "spec": {"affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": key}]}}}});
            LimitPodHardAntiAffinityTopology.check(&request, &object(pod)).await.map_err(|status| status.message)
        };
        assert_eq!(check(HOST_NAME).await, Ok(()));
        assert_eq!(
            check("zone").await,
            Err("pods \"p\" is forbidden: affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but only key kubernetes.io/hostname is allowed".to_owned())
        );
    }
}
