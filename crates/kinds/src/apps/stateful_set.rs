//! `StatefulSet (apps/v1)`: statefulsets.

use crate::Kind;
use crate::Subresource;
use serde_json::json;

pub(crate) static KIND: Kind = Kind {
    short_names: &["sts"],
    generation: true,
    categories: &["all"],
    subresources: &[Subresource::scale("spec.selector"), Subresource::Status],
    defaults: &crate::defaults::table::STATEFUL_SET,
    initial_status: || Some(json!({"replicas": 0, "availableReplicas": 0})),
    validate: crate::validate::workloads::stateful_set,
    validate_update: crate::validate::workloads::update_stateful_set,
    validate_transition: |new, old, context, errors| {
        crate::hooks::counts::STATEFUL_SET.judge(new, old, context, errors)
    },
    printer: &crate::printers::workload::STATEFUL_SET,
    ..Kind::namespaced("apps", "v1", "statefulsets", "StatefulSet")
};
