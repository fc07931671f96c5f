//! Warnings of kinds that have only one.
//!
//! Source: the strategies in `pkg/registry/core/serviceaccount`, `pkg/registry/core/resourcequota` and
//! `pkg/registry/resource/resourceslice`, and `pkg/apis/admissionregistration/validation/static_suffix.go`.

use std::cmp::Ordering;

use listwatch_meta::go::quote;
use listwatch_validation::formats::{amount, compare};
use listwatch_validation::{Object, child, metadata, text};

use crate::Warnings;

const MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";

/// Warnings of ServiceAccounts (`warnIfHasEnforceMountableSecretsAnnotation`).
pub fn of_service_account(account: &Object, old: Option<&Object>, warnings: &mut Warnings) {
    fn is_set(account: &Object) -> bool {
        child(metadata(account), "annotations").contains_key(MOUNTABLE_SECRETS)
    }
    if is_set(account) && !old.is_some_and(is_set) {
        warnings.add(format_args!(
            "metadata.annotations[{MOUNTABLE_SECRETS}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
        ));
    }
}

/// Warnings of new ResourceQuotas: requests above the limits. Updates have no warnings.
pub fn of_resource_quota(quota: &Object, old: Option<&Object>, warnings: &mut Warnings) {
    if old.is_some() {
        return;
    }
    let hard = child(child(quota, "spec"), "hard");
    // The bare names of CPU and memory are requests, too.
    for (request, bare, limit) in [
        ("requests.cpu", "cpu", "limits.cpu"),
        ("requests.memory", "memory", "limits.memory"),
        ("requests.storage", "", "limits.storage"),
        ("requests.ephemeral-storage", "", "limits.ephemeral-storage"),
    ] {
        let request = if hard.contains_key(request) || bare.is_empty() { request } else { bare };
        let (Some(requested), Some(limited)) = (hard.get(request).map(amount), hard.get(limit).map(amount)) else {
            continue;
        };
        if compare(requested, limited) == Ordering::Greater {
            warnings.add(format_args!("ResourceQuota {request} ({requested}) should be less than {limit} ({limited})"));
        }
    }
}

/// Warnings of ResourceSlices.
pub fn of_resource_slice(slice: &Object, _: Option<&Object>, warnings: &mut Warnings) {
    let driver = text(child(slice, "spec"), "driver");
    if driver.chars().any(char::is_uppercase) {
        let driver = quote(driver);
        warnings
            .add(format_args!("spec.driver: driver names should be lowercase; {driver} contains uppercase characters"));
    }
}

/// Warnings of policies, bindings and webhook configurations (`WarningsForStaticSuffix`). The feature gate
/// ManifestBasedAdmissionControlConfig is off by default, and the names are therefore only reserved.
pub fn of_admission_kind(object: &Object, _: Option<&Object>, warnings: &mut Warnings) {
    if text(metadata(object), "name").ends_with(".static.k8s.io") {
        warnings.add(format_args!(
            "metadata.name: names ending with \".static.k8s.io\" are reserved for static manifest-based configurations and cannot be managed via the API"
        ));
    }
}
