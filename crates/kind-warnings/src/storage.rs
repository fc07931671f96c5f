//! Warnings about the kinds of storage.
//!
//! Source: `pkg/api/persistentvolume/util.go`, `pkg/api/persistentvolumeclaim/util.go`, `pkg/api/storage/util.go` and
//! `pkg/registry/storage/csidriver/strategy.go`.

use listwatch_schema::Path;
use listwatch_validation::{Object, child, given, is_same, items, metadata, objects, text};

use crate::node_labels::{add_selector, add_term, deprecation};
use crate::{Warnings, add_fractional};

const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
const CLASS_DEPRECATED: &str = r#"deprecated since v1.8; use "storageClassName" attribute instead"#;
const MOUNT_ANNOTATION: &str = "volume.beta.kubernetes.io/mount-options";
const MOUNT_DEPRECATED: &str = r#"deprecated since v1.31; use "mountOptions" attribute instead"#;

/// The deprecated volume plugins: the member, its name in the warning, and the message. Upstream's name of `storageos`
/// differs.
const DEPRECATED_SOURCES: [(&str, &str, &str); 6] = [
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// Warnings of PersistentVolumes (`GetWarningsForPersistentVolume`).
pub fn of_volume(volume: &Object, _: Option<&Object>, warnings: &mut Warnings) {
    let annotations = child(metadata(volume), "annotations");
    for (key, why) in [(CLASS_ANNOTATION, CLASS_DEPRECATED), (MOUNT_ANNOTATION, MOUNT_DEPRECATED)] {
        if annotations.contains_key(key) {
            warnings.add(format_args!("metadata.annotations[{key}]: {why}"));
        }
    }
    let spec = child(volume, "spec");
    if text(spec, "persistentVolumeReclaimPolicy") == "Recycle" {
        warnings.add(format_args!(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning."
        ));
    }
    let at = Path::root("spec.nodeAffinity.required.nodeSelectorTerms");
    for (index, term) in objects(child(child(spec, "nodeAffinity"), "required"), "nodeSelectorTerms") {
        add_term(term, false, &at.index(index), warnings);
    }
    for (name, shown, why) in DEPRECATED_SOURCES {
        if given(spec, name).is_some() {
            warnings.add(format_args!("spec.{shown}: {why}"));
        }
    }
}

/// Warnings of PersistentVolumeClaims (`GetWarningsForPersistentVolumeClaim`).
pub fn of_claim(claim: &Object, _: Option<&Object>, warnings: &mut Warnings) {
    if child(metadata(claim), "annotations").contains_key(CLASS_ANNOTATION) {
        warnings.add(format_args!("metadata.annotations[{CLASS_ANNOTATION}]: {CLASS_DEPRECATED}"));
    }
    add_claim_spec(child(claim, "spec"), &Path::root("spec"), warnings);
}

/// Adds the warnings of the spec of a claim (`GetWarningsForPersistentVolumeClaimSpec`).
pub(crate) fn add_claim_spec(spec: &Object, at: &Path<'_>, warnings: &mut Warnings) {
    let resources = child(spec, "resources");
    let at = at.child("resources");
    for list in ["requests", "limits"] {
        add_fractional(child(resources, list), "storage", &at.child(list), warnings);
    }
}

/// Warnings of StorageClasses (`GetWarningsForStorageClass`).
pub fn of_class(class: &Object, _: Option<&Object>, warnings: &mut Warnings) {
    for (index, term) in objects(class, "allowedTopologies") {
        for (place, expression) in objects(term, "matchLabelExpressions") {
            if let Some(why) = deprecation(text(expression, "key")) {
                warnings.add(format_args!("allowedTopologies[{index}].matchLabelExpressions[{place}].key: {why}"));
            }
        }
    }
}

/// Warnings of CSIStorageCapacities (`GetWarningsForCSIStorageCapacity`).
pub fn of_capacity(capacity: &Object, _: Option<&Object>, warnings: &mut Warnings) {
    add_selector(child(capacity, "nodeTopology"), &Path::root("nodeTopology"), warnings);
}

/// Warnings of CSIDrivers. An update warns only if it changes the token requests.
pub fn of_driver(driver: &Object, old: Option<&Object>, warnings: &mut Warnings) {
    let (spec, name) = (child(driver, "spec"), "tokenRequests");
    if !items(spec, name).is_empty()
        && given(spec, "serviceAccountTokenInSecrets").is_none()
        && old.is_none_or(|old| !is_same(spec.get(name), child(old, "spec").get(name)))
    {
        warnings.add(format_args!(
            "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes"
        ));
    }
}
