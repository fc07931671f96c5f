//! Event (`v1`): a report about an object. `events.k8s.io/v1` is its second version ([`super::event_v1`]).
//!
//! Source: `pkg/registry/core/event/strategy.go`, `pkg/apis/core/validation/events.go`. Errors name the fields of
//! `v1`, the stored version, as in kube-apiserver.

use listwatch_meta::FieldError;
use listwatch_meta::selector::{validate_dns_subdomain, validate_qualified_name};
use listwatch_validation::names::NameRule;
use listwatch_validation::{Errors, Object, child, given, quoted, text};

use crate::defaults::Default::Empty;
use crate::defaults::{BLANK, Defaults, NULL};
use crate::{Field, Kind};
use listwatch_printers::text::or;
use listwatch_printers::{Cell, Column};
use listwatch_printers::{Printed, Printer};

pub(crate) static KIND: Kind = Kind {
    short_names: &["ev"],
    names: NameRule::PathSegment,
    create_on_update: true,
    ttl_seconds: Some(3600),
    fields: &[
        Field::new("involvedObject.kind"),
        Field::new("involvedObject.namespace"),
        Field::new("involvedObject.name"),
        Field::new("involvedObject.uid"),
        Field::new("involvedObject.apiVersion"),
        Field::new("involvedObject.resourceVersion"),
        Field::new("involvedObject.fieldPath"),
        Field::new("reason"),
        Field::new("reportingComponent"),
        Field {
            label: "source",
            path: "source.component",
            default: "",
            or_field: Some("reportingComponent"),
            ..Field::new("source")
        },
        Field::new("type"),
    ],
    defaults: &DEFAULTS,
    validate,
    printer: &PRINTER,
    ..Kind::namespaced("", "v1", "events", "Event")
};

/// The largest size of the action, the reason and the reporting instance, in bytes (`ActionLengthLimit`,
/// `ReasonLengthLimit`, `ReportingInstanceLengthLimit`).
const TEXT_BYTES_MAX: usize = 128;

/// The largest size of the note, in bytes (`NoteLengthLimit`).
const NOTE_BYTES_MAX: usize = 1024;

const OTHER_NAMESPACE: &str = "does not match event.namespace";

static DEFAULTS: Defaults = Defaults(&[
    ("source", Empty),
    ("firstTimestamp", NULL),
    ("lastTimestamp", NULL),
    ("eventTime", NULL),
    ("reportingComponent", BLANK),
    ("reportingInstance", BLANK),
]);

/// Validates an event (`legacyValidateEvent`). An `eventTime` marks events in the form of `events.k8s.io/v1`.
fn validate(event: &Object, _: Option<&Object>, errors: &mut Errors) {
    let namespace = event.get("metadata").and_then(|metadata| metadata.get("namespace")?.as_str()).unwrap_or_default();
    let about = text(child(event, "involvedObject"), "namespace");
    let other_namespace = || FieldError::invalid("involvedObject.namespace", quoted(about), OTHER_NAMESPACE);
    if given(event, "eventTime").is_none() {
        let fits = if about.is_empty() { matches!(namespace, "" | "default") } else { namespace == about };
        if !fits {
            errors.push(other_namespace());
        }
    } else {
        if about.is_empty() && !matches!(namespace, "default" | "kube-system") {
            errors.push(other_namespace());
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
            validate_length(event, name, TEXT_BYTES_MAX, errors);
        }
        validate_length(event, "message", NOTE_BYTES_MAX, errors);
    }
    if let Err(why) = validate_dns_subdomain(namespace) {
        errors.push(FieldError::invalid("namespace", quoted(namespace), why));
    }
}

fn validate_length(event: &Object, name: &str, bytes_max: usize, errors: &mut Errors) {
    if text(event, name).len() > bytes_max {
        errors.push(FieldError::invalid(name, "\"\"", format_args!("can have at most {bytes_max} characters")));
    }
}

static PRINTER: Printer = Printer {
    columns: &[
        Column::text("Last Seen", "When this was last seen."),
        Column::text("Type", "Normal or Warning."),
        Column::text("Reason", "Why this happened, in one word."),
        Column::text("Object", "The object that this is about."),
        Column::wide("Subobject", "The part of the object that this is about."),
        Column::wide("Source", "Who reports this."),
        Column::text("Message", "What happened."),
        Column::wide("First Seen", "When this was first seen."),
        Column::wide("Count", "How often this was seen."),
        Column::naming("Name", "The name of the event.", 1),
    ],
    cells,
};

fn cells(event: Printed<'_>) -> Vec<Cell> {
    let timestamps = ["firstTimestamp", "eventTime"].map(|key| event.get(key));
    let first = event.since(if timestamps[0].time().is_some() { timestamps[0] } else { timestamps[1] });
    let series = event.get("series");
    let last = event.get("lastTimestamp");
    let last = match (series.exists(), last.time()) {
        (true, _) => event.since(series.get("lastObservedTime")),
        (false, Some(_)) => event.since(last),
        (false, None) => first.clone(),
    };
    let count = match series.exists() {
        true => series.get("count").int().unwrap_or(0),
        // An absent count means 1.
        false => event.get("count").int().filter(|count| *count != 0).unwrap_or(1),
    };
    let about = event.get("involvedObject");
    let mut target = about.get("kind").string().to_lowercase();
    if let Some(name) = about.get("name").text().filter(|name| !name.is_empty()) {
        target = format!("{target}/{name}");
    }
    let either = |path: &str, fallback: &str| or(event.at(path).string(), &event.get(fallback).string());
    let source = match either("source.host", "reportingInstance").as_str() {
        "" => either("source.component", "reportingComponent"),
        host => format!("{}, {host}", either("source.component", "reportingComponent")),
    };
    vec![
        last.into(),
        event.get("type").string().into(),
        event.get("reason").string().into(),
        target.into(),
        about.get("fieldPath").string().into(),
        source.into(),
        event.get("message").string().trim().into(),
        first.into(),
        count.into(),
        event.name().into(),
    ]
}
