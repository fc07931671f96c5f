//! Names of resources such as `cpu`, `hugepages-2Mi` or `example.com/gpu`, and their quantities.
//!
//! Rules: `pkg/apis/core/helper` and `ValidateResourceQuantityValue` in `pkg/apis/core/validation` of Kubernetes v1.36.

use listwatch_schema::Path;

use crate::Errors;
use crate::formats::{not_negative_amount, qualified_name};

/// Resources with integer quantities.
const COUNTED: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// Resources with fractional quantities.
const MEASURED: [&str; 10] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "requests.storage",
];

/// True for `hugepages-` with a size (`IsHugePageResourceName`).
pub fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

fn is_quota_huge_page(name: &str) -> bool {
    is_huge_page(name) || name.starts_with("requests.hugepages-")
}

/// True for a standard name of a ResourceQuota (`IsStandardQuotaResourceName`).
pub fn is_quota_name(name: &str) -> bool {
    COUNTED.contains(&name) || MEASURED.contains(&name) || is_quota_huge_page(name)
}

/// Whether the name is that of a standard resource (`IsStandardResourceName`).
fn is_standard_name(name: &str) -> bool {
    is_quota_name(name) || name == "storage"
}

/// True if Kubernetes itself defines the resource (`IsNativeResource`).
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// True if a vendor defines the resource (`IsExtendedResourceName`).
pub fn is_extended(name: &str) -> bool {
    let for_quota = || format!("requests.{name}");
    !is_native(name)
        && !name.starts_with("requests.")
        && listwatch_meta::selector::qualified_name_problems(&for_quota()).is_empty()
}

/// Validates the name of a resource (`validateResourceName`). Returns whether it is valid.
pub fn resource_name(name: &str, at: &Path<'_>, errors: &mut Errors) -> bool {
    let before = errors.len();
    qualified_name(name, at, errors);
    if errors.len() == before && !name.contains('/') && !is_standard_name(name) {
        errors.invalid(at, name, "must be a standard resource type or fully qualified");
    }
    errors.len() == before
}

/// Validates the name of a resource that a container requests (`validateContainerResourceName`).
pub fn container_resource_name(name: &str, at: &Path<'_>, errors: &mut Errors) {
    resource_name(name, at, errors);
    if !name.contains('/') {
        if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !is_huge_page(name) {
            errors.invalid(at, name, "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.invalid(at, name, "doesn't follow extended resource name standard");
    }
}

/// Validates the quantity of a resource (`ValidateResourceQuantityValue`).
pub fn amount_of(name: &str, amount: &str, at: &Path<'_>, errors: &mut Errors) {
    not_negative_amount(amount, at, errors);
    if COUNTED.contains(&name) || is_extended(name) {
        let millis = listwatch_meta::quantity::nanos(amount).ok().flatten().map_or(0, |nanos| nanos / 1_000_000);
        if millis % 1000 != 0 {
            errors.invalid(at, amount, "must be an integer");
        }
    }
}
