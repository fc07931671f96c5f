//! [`RelocatingStorage`]: a store that moves to another one while a server uses it.
//!
//! ```text
//!  writes, reads, watches ─▶ source                                                  ─▶ target
//!  rounds                    1: all records ─▶ 2: what changed since 1 ─▶ … ─▶ few ─▶ last round ─▶ switch
//!                            └──────────────── writes go on ────────────────────────┘ └ writes wait ┘
//! ```
//!
//! Before each round, the clock of the target reaches that of the source, as in [`import()`]. So each object gets a
//! version in the target that is above all its versions in the source. A client's update with a version of the source
//! is therefore a conflict, and never succeeds by chance. At the switch, the history of the target is compacted and the
//! watches of the source end with [`WatchItem::Expired`], so that clients list again.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use listwatch_meta::{Key, KeyRange, Revision};
use tokio::sync::{RwLock, watch};
use tokio::time::Instant;

use super::import::{clock, forget, raise};
use super::{
    CheckedExport, EXPORT_ATTEMPTS_MAX, ExportError, FileError, ImportError, ImportOptions, Phase, Progress,
    ProgressFn, Record, RecordsError, Source, everything, export, import, is_scratch,
};
use crate::error::{CreateError, DeleteError, ReadError, StoreFault, UpdateError, WatchError};
use crate::types::{
    Capabilities, ItemStream, KeyValue, ListPage, ListQuery, Reread, Storage, StoreStats, Watch, WatchItem,
};

/// The largest number of changes in a round after which the writes pause for the last round.
const LAST_ROUND_CHANGES_MAX: usize = 200;
/// The maximum number of rounds of a relocation. The relocation fails after them, because clients write faster than it
/// copies.
pub const ROUNDS_MAX: u32 = 50;
/// The page size of a list of the target's keys.
const KEYS_PAGE: usize = 2_048;

/// The result of [`RelocatingStorage::relocate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Records of the first round.
    pub records: u64,
    /// Changes of all later rounds.
    pub changes: u64,
    /// Rounds, including the first and the last one.
    pub rounds: u32,
    /// The time in which writes waited.
    pub paused: Duration,
    /// The target's revision at the switch.
    pub revision: Revision,
}

/// The error of [`RelocatingStorage::relocate`]. The store still serves the source.
#[derive(Debug, thiserror::Error)]
pub enum RelocateError {
    /// The store has moved before.
    #[error("the store has moved already")]
    Moved,
    /// The source cannot be read.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The target cannot be filled.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The temporary file cannot be used, or the switch could not be recorded.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A store failed.
    #[error(transparent)]
    Store(#[from] StoreFault),
    /// Another program wrote a key of the target.
    #[error("{0} was written by somebody else in the target; stop whoever writes to it, and empty it")]
    Disturbed(Key),
    /// Clients write faster than the changes are copied.
    #[error(
        "after {ROUNDS_MAX} rounds there are still {0} changes in a round: clients write faster than they are copied"
    )]
    Busy(usize),
}

impl From<FileError> for RelocateError {
    fn from(error: FileError) -> Self {
        RelocateError::Import(error.into())
    }
}

/// A store that serves a source until [`RelocatingStorage::relocate`] has moved it to a target, and then the target.
pub struct RelocatingStorage {
    source: Arc<dyn Source>,
    target: OnceLock<Arc<dyn Storage>>,
    /// Locked for reading by each write until it has ended, and for writing by the last round.
    gate: Arc<RwLock<()>>,
    /// Whether the store has moved. Ends the watches of the source.
    moved: watch::Sender<bool>,
}

impl std::fmt::Debug for RelocatingStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelocatingStorage").field("moved", &self.target.get().is_some()).finish()
    }
}

impl RelocatingStorage {
    /// Creates a store that serves `source`.
    pub fn new(source: Arc<dyn Source>) -> Arc<Self> {
        let moved = watch::Sender::new(false);
        Arc::new(RelocatingStorage { source, target: OnceLock::new(), gate: Arc::default(), moved })
    }

    fn current(&self) -> &dyn Storage {
        match self.target.get() {
            Some(target) => &**target,
            None => &*self.source,
        }
    }

    /// Runs a write in a task, which keeps the last round waiting until the write has ended. The source may execute a
    /// queued write although its caller is gone.
    async fn write<T, E, Write>(&self, write: impl FnOnce(Arc<dyn Storage>) -> Write) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreFault> + Send + 'static,
        Write: Future<Output = Result<T, E>> + Send + 'static,
    {
        if let Some(target) = self.target.get() {
            return write(target.clone()).await;
        }
        let admitted = self.gate.clone().read_owned().await;
        let store: Arc<dyn Storage> = match self.target.get() {
            Some(target) => target.clone(),
            None => self.source.clone(),
        };
        let write = write(store);
        let written = tokio::spawn(async move {
            let _admitted = admitted;
            write.await
        });
        match written.await {
            Ok(written) => written,
            Err(panicked) if panicked.is_panic() => std::panic::resume_unwind(panicked.into_panic()),
            // The runtime shuts down.
            Err(_) => Err(StoreFault::Closed.into()),
        }
    }

    /// Copies all records to `target`, which must be empty, and then serves the target. Writes wait in the last round
    /// only. `before_switch` runs in that round, after all records are copied: it records durably that the source is
    /// out of date. No other program may write to the target meanwhile.
    ///
    /// The temporary file and the sorted index of its records need disk space. Some work blocks the polling task, so a
    /// server runs this future on a separate thread.
    ///
    /// # Errors
    /// [`RelocateError`]. The source is still served. Empty the target before another attempt.
    pub async fn relocate(
        &self,
        target: Arc<dyn Storage>,
        before_switch: impl FnOnce() -> io::Result<()> + Send,
        progress: &mut ProgressFn<'_>,
    ) -> Result<Relocation, RelocateError> {
        if self.target.get().is_some() {
            return Err(RelocateError::Moved);
        }
        let (mut copied, records) = self.copy_all(&target, progress).await?;
        let mut keys = keys_of(&*target).await?;
        let (mut changes, mut rounds) = (0, 1);
        loop {
            rounds += 1;
            let count = self.copy_changes(&target, &mut copied, &mut keys, progress).await?;
            changes += count as u64;
            if count <= LAST_ROUND_CHANGES_MAX {
                break;
            }
            if rounds >= ROUNDS_MAX {
                return Err(RelocateError::Busy(count));
            }
        }
        let writes = self.gate.write().await;
        let began = Instant::now();
        changes += self.copy_changes(&target, &mut copied, &mut keys, progress).await? as u64;
        let revision = clock(&*target).await?;
        forget(&*target, revision).await?;
        before_switch()?;
        let moved = self.target.set(target);
        debug_assert!(moved.is_ok(), "the gate admits one relocation");
        self.moved.send_replace(true);
        drop(writes);
        Ok(Relocation { records, changes, rounds: rounds + 1, paused: began.elapsed(), revision })
    }

    /// Runs the first round. Returns the revision of the source that the target has, and the number of records.
    async fn copy_all(
        &self,
        target: &Arc<dyn Storage>,
        progress: &mut ProgressFn<'_>,
    ) -> Result<(Revision, u64), RelocateError> {
        let mut attempt = 1;
        let file = loop {
            let mut file = io::BufWriter::new(super::spool(io::empty())?);
            match export(&*self.source, "a server's store", &mut file, progress).await {
                Ok(_) => break file.into_inner().map_err(io::IntoInnerError::into_error)?,
                Err(ExportError::Overtaken { .. }) if attempt < EXPORT_ATTEMPTS_MAX => attempt += 1,
                Err(error) => return Err(error.into()),
            }
        };
        let mut checked = CheckedExport::check(file, progress)?;
        let revision = checked.header().revision;
        import(target, &mut checked, ImportOptions::default(), progress).await?;
        Ok((revision, checked.end().records))
    }

    /// Copies all changes of the source after the revision `copied`. Returns the number of changes.
    async fn copy_changes(
        &self,
        target: &Arc<dyn Storage>,
        copied: &mut Revision,
        keys: &mut HashMap<Key, Revision>,
        progress: &mut ProgressFn<'_>,
    ) -> Result<usize, RelocateError> {
        let (revision, mut changed, removed) = self.changes_since(*copied, keys).await?;
        if clock(&**target).await? < revision {
            raise(target, revision, progress).await?;
        }
        // Newer objects stay newer.
        changed.sort_by_key(|record| record.entry.modified);
        let total = changed.len() + removed.len();
        for (at, record) in changed.into_iter().enumerate() {
            let KeyValue { key, value, .. } = record.entry;
            let updated = match keys.get(&key) {
                Some(expected) => match target.update(&key, *expected, value.clone(), record.ttl).await {
                    Ok(written) => Some(written),
                    // The target has removed the key after its TTL.
                    Err(UpdateError::Conflict { current: None }) => None,
                    Err(UpdateError::Conflict { current: Some(_) }) => return Err(RelocateError::Disturbed(key)),
                    Err(UpdateError::Fault(fault)) => return Err(fault.into()),
                },
                None => None,
            };
            let written = match updated {
                Some(written) => written,
                None => target.create(&key, value, record.ttl).await.map_err(|error| match error {
                    CreateError::AlreadyExists { key, .. } => RelocateError::Disturbed(key),
                    CreateError::Fault(fault) => fault.into(),
                })?,
            };
            keys.insert(key, written);
            progress(Progress { phase: Phase::Write, done: at as u64 + 1, total: Some(total as u64) });
        }
        for key in removed {
            let Some(at) = keys.remove(&key) else { continue };
            match target.delete(&key, at).await {
                // The target removes expired keys itself.
                Ok(_) | Err(DeleteError::Conflict { current: None }) => {}
                Err(DeleteError::Conflict { current: Some(_) }) => return Err(RelocateError::Disturbed(key)),
                Err(DeleteError::Fault(fault)) => return Err(fault.into()),
            }
        }
        *copied = revision;
        Ok(total)
    }

    /// The current revision of the source, the records that changed after `copied`, and the keys of the target that the
    /// source no longer has.
    async fn changes_since(
        &self,
        copied: Revision,
        keys: &HashMap<Key, Revision>,
    ) -> Result<(Revision, Vec<Record>, Vec<Key>), RelocateError> {
        let read_failed = |error: RecordsError| -> RelocateError {
            match error {
                RecordsError::Store(error) => RelocateError::Store(read_fault(error)),
                RecordsError::File(error) => error.into(),
            }
        };
        let mut records = self.source.records().await.map_err(read_fault)?;
        let revision = records.revision();
        let mut present = std::collections::HashSet::with_capacity(keys.len());
        let mut changed = Vec::new();
        loop {
            let page = records.next_page().await.map_err(read_failed)?;
            if page.is_empty() {
                break;
            }
            for record in page.into_iter().filter(|record| !is_scratch(&record.entry.key)) {
                present.insert(record.entry.key.clone());
                if record.entry.modified > copied {
                    changed.push(record);
                }
            }
        }
        let removed = keys.keys().filter(|key| !present.contains(*key)).cloned().collect();
        Ok((revision, changed, removed))
    }
}

/// The keys of a store with their revisions.
async fn keys_of(store: &dyn Storage) -> Result<HashMap<Key, Revision>, StoreFault> {
    let mut keys = HashMap::new();
    let mut range = everything();
    loop {
        let page = store.list_keys(ListQuery { range: range.clone(), at: None, limit: KEYS_PAGE }).await;
        let page = page.map_err(read_fault)?;
        let next = page.items.last().filter(|_| page.more).map(|last| super::behind(Some(&last.key)));
        keys.extend(page.items.into_iter().map(|item| (item.key, item.modified)));
        match next {
            Some(next) => range = next,
            None => return Ok(keys),
        }
    }
}

fn read_fault(error: ReadError) -> StoreFault {
    match error {
        ReadError::Fault(fault) => fault,
        other => StoreFault::Unavailable(other.to_string()),
    }
}

/// The items of a watch of the source, until the store moves.
struct UntilMoved {
    items: ItemStream,
    moved: Pin<Box<dyn Future<Output = ()> + Send>>,
    has_ended: bool,
}

impl Stream for UntilMoved {
    type Item = WatchItem;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchItem>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if self.moved.as_mut().poll(cx).is_ready() {
            self.has_ended = true;
            return Poll::Ready(Some(WatchItem::Expired { oldest: None }));
        }
        self.items.as_mut().poll_next(cx)
    }
}

#[async_trait]
impl Storage for RelocatingStorage {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        self.current().get(key).await
    }

    async fn get_unless(&self, key: &Key, _known: Revision) -> Result<(Reread, Revision), ReadError> {
        // The caller may know the revision from the other store.
        let (found, revision) = self.get(key).await?;
        Ok((Reread::Changed(found), revision))
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        self.current().list(query).await
    }

    async fn list_keys(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        self.current().list_keys(query).await
    }

    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        let key = key.clone();
        self.write(|store| async move { store.create(&key, value, ttl).await }).await
    }

    fn normal_form(&self, key: &Key, value: Bytes) -> Bytes {
        self.current().normal_form(key, value)
    }

    async fn update(
        &self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, UpdateError> {
        let key = key.clone();
        self.write(|store| async move { store.update(&key, expected, value, ttl).await }).await
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
        let key = key.clone();
        self.write(|store| async move { store.delete(&key, expected).await }).await
    }

    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
        // The receiver is older than the watch, so that no switch is missed.
        let mut moved = self.moved.subscribe();
        if self.target.get().is_some() {
            return self.current().watch(range, after).await;
        }
        let (items, request_progress) = self.source.watch(range, after).await?.into_parts();
        let moved = Box::pin(async move {
            // An error means that the store is gone, and so are its watches.
            let _ = moved.wait_for(|moved| *moved).await;
        });
        Ok(Watch::new(UntilMoved { items, moved, has_ended: false }, request_progress))
    }

    async fn current_revision(&self) -> Result<Revision, ReadError> {
        self.current().current_revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<(), ReadError> {
        self.current().compact(revision).await
    }

    fn capabilities(&self) -> Capabilities {
        self.current().capabilities()
    }

    async fn health(&self) -> Result<(), StoreFault> {
        self.current().health().await
    }

    async fn stats(&self) -> Result<StoreStats, StoreFault> {
        self.current().stats().await
    }
}
