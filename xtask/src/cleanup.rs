//! Removes processes, containers and directories when a run ends, even by a panic or signal.
//!
//! Code that starts a process or container or creates a directory registers the resource here and
//! holds the [`Guard`]. Dropping the guard removes the resource, even while a panic unwinds. A
//! signal (Ctrl-C, `kill`, a closed terminal) removes all registered resources, newest first, and
//! ends the program.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A resource that must not outlive this program.
#[derive(Debug, Clone)]
pub(crate) enum Resource {
    /// A child process, by id. Wait for the process before you deregister the id, because the
    /// system can reuse ids.
    Process(u32),
    /// A container, by name.
    Container(String),
    /// A network of containers, by name.
    Network(String),
    /// An image that was built for this run, by tag.
    Image(String),
    /// A directory that this run created.
    Directory(PathBuf),
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { next: 0, stopping: false, all: Vec::new() });

struct Registry {
    next: u64,
    /// A signal was received: resources registered from now on are removed immediately.
    stopping: bool,
    all: Vec<(u64, Resource)>,
}

fn registry() -> MutexGuard<'static, Registry> {
    // A thread that panicked while it held the lock has left the list whole.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes one [`Resource`] when dropped.
#[must_use = "dropping the guard removes its resource"]
pub(crate) struct Guard(u64);

/// Registers a resource for removal. After a signal, this function removes the resource and never
/// returns; the program ends.
pub(crate) fn guard(resource: Resource) -> Guard {
    let mut registry = registry();
    if registry.stopping {
        drop(registry);
        remove(&resource);
        loop {
            std::thread::park();
        }
    }
    registry.next += 1;
    let id = registry.next;
    registry.all.push((id, resource));
    Guard(id)
}

impl Guard {
    /// Deregisters the resource without removing it.
    pub(crate) fn forget(self) {
        take(self.0);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(resource) = take(self.0) {
            remove(&resource);
        }
    }
}

fn take(id: u64) -> Option<Resource> {
    let mut registry = registry();
    let at = registry.all.iter().position(|(other, _)| *other == id)?;
    Some(registry.all.remove(at).1)
}

fn remove(resource: &Resource) {
    let quietly = |program: &str, args: &[&str]| {
        // Best effort: a resource that cannot be removed is usually gone already.
        let _ =
            Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    };
    match resource {
        Resource::Process(id) => quietly("sh", &["-c", &format!("kill -KILL {id}")]),
        Resource::Container(name) => quietly("docker", &["rm", "--force", "--volumes", name]),
        Resource::Image(tag) => quietly("docker", &["image", "rm", "--force", tag]),
        Resource::Network(name) => quietly("docker", &["network", "rm", name]),
        Resource::Directory(path) => drop(std::fs::remove_dir_all(path)),
    }
}

/// Removes all resources on SIGINT, SIGTERM and SIGHUP, then exits with the shell's code for the
/// signal.
#[cfg(unix)]
pub(crate) fn on_signals() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM]) else { return };
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            eprintln!("\nxtask: stopping, and removing everything that this run started");
            let all = {
                let mut registry = registry();
                registry.stopping = true;
                std::mem::take(&mut registry.all)
            };
            all.iter().rev().for_each(|(_, resource)| remove(resource));
            std::process::exit(128 + signal);
        }
    });
}

/// On other platforms only the guards clean up.
#[cfg(not(unix))]
pub(crate) fn on_signals() {}

#[cfg(test)]
mod tests {
    use super::{Resource, guard};

    #[test]
    fn dropped_guard_removes_its_directory_and_forgotten_guard_keeps_it() {
        let base = std::env::temp_dir().join(format!("xtask-cleanup-{}", std::process::id()));
        let (gone, kept) = (base.join("gone"), base.join("kept"));
        for dir in [&gone, &kept] {
            std::fs::create_dir_all(dir.join("inside")).unwrap();
        }
        drop(guard(Resource::Directory(gone.clone())));
        guard(Resource::Directory(kept.clone())).forget();
        assert!(!gone.exists() && kept.exists());
        std::fs::remove_dir_all(base).unwrap();
    }
}
