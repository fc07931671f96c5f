//! Encodes and decodes the records on disk; pure functions.
//!
//! Each revision has a header, and each written value a value record; two tables hold them by
//! revision. The headers suffice to rebuild the index, so opening a store reads no values.
//!
//! ```text
//!   header  kind u8 │ created u64 │ previous u64 │ deadline u64 │ length u32 │ key … │ crc u32
//!   value   bytes … │ crc u32
//! ```
//!
//! Numbers are little-endian. The checksum also covers the revision, so that a record under a wrong
//! revision is detected. The engine has its own checksums, which it verifies when it repairs after
//! a crash, but not on every read.

use bytes::Bytes;
use listwatch_meta::{Key, Revision};

use crate::ttl::Millis;

const KIND_PUT: u8 = 1;
const KIND_DELETE: u8 = 2;

/// Bytes of a header without its key.
const FIXED: usize = 1 + 8 + 8 + 8 + 4;
const CRC: usize = 4;

/// A revision without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub key: Key,
    /// The written state; `None` for a removal.
    pub put: Option<Put>,
    /// The revision of the state that this change replaced; zero if there was none.
    pub previous: Revision,
}

/// The header's data about a written value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Put {
    /// The revision that created this incarnation of the key.
    pub created: Revision,
    /// The expiry in milliseconds since the Unix epoch; zero if the key never expires.
    pub deadline: Millis,
    /// The value's length in bytes.
    pub length: u32,
}

/// The error for a damaged record, with the problem as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CorruptRecord(pub String);

fn checksum(revision: Revision, bytes: &[u8]) -> [u8; CRC] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&revision.get().to_le_bytes());
    hasher.update(bytes);
    hasher.finalize().to_le_bytes()
}

/// Splits off the checksum and compares it.
fn verified<'a>(revision: Revision, record: &'a [u8], what: &str) -> Result<&'a [u8], CorruptRecord> {
    match record.split_last_chunk::<CRC>() {
        Some((bytes, crc)) if *crc == checksum(revision, bytes) => Ok(bytes),
        _ => Err(CorruptRecord(format!("the {what} of revision {revision} does not match its checksum"))),
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

    pub(super) fn decode(revision: Revision, record: &[u8]) -> Result<Self, CorruptRecord> {
        let damaged = |what: &str| CorruptRecord(format!("the header of revision {revision} {what}"));
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

/// Encodes the record of a value.
pub(super) fn encode_value(revision: Revision, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() + CRC);
    out.extend_from_slice(value);
    out.extend_from_slice(&checksum(revision, value));
    out
}

/// The length of a record's value.
pub(super) fn value_len(record: &[u8]) -> usize {
    record.len().saturating_sub(CRC)
}

/// Checks that the record of a value is intact.
pub(super) fn check_value(revision: Revision, record: &[u8]) -> Result<(), CorruptRecord> {
    verified(revision, record, "value").map(|_| ())
}

/// Decodes the record of a value.
pub(super) fn decode_value(revision: Revision, record: &[u8]) -> Result<Bytes, CorruptRecord> {
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
        fn encoded_record_round_trips(header in headers(), revision in any::<u64>(), value in any::<Vec<u8>>()) {
            let revision = Revision::new(revision);
            prop_assert_eq!(Header::decode(revision, &header.encode(revision)), Ok(header));
            prop_assert_eq!(decode_value(revision, &encode_value(revision, &value)), Ok(Bytes::from(value)));
        }

        #[test]
        fn flipped_record_bit_is_detected(header in headers(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
            let revision = Revision::new(7);
            let mut record = header.encode(revision);
            let at = at.index(record.len());
            record[at] ^= 1_u8 << bit;
            prop_assert!(Header::decode(revision, &record).is_err());
            prop_assert!(decode_value(revision, &record).is_err());
        }
    }

    #[test]
    fn record_under_another_revision_is_detected() {
        let header = Header { key: Key::new("nodes", None, "n").unwrap(), put: None, previous: Revision::ZERO };
        assert!(Header::decode(Revision::new(8), &header.encode(Revision::new(7))).is_err());
        for short in [&[][..], &[1, 2, 3], &checksum(Revision::new(7), b"")] {
            assert!(Header::decode(Revision::new(7), short).is_err(), "{short:?}");
        }
    }
}
