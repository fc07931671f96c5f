//! Defaulting, and the nulls around it.
//! Rules: apiextensions-apiserver `pkg/apiserver/schema/defaulting`, Kubernetes 1.36.

use serde_json::{Map, Value};

use crate::schema::{Node, Schema};

impl Schema {
    /// Sets fields that are missing, or null where null is no value, to their defaults. Only fields
    /// of objects that are there get them: no default brings its parent into being, unless the parent
    /// has a default itself.
    pub fn default(&self, object: &mut Value) {
        default(object, &self.root);
    }

    /// Removes nulls that are neither values nor stand for a default. Nulls in lists stay.
    pub fn prune_nulls(&self, object: &mut Value) {
        prune_nulls(object, Some(&self.root));
    }
}

fn default(value: &mut Value, node: &Node) {
    if !node.defaulting {
        return;
    }
    match value {
        Value::Object(members) => default_object(members, node),
        Value::Array(items) => {
            let Some(below) = node.items.as_deref() else { return };
            for item in items {
                default_null(item, below);
                default(item, below);
            }
        }
        _ => {}
    }
}

fn default_object(members: &mut Map<String, Value>, node: &Node) {
    for (name, property) in &node.properties {
        let Some(default) = property.default_value() else { continue };
        match members.get_mut(name.as_ref()) {
            None => {
                members.insert(name.as_ref().to_owned(), default.clone());
            }
            Some(value) => default_null(value, property),
        }
    }
    for (name, value) in members.iter_mut() {
        if let Some(property) = node.property(name) {
            default(value, property);
        } else if let Some(more) = node.more_schema() {
            default_null(value, more);
            default(value, more);
        }
    }
}

fn default_null(value: &mut Value, node: &Node) {
    if value.is_null()
        && !node.nullable
        && let Some(default) = node.default_value()
    {
        *value = default.clone();
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
