//! Finds the atomic parts of a value (`findAtomics` in `admission/plugin/policy/mutating/patch/smd.go`).

use listwatch_json::Value;

use super::{Form, form};
use crate::path::PathElement;
use crate::typing::{Relation, Schema, TypeId};

/// Adds the paths of all atomic lists, maps and structs in a value.
pub(super) fn find(schema: &Schema, of: TypeId, value: &Value, path: &mut String, found: &mut Vec<String>) {
    let at = path.len();
    match (form(schema.get(of), Some(value)), value) {
        (Form::Map(map), Value::Object(members)) => {
            if map.is_atomic() {
                found.push(path.clone());
            }
            for (name, value) in members {
                // Only named fields are searched.
                let Some(field) = map.field(name) else { continue };
                path.push_str(&PathElement::field(name).to_string());
                find(schema, field.of, value, path, found);
                path.truncate(at);
            }
        }
        (Form::List(list), Value::Array(items)) => {
            if list.relation == Relation::Atomic {
                found.push(path.clone());
            }
            for (position, item) in items.iter().enumerate() {
                let position = i64::try_from(position).unwrap_or(i64::MAX);
                path.push_str(&PathElement::Index(position).to_string());
                find(schema, list.items, item, path, found);
                path.truncate(at);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use crate::Typing;

    #[test]
    fn atomic_lists_maps_and_structs_are_found_by_their_paths() {
        let typing = Typing::of_built_in("apps/v1", "Deployment").unwrap();
        for (value, expected) in [
            (json!({"spec": {"replicas": 1}}), vec![]),
            (json!({"metadata": {"labels": {"a": "b"}}}), vec![]),
            (json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}), vec![".spec.selector"]),
            (
                json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "args": ["x"]}]}}}}),
                vec![".spec.template.spec.containers[0].args"],
            ),
        ] {
            assert_eq!(typing.atomics(&value), expected, "{value}");
        }
    }
}
