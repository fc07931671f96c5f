//! `ResourceClaim (resource.k8s.io/v1)`: resourceclaims.

use crate::Subresource;
use crate::{Kind, WriteScope};

pub(crate) static KIND: Kind = Kind {
    subresources: &[Subresource::Status],
    defaults: &crate::defaults::table::RESOURCE_CLAIM,
    prepare_for_update: |claim, old, context| {
        if context.subresource == Some(&Subresource::Status) {
            crate::validate::devices::drop_deallocated(claim, old);
        }
    },
    validate: crate::validate::devices::claim,
    validate_status: crate::validate::devices::claim_status,
    status_write: WriteScope::STATUS_ONLY,
    printer: &crate::printers::extension::RESOURCE_CLAIM,
    returns_deleted: true,
    ..Kind::namespaced("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
};
