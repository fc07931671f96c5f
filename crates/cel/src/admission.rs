//! Compiles expressions of admission policies and of webhooks' match conditions, without evaluation
//! (`apiserver/pkg/admission/plugin/cel/compile.go`).
//!
//! The check rejects only expressions that cel-go certainly rejects: syntax errors, undeclared
//! variables and fields, operands that an operator does not accept, and results of another type.
//! Everything unknown is accepted: functions of libraries that rules of custom resources do not have
//! (`authorizer`, `jsonpatch`, lists), and types of `Object{…}`.

use std::rc::Rc;

use crate::check::{JSON_PATCH, OBJECT};
use crate::expression::Expression;
use crate::schema::Schema;
use crate::types::{Fields, Type};

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
    /// An object of the patch type `Object`.
    Object,
    /// A list of objects of the patch type `JSONPatch`.
    JsonPatch,
}

/// The variables of admission expressions, with their types.
#[derive(Clone, Debug)]
pub struct AdmissionVariables<'n> {
    object: Type<'n>,
    params: Option<Type<'n>>,
    authorizer: bool,
    /// The named expressions (`variables`) and their types; `None` without the variable.
    composed: Option<Vec<(String, Option<Type<'n>>)>>,
}

impl<'n> AdmissionVariables<'n> {
    /// Declares `object`, `oldObject`, `request` and `namespaceObject`.
    pub fn new() -> Self {
        AdmissionVariables { object: Type::DYN, params: None, authorizer: false, composed: None }
    }

    /// Declares `params` too.
    #[must_use]
    pub fn with_params(self, params: bool) -> Self {
        AdmissionVariables { params: params.then_some(Type::DYN), ..self }
    }

    /// Gives `object` and `oldObject` the type of a schema. Without a schema, the variables have any type.
    #[must_use]
    pub fn with_object_schema(self, schema: &'n dyn Schema) -> Self {
        AdmissionVariables { object: Type::of(schema, false).unwrap_or(Type::DYN), ..self }
    }

    /// Declares `params` with the type of a schema.
    #[must_use]
    pub fn with_params_schema(self, schema: &'n dyn Schema) -> Self {
        AdmissionVariables { params: Some(Type::of(schema, false).unwrap_or(Type::DYN)), ..self }
    }

    /// Declares `authorizer` too.
    #[must_use]
    pub fn with_authorizer(self, authorizer: bool) -> Self {
        AdmissionVariables { authorizer, ..self }
    }

    /// Declares `variables` too, at first without fields.
    #[must_use]
    pub fn with_composition(self) -> Self {
        AdmissionVariables { composed: Some(self.composed.unwrap_or_default()), ..self }
    }

    /// Removes `variables`.
    #[must_use]
    pub fn without_composition(self) -> Self {
        AdmissionVariables { composed: None, ..self }
    }

    /// Compiles a named expression, and declares `variables.<name>` for later expressions with the type of the result.
    ///
    /// # Errors
    /// Those of [`compile_expression`]. The type is then unknown.
    pub fn declare(&mut self, name: &str, source: &str) -> Result<Expression, String> {
        let compiled = compile(source, self, false);
        // Types without a declaration in Kubernetes' environment are dynamic (`convertCelTypeToDeclType`).
        let ty = match &compiled {
            Ok((_, Some(Type::Optional(_) | Type::Named(_) | Type::Fields(_) | Type::Type))) | Err(_) => {
                Some(Type::DYN)
            }
            Ok((_, ty)) => ty.clone(),
        };
        self.composed.get_or_insert_default().push((name.to_owned(), ty));
        compiled.map(|(expression, _)| expression)
    }

    fn types(&self) -> Vec<(&'static str, Type<'n>)> {
        let mut types = vec![
            ("object", self.object.clone()),
            ("oldObject", self.object.clone()),
            ("request", request_type()),
            ("namespaceObject", namespace_type()),
        ];
        if let Some(params) = &self.params {
            types.push(("params", params.clone()));
        }
        if self.authorizer {
            types.push(("authorizer", Type::DYN));
        }
        if let Some(composed) = &self.composed {
            let fields = Fields { name: "kubernetes.variables", fields: composed.clone() };
            types.push(("variables", Type::Fields(Rc::new(fields))));
        }
        types
    }
}

impl Default for AdmissionVariables<'_> {
    fn default() -> Self {
        AdmissionVariables::new()
    }
}

fn fields(name: &'static str, fields: &[(&str, Type<'static>)]) -> Type<'static> {
    let fields = fields.iter().map(|(name, ty)| ((*name).to_owned(), Some(ty.clone()))).collect();
    Type::Fields(Rc::new(Fields { name, fields }))
}

fn text() -> Type<'static> {
    Type::Text(u64::MAX)
}

fn list(item: Type<'static>) -> Type<'static> {
    Type::List(Rc::new(item), u64::MAX)
}

fn map(value: Type<'static>) -> Type<'static> {
    Type::Map(Rc::new(text()), Rc::new(value), u64::MAX)
}

/// The type of `request` (`BuildRequestType`).
fn request_type() -> Type<'static> {
    let kind = fields("kubernetes.GroupVersionKind", &["group", "version", "kind"].map(|name| (name, text())));
    let resource =
        fields("kubernetes.GroupVersionResource", &["group", "version", "resource"].map(|name| (name, text())));
    let user = fields(
        "kubernetes.UserInfo",
        &[("username", text()), ("uid", text()), ("groups", list(text())), ("extra", map(list(text())))],
    );
    fields(
        "kubernetes.AdmissionRequest",
        &[
            ("kind", kind.clone()),
            ("resource", resource.clone()),
            ("subResource", text()),
            ("requestKind", kind),
            ("requestResource", resource),
            ("requestSubResource", text()),
            ("name", text()),
            ("namespace", text()),
            ("operation", text()),
            ("userInfo", user),
            ("dryRun", Type::Bool),
            ("options", Type::DYN),
        ],
    )
}

/// The type of `namespaceObject` (`BuildNamespaceType`). Upstream names the field of the uid `UID`.
fn namespace_type() -> Type<'static> {
    let condition = ["status", "type", "message", "reason"].map(|name| (name, text()));
    let condition = [&condition[..], &[("lastTransitionTime", Type::Timestamp)]].concat();
    let conditions = list(fields("kubernetes.NamespaceCondition", &condition));
    let metadata = fields(
        "kubernetes.NamespaceMetadata",
        &[
            ("name", text()),
            ("generateName", text()),
            ("namespace", text()),
            ("labels", map(text())),
            ("annotations", map(text())),
            ("UID", text()),
            ("creationTimestamp", Type::Timestamp),
            ("deletionGracePeriodSeconds", Type::Int),
            ("deletionTimestamp", Type::Timestamp),
            ("generation", Type::Int),
            ("resourceVersion", text()),
            ("finalizers", list(text())),
        ],
    );
    let spec = fields("kubernetes.NamespaceSpec", &[("finalizers", list(text()))]);
    let status = fields("kubernetes.NamespaceStatus", &[("conditions", conditions), ("phase", text())]);
    fields("kubernetes.Namespace", &[("metadata", metadata), ("spec", spec), ("status", status)])
}

/// Compiles an expression. The type is `None` if a part of the expression is unknown.
fn compile<'n>(
    source: &str,
    variables: &AdmissionVariables<'n>,
    patches: bool,
) -> Result<(Expression, Option<Type<'n>>), String> {
    let parsed = if patches { Expression::parse_with_objects(source) } else { Expression::parse(source) };
    let compiled = parsed.and_then(|parsed| {
        let ty = parsed.check_leniently(variables.types())?;
        Ok((parsed, ty))
    });
    compiled.map_err(|issues| format!("{} failed: {issues}", issues.step()))
}

/// Compiles an expression with these variables. With `patches`, the patch types `Object` and
/// `JSONPatch` are available.
///
/// # Errors
/// The detail of the error, in kube-apiserver's words.
pub fn compile_expression(
    source: &str,
    variables: &AdmissionVariables<'_>,
    patches: bool,
    outcome: ResultType,
) -> Result<Expression, String> {
    let (expression, ty) = compile(source, variables, patches)?;
    let Some(ty) = ty else { return Ok(expression) };
    let (fits, wanted) = match (outcome, &ty) {
        (ResultType::Any, _) => return Ok(expression),
        (ResultType::Bool, ty) => (matches!(ty, Type::Bool), "bool"),
        (ResultType::Text, ty) => (matches!(ty, Type::Text(_)), "string"),
        (ResultType::TextOrNull, ty) => (matches!(ty, Type::Text(_) | Type::Null), "one of [string null_type]"),
        (ResultType::Object, ty) => (matches!(ty, Type::Named(OBJECT)), "Object"),
        (ResultType::JsonPatch, Type::List(item, _)) => (matches!(**item, Type::Named(JSON_PATCH)), "list(JSONPatch)"),
        (ResultType::JsonPatch, _) => (false, "list(JSONPatch)"),
    };
    if fits {
        return Ok(expression);
    }
    let found = if matches!(ty, Type::Null) { "null_type".to_owned() } else { ty.to_string() };
    Err(format!("must evaluate to {wanted} but got {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, outcome: ResultType, expected: &str) {
        let mut variables = AdmissionVariables::new().with_authorizer(true);
        for (name, source) in [
            ("known", "object.x == 1"),
            ("text", "'a' + object.metadata.name"),
            ("texts", "object.list.map(i, string(i))"),
            ("any", "object.x"),
            ("sorted", "object.list.sort()"),
            ("broken", "object."),
        ] {
            let _ = variables.declare(name, source);
        }
        let found = compile_expression(source, &variables, true, outcome).err().unwrap_or_default();
        assert!(
            found == expected || (!expected.is_empty() && found.starts_with(expected)),
            "{source}\n returns {found:?}\n     not {expected:?}"
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
            "variables.known",
            "variables.text == 'x' && variables.any == 1 && variables.sorted == [1] && variables.broken",
            "request.dryRun",
            "namespaceObject == null || namespaceObject.metadata.labels['a'] == 'b'",
            "object.spec.?x.orValue(1) == 1",
            "quantity('1k').isGreaterThan(quantity('1'))",
            "object.x ? true : object.y",
        ] {
            check(source, ResultType::Bool, "");
        }
        check("Object{spec: Object.spec{replicas: 1}}", ResultType::Object, "");
        check("object.x ? Object{} : Object{spec: Object.spec{}}", ResultType::Object, "");
        check("[JSONPatch{op: 'remove', path: '/a'}]", ResultType::JsonPatch, "");
        check("object.x ? [JSONPatch{op: 'remove', path: '/a'}] : []", ResultType::JsonPatch, "");
        check("'a' + string(object.x)", ResultType::Text, "");
        check("variables.text", ResultType::Text, "");
        check("variables.texts[0]", ResultType::TextOrNull, "");
        check("request.userInfo.groups[0] + request.name + namespaceObject.metadata.name", ResultType::Text, "");
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
        check("variables.none", ResultType::Any, &format!("{failed}10: undefined field 'none'"));
        check("request.object", ResultType::Any, &format!("{failed}8: undefined field 'object'"));
        check("variables.text", ResultType::Bool, "must evaluate to bool but got string");
        check("variables.any", ResultType::Bool, "must evaluate to bool but got dyn");
        check("1", ResultType::Bool, "must evaluate to bool but got int");
        check("object.flag", ResultType::Bool, "must evaluate to bool but got dyn");
        check("true", ResultType::Text, "must evaluate to string but got bool");
        check("1", ResultType::TextOrNull, "must evaluate to one of [string null_type] but got int");
        check("[1]", ResultType::JsonPatch, "must evaluate to list(JSONPatch) but got list(int)");
        check("{'a': 1}", ResultType::Object, "must evaluate to Object but got map(string, int)");
        check("Thing{}", ResultType::Any, &format!("{failed}6: undeclared reference to 'Thing' (in container '')"));
        let without = compile_expression("Object{}", &AdmissionVariables::new(), false, ResultType::Any);
        assert!(without.is_err(), "patch types are not always there");
        let undeclared = compile_expression("variables", &AdmissionVariables::new(), false, ResultType::Any);
        assert!(undeclared.is_err() && AdmissionVariables::new().declare("a", "authorizer").is_err());
    }
}
