//! Rules that ConfigMaps and Secrets share: keys, the size limit, and the field `immutable`.
//!
//! Source: `ValidateConfigMapUpdate` and `ValidateSecretUpdate` in `pkg/apis/core/validation`.

use listwatch_json::{Map, Value};
use listwatch_meta::FieldError;
use listwatch_validation::base64::normalize_base64;
use listwatch_validation::names::config_map_key_problems;
use listwatch_validation::{Errors, Object, invalid_each};

use crate::UpdateContext;

/// The largest total size of all values of a ConfigMap or Secret, in bytes (`MaxSecretSize`).
pub(crate) const DATA_BYTES_MAX: usize = 1024 * 1024;

/// Normalizes the base64 of all values of a map.
pub(crate) fn normalize_values(data: Option<&mut Value>) -> Result<(), String> {
    let mut values = data.and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut);
    values.try_for_each(|value| normalize_base64(Some(value)))
}

/// Validates a key in the map `list`.
pub(crate) fn validate_key(key: &str, list: &str, errors: &mut Errors) {
    let problems = config_map_key_problems(key);
    if !problems.is_empty() {
        invalid_each(problems, key, &format!("{list}[{key}]"), errors);
    }
}

/// Rejects changes of data if `immutable` is set.
pub(crate) fn validate_immutable_data(new: &Object, old: &Object, _: UpdateContext<'_>, errors: &mut Errors) {
    if old.get("immutable") != Some(&Value::Bool(true)) {
        return;
    }
    for field in ["immutable", "data", "binaryData"] {
        if new.get(field) != old.get(field) {
            errors.push(FieldError::forbidden(field, "field is immutable when `immutable` is set"));
        }
    }
}
