//! The whole path in one process under one seed: writers, servers, watchers and a store that
//! misbehaves, on a virtual clock; and the checkers that hold what every watcher saw against what
//! happened.
//!
//! ```text
//!  traffic ──writes──▶ ApiServer A ─┐                      ┌─▶ FaultyStorage ─▶ MemoryStorage
//!                      ApiServer B ─┴── cachers ───────────┘   lost watches, refusals, compaction
//!  observers ◀─frames── A or B: slow, cut, resumed, moved to the other server
//!
//!  trace of every observer ──▶ checkers ◀── truth: the store's own log
//! ```
//!
//! [`run`] plays one seed and returns the first broken promise, if any. The same seed plays the
//! same faults and the same traffic.
#![forbid(unsafe_code)]

pub mod checkers;
pub mod faults;
pub mod observer;
pub mod traffic;
pub mod truth;

use std::sync::Arc;
use std::time::Duration;

use listwatch_apiserver::ApiServer;
use listwatch_storage::{MemoryStorage, Retention, Storage};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::faults::{Faults, FaultyStorage};
use crate::observer::{Observer, ObserverPlan};
use crate::truth::Truth;

/// How large a run is.
#[derive(Debug, Clone)]
pub struct Scale {
    /// Writes tried.
    pub writes: usize,
    /// Watchers of all sorts.
    pub observers: usize,
}

impl Default for Scale {
    fn default() -> Self {
        Scale { writes: 300, observers: 8 }
    }
}

/// A promise that did not hold, with what replays it.
#[derive(Debug)]
pub struct Broken {
    /// Plays the same run again.
    pub seed: u64,
    /// The promise, and how it broke.
    pub promise: String,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n  replay with LISTWATCH_SIM_SEED={}", self.promise, self.seed)
    }
}

/// Plays one seed on a runtime of its own whose clock is virtual.
///
/// # Errors
/// [`Broken`] with the first promise that did not hold.
///
/// # Panics
/// When the world itself cannot be set up.
pub fn run(seed: u64, scale: &Scale) -> Result<(), Broken> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    runtime.block_on(play(seed, scale)).map_err(|promise| Broken { seed, promise })
}

async fn play(seed: u64, scale: &Scale) -> Result<(), String> {
    let mut rng = StdRng::seed_from_u64(seed);
    // The truth keeps everything: the store below forgets only when a fault tells it to.
    let memory = MemoryStorage::with_retention(Retention { age: Duration::MAX, revisions: u64::MAX, bytes: u64::MAX });
    let mut truth = Truth::record(memory.as_ref()).await;
    let faults = Faults::draw(&mut rng);
    let storage: Arc<dyn Storage> = FaultyStorage::new(Arc::clone(&memory), faults.clone(), rng.random());
    let mut servers = Vec::new();
    for _ in 0..2 {
        servers.push(ApiServer::builder().storage(Arc::clone(&storage)).build().await.expect("a server"));
    }

    let mut observers = Vec::new();
    for _ in 0..scale.observers {
        let plan = ObserverPlan::draw(&mut rng);
        let services = servers.iter().map(ApiServer::service).collect();
        observers.push(Observer::start(plan, services, rng.random()));
    }
    traffic::play(&servers, scale.writes, rng.random(), &faults, memory.as_ref(), &mut truth).await;

    // Healing: faults stop, and everybody has virtual minutes to catch up.
    faults.heal();
    let last = memory.current_revision().await.expect("a store in memory answers");
    let mut traces = Vec::new();
    for observer in observers {
        match tokio::time::timeout(Duration::from_secs(600), observer.finish(last)).await {
            Ok(trace) => traces.push(trace),
            Err(_) => {
                return Err(
                    "converging: an observer did not catch up within ten minutes after all faults stopped".to_owned()
                );
            }
        }
    }
    truth.catch_up(last).await;
    let truth = truth.into_history();
    for trace in &traces {
        checkers::check(trace, &truth)?;
    }
    Ok(())
}
