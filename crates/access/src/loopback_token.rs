//! [`LoopbackToken`] authenticates the requests of a server to itself (`AuthorizeClientBearerToken` in
//! `apiserver/pkg/server/config.go`).

use std::sync::Arc;

use listwatch_meta::UserInfo;
use listwatch_meta::user::SYSTEM_MASTERS;
use subtle::ConstantTimeEq as _;

use crate::authenticator::{Authentication, AuthenticationRequest, Authenticator};
use crate::maybe_future::MaybeFuture;

/// Authenticates the holder of one token as `system:apiserver`, a member of `system:masters`, and records that the
/// server itself sent the request ([`AuthenticationRecords::is_loopback`](crate::AuthenticationRecords::is_loopback)).
/// Only the server that creates the value may hold the token: it must be random, have at least 128 bits, and be new in
/// each process.
pub struct LoopbackToken {
    token: String,
    user: Arc<UserInfo>,
}

impl LoopbackToken {
    /// Creates an authenticator for this token. An empty token authenticates nobody. `uid` becomes the UID of the user; upstream takes a random one.
    pub fn new(token: impl Into<String>, uid: impl Into<String>) -> Self {
        let user = UserInfo {
            username: "system:apiserver".to_owned(),
            uid: uid.into(),
            groups: vec!["system:authenticated".to_owned(), SYSTEM_MASTERS.to_owned()],
            ..UserInfo::default()
        };
        LoopbackToken { token: token.into(), user: Arc::new(user) }
    }

    /// Returns the token, for the requests of the server to itself.
    pub fn token(&self) -> &str {
        &self.token
    }
}

impl std::fmt::Debug for LoopbackToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token must not reach a log.
        f.write_str("LoopbackToken")
    }
}

impl Authenticator for LoopbackToken {
    fn authenticate<'a>(&'a self, request: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication> {
        // The duration of the comparison depends only on the length.
        let matches = |token: &str| !token.is_empty() && bool::from(token.as_bytes().ct_eq(self.token.as_bytes()));
        if !request.token.is_some_and(matches) {
            return MaybeFuture::ready(Authentication::NotRecognized);
        }
        if let Some(recorder) = request.recorder {
            recorder.set_loopback();
        }
        // The credential has no audiences, so the chain gives it those of this server.
        let user = Arc::clone(&self.user);
        MaybeFuture::ready(Authentication::Authenticated { user, audiences: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AuthenticationRecorder;

    #[tokio::test]
    async fn loopback_token_authenticates_the_server_and_no_other_token_does() {
        let authenticator = LoopbackToken::new("s3cret", "u-1");
        let ask = async |token| match authenticator.authenticate(&AuthenticationRequest::of_token(token, 0)).await {
            Authentication::Authenticated { user, audiences } => {
                format!("{} {} {} {audiences:?}", user.username, user.uid, user.groups.join(","))
            }
            other => format!("{other:?}"),
        };
        assert_eq!(ask(Some("s3cret")).await, "system:apiserver u-1 system:authenticated,system:masters []");
        for token in [Some("s3cre"), Some("s3crett"), Some("S3cret"), Some(""), None] {
            assert_eq!(ask(token).await, "NotRecognized", "{token:?}");
        }
        assert_eq!(format!("{authenticator:?}"), "LoopbackToken", "the token is not printed");
    }

    #[tokio::test]
    async fn empty_loopback_token_authenticates_nobody() {
        let authenticator = LoopbackToken::new("", "u-1");
        for token in [Some(""), Some("s3cret"), None] {
            let recorder = AuthenticationRecorder::default();
            let request = AuthenticationRequest::of_token(token, 0).with_recorder(&recorder);
            let authentication = authenticator.authenticate(&request).await;
            assert!(matches!(authentication, Authentication::NotRecognized), "{token:?}: {authentication:?}");
            assert!(!recorder.take().is_loopback, "{token:?}");
        }
    }

    #[tokio::test]
    async fn only_requests_with_the_loopback_token_are_recorded_as_loopback() {
        let authenticator = LoopbackToken::new("s3cret", "u-1");
        for (token, is_loopback) in [(Some("s3cret"), true), (Some("other"), false), (None, false)] {
            let recorder = AuthenticationRecorder::default();
            let request = AuthenticationRequest::of_token(token, 0).with_recorder(&recorder);
            authenticator.authenticate(&request).await;
            assert_eq!(recorder.take().is_loopback, is_loopback, "{token:?}");
        }
    }
}
