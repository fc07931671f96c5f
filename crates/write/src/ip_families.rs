//! Decides the IP families of a Service on a cluster with one range of IPv4 addresses.
//!
//! Source: `initIPFamilyFields` and `isMatchingPreferDualStackClusterIPFields` in
//! `pkg/registry/core/service/storage/alloc.go`, `defaultOnReadIPFamilies` in `storage.go`, and
//! `validateUpgradeDowngradeClusterIPs` in `pkg/apis/core/validation`. The rule for changed families
//! (`validateUpgradeDowngradeIPFamilies`) adds nothing: a service with a cluster IP can only have the family IPv4.

use listwatch_json::json;
use listwatch_meta::FieldError;
use listwatch_validation::formats::is_ipv6;
use listwatch_validation::{Object, child, items, text, texts};

const SINGLE_STACK: &str = "SingleStack";
const PREFER_DUAL_STACK: &str = "PreferDualStack";
const REQUIRE_DUAL_STACK: &str = "RequireDualStack";
const IPV4: &str = "IPv4";
const IPV6: &str = "IPv6";
const NONE: &str = "None";

/// The values of `ipFamilyPolicy` and `ipFamilies` of a service.
#[derive(Debug, PartialEq)]
pub(super) struct IpFamilies {
    pub(super) policy: &'static str,
    pub(super) families: Vec<&'static str>,
}

/// Returns the IP families of a valid service that is not of the type `ExternalName`. Both arguments are specs; `old` is
/// the spec before an update. Returns `None` if the addresses and families of the service stay as they are.
///
/// # Errors
/// Families or addresses that this cluster does not have, and a changed cluster IP.
pub(super) fn ip_families(spec: &Object, old: Option<&Object>) -> Result<Option<IpFamilies>, Vec<FieldError>> {
    if old.is_some_and(|old| keeps_prefer_dual_stack(spec, old)) {
        return Ok(None);
    }
    if let Some((old, policy)) = old.and_then(|old| Some((old, stored_policy(old)?)))
        && keeps_families_of_another_cluster(spec, old)
    {
        return Ok(Some(IpFamilies { policy, families: stored_families(old) }));
    }
    // The storage of a former ExternalName has no addresses and no families.
    let old = old.filter(|old| text(old, "type") != "ExternalName");
    let is_open = has_open_families(spec);
    let policy = match text(spec, "ipFamilyPolicy") {
        "" => old.and_then(stored_policy).unwrap_or(if is_open { REQUIRE_DUAL_STACK } else { SINGLE_STACK }),
        policy => known_policy(policy),
    };
    let mut addresses: Vec<&str> = texts(spec, "clusterIPs").collect();
    let mut families: Vec<&'static str> = texts(spec, "ipFamilies").map(known_family).collect();
    let mut errors = Vec::new();
    let invalid_policy = |why: &str| FieldError::invalid_text("spec.ipFamilyPolicy", policy, why);
    if let Some(old) = old {
        let (old_addresses, old_families) = (stored_addresses(old), stored_families(old));
        if policy == SINGLE_STACK {
            // A client that changes the policy alone gives up the second address and family.
            if addresses == old_addresses {
                addresses.truncate(1);
            }
            if families == old_families {
                families.truncate(1);
            }
        } else {
            if !addresses.is_empty() && addresses.len() < old_addresses.len() {
                errors.push(invalid_policy("must be 'SingleStack' to release the secondary cluster IP"));
            }
            if !families.is_empty() && families.len() < old_families.len() {
                errors.push(invalid_policy("must be 'SingleStack' to release the secondary IP family"));
            }
        }
    }
    if policy == SINGLE_STACK {
        for (several, what) in [(addresses.len() == 2, "cluster IPs"), (families.len() == 2, "IP families")] {
            if several {
                let why = format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
                errors.push(invalid_policy(&why));
            }
        }
    }
    for (index, address) in addresses.iter().enumerate().skip(families.len()).filter(|(_, ip)| **ip != NONE) {
        if is_ipv6(address) {
            let field = format!("spec.clusterIPs[{index}]");
            errors.push(FieldError::invalid(field, json!(addresses), "IPv6 is not configured on this cluster"));
        } else {
            families.push(IPV4);
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    if families.is_empty() {
        families.push(IPV4);
    }
    if is_open {
        if policy != SINGLE_STACK && families.len() == 1 {
            families.push(if families.contains(&IPV4) { IPV6 } else { IPV4 });
        }
    } else {
        if policy == REQUIRE_DUAL_STACK {
            errors.push(invalid_policy("this cluster is not configured for dual-stack services"));
        }
        for (index, family) in families.iter().enumerate().filter(|(_, family)| **family != IPV4) {
            let field = format!("spec.ipFamilies[{index}]");
            errors.push(FieldError::invalid_text(field, family, "not configured on this cluster"));
        }
    }
    if errors.is_empty() {
        errors = old.map(|old| changed_addresses(&addresses, &stored_addresses(old))).unwrap_or_default();
    }
    if errors.is_empty() { Ok(Some(IpFamilies { policy, families })) } else { Err(errors) }
}

/// Returns the errors about changed cluster IPs. A second cluster IP may be released.
fn changed_addresses(addresses: &[&str], old: &[&str]) -> Vec<FieldError> {
    let compared = if addresses.len() == old.len() { addresses.len() } else { 1 };
    let pairs = addresses.iter().zip(old).take(compared).enumerate();
    let changed = pairs.filter(|(_, (address, old))| address != old).map(|(index, _)| {
        let field = format!("spec.clusterIPs[{index}]");
        FieldError::invalid(field, json!(addresses), "may not change once set")
    });
    changed.collect()
}

/// Whether an update keeps the addresses and families of a `PreferDualStack` service. Such a service keeps them even if
/// the cluster has other families than before.
fn keeps_prefer_dual_stack(spec: &Object, old: &Object) -> bool {
    let is_preferred = |policy: &str| policy == PREFER_DUAL_STACK;
    is_preferred(text(spec, "ipFamilyPolicy"))
        && text(spec, "type") == text(old, "type")
        && stored_policy(old).is_none_or(is_preferred)
        && texts(spec, "clusterIPs").eq(stored_addresses(old))
        && texts(spec, "ipFamilies").eq(stored_families(old))
}

/// Whether an update keeps type, addresses, policy and families of a stored service. It may have families that this
/// cluster does not have: earlier versions of this server stored them, and a label or finalizer of such a service must
/// still be able to change. Upstream refuses these updates, but never stored such a service.
fn keeps_families_of_another_cluster(spec: &Object, old: &Object) -> bool {
    let keeps = |field: &str| spec.get(field).is_none() || spec.get(field) == old.get(field);
    (stored_policy(old) == Some(REQUIRE_DUAL_STACK) || stored_families(old).contains(&IPV6))
        && text(spec, "type") == text(old, "type")
        && keeps("ipFamilyPolicy")
        && keeps("ipFamilies")
        && texts(spec, "clusterIPs").eq(stored_addresses(old))
}

/// Whether the endpoints of the service may have any family, because a user provides them: a headless service without
/// selector.
fn has_open_families(spec: &Object) -> bool {
    text(spec, "clusterIP") == NONE && child(spec, "selector").is_empty()
}

/// Returns the cluster IPs of a stored service. Services of old servers have `clusterIP` alone.
fn stored_addresses(old: &Object) -> Vec<&str> {
    match (items(old, "clusterIPs"), text(old, "clusterIP")) {
        ([], "") => Vec::new(),
        ([], address) => vec![address],
        _ => texts(old, "clusterIPs").collect(),
    }
}

/// Returns the families of a stored service. Services of old servers have no families.
fn stored_families(old: &Object) -> Vec<&'static str> {
    if !items(old, "ipFamilies").is_empty() {
        return texts(old, "ipFamilies").map(known_family).collect();
    }
    match text(old, "clusterIP") {
        NONE if has_open_families(old) => vec![IPV4, IPV6],
        NONE => vec![IPV4],
        _ => stored_addresses(old).into_iter().map(|address| if is_ipv6(address) { IPV6 } else { IPV4 }).collect(),
    }
}

/// Returns the policy of a stored service. The policy of a service without families follows from its addresses.
fn stored_policy(old: &Object) -> Option<&'static str> {
    match text(old, "ipFamilyPolicy") {
        "" if items(old, "ipFamilies").is_empty() => match stored_families(old).len() {
            0 => None,
            1 => Some(SINGLE_STACK),
            _ => Some(REQUIRE_DUAL_STACK),
        },
        "" => None,
        policy => Some(known_policy(policy)),
    }
}

fn known_policy(policy: &str) -> &'static str {
    match policy {
        PREFER_DUAL_STACK => PREFER_DUAL_STACK,
        REQUIRE_DUAL_STACK => REQUIRE_DUAL_STACK,
        _ => SINGLE_STACK,
    }
}

fn known_family(family: &str) -> &'static str {
    if family == IPV6 { IPV6 } else { IPV4 }
}
