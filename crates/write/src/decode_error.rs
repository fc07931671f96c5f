//! Error responses for objects that cannot be decoded: [`DecodeErrorStyle`].

use listwatch_json::{Map, Value};
use listwatch_meta::{FieldError, Status};

/// The form of the error response for an object that cannot be decoded.
#[derive(Clone, Copy, Debug)]
pub(super) enum DecodeErrorStyle<'a> {
    /// A 400: the request body is not an object of the expected kind.
    Body,
    /// A 422 for a patch. The message quotes the patched object.
    Patch,
    /// A 422 for a strategic merge patch. The message quotes the patch, which this variant holds.
    StrategicPatch(&'a [u8]),
    /// A 500 for an apply configuration that cannot be merged. Holds the description of the object.
    Apply(&'a str),
}

/// Returns the 422 for a patch whose result cannot be decoded. Quotes the patched object.
pub(super) fn not_decodable(object: &Map, why: &str) -> Status {
    not_decodable_from(&Value::Object(object.clone()).to_string(), why)
}

/// Same as [`not_decodable`], but quotes `shown`: the patch or the patched object.
pub(super) fn not_decodable_from(shown: &str, why: &str) -> Status {
    Status::invalid("", "", "", &[FieldError::invalid("patch", Value::from(shown), why)])
}

/// Returns the 500 for an apply whose merged object does not fit its kind.
pub(super) fn not_convertible(described: &str, why: &str) -> Status {
    Status::unknown(format!("failed to convert new typed object ({described}) to object: {why}"))
}
