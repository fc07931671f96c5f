//! The delay until a failed key is retried: [`RetryPolicy`] per key, [`TokenBucket`] over all keys.
//!
//! The numbers are those of client-go's default controller limiter. The delay is the longer of two:
//! 5 ms doubled per failure up to 1,000 s, and a bucket of ten retries per second with a burst of a
//! hundred.

use std::time::{Duration, Instant};

/// The exponential delay of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The delay after the first failure.
    pub initial: Duration,
    /// The largest delay.
    pub max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy { initial: Duration::from_millis(5), max: Duration::from_secs(1_000) }
    }
}

impl RetryPolicy {
    /// The delay after `failures` earlier failures: `initial × 2^failures`, at most `max`. Never
    /// overflows.
    pub fn delay(&self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
        // The exponent is limited to 31. For any realistic initial delay the maximum is reached
        // before.
        self.initial.checked_mul(factor).unwrap_or(self.max).min(self.max)
    }

    /// Time after which an unused failure count expires: twice the largest delay, as in
    /// `flowcontrol.Backoff`. A later failure of the key starts again at the first delay.
    pub fn memory(&self) -> Duration {
        self.max.saturating_mul(2)
    }
}

/// A token bucket that hands out reservations: the time until a token is available.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    /// Time per token; zero for no limit.
    interval: Duration,
    /// The number of tokens in a full bucket.
    burst: u32,
    /// The longest wait. A burst of failures cannot delay retries further.
    wait_max: Duration,
    /// The time at which all reserved tokens will have been produced.
    reserved_until: Option<Instant>,
}

impl TokenBucket {
    /// A full bucket of `burst` tokens that is refilled with `per_second` tokens. Zero or less per
    /// second means no limit. A burst of zero is raised to one. No wait is longer than `wait_max`.
    pub fn new(per_second: f64, burst: u32, wait_max: Duration) -> Self {
        let interval = if per_second > 0.0 {
            Duration::try_from_secs_f64(1.0 / per_second).unwrap_or(wait_max)
        } else {
            Duration::ZERO
        };
        TokenBucket { interval, burst: burst.max(1), wait_max, reserved_until: None }
    }

    /// A bucket without a limit.
    pub fn unlimited() -> Self {
        TokenBucket::new(0.0, 1, Duration::ZERO)
    }

    /// Reserves a token and returns the time until it is available.
    pub fn reserve(&mut self, now: Instant) -> Duration {
        if self.interval.is_zero() {
            return Duration::ZERO;
        }
        let from = self.reserved_until.map_or(now, |at| at.max(now));
        let room = self.interval.saturating_mul(self.burst);
        let until = from + self.interval;
        let wait = until.saturating_duration_since(now).saturating_sub(room);
        if wait > self.wait_max {
            // At the maximum wait no token is reserved, so that later waits do not grow.
            return self.wait_max;
        }
        self.reserved_until = Some(until);
        wait
    }
}

impl Default for TokenBucket {
    /// Ten tokens per second, a burst of a hundred, and waits of at most 1,000 s.
    fn default() -> Self {
        TokenBucket::new(10.0, 100, RetryPolicy::default().max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_of_a_failing_key_doubles_from_5_ms_to_1000_s() {
        let policy = RetryPolicy::default();
        let found: Vec<u128> = [0, 1, 2, 10, 17, 18, 31, 32, u32::MAX].map(|n| policy.delay(n).as_millis()).to_vec();
        assert_eq!(found, [5, 10, 20, 5_120, 655_360, 1_000_000, 1_000_000, 1_000_000, 1_000_000]);
        assert_eq!(policy.memory(), Duration::from_secs(2_000));
        assert_eq!(RetryPolicy { initial: Duration::ZERO, ..policy }.delay(40), Duration::ZERO);
    }

    #[test]
    fn full_token_bucket_allows_its_burst_then_one_token_per_interval() {
        let start = Instant::now();
        let mut bucket = TokenBucket::default();
        for n in 0..100 {
            assert_eq!(bucket.reserve(start), Duration::ZERO, "token {n} of the burst had to be waited for");
        }
        assert_eq!(bucket.reserve(start).as_millis(), 100);
        assert_eq!(bucket.reserve(start).as_millis(), 200);
        let later = start + Duration::from_millis(200);
        assert_eq!(bucket.reserve(later).as_millis(), 100, "waiting fills the bucket");
        let much_later = later + Duration::from_secs(3_600);
        for n in 0..100 {
            assert_eq!(bucket.reserve(much_later), Duration::ZERO, "token {n}: an hour fills it, and only to the brim");
        }
        assert_eq!(bucket.reserve(much_later).as_millis(), 100);
    }

    #[test]
    fn no_wait_exceeds_the_configured_maximum() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(1.0, 1, Duration::from_secs(3));
        let waits: Vec<u64> = (0..8).map(|_| bucket.reserve(start).as_secs()).collect();
        assert_eq!(waits, [0, 1, 2, 3, 3, 3, 3, 3]);
        assert_eq!(bucket.reserve(start + Duration::from_secs(3)).as_secs(), 1, "cut waits took no tokens");
        let mut unlimited = TokenBucket::unlimited();
        assert!((0..1_000).all(|_| unlimited.reserve(start).is_zero()));
    }
}
