//! The match conditions of a webhook or a policy: CEL over the objects and the request (`matchconditions/matcher.go`).
//!
//! One false condition skips the webhook, even beside a failed one. Otherwise a failed condition follows the failure
//! policy.

use listwatch_cel::{
    AdmissionVariables, AuthorizationDecisions, EvalError, Expression, ResourceCheck, ResultType, Value as CelValue,
    compile_expression,
};
use listwatch_meta::{GroupResource, Status, fuel};
use listwatch_validation::{Object, objects, text};

use crate::attributes::Attributes;
use crate::matching::Invocation;
use crate::review::request_without_objects;
use crate::webhook::{FailurePolicy, Webhook};

/// The largest cost of one condition, in units of CEL (`PerCallLimit`). A condition above it fails.
pub const EXPRESSION_COST_MAX: u64 = 1_000_000;

/// The largest cost of all conditions of one webhook or policy, in units of CEL
/// (`RuntimeCELCostBudgetMatchConditions`). Above it the failure policy decides, and later conditions do not count.
pub const MATCH_CONDITIONS_COST_MAX: u64 = 2_500_000;

/// The text for expressions that cost more than their common budget.
pub const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// The result of all conditions.
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

/// The compiled conditions of one webhook or policy.
#[derive(Debug, Default)]
pub struct MatchConditions(Vec<Condition>);

#[derive(Debug)]
struct Condition {
    name: String,
    source: String,
    /// The compiled expression, or the compiler's text.
    compiled: Result<Expression, String>,
}

impl MatchConditions {
    /// Compiles the `matchConditions` of an object. The expressions can use these variables.
    pub fn compile(holder: &Object, variables: &AdmissionVariables<'_>) -> Self {
        let compiled = objects(holder, "matchConditions").map(|(_, condition)| {
            let source = text(condition, "expression").trim();
            let compiled = compile_expression(source, variables, false, ResultType::Bool);
            Condition { name: text(condition, "name").to_owned(), source: source.to_owned(), compiled }
        });
        MatchConditions(compiled.collect())
    }

    /// True without conditions.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Evaluates the conditions in order, within [`MATCH_CONDITIONS_COST_MAX`]. `take_extra_cost` returns the cost of each
    /// expression that is not its own (`LazyScope::take_cost`).
    ///
    /// # Errors
    /// The text of the failed conditions, if none is false. After an undecided authorization check the result has no
    /// meaning.
    pub fn evaluate<'a>(
        &'a self,
        variables: &[(&'a str, CelValue<'a>)],
        take_extra_cost: impl Fn() -> u64,
    ) -> Result<ConditionResult, String> {
        let mut left = MATCH_CONDITIONS_COST_MAX;
        let mut failures: Vec<String> = Vec::new();
        for Condition { name, source, compiled } in &self.0 {
            let expression = match compiled {
                Ok(expression) => expression,
                Err(why) => {
                    failures.push(format!("compilation error: {why}"));
                    continue;
                }
            };
            let evaluation = expression.evaluate(variables.iter().cloned(), EXPRESSION_COST_MAX.min(left));
            let is_over = matches!(evaluation.result, Err(EvalError::Limit)) && left < EXPRESSION_COST_MAX;
            let cost = evaluation.cost.saturating_add(take_extra_cost());
            let Some(rest) = left.checked_sub(cost).filter(|_| !is_over) else {
                return Err(OUT_OF_BUDGET.to_owned());
            };
            left = rest;
            match evaluation.result.map(|value| value.as_bool()) {
                Ok(Some(true)) => {}
                Ok(Some(false)) => return Ok(ConditionResult::Skip { condition: Some(name.clone()) }),
                // Only expressions of type bool compile.
                Ok(None) => failures.push(format!("expression '{source}' resulted in error: no such overload")),
                Err(EvalError::Undecided) => return Err(EvalError::Undecided.to_string()),
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

impl Webhook {
    /// Whether the webhook has match conditions, so that the caller converts the objects for them.
    pub fn has_conditions(&self) -> bool {
        !self.conditions.is_empty()
    }

    /// Evaluates the match conditions over objects in the version of `invocation`. If a condition needs a decision of the
    /// authorizer ([`AuthorizationDecisions::take_undecided`]), the caller adds the decision and calls again; the result
    /// has no meaning.
    ///
    /// The evaluation takes fuel (`listwatch_meta::fuel`).
    ///
    /// # Errors
    /// 403 if a condition fails under the failure policy `Fail`; 504 if the fuel is used up.
    pub fn check_conditions(
        &self,
        attributes: &Attributes<'_>,
        invocation: &Invocation<'_>,
        decisions: &AuthorizationDecisions,
    ) -> Result<ConditionResult, Status> {
        if !self.has_conditions() {
            return Ok(ConditionResult::Call);
        }
        let request = request_without_objects(attributes, invocation);
        let resource = attributes.resource_check();
        let variables = [
            ("object", attributes.object.map_or_else(CelValue::null, CelValue::object)),
            ("oldObject", attributes.old_object.map_or_else(CelValue::null, CelValue::object)),
            ("request", CelValue::object(&request)),
            ("namespaceObject", CelValue::null()),
            ("authorizer", CelValue::authorizer(decisions, &resource)),
        ];
        let evaluated = self.conditions.evaluate(&variables, || 0);
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
}

impl Attributes<'_> {
    /// The resource of the request in authorization checks (`authorizer.requestResource`).
    pub fn resource_check(&self) -> ResourceCheck {
        ResourceCheck {
            group: self.resource.group.to_owned(),
            resource: self.resource.resource.to_owned(),
            subresource: self.subresource.to_owned(),
            namespace: self.namespace.to_owned(),
            name: self.name.to_owned(),
            ..ResourceCheck::default()
        }
    }
}
