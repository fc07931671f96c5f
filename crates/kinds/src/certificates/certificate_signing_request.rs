//! `CertificateSigningRequest (certificates.k8s.io/v1)`: certificatesigningrequests.

use crate::Subresource;
use crate::{Field, Kind, MetadataScope, WriteScope};
use listwatch_validation::names::NameRule;

pub(crate) static KIND: Kind = Kind {
    short_names: &["csr"],
    names: NameRule::PathSegment,
    fields: &[Field::new("spec.signerName")],
    subresources: &[Subresource::Approval, Subresource::Status],
    normalize: crate::hooks::certificates::decode,
    prepare_for_create: crate::hooks::certificates::create,
    prepare_for_update: crate::hooks::certificates::update,
    validate: crate::validate::certificates::request,
    validate_transition: crate::hooks::certificates::judge,
    keeps_spec: true,
    status_write: WriteScope { metadata: MetadataScope::Written, reset: &[&["spec"], &["status", "conditions"]] },
    printer: &crate::printers::extension::CERTIFICATE_SIGNING_REQUEST,
    ..Kind::cluster("certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest")
};
