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

use std::sync::Arc;

use bytes::Bytes;
use listwatch_kinds::versions::SecondVersion;
pub(crate) use listwatch_kinds::versions::{SECOND_VERSIONS, other};
use listwatch_kinds::{SecondVersionStrategy, Strategy as _};
use listwatch_meta::Object;
use serde_json::{Map, Value};

use crate::registry::Resource;

/// A second version of a built-in kind, and the resource in which its objects are stored.
#[derive(Clone, Debug)]
pub(crate) struct Conversion {
    stored: Arc<Resource>,
    pub(crate) version: &'static SecondVersion,
}

/// The resource of a second version, given that of the stored one.
pub(crate) fn resource(version: &'static SecondVersion, stored: &Arc<Resource>) -> Resource {
    let mut resource = Resource::clone(stored);
    version.group.clone_into(&mut resource.group);
    version.version.clone_into(&mut resource.version);
    if let Some(kind) = stored.builtin {
        let strategy = SecondVersionStrategy { version, stored: kind };
        resource.rules = strategy.rules();
        resource.strategy = Arc::new(strategy);
    }
    if let Some(label) = version.label {
        resource.shape = Arc::new(stored.shape.with_selector_labels(label));
    }
    resource.conversion = Some(Conversion { stored: Arc::clone(stored), version });
    resource
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
}

/// Bytes through a tree. What is no object stays as it is: the store holds none.
fn through(json: &[u8], change: impl FnOnce(Map<String, Value>) -> Map<String, Value>) -> Bytes {
    let changed = serde_json::from_slice(json).and_then(|tree| serde_json::to_vec(&change(tree)));
    changed.map_or_else(|_| Bytes::copy_from_slice(json), Bytes::from)
}

#[cfg(test)]
mod tests;
