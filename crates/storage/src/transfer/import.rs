//! Imports an export into a store. Records are written in the order of their last changes. Their revisions are above
//! every version that a client of the old store may hold.
//!
//! ```text
//!   notes ─▶ empty? ─▶ clock raised to the source's ─▶ history forgotten ─▶ records ─▶ notes removed
//!     │                (cheap writes of scratch keys)   (old versions are   (one write,
//!     │                                                  Expired from here)  one revision each)
//!     └── the same export again: continue after the last record
//! ```
//!
//! # The clock is raised first
//! The clock of a store is its current revision, and every write advances the clock by one. A client of the old store
//! holds resource versions up to the source's revision S, and resumes at the new store from one of them. If the new
//! store's revision were below S, the store would reject the request, or show objects at a lower version than the
//! client has seen. If the new store had history from before the import, the client would get unrelated changes and
//! miss removals before S. So every object gets a version above S, and every version below the import is `Expired`,
//! which makes clients list again.

use std::io::{Read, Seek};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use listwatch_meta::{Key, Revision};
use tokio::task::JoinSet;

use super::file::{CheckedExport, FileError};
use super::{Phase, Progress, ProgressFn, Record, SCRATCH, everything, is_scratch};
use crate::error::{CreateError, DeleteError, ReadError, StoreFault, UpdateError};
use crate::types::{KeyValue, ListQuery, Storage};

/// The number of concurrent writers that raise the clock: enough to fill the batches of etcd's log.
pub const CLOCK_LANES: usize = 64;

/// The maximum number of revisions by which the clock is raised. More would take hours.
const CLOCK_RAISE_MAX: u64 = 100_000_000;

/// Revisions after which history is compacted while the clock is raised, so that the scratch keys use little space.
const CLOCK_HISTORY: u64 = 100_000;

/// Interval of progress reports while the clock is raised.
const CLOCK_TICK: Duration = Duration::from_millis(200);

/// The number of attempts of a write whose store was unreachable.
const WRITE_ATTEMPTS: u32 = 5;

/// Pause between these attempts.
const WRITE_PAUSE: Duration = Duration::from_secs(1);

/// The handling of a key that exists in the target with another value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfExists {
    /// Fail unless the target is empty (apart from the result of an interrupted import of the same
    /// export).
    #[default]
    Fail,
    /// Keep the target's value.
    Skip,
    /// Replace the value by that of the export. Keys that only the target has are kept.
    Overwrite,
}

/// The options of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// The handling of existing keys.
    pub if_exists: IfExists,
    /// The minimum revision of the target after the import, even if the source's revision is lower. Set this field
    /// for a backup that is older than the state that clients have seen.
    pub clock_at_least: Revision,
    /// Leave the target's revision and history unchanged before the first record. Correct only if no client holds a
    /// resource version of the source.
    pub keep_clock: bool,
}

/// The result of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportSummary {
    /// Keys that were created.
    pub created: u64,
    /// Keys that already had the export's value.
    pub present: u64,
    /// Keys that existed with another value, which was kept.
    pub skipped: u64,
    /// Keys that existed with another value, which was replaced.
    pub replaced: u64,
    /// Keys that got another revision than in the source because another key had the same revision.
    pub moved: u64,
    /// Whether an interrupted import was continued.
    pub resumed: bool,
    /// Revisions by which the clock was raised before the first record.
    pub raised: u64,
    /// The target's revision at the end.
    pub revision: Revision,
}

/// The error of an import.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The export cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The target is not empty.
    #[error(
        "the target is not empty, it holds {example} for one; choose an empty one (another etcd prefix, a new data \
         directory), or say what to do about keys that are there with --if-exists=skip or overwrite"
    )]
    NotEmpty {
        /// An existing key.
        example: Key,
    },
    /// Another import into the target was interrupted.
    #[error(
        "an import of another export was interrupted here ({notes}): run that one again, or let this one go on above it \
         with --if-exists=skip or overwrite"
    )]
    Interrupted {
        /// The notes of that import.
        notes: String,
    },
    /// Another client wrote a key meanwhile.
    #[error(
        "{key} was written by somebody else during the import; stop whoever writes to the target (a server on it?) and \
         run it again with --if-exists=skip or overwrite"
    )]
    Disturbed {
        /// The key.
        key: Key,
    },
    /// The source's clock is too far ahead.
    #[error(
        "the target's clock is {behind} revisions behind the source's, and raising it takes hours; raise it with \
         `etcdutl snapshot restore --bump-revision` first, or, where no client holds a resource version of the source, \
         leave it with --keep-clock"
    )]
    TooFar {
        /// The difference in revisions.
        behind: u64,
    },
    /// The store failed.
    #[error("{fault}; {done} records are imported: run the same command again, and it continues there")]
    Store {
        /// The store's fault.
        fault: StoreFault,
        /// The number of written or found records.
        done: u64,
    },
}

/// Writes the records of an export to `target`, in the order of their last changes, each at its own
/// revision. Before the first record, the target's clock reaches the source's and the earlier
/// history is compacted (see the module documentation and [`ImportOptions::keep_clock`]).
///
/// An interrupted import continues when it is run again. No other client may write to the target
/// meanwhile, so no server may run on it yet.
///
/// # Errors
/// [`ImportError`].
pub async fn import<S: Storage + ?Sized, F: Read + Seek>(
    target: &Arc<S>,
    export: &mut CheckedExport<F>,
    options: ImportOptions,
    progress: &mut ProgressFn<'_>,
) -> Result<ImportSummary, ImportError> {
    let identity = export.identity();
    let goal = export.header().revision.max(options.clock_at_least);
    let mut summary = ImportSummary::default();
    let failed = |fault| ImportError::Store { fault, done: 0 };

    let mut notes = Notes::find(&**target).await.map_err(failed)?;
    let fresh = match notes.of(&identity) {
        Some(stage) => {
            summary.resumed = true;
            stage == Stage::Clock
        }
        None => {
            if options.if_exists == IfExists::Fail {
                if let Some(notes) = notes.text() {
                    return Err(ImportError::Interrupted { notes });
                }
                if let Some(example) = anything(&**target).await.map_err(failed)? {
                    return Err(ImportError::NotEmpty { example });
                }
            }
            notes.write(&**target, &identity, Stage::Clock).await.map_err(failed)?;
            true
        }
    };
    if fresh {
        if !options.keep_clock {
            summary.raised = raise(target, goal, progress).await?;
            let floor = clock(&**target).await.map_err(failed)?;
            forget(&**target, floor).await.map_err(failed)?;
        }
        notes.write(&**target, &identity, Stage::Write).await.map_err(failed)?;
    }

    let total = export.left();
    let mut done = 0;
    while let Some(record) = export.next_record()? {
        let stopped = |fault| ImportError::Store { fault, done };
        match put(&**target, &record, options.if_exists).await.map_err(stopped)? {
            Put::Created => summary.created += 1,
            Put::Present => summary.present += 1,
            Put::Replaced => summary.replaced += 1,
            Put::Other if options.if_exists == IfExists::Skip => summary.skipped += 1,
            Put::Other => return Err(ImportError::Disturbed { key: record.entry.key }),
        }
        done += 1;
        progress(Progress { phase: Phase::Write, done, total: Some(total) });
    }
    let stopped = |fault| ImportError::Store { fault, done };
    notes.remove(&**target).await.map_err(stopped)?;
    summary.revision = clock(&**target).await.map_err(stopped)?;
    Ok(summary)
}

/// The stage of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The clock is being raised.
    Clock,
    /// Records are being written.
    Write,
}

/// Notes that an import keeps in the target while it runs, so that it can continue after an
/// interruption.
struct Notes {
    key: Key,
    found: Option<KeyValue>,
}

impl Notes {
    async fn find(target: &(impl Storage + ?Sized)) -> Result<Self, StoreFault> {
        let key = scratch("import");
        let (found, _) = target.get(&key).await.map_err(read_fault)?;
        Ok(Notes { key, found })
    }

    /// The stage in these notes, if they belong to an import of this export.
    fn of(&self, identity: &str) -> Option<Stage> {
        let found = &self.found.as_ref()?.value;
        [Stage::Clock, Stage::Write].into_iter().find(|stage| *found == note(identity, *stage))
    }

    fn text(&self) -> Option<String> {
        self.found.as_ref().map(|found| String::from_utf8_lossy(&found.value).into_owned())
    }

    async fn write(
        &mut self,
        target: &(impl Storage + ?Sized),
        identity: &str,
        stage: Stage,
    ) -> Result<(), StoreFault> {
        let value = note(identity, stage);
        let modified = write(target, &self.key, value.clone(), self.found.as_ref().map(|found| found.modified)).await?;
        self.found = Some(KeyValue { key: self.key.clone(), value, created: modified, modified, stale: false });
        Ok(())
    }

    async fn remove(self, target: &(impl Storage + ?Sized)) -> Result<(), StoreFault> {
        match self.found {
            Some(found) => remove(target, &self.key, found.modified).await,
            None => Ok(()),
        }
    }
}

fn note(identity: &str, stage: Stage) -> Bytes {
    let stage = match stage {
        Stage::Clock => "clock",
        Stage::Write => "write",
    };
    format!(r#"{{"kind":"ListwatchImport","metadata":{{"name":"import"}},"of":"{identity}","stage":"{stage}"}}"#).into()
}

fn scratch(name: &str) -> Key {
    Key::new(SCRATCH, None, name).expect("a legal name")
}

/// Any existing key of the target, except the keys of an import itself.
async fn anything(target: &(impl Storage + ?Sized)) -> Result<Option<Key>, StoreFault> {
    // One more than all scratch keys, so that the page has another key if there is one.
    let query = ListQuery { range: everything(), at: None, limit: CLOCK_LANES + 2 };
    let page = target.list(query).await.map_err(read_fault)?;
    Ok(page.items.into_iter().map(|item| item.key).find(|key| !is_scratch(key)))
}

pub(super) async fn clock(target: &(impl Storage + ?Sized)) -> Result<Revision, StoreFault> {
    target.current_revision().await.map_err(read_fault)
}

pub(super) async fn forget(target: &(impl Storage + ?Sized), before: Revision) -> Result<(), StoreFault> {
    match target.compact(before).await {
        // Another client compacted further.
        Ok(()) | Err(ReadError::Compacted { .. }) => Ok(()),
        Err(error) => Err(read_fault(error)),
    }
}

fn read_fault(error: ReadError) -> StoreFault {
    match error {
        ReadError::Fault(fault) => fault,
        other => StoreFault::Unavailable(other.to_string()),
    }
}

/// The result of writing a record.
enum Put {
    Created,
    /// The key already has the value of the record.
    Present,
    /// The key has another value.
    Other,
    Replaced,
}

/// Whether a failed write may be tried again.
fn passes(fault: &StoreFault, attempt: u32) -> bool {
    matches!(fault, StoreFault::Unavailable(_)) && attempt < WRITE_ATTEMPTS
}

async fn pause(fault: &StoreFault, attempt: u32) {
    tracing::warn!(%fault, attempt, "trying again");
    tokio::time::sleep(WRITE_PAUSE).await;
}

async fn put(target: &(impl Storage + ?Sized), record: &Record, if_exists: IfExists) -> Result<Put, StoreFault> {
    let KeyValue { key, value, .. } = &record.entry;
    let mut attempt = 1;
    loop {
        let fault = match target.create(key, value.clone(), record.ttl).await {
            Ok(_) => return Ok(Put::Created),
            Err(CreateError::AlreadyExists { current, .. }) if current.value == *value => return Ok(Put::Present),
            Err(CreateError::AlreadyExists { .. }) if if_exists != IfExists::Overwrite => return Ok(Put::Other),
            Err(CreateError::AlreadyExists { current, .. }) => {
                match target.update(key, current.modified, value.clone(), record.ttl).await {
                    Ok(_) => return Ok(Put::Replaced),
                    Err(UpdateError::Conflict { .. }) => continue,
                    Err(UpdateError::Fault(fault)) => fault,
                }
            }
            Err(CreateError::Fault(fault)) => fault,
        };
        // The write may have taken effect; then the next attempt finds it.
        if !passes(&fault, attempt) {
            return Err(fault);
        }
        pause(&fault, attempt).await;
        attempt += 1;
    }
}

/// Writes a scratch key of the import. `at` is the current revision of the key; `None` if the key is absent.
async fn write(
    target: &(impl Storage + ?Sized),
    key: &Key,
    value: Bytes,
    mut at: Option<Revision>,
) -> Result<Revision, StoreFault> {
    let mut attempt = 1;
    loop {
        let fault = match at {
            None => match target.create(key, value.clone(), None).await {
                Ok(revision) => return Ok(revision),
                Err(CreateError::AlreadyExists { current, .. }) => {
                    at = Some(current.modified);
                    continue;
                }
                Err(CreateError::Fault(fault)) => fault,
            },
            Some(expected) => match target.update(key, expected, value.clone(), None).await {
                Ok(revision) => return Ok(revision),
                Err(UpdateError::Conflict { current }) => {
                    at = current.map(|current| current.modified);
                    continue;
                }
                Err(UpdateError::Fault(fault)) => fault,
            },
        };
        if !passes(&fault, attempt) {
            return Err(fault);
        }
        pause(&fault, attempt).await;
        attempt += 1;
    }
}

/// Removes a scratch key of the import.
async fn remove(target: &(impl Storage + ?Sized), key: &Key, mut at: Revision) -> Result<(), StoreFault> {
    let mut attempt = 1;
    loop {
        match target.delete(key, at).await {
            Ok(_) | Err(DeleteError::Conflict { current: None }) => return Ok(()),
            Err(DeleteError::Conflict { current: Some(current) }) => at = current.modified,
            Err(DeleteError::Fault(fault)) if passes(&fault, attempt) => {
                pause(&fault, attempt).await;
                attempt += 1;
            }
            Err(DeleteError::Fault(fault)) => return Err(fault),
        }
    }
}

/// Raises the store's revision to `goal` by writing scratch keys, and removes the keys. Returns the number of
/// revisions.
pub(super) async fn raise<S: Storage + ?Sized>(
    target: &Arc<S>,
    goal: Revision,
    progress: &mut ProgressFn<'_>,
) -> Result<u64, ImportError> {
    let failed = |fault| ImportError::Store { fault, done: 0 };
    let before = clock(&**target).await.map_err(failed)?;
    let behind = goal.get().saturating_sub(before.get());
    if behind > CLOCK_RAISE_MAX {
        return Err(ImportError::TooFar { behind });
    }
    let now = Arc::new(AtomicU64::new(before.get()));
    let mut lanes = JoinSet::new();
    // Scratch keys of an interrupted import are removed, too.
    for lane in 0..CLOCK_LANES {
        lanes.spawn(run_lane(target.clone(), scratch(&format!("clock-{lane:02}")), goal, now.clone()));
    }
    let mut forgotten = before;
    loop {
        match tokio::time::timeout(CLOCK_TICK, lanes.join_next()).await {
            Ok(None) => break,
            Ok(Some(ended)) => {
                let ended = ended.unwrap_or_else(|join| Err(StoreFault::Unavailable(join.to_string())));
                ended.map_err(failed)?;
            }
            Err(_) => {
                let at = Revision::new(now.load(Ordering::Relaxed));
                let done = (at.get() - before.get()).min(behind);
                progress(Progress { phase: Phase::Clock, done, total: Some(behind) });
                if at.get() - forgotten.get() >= CLOCK_HISTORY {
                    forget(&**target, at).await.map_err(failed)?;
                    forgotten = at;
                }
            }
        }
    }
    Ok(now.load(Ordering::Relaxed) - before.get())
}

/// Writes one scratch key until the clock has reached the goal, then removes it.
async fn run_lane<S: Storage + ?Sized>(
    target: Arc<S>,
    key: Key,
    goal: Revision,
    now: Arc<AtomicU64>,
) -> Result<(), StoreFault> {
    let (found, _) = target.get(&key).await.map_err(read_fault)?;
    let mut at = found.map(|found| found.modified);
    while now.load(Ordering::Relaxed) < goal.get() {
        let revision = write(&*target, &key, Bytes::new(), at).await?;
        now.fetch_max(revision.get(), Ordering::Relaxed);
        at = Some(revision);
    }
    match at {
        Some(at) => remove(&*target, &key, at).await,
        None => Ok(()),
    }
}
