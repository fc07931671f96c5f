//! Cutting a sequence of CBOR items (RFC 8742) into its items, whatever the chunk boundaries.

use bytes::{Bytes, BytesMut};

use super::{ARRAY, BREAK, BYTES, DEPTH_MAX, Head, HeadError, INDEFINITE, MAP, TAG, TEXT};
use crate::frame::{FRAME_LIMIT_BYTES, FrameError};

/// Cuts CBOR items out of a stream.
///
/// An item that lies inside one chunk is a slice of it; one that straddles chunks is copied. At most
/// the limit and one chunk are held back.
#[derive(Debug)]
pub struct CborFrames {
    /// What has arrived of the item at hand and behind it.
    buffer: BytesMut,
    /// The chunk that items are sliced from while `buffer` is empty.
    chunk: Bytes,
    scan: ItemScan,
    /// Position of the item at hand in the stream.
    offset: u64,
    limit: usize,
    /// A stream that failed stays failed.
    failed: Option<FrameError>,
}

impl CborFrames {
    /// A decoder with [`FRAME_LIMIT_BYTES`].
    pub fn new() -> Self {
        CborFrames::with_limit(FRAME_LIMIT_BYTES)
    }

    /// A decoder that refuses items above `limit_bytes`.
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

    /// The next whole item, with the tag in front if it has one; `None` when more bytes are needed.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`], and [`FrameError::Malformed`] for what begins no item and for items
    /// nested more deeply than [`DEPTH_MAX`]. The error repeats on every further call.
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

    /// To be called when the stream has ended and every item was taken.
    ///
    /// # Errors
    /// [`FrameError::Incomplete`] when an item was cut off.
    pub fn finish(&mut self) -> Result<(), FrameError> {
        match self.buffered_bytes() {
            0 => Ok(()),
            buffered_bytes => Err(FrameError::Incomplete { buffered_bytes }),
        }
    }

    /// Bytes held back because their item is not whole.
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.len() + self.chunk.len()
    }
}

impl Default for CborFrames {
    fn default() -> Self {
        CborFrames::new()
    }
}

/// Where the end of one item is, found head by head: nothing is looked at twice.
#[derive(Debug, Default)]
pub(super) struct ItemScan {
    /// The next head.
    at: usize,
    open: Vec<Open>,
}

/// Something that is open, from the outermost on.
#[derive(Clone, Copy, Debug)]
enum Open {
    /// So many items are still to come; never zero.
    Items(u64),
    /// Items until a break; in a map an even number of them.
    Indefinite { map: bool, odd: bool },
    /// Strings of one type until a break.
    Chunks(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanError {
    TooLarge,
    /// With the position in the item.
    Malformed(usize),
}

impl ItemScan {
    /// Reads on; `bytes` are those of the item from its beginning, more with every call. `Some(end)`
    /// when it ends before `bytes[end]`.
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
                // What the first byte decides is decided before the others are looked at, or the verdict
                // would depend on how many of them have come.
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
                            // More than any limit lets through.
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

    /// Counts an item in what is around it; `true` if there is nothing.
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
