//! Authenticators of the administrator: by one token ([`AdminToken`]), or for every request
//! ([`EveryoneIsAdmin`]).

use std::sync::Arc;

use listwatch_meta::UserInfo;
use subtle::ConstantTimeEq as _;

use crate::authenticator::{Authentication, AuthenticationRequest, Authenticator};
use crate::maybe_future::MaybeFuture;

/// Authenticates the holder of one token as the administrator.
pub struct AdminToken {
    token: String,
    admin: Arc<UserInfo>,
}

impl AdminToken {
    /// Creates an authenticator for this token.
    pub fn new(token: impl Into<String>) -> Self {
        AdminToken { token: token.into(), admin: Arc::new(UserInfo::admin().clone()) }
    }
}

impl std::fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token must not reach a log.
        f.write_str("AdminToken")
    }
}

impl Authenticator for AdminToken {
    fn authenticate<'a>(&'a self, request: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication> {
        // The duration of the comparison depends only on the length.
        let matches = |token: &str| token.as_bytes().ct_eq(self.token.as_bytes()).into();
        MaybeFuture::ready(match request.token {
            Some(token) if matches(token) => administrator(&self.admin),
            _ => Authentication::NotRecognized,
        })
    }
}

/// Authenticates every request as the administrator. For servers inside a test process.
#[derive(Debug)]
pub struct EveryoneIsAdmin(Arc<UserInfo>);

impl EveryoneIsAdmin {
    /// Creates an authenticator that accepts every request.
    pub fn new() -> Self {
        EveryoneIsAdmin(Arc::new(UserInfo::admin().clone()))
    }
}

impl Default for EveryoneIsAdmin {
    fn default() -> Self {
        EveryoneIsAdmin::new()
    }
}

impl Authenticator for EveryoneIsAdmin {
    fn authenticate<'a>(&'a self, _: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication> {
        MaybeFuture::ready(administrator(&self.0))
    }

    fn accepts_without_credential(&self) -> bool {
        true
    }
}

/// Authenticates the administrator. The credential has no audiences, so the chain gives it those of this server.
fn administrator(admin: &Arc<UserInfo>) -> Authentication {
    Authentication::Authenticated { user: Arc::clone(admin), audiences: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authenticator::AuthenticatorChain;

    #[tokio::test]
    async fn admin_token_authenticates_only_its_exact_token() {
        let authenticator = AdminToken::new("s3cret");
        for (token, expected) in [
            (Some("s3cret"), true),
            (Some("s3cre"), false),
            (Some("s3crett"), false),
            (Some("S3cret"), false),
            (Some(""), false),
            (None, false),
        ] {
            let answer = authenticator.authenticate(&AuthenticationRequest::of_token(token, 0)).await;
            assert_eq!(matches!(answer, Authentication::Authenticated { .. }), expected, "{token:?}");
        }
        assert_eq!(format!("{authenticator:?}"), "AdminToken", "the token is not printed");
    }

    #[tokio::test]
    async fn everyone_is_admin_authenticates_request_without_token() {
        let answer = EveryoneIsAdmin::new().authenticate(&AuthenticationRequest::of_token(None, 0)).await;
        assert_eq!(answer, Authentication::of_user(UserInfo::admin().clone()));
    }

    #[tokio::test]
    async fn admin_token_is_valid_for_the_audiences_of_the_server_and_no_others() {
        let chain = AuthenticatorChain::new().with(AdminToken::new("s3cret"));
        let own = ["api".to_owned()];
        for (requested, expected) in [("api", true), ("vault", false)] {
            let requested = [requested.to_owned()];
            let request = AuthenticationRequest::of_token(Some("s3cret"), 0).with_audiences(&requested);
            let answer = chain.authenticate(&request.with_api_audiences(&own)).await;
            assert_eq!(matches!(answer, Authentication::Authenticated { .. }), expected, "{requested:?}");
        }
    }
}
