//! Watch events in protobuf: a length of four bytes, and a `WatchEvent` without its own envelope
//! around the object's envelope.
//!
//! ```text
//!   00 00 00 d7 │ 1 "ADDED" │ 2 { 1 { k8s\0 … } } │
//!   length      └─────────── message ─────────────┘
//! ```
//! A WebSocket sends the message without the length.

use bytes::Bytes;
use listwatch_meta::Status;

use super::decode::whole;
use super::envelope::{self, bytes_field, field_bytes, push_head};
use super::error::{DecodeError, EncodeError};
use super::reader::Reader;
use crate::event::{Bookmark, EventKind};

/// Bytes of the length in front of a message.
const LENGTH_BYTES: usize = 4;

/// A frame of a watch stream: the event type, and the object in its envelope.
///
/// The envelope is copied once; all watchers then share the frame. [`message_of_frame`] returns its
/// message for a WebSocket. An envelope of 4 GiB cannot be framed; the store's limits are far
/// below.
pub fn watch_frame(kind: EventKind, envelope: &[u8]) -> Bytes {
    let mut frame = frame_head(kind, envelope.len());
    frame.extend_from_slice(envelope);
    frame.into()
}

/// The bytes before the envelope, in a buffer with room for it.
fn frame_head(kind: EventKind, envelope_bytes: usize) -> Vec<u8> {
    let kind = kind.as_str();
    let object_bytes = field_bytes(envelope_bytes);
    let bytes = field_bytes(kind.len()) + field_bytes(object_bytes);
    let mut frame = Vec::with_capacity(LENGTH_BYTES + bytes);
    frame.extend_from_slice(&(bytes as u32).to_be_bytes());
    push_head(&mut frame, 1, kind.len());
    frame.extend_from_slice(kind.as_bytes());
    push_head(&mut frame, 2, object_bytes);
    push_head(&mut frame, 1, envelope_bytes);
    frame
}

/// A frame of a watch stream from an object's JSON: [`super::encode()`] and [`watch_frame`] with
/// one copy less.
///
/// For ADDED, MODIFIED and DELETED pass the object's own type and JSON. For an object of any kind,
/// `("meta.k8s.io/v1", "PartialObjectMetadata")` gives its metadata.
///
/// # Errors
/// [`EncodeError`]. kube-apiserver ends a stream whose event cannot be encoded.
pub fn event_frame(event: EventKind, api_version: &str, kind: &str, json: &[u8]) -> Result<Bytes, EncodeError> {
    Ok(message_frame(event, api_version, kind, &super::message(api_version, kind, json)?))
}

/// The frame of a change of an object whose message is known ([`super::message`]).
pub fn message_frame(event: EventKind, api_version: &str, kind: &str, message: &[u8]) -> Bytes {
    let mut frame = frame_head(event, envelope::bytes(api_version, kind, message.len()));
    envelope::push(&mut frame, api_version, kind, message);
    frame.into()
}

/// The `BOOKMARK` frame of a watch of whole objects. Go's zero values come from the table, so
/// [`Bookmark::zero_members`] may be empty. For a watch of metadata, `api_version` and `kind` are
/// those of `PartialObjectMetadata`.
///
/// # Errors
/// [`EncodeError::UnknownKind`] for a kind without protobuf.
pub fn bookmark_frame(bookmark: &Bookmark<'_>) -> Result<Bytes, EncodeError> {
    event_frame(EventKind::Bookmark, bookmark.api_version, bookmark.kind, &bookmark.object())
}

/// Encodes a `Status` as a body, for errors and the result of a delete.
pub fn status(status: &Status) -> Vec<u8> {
    super::encode("v1", "Status", &status.to_json()).expect("a Status is of its own kind")
}

/// The `ERROR` frame that ends a stream.
pub fn error_frame(status: &Status) -> Bytes {
    watch_frame(EventKind::Error, &self::status(status))
}

/// The WebSocket message of a frame: everything after the length, as a slice.
pub fn message_of_frame(frame: &Bytes) -> Bytes {
    frame.slice(LENGTH_BYTES.min(frame.len())..)
}

/// A received watch event without its length; the object is still in its envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchMessage {
    /// The event type.
    pub kind: EventKind,
    /// The object's envelope, for [`super::decode()`]: a slice of the message.
    pub envelope: Bytes,
}

impl WatchMessage {
    /// Parses a message as split off by [`crate::LengthFrames`].
    ///
    /// # Errors
    /// [`DecodeError`] for another message, or an unknown event type.
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
        let Some(kind) = EventKind::ALL.into_iter().find(|kind| kind.as_str().as_bytes() == word) else {
            let why = format!("a watch event of the unknown type {}", String::from_utf8_lossy(word));
            return Err(DecodeError::InvalidValue { at: kind.start as usize, why });
        };
        Ok(WatchMessage { kind, envelope: message.slice(envelope.start as usize..envelope.end as usize) })
    }
}
