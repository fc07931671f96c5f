//! Formats values as Go does. Go's `fmt`, `strconv` and `encoding/json` produce the texts of field
//! errors, and clients compare them. Only the forms that occur in error texts are covered.

use listwatch_json::Value;
use listwatch_meta::go::json_within;
pub(crate) use listwatch_meta::go::{Number, float as float_v, json, quote};
use listwatch_meta::status::prefix;

use crate::limits::FIELD_ERROR_BYTES_MAX;

/// True if go-openapi treats a float as an integer. The magnitude must be at most 2^53 - 1, and the
/// relative distance to a whole number below 1e-9.
pub(crate) fn is_whole(float: f64) -> bool {
    const WHOLE_MAX: f64 = 9_007_199_254_740_991.0;
    if !float.is_finite() || float.abs() > WHOLE_MAX {
        return false;
    }
    let nearest = float.trunc();
    if float == nearest {
        return true;
    }
    // Go converts to an unsigned integer for the comparison, so a negative fraction is far off.
    if float < 0.0 || nearest == 0.0 {
        return false;
    }
    (float - nearest).abs() / (float.abs() + nearest.abs()) < 1e-9
}

/// Formats the value in a field error: simple values as `%v`, strings quoted, others as JSON.
/// Formatting stops at the size limit of an error.
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
    use listwatch_json::json;

    use super::*;

    #[test]
    fn whole_numbers_are_formatted_without_fraction() {
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
    fn error_values_are_formatted_as_in_go() {
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
