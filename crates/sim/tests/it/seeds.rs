//! Runs simulation seeds; a failure names the broken guarantee and the seed that reproduces it.

use listwatch_sim::{Scale, run};

/// The number of seeds if none is given. `LISTWATCH_SIM_SEED` gives one seed, or the first of
/// `LISTWATCH_SIM_SEEDS` seeds.
const SEEDS: u64 = 24;

#[test]
fn every_watcher_agrees_with_the_store_log_under_faults() {
    let seeds = match std::env::var("LISTWATCH_SIM_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("LISTWATCH_SIM_SEED is a number");
            let count = std::env::var("LISTWATCH_SIM_SEEDS")
                .map_or(1, |count| count.parse().expect("LISTWATCH_SIM_SEEDS is a number"));
            seed..seed.saturating_add(count)
        }
        Err(_) => 1..SEEDS + 1,
    };
    for seed in seeds {
        if let Err(broken) = run(seed, &Scale::default()) {
            panic!("{broken}");
        }
    }
}
