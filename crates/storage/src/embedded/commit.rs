//! The committer: the only thread that writes. The thread takes queued requests, decides each, and writes all changes
//! with one sync. Then the changes become visible, and the writers receive their results.
//!
//! ```text
//!   Queue ─▶ Plan (pure) ─▶ Engine::commit, one sync ─▶ index, recent values, watchers ─▶ answers
//!               ▲                    │ fails
//!     due TTLs ─┘                    ▼
//!     dead revisions          drop the engine, open it again: is the batch there?
//! ```
//!
//! A change is visible only when it is durable. After a failed commit the committer reopens the file and checks whether
//! it contains the batch, so that a writer gets the true outcome. The outcome is unknown only if the disk is also
//! unreadable, and the fault then reports this.

use std::collections::VecDeque;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use listwatch_meta::Revision;
use tokio::sync::oneshot;

use super::engine::{Change, Disk, Engine, EngineError, Unsynced};
use super::plan::{Conflict, Index, Length, Plan, Record};
use super::queue::{Batch, ExpectedWriters, Request, WriteError, WriteOp};
use super::record::Header;
use super::repack::Copy;
use super::{EmbeddedOptions, Inner, State};
use crate::error::StoreFault;
use crate::mvcc::Entry;
use crate::retention::RetentionTracker;
use crate::ttl::{self, Millis, millis_rounded_down, millis_rounded_up};

/// The number of expired keys that one commit removes.
const EXPIRE_PER_COMMIT: usize = 256;

/// The number of dead revisions that a commit removes from the disk, plus [`DEAD_PER_WRITE`] for each write. Removal
/// therefore keeps up, and no commit is slow. A commit removes no revisions if fewer are dead, because removal touches
/// other pages than writes do.
const DEAD_PER_COMMIT: usize = if cfg!(test) { 5 } else { 64 };

/// The number of dead revisions that a commit removes per write, in addition to [`DEAD_PER_COMMIT`].
const DEAD_PER_WRITE: usize = 2;

/// The number of dead revisions that an idle commit removes; a new writer waits for one such commit.
const DEAD_WHEN_IDLE: usize = if cfg!(test) { 7 } else { 256 };

/// The number of history entries that are dropped from memory at a time while no writer is active.
const TRIM_WHEN_IDLE: usize = 1024;

/// The divisor of the last commit's duration, which gives the time that the committer waits for the writers it has just
/// answered; at most [`RETURN_WAIT_MAX`].
const RETURN_WAIT_DIVISOR: u32 = 4;

/// The longest wait for the writers that were just answered; see [`RETURN_WAIT_DIVISOR`].
const RETURN_WAIT_MAX: Duration = Duration::from_millis(1);

/// Time without a commit after which the engine prepares the file for a crash, so that opening it
/// needs no repair. Under a steady load, a crash costs a repair.
const QUIET: Duration = Duration::from_millis(500);

/// Pause of the store's own work (TTLs, removal of old revisions) after a failed commit. Writes are not paused.
const REST_AFTER_FAILURE: Duration = if cfg!(test) { Duration::from_millis(5) } else { Duration::from_secs(1) };

/// Minimum time between two attempts to reopen the engine.
const REOPEN_EVERY: Duration = if cfg!(test) { Duration::from_millis(5) } else { Duration::from_secs(1) };

/// Interval at which the age of history is checked while no writer is active.
const RETENTION_EVERY: Duration = Duration::from_secs(30);

/// The number of free bytes that a write needs per byte of its size, because the engine copies pages.
const SPACE_PER_BYTE: u64 = 4;

/// Approximate bytes of the file per byte of values, because the engine's page sizes are powers of
/// two.
const FILE_PER_BYTE: u64 = 2;

/// The time that the wall clock may lie behind the last write to the file without an error in the log. Small corrections of
/// the clock are usual.
const CLOCK_CORRECTION_MAX: Duration = Duration::from_secs(1);

/// The two clocks of deadlines. Deadlines expire on a steady clock, which starts at the wall clock's milliseconds since
/// the epoch when the store is opened. Setting the wall clock therefore never expires a key early. Deadlines are stored
/// in wall-clock time, which is read for each commit. A store that was opened with a wrong clock stores correct
/// deadlines as soon as the clock is set.
///
/// A machine without a battery may boot with a clock in the past. The stored deadlines would then be years away. The
/// steady clock therefore begins no earlier than the last write to the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    opened: Instant,
    began: Millis,
    wall: fn() -> SystemTime,
}

/// The readings of both clocks at one moment.
#[derive(Clone, Copy, Debug)]
struct Now {
    /// Milliseconds since the epoch on the steady clock, rounded down. A deadline that this reading reaches has passed.
    steady: Millis,
    /// Rounded up, because TTLs begin here.
    wall: Millis,
    /// The steady clock minus the wall clock, rounded up. A stored deadline plus this difference is never early on the
    /// steady clock.
    steady_ahead: i64,
}

impl Clock {
    /// Starts the steady clock. `written` is the time of the last write to the file.
    pub(super) fn new(wall: fn() -> SystemTime, written: Option<SystemTime>) -> Self {
        // Rounded down: this clock is then never ahead of the wall clock, whose deadlines an earlier process stored.
        let now = wall();
        if let Some(ahead) = written.and_then(|written| written.duration_since(now).ok())
            && ahead > CLOCK_CORRECTION_MAX
        {
            tracing::error!(
                ahead_seconds = ahead.as_secs(),
                "the store's file was written later than the present time of the system clock: the clock is in the past, or \
                 the file's time is in the future, and then TTLs end early; check the clock"
            );
        }
        let began = millis_rounded_down(since_epoch(written.map_or(now, |written| now.max(written))));
        Clock { opened: Instant::now(), began, wall }
    }

    fn now(&self) -> Now {
        // The wall clock first: time that passes between the two readings makes deadlines later, never earlier.
        let wall = since_epoch((self.wall)());
        self.reading(self.opened.elapsed(), wall)
    }

    /// The reading after `elapsed` since the store was opened, at this time since the epoch.
    fn reading(&self, elapsed: Duration, wall: Duration) -> Now {
        let rounded_up = self.began.saturating_add(millis_rounded_up(elapsed));
        Now {
            steady: self.began.saturating_add(millis_rounded_down(elapsed)),
            wall: millis_rounded_up(wall),
            steady_ahead: rounded_up.cast_signed().wrapping_sub(millis_rounded_down(wall).cast_signed()),
        }
    }

    fn instant(&self, steady: Millis) -> Instant {
        self.opened + Duration::from_millis(steady.saturating_sub(self.began))
    }
}

/// Milliseconds since the epoch, rounded up so that a key never expires early.
pub(super) fn millis_of(time: SystemTime) -> Millis {
    millis_rounded_up(since_epoch(time))
}

/// The time since the epoch; zero for an earlier time.
fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Converts milliseconds since the epoch to a time.
pub(super) fn time_of(millis: Millis) -> SystemTime {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The committer. Dropping the value closes the store, even if the thread panics.
pub(super) struct Committer {
    pub inner: Arc<Inner>,
    pub disk: Arc<dyn Disk>,
    pub clock: Clock,
    pub options: EmbeddedOptions,
    pub engine: Option<Engine>,
    /// Revisions on disk that are no longer readable, oldest first.
    pub dead: VecDeque<Revision>,
    /// The oldest readable revision according to the disk. The index's oldest revision may be newer until the dead
    /// revisions are removed.
    pub oldest_on_disk: Revision,
    /// The time of the last commit that would need a repair after a crash.
    pub unrepaired: Option<Instant>,
    /// The writers that are likely to write again soon.
    pub expected_writers: ExpectedWriters,
    /// The time of the last removal of dead revisions while commits fail.
    pub tidied: Option<Instant>,
    /// The data that must be written again when the engine is reopened.
    pub unsynced: Arc<Unsynced>,
    #[cfg(test)]
    pub planted: Option<Bug>,
    /// The time of the last failed commit, if none succeeded since.
    pub failed: Option<Instant>,
    /// The time when the engine was last reopened after a failure.
    pub reopened: Option<Instant>,
    /// The stored data is inconsistent, and the store no longer serves requests.
    pub broken: bool,
}

/// Bugs that tests plant, to check that they are detected.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bug {
    /// A writer is answered before its write is synced.
    AnswersTooEarly,
    /// Data of a failed sync is treated as written.
    TrustsFailedSync,
    /// A write with an unknown outcome is reported as failed without a check of the disk.
    DeniesWithoutLooking,
    /// The record of a removal is deleted from disk before the state that it removed.
    RemovesTombstonesFirst,
    /// Revisions deleted while the store is copied stay in the copy.
    ForgetsWhatDied,
    /// A deadline is lost when the store is reopened.
    ForgetsDeadlines,
    /// A compaction is acknowledged but not written.
    ForgetsCompaction,
}

/// The result of a request, sent when the batch is durable.
enum Pending {
    Written(oneshot::Sender<Result<Revision, WriteError>>, Result<Revision, Conflict>),
    Refused(oneshot::Sender<Result<Revision, WriteError>>, StoreFault),
    Compacted(oneshot::Sender<Result<(), StoreFault>>),
}

impl Committer {
    /// Serves requests until the queue is closed.
    pub(super) fn run(mut self) {
        loop {
            let requests = match self.inner.queue.take(self.wake_at(), self.expected_writers) {
                Batch::Requests(requests) => requests,
                Batch::Nothing => Vec::new(),
                Batch::Closed => return,
            };
            self.remove_dead();
            if !self.broken && self.engine.as_ref().is_some_and(Engine::has_failed) {
                self.reopen();
            }
            if self.broken || self.engine.is_none() && !self.reopen() {
                let fault = self.inner.state.read().fault();
                requests.into_iter().for_each(|request| request.fail(fault.clone()));
                continue;
            }
            self.commit(requests);
        }
    }

    /// The time at which the committer must next work without a request.
    fn wake_at(&self) -> Instant {
        let now = Instant::now();
        if self.broken {
            return now + RETENTION_EVERY;
        }
        if self.engine.is_none() {
            return self.reopened.map_or(now, |at| at + REOPEN_EVERY);
        }
        if self.engine.as_ref().is_some_and(Engine::has_failed) {
            return self.reopened.map_or(now, |at| at + REOPEN_EVERY);
        }
        let resting = self.failed.map(|at| at + REST_AFTER_FAILURE).filter(|until| *until > now);
        let state = self.inner.state.read();
        let idle = if self.dead.len() >= DEAD_WHEN_IDLE || state.index.mvcc.has_untrimmed() {
            now
        } else {
            let expiry = state.index.deadlines.next().map(|at| self.clock.instant(at));
            let quiet = self.unrepaired.map(|at| at + QUIET);
            [expiry, quiet].into_iter().flatten().fold(now + RETENTION_EVERY, Instant::min)
        };
        resting.map_or(idle, |until| idle.max(until))
    }

    /// Decides and writes one batch together with the store's own work, publishes the changes, and sends the results.
    fn commit(&mut self, requests: Vec<Request>) {
        let now = self.clock.now();
        let resting = self.failed.is_some_and(|at| at.elapsed() < REST_AFTER_FAILURE);
        let full = self.full(&requests);
        let mut pending = Vec::with_capacity(requests.len());
        // The queue's room is released when the batch is done.
        let mut rooms = Vec::with_capacity(requests.len());
        let mut compact_to = Revision::ZERO;
        let mut replacement = None;
        let records = {
            let state = self.inner.state.read();
            let mut plan = Plan::new(&state.index.mvcc);
            if !resting {
                for (key, revision) in state.index.deadlines.all_due(now.steady, EXPIRE_PER_COMMIT) {
                    // A deadline is dropped when its revision is replaced, so this finds the key.
                    let _ = plan.delete(&key, revision);
                }
            }
            for request in requests {
                match request {
                    Request::Write { key, op: WriteOp::Put { expected, value, ttl }, answer, room } => {
                        rooms.push(room);
                        pending.push(match &full {
                            Some(fault) => Pending::Refused(answer, fault.clone()),
                            None => {
                                let deadline = ttl.map_or(0, |ttl| ttl::deadline(now.wall, ttl));
                                #[cfg(test)]
                                let deadline = if self.planted == Some(Bug::ForgetsDeadlines) { 0 } else { deadline };
                                Pending::Written(answer, plan.put(&key, expected, value, deadline))
                            }
                        });
                    }
                    Request::Write { key, op: WriteOp::Delete { expected }, answer, room } => {
                        rooms.push(room);
                        pending.push(Pending::Written(answer, plan.delete(&key, expected)));
                    }
                    Request::Replace { copy, answer } => replacement = Some((copy, answer)),
                    Request::Compact { to, answer } => {
                        compact_to = compact_to.max(to);
                        pending.push(Pending::Compacted(answer));
                    }
                }
            }
            plan.into_records()
        };

        #[cfg(test)]
        if self.planted == Some(Bug::AnswersTooEarly) {
            pending.drain(..).for_each(|asker| self.answer(asker, &Ok(())));
        }
        let began = Instant::now();
        let result = self.write(&records, compact_to, resting);
        let patience = (began.elapsed() / RETURN_WAIT_DIVISOR).min(RETURN_WAIT_MAX);
        match &result {
            Ok(()) => self.show(&records, compact_to, now),
            Err(_) => self.failed = Some(Instant::now()),
        }
        self.expected_writers = ExpectedWriters { requests: pending.len() + self.inner.queue.len(), patience };
        drop(rooms);
        for asker in pending {
            self.answer(asker, &result);
        }
        if let Some((copy, answer)) = replacement {
            // If the receiver was dropped, the former engine is closed here.
            if let Err(Ok(former)) = answer.send(self.replace(copy)) {
                former.close();
            }
        }
    }

    /// Removes dead revisions at intervals while commits fail, to make room for writes. The removal is a separate
    /// commit, because it would otherwise fail together with a batch that does not fit on the disk.
    fn remove_dead(&mut self) {
        let due = self.tidied.is_none_or(|at| at.elapsed() >= REST_AFTER_FAILURE);
        if self.failed.is_none() || self.engine.is_none() || self.broken || !due {
            return;
        }
        self.tidied = Some(Instant::now());
        match self.write(&[], Revision::ZERO, false) {
            // Revisions that left the window meanwhile are dead now.
            Ok(()) => self.show(&[], Revision::ZERO, self.clock.now()),
            Err(_) => self.failed = Some(Instant::now()),
        }
    }

    /// Completes a copy of the store and switches to it; returns the former engine. On failure the
    /// store continues with the former one.
    fn replace(&mut self, mut copy: Copy) -> Result<Engine, StoreFault> {
        let oldest = self.inner.state.read().index.mvcc.oldest();
        copy.complete(&self.inner, oldest)?;
        let snapshot = copy.engine.snapshot()?;
        let Some(former) = self.engine.take() else { return Err(self.inner.state.read().fault()) };
        match self.disk.promote_side() {
            Ok(()) => {
                self.inner.state.write().snapshot = Ok(Arc::new(snapshot));
                self.engine = Some(copy.engine);
                self.oldest_on_disk = oldest;
                self.unrepaired = None;
                Ok(former)
            }
            Err(error) => {
                tracing::error!(%error, "the store's file cannot be replaced by the copy; opening the store again");
                // Only opening shows which of the two files is in place; both are complete.
                drop(snapshot);
                copy.engine.close();
                self.engine = Some(former);
                let _ = self.exchange_engine();
                self.admit_readers();
                Err(EngineError::from(error).into())
            }
        }
    }

    /// Whether the free space is too small for the batch.
    fn full(&self, requests: &[Request]) -> Option<StoreFault> {
        if !requests.iter().any(|request| matches!(request, Request::Write { op: WriteOp::Put { .. }, .. })) {
            return None;
        }
        let bytes: u64 = requests.iter().map(|request| request.bytes() as u64).sum();
        let free = self.disk.free_bytes()?;
        let needed = self.options.reserve_bytes + bytes * SPACE_PER_BYTE;
        if free >= needed {
            return None;
        }
        // Space freed by deletes and compaction is within the file.
        let held = self.inner.state.read().index.bytes() * FILE_PER_BYTE;
        let within = self.disk.used_bytes().unwrap_or(0).saturating_sub(held);
        (free + within < needed).then(|| {
            StoreFault::NoSpace(format!(
                "{free} bytes are free where the store is and about {within} within its file, and it keeps {} in \
                 reserve for deletes and compaction",
                self.options.reserve_bytes
            ))
        })
    }

    /// Writes a batch, with dead revisions and the crash preparation as they are due. After a
    /// failure the engine is reopened, and the disk's content determines the batch's outcome.
    fn write(&mut self, records: &[Record], compact_to: Revision, resting: bool) -> Result<(), StoreFault> {
        let dead = match records.len() {
            _ if resting => 0,
            0 => DEAD_WHEN_IDLE,
            _ if self.dead.len() < DEAD_PER_COMMIT => 0,
            writes => DEAD_PER_COMMIT + DEAD_PER_WRITE * writes,
        };
        let dead: Vec<Revision> = self.dead.iter().take(dead).copied().collect();
        let oldest = self.inner.state.read().index.mvcc.oldest().max(compact_to);
        #[cfg(test)]
        let oldest = if self.planted == Some(Bug::ForgetsCompaction) { self.oldest_on_disk } else { oldest };
        let oldest = (oldest > self.oldest_on_disk && (!dead.is_empty() || !compact_to.is_zero())).then_some(oldest);
        let quick_repair = records.is_empty() && self.unrepaired.is_some_and(|at| at.elapsed() >= QUIET);
        // Space freed by a commit is writable only after the next one.
        let frees = self.failed.is_some() && !resting;
        if records.is_empty() && dead.is_empty() && oldest.is_none() && !quick_repair && !frees {
            return Ok(());
        }
        let Some(engine) = &self.engine else { return Err(self.inner.state.read().fault()) };
        let change = Change { records, dead: &dead, oldest, quick_repair };
        let committed = engine.commit(&change).and_then(|()| engine.snapshot());
        match committed {
            Ok(snapshot) => {
                self.inner.state.write().snapshot = Ok(Arc::new(snapshot));
                self.failed = None;
            }
            Err(error) => {
                let recovered = self.recover(records, error);
                self.admit_readers();
                recovered?;
            }
        }
        self.unrepaired = (!quick_repair).then(Instant::now);
        self.oldest_on_disk = self.oldest_on_disk.max(oldest.unwrap_or_default());
        #[cfg(test)]
        let noted = self.planted != Some(Bug::ForgetsWhatDied);
        #[cfg(not(test))]
        let noted = true;
        if let Some(died) = self.inner.died.lock().as_mut().filter(|_| noted) {
            died.extend(&dead);
        }
        self.dead.drain(..dead.len());
        Ok(())
    }

    /// Reopens the engine after a failed commit and checks whether it contains the batch. Readers wait meanwhile.
    ///
    /// # Errors
    /// The batch is not in the file, or its outcome is unknown.
    fn recover(&mut self, records: &[Record], error: EngineError) -> Result<(), StoreFault> {
        #[cfg(test)]
        if self.planted == Some(Bug::DeniesWithoutLooking) {
            let _ = self.exchange_engine();
            self.admit_readers();
            return Err(StoreFault::NoSpace("a bug on purpose".to_owned()));
        }
        tracing::error!(%error, "a write to the store failed; opening it again");
        let current = self.inner.state.read().index.mvcc.current();
        match self.exchange_engine() {
            // The outcome of the store's own work is unknown, so it is done again.
            Ok(found) if records.is_empty() && found.is_empty() => Err(error.into()),
            Ok(found) if found.len() == records.len() => {
                let same =
                    found.iter().zip(records).all(|((at, header), record)| *at == record.0 && *header == record.1);
                if same {
                    return Ok(());
                }
                Err(self.give_up(format!("other changes than those written follow revision {current}")))
            }
            Ok(found) if found.is_empty() => Err(error.into()),
            Ok(_) => Err(self.give_up(format!("a part of what was written follows revision {current}"))),
            Err(again) => {
                tracing::error!(error = %again, "the store cannot be opened again; retrying");
                let undecided = format!("{error}; and opening it again: {again}; the write may have happened");
                Err(StoreFault::Unavailable(undecided))
            }
        }
    }

    /// Stops all reads and writes, because the stored data is invalid; an operator must act.
    fn give_up(&mut self, what: String) -> StoreFault {
        self.give_up_locked(&mut self.inner.clone().state.write(), what)
    }

    fn give_up_locked(&mut self, state: &mut State, what: String) -> StoreFault {
        tracing::error!(what, "the store is corrupt");
        state.snapshot = Err(StoreFault::Corrupt(what));
        self.broken = true;
        state.fault()
    }

    /// Tries to reopen a closed engine, at most every [`REOPEN_EVERY`]. Returns whether the engine is open.
    fn reopen(&mut self) -> bool {
        if self.reopened.is_some_and(|at| at.elapsed() < REOPEN_EVERY) {
            return false;
        }
        let open = match self.exchange_engine() {
            Ok(headers) => {
                tracing::info!("the store is open again");
                // Writes with an unknown outcome turn out to be complete.
                let records: Vec<Record> =
                    headers.into_iter().map(|(revision, header)| (revision, header, None)).collect();
                self.show(&records, Revision::ZERO, self.clock.now());
                !self.broken
            }
            Err(error) => {
                tracing::debug!(%error, "the store cannot be opened yet");
                false
            }
        };
        self.admit_readers();
        open
    }

    /// Closes and reopens the engine; returns its records beyond the index. Readers wait from here
    /// until [`Committer::admit_readers`].
    fn exchange_engine(&mut self) -> Result<Vec<(Revision, Header)>, EngineError> {
        self.reopened = Some(Instant::now());
        let inner = self.inner.clone();
        let current = {
            let state = &mut *inner.state.write();
            let fault = "the store is being opened again after a failure";
            state.snapshot = Err(StoreFault::Unavailable(fault.into()));
            state.reopening = true;
            state.index.mvcc.current()
        };
        if let Some(engine) = self.engine.take() {
            self.unsynced = engine.unsynced();
            #[cfg(test)]
            self.unsynced.trusted.store(self.planted == Some(Bug::TrustsFailedSync), Ordering::Relaxed);
            // Running reads finish first.
            engine.close();
        }
        let open = || {
            let engine = Engine::open(&*self.disk, &self.unsynced, self.options.cache_bytes)?;
            let mut headers = Vec::new();
            engine.headers_after(current, |revision, header| {
                headers.push((revision, header));
                Ok(())
            })?;
            let snapshot = Arc::new(engine.snapshot()?);
            Ok((engine, headers, snapshot))
        };
        let opened = open().map(|(engine, headers, snapshot)| {
            self.engine = Some(engine);
            (headers, snapshot)
        });
        inner.state.write().snapshot = match &opened {
            Ok((_, snapshot)) => Ok(snapshot.clone()),
            Err(error) => Err(EngineError::clone(error).into()),
        };
        opened.map(|(headers, _)| headers)
    }

    /// Publishes the state of the reopened engine, or its error, to waiting readers.
    fn admit_readers(&self) {
        let waiting = {
            let mut state = self.inner.state.write();
            state.reopening = false;
            std::mem::take(&mut *self.inner.waiting.lock())
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Publishes durable changes: index, recent values, watchers. Then drops history that left the
    /// window.
    fn show(&mut self, records: &[Record], compact_to: Revision, now: Now) {
        let previous = self.previous_values(records);
        let mut wake = Vec::new();
        let inner = self.inner.clone();
        {
            let state = &mut *inner.state.write();
            state.index.steady_ahead = now.steady_ahead;
            for ((revision, header, value), previous) in records.iter().zip(previous) {
                if let Err(damaged) = state.index.apply(*revision, header) {
                    // The plan was made from this index, so this is a bug or faulty memory.
                    self.give_up_locked(state, damaged.0);
                    break;
                }
                state.recent.push(value.clone(), previous);
                self.inner.hub.changed(header.key.as_str(), *revision, &mut wake);
            }
            let index = &mut state.index;
            let forget = index.keeper.forget_to(index.mvcc.current(), now.steady).max(compact_to);
            // Neither bound exceeds the current revision.
            let _ = index.mvcc.compact(forget.min(index.mvcc.current()));
            state.timeline.note(index.mvcc.oldest(), index.mvcc.current(), now.steady);
            let limit = match records.len() {
                0 => TRIM_WHEN_IDLE,
                writes => DEAD_PER_COMMIT + DEAD_PER_WRITE * writes,
            };
            self.trim(state, limit);
        }
        wake.into_iter().for_each(Waker::wake);
    }

    /// Drops up to `limit` entries of history and records the dead revisions on disk.
    fn trim(&mut self, state: &mut State, limit: usize) {
        let Index { mvcc, keeper, .. } = &mut state.index;
        for _ in 0..limit {
            if let Some((revision, entry)) = mvcc.trim() {
                keeper.dropped(cost(&entry));
                let removal = entry.current.is_none().then_some(revision);
                #[cfg(test)]
                let removal = if self.planted == Some(Bug::RemovesTombstonesFirst) {
                    self.dead.extend(removal);
                    None
                } else {
                    removal
                };
                // The order matters: if a removal were deleted from disk before the state that it
                // removed, that state would reappear after a crash between two commits.
                self.dead.extend(entry.previous.map(|stored| stored.modified));
                self.dead.extend(removal);
            } else if keeper.over_bytes() && mvcc.oldest() < mvcc.current() {
                let _ = mvcc.compact(mvcc.oldest().next());
            } else {
                break;
            }
        }
    }

    /// The replaced values, for watchers; not loaded if there are no watchers.
    fn previous_values(&self, records: &[Record]) -> Vec<Option<Bytes>> {
        let state = self.inner.state.read();
        let Ok(snapshot) = &state.snapshot else { return vec![None; records.len()] };
        if self.inner.hub.len() == 0 {
            return vec![None; records.len()];
        }
        let first = state.index.mvcc.current().next();
        let load = |(_, header, _): &Record| {
            let previous = Some(header.previous).filter(|previous| !previous.is_zero())?;
            // The value is in this batch, among the recent ones, or on disk.
            let index = previous.get().checked_sub(first.get()).and_then(|index| usize::try_from(index).ok());
            let in_batch = index.and_then(|index| records.get(index)).and_then(|(_, _, value)| value.clone());
            // The watcher retries an unreadable value and reports the error.
            in_batch.or_else(|| state.recent.value(previous).cloned()).or_else(|| snapshot.value(previous).ok())
        };
        records.iter().map(load).collect()
    }

    fn answer(&self, pending: Pending, result: &Result<(), StoreFault>) {
        // A dropped receiver needs no answer.
        match (pending, result) {
            (Pending::Refused(answer, fault), _) => drop(answer.send(Err(WriteError::Fault(fault)))),
            (Pending::Written(answer, _), Err(fault)) => drop(answer.send(Err(WriteError::Fault(fault.clone())))),
            (Pending::Written(answer, Ok(revision)), Ok(())) => drop(answer.send(Ok(revision))),
            (Pending::Written(answer, Err(Conflict)), Ok(())) => drop(answer.send(Err(WriteError::Conflict))),
            (Pending::Compacted(answer), result) => drop(answer.send(result.clone())),
        }
    }
}

fn cost(entry: &Entry<Length>) -> u64 {
    RetentionTracker::cost(entry.key.as_str().len(), entry.previous.map_or(0, |stored| stored.value as usize))
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.inner.queue.close();
        // Requests remain only after a panic.
        while let Batch::Requests(requests) = self.inner.queue.take(Instant::now(), ExpectedWriters::default()) {
            requests.into_iter().for_each(|request| request.fail(StoreFault::Closed));
        }
        self.inner.room.close();
        self.inner.state.write().snapshot = Err(StoreFault::Closed);
        self.inner.hub.close();
        if let Some(engine) = self.engine.take() {
            engine.close();
        }
    }
}

#[cfg(test)]
mod tests;
