//! [`Backoff`]: the number of attempts of a call, and the delays between them (`DefaultRetryBackoffWithInitialDelay`).

use std::time::Duration;

/// The number of attempts of a call, and the delays between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The first delay.
    pub initial: Duration,
    /// The factor by which the delay grows from one attempt to the next.
    pub factor: f64,
    /// The largest random addition to a delay, as a fraction of the delay.
    pub jitter: f64,
    /// The number of attempts.
    pub tries: u32,
}

impl Backoff {
    /// Five attempts, the first delay being 500 ms, as for authentication and authorization webhooks.
    pub fn of_review() -> Self {
        Backoff::starting_at(Duration::from_millis(500))
    }

    /// Five attempts. The first delay is `initial`, and each further delay is 1.5 times as long.
    pub fn starting_at(initial: Duration) -> Self {
        Backoff { initial, factor: 1.5, jitter: 0.2, tries: 5 }
    }

    /// Returns the delay after attempt number `tried`, counted from 1; `None` after the last attempt. `random` is from
    /// 0 to 1.
    pub fn pause(&self, tried: u32, random: f64) -> Option<Duration> {
        if tried >= self.tries {
            return None;
        }
        let exponent = i32::try_from(tried.saturating_sub(1)).unwrap_or(i32::MAX);
        let seconds = self.initial.as_secs_f64() * self.factor.powi(exponent) * (1.0 + self.jitter * random);
        Duration::try_from_secs_f64(seconds).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_delays_grow_until_the_last_attempt() {
        let backoff = Backoff::of_review();
        let millis = |tried, random| backoff.pause(tried, random).map(|pause| pause.as_millis());
        assert_eq!(
            [1, 2, 3, 4, 5].map(|tried| millis(tried, 0.0)),
            [Some(500), Some(750), Some(1125), Some(1687), None]
        );
        assert_eq!(millis(1, 1.0), Some(600));
    }
}
