//! Data: ConfigMaps and Secrets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use listwatch_meta::FieldError;
use serde_json::Value;

use listwatch_validation::field_rules::immutable;
use listwatch_validation::names::config_map_key_problems;
use listwatch_validation::{Errors, Object, child, invalid_each, quoted, text};

/// All values of a ConfigMap or a Secret together may have this many bytes (`MaxSecretSize`).
const DATA_BYTES_MAX: usize = 1024 * 1024;

/// `ValidateConfigMap`.
pub(crate) fn config_map(map: &Object, _: Option<&Object>, errors: &mut Errors) {
    let (texts, bytes) = (child(map, "data"), child(map, "binaryData"));
    let mut size = 0;
    for (key, value) in texts {
        data_key(key, "data", errors);
        if bytes.contains_key(key) {
            let why = "duplicate of key present in binaryData";
            errors.push(FieldError::invalid(format!("data[{key}]"), quoted(key), why));
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in bytes {
        data_key(key, "binaryData", errors);
        size += decoded_len(value.as_str().unwrap_or_default());
    }
    if size > DATA_BYTES_MAX {
        // The path is empty, and is shown so.
        errors.push(FieldError::too_long("[]", format_args!("may not be more than {DATA_BYTES_MAX} bytes")));
    }
}

/// What base64 stands for; what is none was refused when it was decoded.
pub(crate) fn decoded_len(text: &str) -> usize {
    (text.len() / 4 * 3).saturating_sub(text.bytes().rev().take(2).filter(|byte| *byte == b'=').count())
}

fn data_key(key: &str, list: &str, errors: &mut Errors) {
    let problems = config_map_key_problems(key);
    if !problems.is_empty() {
        invalid_each(problems, key, &format!("{list}[{key}]"), errors);
    }
}

/// A secret keeps its type.
pub(crate) fn update_secret(new: &Object, old: &Object, errors: &mut Errors) {
    immutable(new, old, "", "type", errors);
}

/// `ValidateSecret`.
pub(crate) fn secret(secret: &Object, _: Option<&Object>, errors: &mut Errors) {
    let data = child(secret, "data");
    let mut size = 0;
    for (key, value) in data {
        data_key(key, "data", errors);
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
        let Some(value) = data.get(*key) else {
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
