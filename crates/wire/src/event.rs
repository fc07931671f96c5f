//! The envelope of a watch event: `{"type":"ADDED","object":{…}}`.
//!
//! The object stays bytes on both sides. The server writes the envelope around existing bytes
//! (`listwatch_meta::Object` builds ADDED, MODIFIED and DELETED frames together with the object).
//! The client finds the object in the frame and slices it.

use std::sync::LazyLock;

use bytes::{BufMut, Bytes, BytesMut};
use listwatch_meta::scan::{self, PathSet, Span};
use listwatch_meta::{Change, ResourceVersion, Revision, Status};

use crate::frame::{FrameError, JsonFrames};
use crate::metadata::MetadataSpans;

/// The `type` of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The object was created or began to match.
    Added,
    /// The object changed.
    Modified,
    /// The object was deleted or ceased to match.
    Deleted,
    /// Everything up to the object's resource version was sent.
    Bookmark,
    /// The object is a `Status`; the stream ends after it.
    Error,
}

impl EventKind {
    /// All event types.
    pub const ALL: [EventKind; 5] =
        [EventKind::Added, EventKind::Modified, EventKind::Deleted, EventKind::Bookmark, EventKind::Error];

    /// The type's name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            EventKind::Added => "ADDED",
            EventKind::Modified => "MODIFIED",
            EventKind::Deleted => "DELETED",
            EventKind::Bookmark => "BOOKMARK",
            EventKind::Error => "ERROR",
        }
    }

    fn parse(raw: &[u8]) -> Option<Self> {
        Some(match raw {
            b"\"ADDED\"" => EventKind::Added,
            b"\"MODIFIED\"" => EventKind::Modified,
            b"\"DELETED\"" => EventKind::Deleted,
            b"\"BOOKMARK\"" => EventKind::Bookmark,
            b"\"ERROR\"" => EventKind::Error,
            _ => return None,
        })
    }
}

impl From<Change> for EventKind {
    fn from(change: Change) -> Self {
        match change {
            Change::Added => EventKind::Added,
            Change::Modified => EventKind::Modified,
            Change::Deleted => EventKind::Deleted,
        }
    }
}

/// One watch event with an unparsed object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// The event's type.
    pub kind: EventKind,
    /// The object's JSON.
    pub object: Bytes,
}

/// The error of a frame that is not a watch event. The peer is at fault. Drop the stream, because
/// its order is lost, except after [`EventError::UnknownType`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// The frame is not a JSON object.
    #[error("malformed watch event at byte {at} of its frame")]
    Malformed {
        /// The position in the frame, in bytes.
        at: usize,
    },
    /// The frame has no `object`, or it is not a JSON object.
    #[error("a watch event carries no object")]
    NoObject,
    /// The `type` is unknown; the event may be skipped.
    #[error("a watch event of the unknown type {found}")]
    UnknownType {
        /// The raw value of `type`.
        found: String,
    },
}

static ENVELOPE: LazyLock<PathSet> = LazyLock::new(|| {
    let mut paths = PathSet::new();
    paths.add(&["type"]);
    paths.add(&["object"]);
    paths
});

/// The spans of an envelope: type, object, and the object's metadata.
const EVENT_SPANS: usize = 2 + MetadataSpans::LEN;

static ENVELOPE_AND_METADATA: LazyLock<PathSet> = LazyLock::new(|| {
    let mut paths = ENVELOPE.clone();
    for path in MetadataSpans::PATHS {
        paths.add(&[&["object"], path].concat());
    }
    paths
});

impl WatchEvent {
    /// Parses a frame as split off by [`crate::frame::JsonFrames`]. The object is a slice of the
    /// frame.
    ///
    /// # Errors
    /// [`EventError`].
    pub fn decode(frame: &Bytes) -> Result<Self, EventError> {
        let mut spans = [Span::default(); 2];
        scan::find(frame, &ENVELOPE, &mut spans).map_err(|error| EventError::Malformed { at: error.at })?;
        WatchEvent::from_spans(frame, spans[0], spans[1])
    }

    /// As [`WatchEvent::decode`], and also finds the object's identity and version in the same
    /// pass.
    ///
    /// # Errors
    /// [`EventError`].
    pub fn decode_with_metadata(frame: &Bytes) -> Result<(Self, MetadataSpans), EventError> {
        let mut spans = [Span::default(); EVENT_SPANS];
        scan::find(frame, &ENVELOPE_AND_METADATA, &mut spans)
            .map_err(|error| EventError::Malformed { at: error.at })?;
        WatchEvent::from_all_spans(frame, &spans)
    }

    fn from_all_spans(frame: &Bytes, spans: &[Span; EVENT_SPANS]) -> Result<(Self, MetadataSpans), EventError> {
        let event = WatchEvent::from_spans(frame, spans[0], spans[1])?;
        Ok((event, MetadataSpans::inside(&spans[2..], spans[1].start)))
    }

    fn from_spans(frame: &Bytes, kind: Span, object: Span) -> Result<Self, EventError> {
        if object.is_absent() || object.of(frame).first() != Some(&b'{') {
            return Err(EventError::NoObject);
        }
        let Some(kind) = EventKind::parse(kind.of(frame)) else {
            return Err(EventError::UnknownType { found: String::from_utf8_lossy(kind.of(frame)).into_owned() });
        };
        Ok(WatchEvent { kind, object: frame.slice(object.start as usize..object.end as usize) })
    }

    /// Encodes the event as a JSON frame with its newline. The object is copied; frames of stored
    /// objects come from [`listwatch_meta::Object::frame`] without a copy.
    pub fn encode(&self) -> Bytes {
        encode_frame(self.kind, &self.object)
    }
}

fn encode_frame(kind: EventKind, object: &[u8]) -> Bytes {
    let head = kind.as_str();
    let mut frame = BytesMut::with_capacity(24 + head.len() + object.len());
    frame.put_slice(b"{\"type\":\"");
    frame.put_slice(head.as_bytes());
    frame.put_slice(b"\",\"object\":");
    frame.put_slice(object);
    frame.put_slice(b"}\n");
    frame.freeze()
}

/// The error of reading a watch stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadEventError {
    /// The stream is not a sequence of JSON documents. No further event can be read.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// One document is not an event. The stream continues after it.
    #[error(transparent)]
    Event(#[from] EventError),
}

/// Reads a JSON watch stream as events with their metadata: [`JsonFrames`] and
/// [`WatchEvent::decode_with_metadata`] in one pass.
///
/// An event inside one chunk is examined once; an event across chunks is first split off and then
/// decoded.
#[derive(Debug)]
pub struct JsonEvents {
    frames: JsonFrames,
}

impl JsonEvents {
    /// Creates a reader with [`crate::frame::FRAME_LIMIT_BYTES`].
    pub fn new() -> Self {
        JsonEvents { frames: JsonFrames::new() }
    }

    /// Creates a reader that rejects events above `limit_bytes`.
    pub fn with_limit(limit_bytes: usize) -> Self {
        JsonEvents { frames: JsonFrames::with_limit(limit_bytes) }
    }

    /// Adds bytes of the stream.
    pub fn feed(&mut self, chunk: Bytes) {
        self.frames.feed(chunk);
    }

    /// The next event; `None` when more bytes are needed.
    ///
    /// # Errors
    /// [`ReadEventError`].
    pub fn next_event(&mut self) -> Result<Option<(WatchEvent, MetadataSpans)>, ReadEventError> {
        let found = self.frames.next_frame_with(|bytes| {
            let mut spans = [Span::default(); EVENT_SPANS];
            let end = scan::find_first(bytes, &ENVELOPE_AND_METADATA, &mut spans).ok()?;
            Some((end, spans))
        })?;
        Ok(match found {
            None => None,
            Some((frame, Some(spans))) => Some(WatchEvent::from_all_spans(&frame, &spans)?),
            Some((frame, None)) => Some(WatchEvent::decode_with_metadata(&frame)?),
        })
    }

    /// Ends the stream; to be called after every event was taken.
    ///
    /// # Errors
    /// [`FrameError::Incomplete`] when the stream ends inside an event.
    pub fn finish(&mut self) -> Result<(), FrameError> {
        self.frames.finish()
    }
}

impl Default for JsonEvents {
    fn default() -> Self {
        JsonEvents::new()
    }
}

/// The content of a bookmark.
#[derive(Clone, Copy, Debug)]
pub struct Bookmark<'a> {
    /// `apiVersion` of the resource.
    pub api_version: &'a str,
    /// `kind` of the resource.
    pub kind: &'a str,
    /// Everything up to and including this revision has been sent.
    pub revision: Revision,
    /// Whether it ends the initial events.
    pub initial_events_end: bool,
    /// The members after `metadata` that Go prints for an empty object of this kind, without a
    /// leading comma: `"spec":{"containers":null},"status":{}` for a Pod, empty for most kinds.
    pub zero_members: &'a str,
}

impl Bookmark<'_> {
    /// The JSON of the bookmark's object.
    pub fn object(&self) -> Bytes {
        let mut object = String::with_capacity(160 + self.zero_members.len());
        object.push_str("{\"kind\":");
        push_json_string(&mut object, self.kind);
        object.push_str(",\"apiVersion\":");
        push_json_string(&mut object, self.api_version);
        object.push_str(",\"metadata\":{\"resourceVersion\":\"");
        object.push_str(ResourceVersion::from(self.revision).as_str());
        object.push('"');
        if self.initial_events_end {
            object.push_str(",\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}");
        }
        object.push('}');
        if !self.zero_members.is_empty() {
            object.push(',');
            object.push_str(self.zero_members);
        }
        object.push('}');
        object.into()
    }

    /// The `BOOKMARK` frame, with its newline.
    pub fn encode(&self) -> Bytes {
        encode_frame(EventKind::Bookmark, &self.object())
    }
}

/// The `ERROR` frame that ends a stream, with its newline.
pub fn error_frame(status: &Status) -> Bytes {
    encode_frame(EventKind::Error, &status.to_json())
}

pub(crate) fn push_json_string(out: &mut String, text: &str) {
    out.push_str(&serde_json::to_string(text).expect("a string is JSON"));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(frame: &str, expected: Result<(EventKind, &str), EventError>) {
        let frame = Bytes::copy_from_slice(frame.as_bytes());
        let found = WatchEvent::decode(&frame);
        let expected = expected.map(|(kind, object)| WatchEvent { kind, object: object.to_owned().into() });
        assert_eq!(found, expected, "{frame:?}");
        let with_metadata = WatchEvent::decode_with_metadata(&frame);
        if let Ok((event, spans)) = &with_metadata {
            assert_eq!(Ok(*spans), MetadataSpans::find(&event.object), "{frame:?}");
        }
        assert_eq!(with_metadata.map(|(event, _)| event), expected, "with metadata: {frame:?}");
    }

    #[test]
    fn decode_accepts_members_in_any_order() {
        use EventKind::{Added, Bookmark, Deleted, Error};
        check(r#"{"type":"ADDED","object":{"a":{"b":1}}}"#, Ok((Added, r#"{"a":{"b":1}}"#)));
        check(r#"{"object":{"a":1},"type":"DELETED"}"#, Ok((Deleted, r#"{"a":1}"#)));
        check(r#"{ "type" : "BOOKMARK" , "object" : { } }"#, Ok((Bookmark, "{ }")));
        check(r#"{"type":"ERROR","object":{},"more":{}}"#, Ok((Error, "{}")));
        check(r#"{"type":"ADDED","object":{"a":"}"} }"#, Ok((Added, r#"{"a":"}"}"#)));
        check(r#"{"type":"ADDED","object":{}}"#, Ok((Added, "{}")));
        check(
            r#"{"type":"ADDED","object":{"kind":"A","metadata":{"uid":"u"}}}"#,
            Ok((Added, r#"{"kind":"A","metadata":{"uid":"u"}}"#)),
        );
        check(r#"{"type":"ADDED","object":{"a":1}}"#, Ok((Added, r#"{"a":1}"#)));
        check(r#"{"type":"GONE","object":{}}"#, Err(EventError::UnknownType { found: "\"GONE\"".to_owned() }));
        check(r#"{"object":{}}"#, Err(EventError::UnknownType { found: String::new() }));
        check(r#"{"type":"ADDED","object":null}"#, Err(EventError::NoObject));
        check(r#"{"type":"ADDED"}"#, Err(EventError::NoObject));
        check("[]", Err(EventError::Malformed { at: 0 }));
    }

    #[test]
    fn encoded_events_decode_to_equal_events() {
        for kind in [EventKind::Added, EventKind::Modified, EventKind::Deleted, EventKind::Bookmark, EventKind::Error] {
            let event = WatchEvent { kind, object: Bytes::from_static(br#"{"metadata":{}}"#) };
            let frame = event.encode();
            assert!(frame.ends_with(b"}\n"));
            assert_eq!(WatchEvent::decode(&frame.slice(..frame.len() - 1)), Ok(event));
        }
    }

    #[test]
    fn frame_of_an_object_equals_the_encoded_event() {
        for change in [Change::Added, Change::Modified, Change::Deleted] {
            let mut frame = change.frame_head().to_vec();
            frame.extend_from_slice(b"{}}\n");
            let event = WatchEvent { kind: change.into(), object: Bytes::from_static(b"{}") };
            assert_eq!(event.encode(), frame);
        }
    }

    type Read = Vec<Result<(WatchEvent, MetadataSpans), ReadEventError>>;

    /// The reference implementation for [`JsonEvents`]: split first, then decode.
    fn frame_by_frame(stream: &[u8], limit: usize) -> Read {
        let mut frames = JsonFrames::with_limit(limit);
        frames.feed(Bytes::copy_from_slice(stream));
        let mut read = Read::new();
        loop {
            match frames.next_frame() {
                Ok(Some(frame)) => read.push(WatchEvent::decode_with_metadata(&frame).map_err(Into::into)),
                Ok(None) => break,
                Err(error) => {
                    read.push(Err(error.into()));
                    return read;
                }
            }
        }
        read.extend(frames.finish().err().map(|error| Err(error.into())));
        read
    }

    fn in_one_pass(pieces: &[&[u8]], limit: usize) -> Read {
        let mut events = JsonEvents::with_limit(limit);
        let mut read = Read::new();
        for piece in pieces {
            events.feed(Bytes::copy_from_slice(piece));
            loop {
                match events.next_event() {
                    Ok(Some(event)) => read.push(Ok(event)),
                    Ok(None) => break,
                    Err(error @ ReadEventError::Event(_)) => read.push(Err(error)),
                    Err(error) => {
                        read.push(Err(error));
                        return read;
                    }
                }
            }
        }
        read.extend(events.finish().err().map(|error| Err(error.into())));
        read
    }

    proptest! {
        #[test]
        fn one_pass_event_reader_agrees_with_two_passes(
            stream in prop::collection::vec(prop_oneof![
                Just(r#"{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7"}}}"#),
                Just(r#"{"object":{"kind":"}"},"type":"DELETED"}"#),
                Just(r#"{"type":"NEW","object":{}}"#),
                Just(r#"{"type":"ADDED"}"#),
                Just("\n"), Just(" "), Just("{"), Just("}"), Just("\""), Just("[1]"), Just("{\"a\":[}"),
            ], 0..10),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
            limit in prop_oneof![Just(40_usize), Just(1000)],
        ) {
            let stream = stream.concat().into_bytes();
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).chain([0, stream.len()]).collect();
            places.sort_unstable();
            let pieces: Vec<&[u8]> = places.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            prop_assert_eq!(in_one_pass(&pieces, limit), frame_by_frame(&stream, limit));
        }
    }
}
