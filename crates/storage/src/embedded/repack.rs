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

/// The number of times that the copier reaches the end of the store, after which the committer copies the rest. Writers
/// that are faster than the copy then wait for one chunk.
const CATCH_UPS_MAX: usize = 64;

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

/// A chunk of records to copy.
struct Chunk {
    records: Vec<RawCopy>,
    bytes: usize,
    through: Revision,
    /// Whether no chunk follows.
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

/// Checks that the header and the value of a record exist and are undamaged, and returns the header. A copy must not
/// hide damage.
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

/// Decides when the committer takes over, because the copier alone never catches up with fast writers.
#[derive(Default)]
struct CatchUp {
    /// The number of times that the copier reached the end of the store.
    ends: usize,
}

impl CatchUp {
    /// Whether the committer copies the records after this chunk.
    fn hands_over_after(&mut self, chunk: &Chunk) -> bool {
        self.ends += usize::from(chunk.last);
        // The next chunk is about as large as this one.
        let little = chunk.bytes < REST_BYTES && chunk.records.len() < REST_RECORDS;
        chunk.last && (little || self.ends == CATCH_UPS_MAX)
    }
}

/// Makes the copy and has the committer switch to it; returns the former engine.
fn copy(inner: &Arc<Inner>, disk: &Arc<dyn Disk>, cache_bytes: usize) -> Result<Engine, StoreFault> {
    let create_side = disk.create_side().map_err(EngineError::from)?;
    let engine = Engine::create(&*create_side, cache_bytes)?;
    let began = inner.state.read().index.mvcc.oldest();
    let mut copy = Copy { engine, through: Revision::ZERO, began };
    let mut catch_up = CatchUp::default();
    loop {
        let chunk = copy.next(inner)?;
        copy.add(inner, &chunk)?;
        if catch_up.hands_over_after(&chunk) {
            break;
        }
    }
    let (answer, answered) = oneshot::channel();
    inner.queue.push(Request::Replace { copy, answer }).map_err(|_| StoreFault::Closed)?;
    answered.blocking_recv().unwrap_or(Err(StoreFault::Closed))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use listwatch_meta::Key;

    use super::super::commit::Committer;
    use super::super::faults::SimDisk;
    use super::super::plan::{Plan, Record};
    use super::super::{EmbeddedStorage, Retention};
    use super::*;
    use crate::types::Storage;

    fn key(n: u64) -> Key {
        Key::new("pods", Some("ns"), &format!("k{n}")).unwrap()
    }

    fn options() -> EmbeddedOptions {
        let retention = Retention { age: Duration::from_secs(3600), revisions: u64::MAX, bytes: u64::MAX };
        EmbeddedOptions { retention, cache_bytes: 1 << 20, reserve_bytes: 0 }
    }

    fn load(disk: &SimDisk, options: EmbeddedOptions) -> Committer {
        EmbeddedStorage::load(Arc::new(disk.clone()), options, SystemTime::now).unwrap()
    }

    /// A store with these records, which is not served.
    fn store(plan: impl FnOnce(&mut Plan<'_>)) -> (Committer, Vec<Record>) {
        let disk = SimDisk::default();
        let engine = Engine::create(&disk, 1 << 20).unwrap();
        let mvcc = crate::mvcc::Mvcc::new(Revision::ZERO, FIRST_REVISION);
        let mut planned = Plan::new(&mvcc);
        plan(&mut planned);
        let records = planned.into_records();
        engine.commit(&Change { records: &records, ..Change::default() }).unwrap();
        engine.close();
        (load(&disk, options()), records)
    }

    fn copy_from(began: Revision) -> Copy {
        Copy { engine: Engine::create(&SimDisk::default(), 1 << 20).unwrap(), through: Revision::ZERO, began }
    }

    fn creates(plan: &mut Plan<'_>, count: u64, bytes: usize) {
        for n in 0..count {
            plan.put(&key(n), Revision::ZERO, vec![0; bytes].into(), 0).unwrap();
        }
    }

    /// Copies a whole store and returns the number of records of each chunk.
    fn chunks(committer: &Committer, copy: &mut Copy) -> Vec<usize> {
        let mut sizes = Vec::new();
        loop {
            let chunk = copy.next(&committer.inner).unwrap();
            let length = |(_, header, value): &RawCopy| header.len() + value.as_ref().map_or(0, Vec::len);
            assert_eq!(chunk.bytes, chunk.records.iter().map(length).sum::<usize>(), "the bytes of a chunk");
            sizes.push(chunk.records.len());
            copy.add(&committer.inner, &chunk).unwrap();
            if chunk.last {
                return sizes;
            }
        }
    }

    #[test]
    fn chunk_of_a_defragmentation_is_bounded_in_records_and_bytes() {
        let check = |count, bytes, expected: &[usize], why: &str| {
            let (committer, records) = store(|plan| creates(plan, count, bytes));
            let mut copy = copy_from(Revision::ZERO);
            assert_eq!(chunks(&committer, &mut copy), expected, "{why}");
            let mut found = Vec::new();
            copy.engine
                .headers_after(Revision::ZERO, |at, header| {
                    found.push((at, header));
                    Ok(())
                })
                .unwrap();
            let all: Vec<_> = records.into_iter().map(|(at, header, _)| (at, header)).collect();
            assert_eq!(found, all, "{why}: no record is missed");
        };
        check(2 * CHUNK_RECORDS as u64 + 1, 1, &[CHUNK_RECORDS, CHUNK_RECORDS, 1], "many records");
        check(3, CHUNK_BYTES / 2, &[2, 1], "large records");
        check(1, 2 * CHUNK_BYTES, &[1], "one record of any size is a chunk");
    }

    #[test]
    fn defragmented_copy_omits_unreadable_revisions() {
        // Twenty states of a key, a removed key, and one that lives.
        let (committer, records) = store(|plan| {
            let last = (0..20).fold(Revision::ZERO, |at, _| plan.put(&key(1), at, "v".into(), 0).unwrap());
            let other = plan.put(&key(2), Revision::ZERO, "v".into(), 0).unwrap();
            plan.delete(&key(1), last).unwrap();
            plan.put(&key(2), other, "w".into(), 0).unwrap();
            plan.put(&key(3), Revision::ZERO, "x".into(), 0).unwrap();
            plan.delete(&key(3), Revision::new(25)).unwrap();
        });
        let last = records.last().unwrap().0;
        committer.inner.state.write().index.mvcc.compact(last).unwrap();
        let mut copy = copy_from(last);
        let sizes = chunks(&committer, &mut copy);
        assert!(sizes.len() > 20 / CHUNK_RECORDS, "omitted records count for a chunk: {sizes:?}");
        let mut found = Vec::new();
        copy.engine
            .headers_after(Revision::ZERO, |at, header| {
                found.push((at, header.key));
                Ok(())
            })
            .unwrap();
        assert_eq!(found, [(Revision::new(24), key(2))], "only the state that is readable");
    }

    #[test]
    fn defragmented_copy_omits_revisions_freed_during_the_copy() {
        let (committer, records) = store(|plan| creates(plan, 10, 1));
        let mut copy = copy_from(Revision::ZERO);
        let chunk = copy.next(&committer.inner).unwrap();
        let dead = records[1].0;
        *committer.inner.died.lock() = Some(vec![dead]);
        copy.add(&committer.inner, &chunk).unwrap();
        assert_eq!(*committer.inner.died.lock(), Some(Vec::new()), "they are taken");
        let mut found = Vec::new();
        copy.engine
            .headers_after(Revision::ZERO, |at, _| {
                found.push(at);
                Ok(())
            })
            .unwrap();
        assert!(found.len() == CHUNK_RECORDS - 1 && !found.contains(&dead), "{found:?}");
    }

    #[test]
    fn committer_completes_the_defragmentation_when_little_is_left_or_the_copy_falls_behind() {
        let chunk = |bytes, records, last| {
            let record = (Revision::new(2), Vec::new(), None);
            Chunk { records: vec![record; records], bytes, through: Revision::new(2), last }
        };
        let check = |bytes, records, last, expected, why: &str| {
            assert_eq!(CatchUp::default().hands_over_after(&chunk(bytes, records, last)), expected, "{why}");
        };
        check(0, 0, true, true, "nothing was written meanwhile");
        check(REST_BYTES - 1, REST_RECORDS - 1, true, true, "little was written meanwhile");
        check(REST_BYTES, 1, true, false, "many bytes were written meanwhile");
        check(1, REST_RECORDS, true, false, "many records were written meanwhile");
        check(REST_BYTES + 1, 1, true, false, "more bytes");
        check(1, REST_RECORDS + 1, true, false, "more records");
        check(0, 0, false, false, "more follows");
        let mut catch_up = CatchUp::default();
        let many = chunk(REST_BYTES, REST_RECORDS, true);
        for end in 1..CATCH_UPS_MAX {
            assert!(!catch_up.hands_over_after(&many), "writers are served during catch-up {end}");
            assert!(
                !catch_up.hands_over_after(&chunk(REST_BYTES, REST_RECORDS, false)),
                "a catch-up may take several chunks"
            );
        }
        assert!(catch_up.hands_over_after(&many), "the number of catch-ups is bounded");
    }

    #[tokio::test]
    async fn defragmentation_needs_room_for_the_copy_and_the_reserve() {
        const RESERVE: u64 = 1000;
        let disk = SimDisk::default();
        Engine::create(&disk, 1 << 20).unwrap().close();
        let store = load(&disk, EmbeddedOptions { reserve_bytes: RESERVE, ..options() }).start(None);
        store.create(&key(1), vec![0; 500].into(), None).await.unwrap();
        let needed = 2 * store.inner.state.read().index.bytes() + RESERVE;
        assert!(needed > RESERVE + 1000);
        for (free, fits) in [(0, false), (needed - 1, false), (needed, true), (needed + 1, true)] {
            disk.report(free, 0);
            match store.defragment().await {
                Ok(_) => assert!(fits, "{free} free bytes"),
                Err(StoreFault::NoSpace(_)) => assert!(!fits, "{free} free bytes"),
                Err(fault) => panic!("{fault}"),
            }
            assert!(store.inner.died.lock().is_none(), "an attempt leaves nothing behind");
        }
    }
}
