//! gzip, as kube-apiserver has it: for large answers to a get or a list, and for WatchLists.
//!
//! A list is one gzip member, made as it is sent. A watch is a member a chunk: what is flushed can be
//! read whole at once (RFC 1952 lets members follow each other), and nothing of a compressor is kept
//! while nothing happens.

use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
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

    use flate2::read::MultiGzDecoder;
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
