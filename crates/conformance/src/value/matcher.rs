//! Expectations of one value. A plain value expects an equal value. An object with one member that begins with `$` is
//! an operator:
//!
//! | operator | matches if |
//! |---|---|
//! | `$exists: true` | there is a value, also `null` |
//! | `$absent: true` | there is no value |
//! | `$matches: REGEX` | a string matches, anywhere unless anchored |
//! | `$contains: X` | a string has this part, or a list has an element that equals or matches `X` |
//! | `$starts_with: TEXT` | a string begins with this text |
//! | `$length: N` | a list, object or string has this length; `N` may be an operator |
//! | `$same_length: LIST` | a list has as many elements as this one |
//! | `$later_than: RV` | a resource version is greater |
//! | `$not_earlier_than: RV` | a resource version is equal or greater |
//! | `$earlier_than: RV` | a resource version is less |
//! | `$at_least: N`, `$at_most: N` | a number is in the range |
//! | `$unordered: [X, …]` | a list has these elements in any order |
//! | `$has: {…}` | an object has at least these members |
//! | `$sorted: true` | a list of strings is in byte order |
//! | `$distinct: true` | no element of a list is equal to another |
//! | `$type: NAME` | the value is a `string`, `number`, `boolean`, `list`, `object` or `null` |
//! | `$any: [X, …]`, `$all: [X, …]`, `$not: X` | the value matches at least one of these, all of these, not this one |

use std::cmp::Ordering;

use regex::Regex;
use serde_json::Value;

use super::{compare_resource_versions, excerpt};

/// The number of bytes of a value that a message shows.
const SHOWN_BYTES: usize = 300;

/// The names of the operators, for checks of cases before they run.
pub(crate) const OPERATORS: &[&str] = &[
    "$exists",
    "$absent",
    "$matches",
    "$contains",
    "$starts_with",
    "$length",
    "$same_length",
    "$later_than",
    "$not_earlier_than",
    "$earlier_than",
    "$at_least",
    "$at_most",
    "$unordered",
    "$has",
    "$sorted",
    "$distinct",
    "$type",
    "$any",
    "$all",
    "$not",
];

/// Compares a value with its expectation.
///
/// # Errors
/// A text with the expected and the found value.
pub(crate) fn check(expected: &Value, found: Option<&Value>) -> Result<(), String> {
    let shown = || found.map_or("nothing".to_owned(), |found| excerpt(found, SHOWN_BYTES));
    if let Some((operator, operand)) = operator(expected) {
        return apply(operator, operand, found).map_err(|why| format!("expected {why}, found {}", shown()));
    }
    if let (Value::Object(expected), Some(Value::Object(found))) = (expected, found) {
        for (name, expected) in expected {
            check(expected, found.get(name)).map_err(|why| format!("{name}: {why}"))?;
        }
        return match found.keys().find(|name| !expected.contains_key(*name)) {
            Some(name) => Err(format!("expected no member {name:?}, found {}", shown())),
            None => Ok(()),
        };
    }
    if let (Value::Array(expected), Some(Value::Array(found))) = (expected, found)
        && expected.len() == found.len()
    {
        for (at, (expected, found)) in expected.iter().zip(found).enumerate() {
            check(expected, Some(found)).map_err(|why| format!("[{at}]: {why}"))?;
        }
        return Ok(());
    }
    match found {
        Some(found) if equal(expected, found) => Ok(()),
        _ => Err(format!("expected {}, found {}", excerpt(expected, SHOWN_BYTES), shown())),
    }
}

/// Returns the operator of an expectation and its argument; `None` for a plain value.
pub(crate) fn operator(expected: &Value) -> Option<(&str, &Value)> {
    let members = expected.as_object().filter(|members| members.len() == 1)?;
    let (name, operand) = members.iter().next()?;
    name.starts_with('$').then_some((name.as_str(), operand))
}

/// Whether two values are equal. The numbers `1` and `1.0` are equal.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        _ => a == b,
    }
}

fn apply(operator: &str, operand: &Value, found: Option<&Value>) -> Result<(), String> {
    let hold = |holds: bool, why: String| if holds { Ok(()) } else { Err(why) };
    let text = found.and_then(Value::as_str);
    let operand_text = || match operand {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let versions = |accept: fn(Ordering) -> bool, words: &str| {
        let operand = operand_text();
        let order = text.and_then(|found| compare_resource_versions(found, &operand));
        hold(order.is_some_and(accept), format!("a resource version {words} {operand}"))
    };
    let list = found.and_then(Value::as_array);
    match operator {
        "$exists" => hold(found.is_some(), "a value".to_owned()),
        "$absent" => hold(found.is_none(), "no value".to_owned()),
        "$matches" => {
            let pattern = operand_text();
            let regex = Regex::new(&pattern).map_err(|error| format!("a valid pattern: {error}"))?;
            hold(text.is_some_and(|text| regex.is_match(text)), format!("text that matches {pattern:?}"))
        }
        "$contains" => {
            let in_text = text.is_some_and(|text| text.contains(&operand_text()));
            let in_list = list.is_some_and(|list| list.iter().any(|element| check(operand, Some(element)).is_ok()));
            hold(in_text || in_list, format!("something that contains {}", excerpt(operand, SHOWN_BYTES)))
        }
        "$starts_with" => {
            let start = operand_text();
            hold(text.is_some_and(|text| text.starts_with(&start)), format!("text that begins with {start:?}"))
        }
        "$length" => {
            let length = match found {
                Some(Value::Array(list)) => Some(list.len()),
                Some(Value::Object(members)) => Some(members.len()),
                Some(Value::String(text)) => Some(text.len()),
                _ => None,
            };
            let length = length.map(Value::from);
            check(operand, length.as_ref()).map_err(|why| format!("a length: {why}; the value"))
        }
        "$later_than" => versions(Ordering::is_gt, "later than"),
        "$not_earlier_than" => versions(Ordering::is_ge, "not earlier than"),
        "$earlier_than" => versions(Ordering::is_lt, "earlier than"),
        "$same_length" => {
            let wanted = operand.as_array().map(Vec::len);
            let why = format!("as many elements as {}", excerpt(operand, SHOWN_BYTES));
            hold(wanted.is_some() && list.map(Vec::len) == wanted, why)
        }
        "$at_least" | "$at_most" => {
            let (found, operand) = (found.and_then(Value::as_f64), operand.as_f64());
            let accept = if operator == "$at_least" { Ordering::is_ge } else { Ordering::is_le };
            let order = found.zip(operand).and_then(|(found, operand)| found.partial_cmp(&operand));
            hold(order.is_some_and(accept), format!("{} {}", operator.trim_start_matches('$'), operand_text()))
        }
        "$unordered" => {
            let expected = operand.as_array().map(Vec::as_slice).unwrap_or_default();
            let mut rest: Vec<&Value> = list.map(|list| list.iter().collect()).unwrap_or_default();
            let complete = list.is_some_and(|list| list.len() == expected.len());
            let matched = expected.iter().all(|expected| {
                let at = rest.iter().position(|element| check(expected, Some(element)).is_ok());
                at.map(|at| rest.swap_remove(at)).is_some()
            });
            hold(complete && matched, format!("exactly {} in any order", excerpt(operand, SHOWN_BYTES)))
        }
        "$has" => {
            let members = operand.as_object().into_iter().flatten();
            for (name, expected) in members {
                check(expected, found.and_then(|found| found.get(name))).map_err(|why| format!("{name}: {why}; in"))?;
            }
            Ok(())
        }
        "$sorted" => {
            let texts: Option<Vec<&str>> = list.map(|list| list.iter().filter_map(Value::as_str).collect());
            hold(texts.is_some_and(|texts| texts.is_sorted()), "a list in byte order".to_owned())
        }
        "$distinct" => {
            let repeats = |list: &Vec<Value>| list.iter().enumerate().any(|(at, one)| list[..at].contains(one));
            hold(list.is_some_and(|list| !repeats(list)), "a list without repetition".to_owned())
        }
        "$type" => {
            let name = match found {
                None => "nothing",
                Some(Value::Null) => "null",
                Some(Value::Bool(_)) => "boolean",
                Some(Value::Number(_)) => "number",
                Some(Value::String(_)) => "string",
                Some(Value::Array(_)) => "list",
                Some(Value::Object(_)) => "object",
            };
            hold(operand == name, format!("a {}", operand_text()))
        }
        "$any" => {
            let mut reasons = Vec::new();
            for expected in operand.as_array().into_iter().flatten() {
                match check(expected, found) {
                    Ok(()) => return Ok(()),
                    Err(why) => reasons.push(why),
                }
            }
            Err(format!("one of: {}", reasons.join("; ")))
        }
        "$all" => operand.as_array().into_iter().flatten().try_for_each(|expected| check(expected, found)),
        "$not" => hold(check(operand, found).is_err(), format!("anything but {}", excerpt(operand, SHOWN_BYTES))),
        other => Err(format!("a known operator instead of {other}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_operator_accepts_matching_values_and_rejects_others() {
        #[track_caller]
        fn expect(expected: Value, accepted: &[Value], rejected: &[Value]) {
            for value in accepted {
                assert_eq!(check(&expected, Some(value)), Ok(()), "{expected}");
            }
            for value in rejected {
                assert!(check(&expected, Some(value)).is_err(), "{expected} accepts {value}");
            }
        }
        expect(json!({"$matches": "^a+$"}), &[json!("aa")], &[json!("ab"), json!(1)]);
        expect(json!({"$contains": "b"}), &[json!("abc"), json!(["b"])], &[json!("ac"), json!(["ab"])]);
        expect(json!({"$contains": {"$has": {"a": 1}}}), &[json!([{"a": 1, "b": 2}])], &[json!([{"a": 2}])]);
        expect(json!({"$length": 2}), &[json!([1, 2]), json!("ab")], &[json!([1]), json!(2)]);
        expect(json!({"$length": {"$at_least": 2}}), &[json!([1, 2, 3])], &[json!([1])]);
        expect(json!({"$same_length": [1, 2]}), &[json!(["a", "b"])], &[json!(["a"]), json!("ab")]);
        expect(json!({"$later_than": "9"}), &[json!("10")], &[json!("9"), json!("x"), json!(10)]);
        expect(json!({"$not_earlier_than": "9"}), &[json!("9"), json!("10")], &[json!("8")]);
        expect(json!({"$earlier_than": "9"}), &[json!("8")], &[json!("9")]);
        expect(json!({"$unordered": [1, 2]}), &[json!([2, 1])], &[json!([1]), json!([1, 1]), json!([1, 2, 3])]);
        expect(json!({"$sorted": true}), &[json!(["a", "b"])], &[json!(["b", "a"]), json!("a")]);
        expect(json!({"$distinct": true}), &[json!([1, 2])], &[json!([1, 1])]);
        expect(json!({"$type": "list"}), &[json!([])], &[json!({}), json!(null)]);
        expect(json!({"$any": [1, 2]}), &[json!(2)], &[json!(3)]);
        expect(json!({"$all": [{"$at_least": 1}, {"$at_most": 2}]}), &[json!(2)], &[json!(3)]);
        expect(json!({"$not": 1}), &[json!(2)], &[json!(1)]);
        expect(json!({"$has": {"a": {"$exists": true}}}), &[json!({"a": 1, "b": 1})], &[json!({"b": 1})]);
        expect(json!(1), &[json!(1.0)], &[json!("1")]);
        expect(json!({"a": {"$exists": true}}), &[json!({"a": 1})], &[json!({"a": 1, "b": 1}), json!({})]);
        expect(json!({"$unknown": 1}), &[], &[json!(1), json!({"$unknown": 1})]);
    }

    #[test]
    fn absent_value_is_distinct_from_null() {
        assert!(check(&json!({"$absent": true}), None).is_ok());
        assert!(check(&json!({"$absent": true}), Some(&json!(null))).is_err());
        assert!(check(&json!({"$exists": true}), None).is_err());
        assert!(check(&json!(null), None).is_err());
    }

    #[test]
    fn mismatch_message_has_the_expected_and_the_found_value() {
        let error = check(&json!({"a": [1, 2]}), Some(&json!({"a": [1, 3]}))).unwrap_err();
        assert_eq!(error, "a: [1]: expected 2, found 3");
        let error = check(&json!({"$later_than": "5"}), None).unwrap_err();
        assert_eq!(error, "expected a resource version later than 5, found nothing");
    }

    #[test]
    fn every_operator_of_the_list_is_known() {
        for operator in OPERATORS {
            let why = apply(operator, &json!("x"), None).err().unwrap_or_default();
            assert!(!why.contains("known operator"), "{operator}");
        }
    }
}
