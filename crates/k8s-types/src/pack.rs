//! Packs the generated rows into statics, at compile time.
//!
//! ```text
//!  table::MESSAGES ─┬▶ MESSAGES     8 bytes a message
//!   (rows)          ├▶ FIELDS      14 bytes a field ─▶ CONSTRAINTS  20 bytes, for one field in nine
//!                   ├▶ BY_NUMBER    1 byte a field          │
//!                   └▶ NAMES                                ▼
//!                      all names in one string            TEXTS: map keys, merge keys, values, defaults
//! ```

use crate::table;
use crate::{Field, Id, ListType, MapType, Message, Name, Omit, Shape, Type};

/// Bits of `Field::marks`.
pub(crate) const REQUIRED: u8 = 1;
pub(crate) const LIST_BITS: u8 = 0b110;
pub(crate) const LIST_ATOMIC: u8 = 0b010;
pub(crate) const LIST_SET: u8 = 0b100;
pub(crate) const LIST_MAP: u8 = 0b110;
pub(crate) const MAP_BITS: u8 = 0b1_1000;
pub(crate) const MAP_ATOMIC: u8 = 0b0_1000;
pub(crate) const MAP_GRANULAR: u8 = 0b1_0000;
pub(crate) const PATCH_MERGE: u8 = 1 << 5;
pub(crate) const PATCH_REPLACE: u8 = 1 << 6;
pub(crate) const PATCH_RETAIN_KEYS: u8 = 1 << 7;

/// The bits of `Message::marks`: the index of the package, and two flags.
pub(crate) const PACKAGE_BITS: u8 = 0b0011_1111;
pub(crate) const ATOMIC: u8 = 1 << 6;
pub(crate) const OBJECT: u8 = 1 << 7;

/// A byte range in [`TEXTS`], the string that contains all texts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text {
    at: u16,
    len: u16,
}

impl Text {
    pub(crate) fn get(self) -> &'static str {
        TEXTS.get(usize::from(self.at)..usize::from(self.at) + usize::from(self.len)).unwrap_or_default()
    }
}

/// The textual facts of a field; empty if absent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Constraints {
    pub(crate) map_keys: Text,
    pub(crate) merge_key: Text,
    pub(crate) values: Text,
    pub(crate) item_values: Text,
    pub(crate) default: Text,
}

pub(crate) fn constraints(index: u16) -> &'static Constraints {
    &CONSTRAINTS[usize::from(index)]
}

// The generated rows.

pub(crate) struct KindRow {
    pub(crate) api_version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) message: Id,
}

pub(crate) const fn kind(api_version: &'static str, kind: &'static str, message: Id) -> KindRow {
    KindRow { api_version, kind, message }
}

pub(crate) struct MessageRow {
    id: Id,
    name: &'static str,
    marks: u8,
    fields: &'static [FieldRow],
}

pub(crate) const fn message(id: Id, package: u8, name: &'static str, fields: &'static [FieldRow]) -> MessageRow {
    assert!(package <= PACKAGE_BITS, "the packages outgrew their bits");
    MessageRow { id, name, marks: package, fields }
}

impl MessageRow {
    /// Marks that the message has `apiVersion` and `kind`.
    pub(crate) const fn object(mut self) -> Self {
        self.marks |= OBJECT;
        self
    }

    /// `x-kubernetes-map-type: atomic`.
    pub(crate) const fn atomic(mut self) -> Self {
        self.marks |= ATOMIC;
        self
    }
}

#[derive(Clone, Copy)]
pub(crate) struct FieldRow {
    name: &'static str,
    number: u8,
    shape: Shape,
    of: Type,
    omit: Omit,
    marks: u8,
    /// In the order of the members of [`Constraints`].
    texts: [&'static str; 5],
}

pub(crate) const fn field(name: &'static str, number: u8, shape: Shape, of: Type, omit: Omit) -> FieldRow {
    FieldRow { name, number, shape, of, omit, marks: 0, texts: [""; 5] }
}

impl FieldRow {
    pub(crate) const fn required(self) -> Self {
        self.mark(REQUIRED)
    }

    /// `x-kubernetes-list-type`.
    pub(crate) const fn list(self, of: ListType) -> Self {
        match of {
            ListType::Atomic => self.mark(LIST_ATOMIC),
            ListType::Set => self.mark(LIST_SET),
            ListType::Map => self.mark(LIST_MAP),
        }
    }

    /// `x-kubernetes-list-map-keys`, separated by `|`, of a list of type `map`.
    pub(crate) const fn keys(self, keys: &'static str) -> Self {
        self.list(ListType::Map).text(0, keys)
    }

    /// `x-kubernetes-map-type`.
    pub(crate) const fn map(self, of: MapType) -> Self {
        match of {
            MapType::Atomic => self.mark(MAP_ATOMIC),
            MapType::Granular => self.mark(MAP_GRANULAR),
        }
    }

    /// `x-kubernetes-patch-strategy: merge`, without a merge key.
    pub(crate) const fn merge(self) -> Self {
        self.mark(PATCH_MERGE)
    }

    /// `x-kubernetes-patch-strategy: merge` with a merge key.
    pub(crate) const fn merge_by(self, key: &'static str) -> Self {
        self.merge().text(1, key)
    }

    /// `x-kubernetes-patch-strategy: replace`.
    pub(crate) const fn replace(self) -> Self {
        self.mark(PATCH_REPLACE)
    }

    /// `x-kubernetes-patch-strategy: retainKeys`.
    pub(crate) const fn retain_keys(self) -> Self {
        self.mark(PATCH_RETAIN_KEYS)
    }

    /// The permitted values, separated by `|`.
    pub(crate) const fn one_of(self, values: &'static str) -> Self {
        self.text(2, values)
    }

    /// The permitted values of items, separated by `|`.
    pub(crate) const fn each_one_of(self, values: &'static str) -> Self {
        self.text(3, values)
    }

    /// The default as JSON.
    pub(crate) const fn default(self, json: &'static str) -> Self {
        self.text(4, json)
    }

    const fn mark(mut self, bits: u8) -> Self {
        self.marks |= bits;
        self
    }

    const fn text(mut self, at: usize, text: &'static str) -> Self {
        self.texts[at] = text;
        self
    }

    const fn texts_bytes(&self) -> usize {
        let (mut bytes, mut at) = (0, 0);
        while at < self.texts.len() {
            bytes += self.texts[at].len();
            at += 1;
        }
        bytes
    }
}

const ROWS: &[MessageRow] = table::MESSAGES;

/// The numbers of rows and bytes of the packed table.
struct Totals {
    fields: usize,
    names_bytes: usize,
    constraints: usize,
    texts_bytes: usize,
}

const TOTALS: Totals = {
    // Index 0 is for fields without constraints.
    let mut totals = Totals { fields: 0, names_bytes: 0, constraints: 1, texts_bytes: 0 };
    let mut row = 0;
    while row < ROWS.len() {
        totals.names_bytes += ROWS[row].name.len();
        totals.fields += ROWS[row].fields.len();
        let mut place = 0;
        while place < ROWS[row].fields.len() {
            let field = &ROWS[row].fields[place];
            totals.names_bytes += field.name.len();
            let bytes = field.texts_bytes();
            totals.constraints += (bytes > 0) as usize;
            totals.texts_bytes += bytes;
            place += 1;
        }
        row += 1;
    }
    let max = u16::MAX as usize;
    assert!(totals.fields <= max && totals.names_bytes <= max, "the table outgrew 16-bit positions");
    assert!(totals.constraints <= max && totals.texts_bytes <= max, "the constraints outgrew 16-bit positions");
    totals
};

pub(crate) static MESSAGES: [Message; ROWS.len()] = PACKED.messages;
pub(crate) static FIELDS: [Field; TOTALS.fields] = PACKED.fields;
pub(crate) static BY_NUMBER: [u8; TOTALS.fields] = PACKED.by_number;
static CONSTRAINTS: [Constraints; TOTALS.constraints] = PACKED.constraints;
pub(crate) static NAME_BYTES: [u8; TOTALS.names_bytes] = PACKED.names;
static TEXT_BYTES: [u8; TOTALS.texts_bytes] = PACKED.texts;
// Constants, because dependent crates need their lengths at compile time.
pub(crate) const NAMES: &str = text(&NAME_BYTES);
const TEXTS: &str = text(&TEXT_BYTES);

const fn text(bytes: &'static [u8]) -> &'static str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => panic!("names are UTF-8"),
    }
}

struct Packed {
    messages: [Message; ROWS.len()],
    fields: [Field; TOTALS.fields],
    by_number: [u8; TOTALS.fields],
    constraints: [Constraints; TOTALS.constraints],
    names: [u8; TOTALS.names_bytes],
    texts: [u8; TOTALS.texts_bytes],
}

const PACKED: Packed = {
    const NO_NAME: Name = Name { at: 0, len: 0 };
    const NO_TEXT: Text = Text { at: 0, len: 0 };
    const NO_FIELD: Field = Field {
        name: NO_NAME,
        number: 0,
        shape: Shape::One,
        omit: Omit::Never,
        of: Type::String,
        marks: 0,
        constraints: 0,
    };
    const NO_CONSTRAINTS: Constraints =
        Constraints { map_keys: NO_TEXT, merge_key: NO_TEXT, values: NO_TEXT, item_values: NO_TEXT, default: NO_TEXT };
    let mut packed = Packed {
        messages: [Message { name: NO_NAME, first: 0, len: 0, marks: 0 }; ROWS.len()],
        fields: [NO_FIELD; TOTALS.fields],
        by_number: [0; TOTALS.fields],
        constraints: [NO_CONSTRAINTS; TOTALS.constraints],
        names: [0; TOTALS.names_bytes],
        texts: [0; TOTALS.texts_bytes],
    };
    let (mut row, mut first, mut names_at, mut texts_at, mut constraints) = (0, 0, 0, 0, 1);
    while row < ROWS.len() {
        let MessageRow { id, name, marks, fields: own } = &ROWS[row];
        assert!(*id as usize == row, "the row of a message is at its identifier's index");
        assert!(own.len() <= u8::MAX as usize, "a message outgrew 8-bit positions");
        let name = Name { at: names_at as u16, len: push(&mut packed.names, &mut names_at, name) as u8 };
        packed.messages[row] = Message { name, first: first as u16, len: own.len() as u8, marks: *marks };
        let mut place = 0;
        while place < own.len() {
            let FieldRow { name, number, shape, of, omit, marks, texts } = own[place];
            assert!(name.len() <= u8::MAX as usize, "a name outgrew its 8-bit length");
            let name = Name { at: names_at as u16, len: push(&mut packed.names, &mut names_at, name) as u8 };
            let index = if own[place].texts_bytes() == 0 {
                0
            } else {
                let mut places = [NO_TEXT; 5];
                let mut at = 0;
                while at < places.len() {
                    places[at].at = texts_at as u16;
                    places[at].len = push(&mut packed.texts, &mut texts_at, texts[at]) as u16;
                    at += 1;
                }
                let [map_keys, merge_key, values, item_values, default] = places;
                packed.constraints[constraints] = Constraints { map_keys, merge_key, values, item_values, default };
                constraints += 1;
                constraints - 1
            };
            packed.fields[first + place] = Field { name, number, shape, omit, of, marks, constraints: index as u16 };
            // Insertion sort, because a message has a few dozen fields, nearly sorted.
            let mut slot = place;
            while slot > 0 && own[packed.by_number[first + slot - 1] as usize].number > number {
                packed.by_number[first + slot] = packed.by_number[first + slot - 1];
                slot -= 1;
            }
            packed.by_number[first + slot] = place as u8;
            place += 1;
        }
        first += own.len();
        row += 1;
    }
    packed
};

/// Appends a text and returns its length.
const fn push(into: &mut [u8], at: &mut usize, text: &str) -> usize {
    let mut byte = 0;
    while byte < text.len() {
        into[*at] = text.as_bytes()[byte];
        *at += 1;
        byte += 1;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::{BY_NUMBER, CONSTRAINTS, FIELDS, MESSAGES, NAMES, TEXTS};

    #[test]
    fn packed_table_stays_below_96_kib() {
        let bytes = size_of_val(&FIELDS) + size_of_val(&MESSAGES) + size_of_val(&CONSTRAINTS);
        let bytes = bytes + BY_NUMBER.len() + NAMES.len() + TEXTS.len();
        assert!(bytes < 96 << 10, "the packed table has {bytes} bytes");
    }
}
