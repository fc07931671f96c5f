//! What a run leaves behind when it ends, however it ends: nothing.
//!
//! Whoever starts a process, a container or makes a directory registers it here and holds the
//! [`Guard`]. Dropping the guard undoes it, also while a panic unwinds; a signal (Ctrl-C, `kill`,
//! a closed terminal) undoes everything that is registered, newest first, and ends the program.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// Something that must not outlive this program.
#[derive(Debug, Clone)]
pub(crate) enum Leftover {
    /// A child process, by id. Deregister it only after it has been waited for, so that the id
    /// cannot belong to somebody else by then.
    Process(u32),
    /// A container, by name.
    Container(String),
    /// An image that was built for this run, by tag.
    Image(String),
    /// A directory of this run's own.
    Directory(PathBuf),
}

static LEFT: Mutex<(u64, Vec<(u64, Leftover)>)> = Mutex::new((0, Vec::new()));

/// Undoes one [`Leftover`] when dropped.
#[must_use = "dropping the guard undoes what it guards"]
pub(crate) struct Guard(u64);

/// Registers something to be undone.
pub(crate) fn guard(leftover: Leftover) -> Guard {
    let mut left = LEFT.lock().unwrap_or_else(|poison| poison.into_inner());
    left.0 += 1;
    let id = left.0;
    left.1.push((id, leftover));
    Guard(id)
}

impl Guard {
    /// Leaves it as it is: somebody has dealt with it, or wants to look at it.
    pub(crate) fn forget(self) {
        take(self.0);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(leftover) = take(self.0) {
            undo(&leftover);
        }
    }
}

fn take(id: u64) -> Option<Leftover> {
    let mut left = LEFT.lock().unwrap_or_else(|poison| poison.into_inner());
    let at = left.1.iter().position(|(other, _)| *other == id)?;
    Some(left.1.remove(at).1)
}

fn undo(leftover: &Leftover) {
    let quietly = |program: &str, args: &[&str]| {
        // Best effort: what cannot be undone is already gone, and nobody is left to be told.
        let _ =
            Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    };
    match leftover {
        Leftover::Process(id) => quietly("sh", &["-c", &format!("kill -KILL {id}")]),
        Leftover::Container(name) => quietly("docker", &["rm", "--force", "--volumes", name]),
        Leftover::Image(tag) => quietly("docker", &["image", "rm", "--force", tag]),
        Leftover::Directory(path) => drop(std::fs::remove_dir_all(path)),
    }
}

/// Undoes everything on SIGINT, SIGTERM and SIGHUP, then ends with the shell's code for the signal.
#[cfg(unix)]
pub(crate) fn on_signals() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM]) else { return };
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            eprintln!("\nxtask: stopping, and taking everything down");
            while let Some(leftover) = newest() {
                undo(&leftover);
            }
            std::process::exit(128 + signal);
        }
    });
}

/// Elsewhere only the guards clean up.
#[cfg(not(unix))]
pub(crate) fn on_signals() {}

#[cfg(unix)]
fn newest() -> Option<Leftover> {
    let mut left = LEFT.lock().unwrap_or_else(|poison| poison.into_inner());
    left.1.pop().map(|(_, leftover)| leftover)
}

#[cfg(test)]
mod tests {
    use super::{Leftover, guard};

    #[test]
    fn a_dropped_guard_removes_and_a_forgotten_one_keeps() {
        let base = std::env::temp_dir().join(format!("xtask-cleanup-{}", std::process::id()));
        let (gone, kept) = (base.join("gone"), base.join("kept"));
        for dir in [&gone, &kept] {
            std::fs::create_dir_all(dir.join("inside")).unwrap();
        }
        drop(guard(Leftover::Directory(gone.clone())));
        guard(Leftover::Directory(kept.clone())).forget();
        assert!(!gone.exists() && kept.exists());
        std::fs::remove_dir_all(base).unwrap();
    }
}
