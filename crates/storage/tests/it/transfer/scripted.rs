//! Tests imports and relocations with a store whose faults, revisions and compactions the test controls.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use tokio::sync::Notify;

use listwatch_storage::transfer::{ImportError, Phase, Progress, Records, RelocatingStorage};

use super::*;

/// The kind of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Verb {
    Create,
    Update,
    Delete,
}

/// A store that adds faults to another one.
struct Scripted {
    inner: Arc<MemoryStorage>,
    /// The number of next writes that fail, by verb and by whether the key belongs to the import itself.
    faults: Mutex<HashMap<(Verb, bool), u32>>,
    fault: Option<StoreFault>,
    /// The number of revisions by which each write of a scratch key raises the store's revision, instead of one.
    step: u64,
    /// Revisions beyond those of the inner store.
    leap: AtomicU64,
    compactions: Mutex<Vec<u64>>,
    /// Creates wait in a queue for this, also after their caller is gone, as in the embedded store.
    commit: Option<Arc<Notify>>,
}

impl Scripted {
    fn new() -> Self {
        Scripted {
            inner: MemoryStorage::new(),
            faults: Mutex::default(),
            fault: None,
            step: 0,
            leap: AtomicU64::new(0),
            compactions: Mutex::default(),
            commit: None,
        }
    }

    fn fails(&self, verb: Verb, key: &Key) -> Result<(), StoreFault> {
        let mut faults = self.faults.lock().unwrap();
        match faults.get_mut(&(verb, key.as_str().starts_with("/listwatch.transfer/"))) {
            Some(left @ 1..) => {
                *left -= 1;
                Err(self.fault.clone().expect("a fault"))
            }
            _ => Ok(()),
        }
    }

    /// The revision of a write of the raised clock.
    fn stepped(&self, key: &Key, written: Revision) -> Revision {
        if self.step == 0 || !key.as_str().starts_with("/listwatch.transfer/clock") {
            return written;
        }
        Revision::new(written.get() + self.leap.fetch_add(self.step - 1, Ordering::Relaxed) + self.step - 1)
    }

    async fn wait(&self, key: &Key) {
        if self.step != 0 && key.as_str().starts_with("/listwatch.transfer/clock") {
            tokio::time::sleep(Duration::from_millis(130)).await;
        }
    }
}

#[async_trait]
impl Storage for Scripted {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        self.inner.get(key).await
    }
    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        self.inner.list(query).await
    }
    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        self.fails(Verb::Create, key)?;
        if let Some(commit) = self.commit.clone() {
            let (inner, key) = (self.inner.clone(), key.clone());
            let queued = tokio::spawn(async move {
                commit.notified().await;
                inner.create(&key, value, ttl).await
            });
            return queued.await.expect("the queue works");
        }
        self.wait(key).await;
        let written = self.inner.create(key, value, ttl).await?;
        Ok(self.stepped(key, written))
    }
    async fn update(
        &self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, UpdateError> {
        self.fails(Verb::Update, key)?;
        if self.step == 0 {
            return self.inner.update(key, expected, value, ttl).await;
        }
        // The writer knows the revision with the leap.
        self.wait(key).await;
        let (found, _) = self.inner.get(key).await.expect("the memory store answers");
        let expected = found.expect("the key exists").modified;
        let written = self.inner.update(key, expected, value, ttl).await?;
        Ok(self.stepped(key, written))
    }
    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
        self.fails(Verb::Delete, key)?;
        self.inner.delete(key, expected).await
    }
    fn normal_form(&self, _key: &Key, value: Bytes) -> Bytes {
        [b"normal ", &value[..]].concat().into()
    }
    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
        self.inner.watch(range, after).await
    }
    async fn current_revision(&self) -> Result<Revision, ReadError> {
        let now = self.inner.current_revision().await?;
        Ok(Revision::new(now.get() + self.leap.load(Ordering::Relaxed)))
    }
    async fn compact(&self, revision: Revision) -> Result<(), ReadError> {
        self.compactions.lock().unwrap().push(revision.get());
        if self.step == 0 { self.inner.compact(revision).await } else { Ok(()) }
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn health(&self) -> Result<(), StoreFault> {
        self.fault.clone().map_or(Ok(()), Err)
    }
    async fn stats(&self) -> Result<StoreStats, StoreFault> {
        self.inner.stats().await
    }
}

#[async_trait]
impl Source for Scripted {
    async fn records(&self) -> Result<Box<dyn Records + '_>, ReadError> {
        self.inner.records().await
    }
}

/// The client disconnects while its write waits in the queue of the source.
#[test]
fn write_of_a_dropped_request_is_not_lost_by_a_relocation() {
    run(async {
        let commit = Arc::new(Notify::new());
        let source = Arc::new(Scripted { commit: Some(commit.clone()), ..Scripted::new() });
        let (store, target) = (RelocatingStorage::new(source.clone()), MemoryStorage::new());
        let late = key("late");
        assert!(store.create(&late, value("late", 1), None).now_or_never().is_none(), "the write waits");
        let committing = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            commit.notify_one();
        });
        store.relocate(target.clone(), || Ok(()), &mut |_| {}).await.unwrap();
        committing.await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (executed, _) = source.inner.get(&late).await.unwrap();
        let (found, _) = target.get(&late).await.unwrap();
        assert_eq!(found.is_some(), executed.is_some(), "durable: the source executed the write after the last round");
    });
}

/// An export without records, at this revision.
fn empty_export(revision: u64) -> Vec<u8> {
    let time = std::time::SystemTime::UNIX_EPOCH;
    let header = transfer::ExportHeader { source: "a test".into(), revision: Revision::new(revision), time };
    let mut file = Vec::new();
    let encoder = transfer::Encoder::begin(&header, &mut file);
    encoder.end(&mut file);
    file
}

// ------------------------------------------------------------------------------ retries

/// Imports one record into a target whose writes fail. Returns the result, and the time that it took.
async fn import_with_faults(verb: Verb, of_import: bool, count: u32, fault: StoreFault) -> (bool, Duration) {
    let source = MemoryStorage::new();
    source.create(&key("a"), "new".into(), None).await.unwrap();
    let file = exported(&*source).await;
    let mut target = Scripted::new();
    target.fault = Some(fault);
    target.inner.create(&key("a"), "old".into(), None).await.unwrap();
    if verb == Verb::Create && !of_import {
        let (found, _) = target.inner.get(&key("a")).await.unwrap();
        target.inner.delete(&key("a"), found.unwrap().modified).await.unwrap();
    }
    target.faults.lock().unwrap().insert((verb, of_import), count);
    let options = ImportOptions { if_exists: IfExists::Overwrite, keep_clock: true, ..ImportOptions::default() };
    let target = Arc::new(target);
    let begun = tokio::time::Instant::now();
    let done = transfer::import(&target, &mut checked(&file), options, &mut |_| {}).await;
    if done.is_ok() {
        let left = list(&*target.inner).await;
        assert!(left.len() == 1 && left[0].value == "new", "the import is complete: {left:?}");
    }
    (done.is_ok(), begun.elapsed())
}

#[test]
fn import_tries_a_write_five_times_while_the_target_is_unreachable() {
    run(async {
        let unreachable = StoreFault::Unavailable("cut".into());
        for verb in [Verb::Create, Verb::Update, Verb::Delete] {
            for of_import in [true, false] {
                if verb == Verb::Delete && !of_import {
                    continue; // an import removes its own keys only
                }
                let what = format!("{verb:?}, a key of the import: {of_import}");
                let (done, took) = import_with_faults(verb, of_import, 4, unreachable.clone()).await;
                assert!(done, "the fifth attempt succeeds: {what}");
                assert_eq!(took.as_secs(), 4, "a second between attempts: {what}");
                let (done, _) = import_with_faults(verb, of_import, 5, unreachable.clone()).await;
                assert!(!done, "there is no sixth attempt: {what}");
                let (done, took) = import_with_faults(verb, of_import, 1, StoreFault::NoSpace("full".into())).await;
                assert!(!done && took < Duration::from_secs(1), "only an unreachable store is tried again: {what}");
            }
        }
    });
}

// ------------------------------------------------------------------------------ the raised clock

#[test]
fn import_raises_the_target_revision_by_at_most_a_hundred_million() {
    const MOST: u64 = 100_000_000;
    run(async {
        for (over, expected) in [(0, true), (1, false)] {
            let mut target = Scripted::new();
            // The first write reaches the goal.
            target.step = MOST;
            // The import's note takes a revision before the clock is raised.
            let goal = target.inner.current_revision().await.unwrap().get() + 1 + MOST + over;
            let target = Arc::new(target);
            match import(&target, &empty_export(goal), IfExists::Fail).await {
                Ok(done) => assert!(expected && done.raised >= MOST, "{done:?}"),
                Err(ImportError::TooFar { behind }) => assert_eq!((behind, expected), (MOST + over, false)),
                Err(other) => panic!("{other}"),
            }
        }
    });
}

/// 64 writers write every 130 ms, and progress is reported every 200 ms.
#[test]
fn raising_the_clock_reports_progress_and_compacts_every_hundred_thousand_revisions() {
    run(async {
        let mut target = Scripted::new();
        for n in 0..10 {
            let created = target.inner.create(&key("old"), value("old", n), None).await.unwrap();
            target.inner.delete(&key("old"), created).await.unwrap();
        }
        target.step = 1_000;
        let before = target.inner.current_revision().await.unwrap().get() + 1;
        let target = Arc::new(target);
        let mut reported = Vec::new();
        let mut progress = |progress: Progress| {
            if progress.phase == Phase::Clock {
                reported.push((progress.done, progress.total));
            }
        };
        let file = empty_export(before + 400_000);
        let options = ImportOptions::default();
        let done = transfer::import(&target, &mut checked(&file), options, &mut progress).await.unwrap();
        assert!(done.raised >= 400_000, "{done:?}");
        let total = Some(400_000);
        assert_eq!(reported, [64_000, 192_000, 256_000, 384_000].map(|done| (done, total)));
        let compactions = target.compactions.lock().unwrap().clone();
        let (last, during) = compactions.split_last().unwrap();
        assert_eq!(during, [before + 192_000, before + 384_000], "scratch keys use little space");
        assert!(*last >= before + done.raised, "versions from before the import expire: {last}");
    });
}

#[test]
fn import_into_a_target_at_the_source_revision_raises_nothing() {
    run(async {
        let target = MemoryStorage::new();
        let goal = target.current_revision().await.unwrap().get() + 1;
        let done = import(&target, &empty_export(goal), IfExists::Fail).await.unwrap();
        assert_eq!(done.raised, 0);
    });
}

/// Keys that an interrupted import left behind do not hide the keys behind them.
#[test]
fn target_with_scratch_keys_and_one_object_is_not_empty() {
    run(async {
        let target = MemoryStorage::new();
        for lane in 0..transfer::CLOCK_LANES {
            let scratch = Key::new("listwatch.transfer", None, &format!("clock-{lane:02}")).unwrap();
            target.create(&scratch, Bytes::new(), None).await.unwrap();
        }
        let object = Key::new("pods", Some("ns"), "a").unwrap();
        target.create(&object, "{}".into(), None).await.unwrap();
        let error = import(&target, &empty_export(1), IfExists::Fail).await.unwrap_err();
        assert!(matches!(&error, ImportError::NotEmpty { example } if *example == object), "{error}");
    });
}

// ------------------------------------------------------------------------------ moves

/// Runs `change` on the source in each progress report of this phase.
async fn moved(
    source: &Arc<MemoryStorage>,
    phase: Phase,
    mut change: impl FnMut(usize, Progress) + Send,
) -> (Result<transfer::Relocation, transfer::RelocateError>, Vec<Progress>) {
    let store = RelocatingStorage::new(source.clone());
    let mut reports = Vec::new();
    let mut progress = |progress: Progress| {
        if progress.phase == phase {
            change(reports.len(), progress);
            reports.push(progress);
        }
    };
    (store.relocate(MemoryStorage::new(), || Ok(()), &mut progress).await, reports)
}

/// Writes a value of a key now.
fn set(store: &MemoryStorage, name: &str, n: u64) {
    let written = async {
        match store.get(&key(name)).await.unwrap().0 {
            Some(found) => store.update(&key(name), found.modified, value(name, n), None).await.unwrap(),
            None => store.create(&key(name), value(name, n), None).await.unwrap(),
        }
    };
    written.now_or_never().expect("the memory store answers at once");
}

#[test]
fn relocation_counts_the_changes_of_each_round() {
    run(async {
        let source = MemoryStorage::new();
        for n in 0..10 {
            set(&source, &format!("k{n}"), n);
        }
        let (done, reports) = moved(&source, Phase::Write, |report, _| match report {
            // The first round writes ten records.
            0 => {
                for name in ["k1", "k2", "new"] {
                    set(&source, name, 77);
                }
                let removed = async {
                    let (found, _) = source.get(&key("k3")).await.unwrap();
                    source.delete(&key("k3"), found.unwrap().modified).await.unwrap();
                };
                removed.now_or_never().expect("the memory store answers at once");
            }
            // The second round writes three keys and removes one.
            10 => set(&source, "k4", 78),
            _ => {}
        })
        .await;
        let done = done.unwrap();
        assert_eq!((done.records, done.changes, done.rounds), (10, 5, 3), "{done:?}");
        let later: Vec<_> = reports[10..].iter().map(|report| (report.done, report.total)).collect();
        assert_eq!(later, [(1, Some(4)), (2, Some(4)), (3, Some(4)), (1, Some(1))]);
    });
}

#[test]
fn relocation_pauses_writes_once_a_round_has_at_most_200_changes() {
    run(async {
        for (changes, rounds) in [(200, 3), (201, 4)] {
            let source = MemoryStorage::new();
            set(&source, "k", 0);
            let (done, _) = moved(&source, Phase::Write, |report, _| {
                if report == 0 {
                    (0..changes).for_each(|n| set(&source, &format!("n{n}"), n));
                }
            })
            .await;
            let done = done.unwrap();
            assert_eq!((done.changes, done.rounds), (changes, rounds), "{done:?}");
        }
    });
}

#[test]
fn relocation_fails_when_clients_write_faster_than_it_copies() {
    run(async {
        let source = MemoryStorage::new();
        (0..201).for_each(|n| set(&source, &format!("k{n}"), n));
        let (done, _) = moved(&source, Phase::Write, |_, progress| {
            if progress.done == 1 {
                (0..201).for_each(|n| set(&source, &format!("k{n}"), n));
            }
        })
        .await;
        assert!(matches!(done, Err(transfer::RelocateError::Busy(201))), "{done:?}");
    });
}

#[test]
fn relocation_overtaken_by_compaction_restarts_five_times() {
    run(async {
        for (overtaken, expected) in [(4, true), (5, false)] {
            let source = MemoryStorage::new();
            // Two pages of records.
            (0..2_100).for_each(|n| set(&source, &format!("k{n}"), n));
            let mut left = overtaken;
            let (done, _) = moved(&source, Phase::Read, |_, progress| {
                // After the first page of an attempt.
                if progress.done < 2_100 && left > 0 {
                    left -= 1;
                    set(&source, "k0", left);
                    let now = source.current_revision().now_or_never().expect("an answer at once").unwrap();
                    let _ = source.compact(now).now_or_never();
                }
            })
            .await;
            assert_eq!(done.is_ok(), expected, "after {overtaken} compactions: {done:?}");
        }
    });
}

#[test]
fn relocating_store_delegates_to_the_store_that_it_serves() {
    run(async {
        let mut source = Scripted::new();
        source.fault = Some(StoreFault::NoSpace("full".into()));
        let inner = source.inner.clone();
        let source = Arc::new(source);
        let store = RelocatingStorage::new(source.clone());
        for n in 0..5 {
            store.create(&key(format!("k{n}")), value("k", n), None).await.unwrap();
        }
        assert_eq!(store.normal_form(&key("a"), "{}".into()), "normal {}");
        assert_eq!(store.current_revision().await, inner.current_revision().await);
        assert_eq!(store.health().await, source.health().await);
        let (stats, expected) = (store.stats().await.unwrap(), inner.stats().await.unwrap());
        assert_eq!((stats.revision, stats.keys), (expected.revision, expected.keys));
        let now = inner.current_revision().await.unwrap();
        store.compact(now).await.unwrap();
        assert_eq!(*source.compactions.lock().unwrap(), [now.get()]);

        let target = MemoryStorage::new();
        store.relocate(target.clone(), || Ok(()), &mut |_| {}).await.unwrap();
        assert_eq!(store.normal_form(&key("a"), "{}".into()), "{}");
        assert_eq!(store.current_revision().await, target.current_revision().await);
        assert_eq!(store.health().await, Ok(()));
        assert_eq!(store.stats().await.unwrap(), target.stats().await.unwrap());
        assert_eq!(*source.compactions.lock().unwrap(), [now.get()], "the source is not changed");
    });
}
