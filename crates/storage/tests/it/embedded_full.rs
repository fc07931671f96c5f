//! Tests a full file system: a small one in memory, mounted in the test's own namespace, if the
//! system permits it. Otherwise the test reports that it was skipped; the simulated disk of
//! `embedded/fault_tests.rs` covers most of it on every system.
#![cfg(all(feature = "embedded", target_os = "linux"))]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::{
    CreateError, DeleteError, EmbeddedOptions, EmbeddedStorage, Retention, Storage, StoreFault, WatchItem,
};

/// The environment variable that gives the child its mount point.
const MOUNTED: &str = "LISTWATCH_FULL_TEST_MOUNT";

/// The file system's size in MiB.
const SIZE_MIB: u32 = 6;

fn key(n: u64) -> Key {
    Key::new("pods", Some("ns"), &format!("k{n}")).unwrap()
}

/// Fills the file system twice: by the store's own writes, and by another file.
async fn fill(path: &Path, reserve_bytes: u64) {
    let retention = Retention { age: Duration::ZERO, revisions: 10_000, bytes: u64::MAX };
    let options = EmbeddedOptions { retention, reserve_bytes, ..EmbeddedOptions::default() };
    let store = EmbeddedStorage::open(path.join("store"), options).unwrap();
    let mut watch = store.watch(KeyRange::resource("pods"), Revision::ZERO).await.unwrap();
    let mut written = Vec::new();
    let error = loop {
        let n = written.len() as u64;
        match store.create(&key(n), Bytes::from(vec![n as u8; 20_000]), None).await {
            Ok(revision) => written.push(revision),
            Err(error) => break error,
        }
        assert!(n < 1000, "the file system is larger than it should be");
    };
    assert!(matches!(&error, CreateError::Fault(StoreFault::NoSpace(what)) if !what.is_empty()), "{error:?}");
    assert!(written.len() > 20, "only {} writes before: {error}", written.len());
    // Other files take all the room that the store leaves.
    let ballast = path.join("ballast");
    let mut taken = std::fs::File::create(&ballast).unwrap();
    let full = (0..10_000).find_map(|_| std::io::Write::write_all(&mut taken, &[0; 4096]).err()).unwrap();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    for again in 0..3 {
        let error = store.create(&key(2000 + again), Bytes::from(vec![0; 20_000]), None).await.unwrap_err();
        assert!(matches!(error, CreateError::Fault(StoreFault::NoSpace(_))), "{error:?}");
    }
    for (n, revision) in written.iter().enumerate() {
        let (found, _) = store.get(&key(n as u64)).await.expect("reads go on");
        assert_eq!(found.map(|found| (found.modified, found.value[0])), Some((*revision, n as u8)));
        let item = watch.next().await;
        assert!(
            matches!(&item, Some(WatchItem::Event(event)) if event.revision() == *revision),
            "watches go on: {item:?}"
        );
    }
    // Existing keys must be removable. A failure is allowed if it frees room.
    let mut refused = 0;
    for (n, revision) in written.iter().enumerate().take(8) {
        while let Err(error) = store.delete(&key(n as u64), *revision).await {
            assert!(matches!(error, DeleteError::Fault(StoreFault::NoSpace(_))), "{error:?}");
            refused += 1;
            assert!(refused < 1000, "nothing can be removed from a full store: {error}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    drop(taken);
    std::fs::remove_file(&ballast).unwrap();
    // The store frees room by deletes and compaction.
    for (n, revision) in written.iter().enumerate().take(written.len() / 2).skip(8) {
        store.delete(&key(n as u64), *revision).await.expect("deletes go on");
    }
    let now = store.current_revision().await.unwrap();
    store.compact(now).await.expect("compaction goes on");
    let mut tries = 0;
    let created = loop {
        match store.create(&key(3000), Bytes::from(vec![7; 20_000]), None).await {
            Ok(created) => break created,
            Err(error) => assert!(tries < 1000, "there is room again and writes do not go on: {error}"),
        }
        tries += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(created, now.next(), "what was refused took no revision");
    let seen = store.verify().await.unwrap();
    assert!(seen.is_clean() && seen.index_compared, "{seen:?}");
    store.close().await;
    let store = EmbeddedStorage::open(path.join("store"), options).unwrap();
    assert_eq!(store.current_revision().await, Ok(created));
    assert!(store.verify().await.unwrap().is_clean());
}

#[test]
fn full_file_system_fails_only_creates_and_updates() {
    if let Ok(path) = std::env::var(MOUNTED) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for (name, reserve_bytes) in [("reserve", 1 << 20), ("none", 0)] {
            println!("reserve: {name}");
            let path = Path::new(&path).join(name);
            std::fs::create_dir(&path).unwrap();
            runtime.block_on(fill(&path, reserve_bytes));
            std::fs::remove_dir_all(&path).unwrap();
        }
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display();
    let mount = format!("mount -t tmpfs -o size={SIZE_MIB}m tmpfs '{path}'");
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
        command
    };
    let can_mount = unshare(&mount).output().is_ok_and(|output| output.status.success());
    if !can_mount {
        eprintln!("SKIPPED: this system lets no ordinary process mount a file system; nothing was looked at");
        return;
    }
    let this = std::env::current_exe().unwrap();
    let script = format!("{mount} && exec '{}' --exact --nocapture \"$@\"", this.display());
    let output = unshare(&script)
        .args(["sh", "embedded_full::full_file_system_fails_only_creates_and_updates"])
        .env(MOUNTED, directory.path())
        .output()
        .unwrap();
    let text = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
