//! [`RequestDrain`]: while a server shuts down, rejects new requests with 429 and `Retry-After`. Clients then use
//! another server while the running requests finish (`--shutdown-send-retry-after`).
//!
//! Source: `WithRetryAfter` in `apiserver/pkg/server/filters/with_retry_after.go`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::header::{CONNECTION, RETRY_AFTER, USER_AGENT};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};

use crate::response::body::Body;
use crate::response::extensions::GoAway;
use crate::response::respond;

/// The paths that a stopping server still serves, because load balancers read them.
const EXEMPT_PATHS: [&str; 2] = ["/readyz", "/livez"];
/// The prefix of the user agents of API servers. Their requests are still served, because they may be parts of running
/// requests: this server calls the webhooks that it serves itself.
const EXEMPT_USER_AGENT: &str = "kube-apiserver/";
const MESSAGE: &str = "The apiserver is shutting down, please try again later.\n";
/// The value of `Retry-After`, in seconds.
const RETRY_AFTER_SECONDS: &str = "5";

/// Counts the running requests of a server, and rejects new requests during the shutdown.
#[derive(Debug, Default)]
pub(crate) struct RequestDrain {
    rejects: AtomicBool,
    active: AtomicUsize,
}

/// A running request, which is counted until the value is dropped.
pub(crate) struct ActiveRequest<'a>(&'a RequestDrain);

impl Drop for ActiveRequest<'_> {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::AcqRel);
    }
}

impl RequestDrain {
    /// Rejects all further requests.
    pub(crate) fn start(&self) {
        self.rejects.store(true, Ordering::Release);
    }

    /// Whether no request is running.
    pub(crate) fn is_drained(&self) -> bool {
        self.active.load(Ordering::Acquire) == 0
    }

    /// Counts a request, or returns the response that rejects it.
    pub(crate) fn admit(&self, parts: &Parts) -> Result<ActiveRequest<'_>, Box<Response<Body>>> {
        // A request is counted before the check, so that no request is missed by a drain that starts now.
        self.active.fetch_add(1, Ordering::AcqRel);
        let active = ActiveRequest(self);
        if self.rejects.load(Ordering::Acquire) && !is_exempt(parts) {
            return Err(Box::new(rejection()));
        }
        Ok(active)
    }
}

fn is_exempt(parts: &Parts) -> bool {
    let user_agent = parts.headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    user_agent.starts_with(EXEMPT_USER_AGENT) || EXEMPT_PATHS.iter().any(|path| parts.uri.path().starts_with(path))
}

fn rejection() -> Response<Body> {
    let mut response = respond::text(StatusCode::TOO_MANY_REQUESTS, MESSAGE.to_owned());
    let headers = response.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
    // Over HTTP/2, the connection ends by GOAWAY instead.
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response.extensions_mut().insert(GoAway);
    response
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(path: &str, user_agent: &str) -> Parts {
        Request::get(path).header(USER_AGENT, user_agent).body(()).unwrap().into_parts().0
    }

    #[test]
    fn stopping_server_rejects_new_requests_except_health_probes() {
        let drain = RequestDrain::default();
        let Ok(running) = drain.admit(&parts("/api/v1/pods", "kubectl")) else { panic!("a running server admits") };
        drain.start();
        assert!(!drain.is_drained(), "one request is still running");
        for (path, user_agent, admitted) in [
            ("/api/v1/pods", "kubectl", false),
            ("/healthz", "kubectl", false),
            ("/readyz?verbose", "probe", true),
            ("/livez/ping", "probe", true),
            ("/api/v1/pods", "kube-apiserver/v1.36.0", true),
            ("/apis/example.com/v1/reviews", "kube-apiserver/listwatch-0.1.0", true),
            ("/apis/example.com/v1/reviews", "kube-apiserver-admission", false),
        ] {
            assert_eq!(drain.admit(&parts(path, user_agent)).is_ok(), admitted, "{path} {user_agent}");
        }
        let rejected = drain.admit(&parts("/api", "")).err().expect("a stopping server rejects");
        assert_eq!(rejected.status(), 429);
        assert_eq!(rejected.headers()[RETRY_AFTER], "5");
        assert_eq!(rejected.headers()[CONNECTION], "close");
        drop(running);
        assert!(drain.is_drained());
    }
}
