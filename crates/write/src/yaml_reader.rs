//! Parses one YAML document into a tree, as `sigs.k8s.io/yaml` with `go.yaml.in/yaml/v2` does: YAML 1.1 scalars (`yes`
//! is a boolean, `017` is 15), merge keys, and only the first of several documents.
//!
//! An explicit stack holds the open lists and maps, so the parser never recurses. The time is linear in the body plus
//! the nodes that aliases repeat. Depth, memory and the share of aliases are limited.
//!
//! Source of rules and error messages: `yaml/v2/{decode,resolve}.go`, `sigs.k8s.io/yaml/yaml.go`.

use std::borrow::Cow;
use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use granit_parser::{ErrorKind, Event, Marker, Options, Parser, ScalarStyle, ScanError, Tag};
use listwatch_json::map::Entry;
use listwatch_json::{JsonString, Map, Value};
use serde_json::Number;

use super::memory::{DUPLICATES_BYTES_MAX, DUPLICATES_MAX, Memory};
use listwatch_meta::go;

/// Below this number of decoded nodes, [`aliased_share_max`] is 0.99 (`alias_ratio_range_low`).
const ALIAS_RANGE_LOW: usize = 400_000;
/// At and above this number of decoded nodes, [`aliased_share_max`] is 0.10 (`alias_ratio_range_high`).
const ALIAS_RANGE_HIGH: usize = 4_000_000;

/// A parsed YAML document, with its duplicate keys.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) value: Value,
    /// One error text per key that is set twice, as from the strict decoder: `line 3: key "a" already set in map`. The
    /// last value is used.
    pub(super) duplicates: Vec<String>,
}

/// Parses the first document of a YAML stream. Lists and maps nest at most `depth_max` levels, and the tree is charged
/// to `memory`.
///
/// # Errors
/// The error message of the Go library, with the prefix `yaml: `.
pub(super) fn parse(body: &[u8], depth_max: usize, memory: &Memory) -> Result<Parsed, String> {
    let text = std::str::from_utf8(body).map_err(|_| "yaml: invalid leading UTF-8 octet".to_owned())?;
    let mut options = Options::default();
    options.set_emit_comments(false);
    options.emit_unresolved_aliases = true;
    // libyaml behaves so, and the Go library is a port of libyaml.
    options.block_scalar_eof_without_line_feed = true;
    options.bom_inside_document_as_content = true;
    options.flow_nesting_limit = depth_max;
    options.block_nesting_limit = depth_max;
    let mut builder = Builder { memory, depth_max, ..Builder::new(memory) };
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| scan_error(&error, text, depth_max))?;
        if builder.take(event, span.start, span.slice(text).unwrap_or_default())? {
            break;
        }
    }
    Ok(Parsed { value: builder.root.unwrap_or(Value::Null), duplicates: builder.duplicates })
}

/// A node whose end has been read, with its size.
struct Node {
    value: Value,
    /// The levels of lists and maps, including the node itself; 0 for a scalar.
    depth: usize,
    /// The number of nodes in the subtree, including keys.
    nodes: usize,
}

/// A list or map whose end has not been read.
struct Frame {
    kind: Collection,
    anchor: usize,
    line: usize,
    /// The depth of the deepest child so far, in levels.
    depth: usize,
    nodes: usize,
}

enum Collection {
    List(Vec<Value>),
    Map(Map, Option<Key>),
}

/// A key whose value has not been read.
enum Key {
    /// `is_text` is true for a string, and false for a number or a boolean.
    Name {
        name: JsonString,
        is_text: bool,
    },
    Merge,
}

struct Builder<'m> {
    memory: &'m Memory,
    depth_max: usize,
    stack: Vec<Frame>,
    anchors: HashMap<usize, Node>,
    root: Option<Value>,
    duplicates: Vec<String>,
    duplicates_left: usize,
    /// The number of nodes decoded so far, including those from aliases.
    decoded: usize,
    aliased: usize,
}

impl<'m> Builder<'m> {
    fn new(memory: &'m Memory) -> Self {
        Builder {
            memory,
            depth_max: 0,
            stack: Vec::new(),
            anchors: HashMap::new(),
            root: None,
            duplicates: Vec::new(),
            duplicates_left: DUPLICATES_BYTES_MAX,
            decoded: 0,
            aliased: 0,
        }
    }

    /// Handles one parser event. Returns true at the end of the document.
    fn take(&mut self, event: Event<'_>, at: Marker, source: &str) -> Result<bool, String> {
        match event {
            Event::DocumentEnd | Event::StreamEnd => return Ok(true),
            Event::Scalar(text, style, anchor, tag) => self.scalar(&text, style, anchor, tag.as_deref(), at.line())?,
            Event::SequenceStart(_, anchor, _) => self.open(Collection::List(Vec::new()), anchor, at.line())?,
            Event::MappingStart(_, anchor, _) => self.open(Collection::Map(Map::new(), None), anchor, at.line())?,
            Event::SequenceEnd | Event::MappingEnd => self.close()?,
            Event::Alias(id) => self.alias(id, source, at.line())?,
            Event::UnresolvedAlias(name) => return Err(format!("yaml: unknown anchor '{name}' referenced")),
            _ => {}
        }
        Ok(false)
    }

    fn open(&mut self, kind: Collection, anchor: usize, line: usize) -> Result<(), String> {
        if self.stack.len() >= self.depth_max {
            return Err(too_deep(self.depth_max));
        }
        if let Some(Frame { kind: Collection::Map(_, None), .. }) = self.stack.last() {
            return Err(invalid_key(&kind));
        }
        self.charge_value(0)?;
        self.decoded += 1;
        self.stack.push(Frame { kind, anchor, line, depth: 0, nodes: 1 });
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        let Some(Frame { kind, anchor, line, depth, nodes }) = self.stack.pop() else { return Ok(()) };
        let value = match kind {
            Collection::List(items) => {
                self.memory.take_spare_items(items.len())?;
                Value::Array(items)
            }
            Collection::Map(members, _) => {
                self.memory.take_spare_members(members.len())?;
                Value::Object(members)
            }
        };
        self.complete(Node { value, depth: depth + 1, nodes }, anchor, line)
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
        line: usize,
    ) -> Result<(), String> {
        self.decoded += 1;
        let plain = style == ScalarStyle::Plain;
        let tag = tag.map_or(Cow::Borrowed(""), |tag| Cow::Owned(format!("{}{}", tag.handle(), tag.suffix())));
        let is_merge = text == "<<" && if tag.is_empty() { plain } else { tag == "tag:yaml.org,2002:merge" };
        if is_merge && let Some(Frame { kind: Collection::Map(_, key @ None), nodes, .. }) = self.stack.last_mut() {
            *key = Some(Key::Merge);
            *nodes += 1;
            return Ok(());
        }
        let value = if tag.is_empty() && !plain { Value::from(text) } else { resolve(&tag, text)? };
        self.charge_value(value.as_str().map_or(0, str::len))?;
        self.complete(Node { value, depth: 0, nodes: 1 }, anchor, line)
    }

    fn alias(&mut self, id: usize, source: &str, line: usize) -> Result<(), String> {
        let name = source.strip_prefix('*').unwrap_or(source);
        let Some(Node { value, depth, nodes }) = self.anchors.get(&id) else {
            return Err(format!("yaml: anchor '{name}' value contains itself"));
        };
        let (depth, nodes) = (*depth, *nodes);
        self.decoded += 1 + nodes;
        self.aliased += nodes;
        let share = self.aliased as f64 / self.decoded as f64;
        if self.aliased > 100 && self.decoded > 1000 && share > aliased_share_max(self.decoded) {
            return Err("yaml: document contains excessive aliasing".to_owned());
        }
        if self.stack.len() + depth > self.depth_max {
            return Err(too_deep(self.depth_max));
        }
        self.memory.take_tree(value)?;
        let value = value.clone();
        self.complete(Node { value, depth, nodes }, 0, line)
    }

    /// Adds a complete node to its parent, or makes the node the root.
    fn complete(&mut self, node: Node, anchor: usize, line: usize) -> Result<(), String> {
        if anchor != 0 {
            self.memory.take_tree(&node.value)?;
            self.anchors.insert(anchor, Node { value: node.value.clone(), ..node });
        }
        let Node { value, depth, nodes } = node;
        let Some(frame) = self.stack.last_mut() else {
            self.root = Some(value);
            return Ok(());
        };
        frame.depth = frame.depth.max(depth);
        frame.nodes += nodes;
        match &mut frame.kind {
            Collection::List(items) => items.push(value),
            Collection::Map(members, pending) => match pending.take() {
                None => {
                    let key = key(value)?;
                    if let Key::Name { name, .. } = &key {
                        self.memory.take_member(name.len())?;
                    }
                    *pending = Some(key);
                }
                Some(Key::Name { name, is_text }) => {
                    let mut report = Report { lines: &mut self.duplicates, left: &mut self.duplicates_left };
                    let shown = |name: &str| if is_text { go::quote(name) } else { name.to_owned() };
                    set(members, name, value, |name| report.note(line, &shown(name)));
                }
                Some(Key::Merge) => {
                    let mut report = Report { lines: &mut self.duplicates, left: &mut self.duplicates_left };
                    merge(members, value, |name| report.note(line, &go::quote(name)))?;
                }
            },
        }
        Ok(())
    }

    fn charge_value(&self, text_bytes: usize) -> Result<(), String> {
        self.memory.take_value(text_bytes)
    }
}

/// Collects the keys that are set twice.
struct Report<'a> {
    lines: &'a mut Vec<String>,
    left: &'a mut usize,
}

impl Report<'_> {
    fn note(&mut self, line: usize, key: &str) {
        if self.lines.len() < DUPLICATES_MAX && *self.left > 0 {
            *self.left = self.left.saturating_sub(key.len());
            self.lines.push(format!("line {line}: key {key} already set in map"));
        }
    }
}

/// Sets a member, and calls `duplicate` with its name if the map has it already.
fn set(members: &mut Map, name: JsonString, value: Value, duplicate: impl FnOnce(&str)) {
    match members.entry(name) {
        Entry::Vacant(entry) => {
            entry.insert(value);
        }
        Entry::Occupied(mut entry) => {
            duplicate(entry.key());
            entry.insert(value);
        }
    }
}

/// Applies a merge key (`<<`): adds the members of a map or of a list of maps. If several maps have the same member,
/// the first map is used.
fn merge(members: &mut Map, merged: Value, mut duplicate: impl FnMut(&str)) -> Result<(), String> {
    let maps = match merged {
        map @ Value::Object(_) => vec![map],
        Value::Array(maps) => maps,
        other => vec![other],
    };
    if !maps.iter().all(Value::is_object) {
        return Err("yaml: map merge requires map or sequence of maps as the value".to_owned());
    }
    for map in maps.into_iter().rev() {
        let Value::Object(map) = map else { continue };
        for (name, value) in map {
            set(members, name, value, &mut duplicate);
        }
    }
    Ok(())
}

/// Converts a scalar into the name of a member.
fn key(value: Value) -> Result<Key, String> {
    Ok(match value {
        Value::String(name) => Key::Name { name, is_text: true },
        Value::Bool(flag) => Key::Name { name: flag.to_string().into(), is_text: false },
        Value::Number(number) => Key::Name { name: number.to_string().into(), is_text: false },
        Value::Null => return Err("unsupported map key of type: %!s(<nil>), key: <nil>".to_owned()),
        Value::Array(_) => return Err(invalid_key(&Collection::List(Vec::new()))),
        Value::Object(_) => return Err(invalid_key(&Collection::Map(Map::new(), None))),
    })
}

fn invalid_key(found: &Collection) -> String {
    let shown = match found {
        Collection::List(_) => "[]interface {}{...}",
        Collection::Map(..) => "map[interface {}]interface {}{...}",
    };
    format!("yaml: invalid map key: {shown}")
}

fn too_deep(depth_max: usize) -> String {
    format!("yaml: exceeded max depth of {depth_max}")
}

/// Returns the maximum share of decoded nodes that may come from aliases: 0.99 for small documents, 0.10 for large
/// documents (`allowedAliasRatio`).
fn aliased_share_max(decoded: usize) -> f64 {
    let above = decoded.clamp(ALIAS_RANGE_LOW, ALIAS_RANGE_HIGH) - ALIAS_RANGE_LOW;
    0.99 - 0.89 * (above as f64 / (ALIAS_RANGE_HIGH - ALIAS_RANGE_LOW) as f64)
}

/// Converts a scalar by its tag, or by its text if the tag is empty (`resolve` of `resolve.go`).
fn resolve(tag: &str, text: &str) -> Result<Value, String> {
    let string = || Value::from(text);
    let wanted = match tag {
        "" => "",
        "tag:yaml.org,2002:str" => return Ok(string()),
        "tag:yaml.org,2002:binary" => {
            let data = STANDARD.decode(text).map_err(|_| "yaml: !!binary value contains invalid base64 data")?;
            return Ok(Value::from(String::from_utf8_lossy(&data)));
        }
        "tag:yaml.org,2002:bool" => "!!bool",
        "tag:yaml.org,2002:int" => "!!int",
        "tag:yaml.org,2002:float" => "!!float",
        "tag:yaml.org,2002:null" => "!!null",
        "tag:yaml.org,2002:timestamp" => "!!timestamp",
        _ => return Ok(string()),
    };
    let (found, value) = plain(text)?;
    match (wanted, found) {
        ("", _) | ("!!float", "!!int") => Ok(value),
        // Without a target type, Go decodes a date as a string.
        ("!!timestamp", "!!str") if is_date_like(text) => Ok(value),
        (wanted, found) if wanted == found => Ok(value),
        _ => Err(format!("yaml: cannot decode {found} `{text}` as a {wanted}")),
    }
}

/// Returns the tag and the value of a plain scalar.
fn plain(text: &str) -> Result<(&'static str, Value), String> {
    let string = || Ok(("!!str", Value::from(text)));
    let Some(first) = text.bytes().next() else { return Ok(("!!null", Value::Null)) };
    match first {
        b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' | b'~' => match text {
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
                Ok(("!!bool", Value::Bool(true)))
            }
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
                Ok(("!!bool", Value::Bool(false)))
            }
            "~" | "null" | "Null" | "NULL" => Ok(("!!null", Value::Null)),
            _ => string(),
        },
        b'+' | b'-' | b'.' | b'0'..=b'9' => {
            match text {
                ".nan" | ".NaN" | ".NAN" => return Err("json: unsupported value: NaN".to_owned()),
                ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
                    return Err("json: unsupported value: +Inf".to_owned());
                }
                "-.inf" | "-.Inf" | "-.INF" => return Err("json: unsupported value: -Inf".to_owned()),
                _ => {}
            }
            let bare: Cow<'_, str> = if text.contains('_') { text.replace('_', "").into() } else { text.into() };
            if first != b'.'
                && !is_date_like(text)
                && let Some(number) = integer(&bare)
            {
                return Ok(("!!int", Value::Number(number)));
            }
            match float(&bare) {
                Some(number) if !is_date_like(text) => Ok(("!!float", Value::Number(number))),
                _ => string(),
            }
        }
        _ => string(),
    }
}

/// Whether the text starts like a date, with four digits and a dash. No number matches.
fn is_date_like(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() > 4 && bytes[..4].iter().all(u8::is_ascii_digit) && bytes[4] == b'-'
}

/// Parses an integer as Go's `strconv.ParseInt` and `ParseUint` do with base 0.
fn integer(text: &str) -> Option<Number> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let prefixed = |prefixes: [&str; 2]| prefixes.iter().find_map(|prefix| digits.strip_prefix(prefix));
    let (digits, radix) = if let Some(digits) = prefixed(["0x", "0X"]) {
        (digits, 16)
    } else if let Some(digits) = prefixed(["0b", "0B"]) {
        (digits, 2)
    } else if let Some(digits) = prefixed(["0o", "0O"]) {
        (digits, 8)
    } else if digits.len() > 1 && digits.starts_with('0') {
        (&digits[1..], 8)
    } else {
        (digits, 10)
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if !negative {
        return Some(magnitude.into());
    }
    i64::try_from(-i128::from(magnitude)).ok().map(Number::from)
}

/// Parses `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?` within the range of a double. A whole number becomes an
/// integer, as after a round trip through JSON.
fn float(text: &str) -> Option<Number> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (unsigned, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_float = digits(whole)
        && digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && exponent.is_none_or(|exponent| !exponent.is_empty() && digits(exponent));
    let float = text.parse::<f64>().ok().filter(|float| is_float && float.is_finite())?;
    if float.fract() == 0.0 && float.abs() < i64::MAX as f64 {
        return Some(Number::from(float as i64));
    }
    Number::from_f64(float)
}

/// Converts an error of the scanner or parser into the error message of the Go library.
fn scan_error(error: &ScanError, text: &str, depth_max: usize) -> String {
    // The library counts lines from 0. Scanner errors show the line counted from 1, parser errors the line counted from
    // 0. Neither shows the first line.
    let line = error.marker().line().saturating_sub(1);
    let last = text.matches('\n').count() + usize::from(!text.ends_with('\n'));
    let (problem, line) = match error.kind() {
        ErrorKind::RecursionLimitExceeded => return too_deep(depth_max),
        ErrorKind::UnclosedFlowCollection { open: '[' } | ErrorKind::UnexpectedEofFlowSequence => {
            ("did not find expected ',' or ']'", last)
        }
        ErrorKind::UnclosedFlowCollection { .. }
        | ErrorKind::UnexpectedEofFlowMapping
        | ErrorKind::UnexpectedEofImplicitFlowMapping => ("did not find expected ',' or '}'", last),
        ErrorKind::ExpectedFlowSequenceSeparator => ("did not find expected ',' or ']'", line),
        ErrorKind::ExpectedFlowMappingSeparator => ("did not find expected ',' or '}'", line),
        ErrorKind::ExpectedBlockMappingKey => ("did not find expected key", line),
        ErrorKind::ExpectedBlockSequenceEntry => ("did not find expected '-' indicator", line),
        ErrorKind::ExpectedNodeContent
        | ErrorKind::MisplacedFlowCollectionEnd
        | ErrorKind::MismatchedFlowCollectionEnd { .. } => ("did not find expected node content", line),
        // The library detects this error at the start of the next line.
        ErrorKind::SimpleKeyExpected | ErrorKind::InvalidSimpleKey => ("could not find expected ':'", line + 2),
        kind => {
            let shown = kind.to_string();
            let problem = match kind {
                ErrorKind::MappingValueNotAllowed => "mapping values are not allowed in this context",
                ErrorKind::UnexpectedCharacter { .. }
                | ErrorKind::TabNotAllowed
                | ErrorKind::TabInBlockIndentation
                | ErrorKind::TabInIndentation => "found character that cannot start any token",
                ErrorKind::UnclosedQuotedScalar => "found unexpected end of stream",
                ErrorKind::UnknownQuotedScalarEscape => "found unknown escape character",
                _ => shown.rsplit(", ").next().unwrap_or_default(),
            };
            // An unclosed quote is detected at the end of the text.
            let line = if *kind == ErrorKind::UnclosedQuotedScalar { text.matches('\n').count() } else { line };
            return in_line(if line == 0 { 0 } else { line + 1 }, problem);
        }
    };
    in_line(line, problem)
}

fn in_line(line: usize, problem: &str) -> String {
    match line {
        0 => format!("yaml: {problem}"),
        line => format!("yaml: line {line}: {problem}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Parsed, String> {
        parse(text.as_bytes(), 100, &Memory::new(1 << 20))
    }

    fn check(text: &str, expected: &str) {
        assert_eq!(read(text).map(|parsed| parsed.value.to_string()), Ok(expected.to_owned()), "{text}");
    }

    fn check_error(text: &str, expected: &str) {
        assert_eq!(read(text).map(|parsed| parsed.value), Err(expected.to_owned()), "{text}");
    }

    #[test]
    fn plain_scalars_have_the_types_of_yaml_1_1() {
        for (text, expected) in [
            ("yes", "true"),
            ("off", "false"),
            ("y", "true"),
            ("~", "null"),
            ("", "null"),
            ("017", "15"),
            ("08", "8"),
            ("0o17", "15"),
            ("0x1F", "31"),
            ("-0b11", "-3"),
            ("1_000", "1000"),
            ("18446744073709551615", "18446744073709551615"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("1.0", "1"),
            ("1e3", "1000"),
            (".5", "0.5"),
            ("1.5e-3", "0.0015"),
            ("+12", "12"),
            ("1.2.3", "\"1.2.3\""),
            ("2020-01-02", "\"2020-01-02\""),
            ("12:30:45", "\"12:30:45\""),
            ("\"1\"", "\"1\""),
            ("'yes'", "\"yes\""),
            ("!!str 1", "\"1\""),
            ("!!str", "\"\""),
            ("!!int \"5\"", "5"),
            ("!!float 2", "2"),
            ("!!binary aGk=", "\"hi\""),
            ("!mine 5", "\"5\""),
            ("-", "[null]"),
            ("+", "\"+\""),
            ("null # nothing", "null"),
        ] {
            check(text, expected);
        }
        check_error("!!int a", "yaml: cannot decode !!str `a` as a !!int");
        check_error("a: .nan", "json: unsupported value: NaN");
        check_error("a: -.inf", "json: unsupported value: -Inf");
    }

    #[test]
    fn scalar_keys_become_strings_and_other_keys_are_rejected() {
        check("1: a\ntrue: b\n1.5: c\n'x': d\n2: e", r#"{"1":"a","true":"b","1.5":"c","x":"d","2":"e"}"#);
        check_error("~: a", "unsupported map key of type: %!s(<nil>), key: <nil>");
        check_error("? [a]\n: b", "yaml: invalid map key: []interface {}{...}");
        check_error("? {a: b}\n: b", "yaml: invalid map key: map[interface {}]interface {}{...}");
    }

    #[test]
    fn aliases_copy_their_anchor_and_merge_keys_add_its_members() {
        check("a: &b {x: 1}\nc: *b", r#"{"a":{"x":1},"c":{"x":1}}"#);
        check("a: &b {x: 1, z: 2}\nc:\n  <<: *b\n  x: 3", r#"{"a":{"x":1,"z":2},"c":{"x":3,"z":2}}"#);
        check("<<: [{x: 1}, {x: 2, w: 2}]\nz: 3", r#"{"x":1,"w":2,"z":3}"#);
        check("<<: {x: 1}", r#"{"x":1}"#);
        check("<<: []", "{}");
        check("'<<': {x: 1}", r#"{"<<":{"x":1}}"#);
        check("[<<]", r#"["<<"]"#);
        for text in ["<<: 1", "<<: [1]", "a: &a [1]\n<<: *a"] {
            check_error(text, "yaml: map merge requires map or sequence of maps as the value");
        }
        check_error("a: *b", "yaml: unknown anchor 'b' referenced");
        check_error("a: &a [*a]", "yaml: anchor 'a' value contains itself");
    }

    #[test]
    fn duplicate_keys_are_reported_with_the_line_of_the_value() {
        let lines = |text: &str| read(text).unwrap().duplicates;
        assert_eq!(lines("a: 1\nb: 2\na: 3"), ["line 3: key \"a\" already set in map"]);
        assert_eq!(
            lines("a: 1\na:\n  b: 2\n  b: 3\n"),
            ["line 4: key \"b\" already set in map", "line 3: key \"a\" already set in map"]
        );
        assert_eq!(
            lines("{1: a, 1: b, true: c, true: d}"),
            ["line 1: key 1 already set in map", "line 1: key true already set in map"]
        );
        check("a: 1\nb: 2\na: 3", r#"{"a":3,"b":2}"#);
    }

    #[test]
    fn only_the_first_yaml_document_is_parsed() {
        check("a: |\n  b", r#"{"a":"b"}"#);
        check("a: |\n  b\n", r#"{"a":"b\n"}"#);
        check("a: \"b\nc\"", r#"{"a":"b c"}"#);
        check("", "null");
        check("---\n", "null");
        check("a: 1\n---\nb: 2\n", r#"{"a":1}"#);
        check("%YAML 1.1\n---\na: 1\n...\n", r#"{"a":1}"#);
    }

    #[test]
    fn yaml_errors_have_the_text_of_the_go_library() {
        check_error("a: [b", "yaml: line 1: did not find expected ',' or ']'");
        check_error("{a: b", "yaml: line 1: did not find expected ',' or '}'");
        check_error("a: b: c", "yaml: mapping values are not allowed in this context");
        check_error("x: 1\na: b: c", "yaml: line 2: mapping values are not allowed in this context");
        check_error("a: 1\nb\nc: 2", "yaml: line 3: could not find expected ':'");
        check_error("x: {a: b\n\n\n", "yaml: line 3: did not find expected ',' or '}'");
        check_error("{a: b\nc: d}\n", "yaml: line 1: did not find expected ',' or '}'");
        check_error("- a\nb: c", "yaml: line 1: did not find expected '-' indicator");
        check_error("a: b\n- c", "yaml: line 1: did not find expected key");
        check_error("'a", "yaml: found unexpected end of stream");
        check_error("a: \"b\nc: d", "yaml: line 2: found unexpected end of stream");
        check_error("\"a\\q\"", "yaml: found unknown escape character");
        check_error("a:\n\tb: c", "yaml: line 2: found character that cannot start any token");
        check_error("a: @b", "yaml: found character that cannot start any token");
        check_error("a: 1\n b: 2", "yaml: line 2: mapping values are not allowed in this context");
        assert_eq!(parse(b"\xff", 10, &Memory::new(1 << 20)).unwrap_err(), "yaml: invalid leading UTF-8 octet");
    }

    #[test]
    fn nesting_above_the_depth_limit_is_rejected_even_through_aliases() {
        let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        check(&nested(100), &nested(100));
        check_error(&nested(101), "yaml: exceeded max depth of 100");
        check_error(&"{a: ".repeat(100_000), "yaml: exceeded max depth of 100");
        check_error(&"- ".repeat(101), "yaml: exceeded max depth of 100");
        let halves = |above: usize| format!("- &a {}\n- {}*a{}", nested(50), "[".repeat(above), "]".repeat(above));
        assert!(read(&halves(49)).is_ok());
        check_error(&halves(50), "yaml: exceeded max depth of 100");
    }

    #[test]
    fn yaml_document_with_excessive_aliasing_is_rejected() {
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for level in 1..12 {
            let alias = format!("*a{}", level - 1);
            bomb.push_str(&format!("a{level}: &a{level} [{}]\n", [alias.as_str(); 10].join(",")));
        }
        check_error(&bomb, "yaml: document contains excessive aliasing");
        let long = format!("a: &a {}\nb: [{}]", "x".repeat(10_000), vec!["*a"; 200].join(","));
        check_error(&long, "the document takes more than 1048576 bytes of memory");
    }
}
