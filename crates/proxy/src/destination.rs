//! [`Destination`]: the target of a request, and the rules for forwarding.

use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};

use crate::dial;
use crate::headers::ExternalLocation;
use crate::proxy::Transport;

/// The target of a request, and the rules for forwarding.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The connections to use.
    pub transport: Transport,
    /// A host name or an address without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// The path at the backend with its query, percent-encoded; begins with `/`.
    pub path_and_query: String,
    /// Headers that replace those of the client with the same names, for example its identity. These headers are set
    /// last, so that headers of the client cannot remove or change them.
    pub headers: HeaderMap,
    /// The `Host` header; `None` for the dialed host and port.
    pub host_header: Option<HeaderValue>,
    /// The address under which the client reaches this location.
    pub external: ExternalLocation,
    /// The client's address, for `X-Forwarded-For`.
    pub client_address: Option<IpAddr>,
    /// The treatment of redirects. The proxy never follows them.
    pub redirects: Redirects,
    /// The time limit for the response header; `None` means [`Limits::header_timeout`](crate::Limits).
    pub header_timeout: Option<Duration>,
    /// The time limit for a complete plain response; `None`: no limit. A body that takes longer is cut off.
    pub total_timeout: Option<Duration>,
}

/// The treatment of a 3xx response with a `Location`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redirects {
    /// The response becomes a 502 (`--aggregator-reject-forwarding-redirect`).
    #[default]
    Reject,
    /// The response is passed on. A `Location` at the backend is rewritten to the external location.
    PassOn,
}

impl Destination {
    /// Creates a destination with default rules: no headers, no external location, no client address, redirects
    /// rejected.
    pub fn new(transport: Transport, host: impl Into<String>, port: u16, path_and_query: impl Into<String>) -> Self {
        Destination {
            transport,
            host: host.into(),
            port,
            path_and_query: path_and_query.into(),
            headers: HeaderMap::new(),
            host_header: None,
            external: ExternalLocation::default(),
            client_address: None,
            redirects: Redirects::default(),
            header_timeout: None,
            total_timeout: None,
        }
    }

    /// The target as `host:port`, with brackets around an IPv6 address.
    pub fn authority(&self) -> String {
        dial::authority(&self.host, self.port)
    }

    /// The path without its query.
    pub(crate) fn path(&self) -> &str {
        self.path_and_query.split('?').next().unwrap_or_default()
    }
}
