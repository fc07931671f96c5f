//! Removes a set of fields from a value.

use listwatch_json::{Map as Object, Value};

use super::{Form, form, item_element};
use crate::path::PathElement;
use crate::set::Set;
use crate::typing::{Relation, Schema, TypeId};

/// Returns the value without `fields`. `None` if the value is a list or map that is now empty, and
/// no field below its items was removed.
pub(super) fn remove(schema: &Schema, of: TypeId, value: &Value, fields: &Set) -> Option<Value> {
    /// Removes fields inside of a list or map. If nothing is left, returns an empty list or map.
    fn within(schema: &Schema, of: TypeId, value: &Value, fields: &Set) -> Value {
        remove(schema, of, value, fields).unwrap_or_else(|| match value {
            Value::Object(_) => Value::Object(Object::new()),
            Value::Array(_) => Value::Array(Vec::new()),
            _ => Value::Null,
        })
    }
    match (form(schema.get(of), Some(value)), value) {
        (Form::List(list), Value::Array(items)) if list.relation != Relation::Atomic => {
            let mut touched = false;
            let mut kept = Vec::with_capacity(items.len());
            for item in items {
                let Ok(element) = item_element(schema, list, item) else {
                    kept.push(item.clone());
                    continue;
                };
                if fields.has_member(&element) {
                    continue;
                }
                match fields.child(&element).filter(|below| !below.is_empty()) {
                    Some(below) => {
                        touched = true;
                        kept.push(within(schema, list.items, item, below));
                    }
                    None => kept.push(item.clone()),
                }
            }
            (touched || !kept.is_empty()).then_some(Value::Array(kept))
        }
        (Form::Map(map), Value::Object(members)) if !map.is_atomic() => {
            let mut touched = false;
            let mut kept = Object::with_capacity(members.len());
            for (name, value) in members {
                let element = PathElement::field(name);
                if fields.has_member(&element) {
                    continue;
                }
                let value = match (fields.child(&element).filter(|below| !below.is_empty()), map.member(name)) {
                    (Some(below), Some(of)) => {
                        touched = true;
                        within(schema, of, value, below)
                    }
                    _ => value.clone(),
                };
                kept.insert(name.clone(), value);
            }
            (touched || !kept.is_empty()).then_some(Value::Object(kept))
        }
        (Form::List(_) | Form::Map(_), _) => None,
        _ => Some(value.clone()),
    }
}
