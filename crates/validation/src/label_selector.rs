//! Label selectors in objects (`matchLabels`, `matchExpressions`): parsed, matched and formatted
//! (`LabelSelectorAsSelector`).

use listwatch_json::{Map, Value};

/// A parsed label selector.
#[derive(Debug, Default)]
pub struct LabelSelector {
    /// The requirements of `matchLabels` and `matchExpressions`, in the order of the object.
    requirements: Vec<Requirement>,
    /// Whether a requirement has an unknown operator.
    broken: bool,
}

#[derive(Debug)]
struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equals,
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl LabelSelector {
    /// Parses a label selector.
    pub fn of(selector: &Map) -> Self {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut read = LabelSelector::default();
        for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            read.equal(key.as_str().to_owned(), text(Some(value)));
        }
        for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let values = expression.get("values").and_then(Value::as_array).into_iter().flatten();
            let values = values.map(|value| text(Some(value))).collect();
            read.expression(text(expression.get("key")), &text(expression.get("operator")), values);
        }
        read
    }

    /// Adds the requirement that a label has a value.
    pub fn equal(&mut self, key: String, value: String) {
        self.requirements.push(Requirement { key, operator: Operator::Equals, values: vec![value] });
    }

    /// Adds the requirement of an item of `matchExpressions`.
    pub fn expression(&mut self, key: String, operator: &str, values: Vec<String>) {
        let operator = match operator {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            _ => {
                self.broken = true;
                return;
            }
        };
        self.requirements.push(Requirement { key, operator, values });
    }

    /// True if the selector matches these labels. An empty selector matches everything. `None` if
    /// an operator is unknown.
    pub fn selects(&self, labels: &Map) -> Option<bool> {
        let all = self.requirements.iter().all(|requirement| {
            let value = labels.get(&requirement.key).map(|value| value.as_str().unwrap_or_default());
            let listed = value.is_some_and(|value| requirement.values.iter().any(|wanted| wanted == value));
            match requirement.operator {
                Operator::Equals | Operator::In => listed,
                Operator::NotIn => !listed,
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        });
        (!self.broken).then_some(all)
    }

    /// Formats the selector, sorted by key. `None` if an operator is unknown.
    pub fn text(&self) -> Option<String> {
        let mut terms: Vec<(&str, String)> = Vec::with_capacity(self.requirements.len());
        for Requirement { key, operator, values } in &self.requirements {
            let mut values: Vec<&str> = values.iter().map(String::as_str).collect();
            values.sort_unstable();
            let values = values.join(",");
            let term = match operator {
                Operator::Equals => format!("{key}={values}"),
                Operator::In => format!("{key} in ({values})"),
                Operator::NotIn => format!("{key} notin ({values})"),
                Operator::Exists => key.clone(),
                Operator::DoesNotExist => format!("!{key}"),
            };
            terms.push((key, term));
        }
        terms.sort_by_key(|(key, _)| *key);
        (!self.broken).then(|| terms.into_iter().map(|(_, term)| term).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    fn read(selector: &Value) -> LabelSelector {
        LabelSelector::of(selector.as_object().unwrap())
    }

    fn term(operator: &str, values: Value) -> Value {
        json!({"matchExpressions": [{"key": "a", "operator": operator, "values": values}]})
    }

    #[test]
    fn label_selector_matches_labels_by_its_requirements() {
        let labels = json!({"a": "1", "b": "2"});
        let check = |selector: Value, expected: Option<bool>| {
            assert_eq!(read(&selector).selects(labels.as_object().unwrap()), expected, "{selector}");
        };
        check(json!({}), Some(true));
        check(json!({"matchLabels": {"a": "1"}}), Some(true));
        check(json!({"matchLabels": {"a": "1", "b": "3"}}), Some(false));
        check(term("In", json!(["0", "1"])), Some(true));
        check(term("In", json!(["0"])), Some(false));
        check(term("NotIn", json!(["1"])), Some(false));
        check(term("NotIn", json!(["0"])), Some(true));
        check(term("Exists", json!([])), Some(true));
        check(term("DoesNotExist", json!([])), Some(false));
        check(term("Sounds", json!([])), None);
    }

    #[test]
    fn formatted_label_selector_is_sorted_by_key() {
        let check = |selector: Value, expected: Option<&str>| {
            assert_eq!(read(&selector).text().as_deref(), expected, "{selector}");
        };
        check(json!({}), Some(""));
        check(
            json!({"matchLabels": {"z": "1"}, "matchExpressions": [
                {"key": "c", "operator": "In", "values": ["y", "x"]}, {"key": "d", "operator": "NotIn", "values": ["x"]},
                {"key": "a", "operator": "Exists"}, {"key": "b", "operator": "DoesNotExist"}]}),
            Some("a,!b,c in (x,y),d notin (x),z=1"),
        );
        check(term("Sounds", json!([])), None);
    }
}
