//! Expressions of admission policies and of webhooks' match conditions: compiled, not evaluated
//! (`apiserver/pkg/admission/plugin/cel/compile.go`).
//!
//! The check refuses what is certain to be refused by cel-go: text that is no expression, a variable that
//! does not exist, operands that do not fit an operator, a result of another type. What it does not know is
//! accepted: functions of libraries that rules of custom resources do not have (`authorizer`, `jsonpatch`,
//! lists), fields of `request`, `namespaceObject` and `variables`, and types of `Object{…}`.

use crate::expression::Expression;
use crate::types::Type;

/// What an expression may come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Any type.
    Any,
    /// A boolean.
    Bool,
    /// A text.
    Text,
    /// A text, or null.
    TextOrNull,
}

/// Compiles an expression that may use `variables`, all of any type, and the patch types `Object` and
/// `JSONPatch` if `patches` says so.
///
/// # Errors
/// The detail of the error, as kube-apiserver words it.
pub fn check_expression(source: &str, variables: &[&str], patches: bool, outcome: Outcome) -> Result<(), String> {
    let parsed = if patches { Expression::parse_with_objects(source) } else { Expression::parse(source) };
    let declared = variables.iter().map(|name| (*name, Type::Dyn)).collect();
    let compiled = parsed.and_then(|parsed| parsed.check_leniently(declared));
    let ty = compiled.map_err(|issues| format!("compilation failed: {issues}"))?;
    // Nothing is known about the type where something was not understood.
    let Some(ty) = ty else { return Ok(()) };
    let (fits, wanted) = match (outcome, &ty) {
        (Outcome::Any, _) => return Ok(()),
        (Outcome::Bool, ty) => (matches!(ty, Type::Bool), "bool"),
        (Outcome::Text, ty) => (matches!(ty, Type::Text(_)), "string"),
        (Outcome::TextOrNull, ty) => (matches!(ty, Type::Text(_) | Type::Null), "one of [string null_type]"),
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

    fn check(source: &str, outcome: Outcome, expected: &str) {
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
            check(source, Outcome::Bool, "");
        }
        check("'a' + string(object.x)", Outcome::Text, "");
        check("null", Outcome::TextOrNull, "");
        check("object.anything", Outcome::Any, "");
        check("Object{spec: Object.spec{replicas: 1}}", Outcome::Any, "");
        check(
            "[JSONPatch{op: 'add', path: '/a/' + jsonpatch.escapeKey('b'), value: Object.spec{x: 1}}]",
            Outcome::Any,
            "",
        );
    }

    #[test]
    fn expression_rejected_by_cel_go_fails_with_the_same_message() {
        let failed = "compilation failed: ERROR: <input>:1:";
        check("object.", Outcome::Bool, &format!("{failed}8: Syntax error:"));
        check("a", Outcome::Bool, &format!("{failed}1: undeclared reference to 'a' (in container '')\n | a\n | ^"));
        check(
            "1 + 'a' == 2",
            Outcome::Bool,
            &format!("{failed}3: found no matching overload for '_+_' applied to '(int, string)'"),
        );
        check("params.x == 1", Outcome::Bool, &format!("{failed}1: undeclared reference to 'params'"));
        check("1", Outcome::Bool, "must evaluate to bool but got int");
        check("object.flag", Outcome::Bool, "must evaluate to bool but got dyn");
        check("true", Outcome::Text, "must evaluate to string but got bool");
        check("1", Outcome::TextOrNull, "must evaluate to one of [string null_type] but got int");
        assert!(check_expression("Object{}", &[], false, Outcome::Any).is_err(), "patch types are not always there");
    }
}
