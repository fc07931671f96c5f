//! Checks the house rules that no compiler checks. Each rule is a pure function from text to complaints, and each
//! complaint has its reason.

mod limits;
mod walls;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::api;
use crate::args::Args;
use crate::failure::{Failure, Outcome};
use crate::tools;

pub(crate) const HELP: &str = "\
Checks the house rules, which no compiler checks:
  header    every .rs file begins with `//!`, its description
  size      no .rs file is longer than 900 lines, unless it is generated
  paths     no file names a folder that exists only on one machine
  cited     a path, link, crate or `cargo xtask` verb that a document names exists
  promises  every guarantee in docs/guarantees.md names a test, and the test exists
  limits    each number in docs/limits.md equals the constant that its row names; no bound is missing there
  walls     no crate depends on what ARCHITECTURE.md keeps from it; pure modules use no runtime, lock or
            clock; only listed modules use the http crate; modules of apiserver use lower layers only
  numbers   no two decisions in docs/decisions have the same number
  api       the listings of public items in docs/api are up to date (`cargo xtask api` rewrites them)
It reads only, takes well under a second, and is part of `check`, `test` and of xtask's own tests.

Usage: cargo xtask tidy";

/// Folders that are not the project's text. `engines` keeps its own build folder.
const SKIPPED_DIRS: [&str; 4] = ["target", ".git", "listwatch-data", "proptest-regressions"];

/// Folders of the root that a document may cite a path below.
const CITED_ROOTS: [&str; 8] = ["crates/", "docs/", "xtask/", "benches/", "examples/", ".ci/", ".cargo/", "src/"];

pub(crate) fn run(args: Args) -> Outcome<()> {
    args.finish("tidy")?;
    println!("{}", check()?);
    Ok(())
}

/// Applies every rule to the whole tree.
pub(crate) fn check() -> Outcome<String> {
    let tree = Tree::read(&tools::root())?;
    let mut complaints = Vec::new();
    for (path, text) in &tree.files {
        let told = |complaint: String| format!("{path}:{complaint}");
        if path.ends_with(".rs") {
            complaints.extend(header(text).into_iter().map(told));
        }
        complaints.extend(machine_paths(text).into_iter().map(told));
        if path.ends_with(".md") {
            complaints.extend(cited(path, text, &tree).into_iter().map(told));
        }
        if path == "docs/guarantees.md" {
            complaints.extend(promises(text, &tree).into_iter().map(told));
        }
        if path == limits::PAGE {
            complaints.extend(limits::check(text, &tree.files).into_iter().map(told));
        }
        if path.ends_with("Cargo.toml") {
            complaints.extend(manifest_walls(text).into_iter().map(told));
        }
    }
    complaints.extend(walls::check(&tree.files));
    complaints.extend(api::check().err().map(|failure| failure.to_string()));
    if tree.text(limits::PAGE).is_none() {
        complaints.push(format!("{} does not exist", limits::PAGE));
    }
    if complaints.is_empty() {
        return Ok(format!("{} files keep the house rules", tree.files.len()));
    }
    Err(Failure::from(format!("{} complaints\n  {}", complaints.len(), complaints.join("\n  "))))
}

/// The project's text files by path from the root, with `/` between folders.
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<(String, String)>,
}

impl Tree {
    pub(crate) fn read(root: &Path) -> Outcome<Self> {
        let (mut files, mut dirs) = (Vec::new(), vec![root.to_owned()]);
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(&dir)? {
                let path = entry?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if path.is_dir() {
                    if !SKIPPED_DIRS.contains(&name.as_str()) {
                        dirs.push(path);
                    }
                } else if [".rs", ".md", ".toml", ".yaml", ".sh"].iter().any(|end| name.ends_with(end)) || name == "run"
                {
                    let below = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
                    files.push((below, std::fs::read_to_string(&path)?));
                }
            }
        }
        files.sort();
        Ok(Self { root: root.to_owned(), files })
    }

    fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|(other, _)| other == path).map(|(_, text)| text.as_str())
    }

    /// Names of the workspace's packages.
    fn packages(&self) -> BTreeSet<&str> {
        let manifests = self.files.iter().filter(|(path, _)| path.ends_with("Cargo.toml"));
        manifests.filter_map(|(_, text)| package_name(text)).collect()
    }

    /// The name of the package whose manifest this is.
    pub(crate) fn package(&self, manifest: &str) -> Option<&str> {
        package_name(self.text(manifest)?)
    }
}

fn package_name(manifest: &str) -> Option<&str> {
    manifest.lines().find_map(|line| line.strip_prefix("name = ")?.split('"').nth(1))
}

/// Requires that a file begins with its description.
fn header(text: &str) -> Option<String> {
    // Test data written as a binary's source may start with a shebang; nothing else may.
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    (!first.starts_with("//!")).then(|| "1: a file begins with `//!`, its description".to_owned())
}

/// Rejects paths that exist only on one machine.
fn machine_paths(text: &str) -> Vec<String> {
    // Spelled in halves, so that this file passes its own rule.
    let banned = [["/wo", "rk/"], ["/ro", "ot/"], ["/ho", "me/"], ["/opt/", "peers"], ["/Us", "ers/"]]
        .map(|halves| halves.concat());
    let mut complaints = Vec::new();
    for (number, line) in text.lines().enumerate() {
        // Only at the root of a path are these names folders of a machine.
        let begins = |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-}~".contains(c));
        for path in &banned {
            if line.match_indices(path.as_str()).any(|(at, _)| begins(at)) {
                complaints.push(format!("{}: names {path}, which exists only on one machine", number + 1));
            }
        }
    }
    complaints
}

/// Requires that paths, links, crates and verbs in documents exist.
fn cited(path: &str, text: &str, tree: &Tree) -> Vec<String> {
    // The document's folder, with its slash; nothing for one at the root.
    let here = path.rfind('/').map_or("", |slash| &path[..=slash]);
    let packages = tree.packages();
    let mut complaints = Vec::new();
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        let number = number + 1;
        fenced ^= line.trim_start().starts_with("```");
        for verb in line.match_indices("cargo xtask ").map(|(at, found)| &line[at + found.len()..]) {
            let verb: String = verb.chars().take_while(char::is_ascii_alphanumeric).collect();
            if !verb.is_empty() && verb != "help" && !crate::VERBS.iter().any(|known| known.name == verb) {
                complaints.push(format!("{number}: `cargo xtask {verb}` does not exist"));
            }
        }
        if fenced {
            continue;
        }
        for target in links(line) {
            let file = target.split('#').next().unwrap_or_default();
            let outside = file.is_empty() || file.contains("://") || file.starts_with("mailto:");
            if !outside && !tree.exists(&format!("{here}{file}")) {
                complaints.push(format!("{number}: links to {target}, which does not exist"));
            }
        }
        for word in code_spans(line) {
            let file = word.split(['#', ':']).next().unwrap_or_default();
            let is_path = CITED_ROOTS.iter().any(|root| file.starts_with(root));
            if is_path
                && !file.contains(['*', '{', '<', ' ', '…'])
                && !tree.exists(file)
                && !tree.exists(&format!("{here}{file}"))
            {
                complaints.push(format!("{number}: names {file}, which does not exist"));
            }
            if word.starts_with("listwatch-")
                && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
                && !packages.contains(word)
            {
                complaints.push(format!("{number}: names the crate {word}, which does not exist"));
            }
        }
    }
    complaints
}

/// Requires that every numbered guarantee has a "Tested by" line whose tests exist, as `crates/x/tests/y.rs::name`.
fn promises(text: &str, tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut open: Option<(usize, &str)> = None;
    for (number, line) in text.lines().enumerate() {
        let number = number + 1;
        if let Some(title) = line.strip_prefix("## ") {
            if let Some((at, title)) = open.take() {
                complaints.push(format!("{at}: the guarantee \"{title}\" names no test"));
            }
            open = title.starts_with(|c: char| c.is_ascii_digit()).then_some((number, title));
        }
        if line.starts_with("Tested by") {
            open = None;
        }
        for cited in code_spans(line) {
            let Some((file, test)) = cited.split_once("::") else { continue };
            if !file.ends_with(".rs") {
                continue;
            }
            let name = test.rsplit("::").next().unwrap_or(test);
            match tree.text(file) {
                None => complaints.push(format!("{number}: names {file}, which does not exist")),
                Some(text) if !text.contains(&format!("fn {name}(")) => {
                    complaints.push(format!("{number}: {file} has no test `{name}`"));
                }
                Some(_) => {}
            }
        }
    }
    if let Some((at, title)) = open {
        complaints.push(format!("{at}: the guarantee \"{title}\" names no test"));
    }
    complaints
}

/// Packages that a forbidden prefix does not mean: JSON values depend on nothing of this project.
const JSON_VALUES: &[&str] = &["listwatch-json"];

/// The forbidden dependencies of ARCHITECTURE.md: package, dependencies, reason. A name that ends in `-` is a prefix.
const WALLS: &[(&str, &[&str], &str)] = &[
    (
        "listwatch-json",
        &["tokio", "hyper", "http", "tonic", "futures-util", "listwatch-"],
        "values know neither Kubernetes nor I/O",
    ),
    (
        "listwatch-meta",
        &["tokio", "hyper", "http", "tonic", "futures-util", "listwatch-"],
        "the vocabulary depends on JSON values only, and does no I/O",
    ),
    (
        "listwatch-k8s-types",
        &["tokio", "hyper", "http", "etcd-client", "futures-util", "serde", "listwatch-"],
        "a table of facts is data",
    ),
    (
        "listwatch-wire",
        &[
            "tokio",
            "hyper",
            "tonic",
            "listwatch-storage",
            "listwatch-cacher",
            "listwatch-apiserver",
            "listwatch-client",
        ],
        "bytes and messages, no sockets and no storage",
    ),
    (
        "listwatch-cel",
        &["tokio", "hyper", "http", "listwatch-schema", "listwatch-storage", "listwatch-apiserver", "listwatch-client"],
        "expressions are evaluated without I/O, and know schemas by a trait",
    ),
    (
        "listwatch-kinds",
        &["tokio", "hyper", "http", "listwatch-apiextensions", "listwatch-storage", "listwatch-apiserver"],
        "kinds are descriptions without I/O",
    ),
    (
        "listwatch-pod-rules",
        &["tokio", "hyper", "http", "listwatch-kinds", "listwatch-storage", "listwatch-apiserver"],
        "rules of pods are pure functions of objects, which kinds call",
    ),
    (
        "listwatch-kind-warnings",
        &["tokio", "hyper", "http", "listwatch-kinds", "listwatch-storage", "listwatch-apiserver"],
        "warnings are pure functions of objects, which kinds call",
    ),
    (
        "listwatch-apiextensions",
        &["tokio", "hyper", "listwatch-storage", "listwatch-cacher", "listwatch-apiserver", "listwatch-client"],
        "rules of definitions are pure; serving them is the server's",
    ),
    ("listwatch", &["clap", "tracing-subscriber"], "the facade is a library; the command is listwatch-cli"),
    (
        "listwatch-storage",
        &["hyper", "http", "listwatch-cacher", "listwatch-apiserver", "listwatch-client"],
        "a store knows neither HTTP nor the cache",
    ),
    (
        "listwatch-cacher",
        &["hyper", "http", "tonic", "listwatch-apiserver", "listwatch-client"],
        "the cache knows neither etcd nor HTTP",
    ),
    (
        "listwatch-access",
        &["tokio", "hyper", "listwatch-storage", "listwatch-cacher", "listwatch-apiserver", "listwatch-client"],
        "access decisions are pure: they read no store and own no task",
    ),
    (
        "listwatch-registry",
        &["hyper", "tonic", "listwatch-write", "listwatch-controllers", "listwatch-apiserver", "listwatch-client"],
        "what is served knows neither requests nor writes",
    ),
    (
        "listwatch-write",
        &["tokio", "hyper", "http", "tonic", "listwatch-controllers", "listwatch-apiserver", "listwatch-client"],
        "the write pipeline knows no runtime and no HTTP",
    ),
    (
        "listwatch-controllers",
        &["hyper", "http", "tonic", "listwatch-apiserver", "listwatch-client"],
        "controllers write through the write pipeline, as clients do",
    ),
    (
        "listwatch-at-rest",
        &["tokio", "hyper", "http", "rand", "listwatch-storage", "listwatch-registry", "listwatch-apiserver"],
        "encryption converts bytes: it opens no file, reads no store and makes no random numbers",
    ),
    (
        "listwatch-audit",
        &["tokio", "hyper", "http", "parking_lot", "rand", "listwatch-storage", "listwatch-apiserver"],
        "the audit log builds events and batches: it has no task, lock or socket",
    ),
    (
        "listwatch-outbound",
        &["listwatch-access", "listwatch-storage", "listwatch-registry", "listwatch-apiserver", "listwatch-client"],
        "calls of webhooks know bytes and a kubeconfig, and no API server",
    ),
    (
        "listwatch-work-queue",
        &["hyper", "http", "rand", "listwatch-wire", "listwatch-storage", "listwatch-client", "listwatch-apiserver"],
        "a queue of keys knows neither objects nor requests",
    ),
    ("listwatch-grpc", &["hyper", "tonic", "listwatch-"], "calls and frames know neither etcd nor Kubernetes"),
    (
        "listwatch-history",
        &[
            "tokio",
            "hyper",
            "http",
            "parking_lot",
            "rand",
            "listwatch-meta",
            "listwatch-storage",
            "listwatch-apiserver",
        ],
        "checks of histories know a format, and no server",
    ),
    (
        "listwatch-flow-control",
        &["tokio", "hyper", "http", "parking_lot", "rand", "listwatch-storage", "listwatch-apiserver"],
        "flow control takes requests and the time, and decides: it has no clock, lock or task",
    ),
    (
        "listwatch-webhooks",
        &["tokio", "hyper", "http", "parking_lot", "rand", "listwatch-storage", "listwatch-apiserver"],
        "rules of admission webhooks are pure: the caller sends requests and applies patches",
    ),
    (
        "listwatch-policies",
        &["tokio", "hyper", "http", "parking_lot", "rand", "listwatch-storage", "listwatch-apiserver"],
        "rules of admission policies are pure: the caller reads parameters and applies patches",
    ),
    (
        "listwatch-discovery",
        &["tokio", "hyper", "http", "parking_lot", "listwatch-write", "listwatch-controllers", "listwatch-apiserver"],
        "discovery and OpenAPI documents are functions of the registry; the server writes headers and keeps the bytes",
    ),
    (
        "listwatch-connect",
        &["tokio", "hyper", "http", "listwatch-proxy", "listwatch-storage", "listwatch-apiserver"],
        "targets of connect requests are functions of objects; the server reads the objects and connects",
    ),
    (
        "listwatch-printers",
        &["tokio", "hyper", "http", "parking_lot", "listwatch-kinds", "listwatch-storage", "listwatch-apiserver"],
        "cells are functions of the bytes of an object and the time",
    ),
    (
        "listwatch-table",
        &["tokio", "hyper", "http", "parking_lot", "listwatch-write", "listwatch-controllers", "listwatch-apiserver"],
        "Tables are functions of bytes and the time",
    ),
    (
        "listwatch-proxy",
        &["listwatch-access", "listwatch-storage", "listwatch-cacher", "listwatch-apiserver", "listwatch-client"],
        "a proxy knows requests and responses, and no API server",
    ),
    (
        "listwatch-aggregator",
        &["hyper", "listwatch-storage", "listwatch-cacher", "listwatch-apiserver", "listwatch-client"],
        "aggregation reads objects by its traits, and sends requests by the proxy",
    ),
    (
        "listwatch-conformance",
        &["tonic", "listwatch-storage", "listwatch-cacher", "listwatch-registry", "listwatch-apiserver"],
        "a judge knows the API and no server",
    ),
    (
        "listwatch-apiserver",
        &["tonic", "listwatch-client"],
        "the server reaches etcd through storage, and knows no client",
    ),
    (
        "listwatch-client",
        &["tonic", "listwatch-storage", "listwatch-cacher", "listwatch-apiserver"],
        "the client knows no server crate",
    ),
];

/// Checks the `[dependencies]` (not those of tests) of one manifest.
fn manifest_walls(manifest: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let (mut section, mut package) = (String::new(), "");
    for (number, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            section = line.to_owned();
        } else if section == "[package]" && package.is_empty() {
            package = line.strip_prefix("name = ").and_then(|rest| rest.split('"').nth(1)).unwrap_or_default();
        } else if section.ends_with("dependencies]") && !section.contains("dev-") && !section.contains("workspace") {
            let dependency = line.split(['.', ' ', '=']).next().unwrap_or_default();
            for (_, banned, why) in WALLS.iter().filter(|(name, ..)| *name == package) {
                let hit = |banned: &&&str| {
                    dependency == **banned
                        || (banned.ends_with('-')
                            && dependency.starts_with(**banned)
                            && !JSON_VALUES.contains(&dependency))
                };
                if banned.iter().any(|banned| hit(&banned)) {
                    complaints.push(format!("{}: {package} must not depend on {dependency}: {why}", number + 1));
                }
            }
        }
    }
    complaints
}

/// The texts between backticks.
fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The targets of `[text](target)`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

#[cfg(test)]
mod tests {
    use super::{Tree, cited, header, machine_paths, manifest_walls, promises};

    fn tree() -> Tree {
        let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        Tree {
            root: crate::tools::root(),
            files: vec![
                file("crates/x/Cargo.toml", "[package]\nname = \"listwatch-x\"\n"),
                file("crates/x/tests/a.rs", "//! a\n#[test]\nfn holds() {}\n"),
            ],
        }
    }

    #[track_caller]
    fn check(complaints: impl IntoIterator<Item = String>, expected: &[&str]) {
        assert_eq!(complaints.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn tree_passes_every_tidy_rule() {
        if let Err(complaints) = super::check() {
            panic!("{complaints}");
        }
    }

    #[test]
    fn file_without_a_description_is_rejected() {
        check(header("\n//! A thing.\nuse x;"), &[]);
        check(header("use x;\n//! late"), &["1: a file begins with `//!`, its description"]);
        check(header(""), &["1: a file begins with `//!`, its description"]);
    }

    #[test]
    fn absolute_machine_paths_are_rejected_and_equal_folder_names_accepted() {
        let work = ["/wo", "rk/"].concat();
        check(machine_paths(&format!("see {work}a")), &[&format!("1: names {work}, which exists only on one machine")]);
        check(machine_paths(&format!("see src{work}a")), &[]);
    }

    #[test]
    fn document_with_a_missing_path_or_verb_is_rejected() {
        let in_docs = |text: &str| cited("docs/a.md", text, &tree());
        check(in_docs("[a](../README.md#top) [b](https://x.example/y) [c](#here) `crates/*/src` `listwatch-x`"), &[]);
        check(in_docs("[a](nowhere.md)"), &["1: links to nowhere.md, which does not exist"]);
        check(in_docs("\n`docs/nowhere.md`"), &["2: names docs/nowhere.md, which does not exist"]);
        check(in_docs("`listwatch-y`"), &["1: names the crate listwatch-y, which does not exist"]);
        check(in_docs("run `cargo xtask e2e` or `cargo xtask chekc`"), &["1: `cargo xtask chekc` does not exist"]);
        check(in_docs("```\n[a](nowhere.md)\n```\n"), &[]);
    }

    #[test]
    fn guarantee_without_an_existing_test_is_rejected() {
        let check = |text: &str, expected: &[&str]| check(promises(text, &tree()), expected);
        check("## 1. Ordered\nTested by `crates/x/tests/a.rs::holds`\n## Notes\n", &[]);
        check(
            "## 1. Ordered\n\n## 2. Unique\nTested by `crates/x/tests/a.rs::holds`",
            &["1: the guarantee \"1. Ordered\" names no test"],
        );
        check("## 1. Ordered\nTested by `crates/x/tests/a.rs::gone`", &["2: crates/x/tests/a.rs has no test `gone`"]);
        check("## 1. Ordered\nTested by `crates/x/b.rs::gone`", &["2: names crates/x/b.rs, which does not exist"]);
    }

    #[test]
    fn forbidden_dependency_is_rejected_except_for_tests() {
        let manifest = |section: &str| {
            format!("[package]\nname = \"listwatch-client\"\n[{section}]\nlistwatch-storage.workspace = true\n")
        };
        check(manifest_walls(&manifest("dev-dependencies")), &[]);
        check(
            manifest_walls(&manifest("dependencies")),
            &["4: listwatch-client must not depend on listwatch-storage: the client knows no server crate"],
        );
    }

    #[test]
    fn forbidden_prefix_spares_json_values_only() {
        let manifest = |dependency: &str| {
            format!("[package]\nname = \"listwatch-meta\"\n[dependencies]\n{dependency}.workspace = true\n")
        };
        check(manifest_walls(&manifest("listwatch-json")), &[]);
        let why = "the vocabulary depends on JSON values only, and does no I/O";
        for dependency in ["listwatch-wire", "listwatch-json-too"] {
            let complaint = format!("4: listwatch-meta must not depend on {dependency}: {why}");
            check(manifest_walls(&manifest(dependency)), &[complaint.as_str()]);
        }
    }
}
