//! Removes unknown fields and reports their paths. Source: apiextensions-apiserver
//! `pkg/apiserver/schema/pruning`, Kubernetes 1.36.

use listwatch_json::{Map, Value};
use listwatch_meta::status::cut;

use crate::limits::{FIELD_ERROR_BYTES_MAX, UNKNOWN_FIELDS_BYTES_MAX, UNKNOWN_FIELDS_MAX};
use crate::schema::{AdditionalProperties, Node, Schema};

impl Schema {
    /// Removes every field that the schema does not specify. `apiVersion`, `kind` and `metadata` of
    /// the object itself and of embedded resources are not changed.
    ///
    /// Returns the sorted paths of removed fields, in the form of `unknown field "…"`: at most
    /// [`UNKNOWN_FIELDS_MAX`] paths and about [`UNKNOWN_FIELDS_BYTES_MAX`] bytes.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        let mut pruner = Pruner { path: String::new(), unknown: Vec::new(), unknown_bytes: 0 };
        match object {
            Value::Object(members) => pruner.object(members, Some(&self.root), true),
            value => pruner.prune(value, Some(&self.root)),
        }
        pruner.finish()
    }
}

/// Like [`Schema::prune`], for a part of a schema.
pub(crate) fn prune(value: &mut Value, node: &Node, is_resource: bool) {
    let mut pruner = Pruner { path: String::new(), unknown: Vec::new(), unknown_bytes: 0 };
    match value {
        Value::Object(members) => pruner.object(members, Some(node), is_resource || node.embedded),
        value => pruner.prune(value, Some(node)),
    }
}

fn is_meta(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

struct Pruner {
    /// The path of the current value.
    path: String,
    unknown: Vec<String>,
    unknown_bytes: usize,
}

impl Pruner {
    fn finish(mut self) -> Vec<String> {
        self.unknown.sort_unstable();
        self.unknown
    }

    fn prune(&mut self, value: &mut Value, node: Option<&Node>) {
        match value {
            Value::Object(members) => self.object(members, node, node.is_some_and(|node| node.embedded)),
            Value::Array(items) => {
                let below = node.and_then(|node| node.items.as_deref());
                let preserves = node.is_some_and(|node| node.preserves);
                // A preserved list without a schema for its items has no unknown fields.
                if preserves && below.is_none() {
                    return;
                }
                for (index, item) in items.iter_mut().enumerate() {
                    let length = self.path.len();
                    self.path.push_str(&format!("[{index}]"));
                    match below {
                        Some(below) if preserves => self.skip(item, below),
                        below => self.prune(item, below),
                    }
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    /// Prunes a value within a preserved value: only objects whose schema has properties.
    fn skip(&mut self, value: &mut Value, node: &Node) {
        match value {
            Value::Object(members) => self.below_preserved(members, node, node.embedded),
            Value::Array(items) => {
                let Some(below) = node.items.as_deref() else { return };
                for (index, item) in items.iter_mut().enumerate() {
                    let length = self.path.len();
                    self.path.push_str(&format!("[{index}]"));
                    self.skip(item, below);
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    fn object(&mut self, members: &mut Map, node: Option<&Node>, embedded: bool) {
        let Some(node) = node else {
            for name in members.keys() {
                self.record(name);
            }
            members.clear();
            return;
        };
        if node.preserves {
            return self.below_preserved(members, node, embedded);
        }
        let mut any_unknown = false;
        for (name, value) in members.iter_mut() {
            if embedded && is_meta(name) {
                continue;
            }
            match (node.property(name), &node.more) {
                (Some(property), _) => self.enter(name, value, Some(property)),
                (None, AdditionalProperties::Schema(more)) => self.enter(name, value, Some(more)),
                (None, AdditionalProperties::Allowed(_)) => self.enter(name, value, None),
                (None, AdditionalProperties::Unset) => {
                    any_unknown = true;
                    if !is_meta(name) || !self.path.is_empty() {
                        self.record(name);
                    }
                }
            }
        }
        if any_unknown {
            members.retain(|name, _| (embedded && is_meta(name)) || node.property(name).is_some());
        }
    }

    fn below_preserved(&mut self, members: &mut Map, node: &Node, embedded: bool) {
        for (name, value) in members.iter_mut() {
            if embedded && is_meta(name) {
                continue;
            }
            match (node.property(name), &node.more) {
                (Some(property), _) => self.enter(name, value, Some(property)),
                (None, AdditionalProperties::Schema(more)) => self.enter(name, value, Some(more)),
                (None, AdditionalProperties::Allowed(_)) => self.enter(name, value, None),
                (None, AdditionalProperties::Unset) => {}
            }
        }
    }

    fn enter(&mut self, name: &str, value: &mut Value, node: Option<&Node>) {
        if !matches!(value, Value::Object(_) | Value::Array(_)) {
            return;
        }
        let length = self.path.len();
        self.append(name);
        self.prune(value, node);
        self.path.truncate(length);
    }

    fn append(&mut self, name: &str) {
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
    }

    fn record(&mut self, name: &str) {
        if self.unknown.len() >= UNKNOWN_FIELDS_MAX || self.unknown_bytes >= UNKNOWN_FIELDS_BYTES_MAX {
            return;
        }
        let length = self.path.len();
        self.append(name);
        let path = cut(&self.path, FIELD_ERROR_BYTES_MAX);
        self.unknown_bytes += path.len();
        self.unknown.push(path);
        self.path.truncate(length);
    }
}
