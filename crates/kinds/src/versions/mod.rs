//! Second versions of built-in kinds: [`SecondVersion`]. Objects are stored and validated in one version; the
//! other is converted at the edge.
//!
//! Kubernetes converts both ways through an internal type that equals the stored version but for its name.
//! Each second version is therefore one pair of functions over trees (`pkg/apis/*/v1/conversion.go`, v1.36).

pub mod autoscaling;

use listwatch_apply::Convert;
use listwatch_meta::SelectableField;
use listwatch_validation::names::NameRule;
use listwatch_validation::{Errors, Object};
use serde_json::Value;

/// A second version of a built-in kind.
#[derive(Debug)]
pub struct SecondVersion {
    /// The API group that serves the version.
    pub group: &'static str,
    /// The version.
    pub version: &'static str,
    /// Group, version and plural of the stored version.
    pub of: (&'static str, &'static str, &'static str),
    /// The kind, the same in both versions.
    pub kind: &'static str,
    /// Discovery shows the version behind the last resource of this group.
    pub behind: &'static str,
    /// The rule for names.
    pub names: NameRule,
    /// The label in this version of a selectable field of the stored version; `None` for a field that is not
    /// selectable here. Without the function, labels are those of the stored version.
    pub label: Option<fn(&SelectableField) -> Option<String>>,
    /// Fills in the defaults of this version.
    pub default: fn(&mut Object),
    /// Converts from the stored version, except `apiVersion`.
    pub show: fn(Object) -> Object,
    /// Converts to the stored version, except `apiVersion`.
    pub keep: fn(Object) -> Object,
    /// Validates what upstream validates only for objects that are written in this version. Both objects are in
    /// the stored version; the second is the one to be replaced.
    pub validate: fn(&Object, Option<&Object>, &mut Errors),
    /// Converts between the two versions, for managed fields.
    pub convert: Convert,
}

/// All second versions.
pub static SECOND_VERSIONS: [&SecondVersion; 2] = [&crate::core::event_v1::V1, &autoscaling::V1];

impl SecondVersion {
    /// `events.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// `v1`, `autoscaling/v2`.
    pub fn stored_api_version(&self) -> String {
        match self.of {
            ("", version, _) => version.to_owned(),
            (group, version, _) => format!("{group}/{version}"),
        }
    }

    /// Converts a stored object to this version.
    pub fn shown(&self, tree: Object) -> Object {
        with_api_version((self.show)(tree), self.api_version())
    }

    /// Converts an object of this version to the stored version.
    pub fn kept(&self, tree: Object) -> Object {
        with_api_version((self.keep)(tree), self.stored_api_version())
    }

    /// The object in the version that is asked for, one of this version's two.
    pub(crate) fn converted(&self, object: &Value, api_version: &str) -> Value {
        let Value::Object(tree) = object else { return object.clone() };
        let is = tree.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        if is == api_version {
            return object.clone();
        }
        let tree = tree.clone();
        Value::Object(if api_version == self.api_version() { self.shown(tree) } else { self.kept(tree) })
    }
}

fn with_api_version(mut tree: Object, api_version: String) -> Object {
    tree.insert("apiVersion".to_owned(), Value::String(api_version));
    tree
}

/// The other version of a kind that has two (`v1`, `apps/v1`), and how objects go there and back.
pub fn other(api_version: &str, kind: &str) -> Option<(String, Convert)> {
    SECOND_VERSIONS.iter().filter(|version| version.kind == kind).find_map(|version| {
        let (stored, second) = (version.stored_api_version(), version.api_version());
        match api_version {
            asked if asked == stored => Some((second, version.convert)),
            asked if asked == second => Some((stored, version.convert)),
            _ => None,
        }
    })
}

/// Moves members from one tree to another in the order of `names`, each under its new name; what has
/// no place in the list stays behind.
fn moved(mut from: Object, names: &[(&str, &str)]) -> Object {
    let mut to = Object::with_capacity(names.len());
    for (old, new) in names {
        if let Some(value) = from.get_mut(*old) {
            to.insert((*new).to_owned(), value.take());
        }
    }
    to
}
