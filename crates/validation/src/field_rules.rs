//! Rules for one field: enumerations, immutable fields, non-negative numbers, percentages, paths.
//!
//! Rules: `pkg/apis/apps/validation` and `apimachinery/pkg/api/validation` of Kubernetes v1.36.

use listwatch_json::Value;

use listwatch_schema::Path;

use crate::formats::{IMMUTABLE, NOT_NEGATIVE};
use crate::{Errors, Object, child, given, is_same, number, text};

/// Reports each of these members with a negative value.
pub fn not_negative(object: &Object, names: &[&str], at: &Path<'_>, errors: &mut Errors) {
    for name in names {
        if let Some(number) = number(object, name).filter(|number| *number < 0) {
            errors.invalid_value(&at.child(name), number, NOT_NEGATIVE);
        }
    }
}

/// Reports a changed member (`ValidateImmutableField`). `holder` is the path of the enclosing
/// object, `""` for the root.
pub fn immutable(new: &Object, old: &Object, holder: &str, name: &str, errors: &mut Errors) {
    let of = |object| if holder.is_empty() { object } else { child(object, holder) }.get(name);
    if !is_same(of(new), of(old)) {
        let at = Path::root(holder);
        errors.invalid_value(&at.child(name), of(new).unwrap_or(&Value::Null), IMMUTABLE);
    }
}

/// Removes these members of the object at `path`, unless the old object has them. Upstream's `dropDisabledFields` do so
/// for features that are off by default.
pub fn drop_unless_used(new: &mut Object, old: Option<&Object>, path: &[&str], names: &[&str]) {
    let mut holder = new;
    for step in path {
        let Some(Value::Object(inner)) = holder.get_mut(step) else { return };
        holder = inner;
    }
    let old = old.map(|old| path.iter().fold(old, |holder, step| child(holder, step)));
    for name in names {
        if old.is_none_or(|old| given(old, name).is_none()) {
            holder.shift_remove(name);
        }
    }
}

const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";

/// The number in a percentage such as `25%`.
fn percent(value: Option<&Value>) -> Option<u64> {
    let digits = value?.as_str()?.strip_suffix('%')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// True if a number or percentage is zero. A string that is not a percentage is parsed as a number.
pub fn is_zero(value: Option<&Value>) -> bool {
    match (percent(value), value) {
        (Some(percent), _) => percent == 0,
        (None, Some(Value::String(text))) => text.parse::<i32>().unwrap_or(0) == 0,
        (None, value) => value.and_then(Value::as_i64).unwrap_or(0) == 0,
    }
}

/// Reports a value that is neither a percentage nor a non-negative number
/// (`ValidatePositiveIntOrPercent`).
pub fn int_or_percent(object: &Object, name: &str, at: &Path<'_>, errors: &mut Errors) {
    match object.get(name) {
        Some(Value::String(text)) if percent(object.get(name)).is_none() => {
            errors.invalid(&at.child(name), text, PERCENT);
        }
        Some(Value::String(_)) => {}
        _ => not_negative(object, &[name], at, errors),
    }
}

/// Reports a percentage above 100 (`IsNotMoreThan100Percent`).
pub fn at_most_100_percent(object: &Object, name: &str, at: &Path<'_>, errors: &mut Errors) {
    if percent(object.get(name)).is_some_and(|percent| percent > 100) {
        errors.invalid(&at.child(name), text(object, name), "must not be greater than 100%");
    }
}

/// Reports a string that is absent or not one of the supported values.
pub fn required_one_of(object: &Object, name: &str, supported: &[&str], at: &Path<'_>, errors: &mut Errors) {
    match text(object, name) {
        "" => errors.required(&at.child(name), ""),
        value if supported.contains(&value) => {}
        value => errors.not_supported(&at.child(name), value, supported),
    }
}

/// Reports a string that is neither empty nor one of the supported values.
pub fn one_of(object: &Object, name: &str, supported: &[&str], at: &Path<'_>, errors: &mut Errors) {
    if !text(object, name).is_empty() {
        required_one_of(object, name, supported, at, errors);
    }
}

/// Reports a string that is present and not one of the supported values. An empty string is present,
/// like a non-nil pointer in Go.
pub fn one_of_if_present(object: &Object, name: &str, supported: &[&str], at: &Path<'_>, errors: &mut Errors) {
    if let Some(value) = given(object, name).and_then(Value::as_str).filter(|value| !supported.contains(value)) {
        errors.not_supported(&at.child(name), value, supported);
    }
}

/// Checks the form of an optional string.
pub fn optional(
    object: &Object,
    name: &str,
    check: fn(&str, &Path<'_>, &mut Errors),
    at: &Path<'_>,
    errors: &mut Errors,
) {
    let value = text(object, name);
    if !value.is_empty() {
        check(value, &at.child(name), errors);
    }
}

/// Reports a path with `..` (`validatePathNoBacksteps`).
pub(crate) fn no_backsteps(path: &str, at: &Path<'_>, errors: &mut Errors) {
    if path.split('/').any(|part| part == "..") {
        errors.invalid(at, path, "must not contain '..'");
    }
}

/// Reports a path that is absolute or has `..` (`validateLocalDescendingPath`).
pub(crate) fn descending_path(path: &str, at: &Path<'_>, errors: &mut Errors) {
    if path.starts_with('/') {
        errors.invalid(at, path, "must be a relative path");
    }
    no_backsteps(path, at, errors);
}
