//! Sets defaults and removes nulls.
//! Rules: apiextensions-apiserver `pkg/apiserver/schema/has_defaults`, Kubernetes 1.36.

use listwatch_json::{Map, Value};
use listwatch_meta::fuel;

use crate::schema::{Node, Schema};

impl Schema {
    /// Sets missing fields, and null fields that are not nullable, to their defaults. A missing
    /// parent is created only if the parent itself has a default.
    pub fn default(&self, object: &mut Value) {
        // Without a limit there is no error.
        let _ = self.default_within(object, usize::MAX);
    }

    /// Like [`Schema::default`], with defaults of at most `bytes_max` bytes of JSON in total. A
    /// small object can require large defaults: each item of `[{},{},{}]` may get one.
    ///
    /// # Errors
    /// [`DefaultsTooLarge`]; `object` then has only some of its defaults and must be discarded.
    pub fn default_within(&self, object: &mut Value, bytes_max: usize) -> Result<(), DefaultsTooLarge> {
        Defaulter { bytes_left: bytes_max }.value(object, &self.root)
    }

    /// Removes nulls that are not valid and have no default. Nulls in lists stay.
    pub fn prune_nulls(&self, object: &mut Value) {
        prune_nulls(object, Some(&self.root));
    }
}

/// The defaults exceed their size limit, or the fuel is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the object's defaults are too large")]
pub struct DefaultsTooLarge;

struct Defaulter {
    bytes_left: usize,
}

impl Defaulter {
    fn value(&mut self, value: &mut Value, node: &Node) -> Result<(), DefaultsTooLarge> {
        if !node.has_defaults {
            return Ok(());
        }
        match value {
            Value::Object(members) => self.object(members, node),
            Value::Array(items) => {
                let Some(below) = node.items.as_deref() else { return Ok(()) };
                for item in items {
                    self.null(item, below)?;
                    self.value(item, below)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn object(&mut self, members: &mut Map, node: &Node) -> Result<(), DefaultsTooLarge> {
        for (name, property) in &node.properties {
            let Some(default) = property.default_value() else { continue };
            match members.get_mut(name.as_ref()) {
                None => {
                    members.insert(name.as_ref().to_owned(), self.copy(name.len(), default)?);
                }
                Some(value) => self.null(value, property)?,
            }
        }
        for (name, value) in members.iter_mut() {
            if let Some(property) = node.property(name) {
                self.value(value, property)?;
            } else if let Some(more) = node.additional_schema() {
                self.null(value, more)?;
                self.value(value, more)?;
            }
        }
        Ok(())
    }

    fn null(&mut self, value: &mut Value, node: &Node) -> Result<(), DefaultsTooLarge> {
        if value.is_null()
            && !node.nullable
            && let Some(default) = node.default_value()
        {
            *value = self.copy(0, default)?;
        }
        Ok(())
    }

    fn copy(&mut self, name_bytes: usize, default: &Value) -> Result<Value, DefaultsTooLarge> {
        let bytes = name_bytes + json_bytes(default);
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(DefaultsTooLarge)?;
        if !fuel::charge_bytes(bytes, 16) {
            return Err(DefaultsTooLarge);
        }
        Ok(default.clone())
    }
}

/// The approximate size of a value's JSON in bytes.
fn json_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| json_bytes(item) + 1).sum::<usize>(),
        Value::Object(members) => {
            2 + members.iter().map(|(name, value)| name.len() + json_bytes(value) + 4).sum::<usize>()
        }
    }
}

fn prune_nulls(value: &mut Value, node: Option<&Node>) {
    match value {
        Value::Object(members) => {
            members.retain(|name, value| {
                let below = node.and_then(|node| node.field(name));
                if let Some(below) = below {
                    if value.is_null() && !below.nullable && below.default_value().is_none() {
                        return false;
                    }
                    prune_nulls(value, Some(below));
                }
                true
            });
        }
        Value::Array(items) => {
            let Some(below) = node.and_then(|node| node.items.as_deref()) else { return };
            items.iter_mut().for_each(|item| prune_nulls(item, Some(below)));
        }
        _ => {}
    }
}
