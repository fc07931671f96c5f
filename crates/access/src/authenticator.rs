//! Authentication: [`Authenticator`] finds the user who sent a request
//! (`apiserver/pkg/authentication/authenticator`).

use std::sync::Arc;

use http::HeaderMap;
use listwatch_meta::UserInfo;

use crate::authentication_recorder::AuthenticationRecorder;
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
    /// The audiences of this server (`--api-audiences`). Only a request with `audiences` needs this list.
    pub api_audiences: &'a [String],
    /// The headers of the request; `None` for a TokenReview.
    pub headers: Option<&'a HeaderMap>,
    /// The certificates of the TLS connection, if the client presented any.
    pub certificates: Option<&'a PeerCertificates>,
    /// Whether only a credential authenticates the request: another credential of the request is malformed or rejected,
    /// or is checked later. The chain then calls no authenticator that accepts requests without a credential.
    pub requires_credential: bool,
    /// Takes audit annotations, warnings and the origin, if there is one.
    pub recorder: Option<&'a AuthenticationRecorder>,
    /// The time, in seconds since the Unix epoch.
    pub now: i64,
}

impl<'a> AuthenticationRequest<'a> {
    /// A request with only this token.
    pub fn of_token(token: Option<&'a str>, now: i64) -> Self {
        AuthenticationRequest {
            token,
            audiences: &[],
            api_audiences: &[],
            headers: None,
            certificates: None,
            requires_credential: false,
            recorder: None,
            now,
        }
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

    /// Sets the recorder of audit annotations, warnings and the origin.
    #[must_use]
    pub fn with_recorder(self, recorder: &'a AuthenticationRecorder) -> Self {
        AuthenticationRequest { recorder: Some(recorder), ..self }
    }

    /// Adds an annotation of the audit event. As upstream, the first value of a key stays.
    pub(crate) fn annotate(&self, key: &'static str, value: impl Into<String>) {
        if let Some(recorder) = self.recorder {
            recorder.annotate(key, value.into());
        }
    }

    /// Sets whether only a credential authenticates the request.
    #[must_use]
    pub fn with_required_credential(self, requires_credential: bool) -> Self {
        AuthenticationRequest { requires_credential, ..self }
    }

    /// Sets the requested audiences.
    #[must_use]
    pub fn with_audiences(self, audiences: &'a [String]) -> Self {
        AuthenticationRequest { audiences, ..self }
    }

    /// Sets the audiences of this server.
    #[must_use]
    pub fn with_api_audiences(self, api_audiences: &'a [String]) -> Self {
        AuthenticationRequest { api_audiences, ..self }
    }
}

/// The result of an authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// The credential is valid.
    Authenticated {
        /// The user.
        user: Arc<UserInfo>,
        /// The requested audiences that the credential is valid for. An empty list: the credential has no audiences,
        /// and is valid for the audiences of this server.
        audiences: Vec<String>,
    },
    /// The credential is of this authenticator's kind but not valid. The reason is returned in the status of a
    /// TokenReview, and contains no part of a credential. Later authenticators may accept the credential. If none does,
    /// the request fails: it is never anonymous.
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

    /// Whether no later authenticator is called after this one returns [`Authentication::Rejected`].
    fn is_rejection_final(&self) -> bool {
        false
    }

    /// Whether this authenticator accepts requests without a credential. Such an authenticator is not called after
    /// another one has rejected a credential, and not for requests with `requires_credential`.
    fn accepts_without_credential(&self) -> bool {
        false
    }
}

/// Adds the group of all authenticated users, unless the user is anonymous or already in a group of that kind
/// (`authentication/group/authenticated_group_adder.go`).
pub(crate) fn add_authenticated_group(user: &mut UserInfo) {
    let kinds = ["system:authenticated", "system:unauthenticated"];
    if user.username != "system:anonymous" && !user.groups.iter().any(|group| kinds.contains(&group.as_str())) {
        user.groups.push(kinds[0].to_owned());
    }
}

/// Calls several authenticators in order, until one accepts the credential (`token/union/union.go`,
/// `request/union/union.go`). If none accepts it, the first [`Rejected`](Authentication::Rejected) is returned.
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
        let mut rejected = None;
        for authenticator in &self.0 {
            if (rejected.is_some() || request.requires_credential) && authenticator.accepts_without_credential() {
                continue;
            }
            match authenticator.authenticate(request).await {
                Authentication::NotRecognized => {}
                Authentication::Rejected(reason) => {
                    let reason = rejected.get_or_insert(reason);
                    if authenticator.is_rejection_final() {
                        return Authentication::Rejected(std::mem::take(reason));
                    }
                }
                Authentication::Authenticated { user, audiences } => {
                    if let Some(audiences) = accepted_audiences(audiences, request) {
                        return Authentication::Authenticated { user, audiences };
                    }
                }
            }
        }
        rejected.map_or(Authentication::NotRecognized, Authentication::Rejected)
    }
}

/// Returns the audiences of a valid credential. A credential without audiences has those of this server
/// (`authenticator/audagnostic.go`). `None` if the credential is valid for no requested audience.
fn accepted_audiences(audiences: Vec<String>, request: &AuthenticationRequest<'_>) -> Option<Vec<String>> {
    if request.audiences.is_empty() {
        return Some(audiences);
    }
    let is_requested = |audience: &&String| request.audiences.contains(audience);
    if audiences.is_empty() {
        let audiences: Vec<String> = request.api_audiences.iter().filter(is_requested).cloned().collect();
        return (!audiences.is_empty()).then_some(audiences);
    }
    audiences.iter().any(|audience| is_requested(&audience)).then_some(audiences)
}

impl std::fmt::Debug for AuthenticatorChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AuthenticatorChain({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Authenticates one token, and rejects other tokens that begin with `x`.
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
    async fn authenticator_chain_returns_the_first_user_or_else_the_first_rejection() {
        let chain = AuthenticatorChain::new().with(OneToken("a")).with(OneToken("b")).with(OneToken("xb"));
        let ask = async |token| match chain.authenticate(&AuthenticationRequest::of_token(token, 0)).await {
            Authentication::Authenticated { user, .. } => user.username.clone(),
            other => format!("{other:?}"),
        };
        assert_eq!(ask(Some("a")).await, "a");
        assert_eq!(ask(Some("b")).await, "b");
        let rejected = "Rejected(\"it begins with x\")";
        assert_eq!(ask(Some("xb")).await, "xb", "a rejected credential is offered to the other authenticators");
        assert_eq!(ask(Some("xc")).await, rejected, "a credential that nobody accepts stays rejected");
        assert_eq!(ask(Some("c")).await, "NotRecognized");
        assert_eq!(ask(None).await, "NotRecognized");
    }

    #[tokio::test]
    async fn rejected_credential_is_not_that_of_the_administrator_of_an_open_server() {
        let chain = AuthenticatorChain::new().with(OneToken("a")).with(crate::EveryoneIsAdmin::new());
        for (token, expected) in [(Some("a"), true), (Some("c"), true), (None, true), (Some("xc"), false)] {
            let found = chain.authenticate(&AuthenticationRequest::of_token(token, 0)).await;
            assert_eq!(matches!(found, Authentication::Authenticated { .. }), expected, "{token:?}");
            let request = AuthenticationRequest::of_token(token, 0).with_required_credential(true);
            let found = chain.authenticate(&request).await;
            let is_accepted = matches!(found, Authentication::Authenticated { .. });
            assert_eq!(is_accepted, token == Some("a"), "{token:?} beside an invalid credential");
        }
    }

    /// Rejects every request, finally.
    struct RejectsFinally;

    impl Authenticator for RejectsFinally {
        fn authenticate<'a>(&'a self, _: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication> {
            MaybeFuture::ready(Authentication::Rejected("no".to_owned()))
        }

        fn is_rejection_final(&self) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn final_rejection_ends_the_authenticator_chain() {
        let chain = AuthenticatorChain::new().with(RejectsFinally).with(OneToken("a"));
        let found = chain.authenticate(&AuthenticationRequest::of_token(Some("a"), 0)).await;
        assert_eq!(found, Authentication::Rejected("no".to_owned()));
    }

    /// Authenticates every request with these audiences.
    struct WithAudiences(&'static [&'static str]);

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    impl Authenticator for WithAudiences {
        fn authenticate<'a>(&'a self, _: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication> {
            let user = Arc::new(UserInfo::default());
            MaybeFuture::ready(Authentication::Authenticated { user, audiences: owned(self.0) })
        }
    }

    #[tokio::test]
    async fn credential_without_audiences_is_valid_for_the_requested_audiences_of_the_server_only() {
        const NONE: &[&str] = &[];
        for (of_credential, requested, expected) in [
            (NONE, NONE, Some(NONE)),
            (NONE, &["api", "other-api"], Some(&["api", "other-api"])),
            (NONE, &["x", "api"], Some(&["api"])),
            (NONE, &["x"], None),
            (&["x"], NONE, Some(&["x"])),
            (&["x"], &["x", "api"], Some(&["x"])),
            (&["x"], &["api"], None),
        ] {
            let chain = AuthenticatorChain::new().with(WithAudiences(of_credential));
            let (asked, own) = (owned(requested), owned(&["api", "other-api"]));
            let request = AuthenticationRequest::of_token(None, 0).with_audiences(&asked).with_api_audiences(&own);
            let found = match chain.authenticate(&request).await {
                Authentication::Authenticated { audiences, .. } => Some(audiences),
                _ => None,
            };
            assert_eq!(found, expected.map(owned), "{of_credential:?} {requested:?}");
        }
    }
}
