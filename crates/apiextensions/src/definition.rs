//! [`Definition`]: a CustomResourceDefinition without its schemas.
//!
//! The server keeps definitions in this form. The parser makes one pass over the bytes and skips the schemas, which are
//! most of the bytes. The types are those of `apiextensions.k8s.io/v1`.

#![expect(missing_docs, reason = "the fields are those of the Kubernetes API reference")]

use listwatch_json::Map;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use crate::ca_bundle::ca_bundle_error;
use crate::conversion::ConversionWebhook;

/// The finalizer that keeps a definition until its objects are deleted (`CustomResourceCleanupFinalizer`).
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The annotation that names the approval of a community group (`KubeAPIApprovedAnnotation`).
pub(crate) const APPROVAL_ANNOTATION: &str = "api-approved.kubernetes.io";

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

/// The metadata that the server reads.
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

/// The annotations that the server reads.
#[derive(Debug, Default, Clone, Deserialize)]
pub struct Annotations {
    #[serde(rename = "api-approved.kubernetes.io", default)]
    pub approval: Option<String>,
}

/// The fields of the spec that the server reads.
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
    pub preserve_unknown_fields: bool,
    #[serde(default, deserialize_with = "or_default")]
    conversion: Conversion,
}

/// The conversion between versions.
#[derive(Debug, Default, Clone, Deserialize)]
struct Conversion {
    #[serde(default, deserialize_with = "or_default")]
    strategy: String,
    #[serde(default)]
    webhook: Option<WebhookConversion>,
}

/// The webhook of a conversion.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WebhookConversion {
    #[serde(default, deserialize_with = "or_default")]
    client_config: Map,
    #[serde(default, deserialize_with = "or_default")]
    conversion_review_versions: Vec<String>,
}

/// The names of a definition: the requested names in the spec, or the accepted names in the status.
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

/// One version without its schema.
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
    pub additional_printer_columns: Vec<PrinterColumn>,
    #[serde(default, deserialize_with = "or_default")]
    pub selectable_fields: Vec<Selectable>,
}

/// The subresources of a version.
#[derive(Debug, Default, Clone, Deserialize)]
pub struct Subresources {
    #[serde(default)]
    pub status: Option<IgnoredAny>,
    #[serde(default)]
    pub scale: Option<ScalePaths>,
}

/// The JSON paths of the fields that the scale subresource reads and writes.
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

/// An additional printer column of a version.
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PrinterColumn {
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    #[serde(rename = "type", default, deserialize_with = "or_default")]
    pub type_: String,
    #[serde(default, deserialize_with = "or_default")]
    pub format: String,
    #[serde(default, deserialize_with = "or_default")]
    pub description: String,
    #[serde(default, deserialize_with = "or_default")]
    pub priority: i32,
    #[serde(default, deserialize_with = "or_default")]
    pub json_path: String,
}

/// A field that field selectors can use.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Selectable {
    #[serde(default, deserialize_with = "or_default")]
    pub json_path: String,
}

/// The status of a definition.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DefinitionStatus {
    #[serde(default, deserialize_with = "or_default")]
    pub accepted_names: Names,
    #[serde(default, deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
}

/// A condition without `lastTransitionTime`.
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

/// Reads `null` as the default value, as Go does.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl Definition {
    /// Parses a definition from JSON.
    ///
    /// # Errors
    /// The bytes are not JSON, or a member has another type than in `apiextensions.k8s.io/v1`.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }

    /// Whether the definition is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the definition is being deleted and its objects are not deleted yet.
    pub fn awaits_cleanup(&self) -> bool {
        self.is_deleting() && self.metadata.finalizers.iter().any(|name| name == FINALIZER)
    }

    /// Whether objects live in namespaces.
    pub fn is_namespaced(&self) -> bool {
        self.spec.scope == "Namespaced"
    }

    /// The webhook that converts objects between versions; `None` if versions differ only in `apiVersion`.
    pub fn conversion_webhook(&self) -> Option<ConversionWebhook> {
        let Conversion { strategy, webhook } = &self.spec.conversion;
        (strategy == "Webhook").then(|| match webhook {
            Some(webhook) => ConversionWebhook::new(&webhook.client_config, &webhook.conversion_review_versions),
            None => ConversionWebhook::new(&Map::new(), &[]),
        })
    }

    /// Whether the CA bundle of the conversion webhook cannot be parsed. Such a definition is not established.
    pub fn has_invalid_ca_bundle(&self) -> bool {
        let webhook = self.spec.conversion.webhook.as_ref();
        let bundle =
            webhook.and_then(|webhook| webhook.client_config.get("caBundle")).and_then(|bundle| bundle.as_str());
        bundle.and_then(ca_bundle_error).is_some()
    }

    /// The version in which objects are stored.
    pub fn storage_version(&self) -> Option<&Version> {
        self.spec.versions.iter().find(|version| version.storage)
    }

    /// The condition of the type `kind`; `None` if the status lacks it.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// Whether the condition of the type `kind` is `True`.
    pub fn is(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(|condition| condition.status == "True")
    }

    /// The prefix of the keys of stored objects: `<group>/<plural>`.
    pub fn storage_prefix(&self) -> String {
        format!("{}/{}", self.spec.group, self.spec.names.plural)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_reads_definition_and_rejects_wrong_types() {
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
        assert!(!definition.spec.preserve_unknown_fields);
        assert!(Definition::parse(br#"{"spec":{"preserveUnknownFields":true}}"#).unwrap().spec.preserve_unknown_fields);
        assert!(Definition::parse(br#"{"spec":{"versions":"v1"}}"#).is_err());
        assert!(!Definition::parse(b"{}").unwrap().is_deleting());
    }
}
