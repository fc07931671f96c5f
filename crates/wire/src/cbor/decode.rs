//! Decodes CBOR to JSON, as Go's decoder and JSON encoder together would print it.

use std::fmt::Write as _;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{
    ARRAY, BREAK, BYTES, DEPTH_MAX, Head, HeadError, INDEFINITE, MAP, NEGATIVE, SELF_DESCRIBED, SIMPLE, TAG, TEXT,
    UNSIGNED,
};
use crate::forms;

/// The Unix time of 9999-12-31T23:59:59Z.
const LAST_TIME_SECONDS: i64 = 253_402_300_799;

/// The error of an undecodable body. The sender is at fault and a retry is useless; a server
/// returns 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The body ends too early.
    #[error("unexpected EOF at byte {at}")]
    Truncated {
        /// The position in the body, in bytes.
        at: usize,
    },
    /// An item is invalid, or a break is misplaced.
    #[error("cbor: malformed item at byte {at}")]
    Malformed {
        /// The position in the body, in bytes.
        at: usize,
    },
    /// Data follows the item.
    #[error("cbor: {bytes} bytes of extraneous data starting at index {at}")]
    Trailing {
        /// The position in the body, in bytes.
        at: usize,
        /// The number of bytes that follow.
        bytes: usize,
    },
    /// A value has no JSON representation.
    #[error("cbor: {why} at byte {at}")]
    Invalid {
        /// The position in the body, in bytes.
        at: usize,
        /// The problem.
        why: &'static str,
    },
    /// A map has two members of one name.
    #[error("cbor: found duplicate map key {name} in the map that ends before byte {at}")]
    DuplicateName {
        /// The position in the body, in bytes.
        at: usize,
        /// The name, quoted.
        name: String,
    },
    /// Containers and tags are nested more deeply than [`DEPTH_MAX`].
    #[error("cbor: nested more than {DEPTH_MAX} levels deep at byte {at}")]
    TooDeep {
        /// The position in the body, in bytes.
        at: usize,
    },
}

/// Decodes a body with or without the tag. Returns one JSON value without whitespace, of at most
/// about twelve times the body's length (two bytes can be a time).
///
/// # Errors
/// [`DecodeError`]. Invalid bytes never panic.
pub fn decode(body: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let at = if body.starts_with(SELF_DESCRIBED) { SELF_DESCRIBED.len() } else { 0 };
    let mut decoder = Decoder {
        body,
        at,
        out: Vec::with_capacity(body.len() + body.len() / 2),
        depth: 0,
        bytes_encoding: None,
        names: Vec::new(),
    };
    decoder.value()?;
    match body.len() - decoder.at {
        0 => Ok(decoder.out),
        bytes => Err(DecodeError::Trailing { at: decoder.at, bytes }),
    }
}

/// The conversion of bytes to text, by tags 21 to 23.
#[derive(Clone, Copy, Debug)]
enum BytesEncoding {
    Base64Url,
    Base64,
    Base16,
}

struct Decoder<'a> {
    body: &'a [u8],
    at: usize,
    out: Vec<u8>,
    /// The number of open containers and tags.
    depth: usize,
    bytes_encoding: Option<BytesEncoding>,
    /// A stack of the positions in `out` of the names of open maps.
    names: Vec<Range<usize>>,
}

/// A string: a slice of the body, or joined chunks.
enum Text<'a> {
    ValueRange(&'a [u8]),
    Joined(Vec<u8>),
}

impl AsRef<[u8]> for Text<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Text::ValueRange(bytes) => bytes,
            Text::Joined(bytes) => bytes,
        }
    }
}

impl<'a> Decoder<'a> {
    fn head(&mut self) -> Result<Head, DecodeError> {
        let head = Head::read(&self.body[self.at..]).map_err(|error| match error {
            HeadError::Truncated => DecodeError::Truncated { at: self.body.len() },
            HeadError::Malformed => DecodeError::Malformed { at: self.at },
        })?;
        self.at += head.bytes;
        Ok(head)
    }

    fn deeper(&mut self, at: usize) -> Result<(), DecodeError> {
        if self.depth == DEPTH_MAX {
            return Err(DecodeError::TooDeep { at });
        }
        self.depth += 1;
        Ok(())
    }

    fn value(&mut self) -> Result<(), DecodeError> {
        let at = self.at;
        let head = self.head()?;
        let invalid = |why| Err(DecodeError::Invalid { at, why });
        match head.major {
            UNSIGNED => match i64::try_from(head.argument) {
                Ok(value) => forms::push_integer(&mut self.out, value),
                Err(_) => return invalid("an integer beyond 64 bits"),
            },
            NEGATIVE => match i64::try_from(head.argument) {
                Ok(value) => forms::push_integer(&mut self.out, !value),
                Err(_) => return invalid("an integer beyond 64 bits"),
            },
            BYTES | TEXT => {
                let text = self.text(head, at)?;
                self.push_text(head.major, text.as_ref());
            }
            ARRAY => self.array(head, at)?,
            MAP => self.map(head, at)?,
            TAG => {
                self.deeper(at)?;
                self.tagged(head.argument, at)?;
                self.depth -= 1;
            }
            _ => match (head.info, head.argument) {
                (20, _) => self.out.extend_from_slice(b"false"),
                (21, _) => self.out.extend_from_slice(b"true"),
                (22, _) => self.out.extend_from_slice(b"null"),
                (25..=27, _) => {
                    if !forms::push_double(&mut self.out, float(head)) {
                        return invalid("a number that JSON does not know");
                    }
                }
                _ => return invalid("a simple value that JSON does not know"),
            },
        }
        Ok(())
    }

    /// Whether an indefinite length ends here with a break.
    fn ended(&mut self) -> Result<bool, DecodeError> {
        match self.body.get(self.at) {
            None => Err(DecodeError::Truncated { at: self.at }),
            Some(&BREAK) => {
                self.at += 1;
                Ok(true)
            }
            Some(_) => Ok(false),
        }
    }

    fn array(&mut self, head: Head, at: usize) -> Result<(), DecodeError> {
        self.deeper(at)?;
        self.out.push(b'[');
        let mut count = 0;
        while if head.info == INDEFINITE { !self.ended()? } else { count < head.argument } {
            if count > 0 {
                self.out.push(b',');
            }
            self.value()?;
            count += 1;
        }
        self.out.push(b']');
        self.depth -= 1;
        Ok(())
    }

    fn map(&mut self, head: Head, at: usize) -> Result<(), DecodeError> {
        self.deeper(at)?;
        self.out.push(b'{');
        let first = self.names.len();
        let mut count = 0;
        while if head.info == INDEFINITE { !self.ended()? } else { count < head.argument } {
            if count > 0 {
                self.out.push(b',');
            }
            let (name_at, start) = (self.at, self.out.len());
            self.value()?;
            if self.out.get(start) != Some(&b'"') {
                return Err(DecodeError::Invalid { at: name_at, why: "a map key that is no string" });
            }
            self.names.push(start..self.out.len());
            self.out.push(b':');
            self.value()?;
            count += 1;
        }
        self.out.push(b'}');
        let (names, out) = (&mut self.names[first..], &self.out);
        names.sort_unstable_by(|one, other| out[one.clone()].cmp(&out[other.clone()]));
        if let Some(pair) = names.windows(2).find(|pair| out[pair[0].clone()] == out[pair[1].clone()]) {
            let name = String::from_utf8_lossy(&out[pair[0].clone()]).into_owned();
            return Err(DecodeError::DuplicateName { at: self.at, name });
        }
        self.names.truncate(first);
        self.depth -= 1;
        Ok(())
    }

    /// The content of a string whose head was read.
    fn text(&mut self, head: Head, at: usize) -> Result<Text<'a>, DecodeError> {
        if head.info != INDEFINITE {
            return Ok(Text::ValueRange(self.string(head, at)?));
        }
        let mut joined = Vec::new();
        while !self.ended()? {
            let at = self.at;
            let chunk = self.head()?;
            if chunk.major != head.major || chunk.info == INDEFINITE {
                return Err(DecodeError::Malformed { at });
            }
            joined.extend_from_slice(self.string(chunk, at)?);
        }
        Ok(Text::Joined(joined))
    }

    fn string(&mut self, head: Head, at: usize) -> Result<&'a [u8], DecodeError> {
        let rest = &self.body[self.at..];
        let len = usize::try_from(head.argument).unwrap_or(usize::MAX);
        let Some(bytes) = rest.get(..len) else { return Err(DecodeError::Truncated { at: self.body.len() }) };
        if head.major == TEXT && std::str::from_utf8(bytes).is_err() {
            return Err(DecodeError::Invalid { at, why: "text that is no UTF-8" });
        }
        self.at += len;
        Ok(bytes)
    }

    /// Writes text, and bytes as text; bytes below a conversion tag become base64 or hex.
    fn push_text(&mut self, major: u8, bytes: &[u8]) {
        match self.bytes_encoding.filter(|_| major == BYTES) {
            None => forms::push_string(&mut self.out, bytes),
            Some(BytesEncoding::Base64) => forms::push_base64(&mut self.out, bytes),
            Some(BytesEncoding::Base64Url) => {
                forms::push_string(&mut self.out, URL_SAFE_NO_PAD.encode(bytes).as_bytes())
            }
            Some(BytesEncoding::Base16) => {
                let hex = bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut hex, byte| {
                    let _ = write!(hex, "{byte:02x}");
                    hex
                });
                forms::push_string(&mut self.out, hex.as_bytes());
            }
        }
    }

    fn tagged(&mut self, tag: u64, at: usize) -> Result<(), DecodeError> {
        let bytes_encoding = match tag {
            0 => return self.date_time(at),
            1 => return self.epoch(at),
            2 | 3 => return Err(DecodeError::Invalid { at, why: "an integer beyond 64 bits" }),
            21 => BytesEncoding::Base64Url,
            22 => BytesEncoding::Base64,
            23 => BytesEncoding::Base16,
            // An unknown tag is ignored.
            _ => return self.value(),
        };
        let outer = self.bytes_encoding.replace(bytes_encoding);
        self.value()?;
        self.bytes_encoding = outer;
        Ok(())
    }

    /// Tag 0: a time as text. Bytes are rejected, as in Go.
    fn date_time(&mut self, at: usize) -> Result<(), DecodeError> {
        let head = self.head()?;
        if head.major == TEXT {
            let text = self.text(head, at)?;
            let text = text.as_ref();
            if std::str::from_utf8(text).is_ok_and(|text| forms::read_time(text).is_some()) {
                forms::push_string(&mut self.out, text);
                return Ok(());
            }
        }
        Err(DecodeError::Invalid { at, why: "a time that is no RFC 3339 text" })
    }

    /// Tag 1: a time in seconds, written as Go writes a `time.Time`.
    fn epoch(&mut self, at: usize) -> Result<(), DecodeError> {
        let head = self.head()?;
        let (seconds, nanos) = match (head.major, i64::try_from(head.argument)) {
            (UNSIGNED, Ok(seconds)) => (seconds, 0),
            (NEGATIVE, Ok(before)) => (!before, 0),
            (SIMPLE, _) if (25..=27).contains(&head.info) && float(head).is_finite() => {
                let value = float(head);
                let whole = value.floor();
                (whole as i64, ((value - whole) * 1e9) as u32)
            }
            _ => return Err(DecodeError::Invalid { at, why: "a time that is no number of seconds" }),
        };
        let start = self.out.len();
        if !(forms::ZERO_TIME_SECONDS..=LAST_TIME_SECONDS).contains(&seconds) {
            return Err(DecodeError::Invalid { at, why: "a time outside of the years 1 to 9999" });
        }
        forms::push_time(&mut self.out, seconds, None);
        if nanos > 0 {
            let digits = format!(".{nanos:09}");
            let place = self.out.len() - 2;
            debug_assert!(place > start, "a time ends with Z and a quote");
            self.out.splice(place..place, digits.trim_end_matches('0').bytes());
        }
        Ok(())
    }
}

/// The value of a float of any width.
fn float(head: Head) -> f64 {
    match head.info {
        25 => half_value(head.argument as u16),
        26 => f64::from(f32::from_bits(head.argument as u32)),
        _ => f64::from_bits(head.argument),
    }
}

/// The value of a half-precision float.
pub(super) fn half_value(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2_f64.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &[u8], expected: &str) {
        let json = decode(body).map(|json| String::from_utf8(json).expect("JSON is text"));
        assert_eq!(json.as_deref(), Ok(expected), "{body:x?}");
    }

    #[test]
    fn cbor_values_with_a_json_form_are_decoded() {
        // Values of RFC 8949, appendix A.
        check(b"\xd9\xd9\xf7\x00", "0");
        check(b"\xd9\xd9\xf7\xd9\xd9\xf7\x00", "0");
        check(b"\x1b\x7f\xff\xff\xff\xff\xff\xff\xff", "9223372036854775807");
        check(b"\x3b\x7f\xff\xff\xff\xff\xff\xff\xff", "-9223372036854775808");
        check(b"\x38\x63", "-100");
        check(b"\xf9\x3c\x00", "1");
        check(b"\xf9\x80\x00", "-0");
        check(b"\xf9\x00\x01", "5.960464477539063e-8");
        check(b"\xfa\x47\xc3\x50\x00", "100000");
        check(b"\xfb\x3f\xf1\x99\x99\x99\x99\x99\x9a", "1.1");
        check(b"\xfb\x7e\x37\xe4\x3c\x88\x00\x75\x9c", "1e+300");
        check(b"\xf4", "false");
        check(b"\xf5", "true");
        check(b"\xf6", "null");
        check(b"\x64IETF", r#""IETF""#);
        check(b"\x44IETF", r#""IETF""#);
        check(b"\x42\xffa", "\"\u{fffd}a\"");
        check(b"\x63<\"\n", r#""\u003c\"\n""#);
        check(b"\x5f\x42ab\x40\x41c\xff", r#""abc""#);
        check(b"\x7f\x65strea\x64ming\xff", r#""streaming""#);
        check(b"\x9f\x01\x82\x02\x03\x9f\x04\x05\xff\xff", "[1,[2,3],[4,5]]");
        check(b"\xbf\x63Fun\xf5\x63Amt\x21\xff", r#"{"Fun":true,"Amt":-2}"#);
        check(b"\xa2\x41a\x01\x61b\x82\x02\x03", r#"{"a":1,"b":[2,3]}"#);
        check(b"\x80", "[]");
        check(b"\xa0", "{}");
        check(b"\xc0\x742013-03-21T20:04:00Z", r#""2013-03-21T20:04:00Z""#);
        check(b"\xc1\x1a\x51\x4b\x67\xb0", r#""2013-03-21T20:04:00Z""#);
        check(b"\xc1\xfb\x41\xd4\x52\xd9\xec\x20\x00\x00", r#""2013-03-21T20:04:00.5Z""#);
        check(b"\xc1\x20", r#""1969-12-31T23:59:59Z""#);
        check(b"\xc1\x3a\x51\x4b\x67\xaf", r#""1926-10-13T03:56:00Z""#);
        check(b"\xc1\xf9\xbe\x00", r#""1969-12-31T23:59:58.5Z""#);
        check(b"\xd5\x43\xff\xfe\xfd", r#""__79""#);
        check(b"\xd6\x43\xff\xfe\xfd", r#""//79""#);
        check(b"\xd7\x43\xff\xfe\xfd", r#""fffefd""#);
        check(b"\xd6\x82\x41a\xd7\x41b", r#"["YQ==","62"]"#);
        check(b"\xd6\x61a", r#""a""#);
        check(b"\xd8\x20\x61a", r#""a""#);
    }

    #[test]
    fn cbor_values_without_a_json_form_fail_with_their_position() {
        fn refused(body: &[u8], expected: DecodeError) {
            assert_eq!(decode(body), Err(expected), "{body:x?}");
        }
        use DecodeError::{DuplicateName, Invalid, Malformed, TooDeep, Trailing, Truncated};
        refused(b"", Truncated { at: 0 });
        refused(b"\xd9\xd9\xf7", Truncated { at: 3 });
        refused(b"\x18", Truncated { at: 1 });
        refused(b"\x42a", Truncated { at: 2 });
        refused(b"\x82\x01", Truncated { at: 2 });
        refused(b"\x9f\x01", Truncated { at: 2 });
        refused(b"\x7b\xff\xff\xff\xff\xff\xff\xff\xff", Truncated { at: 9 });
        refused(b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff", Truncated { at: 9 });
        refused(b"\x1c", Malformed { at: 0 });
        refused(b"\xff", Malformed { at: 0 });
        refused(b"\x81\xff", Malformed { at: 1 });
        refused(b"\xbf\x61a\xff", Malformed { at: 3 });
        refused(b"\x5f\x61a\xff", Malformed { at: 1 });
        refused(b"\x5f\x5f\xff\xff", Malformed { at: 1 });
        refused(b"\xf8\x18", Malformed { at: 0 });
        refused(b"\xf8\x1f", Malformed { at: 0 });
        refused(b"\x00\x00", Trailing { at: 1, bytes: 1 });
        refused(b"\x1b\x80\0\0\0\0\0\0\0", Invalid { at: 0, why: "an integer beyond 64 bits" });
        refused(b"\xc2\x41\x01", Invalid { at: 0, why: "an integer beyond 64 bits" });
        refused(b"\x81\xf9\x7c\x00", Invalid { at: 1, why: "a number that JSON does not know" });
        refused(b"\xfb\x7f\xf8\0\0\0\0\0\0", Invalid { at: 0, why: "a number that JSON does not know" });
        refused(b"\xf7", Invalid { at: 0, why: "a simple value that JSON does not know" });
        refused(b"\xf8\x20", Invalid { at: 0, why: "a simple value that JSON does not know" });
        refused(b"\xf8\xff", Invalid { at: 0, why: "a simple value that JSON does not know" });
        refused(b"\x61\xff", Invalid { at: 0, why: "text that is no UTF-8" });
        refused(b"\xa1\x01\x02", Invalid { at: 1, why: "a map key that is no string" });
        refused(b"\xc0\x61x", Invalid { at: 0, why: "a time that is no RFC 3339 text" });
        refused(b"\xc0\x542013-03-21T20:04:00Z", Invalid { at: 0, why: "a time that is no RFC 3339 text" });
        for no_number in [&b"\xc1\x61x"[..], b"\xc1\xf4", b"\xc1\xf6", b"\xc1\xf9\x7e\x00", b"\xc1\xf9\xfc\x00"] {
            refused(no_number, Invalid { at: 0, why: "a time that is no number of seconds" });
        }
        refused(
            b"\xc1\x1b\x7f\xff\xff\xff\xff\xff\xff\xff",
            Invalid { at: 0, why: "a time outside of the years 1 to 9999" },
        );
        refused(b"\xa2\x41a\x01\x61a\x02", DuplicateName { at: 7, name: "\"a\"".to_owned() });
        let mut deep = vec![0x81; DEPTH_MAX];
        deep.push(0);
        assert!(decode(&deep).is_ok());
        deep.insert(0, 0x81);
        refused(&deep, TooDeep { at: DEPTH_MAX });
        refused(&[0xd8; 1 << 20], TooDeep { at: 2 * DEPTH_MAX });
    }

    #[test]
    fn cbor_siblings_do_not_count_toward_the_nesting_limit() {
        for (sibling, json) in [(&b"\x80"[..], "[]"), (b"\xa0", "{}"), (b"\xd8\x20\x00", "0")] {
            let count = 2 * DEPTH_MAX;
            let siblings = [&b"\x9f"[..], &sibling.repeat(count), b"\xff"].concat();
            let expected = format!("[{}]", vec![json; count].join(","));
            check(&siblings, &expected);
            check(&[b"\x81", &siblings[..]].concat(), &format!("[{expected}]"));
        }
    }
}
