//! Rules that Kubernetes' kinds share, as pure functions over JSON objects.
#![forbid(unsafe_code)]

pub mod base64;
pub mod clock;
pub mod common;
pub mod diff;
pub mod errors;
pub mod field_rules;
pub mod fields;
pub mod formats;
pub mod label_selector;
pub mod names;
pub mod object_meta;
pub mod pod_spec;
pub mod quantities;
pub mod resource_names;
pub mod volume_claim;
pub mod volume_source;

use serde_json::{Map, Value};

pub use common::*;
pub use errors::Errors;
pub use fields::*;

/// A JSON object.
pub type Object = Map<String, Value>;
