//! Splits a stream of byte chunks into JSON values at any chunk boundaries.
//!
//! ```text
//!   chunks      …"a":1}\n{"b":  │  [1,2]}\n{"c":3}…
//!   values      {"a":1}   {"b":[1,2]}   {"c":3}
//!               slice     joined copy   slice
//! ```
//!
//! A value inside one chunk is a slice of it; only a value across chunks is copied, once. The
//! scanner counts brackets outside strings and ignores everything else; the reader of a value
//! parses it.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

use crate::frame_error::FrameError;

/// The received chunks, and the value that is being split off.
#[derive(Debug)]
pub(crate) struct ValueSplitter {
    /// The received but unconsumed chunks.
    chunks: VecDeque<Bytes>,
    /// The beginning of a value across chunks.
    partial: BytesMut,
    scan: ValueScan,
    /// The position of the next unconsumed byte in the stream, for errors.
    offset: u64,
    /// The largest value in bytes.
    limit: usize,
    /// The error of a failed stream, which is final.
    failed: Option<FrameError>,
}

impl ValueSplitter {
    pub(crate) fn new(limit: usize) -> Self {
        ValueSplitter {
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

    /// The next byte that is not whitespace; `None` when more bytes are needed. To be called
    /// between values.
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

    /// Skips the byte returned by [`ValueSplitter::peek`].
    pub(crate) fn skip(&mut self) {
        if let Some(chunk) = self.chunks.front_mut() {
            chunk.advance(1);
            self.offset += 1;
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
        }
    }

    /// Whether a part of a value was read.
    pub(crate) fn in_value(&self) -> bool {
        self.scan.started
    }

    /// Splits a whole value off the current chunk. `find` examines the rest of the chunk and
    /// returns the end of the value with a result. `None` when `find` does not see a whole value
    /// within the limit; then [`ValueSplitter::value`] decides. To be called between values.
    ///
    /// Nearly every value takes this path, so that its bytes are examined only once, by the code
    /// that needs its contents.
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

    /// Continues with the current value; `None` when more bytes are needed.
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
            // The scan stops at the limit, so that the result does not depend on the chunks.
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
                    // A number of exactly the limit's size may end right after it.
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
                Err(NotAValue) => return self.malformed(),
            }
        }
        Ok(None)
    }

    pub(crate) fn malformed<T>(&self) -> Result<T, FrameError> {
        Err(FrameError::Malformed { at: self.offset })
    }

    /// Bytes that were received and not returned yet.
    pub(crate) fn buffered(&self) -> usize {
        self.partial.len() + self.chunks.iter().map(Bytes::len).sum::<usize>()
    }
}

fn is_scalar(byte: u8) -> bool {
    matches!(byte, b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'E')
}

/// The error of a byte that begins no JSON value.
struct NotAValue;

/// Finds the end of one JSON value incrementally.
#[derive(Clone, Copy, Debug, Default)]
struct ValueScan {
    started: bool,
    /// The number of open brackets.
    depth: u32,
    in_string: bool,
    /// The last byte was a backslash inside a string.
    escaped: bool,
}

impl ValueScan {
    fn is_scalar(&self) -> bool {
        self.started && self.depth == 0 && !self.in_string
    }

    /// Scans further bytes; `Some(end)` when the value ends before `bytes[end]`.
    fn run(&mut self, bytes: &[u8]) -> Result<Option<usize>, NotAValue> {
        let mut at = 0;
        if !self.started {
            let Some(first) = bytes.first() else { return Ok(None) };
            match first {
                b'{' | b'[' => self.depth = 1,
                b'"' => self.in_string = true,
                b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => {}
                _ => return Err(NotAValue),
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
