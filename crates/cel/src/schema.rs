//! What expressions ask a schema: the trait [`Schema`].
//!
//! Source: the interface `Schema` of apiserver `pkg/cel/common`, Kubernetes 1.36. Rules of custom resources and
//! expressions of admission policies have different schemas and share the types and costs made from them.

use std::fmt::Debug;
use std::sync::Arc;

use crate::format::Format;

/// An OpenAPI schema, as far as types, costs and values of expressions depend on it.
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
    /// Bytes of the longest text that an `enum` allows.
    fn enum_bytes_max(&self) -> Option<usize>;
}

/// The JSON type that a schema asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No type: anything goes (or `x-kubernetes-int-or-string` says what).
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
    /// The kind of a `type`. A word that is no type is [`Kind::Any`].
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
    /// Replaced as a whole; the default.
    #[default]
    Atomic,
    /// Items are unique.
    Set,
    /// Items are known by their keys (`x-kubernetes-list-map-keys`).
    Map,
}
