//! [`ValidatingReport`]: combines the decisions of all policies on one request (`policy/validating/dispatcher.go`).

use listwatch_json::Value;
use listwatch_meta::status::StatusCause;
use listwatch_meta::{GroupResource, Status, go};
use listwatch_validation::{Object, child, text};
use listwatch_webhooks::{Attributes, FailurePolicy};

use crate::policy::{Action, Binding, Policy};
use crate::validating::{AnnotationResult, Decision, Evaluated, Reason};

/// The audit annotation of the first failed validation. The value is a list of one failure
/// (`publishValidationFailureAnnotation`). As in upstream, an annotation keeps its first value.
const VALIDATION_FAILURE: &str = "validation.policy.admission.k8s.io/validation_failure";

/// Collects the decisions of all policies about one request.
#[derive(Debug, Default)]
pub struct ValidatingReport {
    /// The reason and message of the first denial. Later denials are not reported.
    denial: Option<(Reason, String)>,
    /// The first failure with the action `Audit`.
    audited_failure: Option<String>,
    warnings: Vec<String>,
    /// The annotations of the current policy: key and distinct values.
    published: Vec<(String, Vec<String>)>,
    annotations: Vec<(String, String)>,
    checks: Vec<PolicyCheck>,
}

/// The metric labels of one decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyCheck {
    /// `allow`, `deny`, `warn` or `audit`.
    pub enforcement_action: &'static str,
    /// `no_error`, `compile_error`, `out_of_budget` or `invalid_error`.
    pub error_type: &'static str,
}

/// The effects of all policies on one request.
#[derive(Debug)]
pub struct ReportedEffects {
    /// The warnings for the client.
    pub warnings: Vec<String>,
    /// The keys and values for the audit event.
    pub annotations: Vec<(String, String)>,
    /// The rejection, if there is one.
    pub rejection: Option<Status>,
}

/// Returns the metric label `error_type` of an error message (`ErrorType`).
pub fn error_type(why: &str) -> &'static str {
    match why {
        _ if why.starts_with("compilation") => "compile_error",
        _ if why.starts_with("validation failed due to running out of cost budget") => "out_of_budget",
        _ => "invalid_error",
    }
}

impl ValidatingReport {
    /// Adds a configuration error of a policy, or of a binding if `binding` is set.
    pub fn add_configuration_error(&mut self, policy: &Policy, binding: Option<&Binding>, why: &str) {
        if policy.failure_policy == FailurePolicy::Ignore {
            return;
        }
        let what = if binding.is_some() { "binding" } else { "policy" };
        self.deny(policy, binding, Reason::default(), &format!("failed to configure {what}: {why}"));
    }

    /// Adds the result of a policy for one binding and one parameter.
    pub fn add(&mut self, policy: &Policy, binding: &Binding, evaluated: Evaluated) {
        for (position, decision) in evaluated.decisions.into_iter().enumerate() {
            match decision {
                Decision::Admit => {}
                Decision::Ignore(why) => {
                    self.checks.push(PolicyCheck { enforcement_action: "allow", error_type: error_type(&why) })
                }
                Decision::Deny { message, reason, .. } => {
                    self.act(policy, binding, position, reason, &message);
                }
            }
        }
        for annotation in evaluated.annotations {
            match annotation {
                AnnotationResult::Publish(key, value) => self.publish(key, value),
                AnnotationResult::Failed(why) => {
                    self.checks.push(PolicyCheck { enforcement_action: "deny", error_type: error_type(&why) });
                    self.deny(policy, Some(binding), Reason::default(), &why);
                }
            }
        }
    }

    /// Carries out the actions of a binding after a failed validation.
    fn act(&mut self, policy: &Policy, binding: &Binding, position: usize, reason: Reason, message: &str) {
        for action in &binding.actions {
            let enforcement_action = match action {
                Action::Deny => {
                    self.deny(policy, Some(binding), reason, message);
                    "deny"
                }
                Action::Audit => {
                    self.audited_failure.get_or_insert_with(|| audited_failure(binding, position, message));
                    "audit"
                }
                Action::Warn => {
                    self.warnings.push(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
                        policy.name, binding.name
                    ));
                    "warn"
                }
            };
            self.checks.push(PolicyCheck { enforcement_action, error_type: error_type(message) });
        }
    }

    fn deny(&mut self, policy: &Policy, binding: Option<&Binding>, reason: Reason, why: &str) {
        self.denial.get_or_insert_with(|| {
            let with = binding.map(|binding| format!(" with binding '{}'", binding.name)).unwrap_or_default();
            (reason, format!("ValidatingAdmissionPolicy '{}'{with} denied request: {why}", policy.name))
        });
    }

    fn publish(&mut self, key: String, value: String) {
        match self.published.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) if values.contains(&value) => {}
            Some((_, values)) => values.push(value),
            None => self.published.push((key, vec![value])),
        }
    }

    /// Finishes a policy. Joins the annotation values of each key over all bindings and parameters.
    pub fn end_policy(&mut self, policy: &Policy) {
        for (key, values) in self.published.drain(..) {
            self.annotations.push((format!("{}/{key}", policy.name), values.join(", ")));
        }
    }

    /// Removes and returns the decisions since the last call, for the metrics.
    pub fn take_checks(&mut self) -> Vec<PolicyCheck> {
        std::mem::take(&mut self.checks)
    }

    /// Returns the effects on the request.
    pub fn finish(mut self, attributes: &Attributes<'_>) -> ReportedEffects {
        if let Some(failure) = self.audited_failure {
            self.annotations.push((VALIDATION_FAILURE.to_owned(), failure));
        }
        let rejection = self.denial.map(|(reason, message)| {
            let mut status = forbidden(attributes, &message);
            (status.reason, status.code) = (reason.name().into(), reason.code());
            let details = status.details.get_or_insert_default();
            details.causes.push(StatusCause { message, ..StatusCause::default() });
            status
        });
        ReportedEffects { warnings: self.warnings, annotations: self.annotations, rejection }
    }
}

/// Returns the audit annotation of a failed validation, as Go writes a list of one `ValidationFailureValue`.
fn audited_failure(binding: &Binding, position: usize, message: &str) -> String {
    let json = |text: &str| go::json(&Value::from(text));
    let (message, policy, name) = (json(message), json(&binding.policy_name), json(&binding.name));
    let actions: Vec<String> = binding.actions.iter().map(|action| json(action.name())).collect();
    format!(
        r#"[{{"message":{message},"policy":{policy},"binding":{name},"expressionIndex":{position},"validationActions":[{}]}}]"#,
        actions.join(",")
    )
}

/// Returns the 403 for a request (`admission.NewForbidden`). The message contains the first name that is set: the name
/// in the request, the name in the object, or `generateName`.
pub(crate) fn forbidden(attributes: &Attributes<'_>, why: &str) -> Status {
    let resource = GroupResource { group: attributes.resource.group, resource: attributes.resource.resource };
    let of = |object: &'_ Object, field| text(child(object, "metadata"), field).to_owned();
    let mut name = attributes.name.to_owned();
    if let Some(object) = attributes.object.filter(|_| name.is_empty()) {
        name = of(object, "name");
        if name.is_empty() {
            name = of(object, "generateName");
        }
    }
    if name.is_empty() {
        "Unknown".clone_into(&mut name);
    }
    Status::forbidden(resource, &name, why)
}
