//! `Lease (coordination.k8s.io/v1)`: leases.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    create_on_update: true,
    validate: crate::validate::access::lease,
    printer: &crate::printers::core::LEASE,
    ..Kind::namespaced("coordination.k8s.io", "v1", "leases", "Lease")
};
