//! Simulation of the whole system in one process: writers, servers, watchers and a faulty store
//! under one seed and a virtual clock. Checkers compare the events of every watcher with the
//! store's log.
//!
//! ```text
//!  traffic ──writes──▶ ApiServer A ─┐                      ┌─▶ FaultyStorage ─▶ MemoryStorage
//!                      ApiServer B ─┴── cachers ───────────┘   lost watches, refusals, compaction
//!  observers ◀─frames── A or B: slow, cut, resumed, moved to the other server
//!
//!  trace of every observer ──▶ checkers ◀── truth: the store's own log
//! ```
//!
//! [`run`] runs one seed and returns the first broken guarantee, if any. The same seed produces the
//! same faults and the same traffic.
//!
//! # Example
//! ```
//! use listwatch_sim::{Scale, run};
//!
//! let result = run(7, &Scale { writes: 20, observers: 2 });
//! assert!(result.is_ok(), "{result:?}");
//! ```
#![forbid(unsafe_code)]

pub mod checkers;
pub mod faults;
pub mod observer;
pub mod traffic;
pub mod truth;

use std::sync::Arc;
use std::time::Duration;

use listwatch_apiserver::{ApiServer, BuildError};
use listwatch_storage::{MemoryStorage, Retention, Storage};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::faults::{Faults, FaultyStorage};
use crate::observer::{Observer, ObserverPlan};
use crate::truth::Truth;

/// The size of a run.
#[derive(Debug, Clone)]
pub struct Scale {
    /// Number of write attempts.
    pub writes: usize,
    /// Number of watchers.
    pub observers: usize,
}

impl Default for Scale {
    fn default() -> Self {
        Scale { writes: 300, observers: 8 }
    }
}

/// A broken guarantee, with the seed that reproduces it.
#[derive(Debug)]
pub struct Violation {
    /// The seed that reproduces the run.
    pub seed: u64,
    /// The guarantee and how it broke.
    pub guarantee: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n  replay with LISTWATCH_SIM_SEED={}", self.guarantee, self.seed)
    }
}

/// Runs one seed on its own runtime with a virtual clock.
///
/// # Errors
/// [`Violation`] with the first broken guarantee.
///
/// # Panics
/// When the setup fails.
pub fn run(seed: u64, scale: &Scale) -> Result<(), Violation> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    runtime.block_on(play(seed, scale)).map_err(|guarantee| Violation { seed, guarantee })
}

/// Starts a server, as a supervisor does: a server that cannot read its webhook configurations or admission policies
/// does not start and is started again.
async fn start_server(storage: &Arc<dyn Storage>) -> ApiServer {
    const STARTS_MAX: usize = 100;
    for _ in 0..STARTS_MAX {
        match ApiServer::builder().storage(Arc::clone(storage)).build().await {
            Ok(server) => return server,
            Err(BuildError::Webhooks(_) | BuildError::Policies(_)) => tokio::time::sleep(Duration::from_secs(1)).await,
            Err(error) => panic!("a server does not start: {error}"),
        }
    }
    panic!("a server does not start in {STARTS_MAX} attempts")
}

async fn play(seed: u64, scale: &Scale) -> Result<(), String> {
    let mut rng = StdRng::seed_from_u64(seed);
    // The store retains everything: it compacts only when a fault requests it.
    let memory = MemoryStorage::with_retention(Retention { age: Duration::MAX, revisions: u64::MAX, bytes: u64::MAX });
    let mut truth = Truth::record(memory.as_ref()).await;
    let faults = Faults::draw(&mut rng);
    let storage: Arc<dyn Storage> = FaultyStorage::new(Arc::clone(&memory), faults.clone(), rng.random());
    let mut servers = Vec::new();
    for _ in 0..2 {
        servers.push(start_server(&storage).await);
    }

    let mut observers = Vec::new();
    for _ in 0..scale.observers {
        let plan = ObserverPlan::draw(&mut rng);
        let services = servers.iter().map(ApiServer::service).collect();
        observers.push(Observer::start(plan, services, rng.random()));
    }
    traffic::play(&servers, scale.writes, rng.random(), &faults, memory.as_ref(), &mut truth).await;

    // Faults stop, and the watchers have virtual minutes to catch up.
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

/// The example of the README, as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
