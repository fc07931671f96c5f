//! Data: ConfigMaps and Secrets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use listwatch_meta::FieldError;
use serde_json::Value;

use super::Rule::Check;
use super::{Errors, Object, Rules, child, quoted, text};

/// All values of a ConfigMap or a Secret together may have this many bytes (`MaxSecretSize`).
const DATA_BYTES_MAX: usize = 1024 * 1024;

pub(super) const CONFIG_MAP: Rules = &[Check(config_map)];
pub(super) const SECRET: Rules = &[Check(secret)];

fn config_map(map: &Object, _: &str, errors: &mut Errors) {
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
pub(super) fn decoded_len(text: &str) -> usize {
    (text.len() / 4 * 3).saturating_sub(text.bytes().rev().take(2).filter(|byte| *byte == b'=').count())
}

/// `IsConfigMapKey`.
fn data_key(key: &str, list: &str, errors: &mut Errors) {
    let mut wrong = |why: &str| errors.push(FieldError::invalid(format!("{list}[{key}]"), quoted(key), why));
    if key.len() > 253 {
        wrong("must be no more than 253 characters");
    }
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if key.is_empty() || !key.bytes().all(fine) {
        wrong(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
        );
    }
    match key {
        "." => wrong("must not be '.'"),
        ".." => wrong("must not be '..'"),
        key if key.starts_with("..") => wrong("must not start with '..'"),
        _ => {}
    }
}

fn secret(secret: &Object, _: &str, errors: &mut Errors) {
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
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
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
        let decoded = || BASE64.decode(value.as_str().unwrap_or_default()).unwrap_or_default();
        if key.starts_with(".docker") && serde_json::from_slice::<Value>(&decoded()).is_err() {
            let found = String::from_utf8_lossy(&decoded()).chars().next();
            let why = match found {
                None => "unexpected end of JSON input".to_owned(),
                Some(found) => format!("invalid character '{found}' looking for beginning of value"),
            };
            errors.push(FieldError::invalid(format!("data[{key}]"), "\"<secret contents redacted>\"", why));
        }
    }
}
