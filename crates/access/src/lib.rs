//! Who may do what on a Kubernetes API server.
//!
//! ```text
//!  headers ─▶ Authenticator ─▶ UserInfo ─▶ Impersonation ─▶ UserInfo ─┐
//!                                                                     ├─▶ Attributes ─▶ Authorizer ─▶ Decision
//!  method, path, query ─▶ request facts ──────────────────────────────┘
//! ```
//!
//! | trait | decides | implementations |
//! |---|---|---|
//! | [`Authenticator`] | which user sent a request | [`AdminToken`], [`EveryoneIsAdmin`], [`ServiceAccountTokenAuthenticator`], [`AuthenticatorChain`] |
//! | [`Authorizer`] | whether a user may do what a request asks for | [`KnownUserAuthorizer`], [`AuthorizerChain`] |
//!
//! Decisions are pure functions of their inputs and the time. The one part that needs other objects, the
//! check that a service account still exists, reads them through [`ServiceAccountObjects`]. An answer that
//! needs no I/O is a [`MaybeFuture`] that is ready, and costs no allocation.
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
//! `listwatch-apiserver` takes it by its builder's method `authorizer`.
#![forbid(unsafe_code)]

mod admin;
mod authenticator;
mod authorizer;
mod impersonation;
mod known_users;
mod maybe_future;
mod rules;
mod service_account;

pub use crate::admin::{AdminToken, EveryoneIsAdmin};
pub use crate::authenticator::{Authentication, AuthenticationRequest, Authenticator, AuthenticatorChain};
pub use crate::authorizer::{Attributes, Authorization, Authorizer, AuthorizerChain, Decision};
pub use crate::impersonation::{Impersonation, UserNameMissing};
pub use crate::known_users::KnownUserAuthorizer;
pub use crate::maybe_future::MaybeFuture;
pub use crate::rules::{NonResourceRule, ResourceRule, UserRules};
pub use crate::service_account::{
    BoundObjectReference, Claims, ISSUER, KubernetesClaims, SIGNING_KEY_BYTES, ServiceAccountObjects,
    ServiceAccountTokenAuthenticator, SigningKey, service_account_username,
};
