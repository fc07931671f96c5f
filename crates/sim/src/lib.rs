//! A deterministic simulation of the whole system, in one thread, under one seed and a virtual clock. The simulation
//! runs writers, API servers, links, watchers, reflectors, informers, controllers and a faulty store.
//!
//! ```text
//!  writers, readers ──┐ HTTP/1.1 and HTTP/2      ┌─ server 0 ─┐
//!  watchers           ├─ over faulty links ──────┼─ server 1 ─┼─▶ FaultyStore ─▶ MemoryStorage
//!  reflectors         │  delay, split, cut,      └─ server 2 ─┘    delays, refuses, forgets answers,
//!  informer, handlers │  fall silent                 die, stop     lags, loses its leader, compacts
//!  controller ────────┘
//!
//!  everything ──▶ Trace ──▶ listwatch-history: each guarantee, against the changes that the store applied
//! ```
//!
//! [`run`] plays the plan of a seed. In a new process, the same plan has the same trace on every machine: hash maps,
//! random numbers and timers repeat. A second run in one process may differ, because tokio counts its runtimes and
//! draws its own random numbers from the count. So the program `listwatch-sim` (`cargo xtask sim`) plays each seed in a
//! process of its own. A plan that breaks a guarantee is made smaller with [`minimize`].
//!
//! # Example
//! ```
//! use listwatch_sim::{Plan, run};
//!
//! let report = run(&Plan { writes: 5, ..Plan::draw(7) });
//! assert!(report.violations.is_empty(), "{}", report.trace);
//! ```
#![deny(unsafe_code)]

mod bugs;
mod cluster;
mod entropy;
mod link;
mod mirror;
mod objects;
mod plan;
mod reader;
mod recording;
mod store;
mod trace;
mod watcher;
mod world;
mod writer;

use std::fmt;

use listwatch_history::{Expiry, History, Limits};

pub use bugs::{BUGS, Bug};
pub use plan::{FaultKind, Plan};
pub use recording::{RecordOptions, changes_of_etcd_watch, record};
pub use trace::{Entry, Trace};

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// The plan.
    pub plan: Plan,
    /// The broken guarantees, each with its name first. Empty if the run is legal.
    pub violations: Vec<String>,
    /// All recorded entries of the run.
    pub trace: Trace,
}

impl Report {
    /// The name of the first broken guarantee.
    pub fn guarantee(&self) -> Option<&str> {
        self.violations.first().and_then(|violation| violation.split(':').next())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let violation = self.violations.first().map_or("no guarantee is broken", String::as_str);
        write!(f, "{violation}\n  {}\n  replay with cargo xtask sim {}", self.plan, self.plan.arguments().join(" "))
    }
}

/// Plays a plan on a thread of its own.
///
/// # Panics
/// When the system cannot start a thread, or a part of the simulation panics.
pub fn run(plan: &Plan) -> Report {
    run_with_bug(plan, None)
}

/// Plays a plan with a planted bug, by its name in [`mod@listwatch_meta::canary`]. Bugs exist only in builds with
/// `--cfg listwatch_canary`.
///
/// # Panics
/// As [`run`].
pub fn run_with_bug(plan: &Plan, bug: Option<&'static str>) -> Report {
    let played = plan.clone();
    let thread = std::thread::Builder::new().name(format!("seed {}", plan.seed)).spawn(move || {
        entropy::seed_thread(played.seed);
        listwatch_meta::canary::plant(bug);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(world::play(&played))
    });
    match thread.expect("the system can start a thread").join() {
        Ok(trace) => judge(plan, trace),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Checks a trace.
fn judge(plan: &Plan, trace: Trace) -> Report {
    let limits = Limits { expiry: justified_expiry(plan) };
    let mut violations: Vec<String> = trace
        .entries
        .iter()
        .filter_map(|(_, entry)| match entry {
            Entry::Broken(evidence) => Some(evidence.clone()),
            _ => None,
        })
        .collect();
    let history = History::new(trace.records());
    violations.extend(history.check(&limits).iter().map(ToString::to_string));
    Report { plan: plan.clone(), violations, trace }
}

/// The conditions under which a server may answer `410 Expired`.
fn justified_expiry(plan: &Plan) -> Expiry {
    let slow_store = [
        FaultKind::StoreDelay,
        FaultKind::StoreRefusal,
        FaultKind::LeaderLoss,
        FaultKind::StoreWatchLost,
        FaultKind::LaggingMember,
    ];
    if slow_store.into_iter().any(|kind| plan.has(kind)) {
        // A starting cache that cannot read the old changes in time starts with the latest state.
        Expiry::Any
    } else if plan.small_window {
        Expiry::Window(cluster::SMALL_WINDOW_EVENTS as u64)
    } else {
        Expiry::Compaction
    }
}

/// Makes a failing plan smaller while `broken` names the same guarantee. Returns the smallest failing plan that was
/// found within `runs` runs.
///
/// `broken` plays a plan and returns the name of the first broken guarantee, if any.
pub fn minimize(failing: &Plan, guarantee: &str, runs: usize, mut broken: impl FnMut(&Plan) -> Option<String>) -> Plan {
    let mut smallest = failing.clone();
    let mut left = runs;
    'smaller: loop {
        for plan in smallest.simpler() {
            if left == 0 {
                return smallest;
            }
            left -= 1;
            if broken(&plan).as_deref() == Some(guarantee) {
                smallest = plan;
                continue 'smaller;
            }
        }
        return smallest;
    }
}

#[cfg(test)]
mod tests {
    use super::{FaultKind, Plan, minimize};

    /// Fails every plan with leader losses and at least 3 writes per writer.
    fn broken(plan: &Plan) -> Option<String> {
        (plan.has(FaultKind::LeaderLoss) && plan.writes >= 3).then(|| "Complete".to_owned())
    }

    #[test]
    fn minimized_plan_keeps_only_the_causes_of_the_broken_guarantee() {
        let failing = Plan { faults: FaultKind::ALL.into(), writes: 50, ..Plan::draw(1) };
        let smallest = minimize(&failing, "Complete", 300, broken);
        assert_eq!(smallest.faults, [FaultKind::LeaderLoss].into());
        assert_eq!((smallest.writes, smallest.servers, smallest.writers), (3, 1, 1));
        assert_eq!((smallest.readers, smallest.watchers, smallest.reflectors), (0, 0, 0));
        assert!(!smallest.informer && !smallest.controller && !smallest.small_window);
    }

    #[test]
    fn minimizing_rejects_plans_that_break_another_guarantee() {
        let failing = Plan { faults: FaultKind::ALL.into(), ..Plan::draw(1) };
        let other = |_: &Plan| Some("Unique".to_owned());
        assert_eq!(minimize(&failing, "Complete", 300, other), failing);
    }

    #[test]
    fn minimizing_ends_after_the_allowed_runs() {
        let failing = Plan { faults: FaultKind::ALL.into(), writes: 50, ..Plan::draw(1) };
        let mut runs = 0;
        minimize(&failing, "Complete", 5, |plan| {
            runs += 1;
            broken(plan)
        });
        assert_eq!(runs, 5);
    }
}

/// The example of the README, as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
