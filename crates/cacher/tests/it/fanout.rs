//! Many watchers on real threads: all see the same order, and none misses an event.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{config, key, quiet};
use listwatch_cacher::{Cacher, Delivery, Limits, Scope, Watcher};
use listwatch_storage::{MemoryStorage, Storage};

const WATCHERS: usize = 1_000;
const UPDATES: usize = 1_000;
const WRITERS: usize = 4;

/// The history outlasts the test on a slow machine, so that no watcher expires.
const HISTORY_AGE: Duration = Duration::from_secs(3600);

async fn write(store: &MemoryStorage, writer: usize, updates: usize) {
    let key = key(&format!("a/w{writer}"));
    let value = format!(r#"{{"metadata":{{"name":"w{writer}"}}}}"#);
    let mut at = store.create(&key, value.clone().into(), None).await.unwrap();
    for _ in 1..updates {
        at = store.update(&key, at, value.clone().into(), None).await.unwrap();
    }
}

/// The revisions that a watcher delivers, up to `last`.
async fn read(mut watcher: Watcher, last: u64, dawdle: bool) -> Vec<u64> {
    let mut seen = Vec::new();
    while seen.last() != Some(&last) {
        match watcher.next().await {
            Some(Delivery::Event(event)) => seen.push(event.object().revision().get()),
            Some(Delivery::Bookmark { .. }) => {}
            other => panic!("the watch ended at {:?} with {other:?}", seen.last()),
        }
        if dawdle && seen.len() % 100 == 0 {
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
            }
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_watchers_see_thousand_updates_in_one_order() {
    let store = MemoryStorage::new();
    let first = store.current_revision().await.unwrap().get();
    let last = first + UPDATES as u64;
    let limits = Limits { history_age: HISTORY_AGE, watcher_queue_events_max: 32, ..quiet() };
    let cacher = Cacher::start(store.clone(), config(limits));
    cacher.wait_ready().await.unwrap();
    let rv = format!("rv={first}");
    let mut readers = Vec::new();
    let mut start = async |range: std::ops::Range<usize>| {
        for n in range {
            let watcher = crate::support::watch(&cacher, &Scope::All, &[&rv], Duration::from_secs(600)).await;
            readers.push(tokio::spawn(read(watcher, last, n % 10 == 0)));
        }
    };
    start(0..WATCHERS / 2).await;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move { write(&store, writer, UPDATES / WRITERS).await })
        })
        .collect();
    // The other half joins during the writes and begins at the same revision.
    start(WATCHERS / 2..WATCHERS).await;
    for writer in writers {
        writer.await.unwrap();
    }
    let expected: Vec<u64> = (first + 1..=last).collect();
    for (watcher, reader) in readers.into_iter().enumerate() {
        let seen = reader.await.unwrap();
        assert!(seen == expected, "watcher {watcher} saw {} updates, not all in order: {seen:?}", seen.len());
    }
    let stats = cacher.stats();
    assert_eq!(stats.events_received, UPDATES as u64);
    assert_eq!(stats.events_queued.min(1), 1, "some were live");
    assert_eq!(stats.expired_watches, 0);
    assert_eq!(stats.watchers.live + stats.watchers.lagging + stats.watchers.replaying, 0, "all have gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn initial_state_during_writes_has_no_gap_and_no_overlap() {
    let store = MemoryStorage::new();
    let limits = Limits { history_age: HISTORY_AGE, watcher_queue_events_max: 4, ..quiet() };
    let cacher = Cacher::start(store.clone(), config(limits));
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            let mut at = store.current_revision().await.unwrap();
            for n in 0..2_000 {
                let value = format!(r#"{{"metadata":{{"name":"n{n}"}}}}"#);
                at = store.create(&key(&format!("a/n{n:04}")), value.into(), None).await.unwrap();
                if n % 20 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            at.get()
        })
    };
    let mut readers = Vec::new();
    for _ in 0..50 {
        let watcher = crate::support::watch(&cacher, &Scope::All, &["bookmarks"], Duration::from_secs(600)).await;
        readers.push(tokio::spawn(async move {
            let mut watcher = watcher;
            let (mut names, mut end) = (std::collections::BTreeSet::new(), None);
            while names.len() < 2_000 {
                match watcher.next().await.expect("the watch continues") {
                    Delivery::Event(event) => {
                        let (name, revision) = (event.object().name().to_owned(), event.object().revision().get());
                        match end {
                            None => assert!(event.is_initial()),
                            Some(end) => assert!(revision > end, "{name}@{revision} comes after the state at {end}"),
                        }
                        assert!(names.insert(name.clone()), "{name} comes twice");
                    }
                    Delivery::Bookmark { revision, .. } => end = Some(revision.get()),
                    Delivery::Error(status) => panic!("{status}"),
                }
            }
        }));
        tokio::task::yield_now().await;
    }
    writer.await.unwrap();
    for reader in readers {
        reader.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_of_one_node_wakes_one_of_ten_thousand_watchers() {
    const NODES: usize = 10_000;
    let store = MemoryStorage::new();
    let cacher = Cacher::start(store.clone(), config(quiet()));
    let mut watchers = Vec::new();
    for node in 0..NODES {
        let fields = format!("fields=spec.nodeName=n{node}");
        let mut watcher =
            crate::support::watch(&cacher, &Scope::All, &["rv=0", &fields], Duration::from_secs(600)).await;
        assert!(watcher.try_next().is_none());
        watchers.push(watcher);
    }
    let before = cacher.stats();
    assert_eq!(before.watchers.live, NODES);
    for node in 0..10 {
        let value = format!(r#"{{"metadata":{{"name":"p"}},"spec":{{"nodeName":"n{node}"}}}}"#);
        store.create(&key(&format!("a/p{node}")), value.into(), None).await.unwrap();
    }
    for watcher in &mut watchers[..10] {
        assert!(matches!(watcher.next().await, Some(Delivery::Event(_))));
    }
    let queued = || cacher.stats().events_queued - before.events_queued;
    // The driver counts events after it has woken their watchers.
    let counted = async {
        while queued() < 10 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), counted).await.expect("each event is counted");
    assert_eq!(queued(), 10, "each event is pushed to one watcher");
    assert!(watchers[10..].iter_mut().all(|watcher| watcher.try_next().is_none()));
    let _: Arc<MemoryStorage> = store;
}
