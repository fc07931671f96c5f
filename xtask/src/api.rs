//! `cargo xtask api`: the public surface of every library crate, one file per crate in docs/api.
//!
//! The listing is checked in, so that a change of the surface shows in review. The listing is read from the source text
//! ([`scan`], [`surface`]) in less than a second. The listing has names and signatures as they are written, without
//! items of macros and blanket implementations.

mod scan;
mod surface;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::args::Args;
use crate::failure::{Failure, Outcome, fail};
use crate::tidy::Tree;
use crate::tools;

use self::surface::{Crate, Line, words};

pub(crate) const HELP: &str = "\
Writes docs/api/<crate>.txt for each folder of crates/ that has a src/lib.rs: every public item, its public
members, the traits that it implements, and in brackets the features that it needs. Fails when a public
signature names a type of a crate that is not on the list of allowed crates.

  --check    compare with the files that are there, and change nothing; a part of `cargo xtask tidy`
  --unused   list public names that no other crate, test, bench or example of this repository mentions

Usage: cargo xtask api [--check | --unused]";

/// The folder of the listings, from the root.
const FOLDER: &str = "docs/api";

/// Crates whose types may occur in public signatures, because they are the common interface of their field. HTTP
/// services in Rust exchange bodies by `http_body`, values are serialized to JSON by `serde`, and `time` has the type
/// of an object's timestamps.
const ALLOWED: [&str; 13] = [
    "std",
    "core",
    "alloc",
    "async_trait",
    "bytes",
    "futures_core",
    "http",
    "http_body",
    "serde",
    "serde_json",
    "time",
    "tokio",
    "tower_service",
];

/// Additional allowed crates, by the crate whose signatures use them.
const ALLOWED_IN: [(&str, &[&str]); 4] = [
    // This crate connects listwatch with kube-rs.
    ("kube", &["futures_util", "kube"]),
    // This crate is never published.
    ("sim", &["rand"]),
    // The messages of calls, and the TLS of connections.
    ("grpc", &["prost", "rustls"]),
    // The certificates of the server.
    ("apiserver", &["rcgen", "rustls"]),
];

pub(crate) fn run(mut args: Args) -> Outcome<()> {
    let (check, unused) = (args.flag("--check"), args.flag("--unused"));
    args.finish("api")?;
    let root = tools::root();
    if unused {
        return print_unused(&root);
    }
    if check {
        println!("{}", self::check()?);
        return Ok(());
    }
    let mut complaints = Vec::new();
    std::fs::create_dir_all(root.join(FOLDER))?;
    for (name, lines) in surfaces(&root)? {
        complaints.extend(foreign(&name, &lines));
        std::fs::write(root.join(FOLDER).join(format!("{name}.txt")), listing(&name, &lines))?;
        println!("{FOLDER}/{name}.txt: {} lines", lines.len());
    }
    for name in stale(&root)? {
        std::fs::remove_file(root.join(FOLDER).join(&name))?;
        println!("{FOLDER}/{name}: removed, there is no such crate");
    }
    if complaints.is_empty() { Ok(()) } else { Err(Failure::from(complaints.join("\n  "))) }
}

/// Compares the listings with the source.
pub(crate) fn check() -> Outcome<String> {
    let root = tools::root();
    let mut complaints = Vec::new();
    let surfaces = surfaces(&root)?;
    for (name, lines) in &surfaces {
        complaints.extend(foreign(name, lines));
        let file = format!("{FOLDER}/{name}.txt");
        let there = std::fs::read_to_string(root.join(&file)).unwrap_or_default();
        let found = listing(name, lines);
        if there != found {
            let differs = there.lines().zip(found.lines()).position(|(old, new)| old != new);
            let line = differs.unwrap_or_else(|| there.lines().count().min(found.lines().count())) + 1;
            complaints.push(format!("{file}:{line}: the public surface is another one; run `cargo xtask api`"));
        }
    }
    complaints.extend(stale(&root)?.iter().map(|name| format!("{FOLDER}/{name}: there is no such crate")));
    if complaints.is_empty() {
        return Ok(format!("the listings of {} crates are up to date", surfaces.len()));
    }
    fail!("{}", complaints.join("\n  "))
}

fn surfaces(root: &Path) -> Outcome<BTreeMap<String, Vec<Line>>> {
    let mut surfaces = BTreeMap::new();
    for entry in std::fs::read_dir(root.join("crates"))? {
        let path = entry?.path();
        if path.join("src/lib.rs").is_file() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let lines = Crate::read(&path).map_err(|error| error.while_doing(&name))?.lines();
            surfaces.insert(name, lines);
        }
    }
    Ok(surfaces)
}

/// Listings of crates that no longer exist.
fn stale(root: &Path) -> Outcome<Vec<String>> {
    let mut stale = Vec::new();
    let Ok(entries) = std::fs::read_dir(root.join(FOLDER)) else { return Ok(stale) };
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let of = name.strip_suffix(".txt");
        if of.is_some_and(|of| !root.join("crates").join(of).join("src/lib.rs").is_file()) {
            stale.push(name);
        }
    }
    Ok(stale)
}

fn listing(name: &str, lines: &[Line]) -> String {
    let mut text = format!("# The public surface of crates/{name}, made by `cargo xtask api`.\n");
    for line in lines {
        text.push_str(&line.text);
        text.push('\n');
    }
    text
}

/// Lines that name types of crates which are not allowed.
fn foreign(name: &str, lines: &[Line]) -> Vec<String> {
    let further = ALLOWED_IN.iter().find(|(of, _)| *of == name).map_or(&[][..], |(_, crates)| crates);
    let allowed = |of: &str| ALLOWED.contains(&of) || further.contains(&of) || of.starts_with("listwatch");
    let mut complaints = Vec::new();
    for line in lines {
        for of in line.foreign.iter().filter(|of| !allowed(of)) {
            complaints.push(format!("crates/{name}: a type of `{of}` is in a public signature: {}", line.text.trim()));
        }
    }
    complaints
}

/// Prints the public names of each crate that occur as a word nowhere outside of the crate's sources.
fn print_unused(root: &Path) -> Outcome<()> {
    let tree = Tree::read(root)?;
    for (name, lines) in surfaces(root)? {
        let own = format!("crates/{name}/src/");
        let mut used: BTreeSet<&str> = BTreeSet::new();
        for (path, text) in tree.files.iter().filter(|(path, _)| path.ends_with(".rs") || path.ends_with(".md")) {
            if path.starts_with(&own) || path.starts_with("xtask/src/api") {
                // Examples in documentation are outside users.
                let mut open = false;
                for line in text.lines().map(str::trim_start).filter(|line| line.starts_with("//")) {
                    let line = line.trim_start_matches(['/', '!']);
                    open ^= line.trim_start().starts_with("```");
                    if open {
                        used.extend(words(line).map(|(_, word)| word));
                    }
                }
            } else {
                used.extend(words(text).map(|(_, word)| word));
            }
        }
        println!("\n{name}");
        // Variants and fields are part of their type; traits are called through what implements them.
        let counts =
            |line: &Line| line.text.starts_with("pub ") || line.text.contains("fn ") || line.text.contains(": const ");
        for line in lines.iter().filter(|line| counts(line) && !used.contains(line.name.as_str())) {
            println!("  {}", line.text.trim());
        }
    }
    Ok(())
}
