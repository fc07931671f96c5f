//! Second versions of built-in kinds: [`Conversion`]. An object is stored, cached and judged in one
//! version; what another one shows of it is made at the edge.
//!
//! ```text
//!  the store's and the cache's bytes ──show──▶ what a client of the second version sees
//!                  the rules of the kind ◀──keep── what it sends, after its own defaults
//! ```
//!
//! Kubernetes converts both ways through an internal type that is the stored version but for its name,
//! so each second version here is one pair of functions over trees, read off
//! `pkg/apis/*/v1/conversion.go` (v1.36). Resource versions, names and ownership are the same in both.

pub(crate) mod autoscaling;
mod events;

use std::sync::Arc;

use bytes::Bytes;
use listwatch_apply::Convert;
use listwatch_meta::{Object, SelectableField};
use serde_json::{Map, Value};

use crate::registry::{NameRule, Resource};

/// A second version of a built-in kind, and the resource in which its objects are stored.
#[derive(Clone, Debug)]
pub(crate) struct Conversion {
    stored: Arc<Resource>,
    version: &'static Version,
}

/// What is to be known of a second version.
#[derive(Debug)]
pub(crate) struct Version {
    /// Where it is served.
    group: &'static str,
    version: &'static str,
    /// Group, version and plural of the stored version.
    of: (&'static str, &'static str, &'static str),
    kind: &'static str,
    /// Discovery shows it behind the last resource of this group.
    pub(crate) behind: &'static str,
    names: NameRule,
    /// What its field selectors call a field, or `None` for one that they cannot name; without it, they
    /// are those of the stored version.
    label: Option<fn(&SelectableField) -> Option<String>>,
    /// Fills in what is missing, as its decoder does.
    default: fn(&mut Map<String, Value>),
    /// A stored tree as this version has it, but for `apiVersion`.
    show: fn(Map<String, Value>) -> Map<String, Value>,
    /// A tree of this version as it is stored, but for `apiVersion`.
    keep: fn(Map<String, Value>) -> Map<String, Value>,
    /// The object between versions, for the account of who owns which field.
    convert: Convert,
}

/// All second versions.
pub(crate) static VERSIONS: [&Version; 2] = [&events::V1, &autoscaling::V1];

impl Version {
    /// Where the stored version is served: group, version, plural.
    pub(crate) fn of(&self) -> (&'static str, &'static str, &'static str) {
        self.of
    }

    /// The resource of this version, given that of the stored one.
    pub(crate) fn resource(&'static self, stored: &Arc<Resource>) -> Resource {
        let mut resource = Resource::clone(stored);
        self.group.clone_into(&mut resource.group);
        self.version.clone_into(&mut resource.version);
        resource.strategy.names = self.names;
        if let Some(label) = self.label {
            resource.shape = Arc::new(stored.shape.with_selector_labels(label));
        }
        resource.conversion = Some(Conversion { stored: Arc::clone(stored), version: self });
        resource
    }

    fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    fn stored_api_version(&self) -> String {
        match self.of {
            ("", version, _) => version.to_owned(),
            (group, version, _) => format!("{group}/{version}"),
        }
    }

    fn shown(&self, tree: Map<String, Value>) -> Map<String, Value> {
        with_api_version((self.show)(tree), self.api_version())
    }

    fn kept(&self, tree: Map<String, Value>) -> Map<String, Value> {
        with_api_version((self.keep)(tree), self.stored_api_version())
    }

    /// The object in the version that is asked for, one of this version's two.
    fn converted(&self, object: &Value, api_version: &str) -> Value {
        let Value::Object(tree) = object else { return object.clone() };
        let is = tree.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        if is == api_version {
            return object.clone();
        }
        let tree = tree.clone();
        Value::Object(if api_version == self.api_version() { self.shown(tree) } else { self.kept(tree) })
    }
}

fn with_api_version(mut tree: Map<String, Value>, api_version: String) -> Map<String, Value> {
    tree.insert("apiVersion".to_owned(), Value::String(api_version));
    tree
}

/// The other version of a kind that has two (`v1`, `apps/v1`), and how objects go there and back.
pub(crate) fn other(api_version: &str, kind: &str) -> Option<(String, Convert)> {
    VERSIONS.iter().filter(|version| version.kind == kind).find_map(|version| {
        let (stored, second) = (version.stored_api_version(), version.api_version());
        match api_version {
            asked if asked == stored => Some((second, version.convert)),
            asked if asked == second => Some((stored, version.convert)),
            _ => None,
        }
    })
}

impl Conversion {
    /// The resource in which objects are stored.
    pub(crate) fn stored(&self) -> &Arc<Resource> {
        &self.stored
    }

    /// The bytes of a stored object as this version shows them.
    pub(crate) fn show(&self, json: &[u8]) -> Bytes {
        through(json, |tree| self.version.shown(tree))
    }

    /// As [`Conversion::show`], of a whole object: of the same change, at the same revision.
    pub(crate) fn show_object(&self, object: &Object) -> Object {
        object.with_json(&self.show(object.json_slice()), &self.stored.shape).unwrap_or_else(|_| object.clone())
    }

    /// The bytes of an object of this version as they would be stored.
    pub(crate) fn keep(&self, json: &[u8]) -> Bytes {
        through(json, |tree| self.version.kept(tree))
    }

    /// A stored tree as this version shows it.
    pub(crate) fn show_tree(&self, tree: Map<String, Value>) -> Map<String, Value> {
        self.version.shown(tree)
    }

    /// Makes of a tree of this version what is stored of it.
    pub(crate) fn keep_tree(&self, tree: &mut Map<String, Value>) {
        *tree = self.version.kept(std::mem::take(tree));
    }

    /// Fills in what this version's decoder fills in.
    pub(crate) fn default(&self, tree: &mut Map<String, Value>) {
        (self.version.default)(tree);
    }
}

/// Bytes through a tree. What is no object stays as it is: the store holds none.
fn through(json: &[u8], change: impl FnOnce(Map<String, Value>) -> Map<String, Value>) -> Bytes {
    let changed = serde_json::from_slice(json).and_then(|tree| serde_json::to_vec(&change(tree)));
    changed.map_or_else(|_| Bytes::copy_from_slice(json), Bytes::from)
}

/// Moves members from one tree to another in the order of `names`, each under its new name; what has
/// no place in the list stays behind.
fn moved(mut from: Map<String, Value>, names: &[(&str, &str)]) -> Map<String, Value> {
    let mut to = Map::with_capacity(names.len());
    for (old, new) in names {
        if let Some(value) = from.get_mut(*old) {
            to.insert((*new).to_owned(), value.take());
        }
    }
    to
}

#[cfg(test)]
mod tests;
