//! Kubernetes' protobuf encoding of every built-in kind: converts bytes of protobuf to JSON and
//! back.
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
//! # Responses of a server
//!
//! | response | made by |
//! |---|---|
//! | an object | [`encode()`] with its `apiVersion` and `kind` |
//! | an object's metadata | [`encode()`] of the whole object as `("meta.k8s.io/v1", "PartialObjectMetadata")` |
//! | a Status: an error or the result of a delete | [`status`] |
//! | a list, whole or of metadata | [`ListBody`], which holds a bounded part of it |
//! | ADDED, MODIFIED, DELETED | [`event_frame`], once per event and view |
//! | BOOKMARK | [`bookmark_frame`] |
//! | ERROR, at the end of a stream | [`error_frame`] |
//! | each of these frames on a WebSocket | [`message_of_frame`] of it, as a binary message |
//!
//! A Table has no protobuf form (406). A custom resource has only its metadata in protobuf.
//! [`crate::media_type::Negotiated::content_type`] returns the `Content-Type`.
//!
//! Inside this project an object is its JSON. The additional facts for protobuf are a table
//! ([`listwatch_k8s_types`]); there is no type, reflection or tree in between.
//!
//! The output equals Go's, whose rules differ from those of other protobuf libraries: values that
//! are not pointers are always written, even if zero; `kind` and `apiVersion` are in the envelope
//! only; an absent list equals an empty one.
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

use decode::UnknownFields;
use listwatch_k8s_types::{Id, message_of};

mod compact;
mod decode;
mod encode;
mod envelope;
mod error;
mod list;
mod raw;
mod reader;
mod watch;

pub use envelope::{Envelope, MAGIC};
pub use error::{DecodeError, EncodeError, Malformed};
pub use list::{
    ItemCache, LIST_KEPT_BYTES, LIST_TAIL, ListBody, MEASURE_STEP_BYTES, encode_list, list_head, push_item,
};
pub use raw::{RawField, push_raw_field, raw_fields};
pub use watch::{
    WatchMessage, bookmark_frame, error_frame, event_frame, message_frame, message_of_frame, status, watch_frame,
};

/// The media type.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Maximum nesting of objects and lists in the JSON of a body. Deeper ones are rejected, because
/// later JSON readers stop at 128.
pub const DEPTH_MAX: usize = 100;

/// Maximum bytes of the JSON of a body with `body_bytes`. Real objects become about twice as long,
/// but two bytes can encode an empty container, for which Go prints thirty. A longer result is
/// rejected.
pub const fn json_limit_bytes(body_bytes: usize) -> usize {
    body_bytes.saturating_mul(8).saturating_add(64 << 10)
}

/// A decoded object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The envelope's `apiVersion`.
    pub api_version: String,
    /// The envelope's `kind`.
    pub kind: String,
    /// The JSON of the object, in the form of Go's encoder, without a newline.
    pub json: Vec<u8>,
}

/// Encodes an object's JSON as a body: the envelope with the kind's message.
///
/// Unknown members are skipped, so that a `PartialObjectMetadata` (of `meta.k8s.io/v1`) can be
/// written from the whole object. `kind` and `apiVersion` come from the arguments. Values that Go
/// always writes are added, so that a bookmark needs only its metadata. Numbers, times and base64
/// must be valid for Kubernetes.
///
/// The JSON is read once; the number of allocated buffers does not depend on the object's size.
///
/// # Errors
/// [`EncodeError`] for a kind without protobuf, or an object of another kind.
pub fn encode(api_version: &str, kind: &str, json: &[u8]) -> Result<Vec<u8>, EncodeError> {
    encode_with(api_version, kind, json, UnknownFields::Skipped)
}

/// Encodes an object's JSON like [`encode()`], but rejects JSON that [`decode()`] would not return: members that
/// protobuf loses, and nesting of [`DEPTH_MAX`] levels or more. A store can then keep the JSON instead.
///
/// # Errors
/// [`EncodeError::Mismatch`] for an unknown member or JSON nested too deeply, and those of [`encode()`].
pub fn encode_strict(api_version: &str, kind: &str, json: &[u8]) -> Result<Vec<u8>, EncodeError> {
    encode_with(api_version, kind, json, UnknownFields::Rejected)
}

fn encode_with(api_version: &str, kind: &str, json: &[u8], unknown: UnknownFields) -> Result<Vec<u8>, EncodeError> {
    let raw = encode::object(encodable(api_version, kind)?, json, unknown)?;
    Ok(body(api_version, kind, &raw))
}

/// Encodes an object's JSON as a message without its envelope, for [`body`] and [`message_frame`].
///
/// # Errors
/// As [`encode()`].
pub fn message(api_version: &str, kind: &str, json: &[u8]) -> Result<Vec<u8>, EncodeError> {
    encode::object(encodable(api_version, kind)?, json, UnknownFields::Skipped)
}

/// Returns a body: the envelope around the message of an object of this type.
pub fn body(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(envelope::bytes(api_version, kind, message.len()));
    envelope::push(&mut body, api_version, kind, message);
    body
}

fn encodable(api_version: &str, kind: &str) -> Result<Id, EncodeError> {
    let unknown = || EncodeError::UnknownKind { api_version: api_version.to_owned(), kind: kind.to_owned() };
    message_of(api_version, kind).ok_or_else(unknown)
}

/// Decodes a body: the envelope and an object of a built-in kind.
///
/// Unknown fields are skipped, as a server does with fields of a newer client.
///
/// # Errors
/// [`DecodeError`], which is the sender's fault. Invalid bytes never panic, and never need more
/// memory than [`json_limit_bytes`].
pub fn decode(body: &[u8]) -> Result<Decoded, DecodeError> {
    decode_with(body, UnknownFields::Skipped)
}

/// Decodes a body like [`decode()`], but rejects fields that JSON would lose. A store that writes
/// the object back needs this: a newer kube-apiserver may have stored fields that this release does
/// not know.
///
/// # Errors
/// [`DecodeError::UnknownField`], and those of [`decode()`].
pub fn decode_strict(body: &[u8]) -> Result<Decoded, DecodeError> {
    decode_with(body, UnknownFields::Rejected)
}

fn decode_with(body: &[u8], unknown: UnknownFields) -> Result<Decoded, DecodeError> {
    let envelope = Envelope::parse(body)?;
    if unknown == UnknownFields::Rejected {
        Envelope::check_known(body)?;
    }
    let json = decode::object_json(body, &envelope, envelope.message()?, unknown)?;
    Ok(Decoded { api_version: envelope.api_version.into_owned(), kind: envelope.kind.into_owned(), json })
}
