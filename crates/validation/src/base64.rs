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
    if is_normal(text.as_bytes()) {
        return Ok(());
    }
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let in_line: Vec<u8> = text.bytes().filter(|byte| !is_end(byte)).collect();
    match GO_BASE64.decode(&in_line) {
        Ok(bytes) => {
            *text = BASE64.encode(bytes).into();
            Ok(())
        }
        Err(_) => Err(format!("illegal base64 data at input byte {}", corrupt_at(text.as_bytes()))),
    }
}

/// The offset in Go's error about a text that is not base64 (`decodeQuantum` in Go's `encoding/base64`).
fn corrupt_at(text: &[u8]) -> usize {
    let is_end = |at: usize| matches!(text.get(at), Some(b'\r' | b'\n'));
    let mut digits = 0;
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        at += 1;
        if DIGITS[usize::from(*byte)] <= DIGIT_MAX {
            digits = (digits + 1) % 4;
        } else if *byte == b'=' && digits >= 2 {
            while is_end(at) {
                at += 1;
            }
            if digits == 3 || at == text.len() {
                return at;
            }
            if text[at] != b'=' {
                return at - 1;
            }
            at += 1;
            while is_end(at) {
                at += 1;
            }
            return at;
        } else if !is_end(at - 1) {
            return at - 1;
        }
    }
    // Go subtracts the digits of the incomplete group of four, without line breaks.
    at - digits
}

/// Whether a text is base64 in the form that Go writes. Does not allocate.
fn is_normal(text: &[u8]) -> bool {
    let (groups, rest) = text.as_chunks::<4>();
    let Some((last, groups)) = groups.split_last() else { return rest.is_empty() };
    let digit = |byte: &u8| DIGITS[usize::from(*byte)];
    // A byte that is no digit sets a bit above the six bits of a digit.
    let all = groups.as_flattened().iter().fold(0, |bits, byte| bits | digit(byte));
    let (used, unused) = match last {
        [first, second, b'=', b'='] => (digit(first) | digit(second), digit(second) & 0b1111),
        [first, second, third, b'='] => (digit(first) | digit(second) | digit(third), digit(third) & 0b11),
        last => (last.iter().fold(0, |bits, byte| bits | digit(byte)), 0),
    };
    rest.is_empty() && all | used <= DIGIT_MAX && unused == 0
}

/// The largest value of a digit.
const DIGIT_MAX: u8 = 0b11_1111;

/// The values of the digits by byte, and 255 for other bytes.
const DIGITS: [u8; 256] = {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut digits = [u8::MAX; 256];
    let mut value = 0;
    while value <= DIGIT_MAX {
        digits[alphabet[value as usize] as usize] = value;
        value += 1;
    }
    digits
};

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
        check("", Ok(""));
        check("eA==", Ok("eA=="));
        check("eHg=", Ok("eHg="));
        check("eHh=", Ok("eHg="));
        check("eHh4eA==eHh4", Err("illegal base64 data at input byte 8"));
        check("${CA_BUNDLE}", Err("illegal base64 data at input byte 0"));
        check("eHg", Err("illegal base64 data at input byte 0"));
        check("eHh4e\nHg\n", Err("illegal base64 data at input byte 6"));
        check("eA=", Err("illegal base64 data at input byte 3"));
        check("eA=x", Err("illegal base64 data at input byte 2"));
        check("e===", Err("illegal base64 data at input byte 1"));
        check("eHh4é", Err("illegal base64 data at input byte 4"));
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
