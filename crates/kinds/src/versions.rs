//! Second versions of built-in kinds: [`SecondVersion`]. The server stores and validates objects in one version and
//! converts requests and responses of the other.
//!
//! Upstream converts through an internal type whose fields are those of the stored version. Each second version is
//! therefore one pair of functions between the two versions (`pkg/apis/*/v1/conversion.go`, Kubernetes v1.36).

use listwatch_apply::Convert;
use listwatch_json::Value;
use listwatch_meta::SelectableField;
use listwatch_validation::names::NameRule;
use listwatch_validation::{Errors, Object};

/// A second version of a built-in kind.
#[derive(Debug)]
pub struct SecondVersion {
    /// The API group that serves the version.
    pub group: &'static str,
    /// The version.
    pub version: &'static str,
    /// Group, version and plural of the stored version.
    pub stored: (&'static str, &'static str, &'static str),
    /// The kind, the same in both versions.
    pub kind: &'static str,
    /// Discovery shows the version after the last resource of this group.
    pub after_group: &'static str,
    /// The rule for the names of objects in this version.
    pub names: NameRule,
    /// Returns the label of a selectable field of the stored version; `None` if the field is not selectable in this
    /// version. Without the function, labels are those of the stored version.
    pub label: Option<fn(&SelectableField) -> Option<String>>,
    /// Applies the defaults of this version.
    pub apply_defaults: fn(&mut Object),
    /// Converts from the stored version, except `apiVersion`.
    pub from_stored: fn(Object) -> Object,
    /// Converts to the stored version, except `apiVersion`.
    pub to_stored: fn(Object) -> Object,
    /// Applies the rules that upstream has only for this version. Both objects are in the stored version; the second
    /// is the one that the write replaces.
    pub validate: fn(&Object, Option<&Object>, &mut Errors),
    /// Converts between the two versions, for managed fields.
    pub convert: Convert,
}

/// All second versions of built-in kinds.
pub static SECOND_VERSIONS: [&SecondVersion; 2] =
    [&crate::core::event_v1::V1, &crate::autoscaling::horizontal_pod_autoscaler_v1::V1];

impl SecondVersion {
    /// The `apiVersion` of this version, e.g. `events.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// The `apiVersion` of the stored version, e.g. `v1` or `autoscaling/v2`.
    pub fn stored_api_version(&self) -> String {
        match self.stored {
            ("", version, _) => version.to_owned(),
            (group, version, _) => format!("{group}/{version}"),
        }
    }

    /// Converts a stored object to this version.
    pub fn from_storage_version(&self, object: Object) -> Object {
        with_api_version((self.from_stored)(object), self.api_version())
    }

    /// Converts an object of this version to the stored version.
    pub fn to_storage_version(&self, object: Object) -> Object {
        with_api_version((self.to_stored)(object), self.stored_api_version())
    }

    /// Converts an object to `api_version`, which is one of the two versions.
    pub(crate) fn convert_to(&self, object: &Value, api_version: &str) -> Value {
        let Value::Object(tree) = object else { return object.clone() };
        let is = tree.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        if is == api_version {
            return object.clone();
        }
        let tree = tree.clone();
        Value::Object(if api_version == self.api_version() {
            self.from_storage_version(tree)
        } else {
            self.to_storage_version(tree)
        })
    }
}

fn with_api_version(mut tree: Object, api_version: String) -> Object {
    tree.insert("apiVersion", Value::from(api_version));
    tree
}

/// For a kind with two versions, returns the `apiVersion` of the other version, and the conversion between the two.
pub fn other(api_version: &str, kind: &str) -> Option<(String, Convert)> {
    SECOND_VERSIONS.iter().filter(|version| version.kind == kind).find_map(|version| {
        let (stored, second) = (version.stored_api_version(), version.api_version());
        match api_version {
            requested if requested == stored => Some((second, version.convert)),
            requested if requested == second => Some((stored, version.convert)),
            _ => None,
        }
    })
}

/// Moves the members of an object that `names` lists (old name, new name) to a new object, in this order.
pub(crate) fn moved(mut from: Object, names: &[(&str, &str)]) -> Object {
    let mut to = Object::with_capacity(names.len());
    for (old, new) in names {
        if let Some(value) = from.get_mut(old) {
            to.insert(*new, value.take());
        }
    }
    to
}
