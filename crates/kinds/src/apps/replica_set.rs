//! `ReplicaSet (apps/v1)`: replicasets.

use crate::Kind;
use crate::Subresource;
use serde_json::json;

pub(crate) static KIND: Kind = Kind {
    short_names: &["rs"],
    generation: true,
    categories: &["all"],
    subresources: &[Subresource::scale("spec.selector"), Subresource::Status],
    defaults: &crate::defaults::table::REPLICA_SET,
    initial_status: || Some(json!({"replicas": 0})),
    validate: crate::validate::workloads::replica_set,
    validate_update: crate::validate::workloads::update_selector,
    validate_transition: |new, old, context, errors| crate::hooks::counts::REPLICA_SET.judge(new, old, context, errors),
    printer: &crate::printers::workload::REPLICA_SET,
    ..Kind::namespaced("apps", "v1", "replicasets", "ReplicaSet")
};
