//! Plays seeds. A failure names the broken guarantee and the command that replays the seed.

use std::process::Command;

/// The number of seeds if none is given. `LISTWATCH_SIM_SEED` gives one seed, or the first of `LISTWATCH_SIM_SEEDS`
/// seeds.
const SEEDS: &str = "60";

fn sim(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_listwatch-sim")).args(arguments).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn every_client_agrees_with_the_store_log_under_faults() {
    let variable = |name: &str| std::env::var(name).ok();
    let (from, seeds) = match variable("LISTWATCH_SIM_SEED") {
        Some(seed) => (seed, variable("LISTWATCH_SIM_SEEDS").unwrap_or_else(|| "1".to_owned())),
        None => ("1".to_owned(), SEEDS.to_owned()),
    };
    let (is_sound, output) = sim(&["--from", &from, "--seeds", &seeds]);
    assert!(is_sound, "{output}");
}

#[test]
fn replayed_seed_has_the_same_trace_byte_for_byte() {
    for seed in 1..13 {
        let replay = || sim(&["--replay", &seed.to_string()]).1;
        let (first, second) = (replay(), replay());
        let differs = first.lines().zip(second.lines()).find(|(one, other)| one != other);
        assert_eq!(first, second, "seed {seed} differs first at {differs:?}");
    }
}

#[test]
fn error_names_the_unknown_argument() {
    let output = Command::new(env!("CARGO_BIN_EXE_listwatch-sim")).args(["--replay", "1", "--fires", "3"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "sim: there is no argument --fires\n");
}
