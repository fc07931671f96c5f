//! Tests copies between stores: exported records are imported in order, above the source's
//! revision, even after interruptions.

mod scripted;
mod totals;

use std::io::{self, Cursor, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt as _;
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::transfer::{
    self, CheckedExport, Comparison, Difference, ExportError, ExportFile, ExportRecords, IfExists, ImportError,
    ImportOptions, ImportSummary, Source,
};
use listwatch_storage::{
    Capabilities, CreateError, DeleteError, EmbeddedOptions, EmbeddedStorage, KeyValue, ListPage, ListQuery,
    MemoryStorage, ReadError, Storage, StoreFault, StoreStats, UpdateError, Watch, WatchError, WatchItem,
};
use proptest::prelude::*;

const HOUR: Duration = Duration::from_secs(3600);

fn key(name: impl AsRef<str>) -> Key {
    Key::new("configmaps", Some("ns"), name.as_ref()).expect("a legal name")
}

fn everything() -> KeyRange {
    KeyRange::below("/")
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(future)
}

fn value(name: &str, n: u64) -> Bytes {
    format!(r#"{{"kind":"ConfigMap","metadata":{{"name":"{name}","namespace":"ns"}},"n":{n}}}"#).into()
}

/// A store with history: `keys` keys, some of them changed, some removed.
async fn some_store(keys: u64) -> Arc<MemoryStorage> {
    let store = MemoryStorage::new();
    for n in 0..keys {
        let name = format!("k{:04}", (n * 7919) % 10_000);
        let created = store.create(&key(&name), value(&name, n), None).await.unwrap();
        match n % 5 {
            0 => drop(store.update(&key(&name), created, value(&name, n + 1), None).await.unwrap()),
            3 => drop(store.delete(&key(&name), created).await.unwrap()),
            _ => {}
        }
    }
    store
}

async fn exported(store: &(impl Source + ?Sized)) -> Vec<u8> {
    let mut file = Vec::new();
    transfer::export(store, "a test", &mut file, &mut |_| {}).await.unwrap();
    file
}

fn checked(file: &[u8]) -> CheckedExport<Cursor<Vec<u8>>> {
    CheckedExport::check(Cursor::new(file.to_vec()), &mut |_| {}).unwrap()
}

async fn import<S: Storage>(target: &Arc<S>, file: &[u8], if_exists: IfExists) -> Result<ImportSummary, ImportError> {
    let options = ImportOptions { if_exists, ..ImportOptions::default() };
    transfer::import(target, &mut checked(file), options, &mut |_| {}).await
}

async fn compare(one: &impl Source, other: &impl Source) -> Comparison {
    let (mut one, mut other) = (one.records().await.unwrap(), other.records().await.unwrap());
    transfer::compare(&mut *one, &mut *other, &mut |_| {}).await.unwrap()
}

async fn list(store: &impl Storage) -> Vec<KeyValue> {
    store.list(ListQuery { range: everything(), at: None, limit: 0 }).await.unwrap().items
}

/// A store whose three keys have a TTL of an hour, as a source of records.
async fn with_ttls<S: Source>(store: Arc<S>) -> (Arc<S>, Vec<Revision>) {
    let mut revisions = Vec::new();
    for name in ["a", "b", "c"] {
        revisions.push(store.create(&key(name), value(name, 0), Some(HOUR)).await.unwrap());
    }
    (store, revisions)
}

async fn check_ttls_of_changed_keys<S: Source>((store, revisions): (Arc<S>, Vec<Revision>)) {
    let mut records = store.records().await.unwrap();
    store.update(&key("a"), revisions[0], value("a", 1), None).await.unwrap();
    store.update(&key("b"), revisions[1], value("b", 1), Some(HOUR * 9)).await.unwrap();
    store.delete(&key("c"), revisions[2]).await.unwrap();
    let page = records.next_page().await.unwrap();
    assert_eq!(page.len(), 3, "the records are those of the first revision");
    for record in page {
        let ttl = record.ttl.unwrap_or_else(|| panic!("{:?} never expires in the target", record.entry.key));
        // Deadlines are rounded up.
        let is_left = (HOUR - Duration::from_secs(60)..HOUR + Duration::from_secs(1)).contains(&ttl);
        assert!(is_left, "{ttl:?} are left of {:?}", record.entry.key);
    }
}

#[tokio::test]
async fn export_keeps_the_ttl_of_a_key_that_is_changed_or_removed_meanwhile() {
    check_ttls_of_changed_keys(with_ttls(MemoryStorage::new()).await).await;
    let directory = tempfile::tempdir().unwrap();
    let store = EmbeddedStorage::open(directory.path(), EmbeddedOptions::default()).unwrap();
    check_ttls_of_changed_keys(with_ttls(store).await).await;
}

/// Checks the target after an import of all records of the source.
async fn assert_moved(source: &MemoryStorage, target: &MemoryStorage) {
    let compared = compare(source, target).await;
    assert!(compared.is_equal(), "not the same, or in another order: {compared:?}");
    let clock = source.current_revision().await.unwrap();
    for item in list(target).await {
        assert!(item.modified > clock, "{item:?} is not above the source's clock {clock}: time runs back");
    }
}

#[test]
fn imported_objects_keep_content_and_order_at_newer_revisions() {
    run(async {
        let source = some_store(400).await;
        let target = MemoryStorage::new();
        let file = exported(&*source).await;
        let done = import(&target, &file, IfExists::Fail).await.unwrap();
        assert_eq!(done.created, list(&*source).await.len() as u64);
        assert!(done.raised > 0 && !done.resumed);
        assert_moved(&source, &target).await;
        // The import's notes are removed and never exported.
        let again = exported(&*target).await;
        assert_eq!(checked(&again).end().records, done.created);
        // A target that is ahead needs no raised clock.
        let far = some_store(2_000).await;
        let empty = list(&*far).await;
        for item in empty {
            far.delete(&item.key, item.modified).await.unwrap();
        }
        let done = import(&far, &file, IfExists::Fail).await.unwrap();
        assert_eq!(done.raised, 0);
        assert_moved(&source, &far).await;
    });
}

/// A client that resumes from an old version must not get changes that skip a removal.
#[test]
fn watch_from_a_revision_before_the_import_expires() {
    run(async {
        let source = some_store(100).await;
        let clock = source.current_revision().await.unwrap();
        let target = MemoryStorage::new();
        import(&target, &exported(&*source).await, IfExists::Fail).await.unwrap();
        for old in [1, 2, clock.get() / 2, clock.get() - 1] {
            let mut watch = target.watch(everything(), Revision::new(old)).await.unwrap();
            let first = watch.next().await;
            assert!(matches!(first, Some(WatchItem::Expired { .. })), "from {old}: {first:?}");
        }
        // The clock stays if requested.
        let target = MemoryStorage::new();
        let options = ImportOptions { keep_clock: true, ..ImportOptions::default() };
        let file = exported(&*source).await;
        let done = transfer::import(&target, &mut checked(&file), options, &mut |_| {}).await.unwrap();
        assert_eq!(done.raised, 0);
        assert!(target.current_revision().await.unwrap() < clock);
        assert!(compare(&*source, &*target).await.is_equal());
    });
}

#[test]
fn export_shows_one_revision_despite_writes() {
    /// Writes to the store whenever a part of the export is written.
    struct ConcurrentWriter {
        store: Arc<MemoryStorage>,
        out: Vec<u8>,
        writes: u64,
    }
    impl Write for ConcurrentWriter {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            self.writes += 1;
            let (store, n) = (self.store.clone(), self.writes);
            let written = async move {
                let first = list(&*store).await.remove(0);
                store.delete(&first.key, first.modified).await.unwrap();
                store.create(&key(format!("z{n}")), value("z", n), None).await.unwrap();
            };
            written.now_or_never().expect("the memory store answers at once");
            self.out.extend_from_slice(buffer);
            Ok(buffer.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    run(async {
        let store = some_store(9_000).await;
        let before = list(&*store).await;
        let mut out = ConcurrentWriter { store: store.clone(), out: Vec::new(), writes: 0 };
        let summary = transfer::export(&*store, "a test", &mut out, &mut |_| {}).await.unwrap();
        assert!(out.writes > 3, "too few pages for this test to mean anything");
        assert_eq!(summary.end.records, before.len() as u64);
        let mut records = ExportRecords::begin(&out.out[..]).unwrap();
        for expected in before {
            let (_, record) = records.next_record().unwrap().expect("a record for each object");
            assert_eq!(record.entry, expected);
        }
        assert_eq!(records.next_record().unwrap(), None);
    });
}

#[test]
fn export_overtaken_by_compaction_fails_and_file_export_restarts() {
    run(async {
        let store = some_store(9_000).await;
        let mut overtaken = 0;
        let compact = |store: &Arc<MemoryStorage>| {
            let (store, more) = (store.clone(), key("more"));
            let written = async {
                let created = store.create(&more, Bytes::new(), None).await.unwrap();
                store.delete(&more, created).await.unwrap()
            };
            let gone = written.now_or_never().expect("the memory store answers at once");
            // The compaction takes effect at once; its trimming continues in steps.
            let _ = store.compact(gone).now_or_never();
        };
        let mut each_time = |_| {
            compact(&store);
            overtaken += 1;
        };
        let error = transfer::export(&*store, "a test", &mut Vec::new(), &mut each_time).await.unwrap_err();
        assert!(matches!(error, ExportError::Overtaken { .. }), "{error}");

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backup.lwx");
        let file = ExportFile::new(&path, false);
        let error = file.write(&*store, "a test", &mut each_time).await.unwrap_err();
        assert!(matches!(error, ExportError::Overtaken { .. }), "{error}");
        assert_eq!(overtaken, 1 + transfer::EXPORT_ATTEMPTS_MAX);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a torn export was left behind");

        // Overtaken only once: the second try is complete.
        let mut once = Some(());
        let mut first_time = |_| {
            if once.take().is_some() {
                compact(&store);
            }
        };
        let summary = file.write(&*store, "a test", &mut first_time).await.unwrap();
        assert_eq!(summary.end.records, list(&*store).await.len() as u64);
        let mut whole = CheckedExport::check(std::fs::File::open(&path).unwrap(), &mut |_| {}).unwrap();
        assert!(whole.next_record().unwrap().is_some());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "the file holds Secrets");
        }
        // An existing file is replaced only if requested.
        let error = file.write(&*store, "a test", &mut |_| {}).await.unwrap_err();
        assert!(matches!(error, ExportError::Io(ref error) if error.kind() == io::ErrorKind::AlreadyExists), "{error}");
        ExportFile::new(&path, true).write(&*store, "a test", &mut |_| {}).await.unwrap();
    });
}

#[test]
fn import_into_nonempty_target_fails_by_default() {
    run(async {
        let source = some_store(50).await;
        let file = exported(&*source).await;
        let first = list(&*source).await.remove(0);
        let target = async || {
            let target = MemoryStorage::new();
            target.create(&first.key, "{}".into(), None).await.unwrap();
            target.create(&key("of-its-own"), "{}".into(), None).await.unwrap();
            target
        };
        let refused = target().await;
        let error = import(&refused, &file, IfExists::Fail).await.unwrap_err();
        assert!(matches!(&error, ImportError::NotEmpty { .. }), "{error}");
        assert_eq!(list(&*refused).await.len(), 2, "a refused import wrote something");

        let kept = target().await;
        let done = import(&kept, &file, IfExists::Skip).await.unwrap();
        assert_eq!((done.skipped, done.replaced), (1, 0));
        let compared = compare(&*source, &*kept).await;
        assert_eq!(
            compared.examples,
            [Difference::Value(first.key.clone()), Difference::OnlySecond(key("of-its-own"))]
        );

        let replaced = target().await;
        let done = import(&replaced, &file, IfExists::Overwrite).await.unwrap();
        assert_eq!((done.skipped, done.replaced), (0, 1));
        let compared = compare(&*source, &*replaced).await;
        assert_eq!(compared.examples, [Difference::OnlySecond(key("of-its-own"))]);
        assert_eq!(compared.out_of_order, 0);
    });
}

#[test]
fn import_keeps_ttls() {
    run(async {
        let source = MemoryStorage::new();
        source.create(&key("for-ever"), "{}".into(), None).await.unwrap();
        source.create(&key("for-an-hour"), "{}".into(), Some(HOUR)).await.unwrap();
        tokio::time::sleep(HOUR / 2).await;
        let target = MemoryStorage::new();
        import(&target, &exported(&*source).await, IfExists::Fail).await.unwrap();
        assert!(compare(&*source, &*target).await.is_equal());
        tokio::time::sleep(HOUR / 2 - Duration::from_secs(1)).await;
        assert_eq!(list(&*target).await.len(), 2, "it went early");
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(list(&*target).await.len(), 1, "it stayed");
        // A TTL on one side only is a difference.
        let forgetful = MemoryStorage::new();
        forgetful.create(&key("for-ever"), "{}".into(), Some(HOUR)).await.unwrap();
        assert_eq!(compare(&*target, &*forgetful).await.examples, [Difference::Ttl(key("for-ever"))]);
    });
}

#[test]
fn compare_detects_another_order_of_changes() {
    run(async {
        let (one, other) = (MemoryStorage::new(), MemoryStorage::new());
        for name in ["a", "b", "c"] {
            one.create(&key(name), "{}".into(), None).await.unwrap();
        }
        for name in ["a", "c", "b"] {
            other.create(&key(name), "{}".into(), None).await.unwrap();
        }
        let compared = compare(&*one, &*other).await;
        assert_eq!((compared.differences, compared.out_of_order), (0, 1));
        assert!(!compared.is_equal());
    });
}

/// A store that fails after this many writes; a negative number means never. The failing write may
/// or may not have taken effect, as on a network.
struct Failing {
    inner: Arc<MemoryStorage>,
    left: AtomicI64,
}

impl Failing {
    fn fault(&self) -> Option<StoreFault> {
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        (left <= 0).then(|| StoreFault::Unavailable("cut".into()))
    }
}

#[async_trait]
impl Storage for Failing {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        self.inner.get(key).await
    }
    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        self.inner.list(query).await
    }
    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        let fault = self.fault();
        if fault.is_none() || self.left.load(Ordering::Relaxed) % 2 == 0 {
            let created = self.inner.create(key, value, ttl).await;
            return fault.map_or(created, |fault| Err(fault.into()));
        }
        Err(fault.unwrap().into())
    }
    async fn update(
        &self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, UpdateError> {
        match self.fault() {
            None => self.inner.update(key, expected, value, ttl).await,
            Some(fault) => Err(fault.into()),
        }
    }
    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
        match self.fault() {
            None => self.inner.delete(key, expected).await,
            Some(fault) => Err(fault.into()),
        }
    }
    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
        self.inner.watch(range, after).await
    }
    async fn current_revision(&self) -> Result<Revision, ReadError> {
        self.inner.current_revision().await
    }
    async fn compact(&self, revision: Revision) -> Result<(), ReadError> {
        self.inner.compact(revision).await
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn health(&self) -> Result<(), StoreFault> {
        self.inner.health().await
    }
    async fn stats(&self) -> Result<StoreStats, StoreFault> {
        self.inner.stats().await
    }
}

#[test]
fn import_fails_after_an_interrupted_import_of_another_export() {
    run(async {
        let (one, other) = (some_store(400).await, some_store(41).await);
        let target = MemoryStorage::new();
        let cut = Arc::new(Failing { inner: target.clone(), left: AtomicI64::new(800) });
        let error = import(&cut, &exported(&*one).await, IfExists::Fail).await.unwrap_err();
        assert!(matches!(error, ImportError::Store { .. }), "{error}");
        let error = import(&target, &exported(&*other).await, IfExists::Fail).await.unwrap_err();
        assert!(matches!(error, ImportError::Interrupted { .. }), "{error}");
        let done = import(&target, &exported(&*other).await, IfExists::Overwrite).await.unwrap();
        assert!(!done.resumed);
        let compared = compare(&*other, &*target).await;
        assert!(compared.examples.iter().all(|example| matches!(example, Difference::OnlySecond(_))), "{compared:?}");
    });
}

#[test]
fn write_of_another_client_during_import_is_detected() {
    run(async {
        let source = some_store(40).await;
        let file = exported(&*source).await;
        let target = MemoryStorage::new();
        let last = list(&*source).await.into_iter().max_by_key(|item| item.modified).unwrap();
        let mut meddled = false;
        let mut meddle = |progress: transfer::Progress| {
            if progress.phase == transfer::Phase::Write && !std::mem::replace(&mut meddled, true) {
                let created = target.create(&last.key, "{}".into(), None);
                created.now_or_never().expect("the memory store answers at once").unwrap();
            }
        };
        let done = transfer::import(&target, &mut checked(&file), ImportOptions::default(), &mut meddle).await;
        assert!(matches!(done, Err(ImportError::Disturbed { key }) if key == last.key));
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// After interruptions at any number of writes, the import completes in order and above the
    /// source's revision.
    #[test]
    fn interrupted_import_completes_on_rerun(keys in 1..60_u64, cuts in proptest::collection::vec(0..160_i64, 0..6)) {
        run(async {
            let source = some_store(keys).await;
            let file = exported(&*source).await;
            let target = MemoryStorage::new();
            for cut in cuts {
                let cut = Arc::new(Failing { inner: target.clone(), left: AtomicI64::new(cut) });
                match import(&cut, &file, IfExists::Fail).await {
                    Err(ImportError::Store { .. }) => {}
                    // The import succeeded, so the target is no longer empty and further imports
                    // fail.
                    Ok(_) => return assert_moved(&source, &target).await,
                    Err(other) => panic!("{other}"),
                }
            }
            import(&target, &file, IfExists::Fail).await.unwrap();
            assert_moved(&source, &target).await;
        });
    }

    /// A truncated or damaged file never reaches the target.
    #[test]
    fn damaged_export_is_rejected_before_any_write(cut in any::<prop::sample::Index>(), bit in 0..8_u8) {
        run(async {
            let file = exported(&*some_store(30).await).await;
            let at = cut.index(file.len());
            let torn = CheckedExport::check(Cursor::new(file[..at].to_vec()), &mut |_| {});
            prop_assert!(torn.is_err());
            let mut flipped = file;
            flipped[at] ^= 1 << bit;
            let flipped = CheckedExport::check(Cursor::new(flipped), &mut |_| {});
            prop_assert!(flipped.is_err());
            Ok(())
        })?;
    }
}

#[test]
fn inspection_finds_misplaced_and_undecodable_objects() {
    run(async {
        let store = some_store(20).await;
        let objects = list(&*store).await.len() as u64;
        let misplaced = Key::new("configmaps", Some("ns"), "misplaced").unwrap();
        store.create(&misplaced, value("another", 1), None).await.unwrap();
        store.create(&Key::new("pods", None, "torn").unwrap(), "{\"metadata\":{".into(), None).await.unwrap();
        store.create(&Key::new("pods", None, "bare").unwrap(), "{}".into(), None).await.unwrap();
        store
            .create(&Key::new("secrets", Some("ns"), "sealed").unwrap(), "k8s:enc:x".into(), Some(HOUR))
            .await
            .unwrap();
        store.create(&Key::new("leases", Some("ns"), "proto").unwrap(), b"k8s\0\x0a"[..].into(), None).await.unwrap();
        let mut records = store.records().await.unwrap();
        let seen = transfer::inspect(&mut *records, &mut |_| {}).await.unwrap();
        assert_eq!(seen.findings, 3, "{:?}", seen.examples);
        assert_eq!((seen.protobuf, seen.encrypted, seen.with_ttl), (1, 1, 1));
        assert_eq!(seen.total.objects, objects + 5);
        assert_eq!(seen.resources["configmaps"].objects, objects + 1);
        assert_eq!(seen.shared_revisions, 0);
    });
}

#[cfg(feature = "embedded")]
mod embedded {
    use listwatch_storage::{EmbeddedOptions, EmbeddedStorage, FromExportError, OpenError, RestoreError};

    use super::*;

    /// A new embedded store keeps the revisions, the clock and the TTLs of its source.
    #[test]
    fn embedded_store_from_export_keeps_revisions_and_clock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let source = run(async {
            let source = some_store(3_000).await;
            source.create(&key("for-an-hour"), "{}".into(), Some(HOUR)).await.unwrap();
            source
        });
        let file = run(exported(&*source));
        let options = EmbeddedOptions::default();
        assert!(!EmbeddedStorage::exists(&path));
        let done =
            EmbeddedStorage::from_export(&path, options, &mut checked(&file), Revision::ZERO, &mut |_| {}).unwrap();
        assert!(EmbeddedStorage::exists(&path));
        run(async {
            let store = EmbeddedStorage::open(&path, options).unwrap();
            assert_eq!(store.current_revision().await.unwrap(), source.current_revision().await.unwrap());
            assert_eq!((done.created, done.moved), (list(&*source).await.len() as u64, 0));
            assert_eq!(list(&*store).await, list(&*source).await);
            assert!(compare(&*source, &*store).await.is_equal());
            assert!(store.verify().await.unwrap().is_clean());
            // Exported again, the content is identical.
            let again = checked(&exported(&*store).await);
            assert_eq!(again.identity(), checked(&file).identity());
            store.close().await;
        });
        let error =
            EmbeddedStorage::from_export(&path, options, &mut checked(&file), Revision::ZERO, &mut |_| {}).unwrap_err();
        let exists = matches!(error, FromExportError::Restore(RestoreError::Store(OpenError::Exists { .. })));
        assert!(exists, "{error}");
    }

    /// Versions of clients that are newer than the backup must expire instead of failing.
    #[test]
    fn import_and_from_export_raise_the_revision_to_the_requested_minimum() {
        let far = Revision::new(10_000);
        let (source, dir) = (run(some_store(30)), tempfile::tempdir().unwrap());
        let file = run(exported(&*source));
        let options = EmbeddedOptions::default();
        EmbeddedStorage::from_export(dir.path(), options, &mut checked(&file), far, &mut |_| {}).unwrap();
        run(async {
            let embedded = EmbeddedStorage::open(dir.path(), options).unwrap();
            let memory = MemoryStorage::new();
            let options = ImportOptions { clock_at_least: far, ..ImportOptions::default() };
            transfer::import(&memory, &mut checked(&file), options, &mut |_| {}).await.unwrap();
            for store in [&*embedded as &dyn Storage, &*memory] {
                assert!(store.current_revision().await.unwrap() >= far);
                let mut watch = store.watch(everything(), far.previous()).await.unwrap();
                let first = watch.next().await;
                assert!(matches!(first, Some(WatchItem::Expired { .. })), "{first:?}");
            }
            assert!(compare(&*embedded, &*memory).await.is_equal());
            embedded.close().await;
        });
    }

    /// etcd can change several keys in one transaction; this store cannot represent that.
    #[test]
    fn keys_of_one_transaction_get_separate_revisions() {
        let header = transfer::ExportHeader {
            source: "a test".into(),
            revision: Revision::new(12),
            time: std::time::SystemTime::UNIX_EPOCH,
        };
        let mut file = Vec::new();
        let mut encoder = transfer::Encoder::begin(&header, &mut file);
        for (name, modified) in [("a", 10), ("b", 5), ("c", 10), ("d", 10), ("e", 11), ("f", 12)] {
            let modified = Revision::new(modified);
            let entry =
                KeyValue { key: key(name), value: value(name, 0), created: Revision::new(5), modified, stale: false };
            encoder.record(&transfer::Record { entry, ttl: None }, &mut file).unwrap();
        }
        encoder.end(&mut file);
        let dir = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions::default();
        let done = EmbeddedStorage::from_export(dir.path(), options, &mut checked(&file), Revision::ZERO, &mut |_| {})
            .unwrap();
        assert_eq!((done.moved, done.revision), (4, Revision::new(14)));
        run(async {
            let store = EmbeddedStorage::open(dir.path(), options).unwrap();
            let at: Vec<u64> = list(&*store).await.iter().map(|item| item.modified.get()).collect();
            assert_eq!(at, [10, 5, 11, 12, 13, 14]);
            let mut old = ExportRecords::begin(&file[..]).unwrap();
            let compared =
                transfer::compare(&mut old, &mut *store.records().await.unwrap(), &mut |_| {}).await.unwrap();
            assert!(compared.is_equal(), "{compared:?}");
            store.close().await;
        });
    }
}
