//! `check` verifies the tree without changing files. `fix` applies automatic fixes.

use std::path::PathBuf;

use crate::args::Args;
use crate::failure::Outcome;
use crate::process::Run;
use crate::random_tests::{self, RandomTests, seeded};
use crate::steps::Steps;
use crate::{format, tidy, tools};

pub(crate) const HELP: &str = "\
Runs, in this order: rustfmt --check, the house rules (`cargo xtask help tidy`), clippy over the
whole workspace and all targets with warnings as errors, a check of the server without its feature
`serve`, all tests, and the docs with warnings as errors. The command changes no file; `cargo xtask fix` repairs a part of the
problems. All steps run even if an early step fails. The table at the end shows which failed.

Usage: cargo xtask check [--fast]
  --fast    format, house rules, clippy and feature sets only (what to run while you work)

Examples:
  cargo xtask check --fast
  cargo xtask fix && cargo xtask check";

pub(crate) const HELP_FIX: &str = "\
Applies automatic fixes: `cargo clippy --fix` over the workspace and all targets (also on a tree
with uncommitted changes), then rustfmt. `cargo xtask check` names the remaining problems.

Usage: cargo xtask fix";

pub(crate) fn check(mut args: Args) -> Outcome<()> {
    let fast = args.flag("--fast");
    args.finish("check")?;
    let mut steps = Steps::default();
    source(&mut steps);
    if !fast {
        tests(&mut steps, random_tests::FIXED_SEED);
        docs(&mut steps);
    }
    steps.finish("check")
}

/// Checks the source without running it.
pub(crate) fn source(steps: &mut Steps) {
    steps.run("source", "format", format::check);
    steps.run("source", "house rules", tidy::check);
    steps.run("source", "clippy", || {
        let clippy = Run::cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]);
        show(clippy, "no warning")
    });
    steps.run("source", "other features", || {
        let check = |package: &str, features: &str| {
            let run = Run::cargo().args(["clippy", "-p", package, "--no-default-features", "--features", features]);
            show(run.args(["--", "-D", "warnings"]), "")
        };
        // The server as a service alone: no listener, no TLS.
        check("listwatch-apiserver", "")?;
        // The client without HTTP, and with kubeconfig files but neither TLS nor plugins.
        check("listwatch-client", "")?;
        check("listwatch-client", "kubeconfig")
    });
}

/// The time limit of one test program without cargo-nextest, in seconds. nextest has a limit for each test, in
/// `.config/nextest.toml`.
const PROGRAM_LIMIT_SECONDS: u32 = 900;

/// Number of test threads in addition to one per core. Tests with etcd processes wait most of their time.
const WAITING_THREADS: usize = 2;

/// The programs that tests need: nextest (else `cargo test` is used), and the etcd that tests start.
struct Runner {
    nextest: Option<PathBuf>,
    etcd: PathBuf,
}

impl Runner {
    fn find() -> Outcome<Self> {
        let etcd = tools::find_or_fetch("etcd", "etcd-server")?;
        let nextest = match tools::cargo_nextest() {
            Ok(program) => Some(program),
            Err(failure) => {
                println!("{failure}\nusing cargo test, which runs one test program at a time");
                None
            }
        };
        Ok(Self { nextest, etcd })
    }

    /// The command that runs tests.
    fn tests(&self) -> Run {
        match &self.nextest {
            Some(nextest) => {
                let threads = std::thread::available_parallelism().map_or(1, usize::from) + WAITING_THREADS;
                let run = Run::new(nextest).args(["nextest", "run", "--no-fail-fast"]);
                // What a failed test printed is repeated below the summary, where the end of a long log shows it.
                let run = run.args(["--failure-output", "immediate-final"]);
                self.with_etcd(run.arg("--test-threads").arg(threads.to_string()))
            }
            None => self.with_etcd(cargo_test().arg("--no-fail-fast")),
        }
    }

    fn with_etcd(&self, run: Run) -> Run {
        run.env("LISTWATCH_ETCD", &self.etcd)
    }
}

/// Selects every package, so that each step resolves the same features and builds nothing twice. Selects the targets
/// with tests, without examples and benches.
fn tested(run: Run) -> Run {
    run.args(["--workspace", "--tests"])
}

/// Runs unit, property and integration tests, then the examples in the docs.
pub(crate) fn tests(steps: &mut Steps, seed: u64) {
    let mut found = None;
    steps.run("tests", "an etcd for the store's tests", || {
        let runner = Runner::find()?;
        let note = runner.etcd.display().to_string();
        found = Some(runner);
        Ok(note)
    });
    let Some(runner) = found else { return };
    println!("random tests start from seed {seed}");
    let built = steps.run("tests", "build", || show(tested(Run::cargo().args(["test", "--no-run"])), ""));
    if !built {
        return;
    }
    steps.run("tests", "unit and integration", || show(seeded(tested(runner.tests()), seed), ""));
    steps.run("tests", "examples in the docs", || {
        let examples = cargo_test().args(["--workspace", "--doc", "--no-fail-fast"]);
        show(seeded(runner.with_etcd(examples), seed), "")
    });
}

/// Examples are built. Benches are built and run once each, unmeasured.
pub(crate) fn other_targets(steps: &mut Steps) {
    steps.run("targets", "examples", || show(Run::cargo().args(["build", "--workspace", "--examples"]), ""));
    steps.run("targets", "benches", || {
        let benches = Runner::find()?.tests().args(["--workspace", "--bench", "*"]);
        show(seeded(benches, random_tests::FIXED_SEED), "")
    });
}

/// Runs the random tests with the seed of the commit.
pub(crate) fn random_tests_of_commit(steps: &mut Steps) {
    match random_tests::commit_seed() {
        Err(failure) => steps.skip("random", "commit's seed", failure.to_string()),
        Ok((commit, seed)) => {
            steps.run("random", "commit's seed", || {
                println!("random tests start from seed {seed}, of commit {commit}; `cargo xtask test --seed {seed}` repeats it");
                random(&Runner::find()?, seed).map_err(|failure| failure.while_doing(format!("seed {seed}")))?;
                Ok(format!("seed {seed}, of commit {commit}"))
            });
        }
    }
}

/// Runs the random tests alone.
fn random(runner: &Runner, seed: u64) -> Outcome<()> {
    let random = RandomTests::find()?;
    if runner.nextest.is_some() {
        return show(seeded(tested(runner.tests()).arg("-E").arg(random.expression()), seed), "").map(drop);
    }
    for arguments in random.cargo_test_arguments() {
        show(seeded(runner.tests().arg("--workspace").args(arguments), seed), "")?;
    }
    Ok(())
}

/// `cargo test`, whose programs are ended after [`PROGRAM_LIMIT_SECONDS`]. The test harness names each
/// test that takes more than a minute, so the last such lines name the tests that hang.
fn cargo_test() -> Run {
    let cargo = Run::cargo().arg("test");
    if tools::on_path("timeout").is_none() {
        return cargo;
    }
    let limit = format!("target.'cfg(all())'.runner = 'timeout --verbose --kill-after=10 {PROGRAM_LIMIT_SECONDS}'");
    cargo.arg("--config").arg(limit)
}

/// Builds the docs, including those of private items, whose links must resolve for developers.
pub(crate) fn docs(steps: &mut Steps) {
    steps.run("docs", "cargo doc", || {
        let doc = Run::cargo().args(["doc", "--workspace", "--no-deps", "--document-private-items"]);
        show(doc.env("RUSTDOCFLAGS", "-D warnings"), "no warning")
    });
}

pub(crate) fn fix(args: Args) -> Outcome<()> {
    args.finish("fix")?;
    Run::cargo().args(["clippy", "--workspace", "--all-targets", "--fix", "--allow-dirty", "--allow-staged"]).show()?;
    format::fix()
}

/// Runs a program on the terminal. Returns the note for the table.
pub(crate) fn show(run: Run, note: &str) -> Outcome<String> {
    run.dir(&tools::root()).show()?;
    Ok(note.to_owned())
}
