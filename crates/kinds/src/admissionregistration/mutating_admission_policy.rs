//! MutatingAdmissionPolicy (`admissionregistration.k8s.io/v1`): expressions that change objects on admission.
//!
//! Source: `pkg/registry/admissionregistration/mutatingadmissionpolicy`, `ValidateMutatingAdmissionPolicy` in
//! `pkg/apis/admissionregistration/validation`.

use listwatch_json::Value;
use listwatch_meta::FieldError;
use listwatch_validation::{Errors, Object, child, given, items, objects, quoted, text};

use super::expressions::{Context, Expressions};
use super::match_rules::{admission_kind, required_one_of};
use super::policies::{self, PARAM_KIND, validate_matching, validate_variables};
use super::webhooks::REINVOCATION_POLICIES;
use crate::{Kind, Unenforced, UnenforcedPart};
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    defaults: &policies::DEFAULTS,
    validate,
    printer: &PRINTER,
    unenforced: Some(Unenforced { part: UnenforcedPart::Object, consequence: "it changes no object" }),
    ..admission_kind("mutatingadmissionpolicies", "MutatingAdmissionPolicy")
};

/// Validates a policy (`ValidateMutatingAdmissionPolicy`).
fn validate(policy: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(policy, "spec");
    let mut expressions = Expressions::new(given(spec, "paramKind").is_some(), true);
    validate_matching(spec, old, true, &mut expressions, errors);
    validate_variables(spec, &mut expressions, errors);
    if items(spec, "mutations").is_empty() {
        errors.push(FieldError::required("spec.mutations", "mutations must contain at least one item"));
    }
    for (position, mutation) in objects(spec, "mutations") {
        validate_mutation(mutation, &format!("spec.mutations[{position}]."), &mut expressions, errors);
    }
    required_one_of(spec, "reinvocationPolicy", "spec.", &REINVOCATION_POLICIES, errors);
}

/// Validates one mutation: only the patch of its type must be present (`validateMutation`).
fn validate_mutation(mutation: &Object, at: &str, expressions: &mut Expressions, errors: &mut Errors) {
    let (wanted, other, context) = match text(mutation, "patchType") {
        "" => return errors.push(FieldError::required(format!("{at}patchType"), "")),
        "JSONPatch" => ("jsonPatch", "applyConfiguration", Context::JSON_PATCH),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch", Context::APPLY_CONFIGURATION),
        kind => {
            let supported = ["ApplyConfiguration", "JSONPatch"];
            return errors.push(FieldError::not_supported(format!("{at}patchType"), kind, &supported));
        }
    };
    let kind = text(mutation, "patchType");
    match given(mutation, wanted) {
        Some(Value::Object(patch)) => match text(patch, "expression").trim() {
            "" => errors.push(FieldError::required(format!("{at}{wanted}.expression"), "")),
            source => {
                expressions.check(source, source, context, &format!("{at}{wanted}.expression"), errors);
            }
        },
        _ => {
            let why = format!("must be specified when patchType is {kind}");
            errors.push(FieldError::required(format!("{at}{wanted}"), why));
        }
    }
    if given(mutation, other).is_some() {
        let why = format!("must not be specified when patchType is {kind}");
        errors.push(FieldError::invalid(format!("{at}{other}"), quoted(&format!("{{{other}}}")), why));
    }
}

static PRINTER: Printer = Printer {
    columns: &[NAME, Column::integer("Mutations", "How many mutations the policy has."), PARAM_KIND, AGE],
    cells: |object| policies::cells(object, "mutations"),
};
