//! The time for which handlers under `Policy::Block` may delay other handlers, and the delivery of
//! events that were read before a stop. The clock advances only when all tasks wait, so the limits
//! are exact.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fake::Fake;
use listwatch_client::informer::{
    DrainTimeout, Event, EventStream, Handler, HandlerOptions, InformerConfig, Policy, SharedInformer,
};
use listwatch_client::{Json, Object, ReflectorConfig, Stored};
use serde::Deserialize;
use tokio::time::Instant;

/// The timeout of blocking handlers in these tests.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Allowance for waits in steps of a millisecond, for all changes of a test together.
const SLACK: Duration = Duration::from_millis(500);

/// The longest wait for the fast handler. A longer delay counts as this one.
const DELAY_MAX: Duration = Duration::from_secs(60);

/// The number of changes in a measurement of delays.
const CHANGES: usize = 40;

fn config() -> InformerConfig {
    let reflector = ReflectorConfig { check_server: false, ..ReflectorConfig::default() };
    InformerConfig { name: "things".to_owned(), reflector }
}

async fn started(server: &Fake) -> SharedInformer {
    let informer = SharedInformer::new(server.clone(), config());
    informer.start().unwrap();
    informer.wait_until_synced(Duration::from_secs(60)).await.unwrap();
    informer
}

/// Adds a handler that requires each change, but takes only its initial state.
async fn stuck<S: Stored>(informer: &SharedInformer<S>, changes_max: usize, timeout: Duration) -> EventStream<S> {
    stuck_with(informer, &format!("stuck {changes_max}"), Policy::Block { changes_max, timeout }).await
}

/// Adds a handler with this policy that takes only its initial state.
async fn stuck_with<S: Stored>(informer: &SharedInformer<S>, name: &str, policy: Policy) -> EventStream<S> {
    let mut stream = informer.stream(HandlerOptions::named(name).policy(policy));
    while !matches!(stream.next().await.expect("the informer runs"), Event::Synced) {}
    stream
}

/// The time at which a fast handler received each version.
type Times = Arc<Mutex<BTreeMap<u64, Instant>>>;

fn healthy<S: Stored>(informer: &SharedInformer<S>) -> (Times, Handler<S>) {
    let times = Times::default();
    let into = times.clone();
    let handler = informer.on(HandlerOptions::named("healthy"), move |event| {
        if let Event::Added { object, .. } | Event::Updated { new: object, .. } = &event {
            into.lock().unwrap().insert(object.resource_version().parse().unwrap(), Instant::now());
        }
        std::future::ready(())
    });
    (times, handler)
}

/// Writes, and waits until the fast handler has received the change, for at most [`DELAY_MAX`]. Returns
/// the elapsed time.
async fn write_and_wait(server: &Fake, times: &Times) -> Duration {
    let begun = Instant::now();
    let version = server.put("n/a");
    while times.lock().unwrap().last_key_value().is_none_or(|(last, _)| *last < version) {
        if begun.elapsed() >= DELAY_MAX {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    begun.elapsed()
}

/// A stuck handler of a measurement.
#[derive(Clone, Copy, Debug)]
struct StuckHandler {
    policy: Policy,
    /// The number of changes before the handler is added.
    added_after: usize,
}

impl StuckHandler {
    /// A handler that requires each change, from the first one.
    fn blocking(changes_max: usize, timeout: Duration) -> Self {
        StuckHandler { policy: Policy::Block { changes_max, timeout }, added_after: 0 }
    }
}

/// The effects of stuck handlers.
#[derive(Debug)]
struct Delays {
    /// The delay of the fast handler in total, over all changes.
    delayed: Duration,
    /// For each stuck handler, the number of times that the informer stopped waiting for it.
    block_timeouts: Vec<u64>,
}

/// Measures the delay of a fast handler beside stuck handlers. The measurement ends early if the delay reaches
/// [`DELAY_MAX`].
async fn measure_delays(handlers: &[StuckHandler]) -> Delays {
    let server = Fake::new();
    let informer = started(&server).await;
    let (times, _healthy) = healthy(&informer);
    let mut streams = Vec::new();
    let mut delayed = Duration::ZERO;
    for change in 0..CHANGES {
        for handler in handlers.iter().filter(|handler| handler.added_after == change) {
            streams.push(stuck_with(&informer, "stuck", handler.policy).await);
        }
        delayed += write_and_wait(&server, &times).await;
        if delayed >= DELAY_MAX {
            break;
        }
    }
    Delays { delayed, block_timeouts: streams.iter().map(|stream| stream.counts().block_timeouts).collect() }
}

/// Judges the effects of stuck handlers whose longest timeout is `timeout`.
///
/// # Errors
/// The broken guarantee.
fn judge_delays(found: &Delays, timeout: Duration) -> Result<(), String> {
    let Delays { delayed, block_timeouts } = found;
    if *delayed > timeout + SLACK {
        return Err(format!("Isolated handlers: stuck handlers delayed the others by {delayed:?}, not {timeout:?}"));
    }
    if *delayed < timeout - SLACK {
        return Err(format!("Isolated handlers: handlers that require each change were awaited for only {delayed:?}"));
    }
    if block_timeouts.iter().any(|count| *count != 1) {
        return Err(format!("Isolated handlers: not every stuck handler timed out once: {block_timeouts:?}"));
    }
    Ok(())
}

/// Checks stuck handlers with these queue lengths. The fast handler may be delayed by at most one timeout in
/// total, over all changes.
async fn check_delay(capacities: &[usize]) {
    let handlers: Vec<_> = capacities.iter().map(|changes_max| StuckHandler::blocking(*changes_max, TIMEOUT)).collect();
    let found = measure_delays(&handlers).await;
    judge_delays(&found, TIMEOUT).unwrap_or_else(|broken| panic!("{broken}"));
}

#[tokio::test(start_paused = true)]
async fn stuck_handler_delays_others_by_at_most_its_timeout() {
    check_delay(&[4]).await;
}

#[tokio::test(start_paused = true)]
async fn six_stuck_handlers_delay_others_by_one_timeout() {
    check_delay(&[4; 6]).await;
}

#[tokio::test(start_paused = true)]
async fn successively_stuck_handlers_delay_others_by_one_timeout() {
    check_delay(&[1, 2, 4, 8, 16, 32]).await;
}

#[tokio::test(start_paused = true)]
async fn delay_check_reports_each_planted_bug() {
    let stuck = StuckHandler::blocking(4, TIMEOUT);
    let bugs: [(&str, &str, Vec<StuckHandler>); 6] = [
        (
            "the informer waits for twice the timeout",
            "stuck handlers delayed the others",
            vec![StuckHandler::blocking(4, TIMEOUT * 2)],
        ),
        (
            "the informer waits much longer for one of six handlers",
            "stuck handlers delayed the others",
            [vec![stuck; 5], vec![StuckHandler::blocking(4, TIMEOUT * 6)]].concat(),
        ),
        (
            "the informer waits for a handler that joins later",
            "stuck handlers delayed the others",
            vec![stuck, StuckHandler { added_after: CHANGES / 2, ..stuck }],
        ),
        (
            "the informer never stops waiting",
            "stuck handlers delayed the others",
            vec![StuckHandler::blocking(4, Duration::from_secs(3_600))],
        ),
        (
            "the informer does not wait for the handler",
            "handlers that require each change were awaited",
            vec![StuckHandler { policy: Policy::Coalesce, added_after: 0 }],
        ),
        (
            "the informer does not wait for one handler, whose queue never fills",
            "not every stuck handler timed out once",
            vec![stuck, StuckHandler::blocking(1_000, TIMEOUT)],
        ),
    ];
    for (bug, broken, handlers) in bugs {
        let found = judge_delays(&measure_delays(&handlers).await, TIMEOUT);
        let expected = format!("Isolated handlers: {broken}");
        assert!(found.as_ref().is_err_and(|text| text.starts_with(&expected)), "{bug}: {found:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn commands_do_not_extend_the_wait_for_a_stuck_handler() {
    let server = Fake::new();
    let informer = started(&server).await;
    let _stuck = stuck(&informer, 1, TIMEOUT).await;
    let (times, _healthy) = healthy(&informer);
    for _ in 0..2 {
        write_and_wait(&server, &times).await;
    }
    // From here on the informer waits for the stuck handler.
    let asking = informer.clone();
    // Each second a task sends a command that the informer defers until its wait ends.
    let asker = tokio::spawn(async move {
        for _ in 0..8 {
            let asking = asking.clone();
            tokio::spawn(async move { asking.add_index(|object: &Object| [object.name().to_owned()]).await });
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let delayed = write_and_wait(&server, &times).await;
    assert!(delayed >= TIMEOUT - SLACK, "this test needs an informer that waits: {delayed:?}");
    assert!(delayed <= TIMEOUT + SLACK, "Isolated handlers: commands extended the wait for a handler: {delayed:?}");
    asker.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stop_does_not_wait_behind_commands_that_a_stuck_handler_defers() {
    let server = Fake::new();
    let informer = started(&server).await;
    let _stuck = stuck(&informer, 1, Duration::from_secs(3_600)).await;
    for _ in 0..3 {
        server.put("n/a");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for _ in 0..100 {
        let asking = informer.clone();
        tokio::spawn(async move { asking.add_index(|object: &Object| [object.name().to_owned()]).await });
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    let begun = Instant::now();
    let busy = informer.stop(Duration::from_secs(1)).await;
    assert_eq!(busy, Err(DrainTimeout { handlers: vec!["stuck 1".to_owned()] }));
    let waited = begun.elapsed();
    assert!(waited <= Duration::from_secs(1) + SLACK, "Isolated handlers: a stop waited for a handler: {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn slow_handler_receives_every_change_beside_a_stuck_one() {
    let server = Fake::new();
    let informer = started(&server).await;
    let _stuck = stuck(&informer, 1, TIMEOUT).await;
    let mut slow = stuck(&informer, 1, TIMEOUT).await;
    let mut received = Vec::new();
    for _ in 0..8 {
        server.put("n/a");
        tokio::task::yield_now().await;
    }
    while received.last().is_none_or(|last| *last < 8) {
        tokio::time::sleep(TIMEOUT - Duration::from_secs(1)).await;
        match slow.next().await {
            Some(Event::Added { object, .. } | Event::Updated { new: object, .. }) => {
                received.push(object.resource_version().parse::<u64>().unwrap());
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(slow.counts().block_timeouts, 0, "the timeout was charged for another handler");
    assert_eq!(received, (1..=8).collect::<Vec<_>>(), "broke a legal history: a change is missing");
}

#[tokio::test(start_paused = true)]
async fn stuck_handler_receives_the_latest_state_when_it_continues() {
    let server = Fake::new();
    let informer = started(&server).await;
    let mut stuck = stuck(&informer, 4, TIMEOUT).await;
    for _ in 0..50 {
        server.put("n/a");
        tokio::time::sleep(TIMEOUT * 2).await;
    }
    assert!(stuck.lag().waiting <= 5, "{:?}", stuck.lag());
    let mut last = None;
    while stuck.lag().waiting > 0 {
        last = stuck.next().await;
    }
    assert!(matches!(last, Some(Event::Updated { new, .. }) if new.resource_version() == "50"));
}

/// An object with a number. An object whose `size` is not a number cannot be decoded.
#[derive(Debug, Deserialize)]
struct Widget {
    #[expect(dead_code, reason = "a wrong type is what counts")]
    size: u32,
}

#[tokio::test(start_paused = true)]
async fn event_that_frees_no_room_restarts_the_timeout_of_its_handler() {
    let server = Fake::new();
    let informer = SharedInformer::with_decoder(server.clone(), config(), Json::<Widget>::new());
    informer.start().unwrap();
    informer.wait_until_synced(Duration::from_secs(60)).await.unwrap();
    let mut slow = stuck(&informer, 1, TIMEOUT).await;
    for name in ["bad", "worse"] {
        server.put_with(&format!("n/{name}"), r#","size":"large""#);
    }
    // The first change fills the queue, and the informer waits with the second one.
    for name in ["a", "b"] {
        server.put_with(&format!("n/{name}"), r#","size":1"#);
    }
    let mut received = Vec::new();
    for _ in 0..4 {
        tokio::time::sleep(TIMEOUT - Duration::from_secs(1)).await;
        let event = slow.next().await.expect("the informer runs");
        received.push(event.key().expect("of an object").to_string());
    }
    assert_eq!(received, ["n/bad", "n/worse", "n/a", "n/b"]);
    assert_eq!(slow.counts().block_timeouts, 0, "a handler that took an event in time was given up");
}

/// Stops an informer while changes wait at each stage between its connection and its handlers. The
/// first one fills the queue of the blocking handler. The informer waits with the second one, the
/// third one is in the channel, and the part holds the next one. With `note`, that one is a notice
/// of an undecodable object, and the reflection still holds a change of the same batch.
async fn check_stop(note: bool) {
    let server = Fake::new();
    let informer = SharedInformer::with_decoder(server.clone(), config(), Json::<Widget>::new());
    informer.start().unwrap();
    informer.wait_until_synced(Duration::from_secs(60)).await.unwrap();
    let stuck = stuck(&informer, 1, Duration::from_secs(3_600)).await;
    let (times, _healthy) = healthy(&informer);
    let notes = Arc::new(Mutex::new(Vec::new()));
    let into = notes.clone();
    let _noting = informer.on(HandlerOptions::named("noting"), move |event| {
        if let Event::Quarantined { key, .. } = &event {
            into.lock().unwrap().push(key.to_string());
        }
        std::future::ready(())
    });
    for name in ["a", "b", "c"] {
        server.put_with(&format!("n/{name}"), r#","size":1"#);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    if note {
        server.put_with("n/bad", r#","size":"large""#);
    }
    server.put_with("n/d", r#","size":1"#);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let busy = informer.stop(Duration::from_secs(1)).await;
    assert_eq!(busy, Err(DrainTimeout { handlers: vec!["stuck 1".to_owned()] }));
    let shown: Vec<u64> =
        informer.store().snapshot().iter().map(|thing| thing.resource_version().parse().unwrap()).collect();
    let last = if note { 5 } else { 4 };
    assert_eq!(shown, [1, 2, 3, last], "this test needs changes that were read and not handed out");
    let received: Vec<u64> = times.lock().unwrap().keys().copied().collect();
    assert_eq!(received, shown, "broke converging: the store shows a change that no handler receives");
    let expected = if note { vec!["n/bad".to_owned()] } else { Vec::new() };
    assert_eq!(*notes.lock().unwrap(), expected, "broke converging: the note of an undecodable object is lost");
    drop(stuck);
    informer.start().unwrap();
    server.put_with("n/e", r#","size":1"#);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(times.lock().unwrap().keys().copied().collect::<Vec<_>>(), [1, 2, 3, last, last + 1]);
}

#[tokio::test(start_paused = true)]
async fn stop_delivers_every_event_that_was_read() {
    check_stop(false).await;
    check_stop(true).await;
}
