//! Helpers of this crate's tests.

use listwatch_validation::{Errors, Object};
use serde_json::Value;
use time::OffsetDateTime;

use crate::{Kind, Subresource, UpdateContext, defaults};

/// The object in a JSON value.
pub(crate) fn map(value: Value) -> Object {
    let Value::Object(map) = value else { panic!("not an object") };
    map
}

/// Checks the defaults of a kind, and that applying them again changes nothing.
pub(crate) fn check_defaults(kind: &Kind, object: Value, expected: Value) {
    let mut object = map(object);
    defaults::apply(kind.defaults, &mut object);
    assert_eq!(Value::Object(object.clone()), expected, "{kind:?}");
    let once = object.clone();
    defaults::apply(kind.defaults, &mut object);
    assert_eq!(object, once, "the second application changes {kind:?}");
}

/// The errors of a kind's [`Kind::validate_transition`], as texts.
pub(crate) fn transition_errors(kind: &Kind, new: Value, old: Value, subresource: Option<&Subresource>) -> Vec<String> {
    let mut errors = Errors::default();
    let context = UpdateContext { subresource, now: OffsetDateTime::UNIX_EPOCH };
    (kind.validate_transition)(&map(new), &map(old), context, &mut errors);
    errors.iter().map(listwatch_meta::FieldError::to_string).collect()
}

/// The errors of [`crate::Kind::validate_transition`], as texts.
pub(crate) fn judged(
    group: &str,
    kind: &str,
    new: Value,
    old: Value,
    subresource: Option<&Subresource>,
) -> Vec<String> {
    transition_errors(crate::find(group, kind).expect("a built-in kind"), new, old, subresource)
}
