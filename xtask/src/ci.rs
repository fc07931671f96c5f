//! `ci`: everything that CI checks, including `test`.
//!
//! The order of the steps minimizes builds. clippy and rustdoc share the metadata of one build. Tests and the
//! end-to-end run share the development build. Packaging builds every crate a second time, from its package.

use std::fs::DirEntry;
use std::path::PathBuf;

use crate::args::Args;
use crate::check;
use crate::counts;
use crate::deny;
use crate::e2e::{self, ClusterOptions};
use crate::failure::Outcome;
use crate::process::Run;
use crate::sim;
use crate::steps::Steps;
use crate::test::{self, Parts};
use crate::tools;

pub(crate) const HELP: &str = "\
Runs `cargo xtask test`, and besides: the simulator (planted bugs, seeds of the commit), format, house rules, clippy,
dependencies (`cargo xtask help deny`), benches and examples, the random tests from a second seed, docs, `cargo package`
of every published crate, and the instructions of the hot paths against their baseline (`cargo xtask bench counts
--help`). A table at the end says how long each step took.

The second seed comes from the commit and is printed. A rerun of a commit explores the same cases, the next
commit others.

Usage: cargo xtask ci [--skip PART[,PART]] [--lean]
  --skip    source, deny, tests, e2e, sim, cluster, targets, random, docs, package or counts
  --lean    remove the programs of tests, examples and benches after their last run, for a machine with little disk space

The part `cluster` (`cargo xtask e2e --cluster`) needs Kubernetes' binaries in the directory that the environment
variable LISTWATCH_KUBERNETES_BIN names. Without them the table says `skip … not run: no binaries`.

Examples:
  cargo xtask ci
  cargo xtask ci --skip package,counts";

/// The parts that `--skip` accepts.
const PARTS: [&str; 11] =
    ["source", "deny", "tests", "e2e", "sim", "cluster", "targets", "random", "docs", "package", "counts"];

pub(crate) fn run(mut args: Args) -> Outcome<()> {
    let parts = Parts::read(&mut args, &PARTS)?;
    let lean = args.flag("--lean");
    args.finish("ci")?;

    let mut steps = Steps::default();
    parts.skipped(&mut steps);
    if parts.wanted("source") {
        check::source(&mut steps);
    }
    if parts.wanted("deny") {
        deny::steps(&mut steps);
    }
    test::steps(&mut steps, &parts, None)?;
    if parts.wanted("sim") {
        steps.run("sim", "planted bugs, and seeds of the commit", sim::check);
    }
    if parts.wanted("cluster") {
        match ClusterOptions::of_environment() {
            Ok(cluster) => {
                let options = e2e::Options { release: true, cluster: Some(cluster), ..e2e::Options::default() };
                steps.extend(e2e::steps(options)?);
            }
            Err(why) => steps.skip("cluster", "all of it", why.to_string()),
        }
    }
    if parts.wanted("targets") {
        check::other_targets(&mut steps);
    }
    if parts.wanted("random") {
        check::random_tests_of_commit(&mut steps);
    }
    if lean {
        steps.run("lean", "programs of tests", remove_programs);
    }
    if parts.wanted("docs") {
        check::docs(&mut steps);
    }
    if parts.wanted("package") {
        steps.run("package", "every published crate", package);
    }
    if parts.wanted("counts") {
        steps.run("counts", "instructions of hot paths", || counts::compare(None, false));
    }
    steps.finish("ci")
}

/// Removes this workspace's crates that an earlier `cargo package` unpacked. cargo keeps unpacked crates in its home,
/// in a folder per registry, and would use them for a new package of the same version. The folder of the temporary
/// registry begins with a hyphen, because that registry has no host.
fn forget_unpacked_crates() -> Outcome<()> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let Some(home) = home.or_else(|| Some(std::env::home_dir()?.join(".cargo"))) else { return Ok(()) };
    let Ok(registries) = std::fs::read_dir(home.join("registry/src")) else { return Ok(()) };
    for registry in registries.filter_map(Result::ok).filter(|entry| starts_with(entry, "-")) {
        let crates = std::fs::read_dir(registry.path())?.filter_map(Result::ok);
        for unpacked in crates.filter(|entry| starts_with(entry, "listwatch-")) {
            std::fs::remove_dir_all(unpacked.path())?;
        }
    }
    Ok(())
}

fn starts_with(entry: &DirEntry, prefix: &str) -> bool {
    entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix))
}

/// Removes the programs of tests, examples and benches, which are most of a development build. Libraries stay: docs and
/// packages reuse them.
fn remove_programs() -> Outcome<String> {
    let debug = tools::target().join("debug");
    let (mut count, mut bytes) = (0_u32, 0_u64);
    for directory in [debug.join("deps"), debug.join("examples")] {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.filter_map(Result::ok).filter(is_program) {
            bytes += entry.metadata()?.len();
            count += 1;
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(format!("removed {count} programs of {} MiB", bytes >> 20))
}

/// Whether cargo linked this file as a program. Its libraries, metadata and lists of sources have an extension.
fn is_program(entry: &DirEntry) -> bool {
    let extension = std::env::consts::EXE_EXTENSION;
    entry.path().extension().unwrap_or_default() == extension && entry.file_type().is_ok_and(|kind| kind.is_file())
}

/// Packs every published crate and builds each package against the other packages instead of the tree, as a user of the
/// registry would. Uncommitted changes are included, so that the step can run before a commit.
fn package() -> Outcome<String> {
    let unpublished = [
        "xtask",
        "listwatch-benches",
        "listwatch-counts",
        "listwatch-load",
        "listwatch-reflector-bench",
        "listwatch-sim",
        "listwatch-test-ports",
    ];
    let exclude = unpublished.into_iter().flat_map(|name| ["--exclude", name]);
    forget_unpacked_crates()?;
    check::show(Run::cargo().args(["package", "--workspace", "--allow-dirty", "--quiet"]).args(exclude), "")?;
    let packed = std::fs::read_dir(tools::target().join("package"))?
        .filter_map(Result::ok)
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "crate"))
        .count();
    Ok(format!("{packed} crates pack and build from their packages"))
}
