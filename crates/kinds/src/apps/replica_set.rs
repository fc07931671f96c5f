//! ReplicaSet (`apps/v1`): keeps a number of pods running.
//!
//! Source: `ValidateReplicaSet` in `pkg/apis/apps/validation`, `pkg/apis/apps/v1/defaults.go` and `printReplicaSet` of
//! Kubernetes v1.36.

use listwatch_json::json;
use listwatch_schema::Path;
use listwatch_validation::field_rules::not_negative;
use listwatch_validation::{Errors, Object, child};

use super::replica_counts::{REPLICAS, StatusCounts};
use super::selector_and_template::{validate_replica_set_template, validate_selector, validate_selector_unchanged};
use crate::defaults::Default::{In, Number};
use crate::defaults::Defaults;
use crate::defaults::pod_spec::TEMPLATE;
use crate::{Kind, Subresource};
use listwatch_printers::Printer;
use listwatch_printers::text::selector_cell;
use listwatch_printers::workload::{REPLICA_COLUMNS, replica_cells};

pub(crate) static KIND: Kind = Kind {
    short_names: &["rs"],
    generation: true,
    categories: &["all"],
    subresources: &[Subresource::scale("spec.selector"), Subresource::Status],
    defaults: &DEFAULTS,
    pod_spec: &["spec", "template", "spec"],
    initial_status: || Some(json!({"replicas": 0})),
    validate,
    validate_update: validate_selector_unchanged,
    validate_transition: |new, old, context, errors| COUNTS.validate_transition(new, old, context, errors),
    warnings: listwatch_kind_warnings::workload::of_replicas,
    printer: &PRINTER,
    ..Kind::namespaced("apps", "v1", "replicasets", "ReplicaSet")
};

static DEFAULTS: Defaults = Defaults(&[("spec", In(&SPEC_DEFAULTS))]);

static SPEC_DEFAULTS: Defaults = Defaults(&[("replicas", Number(1)), ("template", In(&TEMPLATE))]);

/// The rules for the counts in the status.
const COUNTS: StatusCounts = StatusCounts {
    not_negative: &[
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ],
    at_most: &[
        ("fullyLabeledReplicas", "replicas", REPLICAS),
        ("readyReplicas", "replicas", REPLICAS),
        ("availableReplicas", "replicas", REPLICAS),
        ("availableReplicas", "readyReplicas", "readyReplicas"),
    ],
    never_decreases: "",
};

/// Validates the spec (`ValidateReplicaSetSpec`).
fn validate(set: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (spec, at) = (child(set, "spec"), Path::root("spec"));
    not_negative(spec, &["replicas", "minReadySeconds"], &at, errors);
    // Upstream's text says deployment.
    let matches = validate_selector(spec, "deployment", &at, errors);
    validate_replica_set_template(spec, old.map(|old| child(old, "spec")), matches, &at, errors);
}

static PRINTER: Printer =
    Printer { columns: REPLICA_COLUMNS, cells: |set| replica_cells(set, selector_cell(set.at("spec.selector"))) };
