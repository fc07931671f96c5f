//! Evaluates the expressions of one [`Place`] within a shared cost budget (`admission/plugin/cel/condition.go`).

use listwatch_cel::{EvalError, Expression, LazyVariables, Value as CelValue};
use listwatch_webhooks::{ConditionResult, EXPRESSION_COST_MAX, FailurePolicy, OUT_OF_BUDGET};

use crate::activation::{Activation, Place};
use crate::policy::Policy;

/// Maximum cost, in CEL cost units (`RuntimeCELCostBudget`). If the cost is higher, the failure policy applies.
///
/// For each binding and parameter, the validations of a policy and their messages share one budget. The audit
/// annotations share another budget. Each mutation has a budget of its own.
pub const POLICY_COST_MAX: u64 = 10_000_000;

/// A compiled expression with its source.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) source: String,
    /// The compiled expression, or the error message of the compiler.
    pub(crate) expression: Result<Expression, String>,
}

/// Evaluates the expressions of one [`Place`], which share a cost budget and the values of `variables`.
pub(crate) struct Evaluator<'a> {
    variables: Vec<(&'a str, CelValue<'a>)>,
    scope: listwatch_cel::LazyScope<'a>,
    left: u64,
}

impl<'a> Evaluator<'a> {
    pub(crate) fn new(lazy: &'a LazyVariables, activation: &'a Activation<'_>, place: Place, budget: u64) -> Self {
        let mut variables: Vec<(&'a str, CelValue<'a>)> = activation.variables(place);
        let scope = lazy.scope(variables.iter().cloned(), EXPRESSION_COST_MAX);
        variables.push(("variables", scope.value()));
        Evaluator { variables, scope, left: budget }
    }

    /// The remaining budget.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Evaluates an expression. The inner result is the value, or the error message of the expression.
    ///
    /// # Errors
    /// [`OUT_OF_BUDGET`] when the shared budget is used up.
    pub(crate) fn evaluate(&mut self, compiled: &'a Compiled) -> Result<Result<CelValue<'a>, String>, String> {
        let Compiled { source, expression } = compiled;
        let expression = match expression {
            Ok(expression) => expression,
            Err(why) => return Ok(Err(format!("compilation error: {why}"))),
        };
        let evaluation = expression.evaluate(self.variables.iter().cloned(), EXPRESSION_COST_MAX.min(self.left));
        let is_over = matches!(evaluation.result, Err(EvalError::Limit)) && self.left < EXPRESSION_COST_MAX;
        let cost = evaluation.cost.saturating_add(self.scope.take_cost());
        let Some(left) = self.left.checked_sub(cost).filter(|_| !is_over) else {
            return Err(OUT_OF_BUDGET.to_owned());
        };
        self.left = left;
        Ok(evaluation.result.map_err(|error| format!("expression '{source}' resulted in error: {error}")))
    }
}

/// The result of a policy's match conditions.
pub(crate) enum Conditions {
    Hold,
    /// A condition is false, or failed under the failure policy `Ignore`.
    Skip,
    /// A condition failed under the failure policy `Fail`.
    Failed(String),
}

/// Evaluates the match conditions of a policy.
pub(crate) fn match_conditions(policy: &Policy, activation: &Activation<'_>) -> Conditions {
    if policy.conditions.is_empty() {
        return Conditions::Hold;
    }
    let evaluator = Evaluator::new(&policy.variables, activation, Place::Condition, 0);
    match policy.conditions.evaluate(&evaluator.variables, || evaluator.scope.take_cost()) {
        Ok(ConditionResult::Call) => Conditions::Hold,
        Ok(ConditionResult::Skip { .. }) => Conditions::Skip,
        Err(_) if policy.failure_policy == FailurePolicy::Ignore => Conditions::Skip,
        Err(why) => Conditions::Failed(why),
    }
}
