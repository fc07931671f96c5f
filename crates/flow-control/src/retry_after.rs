//! [`RetryAfter`]: the value of the header `Retry-After` for rejected requests, in seconds. The value grows while a
//! level keeps rejecting requests (`flowcontrol/dropped_requests_tracker.go`).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The largest value, in seconds (`maxRetryAfter`).
pub(crate) const RETRY_AFTER_MAX: u64 = 32;

/// The recent rejections of one level, and the resulting `Retry-After` in seconds.
#[derive(Clone, Debug)]
pub(crate) struct RetryAfter {
    seconds: u64,
    /// The last second in which `seconds` grew, counted from `start`.
    grown_at: Option<u64>,
    start: Instant,
    /// The second of the last rejection, counted from `start`, and the number of rejections in it.
    current: (u64, u64),
    /// Earlier seconds with rejections, at most [`RETRY_AFTER_MAX`] + 1.
    history: VecDeque<(u64, u64)>,
}

impl RetryAfter {
    pub(crate) fn new(now: Instant) -> Self {
        RetryAfter { seconds: 1, grown_at: None, start: now, current: (0, 0), history: VecDeque::new() }
    }

    pub(crate) fn seconds(&self) -> u64 {
        self.seconds
    }

    /// Records a rejected request. The value changes only at the first rejection of a second.
    pub(crate) fn note_rejected(&mut self, now: Instant) {
        let second = now.saturating_duration_since(self.start).max(Duration::ZERO).as_secs();
        if second <= self.current.0 {
            self.current.1 += 1;
            return;
        }
        self.history.push_back(self.current);
        self.history.retain(|(at, _)| second - at <= RETRY_AFTER_MAX);
        self.current = (second, 1);
        let recent = self.history.iter().filter(|(at, _)| second - at <= self.seconds);
        let rejected: u64 = recent.map(|(_, rejected)| rejected).sum();
        let may_grow = self.grown_at.is_none_or(|at| second - at >= self.seconds);
        if may_grow && rejected >= 3 * self.seconds {
            self.seconds = (2 * self.seconds).min(RETRY_AFTER_MAX);
            self.grown_at = Some(second);
        } else if rejected < self.seconds && self.seconds > 1 {
            self.seconds -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_doubles_under_rejections_and_falls_when_they_stop() {
        let start = Instant::now();
        let mut tracker = RetryAfter::new(start);
        let mut reject = |second: u64, times: u64| {
            (0..times).for_each(|_| tracker.note_rejected(start + Duration::from_secs(second)));
            tracker.seconds()
        };
        assert_eq!(reject(1, 2), 1);
        assert_eq!(reject(2, 3), 1, "two rejections are too few");
        assert_eq!(reject(3, 9), 2);
        assert_eq!(reject(4, 9), 2, "it grew less than two seconds ago");
        assert_eq!(reject(5, 20), 4);
        assert_eq!(reject(9, 40), 8);
        assert_eq!(reject(17, 80), 16);
        assert_eq!(reject(33, 80), 32);
        assert_eq!(reject(65, 100), 32, "it grows no further");
        assert_eq!(reject(200, 1), 31, "it falls by one second at a time");
        assert_eq!(reject(201, 1), 30);
    }

    #[test]
    fn rejection_history_is_bounded() {
        let start = Instant::now();
        let mut tracker = RetryAfter::new(start);
        (0..10_000).for_each(|second| tracker.note_rejected(start + Duration::from_secs(second)));
        assert!(tracker.history.len() as u64 <= RETRY_AFTER_MAX + 1, "{}", tracker.history.len());
    }
}
