//! `MutatingAdmissionPolicy (admissionregistration.k8s.io/v1)`: mutatingadmissionpolicies.

use crate::{Kind, Unenforced, UnenforcedPart};

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    generation: true,
    categories: &["api-extensions"],
    defaults: &crate::defaults::table::ADMISSION_POLICY,
    validate: crate::validate::admission::mutating_policy,
    printer: &crate::printers::extension::MUTATING_POLICY,
    unenforced: Some(Unenforced { part: UnenforcedPart::Object, consequence: "it changes no object" }),
    ..Kind::cluster("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy")
};
