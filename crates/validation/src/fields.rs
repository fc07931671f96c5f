//! Access to the members of JSON objects, as Go reads the fields of a struct: absent, `null` and zero are alike.

use serde_json::{Map, Value};

use crate::Object;

/// Whether a value is absent or the zero value of its Go type. Booleans are never empty: pointers to them are meant.
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

/// The member, when it is given at all.
pub fn given<'a>(object: &'a Object, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null())
}

/// The text of a member; `""` where it is absent or not a text.
pub fn text<'a>(object: &'a Object, name: &str) -> &'a str {
    object.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The whole number of a member.
pub fn number(object: &Object, name: &str) -> Option<i64> {
    object.get(name).and_then(Value::as_i64)
}

/// A member that is an object; an empty one where it is not.
pub fn child<'a>(object: &'a Object, name: &str) -> &'a Object {
    static EMPTY: std::sync::LazyLock<Object> = std::sync::LazyLock::new(Map::new);
    object.get(name).and_then(Value::as_object).unwrap_or(&EMPTY)
}

/// The items of a list member; none where it is absent or not a list.
pub fn items<'a>(object: &'a Object, name: &str) -> &'a [Value] {
    object.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The objects in a list, with their positions.
pub fn objects<'a>(object: &'a Object, name: &str) -> impl Iterator<Item = (usize, &'a Object)> {
    items(object, name).iter().enumerate().filter_map(|(position, item)| Some((position, item.as_object()?)))
}

/// A flag that is set.
pub fn is_true(object: &Object, name: &str) -> bool {
    object.get(name) == Some(&Value::Bool(true))
}

/// The texts of a list.
pub fn texts<'a>(object: &'a Object, name: &str) -> impl Iterator<Item = &'a str> {
    items(object, name).iter().map(|item| item.as_str().unwrap_or_default())
}

/// A list as an error shows it.
pub fn shown_list(object: &Object, name: &str) -> Value {
    object.get(name).cloned().unwrap_or_default()
}

/// Are two values the same to `equality.Semantic.DeepEqual`? An empty list, an empty map and an empty text
/// are as good as none.
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

/// A text as an error shows it.
pub fn quoted(text: &str) -> Value {
    Value::String(text.to_owned())
}

/// The value at a dotted path such as `spec.replicas`.
pub fn at<'a>(object: &'a Object, path: &str) -> Option<&'a Value> {
    let mut steps = path.split('.');
    let first = object.get(steps.next()?)?;
    steps.try_fold(first, |value, step| value.get(step))
}

/// `metadata`, which every tree here has.
pub fn metadata(object: &Object) -> &Object {
    static EMPTY: std::sync::LazyLock<Object> = std::sync::LazyLock::new(Map::new);
    object.get("metadata").and_then(Value::as_object).unwrap_or(&EMPTY)
}

/// `metadata`, to be changed; made when it is not there.
pub fn metadata_mut(object: &mut Object) -> &mut Object {
    child_mut(object, "metadata")
}

/// A member that is an object; made when it is not there or something else.
pub fn child_mut<'a>(object: &'a mut Object, name: &str) -> &'a mut Object {
    let member = object.entry(name).or_insert(Value::Null);
    if !member.is_object() {
        *member = Value::Object(Map::new());
    }
    match member {
        Value::Object(member) => member,
        // Made an object just above.
        _ => unreachable!("the member was made an object"),
    }
}
