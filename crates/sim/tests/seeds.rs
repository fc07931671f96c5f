//! Plays seeds; a failure names the promise that broke and the seed that replays it.

use listwatch_sim::{Scale, run};

/// Seeds played when none is named. `LISTWATCH_SIM_SEED` names one, or the first of
/// `LISTWATCH_SIM_SEEDS` many.
const SEEDS: u64 = 24;

#[test]
fn every_watcher_sees_what_happened_under_faults() {
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
