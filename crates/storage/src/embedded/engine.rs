//! The engine of the embedded store: a small interface to redb.
//! `docs/decisions/0002-embedded-engine.md` gives the reasons for redb.
//!
//! ```text
//!   headers  revision ─▶ Header      small; read whole when the store is opened
//!   values   revision ─▶ value       read one by one
//!   meta     "format", "oldest"
//! ```
//!
//! After any failed commit redb's handle fails every call. The store then drops the handle, opens
//! the file again and checks whether the commit is there. So the engine is opened through a
//! [`Disk`], with which tests also inject faults.

use std::fmt;
use std::io;
use std::ops::{Bound, ControlFlow};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use listwatch_meta::Revision;
use parking_lot::Mutex;
use redb::{
    AccessGuard, Builder, Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, StorageBackend,
    Table, TableDefinition,
};

use super::record::{self, CorruptRecord, Header};
use crate::error::StoreFault;
use crate::ttl::Millis;

const HEADERS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("headers");
const VALUES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("values");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");

/// The content of the `format` record. The number increases when the records change.
pub(super) const FORMAT: &str = "listwatch embedded store, format 1";
const FORMAT_KEY: &str = "format";
const OLDEST_KEY: &str = "oldest";

/// The file of an engine.
pub(super) trait Disk: Send + Sync + 'static {
    /// Opens the file. Called again after a failure, after the previous handle was dropped.
    fn open(&self) -> io::Result<Box<dyn StorageBackend>>;
    /// Free bytes for growth, if known.
    fn free_bytes(&self) -> Option<u64>;
    /// Bytes that the file occupies, without holes, if known.
    fn used_bytes(&self) -> Option<u64>;
    /// The time at which the file was last written, on the wall clock of that time, if known.
    fn written(&self) -> Option<SystemTime> {
        None
    }
    /// Creates an empty side file, for a copy that may replace this file.
    fn create_side(&self) -> io::Result<Arc<dyn Disk>>;
    /// Replaces this file with the side file, durably; open handles keep the former content. After
    /// an error either file may be in place, and [`Disk::open`] shows which.
    fn promote_side(&self) -> io::Result<()>;
    /// Removes the side file, if there is one.
    fn discard_side(&self);
}

/// Tracks writes without a successful sync since; outlives the handles of a store.
///
/// After a failed sync the durable state is unknown while reads return all of the written data:
/// Linux marks the pages clean and drops them, and the next sync succeeds without them. So the
/// written data is written again and synced before anything depends on it. Holds a few bytes for
/// each page of one commit.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    places: Mutex<Vec<(u64, usize)>>,
    /// Test bug: data of a failed sync is trusted.
    #[cfg(test)]
    pub trusted: AtomicBool,
}

impl Unsynced {
    /// Makes the readable data durable, after a handle was opened.
    fn settle(&self, file: &dyn StorageBackend) -> io::Result<()> {
        #[cfg(test)]
        if self.trusted.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut places = self.places.lock();
        if places.is_empty() {
            return Ok(());
        }
        let end = file.len()?;
        let mut page = Vec::new();
        for (offset, length) in places.iter() {
            // Data after the end was truncated again.
            if offset + *length as u64 <= end {
                page.resize(*length, 0);
                file.read(*offset, &mut page)?;
                file.write(*offset, &page)?;
            }
        }
        file.sync_data()?;
        places.clear();
        Ok(())
    }
}

/// Adapts a boxed backend, because redb needs a concrete type. The file is not locked, because the
/// directory is locked.
#[derive(Debug)]
struct Boxed(Box<dyn StorageBackend>, Arc<Unsynced>);

impl StorageBackend for Boxed {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()?;
        self.1.places.lock().clear();
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let written = self.0.write(offset, data);
        // Data that did not fit is not on the disk, and would not fit the next time either.
        if written.as_ref().map_or_else(|error| !is_full(error), |()| true) {
            self.1.places.lock().push((offset, data.len()));
        }
        written
    }
    fn close(&self) -> io::Result<()> {
        self.0.close()
    }
}

/// The error of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EngineError {
    /// The disk is full or the quota is reached.
    NoSpace(String),
    /// Any other error of the disk.
    Io(String),
    /// The stored data is invalid.
    Corrupt(String),
    /// The file does not belong to a store, or has another version. Contains its format record.
    Foreign(String),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (EngineError::NoSpace(what)
        | EngineError::Io(what)
        | EngineError::Corrupt(what)
        | EngineError::Foreign(what)) = self;
        f.write_str(what)
    }
}

impl From<EngineError> for StoreFault {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::NoSpace(what) => StoreFault::NoSpace(what),
            EngineError::Io(what) => StoreFault::Unavailable(what),
            EngineError::Corrupt(what) | EngineError::Foreign(what) => StoreFault::Corrupt(what),
        }
    }
}

impl From<redb::Error> for EngineError {
    fn from(error: redb::Error) -> Self {
        match error {
            redb::Error::Io(error) => error.into(),
            redb::Error::Corrupted(what) => EngineError::Corrupt(what),
            redb::Error::UpgradeRequired(version) => {
                EngineError::Foreign(format!("an engine file of version {version}"))
            }
            other => EngineError::Io(other.to_string()),
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl From<io::Error> for EngineError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            _ if is_full(&error) => EngineError::NoSpace(error.to_string()),
            // redb returns this error if the file does not begin as its own, or ends too early.
            io::ErrorKind::InvalidData => EngineError::Foreign(error.to_string()),
            io::ErrorKind::UnexpectedEof => EngineError::Corrupt("the file ends too early".to_owned()),
            _ => EngineError::Io(error.to_string()),
        }
    }
}

impl From<CorruptRecord> for EngineError {
    fn from(damaged: CorruptRecord) -> Self {
        EngineError::Corrupt(damaged.0)
    }
}

/// Runs a call of the engine. redb may panic on damaged pages; a panic becomes an error.
fn guarded<T>(run: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(EngineError::Corrupt(format!("the engine gave up: {}", text.unwrap_or("unknown panic"))))
    })
}

/// Converts each of redb's error types.
fn redb<T, E: Into<redb::Error>>(result: Result<T, E>) -> Result<T, EngineError> {
    result.map_err(|error| error.into().into())
}

/// One revision as stored: the header, and the value record unless the revision is a removal.
pub(super) type RawCopy = (Revision, Vec<u8>, Option<Vec<u8>>);

/// The changes of one atomic commit.
#[derive(Default)]
pub(super) struct Change<'a> {
    /// New revisions, with their values.
    pub records: &'a [(Revision, Header, Option<Bytes>)],
    /// Revisions that are no longer readable.
    pub dead: &'a [Revision],
    /// The oldest readable revision, if it changed.
    pub oldest: Option<Revision>,
    /// Whether the file needs no repair if a crash precedes the next commit. Such a commit is
    /// slower.
    pub quick_repair: bool,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Engine")
    }
}

/// An open engine.
pub(super) struct Engine {
    db: Database,
    unsynced: Arc<Unsynced>,
    /// One reference per snapshot, so that closing can wait for the readers.
    in_use: Arc<InUse>,
}

/// The state shared by an engine and its snapshots.
#[derive(Default)]
struct InUse {
    /// Whether the engine waits for its readers to close. Long reads then stop.
    closing: AtomicBool,
    /// Whether a read failed. redb's handle then fails every uncached read.
    failed: AtomicBool,
}

impl Engine {
    /// Creates a store on an empty disk.
    pub(super) fn create(disk: &dyn Disk, cache_bytes: usize) -> Result<Self, EngineError> {
        guarded(|| {
            let engine = Self::handle(disk, &Arc::default(), cache_bytes)?;
            let transaction = redb(engine.db.begin_write())?;
            redb(transaction.open_table(HEADERS))?;
            redb(transaction.open_table(VALUES))?;
            redb(redb(transaction.open_table(META))?.insert(FORMAT_KEY, FORMAT.as_bytes()))?;
            redb(transaction.commit())?;
            Ok(engine)
        })
    }

    /// Opens an existing store; fails for any other file.
    pub(super) fn open(disk: &dyn Disk, unsynced: &Arc<Unsynced>, cache_bytes: usize) -> Result<Self, EngineError> {
        guarded(|| {
            let engine = Self::handle(disk, unsynced, cache_bytes)?;
            let foreign = |what: &str| EngineError::Foreign(what.to_owned());
            let transaction = redb(engine.db.begin_read())?;
            let meta = transaction.open_table(META).map_err(|error| match error {
                redb::TableError::Storage(error) => redb::Error::from(error).into(),
                _ => foreign("an engine file without a format record"),
            })?;
            let format =
                redb(meta.get(FORMAT_KEY))?.ok_or_else(|| foreign("an engine file without a format record"))?;
            if format.value() != FORMAT.as_bytes() {
                return Err(foreign(&String::from_utf8_lossy(format.value())));
            }
            Ok(engine)
        })
    }

    fn handle(disk: &dyn Disk, unsynced: &Arc<Unsynced>, cache_bytes: usize) -> Result<Self, EngineError> {
        let file = disk.open()?;
        unsynced.settle(&*file)?;
        let backend = Boxed(file, unsynced.clone());
        let db = redb(Builder::new().set_cache_size(cache_bytes).create_with_backend(backend))?;
        Ok(Engine { db, unsynced: unsynced.clone(), in_use: Arc::default() })
    }

    /// Whether a read failed. Reads may succeed after the file is opened again.
    pub(super) fn has_failed(&self) -> bool {
        self.in_use.failed.load(Ordering::Relaxed)
    }

    /// The data that must be written again when this disk is reopened.
    pub(super) fn unsynced(&self) -> Arc<Unsynced> {
        self.unsynced.clone()
    }

    /// The oldest readable revision; zero when the history is complete.
    pub(super) fn oldest(&self) -> Result<Revision, EngineError> {
        self.snapshot()?.oldest()
    }

    /// Passes all headers after `after` to a callback, in the order of their revisions.
    pub(super) fn headers_after(
        &self,
        after: Revision,
        mut each: impl FnMut(Revision, Header) -> Result<(), CorruptRecord>,
    ) -> Result<(), EngineError> {
        guarded(|| {
            let table = redb(redb(self.db.begin_read())?.open_table(HEADERS))?;
            for entry in redb(table.range(after.next().get()..))? {
                let (revision, record) = redb(entry)?;
                let revision = Revision::new(revision.value());
                each(revision, Header::decode(revision, record.value())?)?;
            }
            Ok(())
        })
    }

    /// Applies a change; returns when it is on stable storage.
    pub(super) fn commit(&self, change: &Change<'_>) -> Result<(), EngineError> {
        guarded(|| {
            let mut transaction = redb(self.db.begin_write())?;
            transaction.set_quick_repair(change.quick_repair);
            {
                let mut headers = redb(transaction.open_table(HEADERS))?;
                let mut values = redb(transaction.open_table(VALUES))?;
                let encoded = change.records.iter().map(|(at, header, _)| (*at, header.encode(*at)));
                insert(&mut headers, encoded)?;
                let values_written = change.records.iter().filter_map(|(at, _, value)| Some((*at, value.as_ref()?)));
                insert(&mut values, values_written.map(|(at, value)| (at, record::encode_value(at, value))))?;
                for revision in change.dead {
                    redb(headers.remove(revision.get()))?;
                    redb(values.remove(revision.get()))?;
                }
                if let Some(oldest) = change.oldest {
                    let mut meta = redb(transaction.open_table(META))?;
                    redb(meta.insert(OLDEST_KEY, oldest.get().to_le_bytes().as_slice()))?;
                }
            }
            redb(transaction.commit())
        })
    }

    /// Adds revisions of another engine.
    pub(super) fn copy_in(&self, copies: &[RawCopy]) -> Result<(), EngineError> {
        guarded(|| {
            let transaction = redb(self.db.begin_write())?;
            {
                let mut headers = redb(transaction.open_table(HEADERS))?;
                let mut values = redb(transaction.open_table(VALUES))?;
                insert(&mut headers, copies.iter().map(|(at, header, _)| (*at, header)))?;
                insert(&mut values, copies.iter().filter_map(|(at, _, value)| Some((*at, value.as_ref()?))))?;
            }
            redb(transaction.commit())
        })
    }

    /// A snapshot of the current values, readable during later commits.
    pub(super) fn snapshot(&self) -> Result<Snapshot, EngineError> {
        guarded(|| {
            let transaction = redb(self.db.begin_read())?;
            let values = redb(transaction.open_table(VALUES))?;
            Ok(Snapshot { values, transaction, in_use: self.in_use.clone() })
        })
    }

    /// Waits until no snapshot is held, then closes.
    pub(super) fn close(self) {
        /// The longest wait for readers at closing. A reader holds a snapshot for one page or
        /// batch; closing does not wait longer for it.
        const READERS_WAIT: Duration = Duration::from_secs(10);
        const STEP: Duration = Duration::from_millis(1);
        self.in_use.closing.store(true, Ordering::Relaxed);
        let mut waited = Duration::ZERO;
        while Arc::strong_count(&self.in_use) > 1 && waited < READERS_WAIT {
            std::thread::sleep(STEP);
            waited += STEP;
        }
        // Closing writes, and may therefore panic on a damaged file.
        let _ = catch_unwind(AssertUnwindSafe(move || drop(self.db)));
    }
}

/// Inserts records in the order of their revisions. A store writes at the end of the table, where
/// this call fills one page after the other with one descent. If records were inserted one by one,
/// pages would be split in halves.
fn insert(
    table: &mut Table<'_, u64, &'static [u8]>,
    records: impl Iterator<Item = (Revision, impl AsRef<[u8]>)>,
) -> Result<(), EngineError> {
    let mut records = records.peekable();
    let Some((first, _)) = records.peek() else { return Ok(()) };
    let behind = redb(table.last())?.is_none_or(|(last, _)| last.value() < first.get());
    if behind {
        let mut end = redb(table.upper_bound_mut(Bound::<u64>::Unbounded))?;
        for (revision, record) in records {
            redb(end.insert_before(revision.get(), record.as_ref()))?;
        }
        return redb(end.close());
    }
    for (revision, record) in records {
        redb(table.insert(revision.get(), record.as_ref()))?;
    }
    Ok(())
}

/// A snapshot. The engine does not reuse the snapshot's pages while it exists.
pub(super) struct Snapshot {
    values: ReadOnlyTable<u64, &'static [u8]>,
    transaction: ReadTransaction,
    in_use: Arc<InUse>,
}

/// The stored record of a revision, possibly damaged.
pub(super) struct RawRecord<'a> {
    pub revision: Revision,
    pub header: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
}

impl Snapshot {
    /// The value of a revision that is known to have one.
    pub(super) fn value(&self, revision: Revision) -> Result<Bytes, EngineError> {
        self.noting(guarded(|| match redb(self.values.get(revision.get()))? {
            Some(record) => Ok(record::decode_value(revision, record.value())?),
            None => Err(EngineError::Corrupt(format!("the value of revision {revision} is missing"))),
        }))
    }

    /// The stored deadline of a revision that is known to have a value; `None` if its key does not expire.
    pub(super) fn deadline(&self, revision: Revision) -> Result<Option<Millis>, EngineError> {
        self.noting(guarded(|| {
            let headers = redb(self.transaction.open_table(HEADERS))?;
            let Some(record) = redb(headers.get(revision.get()))? else {
                return Err(EngineError::Corrupt(format!("the header of revision {revision} is missing")));
            };
            let header = Header::decode(revision, record.value())?;
            Ok(header.put.map(|put| put.deadline).filter(|deadline| *deadline > 0))
        }))
    }

    /// Returns the result unchanged, and records a failed read.
    fn noting<T>(&self, result: Result<T, EngineError>) -> Result<T, EngineError> {
        if matches!(result, Err(EngineError::Io(_))) && !self.in_use.closing.load(Ordering::Relaxed) {
            self.in_use.failed.store(true, Ordering::Relaxed);
        }
        result
    }

    /// The oldest readable revision; zero when the history is complete.
    pub(super) fn oldest(&self) -> Result<Revision, EngineError> {
        guarded(|| {
            let meta = redb(self.transaction.open_table(META))?;
            let Some(record) = redb(meta.get(OLDEST_KEY))? else { return Ok(Revision::ZERO) };
            let damaged = |_| EngineError::Corrupt("the record of the oldest revision is damaged".into());
            Ok(Revision::new(u64::from_le_bytes(record.value().try_into().map_err(damaged)?)))
        })
    }

    /// Passes the records after `after` to `each`, in order, until it returns false.
    ///
    /// # Errors
    /// A failed read. Also an error while the engine is being closed, because a long read must not
    /// delay the closing.
    pub(super) fn records_after(
        &self,
        after: Revision,
        mut each: impl FnMut(RawRecord<'_>) -> Result<ControlFlow<()>, EngineError>,
    ) -> Result<(), EngineError> {
        self.noting(guarded(|| {
            let headers = redb(self.transaction.open_table(HEADERS))?;
            let mut headers = redb(headers.range(after.next().get()..))?;
            let mut values = redb(self.values.range(after.next().get()..))?;
            let (mut header, mut value) = (redb(headers.next().transpose())?, redb(values.next().transpose())?);
            loop {
                if self.in_use.closing.load(Ordering::Relaxed) {
                    return Err(EngineError::Io("the store is being closed or opened again".to_owned()));
                }
                let at = |entry: &Option<Entry>| entry.as_ref().map(|(revision, _)| revision.value());
                let next = match (at(&header), at(&value)) {
                    (Some(one), Some(other)) => one.min(other),
                    (Some(only), None) | (None, Some(only)) => only,
                    (None, None) => return Ok(()),
                };
                let here = |entry: &Entry| entry.0.value() == next;
                let flow = each(RawRecord {
                    revision: Revision::new(next),
                    header: header.as_ref().filter(|entry| here(entry)).map(|(_, record)| record.value()),
                    value: value.as_ref().filter(|entry| here(entry)).map(|(_, record)| record.value()),
                })?;
                if flow.is_break() {
                    return Ok(());
                }
                if at(&header) == Some(next) {
                    header = redb(headers.next().transpose())?;
                }
                if at(&value) == Some(next) {
                    value = redb(values.next().transpose())?;
                }
            }
        }))
    }
}

type Entry = (AccessGuard<'static, u64>, AccessGuard<'static, &'static [u8]>);

#[cfg(test)]
mod tests {
    use listwatch_meta::Key;

    use super::super::faults::{FaultRates, SimDisk};
    use super::super::record::Put;
    use super::*;

    const CACHE_BYTES: usize = 1 << 20;

    /// The record of a revision that creates a key.
    fn created(revision: u64) -> (Revision, Header, Option<Bytes>) {
        let at = Revision::new(revision);
        let put = Put { created: at, deadline: 0, length: 1 };
        let key = Key::new("pods", Some("ns"), &format!("k{revision}")).unwrap();
        (at, Header { key, put: Some(put), previous: Revision::ZERO }, Some("v".into()))
    }

    fn commit(engine: &Engine, revisions: &[u64]) -> Result<(), EngineError> {
        let records: Vec<_> = revisions.iter().map(|revision| created(*revision)).collect();
        engine.commit(&Change { records: &records, ..Change::default() })
    }

    fn revisions(engine: &Engine) -> Vec<u64> {
        let mut found = Vec::new();
        engine
            .headers_after(Revision::ZERO, |revision, _| {
                found.push(revision.get());
                Ok(())
            })
            .unwrap();
        found
    }

    #[test]
    fn io_error_is_converted_to_the_matching_store_fault() {
        let check = |kind: io::ErrorKind, expected: fn(String) -> StoreFault, text: &str| {
            let error = EngineError::from(io::Error::from(kind));
            assert_eq!(error.to_string(), text, "{kind:?}");
            assert_eq!(StoreFault::from(error), expected(text.to_owned()), "{kind:?}");
        };
        check(io::ErrorKind::StorageFull, StoreFault::NoSpace, "no storage space");
        check(io::ErrorKind::QuotaExceeded, StoreFault::NoSpace, "quota exceeded");
        check(io::ErrorKind::InvalidData, StoreFault::Corrupt, "invalid data");
        check(io::ErrorKind::UnexpectedEof, StoreFault::Corrupt, "the file ends too early");
        check(io::ErrorKind::PermissionDenied, StoreFault::Unavailable, "permission denied");
    }

    /// A failed read must not make a store look like another program's file, which the operator would then delete.
    #[test]
    fn failed_read_during_open_is_reported_as_an_io_error() {
        let disk = SimDisk::default();
        let engine = Engine::create(&disk, CACHE_BYTES).unwrap();
        commit(&engine, &[2, 3]).unwrap();
        engine.close();
        for reads in 0.. {
            disk.fail_read_after(reads);
            // Without a cache, each page is read again.
            let opened = Engine::open(&disk, &Arc::default(), 0);
            if !disk.chosen_read_failed() {
                assert!(opened.is_ok() && reads > 0, "opening takes {reads} reads: {opened:?}");
                break;
            }
            let refused = opened.expect_err("a failed read is an error");
            assert!(matches!(refused, EngineError::Io(_)), "read {reads}: {refused:?}");
        }
        assert_eq!(revisions(&Engine::open(&disk, &Arc::default(), CACHE_BYTES).unwrap()), [2, 3]);
    }

    #[test]
    fn data_of_a_failed_sync_is_written_again() {
        for seed in 0..8 {
            let disk = SimDisk::default();
            let unsynced = Arc::new(Unsynced::default());
            let file = Boxed(disk.open().unwrap(), unsynced.clone());
            file.set_len(8192).unwrap();
            file.write(512, &[7; 512]).unwrap();
            file.write(4096, &[8; 4096]).unwrap();
            disk.set_fault_rates(FaultRates { sync: 1000, ..FaultRates::NONE }, seed);
            file.sync_data().unwrap_err();
            disk.set_fault_rates(FaultRates::NONE, 0);
            file.set_len(4096).unwrap();
            unsynced.settle(&*disk.open().unwrap()).unwrap();
            disk.power_back(seed);
            let (file, mut found) = (disk.open().unwrap(), [0; 512]);
            assert_eq!(file.len().unwrap(), 4096, "seed {seed}: a truncated part is not written again");
            file.read(512, &mut found).unwrap();
            assert_eq!(found, [7; 512], "seed {seed}: readable data is lost by a power failure");
        }
    }

    #[test]
    fn records_are_ordered_by_revision_whatever_the_order_of_commits() {
        let disk = SimDisk::default();
        let engine = Engine::create(&disk, CACHE_BYTES).unwrap();
        for batch in [&[10, 11][..], &[5, 7], &[12], &[6]] {
            commit(&engine, batch).unwrap();
        }
        assert_eq!(revisions(&engine), [5, 6, 7, 10, 11, 12]);
        let snapshot = engine.snapshot().unwrap();
        assert!([5, 12].iter().all(|at| snapshot.value(Revision::new(*at)).is_ok()));
    }

    #[test]
    fn closing_waits_for_readers() {
        let disk = SimDisk::default();
        let engine = Engine::create(&disk, CACHE_BYTES).unwrap();
        commit(&engine, &[2]).unwrap();
        let snapshot = engine.snapshot().unwrap();
        let in_use = engine.in_use.clone();
        let (read, done) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !in_use.closing.load(Ordering::Relaxed) && !done.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                let intact = (0..1000).all(|_| snapshot.value(Revision::new(2)).is_ok_and(|value| value == "v"));
                read.store(intact, Ordering::Relaxed);
                drop(snapshot);
                drop(in_use);
            });
            engine.close();
            done.store(true, Ordering::Relaxed);
            assert!(read.load(Ordering::Relaxed), "a reader loses its snapshot");
        });
    }

    #[test]
    fn long_read_stops_when_the_engine_closes() {
        let disk = SimDisk::default();
        let engine = Engine::create(&disk, CACHE_BYTES).unwrap();
        commit(&engine, &[2, 3]).unwrap();
        let snapshot = engine.snapshot().unwrap();
        let mut seen = 0;
        let stopped = snapshot.records_after(Revision::ZERO, |_| {
            seen += 1;
            engine.in_use.closing.store(true, Ordering::Relaxed);
            Ok(ControlFlow::Continue(()))
        });
        assert!(matches!(stopped, Err(EngineError::Io(_))) && seen == 1, "{stopped:?} after {seen} records");
        assert!(!engine.has_failed(), "the disk did not fail");
    }
}
