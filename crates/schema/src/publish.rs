//! Converts schemas to OpenAPI, for `kubectl explain` and client-side validation. Source:
//! apiextensions-apiserver `pkg/controller/openapi/builder` and `v2`, Kubernetes 1.36.
//!
//! The input is the definition itself, because a compiled schema has no descriptions.

use listwatch_json::{Map, Value, json};

/// A version of OpenAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenApi {
    /// Swagger 2.0, without `nullable` and `anyOf`. kubectl rejects fields that a schema does not
    /// contain, so parts that preserve unknown fields have no type.
    V2,
    /// OpenAPI 3.0.
    V3,
}

impl OpenApi {
    fn object_meta(self) -> &'static str {
        match self {
            OpenApi::V2 => "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
            OpenApi::V3 => "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
        }
    }
}

/// The published schema of a kind. `schema` is the version's `openAPIV3Schema`, if any.
pub fn publish(schema: Option<&Value>, form: OpenApi, group: &str, version: &str, kind: &str) -> Value {
    let keeps_unknown = |schema: &Value| schema["x-kubernetes-preserve-unknown-fields"] == Value::Bool(true);
    let mut published = match schema.and_then(Value::as_object) {
        None => Map::from_iter([("type".to_owned(), "object".into())]),
        Some(_) if form == OpenApi::V2 && schema.is_some_and(keeps_unknown) => {
            Map::from_iter([("type".to_owned(), "object".into())])
        }
        Some(schema) => {
            let mut published = structural(schema, form);
            let properties = published.entry("properties").or_insert_with(|| json!({}));
            if let Some(properties) = properties.as_object_mut() {
                type_meta(properties, form);
            }
            published
        }
    };
    let gvk = json!([{"group": group, "version": version, "kind": kind}]);
    published.insert("x-kubernetes-group-version-kind", gvk);
    Value::Object(published)
}

/// The descriptions of `apiVersion`, `kind` and `metadata`, for custom and built-in kinds. Kubernetes' conformance tests
/// look for the first words of two of them (`test/e2e/apimachinery/crd_publish_openapi.go`).
pub const TYPE_META: [(&str, &str); 3] = [
    ("apiVersion", "APIVersion defines the group and version in which the object is written."),
    ("kind", "What the object is."),
    ("metadata", "Standard object's metadata: its name, labels, owners and so on."),
];

/// Adds the members of every object.
fn type_meta(properties: &mut Map, form: OpenApi) {
    for (name, description) in TYPE_META {
        let of = match name {
            "metadata" => json!({"description": description, "$ref": form.object_meta()}),
            _ => json!({"description": description, "type": "string"}),
        };
        properties.insert(name, of);
    }
}

/// The keywords that are published unchanged; below a junctor, the only ones.
const PLAIN: [&str; 30] = [
    "type",
    "description",
    "title",
    "default",
    "format",
    "nullable",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "enum",
    "maxProperties",
    "minProperties",
    "required",
    "externalDocs",
    "example",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
];

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => true,
    }
}

fn flag(schema: &Map, name: &str) -> bool {
    schema.get(name) == Some(&Value::Bool(true))
}

fn object<'v>(schema: &'v Map, name: &str) -> Option<&'v Map> {
    schema.get(name).and_then(Value::as_object)
}

fn structural(schema: &Map, form: OpenApi) -> Map {
    let mut out: Map = schema
        .iter()
        .filter(|(name, value)| PLAIN.contains(&name.as_str()) && (is_set(value) || name.as_str() == "default"))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if out.get("default").is_some_and(Value::is_null) {
        out.remove("default");
    }
    let preserves = flag(schema, "x-kubernetes-preserve-unknown-fields");
    let nullable = flag(schema, "nullable");
    let v2 = form == OpenApi::V2;
    let below = |value: &Value| match value.as_object() {
        Some(schema) => Value::Object(structural(schema, form)),
        None => value.clone(),
    };
    let hides = v2 && (preserves || nullable);
    if let Some(items) = schema.get("items").filter(|items| items.is_object() && !hides) {
        out.insert("items", below(items));
    }
    if let Some(properties) = object(schema, "properties").filter(|properties| !hides && !properties.is_empty()) {
        let properties = properties.iter().map(|(name, property)| (name.clone(), below(property)));
        out.insert("properties", Value::Object(properties.collect()));
    }
    if let Some(additional) = schema.get("additionalProperties").filter(|additional| !additional.is_null()) {
        out.insert("additionalProperties", below(additional));
    }
    if v2 {
        simplify(schema, &mut out, preserves, nullable);
    } else {
        junctors(schema, &mut out);
    }
    if flag(schema, "x-kubernetes-embedded-resource") && !(v2 && preserves) {
        let properties = out.entry("properties").or_insert_with(|| json!({}));
        if let Some(properties) = properties.as_object_mut() {
            type_meta(properties, form);
        }
        let required = out.entry("required").or_insert_with(|| json!([]));
        if let Some(required) = required.as_array_mut() {
            for name in ["kind", "apiVersion"] {
                if !required.iter().any(|known| known == name) {
                    required.push(name.into());
                }
            }
        }
    }
    out
}

/// Adapts a schema to OpenAPI v2, which has no `nullable`. Removes `nullable`, and `type` and `required` where they
/// would reject valid values.
fn simplify(schema: &Map, out: &mut Map, preserves: bool, nullable: bool) {
    let is = |kind: &str| schema.get("type").and_then(Value::as_str) == Some(kind);
    out.remove("nullable");
    if nullable || (is("array") && !out.contains_key("items")) || (preserves && is("object")) {
        out.remove("type");
    }
    let is_nullable =
        |schema: Option<&Value>| schema.and_then(Value::as_object).is_some_and(|schema| flag(schema, "nullable"));
    if let Some(required) = out.get_mut("required").and_then(Value::as_array_mut) {
        let properties = object(schema, "properties").filter(|_| !preserves && !nullable);
        required.retain(|name| !is_nullable(name.as_str().and_then(|name| properties?.get(name))));
        if required.is_empty() || is_nullable(schema.get("additionalProperties")) {
            out.remove("required");
        }
    }
}

fn junctors(schema: &Map, out: &mut Map) {
    for name in ["allOf", "anyOf", "oneOf"] {
        if let Some(branches) = schema.get(name).and_then(Value::as_array).filter(|branches| !branches.is_empty()) {
            out.insert(name, branches.iter().map(nested).collect());
        }
    }
    if let Some(not) = schema.get("not").filter(|not| not.is_object()) {
        out.insert("not", nested(not));
    }
    if !flag(schema, "x-kubernetes-int-or-string") {
        return;
    }
    // `x-kubernetes-int-or-string` is also expressed in OpenAPI's own keywords, unless the schema
    // does so.
    let either = json!([{"type": "integer"}, {"type": "string"}]);
    let first = out.get("allOf").and_then(|all_of| all_of.get(0)).and_then(|first| first.get("anyOf"));
    if out.get("anyOf") == Some(&either) || first == Some(&either) {
        return;
    }
    if out.contains_key("anyOf") {
        let all_of = out.entry("allOf").or_insert_with(|| json!([]));
        if let Some(all_of) = all_of.as_array_mut() {
            all_of.insert(0, json!({"anyOf": either}));
        }
    } else {
        out.insert("anyOf", either);
    }
}

/// Converts a branch of a junctor: only the keywords of [`PLAIN`], `items`, `properties` and nested
/// junctors.
fn nested(schema: &Value) -> Value {
    let Some(schema) = schema.as_object() else { return schema.clone() };
    let mut out: Map = schema
        .iter()
        .filter(|(name, value)| PLAIN.contains(&name.as_str()) && is_set(value))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if let Some(items) = schema.get("items").filter(|items| items.is_object()) {
        out.insert("items", nested(items));
    }
    if let Some(properties) = object(schema, "properties") {
        let properties = properties.iter().map(|(name, property)| (name.clone(), nested(property)));
        out.insert("properties", Value::Object(properties.collect()));
    }
    junctors(schema, &mut out);
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the published form of a field's schema.
    #[track_caller]
    fn check(field: Value, v3: Value, v2: Value) {
        let schema = json!({"type": "object", "properties": {"f": field}});
        let get = |form| publish(Some(&schema), form, "g", "v1", "A")["properties"]["f"].clone();
        assert_eq!((get(OpenApi::V3), get(OpenApi::V2)), (v3, v2));
    }

    #[test]
    fn openapi_contains_the_fields_of_the_schema() {
        let same = json!({"type": "string", "description": "x", "maxLength": 3, "default": "a"});
        check(same.clone(), same.clone(), same);
        check(json!({"type": "string", "nullable": true}), json!({"type": "string", "nullable": true}), json!({}));
        check(
            json!({"x-kubernetes-int-or-string": true}),
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
            json!({"x-kubernetes-int-or-string": true}),
        );
        check(
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}}),
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}}),
            json!({"x-kubernetes-preserve-unknown-fields": true}),
        );
        check(
            json!({"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "string", "nullable": true}, "b": {"type": "string"}}}),
            json!({"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "string", "nullable": true}, "b": {"type": "string"}}}),
            json!({"type": "object", "required": ["b"], "properties": {"a": {}, "b": {"type": "string"}}}),
        );
        check(
            json!({"type": "object", "oneOf": [{"required": ["a"]}], "properties": {"a": {"type": "string"}}}),
            json!({"type": "object", "oneOf": [{"required": ["a"]}], "properties": {"a": {"type": "string"}}}),
            json!({"type": "object", "properties": {"a": {"type": "string"}}}),
        );
        check(
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
        );
    }

    #[test]
    fn openapi_of_every_kind_has_type_and_metadata() {
        let published = publish(Some(&json!({"type": "object"})), OpenApi::V3, "g", "v1", "A");
        assert_eq!(published["properties"]["metadata"]["$ref"], OpenApi::V3.object_meta());
        assert_eq!(published["properties"]["kind"]["type"], "string");
        assert_eq!(published["x-kubernetes-group-version-kind"], json!([{"group": "g", "version": "v1", "kind": "A"}]));
        let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let published = publish(Some(&open), OpenApi::V2, "g", "v1", "A");
        assert_eq!(published.as_object().map(Map::len), Some(2), "kubectl would refuse what is not named");
        assert!(publish(None, OpenApi::V3, "g", "v1", "A").get("properties").is_none());
    }
}
