//! Delays between retries: [`BackoffPolicy`] and [`Backoff`].
//!
//! The delays are client-go's: 0.8 s, doubled up to 30 s, plus a random part of up to the delay
//! itself. The random part keeps the clients of a failed server from returning at the same time.
//! Two differences from client-go and kube-rs are intentional. First, only received data resets a
//! backoff. In client-go, two minutes of an outage also reset it; in kube-rs, every partly
//! successful attempt does. Second, a server's `Retry-After` is a lower bound.

use std::time::Duration;

use crate::deadline::WAIT_MAX;

/// The longest accepted `Retry-After`. Longer values are reduced to it.
pub const RETRY_AFTER_LIMIT: Duration = Duration::from_secs(300);

/// The parameters of a backoff.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackoffPolicy {
    /// The first delay, before jitter.
    pub initial: Duration,
    /// The largest delay, before jitter.
    pub cap: Duration,
    /// The factor between two delays; at least 1.
    pub factor: f64,
    /// The random part, as a fraction of the delay; 0 for none.
    pub jitter: f64,
}

impl Default for BackoffPolicy {
    fn default() -> Self {
        BackoffPolicy { initial: Duration::from_millis(800), cap: Duration::from_secs(30), factor: 2.0, jitter: 1.0 }
    }
}

/// A backoff with its number of attempts. The type is pure: the caller passes the random number and
/// receives the delay.
#[derive(Clone, Debug)]
pub struct Backoff {
    policy: BackoffPolicy,
    attempt: u32,
}

impl Backoff {
    /// A backoff at its first delay.
    pub fn new(policy: BackoffPolicy) -> Self {
        Backoff { policy, attempt: 0 }
    }

    /// Returns the next delay. `random` is uniform in `[0, 1)`; `retry_after` is the server's
    /// value.
    pub fn next_delay(&mut self, random: f64, retry_after: Option<Duration>) -> Duration {
        let BackoffPolicy { initial, cap, factor, jitter } = self.policy;
        let exponent = i32::try_from(self.attempt).unwrap_or(i32::MAX);
        let base = (initial.as_secs_f64() * factor.max(1.0).powi(exponent)).min(cap.as_secs_f64());
        self.attempt = self.attempt.saturating_add(1);
        let spread = jitter.max(0.0) * random.clamp(0.0, 1.0);
        let bounded = |seconds: f64| Duration::try_from_secs_f64(seconds).map_or(WAIT_MAX, |delay| delay.min(WAIT_MAX));
        let delay = bounded(base * (1.0 + spread));
        // Clients that received the same `Retry-After` must not return at the same time.
        let asked = retry_after.map_or(Duration::ZERO, |asked| asked.min(RETRY_AFTER_LIMIT));
        if asked > delay { asked + bounded(initial.as_secs_f64() * spread) } else { delay }
    }

    /// Starts again at the first delay. Only received data calls this.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }

    /// The number of delays since the last reset.
    pub fn attempts(&self) -> u32 {
        self.attempt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(policy: BackoffPolicy, random: f64, retry_after: Option<u64>, expected_millis: &[u64]) {
        let mut backoff = Backoff::new(policy);
        let found: Vec<u64> = expected_millis
            .iter()
            .map(|_| backoff.next_delay(random, retry_after.map(Duration::from_secs)).as_millis() as u64)
            .collect();
        assert_eq!(found, expected_millis, "random {random}, retry after {retry_after:?}");
    }

    #[test]
    fn delays_double_up_to_the_cap_and_jitter_adds_up_to_the_delay() {
        let policy = BackoffPolicy::default();
        check(policy, 0.0, None, &[800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000]);
        check(policy, 0.5, None, &[1_200, 2_400, 4_800, 9_600, 19_200, 38_400, 45_000]);
        check(BackoffPolicy { factor: 0.0, jitter: 0.0, ..policy }, 0.9, None, &[800, 800]);
    }

    #[test]
    fn retry_after_is_a_lower_bound_and_is_bounded_itself() {
        let policy = BackoffPolicy::default();
        check(policy, 0.0, Some(2), &[2_000, 2_000, 3_200]);
        check(policy, 0.5, Some(2), &[2_400, 2_400, 4_800]);
        check(policy, 0.0, Some(86_400), &[300_000]);
    }

    #[test]
    fn backoff_does_not_overflow_in_a_long_outage() {
        let mut backoff = Backoff::new(BackoffPolicy::default());
        for _ in 0..5_000 {
            assert!(backoff.next_delay(0.999, None) <= Duration::from_secs(60), "the cap was passed");
        }
        assert_eq!(backoff.attempts(), 5_000);
        backoff.reset();
        assert_eq!(backoff.next_delay(0.0, None), Duration::from_millis(800));
    }
}
