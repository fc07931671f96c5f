//! `DaemonSet (apps/v1)`: daemonsets.

use crate::Kind;
use crate::Subresource;
use serde_json::json;

pub(crate) static KIND: Kind = Kind {
    short_names: &["ds"],
    generation: true,
    categories: &["all"],
    subresources: &[Subresource::Status],
    defaults: &crate::defaults::table::DAEMON_SET,
    initial_status: || {
        Some(
            json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0}),
        )
    },
    prepare_for_create: crate::hooks::workloads::create_daemon_set,
    prepare_for_update: crate::hooks::workloads::update_daemon_set,
    validate: crate::validate::workloads::daemon_set,
    validate_update: crate::validate::workloads::update_selector,
    validate_transition: |new, old, context, errors| crate::hooks::counts::DAEMON_SET.judge(new, old, context, errors),
    printer: &crate::printers::workload::DAEMON_SET,
    ..Kind::namespaced("apps", "v1", "daemonsets", "DaemonSet")
};
