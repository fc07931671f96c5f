//! JSON Web Tokens of other issuers: `AuthenticationConfiguration` (`apiserver/pkg/apis/apiserver`,
//! `apiserver/plugin/pkg/authenticator/token/oidc`).
//!
//! ```text
//!  token ─▶ issuer ─▶ signature ─▶ audience, times ─▶ user ─▶ claim rules ─▶ user rules ─▶ Authenticated
//!             │          │  keys of the issuer, fetched and rotated │
//!             ▼          └──────────────────┴───────────────────────┴─▶ Rejected
//!       NotRecognized
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `config` | the file and its validation |
//! | `keys` | key sets (RFC 7517) and signatures |
//! | `claims` | the mapping from claims to a user, by names of claims or by CEL |
//! | `authenticator` | the keys of an issuer, and the order of the checks |
//!
//! Distributed claims (`_claim_names`) are not resolved.

mod authenticator;
mod claims;
mod config;
mod keys;

pub use self::authenticator::{DocumentFetcher, FETCH_PAUSE, JwtAuthenticator};
pub use self::config::{
    AnonymousConfiguration, AuthenticationConfiguration, InvalidConfiguration, JwtIssuer, OidcFlags,
};

#[cfg(test)]
mod tests;
