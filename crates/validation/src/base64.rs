//! Base64 in fields of Go's type `[]byte`.

use ::base64::Engine as _;
use ::base64::alphabet::STANDARD;
use ::base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD as BASE64};
use listwatch_json::Value;

/// A decoder that ignores the unused bits of the last character, like Go's.
const GO_BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// Rewrites base64 in the form that Go writes after decoding: without line breaks and with zero
/// padding bits. Values that are not strings are not changed.
///
/// # Errors
/// The error text of Go's decoder, if the value is not base64.
pub fn normalize_base64(value: Option<&mut Value>) -> Result<(), String> {
    let Some(Value::String(text)) = value else { return Ok(()) };
    if BASE64.decode(text.as_bytes()).is_ok() {
        return Ok(());
    }
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let in_line: Vec<u8> = text.bytes().filter(|byte| !is_end(byte)).collect();
    match GO_BASE64.decode(&in_line) {
        Ok(bytes) => {
            *text = BASE64.encode(bytes).into();
            Ok(())
        }
        Err(error) => {
            let at = match error {
                base64::DecodeError::InvalidByte(at, _) => at,
                // Go reports the start of the incomplete group of four.
                _ => in_line.len().saturating_sub(1) / 4 * 4,
            };
            // Go's offsets include line breaks.
            let at = text.bytes().enumerate().filter(|(_, byte)| !is_end(byte)).nth(at).map_or(at, |(at, _)| at);
            Err(format!("illegal base64 data at input byte {at}"))
        }
    }
}

/// The number of bytes that a base64 text decodes to. [`normalize_base64`] must have accepted the
/// text.
pub fn decoded_len(text: &str) -> usize {
    (text.len() / 4 * 3).saturating_sub(text.bytes().rev().take(2).filter(|byte| *byte == b'=').count())
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    #[test]
    fn base64_is_normalized_as_in_go() {
        let check = |text: &str, expected: Result<&str, &str>| {
            let mut value = json!(text);
            let result = normalize_base64(Some(&mut value)).map(|()| value.as_str().unwrap_or_default().to_owned());
            assert_eq!(result, expected.map(str::to_owned).map_err(str::to_owned), "{text:?}");
        };
        check("eHh4", Ok("eHh4"));
        check("eHh4\neHh4\r\n", Ok("eHh4eHh4"));
        check("Zh==", Ok("Zg=="));
        check("!!", Err("illegal base64 data at input byte 0"));
        check("eHh4\n!!", Err("illegal base64 data at input byte 5"));
    }

    #[test]
    fn decoded_len_returns_the_number_of_bytes() {
        for (text, bytes) in [("", 0), ("eHh4", 3), ("eHg=", 2), ("eA==", 1), ("eHh4eA==", 4)] {
            assert_eq!(decoded_len(text), bytes, "{text:?}");
        }
    }
}
