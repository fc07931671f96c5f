//! The load. The data is a function of the revision. Writers wait for their acknowledgment, and one
//! thread commits all waiting writes as one batch.

use std::collections::VecDeque;
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::engine::{Engine, Result, Write};

/// The maximum number of writes per commit.
pub(crate) const BATCH_MAX: usize = 512;

/// The size of a value in bytes.
const VALUE_BYTES: usize = 1_024;

/// A hash that distributes its input over all bits (the finalizer of SplitMix64).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The object that a revision writes: first each object once, then a pseudo-random one.
fn object_of(revision: u64, objects: u64) -> u64 {
    if revision <= objects { revision - 1 } else { mix(revision) % objects }
}

fn path_of(object: u64) -> String {
    format!("/registry/pods/namespace-{:04}/worker-{object:07}-{:05x}", object % 50, mix(object) & 0xf_ffff)
}

/// The write of a revision in a store with this number of objects. Deterministic.
pub(crate) fn write_of(revision: u64, objects: u64) -> Write {
    let path = path_of(object_of(revision, objects));
    let mut value = format!(
        "{{\"kind\":\"Pod\",\"metadata\":{{\"name\":\"{path}\",\"resourceVersion\":\"{revision}\"}},\"status\":["
    );
    let mut salt = revision << 8;
    while value.len() + 64 < VALUE_BYTES {
        salt += 1;
        value += &format!("{{\"type\":\"Ready\",\"token\":\"{:016x}\"}},", mix(salt));
    }
    value += "null]}";
    let padding = VALUE_BYTES.saturating_sub(value.len());
    value.extend(std::iter::repeat_n(' ', padding));
    Write { revision, path, value: value.into_bytes() }
}

/// The acknowledged state: the live revision of each object, and the superseded revisions.
pub(crate) struct State {
    objects: u64,
    last: u64,
    live: Vec<u64>,
    dead: Vec<u64>,
}

impl State {
    pub(crate) fn new(objects: u64) -> Self {
        Self { objects, last: 0, live: vec![0; objects as usize], dead: Vec::new() }
    }

    pub(crate) fn acknowledge(&mut self, revision: u64) {
        let former = std::mem::replace(&mut self.live[object_of(revision, self.objects) as usize], revision);
        self.dead.extend((former != 0).then_some(former));
        self.last = revision;
    }

    /// The written objects with their newest revisions.
    pub(crate) fn live(&self) -> impl Iterator<Item = (String, u64)> {
        let written = self.live.iter().enumerate().filter(|(_, revision)| **revision != 0);
        written.map(|(object, revision)| (path_of(object as u64), *revision))
    }

    /// The superseded revisions in order.
    pub(crate) fn dead(&self) -> Vec<u64> {
        let mut dead = self.dead.clone();
        dead.sort_unstable();
        dead
    }
}

/// Writes up to revision `until` in large batches.
pub(crate) fn fill(engine: &dyn Engine, state: &mut State, until: u64) -> Result<()> {
    while state.last < until {
        let revisions = state.last + 1..=until.min(state.last + BATCH_MAX as u64);
        let batch: Vec<_> = revisions.map(|revision| write_of(revision, state.objects)).collect();
        engine.commit(&batch)?;
        batch.iter().for_each(|write| state.acknowledge(write.revision));
    }
    Ok(())
}

/// The result of a run.
pub(crate) struct Report {
    pub(crate) elapsed: Duration,
    pub(crate) writes: u64,
    pub(crate) commits: Vec<Duration>,
}

/// Runs the load for `duration`, and calls `acknowledged` for each revision.
pub(crate) fn run(
    engine: &dyn Engine,
    state: &mut State,
    writers: usize,
    duration: Duration,
    acknowledged: &mut dyn FnMut(u64),
) -> Result<Report> {
    let (objects, mut next) = (state.objects, state.last + 1);
    let state = Mutex::new(state);
    let (submit, submitted) = mpsc::channel::<Write>();
    let (answer, answers) = mpsc::channel::<Vec<u64>>();
    std::thread::scope(|scope| {
        let state = &state;
        let committer = scope.spawn(move || -> Result<Vec<Duration>> {
            let mut commits = Vec::new();
            while let Ok(first) = submitted.recv() {
                let batch: Vec<_> = std::iter::once(first).chain(submitted.try_iter().take(BATCH_MAX - 1)).collect();
                let start = Instant::now();
                engine.commit(&batch)?;
                commits.push(start.elapsed());
                let mut state = state.lock().map_err(|_| "a thread panicked")?;
                let revisions: VecDeque<_> = batch.iter().map(|write| write.revision).collect();
                revisions.iter().for_each(|revision| state.acknowledge(*revision));
                if answer.send(revisions.into()).is_err() {
                    break;
                }
            }
            Ok(commits)
        });
        let (start, mut writes) = (Instant::now(), 0);
        let mut write = || {
            next += 1;
            submit.send(write_of(next - 1, objects)).is_ok()
        };
        let mut running = (0..writers).all(|_| write());
        while running && start.elapsed() < duration {
            let Ok(revisions) = answers.recv() else { break };
            for revision in revisions {
                writes += 1;
                acknowledged(revision);
                running &= write();
            }
        }
        let elapsed = start.elapsed();
        drop(submit);
        drop(answers);
        let commits = committer.join().map_err(|_| "the committer panicked")??;
        Ok(Report { elapsed, writes, commits })
    })
}
