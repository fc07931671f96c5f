//! Impersonation: finds the effective user of a request (`filters/impersonation`).

use std::sync::Arc;

use http::HeaderMap;
use listwatch_access::{AuthorizerChain, Impersonation, forbidden};
use listwatch_meta::{Status, UserInfo};

use crate::audit::AuditedRequest;
use crate::request::info::RequestInfo;

/// Returns the impersonated user, or the sender if the request does not impersonate. The sender needs the permissions
/// of one impersonation mode. Records both users and the mode in the audit event, if there is one.
///
/// # Errors
/// 400 for headers without a user name, 403 for a sender that may not impersonate the user.
pub(crate) async fn impersonate(
    authorizers: &AuthorizerChain,
    constrained: bool,
    info: &RequestInfo<'_>,
    headers: &HeaderMap,
    sender: Arc<UserInfo>,
    audited: Option<&Arc<AuditedRequest>>,
) -> Result<Arc<UserInfo>, Status> {
    let requested = Impersonation::from_headers(headers).map_err(|error| Status::bad_request(error.to_string()))?;
    let Some(impersonation) = requested else { return Ok(sender) };
    let attributes = info.attributes(&sender);
    // The future is boxed, so that that of requests without impersonation stays small.
    let allowed = Box::pin(impersonation.authorize(authorizers, &attributes, constrained, forbidden)).await?;
    let user = Arc::new(allowed.user);
    if let Some(audited) = audited {
        audited.set_impersonated_user(&user, allowed.constraint);
    }
    Ok(user)
}

#[cfg(test)]
mod tests {
    use http::Method;
    use listwatch_access::KnownUserAuthorizer;
    use listwatch_wire::query::Query;

    use super::*;

    async fn acts_as(sender: &str, headers: &[(&'static str, &str)]) -> Result<String, String> {
        let authorizers = AuthorizerChain::new().with(KnownUserAuthorizer);
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let sender = Arc::new(UserInfo { username: sender.to_owned(), ..UserInfo::default() });
        let info = RequestInfo::new(&Method::GET, "/api/v1/nodes/n", &Query::default());
        let user = impersonate(&authorizers, true, &info, &map, sender, None).await;
        user.map(|user| user.username.clone()).map_err(|status| format!("{} {}", status.code, status.message))
    }

    #[tokio::test]
    async fn impersonation_needs_permission_and_a_user_name() {
        let bob = [("impersonate-user", "bob")];
        assert_eq!(acts_as("admin", &[]).await, Ok("admin".to_owned()));
        assert_eq!(acts_as("admin", &bob).await, Ok("bob".to_owned()));
        assert_eq!(acts_as("system:serviceaccount:a:b", &bob).await, Ok("bob".to_owned()));
        let text = "403 nodes \"n\" is forbidden: User \"alice\" cannot impersonate-on:user-info:get resource \"nodes\" in \
                    API group \"\" at the cluster scope";
        assert_eq!(acts_as("alice", &[("impersonate-user", "admin")]).await, Err(text.to_owned()));
        let rejected = acts_as("admin", &[("impersonate-group", "dev")]).await;
        assert!(rejected.is_err_and(|text| text.starts_with("400 requested &user.DefaultInfo")));
    }
}
