//! Encodes compact JSON without serde: the first path of [`Encoder::object`].
//!
//! The JSON that this project writes has no spaces and few escapes. The scanner finds its tokens; the meaning of each
//! token is that of [`mod@super::encode`], so that both paths write the same bytes. The scanner gives up at anything
//! else: spaces, fractions, types that only schemas have, and every error. serde then reads the object from the start
//! and finds the error, if there is one.

use std::borrow::Cow;
use std::fmt;

use listwatch_json::plain_len;
use listwatch_k8s_types::{Field, Id, Shape, Type};
use serde::de::Visitor as _;

use super::DEPTH_MAX;
use super::encode::{Encoder, Part, Value, find_member};

/// Encodes the message of a JSON object. `None` if serde must read it; the buffers of the encoder are then unfinished.
pub(super) fn encode(encoder: &mut Encoder, id: Id, json: &[u8]) -> Option<()> {
    let mut scanner = Scanner { text: std::str::from_utf8(json).ok()?, at: 0, depth: 0 };
    scanner.message(encoder, id, None)?;
    (scanner.at == json.len()).then_some(())
}

/// A value does not fit the type of its field. serde then decodes the JSON again and returns the error with its text.
#[derive(Debug)]
struct TypeMismatch;

impl fmt::Display for TypeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value does not fit its field")
    }
}

impl std::error::Error for TypeMismatch {}

impl serde::de::Error for TypeMismatch {
    fn custom<T: fmt::Display>(_: T) -> Self {
        TypeMismatch
    }
}

struct Scanner<'a> {
    text: &'a str,
    /// The offset of the next token.
    at: usize,
    /// The number of open objects and lists.
    depth: usize,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    fn word(&mut self, word: &str) -> Option<()> {
        self.text.as_bytes()[self.at..].starts_with(word.as_bytes()).then(|| self.at += word.len())
    }

    /// Opens an object or a list. Returns whether it has elements; an empty one is closed.
    fn open(&mut self, open: u8, close: u8) -> Option<bool> {
        self.expect(open)?;
        if self.peek()? == close {
            self.at += 1;
            return Some(false);
        }
        self.depth += 1;
        (self.depth < DEPTH_MAX).then_some(true)
    }

    /// Reads the comma or the closing bracket after an element. Returns whether another element follows; otherwise the
    /// object or list is closed.
    fn has_next(&mut self, close: u8) -> Option<bool> {
        match self.next()? {
            b',' => Some(true),
            byte if byte == close => {
                self.depth -= 1;
                Some(false)
            }
            _ => None,
        }
    }

    fn string(&mut self) -> Option<Cow<'a, str>> {
        self.expect(b'"')?;
        let start = self.at;
        let bytes = self.text.as_bytes();
        let end = start + plain_len(&bytes[start..]);
        match bytes.get(end)? {
            b'"' => {
                self.at = end + 1;
                Some(Cow::Borrowed(&self.text[start..end]))
            }
            b'\\' => self.escaped(start - 1),
            _ => None,
        }
    }

    /// Reads a string with escapes that starts at this offset.
    fn escaped(&mut self, start: usize) -> Option<Cow<'a, str>> {
        let mut strings = serde_json::Deserializer::from_str(&self.text[start..]).into_iter::<String>();
        let string = strings.next()?.ok()?;
        self.at = start + strings.byte_offset();
        Some(Cow::Owned(string))
    }

    /// The text of a value of any type.
    fn raw(&mut self) -> Option<&'a str> {
        let start = self.at;
        self.skip()?;
        Some(&self.text[start..self.at])
    }

    /// Reads a value of any type, which must be JSON without spaces.
    fn skip(&mut self) -> Option<()> {
        const { assert!(DEPTH_MAX < u128::BITS as usize) };
        let outside = self.depth;
        // One bit for each open object or list, the innermost lowest: 1 for an object.
        let mut kinds = 0_u128;
        loop {
            match self.peek()? {
                b'"' => self.skip_string()?,
                b'{' => {
                    if self.open(b'{', b'}')? {
                        kinds = kinds << 1 | 1;
                        self.skip_name()?;
                        continue;
                    }
                }
                b'[' => {
                    if self.open(b'[', b']')? {
                        kinds <<= 1;
                        continue;
                    }
                }
                b'n' => self.word("null")?,
                b't' => self.word("true")?,
                b'f' => self.word("false")?,
                // Fractions are left to serde.
                _ => self.number().map(drop)?,
            }
            // A value has ended, and with it perhaps the objects and lists around it.
            loop {
                if self.depth == outside {
                    return Some(());
                }
                let is_object = kinds & 1 == 1;
                if self.has_next(if is_object { b'}' } else { b']' })? {
                    if is_object {
                        self.skip_name()?;
                    }
                    break;
                }
                kinds >>= 1;
            }
        }
    }

    /// Reads the name of a member, and the colon behind it.
    fn skip_name(&mut self) -> Option<()> {
        self.skip_string()?;
        self.expect(b':')
    }

    fn skip_string(&mut self) -> Option<()> {
        self.expect(b'"')?;
        let bytes = self.text.as_bytes();
        loop {
            self.at += plain_len(&bytes[self.at..]);
            match self.next()? {
                b'"' => return Some(()),
                b'\\' => match self.next()? {
                    b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {}
                    b'u' => {
                        let digits = bytes.get(self.at..self.at + 4)?;
                        if !digits.iter().all(u8::is_ascii_hexdigit) {
                            return None;
                        }
                        self.at += 4;
                    }
                    _ => return None,
                },
                _ => return None,
            }
        }
    }

    /// The text of an integer.
    fn number(&mut self) -> Option<&'a str> {
        let start = self.at;
        if self.peek()? == b'-' {
            self.at += 1;
        }
        let first = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        let text = &self.text[start..self.at];
        // `-0` is a fraction for serde, and a number has no zeros in front.
        let is_integer = match &self.text[first..self.at] {
            "" => false,
            "0" => start == first,
            digits => !digits.starts_with('0'),
        };
        (is_integer && !matches!(self.peek(), Some(b'.' | b'e' | b'E'))).then_some(text)
    }

    fn message(&mut self, encoder: &mut Encoder, id: Id, number: Option<u8>) -> Option<()> {
        let message = id.message();
        let (out, parts) = (encoder.out.len(), encoder.parts.len());
        let mut expected = 0;
        let mut more = self.open(b'{', b'}')?;
        while more {
            let name = self.string()?;
            self.expect(b':')?;
            match find_member(message, &name, &mut expected, 0) {
                Some((field, key)) => {
                    let start = encoder.out.len();
                    self.field(encoder, field)?;
                    let end = encoder.out.len();
                    if end > start {
                        encoder.parts.push(Part { key, start, end });
                    }
                }
                None if encoder.refuses(message, &name) => return None,
                None => self.skip()?,
            }
            more = self.has_next(b'}')?;
        }
        encoder.finish(message, number, out, parts);
        Some(())
    }

    fn field(&mut self, encoder: &mut Encoder, field: &Field) -> Option<()> {
        let (of, number) = (field.of(), field.number());
        match field.shape() {
            Shape::Repeated | Shape::Map if self.peek()? == b'n' => self.word("null"),
            Shape::Repeated => self.list(encoder, of, number),
            Shape::Map => self.map(encoder, of, number),
            Shape::One | Shape::Pointer | Shape::Inline => self.value(encoder, of, number, false),
        }
    }

    fn list(&mut self, encoder: &mut Encoder, of: Type, number: u8) -> Option<()> {
        let mut more = self.open(b'[', b']')?;
        while more {
            self.value(encoder, of, number, true)?;
            more = self.has_next(b']')?;
        }
        Some(())
    }

    fn map(&mut self, encoder: &mut Encoder, of: Type, number: u8) -> Option<()> {
        let map = encoder.open_map();
        let mut sorted = true;
        let mut more = self.open(b'{', b'}')?;
        while more {
            let start = encoder.out.len();
            let key = self.string()?;
            encoder.push_bytes(1, key.as_bytes());
            self.expect(b':')?;
            self.value(encoder, of, 2, true)?;
            sorted &= encoder.close_entry(map, start, key.len(), number);
            more = self.has_next(b'}')?;
        }
        encoder.close_map(map, sorted);
        Some(())
    }

    fn value(&mut self, encoder: &mut Encoder, of: Type, number: u8, null_is_zero: bool) -> Option<()> {
        let value = Value { encoder, of, number, null_is_zero };
        match (self.peek()?, of) {
            (_, Type::Raw) => {
                value.raw(self.raw()?);
                Some(())
            }
            (b'"', _) => value.visit_str::<TypeMismatch>(&self.string()?).ok(),
            (b'{', Type::Message(id)) => self.message(value.encoder, id, Some(number)),
            (b'n', _) => {
                self.word("null")?;
                value.visit_unit::<TypeMismatch>().ok()
            }
            (b't', _) => {
                self.word("true")?;
                value.visit_bool::<TypeMismatch>(true).ok()
            }
            (b'f', _) => {
                self.word("false")?;
                value.visit_bool::<TypeMismatch>(false).ok()
            }
            (b'-', _) => value.visit_i64::<TypeMismatch>(self.number()?.parse().ok()?).ok(),
            (b'0'..=b'9', _) => value.visit_u64::<TypeMismatch>(self.number()?.parse().ok()?).ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use listwatch_k8s_types::message_of;
    use proptest::prelude::*;

    use super::super::decode::UnknownFields;
    use super::super::encode;
    use super::Encoder;

    const POD: &str = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","labels":{"b":"1","a":"\u00e9\n"},"annotations":{"x":"{\"y\":\"z\"}"},"creationTimestamp":"2026-01-05T08:00:00Z","generation":2,"deletionGracePeriodSeconds":-3,"managedFields":[{"manager":"k","time":"2026-01-05T08:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:a":{".":{},"k:{\"n\":1}":[15,null]}}}]},"spec":{"containers":[{"name":"c","image":"i","command":[],"ports":[{"containerPort":8080}],"resources":{"requests":{"memory":"64Mi","cpu":1}},"livenessProbe":{"httpGet":{"port":"http"}}},{"name":"d","readinessProbe":{"httpGet":{"port":8080}},"tty":true}],"hostNetwork":false,"nodeSelector":null,"affinity":{},"automountServiceAccountToken":null},"status":{"phase":"Running","conditions":[{"type":"Ready","lastProbeTime":null,"status":"True"}]}}"#;
    const OTHERS: [(&str, &str, &str); 3] = [
        ("v1", "Secret", r#"{"metadata":{"name":"s"},"data":{"b":"AAEC","a":"","c":null},"stringData":{"x":"y"}}"#),
        (
            "coordination.k8s.io/v1",
            "Lease",
            r#"{"spec":{"renewTime":"2026-01-05T08:00:00.123456Z","leaseTransitions":0}}"#,
        ),
        (
            "apps/v1",
            "ControllerRevision",
            r#"{"metadata":{},"data":{"spec":{"template":{"x":[-13,{},"\u00e9\"/",true,false,null]}}},"revision":9223372036854775807}"#,
        ),
    ];

    /// Returns the output of the encoder without serde and of the encoder with serde; `None` for an encoder that
    /// rejects the JSON.
    fn both(api_version: &str, kind: &str, json: &[u8]) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        let id = message_of(api_version, kind).unwrap();
        let mut encoder = Encoder::default();
        encoder.is_strict = true;
        let compact = super::encode(&mut encoder, id, json).map(|()| encoder.out);
        (compact, encode::object_by_serde(id, json, UnknownFields::Rejected).ok())
    }

    #[test]
    fn compact_objects_are_encoded_without_serde_to_the_same_bytes() {
        let pod = ("v1", "Pod", POD);
        for (api_version, kind, json) in OTHERS.into_iter().chain([pod]) {
            let (compact, serde) = both(api_version, kind, json.as_bytes());
            assert!(compact.is_some(), "{json} is compact");
            assert_eq!(compact, serde, "{json}");
        }
    }

    #[test]
    fn numbers_and_spaces_that_serde_reads_differently_are_left_to_serde() {
        let spec = |value: &str| format!(r#"{{"metadata":{{"generation":{value}}}}}"#);
        for value in ["-0", "01", "1.0", "1e2", "--1", "-", "9223372036854775808", " 1", "\"1\"", "nul", "true"] {
            assert_eq!(both("v1", "Pod", spec(value).as_bytes()).0, None, "{value}");
        }
        for value in ["0", "-1", "9223372036854775807", "-9223372036854775808", "null"] {
            let (compact, serde) = both("v1", "Pod", spec(value).as_bytes());
            assert!(compact.is_some() && compact == serde, "{value}");
        }
        assert_eq!(both("v1", "Pod", b"{}{}").0, None, "two objects");
        assert_eq!(both("v1", "Pod", br#"{"unknown":1}"#).0, None);
        let deep = format!(r#"{{"spec":{{"x":{}1{}}}}}"#, "[".repeat(200), "]".repeat(200));
        assert_eq!(both("v1", "Pod", deep.as_bytes()).0, None);
    }

    #[test]
    fn many_sibling_objects_are_encoded_without_serde() {
        let json = format!(r#"{{"spec":{{"containers":[{{"name":"a"}}{}]}}}}"#, r#",{"name":"b"}"#.repeat(150));
        let (compact, serde) = both("v1", "Pod", json.as_bytes());
        assert!(compact.is_some(), "only the open objects count as nesting");
        assert_eq!(compact, serde);
    }

    #[test]
    fn json_with_wrong_punctuation_is_rejected_by_both_encoders() {
        for json in [
            r#"{"metadata":{"name":"a"]}"#,
            r#"{"metadata":{"name":"a"}]"#,
            r#"{"metadata":{"labels":{"a":"b"]}}"#,
            r#"{"metadata":{"finalizers":["a"}}}"#,
            r#"{"metadata":{"finalizers":["a""b"]}}"#,
            r#"{"metadata":{"name":"a""uid":"b"}}"#,
            r#"{"metadata":{"name","a"}}"#,
            r#"{"metadata":{"managedFields":[{"fieldsV1":{"a":{]}}]}}"#,
            r#"{"metadata":{"managedFields":[{"fieldsV1":[1}]}}"#,
        ] {
            assert_eq!(both("v1", "Pod", json.as_bytes()), (None, None), "{json}");
        }
    }

    proptest! {
        #[test]
        fn json_accepted_by_the_scanner_encodes_to_the_bytes_of_serde(
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<Option<u8>>(), 0..6_u8), 1..4),
        ) {
            const SYNTAX: &[u8; 8] = b"\"\\{}[],:";
            let mut json = POD.as_bytes().to_vec();
            for (at, byte, kind) in edits {
                let at = at.index(json.len());
                match (byte, kind) {
                    (None, _) => {
                        json.remove(at);
                    }
                    (Some(byte), 0) => json[at] = byte,
                    (Some(byte), 1) => json.insert(at, byte),
                    (Some(byte), 2) => json[at] = SYNTAX[usize::from(byte) % SYNTAX.len()],
                    (Some(byte), 3) => json.insert(at, SYNTAX[usize::from(byte) % SYNTAX.len()]),
                    (Some(byte), 4) => json[at] = b"0123456789-.e tfn"[usize::from(byte) % 17],
                    (Some(_), _) => json.truncate(at + 1),
                }
                if json.is_empty() {
                    json.push(b'{');
                }
            }
            let (compact, serde) = both("v1", "Pod", &json);
            if compact.is_some() {
                prop_assert_eq!(compact, serde, "{}", String::from_utf8_lossy(&json));
            }
        }
    }
}
