//! Event (`events.k8s.io/v1`): the second version of [`super::event`]. The fields are those of `v1` under other names.
//! Names of fields that only reporters of `v1` set begin with `deprecated`.
//!
//! Source: `pkg/apis/events/v1/conversion.go`, `pkg/apis/core/validation/events.go`.

use listwatch_json::{Map, Value, json};
use listwatch_meta::{FieldError, SelectableField};
use listwatch_validation::names::NameRule;
use listwatch_validation::{Errors, Object, child, given, number, text};

use crate::versions::SecondVersion;

pub(crate) static V1: SecondVersion = SecondVersion {
    group: "events.k8s.io",
    version: "v1",
    stored: ("", "v1", "events"),
    kind: "Event",
    after_group: "apps",
    names: NameRule::Subdomain,
    label: Some(label),
    // `to_events_v1` adds zero values. This version has no other defaults.
    apply_defaults: |_| {},
    from_stored: to_events_v1,
    to_stored: to_core_v1,
    validate: |object, old, errors| match old {
        None => validate_new(object, errors),
        Some(old) => validate_change(object, old, errors),
    },
    convert: |object, api_version| V1.convert_to(object, api_version),
};

/// The names of fields in `v1` and in `events.k8s.io/v1`, in the order in which Go prints the latter.
const NAMES: [(&str, &str); 17] = [
    ("kind", "kind"),
    ("apiVersion", "apiVersion"),
    ("metadata", "metadata"),
    ("eventTime", "eventTime"),
    ("series", "series"),
    ("reportingComponent", "reportingController"),
    ("reportingInstance", "reportingInstance"),
    ("action", "action"),
    ("reason", "reason"),
    ("involvedObject", "regarding"),
    ("related", "related"),
    ("message", "note"),
    ("type", "type"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// The order in which Go prints the fields of `v1`, as positions in [`NAMES`].
const STORED_ORDER: [usize; 17] = [0, 1, 2, 9, 8, 11, 13, 14, 15, 16, 12, 3, 4, 7, 10, 5, 6];

/// The label of a selectable field (`AddFieldLabelConversionsForEvent`).
fn label(field: &SelectableField) -> Option<String> {
    match field.label.as_str() {
        "reason" | "type" => Some(field.label.clone()),
        "reportingComponent" => Some("reportingController".to_owned()),
        label => Some(format!("regarding.{}", label.strip_prefix("involvedObject.")?)),
    }
}

fn to_events_v1(stored: Map) -> Map {
    let mut converted = renamed(stored, NAMES, |name| match name {
        "eventTime" | "deprecatedFirstTimestamp" | "deprecatedLastTimestamp" => Some(Value::Null),
        "regarding" | "deprecatedSource" => Some(json!({})),
        _ => None,
    });
    print_series(&mut converted, true);
    converted
}

fn to_core_v1(event: Map) -> Map {
    let names = STORED_ORDER.map(|at| (NAMES[at].1, NAMES[at].0));
    let mut converted = renamed(event, names, |name| match name {
        "eventTime" | "firstTimestamp" | "lastTimestamp" => Some(Value::Null),
        "involvedObject" | "source" => Some(json!({})),
        "reportingComponent" | "reportingInstance" => Some(json!("")),
        _ => None,
    });
    print_series(&mut converted, false);
    converted
}

/// Renames the members of an event and sorts them in the order of `names`. `zero` returns the value that Go prints for
/// an absent member.
fn renamed(mut event: Map, names: [(&str, &str); NAMES.len()], zero: fn(&str) -> Option<Value>) -> Map {
    let member = |(old, new): (&str, &str)| {
        let given = event.get_mut(old).map(Value::take).filter(|value| !is_omitted(value));
        Some((new.to_owned(), given.or_else(|| zero(new))?))
    };
    names.into_iter().filter_map(member).collect()
}

/// Whether Go omits the value (`omitempty`).
fn is_omitted(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        _ => false,
    }
}

/// Orders the members of a series as Go prints them. `always` is true if Go prints a count of 0.
fn print_series(event: &mut Map, always: bool) {
    let Some(Value::Object(series)) = event.get_mut("series") else { return };
    let count = series.shift_remove("count").filter(|count| always || !is_omitted(count));
    let time = series.shift_remove("lastObservedTime");
    if let Some(count) = count.or(always.then(|| json!(0))) {
        series.insert("count", count);
    }
    series.insert("lastObservedTime", time.unwrap_or(Value::Null));
}

/// The fields that a write through `events.k8s.io/v1` cannot change, in upstream's order.
const IMMUTABLE_FIELDS: [&str; 13] = [
    "involvedObject",
    "reason",
    "message",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "reason",
    "type",
    "action",
    "related",
    "reportingComponent",
    "reportingInstance",
];

/// Validates an event that is created through `events.k8s.io/v1`, after the rules of the stored version.
fn validate_new(event: &Object, errors: &mut Errors) {
    name_requested_field(errors);
    validate_series(event, errors);
    if given(event, "eventTime").is_none() {
        errors.push(FieldError::required("eventTime", ""));
    }
    let kind = text(event, "type");
    if !matches!(kind, "Normal" | "Warning") {
        errors.push(FieldError::invalid("type", "\"\"", format_args!("has invalid value: {kind}")));
    }
    let mut unset = |name: &str, set: bool| {
        if set {
            errors.push(FieldError::invalid(name, "\"\"", "needs to be unset"));
        }
    };
    unset("firstTimestamp", given(event, "firstTimestamp").is_some());
    unset("lastTimestamp", given(event, "lastTimestamp").is_some());
    unset("count", number(event, "count").unwrap_or(0) != 0);
    let source = child(event, "source");
    unset("source", !text(source, "component").is_empty() || !text(source, "host").is_empty());
}

/// Validates an update through `events.k8s.io/v1`, after the rules of the stored version.
fn validate_change(new: &Object, old: &Object, errors: &mut Errors) {
    name_requested_field(errors);
    if given(new, "series") != given(old, "series") {
        validate_series(new, errors);
    }
    let (before_time, after_time) = IMMUTABLE_FIELDS.split_at(9);
    let mut keep = |name: &str| {
        let value = |event: &Object| given(event, name).filter(|value| !is_zero(value)).cloned();
        if value(new) != value(old) {
            let field = if name == "reportingComponent" { "reportingController" } else { name };
            let shown = value(new).unwrap_or(Value::Null);
            errors.push(FieldError::invalid(field, shown, "field is immutable"));
        }
    };
    before_time.iter().for_each(|name| keep(name));
    if microseconds(new) != microseconds(old) {
        keep("eventTime");
    }
    after_time.iter().for_each(|name| keep(name));
}

/// Replaces the reporter's field name in earlier errors by its name in this version.
fn name_requested_field(errors: &mut Errors) {
    for error in errors.iter_mut().filter(|error| error.field == "reportingComponent") {
        "reportingController".clone_into(&mut error.field);
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        _ => false,
    }
}

/// The time of an event in microseconds. Some clients truncate finer digits.
fn microseconds(event: &Object) -> Option<i128> {
    let time = listwatch_validation::clock::parse_timestamp(text(event, "eventTime"))?;
    Some(time.unix_timestamp_nanos().div_euclid(1000))
}

/// Validates a series (`validateV1EventSeries`).
fn validate_series(event: &Object, errors: &mut Errors) {
    let Some(Value::Object(series)) = given(event, "series") else { return };
    if number(series, "count").unwrap_or(0) < 2 {
        errors.push(FieldError::invalid("series.count", "\"\"", "should be at least 2"));
    }
    if given(series, "lastObservedTime").is_none() {
        errors.push(FieldError::required("series.lastObservedTime", ""));
    }
}
