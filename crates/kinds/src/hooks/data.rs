//! Secrets and config maps: what they carry is base64, or plain text that becomes it, and they can be
//! sealed.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD as BASE64};
use listwatch_meta::FieldError;
use serde_json::{Map, Value};

use crate::kind::UpdateContext;
use listwatch_validation::Errors;
use listwatch_validation::Object;
use listwatch_validation::child_mut;

/// `stringData` goes into `data`, encoded.
pub(crate) fn decode_secret(secret: &mut Object) -> Result<(), String> {
    if let Some(Value::Object(texts)) = secret.shift_remove("stringData") {
        let data = child_mut(secret, "data");
        for (name, text) in texts {
            let encoded = BASE64.encode(text.as_str().unwrap_or_default());
            data.insert(name, Value::String(encoded));
        }
    }
    normalize_all(secret.get_mut("data"))
}

/// `binaryData` has to be base64.
pub(crate) fn decode_config_map(map: &mut Object) -> Result<(), String> {
    normalize_all(map.get_mut("binaryData"))
}

fn normalize_all(data: Option<&mut Value>) -> Result<(), String> {
    let texts = data.and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut);
    texts.into_iter().try_for_each(|value| normalize(Some(value)))
}

/// Go's decoder takes bits behind the last byte as they come.
const AS_GO: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// A text, where it is one, has to be base64. Go skips the ends of lines, and writes what it decoded
/// anew: without them.
///
/// # Errors
/// What Go's decoder says.
pub(crate) fn normalize(value: Option<&mut Value>) -> Result<(), String> {
    let Some(Value::String(text)) = value else { return Ok(()) };
    if BASE64.decode(&*text).is_ok() {
        return Ok(());
    }
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let in_line: Vec<u8> = text.bytes().filter(|byte| !is_end(byte)).collect();
    match AS_GO.decode(&in_line) {
        Ok(bytes) => {
            *text = BASE64.encode(bytes);
            Ok(())
        }
        Err(error) => {
            let at = match error {
                base64::DecodeError::InvalidByte(at, _) => at,
                // Go names the beginning of the group of four that is not whole.
                _ => in_line.len().saturating_sub(1) / 4 * 4,
            };
            // Where that is with the ends of lines.
            let at = text.bytes().enumerate().filter(|(_, byte)| !is_end(byte)).nth(at).map_or(at, |(at, _)| at);
            Err(format!("illegal base64 data at input byte {at}"))
        }
    }
}

/// What is `immutable` stays as it is, and immutable.
pub(crate) fn judge(new: &Object, old: &Object, _: UpdateContext<'_>, errors: &mut Errors) {
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

    use super::*;
    use crate::testing::{judged, map};

    #[test]
    fn secrets_take_plain_text() {
        let mut secret = map(json!({"data": {"a": "eA==", "c": "ZA=="}, "stringData": {"a": "b"}}));
        assert_eq!(decode_secret(&mut secret), Ok(()));
        assert_eq!(Value::Object(secret), json!({"data": {"a": "Yg==", "c": "ZA=="}}));
        let mut wrapped = map(json!({"data": {"a": "eHh4\neHh4\r\n", "b": "Zh=="}}));
        assert_eq!(decode_secret(&mut wrapped), Ok(()), "lines are joined, and bits behind the end let go");
        assert_eq!(Value::Object(wrapped), json!({"data": {"a": "eHh4eHh4", "b": "Zg=="}}));
        let mut broken = map(json!({"data": {"a": "eHh4\n!!"}}));
        assert_eq!(decode_secret(&mut broken), Err("illegal base64 data at input byte 5".to_owned()));
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
