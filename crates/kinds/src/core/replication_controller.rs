//! `ReplicationController (v1)`: replicationcontrollers.

use crate::Subresource;
use crate::{Field, Kind};
use serde_json::json;

pub(crate) static KIND: Kind = Kind {
    short_names: &["rc"],
    storage_prefix: "controllers",
    generation: true,
    categories: &["all"],
    fields: &[Field::with_default("status.replicas", "0")],
    subresources: &[Subresource::scale("spec.selector"), Subresource::Status],
    defaults: &crate::defaults::table::REPLICATION_CONTROLLER,
    initial_status: || Some(json!({"replicas": 0})),
    validate: crate::validate::workloads::replication_controller,
    validate_transition: |new, old, context, errors| {
        crate::hooks::counts::REPLICATION_CONTROLLER.judge(new, old, context, errors)
    },
    printer: &crate::printers::workload::REPLICATION_CONTROLLER,
    orphans_dependents: true,
    ..Kind::namespaced("", "v1", "replicationcontrollers", "ReplicationController")
};
