//! [`Plan`]: the size and the faults of a run, drawn from its seed.
//!
//! Swarm testing: each kind of fault is active in about half of the runs, because faults hide one another.

use std::collections::BTreeSet;
use std::fmt;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// Calls of the store take up to 30 ms before and after they have an effect.
    StoreDelay,
    /// Calls of the store fail before they have an effect.
    StoreRefusal,
    /// Writes are committed, at once or later, and answered with an error.
    AmbiguousWrite,
    /// The store loses its leader: all watches end, and calls fail for up to three seconds.
    LeaderLoss,
    /// Watches of the store end after some events.
    StoreWatchLost,
    /// A watch of the store is up to 300 ms behind its leader, and so are its progress notifications.
    LaggingMember,
    /// The store compacts its history up to some changes before the latest.
    Compaction,
    /// Bytes of a connection take up to 50 ms.
    LinkDelay,
    /// Bytes of a connection arrive in small parts.
    PartialDelivery,
    /// A connection ends after some bytes.
    ConnectionCut,
    /// A connection falls silent after some bytes, in both directions.
    HalfOpen,
    /// Clients pause for up to two seconds before they read.
    SlowReader,
    /// A server dies: its connections break, its tasks end, and it starts again later.
    ServerCrash,
    /// A server shuts down gracefully and starts again later.
    ServerShutdown,
}

impl FaultKind {
    /// All kinds of faults.
    pub const ALL: [FaultKind; 14] = [
        FaultKind::StoreDelay,
        FaultKind::StoreRefusal,
        FaultKind::AmbiguousWrite,
        FaultKind::LeaderLoss,
        FaultKind::StoreWatchLost,
        FaultKind::LaggingMember,
        FaultKind::Compaction,
        FaultKind::LinkDelay,
        FaultKind::PartialDelivery,
        FaultKind::ConnectionCut,
        FaultKind::HalfOpen,
        FaultKind::SlowReader,
        FaultKind::ServerCrash,
        FaultKind::ServerShutdown,
    ];

    /// The name on the command line, e.g. `leader-loss`.
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_ascii_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }

    /// Returns the kind with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        FaultKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// The size and the faults of a run. The same plan always has the same trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed of all random decisions.
    pub seed: u64,
    /// The active kinds of faults.
    pub faults: BTreeSet<FaultKind>,
    /// The number of servers on the store.
    pub servers: usize,
    /// The number of clients that write. Each client waits for the outcome of a write before the next one.
    pub writers: usize,
    /// The number of writes of each writer.
    pub writes: usize,
    /// The number of clients that get and list.
    pub readers: usize,
    /// The number of clients that list and watch with requests of their own, without a reflector.
    pub watchers: usize,
    /// The number of reflectors.
    pub reflectors: usize,
    /// Whether an informer with three handlers runs.
    pub informer: bool,
    /// Whether a controller with a work queue runs.
    pub controller: bool,
    /// Whether the watch cache keeps few events.
    pub small_window: bool,
}

impl Plan {
    /// Draws the plan of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let faults = FaultKind::ALL.into_iter().filter(|_| rng.random_bool(0.4)).collect();
        Plan {
            seed,
            faults,
            servers: rng.random_range(1..=3),
            writers: rng.random_range(1..=4),
            writes: rng.random_range(10..=60),
            readers: rng.random_range(0..=2),
            watchers: rng.random_range(1..=4),
            reflectors: rng.random_range(0..=2),
            informer: rng.random_bool(0.5),
            controller: rng.random_bool(0.4),
            small_window: rng.random_bool(0.4),
        }
    }

    /// Whether a kind of fault is active.
    pub fn has(&self, kind: FaultKind) -> bool {
        self.faults.contains(&kind)
    }

    /// The arguments of `cargo xtask sim` that play this plan again.
    pub fn arguments(&self) -> Vec<String> {
        let drawn = Plan::draw(self.seed);
        let mut arguments = vec!["--replay".to_owned(), self.seed.to_string()];
        for ((name, is), (_, was)) in self.sizes().into_iter().zip(drawn.sizes()) {
            if is != was {
                arguments.extend([format!("--{name}"), is.to_string()]);
            }
        }
        if self.faults != drawn.faults {
            let names: Vec<String> = self.faults.iter().map(|kind| kind.name()).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(",") };
            arguments.extend(["--faults".to_owned(), names]);
        }
        arguments
    }

    fn sizes(&self) -> [(&'static str, usize); 9] {
        [
            ("servers", self.servers),
            ("writers", self.writers),
            ("writes", self.writes),
            ("readers", self.readers),
            ("watchers", self.watchers),
            ("reflectors", self.reflectors),
            ("informer", usize::from(self.informer)),
            ("controller", usize::from(self.controller)),
            ("small-window", usize::from(self.small_window)),
        ]
    }

    /// Changes the plan by an argument such as `--writes 5` or `--faults leader-loss,half-open`.
    ///
    /// # Errors
    /// The message for the user, if the argument is unknown or its value is invalid.
    pub fn set(&mut self, argument: &str, value: &str) -> Result<(), String> {
        if argument == "--faults" {
            let kind = |name| FaultKind::from_name(name).ok_or_else(|| format!("there is no fault {name:?}"));
            self.faults = value.split(',').filter(|name| *name != "none").map(kind).collect::<Result<_, _>>()?;
            return Ok(());
        }
        let number: usize = value.parse().map_err(|_| format!("{argument} is not a number: {value:?}"))?;
        match argument {
            "--servers" => self.servers = number.max(1),
            "--writers" => self.writers = number,
            "--writes" => self.writes = number,
            "--readers" => self.readers = number,
            "--watchers" => self.watchers = number,
            "--reflectors" => self.reflectors = number,
            "--informer" => self.informer = number > 0,
            "--controller" => self.controller = number > 0,
            "--small-window" => self.small_window = number > 0,
            _ => return Err(format!("there is no argument {argument}")),
        }
        Ok(())
    }

    /// The plans that are one step simpler, the largest steps first.
    pub(crate) fn simpler(&self) -> Vec<Plan> {
        let mut plans = Vec::new();
        let mut add = |change: &dyn Fn(&mut Plan)| {
            let mut plan = self.clone();
            change(&mut plan);
            if plan != *self {
                plans.push(plan);
            }
        };
        add(&|plan| plan.faults.clear());
        add(&|plan| plan.writes = plan.writes.div_ceil(2));
        add(&|plan| (plan.informer, plan.controller, plan.reflectors) = (false, false, 0));
        add(&|plan| plan.readers = 0);
        add(&|plan| plan.watchers = 0);
        for kind in &self.faults {
            add(&|plan| plan.faults.retain(|fault| fault != kind));
        }
        add(&|plan| plan.informer = false);
        add(&|plan| plan.controller = false);
        add(&|plan| plan.small_window = false);
        add(&|plan| plan.servers = 1);
        add(&|plan| plan.writers = 1);
        add(&|plan| plan.reflectors = plan.reflectors.saturating_sub(1));
        add(&|plan| plan.readers = plan.readers.saturating_sub(1));
        add(&|plan| plan.watchers = plan.watchers.saturating_sub(1));
        add(&|plan| plan.writers = plan.writers.saturating_sub(1).max(1));
        add(&|plan| plan.servers = plan.servers.saturating_sub(1).max(1));
        add(&|plan| plan.writes = plan.writes.saturating_sub(1).max(1));
        plans
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.faults.iter().map(|kind| kind.name()).collect();
        let Plan { seed, servers, writers, writes, readers, watchers, reflectors, .. } = self;
        write!(f, "seed {seed}: {servers} servers, {writers} writers of {writes} writes, {readers} readers, ")?;
        write!(f, "{watchers} watchers, {reflectors} reflectors")?;
        for (is_on, what) in [
            (self.informer, ", an informer"),
            (self.controller, ", a controller"),
            (self.small_window, ", a small window"),
        ] {
            if is_on {
                f.write_str(what)?;
            }
        }
        match &faults[..] {
            [] => f.write_str(", no faults"),
            faults => write!(f, "; faults: {}", faults.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FaultKind, Plan};

    #[test]
    fn plan_set_from_its_own_arguments_is_unchanged() {
        for seed in 0..200 {
            for plan in Plan::draw(seed).simpler() {
                let arguments = plan.arguments();
                let mut played = Plan::draw(arguments[1].parse().unwrap());
                arguments[2..].chunks(2).for_each(|pair| played.set(&pair[0], &pair[1]).unwrap());
                assert_eq!(played, plan, "{arguments:?}");
            }
        }
    }

    #[test]
    fn every_fault_kind_is_parsed_from_its_name() {
        for kind in FaultKind::ALL {
            assert_eq!(FaultKind::from_name(&kind.name()), Some(kind));
        }
        assert_eq!(FaultKind::from_name("leader-loss"), Some(FaultKind::LeaderLoss));
        let unknown = Plan::draw(1).set("--faults", "fire").unwrap_err();
        assert_eq!(unknown, "there is no fault \"fire\"");
    }
}
