//! Splits watch streams into frames.
//!
//! A JSON watch is a sequence of documents, which kube-apiserver separates by newlines.
//! [`JsonFrames`] finds the ends of the documents themselves, so that re-wrapped or indented
//! streams also work. A protobuf watch has 4-byte big-endian lengths ([`LengthFrames`]). A CBOR
//! watch is a sequence of self-delimiting items ([`CborFrames`]).
//!
//! The frames do not depend on where the bytes are split into chunks. Frames are slices of the
//! chunks; only a frame across chunks is copied.

use bytes::{Bytes, BytesMut};

#[cfg(feature = "cbor")]
use crate::cbor::CborFrames;
use crate::cut::ValueSplitter;
pub use crate::frame_error::FrameError;
use crate::media_type::Encoding;

/// Default limit of a frame in bytes, as in client-go. A stream with a larger frame fails with
/// [`FrameError::TooLarge`].
pub const FRAME_LIMIT_BYTES: usize = 16 * 1024 * 1024;

/// Splits a stream into JSON documents.
#[derive(Debug)]
pub struct JsonFrames {
    cutter: ValueSplitter,
}

impl JsonFrames {
    /// Creates a decoder with [`FRAME_LIMIT_BYTES`].
    pub fn new() -> Self {
        JsonFrames::with_limit(FRAME_LIMIT_BYTES)
    }

    /// Creates a decoder that rejects documents above `limit_bytes`.
    pub fn with_limit(limit_bytes: usize) -> Self {
        JsonFrames { cutter: ValueSplitter::new(limit_bytes) }
    }

    /// Adds bytes of the stream.
    pub fn feed(&mut self, chunk: Bytes) {
        self.cutter.feed(chunk);
    }

    /// The next complete document, without surrounding whitespace; `None` when more bytes are
    /// needed.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`], and [`FrameError::Malformed`] when something other than an object
    /// begins. Every further call returns the same error.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        Ok(self.next_frame_with(|_| None::<(usize, ())>)?.map(|(frame, _)| frame))
    }

    /// As [`JsonFrames::next_frame`]; `find` examines a document first and returns its end, see
    /// [`ValueSplitter::whole`].
    pub(crate) fn next_frame_with<T>(
        &mut self,
        find: impl FnOnce(&[u8]) -> Option<(usize, T)>,
    ) -> Result<Option<(Bytes, Option<T>)>, FrameError> {
        if !self.cutter.in_value() {
            match self.cutter.peek() {
                None => return Ok(None),
                Some(b'{') => {}
                Some(_) => return self.cutter.malformed(),
            }
            if let Some((frame, found)) = self.cutter.whole(find) {
                return Ok(Some((frame, Some(found))));
            }
        }
        Ok(self.cutter.value()?.map(|frame| (frame, None)))
    }

    /// Ends the stream; to be called after every frame was taken.
    ///
    /// # Errors
    /// [`FrameError::Incomplete`] when the stream ends inside a document.
    pub fn finish(&mut self) -> Result<(), FrameError> {
        if !self.cutter.in_value() && self.cutter.peek().is_none() {
            return Ok(());
        }
        Err(FrameError::Incomplete { buffered_bytes: self.cutter.buffered() })
    }

    /// Bytes of an incomplete frame.
    pub fn buffered_bytes(&self) -> usize {
        self.cutter.buffered()
    }
}

impl Default for JsonFrames {
    fn default() -> Self {
        JsonFrames::new()
    }
}

/// Splits a stream into frames with 4-byte big-endian lengths.
#[derive(Debug)]
pub struct LengthFrames {
    /// The received bytes of the current frame and after it.
    buffer: BytesMut,
    /// The chunk of which frames are slices while `buffer` is empty.
    chunk: Bytes,
    offset: u64,
    limit: usize,
}

/// Bytes of the length of a protobuf watch frame.
const LENGTH_BYTES: usize = 4;

impl LengthFrames {
    /// Creates a decoder with [`FRAME_LIMIT_BYTES`].
    pub fn new() -> Self {
        LengthFrames::with_limit(FRAME_LIMIT_BYTES)
    }

    /// Creates a decoder that rejects frames above `limit_bytes`.
    pub fn with_limit(limit_bytes: usize) -> Self {
        LengthFrames { buffer: BytesMut::new(), chunk: Bytes::new(), offset: 0, limit: limit_bytes }
    }

    /// Adds bytes of the stream.
    pub fn feed(&mut self, chunk: Bytes) {
        if self.buffer.is_empty() && self.chunk.is_empty() {
            self.chunk = chunk;
        } else {
            let rest = std::mem::take(&mut self.chunk);
            self.buffer.extend_from_slice(&rest);
            self.buffer.extend_from_slice(&chunk);
        }
    }

    /// The next complete frame without its length; `None` when more bytes are needed.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`], and [`FrameError::Malformed`] for a length of zero, which no
    /// server sends. Every further call returns the same error.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        let buffered: &[u8] = if self.chunk.is_empty() { &self.buffer } else { &self.chunk };
        let Some(length) = buffered.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length == 0 {
            return Err(FrameError::Malformed { at: self.offset });
        }
        if length > self.limit {
            return Err(FrameError::TooLarge { limit_bytes: self.limit });
        }
        if buffered.len() < LENGTH_BYTES + length {
            return Ok(None);
        }
        self.offset += (LENGTH_BYTES + length) as u64;
        let mut frame = if self.chunk.is_empty() {
            self.buffer.split_to(LENGTH_BYTES + length).freeze()
        } else {
            self.chunk.split_to(LENGTH_BYTES + length)
        };
        Ok(Some(frame.split_off(LENGTH_BYTES)))
    }

    /// Ends the stream; to be called after every frame was taken.
    ///
    /// # Errors
    /// [`FrameError::Incomplete`] when the stream ends inside a frame.
    pub fn finish(&mut self) -> Result<(), FrameError> {
        match self.buffered_bytes() {
            0 => Ok(()),
            buffered_bytes => Err(FrameError::Incomplete { buffered_bytes }),
        }
    }

    /// Bytes of an incomplete frame.
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.len() + self.chunk.len()
    }
}

impl Default for LengthFrames {
    fn default() -> Self {
        LengthFrames::new()
    }
}

/// The decoder of a watch in any encoding.
#[derive(Debug)]
pub enum Frames {
    /// JSON documents.
    Json(JsonFrames),
    /// Protobuf messages.
    Length(LengthFrames),
    /// CBOR items.
    #[cfg(feature = "cbor")]
    Cbor(CborFrames),
}

impl Frames {
    /// The decoder of this encoding; `None` for YAML, which has no watch, and for CBOR without the
    /// feature `cbor`.
    pub fn new(encoding: Encoding, limit_bytes: usize) -> Option<Self> {
        match encoding {
            Encoding::Json => Some(Frames::Json(JsonFrames::with_limit(limit_bytes))),
            Encoding::Protobuf => Some(Frames::Length(LengthFrames::with_limit(limit_bytes))),
            #[cfg(feature = "cbor")]
            Encoding::Cbor => Some(Frames::Cbor(CborFrames::with_limit(limit_bytes))),
            #[cfg(not(feature = "cbor"))]
            Encoding::Cbor => None,
            Encoding::Yaml => None,
        }
    }

    /// Adds bytes of the stream.
    pub fn feed(&mut self, chunk: Bytes) {
        match self {
            Frames::Json(frames) => frames.feed(chunk),
            Frames::Length(frames) => frames.feed(chunk),
            #[cfg(feature = "cbor")]
            Frames::Cbor(frames) => frames.feed(chunk),
        }
    }

    /// The next complete frame; `None` when more bytes are needed.
    ///
    /// # Errors
    /// See [`JsonFrames::next_frame`], [`LengthFrames::next_frame`] and [`CborFrames::next_frame`].
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        match self {
            Frames::Json(frames) => frames.next_frame(),
            Frames::Length(frames) => frames.next_frame(),
            #[cfg(feature = "cbor")]
            Frames::Cbor(frames) => frames.next_frame(),
        }
    }

    /// Ends the stream; to be called after every frame was taken.
    ///
    /// # Errors
    /// [`FrameError::Incomplete`] when the stream ends inside a frame.
    pub fn finish(&mut self) -> Result<(), FrameError> {
        match self {
            Frames::Json(frames) => frames.finish(),
            Frames::Length(frames) => frames.finish(),
            #[cfg(feature = "cbor")]
            Frames::Cbor(frames) => frames.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut as _;
    use proptest::prelude::*;

    use super::*;

    /// Adds a length to a payload: the inverse of [`LengthFrames`].
    fn length_frame(payload: &[u8]) -> Bytes {
        let mut frame = BytesMut::with_capacity(LENGTH_BYTES + payload.len());
        frame.put_u32(u32::try_from(payload.len()).expect("a frame is smaller than 4 GiB"));
        frame.put_slice(payload);
        frame.freeze()
    }

    /// The output of a decoder for a stream in these pieces.
    fn read(mut frames: Frames, pieces: &[&[u8]]) -> (Vec<Bytes>, Result<(), FrameError>) {
        let mut found = Vec::new();
        for piece in pieces {
            frames.feed(Bytes::copy_from_slice(piece));
            loop {
                match frames.next_frame() {
                    Ok(Some(frame)) => found.push(frame),
                    Ok(None) => break,
                    Err(error) => {
                        assert_eq!(frames.next_frame(), Err(error.clone()), "a stream that failed stays failed");
                        return (found, Err(error));
                    }
                }
            }
        }
        let end = frames.finish();
        (found, end)
    }

    fn json(limit: usize) -> Frames {
        Frames::new(Encoding::Json, limit).unwrap()
    }

    fn lengths(limit: usize) -> Frames {
        Frames::new(Encoding::Protobuf, limit).unwrap()
    }

    #[test]
    fn json_frames_end_with_their_documents() {
        fn check(stream: &str, expected: &[&str], end: Result<(), FrameError>) {
            let (found, found_end) = read(json(64), &[stream.as_bytes()]);
            assert_eq!(found, expected, "{stream}");
            assert_eq!(found_end, end, "{stream}");
        }
        check("", &[], Ok(()));
        check("{\"a\":1}\n{\"b\":2}\n", &[r#"{"a":1}"#, r#"{"b":2}"#], Ok(()));
        check("{\"a\":1}{\"b\":2}", &[r#"{"a":1}"#, r#"{"b":2}"#], Ok(()));
        check(" \r\n{\n \"a\": [\n{}\n]\n}\t \n", &["{\n \"a\": [\n{}\n]\n}"], Ok(()));
        check(r#"{"a":"}\"{\\"}{}"#, &[r#"{"a":"}\"{\\"}"#, "{}"], Ok(()));
        check("{\"a\":1}\n{\"b\"", &[r#"{"a":1}"#], Err(FrameError::Incomplete { buffered_bytes: 4 }));
        check("{}\n\n[1]", &["{}"], Err(FrameError::Malformed { at: 4 }));
        check("x", &[], Err(FrameError::Malformed { at: 0 }));
        let large = format!("{{}}{{\"a\":\"{}\"}}", "x".repeat(64));
        check(&large, &["{}"], Err(FrameError::TooLarge { limit_bytes: 64 }));
        let full = format!("{{\"a\":\"{}\"}}", "x".repeat(56));
        check(&full, &[&full], Ok(()));
        let begun = format!("{{\"a\":\"{}", "x".repeat(58));
        check(&begun, &[], Err(FrameError::Incomplete { buffered_bytes: 64 }));
    }

    #[test]
    fn buffered_bytes_are_those_that_no_frame_returned() {
        let mut frames = JsonFrames::new();
        assert_eq!(frames.buffered_bytes(), 0);
        frames.feed(Bytes::from_static(b"{}{\"a\""));
        assert_eq!(frames.buffered_bytes(), 6, "bytes count before they are scanned");
        assert_eq!(frames.next_frame(), Ok(Some(Bytes::from_static(b"{}"))));
        assert_eq!(frames.next_frame(), Ok(None));
        assert_eq!(frames.buffered_bytes(), 4, "the begun document counts");
        frames.feed(Bytes::from_static(b":1"));
        assert_eq!(frames.buffered_bytes(), 6, "the begun document and the next chunk count");
        frames.feed(Bytes::from_static(b"}"));
        assert_eq!(frames.next_frame(), Ok(Some(Bytes::from_static(b"{\"a\":1}"))));
        assert_eq!(frames.buffered_bytes(), 0);
    }

    #[test]
    fn document_inside_one_chunk_is_a_slice_of_it() {
        let chunk = Bytes::from_static(b"{\"a\":1}\n{\"b\":2}\n");
        let mut frames = JsonFrames::new();
        frames.feed(chunk.clone());
        let first = frames.next_frame().unwrap().unwrap();
        let second = frames.next_frame().unwrap().unwrap();
        assert_eq!(first.as_ptr(), chunk.as_ptr(), "the first document was copied");
        assert_eq!(second.as_ptr(), chunk[8..].as_ptr(), "the second document was copied");
    }

    #[test]
    fn length_prefixed_stream_is_split_into_frames() {
        fn check(stream: &[u8], expected: &[&[u8]], end: Result<(), FrameError>) {
            let (found, found_end) = read(lengths(4), &[stream]);
            assert_eq!(found, expected, "{stream:?}");
            assert_eq!(found_end, end, "{stream:?}");
        }
        check(b"", &[], Ok(()));
        check(b"\0\0\0\x02ab\0\0\0\x01c", &[b"ab", b"c"], Ok(()));
        check(b"\0\0\0\x02a", &[], Err(FrameError::Incomplete { buffered_bytes: 5 }));
        check(b"\0\0\0\x01a\0\0\0\0", &[b"a"], Err(FrameError::Malformed { at: 5 }));
        check(b"\0\0\0\x04abcd", &[b"abcd"], Ok(()));
        check(b"\0\0\0\x05abcde", &[], Err(FrameError::TooLarge { limit_bytes: 4 }));
        assert_eq!(length_frame(b"ab"), &b"\0\0\0\x02ab"[..]);
    }

    fn cbor(limit: usize) -> Frames {
        Frames::new(Encoding::Cbor, limit).unwrap()
    }

    #[test]
    fn cbor_frames_end_with_their_items() {
        fn check(stream: &[u8], expected: &[&[u8]], end: Result<(), FrameError>) {
            let (found, found_end) = read(cbor(16), &[stream]);
            assert_eq!(found, expected, "{stream:x?}");
            assert_eq!(found_end, end, "{stream:x?}");
        }
        check(b"", &[], Ok(()));
        check(b"\x00\x18\x18\xf5", &[b"\x00", b"\x18\x18", b"\xf5"], Ok(()));
        check(b"\xd9\xd9\xf7\xa1\x41a\x82\x01\x80\xa0", &[b"\xd9\xd9\xf7\xa1\x41a\x82\x01\x80", b"\xa0"], Ok(()));
        check(b"\xbf\x41a\x9f\xff\xff\x5f\x41a\x40\xff", &[b"\xbf\x41a\x9f\xff\xff", b"\x5f\x41a\x40\xff"], Ok(()));
        check(b"\x82\x01", &[], Err(FrameError::Incomplete { buffered_bytes: 2 }));
        check(b"\x00\xff", &[b"\x00"], Err(FrameError::Malformed { at: 1 }));
        check(b"\xbf\x01\xff", &[], Err(FrameError::Malformed { at: 2 }));
        check(b"\x7f\x41a\xff", &[], Err(FrameError::Malformed { at: 1 }));
        check(b"\x00\x81\x1c", &[b"\x00"], Err(FrameError::Malformed { at: 2 }));
        check(b"\x4f012345678901234", &[b"\x4f012345678901234"], Ok(()));
        check(b"\x81\x4f", &[], Err(FrameError::TooLarge { limit_bytes: 16 }));
        for pieces in [&[&b"\xf8\x00\x00"[..]][..], &[b"\xf8", b"\x00\x00"], &[b"\xf8", b"\x00", b"\x00"]] {
            assert_eq!(read(cbor(1), pieces), (vec![], Err(FrameError::TooLarge { limit_bytes: 1 })), "{pieces:x?}");
        }
        check(b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff", &[], Err(FrameError::TooLarge { limit_bytes: 16 }));
        check(b"\xf8\x20\xf8\x1f", &[b"\xf8\x20"], Err(FrameError::Malformed { at: 2 }));
        let deep = |depth: usize| {
            let mut frames = CborFrames::new();
            frames.feed(Bytes::from(vec![0xc1; depth]));
            frames.next_frame()
        };
        assert_eq!(deep(crate::cbor::DEPTH_MAX), Ok(None));
        assert_eq!(deep(crate::cbor::DEPTH_MAX + 1), Err(FrameError::Malformed { at: 100 }));
    }

    #[test]
    fn cbor_item_of_exactly_the_limit_is_accepted_and_one_byte_more_rejected() {
        for item in [&b"\x18\x18"[..], b"\x42ab", b"\x81\x00", b"\x9f\xff", b"\x5f\x41a\xff", b"\xbf\x41a\x00\xff"] {
            let limit_bytes = item.len() - 1;
            for pieces in [vec![item], item.chunks(1).collect()] {
                let accepted = (vec![Bytes::copy_from_slice(item)], Ok(()));
                assert_eq!(read(cbor(item.len()), &pieces), accepted, "{item:x?} is within the limit");
                let rejected = (vec![], Err(FrameError::TooLarge { limit_bytes }));
                assert_eq!(read(cbor(limit_bytes), &pieces), rejected, "{item:x?} is above the limit");
            }
        }
    }

    fn cut_at<'a>(stream: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        places.extend([0, stream.len()]);
        places.sort_unstable();
        places.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect()
    }

    fn check_any_split(new: fn(usize) -> Frames, limit: usize, stream: &[u8], cuts: &[prop::sample::Index]) {
        let whole = read(new(limit), &[stream]);
        let split = read(new(limit), &cut_at(stream, cuts));
        assert_eq!(whole, split, "the same bytes, split elsewhere, gave other frames");
    }

    proptest! {
        #[test]
        fn json_split_anywhere_gives_the_same_frames(
            stream in "([{}\\[\\]\",:a\\\\ \n1]|\\{\"a\":\"b\"\\}|\\{\\}){0,40}",
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
            limit in 1_usize..40,
        ) {
            check_any_split(json, limit, stream.as_bytes(), &cuts);
        }

        #[test]
        fn json_documents_round_trip_through_frames(
            documents in prop::collection::vec("[a-z{}\\[\\]\"\\\\ ,:]{0,20}", 0..8),
            separator in prop_oneof![Just(""), Just("\n"), Just(" \r\n ")],
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let documents: Vec<String> = documents.iter().map(|text| listwatch_json::json!({"t": text}).to_string()).collect();
            let stream = documents.join(separator);
            let (found, end) = read(json(1024), &cut_at(stream.as_bytes(), &cuts));
            prop_assert_eq!(found, documents);
            prop_assert_eq!(end, Ok(()));
        }

        #[test]
        fn lengths_split_anywhere_give_the_same_frames(
            stream in prop::collection::vec(prop_oneof![Just(0_u8), 0_u8..4, any::<u8>()], 0..60),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            check_any_split(lengths, 3, &stream, &cuts);
        }

        #[test]
        fn items_split_anywhere_give_the_same_frames(
            stream in prop::collection::vec(prop_oneof![
                Just(0x81_u8), Just(0xa1), Just(0x9f), Just(0xbf), Just(0xff), Just(0x5f), Just(0x42), Just(0x00),
                Just(0xd9), Just(0x18), any::<u8>(),
            ], 0..40),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
            limit in 1_usize..30,
        ) {
            check_any_split(cbor, limit, &stream, &cuts);
        }

        #[test]
        fn length_framed_payloads_round_trip(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 0..6)) {
            let stream: Vec<u8> = payloads.iter().flat_map(|payload| length_frame(payload)).collect();
            let (found, end) = read(lengths(1024), &[&stream]);
            prop_assert_eq!(found, payloads);
            prop_assert_eq!(end, Ok(()));
        }
    }
}
