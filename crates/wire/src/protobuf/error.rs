//! The errors of decoding and encoding protobuf.

use std::fmt;

/// An error of the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The body, or the enclosing message, ends too early.
    Truncated,
    /// A varint has more than ten bytes.
    Varint,
    /// A field number is zero or exceeds 32 bits, or the wire type is unknown.
    Tag,
    /// An end-group tag has no matching start-group tag.
    GroupEnd,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Malformed::Truncated => "unexpected EOF",
            Malformed::Varint => "integer overflow",
            Malformed::Tag => "illegal tag",
            Malformed::GroupEnd => "end of a group that was not begun",
        })
    }
}

/// The error of an undecodable body. The sender is at fault and a retry is useless; a server
/// returns 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The body does not begin with `k8s\0`.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoPrefix,
    /// The body ends after the prefix.
    #[error("empty body")]
    Empty,
    /// The envelope has no kind.
    #[error("Object 'Kind' is missing in the envelope")]
    MissingKind,
    /// The envelope has no version.
    #[error("Object 'apiVersion' is missing in the envelope")]
    MissingVersion,
    /// The kind has no protobuf: it is not built in, or not served.
    #[error("no kind \"{kind}\" is registered for version \"{api_version}\"")]
    UnknownKind {
        /// `apiVersion` of the envelope.
        api_version: String,
        /// `kind` of the envelope.
        kind: String,
    },
    /// The wire format is invalid.
    #[error("proto: {what} at byte {at}")]
    Malformed {
        /// The position in the body, in bytes.
        at: usize,
        /// The problem.
        what: Malformed,
    },
    /// A field has a wire type that does not match its type.
    #[error("proto: wrong wireType = {found} for field {field} of {message} at byte {at}")]
    WrongType {
        /// The position in the body, in bytes.
        at: usize,
        /// The message's name.
        message: &'static str,
        /// The field's JSON name.
        field: &'static str,
        /// The wire type that was found.
        found: u8,
    },
    /// A field that this release does not know, found by [`super::decode_strict`]: JSON would lose it.
    #[error("proto: unknown field {number} of {message} at byte {at}")]
    UnknownField {
        /// The position in the body, in bytes.
        at: usize,
        /// The message's name.
        message: &'static str,
        /// The field's number.
        number: u32,
    },
    /// A value has no JSON representation.
    #[error("{why} at byte {at}")]
    InvalidValue {
        /// The position in the body, in bytes.
        at: usize,
        /// The problem.
        why: String,
    },
    /// Messages are nested more deeply than [`super::DEPTH_MAX`].
    #[error("proto: nested more than {} levels deep at byte {at}", super::DEPTH_MAX)]
    TooDeep {
        /// The position in the body, in bytes.
        at: usize,
    },
    /// The object's JSON would be far longer than the body; see [`super::json_limit_bytes`].
    #[error("the object would have more than {limit_bytes} bytes as JSON")]
    TooLarge {
        /// The limit in bytes.
        limit_bytes: usize,
    },
}

/// The error of an unencodable object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The kind has no protobuf, e.g. a custom resource. A server returns 406 instead.
    #[error("no kind \"{kind}\" is registered for version \"{api_version}\"")]
    UnknownKind {
        /// The requested `apiVersion`.
        api_version: String,
        /// The requested `kind`.
        kind: String,
    },
    /// The object is not JSON, or a member has the wrong type. The component that accepted the
    /// object is at fault; kube-apiserver returns 400 for such an object.
    #[error("member {path:?} of {message}: {why}")]
    Mismatch {
        /// The message of the member.
        message: &'static str,
        /// The path of the member, e.g. `spec.containers.env.name`.
        path: String,
        /// The expected and the found type, with line and column.
        why: String,
    },
    /// An item of a list is not an envelope.
    #[error("item {index} of a list is no encoded object: {why}")]
    Item {
        /// The item's index in the list.
        index: usize,
        /// The problem.
        why: DecodeError,
    },
    /// An object of a list is unencodable.
    #[error("item {index} of a list: {why}")]
    ListItem {
        /// The object's index in the list.
        index: usize,
        /// The object's error.
        why: Box<EncodeError>,
    },
    /// The list's iterator returned other objects for sending than for measuring. The sent bytes
    /// are unusable.
    #[error("the items of a list changed while they were written")]
    ListChanged,
}
