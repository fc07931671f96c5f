//! Columns and cells that kinds with pod templates share.

use super::text::{NONE, UNSET, containers, with_more};
use super::{Printed, Printer};
use crate::table::Cell;
use crate::table::Json;
use crate::table::{AGE, Column, NAME};

pub(crate) const CONTAINERS: Column = Column::wide("Containers", "The names of the template's containers.");
pub(crate) const IMAGES: Column = Column::wide("Images", "The images of the template's containers.");
pub(crate) const SELECTOR: Column = Column::wide("Selector", "The labels of the pods that belong to this.");
pub(crate) const DESIRED: Column = Column::integer("Desired", "How many pods there should be.");
pub(crate) const CURRENT: Column = Column::integer("Current", "How many pods there are.");
pub(crate) const READY: Column = Column::integer("Ready", "How many pods are ready.");
pub(crate) const READY_OF: Column = Column::text("Ready", "Ready pods of the pods that there should be.");

/// `spec.replicas`; 1 by default.
pub(crate) fn replicas(object: Printed<'_>) -> i64 {
    object.at("spec.replicas").int().unwrap_or(1)
}

/// A count in the status; 0 by default.
pub(crate) fn count(status: Json<'_>, key: &str) -> i64 {
    status.get(key).int().unwrap_or(0)
}

/// The columns of ReplicaSets and ReplicationControllers.
pub(crate) const REPLICA_COLUMNS: &[Column] = &[NAME, DESIRED, CURRENT, READY, AGE, CONTAINERS, IMAGES, SELECTOR];

/// The cells of [`REPLICA_COLUMNS`].
pub(crate) fn replica_cells(set: Printed<'_>, selector: String) -> Vec<Cell> {
    let status = set.status();
    let (names, images) = containers(set.at("spec.template"));
    vec![
        set.name().into(),
        replicas(set).into(),
        count(status, "replicas").into(),
        count(status, "readyReplicas").into(),
        set.age().into(),
        names.into(),
        images.into(),
        selector.into(),
    ]
}

pub(crate) static POD_DISRUPTION_BUDGET: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Min Available", "How many pods must stay available."),
        Column::text("Max Unavailable", "How many pods may be unavailable."),
        Column::integer("Allowed Disruptions", "How many pods may be disrupted now."),
        AGE,
    ],
    cells: |budget| {
        let bound = |path: &str| budget.at(path).scalar().unwrap_or_else(|| "N/A".to_owned());
        vec![
            budget.name().into(),
            bound("spec.minAvailable").into(),
            bound("spec.maxUnavailable").into(),
            count(budget.status(), "disruptionsAllowed").into(),
            budget.age().into(),
        ]
    },
};

pub(crate) static HORIZONTAL_POD_AUTOSCALER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Reference", "What is scaled."),
        Column::text("Targets", "The metrics: where they are and where they should be."),
        Column::text("MinPods", "The fewest pods."),
        Column::text("MaxPods", "The most pods."),
        Column::text("Replicas", "How many pods there are."),
        AGE,
    ],
    cells: |scaler| {
        let spec = scaler.spec();
        let target = spec.get("scaleTargetRef");
        vec![
            scaler.name().into(),
            format!("{}/{}", target.get("kind").string(), target.get("name").string()).into(),
            metrics(spec.get("metrics"), scaler.at("status.currentMetrics")).into(),
            spec.get("minReplicas").scalar().unwrap_or_else(|| "1".to_owned()).into(),
            spec.get("maxReplicas").int().unwrap_or(0).into(),
            count(scaler.status(), "currentReplicas").into(),
            scaler.age().into(),
        ]
    },
};

/// How many metrics a cell shows.
const METRICS_SHOWN_MAX: usize = 2;

fn metrics(specs: Json<'_>, statuses: Json<'_>) -> String {
    let statuses = statuses.items();
    let metric = |(position, spec): (usize, Json<'_>)| {
        let status = statuses.get(position).copied().unwrap_or(Json::new(b""));
        metric(spec, status)
    };
    let list = specs.items().into_iter().enumerate().map(metric).collect();
    with_more(list, METRICS_SHOWN_MAX, ", ", NONE)
}

fn metric(spec: Json<'_>, status: Json<'_>) -> String {
    let type_ = spec.get("type").string();
    let (member, named) = match type_.as_str() {
        "External" => ("external", false),
        "Pods" => ("pods", false),
        "Object" => ("object", false),
        "Resource" => ("resource", true),
        "ContainerResource" => ("containerResource", true),
        _ => return "<unknown type>".to_owned(),
    };
    let (target, current) = (spec.get(member).get("target"), status.get(member).get("current"));
    let unknown = || "<unknown>".to_owned();
    let average = target.get("averageValue").scalar();
    let text = match (average, named) {
        // What pods and resources are measured by is an average anyway.
        (Some(average), _) => {
            let suffix = if matches!(member, "external" | "object") { " (avg)" } else { "" };
            format!("{}/{average}{suffix}", current.get("averageValue").scalar().unwrap_or_else(unknown))
        }
        (None, false) => {
            let value = target.get("value").scalar().unwrap_or_else(|| UNSET.to_owned());
            format!("{}/{value}", current.get("value").scalar().unwrap_or_else(unknown))
        }
        (None, true) => {
            let percent = |json: Json<'_>| json.get("averageUtilization").int().map(|number| format!("{number}%"));
            let wanted = percent(target).unwrap_or_else(|| "<auto>".to_owned());
            format!("{}/{wanted}", percent(current).unwrap_or_else(unknown))
        }
    };
    if named { format!("{}: {text}", spec.get(member).get("name").string()) } else { text }
}
