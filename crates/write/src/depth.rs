//! Limits the nesting depth of lists and objects.

use listwatch_json::Value;

/// Maximum nesting depth of lists and objects in an object, including the object itself.
///
/// A deeper request body fails with 400 and `exceeded max depth`, as Go's decoders do beyond 10,000 levels. A patch
/// with a deeper result fails with 422.
///
/// serde_json parses 127 levels. Five are reserved for the entry of the deepest field in `metadata.managedFields`,
/// two for the list in which a client reads the object. Built-in kinds need a quarter of this limit. The limit also
/// bounds the stack of every recursion over an object.
pub(super) const OBJECT_DEPTH_MAX: usize = 120;

/// Returns whether lists and objects nest more than `levels` deep in a value; a scalar has depth 0. Adds the number
/// of visited values to `visited`. Does not recurse.
pub(super) fn is_deeper(value: &Value, levels: usize, visited: &mut usize) -> bool {
    let mut left = Vec::with_capacity(32);
    left.push((value, 0));
    while let Some((value, above)) = left.pop() {
        *visited += 1;
        if above == levels && (value.is_array() || value.is_object()) {
            return true;
        }
        match value {
            Value::Array(items) => left.extend(items.iter().map(|item| (item, above + 1))),
            Value::Object(members) => left.extend(members.values().map(|member| (member, above + 1))),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    #[test]
    fn is_deeper_counts_one_level_per_nested_list_or_object() {
        let check = |value: Value, depth: usize| {
            assert!(!is_deeper(&value, depth, &mut 0), "{value} is not deeper than {depth}");
            assert!(depth == 0 || is_deeper(&value, depth - 1, &mut 0), "{value} is {depth} deep");
        };
        check(json!(1), 0);
        check(json!([]), 1);
        check(json!({"a": 1}), 1);
        check(json!([1, {"a": [], "b": 2}, []]), 3);
        check(json!({"a": [[1]], "b": {}}), 3);
    }

    #[test]
    fn is_deeper_visits_each_value_once() {
        let mut visited = 1;
        assert!(!is_deeper(&json!({"a": [1, 2], "b": {"c": null}}), 100, &mut visited));
        assert_eq!(visited, 1 + 6);
    }
}
