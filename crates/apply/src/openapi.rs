//! Converts an OpenAPI v3 schema to a [`Typing`]. The conversion reads `type`, `properties`,
//! `additionalProperties`, `items` and the `x-kubernetes-` extensions for merging. Validation rules
//! are ignored.
//!
//! Sources: `kube-openapi/pkg/schemaconv`, and for custom resources the schemas published by
//! `apiextensions-apiserver/pkg/controller/openapi/builder`.

use std::borrow::Cow;

use listwatch_json::{JsonString, Value};

use crate::builtin;
use crate::typing::{Field, Map, Relation, Scalar, Schema, SchemaBuilder, Type, TypeId, Typing};

/// The maximum nesting of schemas. Deeper types are deduced from values.
const DEPTH_MAX: usize = 128;

impl Typing {
    /// The typing of a custom resource with this structural schema
    /// (`spec.versions[].schema.openAPIV3Schema` of its definition, with defaults). `kind`,
    /// `apiVersion` and `metadata` have the types of every object, independently of the schema.
    ///
    /// `preserve_unknown_fields` is the definition's flag; the types of unknown fields are then
    /// deduced from values.
    ///
    /// This function never fails. For unsupported parts of a schema, the types are deduced from values.
    pub fn of_custom_resource(schema: &Value, preserve_unknown_fields: bool) -> Typing {
        let mut converter = Converter { builder: SchemaBuilder::new(), object_meta: None };
        let root = converter.embedded(schema, preserve_unknown_fields, 0);
        Typing::new(converter.builder.build(), root)
    }
}

struct Converter {
    builder: SchemaBuilder,
    /// The type of `metadata`, created on first use.
    object_meta: Option<TypeId>,
}

impl Converter {
    /// The type of a whole object: the schema's members and those of every object.
    fn embedded(&mut self, schema: &Value, preserve: bool, depth: usize) -> TypeId {
        let preserve = preserve || extension(schema, "preserve-unknown-fields") == Some(&Value::Bool(true));
        let text = self.builder.add(Type::scalar(Scalar::Text));
        let metadata = self.object_meta();
        let field = |name: &'static str, of: TypeId| Field::new(name, of);
        // The first of two fields with one name counts.
        let mut fields = vec![field("apiVersion", text), field("kind", text), field("metadata", metadata)];
        fields.extend(self.fields(schema, preserve, depth));
        let rest = self.rest(schema, preserve, depth);
        let atomic = is_atomic_map(schema);
        self.builder.add(Type::map(Map::new(fields, rest, atomic)))
    }

    fn of(&mut self, schema: &Value, preserve: bool, depth: usize) -> TypeId {
        if depth > DEPTH_MAX {
            return Schema::DEDUCED;
        }
        if extension(schema, "embedded-resource") == Some(&Value::Bool(true)) {
            return self.embedded(schema, preserve, depth);
        }
        let preserve = preserve || extension(schema, "preserve-unknown-fields") == Some(&Value::Bool(true));
        let text = |name: &str| schema.get(name).and_then(Value::as_str).unwrap_or_default();
        let of = match text("type") {
            "object" => self.map(schema, preserve, depth),
            "array" => self.list(schema, preserve, depth),
            "integer" | "number" => Type::scalar(Scalar::Number),
            "boolean" => Type::scalar(Scalar::Flag),
            "string" if matches!(text("format"), "" | "byte") => Type::scalar(Scalar::Text),
            "string" => Type::scalar(Scalar::Any),
            // A schema without a type allows any form.
            _ => Type {
                scalar: Some(Scalar::Any),
                list: self.list(schema, preserve, depth).list,
                map: self.map(schema, preserve, depth).map,
            },
        };
        self.builder.add(of)
    }

    fn map(&mut self, schema: &Value, preserve: bool, depth: usize) -> Type {
        let fields = self.fields(schema, preserve, depth);
        let rest = self.rest(schema, preserve, depth);
        Type::map(Map::new(fields, rest, is_atomic_map(schema)))
    }

    fn fields(&mut self, schema: &Value, preserve: bool, depth: usize) -> Vec<Field> {
        let Some(Value::Object(properties)) = schema.get("properties") else { return Vec::new() };
        let field = |(name, property): (&JsonString, &Value)| Field {
            default: property.get("default").cloned(),
            ..Field::new(name.as_str().to_owned(), self.of(property, preserve, depth + 1))
        };
        properties.iter().map(field).collect()
    }

    /// The type of members that are not in `properties`.
    fn rest(&mut self, schema: &Value, preserve: bool, depth: usize) -> Option<TypeId> {
        match schema.get("additionalProperties") {
            Some(more @ Value::Object(_)) => Some(self.of(more, preserve, depth + 1)),
            Some(Value::Bool(false)) => None,
            Some(Value::Bool(true)) => Some(Schema::DEDUCED),
            _ => {
                let named = schema.get("properties").and_then(Value::as_object).is_some_and(|named| !named.is_empty());
                (preserve || !named).then_some(Schema::DEDUCED)
            }
        }
    }

    fn list(&mut self, schema: &Value, preserve: bool, depth: usize) -> Type {
        let items = match schema.get("items") {
            Some(items @ Value::Object(_)) => self.of(items, preserve, depth + 1),
            _ => Schema::UNTYPED,
        };
        let keys = extension(schema, "list-map-keys").and_then(Value::as_array);
        let keys = keys.map(|keys| keys.iter().filter_map(|key| Some(Cow::Owned(key.as_str()?.to_owned()))).collect());
        let relation = match extension(schema, "list-type").and_then(Value::as_str) {
            Some("set") => Relation::Set,
            Some("map") => keys.map_or(Relation::Set, Relation::Keyed),
            _ => Relation::Atomic,
        };
        Type::list(relation, items)
    }

    /// The type of `metadata`.
    fn object_meta(&mut self) -> TypeId {
        if let Some(id) = self.object_meta {
            return id;
        }
        let id = builtin::object_meta(&mut self.builder);
        self.object_meta = Some(id);
        id
    }
}

/// The extension `x-kubernetes-<name>` of a schema.
fn extension<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    let members = schema.as_object()?;
    members.iter().find(|(member, _)| member.strip_prefix("x-kubernetes-") == Some(name)).map(|(_, value)| value)
}

fn is_atomic_map(schema: &Value) -> bool {
    extension(schema, "map-type").and_then(Value::as_str) == Some("atomic")
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    /// The type at a path of names; `[]` stands for the items of a list.
    fn at<'a>(typing: &'a Typing, path: &str) -> &'a Type {
        let schema = typing.schema();
        path.split('.').filter(|step| !step.is_empty()).fold(schema.get(typing.root()), |of, step| match step {
            "[]" => schema.get(of.list.as_ref().unwrap().items),
            name => schema.get(of.map.as_ref().unwrap().member(name).unwrap()),
        })
    }

    #[test]
    fn custom_resource_schema_extensions_determine_merging() {
        let schema = json!({"type": "object", "properties": {
            "metadata": {"type": "object"},
            "spec": {"type": "object", "properties": {
                "list": {"type": "array", "items": {"type": "string"}},
                "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                "map": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"a": {"type": "string", "default": "x"}, "b": {"type": "integer"}}},
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["a", "b"],
                },
                "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "number"}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "boolean"}}},
                "either": {"x-kubernetes-int-or-string": true},
                "pod": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
            }},
        }});
        let typing = Typing::of_custom_resource(&schema, false);
        let relation = |path: &str| at(&typing, path).list.as_ref().unwrap().relation.clone();
        assert_eq!(relation("spec.list"), Relation::Atomic);
        assert_eq!(relation("spec.set"), Relation::Set);
        assert_eq!(relation("spec.map"), Relation::Keyed(vec!["a".into(), "b".into()]));
        assert_eq!(relation("metadata.finalizers"), Relation::Set, "metadata is as everywhere");
        let item = at(&typing, "spec.map.[]").map.as_ref().unwrap();
        assert_eq!(item.field("a").unwrap().default, Some(json!("x")));
        assert!(at(&typing, "spec.whole").map.as_ref().unwrap().is_atomic());
        assert_eq!(at(&typing, "spec.whole.any").scalar, Some(Scalar::Number));
        assert_eq!(at(&typing, "spec").map.as_ref().unwrap().member("unknown"), None);
        assert_eq!(at(&typing, "spec.free").map.as_ref().unwrap().member("unknown"), Some(Schema::DEDUCED));
        assert_eq!(at(&typing, "spec.free.a").scalar, Some(Scalar::Flag));
        let either = at(&typing, "spec.either");
        assert!(either.scalar == Some(Scalar::Any) && either.list.is_some() && either.map.is_some());
        assert_eq!(at(&typing, "spec.pod.metadata.labels.x").scalar, Some(Scalar::Text));
        assert_eq!(at(&typing, "spec.pod").map.as_ref().unwrap().member("spec"), Some(Schema::DEDUCED));
        let loose = Typing::of_custom_resource(&schema, true);
        assert_eq!(at(&loose, "spec").map.as_ref().unwrap().member("unknown"), Some(Schema::DEDUCED));
    }

    #[test]
    fn empty_schema_gets_the_deduced_type() {
        for schema in [json!({}), json!({"type": "object"}), json!(null), json!({"type": 7})] {
            let typing = Typing::of_custom_resource(&schema, false);
            assert_eq!(at(&typing, "").map.as_ref().unwrap().member("spec"), Some(Schema::DEDUCED));
            assert_eq!(at(&typing, "metadata.labels.x").scalar, Some(Scalar::Text));
        }
    }

    #[test]
    fn schema_beyond_the_depth_limit_gets_the_deduced_type() {
        let mut schema = json!({"type": "string"});
        for _ in 0..2 * DEPTH_MAX {
            schema = json!({"properties": {"a": schema}});
        }
        let typing = Typing::of_custom_resource(&schema, false);
        let path = vec!["a"; 2 * DEPTH_MAX - 1].join(".");
        assert_eq!(at(&typing, &path), typing.schema().get(Schema::DEDUCED));
    }
}
