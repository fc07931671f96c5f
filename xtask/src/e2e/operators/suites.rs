//! Compiled envtest suites of operators, with the built server in place of kube-apiserver.
//!
//! envtest starts the programs `etcd` and `kube-apiserver` of the directory that `KUBEBUILDER_ASSETS` names. Here the
//! second one is a script that calls `listwatch kube-apiserver` with the same flags. The same suites then run on a real
//! kube-apiserver, and each test must end alike on both.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::{Outcome, ensure};
use crate::process::Run;
use crate::steps::Steps;
use crate::tools;

use super::super::Options;
use super::{API_SERVER, OperatorOptions};

/// The time limit of one suite.
const SUITE_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Failed tests that a row names.
const FAILED_SHOWN: usize = 20;

/// A compiled test program and the directory of its package.
#[derive(Debug, Clone)]
pub(super) struct Suite {
    package: PathBuf,
    program: PathBuf,
    /// The name of the program, for the table. Leaked once per suite, since rows have static names.
    name: &'static str,
}

impl Suite {
    /// Parses `DIR=FILE`.
    pub(super) fn parse(text: &str) -> Outcome<Self> {
        let (package, program) = text.split_once('=').ok_or_else(|| format!("--suite is DIR=FILE, not {text}"))?;
        let program = std::path::absolute(program)?;
        let name = program.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { package: std::path::absolute(package)?, program, name: name.leak() })
    }
}

/// The outcome of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// The tests of a run by name.
#[derive(Debug, Default, PartialEq, Eq)]
struct Results {
    tests: BTreeMap<String, Verdict>,
    /// `Ran 10 of 12 Specs`: passed, failed and skipped specs of Ginkgo, which does not print each spec's name.
    specs: Option<[usize; 3]>,
}

impl Results {
    fn count(&self, verdict: Verdict) -> usize {
        let tests = self.tests.values().filter(|test| **test == verdict).count();
        match (verdict, self.specs) {
            (_, None) => tests,
            (Verdict::Passed, Some([passed, ..])) => passed,
            (Verdict::Failed, Some([_, failed, _])) => failed,
            (Verdict::Skipped, Some([.., skipped])) => skipped,
        }
    }

    fn summary(&self) -> String {
        let [passed, failed, skipped] = [Verdict::Passed, Verdict::Failed, Verdict::Skipped].map(|v| self.count(v));
        format!("{passed} passed, {failed} failed, {skipped} skipped")
    }

    /// The names of failed tests, one per line, and how many more there are.
    fn failures(&self) -> String {
        let failed = self.tests.iter().filter(|(_, verdict)| **verdict == Verdict::Failed);
        let names: Vec<_> = failed.map(|(name, _)| name.as_str()).collect();
        let mut text: String = names.iter().take(FAILED_SHOWN).map(|name| format!("\n      {name}")).collect();
        if names.len() > FAILED_SHOWN {
            text += &format!("\n      and {} more", names.len() - FAILED_SHOWN);
        }
        text
    }
}

/// Reads the output of Go's `testing` package with `-test.v`, and the summary of Ginkgo, where a suite uses it.
fn results(output: &str) -> Results {
    let mut results = Results::default();
    for line in output.lines() {
        let line = without_colors(line);
        let text = line.trim_start();
        let verdicts =
            [("--- PASS: ", Verdict::Passed), ("--- FAIL: ", Verdict::Failed), ("--- SKIP: ", Verdict::Skipped)];
        for (mark, verdict) in verdicts {
            if let Some(name) = text.strip_prefix(mark) {
                let name = name.rsplit_once(" (").map_or(name, |(name, _)| name);
                results.tests.insert(name.to_owned(), verdict);
            }
        }
        // Ginkgo's summary of failures at the end: `[FAIL] container [It] spec`.
        if let Some(name) = text.strip_prefix("[FAIL] ") {
            results.tests.insert(name.trim().to_owned(), Verdict::Failed);
        }
        // `SUCCESS! -- 10 Passed | 0 Failed | 0 Pending | 2 Skipped`
        if let Some((_, counts)) = text.split_once("! -- ").filter(|(word, _)| matches!(*word, "SUCCESS" | "FAIL")) {
            let count = |word: &str| {
                let part = counts.split('|').find(|part| part.trim().ends_with(word));
                part.and_then(|part| part.split_whitespace().next()).and_then(|number| number.parse().ok()).unwrap_or(0)
            };
            let skipped = count("Skipped") + count("Pending");
            let [passed, failed, before] = results.specs.unwrap_or_default();
            results.specs = Some([passed + count("Passed"), failed + count("Failed"), before + skipped]);
        }
    }
    results
}

/// A line without terminal colors.
fn without_colors(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        text.push_str(before);
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    text + rest
}

/// Runs the suites on the built server, and on kube-apiserver if asked.
pub(super) fn run(
    options: &Options,
    wanted: &OperatorOptions,
    bin: &Path,
    dir: &Path,
    steps: &mut Steps,
) -> Outcome<()> {
    let etcd = match &options.etcd_bin {
        Some(etcd) => std::path::absolute(etcd)?,
        None => tools::find_or_fetch("etcd", "etcd-server")?,
    };
    let ours = assets(&dir.join("assets-listwatch"), &etcd, bin, &["kube-apiserver"])?;
    let theirs = match &wanted.api_server {
        Some(server) => Some(assets(&dir.join("assets-upstream"), &etcd, server, &[])?),
        None => None,
    };
    for suite in
        wanted.suites.iter().filter(|suite| options.only.as_deref().is_none_or(|only| suite.name.contains(only)))
    {
        let mut own = None;
        steps.run("listwatch", suite.name, || {
            let found = run_one(suite, wanted, &ours, &dir.join("listwatch"))?;
            let (summary, failures) = (found.summary(), found.failures());
            let failed = found.count(Verdict::Failed);
            own = Some(found);
            ensure!(failed == 0, "{summary}{failures}");
            Ok(summary)
        });
        let (Some(assets), Some(own)) = (&theirs, own) else { continue };
        let mut upstream = None;
        steps.run("upstream", suite.name, || {
            let found = run_one(suite, wanted, assets, &dir.join("upstream"))?;
            let text = format!("{}{}", found.summary(), found.failures());
            upstream = Some(found);
            Ok(text)
        });
        let Some(upstream) = upstream else { continue };
        steps.run("compared", suite.name, || {
            let differences = compare(&own, &upstream);
            ensure!(differences.is_empty(), "{}", differences.join("\n      "));
            Ok(format!("each test ends as on kube-apiserver: {}", own.summary()))
        });
    }
    Ok(())
}

/// Lists the tests whose outcomes differ.
fn compare(own: &Results, upstream: &Results) -> Vec<String> {
    let names: std::collections::BTreeSet<_> = own.tests.keys().chain(upstream.tests.keys()).collect();
    let mut found: Vec<String> = names
        .into_iter()
        .filter(|name| own.tests.get(*name) != upstream.tests.get(*name))
        .map(|name| format!("{name}: {:?}, on kube-apiserver {:?}", own.tests.get(name), upstream.tests.get(name)))
        .collect();
    if own.specs != upstream.specs {
        found.push(format!("specs: {}, on kube-apiserver {}", own.summary(), upstream.summary()));
    }
    found
}

/// Makes the directory of the programs that envtest starts.
fn assets(dir: &Path, etcd: &Path, server: &Path, args: &[&str]) -> Outcome<PathBuf> {
    std::fs::create_dir_all(dir)?;
    let kubectl = tools::find_or_fetch("kubectl", "kubernetes-client")?;
    for (name, program, args) in [("etcd", etcd, &[][..]), (API_SERVER, server, args), ("kubectl", &kubectl, &[])] {
        let words: String = args.iter().map(|arg| format!(" {arg}")).collect();
        let script = format!("#!/bin/sh\nexec '{}'{words} \"$@\"\n", program.display());
        let file = dir.join(name);
        std::fs::write(&file, script)?;
        executable(&file)?;
    }
    Ok(dir.to_owned())
}

#[cfg(unix)]
fn executable(file: &Path) -> Outcome<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755))?)
}

#[cfg(not(unix))]
fn executable(_: &Path) -> Outcome<()> {
    Err("envtest suites run on Unix only".into())
}

fn run_one(suite: &Suite, wanted: &OperatorOptions, assets: &Path, dir: &Path) -> Outcome<Results> {
    ensure!(suite.program.is_file(), "there is no {}", suite.program.display());
    let temporary = dir.join(format!("{}-files", suite.name));
    std::fs::create_dir_all(&temporary)?;
    let run = Run::new(&suite.program).args(&wanted.suite_args).dir(&suite.package);
    let run = run.env("KUBEBUILDER_ASSETS", assets).env("TMPDIR", &temporary).env("HOME", &temporary);
    let run = ["etcd", API_SERVER, "kubectl"].iter().fold(run, |run, name| {
        let variable = format!("TEST_ASSET_{}", name.to_uppercase().replace('-', "_"));
        run.env(&variable, assets.join(name))
    });
    let output = run.limit(SUITE_LIMIT).output()?;
    let text = format!("{}{}", output.text(), output.stderr);
    let log = dir.join(format!("{}.log", suite.name));
    std::fs::write(&log, &text)?;
    let found = results(&text);
    let tail: Vec<_> = text.lines().rev().take(15).collect();
    let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
    ensure!(output.status.is_some(), "not done after {SUITE_LIMIT:?}; {}: {tail}", found.summary());
    let any = found.count(Verdict::Passed) + found.count(Verdict::Failed);
    ensure!(any > 0, "no test ran:\n{tail}");
    let clean = output.success() || found.count(Verdict::Failed) > 0;
    ensure!(clean, "no test failed, but the program ended with an error; {}:\n{tail}", found.summary());
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{Results, Verdict, compare, results};

    const GO: &str = "=== RUN   TestA\n--- PASS: TestA (0.10s)\n    --- FAIL: TestB/sub_one (1.00s)\n--- FAIL: TestB (1.1s)\n\
                      --- SKIP: TestC (0.00s)\nFAIL\n";
    const GINKGO: &str = "\u{1b}[38;5;9m[FAIL]\u{1b}[0m \u{1b}[0mjobs \u{1b}[1m[It] run\u{1b}[0m\n\
                          \u{1b}[1mFAIL!\u{1b}[0m -- \u{1b}[1m9 Passed\u{1b}[0m | \u{1b}[1m1 Failed\u{1b}[0m | 2 Pending | 3 Skipped\n\
                          --- FAIL: TestAll (9.00s)\n";

    #[test]
    fn results_of_go_tests_are_read_by_name() {
        let found = results(GO);
        assert_eq!(found.summary(), "1 passed, 2 failed, 1 skipped");
        assert_eq!(found.tests.get("TestB/sub_one"), Some(&Verdict::Failed));
        assert_eq!(found.failures(), "\n      TestB\n      TestB/sub_one");
    }

    #[test]
    fn results_of_ginkgo_are_read_from_its_summary() {
        let found = results(GINKGO);
        assert_eq!(found.summary(), "9 passed, 1 failed, 5 skipped");
        assert!(found.failures().contains("jobs [It] run"), "{}", found.failures());
    }

    #[test]
    fn comparison_names_each_test_that_ends_differently() {
        let (own, upstream) = (results(GO), results(&GO.replace("FAIL: TestB/", "PASS: TestB/")));
        assert_eq!(compare(&own, &own), Vec::<String>::new());
        assert_eq!(compare(&own, &upstream), ["TestB/sub_one: Some(Failed), on kube-apiserver Some(Passed)"]);
        let specs = compare(&results(GINKGO), &Results::default());
        assert!(specs.iter().any(|line| line.starts_with("specs: 9 passed")), "{specs:?}");
    }
}
