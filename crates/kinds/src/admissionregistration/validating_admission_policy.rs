//! `ValidatingAdmissionPolicy (admissionregistration.k8s.io/v1)`: validatingadmissionpolicies.

use crate::Subresource;
use crate::{Kind, Unenforced, UnenforcedPart, WriteScope};

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    generation: true,
    categories: &["api-extensions"],
    subresources: &[Subresource::Status],
    defaults: &crate::defaults::table::ADMISSION_POLICY,
    validate: crate::validate::admission::validating_policy,
    validate_status: crate::validate::admission::policy_status,
    status_write: WriteScope::STATUS_ONLY,
    printer: &crate::printers::extension::VALIDATING_POLICY,
    unenforced: Some(Unenforced { part: UnenforcedPart::Object, consequence: "it rejects no request" }),
    ..Kind::cluster("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy")
};
