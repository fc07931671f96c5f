//! The schemas of custom resources in version 2 of OpenAPI.
//!
//! Version 2 has no alternatives. kubectl's reader of version 2 cannot handle `nullable`, lists without items and
//! objects that are only partly described. Therefore kube-apiserver publishes a reduced schema. A client then accepts
//! more than the server, and never less.
//!
//! Sources: `pkg/controller/openapi/v2/conversion.go`, `buildKubeNative` and `addEmbeddedProperties` of
//! `pkg/controller/openapi/builder/builder.go`, and `pkg/apiserver/schema/kubeopenapi.go` of apiextensions-apiserver.

use listwatch_json::{Map, Value, json};

/// Members of a structural schema that are published unchanged, unless [`super::spec3::is_unwritten`] omits them.
const MEMBERS: [&str; 21] = [
    "default",
    "description",
    "enum",
    "example",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "externalDocs",
    "format",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "title",
    "uniqueItems",
    "required",
];
/// Extensions that are published if they are true.
const FLAGS: [&str; 2] = [EMBEDDED, "x-kubernetes-int-or-string"];
/// Extensions that are published if they are not empty.
const EXTENSIONS: [&str; 4] =
    ["x-kubernetes-list-map-keys", "x-kubernetes-list-type", "x-kubernetes-map-type", "x-kubernetes-validations"];

const EMBEDDED: &str = "x-kubernetes-embedded-resource";
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";

/// Whether a schema has an extension with the value true.
fn is_set(schema: &Value, extension: &str) -> bool {
    schema.get(extension) == Some(&Value::Bool(true))
}

fn is_nullable(schema: &Value) -> bool {
    is_set(schema, "nullable")
}

/// Whether the root of a schema accepts any members. An object of such a schema is published without properties,
/// because kubectl would reject members that are not in the properties.
pub(super) fn is_open(schema: &Value) -> bool {
    is_set(schema, PRESERVE)
}

/// Converts the schema of a definition. `metadata` is the schema of an embedded object's metadata, and `type_meta`
/// returns that of its `apiVersion` and `kind`.
///
/// The recursion is limited by the depth of JSON that the server decodes.
pub(super) fn convert(schema: &Value, metadata: &Value, type_meta: &impl Fn(&str) -> Value) -> Map {
    let mut out = Map::new();
    let Value::Object(members) = schema else { return out };
    let (nullable, preserves) = (is_nullable(schema), is_set(schema, PRESERVE));
    for (name, value) in members {
        let is_published = match name.as_str() {
            name if FLAGS.contains(&name) => *value == Value::Bool(true),
            name if EXTENSIONS.contains(&name) => !is_empty(value),
            name => MEMBERS.contains(&name) && !super::spec3::is_unwritten(name, value),
        };
        if is_published {
            out.insert(name.clone(), value.clone());
        }
    }
    if preserves {
        out.insert(PRESERVE, json!(true));
    }
    // An untyped value with items or properties breaks kubectl.
    let is_closed = !nullable && !preserves;
    let items = members.get("items").filter(|items| is_closed && items.is_object());
    if let Some(items) = items {
        out.insert("items", Value::Object(convert(items, metadata, type_meta)));
    }
    let kind = members.get("type").and_then(Value::as_str).filter(|kind| !kind.is_empty());
    let lacks_items = kind == Some("array") && items.is_none();
    let is_open_object = kind == Some("object") && preserves;
    if let Some(kind) = kind.filter(|_| !nullable && !lacks_items && !is_open_object) {
        out.insert("type", json!(kind));
    }
    if let Some(Value::Object(properties)) = members.get("properties").filter(|_| is_closed) {
        if let Some(Value::Array(required)) = out.get_mut("required") {
            required.retain(|name| !name.as_str().and_then(|name| properties.get(name)).is_some_and(is_nullable));
            if required.is_empty() {
                out.shift_remove("required");
            }
        }
        if !properties.is_empty() {
            let converted = properties
                .iter()
                .map(|(name, property)| (name.clone(), Value::Object(convert(property, metadata, type_meta))));
            out.insert("properties", Value::Object(converted.collect()));
        }
    }
    match members.get("additionalProperties") {
        Some(values @ Value::Object(_)) => {
            if is_nullable(values) {
                out.shift_remove("required");
            }
            let values = convert(values, metadata, type_meta);
            out.insert("additionalProperties", Value::Object(values));
        }
        Some(Value::Bool(allowed)) => {
            out.insert("additionalProperties", json!(allowed));
        }
        _ => {}
    }
    if is_set(schema, EMBEDDED) && !preserves {
        embed(&mut out, metadata, type_meta);
    }
    out
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Adds the metadata of an embedded object.
fn embed(schema: &mut Map, metadata: &Value, type_meta: &impl Fn(&str) -> Value) {
    if let Value::Object(properties) = schema.entry("properties").or_insert_with(|| json!({})) {
        for name in ["apiVersion", "kind"] {
            properties.insert(name, type_meta(name));
        }
        properties.insert("metadata", metadata.clone());
    }
    if let Value::Array(required) = schema.entry("required").or_insert_with(|| json!([])) {
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|known| known == name) {
                required.push(json!(name));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schema: Value, expected: Value) {
        let metadata = json!({"$ref": "#/definitions/ObjectMeta"});
        let found = convert(&schema, &metadata, &|name| json!({"type": "string", "title": name}));
        assert_eq!(Value::Object(found), expected, "{schema}");
    }

    #[test]
    fn openapi_v2_omits_logical_combinations_and_unknown_members() {
        check(
            json!({
                "type": "object", "allOf": [{"required": ["a"]}], "anyOf": [{}], "oneOf": [{}], "not": {}, "id": "x",
                "$schema": "y", "definitions": {}, "nullable": false, "description": "", "required": ["a"],
                "properties": {
                    "a": {"type": "string", "pattern": "^a", "minLength": 0, "default": "", "enum": ["", null]},
                    "b": {"type": "integer", "format": "int32", "minimum": 0, "exclusiveMinimum": true, "title": "B"},
                    "c": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                },
                "x-kubernetes-validations": [{"rule": "true"}], "x-other": 1,
            }),
            json!({
                "type": "object", "required": ["a"],
                "properties": {
                    "a": {"type": "string", "pattern": "^a", "minLength": 0, "default": "", "enum": ["", null]},
                    "b": {"type": "integer", "format": "int32", "minimum": 0, "exclusiveMinimum": true, "title": "B"},
                    "c": {"x-kubernetes-int-or-string": true},
                },
                "x-kubernetes-validations": [{"rule": "true"}],
            }),
        );
    }

    #[test]
    fn v2_schema_of_a_nullable_value_has_no_type_or_content_and_is_not_required() {
        check(
            json!({
                "type": "object", "required": ["a", "b"],
                "properties": {
                    "a": {"type": "object", "nullable": true, "properties": {"x": {"type": "string"}}, "description": "d"},
                    "b": {"type": "array", "nullable": true, "items": {"type": "string"}},
                    "c": {"type": "object", "required": ["r"], "additionalProperties": {"type": "string", "nullable": true}},
                },
            }),
            json!({
                "type": "object",
                "properties": {
                    "a": {"description": "d"}, "b": {}, "c": {"type": "object", "additionalProperties": {}},
                },
            }),
        );
        check(
            json!({"required": ["a", "b"], "properties": {"a": {"nullable": true}, "b": {"type": "string"}}}),
            json!({"required": ["b"], "properties": {"a": {}, "b": {"type": "string"}}}),
        );
    }

    #[test]
    fn v2_omits_type_of_objects_that_preserve_unknown_fields_and_of_lists_without_items() {
        check(
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}}),
            json!({"x-kubernetes-preserve-unknown-fields": true}),
        );
        check(json!({"type": "array"}), json!({}));
        check(
            json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]}),
            json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]}),
        );
        check(
            json!({"type": "object", "additionalProperties": true, "x-kubernetes-preserve-unknown-fields": false}),
            json!({"type": "object", "additionalProperties": true}),
        );
    }

    #[test]
    fn v2_embedded_object_has_type_and_metadata_unless_it_preserves_unknown_fields() {
        check(
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "required": ["kind"], "properties": {"spec": {"type": "object"}}}),
            json!({
                "type": "object", "x-kubernetes-embedded-resource": true, "required": ["kind", "apiVersion"],
                "properties": {
                    "spec": {"type": "object"},
                    "apiVersion": {"type": "string", "title": "apiVersion"},
                    "kind": {"type": "string", "title": "kind"},
                    "metadata": {"$ref": "#/definitions/ObjectMeta"},
                },
            }),
        );
        check(
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
            json!({"x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
        );
    }
}
