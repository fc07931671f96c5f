//! Compares objects of built-in types with the shapes of their fields: [`is_equal`], [`is_equal_member`].
//!
//! | field | absent equals | values are equal if |
//! |---|---|---|
//! | pointer | absent only | the values they point to are equal |
//! | struct | a struct whose fields all equal absent ones | all fields are equal |
//! | text, number, flag | the zero value | the values are the same |
//! | list, map | the empty list or map | all items are equal, in order for a list |
//! | quantity | `0`, unless a pointer | the amounts are equal, in any notation |
//!
//! Other members are ignored, because Go's types do not have them: `kind` and `apiVersion` of a template, and fields that
//! a newer release stored.
//!
//! Source: `equality.Semantic` of `apimachinery/pkg/api/equality`. [`is_same`] knows no shapes: for a pointer it accepts
//! more, because it takes an empty value for an absent one.

use listwatch_json::Value;
use listwatch_k8s_types::{Field, Id, Shape, Type};

use crate::formats::{amount, compare, same};
use crate::{Object, is_same};

/// True if two objects of a type are equal for `equality.Semantic.DeepEqual`.
pub fn is_equal(id: Id, left: &Object, right: &Object) -> bool {
    let added = right.keys().filter(|name| !left.contains_key(name));
    left.keys().chain(added).all(|name| is_equal_member(id, name, left, right))
}

/// True if the member of this name is equal in two objects of a type, or if the type has no such field.
pub fn is_equal_member(id: Id, name: &str, left: &Object, right: &Object) -> bool {
    let (left, right) = (left.get(name), right.get(name));
    match id.message().field(name) {
        Some(field) => is_equal_field(field, left, right),
        None => true,
    }
}

fn is_equal_field(field: &Field, left: Option<&Value>, right: Option<&Value>) -> bool {
    let left = left.filter(|value| !value.is_null());
    let right = right.filter(|value| !value.is_null());
    let of = field.of();
    match (field.shape(), left, right) {
        (_, None, None) => true,
        (Shape::Repeated, Some(Value::Array(left)), Some(Value::Array(right))) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| is_equal_value(of, left, right))
        }
        (Shape::Map, Some(Value::Object(left)), Some(Value::Object(right))) => {
            let in_right = |name: &str, value| right.get(name).is_some_and(|right| is_equal_value(of, value, right));
            left.len() == right.len() && left.iter().all(|(name, value)| in_right(name, value))
        }
        (Shape::Repeated | Shape::Map, left, right) => is_same(left, right),
        (_, Some(left), Some(right)) => is_equal_value(of, left, right),
        (Shape::Pointer, _, _) => false,
        (_, Some(value), None) | (_, None, Some(value)) => is_zero_value(of, value),
    }
}

/// Compares two values that are present.
fn is_equal_value(of: Type, left: &Value, right: &Value) -> bool {
    match (of, left, right) {
        (Type::Message(id), Value::Object(left), Value::Object(right)) => is_equal(id, left, right),
        (Type::Quantity, Value::String(left), Value::String(right)) => left == right || compare(left, right).is_eq(),
        (_, left, right) => left == right,
    }
}

/// Whether a value equals an absent one in a field that is not a pointer.
fn is_zero_value(of: Type, value: &Value) -> bool {
    match (of, value) {
        (Type::Message(id), Value::Object(members)) => is_equal(id, members, &Object::new()),
        (Type::Quantity, value) => compare(amount(value), "0").is_eq(),
        (_, value) => same(Some(value), None),
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    fn check(id: Id, left: Value, right: Value, expected: bool) {
        let [Some(first), Some(second)] = [left.as_object(), right.as_object()] else { panic!("not objects") };
        assert_eq!(is_equal(id, first, second), expected, "{left} and {right}");
        assert_eq!(is_equal(id, second, first), expected, "{right} and {left}");
    }

    #[test]
    fn absent_pointers_differ_from_empty_values() {
        let id = Id::CorePersistentVolumeClaimSpec;
        check(id, json!({"storageClassName": ""}), json!({}), false);
        check(id, json!({"selector": {}}), json!({}), false);
        check(id, json!({"selector": {}}), json!({"selector": {"matchLabels": {}, "matchExpressions": []}}), true);
        check(id, json!({"selector": null}), json!({}), true);
        check(Id::CorePodSpec, json!({"automountServiceAccountToken": false}), json!({}), false);
        let volumes = |volume: Value| json!({"volumes": [volume]});
        check(Id::CorePodSpec, volumes(json!({"name": "a", "emptyDir": {}})), volumes(json!({"name": "a"})), false);
        let size = |size: &str| volumes(json!({"name": "a", "emptyDir": {"sizeLimit": size}}));
        check(Id::CorePodSpec, size("1Gi"), size("1024Mi"), true);
        check(Id::CorePodSpec, size("0"), volumes(json!({"name": "a", "emptyDir": {}})), false);
    }

    #[test]
    fn absent_fields_without_pointers_equal_zero_values() {
        let id = Id::CorePersistentVolumeClaim;
        let zero = json!({"metadata": {"creationTimestamp": null, "labels": {}, "name": ""}, "status": {},
            "spec": {"accessModes": [], "resources": {"requests": {}}, "volumeName": ""}});
        check(id, zero, json!({}), true);
        let sized = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
        check(id, sized("1Gi"), sized("1024Mi"), true);
        check(id, sized("1Gi"), sized("2Gi"), false);
        check(id, sized("0"), json!({"spec": {}}), false);
        check(Id::CorePodSpec, json!({"hostNetwork": false, "containers": []}), json!({"containers": null}), true);
        check(Id::CorePodSpec, json!({"hostNetwork": true}), json!({}), false);
        check(id, json!({"kind": "PersistentVolumeClaim", "spec": {"ofANewerRelease": 1}}), json!({"spec": {}}), true);
        check(Id::MetaLabelSelector, json!({"matchLabels": {"a": ""}}), json!({"matchLabels": {"b": ""}}), false);
    }
}
