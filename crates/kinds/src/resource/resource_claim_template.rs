//! `ResourceClaimTemplate (resource.k8s.io/v1)`: resourceclaimtemplates.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    defaults: &crate::defaults::table::RESOURCE_CLAIM_TEMPLATE,
    validate: crate::validate::devices::claim_template,
    printer: &crate::printers::NAME_AND_AGE,
    returns_deleted: true,
    ..Kind::namespaced("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate")
};
