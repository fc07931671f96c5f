//! Access to the members of JSON objects with the semantics of Go structs: absent, `null` and zero
//! are equal.

use serde_json::{Map, Value};

use crate::Object;

/// The number of members up to which a comparison of all names takes less time than a hash of the wanted name.
const COMPARED_MEMBERS_MAX: usize = 16;

/// Returns the member of this name, like [`Map::get`]. The name is hashed only if the object has many members.
pub(crate) fn member<'a>(object: &'a Object, name: &str) -> Option<&'a Value> {
    if object.len() > COMPARED_MEMBERS_MAX {
        return object.get(name);
    }
    object.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// Returns a mutable reference to the member of this name, like [`Map::get_mut`].
pub(crate) fn member_mut<'a>(object: &'a mut Object, name: &str) -> Option<&'a mut Value> {
    if object.len() > COMPARED_MEMBERS_MAX {
        return object.get_mut(name);
    }
    object.iter_mut().find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// True if a value is absent or the zero value of its Go type. Booleans are never empty, because
/// they represent pointers.
pub fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(members)) => members.is_empty(),
        Some(Value::Number(number)) => number.as_i64() == Some(0),
        Some(Value::Bool(_)) => false,
    }
}

/// The member if it is present and not null.
pub fn given<'a>(object: &'a Object, name: &str) -> Option<&'a Value> {
    member(object, name).filter(|value| !value.is_null())
}

/// The string of a member; `""` if it is absent or not a string.
pub fn text<'a>(object: &'a Object, name: &str) -> &'a str {
    member(object, name).and_then(Value::as_str).unwrap_or_default()
}

/// The integer of a member.
pub fn number(object: &Object, name: &str) -> Option<i64> {
    member(object, name).and_then(Value::as_i64)
}

/// The object of a member; empty if it is absent or not an object.
pub fn child<'a>(object: &'a Object, name: &str) -> &'a Object {
    static EMPTY: std::sync::LazyLock<Object> = std::sync::LazyLock::new(Map::new);
    member(object, name).and_then(Value::as_object).unwrap_or(&EMPTY)
}

/// The items of a list member; empty if it is absent or not a list.
pub fn items<'a>(object: &'a Object, name: &str) -> &'a [Value] {
    member(object, name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The objects in a list with their positions.
pub fn objects<'a>(object: &'a Object, name: &str) -> impl Iterator<Item = (usize, &'a Object)> {
    items(object, name).iter().enumerate().filter_map(|(position, item)| Some((position, item.as_object()?)))
}

/// True if a flag is present and true.
pub fn is_true(object: &Object, name: &str) -> bool {
    member(object, name) == Some(&Value::Bool(true))
}

/// The strings in a list.
pub fn texts<'a>(object: &'a Object, name: &str) -> impl Iterator<Item = &'a str> {
    items(object, name).iter().map(|item| item.as_str().unwrap_or_default())
}

/// Formats a list for error texts.
pub fn shown_list(object: &Object, name: &str) -> Value {
    member(object, name).cloned().unwrap_or_default()
}

/// True if two values are equal for `equality.Semantic.DeepEqual`. An empty list, map or string
/// equals an absent one.
pub fn is_same(a: Option<&Value>, b: Option<&Value>) -> bool {
    let none = |value: Option<&Value>| match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(members)) => members.values().all(|value| is_same(Some(value), None)),
        Some(_) => false,
    };
    match (a, b) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            a.iter().all(|(name, value)| is_same(Some(value), b.get(name)))
                && b.iter().all(|(name, value)| a.contains_key(name) || is_same(Some(value), None))
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(Some(a), Some(b)))
        }
        (a, b) if none(a) || none(b) => none(a) && none(b),
        (a, b) => a == b,
    }
}

/// True if two values are equal, as by `==`. Members in the same order are compared without looking them up.
pub fn is_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => is_equal_object(a, b),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_equal(a, b)),
        (a, b) => a == b,
    }
}

/// True if two objects are equal, as by `==`, in any order of their members; see [`is_equal`].
pub fn is_equal_object(a: &Object, b: &Object) -> bool {
    let found = |name: &String, value: &Value| b.get(name).is_some_and(|other| is_equal(value, other));
    a.len() == b.len()
        && a.iter().zip(b).all(
            |((name, value), (other_name, other))| {
                if name == other_name { is_equal(value, other) } else { found(name, value) }
            },
        )
}

/// Formats a string for error texts.
pub fn quoted(text: &str) -> Value {
    Value::String(text.to_owned())
}

/// The value at a dotted path such as `spec.replicas`.
pub fn at<'a>(object: &'a Object, path: &str) -> Option<&'a Value> {
    let mut steps = path.split('.');
    let first = member(object, steps.next()?)?;
    steps.try_fold(first, |value, step| value.get(step))
}

/// The member `metadata`; empty if it is absent.
pub fn metadata(object: &Object) -> &Object {
    static EMPTY: std::sync::LazyLock<Object> = std::sync::LazyLock::new(Map::new);
    member(object, "metadata").and_then(Value::as_object).unwrap_or(&EMPTY)
}

/// A mutable reference to the member `metadata`, which is created if it is absent.
pub fn metadata_mut(object: &mut Object) -> &mut Object {
    child_mut(object, "metadata")
}

/// A mutable reference to the object of a member, which is created if the member is absent or not an object.
pub fn child_mut<'a>(object: &'a mut Object, name: &str) -> &'a mut Object {
    if !member(object, name).is_some_and(Value::is_object) {
        object.insert(name.to_owned(), Value::Object(Map::new()));
    }
    match member_mut(object, name) {
        Some(Value::Object(member)) => member,
        // The lines above have made it an object.
        _ => unreachable!("the member was made an object"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn is_equal_ignores_member_order_like_serde_json() {
        let values = [
            json!(null),
            json!(1),
            json!(1.0),
            json!("1"),
            json!([]),
            json!([1, {"a": 2}]),
            json!([1, {"a": 3}]),
            json!({}),
            json!({"a": 1, "b": {"c": [null], "d": "x"}}),
            json!({"b": {"d": "x", "c": [null]}, "a": 1}),
            json!({"a": 1, "b": {"c": [null], "d": "y"}}),
            json!({"a": 1, "c": {"c": [null], "d": "x"}}),
            json!({"a": 1, "b": {"c": [null]}}),
        ];
        for a in &values {
            for b in &values {
                assert_eq!(is_equal(a, b), a == b, "{a} and {b}");
            }
        }
    }

    #[test]
    fn member_finds_the_same_value_in_small_and_large_objects() {
        for members in [0, 1, COMPARED_MEMBERS_MAX, COMPARED_MEMBERS_MAX + 1, 100] {
            let mut object: Object = (0..members).map(|at| (format!("m{at}"), json!(at))).collect();
            for at in 0..=members {
                let name = format!("m{at}");
                assert_eq!(member(&object, &name), (at < members).then(|| json!(at)).as_ref(), "{name} of {members}");
                assert_eq!(member_mut(&mut object, &name).cloned(), (at < members).then(|| json!(at)));
            }
        }
    }

    #[test]
    fn child_mut_replaces_non_objects_without_moving_the_member() {
        let mut object = json!({"a": 1, "b": {"c": 2}, "d": null});
        let object = object.as_object_mut().unwrap();
        child_mut(object, "a").insert("x".to_owned(), json!(1));
        child_mut(object, "b").insert("x".to_owned(), json!(2));
        child_mut(object, "d");
        child_mut(object, "e");
        assert_eq!(json!(object).to_string(), r#"{"a":{"x":1},"b":{"c":2,"x":2},"d":{},"e":{}}"#);
    }
}
