//! Tests the store's guarantees through the cache: a watcher of the cache receives the same events
//! as a watcher of the store, for random writes and start revisions.

use std::time::Duration;

use crate::support::checker::{Seen, seen};
use crate::support::{config, drain, key, quiet, settle};
use listwatch_cacher::{Cacher, Scope};
use listwatch_meta::{Change, KeyRange, Revision};
use listwatch_storage::{MemoryStorage, Storage, StoreEvent, WatchItem};
use proptest::prelude::*;

const PATHS: [&str; 4] = ["a/x", "a/y", "b/x", "c/z"];

async fn write(store: &MemoryStorage, path: &str, delete: bool) {
    let key = key(path);
    let value = || format!(r#"{{"metadata":{{"name":"{}"}}}}"#, key.name()).into();
    match (store.get(&key).await.unwrap().0, delete) {
        (Some(found), true) => drop(store.delete(&key, found.modified).await.unwrap()),
        (Some(found), false) => drop(store.update(&key, found.modified, value(), None).await.unwrap()),
        (None, true) => {}
        (None, false) => drop(store.create(&key, value(), None).await.unwrap()),
    }
}

/// The events of the store's own watch: change, path, revision.
async fn store_events(store: &MemoryStorage, range: KeyRange, after: Revision) -> Vec<(Change, String, u64)> {
    let mut watch = store.watch(range, after).await.unwrap();
    watch.request_progress();
    let mut events = Vec::new();
    loop {
        match watch.next().await {
            Some(WatchItem::Event(event)) => {
                let change = match &event {
                    StoreEvent::Put { previous: None, .. } => Change::Added,
                    StoreEvent::Put { .. } => Change::Modified,
                    StoreEvent::Delete { .. } => Change::Deleted,
                };
                events.push((change, event.key().as_str()["/pods/".len()..].to_owned(), event.revision().get()));
            }
            Some(WatchItem::Progress(_)) => return events,
            other => panic!("{other:?}"),
        }
    }
}

proptest! {
    #[test]
    fn cached_watch_delivers_the_same_events_as_the_store(
        before in prop::collection::vec((prop::sample::select(PATHS.to_vec()), prop::bool::weighted(0.3)), 0..10),
        after in prop::collection::vec((prop::sample::select(PATHS.to_vec()), prop::bool::weighted(0.3)), 0..20),
        back in 0..30u64,
        namespaced in any::<bool>(),
        direct in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let store = MemoryStorage::new();
            for (path, delete) in &before {
                write(&store, path, *delete).await;
            }
            let start = if direct { Cacher::direct } else { Cacher::start };
            let cacher = start(store.clone(), config(quiet()));
            cacher.wait_ready().await.unwrap();
            for (path, delete) in &after {
                write(&store, path, *delete).await;
            }
            settle().await;
            let last = store.current_revision().await.unwrap().get();
            // Includes revisions before the cache's start, up to the store's oldest one.
            let from = last.saturating_sub(back).max(1);
            let (scope, range) = if namespaced {
                (Scope::Namespace("a".to_owned()), KeyRange::namespace("pods", "a"))
            } else {
                (Scope::All, KeyRange::resource("pods"))
            };
            let rv = format!("rv={from}");
            let mut watcher = crate::support::watch(&cacher, &scope, &[&rv], Duration::from_secs(60)).await;
            let (deliveries, ended) = drain(&mut watcher).await;
            let told: Vec<(Change, String, u64)> = deliveries
                .iter()
                .map(|delivery| match seen(delivery) {
                    Seen::Event(change, shown) => (change, shown.path, shown.revision),
                    other => panic!("{other:?}"),
                })
                .collect();
            let expected = store_events(&store, range, Revision::new(from)).await;
            assert_eq!(told, expected, "promise: a watch of the cache is a watch of the store");
            assert!(!ended);
        });
    }
}
