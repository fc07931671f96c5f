//! StorageObjectInUseProtection: adds finalizers to claims, volumes and VolumeAttributesClasses, so that they stay
//! while they are in use (`plugin/pkg/admission/storage/storageobjectinuseprotection`).

use listwatch_json::{Value, json};
use listwatch_meta::Status;
use listwatch_validation::{Object, metadata_mut, texts};

use super::plugin::Mutator;
use super::{AdmissionRequest, Operation};

/// Returns the finalizer for the resource that the request creates.
fn finalizer(request: &AdmissionRequest<'_>) -> Option<&'static str> {
    if request.operation != Operation::Create || request.subresource.is_some() {
        return None;
    }
    match (request.group, request.resource) {
        ("", "persistentvolumeclaims") => Some("kubernetes.io/pvc-protection"),
        ("", "persistentvolumes") => Some("kubernetes.io/pv-protection"),
        ("storage.k8s.io", "volumeattributesclasses") => Some("kubernetes.io/vac-protection"),
        _ => None,
    }
}

/// The plugin that adds the finalizers of storage objects.
pub(super) struct StorageObjectInUseProtection;

impl Mutator for StorageObjectInUseProtection {
    const NAME: &'static str = "StorageObjectInUseProtection";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        finalizer(request).is_some()
    }

    async fn mutate(&self, request: &AdmissionRequest<'_>, object: &mut Object) -> Result<(), Status> {
        if let Some(finalizer) = finalizer(request) {
            add_finalizer(object, finalizer);
        }
        Ok(())
    }
}

fn add_finalizer(object: &mut Object, finalizer: &str) {
    let metadata = metadata_mut(object);
    if texts(metadata, "finalizers").any(|present| present == finalizer) {
        return;
    }
    match metadata.get_mut("finalizers") {
        Some(Value::Array(finalizers)) => finalizers.push(json!(finalizer)),
        _ => {
            metadata.insert("finalizers", json!([finalizer]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fixture, create, object};
    use super::*;

    #[tokio::test]
    async fn new_storage_objects_get_their_finalizer_once() {
        let fixture = Fixture::new(&[]);
        for (group, resource, finalizer) in [
            ("", "persistentvolumeclaims", "kubernetes.io/pvc-protection"),
            ("", "persistentvolumes", "kubernetes.io/pv-protection"),
            ("storage.k8s.io", "volumeattributesclasses", "kubernetes.io/vac-protection"),
        ] {
            let request = create(&fixture, group, resource, "", "a");
            let mut found = object(json!({"metadata": {"finalizers": ["x"]}}));
            for _ in 0..2 {
                assert!(StorageObjectInUseProtection::concerns(&request));
                StorageObjectInUseProtection.mutate(&request, &mut found).await.unwrap();
                assert_eq!(found["metadata"]["finalizers"], json!(["x", finalizer]));
            }
        }
        let update =
            AdmissionRequest { operation: Operation::Update, ..create(&fixture, "", "persistentvolumes", "", "a") };
        assert!(!StorageObjectInUseProtection::concerns(&update));
    }
}
