//! Autoscalers and disruption budgets (`pkg/apis/{autoscaling,policy}/validation`).

use listwatch_schema::Path;
use serde_json::{Value, json};

use listwatch_validation::field_rules::{at_most_100_percent, int_or_percent, not_negative};
use listwatch_validation::formats::{self, amount, label, label_selector, path_segment};
use listwatch_validation::resource_names::container_resource_name;
use listwatch_validation::{Errors, Object, child, given, items, number, objects, text};

/// Seconds of a policy, and seconds in which an autoscaler looks back.
const PERIOD_SECONDS_MAX: i64 = 1800;
const WINDOW_SECONDS_MAX: i64 = 3600;

const TYPES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];

/// `ValidateHorizontalPodAutoscaler`.
pub(crate) fn autoscaler(autoscaler: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (spec, at) = (child(autoscaler, "spec"), Path::root("spec"));
    let before = old.map(|old| child(old, "spec"));
    let (least, most) = (number(spec, "minReplicas"), number(spec, "maxReplicas").unwrap_or(0));
    let bound = i64::from(before.and_then(|before| number(before, "minReplicas")) != Some(0));
    if let Some(least) = least.filter(|least| *least < bound) {
        let why = format_args!("must be greater than or equal to {bound}");
        errors.invalid_value(&at.child("minReplicas"), least, why);
    }
    let most_at = at.child("maxReplicas");
    if most == 0 {
        errors.required(&most_at, "must be set and greater than 0");
    } else if most < 0 {
        errors.invalid_value(&most_at, most, "must be greater than or equal to 1");
    }
    if least.is_some_and(|least| most < least) {
        errors.invalid_value(&most_at, most, "must be greater than or equal to `minReplicas`");
    }
    target(spec, before, &at.child("scaleTargetRef"), errors);
    metrics(spec, before, &at.child("metrics"), errors);
    if let Some(Value::Object(behavior)) = given(spec, "behavior") {
        let at = at.child("behavior");
        for name in ["scaleUp", "scaleDown"] {
            if let Some(Value::Object(rules)) = given(behavior, name) {
                scaling_rules(rules, &at.child(name), errors);
            }
        }
    }
}

fn target(spec: &Object, before: Option<&Object>, at: &Path<'_>, errors: &mut Errors) {
    let target = child(spec, "scaleTargetRef");
    let unchanged = before.is_some_and(|before| {
        let before = child(before, "scaleTargetRef");
        ["apiVersion", "kind"].iter().all(|name| text(before, name) == text(target, name))
    });
    let group = if unchanged {
        Group::Unchecked
    } else if text(target, "kind") == "ReplicationController" {
        Group::Optional
    } else {
        Group::Required
    };
    reference(target, group, at, errors);
}

/// Whether a reference has to name a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Unchecked,
    Optional,
    Required,
}

/// What is wrong with the version of a reference (`ValidateAPIVersion`).
fn version_problem(version: &str, group: Group) -> Option<String> {
    if group == Group::Unchecked {
        return None;
    }
    if version.matches('/').count() > 1 {
        return Some(format!("unexpected GroupVersion string: {version}"));
    }
    let has_group = version.split_once('/').is_some_and(|(group, _)| !group.is_empty());
    (group == Group::Required && !has_group).then(|| "apiVersion must specify API group".to_owned())
}

/// `ValidateCrossVersionObjectReference`.
fn reference(reference: &Object, group: Group, at: &Path<'_>, errors: &mut Errors) {
    for name in ["kind", "name"] {
        match text(reference, name) {
            "" => errors.required(&at.child(name), ""),
            value => path_segment(value, &at.child(name), errors),
        }
    }
    let version = text(reference, "apiVersion");
    if let Some(why) = version_problem(version, group) {
        errors.invalid(&at.child("apiVersion"), version, why);
    }
}

fn metrics(spec: &Object, before: Option<&Object>, at: &Path<'_>, errors: &mut Errors) {
    let borne = before.is_some_and(|before| {
        objects(before, "metrics").filter(|(_, metric)| text(metric, "type") == "Object").any(|(_, metric)| {
            let described = child(child(metric, "object"), "describedObject");
            version_problem(text(described, "apiVersion"), Group::Optional).is_some()
        })
    });
    let group = if borne { Group::Unchecked } else { Group::Optional };
    for (position, metric) in objects(spec, "metrics") {
        validate_metric(metric, group, &at.index(position), errors);
    }
    let external = |(_, metric): (usize, &Object)| matches!(text(metric, "type"), "Object" | "External");
    if number(spec, "minReplicas") == Some(0) && !objects(spec, "metrics").any(external) {
        errors.forbidden(at, "must specify at least one Object or External metric to support scaling to zero replicas");
    }
}

/// The sources of metrics in the order in which upstream looks at them.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];

fn validate_metric(metric: &Object, group: Group, at: &Path<'_>, errors: &mut Errors) {
    let kind = text(metric, "type");
    if kind.is_empty() {
        errors.required(&at.child("type"), "must specify a metric source type");
    }
    if !TYPES.contains(&kind) {
        errors.not_supported(&at.child("type"), kind, &TYPES);
    }
    let present: Vec<&str> =
        SOURCES.iter().map(|(_, source)| *source).filter(|source| given(metric, source).is_some()).collect();
    if let Some(first) = present.first() {
        source(first, child(metric, first), group, &at.child(first), errors);
    }
    let expected = SOURCES.iter().find(|(name, _)| *name == kind).map(|(_, source)| *source);
    match expected {
        Some(source) if given(metric, source).is_none() => {
            errors.required(&at.child(source), "must populate information for the given metric source");
        }
        Some(_) => {}
        None => errors.not_supported(&at.child("type"), kind, &TYPES),
    }
    if present.len() > 1 {
        for other in present.iter().filter(|source| Some(**source) != expected) {
            errors.forbidden(&at.child(other), "must populate the given metric source only");
        }
    }
}

fn source(kind: &str, source: &Object, group: Group, at: &Path<'_>, errors: &mut Errors) {
    match kind {
        "object" => reference(child(source, "describedObject"), group, &at.child("describedObject"), errors),
        "resource" | "containerResource" => {
            match text(source, "name") {
                "" => errors.required(&at.child("name"), "must specify a resource name"),
                name if kind == "containerResource" => container_resource_name(name, &at.child("name"), errors),
                _ => {}
            }
            if kind == "containerResource" {
                match text(source, "container") {
                    "" => errors.required(&at.child("container"), "must specify a container"),
                    name => label(name, &at.child("container"), errors),
                }
            }
        }
        _ => {}
    }
    if matches!(kind, "object" | "external" | "pods") {
        let at = at.child("metric");
        match text(child(source, "metric"), "name") {
            "" => errors.required(&at.child("name"), "must specify a metric name"),
            name => path_segment(name, &at.child("name"), errors),
        }
    }
    let (target, at) = (child(source, "target"), at.child("target"));
    metric_target(target, &at, errors);
    let has = |name: &str| given(target, name).is_some();
    match kind {
        "object" if !has("value") && !has("averageValue") => {
            errors.required(&at.child("averageValue"), "must set either a target value or averageValue");
        }
        "external" if !has("value") && !has("averageValue") => {
            let why = "must set either a target value for metric or a per-pod target";
            errors.required(&at.child("averageValue"), why);
        }
        "external" if has("value") && has("averageValue") => {
            let why = "may not set both a target value for metric and a per-pod target";
            errors.forbidden(&at.child("value"), why);
        }
        "pods" if !has("averageValue") => {
            errors.required(&at.child("averageValue"), "must specify a positive target averageValue");
        }
        "resource" | "containerResource" if !has("averageUtilization") && !has("averageValue") => {
            let why = "must set either a target raw value or a target utilization";
            errors.required(&at.child("averageUtilization"), why);
        }
        "resource" | "containerResource" if has("averageUtilization") && has("averageValue") => {
            let why = "may not set both a target raw value and a target utilization";
            errors.forbidden(&at.child("averageValue"), why);
        }
        _ => {}
    }
}

fn metric_target(target: &Object, at: &Path<'_>, errors: &mut Errors) {
    let kind = text(target, "type");
    if kind.is_empty() {
        errors.required(&at.child("type"), "must specify a metric target type");
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        errors.invalid(&at.child("type"), kind, "must be either Utilization, Value, or AverageValue");
    }
    for name in ["value", "averageValue"] {
        let Some(value) = given(target, name) else { continue };
        if formats::sign(amount(value)) != std::cmp::Ordering::Greater {
            errors.invalid(&at.child(name), amount(value), "must be positive");
        }
    }
    if let Some(percent) = number(target, "averageUtilization").filter(|percent| *percent < 1) {
        errors.invalid_value(&at.child("averageUtilization"), percent, "must be greater than 0");
    }
}

fn scaling_rules(rules: &Object, at: &Path<'_>, errors: &mut Errors) {
    if let Some(seconds) = number(rules, "stabilizationWindowSeconds") {
        let at = at.child("stabilizationWindowSeconds");
        if seconds < 0 {
            errors.invalid_value(&at, seconds, "must be greater than or equal to zero");
        }
        if seconds > WINDOW_SECONDS_MAX {
            errors.invalid_value(&at, seconds, format_args!("must be less than or equal to {WINDOW_SECONDS_MAX}"));
        }
    }
    let policies = ["Disabled", "Max", "Min"];
    if given(rules, "selectPolicy").is_some() && !policies.contains(&text(rules, "selectPolicy")) {
        errors.not_supported(&at.child("selectPolicy"), text(rules, "selectPolicy"), &policies);
    }
    let policies_at = at.child("policies");
    if items(rules, "policies").is_empty() {
        errors.required(&policies_at, "must specify at least one Policy");
    }
    for (position, policy) in objects(rules, "policies") {
        let at = policies_at.index(position);
        let kind = text(policy, "type");
        if !matches!(kind, "Pods" | "Percent") {
            errors.not_supported(&at.child("type"), kind, &["Percent", "Pods"]);
        }
        for name in ["value", "periodSeconds"] {
            let value = number(policy, name).unwrap_or(0);
            if value <= 0 {
                errors.invalid_value(&at.child(name), value, "must be greater than zero");
            }
        }
        if let Some(seconds) = number(policy, "periodSeconds").filter(|seconds| *seconds > PERIOD_SECONDS_MAX) {
            let why = format_args!("must be less than or equal to {PERIOD_SECONDS_MAX}");
            errors.invalid_value(&at.child("periodSeconds"), seconds, why);
        }
    }
    if let Some(tolerance) = given(rules, "tolerance") {
        formats::not_negative_amount(amount(tolerance), &at.child("tolerance"), errors);
    }
}

/// `ValidateHorizontalPodAutoscalerStatusUpdate`.
pub(crate) fn autoscaler_status(autoscaler: &Object, _: Option<&Object>, errors: &mut Errors) {
    let at = Path::root("status");
    not_negative(child(autoscaler, "status"), &["currentReplicas", "desiredReplicas"], &at, errors);
}

/// `ValidatePodDisruptionBudgetSpec`.
pub(crate) fn budget(budget: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (spec, at) = (child(budget, "spec"), Path::root("spec"));
    let (least, most) = (given(spec, "minAvailable"), given(spec, "maxUnavailable"));
    if least.is_some() && most.is_some() {
        let shown = json!({"MinAvailable": least, "Selector": given(spec, "selector"), "MaxUnavailable": most,
            "UnhealthyPodEvictionPolicy": given(spec, "unhealthyPodEvictionPolicy")});
        errors.invalid_value(&at, shown, "minAvailable and maxUnavailable cannot be both set");
    }
    for name in ["minAvailable", "maxUnavailable"] {
        int_or_percent(spec, name, &at, errors);
        at_most_100_percent(spec, name, &at, errors);
    }
    let strict = old.is_none_or(|old| !formats::is_invalid_selector(child(old, "spec").get("selector")));
    label_selector(spec.get("selector"), strict, &at.child("selector"), errors);
    let policies = ["AlwaysAllow", "IfHealthyBudget"];
    let policy = text(spec, "unhealthyPodEvictionPolicy");
    if given(spec, "unhealthyPodEvictionPolicy").is_some() && !policies.contains(&policy) {
        errors.not_supported(&at.child("unhealthyPodEvictionPolicy"), policy, &policies);
    }
}

/// `ValidatePodDisruptionBudgetStatusUpdate`.
pub(crate) fn budget_status(budget: &Object, _: Option<&Object>, errors: &mut Errors) {
    let (status, at) = (child(budget, "status"), Path::root("status"));
    super::conditions(status, "status.", errors);
    let counts = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
    not_negative(status, &counts, &at, errors);
}
