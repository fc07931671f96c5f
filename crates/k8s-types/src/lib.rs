//! The built-in types of Kubernetes as data: one generated table of messages and fields.
//!
//! | fact of a field | readers |
//! |---|---|
//! | JSON name, field number, [`Shape`], [`Type`], [`Omit`] | protobuf ↔ JSON, strict decoding, OpenAPI, server-side apply |
//! | [required](Field::is_required), [values](Field::values), [default](Field::default_json) | OpenAPI, strict decoding |
//! | [list type](Field::list_type), [map keys](Field::map_keys), [map type](Field::map_type) | OpenAPI, server-side apply |
//! | [patch strategy](Field::patch_strategy), [merge key](Field::merge_key) | OpenAPI, strategic merge patch |
//!
//! `cargo xtask codegen` generates the table from Kubernetes' published sources, which the README
//! of this crate lists. The table contains only the types that served kinds use.
//!
//! The compiler packs the generated rows: 14 bytes per field, all names in one string, no pointers. Nothing is parsed
//! or allocated at start-up. The table is shared, read-only memory. A process loads only the pages that it reads.
//!
//! ```
//! use listwatch_k8s_types::{Id, ListType, message_of};
//!
//! let pod = message_of("v1", "Pod").ok_or("no such kind")?.message();
//! assert_eq!(pod.model(), "io.k8s.api.core.v1.Pod");
//! let ports = Id::CoreContainer.message().field("ports").ok_or("no such field")?;
//! assert_eq!((ports.number(), ports.list_type()), (6, Some(ListType::Map)));
//! assert_eq!(ports.map_keys().collect::<Vec<_>>(), ["containerPort", "protocol"]);
//! # Ok::<(), &str>(())
//! ```

mod pack;
#[rustfmt::skip]
mod table;
#[cfg(test)]
mod tests;

pub use table::{Id, RELEASE};

use pack::{Constraints, MESSAGES};

/// The cardinality of a field, and whether Go declares the field as a pointer or inline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Shape {
    /// One value. Go writes it to protobuf even if it is zero.
    One,
    /// An optional value: a pointer in Go.
    Pointer,
    /// An embedded struct in Go: its members are members of the enclosing object.
    Inline,
    /// A list.
    Repeated,
    /// A map with strings as keys.
    Map,
}

/// The condition under which Go's JSON omits a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Omit {
    /// Never omitted. An absent pointer, list or map is `null`.
    Never,
    /// `omitempty`: `false`, `0`, `""`, an absent pointer, an empty list or map; never a struct.
    Empty,
    /// `omitzero`: as `Empty`, and also a zero struct.
    Zero,
}

/// The type of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// UTF-8 text.
    String,
    /// `true` or `false`.
    Bool,
    /// A 32-bit integer, as a varint.
    Int32,
    /// A 64-bit integer, as a varint.
    Int64,
    /// A double, eight bytes.
    Double,
    /// Bytes; base64 in JSON.
    Bytes,
    /// Another message.
    Message(Id),
    /// `metav1.Time`: seconds in protobuf; RFC 3339 or `null` in JSON.
    Time,
    /// `metav1.MicroTime`: seconds and microseconds in protobuf; RFC 3339 with six fractional
    /// digits in JSON.
    MicroTime,
    /// `resource.Quantity`: a message with a string in protobuf; a string or number in JSON.
    Quantity,
    /// `intstr.IntOrString`: a tagged union; a number or a string in JSON.
    IntOrString,
    /// `runtime.RawExtension`, `metav1.FieldsV1`, `apiextensions.JSON`: a message with JSON text in
    /// protobuf.
    Raw,
    /// A named list of strings: a message with `repeated string`, so that maps can contain it.
    Strings,
    /// `apiextensions.JSONSchemaPropsOrBool`: a schema or a boolean.
    PropsOrBool(Id),
    /// `apiextensions.JSONSchemaPropsOrArray`: a schema or a list of schemas.
    PropsOrArray(Id),
    /// `apiextensions.JSONSchemaPropsOrStringArray`: a schema or a list of strings.
    PropsOrStrings(Id),
}

/// `x-kubernetes-list-type`: the merge and uniqueness rules of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ListType {
    /// The list is one value.
    Atomic,
    /// The items are unique scalars.
    Set,
    /// The items are objects, identified by the fields of [`Field::map_keys`].
    Map,
}

impl ListType {
    /// The value of the OpenAPI extension.
    pub fn as_str(self) -> &'static str {
        match self {
            ListType::Atomic => "atomic",
            ListType::Set => "set",
            ListType::Map => "map",
        }
    }
}

/// `x-kubernetes-map-type`: the merge rule of a map or struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MapType {
    /// The map is one value.
    Atomic,
    /// Each member is a separate value.
    Granular,
}

impl MapType {
    /// The value of the OpenAPI extension.
    pub fn as_str(self) -> &'static str {
        match self {
            MapType::Atomic => "atomic",
            MapType::Granular => "granular",
        }
    }
}

/// `x-kubernetes-patch-strategy`: the treatment of a field by a strategic merge patch. Without a
/// strategy an object is merged field by field and a list is replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatchStrategy {
    /// List items are merged: by [`Field::merge_key`], or as a set without a key.
    pub merge: bool,
    /// The value is replaced as a whole.
    pub replace: bool,
    /// The patch lists the members to keep (`$retainKeys`).
    pub retain_keys: bool,
}

impl PatchStrategy {
    /// The value of the OpenAPI extension; `None` if there is no strategy.
    pub fn text(self) -> Option<String> {
        let names = [(self.merge, "merge"), (self.replace, "replace"), (self.retain_keys, "retainKeys")];
        let names: Vec<&str> = names.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| *name).collect();
        (!names.is_empty()).then(|| names.join(","))
    }
}

/// The nesting depth of embedded structs. Kubernetes has two levels.
pub const INLINE_DEPTH_MAX: usize = 3;

/// A range in the string of all names. The longest name has fewer than 256 bytes.
#[derive(Clone, Copy, Debug)]
struct Name {
    at: u16,
    len: u8,
}

impl Name {
    #[inline]
    fn get(self) -> &'static str {
        pack::NAMES.get(usize::from(self.at)..usize::from(self.at) + usize::from(self.len)).unwrap_or_default()
    }
}

/// A field of a message.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    name: Name,
    number: u8,
    shape: Shape,
    omit: Omit,
    of: Type,
    /// Bits defined in [`pack`]: required, list type, map type, patch strategy.
    marks: u8,
    /// The index of the field's [`Constraints`]; 0 for none.
    constraints: u16,
}

impl Field {
    /// The JSON name; empty for an inline message.
    #[inline]
    pub fn name(&self) -> &'static str {
        self.name.get()
    }

    /// True if `name` is the JSON name. Inline messages have none.
    #[inline]
    pub fn is_named(&self, name: &str) -> bool {
        // A comparison of bytes needs no check of character boundaries; this is the hot path of
        // protobuf encoding.
        let at = usize::from(self.name.at);
        usize::from(self.name.len) == name.len()
            && !name.is_empty()
            && pack::NAME_BYTES.get(at..at + name.len()) == Some(name.as_bytes())
    }

    /// The protobuf field number. All field numbers of Kubernetes are below 256.
    #[inline]
    pub fn number(&self) -> u8 {
        self.number
    }

    /// The cardinality of the field.
    #[inline]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The condition under which JSON omits the field.
    #[inline]
    pub fn omit(&self) -> Omit {
        self.omit
    }

    /// The type of the field, of its items, or of its map values.
    #[inline]
    pub fn of(&self) -> Type {
        self.of
    }

    /// True if every object must have the field.
    pub fn is_required(&self) -> bool {
        self.marks & pack::REQUIRED != 0
    }

    /// `x-kubernetes-list-type`.
    pub fn list_type(&self) -> Option<ListType> {
        match self.marks & pack::LIST_BITS {
            pack::LIST_ATOMIC => Some(ListType::Atomic),
            pack::LIST_SET => Some(ListType::Set),
            pack::LIST_MAP => Some(ListType::Map),
            _ => None,
        }
    }

    /// `x-kubernetes-list-map-keys`: the fields that identify an item of a list of type `map`.
    pub fn map_keys(&self) -> impl Iterator<Item = &'static str> + use<> {
        split(self.constraints().map_keys.get())
    }

    /// `x-kubernetes-map-type` of this field. [`Message::map_type`] is that of the field's type.
    pub fn map_type(&self) -> Option<MapType> {
        match self.marks & pack::MAP_BITS {
            pack::MAP_ATOMIC => Some(MapType::Atomic),
            pack::MAP_GRANULAR => Some(MapType::Granular),
            _ => None,
        }
    }

    /// `x-kubernetes-patch-strategy`.
    pub fn patch_strategy(&self) -> PatchStrategy {
        PatchStrategy {
            merge: self.marks & pack::PATCH_MERGE != 0,
            replace: self.marks & pack::PATCH_REPLACE != 0,
            retain_keys: self.marks & pack::PATCH_RETAIN_KEYS != 0,
        }
    }

    /// `x-kubernetes-patch-merge-key`.
    pub fn merge_key(&self) -> Option<&'static str> {
        Some(self.constraints().merge_key.get()).filter(|key| !key.is_empty())
    }

    /// The permitted values, sorted; empty if the field is not an enumeration.
    pub fn values(&self) -> impl Iterator<Item = &'static str> + use<> {
        split(self.constraints().values.get())
    }

    /// The permitted values of items, sorted; empty if the items are not an enumeration.
    pub fn item_values(&self) -> impl Iterator<Item = &'static str> + use<> {
        split(self.constraints().item_values.get())
    }

    /// The default as JSON. If Go writes the field even when it is zero, the default is the zero
    /// value.
    pub fn default_json(&self) -> Option<&'static str> {
        let default = self.constraints().default.get();
        if !default.is_empty() {
            return Some(default);
        }
        match (self.shape, self.of, self.omit) {
            (Shape::One, Type::Message(_), _) => Some("{}"),
            (Shape::One, Type::String, Omit::Never) => Some("\"\""),
            (Shape::One, Type::Bool, Omit::Never) => Some("false"),
            (Shape::One, Type::Int32 | Type::Int64 | Type::Double, Omit::Never) => Some("0"),
            _ => None,
        }
    }

    fn constraints(&self) -> &'static Constraints {
        pack::constraints(self.constraints)
    }
}

/// Splits a text at `|`. An empty text has no parts. A part may be empty.
fn split(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.split('|').take(if text.is_empty() { 0 } else { usize::MAX })
}

/// A message of the table.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    name: Name,
    first: u16,
    len: u8,
    /// The index of the package, and bits defined in [`pack`].
    marks: u8,
}

impl Message {
    /// The name without its package, e.g. `PodSpec`.
    #[inline]
    pub fn name(&self) -> &'static str {
        self.name.get()
    }

    /// The OpenAPI package, e.g. `io.k8s.api.core.v1`.
    pub fn package(&self) -> &'static str {
        table::PACKAGES.get(usize::from(self.marks & pack::PACKAGE_BITS)).copied().unwrap_or_default()
    }

    /// The OpenAPI name, e.g. `io.k8s.api.core.v1.Pod`.
    pub fn model(&self) -> String {
        format!("{}.{}", self.package(), self.name())
    }

    /// True if the message has `apiVersion` and `kind`.
    pub fn is_object(&self) -> bool {
        self.marks & pack::OBJECT != 0
    }

    /// `x-kubernetes-map-type` of the type.
    pub fn map_type(&self) -> Option<MapType> {
        (self.marks & pack::ATOMIC != 0).then_some(MapType::Atomic)
    }

    /// The fields in the order in which Go writes JSON.
    #[inline]
    pub fn fields(&self) -> &'static [Field] {
        pack::FIELDS.get(usize::from(self.first)..usize::from(self.first) + usize::from(self.len)).unwrap_or_default()
    }

    /// The indexes of [`Message::fields`] by ascending number, which is the order in which Go
    /// writes protobuf.
    #[inline]
    pub fn by_number(&self) -> &'static [u8] {
        pack::BY_NUMBER
            .get(usize::from(self.first)..usize::from(self.first) + usize::from(self.len))
            .unwrap_or_default()
    }

    /// The members in JSON: the fields, with the members of inline messages at their positions.
    pub fn members(&self) -> Vec<&'static Field> {
        let mut members = Vec::with_capacity(self.fields().len());
        self.push_members(&mut members);
        members
    }

    fn push_members(&self, members: &mut Vec<&'static Field>) {
        for field in self.fields() {
            match (field.shape, field.of) {
                (Shape::Inline, Type::Message(inline)) => inline.message().push_members(members),
                _ => members.push(field),
            }
        }
    }

    /// The field with this JSON name, without the members of inline messages, which have no name. Most objects have their
    /// members in the order of the fields. The search therefore starts at the index `next`, and sets `next` to the index
    /// behind the found field.
    #[inline]
    pub fn own_field_in_order(&self, name: &str, next: &mut usize) -> Option<&'static Field> {
        let fields = self.fields();
        let (before, after) = fields.split_at((*next).min(fields.len()));
        let is_found = |field: &Field| field.is_named(name);
        let at = after.iter().position(is_found).map(|at| before.len() + at);
        let at = at.or_else(|| before.iter().position(is_found))?;
        *next = at + 1;
        Some(&fields[at])
    }

    /// The member with this JSON name, as [`Message::field`] returns it, searched like
    /// [`Message::own_field_in_order`].
    pub fn field_in_order(&self, name: &str, next: &mut usize) -> Option<&'static Field> {
        self.own_field_in_order(name, next).or_else(|| self.field(name))
    }

    /// The member with this JSON name, including members of inline messages.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields().iter().find_map(|field| match (field.shape, field.of) {
            (Shape::Inline, Type::Message(inline)) => inline.message().field(name),
            _ => field.is_named(name).then_some(field),
        })
    }
}

impl Id {
    /// The row of the message.
    #[inline]
    pub fn message(self) -> &'static Message {
        // The rows have the order of the identifiers; `pack` checks this at compile time.
        &MESSAGES[self as usize]
    }
}

/// The message of an object's `apiVersion` and `kind`. Options such as `DeleteOptions` belong to
/// each group and version.
#[inline]
pub fn message_of(api_version: &str, kind: &str) -> Option<Id> {
    let find = |api_version: &str| {
        let place = table::KINDS.binary_search_by(|row| (row.api_version, row.kind).cmp(&(api_version, kind)));
        place.ok().map(|place| table::KINDS[place].message)
    };
    // The older name of the same group.
    let api_version = if api_version == "meta.k8s.io/v1beta1" { "meta.k8s.io/v1" } else { api_version };
    find(api_version).or_else(|| find(""))
}

/// Each kind of the table, as (`apiVersion`, `kind`, message), sorted. An empty `apiVersion` means
/// every group and version.
pub fn kinds() -> impl Iterator<Item = (&'static str, &'static str, Id)> {
    table::KINDS.iter().map(|row| (row.api_version, row.kind, row.message))
}
