//! ValidatingAdmissionPolicyBinding (`admissionregistration.k8s.io/v1`): binds a policy to parameters and resources.
//!
//! Source: `pkg/registry/admissionregistration/validatingadmissionpolicybinding`,
//! `ValidateValidatingAdmissionPolicyBinding` in `pkg/apis/admissionregistration/validation`.

use std::collections::HashSet;

use listwatch_meta::FieldError;
use listwatch_validation::{Errors, Object, child, quoted, shown_list, texts};

use super::bindings::{self, validate_spec};
use super::match_rules::admission_kind;
use crate::{Kind, Unenforced, UnenforcedPart};

pub(crate) static KIND: Kind = Kind {
    defaults: &bindings::DEFAULTS,
    validate,
    printer: &bindings::PRINTER,
    unenforced: Some(Unenforced { part: UnenforcedPart::Object, consequence: "its policy rejects no request" }),
    ..admission_kind("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding")
};

/// The actions after a failed validation.
const ACTIONS: [&str; 3] = ["Audit", "Deny", "Warn"];

/// Validates a binding (`ValidateValidatingAdmissionPolicyBinding`).
fn validate(binding: &Object, _: Option<&Object>, errors: &mut Errors) {
    let spec = child(binding, "spec");
    validate_spec(spec, errors);
    let field = "spec.validationActions";
    let mut seen = HashSet::new();
    for (position, action) in texts(spec, "validationActions").enumerate() {
        let field = || format!("{field}[{position}]");
        if !ACTIONS.contains(&action) {
            errors.push(FieldError::not_supported(field(), action, &ACTIONS));
        }
        if !seen.insert(action) {
            errors.push(FieldError::duplicate(field(), quoted(action)));
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.push(FieldError::invalid(field, shown_list(spec, "validationActions"), why));
    }
    if seen.is_empty() {
        errors.push(FieldError::required(field, "at least one validation action is required"));
    }
}
