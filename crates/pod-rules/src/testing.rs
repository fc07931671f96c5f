//! Helpers for the tests of this crate.

use listwatch_json::Value;
use listwatch_meta::FieldError;
use listwatch_validation::{Errors, Object};

/// Converts a JSON value to an object.
pub(crate) fn map(value: Value) -> Object {
    let Value::Object(map) = value else { panic!("not an object") };
    map
}

/// Returns the errors of an update from `old` to `new` as texts.
pub(crate) fn transition_errors(validate: fn(&Object, &Object, &mut Errors), new: Value, old: Value) -> Vec<String> {
    let mut errors = Errors::default();
    validate(&map(new), &map(old), &mut errors);
    errors.iter().map(FieldError::to_string).collect()
}
