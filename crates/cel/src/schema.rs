//! The schema interface of expressions: the trait [`Schema`].
//!
//! Source: the interface `Schema` of apiserver `pkg/cel/common`, Kubernetes 1.36. Custom resources
//! and admission policies have different schemas and share the types and costs that are derived
//! from them.

use std::fmt::Debug;
use std::sync::Arc;

use crate::format::Format;

/// The parts of an OpenAPI schema that determine types, costs and values of expressions.
pub trait Schema: Debug {
    /// `type`.
    fn kind(&self) -> Kind;
    /// `format`.
    fn format(&self) -> Format;
    /// `x-kubernetes-int-or-string`.
    fn is_int_or_string(&self) -> bool;
    /// `x-kubernetes-embedded-resource`.
    fn is_embedded_resource(&self) -> bool;
    /// `x-kubernetes-list-type`.
    fn list_type(&self) -> ListType;
    /// The schema of the items of a list.
    fn items(&self) -> Option<&dyn Schema>;
    /// The schema of a property.
    fn property(&self, name: &str) -> Option<&dyn Schema>;
    /// Whether the schema declares a property.
    fn has_properties(&self) -> bool;
    /// The schema of additional properties.
    fn additional_properties(&self) -> Option<&dyn Schema>;
    /// `required`.
    fn required(&self) -> &[Arc<str>];
    /// Whether there is a default.
    fn has_default(&self) -> bool;
    /// `maxLength`, in characters.
    fn max_length(&self) -> Option<u64>;
    /// `maxItems`.
    fn max_items(&self) -> Option<u64>;
    /// `maxProperties`.
    fn max_properties(&self) -> Option<u64>;
    /// The length of the longest string that an `enum` allows, in bytes.
    fn enum_bytes_max(&self) -> Option<usize>;
}

/// The value of the keyword `type` in a schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No type: any value is valid, or `x-kubernetes-int-or-string` applies.
    #[default]
    Any,
    /// `object`.
    Object,
    /// `array`.
    Array,
    /// `string`.
    String,
    /// `integer`.
    Integer,
    /// `number`.
    Number,
    /// `boolean`.
    Boolean,
}

impl Kind {
    /// Parses the value of `type`. An unknown string is [`Kind::Any`].
    pub fn parse(text: &str) -> Kind {
        match text {
            "object" => Kind::Object,
            "array" => Kind::Array,
            "string" => Kind::String,
            "integer" => Kind::Integer,
            "number" => Kind::Number,
            "boolean" => Kind::Boolean,
            _ => Kind::Any,
        }
    }
}

/// `x-kubernetes-list-type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ListType {
    /// The list is replaced as a whole. The default.
    #[default]
    Atomic,
    /// Items are unique.
    Set,
    /// Items are identified by their keys (`x-kubernetes-list-map-keys`).
    Map,
}
