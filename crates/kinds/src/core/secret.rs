//! Secret (`v1`): confidential data as bytes.
//!
//! Source: `pkg/registry/core/secret/strategy.go`, `ValidateSecret` in `pkg/apis/core/validation`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use listwatch_json::Value;
use listwatch_meta::FieldError;
use listwatch_validation::base64::decoded_len;
use listwatch_validation::field_rules::immutable;
use listwatch_validation::{Errors, Object, child, child_mut, text};

use crate::core::data::{DATA_BYTES_MAX, normalize_values, validate_immutable_data, validate_key};
use crate::defaults::Default::Text;
use crate::defaults::Defaults;
use crate::{Field, Kind};
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    fields: &[Field::with_default("type", "Opaque")],
    defaults: &DEFAULTS,
    normalize,
    validate,
    validate_update,
    validate_transition: validate_immutable_data,
    warnings: listwatch_kind_warnings::secret::of_secret,
    printer: &PRINTER,
    ..Kind::namespaced("", "v1", "secrets", "Secret")
};

static DEFAULTS: Defaults = Defaults(&[("type", Text("Opaque"))]);

/// Moves `stringData` into `data` as base64, and normalizes all base64 values.
fn normalize(secret: &mut Object) -> Result<(), String> {
    if let Some(Value::Object(texts)) = secret.shift_remove("stringData") {
        let data = child_mut(secret, "data");
        for (name, text) in texts {
            let encoded = BASE64.encode(text.as_str().unwrap_or_default());
            data.insert(name, Value::from(encoded));
        }
    }
    normalize_values(secret.get_mut("data"))
}

fn validate(secret: &Object, _: Option<&Object>, errors: &mut Errors) {
    let data = child(secret, "data");
    let mut size = 0;
    for (key, value) in data {
        validate_key(key, "data", errors);
        size += decoded_len(value.as_str().unwrap_or_default());
    }
    if size > DATA_BYTES_MAX {
        errors.push(FieldError::too_long("data", format_args!("may not be more than {DATA_BYTES_MAX} bytes")));
    }
    let required: &[&str] = match text(secret, "type") {
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/ssh-auth" if text(data, "ssh-privatekey").is_empty() => {
            errors.push(FieldError::required("data[ssh-privatekey]", ""));
            &[]
        }
        "kubernetes.io/basic-auth" if !data.contains_key("username") && !data.contains_key("password") => {
            &["username", "password"]
        }
        "kubernetes.io/service-account-token" => {
            let annotations = child(child(secret, "metadata"), "annotations");
            if text(annotations, "kubernetes.io/service-account.name").is_empty() {
                let field = "metadata.annotations[kubernetes.io/service-account.name]";
                errors.push(FieldError::required(field, ""));
            }
            &[]
        }
        _ => &[],
    };
    for key in required {
        let Some(value) = data.get(key) else {
            errors.push(FieldError::required(format!("data[{key}]"), ""));
            continue;
        };
        if !key.starts_with(".docker") {
            continue;
        }
        let decoded = BASE64.decode(value.as_str().unwrap_or_default()).unwrap_or_default();
        let kind = match serde_json::from_slice::<Value>(&decoded) {
            Ok(Value::Object(_) | Value::Null) => continue,
            Ok(Value::Array(_)) => "array",
            Ok(Value::String(_)) => "string",
            Ok(Value::Number(_)) => "number",
            Ok(Value::Bool(_)) => "bool",
            Err(_) => "",
        };
        let why = match String::from_utf8_lossy(&decoded).chars().next() {
            _ if !kind.is_empty() => {
                format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}")
            }
            None => "unexpected end of JSON input".to_owned(),
            Some(found) => format!("invalid character '{found}' looking for beginning of value"),
        };
        errors.push(FieldError::invalid(format!("data[{key}]"), "\"<secret contents redacted>\"", why));
    }
}

/// Reports a changed type.
fn validate_update(new: &Object, old: &Object, errors: &mut Errors) {
    immutable(new, old, "", "type", errors);
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Type", "What the secret is for."),
        Column::text("Data", "How many keys the secret holds."),
        AGE,
    ],
    cells: |secret| {
        let type_ = secret.get("type").string_or("Opaque");
        vec![secret.name().into(), type_.into(), secret.get("data").count().into(), secret.age().into()]
    },
};

#[cfg(test)]
mod tests {
    use listwatch_json::{Value, json};

    use crate::testing::{check_defaults, map, transition_errors};

    use super::*;

    #[test]
    fn secret_type_defaults_to_opaque() {
        check_defaults(&KIND, json!({}), json!({"type": "Opaque"}));
        check_defaults(&KIND, json!({"type": "x/y"}), json!({"type": "x/y"}));
    }

    #[test]
    fn string_data_is_encoded_into_data() {
        let mut secret = map(json!({"data": {"a": "eA==", "c": "ZA=="}, "stringData": {"a": "b"}}));
        assert_eq!(normalize(&mut secret), Ok(()));
        assert_eq!(Value::Object(secret), json!({"data": {"a": "Yg==", "c": "ZA=="}}));
        let mut wrapped = map(json!({"data": {"a": "eHh4\neHh4\r\n", "b": "Zh=="}}));
        assert_eq!(normalize(&mut wrapped), Ok(()), "line breaks and padding bits disappear");
        assert_eq!(Value::Object(wrapped), json!({"data": {"a": "eHh4eHh4", "b": "Zg=="}}));
        let mut broken = map(json!({"data": {"a": "eHh4\n!!"}}));
        assert_eq!(normalize(&mut broken), Err("illegal base64 data at input byte 5".to_owned()));
        let mut broken = map(json!({"data": {"a": "!!"}}));
        assert_eq!(normalize(&mut broken), Err("illegal base64 data at input byte 0".to_owned()));
    }

    #[test]
    fn update_rejects_changes_of_an_immutable_secret() {
        let with = |immutable: bool| json!({"immutable": immutable, "data": {"a": "1"}});
        let changed = "immutable: Forbidden: field is immutable when `immutable` is set";
        assert_eq!(transition_errors(&KIND, with(false), with(true), None), [changed]);
    }
}
