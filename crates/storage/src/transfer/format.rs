//! The format of export files: pure encoding and decoding. `transfer/file.rs` reads and writes
//! files.
//!
//! ```text
//!   file     magic 14 bytes │ version u16 │ header │ record … │ end
//!   frame    kind u8 │ length u32 │ body, `length` bytes │ crc u32
//!
//!   header   revision u64 │ time u64 │ source …                                        kind 'H'
//!   record   created u64 │ modified u64 │ ttl u64 │ key length u16 │ key … │ value …    kind 'R'
//!   end      records u64 │ bytes u64 │ digest u32                                      kind 'E'
//! ```
//!
//! Header, records and end are frames. Numbers are little-endian; `time` is in milliseconds since
//! the epoch, `ttl` in milliseconds, 0 for none. Records are in key order.
//!
//! A frame's checksum also covers its offset in the file, so that a lost, repeated or moved frame
//! is detected. The end counts the records, and its digest is the checksum of all earlier
//! checksums. So a file is either complete or rejected. The magic contains bytes that text
//! conversions alter (as in PNG).

use std::time::{Duration, SystemTime};

use bytes::{Buf, Bytes, BytesMut};
use listwatch_meta::{Key, Revision};

use super::Record;
use crate::ttl::{millis_rounded_down, millis_rounded_up};
use crate::types::KeyValue;

/// The version that this code writes and reads.
pub const FORMAT_VERSION: u16 = 1;

/// The largest value in an export, in bytes. The value exceeds the stores' limit, because an etcd may be
/// configured for larger requests. An export with a larger value fails.
pub const EXPORT_VALUE_BYTES_MAX: usize = 16 << 20;

/// The longest key in an export, in bytes.
pub const EXPORT_KEY_BYTES_MAX: usize = u16::MAX as usize;

const MAGIC: &[u8; 14] = b"\x89listwatch\r\n\x1a\n";
/// The size of the magic and the version, in bytes.
const PREAMBLE: usize = MAGIC.len() + 2;

const HEADER: u8 = b'H';
const RECORD: u8 = b'R';
const END: u8 = b'E';

/// The size of the kind and the length of a frame, in bytes.
const HEAD: usize = 1 + 4;
const CRC: usize = 4;
/// The size of a record's body without its key and value.
const RECORD_FIXED: usize = 8 + 8 + 8 + 2;
const END_BODY: usize = 8 + 8 + 4;
const HEADER_FIXED: usize = 8 + 8;
/// The longest description of a source, in bytes.
const SOURCE_BYTES_MAX: usize = 4 << 10;

/// The largest body of a frame. A larger length is damage, and no memory is allocated for it.
const BODY_BYTES_MAX: usize = RECORD_FIXED + EXPORT_KEY_BYTES_MAX + EXPORT_VALUE_BYTES_MAX;

/// The header of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportHeader {
    /// A description of the source, for people.
    pub source: String,
    /// The revision of all records.
    pub revision: Revision,
    /// The time of the export, in milliseconds.
    pub time: SystemTime,
}

/// The end of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportEnd {
    /// The number of records.
    pub records: u64,
    /// The total bytes of keys and values in the export.
    pub bytes: u64,
    /// The checksum of all checksums.
    pub digest: u32,
}

/// The error of bytes that are not an export, or of a record that the format does not support.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The file is not an export.
    #[error(
        "this is no export of listwatch, it begins with {begins:?}; give a file that `listwatch storage export` wrote"
    )]
    Foreign {
        /// The first bytes, as text.
        begins: String,
    },
    /// An export of another version.
    #[error(
        "the export is of format {found}, this version reads format {FORMAT_VERSION}; use the version of listwatch that \
         wrote it, or a newer one"
    )]
    Version {
        /// The version of the export.
        found: u16,
    },
    /// The end is missing: the export was interrupted or truncated.
    #[error("the export ends too early, after {at} bytes: it is torn; copy it again, or take another one")]
    Torn {
        /// The number of bytes before the truncation.
        at: u64,
    },
    /// The data is damaged.
    #[error("the export is damaged at byte {at}: {what}; copy it again, or take another one")]
    Damaged {
        /// The offset in bytes.
        at: u64,
        /// The problem.
        what: String,
    },
    /// The format does not support the record.
    #[error("{key} cannot be exported: {what}")]
    Unfit {
        /// The record's key.
        key: Key,
        /// The reason.
        what: String,
    },
}

/// A TTL in the file: rounded up to milliseconds, so that no key expires early; never 0, which
/// means none.
fn ttl_millis(ttl: Duration) -> u64 {
    millis_rounded_up(ttl).max(1)
}

fn checksum(offset: u64, head_and_body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&offset.to_le_bytes());
    hasher.update(head_and_body);
    hasher.finalize()
}

/// Encodes records. Call [`Encoder::begin`], then [`Encoder::record`] for each record in key order,
/// then [`Encoder::end`]; each call appends the next part of the file to `out`.
#[derive(Debug)]
pub struct Encoder {
    /// The offset of the next frame.
    offset: u64,
    digest: crc32fast::Hasher,
    records: u64,
    bytes: u64,
    last_key: Option<Key>,
    revision: Revision,
}

impl Encoder {
    /// Begins an export. A description longer than 4 KiB is truncated.
    pub fn begin(header: &ExportHeader, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        let mut encoder = Encoder {
            offset: PREAMBLE as u64,
            digest: crc32fast::Hasher::new(),
            records: 0,
            bytes: 0,
            last_key: None,
            revision: header.revision,
        };
        let time = header.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut cut = header.source.len().min(SOURCE_BYTES_MAX);
        while !header.source.is_char_boundary(cut) {
            cut -= 1;
        }
        let numbers = [header.revision.get().to_le_bytes(), millis_rounded_down(time).to_le_bytes()];
        encoder.frame(HEADER, &[numbers.as_flattened(), &header.source.as_bytes()[..cut]], out);
        encoder
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`FormatError::Unfit`] when the record is too large, not after its predecessor, or newer
    /// than the export. Nothing was appended.
    pub fn record(&mut self, record: &Record, out: &mut Vec<u8>) -> Result<(), FormatError> {
        let KeyValue { key, value, created, modified, .. } = &record.entry;
        let unfit = |what: String| FormatError::Unfit { key: key.clone(), what };
        if value.len() > EXPORT_VALUE_BYTES_MAX {
            return Err(unfit(format!(
                "its value has {} bytes, an export holds {EXPORT_VALUE_BYTES_MAX} at most",
                value.len()
            )));
        }
        let key_length = u16::try_from(key.as_str().len())
            .map_err(|_| unfit(format!("a key has at most {EXPORT_KEY_BYTES_MAX} bytes")))?;
        check_record(key, *created, *modified, self.last_key.as_ref(), self.revision).map_err(unfit)?;
        let numbers = [created.get(), modified.get(), record.ttl.map_or(0, ttl_millis)].map(u64::to_le_bytes);
        let parts = [numbers.as_flattened(), &key_length.to_le_bytes(), key.as_str().as_bytes(), value];
        self.frame(RECORD, &parts, out);
        self.records += 1;
        self.bytes += (key.as_str().len() + value.len()) as u64;
        self.last_key = Some(key.clone());
        Ok(())
    }

    /// Ends the export.
    pub fn end(mut self, out: &mut Vec<u8>) -> ExportEnd {
        let end = ExportEnd { records: self.records, bytes: self.bytes, digest: self.digest.clone().finalize() };
        let parts: [&[u8]; 3] = [&end.records.to_le_bytes(), &end.bytes.to_le_bytes(), &end.digest.to_le_bytes()];
        self.frame(END, &parts, out);
        end
    }

    fn frame(&mut self, kind: u8, parts: &[&[u8]], out: &mut Vec<u8>) {
        let start = out.len();
        let length: usize = parts.iter().map(|part| part.len()).sum();
        out.push(kind);
        // The caller has checked the length of every part.
        out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        parts.iter().for_each(|part| out.extend_from_slice(part));
        let crc = checksum(self.offset, &out[start..]).to_le_bytes();
        out.extend_from_slice(&crc);
        self.digest.update(&crc);
        self.offset += (out.len() - start) as u64;
    }
}

/// Checks a record by the rules of the format, which the encoder and the decoder share.
fn check_record(
    key: &Key,
    created: Revision,
    modified: Revision,
    last: Option<&Key>,
    revision: Revision,
) -> Result<(), String> {
    if last.is_some_and(|last| last >= key) {
        return Err("it does not stand behind the key before it".to_owned());
    }
    if created.is_zero() || created > modified || modified > revision {
        return Err(format!("created at {created} and changed at {modified} cannot be, at revision {revision}"));
    }
    Ok(())
}

/// An item of a [`Decoder`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// The first item.
    Header(ExportHeader),
    /// The records, in the order of their keys.
    Record {
        /// The offset of the record's frame in the file.
        offset: u64,
        /// The record.
        record: Record,
    },
    /// The last item.
    End(ExportEnd),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Preamble,
    Header,
    Records,
    Ended,
}

/// Decodes an export from chunks of any size. Pass bytes to [`Decoder::handle_bytes`], call
/// [`Decoder::poll_item`] until it returns `None`, and call [`Decoder::handle_eof`] at the end of
/// the input. After an error no method may be called.
///
/// The decoder buffers at most one frame and the bytes of one call.
#[derive(Debug)]
pub struct Decoder {
    buffer: BytesMut,
    /// The offset of the buffer in the file.
    offset: u64,
    state: State,
    digest: crc32fast::Hasher,
    records: u64,
    bytes: u64,
    last_key: Option<Key>,
    revision: Revision,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder {
            buffer: BytesMut::new(),
            offset: 0,
            state: State::Preamble,
            digest: crc32fast::Hasher::new(),
            records: 0,
            bytes: 0,
            last_key: None,
            revision: Revision::ZERO,
        }
    }
}

impl Decoder {
    /// Adds the next bytes of the file.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The number of decoded bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next item; `None` when more bytes are needed.
    ///
    /// # Errors
    /// [`FormatError::Foreign`], [`FormatError::Version`] and [`FormatError::Damaged`].
    pub fn poll_item(&mut self) -> Result<Option<Item>, FormatError> {
        if self.state == State::Preamble {
            if !self.take_preamble()? {
                return Ok(None);
            }
            self.state = State::Header;
        }
        if self.state == State::Ended {
            if self.buffer.is_empty() {
                return Ok(None);
            }
            return Err(damaged(self.offset, "something follows behind its end"));
        }
        let Some(length) = frame_length(self.offset, &self.buffer)? else { return Ok(None) };
        if self.buffer.len() < length {
            return Ok(None);
        }
        let at = self.offset;
        let frame = self.buffer.split_to(length).freeze();
        self.offset += length as u64;
        let (kind, body, crc) = open_frame(at, &frame)?;
        let before = self.digest.clone();
        self.digest.update(&crc);
        let item = match (self.state, kind) {
            (State::Header, HEADER) => {
                let header = decode_header(at, &body)?;
                self.revision = header.revision;
                self.state = State::Records;
                Item::Header(header)
            }
            (State::Records, RECORD) => {
                let record = decode_record(at, body)?;
                let KeyValue { key, value, created, modified, .. } = &record.entry;
                check_record(key, *created, *modified, self.last_key.as_ref(), self.revision)
                    .map_err(|what| damaged(at, &format!("{key}: {what}")))?;
                self.records += 1;
                self.bytes += (key.as_str().len() + value.len()) as u64;
                self.last_key = Some(key.clone());
                Item::Record { offset: at, record }
            }
            (State::Records, END) => {
                let end = decode_end(at, &body)?;
                let counted = ExportEnd { records: self.records, bytes: self.bytes, digest: before.finalize() };
                if end != counted {
                    let what = format!("its end tells of {} records, there are {}", end.records, counted.records);
                    return Err(damaged(at, &what));
                }
                self.state = State::Ended;
                Item::End(end)
            }
            _ => return Err(damaged(at, "a part stands where it does not belong")),
        };
        Ok(Some(item))
    }

    /// Handles the end of the input.
    ///
    /// # Errors
    /// [`FormatError::Torn`] when the end was not reached; [`FormatError::Foreign`] when the few
    /// bytes are not an export.
    pub fn handle_eof(&self) -> Result<(), FormatError> {
        match self.state {
            State::Ended if self.buffer.is_empty() => Ok(()),
            State::Ended => Err(damaged(self.offset, "something follows behind its end")),
            _ if self.offset == 0 && self.buffer.is_empty() => Err(foreign(b"")),
            _ => Err(FormatError::Torn { at: self.offset + self.buffer.len() as u64 }),
        }
    }

    fn take_preamble(&mut self) -> Result<bool, FormatError> {
        let common = self.buffer.len().min(MAGIC.len());
        if self.buffer[..common] != MAGIC[..common] {
            return Err(foreign(&self.buffer));
        }
        if self.buffer.len() < PREAMBLE {
            return Ok(false);
        }
        let mut preamble = self.buffer.split_to(PREAMBLE);
        preamble.advance(MAGIC.len());
        let found = preamble.get_u16_le();
        if found != FORMAT_VERSION {
            return Err(FormatError::Version { found });
        }
        self.offset = PREAMBLE as u64;
        Ok(true)
    }
}

fn damaged(at: u64, what: &str) -> FormatError {
    FormatError::Damaged { at, what: what.to_owned() }
}

fn foreign(bytes: &[u8]) -> FormatError {
    const SHOWN: usize = 24;
    FormatError::Foreign { begins: String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]).into_owned() }
}

/// The length of the frame at the start of these bytes; `None` when more bytes are needed.
fn frame_length(at: u64, bytes: &[u8]) -> Result<Option<usize>, FormatError> {
    let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    let [_, length @ ..] = *head;
    let length = u32::from_le_bytes(length) as usize;
    if length > BODY_BYTES_MAX {
        return Err(damaged(at, &format!("a part of {length} bytes is longer than any")));
    }
    Ok(Some(HEAD + length + CRC))
}

/// The kind, body and checksum of a complete frame.
fn open_frame(at: u64, frame: &Bytes) -> Result<(u8, Bytes, [u8; CRC]), FormatError> {
    let checked = frame.len().checked_sub(CRC).filter(|checked| *checked >= HEAD);
    let checked = checked.ok_or_else(|| damaged(at, "a part is too short"))?;
    let crc: [u8; CRC] = std::array::from_fn(|n| frame[checked + n]);
    if u32::from_le_bytes(crc) != checksum(at, &frame[..checked]) {
        return Err(damaged(at, "a part does not match its checksum"));
    }
    Ok((frame[0], frame.slice(HEAD..checked), crc))
}

fn decode_header(at: u64, body: &Bytes) -> Result<ExportHeader, FormatError> {
    if body.len() < HEADER_FIXED {
        return Err(damaged(at, "its header is too short"));
    }
    let mut numbers = &body[..HEADER_FIXED];
    let revision = Revision::new(numbers.get_u64_le());
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(numbers.get_u64_le()));
    let source = std::str::from_utf8(&body[HEADER_FIXED..]).ok();
    match (time, source) {
        (Some(time), Some(source)) => Ok(ExportHeader { source: source.to_owned(), revision, time }),
        _ => Err(damaged(at, "its header makes no sense")),
    }
}

fn decode_record(at: u64, mut body: Bytes) -> Result<Record, FormatError> {
    if body.len() < RECORD_FIXED {
        return Err(damaged(at, "a record is too short"));
    }
    let (created, modified) = (Revision::new(body.get_u64_le()), Revision::new(body.get_u64_le()));
    let ttl = Some(body.get_u64_le()).filter(|ttl| *ttl > 0).map(Duration::from_millis);
    let key_length = usize::from(body.get_u16_le());
    if body.len() < key_length {
        return Err(damaged(at, "a record is too short"));
    }
    let key = body.split_to(key_length);
    let key = std::str::from_utf8(&key).ok().and_then(|key| Key::from_path(key).ok());
    let key = key.ok_or_else(|| damaged(at, "a record holds no key"))?;
    Ok(Record { entry: KeyValue { key, value: body, created, modified, stale: false }, ttl })
}

fn decode_end(at: u64, body: &Bytes) -> Result<ExportEnd, FormatError> {
    if body.len() != END_BODY {
        return Err(damaged(at, "its end is of the wrong length"));
    }
    let mut body = &body[..];
    Ok(ExportEnd { records: body.get_u64_le(), bytes: body.get_u64_le(), digest: body.get_u32_le() })
}

/// The record whose frame begins at `offset` of a checked file. `read` fills a buffer from an
/// offset, and returns the number of bytes (less than the buffer only at the end of the file).
pub(super) fn record_at<E: From<FormatError>>(
    offset: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<usize, E>,
) -> Result<Record, E> {
    /// The size of the first read of a frame, in bytes. Most frames are shorter and need no further read.
    const GUESS: usize = 4 << 10;
    let mut frame = vec![0; GUESS];
    let got = read(offset, &mut frame)?;
    frame.truncate(got);
    let torn = |got: usize| FormatError::Torn { at: offset + got as u64 };
    let length = frame_length(offset, &frame)?.ok_or_else(|| torn(got))?;
    if length > got {
        frame.resize(length, 0);
        let rest = read(offset + got as u64, &mut frame[got..])?;
        if got + rest < length {
            return Err(torn(got + rest).into());
        }
    }
    frame.truncate(length);
    match open_frame(offset, &frame.into())? {
        (RECORD, body, _) => Ok(decode_record(offset, body)?),
        _ => Err(damaged(offset, "a part stands where it does not belong").into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    fn header() -> ExportHeader {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_763_769_600_123);
        ExportHeader { source: "embedded (redb) in listwatch-dätä".into(), revision: Revision::new(1_000), time }
    }

    fn record(key: &str, value: &[u8], created: u64, modified: u64, ttl: Option<u64>) -> Record {
        let (created, modified) = (Revision::new(created), Revision::new(modified));
        let entry = KeyValue {
            key: Key::from_path(key).unwrap(),
            value: Bytes::copy_from_slice(value),
            created,
            modified,
            stale: false,
        };
        Record { entry, ttl: ttl.map(Duration::from_millis) }
    }

    fn encode(header: &ExportHeader, records: &[Record]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = Encoder::begin(header, &mut out);
        records.iter().for_each(|record| encoder.record(record, &mut out).unwrap());
        encoder.end(&mut out);
        out
    }

    fn decode(parts: &[&[u8]]) -> Result<(ExportHeader, Vec<Record>, ExportEnd), FormatError> {
        let mut decoder = Decoder::default();
        let (mut header, mut records, mut end) = (None, Vec::new(), None);
        for part in parts {
            decoder.handle_bytes(part);
            while let Some(item) = decoder.poll_item()? {
                match item {
                    Item::Header(found) => header = Some(found),
                    Item::Record { record, .. } => records.push(record),
                    Item::End(found) => end = Some(found),
                }
            }
        }
        decoder.handle_eof()?;
        Ok((header.unwrap(), records, end.unwrap()))
    }

    fn some_records() -> Vec<Record> {
        vec![
            record("/configmaps/a/x", b"{}", 2, 900, None),
            record("/configmaps/a/y", b"", 3, 3, Some(1)),
            record("/events/a/z", &[7; 5_000], 4, 1_000, Some(3_600_000)),
        ]
    }

    static FILE: LazyLock<Vec<u8>> = LazyLock::new(|| encode(&header(), &some_records()));

    fn records() -> impl Strategy<Value = Vec<Record>> {
        let one =
            ("[a-z./ü]{0,40}x", any::<Vec<u8>>(), 1..=1_000_u64, 1..=1_000_u64, proptest::option::of(1..u64::MAX));
        proptest::collection::vec(one, 0..20).prop_map(|records| {
            let mut records: Vec<Record> = records
                .into_iter()
                .filter(|(key, ..)| Key::from_path(&format!("/{key}")).is_ok())
                .map(|(key, value, a, b, ttl)| record(&format!("/{key}"), &value, a.min(b), a.max(b), ttl))
                .collect();
            records.sort_by(|a, b| a.entry.key.cmp(&b.entry.key));
            records.dedup_by(|a, b| a.entry.key == b.entry.key);
            records
        })
    }

    proptest! {
        #[test]
        fn encoded_records_decode_from_any_chunks(
            records in records(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..30),
        ) {
            let file = encode(&header(), &records);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(file.len() + 1)).chain([0, file.len()]).collect();
            cuts.sort_unstable();
            let parts: Vec<&[u8]> = cuts.windows(2).map(|cut| &file[cut[0]..cut[1]]).collect();
            let (found, read, end) = decode(&parts).unwrap();
            prop_assert_eq!(found, header());
            prop_assert_eq!(end.records, records.len() as u64);
            prop_assert_eq!(read, records);
        }

        #[test]
        fn random_bytes_are_rejected_without_panic(bytes in any::<Vec<u8>>(), keep in 0..200_usize) {
            prop_assert!(decode(&[&bytes]).is_err());
            // The same after a valid beginning.
            let mut file = FILE[..keep.min(FILE.len() - 1)].to_vec();
            file.extend_from_slice(&bytes);
            prop_assert!(file == *FILE || decode(&[&file]).is_err());
        }

        #[test]
        fn any_flipped_bit_is_detected(records in records(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
            let mut file = encode(&header(), &records);
            let at = at.index(file.len());
            file[at] ^= 1_u8 << bit;
            prop_assert!(decode(&[&file]).is_err());
        }
    }

    #[test]
    fn every_truncation_fails_as_torn() {
        for length in 1..FILE.len() {
            assert_eq!(decode(&[&FILE[..length]]), Err(FormatError::Torn { at: length as u64 }));
        }
        assert!(decode(&[&FILE]).is_ok());
    }

    #[test]
    fn flipped_bit_in_every_byte_is_detected() {
        for at in 0..FILE.len() {
            let mut file = FILE.clone();
            file[at] ^= 1_u8 << (at % 8);
            assert!(decode(&[&file]).is_err(), "byte {at}");
        }
    }

    #[test]
    fn foreign_newer_or_torn_file_error_names_the_cause() {
        let newer = [&MAGIC[..], &2_u16.to_le_bytes()].concat();
        let longer = [&FILE[..], b"!"].concat();
        // A transfer in text mode has this effect.
        let as_text = String::from_utf8_lossy(&FILE).replace("\r\n", "\n").into_bytes();
        for (bytes, expected) in [
            (&b""[..], "no export of listwatch, it begins with \"\""),
            (b"{\"kind\":\"List\"}", "no export of listwatch, it begins with \"{\\\"kind\\\":\\\"List\\\"}\""),
            (&as_text, "no export of listwatch"),
            (&newer, "the export is of format 2, this version reads format 1"),
            (&longer, "something follows behind its end"),
            (&MAGIC[..5], "it is torn"),
        ] {
            let error = decode(&[bytes]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn lost_repeated_or_moved_record_is_detected() {
        let (mut file, mut cuts) = (Vec::new(), Vec::new());
        let mut encoder = Encoder::begin(&header(), &mut file);
        for name in ["a", "b", "c"] {
            cuts.push(file.len());
            encoder.record(&record(&format!("/pods/ns/{name}"), b"{}", 5, 5, None), &mut file).unwrap();
        }
        cuts.push(file.len());
        encoder.end(&mut file);
        let [a, b, c, end] = [cuts[0], cuts[1], cuts[2], cuts[3]];
        let parts = |parts: &[std::ops::Range<usize>]| {
            let whole: Vec<&[u8]> = parts.iter().map(|part| &file[part.clone()]).collect();
            decode(&whole)
        };
        assert!(parts(&[0..a, a..file.len()]).is_ok());
        assert!(parts(&[0..b, c..file.len()]).is_err(), "lost");
        assert!(parts(&[0..end, c..file.len()]).is_err(), "repeated");
        assert!(parts(&[0..a, b..c, a..b, c..file.len()]).is_err(), "moved");
        assert!(parts(&[0..a, a..end - 1]).is_err(), "without its end");
    }

    #[test]
    fn encoder_rejects_records_that_the_decoder_rejects() {
        let check = |records: &[Record], expected: &str| {
            let mut out = Vec::new();
            let mut encoder = Encoder::begin(&header(), &mut out);
            let mut refused = None;
            for record in records {
                let before = out.len();
                refused = encoder.record(record, &mut out).err();
                assert!(refused.is_none() || out.len() == before, "a refused record left something behind");
            }
            let refused = refused.map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.contains(expected), "{refused:?} should say {expected:?}");
        };
        let fine = record("/pods/b", b"", 1, 2, None);
        check(&[fine.clone(), fine.clone()], "does not stand behind");
        check(&[fine, record("/pods/a", b"", 1, 2, None)], "does not stand behind");
        check(&[record("/pods/b", b"", 0, 2, None)], "created at 0");
        check(&[record("/pods/b", b"", 3, 2, None)], "created at 3 and changed at 2");
        check(&[record("/pods/b", b"", 3, 1_001, None)], "at revision 1000");
        check(&[record("/pods/b", &vec![0; EXPORT_VALUE_BYTES_MAX + 1], 1, 2, None)], "16777217 bytes");
        check(&[record(&format!("/{}", "p".repeat(1 << 16)), b"", 1, 2, None)], "at most 65535 bytes");
    }

    #[test]
    fn impossible_length_allocates_no_memory() {
        let mut file = Vec::new();
        Encoder::begin(&header(), &mut file);
        let at = file.len() as u64;
        file.extend_from_slice(&[RECORD, 0xff, 0xff, 0xff, 0xff]);
        assert!(matches!(decode(&[&file]), Err(FormatError::Damaged { at: found, .. }) if found == at));
    }

    #[test]
    fn record_is_read_by_its_offset() {
        let mut decoder = Decoder::default();
        decoder.handle_bytes(&FILE);
        let mut found = 0;
        let read = |at: u64, buffer: &mut [u8]| -> Result<usize, FormatError> {
            let rest = &FILE[at as usize..];
            let length = rest.len().min(buffer.len());
            buffer[..length].copy_from_slice(&rest[..length]);
            Ok(length)
        };
        while let Some(item) = decoder.poll_item().unwrap() {
            if let Item::Record { offset, record } = item {
                assert_eq!(record_at(offset, read), Ok(record));
                assert!(record_at(offset + 1, read).is_err());
                found += 1;
            }
        }
        assert_eq!(found, some_records().len());
    }

    #[test]
    fn exported_ttl_is_rounded_up_to_milliseconds() {
        for (nanos, expected) in [(0, 1), (1, 1), (1_000_000, 1), (1_000_001, 2), (u64::MAX, 18_446_744_073_710)] {
            assert_eq!(ttl_millis(Duration::from_nanos(nanos)), expected, "{nanos} ns");
        }
    }

    /// A frame that a damaged or foreign encoder wrote.
    fn frame(at: usize, kind: u8, body: &[u8]) -> Vec<u8> {
        let mut frame = vec![kind];
        frame.extend_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
        frame.extend_from_slice(body);
        let crc = checksum(at as u64, &frame);
        frame.extend_from_slice(&crc.to_le_bytes());
        frame
    }

    #[test]
    fn short_header_or_record_is_reported_as_damaged() {
        let preamble = [&MAGIC[..], &FORMAT_VERSION.to_le_bytes()].concat();
        for (kind, length, expected) in [
            (HEADER, 0, "its header is too short"),
            (HEADER, HEADER_FIXED - 1, "its header is too short"),
            (HEADER, HEADER_FIXED, "it is torn"),
            (RECORD, 0, "a record is too short"),
            (RECORD, RECORD_FIXED - 1, "a record is too short"),
            // A record without a key.
            (RECORD, RECORD_FIXED, "a record holds no key"),
        ] {
            let mut file = preamble.clone();
            if kind == RECORD {
                Encoder::begin(&header(), &mut file);
                file.drain(..PREAMBLE);
            }
            file.extend(frame(file.len(), kind, &vec![0; length]));
            let error = decode(&[&file]).unwrap_err().to_string();
            assert!(error.contains(expected), "{} of {length} bytes: {error}", char::from(kind));
        }
    }

    #[test]
    fn source_description_is_truncated_at_a_character_boundary() {
        for (source, expected) in [
            (String::new(), 0),
            ("x".repeat(SOURCE_BYTES_MAX), SOURCE_BYTES_MAX),
            ("x".repeat(SOURCE_BYTES_MAX + 1), SOURCE_BYTES_MAX),
            ("x".repeat(SOURCE_BYTES_MAX - 1) + "ü", SOURCE_BYTES_MAX - 1),
            ("x".repeat(SOURCE_BYTES_MAX - 1) + "€", SOURCE_BYTES_MAX - 1),
            ("x".repeat(SOURCE_BYTES_MAX - 2) + "€", SOURCE_BYTES_MAX - 2),
        ] {
            let (found, ..) = decode(&[&encode(&ExportHeader { source: source.clone(), ..header() }, &[])]).unwrap();
            assert_eq!(found.source, source[..expected], "a source of {} bytes", source.len());
        }
    }

    #[test]
    fn largest_record_is_exported() {
        let key = format!("/p/{}", "n".repeat(EXPORT_KEY_BYTES_MAX - 3));
        let largest = record(&key, &vec![7; EXPORT_VALUE_BYTES_MAX], 1, 1, None);
        let file = encode(&header(), std::slice::from_ref(&largest));
        let (_, records, _) = decode(&[&file]).unwrap();
        assert!(records == [largest], "a record at the limits changes");
    }

    #[test]
    fn decoder_reports_its_offset_and_rejects_bytes_after_the_end() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.offset(), 0);
        decoder.handle_bytes(&FILE);
        while decoder.poll_item().unwrap().is_some() {}
        assert_eq!(decoder.offset(), FILE.len() as u64);
        assert_eq!(decoder.handle_eof(), Ok(()));
        decoder.handle_bytes(b"!");
        let behind = damaged(FILE.len() as u64, "something follows behind its end");
        assert_eq!(decoder.handle_eof(), Err(behind.clone()));
        assert_eq!(decoder.poll_item(), Err(behind));
    }

    /// The file was truncated after it was checked.
    #[test]
    fn read_of_a_record_in_a_truncated_file_fails_as_torn() {
        let mut decoder = Decoder::default();
        decoder.handle_bytes(&FILE);
        let mut last = None;
        while let Some(item) = decoder.poll_item().unwrap() {
            if let Item::Record { offset, .. } = item {
                last = Some(offset);
            }
        }
        // The last record is longer than the first read.
        let offset = last.unwrap();
        for length in [0, 1, HEAD - 1, HEAD, 100, 4_095, 4_096, 4_097, 5_000] {
            let file = &FILE[..offset as usize + length];
            let read = |at: u64, buffer: &mut [u8]| -> Result<usize, FormatError> {
                let rest = &file[(at as usize).min(file.len())..];
                let length = rest.len().min(buffer.len());
                buffer[..length].copy_from_slice(&rest[..length]);
                Ok(length)
            };
            assert_eq!(record_at(offset, read), Err(FormatError::Torn { at: file.len() as u64 }), "{length} bytes");
        }
    }
}
