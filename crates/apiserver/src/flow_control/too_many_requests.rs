//! [`TooManyRequests`]: the error of a request that was not admitted.

/// No seat or slot is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyRequests {
    /// The value of the header `Retry-After`.
    pub(crate) retry_after_seconds: u64,
}

impl Default for TooManyRequests {
    fn default() -> Self {
        TooManyRequests { retry_after_seconds: 1 }
    }
}
