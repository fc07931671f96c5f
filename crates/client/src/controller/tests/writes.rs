//! Tests of recorded writes: a key is reconciled with a cache that shows its last writes, or knows that it is behind.

use std::collections::HashMap;

use tokio::time::Instant;

use super::*;
use crate::controller::writes::{OVERDUE_MAX, PendingWrites, WriteCheck};
use crate::decode::KeepJson;
use crate::delta_fifo::Delta;

/// Checks a key until it can be reconciled, as a controller does. Returns whether the caches show its writes.
async fn wait(writes: &PendingWrites, stores: &[Store], key: &ObjectKey) -> bool {
    loop {
        match writes.check(stores, key) {
            WriteCheck::Shown => return true,
            WriteCheck::Behind => return false,
            WriteCheck::Pending(delay) => tokio::time::sleep(delay).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn key_that_waits_for_its_write_holds_no_worker_and_keeps_its_failures() {
    let (mut own, source) = SourceControl::new(&["a", "b"]);
    let log = Log::default();
    let noted = log.clone();
    // One worker.
    let config = ControllerConfig { write_wait: Duration::from_secs(3_600), ..ControllerConfig::new("test") };
    let handle = Controller::new(config, source).start(move |request: Request| {
        let name = request.key().name().to_owned();
        noted.lock().unwrap().push(format!("{name} after {} failures", request.failures()));
        let is_first = name == "a" && request.failures() == 0;
        if is_first {
            request.record_write(SourceId::OWN, "9");
        }
        async move { if is_first { Err("not yet") } else { Ok(Outcome::Done) } }
    });
    own.sync();
    handle.synced().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(take(&log), ["a after 0 failures", "b after 0 failures"]);
    own.send(EventKind::Modified, "b", "");
    settle().await;
    assert_eq!(take(&log), ["b after 0 failures"], "a key that waits for its write delays another key");
    let checks = handle.metrics().queue.adds;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let checks = handle.metrics().queue.adds - checks;
    assert!((55..=65).contains(&checks), "{checks} checks of a waiting key per minute");
    advance(&mut own, 9);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut seen = take(&log);
    seen.sort();
    assert_eq!(seen, ["a after 1 failures", "z after 0 failures"], "a key that waited lost its failures");
    handle.stop().await.unwrap();
}

/// Moves a source to this version with an event of another object.
fn advance(source: &mut SourceControl, version: u64) {
    source.version = version - 1;
    source.send(EventKind::Modified, "z", "");
}

#[tokio::test(start_paused = true)]
async fn key_is_behind_in_every_reconcile_until_the_cache_shows_its_write() {
    const OWN: usize = 0;
    const OTHER: usize = 1;
    // The sources whose version 99 the first reconcile records, once.
    async fn check(writes: &'static [usize]) {
        let (mut own, source) = SourceControl::new(&["a"]);
        let (mut other, other_source) = SourceControl::new(&[]);
        let config = ControllerConfig { write_wait: Duration::from_secs(3), ..ControllerConfig::new("test") };
        let mut controller = Controller::new(config, source);
        let ids = [SourceId::OWN, controller.watches(other_source, |_| Vec::new())];
        let log = Log::default();
        let noted = log.clone();
        let handle = controller.start(move |request: Request| {
            let mut noted = noted.lock().unwrap();
            if noted.is_empty() {
                writes.iter().for_each(|source| request.record_write(ids[*source], "99"));
            }
            let behind = request.key().name() == "a" && request.is_behind();
            noted.push(if behind { "behind" } else { "current" }.to_owned());
            async move { if behind { Err("the cache is behind") } else { Ok(Outcome::Done) } }
        });
        own.sync();
        other.sync();
        handle.synced().await;
        settle().await;
        assert_eq!(take(&log), ["current"]);
        log.lock().unwrap().push("the first reconcile is over".to_owned());
        handle.queue().add(ObjectKey::new("shop", "a"));
        for source in writes {
            tokio::time::sleep(Duration::from_secs(60)).await;
            let seen = log.lock().unwrap().split_off(1);
            assert!(!seen.is_empty(), "{writes:?}: an overdue write blocks the key");
            let missing = "a reconcile did not know that the cache lacks its write";
            assert!(seen.iter().all(|state| state == "behind"), "{writes:?}: {missing}: {seen:?}");
            // The events are of another key, which the own source reconciles as well.
            advance(if *source == OWN { &mut own } else { &mut other }, 99);
            settle().await;
            log.lock().unwrap().truncate(1);
        }
        tokio::time::sleep(Duration::from_secs(600)).await;
        let seen = log.lock().unwrap().split_off(1);
        assert_eq!(seen, ["current"], "{writes:?}: the caches show every write, so the key is reconciled once");
        assert_eq!(handle.shared.writes.keys(), 0, "{writes:?}: a write that the cache shows is still recorded");
        handle.stop().await.unwrap();
    }
    check(&[OWN]).await;
    check(&[OTHER]).await;
    check(&[OWN, OTHER]).await;
    check(&[OTHER, OWN]).await;
}

#[tokio::test(start_paused = true)]
async fn write_in_one_namespace_is_not_delayed_by_a_quiet_namespace() {
    // The seconds until the key is reconciled again after its write, and whether it is behind then.
    async fn check(names_the_object: bool, expected: (u64, bool)) {
        let (mut busy, busy_server, _busy) = SourceControl::scripted(&["a"]);
        let (mut quiet, quiet_server, _quiet) = SourceControl::scripted(&[]);
        let servers = [("shop".to_owned(), busy_server), ("quiet".to_owned(), quiet_server)];
        let servers = Mutex::new(HashMap::from(servers));
        let config = InformerConfig { reflector: patient(), ..InformerConfig::named("two") };
        let open = move |name: &str| servers.lock().unwrap().remove(name).expect("each namespace is opened once");
        let names = ["shop".to_owned(), "quiet".to_owned()];
        let informer = SharedInformer::over_namespaces(names, open, config, KeepJson);
        let begun: Arc<Mutex<Vec<(Instant, String, bool)>>> = Arc::default();
        let noted = begun.clone();
        let source = InformerSource::new(&informer, "controller");
        let handle = Controller::new(ControllerConfig::new("test"), source).start(move |request: Request| {
            let version = request.object().map(|object| object.resource_version().into_owned()).unwrap_or_default();
            if version == "1" {
                match names_the_object {
                    true => request.record_write_of(SourceId::OWN, request.key(), "2"),
                    false => request.record_write(SourceId::OWN, "2"),
                }
            }
            noted.lock().unwrap().push((Instant::now(), version, request.is_behind()));
            async { Ok::<_, String>(Outcome::Done) }
        });
        informer.start().unwrap();
        busy.sync();
        quiet.sync();
        handle.synced().await;
        settle().await;
        let written = Instant::now();
        busy.send(EventKind::Modified, "a", "");
        tokio::time::sleep(Duration::from_secs(30)).await;
        let begun = begun.lock().unwrap().clone();
        let [(_, first, false), (at, second, behind)] = &begun[..] else { panic!("two reconciles: {begun:?}") };
        assert_eq!((first.as_str(), second.as_str()), ("1", "2"));
        let waited = at.duration_since(written).as_secs();
        assert_eq!((waited, *behind), expected, "the object is named: {names_the_object}");
        handle.stop().await.unwrap();
    }
    check(true, (0, false)).await;
    check(false, (10, true)).await;
}

fn cached(name: &str) -> Delta {
    Delta::Upsert(Object::keep(&object(name, 1, ""), ObjectKey::new("shop", name), None))
}

fn key(number: u32) -> ObjectKey {
    ObjectKey::new("shop", &format!("k{number}"))
}

#[tokio::test(start_paused = true)]
async fn newer_write_is_waited_for_although_an_older_one_is_overdue() {
    let limit = Duration::from_secs(3);
    let mut indexer = Indexer::new();
    let stores = [indexer.reader()];
    let writes = PendingWrites::new(limit);
    let record = |version| writes.record(&stores, &key(0), SourceId::OWN, None, version);
    // The recorded version, the seconds of the wait, and whether the cache shows the writes.
    for (version, seconds, shown) in
        [("5", 3, false), ("5", 0, false), ("4", 0, false), ("x", 0, false), ("7", 3, false)]
    {
        record(version);
        let begun = Instant::now();
        assert_eq!(wait(&writes, &stores, &key(0)).await, shown, "after {version}");
        assert_eq!(begun.elapsed().as_secs(), seconds, "the wait after {version}");
    }
    for (version, shown) in [("5", false), ("7", true)] {
        indexer.apply(Delta::Version(version.to_owned()), &mut Vec::new());
        indexer.publish();
        assert_eq!(wait(&writes, &stores, &key(0)).await, shown, "the cache is at {version}");
    }
    assert_eq!(writes.keys(), 0, "a write that the cache shows is still recorded");
}

#[tokio::test(start_paused = true)]
async fn key_with_a_write_that_the_server_lost_is_current_again_after_the_limit() {
    let mut indexer = Indexer::new();
    indexer.apply(Delta::Version("50".to_owned()), &mut Vec::new());
    indexer.publish();
    let stores = [indexer.reader()];
    let writes = PendingWrites::new(Duration::from_secs(3));
    writes.record(&stores, &key(0), SourceId::OWN, None, "99");
    assert!(!wait(&writes, &stores, &key(0)).await);
    // The server was restored from a backup, so the cache goes back.
    indexer.apply(Delta::Version("7".to_owned()), &mut Vec::new());
    indexer.publish();
    tokio::time::advance(OVERDUE_MAX - Duration::from_secs(4)).await;
    assert!(!wait(&writes, &stores, &key(0)).await, "an overdue write is dropped before the limit");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(wait(&writes, &stores, &key(0)).await, "a key is behind for ever");
    assert_eq!(writes.keys(), 0, "a dropped write is still recorded");
}

#[tokio::test(start_paused = true)]
async fn lower_version_replaces_an_overdue_write_only_of_a_named_object() {
    // Whether the first write is overdue, whether the object is named, and whether a cache at the second one shows both.
    async fn check(is_overdue: bool, names_the_object: bool, expected: bool) {
        let mut indexer = Indexer::new();
        let stores = [indexer.reader()];
        let writes = PendingWrites::new(Duration::from_secs(3));
        let object = key(1);
        let record =
            |version| writes.record(&stores, &key(0), SourceId::OWN, names_the_object.then_some(&object), version);
        record("99");
        if is_overdue {
            assert!(!wait(&writes, &stores, &key(0)).await);
        }
        record("8");
        indexer.apply(Delta::Version("8".to_owned()), &mut Vec::new());
        indexer.publish();
        let shown = wait(&writes, &stores, &key(0)).await;
        assert_eq!(shown, expected, "overdue: {is_overdue}, the object is named: {names_the_object}");
    }
    check(true, true, true).await;
    // An update that changes nothing returns the old version of its object.
    check(true, false, false).await;
    check(false, true, false).await;
    check(false, false, false).await;
}

#[tokio::test(start_paused = true)]
async fn write_that_nothing_can_show_is_dropped() {
    let mut indexer = Indexer::new();
    indexer.apply(Delta::Version("5".to_owned()), &mut Vec::new());
    indexer.publish();
    let stores = [indexer.reader()];
    let writes = PendingWrites::new(Duration::from_secs(3));
    writes.record(&stores, &key(0), SourceId::OWN, None, "not-a-number");
    assert_eq!(writes.keys(), 0, "a version that is not a number cannot be compared");
    writes.record(&stores, &key(0), SourceId(7), None, "9");
    assert!(wait(&writes, &stores, &key(0)).await, "no cache can show a write of a source that does not exist");
    assert_eq!(writes.keys(), 0);
}

#[tokio::test(start_paused = true)]
async fn recorded_writes_are_bounded_by_their_age() {
    // Whether the keys are in the own cache, the recorded version, the time between two writes, and the bound.
    async fn check(promise: &str, exist: bool, version: &str, step: Duration, bound: std::ops::RangeInclusive<usize>) {
        let mut indexer = Indexer::new();
        let keys = 0..1_000;
        for number in keys.clone().filter(|_| exist) {
            indexer.apply(cached(&format!("k{number}")), &mut Vec::new());
        }
        indexer.apply(Delta::Version("5".to_owned()), &mut Vec::new());
        indexer.publish();
        let stores = [indexer.reader()];
        let writes = PendingWrites::new(Duration::from_secs(3));
        for number in keys {
            writes.record(&stores, &key(number), SourceId::OWN, None, version);
            tokio::time::advance(step).await;
        }
        assert!(bound.contains(&writes.keys()), "{promise}: {} keys", writes.keys());
    }
    let (short, long) = (millis(100), Duration::from_secs(10));
    for exist in [true, false] {
        check("a write stays until the cache shows it", exist, "99", short, 1_000..=1_000).await;
        check("a write that the cache shows is dropped", exist, "4", short, 0..=100).await;
        check("an old write is dropped", exist, "99", long, 60..=200).await;
    }
}
