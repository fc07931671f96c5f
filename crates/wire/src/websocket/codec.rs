//! Converts frames to messages and back.

use bytes::{Buf, Bytes, BytesMut};

use crate::media_type::Encoding;

/// Default limit of a message in bytes, equal to [`crate::frame::FRAME_LIMIT_BYTES`].
pub const MESSAGE_LIMIT_BYTES: usize = crate::frame::FRAME_LIMIT_BYTES;

/// Largest payload of a control frame (RFC 6455, 5.5).
const CONTROL_LIMIT_BYTES: usize = 125;

/// The side that reads. Clients mask their frames; servers do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Reads messages of a client.
    Server,
    /// Reads messages of a server.
    Client,
}

/// The type of a message's first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// UTF-8: a JSON watch.
    Text,
    /// Any bytes: the other encodings.
    Binary,
    /// The end of the connection; see [`close`].
    Close,
    /// A ping, to be answered by a pong with the same payload.
    Ping,
    /// The answer to a ping.
    Pong,
}

impl Kind {
    /// The message type of events in an encoding.
    pub const fn of(encoding: Encoding) -> Kind {
        match encoding {
            Encoding::Json | Encoding::Yaml => Kind::Text,
            Encoding::Protobuf | Encoding::Cbor => Kind::Binary,
        }
    }

    const fn opcode(self) -> u8 {
        match self {
            Kind::Text => 1,
            Kind::Binary => 2,
            Kind::Close => 8,
            Kind::Ping => 9,
            Kind::Pong => 10,
        }
    }

    /// The bytes that a server writes before a payload of this length, for an unmasked message in
    /// one frame. The payload is sent unchanged.
    pub fn head(self, payload_bytes: usize) -> Head {
        Head::new(0x80 | self.opcode(), payload_bytes, None)
    }
}

/// The bytes before a payload.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    bytes: [u8; 14],
    len: u8,
}

impl Head {
    fn new(first: u8, payload_bytes: usize, mask: Option<[u8; 4]>) -> Self {
        let mut head = Head { bytes: [0; 14], len: 2 };
        let big = (payload_bytes as u64).to_be_bytes();
        let (short, more) = match payload_bytes {
            0..=125 => (payload_bytes as u8, 0),
            126..=0xffff => (126, 2),
            _ => (127, 8),
        };
        head.bytes[0] = first;
        head.bytes[1] = short | if mask.is_some() { 0x80 } else { 0 };
        head.bytes[2..2 + more].copy_from_slice(&big[8 - more..]);
        head.len += more as u8;
        if let Some(mask) = mask {
            head.bytes[usize::from(head.len)..usize::from(head.len) + 4].copy_from_slice(&mask);
            head.len += 4;
        }
        head
    }
}

impl AsRef<[u8]> for Head {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// A whole frame with a copied payload. A server sends it without a mask, a client with four
/// unpredictable bytes, new for each frame.
pub fn frame(kind: Kind, payload: &[u8], mask: Option<[u8; 4]>) -> Bytes {
    let head = Head::new(0x80 | kind.opcode(), payload.len(), mask);
    let mut frame = BytesMut::with_capacity(head.as_ref().len() + payload.len());
    frame.extend_from_slice(head.as_ref());
    let start = frame.len();
    frame.extend_from_slice(payload);
    if let Some(key) = mask {
        self::mask(&mut frame[start..], key, 0);
    }
    frame.freeze()
}

/// A close frame. kube-apiserver ends every watch with code 1000 and no reason. A reason is
/// truncated to 123 bytes.
pub fn close(code: u16, reason: &str, mask: Option<[u8; 4]>) -> Bytes {
    let mut payload = code.to_be_bytes().to_vec();
    let room = (0..=CONTROL_LIMIT_BYTES - payload.len()).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
    payload.extend_from_slice(&reason.as_bytes()[..room]);
    frame(Kind::Close, &payload, mask)
}

/// The answer to a ping with this payload.
pub fn pong(payload: &[u8], mask: Option<[u8; 4]>) -> Bytes {
    frame(Kind::Pong, payload, mask)
}

/// Masks or unmasks bytes at `offset` of a payload.
pub fn mask(bytes: &mut [u8], key: [u8; 4], offset: usize) {
    let key: [u8; 4] = std::array::from_fn(|at| key[(at + offset) % 4]);
    let wide = u64::from_ne_bytes(std::array::from_fn(|at| key[at % 4]));
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(key.iter().cycle()) {
        *byte ^= key;
    }
}

/// A complete, unmasked message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// UTF-8; see [`Kind::Text`].
    Text(Bytes),
    /// Any bytes.
    Binary(Bytes),
    /// A ping, to be answered by [`pong`]; may come between the frames of another message.
    Ping(Bytes),
    /// The answer to our ping.
    Pong(Bytes),
    /// The peer ends the connection. Answer with a close, if none was sent yet. No message follows.
    Close(Option<Close>),
}

/// The content of a close frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Close {
    /// The code: 1000 is a normal end.
    pub code: u16,
    /// The reason, for people.
    pub reason: String,
}

/// The error of a stream of frames. The peer or the network is at fault: close with
/// [`Error::close_code`] and drop the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The stream ended inside a message, or without a close.
    #[error("the stream ended inside a message, after {buffered_bytes} of its bytes")]
    Incomplete {
        /// Received bytes of the message.
        buffered_bytes: usize,
    },
    /// The peer's message exceeds the limit. Raise the limit if such objects are expected.
    #[error("a message is larger than the limit of {limit_bytes} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit_bytes: usize,
    },
    /// The peer violates the protocol.
    #[error("{why} in the frame at byte {at} of the stream")]
    Protocol {
        /// The position of the frame in the stream.
        at: u64,
        /// The violated rule.
        why: &'static str,
    },
    /// A text message or close reason is not UTF-8.
    #[error("text that is no UTF-8 in the frame at byte {at} of the stream")]
    NotUtf8 {
        /// The position of the frame in the stream.
        at: u64,
    },
}

impl Error {
    /// The code of the close frame for the peer.
    pub const fn close_code(&self) -> u16 {
        match self {
            Error::Incomplete { .. } | Error::Protocol { .. } => 1002,
            Error::NotUtf8 { .. } => 1007,
            Error::TooLarge { .. } => 1009,
        }
    }
}

/// Reads messages: add bytes as they arrive, and take messages until there is none.
///
/// ```text
///   Open ──(first frame of several)──▶ Open with a part ──(last frame)──▶ Open
///     └───────────────(close)──▶ Closed        └──(any error)──▶ Failed, permanently
/// ```
/// The decoder holds at most the limit and one chunk.
#[derive(Debug)]
pub struct Decoder {
    role: Role,
    limit: usize,
    /// Whether data messages are skipped.
    discard: bool,
    buffer: BytesMut,
    /// Remaining bytes of a skipped payload.
    skip: u64,
    /// The incomplete message.
    part: Option<Part>,
    /// The position of the current frame in the stream.
    offset: u64,
    state: State,
}

#[derive(Debug)]
struct Part {
    text: bool,
    payload: BytesMut,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Open,
    Closed,
    Failed(Error),
}

impl Decoder {
    /// Creates a decoder with [`MESSAGE_LIMIT_BYTES`].
    pub fn new(role: Role) -> Self {
        Decoder::with_limit(role, MESSAGE_LIMIT_BYTES)
    }

    /// Creates a decoder that rejects messages above `limit_bytes`.
    pub fn with_limit(role: Role, limit_bytes: usize) -> Self {
        Decoder {
            role,
            limit: limit_bytes,
            discard: false,
            buffer: BytesMut::new(),
            skip: 0,
            part: None,
            offset: 0,
            state: State::Open,
        }
    }

    /// Creates a decoder for the server of a watch. Text and binary messages of any length are
    /// skipped without being buffered; pings, pongs and the close are returned.
    pub fn discarding() -> Self {
        Decoder { discard: true, ..Decoder::new(Role::Server) }
    }

    /// Adds bytes of the stream. Bytes after a close are dropped.
    pub fn feed(&mut self, chunk: &[u8]) {
        // The buffer is empty while bytes remain to be skipped.
        let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(chunk.len());
        self.skip -= skipped as u64;
        self.offset += skipped as u64;
        if self.state == State::Open {
            self.buffer.extend_from_slice(&chunk[skipped..]);
        }
    }

    /// The next message; `None` when more bytes are needed, and after a close.
    ///
    /// # Errors
    /// [`Error`]; every further call returns the same error.
    pub fn next_message(&mut self) -> Result<Option<Message>, Error> {
        match &self.state {
            State::Open => {}
            State::Closed => return Ok(None),
            State::Failed(error) => return Err(error.clone()),
        }
        let found = self.read();
        match &found {
            Err(error) => {
                self.state = State::Failed(error.clone());
                self.buffer = BytesMut::new();
                self.part = None;
            }
            Ok(Some(Message::Close(_))) => {
                self.state = State::Closed;
                self.buffer = BytesMut::new();
                self.part = None;
            }
            Ok(_) => {}
        }
        found
    }

    fn read(&mut self) -> Result<Option<Message>, Error> {
        loop {
            let Some(header) = Header::read(&self.buffer) else { return Ok(None) };
            let at = self.offset;
            let protocol = |why| Error::Protocol { at, why };
            header.check(self.role).map_err(protocol)?;
            if header.is_control() {
                let payload_bytes = header.payload_bytes as usize;
                if self.buffer.len() < header.bytes + payload_bytes {
                    return Ok(None);
                }
                let payload = self.take(&header, payload_bytes).freeze();
                return control(header.opcode, payload, at).map(Some);
            }
            match (header.opcode, self.part.is_some()) {
                (0, false) => return Err(protocol("a continuation of nothing")),
                (1 | 2, true) => return Err(protocol("a message inside a message")),
                _ => {}
            }
            if self.discard {
                // Kept only to distinguish continuations from first frames.
                self.part = (!header.fin).then(|| Part { text: false, payload: BytesMut::new() });
                self.buffer.advance(header.bytes);
                let here = usize::try_from(header.payload_bytes).unwrap_or(usize::MAX).min(self.buffer.len());
                self.buffer.advance(here);
                self.skip = header.payload_bytes - here as u64;
                self.offset += (header.bytes + here) as u64;
                continue;
            }
            let held = self.part.as_ref().map_or(0, |part| part.payload.len());
            let payload_bytes = usize::try_from(header.payload_bytes).unwrap_or(usize::MAX);
            if payload_bytes > self.limit - held {
                return Err(Error::TooLarge { limit_bytes: self.limit });
            }
            if self.buffer.len() < header.bytes + payload_bytes {
                self.buffer.reserve(header.bytes + payload_bytes - self.buffer.len());
                return Ok(None);
            }
            let payload = self.take(&header, payload_bytes);
            let mut part = match self.part.take() {
                Some(mut part) => {
                    part.payload.extend_from_slice(&payload);
                    part
                }
                None => Part { text: header.opcode == 1, payload },
            };
            if !header.fin {
                self.part = Some(part);
                continue;
            }
            let payload = part.payload.split().freeze();
            if !part.text {
                return Ok(Some(Message::Binary(payload)));
            }
            if std::str::from_utf8(&payload).is_err() {
                return Err(Error::NotUtf8 { at });
            }
            return Ok(Some(Message::Text(payload)));
        }
    }

    /// Takes a whole frame from the buffer and unmasks its payload.
    fn take(&mut self, header: &Header, payload_bytes: usize) -> BytesMut {
        self.buffer.advance(header.bytes);
        self.offset += (header.bytes + payload_bytes) as u64;
        let mut payload = self.buffer.split_to(payload_bytes);
        if let Some(key) = header.mask {
            mask(&mut payload, key, 0);
        }
        payload
    }

    /// Ends the stream; to be called after every message was taken.
    ///
    /// # Errors
    /// [`Error::Incomplete`] if no close came first: the last message may be lost.
    pub fn finish(&self) -> Result<(), Error> {
        match self.state {
            State::Closed => Ok(()),
            _ => Err(Error::Incomplete { buffered_bytes: self.buffered_bytes() }),
        }
    }

    /// Bytes of an incomplete message.
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.len() + self.part.as_ref().map_or(0, |part| part.payload.len())
    }
}

/// The header before a payload.
struct Header {
    fin: bool,
    reserved: bool,
    opcode: u8,
    mask: Option<[u8; 4]>,
    payload_bytes: u64,
    /// The length of the header itself.
    bytes: usize,
}

impl Header {
    /// Parses the header at the beginning of `bytes`, if it is complete.
    fn read(bytes: &[u8]) -> Option<Header> {
        let [first, second] = *bytes.first_chunk::<2>()?;
        let (payload_bytes, mut at) = match second & 0x7f {
            126 => (u64::from(u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?)), 4),
            127 => (u64::from_be_bytes(*bytes.get(2..)?.first_chunk()?), 10),
            short => (u64::from(short), 2),
        };
        let mut mask = None;
        if second & 0x80 != 0 {
            mask = Some(*bytes.get(at..)?.first_chunk::<4>()?);
            at += 4;
        }
        Some(Header {
            fin: first & 0x80 != 0,
            reserved: first & 0x70 != 0,
            opcode: first & 15,
            mask,
            payload_bytes,
            bytes: at,
        })
    }

    fn is_control(&self) -> bool {
        self.opcode >= 8
    }

    /// Checks the rules that concern a single frame.
    fn check(&self, role: Role) -> Result<(), &'static str> {
        if self.reserved {
            return Err("a bit of an extension that was not agreed on");
        }
        if !matches!(self.opcode, 0..=2 | 8..=10) {
            return Err("an unknown opcode");
        }
        match (role, self.mask) {
            (Role::Server, None) => return Err("no mask"),
            (Role::Client, Some(_)) => return Err("a server's mask"),
            _ => {}
        }
        if self.is_control() && (!self.fin || self.payload_bytes > CONTROL_LIMIT_BYTES as u64) {
            return Err("a control message that is long or in pieces");
        }
        if self.payload_bytes >> 63 != 0 {
            return Err("a length beyond 63 bits");
        }
        Ok(())
    }
}

fn control(opcode: u8, payload: Bytes, at: u64) -> Result<Message, Error> {
    match opcode {
        9 => return Ok(Message::Ping(payload)),
        10 => return Ok(Message::Pong(payload)),
        _ => {}
    }
    let Some((code, reason)) = payload.split_first_chunk::<2>() else {
        if payload.is_empty() {
            return Ok(Message::Close(None));
        }
        return Err(Error::Protocol { at, why: "half a close code" });
    };
    let code = u16::from_be_bytes(*code);
    // RFC 6455, 7.4: the other codes are reserved or forbidden in frames.
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(Error::Protocol { at, why: "a close code that may not be sent" });
    }
    let reason = std::str::from_utf8(reason).map_err(|_| Error::NotUtf8 { at })?.to_owned();
    Ok(Message::Close(Some(Close { code, reason })))
}
