//! The types of expressions, and those that schemas have in them.
//! Rules: apiserver `pkg/cel/common/schemas.go`, `pkg/cel/escaping.go`, Kubernetes 1.36.

use std::fmt;
use std::rc::Rc;

use crate::format::Format;
use crate::schema::{Constraint, Kind, Node};

/// Bytes that a request may have: what bounds sizes that a schema leaves open.
const REQUEST_BYTES_MAX: u64 = 3 * 1024 * 1024;

/// A type.
#[derive(Clone, Debug)]
pub(super) enum Ty<'n> {
    /// Anything; not checked before evaluation.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    /// With the most bytes it can have.
    Text(u64),
    Bytes(u64),
    Duration,
    Timestamp,
    /// With the most items it can have.
    List(Rc<Ty<'n>>, u64),
    Map(Rc<Ty<'n>>, Rc<Ty<'n>>, u64),
    /// Fields as a schema says; the flag adds those of every resource.
    Object(&'n Node, bool),
    /// The metadata of a resource: `name` and `generateName`.
    Metadata,
    /// A device that a selector of `resource.k8s.io` is asked about.
    Device,
    Optional(Rc<Ty<'n>>),
    Type,
    /// A type of a Kubernetes library, by its name.
    Named(&'static str),
}

impl PartialEq for Ty<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Ty::List(a, _), Ty::List(b, _)) => a == b,
            (Ty::Map(a, x, _), Ty::Map(b, y, _)) => a == b && x == y,
            (Ty::Optional(a), Ty::Optional(b)) => a == b,
            (Ty::Object(a, _), Ty::Object(b, _)) => std::ptr::eq(*a, *b),
            (Ty::Named(a), Ty::Named(b)) => a == b,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl fmt::Display for Ty<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ty::Dyn => f.write_str("dyn"),
            Ty::Null => f.write_str("null"),
            Ty::Bool => f.write_str("bool"),
            Ty::Int => f.write_str("int"),
            Ty::Uint => f.write_str("uint"),
            Ty::Double => f.write_str("double"),
            Ty::Text(_) => f.write_str("string"),
            Ty::Bytes(_) => f.write_str("bytes"),
            Ty::Duration => f.write_str("duration"),
            Ty::Timestamp => f.write_str("timestamp"),
            Ty::List(item, _) => write!(f, "list({item})"),
            Ty::Map(key, value, _) => write!(f, "map({key}, {value})"),
            Ty::Object(..) | Ty::Metadata => f.write_str("object"),
            Ty::Device => f.write_str("kubernetes.DRADevice"),
            Ty::Optional(inner) => write!(f, "optional_type({inner})"),
            Ty::Type => f.write_str("type"),
            Ty::Named(name) => f.write_str(name),
        }
    }
}

impl<'n> Ty<'n> {
    /// The type of values of a schema; nothing where the schema does not say enough to have one, so
    /// that expressions cannot see them.
    pub(super) fn of(node: &'n Node, resource: bool) -> Option<Ty<'n>> {
        if node.int_or_string {
            return Some(Ty::Dyn);
        }
        match node.kind {
            Kind::Any => resource.then_some(Ty::Object(node, true)),
            Kind::Boolean => Some(Ty::Bool),
            Kind::Integer => Some(Ty::Int),
            Kind::Number => Some(Ty::Double),
            Kind::String => Some(match node.format {
                Format::Byte => Ty::Bytes(text_max(node)),
                Format::Duration => Ty::Duration,
                Format::Date | Format::DateTime => Ty::Timestamp,
                _ => Ty::Text(text_max(node)),
            }),
            Kind::Array => {
                let items = node.items.as_deref()?;
                let item = Ty::of(items, items.embedded)?;
                Some(Ty::List(Rc::new(item), items_max(node)))
            }
            Kind::Object => match node.more_schema() {
                Some(more) => {
                    let value = Ty::of(more, more.embedded)?;
                    // Kubernetes takes keys for nothing in its estimates.
                    Some(Ty::Map(Rc::new(Ty::Text(0)), Rc::new(value), properties_max(node)))
                }
                None => Some(Ty::Object(node, resource)),
            },
        }
    }

    /// The type of a field that is selected.
    pub(super) fn field(&self, name: &str) -> Option<Ty<'n>> {
        match self {
            Ty::Dyn => Some(Ty::Dyn),
            Ty::Map(_, value, _) => Some((**value).clone()),
            Ty::Metadata => matches!(name, "name" | "generateName").then_some(Ty::Text(253)),
            Ty::Device => super::device::field(name),
            Ty::Object(node, resource) => {
                if *resource && is_resource_field(name) {
                    return Some(if name == "metadata" { Ty::Metadata } else { Ty::Text(512) });
                }
                let plain = unescape(name);
                if escape(&plain).as_deref() != Some(name) {
                    return None;
                }
                let property = node.property(&plain)?;
                Ty::of(property, property.embedded)
            }
            Ty::Optional(inner) => inner.field(name).map(|field| Ty::Optional(Rc::new(field))),
            _ => None,
        }
    }

    /// The most units that reading a value of this type takes.
    pub(super) fn size_max(&self) -> u64 {
        match self {
            Ty::Text(max) | Ty::Bytes(max) | Ty::List(_, max) | Ty::Map(_, _, max) => *max,
            Ty::Dyn => REQUEST_BYTES_MAX,
            Ty::Optional(inner) => inner.size_max(),
            _ => 1,
        }
    }

    /// Whether a value of this type can be where `other` is asked for.
    pub(super) fn fits(&self, other: &Ty<'_>) -> bool {
        match (self, other) {
            (Ty::Dyn, _) | (_, Ty::Dyn) => true,
            (Ty::Null, other) | (other, Ty::Null) => other.takes_null(),
            (Ty::List(a, _), Ty::List(b, _)) | (Ty::Optional(a), Ty::Optional(b)) => a.fits(b),
            (Ty::Map(a, x, _), Ty::Map(b, y, _)) => a.fits(b) && x.fits(y),
            (a, b) => a == b,
        }
    }

    /// Whether null can be compared with values of this type and stand for them.
    fn takes_null(&self) -> bool {
        use Ty::{Device, Duration, Metadata, Named, Null, Object, Optional, Timestamp};
        matches!(self, Null | Object(..) | Metadata | Device | Duration | Timestamp | Optional(_) | Named(_))
    }

    /// One type for values of both.
    pub(super) fn join(self, other: Ty<'n>) -> Ty<'n> {
        match (self, other) {
            (Ty::Text(a), Ty::Text(b)) => Ty::Text(a.max(b)),
            (Ty::Bytes(a), Ty::Bytes(b)) => Ty::Bytes(a.max(b)),
            (Ty::List(_, 0), list @ Ty::List(..)) | (list @ Ty::List(..), Ty::List(_, 0)) => list,
            (Ty::List(a, x), Ty::List(b, y)) => Ty::List(Rc::new((*a).clone().join((*b).clone())), x.max(y)),
            (Ty::Optional(a), Ty::Optional(b)) => Ty::Optional(Rc::new((*a).clone().join((*b).clone()))),
            (a, b) if a == b => a,
            _ => Ty::Dyn,
        }
    }

    pub(super) fn optional(self) -> Ty<'n> {
        Ty::Optional(Rc::new(self))
    }

    /// The fewest bytes that a value takes in JSON.
    fn bytes_min(node: &Node, depth: usize) -> u64 {
        match node.kind {
            Kind::Boolean => 4,
            Kind::String | Kind::Array => 2,
            Kind::Object if depth < 8 => {
                let required = node.constraints.iter().find_map(|constraint| match constraint {
                    Constraint::Required(names) => Some(names),
                    _ => None,
                });
                let fields = required.into_iter().flatten().filter_map(|name| {
                    let property = node.property(name).filter(|property| property.default_value().is_none())?;
                    Some(name.len() as u64 + 4 + Ty::bytes_min(property, depth + 1))
                });
                2 + fields.sum::<u64>()
            }
            Kind::Object => 2,
            Kind::Any | Kind::Integer | Kind::Number => 1,
        }
    }

    /// How often values of a schema can be in one request at most.
    pub(super) fn count_max(node: &Node) -> u64 {
        REQUEST_BYTES_MAX / (Ty::bytes_min(node, 0) + 1)
    }
}

fn bound(node: &Node, pick: impl Fn(&Constraint) -> Option<i64>) -> Option<u64> {
    node.constraints.iter().find_map(pick).map(|max| max.max(0) as u64)
}

fn text_max(node: &Node) -> u64 {
    let length = bound(node, |constraint| match constraint {
        Constraint::MaxLength(max) => Some(*max),
        _ => None,
    });
    let longest = node.constraints.iter().find_map(|constraint| match constraint {
        Constraint::Enum(values) => values.iter().filter_map(|value| value.as_str()).map(str::len).max(),
        _ => None,
    });
    match (longest, length) {
        (Some(longest), _) => longest as u64,
        // A character takes up to four bytes.
        (None, Some(length)) => length.saturating_mul(4).min(REQUEST_BYTES_MAX - 2),
        (None, None) => REQUEST_BYTES_MAX - 2,
    }
}

/// The most items of a list.
pub(super) fn items_max(node: &Node) -> u64 {
    let max = bound(node, |constraint| match constraint {
        Constraint::MaxItems(max) => Some(*max),
        _ => None,
    });
    max.unwrap_or_else(|| {
        let item = node.items.as_deref().map_or(1, |items| Ty::bytes_min(items, 0));
        (REQUEST_BYTES_MAX - 2) / (item + 1)
    })
}

/// The most entries of a map.
pub(super) fn properties_max(node: &Node) -> u64 {
    let max = bound(node, |constraint| match constraint {
        Constraint::MaxProperties(max) => Some(*max),
        _ => None,
    });
    max.unwrap_or_else(|| {
        let value = node.more_schema().map_or(1, |more| Ty::bytes_min(more, 0));
        (REQUEST_BYTES_MAX - 2) / (value + 6)
    })
}

/// Whether every resource has this field whatever its schema says.
pub(super) fn is_resource_field(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

const RESERVED: [&str; 20] = [
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
];

/// The name under which expressions see a property; nothing where they cannot see it.
pub(super) fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || name == "while" {
        return (name == "while").then(|| "__while__".to_owned());
    }
    if RESERVED.contains(&name) {
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

/// The property behind an escaped name.
pub(super) fn unescape(name: &str) -> String {
    if let Some(word) = name.strip_prefix("__").and_then(|rest| rest.strip_suffix("__"))
        && (RESERVED.contains(&word) || word == "while")
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
