//! The models of a document, and their schemas in both versions of OpenAPI.
//!
//! The schema of a built-in type is derived from [`listwatch_k8s_types`]. A document contains only the models that its
//! kinds reference.

use std::collections::{BTreeMap, HashSet};

use listwatch_json::{Map, Value, json};
use listwatch_k8s_types::{self as types, Field, Id, Shape, Type};

use super::paths::Kind;
use super::{CUSTOM_BYTES_MAX, descriptions, spec3, structural_v2};
use listwatch_registry::Resource;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const RAW_EXTENSION: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";
const EXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";

/// The model name of a kind of `meta.k8s.io`.
pub(super) fn meta(kind: &str) -> String {
    format!("{META}.{kind}")
}

/// The model name of a kind. The prefix is Go's package path for built-in kinds, and the reversed domain of the group
/// for custom resources.
pub(super) fn model_name(kind: &Kind, custom: bool) -> String {
    let Kind { group, version, kind } = kind;
    if custom {
        let domain: Vec<&str> = group.rsplit('.').collect();
        return format!("{}.{version}.{kind}", domain.join("."));
    }
    let package = match group.as_str() {
        "" => "io.k8s.api.core",
        "apiextensions.k8s.io" => "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions",
        "apiregistration.k8s.io" => "io.k8s.kube-aggregator.pkg.apis.apiregistration",
        group => {
            let short = group.split('.').next().unwrap_or(group);
            return format!("io.k8s.api.{short}.{version}.{kind}");
        }
    };
    format!("{package}.{version}.{kind}")
}

/// The extension that links a model or an operation to a kind.
pub(super) const KIND_EXTENSION: &str = "x-kubernetes-group-version-kind";

pub(super) fn kind_value(kind: &Kind) -> Value {
    json!({"group": kind.group, "kind": kind.kind, "version": kind.version})
}

/// The OpenAPI version of a schema.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// OpenAPI 2.0: no defaults and no alternatives; a reference may have siblings.
    Two,
    /// OpenAPI 3.0.
    Three,
}

impl Version {
    /// Returns a reference to a model.
    pub(super) fn reference(self, model: &str) -> Value {
        match self {
            Version::Two => json!({"$ref": format!("#/definitions/{model}")}),
            Version::Three => json!({"$ref": format!("#/components/schemas/{model}")}),
        }
    }
}

/// The models of a document that is being built.
pub(super) struct Models {
    version: Version,
    /// The group versions of the document. Options such as `DeleteOptions` are also kinds of these group versions.
    group_versions: Vec<(String, String)>,
    made: BTreeMap<String, Value>,
    open: Vec<Id>,
    seen: HashSet<u16>,
    /// The size of the custom schemas in version 2, in bytes of JSON.
    custom_bytes: usize,
}

impl Models {
    /// Starts a document of these group versions.
    pub(super) fn new(version: Version, group_versions: Vec<(String, String)>) -> Self {
        Models {
            version,
            group_versions,
            made: BTreeMap::new(),
            open: Vec::new(),
            seen: HashSet::new(),
            custom_bytes: 0,
        }
    }

    /// Adds the model of a kind and returns its name. `resource` is the resource whose path serves the kind.
    pub(super) fn of_kind(&mut self, kind: &Kind, resource: &Resource) -> String {
        // The bodies of a subresource can have a kind of another group.
        let own = kind.kind == resource.kind && kind.group == resource.group;
        let custom = resource.custom && own;
        if let (false, Some(id)) = (custom, message(&kind.group, &kind.version, &kind.kind)) {
            return self.of_message(id);
        }
        let model = model_name(kind, custom);
        if !self.made.contains_key(&model) {
            let schema = match self.version {
                Version::Two if custom => self.custom_v2(kind, resource),
                // A schema without a type accepts any value. For a schema with a kind, kubectl would look for merge
                // keys.
                Version::Two => json!({"description": format!("An object of kind {}.", kind.kind)}),
                Version::Three => match resource.openapi_schema().filter(|_| own) {
                    None if custom => {
                        // Properties would say that there are no others.
                        let mut schema = object(json!({"type": "object"}));
                        schema.insert(KIND_EXTENSION, json!([kind_value(kind)]));
                        Value::Object(schema)
                    }
                    brought => self.open_kind(kind, brought.as_deref()),
                },
            };
            self.made.insert(model.clone(), schema);
        }
        model
    }

    /// Adds the model of a resource's lists and returns its name.
    pub(super) fn of_list(&mut self, resource: &Resource) -> String {
        let kind =
            Kind { group: resource.group.clone(), version: resource.version.clone(), kind: resource.kind.clone() };
        if let (false, Some(id)) = (resource.custom, message(&kind.group, &kind.version, &resource.list_kind)) {
            return self.of_message(id);
        }
        let item = self.of_kind(&kind, resource);
        let model = item[..item.len() - resource.kind.len()].to_owned() + &resource.list_kind;
        let list_meta = self.of_message(Id::MetaListMeta);
        if self.version == Version::Two {
            let schema = json!({
                "description": format!("{} is a list of {}", resource.list_kind, resource.kind),
                "type": "object",
                "required": ["items"],
                "properties": {
                    "apiVersion": type_meta("apiVersion"),
                    "kind": type_meta("kind"),
                    "metadata": self.version.reference(&list_meta),
                    "items": {"type": "array", "items": self.version.reference(&item)},
                },
                KIND_EXTENSION: [{"group": resource.group, "kind": resource.list_kind, "version": resource.version}],
            });
            self.made.insert(model.clone(), schema);
            return model;
        }
        let schema = json!({
            "description": format!("A list of objects of kind {}.", resource.kind),
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": {"default": {}, "allOf": [self.version.reference(&list_meta)]},
                "items": {"type": "array", "items": {"default": {}, "allOf": [self.version.reference(&item)]}},
            },
            KIND_EXTENSION: [{"group": resource.group, "kind": resource.list_kind, "version": resource.version}],
        });
        self.made.insert(model.clone(), schema);
        model
    }

    /// Adds the model of a built-in type and returns its name.
    pub(super) fn of_message(&mut self, id: Id) -> String {
        if self.seen.insert(id as u16) {
            self.open.push(id);
        }
        id.message().model()
    }

    /// Adds the model of patch bodies and returns its name.
    pub(super) fn of_patch(&mut self) -> String {
        self.special(meta("Patch"), json!({"type": "object"}))
    }

    /// Returns all models, including those that other models reference.
    pub(super) fn finish(mut self) -> BTreeMap<String, Value> {
        while let Some(id) = self.open.pop() {
            let schema = self.message_schema(id);
            self.made.insert(id.message().model(), schema);
        }
        self.made
    }

    /// Returns the schema of a kind that is not built in: the metadata and the schema of its definition, or any
    /// members.
    fn open_kind(&mut self, kind: &Kind, own: Option<&Value>) -> Value {
        let mut schema = match own {
            Some(own @ Value::Object(_)) => {
                let mut own = own.clone();
                // A definition may contain empty members.
                spec3::normalize(&mut own);
                own.as_object_mut().map(std::mem::take).unwrap_or_default()
            }
            _ => {
                let mut open = Map::new();
                open.insert("description", json!(format!("An object of kind {}.", kind.kind)));
                open.insert("x-kubernetes-preserve-unknown-fields", json!(true));
                open
            }
        };
        schema.insert("type", json!("object"));
        let object_meta = self.of_message(Id::MetaObjectMeta);
        let properties = schema.entry("properties").or_insert_with(|| json!({}));
        if let Value::Object(properties) = properties {
            for name in ["apiVersion", "kind"] {
                properties.insert(name, type_meta(name));
            }
            let metadata = json!({
                "description": descriptions::of_field(&kind.kind, "metadata").unwrap_or("Metadata of the object."),
                "default": {},
                "allOf": [self.version.reference(&object_meta)],
            });
            properties.insert("metadata", metadata);
        }
        schema.insert(KIND_EXTENSION, json!([kind_value(kind)]));
        Value::Object(schema)
    }

    /// Returns the schema of a custom resource in version 2. The schema has no properties if the definition preserves
    /// unknown fields or has no schema, or if the schema accepts any members or exceeds [`CUSTOM_BYTES_MAX`].
    fn custom_v2(&mut self, kind: &Kind, resource: &Resource) -> Value {
        let own = if resource.preserves_unknown_fields() { None } else { resource.openapi_schema() };
        let own = own.filter(|own| own.is_object() && !structural_v2::is_open(own));
        let converted = own.and_then(|own| {
            let mut metadata = self.version.reference(&meta("ObjectMeta"));
            metadata["description"] =
                json!(descriptions::of_field(&kind.kind, "metadata").unwrap_or("Metadata of the object."));
            let mut schema = structural_v2::convert(&own, &metadata, &type_meta);
            if let Value::Object(properties) = schema.entry("properties").or_insert_with(|| json!({})) {
                for name in ["apiVersion", "kind"] {
                    properties.insert(name, type_meta(name));
                }
                properties.insert("metadata", metadata);
            }
            let bytes = serde_json::to_vec(&schema).map_or(usize::MAX, |json| json.len());
            let total = self.custom_bytes.saturating_add(bytes);
            (total <= CUSTOM_BYTES_MAX).then(|| {
                self.custom_bytes = total;
                schema
            })
        });
        let mut schema = match converted {
            Some(schema) => {
                self.of_message(Id::MetaObjectMeta);
                schema
            }
            None => object(json!({"type": "object"})),
        };
        schema.insert(KIND_EXTENSION, json!([kind_value(kind)]));
        let selectable = resource.shape.fields().iter().filter(|field| resource.shape.is_selectable(&field.label));
        let selectable: Vec<Value> = selectable.map(|field| json!({"fieldPath": field.label})).collect();
        if !selectable.is_empty() {
            schema.insert("x-kubernetes-selectable-fields", Value::Array(selectable));
        }
        Value::Object(schema)
    }

    fn message_schema(&mut self, id: Id) -> Value {
        let message = id.message();
        let name = message.name();
        let mut schema = Map::new();
        if let Some(text) = descriptions::of_type(name) {
            schema.insert("description", json!(text));
        }
        schema.insert("type", json!("object"));
        let (mut properties, mut required) = (Map::new(), Vec::new());
        if message.is_object() {
            for name in ["apiVersion", "kind"] {
                properties.insert(name, type_meta(name));
            }
        }
        for field in message.members() {
            if field.is_required() {
                required.push(field.name());
            }
            let mut property = self.property(id, field);
            if let Some(text) = descriptions::of_field(name, field.name()) {
                property.insert("description", json!(text));
            }
            properties.insert(field.name().to_owned(), self.with_siblings(property));
        }
        if !properties.is_empty() {
            schema.insert("properties", Value::Object(properties));
        }
        if !required.is_empty() {
            schema.insert("required", json!(required));
        }
        if let Some(map_type) = message.map_type() {
            schema.insert("x-kubernetes-map-type", json!(map_type.as_str()));
        }
        let kinds = self.kinds(id);
        if !kinds.is_empty() {
            schema.insert(KIND_EXTENSION, Value::Array(kinds));
        }
        Value::Object(schema)
    }

    /// Returns the group version kinds of a type.
    fn kinds(&self, id: Id) -> Vec<Value> {
        let mut kinds = Vec::new();
        for (api_version, kind, _) in types::kinds().filter(|(_, _, of)| *of == id) {
            let value = |group: &str, version: &str| json!({"group": group, "kind": kind, "version": version});
            match api_version.split_once('/') {
                Some((group, version)) => kinds.push(value(group, version)),
                None if api_version.is_empty() => {
                    kinds.extend(self.group_versions.iter().map(|(group, version)| value(group, version)));
                }
                None => kinds.push(value("", api_version)),
            }
        }
        kinds
    }

    fn property(&mut self, id: Id, field: &Field) -> Map {
        let mut value = self.value(id, field.of());
        insert_values(&mut value, field.item_values());
        let mut property = match field.shape() {
            Shape::Repeated => object(json!({"type": "array", "items": value})),
            Shape::Map => object(json!({"type": "object", "additionalProperties": value})),
            Shape::One | Shape::Pointer | Shape::Inline => value,
        };
        insert_values(&mut property, field.values());
        let default = field.default_json().filter(|_| self.version == Version::Three);
        if let Some(default) = default.and_then(|default| serde_json::from_str(default).ok()) {
            property.insert("default", default);
        }
        let keys: Vec<&str> = field.map_keys().collect();
        let extensions = [
            ("list-map-keys", (!keys.is_empty()).then(|| json!(keys))),
            ("list-type", field.list_type().map(|of| json!(of.as_str()))),
            ("map-type", field.map_type().map(|of| json!(of.as_str()))),
            ("patch-merge-key", field.merge_key().map(|of| json!(of))),
            ("patch-strategy", field.patch_strategy().text().map(|of| json!(of))),
        ];
        for (name, value) in extensions {
            if let Some(value) = value {
                property.insert(format!("x-kubernetes-{name}"), value);
            }
        }
        property
    }

    /// Returns the schema of the value of a field, an item or a map.
    fn value(&mut self, id: Id, of: Type) -> Map {
        let model = match of {
            Type::String => return object(json!({"type": "string"})),
            Type::Bool => return object(json!({"type": "boolean"})),
            Type::Int32 => return object(json!({"type": "integer", "format": "int32"})),
            Type::Int64 => return object(json!({"type": "integer", "format": "int64"})),
            Type::Double => return object(json!({"type": "number", "format": "double"})),
            Type::Bytes => return object(json!({"type": "string", "format": "byte"})),
            Type::Strings => return object(json!({"type": "array", "items": {"type": "string"}})),
            Type::Message(of) => self.of_message(of),
            Type::Time => self.special(meta("Time"), json!({"type": "string", "format": "date-time"})),
            Type::MicroTime => self.special(meta("MicroTime"), json!({"type": "string", "format": "date-time"})),
            Type::Quantity => {
                let schema = match self.version {
                    Version::Two => json!({"type": "string"}),
                    Version::Three => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
                };
                self.special(QUANTITY.to_owned(), schema)
            }
            Type::IntOrString => {
                let schema = match self.version {
                    Version::Two => json!({"type": "string", "format": "int-or-string"}),
                    Version::Three => {
                        json!({"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"})
                    }
                };
                self.special(INT_OR_STRING.to_owned(), schema)
            }
            Type::Raw if matches!(id, Id::MetaManagedFieldsEntry) => {
                self.special(meta("FieldsV1"), json!({"type": "object"}))
            }
            Type::Raw if id.message().package() == EXTENSIONS => self.special(format!("{EXTENSIONS}.JSON"), json!({})),
            Type::Raw => self.special(RAW_EXTENSION.to_owned(), json!({"type": "object"})),
            Type::PropsOrArray(_) => self.special(format!("{EXTENSIONS}.JSONSchemaPropsOrArray"), json!({})),
            Type::PropsOrBool(_) => self.special(format!("{EXTENSIONS}.JSONSchemaPropsOrBool"), json!({})),
            Type::PropsOrStrings(_) => self.special(format!("{EXTENSIONS}.JSONSchemaPropsOrStringArray"), json!({})),
        };
        object(self.version.reference(&model))
    }

    /// Adds a model whose JSON does not follow from its fields.
    fn special(&mut self, model: String, mut schema: Value) -> String {
        if !self.made.contains_key(&model) {
            if let Some(text) = model.rsplit('.').next().and_then(descriptions::of_type) {
                schema["description"] = json!(text);
            }
            self.made.insert(model.clone(), schema);
        }
        model
    }

    /// Wraps a reference in `allOf` in version 3, where a reference cannot have siblings.
    fn with_siblings(&self, mut property: Map) -> Value {
        if self.version == Version::Three
            && property.len() > 1
            && let Some(reference) = property.remove("$ref")
        {
            property.insert("allOf", json!([{ "$ref": reference }]));
        }
        Value::Object(property)
    }
}

/// Finds the message of a built-in kind.
pub(super) fn message(group: &str, version: &str, kind: &str) -> Option<Id> {
    match group {
        "" => types::message_of(version, kind),
        group => types::message_of(&format!("{group}/{version}"), kind),
    }
}

/// Adds an `enum` if there are values.
fn insert_values(schema: &mut Map, values: impl Iterator<Item = &'static str>) {
    let values: Vec<Value> = values.map(Value::from).collect();
    if !values.is_empty() {
        schema.insert("enum", Value::Array(values));
    }
}

fn type_meta(name: &str) -> Value {
    json!({"description": descriptions::of_field("", name), "type": "string"})
}

fn object(value: Value) -> Map {
    match value {
        Value::Object(members) => members,
        other => unreachable!("{other} is written as an object"),
    }
}
