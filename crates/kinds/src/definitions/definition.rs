//! [`Definition`]: what the server remembers of a `CustomResourceDefinition` while nobody asks for
//! its schemas.
//!
//! Read from the definition's bytes in one pass that skips the schemas, which are most of it. The
//! types are those of `apiextensions.k8s.io/v1`.

#![expect(missing_docs, reason = "the fields are those of the Kubernetes API reference")]

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use crate::table::PrinterColumn;

/// The finalizer by which a definition waits until its objects are gone.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The annotation by which groups below `k8s.io` and `kubernetes.io` say who approved them.
pub(super) const APPROVAL_ANNOTATION: &str = "api-approved.kubernetes.io";

/// A definition without its schemas.
#[derive(Debug, Default, Clone, Deserialize)]
pub struct Definition {
    #[serde(default, deserialize_with = "or_default")]
    pub metadata: Metadata,
    #[serde(default, deserialize_with = "or_default")]
    pub spec: Spec,
    #[serde(default, deserialize_with = "or_default")]
    pub status: DefinitionStatus,
}

/// The part of the metadata that matters here.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    #[serde(default, deserialize_with = "or_default")]
    pub uid: String,
    #[serde(default, deserialize_with = "or_default")]
    pub generation: i64,
    #[serde(default, deserialize_with = "or_default")]
    pub creation_timestamp: String,
    #[serde(default)]
    pub deletion_timestamp: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub finalizers: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub annotations: Annotations,
}

/// Of all annotations the one that is looked at.
#[derive(Debug, Default, Clone, Deserialize)]
pub struct Annotations {
    #[serde(rename = "api-approved.kubernetes.io", default)]
    pub approval: Option<String>,
}

/// `spec`, as far as it matters here.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    #[serde(default, deserialize_with = "or_default")]
    pub group: String,
    #[serde(default, deserialize_with = "or_default")]
    pub names: Names,
    #[serde(default, deserialize_with = "or_default")]
    pub scope: String,
    #[serde(default, deserialize_with = "or_default")]
    pub versions: Vec<Version>,
    #[serde(default, deserialize_with = "or_default")]
    conversion: Conversion,
}

/// How versions become each other.
#[derive(Debug, Default, Clone, Deserialize)]
struct Conversion {
    #[serde(default, deserialize_with = "or_default")]
    strategy: String,
}

/// Names that a definition asks for, or was given.
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Names {
    #[serde(default, deserialize_with = "or_default")]
    pub plural: String,
    #[serde(default, deserialize_with = "or_default")]
    pub singular: String,
    #[serde(default, deserialize_with = "or_default")]
    pub short_names: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub kind: String,
    #[serde(default, deserialize_with = "or_default")]
    pub list_kind: String,
    #[serde(default, deserialize_with = "or_default")]
    pub categories: Vec<String>,
}

/// One version, its schema left out.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Version {
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub served: bool,
    #[serde(default, deserialize_with = "or_default")]
    pub storage: bool,
    #[serde(default, deserialize_with = "or_default")]
    pub deprecated: bool,
    #[serde(default)]
    pub deprecation_warning: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub subresources: Subresources,
    #[serde(default, deserialize_with = "or_default")]
    pub additional_printer_columns: Vec<ColumnDefinition>,
    #[serde(default, deserialize_with = "or_default")]
    pub selectable_fields: Vec<Selectable>,
}

/// What a version serves besides itself.
#[derive(Debug, Default, Clone, Deserialize)]
pub struct Subresources {
    #[serde(default)]
    pub status: Option<IgnoredAny>,
    #[serde(default)]
    pub scale: Option<ScalePaths>,
}

/// Where a Scale finds its values.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScalePaths {
    #[serde(default, deserialize_with = "or_default")]
    pub spec_replicas_path: String,
    #[serde(default, deserialize_with = "or_default")]
    pub status_replicas_path: String,
    #[serde(default)]
    pub label_selector_path: Option<String>,
}

/// A column of a version's Tables.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ColumnDefinition {
    #[serde(default, deserialize_with = "or_default")]
    name: String,
    #[serde(rename = "type", default, deserialize_with = "or_default")]
    type_: String,
    #[serde(default, deserialize_with = "or_default")]
    format: String,
    #[serde(default, deserialize_with = "or_default")]
    description: String,
    #[serde(default, deserialize_with = "or_default")]
    priority: i32,
    #[serde(default, deserialize_with = "or_default")]
    json_path: String,
}

impl From<ColumnDefinition> for PrinterColumn {
    fn from(column: ColumnDefinition) -> Self {
        let ColumnDefinition { name, type_, format, description, priority, json_path } = column;
        PrinterColumn { name, type_, format, description, priority, json_path }
    }
}

/// A field that selectors may name.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Selectable {
    #[serde(default, deserialize_with = "or_default")]
    pub json_path: String,
}

/// `status`.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DefinitionStatus {
    #[serde(default, deserialize_with = "or_default")]
    pub accepted_names: Names,
    #[serde(default, deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
}

/// A condition, without its time.
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
pub struct Condition {
    #[serde(rename = "type", default, deserialize_with = "or_default")]
    pub kind: String,
    #[serde(default, deserialize_with = "or_default")]
    pub status: String,
    #[serde(default, deserialize_with = "or_default")]
    pub reason: String,
    #[serde(default, deserialize_with = "or_default")]
    pub message: String,
}

/// `null` is what is not there.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl Definition {
    /// Reads a definition's JSON.
    ///
    /// # Errors
    /// When a member has another type than `apiextensions.k8s.io/v1` gives it.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }

    /// Is it on its way out?
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Does it wait for its objects to be removed?
    pub fn awaits_cleanup(&self) -> bool {
        self.is_deleting() && self.metadata.finalizers.iter().any(|name| name == FINALIZER)
    }

    /// Do objects live in namespaces?
    pub fn is_namespaced(&self) -> bool {
        self.spec.scope == "Namespaced"
    }

    /// Would a webhook have to be asked for objects of this version? Nobody asks webhooks here, so it
    /// is not served: objects would be shown in a form that they do not have.
    pub fn needs_webhook(&self, version: &Version) -> bool {
        self.spec.conversion.strategy == "Webhook" && !version.storage
    }

    /// The version in which objects are stored.
    pub fn storage_version(&self) -> Option<&Version> {
        self.spec.versions.iter().find(|version| version.storage)
    }

    /// A condition of its status.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// Is a condition there and true?
    pub fn is(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(|condition| condition.status == "True")
    }

    /// The prefix below which the objects are stored.
    pub fn storage_prefix(&self) -> String {
        format!("{}/{}", self.spec.group, self.spec.names.plural)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_is_read_without_its_schemas() {
        let json = br#"{"metadata":{"name":"widgets.example.com","uid":"u","generation":2,"annotations":{"a":"b"},
            "finalizers":["customresourcecleanup.apiextensions.k8s.io"],"deletionTimestamp":"2024-01-01T00:00:00Z"},
            "spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget","shortNames":null},
            "versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}},
            "subresources":{"status":{},"scale":{"specReplicasPath":".spec.n","statusReplicasPath":".status.n"}}}]},
            "status":{"conditions":null,"acceptedNames":{"plural":"","kind":""}}}"#;
        let definition = Definition::parse(json).unwrap();
        assert!(definition.awaits_cleanup() && definition.is_namespaced() && !definition.is("Established"));
        let version = definition.storage_version().unwrap();
        assert!(version.subresources.status.is_some());
        assert_eq!(version.subresources.scale.as_ref().unwrap().spec_replicas_path, ".spec.n");
        assert_eq!(definition.storage_prefix(), "example.com/widgets");
        assert!(Definition::parse(br#"{"spec":{"versions":"v1"}}"#).is_err());
        assert!(!Definition::parse(b"{}").unwrap().is_deleting());
    }
}
