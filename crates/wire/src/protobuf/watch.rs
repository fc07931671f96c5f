//! Watch events in protobuf: a length of four bytes, and a `WatchEvent` without an envelope of its
//! own, around the object's envelope.
//!
//! ```text
//!   00 00 00 d7 │ 1 "ADDED" │ 2 { 1 { k8s\0 … } } │
//!   length      └─────────── message ─────────────┘
//! ```
//! A WebSocket sends the message without the length.

use bytes::{BufMut, Bytes, BytesMut};

use super::decode::whole;
use super::envelope::{bytes_field, field_bytes, push_head};
use super::error::DecodeError;
use super::reader::Reader;
use crate::event::EventKind;

/// Bytes of the length in front of a message.
const LENGTH_BYTES: usize = 4;

/// A frame of a watch stream: what happened, and the object in its envelope (a `Status` with
/// [`EventKind::Error`], metadata alone with [`EventKind::Bookmark`]).
///
/// The envelope is copied once; the frame is then shared by every watcher. Its message for a
/// WebSocket is the slice behind the first four bytes. An envelope of 4 GiB cannot be framed; the
/// store's limits are far below.
pub fn watch_frame(kind: EventKind, envelope: &[u8]) -> Bytes {
    let kind = kind.as_str();
    let object_bytes = field_bytes(envelope.len());
    let bytes = field_bytes(kind.len()) + field_bytes(object_bytes);
    let mut head = Vec::with_capacity(32);
    push_head(&mut head, 1, kind.len());
    head.extend_from_slice(kind.as_bytes());
    push_head(&mut head, 2, object_bytes);
    push_head(&mut head, 1, envelope.len());
    let mut frame = BytesMut::with_capacity(LENGTH_BYTES + bytes);
    frame.put_u32(bytes as u32);
    frame.put_slice(&head);
    frame.put_slice(envelope);
    frame.freeze()
}

/// A watch event as it came, without its length; the object is still in its envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchMessage {
    /// What happened.
    pub kind: EventKind,
    /// The object's envelope, for [`super::decode()`]: a slice of the message.
    pub envelope: Bytes,
}

impl WatchMessage {
    /// Reads a message as [`crate::LengthFrames`] cuts it.
    ///
    /// # Errors
    /// [`DecodeError`] if it is none, or of a type that this crate does not know.
    pub fn parse(message: &Bytes) -> Result<Self, DecodeError> {
        let (mut kind, mut object) = (None, None);
        let mut reader = Reader::new(message, whole(message)?);
        while let Some((number, place)) = bytes_field(&mut reader, "WatchEvent")? {
            match number {
                1 => kind = Some(place),
                2 => object = Some(place),
                _ => {}
            }
        }
        let mut envelope = None;
        if let Some(object) = object {
            let mut reader = Reader::new(message, object);
            while let Some((number, place)) = bytes_field(&mut reader, "RawExtension")? {
                if number == 1 {
                    envelope = Some(place);
                }
            }
        }
        let (Some(kind), Some(envelope)) = (kind, envelope) else { return Err(DecodeError::Empty) };
        let word = kind.of(message);
        let all = [EventKind::Added, EventKind::Modified, EventKind::Deleted, EventKind::Bookmark, EventKind::Error];
        let Some(kind) = all.into_iter().find(|kind| kind.as_str().as_bytes() == word) else {
            let why = format!("a watch event of the unknown type {}", String::from_utf8_lossy(word));
            return Err(DecodeError::InvalidValue { at: kind.start as usize, why });
        };
        Ok(WatchMessage { kind, envelope: message.slice(envelope.start as usize..envelope.end as usize) })
    }
}
