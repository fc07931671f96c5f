//! `ServiceCIDR (networking.k8s.io/v1)`: servicecidrs.

use crate::Subresource;
use crate::{Kind, Unenforced, UnenforcedPart, WriteScope};

pub(crate) static KIND: Kind = Kind {
    subresources: &[Subresource::Status],
    validate: crate::validate::networking::service_cidr,
    status_write: WriteScope::STATUS_ONLY,
    printer: &crate::printers::network::SERVICE_CIDR,
    unenforced: Some(Unenforced { part: UnenforcedPart::Object, consequence: "cluster IPs are not allocated from it" }),
    ..Kind::cluster("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR")
};
