//! Amounts of resources in the bodies of writes, spelled as Kubernetes does ([`listwatch_meta::quantity`]).

use listwatch_meta::quantity::canonical;
pub use listwatch_meta::quantity::compare;
use serde_json::Value;

/// Spells an amount as Kubernetes does.
///
/// # Errors
/// What a decoder says about an amount that is none.
pub fn spell(amount: &mut Value) -> Result<(), String> {
    let text = match &*amount {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Null => return Ok(()),
        // Whatever it is, it is no amount.
        other => other.to_string(),
    };
    *amount = Value::String(canonical(&text)?.unwrap_or(text));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_become_texts() {
        let check = |amount: Value, expected: Option<Value>| {
            let mut spelled = amount.clone();
            assert_eq!(spell(&mut spelled).ok().map(|()| spelled), expected, "{amount}");
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
