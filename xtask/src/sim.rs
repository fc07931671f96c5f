//! `sim`: builds the simulator with its planted bugs, and runs it.
//!
//! The planted bugs are behind `--cfg listwatch_canary`. Cargo applies a wrapper of rustc to the members of the
//! workspace only ([`WRAPPER`]), so that the dependencies are those of every other build.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::args::Args;
use crate::failure::{Failure, Outcome, ensure};
use crate::process::Run;
use crate::random_tests::commit_seed;
use crate::tools;

pub(crate) const HELP: &str = "\
Plays the whole system in one thread per seed, under a virtual clock and with faults, and checks each guarantee
(docs/testing.md). A failing run is made smaller, and printed step by step with the command that replays it.

Usage: cargo xtask sim [--from S] [--seeds N] [--bug NAME]
       cargo xtask sim --replay SEED [--writes N] [--faults F,…] [--bug NAME] [--json]
       cargo xtask sim --bugs        looks for each planted bug, within 200 seeds
       cargo xtask sim --list        lists the planted bugs and the faults
       cargo xtask sim --help        all options of the simulator

With --release, the build takes longer and a seed half the time.

Examples:
  cargo xtask sim --release --seeds 10000
  cargo xtask sim --replay 17 --writes 5 --faults leader-loss,half-open
  cargo xtask sim --replay 4 --bug cacher-loses-a-full-queue";

/// The environment variable that makes this program a wrapper of rustc.
const WRAPPER: &str = "LISTWATCH_CANARY_RUSTC";

pub(crate) fn run(mut args: Args) -> Outcome<()> {
    let is_release = args.flag("--release");
    let program = build(is_release)?;
    let status = Command::new(program).args(args.rest()).status();
    let status = status.map_err(|error| format!("cannot run the simulator: {error}"))?;
    ensure!(status.success(), "the simulator printed the reason above");
    Ok(())
}

/// Number of seeds of the commit that CI plays.
const SEEDS_OF_COMMIT: u64 = 300;

/// Checks that the simulator finds each planted bug, and runs simulations from the seeds of this commit.
pub(crate) fn check() -> Outcome<String> {
    let program = build(false)?;
    let play = |arguments: &[&str]| {
        let output = Run::new(&program).args(arguments).output()?;
        ensure!(output.success(), "sim {}: {}", arguments.join(" "), output.text());
        Ok::<_, Failure>(output.text().lines().last().unwrap_or_default().to_owned())
    };
    let bugs = play(&["--bugs"])?;
    let from = commit_seed()?.1.to_string();
    let seeds = play(&["--from", &from, "--seeds", &SEEDS_OF_COMMIT.to_string()])?;
    Ok(format!("{bugs}; {seeds}"))
}

/// Builds the simulator with its planted bugs. Returns the program.
pub(crate) fn build(is_release: bool) -> Outcome<PathBuf> {
    let own = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    // With the features of the whole workspace, the dependencies are those of the tests.
    let mut run = Run::cargo().args(["build", "--workspace", "--bin", "listwatch-sim"]);
    if is_release {
        run = run.arg("--release");
    }
    let output = run.env("RUSTC_WORKSPACE_WRAPPER", own).env(WRAPPER, "1").dir(&tools::root()).output()?;
    ensure!(output.success(), "the simulator does not build: {}", output.said());
    let profile = if is_release { "release" } else { "debug" };
    // The next build of the tests replaces the program without planted bugs at its place.
    let (built, kept) = (tools::target().join(profile).join("listwatch-sim"), tools::target().join("sim"));
    std::fs::create_dir_all(&kept)?;
    let kept = kept.join("listwatch-sim");
    std::fs::copy(&built, &kept)?;
    Ok(kept)
}

/// Runs rustc with the planted bugs, if cargo calls this program as a wrapper: `xtask rustc ARGUMENTS…`.
pub(crate) fn wrap() -> Option<ExitCode> {
    std::env::var_os(WRAPPER)?;
    let mut arguments = std::env::args_os().skip(1);
    let rustc = arguments.next()?;
    let status = Command::new(rustc).args(arguments).args(["--cfg", "listwatch_canary"]).status();
    Some(match status {
        Ok(status) => ExitCode::from(u8::from(!status.success())),
        Err(error) => {
            eprintln!("xtask: cannot run rustc: {error}");
            ExitCode::FAILURE
        }
    })
}
