//! `PodDisruptionBudget (policy/v1)`: poddisruptionbudgets.

use crate::Kind;
use crate::Subresource;
use serde_json::json;

pub(crate) static KIND: Kind = Kind {
    short_names: &["pdb"],
    unconditional_update: false,
    generation: true,
    subresources: &[Subresource::Status],
    initial_status: || {
        Some(json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}))
    },
    validate: crate::validate::autoscaling::budget,
    validate_status: crate::validate::autoscaling::budget_status,
    printer: &crate::printers::workload::POD_DISRUPTION_BUDGET,
    ..Kind::namespaced("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
};
