//! What the server ought to hold: the manifests, and every change that was asked for since.
//!
//! The changes are made to the model by hand, value by value, so that they do not depend on any
//! code that the server has, too (patching, defaulting, conversion).

use std::collections::BTreeMap;

use serde_json::Value;

use crate::failure::{Failure, Outcome, fail};

/// Which object: kind, namespace (empty for none), name.
pub(crate) type Key = (String, String, String);

/// Objects by key.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) objects: BTreeMap<Key, Value>,
}

/// The key of an object.
pub(crate) fn key(object: &Value) -> Key {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&object["kind"]), text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]))
}

impl Model {
    /// Takes objects over, from one document after the other or from Lists.
    pub(crate) fn add(&mut self, documents: &str) -> Outcome<usize> {
        let before = self.objects.len();
        for document in serde_json::Deserializer::from_str(documents).into_iter::<Value>() {
            let document = document?;
            match document["items"].as_array() {
                Some(items) => items.iter().for_each(|item| drop(self.objects.insert(key(item), item.clone()))),
                None => drop(self.objects.insert(key(&document), document)),
            }
        }
        Ok(self.objects.len() - before)
    }

    /// Changes one object that is there.
    pub(crate) fn edit(
        &mut self,
        kind: &str,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> Outcome<()> {
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        match self.objects.get_mut(&key) {
            Some(object) => change(object),
            None => fail!("the model has no {kind} {namespace}/{name}"),
        }
        Ok(())
    }

    /// Forgets one object that is there.
    pub(crate) fn remove(&mut self, kind: &str, namespace: &str, name: &str) -> Outcome<()> {
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        let removed = self.objects.remove(&key);
        removed.map(drop).ok_or_else(|| Failure::from(format!("the model has no {kind} {namespace}/{name}")))
    }

    /// How many objects of each kind there are.
    pub(crate) fn kinds(&self) -> BTreeMap<&str, usize> {
        let mut kinds = BTreeMap::new();
        for (kind, ..) in self.objects.keys() {
            *kinds.entry(kind.as_str()).or_default() += 1;
        }
        kinds
    }
}

/// Where `found` lacks or contradicts something that was asked for. What the server adds beside it
/// (uid, defaults, status) is its own business.
pub(crate) fn differences(wanted: &Value, found: &Value) -> Vec<String> {
    let mut differences = Vec::new();
    compare(wanted, found, "", &mut differences);
    differences
}

fn compare(wanted: &Value, found: &Value, at: &str, differences: &mut Vec<String>) {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            for (name, value) in wanted {
                match found.get(name) {
                    Some(other) => compare(value, other, &format!("{at}.{name}"), differences),
                    // Clients leave such fields out or send them empty; both ask for nothing.
                    None if value.is_null() || value == &serde_json::json!({}) => {}
                    None => differences.push(format!("{at}.{name} is gone; wanted {value}")),
                }
            }
        }
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            for (index, (value, other)) in wanted.iter().zip(found).enumerate() {
                compare(value, other, &format!("{at}[{index}]"), differences);
            }
        }
        (wanted, found) if wanted == found => {}
        (wanted, found) => differences.push(format!("{at} is {found}; wanted {wanted}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{Model, differences};
    use serde_json::json;

    #[test]
    fn what_was_asked_for_must_be_there_and_more_may_be() {
        let wanted = json!({"a": 1, "b": {"c": [1, {"d": 2}]}, "e": null, "f": {}});
        assert!(differences(&wanted, &json!({"a": 1, "b": {"c": [1, {"d": 2, "x": 0}]}, "y": 0})).is_empty());
        assert_eq!(
            differences(&wanted, &json!({"a": 2, "b": {"c": [1]}})),
            [".a is 2; wanted 1", ".b.c is [1]; wanted [1,{\"d\":2}]"]
        );
        assert_eq!(differences(&json!({"a": 1}), &json!({})), [".a is gone; wanted 1"]);
    }

    #[test]
    fn documents_and_lists_are_taken_apart() {
        let mut model = Model::default();
        let pod = json!({"kind": "Pod", "metadata": {"name": "a", "namespace": "n"}});
        let list = json!({"kind": "List", "items": [{"kind": "Node", "metadata": {"name": "b"}}]});
        assert_eq!(model.add(&format!("{pod}\n{list}")), Ok(2));
        assert_eq!(model.kinds().into_iter().collect::<Vec<_>>(), [("Node", 1), ("Pod", 1)]);
        model.edit("Pod", "n", "a", |pod| pod["spec"] = json!(1)).unwrap();
        model.remove("Node", "", "b").unwrap();
        assert!(model.remove("Node", "", "b").is_err());
        assert_eq!(model.objects.len(), 1);
    }
}
