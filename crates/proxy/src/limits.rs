//! [`Limits`]: the bounds of a proxy, each with a name, a unit and a default.

use std::time::Duration;

/// The time limit for the name lookup and the TCP connection (Go's `DefaultTransport`).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit for the TLS handshake (Go's `DefaultTransport`).
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit from sending a request to the response header, including the dial.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest response header, in bytes.
const HEADER_BYTES_MAX: usize = 256 * 1024;
/// The most lines of a response header.
const HEADER_LINES_MAX: usize = 512;
/// The most connections to backends, including upgraded ones.
const CONNECTIONS_MAX: usize = 4_096;
/// The most connections to one backend: a quarter of [`CONNECTIONS_MAX`].
const CONNECTIONS_PER_BACKEND_MAX: usize = 1_024;
/// The most idle connections to one backend (client-go's `MaxIdleConnsPerHost`).
const IDLE_CONNECTIONS_PER_BACKEND_MAX: usize = 25;
/// The time after which an idle connection is closed (Go's `DefaultTransport`).
const IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_secs(90);
/// The most concurrent upgraded connections.
const UPGRADES_MAX: usize = 1_024;
/// The most concurrent upgraded connections to one backend: a quarter of [`UPGRADES_MAX`].
const UPGRADES_PER_BACKEND_MAX: usize = 256;
/// The time without a byte after which an upgraded connection is closed (the kubelet's default).
const UPGRADE_IDLE_TIMEOUT: Duration = Duration::from_secs(14_400);
/// The time without a byte after which a half-closed upgraded connection is closed.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest body of a response that rejects an upgrade, in bytes.
const REFUSAL_BYTES_MAX: usize = 1024 * 1024;
/// The time limit for the body of a response that rejects an upgrade (`upgradeaware.go`).
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);

/// The bounds of a [`Proxy`](crate::Proxy). `Limits::default()` suits an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The time limit for the name lookup and the TCP connection; 30 s. Error: `dial tcp …: i/o timeout`.
    pub connect_timeout: Duration,
    /// The time limit for the TLS handshake; 10 s. Error: `net/http: TLS handshake timeout`.
    pub tls_handshake_timeout: Duration,
    /// The time limit from sending a request to the response header, including the dial; 60 s.
    /// [`Destination::header_timeout`](crate::Destination::header_timeout) replaces this limit for one request.
    pub header_timeout: Duration,
    /// The largest response header; 256 KiB. A longer header fails the request.
    pub header_bytes_max: usize,
    /// The most lines of a response header over HTTP/1.1; 512. A longer header fails the request.
    pub header_lines_max: usize,
    /// The most connections to all backends, including idle and upgraded ones; 4,096. A request that needs another
    /// connection fails with 429.
    pub connections_max: usize,
    /// The most connections to one backend, given by host and port; 1,024. A request that needs another connection
    /// fails with 429.
    pub connections_per_backend_max: usize,
    /// The most idle connections to one backend; 25. Any further connection is closed after its response.
    pub idle_connections_per_backend_max: usize,
    /// The time after which an idle connection is closed; 90 s.
    pub idle_connection_timeout: Duration,
    /// The most concurrent upgraded connections; 1,024. Any further upgrade fails with 429.
    pub upgrades_max: usize,
    /// The most concurrent upgraded connections to one backend; 256. Any further upgrade fails with 429.
    pub upgrades_per_backend_max: usize,
    /// The time without a byte in either direction after which an upgraded connection is closed; 4 h.
    pub upgrade_idle_timeout: Duration,
    /// The time without a byte after which a half-closed upgraded connection is closed; 60 s.
    pub half_closed_timeout: Duration,
    /// The largest body of a response that rejects an upgrade; 1 MiB. A longer body is cut off.
    pub refusal_bytes_max: usize,
    /// The time limit for the body of a response that rejects an upgrade; 10 s. A slower body is cut off.
    pub refusal_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connect_timeout: CONNECT_TIMEOUT,
            tls_handshake_timeout: TLS_HANDSHAKE_TIMEOUT,
            header_timeout: HEADER_TIMEOUT,
            header_bytes_max: HEADER_BYTES_MAX,
            header_lines_max: HEADER_LINES_MAX,
            connections_max: CONNECTIONS_MAX,
            connections_per_backend_max: CONNECTIONS_PER_BACKEND_MAX,
            idle_connections_per_backend_max: IDLE_CONNECTIONS_PER_BACKEND_MAX,
            idle_connection_timeout: IDLE_CONNECTION_TIMEOUT,
            upgrades_max: UPGRADES_MAX,
            upgrades_per_backend_max: UPGRADES_PER_BACKEND_MAX,
            upgrade_idle_timeout: UPGRADE_IDLE_TIMEOUT,
            half_closed_timeout: HALF_CLOSED_TIMEOUT,
            refusal_bytes_max: REFUSAL_BYTES_MAX,
            refusal_timeout: REFUSAL_TIMEOUT,
        }
    }
}
