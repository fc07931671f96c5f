//! PersistentVolumeClaimResize: allows a larger request only for bound claims of an expandable
//! class (`plugin/pkg/admission/storage/persistentvolume/resize`).

use listwatch_meta::Status;
use listwatch_meta::quantity::Quantity;
use listwatch_validation::{Object, child, is_true, text};

use super::amounts::amounts;
use super::default_class::claim_class;
use super::plugin::Validator;
use super::{AdmissionRequest, Operation};

const NOT_EXPANDABLE: &str =
    "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";

/// The plugin that checks increased requests of claims.
pub(super) struct PersistentVolumeClaimResize;

impl Validator for PersistentVolumeClaimResize {
    const NAME: &'static str = "PersistentVolumeClaimResize";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.resource == "persistentvolumeclaims"
            && request.group.is_empty()
            && request.subresource.is_none()
            && request.operation == Operation::Update
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        let Some(old) = request.old_object else { return Ok(()) };
        if size(object) <= size(old) {
            return Ok(());
        }
        if text(child(old, "status"), "phase") != "Bound" {
            return Err(request.forbid(object, "Only bound persistent volume claims can be expanded"));
        }
        let class = claim_class(object);
        let found = match class {
            "" => None,
            _ if class != claim_class(old) => None,
            _ => request.get_cached("storage.k8s.io", "storageclasses", None, class).await?,
        };
        match found.is_some_and(|class| is_true(&class, "allowVolumeExpansion")) {
            true => Ok(()),
            false => Err(request.forbid(object, NOT_EXPANDABLE)),
        }
    }
}

/// The storage that a claim requests.
fn size(claim: &Object) -> Quantity {
    let requests = amounts(child(child(child(claim, "spec"), "resources"), "requests"));
    requests.get("storage").copied().unwrap_or(Quantity::ZERO)
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::super::testing::{Fixture, create, object};
    use super::*;

    fn claim(class: &str, size: &str, phase: &str) -> Object {
        object(json!({"metadata": {"name": "c"}, "status": {"phase": phase},
            "spec": {"storageClassName": class, "resources": {"requests": {"storage": size}}}}))
    }

    #[tokio::test]
    async fn only_bound_claims_of_an_expandable_class_may_be_resized() {
        let class = |name: &str, expandable: bool| {
            ("storageclasses", json!({"metadata": {"name": name}, "allowVolumeExpansion": expandable}))
        };
        let fixture = Fixture::new(&[class("fast", true), class("fixed", false)]);
        for (class, old, new, phase, expected) in [
            ("fast", "1Gi", "2Gi", "Bound", Ok(())),
            ("fast", "1Gi", "2Gi", "Pending", Err("Only bound persistent volume claims can be expanded")),
            ("fast", "2Gi", "2048Mi", "Pending", Ok(())),
            ("fixed", "1Gi", "2Gi", "Bound", Err(NOT_EXPANDABLE)),
            ("none", "1Gi", "2Gi", "Bound", Err(NOT_EXPANDABLE)),
            ("", "1Gi", "2Gi", "Bound", Err(NOT_EXPANDABLE)),
        ] {
            let old = claim(class, old, phase);
            let request = create(&fixture, "", "persistentvolumeclaims", "", "c");
            let request = AdmissionRequest { operation: Operation::Update, old_object: Some(&old), ..request };
            let found = PersistentVolumeClaimResize.check(&request, &claim(class, new, phase)).await;
            let expected = expected.map_err(|why| format!("persistentvolumeclaims \"c\" is forbidden: {why}"));
            assert_eq!(found.map_err(|status| status.message), expected, "{class} {new} {phase}");
        }
    }
}
