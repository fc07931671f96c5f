//! The resources that a Kubernetes API server serves, and the state that its request handlers share.
//!
//! | subject | item |
//! |---|---|
//! | one served kind in a group and version | [`Resource`] |
//! | all resources served at one time | [`Registry`] |
//! | selection of the served built-in group versions | [`RuntimeConfig`] |
//! | the store, the registry and one watch cache per resource | [`Backend`] |
//! | encoding and encryption of values in the store | [`StoredForm`] |
//! | custom resources: definitions, names, schemas, versions | [`Definitions`], [`Form`], [`CustomKind`] |
//! | conversion webhooks, and converters as functions of this process | [`ConversionCallers`], [`ConversionHandler`] |
//! | the current errors of controllers | [`Problems`] |
//!
//! The crate has no HTTP. `listwatch-write` writes objects through this crate, `listwatch-controllers` applies changes
//! of stored definitions, and `listwatch-apiserver` serves requests.
//!
//! # Example
//! ```
//! use listwatch_registry::Registry;
//!
//! let registry = Registry::builtin();
//! let pods = registry.find("", "v1", "pods").expect("pods are served");
//! assert_eq!(pods.kind, "Pod");
//! assert_eq!(pods.key(Some("default"), "web")?.as_str(), "/pods/default/web");
//! assert!(pods.subresource("status").is_some());
//! # Ok::<(), listwatch_meta::Status>(())
//! ```
#![forbid(unsafe_code)]

mod backend;
mod budget_task;
mod builtin;
mod cache_budget;
mod conversion;
mod custom;
mod definitions;
mod index;
mod legacy_token_uses;
mod problems;
mod registry;
mod resource;
mod runtime_config;
mod stored_form;
mod token_objects;
mod tokens;
mod tree;

pub use listwatch_apiextensions::PrinterColumn;
pub use listwatch_kinds::{ForeignKind, Subresource, WriteRules};
pub use listwatch_validation::names::NameRule;

pub use crate::backend::{Backend, CreatingIn};
pub use crate::budget_task::spawn_cache_budget;
pub use crate::conversion::{Conversion, ConversionCallers, ConversionHandler, ConversionRequest};
pub use crate::custom::{
    Creating, CustomKind, DefaultAndPruneError, Form, SchemaWork, StatusWork, Work, nested, resources_of,
};
pub use crate::definitions::{DEFINITIONS_GROUP, DEFINITIONS_PLURAL, DEFINITIONS_VERSION, Definitions};
pub use crate::legacy_token_uses::LegacyTokenUses;
pub use crate::problems::Problems;
pub use crate::registry::{BuiltinOptions, Registry};
pub use crate::resource::{EncodingSerial, Resource};
pub use crate::runtime_config::{InvalidRuntimeConfig, RuntimeConfig};
pub use crate::stored_form::{StorageMediaType, StoredForm, rewrite_stale_keys};
pub use crate::token_objects::{LEGACY_TOKEN_LAST_USED, TokenObjects};
pub use crate::tokens::Tokens;
pub use crate::tree::{encode_tree, parse_tree};

/// Compiles the examples of the README as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
