//! Writes conditions to a status: at most one of each type, in the order in which the types were added.
//!
//! Source: `SetStatusCondition` in `apimachinery/pkg/api/meta/conditions.go`.

use listwatch_json::{Value, json};

/// Replaces the condition of the same type, or appends the condition.
pub fn put(conditions: &mut Vec<Value>, condition: Value) {
    match conditions.iter_mut().find(|present| present.get("type") == condition.get("type")) {
        Some(present) => *present = condition,
        None => conditions.push(condition),
    }
}

/// A condition without its transition time.
#[derive(Debug, Clone, Copy)]
pub struct NewCondition<'a> {
    /// The type, e.g. `Ready`.
    pub kind: &'a str,
    /// `True`, `False` or `Unknown`.
    pub status: &'a str,
    /// The reason, one word in CamelCase.
    pub reason: &'a str,
    /// The message for people.
    pub message: &'a str,
}

/// Sets a condition. `lastTransitionTime` becomes `now` (RFC 3339) only if the status of the condition changes.
pub fn set(conditions: &mut Vec<Value>, condition: NewCondition<'_>, now: &str) {
    let NewCondition { kind, status, reason, message } = condition;
    let since = conditions
        .iter()
        .find(|present| present.get("type").is_some_and(|present| present == kind))
        .filter(|present| present.get("status").is_some_and(|present| present == status))
        .and_then(|present| present.get("lastTransitionTime").cloned())
        .unwrap_or_else(|| json!(now));
    put(
        conditions,
        json!({"type": kind, "status": status, "lastTransitionTime": since, "reason": reason, "message": message}),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_transition_time_changes_only_with_the_status() {
        let condition = |status| NewCondition { kind: "X", status, reason: "R", message: "m" };
        let mut conditions = vec![
            json!({"type": "X", "status": "True", "lastTransitionTime": "then"}),
            json!({"type": "Y", "status": "False", "lastTransitionTime": "then"}),
        ];
        for (status, time) in [("True", "then"), ("False", "now"), ("False", "now")] {
            set(&mut conditions, condition(status), "now");
            let of = |member: &str| conditions[0][member].clone();
            assert_eq!(
                (of("status"), of("lastTransitionTime"), of("message")),
                (json!(status), json!(time), json!("m"))
            );
        }
        assert_eq!(conditions.len(), 2);
        assert_eq!(conditions[1]["lastTransitionTime"], "then", "another type's condition is touched");
        set(&mut conditions, NewCondition { kind: "Z", ..condition("True") }, "later");
        assert_eq!(conditions[2]["lastTransitionTime"], "later");
    }
}
