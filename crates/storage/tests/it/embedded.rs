//! The embedded store passes the suite, agrees with the model even across restarts, and rejects
//! foreign directories.
#![cfg(feature = "embedded")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::{
    CreateError, EmbeddedOptions, EmbeddedStorage, ListQuery, ReadError, Retention, Storage, StoreEvent, StoreFault,
    WatchItem,
};
use listwatch_store_conformance::{check_model, conformance_tests, operations};
use proptest::prelude::*;
use tempfile::TempDir;

fn open(path: impl AsRef<Path>) -> Arc<EmbeddedStorage> {
    EmbeddedStorage::open(path, EmbeddedOptions::default()).expect("the store opens")
}

/// A store in a directory that is removed at once: the open files stay usable.
fn scratch() -> Arc<EmbeddedStorage> {
    let directory = TempDir::new().expect("a temporary directory");
    let options = EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() };
    EmbeddedStorage::open(directory.path().join("store"), options).expect("the store opens")
}

fn key(name: &str) -> Key {
    Key::new("pods", Some("default"), name).unwrap()
}

conformance_tests! { async { scratch() } }

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn random_operations_on_the_embedded_store_agree_with_the_model(operations in operations(80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let directory = TempDir::new()?;
        let path = directory.path().join("store");
        let mut store = open(&path);
        let verdict = runtime.block_on(check_model(store.clone(), &operations, async || {
            store.close().await;
            store = open(&path);
            Some(store.clone() as Arc<dyn Storage>)
        }));
        prop_assert!(verdict.is_ok(), "{}", verdict.unwrap_err());
    }
}

#[tokio::test]
async fn history_and_time_to_live_survive_a_restart() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path());
    let start = store.current_revision().await.unwrap();
    let first = store.create(&key("a"), "1".into(), None).await.unwrap();
    let second = store.update(&key("a"), first, "2".into(), None).await.unwrap();
    let third = store.delete(&key("a"), second).await.unwrap();
    let short = store.create(&key("short"), "s".into(), Some(Duration::from_millis(600))).await.unwrap();
    drop(store);

    let store = open(directory.path());
    let reopened = store.current_revision().await.unwrap();
    // On a slow machine the TTL is over by now.
    assert!((short..=short.next()).contains(&reopened), "the clock goes on where it was: {reopened:?}, not {short:?}");
    let page = ListQuery { range: KeyRange::single(&key("a")), at: Some(first), limit: 0 };
    assert_eq!(store.list(page).await.unwrap().items[0].value, "1", "the past can be read");
    let mut watch = store.watch(KeyRange::resource("pods"), start).await.unwrap();
    for (revision, before) in [(first, None), (second, Some("1")), (third, Some("2")), (short, None)] {
        let Some(WatchItem::Event(event)) = watch.next().await else { panic!("an event") };
        let (StoreEvent::Put { previous, .. } | StoreEvent::Delete { previous, .. }) = &event;
        assert_eq!(
            (event.revision(), previous.as_ref().map(|p| p.value.as_ref())),
            (revision, before.map(str::as_bytes))
        );
    }
    let Some(WatchItem::Event(StoreEvent::Delete { key: gone, .. })) = watch.next().await else { panic!("a removal") };
    assert_eq!(gone, key("short"), "a key removes itself after its TTL though the store was closed meanwhile");
}

#[tokio::test]
async fn compaction_frees_disk_space_in_small_steps() {
    let directory = TempDir::new().unwrap();
    let retention = Retention { age: Duration::ZERO, revisions: 50, bytes: u64::MAX };
    let options = EmbeddedOptions { retention, ..EmbeddedOptions::default() };
    let store = EmbeddedStorage::open(directory.path(), options).unwrap();
    let mut at = store.create(&key("a"), Bytes::new(), None).await.unwrap();
    let start = at;
    for n in 0..800_u32 {
        at = store.update(&key("a"), at, vec![n as u8; 10_000].into(), None).await.unwrap();
    }
    let mut gone = store.watch(KeyRange::resource("pods"), start).await.unwrap();
    assert!(matches!(gone.next().await, Some(WatchItem::Expired { oldest: Some(_) })));
    let stats = store.stats().await.unwrap();
    assert_eq!(at.get() - stats.oldest.get(), 50, "the window holds 50 revisions");
    // 8 MB were written, 0.5 MB of them are within the window; redb reuses freed space.
    assert!(stats.disk_bytes.unwrap() < 5 << 20, "{:?} bytes on disk", stats.disk_bytes);
    store.close().await;

    let store = EmbeddedStorage::open(directory.path(), options).unwrap();
    assert_eq!(store.current_revision().await, Ok(at));
    assert_eq!(store.get(&key("a")).await.unwrap().0.unwrap().modified, at);
    let old = ListQuery { range: KeyRange::resource("pods"), at: Some(start), limit: 0 };
    assert!(matches!(store.list(old).await, Err(ReadError::Compacted { .. })), "what was forgotten stays forgotten");
}

#[tokio::test]
async fn closed_store_fails_every_call() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path());
    let created = store.create(&key("a"), Bytes::new(), None).await.unwrap();
    let mut watch = store.watch(KeyRange::resource("pods"), created).await.unwrap();
    let waiting = tokio::spawn(async move { watch.next().await });
    store.close().await;
    assert_eq!(waiting.await.unwrap(), None, "watches end");
    assert_eq!(store.create(&key("b"), Bytes::new(), None).await, Err(CreateError::Fault(StoreFault::Closed)));
    assert_eq!(store.get(&key("a")).await, Err(ReadError::Fault(StoreFault::Closed)));
    assert_eq!(store.health().await, Err(StoreFault::Closed));
    open(directory.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lagging_watcher_reads_old_values_from_disk() {
    let store = scratch();
    let mut watch = store.watch(KeyRange::resource("pods"), Revision::new(1)).await.unwrap();
    let mut at = Revision::ZERO;
    for n in 0..40_u8 {
        let value = Bytes::from(vec![n; 500_000]);
        at = match n {
            0 => store.create(&key("a"), value, None).await.unwrap(),
            _ => store.update(&key("a"), at, value, None).await.unwrap(),
        };
    }
    for n in 0..40_u8 {
        let Some(WatchItem::Event(StoreEvent::Put { current, previous })) = watch.next().await else { panic!("{n}") };
        assert!(current.value.iter().all(|byte| *byte == n), "event {n} holds another value");
        let expected = n.checked_sub(1);
        assert_eq!(previous.map(|previous| previous.value[0]), expected, "event {n} holds another previous value");
    }
}

#[tokio::test]
async fn full_store_fails_puts_but_not_deletes() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path());
    let created = store.create(&key("a"), Bytes::new(), None).await.unwrap();
    store.close().await;
    let options = EmbeddedOptions { reserve_bytes: u64::MAX / 2, ..EmbeddedOptions::default() };
    let store = EmbeddedStorage::open(directory.path(), options).unwrap();
    let error = store.create(&key("b"), Bytes::new(), None).await.unwrap_err();
    assert!(matches!(error, CreateError::Fault(StoreFault::NoSpace(_))), "{error}");
    store.delete(&key("a"), created).await.unwrap();
    store.compact(created).await.unwrap();
    assert_eq!(store.get(&key("a")).await.unwrap().0, None);
}

/// Prepares a directory and checks the error of opening it as a store.
fn check_refused(prepare: impl FnOnce(&Path), expected: &str) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("d");
    std::fs::create_dir(&path).unwrap();
    prepare(&path);
    let files = |path: &Path| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name()).filter(|name| name != "LOCK").collect();
        names.sort();
        names
    };
    let before = files(&path);
    let error = EmbeddedStorage::open(&path, EmbeddedOptions::default()).unwrap_err().to_string();
    let error = error.replace(&path.display().to_string(), "<dir>");
    assert!(error.contains(expected) && !error.contains('\n'), "{error:?} does not say {expected:?}");
    assert_eq!(files(&path), before, "a refused directory is left as it was");
}

#[test]
fn foreign_directory_is_rejected() {
    check_refused(
        |path| std::fs::write(path.join("notes.txt"), "mine").unwrap(),
        "<dir> is no store and not empty, it holds notes.txt; choose an empty or a new directory",
    );
    check_refused(
        |path| std::fs::write(path.join("store.redb"), "something else entirely").unwrap(),
        "<dir> is no store and not empty, it holds store.redb",
    );
    check_refused(
        |path| {
            drop(open(path));
            std::fs::write(path.join("FORMAT"), "listwatch embedded store, format 9\n").unwrap();
        },
        "has a format that this version does not read (listwatch embedded store, format 9)",
    );
    check_refused(
        |path| std::fs::write(path.join("FORMAT"), [0xff, 0xfe]).unwrap(),
        "has a format that this version does not read (unreadable)",
    );
    check_refused(|path| std::fs::create_dir(path.join("FORMAT")).unwrap(), "cannot use <dir> as a store");
    check_refused(
        |path| {
            drop(open(path));
            std::fs::remove_file(path.join("store.redb")).unwrap();
        },
        "the store in <dir> is damaged: store.redb is missing",
    );
    check_refused(
        |path| {
            drop(open(path));
            let file = std::fs::OpenOptions::new().write(true).open(path.join("store.redb")).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        },
        "the store in <dir> is damaged",
    );
    check_refused(
        |path| {
            std::fs::remove_dir(path).unwrap();
            std::fs::write(path, "a file").unwrap();
        },
        "cannot use <dir> as a store",
    );
}

#[test]
fn store_cannot_be_opened_twice() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path());
    let error = EmbeddedStorage::open(directory.path(), EmbeddedOptions::default()).unwrap_err().to_string();
    let expected = format!("is in use by process {}; stop that one first", std::process::id());
    assert!(error.contains(&expected) && error.contains(&directory.path().display().to_string()), "{error}");
    drop(store);
    open(directory.path());
}

#[test]
fn open_repeats_an_interrupted_creation_of_the_store() {
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("store.redb.new"), "half a store").unwrap();
    std::fs::write(directory.path().join("LOCK"), "1\n").unwrap();
    drop(open(directory.path()));
    // A crash between the creation of the store and of its format file.
    std::fs::remove_file(directory.path().join("FORMAT")).unwrap();
    drop(open(directory.path()));
    assert!(directory.path().join("FORMAT").exists());
}

#[cfg(unix)]
#[test]
fn store_files_are_accessible_by_the_owner_only() {
    use std::fs::{Permissions, metadata, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    let directory = TempDir::new().unwrap();
    let path = directory.path().join("above").join("store");
    let files = ["LOCK", "FORMAT", "store.redb"];
    let check = |when: &str| {
        let mode = |path: &Path| metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700, "the directory, {when}");
        for file in files {
            assert_eq!(mode(&path.join(file)), 0o600, "{file}, {when}");
        }
    };
    drop(open(&path));
    check("new");
    assert_eq!(metadata(directory.path().join("above")).unwrap().permissions().mode() & 0o077, 0, "the one above");

    set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    for file in files {
        set_permissions(path.join(file), Permissions::from_mode(0o644)).unwrap();
    }
    drop(open(&path));
    check("tightened");

    // A directory that existed before.
    let made = directory.path().join("made");
    std::fs::create_dir(&made).unwrap();
    set_permissions(&made, Permissions::from_mode(0o777)).unwrap();
    drop(open(&made));
    assert_eq!(metadata(&made).unwrap().permissions().mode() & 0o777, 0o700, "a directory made beforehand");
}
