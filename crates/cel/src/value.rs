//! Values of expressions. A value borrows from the object if possible, and has the type of the
//! object's schema.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;

use listwatch_json::{Map, Value as Json};
use listwatch_meta::go::Number;
use time::OffsetDateTime;

use crate::format::{Format, parse_duration};
use crate::quantity::Quantity;
use crate::schema::{Kind, ListType, Schema};
use crate::types::{escape, is_resource_field};

/// A value. `'a` is the lifetime of the JSON and of the schema.
#[derive(Clone, Debug)]
pub(crate) enum Val<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Cow<'a, str>),
    Bytes(Rc<[u8]>),
    /// A duration in nanoseconds.
    Duration(i64),
    Timestamp(OffsetDateTime),
    List(Rc<Vec<Val<'a>>>),
    Map(Rc<MapVal<'a>>),
    /// A list of the object, with its schema.
    JsonList(&'a [Json], Option<&'a dyn Schema>),
    /// A JSON object: a message with fields or a map, depending on its schema. If the flag is true,
    /// the object also has `apiVersion`, `kind` and `metadata`.
    JsonMap(&'a Map, Option<&'a dyn Schema>, bool),
    Optional(Option<Rc<Val<'a>>>),
    Type(&'static str),
    Quantity(Quantity),
    Ip(IpAddr),
    Cidr(IpAddr, u8),
    Url(Rc<str>),
    Semver(Rc<crate::semver::Version>),
    Format(&'static str),
    /// An object of a patch type, with the name of the type.
    Struct(&'a str, Rc<MapVal<'a>>),
    /// The variable `variables`: the values, and the number of visible ones.
    Lazy(Rc<crate::lazy::Scope<'a>>, usize),
    Authz(crate::authorizer::Authz<'a>),
}

/// The remaining steps for operations on whole values. Each visited value takes one step, and
/// each [`STEP_BYTES`] bytes of text take one more.
pub(crate) struct Steps {
    left: u64,
    out: bool,
}

/// The number of bytes of text per step.
const STEP_BYTES: usize = 64;

impl Steps {
    pub(crate) fn new(left: u64) -> Self {
        Steps { left, out: false }
    }

    /// The remaining steps; `None` if more were requested.
    pub(crate) fn left(&self) -> Option<u64> {
        (!self.out).then_some(self.left)
    }

    /// Charges steps. Returns false if not enough are left.
    pub(crate) fn take(&mut self, steps: u64) -> bool {
        match self.left.checked_sub(steps).filter(|_| !self.out) {
            Some(left) => self.left = left,
            None => self.out = true,
        }
        !self.out
    }

    /// Charges the steps for reading a string. Returns false if not enough are left.
    pub(crate) fn take_text(&mut self, bytes: usize) -> bool {
        self.take((bytes / STEP_BYTES) as u64)
    }

    /// Charges the steps for reading a value with its nested values. Returns false if not enough
    /// are left.
    pub(crate) fn take_all_of(&mut self, value: &Val<'_>) -> bool {
        self.take(1)
            && match value {
                Val::List(items) => items.iter().all(|item| self.take_all_of(item)),
                Val::Map(map) | Val::Struct(_, map) => {
                    map.entries.iter().all(|(key, value)| self.take_all_of(key) && self.take_all_of(value))
                }
                Val::JsonList(items, _) => items.iter().all(|item| self.take_json(item)),
                Val::JsonMap(members, ..) => members.iter().all(|(name, value)| self.take_member(name, value)),
                Val::Optional(Some(value)) => self.take_all_of(value),
                other => self.take_text(other.size()),
            }
    }

    fn take_member(&mut self, name: &str, value: &Json) -> bool {
        self.take_text(name.len()) && self.take_json(value)
    }

    pub(crate) fn take_json(&mut self, value: &Json) -> bool {
        self.take(1)
            && match value {
                Json::String(text) => self.take_text(text.len()),
                Json::Array(items) => items.iter().all(|item| self.take_json(item)),
                Json::Object(members) => members.iter().all(|(name, value)| self.take_member(name, value)),
                _ => true,
            }
    }
}

/// A map that an expression has constructed, in insertion order.
#[derive(Clone, Debug, Default)]
pub(crate) struct MapVal<'a> {
    pub(crate) entries: Vec<(Val<'a>, Val<'a>)>,
    index: HashMap<Key, usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Bool(bool),
    Int(i128),
    Text(String),
}

fn key_of(value: &Val<'_>) -> Option<Key> {
    match value {
        Val::Bool(value) => Some(Key::Bool(*value)),
        Val::Int(value) => Some(Key::Int((*value).into())),
        Val::Uint(value) => Some(Key::Int((*value).into())),
        Val::Double(value) if value.fract() == 0.0 && value.abs() < 1e18 => Some(Key::Int(*value as i128)),
        Val::Text(value) => Some(Key::Text(value.to_string())),
        _ => None,
    }
}

impl<'a> MapVal<'a> {
    /// Adds an entry. False if the key exists or has a wrong type.
    pub(crate) fn insert(&mut self, key: Val<'a>, value: Val<'a>) -> bool {
        let Some(known) = key_of(&key) else { return false };
        if self.index.contains_key(&known) {
            return false;
        }
        self.index.insert(known, self.entries.len());
        self.entries.push((key, value));
        true
    }

    fn get(&self, key: &Val<'_>) -> Option<&Val<'a>> {
        Some(&self.entries[*self.index.get(&key_of(key)?)?].1)
    }
}

impl<'a> Val<'a> {
    pub(crate) fn text(text: impl Into<String>) -> Val<'a> {
        Val::Text(Cow::Owned(text.into()))
    }

    pub(crate) fn list(items: Vec<Val<'a>>) -> Val<'a> {
        Val::List(Rc::new(items))
    }

    pub(crate) fn some(value: Val<'a>) -> Val<'a> {
        Val::Optional(Some(Rc::new(value)))
    }

    /// A JSON value with the type of its schema.
    pub(crate) fn of(value: &'a Json, schema: Option<&'a dyn Schema>, resource: bool) -> Val<'a> {
        match value {
            Json::Null => Val::Null,
            Json::Bool(value) => Val::Bool(*value),
            Json::Number(number) => match (Number::of(number), schema.map(Schema::kind)) {
                (Number::Int(int), Some(Kind::Number)) => Val::Double(int as f64),
                (Number::Float(float), Some(Kind::Integer)) => Val::Int(float as i64),
                (Number::Int(int), _) => Val::Int(int),
                (Number::Float(float), _) => Val::Double(float),
            },
            Json::String(text) => match schema.filter(|schema| schema.kind() == Kind::String).map(Schema::format) {
                Some(Format::Duration) => parse_duration(text).map_or(Val::Text(text.into()), Val::Duration),
                Some(Format::Date) => match parse_timestamp(&format!("{text}T00:00:00Z")) {
                    Some(time) => Val::Timestamp(time),
                    None => Val::Text(text.into()),
                },
                Some(Format::DateTime) => parse_timestamp(text).map_or(Val::Text(text.into()), Val::Timestamp),
                Some(Format::Byte) => match crate::library::decode_base64(text) {
                    Some(bytes) => Val::Bytes(bytes.into()),
                    None => Val::Text(text.into()),
                },
                _ => Val::Text(text.into()),
            },
            Json::Array(items) => Val::JsonList(items, schema),
            Json::Object(members) => Val::JsonMap(members, schema, resource),
        }
    }

    /// The name of the type, for `type()` and errors.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Val::Null => "null_type",
            Val::Bool(_) => "bool",
            Val::Int(_) => "int",
            Val::Uint(_) => "uint",
            Val::Double(_) => "double",
            Val::Text(_) => "string",
            Val::Bytes(_) => "bytes",
            Val::Duration(_) => "google.protobuf.Duration",
            Val::Timestamp(_) => "google.protobuf.Timestamp",
            Val::List(_) | Val::JsonList(..) => "list",
            Val::Map(_) | Val::JsonMap(..) => "map",
            Val::Optional(_) => "optional_type",
            Val::Type(_) => "type",
            Val::Quantity(_) => "kubernetes.Quantity",
            Val::Ip(_) => "net.IP",
            Val::Cidr(..) => "net.CIDR",
            Val::Url(_) => "kubernetes.URL",
            Val::Semver(_) => "kubernetes.Semver",
            Val::Format(_) => "kubernetes.NamedFormat",
            Val::Struct(..) => "Object",
            Val::Lazy(..) => "kubernetes.variables",
            Val::Authz(authz) => authz.type_name(),
        }
    }

    /// The number of items of a list or entries of a map; `None` for other values.
    pub(crate) fn len(&self) -> Option<usize> {
        match self {
            Val::List(items) => Some(items.len()),
            Val::JsonList(items, _) => Some(items.len()),
            Val::Map(map) => Some(map.entries.len()),
            Val::JsonMap(members, ..) => Some(members.len()),
            _ => None,
        }
    }

    /// The size of the value for operations that read the whole value: the bytes of a text, the items of a list or map,
    /// or 1.
    pub(crate) fn size(&self) -> usize {
        match self {
            Val::Text(text) => text.len(),
            Val::Bytes(bytes) => bytes.len(),
            Val::Url(text) => text.len(),
            other => other.len().unwrap_or(1),
        }
    }

    /// An item of a list.
    pub(crate) fn item(&self, index: usize) -> Option<Val<'a>> {
        match self {
            Val::List(items) => items.get(index).cloned(),
            Val::JsonList(items, schema) => items.get(index).map(|item| item_of(item, *schema)),
            _ => None,
        }
    }

    /// All items of a list.
    pub(crate) fn items(&self) -> Option<Vec<Val<'a>>> {
        match self {
            Val::List(items) => Some(items.to_vec()),
            Val::JsonList(items, schema) => Some(items.iter().map(|item| item_of(item, *schema)).collect()),
            _ => None,
        }
    }

    /// All entries of a map.
    pub(crate) fn entries(&self) -> Option<Vec<(Val<'a>, Val<'a>)>> {
        match self {
            Val::Map(map) => Some(map.entries.clone()),
            Val::JsonMap(members, schema, _) => Some(
                members
                    .iter()
                    .map(|(name, value)| {
                        let below = schema.and_then(|schema| field_schema(schema, name));
                        let resource = below.is_some_and(Schema::is_embedded_resource);
                        (Val::Text(name.as_str().into()), Val::of(value, below, resource))
                    })
                    .collect(),
            ),
            _ => None,
        }
    }

    /// A field of an object by its escaped name, or an entry of a map.
    pub(crate) fn field(&self, name: &str) -> Option<Val<'a>> {
        match self {
            Val::Map(map) => map.get(&Val::Text(name.into())).cloned(),
            Val::JsonMap(members, schema, resource) => {
                let is_map =
                    schema.is_none_or(|schema| !schema.has_properties() && schema.additional_properties().is_some());
                let plain;
                let name = if is_map {
                    name
                } else {
                    plain = unescape(name);
                    plain.as_str()
                };
                let value = members.get(name)?;
                let below = schema.and_then(|schema| field_schema(schema, name));
                if below.is_none() && *resource && is_resource_field(name) {
                    return Some(Val::of(value, None, false));
                }
                Some(Val::of(value, below, below.is_some_and(Schema::is_embedded_resource)))
            }
            _ => None,
        }
    }

    /// An entry of a map by its key, or an item of a list by its position.
    pub(crate) fn index(&self, key: &Val<'_>) -> Option<Val<'a>> {
        match self {
            Val::Map(map) => map.get(key).cloned(),
            Val::JsonMap(..) => match key {
                Val::Text(name) => self.field(name),
                _ => None,
            },
            _ => self.item(whole_index(key)?),
        }
    }

    /// The list type. Comparisons of sets and map lists ignore the order.
    fn list_type(&self) -> ListType {
        match self {
            Val::JsonList(_, Some(schema)) => schema.list_type(),
            _ => ListType::Atomic,
        }
    }

    /// CEL's equality: numbers are compared by value across types; other types are never equal. If
    /// the steps are used up, the result is undefined, and [`Steps::left`] returns `None`.
    pub(crate) fn equals(&self, other: &Val<'_>, steps: &mut Steps) -> bool {
        if !steps.take(1) || !steps.take_text(self.size().min(other.size())) {
            return false;
        }
        match (self, other) {
            (Val::Null, Val::Null) => true,
            (Val::Bool(a), Val::Bool(b)) => a == b,
            (Val::Text(a), Val::Text(b)) => a == b,
            (Val::Bytes(a), Val::Bytes(b)) => a == b,
            (Val::Duration(a), Val::Duration(b)) => a == b,
            (Val::Timestamp(a), Val::Timestamp(b)) => a == b,
            (Val::Type(a), Val::Type(b)) | (Val::Format(a), Val::Format(b)) => a == b,
            (Val::Quantity(a), Val::Quantity(b)) => a == b,
            (Val::Ip(a), Val::Ip(b)) => a == b,
            (Val::Cidr(a, x), Val::Cidr(b, y)) => a == b && x == y,
            (Val::Url(a), Val::Url(b)) => a == b,
            (Val::Semver(a), Val::Semver(b)) => a == b,
            (Val::Optional(None), Val::Optional(None)) => true,
            (Val::Optional(Some(a)), Val::Optional(Some(b))) => a.equals(b, steps),
            (Val::List(_) | Val::JsonList(..), Val::List(_) | Val::JsonList(..)) => lists_equal(self, other, steps),
            (Val::Struct(a, x), Val::Struct(b, y)) => {
                let equals = |(key, value): &(Val<'_>, Val<'_>), steps: &mut Steps| {
                    y.get(key).is_some_and(|other| value.equals(other, steps))
                };
                a == b
                    && x.entries.len() == y.entries.len()
                    && steps.take(x.entries.len() as u64)
                    && x.entries.iter().all(|entry| equals(entry, steps))
            }
            (Val::Map(_) | Val::JsonMap(..), Val::Map(_) | Val::JsonMap(..)) => {
                self.len() == other.len()
                    && steps.take(self.len().unwrap_or(0) as u64)
                    && self
                        .entries()
                        .unwrap_or_default()
                        .iter()
                        .all(|(key, value)| raw_entry(other, key).is_some_and(|other| value.equals(&other, steps)))
            }
            _ => self.compare(other) == Some(std::cmp::Ordering::Equal),
        }
    }

    /// Compares two values; `None` if values of these types are not ordered.
    pub(crate) fn compare(&self, other: &Val<'_>) -> Option<std::cmp::Ordering> {
        match (self, other) {
            (Val::Bool(a), Val::Bool(b)) => Some(a.cmp(b)),
            (Val::Text(a), Val::Text(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
            (Val::Bytes(a), Val::Bytes(b)) => Some(a.cmp(b)),
            (Val::Duration(a), Val::Duration(b)) => Some(a.cmp(b)),
            (Val::Timestamp(a), Val::Timestamp(b)) => Some(a.cmp(b)),
            (Val::Double(a), b) => a.partial_cmp(&b.as_f64()?),
            (a, Val::Double(b)) => a.as_f64()?.partial_cmp(b),
            (a, b) => Some(a.as_i128()?.cmp(&b.as_i128()?)),
        }
    }

    fn as_i128(&self) -> Option<i128> {
        match self {
            Val::Int(value) => Some((*value).into()),
            Val::Uint(value) => Some((*value).into()),
            _ => None,
        }
    }

    fn as_f64(&self) -> Option<f64> {
        match self {
            Val::Int(value) => Some(*value as f64),
            Val::Uint(value) => Some(*value as f64),
            Val::Double(value) => Some(*value),
            _ => None,
        }
    }
}

fn item_of<'a>(item: &'a Json, list: Option<&'a dyn Schema>) -> Val<'a> {
    let schema = list.and_then(Schema::items);
    Val::of(item, schema, schema.is_some_and(Schema::is_embedded_resource))
}

/// The schema of a field of an object: that of the property, else that of additional properties.
fn field_schema<'a>(schema: &'a dyn Schema, name: &str) -> Option<&'a dyn Schema> {
    schema.property(name).or_else(|| schema.additional_properties())
}

/// The entry of a key that is an unescaped field name.
fn raw_entry<'a>(map: &Val<'a>, key: &Val<'_>) -> Option<Val<'a>> {
    match (map, key) {
        (Val::JsonMap(members, schema, _), Val::Text(name)) => {
            let below = schema.and_then(|schema| field_schema(schema, name));
            Some(Val::of(members.get(name.as_ref())?, below, false))
        }
        _ => map.index(key),
    }
}

fn lists_equal(a: &Val<'_>, b: &Val<'_>, steps: &mut Steps) -> bool {
    if a.len() != b.len() || !steps.take(a.len().unwrap_or(0) as u64) {
        return false;
    }
    let (Some(mut left), Some(mut right)) = (a.items(), b.items()) else { return false };
    if a.list_type() != ListType::Atomic && b.list_type() != ListType::Atomic {
        if !steps.take_all_of(a) || !steps.take_all_of(b) {
            return false;
        }
        // The order of sets and map lists is ignored: the items are sorted by their text.
        let text = |value: &Val<'_>| match value {
            Val::JsonMap(members, ..) => listwatch_meta::go::json(&Json::Object((*members).clone())),
            other => format!("{other:?}"),
        };
        left.sort_by_cached_key(text);
        right.sort_by_cached_key(text);
    }
    left.iter().zip(&right).all(|(a, b)| a.equals(b, steps))
}

/// The list position of a number, if it is a non-negative integer.
pub(crate) fn whole_index(key: &Val<'_>) -> Option<usize> {
    match key {
        Val::Int(index) => usize::try_from(*index).ok(),
        Val::Uint(index) => usize::try_from(*index).ok(),
        Val::Double(index) if index.fract() == 0.0 && *index >= 0.0 && *index < 1e15 => Some(*index as usize),
        _ => None,
    }
}

/// The property of an escaped name; the name itself if it is not escaped.
fn unescape(name: &str) -> String {
    if !name.contains("__") {
        return name.to_owned();
    }
    let plain = crate::types::unescape(name);
    if escape(&plain).as_deref() == Some(name) { plain } else { name.to_owned() }
}

/// Parses an RFC 3339 timestamp.
pub(crate) fn parse_timestamp(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339).ok()
}
