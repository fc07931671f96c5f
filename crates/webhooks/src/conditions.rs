//! The match conditions of a webhook: CEL over the objects and the request (`matchconditions/matcher.go`).
//!
//! One false condition skips the webhook, even beside a failed one. Otherwise a failed condition follows the failure
//! policy. The variable `authorizer` is not available here: a condition that uses it fails.

use listwatch_cel::{EvalError, Expression, Value as CelValue};
use listwatch_meta::{GroupResource, Status, fuel};
use listwatch_validation::{Object, objects, text};
use serde_json::Value;

use crate::attributes::Attributes;
use crate::matching::Invocation;
use crate::review::request_without_objects;
use crate::webhook::{FailurePolicy, Webhook};

/// The largest cost of one condition, in units of CEL (`PerCallLimit`). A condition above it fails.
pub const EXPRESSION_COST_MAX: u64 = 1_000_000;

/// The largest cost of all conditions of one webhook, in units of CEL (`RuntimeCELCostBudgetMatchConditions`). Above it
/// the failure policy decides, and later conditions do not count.
pub const MATCH_CONDITIONS_COST_MAX: u64 = 2_500_000;

/// The text for a webhook whose conditions cost more than [`MATCH_CONDITIONS_COST_MAX`].
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// The result of all conditions of a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConditionResult {
    /// The webhook is called.
    Call,
    /// The webhook is skipped: a condition is false, or a condition failed under the failure policy `Ignore`.
    Skip {
        /// The name of the false condition; `None` after a failure.
        condition: Option<String>,
    },
}

/// The compiled conditions of one webhook.
#[derive(Debug)]
pub(crate) struct MatchConditions(Vec<Condition>);

#[derive(Debug)]
struct Condition {
    name: String,
    source: String,
    /// The compiled expression, or the compiler's text.
    compiled: Result<Expression, String>,
}

impl MatchConditions {
    pub(crate) fn compile(hook: &Object) -> Self {
        let compiled = objects(hook, "matchConditions").map(|(_, condition)| {
            let source = text(condition, "expression").trim();
            let compiled = match Expression::parse(source) {
                Ok(expression) if expression.mentions("authorizer") => {
                    Err("the variable authorizer is not available on this server".to_owned())
                }
                Ok(expression) => Ok(expression),
                Err(error) => Err(format!("compilation failed: {error}")),
            };
            Condition { name: text(condition, "name").to_owned(), source: source.to_owned(), compiled }
        });
        MatchConditions(compiled.collect())
    }
}

impl Webhook {
    /// Whether the webhook has match conditions, so that the caller converts the objects for them.
    pub fn has_conditions(&self) -> bool {
        !self.conditions.0.is_empty()
    }

    /// Evaluates the match conditions over objects in the version of `invocation`.
    ///
    /// The evaluation takes fuel (`listwatch_meta::fuel`).
    ///
    /// # Errors
    /// 403 if a condition fails under the failure policy `Fail`; 504 if the fuel is used up.
    pub fn check_conditions(
        &self,
        attributes: &Attributes<'_>,
        invocation: &Invocation<'_>,
    ) -> Result<ConditionResult, Status> {
        if !self.has_conditions() {
            return Ok(ConditionResult::Call);
        }
        let evaluated = self.evaluate(attributes, invocation);
        // A result without fuel is arbitrary.
        if fuel::is_exhausted() {
            return Err(Status::request_timed_out());
        }
        match evaluated {
            Ok(result) => Ok(result),
            Err(_) if self.failure_policy == FailurePolicy::Ignore => Ok(ConditionResult::Skip { condition: None }),
            Err(why) => {
                let resource =
                    GroupResource { group: attributes.resource.group, resource: attributes.resource.resource };
                Err(Status::forbidden(resource, attributes.name, why))
            }
        }
    }

    /// Evaluates the conditions in order.
    ///
    /// # Errors
    /// The text of the failed conditions, if none is false.
    fn evaluate(&self, attributes: &Attributes<'_>, invocation: &Invocation<'_>) -> Result<ConditionResult, String> {
        let object = |object: Option<&Object>| object.map_or(Value::Null, |object| Value::Object(object.clone()));
        let (new, old) = (object(attributes.object), object(attributes.old_object));
        let request = Value::Object(request_without_objects(attributes, invocation));
        let mut left = MATCH_CONDITIONS_COST_MAX;
        let mut failures: Vec<String> = Vec::new();
        for Condition { name, source, compiled } in &self.conditions.0 {
            let expression = match compiled {
                Ok(expression) => expression,
                Err(why) => {
                    failures.push(format!("compilation error: {why}"));
                    continue;
                }
            };
            let variables = [
                ("object", CelValue::json(&new, None, false)),
                ("oldObject", CelValue::json(&old, None, false)),
                ("request", CelValue::json(&request, None, false)),
                ("namespaceObject", CelValue::null()),
            ];
            let evaluation = expression.evaluate(variables, EXPRESSION_COST_MAX.min(left));
            let is_over = matches!(evaluation.result, Err(EvalError::Limit)) && left < EXPRESSION_COST_MAX;
            let Some(rest) = left.checked_sub(evaluation.cost).filter(|_| !is_over) else {
                return Err(OUT_OF_BUDGET.to_owned());
            };
            left = rest;
            match evaluation.result.map(|value| value.as_bool()) {
                Ok(Some(true)) => {}
                Ok(Some(false)) => return Ok(ConditionResult::Skip { condition: Some(name.clone()) }),
                // Validation accepts only expressions of type bool.
                Ok(None) => failures.push(format!("expression '{source}' resulted in error: no such overload")),
                Err(error) => failures.push(format!("expression '{source}' resulted in error: {error}")),
            }
        }
        failures.dedup();
        match failures.as_slice() {
            [] => Ok(ConditionResult::Call),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    }
}
