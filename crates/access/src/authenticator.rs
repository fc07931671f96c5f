//! Authentication: [`Authenticator`] finds the user who sent a request
//! (`apiserver/pkg/authentication/authenticator`).

use std::sync::Arc;

use http::HeaderMap;
use listwatch_meta::UserInfo;

use crate::certificate_chain::PeerCertificates;
use crate::maybe_future::MaybeFuture;

/// The credentials of a request, or of a TokenReview.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AuthenticationRequest<'a> {
    /// The bearer token.
    pub token: Option<&'a str>,
    /// The requested audiences. The token must be valid for at least one of the audiences. An empty
    /// list means the audiences of this server.
    pub audiences: &'a [String],
    /// The headers of the request; `None` for a TokenReview.
    pub headers: Option<&'a HeaderMap>,
    /// The certificates of the TLS connection, if the client presented any.
    pub certificates: Option<&'a PeerCertificates>,
    /// The time, in seconds since the Unix epoch.
    pub now: i64,
}

impl<'a> AuthenticationRequest<'a> {
    /// A request with only this token.
    pub fn of_token(token: Option<&'a str>, now: i64) -> Self {
        AuthenticationRequest { token, audiences: &[], headers: None, certificates: None, now }
    }

    /// Adds the headers.
    #[must_use]
    pub fn with_headers(self, headers: &'a HeaderMap) -> Self {
        AuthenticationRequest { headers: Some(headers), ..self }
    }

    /// Adds the certificates of the connection.
    #[must_use]
    pub fn with_certificates(self, certificates: Option<&'a PeerCertificates>) -> Self {
        AuthenticationRequest { certificates, ..self }
    }

    /// Sets the requested audiences.
    #[must_use]
    pub fn with_audiences(self, audiences: &'a [String]) -> Self {
        AuthenticationRequest { audiences, ..self }
    }
}

/// The result of an authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// The credential is valid.
    Authenticated {
        /// The user.
        user: Arc<UserInfo>,
        /// The requested audiences that the credential is valid for.
        audiences: Vec<String>,
    },
    /// The credential is of this authenticator's kind but not valid. The reason is returned in the status of a
    /// TokenReview, and contains no part of a credential. Later authenticators are not called.
    Rejected(String),
    /// The request has no credential of this authenticator's kind.
    NotRecognized,
}

impl Authentication {
    /// A user without audiences.
    pub fn of_user(user: UserInfo) -> Self {
        Authentication::Authenticated { user: Arc::new(user), audiences: Vec::new() }
    }
}

/// Finds the user who sent a request. The example authenticates tokens from a list.
///
/// ```
/// use listwatch_access::{Authentication, AuthenticationRequest, Authenticator, MaybeFuture};
/// use listwatch_meta::UserInfo;
///
/// /// Tokens from a list.
/// struct StaticTokens(Vec<(String, UserInfo)>);
///
/// impl Authenticator for StaticTokens {
///     fn authenticate<'a>(&'a self, request: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication> {
///         let found = self.0.iter().find(|(token, _)| request.token == Some(token));
///         MaybeFuture::ready(match found {
///             Some((_, user)) => Authentication::of_user(user.clone()),
///             None => Authentication::NotRecognized,
///         })
///     }
/// }
/// ```
pub trait Authenticator: Send + Sync {
    /// Authenticates a request. A result without I/O is [`MaybeFuture::ready`].
    fn authenticate<'a>(&'a self, request: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication>;
}

/// Adds the group of all authenticated users, unless the user is anonymous or already in a group of that kind
/// (`authentication/group/authenticated_group_adder.go`).
pub(crate) fn add_authenticated_group(user: &mut UserInfo) {
    let kinds = ["system:authenticated", "system:unauthenticated"];
    if user.username != "system:anonymous" && !user.groups.iter().any(|group| kinds.contains(&group.as_str())) {
        user.groups.push(kinds[0].to_owned());
    }
}

/// Calls several authenticators in order. The first result other than [`NotRecognized`](Authentication::NotRecognized)
/// is returned.
#[derive(Clone, Default)]
pub struct AuthenticatorChain(Vec<Arc<dyn Authenticator>>);

impl AuthenticatorChain {
    /// An empty chain, which recognizes no request.
    pub fn new() -> Self {
        AuthenticatorChain::default()
    }

    /// Appends an authenticator.
    #[must_use]
    pub fn with(self, authenticator: impl Authenticator + 'static) -> Self {
        self.with_shared(Arc::new(authenticator))
    }

    /// Appends a shared authenticator.
    #[must_use]
    pub fn with_shared(mut self, authenticator: Arc<dyn Authenticator>) -> Self {
        self.0.push(authenticator);
        self
    }

    /// Calls the authenticators in order.
    pub async fn authenticate(&self, request: &AuthenticationRequest<'_>) -> Authentication {
        for authenticator in &self.0 {
            match authenticator.authenticate(request).await {
                Authentication::NotRecognized => {}
                decided => return decided,
            }
        }
        Authentication::NotRecognized
    }
}

impl std::fmt::Debug for AuthenticatorChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AuthenticatorChain({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Authenticates one token, and rejects tokens that begin with `x`.
    struct OneToken(&'static str);

    impl Authenticator for OneToken {
        fn authenticate<'a>(&'a self, request: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication> {
            MaybeFuture::ready(match request.token {
                Some(token) if token == self.0 => {
                    Authentication::of_user(UserInfo { username: token.to_owned(), ..UserInfo::default() })
                }
                Some(token) if token.starts_with('x') => Authentication::Rejected("it begins with x".to_owned()),
                _ => Authentication::NotRecognized,
            })
        }
    }

    #[tokio::test]
    async fn authenticator_chain_returns_the_first_recognized_result() {
        let chain = AuthenticatorChain::new().with(OneToken("a")).with(OneToken("b")).with(OneToken("xb"));
        let ask = async |token| match chain.authenticate(&AuthenticationRequest::of_token(token, 0)).await {
            Authentication::Authenticated { user, .. } => user.username.clone(),
            other => format!("{other:?}"),
        };
        assert_eq!(ask(Some("a")).await, "a");
        assert_eq!(ask(Some("b")).await, "b");
        let rejected = "Rejected(\"it begins with x\")";
        assert_eq!(ask(Some("xb")).await, rejected, "a rejected credential is offered to no other authenticator");
        assert_eq!(ask(Some("c")).await, "NotRecognized");
        assert_eq!(ask(None).await, "NotRecognized");
    }
}
