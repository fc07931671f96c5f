//! Prepares the process of a server: resource limits, signals, and a graceful shutdown.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use listwatch_apiserver::{ApiServer, Serving};

use crate::stop_signals::StopSignals;

type Failure = Box<dyn std::error::Error>;

/// Prepares this process for a server: raises the limit of open files, keeps the memory of response chunks, and returns
/// memory to the system after a peak. Call this before the process starts another thread.
pub(crate) fn prepare() {
    allow_many_connections();
    crate::malloc_thresholds::set();
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

/// The settings of a graceful shutdown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shutdown {
    /// The time between the signal and the shutdown. Readiness fails, and requests are still served.
    pub(crate) delay: Duration,
    /// Whether new requests get 429 while the running ones finish. Without it, new connections are refused.
    pub(crate) retry_after: bool,
}

/// Serves until a signal arrives, and then shuts the server down gracefully. Readiness fails first, and the server
/// removes its address from the cluster. A second signal ends the delay, and another one ends the process.
///
/// # Errors
/// A signal handler cannot be installed.
pub(crate) async fn serve_until_signal(
    server: &ApiServer,
    serving: Serving,
    shutdown: Shutdown,
    mut signals: StopSignals,
) -> Result<(), Failure> {
    signals.received().await?;
    server.fail_readiness();
    let delay = shutdown.delay;
    if !delay.is_zero() {
        eprintln!("listwatch: stopping in {} s; a second signal stops now", delay.as_secs_f64());
    }
    let leave = async { tokio::join!(server.withdraw(), tokio::time::sleep(delay)) };
    tokio::select! {
        _ = leave => {}
        signal = signals.received() => signal?,
    }
    eprintln!("listwatch: stopping; a second signal stops at once");
    let stop = async {
        match shutdown.retry_after {
            true => server.drain().await,
            false => server.shutdown(),
        }
        serving.shutdown().await;
        server.finish_cleanups().await;
        server.close_audit_log().await;
    };
    tokio::select! {
        () = stop => {}
        _ = signals.received() => {}
    }
    Ok(())
}

/// The address of this machine for clients on other machines: the bind address, or that of the default route if the
/// bind address is unspecified or a loopback address (`ResolveBindAddress` in `apimachinery/pkg/util/net`). `None`
/// without such a route.
pub(crate) fn advertised(bind: IpAddr) -> Option<IpAddr> {
    if !(bind.is_unspecified() || bind.is_loopback()) {
        return Some(bind);
    }
    // Connecting a UDP socket selects the source address of a route, and sends nothing. The other end is one of the
    // addresses for documentation.
    let (local, other) = match bind {
        IpAddr::V4(_) => ("0.0.0.0:0", "192.0.2.1:9"),
        IpAddr::V6(_) => ("[::]:0", "[2001:db8::1]:9"),
    };
    let socket = UdpSocket::bind(local).ok()?;
    socket.connect(other).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!(address.is_unspecified() || address.is_loopback())).then_some(address)
}

/// The name of this host. `None` if the system does not report it.
pub(crate) fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok())?;
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
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
