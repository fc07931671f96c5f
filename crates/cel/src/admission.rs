//! Compiles expressions of admission policies and of webhooks' match conditions, without evaluation
//! (`apiserver/pkg/admission/plugin/cel/compile.go`).
//!
//! The check rejects only expressions that cel-go certainly rejects: syntax errors, undeclared
//! variables, operands that an operator does not accept, and results of another type. Everything
//! unknown is accepted: functions of libraries that rules of custom resources do not have
//! (`authorizer`, `jsonpatch`, lists), fields of `request`, `namespaceObject` and `variables`, and
//! types of `Object{…}`.

use crate::expression::Expression;
use crate::types::Type;

/// The required result type of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultType {
    /// Any type.
    Any,
    /// A boolean.
    Bool,
    /// A string.
    Text,
    /// A string, or null.
    TextOrNull,
}

/// Compiles an expression with `variables`, all of dynamic type. With `patches`, the patch types
/// `Object` and `JSONPatch` are available.
///
/// # Errors
/// The detail of the error, in kube-apiserver's words.
pub fn check_expression(source: &str, variables: &[&str], patches: bool, outcome: ResultType) -> Result<(), String> {
    let parsed = if patches { Expression::parse_with_objects(source) } else { Expression::parse(source) };
    let declared = variables.iter().map(|name| (*name, Type::Dyn)).collect();
    let compiled = parsed.and_then(|parsed| parsed.check_leniently(declared));
    let ty = compiled.map_err(|issues| format!("compilation failed: {issues}"))?;
    // The type is unknown if a part of the expression is unknown.
    let Some(ty) = ty else { return Ok(()) };
    let (fits, wanted) = match (outcome, &ty) {
        (ResultType::Any, _) => return Ok(()),
        (ResultType::Bool, ty) => (matches!(ty, Type::Bool), "bool"),
        (ResultType::Text, ty) => (matches!(ty, Type::Text(_)), "string"),
        (ResultType::TextOrNull, ty) => (matches!(ty, Type::Text(_) | Type::Null), "one of [string null_type]"),
    };
    if fits {
        return Ok(());
    }
    let found = if matches!(ty, Type::Null) { "null_type".to_owned() } else { ty.to_string() };
    Err(format!("must evaluate to {wanted} but got {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VARIABLES: [&str; 6] = ["object", "oldObject", "request", "namespaceObject", "authorizer", "variables"];

    fn check(source: &str, outcome: ResultType, expected: &str) {
        let found = check_expression(source, &VARIABLES, true, outcome).err().unwrap_or_default();
        assert!(
            found == expected || (!expected.is_empty() && found.starts_with(expected)),
            "{source}\n is told {found:?}\n      not {expected:?}"
        );
    }

    #[test]
    fn expression_that_cel_go_compiles_is_accepted() {
        for source in [
            "true",
            "object.spec.replicas <= 5",
            "object.metadata.name.startsWith('a') && !has(object.spec.x)",
            "authorizer.group('').resource('pods').namespace('d').check('create').allowed()",
            "object.spec.containers.all(c, c.image.matches('^a') || c.name in ['x', 'y'])",
            "[1, 2].sort() == lists.range(2)",
            "variables.known && request.userInfo.username == 'u'",
            "object.spec.?x.orValue(1) == 1",
            "quantity('1k').isGreaterThan(quantity('1'))",
            "object.x ? true : object.y",
        ] {
            check(source, ResultType::Bool, "");
        }
        check("'a' + string(object.x)", ResultType::Text, "");
        check("null", ResultType::TextOrNull, "");
        check("object.anything", ResultType::Any, "");
        check("Object{spec: Object.spec{replicas: 1}}", ResultType::Any, "");
        check(
            "[JSONPatch{op: 'add', path: '/a/' + jsonpatch.escapeKey('b'), value: Object.spec{x: 1}}]",
            ResultType::Any,
            "",
        );
    }

    #[test]
    fn expression_rejected_by_cel_go_fails_with_the_same_message() {
        let failed = "compilation failed: ERROR: <input>:1:";
        check("object.", ResultType::Bool, &format!("{failed}8: Syntax error:"));
        check("a", ResultType::Bool, &format!("{failed}1: undeclared reference to 'a' (in container '')\n | a\n | ^"));
        check(
            "1 + 'a' == 2",
            ResultType::Bool,
            &format!("{failed}3: found no matching overload for '_+_' applied to '(int, string)'"),
        );
        check("params.x == 1", ResultType::Bool, &format!("{failed}1: undeclared reference to 'params'"));
        check("1", ResultType::Bool, "must evaluate to bool but got int");
        check("object.flag", ResultType::Bool, "must evaluate to bool but got dyn");
        check("true", ResultType::Text, "must evaluate to string but got bool");
        check("1", ResultType::TextOrNull, "must evaluate to one of [string null_type] but got int");
        assert!(check_expression("Object{}", &[], false, ResultType::Any).is_err(), "patch types are not always there");
    }
}
