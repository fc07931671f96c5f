//! Encodes JSON as CBOR in one pass. The length of a container is known only at its end, so its
//! head is filled in then. For containers of up to 23 members this costs nothing; a longer
//! container costs a `memmove` of its bytes.

use super::{ARRAY, BYTES, ENCODE_DEPTH_MAX, MAP, NEGATIVE, SELF_DESCRIBED, UNSIGNED, head_of, push_head};

/// The error of an unencodable value. The JSON is the server's own, so the server is at fault and
/// returns 500.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The input is not JSON.
    #[error("malformed JSON at byte {at}: {why}")]
    Malformed {
        /// The position in the JSON, in bytes.
        at: usize,
        /// The problem.
        why: &'static str,
    },
    /// The JSON is nested more deeply than [`ENCODE_DEPTH_MAX`].
    #[error("JSON nested more than {ENCODE_DEPTH_MAX} levels deep at byte {at}")]
    TooDeep {
        /// The position in the JSON, in bytes.
        at: usize,
    },
    /// An object of a list is unencodable.
    #[error("item {index} of a list: {why}")]
    ListItem {
        /// The object's index in the list.
        index: usize,
        /// The object's error.
        why: Box<EncodeError>,
    },
    /// The list's iterator returned another number of objects for sending than for counting. The
    /// sent bytes are unusable.
    #[error("the items of a list changed while they were written")]
    ListChanged,
}

/// Encodes a JSON value as a body, with [`SELF_DESCRIBED`] in front.
///
/// Control characters inside strings are accepted; any other invalid JSON is rejected.
///
/// # Errors
/// [`EncodeError::Malformed`], [`EncodeError::TooDeep`].
pub fn encode(json: &[u8]) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::with_capacity(SELF_DESCRIBED.len() + json.len());
    out.extend_from_slice(SELF_DESCRIBED);
    push_json(&mut out, json)?;
    Ok(out)
}

/// Appends a JSON value without a tag.
pub(super) fn push_json(out: &mut Vec<u8>, json: &[u8]) -> Result<(), EncodeError> {
    push_without(out, json, &[])
}

/// As [`push_json`], without these members of the root object.
pub(super) fn push_without(out: &mut Vec<u8>, json: &[u8], without: &[&[u8]]) -> Result<(), EncodeError> {
    let mut encoder = Encoder { json, at: 0, out, depth: 0, scratch: Vec::new(), without };
    encoder.value()?;
    encoder.space();
    if encoder.at < json.len() { encoder.malformed("something follows the value") } else { Ok(()) }
}

/// Appends a string as bytes, as Go does.
pub(super) fn push_string(out: &mut Vec<u8>, text: &[u8]) {
    push_head(out, BYTES, text.len() as u64);
    out.extend_from_slice(text);
}

struct Encoder<'a> {
    json: &'a [u8],
    at: usize,
    out: &'a mut Vec<u8>,
    /// The number of open objects and lists.
    depth: usize,
    /// Scratch space for a string with escapes.
    scratch: Vec<u8>,
    /// Members of the root object to omit.
    without: &'a [&'a [u8]],
}

impl Encoder<'_> {
    fn malformed<T>(&self, why: &'static str) -> Result<T, EncodeError> {
        Err(EncodeError::Malformed { at: self.at, why })
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.json.get(self.at) {
            self.at += 1;
        }
    }

    /// The next byte that is not whitespace.
    fn next(&mut self) -> Result<u8, EncodeError> {
        self.space();
        match self.json.get(self.at) {
            Some(byte) => Ok(*byte),
            None => self.malformed("unexpected end"),
        }
    }

    fn value(&mut self) -> Result<(), EncodeError> {
        match self.next()? {
            b'{' => self.container(MAP, b'}'),
            b'[' => self.container(ARRAY, b']'),
            b'"' => self.string(),
            b't' => self.literal(b"true", 0xf5),
            b'f' => self.literal(b"false", 0xf4),
            b'n' => self.literal(b"null", 0xf6),
            b'-' | b'0'..=b'9' => self.number(),
            _ => self.malformed("no value begins like this"),
        }
    }

    fn literal(&mut self, word: &[u8], simple: u8) -> Result<(), EncodeError> {
        if !self.json[self.at..].starts_with(word) {
            return self.malformed("no value begins like this");
        }
        self.at += word.len();
        self.out.push(simple);
        Ok(())
    }

    fn container(&mut self, major: u8, end: u8) -> Result<(), EncodeError> {
        if self.depth == ENCODE_DEPTH_MAX {
            return Err(EncodeError::TooDeep { at: self.at });
        }
        self.depth += 1;
        self.at += 1;
        let head = self.out.len();
        self.out.push(0);
        let mut count = 0;
        if self.next()? == end {
            self.at += 1;
        } else {
            loop {
                let member = self.out.len();
                let mut keep = true;
                if major == MAP {
                    if self.next()? != b'"' {
                        return self.malformed("a name is expected");
                    }
                    let name = self.at + 1;
                    self.string()?;
                    // Omitted names have no escapes.
                    keep = self.depth > 1 || !self.without.contains(&&self.json[name..self.at - 1]);
                    if self.next()? != b':' {
                        return self.malformed("a colon is expected");
                    }
                    self.at += 1;
                }
                self.value()?;
                if keep {
                    count += 1;
                } else {
                    self.out.truncate(member);
                }
                let byte = self.next()?;
                if byte != b',' && byte != end {
                    return self.malformed("a comma or the end is expected");
                }
                self.at += 1;
                if byte == end {
                    break;
                }
            }
        }
        let (bytes, len) = head_of(major, count);
        if len == 1 {
            self.out[head] = bytes[0];
        } else {
            self.out.splice(head..=head, bytes[..len].iter().copied());
        }
        self.depth -= 1;
        Ok(())
    }

    /// Reads a string, starting at its quote.
    fn string(&mut self) -> Result<(), EncodeError> {
        self.at += 1;
        let start = self.at;
        let Some(len) = memchr::memchr2(b'"', b'\\', &self.json[start..]) else {
            return self.malformed("a string has no end");
        };
        self.at += len;
        if self.json[self.at] == b'"' {
            push_string(self.out, &self.json[start..self.at]);
            self.at += 1;
            return Ok(());
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(&self.json[start..self.at]);
        loop {
            // At a backslash.
            self.escape()?;
            let Some(len) = memchr::memchr2(b'"', b'\\', &self.json[self.at..]) else {
                return self.malformed("a string has no end");
            };
            self.scratch.extend_from_slice(&self.json[self.at..self.at + len]);
            self.at += len;
            if self.json[self.at] == b'"' {
                push_string(self.out, &self.scratch);
                self.at += 1;
                return Ok(());
            }
        }
    }

    fn escape(&mut self) -> Result<(), EncodeError> {
        let plain = match self.json.get(self.at + 1) {
            Some(byte @ (b'"' | b'\\' | b'/')) => *byte,
            Some(b'b') => 0x08,
            Some(b'f') => 0x0c,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'u') => {
                let mut code = self.hex4(self.at + 2)?;
                self.at += 6;
                // The second half of a surrogate pair; a single half becomes U+FFFD, as in Go.
                if (0xd800..0xdc00).contains(&code) && self.json[self.at..].starts_with(b"\\u") {
                    let low = self.hex4(self.at + 2)?;
                    if (0xdc00..0xe000).contains(&low) {
                        code = 0x1_0000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                        self.at += 6;
                    }
                }
                let char = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
                self.scratch.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return self.malformed("no such escape"),
        };
        self.scratch.push(plain);
        self.at += 2;
        Ok(())
    }

    fn hex4(&self, at: usize) -> Result<u32, EncodeError> {
        let digits = self.json.get(at..at + 4).unwrap_or_default();
        let value = digits.iter().try_fold(0, |value, digit| Some(value << 4 | char::from(*digit).to_digit(16)?));
        match value {
            Some(value) if digits.len() == 4 => Ok(value),
            _ => self.malformed("no such escape"),
        }
    }

    fn number(&mut self) -> Result<(), EncodeError> {
        let rest = &self.json[self.at..];
        let negative = rest[0] == b'-';
        let digits = |from: usize| rest[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let first = usize::from(negative);
        let whole = digits(first);
        if whole == 0 || (whole > 1 && rest[first] == b'0') {
            return self.malformed("no number");
        }
        let mut end = first + whole;
        if rest.get(end) == Some(&b'.') {
            let fraction = digits(end + 1);
            if fraction == 0 {
                return self.malformed("no number");
            }
            end += 1 + fraction;
        }
        if let Some(b'e' | b'E') = rest.get(end) {
            end += 1;
            if let Some(b'+' | b'-') = rest.get(end) {
                end += 1;
            }
            let exponent = digits(end);
            if exponent == 0 {
                return self.malformed("no number");
            }
            end += exponent;
        }
        let text = std::str::from_utf8(&rest[..end]).unwrap_or_default();
        match text.parse::<i64>() {
            Ok(value) if value >= 0 => push_head(self.out, UNSIGNED, value as u64),
            Ok(value) => push_head(self.out, NEGATIVE, !(value as u64)),
            // A fraction, an exponent, or an integer beyond 64 bits, which becomes a float, as in Go.
            Err(_) => match text.parse::<f64>() {
                Ok(value) if value.is_finite() => push_float(self.out, value),
                _ => return self.malformed("a number out of range"),
            },
        }
        self.at += end;
        Ok(())
    }
}

/// Appends a float in the smallest width that keeps its value.
fn push_float(out: &mut Vec<u8>, value: f64) {
    let single = value as f32;
    if f64::from(single).to_bits() != value.to_bits() {
        out.push(0xfb);
        out.extend_from_slice(&value.to_be_bytes());
    } else if let Some(half) = half(single) {
        out.push(0xf9);
        out.extend_from_slice(&half.to_be_bytes());
    } else {
        out.push(0xfa);
        out.extend_from_slice(&single.to_be_bytes());
    }
}

/// The half-precision bits of a finite float, if it is exactly representable.
fn half(value: f32) -> Option<u16> {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let exponent = (bits >> 23 & 0xff) as i32 - 127;
    let fraction = bits & 0x7f_ffff;
    match exponent {
        _ if bits << 1 == 0 => Some(sign),
        -14..=15 if fraction.trailing_zeros() >= 13 => {
            Some(sign | ((exponent + 15) as u16) << 10 | (fraction >> 13) as u16)
        }
        // Subnormal numbers have an explicit leading bit.
        -24..=-15 => {
            let shift = (-exponent - 1) as u32;
            let whole = fraction | 0x80_0000;
            (whole.trailing_zeros() >= shift).then(|| sign | (whole >> shift) as u16)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str, expected: &[u8]) {
        let mut out = Vec::new();
        assert_eq!(push_json(&mut out, json.as_bytes()), Ok(()), "{json}");
        assert_eq!(out, expected, "{json}");
    }

    /// Values of RFC 8949's appendix A that exist in JSON, with strings as bytes.
    #[test]
    fn cbor_values_are_encoded_in_their_shortest_form() {
        check("0", b"\x00");
        check("-0", b"\x00");
        check("23", b"\x17");
        check("24", b"\x18\x18");
        check("255", b"\x18\xff");
        check("256", b"\x19\x01\x00");
        check("65536", b"\x1a\x00\x01\x00\x00");
        check("4294967296", b"\x1b\x00\x00\x00\x01\x00\x00\x00\x00");
        check("9223372036854775807", b"\x1b\x7f\xff\xff\xff\xff\xff\xff\xff");
        check("-1", b"\x20");
        check("-24", b"\x37");
        check("-25", b"\x38\x18");
        check("-9223372036854775808", b"\x3b\x7f\xff\xff\xff\xff\xff\xff\xff");
        check("9223372036854775808", b"\xfa\x5f\x00\x00\x00");
        check("0.0", b"\xf9\x00\x00");
        check("-0.0", b"\xf9\x80\x00");
        check("1.0", b"\xf9\x3c\x00");
        check("1e0", b"\xf9\x3c\x00");
        check("1.1", b"\xfb\x3f\xf1\x99\x99\x99\x99\x99\x9a");
        check("1.5", b"\xf9\x3e\x00");
        check("65504.0", b"\xf9\x7b\xff");
        check("65505.0", b"\xfa\x47\x7f\xe1\x00");
        check("100000.0", b"\xfa\x47\xc3\x50\x00");
        check("3.4028234663852886e+38", b"\xfa\x7f\x7f\xff\xff");
        check("1.0e+300", b"\xfb\x7e\x37\xe4\x3c\x88\x00\x75\x9c");
        check("5.960464477539063e-8", b"\xf9\x00\x01");
        check("0.00006103515625", b"\xf9\x04\x00");
        check("0.00006097555160522461", b"\xf9\x03\xff");
        check("-4.1", b"\xfb\xc0\x10\x66\x66\x66\x66\x66\x66");
        check("true", b"\xf5");
        check(" false\n", b"\xf4");
        check("null", b"\xf6");
        check(r#""""#, b"\x40");
        check(r#""\"\\\/\b\f\n\r\t""#, b"\x48\"\\/\x08\x0c\n\r\t");
        check(r#""\u00fc\ud83d\ude00\u20acx""#, "\x4aü😀€x".as_bytes());
        check(r#""\ud800\u0041\udc00""#, "\x47\u{fffd}A\u{fffd}".as_bytes());
        check("[]", b"\x80");
        check("[1,[2,3]]", b"\x82\x01\x82\x02\x03");
        check(r#"{ "a" : 1 , "b" : [ ] }"#, b"\xa2\x41a\x01\x41b\x80");
        let many: Vec<String> = (0..24).map(|n| n.to_string()).collect();
        let mut expected = b"\x98\x18".to_vec();
        expected.extend(0..24);
        check(&format!("[{}]", many.join(",")), &expected);
        let long = "x".repeat(300);
        check(&format!("\"{long}\""), &[b"\x59\x01\x2c", long.as_bytes()].concat());
    }

    #[test]
    fn half_precision_is_used_if_exact() {
        for bits in 0..=u16::MAX {
            let value = super::super::decode::half_value(bits);
            if value.is_finite() {
                assert_eq!(half(value as f32), Some(bits), "{value}");
                // The neighbors in 32 bits have no half-precision form.
                let near = f32::from_bits((value as f32).to_bits() + 1);
                assert_eq!(half(near), None, "{near}");
            }
        }
    }

    #[test]
    fn invalid_json_fails_with_its_position() {
        for (json, at) in [
            ("", 0),
            ("{", 1),
            ("{1:2}", 1),
            (r#"{"a"}"#, 4),
            (r#"{"a":1,}"#, 7),
            ("[1 2]", 3),
            ("[1,]", 3),
            ("tru", 0),
            ("01", 0),
            ("-", 0),
            ("1.", 0),
            ("1e", 0),
            ("1e999", 0),
            (r#""a"#, 1),
            (r#""\x""#, 1),
            (r#""\u12""#, 1),
            (r#""\ud800\u1""#, 7),
            ("1 1", 2),
        ] {
            match encode(json.as_bytes()) {
                Err(EncodeError::Malformed { at: found, .. }) => assert_eq!(found, at, "{json}"),
                other => panic!("{json}: {other:?}"),
            }
        }
        let deep = |depth: usize| encode(&[b"[".repeat(depth), b"]".repeat(depth)].concat());
        assert!(deep(ENCODE_DEPTH_MAX).is_ok());
        assert_eq!(deep(ENCODE_DEPTH_MAX + 1), Err(EncodeError::TooDeep { at: ENCODE_DEPTH_MAX }));
    }

    #[test]
    fn push_without_omits_members_of_the_root_object() {
        let mut out = Vec::new();
        let json = br#"{"kind":"A","a":{"kind":"B"},"apiVersion":{"x":[1]}}"#;
        push_without(&mut out, json, &[b"kind", b"apiVersion"]).expect("JSON");
        assert_eq!(out, b"\xa1\x41a\xa1\x44kind\x41B");
    }
}
