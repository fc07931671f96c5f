//! Kubernetes' list and watch protocol for clients and servers: bytes to messages and back, without
//! I/O.
//!
//! ```text
//!   client                                                     server
//!   query::print_list_options ──── GET /api/v1/pods?watch… ───▶ query::parse_list_options
//!   Accept, Content-Type      ────────────────────────────────▶ media_type::negotiate
//!
//!   list::ListDecoder         ◀── {"kind":"PodList",…,"items":[ ──  list::ListBody
//!   event::JsonEvents         ◀── {"type":"ADDED","object":{…}}\n ─ Object::frame
//!   (frame::JsonFrames)                                            event::Bookmark, event::error_frame
//!   metadata::Metadata
//!
//!   protobuf::decode          ◀── k8s\0 …, 4-byte lengths ──────── protobuf::{encode, ListBody, event_frame}
//!   cbor::decode              ◀── d9d9f7 …, a sequence of items ── cbor::{encode, ListBody, event_frame}
//!   frame::Frames             ◀── any of the three framings
//!                             ◀── for people ───────────────── yaml::from_json, pretty::Indenter
//!   websocket::Decoder        ◀── one message per event ────────── websocket::{Upgrade, Kind::head}
//! ```
//!
//! Everything here is a pure function or a state machine: decoders take bytes and return frames,
//! encoders return bytes. Objects are never parsed; they are passed as [`bytes::Bytes`].
//!
//! # Features
//!
//! | feature (all are on by default) | adds | dependencies |
//! |---|---|---|
//! | `protobuf` | `protobuf`: Kubernetes' built-in types to JSON and back | listwatch-k8s-types, base64, time |
//! | `cbor` | `cbor`: CBOR to JSON and back, its frames | base64, time |
//! | `websocket` | `websocket`: the handshake and frames | base64, sha1 |
//!
//! # Example
//! A watch stream split at arbitrary positions:
//! ```
//! use bytes::Bytes;
//! use listwatch_wire::{EventKind, JsonEvents};
//!
//! let mut events = JsonEvents::new();
//! let mut seen = Vec::new();
//! for piece in [
//!     r#"{"type":"ADDED","object":{"metadata":{"name":"web","resourceVer"#,
//!     "sion\":\"7\"}}}\n{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"9\"}}}\n",
//! ] {
//!     events.feed(Bytes::from_static(piece.as_bytes()));
//!     while let Some((event, metadata)) = events.next_event()? {
//!         seen.push((event.kind, metadata.resource_version(&event.object).into_owned()));
//!     }
//! }
//! events.finish()?;
//! assert_eq!(seen, [(EventKind::Added, "7".to_owned()), (EventKind::Bookmark, "9".to_owned())]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

#[cfg(feature = "cbor")]
pub mod cbor;
mod cut;
pub mod event;
#[cfg(any(feature = "protobuf", feature = "cbor"))]
#[cfg_attr(not(feature = "protobuf"), allow(dead_code, reason = "CBOR needs a part"))]
mod forms;
pub mod frame;
mod frame_error;
pub mod list;
pub mod media_type;
pub mod metadata;
pub mod pretty;
#[cfg(feature = "protobuf")]
pub mod protobuf;
pub mod query;
#[cfg(feature = "websocket")]
pub mod websocket;
pub mod yaml;

#[cfg(feature = "cbor")]
pub use cbor::CborFrames;
pub use event::{Bookmark, EventError, EventKind, JsonEvents, ReadEventError, WatchEvent, error_frame};
pub use frame::{FrameError, Frames, JsonFrames, LengthFrames};
pub use list::{ListBody, ListDecoder, ListMeta, ListStyle, split_list};
pub use media_type::{Encoding, Negotiated, PatchType, Purpose, Served, View, negotiate, negotiate_body};
pub use metadata::{Metadata, MetadataSpans};
pub use query::{Extra, Query, WriteOptions, parse_list_options, print_list_options};

/// The example of the README, as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
