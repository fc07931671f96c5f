//! Why a body is no object, and why an object cannot be written as protobuf.

use std::fmt;

/// What is wrong with the wire format itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The body, or the message around this place, ends too early.
    Truncated,
    /// A varint of more than ten bytes.
    Varint,
    /// A field number of zero or beyond 32 bits, or a wire type that does not exist.
    Tag,
    /// The end of a group that was never begun.
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

/// Why a body could not be read. The sender is at fault, and sending it again will not help; a
/// server answers 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The body has no `k8s\0` in front.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoPrefix,
    /// Nothing follows the prefix.
    #[error("empty body")]
    Empty,
    /// The envelope does not say of which kind the object is.
    #[error("Object 'Kind' is missing in the envelope")]
    MissingKind,
    /// The envelope does not say of which version the object is.
    #[error("Object 'apiVersion' is missing in the envelope")]
    MissingVersion,
    /// A kind that has no protobuf: not built in, or not served.
    #[error("no kind \"{kind}\" is registered for version \"{api_version}\"")]
    UnknownKind {
        /// `apiVersion` of the envelope.
        api_version: String,
        /// `kind` of the envelope.
        kind: String,
    },
    /// The wire format is broken.
    #[error("proto: {what} at byte {at}")]
    Malformed {
        /// Position in the body.
        at: usize,
        /// What is wrong there.
        what: Malformed,
    },
    /// A field is written as another type than its own.
    #[error("proto: wrong wireType = {found} for field {field} of {message} at byte {at}")]
    WrongType {
        /// Position in the body.
        at: usize,
        /// The message's name.
        message: &'static str,
        /// The field's name in JSON.
        field: &'static str,
        /// The wire type that was found.
        found: u8,
    },
    /// A value that has no JSON.
    #[error("{why} at byte {at}")]
    InvalidValue {
        /// Position in the body.
        at: usize,
        /// What is wrong with it.
        why: String,
    },
    /// Messages are nested more deeply than [`super::DEPTH_MAX`].
    #[error("proto: nested more than {} levels deep at byte {at}", super::DEPTH_MAX)]
    TooDeep {
        /// Position in the body.
        at: usize,
    },
    /// The object's JSON would be far longer than the body; see [`super::json_limit_bytes`].
    #[error("the object would have more than {limit_bytes} bytes as JSON")]
    TooLarge {
        /// The limit.
        limit_bytes: usize,
    },
}

/// Why an object could not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A kind that has no protobuf, e.g. a custom resource. A server answers 406 instead of asking.
    #[error("no kind \"{kind}\" is registered for version \"{api_version}\"")]
    UnknownKind {
        /// `apiVersion` asked for.
        api_version: String,
        /// `kind` asked for.
        kind: String,
    },
    /// The object is no JSON, or a member is not of its type. Whoever let the object in is at fault;
    /// kube-apiserver answers 400 to such an object.
    #[error("member {path:?} of {message}: {why}")]
    Mismatch {
        /// The message whose member it is.
        message: &'static str,
        /// The member, by its names from the outermost object on, e.g. `spec.containers.env.name`.
        path: String,
        /// What was expected and found, with line and column.
        why: String,
    },
    /// An item of a list is no envelope.
    #[error("item {index} of a list is no encoded object: {why}")]
    Item {
        /// Its place in the list.
        index: usize,
        /// What is wrong with it.
        why: DecodeError,
    },
    /// An object of a list cannot be written.
    #[error("item {index} of a list: {why}")]
    ListItem {
        /// Its place in the list.
        index: usize,
        /// Why it cannot.
        why: Box<EncodeError>,
    },
    /// A list's objects were others when they were sent than when they were measured: the iterator
    /// that was given for them does not repeat itself. What was sent so far is of no use.
    #[error("the items of a list changed while they were written")]
    ListChanged,
}
