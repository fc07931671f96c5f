//! ValidatingAdmissionPolicy (`admissionregistration.k8s.io/v1`): expressions that reject requests.
//!
//! Source: `pkg/registry/admissionregistration/validatingadmissionpolicy`, `ValidateValidatingAdmissionPolicy` in
//! `pkg/apis/admissionregistration/validation`.

use std::collections::HashSet;

use listwatch_json::{Value, json};
use listwatch_meta::FieldError;
use listwatch_validation::{
    Errors, Object, child, conditions, given, items, objects, one_of, qualified_name, quoted, text,
};

use super::expressions::{Context, Expressions};
use super::match_rules::admission_kind;
use super::policies::{self, PARAM_KIND, validate_matching, validate_variables};
use crate::{Kind, Subresource, Unenforced, UnenforcedPart, WriteScope};
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    subresources: &[Subresource::Status],
    defaults: &policies::DEFAULTS,
    validate,
    validate_status,
    status_write: WriteScope::STATUS_ONLY,
    printer: &PRINTER,
    unenforced: Some(Unenforced { part: UnenforcedPart::Object, consequence: "it rejects no request" }),
    ..admission_kind("validatingadmissionpolicies", "ValidatingAdmissionPolicy")
};

/// The largest number of audit annotations of one policy.
const AUDIT_ANNOTATIONS_MAX: usize = 20;

/// The largest size of the value expression of one audit annotation, in bytes.
const AUDIT_EXPRESSION_BYTES_MAX: usize = 5 * 1024;

/// The supported reasons of a rejection.
const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];

/// Validates a policy (`ValidateValidatingAdmissionPolicy`).
fn validate(policy: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(policy, "spec");
    let mut expressions = Expressions::new(given(spec, "paramKind").is_some(), !items(spec, "variables").is_empty());
    validate_matching(spec, old, false, &mut expressions, errors);
    validate_variables(spec, &mut expressions, errors);
    if items(spec, "validations").is_empty() && items(spec, "auditAnnotations").is_empty() {
        let why = "validations or auditAnnotations must contain at least one item";
        errors.push(FieldError::required("spec.validations", why));
        errors.push(FieldError::required("spec.auditAnnotations", why));
        return;
    }
    for (position, validation) in objects(spec, "validations") {
        validate_validation(validation, &format!("spec.validations[{position}]."), &mut expressions, errors);
    }
    if items(spec, "auditAnnotations").len() > AUDIT_ANNOTATIONS_MAX {
        let why = format_args!("must not have more than {AUDIT_ANNOTATIONS_MAX} auditAnnotations");
        errors.push(FieldError::invalid("spec.auditAnnotations", shown_annotations(spec), why));
    }
    let name = text(child(policy, "metadata"), "name");
    let mut keys = HashSet::new();
    for (position, annotation) in objects(spec, "auditAnnotations") {
        let at = format!("spec.auditAnnotations[{position}].");
        validate_audit_annotation(name, annotation, &at, &mut expressions, errors);
        let key = text(annotation, "key");
        if !keys.insert(key) {
            errors.push(FieldError::duplicate(format!("{at}key"), quoted(key)));
        }
    }
}

/// Audit annotations as Go shows them.
fn shown_annotations(spec: &Object) -> Value {
    let shown = objects(spec, "auditAnnotations").map(|(_, annotation)| {
        json!({"Key": text(annotation, "key"), "ValueExpression": text(annotation, "valueExpression")})
    });
    Value::Array(shown.collect())
}

/// Validates one validation (`validateValidation`).
fn validate_validation(validation: &Object, at: &str, expressions: &mut Expressions, errors: &mut Errors) {
    let source = text(validation, "expression");
    if source.trim().is_empty() {
        errors.push(FieldError::required(format!("{at}expression"), "expression is not specified"));
    } else {
        expressions.check(source, source, Context::VALIDATION, &format!("{at}expression"), errors);
    }
    let source = text(validation, "messageExpression");
    if !source.trim().is_empty() {
        expressions.check(source, source, Context::MESSAGE, &format!("{at}messageExpression"), errors);
    } else if !source.is_empty() {
        let why = "must be non-empty if specified";
        errors.push(FieldError::invalid(format!("{at}messageExpression"), quoted(source), why));
    }
    let message = text(validation, "message");
    if !message.is_empty() && message.trim().is_empty() {
        let why = "must be non-empty if specified";
        errors.push(FieldError::invalid(format!("{at}message"), quoted(message), why));
    } else if message.trim().contains(['\n', '\r']) {
        errors.push(FieldError::invalid(format!("{at}message"), quoted(message), "must not contain line breaks"));
    }
    one_of(validation, "reason", at, &REASONS, errors);
}

/// Validates one audit annotation (`validateAuditAnnotation`).
fn validate_audit_annotation(
    policy: &str,
    annotation: &Object,
    at: &str,
    expressions: &mut Expressions,
    errors: &mut Errors,
) {
    let key = text(annotation, "key");
    if policy.is_empty() {
        errors.push(FieldError::invalid(format!("{at}key"), quoted(key), "requires metadata.name be non-empty"));
    } else {
        qualified_name(&format!("{policy}/{key}"), &format!("{at}key"), errors);
    }
    let field = format!("{at}valueExpression");
    let shown = text(annotation, "valueExpression");
    match shown.trim() {
        "" => errors.push(FieldError::required(field, "valueExpression is not specified")),
        source if source.len() > AUDIT_EXPRESSION_BYTES_MAX => {
            let why = format!("must not exceed {AUDIT_EXPRESSION_BYTES_MAX} bytes in length");
            errors.push(FieldError::required(field, why));
        }
        source => expressions.check(source, shown, Context::AUDIT, &field, errors),
    }
}

/// Validates the status (`ValidateValidatingAdmissionPolicyStatusUpdate`), except the syntax of field references.
fn validate_status(policy: &Object, _: Option<&Object>, errors: &mut Errors) {
    let status = child(policy, "status");
    for (position, warning) in objects(child(status, "typeChecking"), "expressionWarnings") {
        let at = format!("status.typeChecking.expressionWarnings[{position}].");
        for (name, value) in [("warning", text(warning, "warning")), ("fieldRef", text(warning, "fieldRef").trim())] {
            if value.is_empty() {
                errors.push(FieldError::required(format!("{at}{name}"), ""));
            }
        }
    }
    conditions(status, "status.", errors);
}

static PRINTER: Printer = Printer {
    columns: &[NAME, Column::integer("Validations", "How many rules the policy has."), PARAM_KIND, AGE],
    cells: |object| policies::cells(object, "validations"),
};
