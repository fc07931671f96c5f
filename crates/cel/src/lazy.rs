//! [`LazyVariables`]: the variable `variables` of admission policies (`admission/plugin/cel/composition.go`).
//!
//! Each named expression is evaluated at its first use. Later uses take the same value. A named expression may use only
//! the expressions before it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use listwatch_meta::fuel;
use listwatch_meta::go::quote;

use crate::ast::{Ast, Node};
use crate::eval::{EvalError, EvalResult, Evaluator};
use crate::expression::{Expression, Value};
use crate::limits::VARIABLES_DEPTH_MAX;
use crate::value::Val;

/// The name of the variable.
const VARIABLES: &str = "variables";

/// Compiled named expressions, in their order.
#[derive(Debug, Default)]
pub struct LazyVariables {
    variables: Vec<(Box<str>, Result<Expression, String>)>,
    positions: HashMap<Box<str>, usize>,
}

impl LazyVariables {
    /// Takes named expressions, or the texts of their compile errors, which are reported where a variable is used. An
    /// expression whose nesting, with that of the variables that it uses, exceeds
    /// [`VARIABLES_DEPTH_MAX`] does not compile.
    pub fn new(variables: impl IntoIterator<Item = (String, Result<Expression, String>)>) -> Self {
        let mut all = LazyVariables::default();
        let mut depths: Vec<usize> = Vec::new();
        for (name, compiled) in variables {
            let mut depth = 0;
            let compiled = compiled.and_then(|expression| {
                let mut used = 0;
                visit_uses(expression.ast(), &mut |name| {
                    let below = match name {
                        Some(name) => all.positions.get(name).map(|at| depths[*at]),
                        None => depths.iter().max().copied(),
                    };
                    used = used.max(below.unwrap_or_default());
                });
                depth = used + depth_of(expression.ast());
                match depth {
                    0..=VARIABLES_DEPTH_MAX => Ok(expression),
                    _ => Err(format!("expression recursion limit exceeded: {VARIABLES_DEPTH_MAX}")),
                }
            });
            if compiled.is_err() {
                depth = 0;
            }
            all.positions.insert(name.as_str().into(), depths.len());
            all.variables.push((name.into(), compiled));
            depths.push(depth);
        }
        all
    }

    /// Creates the values of these variables. Their expressions can also use `others`. `expression_cost_max` is the
    /// cost limit of each expression.
    pub fn scope<'a>(
        &'a self,
        others: impl IntoIterator<Item = (&'a str, Value<'a>)>,
        expression_cost_max: u64,
    ) -> LazyScope<'a> {
        LazyScope(Rc::new(Scope {
            of: self,
            others: others.into_iter().map(|(name, value)| (name, value.0)).collect(),
            values: RefCell::new(vec![None; self.variables.len()]),
            spent: Cell::new(0),
            expression_cost_max,
        }))
    }
}

/// The values of [`LazyVariables`] for one set of other variables.
#[derive(Clone, Debug)]
pub struct LazyScope<'a>(Rc<Scope<'a>>);

impl<'a> LazyScope<'a> {
    /// The variable `variables`.
    pub fn value(&self) -> Value<'a> {
        Value(Val::Lazy(Rc::clone(&self.0), self.0.of.variables.len()))
    }

    /// Returns the cost of the expressions that were evaluated since the last call. The cost of an expression that uses
    /// a variable does not include the cost of the variable.
    pub fn take_cost(&self) -> u64 {
        self.0.spent.take()
    }
}

#[derive(Debug)]
pub(crate) struct Scope<'a> {
    of: &'a LazyVariables,
    others: Vec<(&'a str, Val<'a>)>,
    values: RefCell<Vec<Option<EvalResult<'a>>>>,
    spent: Cell<u64>,
    expression_cost_max: u64,
}

/// Whether a variable of this name is among the first `visible` ones.
pub(crate) fn has(scope: &Scope<'_>, visible: usize, name: &str) -> bool {
    scope.of.positions.get(name).is_some_and(|at| *at < visible)
}

/// The value of a variable among the first `visible` ones.
pub(crate) fn get<'a>(scope: &Rc<Scope<'a>>, visible: usize, name: &str) -> EvalResult<'a> {
    let of = scope.of;
    let Some(at) = of.positions.get(name).copied().filter(|at| *at < visible) else {
        return Err(EvalError::new(format!("no such key: {name}")));
    };
    if let Some(known) = &scope.values.borrow()[at] {
        return known.clone();
    }
    let value = match &of.variables[at].1 {
        Err(why) => Err(EvalError::new(format!("composited variable {} fails to compile: {why}", quote(name)))),
        Ok(expression) => evaluate(scope, at, name, expression),
    };
    if !matches!(&value, Err(error) if error.ends_evaluation()) {
        scope.values.borrow_mut()[at] = Some(value.clone());
    }
    value
}

fn evaluate<'a>(scope: &Rc<Scope<'a>>, at: usize, name: &str, expression: &'a Expression) -> EvalResult<'a> {
    let mut variables = scope.others.clone();
    variables.push((VARIABLES, Val::Lazy(Rc::clone(scope), at)));
    let mut evaluator = Evaluator::new(variables, scope.expression_cost_max);
    let result = evaluator.eval(expression.ast());
    scope.spent.set(scope.spent.get().saturating_add(evaluator.spent()));
    match result {
        Ok(value) => Ok(value),
        Err(EvalError::Undecided) => Err(EvalError::Undecided),
        Err(EvalError::Limit) if fuel::is_exhausted() => Err(EvalError::Limit),
        Err(error) => Err(EvalError::new(format!("composited variable {} fails to evaluate: {error}", quote(name)))),
    }
}

/// Calls `visit` for each use of `variables`: with the name of the variable, or with `None` for another use.
fn visit_uses(ast: &Ast, visit: &mut impl FnMut(Option<&str>)) {
    match &ast.node {
        Node::Select { of, field, .. } if matches!(&of.node, Node::Ident(name) if name.as_ref() == VARIABLES) => {
            visit(Some(field));
        }
        Node::Ident(name) if name.as_ref() == VARIABLES => visit(None),
        _ => ast.for_each_part(&mut |part| visit_uses(part, visit)),
    }
}

/// The number of nested nodes.
fn depth_of(ast: &Ast) -> usize {
    let mut deepest = 0;
    ast.for_each_part(&mut |part| deepest = deepest.max(depth_of(part)));
    deepest + 1
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    fn variables(sources: &[(&str, &str)]) -> LazyVariables {
        LazyVariables::new(
            sources.iter().map(|(name, source)| {
                ((*name).to_owned(), Expression::parse(*source).map_err(|error| error.to_string()))
            }),
        )
    }

    /// Evaluates an expression over variables, and returns its text or error, and the cost of the variables.
    fn check(sources: &[(&str, &str)], source: &str) -> (String, u64) {
        let object = json!({"n": 3, "l": [1, 2, 3]});
        let variables = variables(sources);
        let base = [("object", Value::json(&object, None, false))];
        let scope = variables.scope(base.clone(), 1_000);
        let expression = Expression::parse(source).unwrap();
        let [object] = base;
        let result = expression.evaluate([object, (VARIABLES, scope.value())], 1_000).result;
        let shown = result.map_or_else(|error| error.to_string(), |value| format!("{:?}", value.0));
        (shown, scope.take_cost())
    }

    #[test]
    fn variable_is_evaluated_at_its_first_use_and_once() {
        let all =
            [("n", "object.n"), ("m", "variables.n + 1"), ("bad", "object.absent"), ("unused", "object.l.size()")];
        let (shown, once) = check(&all, "variables.m");
        assert_eq!(shown, "Int(4)");
        assert_eq!(check(&all, "variables.m + variables.m + variables.n"), ("Int(11)".to_owned(), once));
        assert_eq!(check(&all, "true || variables.bad"), ("Bool(true)".to_owned(), 0), "nothing is evaluated in vain");
        assert_eq!(check(&all, "has(variables.m) && !has(variables.none)").0, "Bool(true)");
        assert_eq!(check(&all, "variables.?m.orValue(0)").0, "Int(4)");
        assert_eq!(check(&all, "object.l.map(i, variables.n)").0, "List([Int(3), Int(3), Int(3)])");
    }

    #[test]
    fn error_of_a_failed_variable_names_the_variable() {
        let all = [
            ("bad", "object.absent"),
            ("worse", "1 +"),
            ("later", "1"),
            ("early", "variables.later2"),
            ("later2", "1"),
        ];
        for (source, expected) in [
            ("variables.bad", "composited variable \"bad\" fails to evaluate: no such key: absent"),
            ("variables.early", "composited variable \"early\" fails to evaluate: no such key: later2"),
            ("variables.none", "no such key: none"),
        ] {
            assert_eq!(check(&all, source).0, expected, "{source}");
        }
        let uncompiled = check(&all, "variables.worse").0;
        assert!(uncompiled.starts_with("composited variable \"worse\" fails to compile: ERROR: "), "{uncompiled}");
        let costly =
            [("costly", "object.l.all(a, object.l.all(b, object.l.all(c, object.l.all(d, a + b + c + d > 0))))")];
        let limit = "composited variable \"costly\" fails to evaluate: operation cancelled: actual cost limit exceeded";
        assert_eq!(check(&costly, "variables.costly").0, limit);
    }

    #[test]
    fn long_chain_of_variables_does_not_exhaust_the_stack() {
        let chain: Vec<(String, String)> = (0..5_000)
            .map(|n| (format!("v{n}"), if n == 0 { "1".to_owned() } else { format!("variables.v{} + 1", n - 1) }))
            .collect();
        let chain: Vec<(&str, &str)> = chain.iter().map(|(name, source)| (name.as_str(), source.as_str())).collect();
        assert_eq!(check(&chain, "variables.v60").0, "Int(61)");
        let last = check(&chain, "variables.v4999").0;
        assert!(last.contains("expression recursion limit exceeded: "), "{last}");
        // The deepest chain that compiles, of expressions that nest as deep as possible.
        let deep = |inner: String| format!("{}{inner}{}", "[".repeat(50), "][0]".repeat(50));
        let deepest: Vec<(String, String)> = (0..5)
            .map(|n| (format!("v{n}"), deep(if n == 0 { "1".to_owned() } else { format!("variables.v{}", n - 1) })))
            .collect();
        let deepest: Vec<(&str, &str)> =
            deepest.iter().map(|(name, source)| (name.as_str(), source.as_str())).collect();
        for n in 0..5 {
            let shown = check(&deepest, &format!("variables.v{n}")).0;
            assert!(shown.starts_with("Int") || shown.contains("limit exceeded"), "{shown}");
        }
    }
}
