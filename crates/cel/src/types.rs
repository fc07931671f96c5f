//! The types of expressions, and their derivation from schemas.
//! Rules: apiserver `pkg/cel/common/schemas.go`, `pkg/cel/escaping.go`, Kubernetes 1.36.

use std::fmt;
use std::rc::Rc;

use crate::format::Format;
use crate::schema::{Kind, Schema};

/// The maximum size of a request in bytes, which limits sizes that a schema does not limit.
pub(crate) const REQUEST_BYTES_MAX: u64 = 3 * 1024 * 1024;

/// The type of a variable or of an expression.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Type<'n> {
    /// Any type, checked during the evaluation, with the maximum size of its value. [`Type::DYN`] has no bound.
    Dyn(u64),
    /// `null_type`.
    Null,
    /// `bool`.
    Bool,
    /// `int`.
    Int,
    /// `uint`.
    Uint,
    /// `double`.
    Double,
    /// `string`, with its maximum length in bytes.
    Text(u64),
    /// `bytes`, with its maximum length in bytes.
    Bytes(u64),
    /// `google.protobuf.Duration`.
    Duration,
    /// `google.protobuf.Timestamp`.
    Timestamp,
    /// `list`: the type of its items, and their maximum number.
    List(Rc<Type<'n>>, u64),
    /// `map`: the types of its keys and values, and the maximum number of entries.
    Map(Rc<Type<'n>>, Rc<Type<'n>>, u64),
    /// An object with the fields of a schema. With `true` it also has the fields of every resource:
    /// `apiVersion`, `kind` and `metadata`.
    Object(&'n dyn Schema, bool),
    /// The metadata of a resource: `name` and `generateName`.
    Metadata,
    /// The variable `device` of a device selector of `resource.k8s.io`.
    Device,
    /// An object whose fields this crate declares: [`Type::access_review`] and its parts.
    Declared(&'static Declared),
    /// An object with these fields, such as the variable `request` of admission expressions.
    Fields(Rc<Fields<'n>>),
    /// `optional_type`.
    Optional(Rc<Type<'n>>),
    /// `type`.
    Type,
    /// A type of the Kubernetes library, by its name.
    Named(&'static str),
}

/// A type of object whose fields this crate declares.
pub struct Declared {
    pub(crate) name: &'static str,
    /// The type of a field.
    pub(crate) field: fn(&str) -> Option<Type<'static>>,
}

impl fmt::Debug for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The fields of an object.
#[derive(Clone, Debug)]
pub struct Fields<'n> {
    /// The name of the type.
    pub(crate) name: &'static str,
    /// The names and types of the fields; `None` for a type that the check could not determine.
    pub(crate) fields: Vec<(String, Option<Type<'n>>)>,
}

impl<'n> Fields<'n> {
    /// The type of a field; `None` if there is no such field.
    pub(crate) fn find(&self, name: &str) -> Option<&Option<Type<'n>>> {
        // A later declaration replaces an earlier one.
        self.fields.iter().rev().find(|(known, _)| known == name).map(|(_, ty)| ty)
    }
}

impl PartialEq for Type<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Type::List(a, _), Type::List(b, _)) => a == b,
            (Type::Map(a, x, _), Type::Map(b, y, _)) => a == b && x == y,
            (Type::Optional(a), Type::Optional(b)) => a == b,
            (Type::Object(a, _), Type::Object(b, _)) => std::ptr::addr_eq(*a, *b),
            (Type::Named(a), Type::Named(b)) => a == b,
            (Type::Declared(a), Type::Declared(b)) => std::ptr::eq(*a, *b),
            (Type::Fields(a), Type::Fields(b)) => a.name == b.name,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl fmt::Display for Type<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Dyn(_) => f.write_str("dyn"),
            Type::Null => f.write_str("null"),
            Type::Bool => f.write_str("bool"),
            Type::Int => f.write_str("int"),
            Type::Uint => f.write_str("uint"),
            Type::Double => f.write_str("double"),
            Type::Text(_) => f.write_str("string"),
            Type::Bytes(_) => f.write_str("bytes"),
            Type::Duration => f.write_str("duration"),
            Type::Timestamp => f.write_str("timestamp"),
            Type::List(item, _) => write!(f, "list({item})"),
            Type::Map(key, value, _) => write!(f, "map({key}, {value})"),
            Type::Object(..) | Type::Metadata => f.write_str("object"),
            Type::Device => f.write_str("kubernetes.DRADevice"),
            Type::Declared(declared) => f.write_str(declared.name),
            Type::Optional(inner) => write!(f, "optional_type({inner})"),
            Type::Type => f.write_str("type"),
            Type::Named(name) => f.write_str(name),
            Type::Fields(fields) => f.write_str(fields.name),
        }
    }
}

impl<'n> Type<'n> {
    /// Any type and any size.
    pub const DYN: Type<'static> = Type::Dyn(REQUEST_BYTES_MAX);

    /// The type of the items of an empty list: the context decides it.
    pub(crate) const FREE: Type<'static> = Type::Dyn(0);

    /// The type of `request` in the match conditions of authorization webhooks: the spec of a SubjectAccessReview of
    /// `authorization.k8s.io/v1`.
    pub fn access_review() -> Type<'static> {
        Type::Declared(&crate::access_review::SPEC)
    }

    /// The type of the values of a schema. `resource` adds the fields of every resource. Returns
    /// `None` if the schema does not declare a type; expressions cannot access such values.
    pub fn of(schema: &'n dyn Schema, resource: bool) -> Option<Type<'n>> {
        if schema.is_int_or_string() {
            return Some(Type::Dyn(
                schema.max_length().map_or(REQUEST_BYTES_MAX - 2, |length| length.saturating_mul(4)).max(1),
            ));
        }
        match schema.kind() {
            Kind::Any => resource.then_some(Type::Object(schema, true)),
            Kind::Boolean => Some(Type::Bool),
            Kind::Integer => Some(Type::Int),
            Kind::Number => Some(Type::Double),
            Kind::String => Some(match schema.format() {
                Format::Byte => Type::Bytes(schema.max_length().unwrap_or(REQUEST_BYTES_MAX - 2)),
                Format::Duration => Type::Duration,
                Format::Date | Format::DateTime => Type::Timestamp,
                _ => Type::Text(text_max(schema)),
            }),
            Kind::Array => {
                let items = schema.items()?;
                let item = Type::of(items, items.is_embedded_resource())?;
                Some(Type::List(Rc::new(item), items_max(schema)))
            }
            Kind::Object => match schema.additional_properties() {
                Some(more) => {
                    let value = Type::of(more, more.is_embedded_resource())?;
                    // Kubernetes' estimates count keys as empty.
                    Some(Type::Map(Rc::new(Type::Text(0)), Rc::new(value), properties_max(schema)))
                }
                None => Some(Type::Object(schema, resource)),
            },
        }
    }

    /// The type of a selected field.
    pub(crate) fn field(&self, name: &str) -> Option<Type<'n>> {
        match self {
            Type::Dyn(_) => Some(Type::DYN),
            Type::Map(_, value, _) => Some((**value).clone()),
            Type::Metadata => matches!(name, "name" | "generateName").then_some(Type::Text(253)),
            Type::Device => crate::device::field(name),
            Type::Declared(declared) => (declared.field)(name),
            Type::Object(schema, resource) => {
                if *resource && is_resource_field(name) {
                    return Some(if name == "metadata" { Type::Metadata } else { Type::Text(512) });
                }
                let plain = unescape(name);
                // Selectors may also spell a keyword plainly (`SetRecognizeKeywordAsFieldName` of k8s.io/apiserver).
                if escape(&plain).as_deref() != Some(name) && !RESERVED_WORDS.contains(&name) {
                    return None;
                }
                let property = schema.property(&plain)?;
                Type::of(property, property.is_embedded_resource())
            }
            Type::Fields(fields) => fields.find(name).cloned().map(|ty| ty.unwrap_or(Type::DYN)),
            Type::Optional(inner) => inner.field(name).map(|field| Type::Optional(Rc::new(field))),
            _ => None,
        }
    }

    /// The worst-case cost of reading a value of this type, in cost units.
    pub(crate) fn size_max(&self) -> u64 {
        match self {
            Type::Text(max) | Type::Bytes(max) | Type::List(_, max) | Type::Map(_, _, max) | Type::Dyn(max) => *max,
            Type::Optional(inner) => inner.size_max(),
            _ => 1,
        }
    }

    /// True if a value of this type is valid where `other` is expected.
    pub(crate) fn fits(&self, other: &Type<'_>) -> bool {
        match (self, other) {
            (Type::Dyn(_), _) | (_, Type::Dyn(_)) => true,
            (Type::Null, other) | (other, Type::Null) => other.takes_null(),
            (Type::List(a, _), Type::List(b, _)) | (Type::Optional(a), Type::Optional(b)) => a.fits(b),
            (Type::Map(a, x, _), Type::Map(b, y, _)) => a.fits(b) && x.fits(y),
            (a, b) => a == b,
        }
    }

    /// True if both are the same type (cel-go's `Type.IsEquivalentType`).
    pub(crate) fn is_equivalent(&self, other: &Type<'_>) -> bool {
        match (self, other) {
            (Type::Dyn(0), _) | (_, Type::Dyn(0)) => true,
            (Type::List(a, _), Type::List(b, _)) | (Type::Optional(a), Type::Optional(b)) => a.is_equivalent(b),
            (Type::Map(a, x, _), Type::Map(b, y, _)) => a.is_equivalent(b) && x.is_equivalent(y),
            (a, b) => a == b,
        }
    }

    /// True if null is a valid value of this type.
    fn takes_null(&self) -> bool {
        use Type::{Declared, Device, Duration, Fields, Metadata, Named, Null, Object, Optional, Timestamp};
        matches!(
            self,
            Null | Object(..)
                | Fields(_)
                | Declared(_)
                | Metadata
                | Device
                | Duration
                | Timestamp
                | Optional(_)
                | Named(_)
        )
    }

    /// The common type of two values.
    pub(crate) fn join(self, other: Type<'n>) -> Type<'n> {
        match (self, other) {
            (Type::Text(a), Type::Text(b)) => Type::Text(a.max(b)),
            (Type::Bytes(a), Type::Bytes(b)) => Type::Bytes(a.max(b)),
            (Type::Dyn(0), known) | (known, Type::Dyn(0)) => known,
            (Type::List(a, x), Type::List(b, y)) => Type::List(Rc::new((*a).clone().join((*b).clone())), x.max(y)),
            (Type::Map(a, x, m), Type::Map(b, y, n)) => {
                let (key, value) = ((*a).clone().join((*b).clone()), (*x).clone().join((*y).clone()));
                Type::Map(Rc::new(key), Rc::new(value), m.max(n))
            }
            (Type::Optional(a), Type::Optional(b)) => Type::Optional(Rc::new((*a).clone().join((*b).clone()))),
            (Type::Dyn(a), b) | (b, Type::Dyn(a)) => Type::Dyn(a.max(b.size_max())),
            (a, b) if a == b => a,
            (a, b) => Type::Dyn(a.size_max().max(b.size_max())),
        }
    }

    /// The `optional_type` of this type.
    pub fn optional(self) -> Type<'n> {
        Type::Optional(Rc::new(self))
    }
}

/// The maximum number of values of a schema in one request.
pub fn count_max(schema: &dyn Schema) -> u64 {
    REQUEST_BYTES_MAX / (bytes_min(schema, 0) + 1)
}

/// The minimum size of a value in JSON, in bytes.
fn bytes_min(schema: &dyn Schema, depth: usize) -> u64 {
    match schema.kind() {
        Kind::Boolean => 4,
        Kind::String | Kind::Array => 2,
        Kind::Object if depth < 8 => {
            let fields = schema.required().iter().filter_map(|name| {
                let property = schema.property(name).filter(|property| !property.has_default())?;
                Some(name.len() as u64 + 4 + bytes_min(property, depth + 1))
            });
            2 + fields.sum::<u64>()
        }
        Kind::Object => 2,
        Kind::Any | Kind::Integer | Kind::Number => 1,
    }
}

/// The maximum length of a string in bytes.
fn text_max(schema: &dyn Schema) -> u64 {
    match (schema.max_length(), schema.enum_bytes_max()) {
        // A character has up to four bytes.
        (Some(length), _) => length.saturating_mul(4),
        (None, Some(longest)) => longest as u64,
        (None, None) => REQUEST_BYTES_MAX - 2,
    }
}

/// The maximum number of items of a list.
fn items_max(schema: &dyn Schema) -> u64 {
    schema.max_items().unwrap_or_else(|| {
        let item = schema.items().map_or(1, |items| bytes_min(items, 0));
        (REQUEST_BYTES_MAX - 2) / (item + 1)
    })
}

/// The maximum number of entries of a map.
fn properties_max(schema: &dyn Schema) -> u64 {
    schema.max_properties().unwrap_or_else(|| {
        let value = schema.additional_properties().map_or(1, |more| bytes_min(more, 0));
        (REQUEST_BYTES_MAX - 2) / (value + 6)
    })
}

/// True for the fields that every resource has, independently of the schema.
pub(crate) fn is_resource_field(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

/// Words that are not identifiers in CEL (`pkg/cel/escaping.go`).
pub const RESERVED_WORDS: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The name of a property in expressions; `None` if expressions cannot access it.
pub(crate) fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if RESERVED_WORDS.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let mut out = String::with_capacity(name.len());
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '_' if chars.peek() == Some(&'_') => {
                chars.next();
                out.push_str("__underscores__");
            }
            '.' => out.push_str("__dot__"),
            '-' => out.push_str("__dash__"),
            '/' => out.push_str("__slash__"),
            c if c.is_ascii_alphanumeric() || c == '_' => out.push(c),
            _ => return None,
        }
    }
    Some(out)
}

/// The property of an escaped name.
pub(crate) fn unescape(name: &str) -> String {
    if let Some(word) = name.strip_prefix("__").and_then(|rest| rest.strip_suffix("__"))
        && RESERVED_WORDS.contains(&word)
    {
        return word.to_owned();
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    'next: while !rest.is_empty() {
        for (escaped, plain) in [("__underscores__", "__"), ("__dot__", "."), ("__dash__", "-"), ("__slash__", "/")] {
            if let Some(after) = rest.strip_prefix(escaped) {
                out.push_str(plain);
                rest = after;
                continue 'next;
            }
        }
        let mut chars = rest.chars();
        out.extend(chars.next());
        rest = chars.as_str();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn property_names_are_escaped() {
        fn check(name: &str, escaped: Option<&str>) {
            assert_eq!(escape(name).as_deref(), escaped, "{name:?}");
            if let Some(escaped) = escaped {
                assert_eq!(unescape(escaped), name);
            }
        }
        check("a", Some("a"));
        check("a-b", Some("a__dash__b"));
        check("a.b/c", Some("a__dot__b__slash__c"));
        check("__a__b", Some("__underscores__a__underscores__b"));
        check("_a_", Some("_a_"));
        check("namespace", Some("__namespace__"));
        check("in", Some("__in__"));
        check("while", Some("__while__"));
        check("a b", None);
        check("1a", None);
        check("", None);
    }
}
