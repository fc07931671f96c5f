//! AlwaysPullImages: images are pulled with the credentials of each pod (`plugin/pkg/admission/alwayspullimages`).

use listwatch_json::{Value, json};
use listwatch_meta::Status;
use listwatch_validation::{Object, child, child_mut, objects, text};

use super::AdmissionRequest;
use super::plugin::{Mutator, Validator};

const LISTS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];
const ALWAYS: &str = "Always";

/// The plugin that sets the pull policy `Always` for all images.
pub(super) struct AlwaysPullImages;

fn concerns(request: &AdmissionRequest<'_>) -> bool {
    request.writes("", "pods")
}

fn images(pod: &Object) -> impl Iterator<Item = &str> {
    LISTS.iter().flat_map(|list| objects(child(pod, "spec"), list)).map(|(_, container)| text(container, "image"))
}

/// Whether an update adds no image that the old pod does not have.
fn brings_no_image(request: &AdmissionRequest<'_>, pod: &Object) -> bool {
    request.old_object.is_some_and(|old| images(pod).all(|image| images(old).any(|known| known == image)))
}

impl Mutator for AlwaysPullImages {
    const NAME: &'static str = "AlwaysPullImages";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        concerns(request)
    }

    async fn mutate(&self, request: &AdmissionRequest<'_>, object: &mut Object) -> Result<(), Status> {
        if !brings_no_image(request, object) {
            let spec = child_mut(object, "spec");
            for list in LISTS {
                let Some(Value::Array(containers)) = spec.get_mut(list) else { continue };
                for container in containers.iter_mut().filter_map(Value::as_object_mut) {
                    container.insert("imagePullPolicy", json!(ALWAYS));
                }
            }
            if let Some(Value::Array(volumes)) = spec.get_mut("volumes") {
                for image in volumes.iter_mut().filter_map(|volume| volume.get_mut("image")?.as_object_mut()) {
                    image.insert("pullPolicy", json!(ALWAYS));
                }
            }
        }
        Ok(())
    }
}

impl Validator for AlwaysPullImages {
    const NAME: &'static str = "AlwaysPullImages";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        concerns(request)
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        if brings_no_image(request, object) {
            return Ok(());
        }
        let spec = child(object, "spec");
        let refuse = |path: std::fmt::Arguments<'_>, policy: &str| {
            let why = format_args!("{path}: Unsupported value: {policy:?}: supported values: \"{ALWAYS}\"");
            Err(request.forbid(object, why))
        };
        for list in LISTS {
            for (index, container) in objects(spec, list) {
                let policy = text(container, "imagePullPolicy");
                if policy != ALWAYS {
                    return refuse(format_args!("spec.{list}[{index}].imagePullPolicy"), policy);
                }
            }
        }
        for (index, volume) in objects(spec, "volumes") {
            let Some(Value::Object(image)) = volume.get("image") else { continue };
            let policy = text(image, "pullPolicy");
            if policy != ALWAYS {
                return refuse(format_args!("spec.volumes[{index}].image.pullPolicy"), policy);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Operation;
    use super::super::testing::{Fixture, create, object};
    use super::*;

    #[tokio::test]
    async fn images_of_containers_and_volumes_of_new_pods_are_always_pulled() {
        let fixture = Fixture::new(&[]);
        let request = create(&fixture, "", "pods", "Pod", "p");
        let given = json!({"metadata": {"name": "p"}, "spec": {
            "containers": [{"name": "c", "image": "a", "imagePullPolicy": "Never"}],
            "volumes": [{"name": "v", "image": {"reference": "b"}}, {"name": "w"}]}});
        let mut pod = object(given);
        let refused = AlwaysPullImages.check(&request, &pod).await.unwrap_err();
        assert_eq!(
            refused.message,
            "pods \"p\" is forbidden: spec.containers[0].imagePullPolicy: Unsupported value: \"Never\": supported values: \"Always\""
        );
        let old = pod.clone();
        AlwaysPullImages.mutate(&request, &mut pod).await.unwrap();
        assert_eq!(pod["spec"]["containers"][0]["imagePullPolicy"], "Always");
        assert_eq!(pod["spec"]["volumes"][0]["image"]["pullPolicy"], "Always");
        assert!(AlwaysPullImages.check(&request, &pod).await.is_ok());
        pod["spec"]["volumes"][0]["image"]["pullPolicy"] = json!("IfNotPresent");
        let refused = AlwaysPullImages.check(&request, &pod).await.unwrap_err();
        assert_eq!(
            refused.message,
            "pods \"p\" is forbidden: spec.volumes[0].image.pullPolicy: Unsupported value: \"IfNotPresent\": supported values: \"Always\""
        );
        let update = AdmissionRequest { operation: Operation::Update, old_object: Some(&old), ..request };
        assert!(AlwaysPullImages.check(&update, &old).await.is_ok(), "the image is not new");
    }
}
