//! Authorization: decides whether a user may make a request (`filters/authorization.go`).

use listwatch_access::{Attributes, AuthorizerChain};
use listwatch_meta::go::quote;
use listwatch_meta::status::reason;
use listwatch_meta::{GroupResource, Status, UserInfo};
use listwatch_write::admission::{AdmissionFuture, AdmissionRequest, Operation, ValidatingAdmission};
use serde_json::{Map, Value};

use crate::request::info::RequestInfo;

/// Calls the authorizers.
///
/// # Errors
/// 403 unless an authorizer allows the request.
pub(crate) async fn authorize(
    authorizers: &AuthorizerChain,
    info: &RequestInfo<'_>,
    user: &UserInfo,
) -> Result<(), Status> {
    let attributes = info.attributes(user);
    let answer = authorizers.authorize(&attributes).await;
    if answer.is_allowed() { Ok(()) } else { Err(forbidden(&attributes, &answer.reason)) }
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

/// Asks for the verb `create` before an update, patch or apply creates an object (`withAuthorization` in
/// `endpoints/handlers/update.go`). For a POST, which was allowed with this verb and without a name, the answer is the
/// same.
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

    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'_>,
        _object: &'a Map<String, Value>,
    ) -> AdmissionFuture<'a, ()> {
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
                _ if attributes.is_read_only() => Authorization::allow(""),
                _ => Authorization::no_opinion(),
            })
        }
    }

    #[tokio::test]
    async fn request_without_permission_is_forbidden_with_upstreams_text() {
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
            let answer = authorize(&authorizers, &info, &bob).await;
            let found = answer.err().map(|status| (status.code, status.message));
            assert_eq!(found, expected.map(|text| (403, text.to_owned())), "{line}");
        }
    }
}
