//! Structural schemas of CustomResourceDefinitions: pure, no I/O, no HTTP.
//!
//! ```text
//!  openAPIV3Schema ──check──▶ field errors of an invalid definition
//!        └────────parse─────▶ Schema ──prune, default──▶ the object as it is stored
//!                                    └─validate────────▶ field errors of an invalid object
//! ```
//!
//! The rules and messages are those of Kubernetes 1.36, because clients compare them.
//!
//! A write calls [`Schema::prune_nulls`], [`Schema::default`], [`Schema::prune`] and
//! [`Schema::coerce_embedded`] in this order, and then [`Schema::validate`] or
//! [`Schema::validate_update`].
//!
//! ```
//! use listwatch_schema::Schema;
//! use listwatch_json::json;
//!
//! let schema = Schema::parse(&json!({
//!     "type": "object",
//!     "properties": {"spec": {"type": "object", "properties": {
//!         "replicas": {"type": "integer", "minimum": 0, "default": 1},
//!     }}},
//! }))?;
//! let mut object = json!({"spec": {"color": "red"}});
//! schema.default(&mut object);
//! assert_eq!(schema.prune(&mut object), ["spec.color"]);
//! assert_eq!(object, json!({"spec": {"replicas": 1}}));
//!
//! object["spec"]["replicas"] = json!(-1);
//! let errors = schema.validate(&object);
//! assert_eq!(errors[0].field, "spec.replicas");
//! assert_eq!(errors[0].message, "Invalid value: -1: spec.replicas in body should be greater than or equal to 0");
//! # Ok::<(), listwatch_schema::ParseError>(())
//! ```
//!
//! # Memory
//! A [`Schema`] contains only the data that requests need, without descriptions. Equal parts are
//! stored once. Regular expressions and rules are compiled at their first use.
//!
//! # Limits
//! Every limit is a constant of [`limits`], which documents the behavior at the limit.
#![forbid(unsafe_code)]

mod check;
mod columns;
mod defaults;
mod embedded;
mod field_errors;
mod formats;
mod golang;
pub mod limits;
mod object;
mod path;
mod props;
mod prune;
mod publish;
mod ratchet;
mod rules;
mod schema;
mod unique;
mod validate;

pub use check::{CheckContext, CheckReport, Requirements, SchemaFeatures, check, is_published, structural_violations};
pub use columns::{check_printer_column, check_scale};
pub use defaults::DefaultsTooLarge;
pub use embedded::{has_sound_metadata, repair_metadata};
pub use formats::each_unknown_format;
pub use object::UpdateReport;
pub use path::Path;
pub use props::ParseError;
pub use publish::{OpenApi, TYPE_META, publish};
pub use schema::{Interner, Kind, ListType, NodeRef, Schema};

/// The example of the README, as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
