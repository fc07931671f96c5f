//! Tests of single steps of the committer, which run on the test's thread.

use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Wake};

use futures_util::FutureExt;
use listwatch_meta::{Key, KeyRange};
use parking_lot::Mutex;

use super::super::faults::{FaultRates, SimDisk};
use super::super::recent::Recent;
use super::super::{EmbeddedStorage, WAITING_KIB_MAX};
use super::*;
use crate::retention::Retention;
use crate::types::{ListQuery, Storage, WatchItem};

/// Longer than every interval of the committer.
const LONG: Duration = Duration::from_secs(60);

const KEEP_ALL: Retention = Retention { age: Duration::from_secs(86_400), revisions: u64::MAX, bytes: u64::MAX };

fn key(n: u64) -> Key {
    Key::new("pods", Some("ns"), &format!("k{n}")).unwrap()
}

fn new_disk() -> SimDisk {
    let disk = SimDisk::default();
    Engine::create(&disk, 1 << 20).unwrap().close();
    disk
}

fn load_with(disk: &SimDisk, retention: Retention, reserve_bytes: u64) -> Committer {
    let options = EmbeddedOptions { retention, cache_bytes: 1 << 20, reserve_bytes };
    EmbeddedStorage::load(Arc::new(disk.clone()), options, SystemTime::now).unwrap()
}

fn load(disk: &SimDisk) -> Committer {
    load_with(disk, KEEP_ALL, 0)
}

fn new_store() -> (SimDisk, Committer) {
    let disk = new_disk();
    let committer = load(&disk);
    (disk, committer)
}

type Answer = oneshot::Receiver<Result<Revision, WriteError>>;

fn request(committer: &Committer, n: u64, op: WriteOp) -> (Request, Answer) {
    let room = committer.inner.room.clone().try_acquire_owned().unwrap();
    let (answer, answered) = oneshot::channel();
    (Request::Write { key: key(n), op, answer, room }, answered)
}

fn put_of(expected: Revision, value: impl Into<Bytes>, ttl: Option<Duration>) -> WriteOp {
    WriteOp::Put { expected, value: value.into(), ttl }
}

/// Commits one write alone.
fn write(committer: &mut Committer, n: u64, op: WriteOp) -> Result<Revision, WriteError> {
    let (request, mut answered) = request(committer, n, op);
    committer.commit(vec![request]);
    answered.try_recv().expect("the write is answered")
}

fn put(committer: &mut Committer, n: u64, expected: Revision, value: impl Into<Bytes>) -> Revision {
    write(committer, n, put_of(expected, value, None)).unwrap()
}

/// Creates a key and replaces its value `count` times.
fn overwrite(committer: &mut Committer, n: u64, count: u64) -> Revision {
    (0..=count).fold(Revision::ZERO, |at, _| put(committer, n, at, "v"))
}

fn compact(committer: &mut Committer, to: Revision) -> Result<(), StoreFault> {
    let (answer, mut answered) = oneshot::channel();
    committer.commit(vec![Request::Compact { to, answer }]);
    answered.try_recv().expect("the compaction is answered")
}

/// A store with this many dead revisions that are still on the disk.
fn store_with_dead(count: u64) -> (SimDisk, Committer) {
    let (disk, mut committer) = new_store();
    let last = overwrite(&mut committer, 1, count);
    compact(&mut committer, last).unwrap();
    assert_eq!(committer.dead.len() as u64, count, "every replaced state is dead");
    (disk, committer)
}

/// Whether a step writes to the disk.
fn writes(committer: &mut Committer, step: impl FnOnce(&mut Committer)) -> bool {
    let snapshot = |committer: &Committer| committer.inner.state.read().snapshot().unwrap();
    let before = snapshot(committer);
    step(committer);
    !Arc::ptr_eq(&before, &snapshot(committer))
}

/// Commits without requests, so that only the store's own work is done.
fn idle(committer: &mut Committer) {
    committer.commit(Vec::new());
}

/// Closes the engine, as after a failure.
fn close_engine(committer: &mut Committer) {
    committer.inner.state.write().snapshot = Err(StoreFault::Unavailable("the test closed it".to_owned()));
    committer.engine.take().unwrap().close();
}

fn long_ago() -> Option<Instant> {
    Some(Instant::now().checked_sub(LONG).expect("the machine runs for a minute"))
}

/// A time in the near future, since when no interval of the committer has passed.
fn just_now() -> Option<Instant> {
    Some(Instant::now() + LONG)
}

fn oldest_on(disk: &SimDisk) -> Revision {
    load(disk).oldest_on_disk
}

// ---- times ----

#[test]
fn deadline_is_never_early_at_any_fraction_of_a_millisecond() {
    const TTL: Duration = Duration::from_micros(1_500);
    let micros = |n: u64| Duration::from_micros(n);
    // The store is opened at these fractions, written to and opened again after these times.
    const FRACTIONS: [u64; 5] = [0, 1, 250, 500, 999];
    let nth = |n: usize| FRACTIONS[n % FRACTIONS.len()];
    for n in 0..FRACTIONS.len().pow(3) {
        let (opened, written, reopened) = (nth(n), nth(n / FRACTIONS.len()), nth(n / FRACTIONS.len().pow(2)));
        let epoch = Duration::from_secs(86_400) + micros(opened);
        let clock_at = |since_epoch: Duration| Clock {
            began: millis_rounded_down(since_epoch),
            ..Clock::new(SystemTime::now, None)
        };
        let read = |clock: &Clock, after: Duration| clock.reading(after, epoch + after);
        let clock = clock_at(epoch);
        let write = read(&clock, micros(written));
        let stored = ttl::deadline(write.wall, TTL);
        let due = stored.saturating_add_signed(write.steady_ahead);
        let removed_after = (0_u64..200).map(|step| micros(step * 50)).find(|after| read(&clock, *after).steady >= due);
        let lived = removed_after.expect("not removed within 10 ms") - micros(written);
        assert!(lived >= TTL, "removed {lived:?} after the write, opened at {opened} µs, written after {written} µs");
        assert!(lived <= TTL + Duration::from_millis(3), "removed only {lived:?} after the write");

        let again = epoch + micros(written + reopened);
        let clock = clock_at(again);
        let removed_after =
            (0_u64..200).map(|step| micros(step * 50)).find(|after| clock.reading(*after, again).steady >= stored);
        let lived = micros(reopened) + removed_after.expect("not removed within 10 ms");
        assert!(lived >= TTL, "removed {lived:?} after the write, by a store that was opened {reopened} µs after it");
        assert!(lived <= TTL + Duration::from_millis(3), "removed only {lived:?} after the write, by a later store");
    }
}

#[test]
fn idle_committer_sleeps_until_its_next_work() {
    let (_disk, mut committer) = new_store();
    let start = Instant::now();
    assert!(committer.wake_at() >= start + RETENTION_EVERY, "without work, only the age of history is checked");

    let ttl = Duration::from_secs(10);
    write(&mut committer, 1, put_of(Revision::ZERO, "v", Some(ttl))).unwrap();
    let written = committer.unrepaired.expect("a write needs a repair after a crash");
    assert_eq!(committer.wake_at(), written + QUIET, "a quiet store is prepared for a crash");
    committer.unrepaired = None;
    let (expires, rounding) = (committer.wake_at(), Duration::from_millis(2));
    assert!(expires >= start + ttl, "a key is not removed before its deadline");
    assert!(expires <= Instant::now() + ttl + rounding, "a key is removed at its deadline");

    committer.broken = true;
    assert!(committer.wake_at() >= start + RETENTION_EVERY, "a corrupt store has nothing to do");
}

#[test]
fn idle_committer_removes_many_dead_revisions_at_once() {
    let at_once = |committer: &Committer| committer.wake_at() <= Instant::now();
    let (_disk, mut committer) = store_with_dead(DEAD_WHEN_IDLE as u64);
    committer.unrepaired = None;
    assert!(at_once(&committer), "enough dead revisions are removed at once");
    committer.dead.pop_back();
    assert!(!at_once(&committer), "fewer dead revisions wait for a write");
    let last = overwrite(&mut committer, 2, 3);
    committer.unrepaired = None;
    committer.inner.state.write().index.mvcc.compact(last).unwrap();
    assert!(at_once(&committer), "compacted history is dropped at once");
}

#[test]
fn maintenance_pauses_after_a_failed_commit() {
    let (_disk, mut committer) = store_with_dead(DEAD_WHEN_IDLE as u64);
    let failed = just_now().unwrap();
    (committer.failed, committer.unrepaired) = (Some(failed), None);
    assert_eq!(committer.wake_at(), failed + REST_AFTER_FAILURE, "the store rests, then continues");
    assert!(!writes(&mut committer, idle), "a resting store starts no work");
    committer.failed = long_ago();
    assert!(committer.wake_at() <= Instant::now(), "after the rest, the work is due");
    assert!(writes(&mut committer, idle));
    assert_eq!(committer.failed, None, "a commit that succeeds ends the failure");
}

#[test]
fn closed_engine_is_reopened_at_intervals() {
    let (_disk, mut committer) = new_store();
    let last = just_now();
    close_engine(&mut committer);
    assert!(committer.wake_at() <= Instant::now(), "the first attempt is due at once");
    committer.reopened = last;
    assert_eq!(Some(committer.wake_at()), last.map(|at| at + REOPEN_EVERY), "the next attempt waits");
    assert!(!committer.reopen() && committer.engine.is_none(), "an early attempt does nothing");
    committer.reopened = long_ago();
    assert!(committer.reopen() && committer.engine.is_some());
    assert_eq!(put(&mut committer, 1, Revision::ZERO, "v"), Revision::new(2));
}

#[test]
fn engine_with_a_failed_read_is_reopened_at_intervals() {
    let (disk, mut committer) = new_store();
    // More than the cache holds, so that a value must be read.
    let written: Vec<_> = (0..10).map(|n| put(&mut committer, n, Revision::ZERO, vec![0; 400_000])).collect();
    drop(committer);
    let mut committer = load(&disk);
    disk.set_fault_rates(FaultRates { read: 1000, ..FaultRates::NONE }, 0);
    let snapshot = committer.inner.state.read().snapshot().unwrap();
    assert!(snapshot.value(written[1]).is_err(), "the read fails");
    drop(snapshot);
    disk.set_fault_rates(FaultRates::NONE, 0);
    assert!(committer.wake_at() <= Instant::now(), "the first attempt is due at once");
    committer.reopened = just_now();
    assert_eq!(Some(committer.wake_at()), committer.reopened.map(|at| at + REOPEN_EVERY), "the next attempt waits");
    committer.reopened = None;
    let (request, mut answered) = request(&committer, 1, put_of(written[1], "w", None));
    committer.inner.queue.push(request).unwrap();
    committer.inner.queue.close();
    committer.run();
    assert_eq!(answered.try_recv().unwrap().unwrap(), written[9].next(), "a write uses the reopened engine");
}

// ---- requests ----

#[test]
fn write_succeeds_if_the_engine_reopens_and_otherwise_fails_with_the_stores_fault() {
    let check = |prepare: fn(&SimDisk, &mut Committer)| {
        let (disk, mut committer) = new_store();
        prepare(&disk, &mut committer);
        let (request, mut answered) = request(&committer, 1, put_of(Revision::ZERO, "v", None));
        committer.inner.queue.push(request).unwrap();
        committer.inner.queue.close();
        committer.run();
        match answered.try_recv().expect("the write is answered") {
            Ok(_) => "written",
            Err(WriteError::Fault(StoreFault::Unavailable(_))) => "unavailable",
            Err(WriteError::Fault(StoreFault::Corrupt(_))) => "corrupt",
            Err(_) => "another error",
        }
    };
    assert_eq!(check(|_, _| ()), "written", "a sound store");
    assert_eq!(check(|_, committer| close_engine(committer)), "written", "an engine that can be opened again");
    let fails = |disk: &SimDisk, committer: &mut Committer| {
        close_engine(committer);
        disk.set_broken(true);
    };
    assert_eq!(check(fails), "unavailable", "an engine that cannot be opened");
    let corrupt = |_: &SimDisk, committer: &mut Committer| drop(committer.give_up("a test".to_owned()));
    assert_eq!(check(corrupt), "corrupt", "a corrupt store");
}

#[test]
fn expired_keys_are_not_removed_shortly_after_a_failed_commit() {
    let (_disk, mut committer) = new_store();
    write(&mut committer, 1, put_of(Revision::ZERO, "v", Some(Duration::from_nanos(1)))).unwrap();
    let lives = |committer: &Committer| committer.inner.state.read().index.mvcc.get(key(1).as_str()).is_some();
    // A deadline is at most a millisecond and its rounding away.
    while committer.wake_at() > Instant::now() {
        std::thread::yield_now();
    }
    committer.failed = just_now();
    idle(&mut committer);
    assert!(lives(&committer), "a resting store removes nothing");
    committer.failed = None;
    idle(&mut committer);
    assert!(!lives(&committer), "a key past its deadline is removed");
}

#[test]
fn committer_waits_at_most_a_quarter_of_the_last_commit_for_expected_writers() {
    let (_disk, mut committer) = new_store();
    let queued: Vec<_> = (0..5).map(|n| request(&committer, n, put_of(Revision::ZERO, "v", None))).collect();
    let (mut requests, mut answers): (Vec<_>, Vec<_>) = queued.into_iter().unzip();
    for request in requests.split_off(2) {
        committer.inner.queue.push(request).unwrap();
    }
    let began = Instant::now();
    committer.commit(requests);
    let elapsed = began.elapsed();
    assert_eq!(committer.expected_writers.requests, 5, "two are answered and three wait");
    assert!(committer.expected_writers.patience * RETURN_WAIT_DIVISOR <= elapsed, "a quarter of the commit at most");
    assert!(answers[..2].iter_mut().all(|answered| answered.try_recv().is_ok()));
    assert_eq!(committer.inner.room.available_permits(), WAITING_KIB_MAX - 3, "a batch gives its room back");
}

// ---- space ----

#[test]
fn put_fails_without_free_space_for_the_reserve_and_four_times_the_value() {
    const RESERVE: u64 = 1000;
    const VALUE: usize = 100;
    const NEEDED: u64 = RESERVE + 4 * VALUE as u64;
    let disk = new_disk();
    let mut committer = load_with(&disk, KEEP_ALL, RESERVE);
    let created = put(&mut committer, 1, Revision::ZERO, "v");
    // The live key and its history occupy about twice their bytes of the file.
    let held = 2 * committer.inner.state.read().index.bytes();
    assert!(held > 100, "the store holds a key and its history");
    let check = |free: u64, used: u64, expected: bool, why: &str| {
        disk.report(free, used);
        let (request, _answered) = request(&committer, 2, put_of(Revision::ZERO, vec![0; VALUE], None));
        let full = committer.full(&[request]);
        assert_eq!(full.is_none(), expected, "{why}: {full:?}");
        assert!(full.is_none_or(|fault| matches!(fault, StoreFault::NoSpace(_))), "{why}");
    };
    check(NEEDED, 0, true, "enough free bytes");
    check(NEEDED - 1, 0, false, "one byte is missing");
    check(NEEDED - 1, held, false, "the file is dense");
    check(NEEDED - 1, held + 1, true, "the file has one free byte");
    check(NEEDED - 10, held + 9, false, "both together are one byte short");
    check(0, held + NEEDED, true, "all room is within the file");
    disk.report(0, 0);
    assert!(write(&mut committer, 1, WriteOp::Delete { expected: created }).is_ok(), "a delete needs no room");
}

#[test]
fn commit_removes_a_bounded_number_of_dead_revisions() {
    // Dead revisions, writes of the batch, dead revisions that remain.
    let check = |dead: u64, batch: u64, resting: bool, expected: u64, why: &str| {
        let (_disk, mut committer) = store_with_dead(dead);
        committer.failed = if resting { just_now() } else { None };
        let batch = (0..batch).map(|n| request(&committer, 10 + n, put_of(Revision::ZERO, "v", None)).0).collect();
        committer.commit(batch);
        assert_eq!(committer.dead.len() as u64, expected, "{why}");
    };
    let few = DEAD_PER_COMMIT as u64;
    let per_write = DEAD_PER_WRITE as u64;
    check(few - 1, 1, false, few - 1, "too few to touch their pages");
    check(few, 1, false, 0, "as many as a commit removes");
    check(30, 1, false, 30 - few - per_write, "one write");
    check(30, 3, false, 30 - few - 3 * per_write, "three writes remove more");
    check(30, 3, true, 30, "a resting store removes none");
    check(30, 0, false, 30 - DEAD_WHEN_IDLE as u64, "an idle commit");
}

#[test]
fn commit_drops_a_bounded_number_of_compacted_history_entries() {
    for (batch, dropped) in [(1, DEAD_PER_COMMIT + DEAD_PER_WRITE), (3, DEAD_PER_COMMIT + 3 * DEAD_PER_WRITE)] {
        let (_disk, mut committer) = new_store();
        let last = overwrite(&mut committer, 1, 40);
        committer.inner.state.write().index.mvcc.compact(last).unwrap();
        let before = committer.inner.state.read().index.mvcc.log_len();
        let requests =
            (0..batch as u64).map(|n| request(&committer, 10 + n, put_of(Revision::ZERO, "v", None)).0).collect();
        committer.commit(requests);
        let after = committer.inner.state.read().index.mvcc.log_len();
        assert_eq!(before + batch - after, dropped, "{batch} writes drop a bounded number of entries");
    }
}

#[test]
fn history_stays_within_its_byte_bound() {
    let disk = new_disk();
    let retention = Retention { bytes: 10_000, ..KEEP_ALL };
    let mut committer = load_with(&disk, retention, 0);
    let mut at = Revision::ZERO;
    for _ in 0..30 {
        at = put(&mut committer, 1, at, vec![0; 1000]);
        let state = committer.inner.state.read();
        assert!(state.index.keeper.bytes() <= retention.bytes, "{} bytes of history", state.index.keeper.bytes());
    }
    let state = committer.inner.state.read();
    assert!(state.index.keeper.bytes() > retention.bytes / 2, "history is kept while it fits");
    assert!(state.index.mvcc.oldest() < at && state.index.mvcc.oldest() > Revision::new(10));
}

#[test]
fn dead_revisions_are_removed_at_intervals_while_commits_fail() {
    let check = |prepare: fn(&mut Committer), removes: bool, why: &str| {
        let (_disk, mut committer) = store_with_dead(3);
        prepare(&mut committer);
        let before = committer.failed;
        committer.remove_dead();
        assert_eq!(committer.dead.is_empty(), removes, "{why}");
        assert_eq!(committer.failed, before.filter(|_| !removes), "{why}: a commit that succeeds ends the failure");
    };
    check(|committer| committer.failed = long_ago(), true, "commits fail");
    check(|_| (), false, "commits succeed, so the next write removes them");
    let recently = |committer: &mut Committer| (committer.failed, committer.tidied) = (long_ago(), just_now());
    check(recently, false, "removed a moment ago");
    let before = |committer: &mut Committer| (committer.failed, committer.tidied) = (long_ago(), long_ago());
    check(before, true, "removed some time ago");
    let corrupt = |committer: &mut Committer| (committer.failed, committer.broken) = (long_ago(), true);
    check(corrupt, false, "a corrupt store is left as it is");
    let closed = |committer: &mut Committer| {
        committer.failed = long_ago();
        close_engine(committer);
    };
    check(closed, false, "the engine is closed");
}

#[test]
fn idle_store_writes_only_when_work_is_due() {
    let (_disk, mut committer) = new_store();
    assert!(!writes(&mut committer, idle), "an idle store without work");
    let last = overwrite(&mut committer, 1, 2);
    committer.unrepaired = just_now();
    assert!(!writes(&mut committer, idle), "a store right after a write");
    committer.inner.state.write().index.mvcc.compact(last).unwrap();
    assert!(!writes(&mut committer, idle), "a window that moved is stored with the next removal");
    committer.dead.clear();

    committer.unrepaired = long_ago();
    assert!(writes(&mut committer, idle), "a quiet store is prepared for a crash");
    assert_eq!(committer.unrepaired, None, "once prepared, nothing is left to do");
    assert!(!writes(&mut committer, idle), "a prepared store");
    put(&mut committer, 2, Revision::ZERO, "v");
    assert!(committer.unrepaired.is_some(), "after a write, the store must be prepared again");
    committer.unrepaired = just_now();

    committer.failed = just_now();
    assert!(!writes(&mut committer, idle), "a store that rests after a failure");
    committer.failed = long_ago();
    assert!(writes(&mut committer, idle), "freed space is usable only after another commit");
}

// ---- history ----

#[test]
fn acknowledged_compaction_is_durable() {
    let (disk, mut committer) = new_store();
    let last = overwrite(&mut committer, 1, 5);
    compact(&mut committer, last).unwrap();
    idle(&mut committer);
    committer.unrepaired = None;
    assert!(!writes(&mut committer, |committer| compact(committer, last).unwrap()), "a repeated one needs no commit");
    assert_eq!(compact(&mut committer, Revision::new(3)), Ok(()), "an older one changes nothing");
    drop(committer);
    assert_eq!(oldest_on(&disk), last);
}

#[test]
fn compaction_frees_a_deleted_state_before_its_tombstone() {
    let (disk, mut committer) = new_store();
    let created = put(&mut committer, 1, Revision::ZERO, "v");
    let removed = write(&mut committer, 1, WriteOp::Delete { expected: created }).unwrap();
    compact(&mut committer, removed).unwrap();
    assert_eq!(committer.dead, [created, removed], "the order prevents that a removed key reappears");
    *committer.inner.died.lock() = Some(Vec::new());
    idle(&mut committer);
    assert_eq!(*committer.inner.died.lock(), Some(vec![created, removed]), "a running copy learns what died");
    drop(committer);
    let mut found = 0;
    load(&disk)
        .engine
        .as_ref()
        .unwrap()
        .headers_after(Revision::ZERO, |_, _| {
            found += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(found, 0, "dead revisions leave the disk");
}

#[test]
fn replaced_values_are_loaded_only_for_watchers() {
    let (_disk, mut committer) = new_store();
    let held = |committer: &Committer, at| committer.inner.state.read().recent.previous(at).cloned();
    let first = put(&mut committer, 1, Revision::ZERO, "1");
    let second = put(&mut committer, 1, first, "2");
    assert_eq!(held(&committer, second), None, "without watchers nobody needs it");
    committer.inner.hub.join(KeyRange::resource("pods"), second, second);
    let third = put(&mut committer, 1, second, "3");
    assert_eq!(held(&committer, third), Some("2".into()), "from the recent values");
    // A store that was opened again has no recent values.
    committer.inner.state.write().recent = Recent::new(third);
    let fourth = put(&mut committer, 1, third, "4");
    assert_eq!(held(&committer, fourth), Some("3".into()), "from the disk");
    let requests = [put_of(fourth, "5", None), put_of(fourth.next(), "6", None)];
    let requests = requests.map(|op| request(&committer, 1, op).0).into();
    committer.commit(requests);
    assert_eq!(held(&committer, fourth.next().next()), Some("5".into()), "from the same batch");
}

// ---- failures ----

/// The records of a batch that creates these keys in a new store.
fn batch(keys: &[u64]) -> Vec<Record> {
    let (_disk, committer) = new_store();
    let state = committer.inner.state.read();
    let mut plan = Plan::new(&state.index.mvcc);
    for n in keys {
        plan.put(&key(*n), Revision::ZERO, "v".into(), 0).unwrap();
    }
    plan.into_records()
}

#[test]
fn failed_commit_reports_the_outcome_found_on_disk() {
    let check = |tried: &[Record], on_disk: &[Record], expected: &str, why: &str| {
        let (_disk, mut committer) = new_store();
        let change = Change { records: on_disk, ..Change::default() };
        committer.engine.as_ref().unwrap().commit(&change).unwrap();
        let outcome = match committer.recover(tried, EngineError::NoSpace("a test".to_owned())) {
            Ok(()) => "written",
            Err(StoreFault::NoSpace(_)) => "not written",
            Err(StoreFault::Corrupt(_)) => "corrupt",
            Err(_) => "another fault",
        };
        assert_eq!(outcome, expected, "{why}");
        assert_eq!(committer.broken, expected == "corrupt", "{why}: a corrupt store stops");
    };
    let (none, one, two) = (batch(&[]), batch(&[1]), batch(&[1, 2]));
    let later: Vec<Record> = one.iter().map(|(at, header, value)| (at.next(), header.clone(), value.clone())).collect();
    check(&two, &two, "written", "the whole batch");
    check(&two, &none, "not written", "nothing of the batch");
    check(&none, &none, "not written", "the store's own work is done again");
    check(&two, &one, "corrupt", "a part of the batch");
    check(&one, &two, "corrupt", "more than the batch");
    check(&two, &batch(&[1, 3]), "corrupt", "another key");
    check(&one, &later, "corrupt", "another revision");
    check(&none, &one, "corrupt", "a change that nobody wrote");
}

#[test]
fn outcome_is_unknown_while_the_disk_cannot_be_read() {
    let (disk, mut committer) = new_store();
    disk.set_broken(true);
    let fault = committer.recover(&batch(&[1]), EngineError::Io("the first error".to_owned())).unwrap_err();
    let StoreFault::Unavailable(text) = fault else { panic!("{fault:?}") };
    assert!(text.starts_with("the first error; and opening it again: "), "{text}");
    assert!(text.contains("the disk fails") && text.ends_with("the write may have happened"), "{text}");
    disk.set_broken(false);
    committer.reopened = None;
    assert!(committer.reopen() && !committer.broken);
}

/// The sync of a commit fails, and the file can be opened again only later. The write is then in the file's pages, but
/// perhaps not on the disk.
#[test]
fn write_found_after_a_failed_sync_survives_a_power_loss() {
    for seed in 0..12 {
        let (disk, mut committer) = new_store();
        let first = put(&mut committer, 1, Revision::ZERO, vec![1; 3000]);
        disk.set_fault_rates(FaultRates { sync: 1000, ..FaultRates::NONE }, seed);
        let outcome = write(&mut committer, 1, put_of(first, vec![2; 3000], None));
        assert!(matches!(outcome, Err(WriteError::Fault(StoreFault::Unavailable(_)))), "{outcome:?}");
        disk.set_fault_rates(FaultRates::NONE, 0);
        committer.reopened = None;
        assert!(committer.reopen());
        let current = committer.inner.state.read().index.mvcc.current();
        disk.power_back(seed);
        drop(committer);
        let committer = load(&disk);
        let state = committer.inner.state.read();
        assert!(state.index.mvcc.current() >= current, "seed {seed}: a readable write was lost");
    }
}

// ---- readers ----

/// A waker that counts its calls.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A read that checks its own result.
type Read<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

#[test]
fn reads_wait_while_the_engine_is_reopened() {
    let (disk, mut committer) = new_store();
    let written = put(&mut committer, 1, Revision::ZERO, "v");
    let (inner, options) = (committer.inner.clone(), committer.options);
    let store = EmbeddedStorage { inner: inner.clone(), disk: Arc::new(disk), options, committer: Mutex::default() };
    let (key, pods) = (key(1), KeyRange::resource("pods"));
    let query = || ListQuery { range: pods.clone(), at: None, limit: 0 };
    let watch = async {
        let mut watch = store.watch(pods.clone(), Revision::ZERO).await.unwrap();
        assert!(matches!(watch.next().await, Some(WatchItem::Event(event)) if event.revision() == written));
    };
    let mut reads: Vec<(&str, Read<'_>)> = vec![
        ("get", Box::pin(async { assert!(store.get(&key).await.unwrap().0.is_some()) })),
        ("get_unless", Box::pin(async { assert!(store.get_unless(&key, written).await.is_ok()) })),
        ("list", Box::pin(async { assert_eq!(store.list(query()).await.unwrap().items.len(), 1) })),
        ("list_keys", Box::pin(async { assert_eq!(store.list_keys(query()).await.unwrap().items.len(), 1) })),
        ("watch", Box::pin(watch)),
        ("current_revision", Box::pin(async { assert_eq!(store.current_revision().await, Ok(written)) })),
        ("stats", Box::pin(async { assert_eq!(store.stats().await.unwrap().revision, written) })),
    ];
    inner.state.write().reopening = true;
    let (one, other) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
    for wakes in [&one, &one, &other] {
        let waker = Waker::from(wakes.clone());
        for (read, future) in &mut reads {
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "{read} waits");
        }
    }
    assert_eq!(inner.waiting.lock().len(), 2, "a task that polls again is woken once");
    committer.admit_readers();
    let woken = [&one, &other].map(|wakes| wakes.0.load(Ordering::Relaxed));
    assert_eq!(woken, [1, 1], "each waiting task is woken");
    for (read, future) in &mut reads {
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready(), "{read} goes on");
    }
}

#[test]
fn running_watch_waits_while_the_engine_is_reopened() {
    let (disk, mut committer) = new_store();
    let (inner, options) = (committer.inner.clone(), committer.options);
    let store = EmbeddedStorage { inner: inner.clone(), disk: Arc::new(disk), options, committer: Mutex::default() };
    let mut watch = store.watch(KeyRange::resource("pods"), Revision::ZERO).now_or_never().unwrap().unwrap();
    put(&mut committer, 1, Revision::ZERO, "v");
    inner.state.write().reopening = true;
    assert_eq!(watch.next().now_or_never(), None, "the history is not read");
    committer.admit_readers();
    assert!(matches!(watch.next().now_or_never(), Some(Some(WatchItem::Event(_)))), "and then nothing is missed");
    assert_eq!(inner.hub.len(), 1);
    drop(watch);
    assert_eq!(inner.hub.len(), 0, "a dropped watch costs writers nothing");
}
