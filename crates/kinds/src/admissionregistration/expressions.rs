//! Validates CEL expressions and match conditions of policies and webhooks.
//!
//! Expressions are compiled as far as [`compile_expression`] supports them. Upstream: `validateMatchConditions` in
//! `pkg/apis/admissionregistration/validation`.

use std::collections::HashSet;

use listwatch_cel::{AdmissionVariables, ResultType, compile_expression};
use listwatch_meta::FieldError;
use listwatch_validation::{Errors, Object, items, objects, qualified_name, quoted, text};

/// The largest number of match conditions of one policy or webhook.
const MATCH_CONDITIONS_MAX: usize = 64;

/// The largest total size of the expressions that are compiled for one object, in bytes. Further expressions are stored
/// unchecked, because compilation is expensive and a body can consist of expressions.
const COMPILED_BYTES_MAX: usize = 256 * 1024;

/// The variables that expressions of one object can use, and the bytes that may still be compiled.
pub(crate) struct Expressions {
    variables: AdmissionVariables<'static>,
    bytes_left: usize,
}

impl Expressions {
    /// Creates a value with the full cost budget. `params` and `composition` tell whether the CEL variables `params`
    /// and `variables` exist.
    pub(crate) fn new(params: bool, composition: bool) -> Expressions {
        let variables = AdmissionVariables::new().with_params(params);
        let variables = if composition { variables.with_composition() } else { variables };
        Expressions { variables, bytes_left: COMPILED_BYTES_MAX }
    }

    fn take(&mut self, source: &str) -> bool {
        let left = self.bytes_left.checked_sub(source.len());
        self.bytes_left = left.unwrap_or(self.bytes_left);
        left.is_some()
    }

    /// Compiles an expression. `shown` is the value that an error shows.
    pub(crate) fn check(&mut self, source: &str, shown: &str, context: Context, field: &str, errors: &mut Errors) {
        if !self.take(source) {
            return;
        }
        let mut variables = self.variables.clone().with_authorizer(context.authorizer);
        if !context.variables {
            variables = variables.without_composition();
        }
        if let Err(why) = compile_expression(source, &variables, context.patches, context.outcome) {
            errors.push(FieldError::invalid(field, quoted(shown), why));
        }
    }

    /// Compiles the expression of a variable, which later expressions can use.
    pub(crate) fn declare(&mut self, name: &str, source: &str, field: &str, errors: &mut Errors) {
        // A variable that is not compiled has an unknown type.
        let compiled = if self.take(source) { source } else { "dyn(null)" };
        self.variables = std::mem::take(&mut self.variables).with_authorizer(true);
        if let Err(why) = self.variables.declare(name, compiled) {
            errors.push(FieldError::invalid(field, quoted(source), why));
        }
    }
}

/// The result type of an expression, and the variables that it can use.
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
    pub(crate) const APPLY_CONFIGURATION: Context =
        Context { outcome: ResultType::Object, patches: true, ..Context::VALIDATION };
    pub(crate) const JSON_PATCH: Context = Context { outcome: ResultType::JsonPatch, ..Context::APPLY_CONFIGURATION };
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
