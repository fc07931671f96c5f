//! The embedded store: [`EmbeddedStorage`], durable in a directory, with the semantics of the
//! memory store.
//!
//! ```text
//!   create ┐                one thread                        on disk (redb)
//!   update ├─▶ Queue ─▶ Committer ─▶ one sync per batch ─▶  headers │ values
//!   delete ┘     ▲           │ durable: then visible            ▲        ▲
//!                │           ▼                                  │        │
//!             answers    index (Mvcc), recent values, Hub   read whole  read one
//!                                    │                      at open     by one
//!   get, list, watch ────────────────┘ revision of each state ───────────┘
//! ```
//!
//! The disk holds a log: for each revision a small header and, separately, the value. The index
//! (the revision of each key, and the history within the retention window) is rebuilt from the
//! headers when the store is opened. So no second structure can contradict the log, and memory
//! holds only the most recent values.
//!
//! * **Group commit.** Writers queue. One thread takes all waiting requests, decides them in order, and writes them
//!   with one sync. Then the writers receive their results. A write is visible only when it is durable.
//! * **History** is kept according to [`Retention`], also over a restart: a watch resumes from any
//!   retained revision. Later commits remove old revisions from the disk, a few each, so that
//!   compaction never stalls a writer.
//! * **Disk full.** Writes fail with [`StoreFault::NoSpace`] shortly before the disk is full ([`RESERVE_BYTES`]).
//!   Reads, watches, deletes and compaction continue, and writes succeed again when there is room. While commits fail,
//!   dead revisions are removed once a second, which makes room even if writers keep retrying.
//! * **Failing disk.** After a failed write the engine is reopened and checked for the write, so the writer gets the
//!   true outcome. Data of a failed sync is written again. Readers wait meanwhile. The engine is also reopened after a
//!   failed read.
//!
//! A get and a short list read the disk on the calling thread, which takes microseconds when the page is cached. Longer
//! lists use tokio's pool for blocking work.

mod commit;
mod dir;
mod engine;
#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod faults;
mod plan;
mod queue;
mod recent;
mod record;
mod repack;
mod restore;
mod stats;
mod transfer;
mod verify;
mod watch;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use listwatch_meta::{Key, KeyRange, Revision};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, oneshot};

use self::commit::{Clock, Committer};
use self::dir::StoreDir;
use self::engine::{Disk, Engine, EngineError, Snapshot};
use self::plan::{Index, Length, Rebuild};
use self::queue::{ExpectedWriters, Queue, Request, WriteError, WriteOp};
use self::recent::Recent;
pub use self::repack::Defragmented;
pub use self::restore::{Restore, RestoreError};
pub use self::stats::EmbeddedStats;
use self::stats::Timeline;
pub use self::transfer::FromExportError;
pub use self::verify::{FINDINGS_MAX, Finding, Verification};
use self::watch::{EmbeddedWatch, Registration};
use crate::error::{CreateError, DeleteError, ReadError, StoreFault, UpdateError, WatchError};
use crate::hub::Hub;
use crate::mvcc::{FIRST_REVISION, Stored};
use crate::page_counts::PageCounts;
use crate::retention::{Retention, RetentionTracker};
use crate::types::{Capabilities, KeyValue, ListPage, ListQuery, Reread, Storage, StoreStats, VALUE_BYTES_MAX, Watch};

/// Default of [`EmbeddedOptions::cache_bytes`].
pub const CACHE_BYTES: usize = 8 << 20;

/// Default of [`EmbeddedOptions::reserve_bytes`].
pub const RESERVE_BYTES: u64 = 16 << 20;

/// The maximum size of the values in waiting writes, in KiB; each write counts at least one. At the bound further
/// writers wait in order.
pub const WAITING_KIB_MAX: usize = 32 << 10;

/// The maximum number of values that a list reads on the calling thread; more are read in tokio's pool for blocking
/// work.
const INLINE_READS_MAX: usize = 16;

/// The options of an embedded store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddedOptions {
    /// The retention of history.
    pub retention: Retention,
    /// Bytes of pages in the engine's cache; the operating system caches more.
    pub cache_bytes: usize,
    /// Free bytes on the file system below which creates and updates fail with [`StoreFault::NoSpace`]. The reserve is
    /// for deletes and compaction, which need some free space.
    pub reserve_bytes: u64,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        EmbeddedOptions { retention: Retention::default(), cache_bytes: CACHE_BYTES, reserve_bytes: RESERVE_BYTES }
    }
}

/// The error of opening a store, as one line that names the directory and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be created, read or written.
    #[error("cannot use {} as a store: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process, or another store of this process, has the directory open.
    #[error(
        "the store in {} is in use{}; stop that one first, or choose another directory",
        path.display(), owner.map(|pid| format!(" by process {pid}")).unwrap_or_default()
    )]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The process that has it open, if known.
        owner: Option<u32>,
    },
    /// The directory holds files that are not part of a store.
    #[error("{} is no store and not empty, it holds {found}; choose an empty or a new directory", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// An entry that is not part of a store.
        found: String,
    },
    /// The directory holds a store of another version.
    #[error(
        "the store in {} has a format that this version does not read ({found}); use the version that wrote it to \
         export it", path.display()
    )]
    Format {
        /// The directory.
        path: PathBuf,
        /// The content of its format record.
        found: String,
    },
    /// The directory for a restore already holds a store.
    #[error("{} holds a store already; restore into an empty or a new directory", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// The store is damaged.
    #[error("the store in {} is damaged: {detail}; restore it from a snapshot", path.display())]
    Corrupt {
        /// The directory.
        path: PathBuf,
        /// The problem.
        detail: String,
    },
    /// The file system has no room to open the store.
    #[error("no space is left in {} to open the store", path.display())]
    NoSpace {
        /// The directory.
        path: PathBuf,
    },
}

/// A durable store in a directory. Every acknowledged write survives a crash of the process or
/// machine.
///
/// # Example
/// ```
/// use listwatch_meta::Key;
/// use listwatch_storage::{EmbeddedOptions, EmbeddedStorage, Storage};
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("store");
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let key = Key::new("pods", Some("default"), "web")?;
/// let store = EmbeddedStorage::open(&path, EmbeddedOptions::default())?;
/// let created = store.create(&key, "{}".into(), None).await?;
/// store.close().await;
///
/// let store = EmbeddedStorage::open(&path, EmbeddedOptions::default())?;
/// let (found, _) = store.get(&key).await?;
/// assert_eq!(found.map(|found| found.modified), Some(created));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EmbeddedStorage {
    inner: Arc<Inner>,
    disk: Arc<dyn Disk>,
    options: EmbeddedOptions,
    committer: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for EmbeddedStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EmbeddedStorage")
    }
}

/// The state shared by the committer, readers and watchers.
struct Inner {
    state: RwLock<State>,
    hub: Hub,
    queue: Queue,
    /// The memory for waiting writes, in KiB.
    room: Arc<Semaphore>,
    page_counts: PageCounts,
    clock: Clock,
    /// While the store is copied: removed revisions that the copy may contain. The copier takes
    /// them with each chunk.
    died: Mutex<Option<Vec<Revision>>>,
    /// The wakers of reads that wait for the engine to reopen.
    waiting: Mutex<Vec<Waker>>,
}

impl Inner {
    /// Ready when the engine is open or has failed. `waker` is woken then.
    fn poll_readable(&self, state: &State, waker: &Waker) -> Poll<()> {
        if !state.reopening {
            return Poll::Ready(());
        }
        // The reopening ends under the state's lock, so this waker is not missed.
        let mut waiting = self.waiting.lock();
        if !waiting.iter().any(|other| other.will_wake(waker)) {
            waiting.push(waker.clone());
        }
        Poll::Pending
    }

    /// Waits while the engine is reopened after a failure, without blocking a thread.
    async fn readable(&self) {
        std::future::poll_fn(|cx| self.poll_readable(&self.state.read(), cx.waker())).await;
    }

    /// Reports a failed read: the committer reopens the engine, which may help later reads.
    fn reading_failed(&self, error: EngineError) -> StoreFault {
        if matches!(error, EngineError::Io(_)) {
            self.queue.nudge();
        }
        error.into()
    }
}

/// The readable state: all durable changes and no others.
struct State {
    /// Whether the engine is being reopened. Reads then wait, see [`Inner::readable`].
    reopening: bool,
    index: Index,
    recent: Recent,
    timeline: Timeline,
    /// The values on disk, never older than the index; or the error that makes them unreadable.
    snapshot: Result<Arc<Snapshot>, StoreFault>,
}

impl State {
    /// The reason why the disk is unreadable.
    fn fault(&self) -> StoreFault {
        self.snapshot.as_ref().err().cloned().unwrap_or(StoreFault::Closed)
    }

    fn snapshot(&self) -> Result<Arc<Snapshot>, StoreFault> {
        self.snapshot.clone()
    }
}

impl EmbeddedStorage {
    /// Whether the directory holds a store. [`EmbeddedStorage::open`] would create one.
    pub fn exists(path: impl AsRef<Path>) -> bool {
        dir::holds_store(path.as_ref())
    }

    /// Opens the store in a directory, and creates both if missing. Blocks while it reads the
    /// index: some tens of milliseconds for 20,000 objects and 1.6 s for a million. After a crash
    /// under load, it also blocks while the engine repairs the file.
    ///
    /// # Errors
    /// See [`OpenError`]. A foreign or damaged directory is left unchanged.
    pub fn open(path: impl AsRef<Path>, options: EmbeddedOptions) -> Result<Arc<Self>, OpenError> {
        let dir = StoreDir::prepare(path.as_ref(), options.cache_bytes)?;
        let disk = Arc::new(dir.disk());
        let failed = |error| dir.failed(error);
        let opened = Self::load(disk, options, SystemTime::now).map_err(failed)?;
        dir.mark()?;
        Ok(opened.start(Some(dir)))
    }

    /// Opens an existing store on a disk; `wall` reads the wall clock.
    fn load(disk: Arc<dyn Disk>, options: EmbeddedOptions, wall: fn() -> SystemTime) -> Result<Committer, EngineError> {
        // Before the engine writes to the file.
        let written = disk.written();
        let engine = Engine::open(&*disk, &Arc::default(), options.cache_bytes)?;
        let oldest = engine.oldest()?;
        let mut rebuilt = Rebuild::new(oldest, RetentionTracker::new(options.retention));
        engine.headers_after(Revision::ZERO, |revision, header| rebuilt.add(revision, &header))?;
        let snapshot = engine.snapshot()?;
        let recent = Recent::new(rebuilt.index.mvcc.current());
        let (index, snapshot) = (rebuilt.index, Ok(Arc::new(snapshot)));
        let state = State { reopening: false, index, recent, timeline: Timeline::default(), snapshot };
        let inner = Inner {
            state: RwLock::new(state),
            hub: Hub::default(),
            queue: Queue::default(),
            room: Arc::new(Semaphore::new(WAITING_KIB_MAX)),
            page_counts: PageCounts::default(),
            clock: Clock::new(wall, written),
            died: Mutex::default(),
            waiting: Mutex::default(),
        };
        Ok(Committer {
            clock: inner.clock,
            inner: Arc::new(inner),
            disk,
            options,
            engine: Some(engine),
            dead: rebuilt.dead,
            oldest_on_disk: oldest,
            unrepaired: None,
            expected_writers: ExpectedWriters::default(),
            tidied: None,
            #[cfg(test)]
            planted: None,
            failed: None,
            unsynced: Arc::default(),
            reopened: None,
            broken: false,
        })
    }

    /// Closes the store: waits until queued writes are done and the directory is unlocked. Watches
    /// end, and later calls fail with [`StoreFault::Closed`]. Dropping the store does the same, and
    /// blocks meanwhile.
    pub async fn close(&self) {
        self.inner.queue.close();
        let committer = self.committer.lock().take();
        if let Some(committer) = committer {
            // A committer that panicked has logged it and closed the store.
            let _ = tokio::task::spawn_blocking(move || committer.join()).await;
        }
    }

    /// Begins a new store in an empty or new directory with the keys of another store. Each key keeps its revisions of
    /// creation and change, and its expiry. [`Restore::finish`] completes the store and sets its revision.
    ///
    /// The number of changes of a key (etcd's `version`) is not kept, because this store counts
    /// only revisions and Kubernetes reads no more.
    ///
    /// # Errors
    /// See [`OpenError`]; [`OpenError::Exists`] when the directory holds a store.
    ///
    /// # Example
    /// ```
    /// use listwatch_meta::{Key, Revision};
    /// use listwatch_storage::{EmbeddedOptions, EmbeddedStorage, KeyValue, Storage};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("store");
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let key = Key::new("pods", Some("default"), "web")?;
    /// let (created, modified) = (Revision::new(40), Revision::new(70));
    /// let mut restore = EmbeddedStorage::restore(&path, EmbeddedOptions::default())?;
    /// restore.put(KeyValue { key: key.clone(), value: "{}".into(), created, modified, stale: false }, None)?;
    /// restore.finish(Revision::new(100))?;
    ///
    /// let store = EmbeddedStorage::open(&path, EmbeddedOptions::default())?;
    /// assert_eq!(store.update(&key, modified, "{}".into(), None).await?, Revision::new(101));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn restore(path: impl AsRef<Path>, options: EmbeddedOptions) -> Result<Restore, OpenError> {
        Restore::begin(path.as_ref(), options)
    }

    /// The expiry of the state that was written at `modified`, which an export stores with the value. `None` if the
    /// state has no TTL or is not the latest one of the key.
    pub fn expires(&self, modified: Revision) -> Option<SystemTime> {
        self.inner.state.read().index.deadlines.of(modified).map(commit::time_of)
    }

    /// The size of the store and the reach of its history. The call is cheap.
    ///
    /// # Errors
    /// The fault that prevents the store from serving.
    pub fn embedded_stats(&self) -> Result<EmbeddedStats, StoreFault> {
        let state = self.inner.state.read();
        state.snapshot()?;
        let (index, mvcc) = (&state.index, &state.index.mvcc);
        Ok(EmbeddedStats {
            revision: mvcc.current(),
            oldest: mvcc.oldest(),
            oldest_at: state.timeline.at(mvcc.oldest()).map(commit::time_of),
            live_keys: mvcc.live(),
            live_bytes: index.live_bytes,
            history_revisions: mvcc.current().get() - mvcc.oldest().max(FIRST_REVISION).get(),
            history_bytes: index.keeper.bytes(),
            file_bytes: self.disk.used_bytes(),
            free_bytes: self.disk.free_bytes(),
        })
    }

    /// Reads all data on disk and compares it with its checksums, with itself and with the index in
    /// memory; see [`Verification`]. The store serves meanwhile. Pages that are freed during it are
    /// reused only afterwards, so the file grows under load. Takes some seconds for a million
    /// objects of 1 KiB.
    ///
    /// # Errors
    /// When the store cannot be read, or is closed or reopened meanwhile. Damage is not an error
    /// but a [`Finding`].
    pub async fn verify(&self) -> Result<Verification, StoreFault> {
        let inner = self.inner.clone();
        blocking(move || verify::verify(&inner)).await
    }

    /// Frees disk space: a dense copy of the live data and history replaces the file. The store
    /// serves meanwhile; writers wait some milliseconds when the copy takes over. The call needs free
    /// space for the copy. To free as much as possible, call [`Storage::compact`] first.
    ///
    /// Dropping the future does not stop the operation.
    ///
    /// # Errors
    /// [`StoreFault::NoSpace`] when there is no room for the copy; [`StoreFault::Unavailable`] when a copy is being
    /// made already; [`StoreFault::Corrupt`] when data on disk is damaged ([`EmbeddedStorage::verify`] reports the
    /// details); and other faults of the disk. The store is then unchanged.
    pub async fn defragment(&self) -> Result<Defragmented, StoreFault> {
        let (inner, disk, options) = (self.inner.clone(), self.disk.clone(), self.options);
        blocking(move || repack::defragment(&inner, &disk, options)).await
    }

    /// Queues a write and waits until it is durable.
    async fn write(&self, key: &Key, op: WriteOp) -> Result<Revision, WriteError> {
        let closed = WriteError::Fault(StoreFault::Closed);
        let kib = match &op {
            WriteOp::Put { value, .. } => 1 + value.len() / 1024,
            WriteOp::Delete { .. } => 1,
        };
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        let Ok(room) = self.inner.room.clone().acquire_many_owned(kib).await else { return Err(closed) };
        let (answer, answered) = oneshot::channel();
        let request = Request::Write { key: key.clone(), op, answer, room };
        if self.inner.queue.push(request).is_err() {
            return Err(closed);
        }
        answered.await.unwrap_or(Err(closed))
    }

    /// The latest state of a key.
    async fn read(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), StoreFault> {
        self.inner.readable().await;
        let (stored, revision, snapshot) = {
            let state = self.inner.state.read();
            let snapshot = state.snapshot()?;
            let revision = state.index.mvcc.current();
            let Some(stored) = state.index.mvcc.get(key.as_str()).copied() else { return Ok((None, revision)) };
            if let Some(value) = state.recent.value(stored.modified) {
                return Ok((Some(key_value(key, stored, value.clone())), revision));
            }
            (stored, revision, snapshot)
        };
        let value = snapshot.value(stored.modified).map_err(|error| self.inner.reading_failed(error))?;
        Ok((Some(key_value(key, stored, value)), revision))
    }

    /// Whether a key's revision already differs from the expected one. Revisions only increase, so such a write can
    /// never succeed and needs no queue.
    fn lost(&self, key: &Key, expected: Revision) -> bool {
        let at = self.inner.state.read().index.mvcc.get(key.as_str()).map(|stored| stored.modified);
        at != Some(expected)
    }
}

/// Runs a blocking call in tokio's pool for blocking work.
async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, StoreFault> + Send + 'static,
) -> Result<T, StoreFault> {
    let stopped = |_| StoreFault::Unavailable("the runtime is shutting down".to_owned());
    tokio::task::spawn_blocking(run).await.map_err(stopped)?
}

impl Committer {
    /// Starts the committer thread.
    fn start(self, dir: Option<StoreDir>) -> Arc<EmbeddedStorage> {
        let (inner, disk, options) = (self.inner.clone(), self.disk.clone(), self.options);
        let run = move || {
            self.run();
            // The directory is unlocked only after the engine is closed.
            drop(dir);
        };
        let committer = std::thread::Builder::new().name("listwatch-store".into()).spawn(run);
        let committer = committer.expect("the system can start a thread");
        Arc::new(EmbeddedStorage { inner, disk, options, committer: Mutex::new(Some(committer)) })
    }
}

impl Drop for EmbeddedStorage {
    fn drop(&mut self) {
        self.inner.queue.close();
        if let Some(committer) = self.committer.lock().take() {
            let _ = committer.join();
        }
    }
}

fn key_value(key: &Key, stored: Stored<Length>, value: Bytes) -> KeyValue {
    KeyValue { key: key.clone(), value, created: stored.created, modified: stored.modified, stale: false }
}

fn check_size(key: &Key, value: &Bytes) -> Result<(), StoreFault> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(StoreFault::TooLarge(format!(
            "the value of {key} has {} bytes, the limit is {VALUE_BYTES_MAX}",
            value.len()
        )));
    }
    Ok(())
}

#[async_trait]
impl Storage for EmbeddedStorage {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        Ok(self.read(key).await?)
    }

    async fn get_unless(&self, key: &Key, known: Revision) -> Result<(Reread, Revision), ReadError> {
        self.inner.readable().await;
        {
            let state = self.inner.state.read();
            state.snapshot()?;
            if state.index.mvcc.get(key.as_str()).is_some_and(|stored| stored.modified == known) {
                return Ok((Reread::Unchanged, state.index.mvcc.current()));
            }
        }
        let (found, revision) = self.read(key).await?;
        Ok((Reread::of(found, known), revision))
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        self.inner.readable().await;
        let (found, snapshot, revision, remaining) = {
            let state = self.inner.state.read();
            let snapshot = state.snapshot()?;
            let revision = query.at.filter(|at| !at.is_zero()).unwrap_or(state.index.mvcc.current());
            let page = self.inner.page_counts.list(&state.index.mvcc, &query.range, revision, query.limit)?;
            let found: Vec<(Key, Stored<Length>)> =
                page.items.into_iter().map(|(key, stored)| (key.clone(), *stored)).collect();
            (found, snapshot, revision, page.remaining)
        };
        let inline = found.len() <= INLINE_READS_MAX;
        let load = move || -> Result<Vec<KeyValue>, EngineError> {
            found.iter().map(|(key, stored)| Ok(key_value(key, *stored, snapshot.value(stored.modified)?))).collect()
        };
        let items = if inline {
            load()
        } else {
            let stopped = |_| StoreFault::Unavailable("the runtime is shutting down".to_owned());
            tokio::task::spawn_blocking(load).await.map_err(stopped)?
        };
        let items = items.map_err(|error| self.inner.reading_failed(error))?;
        Ok(ListPage { items, revision, more: remaining > 0, remaining: Some(remaining) })
    }

    async fn list_keys(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        self.inner.readable().await;
        let state = self.inner.state.read();
        state.snapshot()?;
        let revision = query.at.filter(|at| !at.is_zero()).unwrap_or(state.index.mvcc.current());
        let page = self.inner.page_counts.list(&state.index.mvcc, &query.range, revision, query.limit)?;
        let items = page.items.into_iter().map(|(key, stored)| key_value(key, *stored, Bytes::new())).collect();
        Ok(ListPage { items, revision, more: page.remaining > 0, remaining: Some(page.remaining) })
    }

    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        check_size(key, &value)?;
        loop {
            if let (Some(current), _) = self.read(key).await? {
                return Err(CreateError::AlreadyExists { key: key.clone(), current });
            }
            let op = WriteOp::Put { expected: Revision::ZERO, value: value.clone(), ttl };
            match self.write(key, op).await {
                Ok(revision) => return Ok(revision),
                // Another writer created it just before. If it is removed by now, this create
                // retries.
                Err(WriteError::Conflict) => {}
                Err(WriteError::Fault(fault)) => return Err(fault.into()),
            }
        }
    }

    async fn update(
        &self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, UpdateError> {
        check_size(key, &value)?;
        if !self.lost(key, expected) {
            match self.write(key, WriteOp::Put { expected, value, ttl }).await {
                Ok(revision) => return Ok(revision),
                Err(WriteError::Conflict) => {}
                Err(WriteError::Fault(fault)) => return Err(fault.into()),
            }
        }
        Err(UpdateError::Conflict { current: self.read(key).await?.0 })
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
        if !self.lost(key, expected) {
            match self.write(key, WriteOp::Delete { expected }).await {
                Ok(revision) => return Ok(revision),
                Err(WriteError::Conflict) => {}
                Err(WriteError::Fault(fault)) => return Err(fault.into()),
            }
        }
        Err(DeleteError::Conflict { current: self.read(key).await?.0 })
    }

    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
        self.inner.readable().await;
        let state = self.inner.state.read();
        state.snapshot()?;
        let id = self.inner.hub.join(range.clone(), after, state.index.mvcc.current());
        drop(state);
        let place = Arc::new(Registration { inner: self.inner.clone(), id });
        let asked = place.clone();
        Ok(Watch::new(EmbeddedWatch::new(place, range), move || asked.inner.hub.request_progress_of(asked.id)))
    }

    async fn current_revision(&self) -> Result<Revision, ReadError> {
        self.inner.readable().await;
        let state = self.inner.state.read();
        state.snapshot()?;
        Ok(state.index.mvcc.current())
    }

    async fn compact(&self, revision: Revision) -> Result<(), ReadError> {
        self.inner.readable().await;
        {
            let state = self.inner.state.read();
            state.snapshot()?;
            let current = state.index.mvcc.current();
            if revision > current {
                return Err(ReadError::Future { requested: revision, current });
            }
        }
        let (answer, answered) = oneshot::channel();
        self.inner.queue.push(Request::Compact { to: revision, answer }).map_err(|_| StoreFault::Closed)?;
        Ok(answered.await.unwrap_or(Err(StoreFault::Closed))?)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { progress_requests: true }
    }

    async fn health(&self) -> Result<(), StoreFault> {
        self.inner.state.read().snapshot().map(|_| ())
    }

    async fn stats(&self) -> Result<StoreStats, StoreFault> {
        self.inner.readable().await;
        let state = self.inner.state.read();
        state.snapshot()?;
        Ok(StoreStats {
            description: "embedded (redb)".to_owned(),
            revision: state.index.mvcc.current(),
            oldest: state.index.mvcc.oldest(),
            keys: Some(state.index.mvcc.live()),
            disk_bytes: self.disk.used_bytes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::faults::SimDisk;
    use super::*;

    fn key() -> Key {
        Key::new("pods", Some("ns"), "a").unwrap()
    }

    /// A store without its thread: writes stay in the queue. The committer must be kept, because it closes the store.
    fn store_without_thread() -> (Committer, EmbeddedStorage) {
        let disk = SimDisk::default();
        let options = EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() };
        Engine::create(&disk, options.cache_bytes).unwrap().close();
        let committer = EmbeddedStorage::load(Arc::new(disk.clone()), options, SystemTime::now).unwrap();
        let (inner, disk) = (committer.inner.clone(), Arc::new(disk));
        (committer, EmbeddedStorage { inner, disk, options, committer: Mutex::default() })
    }

    #[test]
    fn queued_write_reserves_memory_for_its_value() {
        let (_committer, store) = store_without_thread();
        let put = |bytes: usize| WriteOp::Put { expected: Revision::ZERO, value: vec![0; bytes].into(), ttl: None };
        let delete = || WriteOp::Delete { expected: Revision::new(1) };
        let mut check = {
            let mut waiting = Vec::new();
            let store = &store;
            move |op: WriteOp, kib: usize| {
                let before = store.inner.room.available_permits();
                let mut write = Box::pin(async move { store.write(&key(), op).await });
                assert!(write.as_mut().now_or_never().is_none(), "nobody commits");
                waiting.push(write);
                assert_eq!(before - store.inner.room.available_permits(), kib, "KiB of room");
            }
        };
        check(put(0), 1);
        check(put(1023), 1);
        check(put(1024), 2);
        check(put(10 << 10), 11);
        check(put(VALUE_BYTES_MAX), 1537);
        check(delete(), 1);
    }

    #[test]
    fn write_that_cannot_succeed_is_rejected_without_the_queue() {
        let (_committer, store) = store_without_thread();
        let stale = Revision::new(7);
        let updated = store.update(&key(), stale, "v".into(), None).now_or_never();
        assert_eq!(updated, Some(Err(UpdateError::Conflict { current: None })));
        assert_eq!(store.delete(&key(), stale).now_or_never(), Some(Err(DeleteError::Conflict { current: None })));
        assert!(store.create(&key(), "v".into(), None).now_or_never().is_none(), "a possible write is queued");
        assert_eq!(store.inner.queue.len(), 1);
    }

    #[test]
    fn value_above_the_size_limit_is_rejected() {
        let (_committer, store) = store_without_thread();
        let (fits, large) = (Bytes::from(vec![0; VALUE_BYTES_MAX]), Bytes::from(vec![0; VALUE_BYTES_MAX + 1]));
        assert!(store.create(&key(), fits, None).now_or_never().is_none(), "a value of the maximum size is queued");
        let text = "the value of /pods/ns/a has 1572865 bytes, the limit is 1572864".to_owned();
        let created = store.create(&key(), large.clone(), None).now_or_never();
        assert_eq!(created, Some(Err(CreateError::Fault(StoreFault::TooLarge(text.clone())))));
        let updated = store.update(&key(), Revision::new(1), large, None).now_or_never();
        assert_eq!(updated, Some(Err(UpdateError::Fault(StoreFault::TooLarge(text)))));
    }
}
