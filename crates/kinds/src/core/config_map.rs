//! ConfigMap (`v1`): configuration data as strings and bytes.
//!
//! Source: `pkg/registry/core/configmap/strategy.go`, `ValidateConfigMap` in `pkg/apis/core/validation`.

use listwatch_meta::FieldError;
use listwatch_validation::base64::decoded_len;
use listwatch_validation::{Errors, Object, child, quoted};

use crate::Kind;
use crate::core::data::{DATA_BYTES_MAX, normalize_values, validate_immutable_data, validate_key};
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    short_names: &["cm"],
    normalize: |map| normalize_values(map.get_mut("binaryData")),
    validate,
    validate_transition: validate_immutable_data,
    printer: &PRINTER,
    ..Kind::namespaced("", "v1", "configmaps", "ConfigMap")
};

fn validate(map: &Object, _: Option<&Object>, errors: &mut Errors) {
    let (texts, bytes) = (child(map, "data"), child(map, "binaryData"));
    let mut size = 0;
    for (key, value) in texts {
        validate_key(key, "data", errors);
        if bytes.contains_key(key) {
            let why = "duplicate of key present in binaryData";
            errors.push(FieldError::invalid(format!("data[{key}]"), quoted(key), why));
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in bytes {
        validate_key(key, "binaryData", errors);
        size += decoded_len(value.as_str().unwrap_or_default());
    }
    if size > DATA_BYTES_MAX {
        // Upstream reports an empty path.
        errors.push(FieldError::too_long("[]", format_args!("may not be more than {DATA_BYTES_MAX} bytes")));
    }
}

static PRINTER: Printer = Printer {
    columns: &[NAME, Column::text("Data", "How many keys the map holds."), AGE],
    cells: |map| {
        let keys = map.get("data").count() + map.get("binaryData").count();
        vec![map.name().into(), keys.into(), map.age().into()]
    },
};

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use crate::testing::transition_errors;

    use super::*;

    #[test]
    fn update_rejects_changed_data_of_an_immutable_config_map() {
        let with = |immutable: bool, value: &str| json!({"immutable": immutable, "data": {"a": value}});
        let changed = "data: Forbidden: field is immutable when `immutable` is set";
        assert_eq!(transition_errors(&KIND, with(true, "2"), with(true, "1"), None), [changed]);
        assert_eq!(transition_errors(&KIND, with(true, "2"), with(false, "1"), None), [""; 0]);
    }
}
