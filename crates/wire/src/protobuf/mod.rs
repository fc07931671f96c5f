//! Kubernetes' protobuf, for every built-in kind: bytes of one encoding to bytes of the other.
//!
//! ```text
//!   request body   k8s\0 Unknown{apiVersion, kind, raw} ── decode ──▶ {"kind":…,"apiVersion":…,"metadata":…
//!   response body  k8s\0 Unknown{apiVersion, kind, raw} ◀─ encode ─── the object's JSON
//!   list body      k8s\0 Unknown{…, ListMeta item item …} ◀─ ListBody ── the objects' JSON
//!                                                       ◀─ encode_list ─ envelopes, not encoded again
//!   watch event    length WatchEvent{type, envelope}    ◀─ event_frame ── the object's JSON
//!                                                       ◀─ watch_frame ── an envelope
//! ```
//!
//! # What a server answers with
//!
//! | answer | made by |
//! |---|---|
//! | an object | [`encode()`] with its `apiVersion` and `kind` |
//! | an object's metadata | [`encode()`] of the whole object as `("meta.k8s.io/v1", "PartialObjectMetadata")` |
//! | a Status: an error, a delete's answer | [`status`] |
//! | a list, whole or of metadata | [`ListBody`], which holds no more than a named part of it |
//! | ADDED, MODIFIED, DELETED | [`event_frame`], once per event and view |
//! | BOOKMARK | [`bookmark_frame`] |
//! | ERROR, at the end of a stream | [`error_frame`] |
//! | each of these frames on a WebSocket | [`message_of_frame`] of it, as a binary message |
//!
//! A Table has no protobuf (406), nor has a custom resource, of which metadata can be shown all the same.
//! `Content-Type` comes from [`crate::media_type::Negotiated::content_type`].
//!
//! Inside this project an object is its JSON. What protobuf needs beyond it is a table of facts
//! ([`listwatch_k8s_types`]); there is no type, no reflection and no tree in between.
//!
//! The outcome is that of Go, whose rules differ from those of other protobuf libraries: values that
//! are no pointers are always written, even if zero; `kind` and `apiVersion` travel in the envelope
//! only; a list cannot be told from an empty one.
//!
//! # Example
//! ```
//! use listwatch_wire::protobuf;
//!
//! let json = br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"web"},"data":{"port":"80"}}"#;
//! let body = protobuf::encode("v1", "ConfigMap", json)?;
//! assert!(body.starts_with(protobuf::MAGIC));
//! let object = protobuf::decode(&body)?;
//! assert_eq!((object.api_version.as_str(), object.kind.as_str()), ("v1", "ConfigMap"));
//! assert_eq!(object.json, json);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use listwatch_k8s_types::{Id, message_of};

mod decode;
mod encode;
mod envelope;
mod error;
pub(crate) mod forms;
mod list;
mod reader;
mod watch;

pub use envelope::{Envelope, MAGIC};
pub use error::{DecodeError, EncodeError, Malformed};
pub use list::{LIST_KEPT_BYTES, LIST_TAIL, ListBody, MEASURE_STEP_BYTES, encode_list, list_head, push_item};
pub use watch::{WatchMessage, bookmark_frame, error_frame, event_frame, message_of_frame, status, watch_frame};

/// The media type.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// How deeply objects and lists may be nested in the JSON of a body. Deeper ones are refused: what
/// reads JSON afterwards stops at 128.
pub const DEPTH_MAX: usize = 100;

/// The most bytes the JSON of a body of `body_bytes` may have. Real objects become about twice as
/// long; but two bytes can stand for an empty container, of which Go prints thirty. A body that
/// would become longer is refused.
pub const fn json_limit_bytes(body_bytes: usize) -> usize {
    body_bytes.saturating_mul(8).saturating_add(64 << 10)
}

/// An object read from protobuf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// `apiVersion`, as the envelope says.
    pub api_version: String,
    /// `kind`, as the envelope says.
    pub kind: String,
    /// The object as Go would print it, without a newline.
    pub json: Vec<u8>,
}

/// Writes an object's JSON as a body: the envelope, and inside it the message of the kind.
///
/// Members that the kind does not have are passed over, so a `PartialObjectMetadata` (of
/// `meta.k8s.io/v1`) is written from the whole object; so are `kind` and `apiVersion`, which the
/// arguments give. What Go always writes and the JSON lacks is filled in, so a bookmark needs nothing
/// but its metadata. Numbers, times and base64 have to be what Kubernetes accepts.
///
/// One pass over the JSON; a handful of buffers are allocated, whatever the object's size.
///
/// # Errors
/// [`EncodeError`]: a kind without protobuf, or an object that is none of its kind.
pub fn encode(api_version: &str, kind: &str, json: &[u8]) -> Result<Vec<u8>, EncodeError> {
    let raw = encode::object(encodable(api_version, kind)?, json)?;
    let mut body = Vec::with_capacity(envelope::bytes(api_version, kind, raw.len()));
    envelope::push(&mut body, api_version, kind, &raw);
    Ok(body)
}

fn encodable(api_version: &str, kind: &str) -> Result<Id, EncodeError> {
    let unknown = || EncodeError::UnknownKind { api_version: api_version.to_owned(), kind: kind.to_owned() };
    message_of(api_version, kind).ok_or_else(unknown)
}

/// Reads a body: the envelope, and inside it an object of a built-in kind.
///
/// Unknown fields are passed over, as a server does with fields of a newer client.
///
/// # Errors
/// [`DecodeError`]; the sender is at fault. Broken bytes never panic, and never need more memory than
/// [`json_limit_bytes`] allows.
pub fn decode(body: &[u8]) -> Result<Decoded, DecodeError> {
    let envelope = Envelope::parse(body)?;
    let json = decode::object(body, &envelope, envelope.message()?)?;
    Ok(Decoded { api_version: envelope.api_version.into_owned(), kind: envelope.kind.into_owned(), json })
}
