//! Calls one webhook: encodes the review, sends it over HTTPS or to a handler, and checks the response.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use listwatch_admission::AdmissionRequest;
use listwatch_json::{Value, json};
use listwatch_meta::{Status, fuel};
use listwatch_webhooks::{
    AdmissionResponse, AdmissionReviewRequest, Attributes, CallError, Invocation, Webhook, WebhookAnswer, WebhookCall,
    WebhookCaller, check_dry_run, is_success, response_error,
};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::caller::WebhookHandler;

/// Bytes of a review or a response per unit of fuel.
const BYTES_PER_UNIT: usize = 64;

/// The error text for a webhook that accepts no AdmissionReview version of this server.
const NO_REVIEW_VERSION: &str = "could not create admission objects: webhook does not accept known AdmissionReview \
                                 versions (v1, v1beta1)";

/// The error of a call whose request has exceeded its deadline or its fuel.
fn out_of_time() -> CallError {
    CallError::Internal(Box::new(Status::request_timed_out()))
}

/// Calls a webhook. Records its warnings and audit annotations, including those of a denial.
///
/// # Errors
/// [`CallError`]; the caller applies the failure policy. A denial is an `Ok` response.
pub(crate) async fn call(
    caller: &dyn WebhookCaller,
    handler: Option<&Arc<dyn WebhookHandler>>,
    webhook: &Webhook,
    request: &AdmissionRequest<'_>,
    attributes: &Attributes<'_>,
    invocation: Invocation<'_>,
    mutating: bool,
) -> Result<AdmissionResponse, CallError> {
    check_dry_run(webhook, attributes.dry_run)?;
    let failed = |reason: String| CallError::Failed { reason, code: 400 };
    let version = webhook.review_version.ok_or_else(|| failed(NO_REVIEW_VERSION.to_owned()))?;
    let uid = Uuid::new_v4().to_string();
    let body = AdmissionReviewRequest { version, uid: &uid, attributes, invocation }.to_json();
    // A request that can start again elsewhere does so before the webhook sees it.
    if !fuel::charge_bytes(body.len(), BYTES_PER_UNIT) || !fuel::commit() {
        return Err(out_of_time());
    }
    let left = request.details.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let timeout = left.map_or(webhook.timeout, |left| left.min(webhook.timeout));
    if timeout.is_zero() {
        return Err(out_of_time());
    }
    let answer = match handler {
        Some(handler) => handle(Arc::clone(handler), &uid, version.api_version(), &body, timeout).await?,
        None => {
            let target = webhook.client_config.target(timeout);
            let target = target.map_err(|why| failed(format!("could not get REST client: {why}")))?;
            let ca_bundle = webhook.client_config.ca_bundle();
            let sent = caller.call(WebhookCall { target: &target, ca_bundle, body: body.into(), timeout }).await;
            sent.map_err(|cause| CallError::transport(target.transport_error(cause)))?
        }
    };
    let WebhookAnswer { code, content_type, body } = answer;
    if !fuel::charge_bytes(body.len(), BYTES_PER_UNIT) {
        return Err(out_of_time());
    }
    if !is_success(code) {
        return Err(response_error(code, &content_type, &body));
    }
    let response = AdmissionResponse::parse(&webhook.name, version, &uid, mutating, code, &body)?;
    for warning in &response.warnings {
        request.recorder.warn(warning.as_str());
    }
    for (key, value) in &response.audit_annotations {
        request.recorder.annotate(format!("{}/{key}", webhook.name), value.as_str());
    }
    Ok(response)
}

/// Aborts the task when the value is dropped, e.g. because the call was canceled.
struct AbortOnDrop(JoinHandle<Value>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs a handler on a separate task, so that a panic of the handler does not end the request.
async fn handle(
    handler: Arc<dyn WebhookHandler>,
    uid: &str,
    api_version: &str,
    body: &[u8],
    timeout: Duration,
) -> Result<WebhookAnswer, CallError> {
    let mut review: Value = serde_json::from_slice(body).map_err(CallError::transport)?;
    let request = review["request"].take();
    let mut task = AbortOnDrop(tokio::spawn(async move { handler.review(request).await }));
    let mut response = match tokio::time::timeout(timeout, &mut task.0).await {
        Ok(Ok(response)) => response,
        Ok(Err(_)) => return Err(CallError::transport("the handler panicked")),
        Err(_) => return Err(CallError::transport("context deadline exceeded")),
    };
    if let Value::Object(response) = &mut response {
        response.entry("uid").or_insert_with(|| json!(uid));
        if let Some(Value::Array(operations)) = response.get("patch") {
            let patch = STANDARD.encode(Value::from(operations.clone()).to_string());
            response.insert("patch", json!(patch));
            response.entry("patchType").or_insert_with(|| json!("JSONPatch"));
        }
    }
    let answer = json!({"kind": "AdmissionReview", "apiVersion": api_version, "response": response});
    Ok(WebhookAnswer { code: 200, content_type: "application/json".to_owned(), body: answer.to_string().into() })
}
