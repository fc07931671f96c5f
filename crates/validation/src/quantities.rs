//! Converts resource quantities in request bodies to their canonical form
//! ([`listwatch_meta::quantity`]).

use listwatch_json::Value;
pub use listwatch_meta::quantity::compare;
use listwatch_meta::quantity::{canonical, canonical_in_resource_list};

/// Converts a quantity to its canonical form.
///
/// # Errors
/// The decoder's error text if the value is not a quantity.
pub fn canonicalize(amount: &mut Value) -> Result<(), String> {
    rewrite(amount, canonical)
}

/// Converts a quantity in a list of resources, e.g. `requests`, to its canonical form. The quantity is rounded up to
/// milli-units.
///
/// # Errors
/// The decoder's error text if the value is not a quantity.
pub fn canonicalize_in_resource_list(amount: &mut Value) -> Result<(), String> {
    rewrite(amount, canonical_in_resource_list)
}

fn rewrite(amount: &mut Value, canonical: fn(&str) -> Result<Option<String>, &'static str>) -> Result<(), String> {
    let rewritten = match &*amount {
        Value::Null => return Ok(()),
        Value::String(text) => canonical(text)?,
        // A number. Values of other types are not quantities.
        other => {
            let text = other.to_string();
            Some(canonical(&text)?.unwrap_or(text))
        }
    };
    if let Some(text) = rewritten {
        *amount = text.into();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    #[test]
    fn quantities_are_converted_to_canonical_text() {
        let check = |amount: Value, expected: Option<Value>| {
            let mut canonical = amount.clone();
            assert_eq!(canonicalize(&mut canonical).ok().map(|()| canonical), expected, "{amount}");
        };
        check(json!("1000m"), Some(json!("1")));
        check(json!(1500), Some(json!("1500")));
        check(json!(0.5), Some(json!("500m")));
        check(Value::Null, Some(Value::Null));
        for none in [json!("x"), json!(true), json!([]), json!({"a": "1"}), json!(["1"])] {
            check(none, None);
        }
    }
}
