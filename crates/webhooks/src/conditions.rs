//! The match conditions of a webhook or a policy: CEL over the objects and the request (`matchconditions/matcher.go`).
//!
//! One false condition skips the webhook, even if another condition fails. Otherwise the failure policy applies to a
//! failed condition.

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

/// Maximum cost of one condition, in CEL cost units (`PerCallLimit`). A more expensive condition fails.
pub const EXPRESSION_COST_MAX: u64 = 1_000_000;

/// Maximum cost of all conditions of one webhook or policy, in CEL cost units (`RuntimeCELCostBudgetMatchConditions`).
/// If the cost is higher, the failure policy applies and later conditions are not evaluated.
pub const MATCH_CONDITIONS_COST_MAX: u64 = 2_500_000;

/// The error message for expressions that exceed their shared cost budget.
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
    /// The compiled expression, or the error message of the compiler.
    compiled: Result<Expression, String>,
}

impl MatchConditions {
    /// Compiles the `matchConditions` of an object. The expressions can use `variables`.
    pub fn compile(holder: &Object, variables: &AdmissionVariables<'_>) -> Self {
        let compiled = objects(holder, "matchConditions").map(|(_, condition)| {
            let source = text(condition, "expression").trim();
            let compiled = compile_expression(source, variables, false, ResultType::Bool);
            Condition { name: text(condition, "name").to_owned(), source: source.to_owned(), compiled }
        });
        MatchConditions(compiled.collect())
    }

    /// Returns true if there are no conditions.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Evaluates the conditions in order, within [`MATCH_CONDITIONS_COST_MAX`]. After each expression,
    /// `take_extra_cost` returns the cost of the lazy variables that were evaluated (`LazyScope::take_cost`).
    ///
    /// # Errors
    /// The error message of the failed conditions, if no condition is false. The result has no meaning after an
    /// undecided authorization check.
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
    /// Whether the webhook has match conditions. Without conditions, the caller need not convert the objects.
    pub fn has_conditions(&self) -> bool {
        !self.conditions.is_empty()
    }

    /// Evaluates the match conditions over objects in the version of `invocation`. The result has no meaning if an
    /// authorization check is undecided ([`AuthorizationDecisions::take_undecided`]). The caller then adds the decision
    /// and calls again.
    ///
    /// The evaluation consumes fuel (`listwatch_meta::fuel`).
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
