//! The `null` members of objects of built-in kinds, which Go's decoders drop: [`drop_nulls`] removes them, [`is_equal`]
//! compares without them.
//!
//! Source: `encoding/json` of Go, and `equality.Semantic` of `apimachinery/pkg/api/equality`.

use listwatch_json::Value;

use crate::Object;

/// Pairs of a parent member and its free-form member (`runtime.RawExtension`), in kinds that do not keep `null`: the
/// parameters of a device driver, and the data of an allocated device.
const RAW_MEMBERS: [(&str, &str); 2] = [("opaque", "parameters"), ("devices", "data")];

/// Returns the name of the free-form member of the objects at the member `parent`.
fn raw_member(parent: &str) -> Option<&'static str> {
    RAW_MEMBERS.iter().find(|(of, _)| *of == parent).map(|(_, name)| *name)
}

/// Removes members that are `null`, except those inside of [`RAW_MEMBERS`]. Do not use this for other objects of free
/// form, such as the data of a ControllerRevision.
pub fn drop_nulls(object: &mut Object) {
    drop_nulls_below("", object);
}

/// Removes the `null` members of the object at the member `parent`.
fn drop_nulls_below(parent: &str, object: &mut Object) {
    let raw = raw_member(parent);
    let mut has_null = false;
    for (name, value) in object.iter_mut() {
        match value {
            Value::Null => has_null = true,
            Value::Object(inner) if raw != Some(name.as_str()) => drop_nulls_below(name, inner),
            Value::Array(items) if raw != Some(name.as_str()) => drop_nulls_in(name, items),
            _ => {}
        }
    }
    if has_null {
        object.retain(|_, value| !value.is_null());
    }
}

fn drop_nulls_in(parent: &str, items: &mut [Value]) {
    for item in items {
        match item {
            Value::Object(inner) => drop_nulls_below(parent, inner),
            Value::Array(items) => drop_nulls_in(parent, items),
            _ => {}
        }
    }
}

/// Whether two objects at the member `parent` are equal if members that are `null` or an empty list count as absent, as
/// in a Go struct (`Semantic.DeepEqual` of `apimachinery/pkg/api/equality`). Values of [`RAW_MEMBERS`] must be the same.
pub fn is_equal(parent: &str, one: &Object, other: &Object) -> bool {
    let raw = raw_member(parent);
    one.keys().chain(other.keys()).all(|name| {
        let (one, other) = (one.get(name), other.get(name));
        one == other || raw != Some(name.as_str()) && is_equal_member(name, one, other)
    })
}

/// Whether two members of this name are equal like those of [`is_equal`].
pub fn is_equal_member(name: &str, one: Option<&Value>, other: Option<&Value>) -> bool {
    let is_absent = |value: &&Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    match (one.filter(|one| !is_absent(one)), other.filter(|other| !is_absent(other))) {
        (Some(Value::Object(one)), Some(Value::Object(other))) => is_equal(name, one, other),
        (Some(Value::Array(one)), Some(Value::Array(other))) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| is_equal_member(name, Some(one), Some(other)))
        }
        (one, other) => one == other,
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    fn map(value: Value) -> Object {
        match value {
            Value::Object(map) => map,
            other => panic!("{other} is not an object"),
        }
    }

    #[test]
    fn null_members_are_removed_at_any_depth() {
        let mut object = map(json!({"a": null, "b": {"c": null, "d": [null, {"e": null}]}}));
        drop_nulls(&mut object);
        assert_eq!(Value::Object(object), json!({"b": {"d": [null, {}]}}));
    }

    #[test]
    fn null_members_of_raw_extensions_are_kept() {
        let object = |other: Value| {
            let opaque = json!({"driver": "d", "parameters": {"a": null, "b": [{"c": null}]}});
            json!({"spec": {"devices": {"config": [{"opaque": opaque}]}, "other": other},
                "status": {"devices": [{"device": "d", "data": {"a": null}}]}})
        };
        let mut dropped = map(object(json!({"parameters": {"a": null}, "data": {"a": null}})));
        drop_nulls(&mut dropped);
        assert_eq!(Value::Object(dropped), object(json!({"parameters": {}, "data": {}})));
    }

    #[test]
    fn null_members_and_empty_lists_are_equal_to_absent_members() {
        let check = |one: Value, other: Value, expected: bool| {
            let (one, other) = (map(one), map(other));
            assert_eq!(is_equal("", &one, &other), expected, "{one:?} {other:?}");
            assert_eq!(is_equal("", &other, &one), expected, "{other:?} {one:?}");
        };
        check(json!({"a": [], "b": {"c": []}}), json!({"b": {}}), true);
        let config = |parameters: Value| json!({"config": [{"opaque": {"driver": "d", "parameters": parameters}}]});
        check(config(json!({"a": []})), config(json!({})), false);
        check(config(json!({"a": null})), config(json!({"a": null})), true);
        check(json!({"a": []}), json!({"a": null}), true);
        check(json!({"a": 1, "b": null}), json!({"a": 1}), true);
        check(json!({"a": null}), json!({"b": null}), true);
        check(json!({"a": [{"b": null}, [{"c": null}]]}), json!({"a": [{}, [{}]]}), true);
        check(json!({"a": {"b": null, "c": 1}}), json!({"a": {"c": 1}}), true);
        check(json!({"a": 1}), json!({"a": 2}), false);
        check(json!({"a": 1}), json!({"b": 1}), false);
        check(json!({"a": 1}), json!({"a": 1, "b": {}}), false);
        check(json!({"a": [null]}), json!({"a": []}), false);
        check(json!({"a": {"b": 1}}), json!({"a": {"b": [1]}}), false);
    }
}
