//! Tests shared informers over a server with scripted failures, on a clock that advances only when
//! all tasks wait.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fake::Fake;
use listwatch_client::informer::{
    DrainTimeout, Event, HandlerEnd, HandlerOptions, InformerConfig, InformerKey, NotSynced, Phase, Policy, Remaining,
    Shards, SharedInformer, SharedInformerFactory, StartError, StopReason,
};
use listwatch_client::{
    ApiResource, Json, KeepJson, Object, Problem, ReflectorConfig, ShardFallback, ShardListWatch, Stored,
};
use listwatch_meta::{ShardField, ShardSelector, Status};
use proptest::prelude::*;
use serde::Deserialize;

/// The time limit of each step on the virtual clock, which only a hang reaches.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(600);

pub(crate) fn reflector() -> ReflectorConfig {
    ReflectorConfig { check_server: false, ..ReflectorConfig::default() }
}

pub(crate) fn config(name: &str) -> InformerConfig {
    InformerConfig { name: name.to_owned(), reflector: reflector() }
}

pub(crate) fn informer(server: &Fake) -> SharedInformer {
    SharedInformer::new(server.clone(), config("things"))
}

pub(crate) fn show<S: Stored>(event: &Event<S>) -> String {
    let name = |object: &S| format!("{}@{}", object.key(), object.resource_version());
    match event {
        Event::Added { object, reason } => format!("+{} {reason:?}", name(object)),
        Event::Updated { old, new, reason } => format!("{}>{} {reason:?}", name(old), new.resource_version()),
        Event::Deleted { last, reason, .. } => format!("-{} {reason:?}", name(last)),
        Event::Quarantined { key, entry } => format!("?{key}@{}", entry.version()),
        Event::Synced => "synced".to_owned(),
        Event::Reset => "reset".to_owned(),
        Event::Stopped(why) => format!("stopped: {why}"),
    }
}

/// The events that a handler received.
pub(crate) type Events = Arc<Mutex<Vec<String>>>;

pub(crate) fn record<S: Stored>(
    informer: &SharedInformer<S>,
    options: HandlerOptions,
) -> (Events, listwatch_client::informer::Handler<S>) {
    let received = Events::default();
    let into = received.clone();
    let handler = informer.on(options, move |event| {
        into.lock().unwrap().push(show(&event));
        std::future::ready(())
    });
    (received, handler)
}

pub(crate) fn take(received: &Events) -> Vec<String> {
    std::mem::take(&mut *received.lock().unwrap())
}

/// Waits on the virtual clock until the condition is true.
async fn eventually(mut is_so: impl FnMut() -> bool) {
    let begun = tokio::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < TIMEOUT, "it never came");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Lets all tasks run, and advances the time a little.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_secs(40)).await;
}

#[tokio::test(start_paused = true)]
async fn handler_receives_the_state_then_changes_whenever_it_joins() {
    let server = Fake::new();
    server.put("n/a");
    server.put("n/b");
    let informer = informer(&server);
    let (early, handler) = record(&informer, HandlerOptions::named("early"));
    informer.start().unwrap();
    handler.wait_until_synced(TIMEOUT).await.unwrap();
    assert_eq!(take(&early), ["+n/a@1 Initial", "+n/b@2 Initial", "synced"]);
    server.put("n/a");
    server.delete("n/b");
    settle().await;
    let (late, handler) = record(&informer, HandlerOptions::named("late"));
    handler.wait_until_synced(TIMEOUT).await.unwrap();
    server.put("n/c");
    settle().await;
    assert_eq!(take(&early), ["n/a@1>3 Live", "-n/b@4 Live", "+n/c@5 Live"]);
    assert_eq!(take(&late), ["+n/a@3 Initial", "synced", "+n/c@5 Live"]);
    let mut stream = informer.stream(HandlerOptions::default());
    let first = [stream.next().await.unwrap(), stream.next().await.unwrap(), stream.next().await.unwrap()];
    assert_eq!(first.map(|event| show(&event)), ["+n/a@3 Initial", "+n/c@5 Initial", "synced"]);
    let status = informer.status();
    assert_eq!((status.phase, status.synced, status.objects), (Phase::Running, true, 2));
    assert_eq!(status.handlers.len(), 3);
    drop(stream);
    assert_eq!(informer.status().handlers.len(), 2, "a dropped stream still receives events");
}

#[tokio::test(start_paused = true)]
async fn handler_is_synced_after_it_processed_the_initial_state() {
    let server = Fake::new();
    server.put("n/a");
    server.put("n/b");
    let informer = informer(&server);
    let slow = informer.on(HandlerOptions::named("slow"), |_| tokio::time::sleep(Duration::from_secs(60)));
    let quick = informer.on(HandlerOptions::named("quick"), |_| std::future::ready(()));
    informer.start().unwrap();
    informer.wait_until_synced(TIMEOUT).await.unwrap();
    quick.wait_until_synced(Duration::from_secs(1)).await.unwrap();
    assert!(!slow.has_synced());
    let error = slow.wait_until_synced(Duration::from_secs(90)).await.unwrap_err();
    assert!(matches!(error, NotSynced::TimedOut { .. }), "{error}");
    assert!(slow.lag().age >= Duration::from_secs(90), "{:?}", slow.lag());
    slow.wait_until_synced(Duration::from_secs(31)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn slow_handler_sees_the_latest_state_and_delays_no_other_handler() {
    let server = Fake::new();
    let informer = informer(&server);
    informer.start().unwrap();
    informer.wait_until_synced(TIMEOUT).await.unwrap();
    let mut slow = informer.stream(HandlerOptions::named("slow"));
    assert_eq!(show(&slow.next().await.unwrap()), "synced");
    let (received, _quick) = record(&informer, HandlerOptions::named("quick"));
    for _ in 0..1_000 {
        server.put("n/a");
        server.put("n/b");
        tokio::task::yield_now().await;
    }
    settle().await;
    assert_eq!(take(&received).last().unwrap(), "n/b@1998>2000 Live");
    let lag = slow.lag();
    assert_eq!((lag.waiting, lag.versions), (2, Some(2000)), "{lag:?}");
    assert!(lag.age >= Duration::from_secs(39), "{lag:?}");
    assert_eq!(show(&slow.next().await.unwrap()), "+n/a@1999 Live");
    assert_eq!(show(&slow.next().await.unwrap()), "+n/b@2000 Live");
}

#[tokio::test(start_paused = true)]
async fn blocking_handler_receives_each_change_and_stops_reads() {
    let server = Fake::new();
    let informer = informer(&server);
    informer.start().unwrap();
    informer.wait_until_synced(TIMEOUT).await.unwrap();
    let policy = Policy::Block { changes_max: 4, timeout: Duration::from_secs(3600) };
    let mut stream = informer.stream(HandlerOptions::named("each").policy(policy));
    assert_eq!(show(&stream.next().await.unwrap()), "synced");
    let (received, _other) = record(&informer, HandlerOptions::named("other"));
    settle().await;
    take(&received);
    for _ in 0..50 {
        server.put("n/a");
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    }
    settle().await;
    let read = server.taken();
    settle().await;
    assert_eq!(server.taken(), read, "the server is read although a handler blocks");
    assert!(read < 25, "{read} batches were read ahead of a handler that blocks");
    for version in 1..=50_u64 {
        let event = stream.next().await.unwrap();
        let expected =
            if version == 1 { "+n/a@1 Live".to_owned() } else { format!("n/a@{}>{version} Live", version - 1) };
        assert_eq!(show(&event), expected, "broke every change");
    }
    settle().await;
    assert!(take(&received).last().unwrap().ends_with(">50 Live"));
    assert_eq!(stream.counts().block_timeouts, 0);
}

#[tokio::test(start_paused = true)]
async fn stop_does_not_wait_for_a_blocking_handler() {
    let server = Fake::new();
    let informer = informer(&server);
    informer.start().unwrap();
    informer.wait_until_synced(TIMEOUT).await.unwrap();
    let policy = Policy::Block { changes_max: 1, timeout: Duration::from_secs(36_000) };
    let stream = informer.stream(HandlerOptions::named("stuck").policy(policy));
    for _ in 0..10 {
        server.put("n/a");
    }
    settle().await;
    let begun = tokio::time::Instant::now();
    let busy = informer.stop(Duration::from_secs(2)).await.unwrap_err();
    assert_eq!(busy, DrainTimeout { handlers: vec!["stuck".to_owned()] });
    assert!(begun.elapsed() < Duration::from_secs(3));
    drop(stream);
    informer.stop(Duration::from_secs(2)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn handler_above_its_bound_is_reset_and_refilled() {
    let server = Fake::new();
    for name in ["a", "b", "c", "d"] {
        server.put(&format!("n/{name}"));
    }
    let informer = informer(&server);
    informer.start().unwrap();
    let policy = Policy::DropAndResync { objects_max: 2 };
    let mut stream = informer.stream(HandlerOptions::named("mirror").policy(policy));
    let mut received = Vec::new();
    for _ in 0..5 {
        received.push(show(&stream.next().await.unwrap()));
    }
    assert_eq!(received.last().unwrap(), "synced");
    for name in ["a", "b", "c"] {
        server.put(&format!("n/{name}"));
    }
    server.delete("n/d");
    settle().await;
    assert!(stream.lag().replaying);
    let mut received = Vec::new();
    for _ in 0..5 {
        received.push(show(&stream.next().await.unwrap()));
    }
    assert_eq!(received, ["reset", "+n/a@5 Refill", "+n/b@6 Refill", "+n/c@7 Refill", "synced"]);
    assert_eq!(stream.counts().resets, 1);
}

#[tokio::test(start_paused = true)]
async fn panic_of_a_handler_ends_that_handler_alone() {
    let server = Fake::new();
    server.put("n/a");
    let informer = informer(&server);
    let at_once = informer.on(HandlerOptions::named("at once"), |event| {
        assert!(event.key().is_none(), "cannot stand {:?}", event.key());
        std::future::ready(())
    });
    let later = informer.on(HandlerOptions::named("later"), async |_| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        panic!("fell asleep");
    });
    let (received, _fine) = record(&informer, HandlerOptions::named("fine"));
    informer.start().unwrap();
    assert!(matches!(at_once.ended().await, HandlerEnd::Panicked { message } if message.contains("cannot stand")));
    assert_eq!(later.ended().await, HandlerEnd::Panicked { message: "fell asleep".to_owned() });
    let error = later.wait_until_synced(TIMEOUT).await.unwrap_err();
    assert!(error.to_string().contains("fell asleep"), "{error}");
    server.put("n/b");
    settle().await;
    assert_eq!(take(&received), ["+n/a@1 Initial", "synced", "+n/b@2 Live"]);
    assert_eq!(informer.status().handlers.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn stopped_informer_reports_its_stop_and_resumes_at_its_version() {
    let server = Fake::new();
    server.put("n/a");
    server.put("n/b");
    let informer = informer(&server);
    let (received, handler) = record(&informer, HandlerOptions::default());
    informer.start().unwrap();
    handler.wait_until_synced(TIMEOUT).await.unwrap();
    informer.stop(TIMEOUT).await.unwrap();
    assert_eq!(take(&received).last().unwrap(), "stopped: the informer was stopped");
    assert_eq!(informer.stopped().await, StopReason::Requested);
    server.delete("n/a");
    server.put("n/b");
    server.put("n/c");
    settle().await;
    assert_eq!(take(&received), Vec::<String>::new(), "an event arrived while the informer was stopped");
    assert_eq!(informer.store().snapshot().len(), 2, "the store is not readable");
    informer.start().unwrap();
    settle().await;
    let whole_states = server.whole_states();
    assert_eq!(take(&received), ["-n/a@3 Live", "n/b@2>4 Live", "+n/c@5 Live"]);
    informer.stop(TIMEOUT).await.unwrap();
    server.delete("n/b");
    server.expire();
    informer.start().unwrap();
    settle().await;
    assert!(server.whole_states() > whole_states, "the place was gone");
    assert_eq!(take(&received), ["stopped: the informer was stopped", "-n/b@4 Relist"]);
    informer.shutdown(TIMEOUT).await.unwrap();
    assert_eq!(handler.ended().await, HandlerEnd::Removed);
    assert_eq!(informer.start(), Err(StartError::Over(StopReason::Requested)));
}

#[tokio::test(start_paused = true)]
async fn informer_stops_when_the_last_handle_is_dropped() {
    let server = Fake::new();
    server.put("n/a");
    for started in [true, false] {
        let informer = informer(&server);
        if started {
            informer.start().unwrap();
            informer.wait_until_synced(TIMEOUT).await.unwrap();
        }
        let ended = Arc::new(AtomicBool::new(false));
        let end = ended.clone();
        let handler = informer.on(HandlerOptions::default(), move |event| {
            if matches!(event, Event::Stopped(StopReason::Unused)) {
                end.store(true, Ordering::Relaxed);
            }
            std::future::ready(())
        });
        drop(informer);
        settle().await;
        assert!(!ended.load(Ordering::Relaxed), "stopped although a handler is held");
        drop(handler);
        settle().await;
        assert!(ended.load(Ordering::Relaxed), "not stopped, started: {started}");
    }
}

#[tokio::test(start_paused = true)]
async fn removed_handler_drains_or_drops_its_queue() {
    let server = Fake::new();
    let informer = informer(&server);
    informer.start().unwrap();
    informer.wait_until_synced(TIMEOUT).await.unwrap();
    for (remaining, expected) in [(Remaining::Drain, 4), (Remaining::Drop, 1)] {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let handler = informer.on(HandlerOptions::default(), move |event| {
            counted.fetch_add(usize::from(event.key().is_some()), Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(100))
        });
        handler.wait_until_synced(TIMEOUT).await.unwrap();
        let before = count.load(Ordering::Relaxed);
        for name in ["a", "b", "c", "d"] {
            server.put(&format!("n/{name}"));
        }
        tokio::time::sleep(Duration::from_secs(150)).await;
        assert_eq!(handler.remove(remaining).await, HandlerEnd::Removed);
        assert_eq!(count.load(Ordering::Relaxed) - before, expected, "{remaining:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn informer_reports_why_it_is_not_synced() {
    let server = Fake::new();
    let forbidden = Status::failure(403, "Forbidden", "things is forbidden: no rights");
    server.refuse(Some(Problem::refused(forbidden)));
    let informer = informer(&server);
    assert_eq!(informer.status().why_not_synced().unwrap(), "it was not started");
    informer.start().unwrap();
    let error = informer.wait_until_synced(Duration::from_secs(20)).await.unwrap_err();
    assert!(error.to_string().contains("no rights") && error.to_string().contains("the next one comes in"), "{error}");
    assert!(informer.status().why_not_synced().unwrap().contains("no rights"));
    server.refuse(None);
    informer.wait_until_synced(TIMEOUT).await.unwrap();
    assert_eq!(informer.status().why_not_synced(), None);
    informer.stop(TIMEOUT).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn informer_reports_a_panic_of_its_task() {
    let server = Fake::new();
    server.put("n/a");
    let informer = informer(&server);
    let (received, handler) = record(&informer, HandlerOptions::default());
    informer.start().unwrap();
    handler.wait_until_synced(TIMEOUT).await.unwrap();
    server.panic();
    server.cut();
    let StopReason::Panicked { message } = informer.stopped().await else { panic!("not the panic") };
    assert!(message.contains("this list watch panics"), "{message}");
    assert_eq!(handler.ended().await, HandlerEnd::Removed);
    assert!(take(&received).last().unwrap().starts_with("stopped: the informer's task panicked"));
    assert!(matches!(informer.start(), Err(StartError::Over(StopReason::Panicked { .. }))));
    assert!(informer.status().synced && informer.store().snapshot().len() == 1, "the copy is not readable");
}

#[tokio::test(start_paused = true)]
async fn informer_converges_after_half_open_sockets_refusals_and_410() {
    let server = Fake::new();
    server.put("n/a");
    let informer = informer(&server);
    let (received, handler) = record(&informer, HandlerOptions::default());
    informer.start().unwrap();
    handler.wait_until_synced(TIMEOUT).await.unwrap();
    server.freeze();
    server.put("n/b");
    // The idle limit closes a watch on a half-open socket.
    eventually(|| received.lock().unwrap().len() == 3).await;
    server.refuse(Some(Problem::refused(Status::too_many_requests("busy", 1))));
    server.cut();
    server.put("n/c");
    settle().await;
    server.refuse(None);
    eventually(|| received.lock().unwrap().len() == 4).await;
    server.delete("n/a");
    server.expire();
    eventually(|| received.lock().unwrap().len() == 5).await;
    let received = take(&received);
    assert_eq!(received[..2], ["+n/a@1 Initial", "synced"]);
    assert!(received[4].starts_with("-n/a@"), "{received:?}");
    assert_eq!(informer.store().snapshot().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn namespaces_are_added_and_removed_while_running() {
    let server = Fake::new();
    for key in ["a/x", "b/x", "c/x"] {
        server.put(key);
    }
    let of = server.clone();
    let names = ["a".to_owned(), "b".to_owned()];
    let informer =
        SharedInformer::over_namespaces(names, move |name: &str| of.namespace(name), config("things"), KeepJson);
    let (received, handler) = record(&informer, HandlerOptions::default());
    informer.start().unwrap();
    handler.wait_until_synced(TIMEOUT).await.unwrap();
    let mut begun = take(&received);
    begun.sort();
    assert_eq!(begun, ["+a/x@1 Initial", "+b/x@2 Initial", "synced"]);
    assert!(informer.store().snapshot().is_synced());
    assert!(informer.add_part("c").await && !informer.add_part("c").await);
    settle().await;
    assert_eq!(take(&received), ["+c/x@3 Initial"]);
    assert!(informer.remove_part("b").await && !informer.remove_part("b").await);
    server.put("b/x");
    server.put("c/x");
    settle().await;
    assert_eq!(take(&received), ["-b/x@2 Unwatched", "c/x@3>5 Live"]);
    // A removed part is added again, also while the informer is stopped.
    informer.stop(TIMEOUT).await.unwrap();
    assert!(informer.add_part("b").await && informer.remove_part("a").await);
    informer.start().unwrap();
    settle().await;
    assert_eq!(take(&received), ["stopped: the informer was stopped", "-a/x@1 Unwatched", "+b/x@4 Initial"]);
    let keys: Vec<String> = informer.store().snapshot().iter().map(|object| object.key().to_string()).collect();
    assert_eq!(keys, ["b/x", "c/x"]);
    let parts: Vec<String> = informer.status().parts.into_iter().map(|part| part.name).collect();
    assert_eq!(parts, ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn shards_merge_into_one_state_when_a_name_changes_its_shard() {
    for known in [true, false] {
        let server = Fake::new();
        if known {
            server.know_shards();
        }
        for n in 0..40 {
            server.put(&format!("n/x{n}"));
        }
        let of = server.clone();
        let parts = (0..4).map(|index| ShardSelector::part(ShardField::Uid, index, 4).unwrap().to_string());
        let open = move |name: &str| ShardListWatch::new(of.clone(), ShardSelector::parse(name).unwrap());
        let informer = SharedInformer::over_shards(parts, open, config("things"), KeepJson);
        let mut knows = BTreeMap::new();
        let mut stream = informer.stream(HandlerOptions::default());
        informer.start().unwrap();
        informer.wait_until_synced(TIMEOUT).await.unwrap();
        for round in 0..30 {
            for n in 0..40 {
                match (n + round) % 3 {
                    0 => server.delete(&format!("n/x{n}")),
                    _ => drop(server.put(&format!("n/x{n}"))),
                }
            }
            if round % 7 == 0 {
                server.expire();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        settle().await;
        loop {
            match tokio::time::timeout(Duration::from_secs(1), stream.next()).await {
                Ok(Some(Event::Added { object, .. })) => {
                    assert!(knows.insert(object.key().to_string(), object).is_none(), "broke legal history");
                }
                Ok(Some(Event::Updated { old, new, .. })) => {
                    let before = knows.insert(new.key().to_string(), new.clone());
                    assert!(before.is_some_and(|before| before.is_same(&old)) && old.uid() == new.uid());
                }
                Ok(Some(Event::Deleted { last, .. })) => {
                    let before = knows.remove(last.key().as_str());
                    assert!(before.is_some_and(|before| before.uid() == last.uid()), "broke legal history");
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        let there: Vec<_> = server.objects().into_iter().collect();
        let of = |object: &Object| {
            (object.key().to_string(), (object.uid().into_owned(), object.resource_version().into_owned()))
        };
        assert_eq!(knows.values().map(of).collect::<Vec<_>>(), there, "broke converging");
        assert_eq!(informer.store().snapshot().iter().map(of).collect::<Vec<_>>(), there, "broke converging");
    }
}

#[tokio::test(start_paused = true)]
async fn server_that_ignores_the_shard_selector_is_detected() {
    let server = Fake::new();
    for n in 0..20 {
        server.put(&format!("n/x{n}"));
    }
    let selector = ShardSelector::part(ShardField::Uid, 0, 2).unwrap();
    for known in [false, true] {
        if known {
            server.know_shards();
        }
        let shard = ShardListWatch::new(server.clone(), selector.clone());
        // A list names its shards; a watch does not.
        let config = |name: &str| InformerConfig {
            name: name.to_owned(),
            reflector: ReflectorConfig { watch_list: false, ..reflector() },
        };
        let informer = SharedInformer::new(shard.clone(), config("shard"));
        informer.start().unwrap();
        informer.wait_until_synced(TIMEOUT).await.unwrap();
        assert_eq!(shard.is_honored(), Some(known));
        let snapshot = informer.store().snapshot();
        assert!(snapshot.iter().all(|object| selector.holds(&object.uid())) && snapshot.len() < 20);
        let strict = ShardListWatch::new(server.clone(), selector.clone()).fallback(ShardFallback::Refuse);
        let informer = SharedInformer::new(strict, config("strict"));
        informer.start().unwrap();
        let synced = informer.wait_until_synced(Duration::from_secs(60)).await;
        match synced {
            Ok(()) => assert!(known),
            Err(error) => assert!(!known && error.to_string().contains("ShardedListAndWatch"), "{error}"),
        }
    }
}

#[derive(Debug, Deserialize)]
struct Widget {
    size: u32,
}

#[tokio::test(start_paused = true)]
async fn undecodable_object_is_reported_and_others_are_delivered() {
    let server = Fake::new();
    server.put_with("n/a", r#","size":1"#);
    server.put_with("n/b", r#","size":"large""#);
    let informer = SharedInformer::with_decoder(server.clone(), config("things"), Json::<Widget>::new());
    let (received, handler) = record(&informer, HandlerOptions::default());
    informer.start().unwrap();
    handler.wait_until_synced(TIMEOUT).await.unwrap();
    assert_eq!(take(&received), ["?n/b@2", "+n/a@1 Initial", "synced"]);
    server.put_with("n/a", r#","size":-1"#);
    settle().await;
    server.put_with("n/b", r#","size":2"#);
    server.put_with("n/a", r#","size":3"#);
    settle().await;
    assert_eq!(take(&received), ["?n/a@3", "+n/b@4 Live", "n/a@1>5 Live"]);
    let sizes: Vec<u32> = informer.store().snapshot().iter().map(|thing| thing.size).collect();
    assert_eq!(sizes, [3, 2]);
    assert_eq!(informer.status().parts[0].quarantined, 2);
}

#[tokio::test(start_paused = true)]
async fn index_can_be_added_at_any_time() {
    let server = Fake::new();
    server.put("n/a");
    server.put("m/a");
    let informer = informer(&server);
    let by_name = informer.add_index(|object: &Object| [object.name().to_owned()]).await.unwrap();
    informer.start().unwrap();
    informer.wait_until_synced(TIMEOUT).await.unwrap();
    let by_namespace = informer.add_index(|object: &Object| [object.namespace().to_owned()]).await.unwrap();
    server.put("n/b");
    settle().await;
    let snapshot = informer.store().snapshot();
    assert_eq!(snapshot.by_index(&by_name, &"a".to_owned()).count(), 2);
    assert_eq!(snapshot.by_index(&by_namespace, &"n".to_owned()).count(), 2);
}

pub(crate) fn things() -> ApiResource {
    ApiResource { version: "v1".to_owned(), plural: "things".to_owned(), namespaced: true, ..ApiResource::default() }
}

pub(crate) fn factory(server: &Fake) -> SharedInformerFactory {
    let server = server.clone();
    SharedInformerFactory::with_list_watch(reflector(), move |_, scope| match scope {
        listwatch_client::Scope::Cluster => Arc::new(server.clone()),
        listwatch_client::Scope::Namespace(namespace) => Arc::new(server.namespace(namespace)),
    })
}

#[tokio::test(start_paused = true)]
async fn factory_shares_informers_while_they_are_held() {
    let server = Fake::new();
    for key in ["a/x", "b/x", "c/x"] {
        server.put_with(key, r#","size":1"#);
    }
    let factory = factory(&server);
    let key = InformerKey::new(things());
    let first = factory.informer(&key);
    let second = factory.informer(&key);
    let typed = factory.typed::<Widget>(&key);
    let some = factory.informer(&key.clone().namespaces(["a", "c"]));
    let split = factory.informer(&key.clone().shards(Shards::Split(3)));
    let mine = ShardSelector::part(ShardField::Uid, 1, 2).unwrap();
    let part = factory.informer(&key.clone().shards(Shards::Selected(mine)));
    factory.start().unwrap();
    factory.wait_until_synced(TIMEOUT).await.unwrap();
    assert!(second.has_synced(), "not the same informer");
    assert_eq!(factory.statuses().len(), 5);
    let sizes = |informer: &SharedInformer| informer.store().snapshot().len();
    assert_eq!((sizes(&first), sizes(&some), sizes(&split)), (3, 2, 3));
    assert!(sizes(&part) < 3);
    assert_eq!(typed.store().get("a/x").unwrap().size, 1);
    let metrics = factory.metrics();
    assert!(metrics.contains("listwatch_informer_objects{informer=\"things\"} 3\n"), "{metrics}");
    // One user stops and starts the informer; the others are not affected.
    some.stop(TIMEOUT).await.unwrap();
    server.put("c/y");
    settle().await;
    assert_eq!((sizes(&first), sizes(&some)), (4, 2));
    factory.start().unwrap();
    settle().await;
    assert_eq!(sizes(&some), 3);
    // Dropping the last handle stops the informer; the next request gets a new one.
    let stopped = tokio::spawn(async move {
        let mut stream = first.stream(HandlerOptions::default());
        drop((first, second));
        while let Some(event) = stream.next().await {
            if matches!(event, Event::Synced) {
                break;
            }
        }
    });
    stopped.await.unwrap();
    settle().await;
    assert_eq!(factory.statuses().len(), 4);
    let fresh = factory.informer(&key);
    assert!(!fresh.has_synced());
    server.refuse(Some(Problem::refused(Status::failure(403, "Forbidden", "no rights"))));
    factory.start().unwrap();
    let error = factory.wait_until_synced(Duration::from_secs(5)).await.unwrap_err();
    assert_eq!(error.missing.len(), 1);
    assert!(error.to_string().starts_with("things: not synced") && error.to_string().contains("no rights"), "{error}");
    factory.shutdown(TIMEOUT).await.unwrap();
    assert_eq!(factory.statuses().len(), 0, "what was shut down is handed out again");
}

#[tokio::test(start_paused = true)]
async fn failing_resource_delays_no_other_informer() {
    let (well, broken) = (Fake::new(), Fake::new());
    well.put("n/a");
    broken.refuse(Some(Problem::refused(Status::failure(500, "InternalError", "broken"))));
    let both = [well.clone(), broken.clone()];
    let factory = SharedInformerFactory::with_list_watch(reflector(), move |key, _| {
        Arc::new(both[usize::from(key.resource.plural == "broken")].clone())
    });
    let of_the_broken = factory.informer(&InformerKey::new(ApiResource { plural: "broken".to_owned(), ..things() }));
    let of_the_other = factory.informer(&InformerKey::new(things()));
    factory.start().unwrap();
    // The failing informer is in a long back-off by now; the other one took no time.
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(of_the_other.has_synced(), "a resource waits for another one that fails");
    settle().await;
    well.put("n/a");
    tokio::time::sleep(Duration::from_millis(1)).await;
    let version = of_the_other.store().snapshot().get("n/a").map(|object| object.resource_version().into_owned());
    assert_eq!(version.as_deref(), Some("2"), "an event waits for another resource's back-off");
    assert!(!of_the_broken.has_synced());
}

#[tokio::test(start_paused = true)]
async fn resync_period_is_per_handler() {
    let server = Fake::new();
    for name in ["a", "b", "c"] {
        server.put(&format!("n/{name}"));
    }
    let informer = informer(&server);
    let (often, handler) = record(&informer, HandlerOptions::default().resync(Duration::from_secs(30)));
    let (never, _other) = record(&informer, HandlerOptions::default());
    informer.start().unwrap();
    handler.wait_until_synced(TIMEOUT).await.unwrap();
    take(&often);
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!(take(&often), ["n/a@1>1 Resync", "n/b@2>2 Resync", "n/c@3>3 Resync"]);
    settle().await;
    assert!(!take(&never).iter().any(|event| event.ends_with("Resync")));
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8),
    Delete(u8),
    Cut,
    Expire,
    Sleep(u16),
    Refuse(bool),
    Restart,
    /// The state of a WatchList lags by this number of versions from now on.
    Lag(u8),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_u8..9).prop_map(Step::Put),
        4 => (0_u8..9).prop_map(Step::Delete),
        1 => Just(Step::Cut),
        1 => Just(Step::Expire),
        4 => (0_u16..5_000).prop_map(Step::Sleep),
        1 => any::<bool>().prop_map(Step::Refuse),
        1 => Just(Step::Restart),
        1 => (0_u8..6).prop_map(Step::Lag),
    ]
}

/// A slow handler that checks that its events are a legal history.
fn careful(informer: &SharedInformer, policy: Policy, millis: u64) -> Arc<Mutex<BTreeMap<String, (String, String)>>> {
    let knows = Arc::new(Mutex::new(BTreeMap::new()));
    let into = knows.clone();
    let handler = informer.on(HandlerOptions::default().policy(policy).resync(Duration::from_secs(7)), move |event| {
        let of = |object: &Object| (object.uid().into_owned(), object.resource_version().into_owned());
        {
            let mut knows = into.lock().unwrap();
            match &event {
                Event::Added { object, .. } => {
                    assert!(knows.insert(object.key().to_string(), of(object)).is_none(), "broke legal history");
                }
                Event::Updated { old, new, .. } => {
                    assert_eq!(knows.insert(new.key().to_string(), of(new)), Some(of(old)), "broke legal history");
                }
                Event::Deleted { last, .. } => {
                    let before = knows.remove(last.key().as_str());
                    assert!(before.is_some_and(|(uid, _)| uid == last.uid()), "broke legal history");
                }
                Event::Reset => knows.clear(),
                _ => {}
            }
        }
        tokio::time::sleep(Duration::from_millis(millis))
    });
    // The test holds the informer, so the handle can be dropped.
    drop(handler);
    knows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn every_handler_converges_after_faults_stop(
        steps in prop::collection::vec(any_step(), 0..60),
        merged in any::<bool>(),
        watch_list in prop::bool::weighted(0.7),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let server = Fake::new();
            let of = server.clone();
            let config = InformerConfig {
                name: "things".to_owned(),
                reflector: ReflectorConfig { watch_list, ..reflector() },
            };
            let informer = if merged {
                let names = (0..3).map(|n| format!("n{n}"));
                SharedInformer::over_namespaces(names, move |name: &str| of.namespace(name), config, KeepJson)
            } else {
                SharedInformer::new(server.clone(), config)
            };
            let block = Policy::Block { changes_max: 2, timeout: Duration::from_secs(3) };
            let mut handlers = vec![
                careful(&informer, Policy::Coalesce, 0),
                careful(&informer, Policy::Coalesce, 1_300),
                careful(&informer, block, 170),
                careful(&informer, Policy::DropAndResync { objects_max: 2 }, 400),
            ];
            informer.start().unwrap();
            let key = |n: u8| format!("n{}/o{n}", n % 3);
            for (at, step) in steps.iter().enumerate() {
                match step {
                    Step::Put(n) => drop(server.put(&key(*n))),
                    Step::Delete(n) => server.delete(&key(*n)),
                    Step::Cut => server.cut(),
                    Step::Expire => server.expire(),
                    Step::Lag(versions) => server.lag(u64::from(*versions)),
                    Step::Sleep(millis) => tokio::time::sleep(Duration::from_millis(u64::from(*millis))).await,
                    Step::Refuse(refuse) => {
                        let busy = Problem::refused(Status::too_many_requests("busy", 1));
                        server.refuse(refuse.then_some(busy));
                    }
                    Step::Restart => {
                        // A handler may still be busy after the start.
                        let _ = informer.stop(Duration::ZERO).await;
                        informer.start().unwrap();
                    }
                }
                if at == 20 {
                    handlers.push(careful(&informer, Policy::Coalesce, 90));
                }
            }
            server.refuse(None);
            server.cut();
            tokio::time::sleep(Duration::from_secs(1_000)).await;
            let there = server.objects();
            for handler in &handlers {
                assert_eq!(*handler.lock().unwrap(), there, "broke converging");
            }
            assert_eq!(informer.status().handlers.len(), handlers.len(), "a handler panicked");
            assert!(informer.status().handlers.iter().all(|handler| handler.synced), "broke synced when it is");
        });
    }
}
