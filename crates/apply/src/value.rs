//! JSON values with Go's semantics. The module orders values totally, with `1` equal to `1.0`, and
//! formats values for error messages and for keys in managedFields.
//!
//! Sources: `structured-merge-diff/v6/value`, and for texts `fmt`, `strconv` and json-iterator.

use std::cmp::Ordering;
use std::fmt::Write as _;

use listwatch_json::{JsonString, Map, Value, is_plain};
use listwatch_meta::go::quote;
use serde_json::Number;

/// A number as Go decodes it.
enum Num {
    Int(i64),
    Float(f64),
}

fn num(number: &Number) -> Num {
    match number.as_i64() {
        Some(int) => Num::Int(int),
        None => Num::Float(number.as_f64().unwrap_or(f64::NAN)),
    }
}

/// Whether two values are equal. Numbers are compared by value, maps without regard to order.
pub(crate) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b) == Ordering::Equal,
        (Value::String(a), Value::String(b)) => a == b,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Null, Value::Null) => true,
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| equal(a, b)))
        }
        _ => false,
    }
}

#[expect(clippy::cast_precision_loss, reason = "Go compares an integer with a float as floats, too")]
fn compare_numbers(a: &Number, b: &Number) -> Ordering {
    let floats = |a: f64, b: f64| a.partial_cmp(&b).unwrap_or(Ordering::Equal);
    match (num(a), num(b)) {
        (Num::Int(a), Num::Int(b)) => a.cmp(&b),
        (Num::Int(a), Num::Float(b)) => floats(a as f64, b),
        (Num::Float(a), Num::Int(b)) => floats(a, b as f64),
        (Num::Float(a), Num::Float(b)) => floats(a, b),
    }
}

/// Orders all values: numbers, strings, booleans, lists, maps, null.
pub(crate) fn compare(a: &Value, b: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    };
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let parts = a.iter().zip(b).map(|(a, b)| compare(a, b));
            parts.into_iter().find(|order| order.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => compare_maps(a, b),
        _ => rank(a).cmp(&rank(b)),
    }
}

fn compare_maps(a: &Map, b: &Map) -> Ordering {
    fn sorted(map: &Map) -> Vec<(&JsonString, &Value)> {
        let mut members: Vec<_> = map.iter().collect();
        members.sort_by_key(|(name, _)| *name);
        members
    }
    let (a, b) = (sorted(a), sorted(b));
    let parts = a.iter().zip(&b).map(|(a, b)| a.0.cmp(b.0).then_with(|| compare(a.1, b.1)));
    parts.into_iter().find(|order| order.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
}

/// Whether a value is absent or the zero value of its Go type.
pub(crate) fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

/// Formats a value as the paths in error messages show it (`value.ToString`).
pub(crate) fn format_path_value(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => shown_number(number),
        Value::String(text) => quote(text),
        Value::Array(items) => format!("[{}]", items.iter().map(format_path_value).collect::<Vec<_>>().join(",")),
        Value::Object(members) => {
            members.iter().map(|(name, value)| format!("{name}={}", format_path_value(value))).collect()
        }
    }
}

/// Formats a number as `%v` does.
fn shown_number(number: &Number) -> String {
    match num(number) {
        Num::Int(int) => int.to_string(),
        Num::Float(float) => general(float, -4, 21, 2),
    }
}

/// Formats a float with the shortest digits that identify it. Values below 10^`low` and from
/// 10^`high` on have an exponent with at least `digits` digits.
fn general(float: f64, low: i32, high: i32, digits: usize) -> String {
    let scientific = format!("{float:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if float != 0.0 && (exponent < low || exponent >= high) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:0digits$}", exponent.unsigned_abs());
    }
    // Prints all digits and no trailing zeros.
    format!("{float}")
}

/// Formats a value as `%v` does.
pub(crate) fn format_plain(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => String::from(text),
        Value::Bool(_) | Value::Number(_) => format_path_value(value),
        Value::Array(items) => format!("[{}]", items.iter().map(format_plain).collect::<Vec<_>>().join(" ")),
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            let members: Vec<String> =
                members.into_iter().map(|(name, value)| format!("{name}:{}", format_plain(value))).collect();
            format!("map[{}]", members.join(" "))
        }
    }
}

/// Formats a value as `%#v` does.
pub(crate) fn format_go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Array(items) => {
            format!("[]interface {{}}{{{}}}", items.iter().map(format_go_syntax).collect::<Vec<_>>().join(", "))
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            let members: Vec<String> = members
                .into_iter()
                .map(|(name, value)| format!("{}:{}", quote(name), format_go_syntax(value)))
                .collect();
            format!("map[string]interface {{}}{{{}}}", members.join(", "))
        }
        scalar => format_path_value(scalar),
    }
}

/// The Go type of a decoded value, as `%T` prints it.
pub(crate) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.as_i64().is_some() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Writes a value as json-iterator does: members sorted by name; `<`, `>` and `&` escaped.
pub(crate) fn write_json(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Number(number) => match num(number) {
            Num::Int(int) => {
                let _ = write!(out, "{int}");
            }
            Num::Float(float) => out.push_str(&general(float, -6, 21, 2).replace("e-0", "e-")),
        },
        Value::String(text) => write_text(text, true, out),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_json(item, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            for (at, (name, value)) in members.into_iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_text(name, true, out);
                out.push(':');
                write_json(value, out);
            }
            out.push('}');
        }
    }
}

/// Writes a JSON string as json-iterator does, with or without HTML escapes.
pub(crate) fn write_text(text: &str, html: bool, out: &mut String) {
    out.push('"');
    if !html && is_plain(text.as_bytes()) {
        out.push_str(text);
        out.push('"');
        return;
    }
    for char in text.chars() {
        let _ = match char {
            '"' => out.write_str("\\\""),
            '\\' => out.write_str("\\\\"),
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            char if (char as u32) < 0x20 => write!(out, "\\u{:04x}", char as u32),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' if html => write!(out, "\\u{:04x}", char as u32),
            char => out.write_char(char),
        };
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    #[test]
    fn json_values_of_all_types_are_totally_ordered() {
        let sorted = [
            json!(-1),
            json!(1),
            json!(1.5),
            json!(2),
            json!("a"),
            json!("b"),
            json!(false),
            json!(true),
            json!([]),
            json!([1]),
            json!([1, 2]),
            json!([2]),
            json!({}),
            json!({"a": 1}),
            json!({"a": 1, "b": 0}),
            json!({"b": 0}),
            Value::Null,
        ];
        for (at, a) in sorted.iter().enumerate() {
            for (to, b) in sorted.iter().enumerate() {
                assert_eq!(compare(a, b), at.cmp(&to), "{a} against {b}");
                assert_eq!(equal(a, b), at == to, "{a} and {b}");
            }
        }
        assert!(equal(&json!(1), &json!(1.0)) && compare(&json!(1), &json!(1.0)).is_eq());
        assert!(equal(&json!({"a": 1, "b": 2}), &json!({"b": 2, "a": 1})));
    }

    #[test]
    fn values_are_encoded_as_in_go() {
        let check = |value: Value, json: &str, shown: &str| {
            let mut out = String::new();
            write_json(&value, &mut out);
            assert_eq!((out.as_str(), super::format_path_value(&value).as_str()), (json, shown));
        };
        check(json!("a<\"\n\u{2028}é"), r#""a\u003c\"\n\u2028é""#, "\"a<\\\"\\n\\u2028é\"");
        check(json!(1.0), "1", "1");
        check(json!(1.5e21), "1.5e+21", "1.5e+21");
        check(json!(1e-7), "1e-7", "1e-07");
        check(json!(0.00001), "0.00001", "1e-05");
        check(json!(-3), "-3", "-3");
        check(json!({"b": [1, null], "a": true}), r#"{"a":true,"b":[1,null]}"#, "b=[1,null]a=true");
    }

    #[test]
    fn values_are_formatted_as_in_go() {
        let value = json!({"b": [1, "x"], "a": null});
        assert_eq!(format_plain(&value), "map[a:<nil> b:[1 x]]");
        assert_eq!(
            format_go_syntax(&value),
            r#"map[string]interface {}{"a":interface {}(nil), "b":[]interface {}{1, "x"}}"#
        );
    }
}
