//! [`WatchDrain`]: ends open watches one after the other while a server shuts down
//! (`--shutdown-watch-termination-grace-period`).
//!
//! Clients whose watches end together reconnect together. The drain therefore assigns a separate end time to each
//! watch.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Default maximum time in which a stopping server ends all watches. The value is less than the ten seconds in which
/// requests must finish.
pub(crate) const WATCH_TERMINATION_GRACE_PERIOD: Duration = Duration::from_secs(5);
/// Maximum time between the ends of two watches. At least 200 watches end per second.
const DRAIN_INTERVAL: Duration = Duration::from_millis(5);

/// Counts the open watches of a server, and schedules their end times during the shutdown.
#[derive(Debug)]
pub(crate) struct WatchDrain(Mutex<DrainState>);

#[derive(Debug)]
struct DrainState {
    open: u32,
    /// The maximum time in which all watches are ended.
    grace: Duration,
    /// The end time of the next watch and the interval between two watches, while the server stops.
    schedule: Option<(Instant, Duration)>,
}

impl Default for WatchDrain {
    fn default() -> Self {
        WatchDrain::new(WATCH_TERMINATION_GRACE_PERIOD)
    }
}

impl WatchDrain {
    /// Creates a drain that ends all watches within `grace`.
    pub(crate) fn new(grace: Duration) -> Self {
        WatchDrain(Mutex::new(DrainState { open: 0, grace, schedule: None }))
    }

    /// Returns the maximum time in which all watches are ended.
    pub(crate) fn grace(&self) -> Duration {
        self.0.lock().grace
    }

    /// Whether no watch is open.
    pub(crate) fn is_drained(&self) -> bool {
        self.0.lock().open == 0
    }

    /// Starts to drain the watches. A second call changes nothing.
    pub(crate) fn start(&self, now: Instant) {
        let mut state = self.0.lock();
        let interval = DRAIN_INTERVAL.min(state.grace / state.open.max(1));
        state.schedule.get_or_insert((now, interval));
    }

    /// Takes the next end time of the schedule; `None` unless the server stops.
    fn next_end(&self) -> Option<Instant> {
        let mut state = self.0.lock();
        let (next, interval) = state.schedule.as_mut()?;
        let end = *next;
        *next += *interval;
        Some(end)
    }
}

/// An open watch, which is counted until the value is dropped.
pub(crate) struct OpenWatch(Arc<WatchDrain>);

impl OpenWatch {
    pub(crate) fn new(drain: Arc<WatchDrain>) -> Self {
        drain.0.lock().open += 1;
        OpenWatch(drain)
    }

    /// Returns the end time of this watch; `None` means that the watch may end at once. Each call takes one time of the
    /// schedule.
    pub(crate) fn end_time(&self) -> Option<Instant> {
        self.0.next_end()
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.0.lock().open -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn drained_watches_end_one_by_one_within_the_grace_period() {
        for open in [1, 10, 2_000, 100_000] {
            let drain = Arc::new(WatchDrain::default());
            let grace = WATCH_TERMINATION_GRACE_PERIOD;
            let watches: Vec<OpenWatch> = (0..open).map(|_| OpenWatch::new(Arc::clone(&drain))).collect();
            assert_eq!(watches[0].end_time(), None, "a watch of a running server ends at once");
            let now = Instant::now();
            drain.start(now);
            let ends: Vec<Instant> = watches.iter().map(|watch| watch.end_time().unwrap()).collect();
            assert_eq!(ends[0], now);
            assert!(ends.is_sorted() && *ends.last().unwrap() <= now + grace, "{open}");
            let fast = ends.windows(2).all(|pair| pair[1] - pair[0] <= DRAIN_INTERVAL);
            assert!(fast, "200 or more watches end per second: {open}");
            drop(watches);
            assert_eq!(drain.0.lock().open, 0);
        }
    }
}
