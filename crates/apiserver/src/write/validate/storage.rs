//! Data, and where it is kept.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use listwatch_meta::FieldError;
use serde_json::Value;

use super::Rule::{Below, Check, Name, OneOf, Required};
use super::{Errors, Object, Rules, child, given, items, quoted, text};
use crate::registry::NameRule;
use crate::write::quantities;

/// All values of a ConfigMap or a Secret together may have this many bytes (`MaxSecretSize`).
const DATA_BYTES_MAX: usize = 1024 * 1024;

pub(super) const CONFIG_MAP: Rules = &[Check(config_map)];
pub(super) const SECRET: Rules = &[Check(secret)];

pub(super) const CLAIM: Rules = &[Below(
    "spec",
    &[
        Check(|spec, at, errors| access_modes(spec, at, "at least 1 access mode is required", errors)),
        Check(|spec, at, errors| {
            amount(child(child(spec, "resources"), "requests"), &format!("{at}resources"), errors)
        }),
        Name("storageClassName", NameRule::Subdomain),
        OneOf("volumeMode", &["Block", "Filesystem"]),
    ],
)];
pub(super) const VOLUME: Rules = &[Below(
    "spec",
    &[
        Check(|spec, at, errors| access_modes(spec, at, "", errors)),
        Check(capacity),
        OneOf("persistentVolumeReclaimPolicy", &["Delete", "Recycle", "Retain"]),
        Check(source),
        Name("storageClassName", NameRule::Subdomain),
        OneOf("volumeMode", &["Block", "Filesystem"]),
    ],
)];
pub(super) const CLASS: Rules = &[
    Required("provisioner", ""),
    OneOf("reclaimPolicy", &["Delete", "Retain"]),
    OneOf("volumeBindingMode", &["Immediate", "WaitForFirstConsumer"]),
];

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

fn access_modes(spec: &Object, at: &str, none: &str, errors: &mut Errors) {
    let field = format!("{at}accessModes");
    if items(spec, "accessModes").is_empty() {
        return errors.push(FieldError::required(field, none));
    }
    let supported = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    for mode in items(spec, "accessModes").iter().filter_map(Value::as_str) {
        if !supported.contains(&mode) {
            errors.push(FieldError::not_supported(field.as_str(), mode, &supported));
        }
    }
}

/// `storage`, and more than nothing of it.
fn amount(amounts: &Object, field: &str, errors: &mut Errors) {
    let field = format!("{field}[storage]");
    match amounts.get("storage").and_then(Value::as_str) {
        None => errors.push(FieldError::required(field, "")),
        Some(amount) if quantities::compare(amount, "0") != Some(std::cmp::Ordering::Greater) => {
            errors.push(FieldError::invalid(field, quoted(amount), "must be greater than zero"));
        }
        Some(_) => {}
    }
}

fn capacity(spec: &Object, at: &str, errors: &mut Errors) {
    let capacity = child(spec, "capacity");
    let field = format!("{at}capacity");
    if capacity.is_empty() {
        errors.push(FieldError::required(field.as_str(), ""));
    }
    if capacity.len() != 1 || !capacity.contains_key("storage") {
        let shown = if capacity.is_empty() { Value::Null } else { Value::Object(capacity.clone()) };
        errors.push(FieldError {
            field,
            reason: "FieldValueNotSupported",
            message: format!("Unsupported value: {shown}: supported values: \"storage\""),
        });
    } else {
        amount(capacity, &field, errors);
    }
}

/// Where a volume can be, and what has to be said about it.
const SOURCES: [(&str, &[&str]); 22] = [
    ("hostPath", &["path"]),
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("glusterfs", &["endpoints", "path"]),
    ("flocker", &[]),
    ("nfs", &["server", "path"]),
    ("rbd", &["monitors", "image"]),
    ("quobyte", &["registry", "volume"]),
    ("cephfs", &["monitors"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("cinder", &["volumeID"]),
    ("fc", &[]),
    ("flexVolume", &["driver"]),
    ("azureFile", &["secretName", "shareName"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("local", &["path"]),
    ("storageos", &[]),
    ("csi", &["driver", "volumeHandle"]),
];

fn source(spec: &Object, at: &str, errors: &mut Errors) {
    let mut present = SOURCES.iter().filter(|(source, _)| given(spec, source).is_some());
    match present.next() {
        None => errors.push(FieldError::required(at.trim_end_matches('.'), "must specify a volume type")),
        Some((source, needed)) => {
            for member in needed.iter().filter(|member| super::is_empty(child(spec, source).get(**member))) {
                errors.push(FieldError::required(format!("{at}{source}.{member}"), ""));
            }
        }
    }
    for (source, _) in present {
        errors.push(FieldError::forbidden(format!("{at}{source}"), "may not specify more than 1 volume type"));
    }
}
