//! The members of a schema that Go's types for OpenAPI 3 omit (`kube-openapi/pkg/spec3`, `pkg/validation/spec`).
//!
//! Clients decode a document into those types and may encode it again. A document with omitted members would then
//! differ from its copy. kube-apiserver builds its documents with these types and serves no such member.

use listwatch_json::{Map, Value};

/// Members that Go omits if they are an empty string.
const TEXTS: [&str; 6] = ["id", "description", "format", "title", "pattern", "discriminator"];
/// Members that Go omits if they are false.
const FLAGS: [&str; 5] = ["nullable", "exclusiveMaximum", "exclusiveMinimum", "uniqueItems", "readOnly"];
/// Members that Go omits if they are an empty list.
const LISTS: [&str; 6] = ["type", "enum", "required", "allOf", "oneOf", "anyOf"];
/// Members that Go omits if they are an empty object.
const MAPS: [&str; 4] = ["properties", "patternProperties", "dependencies", "definitions"];
/// Members that Go omits if they are null.
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

/// Whether Go omits this member of a schema.
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

/// Removes the members that Go omits from a schema and from its nested schemas.
pub(super) fn normalize(schema: &mut Value) {
    // The stack is explicit, because definitions nest schemas deeply.
    let mut open = vec![schema];
    while let Some(schema) = open.pop() {
        let Value::Object(members) = schema else { continue };
        members.retain(|name, value| !is_unwritten(name, value));
        open.extend(parts(members));
    }
}

/// Returns the direct subschemas of a schema.
fn parts(members: &mut Map) -> impl Iterator<Item = &mut Value> {
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
    use listwatch_json::json;

    use super::*;

    #[test]
    fn normalize_removes_empty_members_at_every_depth_and_keeps_data() {
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
