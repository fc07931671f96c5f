//! The records on disk: pure encoding and decoding.
//!
//! Each revision has a header, and each written value a value record, both under the revision's
//! number in a table of their own. The headers alone are enough to rebuild the index, so opening
//! a store does not read the values.
//!
//! ```text
//!   header  kind u8 │ created u64 │ previous u64 │ deadline u64 │ length u32 │ key … │ crc u32
//!   value   bytes … │ crc u32
//! ```
//!
//! Numbers are little-endian. A checksum covers the revision as well, so that a record that ended
//! up in another's place is noticed. The engine has checksums of its own, which it verifies when
//! it repairs after a crash, but not on every read.

use bytes::Bytes;
use listwatch_meta::{Key, Revision};

use crate::ttl::Millis;

const KIND_PUT: u8 = 1;
const KIND_DELETE: u8 = 2;

/// Bytes of a header around its key.
const FIXED: usize = 1 + 8 + 8 + 8 + 4;
const CRC: usize = 4;

/// What is known of a revision without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub key: Key,
    /// `None` is a removal.
    pub put: Option<Put>,
    /// The revision whose state this change replaced; zero when there was none.
    pub previous: Revision,
}

/// What a header says about a written value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Put {
    /// The revision that created this incarnation of the key.
    pub created: Revision,
    /// When the key removes itself, in milliseconds since the epoch; zero is never.
    pub deadline: Millis,
    /// The value's length in bytes.
    pub length: u32,
}

/// A record is not what was written. What, for the error's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Damaged(pub String);

fn checksum(revision: Revision, bytes: &[u8]) -> [u8; CRC] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&revision.get().to_le_bytes());
    hasher.update(bytes);
    hasher.finalize().to_le_bytes()
}

/// Splits off the checksum and compares it.
fn verified<'a>(revision: Revision, record: &'a [u8], what: &str) -> Result<&'a [u8], Damaged> {
    match record.split_last_chunk::<CRC>() {
        Some((bytes, crc)) if *crc == checksum(revision, bytes) => Ok(bytes),
        _ => Err(Damaged(format!("the {what} of revision {revision} does not match its checksum"))),
    }
}

impl Header {
    pub(super) fn encode(&self, revision: Revision) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIXED + self.key.as_str().len() + CRC);
        let put = self.put.unwrap_or(Put { created: Revision::ZERO, deadline: 0, length: 0 });
        out.push(if self.put.is_some() { KIND_PUT } else { KIND_DELETE });
        out.extend_from_slice(&put.created.get().to_le_bytes());
        out.extend_from_slice(&self.previous.get().to_le_bytes());
        out.extend_from_slice(&put.deadline.to_le_bytes());
        out.extend_from_slice(&put.length.to_le_bytes());
        out.extend_from_slice(self.key.as_str().as_bytes());
        let crc = checksum(revision, &out);
        out.extend_from_slice(&crc);
        out
    }

    pub(super) fn decode(revision: Revision, record: &[u8]) -> Result<Self, Damaged> {
        let damaged = |what: &str| Damaged(format!("the header of revision {revision} {what}"));
        let bytes = verified(revision, record, "header")?;
        let Some((fixed, key)) = bytes.split_first_chunk::<FIXED>() else { return Err(damaged("is too short")) };
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| fixed[at + n]));
        let key = std::str::from_utf8(key).ok().and_then(|key| Key::from_path(key).ok());
        let key = key.ok_or_else(|| damaged("holds no key"))?;
        let put = match fixed[0] {
            KIND_PUT => Some(Put {
                created: Revision::new(number(1)),
                deadline: number(17),
                length: u32::from_le_bytes(std::array::from_fn(|n| fixed[25 + n])),
            }),
            KIND_DELETE => None,
            _ => return Err(damaged("is of an unknown kind")),
        };
        Ok(Header { key, put, previous: Revision::new(number(9)) })
    }
}

/// The record of a value.
pub(super) fn encode_value(revision: Revision, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() + CRC);
    out.extend_from_slice(value);
    out.extend_from_slice(&checksum(revision, value));
    out
}

/// How long the value of a record is.
pub(super) fn value_len(record: &[u8]) -> usize {
    record.len().saturating_sub(CRC)
}

/// Is the record of a value whole?
pub(super) fn check_value(revision: Revision, record: &[u8]) -> Result<(), Damaged> {
    verified(revision, record, "value").map(|_| ())
}

/// The value of a record.
pub(super) fn decode_value(revision: Revision, record: &[u8]) -> Result<Bytes, Damaged> {
    verified(revision, record, "value").map(Bytes::copy_from_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers() -> impl Strategy<Value = Header> {
        let put = (any::<u64>(), any::<u64>(), any::<u32>());
        let put = put.prop_map(|(created, deadline, length)| Put { created: Revision::new(created), deadline, length });
        ("[a-z.ü]{1,40}", proptest::option::of(put), any::<u64>()).prop_map(|(name, put, previous)| Header {
            key: Key::new("pods", Some("ns"), &format!("{name}x")).unwrap(),
            put,
            previous: Revision::new(previous),
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(header in headers(), revision in any::<u64>(), value in any::<Vec<u8>>()) {
            let revision = Revision::new(revision);
            prop_assert_eq!(Header::decode(revision, &header.encode(revision)), Ok(header));
            prop_assert_eq!(decode_value(revision, &encode_value(revision, &value)), Ok(Bytes::from(value)));
        }

        #[test]
        fn any_flipped_bit_is_noticed(header in headers(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
            let revision = Revision::new(7);
            let mut record = header.encode(revision);
            let at = at.index(record.len());
            record[at] ^= 1_u8 << bit;
            prop_assert!(Header::decode(revision, &record).is_err());
            prop_assert!(decode_value(revision, &record).is_err());
        }
    }

    #[test]
    fn a_record_in_anothers_place_is_noticed() {
        let header = Header { key: Key::new("nodes", None, "n").unwrap(), put: None, previous: Revision::ZERO };
        assert!(Header::decode(Revision::new(8), &header.encode(Revision::new(7))).is_err());
        for short in [&[][..], &[1, 2, 3], &checksum(Revision::new(7), b"")] {
            assert!(Header::decode(Revision::new(7), short).is_err(), "{short:?}");
        }
    }
}
