//! `ControllerRevision (apps/v1)`: controllerrevisions.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    // The data of a revision is of free form.
    keeps_nulls: true,
    validate: crate::validate::workloads::controller_revision,
    validate_update: crate::validate::workloads::update_controller_revision,
    printer: &crate::printers::workload::CONTROLLER_REVISION,
    ..Kind::namespaced("apps", "v1", "controllerrevisions", "ControllerRevision")
};
