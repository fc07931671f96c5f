//! Maintenance of an embedded store: statistics, verification, defragmentation and restore.
#![cfg(feature = "embedded")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::join_all;
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::{
    EmbeddedOptions, EmbeddedStorage, KeyValue, ListQuery, OpenError, RestoreError, Retention, Storage, WatchItem,
};
use tempfile::TempDir;

fn open_with(path: &Path, retention: Retention) -> Arc<EmbeddedStorage> {
    let options = EmbeddedOptions { retention, reserve_bytes: 0, ..EmbeddedOptions::default() };
    EmbeddedStorage::open(path, options).expect("the store opens")
}

fn open(path: &Path) -> Arc<EmbeddedStorage> {
    open_with(path, Retention::default())
}

fn key(name: &str) -> Key {
    Key::new("pods", Some("default"), name).unwrap()
}

fn at(revision: u64) -> Revision {
    Revision::new(revision)
}

async fn listed(store: &EmbeddedStorage, at: Option<Revision>) -> Vec<KeyValue> {
    store.list(ListQuery { range: KeyRange::below("/"), at, limit: 0 }).await.expect("a list").items
}

async fn require_clean(store: &EmbeddedStorage) {
    let seen = store.verify().await.expect("a verification");
    assert!(seen.is_clean() && seen.index_compared, "{seen:?}");
}

/// Creates this many keys and changes each once.
async fn fill(store: &EmbeddedStorage, keys: u64) {
    for n in 0..keys {
        let created = store.create(&key(&format!("k{n}")), vec![n as u8; 3000].into(), None).await.unwrap();
        store.update(&key(&format!("k{n}")), created, vec![!n as u8; 2000].into(), None).await.unwrap();
    }
}

#[tokio::test]
async fn embedded_stats_agree_with_the_written_keys() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path());
    fill(&store, 20).await;
    let gone = store.get(&key("k7")).await.unwrap().0.unwrap();
    store.delete(&gone.key, gone.modified).await.unwrap();
    let stats = store.embedded_stats().unwrap();
    let names: usize = (0..20).filter(|n| *n != 7).map(|n| key(&format!("k{n}")).as_str().len()).sum();
    assert_eq!((stats.live_keys, stats.live_bytes), (19, 19 * 2000 + names as u64));
    assert_eq!((stats.revision, stats.oldest, stats.history_revisions), (at(42), at(0), 41));
    assert!(stats.history_bytes > 20 * 3000 + 2000, "{stats:?}");
    assert_eq!(stats.other_bytes().unwrap() + stats.live_bytes + stats.history_bytes, stats.file_bytes.unwrap());
    store.compact(stats.revision).await.unwrap();
    store.create(&key("next"), Bytes::new(), None).await.unwrap();
    store.close().await;

    let store = open(directory.path());
    let again = store.embedded_stats().unwrap();
    assert_eq!((again.live_keys, again.history_revisions), (20, 1));
    assert_eq!(again.live_bytes, stats.live_bytes + key("next").as_str().len() as u64, "as before it was closed");
    assert_eq!(again.oldest_at, None, "nobody knows when that was");
    require_clean(&store).await;
}

#[tokio::test]
async fn verification_reports_a_damaged_store() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path());
    fill(&store, 50).await;
    require_clean(&store).await;
    let marked = store.create(&key("marked"), Bytes::from_static(&[0xA5; 1500]), None).await.unwrap();
    store.close().await;
    let file = directory.path().join("store.redb");
    let mut bytes = std::fs::read(&file).unwrap();
    let mut hits = 0;
    for at in 0..bytes.len() - 1500 {
        if bytes[at..at + 1500].iter().all(|byte| *byte == 0xA5) {
            bytes[at + 700] ^= 1;
            hits += 1;
        }
    }
    assert!(hits > 0, "the value is in the file");
    std::fs::write(&file, &bytes).unwrap();

    let store = open(directory.path());
    let seen = store.verify().await.unwrap();
    assert_eq!((seen.found, seen.findings.len()), (1, 1), "{seen:?}");
    assert_eq!(seen.findings[0].revision, Some(marked));
    assert_eq!(seen.findings[0].to_string(), format!("the value of revision {marked} does not match its checksum"));
    assert!(seen.index_compared, "what is else is compared all the same");
    assert!(store.defragment().await.is_err(), "a copy does not make damage look sound");
    assert_eq!(store.get(&key("k1")).await.unwrap().0.unwrap().value.len(), 2000, "what is whole is served");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defragmentation_frees_space_while_serving() {
    let directory = TempDir::new().unwrap();
    let few = Retention { age: Duration::ZERO, revisions: 200, bytes: u64::MAX };
    let store = open_with(directory.path(), few);
    let create = async |n: u32| store.create(&key(&format!("old{n}")), vec![n as u8; 8000].into(), None).await;
    join_all((0..1500).map(create)).await;
    let delete = async |item: KeyValue| store.delete(&item.key, item.modified).await;
    join_all(listed(&store, None).await.into_iter().map(delete)).await;
    fill(&store, 100).await;
    // Reads and writes continue meanwhile.
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            let mut at = Revision::ZERO;
            for n in 0..300_u32 {
                at = match n {
                    0 => store.create(&key("busy"), Bytes::new(), None).await.unwrap(),
                    _ => store.update(&key("busy"), at, vec![n as u8; 5000].into(), None).await.unwrap(),
                };
                let (found, _) = store.get(&key("busy")).await.unwrap();
                assert_eq!(found.unwrap().modified, at, "a reader sees what was written");
                assert_eq!(store.get(&key("k5")).await.unwrap().0.unwrap().value.len(), 2000);
            }
            at
        }
    });
    let mut done = store.defragment().await.unwrap();
    let last = writer.await.unwrap();
    assert!(done.after_bytes.unwrap() * 3 < done.before_bytes.unwrap(), "{done:?}");
    require_clean(&store).await;
    // Then without other clients.
    let before = (listed(&store, None).await, listed(&store, Some(at(last.get() - 100))).await);
    done = store.defragment().await.unwrap();
    assert_eq!((listed(&store, None).await, listed(&store, Some(at(last.get() - 100))).await), before);
    let next = store.update(&key("busy"), last, Bytes::new(), None).await.unwrap();
    assert_eq!(next, last.next(), "giving space back takes no revision");
    let mut watch = store.watch(KeyRange::below("/"), last).await.unwrap();
    assert!(matches!(watch.next().await, Some(WatchItem::Event(event)) if event.revision() == next));
    store.close().await;

    let files: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(files.iter().all(|file| file != "store.redb.copy"), "{files:?}");
    let store = open_with(directory.path(), few);
    assert_eq!(store.current_revision().await, Ok(next), "{done:?}");
    assert_eq!(store.get(&key("k5")).await.unwrap().0.unwrap().value.len(), 2000);
    require_clean(&store).await;
}

#[tokio::test]
async fn open_removes_the_incomplete_copy_of_a_crashed_defragmentation() {
    let directory = TempDir::new().unwrap();
    open(directory.path()).close().await;
    std::fs::write(directory.path().join("store.redb.copy"), "half a copy").unwrap();
    let store = open(directory.path());
    assert!(!directory.path().join("store.redb.copy").exists());
    store.defragment().await.unwrap();
}

#[tokio::test]
async fn restored_store_continues_with_the_source_revisions() {
    let directory = TempDir::new().unwrap();
    let (first, second) = (directory.path().join("first"), directory.path().join("second"));
    let store = open(&first);
    fill(&store, 30).await;
    let hour = Duration::from_secs(3600);
    let lease = store.create(&key("lease"), "l".into(), Some(hour)).await.unwrap();
    let short = store.create(&key("short"), "s".into(), Some(Duration::from_millis(1))).await.unwrap();
    let present = listed(&store, Some(short)).await;
    assert_eq!(store.expires(present[0].modified), None);
    let expires = store.expires(lease);
    let left = expires.unwrap().duration_since(SystemTime::now()).unwrap();
    assert!(left <= hour && left > Duration::from_secs(3500), "{left:?}");

    let mut restore = EmbeddedStorage::restore(&second, EmbeddedOptions::default()).unwrap();
    for item in &present {
        let expires = match item.key.name() {
            "lease" => expires,
            "short" => Some(SystemTime::now()),
            _ => None,
        };
        restore.put(item.clone(), expires).unwrap();
    }
    restore.finish(at(500)).unwrap();
    let store = open(&second);
    assert_eq!(store.expires(lease), expires, "the time of removal is the same");
    // The expired key is removed at once; its removal is the first revision.
    let mut watch = store.watch(KeyRange::below("/"), at(500)).await.unwrap();
    assert!(matches!(watch.next().await, Some(WatchItem::Event(event)) if event.revision() == at(501)));
    assert_eq!(listed(&store, Some(at(500))).await, present, "keys, values and revisions are those of the other");
    let lost = store.watch(KeyRange::below("/"), at(499)).await.unwrap().next().await;
    assert!(matches!(lost, Some(WatchItem::Expired { .. })), "there is no history to watch from: {lost:?}");
    let k1 = present.iter().find(|item| item.key == key("k1")).unwrap();
    assert_eq!(store.update(&key("k1"), k1.modified, "new".into(), None).await, Ok(at(502)));
    require_clean(&store).await;
}

#[test]
fn restore_rejects_invalid_revisions_and_existing_stores() {
    let directory = TempDir::new().unwrap();
    let item = |name: &str, created, modified| {
        let (created, modified) = (at(created), at(modified));
        KeyValue { key: key(name), value: Bytes::new(), created, modified, stale: false }
    };
    let path = directory.path().join("store");
    let mut restore = EmbeddedStorage::restore(&path, EmbeddedOptions::default()).unwrap();
    restore.put(item("a", 5, 9), None).unwrap();
    let mut check = |item: KeyValue, expected: &str| {
        let refused = restore.put(item, None).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused:?} does not say {expected:?}");
    };
    check(item("b", 9, 9), "/pods/default/b has revision 9, which another key has too");
    check(item("a", 5, 10), "/pods/default/a comes twice");
    check(item("c", 8, 7), "/pods/default/c is of revision 8 to 7, which cannot be");
    check(item("c", 0, 7), "of revision 0 to 7");
    check(KeyValue { value: vec![0; 2 << 20].into(), ..item("c", 7, 7) }, "has 2097152 bytes, the limit is 1572864");
    let refused = restore.finish(at(8)).unwrap_err();
    assert!(matches!(refused, RestoreError::Revisions { .. }), "the clock is behind a key: {refused}");

    let left: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["LOCK"], "nothing of it stays");
    // A restore interrupted by a crash leaves no store and can be restarted.
    std::fs::write(path.join("store.redb.restoring"), "half a store").unwrap();
    let refused = EmbeddedStorage::open(&path, EmbeddedOptions::default()).unwrap_err();
    assert!(matches!(&refused, OpenError::Foreign { found, .. } if found == "store.redb.restoring"), "{refused}");
    EmbeddedStorage::restore(&path, EmbeddedOptions::default()).unwrap().finish(at(0)).unwrap();
    drop(open(&path));
    let refused = EmbeddedStorage::restore(&path, EmbeddedOptions::default()).unwrap_err();
    assert!(matches!(refused, OpenError::Exists { .. }), "{refused}");
}
