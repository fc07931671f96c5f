//! Access to the members of JSON objects with the semantics of Go structs: absent, `null` and zero
//! are equal.

use listwatch_json::{Map, Value};

use crate::Object;

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
    object.get(name).filter(|value| !value.is_null())
}

/// The string of a member; `""` if it is absent or not a string.
pub fn text<'a>(object: &'a Object, name: &str) -> &'a str {
    object.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The integer of a member.
pub fn number(object: &Object, name: &str) -> Option<i64> {
    object.get(name).and_then(Value::as_i64)
}

/// The object of a member; empty if it is absent or not an object.
pub fn child<'a>(object: &'a Object, name: &str) -> &'a Object {
    static EMPTY: Object = Object::new();
    object.get(name).and_then(Value::as_object).unwrap_or(&EMPTY)
}

/// The items of a list member; empty if it is absent or not a list.
pub fn items<'a>(object: &'a Object, name: &str) -> &'a [Value] {
    object.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The objects in a list with their positions.
pub fn objects<'a>(object: &'a Object, name: &str) -> impl Iterator<Item = (usize, &'a Object)> {
    items(object, name).iter().enumerate().filter_map(|(position, item)| Some((position, item.as_object()?)))
}

/// True if a flag is present and true.
pub fn is_true(object: &Object, name: &str) -> bool {
    object.get(name) == Some(&Value::Bool(true))
}

/// The strings in a list.
pub fn texts<'a>(object: &'a Object, name: &str) -> impl Iterator<Item = &'a str> {
    items(object, name).iter().map(|item| item.as_str().unwrap_or_default())
}

/// Formats a list for error texts.
pub fn shown_list(object: &Object, name: &str) -> Value {
    object.get(name).cloned().unwrap_or_default()
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

/// Formats a string for error texts.
pub fn quoted(text: &str) -> Value {
    Value::from(text)
}

/// The value at a dotted path such as `spec.replicas`.
pub fn at<'a>(object: &'a Object, path: &str) -> Option<&'a Value> {
    let mut steps = path.split('.');
    let first = object.get(steps.next()?)?;
    steps.try_fold(first, |value, step| value.get(step))
}

/// The member `metadata`; empty if it is absent.
pub fn metadata(object: &Object) -> &Object {
    child(object, "metadata")
}

/// A mutable reference to the member `metadata`, which is created if it is absent.
pub fn metadata_mut(object: &mut Object) -> &mut Object {
    child_mut(object, "metadata")
}

/// A mutable reference to the object of a member, which is created if the member is absent or not an object.
pub fn child_mut<'a>(object: &'a mut Object, name: &str) -> &'a mut Object {
    let member = object.entry(name).or_insert(Value::Null);
    if !member.is_object() {
        *member = Value::Object(Map::new());
    }
    match member {
        Value::Object(member) => member,
        // The lines above have made it an object.
        _ => unreachable!("the member was made an object"),
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    #[test]
    fn child_mut_replaces_non_objects_without_moving_the_member() {
        let mut object = json!({"a": 1, "b": {"c": 2}, "d": null});
        let object = object.as_object_mut().unwrap();
        child_mut(object, "a").insert("x", json!(1));
        child_mut(object, "b").insert("x", json!(2));
        child_mut(object, "d");
        child_mut(object, "e");
        assert_eq!(json!(object).to_string(), r#"{"a":{"x":1},"b":{"c":2,"x":2},"d":{},"e":{}}"#);
    }
}
