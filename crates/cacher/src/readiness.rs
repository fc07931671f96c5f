//! Is the cache filled? [`Readiness`]
//!
//! ```text
//!   Pending ──first list complete──▶ Ready(1) ──list again──▶ Ready(2) ──▶ …
//!      │                                │
//!      └──────────── stop ──────────────┴──────────────────▶ Stopped
//! ```
//!
//! Once filled, a cache stays ready: when it has to list again, it serves the state it has until
//! the new one stands.

use std::time::Instant;

/// The state of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Not filled yet.
    Pending {
        /// Since when.
        since: Instant,
        /// Why the last try failed.
        cause: Option<String>,
    },
    /// Filled; the number counts the lists.
    Ready(u64),
    /// Over.
    Stopped,
}

impl Readiness {
    /// When a client should try again: the longer it has taken, the longer it may take
    /// (`e^(0.06 · seconds)`, 1 to 30 s; kube-apiserver's `cacher/ready.go`).
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
    fn clients_are_told_to_wait_longer_the_longer_it_takes() {
        let since = Instant::now();
        for (down, expected) in [(0, 1), (10, 1), (12, 2), (30, 6), (57, 30), (10_000, 30)] {
            assert_eq!(Readiness::retry_after_seconds(since, since + Duration::from_secs(down)), expected);
        }
    }
}
