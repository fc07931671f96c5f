//! An incremental decoder of HTTP/1.1 responses with a chunked body: [`Response`]. Bytes in, bytes
//! out; no sockets.

/// The maximum size of a response's head in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// The position in the response.
#[derive(Debug)]
enum State {
    /// In the head, with the bytes received so far.
    Head(Vec<u8>),
    /// In the line with a chunk's size, with the digits received so far.
    Size(u64),
    /// In a chunk, with the number of bytes left.
    Chunk(u64),
    Break,
    /// After the last chunk.
    End,
}

/// A decoder of one response.
#[derive(Debug)]
pub(crate) struct Response {
    state: State,
    ok: Option<bool>,
}

impl Response {
    pub(crate) fn new() -> Self {
        Response { state: State::Head(Vec::new()), ok: None }
    }

    /// True if the status was 200; `None` before the head is complete.
    pub(crate) fn ok(&self) -> Option<bool> {
        self.ok
    }

    pub(crate) fn ended(&self) -> bool {
        matches!(self.state, State::End)
    }

    /// Decodes bytes, and passes the bytes of the body to `data`.
    ///
    /// # Errors
    /// The response has no chunked body, or an invalid chunk size.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], mut data: impl FnMut(&[u8])) -> Result<(), String> {
        while !bytes.is_empty() {
            match &mut self.state {
                State::Head(head) => {
                    let known = head.len();
                    head.extend_from_slice(bytes);
                    let Some(end) = memchr::memmem::find(head, b"\r\n\r\n") else {
                        if head.len() > HEAD_BYTES_MAX {
                            return Err("the head of a response does not end".to_owned());
                        }
                        return Ok(());
                    };
                    bytes = &bytes[end + 4 - known..];
                    let text = String::from_utf8_lossy(&head[..end]).to_ascii_lowercase();
                    self.ok = Some(text.starts_with("http/1.1 200"));
                    if !text.contains("\r\ntransfer-encoding: chunked") {
                        return Err(format!("no chunked response: {}", text.lines().next().unwrap_or_default()));
                    }
                    self.state = State::Size(0);
                }
                State::Size(size) => {
                    let (byte, rest) = (bytes[0], &bytes[1..]);
                    bytes = rest;
                    match (byte as char).to_digit(16) {
                        Some(digit) => *size = *size * 16 + u64::from(digit),
                        None if byte == b'\r' => {}
                        None if byte == b'\n' && *size == 0 => self.state = State::End,
                        None if byte == b'\n' => self.state = State::Chunk(*size),
                        None => return Err(format!("byte {byte} in the size of a chunk")),
                    }
                }
                State::Chunk(left) => {
                    let take = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    data(&bytes[..take]);
                    bytes = &bytes[take..];
                    *left -= take as u64;
                    if *left == 0 {
                        self.state = State::Break;
                    }
                }
                State::Break => {
                    if bytes[0] == b'\n' {
                        self.state = State::Size(0);
                    }
                    bytes = &bytes[1..];
                }
                State::End => return Ok(()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunked_body_is_decoded_for_any_chunking() {
        let text = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n\
                     3\r\na\nb\r\n1A\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\n\r\n";
        for step in [1, 2, 5, 100, text.len()] {
            let (mut response, mut body) = (Response::new(), Vec::new());
            for piece in text.chunks(step) {
                response.feed(piece, |bytes| body.extend_from_slice(bytes)).unwrap();
            }
            assert_eq!(body, b"a\nbabcdefghijklmnopqrstuvwxyz");
            assert_eq!(response.ok(), Some(true));
            assert!(response.ended());
        }
    }

    #[test]
    fn response_without_chunked_body_is_an_error() {
        for bad in [
            "HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz",
        ] {
            assert!(Response::new().feed(bad.as_bytes(), |_| {}).is_err(), "{bad}");
        }
    }
}
