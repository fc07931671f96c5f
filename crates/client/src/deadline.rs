//! Adds the wait of a caller to a time, without an overflow: [`deadline`].

use std::ops::Add;
use std::time::Duration;

/// The longest wait: one year. A longer one, such as [`Duration::MAX`] for "no limit", ends after this time.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The end of a wait that begins at `from`, at most [`WAIT_MAX`] later. A plain sum of a time and a long duration
/// overflows, which is a panic.
pub(crate) fn deadline<T: Add<Duration, Output = T>>(from: T, wait: Duration) -> T {
    from + wait.min(WAIT_MAX)
}
