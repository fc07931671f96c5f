//! Tests of a controller with sources that the test controls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use listwatch_meta::ListOptions;
use listwatch_wire::{EventKind, ListMeta};
use tokio::sync::{Notify, mpsc, oneshot};

use super::*;
use crate::driver::{Notice, Reflection};
use crate::indexer::Indexer;
use crate::informer::{InformerConfig, SharedInformer};
use crate::list_watch::{ListItem, ListStream, ListWatch, WatchStream, WatchedEvent};
use crate::object::RawObject;
use crate::problem::Problem;
use crate::reflector::ReflectorConfig;

mod writes;

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Sends changes to a source of a test. Dropping the value ends the source.
struct SourceControl {
    listed: Arc<Notify>,
    events: mpsc::UnboundedSender<WatchedEvent>,
    version: u64,
    _alive: oneshot::Sender<()>,
}

/// A server whose list is returned when the test allows it, and whose only watch sends the test's
/// events.
struct Scripted {
    names: Vec<String>,
    listed: Arc<Notify>,
    events: Mutex<Option<mpsc::UnboundedReceiver<WatchedEvent>>>,
}

#[async_trait]
impl ListWatch for Scripted {
    async fn list(&self, _: ListOptions) -> Result<ListStream, Problem> {
        self.listed.notified().await;
        let objects = self.names.iter().map(|name| object(name, 1, "")).collect();
        let end = ListMeta { resource_version: "1".to_owned(), ..ListMeta::default() };
        let items = [Ok(ListItem::Objects(objects)), Ok(ListItem::End(end))];
        Ok(Box::pin(futures_util::stream::iter(items)))
    }

    async fn watch(&self, _: ListOptions) -> Result<WatchStream, Problem> {
        let Some(events) = self.events.lock().unwrap().take() else { return std::future::pending().await };
        Ok(Box::pin(futures_util::stream::unfold(events, |mut events| async {
            let event = events.recv().await?;
            Some((Ok(vec![event]), events))
        })))
    }
}

struct TestSource {
    reflection: Reflection<Scripted>,
    ended: oneshot::Receiver<()>,
}

#[async_trait]
impl EventSource for TestSource {
    fn store(&self) -> Store {
        self.reflection.store()
    }

    async fn next(&mut self) -> Option<SourceEvent> {
        tokio::select! {
            event = EventSource::next(&mut self.reflection) => event,
            _ = &mut self.ended => None,
        }
    }
}

/// The paused clock advances to the next deadline, so the idle limit is off.
fn patient() -> ReflectorConfig {
    ReflectorConfig {
        watch_list: false,
        idle_limit: None,
        request_wait: Duration::from_secs(1_000_000),
        min_watch_timeout: Duration::from_secs(1_000_000),
        ..ReflectorConfig::default()
    }
}

fn object(name: &str, version: u64, more: &str) -> RawObject {
    let json = format!(
        r#"{{"metadata":{{"namespace":"shop","name":"{name}","uid":"u-{name}","resourceVersion":"{version}"{more}}}}}"#
    );
    RawObject::new(Bytes::from(json)).unwrap()
}

fn owned_by(kind: &str, name: &str) -> String {
    format!(
        r#","ownerReferences":[{{"apiVersion":"v1","kind":"Other","name":"x"}},{{"apiVersion":"apps/v9","kind":"{kind}","name":"{name}","controller":true}}]"#
    )
}

impl SourceControl {
    /// Creates a source with these objects as its initial state.
    fn new(names: &[&str]) -> (SourceControl, TestSource) {
        let (feed, scripted, ended) = SourceControl::scripted(names);
        (feed, TestSource { reflection: Reflection::with_seed(scripted, patient(), 7), ended })
    }

    /// As [`SourceControl::new`], but returns the server without a reflection over it.
    fn scripted(names: &[&str]) -> (SourceControl, Scripted, oneshot::Receiver<()>) {
        let (events, received) = mpsc::unbounded_channel();
        let (alive, ended) = oneshot::channel();
        let listed = Arc::new(Notify::new());
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let scripted = Scripted { names, listed: listed.clone(), events: Mutex::new(Some(received)) };
        (SourceControl { listed, events, version: 1, _alive: alive }, scripted, ended)
    }

    /// Allows the initial list.
    fn sync(&mut self) {
        self.listed.notify_one();
    }

    fn send(&mut self, kind: EventKind, name: &str, more: &str) {
        self.version += 1;
        self.events.send(WatchedEvent { kind, object: object(name, self.version, more) }).unwrap();
    }
}

/// The reconciled keys in order: `name@version`, or `name gone`.
type Log = Arc<Mutex<Vec<String>>>;

fn recording(log: &Log) -> impl Reconcile<Error = String> + use<> {
    let log = log.clone();
    move |request: Request| {
        let log = log.clone();
        async move {
            let seen = match request.object() {
                Some(object) => format!("{}@{}", object.name(), object.resource_version()),
                None => format!("{} gone", request.key().name()),
            };
            log.lock().unwrap().push(seen);
            Ok(Outcome::Done)
        }
    }
}

/// Lets every task run until all of them wait. The clock is paused, so no time passes.
async fn settle() {
    tokio::time::sleep(millis(1)).await;
}

fn take(log: &Log) -> Vec<String> {
    std::mem::take(&mut *log.lock().unwrap())
}

#[tokio::test(start_paused = true)]
async fn reconcile_starts_after_every_source_is_synced() {
    let (mut own, source) = SourceControl::new(&["a", "b"]);
    let (mut other, other_source) = SourceControl::new(&[]);
    let mut controller = Controller::new(ControllerConfig::new("test"), source);
    controller.watches(other_source, |_| Vec::new());
    let log = Log::default();
    let handle = controller.start(recording(&log));
    own.sync();
    settle().await;
    assert!(take(&log).is_empty(), "a reconcile saw a cache that was not loaded");
    other.sync();
    handle.synced().await;
    settle().await;
    assert_eq!(take(&log), ["a@1", "b@1"]);
    own.send(EventKind::Modified, "b", "");
    settle().await;
    own.send(EventKind::Deleted, "a", "");
    settle().await;
    assert_eq!(take(&log), ["b@2", "a gone"]);
    handle.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn synced_waits_for_every_source_or_for_the_end() {
    let (mut own, source) = SourceControl::new(&["a"]);
    let (mut other, other_source) = SourceControl::new(&[]);
    let mut controller = Controller::new(ControllerConfig::new("test"), source);
    controller.watches(other_source, |_| Vec::new());
    let handle = controller.start(recording(&Log::default()));
    own.sync();
    let early = tokio::time::timeout(Duration::from_secs(10), handle.synced()).await;
    assert!(early.is_err(), "synced before every source is");
    other.sync();
    tokio::time::timeout(millis(10), handle.synced()).await.expect("every source is synced");
    handle.stop().await.unwrap();

    let (own, source) = SourceControl::new(&["a"]);
    let handle = Controller::new(ControllerConfig::new("test"), source).start(recording(&Log::default()));
    drop(own);
    tokio::time::timeout(millis(100), handle.synced()).await.expect("a controller that ended will never be synced");
}

/// A source whose messages the test sends.
struct Messages {
    store: Store,
    messages: mpsc::UnboundedReceiver<SourceEvent>,
}

#[async_trait]
impl EventSource for Messages {
    fn store(&self) -> Store {
        self.store.clone()
    }

    async fn next(&mut self) -> Option<SourceEvent> {
        self.messages.recv().await
    }
}

#[tokio::test(start_paused = true)]
async fn source_that_is_synced_twice_counts_once() {
    let indexer = Indexer::new();
    let source = || {
        let (sender, messages) = mpsc::unbounded_channel();
        (sender, Messages { store: indexer.reader(), messages })
    };
    let ((own, source), (other, other_source)) = (source(), source());
    let mut controller = Controller::new(ControllerConfig::new("test"), source);
    controller.watches(other_source, |_| Vec::new());
    // A key that is added before the start waits for the sources as well.
    controller.queue().add(ObjectKey::new("shop", "a"));
    let log = Log::default();
    let handle = controller.start(recording(&log));
    own.send(SourceEvent::Synced).unwrap();
    own.send(SourceEvent::Synced).unwrap();
    settle().await;
    assert!(take(&log).is_empty(), "a reconcile saw a cache that was not loaded");
    other.send(SourceEvent::Synced).unwrap();
    settle().await;
    assert_eq!(take(&log), ["a gone"]);
    handle.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn live_change_precedes_the_initial_state() {
    let (mut own, source) = SourceControl::new(&["a", "b", "c"]);
    let log = Log::default();
    let begun = log.clone();
    let handle = Controller::new(ControllerConfig::new("test"), source).start(move |request: Request| {
        begun.lock().unwrap().push(request.key().name().to_owned());
        async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, String>(Outcome::Done)
        }
    });
    own.sync();
    handle.synced().await;
    settle().await;
    own.send(EventKind::Modified, "c", "");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(take(&log), ["a", "c", "b"], "a live change waited behind the initial state");
    handle.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn dropped_handle_stops_the_controller_at_once() {
    let (mut own, source) = SourceControl::new(&["a"]);
    let log = Log::default();
    let handle = Controller::new(ControllerConfig::new("test"), source).start(recording(&log));
    own.sync();
    handle.synced().await;
    settle().await;
    assert_eq!(take(&log), ["a@1"]);
    let queue = handle.queue().clone();
    drop(handle);
    settle().await;
    queue.add(ObjectKey::new("shop", "a"));
    settle().await;
    assert!(take(&log).is_empty(), "a controller without a handle still reconciles");
}

#[test]
fn controller_reports_its_end_when_its_runtime_is_dropped() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let first = runtime();
    let (_own, source) = SourceControl::new(&["a"]);
    let mut handle = first
        .block_on(async { Controller::new(ControllerConfig::new("test"), source).start(recording(&Log::default())) });
    drop(first);
    assert_eq!(runtime().block_on(handle.ended()), Ok(()));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the last reconcile panics")]
async fn panic_of_the_controllers_task_reaches_its_owner() {
    struct PanicsAtDrop;
    impl Drop for PanicsAtDrop {
        fn drop(&mut self) {
            panic!("the last reconcile panics");
        }
    }
    let (_own, source) = SourceControl::new(&[]);
    let captured = PanicsAtDrop;
    let handle = Controller::new(ControllerConfig::new("test"), source).start(move |_: Request| {
        let _ = &captured;
        async { Ok::<_, String>(Outcome::Done) }
    });
    settle().await;
    let _ = handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn owner_is_reconciled_for_gained_and_lost_dependents() {
    let (mut own, source) = SourceControl::new(&[]);
    let (mut owned, owned_source) = SourceControl::new(&[]);
    let mut controller = Controller::new(ControllerConfig::new("test"), source);
    let owner = OwnerType { group: "apps".to_owned(), kind: "Deployment".to_owned(), namespaced: true };
    controller.owns(owned_source, owner);
    let log = Log::default();
    let handle = controller.start(recording(&log));
    own.sync();
    owned.sync();
    handle.synced().await;
    owned.send(EventKind::Added, "pod", &owned_by("Deployment", "web"));
    settle().await;
    assert_eq!(take(&log), ["web gone"]);
    owned.send(EventKind::Modified, "pod", &owned_by("Deployment", "front"));
    settle().await;
    assert_eq!(take(&log), ["web gone", "front gone"], "an owner that lost an object was not told");
    owned.send(EventKind::Modified, "pod", &owned_by("StatefulSet", "front"));
    settle().await;
    assert_eq!(take(&log), ["front gone"]);
    owned.send(EventKind::Deleted, "pod", &owned_by("StatefulSet", "front"));
    settle().await;
    assert!(take(&log).is_empty(), "an owner of another kind is not ours");
    handle.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn mapped_source_enqueues_the_mapped_keys() {
    let (mut own, source) = SourceControl::new(&[]);
    let (mut other, other_source) = SourceControl::new(&["settings"]);
    let mut controller = Controller::new(ControllerConfig::new("test"), source);
    controller.watches(other_source, |object| {
        vec![ObjectKey::new(object.namespace(), "x"), ObjectKey::new(object.namespace(), "y")]
    });
    let log = Log::default();
    let handle = controller.start(recording(&log));
    own.sync();
    other.sync();
    handle.synced().await;
    settle().await;
    assert_eq!(take(&log), ["x gone", "y gone"]);
    handle.queue().add(ObjectKey::new("shop", "z"));
    settle().await;
    assert_eq!(take(&log), ["z gone"], "a key from elsewhere");
    handle.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reconcile_is_retried_after_error_panic_and_timeout() {
    let (mut own, source) = SourceControl::new(&["errs", "hangs", "panics", "panics-at-once"]);
    let mut config = ControllerConfig::new("test");
    config.timeout = Some(millis(500));
    let tries: Arc<Mutex<BTreeMap<String, u32>>> = Arc::default();
    let counting = tries.clone();
    let handle = Controller::new(config, source).start(move |request: Request| {
        let name = request.key().name().to_owned();
        let tried = {
            let mut tries = counting.lock().unwrap();
            let tried = tries.entry(name.clone()).or_default();
            *tried += 1;
            *tried
        };
        assert!(name != "panics-at-once" || tried > 3, "on purpose");
        assert_eq!(request.failures(), tried - 1, "a request knows how often it failed");
        async move {
            match name.as_str() {
                _ if tried > 3 => Ok(Outcome::Done),
                "errs" => Err("not today".to_owned()),
                "hangs" => std::future::pending().await,
                _ => panic!("on purpose"),
            }
        }
    });
    own.sync();
    handle.synced().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let tries = tries.lock().unwrap().clone();
    assert!(tries.values().all(|tried| *tried == 4), "each failure is tried again, and no success is: {tries:?}");
    let metrics = handle.metrics();
    assert_eq!((metrics.errors, metrics.timeouts, metrics.panics), (3, 3, 6));
    assert_eq!((metrics.done, metrics.active_workers, metrics.queue.failing), (4, 0, 0));
    assert_eq!(metrics.queue.retries, 12);
    let text = metrics.to_prometheus("test");
    assert!(text.contains("controller_runtime_reconcile_total{controller=\"test\",result=\"error\"} 12\n"), "{text}");
    handle.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requeue_after_reconciles_the_key_again() {
    let (mut own, source) = SourceControl::new(&["a"]);
    let times = Arc::new(AtomicU64::new(0));
    let counting = times.clone();
    let handle = Controller::new(ControllerConfig::new("test"), source).start(move |_: Request| {
        counting.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, String>(Outcome::RequeueAfter(Duration::from_secs(10))) }
    });
    own.sync();
    handle.synced().await;
    tokio::time::sleep(Duration::from_secs(35)).await;
    assert_eq!(times.load(Ordering::SeqCst), 4);
    assert_eq!(handle.metrics().requeued, 4);
    handle.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn key_has_one_worker_while_different_keys_run_in_parallel() {
    let names: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    let (mut own, source) = SourceControl::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut config = ControllerConfig::new("test");
    config.workers = 5;
    let running: Arc<Mutex<Vec<String>>> = Arc::default();
    let most = Arc::new(AtomicU64::new(0));
    let (inside, peak) = (running.clone(), most.clone());
    let handle = Controller::new(config, source).start(move |request: Request| {
        let (inside, peak) = (inside.clone(), peak.clone());
        async move {
            let name = request.key().name().to_owned();
            {
                let mut inside = inside.lock().unwrap();
                assert!(!inside.contains(&name), "two workers reconcile {name}");
                inside.push(name.clone());
                peak.fetch_max(inside.len() as u64, Ordering::SeqCst);
            }
            tokio::time::sleep(millis(100)).await;
            inside.lock().unwrap().retain(|other| *other != name);
            Ok::<_, String>(Outcome::Done)
        }
    });
    own.sync();
    handle.synced().await;
    for _ in 0..10 {
        tokio::time::sleep(millis(30)).await;
        names.iter().for_each(|name| own.send(EventKind::Modified, name, ""));
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    let metrics = handle.metrics();
    assert_eq!(most.load(Ordering::SeqCst), 5, "all workers work");
    assert_eq!((metrics.panics, metrics.queue.depth, metrics.max_workers), (0, 0, 5));
    handle.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reconcile_reads_its_own_previous_writes() {
    let (mut own, source) = SourceControl::new(&["a"]);
    let log = Log::default();
    let noted = log.clone();
    let mut config = ControllerConfig::new("test");
    config.write_wait = Duration::from_secs(3);
    let handle = Controller::new(config, source).start(move |request: Request| {
        let noted = noted.clone();
        async move {
            let seen = request.object().map(|object| object.resource_version().into_owned()).unwrap_or_default();
            noted.lock().unwrap().push(format!("{seen}{}", if request.is_behind() { " behind" } else { "" }));
            match seen.as_str() {
                "1" if !request.is_behind() => request.record_write(SourceId::OWN, "3"),
                _ => {}
            }
            Ok::<_, String>(Outcome::Done)
        }
    });
    own.sync();
    handle.synced().await;
    settle().await;
    assert_eq!(take(&log), ["1"]);
    own.send(EventKind::Modified, "a", "");
    tokio::time::sleep(millis(500)).await;
    assert!(take(&log).is_empty(), "a reconcile began with a cache older than what the one before it wrote");
    own.send(EventKind::Modified, "a", "");
    settle().await;
    let seen = take(&log);
    // The key may be reconciled twice, because both changes arrived while it waited.
    assert!(!seen.is_empty() && seen.iter().all(|version| version == "3"), "{seen:?}");
    handle.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn key_waits_for_the_newest_recorded_write_of_each_source() {
    const OWN: usize = 0;
    const OTHER: usize = 1;
    // The recorded writes, and the versions of both caches at which the key is reconciled again.
    async fn check(writes: &'static [(usize, &str)], own_version: u64, other_version: u64) {
        let (mut own, source) = SourceControl::new(&["a"]);
        let (mut other, other_source) = SourceControl::new(&["x"]);
        let mut controller = Controller::new(ControllerConfig::new("test"), source);
        let ids = [SourceId::OWN, controller.watches(other_source, |_| Vec::new())];
        let log = Log::default();
        let noted = log.clone();
        let handle = controller.start(move |request: Request| {
            let mut noted = noted.lock().unwrap();
            if noted.is_empty() {
                writes.iter().for_each(|(source, version)| request.record_write(ids[*source], version));
            }
            // The other keys do not wait.
            if request.key().name() == "a" {
                noted.push(request.cache(SourceId::OWN).snapshot().version().to_owned());
            }
            async { Ok::<_, String>(Outcome::Done) }
        });
        own.sync();
        other.sync();
        handle.synced().await;
        settle().await;
        assert_eq!(log.lock().unwrap().len(), 1);
        handle.queue().add(ObjectKey::new("shop", "a"));
        while other.version < other_version {
            other.send(EventKind::Modified, "x", "");
        }
        while own.version + 1 < own_version {
            own.send(EventKind::Modified, "b", "");
        }
        settle().await;
        assert_eq!(log.lock().unwrap().len(), 1, "{writes:?}: a reconcile began before the cache shows its writes");
        own.send(EventKind::Modified, "b", "");
        // A waiting key is checked at least once per second.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let versions = log.lock().unwrap().clone();
        assert_eq!(versions.get(1), Some(&own_version.to_string()), "{writes:?}: the caches show every write");
        handle.stop().await.unwrap();
    }
    check(&[(OWN, "4")], 4, 1).await;
    check(&[(OWN, "3"), (OWN, "5")], 5, 1).await;
    check(&[(OWN, "5"), (OWN, "3")], 5, 1).await;
    check(&[(OWN, "3"), (OTHER, "5")], 3, 5).await;
    check(&[(OTHER, "3"), (OWN, "5")], 5, 3).await;
}

#[tokio::test(start_paused = true)]
async fn reflection_that_was_polled_before_reports_its_state_to_a_controller() {
    let (mut own, server, _ended) = SourceControl::scripted(&["a", "b"]);
    let mut reflection = Reflection::with_seed(server, patient(), 7);
    own.sync();
    while !matches!(reflection.next().await, Notice::Synced) {}
    let log = Log::default();
    let handle = Controller::new(ControllerConfig::new("test"), reflection).start(recording(&log));
    tokio::time::timeout(Duration::from_secs(5), handle.synced()).await.expect("the source has its initial state");
    settle().await;
    assert_eq!(take(&log), ["a@1", "b@1"]);
    own.send(EventKind::Modified, "a", "");
    settle().await;
    assert_eq!(take(&log), ["a@2"]);
    handle.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn wait_for_an_own_write_is_bounded() {
    let (mut own, source) = SourceControl::new(&["a"]);
    let log = Log::default();
    let noted = log.clone();
    let mut config = ControllerConfig::new("test");
    config.write_wait = Duration::from_secs(3);
    let handle = Controller::new(config, source).start(move |request: Request| {
        noted.lock().unwrap().push(if request.is_behind() { "behind" } else { "current" }.to_owned());
        request.record_write(SourceId::OWN, "99");
        async { Ok::<_, String>(Outcome::Done) }
    });
    own.sync();
    handle.synced().await;
    settle().await;
    handle.queue().add(ObjectKey::new("shop", "a"));
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(take(&log), ["current", "behind"]);
    assert_eq!(handle.metrics().behind, 1);
    handle.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stopped_controller_finishes_within_its_deadline() {
    let (mut own, source) = SourceControl::new(&["a", "b", "c"]);
    let log = Log::default();
    let noted = log.clone();
    let slow = move |request: Request| {
        let noted = noted.clone();
        async move {
            let name = request.key().name().to_owned();
            noted.lock().unwrap().push(format!("{name} begun"));
            tokio::time::sleep(Duration::from_secs(if name == "c" { 3_600 } else { 5 })).await;
            noted.lock().unwrap().push(format!("{name} done"));
            Ok::<_, String>(Outcome::Done)
        }
    };
    let mut config = ControllerConfig::new("test");
    config.timeout = None;
    let handle = Controller::new(config, source).start(slow);
    own.sync();
    handle.synced().await;
    settle().await;
    let queue = handle.queue().clone();
    let begun = tokio::time::Instant::now();
    handle.stop().await.unwrap();
    assert_eq!(take(&log), ["a begun", "a done", "b begun", "b done", "c begun"]);
    assert_eq!(begun.elapsed().as_secs(), 25, "what takes longer than there is time is dropped");
    queue.add(ObjectKey::new("shop", "z"));
    assert_eq!(queue.depth(), 0, "a stopped controller takes nothing");
}

#[tokio::test(start_paused = true)]
async fn reconciles_dropped_at_the_end_of_the_drain_time_are_counted() {
    let (mut own, source) = SourceControl::new(&["a", "b", "c"]);
    let config = ControllerConfig { workers: 2, timeout: None, ..ControllerConfig::new("test") };
    let mut handle = Controller::new(config, source)
        .start(|_: Request| async { std::future::pending::<Result<Outcome, String>>().await });
    own.sync();
    handle.synced().await;
    settle().await;
    drop(own);
    assert!(handle.ended().await.is_err());
    let metrics = handle.metrics();
    assert_eq!((metrics.aborted, metrics.active_workers, metrics.done), (2, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn controller_reports_a_lost_source() {
    let (mut own, source) = SourceControl::new(&["a"]);
    let (other, other_source) = SourceControl::new(&[]);
    let mut controller = Controller::new(ControllerConfig::new("test"), source);
    let lost = controller.watches(other_source, |_| Vec::new());
    let mut handle = controller.start(recording(&Log::default()));
    own.sync();
    drop(other);
    let error = ControllerError::SourceEnded { which: lost };
    assert_eq!(handle.ended().await, Err(error.clone()));
    assert_eq!(handle.stop().await, Err(error), "it says so as often as it is asked");

    let (mut own, source) = SourceControl::new(&["a"]);
    let mut controller = Controller::new(ControllerConfig::new("test"), source);
    let (mut other, other_source) = SourceControl::new(&["bad"]);
    let broken = controller.watches(other_source, |_| panic!("cannot map this"));
    let mut handle = controller.start(recording(&Log::default()));
    own.sync();
    other.sync();
    let error = ControllerError::SourcePanicked { which: broken, message: "cannot map this".to_owned() };
    assert_eq!(handle.ended().await, Err(error));
}

#[tokio::test(start_paused = true)]
async fn two_controllers_share_one_informer() {
    let (mut feed, scripted, _ended) = SourceControl::scripted(&["a", "b"]);
    let config = InformerConfig { reflector: patient(), ..InformerConfig::named("shared") };
    let informer = SharedInformer::new(scripted, config);
    let logs = [Log::default(), Log::default()];
    let start = |log: &Log| {
        let source = InformerSource::new(&informer, "controller");
        Controller::new(ControllerConfig::new("test"), source).start(recording(log))
    };
    let first = start(&logs[0]);
    informer.start().unwrap();
    settle().await;
    assert!(take(&logs[0]).is_empty(), "a reconcile saw a cache that was not loaded");
    // The script has only one list and one watch.
    feed.sync();
    first.synced().await;
    settle().await;
    assert_eq!(take(&logs[0]), ["a@1", "b@1"]);
    let late = start(&logs[1]);
    late.synced().await;
    settle().await;
    assert_eq!(take(&logs[1]), ["a@1", "b@1"], "a late controller receives the current state");
    feed.send(EventKind::Modified, "a", "");
    feed.send(EventKind::Deleted, "b", "");
    settle().await;
    for log in &logs {
        assert_eq!(take(log), ["a@2", "b gone"]);
    }
    first.stop().await.unwrap();
    feed.send(EventKind::Modified, "a", "");
    settle().await;
    assert_eq!((take(&logs[0]).len(), take(&logs[1])), (0, vec!["a@4".to_owned()]), "one that ended stops no other");
    late.stop().await.unwrap();
}
