//! Parses, checks and evaluates expressions: [`Expression`].

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use crate::ast::{self, Ast, Literal, Node};
use crate::authorizer::{AuthorizationDecisions, Authz, ResourceCheck, Source};
use crate::check;
use crate::eval::{EvalError, Evaluator};
use crate::json::{check_object_types, to_json};
use crate::schema::Schema;
use crate::types::Type;
use crate::value::{Steps, Val};

/// An expression with correct syntax.
#[derive(Debug)]
pub struct Expression {
    source: Arc<str>,
    ast: Ast,
}

/// An expression does not compile. The text is cel-go's: `ERROR: <input>:1:3: …` with the source
/// line and a caret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError {
    text: String,
    /// Whether the expression passes the type check, but no program can be made of it.
    is_of_program: bool,
}

impl CompileError {
    /// The failed step in kube-apiserver's words, which precede the text: `compilation` or `program instantiation`.
    pub fn step(&self) -> &'static str {
        if self.is_of_program { "program instantiation" } else { "compilation" }
    }

    pub(crate) fn of_check(text: String) -> CompileError {
        CompileError { text, is_of_program: false }
    }

    pub(crate) fn of_program(text: String) -> CompileError {
        CompileError { text, is_of_program: true }
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
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

    /// Parses an expression that may construct objects of patch types (`Object{spec: …}`), as in
    /// mutating policies.
    pub(crate) fn parse_with_objects(source: impl Into<Arc<str>>) -> Result<Expression, CompileError> {
        Expression::parse_with(source.into(), true)
    }

    fn parse_with(source: Arc<str>, objects: bool) -> Result<Expression, CompileError> {
        let ast = ast::parse(&source, objects).map_err(CompileError::of_check)?;
        Ok(Expression { source, ast })
    }

    pub(crate) fn ast(&self) -> &Ast {
        &self.ast
    }

    /// True if the expression contains an identifier of this name.
    pub fn mentions(&self, variable: &str) -> bool {
        mentions(&self.ast, variable)
    }

    /// True if the expression reads a field of a variable by its name: `variable.field`, `has(variable.field)`,
    /// `variable.?field`, `variable['field']` or `variable[?'field']`.
    pub fn reads_field(&self, variable: &str, field: &str) -> bool {
        reads_field(&self.ast, variable, field)
    }

    /// Checks the types with these variables, and computes the worst-case cost.
    ///
    /// # Errors
    /// If an operator, function, field or variable does not exist or does not accept its operands.
    pub fn check<'v, 't>(
        &self,
        variables: impl IntoIterator<Item = (&'v str, Type<'t>)>,
    ) -> Result<CheckResult<'t>, CompileError> {
        let checked = check::check(&self.source, &self.ast, variables)?;
        Ok(CheckResult { ty: checked.ty, cost: checked.cost })
    }

    /// Checks an expression that may call functions unknown to this crate. Returns no type if a
    /// part of the expression is unknown.
    pub(crate) fn check_leniently<'t>(
        &self,
        variables: Vec<(&str, Type<'t>)>,
    ) -> Result<Option<Type<'t>>, CompileError> {
        check::check_leniently(&self.source, &self.ast, variables)
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
    if let Node::Ident(name) = &ast.node {
        return name.as_ref() == variable;
    }
    let mut found = false;
    ast.for_each_part(&mut |part| found = found || mentions(part, variable));
    found
}

fn reads_field(ast: &Ast, variable: &str, field: &str) -> bool {
    let is_variable = |ast: &Ast| matches!(&ast.node, Node::Ident(name) if name.as_ref() == variable);
    let is_field = |ast: &Ast| matches!(&ast.node, Node::Literal(Literal::Text(text)) if text.as_ref() == field);
    let mut found = match &ast.node {
        Node::Select { of, field: name, .. } => is_variable(of) && name.as_ref() == field,
        Node::Call { name, target: None, args } => match (name.as_ref(), args.as_slice()) {
            ("_?._" | "_[_]" | "_[?_]", [of, key]) => is_variable(of) && is_field(key),
            _ => false,
        },
        _ => false,
    };
    ast.for_each_part(&mut |part| found = found || reads_field(part, variable, field));
    found
}

/// The value of a variable or of an expression.
#[derive(Clone, Debug)]
pub struct Value<'a>(pub(crate) Val<'a>);

impl<'a> Value<'a> {
    /// `null`.
    pub fn null() -> Value<'a> {
        Value(Val::Null)
    }

    /// A JSON value with the types of its schema. `resource` adds the fields of every resource.
    pub fn json(value: &'a listwatch_json::Value, schema: Option<&'a dyn Schema>, resource: bool) -> Value<'a> {
        Value(Val::of(value, schema, resource))
    }

    /// A JSON object without a schema.
    pub fn object(members: &'a listwatch_json::Map) -> Value<'a> {
        Value(Val::JsonMap(members, None, false))
    }

    /// An `optional_type`.
    pub fn optional(value: Option<Value<'a>>) -> Value<'a> {
        Value(Val::Optional(value.map(|value| Rc::new(value.0))))
    }

    /// The variable `authorizer` of admission expressions: reads these decisions. `request_resource` is the resource of
    /// the request (`authorizer.requestResource`).
    pub fn authorizer(decisions: &'a AuthorizationDecisions, request_resource: &'a ResourceCheck) -> Value<'a> {
        Value(Val::Authz(Authz::Authorizer(Source { decisions, request_resource, service_account: None })))
    }

    /// The name of the type, e.g. `string` or `Object.spec`.
    pub fn type_name(&self) -> &str {
        match &self.0 {
            Val::Struct(name, _) => name,
            other => other.type_name(),
        }
    }

    /// The value as JSON. Bytes become base64 and points in time RFC 3339.
    ///
    /// # Errors
    /// [`EvalError::Limit`] for a value that needs more than `steps_max` steps: one for each nested value and for each 64
    /// bytes of text. [`EvalError::Failed`] for a value that has no form in JSON.
    pub fn to_json(&self, steps_max: u64) -> Result<listwatch_json::Value, EvalError> {
        let mut steps = Steps::new(steps_max);
        to_json(&self.0, &mut steps)
    }

    /// The items of a `list`.
    pub fn items(&self) -> Option<Vec<Value<'a>>> {
        Some(self.0.items()?.into_iter().map(Value).collect())
    }

    /// The fields of an object of a patch type, such as `JSONPatch`.
    pub fn object_fields(&self) -> Option<Vec<(String, Value<'a>)>> {
        let Val::Struct(_, fields) = &self.0 else { return None };
        let field = |(name, value): &(Val<'a>, Val<'a>)| match name {
            Val::Text(name) => Some((name.to_string(), Value(value.clone()))),
            _ => None,
        };
        fields.entries.iter().map(field).collect()
    }

    /// Checks that the type of each object of a patch type is the path of the field that holds it: `Object.spec` in the
    /// field `spec` of an `Object` (`CheckTypeNamesMatchFieldPathNames`).
    ///
    /// # Errors
    /// [`EvalError::Failed`] with all differences, one per line; [`EvalError::Limit`] for a value that needs more than
    /// `steps_max` steps, one for each nested value.
    pub fn check_object_types(&self, steps_max: u64) -> Result<(), EvalError> {
        let Val::Struct(name, _) = &self.0 else { return Ok(()) };
        let (mut steps, mut found) = (Steps::new(steps_max), Vec::new());
        check_object_types(&self.0, name, &mut steps, &mut found);
        match (steps.left(), found.is_empty()) {
            (None, _) => Err(EvalError::Limit),
            (Some(_), true) => Ok(()),
            (Some(_), false) => Err(EvalError::Failed(found.join("\n"))),
        }
    }

    /// The value if it is a `bool`.
    pub fn as_bool(&self) -> Option<bool> {
        match self.0 {
            Val::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The strings of a `list` that contains only strings. `None` for other values, `null` and a single `string`.
    pub fn as_text_list(&self) -> Option<Vec<String>> {
        let items = self.0.items()?;
        items.iter().map(|item| if let Val::Text(text) = item { Some(text.to_string()) } else { None }).collect()
    }

    /// True for `null`.
    pub fn is_null(&self) -> bool {
        matches!(self.0, Val::Null)
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
    use listwatch_json::json;

    use super::*;

    /// Evaluates an expression with the untyped variable `o`, and formats the value or the error.
    fn check(source: &str, expected: &str) {
        let object = json!({"n": 3, "s": "abc", "l": [1, 2, 3], "m": {"a": "x"}});
        let expression = Expression::parse(source).unwrap();
        expression.check([("o", Type::DYN)]).unwrap();
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
    fn list_library_of_admission_expressions_is_evaluated() {
        let check = |source: &str, expected: &str| {
            let object = json!({"l": [3, 1, 2], "objects": [{"n": 2}, {"n": 1}]});
            let expression = Expression::parse(source).unwrap();
            assert!(expression.check_leniently(vec![("o", Type::DYN)]).is_ok(), "{source}");
            let result = expression.evaluate([("o", Value::json(&object, None, false))], 1_000).result;
            let shown = match result.and_then(|value| value.to_json(100)) {
                Ok(value) => value.to_string(),
                Err(error) => error.to_string(),
            };
            assert_eq!(shown, expected, "{source}");
        };
        check("o.l.sort()", "[1,2,3]");
        check("o.objects.sortBy(i, i.n).map(i, i.n)", "[1,2]");
        check("o.l.reverse()", "[2,1,3]");
        check("[o.l.first().value(), o.l.last().value(), [].first().orValue(7)]", "[3,2,7]");
        check("o.l.slice(1, 3)", "[1,2]");
        check("o.l.slice(2, 1)", "cannot slice(2, 1), start index must be less than or equal to end index");
        check("o.l.slice(-1, 1)", "cannot slice(-1, 1), negative indexes not supported");
        check("o.l.slice(1, 4)", "cannot slice(1, 4), list is length 3");
        check("[dyn([1]), dyn([dyn(2), dyn([3])])].flatten()", "[1,2,[3]]");
        check("[dyn([1]), dyn([dyn(2), dyn([3])])].flatten(2)", "[1,2,3]");
        check("[[1]].flatten(-1)", "level must be non-negative");
        check("[1, 2, 1, 2].distinct()", "[1,2]");
        check("lists.range(3)", "[0,1,2]");
        check("lists.range(1000000)", "operation cancelled: actual cost limit exceeded");
        check("[dyn(1), dyn('a')].sort()", "list elements must have the same type");
        check("[{'a': 1}].sort()", "list elements must be comparable");
        let rule = Expression::parse("o.objects.sortBy(i, i.n) == []").unwrap();
        assert!(rule.check([("o", Type::DYN)]).is_err(), "rules of custom resources do not have it");
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
    fn field_of_a_variable_is_found_in_every_form_and_every_part_of_an_expression() {
        let reads = |source: &str| Expression::parse(source).unwrap().reads_field("x", "f");
        for source in [
            "x.f",
            "has(x.f)",
            "x.?f.orValue('')",
            "x['f']",
            "x[?'f'].orValue('')",
            "x.f.g",
            "x.f.lowerAscii()",
            "lower(x.f)",
            "[1, x.f]",
            "{'a': x.f}",
            "[1].all(i, i == x.f)",
            "true ? x\n.f : 'a'",
            "a.?b.optMap(v, v + x.f)",
        ] {
            assert!(reads(source), "{source}");
        }
        for source in ["x.ff", "x", "'x.f'", "y.f", "y.x.f", "x.g.f", "x[f]", "x['ff']"] {
            assert!(!reads(source), "{source}");
        }
    }

    #[test]
    fn undeclared_variable_is_a_compile_error() {
        let error = Expression::parse("other == 1").unwrap().check([("o", Type::DYN)]).unwrap_err();
        assert!(error.to_string().starts_with("ERROR: <input>:1:1: undeclared reference to 'other' (in container '')"));
    }
}
