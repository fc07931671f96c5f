//! [`Definition`]: what the server remembers of a `CustomResourceDefinition` while nobody asks for
//! its schemas.
//!
//! Read from the definition's bytes in one pass that skips the schemas, which are most of it. The
//! types are those of `apiextensions.k8s.io/v1`.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use crate::registry::PrinterColumn;

/// The finalizer by which a definition waits until its objects are gone.
pub(crate) const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The annotation by which groups below `k8s.io` and `kubernetes.io` say who approved them.
pub(crate) const APPROVAL_ANNOTATION: &str = "api-approved.kubernetes.io";

/// A definition without its schemas.
#[derive(Debug, Default, Clone, Deserialize)]
pub(crate) struct Definition {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) metadata: Metadata,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) spec: Spec,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) status: DefinitionStatus,
}

/// The part of the metadata that matters here.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Metadata {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) uid: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) generation: i64,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) creation_timestamp: String,
    #[serde(default)]
    pub(crate) deletion_timestamp: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) finalizers: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) annotations: Annotations,
}

/// Of all annotations the one that is looked at.
#[derive(Debug, Default, Clone, Deserialize)]
pub(crate) struct Annotations {
    #[serde(rename = "api-approved.kubernetes.io", default)]
    pub(crate) approval: Option<String>,
}

/// `spec`, as far as it matters here.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Spec {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) group: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) names: Names,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) scope: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) versions: Vec<Version>,
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
pub(crate) struct Names {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) plural: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) singular: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) short_names: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) kind: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) list_kind: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) categories: Vec<String>,
}

/// One version, its schema left out.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Version {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) served: bool,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) storage: bool,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) deprecated: bool,
    #[serde(default)]
    pub(crate) deprecation_warning: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) subresources: Subresources,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) additional_printer_columns: Vec<ColumnDefinition>,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) selectable_fields: Vec<Selectable>,
}

/// What a version serves besides itself.
#[derive(Debug, Default, Clone, Deserialize)]
pub(crate) struct Subresources {
    #[serde(default)]
    pub(crate) status: Option<IgnoredAny>,
    #[serde(default)]
    pub(crate) scale: Option<ScalePaths>,
}

/// Where a Scale finds its values.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ScalePaths {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) spec_replicas_path: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) status_replicas_path: String,
    #[serde(default)]
    pub(crate) label_selector_path: Option<String>,
}

/// A column of a version's Tables.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ColumnDefinition {
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
pub(crate) struct Selectable {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) json_path: String,
}

/// `status`.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DefinitionStatus {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) accepted_names: Names,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) conditions: Vec<Condition>,
}

/// A condition, without its time.
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Condition {
    #[serde(rename = "type", default, deserialize_with = "or_default")]
    pub(crate) kind: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) status: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) reason: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) message: String,
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
    pub(crate) fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }

    /// Is it on its way out?
    pub(crate) fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Does it wait for its objects to be removed?
    pub(crate) fn awaits_cleanup(&self) -> bool {
        self.is_deleting() && self.metadata.finalizers.iter().any(|name| name == FINALIZER)
    }

    /// Do objects live in namespaces?
    pub(crate) fn is_namespaced(&self) -> bool {
        self.spec.scope == "Namespaced"
    }

    /// Would a webhook have to be asked for objects of this version? Nobody asks webhooks here, so it
    /// is not served: objects would be shown in a form that they do not have.
    pub(crate) fn needs_webhook(&self, version: &Version) -> bool {
        self.spec.conversion.strategy == "Webhook" && !version.storage
    }

    /// The version in which objects are stored.
    pub(crate) fn storage_version(&self) -> Option<&Version> {
        self.spec.versions.iter().find(|version| version.storage)
    }

    /// A condition of its status.
    pub(crate) fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// Is a condition there and true?
    pub(crate) fn is(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(|condition| condition.status == "True")
    }

    /// The prefix below which the objects are stored.
    pub(crate) fn storage_prefix(&self) -> String {
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
