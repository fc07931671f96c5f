//! [`ValidatingPolicy`]: evaluates validations, messages and audit annotations (`policy/validating/validator.go`).
//!
//! Message expressions are evaluated only if a validation fails. Upstream always evaluates message expressions, with
//! the same result.

use listwatch_cel::{AdmissionVariables, ResultType, Value as CelValue, compile_expression};
use listwatch_validation::{Object, child, objects, text};
use listwatch_webhooks::FailurePolicy;

use crate::activation::{Activation, Inputs, Place};
use crate::evaluation::{Compiled, Conditions, Evaluator, POLICY_COST_MAX, match_conditions};
use crate::policy::Policy;

/// Maximum size of the result of a message expression, in bytes (`MaxEvaluatedMessageExpressionSizeBytes`). The fixed
/// message replaces a longer one.
pub const MESSAGE_BYTES_MAX: usize = 5 * 1024;

/// A compiled ValidatingAdmissionPolicy.
#[derive(Debug)]
pub struct ValidatingPolicy {
    policy: Policy,
    validations: Vec<Validation>,
    annotations: Vec<Annotation>,
}

#[derive(Debug)]
struct Validation {
    rule: Compiled,
    message: String,
    message_expression: Option<Compiled>,
    reason: Reason,
}

#[derive(Debug)]
struct Annotation {
    key: String,
    value: Compiled,
}

/// The reason of a rejection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// 403.
    Forbidden,
    /// 413.
    RequestEntityTooLarge,
    /// 422, the default.
    #[default]
    Invalid,
}

impl Reason {
    /// The reason in the Status of the rejection.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Reason::Forbidden => "Forbidden",
            Reason::RequestEntityTooLarge => "RequestEntityTooLarge",
            Reason::Invalid => "Invalid",
        }
    }

    /// The HTTP status code of the rejection (`reasonToCode`).
    pub(crate) fn code(self) -> u16 {
        match self {
            Reason::Forbidden => 403,
            Reason::RequestEntityTooLarge => 413,
            Reason::Invalid => 422,
        }
    }
}

/// The result of one validation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The validation holds.
    Admit,
    /// The evaluation failed under the failure policy `Ignore`.
    Ignore(String),
    /// The validation does not hold, or its evaluation failed under the failure policy `Fail`.
    Deny {
        /// The message for the client.
        message: String,
        /// The reason; [`Reason::Invalid`] after a failed evaluation.
        reason: Reason,
        /// Whether the evaluation failed.
        failed: bool,
    },
}

impl Decision {
    /// The decision after a failed evaluation.
    fn failed(message: String, policy: FailurePolicy) -> Self {
        match policy {
            FailurePolicy::Ignore => Decision::Ignore(message),
            FailurePolicy::Fail => Decision::Deny { message, reason: Reason::Invalid, failed: true },
        }
    }
}

/// The result of one audit annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnnotationResult {
    /// The key, without the name of the policy, and the value.
    Publish(String, String),
    /// The evaluation failed under the failure policy `Fail`: the request is rejected with this text.
    Failed(String),
}

/// The result of a policy for one binding and one parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evaluated {
    /// One decision per validation. A single decision if the evaluation of the policy failed. Empty if a match
    /// condition is false.
    pub decisions: Vec<Decision>,
    /// The audit annotations with a value.
    pub annotations: Vec<AnnotationResult>,
}

impl AsRef<Policy> for ValidatingPolicy {
    fn as_ref(&self) -> &Policy {
        &self.policy
    }
}

impl ValidatingPolicy {
    /// Compiles a policy that has passed validation. An expression that does not compile fails when it is evaluated.
    pub fn parse(object: &Object) -> Self {
        let ((policy, in_rules), spec) = (Policy::parse(object), child(object, "spec"));
        let in_texts = in_rules.clone().with_authorizer(false);
        let compiled = |source: &str, variables: &AdmissionVariables<'_>, outcome| Compiled {
            source: source.to_owned(),
            expression: compile_expression(source, variables, false, outcome),
        };
        let validations = objects(spec, "validations").map(|(_, validation)| Validation {
            rule: compiled(text(validation, "expression"), &in_rules, ResultType::Bool),
            message: text(validation, "message").trim().to_owned(),
            message_expression: Some(text(validation, "messageExpression"))
                .filter(|source| !source.is_empty())
                .map(|source| compiled(source, &in_texts, ResultType::Text)),
            reason: match text(validation, "reason") {
                "Forbidden" => Reason::Forbidden,
                "RequestEntityTooLarge" => Reason::RequestEntityTooLarge,
                _ => Reason::Invalid,
            },
        });
        let annotations = objects(spec, "auditAnnotations").map(|(_, annotation)| Annotation {
            key: text(annotation, "key").to_owned(),
            value: compiled(text(annotation, "valueExpression"), &in_texts, ResultType::TextOrNull),
        });
        ValidatingPolicy { validations: validations.collect(), annotations: annotations.collect(), policy }
    }

    /// Evaluates the policy for one binding and one parameter.
    ///
    /// The result has no meaning if an authorization check is undecided. The caller then adds the decision to
    /// `decisions` and calls again. The result also has no meaning if the fuel (`listwatch_meta::fuel`) is used up.
    pub fn evaluate(&self, inputs: &Inputs<'_>) -> Evaluated {
        let activation = Activation::new(inputs);
        let failed = |why: String| Evaluated {
            decisions: vec![Decision::failed(why, self.policy.failure_policy)],
            annotations: Vec::new(),
        };
        match match_conditions(&self.policy, &activation) {
            Conditions::Hold => {}
            Conditions::Skip => return Evaluated::default(),
            Conditions::Failed(why) => return failed(why),
        }
        let decisions = match self.decisions(&activation) {
            Ok(decisions) => decisions,
            Err(why) => return failed(why),
        };
        match self.annotation_results(&activation) {
            Ok(annotations) => Evaluated { decisions, annotations },
            Err(why) => failed(why),
        }
    }

    /// Evaluates the validations.
    ///
    /// # Errors
    /// The error message if the cost budget is used up.
    fn decisions(&self, activation: &Activation<'_>) -> Result<Vec<Decision>, String> {
        let variables = &self.policy.variables;
        let mut evaluator = Evaluator::new(variables, activation, Place::Rule, POLICY_COST_MAX);
        let mut results: Vec<Result<bool, String>> = Vec::with_capacity(self.validations.len());
        for validation in &self.validations {
            let value = evaluator.evaluate(&validation.rule)?;
            results.push(value.map(|value| value.as_bool() == Some(true)));
        }
        let messages = match results.contains(&Ok(false)) {
            true => self.messages(activation, evaluator.left()),
            false => Ok(vec![None; results.len()]),
        };
        let policy = self.policy.failure_policy;
        let decide = |(position, result): (usize, Result<bool, String>)| {
            let validation = &self.validations[position];
            match (result, &messages) {
                (Err(why), _) => Decision::failed(why, policy),
                (Ok(_), Err(why)) => Decision::failed(format!("failed messageExpression: {why}"), policy),
                (Ok(true), _) => Decision::Admit,
                (Ok(false), Ok(messages)) => Decision::Deny {
                    message: messages[position].clone().unwrap_or_else(|| validation.fixed_message()),
                    reason: validation.reason,
                    failed: false,
                },
            }
        };
        Ok(results.into_iter().enumerate().map(decide).collect())
    }

    /// Evaluates the message expressions. `None` means that the fixed message is used.
    ///
    /// # Errors
    /// The error message if the cost budget is used up.
    fn messages(&self, activation: &Activation<'_>, budget: u64) -> Result<Vec<Option<String>>, String> {
        let mut evaluator = Evaluator::new(&self.policy.variables, activation, Place::Text, budget);
        let messages = self.validations.iter().map(|validation| match &validation.message_expression {
            None => Ok(None),
            // An error of the expression selects the fixed message.
            Some(expression) => Ok(evaluator.evaluate(expression)?.ok().and_then(|value| usable_message(&value))),
        });
        messages.collect()
    }

    /// Evaluates the audit annotations.
    ///
    /// # Errors
    /// The error message if the cost budget is used up.
    fn annotation_results(&self, activation: &Activation<'_>) -> Result<Vec<AnnotationResult>, String> {
        if self.annotations.is_empty() {
            return Ok(Vec::new());
        }
        let mut evaluator = Evaluator::new(&self.policy.variables, activation, Place::Text, POLICY_COST_MAX);
        let mut results = Vec::new();
        for Annotation { key, value } in &self.annotations {
            match evaluator.evaluate(value)? {
                Err(why) if self.policy.failure_policy == FailurePolicy::Fail => {
                    results.push(AnnotationResult::Failed(why));
                }
                Err(_) => {}
                Ok(found) => match found.as_str().map(str::trim) {
                    Some("") => {}
                    Some(text) => results.push(AnnotationResult::Publish(key.clone(), text.to_owned())),
                    None if found.is_null() => {}
                    None => results.push(AnnotationResult::Failed(format!(
                        "valueExpression '{}' resulted in unsupported return type: {}. Return type must be either string \
                         or null.",
                        value.source,
                        found.type_name()
                    ))),
                },
            }
        }
        Ok(results)
    }
}

impl Validation {
    /// Returns the message of a failed validation without a usable message expression.
    fn fixed_message(&self) -> String {
        match self.message.as_str() {
            "" => format!("failed expression: {}", self.rule.source.trim()),
            message => message.to_owned(),
        }
    }
}

/// Returns the message of a message expression, unless the message is blank, too long or has several lines.
fn usable_message(value: &CelValue<'_>) -> Option<String> {
    let message = value.as_str()?.trim();
    let usable = !message.is_empty() && message.len() <= MESSAGE_BYTES_MAX && !message.contains('\n');
    usable.then(|| message.to_owned())
}
