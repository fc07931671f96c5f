//! Parses, checks and evaluates expressions: [`Expression`].

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use crate::ast::{self, Ast, Node};
use crate::check;
use crate::eval::{EvalError, Evaluator};
use crate::schema::Schema;
use crate::types::Type;
use crate::value::Val;

/// An expression with correct syntax.
#[derive(Debug)]
pub struct Expression {
    source: Arc<str>,
    ast: Ast,
}

/// An expression does not compile. The text is cel-go's: `ERROR: <input>:1:3: …` with the source
/// line and a caret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError(String);

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CompileError {}

/// The result type and the worst-case cost of an expression.
#[derive(Clone, Debug)]
pub struct CheckResult<'t> {
    /// The type of the value.
    pub ty: Type<'t>,
    /// The worst-case cost of one evaluation, in cost units.
    pub cost: u64,
}

/// The result of an evaluation.
#[derive(Clone, Debug)]
pub struct Evaluation<'a> {
    /// The value, or the error.
    pub result: Result<Value<'a>, EvalError>,
    /// The cost of the evaluation, in cost units.
    pub cost: u64,
}

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors
    /// If the syntax is wrong, or if a limit of [`crate::limits`] is exceeded.
    pub fn parse(source: impl Into<Arc<str>>) -> Result<Expression, CompileError> {
        Expression::parse_with(source.into(), false)
    }

    /// Parses an expression that may construct objects (`Object{spec: …}`), as in mutating
    /// policies. Such objects become maps.
    pub(crate) fn parse_with_objects(source: impl Into<Arc<str>>) -> Result<Expression, CompileError> {
        Expression::parse_with(source.into(), true)
    }

    fn parse_with(source: Arc<str>, objects: bool) -> Result<Expression, CompileError> {
        let ast = ast::parse(&source, objects).map_err(CompileError)?;
        Ok(Expression { source, ast })
    }

    /// True if the expression contains an identifier of this name.
    pub fn mentions(&self, variable: &str) -> bool {
        mentions(&self.ast, variable)
    }

    /// Checks the types with these variables, and computes the worst-case cost.
    ///
    /// # Errors
    /// If an operator, function, field or variable does not exist or does not accept its operands.
    pub fn check<'v, 't>(
        &self,
        variables: impl IntoIterator<Item = (&'v str, Type<'t>)>,
    ) -> Result<CheckResult<'t>, CompileError> {
        let checked = check::check(&self.source, &self.ast, variables).map_err(CompileError)?;
        Ok(CheckResult { ty: checked.ty, cost: checked.cost })
    }

    /// Checks an expression that may call functions unknown to this crate. Returns no type if a
    /// part of the expression is unknown.
    pub(crate) fn check_leniently<'t>(
        &self,
        variables: Vec<(&str, Type<'t>)>,
    ) -> Result<Option<Type<'t>>, CompileError> {
        check::check_leniently(&self.source, &self.ast, variables).map_err(CompileError)
    }

    /// Evaluates the expression with these variables. Ends with [`EvalError::Limit`] above
    /// `cost_limit` units, or if the fuel is used up.
    pub fn evaluate<'a>(
        &'a self,
        variables: impl IntoIterator<Item = (&'a str, Value<'a>)>,
        cost_limit: u64,
    ) -> Evaluation<'a> {
        let variables = variables.into_iter().map(|(name, value)| (name, value.0)).collect();
        let mut evaluator = Evaluator::new(variables, cost_limit);
        let result = evaluator.eval(&self.ast).map(Value);
        Evaluation { result, cost: evaluator.spent() }
    }
}

fn mentions(ast: &Ast, variable: &str) -> bool {
    let mentions = |ast: &Ast| mentions(ast, variable);
    match &ast.node {
        Node::Literal(_) => false,
        Node::Ident(name) => name.as_ref() == variable,
        Node::Select { of, .. } => mentions(of),
        Node::Call { target, args, .. } => target.as_deref().is_some_and(mentions) || args.iter().any(mentions),
        Node::List(elements, _) => elements.iter().any(mentions),
        Node::Map(entries) => entries.iter().any(|(key, value, _)| mentions(key) || mentions(value)),
        Node::Fold(fold) => {
            let parts = [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result];
            parts.into_iter().any(mentions)
        }
        Node::Binding { target, bodies, .. } => mentions(target) || bodies.iter().any(mentions),
    }
}

/// The value of a variable or of an expression.
#[derive(Clone, Debug)]
pub struct Value<'a>(Val<'a>);

impl<'a> Value<'a> {
    /// `null`.
    pub fn null() -> Value<'a> {
        Value(Val::Null)
    }

    /// A JSON value with the types of its schema. `resource` adds the fields of every resource.
    pub fn json(value: &'a serde_json::Value, schema: Option<&'a dyn Schema>, resource: bool) -> Value<'a> {
        Value(Val::of(value, schema, resource))
    }

    /// An `optional_type`.
    pub fn optional(value: Option<Value<'a>>) -> Value<'a> {
        Value(Val::Optional(value.map(|value| Rc::new(value.0))))
    }

    /// The value if it is a `bool`.
    pub fn as_bool(&self) -> Option<bool> {
        match self.0 {
            Val::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The value if it is a `string`.
    pub fn as_str(&self) -> Option<&str> {
        match &self.0 {
            Val::Text(text) => Some(text),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Evaluates an expression with the untyped variable `o`, and formats the value or the error.
    fn check(source: &str, expected: &str) {
        let object = json!({"n": 3, "s": "abc", "l": [1, 2, 3], "m": {"a": "x"}});
        let expression = Expression::parse(source).unwrap();
        expression.check([("o", Type::Dyn)]).unwrap();
        let shown = match expression.evaluate([("o", Value::json(&object, None, false))], 1_000).result {
            Ok(value) => format!("{:?}", value.0),
            Err(error) => error.to_string(),
        };
        assert_eq!(shown, expected, "{source}");
    }

    #[test]
    fn untyped_variables_are_type_checked_at_evaluation() {
        check("o.n + 1", "Int(4)");
        check("o.l.exists(i, i > 2) && has(o.m.a)", "Bool(true)");
        check("o.n + 'a'", "no such overload");
        check("o.absent", "no such key: absent");
        check("o.?absent.orValue('none')", "Text(\"none\")");
        check("quantity('1Ki').isGreaterThan(quantity('1k'))", "Bool(true)");
    }

    #[test]
    fn cost_limit_ends_an_evaluation() {
        let expression = Expression::parse("[1, 2, 3, 4].all(i, [1, 2, 3, 4].all(j, i * j > 0))").unwrap();
        let whole = expression.evaluate([], u64::MAX);
        assert!(matches!(&whole.result, Ok(value) if value.as_bool() == Some(true)));
        assert!(expression.check([]).unwrap().cost >= whole.cost, "the estimate is an upper bound");
        assert!(expression.evaluate([], whole.cost).result.is_ok());
        let ended = expression.evaluate([], whole.cost - 1);
        assert_eq!(ended.result.unwrap_err(), EvalError::Limit);
    }

    #[test]
    fn variables_are_found_in_every_part_of_an_expression() {
        for source in ["x", "x.y", "f(x)", "[1, x]", "{'a': x}", "[1].all(i, i == x)", "a.?b.optMap(v, x)"] {
            assert!(Expression::parse(source).unwrap().mentions("x"), "{source}");
        }
        assert!(!Expression::parse("'x' + y.x").unwrap().mentions("x"));
    }

    #[test]
    fn undeclared_variable_is_a_compile_error() {
        let error = Expression::parse("other == 1").unwrap().check([("o", Type::Dyn)]).unwrap_err();
        assert!(error.to_string().starts_with("ERROR: <input>:1:1: undeclared reference to 'other' (in container '')"));
    }
}
