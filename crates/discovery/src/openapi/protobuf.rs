//! [`Message`]: writes the members of a JSON object as the fields of a protobuf message, without generated code.
//!
//! The messages of OpenAPI are those of gnostic: [`super::protobuf_v2`] and [`super::protobuf_v3`]. Fields are written in
//! the order of their numbers, as Go writes them. Values of any type and extensions are YAML text; JSON is valid YAML.
//!
//! The recursion is limited by the depth of JSON that the server decodes.

use listwatch_json::{JsonString, Map, Value};

/// Writes the content of a message.
pub(super) type Write = fn(&mut Message, &Value);

/// The type of a field.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Text,
    Texts,
    Flag,
    Integer,
    Double,
    /// A value of any type, as an `Any` message.
    Any,
    Anys,
    /// A message, for an object.
    One(Write),
    /// A message for each element of an array.
    Each(Write),
    /// A message that holds pairs of a name and a message. In gnostic, the number of the pairs is 1.
    Map(Write),
    /// A message whose JSON is not always an object.
    Value(Write),
}

/// The number, name and type of a field.
pub(super) type Field = (u32, &'static str, Kind);

/// A protobuf message that is being written.
#[derive(Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Writes the members of an object that are in `fields`. Members of another type are omitted.
    pub(super) fn fields(&mut self, object: &Value, fields: &[Field]) {
        for (number, name, kind) in fields {
            if let Some(value) = object.get(*name) {
                self.field(*number, *kind, value);
            }
        }
    }

    fn field(&mut self, number: u32, kind: Kind, value: &Value) {
        match kind {
            Kind::Text => self.text(number, value),
            Kind::Texts => items(value).iter().filter_map(Value::as_str).for_each(|text| {
                self.bytes(number, text.as_bytes());
            }),
            Kind::Flag if *value == Value::Bool(true) => self.boolean(number, true),
            Kind::Flag => {}
            Kind::Integer => self.integer(number, value),
            Kind::Double => self.double(number, value),
            Kind::Any => self.message(number, |out| out.any(value)),
            Kind::Anys => items(value).iter().for_each(|value| self.message(number, |out| out.any(value))),
            Kind::One(write) if value.is_object() => self.message(number, |out| write(out, value)),
            Kind::One(_) => {}
            Kind::Each(write) => items(value).iter().for_each(|value| self.message(number, |out| write(out, value))),
            Kind::Map(write) if value.is_object() => self.message(number, |out| {
                members(value).for_each(|(name, value)| out.pair(1, name, |out| write(out, value)));
            }),
            Kind::Map(_) => {}
            Kind::Value(write) => self.message(number, |out| write(out, value)),
        }
    }

    /// Writes the members that begin with `x-`, each as a `NamedAny`.
    pub(super) fn extensions(&mut self, number: u32, object: &Value) {
        for (name, value) in members(object).filter(|(name, _)| name.starts_with("x-")) {
            self.pair(number, name, |out| out.any(value));
        }
    }

    /// Writes a name and a message. All maps of gnostic have this form.
    pub(super) fn pair(&mut self, number: u32, name: &str, write: impl FnOnce(&mut Message)) {
        self.message(number, |out| {
            if !name.is_empty() {
                out.bytes(1, name.as_bytes());
            }
            out.message(2, write);
        });
    }

    pub(super) fn message(&mut self, number: u32, write: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        write(&mut inner);
        self.bytes(number, &inner.0);
    }

    /// Writes the field `yaml` of an `Any`.
    fn any(&mut self, value: &Value) {
        self.bytes(2, format!("{value}\n").as_bytes());
    }

    /// Writes a string. proto3 omits empty strings.
    pub(super) fn text(&mut self, number: u32, value: &Value) {
        if let Some(text) = value.as_str().filter(|text| !text.is_empty()) {
            self.bytes(number, text.as_bytes());
        }
    }

    /// Writes a flag, even if the flag is false, as a oneof requires.
    pub(super) fn boolean(&mut self, number: u32, value: bool) {
        self.varint(u64::from(number) << 3);
        self.0.push(u8::from(value));
    }

    /// Writes an integer. proto3 omits zero. A number with a fraction is rounded toward zero.
    fn integer(&mut self, number: u32, value: &Value) {
        let whole = value.as_i64().or_else(|| value.as_f64().map(|value| value as i64));
        if let Some(whole) = whole.filter(|whole| *whole != 0) {
            self.varint(u64::from(number) << 3);
            self.varint(whole.cast_unsigned());
        }
    }

    /// Writes a floating point number. proto3 omits zero.
    fn double(&mut self, number: u32, value: &Value) {
        if let Some(value) = value.as_f64().filter(|value| *value != 0.0) {
            self.fixed64(number, value);
        }
    }

    /// Writes a floating point number, even if the number is zero, as a oneof requires.
    pub(super) fn fixed64(&mut self, number: u32, value: f64) {
        const FIXED64: u64 = 1;
        self.varint(u64::from(number) << 3 | FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn bytes(&mut self, number: u32, bytes: &[u8]) {
        const LENGTH_DELIMITED: u64 = 2;
        self.varint(u64::from(number) << 3 | LENGTH_DELIMITED);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}

/// The names and values of an object; nothing for another value.
pub(super) fn members(value: &Value) -> impl Iterator<Item = (&JsonString, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

/// The elements of an array; nothing for another value.
pub(super) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Writes a `SecurityRequirement`: the scopes of each scheme. Both versions have this message.
pub(super) fn security_requirement(out: &mut Message, value: &Value) {
    for (name, scopes) in members(value) {
        out.pair(1, name, |out| out.field(1, Kind::Texts, scopes));
    }
}

/// Writes a map of strings, such as the scopes of OAuth.
pub(super) fn strings(out: &mut Message, value: &Value) {
    for (name, value) in members(value) {
        out.message(1, |pair| {
            pair.bytes(1, name.as_bytes());
            pair.text(2, value);
        });
    }
}

/// Writes a map of values of any type.
pub(super) fn named_anys(out: &mut Message, value: &Value) {
    for (name, value) in members(value) {
        out.pair(1, name, |out| out.any(value));
    }
}

/// Writes `ExternalDocs`. Both versions have this message.
pub(super) fn external_docs(out: &mut Message, value: &Value) {
    out.fields(value, &[(1, "description", Kind::Text), (2, "url", Kind::Text)]);
    out.extensions(3, value);
}

/// Writes a `Tag`. Both versions have this message.
pub(super) fn tag(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[(1, "name", Kind::Text), (2, "description", Kind::Text), (3, "externalDocs", Kind::One(external_docs))],
    );
    out.extensions(4, value);
}

/// Writes a `Contact`. Both versions have this message.
pub(super) fn contact(out: &mut Message, value: &Value) {
    out.fields(value, &[(1, "name", Kind::Text), (2, "url", Kind::Text), (3, "email", Kind::Text)]);
    out.extensions(4, value);
}

/// Writes a `License`. Both versions have this message.
pub(super) fn license(out: &mut Message, value: &Value) {
    out.fields(value, &[(1, "name", Kind::Text), (2, "url", Kind::Text)]);
    out.extensions(3, value);
}

/// Writes an `Xml`. Both versions have this message.
pub(super) fn xml(out: &mut Message, value: &Value) {
    out.fields(
        value,
        &[
            (1, "name", Kind::Text),
            (2, "namespace", Kind::Text),
            (3, "prefix", Kind::Text),
            (4, "attribute", Kind::Flag),
            (5, "wrapped", Kind::Flag),
        ],
    );
    out.extensions(6, value);
}
