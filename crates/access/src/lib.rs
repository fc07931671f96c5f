//! Authentication, impersonation and authorization for a Kubernetes API server.
//!
//! ```text
//!  headers ─▶ Authenticator ─▶ UserInfo ─▶ Impersonation ─▶ UserInfo ─┐
//!                                                                     ├─▶ Attributes ─▶ Authorizer ─▶ Decision
//!  method, path, query ─▶ request facts ──────────────────────────────┘
//! ```
//!
//! | trait | decides | implementations |
//! |---|---|---|
//! | [`Authenticator`] | which user sent a request | [`AdminToken`], [`EveryoneIsAdmin`], [`ClientCertificateAuthenticator`], [`FrontProxyAuthenticator`], [`TokenFileAuthenticator`], [`ServiceAccountTokenAuthenticator`], [`LoopbackToken`], [`AuthenticatorChain`] |
//! | [`Authorizer`] | whether a user may perform a request | [`rbac::RbacAuthorizer`], [`node::NodeAuthorizer`], [`AlwaysAllow`], [`AlwaysDeny`], [`PrivilegedGroups`], [`KnownUserAuthorizer`], [`AuthorizerChain`] |
//!
//! Decisions are pure functions of their inputs and the time. Only the check whether a service account still exists
//! needs other objects, and reads them through [`ServiceAccountObjects`]. A result without I/O is a ready
//! [`MaybeFuture`], which needs no allocation.
//!
//! # Example: a new authorizer
//! Users in the group `viewers` may read everything; the authorizer has no opinion on other requests.
//! ```
//! use listwatch_access::{Attributes, Authorization, Authorizer, AuthorizerChain, Decision, MaybeFuture};
//! use listwatch_meta::UserInfo;
//!
//! struct Viewers;
//!
//! impl Authorizer for Viewers {
//!     fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
//!         let is_viewer = attributes.user.groups.iter().any(|group| group == "viewers");
//!         MaybeFuture::ready(match is_viewer && attributes.is_read_only() {
//!             true => Authorization::allow("viewers may read"),
//!             false => Authorization::no_opinion(),
//!         })
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let chain = AuthorizerChain::new().with(Viewers);
//! let user = UserInfo { username: "bob".to_owned(), groups: vec!["viewers".to_owned()], ..UserInfo::default() };
//! let list = Attributes::resource(&user, "list", "apps", "deployments");
//! assert_eq!(chain.authorize(&list).await.decision, Decision::Allow);
//! let delete = Attributes::resource(&user, "delete", "apps", "deployments");
//! assert_eq!(chain.authorize(&delete).await.decision, Decision::NoOpinion);
//! # });
//! ```
//! Pass it to the method `authorizer` of the builder of `listwatch-apiserver`.
#![forbid(unsafe_code)]

mod abac;
mod admin;
mod authentication_recorder;
mod authenticator;
mod authorization_config;
mod authorizer;
mod bootstrap_token;
mod certificate_chain;
mod certificate_rules;
mod client_certificate;
mod constrained_impersonation;
mod expression_checks;
mod forbidden;
mod front_proxy;
mod impersonation;
mod known_users;
mod loopback_token;
mod maybe_future;
pub mod node;
pub mod oidc;
mod privileged_groups;
pub mod rbac;
mod rules;
mod service_account;
mod token_file;
pub mod webhook;

pub use crate::abac::{AbacAuthorizer, InvalidAbacPolicy};
pub use crate::admin::{AdminToken, EveryoneIsAdmin};
pub use crate::authentication_recorder::{AuthenticationRecorder, AuthenticationRecords};
pub use crate::authenticator::{Authentication, AuthenticationRequest, Authenticator, AuthenticatorChain};
pub use crate::authorization_config::{
    AuthorizationConfiguration, ConfiguredAuthorizer, InvalidAuthorizationConfiguration,
};
pub use crate::authorizer::{Attributes, Authorization, Authorizer, AuthorizerChain, Decision, Reason};
pub use crate::bootstrap_token::{BootstrapTokenAuthenticator, BootstrapTokenSecret, BootstrapTokenSecrets};
pub use crate::certificate_chain::{InvalidAuthorities, PeerCertificates};
pub use crate::certificate_rules::{public_key_unknown_to_rustls, verify_tls12_signature};
pub use crate::client_certificate::ClientCertificateAuthenticator;
pub use crate::constrained_impersonation::AllowedImpersonation;
pub use crate::forbidden::{ensure_authorized, forbidden};
pub use crate::front_proxy::{FrontProxyAuthenticator, FrontProxyHeaders, InvalidFrontProxy};
pub use crate::impersonation::{Impersonation, UserNameMissing};
pub use crate::known_users::KnownUserAuthorizer;
pub use crate::loopback_token::LoopbackToken;
pub use crate::maybe_future::MaybeFuture;
pub use crate::privileged_groups::{AlwaysAllow, AlwaysDeny, PrivilegedGroups};
pub use crate::rules::{NonResourceRule, ResourceRule, UserRules};
pub use crate::service_account::{
    BoundObjectReference, Claims, EXTENDABLE_SECONDS, EXTENDED_SECONDS, FoundObject, ISSUER, InvalidKey,
    IssuerDocuments, JWKS_PATH, KubernetesClaims, LegacyTokenAccount, LegacyTokenSecret, LegacyTokenUse,
    NotDiscoverable, OPENID_CONFIGURATION_PATH, ServiceAccountObjects, ServiceAccountTokenAuthenticator,
    ServiceAccountTokenOptions, SigningKey, TokenKeys, VerificationKey, service_account_username,
};
pub use crate::token_file::{InvalidTokenFile, TokenFileAuthenticator};
