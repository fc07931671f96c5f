//! The envelope of every object: `k8s\0` and a `runtime.Unknown` with the object's type and message
//! (apimachinery `runtime/serializer/protobuf`).
//!
//! | field | holds |
//! |---|---|
//! | 1 | `TypeMeta`: 1 is `apiVersion`, 2 is `kind` |
//! | 2 | the object's message |
//! | 3 | content encoding; Go writes it empty |
//! | 4 | content type; Go writes it empty |

use std::borrow::Cow;

use super::decode::whole;
use super::encode::{WIRE_BYTES, push_tag, push_varint, varint_bytes};
use super::error::DecodeError;
use super::reader::{Reader, ValueRange, Wire};
use listwatch_k8s_types::{self as types, Id};

/// The first bytes of a body in Kubernetes' protobuf.
pub const MAGIC: &[u8] = b"k8s\0";

/// The empty content encoding and type after the message.
pub(super) const TAIL: &[u8] = b"\x1a\0\x22\0";

/// The length of an envelope with a message of `raw_bytes`.
pub(super) fn bytes(api_version: &str, kind: &str, raw_bytes: usize) -> usize {
    let type_bytes = field_bytes(api_version.len()) + field_bytes(kind.len());
    MAGIC.len() + field_bytes(type_bytes) + field_bytes(raw_bytes) + TAIL.len()
}

/// The bytes before a message of `raw_bytes`, in a buffer with room for a list's metadata.
pub(super) fn head(api_version: &str, kind: &str, raw_bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes(api_version, kind, 0) + 128);
    push_envelope_head(&mut out, api_version, kind, raw_bytes);
    out
}

fn push_envelope_head(out: &mut Vec<u8>, api_version: &str, kind: &str, raw_bytes: usize) {
    out.extend_from_slice(MAGIC);
    push_head(out, 1, field_bytes(api_version.len()) + field_bytes(kind.len()));
    for (number, text) in [(1, api_version), (2, kind)] {
        push_head(out, number, text.len());
        out.extend_from_slice(text.as_bytes());
    }
    push_head(out, 2, raw_bytes);
}

/// Writes a whole envelope.
pub(super) fn push(out: &mut Vec<u8>, api_version: &str, kind: &str, raw: &[u8]) {
    push_envelope_head(out, api_version, kind, raw.len());
    out.extend_from_slice(raw);
    out.extend_from_slice(TAIL);
}

/// Writes the tag and length of a length-delimited field.
pub(super) fn push_head(out: &mut Vec<u8>, number: u8, bytes: usize) {
    push_tag(out, number, WIRE_BYTES);
    push_varint(out, bytes as u64);
}

/// The length of a length-delimited field with a number below 16, with its tag and length.
pub(super) const fn field_bytes(bytes: usize) -> usize {
    1 + varint_bytes(bytes as u64) + bytes
}

/// A parsed envelope; the object's message is not parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// The object's `apiVersion`.
    pub api_version: Cow<'a, str>,
    /// The object's `kind`.
    pub kind: Cow<'a, str>,
    pub(super) raw: ValueRange,
}

impl<'a> Envelope<'a> {
    /// Parses the envelope of a body.
    ///
    /// # Errors
    /// [`DecodeError`] if the body is not an envelope.
    pub fn parse(body: &'a [u8]) -> Result<Self, DecodeError> {
        Self::read(body, whole(body)?)
    }

    /// Parses the envelope at a position of a body.
    pub(super) fn read(body: &'a [u8], place: ValueRange) -> Result<Self, DecodeError> {
        let Some(rest) = place.of(body).strip_prefix(MAGIC) else { return Err(DecodeError::NoPrefix) };
        if rest.is_empty() {
            return Err(DecodeError::Empty);
        }
        let start = place.start + MAGIC.len() as u32;
        let mut envelope =
            Envelope { api_version: "".into(), kind: "".into(), raw: ValueRange { start: place.end, end: place.end } };
        let mut reader = Reader::new(body, ValueRange { start, ..place });
        while let Some((number, value)) = bytes_field(&mut reader, "Unknown")? {
            match number {
                1 => {
                    let mut reader = Reader::new(body, value);
                    while let Some((number, value)) = bytes_field(&mut reader, "TypeMeta")? {
                        match number {
                            1 => envelope.api_version = String::from_utf8_lossy(value.of(body)),
                            2 => envelope.kind = String::from_utf8_lossy(value.of(body)),
                            _ => {}
                        }
                    }
                }
                2 => envelope.raw = value,
                _ => {}
            }
        }
        Ok(envelope)
    }

    /// Rejects an envelope with fields that an object's JSON does not hold: unknown ones, and a content encoding.
    pub(super) fn check_known(body: &[u8]) -> Result<(), DecodeError> {
        let whole = whole(body)?;
        let mut reader = Reader::new(body, ValueRange { start: MAGIC.len() as u32, ..whole });
        loop {
            let at = reader.position();
            let Some((number, wire)) = reader.tag()? else { return Ok(()) };
            let value = reader.value(wire)?;
            if number > 4 || number == 3 && value.start < value.end {
                return Err(DecodeError::UnknownField { at, message: "Unknown", number });
            }
        }
    }

    /// The object's message without its type: a slice of `body`, which must be the parsed body.
    pub fn raw<'b>(&self, body: &'b [u8]) -> &'b [u8] {
        self.raw.of(body)
    }

    /// The description of the object's type.
    ///
    /// # Errors
    /// When the envelope has no type, or a type without protobuf.
    pub fn message(&self) -> Result<Id, DecodeError> {
        if self.kind.is_empty() {
            return Err(DecodeError::MissingKind);
        }
        if self.api_version.is_empty() {
            return Err(DecodeError::MissingVersion);
        }
        types::message_of(&self.api_version, &self.kind).ok_or_else(|| DecodeError::UnknownKind {
            api_version: self.api_version.to_string(),
            kind: self.kind.to_string(),
        })
    }
}

/// The next field of a message whose known fields are all length-delimited.
pub(super) fn bytes_field(
    reader: &mut Reader<'_>,
    message: &'static str,
) -> Result<Option<(u32, ValueRange)>, DecodeError> {
    loop {
        let at = reader.position();
        let Some((number, wire)) = reader.tag()? else { return Ok(None) };
        let place = reader.value(wire)?;
        if wire == Wire::Bytes {
            return Ok(Some((number, place)));
        }
        if number <= 4 {
            return Err(DecodeError::WrongType { at, message, field: "", found: wire as u8 });
        }
    }
}
