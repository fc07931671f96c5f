//! Authentication and authorization: [`Auth`] is the setting of a server, [`Access`] its authenticators and authorizers.
//!
//! Front proxies are checked first, then client certificates, then the tokens of service accounts, then the
//! authenticators of the builder, then [`Auth`]. The authorizers of the builder decide first, then [`KnownUserAuthorizer`].

use std::sync::Arc;

use listwatch_access::{
    AdminToken, Authenticator, AuthenticatorChain, Authorizer, AuthorizerChain, ClientCertificateAuthenticator,
    EveryoneIsAdmin, FrontProxyAuthenticator, KnownUserAuthorizer, ServiceAccountTokenAuthenticator,
};

use listwatch_registry::Backend;
use listwatch_registry::TokenObjects;

/// The authentication of the administrator's requests.
#[derive(Clone, Default)]
pub enum Auth {
    /// All requests run as the administrator, except requests with the token of a service account. For servers in a
    /// test process.
    #[default]
    Open,
    /// The administrator's bearer token. Requests need this token or the token of a service account; others receive
    /// 401. Only health and version need no token.
    Token(String),
}

/// The treatment of requests without credentials. An allowed request runs as the user `system:anonymous` of the group
/// `system:unauthenticated`. A request with a wrong credential is never anonymous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnonymousAuth {
    /// Allows all anonymous requests that the authorizers allow (`--anonymous-auth=true`).
    Enabled,
    /// Allows anonymous requests only for health and version.
    #[default]
    HealthOnly,
    /// Rejects all anonymous requests with 401 (`--anonymous-auth=false`).
    Disabled,
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The debug output omits the token, so that no log contains it.
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
    /// Knows the headers by which front proxies name a user.
    pub(crate) front_proxy: Option<Arc<FrontProxyAuthenticator>>,
}

impl Access {
    /// Combines the built-in authenticators and authorizers with those of the builder.
    pub(crate) fn new(
        backend: &Arc<Backend>,
        auth: &Auth,
        front_proxy: Option<Arc<FrontProxyAuthenticator>>,
        client_certificates: Option<Arc<ClientCertificateAuthenticator>>,
        authenticators: Vec<Arc<dyn Authenticator>>,
        authorizers: Vec<Arc<dyn Authorizer>>,
    ) -> Self {
        let service_accounts = ServiceAccountTokenAuthenticator::new(TokenObjects::new(Arc::clone(backend)));
        let chain = AuthenticatorChain::new();
        let chain = match front_proxy.clone() {
            Some(front_proxy) => chain.with_shared(front_proxy),
            None => chain,
        };
        let chain = match client_certificates {
            Some(certificates) => chain.with_shared(certificates),
            None => chain,
        };
        let chain = chain.with(service_accounts);
        let chain = authenticators.into_iter().fold(chain, AuthenticatorChain::with_shared);
        let authenticators = match auth {
            Auth::Open => chain.with(EveryoneIsAdmin::new()),
            Auth::Token(token) => chain.with(AdminToken::new(token)),
        };
        let chain = authorizers.into_iter().fold(AuthorizerChain::new(), AuthorizerChain::with_shared);
        Access { authenticators, authorizers: chain.with(KnownUserAuthorizer), front_proxy }
    }
}
