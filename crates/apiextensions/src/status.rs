//! Writes conditions and accepted names to the status of a definition.
//!
//! Source: `apiextensions-apiserver/pkg/apihelpers/helpers.go`, `apiextensions-apiserver/pkg/controller/status`.

use listwatch_json::{Map, Value, json};

use crate::definition::{Condition, Names};
use listwatch_kinds::conditions::{self, NewCondition};

/// Creates a condition of the type `kind`. `truth` becomes its status, `True` or `False`.
pub fn condition(kind: &str, truth: bool, reason: &str, message: impl Into<String>) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: if truth { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: message.into(),
    }
}

/// Sets a condition in the status. `lastTransitionTime` becomes `now` (RFC 3339) only if the status of the condition
/// changes (`SetCRDCondition`).
pub fn set_condition(definition: &mut Map, condition: &Condition, now: &str) {
    let conditions = status_mut(definition).entry("conditions").or_insert(Value::Null);
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Value::Array(conditions) = conditions else { return };
    let Condition { kind, status, reason, message } = condition;
    conditions::set(conditions, NewCondition { kind, status, reason, message }, now);
}

/// Removes the condition of the type `kind` from the status (`RemoveCRDCondition`).
pub fn remove_condition(definition: &mut Map, kind: &str) {
    if let Some(Value::Array(conditions)) = definition.get_mut("status").and_then(|status| status.get_mut("conditions"))
    {
        conditions.retain(|condition| condition.get("type").is_none_or(|present| present != kind));
    }
}

/// Sets `status.acceptedNames`.
pub fn set_accepted(definition: &mut Map, names: &Names) {
    let Names { plural, singular, short_names, kind, list_kind, categories } = names;
    let mut accepted = Map::new();
    let mut put = |name: &str, value: Value, always: bool| {
        let empty = value.as_str().is_some_and(str::is_empty) || value.as_array().is_some_and(Vec::is_empty);
        if always || !empty {
            accepted.insert(name, value);
        }
    };
    put("plural", json!(plural), true);
    put("singular", json!(singular), false);
    put("shortNames", json!(short_names), false);
    put("kind", json!(kind), true);
    put("listKind", json!(list_kind), false);
    put("categories", json!(categories), false);
    status_mut(definition).insert("acceptedNames", Value::Object(accepted));
}

/// Returns the status. A status that is missing or not an object is replaced by an empty object.
fn status_mut(definition: &mut Map) -> &mut Map {
    let status = definition.entry("status").or_insert_with(|| json!({}));
    if !status.is_object() {
        *status = json!({});
    }
    match status {
        Value::Object(status) => status,
        _ => unreachable!("the status was made an object"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transition_time_of_a_condition_changes_only_with_its_status() {
        let mut tree = Map::new();
        tree.insert("status", json!({"conditions": null}));
        set_condition(&mut tree, &condition("Established", false, "Installing", "a"), "t1");
        set_condition(&mut tree, &condition("Established", false, "Installing", "b"), "t2");
        assert_eq!(tree["status"]["conditions"][0]["lastTransitionTime"], "t1", "the status did not change");
        assert_eq!(tree["status"]["conditions"][0]["message"], "b");
        set_condition(&mut tree, &condition("Established", true, "InitialNamesAccepted", "c"), "t3");
        assert_eq!(tree["status"]["conditions"][0]["lastTransitionTime"], "t3");
    }

    #[test]
    fn only_the_condition_of_the_given_type_is_removed() {
        let mut tree = Map::new();
        remove_condition(&mut tree, "NonStructuralSchema");
        tree.insert("status", json!({"conditions": [{"type": "NonStructuralSchema"}, {"type": "Established"}]}));
        remove_condition(&mut tree, "NonStructuralSchema");
        assert_eq!(tree["status"]["conditions"], json!([{"type": "Established"}]));
    }

    #[test]
    fn empty_optional_names_are_omitted() {
        let mut tree = Map::new();
        set_accepted(&mut tree, &Names::default());
        assert_eq!(tree["status"]["acceptedNames"], json!({"plural": "", "kind": ""}));
    }
}
