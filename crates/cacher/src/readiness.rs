//! Whether the cache is filled: [`Readiness`].
//!
//! ```text
//!   Pending ──first list complete──▶ Ready(1) ──list again──▶ Ready(2) ──▶ …
//!      │                                │
//!      └──────────── stop ──────────────┴──────────────────▶ Stopped
//! ```
//!
//! Once filled, a cache stays ready. While the cache lists again, it serves the former state.

use std::time::Instant;

/// Whether a cache is filled and serves reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// The cache is not filled yet.
    Pending {
        /// The time when the filling began.
        since: Instant,
        /// The error of the last attempt.
        cause: Option<String>,
    },
    /// The cache is filled. Contains the number of complete lists so far.
    Ready(u64),
    /// The cache was stopped and never restarts.
    Stopped,
}

impl Readiness {
    /// Seconds until a client should retry, which grow with the time since `since` (`e^(0.06 ·
    /// seconds)`, 1 to 30 s; kube-apiserver's `cacher/ready.go`).
    pub(crate) fn retry_after_seconds(since: Instant, now: Instant) -> u32 {
        let down = now.saturating_duration_since(since).as_secs_f64();
        (0.06 * down).exp().clamp(1.0, 30.0) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn retry_after_grows_with_the_time_without_readiness() {
        let since = Instant::now();
        for (down, expected) in [(0, 1), (10, 1), (12, 2), (30, 6), (57, 30), (10_000, 30)] {
            assert_eq!(Readiness::retry_after_seconds(since, since + Duration::from_secs(down)), expected);
        }
    }
}
