//! [`Conversion`]: conversion between the stored version of a built-in kind and a second served version.
//!
//! An object is stored, cached and validated in one version. Reads and writes in a second version are converted:
//!
//! ```text
//!  bytes in the store and the cache  ──show──▶ object in the second version
//!          strategy of the kind      ◀──to_storage_version── object in the second version, with its defaults
//! ```
//!
//! Kubernetes converts both ways through an internal type that has the same fields as the stored version. Here each
//! second version has one pair of functions over trees, as in `pkg/apis/*/v1/conversion.go` (v1.36). Resource
//! versions, names and managed fields are the same in both versions.

use std::sync::Arc;

use bytes::Bytes;
use listwatch_json::Map;
use listwatch_kinds::versions::SecondVersion;
use listwatch_meta::{Object, ObjectShape};

/// Conversion rules of a second version of a built-in kind.
#[derive(Clone, Debug)]
pub struct Conversion {
    /// The object shape of the stored version.
    pub(crate) stored_shape: Arc<ObjectShape>,
    /// The conversion functions between the two versions.
    pub(crate) version: &'static SecondVersion,
}

impl Conversion {
    /// Converts the bytes of a stored object to this version.
    pub fn show(&self, json: &[u8]) -> Bytes {
        convert(json, |tree| self.version.from_storage_version(tree))
    }

    /// Converts a stored object to this version. The change type and the revision stay the same.
    pub(crate) fn show_object(&self, object: &Object) -> Object {
        object.with_json(&self.show(object.json_slice()), &self.stored_shape).unwrap_or_else(|_| object.clone())
    }

    /// Converts the bytes of an object from this version to the stored version.
    pub fn to_storage_version(&self, json: &[u8]) -> Bytes {
        convert(json, |tree| self.version.to_storage_version(tree))
    }

    /// Converts a stored tree to this version.
    pub(crate) fn show_tree(&self, tree: Map) -> Map {
        self.version.from_storage_version(tree)
    }
}

/// Applies `change` to the parsed bytes. Returns bytes that are not a JSON object unchanged; the store contains only
/// JSON objects.
fn convert(json: &[u8], change: impl FnOnce(Map) -> Map) -> Bytes {
    let changed = serde_json::from_slice(json).and_then(|tree| serde_json::to_vec(&change(tree)));
    changed.map_or_else(|_| Bytes::copy_from_slice(json), Bytes::from)
}
