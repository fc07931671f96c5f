//! Watch events in CBOR: `{type, object}`, with the tag before the event and before the object.

use bytes::Bytes;
use listwatch_meta::Status;

use super::encode::{EncodeError, push_json, push_string};
use super::frames::ItemScan;
use super::{BYTES, DecodeError, Head, HeadError, MAP, SELF_DESCRIBED, TEXT, push_head};
use crate::event::EventKind;

/// A frame of a watch stream from an object's JSON; a WebSocket message has the same bytes.
///
/// # Errors
/// [`EncodeError`]. kube-apiserver ends a stream whose event cannot be encoded.
pub fn event_frame(event: EventKind, json: &[u8]) -> Result<Bytes, EncodeError> {
    let mut frame = Vec::with_capacity(json.len() + 32);
    frame.extend_from_slice(SELF_DESCRIBED);
    push_head(&mut frame, MAP, 2);
    for text in ["type", event.as_str(), "object"] {
        push_string(&mut frame, text.as_bytes());
    }
    frame.extend_from_slice(SELF_DESCRIBED);
    push_json(&mut frame, json)?;
    Ok(frame.into())
}

/// The `ERROR` frame that ends a stream.
pub fn error_frame(status: &Status) -> Bytes {
    event_frame(EventKind::Error, &status.to_json()).expect("a Status is JSON")
}

/// A received watch event with an undecoded object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchMessage {
    /// The event type.
    pub kind: EventKind,
    /// The object, for [`super::decode()`]: a slice of the message.
    pub object: Bytes,
}

impl WatchMessage {
    /// Parses an item as split off by [`super::CborFrames`].
    ///
    /// # Errors
    /// [`DecodeError`] for another item, or an unknown event type.
    pub fn parse(message: &Bytes) -> Result<Self, DecodeError> {
        let mut at = if message.starts_with(SELF_DESCRIBED) { SELF_DESCRIBED.len() } else { 0 };
        let map = head(message, at)?;
        if map.major != MAP || map.info == super::INDEFINITE {
            return Err(DecodeError::Invalid { at, why: "a watch event that is no map" });
        }
        at += map.bytes;
        let (mut kind, mut object) = (None, None);
        for _ in 0..map.argument {
            let name = item(message, at)?;
            let value = item(message, name.end)?;
            at = value.end;
            match string(message, name.clone()) {
                b"type" => kind = Some(value),
                b"object" => object = Some(value),
                _ => {}
            }
        }
        let (Some(kind), Some(object)) = (kind, object) else {
            return Err(DecodeError::Invalid { at, why: "a watch event without a type or an object" });
        };
        let word = string(message, kind.clone());
        let Some(found) = EventKind::ALL.into_iter().find(|kind| kind.as_str().as_bytes() == word) else {
            return Err(DecodeError::Invalid { at: kind.start, why: "a watch event of an unknown type" });
        };
        Ok(WatchMessage { kind: found, object: message.slice(object) })
    }
}

fn head(message: &[u8], at: usize) -> Result<Head, DecodeError> {
    Head::read(message.get(at..).unwrap_or_default()).map_err(|error| match error {
        HeadError::Truncated => DecodeError::Truncated { at: message.len() },
        HeadError::Malformed => DecodeError::Malformed { at },
    })
}

/// The range of the item that begins at a position.
fn item(message: &[u8], at: usize) -> Result<std::ops::Range<usize>, DecodeError> {
    match ItemScan::default().run(message.get(at..).unwrap_or_default(), usize::MAX) {
        Ok(Some(len)) => Ok(at..at + len),
        Ok(None) => Err(DecodeError::Truncated { at: message.len() }),
        Err(_) => Err(DecodeError::Malformed { at }),
    }
}

/// The content of a string of definite length; empty for any other item.
fn string(message: &[u8], place: std::ops::Range<usize>) -> &[u8] {
    match head(message, place.start) {
        Ok(Head { major: BYTES | TEXT, info: 0..=27, bytes, .. }) => &message[place.start + bytes..place.end],
        _ => b"",
    }
}
