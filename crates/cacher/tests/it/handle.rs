//! The parts of a [`Cacher`] besides reads and watches: its state, its statistics and its end.

use std::time::Duration;

use crate::support::script::value;
use crate::support::store::TestStore;
use crate::support::{config, drain, key, options, quiet, scope, settle, watch};
use bytes::Bytes;
use listwatch_cacher::{Cacher, CacherStats, Delivery, EncodingCache, EncodingId, ReadError, WatcherStats};
use listwatch_meta::{Change, Object, ReadAt, Revision};
use listwatch_storage::{Storage as _, StoreFault};

const MINUTE: Duration = Duration::from_secs(60);

fn json(path: &str, fields: &[&str]) -> Bytes {
    value(path, fields).into_bytes().into()
}

#[tokio::test(start_paused = true)]
async fn peek_and_totals_return_the_cached_objects() {
    let store = TestStore::new();
    let cacher = Cacher::start(store.clone(), config(quiet()));
    cacher.wait_ready().await.unwrap();
    assert!(!cacher.is_direct());
    assert_eq!((cacher.object_totals(), cacher.object_bytes()), ((0, 0), 0));
    let mut bytes = 0;
    for path in ["a/x", "a/y"] {
        let revision = store.create(&key(path), json(path, &[]), None).await.unwrap();
        settle().await;
        let object = cacher.peek(&key(path)).expect("it is cached");
        assert_eq!((object.key(), object.revision()), (&key(path), revision));
        bytes += object.heap_size();
    }
    assert_eq!((cacher.object_totals(), cacher.object_bytes()), ((2, bytes), bytes));
    assert!(cacher.peek(&key("a/z")).is_none());

    let direct = Cacher::direct(store, config(quiet()));
    assert!(direct.is_direct());
    assert!(direct.peek(&key("a/x")).is_none(), "there is no cache");
    assert_eq!((direct.object_totals(), direct.object_bytes()), ((0, 0), 0));
}

#[tokio::test(start_paused = true)]
async fn write_and_its_event_share_one_object() {
    let store = TestStore::new();
    let cacher = Cacher::start(store.clone(), config(quiet()));
    cacher.wait_ready().await.unwrap();
    let (encodings, id) = (EncodingCache::new(1 << 20), EncodingId::new(1));
    let is_shared = |object: &Object| encodings.read(object, id, <[u8]>::to_vec).is_some();
    let written = |path: &str, value: &Bytes, revision: Revision, build: bool| {
        let build = || {
            assert!(build, "the cache has the object of {path}");
            Object::from_stored(key(path), revision, Change::Added, value, cacher.shape())
        };
        cacher.written(&key(path), revision, value, build).expect("an object")
    };

    // The response is ready before the event has arrived.
    let value = json("a/x", &[]);
    let revision = store.create(&key("a/x"), value.clone(), None).await.unwrap();
    let object = written("a/x", &value, revision, true);
    assert!(encodings.keep(&object, id, b"encoded"));
    settle().await;
    assert!(is_shared(&cacher.peek(&key("a/x")).expect("it is cached")), "the event took the object of the write");

    // The event has arrived before the response is built.
    assert!(is_shared(&written("a/x", &value, revision, false)), "the write took the object of the cache");
    // A response with another content is built for itself.
    let other = json("a/x", &["color=red"]);
    assert!(!is_shared(&written("a/x", &other, revision, true)));

    let direct = Cacher::direct(store, config(quiet()));
    let build = || Object::from_stored(key("a/x"), revision, Change::Added, &value, cacher.shape());
    assert!(!is_shared(&direct.written(&key("a/x"), revision, &value, build).expect("an object")), "there is no cache");
}

#[tokio::test(start_paused = true)]
async fn stopped_cache_is_not_ready_and_fails_reads_and_watches() {
    for start in [Cacher::start, Cacher::direct] {
        let store = TestStore::new();
        store.create(&key("a/x"), json("a/x", &[]), None).await.unwrap();
        let cacher = start(store, config(quiet()));
        assert_eq!(cacher.wait_ready().await, Ok(()));
        assert!(cacher.is_ready() && !cacher.is_stopped());
        let mut watcher = watch(&cacher, &scope("all"), &["rv=2"], MINUTE).await;
        cacher.stop(None);
        let closed = ReadError::Fault(StoreFault::Closed);
        assert_eq!(cacher.wait_ready().await, Err(closed.clone()), "direct: {}", cacher.is_direct());
        assert!(!cacher.is_ready() && cacher.is_stopped() && !cacher.stats().ready);
        for at in [ReadAt::MostRecent, ReadAt::Any] {
            assert_eq!(cacher.get(&key("a/x"), at).await.map(|found| found.is_some()), Err(closed.clone()));
        }
        let list = cacher.list(&scope("all"), &options(&[]).list(cacher.shape()).unwrap()).await;
        assert_eq!(list.map(|list| list.revision), Err(closed.clone()));
        let request = options(&["rv=2"]).watch(cacher.shape(), true).unwrap();
        let watch = cacher.watch(&scope("all"), &request, tokio::time::Instant::now() + MINUTE).await;
        assert_eq!(watch.map(|_| ()), Err(closed));
        settle().await;
        let (deliveries, ended) = drain(&mut watcher).await;
        assert!(deliveries.is_empty() && ended);
    }
}

#[tokio::test(start_paused = true)]
async fn wait_ready_with_an_unreachable_store_returns_when_the_cache_is_stopped() {
    let store = TestStore::new();
    store.down(true);
    let cacher = Cacher::start(store, config(quiet()));
    assert!(!cacher.is_ready());
    let waiting = tokio::spawn({
        let cacher = cacher.clone();
        async move { cacher.wait_ready().await }
    });
    tokio::time::sleep(10 * MINUTE).await;
    assert!(!waiting.is_finished(), "it waits without a limit");
    cacher.stop(None);
    assert_eq!(waiting.await.unwrap(), Err(ReadError::Fault(StoreFault::Closed)));
}

#[tokio::test(start_paused = true)]
async fn uncached_list_not_older_than_a_revision_is_served_up_to_the_latest_revision() {
    let store = TestStore::new();
    let revision = store.create(&key("a/x"), json("a/x", &[]), None).await.unwrap();
    let cacher = Cacher::direct(store, config(quiet()));
    let list = async |revision: Revision| {
        let rv = format!("rv={revision}");
        let list = cacher.list(&scope("all"), &options(&[&rv]).list(cacher.shape()).unwrap()).await;
        list.map(|list| list.items.count())
    };
    assert_eq!(list(revision.previous()).await, Ok(1));
    assert_eq!(list(revision).await, Ok(1));
    let requested = revision.next();
    let too_large = ReadError::TooLarge { requested, current: revision, retry_after_seconds: 0 };
    assert_eq!(list(requested).await, Err(too_large));
}

#[tokio::test(start_paused = true)]
async fn uncached_resource_has_statistics_of_its_reads_and_watches() {
    let store = TestStore::new();
    let cacher = Cacher::direct(store.clone(), config(quiet()));
    let mut revision = store.create(&key("a/x"), json("a/x", &[]), None).await.unwrap();
    let mut expected = CacherStats { name: "pods".to_owned(), ready: true, ..CacherStats::default() };
    assert_eq!(cacher.stats(), expected);

    let mut watcher = watch(&cacher, &scope("all"), &["bookmarks"], MINUTE).await;
    assert_eq!(drain(&mut watcher).await.0.len(), 2, "an object and a bookmark");
    (expected.revision, expected.store_lists, expected.watches_started) = (revision, 1, 1);
    (expected.initial_events, expected.bookmarks) = (1, 1);
    expected.watchers = WatcherStats { live: 1, ..WatcherStats::default() };
    assert_eq!(cacher.stats(), expected);
    assert_eq!(cacher.revision(), revision);

    revision = store.update(&key("a/x"), revision, json("a/x", &[]), None).await.unwrap();
    let (deliveries, _) = drain(&mut watcher).await;
    let [Delivery::Event(event)] = &deliveries[..] else { panic!("{deliveries:?}") };
    assert_eq!(event.encoded(EncodingId::new(1), |_, _| Bytes::from_static(b"encoded")), "encoded");
    (expected.events_received, expected.encodings, expected.encodings_bytes) = (1, 1, "encoded".len());
    assert_eq!(cacher.stats(), expected);
    drop(deliveries);
    expected.encodings_bytes = 0;
    assert_eq!(cacher.stats(), expected, "a dropped event holds no encodings");

    store.compact(revision).await.unwrap();
    let mut expired = watch(&cacher, &scope("all"), &["rv=1"], MINUTE).await;
    assert!(matches!(expired.next().await, Some(Delivery::Error(_))));
    drop((watcher, expired));
    (expected.watches_started, expected.expired_watches) = (2, 1);
    expected.watchers = WatcherStats::default();
    assert_eq!(cacher.stats(), expected);
}
