//! [`WatchDrain`]: spreads the ends of open watches while a server shuts down
//! (`--shutdown-watch-termination-grace-period`).
//!
//! Clients whose watches end together reconnect together. The drain gives each watch its own time to end.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The longest time over which a stopping server ends its watches. It is shorter than the ten seconds that requests
/// have to finish.
const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// The longest time between the ends of two watches, so that at least 200 watches end per second.
const DRAIN_INTERVAL: Duration = Duration::from_millis(5);

/// The open watches of a server, and the schedule of their ends once the server stops.
#[derive(Debug, Default)]
pub(crate) struct WatchDrain(Mutex<DrainState>);

#[derive(Debug, Default)]
struct DrainState {
    open: u32,
    /// The end time of the next watch and the interval between two watches, while the server stops.
    schedule: Option<(Instant, Duration)>,
}

impl WatchDrain {
    /// Starts to drain the watches. A second call changes nothing.
    pub(crate) fn start(&self, now: Instant) {
        let mut state = self.0.lock();
        let interval = DRAIN_INTERVAL.min(DRAIN_GRACE / state.open.max(1));
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

/// An open watch, counted until it is dropped.
pub(crate) struct OpenWatch(Arc<WatchDrain>);

impl OpenWatch {
    pub(crate) fn new(drain: Arc<WatchDrain>) -> Self {
        drain.0.lock().open += 1;
        OpenWatch(drain)
    }

    /// Returns the end time of this watch; `None` means at once. Each call takes one time of the schedule.
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
    async fn drained_watches_end_one_by_one_within_the_grace() {
        for open in [1, 10, 2_000, 100_000] {
            let drain = Arc::new(WatchDrain::default());
            let watches: Vec<OpenWatch> = (0..open).map(|_| OpenWatch::new(Arc::clone(&drain))).collect();
            assert_eq!(watches[0].end_time(), None, "a watch of a running server ends at once");
            let now = Instant::now();
            drain.start(now);
            let ends: Vec<Instant> = watches.iter().map(|watch| watch.end_time().unwrap()).collect();
            assert_eq!(ends[0], now);
            assert!(ends.is_sorted() && *ends.last().unwrap() <= now + DRAIN_GRACE, "{open}");
            let fast = ends.windows(2).all(|pair| pair[1] - pair[0] <= DRAIN_INTERVAL);
            assert!(fast, "200 or more watches end per second: {open}");
            drop(watches);
            assert_eq!(drain.0.lock().open, 0);
        }
    }
}
