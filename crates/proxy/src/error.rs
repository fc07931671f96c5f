//! [`ProxyError`]: failures of a proxied request, and the response for each of them.
//!
//! The texts equal those of upstream and of Go, because clients see them
//! (`apimachinery/pkg/util/proxy/{upgradeaware,transport}.go`, `net`, `net/http`, `crypto/x509`).

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use listwatch_meta::Status;

/// The kind of exchange that failed. The error text depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exchange {
    Plain,
    Upgrade,
}

/// The error of a request that the proxy could not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyError {
    exchange: Exchange,
    kind: ProxyErrorKind,
}

/// The cause of a [`ProxyError`]. Each variant names the party at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyErrorKind {
    /// The TCP connection failed; fault of the backend or the network. No byte of the request was sent.
    #[error("{0}")]
    Dial(String),
    /// The TLS handshake failed; fault of the backend or its configured certificates. No byte of the request was sent.
    #[error("{0}")]
    Tls(String),
    /// The backend sent no response header within the time limit.
    #[error("net/http: timeout awaiting response headers")]
    HeaderTimeout {
        /// The time limit that was exceeded.
        after: Duration,
    },
    /// The connection broke, or the response is malformed or too large; fault of the backend.
    #[error("{0}")]
    Response(String),
    /// The body of the request ended early; fault of the client.
    #[error("{0}")]
    RequestBody(String),
    /// The backend responded to an upgrade request with a success or a redirect of this code.
    #[error("invalid upgrade response: status code {0}")]
    InvalidUpgrade(u16),
    /// The client's connection cannot be upgraded, for example over HTTP/2.
    #[error("request connection cannot be hijacked")]
    NotUpgradable,
    /// The location is not a valid URI; fault of the caller.
    #[error("invalid location: {0}")]
    InvalidLocation(String),
    /// The limit of connections to backends is reached.
    #[error("too many connections to backends (limit {0})")]
    TooManyConnections(usize),
    /// The limit of connections to this backend is reached.
    #[error("too many connections to this backend (limit {0})")]
    TooManyConnectionsToBackend(usize),
    /// The limit of upgraded connections is reached.
    #[error("too many upgraded connections (limit {0})")]
    TooManyUpgrades(usize),
    /// The limit of upgraded connections to this backend is reached.
    #[error("too many upgraded connections to this backend (limit {0})")]
    TooManyUpgradesToBackend(usize),
}

impl ProxyErrorKind {
    /// Whether a limit of this proxy is reached.
    fn is_limit(&self) -> bool {
        use ProxyErrorKind as Kind;
        matches!(
            self,
            Kind::TooManyConnections(_)
                | Kind::TooManyConnectionsToBackend(_)
                | Kind::TooManyUpgrades(_)
                | Kind::TooManyUpgradesToBackend(_)
        )
    }
}

impl ProxyError {
    pub(crate) fn plain(kind: ProxyErrorKind) -> Self {
        ProxyError { exchange: Exchange::Plain, kind }
    }

    pub(crate) fn upgrade(kind: ProxyErrorKind) -> Self {
        ProxyError { exchange: Exchange::Upgrade, kind }
    }

    /// The cause.
    pub fn kind(&self) -> &ProxyErrorKind {
        &self.kind
    }

    /// The code and the text of the aggregator's plain response. The code is 400 for faults of the client, 429 for
    /// limits of this proxy, and otherwise 503, as in upstream's `responder.Error`.
    pub fn to_text(&self) -> (StatusCode, String) {
        let code = match &self.kind {
            ProxyErrorKind::RequestBody(_) => StatusCode::BAD_REQUEST,
            kind if kind.is_limit() => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        (code, self.to_string())
    }

    /// The Status of the subresources `proxy`, `exec`, `attach` and `portforward`. The code is 503 for a plain request
    /// and 500 for an upgrade; 400 and 429 are as in [`ProxyError::to_text`].
    pub fn to_status(&self) -> Status {
        match &self.kind {
            ProxyErrorKind::RequestBody(_) => Status::bad_request(self.to_string()),
            kind if kind.is_limit() => Status::too_many_requests(self.to_string(), 1),
            _ => match self.exchange {
                Exchange::Plain => Status::unavailable(self.to_string()),
                Exchange::Upgrade => Status::unknown(self.to_string()),
            },
        }
    }
}

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ProxyErrorKind as Kind;
        match (&self.kind, self.exchange) {
            (kind, _) if kind.is_limit() => write!(f, "{kind}"),
            (kind @ Kind::RequestBody(_), _) => write!(f, "{kind}"),
            (kind, Exchange::Plain) => write!(f, "error trying to reach service: {kind}"),
            (kind @ (Kind::Dial(_) | Kind::Tls(_)), Exchange::Upgrade) => write!(f, "error dialing backend: {kind}"),
            (kind, Exchange::Upgrade) => write!(f, "{kind}"),
        }
    }
}

impl std::error::Error for ProxyError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_error_has_upstreams_code_and_text() {
        use ProxyErrorKind::{Dial, HeaderTimeout, InvalidUpgrade, RequestBody, TooManyUpgrades};
        let check = |error: ProxyError, text: (u16, &str), status: u16| {
            assert_eq!(error.to_text(), (StatusCode::from_u16(text.0).unwrap(), text.1.to_owned()));
            assert_eq!((error.to_status().code, &*error.to_status().message), (status, text.1), "{error:?}");
        };
        let refused = || Dial("dial tcp 10.0.0.1:443: connect: connection refused".to_owned());
        let reach = "error trying to reach service: dial tcp 10.0.0.1:443: connect: connection refused";
        check(ProxyError::plain(refused()), (503, reach), 503);
        let dialing = "error dialing backend: dial tcp 10.0.0.1:443: connect: connection refused";
        check(ProxyError::upgrade(refused()), (503, dialing), 500);
        let late = "error trying to reach service: net/http: timeout awaiting response headers";
        check(ProxyError::plain(HeaderTimeout { after: Duration::from_secs(1) }), (503, late), 503);
        check(ProxyError::upgrade(InvalidUpgrade(200)), (503, "invalid upgrade response: status code 200"), 500);
        check(ProxyError::plain(RequestBody("cut".to_owned())), (400, "cut"), 400);
        check(ProxyError::upgrade(TooManyUpgrades(3)), (429, "too many upgraded connections (limit 3)"), 429);
    }
}
