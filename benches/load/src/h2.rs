//! A minimal HTTP/2 client for many watches on one connection: [`Connection`]. Bytes in, events and
//! bytes out; no sockets.
//!
//! A load program shares the machine with the measured server. This client has one task and one
//! buffer per connection, and parses frames in place. The cost is about a third of that of a general
//! client with a task, a channel and a waker per stream.

/// The size of a frame header in bytes.
const HEAD_BYTES: usize = 9;
/// The largest flow control window.
const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;
/// The initial window of a connection, which settings do not change.
const WINDOW_BYTES_DEFAULT: u32 = 65_535;
/// The number of received bytes after which a window update is sent. A large number makes updates
/// rare.
const WINDOW_UPDATE_BYTES: u32 = 1 << 28;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 0x1;
const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// An event of the server. Streams are numbered 0, 1, 2 … in the order of the requests.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// The head of a response, and whether its status is 200.
    Head { stream: usize, ok: bool },
    /// A part of the body.
    Data { stream: usize, bytes: &'a [u8] },
    /// The response is complete.
    End { stream: usize },
    /// The server reset the stream, with the error code of HTTP/2.
    Reset { stream: usize, code: u32 },
    /// The server will close the connection.
    GoAway { code: u32 },
}

/// The client side of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    out: Vec<u8>,
    /// The bytes received since the last window update, for the connection and each stream.
    received: u32,
    streams: Vec<u32>,
}

impl Connection {
    pub(crate) fn new() -> Self {
        let mut connection =
            Connection { out: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), received: 0, streams: Vec::new() };
        let mut settings = Vec::new();
        // No header compression table, no pushes, and windows that never block a watch.
        for (name, value) in [(1_u16, 0_u32), (2, 0), (4, WINDOW_BYTES_MAX)] {
            settings.extend_from_slice(&name.to_be_bytes());
            settings.extend_from_slice(&value.to_be_bytes());
        }
        connection.frame(SETTINGS, 0, 0, &settings);
        connection.window_update(0, WINDOW_BYTES_MAX - WINDOW_BYTES_DEFAULT);
        connection
    }

    /// Requests a path. `headers` have lower-case names.
    pub(crate) fn get(&mut self, authority: &str, path: &str, headers: &[(String, String)]) -> usize {
        let mut block = vec![0x82, 0x87]; // :method GET, :scheme https
        literal(&mut block, &[0x04], path);
        literal(&mut block, &[0x01], authority);
        for (name, value) in headers {
            block.push(0x10); // never indexed: it may be a token
            string(&mut block, name);
            string(&mut block, value);
        }
        let stream = self.streams.len();
        self.streams.push(0);
        self.frame(HEADERS, END_STREAM | END_HEADERS, id(stream), &block);
        stream
    }

    /// Handles the complete frames at the start of `bytes`, and returns their size in bytes.
    ///
    /// # Errors
    /// The problem of an invalid frame.
    pub(crate) fn feed(&mut self, bytes: &[u8], mut event: impl FnMut(Event<'_>)) -> Result<usize, String> {
        let mut at = 0;
        while let Some(head) = bytes.get(at..at + HEAD_BYTES) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some(payload) = bytes.get(at + HEAD_BYTES..at + HEAD_BYTES + length) else { break };
            at += HEAD_BYTES + length;
            let (kind, flags) = (head[3], head[4]);
            let number = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
            self.frame_in(kind, flags, number, payload, &mut event)?;
        }
        Ok(at)
    }

    fn frame_in(
        &mut self,
        kind: u8,
        flags: u8,
        number: u32,
        payload: &[u8],
        event: &mut impl FnMut(Event<'_>),
    ) -> Result<(), String> {
        let stream = (number as usize).wrapping_sub(1) / 2;
        match kind {
            DATA => {
                let received = u32::try_from(payload.len()).unwrap_or(u32::MAX);
                let bytes = unpadded(flags, payload).ok_or("a DATA frame with more padding than bytes")?;
                event(Event::Data { stream, bytes });
                self.received += received;
                if self.received >= WINDOW_UPDATE_BYTES {
                    let bytes = std::mem::take(&mut self.received);
                    self.window_update(0, bytes);
                }
                let Some(of_stream) = self.streams.get_mut(stream) else {
                    return Err(format!("a DATA frame on stream {number}, which was never opened"));
                };
                *of_stream += received;
                if *of_stream >= WINDOW_UPDATE_BYTES {
                    let bytes = std::mem::take(of_stream);
                    self.window_update(number, bytes);
                }
            }
            HEADERS => {
                let mut block = unpadded(flags, payload).ok_or("a HEADERS frame with more padding than bytes")?;
                if flags & PRIORITY != 0 {
                    block = block.get(5..).ok_or("a HEADERS frame that is too short")?;
                }
                // A dynamic table size update may precede `:status`, which is the first field.
                while block.first().is_some_and(|byte| byte & 0xe0 == 0x20) {
                    block = &block[1..];
                }
                event(Event::Head { stream, ok: block.first() == Some(&0x88) });
            }
            RST_STREAM => event(Event::Reset { stream, code: number_in(payload, 0) }),
            SETTINGS if flags & ACK == 0 => self.frame(SETTINGS, ACK, 0, &[]),
            PING if flags & ACK == 0 => self.frame(PING, ACK, 0, payload),
            GOAWAY => event(Event::GoAway { code: number_in(payload, 4) }),
            _ => {}
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            event(Event::End { stream });
        }
        Ok(())
    }

    /// Returns the bytes to send to the server.
    pub(crate) fn take_out(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    fn window_update(&mut self, stream: u32, bytes: u32) {
        self.frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes());
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("our frames are small").to_be_bytes();
        self.out.extend_from_slice(&length[1..]);
        self.out.extend_from_slice(&[kind, flags]);
        self.out.extend_from_slice(&stream.to_be_bytes());
        self.out.extend_from_slice(payload);
    }
}

fn id(stream: usize) -> u32 {
    u32::try_from(2 * stream + 1).expect("fewer streams than 2^31")
}

fn number_in(payload: &[u8], at: usize) -> u32 {
    payload.get(at..at + 4).map_or(0, |bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

fn unpadded(flags: u8, payload: &[u8]) -> Option<&[u8]> {
    if flags & PADDED == 0 {
        return Some(payload);
    }
    let (padding, rest) = payload.split_first()?;
    rest.get(..rest.len().checked_sub(usize::from(*padding))?)
}

fn literal(block: &mut Vec<u8>, name: &[u8], value: &str) {
    block.extend_from_slice(name);
    string(block, value);
}

/// Encodes a string without Huffman coding, after its length in HPACK's 7-bit prefix form.
fn string(block: &mut Vec<u8>, text: &str) {
    let mut length = text.len();
    if length < 127 {
        block.push(length as u8);
    } else {
        block.push(127);
        length -= 127;
        while length >= 128 {
            block.push((length % 128) as u8 | 0x80);
            length /= 128;
        }
        block.push(length as u8);
    }
    block.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame from a server.
    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut peer = Connection { out: Vec::new(), received: 0, streams: Vec::new() };
        peer.frame(kind, flags, stream, payload);
        peer.take_out()
    }

    fn opened(streams: usize) -> Connection {
        let mut connection = Connection::new();
        for stream in 0..streams {
            assert_eq!(connection.get("host", "/", &[]), stream);
        }
        connection.take_out();
        connection
    }

    /// The events of some bytes that are received in pieces of `step` bytes.
    fn events(bytes: &[u8], step: usize) -> (Vec<String>, Vec<u8>) {
        let (mut connection, mut buffer, mut seen) = (opened(2), Vec::new(), Vec::new());
        for piece in bytes.chunks(step) {
            buffer.extend_from_slice(piece);
            let taken = connection.feed(&buffer, |event| seen.push(format!("{event:?}"))).unwrap();
            buffer.drain(..taken);
        }
        assert!(buffer.is_empty());
        (seen, connection.take_out())
    }

    #[test]
    fn h2_events_are_independent_of_read_boundaries() {
        let mut bytes = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]);
        bytes.extend(frame(HEADERS, END_HEADERS, 1, &[0x20, 0x88, 0x5f]));
        bytes.extend(frame(DATA, 0, 1, b"{}\n"));
        bytes.extend(frame(PING, 0, 0, b"12345678"));
        bytes.extend(frame(HEADERS, END_HEADERS, 3, &[0x8d]));
        bytes.extend(frame(DATA, PADDED | END_STREAM, 3, b"\x02no\0\0"));
        bytes.extend(frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
        bytes.extend(frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]));
        let expected = [
            "Head { stream: 0, ok: true }",
            "Data { stream: 0, bytes: [123, 125, 10] }",
            "Head { stream: 1, ok: false }",
            "Data { stream: 1, bytes: [110, 111] }",
            "End { stream: 1 }",
            "Reset { stream: 0, code: 8 }",
            "GoAway { code: 0 }",
        ];
        let answers = [frame(SETTINGS, ACK, 0, &[]), frame(PING, ACK, 0, b"12345678")].concat();
        for step in [1, 2, 7, bytes.len()] {
            let (seen, out) = events(&bytes, step);
            assert_eq!(seen, expected, "in pieces of {step}");
            assert_eq!(out, answers, "in pieces of {step}");
        }
    }

    #[test]
    fn received_bytes_cause_window_updates() {
        let mut connection = opened(1);
        let data = frame(DATA, 0, 1, &vec![0; 16_384]);
        let mut received = 0;
        while connection.out.is_empty() {
            connection.feed(&data, |_| {}).unwrap();
            received += 16_384_u32;
            assert!(received <= WINDOW_UPDATE_BYTES);
        }
        let update = |stream| frame(WINDOW_UPDATE, 0, stream, &received.to_be_bytes());
        assert_eq!(connection.take_out(), [update(0), update(1)].concat());
    }

    #[test]
    fn invalid_h2_frame_is_an_error() {
        let mut connection = opened(1);
        assert!(connection.feed(&frame(DATA, PADDED, 1, b"\x09no"), |_| {}).is_err());
        assert!(connection.feed(&frame(DATA, 0, 9, b"no"), |_| {}).is_err());
    }

    #[test]
    fn hpack_length_of_long_string_has_several_bytes() {
        for (length, head) in [(5, vec![5]), (126, vec![126]), (127, vec![127, 0]), (1337, vec![127, 0xba, 0x09])] {
            let mut block = Vec::new();
            string(&mut block, &"x".repeat(length));
            assert_eq!(block[..head.len()], head, "{length}");
            assert_eq!(block.len(), head.len() + length);
        }
    }
}
