//! Tests a store that moves to another one while clients use it. No acknowledged write is lost, and watches end with
//! `Expired`.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use listwatch_meta::{Key, KeyRange};
use listwatch_storage::transfer::{ImportError, RelocateError, RelocatingStorage};
use listwatch_storage::{ListQuery, MemoryStorage, Storage, UpdateError, WatchItem};

fn key(name: &str) -> Key {
    Key::new("configmaps", Some("ns"), name).expect("a legal name")
}

fn value(n: usize) -> Bytes {
    Bytes::from(format!(r#"{{"n":{n}}}"#))
}

async fn content(store: &dyn Storage) -> BTreeMap<String, Bytes> {
    let page = store.list(ListQuery { range: KeyRange::below("/"), at: None, limit: 0 }).await.unwrap();
    page.items.into_iter().map(|item| (item.key.as_str().to_owned(), item.value)).collect()
}

async fn filled(keys: usize) -> Arc<MemoryStorage> {
    let source = MemoryStorage::new();
    for n in 0..keys {
        source.create(&key(&format!("k{n}")), value(n), None).await.unwrap();
    }
    source
}

/// Writes to the keys of one writer until stopped. Returns the acknowledged writes.
async fn write_until(
    store: Arc<RelocatingStorage>,
    name: &'static str,
    stop: Arc<AtomicBool>,
) -> BTreeMap<String, Option<Bytes>> {
    let mut acknowledged = BTreeMap::new();
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        let key = key(&format!("{name}{}", n % 40));
        let (found, _) = store.get(&key).await.unwrap();
        let state = match found {
            None => store.create(&key, value(n), None).await.map(|_| Some(value(n))).unwrap(),
            Some(found) if n % 3 == 0 => {
                store.delete(&key, found.modified).await.map(|_| None).unwrap_or(Some(found.value))
            }
            Some(found) => match store.update(&key, found.modified, value(n), None).await {
                Ok(_) => Some(value(n)),
                // The store moved between the read and the write.
                Err(UpdateError::Conflict { .. }) => Some(found.value),
                Err(error) => panic!("{error}"),
            },
        };
        acknowledged.insert(key.as_str().to_owned(), state);
        n += 1;
        tokio::task::yield_now().await;
    }
    acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relocation_during_writes_keeps_every_acknowledged_write() {
    let (source, target) = (filled(2_000).await, MemoryStorage::new());
    let store = RelocatingStorage::new(source.clone());
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> =
        ["a", "b"].into_iter().map(|name| tokio::spawn(write_until(store.clone(), name, stop.clone()))).collect();
    let moved = store.relocate(target.clone(), || Ok(()), &mut |_| {}).await.unwrap();
    assert!(moved.records >= 2_000 && moved.rounds >= 3, "{moved:?}");
    let at_the_switch = source.current_revision().await.unwrap();
    assert!(moved.revision > at_the_switch, "no client travels back in time");
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut expected: BTreeMap<String, Bytes> =
        (0..2_000).map(|n| (key(&format!("k{n}")).as_str().to_owned(), value(n))).collect();
    for writer in writers {
        expected.extend(writer.await.unwrap().into_iter().filter_map(|(key, state)| Some((key, state?))));
    }
    assert_eq!(content(&*target).await, expected);
    assert_eq!(content(&*store).await, expected);
    assert_eq!(source.current_revision().await.unwrap(), at_the_switch, "the source gets no write after the switch");
}

#[tokio::test]
async fn watches_of_the_source_expire_at_the_switch_and_new_ones_follow_the_target() {
    let (source, target) = (filled(10).await, MemoryStorage::new());
    let store = RelocatingStorage::new(source.clone());
    let before = store.current_revision().await.unwrap();
    let mut watch = store.watch(KeyRange::below("/"), before).await.unwrap();
    let (found, _) = store.get(&key("k1")).await.unwrap();
    store.update(&key("k1"), found.unwrap().modified, value(77), None).await.unwrap();
    assert!(matches!(watch.next().await, Some(WatchItem::Event(_))));
    store.relocate(target, || Ok(()), &mut |_| {}).await.unwrap();
    assert_eq!(watch.next().await, Some(WatchItem::Expired { oldest: None }));
    assert_eq!(watch.next().await, None);
    let mut old = store.watch(KeyRange::below("/"), before).await.unwrap();
    let first = old.next().await;
    assert!(matches!(first, Some(WatchItem::Expired { .. })), "a version of the source is expired: {first:?}");
    let page = store.list(ListQuery { range: KeyRange::below("/"), at: None, limit: 0 }).await.unwrap();
    let mut watch = store.watch(KeyRange::below("/"), page.revision).await.unwrap();
    store.create(&key("new"), value(1), None).await.unwrap();
    let next = watch.next().await;
    assert!(matches!(&next, Some(WatchItem::Event(event)) if event.key() == &key("new")), "{next:?}");
}

#[tokio::test]
async fn update_with_a_resource_version_of_the_source_fails_with_a_conflict() {
    let (source, target) = (filled(3).await, MemoryStorage::new());
    let store = RelocatingStorage::new(source.clone());
    let (found, _) = store.get(&key("k0")).await.unwrap();
    store.relocate(target, || Ok(()), &mut |_| {}).await.unwrap();
    let stale = store.update(&key("k0"), found.unwrap().modified, value(9), None).await;
    let Err(UpdateError::Conflict { current: Some(current) }) = stale else { panic!("{stale:?}") };
    store.update(&key("k0"), current.modified, value(9), None).await.unwrap();
}

#[tokio::test]
async fn store_keeps_serving_the_source_after_a_failed_relocation() {
    let (source, target) = (filled(3).await, MemoryStorage::new());
    let store = RelocatingStorage::new(source.clone());
    let error = store.relocate(target.clone(), || Err(io::Error::other("no room")), &mut |_| {}).await.unwrap_err();
    assert!(matches!(error, RelocateError::Io(_)), "{error}");
    store.create(&key("new"), value(1), None).await.unwrap();
    assert!(source.get(&key("new")).await.unwrap().0.is_some(), "writes go to the source");
    let error = store.relocate(target, || Ok(()), &mut |_| {}).await.unwrap_err();
    assert!(matches!(error, RelocateError::Import(ImportError::NotEmpty { .. })), "{error}");
    let done = store.relocate(MemoryStorage::new(), || Ok(()), &mut |_| {}).await.unwrap();
    assert_eq!(done.records, 4);
    let error = store.relocate(MemoryStorage::new(), || Ok(()), &mut |_| {}).await.unwrap_err();
    assert!(matches!(error, RelocateError::Moved), "{error}");
}
