//! `HorizontalPodAutoscaler (autoscaling/v2)`: horizontalpodautoscalers.

use crate::Kind;
use crate::Subresource;
use serde_json::json;

pub(crate) static KIND: Kind = Kind {
    short_names: &["hpa"],
    categories: &["all"],
    subresources: &[Subresource::Status],
    defaults: &crate::defaults::table::HORIZONTAL_POD_AUTOSCALER,
    initial_status: || Some(json!({"desiredReplicas": 0, "currentMetrics": null})),
    normalize: crate::hooks::drop_carriers,
    validate: crate::validate::autoscaling::autoscaler,
    validate_status: crate::validate::autoscaling::autoscaler_status,
    printer: &crate::printers::workload::HORIZONTAL_POD_AUTOSCALER,
    ..Kind::namespaced("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
};
