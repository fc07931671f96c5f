//! [`EmbeddedStorage`]: a durable store in a directory, with the semantics of the memory store.
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
//! What is on disk is the log: for each revision a small header and, apart from it, the value. The
//! index (which key is at which revision, and the history within the retention window) is rebuilt
//! from the headers when the store is opened, so there is no second structure that could
//! contradict the log, and memory holds no values but the most recent.
//!
//! * **Group commit.** Writers queue; one thread takes all that wait, decides them one after the
//!   other, writes them with one sync and then answers. A write is visible only when it is durable.
//! * **History** is kept as [`Retention`] says, also over a restart: a watch resumes from any
//!   retained revision. What leaves the window is removed from the disk along with later commits, a
//!   few revisions each, so that compaction never stalls a writer.
//! * **Disk full.** Writes fail with [`StoreFault::NoSpace`] before the disk is quite full
//!   ([`RESERVE_BYTES`]); reads, watches, deletes and compaction go on, and writes do again when
//!   there is room. While commits fail dead revisions are removed once a second, so that room is made
//!   though writers never cease to try.
//! * **Failing disk.** After a failed write the engine is opened again and asked whether the write
//!   is there, so the answer to the writer is true; what a failed sync left in doubt is written once
//!   more. Readers wait meanwhile. After a failed read the engine is opened again, too.
//!
//! Get and short lists read the disk where they are called, which takes microseconds when the page
//! is cached; longer lists do so in tokio's pool for blocking work.

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
use self::queue::{Crowd, Denial, Queue, Request, Wish};
use self::recent::Recent;
pub use self::repack::Defragmented;
pub use self::restore::{Restore, RestoreError};
pub use self::stats::EmbeddedStats;
use self::stats::Timeline;
pub use self::transfer::FromExportError;
pub use self::verify::{FINDINGS_MAX, Finding, Verification};
use self::watch::{EmbeddedWatch, Place};
use crate::error::{CreateError, DeleteError, ReadError, StoreFault, UpdateError, WatchError};
use crate::hub::Hub;
use crate::mvcc::{FIRST_REVISION, Stored};
use crate::retention::{Keeper, Retention};
use crate::types::{Capabilities, KeyValue, ListPage, ListQuery, Storage, StoreStats, VALUE_BYTES_MAX, Watch};

/// [`EmbeddedOptions::cache_bytes`] by default.
pub const CACHE_BYTES: usize = 8 << 20;

/// [`EmbeddedOptions::reserve_bytes`] by default.
pub const RESERVE_BYTES: u64 = 16 << 20;

/// Writes that wait for the committer hold at most this many KiB of values, each write counting at
/// least one. Writers that come when there is no room wait for it, in order.
pub const WAITING_KIB_MAX: usize = 32 << 10;

/// So many values are read from disk where they are asked for; more are read in tokio's pool for
/// blocking work.
const INLINE_READS_MAX: usize = 16;

/// How an embedded store is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddedOptions {
    /// How much history is kept.
    pub retention: Retention,
    /// The engine caches at most this many bytes of pages; the operating system caches more.
    pub cache_bytes: usize,
    /// Creates and updates fail with [`StoreFault::NoSpace`] when fewer bytes than this are free
    /// on the file system, so that deletes and compaction, which need a little room to make room,
    /// still work.
    pub reserve_bytes: u64,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        EmbeddedOptions { retention: Retention::default(), cache_bytes: CACHE_BYTES, reserve_bytes: RESERVE_BYTES }
    }
}

/// Why a store could not be opened: one line that names the directory and what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be made, read or written.
    #[error("cannot use {} as a store: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another process, or another store of this one, has it open.
    #[error(
        "the store in {} is in use{}; stop that one first, or choose another directory",
        path.display(), owner.map(|pid| format!(" by process {pid}")).unwrap_or_default()
    )]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The process that has it open, where known.
        owner: Option<u32>,
    },
    /// The directory holds something else.
    #[error("{} is no store and not empty, it holds {found}; choose an empty or a new directory", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// What was found there.
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
        /// What its format record says.
        found: String,
    },
    /// A store is to be restored where there is one.
    #[error("{} holds a store already; restore into an empty or a new directory", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// What the directory holds is damaged.
    #[error("the store in {} is damaged: {detail}; restore it from a snapshot", path.display())]
    Corrupt {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// There is no room to open it.
    #[error("no space is left in {} to open the store", path.display())]
    NoSpace {
        /// The directory.
        path: PathBuf,
    },
}

/// A durable store in a directory. Every acknowledged write survives a crash of the process or of
/// the machine.
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

/// What the committer, readers and watchers share.
struct Inner {
    state: RwLock<State>,
    hub: Hub,
    queue: Queue,
    /// Room for waiting writes, in KiB.
    room: Arc<Semaphore>,
    clock: Clock,
    /// While the store is copied: the revisions that were removed and that the copy may hold. The
    /// copier takes them with each chunk.
    died: Mutex<Option<Vec<Revision>>>,
    /// Who waits for the engine to be open again.
    waiting: Mutex<Vec<Waker>>,
}

impl Inner {
    /// Ready when the engine is open, or cannot be. `waker` is woken then.
    fn poll_readable(&self, state: &State, waker: &Waker) -> Poll<()> {
        if !state.reopening {
            return Poll::Ready(());
        }
        // The end of the reopening takes the state's lock first, so this waker is not overlooked.
        let mut waiting = self.waiting.lock();
        if !waiting.iter().any(|other| other.will_wake(waker)) {
            waiting.push(waker.clone());
        }
        Poll::Pending
    }

    /// Waits while the engine is being opened again after a failure: no longer than that takes, and
    /// without blocking a thread.
    async fn readable(&self) {
        std::future::poll_fn(|cx| self.poll_readable(&self.state.read(), cx.waker())).await;
    }

    /// Reading the disk failed: the committer opens it again, which may help those that come next.
    fn reading_failed(&self, error: EngineError) -> StoreFault {
        if matches!(error, EngineError::Io(_)) {
            self.queue.nudge();
        }
        error.into()
    }
}

/// What readers see: everything that is durable, and nothing else.
struct State {
    /// The engine is being opened again: who wants to read waits, see [`Inner::readable`].
    reopening: bool,
    index: Index,
    recent: Recent,
    timeline: Timeline,
    /// The values on disk; never older than the index. Or why they cannot be read.
    snapshot: Result<Arc<Snapshot>, StoreFault>,
}

impl State {
    /// Why the disk cannot be read.
    fn fault(&self) -> StoreFault {
        self.snapshot.as_ref().err().cloned().unwrap_or(StoreFault::Closed)
    }

    fn snapshot(&self) -> Result<Arc<Snapshot>, StoreFault> {
        self.snapshot.clone()
    }
}

impl EmbeddedStorage {
    /// Is there a store in this directory? [`EmbeddedStorage::open`] would make one.
    pub fn exists(path: impl AsRef<Path>) -> bool {
        dir::holds_store(path.as_ref())
    }

    /// Opens the store in a directory, and makes both where there is none. Blocks while it reads
    /// the index, some tens of milliseconds for 20,000 objects and 1.6 s for a million; after a crash under load, also while the engine
    /// repairs the file.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing of a foreign or damaged directory is changed.
    pub fn open(path: impl AsRef<Path>, options: EmbeddedOptions) -> Result<Arc<Self>, OpenError> {
        let dir = StoreDir::prepare(path.as_ref(), options.cache_bytes)?;
        let disk = Arc::new(dir.disk());
        let failed = |error| dir.failed(error);
        let opened = Self::load(disk, options, SystemTime::now).map_err(failed)?;
        dir.mark()?;
        Ok(opened.start(Some(dir)))
    }

    /// Opens a store on a disk that holds one; `wall` reads the wall clock.
    fn load(disk: Arc<dyn Disk>, options: EmbeddedOptions, wall: fn() -> SystemTime) -> Result<Committer, EngineError> {
        let engine = Engine::open(&*disk, &Arc::default(), options.cache_bytes)?;
        let oldest = engine.oldest()?;
        let mut rebuilt = Rebuild::new(oldest, Keeper::new(options.retention));
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
            clock: Clock::new(wall),
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
            crowd: Crowd::default(),
            tidied: None,
            #[cfg(test)]
            planted: None,
            failed: None,
            unsynced: Arc::default(),
            reopened: None,
            broken: false,
        })
    }

    /// Closes the store: waits until queued writes are done and the directory is free. Watches
    /// end; what comes later fails with [`StoreFault::Closed`]. Dropping the store does the same,
    /// and blocks meanwhile.
    pub async fn close(&self) {
        self.inner.queue.close();
        let committer = self.committer.lock().take();
        if let Some(committer) = committer {
            // A committer that panicked has logged it and closed the store all the same.
            let _ = tokio::task::spawn_blocking(move || committer.join()).await;
        }
    }

    /// Begins a new store in an empty or new directory that holds keys as another store held them:
    /// with their revisions of creation and change, and the time when they remove themselves. What
    /// is put there comes to be with [`Restore::finish`], which sets the store's clock.
    ///
    /// How often a key was changed (etcd's `version`) is not kept: this store counts revisions
    /// alone, and nothing in Kubernetes reads more.
    ///
    /// # Errors
    /// See [`OpenError`]; [`OpenError::Exists`] when there is a store in the directory.
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
    /// restore.put(KeyValue { key: key.clone(), value: "{}".into(), created, modified }, None)?;
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

    /// When the state of a key that was written at `modified` removes itself: what an export has to
    /// keep beside the value. `None` when it does not, and when it is not the key's present state.
    pub fn expires(&self, modified: Revision) -> Option<SystemTime> {
        self.inner.state.read().index.deadlines.of(modified).map(commit::time_of)
    }

    /// What the store weighs and how far back its history goes. Cheap.
    ///
    /// # Errors
    /// The fault that keeps the store from serving.
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

    /// Reads everything on disk and compares it with its checksums, with itself and with the index
    /// in memory; see [`Verification`] for what that is. The store serves meanwhile; pages that
    /// become free during it are used again only afterwards, so under load the file grows. Takes
    /// some seconds for a million objects of 1 KiB.
    ///
    /// # Errors
    /// When the store cannot be read, or is closed or opened again meanwhile. Damage is no error but
    /// a [`Finding`].
    pub async fn verify(&self) -> Result<Verification, StoreFault> {
        let inner = self.inner.clone();
        blocking(move || verify::verify(&inner)).await
    }

    /// Gives disk space back: a dense copy of what is living and in history takes the file's place.
    /// The store serves meanwhile; writers wait some milliseconds when the copy takes over. Needs
    /// room for the copy. To give back as much as can be, call [`Storage::compact`] first.
    ///
    /// Dropping the future does not stop it.
    ///
    /// # Errors
    /// [`StoreFault::NoSpace`] when there is no room for the copy; [`StoreFault::Unavailable`] when
    /// one is being made already; [`StoreFault::Corrupt`] when something on disk is damaged, which
    /// [`EmbeddedStorage::verify`] tells more about; and other faults of the disk. The store is then
    /// as it was.
    pub async fn defragment(&self) -> Result<Defragmented, StoreFault> {
        let (inner, disk, options) = (self.inner.clone(), self.disk.clone(), self.options);
        blocking(move || repack::defragment(&inner, &disk, options)).await
    }

    /// Queues a write and waits until it is durable.
    async fn write(&self, key: &Key, wish: Wish) -> Result<Revision, Denial> {
        let closed = Denial::Fault(StoreFault::Closed);
        let kib = match &wish {
            Wish::Put { value, .. } => 1 + value.len() / 1024,
            Wish::Delete { .. } => 1,
        };
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        let Ok(room) = self.inner.room.clone().acquire_many_owned(kib).await else { return Err(closed) };
        let (answer, answered) = oneshot::channel();
        let request = Request::Write { key: key.clone(), wish, answer, room };
        if self.inner.queue.push(request).is_err() {
            return Err(closed);
        }
        answered.await.unwrap_or(Err(closed))
    }

    /// The present state of a key.
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

    /// Is a key at another revision than expected already? Revisions only rise, so a write that
    /// lost by now is lost for good, and needs no queue.
    fn lost(&self, key: &Key, expected: Revision) -> bool {
        let at = self.inner.state.read().index.mvcc.get(key.as_str()).map(|stored| stored.modified);
        at != Some(expected)
    }
}

/// Runs something that blocks where it blocks nobody else.
async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, StoreFault> + Send + 'static,
) -> Result<T, StoreFault> {
    let stopped = |_| StoreFault::Unavailable("the runtime is shutting down".to_owned());
    tokio::task::spawn_blocking(run).await.map_err(stopped)?
}

impl Committer {
    /// Starts the thread.
    fn start(self, dir: Option<StoreDir>) -> Arc<EmbeddedStorage> {
        let (inner, disk, options) = (self.inner.clone(), self.disk.clone(), self.options);
        let run = move || {
            self.run();
            // The directory is free only when the engine is closed.
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
    KeyValue { key: key.clone(), value, created: stored.created, modified: stored.modified }
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

    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        self.inner.readable().await;
        let (found, snapshot, revision, remaining) = {
            let state = self.inner.state.read();
            let snapshot = state.snapshot()?;
            let revision = query.at.filter(|at| !at.is_zero()).unwrap_or(state.index.mvcc.current());
            let page = state.index.mvcc.list(&query.range, revision, query.limit)?;
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
        let page = state.index.mvcc.list(&query.range, revision, query.limit)?;
        let items = page.items.into_iter().map(|(key, stored)| key_value(key, *stored, Bytes::new())).collect();
        Ok(ListPage { items, revision, more: page.remaining > 0, remaining: Some(page.remaining) })
    }

    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        check_size(key, &value)?;
        loop {
            if let (Some(current), _) = self.read(key).await? {
                return Err(CreateError::AlreadyExists { key: key.clone(), current });
            }
            let wish = Wish::Put { expected: Revision::ZERO, value: value.clone(), ttl };
            match self.write(key, wish).await {
                Ok(revision) => return Ok(revision),
                // Another created it just before. It may be gone again: then this one's turn comes.
                Err(Denial::Lost) => {}
                Err(Denial::Fault(fault)) => return Err(fault.into()),
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
            match self.write(key, Wish::Put { expected, value, ttl }).await {
                Ok(revision) => return Ok(revision),
                Err(Denial::Lost) => {}
                Err(Denial::Fault(fault)) => return Err(fault.into()),
            }
        }
        Err(UpdateError::Conflict { current: self.read(key).await?.0 })
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
        if !self.lost(key, expected) {
            match self.write(key, Wish::Delete { expected }).await {
                Ok(revision) => return Ok(revision),
                Err(Denial::Lost) => {}
                Err(Denial::Fault(fault)) => return Err(fault.into()),
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
        let place = Arc::new(Place { inner: self.inner.clone(), id });
        let asked = place.clone();
        Ok(Watch::new(EmbeddedWatch::new(place, range), move || asked.inner.hub.ask_progress(asked.id)))
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
