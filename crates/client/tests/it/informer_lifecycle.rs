//! Tests of the promises of informer handles: start, stop and restart, waits, handlers that join and
//! end, parts, indexes, and the informers of a factory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use listwatch_client::informer::{
    DrainTimeout, EventStream, HandlerEnd, HandlerOptions, InformerConfig, InformerKey, NotSynced, Policy, Shards,
    SharedInformer, StartError, StopReason,
};
use listwatch_client::{
    ApiResource, Json, KeepJson, ListStream, ListWatch, Notice, Object, Problem, Reflection, ReflectorConfig,
    ReflectorState, WatchStream,
};
use listwatch_meta::{ListOptions, Status};
use serde::Deserialize;
use tokio::time::Instant;

use crate::fake::Fake;
use crate::informer::{TIMEOUT, config, factory, informer, record, reflector, settle, show, take, things};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// An informer over the namespaces `a` and `b` of these servers, as JSON.
fn two_namespaces(a: &Fake, b: &Fake) -> SharedInformer {
    let (a, b) = (a.namespace("a"), b.namespace("b"));
    let open = move |name: &str| if name == "a" { a.clone() } else { b.clone() };
    SharedInformer::over_namespaces(["a".to_owned(), "b".to_owned()], open, config("things"), KeepJson)
}

/// The next event of a stream, or `nothing` after a second.
async fn next(stream: &mut EventStream) -> String {
    match tokio::time::timeout(seconds(1), stream.next()).await {
        Ok(Some(event)) => show(&event),
        Ok(None) => "over".to_owned(),
        Err(_) => "nothing".to_owned(),
    }
}

fn forbidden() -> Problem {
    Problem::refused(Status::failure(403, "Forbidden", "no rights"))
}

// ===== names =====

#[tokio::test(start_paused = true)]
async fn informers_and_handlers_have_their_given_names_or_numbers() {
    let informer = SharedInformer::new(Fake::new(), InformerConfig::named("pods"));
    assert_eq!((informer.name(), informer.status().name.as_str()), ("pods", "pods"));
    let names = ["", "print", ""]
        .map(|name| informer.on(HandlerOptions::named(name), |_| std::future::ready(())).name().to_owned());
    assert_eq!(names, ["1", "print", "3"]);
    let status = informer.status();
    assert_eq!(status.handlers.iter().map(|handler| handler.name.as_str()).collect::<Vec<_>>(), names);
}

// ===== handlers =====

#[tokio::test(start_paused = true)]
async fn handler_is_synced_when_it_takes_synced_even_if_more_events_wait() {
    let server = Fake::new();
    server.put("n/a");
    let informer = informer(&server);
    let handler = informer.on(HandlerOptions::default(), |_| tokio::time::sleep(seconds(10)));
    let begun = Instant::now();
    informer.start().unwrap();
    tokio::time::sleep(seconds(1)).await;
    // The handler processes the object and then the first update. `Synced` precedes the second one.
    server.put("n/a");
    tokio::time::sleep(seconds(10)).await;
    server.put("n/a");
    assert!(!handler.has_synced());
    handler.wait_until_synced(TIMEOUT).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 20, "a handler that took `Synced` was still waited for");
    assert!(handler.has_synced());
    assert_eq!(handler.counts().delivered, 3);
    assert_eq!(handler.lag().waiting, 1);
}

#[tokio::test(start_paused = true)]
async fn event_stream_implements_stream() {
    let server = Fake::new();
    server.put("n/a");
    let informer = informer(&server);
    let stream = informer.stream(HandlerOptions::default());
    informer.start().unwrap();
    informer.wait_until_synced(TIMEOUT).await.unwrap();
    informer.shutdown(Duration::ZERO).await.unwrap_err();
    let events: Vec<String> = stream.map(|event| show(&event)).collect().await;
    assert_eq!(events, ["+n/a@1 Initial", "synced", "stopped: the informer was stopped"]);
}

#[test]
fn end_of_the_runtime_ends_the_informer_and_its_handlers() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let server = Fake::new();
    server.put("n/a");
    let first = runtime();
    let (informer, handler) = first.block_on(async {
        let informer = informer(&server);
        let (_, handler) = record(&informer, HandlerOptions::default());
        informer.start().unwrap();
        handler.wait_until_synced(TIMEOUT).await.unwrap();
        (informer, handler)
    });
    drop(first);
    runtime().block_on(async {
        let ended = tokio::time::timeout(TIMEOUT, handler.ended()).await;
        assert_eq!(ended, Ok(HandlerEnd::Aborted), "the end of a handler's task is not reported");
        let stopped = tokio::time::timeout(TIMEOUT, informer.stopped()).await;
        assert_eq!(stopped, Ok(StopReason::Aborted), "the end of an informer's task is not reported");
        assert_eq!(informer.start(), Err(StartError::Over(StopReason::Aborted)));
    });
}

// ===== stop and restart =====

#[tokio::test(start_paused = true)]
async fn stop_and_shutdown_wait_for_busy_handlers_up_to_their_timeout() {
    // The reader takes `Stopped` five seconds after the stop, and then no further event.
    async fn check(timeout: Duration, whole_factory: bool) -> (Result<(), DrainTimeout>, u64) {
        let factory = factory(&Fake::new());
        let informer = factory.informer(&InformerKey::new(things()));
        let mut stream = informer.stream(HandlerOptions::named("reader"));
        informer.start().unwrap();
        assert_eq!(next(&mut stream).await, "synced");
        let reader = tokio::spawn(async move {
            tokio::time::sleep(seconds(5)).await;
            assert_eq!(next(&mut stream).await, "stopped: the informer was stopped");
            tokio::time::sleep(TIMEOUT).await;
        });
        let begun = Instant::now();
        let stopped = if whole_factory { factory.shutdown(timeout).await } else { informer.stop(timeout).await };
        let waited = begun.elapsed().as_secs();
        reader.await.unwrap();
        (stopped, waited)
    }
    let busy = Err(DrainTimeout { handlers: vec!["reader".to_owned()] });
    for whole_factory in [false, true] {
        assert_eq!(check(seconds(60), whole_factory).await, (Ok(()), 5), "whole factory: {whole_factory}");
        assert_eq!(check(seconds(3), whole_factory).await, (busy.clone(), 3), "whole factory: {whole_factory}");
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_reports_the_stop_once() {
    for (started, stopped_before) in [(true, false), (true, true), (false, false)] {
        let informer = informer(&Fake::new());
        let (received, handler) = record(&informer, HandlerOptions::default());
        if started {
            informer.start().unwrap();
            handler.wait_until_synced(TIMEOUT).await.unwrap();
        }
        if stopped_before {
            informer.stop(TIMEOUT).await.unwrap();
        }
        informer.shutdown(TIMEOUT).await.unwrap();
        assert_eq!(handler.ended().await, HandlerEnd::Removed);
        let mut expected = vec!["stopped: the informer was stopped"];
        if started {
            expected.insert(0, "synced");
        }
        assert_eq!(take(&received), expected, "started: {started}, stopped before: {stopped_before}");
        assert_eq!(informer.start(), Err(StartError::Over(StopReason::Requested)));
    }
}

#[tokio::test(start_paused = true)]
async fn handler_that_joins_after_a_restart_receives_no_stopped_event() {
    let server = Fake::new();
    server.put("n/a");
    let informer = informer(&server);
    let mut early = informer.stream(HandlerOptions::named("early"));
    informer.start().unwrap();
    informer.wait_until_synced(TIMEOUT).await.unwrap();
    informer.stop(Duration::ZERO).await.unwrap_err();
    informer.start().unwrap();
    let mut late = informer.stream(HandlerOptions::named("late"));
    for stream in [&mut early, &mut late] {
        let events = [next(stream).await, next(stream).await, next(stream).await];
        assert_eq!(events, ["+n/a@1 Initial", "synced", "nothing"]);
    }
}

#[tokio::test(start_paused = true)]
async fn informer_without_handles_stops_while_a_handler_blocks() {
    let server = Fake::new();
    let informer = informer(&server);
    let (received, healthy) = record(&informer, HandlerOptions::named("healthy"));
    let policy = Policy::Block { changes_max: 1, timeout: seconds(3_600) };
    // This callback never returns.
    drop(informer.on(HandlerOptions::named("stuck").policy(policy), |_| std::future::pending()));
    informer.start().unwrap();
    healthy.wait_until_synced(TIMEOUT).await.unwrap();
    for name in ["a", "b", "c"] {
        server.put(&format!("n/{name}"));
        tokio::time::sleep(seconds(1)).await;
    }
    assert_eq!(take(&received), ["synced", "+n/a@1 Live", "+n/b@2 Live"], "this test needs an informer that waits");
    drop((informer, healthy));
    tokio::time::sleep(seconds(1)).await;
    let received = take(&received);
    assert_eq!(received.last().unwrap(), "stopped: the last handle of the informer was dropped");
}

#[tokio::test(start_paused = true)]
async fn synced_part_stays_synced_over_a_stop_with_undelivered_changes() {
    let (server, broken) = (Fake::new(), Fake::new());
    server.put("a/w");
    broken.refuse(Some(forbidden()));
    let informer = two_namespaces(&server, &broken);
    let policy = Policy::Block { changes_max: 1, timeout: seconds(36_000) };
    let mut stream = informer.stream(HandlerOptions::named("stuck").policy(policy));
    informer.start().unwrap();
    settle().await;
    assert_eq!([next(&mut stream).await, next(&mut stream).await], ["+a/w@1 Initial", "nothing"]);
    // The first change waits in the stream, the informer waits with the second one, and the third
    // one is in its channel.
    for name in ["a/x", "a/y", "a/z"] {
        server.put(name);
        tokio::time::sleep(seconds(1)).await;
    }
    informer.stop(seconds(1)).await.unwrap_err();
    broken.refuse(None);
    informer.start().unwrap();
    informer.wait_until_synced(TIMEOUT).await.expect("a part forgot that it is synced");
    let mut received = Vec::new();
    while received.last().is_none_or(|last| last != "nothing") {
        received.push(next(&mut stream).await);
    }
    assert_eq!(received, ["+a/x@2 Live", "+a/y@3 Live", "+a/z@4 Live", "synced", "nothing"]);
}

// ===== waits =====

#[tokio::test(start_paused = true)]
async fn wait_until_synced_on_a_stopped_informer_reports_whether_it_was_synced() {
    let server = Fake::new();
    let informers = [informer(&server), informer(&server)];
    informers[0].start().unwrap();
    informers[0].wait_until_synced(TIMEOUT).await.unwrap();
    server.refuse(Some(forbidden()));
    informers[1].start().unwrap();
    tokio::time::sleep(seconds(1)).await;
    for informer in &informers {
        informer.stop(TIMEOUT).await.unwrap();
    }
    assert_eq!(informers[0].wait_until_synced(TIMEOUT).await, Ok(()), "the store has the initial state");
    assert_eq!(informers[1].wait_until_synced(TIMEOUT).await, Err(NotSynced::Stopped(StopReason::Requested)));
}

/// A server that refuses the first request and answers no later one.
#[derive(Default)]
struct RefusesOnce(AtomicBool);

impl RefusesOnce {
    async fn answer<T>(&self) -> Result<T, Problem> {
        if self.0.swap(true, Ordering::Relaxed) { std::future::pending().await } else { Err(forbidden()) }
    }
}

#[async_trait]
impl ListWatch for RefusesOnce {
    async fn list(&self, _: ListOptions) -> Result<ListStream, Problem> {
        self.answer().await
    }

    async fn watch(&self, _: ListOptions) -> Result<WatchStream, Problem> {
        self.answer().await
    }
}

#[tokio::test(start_paused = true)]
async fn failed_wait_names_the_last_problem_once() {
    let reflector = ReflectorConfig { watch_list: false, ..reflector() };
    let informer = SharedInformer::new(RefusesOnce::default(), InformerConfig { reflector, ..config("things") });
    informer.start().unwrap();
    // The backoff names its problem.
    let error = informer.wait_until_synced(Duration::from_millis(10)).await.unwrap_err().to_string();
    assert!(error.contains("the next one comes in"), "{error}");
    assert_eq!(error.matches("no rights").count(), 1, "{error}");
    // The state of the second attempt does not.
    let error = informer.wait_until_synced(seconds(50)).await.unwrap_err().to_string();
    assert!(!error.contains("the next one comes in"), "{error}");
    assert!(error.contains("(before: the server refused: no rights"), "{error}");
}

// ===== parts =====

#[tokio::test(start_paused = true)]
async fn merged_store_has_the_version_that_every_part_has_reached() {
    let server = Fake::new();
    server.put("a/x");
    server.put("b/x");
    let informer = two_namespaces(&server, &server);
    informer.start().unwrap();
    informer.wait_until_synced(TIMEOUT).await.unwrap();
    assert_eq!(informer.status().version, "2");
    server.put("a/x");
    settle().await;
    assert_eq!(informer.status().version, "2", "one part has not reached the version of the other one");
    server.put("b/x");
    let reached = informer.store().wait_for_version("3", seconds(10)).await.unwrap();
    assert_eq!(reached.version(), "3");
}

#[tokio::test(start_paused = true)]
async fn removed_part_does_not_end_the_wait_for_a_blocking_handler() {
    let server = Fake::new();
    server.put("a/x");
    server.put("b/x");
    let informer = two_namespaces(&server, &server);
    let policy = Policy::Block { changes_max: 8, timeout: seconds(60) };
    let mut stream = informer.stream(HandlerOptions::default().policy(policy));
    informer.start().unwrap();
    informer.wait_until_synced(TIMEOUT).await.unwrap();
    let events = [next(&mut stream).await, next(&mut stream).await, next(&mut stream).await];
    assert_eq!(events, ["+a/x@1 Initial", "+b/x@2 Initial", "synced"]);
    assert!(informer.remove_part("b").await);
    server.put("a/x");
    server.put("a/x");
    settle().await;
    let events = [next(&mut stream).await, next(&mut stream).await, next(&mut stream).await];
    assert_eq!(events, ["-b/x@2 Unwatched", "a/x@1>3 Live", "a/x@3>4 Live"], "a change is missing");
    assert_eq!(stream.counts().block_timeouts, 0, "a handler with room was given up");
}

#[derive(Debug, Deserialize)]
struct Widget {
    #[expect(dead_code, reason = "a wrong type is what counts")]
    size: u32,
}

#[tokio::test(start_paused = true)]
async fn undecodable_object_of_an_otherwise_empty_merged_state_is_reported() {
    let server = Fake::new();
    server.put_with("a/x", r#","size":"large""#);
    let of = server.clone();
    let informer = SharedInformer::over_namespaces(
        ["a".to_owned(), "b".to_owned()],
        move |name: &str| of.namespace(name),
        config("things"),
        Json::<Widget>::new(),
    );
    let (received, handler) = record(&informer, HandlerOptions::default());
    informer.start().unwrap();
    handler.wait_until_synced(TIMEOUT).await.unwrap();
    assert_eq!(take(&received), ["?a/x@1", "synced"]);
    assert_eq!(informer.store().snapshot().quarantine().count(), 1);
}

/// A quarantined object holds its bytes, so a name that is gone must not stay.
#[tokio::test(start_paused = true)]
async fn merged_quarantine_holds_only_objects_that_a_part_has_in_quarantine() {
    let server = Fake::new();
    let of = server.clone();
    let open = move |name: &str| of.namespace(name);
    let names = ["a".to_owned(), "b".to_owned()];
    let informer = SharedInformer::over_namespaces(names, open, config("things"), Json::<Widget>::new());
    let set_aside = || informer.store().snapshot().quarantine().map(|(key, _)| key.to_string()).collect::<Vec<_>>();
    informer.start().unwrap();
    informer.wait_until_synced(TIMEOUT).await.unwrap();
    for name in ["a/x", "a/y", "b/x", "b/y"] {
        server.put_with(name, r#","size":"large""#);
    }
    settle().await;
    assert_eq!(set_aside(), ["a/x", "a/y", "b/x", "b/y"]);
    // A deletion of an object that was only ever quarantined is no change.
    server.delete("a/x");
    tokio::time::sleep(seconds(3)).await;
    assert_eq!(set_aside(), ["a/y", "b/x", "b/y"], "a deleted object stays in quarantine");
    // A relist does not find the object.
    server.refuse(Some(forbidden()));
    server.cut();
    tokio::time::sleep(seconds(60)).await;
    server.delete("b/x");
    server.expire();
    server.refuse(None);
    tokio::time::sleep(seconds(60)).await;
    assert_eq!(set_aside(), ["a/y", "b/y"], "an object that a relist did not find stays in quarantine");
    assert!(informer.remove_part("b").await);
    assert_eq!(set_aside(), ["a/y"], "an object of a removed namespace stays in quarantine");
    informer.stop(TIMEOUT).await.unwrap();
    assert!(informer.remove_part("a").await);
    assert_eq!(set_aside(), [""; 0], "an object of a removed namespace stays in quarantine");
}

#[tokio::test(start_paused = true)]
async fn parts_and_indexes_can_be_changed_during_a_stop() {
    let server = Fake::new();
    for name in ["a/x", "b/x", "c/x"] {
        server.put(name);
    }
    let of = server.clone();
    let names = ["a".to_owned(), "b".to_owned()];
    let informer = SharedInformer::over_namespaces(names, move |name| of.namespace(name), config("things"), KeepJson);
    informer.start().unwrap();
    informer.wait_until_synced(TIMEOUT).await.unwrap();
    // The stop precedes the commands, and they begin before its end.
    let (stopped, added, removed, index) = tokio::join!(
        informer.stop(TIMEOUT),
        informer.add_part("c"),
        informer.remove_part("b"),
        informer.add_index(|object: &Object| [object.namespace().to_owned()]),
    );
    assert_eq!((stopped, added, removed), (Ok(()), true, true), "a stop makes a command fail");
    let index = index.expect("an informer that stopped can be started again");
    informer.start().unwrap();
    settle().await;
    let namespaces: Vec<_> = informer.store().snapshot().iter().map(|object| object.namespace().to_owned()).collect();
    assert_eq!(namespaces, ["a", "c"]);
    assert_eq!(informer.store().snapshot().by_index(&index, &"c".to_owned()).count(), 1);
    informer.shutdown(TIMEOUT).await.unwrap();
    assert!(!informer.add_part("e").await, "an informer that has ended takes no part");
    assert!(informer.add_index(|_: &Object| [0]).await.is_none());
}

// ===== reflections that were polled =====

#[tokio::test(start_paused = true)]
async fn reflection_that_was_polled_before_becomes_a_synced_informer() {
    // The notices that were returned before: until the first change, until `Synced`, or until a live change.
    async fn check(until: impl Fn(&Notice) -> bool) {
        let server = Fake::new();
        server.put("n/a");
        server.put("n/b");
        let mut reflection = Reflection::with_seed(server.clone(), reflector(), 7);
        while !until(&reflection.next().await) {}
        server.put("n/c");
        let informer = SharedInformer::over(reflection, "things");
        let (received, handler) = record(&informer, HandlerOptions::default());
        informer.start().unwrap();
        handler.wait_until_synced(seconds(5)).await.expect("the state is complete");
        settle().await;
        let mut received = take(&received);
        received.sort();
        assert_eq!(received, ["+n/a@1 Initial", "+n/b@2 Initial", "+n/c@3 Live", "synced"]);
    }
    check(|notice| matches!(notice, Notice::Changes(_))).await;
    check(|notice| matches!(notice, Notice::Synced)).await;
    check(|notice| matches!(notice, Notice::State(ReflectorState::Watching { .. }))).await;
}

// ===== durations =====

#[tokio::test(start_paused = true)]
async fn longest_durations_of_the_caller_do_not_overflow() {
    let server = Fake::new();
    server.put("n/a");
    let factory = factory(&server);
    let informer = factory.informer(&InformerKey::new(things()));
    let policy = Policy::Block { changes_max: 1, timeout: Duration::MAX };
    let handler = informer.on(HandlerOptions::default().policy(policy).resync(Duration::MAX), |_| async {
        tokio::time::sleep(seconds(5)).await;
    });
    factory.start().unwrap();
    factory.wait_until_synced(Duration::MAX).await.unwrap();
    handler.wait_until_synced(Duration::MAX).await.unwrap();
    // The informer waits for the handler.
    for name in ["n/a", "n/b", "n/c"] {
        server.put(name);
    }
    tokio::time::sleep(seconds(60)).await;
    assert_eq!(informer.status().handlers[0].counts.block_timeouts, 0);
    informer.stop(Duration::MAX).await.unwrap();
    factory.shutdown(Duration::MAX).await.unwrap();
}

// ===== indexes =====

#[tokio::test(start_paused = true)]
async fn queries_of_an_informers_index_examine_no_objects() {
    let server = Fake::new();
    server.put("a/x");
    server.put("b/x");
    for informer in [informer(&server), two_namespaces(&server, &server)] {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = || {
            let calls = calls.clone();
            move |object: &Object| {
                calls.fetch_add(1, Ordering::Relaxed);
                [object.name().to_owned()]
            }
        };
        // One index before the start, and one while the informer runs.
        let parked = informer.add_index(counted()).await.unwrap();
        informer.start().unwrap();
        informer.wait_until_synced(TIMEOUT).await.unwrap();
        let running = informer.add_index(counted()).await.unwrap();
        let indexed = calls.load(Ordering::Relaxed);
        let snapshot = informer.store().snapshot();
        for index in [&parked, &running] {
            assert_eq!(snapshot.by_index(index, &"x".to_owned()).count(), 2);
        }
        assert_eq!(calls.load(Ordering::Relaxed), indexed, "the index is not in the informer's store");
    }
}

// ===== factories =====

#[tokio::test(start_paused = true)]
async fn factory_opens_the_parts_of_a_key() {
    async fn check(key: InformerKey, parts: usize, objects: usize) {
        let server = Fake::new();
        for key in ["a/x", "b/x", "c/x"] {
            server.put(key);
        }
        let factory = factory(&server);
        let informer = factory.informer(&key);
        factory.start().unwrap();
        factory.wait_until_synced(TIMEOUT).await.unwrap();
        let names: Vec<String> = informer.status().parts.into_iter().map(|part| part.name).collect();
        assert_eq!(names.len(), parts, "{key:?} has the parts {names:?}");
        assert_eq!(names == [""], parts == 1, "only a single part has no name: {names:?}");
        assert_eq!(informer.store().snapshot().len(), objects, "{key:?}");
    }
    let key = || InformerKey::new(things());
    check(key(), 1, 3).await;
    check(key().namespaces(["a"]), 1, 1).await;
    check(key().namespaces(["a", "c"]), 2, 2).await;
    check(key().shards(Shards::Split(0)), 1, 3).await;
    check(key().shards(Shards::Split(1)), 1, 3).await;
    check(key().shards(Shards::Split(2)), 2, 3).await;
    // Namespaces have their own lists and watches.
    check(key().namespaces(["a", "c"]).shards(Shards::Split(3)), 2, 2).await;
}

#[tokio::test(start_paused = true)]
async fn object_of_another_type_is_skipped_if_the_type_is_known() {
    async fn check(key: InformerKey, expected: &[&str], skipped: u64) {
        let server = Fake::new();
        server.put_with("n/thing", r#","apiVersion":"v1","kind":"Thing""#);
        server.put_with("n/partial", r#","apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata""#);
        server.put("n/untyped");
        let factory = factory(&server);
        let informer = factory.informer(&key);
        factory.start().unwrap();
        factory.wait_until_synced(TIMEOUT).await.unwrap();
        let names: Vec<String> = informer.store().snapshot().iter().map(|object| object.name().to_owned()).collect();
        assert_eq!(names, expected, "{key:?}");
        assert_eq!(informer.status().parts[0].skipped, skipped, "{key:?}");
    }
    let known = InformerKey::new(ApiResource { kind: "Thing".to_owned(), ..things() });
    check(known.clone(), &["thing", "untyped"], 1).await;
    check(known.metadata_only(), &["partial", "thing", "untyped"], 0).await;
    // The kind of this resource is not known.
    check(InformerKey::new(things()), &["partial", "thing", "untyped"], 0).await;
    check(InformerKey::new(ApiResource::default()), &["partial", "thing", "untyped"], 0).await;
}
