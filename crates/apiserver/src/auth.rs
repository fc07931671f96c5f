//! Authentication and authorization: [`Auth`] is the setting of a server, [`Access`] its authenticators and authorizers.
//!
//! Front proxies are checked first, then client certificates, then the tokens of service accounts, then bootstrap
//! tokens, then the authenticators of the builder, then [`Auth`]. The authorizers of the builder decide first, then the modes of the
//! builder or [`KnownUserAuthorizer`].

use std::sync::Arc;

use listwatch_access::node::{NodeAuthorizer, NodeState};
use listwatch_access::rbac::{RbacAuthorizer, RbacState};
use listwatch_access::{
    AdminToken, AlwaysAllow, AlwaysDeny, Authenticator, AuthenticatorChain, Authorizer, AuthorizerChain,
    BootstrapTokenAuthenticator, ClientCertificateAuthenticator, EveryoneIsAdmin, FrontProxyAuthenticator,
    KnownUserAuthorizer, PrivilegedGroups, ServiceAccountTokenAuthenticator,
};
use listwatch_controllers::nodes;
use listwatch_meta::user::SYSTEM_MASTERS;
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

/// A mode of authorization (`--authorization-mode`). Modes are asked in their order, until one allows the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// Everything is allowed to everyone.
    AlwaysAllow,
    /// Nothing is allowed.
    AlwaysDeny,
    /// Roles and bindings decide.
    Rbac,
    /// Each kubelet may do what its own node needs. Use it with the admission plugin NodeRestriction.
    Node,
}

/// The error of a mode that this server does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnavailableMode {
    /// kube-apiserver has the mode.
    #[error("mode {0:?} is not available on this server: AlwaysAllow, AlwaysDeny, Node and RBAC are")]
    Missing(String),
    /// kube-apiserver does not have the mode either.
    #[error("{0:?} is not a valid mode")]
    Unknown(String),
}

impl std::str::FromStr for AuthorizationMode {
    type Err = UnavailableMode;

    fn from_str(name: &str) -> Result<Self, UnavailableMode> {
        Ok(match name {
            "AlwaysAllow" => AuthorizationMode::AlwaysAllow,
            "AlwaysDeny" => AuthorizationMode::AlwaysDeny,
            "RBAC" => AuthorizationMode::Rbac,
            "Node" => AuthorizationMode::Node,
            "ABAC" | "Webhook" => return Err(UnavailableMode::Missing(name.to_owned())),
            _ => return Err(UnavailableMode::Unknown(name.to_owned())),
        })
    }
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
        bootstrap_tokens: bool,
        authenticators: Vec<Arc<dyn Authenticator>>,
        authorizers: AuthorizerChain,
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
        let chain = match bootstrap_tokens {
            true => chain.with(BootstrapTokenAuthenticator::new(TokenObjects::new(Arc::clone(backend)))),
            false => chain,
        };
        let chain = authenticators.into_iter().fold(chain, AuthenticatorChain::with_shared);
        let authenticators = match auth {
            Auth::Open => chain.with(EveryoneIsAdmin::new()),
            Auth::Token(token) => chain.with(AdminToken::new(token)),
        };
        Access { authenticators, authorizers, front_proxy }
    }
}

/// What the authorizers of the modes decide with. A mode without its state denies.
#[derive(Default)]
pub(crate) struct AuthorizerStates {
    pub(crate) rbac: Option<Arc<RbacState>>,
    pub(crate) node: Option<Arc<NodeState>>,
}

impl AuthorizerStates {
    /// The empty states that some modes need.
    pub(crate) fn of_modes(modes: Option<&[AuthorizationMode]>) -> Self {
        let has = |mode| modes.is_some_and(|modes| modes.contains(&mode));
        AuthorizerStates {
            rbac: has(AuthorizationMode::Rbac).then(Arc::default),
            node: has(AuthorizationMode::Node).then(Arc::default),
        }
    }
}

/// The authorizers of a server: those of the builder, then the modes. With modes, members of `system:masters` come
/// first, so that no mode can lock them out (`pkg/kubeapiserver/authorizer/config.go`).
pub(crate) fn authorizers(
    builder: Vec<Arc<dyn Authorizer>>,
    modes: Option<&[AuthorizationMode]>,
    states: &AuthorizerStates,
) -> AuthorizerChain {
    let chain = match modes {
        Some(_) => AuthorizerChain::new().with(PrivilegedGroups::new([SYSTEM_MASTERS])),
        None => AuthorizerChain::new(),
    };
    let chain = builder.into_iter().fold(chain, AuthorizerChain::with_shared);
    let Some(modes) = modes else { return chain.with(KnownUserAuthorizer) };
    modes.iter().fold(chain, |chain, mode| match mode {
        AuthorizationMode::AlwaysAllow => chain.with(AlwaysAllow),
        AuthorizationMode::AlwaysDeny => chain.with(AlwaysDeny),
        AuthorizationMode::Rbac => match &states.rbac {
            Some(state) => chain.with(RbacAuthorizer::new(Arc::clone(state))),
            None => chain.with(AlwaysDeny),
        },
        AuthorizationMode::Node => match &states.node {
            Some(state) => chain.with(NodeAuthorizer::new(Arc::clone(state), nodes::rules())),
            None => chain.with(AlwaysDeny),
        },
    })
}
