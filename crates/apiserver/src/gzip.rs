//! gzip, as kube-apiserver has it: for large answers to a get or a list, and for WatchLists.
//!
//! A list is one gzip member, made as it is sent. A watch is one, too, made of blocks that stand by
//! themselves (RFC 1951): what was sent can be read to its end without waiting for what comes next, and
//! no compressor is kept while nothing happens. Small chunks, which single events are, are stored and
//! not compressed: with thousands of watchers it is each watcher's time.

use std::io::Write as _;

use bytes::Bytes;
use flate2::write::GzEncoder;
use flate2::{Compress, Compression, Crc, FlushCompress};
use http::HeaderMap;
use http::header::ACCEPT_ENCODING;

use crate::body::{BrokenOff, Chunks};

/// Shorter answers are sent as they are.
pub(crate) const GZIP_BYTES_MIN: usize = 128 * 1024;
/// The fastest level: a client that asks for gzip has a slow network, not an idle server.
const LEVEL: u32 = 1;

/// Does the client take gzip? Only the bare word counts, without a `q`, in the first header.
pub(crate) fn is_accepted(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    accepted.is_some_and(|accepted| accepted.split(',').any(|token| token.trim() == "gzip"))
}

fn encoder() -> GzEncoder<Vec<u8>> {
    GzEncoder::new(Vec::new(), Compression::new(LEVEL))
}

/// These bytes as a gzip member.
pub(crate) fn member(bytes: &[u8]) -> Bytes {
    let mut encoder = encoder();
    encoder.write_all(bytes).expect("memory takes everything");
    encoder.finish().expect("memory takes everything").into()
}

/// Smaller chunks of a watch are stored.
const DEFLATE_BYTES_MIN: usize = 16 * 1024;
/// What a stored block holds at most.
const STORED_BYTES_MAX: usize = 0xffff;
/// RFC 1952, section 2.3: deflate, no name, no time, no system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
/// An empty stored block: behind it a reader has everything that came before.
const FLUSH: [u8; 5] = [0, 0, 0, 0xff, 0xff];
/// The last block, empty.
const LAST: [u8; 5] = [1, 0, 0, 0xff, 0xff];

/// A watch as one gzip member, chunk by chunk.
#[derive(Default)]
pub(crate) struct Streamed {
    sum: Crc,
    begun: bool,
}

impl Streamed {
    /// What is sent for a chunk.
    pub(crate) fn chunk(&mut self, chunk: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(chunk.len() + 64);
        self.begin(&mut out);
        self.sum.update(chunk);
        if chunk.len() < DEFLATE_BYTES_MIN {
            for block in chunk.chunks(STORED_BYTES_MAX) {
                let length = block.len() as u16;
                out.push(0);
                out.extend_from_slice(&length.to_le_bytes());
                out.extend_from_slice(&(!length).to_le_bytes());
                out.extend_from_slice(block);
            }
            out.extend_from_slice(&FLUSH);
            return out.into();
        }
        let mut compress = Compress::new(Compression::new(LEVEL), false);
        loop {
            if out.len() == out.capacity() {
                out.reserve(chunk.len() / 4 + 64);
            }
            let taken = compress.total_in() as usize;
            compress.compress_vec(&chunk[taken..], &mut out, FlushCompress::Sync).expect("memory takes everything");
            // Room that is left says that everything is out.
            if compress.total_in() as usize == chunk.len() && out.len() < out.capacity() {
                return out.into();
            }
        }
    }

    /// What is sent at the end.
    pub(crate) fn end(&mut self) -> Bytes {
        let mut out = Vec::with_capacity(HEADER.len() + LAST.len() + 8);
        self.begin(&mut out);
        out.extend_from_slice(&LAST);
        out.extend_from_slice(&self.sum.sum().to_le_bytes());
        out.extend_from_slice(&self.sum.amount().to_le_bytes());
        out.into()
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.begun, true) {
            out.extend_from_slice(&HEADER);
        }
    }
}

/// A body as one gzip member. Holds the compressor (some 300 KB) and a chunk.
pub(crate) fn compressed(chunks: Chunks) -> Chunks {
    Box::new(Compressed { chunks, encoder: Some(encoder()) })
}

struct Compressed {
    chunks: Chunks,
    /// None at the end.
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl Iterator for Compressed {
    type Item = Result<Bytes, BrokenOff>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let encoder = self.encoder.as_mut()?;
            match self.chunks.next() {
                Some(Ok(chunk)) => {
                    encoder.write_all(&chunk).expect("memory takes everything");
                    let ready = std::mem::take(encoder.get_mut());
                    if !ready.is_empty() {
                        return Some(Ok(ready.into()));
                    }
                }
                Some(Err(error)) => {
                    self.encoder = None;
                    return Some(Err(error));
                }
                None => {
                    let rest = self.encoder.take()?.finish().expect("memory takes everything");
                    return Some(Ok(rest.into()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::{GzDecoder, MultiGzDecoder};
    use flate2::{Decompress, FlushDecompress};
    use proptest::prelude::*;

    use super::*;

    fn read(gzip: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        MultiGzDecoder::new(gzip).read_to_end(&mut bytes).expect("gzip");
        bytes
    }

    #[test]
    fn only_the_bare_word_asks_for_gzip() {
        for (value, expected) in
            [("gzip", true), ("deflate, gzip", true), ("gzip;q=1.0", false), ("br", false), ("*", false), ("", false)]
        {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, value.parse().unwrap())]);
            assert_eq!(is_accepted(&headers), expected, "{value}");
        }
        assert!(!is_accepted(&HeaderMap::new()));
    }

    #[test]
    fn a_body_that_breaks_off_is_no_whole_member() {
        let chunks = [Ok(Bytes::from_static(b"a")), Err(BrokenOff("x".to_owned()))];
        let pieces: Vec<_> = compressed(Box::new(chunks.into_iter())).collect();
        assert_eq!(pieces.last(), Some(&Err(BrokenOff("x".to_owned()))));
    }

    proptest! {
        /// A reader that has what was sent so far has all of the events in it.
        #[test]
        fn a_watch_is_one_member_and_each_chunk_is_read_when_it_comes(
            chunks in prop::collection::vec((0_u8..9, prop_oneof![1_usize..200, 16_000_usize..70_000]), 0..6)
        ) {
            let mut stream = Streamed::default();
            let (mut sent, mut plain, mut read_so_far) = (Vec::new(), Vec::new(), Vec::with_capacity(1 << 20));
            let mut reader = Decompress::new(false);
            for (seed, length) in chunks {
                let chunk: Vec<u8> = (0..length).map(|n| (n as u8).wrapping_mul(seed)).collect();
                let piece = stream.chunk(&chunk);
                let blocks = if sent.is_empty() { &piece[HEADER.len()..] } else { &piece[..] };
                reader.decompress_vec(blocks, &mut read_so_far, FlushDecompress::None).expect("blocks");
                plain.extend_from_slice(&chunk);
                prop_assert!(read_so_far == plain, "nothing waits for the next chunk");
                sent.extend_from_slice(&piece);
            }
            sent.extend_from_slice(&stream.end());
            let mut read = Vec::new();
            GzDecoder::new(&sent[..]).read_to_end(&mut read).expect("one member");
            prop_assert!(read == plain);
        }

        #[test]
        fn what_was_compressed_comes_back(chunks in prop::collection::vec(prop::collection::vec(0_u8..9, 0..5_000), 1..9)) {
            let whole = chunks.concat();
            let list = chunks.clone().into_iter().map(|chunk| Ok(Bytes::from(chunk)));
            let gzip: Vec<Bytes> = compressed(Box::new(list)).collect::<Result<_, _>>().unwrap();
            prop_assert_eq!(read(&gzip.concat()), whole.clone());
            let members: Vec<Bytes> = chunks.iter().map(|chunk| member(chunk)).collect();
            for (member, chunk) in members.iter().zip(&chunks) {
                prop_assert_eq!(&read(member), chunk, "each one is whole by itself");
            }
            prop_assert_eq!(read(&members.concat()), whole);
        }
    }
}
