//! Correlates the parts of a new object with those of the old one, and compares them.
//! Rules: apiserver `pkg/cel/common/equality.go` and `maplist.go`, Kubernetes 1.36.
//!
//! Fields correlate by name if the schema contains them. Items of a list of type map correlate by
//! their keys. Items of other lists never correlate.

use std::collections::HashMap;
use std::sync::Arc;

use listwatch_json::Value;

use crate::golang::Number;
use crate::schema::{ListType, Node};

/// An old value, and the schema of the old and the new value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Correlated<'a> {
    pub(crate) old: &'a Value,
    pub(crate) node: &'a Node,
}

impl<'a> Correlated<'a> {
    /// The old value of a field, if it exists.
    pub(crate) fn field(self, name: &str) -> Option<Correlated<'a>> {
        let old = self.old.as_object()?.get(name)?;
        Some(Correlated { old, node: self.node.field(name)? })
    }
}

/// The old items of a list of type map, by their keys.
pub(crate) struct OldItems<'a> {
    keys: &'a [Arc<str>],
    by_key: HashMap<String, &'a Value>,
    node: &'a Node,
}

impl<'a> OldItems<'a> {
    /// The old items, if the list is of type map.
    pub(crate) fn of(list: Correlated<'a>) -> Option<OldItems<'a>> {
        let keys = list.node.list_map_keys();
        if list.node.list_type != ListType::Map || keys.is_empty() {
            return None;
        }
        let node = list.node.items.as_deref()?;
        let mut by_key = HashMap::new();
        for item in list.old.as_array()? {
            if let Some(key) = composite_key(item, keys) {
                by_key.entry(key).or_insert(item);
            }
        }
        Some(OldItems { keys, by_key, node })
    }

    /// The old item with the same keys.
    pub(crate) fn get(&self, item: &Value) -> Option<Correlated<'a>> {
        let old = self.by_key.get(&composite_key(item, self.keys)?)?;
        Some(Correlated { old, node: self.node })
    }
}

/// The keys of an item as one text. `None` if a key is missing or not a scalar.
fn composite_key(item: &Value, keys: &[Arc<str>]) -> Option<String> {
    let item = item.as_object()?;
    let mut key = String::new();
    for name in keys {
        key.push('\0');
        match item.get(name.as_ref())? {
            Value::Bool(value) => key.push_str(if *value { "true" } else { "false" }),
            Value::Number(number) => match Number::of(number) {
                Number::Int(int) => key.push_str(&int.to_string()),
                Number::Float(float) => key.push_str(&format!("{float:?}")),
            },
            Value::String(text) => key.push_str(&crate::golang::quote(text)),
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        }
    }
    Some(key)
}

/// True if a value is unchanged. If the schema does not correlate its parts, the value is treated as changed,
/// as in Kubernetes.
pub(crate) fn is_unchanged(new: &Value, correlated: Correlated<'_>) -> bool {
    let Correlated { old, node } = correlated;
    match (old, new) {
        (Value::Array(old_items), Value::Array(items)) => {
            if old_items.len() != items.len() {
                return false;
            }
            if node.list_type != ListType::Map {
                return old_items == items;
            }
            match OldItems::of(correlated) {
                Some(old) => items.iter().all(|item| old.get(item).is_some_and(|old| is_unchanged(item, old))),
                None => old_items == items,
            }
        }
        (Value::Object(old), Value::Object(members)) => {
            old.len() == members.len()
                && members
                    .iter()
                    .all(|(name, value)| correlated.field(name).is_some_and(|old| is_unchanged(value, old)))
        }
        (old, new) => old == new,
    }
}
