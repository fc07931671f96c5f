//! Events (`pkg/apis/core/validation/events.go`): what any event has to be, and what those written by
//! `events.k8s.io/v1` have to be besides. Errors name the fields of `v1`, in which events are stored, as
//! kube-apiserver's do.

use listwatch_meta::FieldError;
use listwatch_meta::selector::{validate_dns_subdomain, validate_qualified_name};
use serde_json::Value;

use listwatch_validation::{Errors, Object, child, given, number, quoted, text};

/// `ActionLengthLimit`, `ReasonLengthLimit` and `ReportingInstanceLengthLimit`, in bytes.
const TEXT_BYTES_MAX: usize = 128;
/// `NoteLengthLimit`, in bytes.
const NOTE_BYTES_MAX: usize = 1024;

const ELSEWHERE: &str = "does not match event.namespace";

/// What a write through `events.k8s.io/v1` may not change.
const IMMUTABLE: [&str; 13] = [
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

/// `legacyValidateEvent`: events with an `eventTime` are of the new kind.
pub(crate) fn event(event: &Object, _: Option<&Object>, errors: &mut Errors) {
    let namespace = event.get("metadata").and_then(|metadata| metadata.get("namespace")?.as_str()).unwrap_or_default();
    let about = text(child(event, "involvedObject"), "namespace");
    let elsewhere = || FieldError::invalid("involvedObject.namespace", quoted(about), ELSEWHERE);
    if given(event, "eventTime").is_none() {
        let fits = if about.is_empty() { matches!(namespace, "" | "default") } else { namespace == about };
        if !fits {
            errors.push(elsewhere());
        }
    } else {
        if about.is_empty() && !matches!(namespace, "default" | "kube-system") {
            errors.push(elsewhere());
        }
        let reporter = text(event, "reportingComponent");
        if reporter.is_empty() {
            errors.push(FieldError::required("reportingComponent", ""));
        }
        if let Err(problems) = validate_qualified_name(reporter) {
            for problem in problems.split("; ") {
                errors.push(FieldError::invalid("reportingComponent", quoted(reporter), problem));
            }
        }
        for name in ["reportingInstance", "action", "reason"] {
            if text(event, name).is_empty() {
                errors.push(FieldError::required(name, ""));
            }
            no_longer_than(event, name, TEXT_BYTES_MAX, errors);
        }
        no_longer_than(event, "message", NOTE_BYTES_MAX, errors);
    }
    if let Err(why) = validate_dns_subdomain(namespace) {
        errors.push(FieldError::invalid("namespace", quoted(namespace), why));
    }
}

fn no_longer_than(event: &Object, name: &str, bytes_max: usize, errors: &mut Errors) {
    if text(event, name).len() > bytes_max {
        errors.push(FieldError::invalid(name, "\"\"", format_args!("can have at most {bytes_max} characters")));
    }
}

/// What an event has to be that is created through `events.k8s.io/v1`.
pub(crate) fn created(event: &Object, errors: &mut Errors) {
    name_the_field_asked_for(errors);
    series(event, errors);
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

/// What an update through `events.k8s.io/v1` may do.
pub(crate) fn updated(new: &Object, old: &Object, errors: &mut Errors) {
    name_the_field_asked_for(errors);
    if given(new, "series") != given(old, "series") {
        series(new, errors);
    }
    let (before_time, after_time) = IMMUTABLE.split_at(9);
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

/// Both validations name the reporter as the version that was asked for does.
fn name_the_field_asked_for(errors: &mut Errors) {
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

/// The time of an event without what is finer than a microsecond, which some clients cut off.
fn microseconds(event: &Object) -> Option<i128> {
    let time = listwatch_validation::clock::parse_timestamp(text(event, "eventTime"))?;
    Some(time.unix_timestamp_nanos().div_euclid(1000))
}

/// `validateV1EventSeries`.
fn series(event: &Object, errors: &mut Errors) {
    let Some(Value::Object(series)) = given(event, "series") else { return };
    if number(series, "count").unwrap_or(0) < 2 {
        errors.push(FieldError::invalid("series.count", "\"\"", "should be at least 2"));
    }
    if given(series, "lastObservedTime").is_none() {
        errors.push(FieldError::required("series.lastObservedTime", ""));
    }
}
