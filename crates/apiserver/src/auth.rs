//! Authentication and authorization: [`Auth`] is a setting of a server, [`Access`] contains the authenticators and
//! authorizers.
//!
//! The order of authenticators is: the token of the server itself, front proxies, client certificates, service account
//! tokens, bootstrap tokens, the authenticators of the builder, token issuers, [`Auth`], the token webhook. The
//! authorizers of the builder decide first, then the modes of the builder or [`KnownUserAuthorizer`].

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use listwatch_access::node::{NodeAuthorizer, NodeState};
use listwatch_access::rbac::{RbacAuthorizer, RbacState};
use listwatch_access::{
    AbacAuthorizer, AdminToken, AlwaysAllow, AlwaysDeny, Authenticator, AuthenticatorChain, Authorizer,
    AuthorizerChain, BootstrapTokenAuthenticator, ClientCertificateAuthenticator, EveryoneIsAdmin,
    FrontProxyAuthenticator, KnownUserAuthorizer, LoopbackToken, PrivilegedGroups, ServiceAccountTokenAuthenticator,
};
use listwatch_controllers::nodes;
use listwatch_meta::user::SYSTEM_MASTERS;
use listwatch_registry::Backend;
use listwatch_registry::TokenObjects;

/// The authentication of the administrator's requests.
#[derive(Clone, Default)]
pub enum Auth {
    /// All requests run as the administrator, except requests with a credential that another authenticator accepts or
    /// rejects, such as the token of a service account, and requests with a malformed token. For servers in a test
    /// process.
    #[default]
    Open,
    /// The administrator's bearer token. Requests need this token or the token of a service account; other requests
    /// receive 401. Only health and version need no token.
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

/// A mode of authorization (`--authorization-mode`). The modes are asked in order until one allows the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// Allows every request.
    AlwaysAllow,
    /// Allows no request.
    AlwaysDeny,
    /// Allows requests according to RBAC roles and bindings.
    Rbac,
    /// Allows each kubelet to access the objects that its node needs. Use this mode with the admission plugin
    /// NodeRestriction.
    Node,
    /// Asks a webhook of [`Builder::authorization_webhook`](crate::Builder::authorization_webhook). The n-th occurrence
    /// of the mode uses the n-th webhook.
    Webhook,
    /// Allows requests according to the policies of [`Builder::abac_policies`](crate::Builder::abac_policies).
    Abac,
}

/// The error of parsing an unknown mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("authorization-mode {0:?} is not a valid mode")]
pub struct UnknownMode(String);

impl std::str::FromStr for AuthorizationMode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Self, UnknownMode> {
        Ok(match name {
            "AlwaysAllow" => AuthorizationMode::AlwaysAllow,
            "AlwaysDeny" => AuthorizationMode::AlwaysDeny,
            "RBAC" => AuthorizationMode::Rbac,
            "Node" => AuthorizationMode::Node,
            "Webhook" => AuthorizationMode::Webhook,
            "ABAC" => AuthorizationMode::Abac,
            _ => return Err(UnknownMode(name.to_owned())),
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
    /// The authenticator whose headers are removed from forwarded requests.
    pub(crate) front_proxy: Option<Arc<FrontProxyAuthenticator>>,
}

/// Creates the credential with which a server calls itself: a random token of 256 bits that only this process has, and
/// a random UID.
pub(crate) fn loopback_token() -> LoopbackToken {
    LoopbackToken::new(URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>()), uuid::Uuid::new_v4().to_string())
}

/// The authenticators from the settings of a server.
pub(crate) struct ConfiguredAuthenticators {
    /// The credential with which the server calls itself.
    pub(crate) loopback: Arc<LoopbackToken>,
    pub(crate) front_proxy: Option<Arc<FrontProxyAuthenticator>>,
    pub(crate) client_certificates: Option<Arc<ClientCertificateAuthenticator>>,
    /// Whether bootstrap tokens are accepted.
    pub(crate) bootstrap_tokens: bool,
    /// The authenticators that the program has added with the builder.
    pub(crate) custom: Vec<Arc<dyn Authenticator>>,
    /// The issuers of JSON Web Tokens.
    pub(crate) token_issuers: Vec<Arc<dyn Authenticator>>,
    pub(crate) token_webhook: Option<Arc<dyn Authenticator>>,
}

impl Access {
    /// Combines the built-in authenticators and authorizers with those of the builder.
    pub(crate) fn new(
        backend: &Arc<Backend>,
        auth: &Auth,
        configured: ConfiguredAuthenticators,
        authorizers: AuthorizerChain,
    ) -> Self {
        let ConfiguredAuthenticators {
            loopback,
            front_proxy,
            client_certificates,
            bootstrap_tokens,
            custom,
            token_issuers,
            token_webhook,
        } = configured;
        let service_accounts = ServiceAccountTokenAuthenticator::new(TokenObjects::new(Arc::clone(backend)));
        let chain = AuthenticatorChain::new().with_shared(loopback);
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
        let chain = custom.into_iter().chain(token_issuers).fold(chain, AuthenticatorChain::with_shared);
        let chain = match auth {
            Auth::Open => chain.with(EveryoneIsAdmin::new()),
            Auth::Token(token) => chain.with(AdminToken::new(token)),
        };
        // The webhook sees no token that another authenticator accepts.
        let authenticators = token_webhook.into_iter().fold(chain, AuthenticatorChain::with_shared);
        Access { authenticators, authorizers, front_proxy }
    }
}

/// The states of the authorizers that modes use. A mode without a state denies every request.
#[derive(Default)]
pub(crate) struct AuthorizerStates {
    pub(crate) rbac: Option<Arc<RbacState>>,
    pub(crate) node: Option<Arc<NodeState>>,
    /// The webhooks, in the order of their modes.
    pub(crate) webhooks: Vec<Arc<dyn Authorizer>>,
    pub(crate) abac: Option<AbacAuthorizer>,
}

impl AuthorizerStates {
    /// Creates the empty states for RBAC and Node if these modes are used. Adds the webhooks and policies of the
    /// builder.
    pub(crate) fn of_modes(
        modes: Option<&[AuthorizationMode]>,
        webhooks: Vec<Arc<dyn Authorizer>>,
        abac: Option<AbacAuthorizer>,
    ) -> Self {
        let has = |mode| modes.is_some_and(|modes| modes.contains(&mode));
        AuthorizerStates {
            rbac: has(AuthorizationMode::Rbac).then(Arc::default),
            node: has(AuthorizationMode::Node).then(Arc::default),
            webhooks,
            abac,
        }
    }
}

/// Returns the authorizers of a server: the authorizers of the builder, then the modes. If modes are set, members of
/// `system:masters` are allowed first, so that no mode can lock them out (`pkg/kubeapiserver/authorizer/config.go`).
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
    let mut webhooks = states.webhooks.iter();
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
        AuthorizationMode::Webhook => match webhooks.next() {
            Some(webhook) => chain.with_shared(Arc::clone(webhook)),
            None => chain.with(AlwaysDeny),
        },
        AuthorizationMode::Abac => match &states.abac {
            Some(policies) => chain.with(policies.clone()),
            None => chain.with(AlwaysDeny),
        },
    })
}
