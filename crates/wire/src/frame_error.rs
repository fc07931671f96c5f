//! [`FrameError`]: the error of a stream of frames.

/// The error of a stream of frames, which is final: drop the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The stream ended inside a frame: the peer or the network cut it.
    #[error("the stream ended inside a frame, after {buffered_bytes} of its bytes")]
    Incomplete {
        /// Received bytes of the frame.
        buffered_bytes: usize,
    },
    /// The peer's frame exceeds the limit. Raise the limit if such objects are expected.
    #[error("a frame is larger than the limit of {limit_bytes} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit_bytes: usize,
    },
    /// The peer sent an invalid frame.
    #[error("malformed frame at byte {at} of the stream")]
    Malformed {
        /// The position in the stream, in bytes.
        at: u64,
    },
}
