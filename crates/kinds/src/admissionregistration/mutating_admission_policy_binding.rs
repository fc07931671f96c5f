//! MutatingAdmissionPolicyBinding (`admissionregistration.k8s.io/v1`): binds a policy to parameters and resources.
//!
//! Source: `pkg/registry/admissionregistration/mutatingadmissionpolicybinding`,
//! `ValidateMutatingAdmissionPolicyBinding` in `pkg/apis/admissionregistration/validation`.

use listwatch_validation::{Errors, Object, child};

use super::bindings::{self, validate_spec};
use super::match_rules::{admission_kind, validate_mutating_operations};
use crate::{Kind, Unenforced, UnenforcedPart};

pub(crate) static KIND: Kind = Kind {
    defaults: &bindings::DEFAULTS,
    validate,
    printer: &bindings::PRINTER,
    unenforced: Some(Unenforced { part: UnenforcedPart::Object, consequence: "its policy changes no object" }),
    ..admission_kind("mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding")
};

/// Validates a binding (`ValidateMutatingAdmissionPolicyBinding`).
fn validate(binding: &Object, _: Option<&Object>, errors: &mut Errors) {
    let spec = child(binding, "spec");
    validate_spec(spec, errors);
    validate_mutating_operations(child(spec, "matchResources"), "spec.matchResources.", errors);
}
