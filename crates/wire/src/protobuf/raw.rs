//! The fields of messages without a description in the table, such as those of former API versions: [`raw_fields`].

use super::decode::whole;
use super::encode::push_varint;
use super::error::DecodeError;
use super::reader::{Reader, Wire};

/// One field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawField<'a> {
    /// The field number.
    pub number: u32,
    wire: Wire,
    /// The bytes after the tag, without the length.
    value: &'a [u8],
}

impl<'a> RawField<'a> {
    /// The bytes of a string, of bytes or of a message; `None` for a number.
    pub fn payload(&self) -> Option<&'a [u8]> {
        (self.wire == Wire::Bytes).then_some(self.value)
    }

    /// The value of a number in the variable-length form; `None` for any other field.
    pub fn varint(&self) -> Option<u64> {
        if self.wire != Wire::Varint {
            return None;
        }
        Reader::new(self.value, whole(self.value).ok()?).varint().ok()
    }

    /// Writes the field with another number.
    pub fn push_as(&self, number: u32, out: &mut Vec<u8>) {
        push_varint(out, u64::from(number) << 3 | self.wire as u64);
        if self.wire == Wire::Bytes {
            push_varint(out, self.value.len() as u64);
        }
        out.extend_from_slice(self.value);
    }
}

/// Returns the fields of a message in the order of its bytes.
///
/// # Errors
/// [`DecodeError::Malformed`], with the position in the message.
pub fn raw_fields(message: &[u8]) -> Result<Vec<RawField<'_>>, DecodeError> {
    let mut reader = Reader::new(message, whole(message)?);
    let mut fields = Vec::new();
    while let Some((number, wire)) = reader.tag()? {
        let value = reader.value(wire)?.of(message);
        fields.push(RawField { number, wire, value });
    }
    Ok(fields)
}

/// Writes a field whose value is a string, bytes or a message.
pub fn push_raw_field(number: u32, payload: &[u8], out: &mut Vec<u8>) {
    RawField { number, wire: Wire::Bytes, value: payload }.push_as(number, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_fields_of_a_message_are_written_with_the_same_bytes() {
        // A string, a number of two bytes, a 64-bit and a 32-bit number, and a group.
        let message =
            b"\x12\x02hi\x18\x96\x01\x09\x01\x02\x03\x04\x05\x06\x07\x08\x0d\x01\x02\x03\x04\x0b\x13\x08\x01\x14\x0c";
        let fields = raw_fields(message).unwrap();
        let mut written = Vec::new();
        fields.iter().for_each(|field| field.push_as(field.number, &mut written));
        assert_eq!(written, message);
        let shown: Vec<_> = fields.iter().map(|field| (field.number, field.payload(), field.varint())).collect();
        assert_eq!(
            shown,
            [(2, Some(&b"hi"[..]), None), (3, None, Some(150)), (1, None, None), (1, None, None), (1, None, None)]
        );
        let mut moved = Vec::new();
        push_raw_field(200, b"x", &mut moved);
        assert_eq!(moved, b"\xc2\x0c\x01x");
    }

    #[test]
    fn truncated_message_has_no_fields() {
        assert!(raw_fields(b"\x12\x05hi").is_err());
        assert_eq!(raw_fields(b""), Ok(Vec::new()));
    }
}
