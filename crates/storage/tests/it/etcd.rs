//! The etcd store against real etcd: the conformance suite, and faults of real processes.
//!
//! The tests need an etcd binary: `LISTWATCH_ETCD`, else `etcd` on the PATH. Without one they fail with instructions
//! (`LISTWATCH_SKIP_ETCD=1` skips them). With `LISTWATCH_ETCD_ENDPOINTS` the suite also runs on that cluster, below a
//! separate prefix, and compacts the cluster's history. Every etcd started here ends with its test. Only the tests in
//! [`answers`], [`histories`] and [`lists`] need no binary: a fake etcd in the process decides each answer.

mod answers;
mod fake;
mod faults;
mod gateway;
mod histories;
mod lists;
mod permissions;
mod proxy;
#[allow(dead_code, reason = "some of it is for the cache's tests")]
mod raw;
mod server;
mod tls;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::Stream;
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::etcd3::{
    COMPACT_KEY, ConnectError, DEAD_AFTER, Etcd3, Etcd3Options, WATCH_BYTES, WATCH_WINDOW_BYTES,
};
use listwatch_storage::{
    CreateError, ListQuery, ReadError, Storage, StoreEvent, StoreFault, UpdateError, VALUE_BYTES_MAX, Watch,
    WatchError, WatchItem,
};
use listwatch_store_conformance::{Case, cases, check_model, operations};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tokio::time::timeout;

use faults::leader;
use proxy::Proxy;
use raw::Raw;
use server::{Etcd, Member};

/// The time limit for each awaited event.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time for etcd to detect a dead leader and elect another one, at its defaults.
const ELECTION: Duration = Duration::from_secs(5);

/// Allowance of a busy machine.
const SLOW_MACHINE: Duration = Duration::from_secs(10);

/// The binary to test with, or `None` if the tests are skipped.
fn binary() -> Option<PathBuf> {
    match server::find() {
        Etcd::Binary(path) => Some(path),
        Etcd::Skipped => {
            eprintln!("skipped: LISTWATCH_SKIP_ETCD=1");
            None
        }
    }
}

/// The default options, with time for etcd to answer on a busy machine. A started etcd accepts connections before it
/// answers requests.
fn patient_options<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Etcd3Options {
    let mut options = Etcd3Options::new(endpoints);
    options.dial_timeout = PATIENCE;
    options
}

async fn connect(urls: &[&str]) -> Arc<Etcd3> {
    Etcd3::connect(patient_options(urls.iter().copied())).await.expect("etcd answers")
}

/// Opens a watch. The store's own time limit for this is 5 seconds, in which a busy machine may open none.
async fn open_watch(store: &Etcd3, range: KeyRange, after: Revision) -> Watch {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match store.watch(range.clone(), after).await {
            Ok(watch) => return watch,
            Err(WatchError::Fault(StoreFault::Unavailable(_))) if Instant::now() < deadline => {}
            Err(error) => panic!("etcd opens no watch: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Connects until an endpoint is rejected, and returns the rejection. The function does not wait
/// for slow endpoints, so on a busy machine it can miss a rejection.
async fn rejected_endpoint(options: Etcd3Options) -> ConnectError {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Etcd3::connect(options.clone()).await {
            Ok(_) => assert!(Instant::now() < deadline, "no endpoint is rejected"),
            Err(error @ ConnectError::Endpoint { .. }) => return error,
            Err(other) => panic!("another rejection: {other:?}"),
        }
    }
}

fn pod(name: impl AsRef<str>) -> Key {
    Key::new("pods", Some("ns"), name.as_ref()).expect("a valid name")
}

fn pods() -> KeyRange {
    KeyRange::resource("pods")
}

async fn list(store: &Etcd3, limit: usize) -> listwatch_storage::ListPage {
    store.list(ListQuery { range: pods(), at: None, limit }).await.expect("a list")
}

/// Reads a watch up to a revision that is known to be in its range.
async fn follow(watch: &mut Watch, until: Revision) -> Vec<StoreEvent> {
    let mut events: Vec<StoreEvent> = Vec::new();
    let mut floor = Revision::ZERO;
    while events.last().is_none_or(|event| event.revision() < until) {
        let item = timeout(PATIENCE, watch.next()).await;
        let item = item
            .unwrap_or_else(|_| panic!("complete: nothing came for {PATIENCE:?} after {floor:?}, {until:?} expected"));
        match item.expect("a watch does not end without a word") {
            WatchItem::Event(event) => {
                assert!(
                    event.revision() > floor,
                    "bookmarkable: {:?} came after progress at {floor:?}",
                    event.revision()
                );
                events.push(event);
            }
            WatchItem::Progress(revision) => {
                assert!(revision >= floor, "progress went back from {floor:?} to {revision:?}");
                floor = revision;
            }
            other => panic!("{other:?} although nothing was compacted"),
        }
    }
    events
}

/// The actual changes, read by a watch over an undisturbed connection.
async fn truth(url: &str, after: Revision, until: Revision) -> Vec<StoreEvent> {
    // A member that was stopped refuses requests until it knows the new leader.
    let deadline = Instant::now() + PATIENCE;
    let store = loop {
        match Etcd3::connect(Etcd3Options::new([url])).await {
            Ok(store) => break store,
            Err(error) => assert!(Instant::now() < deadline, "etcd does not answer: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    follow(&mut open_watch(&store, pods(), after).await, until).await
}

fn assert_same(seen: &[StoreEvent], truth: &[StoreEvent]) {
    for (index, (seen, true_event)) in seen.iter().zip(truth).enumerate() {
        assert_eq!(seen, true_event, "ordered, unique, complete: event {index} is not the one that happened");
    }
    assert_eq!(seen.len(), truth.len(), "complete: the number of events differs");
}

/// Writes as fast as possible until stopped, despite faults; returns the last acknowledged
/// revision.
struct Writer {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<usize>,
}

impl Writer {
    fn start(store: &Arc<Etcd3>, pause: Duration) -> Writer {
        let stop = Arc::new(AtomicBool::new(false));
        let (store, stopped) = (store.clone(), stop.clone());
        let task = tokio::spawn(async move {
            let mut acknowledged = 0;
            for round in 0.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let key = pod(format!("w{}", round % 7));
                let value = Bytes::from(format!("{{\"round\":{round}}}"));
                let written = match store.get(&key).await {
                    Ok((Some(current), _)) if round % 5 == 4 => store.delete(&key, current.modified).await.is_ok(),
                    Ok((Some(current), _)) => store.update(&key, current.modified, value, None).await.is_ok(),
                    Ok((None, _)) => store.create(&key, value, None).await.is_ok(),
                    Err(_) => false,
                };
                acknowledged += usize::from(written);
                tokio::time::sleep(pause).await;
            }
            acknowledged
        });
        Writer { stop, task }
    }

    /// Stops, writes one last event, and returns its revision and the number of acknowledged
    /// writes.
    async fn finish(self, store: &Etcd3) -> (Revision, usize) {
        self.stop.store(true, Ordering::Relaxed);
        let acknowledged = self.task.await.expect("the writer does not panic");
        (certainly_create(store, "zz-last").await, acknowledged)
    }
}

/// Creates a key, retrying after faults.
async fn certainly_create(store: &Etcd3, name: &str) -> Revision {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match store.create(&pod(name), "{}".into(), None).await {
            Ok(revision) => return revision,
            Err(CreateError::AlreadyExists { current, .. }) => return current.modified,
            Err(CreateError::Fault(fault)) => assert!(Instant::now() < deadline, "etcd does not come back: {fault}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Prints a recovery time in a searchable form.
fn report(what: &str, took: Duration) {
    println!("recovery: {what}: {:.3} s", took.as_secs_f64());
}

/// The next event, and the time it took.
async fn next_event(watch: &mut Watch) -> (StoreEvent, Duration) {
    let begun = Instant::now();
    loop {
        match timeout(PATIENCE, watch.next()).await.expect("an event comes in time").expect("no end without a word") {
            WatchItem::Event(event) => return (event, begun.elapsed()),
            WatchItem::Progress(_) => {}
            other => panic!("{other:?} instead of an event"),
        }
    }
}

// ------------------------------------------------------------------------------ the contract

/// Runs every case on one store: those that compact one by one, the others in parallel.
async fn every_case(store: Arc<Etcd3>) {
    let mut broken = Vec::new();
    let (compacting, others): (Vec<&Case>, Vec<_>) = cases().partition(|case| case.compacts);
    let mut running = tokio::task::JoinSet::new();
    for case in others {
        let store = store.clone();
        running.spawn(async move { (case.name, case.run(store).await) });
    }
    while let Some(done) = running.join_next().await {
        let (name, verdict) = done.expect("a case does not panic");
        broken.extend(verdict.err().map(|broken| format!("[{name}] {broken}")));
    }
    for case in compacting {
        broken.extend(case.run(store.clone()).await.err().map(|broken| format!("[{}] {broken}", case.name)));
    }
    assert!(broken.is_empty(), "{} promises are broken:\n{}", broken.len(), broken.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_passes_every_conformance_case() {
    if let Some(binary) = binary() {
        let member = Member::start_one(&binary, &[]);
        every_case(connect(&[&member.url]).await).await;
    }
    if let Some(endpoints) = server::foreign_endpoints() {
        let mut options = patient_options(endpoints);
        options.prefix = format!("/listwatch-test-{}", std::process::id());
        every_case(Etcd3::connect(options).await.expect("LISTWATCH_ETCD_ENDPOINTS answers")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_on_etcd_agree_with_the_model() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let url = member.url.as_str();
    let mut runner = TestRunner::deterministic();
    for _ in 0..20 {
        let operations = operations(60).new_tree(&mut runner).expect("operations").current();
        let store = connect(&[url]).await;
        let reopened = async || Some(connect(&[url]).await as Arc<dyn Storage>);
        if let Err(broken) = check_model(store, &operations, reopened).await {
            panic!("{broken}\n{operations:?}");
        }
    }
}

#[tokio::test]
async fn two_servers_on_one_etcd_see_the_same_order() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let stores = [connect(&[&member.url]).await, connect(&[&member.url]).await];
    let start = stores[0].current_revision().await.unwrap();
    let mut watches = Vec::new();
    for store in &stores {
        watches.push(open_watch(store, pods(), start).await);
    }
    let mut last = Revision::ZERO;
    for round in 0..100 {
        last = stores[round % 2].create(&pod(format!("p{round}")), "{}".into(), None).await.unwrap();
    }
    let first = follow(&mut watches[0], last).await;
    assert_eq!(first.len(), 100);
    assert_same(&follow(&mut watches[1], last).await, &first);
}

#[tokio::test]
async fn foreign_keys_are_skipped_and_counted() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let store = connect(&[&member.url]).await;
    let raw = Raw::connect(&member.url);
    let start = store.current_revision().await.unwrap();
    let mut watch = open_watch(&store, pods(), start).await;

    store.create(&pod("a"), "{\"a\":1}".into(), None).await.unwrap();
    for foreign in [&b"/registry/pods//"[..], b"/registry/pods/ns/../x", b"/registry/pods/\xff\xfe"] {
        raw.put(foreign, "?").await;
    }
    let last = store.create(&pod("z"), "{\"z\":1}".into(), None).await.unwrap();

    let events = follow(&mut watch, last).await;
    let names: Vec<_> = events.iter().map(|event| event.key().name()).collect();
    assert_eq!(names, ["a", "z"], "a watch passes over what is not ours");
    let page = list(&store, 0).await;
    let names: Vec<_> = page.items.iter().map(|item| item.key.name()).collect();
    assert_eq!(names, ["a", "z"], "a list passes over what is not ours");
    let page = list(&store, 1).await;
    assert_eq!((page.items[0].key.name(), page.more), ("a", true), "a page is full even so");
    assert!(store.foreign_keys() >= 6, "each was counted: {}", store.foreign_keys());

    // The layout is Kubernetes': values are stored byte for byte under their full keys.
    let there = raw.get("/registry/pods/ns/a").await.expect("it is there");
    assert_eq!(there.value, b"{\"a\":1}");
}

#[tokio::test]
async fn one_lease_is_shared_by_many_keys() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let store = connect(&[&member.url]).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..100 {
        let store = store.clone();
        tasks.spawn(
            async move { store.create(&pod(format!("e{n}")), "{}".into(), Some(Duration::from_secs(3600))).await },
        );
    }
    while let Some(created) = tasks.join_next().await {
        created.unwrap().unwrap();
    }
    let raw = Raw::connect(&member.url);
    let leases = raw.leases().await;
    assert_eq!(leases.len(), 1, "a hundred keys within the window share one lease");

    // The lease is revoked; the next create detects it and takes another.
    raw.lease_revoke(leases[0]).await;
    assert!(list(&store, 0).await.items.is_empty(), "the keys go with their lease");
    store.create(&pod("next"), "{}".into(), Some(Duration::from_secs(3600))).await.unwrap();
}

/// The ready items of a watch, after waiting for the first.
async fn burst(watch: &mut Watch) -> Vec<WatchItem> {
    let mut items = vec![timeout(PATIENCE, watch.next()).await.expect("an item comes in time").expect("no end")];
    std::future::poll_fn(|cx| {
        while let Poll::Ready(Some(item)) = std::pin::Pin::new(&mut *watch).poll_next(cx) {
            items.push(item);
        }
        Poll::Ready(())
    })
    .await;
    items
}

#[tokio::test]
async fn transactions_and_lease_revocations_are_ready_together() {
    const KEYS: usize = 300;
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let store = connect(&[&member.url]).await;
    let mut watch = open_watch(&store, pods(), store.current_revision().await.unwrap()).await;
    let raw = Raw::connect(&member.url);
    let lease = raw.lease_grant(600).await;
    let puts: Vec<_> = (0..KEYS).map(|n| (format!("/registry/pods/ns/e{n}"), b"{}".to_vec())).collect();
    for puts in puts.chunks(100) {
        raw.put_all(puts.to_vec(), lease).await;
    }
    // etcd ends an expired lease with the same revocation.
    raw.lease_revoke(lease).await;
    let (mut puts, mut removed) = (0, None);
    while puts < KEYS || removed.is_none() {
        let mut revisions: BTreeMap<Revision, usize> = BTreeMap::new();
        for item in burst(&mut watch).await {
            match item {
                WatchItem::Event(event) => {
                    *revisions.entry(event.revision()).or_default() += 1;
                    match event {
                        StoreEvent::Put { .. } => puts += 1,
                        StoreEvent::Delete { revision, .. } => removed = Some(revision),
                    }
                }
                WatchItem::Progress(_) => {}
                other => panic!("{other:?} instead of events"),
            }
        }
        for (revision, events) in revisions {
            let whole = if removed == Some(revision) { KEYS } else { 100 };
            assert_eq!(events, whole, "promise: revision {revision} is ready as a whole");
        }
    }
    assert_eq!(puts, KEYS);
}

#[tokio::test]
async fn too_large_value_is_rejected_without_side_effects() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let store = connect(&[&member.url]).await;
    let start = store.current_revision().await.unwrap();
    let mut watch = open_watch(&store, pods(), start).await;
    for (bytes, fits) in [(1_400_000, true), (VALUE_BYTES_MAX, false), (VALUE_BYTES_MAX + 1, false), (20 << 20, false)]
    {
        let created = store.create(&pod(format!("v{bytes}")), vec![b'x'; bytes].into(), None).await;
        match created {
            Ok(_) => assert!(fits, "{bytes} bytes are more than etcd takes"),
            Err(CreateError::Fault(StoreFault::TooLarge(_))) => assert!(!fits, "{bytes} bytes fit"),
            Err(other) => panic!("{bytes} bytes: {other}"),
        }
    }
    let key = pod("v1400000");
    let (current, _) = store.get(&key).await.unwrap();
    let current = current.expect("it was written");
    let refused = store.update(&key, current.modified, vec![b'y'; VALUE_BYTES_MAX].into(), None).await;
    assert!(matches!(refused, Err(UpdateError::Fault(StoreFault::TooLarge(_)))), "{refused:?}");
    let last = store.update(&key, current.modified, vec![b'y'; 1_400_000].into(), None).await.unwrap();
    let events = follow(&mut watch, last).await;
    assert_eq!(events.len(), 2, "what was refused is not told");
}

#[tokio::test]
async fn full_etcd_rejects_writes_and_serves_reads() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &["--quota-backend-bytes=8000000"]);
    let store = connect(&[&member.url]).await;
    let start = store.current_revision().await.unwrap();
    let mut watch = open_watch(&store, pods(), start).await;
    let mut full = None;
    for n in 0..100 {
        match store.create(&pod(format!("f{n:03}")), vec![b'x'; 500_000].into(), None).await {
            Ok(_) => {}
            Err(CreateError::Fault(fault)) => {
                full = Some(fault);
                break;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(matches!(full, Some(StoreFault::NoSpace(_))), "{full:?}");
    // etcd may have stored the write that exceeded the quota, so only the store knows the last one.
    let listed = list(&store, 0).await;
    let events = follow(&mut watch, listed.revision).await;
    assert_eq!(listed.items.len(), events.len(), "reads and watches go on");
    assert_eq!(store.health().await, Ok(()));
}

#[tokio::test]
async fn compactors_of_two_servers_compact_once_per_interval() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let stores = [connect(&[&member.url]).await, connect(&[&member.url]).await];
    let interval = Duration::from_secs(1);
    let started = Instant::now();
    for store in &stores {
        store.start_compactor(interval);
    }
    let begun = Instant::now();
    let first = stores[0].create(&pod("a"), "{}".into(), None).await.unwrap();
    let oldest = loop {
        let at = stores[0].stats().await.unwrap().oldest;
        if at > first {
            break at;
        }
        assert!(begun.elapsed() < PATIENCE, "history older than two intervals is still there: {at:?}");
        stores[0].create(&pod(format!("p{}", begun.elapsed().as_millis())), "{}".into(), None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(begun.elapsed() >= interval, "history younger than an interval was forgotten");
    let mut late = open_watch(&stores[1], pods(), Revision::ZERO).await;
    let item = timeout(PATIENCE, late.next()).await.unwrap();
    let Some(WatchItem::Expired { oldest: Some(told) }) = item else { panic!("{item:?} instead of Expired") };
    assert!(told >= oldest);
    let page = stores[1].list(ListQuery { range: pods(), at: Some(first), limit: 0 }).await;
    assert!(matches!(page, Err(ReadError::Compacted { .. })), "{page:?}");

    let raw = Raw::connect(&member.url);
    let ticks = raw.get(COMPACT_KEY).await.expect("the compactors' key").version;
    let elapsed = started.elapsed().as_secs_f64();
    assert!(ticks as f64 <= elapsed + 1.0, "{ticks} ticks in {elapsed:.1} s: both servers compacted");
}

// ------------------------------------------------------------------------------ at the start

#[tokio::test]
async fn connect_to_an_absent_etcd_fails_at_once() {
    // This test needs no etcd.
    let options = patient_options(["http://127.0.0.1:1", "http://127.0.0.1:2"]);
    let begun = Instant::now();
    let error = Etcd3::connect(options).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    assert!(begun.elapsed() < PATIENCE / 2, "a refused connection needs no patience: {:?}", begun.elapsed());
    assert!(text.contains("http://127.0.0.1:1") && text.contains("http://127.0.0.1:2"), "{text}");
    assert!(text.contains("refused") && !text.contains('\n'), "{text}");
}

#[tokio::test]
async fn connect_to_a_silent_etcd_fails_within_the_dial_timeout() {
    // A socket that accepts connections and never answers.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut options = Etcd3Options::new([format!("http://{}", listener.local_addr().unwrap())]);
    options.dial_timeout = Duration::from_secs(1);
    let begun = Instant::now();
    let error = Etcd3::connect(options).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn one_reachable_member_suffices_to_connect() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let store = connect(&["http://127.0.0.1:1", &member.url]).await;
    assert!(!store.capabilities().progress_requests, "what could not be asked cannot be relied on");
    for n in 0..20 {
        store.create(&pod(format!("p{n}")), "{}".into(), None).await.unwrap();
    }
    assert_eq!(list(&store, 0).await.items.len(), 20, "no request is lost to the member that is away");
    open_watch(&store, pods(), Revision::ZERO).await;
}

#[tokio::test]
async fn connection_requires_the_password_and_renews_a_lost_token() {
    let Some(binary) = binary() else { return };
    let mut member = Member::start_one(&binary, &[]);
    let raw = Raw::connect(&member.url);
    raw.add_user("root", "secret").await;
    raw.enable_auth().await;
    let mut options = patient_options([&*member.url]);
    let refused = Etcd3::connect(options.clone()).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Denied { .. }), "{refused:?}");
    options.user = Some(("root".into(), "wrong".into()));
    let refused = Etcd3::connect(options.clone()).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Denied { .. }), "{refused:?}");
    options.user = Some(("root".into(), "secret".into()));
    let store = Etcd3::connect(options).await.expect("the password is right");
    let mut watch = open_watch(&store, pods(), Revision::ZERO).await;
    let first = store.create(&pod("a"), "{}".into(), None).await.unwrap();
    assert_eq!(follow(&mut watch, first).await.len(), 1);

    // etcd keeps its tokens in memory, so a restart invalidates them.
    member = tokio::task::spawn_blocking(move || {
        member.kill();
        member.start();
        member
    })
    .await
    .unwrap();
    let last = certainly_create(&store, "b").await;
    assert_eq!(follow(&mut watch, last).await.len(), 1, "the watch goes on with a new token");
    drop(member);
}

// ------------------------------------------------------------------------------ faults

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_survives_sigkill_and_restart_of_etcd() {
    let Some(binary) = binary() else { return };
    let mut member = Member::start_one(&binary, &[]);
    let url = member.url.clone();
    let store = connect(&[&url]).await;
    let start = store.current_revision().await.unwrap();
    let mut watch = open_watch(&store, pods(), start).await;
    let writer = Writer::start(&store, Duration::ZERO);
    let mut seen = Vec::new();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        member = tokio::task::spawn_blocking(move || {
            member.kill();
            member.start();
            member
        })
        .await
        .unwrap();
        let back = Instant::now();
        let recovered = certainly_create(&store, &format!("back-{:?}", Instant::now())).await;
        seen.extend(follow(&mut watch, recovered).await);
        report("etcd was killed and started again: the watch", back.elapsed());
    }
    let (last, acknowledged) = writer.finish(&store).await;
    assert!(acknowledged > 0, "nothing was written");
    // A second watch of the same store begins at the same revision as the first.
    let mut again = open_watch(&store, pods(), start).await;
    let truth = truth(&url, start, last).await;
    assert!(truth.len() >= acknowledged, "durable: {acknowledged} writes were acknowledged, {} happened", truth.len());
    assert_same(&follow(&mut again, last).await, &truth);
    seen.extend(follow(&mut watch, last).await);
    assert_same(&seen, &truth);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_cut_within_responses_misses_no_event() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let proxy = Proxy::start(&member.url).await;
    let store = connect(&[&member.url]).await;
    let start = store.current_revision().await.unwrap();
    let mut last = start;
    for n in 0..60 {
        let size = [100, 40_000, 700_000][n % 3];
        last = store.create(&pod(format!("big{n}")), vec![b'x'; size].into(), None).await.unwrap();
    }
    // Transactions of many keys, large enough that etcd splits its responses within them.
    let raw = Raw::connect(&member.url);
    for round in 0..6 {
        raw.put_all((0..20).map(|n| (format!("/registry/pods/ns/t{round}-{n}"), vec![b'y'; 60_000])), 0).await;
    }
    last = last.max(store.create(&pod("zz-last"), "{}".into(), None).await.unwrap());
    let truth = truth(&member.url, start, last).await;
    assert_eq!(truth.len(), 60 + 120 + 1);

    let through = connect(&[&proxy.url]).await;
    // Every connection ends after 5 MB: within a frame, a response or a transaction. (A transaction
    // has 1.2 MB, and is known to be complete only when the next one begins.)
    proxy.cut_every(5_000_000);
    proxy.swallow(); // the open connections forward nothing any more
    let through_cuts = connect(&[&proxy.url]).await;
    let begun = Instant::now();
    let mut watch = open_watch(&through_cuts, pods(), start).await;
    let seen = follow(&mut watch, last).await;
    report(&format!("{} cuts in the middle of responses: all events", proxy.cuts()), begun.elapsed());
    assert!(proxy.cuts() >= 3, "only {} cuts", proxy.cuts());
    assert_same(&seen, &truth);
    drop(through);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_connection_is_detected_within_the_bound() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let proxy = Proxy::start(&member.url).await;
    let direct = connect(&[&member.url]).await;
    let store = connect(&[&proxy.url]).await;
    let start = store.current_revision().await.unwrap();
    let mut watch = open_watch(&store, pods(), start).await;
    direct.create(&pod("before"), "{}".into(), None).await.unwrap();
    assert_eq!(next_event(&mut watch).await.0.key().name(), "before");

    // Like a pulled cable: the socket stays open, and nothing arrives.
    proxy.swallow();
    let last = direct.create(&pod("after"), "{}".into(), None).await.unwrap();
    let (event, took) = next_event(&mut watch).await;
    report("a connection that carries nothing any more: the watch", took);
    assert_eq!((event.key().name(), event.revision()), ("after", last));
    assert!(took < DEAD_AFTER + SLOW_MACHINE, "the bound is {DEAD_AFTER:?}, it took {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_watch_is_not_closed_as_dead() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let proxy = Proxy::start(&member.url).await;
    let store = connect(&[&proxy.url]).await;
    // The watch begins in the future, for which recent servers report no progress.
    let now = store.current_revision().await.unwrap();
    let mut watch = open_watch(&store, pods(), now).await;
    let quiet = timeout(DEAD_AFTER + Duration::from_secs(5), watch.next()).await;
    assert!(quiet.is_err(), "{quiet:?} on an idle store");
    // If the watch were considered dead, its new connection would be cut here.
    proxy.cut_every(0);
    let direct = connect(&[&member.url]).await;
    let last = direct.create(&pod("a"), "{}".into(), None).await.unwrap();
    let (event, took) = next_event(&mut watch).await;
    assert_eq!(event.revision(), last);
    assert!(took < DEAD_AFTER / 2, "the old connection still serves: {took:?}");
    assert_eq!(proxy.cuts(), 0, "no connection was replaced");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_stopped_for_half_a_minute_loses_no_event() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let store = connect(&[&member.url]).await;
    let start = store.current_revision().await.unwrap();
    let mut watch = open_watch(&store, pods(), start).await;
    let writer = Writer::start(&store, Duration::from_millis(5));
    tokio::time::sleep(Duration::from_secs(1)).await;

    member.stop();
    let begun = Instant::now();
    // The signal reaches one thread of etcd after the other, so that a first call may still be answered.
    let (sick, took) = loop {
        let asked = Instant::now();
        let health = store.health().await;
        if health.is_err() || begun.elapsed() > Duration::from_secs(10) {
            break (health, asked.elapsed());
        }
    };
    assert!(matches!(sick, Err(StoreFault::Unavailable(_))), "{sick:?}");
    assert!(took < Duration::from_secs(2) + SLOW_MACHINE, "health answers in time: {took:?}");
    tokio::time::sleep(Duration::from_secs(30).saturating_sub(begun.elapsed())).await;
    member.resume();

    let back = Instant::now();
    let after = certainly_create(&store, "after").await;
    let mut seen = follow(&mut watch, after).await;
    report("etcd was stopped for 30 s and resumed: the watch", back.elapsed());
    let (last, _) = writer.finish(&store).await;
    seen.extend(follow(&mut watch, last).await);
    assert_same(&seen, &truth(&member.url, start, last).await);
    assert_eq!(store.health().await, Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_moves_to_another_member_when_its_member_dies() {
    let Some(binary) = binary().filter(|_| !server::is_plain()) else { return };
    let mut members = tokio::task::spawn_blocking(move || Member::start_cluster(&binary, 3)).await.unwrap();
    let urls: Vec<_> = members.iter().map(|member| member.url.clone()).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let store = loop {
        // A new cluster answers reads once it has a leader.
        match Etcd3::connect(Etcd3Options::new(urls.iter().copied())).await {
            Ok(store) => break store,
            Err(error) => println!("not yet: {error}"),
        }
    };
    let start = store.current_revision().await.unwrap();
    // As many watches as members, so that each member serves one.
    let mut watches = Vec::new();
    for _ in 0..3 {
        watches.push(open_watch(&store, pods(), start).await);
    }
    let writer = Writer::start(&store, Duration::from_millis(2));
    let mut seen = vec![Vec::new(); watches.len()];

    for victim in 0..3 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        // One member after the other, including the leader: first one dies, then one is silent.
        let begun = Instant::now();
        let (bound, counted_from, what) = if victim == 1 {
            members[victim].stop();
            (DEAD_AFTER + ELECTION, begun, "stopped")
        } else {
            members[victim].kill();
            // How long an election takes depends on the machine, and not on the store.
            leader(&members, Some(victim)).await;
            (ELECTION, Instant::now(), "killed")
        };
        let marker = certainly_create(&store, &format!("marker-{victim}")).await;
        for (watch, seen) in watches.iter_mut().zip(&mut seen) {
            seen.extend(follow(watch, marker).await);
        }
        let took = counted_from.elapsed();
        report(&format!("member {victim} of three was {what}: all watches"), begun.elapsed());
        assert!(took < bound + SLOW_MACHINE, "{what}: {took:?}");
        if victim == 1 {
            members[victim].resume();
        } else {
            let mut member = members.remove(victim);
            member = tokio::task::spawn_blocking(move || {
                member.start();
                member
            })
            .await
            .unwrap();
            members.insert(victim, member);
        }
    }
    let (last, _) = writer.finish(&store).await;
    let truth = truth(urls[0], start, last).await;
    for (watch, mut seen) in watches.iter_mut().zip(seen) {
        seen.extend(follow(watch, last).await);
        assert_same(&seen, &truth);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_stalled_through_compaction_expires() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let store = connect(&[&member.url]).await;
    let start = store.current_revision().await.unwrap();
    let mut watch = open_watch(&store, pods(), start).await;
    // More data than all buffers between etcd and the caller hold.
    let value = Bytes::from(vec![b'x'; 200_000]);
    let mut created = Vec::new();
    for n in 0..600 {
        created.push(store.create(&pod(format!("s{n:03}")), value.clone(), None).await.unwrap());
    }
    let last = *created.last().unwrap();
    store.compact(last).await.unwrap();

    let mut told = Vec::new();
    let oldest = loop {
        match timeout(PATIENCE, watch.next()).await.expect("the watch is told").expect("no end without a word") {
            WatchItem::Event(event) => told.push(event.revision()),
            WatchItem::Progress(revision) => panic!("progress at {revision:?} before the events"),
            WatchItem::Expired { oldest } => break oldest,
            WatchItem::Lost(fault) => panic!("lost: {fault}"),
        }
    };
    assert_eq!(oldest, Some(last), "etcd says what can still be watched");
    assert_eq!(told, created[..told.len()], "what was told before is the beginning of what happened");
    assert!(told.len() < created.len(), "the test did not make the watch lag");
    assert!(timeout(PATIENCE, watch.next()).await.unwrap().is_none(), "after Expired the watch ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_that_is_not_read_holds_a_bounded_number_of_bytes() {
    let Some(binary) = binary() else { return };
    let mut member = Member::start_one(&binary, &[]);
    let store = connect(&[&member.url]).await;
    let start = store.current_revision().await.unwrap();
    let mut slow = open_watch(&store, pods(), start).await;
    let mut quick = open_watch(&store, pods(), start).await;
    let size = 200_000;
    let value = Bytes::from(vec![b'x'; size]);
    let mut last = start;
    for n in 0..400 {
        last = store.create(&pod(format!("s{n:03}")), value.clone(), None).await.unwrap();
    }
    assert_eq!(follow(&mut quick, last).await.len(), 400, "a slow watcher costs nobody else anything");
    // After etcd is killed, only buffered events can arrive.
    member.kill();
    let mut held = 0;
    while let Ok(Some(WatchItem::Event(_))) = timeout(Duration::from_secs(1), slow.next()).await {
        held += size;
    }
    let bound = WATCH_BYTES + WATCH_WINDOW_BYTES as usize + (3 << 20);
    println!("{held} bytes were held for a caller that did not read");
    assert!(held >= size, "the test did not make the caller lag");
    assert!(held <= bound, "{held} bytes were held, the bound is {bound}");
}

#[tokio::test]
async fn closed_store_fails_every_call() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let store = connect(&[&member.url]).await;
    let mut watch = open_watch(&store, pods(), Revision::ZERO).await;
    store.close();
    assert!(timeout(PATIENCE, watch.next()).await.unwrap().is_none(), "a closed store ends its watches");
    assert_eq!(store.get(&pod("a")).await, Err(ReadError::Fault(StoreFault::Closed)));
    assert_eq!(store.health().await, Err(StoreFault::Closed));
}
