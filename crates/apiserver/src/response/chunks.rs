//! [`Chunks`]: the bytes of a body, produced one chunk at a time as the connection polls.

use bytes::Bytes;

/// The reason why a body ended before its last byte. The client receives a stream reset, or the connection is closed.
/// The client can therefore detect that the body is incomplete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the response was interrupted: {0}")]
pub struct BodyError(pub(crate) String);

/// The chunks of a body. The iterator ends after an error.
pub(crate) type Chunks = Box<dyn Iterator<Item = Result<Bytes, BodyError>> + Send>;
