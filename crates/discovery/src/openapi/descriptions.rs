//! The descriptions in the documents, which `kubectl explain` prints. The descriptions are short sentences of this
//! project, not Kubernetes' texts. Two files contain them, one description per line:
//!
//! ```text
//! descriptions.txt
//!   Pod: Containers that run together on one node.      a type
//!   PodSpec.containers: What runs.                      a field of that type
//!   .metadata: Name, labels, owners and so on.          a field of any type that has no line of its own
//! descriptions_by_name.txt
//!   .caBundle: CA certificates in PEM.                  the same, for all other names of fields
//! ```
//!
//! Every field of every built-in type has a description by one of the three forms.

use std::collections::HashMap;
use std::sync::OnceLock;

const TEXTS: [&str; 2] = [include_str!("descriptions.txt"), include_str!("descriptions_by_name.txt")];

fn all() -> impl Iterator<Item = &'static str> {
    TEXTS.iter().flat_map(|text| text.lines())
}

fn lines() -> &'static HashMap<&'static str, &'static str> {
    static LINES: OnceLock<HashMap<&str, &str>> = OnceLock::new();
    LINES.get_or_init(|| all().filter_map(|line| line.split_once(": ")).collect())
}

/// The description of a type, by its name without package.
pub(super) fn of_type(name: &str) -> Option<&'static str> {
    lines().get(name).copied()
}

/// The description of a field.
pub(super) fn of_field(of: &str, name: &str) -> Option<&'static str> {
    let find = |key: String| lines().get(key.as_str()).copied();
    find(format!("{of}.{name}")).or_else(|| find(format!(".{name}")))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use listwatch_k8s_types::{self as types, Id, Type};

    use super::*;

    #[test]
    fn every_description_names_a_type_or_field_and_is_a_sentence() {
        let (mut types, mut fields) = (HashSet::new(), HashSet::new());
        let mut open: Vec<Id> = types::kinds().map(|(_, _, id)| id).collect();
        while let Some(id) = open.pop() {
            let name = id.message().name();
            for field in id.message().members() {
                fields.insert(format!("{name}.{}", field.name()));
                fields.insert(format!(".{}", field.name()));
                if let Type::Message(of) | Type::PropsOrArray(of) = field.of()
                    && types.insert(of as usize)
                {
                    open.push(of);
                }
            }
            fields.insert(name.to_owned());
        }
        for name in ["Patch", "Time", "MicroTime", "Quantity", "IntOrString", "FieldsV1", "RawExtension", "JSON"] {
            fields.insert(name.to_owned());
        }
        fields.extend([".apiVersion".to_owned(), ".kind".to_owned()]);
        let mut seen = HashSet::new();
        for line in all() {
            let (of, text) = line.split_once(": ").unwrap_or_else(|| panic!("no name in front: {line}"));
            assert!(fields.contains(of), "{of} is nothing that is served");
            assert!(seen.insert(of), "{of} is described twice");
            assert!(text.ends_with('.') && text.chars().next().is_some_and(char::is_uppercase), "no sentence: {line}");
        }
    }
}
