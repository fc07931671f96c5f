//! `ResourceQuota (v1)`: resourcequotas.

use crate::Subresource;
use crate::{Kind, Unenforced, UnenforcedPart};

pub(crate) static KIND: Kind = Kind {
    short_names: &["quota"],
    subresources: &[Subresource::Status],
    validate: crate::validate::quotas::resource_quota,
    validate_status: crate::validate::quotas::resource_quota_status,
    printer: &crate::printers::core::RESOURCE_QUOTA,
    unenforced: Some(Unenforced { part: UnenforcedPart::Object, consequence: "the namespace may exceed it" }),
    ..Kind::namespaced("", "v1", "resourcequotas", "ResourceQuota")
};
