//! Compresses the same responses as kube-apiserver: large gets and lists
//! (`k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/writers.go`).
//!
//! A body is one gzip member of independent blocks (RFC 1951), compressed while it is sent. No block refers to bytes of
//! another block, so the blocks of a list can be cached for later lists with the same bytes ([`CompressedBlocks`]).

use std::io::Write as _;

use bytes::Bytes;
use flate2::write::GzEncoder;
use flate2::{Compress, Compression, Crc, FlushCompress};
use http::HeaderMap;
use http::header::ACCEPT_ENCODING;

use crate::response::chunks::{BodyError, Chunks};
use crate::response::compressed_blocks::{BlockDigest, CompressedBlocks};

/// The smallest response that is compressed, in bytes.
pub(crate) const GZIP_BYTES_MIN: usize = 128 * 1024;
/// The compression level: the fastest level. This level has most of the benefit on a slow network at the lowest cost
/// for the server.
const LEVEL: u32 = 1;

/// Whether the client accepts gzip. Only the first header is used, and only `gzip` without a `q` value.
pub(crate) fn is_accepted(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    accepted.is_some_and(|accepted| accepted.split(',').any(|token| token.trim() == "gzip"))
}

/// Compresses bytes into a gzip member.
pub(crate) fn member(bytes: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(LEVEL));
    encoder.write_all(bytes).expect("writes to memory do not fail");
    encoder.finish().expect("writes to memory do not fail").into()
}

/// The header of a gzip member (RFC 1952, section 2.3): deflate, no name, no time, no system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
/// The last block, which is empty.
const LAST: [u8; 5] = [1, 0, 0, 0xff, 0xff];

/// Appends blocks that a reader can decode without earlier or later blocks. `compress` must be new or reset.
fn deflate(compress: &mut Compress, chunk: &[u8], out: &mut Vec<u8>) {
    loop {
        if out.len() == out.capacity() {
            out.reserve(chunk.len() / 4 + 64);
        }
        let taken = compress.total_in() as usize;
        compress.compress_vec(&chunk[taken..], out, FlushCompress::Sync).expect("writes to memory do not fail");
        // If the buffer has free space, all output has been written.
        if compress.total_in() as usize == chunk.len() && out.len() < out.capacity() {
            return;
        }
    }
}

/// Minimum size of a block of a list, in bytes. Smaller chunks are joined.
const BLOCK_BYTES_MIN: usize = 24 * 1024;

/// Compresses a body into one gzip member. The iterator holds one chunk. The compressor (about 300 KB) is created for
/// the first block that is not in `blocks`.
pub(crate) fn compressed(chunks: Chunks, blocks: CompressedBlocks) -> Chunks {
    Box::new(Compressed {
        chunks,
        blocks,
        compress: None,
        sum: Crc::new(),
        has_begun: false,
        joined: Vec::new(),
        is_ended: false,
    })
}

struct Compressed {
    chunks: Chunks,
    blocks: CompressedBlocks,
    compress: Option<Compress>,
    /// The checksum of the bytes so far.
    sum: Crc,
    has_begun: bool,
    /// Chunks that are too small for a block of their own.
    joined: Vec<u8>,
    is_ended: bool,
}

impl Compressed {
    /// Returns the compressed block of these bytes.
    fn block(&mut self, plain: &[u8]) -> Bytes {
        self.sum.update(plain);
        let digest = BlockDigest::of(plain);
        if let Some(block) = self.blocks.get(&digest) {
            return block;
        }
        let compress = self.compress.get_or_insert_with(|| Compress::new(Compression::new(LEVEL), false));
        compress.reset();
        let mut block = Vec::with_capacity(plain.len() / 2);
        deflate(compress, plain, &mut block);
        block.shrink_to_fit();
        let block = Bytes::from(block);
        self.blocks.keep(digest, &block);
        block
    }

    fn joined_block(&mut self) -> Bytes {
        let joined = std::mem::take(&mut self.joined);
        self.block(&joined)
    }
}

impl Iterator for Compressed {
    type Item = Result<Bytes, BodyError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_ended {
            return None;
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            return Some(Ok(Bytes::from_static(&HEADER)));
        }
        loop {
            match self.chunks.next() {
                Some(Ok(chunk)) if self.joined.is_empty() && chunk.len() >= BLOCK_BYTES_MIN => {
                    return Some(Ok(self.block(&chunk)));
                }
                Some(Ok(chunk)) => {
                    self.joined.extend_from_slice(&chunk);
                    if self.joined.len() >= BLOCK_BYTES_MIN {
                        return Some(Ok(self.joined_block()));
                    }
                }
                Some(Err(error)) => {
                    self.is_ended = true;
                    return Some(Err(error));
                }
                None => {
                    self.is_ended = true;
                    let mut rest = match self.joined.is_empty() {
                        true => Vec::new(),
                        false => self.joined_block().into(),
                    };
                    rest.extend_from_slice(&LAST);
                    rest.extend_from_slice(&self.sum.sum().to_le_bytes());
                    rest.extend_from_slice(&self.sum.amount().to_le_bytes());
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
    use proptest::prelude::*;

    use super::*;

    fn read(gzip: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        MultiGzDecoder::new(gzip).read_to_end(&mut bytes).expect("gzip");
        bytes
    }

    #[test]
    fn gzip_with_a_quality_value_is_not_accepted() {
        for (value, expected) in
            [("gzip", true), ("deflate, gzip", true), ("gzip;q=1.0", false), ("br", false), ("*", false), ("", false)]
        {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, value.parse().unwrap())]);
            assert_eq!(is_accepted(&headers), expected, "{value}");
        }
        assert!(!is_accepted(&HeaderMap::new()));
    }

    #[test]
    fn failed_body_ends_with_an_incomplete_gzip_member() {
        let chunks = [Ok(Bytes::from_static(b"a")), Err(BodyError("x".to_owned()))];
        let pieces: Vec<_> = compressed(Box::new(chunks.into_iter()), CompressedBlocks::new(1000)).collect();
        assert_eq!(pieces.last(), Some(&Err(BodyError("x".to_owned()))));
    }

    proptest! {
        #[test]
        fn decompressed_gzip_chunks_equal_the_input(
            chunks in prop::collection::vec((0_u8..9, prop_oneof![0_usize..5_000, 20_000_usize..70_000]), 1..9),
            blocks_bytes_max in prop_oneof![Just(0_usize), Just(1_000), Just(1_000_000)],
        ) {
            let chunk = |(seed, length): (u8, usize)| (0..length).map(|n| (n as u8 % 60).wrapping_mul(seed)).collect();
            let chunks: Vec<Vec<u8>> = chunks.into_iter().map(chunk).collect();
            let whole = chunks.concat();
            let blocks = CompressedBlocks::new(blocks_bytes_max);
            for _ in 0..3 {
                let list = chunks.clone().into_iter().map(|chunk| Ok(Bytes::from(chunk)));
                let gzip: Vec<Bytes> = compressed(Box::new(list), blocks.clone()).collect::<Result<_, _>>().unwrap();
                let mut read = Vec::new();
                GzDecoder::new(&gzip.concat()[..]).read_to_end(&mut read).expect("one member");
                prop_assert!(read == whole, "a list is the same with and without kept blocks");
            }
            let members: Vec<Bytes> = chunks.iter().map(|chunk| member(chunk)).collect();
            for (member, chunk) in members.iter().zip(&chunks) {
                prop_assert_eq!(&read(member), chunk, "a member is readable alone");
            }
            prop_assert_eq!(read(&members.concat()), whole);
        }
    }
}
