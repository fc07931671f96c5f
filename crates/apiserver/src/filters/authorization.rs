//! Authorization: decides whether a user may make a request (`filters/authorization.go`).

use std::sync::Arc;

use http::request::Parts;
use listwatch_access::{Attributes, AuthorizerChain};
use listwatch_admission::{AdmissionFuture, AdmissionRequest, Operation, ValidatingAdmission};
use listwatch_json::Map;
use listwatch_meta::go::quote;
use listwatch_meta::status::reason;
use listwatch_meta::{GroupResource, Status, UserInfo};

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
    if let Some(audited) = audited {
        let decision = if answer.is_allowed() { "allow" } else { "forbid" };
        audited.annotate("authorization.k8s.io/decision", decision);
        let is_failed = !answer.is_allowed() && !answer.error.is_empty();
        audited.annotate("authorization.k8s.io/reason", if is_failed { "internal error" } else { &*answer.reason });
    }
    match (answer.is_allowed(), &*answer.error) {
        (true, _) => Ok(()),
        (false, "") => Err(forbidden(&attributes, &answer.reason).into()),
        (false, error) => Err(Rejection::internal_error(parts, error)),
    }
}

/// Returns the 403 with the text of kube-apiserver (`responsewriters/errors.go`).
pub(crate) fn forbidden(attributes: &Attributes<'_>, why: &str) -> Status {
    let Attributes { verb, api_group: group, resource, subresource, namespace, name, path, .. } = attributes;
    let user = quote(&attributes.user.username);
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    if !attributes.is_resource_request {
        let text = format!("forbidden: User {user} cannot {verb} path {}{why}", quote(path));
        return Status::failure(403, reason::FORBIDDEN, text).with_details(Default::default());
    }
    let what = match *subresource {
        "" => quote(resource),
        subresource => quote(&format!("{resource}/{subresource}")),
    };
    let place = match *namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {}", quote(namespace)),
    };
    let text = format!("User {user} cannot {verb} resource {what} in API group {} {place}{why}", quote(group));
    Status::forbidden(GroupResource { group, resource }, name, text)
}

/// Authorizes the verb `create` before an update, patch or apply creates an object (`withAuthorization` in
/// `endpoints/handlers/update.go`). For a POST, the decision is the same, because the filter has already authorized
/// this verb.
pub(crate) struct CreateAuthorization(pub(crate) AuthorizerChain);

impl ValidatingAdmission for CreateAuthorization {
    fn name(&self) -> &str {
        "CreateAuthorization"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        // The server's own writes need no permission. A client with the same name has a copy of this value.
        let is_own = std::ptr::eq(request.user, UserInfo::admin());
        request.operation == Operation::Create && request.subresource.is_none() && !is_own
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, _object: &'a Map) -> AdmissionFuture<'a, ()> {
        Box::pin(async move {
            let is_namespace = request.resource == "namespaces" && request.group.is_empty();
            let namespace = if is_namespace { request.name } else { request.namespace.unwrap_or_default() };
            let attributes = Attributes {
                api_version: request.version,
                namespace,
                name: request.name,
                ..Attributes::resource(request.user, "create", request.group, request.resource)
            };
            let answer = self.0.authorize(&attributes).await;
            if answer.is_allowed() { Ok(()) } else { Err(forbidden(&attributes, &answer.reason)) }
        })
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use listwatch_access::{Authorization, Authorizer, MaybeFuture};
    use listwatch_wire::query::Query;

    use super::*;

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
