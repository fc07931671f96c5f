//! Placeholders in cases: `{{name}}`, `{{name+N}}` for a number that is `N` greater, and `{{name*N}}` for a text that
//! is repeated `N` times.

use std::collections::BTreeMap;

use serde_json::Value;

/// The largest text that a repetition makes, in bytes.
const REPEATED_BYTES_MAX: usize = 16 << 20;

/// The variables of a running case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Variables(BTreeMap<String, Value>);

impl Variables {
    /// Sets a variable.
    pub(crate) fn set(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.0.insert(name.into(), value.into());
    }

    /// Replaces the placeholders of a text.
    ///
    /// # Errors
    /// A placeholder that names no variable, or adds to something that is not a number.
    pub(crate) fn text(&self, text: &str) -> Result<String, String> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            let (inside, after) = after.split_once("}}").ok_or_else(|| format!("{text:?} has no closing }}}}"))?;
            out.push_str(before);
            match self.lookup(inside.trim())? {
                Value::String(value) => out.push_str(&value),
                other => out.push_str(&other.to_string()),
            }
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }

    /// Replaces the placeholders of every string in a value. A string that is one placeholder becomes the variable's
    /// value with its type.
    ///
    /// # Errors
    /// As [`Variables::text`].
    pub(crate) fn value(&self, value: &Value) -> Result<Value, String> {
        Ok(match value {
            Value::String(text) => {
                let whole = text.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}"));
                match whole.filter(|inside| !inside.contains("{{")) {
                    Some(inside) => self.lookup(inside.trim())?,
                    None => Value::String(self.text(text)?),
                }
            }
            Value::Array(elements) => elements.iter().map(|element| self.value(element)).collect::<Result<_, _>>()?,
            Value::Object(members) => {
                let replaced = members.iter().map(|(name, member)| Ok((self.text(name)?, self.value(member)?)));
                Value::Object(replaced.collect::<Result<_, String>>()?)
            }
            other => other.clone(),
        })
    }

    fn lookup(&self, inside: &str) -> Result<Value, String> {
        if let Some((name, times)) = inside.split_once('*') {
            let text = self.0.get(name.trim()).and_then(Value::as_str);
            let times = times.trim().parse::<usize>().ok();
            let repeated =
                text.zip(times).filter(|(text, times)| text.len().saturating_mul(*times) <= REPEATED_BYTES_MAX);
            let (text, times) = repeated.ok_or_else(|| format!("{inside} is not a text and a number"))?;
            return Ok(Value::String(text.repeat(times)));
        }
        let (name, plus) = match inside.split_once('+') {
            Some((name, plus)) => (name.trim(), Some(plus.trim())),
            None => (inside, None),
        };
        let value = self.0.get(name).ok_or_else(|| format!("the variable {name:?} is not set"))?;
        let Some(plus) = plus else { return Ok(value.clone()) };
        let number = match value {
            Value::String(text) => text.parse::<u64>().ok(),
            other => other.as_u64(),
        };
        let sum = number.zip(plus.parse::<u64>().ok()).and_then(|(number, plus)| number.checked_add(plus));
        let sum = sum.ok_or_else(|| format!("{name} + {plus} is not a sum of numbers: {name} is {value}"))?;
        Ok(Value::String(sum.to_string()))
    }
}

/// Sets the members of `patch` in `target`, recursively. `null` removes a member (RFC 7396).
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(object) = target else { return };
    for (name, member) in members {
        if member.is_null() {
            object.shift_remove(name);
        } else {
            merge(object.entry(name.clone()).or_insert(Value::Null), member);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn variables() -> Variables {
        let mut variables = Variables::default();
        variables.set("rv", "41");
        variables.set("i", 3);
        variables.set("object", json!({"a": 1}));
        variables
    }

    #[test]
    fn placeholders_are_replaced_by_values() {
        let replace = |value: Value| variables().value(&value).unwrap();
        assert_eq!(replace(json!("{{rv}}")), json!("41"));
        assert_eq!(replace(json!("x-{{ i }}-{{rv+1}}")), json!("x-3-42"));
        assert_eq!(replace(json!({"{{i}}": ["{{object}}", 7]})), json!({"3": [{"a": 1}, 7]}));
        assert_eq!(replace(json!("{{i}}{{i}}")), json!("33"));
        assert_eq!(replace(json!("{{rv*3}}")), json!("414141"));
    }

    #[test]
    fn unknown_variable_is_an_error() {
        assert!(variables().text("{{nope}}").unwrap_err().contains("\"nope\" is not set"));
        assert!(variables().text("{{object+1}}").unwrap_err().contains("not a sum"));
        assert!(variables().text("{{rv").is_err());
        assert!(variables().text("{{rv*99999999999}}").unwrap_err().contains("not a text and a number"));
    }

    #[test]
    fn merge_sets_and_removes_members() {
        let mut target = json!({"a": {"b": 1, "c": 2}, "d": [1]});
        merge(&mut target, &json!({"a": {"b": null, "e": {"f": 1}}, "d": [2]}));
        assert_eq!(target, json!({"a": {"c": 2, "e": {"f": 1}}, "d": [2]}));
    }
}
