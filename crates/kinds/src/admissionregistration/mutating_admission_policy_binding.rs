//! `MutatingAdmissionPolicyBinding (admissionregistration.k8s.io/v1)`: mutatingadmissionpolicybindings.

use crate::{Kind, Unenforced, UnenforcedPart};

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    generation: true,
    categories: &["api-extensions"],
    defaults: &crate::defaults::table::POLICY_BINDING,
    validate: crate::validate::admission::mutating_binding,
    printer: &crate::printers::extension::POLICY_BINDING,
    unenforced: Some(Unenforced { part: UnenforcedPart::Object, consequence: "its policy changes no object" }),
    ..Kind::cluster(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingadmissionpolicybindings",
        "MutatingAdmissionPolicyBinding",
    )
};
