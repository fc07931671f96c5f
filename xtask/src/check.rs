//! `check`, the gate that only reads, and `fix`, its twin that rewrites.

use crate::args::Args;
use crate::failure::Outcome;
use crate::process::Run;
use crate::steps::Steps;
use crate::{tidy, tools};

pub(crate) const HELP: &str = "\
Runs, in this order: cargo fmt --check, the house rules (`cargo xtask help tidy`), clippy over the
whole workspace and all targets with warnings as errors, all tests, and the docs with warnings as
errors. It reads only: what it complains about, `cargo xtask fix` or you mend. All of it is run even
if an early step fails; the table at the end says what did.

Usage: cargo xtask check [--fast]
  --fast    format, house rules and clippy only (what to run while you work)

Examples:
  cargo xtask check --fast
  cargo xtask fix && cargo xtask check";

pub(crate) const HELP_FIX: &str = "\
Rewrites what a program can: `cargo clippy --fix` over the workspace and all targets (also on a tree
with uncommitted changes), then `cargo fmt`. What is left, `cargo xtask check` names.

Usage: cargo xtask fix";

pub(crate) fn check(mut args: Args) -> Outcome<()> {
    let fast = args.flag("--fast");
    args.finish("check")?;
    let mut steps = Steps::default();
    source(&mut steps);
    if !fast {
        tests(&mut steps, SEED);
        docs(&mut steps);
    }
    steps.finish("check")
}

/// What can be said of the source without running it.
pub(crate) fn source(steps: &mut Steps) {
    steps.run("source", "format", || show(Run::cargo().args(["fmt", "--all", "--check"]), "formatted"));
    steps.run("source", "house rules", tidy::check);
    steps.run("source", "clippy", || {
        let clippy = Run::cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]);
        show(clippy, "no warning")
    });
}

/// The seed of every random test when none is named: a gate that says the same twice of the same
/// tree. `cargo xtask test --seed random` looks where nobody has looked.
pub(crate) const SEED: u64 = 1;

/// Unit, property and integration tests with nextest where it is there, else with cargo test;
/// then the examples in the docs. Benches are built and run once each, unmeasured.
///
/// `seed` is what property tests and the tests of random parameters start from.
pub(crate) fn tests(steps: &mut Steps, seed: u64) {
    let mut etcd = None;
    let found = steps.run("tests", "an etcd for the store's tests", || {
        let file = tools::find_or_fetch("etcd", "etcd-server")?;
        let note = file.display().to_string();
        etcd = Some(file);
        Ok(note)
    });
    if !found {
        return;
    }
    println!("random tests start from seed {seed}");
    let cargo = || {
        let cargo = Run::cargo().env("LISTWATCH_ETCD", etcd.clone().unwrap_or_default());
        cargo.env("PROPTEST_RNG_SEED", seed.to_string()).env("LISTWATCH_PARAMETERS_SEED", seed.to_string())
    };
    steps.run("tests", "unit and integration", || {
        let tests = if tools::nextest() {
            cargo().args(["nextest", "run", "--workspace", "--all-targets", "--no-fail-fast"])
        } else {
            println!("cargo-nextest is not there: cargo test does it, one test program after the other");
            cargo().args(["test", "--workspace", "--all-targets", "--no-fail-fast"])
        };
        show(tests, "")
    });
    steps.run("tests", "examples in the docs", || {
        show(cargo().args(["test", "--workspace", "--doc", "--no-fail-fast"]), "")
    });
}

/// The docs, those of private items included: their links are read by whoever works on them.
pub(crate) fn docs(steps: &mut Steps) {
    steps.run("docs", "cargo doc", || {
        let doc = Run::cargo().args(["doc", "--workspace", "--no-deps", "--document-private-items"]);
        show(doc.env("RUSTDOCFLAGS", "-D warnings"), "no warning")
    });
}

pub(crate) fn fix(args: Args) -> Outcome<()> {
    args.finish("fix")?;
    Run::cargo().args(["clippy", "--workspace", "--all-targets", "--fix", "--allow-dirty", "--allow-staged"]).show()?;
    Run::cargo().args(["fmt", "--all"]).show()
}

/// Runs it on the terminal; the note goes into the table.
pub(crate) fn show(run: Run, note: &str) -> Outcome<String> {
    run.dir(&tools::root()).show()?;
    Ok(note.to_owned())
}
