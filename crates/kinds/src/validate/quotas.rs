//! What LimitRanges and ResourceQuotas demand, and the names of what they limit (`pkg/apis/core/validation`,
//! `pkg/apis/core/helper`, Kubernetes v1.36).

use std::collections::{BTreeMap, BTreeSet};

use listwatch_schema::Path;
use serde_json::Value;

use listwatch_validation::formats::{self, IMMUTABLE, amount, compare, is_full, qualified_name, whole};
use listwatch_validation::resource_names::{
    amount_of, container_resource_name, is_huge_page, is_native, is_quota_name, resource_name,
};
use listwatch_validation::{Errors, Object, child, given, items, objects, text};

/// Errors that show all scopes of a quota. Upstream has one for each scope and resource.
const SCOPE_ERRORS_MAX: usize = 64;
/// Bytes of all scopes of a quota up to which each error shows them; longer ones are shown in one error.
const SCOPES_SHOWN_BYTES_MAX: usize = 1024;

fn scope_errors_max(shown: &str) -> usize {
    if shown.len() > SCOPES_SHOWN_BYTES_MAX { 1 } else { SCOPE_ERRORS_MAX }
}

// LimitRange.

pub(crate) fn limit_range(range: &Object, _: Option<&Object>, errors: &mut Errors) {
    let spec_at = Path::root("spec");
    let limits_at = spec_at.child("limits");
    let mut kinds = BTreeSet::new();
    for (index, limit) in objects(child(range, "spec"), "limits") {
        if is_full(errors) {
            return;
        }
        let at = limits_at.index(index);
        let kind = text(limit, "type");
        let before = errors.len();
        qualified_name(kind, &at.child("type"), errors);
        let known = matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim");
        if errors.len() == before && !kind.contains('/') && !known {
            errors.invalid(&at.child("type"), kind, "must be a standard limit type or fully qualified");
        }
        if !kinds.insert(kind) {
            errors.duplicate(&at.child("type"), kind);
        }
        one_limit(limit, kind, &at, errors);
    }
}

/// The amounts that one limit says of one resource.
#[derive(Default)]
struct Limits<'a> {
    min: Option<&'a str>,
    max: Option<&'a str>,
    default: Option<&'a str>,
    request: Option<&'a str>,
    ratio: Option<&'a str>,
}

fn one_limit(limit: &Object, kind: &str, at: &Path<'_>, errors: &mut Errors) {
    let mut limits: BTreeMap<&str, Limits<'_>> = BTreeMap::new();
    for list in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        let list_at = at.child(list);
        if kind == "Pod" && list.starts_with("default") {
            if !child(limit, list).is_empty() {
                errors.forbidden(&list_at, "may not be specified when `type` is 'Pod'");
            }
            continue;
        }
        if list == "maxLimitRequestRatio"
            && kind == "PersistentVolumeClaim"
            && !["min", "max"].iter().any(|list| child(limit, list).contains_key("storage"))
        {
            let why = "either minimum or maximum storage value is required, but neither was provided";
            errors.required(&at.child("limits"), why);
        }
        for (name, value) in child(limit, list) {
            let at = list_at.key(name);
            match kind {
                "Pod" | "Container" => container_resource_name(name, &at, errors),
                _ => {
                    resource_name(name, &at, errors);
                }
            }
            let of = limits.entry(name).or_default();
            let member = match list {
                "max" => &mut of.max,
                "min" => &mut of.min,
                "default" => &mut of.default,
                "defaultRequest" => &mut of.request,
                _ => &mut of.ratio,
            };
            *member = Some(amount(value));
        }
    }
    for (name, limits) in limits {
        compared(name, &limits, at, errors);
    }
}

fn compared(name: &str, limits: &Limits<'_>, at: &Path<'_>, errors: &mut Errors) {
    let &Limits { min, max, default, request, ratio } = limits;
    let mut above = |low: Option<&str>, high: Option<&str>, list: &str, shown: Option<&str>, words: (&str, &str)| {
        let (Some(low), Some(high)) = (low, high) else { return };
        if compare(low, high).is_gt() {
            let why = format_args!("{} value {low} is greater than {} value {high}", words.0, words.1);
            errors.invalid(&at.child(list).key(name), shown.unwrap_or(low), why);
        }
    };
    above(min, max, "min", min, ("min", "max"));
    above(min, request, "defaultRequest", request, ("min", "default request"));
    above(request, max, "defaultRequest", request, ("default request", "max"));
    above(request, default, "defaultRequest", request, ("default request", "default limit"));
    above(min, default, "default", min, ("min", "default"));
    above(default, max, "default", max, ("default", "max"));
    if let Some(ratio) = ratio {
        let list_at = at.child("maxLimitRequestRatio");
        let ratio_at = list_at.key(name);
        if compare(ratio, "1").is_lt() {
            errors.invalid(&ratio_at, ratio, format_args!("ratio {ratio} is less than 1"));
        }
        if let (Some(min), Some(max)) = (min, max) {
            let limit = quotient(max, min);
            if compare(ratio, "0").is_gt() && as_number(ratio) > limit {
                let limit = if limit.is_nan() {
                    "NaN".to_owned()
                } else if limit.is_infinite() {
                    "+Inf".to_owned()
                } else {
                    format!("{limit:.6}")
                };
                errors.invalid(&ratio_at, ratio, format_args!("ratio {ratio} is greater than max/min = {limit}"));
            }
        }
    }
    let overcommitted = is_native(name) && !is_huge_page(name);
    if let (false, Some(default), Some(request)) = (overcommitted, default, request)
        && compare(default, request).is_ne()
    {
        let list_at = at.child("defaultRequest");
        let why = format_args!("default value {default} must equal to defaultRequest value {request} in {name}");
        errors.invalid(&list_at.key(name), request, why);
    }
}

fn as_number(amount: &str) -> f64 {
    listwatch_meta::quantity::nanos(amount).ok().flatten().map_or(whole(amount) as f64, |nanos| nanos as f64 / 1e9)
}

fn quotient(max: &str, min: &str) -> f64 {
    as_number(max) / as_number(min)
}

// ResourceQuota.

pub(crate) fn resource_quota(quota: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(quota, "spec");
    let at = Path::root("spec");
    quota_amounts(spec, "hard", &at, errors);
    scopes(spec, &at, errors);
    scope_selector(spec, &at, errors);
    let Some(old) = old else {
        return;
    };
    let set = |spec| items(spec, "scopes").iter().filter_map(Value::as_str).collect::<BTreeSet<&str>>();
    if set(spec) != set(child(old, "spec")) {
        errors.invalid_value(&at.child("scopes"), formats::json(spec.get("scopes")), IMMUTABLE);
    }
}

fn quota_amounts(holder: &Object, list: &str, at: &Path<'_>, errors: &mut Errors) {
    let list_at = at.child(list);
    for (name, value) in child(holder, list) {
        let at = list_at.key(name);
        resource_name(name, &at, errors);
        if !name.contains('/') && !is_quota_name(name) {
            errors.invalid(&at, name, "must be a standard resource for quota");
        }
        amount_of(name, amount(value), &at, errors);
    }
}

/// Can a scope be applied to a resource (`IsResourceQuotaScopeValidForResource`)?
fn fits(scope: &str, resource: &str) -> bool {
    let compute =
        ["cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"].contains(&resource);
    match scope {
        "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity" => {
            resource == "pods" || compute
        }
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        _ => true,
    }
}

fn is_scope(scope: &str) -> bool {
    const SCOPES: [&str; 7] = [
        "Terminating",
        "NotTerminating",
        "BestEffort",
        "NotBestEffort",
        "PriorityClass",
        "VolumeAttributesClass",
        "CrossNamespacePodAffinity",
    ];
    SCOPES.contains(&scope)
}

const CONFLICTS: [[&str; 2]; 2] = [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];

/// The resources of a quota that a scope does not fit.
fn misfits<'a>(spec: &'a Object, scope: &'a str) -> impl Iterator<Item = &'a String> {
    child(spec, "hard").keys().filter(move |resource| is_quota_name(resource) && !fits(scope, resource))
}

fn scopes(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let at = at.child("scopes");
    let all: Vec<&str> = items(spec, "scopes").iter().map(|scope| scope.as_str().unwrap_or_default()).collect();
    let shown = formats::json(spec.get("scopes"));
    let max = scope_errors_max(&shown);
    let most = errors.len() + max;
    for scope in &all {
        if errors.len() >= most {
            return;
        }
        if !is_scope(scope) {
            errors.invalid_value(&at, &shown, "unsupported scope");
        }
        for _ in misfits(spec, scope).take(max) {
            errors.invalid_value(&at, &shown, "unsupported scope applied to resource");
        }
    }
    for pair in CONFLICTS {
        if pair.iter().all(|scope| all.contains(scope)) {
            errors.invalid_value(&at, &shown, "conflicting scopes");
        }
    }
}

fn scope_selector(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let Some(Value::Object(selector)) = given(spec, "scopeSelector") else { return };
    let selector_at = at.child("scopeSelector");
    let at = selector_at.child("matchExpressions");
    let requirements = objects(selector, "matchExpressions").map(|(_, requirement)| {
        serde_json::json!({"ScopeName": text(requirement, "scopeName"), "Operator": text(requirement, "operator"),
            "Values": requirement.get("values")})
    });
    let shown = format!("{{\"MatchExpressions\":{}}}", requirements.collect::<Value>());
    let max = scope_errors_max(&shown);
    let mut all = BTreeSet::new();
    let most = errors.len() + max;
    for (_, requirement) in objects(selector, "matchExpressions") {
        if errors.len() >= most {
            return;
        }
        let (scope, operator) = (text(requirement, "scopeName"), text(requirement, "operator"));
        if !is_scope(scope) {
            errors.invalid(&at.child("scopeName"), scope, "unsupported scope");
        }
        for _ in misfits(spec, scope).take(max) {
            errors.invalid_value(&at, &shown, "unsupported scope applied to resource");
        }
        let alone = matches!(
            scope,
            "BestEffort" | "NotBestEffort" | "Terminating" | "NotTerminating" | "CrossNamespacePodAffinity"
        );
        if alone && operator != "Exists" {
            let why = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.invalid(&at.child("operator"), operator, why);
        }
        let values_at = at.child("values");
        match (operator, items(requirement, "values").is_empty()) {
            ("In" | "NotIn", true) => {
                let why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.required(&values_at, why);
            }
            ("Exists" | "DoesNotExist", false) => {
                let why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.invalid_value(&values_at, formats::json(requirement.get("values")), why);
            }
            ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
            (other, _) => errors.invalid(&at.child("operator"), other, "not a valid selector operator"),
        }
        all.insert(scope);
    }
    for pair in CONFLICTS {
        if pair.iter().all(|scope| all.contains(scope)) {
            errors.invalid_value(&at, formats::json(spec.get("scopes")), "conflicting scopes");
        }
    }
}

pub(crate) fn resource_quota_status(quota: &Object, _: Option<&Object>, errors: &mut Errors) {
    let at = Path::root("status");
    for list in ["hard", "used"] {
        quota_amounts(child(quota, "status"), list, &at, errors);
    }
}
