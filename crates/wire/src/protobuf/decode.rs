//! Decodes protobuf to JSON, byte-equal to Go's decoder and JSON encoder together.
//!
//! A message is read in two steps. The first records the position of each field's values; the
//! second walks the fields in Go's order and writes each from its positions. So the order on the
//! wire does not matter, and a repeated field is merged according to protobuf's rules. An absent
//! field is written as Go writes its zero value: omitted, `null`, `""`, or `{}`.

use std::ops::Range;

use super::error::{DecodeError, Malformed};
use super::reader::{Reader, ValueRange, Wire};
use super::{DEPTH_MAX, Envelope, MAGIC, json_limit_bytes};
use crate::forms;
use listwatch_k8s_types::{Field, Id, Message, Omit, Shape, Type};

/// The treatment of fields that the table does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnknownFields {
    /// Unknown fields are omitted from the JSON.
    Skipped,
    /// An unknown field is an error.
    Rejected,
}

/// Decodes the object of an envelope to JSON.
pub(super) fn object_json(
    body: &[u8],
    envelope: &Envelope<'_>,
    id: Id,
    unknown: UnknownFields,
) -> Result<Vec<u8>, DecodeError> {
    let limit = json_limit_bytes(body.len());
    let (records, out) = (Vec::with_capacity(32), Vec::with_capacity(body.len() * 2));
    let mut decoder = Decoder { body, records, out, depth: 0, limit, unknown };
    decoder.typed(envelope, id)?;
    Ok(decoder.out)
}

/// One value of a field of the current message.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// The field's index in [`Message::fields`].
    field: u8,
    place: ValueRange,
}

struct Decoder<'a> {
    body: &'a [u8],
    /// A stack: the records of a message follow those of its enclosing message.
    records: Vec<Record>,
    out: Vec<u8>,
    /// The number of open objects and lists.
    depth: usize,
    limit: usize,
    unknown: UnknownFields,
}

impl Decoder<'_> {
    /// Writes `{"kind":…,"apiVersion":…,` and the members.
    fn typed(&mut self, envelope: &Envelope<'_>, id: Id) -> Result<(), DecodeError> {
        self.open(b'{', envelope.raw)?;
        self.out.extend_from_slice(b"\"kind\":");
        forms::push_string(&mut self.out, envelope.kind.as_bytes());
        self.out.extend_from_slice(b",\"apiVersion\":");
        forms::push_string(&mut self.out, envelope.api_version.as_bytes());
        let mut first = false;
        let at = self.records.len();
        self.records.push(Record { field: 0, place: envelope.raw });
        self.members(id, at..at + 1, &mut first)?;
        self.records.truncate(at);
        self.close(b'}');
        Ok(())
    }

    fn open(&mut self, bracket: u8, place: ValueRange) -> Result<(), DecodeError> {
        if self.depth == DEPTH_MAX {
            return Err(DecodeError::TooDeep { at: place.start as usize });
        }
        if self.out.len() > self.limit {
            return Err(DecodeError::TooLarge { limit_bytes: self.limit });
        }
        self.depth += 1;
        self.out.push(bracket);
        Ok(())
    }

    fn close(&mut self, bracket: u8) {
        self.depth -= 1;
        self.out.push(bracket);
    }

    /// Writes the members of the message whose payloads are `records`: none for an absent message,
    /// several if it was split.
    fn members(&mut self, id: Id, records: Range<usize>, first: &mut bool) -> Result<(), DecodeError> {
        let message = id.message();
        let base = self.records.len();
        for at in records {
            self.note(message, self.records[at].place)?;
        }
        let found = &mut self.records[base..];
        if !found.is_sorted_by_key(|record| record.field) {
            found.sort_by_key(|record| record.field);
        }
        let (mut at, end) = (base, self.records.len());
        for (place, field) in message.fields().iter().enumerate() {
            let from = at;
            while at < end && usize::from(self.records[at].field) == place {
                at += 1;
            }
            self.member(field, from..at, first)?;
        }
        self.records.truncate(base);
        Ok(())
    }

    /// Records the positions of the fields of one payload.
    fn note(&mut self, message: &'static Message, payload: ValueRange) -> Result<(), DecodeError> {
        let mut reader = Reader::new(self.body, payload);
        let fields = message.fields();
        let mut expected = 0;
        loop {
            let at = reader.position();
            let Some((number, wire)) = reader.tag()? else { return Ok(()) };
            let is = |place: &usize| fields.get(*place).is_some_and(|field| u32::from(field.number()) == number);
            // Fields are usually in order, and a list's elements are adjacent.
            let known = [expected, expected + 1]
                .into_iter()
                .find(is)
                .or_else(|| fields.iter().position(|field| u32::from(field.number()) == number));
            let place = reader.value(wire)?;
            let Some(known) = known else {
                self.skip(at, message.name(), number)?;
                continue;
            };
            expected = known;
            let field = &fields[known];
            let (wanted, record) = (wire_of(field), Record { field: known as u8, place });
            if wire == wanted {
                self.records.push(record);
            } else if wire == Wire::Bytes && field.shape() == Shape::Repeated {
                self.packed(record, wanted)?;
            } else {
                let (message, field) = (message.name(), field.name());
                return Err(DecodeError::WrongType { at, message, field, found: wire as u8 });
            }
        }
    }

    /// Skips or rejects a field that the JSON cannot represent.
    fn skip(&self, at: usize, message: &'static str, number: u32) -> Result<(), DecodeError> {
        match self.unknown {
            UnknownFields::Skipped => Ok(()),
            UnknownFields::Rejected => Err(DecodeError::UnknownField { at, message, number }),
        }
    }

    /// Reads a packed list of numbers, as newer writers may send it.
    fn packed(&mut self, record: Record, wire: Wire) -> Result<(), DecodeError> {
        let mut reader = Reader::new(self.body, record.place);
        while reader.position() < record.place.end as usize {
            let place = reader.value(wire)?;
            self.records.push(Record { place, ..record });
        }
        Ok(())
    }

    fn member(&mut self, field: &Field, records: Range<usize>, first: &mut bool) -> Result<(), DecodeError> {
        let (of, absent) = (field.of(), records.is_empty());
        let value = match field.shape() {
            Shape::Inline => {
                let Type::Message(inner) = of else { return Ok(()) };
                return self.members(inner, records, first);
            }
            Shape::One => (field.omit() == Omit::Never || !self.is_omitted(field, &records)?).then_some(true),
            Shape::Pointer | Shape::Repeated | Shape::Map => {
                (!absent || field.omit() == Omit::Never).then_some(!absent)
            }
        };
        let Some(present) = value else { return Ok(()) };
        if !std::mem::replace(first, false) {
            self.out.push(b',');
        }
        // Field names need no escapes; a test checks that.
        self.out.push(b'"');
        self.out.extend_from_slice(field.name().as_bytes());
        self.out.extend_from_slice(b"\":");
        match field.shape() {
            _ if !present => self.out.extend_from_slice(b"null"),
            Shape::Repeated => self.list(of, records)?,
            Shape::Map => self.map(of, records)?,
            _ if absent && of == Type::Bytes => self.out.extend_from_slice(b"null"),
            _ => self.value(of, records)?,
        }
        Ok(())
    }

    /// Whether `omitempty` or `omitzero` omits a value (not a pointer, list or map).
    fn is_omitted(&self, field: &Field, records: &Range<usize>) -> Result<bool, DecodeError> {
        let last = self.last(records);
        Ok(match field.of() {
            Type::String | Type::Bytes => last.is_none_or(|place| place.start == place.end),
            Type::Bool | Type::Int64 => self.varint(last)? == 0,
            Type::Int32 => self.varint(last)? as i32 == 0,
            Type::Double => self.double(last) == 0.0,
            Type::Strings => !self.any_string(records.clone())?,
            Type::Time | Type::MicroTime if field.omit() == Omit::Zero => self.time(field.of(), records)?.is_none(),
            // A struct is never empty.
            _ => false,
        })
    }

    fn list(&mut self, of: Type, records: Range<usize>) -> Result<(), DecodeError> {
        self.open(b'[', self.records[records.start].place)?;
        for at in records.clone() {
            if at > records.start {
                self.out.push(b',');
            }
            self.value(of, at..at + 1)?;
        }
        self.close(b']');
        Ok(())
    }

    /// Writes a map with sorted keys, as Go does. If a key is duplicate, the last value is used.
    fn map(&mut self, of: Type, records: Range<usize>) -> Result<(), DecodeError> {
        self.open(b'{', self.records[records.start].place)?;
        let mut entries = Vec::with_capacity(records.len());
        for at in records {
            let entry = self.records[at].place;
            let mut reader = Reader::new(self.body, entry);
            let (mut key, mut value) = (ValueRange { start: entry.start, end: entry.start }, None);
            loop {
                let at = reader.position();
                let Some((number, wire)) = reader.tag()? else { break };
                let place = reader.value(wire)?;
                match (number, wire == Wire::Bytes) {
                    (1, true) => key = place,
                    (2, true) => value = Some(place),
                    (1, false) => return Err(wrong(at, "map", "key", wire)),
                    (2, false) => return Err(wrong(at, "map", "value", wire)),
                    _ => self.skip(at, "map", number)?,
                }
            }
            entries.push((key, value));
        }
        let body = self.body;
        entries.sort_by(|one, other| one.0.of(body).cmp(other.0.of(body)));
        let mut written = 0;
        for (at, (key, value)) in entries.iter().enumerate() {
            if entries.get(at + 1).is_some_and(|next| next.0.of(body) == key.of(body)) {
                continue;
            }
            if written > 0 {
                self.out.push(b',');
            }
            written += 1;
            forms::push_string(&mut self.out, key.of(body));
            self.out.push(b':');
            let base = self.records.len();
            self.records.extend(value.map(|place| Record { field: 0, place }));
            match of {
                // A map has no absent list: Go makes an empty one.
                Type::Strings if !self.any_string(base..self.records.len())? => self.out.extend_from_slice(b"[]"),
                _ => self.value(of, base..self.records.len())?,
            }
            self.records.truncate(base);
        }
        self.close(b'}');
        Ok(())
    }

    /// Writes a value, or the zero value of its type if `records` is empty.
    fn value(&mut self, of: Type, records: Range<usize>) -> Result<(), DecodeError> {
        let last = self.last(&records);
        let body = self.body;
        match of {
            Type::String => forms::push_string(&mut self.out, last.map_or(&b""[..], |place| place.of(body))),
            Type::Bool => {
                let value = self.varint(last)? != 0;
                self.out.extend_from_slice(if value { b"true" } else { b"false" });
            }
            // Excess bits of a 32-bit field are dropped, as in Go.
            Type::Int32 | Type::Int64 => {
                let value = self.varint(last)? as i64;
                forms::push_integer(&mut self.out, if of == Type::Int32 { i64::from(value as i32) } else { value });
            }
            Type::Double => {
                let value = self.double(last);
                if !forms::push_double(&mut self.out, value) {
                    return Err(invalid(last, "a number that JSON does not know"));
                }
            }
            Type::Bytes => forms::push_base64(&mut self.out, last.map_or(&b""[..], |place| place.of(body))),
            Type::Message(id) => {
                self.open(b'{', last.unwrap_or(ValueRange { start: 0, end: 0 }))?;
                self.members(id, records, &mut true)?;
                self.close(b'}');
            }
            Type::Time | Type::MicroTime => match self.time(of, &records)? {
                None => self.out.extend_from_slice(b"null"),
                Some((seconds, nanos)) => {
                    let micros = (of == Type::MicroTime).then_some(nanos / 1000);
                    forms::push_time(&mut self.out, seconds, micros);
                }
            },
            Type::Quantity => {
                let text = self.inner(&records, 1, "Quantity", "string")?;
                if text.is_some_and(|place| place.start == place.end) {
                    return Err(invalid(text, "an empty quantity"));
                }
                forms::push_string(&mut self.out, text.map_or(&b"0"[..], |place| place.of(body)));
            }
            Type::IntOrString => self.int_or_string(&records)?,
            Type::Raw => self.raw(&records)?,
            Type::Strings => self.strings(records)?,
            Type::PropsOrBool(props) => {
                let allows = self.inner_varint(&records, 1, "JSONSchemaPropsOrBool", "allows")? != 0;
                match self.inner(&records, 2, "JSONSchemaPropsOrBool", "schema")? {
                    Some(schema) => self.at_place(Type::Message(props), schema)?,
                    None => self.out.extend_from_slice(if allows { b"true" } else { b"false" }),
                }
            }
            Type::PropsOrArray(props) => {
                self.props_or_list(&records, props, Type::Message(props), "JSONSchemaPropsOrArray")?;
            }
            Type::PropsOrStrings(props) => {
                self.props_or_list(&records, props, Type::String, "JSONSchemaPropsOrStringArray")?;
            }
        }
        Ok(())
    }

    fn at_place(&mut self, of: Type, place: ValueRange) -> Result<(), DecodeError> {
        let base = self.records.len();
        self.records.push(Record { field: 0, place });
        self.value(of, base..base + 1)?;
        self.records.truncate(base);
        Ok(())
    }

    /// Writes the list (field 2) if present, else the schema (field 1), else `null`.
    fn props_or_list(
        &mut self,
        records: &Range<usize>,
        props: Id,
        element: Type,
        message: &'static str,
    ) -> Result<(), DecodeError> {
        let base = self.records.len();
        let mut schema = None;
        for at in records.clone() {
            for (number, place) in self.inner_all(self.records[at].place, message)? {
                match number {
                    1 => schema = Some(place),
                    2 => self.records.push(Record { field: 0, place }),
                    _ => {}
                }
            }
        }
        let list = base..self.records.len();
        match schema {
            _ if !list.is_empty() => self.list(element, list)?,
            Some(schema) => self.at_place(Type::Message(props), schema)?,
            None => self.out.extend_from_slice(b"null"),
        }
        self.records.truncate(base);
        Ok(())
    }

    fn strings(&mut self, records: Range<usize>) -> Result<(), DecodeError> {
        let base = self.records.len();
        for at in records {
            for (number, place) in self.inner_all(self.records[at].place, "items")? {
                if number == 1 {
                    self.records.push(Record { field: 0, place });
                }
            }
        }
        let items = base..self.records.len();
        if items.is_empty() {
            self.out.extend_from_slice(b"null");
        } else {
            self.list(Type::String, items)?;
        }
        self.records.truncate(base);
        Ok(())
    }

    fn any_string(&self, mut records: Range<usize>) -> Result<bool, DecodeError> {
        records.try_fold(false, |any, at| {
            Ok(any || self.inner_all(self.records[at].place, "items")?.iter().any(|(number, _)| *number == 1))
        })
    }

    fn int_or_string(&mut self, records: &Range<usize>) -> Result<(), DecodeError> {
        let message = "IntOrString";
        match self.inner_varint(records, 1, message, "type")? {
            0 => {
                let value = self.inner_varint(records, 2, message, "intVal")?;
                forms::push_integer(&mut self.out, i64::from(value as i32));
            }
            1 => {
                let text = self.inner(records, 3, message, "strVal")?;
                forms::push_string(&mut self.out, text.map_or(&b""[..], |place| place.of(self.body)));
            }
            _ => return Err(invalid(self.last(records), "impossible IntOrString.Type")),
        }
        Ok(())
    }

    /// Writes JSON inside protobuf after validation. A nested envelope, as in a list of
    /// `runtime.RawExtension`, becomes the object's JSON.
    fn raw(&mut self, records: &Range<usize>) -> Result<(), DecodeError> {
        let Some(place) = self.inner(records, 1, "RawExtension", "raw")?.filter(|place| place.start < place.end) else {
            self.out.extend_from_slice(b"null");
            return Ok(());
        };
        let text = place.of(self.body);
        if text.starts_with(MAGIC) {
            let envelope = Envelope::read(self.body, place)?;
            return self.typed(&envelope, envelope.message()?);
        }
        forms::push_raw_json(&mut self.out, text, DEPTH_MAX - self.depth).map_err(|why| invalid(Some(place), &why))
    }

    fn last(&self, records: &Range<usize>) -> Option<ValueRange> {
        (!records.is_empty()).then(|| self.records[records.end - 1].place)
    }

    fn varint(&self, place: Option<ValueRange>) -> Result<u64, DecodeError> {
        place.map_or(Ok(0), |place| Reader::new(self.body, place).varint())
    }

    fn double(&self, place: Option<ValueRange>) -> f64 {
        let bytes = place.and_then(|place| <[u8; 8]>::try_from(place.of(self.body)).ok());
        bytes.map_or(0.0, f64::from_le_bytes)
    }

    /// Reads seconds and nanoseconds; `None` for an empty message or Go's zero time. As in Go, the precision is that of
    /// the JSON: seconds or microseconds.
    fn time(&self, of: Type, records: &Range<usize>) -> Result<Option<(i64, u32)>, DecodeError> {
        if self.last(records).is_none_or(|place| place.start == place.end) {
            return Ok(None);
        }
        let seconds = self.inner_varint(records, 1, "Time", "seconds")? as i64;
        let nanos = self.inner_varint(records, 2, "Time", "nanos")? as i32;
        let nanos = match u32::try_from(nanos) {
            // Go does not read the fraction (`time_proto.go`).
            _ if of == Type::Time => 0,
            Ok(nanos @ 0..1_000_000_000) => nanos / 1000 * 1000,
            _ => return Err(invalid(self.last(records), "a fraction of a second outside of 0 to 999999999")),
        };
        Ok((seconds != forms::ZERO_TIME_SECONDS || nanos != 0).then_some((seconds, nanos)))
    }

    /// The length-delimited fields of a small well-known message; other fields are skipped.
    fn inner_all(&self, payload: ValueRange, message: &'static str) -> Result<Vec<(u32, ValueRange)>, DecodeError> {
        let mut reader = Reader::new(self.body, payload);
        let mut fields = Vec::new();
        loop {
            let at = reader.position();
            let Some((number, wire)) = reader.tag()? else { return Ok(fields) };
            let place = reader.value(wire)?;
            match wire {
                Wire::Bytes => fields.push((number, place)),
                _ if number <= fields_of(message) => return Err(wrong(at, message, "", wire)),
                _ => {}
            }
            if number > fields_of(message) {
                self.skip(at, message, number)?;
            }
        }
    }

    /// The last value of a field of a small well-known message.
    fn inner_field(
        &self,
        records: &Range<usize>,
        (wanted, wire): (u32, Wire),
        message: &'static str,
        field: &'static str,
    ) -> Result<Option<ValueRange>, DecodeError> {
        let mut found = None;
        for at in records.clone() {
            let mut reader = Reader::new(self.body, self.records[at].place);
            loop {
                let at = reader.position();
                let Some((number, seen)) = reader.tag()? else { break };
                let place = reader.value(seen)?;
                if number == wanted {
                    if seen != wire {
                        return Err(wrong(at, message, field, seen));
                    }
                    found = Some(place);
                }
                if number > fields_of(message) {
                    self.skip(at, message, number)?;
                }
            }
        }
        Ok(found)
    }

    fn inner(
        &self,
        records: &Range<usize>,
        number: u32,
        message: &'static str,
        field: &'static str,
    ) -> Result<Option<ValueRange>, DecodeError> {
        self.inner_field(records, (number, Wire::Bytes), message, field)
    }

    fn inner_varint(
        &self,
        records: &Range<usize>,
        number: u32,
        message: &'static str,
        field: &'static str,
    ) -> Result<u64, DecodeError> {
        self.varint(self.inner_field(records, (number, Wire::Varint), message, field)?)
    }
}

/// The number of fields of a small well-known message, which are numbered from one.
fn fields_of(message: &str) -> u32 {
    match message {
        "Quantity" | "RawExtension" | "items" => 1,
        "IntOrString" => 3,
        _ => 2,
    }
}

/// The wire type of a field's values.
fn wire_of(field: &Field) -> Wire {
    match (field.shape(), field.of()) {
        (Shape::Map, _) => Wire::Bytes,
        (_, Type::Bool | Type::Int32 | Type::Int64) => Wire::Varint,
        (_, Type::Double) => Wire::Fixed64,
        _ => Wire::Bytes,
    }
}

fn wrong(at: usize, message: &'static str, field: &'static str, wire: Wire) -> DecodeError {
    DecodeError::WrongType { at, message, field, found: wire as u8 }
}

fn invalid(place: Option<ValueRange>, why: &str) -> DecodeError {
    DecodeError::InvalidValue { at: place.map_or(0, |place| place.start as usize), why: why.to_owned() }
}

/// Truncates a body to the length that 32-bit positions can address.
pub(super) fn whole(body: &[u8]) -> Result<ValueRange, DecodeError> {
    match u32::try_from(body.len()) {
        Ok(end) => Ok(ValueRange { start: 0, end }),
        Err(_) => Err(DecodeError::Malformed { at: u32::MAX as usize, what: Malformed::Truncated }),
    }
}

#[cfg(test)]
mod tests {
    use super::{DecodeError, Decoder, UnknownFields, ValueRange};

    #[test]
    fn decoder_rejects_json_output_above_its_limit() {
        let opened = |written: usize| {
            let (records, out) = (Vec::new(), vec![b' '; written]);
            let mut decoder = Decoder { body: b"", records, out, depth: 0, limit: 5, unknown: UnknownFields::Skipped };
            decoder.open(b'{', ValueRange { start: 0, end: 0 })
        };
        assert_eq!(opened(5), Ok(()), "the limit itself is permitted");
        assert_eq!(opened(6), Err(DecodeError::TooLarge { limit_bytes: 5 }));
    }
}
