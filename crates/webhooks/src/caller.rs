//! [`WebhookCaller`] sends a review to a webhook. This crate has no implementation, because a call needs a transport.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;

use crate::client_config::Target;

/// The future of a call.
pub type CallFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One call of a webhook.
#[derive(Clone, Debug)]
pub struct WebhookCall<'a> {
    /// The address of the webhook.
    pub target: &'a Target,
    /// The CA certificates in PEM. If empty, the CA certificates of the system are used.
    pub ca_bundle: &'a [u8],
    /// The review, as JSON.
    pub body: Bytes,
    /// The time limit of the whole call.
    pub timeout: Duration,
}

/// The HTTP response of a webhook, with any status code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookAnswer {
    /// The HTTP status code.
    pub code: u16,
    /// The header `Content-Type`, or `""`.
    pub content_type: String,
    /// The whole body.
    pub body: Bytes,
}

/// Sends reviews to admission webhooks and conversion webhooks. `HttpsCaller` of `listwatch-webhook-admission` is the
/// usual implementation.
pub trait WebhookCaller: Send + Sync {
    /// Sends a review and returns the response.
    ///
    /// # Errors
    /// The reason of a failed call, with the text of Go's HTTP client.
    fn call<'a>(&'a self, call: WebhookCall<'a>) -> CallFuture<'a, Result<WebhookAnswer, String>>;
}
