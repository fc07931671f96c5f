//! Who may do what: [`Auth`], the choice of a server's users, and [`Access`], its authenticators and
//! authorizers.
//!
//! Requests are authenticated by the tokens of service accounts first, then by the authenticators that the
//! builder was given, then by [`Auth`]. They are authorized by the authorizers that the builder was given,
//! then by [`KnownUserAuthorizer`].

use std::sync::Arc;

use listwatch_access::{
    AdminToken, Authenticator, AuthenticatorChain, Authorizer, AuthorizerChain, EveryoneIsAdmin, KnownUserAuthorizer,
    ServiceAccountTokenAuthenticator,
};
pub(crate) use listwatch_meta::UserInfo as User;

use crate::backend::Backend;
use crate::tokens::TokenObjects;

/// How requests prove who sends them.
#[derive(Clone, Default)]
pub enum Auth {
    /// Every request is the administrator's, except those with the token of a service account. For
    /// servers inside a test process.
    #[default]
    Open,
    /// Requests need `Authorization: Bearer <token>`, this one or a service account's. Without it only
    /// health and version answer; the rest is 401.
    Token(String),
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token itself never reaches a log.
        f.write_str(match self {
            Auth::Open => "Open",
            Auth::Token(_) => "Token",
        })
    }
}

/// The authenticators and authorizers of one server.
pub(crate) struct Access {
    pub(crate) authenticators: AuthenticatorChain,
    pub(crate) authorizers: AuthorizerChain,
}

impl Access {
    /// The built-in ones, and those that the builder was given.
    pub(crate) fn new(
        backend: &Arc<Backend>,
        auth: &Auth,
        authenticators: Vec<Arc<dyn Authenticator>>,
        authorizers: Vec<Arc<dyn Authorizer>>,
    ) -> Self {
        let service_accounts = ServiceAccountTokenAuthenticator::new(TokenObjects(Arc::clone(backend)));
        let chain = AuthenticatorChain::new().with(service_accounts);
        let chain = authenticators.into_iter().fold(chain, AuthenticatorChain::with_shared);
        let authenticators = match auth {
            Auth::Open => chain.with(EveryoneIsAdmin::new()),
            Auth::Token(token) => chain.with(AdminToken::new(token)),
        };
        let chain = authorizers.into_iter().fold(AuthorizerChain::new(), AuthorizerChain::with_shared);
        Access { authenticators, authorizers: chain.with(KnownUserAuthorizer) }
    }
}
