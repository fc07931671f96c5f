//! Kubernetes' CBOR encoding: converts bytes of CBOR to JSON and back, without a tree in between.
//!
//! ```text
//!   request body   d9d9f7 item                     ── decode ──▶ {"kind":…,"apiVersion":…,"metadata":…
//!   response body  d9d9f7 item                     ◀─ encode ─── the object's JSON
//!   list body      d9d9f7 {kind, items: [ … ], …}  ◀─ ListBody ─ the objects' JSON
//!   watch event    d9d9f7 {type, object: d9d9f7 …} ◀─ event_frame ─ the object's JSON
//! ```
//!
//! The rules are those of apimachinery's `runtime/serializer/cbor`, on top of RFC 8949. The output has the tag
//! "self-described CBOR" and no other tags, definite lengths, and the shortest form of every number. Strings and names
//! are byte strings, because Go's strings need not be UTF-8. Members are in the order of the JSON; only Go's tests sort
//! them. A `[]byte`, which Go writes as bytes with tag 22, stays the base64 string of the JSON; Go's decoder accepts
//! both.
//!
//! The decoder also accepts text strings, strings and containers of indefinite length, floats of any width, times by
//! tag, and bytes to convert to base64. The decoder rejects names that are not strings or duplicate, numbers beyond 64
//! bits, NaN and infinities, `undefined`, and invalid UTF-8.
//!
//! # Responses of a server
//!
//! | response | made by |
//! |---|---|
//! | an object, its metadata, a Table, a Status | [`encode()`] of its JSON |
//! | a list of whole objects | [`ListBody`], which holds a chunk of it |
//! | a list of metadata, a Table of a list | [`encode()`] of its JSON |
//! | ADDED, MODIFIED, DELETED, in any view | [`event_frame`], once per event and view |
//! | BOOKMARK | [`event_frame`] of [`crate::Bookmark::object`] |
//! | ERROR, at the end of a stream | [`error_frame`] |
//! | each of these frames on a WebSocket | the frame, as a binary message |
//!
//! A watch is a sequence of items (RFC 8742), `application/cbor-seq`; [`CborFrames`] splits it.
//!
//! # Example
//! ```
//! use listwatch_wire::cbor;
//!
//! let body = cbor::encode(br#"{"kind":"ConfigMap","data":{"port":"80"}}"#)?;
//! assert_eq!(body, b"\xd9\xd9\xf7\xa2\x44kind\x49ConfigMap\x44data\xa1\x44port\x4280");
//! assert_eq!(cbor::decode(&body)?, br#"{"kind":"ConfigMap","data":{"port":"80"}}"#);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod decode;
mod encode;
mod frames;
mod list;
mod watch;

pub use decode::{DecodeError, decode};
pub use encode::{EncodeError, encode};
pub use frames::CborFrames;
pub use list::ListBody;
pub use watch::{WatchMessage, error_frame, event_frame};

/// The tag "self-described CBOR" (55799), with which all output of Kubernetes begins.
pub const SELF_DESCRIBED: &[u8] = b"\xd9\xd9\xf7";

/// Maximum nesting of containers and tags in a body or frame that is read. Later JSON readers stop
/// at 128.
pub const DEPTH_MAX: usize = 100;

/// Maximum nesting of the JSON that is written: the deepest storable object, inside a list or a
/// Table.
pub const ENCODE_DEPTH_MAX: usize = 128;

/// The parsed head of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    /// 0 to 7: unsigned, negative, bytes, text, array, map, tag, simple or float.
    major: u8,
    /// The low five bits of the first byte.
    info: u8,
    /// The number, length or tag in the head. Zero for [`INDEFINITE`].
    argument: u64,
    /// Bytes of the head.
    bytes: usize,
}

const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const MAP: u8 = 5;
const TAG: u8 = 6;
const SIMPLE: u8 = 7;

/// The `info` of an indefinite length, and of a break.
const INDEFINITE: u8 = 31;

/// The end of a string or container of indefinite length.
const BREAK: u8 = 0xff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeadError {
    /// The head is incomplete.
    Truncated,
    /// The first byte is not a valid CBOR head.
    Malformed,
}

impl Head {
    /// The length of a head by its first byte; `None` for a [`BREAK`] or an invalid byte.
    fn bytes_of(first: u8) -> Option<usize> {
        match (first & 31, first >> 5) {
            (0..=23, _) | (INDEFINITE, BYTES..=MAP) => Some(1),
            (info @ 24..=27, _) => Some(1 + (1 << (info - 24))),
            _ => None,
        }
    }

    /// Parses the head at the beginning of `bytes`.
    fn read(bytes: &[u8]) -> Result<Head, HeadError> {
        let first = *bytes.first().ok_or(HeadError::Truncated)?;
        let (major, info) = (first >> 5, first & 31);
        let more = Head::bytes_of(first).ok_or(HeadError::Malformed)? - 1;
        let rest = bytes.get(1..1 + more).ok_or(HeadError::Truncated)?;
        let argument = match info {
            0..=23 => u64::from(info),
            _ => rest.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)),
        };
        // Simple values below 32 have only one byte.
        if major == SIMPLE && info == 24 && argument < 32 {
            return Err(HeadError::Malformed);
        }
        Ok(Head { major, info, argument, bytes: 1 + more })
    }
}

/// Writes a head in its shortest form.
fn push_head(out: &mut Vec<u8>, major: u8, argument: u64) {
    let (bytes, len) = head_of(major, argument);
    out.extend_from_slice(&bytes[..len]);
}

fn head_of(major: u8, argument: u64) -> ([u8; 9], usize) {
    let mut head = [0; 9];
    let big = argument.to_be_bytes();
    let (info, more) = match argument {
        0..=23 => (argument as u8, 0),
        24..=0xff => (24, 1),
        0x100..=0xffff => (25, 2),
        0x1_0000..=0xffff_ffff => (26, 4),
        _ => (27, 8),
    };
    head[0] = major << 5 | info;
    head[1..=more].copy_from_slice(&big[8 - more..]);
    (head, 1 + more)
}
