//! How Go prints values: the texts of field errors are made by Go's `fmt`, `strconv` and
//! `encoding/json`, and clients compare them. Not a general formatter: what error texts need.

use std::fmt::Write as _;

pub(crate) use listwatch_meta::go::quote;
use listwatch_meta::status::prefix;
use serde_json::Value;

use crate::limits::FIELD_ERROR_BYTES_MAX;

/// A JSON number as the API server holds it: whole numbers that fit 64 bits with a sign, and the
/// rest as floats (apimachinery's JSON decoder does the same).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Int(i64),
    Float(f64),
}

impl Number {
    /// The number in a JSON value.
    pub(crate) fn of(number: &serde_json::Number) -> Number {
        match number.as_i64() {
            Some(int) => Number::Int(int),
            None => Number::Float(number.as_f64().unwrap_or(f64::NAN)),
        }
    }

    /// As a float, rounded where needed.
    pub(crate) fn as_f64(self) -> f64 {
        match self {
            Number::Int(int) => int as f64,
            Number::Float(float) => float,
        }
    }
}

/// Whether a float counts as a whole number (go-openapi's rule: within the integers that a float
/// holds exactly, and whole up to a relative error of 1e-9).
pub(crate) fn is_whole(float: f64) -> bool {
    const WHOLE_MAX: f64 = 9_007_199_254_740_991.0;
    if !float.is_finite() || float.abs() > WHOLE_MAX {
        return false;
    }
    let nearest = float.trunc();
    if float == nearest {
        return true;
    }
    // Go compares with the unsigned conversion; for a negative number that is not whole the
    // distance is then huge.
    if float < 0.0 || nearest == 0.0 {
        return false;
    }
    (float - nearest).abs() / (float.abs() + nearest.abs()) < 1e-9
}

/// `%v` of a float64.
pub(crate) fn float_v(float: f64) -> String {
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
pub(crate) fn float_json(float: f64) -> String {
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
pub(crate) fn json(value: &Value) -> String {
    let mut out = String::new();
    write_json(value, &mut out, usize::MAX);
    out
}

/// As [`json`], and no further than about so many bytes.
fn json_within(value: &Value, bytes_max: usize) -> String {
    let mut out = String::new();
    write_json(value, &mut out, bytes_max);
    out
}

/// Writes nothing where there are more than `bytes_max` bytes already.
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
            let mut keys: Vec<&String> = members.keys().collect();
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

/// The value part of a field error: simple values as `%v`, strings quoted, the rest as JSON. What is longer
/// than an error may be is written no further.
pub(crate) fn bad_value(value: &Value) -> String {
    match value {
        Value::String(text) => quote(prefix(text, FIELD_ERROR_BYTES_MAX)),
        Value::Number(number) => match Number::of(number) {
            Number::Int(int) => int.to_string(),
            Number::Float(float) => float_v(float),
        },
        other => json_within(other, FIELD_ERROR_BYTES_MAX),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn floats_print_as_go_prints_them() {
        fn check(float: f64, v: &str, in_json: &str) {
            assert_eq!((float_v(float).as_str(), float_json(float).as_str()), (v, in_json), "{float:e}");
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

    #[test]
    fn whole_numbers() {
        fn check(float: f64, expected: bool) {
            assert_eq!(is_whole(float), expected, "{float:e}");
        }
        check(1.0, true);
        check(-1.0, true);
        check(0.0, true);
        check(1.5, false);
        check(0.5, false);
        check(2.000_000_000_000_1, true);
        check(9_007_199_254_740_993.0, false);
        check(f64::INFINITY, false);
    }

    #[test]
    fn values_in_errors() {
        fn check(value: Value, expected: &str) {
            assert_eq!(bad_value(&value), expected);
        }
        check(json!("x"), r#""x""#);
        check(json!(3), "3");
        check(json!(1.5), "1.5");
        check(json!(null), "null");
        check(json!({"b": 1, "a": "<&>"}), r#"{"a":"\u003c\u0026\u003e","b":1}"#);
        check(json!([1.0, true]), "[1,true]");
        check(json!(18446744073709551615u64), "1.8446744073709552e+19");
    }
}
