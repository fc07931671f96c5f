//! Cutting JSON values out of a stream of byte chunks, whatever the chunk boundaries.
//!
//! ```text
//!   chunks      …"a":1}\n{"b":  │  [1,2]}\n{"c":3}…
//!   values      {"a":1}   {"b":[1,2]}   {"c":3}
//!               slice     joined copy   slice
//! ```
//!
//! A value that lies inside one chunk is handed out as a slice of it; only a value that straddles
//! chunks is copied, once. The scanner counts brackets outside strings and looks at nothing else:
//! what is inside a value is its reader's business.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

use crate::frame::FrameError;

/// Chunks, a place in them, and the value that is being cut, if any.
#[derive(Debug)]
pub(crate) struct Cutter {
    /// What was fed and not yet consumed.
    chunks: VecDeque<Bytes>,
    /// The beginning of a value that straddles chunks.
    partial: BytesMut,
    scan: ValueScan,
    /// Position of the next unconsumed byte in the whole stream, for errors.
    offset: u64,
    /// Largest value in bytes.
    limit: usize,
    /// A stream that failed stays failed.
    failed: Option<FrameError>,
}

impl Cutter {
    pub(crate) fn new(limit: usize) -> Self {
        Cutter {
            chunks: VecDeque::new(),
            partial: BytesMut::new(),
            scan: ValueScan::default(),
            offset: 0,
            limit,
            failed: None,
        }
    }

    pub(crate) fn feed(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.chunks.push_back(chunk);
        }
    }

    /// The next byte that is no white space; `None` when more bytes are needed. Only between
    /// values.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        loop {
            let chunk = self.chunks.front_mut()?;
            let space = chunk.iter().take_while(|b| matches!(b, b' ' | b'\n' | b'\r' | b'\t')).count();
            chunk.advance(space);
            self.offset += space as u64;
            match chunk.first() {
                Some(byte) => return Some(*byte),
                None => self.chunks.pop_front(),
            };
        }
    }

    /// Moves past the byte that [`Cutter::peek`] showed.
    pub(crate) fn skip(&mut self) {
        if let Some(chunk) = self.chunks.front_mut() {
            chunk.advance(1);
            self.offset += 1;
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
        }
    }

    /// Is a value half cut?
    pub(crate) fn in_value(&self) -> bool {
        self.scan.started
    }

    /// Cuts a whole value off the chunk at hand: `find` looks at the chunk's rest and says where the
    /// value ends, with what it found on the way. `None` when `find` does not see a whole value
    /// within the limit there; [`Cutter::value`] then decides. Only between values.
    ///
    /// This is the way of nearly every value: it is looked at once, by whoever wants to know what
    /// is in it, and not once more for its end.
    pub(crate) fn whole<T>(&mut self, find: impl FnOnce(&[u8]) -> Option<(usize, T)>) -> Option<(Bytes, T)> {
        let chunk = self.chunks.front_mut().filter(|_| self.failed.is_none())?;
        let (end, found) = find(chunk).filter(|(end, _)| *end <= self.limit)?;
        let value = chunk.split_to(end);
        self.offset += end as u64;
        if chunk.is_empty() {
            self.chunks.pop_front();
        }
        Some((value, found))
    }

    /// Goes on with the value at the current place; `None` when more bytes are needed.
    pub(crate) fn value(&mut self) -> Result<Option<Bytes>, FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let found = self.scan_value();
        self.failed = found.as_ref().err().cloned();
        found
    }

    fn scan_value(&mut self) -> Result<Option<Bytes>, FrameError> {
        while let Some(chunk) = self.chunks.front_mut() {
            // Looking no further than the limit makes the verdict independent of the chunking.
            let room = self.limit - self.partial.len();
            let window = &chunk[..chunk.len().min(room)];
            match self.scan.run(window) {
                Ok(Some(end)) => {
                    let head = chunk.split_to(end);
                    self.offset += end as u64;
                    if chunk.is_empty() {
                        self.chunks.pop_front();
                    }
                    self.scan = ValueScan::default();
                    if self.partial.is_empty() {
                        return Ok(Some(head));
                    }
                    self.partial.extend_from_slice(&head);
                    return Ok(Some(self.partial.split().freeze()));
                }
                Ok(None) if chunk.len() > room => {
                    // A number that fills the room exactly may end right behind it.
                    if self.scan.is_scalar() && !is_scalar(chunk[room]) {
                        self.partial.extend_from_slice(&chunk.split_to(room));
                        self.offset += room as u64;
                        self.scan = ValueScan::default();
                        return Ok(Some(self.partial.split().freeze()));
                    }
                    return Err(FrameError::TooLarge { limit_bytes: self.limit });
                }
                Ok(None) => {
                    self.offset += chunk.len() as u64;
                    self.partial.extend_from_slice(chunk);
                    self.chunks.pop_front();
                }
                Err(position) => return Err(FrameError::Malformed { at: self.offset + position as u64 }),
            }
        }
        Ok(None)
    }

    pub(crate) fn malformed<T>(&self) -> Result<T, FrameError> {
        Err(FrameError::Malformed { at: self.offset })
    }

    /// Bytes that were fed and not yet handed out.
    pub(crate) fn buffered(&self) -> usize {
        self.partial.len() + self.chunks.iter().map(Bytes::len).sum::<usize>()
    }
}

fn is_scalar(byte: u8) -> bool {
    matches!(byte, b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'E')
}

/// Where the end of one JSON value is, found piece by piece.
#[derive(Clone, Copy, Debug, Default)]
struct ValueScan {
    started: bool,
    /// Open brackets.
    depth: u32,
    in_string: bool,
    /// The last byte was a backslash inside a string.
    escaped: bool,
}

impl ValueScan {
    fn is_scalar(&self) -> bool {
        self.started && self.depth == 0 && !self.in_string
    }

    /// Reads on; `Some(end)` when the value ends before `bytes[end]`. The error is the position
    /// of a byte that can begin no value or closes what was not opened.
    fn run(&mut self, bytes: &[u8]) -> Result<Option<usize>, usize> {
        let mut at = 0;
        if !self.started {
            let Some(first) = bytes.first() else { return Ok(None) };
            match first {
                b'{' | b'[' => self.depth = 1,
                b'"' => self.in_string = true,
                b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => {}
                _ => return Err(0),
            }
            self.started = true;
            at = 1;
        }
        if self.is_scalar() {
            return Ok(bytes[at..].iter().position(|b| !is_scalar(*b)).map(|step| at + step));
        }
        loop {
            if self.in_string {
                if self.escaped {
                    if at == bytes.len() {
                        return Ok(None);
                    }
                    at += 1;
                    self.escaped = false;
                }
                let Some(step) = memchr::memchr2(b'"', b'\\', &bytes[at..]) else { return Ok(None) };
                at += step + 1;
                if bytes[at - 1] == b'\\' {
                    self.escaped = true;
                    continue;
                }
                self.in_string = false;
                if self.depth == 0 {
                    return Ok(Some(at));
                }
            }
            let structural = |b: &u8| matches!(b, b'"' | b'{' | b'}' | b'[' | b']');
            let Some(step) = bytes[at..].iter().position(structural) else { return Ok(None) };
            at += step + 1;
            match bytes[at - 1] {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                _ => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Ok(Some(at));
                    }
                }
            }
        }
    }
}
