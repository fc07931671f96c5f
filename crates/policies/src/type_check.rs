//! Checks the expressions of a ValidatingAdmissionPolicy against the types of the kinds that the policy names
//! (`policy/validating/typechecking.go`). The result is written to the status of the policy and never affects a
//! request.

use std::collections::BTreeSet;

use listwatch_cel::{AdmissionVariables, ResultType, compile_expression};
use listwatch_json::{Value, json};
use listwatch_validation::{Object, child, objects, text, texts};

use crate::object_schema::ObjectSchema;

/// Maximum number of kinds that are checked (`maxTypesToCheck`). Further kinds are ignored.
pub const TYPES_MAX: usize = 10;

/// A kind against which expressions are checked.
#[derive(Clone, Debug)]
pub struct CheckedKind {
    /// The API group; empty for the core group.
    pub group: String,
    /// The API version.
    pub version: String,
    /// The kind.
    pub kind: String,
    /// The types of the kind's fields.
    pub schema: ObjectSchema,
}

/// Returns the resources whose kinds are checked, as group, version and plural. Rules with wildcards are skipped.
pub fn resources_to_check(policy: &Object) -> BTreeSet<(String, String, String)> {
    let mut found = BTreeSet::new();
    let constraints = child(child(policy, "spec"), "matchConstraints");
    for (_, rule) in objects(constraints, "resourceRules") {
        let all = |name: &'static str| texts(rule, name);
        if all("apiGroups").chain(all("apiVersions")).any(|name| name.contains('*')) {
            continue;
        }
        for group in all("apiGroups") {
            for version in all("apiVersions") {
                for resource in all("resources").filter(|resource| !resource.contains(['*', '/'])) {
                    found.insert((group.to_owned(), version.to_owned(), resource.to_owned()));
                }
            }
        }
    }
    found
}

/// Checks the validations and message expressions of a policy. Returns the `expressionWarnings` of the status. `kinds`
/// are sorted by group, version and kind; only the first [`TYPES_MAX`] are checked. `params` is the schema of the
/// parameters.
pub fn type_check(policy: &Object, kinds: &[CheckedKind], params: Option<&ObjectSchema>) -> Vec<Value> {
    let spec = child(policy, "spec");
    let mut warnings = Vec::new();
    for (position, validation) in objects(spec, "validations") {
        for field in ["expression", "messageExpression"] {
            let source = text(validation, field);
            if source.is_empty() {
                continue;
            }
            let issues: Vec<String> =
                kinds.iter().take(TYPES_MAX).filter_map(|kind| check(spec, source, kind, params)).collect();
            if !issues.is_empty() {
                let field_ref = format!("spec.validations[{position}].{field}");
                warnings.push(json!({"fieldRef": field_ref, "warning": issues.join("\n")}));
            }
        }
    }
    warnings
}

/// Checks an expression against one kind. Returns the error message, or `None` if the expression is valid.
fn check(spec: &Object, source: &str, kind: &CheckedKind, params: Option<&ObjectSchema>) -> Option<String> {
    let has_params = !child(spec, "paramKind").is_empty();
    let variables = AdmissionVariables::new().with_params(has_params).with_authorizer(true).with_composition();
    let variables = variables.with_object_schema(&kind.schema);
    let mut variables = match params {
        Some(params) => variables.with_params_schema(params),
        None => variables,
    };
    for (_, variable) in objects(spec, "variables") {
        // Upstream reports only the issues of validations.
        let _ = variables.declare(text(variable, "name"), text(variable, "expression"));
    }
    let why = compile_expression(source, &variables, false, ResultType::Any).err()?;
    let issues = why.strip_prefix("compilation failed: ").unwrap_or(&why);
    let CheckedKind { group, version, kind, .. } = kind;
    Some(format!("{group}/{version}, Kind={kind}: {issues}\n"))
}
