//! How Go prints values, for error texts that a client compares or a human knows.

use serde_json::{Map, Value};

/// A value as `%v` prints it: `map[a:1 b:[x y]]`.
pub(super) fn print(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => print_list(items),
        Value::Object(map) => print_map(map),
        scalar => scalar.to_string(),
    }
}

/// A list as `%v` prints it.
pub(super) fn print_list(items: &[Value]) -> String {
    format!("[{}]", items.iter().map(print).collect::<Vec<_>>().join(" "))
}

/// A map as `%v` prints it: sorted by name.
pub(super) fn print_map(map: &Map<String, Value>) -> String {
    let mut members: Vec<String> = map.iter().map(|(name, value)| format!("{name}:{}", print(value))).collect();
    members.sort();
    format!("map[{}]", members.join(" "))
}

/// The Go type that `encoding/json` decodes a value to when nothing else is asked for.
pub(super) fn type_name(value: &Value) -> &'static str {
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

/// The word for a JSON value in `encoding/json`'s errors.
pub(crate) fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A text as `%q` prints it.
pub(super) fn quote(text: &str) -> String {
    use std::fmt::Write as _;
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for char in text.chars() {
        match char {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            char if (char as u32) < 0x20 || char as u32 == 0x7f => {
                let _ = write!(quoted, "\\x{:02x}", char as u32);
            }
            char if char.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", char as u32);
            }
            char => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn prints_as_go_does() {
        assert_eq!(print(&json!({"b": [1, null, "x"], "a": {"c": true}})), "map[a:map[c:true] b:[1 <nil> x]]");
        assert_eq!(type_name(&json!(1.5)), "float64");
        assert_eq!(json_kind(&json!([])), "array");
        assert_eq!(quote("a\"b\\c\n\u{1}ä\u{85}"), r#""a\"b\\c\n\x01ä\u0085""#);
    }
}
