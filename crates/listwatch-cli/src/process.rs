//! Prepares the process of a server: resource limits, signals, and a graceful shutdown.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use listwatch_apiserver::{ApiServer, Serving};

type Failure = Box<dyn std::error::Error>;

/// Prepares this process for a server: raises the limit of open files, and returns memory to the system after a peak.
pub(crate) fn prepare() {
    allow_many_connections();
    crate::trim::start();
}

/// Listens on an address. The error names `flag`, which selects the address.
///
/// # Errors
/// The error of the operating system, with the address and the flag.
pub(crate) fn listen(address: SocketAddr, flag: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address)
        .map_err(|error| format!("cannot listen on {address}: {error} (choose another with {flag})").into())
}

/// Serves until a signal arrives, and then shuts the server down gracefully. For `delay` before the shutdown, readiness
/// fails while requests are still served. A second signal ends the delay, and another one ends the process.
///
/// # Errors
/// The signal handlers cannot be installed.
pub(crate) async fn serve_until_signal(server: &ApiServer, serving: Serving, delay: Duration) -> Result<(), Failure> {
    stop_signal().await?;
    if !delay.is_zero() {
        server.fail_readiness();
        eprintln!("listwatch: stopping in {} s; a second signal stops now", delay.as_secs_f64());
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            signal = stop_signal() => signal?,
        }
    }
    stop(server, serving).await;
    Ok(())
}

/// The address for clients on this machine: loopback in place of an unspecified address.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::from(([127, 0, 0, 1], address.port())),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, address.port())),
        _ => address,
    }
}

/// Raises the soft limit of open files to the hard limit. Each client has a connection, and the usual soft limit
/// of 1,024 exists for programs that use `select`.
fn allow_many_connections() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        if limit.current != limit.maximum {
            limit.current = limit.maximum;
            if let Err(error) = setrlimit(Resource::Nofile, limit) {
                tracing::warn!(%error, "cannot raise the limit of open files");
            }
        }
    }
}

/// Waits for Ctrl-C or a termination signal.
async fn stop_signal() -> Result<(), Failure> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => interrupted?,
            _ = terminate.recv() => {}
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await?;
    Ok(())
}

async fn stop(server: &ApiServer, serving: Serving) {
    eprintln!("listwatch: stopping; a second signal stops at once");
    server.shutdown();
    tokio::select! {
        () = serving.shutdown() => {}
        _ = stop_signal() => {}
    }
}
