//! `CSINode (storage.k8s.io/v1)`: csinodes.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    defaults: &crate::defaults::table::CSI_NODE,
    validate: crate::validate::csi::csi_node,
    printer: &crate::printers::storage::CSI_NODE,
    returns_deleted: true,
    ..Kind::cluster("storage.k8s.io", "v1", "csinodes", "CSINode")
};
