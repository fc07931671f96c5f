//! Frees disk space: a dense copy of the store, made while it serves, replaces the store's file.
//!
//! ```text
//!   copier (a blocking task)                          committer
//!   ── copy in chunks, one sync each ──▶ side file    writes, removes dead revisions
//!   ◀── revisions that died meanwhile ────────────────┘
//!   ── hand over when little is left ──────────────▶  copies the rest, renames, switches to the copy
//!   ◀── the former engine, to be closed ──────────────┘
//! ```
//!
//! A record never changes between its write and its removal, so the copy needs no single snapshot. Each chunk is read
//! from its own snapshot, and the engine can reuse pages meanwhile. Unreadable revisions are not copied. (redb can
//! shrink its file itself, but blocks all reads and writes meanwhile.)

use std::ops::ControlFlow;
use std::sync::Arc;

use listwatch_meta::{KeyRange, Revision};
use tokio::sync::oneshot;

use super::engine::{Change, Disk, Engine, EngineError, RawCopy, RawRecord};
use super::queue::Request;
use super::record::{self, Header};
use super::{EmbeddedOptions, Inner, State};
use crate::error::StoreFault;
use crate::mvcc::FIRST_REVISION;

/// Approximate bytes of records in a chunk of the copy; each chunk has one sync.
const CHUNK_BYTES: usize = if cfg!(test) { 16 << 10 } else { 4 << 20 };

/// The number of records in a chunk.
const CHUNK_RECORDS: usize = if cfg!(test) { 6 } else { 8 << 10 };

/// The number of remaining bytes at which the committer takes over; writers wait while it copies the rest.
const REST_BYTES: usize = if cfg!(test) { 4 << 10 } else { 256 << 10 };

/// The number of remaining records at which the committer takes over, like [`REST_BYTES`].
const REST_RECORDS: usize = if cfg!(test) { 3 } else { 512 };

/// The number of chunks after which the committer copies the rest. Writers that are faster than the copy then wait for
/// one chunk.
const CHASES_MAX: usize = 64;

/// Approximate bytes of the copy's file per byte of content.
const SPACE_PER_BYTE: u64 = 2;

/// The result of [`EmbeddedStorage::defragment`](super::EmbeddedStorage::defragment).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defragmented {
    /// The file's size before, in bytes, if known.
    pub before_bytes: Option<u64>,
    /// The file's size afterwards, in bytes, if known.
    pub after_bytes: Option<u64>,
}

/// A copy that is complete up to a revision; the committer adds the rest.
pub(super) struct Copy {
    pub engine: Engine,
    through: Revision,
    /// The oldest revision when the copy was started. All later revisions are copied, even after they
    /// leave the history: otherwise the copy could contain a key without its later removal.
    began: Revision,
}

impl std::fmt::Debug for Copy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Copy(through {:?})", self.through)
    }
}

/// The result of a chunk.
struct Chunk {
    records: Vec<RawCopy>,
    bytes: usize,
    through: Revision,
    /// No chunk follows.
    last: bool,
}

impl Copy {
    /// Reads the next chunk.
    fn next(&self, inner: &Inner) -> Result<Chunk, EngineError> {
        let state = inner.state.read();
        let snapshot = state.snapshot().map_err(|fault| EngineError::Io(fault.to_string()))?;
        drop(state);
        let mut chunk = Chunk { records: Vec::new(), bytes: 0, through: self.through, last: true };
        let mut skipped = 0;
        snapshot.records_after(self.through, |record| {
            if chunk.bytes >= CHUNK_BYTES || chunk.records.len() + skipped >= CHUNK_RECORDS {
                chunk.last = false;
                return Ok(ControlFlow::Break(()));
            }
            let (header, value) = (checked(&record)?, record.value);
            chunk.through = record.revision;
            if record.revision > self.began || lives(&inner.state.read(), record.revision, &header) {
                let raw = record.header.unwrap_or_default();
                chunk.bytes += raw.len() + value.map_or(0, <[u8]>::len);
                chunk.records.push((record.revision, raw.to_vec(), value.map(<[u8]>::to_vec)));
            } else {
                skipped += 1;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(chunk)
    }

    /// Adds a chunk, and removes revisions that died since.
    fn add(&mut self, inner: &Inner, chunk: &Chunk) -> Result<(), EngineError> {
        if !chunk.records.is_empty() {
            self.engine.copy_in(&chunk.records)?;
        }
        self.through = chunk.through;
        let died = inner.died.lock().as_mut().map(std::mem::take).unwrap_or_default();
        // Some of them were never copied; removing an absent revision is cheap.
        if died.is_empty() { Ok(()) } else { self.engine.commit(&Change { dead: &died, ..Change::default() }) }
    }

    /// Adds the remaining records. Called by the committer, so nothing is written to the former
    /// file meanwhile.
    pub(super) fn complete(&mut self, inner: &Inner, oldest: Revision) -> Result<(), EngineError> {
        loop {
            let chunk = self.next(inner)?;
            self.add(inner, &chunk)?;
            if chunk.last {
                let seal = Change { oldest: Some(oldest), quick_repair: true, ..Change::default() };
                return self.engine.commit(&seal);
            }
        }
    }
}

/// Checks a record, because a copy must not hide damage.
fn checked(record: &RawRecord<'_>) -> Result<Header, EngineError> {
    let missing = |what: &str| EngineError::Corrupt(format!("the {what} of revision {} is missing", record.revision));
    let header = Header::decode(record.revision, record.header.ok_or_else(|| missing("header"))?)?;
    match (header.put, record.value) {
        (Some(_), Some(value)) => record::check_value(record.revision, value)?,
        (Some(_), None) => return Err(missing("value")),
        (None, _) => {}
    }
    Ok(header)
}

/// Whether a revision is a key's state at the start of the history.
fn lives(state: &State, revision: Revision, header: &Header) -> bool {
    let mvcc = &state.index.mvcc;
    let oldest = mvcc.oldest();
    let then = mvcc.first(&KeyRange::single(&header.key), oldest.max(FIRST_REVISION), 1);
    then.is_ok_and(|found| found.first().is_some_and(|(_, stored)| stored.modified == revision))
}

/// Stops recording dead revisions and removes the copy when dropped, on success and on failure.
struct Attempt<'a> {
    inner: &'a Inner,
    disk: &'a dyn Disk,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        // The side file is removed before the next attempt may begin, or that attempt's copy would
        // be removed here.
        self.disk.discard_side();
        *self.inner.died.lock() = None;
    }
}

/// Makes the copy and switches to it. Blocks until it is done.
pub(super) fn defragment(
    inner: &Arc<Inner>,
    disk: &Arc<dyn Disk>,
    options: EmbeddedOptions,
) -> Result<Defragmented, StoreFault> {
    let before_bytes = disk.used_bytes();
    {
        let state = inner.state.read();
        state.snapshot()?;
        let (needs, reserve) = (state.index.bytes() * SPACE_PER_BYTE, options.reserve_bytes);
        if let Some(free) = disk.free_bytes()
            && free < needs + reserve
        {
            return Err(StoreFault::NoSpace(format!(
                "the copy that replaces the store needs up to {needs} bytes besides a reserve of {reserve}; {free} are free"
            )));
        }
        let mut died = inner.died.lock();
        if died.is_some() {
            return Err(StoreFault::Unavailable("the store is being defragmented already".to_owned()));
        }
        *died = Some(Vec::new());
    }
    let attempt = Attempt { inner, disk: &**disk };
    let former = copy(inner, disk, options.cache_bytes);
    drop(attempt);
    // The file's name is gone; its space is freed when the last reader closes it.
    former?.close();
    Ok(Defragmented { before_bytes, after_bytes: disk.used_bytes() })
}

/// Makes the copy and has the committer switch to it; returns the former engine.
fn copy(inner: &Arc<Inner>, disk: &Arc<dyn Disk>, cache_bytes: usize) -> Result<Engine, StoreFault> {
    let create_side = disk.create_side().map_err(EngineError::from)?;
    let engine = Engine::create(&*create_side, cache_bytes)?;
    let began = inner.state.read().index.mvcc.oldest();
    let mut copy = Copy { engine, through: Revision::ZERO, began };
    let mut chases = 0;
    loop {
        let chunk = copy.next(inner)?;
        copy.add(inner, &chunk)?;
        chases += usize::from(chunk.last);
        let little = chunk.bytes < REST_BYTES && chunk.records.len() < REST_RECORDS;
        if chunk.last && (little || chases == CHASES_MAX) {
            break;
        }
    }
    let (answer, answered) = oneshot::channel();
    inner.queue.push(Request::Replace { copy, answer }).map_err(|_| StoreFault::Closed)?;
    answered.blocking_recv().unwrap_or(Err(StoreFault::Closed))
}
