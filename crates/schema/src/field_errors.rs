//! Field errors with the messages of Kubernetes (apimachinery `util/validation/field`).

use std::fmt;

use listwatch_json::Value;
use listwatch_meta::FieldError;
use listwatch_meta::status::{cut, prefix};

use crate::golang::{bad_value, quote};
use crate::limits::FIELD_ERROR_BYTES_MAX;

fn error(field: impl fmt::Display, reason: &'static str, message: String) -> FieldError {
    FieldError { field: cut(field, FIELD_ERROR_BYTES_MAX), reason, message }
}

fn with_detail(text: String, detail: &str) -> String {
    let text = if detail.is_empty() { text } else { format!("{text}: {detail}") };
    if text.len() > FIELD_ERROR_BYTES_MAX { cut(text, FIELD_ERROR_BYTES_MAX) } else { text }
}

/// Quotes names like Go and joins them with a separator, up to [`FIELD_ERROR_BYTES_MAX`] bytes.
pub(crate) fn quoted<T: AsRef<str>>(names: impl IntoIterator<Item = T>, separator: &str) -> String {
    let mut out = String::new();
    for name in names {
        if out.len() > FIELD_ERROR_BYTES_MAX {
            return cut(out, FIELD_ERROR_BYTES_MAX);
        }
        if !out.is_empty() {
            out.push_str(separator);
        }
        out.push_str(&quote(shortened(name.as_ref())));
    }
    out
}

/// The part of a text that an error may contain.
fn shortened(text: &str) -> &str {
    prefix(text, FIELD_ERROR_BYTES_MAX)
}

/// The error `Invalid value`.
pub(crate) fn invalid(field: impl fmt::Display, value: &Value, detail: impl fmt::Display) -> FieldError {
    let text = format!("Invalid value: {}", bad_value(value));
    error(field, "FieldValueInvalid", with_detail(text, &detail.to_string()))
}

/// The error `Invalid value` for a string.
pub(crate) fn invalid_str(field: impl fmt::Display, value: &str, detail: impl fmt::Display) -> FieldError {
    error(
        field,
        "FieldValueInvalid",
        with_detail(format!("Invalid value: {}", quote(shortened(value))), &detail.to_string()),
    )
}

/// The error `Invalid value` for a value of the wrong type.
pub(crate) fn type_invalid(field: impl fmt::Display, value: &str, detail: impl fmt::Display) -> FieldError {
    error(
        field,
        "FieldValueTypeInvalid",
        with_detail(format!("Invalid value: {}", quote(shortened(value))), &detail.to_string()),
    )
}

/// The error `Required value`.
pub(crate) fn required(field: impl fmt::Display, detail: impl fmt::Display) -> FieldError {
    error(field, "FieldValueRequired", with_detail("Required value".into(), &detail.to_string()))
}

/// The error `Forbidden`.
pub(crate) fn forbidden(field: impl fmt::Display, detail: impl fmt::Display) -> FieldError {
    error(field, "FieldValueForbidden", with_detail("Forbidden".into(), &detail.to_string()))
}

/// The error `Duplicate value`.
pub(crate) fn duplicate(field: impl fmt::Display, value: &Value) -> FieldError {
    error(field, "FieldValueDuplicate", with_detail(format!("Duplicate value: {}", bad_value(value)), ""))
}

/// The error `Unsupported value`, with the supported values.
pub(crate) fn not_supported<T: AsRef<str>>(field: impl fmt::Display, value: &Value, supported: &[T]) -> FieldError {
    not_among(field, value, &quoted(supported, ", "))
}

/// The error `Unsupported value`, with the supported values as formatted text.
pub(crate) fn not_among(field: impl fmt::Display, value: &Value, supported: &str) -> FieldError {
    let text = format!("Unsupported value: {}", bad_value(value));
    let detail = if supported.is_empty() { String::new() } else { format!("supported values: {supported}") };
    error(field, "FieldValueNotSupported", with_detail(text, &detail))
}

/// The error `Too long`. The message counts bytes; the check counts characters.
pub(crate) fn too_long(field: impl fmt::Display, max: i64) -> FieldError {
    let detail = match max {
        1 => "may not be more than 1 byte".to_owned(),
        max if max >= 0 => format!("may not be more than {max} bytes"),
        _ => "value is too long".to_owned(),
    };
    error(field, "FieldValueTooLong", format!("Too long: {detail}"))
}

/// The error `Too many` for items or properties.
pub(crate) fn too_many(field: impl fmt::Display, actual: i64, max: i64) -> FieldError {
    let detail = match max {
        1 => "must have at most 1 item".to_owned(),
        max if max >= 0 => format!("must have at most {max} items"),
        _ => "has too many items".to_owned(),
    };
    error(field, "FieldValueTooMany", format!("Too many: {actual}: {detail}"))
}

/// The error `Internal error`.
pub(crate) fn internal(field: impl fmt::Display, detail: impl fmt::Display) -> FieldError {
    error(field, "InternalError", with_detail("Internal error".into(), &detail.to_string()))
}

/// The error `Invalid value` for a value without a JSON form; `shown` is Go's text of it.
pub(crate) fn invalid_shown(field: impl fmt::Display, shown: &str, detail: impl fmt::Display) -> FieldError {
    error(field, "FieldValueInvalid", with_detail(format!("Invalid value: {shown}"), &detail.to_string()))
}

/// True if an error prevents the evaluation of rules, because the value does not have the type for
/// which they were compiled.
pub(crate) fn is_blocking(error: &FieldError) -> bool {
    matches!(
        error.reason,
        "FieldValueNotSupported"
            | "FieldValueRequired"
            | "FieldValueTooLong"
            | "FieldValueTooMany"
            | "FieldValueTypeInvalid"
    )
}
