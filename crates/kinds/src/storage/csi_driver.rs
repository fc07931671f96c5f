//! `CSIDriver (storage.k8s.io/v1)`: csidrivers.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    defaults: &crate::defaults::table::CSI_DRIVER,
    validate: crate::validate::csi::csi_driver,
    printer: &crate::printers::storage::CSI_DRIVER,
    returns_deleted: true,
    ..Kind::cluster("storage.k8s.io", "v1", "csidrivers", "CSIDriver")
};
