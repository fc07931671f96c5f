//! Impersonation: finds the user as whom a request acts (`filters/impersonation`).

use std::sync::Arc;

use http::HeaderMap;
use listwatch_access::{AuthorizerChain, Impersonation};
use listwatch_meta::{Status, UserInfo};

use super::authorization::forbidden;

/// Returns the impersonated user, or the sender if the request does not impersonate. The sender needs the verb
/// `impersonate` for each part of the impersonated user.
///
/// # Errors
/// 400 for headers without a user name, 403 for a sender that may not impersonate the user.
pub(crate) async fn impersonate(
    authorizers: &AuthorizerChain,
    headers: &HeaderMap,
    sender: Arc<UserInfo>,
) -> Result<Arc<UserInfo>, Status> {
    let requested = Impersonation::from_headers(headers).map_err(|error| Status::bad_request(error.to_string()))?;
    let Some(impersonation) = requested else { return Ok(sender) };
    for attributes in impersonation.attributes(&sender) {
        let answer = authorizers.authorize(&attributes).await;
        if !answer.is_allowed() {
            return Err(forbidden(&attributes, &answer.reason));
        }
    }
    Ok(Arc::new(impersonation.into_user()))
}

#[cfg(test)]
mod tests {
    use listwatch_access::KnownUserAuthorizer;

    use super::*;

    async fn acts_as(sender: &str, headers: &[(&'static str, &str)]) -> Result<String, String> {
        let authorizers = AuthorizerChain::new().with(KnownUserAuthorizer);
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let sender = Arc::new(UserInfo { username: sender.to_owned(), ..UserInfo::default() });
        let user = impersonate(&authorizers, &map, sender).await;
        user.map(|user| user.username.clone()).map_err(|status| format!("{} {}", status.code, status.message))
    }

    #[tokio::test]
    async fn impersonation_needs_permission_and_a_user_name() {
        let bob = [("impersonate-user", "bob")];
        assert_eq!(acts_as("admin", &[]).await, Ok("admin".to_owned()));
        assert_eq!(acts_as("admin", &bob).await, Ok("bob".to_owned()));
        assert_eq!(acts_as("system:serviceaccount:a:b", &bob).await, Ok("bob".to_owned()));
        let text = "403 users \"admin\" is forbidden: User \"alice\" cannot impersonate resource \"users\" in API \
                    group \"\" at the cluster scope";
        assert_eq!(acts_as("alice", &[("impersonate-user", "admin")]).await, Err(text.to_owned()));
        let rejected = acts_as("admin", &[("impersonate-group", "dev")]).await;
        assert!(rejected.is_err_and(|text| text.starts_with("400 requested &user.DefaultInfo")));
    }
}
