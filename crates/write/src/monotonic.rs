//! The monotonic clock that measures the age of claims and checks. Tests use tokio's clock, which they can advance.

#[cfg(not(test))]
pub(super) use std::time::Instant;
#[cfg(test)]
pub(super) use tokio::time::Instant;
