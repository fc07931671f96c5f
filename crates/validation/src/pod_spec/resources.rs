//! Validates resource requests and limits of containers and pods (`validateResourceRequirements`).

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, HashSet};

use listwatch_json::Value;
use listwatch_meta::FieldError;
use listwatch_schema::Path;

use super::PodContext;
use crate::formats::{self, amount, compare, label};
use crate::resource_names::{amount_of, container_resource_name, is_huge_page, is_native, resource_name};
use crate::{Errors, Object, child, given, items, objects, text};
use listwatch_meta::go;

/// The largest total length of the claim names in one error, in bytes, and the largest number of
/// errors that list claim names.
const CLAIMS_SHOWN_BYTES_MAX: usize = 4096;
const LISTING_ERRORS_MAX: usize = 64;

/// Whether a resource can be overcommitted (`IsOvercommitAllowed`).
fn is_overcommitted(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

/// Whether a resource can be requested for the pod as a whole.
fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_huge_page(name)
}

/// Validates the `resources` of a container (`ValidateContainerResourceRequirements`).
pub fn container_resources(resources: &Object, claims: &BTreeSet<&str>, at: &Path<'_>, errors: &mut Errors) {
    requirements(resources, container_resource_name, claims, at, errors);
}

/// Validates the overhead of a pod.
pub(super) fn overhead(overhead: &Object, at: &Path<'_>, errors: &mut Errors) {
    limits(overhead, container_resource_name, &at.child("limits"), errors);
    let huge_alone = overhead.keys().any(|name| is_huge_page(name)) && !overhead.keys().any(|name| is_computed(name));
    if huge_alone {
        errors.forbidden(at, "HugePages require cpu or memory");
    }
}

fn is_computed(name: &str) -> bool {
    matches!(name, "cpu" | "memory")
}

fn limits(limits: &Object, check: fn(&str, &Path<'_>, &mut Errors), at: &Path<'_>, errors: &mut Errors) {
    for (name, limit) in limits {
        let at = at.key(name);
        check(name, &at, errors);
        amount_of(name, amount(limit), &at, errors);
        huge_pages(name, amount(limit), &at, errors);
    }
}

/// Reports a quantity of huge pages that is not a multiple of the page size.
fn huge_pages(name: &str, wanted: &str, at: &Path<'_>, errors: &mut Errors) {
    let Some(size) = name.strip_prefix("hugepages-") else { return };
    let bytes =
        |amount: &str| listwatch_meta::quantity::nanos(amount).ok().flatten().map(|nanos| nanos / 1_000_000_000);
    let divides = match (bytes(size), bytes(wanted)) {
        (Some(size), Some(wanted)) if size > 0 => wanted % size == 0,
        _ => false,
    };
    if !divides {
        errors.invalid(at, wanted, format_args!("{wanted} is not positive integer multiple of {name}"));
    }
}

fn requirements(
    resources: &Object,
    check: fn(&str, &Path<'_>, &mut Errors),
    claims: &BTreeSet<&str>,
    at: &Path<'_>,
    errors: &mut Errors,
) {
    let (limited, requested) = (child(resources, "limits"), child(resources, "requests"));
    let (limits_at, requests_at) = (at.child("limits"), at.child("requests"));
    limits(limited, check, &limits_at, errors);
    for (name, request) in requested {
        let at = requests_at.key(name);
        check(name, &at, errors);
        let request = amount(request);
        amount_of(name, request, &at, errors);
        match limited.get(name).map(amount) {
            Some(limit) => {
                let order = compare(request, limit);
                let why = if order != Ordering::Equal && !is_overcommitted(name) {
                    Some("equal to")
                } else if order == Ordering::Greater {
                    Some("less than or equal to")
                } else {
                    None
                };
                if let Some(why) = why {
                    errors.invalid(&requests_at, request, format_args!("must be {why} {name} limit of {limit}"));
                }
            }
            None if !is_overcommitted(name) => {
                errors.required(&limits_at, "Limit must be set for non overcommitable resources");
            }
            None => {}
        }
        huge_pages(name, request, &at, errors);
    }
    let any = |check: fn(&str) -> bool| limited.keys().chain(requested.keys()).any(|name| check(name));
    if any(is_huge_page) && !any(is_computed) {
        errors.forbidden(at, "HugePages require cpu or memory");
    }
    claim_names(resources, claims, &at.child("claims"), errors);
}

/// Reports claims of a container that the pod does not have, and duplicate claims.
fn claim_names(resources: &Object, known: &BTreeSet<&str>, at: &Path<'_>, errors: &mut Errors) {
    let mut seen: HashSet<(&str, &str)> = HashSet::new();
    let mut with_requests: HashMap<&str, usize> = HashMap::new();
    for (position, claim) in objects(resources, "claims") {
        let at = at.index(position);
        let (name, request) = (text(claim, "name"), text(claim, "request"));
        if name.is_empty() {
            errors.required(&at, "");
            continue;
        }
        if seen.contains(&(name, "")) {
            errors.duplicate(&at, name);
        } else {
            if !request.is_empty() {
                label(request, &at.child("request"), errors);
            }
            if seen.contains(&(name, request)) {
                errors.duplicate(&at, &format!("{name}/{request}"));
            } else if request.is_empty() {
                for _ in 0..with_requests.get(name).copied().unwrap_or(0).min(1) {
                    errors.duplicate(&at, name);
                }
            }
            if seen.insert((name, request)) && !request.is_empty() {
                *with_requests.entry(name).or_default() += 1;
            }
        }
        if !known.contains(name) {
            let mut why = "must be one of the names in pod.spec.resourceClaims".to_owned();
            if known.is_empty() {
                why.push_str(" which is empty");
            } else if errors.len() < LISTING_ERRORS_MAX {
                why.push_str(": ");
                let mut shown = known.iter().copied().collect::<Vec<_>>().join(", ");
                let mut end = shown.len().min(CLAIMS_SHOWN_BYTES_MAX);
                while !shown.is_char_boundary(end) {
                    end -= 1;
                }
                shown.truncate(end);
                why.push_str(&shown);
            }
            errors.push(FieldError::not_found(at, format_args!("{}: {why}", go::quote(name))));
        }
    }
}

/// Validates the `resources` of a pod (`validatePodResources`).
pub(super) fn pod_resources(pod: &PodContext<'_>, at: &Path<'_>, errors: &mut Errors) {
    let Some(Value::Object(resources)) = given(pod.spec, "resources") else { return };
    if pod.os == Some("windows") {
        return errors.forbidden(at, "may not be set for a windows pod");
    }
    if !items(resources, "claims").is_empty() {
        errors.forbidden(&at.child("claims"), "claims may not be set for Resources at pod-level");
    }
    requirements(resources, pod_resource_name, &pod.claims, at, errors);
    consistency(pod.spec, resources, at, errors);
}

fn pod_resource_name(name: &str, at: &Path<'_>, errors: &mut Errors) {
    if resource_name(name, at, errors) && !is_pod_level(name) {
        errors.not_supported(at, name, &["cpu", "hugepages-", "memory"]);
    }
}

/// A quantity in billionths. Returns 0 for an amount that an `i128` cannot represent.
fn nanos(value: &Value) -> i128 {
    listwatch_meta::quantity::nanos(amount(value)).ok().flatten().unwrap_or(0)
}

/// The quantities that all containers of a pod need together (`AggregateContainerRequests`).
///
/// This is the maximum over time. Each init container runs together with the sidecars that started
/// before it, and the containers run together with all sidecars.
fn aggregate<'a>(spec: &'a Object, kind: &str) -> HashMap<&'a str, i128> {
    fn add<'a>(sums: &mut HashMap<&'a str, i128>, amounts: &'a Object) {
        for (name, value) in amounts {
            let sum = sums.entry(name.as_str()).or_default();
            *sum = sum.saturating_add(nanos(value));
        }
    }
    let mut staying = HashMap::new();
    for (_, container) in objects(spec, "containers") {
        add(&mut staying, child(child(container, "resources"), kind));
    }
    let (mut sidecars, mut most): (HashMap<&str, i128>, HashMap<&str, i128>) = (HashMap::new(), HashMap::new());
    for (_, container) in objects(spec, "initContainers") {
        let amounts = child(child(container, "resources"), kind);
        let at_once = if text(container, "restartPolicy") == "Always" {
            add(&mut staying, amounts);
            add(&mut sidecars, amounts);
            sidecars.iter().map(|(name, sum)| (*name, *sum)).collect::<Vec<_>>()
        } else {
            let beside = |name: &str| sidecars.get(name).copied().unwrap_or(0);
            amounts.iter().map(|(name, value)| (name.as_str(), nanos(value).saturating_add(beside(name)))).collect()
        };
        for (name, sum) in at_once {
            let largest = most.entry(name).or_default();
            *largest = (*largest).max(sum);
        }
    }
    for (name, largest) in most {
        let sum = staying.entry(name).or_default();
        *sum = (*sum).max(largest);
    }
    staying
}

/// Returns the notation of each quantity in the first container that has the quantity. The notation determines the
/// format of the sum.
fn first_spellings<'a>(spec: &'a Object, kind: &str) -> HashMap<&'a str, &'a str> {
    let mut first = HashMap::new();
    for list in ["containers", "initContainers"] {
        for (_, container) in objects(spec, list) {
            for (name, value) in child(child(container, "resources"), kind) {
                first.entry(name.as_str()).or_insert_with(|| amount(value));
            }
        }
    }
    first
}

/// Formats a sum in the notation of a quantity.
fn format_like(nanos: i128, like: &str) -> String {
    let text = if nanos % 1_000_000_000 == 0 {
        (nanos / 1_000_000_000).to_string()
    } else {
        format!("{}m", nanos / 1_000_000)
    };
    let nothing = if like.ends_with('i') { "0Ki" } else { "0" };
    listwatch_meta::quantity::sum(nothing, &text).unwrap_or(text)
}

/// Applies defaults to the `resources` of a pod, if it has any. Requests default to the sum of the
/// containers' requests, then to the limits (`defaultHugePagePodLimits` and `defaultPodRequests`).
pub fn default_pod_level_resources(spec: &mut Object) {
    let Some(Value::Object(resources)) = given(spec, "resources") else { return };
    let (mut limits, mut requests) = (child(resources, "limits").clone(), child(resources, "requests").clone());
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    let add = |amounts: &mut Object, kind: &str, wanted: fn(&str) -> bool, but: &Object| {
        let (sums, spelled) = (aggregate(spec, kind), first_spellings(spec, kind));
        let mut names: Vec<&&str> = sums.keys().filter(|name| wanted(name) && !but.contains_key(name)).collect();
        names.sort_unstable();
        for name in names {
            amounts.entry(*name).or_insert_with(|| format_like(sums[name], spelled[name]).into());
        }
    };
    add(&mut limits, "limits", is_huge_page, &requests);
    if !limits.is_empty() {
        add(&mut requests, "requests", is_computed, &Object::new());
        for (name, limit) in limits.iter().filter(|(name, _)| is_pod_level(name)) {
            requests.entry(name).or_insert_with(|| limit.clone());
        }
    }
    let Some(Value::Object(resources)) = spec.get_mut("resources") else { return };
    for (kind, amounts) in [("limits", limits), ("requests", requests)] {
        if !amounts.is_empty() {
            resources.insert(kind, Value::Object(amounts));
        }
    }
}

/// Compares the resources of a pod with those of its containers (`validatePodResourceConsistency`).
fn consistency(spec: &Object, resources: &Object, at: &Path<'_>, errors: &mut Errors) {
    for (kind, hint) in [("requests", "requests"), ("limits", "limits")] {
        let of_pod = child(resources, kind);
        if of_pod.is_empty() {
            continue;
        }
        let at = at.child(kind);
        let (sums, spelled) = (aggregate(spec, kind), first_spellings(spec, kind));
        let mut names: Vec<&&str> = sums.keys().collect();
        names.sort_unstable();
        for name in names {
            let Some(own) = of_pod.get(name).filter(|_| kind == "requests" || is_huge_page(name)) else { continue };
            if sums[name] > nanos(own) {
                let sum = format_like(sums[name], spelled[name]);
                let why = format_args!("must be greater than or equal to aggregate container {hint} of {sum}");
                errors.invalid(&at.key(name), amount(own), why);
            }
        }
    }
    let of_pod = child(resources, "limits");
    let at = at.child("containers");
    for (position, container) in objects(spec, "containers") {
        let at = at.index(position);
        for (name, limit) in child(child(container, "resources"), "limits") {
            let Some(own) = of_pod.get(name) else { continue };
            if formats::compare(amount(limit), amount(own)) == Ordering::Greater {
                let at = at.key(name);
                let why = format_args!("must be less than or equal to pod limits of {}", amount(own));
                errors.invalid(&at.child("limits"), amount(limit), why);
            }
        }
    }
}

/// Validates the `resizePolicy` of a container (`validateResizePolicy`).
pub(super) fn resize_policy(container: &Object, spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (position, policy) in objects(container, "resizePolicy") {
        let (resource, restart) = (text(policy, "resourceName"), text(policy, "restartPolicy"));
        if !seen.insert(resource) {
            errors.duplicate(&at.index(position), resource);
        }
        for (value, supported) in [(resource, ["cpu", "memory"]), (restart, ["NotRequired", "RestartContainer"])] {
            if value.is_empty() {
                errors.required(at, "");
            } else if !supported.contains(&value) {
                errors.not_supported(at, value, &supported);
            }
        }
        if text(spec, "restartPolicy") == "Never" && restart != "NotRequired" {
            let why = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.invalid(at, restart, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    #[test]
    fn pod_overhead_is_validated_like_resource_limits() {
        let errors = |value: Value| -> Vec<String> {
            let mut errors = Errors::default();
            overhead(value.as_object().unwrap(), &Path::root("overhead"), &mut errors);
            errors.iter().map(FieldError::to_string).collect()
        };
        assert_eq!(errors(json!({"cpu": "100m", "memory": "1Gi", "example.com/x": "1"})), [""; 0]);
        assert_eq!(errors(json!({"hugepages-2Mi": "2Mi"})), ["overhead: Forbidden: HugePages require cpu or memory"]);
        let negative = errors(json!({"cpu": "-1"}));
        assert!(
            negative.len() == 1 && negative[0].starts_with("overhead.limits[cpu]: Invalid value: "),
            "{negative:?}"
        );
        let unknown = errors(json!({"x": "1"}));
        assert!(!unknown.is_empty() && unknown[0].starts_with("overhead.limits[x]: Invalid value: "), "{unknown:?}");
    }
}
