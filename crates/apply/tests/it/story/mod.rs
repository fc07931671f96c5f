//! Runs scenarios of writes to one object. Scenarios are JSON, so that Kubernetes' field manager
//! can also run them.

use listwatch_apply::{ApplyError, Kind, Path, Set, Typing, Writer};
use listwatch_json::{Map, Value, json};
use time::{Duration, OffsetDateTime};

/// The outcome of one write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// The write was rejected with this message.
    Refused(String),
    /// The object without empty values, and its owners, ordered by their JSON.
    Written { object: Value, managed: Vec<Value> },
}

/// Runs a scenario: `{"apiVersion", "kind", "steps": [{"op": "apply"|"update", "manager", "force",
/// "sub", "object"}]}`. A write to the object keeps its status; one to `"sub": "status"` keeps its
/// spec.
pub(crate) fn run_scenario(story: &Value) -> Vec<Outcome> {
    let text = |of: &Value, name: &str| of[name].as_str().unwrap_or_default().to_owned();
    let (api_version, name) = (text(story, "apiVersion"), text(story, "kind"));
    let kind = Kind::built_in(&api_version, &name, Typing::of_built_in(&api_version, &name).unwrap());
    let mut live: Option<Value> = None;
    let mut now = OffsetDateTime::UNIX_EPOCH;
    let steps = story["steps"].as_array().unwrap();
    steps
        .iter()
        .map(|step| {
            now += Duration::SECOND;
            let (manager, subresource) = (text(step, "manager"), text(step, "sub"));
            let kept = if subresource == "status" { "spec" } else { "status" };
            let reset: Set = [&Path::of_fields(&[kept])].into_iter().collect();
            let by = Writer { manager: &manager, subresource: &subresource, now, reset: &reset };
            let new = if step["op"] == "apply" {
                kind.apply(live.as_ref(), &step["object"], by, step["force"] == true).map(|mut new| {
                    restore(&mut new, live.as_ref(), kept);
                    new
                })
            } else {
                let mut new = step["object"].clone();
                new["apiVersion"] = json!(api_version);
                new["kind"] = json!(name);
                restore(&mut new, live.as_ref(), kept);
                kind.update(live.as_ref(), &mut new, by);
                Ok(new)
            };
            match new {
                Err(error) => Outcome::Refused(error_text(&error)),
                Ok(new) => {
                    let new = live.insert(decoded(new));
                    Outcome::Written { object: shown(new), managed: managed(&new["metadata"]["managedFields"]) }
                }
            }
        })
        .collect()
}

fn error_text(error: &ApplyError) -> String {
    error.to_string()
}

/// Restores the part of the object that a write does not change.
fn restore(new: &mut Value, live: Option<&Value>, part: &str) {
    let new = new.as_object_mut().unwrap();
    match live.and_then(|live| live.get(part)) {
        Some(value) => new.insert(part.to_owned(), value.clone()),
        None => new.shift_remove(part),
    };
}

/// Converts quantities to their canonical form, as decoding in a server does. In the scenarios,
/// only `1000m` differs from its canonical form.
fn decoded(value: Value) -> Value {
    match value {
        Value::Object(members) => members.into_iter().map(|(name, value)| (name, decoded(value))).collect(),
        Value::Array(items) => items.into_iter().map(decoded).collect(),
        Value::String(text) if text == "1000m" => json!("1"),
        other => other,
    }
}

/// The object without managed fields and empty values.
pub(crate) fn shown(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.shift_remove("managedFields");
    }
    bare(&object).unwrap_or_default()
}

fn bare(value: &Value) -> Option<Value> {
    let nothing = match value {
        Value::Object(members) => {
            let some: Map = members.iter().filter_map(|(name, value)| Some((name.clone(), bare(value)?))).collect();
            return (!some.is_empty()).then_some(Value::Object(some));
        }
        Value::Array(items) => {
            let all = items.iter().map(|item| bare(item).unwrap_or_default());
            return (!items.is_empty()).then(|| all.collect());
        }
        Value::Null => true,
        Value::Bool(set) => !set,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
    };
    (!nothing).then(|| value.clone())
}

/// The owners without times.
pub(crate) fn managed(entries: &Value) -> Vec<Value> {
    let mut all: Vec<Value> = entries.as_array().cloned().unwrap_or_default();
    for entry in all.iter_mut().filter_map(Value::as_object_mut) {
        entry.shift_remove("time");
        entry.shift_remove("fieldsType");
        if entry.get("subresource").is_some_and(|name| name == "") {
            entry.shift_remove("subresource");
        }
    }
    all.sort_by_cached_key(|entry| {
        ["manager", "operation", "subresource"].map(|name| entry[name].as_str().unwrap_or_default().to_owned())
    });
    all
}
