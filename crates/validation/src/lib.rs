//! Rules that Kubernetes' kinds share, as pure functions over JSON objects.
//!
//! | module | rules |
//! |---|---|
//! | [`names`], [`object_meta`] | names, `generateName`, labels, annotations, owner references, finalizers |
//! | [`formats`], [`base64`], [`quantities`], [`resource_names`] | addresses, DNS names, amounts of resources |
//! | [`times`], [`time_zones`], [`image_reference`] | times, names of time zones, references of images |
//! | [`field_rules`], [`common`] | immutable fields, numbers and percentages, conditions, label selectors |
//! | [`pod_spec`], [`volume_source`], [`volume_claim`] | pods, templates of pods, volumes |
//! | [`fields`] | access to the members of JSON objects, as Go reads a struct |
//! | [`null_members`] | objects without their `null` members, as Go decodes them |
//! | [`typed_equality`] | equality of objects of built-in types, as Go compares structs |
//!
//! Sources: `apimachinery/pkg/api/validation`, `apimachinery/pkg/util/validation` and `pkg/apis/core/validation` of
//! Kubernetes v1.36.
//!
//! # Example
//! ```
//! use listwatch_validation::names::{NameRule, problems};
//!
//! assert!(problems(NameRule::Subdomain, "web.example.com", false).is_empty());
//! let why = problems(NameRule::Label, "web.example.com", false);
//! assert_eq!(why, ["must not contain dots"]);
//! ```
#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod base64;
pub mod clock;
pub mod common;
pub mod diff;
pub mod errors;
pub mod field_rules;
pub mod fields;
pub mod formats;
pub mod image_reference;
pub mod label_selector;
pub mod names;
pub mod null_members;
pub mod object_meta;
pub mod pod_spec;
pub mod quantities;
pub mod resource_names;
pub mod time_zones;
pub mod times;
pub mod typed_equality;
pub mod volume_claim;
pub mod volume_source;

use listwatch_json::Map;

pub use common::*;
pub use errors::Errors;
pub use fields::*;

/// A JSON object.
pub type Object = Map;
