//! Columns and cells that the printers of kinds with pod templates share.

use crate::text::containers;
use crate::{AGE, Cell, Column, Json, NAME, Printed};

/// The column of the names of containers.
pub const CONTAINERS: Column = Column::wide("Containers", "The names of the template's containers.");
/// The column of the images of containers.
pub const IMAGES: Column = Column::wide("Images", "The images of the template's containers.");
/// The column of the selector of the pods.
pub const SELECTOR: Column = Column::wide("Selector", "The labels of the pods that belong to this.");
/// The column of the desired number of pods.
pub const DESIRED: Column = Column::integer("Desired", "How many pods there should be.");
/// The column of the current number of pods.
pub const CURRENT: Column = Column::integer("Current", "How many pods there are.");
/// The column of the number of ready pods.
pub const READY: Column = Column::integer("Ready", "How many pods are ready.");
/// The column of the ready pods beside the desired number.
pub const READY_OF: Column = Column::text("Ready", "Ready pods of the pods that there should be.");

/// `spec.replicas`; 1 by default.
pub fn replicas(object: Printed<'_>) -> i64 {
    object.at("spec.replicas").int().unwrap_or(1)
}

/// A count in the status; 0 by default.
pub fn count(status: Json<'_>, key: &str) -> i64 {
    status.get(key).int().unwrap_or(0)
}

/// The columns of ReplicaSets and ReplicationControllers.
pub const REPLICA_COLUMNS: &[Column] = &[NAME, DESIRED, CURRENT, READY, AGE, CONTAINERS, IMAGES, SELECTOR];

/// The cells of [`REPLICA_COLUMNS`].
pub fn replica_cells(set: Printed<'_>, selector: String) -> Vec<Cell> {
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
