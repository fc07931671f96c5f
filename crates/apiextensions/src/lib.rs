//! CustomResourceDefinitions as pure functions: their [`Kind`](listwatch_kinds::Kind), a parser of the fields that the
//! server reads, and functions that update the status. The API server serves the custom resources.
//!
//! | item | purpose |
//! |---|---|
//! | [`CUSTOM_RESOURCE_DEFINITION`] | names, defaults, validation and deletion of definitions |
//! | [`Definition`] | a definition without its schemas |
//! | [`condition`], [`set_condition`], [`remove_condition`], [`set_accepted`] | conditions and names in a status |
//! | [`non_structural_condition`] | the condition of definitions with schemas that are not structural |
//! | [`begin_storage_migration`], [`end_storage_migration`] | the status during and after a storage version migration |
//! | [`ConversionWebhook`], [`ConversionBatch`] | conversion between versions by webhook: requests, checks of responses |
//! | [`approval_condition`] | the condition of definitions in groups of the Kubernetes community |
//!
//! Rules: `staging/src/k8s.io/apiextensions-apiserver/pkg/{apis/apiextensions,registry/customresourcedefinition}` of
//! Kubernetes v1.36.
//!
//! # Example
//! ```
//! use listwatch_apiextensions::Definition;
//!
//! let definition = Definition::parse(br#"{
//!     "metadata": {"name": "widgets.example.com"},
//!     "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
//!              "versions": [{"name": "v1", "served": true, "storage": true}]}
//! }"#)?;
//! assert!(definition.is_namespaced() && !definition.is("Established"));
//! assert_eq!(definition.storage_version().map(|version| version.name.as_str()), Some("v1"));
//! # Ok::<(), serde_json::Error>(())
//! ```
#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod approval;
mod ca_bundle;
mod conversion;
mod custom_resource_definition;
mod definition;
mod format_warnings;
mod non_structural_schema;
mod status;
mod storage_migration;
mod strategy;
mod validation;

pub use approval::approval_condition;
pub use conversion::{
    ConversionBatch, ConversionError, ConversionFailureType, ConversionReviewVersion, ConversionWebhook,
    from_invalid_version, to_invalid_version,
};
pub use custom_resource_definition::CUSTOM_RESOURCE_DEFINITION;
pub use definition::{Condition, Definition, FINALIZER, Names, PrinterColumn, Version};
pub use non_structural_schema::{NON_STRUCTURAL_SCHEMA, non_structural_condition};
pub use status::{condition, remove_condition, set_accepted, set_condition};
pub use storage_migration::{begin_storage_migration, end_storage_migration};
