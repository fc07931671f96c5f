//! Helpers of this crate's tests.

use listwatch_validation::{Errors, Object};
use serde_json::Value;
use time::OffsetDateTime;

use crate::{Subresource, UpdateContext};

/// The object in a JSON value.
pub(crate) fn map(value: Value) -> Object {
    let Value::Object(map) = value else { panic!("not an object") };
    map
}

/// The errors of [`crate::Kind::validate_transition`], as texts.
pub(crate) fn judged(
    group: &str,
    kind: &str,
    new: Value,
    old: Value,
    subresource: Option<&Subresource>,
) -> Vec<String> {
    let mut errors = Errors::default();
    let kind = crate::find(group, kind).expect("a built-in kind");
    let context = UpdateContext { subresource, now: OffsetDateTime::UNIX_EPOCH };
    (kind.validate_transition)(&map(new), &map(old), context, &mut errors);
    errors.iter().map(listwatch_meta::FieldError::to_string).collect()
}
