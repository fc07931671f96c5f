//! Authorization: decides whether a user may make a request (`filters/authorization.go`).

use std::sync::Arc;

use http::request::Parts;
use listwatch_access::{AuthorizerChain, forbidden};
use listwatch_meta::UserInfo;

use super::rejection::Rejection;
use crate::audit::AuditedRequest;
use crate::request::info::RequestInfo;

/// Calls the authorizers. Records the decision in the audit event, if there is one.
///
/// # Errors
/// 403 unless an authorizer allows the request; 500 if an authorizer failed and no other authorizer allows the request.
pub(crate) async fn authorize(
    authorizers: &AuthorizerChain,
    info: &RequestInfo<'_>,
    user: &UserInfo,
    parts: &Parts,
    audited: Option<&Arc<AuditedRequest>>,
) -> Result<(), Rejection> {
    let attributes = info.attributes(user);
    let answer = authorizers.authorize(&attributes).await;
    let is_failed = !answer.is_allowed() && !answer.error.is_empty();
    if let Some(audited) = audited {
        if !is_failed {
            let decision = if answer.is_allowed() { "allow" } else { "forbid" };
            audited.annotate("authorization.k8s.io/decision", decision);
        }
        audited.annotate("authorization.k8s.io/reason", if is_failed { "internal error" } else { &*answer.reason });
    }
    match (answer.is_allowed(), &*answer.error) {
        (true, _) => Ok(()),
        (false, "") => Err(forbidden(&attributes, &answer.reason).into()),
        (false, error) => Err(Rejection::internal_error(parts, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use http::Method;
    use listwatch_access::{Attributes, Authorization, Authorizer, MaybeFuture};
    use listwatch_audit::{EventForm, Policy, Record, RequestFacts, Stage};
    use listwatch_json::{Value, json};
    use listwatch_wire::query::Query;

    use super::*;
    use crate::audit::{AuditOptions, Auditor};

    /// Allows reads, denies deletes, and has no opinion on other requests.
    struct ReadOnly;

    impl Authorizer for ReadOnly {
        fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
            MaybeFuture::ready(match attributes.verb {
                "delete" => Authorization::deny("read only"),
                "patch" => Authorization::no_opinion().with_error("the webhook is down"),
                _ if attributes.is_read_only() => Authorization::allow(""),
                _ => Authorization::no_opinion(),
            })
        }
    }

    #[tokio::test]
    async fn request_returns_500_if_an_authorizer_fails_and_none_allows_it() {
        let bob = UserInfo { username: "bob".to_owned(), ..UserInfo::default() };
        let authorizers = AuthorizerChain::new().with(ReadOnly);
        let info = RequestInfo::new(&Method::PATCH, "/api/v1/nodes/n", &Query::default());
        let (parts, ()) = http::Request::builder().uri("/api/v1/nodes/n").body(()).unwrap().into_parts();
        let failed = authorize(&authorizers, &info, &bob, &parts, None).await;
        let Err(Rejection::InternalError(text)) = failed else { panic!("{failed:?}") };
        assert_eq!(text, "Internal Server Error: \"/api/v1/nodes/n\": the webhook is down");
        let either = authorizers.with(listwatch_access::AlwaysAllow);
        assert!(authorize(&either, &info, &bob, &parts, None).await.is_ok(), "another authorizer allows it");
    }

    /// The annotations of the audit event of a request on the node `n` with this method.
    async fn annotations(method: Method) -> Value {
        let bob = Arc::new(UserInfo { username: "bob".to_owned(), ..UserInfo::default() });
        let policy = Policy::parse("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]").unwrap();
        let info = RequestInfo::new(&method, "/api/v1/nodes/n", &Query::default());
        let facts = RequestFacts {
            audit_id: String::new(),
            request_uri: String::new(),
            verb: String::new(),
            user: Arc::clone(&bob),
            source_ips: Vec::new(),
            user_agent: String::new(),
            object_ref: None,
            received: SystemTime::UNIX_EPOCH,
        };
        let record = Record::new(policy.settings(&info.attributes(&bob)), facts);
        let auditor = Auditor::start(AuditOptions { policy, backends: Vec::new() }).unwrap();
        let audited = AuditedRequest::new(auditor, record);
        let (parts, ()) = http::Request::builder().uri("/api/v1/nodes/n").body(()).unwrap().into_parts();
        let _ = authorize(&AuthorizerChain::new().with(ReadOnly), &info, &bob, &parts, Some(&audited)).await;
        let mut event = None;
        audited.update(|record| event = record.event(Stage::ResponseComplete, SystemTime::UNIX_EPOCH));
        let line = event.unwrap().encode(EventForm::Object, None).unwrap();
        serde_json::from_slice::<Value>(&line).unwrap()["annotations"].clone()
    }

    #[tokio::test]
    async fn failed_authorizer_is_audited_without_a_decision() {
        let decided = |decision: &str, reason: &str| json!({"authorization.k8s.io/decision": decision, "authorization.k8s.io/reason": reason});
        assert_eq!(annotations(Method::GET).await, decided("allow", ""));
        assert_eq!(annotations(Method::DELETE).await, decided("forbid", "read only"));
        assert_eq!(annotations(Method::PATCH).await, json!({"authorization.k8s.io/reason": "internal error"}));
    }

    #[tokio::test]
    async fn forbidden_request_returns_403_with_upstreams_text() {
        let bob = UserInfo { username: "bob".to_owned(), ..UserInfo::default() };
        let authorizers = AuthorizerChain::new().with(ReadOnly);
        for (line, expected) in [
            ("GET /api/v1/pods", None),
            ("GET /version", None),
            (
                "DELETE /apis/apps/v1/namespaces/a/deployments/d",
                Some(
                    "deployments.apps \"d\" is forbidden: User \"bob\" cannot delete resource \"deployments\" in API group \"apps\" in the namespace \"a\": read only",
                ),
            ),
            (
                "PUT /api/v1/nodes/n/status",
                Some(
                    "nodes \"n\" is forbidden: User \"bob\" cannot update resource \"nodes/status\" in API group \"\" at the cluster scope",
                ),
            ),
            ("POST /metrics", Some("forbidden: User \"bob\" cannot post path \"/metrics\"")),
        ] {
            let (method, path) = line.split_once(' ').unwrap();
            let method: Method = method.parse().unwrap();
            let info = RequestInfo::new(&method, path, &Query::default());
            let (parts, ()) = http::Request::builder().uri(path).body(()).unwrap().into_parts();
            let found = match authorize(&authorizers, &info, &bob, &parts, None).await {
                Ok(()) => None,
                Err(Rejection::Status(status)) => Some((status.code, status.message)),
                Err(other) => panic!("{line}: {other:?}"),
            };
            assert_eq!(found, expected.map(|text| (403, text.to_owned())), "{line}");
        }
    }
}
