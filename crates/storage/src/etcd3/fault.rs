//! Classifies etcd's errors: converts a gRPC status to a [`Failure`].
//!
//! etcd's error texts are part of its API (`api/v3rpc/rpctypes`): several errors share one gRPC
//! code and differ only in their text, so both are examined. A failure also states whether the
//! request certainly did not take effect, in which case even a write may be retried. The failure
//! also states whether another endpoint may succeed.

use std::time::Duration;

use listwatch_grpc::{Code, Status};

use super::history::Replaced;
use crate::error::StoreFault;

/// The cause of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The requested revision is compacted.
    Compacted,
    /// The requested revision does not exist yet.
    Future,
    /// The lease of a put has expired or was revoked; nothing was written.
    LeaseGone,
    /// etcd's history was replaced, with the evidence. The next request is served from the new
    /// history.
    Replaced(String),
    /// This member contradicts the others: it is behind them, or belongs to another cluster.
    Astray(String),
    /// This member contradicts what was known, and too few of the others answer to decide.
    Unconfirmed(String),
    /// The store failed.
    Fault(StoreFault),
}

/// One failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The cause.
    pub(super) cause: Cause,
    /// Whether the request certainly never reached a server. Then even a write may be repeated.
    pub(super) unsent: bool,
    /// Whether the problem may be limited to one endpoint. Then a read may succeed at another.
    pub(super) elsewhere: bool,
    /// Whether the endpoint did not answer the request in time, although it was connected.
    pub(super) timed_out: bool,
}

impl Failure {
    /// The failure of an endpoint that did not answer in time. The request may have taken effect.
    pub(super) fn timeout(endpoint: &str, limit: Duration) -> Self {
        Failure {
            cause: Cause::Fault(StoreFault::Unavailable(format!(
                "etcd at {endpoint} did not answer within {}s",
                limit.as_secs_f32()
            ))),
            unsent: false,
            elsewhere: true,
            timed_out: true,
        }
    }

    /// The failure of an endpoint that did not complete a new connection in time.
    pub(super) fn dial_timeout(endpoint: &str, limit: Duration) -> Self {
        Failure { timed_out: false, ..Failure::timeout(endpoint, limit) }
    }

    /// The failure of a response that violates etcd's API.
    pub(super) fn invalid_answer(what: &str) -> Self {
        Failure {
            cause: Cause::Fault(StoreFault::Unavailable(format!("etcd's answer makes no sense: {what}"))),
            unsent: false,
            elsewhere: false,
            timed_out: false,
        }
    }

    /// The failure of a replaced history.
    pub(super) fn replaced(how: &Replaced) -> Self {
        Failure { cause: Cause::Replaced(how.to_string()), unsent: false, elsewhere: false, timed_out: false }
    }

    /// The failure of a member whose history differs from that of the others.
    pub(super) fn astray(endpoint: &str, how: &Replaced) -> Self {
        let reason = format!("etcd at {endpoint} is not one with the other members: {how}");
        Failure { cause: Cause::Astray(reason), unsent: false, elsewhere: true, timed_out: false }
    }

    /// The failure of a member whose history differs from the known one, while too few members
    /// confirm either.
    pub(super) fn unconfirmed(endpoint: &str, how: &Replaced, confirmed: usize, needed: usize) -> Self {
        let reason = format!(
            "etcd at {endpoint} contradicts what was known: {how}; {confirmed} of the {needed} members that must \
             confirm this do so"
        );
        Failure { cause: Cause::Unconfirmed(reason), unsent: false, elsewhere: true, timed_out: false }
    }

    /// Converts a gRPC status.
    pub(super) fn from_status(endpoint: &str, status: &Status) -> Self {
        classify(endpoint, status.code, &status.message, status.unsent)
    }

    /// The fault for callers to whom neither compaction nor a future revision can apply.
    pub(super) fn into_fault(self) -> StoreFault {
        match self.cause {
            Cause::Fault(fault) => fault,
            Cause::Compacted => StoreFault::Unavailable("etcd says that the revision is compacted".into()),
            Cause::Future => StoreFault::Unavailable("etcd says that the revision is ahead of it".into()),
            Cause::LeaseGone => StoreFault::Unavailable("the lease ran out before the write".into()),
            Cause::Replaced(how) => StoreFault::Corrupt(how),
            Cause::Astray(reason) | Cause::Unconfirmed(reason) => StoreFault::Unavailable(reason),
        }
    }
}

/// Classifies an error without gRPC types, so that a table can test it.
pub(super) fn classify(endpoint: &str, code: Code, words: &str, unsent: bool) -> Failure {
    let text = || {
        if words.is_empty() { format!("etcd at {endpoint}: {code}") } else { format!("etcd at {endpoint}: {words}") }
    };
    let has = |part: &str| words.contains(part);
    let (cause, elsewhere) = match code {
        _ if has("required revision has been compacted") => (Cause::Compacted, false),
        _ if has("required revision is a future revision") => (Cause::Future, false),
        _ if has("requested lease not found") => (Cause::LeaseGone, false),
        _ if has("database space exceeded") || has("no space") => (Cause::Fault(StoreFault::NoSpace(text())), false),
        _ if has("request is too large") || has("larger than max") => {
            (Cause::Fault(StoreFault::TooLarge(text())), false)
        }
        _ if has("corrupt cluster") => (Cause::Fault(StoreFault::Corrupt(text())), true),
        Code::DataLoss => (Cause::Fault(StoreFault::Corrupt(text())), true),
        _ if is_denied(code, words) => (Cause::Fault(StoreFault::Denied(text())), false),
        _ => (Cause::Fault(StoreFault::Unavailable(text())), true),
    };
    Failure { cause, unsent, elsewhere, timed_out: code == Code::DeadlineExceeded }
}

/// The texts of errors after which etcd's own clients fetch a new token. A JSON web token is
/// outdated after each change of users or roles; etcd 3.4 has another text for this than 3.5.
const TOKEN_ERRORS: [&str; 4] =
    ["invalid auth token", "user name is empty", "revision of auth store is old", "revision in header is old"];

/// Whether etcd rejects the token of a call, so that a new token may help.
pub(super) fn needs_new_token(code: Code, words: &str) -> bool {
    code == Code::Unauthenticated || TOKEN_ERRORS.iter().any(|part| words.contains(part))
}

/// Whether etcd rejects the credential, by code or by the text of a watch's cancel reason.
pub(super) fn is_denied(code: Code, words: &str) -> bool {
    code == Code::PermissionDenied
        || needs_new_token(code, words)
        || ["permission denied", "authentication failed", "authentication is not enabled"]
            .iter()
            .any(|part| words.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(cause: &Cause) -> &'static str {
        match cause {
            Cause::Compacted => "compacted",
            Cause::Future => "future",
            Cause::LeaseGone => "lease",
            Cause::Replaced(_) => "replaced",
            Cause::Astray(_) => "astray",
            Cause::Unconfirmed(_) => "unconfirmed",
            Cause::Fault(StoreFault::Unavailable(_)) => "unavailable",
            Cause::Fault(StoreFault::NoSpace(_)) => "no space",
            Cause::Fault(StoreFault::TooLarge(_)) => "too large",
            Cause::Fault(StoreFault::Denied(_)) => "denied",
            Cause::Fault(StoreFault::Corrupt(_)) => "corrupt",
            Cause::Fault(StoreFault::Unconvertible(_)) => "unconvertible",
            Cause::Fault(StoreFault::Closed) => "closed",
        }
    }

    #[test]
    fn etcd_errors_are_classified_by_code_and_text() {
        for (code, words, expected, elsewhere) in [
            (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted", "compacted", false),
            (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision", "future", false),
            (Code::NotFound, "etcdserver: requested lease not found", "lease", false),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", "no space", false),
            (Code::InvalidArgument, "etcdserver: request is too large", "too large", false),
            (
                Code::ResourceExhausted,
                "grpc: received message larger than max (4194400 vs. 2097152)",
                "too large",
                false,
            ),
            (Code::ResourceExhausted, "trying to send message larger than max (9 vs. 8)", "too large", false),
            (Code::ResourceExhausted, "etcdserver: too many requests", "unavailable", true),
            (Code::PermissionDenied, "etcdserver: permission denied", "denied", false),
            (Code::Unauthenticated, "etcdserver: invalid auth token", "denied", false),
            (Code::InvalidArgument, "etcdserver: user name is empty", "denied", false),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old", "denied", false),
            (Code::Unknown, "auth: revision in header is old", "denied", false),
            (Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password", "denied", false),
            (Code::FailedPrecondition, "etcdserver: authentication is not enabled", "denied", false),
            (Code::DataLoss, "etcdserver: corrupt cluster", "corrupt", true),
            (Code::Unknown, "etcdserver: corrupt cluster", "corrupt", true),
            (Code::DataLoss, "", "corrupt", true),
            (Code::Unavailable, "etcdserver: no leader", "unavailable", true),
            (Code::Unavailable, "etcdserver: leader changed", "unavailable", true),
            (Code::Unavailable, "etcdserver: request timed out", "unavailable", true),
            (Code::DeadlineExceeded, "", "unavailable", true),
            (Code::Unknown, "h2 protocol error: broken pipe", "unavailable", true),
        ] {
            let failure = classify("http://e:2379", code, words, false);
            assert_eq!((name(&failure.cause), failure.elsewhere), (expected, elsewhere), "{code:?} {words:?}");
        }
    }

    #[test]
    fn etcd_error_without_text_names_its_grpc_code() {
        let failure = classify("http://e:2379", Code::DeadlineExceeded, "", false);
        assert!(failure.into_fault().to_string().ends_with("etcd at http://e:2379: DeadlineExceeded"));
    }
}
