//! HorizontalPodAutoscaler (`autoscaling/v1`): the second version of [`super::horizontal_pod_autoscaler`].
//!
//! This version has fields for one metric, the utilization of CPU. Annotations hold the other metrics, the behavior
//! and the conditions as JSON. A client that writes back an object that it has read therefore loses nothing.
//!
//! Source: `pkg/apis/autoscaling/v1/conversion.go`, `pkg/apis/autoscaling/annotations.go`.

use listwatch_json::{Map, Value, json};
use listwatch_validation::names::NameRule;
use listwatch_validation::{Object, child, items, quantities};

use crate::versions::{SecondVersion, moved};

pub(crate) static V1: SecondVersion = SecondVersion {
    group: "autoscaling",
    version: "v1",
    stored: ("autoscaling", "v2", "horizontalpodautoscalers"),
    kind: "HorizontalPodAutoscaler",
    after_group: "autoscaling",
    names: NameRule::Subdomain,
    label: None,
    apply_defaults: |object| {
        let spec = object.entry("spec").or_insert_with(|| json!({}));
        if let Some(spec) = spec.as_object_mut() {
            spec.entry("minReplicas").or_insert_with(|| json!(1));
        }
    },
    from_stored: from_v2,
    to_stored: to_v2,
    validate: |_, _, _| {},
    convert: |object, api_version| V1.convert_to(object, api_version),
};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";

/// The annotations that hold fields of `v2` in objects of `v1`.
const ROUND_TRIP_ANNOTATIONS: [&str; 6] = [
    METRICS,
    BEHAVIOR,
    "autoscaling.alpha.kubernetes.io/scale-down-tolerance",
    "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
    CURRENT_METRICS,
    CONDITIONS,
];

/// The default target for the utilization of CPU, in percent (`DefaultCPUUtilization`).
const CPU_UTILIZATION: i64 = 80;

/// The members of the spec that both versions have.
const SPEC: [&str; 3] = ["scaleTargetRef", "minReplicas", "maxReplicas"];
/// The members of the status that both versions have.
const STATUS: [&str; 4] = ["observedGeneration", "lastScaleTime", "currentReplicas", "desiredReplicas"];

/// Removes the annotations that only objects of `v1` have (`DropRoundTripHorizontalPodAutoscalerAnnotations`).
pub(super) fn remove_round_trip_annotations(object: &mut Object) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else { return };
    annotations.retain(|name, _| !ROUND_TRIP_ANNOTATIONS.contains(&name.as_str()));
    if annotations.is_empty() {
        metadata.shift_remove("annotations");
    }
}

/// Returns an object that has only the members with these names, in this order.
fn selected<const N: usize>(object: Object, names: [&str; N]) -> Object {
    moved(object, &names.map(|name| (name, name)))
}

fn from_v2(stored: Object) -> Object {
    let mut converted = selected(stored, ["kind", "apiVersion", "metadata", "spec", "status"]);
    remove_round_trip_annotations(&mut converted);
    let spec = take_object(&mut converted, "spec");
    let status = take_object(&mut converted, "status");
    let mut annotations: Vec<(&str, Value)> = Vec::new();

    let metrics = items(&spec, "metrics");
    let others = metrics.iter().filter(|metric| cpu_utilization(metric, "target").is_none());
    let others: Vec<Value> = others.filter_map(|metric| convert_metric(metric, source_to_v1)).collect();
    let target = metrics.iter().find_map(|metric| cpu_utilization(metric, "target")).cloned();
    if !others.is_empty() {
        annotations.push((METRICS, Value::Array(others)));
    }
    let current = items(&status, "currentMetrics");
    if !current.is_empty() {
        let all = current.iter().filter_map(|metric| convert_metric(metric, status_to_v1)).collect();
        annotations.push((CURRENT_METRICS, all));
    }
    if let Some(Value::Object(behavior)) = spec.get("behavior") {
        annotations.push((BEHAVIOR, internal_behavior(behavior)));
    }
    let conditions = items(&status, "conditions");
    if !conditions.is_empty() {
        annotations.push((CONDITIONS, conditions.iter().map(printed_condition).collect()));
    }
    add_annotations(&mut converted, annotations);

    let utilization = current.iter().rev().find_map(|metric| cpu_utilization(metric, "current")).cloned();
    let mut spec = selected(spec, SPEC);
    put(&mut spec, "targetCPUUtilizationPercentage", target);
    converted.insert("spec", Value::Object(spec));
    let mut status = selected(status, STATUS);
    for always in ["currentReplicas", "desiredReplicas"] {
        status.entry(always).or_insert_with(|| json!(0));
    }
    put(&mut status, "currentCPUUtilizationPercentage", utilization);
    converted.insert("status", Value::Object(status));
    converted
}

fn to_v2(mut object: Object) -> Object {
    let annotation = |name: &str| -> Option<Value> {
        let text = object.get("metadata")?.get("annotations")?.get(name)?.as_str()?;
        serde_json::from_str(text).ok()
    };
    let metrics = |name: &str, convert: MetricConversion| -> Option<Vec<Value>> {
        match annotation(name)? {
            Value::Null => Some(Vec::new()),
            // One invalid metric makes the whole annotation invalid.
            Value::Array(metrics) => metrics.iter().map(|metric| convert_metric(metric, convert)).collect(),
            _ => None,
        }
    };
    let others = metrics(METRICS, source_to_v2);
    let current = metrics(CURRENT_METRICS, status_to_v2);
    let behavior = annotation(BEHAVIOR).and_then(|behavior| external_behavior(&behavior));
    let is_valid = |condition: &Value| condition.as_object().is_some_and(is_condition);
    let conditions =
        annotation(CONDITIONS).filter(|list| list.as_array().is_some_and(|list| list.iter().all(is_valid)));
    remove_round_trip_annotations(&mut object);

    let (spec, status) = (take_object(&mut object, "spec"), take_object(&mut object, "status"));
    let target = spec.get("targetCPUUtilizationPercentage").filter(|target| !target.is_null());
    let mut metrics = others.unwrap_or_default();
    metrics.extend(
        target.map(|target| cpu_metric("target", json!({"type": "Utilization", "averageUtilization": target}))),
    );
    if metrics.is_empty() {
        metrics.push(cpu_metric("target", json!({"type": "Utilization", "averageUtilization": CPU_UTILIZATION})));
    }
    let utilization = status.get("currentCPUUtilizationPercentage").filter(|utilization| !utilization.is_null());
    let current = current.or_else(|| {
        utilization.map(|utilization| vec![cpu_metric("current", json!({"averageUtilization": utilization}))])
    });

    let mut spec = selected(spec, SPEC);
    spec.insert("metrics", Value::Array(metrics));
    put(&mut spec, "behavior", behavior);
    object.insert("spec", Value::Object(spec));
    let mut status = selected(status, STATUS);
    if status.get("currentReplicas").is_some_and(|count| count == 0) {
        status.shift_remove("currentReplicas");
    }
    status.entry("desiredReplicas").or_insert_with(|| json!(0));
    status.insert("currentMetrics", current.map_or(Value::Null, Value::Array));
    put(&mut status, "conditions", conditions.filter(|list| list.as_array().is_some_and(|list| !list.is_empty())));
    object.insert("status", Value::Object(status));
    object
}

fn cpu_metric(member: &str, value: Value) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu", member: value}})
}

/// The average utilization in the `target` or `current` value of a `v2` metric of CPU.
fn cpu_utilization<'a>(metric: &'a Value, member: &str) -> Option<&'a Value> {
    let resource = metric.get("resource").filter(|_| metric.get("type").is_some_and(|kind| kind == "Resource"))?;
    if resource.get("name")? != "cpu" {
        return None;
    }
    resource.get(member)?.get("averageUtilization").filter(|utilization| !utilization.is_null())
}

/// Converts the source or status of a metric, whose type is the first argument; `None` for an invalid one.
type MetricConversion = fn(&str, &Object) -> Option<Object>;

/// Converts the member of a metric that its type names; `None` for an invalid metric.
fn convert_metric(metric: &Value, convert: MetricConversion) -> Option<Value> {
    let metric = metric.as_object()?;
    let mut converted = Map::new();
    converted.insert("type", json!(text(metric, "type")?));
    for kind in ["object", "pods", "resource", "containerResource", "external"] {
        let Some(source) = metric.get(kind).filter(|source| !source.is_null()) else { continue };
        converted.insert(kind.to_owned(), Value::Object(convert(kind, source.as_object()?)?));
    }
    Some(Value::Object(converted))
}

fn source_to_v1(kind: &str, source: &Object) -> Option<Object> {
    Some(metric_to_v1("target", kind, source))
}

fn status_to_v1(kind: &str, status: &Object) -> Option<Object> {
    Some(metric_to_v1("current", kind, status))
}

/// Converts a metric to `v1`. The members of its `target` or `current` value become members of the metric, with the
/// prefix `word`.
fn metric_to_v1(word: &str, kind: &str, metric: &Object) -> Object {
    let numbers = child(metric, word);
    let identifier = child(metric, "metric");
    // A current value always has the number of the metric's type. A target can have a number of another type.
    let is_current = word == "current";
    let mut converted = Map::new();
    let mut set =
        |name: &str, value: Option<&Value>| put(&mut converted, name, value.filter(|value| !value.is_null()).cloned());
    let (zero, empty) = (json!("0"), json!(""));
    let named = |name: &str| format!("{word}{name}");
    let number = |name: &str, is_required: bool| numbers.get(name).or(is_required.then_some(&zero));
    match kind {
        "object" => {
            set("target", Some(&Value::Object(printed_reference(child(metric, "describedObject")))));
            set("metricName", identifier.get("name").or(Some(&empty)));
            set(&named("Value"), number("value", true));
            set("selector", identifier.get("selector"));
            set("averageValue", number("averageValue", false));
        }
        "pods" => {
            set("metricName", identifier.get("name").or(Some(&empty)));
            set(&named("AverageValue"), number("averageValue", true));
            set("selector", identifier.get("selector"));
        }
        "external" => {
            set("metricName", identifier.get("name").or(Some(&empty)));
            set("metricSelector", identifier.get("selector"));
            set(&named("Value"), number("value", is_current));
            set(&named("AverageValue"), number("averageValue", false));
        }
        _ => {
            set("name", metric.get("name").or(Some(&empty)));
            set(&named("AverageUtilization"), number("averageUtilization", false));
            set(&named("AverageValue"), number("averageValue", is_current));
            if kind == "containerResource" {
                set("container", metric.get("container").or(Some(&empty)));
            }
        }
    }
    converted
}

fn source_to_v2(kind: &str, source: &Object) -> Option<Object> {
    let target = match kind {
        "object" => {
            let average = quantity(source, "averageValue")?;
            let value = quantity(source, "targetValue")?.or(Some(json!("0")));
            // Go writes a value of zero where the metric has only an average.
            let value = value.filter(|value| average.is_none() || !is_zero(value));
            metric_target(value, average, None)
        }
        "pods" => metric_target(None, quantity(source, "targetAverageValue")?.or(Some(json!("0"))), None),
        "external" => metric_target(quantity(source, "targetValue")?, quantity(source, "targetAverageValue")?, None),
        _ => {
            let average = quantity(source, "targetAverageValue")?;
            metric_target(None, average, number(source, "targetAverageUtilization")?)
        }
    };
    metric_to_v2(kind, source, "target", target)
}

fn status_to_v2(kind: &str, status: &Object) -> Option<Object> {
    let zero = || Some(json!("0"));
    let (value, average, utilization) = match kind {
        "object" => (quantity(status, "currentValue")?.or_else(zero), quantity(status, "averageValue")?, None),
        "pods" => (None, quantity(status, "currentAverageValue")?.or_else(zero), None),
        "external" => (quantity(status, "currentValue")?.or_else(zero), quantity(status, "currentAverageValue")?, None),
        _ => {
            let average = quantity(status, "currentAverageValue")?.or_else(zero);
            (None, average, number(status, "currentAverageUtilization")?)
        }
    };
    metric_to_v2(kind, status, "current", metric_value(value, average, utilization))
}

/// Creates a `v2` metric with the identifying fields of the given `v1` metric, and with these numbers as `member`.
fn metric_to_v2(kind: &str, metric: &Object, member: &str, numbers: Object) -> Option<Object> {
    let mut converted = Map::new();
    let mut set = |name: &str, value: Value| drop(converted.insert(name, value));
    if kind == "object" {
        let reference = match metric.get("target") {
            None | Some(Value::Null) => &Map::new(),
            Some(reference) => reference.as_object()?,
        };
        set("describedObject", Value::Object(printed_reference(reference)));
    }
    if matches!(kind, "object" | "pods" | "external") {
        let mut identifier = Map::new();
        identifier.insert("name", json!(text(metric, "metricName")?));
        match metric.get(if kind == "external" { "metricSelector" } else { "selector" }) {
            None | Some(Value::Null) => {}
            Some(selector) => {
                identifier.insert("selector", Value::Object(selector.as_object()?.clone()));
            }
        }
        set(member, Value::Object(numbers));
        set("metric", Value::Object(identifier));
    } else {
        set("name", json!(text(metric, "name")?));
        set(member, Value::Object(numbers));
        if kind == "containerResource" {
            set("container", json!(text(metric, "container")?));
        }
    }
    Some(converted)
}

/// Creates a `MetricTarget`. The present numbers determine the type of the target.
fn metric_target(value: Option<Value>, average: Option<Value>, utilization: Option<Value>) -> Object {
    let kind = match (&value, &average, &utilization) {
        (_, _, Some(_)) => "Utilization",
        (Some(_), None, _) => "Value",
        _ => "AverageValue",
    };
    let mut target = Map::new();
    target.insert("type", json!(kind));
    target.extend(metric_value(value, average, utilization));
    target
}

/// Creates a `MetricValueStatus`.
fn metric_value(value: Option<Value>, average: Option<Value>, utilization: Option<Value>) -> Object {
    let mut numbers = Map::new();
    put(&mut numbers, "value", value);
    put(&mut numbers, "averageValue", average);
    put(&mut numbers, "averageUtilization", utilization);
    numbers
}

/// A `CrossVersionObjectReference` with the fields that Go prints.
fn printed_reference(reference: &Object) -> Object {
    let text = |name: &str| listwatch_validation::text(reference, name);
    let mut printed = Map::new();
    printed.insert("kind", json!(text("kind")));
    printed.insert("name", json!(text("name")));
    put(&mut printed, "apiVersion", Some(json!(text("apiVersion"))).filter(|version| version != ""));
    printed
}

/// The members of a scaling rule in `v2` and in the internal type, which the annotation holds.
const RULE: [(&str, &str); 4] = [
    ("stabilizationWindowSeconds", "StabilizationWindowSeconds"),
    ("selectPolicy", "SelectPolicy"),
    ("policies", "Policies"),
    ("tolerance", "Tolerance"),
];
/// The members of a scaling policy in `v2` and in the internal type.
const POLICY: [(&str, &str); 3] = [("type", "Type"), ("value", "Value"), ("periodSeconds", "PeriodSeconds")];

/// Converts a `v2` behavior to the JSON of the internal type, as Go prints it.
fn internal_behavior(behavior: &Object) -> Value {
    let renamed = |members: &Object, names: &[(&str, &str)]| -> Object {
        let member = |name: &str| members.get(name).cloned().unwrap_or_default();
        names.iter().map(|(name, internal)| ((*internal).to_owned(), member(name))).collect()
    };
    let rule = |name: &str| match behavior.get(name) {
        Some(Value::Object(rule)) => {
            let mut internal = renamed(rule, &RULE);
            if let Some(Value::Array(policies)) = internal.get_mut("Policies") {
                for policy in policies {
                    *policy = policy.as_object().map_or(Value::Null, |policy| Value::Object(renamed(policy, &POLICY)));
                }
            }
            Value::Object(internal)
        }
        _ => Value::Null,
    };
    json!({"ScaleUp": rule("scaleUp"), "ScaleDown": rule("scaleDown")})
}

/// Parses the `v2` behavior in an annotation; `None` for an empty or invalid one.
fn external_behavior(behavior: &Value) -> Option<Value> {
    // Go's decoder ignores case.
    let member = |object: &Object, name: &str| -> Option<Value> {
        let found = object.iter().find(|(key, _)| key.eq_ignore_ascii_case(name))?.1;
        (!found.is_null()).then(|| found.clone())
    };
    let behavior = behavior.as_object()?;
    let mut external = Map::new();
    for name in ["scaleUp", "scaleDown"] {
        let Some(rule) = member(behavior, name) else { continue };
        let rule = rule.as_object()?;
        let mut converted = Map::new();
        if let Some(seconds) = member(rule, "stabilizationWindowSeconds") {
            converted.insert("stabilizationWindowSeconds", whole(&seconds)?);
        }
        if let Some(policy) = member(rule, "selectPolicy") {
            converted.insert("selectPolicy", json!(policy.as_str()?));
        }
        if let Some(policies) = member(rule, "policies") {
            let mut all = Vec::new();
            for policy in policies.as_array()? {
                let policy = policy.as_object()?;
                let count = |name: &str| member(policy, name).map_or(Some(json!(0)), |count| whole(&count));
                let kind = member(policy, "type").unwrap_or_else(|| json!(""));
                all.push(
                    json!({"type": kind.as_str()?, "value": count("value")?, "periodSeconds": count("periodSeconds")?}),
                );
            }
            converted.insert("policies", Value::Array(all));
        }
        if let Some(mut tolerance) = member(rule, "tolerance") {
            quantities::canonicalize(&mut tolerance).ok()?;
            converted.insert("tolerance", tolerance);
        }
        external.insert(name, Value::Object(converted));
    }
    (!external.is_empty()).then_some(Value::Object(external))
}

/// The members of a condition, in the order in which Go prints them.
const CONDITION: [&str; 5] = ["type", "status", "lastTransitionTime", "reason", "message"];

/// A condition as Go prints it.
fn printed_condition(condition: &Value) -> Value {
    let mut condition = condition.as_object().cloned().unwrap_or_default();
    condition.entry("lastTransitionTime").or_insert(Value::Null);
    Value::Object(selected(condition, CONDITION))
}

fn is_condition(condition: &Object) -> bool {
    CONDITION.iter().all(|name| condition.get(name).is_none_or(|value| value.is_string() || value.is_null()))
}

/// Adds annotations with these values as JSON, and sorts all annotations by name.
fn add_annotations(object: &mut Object, added: Vec<(&str, Value)>) {
    if added.is_empty() {
        return;
    }
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    let Some(annotations) = annotations.as_object_mut() else { return };
    annotations.extend(added.iter().map(|(name, value)| ((*name).to_owned(), Value::from(go_json(value)))));
    annotations.sort_keys();
}

/// JSON as Go's `encoding/json` writes it, with the escapes that make it safe in HTML. These characters occur only
/// inside strings.
fn go_json(value: &Value) -> String {
    let mut text = value.to_string();
    for (character, escaped) in
        [('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")]
    {
        if text.contains(character) {
            text = text.replace(character, escaped);
        }
    }
    text
}

/// Removes and returns a member; an empty object if the member is absent or is not an object.
fn take_object(object: &mut Object, name: &str) -> Object {
    match object.shift_remove(name) {
        Some(Value::Object(member)) => member,
        _ => Map::new(),
    }
}

fn put(object: &mut Object, name: &str, value: Option<Value>) {
    if let Some(value) = value {
        object.insert(name, value);
    }
}

/// Returns a string member; `""` if the member is absent, `None` if it has another type.
fn text<'a>(object: &'a Object, name: &str) -> Option<&'a str> {
    match object.get(name) {
        None | Some(Value::Null) => Some(""),
        Some(text) => text.as_str(),
    }
}

/// Returns a quantity; `Some(None)` if the member is absent, `None` if it is invalid.
fn quantity(object: &Object, name: &str) -> Option<Option<Value>> {
    let Some(mut amount) = object.get(name).filter(|amount| !amount.is_null()).cloned() else { return Some(None) };
    quantities::canonicalize(&mut amount).ok()?;
    Some(Some(amount))
}

/// Returns a whole number; `Some(None)` if the member is absent, `None` if it is invalid.
fn number(object: &Object, name: &str) -> Option<Option<Value>> {
    match object.get(name).filter(|number| !number.is_null()) {
        None => Some(None),
        Some(number) => Some(Some(whole(number)?)),
    }
}

/// Returns an integer in the range of `i32`. `None` for other values.
fn whole(number: &Value) -> Option<Value> {
    i32::try_from(number.as_i64()?).ok().map(Value::from)
}

fn is_zero(amount: &Value) -> bool {
    amount.as_str().is_some_and(|amount| quantities::compare(amount, "0") == Some(std::cmp::Ordering::Equal))
}
