//! [`Document`]: parses a request body into one [`Value`] and reports strict decoding errors.
//!
//! This file parses JSON; [`super::yaml_reader`] parses YAML. Both charge the bytes of their tree to [`Memory`], so
//! both have the same size limit.

use std::cell::{Cell, RefCell};
use std::fmt;

use listwatch_json::map::Entry;
use listwatch_json::{JsonString, Map, Value};
use listwatch_meta::fuel;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Number;
use serde_json::de::Read;

use super::depth::OBJECT_DEPTH_MAX;
use super::field_path::{FieldPath, Step};
use super::memory::{
    DUPLICATES_BYTES_MAX, DUPLICATES_MAX, JSON_BYTES_PER_UNIT, MEMBER_BYTES, Memory, VALUE_BYTES, bytes_max,
};
use super::yaml_reader;

/// Bytes of YAML parsed per unit of fuel.
const YAML_BYTES_PER_UNIT: usize = 1;

/// The error of a parser that runs out of fuel. The message is never sent to a client: the server repeats the
/// computation on another thread or returns a timeout.
const OUT_OF_FUEL: &str = "the document takes too long to read";

/// A parsed request body.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) value: Value,
    /// Strict decoding errors about duplicate fields, in document order. JSON has one entry per field; YAML has one
    /// entry with the lines of all fields. The tree holds the last value of each duplicate field.
    pub(super) strict_errors: Vec<String>,
}

impl Document {
    /// Parses JSON.
    ///
    /// # Errors
    /// The message of Go's `encoding/json`, or serde_json's message if Go has no equivalent.
    pub(super) fn from_json(body: &[u8]) -> Result<Self, String> {
        if !fuel::charge_bytes(body.len(), JSON_BYTES_PER_UNIT) {
            return Err(OUT_OF_FUEL.to_owned());
        }
        // One check of all bytes takes less time than one of each string.
        match str::from_utf8(body) {
            Ok(text) => Self::read_json(serde_json::Deserializer::from_str(text), body),
            Err(_) => Self::read_json(serde_json::Deserializer::from_slice(body), body),
        }
    }

    fn read_json<'de, R: Read<'de>>(mut parser: serde_json::Deserializer<R>, body: &[u8]) -> Result<Self, String> {
        let report = Report {
            duplicates: RefCell::default(),
            duplicates_left: Cell::new(DUPLICATES_BYTES_MAX),
            memory: Memory::new(bytes_max(body.len())),
        };
        let value = Seed { report: &report, at: None }
            .deserialize(&mut parser)
            .and_then(|value| parser.end().map(|()| value))
            .map_err(|error| go_error_message(&error, body))?;
        let duplicates = report.duplicates.into_inner();
        let strict_errors = duplicates.iter().map(|path| format!("duplicate field {path:?}")).collect();
        Ok(Document { value, strict_errors })
    }

    /// Parses the first document of a YAML stream. JSON is valid input.
    ///
    /// # Errors
    /// The message of the YAML parser, with the line of the error where known.
    pub(super) fn from_yaml(body: &[u8]) -> Result<Self, String> {
        // Most bodies are JSON. The JSON parser is much faster, but cannot report the lines of duplicate fields.
        let is_json = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
        let json = is_json.then(|| Self::from_json(body)).and_then(Result::ok);
        let json = match json {
            Some(document) if document.strict_errors.is_empty() => return Ok(document),
            json => json,
        };
        if !fuel::charge_bytes(body.len(), YAML_BYTES_PER_UNIT) {
            return Err(OUT_OF_FUEL.to_owned());
        }
        let memory = Memory::new(bytes_max(body.len()));
        let yaml_reader::Parsed { value, duplicates } = match yaml_reader::parse(body, OBJECT_DEPTH_MAX, &memory) {
            Ok(parsed) => parsed,
            // YAML limits keys to 1,024 characters; JSON does not.
            Err(why) => return json.ok_or(why),
        };
        let strict_errors = match duplicates.is_empty() {
            true => Vec::new(),
            false => vec![format!("yaml: unmarshal errors:\n  {}", duplicates.join("\n  "))],
        };
        Ok(Document { value, strict_errors })
    }
}

/// Returns the message of Go's `encoding/json` for the same error, or serde_json's message if Go has no equivalent.
fn go_error_message(error: &serde_json::Error, body: &[u8]) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    let own = error.to_string();
    let what = own.split(" at line ").next().unwrap_or_default();
    let context = match what {
        "key must be a string" | "trailing comma" => "looking for beginning of object key string",
        "expected value" => "looking for beginning of value",
        "trailing characters" => "after top-level value",
        "expected `:`" => "after object key",
        "expected `,` or `}`" => "after object key:value pair",
        "expected `,` or `]`" => "after array element",
        "invalid escape" => "in string escape code",
        "recursion limit exceeded" => "exceeded max depth",
        what if what.starts_with("control character") => "in string literal",
        _ => return own,
    };
    let line = body.split(|byte| *byte == b'\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    let found = String::from_utf8_lossy(line.get(error.column().saturating_sub(1)..).unwrap_or_default());
    match found.chars().next() {
        // Go reports '\n' at the end of a line; serde_json's column is past the end there.
        None => format!("invalid character '\\n' {context}"),
        Some('\'') => format!("invalid character '\\'' {context}"),
        Some(char) => {
            format!("invalid character '{}' {context}", char.escape_default().to_string().replace("\\\"", "\""))
        }
    }
}

struct Report {
    duplicates: RefCell<Vec<String>>,
    duplicates_left: Cell<usize>,
    memory: Memory,
}

impl Report {
    /// Reserves `bytes` bytes of the memory limit of the document. Fails beyond the limit.
    fn take<E: serde::de::Error>(&self, bytes: usize) -> Result<(), E> {
        self.memory.take(bytes).map_err(E::custom)
    }

    /// Records a duplicate field, up to the limits [`DUPLICATES_MAX`] and [`DUPLICATES_BYTES_MAX`].
    fn note(&self, path: &FieldPath<'_>) {
        let mut duplicates = self.duplicates.borrow_mut();
        if duplicates.len() >= DUPLICATES_MAX || self.duplicates_left.get() == 0 {
            return;
        }
        let path = path.to_string();
        self.duplicates_left.set(self.duplicates_left.get().saturating_sub(path.len()));
        if !duplicates.contains(&path) {
            duplicates.push(path);
        }
    }
}

#[derive(Clone, Copy)]
struct Seed<'a> {
    report: &'a Report,
    at: Option<&'a FieldPath<'a>>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Value, E> {
        self.report.take(VALUE_BYTES)?;
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        self.report.take(VALUE_BYTES)?;
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        self.report.take(VALUE_BYTES)?;
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        self.report.take(VALUE_BYTES)?;
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.report.take(VALUE_BYTES + value.len())?;
        Ok(Value::from(value))
    }

    fn visit_string<E: serde::de::Error>(self, value: String) -> Result<Value, E> {
        self.report.take(VALUE_BYTES + value.len())?;
        Ok(Value::from(value))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        self.report.take(VALUE_BYTES)?;
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.report.take(VALUE_BYTES)?;
        let mut list = Vec::new();
        loop {
            let path = FieldPath { parent: self.at, step: Step::Item(list.len()) };
            match items.next_element_seed(Seed { report: self.report, at: Some(&path) })? {
                Some(item) => list.push(item),
                None => break,
            }
        }
        self.report.memory.take_spare_items(list.len()).map_err(A::Error::custom)?;
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        self.report.take(VALUE_BYTES)?;
        let mut map = Map::new();
        while let Some(name) = members.next_key::<JsonString>()? {
            self.report.take(MEMBER_BYTES - VALUE_BYTES + name.len())?;
            let path = FieldPath { parent: self.at, step: Step::Field(&name) };
            let value = members.next_value_seed(Seed { report: self.report, at: Some(&path) })?;
            match map.entry(name) {
                Entry::Vacant(entry) => {
                    entry.insert(value);
                }
                Entry::Occupied(mut entry) => {
                    self.report.note(&FieldPath { parent: self.at, step: Step::Field(entry.key()) });
                    entry.insert(value);
                }
            }
        }
        self.report.memory.take_spare_members(map.len()).map_err(A::Error::custom)?;
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::bytes_of;

    fn check(body: &str, value: &str, duplicates: &[&str]) {
        let document = Document::from_json(body.as_bytes()).unwrap();
        assert_eq!(document.value.to_string(), value, "{body}");
        let duplicates: Vec<String> = duplicates.iter().map(|path| format!("duplicate field {path:?}")).collect();
        assert_eq!(document.strict_errors, duplicates, "{body}");
        let document = Document::from_yaml(body.as_bytes()).unwrap();
        assert_eq!(document.value.to_string(), value, "{body}");
        assert_eq!(document.strict_errors.is_empty(), duplicates.is_empty(), "{body}");
    }

    #[test]
    fn duplicate_fields_are_reported_and_the_last_value_is_kept() {
        check(r#"{"b":1,"a":{"x":[1,2.5,null,true,"t"]}}"#, r#"{"b":1,"a":{"x":[1,2.5,null,true,"t"]}}"#, &[]);
        check(r#"{"a":1,"a":2}"#, r#"{"a":2}"#, &["a"]);
        check(
            r#"{"a":[{"b":1,"b":2},{"c":{"d":1,"d":2,"d":3}}]}"#,
            r#"{"a":[{"b":2},{"c":{"d":3}}]}"#,
            &["a[0].b", "a[1].c.d"],
        );
    }

    #[test]
    fn yaml_parser_reports_all_duplicate_fields_in_one_error() {
        let document = Document::from_yaml(b"a: 1\na: 2\nb: 1\nb: 2\n").unwrap();
        let text =
            "yaml: unmarshal errors:\n  line 2: key \"a\" already set in map\n  line 4: key \"b\" already set in map";
        assert_eq!(document.strict_errors, [text]);
    }

    #[test]
    fn yaml_parser_accepts_json_with_long_keys_and_duplicate_fields() {
        let body = format!(r#"{{"{}":1,"a":1,"a":2}}"#, "k".repeat(2_000));
        let document = Document::from_yaml(body.as_bytes()).unwrap();
        assert_eq!((document.value["a"].as_i64(), document.strict_errors.len()), (Some(2), 1));
    }

    #[test]
    fn yaml_with_aliases_and_scalar_keys_becomes_a_json_tree() {
        let body = "kind: ConfigMap\ndata:\n  1: one\n  true: |\n    two\n  base: &b {x: 1}\n  again: *b\n";
        let document = Document::from_yaml(body.as_bytes()).unwrap();
        let expected = r#"{"kind":"ConfigMap","data":{"1":"one","true":"two\n","base":{"x":1},"again":{"x":1}}}"#;
        assert_eq!(document.value.to_string(), expected);
    }

    fn check_broken(parse: fn(&[u8]) -> Result<Document, String>, body: &[u8], expected: &str) {
        let error = parse(body).unwrap_err();
        assert!(error.contains(expected), "{error:?} should contain {expected:?}");
    }

    #[test]
    fn malformed_document_is_rejected_with_upstream_message() {
        check_broken(Document::from_json, b"", "unexpected end of JSON input");
        check_broken(Document::from_json, b"{\"a\":", "unexpected end of JSON input");
        check_broken(Document::from_json, b"{bad", "invalid character 'b' looking for beginning of object key string");
        check_broken(Document::from_json, b"{} x", "invalid character 'x' after top-level value");
        check_broken(
            Document::from_json,
            b"{\n \"a\":1,}",
            "invalid character '}' looking for beginning of object key string",
        );
        check_broken(Document::from_json, b"{\"a\" 1}", "invalid character '1' after object key");
        check_broken(Document::from_json, b"{\"a\":1 2}", "invalid character '2' after object key:value pair");
        check_broken(Document::from_json, b"[1 2]", "invalid character '2' after array element");
        check_broken(Document::from_json, b"[x]", "invalid character 'x' looking for beginning of value");
        check_broken(Document::from_json, b"['x']", "invalid character '\\'' looking for beginning of value");
        check_broken(Document::from_json, b"\"\\x\"", "invalid character 'x' in string escape code");
        check_broken(Document::from_json, b"{\"a\":1e999}", "number out of range");
        check_broken(Document::from_json, b"\"\xff\"", "invalid");
        check_broken(Document::from_json, &b"[".repeat(100_000), "invalid character '[' exceeded max depth");
        check_broken(Document::from_yaml, b"a: [b", "yaml: ");
        check_broken(Document::from_yaml, &b"{\"a\":".repeat(100_000), "yaml: exceeded max depth of 120");
    }

    #[test]
    fn document_beyond_its_memory_limit_is_rejected() {
        let zeros = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
        // A list of 1.5 MiB, the limit of etcd, fits; a list of 3 MiB, the limit of a request body, does not.
        assert!(Document::from_json(zeros(3 << 18).as_bytes()).is_ok());
        check_broken(Document::from_json, zeros((3 << 19) - 1).as_bytes(), "takes more than 67108864 bytes of memory");
        for text in [&zeros(1000), r#"{"a":{"b":["text",{"c":null}]},"d":1.5,"e":{"f":{}}}"#] {
            let Document { value, .. } = Document::from_json(text.as_bytes()).unwrap();
            let report = Report {
                duplicates: RefCell::default(),
                duplicates_left: Cell::new(0),
                memory: Memory::new(bytes_of(&value)),
            };
            let parse = |report: &Report| {
                Seed { report, at: None }.deserialize(&mut serde_json::Deserializer::from_str(text)).is_ok()
            };
            assert!(parse(&report) && report.memory.left.get() == 0, "both ways to count agree");
            report.memory.left.set(bytes_of(&value) - 1);
            assert!(!parse(&report));
        }
    }

    #[test]
    fn duplicate_field_report_stops_at_64_fields_or_256_kib() {
        let twice: String = (0..200).map(|n| format!(r#","{n}":1,"{n}":2"#)).collect();
        let duplicates = |name: &str| {
            let body = format!(r#"{{"{name}":{{"":0{twice}}}}}"#);
            Document::from_json(body.as_bytes()).unwrap().strict_errors.len()
        };
        assert_eq!((duplicates("a"), duplicates(&"a".repeat(100_000))), (64, 3));
    }

    proptest! {
        #[test]
        fn from_json_agrees_with_serde_json_on_random_text(text in "[{}\\[\\]\",:a-c0-9\\\\ .e-]{0,40}") {
            let ours = Document::from_json(text.as_bytes()).map(|document| document.value).ok();
            prop_assert_eq!(ours, serde_json::from_str::<Value>(&text).ok());
        }
    }
}
