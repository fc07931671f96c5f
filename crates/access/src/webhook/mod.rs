//! Webhooks that authenticate tokens and authorize requests (`apiserver/plugin/pkg/authenticator/token/webhook`,
//! `apiserver/plugin/pkg/authorizer/webhook`).
//!
//! | module | contents |
//! |---|---|
//! | `cache` | responses with a lifetime |
//! | `conditions` | the requests that are sent to a webhook |
//! | `authorizer` | SubjectAccessReview |
//! | `authenticator` | TokenReview |
//!
//! The caller implements [`ReviewClient`], which sends the reviews.

mod authenticator;
mod authorizer;
mod cache;
mod conditions;

use std::future::Future;
use std::pin::Pin;

use ring::digest;

pub use self::authenticator::{TokenWebhookOptions, WebhookTokenAuthenticator};
pub use self::authorizer::{AuthorizationWebhookOptions, FailurePolicy, WebhookAuthorizer};
pub use self::conditions::MatchConditions;

/// The body of a webhook's response, or the error text of a failed call. The text contains no part of a credential.
pub type ReviewAnswer = Result<Vec<u8>, String>;

/// Sends reviews to a webhook. An API server implements it with its HTTP client.
pub trait ReviewClient: Send + Sync {
    /// Sends a review in JSON, retries after transient failures, and returns the body of the response.
    fn review<'a>(&'a self, body: Vec<u8>) -> Pin<Box<dyn Future<Output = ReviewAnswer> + Send + 'a>>;
}

/// The version of the reviews that are sent to a webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReviewVersion {
    /// `v1`.
    V1,
    /// `v1beta1`, the default of kube-apiserver's flags.
    #[default]
    V1Beta1,
}

impl ReviewVersion {
    fn name(self) -> &'static str {
        match self {
            ReviewVersion::V1 => "v1",
            ReviewVersion::V1Beta1 => "v1beta1",
        }
    }
}

/// Computes the key of a cached response. The hash keeps tokens and requests out of the cache.
fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        // The length separates the parts.
        context.update(&part.len().to_le_bytes());
        context.update(part);
    }
    context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests;
