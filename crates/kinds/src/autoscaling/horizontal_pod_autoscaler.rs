//! HorizontalPodAutoscaler (`autoscaling/v2`): scales the replicas of a workload by metrics.
//!
//! Source: `pkg/registry/autoscaling/horizontalpodautoscaler`, `pkg/apis/autoscaling/{validation,v2}`.

use listwatch_json::{Value, json};
use listwatch_schema::Path;
use listwatch_validation::field_rules::{not_negative, one_of_if_present};
use listwatch_validation::formats::{self, amount, label, path_segment};
use listwatch_validation::resource_names::container_resource_name;
use listwatch_validation::{Errors, Object, child, given, items, number, objects, text};

use crate::defaults::Default::{From, If, In, Number, Text};
use crate::defaults::Defaults;
use crate::{Kind, Subresource};
use listwatch_printers::Printer;
use listwatch_printers::text::{NONE, UNSET, with_more};
use listwatch_printers::{AGE, Column, Json, NAME};

pub(crate) static KIND: Kind = Kind {
    short_names: &["hpa"],
    categories: &["all"],
    subresources: &[Subresource::Status],
    defaults: &DEFAULTS,
    initial_status: || Some(json!({"desiredReplicas": 0, "currentMetrics": null})),
    normalize: |autoscaler| {
        super::horizontal_pod_autoscaler_v1::remove_round_trip_annotations(autoscaler);
        Ok(())
    },
    validate,
    validate_status,
    printer: &PRINTER,
    ..Kind::namespaced("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
};

static DEFAULTS: Defaults = Defaults(&[("spec", In(&SPEC_DEFAULTS))]);

static SPEC_DEFAULTS: Defaults = Defaults(&[
    ("minReplicas", Number(1)),
    (
        "metrics",
        From(|_| {
            Some(json!([{"type": "Resource", "resource":
                {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]))
        }),
    ),
    ("behavior", If(&BEHAVIOR)),
]);

static BEHAVIOR: Defaults = Defaults(&[("scaleUp", In(&SCALE_UP)), ("scaleDown", In(&SCALE_DOWN))]);

static SCALE_UP: Defaults = Defaults(&[
    ("stabilizationWindowSeconds", Number(0)),
    ("selectPolicy", Text("Max")),
    (
        "policies",
        From(|_| {
            Some(json!([{"type": "Pods", "value": 4, "periodSeconds": 15},
                {"type": "Percent", "value": 100, "periodSeconds": 15}]))
        }),
    ),
]);

static SCALE_DOWN: Defaults = Defaults(&[
    ("selectPolicy", Text("Max")),
    ("policies", From(|_| Some(json!([{"type": "Percent", "value": 100, "periodSeconds": 15}])))),
]);

/// The largest period of a scaling policy, and the largest stabilization window, in seconds.
const PERIOD_SECONDS_MAX: i64 = 1800;
const WINDOW_SECONDS_MAX: i64 = 3600;

const TYPES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];

/// Validates the spec (`ValidateHorizontalPodAutoscaler`).
fn validate(autoscaler: &Object, old: Option<&Object>, errors: &mut Errors) {
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

/// The rule for the group of a reference.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Unchecked,
    Optional,
    Required,
}

/// Validates the `apiVersion` of a reference (`ValidateAPIVersion`).
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

/// Validates a reference (`ValidateCrossVersionObjectReference`).
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

/// The types of metrics and their members, in upstream's order.
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
    one_of_if_present(rules, "selectPolicy", &["Disabled", "Max", "Min"], at, errors);
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

/// Validates a write of the status (`ValidateHorizontalPodAutoscalerStatusUpdate`).
fn validate_status(autoscaler: &Object, _: Option<&Object>, errors: &mut Errors) {
    let at = Path::root("status");
    not_negative(child(autoscaler, "status"), &["currentReplicas", "desiredReplicas"], &at, errors);
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Reference", "What is scaled."),
        Column::text("Targets", "The metrics: where they are and where they should be."),
        Column::text("MinPods", "The fewest pods."),
        Column::text("MaxPods", "The most pods."),
        Column::text("Replicas", "How many pods there are."),
        AGE,
    ],
    cells: |scaler| {
        let spec = scaler.spec();
        let target = spec.get("scaleTargetRef");
        vec![
            scaler.name().into(),
            format!("{}/{}", target.get("kind").string(), target.get("name").string()).into(),
            metric_cell(spec.get("metrics"), scaler.at("status.currentMetrics")).into(),
            spec.get("minReplicas").scalar().unwrap_or_else(|| "1".to_owned()).into(),
            spec.get("maxReplicas").int().unwrap_or(0).into(),
            scaler.status().get("currentReplicas").int().unwrap_or(0).into(),
            scaler.age().into(),
        ]
    },
};

/// The cell of the metrics: current and target values.
fn metric_cell(specs: Json<'_>, statuses: Json<'_>) -> String {
    let statuses = statuses.items();
    let metric = |(position, spec): (usize, Json<'_>)| {
        let status = statuses.get(position).copied().unwrap_or(Json::new(b""));
        metric(spec, status)
    };
    let list = specs.items().into_iter().enumerate().map(metric).collect();
    with_more(list, METRICS_SHOWN_MAX, ", ", NONE)
}

/// The number of metrics that a cell shows.
const METRICS_SHOWN_MAX: usize = 2;

/// The text of one metric: `current/target`.
fn metric(spec: Json<'_>, status: Json<'_>) -> String {
    let type_ = spec.get("type").string();
    let (member, named) = match type_.as_str() {
        "External" => ("external", false),
        "Pods" => ("pods", false),
        "Object" => ("object", false),
        "Resource" => ("resource", true),
        "ContainerResource" => ("containerResource", true),
        _ => return "<unknown type>".to_owned(),
    };
    let (target, current) = (spec.get(member).get("target"), status.get(member).get("current"));
    let unknown = || "<unknown>".to_owned();
    let average = target.get("averageValue").scalar();
    let text = match (average, named) {
        // The targets of pods and resources are always averages.
        (Some(average), _) => {
            let suffix = if matches!(member, "external" | "object") { " (avg)" } else { "" };
            format!("{}/{average}{suffix}", current.get("averageValue").scalar().unwrap_or_else(unknown))
        }
        (None, false) => {
            let value = target.get("value").scalar().unwrap_or_else(|| UNSET.to_owned());
            format!("{}/{value}", current.get("value").scalar().unwrap_or_else(unknown))
        }
        (None, true) => {
            let percent = |json: Json<'_>| json.get("averageUtilization").int().map(|number| format!("{number}%"));
            let wanted = percent(target).unwrap_or_else(|| "<auto>".to_owned());
            format!("{}/{wanted}", percent(current).unwrap_or_else(unknown))
        }
    };
    if named { format!("{}: {text}", spec.get(member).get("name").string()) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_defaults;

    #[test]
    fn autoscaler_defaults_equal_those_of_kube_apiserver() {
        check_defaults(
            &KIND,
            json!({"spec": {"maxReplicas": 3}}),
            json!({"spec": {"maxReplicas": 3, "minReplicas": 1, "metrics": [{"type": "Resource", "resource":
                {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]}}),
        );
    }
}
