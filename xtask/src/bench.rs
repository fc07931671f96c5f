//! `bench`: lists the benches with the question of each, and runs one.

use std::path::PathBuf;

use crate::args::Args;
use crate::counts;
use crate::dist;
use crate::failure::{Outcome, fail};
use crate::process::Run;
use crate::tools;

pub(crate) const HELP: &str = "\
Without a name: lists the benches and the question each answers. With one: runs it (profile `dist`, as shipped).
Figures depend on the machine: compare runs of one machine only, and read benches/README.md first.

Usage: cargo xtask bench [NAME [--counts FILE] [-- ARGS OF THE BENCH]]
  --counts  build a criterion benchmark with the counts of `cargo xtask dist`, as far as its crates have
            the features of the shipped binary

Examples:
  cargo xtask bench
  cargo xtask bench fanout
  cargo xtask bench list -- --save-baseline before
  cargo xtask bench writes --counts target/pgo/counts.profdata
  cargo xtask bench engines -- write redb 20000 32 3
  cargo xtask bench counts --only deliver
  cargo xtask bench load fanout --serve target/dist/listwatch
  cargo xtask bench load -- --help";

/// The benches: the name and the question of each.
pub(crate) const BENCHES: &[(&str, &str)] = &[
    ("fanout", "What does one event cost when N watchers of the cache receive it?"),
    ("apply", "How many events a second does a cache take, and what does a delivery cost inside it?"),
    ("bounds", "What do the cache and an idle watcher weigh, and what do stalled watchers cost the others?"),
    ("list", "What does a list of N objects cost, whole, selected and paged?"),
    ("codec", "What do reading an object's metadata, matching a selector and framing an event cost?"),
    ("schema", "What do checking a definition's schema, and pruning, defaulting and validating its objects cost?"),
    ("conversion", "How many events per second does a converted watch deliver, beside an unconverted one?"),
    ("hostile", "What do /livez, leases and watches wait beside requests that cost most to compute?"),
    ("writes", "What do create, update, each kind of patch and server-side apply cost through the service?"),
    ("storage", "How many durable writes a second do N concurrent writers get from the embedded store?"),
    ("engines", "Which embedded engine commits, restarts and fails best? (a package of its own)"),
    ("counts", "How many instructions does each hot path take, and is that more than it was? (CI asks this)"),
    (
        "reflector",
        "What do a list, a relist, events and a million keys cost a client's store, beside kube-rs' runtime?",
    ),
    ("load", "What do watchers, lists and writes cost end to end, on any API server, and on the floor below it?"),
];

pub(crate) fn run(mut args: Args) -> Outcome<()> {
    let Some(name) = args.word() else {
        args.finish("bench")?;
        for (name, question) in BENCHES {
            println!("  {name:<9} {question}");
        }
        println!("\nRun one with `cargo xtask bench <name>`; how to read them: benches/README.md");
        return Ok(());
    };
    if !BENCHES.iter().any(|(known, _)| *known == name) {
        fail!("there is no bench `{name}`; `cargo xtask bench` lists them");
    }
    if name == "counts" {
        return counts::run(args);
    }
    let is_package = ["engines", "load", "reflector"].contains(&name.as_str());
    let counts = if is_package { None } else { args.value("--counts")?.map(PathBuf::from) };
    let rest = args.rest().into_iter().skip_while(|word| word == "--");
    if name == "engines" {
        let dir = tools::root().join("benches/engines");
        return Run::cargo().args(["run", "--release", "--"]).args(rest).dir(&dir).show();
    }
    if let Some(package) = [("load", "listwatch-load"), ("reflector", "listwatch-reflector-bench")]
        .iter()
        .find_map(|(bench, package)| (*bench == name).then_some(package))
    {
        return Run::cargo()
            .args(["run", "--profile", "dist", "--quiet", "--package", package, "--"])
            .args(rest)
            .show();
    }
    let cargo = match counts {
        Some(counts) => dist::bench_with_counts(&counts)?,
        None => Run::cargo().arg("bench").dir(&tools::root()),
    };
    cargo.args(["--package", "listwatch-benches", "--bench", &name, "--"]).args(rest).show()
}

#[cfg(test)]
mod tests {
    use super::BENCHES;

    #[test]
    fn every_bench_is_listed_here_and_in_the_readme() {
        let benches = crate::tools::root().join("benches");
        let manifest = std::fs::read_to_string(benches.join("Cargo.toml")).unwrap();
        let readme = std::fs::read_to_string(benches.join("README.md")).unwrap();
        for (name, _) in BENCHES {
            let declared = manifest.contains(&format!("name = \"{name}\"")) || benches.join(name).is_dir();
            assert!(declared, "xtask lists the bench `{name}`, which benches/ does not have");
            assert!(readme.contains(&format!("`{name}`")), "benches/README.md does not explain `{name}`");
        }
        let declared = manifest.lines().filter(|line| line.trim() == "[[bench]]").count();
        let packages = ["engines", "counts", "reflector", "load"].len();
        assert_eq!(
            declared + packages,
            BENCHES.len(),
            "a bench in benches/Cargo.toml is not listed by `cargo xtask bench`"
        );
    }
}
