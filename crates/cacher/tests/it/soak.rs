//! The soak of `examples/soak.rs`, with fewer watchers and on a virtual clock.

#[path = "support/soak.rs"]
mod load;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use load::{Plan, Tally, run};

#[test]
fn two_minute_soak_leaves_every_copy_equal_to_the_store() {
    let plan = Plan { time: Duration::from_secs(120), watchers: 200, writes_per_second: 50, objects: 300, seed: 7 };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let tally = Arc::new(Tally::default());
    let (mut history, mut encodings) = (0, 0);
    let verdict = runtime.block_on(run(plan, tally.clone(), |_, stats| {
        history = history.max(stats.history_events);
        encodings = encodings.max(stats.encodings_bytes);
    }));
    assert_eq!(verdict, Ok(()));
    assert!(tally.events.load(Relaxed) > 5_000 && tally.stalls.load(Relaxed) > 100, "{tally:?}");
    assert!(tally.expired.load(Relaxed) > 0 && tally.resumed.load(Relaxed) > 100, "{tally:?}");
    // 20 s of 50 events, plus the events that one housekeeping interval leaves.
    assert!(history <= 26 * 50, "bounded: {history} events in the window");
    assert!(encodings <= 4 << 20, "bounded: {encodings} bytes of encodings");
}
