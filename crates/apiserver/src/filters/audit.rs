//! Assigns an audit id to each request, and records the requests that the policy selects (`filters/audit_init.go`,
//! `filters/audit.go`, `filters/authn_audit.go`).
//!
//! ```text
//!  authenticated ─▶ RequestReceived ─▶ handlers ─┬▶ ResponseComplete
//!                                                └▶ ResponseStarted ─▶ … ─▶ ResponseComplete   long-running requests
//!  not authenticated ─▶ ResponseStarted
//!  panic ─▶ Panic
//! ```
//!
//! The response of a long-running request holds the record until it has been sent. Other requests are complete when
//! their response is ready. Without an audit log, the server only assigns the id.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use http::header::{AUTHORIZATION, HeaderName, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response};
use listwatch_access::PeerCertificates;
use listwatch_audit::{Level, ObjectReference, Record, RequestFacts, RequestSettings, Stage, source_ips};
use listwatch_meta::{Status, UserInfo};
use listwatch_wire::query::Query;

use super::rejection::Rejection;
use crate::audit::{AuditedRequest, Auditor};
use crate::request::client_address::client_address;
use crate::request::info::RequestInfo;
use crate::response::body::Body;

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Returns the audit id from the request headers, or a new one.
pub(crate) fn id(headers: &HeaderMap) -> HeaderValue {
    headers
        .get(&AUDIT_ID)
        .filter(|value| !value.is_empty())
        .cloned()
        .unwrap_or_else(|| HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).expect("a UUID is plain ASCII"))
}

/// Adds the audit id to a response.
pub(crate) fn add(headers: &mut HeaderMap, id: HeaderValue) {
    headers.insert(AUDIT_ID, id);
}

/// The annotations of authenticators.
type Annotations = Vec<(&'static str, String)>;

/// The audit state of one request. Empty until the request is authenticated, and for a request that the policy does not
/// select.
pub(crate) struct RequestAudit<'a> {
    auditor: Option<&'a Arc<Auditor>>,
    audit_id: &'a HeaderValue,
    received: Option<SystemTime>,
    audited: OnceLock<(Arc<AuditedRequest>, bool)>,
}

impl<'a> RequestAudit<'a> {
    /// Creates the value for a request that has arrived now.
    pub(crate) fn new(auditor: Option<&'a Arc<Auditor>>, audit_id: &'a HeaderValue) -> Self {
        RequestAudit { auditor, audit_id, received: auditor.map(|_| SystemTime::now()), audited: OnceLock::new() }
    }

    /// Returns the record, if the policy selects the request.
    pub(crate) fn audited(&self) -> Option<&Arc<AuditedRequest>> {
        self.audited.get().map(|(audited, _)| audited)
    }

    /// Records that a request of this user arrived.
    ///
    /// # Errors
    /// 500 if a strict backend cannot write the event.
    pub(crate) async fn begin(
        &self,
        parts: &Parts,
        info: &RequestInfo<'_>,
        user: &Arc<UserInfo>,
        annotations: Annotations,
    ) -> Result<(), Rejection> {
        let Some(auditor) = self.auditor else { return Ok(()) };
        let Some(record) = self.start(auditor, parts, info, user, annotations) else { return Ok(()) };
        let (audited, _) =
            self.audited.get_or_init(|| (AuditedRequest::new(Arc::clone(auditor), record), info.long_running));
        if audited.record(Stage::RequestReceived).await {
            return Ok(());
        }
        auditor.counters().rejected.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        audited.abandon();
        Err(Rejection::internal_error(parts, "failed to store audit event"))
    }

    /// Records a request whose credential is missing or not valid.
    pub(crate) async fn authentication_failed(
        &self,
        parts: &Parts,
        info: &RequestInfo<'_>,
        query: &Query<'_>,
        status: &Status,
        annotations: Annotations,
    ) {
        let Some(auditor) = self.auditor else { return };
        let Some(mut record) = self.start(auditor, parts, info, &Arc::default(), annotations) else { return };
        record.set_status(status);
        record.set_message(attempted(parts, query));
        AuditedRequest::new(Arc::clone(auditor), record).complete(Stage::ResponseStarted).await;
    }

    fn start(
        &self,
        auditor: &Arc<Auditor>,
        parts: &Parts,
        info: &RequestInfo<'_>,
        user: &Arc<UserInfo>,
        annotations: Annotations,
    ) -> Option<Record> {
        let attributes = info.attributes(user);
        let settings: RequestSettings = auditor.policy.settings(&attributes);
        auditor.counters().count_level(settings.level);
        if settings.level == Level::None {
            return None;
        }
        let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let object_ref = attributes.is_resource_request.then(|| ObjectReference {
            resource: attributes.resource.to_owned(),
            namespace: attributes.namespace.to_owned(),
            name: attributes.name.to_owned(),
            api_group: attributes.api_group.to_owned(),
            api_version: attributes.api_version.to_owned(),
            subresource: attributes.subresource.to_owned(),
            ..ObjectReference::default()
        });
        let facts = RequestFacts {
            audit_id: lossy(self.audit_id),
            request_uri: parts.uri.path_and_query().map_or_else(String::new, ToString::to_string),
            verb: attributes.verb.to_owned(),
            user: Arc::clone(user),
            source_ips: source_ips(text("x-forwarded-for"), text("x-real-ip"), client_address(parts)),
            user_agent: parts.headers.get(USER_AGENT).map(lossy).unwrap_or_default(),
            object_ref,
            received: self.received.unwrap_or_else(SystemTime::now),
        };
        let mut record = Record::new(settings, facts);
        for (key, value) in annotations {
            record.annotate(key, value);
        }
        Some(record)
    }

    /// Records the response. The body of a long-running response keeps the record.
    pub(crate) async fn respond(&self, response: &mut Response<Body>) {
        let Some((audited, is_long_running)) = self.audited.get() else { return };
        let code = response.status().as_u16();
        audited.update(|record| record.set_code(code));
        if *is_long_running {
            audited.record(Stage::ResponseStarted).await;
            response.body_mut().hold_audit(Arc::clone(audited));
        } else {
            audited.complete(Stage::ResponseComplete).await;
        }
    }

    /// Records a panic of a handler.
    pub(crate) async fn panicked(&self, panic: &str) {
        let Some(audited) = self.audited() else { return };
        audited.update(|record| record.set_panic(panic));
        audited.complete(Stage::Panic).await;
    }
}

fn lossy(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

/// Returns the types of credentials in a request, without their values (`getAuthMethods`).
fn attempted(parts: &Parts, query: &Query<'_>) -> String {
    // A malformed credential is an attempt, too.
    let authorization = parts.headers.get(AUTHORIZATION).map(lossy).unwrap_or_default();
    let scheme = authorization.trim().split_once(' ').map(|(scheme, _)| scheme).unwrap_or_default();
    let has_certificate = parts.extensions.get::<Arc<PeerCertificates>>().is_some();
    let methods: Vec<&str> = [
        (scheme.eq_ignore_ascii_case("basic"), "basic"),
        (scheme.eq_ignore_ascii_case("bearer"), "bearer"),
        (query.get("access_token").is_some_and(|token| !token.trim().is_empty()), "access_token"),
        (has_certificate, "x509"),
    ]
    .into_iter()
    .filter_map(|(is_present, name)| is_present.then_some(name))
    .collect();
    match methods.is_empty() {
        true => "Authentication failed, no credentials provided".to_owned(),
        false => format!("Authentication failed, attempted: {}", methods.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_id_is_taken_from_the_client_or_generated() {
        let mut request = HeaderMap::new();
        let (one, other) = (id(&request), id(&request));
        assert!(one.len() == 36 && one != other, "{one:?} {other:?}");
        request.insert(AUDIT_ID, HeaderValue::from_static(""));
        assert_eq!(id(&request).len(), 36, "an empty id is replaced");
        request.insert(AUDIT_ID, HeaderValue::from_static("mine"));
        let mut response = HeaderMap::new();
        add(&mut response, id(&request));
        assert_eq!(response["audit-id"], "mine");
    }

    #[test]
    fn audit_event_names_attempted_credential_types_without_their_values() {
        for (headers, query, expected) in [
            (&[][..], "", "Authentication failed, no credentials provided"),
            (&[("authorization", "Bearer s\u{f6}cret")], "", "Authentication failed, attempted: bearer"),
            (&[("authorization", "Bearer s3cret")], "", "Authentication failed, attempted: bearer"),
            (
                &[("authorization", "basic s3cret")],
                "access_token=a",
                "Authentication failed, attempted: basic, access_token",
            ),
            (&[("authorization", "s3cret")], "", "Authentication failed, no credentials provided"),
        ] {
            let mut request = http::Request::builder();
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(attempted(&parts, &Query::parse(query)), expected, "{headers:?} {query}");
        }
    }
}
