//! What Go's types for OpenAPI 3 (`kube-openapi/pkg/spec3`, `pkg/validation/spec`) write of a schema.
//!
//! Clients read a document into those types and may write it again: members that say nothing are not
//! written, so a document that has them differs from its own copy. kube-apiserver makes its documents with
//! these types, and serves no such member.

use serde_json::{Map, Value};

/// Members that are not written when they are an empty string.
const TEXTS: [&str; 6] = ["id", "description", "format", "title", "pattern", "discriminator"];
/// Members that are not written when they are false.
const FLAGS: [&str; 5] = ["nullable", "exclusiveMaximum", "exclusiveMinimum", "uniqueItems", "readOnly"];
/// Members that are not written when they are an empty list.
const LISTS: [&str; 6] = ["type", "enum", "required", "allOf", "oneOf", "anyOf"];
/// Members that are not written when they are an empty object.
const MAPS: [&str; 4] = ["properties", "patternProperties", "dependencies", "definitions"];
/// Members that are not written when they are null.
const NULLABLE: [&str; 15] = [
    "default",
    "example",
    "maximum",
    "minimum",
    "maxLength",
    "minLength",
    "maxItems",
    "minItems",
    "multipleOf",
    "maxProperties",
    "minProperties",
    "items",
    "not",
    "additionalProperties",
    "additionalItems",
];

/// Is this member of a schema one that Go does not write?
pub(super) fn is_unwritten(name: &str, value: &Value) -> bool {
    match value {
        Value::Null => [&TEXTS[..], &FLAGS, &LISTS, &MAPS, &NULLABLE].iter().any(|members| members.contains(&name)),
        Value::String(text) => text.is_empty() && TEXTS.contains(&name),
        Value::Bool(flag) => !flag && FLAGS.contains(&name),
        Value::Array(items) => items.is_empty() && LISTS.contains(&name),
        Value::Object(members) => members.is_empty() && MAPS.contains(&name),
        Value::Number(_) => false,
    }
}

/// Takes the members out of a schema that Go would not write, and out of the schemas in it.
pub(super) fn normalize(schema: &mut Value) {
    // An explicit stack: definitions nest schemas deeply.
    let mut open = vec![schema];
    while let Some(schema) = open.pop() {
        let Value::Object(members) = schema else { continue };
        members.retain(|name, value| !is_unwritten(name, value));
        open.extend(parts(members));
    }
}

/// The schemas in a schema.
fn parts(members: &mut Map<String, Value>) -> impl Iterator<Item = &mut Value> {
    members.iter_mut().flat_map(|(name, value)| -> Vec<&mut Value> {
        match (name.as_str(), value) {
            ("properties" | "patternProperties" | "definitions", Value::Object(named)) => named.values_mut().collect(),
            ("allOf" | "oneOf" | "anyOf" | "items", Value::Array(listed)) => listed.iter_mut().collect(),
            ("items" | "not" | "additionalProperties" | "additionalItems", one @ Value::Object(_)) => vec![one],
            _ => Vec::new(),
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_that_say_nothing_are_dropped_at_every_depth_and_data_is_kept() {
        let mut schema = json!({
            "type": "object", "required": [], "description": "", "nullable": false, "default": {"required": []},
            "x-kubernetes-preserve-unknown-fields": false,
            "properties": {
                "required": {"type": "object", "properties": {}, "additionalProperties": {"title": "", "items": {}}},
                "list": {"type": "array", "default": [], "enum": [[], ""], "items": {"allOf": [], "not": {"anyOf": []}}},
                "open": {"additionalProperties": true, "minimum": 0, "default": false, "items": null},
                "none": {},
            },
            "oneOf": [{"required": ["a"], "patternProperties": {}}],
        });
        normalize(&mut schema);
        assert_eq!(
            schema,
            json!({
                "type": "object", "default": {"required": []}, "x-kubernetes-preserve-unknown-fields": false,
                "properties": {
                    "required": {"type": "object", "additionalProperties": {"items": {}}},
                    "list": {"type": "array", "default": [], "enum": [[], ""], "items": {"not": {}}},
                    "open": {"additionalProperties": true, "minimum": 0, "default": false},
                    "none": {},
                },
                "oneOf": [{"required": ["a"]}],
            })
        );
    }
}
