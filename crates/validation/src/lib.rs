//! Rules that Kubernetes' kinds share, as pure functions over JSON objects.
#![forbid(unsafe_code)]

pub mod clock;
pub mod common;
pub mod diff;
pub mod errors;
pub mod fields;
pub mod formats;
pub mod label_selector;
pub mod names;
pub mod object_meta;
pub mod quantities;

use serde_json::{Map, Value};

pub use common::*;
pub use errors::Errors;
pub use fields::*;

/// A JSON object.
pub type Object = Map<String, Value>;
