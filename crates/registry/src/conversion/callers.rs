//! [`ConversionCallers`]: the converters of custom resources: webhooks, and functions in this process.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, OnceLock};

use listwatch_json::Value;
use listwatch_webhooks::{CallFuture, WebhookCaller};
use parking_lot::Mutex;

use super::metrics::ConversionMetrics;

/// A request to a converter in this process.
#[derive(Clone, Debug, PartialEq)]
pub struct ConversionRequest {
    /// The `apiVersion` that the converted objects must have.
    pub desired_api_version: String,
    /// The objects, without managed fields. They may have several versions.
    pub objects: Vec<Value>,
}

/// A converter in this process, which replaces the conversion webhook of a definition.
///
/// Implemented for functions that return a future of the converted objects, in the order of the request. An error text
/// is returned to clients like the error message of a webhook. The server checks the converted objects like those of a
/// webhook. In the metadata, only labels and annotations may change.
///
/// A converter runs on the tasks of the server, so it must not block. A panic counts as a failed call.
pub trait ConversionHandler: Send + Sync {
    /// Converts the objects to `desired_api_version`.
    fn convert(&self, request: ConversionRequest) -> CallFuture<'_, Result<Vec<Value>, String>>;
}

impl<F, R> ConversionHandler for F
where
    F: Fn(ConversionRequest) -> R + Send + Sync,
    R: Future<Output = Result<Vec<Value>, String>> + Send + 'static,
{
    fn convert(&self, request: ConversionRequest) -> CallFuture<'_, Result<Vec<Value>, String>> {
        Box::pin(self(request))
    }
}

/// The converters in this process, and the caller of webhooks.
#[derive(Default)]
pub struct ConversionCallers {
    handlers: Mutex<HashMap<String, Arc<dyn ConversionHandler>>>,
    caller: OnceLock<Arc<dyn WebhookCaller>>,
    pub(super) metrics: ConversionMetrics,
}

impl std::fmt::Debug for ConversionCallers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConversionCallers").finish_non_exhaustive()
    }
}

impl ConversionCallers {
    /// Sets the converter of the definition with this name, e.g. `widgets.example.com`. The converter replaces the
    /// webhook of a definition with the conversion strategy `Webhook`.
    pub fn set_handler(&self, definition: impl Into<String>, handler: Arc<dyn ConversionHandler>) {
        self.handlers.lock().insert(definition.into(), handler);
    }

    /// Sets the caller of webhooks. Only the first call has an effect. Until then, every call of a webhook fails.
    pub fn set_caller(&self, caller: Arc<dyn WebhookCaller>) {
        // The first caller stays.
        let _ = self.caller.set(caller);
    }

    /// Returns the metrics of all conversions in the text format of Prometheus.
    pub fn metrics_text(&self) -> String {
        self.metrics.to_text()
    }

    pub(super) fn handler(&self, definition: &str) -> Option<Arc<dyn ConversionHandler>> {
        self.handlers.lock().get(definition).cloned()
    }

    pub(super) fn caller(&self) -> Option<&Arc<dyn WebhookCaller>> {
        self.caller.get()
    }
}
