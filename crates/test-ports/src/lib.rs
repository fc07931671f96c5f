//! TCP ports of the loopback for tests that start a server as a process of its own and must name its port beforehand.
//!
//! ```
//! let port = listwatch_test_ports::free_port()?;
//! println!("--secure-port={port}");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Why not port 0
//! The kernel's free port is free only until the next socket takes it: another test, an outgoing connection, or the port
//! of a server that a test has killed and starts again. So a port is locked by a file until the end of the process that
//! took it, and lies below the ports that Linux gives to outgoing connections.

use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;

/// Below Linux' default of `net.ipv4.ip_local_port_range`, and above the ports that services register.
const PORTS: Range<u16> = 20_000..32_000;

/// The locks of this process. They end with it.
static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A port on which nothing listens, and which no other call returns, in this or another process, until this process ends.
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

/// `None` if another test has locked the port, or something listens on it.
fn lock(locks: &Path, port: u16) -> io::Result<Option<File>> {
    let lock = File::options().create(true).append(true).open(locks.join(port.to_string()))?;
    Ok((lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", port)).is_ok()).then_some(lock))
}

#[cfg(test)]
mod tests {
    use super::{free_port, lock};
    use std::net::TcpListener;

    #[test]
    fn port_is_given_to_one_user() {
        let port = free_port().unwrap();
        let locks = std::env::temp_dir().join("listwatch-test-ports");
        assert!(lock(&locks, port).unwrap().is_none(), "port {port} has two users");
        // Nothing listened on it: only the lock has refused the second user.
        assert!(TcpListener::bind(("127.0.0.1", port)).is_ok());
        assert_ne!(free_port().unwrap(), port);
    }

    #[test]
    fn port_with_a_listener_is_not_given() {
        let port = free_port().unwrap();
        let locks = tempfile_dir();
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        assert!(lock(&locks, port).unwrap().is_none(), "something listens on {port}");
        drop(listener);
        assert!(lock(&locks, port).unwrap().is_some());
    }

    /// Locks that no other test shares.
    fn tempfile_dir() -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("listwatch-test-ports-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }
}
