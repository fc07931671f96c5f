//! [`MutatingAdmissionPolicy`] applies the mutations of MutatingAdmissionPolicies to objects
//! (`policy/mutating/dispatcher.go`). Policies run one after the other, each on the result of the previous one.

use std::sync::Arc;
use std::time::Instant;

use listwatch_access::AuthorizerChain;
use listwatch_admission::{AdmissionFuture, AdmissionRequest, MutatingAdmission, Operation, PatchError, ResourceName};
use listwatch_json::Value;
use listwatch_meta::{Status, fuel};
use listwatch_policies::{Binding, BoundPolicy, Inputs, MutatingPolicy, MutatingReport, Patch, Policy};
use listwatch_validation::{Object, child, text};
use listwatch_webhook_admission::{Dispatch, ShownObjects, metered};
use listwatch_webhooks::{Invocation, Reinvocation};

use crate::metrics::PolicyMetrics;
use crate::params::{ParamReader, read_params};
use crate::plugin::handles;
use crate::policies::AdmissionPolicies;

/// The name of the plugin.
const NAME: &str = "MutatingAdmissionPolicy";

/// The admission plugin that evaluates MutatingAdmissionPolicies.
#[derive(Clone)]
pub struct MutatingAdmissionPolicy {
    policies: Arc<AdmissionPolicies<MutatingPolicy>>,
    params: Arc<dyn ParamReader>,
    authorizers: AuthorizerChain,
    metrics: Arc<PolicyMetrics>,
}

impl std::fmt::Debug for MutatingAdmissionPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple(NAME).field(&self.policies).finish()
    }
}

/// A matching policy with one of its bindings and one parameter object.
struct Run<'a, 'p> {
    policy: &'p MutatingPolicy,
    binding: &'p Binding,
    version: ResourceName<'a>,
    params: Option<Object>,
}

impl Run<'_, '_> {
    /// Returns an identifier of the policy, the binding and the parameter. The identifier is the same in both rounds.
    fn id(&self) -> String {
        let empty = Object::new();
        let metadata = self.params.as_ref().map_or(&empty, |params| child(params, "metadata"));
        let (namespace, name) = (text(metadata, "namespace"), text(metadata, "name"));
        format!("{}/{}/{namespace}/{name}", self.policy.as_ref().name, self.binding.name)
    }
}

/// The error of a mutation.
enum MutationError {
    /// The evaluation or the patch failed; the failure policy applies.
    Failed(String),
    /// The request fails with this status, whatever the failure policy is.
    Request(Box<Status>),
}

impl From<Status> for MutationError {
    fn from(status: Status) -> Self {
        MutationError::Request(Box::new(status))
    }
}

impl MutatingAdmissionPolicy {
    /// Creates the plugin. `authorizers` decide the authorization checks in expressions.
    pub fn new(
        policies: Arc<AdmissionPolicies<MutatingPolicy>>,
        params: Arc<dyn ParamReader>,
        authorizers: AuthorizerChain,
        metrics: Arc<PolicyMetrics>,
    ) -> Self {
        MutatingAdmissionPolicy { policies, params, authorizers, metrics }
    }

    async fn dispatch(&self, request: &AdmissionRequest<'_>, object: &mut Object) -> Result<(), Status> {
        let snapshot = self.policies.snapshot();
        let mut dispatch = Dispatch::new(request);
        let mut report = MutatingReport::default();
        let mut runs: Vec<Run<'_, '_>> = Vec::new();
        for bound in snapshot.candidates(request.operation, &dispatch.requested(), dispatch.equivalents()) {
            self.add_runs(&mut dispatch, object, bound, &mut runs, &mut report).await;
        }
        if !runs.is_empty() {
            dispatch.load_namespace().await?;
            self.run_all(&mut dispatch, request, object, &runs, &mut report).await?;
        }
        report.finish(&dispatch.attributes(Some(object), request.old_object))
    }

    /// Adds a [`Run`] to `runs` for each matching binding of a policy and each parameter object of that binding.
    async fn add_runs<'a, 'p>(
        &self,
        dispatch: &mut Dispatch<'a>,
        object: &Object,
        bound: &'p BoundPolicy<MutatingPolicy>,
        runs: &mut Vec<Run<'a, 'p>>,
        report: &mut MutatingReport,
    ) {
        let policy: &Policy = (*bound.policy).as_ref();
        let version = match dispatch.matching(&policy.criteria, object).await {
            Ok(Some(version)) => version,
            Ok(None) => return,
            Err(status) => return report.add_configuration_error(policy, None, &status.message),
        };
        let namespaced = match &policy.param_kind {
            None => false,
            Some(kind) => match self.params.is_namespaced(kind) {
                Some(namespaced) => namespaced,
                None => return report.add_configuration_error(policy, None, &kind.not_found()),
            },
        };
        for binding in &bound.bindings {
            let params = match dispatch.matching(&binding.criteria, object).await {
                Ok(None) => continue,
                Ok(Some(_)) => {
                    let namespace = dispatch.attributes(None, None).namespace;
                    read_params(&*self.params, policy, binding, namespaced, namespace).await
                }
                Err(status) => Err(status.message),
            };
            match params {
                Ok(params) => {
                    let run = |params| Run { policy: &bound.policy, binding, version, params };
                    runs.extend(params.into_iter().map(run));
                }
                Err(why) => report.add_configuration_error(policy, Some(binding), &why),
            }
        }
    }

    async fn run_all<'a>(
        &self,
        dispatch: &mut Dispatch<'a>,
        request: &AdmissionRequest<'_>,
        object: &mut Object,
        runs: &[Run<'a, '_>],
        report: &mut MutatingReport,
    ) -> Result<(), Status> {
        let mut rounds: Reinvocation = request.reinvocation.and_then(|context| context.take(NAME)).unwrap_or_default();
        let is_second_round = request.reinvocation.is_some_and(|context| context.is_second_round());
        if is_second_round {
            rounds.begin_second_round(object);
        }
        let mut shown: Option<ShownObjects<'a>> = None;
        // Whether a mutation succeeded since the object was last converted to another version (`Dirty`).
        let mut is_dirty = false;
        let mut last_version = None;
        for run in runs {
            let policy = run.policy.as_ref();
            is_dirty &= last_version.replace(run.version) == Some(run.version);
            let mut current = match shown.take().filter(|shown| shown.version == run.version) {
                Some(current) => current,
                None => dispatch.show(object, run.version).await?,
            };
            match self.conditions_hold(dispatch, run, &current, request.details.deadline()).await? {
                Ok(true) => {}
                Ok(false) => {
                    shown = Some(current);
                    continue;
                }
                Err(why) => {
                    report.add_evaluation_error(policy, run.binding, &why);
                    shown = Some(current);
                    continue;
                }
            }
            let id = run.id();
            if is_second_round && !rounds.allows(&id) {
                shown = Some(current);
                continue;
            }
            let before = current.object.clone();
            for position in 0..run.policy.mutations() {
                let began = Instant::now();
                let mutated = self.mutate(dispatch, request, run, position, &mut current, object).await;
                let error = match mutated {
                    Ok(()) => None,
                    Err(MutationError::Failed(why)) => Some(why),
                    Err(MutationError::Request(status)) => return Err(*status),
                };
                self.metrics.observe_mutation(&policy.name, &run.binding.name, error.as_deref(), began.elapsed());
                is_dirty |= error.is_none() && current.object.is_some();
                if let Some(why) = error {
                    report.add_evaluation_error(policy, run.binding, &why);
                }
            }
            let is_changed = before != current.object;
            rounds.record_call(&id, run.policy.reinvoked_if_needed, is_changed);
            if is_changed && let Some(context) = request.reinvocation {
                context.request();
            }
            shown = Some(current);
        }
        // As in upstream, a successful mutation runs again in the second round, even if the object is unchanged.
        if is_dirty {
            rounds.reinvoke_all();
            if let Some(context) = request.reinvocation {
                context.request();
            }
        }
        rounds.end_round(object);
        if let Some(context) = request.reinvocation {
            context.put(NAME, rounds);
        }
        Ok(())
    }

    /// Returns the inputs for the expressions of a run.
    fn inputs<'s>(dispatch: &'s Dispatch<'_>, run: &'s Run<'_, '_>, shown: &'s ShownObjects<'_>) -> Inputs<'s> {
        Inputs {
            attributes: dispatch.attributes(shown.object.as_ref(), shown.old_object.as_ref()),
            invocation: Invocation { resource: run.version },
            params: run.params.as_ref(),
            namespace: dispatch.namespace(),
            decisions: dispatch.decisions(),
        }
    }

    /// Evaluates the match conditions. The failure policy applies to the inner error.
    ///
    /// # Errors
    /// 504 if the fuel or the time is used up.
    async fn conditions_hold(
        &self,
        dispatch: &mut Dispatch<'_>,
        run: &Run<'_, '_>,
        shown: &ShownObjects<'_>,
        deadline: Option<Instant>,
    ) -> Result<Result<bool, String>, Status> {
        loop {
            let inputs = Self::inputs(dispatch, run, shown);
            let result = metered(deadline, || run.policy.conditions_hold(&inputs))?;
            if !dispatch.decide(&self.authorizers).await {
                return Ok(result);
            }
        }
    }

    /// Runs one mutation. Updates `object`, and `shown`, which is the object in the version of the run.
    async fn mutate<'a>(
        &self,
        dispatch: &mut Dispatch<'a>,
        request: &AdmissionRequest<'_>,
        run: &Run<'a, '_>,
        position: usize,
        shown: &mut ShownObjects<'a>,
        object: &mut Object,
    ) -> Result<(), MutationError> {
        let patch = loop {
            let inputs = Self::inputs(dispatch, run, shown);
            let patch = metered(request.details.deadline(), || run.policy.patch(position, &inputs))?;
            if !dispatch.decide(&self.authorizers).await {
                break patch.map_err(MutationError::Failed)?;
            }
        };
        let (Some(patch), Some(before)) = (patch, &shown.object) else { return Ok(()) };
        let decoded = match patch {
            Patch::ApplyConfiguration(mut configuration) => {
                for name in ["apiVersion", "kind"] {
                    configuration.insert(name.to_owned(), before.get(name).cloned().unwrap_or(Value::Null));
                }
                let merged = request.details.merge(before, configuration, run.version);
                let merged = merged.map_err(|why| MutationError::Failed(format!("error applying patch: {why}")))?;
                request.details.decode(merged, run.version).map_err(MutationError::Failed)?
            }
            Patch::JsonPatch(operations) => {
                let mut patched = before.clone();
                match request.details.patch(&mut patched, operations) {
                    Ok(()) => {}
                    // A failed test means that the patch does not concern the object.
                    Err(PatchError::TestFailed(_)) => return Ok(()),
                    Err(PatchError::Failed(why)) => return Err(MutationError::Failed(format!("JSON Patch: {why}"))),
                }
                request.details.decode(patched, run.version).map_err(Status::internal)?
            }
        };
        if fuel::is_exhausted() {
            return Err(Status::request_timed_out().into());
        }
        *object = request.details.restore(decoded, run.version, object).await?;
        *shown = dispatch.show(object, run.version).await?;
        Ok(())
    }
}

impl MutatingAdmission for MutatingAdmissionPolicy {
    fn name(&self) -> &str {
        NAME
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        // There is nothing to change in a deletion.
        request.operation != Operation::Delete && handles(&self.policies, request)
    }

    fn admit<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a mut Object) -> AdmissionFuture<'a, ()> {
        Box::pin(self.dispatch(request, object))
    }
}
