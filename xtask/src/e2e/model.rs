//! The expected objects of the server: the manifests, with every later change.
//!
//! Changes are written into the model value by value. The model therefore shares no code with the
//! server (patching, defaulting, conversion).

use std::collections::BTreeMap;

use serde_json::Value;

use crate::failure::{Failure, Outcome, fail};

/// The key of an object: kind, namespace (empty if cluster-scoped), name.
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
    /// Adds the objects of JSON documents, including those of Lists.
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

    /// Changes an existing object.
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

    /// Removes an existing object.
    pub(crate) fn remove(&mut self, kind: &str, namespace: &str, name: &str) -> Outcome<()> {
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        let removed = self.objects.remove(&key);
        removed.map(drop).ok_or_else(|| Failure::from(format!("the model has no {kind} {namespace}/{name}")))
    }

    /// The number of objects of each kind.
    pub(crate) fn kinds(&self) -> BTreeMap<&str, usize> {
        let mut kinds = BTreeMap::new();
        for (kind, ..) in self.objects.keys() {
            *kinds.entry(kind.as_str()).or_default() += 1;
        }
        kinds
    }
}

/// Lists the members of `wanted` that `found` lacks or contradicts. Members that the server adds
/// (uid, defaults, status) are ignored.
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
                    // Clients omit such fields or send them empty, with the same meaning.
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
    fn differences_name_missing_and_changed_members_but_no_additions() {
        let wanted = json!({"a": 1, "b": {"c": [1, {"d": 2}]}, "e": null, "f": {}});
        assert!(differences(&wanted, &json!({"a": 1, "b": {"c": [1, {"d": 2, "x": 0}]}, "y": 0})).is_empty());
        assert_eq!(
            differences(&wanted, &json!({"a": 2, "b": {"c": [1]}})),
            [".a is 2; wanted 1", ".b.c is [1]; wanted [1,{\"d\":2}]"]
        );
        assert_eq!(differences(&json!({"a": 1}), &json!({})), [".a is gone; wanted 1"]);
    }

    #[test]
    fn model_adds_objects_of_documents_and_lists() {
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
