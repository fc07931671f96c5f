//! Converts values that protobuf and JSON represent differently: strings, numbers, times, base64,
//! and JSON inside protobuf. The output equals Go's.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use listwatch_meta::calendar;
use serde::de::IgnoredAny;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The Unix time of Go's zero time, 0001-01-01T00:00:00Z, which means "no time".
pub(crate) const ZERO_TIME_SECONDS: i64 = -62_135_596_800;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Writes a JSON string with Go's escapes, which include `<`, `>`, `&`, U+2028 and U+2029. Invalid
/// UTF-8 becomes U+FFFD.
pub(crate) fn push_string(out: &mut Vec<u8>, text: &[u8]) {
    let lossy;
    let text = match std::str::from_utf8(text) {
        Ok(text) => text.as_bytes(),
        Err(_) => {
            lossy = String::from_utf8_lossy(text);
            lossy.as_bytes()
        }
    };
    out.reserve(text.len() + 2);
    out.push(b'"');
    let mut from = 0;
    for (at, &byte) in text.iter().enumerate() {
        if !needs_look(byte) {
            continue;
        }
        let (escape, len): (&[u8], usize) = match byte {
            b'"' => (b"\\\"", 1),
            b'\\' => (b"\\\\", 1),
            b'\n' => (b"\\n", 1),
            b'\r' => (b"\\r", 1),
            b'\t' => (b"\\t", 1),
            0x08 => (b"\\b", 1),
            0x0c => (b"\\f", 1),
            0xe2 if text[at..].starts_with(b"\xe2\x80\xa8") => (b"\\u2028", 3),
            0xe2 if text[at..].starts_with(b"\xe2\x80\xa9") => (b"\\u2029", 3),
            0xe2 => continue,
            _ => (b"", 1),
        };
        out.extend_from_slice(&text[from..at]);
        if escape.is_empty() {
            push_unicode_escape(out, byte);
        } else {
            out.extend_from_slice(escape);
        }
        from = at + len;
    }
    out.extend_from_slice(&text[from..]);
    out.push(b'"');
}

fn needs_look(byte: u8) -> bool {
    byte < 0x20 || matches!(byte, b'"' | b'\\' | b'<' | b'>' | b'&' | 0xe2)
}

fn push_unicode_escape(out: &mut Vec<u8>, byte: u8) {
    out.extend_from_slice(b"\\u00");
    out.push(HEX[usize::from(byte >> 4)]);
    out.push(HEX[usize::from(byte & 15)]);
}

/// Writes an integer.
pub(crate) fn push_integer(out: &mut Vec<u8>, value: i64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

/// Writes a number as ES6 and Go do: without exponent between 1e-6 and 1e21. Returns `false` for a
/// number that JSON cannot represent.
pub(crate) fn push_double(out: &mut Vec<u8>, value: f64) -> bool {
    if !value.is_finite() {
        return false;
    }
    let size = value.abs();
    let text = if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{value:e}");
        if text.contains("e-") { text } else { text.replace('e', "e+") }
    } else {
        value.to_string()
    };
    out.extend_from_slice(text.as_bytes());
    true
}

/// Writes bytes as a JSON string of base64.
pub(crate) fn push_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    let written = STANDARD.encode_slice(bytes, &mut out[start..]).unwrap_or_default();
    out.truncate(start + written);
    out.push(b'"');
}

/// Decodes a base64 string; line breaks are ignored, as in Go.
pub(crate) fn read_base64(text: &str) -> Option<Vec<u8>> {
    if text.contains(['\r', '\n']) {
        return STANDARD.decode(text.replace(['\r', '\n'], "")).ok();
    }
    STANDARD.decode(text).ok()
}

/// Writes a UTC time as a JSON string, with six fractional digits if `micros` are given. Years outside of 0 to 9999 have
/// a sign or more digits, as in Go.
pub(crate) fn push_time(out: &mut Vec<u8>, seconds: i64, micros: Option<u32>) {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400) as u32);
    let (year, month, day) = calendar::date_of(days + calendar::UNIX_EPOCH_DAYS);
    out.push(b'"');
    if (0..=9999).contains(&year) {
        digits_into(out, year as u32, 4);
    } else {
        let sign = if year < 0 { "-" } else { "" };
        out.extend_from_slice(format!("{sign}{:04}", year.unsigned_abs()).as_bytes());
    }
    let parts: [(u8, u32); 5] = [
        (b'-', month as u32),
        (b'-', day as u32),
        (b'T', second / 3600),
        (b':', second / 60 % 60),
        (b':', second % 60),
    ];
    for (before, value) in parts {
        out.push(before);
        digits_into(out, value, 2);
    }
    if let Some(micros) = micros {
        out.push(b'.');
        digits_into(out, micros, 6);
    }
    out.extend_from_slice(b"Z\"");
}

/// Parses an RFC 3339 time, or one that [`push_time`] has written for a year of up to 11 digits, to seconds and nanoseconds;
/// `None` if invalid.
pub(crate) fn read_time(text: &str) -> Option<(i64, u32)> {
    match OffsetDateTime::parse(text, &Rfc3339) {
        Ok(time) => Some((time.unix_timestamp(), time.nanosecond())),
        Err(_) => read_far_time(text),
    }
}

/// Parses a UTC time in a year that RFC 3339 does not have.
fn read_far_time(text: &str) -> Option<(i64, u32)> {
    let text = text.strip_suffix('Z')?;
    let (text, micros) = match text.split_once('.') {
        Some((text, micros)) if micros.len() == 6 => (text, number(micros)?),
        Some(_) => return None,
        None => (text, 0),
    };
    let (year, rest) = text.split_at_checked(text.len().checked_sub("-01-01T00:00:00".len())?)?;
    let (negative, digits) = match year.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, year),
    };
    // The seconds of longer years overflow.
    if !(4..=11).contains(&digits.len()) {
        return None;
    }
    let year = if negative { -number(digits)? } else { number(digits)? };
    let bytes = rest.as_bytes();
    let is_shaped =
        [(0, b'-'), (3, b'-'), (6, b'T'), (9, b':'), (12, b':')].iter().all(|&(at, byte)| bytes[at] == byte);
    let part = |at: usize| rest.get(at..at + 2).and_then(number);
    let (month, day) = (part(1)?, part(4)?);
    let (hour, minute, second) = (part(7)?, part(10)?, part(13)?);
    let is_valid = is_shaped
        && (1..=12).contains(&month)
        && (1..=calendar::days_of_month(month, year)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    let days = calendar::days_until(year, month, day) - calendar::UNIX_EPOCH_DAYS;
    is_valid.then_some((days * 86_400 + hour * 3600 + minute * 60 + second, micros as u32 * 1000))
}

/// Parses digits; `None` for other characters.
fn number(digits: &str) -> Option<i64> {
    digits.bytes().try_fold(0_i64, |value, digit| digit.is_ascii_digit().then(|| value * 10 + i64::from(digit - b'0')))
}

fn digits_into(out: &mut Vec<u8>, value: u32, count: u32) {
    for place in (0..count).rev() {
        out.push(b'0' + (value / 10_u32.pow(place) % 10) as u8);
    }
}

/// Whether the objects and lists of a JSON text are nested at most `depth` levels deep.
pub(crate) fn is_nested_within(text: &[u8], depth: usize) -> bool {
    let (mut in_string, mut escaped, mut open) = (false, false, 0_usize);
    text.iter().all(|byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => open += 1,
            b'}' | b']' if !in_string => open = open.saturating_sub(1),
            _ => {}
        }
        open <= depth
    })
}

/// Writes JSON as Go prints JSON inside JSON: without whitespace, and with `<`, `>`, `&`, U+2028
/// and U+2029 escaped.
///
/// # Errors
/// The syntax error, or that the JSON is nested more than `depth` levels deep.
pub(crate) fn push_raw_json(out: &mut Vec<u8>, text: &[u8], depth: usize) -> Result<(), String> {
    serde_json::from_slice::<IgnoredAny>(text).map_err(|error| error.to_string())?;
    // `IgnoredAny` skips strings without validation, but JSON must be UTF-8.
    std::str::from_utf8(text).map_err(|error| error.to_string())?;
    let (mut in_string, mut escaped, mut from, mut open) = (false, false, 0, 0_usize);
    for (at, &byte) in text.iter().enumerate() {
        let keep = match byte {
            _ if escaped => {
                escaped = false;
                true
            }
            b'\\' => {
                escaped = true;
                true
            }
            b'"' => {
                in_string = !in_string;
                true
            }
            b'{' | b'[' if !in_string => {
                open += 1;
                if open > depth {
                    return Err("JSON that is nested too deeply".to_owned());
                }
                true
            }
            b'}' | b']' if !in_string => {
                open -= 1;
                true
            }
            b' ' | b'\t' | b'\r' | b'\n' => in_string,
            b'<' | b'>' | b'&' => false,
            0xe2 => !matches!(text.get(at..at + 3), Some([_, 0x80, 0xa8 | 0xa9])),
            _ => true,
        };
        if keep || at < from {
            continue;
        }
        out.extend_from_slice(&text[from..at]);
        from = at + 1;
        match byte {
            b'<' | b'>' | b'&' => push_unicode_escape(out, byte),
            0xe2 => {
                out.extend_from_slice(if text[at + 2] == 0xa8 { b"\\u2028" } else { b"\\u2029" });
                from = at + 3;
            }
            _ => {}
        }
    }
    out.extend_from_slice(&text[from..]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(print: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        print(&mut out);
        String::from_utf8(out).expect("JSON is text")
    }

    #[test]
    fn strings_are_escaped_as_in_go() {
        for (text, expected) in [
            (&b""[..], r#""""#),
            (b"plain", r#""plain""#),
            ("ä€😀".as_bytes(), "\"ä€😀\""),
            (b"a\"b\\c", r#""a\"b\\c""#),
            (b"\n\r\t\x08\x0c\x01\x1f\x7f", "\"\\n\\r\\t\\b\\f\\u0001\\u001f\x7f\""),
            (b"<a & b>", r#""\u003ca \u0026 b\u003e""#),
            ("a\u{2028}b\u{2029}".as_bytes(), r#""a\u2028b\u2029""#),
            (b"a\xffb", "\"a\u{fffd}b\""),
        ] {
            assert_eq!(printed(|out| push_string(out, text)), expected, "{text:x?}");
        }
    }

    #[test]
    fn numbers_are_formatted_as_in_go() {
        for (value, expected) in [(0, "0"), (7, "7"), (-10, "-10"), (i64::MIN, "-9223372036854775808")] {
            assert_eq!(printed(|out| push_integer(out, value)), expected);
        }
        for (value, expected) in [
            (0.0, "0"),
            (100.0, "100"),
            (-0.5, "-0.5"),
            (1e-6, "0.000001"),
            (1e-7, "1e-7"),
            (1.5e-9, "1.5e-9"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (f64::MAX, "1.7976931348623157e+308"),
        ] {
            assert_eq!(printed(|out| assert!(push_double(out, value))), expected);
        }
        assert!(!push_double(&mut Vec::new(), f64::NAN) && !push_double(&mut Vec::new(), f64::INFINITY));
    }

    #[test]
    fn time_has_whole_seconds_and_micro_time_has_six_fraction_digits() {
        for (seconds, micros, expected) in [
            (0, None, r#""1970-01-01T00:00:00Z""#),
            (1_717_243_445, None, r#""2024-06-01T12:04:05Z""#),
            (1_717_243_445, Some(7), r#""2024-06-01T12:04:05.000007Z""#),
            (ZERO_TIME_SECONDS + 1, None, r#""0001-01-01T00:00:01Z""#),
        ] {
            assert_eq!(printed(|out| push_time(out, seconds, micros)), expected);
        }
        for (seconds, expected) in [
            (ZERO_TIME_SECONDS - 1, "0000-12-31T23:59:59Z"),
            (253_402_300_800, "10000-01-01T00:00:00Z"),
            (-62_167_219_201, "-0001-12-31T23:59:59Z"),
        ] {
            assert_eq!(printed(|out| push_time(out, seconds, None)), format!("\"{expected}\""));
            assert_eq!(read_time(expected), Some((seconds, 0)), "{expected}");
        }
        for seconds in [i64::MAX, i64::MIN] {
            assert!(printed(|out| push_time(out, seconds, None)).ends_with("Z\""));
        }
        for (text, expected) in [
            ("2024-06-01T12:04:05Z", Some((1_717_243_445, 0))),
            ("2024-06-01T14:04:05+02:00", Some((1_717_243_445, 0))),
            ("2024-06-01T12:04:05.25Z", Some((1_717_243_445, 250_000_000))),
            // In UTC, this is a time of the year 10000.
            ("9999-12-31T23:59:59-01:00", Some((253_402_304_399, 0))),
            ("0000-01-01T00:00:00+01:00", Some((-62_167_222_800, 0))),
            ("10000-01-01T00:00:59.000007Z", Some((253_402_300_859, 7_000))),
            ("10000-02-30T00:00:00Z", None),
            ("10000-01-01T00:00:00.5Z", None),
            ("123-01-01T00:00:00Z", None),
            ("é0000-01-01T00:00:00Z", None),
            ("yesterday", None),
            ("Z", None),
            ("2024-06-01", None),
            ("", None),
        ] {
            assert_eq!(read_time(text), expected, "{text}");
        }
    }

    #[test]
    fn embedded_json_is_validated_and_compacted() {
        for (text, expected) in [
            ("{}", Some("{}")),
            ("{ \"a b\" :\n[1, \"x \\\" y\"] }", Some(r#"{"a b":[1,"x \" y"]}"#)),
            (r#"{"a":"<&>"}"#, Some(r#"{"a":"\u003c\u0026\u003e"}"#)),
            ("\"\u{2028}\u{2027}\"", Some("\"\\u2028\u{2027}\"")),
            ("[[]]", Some("[[]]")),
            ("[[[]]]", None),
            ("[\"[[[[\"]", Some("[\"[[[[\"]")),
            ("[\"]]]\",[]]", Some("[\"]]]\",[]]")),
            ("[[],{},[],{}]", Some("[[],{},[],{}]")),
            ("{\"a\":}", None),
            ("{} {}", None),
            ("", None),
        ] {
            let mut out = Vec::new();
            let result = push_raw_json(&mut out, text.as_bytes(), 2).ok();
            assert_eq!(result.map(|()| String::from_utf8_lossy(&out).into_owned()).as_deref(), expected, "{text}");
        }
        assert!(push_raw_json(&mut Vec::new(), b"\"\xff\"", 2).is_err(), "JSON is UTF-8");
    }

    #[test]
    fn nesting_counts_open_objects_and_lists_outside_of_strings() {
        for (text, depth) in [
            ("7", 0),
            ("[]", 1),
            (r#"{"a":[{}]}"#, 3),
            ("[[],{},[],{}]", 2),
            (r#"["[[[","]]]",[]]"#, 2),
            (r#"["\"[[[",[]]"#, 2),
            (r#"["\\",[[]]]"#, 3),
        ] {
            assert!(is_nested_within(text.as_bytes(), depth), "{text} has at most {depth} levels");
            assert!(depth == 0 || !is_nested_within(text.as_bytes(), depth - 1), "{text} has {depth} levels");
        }
    }

    #[test]
    fn base64_round_trips() {
        for bytes in [&b""[..], b"a", b"ab", b"abc", b"\x00\xff"] {
            let text = printed(|out| push_base64(out, bytes));
            assert_eq!(read_base64(text.trim_matches('"')).as_deref(), Some(bytes));
        }
        assert_eq!(read_base64("YW\nJj").as_deref(), Some(&b"abc"[..]));
        assert_eq!(read_base64("YW"), None);
    }
}
