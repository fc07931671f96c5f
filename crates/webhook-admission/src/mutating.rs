//! [`MutatingAdmissionWebhook`] calls mutating webhooks one after the other (`mutating/dispatcher.go`). Each webhook
//! receives the object with the patches of the earlier webhooks.

use std::sync::Arc;
use std::time::Instant;

use listwatch_access::AuthorizerChain;
use listwatch_admission::{AdmissionFuture, AdmissionRequest, MutatingAdmission};
use listwatch_json::{Value, json};
use listwatch_meta::{Status, go};
use listwatch_validation::Object;
use listwatch_webhooks::{AdmissionResponse, CallError, Invocation, Reinvocation, Webhook, WebhookCaller};

use crate::call::call;
use crate::configurations::WebhookConfigurations;
use crate::dispatch::{Dispatch, ShownObjects};
use crate::metrics::WebhookMetrics;
use crate::plugin::Dispatcher;

/// The name of the plugin.
const NAME: &str = "MutatingAdmissionWebhook";

/// The admission plugin that calls the webhooks of MutatingWebhookConfigurations.
#[derive(Clone)]
pub struct MutatingAdmissionWebhook(Dispatcher);

impl std::fmt::Debug for MutatingAdmissionWebhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple(NAME).field(&self.0.configurations).finish()
    }
}

impl MutatingAdmissionWebhook {
    /// Creates the plugin. `authorizers` decide the authorization checks in match conditions.
    pub fn new(
        configurations: Arc<WebhookConfigurations>,
        caller: Arc<dyn WebhookCaller>,
        metrics: Arc<WebhookMetrics>,
        authorizers: AuthorizerChain,
    ) -> Self {
        MutatingAdmissionWebhook(Dispatcher { configurations, caller, metrics, authorizers, webhook_type: "admit" })
    }

    async fn dispatch(&self, request: &AdmissionRequest<'_>, object: &mut Object) -> Result<(), Status> {
        let snapshot = self.0.configurations.snapshot();
        let mut dispatch = Dispatch::new(request);
        let mut rounds: Reinvocation = request.reinvocation.and_then(|context| context.take(NAME)).unwrap_or_default();
        if request.reinvocation.is_some_and(|context| context.is_second_round()) {
            rounds.begin_second_round(object);
        }
        let mut shown: Option<ShownObjects<'_>> = None;
        let mut is_called = false;
        for (position, webhook) in
            snapshot.index.candidates(request.operation, &dispatch.requested(), dispatch.equivalents())
        {
            if !rounds.allows(&webhook.id) {
                continue;
            }
            let Some(version) = dispatch.matching(webhook.criteria(), object).await? else { continue };
            let current = match shown.take().filter(|shown| shown.version == version) {
                Some(current) => current,
                None => dispatch.show(object, version).await?,
            };
            if !dispatch.conditions_hold(webhook, &current, &self.0.authorizers).await? {
                shown = Some(current);
                continue;
            }
            is_called = true;
            let began = Instant::now();
            let attributes = dispatch.attributes(current.object.as_ref(), current.old_object.as_ref());
            let (handler, invocation) = (snapshot.handlers.get(&webhook.id), Invocation { resource: version });
            let answered = call(&*self.0.caller, handler, webhook, request, &attributes, invocation, true).await;
            let round = rounds.round();
            let applied = match answered {
                Ok(response) => {
                    let key = format!("patch.webhook.admission.k8s.io/round_{round}_index_{position}");
                    apply(webhook, request, response, &current, object, key).await
                }
                Err(error) => Err(error),
            };
            let (changed, error) = match applied {
                Ok(changed) => (changed, None),
                Err(error) => (None, Some(error)),
            };
            let is_changed = changed == Some(true);
            let annotation = json!({
                "configuration": webhook.configuration, "webhook": webhook.name, "mutated": is_changed,
            });
            let key = format!("mutation.webhook.admission.k8s.io/round_{round}_index_{position}");
            request.recorder.annotate(key, annotation.to_string());
            self.0.finish(webhook, request, error, began.elapsed(), || {
                format!("failed-open.mutation.webhook.admission.k8s.io/round_{round}_index_{position}")
            })?;
            rounds.record_call(&webhook.id, webhook.reinvoked_if_needed, is_changed);
            if is_changed && let Some(context) = request.reinvocation {
                context.request();
            }
            // A patch, even one without effect, passes through the defaults.
            shown = changed.is_none().then_some(current);
        }
        if is_called {
            rounds.end_round(object);
        }
        if let Some(context) = request.reinvocation {
            context.put(NAME, rounds);
        }
        Ok(())
    }
}

/// Applies the patch of a response to the object. Returns whether the object changed; `None` if the response has no
/// patch. The audit annotation `patch_annotation` records the patch from the level `Request` on.
///
/// # Errors
/// [`CallError::Denied`] for a denial; [`CallError::Internal`] for a patch that does not apply.
async fn apply(
    webhook: &Webhook,
    request: &AdmissionRequest<'_>,
    response: AdmissionResponse,
    shown: &ShownObjects<'_>,
    object: &mut Object,
    patch_annotation: String,
) -> Result<Option<bool>, CallError> {
    let operations = response.verdict.map_err(CallError::Denied)?;
    if operations.is_empty() {
        return Ok(None);
    }
    let before = shown.object.as_ref().ok_or_else(|| CallError::nothing_to_patch(&webhook.name))?;
    let mut patched = before.clone();
    let recorded = request.recorder.has_request_annotations().then(|| operations.clone());
    request.details.patch(&mut patched, operations).map_err(CallError::patch)?;
    let decoded = request.details.decode(patched, shown.version).map_err(CallError::patch)?;
    let is_changed = decoded != *before;
    if let Some(operations) = recorded {
        request.recorder.annotate_request(patch_annotation, || annotated_patch(webhook, operations));
    }
    let restored = request.details.restore(decoded, shown.version, object).await;
    *object = restored.map_err(|status| CallError::Internal(Box::new(status)))?;
    Ok(Some(is_changed))
}

/// Returns the value of a patch annotation, as Go writes a `PatchAuditAnnotation`.
fn annotated_patch(webhook: &Webhook, operations: Vec<Value>) -> String {
    let json = |text: &str| go::json(&Value::from(text));
    let (configuration, name) = (json(&webhook.configuration), json(&webhook.name));
    let patch = go::json(&Value::Array(operations));
    format!(r#"{{"configuration":{configuration},"webhook":{name},"patch":{patch},"patchType":"JSONPatch"}}"#)
}

impl MutatingAdmission for MutatingAdmissionWebhook {
    fn name(&self) -> &str {
        NAME
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        self.0.handles(request)
    }

    fn admit<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a mut Object) -> AdmissionFuture<'a, ()> {
        Box::pin(self.dispatch(request, object))
    }
}
