//! Merges tolerations (`pkg/util/tolerations`).

use listwatch_json::Value;
use listwatch_validation::{Object, number, text};

/// Whether `wide` tolerates everything that `narrow` tolerates.
pub(super) fn is_superset(wide: &Object, narrow: &Object) -> bool {
    let same = |name: &str| text(wide, name) == text(narrow, name);
    let operator = |toleration: &Object| match text(toleration, "operator") {
        "" => "Equal".to_owned(),
        given => given.to_owned(),
    };
    let seconds = |toleration: &Object| number(toleration, "tolerationSeconds");
    if same("key")
        && same("value")
        && same("effect")
        && operator(wide) == operator(narrow)
        && seconds(wide) == seconds(narrow)
    {
        return true;
    }
    // An empty key with Exists stands for all keys.
    if !same("key") && (!text(wide, "key").is_empty() || text(wide, "operator") != "Exists") {
        return false;
    }
    if !same("effect") && !text(wide, "effect").is_empty() {
        return false;
    }
    if text(wide, "effect") == "NoExecute"
        && let Some(most) = seconds(wide)
        && seconds(narrow).is_none_or(|seconds| seconds > most)
    {
        return false;
    }
    match operator(wide).as_str() {
        "Equal" => operator(narrow) == "Equal" && same("value"),
        "Exists" => true,
        _ => false,
    }
}

/// Joins two lists, and removes tolerations that another one covers. Of equal tolerations, the
/// first stays.
pub(super) fn merge(first: &[Value], second: &[Value]) -> Vec<Value> {
    let all: Vec<&Object> = first.iter().chain(second).filter_map(Value::as_object).collect();
    let mut merged: Vec<&Object> = Vec::new();
    for (index, one) in all.iter().enumerate() {
        let covered_before = merged.iter().any(|kept| is_superset(kept, one));
        let covered_later = all[index + 1..].iter().any(|later| later != one && is_superset(later, one));
        if !covered_before && !covered_later {
            merged.push(one);
        }
    }
    merged.into_iter().cloned().map(Value::Object).collect()
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    fn check(first: Value, second: Value, expected: Value) {
        let items = |list: &Value| list.as_array().cloned().unwrap_or_default();
        assert_eq!(Value::Array(merge(&items(&first), &items(&second))), expected, "{first} and {second}");
    }

    #[test]
    fn tolerations_covered_by_others_are_removed() {
        let exists = json!({"key": "a", "operator": "Exists"});
        let equal = json!({"key": "a", "operator": "Equal", "value": "v", "effect": "NoSchedule"});
        check(json!([equal]), json!([]), json!([equal]));
        check(json!([exists, equal]), json!([]), json!([exists]));
        check(json!([equal]), json!([exists]), json!([exists]));
        check(json!([equal]), json!([equal]), json!([equal]));
        let everything = json!({"operator": "Exists"});
        check(json!([exists, equal]), json!([everything]), json!([everything]));
        let shorter = json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5});
        let longer = json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9});
        check(json!([shorter]), json!([longer]), json!([longer]));
        let other = json!({"key": "b", "value": "v"});
        check(json!([equal]), json!([other]), json!([equal, other]));
    }
}
