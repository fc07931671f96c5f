//! Reserves TCP ports on the loopback interface, for tests that must choose a port before they start a server process.
//!
//! ```
//! let port = listwatch_test_ports::free_port()?;
//! println!("--secure-port={port}");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Why not port 0
//! A port that the kernel assigns is free only until another socket binds it. Another test or an outgoing connection
//! can take the port, for example while a test restarts its server. This crate therefore locks a file per port until
//! the process ends. The ports are below the range that Linux assigns to outgoing connections.

use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;

/// The ports to choose from. The range is below Linux's default `net.ipv4.ip_local_port_range`, and above the ports
/// of common services.
const PORTS: Range<u16> = 20_000..32_000;

/// The file locks of this process. The system releases the locks when the process ends.
static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// Returns a port on which no process listens. No other call, in this or another process, returns the same port until
/// this process ends.
///
/// # Errors
/// The lock files cannot be written, or every port is taken.
pub fn free_port() -> io::Result<u16> {
    let locks = std::env::temp_dir().join("listwatch-test-ports");
    std::fs::create_dir_all(&locks)?;
    let count = PORTS.end - PORTS.start;
    // Processes that start together begin at different ports.
    let first = (std::process::id() * 61 % u32::from(count)) as u16;
    for n in 0..count {
        let port = PORTS.start + (first + n) % count;
        if let Some(lock) = lock(&locks, port)? {
            HELD.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(lock);
            return Ok(port);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("no port of {PORTS:?} is free")))
}

/// Locks a port. Returns `None` if another test has locked the port, or if a process listens on it.
fn lock(locks: &Path, port: u16) -> io::Result<Option<File>> {
    let lock = File::options().create(true).append(true).open(locks.join(port.to_string()))?;
    Ok((lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", port)).is_ok()).then_some(lock))
}

#[cfg(test)]
mod tests {
    use super::{free_port, lock};
    use std::net::TcpListener;

    #[test]
    fn free_port_is_locked_against_a_second_user() {
        let port = free_port().unwrap();
        let locks = std::env::temp_dir().join("listwatch-test-ports");
        assert!(lock(&locks, port).unwrap().is_none(), "port {port} has two users");
        // Nothing listened on it: only the lock has refused the second user.
        assert!(TcpListener::bind(("127.0.0.1", port)).is_ok());
        assert_ne!(free_port().unwrap(), port);
    }

    #[test]
    fn port_with_a_listener_cannot_be_locked() {
        let port = free_port().unwrap();
        let locks = tempfile_dir();
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        assert!(lock(&locks, port).unwrap().is_none(), "something listens on {port}");
        drop(listener);
        assert!(lock(&locks, port).unwrap().is_some());
    }

    /// Creates a directory for lock files that no other process uses.
    fn tempfile_dir() -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("listwatch-test-ports-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }
}
