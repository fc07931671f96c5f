//! Splits a sequence of CBOR items (RFC 8742) at any chunk boundaries.

use bytes::{Bytes, BytesMut};

use super::{ARRAY, BREAK, BYTES, DEPTH_MAX, Head, HeadError, INDEFINITE, MAP, TAG, TEXT};
use crate::frame::{FRAME_LIMIT_BYTES, FrameError};

/// Splits a stream into CBOR items.
///
/// An item inside one chunk is a slice of it; an item across chunks is copied. At most the limit
/// and one chunk are held.
#[derive(Debug)]
pub struct CborFrames {
    /// The received bytes of the current item and after it.
    buffer: BytesMut,
    /// The last chunk. While `buffer` is empty, items are slices of this chunk.
    chunk: Bytes,
    scan: ItemScan,
    /// The position of the current item in the stream.
    offset: u64,
    limit: usize,
    /// The error of a failed stream, which is final.
    failed: Option<FrameError>,
}

impl CborFrames {
    /// Creates a decoder with [`FRAME_LIMIT_BYTES`].
    pub fn new() -> Self {
        CborFrames::with_limit(FRAME_LIMIT_BYTES)
    }

    /// Creates a decoder that rejects items above `limit_bytes`.
    pub fn with_limit(limit_bytes: usize) -> Self {
        CborFrames {
            buffer: BytesMut::new(),
            chunk: Bytes::new(),
            scan: ItemScan::default(),
            offset: 0,
            limit: limit_bytes,
            failed: None,
        }
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

    /// The next complete item, with its tag if present; `None` when more bytes are needed.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`], and [`FrameError::Malformed`] for an invalid item or one nested
    /// more deeply than [`DEPTH_MAX`]. Every further call returns the same error.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let found = self.cut();
        self.failed = found.as_ref().err().cloned();
        found
    }

    fn cut(&mut self) -> Result<Option<Bytes>, FrameError> {
        let bytes: &[u8] = if self.chunk.is_empty() { &self.buffer } else { &self.chunk };
        let end = match self.scan.run(bytes, self.limit) {
            Ok(None) => return Ok(None),
            Ok(Some(end)) => end,
            Err(ScanError::TooLarge) => return Err(FrameError::TooLarge { limit_bytes: self.limit }),
            Err(ScanError::Malformed(at)) => return Err(FrameError::Malformed { at: self.offset + at as u64 }),
        };
        self.scan = ItemScan::default();
        self.offset += end as u64;
        Ok(Some(if self.chunk.is_empty() { self.buffer.split_to(end).freeze() } else { self.chunk.split_to(end) }))
    }

    /// Ends the stream; to be called after every item was taken.
    ///
    /// # Errors
    /// [`FrameError::Incomplete`] when the stream ends inside an item.
    pub fn finish(&mut self) -> Result<(), FrameError> {
        match self.buffered_bytes() {
            0 => Ok(()),
            buffered_bytes => Err(FrameError::Incomplete { buffered_bytes }),
        }
    }

    /// Bytes of an incomplete item.
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.len() + self.chunk.len()
    }
}

impl Default for CborFrames {
    fn default() -> Self {
        CborFrames::new()
    }
}

/// Finds the end of one item incrementally, reading each head once.
#[derive(Debug, Default)]
pub(super) struct ItemScan {
    /// The position of the next head.
    at: usize,
    open: Vec<Open>,
}

/// An open container or string, from the outermost on.
#[derive(Clone, Copy, Debug)]
enum Open {
    /// This many items remain; never zero.
    Items(u64),
    /// Items until a break; in a map an even number of them.
    Indefinite { map: bool, odd: bool },
    /// Strings of one type until a break.
    Chunks(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanError {
    TooLarge,
    /// Holds the position in the item.
    Malformed(usize),
}

impl ItemScan {
    /// Scans further; `bytes` are all received bytes of the item. `Some(end)` when the item ends
    /// before `bytes[end]`.
    pub(super) fn run(&mut self, bytes: &[u8], limit: usize) -> Result<Option<usize>, ScanError> {
        loop {
            let malformed = Err(ScanError::Malformed(self.at));
            let rest = &bytes[self.at..];
            if rest.first() == Some(&BREAK) {
                match self.open.pop() {
                    Some(Open::Indefinite { odd: false, .. } | Open::Chunks(_)) => {}
                    _ => return malformed,
                }
                self.at += 1;
                if self.at > limit {
                    return Err(ScanError::TooLarge);
                }
            } else {
                // The first byte is checked before the others, so that the result does not depend
                // on the number of received bytes.
                match rest.first().map(|first| Head::bytes_of(*first)) {
                    None => return Ok(None),
                    Some(None) => return malformed,
                    Some(Some(head_bytes)) if self.at + head_bytes > limit => return Err(ScanError::TooLarge),
                    Some(Some(_)) => {}
                }
                let head = match Head::read(rest) {
                    Ok(head) => head,
                    Err(HeadError::Truncated) => return Ok(None),
                    Err(HeadError::Malformed) => return malformed,
                };
                if let Some(Open::Chunks(major)) = self.open.last()
                    && (head.major != *major || head.info == INDEFINITE)
                {
                    return malformed;
                }
                let (mut end, mut opened) = (self.at + head.bytes, None);
                match head.major {
                    BYTES | TEXT if head.info == INDEFINITE => opened = Some(Open::Chunks(head.major)),
                    BYTES | TEXT => end = end.saturating_add(usize::try_from(head.argument).unwrap_or(usize::MAX)),
                    ARRAY | MAP if head.info == INDEFINITE => {
                        opened = Some(Open::Indefinite { map: head.major == MAP, odd: false });
                    }
                    ARRAY | TAG | MAP => {
                        let items = match head.major {
                            TAG => 1,
                            ARRAY => head.argument,
                            // More than any limit allows.
                            _ => head.argument.saturating_mul(2),
                        };
                        opened = (items > 0).then_some(Open::Items(items));
                    }
                    _ => {}
                }
                if end > limit {
                    return Err(ScanError::TooLarge);
                }
                if end > bytes.len() {
                    return Ok(None);
                }
                if let Some(opened) = opened {
                    if self.open.len() == DEPTH_MAX {
                        return malformed;
                    }
                    self.at = end;
                    self.open.push(opened);
                    continue;
                }
                self.at = end;
            }
            if self.item_ended() {
                return Ok(Some(self.at));
            }
        }
    }

    /// Counts an item in its container; `true` if there is none.
    fn item_ended(&mut self) -> bool {
        loop {
            match self.open.last_mut() {
                None => return true,
                Some(Open::Items(1)) => {
                    self.open.pop();
                }
                Some(Open::Items(count)) => {
                    *count -= 1;
                    return false;
                }
                Some(Open::Indefinite { map, odd }) => {
                    *odd = *map && !*odd;
                    return false;
                }
                Some(Open::Chunks(_)) => return false,
            }
        }
    }
}
