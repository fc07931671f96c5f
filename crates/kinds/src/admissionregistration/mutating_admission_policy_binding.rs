//! MutatingAdmissionPolicyBinding (`admissionregistration.k8s.io/v1`): binds a policy to parameters and resources.
//!
//! Upstream: `pkg/registry/admissionregistration/mutatingadmissionpolicybinding`,
//! `ValidateMutatingAdmissionPolicyBinding` in `pkg/apis/admissionregistration/validation`.

use listwatch_validation::{Errors, Object, child};

use super::bindings::{self, validate_spec};
use super::match_rules::validate_mutating_operations;
use crate::{Kind, Unenforced, UnenforcedPart};

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    generation: true,
    categories: &["api-extensions"],
    defaults: &bindings::DEFAULTS,
    validate,
    printer: &bindings::PRINTER,
    unenforced: Some(Unenforced { part: UnenforcedPart::Object, consequence: "its policy changes no object" }),
    ..Kind::cluster(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingadmissionpolicybindings",
        "MutatingAdmissionPolicyBinding",
    )
};

/// Validates a binding (`ValidateMutatingAdmissionPolicyBinding`).
fn validate(binding: &Object, _: Option<&Object>, errors: &mut Errors) {
    let spec = child(binding, "spec");
    validate_spec(spec, errors);
    validate_mutating_operations(child(spec, "matchResources"), "spec.matchResources.", errors);
}
