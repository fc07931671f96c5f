//! Conditions in a status: at most one of each type, in the order in which the types came.

use serde_json::{Value, json};

/// Puts a condition where the one of its type is, or at the end.
pub fn put(conditions: &mut Vec<Value>, condition: Value) {
    match conditions.iter_mut().find(|present| present.get("type") == condition.get("type")) {
        Some(present) => *present = condition,
        None => conditions.push(condition),
    }
}

/// What a condition says, without its time.
#[derive(Debug, Clone, Copy)]
pub struct Saying<'a> {
    /// The type, e.g. `Ready`.
    pub kind: &'a str,
    /// `True`, `False` or `Unknown`.
    pub status: &'a str,
    /// The reason, a word in CamelCase.
    pub reason: &'a str,
    /// The message for a person.
    pub message: &'a str,
}

/// Sets a condition. The time of its last transition moves only when its status does.
pub fn set(conditions: &mut Vec<Value>, saying: Saying<'_>, now: &str) {
    let Saying { kind, status, reason, message } = saying;
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
    fn the_time_moves_when_the_status_does() {
        let saying = |status| Saying { kind: "X", status, reason: "R", message: "m" };
        let mut conditions = vec![
            json!({"type": "X", "status": "True", "lastTransitionTime": "then"}),
            json!({"type": "Y", "status": "False", "lastTransitionTime": "then"}),
        ];
        for (status, time) in [("True", "then"), ("False", "now"), ("False", "now")] {
            set(&mut conditions, saying(status), "now");
            let of = |member: &str| conditions[0][member].clone();
            assert_eq!(
                (of("status"), of("lastTransitionTime"), of("message")),
                (json!(status), json!(time), json!("m"))
            );
        }
        assert_eq!(conditions.len(), 2);
        assert_eq!(conditions[1]["lastTransitionTime"], "then", "another type's condition is touched");
        set(&mut conditions, Saying { kind: "Z", ..saying("True") }, "later");
        assert_eq!(conditions[2]["lastTransitionTime"], "later");
    }
}
