//! Validates the spec of a PersistentVolumeClaim, alone or as a template in another kind.
//!
//! Rules: `ValidatePersistentVolumeClaimSpec` in `pkg/apis/core/validation` of Kubernetes v1.36.

use listwatch_json::Value;

use listwatch_schema::Path;

use crate::formats::{amount, label, label_selector, positive_amount, subdomain};
use crate::volume_source::required;
use crate::{Errors, Object, child, given, items, text};

/// The access modes of volumes and claims.
const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

/// The volume modes of volumes and claims.
pub const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

/// Checks that an update skips if the stored claim already violates them
/// (`PersistentVolumeClaimSpecValidationOptions`).
#[derive(Debug, Clone, Copy)]
pub struct ClaimSpecOptions {
    /// Whether to check the label values of the selector.
    pub label_values: bool,
    /// Whether to check the API groups of data sources.
    pub api_groups: bool,
}

impl ClaimSpecOptions {
    /// The options for a new claim: all checks.
    pub const ALL: ClaimSpecOptions = ClaimSpecOptions { label_values: true, api_groups: true };
}

/// Validates the spec of a claim (`ValidatePersistentVolumeClaimSpec`).
pub fn claim_spec(spec: &Object, options: ClaimSpecOptions, at: &Path<'_>, errors: &mut Errors) {
    let modes_at = at.child("accessModes");
    if items(spec, "accessModes").is_empty() {
        errors.required(&modes_at, "at least 1 access mode is required");
    }
    label_selector(spec.get("selector"), options.label_values, &at.child("selector"), errors);
    access_modes(spec, &modes_at, errors);
    let resources_at = at.child("resources");
    let storage_at = resources_at.key("storage");
    match child(child(spec, "resources"), "requests").get("storage") {
        None => errors.required(&storage_at, ""),
        Some(storage) => positive_amount(amount(storage), &storage_at, errors),
    }
    if !text(spec, "storageClassName").is_empty() {
        subdomain(text(spec, "storageClassName"), &at.child("storageClassName"), errors);
    }
    if let Some(mode) = given(spec, "volumeMode").and_then(Value::as_str)
        && !VOLUME_MODES.contains(&mode)
    {
        errors.not_supported(&at.child("volumeMode"), mode, &VOLUME_MODES);
    }
    data_sources(spec, options.api_groups, at, errors);
    if !text(spec, "volumeAttributesClassName").is_empty() {
        subdomain(text(spec, "volumeAttributesClassName"), &at.child("volumeAttributesClassName"), errors);
    }
}

fn data_sources(spec: &Object, check_groups: bool, at: &Path<'_>, errors: &mut Errors) {
    let mut source = |name: &str| {
        let source = given(spec, name)?.as_object()?;
        let at = at.child(name);
        required(source, &["name", "kind"], &at, errors);
        let (group, kind) = (text(source, "apiGroup"), text(source, "kind"));
        if group.is_empty() && kind != "PersistentVolumeClaim" {
            errors.invalid(&at, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup");
        }
        if !group.is_empty() && check_groups {
            subdomain(group, &at.child("apiGroup"), errors);
        }
        if name == "dataSourceRef" && !text(source, "namespace").is_empty() {
            label(text(source, "namespace"), &at.child("namespace"), errors);
        }
        Some(source)
    };
    let (first, second) = (source("dataSource"), source("dataSourceRef"));
    let (Some(first), Some(second)) = (first, second) else { return };
    let why = if !text(second, "namespace").is_empty() {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if ["apiGroup", "kind", "name"].iter().any(|name| first.get(name) != second.get(name)) {
        "must match dataSourceRef"
    } else {
        return;
    };
    // Upstream shows the path as the value; its Go type prints as `{}`.
    errors.invalid_value(at, "{}", why);
}

/// Reports unknown and mutually exclusive access modes.
pub fn access_modes(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let modes = || items(spec, "accessModes").iter().map(|mode| mode.as_str().unwrap_or_default());
    for mode in modes().filter(|mode| !ACCESS_MODES.contains(mode)) {
        errors.not_supported(at, mode, &ACCESS_MODES);
    }
    let single = |mode: &str| mode == "ReadWriteOncePod";
    if modes().any(single) && modes().any(|mode| !single(mode) && ACCESS_MODES.contains(&mode)) {
        errors.forbidden(at, "may not use ReadWriteOncePod with other access modes");
    }
}
