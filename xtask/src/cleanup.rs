//! What a run leaves behind when it ends, however it ends: nothing.
//!
//! Whoever starts a process, a container or makes a directory registers it here and holds the
//! [`Guard`]. Dropping the guard undoes it, also while a panic unwinds; a signal (Ctrl-C, `kill`,
//! a closed terminal) undoes everything that is registered, newest first, and ends the program.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

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

static LEFT: Mutex<Left> = Mutex::new(Left { next: 0, stopping: false, all: Vec::new() });

struct Left {
    next: u64,
    /// A signal has come: what is registered from now on is undone at once.
    stopping: bool,
    all: Vec<(u64, Leftover)>,
}

fn left() -> MutexGuard<'static, Left> {
    // A thread that panicked while it held the lock has left the list whole.
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Undoes one [`Leftover`] when dropped.
#[must_use = "dropping the guard undoes what it guards"]
pub(crate) struct Guard(u64);

/// Registers something to be undone. Once a signal has come nobody gets past here any more: what
/// was just started is undone, and the caller waits for the end of the program.
pub(crate) fn guard(leftover: Leftover) -> Guard {
    let mut left = left();
    if left.stopping {
        drop(left);
        undo(&leftover);
        loop {
            std::thread::park();
        }
    }
    left.next += 1;
    let id = left.next;
    left.all.push((id, leftover));
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
    let mut left = left();
    let at = left.all.iter().position(|(other, _)| *other == id)?;
    Some(left.all.remove(at).1)
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
            let all = {
                let mut left = left();
                left.stopping = true;
                std::mem::take(&mut left.all)
            };
            all.iter().rev().for_each(|(_, leftover)| undo(leftover));
            std::process::exit(128 + signal);
        }
    });
}

/// Elsewhere only the guards clean up.
#[cfg(not(unix))]
pub(crate) fn on_signals() {}

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
