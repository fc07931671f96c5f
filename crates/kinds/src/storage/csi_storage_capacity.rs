//! `CSIStorageCapacity (storage.k8s.io/v1)`: csistoragecapacities.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    validate: crate::validate::csi::csi_storage_capacity,
    printer: &crate::printers::storage::CSI_STORAGE_CAPACITY,
    ..Kind::namespaced("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity")
};
