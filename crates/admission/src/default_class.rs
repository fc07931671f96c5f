//! DefaultStorageClass and DefaultIngressClass: claims and ingresses without a class get the default one
//! (`plugin/pkg/admission/storage/storageclass/setdefault`, `plugin/pkg/admission/network/defaultingressclass`).

use std::cmp::Reverse;

use listwatch_json::json;
use listwatch_meta::Status;
use listwatch_validation::{Object, child, child_mut, given, metadata, text};

use super::plugin::Mutator;
use super::{AdmissionRequest, LISTED_MAX};

/// The annotation in which older clients set the class of a claim.
const CLAIM_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// The annotation in which older clients set the class of an ingress.
const INGRESS_CLASS: &str = "kubernetes.io/ingress.class";

/// The plugin that sets the class of claims.
pub(super) struct DefaultStorageClass;

/// The plugin that sets the class of ingresses.
pub(super) struct DefaultIngressClass;

/// The class of a claim; `""` if it has none (`GetPersistentVolumeClaimClass`).
pub(super) fn claim_class(claim: &Object) -> &str {
    match child(metadata(claim), "annotations").get(CLAIM_CLASS) {
        Some(class) => class.as_str().unwrap_or_default(),
        None => text(child(claim, "spec"), "storageClassName"),
    }
}

/// Returns the newest class that is marked as the default. Of several equally old classes, the first by name is used.
fn default_of(classes: Vec<Object>, marks: &[&str]) -> Option<String> {
    let is_default = |class: &Object| {
        let annotations = child(metadata(class), "annotations");
        marks.iter().any(|mark| text(annotations, mark) == "true")
    };
    let classes = classes.into_iter().filter(is_default);
    let name = |class: &Object| text(metadata(class), "name").to_owned();
    let newest =
        classes.min_by_key(|class| (Reverse(text(metadata(class), "creationTimestamp").to_owned()), name(class)));
    newest.as_ref().map(name)
}

/// Sets the field `member` of the spec to the default class of the resource `resource`.
async fn set_default(
    request: &AdmissionRequest<'_>,
    object: &mut Object,
    (group, resource, marks, member): (&str, &str, &[&str], &str),
) -> Result<(), Status> {
    let listed = request.objects.list(group, "v1", resource, None, LISTED_MAX).await;
    let classes = listed.and_then(|listed| listed.all(resource));
    let classes = classes.map_err(|status| request.forbid(object, status.message))?;
    if let Some(name) = default_of(classes, marks) {
        child_mut(object, "spec").insert(member, json!(name));
    }
    Ok(())
}

impl Mutator for DefaultStorageClass {
    const NAME: &'static str = "DefaultStorageClass";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.creates("", "persistentvolumeclaims")
    }

    async fn mutate(&self, request: &AdmissionRequest<'_>, object: &mut Object) -> Result<(), Status> {
        let names_class = child(metadata(object), "annotations").contains_key(CLAIM_CLASS)
            || given(child(object, "spec"), "storageClassName").is_some();
        if names_class {
            return Ok(());
        }
        let marks = ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
        set_default(request, object, ("storage.k8s.io", "storageclasses", &marks, "storageClassName")).await
    }
}

impl Mutator for DefaultIngressClass {
    const NAME: &'static str = "DefaultIngressClass";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.creates("networking.k8s.io", "ingresses")
    }

    async fn mutate(&self, request: &AdmissionRequest<'_>, object: &mut Object) -> Result<(), Status> {
        let names_class = !text(child(metadata(object), "annotations"), INGRESS_CLASS).is_empty()
            || given(child(object, "spec"), "ingressClassName").is_some();
        if names_class {
            return Ok(());
        }
        let marks = ["ingressclass.kubernetes.io/is-default-class"];
        set_default(request, object, ("networking.k8s.io", "ingressclasses", &marks, "ingressClassName")).await
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::Value;

    use super::super::testing::{Fixture, create, object};
    use super::*;

    fn class(name: &str, mark: &str, value: &str, created: &str) -> Value {
        json!({"metadata": {"name": name, "annotations": {mark: value}, "creationTimestamp": created}})
    }

    #[tokio::test]
    async fn claim_without_class_gets_the_newest_default_class() {
        let mark = "storageclass.kubernetes.io/is-default-class";
        let fixture = Fixture::new(&[
            ("storageclasses", class("old", mark, "true", "2026-01-01T00:00:00Z")),
            ("storageclasses", class("z", mark, "true", "2026-01-02T00:00:00Z")),
            (
                "storageclasses",
                class("b", "storageclass.beta.kubernetes.io/is-default-class", "true", "2026-01-02T00:00:00Z"),
            ),
            ("storageclasses", class("newest", mark, "false", "2026-01-03T00:00:00Z")),
        ]);
        let request = create(&fixture, "", "persistentvolumeclaims", "", "c");
        for (claim, expected) in [
            (json!({"spec": {}}), json!("b")),
            (json!({"spec": {"storageClassName": ""}}), json!("")),
            (json!({"spec": {"storageClassName": "x"}}), json!("x")),
            (json!({"metadata": {"annotations": {CLAIM_CLASS: "y"}}, "spec": {}}), json!(null)),
        ] {
            let mut found = object(claim.clone());
            DefaultStorageClass.mutate(&request, &mut found).await.unwrap();
            assert_eq!(found["spec"].get("storageClassName").cloned().unwrap_or_default(), expected, "{claim}");
        }
        let none = Fixture::new(&[]);
        let mut found = object(json!({"spec": {}}));
        DefaultStorageClass.mutate(&create(&none, "", "persistentvolumeclaims", "", "c"), &mut found).await.unwrap();
        assert_eq!(found["spec"], json!({}));
    }

    #[tokio::test]
    async fn ingress_without_class_gets_the_default_class() {
        let mark = "ingressclass.kubernetes.io/is-default-class";
        let fixture = Fixture::new(&[("ingressclasses", class("nginx", mark, "true", ""))]);
        let request = create(&fixture, "networking.k8s.io", "ingresses", "", "i");
        for (ingress, expected) in [
            (json!({"spec": {}}), json!("nginx")),
            (json!({"spec": {"ingressClassName": "x"}}), json!("x")),
            (json!({"metadata": {"annotations": {INGRESS_CLASS: "y"}}, "spec": {}}), json!(null)),
            (json!({"metadata": {"annotations": {INGRESS_CLASS: ""}}, "spec": {}}), json!("nginx")),
        ] {
            let mut found = object(ingress.clone());
            DefaultIngressClass.mutate(&request, &mut found).await.unwrap();
            assert_eq!(found["spec"].get("ingressClassName").cloned().unwrap_or_default(), expected, "{ingress}");
        }
    }
}
