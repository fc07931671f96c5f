//! Errors of lists and watches, classified by remedy.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use listwatch_meta::Status;

/// The cause of an error. Cheap to clone. Two causes are equal if their messages are.
#[derive(Clone)]
pub struct Cause(Arc<dyn StdError + Send + Sync>);

impl Cause {
    /// Wraps this error.
    pub fn new(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Cause(Arc::from(error.into()))
    }

    /// The wrapped error, for a downcast.
    pub fn get(&self) -> &(dyn StdError + 'static) {
        &*self.0
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Cause {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl Eq for Cause {}

/// The reason why a list or a watch failed or ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Problem {
    /// The server rejected the request, with an HTTP status or an ERROR event in the stream.
    Refused {
        /// The server's `Status`.
        status: Box<Status>,
        /// The time until the next request, from the `Retry-After` header or the status.
        retry_after: Option<Duration>,
    },
    /// The connection failed or broke.
    #[non_exhaustive]
    Disconnected {
        /// The network error with its causes in one line.
        why: String,
        /// The network error, if there is one.
        cause: Option<Cause>,
    },
    /// The response is not a valid list or event.
    #[non_exhaustive]
    Malformed {
        /// The problem in one line.
        why: String,
        /// The decoder's error, if there is one.
        cause: Option<Cause>,
    },
    /// Nothing was received for this time.
    Silent {
        /// The length of the wait.
        waited: Duration,
    },
    /// A watch ended within a second without an event.
    ShortWatch,
    /// The WatchList ended or stayed silent without its end marker. The network lost the marker, a
    /// proxy drops it, or the server does not send it.
    NoInitialEventsEnd,
    /// The client's configuration or credentials cannot be used. A retry does not help.
    #[non_exhaustive]
    Misconfigured {
        /// The remedy.
        why: String,
        /// The error of the credential file or plugin, if there is one.
        cause: Option<Cause>,
    },
}

impl Problem {
    /// The server's rejection, with the `Retry-After` of the status.
    pub fn refused(status: Status) -> Self {
        let retry_after = status.retry_after_seconds().map(|seconds| Duration::from_secs(u64::from(seconds)));
        Problem::Refused { status: Box::new(status), retry_after }
    }

    /// A connection failure without an underlying error.
    pub fn disconnected(why: impl Into<String>) -> Self {
        Problem::Disconnected { why: why.into(), cause: None }
    }

    /// A response that is not a valid list or event.
    pub fn malformed(why: impl Into<String>) -> Self {
        Problem::Malformed { why: why.into(), cause: None }
    }

    /// A configuration that the client cannot use.
    pub fn misconfigured(why: impl Into<String>) -> Self {
        Problem::Misconfigured { why: why.into(), cause: None }
    }

    /// Adds the cause, which becomes [`StdError::source`]. Only [`Problem::Disconnected`],
    /// [`Problem::Malformed`] and [`Problem::Misconfigured`] keep it.
    #[must_use]
    pub fn caused_by(mut self, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        if let Problem::Disconnected { cause, .. }
        | Problem::Malformed { cause, .. }
        | Problem::Misconfigured { cause, .. } = &mut self
        {
            *cause = Some(Cause::new(error));
        }
        self
    }

    /// The server's `Status`, if the server sent one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Problem::Refused { status, .. } => Some(status),
            _ => None,
        }
    }

    /// The time after which the server permits the next request.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Problem::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// True if the version or page token has expired, so that a list is necessary. The code 410 is
    /// sufficient, with any reason, in a response or in an event.
    pub fn is_expired(&self) -> bool {
        self.status().is_some_and(|status| status.is_expired() || status.code == 410)
    }

    /// True if the server has not reached the requested version.
    pub fn is_too_large_version(&self) -> bool {
        self.status().is_some_and(Status::is_too_large_resource_version)
    }

    /// True if a retry of the same request cannot help: it is invalid, unauthorized or forbidden, its resource does not
    /// exist, or the configuration cannot be used. A problem that is neither final nor
    /// [temporary](Problem::is_temporary), such as an answer that cannot be read, may end.
    pub fn is_final(&self) -> bool {
        match self {
            Problem::Misconfigured { .. } => true,
            Problem::Refused { status, .. } => matches!(status.code, 400 | 401 | 403 | 404 | 405 | 422),
            _ => false,
        }
    }

    /// True if the server or the network is overloaded or unavailable, so that a retry may succeed.
    pub fn is_temporary(&self) -> bool {
        match self {
            Problem::Refused { status, retry_after } => {
                matches!(status.code, 429 | 502 | 503 | 504) || (status.code >= 500 && retry_after.is_some())
            }
            Problem::Disconnected { .. } | Problem::Silent { .. } => true,
            _ => false,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Refused { status, .. } => write!(f, "the server refused: {status}"),
            Problem::Disconnected { why, .. } => write!(f, "no connection to the server: {why}"),
            Problem::Malformed { why, .. } => write!(f, "the server's answer cannot be read: {why}"),
            Problem::Silent { waited } => write!(f, "the server was silent for {} s", waited.as_secs()),
            Problem::ShortWatch => f.write_str("the watch ended at once without an event"),
            Problem::NoInitialEventsEnd => {
                f.write_str("the initial events of the watch came to no end; listing instead")
            }
            Problem::Misconfigured { why, .. } => f.write_str(why),
        }
    }
}

impl StdError for Problem {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Problem::Refused { status, .. } => Some(&**status),
            Problem::Disconnected { cause, .. }
            | Problem::Malformed { cause, .. }
            | Problem::Misconfigured { cause, .. } => cause.as_ref().map(Cause::get),
            Problem::Silent { .. } | Problem::ShortWatch | Problem::NoInitialEventsEnd => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_returns_its_cause_as_error_source() {
        let io = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "refused");
        let problem = Problem::disconnected("connect: refused").caused_by(io);
        let source = problem.source().and_then(|source| source.downcast_ref::<std::io::Error>());
        assert_eq!(source.map(std::io::Error::kind), Some(std::io::ErrorKind::ConnectionRefused));
        assert_eq!(problem.to_string(), "no connection to the server: connect: refused");
        assert_eq!(problem, problem.clone());
    }

    #[test]
    fn cause_displays_the_wrapped_error_and_exposes_its_source() {
        #[derive(Debug, thiserror::Error)]
        #[error("upper")]
        struct Upper(#[source] std::io::Error);
        let cause = Cause::new(Upper(std::io::Error::other("lower")));
        assert_eq!(cause.to_string(), "upper");
        assert_eq!(cause.source().map(ToString::to_string).as_deref(), Some("lower"));
        assert!(cause.get().is::<Upper>());
    }

    #[test]
    fn problems_with_different_causes_are_not_equal() {
        let problem = |cause: &str| Problem::disconnected("reset").caused_by(cause);
        assert_eq!(problem("a"), problem("a"));
        assert_ne!(problem("a"), problem("b"));
        assert_ne!(problem("a"), Problem::disconnected("reset"));
    }

    #[test]
    fn problems_are_classified_as_expired_too_large_or_temporary() {
        fn check(status: Status, expired: bool, too_large: bool, temporary: bool) {
            let problem = Problem::refused(status);
            let found = (problem.is_expired(), problem.is_too_large_version(), problem.is_temporary());
            assert_eq!(found, (expired, too_large, temporary), "{problem}");
        }
        check(Status::expired_list(), true, false, false);
        check(Status::failure(410, "Gone", "old server"), true, false, false);
        check(Status::failure(410, "SomethingElse", "old server"), true, false, false);
        check(Status::too_large_resource_version(9, 1, 1), false, true, true);
        check(Status::too_many_requests("slow down", 1), false, false, true);
        check(
            Status::server_timeout("list", listwatch_meta::GroupResource { group: "", resource: "pods" }),
            false,
            false,
            true,
        );
        check(Status::internal("x"), false, false, false);
        check(Status::unauthorized(), false, false, false);
    }
}
