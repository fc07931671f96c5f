//! Encodes JSON as protobuf, byte-equal to Go's encoding of the same object.
//!
//! The JSON is read once, without a tree: by [`compact`], or by serde if it is not compact. Each member is appended in
//! the order of the JSON. At the end of an object its fields are sorted by number. The zero values that Go always
//! writes are added, and embedded structs become messages. The length of the object is then known. Each byte is moved
//! about twice per level with `memcpy`. Only the encoder's few buffers are allocated, which a list reuses for all its
//! objects.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde_json::value::RawValue;

use super::DEPTH_MAX;
use super::compact;
use super::decode::UnknownFields;
use super::error::EncodeError;
use crate::forms;
use listwatch_k8s_types::{Field, INLINE_DEPTH_MAX, Id, Message, Shape, Type};

/// Encodes the message of a JSON object.
pub(super) fn object(id: Id, json: &[u8], unknown: UnknownFields) -> Result<Vec<u8>, EncodeError> {
    let mut encoder = Encoder { is_strict: unknown == UnknownFields::Rejected, ..Encoder::default() };
    encoder.object(id, json)?;
    Ok(encoder.out)
}

/// Encodes the message of a JSON object as [`object`] does, always by serde.
#[cfg(test)]
pub(super) fn object_by_serde(id: Id, json: &[u8], unknown: UnknownFields) -> Result<Vec<u8>, EncodeError> {
    let mut encoder = Encoder { is_strict: unknown == UnknownFields::Rejected, ..Encoder::default() };
    encoder.by_serde(id, json)?;
    Ok(encoder.out)
}

/// The bytes of one field in [`Encoder::out`], with its tags.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// The field's number after those of its enclosing embedded structs: one byte per level,
    /// outermost first. Sorting by this key gives the order of the message.
    pub(super) key: u32,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Part {
    fn number(self, level: usize) -> u8 {
        self.key.to_be_bytes().get(level).copied().unwrap_or_default()
    }
}

const _: () = assert!(INLINE_DEPTH_MAX < size_of::<u32>(), "a key has a byte for each level");

/// The buffers of an encoding, which are reused for further objects.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    /// A stack: the bytes of an open object follow those of its enclosing objects.
    pub(super) out: Vec<u8>,
    pub(super) parts: Vec<Part>,
    /// A stack of the entries of open maps.
    entries: Vec<Entry>,
    /// Scratch space for one message.
    scratch: Vec<u8>,
    /// The open members with their messages; after an error, its location.
    path: Vec<(Id, &'static str)>,
    /// Whether JSON that a decoder does not return is an error: a member that the message does not have, and nesting
    /// of [`DEPTH_MAX`] levels.
    pub(super) is_strict: bool,
}

/// The position of an open map in the buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenMap {
    base: usize,
    first: usize,
}

/// An entry of a map: its position in [`Encoder::out`], and the end of its key.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: usize,
    key_start: usize,
    key_end: usize,
    end: usize,
}

impl Encoder {
    /// Encodes the message of a JSON object.
    pub(super) fn object(&mut self, id: Id, json: &[u8]) -> Result<&[u8], EncodeError> {
        self.begin(json);
        match compact::encode(self, id, json) {
            Some(()) => Ok(&self.out),
            None => self.by_serde(id, json),
        }
    }

    fn begin(&mut self, json: &[u8]) {
        self.out.clear();
        self.parts.clear();
        self.entries.clear();
        self.path.clear();
        self.out.reserve(json.len());
        self.scratch.reserve(json.len());
    }

    fn by_serde(&mut self, id: Id, json: &[u8]) -> Result<&[u8], EncodeError> {
        // A decoder writes `{}` for the `null` of a list: one level more.
        if self.is_strict && !forms::is_nested_within(json, DEPTH_MAX - 1) {
            let (message, why) = (id.message().name(), "JSON that is nested too deeply".to_owned());
            return Err(EncodeError::Mismatch { message, path: String::new(), why });
        }
        self.begin(json);
        let mut json = serde_json::Deserializer::from_slice(json);
        let read = json.deserialize_map(Root { encoder: self, id }).and_then(|()| json.end());
        match read {
            Ok(()) => Ok(&self.out),
            Err(why) => {
                let message = self.path.last().map_or(id, |(id, _)| *id).message().name();
                let names: Vec<&str> = self.path.iter().map(|(_, name)| *name).collect();
                Err(EncodeError::Mismatch { message, path: names.join("."), why: why.to_string() })
            }
        }
    }

    /// Reads an object and appends its message, with the tag and length of field `number` if given.
    fn message<'de, A: MapAccess<'de>>(&mut self, id: Id, number: Option<u8>, mut map: A) -> Result<(), A::Error> {
        let message = id.message();
        let (out, parts) = (self.out.len(), self.parts.len());
        let mut expected = 0;
        let is_strict = self.is_strict;
        while let Some(member) = map.next_key_seed(Member { message, expected: &mut expected, is_strict })? {
            let Some((field, key)) = member else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let start = self.out.len();
            self.path.push((id, field.name()));
            map.next_value_seed(FieldSeed { encoder: self, field })?;
            self.path.pop();
            let end = self.out.len();
            if end > start {
                self.parts.push(Part { key, start, end });
            }
        }
        self.finish(message, number, out, parts);
        Ok(())
    }

    /// Assembles the message of an object. The parts of the message begin at index `parts` of the parts. Their bytes
    /// begin at offset `out` of the output.
    pub(super) fn finish(&mut self, message: &Message, number: Option<u8>, out: usize, parts: usize) {
        let own = &mut self.parts[parts..];
        if !own.is_sorted_by_key(|part| part.key) {
            // A stable sort, so that the last duplicate of a member stays last.
            own.sort_by_key(|part| part.key);
        }
        self.scratch.clear();
        write_message(message, own, 0, &self.out, &mut self.scratch);
        self.parts.truncate(parts);
        self.out.truncate(out);
        if let Some(number) = number {
            push_tag(&mut self.out, number, WIRE_BYTES);
            push_varint(&mut self.out, self.scratch.len() as u64);
        }
        self.out.extend_from_slice(&self.scratch);
    }

    /// Whether a member that the message does not have is an error.
    pub(super) fn refuses(&self, message: &Message, name: &str) -> bool {
        self.is_strict && !is_type(message, name)
    }

    /// Begins a map. The caller then writes the entries, and closes each with [`Encoder::close_entry`].
    pub(super) fn open_map(&self) -> OpenMap {
        OpenMap { base: self.out.len(), first: self.entries.len() }
    }

    /// Ends an entry of field `number`, whose key and value are the bytes from `start` on. Returns whether the key is
    /// greater than that of the entry before.
    pub(super) fn close_entry(&mut self, map: OpenMap, start: usize, key_bytes: usize, number: u8) -> bool {
        let inner = self.out.len() - start;
        self.wrap(number, start);
        let end = self.out.len();
        let key_start = end - inner + field_head_bytes(key_bytes);
        let key_end = key_start + key_bytes;
        let last = self.entries.get(map.first..).and_then(<[Entry]>::last);
        let sorted = last.is_none_or(|last| self.out[last.key_start..last.key_end] < self.out[key_start..key_end]);
        self.entries.push(Entry { start, key_start, key_end, end });
        sorted
    }

    /// Ends a map. Unless its keys are `sorted`, sorts its entries and drops all but the last one of each key.
    pub(super) fn close_map(&mut self, map: OpenMap, sorted: bool) {
        if !sorted {
            let Encoder { out, entries, scratch, .. } = self;
            let own = &mut entries[map.first..];
            let key = |entry: &Entry| &out[entry.key_start..entry.key_end];
            own.sort_by(|one, other| key(one).cmp(key(other)));
            scratch.clear();
            for (at, entry) in own.iter().enumerate() {
                if own.get(at + 1).is_none_or(|next| key(next) != key(entry)) {
                    scratch.extend_from_slice(&out[entry.start..entry.end]);
                }
            }
            out.truncate(map.base);
            out.extend_from_slice(scratch);
        }
        self.entries.truncate(map.first);
    }

    pub(super) fn push_bytes(&mut self, number: u8, bytes: &[u8]) {
        push_tag(&mut self.out, number, WIRE_BYTES);
        push_varint(&mut self.out, bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }

    fn push_number(&mut self, number: u8, value: u64) {
        push_tag(&mut self.out, number, WIRE_VARINT);
        push_varint(&mut self.out, value);
    }

    /// Inserts the tag and length of field `number` before the bytes from `start` on.
    fn wrap(&mut self, number: u8, start: usize) {
        wrap(&mut self.out, number, start);
    }
}

const WIRE_VARINT: u8 = 0;
const WIRE_FIXED64: u8 = 1;
pub(super) const WIRE_BYTES: u8 = 2;

pub(super) fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The number of bytes that [`push_varint`] writes.
pub(super) const fn varint_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// The length of a field's tag (for a number below 16) and length prefix.
const fn field_head_bytes(bytes: usize) -> usize {
    1 + varint_bytes(bytes as u64)
}

pub(super) fn push_tag(out: &mut Vec<u8>, number: u8, wire: u8) {
    push_varint(out, u64::from(number) << 3 | u64::from(wire));
}

/// Inserts the tag and length of field `number` before the bytes from `start` on.
fn wrap(out: &mut Vec<u8>, number: u8, start: usize) {
    let end = out.len();
    push_tag(out, number, WIRE_BYTES);
    push_varint(out, (end - start) as u64);
    let head_bytes = out.len() - end;
    // `rotate_right` moves the content several times; this moves it once.
    let mut head = [0; HEAD_BUFFER_BYTES];
    head[..head_bytes].copy_from_slice(&out[end..]);
    out.copy_within(start..end, start + head_bytes);
    out[start..start + head_bytes].copy_from_slice(&head[..head_bytes]);
}

/// The longest tag of a field whose number has 8 bits, and the longest length.
const HEAD_BUFFER_BYTES: usize = varint_bytes((u8::MAX as u64) << 3 | 7) + varint_bytes(u64::MAX);

/// Writes a message from the sorted parts of its fields, adding zero values for absent fields.
fn write_message(message: &Message, mut parts: &[Part], level: usize, from: &[u8], into: &mut Vec<u8>) {
    let fields = message.fields();
    for &place in message.by_number() {
        let field = &fields[usize::from(place)];
        let count = parts.iter().take_while(|part| part.number(level) == field.number()).count();
        let (own, others) = parts.split_at(count);
        parts = others;
        match (field.shape(), field.of(), own.last()) {
            (Shape::Inline, Type::Message(inner), _) => {
                let start = into.len();
                write_message(inner.message(), own, level + 1, from, into);
                wrap(into, field.number(), start);
            }
            (_, _, Some(part)) => into.extend_from_slice(&from[part.start..part.end]),
            (Shape::One, of, None) => write_zero(of, field.number(), into),
            _ => {}
        }
    }
}

/// Writes Go's encoding of an unset value.
fn write_zero(of: Type, number: u8, into: &mut Vec<u8>) {
    let (wire, zero): (u8, &[u8]) = match of {
        // Go does not write `nil`.
        Type::Bytes | Type::Strings => return,
        Type::Message(id) => {
            let start = into.len();
            write_message(id.message(), &[], 0, &[], into);
            return wrap(into, number, start);
        }
        Type::Bool | Type::Int32 | Type::Int64 => (WIRE_VARINT, b"\0"),
        Type::Double => (WIRE_FIXED64, b"\0\0\0\0\0\0\0\0"),
        Type::String | Type::Time | Type::MicroTime | Type::Raw => (WIRE_BYTES, b"\0"),
        Type::PropsOrArray(_) | Type::PropsOrStrings(_) => (WIRE_BYTES, b"\0"),
        Type::Quantity => (WIRE_BYTES, b"\x03\x0a\x010"),
        Type::IntOrString => (WIRE_BYTES, b"\x06\x08\0\x10\0\x1a\0"),
        Type::PropsOrBool(_) => (WIRE_BYTES, b"\x02\x08\0"),
    };
    push_tag(into, number, wire);
    into.extend_from_slice(zero);
}

/// A visitor that encodes the root object.
struct Root<'e> {
    encoder: &'e mut Encoder,
    id: Id,
}

impl<'de> Visitor<'de> for Root<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        self.encoder.message(self.id, None, map)
    }
}

/// A deserializer of a member's name. The result is the field and the sort key, or `None` if the message
/// has no such member.
struct Member<'e> {
    message: &'static Message,
    /// The likely position of the next member: members are usually in Go's order.
    expected: &'e mut usize,
    is_strict: bool,
}

impl<'de> DeserializeSeed<'de> for Member<'_> {
    type Value = Option<(&'static Field, u32)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<(&'static Field, u32)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member's name")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Self::Value, E> {
        let found = find_member(self.message, name, self.expected, 0);
        if found.is_none() && self.is_strict && !is_type(self.message, name) {
            return Err(E::custom(format_args!("unknown field {name:?}")));
        }
        Ok(found)
    }
}

/// Whether a member is part of an object's type, which the envelope holds.
fn is_type(message: &Message, name: &str) -> bool {
    matches!(name, "kind" | "apiVersion") && message.is_object()
}

/// Finds the field with the JSON name `name` in the message or its embedded structs.
pub(super) fn find_member(
    message: &Message,
    name: &str,
    expected: &mut usize,
    level: usize,
) -> Option<(&'static Field, u32)> {
    let fields = message.fields();
    let shift = 8 * (INLINE_DEPTH_MAX - level);
    if let Some(field) = message.own_field_in_order(name, expected) {
        return Some((field, u32::from(field.number()) << shift));
    }
    if level == INLINE_DEPTH_MAX {
        return None;
    }
    fields.iter().filter(|field| field.shape() == Shape::Inline).find_map(|field| {
        let Type::Message(inner) = field.of() else { return None };
        let (found, key) = find_member(inner.message(), name, &mut 0, level + 1)?;
        Some((found, key | u32::from(field.number()) << shift))
    })
}

/// Reads the value of a field of any shape.
struct FieldSeed<'e> {
    encoder: &'e mut Encoder,
    field: &'static Field,
}

impl<'de> DeserializeSeed<'de> for FieldSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let (of, number) = (self.field.of(), self.field.number());
        match self.field.shape() {
            Shape::Repeated => deserializer.deserialize_any(List { encoder: self.encoder, of, number }),
            Shape::Map => deserializer.deserialize_any(Map { encoder: self.encoder, of, number }),
            // `null` counts as absent.
            Shape::One | Shape::Pointer | Shape::Inline => {
                Value { encoder: self.encoder, of, number, null_is_zero: false }.deserialize(deserializer)
            }
        }
    }
}

struct List<'e> {
    encoder: &'e mut Encoder,
    of: Type,
    number: u8,
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let List { encoder, of, number } = self;
        while list.next_element_seed(Value { encoder: &mut *encoder, of, number, null_is_zero: true })?.is_some() {}
        Ok(())
    }
}

struct Map<'e> {
    encoder: &'e mut Encoder,
    of: Type,
    number: u8,
}

impl<'de> Visitor<'de> for Map<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    /// Writes the entries in order of arrival and sorts them by key if necessary. If a key is duplicate, the last value
    /// is used.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Map { encoder, of, number } = self;
        let open = encoder.open_map();
        let mut sorted = true;
        loop {
            let start = encoder.out.len();
            let Some(key_bytes) = map.next_key_seed(EntryKey(&mut *encoder))? else { break };
            // Go writes no value for an entry with `nil` bytes.
            map.next_value_seed(Value { encoder: &mut *encoder, of, number: 2, null_is_zero: true })?;
            sorted &= encoder.close_entry(open, start, key_bytes, number);
        }
        encoder.close_map(open, sorted);
        Ok(())
    }
}

/// Reads the key of a map's entry, written as its field 1; returns its length.
struct EntryKey<'e>(&'e mut Encoder);

impl<'de> DeserializeSeed<'de> for EntryKey<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for EntryKey<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<usize, E> {
        self.0.push_bytes(1, key.as_bytes());
        Ok(key.len())
    }
}

/// Reads one value, written as field `number`.
pub(super) struct Value<'e> {
    pub(super) encoder: &'e mut Encoder,
    pub(super) of: Type,
    pub(super) number: u8,
    /// Whether `null` is encoded as a zero value, as for an element of a list or map. Otherwise `null` means absent.
    pub(super) null_is_zero: bool,
}

impl Value<'_> {
    fn mismatch<E: serde::de::Error>(&self, found: Unexpected<'_>) -> E {
        E::invalid_type(found, self)
    }

    fn integer<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        let Value { number, of, .. } = self;
        let fits = i32::try_from(value).is_ok();
        match of {
            // Negative numbers take ten bytes, also for 32-bit fields.
            Type::Int64 => self.encoder.push_number(number, value as u64),
            Type::Int32 if fits => self.encoder.push_number(number, value as u64),
            Type::Int32 | Type::IntOrString if !fits => {
                return Err(E::invalid_value(Unexpected::Signed(value), &self));
            }
            Type::IntOrString => {
                let start = self.encoder.out.len();
                self.encoder.push_number(1, 0);
                self.encoder.push_number(2, value as u64);
                self.encoder.push_bytes(3, b"");
                self.encoder.wrap(number, start);
            }
            Type::Double => self.double(value as f64),
            Type::Quantity => self.quantity(value.to_string().as_bytes()),
            _ => return Err(self.mismatch(Unexpected::Signed(value))),
        }
        Ok(())
    }

    fn double(self, value: f64) {
        push_tag(&mut self.encoder.out, self.number, WIRE_FIXED64);
        self.encoder.out.extend_from_slice(&value.to_le_bytes());
    }

    fn quantity(self, text: &[u8]) {
        let start = self.encoder.out.len();
        self.encoder.push_bytes(1, text);
        self.encoder.wrap(self.number, start);
    }

    fn time<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        let (seconds, nanos) = match forms::read_time(text) {
            Some(time) => time,
            None if self.encoder.is_strict => return Err(E::invalid_value(Unexpected::Str(text), &self)),
            // Earlier versions stored any text. One such object must not break the lists of its kind.
            None => (forms::ZERO_TIME_SECONDS, 0),
        };
        let nanos = if self.of == Type::MicroTime { nanos / 1000 * 1000 } else { 0 };
        let start = self.encoder.out.len();
        // Go's zero time is not written.
        if seconds != forms::ZERO_TIME_SECONDS || nanos != 0 {
            self.encoder.push_number(1, seconds as u64);
            self.encoder.push_number(2, u64::from(nanos));
        }
        self.encoder.wrap(self.number, start);
        Ok(())
    }

    /// Copies JSON inside protobuf unchanged.
    pub(super) fn raw(self, text: &str) {
        let start = self.encoder.out.len();
        if text != "null" {
            self.encoder.push_bytes(1, text.as_bytes());
        } else if !self.null_is_zero {
            return;
        }
        self.encoder.wrap(self.number, start);
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.of == Type::Raw {
            self.raw(<&RawValue>::deserialize(deserializer)?.get());
            return Ok(());
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.of {
            Type::String => "string",
            Type::Bool => "bool",
            Type::Int32 => "int32",
            Type::Int64 => "int64",
            Type::Double => "number",
            Type::Bytes => "string of base64",
            Type::Message(id) => return write!(f, "object ({})", id.message().name()),
            Type::Time | Type::MicroTime => "string with an RFC 3339 time",
            Type::Quantity => "quantity",
            Type::IntOrString => "int32 or string",
            Type::Raw => "JSON",
            Type::Strings => "list of strings",
            Type::PropsOrBool(_) => "object or bool",
            Type::PropsOrArray(_) => "object or list",
            Type::PropsOrStrings(_) => "object or list of strings",
        })
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        match self.of {
            _ if !self.null_is_zero => {}
            Type::Strings => self.encoder.push_bytes(self.number, b""),
            of => write_zero(of, self.number, &mut self.encoder.out),
        }
        Ok(())
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        match self.of {
            Type::Bool => self.encoder.push_number(self.number, u64::from(value)),
            Type::PropsOrBool(_) => {
                let start = self.encoder.out.len();
                self.encoder.push_number(1, u64::from(value));
                self.encoder.wrap(self.number, start);
            }
            _ => return Err(self.mismatch(Unexpected::Bool(value))),
        }
        Ok(())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.integer(value)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        match (i64::try_from(value), self.of) {
            (Ok(value), _) => self.integer(value),
            (Err(_), Type::Double) => {
                self.double(value as f64);
                Ok(())
            }
            (Err(_), Type::Quantity) => {
                self.quantity(value.to_string().as_bytes());
                Ok(())
            }
            _ => Err(E::invalid_value(Unexpected::Unsigned(value), &self)),
        }
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        match self.of {
            Type::Double => self.double(value),
            Type::Quantity => {
                let mut text = Vec::new();
                forms::push_double(&mut text, value);
                self.quantity(&text);
            }
            _ => return Err(self.mismatch(Unexpected::Float(value))),
        }
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        match self.of {
            Type::String => self.encoder.push_bytes(self.number, text.as_bytes()),
            Type::Bytes => match forms::read_base64(text) {
                Some(bytes) => self.encoder.push_bytes(self.number, &bytes),
                None if self.encoder.is_strict => return Err(E::invalid_value(Unexpected::Str(text), &self)),
                // Earlier versions also stored other texts, e.g. as a `caBundle`.
                None => self.encoder.push_bytes(self.number, b""),
            },
            Type::Time | Type::MicroTime => return self.time(text),
            Type::Quantity if !text.is_empty() => self.quantity(text.as_bytes()),
            Type::IntOrString => {
                let start = self.encoder.out.len();
                self.encoder.push_number(1, 1);
                self.encoder.push_number(2, 0);
                self.encoder.push_bytes(3, text.as_bytes());
                self.encoder.wrap(self.number, start);
            }
            _ => return Err(self.mismatch(Unexpected::Str(text))),
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        let (number, of) = match self.of {
            Type::Strings => (1, Type::String),
            Type::PropsOrArray(props) => (2, Type::Message(props)),
            Type::PropsOrStrings(_) => (2, Type::String),
            _ => return Err(self.mismatch(Unexpected::Seq)),
        };
        let start = self.encoder.out.len();
        List { encoder: &mut *self.encoder, of, number }.visit_seq(list)?;
        self.encoder.wrap(self.number, start);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        let start = self.encoder.out.len();
        match self.of {
            Type::Message(id) => return self.encoder.message(id, Some(self.number), map),
            Type::PropsOrBool(props) => {
                self.encoder.push_number(1, 1);
                self.encoder.message(props, Some(2), map)?;
            }
            Type::PropsOrArray(props) | Type::PropsOrStrings(props) => self.encoder.message(props, Some(1), map)?,
            _ => return Err(A::Error::invalid_type(Unexpected::Map, &self)),
        }
        self.encoder.wrap(self.number, start);
        Ok(())
    }
}
