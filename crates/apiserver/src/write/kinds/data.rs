//! Secrets and config maps: what they carry is base64, or plain text that becomes it, and they can be
//! sealed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use listwatch_meta::FieldError;
use serde_json::{Map, Value};

use super::{Object, Part};
use crate::write::store::child_mut;
use crate::write::validate::Errors;

/// `stringData` goes into `data`, encoded.
pub(super) fn decode_secret(secret: &mut Object) -> Result<(), String> {
    if let Some(Value::Object(texts)) = secret.shift_remove("stringData") {
        let data = child_mut(secret, "data");
        for (name, text) in texts {
            let encoded = BASE64.encode(text.as_str().unwrap_or_default());
            data.insert(name, Value::String(encoded));
        }
    }
    check_base64(secret.get("data"))
}

/// `binaryData` has to be base64.
pub(super) fn decode_config_map(map: &mut Object) -> Result<(), String> {
    check_base64(map.get("binaryData"))
}

fn check_base64(data: Option<&Value>) -> Result<(), String> {
    data.and_then(Value::as_object).into_iter().flat_map(Map::values).try_for_each(|value| check_encoded(Some(value)))
}

/// A text, where it is one, has to be base64.
///
/// # Errors
/// What Go's decoder says.
pub(super) fn check_encoded(value: Option<&Value>) -> Result<(), String> {
    let text = value.and_then(Value::as_str).unwrap_or_default();
    BASE64.decode(text).map(drop).map_err(|error| {
        let at = match error {
            base64::DecodeError::InvalidByte(at, _) => at,
            // Go names the beginning of the group of four that is not whole.
            _ => text.len().saturating_sub(1) / 4 * 4,
        };
        format!("illegal base64 data at input byte {at}")
    })
}

/// What is `immutable` stays as it is, and immutable.
pub(super) fn judge(new: &Object, old: &Object, _: Part<'_>, errors: &mut Errors) {
    if old.get("immutable") != Some(&Value::Bool(true)) {
        return;
    }
    for field in ["immutable", "data", "binaryData"] {
        if new.get(field) != old.get(field) {
            errors.push(FieldError::forbidden(field, "field is immutable when `immutable` is set"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{judged, map};
    use super::*;

    #[test]
    fn secrets_take_plain_text() {
        let mut secret = map(json!({"data": {"a": "eA==", "c": "ZA=="}, "stringData": {"a": "b"}}));
        assert_eq!(decode_secret(&mut secret), Ok(()));
        assert_eq!(Value::Object(secret), json!({"data": {"a": "Yg==", "c": "ZA=="}}));
        let mut broken = map(json!({"data": {"a": "!!"}}));
        assert_eq!(decode_secret(&mut broken), Err("illegal base64 data at input byte 0".to_owned()));
    }

    #[test]
    fn what_is_sealed_stays() {
        let with = |immutable: bool, value: &str| json!({"immutable": immutable, "data": {"a": value}});
        let changed = "data: Forbidden: field is immutable when `immutable` is set";
        assert_eq!(judged("", "ConfigMap", with(true, "2"), with(true, "1"), None), [changed]);
        assert_eq!(judged("", "ConfigMap", with(true, "2"), with(false, "1"), None), [""; 0]);
        let opened = "immutable: Forbidden: field is immutable when `immutable` is set";
        assert_eq!(judged("", "Secret", with(false, "1"), with(true, "1"), None), [opened]);
    }
}
