//! Guarantee 14 in time: how long handlers that want each change (`Policy::Block`) may delay the
//! others, and what a stop does with changes that were read and not handed out yet. The clock only
//! moves when everybody waits, so the bounds are exact.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fake::Fake;
use listwatch_client::informer::{
    Event, EventStream, Handler, HandlerOptions, InformerConfig, Policy, SharedInformer, StillBusy,
};
use listwatch_client::{Json, Object, ReflectorConfig, Stored};
use serde::Deserialize;
use tokio::time::Instant;

/// Patience of the informer with a stuck handler in these tests.
const PATIENCE: Duration = Duration::from_secs(5);

/// Allowance for waits in steps of a millisecond, for all changes of a test together.
const SLACK: Duration = Duration::from_millis(500);

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

/// A handler that takes the first event and nothing after it.
async fn stuck<S: Stored>(informer: &SharedInformer<S>, changes_max: usize, patience: Duration) -> EventStream<S> {
    let policy = Policy::Block { changes_max, patience };
    let mut stream = informer.stream(HandlerOptions::named(&format!("stuck {changes_max}")).policy(policy));
    assert!(matches!(stream.next().await, Some(Event::Synced)));
    stream
}

/// When a handler that is never slow was told of each version.
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

/// Writes, and waits until the healthy handler knows: how long that took.
async fn write_and_wait(server: &Fake, times: &Times) -> Duration {
    let begun = Instant::now();
    let version = server.put("n/a");
    while times.lock().unwrap().last_key_value().is_none_or(|(last, _)| *last < version) {
        assert!(begun.elapsed() < Duration::from_secs(600), "broke nobody pays for a slow handler: it is told nothing");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    begun.elapsed()
}

/// `capacities` are those of handlers that are stuck. The healthy handler is delayed, in sum over
/// all changes, by no more than one patience.
async fn check_delay(capacities: &[usize]) {
    let server = Fake::new();
    let informer = started(&server).await;
    let mut streams = Vec::new();
    for changes_max in capacities {
        streams.push(stuck(&informer, *changes_max, PATIENCE).await);
    }
    let (times, _healthy) = healthy(&informer);
    let mut delayed = Duration::ZERO;
    for _ in 0..40 {
        delayed += write_and_wait(&server, &times).await;
    }
    assert!(delayed >= PATIENCE - SLACK, "handlers that want each change were not waited for: {delayed:?}");
    assert!(
        delayed <= PATIENCE + SLACK,
        "broke nobody pays for a slow handler: {capacities:?} delayed the others by {delayed:?}"
    );
    for stream in &streams {
        assert_eq!(stream.counts().impatience, 1, "{stream:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn stuck_handler_delays_others_by_its_patience_at_most() {
    check_delay(&[4]).await;
}

#[tokio::test(start_paused = true)]
async fn six_stuck_handlers_delay_others_by_one_patience() {
    check_delay(&[4; 6]).await;
}

#[tokio::test(start_paused = true)]
async fn successively_stuck_handlers_delay_others_by_one_patience() {
    check_delay(&[1, 2, 4, 8, 16, 32]).await;
}

#[tokio::test(start_paused = true)]
async fn commands_do_not_extend_the_patience_with_a_stuck_handler() {
    let server = Fake::new();
    let informer = started(&server).await;
    let _stuck = stuck(&informer, 1, PATIENCE).await;
    let (times, _healthy) = healthy(&informer);
    for _ in 0..2 {
        write_and_wait(&server, &times).await;
    }
    // The informer waits for the stuck handler from here on.
    let asking = informer.clone();
    // Each second somebody asks for something that the informer defers until it waits no more.
    let asker = tokio::spawn(async move {
        for _ in 0..8 {
            let asking = asking.clone();
            tokio::spawn(async move { asking.add_index(|object: &Object| [object.name().to_owned()]).await });
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let delayed = write_and_wait(&server, &times).await;
    assert!(delayed >= PATIENCE - SLACK, "this test needs an informer that waits: {delayed:?}");
    assert!(delayed <= PATIENCE + SLACK, "broke nobody pays for a slow handler: {delayed:?}");
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
    assert_eq!(busy, Err(StillBusy { handlers: vec!["stuck 1".to_owned()] }));
    assert!(begun.elapsed() <= Duration::from_secs(1) + SLACK, "broke a stop waits for none: {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn slow_handler_is_awaited_beside_a_stuck_one() {
    let server = Fake::new();
    let informer = started(&server).await;
    let _stuck = stuck(&informer, 1, PATIENCE).await;
    let mut slow = stuck(&informer, 1, PATIENCE).await;
    let mut told = Vec::new();
    for _ in 0..8 {
        server.put("n/a");
        tokio::task::yield_now().await;
    }
    while told.last().is_none_or(|last| *last < 8) {
        tokio::time::sleep(PATIENCE - Duration::from_secs(1)).await;
        match slow.next().await {
            Some(Event::Added { object, .. } | Event::Updated { new: object, .. }) => {
                told.push(object.resource_version().parse::<u64>().unwrap());
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(slow.counts().impatience, 0, "the patience with another handler was used up");
    assert_eq!(told, (1..=8).collect::<Vec<_>>(), "broke a legal history: not told each change");
}

#[tokio::test(start_paused = true)]
async fn stuck_handler_receives_the_latest_state_when_it_continues() {
    let server = Fake::new();
    let informer = started(&server).await;
    let mut stuck = stuck(&informer, 4, PATIENCE).await;
    for _ in 0..50 {
        server.put("n/a");
        tokio::time::sleep(PATIENCE * 2).await;
    }
    assert!(stuck.lag().waiting <= 5, "{:?}", stuck.lag());
    let mut last = None;
    while stuck.lag().waiting > 0 {
        last = stuck.next().await;
    }
    assert!(matches!(last, Some(Event::Updated { new, .. }) if new.resource_version() == "50"));
}

/// Part of a thing that can be decoded, or not.
#[derive(Debug, Deserialize)]
struct Thing {
    #[expect(dead_code, reason = "a wrong type is what counts")]
    size: u32,
}

/// Stops an informer while changes wait in each place between its connection and its handlers: the
/// first one fills the handler that blocks, the informer waits with the second one, the third one is
/// in the channel, and the part holds the next one. With `note`, that is the note of an object that
/// cannot be decoded, and a change of the same batch is still in the reflection.
async fn check_stop(note: bool) {
    let server = Fake::new();
    let informer = SharedInformer::with_decoder(server.clone(), config(), Json::<Thing>::new());
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
    assert_eq!(busy, Err(StillBusy { handlers: vec!["stuck 1".to_owned()] }));
    let shown: Vec<u64> =
        informer.store().snapshot().iter().map(|thing| thing.resource_version().parse().unwrap()).collect();
    let last = if note { 5 } else { 4 };
    assert_eq!(shown, [1, 2, 3, last], "this test needs changes that were read and not handed out");
    let told: Vec<u64> = times.lock().unwrap().keys().copied().collect();
    assert_eq!(told, shown, "broke converging: the store shows what no handler will ever be told");
    let expected = if note { vec!["n/bad".to_owned()] } else { Vec::new() };
    assert_eq!(*notes.lock().unwrap(), expected, "broke converging: the note of an undecodable object is lost");
    drop(stuck);
    informer.start().unwrap();
    server.put_with("n/e", r#","size":1"#);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(times.lock().unwrap().keys().copied().collect::<Vec<_>>(), [1, 2, 3, last, last + 1]);
}

#[tokio::test(start_paused = true)]
async fn stop_delivers_everything_that_was_read() {
    check_stop(false).await;
    check_stop(true).await;
}
