//! Writing into the status of a definition, as a tree.

use serde_json::{Map, Value, json};

use super::definition::{Condition, Names};
use crate::conditions::{self, Saying};

/// A condition of a definition.
pub fn condition(kind: &str, truth: bool, reason: &str, message: impl Into<String>) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: if truth { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: message.into(),
    }
}

/// Sets a condition. The time of its last transition moves only when its status does.
pub fn set_condition(definition: &mut Map<String, Value>, condition: &Condition, now: &str) {
    let conditions = member(definition).entry("conditions").or_insert(Value::Null);
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Value::Array(conditions) = conditions else { return };
    let Condition { kind, status, reason, message } = condition;
    conditions::set(conditions, Saying { kind, status, reason, message }, now);
}

/// Sets the names that were accepted.
pub fn set_accepted(definition: &mut Map<String, Value>, names: &Names) {
    let Names { plural, singular, short_names, kind, list_kind, categories } = names;
    let mut accepted = Map::new();
    let mut put = |name: &str, value: Value, always: bool| {
        let empty = value.as_str().is_some_and(str::is_empty) || value.as_array().is_some_and(Vec::is_empty);
        if always || !empty {
            accepted.insert(name.to_owned(), value);
        }
    };
    put("plural", json!(plural), true);
    put("singular", json!(singular), false);
    put("shortNames", json!(short_names), false);
    put("kind", json!(kind), true);
    put("listKind", json!(list_kind), false);
    put("categories", json!(categories), false);
    member(definition).insert("acceptedNames".to_owned(), Value::Object(accepted));
}

fn member(definition: &mut Map<String, Value>) -> &mut Map<String, Value> {
    let status = definition.entry("status").or_insert_with(|| json!({}));
    if !status.is_object() {
        *status = json!({});
    }
    match status {
        Value::Object(status) => status,
        // Made an object just above.
        _ => unreachable!("the status was made an object"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transition_has_a_time_of_its_own() {
        let mut tree = Map::new();
        tree.insert("status".to_owned(), json!({"conditions": null}));
        set_condition(&mut tree, &condition("Established", false, "Installing", "a"), "t1");
        set_condition(&mut tree, &condition("Established", false, "Installing", "b"), "t2");
        assert_eq!(tree["status"]["conditions"][0]["lastTransitionTime"], "t1", "the status did not move");
        assert_eq!(tree["status"]["conditions"][0]["message"], "b");
        set_condition(&mut tree, &condition("Established", true, "InitialNamesAccepted", "c"), "t3");
        assert_eq!(tree["status"]["conditions"][0]["lastTransitionTime"], "t3");
    }

    #[test]
    fn empty_names_are_left_out_where_go_leaves_them_out() {
        let mut tree = Map::new();
        set_accepted(&mut tree, &Names::default());
        assert_eq!(tree["status"]["acceptedNames"], json!({"plural": "", "kind": ""}));
    }
}
