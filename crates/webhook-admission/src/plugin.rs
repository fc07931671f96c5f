//! [`Dispatcher`]: the webhooks, metrics and failure policy handling that both plugins share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use listwatch_access::AuthorizerChain;
use listwatch_admission::AdmissionRequest;
use listwatch_meta::{Status, fuel};
use listwatch_webhooks::{CallError, FailedOpen, FailurePolicy, Webhook, WebhookCaller, is_exempt};

use crate::configurations::WebhookConfigurations;
use crate::metrics::{RejectionSeries, WebhookMetrics};

/// The state that both plugins share.
#[derive(Clone)]
pub(crate) struct Dispatcher {
    pub(crate) configurations: Arc<WebhookConfigurations>,
    pub(crate) caller: Arc<dyn WebhookCaller>,
    pub(crate) metrics: Arc<WebhookMetrics>,
    /// The authorizers for the authorization checks in match conditions.
    pub(crate) authorizers: AuthorizerChain,
    /// The label `type` of metrics: `admit` or `validating`.
    pub(crate) webhook_type: &'static str,
}

impl Dispatcher {
    /// Whether a webhook has a rule for the operation and the resource of the request.
    pub(crate) fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        if self.configurations.is_empty() {
            return false;
        }
        let requested = request.details.requested();
        if is_exempt(requested.kind.group, requested.kind.kind) {
            return false;
        }
        let snapshot = self.configurations.snapshot();
        let mut candidates = snapshot.index.candidates(request.operation, &requested, &request.details.equivalents());
        candidates.next().is_some()
    }

    /// Counts a call. Applies the failure policy if the call failed.
    ///
    /// # Errors
    /// The [`Status`] for the client; 504 if a failed call has used up the time of the request.
    pub(crate) fn finish(
        &self,
        webhook: &Webhook,
        request: &AdmissionRequest<'_>,
        error: Option<CallError>,
        took: Duration,
        failed_open_annotation: impl FnOnce() -> String,
    ) -> Result<(), Status> {
        // Without fuel the request ends or starts again, so the call is not counted.
        if fuel::is_exhausted() {
            return Err(Status::request_timed_out());
        }
        let (name, operation) = (&webhook.name, request.operation.as_str());
        let (code, error_type) = match &error {
            None => (200, None),
            Some(CallError::Failed { code, .. }) if webhook.failure_policy == FailurePolicy::Ignore => (*code, None),
            Some(CallError::Failed { code, .. }) => (*code, Some("calling_webhook_error")),
            Some(CallError::Denied(status)) => (status.code, Some("no_error")),
            Some(CallError::Internal(_)) => (0, Some("apiserver_internal_error")),
        };
        self.metrics.observe_call(name, self.webhook_type, operation, (code, error_type.is_some()), took);
        if let Some(error_type) = error_type {
            let (name, webhook_type) = (name.clone(), self.webhook_type);
            self.metrics.observe_rejection(RejectionSeries { name, webhook_type, operation, error_type, code });
        }
        let Some(error) = error else { return Ok(()) };
        let shown = format!("{error:?}");
        let FailedOpen = error.resolve(webhook)?;
        tracing::warn!(webhook = %name, error = %shown, "a failed webhook is ignored");
        self.metrics.observe_fail_open(name, self.webhook_type);
        request.recorder.annotate(failed_open_annotation(), name.as_str());
        match request.details.deadline() {
            Some(deadline) if deadline <= Instant::now() => Err(Status::request_timed_out()),
            _ => Ok(()),
        }
    }
}
