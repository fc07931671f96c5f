//! Go's formatting and parsing of texts and values. Go's `fmt`, `strconv` and `encoding/json` produce
//! upstream's error texts, and clients compare them.

use std::fmt::Write as _;

use listwatch_json::{JsonString, Map, Value};

use crate::status::prefix;

/// Converts bytes to a string. Each byte that is not valid UTF-8 becomes one U+FFFD, as in Go's `encoding/json`.
pub fn text(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    out
}

/// Reads a bool as Go's `strconv.ParseBool` does; `None` for any other text.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Quotes a text as Go's `strconv.Quote` does, which is `%q` of a string.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{07}' => out.push_str("\\a"),
            '\u{08}' => out.push_str("\\b"),
            '\u{0c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{0b}' => out.push_str("\\v"),
            ' '..='~' => out.push(c),
            c if is_printable(c) => out.push(c),
            c if (c as u32) < 0x80 => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c if (c as u32) < 0x1_0000 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => {
                let _ = write!(out, "\\U{:08x}", c as u32);
            }
        }
    }
    out.push('"');
    out
}

/// Percent-encodes a path as Go's `URL.EscapedPath` does for a URL without a raw path (`shouldEscape` with `encodePath`).
pub fn escape_path(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => out.push(char::from(byte)),
            b'-' | b'_' | b'.' | b'~' | b'$' | b'&' | b'+' | b',' | b'/' | b':' | b';' | b'=' | b'@' => {
                out.push(char::from(byte));
            }
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

/// Whether a character is printable for Go (`unicode.IsPrint`). Rust's standard library exposes its table of printable
/// characters only through `escape_debug`. A preceding letter keeps combining characters unescaped.
pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let mut probe = String::from("a");
    probe.push(c);
    probe.escape_debug().count() == 2
}

/// The name of a JSON value's type in errors of `encoding/json`.
pub fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A value as `%v` prints it: `map[a:1 b:[x y]]`.
pub fn print(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => String::from(text),
        Value::Array(items) => print_list(items),
        Value::Object(map) => print_map(map),
        Value::Number(number) => match Number::of(number) {
            Number::Int(int) => int.to_string(),
            Number::Float(number) => float(number),
        },
        Value::Bool(bool) => bool.to_string(),
    }
}

/// Formats a value as `%s` does: values other than strings have the form `%!s(type=value)`.
pub fn print_as_text(value: &Value) -> String {
    match value {
        Value::Null => "%!s(<nil>)".to_owned(),
        Value::Bool(_) | Value::Number(_) => format!("%!s({}={})", type_name(value), print(value)),
        other => print(other),
    }
}

/// A list as `%v` prints it.
pub fn print_list(items: &[Value]) -> String {
    format!("[{}]", items.iter().map(print).collect::<Vec<_>>().join(" "))
}

/// A map as `%v` prints it: sorted by name.
pub fn print_map(map: &Map) -> String {
    let mut members: Vec<String> = map.iter().map(|(name, value)| format!("{name}:{}", print(value))).collect();
    members.sort();
    format!("map[{}]", members.join(" "))
}

/// The Go type of a value that `encoding/json` decodes into an `interface{}`. Integers are `int64`, as in
/// apimachinery.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// The source of the error text for a value of the wrong type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeErrorStyle {
    /// `encoding/json`, which decodes request bodies and the results of most patches.
    Decoder,
    /// apimachinery's `runtime.DefaultUnstructuredConverter`, which decodes the result of a strategic merge patch.
    Converter,
}

/// The error text of apimachinery's converter for `value` in a field of the Go type `wanted`.
pub fn cannot_convert(value: &Value, wanted: &str) -> String {
    let kind = match value {
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
        scalar => type_name(scalar),
    };
    // The converter passes a value to the decoder of a type that has one, and returns its error.
    let decoder = |target: &str| {
        let found = match value {
            Value::Number(number) => format!("number {number}"),
            other => json_kind(other).to_owned(),
        };
        format!("json: cannot unmarshal {found} into Go value of type {target}")
    };
    match wanted {
        list if list.starts_with("[]") => format!("cannot restore slice from {kind}"),
        map if map.starts_with("map[") => format!("cannot restore map from {kind}"),
        "string" if kind == "int64" => "cannot convert int64 to string".to_owned(),
        "int32" | "int64" if value.is_number() => format!("cannot convert {kind} to {wanted}"),
        "string" | "bool" | "int32" | "int64" | "float64" => format!("unrecognized type: {wanted}"),
        "v1.Time" | "v1.MicroTime" => {
            format!("json: cannot unmarshal {} into Go value of type string", json_kind(value))
        }
        "intstr.IntOrString" => decoder("int32"),
        _ => format!("cannot restore struct from: {kind}"),
    }
}

/// A JSON number as apimachinery's JSON decoder reads it: a signed 64-bit integer if possible, otherwise a float.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A signed 64-bit integer.
    Int(i64),
    /// Any other number.
    Float(f64),
}

impl Number {
    /// The number in a JSON value.
    pub fn of(number: &serde_json::Number) -> Number {
        match number.as_i64() {
            Some(int) => Number::Int(int),
            None => Number::Float(number.as_f64().unwrap_or(f64::NAN)),
        }
    }

    /// Converts the number to a float, rounded if necessary.
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Int(int) => int as f64,
            Number::Float(float) => float,
        }
    }
}

/// Changes the numbers of a value as a round trip through `encoding/json` and apimachinery's decoder does. A float without
/// fraction is written as an integer, so `1.0` and `1e2` become the integers 1 and 100. An integer outside the range of `i64`
/// becomes a float.
///
/// The walk is recursive: the caller bounds the depth of the value.
pub fn round_trip_numbers(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_i64() => {}
        Value::Number(number) => {
            let Number::Float(float) = Number::of(number) else { return };
            // The text has as few digits as identify the float, so a large integer can differ from the float's value.
            let whole = if float.fract() == 0.0 { float_json(float).parse::<i64>().ok() } else { None };
            *value = whole.map_or_else(|| Value::from(float), Value::from);
        }
        Value::Array(items) => items.iter_mut().for_each(round_trip_numbers),
        Value::Object(members) => members.values_mut().for_each(round_trip_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// `%v` of a float64.
pub fn float(float: f64) -> String {
    if float.is_nan() {
        return "NaN".into();
    }
    if float.is_infinite() {
        return if float > 0.0 { "+Inf".into() } else { "-Inf".into() };
    }
    if float == 0.0 {
        return if float.is_sign_negative() { "-0".into() } else { "0".into() };
    }
    let exponent = exponent_of(float);
    // Of the shortest digits, Go writes those of up to a million without an exponent.
    if (-4..6).contains(&exponent) { float.to_string() } else { scientific(float, 2) }
}

/// A float64 as `encoding/json` writes it.
fn float_json(float: f64) -> String {
    let magnitude = float.abs();
    if magnitude != 0.0 && !(1e-6..1e21).contains(&magnitude) { scientific(float, 1) } else { float.to_string() }
}

fn exponent_of(float: f64) -> i32 {
    let text = format!("{float:e}");
    text.rsplit_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0)
}

fn scientific(float: f64, digits_min: usize) -> String {
    let text = format!("{float:e}");
    let Some((mantissa, exponent)) = text.rsplit_once('e') else { return text };
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{digits:0>digits_min$}")
}

/// A value as `encoding/json` writes it: keys sorted, `<`, `>` and `&` escaped.
pub fn json(value: &Value) -> String {
    let mut out = String::new();
    write_json(value, &mut out, usize::MAX);
    out
}

/// Writes a value like [`json`], and stops after about `bytes_max` bytes.
pub fn json_within(value: &Value, bytes_max: usize) -> String {
    let mut out = String::new();
    write_json(value, &mut out, bytes_max);
    out
}

/// Appends a value to `out`. Has no effect once `out` exceeds `bytes_max` bytes.
fn write_json(value: &Value, out: &mut String, bytes_max: usize) {
    if out.len() > bytes_max {
        return;
    }
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => match Number::of(number) {
            Number::Int(int) => {
                let _ = write!(out, "{int}");
            }
            Number::Float(float) => out.push_str(&float_json(float)),
        },
        Value::String(text) => write_json_string(prefix(text, bytes_max), out),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if out.len() > bytes_max {
                    return;
                }
                if index > 0 {
                    out.push(',');
                }
                write_json(item, out, bytes_max);
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut keys: Vec<&JsonString> = members.keys().collect();
            keys.sort_unstable();
            out.push('{');
            for (index, key) in keys.into_iter().enumerate() {
                if out.len() > bytes_max {
                    return;
                }
                if index > 0 {
                    out.push(',');
                }
                write_json_string(key, out);
                out.push(':');
                write_json(&members[key], out, bytes_max);
            }
            out.push('}');
        }
    }
}

fn write_json_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{08}' => out.push_str("\\b"),
            '\u{0c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    #[test]
    fn path_is_escaped_as_in_go() {
        for (path, escaped) in [
            ("/a-b_c.d~e/$&+,:;=@", "/a-b_c.d~e/$&+,:;=@"),
            ("/a b?c#d%", "/a%20b%3Fc%23d%25"),
            ("/'()*!\"<é\n", "/%27%28%29%2A%21%22%3C%C3%A9%0A"),
            ("", ""),
        ] {
            assert_eq!(escape_path(path), escaped);
        }
    }

    #[test]
    fn parse_bool_reads_the_texts_of_go() {
        for (text, expected) in [
            ("1", Some(true)),
            ("T", Some(true)),
            ("True", Some(true)),
            ("TRUE", Some(true)),
            ("0", Some(false)),
            ("f", Some(false)),
            ("False", Some(false)),
            ("tRUE", None),
            ("yes", None),
            (" true", None),
            ("", None),
        ] {
            assert_eq!(parse_bool(text), expected, "{text:?}");
        }
    }

    #[test]
    fn round_trip_numbers_converts_whole_floats_within_i64() {
        for (given, expected) in [
            (json!(1), "1"),
            (json!(1.0), "1"),
            (json!(-0.0), "0"),
            (json!(1e2), "100"),
            (json!(1.5), "1.5"),
            (json!(i64::MAX), "9223372036854775807"),
            (json!((1_i64 << 55) as f64), "36028797018963970"),
            (json!((1_i64 << 62) as f64), "4611686018427388000"),
            (json!(i64::MIN as f64), "-9.223372036854776e+18"),
            (json!(-(i64::MIN as f64)), "9.223372036854776e+18"),
            (json!(u64::MAX), "1.8446744073709552e+19"),
            (json!({"a": [2.0, {"b": -3.0}], "c": "4.0"}), r#"{"a":[2,{"b":-3}],"c":"4.0"}"#),
        ] {
            let mut value = given;
            round_trip_numbers(&mut value);
            assert_eq!(value.to_string(), expected);
        }
    }

    #[test]
    fn quote_escapes_the_same_characters_as_go() {
        fn check(text: &str, expected: &str) {
            assert_eq!(quote(text), expected);
        }
        check("a", r#""a""#);
        check("a\"b\\", r#""a\"b\\""#);
        check("\n\t\r\u{7}\u{b}", r#""\n\t\r\a\v""#);
        check("\u{1}\u{7f}", r#""\x01\x7f""#);
        check("é世\u{301}", "\"é世\u{301}\"");
        check("\u{a0}\u{feff}", r#""\u00a0\ufeff""#);
        check("'", r#""'""#);
    }

    #[test]
    fn each_invalid_utf8_byte_becomes_one_replacement_character() {
        assert_eq!(text("b\u{f8}b".as_bytes()), "b\u{f8}b");
        assert_eq!(text(b"a\xe2\x82b\xff"), "a\u{fffd}\u{fffd}b\u{fffd}");
    }

    #[test]
    fn json_value_kinds_have_the_names_of_go() {
        let named = |text: &str| json_kind(&serde_json::from_str(text).unwrap());
        let texts = ["null", "true", "1.5", "\"\"", "[{}]", "{}"];
        assert_eq!(texts.map(named), ["null", "bool", "number", "string", "array", "object"]);
    }

    #[test]
    fn converter_error_for_wrong_type_equals_apimachinery() {
        for (value, wanted, expected) in [
            (json!({}), "[]v1.Container", "cannot restore slice from map"),
            (json!("a"), "map[string]string", "cannot restore map from string"),
            (json!(5), "string", "cannot convert int64 to string"),
            (json!(1.5), "string", "unrecognized type: string"),
            (json!("a"), "int32", "unrecognized type: int32"),
            (json!(1.5), "int32", "cannot convert float64 to int32"),
            (json!([]), "bool", "unrecognized type: bool"),
            (json!([]), "v1.PodSpec", "cannot restore struct from: slice"),
            (json!(5), "v1.Time", "json: cannot unmarshal number into Go value of type string"),
            (json!(true), "intstr.IntOrString", "json: cannot unmarshal bool into Go value of type int32"),
            (json!(1.5), "intstr.IntOrString", "json: cannot unmarshal number 1.5 into Go value of type int32"),
        ] {
            assert_eq!(cannot_convert(&value, wanted), expected);
        }
    }

    #[test]
    fn values_print_as_in_go() {
        assert_eq!(print(&json!({"b": [1, null, "x"], "a": {"c": true}})), "map[a:map[c:true] b:[1 <nil> x]]");
        assert_eq!(type_name(&json!(1.5)), "float64");
        assert_eq!(json_kind(&json!([])), "array");
        for (value, expected) in [
            (json!("a"), "a"),
            (json!({"a": null}), "map[a:<nil>]"),
            (json!(null), "%!s(<nil>)"),
            (json!(5), "%!s(int64=5)"),
            (json!(true), "%!s(bool=true)"),
        ] {
            assert_eq!(print_as_text(&value), expected);
        }
    }

    #[test]
    fn floats_print_as_in_go() {
        fn check(value: f64, v: &str, in_json: &str) {
            assert_eq!((float(value).as_str(), float_json(value).as_str()), (v, in_json), "{value:e}");
        }
        check(0.0, "0", "0");
        check(1.5, "1.5", "1.5");
        check(-2.0, "-2", "-2");
        check(123456.5, "123456.5", "123456.5");
        check(5000000.5, "5.0000005e+06", "5000000.5");
        check(1e20, "1e+20", "100000000000000000000");
        check(1e21, "1e+21", "1e+21");
        check(0.0001, "0.0001", "0.0001");
        check(0.00001, "1e-05", "0.00001");
        check(1.5e-7, "1.5e-07", "1.5e-7");
        check(1e100, "1e+100", "1e+100");
    }
}
