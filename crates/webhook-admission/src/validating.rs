//! [`ValidatingAdmissionWebhook`] calls validating webhooks concurrently (`validating/dispatcher.go`), and awaits all
//! of them. The first error in the order of the webhooks rejects the request.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use listwatch_access::AuthorizerChain;
use listwatch_admission::{AdmissionFuture, AdmissionRequest, ValidatingAdmission};
use listwatch_meta::Status;
use listwatch_validation::Object;
use listwatch_webhooks::{CallError, Invocation, Webhook, WebhookCaller};

use crate::call::call;
use crate::configurations::WebhookConfigurations;
use crate::dispatch::{Dispatch, ShownObjects};
use crate::metrics::WebhookMetrics;
use crate::plugin::Dispatcher;

/// The name of the plugin.
const NAME: &str = "ValidatingAdmissionWebhook";

/// The admission plugin that calls the webhooks of ValidatingWebhookConfigurations.
#[derive(Clone)]
pub struct ValidatingAdmissionWebhook(Dispatcher);

impl std::fmt::Debug for ValidatingAdmissionWebhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple(NAME).field(&self.0.configurations).finish()
    }
}

impl ValidatingAdmissionWebhook {
    /// Creates the plugin. `authorizers` decide the authorization checks in match conditions.
    pub fn new(
        configurations: Arc<WebhookConfigurations>,
        caller: Arc<dyn WebhookCaller>,
        metrics: Arc<WebhookMetrics>,
        authorizers: AuthorizerChain,
    ) -> Self {
        ValidatingAdmissionWebhook(Dispatcher {
            configurations,
            caller,
            metrics,
            authorizers,
            webhook_type: "validating",
        })
    }

    async fn dispatch(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        let snapshot = self.0.configurations.snapshot();
        let mut dispatch = Dispatch::new(request);
        let mut versions: Vec<ShownObjects<'_>> = Vec::new();
        let mut called: Vec<(&Arc<Webhook>, usize)> = Vec::new();
        for (_, webhook) in snapshot.index.candidates(request.operation, &dispatch.requested(), dispatch.equivalents())
        {
            let Some(version) = dispatch.matching(webhook.criteria(), object).await? else { continue };
            let at = match versions.iter().position(|shown| shown.version == version) {
                Some(at) => at,
                None => {
                    versions.push(dispatch.show(object, version).await?);
                    versions.len() - 1
                }
            };
            if dispatch.conditions_hold(webhook, &versions[at], &self.0.authorizers).await? {
                called.push((webhook, at));
            }
        }
        let (dispatch, versions, snapshot) = (&dispatch, &versions, &snapshot);
        let calls = called.into_iter().enumerate().map(|(position, (webhook, at))| async move {
            let shown = &versions[at];
            let began = Instant::now();
            let attributes = dispatch.attributes(shown.object.as_ref(), shown.old_object.as_ref());
            let (handler, invocation) = (snapshot.handlers.get(&webhook.id), Invocation { resource: shown.version });
            let answered = call(&*self.0.caller, handler, webhook, request, &attributes, invocation, false).await;
            let allowed = answered.and_then(|response| response.verdict.map_err(CallError::Denied));
            self.0.finish(webhook, request, allowed.err(), began.elapsed(), || {
                format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{position}")
            })
        });
        join_all(calls).await.into_iter().collect()
    }
}

impl ValidatingAdmission for ValidatingAdmissionWebhook {
    fn name(&self) -> &str {
        NAME
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        self.0.handles(request)
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a Object) -> AdmissionFuture<'a, ()> {
        Box::pin(self.dispatch(request, object))
    }
}
