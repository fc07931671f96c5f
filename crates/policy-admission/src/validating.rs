//! [`ValidatingAdmissionPolicy`] evaluates ValidatingAdmissionPolicies for writes (`policy/validating/dispatcher.go`).
//! Each matching policy is evaluated for each of its matching bindings and parameters.

use std::sync::Arc;
use std::time::Instant;

use listwatch_access::AuthorizerChain;
use listwatch_admission::{AdmissionFuture, AdmissionRequest, ValidatingAdmission};
use listwatch_meta::Status;
use listwatch_policies::{BoundPolicy, Inputs, Policy, ReportedEffects, ValidatingPolicy, ValidatingReport};
use listwatch_validation::Object;
use listwatch_webhook_admission::{Dispatch, ShownObjects, metered};
use listwatch_webhooks::Invocation;

use crate::metrics::PolicyMetrics;
use crate::params::{ParamReader, read_params};
use crate::plugin::handles;
use crate::policies::AdmissionPolicies;

/// The name of the plugin.
const NAME: &str = "ValidatingAdmissionPolicy";

/// The admission plugin that evaluates ValidatingAdmissionPolicies.
#[derive(Clone)]
pub struct ValidatingAdmissionPolicy {
    policies: Arc<AdmissionPolicies<ValidatingPolicy>>,
    params: Arc<dyn ParamReader>,
    authorizers: AuthorizerChain,
    metrics: Arc<PolicyMetrics>,
}

impl std::fmt::Debug for ValidatingAdmissionPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple(NAME).field(&self.policies).finish()
    }
}

impl ValidatingAdmissionPolicy {
    /// Creates the plugin. `authorizers` decide the authorization checks in expressions.
    pub fn new(
        policies: Arc<AdmissionPolicies<ValidatingPolicy>>,
        params: Arc<dyn ParamReader>,
        authorizers: AuthorizerChain,
        metrics: Arc<PolicyMetrics>,
    ) -> Self {
        ValidatingAdmissionPolicy { policies, params, authorizers, metrics }
    }

    async fn dispatch(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        let snapshot = self.policies.snapshot();
        let mut judged = Judged {
            dispatch: Dispatch::new(request),
            deadline: request.details.deadline(),
            object,
            versions: Vec::new(),
            report: ValidatingReport::default(),
        };
        for bound in snapshot.candidates(request.operation, &judged.dispatch.requested(), judged.dispatch.equivalents())
        {
            self.judge(&mut judged, bound).await?;
        }
        let Judged { dispatch, report, .. } = judged;
        let shown = (request.operation != listwatch_admission::Operation::Delete).then_some(object);
        let effects = report.finish(&dispatch.attributes(shown, request.old_object));
        let ReportedEffects { warnings, annotations, rejection } = effects;
        warnings.into_iter().for_each(|warning| request.recorder.warn(warning));
        annotations.into_iter().for_each(|(key, value)| request.recorder.annotate(key, value));
        rejection.map_or(Ok(()), Err)
    }

    /// Evaluates one policy for the request.
    ///
    /// # Errors
    /// 404 if the namespace does not exist; 504 if the fuel or the time is used up; the error of a conversion. The
    /// failure policy applies to all other errors.
    async fn judge<'a>(&self, judged: &mut Judged<'a>, bound: &BoundPolicy<ValidatingPolicy>) -> Result<(), Status> {
        let policy: &Policy = (*bound.policy).as_ref();
        let version = match judged.dispatch.matching(&policy.criteria, judged.object).await {
            Ok(Some(version)) => version,
            Ok(None) => return Ok(()),
            Err(status) => {
                judged.report.add_configuration_error(policy, None, &status.message);
                return Ok(());
            }
        };
        let namespaced = match &policy.param_kind {
            None => false,
            Some(kind) => match self.params.is_namespaced(kind) {
                Some(namespaced) => namespaced,
                None => {
                    judged.report.add_configuration_error(policy, None, &kind.not_found());
                    return Ok(());
                }
            },
        };
        for binding in &bound.bindings {
            let matches = judged.dispatch.matching(&binding.criteria, judged.object).await;
            let params = match matches {
                Ok(None) => continue,
                Ok(Some(_)) => {
                    let namespace = judged.dispatch.attributes(None, None).namespace;
                    read_params(&*self.params, policy, binding, namespaced, namespace).await
                }
                Err(status) => Err(status.message),
            };
            let params = match params {
                Ok(params) => params,
                Err(why) => {
                    judged.report.add_configuration_error(policy, Some(binding), &why);
                    continue;
                }
            };
            judged.dispatch.load_namespace().await?;
            let at = judged.show(version).await?;
            for params in &params {
                let began = Instant::now();
                let evaluated = loop {
                    let shown = &judged.versions[at];
                    let inputs = Inputs {
                        attributes: judged.dispatch.attributes(shown.object.as_ref(), shown.old_object.as_ref()),
                        invocation: Invocation { resource: version },
                        params: params.as_ref(),
                        namespace: judged.dispatch.namespace(),
                        decisions: judged.dispatch.decisions(),
                    };
                    let evaluated = metered(judged.deadline, || bound.policy.evaluate(&inputs))?;
                    if !judged.dispatch.decide(&self.authorizers).await {
                        break evaluated;
                    }
                };
                judged.report.add(policy, binding, evaluated);
                let checks = judged.report.take_checks();
                self.metrics.observe_validations(&policy.name, &binding.name, &checks, began.elapsed());
            }
        }
        judged.report.end_policy(policy);
        Ok(())
    }
}

/// The state of the evaluation of one request.
struct Judged<'a> {
    dispatch: Dispatch<'a>,
    deadline: Option<Instant>,
    object: &'a Object,
    /// The objects of the request in the versions that policies have matched.
    versions: Vec<ShownObjects<'a>>,
    report: ValidatingReport,
}

impl<'a> Judged<'a> {
    /// Returns the index in `versions` of the request's objects in this version. Converts the objects at first use.
    async fn show(&mut self, version: listwatch_admission::ResourceName<'a>) -> Result<usize, Status> {
        if let Some(at) = self.versions.iter().position(|shown| shown.version == version) {
            return Ok(at);
        }
        self.versions.push(self.dispatch.show(self.object, version).await?);
        Ok(self.versions.len() - 1)
    }
}

impl ValidatingAdmission for ValidatingAdmissionPolicy {
    fn name(&self) -> &str {
        NAME
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        handles(&self.policies, request)
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a Object) -> AdmissionFuture<'a, ()> {
        Box::pin(self.dispatch(request, object))
    }
}
