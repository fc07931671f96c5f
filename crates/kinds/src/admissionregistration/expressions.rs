//! CEL expressions and match conditions of policies and webhooks.
//!
//! Expressions are compiled as far as [`check_expression`] supports them. Upstream: `validateMatchConditions` in
//! `pkg/apis/admissionregistration/validation`.

use std::collections::HashSet;

use listwatch_cel::{ResultType, check_expression};
use listwatch_meta::FieldError;
use listwatch_validation::{Errors, Object, items, objects, qualified_name, quoted, text};

/// The largest number of match conditions of one policy or webhook.
const MATCH_CONDITIONS_MAX: usize = 64;

/// The largest total size of the expressions that are compiled for one object, in bytes. Further expressions are stored
/// unchecked, because compilation is expensive and a body can consist of expressions.
const COMPILED_BYTES_MAX: usize = 256 * 1024;

/// The variables that expressions of one object can use, and the bytes that may still be compiled.
pub(crate) struct Expressions {
    params: bool,
    variables: bool,
    bytes_left: usize,
}

impl Expressions {
    /// Starts with the whole budget. `params` and `variables` tell whether these CEL variables exist.
    pub(crate) fn new(params: bool, variables: bool) -> Expressions {
        Expressions { params, variables, bytes_left: COMPILED_BYTES_MAX }
    }

    /// Compiles an expression. `shown` is the value that an error shows.
    pub(crate) fn check(&mut self, source: &str, shown: &str, context: Context, field: &str, errors: &mut Errors) {
        let Some(left) = self.bytes_left.checked_sub(source.len()) else { return };
        self.bytes_left = left;
        let mut names = vec!["object", "oldObject", "namespaceObject", "request"];
        if self.params {
            names.push("params");
        }
        if context.authorizer {
            names.push("authorizer");
        }
        if self.variables && context.variables {
            names.push("variables");
        }
        if let Err(why) = check_expression(source, &names, context.patches, context.outcome) {
            errors.push(FieldError::invalid(field, quoted(shown), why));
        }
    }
}

/// The result type and the variables that an expression can have at its place in the object.
#[derive(Clone, Copy)]
pub(crate) struct Context {
    outcome: ResultType,
    authorizer: bool,
    variables: bool,
    patches: bool,
}

impl Context {
    pub(crate) const CONDITION: Context =
        Context { outcome: ResultType::Bool, authorizer: true, variables: false, patches: false };
    pub(crate) const VALIDATION: Context = Context { variables: true, ..Context::CONDITION };
    pub(crate) const MESSAGE: Context = Context { outcome: ResultType::Text, authorizer: false, ..Context::VALIDATION };
    pub(crate) const AUDIT: Context = Context { outcome: ResultType::TextOrNull, ..Context::VALIDATION };
    pub(crate) const VARIABLE: Context = Context { outcome: ResultType::Any, ..Context::VALIDATION };
    pub(crate) const PATCH: Context = Context { patches: true, ..Context::VARIABLE };
}

/// Validates the match conditions of a policy or a webhook (`validateMatchConditions`).
pub(crate) fn validate_match_conditions(holder: &Object, at: &str, expressions: &mut Expressions, errors: &mut Errors) {
    let count = items(holder, "matchConditions").len();
    if count > MATCH_CONDITIONS_MAX {
        errors.push(FieldError::too_many(format!("{at}matchConditions"), count, MATCH_CONDITIONS_MAX));
    }
    let mut seen = HashSet::new();
    for (position, condition) in objects(holder, "matchConditions") {
        let at = format!("{at}matchConditions[{position}].");
        match text(condition, "expression").trim() {
            "" => errors.push(FieldError::required(format!("{at}expression"), "")),
            source => {
                expressions.check(source, source, Context::CONDITION, &format!("{at}expression"), errors);
            }
        }
        match text(condition, "name") {
            "" => errors.push(FieldError::required(format!("{at}name"), "")),
            name => {
                qualified_name(name, &format!("{at}name"), errors);
                if !seen.insert(name) {
                    errors.push(FieldError::duplicate(format!("{at}name"), quoted(name)));
                }
            }
        }
    }
}
