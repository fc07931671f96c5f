//! `autoscaling/v1` HorizontalPodAutoscaler beside `autoscaling/v2` (`pkg/apis/autoscaling/v1/conversion.go`).
//! The old version knows one metric, the utilization of CPU; the others, the behavior and the conditions
//! stand in annotations there, as JSON, so that a client of the old version that writes back what it read
//! loses nothing.

use serde_json::{Map, Value, json};

use super::{SecondVersion, moved};
use listwatch_validation::names::NameRule;
use listwatch_validation::quantities;

pub(crate) static V1: SecondVersion = SecondVersion {
    group: "autoscaling",
    version: "v1",
    of: ("autoscaling", "v2", "horizontalpodautoscalers"),
    kind: "HorizontalPodAutoscaler",
    behind: "autoscaling",
    names: NameRule::Subdomain,
    // Neither version has labels of its own.
    label: None,
    default: |object| {
        let spec = object.entry("spec").or_insert_with(|| json!({}));
        if let Some(spec) = spec.as_object_mut() {
            spec.entry("minReplicas").or_insert_with(|| json!(1));
        }
    },
    show,
    keep,
    validate: |_, _, _| {},
    convert: |object, api_version| V1.converted(object, api_version),
};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";

/// What carries fields from version to version, and is no annotation in the newest.
const CARRIERS: [&str; 6] = [
    METRICS,
    BEHAVIOR,
    "autoscaling.alpha.kubernetes.io/scale-down-tolerance",
    "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
    CURRENT_METRICS,
    CONDITIONS,
];

/// What is wanted where nothing is (`DefaultCPUUtilization`), in per cent.
const CPU_UTILIZATION: i64 = 80;

/// Takes out the annotations that only the old version has.
pub(crate) fn drop_carriers(object: &mut Map<String, Value>) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else { return };
    annotations.retain(|name, _| !CARRIERS.contains(&name.as_str()));
    if annotations.is_empty() {
        metadata.shift_remove("annotations");
    }
}

fn show(stored: Map<String, Value>) -> Map<String, Value> {
    let mut shown = moved(
        stored,
        &[
            ("kind", "kind"),
            ("apiVersion", "apiVersion"),
            ("metadata", "metadata"),
            ("spec", "spec"),
            ("status", "status"),
        ],
    );
    drop_carriers(&mut shown);
    let spec = taken(&mut shown, "spec");
    let status = taken(&mut shown, "status");
    let mut carried: Vec<(&str, Value)> = Vec::new();

    let metrics = list(&spec, "metrics");
    let others: Vec<Value> = metrics
        .iter()
        .filter(|metric| utilization(metric).is_none())
        .filter_map(|m| metric(m, Way::Old, "Source"))
        .collect();
    let wanted = metrics.iter().find_map(utilization).cloned();
    if !others.is_empty() {
        carried.push((METRICS, Value::Array(others)));
    }
    let current = list(&status, "currentMetrics");
    if !current.is_empty() {
        let all = current.iter().filter_map(|m| metric(m, Way::Old, "Status")).collect();
        carried.push((CURRENT_METRICS, Value::Array(all)));
    }
    if let Some(Value::Object(behavior)) = spec.get("behavior") {
        carried.push((BEHAVIOR, internal_behavior(behavior)));
    }
    let conditions = list(&status, "conditions");
    if !conditions.is_empty() {
        carried.push((CONDITIONS, conditions.iter().map(condition).collect()));
    }
    carry(&mut shown, carried);

    let in_use = current.iter().rev().find_map(current_utilization).cloned();
    let mut spec = moved(
        spec,
        &[("scaleTargetRef", "scaleTargetRef"), ("minReplicas", "minReplicas"), ("maxReplicas", "maxReplicas")],
    );
    put(&mut spec, "targetCPUUtilizationPercentage", wanted);
    shown.insert("spec".to_owned(), Value::Object(spec));
    let names = ["observedGeneration", "lastScaleTime", "currentReplicas", "desiredReplicas"];
    let mut status = moved(status, &names.map(|name| (name, name)));
    for always in ["currentReplicas", "desiredReplicas"] {
        status.entry(always).or_insert_with(|| json!(0));
    }
    put(&mut status, "currentCPUUtilizationPercentage", in_use);
    shown.insert("status".to_owned(), Value::Object(status));
    shown
}

fn keep(mut shown: Map<String, Value>) -> Map<String, Value> {
    let carried = |name: &str| -> Option<Value> {
        let text = shown.get("metadata")?.get("annotations")?.get(name)?.as_str()?;
        serde_json::from_str(text).ok()
    };
    let all = |name: &str, what: &str| -> Option<Vec<Value>> {
        match carried(name)? {
            Value::Null => Some(Vec::new()),
            // One that cannot be read makes nothing of them all.
            Value::Array(metrics) => metrics.iter().map(|m| metric(m, Way::New, what)).collect(),
            _ => None,
        }
    };
    let others = all(METRICS, "Source");
    let current = all(CURRENT_METRICS, "Status");
    let behavior = carried(BEHAVIOR).and_then(|behavior| external_behavior(&behavior));
    let conditions = carried(CONDITIONS).filter(|list| {
        list.as_array().is_some_and(|list| list.iter().all(|condition| condition.as_object().is_some_and(is_condition)))
    });
    drop_carriers(&mut shown);

    let (spec, status) = (taken(&mut shown, "spec"), taken(&mut shown, "status"));
    let wanted = spec.get("targetCPUUtilizationPercentage").filter(|wanted| !wanted.is_null());
    let mut metrics = others.unwrap_or_default();
    metrics.extend(wanted.map(|wanted| of_cpu("target", json!({"type": "Utilization", "averageUtilization": wanted}))));
    if metrics.is_empty() {
        metrics.push(of_cpu("target", json!({"type": "Utilization", "averageUtilization": CPU_UTILIZATION})));
    }
    let in_use = status.get("currentCPUUtilizationPercentage").filter(|in_use| !in_use.is_null());
    let current =
        current.or_else(|| in_use.map(|in_use| vec![of_cpu("current", json!({"averageUtilization": in_use}))]));

    let mut spec = moved(
        spec,
        &[("scaleTargetRef", "scaleTargetRef"), ("minReplicas", "minReplicas"), ("maxReplicas", "maxReplicas")],
    );
    spec.insert("metrics".to_owned(), Value::Array(metrics));
    put(&mut spec, "behavior", behavior);
    shown.insert("spec".to_owned(), Value::Object(spec));
    let names = ["observedGeneration", "lastScaleTime", "currentReplicas", "desiredReplicas"];
    let mut status = moved(status, &names.map(|name| (name, name)));
    if status.get("currentReplicas").is_some_and(|count| count == 0) {
        status.shift_remove("currentReplicas");
    }
    status.entry("desiredReplicas").or_insert_with(|| json!(0));
    status.insert("currentMetrics".to_owned(), current.map_or(Value::Null, Value::Array));
    put(&mut status, "conditions", conditions.filter(|list| list.as_array().is_some_and(|list| !list.is_empty())));
    shown.insert("status".to_owned(), Value::Object(status));
    shown
}

fn of_cpu(member: &str, value: Value) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu", member: value}})
}

/// The utilization that a metric of the new version wants of CPU.
fn utilization(metric: &Value) -> Option<&Value> {
    cpu(metric)?.get("target")?.get("averageUtilization").filter(|wanted| !wanted.is_null())
}

/// The utilization of CPU that a metric of the new version saw.
fn current_utilization(metric: &Value) -> Option<&Value> {
    cpu(metric)?.get("current")?.get("averageUtilization").filter(|seen| !seen.is_null())
}

fn cpu(metric: &Value) -> Option<&Value> {
    let resource = metric.get("resource").filter(|_| metric.get("type").is_some_and(|of| of == "Resource"))?;
    (resource.get("name")? == "cpu").then_some(resource)
}

/// Which way a metric goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Old,
    New,
}

/// A metric, wanted (`Source`) or seen (`Status`), in the form of the other version; `None` when it cannot be
/// read.
fn metric(metric: &Value, way: Way, what: &str) -> Option<Value> {
    let metric = metric.as_object()?;
    let mut other = Map::new();
    other.insert("type".to_owned(), json!(text(metric, "type")?));
    for of in ["object", "pods", "resource", "containerResource", "external"] {
        let Some(source) = metric.get(of).filter(|source| !source.is_null()) else { continue };
        let source = source.as_object()?;
        let converted = match (way, what) {
            (Way::Old, "Source") => old_metric("target", of, source),
            (Way::Old, _) => old_metric("current", of, source),
            (Way::New, "Source") => new_source(of, source)?,
            (Way::New, _) => new_status(of, source)?,
        };
        other.insert(of.to_owned(), Value::Object(converted));
    }
    Some(Value::Object(other))
}

/// A metric's source (`target`) or status (`current`) as the old version has it: the numbers are beside the
/// rest, named after the word.
fn old_metric(word: &str, of: &str, metric: &Map<String, Value>) -> Map<String, Value> {
    let numbers = object(metric, word);
    let identifier = object(metric, "metric");
    // What is seen is a number, where a target may be another one.
    let seen = word == "current";
    let mut old = Map::new();
    let mut set =
        |name: &str, value: Option<&Value>| put(&mut old, name, value.filter(|value| !value.is_null()).cloned());
    let (zero, nothing) = (json!("0"), json!(""));
    let named = |what: &str| format!("{word}{what}");
    let number = |name: &str, needed: bool| numbers.get(name).or(needed.then_some(&zero));
    match of {
        "object" => {
            set("target", Some(&Value::Object(reference(object(metric, "describedObject")))));
            set("metricName", identifier.get("name").or(Some(&nothing)));
            set(&named("Value"), number("value", true));
            set("selector", identifier.get("selector"));
            set("averageValue", number("averageValue", false));
        }
        "pods" => {
            set("metricName", identifier.get("name").or(Some(&nothing)));
            set(&named("AverageValue"), number("averageValue", true));
            set("selector", identifier.get("selector"));
        }
        "external" => {
            set("metricName", identifier.get("name").or(Some(&nothing)));
            set("metricSelector", identifier.get("selector"));
            set(&named("Value"), number("value", seen));
            set(&named("AverageValue"), number("averageValue", false));
        }
        _ => {
            set("name", metric.get("name").or(Some(&nothing)));
            set(&named("AverageUtilization"), number("averageUtilization", false));
            set(&named("AverageValue"), number("averageValue", seen));
            if of == "containerResource" {
                set("container", metric.get("container").or(Some(&nothing)));
            }
        }
    }
    old
}

fn new_source(of: &str, old: &Map<String, Value>) -> Option<Map<String, Value>> {
    let mut new = Map::new();
    let target = match of {
        "object" => {
            let average = quantity(old, "averageValue")?;
            let value = quantity(old, "targetValue")?.or(Some(json!("0")));
            // A value beside an average is only kept where it says something.
            let value = value.filter(|value| average.is_none() || !is_zero(value));
            target(value, average, None)
        }
        "pods" => target(None, quantity(old, "targetAverageValue")?.or(Some(json!("0"))), None),
        "external" => target(quantity(old, "targetValue")?, quantity(old, "targetAverageValue")?, None),
        _ => target(None, quantity(old, "targetAverageValue")?, number(old, "targetAverageUtilization")?),
    };
    identify(of, old, &mut new, "target", target)?;
    Some(new)
}

fn new_status(of: &str, old: &Map<String, Value>) -> Option<Map<String, Value>> {
    let mut new = Map::new();
    let zero = || Some(json!("0"));
    let mut current = Map::new();
    let (value, average, utilization) = match of {
        "object" => (quantity(old, "currentValue")?.or_else(zero), quantity(old, "averageValue")?, None),
        "pods" => (None, quantity(old, "currentAverageValue")?.or_else(zero), None),
        "external" => (quantity(old, "currentValue")?.or_else(zero), quantity(old, "currentAverageValue")?, None),
        _ => (None, quantity(old, "currentAverageValue")?.or_else(zero), number(old, "currentAverageUtilization")?),
    };
    put(&mut current, "value", value);
    put(&mut current, "averageValue", average);
    put(&mut current, "averageUtilization", utilization);
    identify(of, old, &mut new, "current", current)?;
    Some(new)
}

/// Says what a metric of the new version is about, and puts its numbers where they belong.
fn identify(
    of: &str,
    old: &Map<String, Value>,
    new: &mut Map<String, Value>,
    member: &str,
    numbers: Map<String, Value>,
) -> Option<()> {
    let mut set = |name: &str, value: Value| drop(new.insert(name.to_owned(), value));
    if of == "object" {
        let about = match old.get("target") {
            None | Some(Value::Null) => &Map::new(),
            Some(about) => about.as_object()?,
        };
        set("describedObject", Value::Object(reference(about)));
    }
    if matches!(of, "object" | "pods" | "external") {
        let mut metric = Map::new();
        metric.insert("name".to_owned(), json!(text(old, "metricName")?));
        let selector = old.get(if of == "external" { "metricSelector" } else { "selector" });
        match selector {
            None | Some(Value::Null) => {}
            Some(selector) => drop(metric.insert("selector".to_owned(), Value::Object(selector.as_object()?.clone()))),
        }
        set(member, Value::Object(numbers));
        set("metric", Value::Object(metric));
    } else {
        set("name", json!(text(old, "name")?));
        set(member, Value::Object(numbers));
        if of == "containerResource" {
            set("container", json!(text(old, "container")?));
        }
    }
    Some(())
}

/// A `MetricTarget`, whose type follows from what is given.
fn target(value: Option<Value>, average: Option<Value>, utilization: Option<Value>) -> Map<String, Value> {
    let of = match (&value, &average, &utilization) {
        (_, _, Some(_)) => "Utilization",
        (Some(_), None, _) => "Value",
        _ => "AverageValue",
    };
    let mut target = Map::new();
    target.insert("type".to_owned(), json!(of));
    put(&mut target, "value", value);
    put(&mut target, "averageValue", average);
    put(&mut target, "averageUtilization", utilization);
    target
}

/// A `CrossVersionObjectReference` as Go prints it.
fn reference(about: &Map<String, Value>) -> Map<String, Value> {
    let text = |name: &str| about.get(name).and_then(Value::as_str).unwrap_or_default();
    let mut reference = Map::new();
    reference.insert("kind".to_owned(), json!(text("kind")));
    reference.insert("name".to_owned(), json!(text("name")));
    put(&mut reference, "apiVersion", Some(json!(text("apiVersion"))).filter(|version| version != ""));
    reference
}

/// The names of a scaling rule's members, in the order of the internal type, which is what the annotation
/// holds.
const RULE: [(&str, &str); 4] = [
    ("stabilizationWindowSeconds", "StabilizationWindowSeconds"),
    ("selectPolicy", "SelectPolicy"),
    ("policies", "Policies"),
    ("tolerance", "Tolerance"),
];
const POLICY: [(&str, &str); 3] = [("type", "Type"), ("value", "Value"), ("periodSeconds", "PeriodSeconds")];

fn internal_behavior(behavior: &Map<String, Value>) -> Value {
    let named = |members: &Map<String, Value>, names: &[(&str, &str)]| -> Map<String, Value> {
        let member = |name: &str| members.get(name).cloned().unwrap_or_default();
        names.iter().map(|(new, internal)| ((*internal).to_owned(), member(new))).collect()
    };
    let rule = |name: &str| match behavior.get(name) {
        Some(Value::Object(rule)) => {
            let mut internal = named(rule, &RULE);
            if let Some(Value::Array(policies)) = internal.get_mut("Policies") {
                for policy in policies {
                    *policy = policy.as_object().map_or(Value::Null, |it| Value::Object(named(it, &POLICY)));
                }
            }
            Value::Object(internal)
        }
        _ => Value::Null,
    };
    json!({"ScaleUp": rule("scaleUp"), "ScaleDown": rule("scaleDown")})
}

/// A behavior as the annotation has it, in the new version; `None` when it says nothing or cannot be read.
fn external_behavior(behavior: &Value) -> Option<Value> {
    // Go's decoder does not mind case.
    let member = |of: &Map<String, Value>, name: &str| -> Option<Value> {
        let found = of.iter().find(|(key, _)| key.eq_ignore_ascii_case(name))?.1;
        (!found.is_null()).then(|| found.clone())
    };
    let behavior = behavior.as_object()?;
    let mut external = Map::new();
    for name in ["scaleUp", "scaleDown"] {
        let Some(rule) = member(behavior, name) else { continue };
        let rule = rule.as_object()?;
        let mut converted = Map::new();
        if let Some(seconds) = member(rule, "stabilizationWindowSeconds") {
            converted.insert("stabilizationWindowSeconds".to_owned(), whole(&seconds)?);
        }
        if let Some(policy) = member(rule, "selectPolicy") {
            converted.insert("selectPolicy".to_owned(), json!(policy.as_str()?));
        }
        if let Some(policies) = member(rule, "policies") {
            let mut all = Vec::new();
            for policy in policies.as_array()? {
                let policy = policy.as_object()?;
                let count = |name: &str| member(policy, name).map_or(Some(json!(0)), |count| whole(&count));
                let of = member(policy, "type").unwrap_or_else(|| json!(""));
                all.push(
                    json!({"type": of.as_str()?, "value": count("value")?, "periodSeconds": count("periodSeconds")?}),
                );
            }
            converted.insert("policies".to_owned(), Value::Array(all));
        }
        if let Some(mut tolerance) = member(rule, "tolerance") {
            quantities::spell(&mut tolerance).ok()?;
            converted.insert("tolerance".to_owned(), tolerance);
        }
        external.insert(name.to_owned(), Value::Object(converted));
    }
    (!external.is_empty()).then_some(Value::Object(external))
}

/// A condition as Go prints it.
fn condition(condition: &Value) -> Value {
    let mut condition = condition.as_object().cloned().unwrap_or_default();
    let names = ["type", "status", "lastTransitionTime", "reason", "message"];
    condition.entry("lastTransitionTime").or_insert(Value::Null);
    Value::Object(moved(condition, &names.map(|name| (name, name))))
}

fn is_condition(condition: &Map<String, Value>) -> bool {
    ["type", "status", "lastTransitionTime", "reason", "message"]
        .iter()
        .all(|name| condition.get(*name).is_none_or(|value| value.is_string() || value.is_null()))
}

/// Adds what annotations carry, as Go prints it; annotations stand by name.
fn carry(object: &mut Map<String, Value>, carried: Vec<(&str, Value)>) {
    if carried.is_empty() {
        return;
    }
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    let Some(annotations) = annotations.as_object_mut() else { return };
    annotations.extend(carried.iter().map(|(name, value)| ((*name).to_owned(), Value::String(go_json(value)))));
    annotations.sort_keys();
}

/// JSON as `encoding/json` writes it: safe to stand in HTML. Outside of texts none of these characters
/// stands in JSON.
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

fn taken(object: &mut Map<String, Value>, name: &str) -> Map<String, Value> {
    match object.shift_remove(name) {
        Some(Value::Object(member)) => member,
        _ => Map::new(),
    }
}

fn object<'a>(of: &'a Map<String, Value>, name: &str) -> &'a Map<String, Value> {
    static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    of.get(name).and_then(Value::as_object).unwrap_or(&EMPTY)
}

fn list(of: &Map<String, Value>, name: &str) -> Vec<Value> {
    of.get(name).and_then(Value::as_array).cloned().unwrap_or_default()
}

fn put(object: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    if let Some(value) = value {
        object.insert(name.to_owned(), value);
    }
}

/// A text, which may be left out; `None` when it is something else.
fn text<'a>(of: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    match of.get(name) {
        None | Some(Value::Null) => Some(""),
        Some(text) => text.as_str(),
    }
}

/// An amount, if there is one; the outer `None` when it is something else.
fn quantity(of: &Map<String, Value>, name: &str) -> Option<Option<Value>> {
    let Some(mut amount) = of.get(name).filter(|amount| !amount.is_null()).cloned() else { return Some(None) };
    quantities::spell(&mut amount).ok()?;
    Some(Some(amount))
}

/// A number, if there is one; the outer `None` when it is something else.
fn number(of: &Map<String, Value>, name: &str) -> Option<Option<Value>> {
    match of.get(name).filter(|number| !number.is_null()) {
        None => Some(None),
        Some(number) => Some(Some(whole(number)?)),
    }
}

/// A number that fits into 32 bits.
fn whole(number: &Value) -> Option<Value> {
    i32::try_from(number.as_i64()?).ok().map(Value::from)
}

fn is_zero(amount: &Value) -> bool {
    amount.as_str().is_some_and(|amount| quantities::compare(amount, "0") == Some(std::cmp::Ordering::Equal))
}
