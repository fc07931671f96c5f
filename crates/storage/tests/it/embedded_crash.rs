//! SIGKILL at random moments: a child process writes and is killed, and its acknowledged writes
//! must be there; repeated on the same store.
#![cfg(all(feature = "embedded", unix))]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::{EmbeddedOptions, EmbeddedStorage, ListQuery, Retention, Storage};

/// Default number of kills.
const ROUNDS: u64 = 12;
/// The environment variable for the number of kills.
const ROUNDS_SET: &str = "LISTWATCH_CRASH_ROUNDS";
const WRITERS: usize = 8;
/// The environment variable that gives the child the store's path.
const CHILD: &str = "LISTWATCH_CRASH_TEST_STORE";

fn options() -> EmbeddedOptions {
    // A small window, so that kills also hit the removal of old revisions.
    let retention = Retention { age: Duration::ZERO, revisions: 100, bytes: 1 << 20 };
    EmbeddedOptions { retention, reserve_bytes: 0, ..EmbeddedOptions::default() }
}

fn key(writer: usize, n: u64) -> Key {
    Key::new("pods", Some(&format!("w{writer}")), &format!("k{}", n % 10)).unwrap()
}

fn value(writer: usize, n: u64) -> Bytes {
    let text = format!("{writer} {n} ");
    text.repeat(1 + (n as usize * 37 % 100)).into()
}

/// The child process: writes until it is killed, and prints each acknowledged write.
fn write_until_killed(path: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = EmbeddedStorage::open(path, options()).unwrap();
        println!("open {}", store.current_revision().await.unwrap());
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let store = store.clone();
                tokio::spawn(async move {
                    for n in 0.. {
                        let key = key(writer, n);
                        let at = store.get(&key).await.unwrap().0.map(|found| found.modified);
                        let written = match at {
                            None => store.create(&key, value(writer, n), None).await.unwrap(),
                            Some(at) if n % 7 == 3 => {
                                let revision = store.delete(&key, at).await.unwrap();
                                println!("gone {key} {revision}");
                                continue;
                            }
                            Some(at) => store.update(&key, at, value(writer, n), None).await.unwrap(),
                        };
                        println!("kept {key} {written} {writer} {n}");
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
    });
}

#[test]
fn acknowledged_writes_survive_sigkill() {
    if let Ok(path) = std::env::var(CHILD) {
        write_until_killed(&path);
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut acknowledged: BTreeMap<Key, (Revision, Option<Bytes>)> = BTreeMap::new();
    let mut last = Revision::ZERO;
    let rounds = std::env::var(ROUNDS_SET).map_or(ROUNDS, |rounds| rounds.parse().expect("a number of rounds"));
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "embedded_crash::acknowledged_writes_survive_sigkill", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The kill is scheduled by the number of writes, so it does not depend on the machine's
        // speed.
        let kill_after = 20 + round * 97 % 401;
        let mut seen = 0;
        while let Some(Ok(line)) = lines.next() {
            let words: Vec<&str> = line.split(' ').collect();
            let revision = |text: &str| Revision::new(text.parse().unwrap());
            match words[..] {
                // The last line of a killed child may be incomplete and is then ignored.
                ["open", now] => assert!(revision(now) >= last, "the revision went back from {last} to {now}"),
                ["kept", key, at, writer, n] => {
                    let value = value(writer.parse().unwrap(), n.parse().unwrap());
                    acknowledged.insert(Key::from_path(key).unwrap(), (revision(at), Some(value)));
                    last = last.max(revision(at));
                }
                ["gone", key, at] => {
                    acknowledged.insert(Key::from_path(key).unwrap(), (revision(at), None));
                    last = last.max(revision(at));
                }
                _ => continue,
            }
            seen += 1;
            if seen == kill_after {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(seen >= kill_after, "the child wrote only {seen} times");

        runtime.block_on(async {
            let store = EmbeddedStorage::open(&path, options()).unwrap();
            let now = store.current_revision().await.unwrap();
            assert!(now >= last, "the revision went back from {last} to {now}");
            for (key, (revision, value)) in &acknowledged {
                let found = store.get(key).await.unwrap().0;
                // A later unacknowledged write may have taken effect.
                let newer = found.as_ref().is_none_or(|found| found.modified > *revision);
                let same = found.as_ref().map(|found| &found.value) == value.as_ref()
                    && found.as_ref().is_none_or(|found| found.modified == *revision);
                assert!(same || newer && now > *revision, "{key}: acknowledged at {revision}, found {found:?}");
                if value.is_some() && found.is_none() {
                    // Only an unacknowledged removal explains this, and history contains it.
                    let at = Some(*revision);
                    let page = store.list(ListQuery { range: KeyRange::single(key), at, limit: 0 }).await;
                    assert!(page.is_err() || page.is_ok_and(|page| page.items.len() == 1), "{key} is lost");
                }
            }
            let all = ListQuery { range: KeyRange::resource("pods"), at: None, limit: 0 };
            assert!(store.list(all).await.is_ok(), "every value can be read");
            let seen = store.verify().await.unwrap();
            assert!(seen.is_clean() && seen.index_compared, "what is on disk contradicts itself: {seen:?}");
        });
    }
}
