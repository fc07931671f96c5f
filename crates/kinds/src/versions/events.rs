//! `events.k8s.io/v1` Event beside `v1` Event (`pkg/apis/events/v1/conversion.go`). The same fields under
//! other names; what only reporters of the old version fill in is called deprecated.

use listwatch_meta::SelectableField;
use serde_json::{Map, Value, json};

use super::SecondVersion;
use listwatch_validation::names::NameRule;

pub(crate) static V1: SecondVersion = SecondVersion {
    group: "events.k8s.io",
    version: "v1",
    of: ("", "v1", "events"),
    kind: "Event",
    behind: "apps",
    names: NameRule::Subdomain,
    label: Some(label),
    // What it fills in is what its fields are printed as, and that is for `show` to know.
    default: |_| {},
    show,
    keep,
    validate: |object, old, errors| match old {
        None => crate::validate::events::created(object, errors),
        Some(old) => crate::validate::events::updated(object, old, errors),
    },
    convert: |object, api_version| V1.converted(object, api_version),
};

/// `v1` and `events.k8s.io/v1`, in the order in which the latter prints its fields.
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

/// The order in which `v1` prints its fields, as positions in [`NAMES`].
const STORED_ORDER: [usize; 17] = [0, 1, 2, 9, 8, 11, 13, 14, 15, 16, 12, 3, 4, 7, 10, 5, 6];

/// `AddFieldLabelConversionsForEvent`.
fn label(field: &SelectableField) -> Option<String> {
    match field.label.as_str() {
        "reason" | "type" => Some(field.label.clone()),
        "reportingComponent" => Some("reportingController".to_owned()),
        label => Some(format!("regarding.{}", label.strip_prefix("involvedObject.")?)),
    }
}

fn show(stored: Map<String, Value>) -> Map<String, Value> {
    let mut shown = renamed(stored, NAMES, |name| match name {
        "eventTime" | "deprecatedFirstTimestamp" | "deprecatedLastTimestamp" => Some(Value::Null),
        "regarding" | "deprecatedSource" => Some(json!({})),
        _ => None,
    });
    series(&mut shown, true);
    shown
}

fn keep(shown: Map<String, Value>) -> Map<String, Value> {
    let names = STORED_ORDER.map(|at| (NAMES[at].1, NAMES[at].0));
    let mut kept = renamed(shown, names, |name| match name {
        "eventTime" | "firstTimestamp" | "lastTimestamp" => Some(Value::Null),
        "involvedObject" | "source" => Some(json!({})),
        "reportingComponent" | "reportingInstance" => Some(json!("")),
        _ => None,
    });
    series(&mut kept, false);
    kept
}

/// An event under other names, in their order; `zero` says what is printed where there is nothing.
fn renamed(
    mut event: Map<String, Value>,
    names: [(&str, &str); NAMES.len()],
    zero: fn(&str) -> Option<Value>,
) -> Map<String, Value> {
    let member = |(old, new): (&str, &str)| {
        let given = event.get_mut(old).map(Value::take).filter(|value| !is_zero(value));
        Some((new.to_owned(), given.or_else(|| zero(new))?))
    };
    names.into_iter().filter_map(member).collect()
}

/// A zero, which Go leaves out of what it prints.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        _ => false,
    }
}

/// A series says its count and time even where they are zeros; in `v1` a count of zero is left out.
fn series(event: &mut Map<String, Value>, always: bool) {
    let Some(Value::Object(series)) = event.get_mut("series") else { return };
    let count = series.shift_remove("count").filter(|count| always || !is_zero(count));
    let time = series.shift_remove("lastObservedTime");
    if let Some(count) = count.or(always.then(|| json!(0))) {
        series.insert("count".to_owned(), count);
    }
    series.insert("lastObservedTime".to_owned(), time.unwrap_or(Value::Null));
}
