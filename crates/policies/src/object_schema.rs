//! [`ObjectSchema`]: the types of a kind's fields, for the type checks of policies
//! (`apiserver/pkg/cel/openapi/resolver`).

use std::collections::BTreeMap;
use std::sync::Arc;

use listwatch_cel::format::Format;
use listwatch_cel::{Kind, ListType, Schema};
use listwatch_json::Value;
use listwatch_k8s_types::{Id, Shape, Type, message_of};

/// Maximum nesting depth of a schema. Deeper values have the type `dyn`. The limit is needed because some kinds are
/// recursive.
const DEPTH_MAX: usize = 16;

/// The types of the fields of a kind.
#[derive(Clone, Debug, Default)]
pub struct ObjectSchema {
    kind: Kind,
    format: Format,
    /// Whether values have the CEL type `dyn`, for which the type check accepts every use.
    is_dynamic: bool,
    properties: BTreeMap<String, ObjectSchema>,
    items: Option<Box<ObjectSchema>>,
    values: Option<Box<ObjectSchema>>,
}

impl ObjectSchema {
    fn of_kind(kind: Kind) -> Self {
        ObjectSchema { kind, ..ObjectSchema::default() }
    }

    fn dynamic() -> Self {
        ObjectSchema { is_dynamic: true, ..ObjectSchema::default() }
    }

    fn text(format: Format) -> Self {
        ObjectSchema { format, ..ObjectSchema::of_kind(Kind::String) }
    }

    /// Returns the schema of a built-in kind; `None` for another kind.
    pub fn of_built_in(api_version: &str, kind: &str) -> Option<Self> {
        message_of(api_version, kind).map(|id| ObjectSchema::of_message(id, DEPTH_MAX))
    }

    fn of_message(id: Id, depth: usize) -> Self {
        let Some(depth) = depth.checked_sub(1) else { return ObjectSchema::dynamic() };
        let mut schema = ObjectSchema::of_kind(Kind::Object);
        if id.message().is_object() {
            for name in ["apiVersion", "kind"] {
                schema.properties.insert(name.to_owned(), ObjectSchema::text(Format::default()));
            }
        }
        for field in id.message().members() {
            let one = || ObjectSchema::of_type(field.of(), depth);
            let of = match field.shape() {
                Shape::Repeated => ObjectSchema { items: Some(Box::new(one())), ..ObjectSchema::of_kind(Kind::Array) },
                Shape::Map => ObjectSchema { values: Some(Box::new(one())), ..ObjectSchema::of_kind(Kind::Object) },
                Shape::One | Shape::Pointer | Shape::Inline => one(),
            };
            schema.properties.insert(field.name().to_owned(), of);
        }
        schema
    }

    fn of_type(of: Type, depth: usize) -> Self {
        match of {
            Type::String => ObjectSchema::text(Format::default()),
            Type::Bytes => ObjectSchema::text(Format::Byte),
            Type::Time | Type::MicroTime => ObjectSchema::text(Format::DateTime),
            Type::Bool => ObjectSchema::of_kind(Kind::Boolean),
            Type::Int32 | Type::Int64 => ObjectSchema::of_kind(Kind::Integer),
            Type::Double => ObjectSchema::of_kind(Kind::Number),
            Type::Message(id) => ObjectSchema::of_message(id, depth),
            Type::Strings => ObjectSchema {
                items: Some(Box::new(ObjectSchema::text(Format::default()))),
                ..ObjectSchema::of_kind(Kind::Array)
            },
            Type::Quantity
            | Type::IntOrString
            | Type::Raw
            | Type::PropsOrBool(_)
            | Type::PropsOrArray(_)
            | Type::PropsOrStrings(_) => ObjectSchema::dynamic(),
        }
    }

    /// Returns the schema of a custom resource from its OpenAPI schema. The metadata has the schema of ObjectMeta.
    pub fn of_custom_resource(schema: &Value) -> Self {
        let mut schema = ObjectSchema::of_open_api(schema, DEPTH_MAX);
        schema.kind = Kind::Object;
        for name in ["apiVersion", "kind"] {
            schema.properties.insert(name.to_owned(), ObjectSchema::text(Format::default()));
        }
        if let Some(mut pod) = ObjectSchema::of_built_in("v1", "ConfigMap")
            && let Some(metadata) = pod.properties.remove("metadata")
        {
            schema.properties.insert("metadata".to_owned(), metadata);
        }
        schema
    }

    fn of_open_api(schema: &Value, depth: usize) -> Self {
        let Some(depth) = depth.checked_sub(1) else { return ObjectSchema::dynamic() };
        let text = |name: &str| schema.get(name).and_then(Value::as_str).unwrap_or_default();
        let flag = |name: &str| schema.get(name).and_then(Value::as_bool).unwrap_or_default();
        let below = |schema: &Value| ObjectSchema::of_open_api(schema, depth);
        let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
        ObjectSchema {
            kind: Kind::parse(text("type")),
            format: Format::parse(text("format"), text("type"), flag("x-kubernetes-int-or-string")),
            is_dynamic: flag("x-kubernetes-int-or-string"),
            properties: properties.map(|(name, schema)| (name.as_str().to_owned(), below(schema))).collect(),
            items: schema.get("items").map(|items| Box::new(below(items))),
            values: schema
                .get("additionalProperties")
                .filter(|more| more.is_object())
                .map(|more| Box::new(below(more))),
        }
    }
}

impl Schema for ObjectSchema {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn format(&self) -> Format {
        self.format
    }

    fn is_int_or_string(&self) -> bool {
        self.is_dynamic
    }

    fn is_embedded_resource(&self) -> bool {
        false
    }

    fn list_type(&self) -> ListType {
        ListType::Atomic
    }

    fn items(&self) -> Option<&dyn Schema> {
        self.items.as_deref().map(|items| items as &dyn Schema)
    }

    fn property(&self, name: &str) -> Option<&dyn Schema> {
        self.properties.get(name).map(|property| property as &dyn Schema)
    }

    fn has_properties(&self) -> bool {
        !self.properties.is_empty()
    }

    fn additional_properties(&self) -> Option<&dyn Schema> {
        self.values.as_deref().map(|values| values as &dyn Schema)
    }

    fn required(&self) -> &[Arc<str>] {
        &[]
    }

    fn has_default(&self) -> bool {
        false
    }

    fn max_length(&self) -> Option<u64> {
        None
    }

    fn max_items(&self) -> Option<u64> {
        None
    }

    fn max_properties(&self) -> Option<u64> {
        None
    }

    fn enum_bytes_max(&self) -> Option<usize> {
        None
    }
}
