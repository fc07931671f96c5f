//! What is known of Kubernetes' types: a table in the binary's read-only data.
//!
//! The generated rows ([`super::table`]) are for people and for the compiler only. While the crate
//! is compiled they are packed: ten bytes a field, all names in one string, no pointer that the
//! loader would have to relocate, nothing to parse or to allocate at start-up. The whole table is
//! about 70 KB of shared, read-only memory, of which a server that is asked for pods touches a few
//! pages.

use super::table;
pub use super::table::Id;

/// How often a field occurs, and what stands for its absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Shape {
    /// Once; Go writes it even where it is zero.
    One,
    /// Once or not at all: a pointer in Go.
    Pointer,
    /// Once, and its members are members of the object around it: an embedded struct in Go.
    Inline,
    /// A list.
    Repeated,
    /// A map with strings for keys.
    Map,
}

/// When Go's JSON leaves a member out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Omit {
    /// Never; an absent pointer, list or map is `null`.
    Never,
    /// `omitempty`: `false`, `0`, `""`, an absent pointer, an empty list or map; never a struct.
    Empty,
    /// `omitzero`: as `Empty`, and a struct that is zero.
    Zero,
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// `metav1.Time`: seconds; RFC 3339 in JSON, `null` for none.
    Time,
    /// `metav1.MicroTime`: seconds and microseconds; RFC 3339 with six digits in JSON.
    MicroTime,
    /// `resource.Quantity`: a message around text; a string (or number) in JSON.
    Quantity,
    /// `intstr.IntOrString`: a tagged union; a number or a string in JSON.
    IntOrString,
    /// `runtime.RawExtension`, `metav1.FieldsV1`, `apiextensions.JSON`: a message around JSON text.
    Raw,
    /// A named list of strings: a message around `repeated string` so that maps can hold it.
    Strings,
    /// `apiextensions.JSONSchemaPropsOrBool`: a schema or a boolean.
    PropsOrBool(Id),
    /// `apiextensions.JSONSchemaPropsOrArray`: a schema or a list of schemas.
    PropsOrArray(Id),
    /// `apiextensions.JSONSchemaPropsOrStringArray`: a schema or a list of strings.
    PropsOrStrings(Id),
}

/// How deeply embedded structs may embed others. Kubernetes has two levels.
pub(super) const INLINE_DEPTH_MAX: usize = 3;

/// A place in [`NAMES`]. The longest name has fewer than 256 bytes.
#[derive(Clone, Copy, Debug)]
struct Name {
    at: u16,
    len: u8,
}

impl Name {
    fn get(self) -> &'static str {
        NAMES.get(usize::from(self.at)..usize::from(self.at) + usize::from(self.len)).unwrap_or_default()
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
}

impl Field {
    /// What JSON calls it; empty for an inline message.
    pub fn name(&self) -> &'static str {
        self.name.get()
    }

    /// Whether `name` is what JSON calls it.
    pub(super) fn is_called(&self, name: &str) -> bool {
        usize::from(self.name.len) == name.len() && self.name.get() == name && !name.is_empty()
    }

    /// Its number on the wire; Kubernetes has none above 255.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// How often it occurs.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// When JSON leaves it out.
    pub fn omit(&self) -> Omit {
        self.omit
    }

    /// What it (or each element, or each value) holds.
    pub fn of(&self) -> Type {
        self.of
    }
}

/// A message of the table.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    name: Name,
    first: u16,
    len: u8,
}

impl Message {
    /// Its name without its package, e.g. `PodSpec`.
    pub fn name(&self) -> &'static str {
        self.name.get()
    }

    /// Its fields in the order in which Go prints them in JSON.
    pub fn fields(&self) -> &'static [Field] {
        FIELDS.get(usize::from(self.first)..usize::from(self.first) + usize::from(self.len)).unwrap_or_default()
    }

    /// Its fields by ascending number, the order in which Go writes them: places in
    /// [`Message::fields`].
    pub(super) fn by_number(&self) -> &'static [u8] {
        BY_NUMBER.get(usize::from(self.first)..usize::from(self.first) + usize::from(self.len)).unwrap_or_default()
    }
}

impl Id {
    /// What is known of the message.
    pub fn message(self) -> &'static Message {
        // The rows stand in the order of the identifiers; `pack_messages` would not compile if not.
        &MESSAGES[self as usize]
    }
}

/// The message of a kind, by the `apiVersion` and `kind` of an object. Options such as
/// `DeleteOptions` belong to every group and version.
pub fn message_of(api_version: &str, kind: &str) -> Option<Id> {
    let find = |api_version: &str| {
        let place = table::KINDS.binary_search_by(|row| (row.api_version, row.kind).cmp(&(api_version, kind)));
        place.ok().map(|place| table::KINDS[place].message)
    };
    // The older name of the same types.
    let api_version = if api_version == "meta.k8s.io/v1beta1" { "meta.k8s.io/v1" } else { api_version };
    find(api_version).or_else(|| find(""))
}

/// Every kind of the table, as (`apiVersion`, `kind`, message), sorted. An empty `apiVersion` stands
/// for every group and version.
pub fn kinds() -> impl Iterator<Item = (&'static str, &'static str, Id)> {
    table::KINDS.iter().map(|row| (row.api_version, row.kind, row.message))
}

// The rows as they are generated, and how they are packed. All of this happens in the compiler.

pub(super) struct KindRow {
    api_version: &'static str,
    kind: &'static str,
    message: Id,
}

pub(super) const fn kind(api_version: &'static str, kind: &'static str, message: Id) -> KindRow {
    KindRow { api_version, kind, message }
}

pub(super) struct MessageRow {
    id: Id,
    name: &'static str,
    fields: &'static [FieldRow],
}

pub(super) const fn message(id: Id, name: &'static str, fields: &'static [FieldRow]) -> MessageRow {
    MessageRow { id, name, fields }
}

#[derive(Clone, Copy)]
pub(super) struct FieldRow {
    name: &'static str,
    number: u8,
    shape: Shape,
    of: Type,
    omit: Omit,
}

pub(super) const fn field(name: &'static str, number: u8, shape: Shape, of: Type, omit: Omit) -> FieldRow {
    FieldRow { name, number, shape, of, omit }
}

const ROWS: &[MessageRow] = table::MESSAGES;

/// How many fields there are, and how long all names are.
const TOTALS: (usize, usize) = {
    let (mut fields, mut bytes, mut row) = (0, 0, 0);
    while row < ROWS.len() {
        bytes += ROWS[row].name.len();
        fields += ROWS[row].fields.len();
        let mut place = 0;
        while place < ROWS[row].fields.len() {
            bytes += ROWS[row].fields[place].name.len();
            place += 1;
        }
        row += 1;
    }
    assert!(fields <= u16::MAX as usize && bytes <= u16::MAX as usize, "the table outgrew 16-bit places");
    (fields, bytes)
};

static MESSAGES: [Message; ROWS.len()] = PACKED.0;
static FIELDS: [Field; TOTALS.0] = PACKED.1;
static BY_NUMBER: [u8; TOTALS.0] = PACKED.2;
static NAME_BYTES: [u8; TOTALS.1] = PACKED.3;
static NAMES: &str = match std::str::from_utf8(&NAME_BYTES) {
    Ok(names) => names,
    Err(_) => panic!("names are text"),
};

type Packed = ([Message; ROWS.len()], [Field; TOTALS.0], [u8; TOTALS.0], [u8; TOTALS.1]);

const PACKED: Packed = {
    let nothing = Name { at: 0, len: 0 };
    let mut messages = [Message { name: nothing, first: 0, len: 0 }; ROWS.len()];
    let zero = Field { name: nothing, number: 0, shape: Shape::One, omit: Omit::Never, of: Type::String };
    let mut fields = [zero; TOTALS.0];
    let mut by_number = [0; TOTALS.0];
    let mut names = [0; TOTALS.1];
    let (mut row, mut first, mut at) = (0, 0, 0);
    while row < ROWS.len() {
        let MessageRow { id, name, fields: own } = &ROWS[row];
        assert!(*id as usize == row, "a message stands in the place of its identifier");
        messages[row] =
            Message { name: pack_name(&mut names, &mut at, name), first: first as u16, len: own.len() as u8 };
        let mut place = 0;
        while place < own.len() {
            let FieldRow { name, number, shape, of, omit } = own[place];
            fields[first + place] = Field { name: pack_name(&mut names, &mut at, name), number, shape, omit, of };
            // Insertion sort: a message has a few dozen fields, nearly sorted.
            let mut slot = place;
            while slot > 0 && own[by_number[first + slot - 1] as usize].number > number {
                by_number[first + slot] = by_number[first + slot - 1];
                slot -= 1;
            }
            by_number[first + slot] = place as u8;
            place += 1;
        }
        first += own.len();
        row += 1;
    }
    (messages, fields, by_number, names)
};

const fn pack_name(names: &mut [u8], at: &mut usize, name: &str) -> Name {
    let packed = Name { at: *at as u16, len: name.len() as u8 };
    let mut byte = 0;
    while byte < name.len() {
        names[*at] = name.as_bytes()[byte];
        *at += 1;
        byte += 1;
    }
    packed
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{FIELDS, MESSAGES, NAMES, Omit, Shape, Type, kinds, message_of};

    #[test]
    fn the_table_is_small_and_sorted() {
        let bytes = size_of_val(&FIELDS) + size_of_val(&MESSAGES) + FIELDS.len() + NAMES.len();
        assert!(bytes < 80 << 10, "the packed table has {bytes} bytes");
        let kinds: Vec<_> = kinds().map(|(api_version, kind, _)| (api_version, kind)).collect();
        assert!(kinds.is_sorted(), "kinds are found by bisection");
        for message in &MESSAGES {
            let numbers: Vec<u8> =
                message.by_number().iter().map(|&f| message.fields()[usize::from(f)].number).collect();
            assert!(numbers.is_sorted(), "{}: {numbers:?}", message.name());
            assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), numbers.len(), "{}", message.name());
            let zero = message.fields().iter().filter(|field| field.omit() == Omit::Zero);
            assert!(zero.map(|field| field.of()).all(|of| of == Type::Time), "`omitzero` is known for times alone");
        }
    }

    #[test]
    fn members_of_one_object_have_one_name_each() {
        fn names(id: super::Id, depth: usize, into: &mut Vec<&'static str>) {
            assert!(depth <= super::INLINE_DEPTH_MAX, "{id:?} is embedded too deeply");
            for field in id.message().fields() {
                match (field.shape(), field.of()) {
                    (Shape::Inline, Type::Message(inner)) => names(inner, depth + 1, into),
                    (Shape::Inline, other) => panic!("{id:?} embeds {other:?}"),
                    _ => into.push(field.name()),
                }
            }
        }
        for (_, kind, id) in kinds() {
            let mut seen = Vec::new();
            names(id, 0, &mut seen);
            assert_eq!(seen.iter().collect::<HashSet<_>>().len(), seen.len(), "{kind}: {seen:?}");
            // Names are written into JSON as they are.
            let plain = |name: &&str| {
                !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"$-_".contains(&b))
            };
            assert!(seen.iter().all(plain), "{kind}: {seen:?}");
        }
    }

    #[test]
    fn kinds_are_found_by_their_names() {
        for (api_version, kind, found) in [
            ("v1", "Pod", Some("Pod")),
            ("v1", "PodList", Some("PodList")),
            ("apps/v1", "Pod", None),
            ("apps/v1", "DeleteOptions", Some("DeleteOptions")),
            ("v1", "Status", Some("Status")),
            ("autoscaling/v1", "Scale", Some("Scale")),
            ("policy/v1", "Eviction", Some("Eviction")),
            ("example.com/v1", "Widget", None),
            ("v1", "", None),
        ] {
            assert_eq!(message_of(api_version, kind).map(|id| id.message().name()), found, "{api_version} {kind}");
        }
    }
}
