//! [`WebhookHandler`]: a webhook in this process.

use std::future::Future;

use listwatch_json::Value;
use listwatch_webhooks::CallFuture;

/// A webhook in this process.
///
/// Implemented for functions that take the `request` of an AdmissionReview and return a future of its `response`. The
/// response needs no `uid`, and its `patch` may be a list of operations instead of base64.
///
/// A handler runs on the tasks of the server, so it must not block. A panic counts as a failed call.
pub trait WebhookHandler: Send + Sync {
    /// Reviews a request: the member `request` of an AdmissionReview. Returns the member `response`.
    fn review(&self, request: Value) -> CallFuture<'_, Value>;
}

impl<F, R> WebhookHandler for F
where
    F: Fn(Value) -> R + Send + Sync,
    R: Future<Output = Value> + Send + 'static,
{
    fn review(&self, request: Value) -> CallFuture<'_, Value> {
        Box::pin(self(request))
    }
}
