//! The resources that a Kubernetes API server serves, and the state below its requests.
//!
//! | to find | see |
//! |---|---|
//! | one served kind in a group and version | [`Resource`] |
//! | everything that is served at one moment | [`Registry`] |
//! | the store, the registry and one watch cache per resource | [`Backend`] |
//! | how values are encoded and encrypted in the store | [`StoredForm`] |
//! | custom resources: definitions, names, schemas, versions | [`Definitions`], [`Form`], [`CustomKind`] |
//! | why controllers cannot do their work | [`Problems`] |
//!
//! The crate speaks no HTTP. `listwatch-write` writes objects through it, `listwatch-controllers` keeps it in step
//! with the stored definitions, and `listwatch-apiserver` answers requests from it.
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
mod problems;
mod registry;
mod resource;
mod stored_form;
mod token_objects;
mod tokens;

pub use listwatch_apiextensions::PrinterColumn;
pub use listwatch_kinds::{ForeignKind, Subresource, WriteRules};
pub use listwatch_validation::names::NameRule;

pub use crate::backend::{Backend, CreatingIn};
pub use crate::budget_task::spawn_cache_budget;
pub use crate::conversion::Conversion;
pub use crate::custom::{Creating, CustomKind, FitError, Form, StatusWork, Work, nested, resources_of};
pub use crate::definitions::{DEFINITIONS_GROUP, DEFINITIONS_PLURAL, DEFINITIONS_VERSION, Definitions};
pub use crate::problems::Problems;
pub use crate::registry::Registry;
pub use crate::resource::Resource;
pub use crate::stored_form::{StorageMediaType, StoredForm, rewrite_stale_keys};
pub use crate::token_objects::TokenObjects;
pub use crate::tokens::Tokens;

/// Compiles the examples of the README as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
