//! Reads protobuf's wire format: tags, varints, lengths, and unknown fields.
//!
//! A reader is a window into the whole body, so that errors have positions in the body.

use super::error::{DecodeError, Malformed};

/// The wire type: the low three bits of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Wire {
    Varint = 0,
    Fixed64 = 1,
    Bytes = 2,
    Group = 3,
    GroupEnd = 4,
    Fixed32 = 5,
}

/// The position of a value in the body: after its tag, and for [`Wire::Bytes`] after its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValueRange {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl ValueRange {
    pub(super) fn of(self, body: &[u8]) -> &[u8] {
        body.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// The longest varint: ten groups of seven bits.
const VARINT_BYTES_MAX: usize = 10;

/// A window into a body, read from its start to its end.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    /// The body up to the end of the window.
    body: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Creates a reader of `place` in a body. Bodies of 4 GiB and more are rejected before.
    pub(super) fn new(body: &'a [u8], place: ValueRange) -> Self {
        Reader { body: body.get(..place.end as usize).unwrap_or(body), at: place.start as usize }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn error(&self, what: Malformed) -> DecodeError {
        DecodeError::Malformed { at: self.at, what }
    }

    pub(super) fn varint(&mut self) -> Result<u64, DecodeError> {
        let rest = self.body.get(self.at..).unwrap_or_default();
        if let Some(&byte) = rest.first()
            && byte < 0x80
        {
            self.at += 1;
            return Ok(u64::from(byte));
        }
        let mut value = 0;
        for (group, &byte) in rest.iter().take(VARINT_BYTES_MAX).enumerate() {
            // The tenth group has one bit; as in Go, excess bits are dropped.
            value |= u64::from(byte & 0x7f) << (7 * group);
            if byte < 0x80 {
                self.at += group + 1;
                return Ok(value);
            }
        }
        Err(self.error(if rest.len() < VARINT_BYTES_MAX { Malformed::Truncated } else { Malformed::Varint }))
    }

    /// Reads the next field's number and wire type, or `None` at the end of the window.
    pub(super) fn tag(&mut self) -> Result<Option<(u32, Wire)>, DecodeError> {
        if self.at >= self.body.len() {
            return Ok(None);
        }
        let start = self.at;
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Varint,
            1 => Wire::Fixed64,
            2 => Wire::Bytes,
            3 => Wire::Group,
            4 => Wire::GroupEnd,
            5 => Wire::Fixed32,
            _ => return Err(DecodeError::Malformed { at: start, what: Malformed::Tag }),
        };
        match u32::try_from(tag >> 3) {
            Ok(number) if number > 0 => Ok(Some((number, wire))),
            _ => Err(DecodeError::Malformed { at: start, what: Malformed::Tag }),
        }
    }

    /// Skips a value and returns its position.
    pub(super) fn value(&mut self, wire: Wire) -> Result<ValueRange, DecodeError> {
        let start = match wire {
            Wire::Bytes => {
                let len = self.varint()?;
                let start = self.at;
                self.advance(len)?;
                start
            }
            Wire::Varint => {
                let start = self.at;
                self.varint()?;
                start
            }
            Wire::Fixed64 => {
                self.advance(8)?;
                self.at - 8
            }
            Wire::Fixed32 => {
                self.advance(4)?;
                self.at - 4
            }
            Wire::Group => {
                let start = self.at;
                self.group()?;
                start
            }
            Wire::GroupEnd => return Err(self.error(Malformed::GroupEnd)),
        };
        Ok(ValueRange { start: start as u32, end: self.at as u32 })
    }

    fn advance(&mut self, len: u64) -> Result<(), DecodeError> {
        if len > (self.body.len() - self.at) as u64 {
            return Err(self.error(Malformed::Truncated));
        }
        self.at += len as usize;
        Ok(())
    }

    /// Skips an (obsolete) group. Nested groups are counted without recursion.
    fn group(&mut self) -> Result<(), DecodeError> {
        let mut open = 1_usize;
        while open > 0 {
            match self.tag()? {
                None => return Err(self.error(Malformed::Truncated)),
                Some((_, Wire::Group)) => open += 1,
                Some((_, Wire::GroupEnd)) => open -= 1,
                Some((_, wire)) => {
                    self.value(wire)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Reader, ValueRange, Wire};
    use crate::protobuf::error::{DecodeError, Malformed};

    type Fields<'a> = Vec<(u32, Wire, &'a [u8])>;

    fn read(body: &[u8]) -> Result<Fields<'_>, DecodeError> {
        let mut reader = Reader::new(body, ValueRange { start: 0, end: body.len() as u32 });
        let mut fields = Vec::new();
        while let Some((number, wire)) = reader.tag()? {
            fields.push((number, wire, reader.value(wire)?.of(body)));
        }
        Ok(fields)
    }

    #[test]
    fn protobuf_reader_returns_number_type_and_bytes_of_each_field() {
        for (body, expected) in [
            (&b""[..], vec![]),
            (b"\x08\x96\x01", vec![(1, Wire::Varint, &b"\x96\x01"[..])]),
            (b"\x12\x02hi\x18\x00", vec![(2, Wire::Bytes, &b"hi"[..]), (3, Wire::Varint, b"\x00")]),
            (b"\x0d\x01\x02\x03\x04", vec![(1, Wire::Fixed32, &b"\x01\x02\x03\x04"[..])]),
            (
                b"\x10\x07\x0d\x01\x02\x03\x04",
                vec![(2, Wire::Varint, &b"\x07"[..]), (1, Wire::Fixed32, b"\x01\x02\x03\x04")],
            ),
            (
                b"\x09\x01\x02\x03\x04\x05\x06\x07\x08",
                vec![(1, Wire::Fixed64, &b"\x01\x02\x03\x04\x05\x06\x07\x08"[..])],
            ),
            (
                b"\x0b\x13\x08\x01\x14\x0c\x10\x07",
                vec![(1, Wire::Group, &b"\x13\x08\x01\x14\x0c"[..]), (2, Wire::Varint, b"\x07")],
            ),
            (b"\xfa\x01\x00", vec![(31, Wire::Bytes, &b""[..])]),
        ] {
            assert_eq!(read(body), Ok(expected), "{body:x?}");
        }
    }

    #[test]
    fn broken_body_fails_with_its_position() {
        for (body, at, what) in [
            (&b"\x0a"[..], 1, Malformed::Truncated),
            (b"\x0a\x05abc", 2, Malformed::Truncated),
            (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, Malformed::Truncated),
            (b"\x08\xff", 1, Malformed::Truncated),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff", 1, Malformed::Truncated),
            // No varint continues after ten bytes, so the end of the body does not matter.
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 1, Malformed::Varint),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 1, Malformed::Varint),
            (b"\x08\x01\x07", 2, Malformed::Tag),
            (b"\x00\x01", 0, Malformed::Tag),
            (b"\x0c", 1, Malformed::GroupEnd),
            (b"\x0b\x08\x01", 3, Malformed::Truncated),
            (b"\x0d\x01", 1, Malformed::Truncated),
        ] {
            assert_eq!(read(body), Err(DecodeError::Malformed { at, what }), "{body:x?}");
        }
    }
}
