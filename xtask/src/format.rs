//! rustfmt over the workspace, and over the files of modules that a macro declares.
//!
//! `cargo fmt` follows `mod` lines but does not expand macros. Therefore it misses the kinds that `kinds!` declares in
//! `crates/kinds/src/lib.rs`. Those files are passed to rustfmt by name.

use std::path::{Path, PathBuf};

use crate::failure::{Outcome, fail};
use crate::process::Run;
use crate::tools;

/// The folder whose subfolders hold modules that a macro declares.
const MACRO_MODULES: &str = "crates/kinds/src";

/// Fails when a file is not formatted.
pub(crate) fn check() -> Outcome<String> {
    Run::cargo().args(["fmt", "--all", "--check"]).dir(&tools::root()).show()?;
    rustfmt(&["--check"])?;
    Ok("formatted".to_owned())
}

/// Formats all files.
pub(crate) fn fix() -> Outcome<()> {
    Run::cargo().args(["fmt", "--all"]).dir(&tools::root()).show()?;
    rustfmt(&[])
}

/// Runs rustfmt over the files of macro-declared modules. The edition is rustfmt.toml's.
fn rustfmt(arguments: &[&str]) -> Outcome<()> {
    let root = tools::root();
    let files = rust_files_below(&root.join(MACRO_MODULES))?;
    println!("$ rustfmt {} ({} files below {MACRO_MODULES})", arguments.join(" "), files.len());
    let output = Run::new("rustfmt").args(arguments).args(files).dir(&root).output()?;
    if !output.success() {
        fail!("rustfmt: {}", output.said());
    }
    Ok(())
}

/// The Rust files below a folder, sorted.
fn rust_files_below(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files_below(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
