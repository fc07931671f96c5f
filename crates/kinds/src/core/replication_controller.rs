//! ReplicationController (`v1`): keeps a number of pods running; the predecessor of ReplicaSet.
//!
//! Source: `ValidateReplicationController` in `pkg/apis/core/validation`, `pkg/apis/core/v1/defaults.go` and
//! `printReplicationController` of Kubernetes v1.36.

use listwatch_json::{Value, json};
use listwatch_schema::Path;
use listwatch_validation::field_rules::not_negative;
use listwatch_validation::{Errors, Object, child, given, pod_spec};

use crate::apps::replica_counts::{REPLICAS, StatusCounts};
use crate::apps::selector_and_template::{report_unmatched_labels, require_long_running};
use crate::defaults::Default::{Do, From, If, In, Number};
use crate::defaults::Defaults;
use crate::defaults::pod_spec::{TEMPLATE, labels_of_template};
use crate::{Field, Kind, Subresource};
use listwatch_printers::Printer;
use listwatch_printers::text::labels;
use listwatch_printers::workload::{REPLICA_COLUMNS, replica_cells};

pub(crate) static KIND: Kind = Kind {
    short_names: &["rc"],
    storage_prefix: "controllers",
    generation: true,
    categories: &["all"],
    fields: &[Field::with_default("status.replicas", "0")],
    subresources: &[Subresource::scale("spec.selector"), Subresource::Status],
    defaults: &DEFAULTS,
    pod_spec: &["spec", "template", "spec"],
    initial_status: || Some(json!({"replicas": 0})),
    validate,
    validate_transition: |new, old, context, errors| COUNTS.validate_transition(new, old, context, errors),
    warnings: listwatch_kind_warnings::workload::of_replication_controller,
    printer: &PRINTER,
    orphans_dependents: true,
    ..Kind::namespaced("", "v1", "replicationcontrollers", "ReplicationController")
};

static DEFAULTS: Defaults = Defaults(&[("spec", In(&SPEC_DEFAULTS)), ("metadata", Do(labels_of_template))]);

static SPEC_DEFAULTS: Defaults = Defaults(&[
    ("replicas", Number(1)),
    ("template", If(&TEMPLATE)),
    ("selector", From(|spec| spec.get("template")?.pointer("/metadata/labels").cloned())),
]);

/// The rules for the counts in the status.
const COUNTS: StatusCounts = StatusCounts {
    not_negative: &["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"],
    at_most: &[
        ("fullyLabeledReplicas", "replicas", REPLICAS),
        ("readyReplicas", "replicas", REPLICAS),
        ("availableReplicas", "replicas", REPLICAS),
        ("availableReplicas", "readyReplicas", "readyReplicas"),
    ],
    never_decreases: "",
};

/// Validates the spec (`ValidateReplicationControllerSpec`).
fn validate(controller: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (spec, at) = (child(controller, "spec"), Path::root("spec"));
    not_negative(spec, &["minReadySeconds"], &at, errors);
    let selector = child(spec, "selector");
    if selector.is_empty() {
        errors.required(&at.child("selector"), "");
    }
    not_negative(spec, &["replicas"], &at, errors);
    let at = at.child("template");
    let Some(Value::Object(template)) = given(spec, "template") else {
        return errors.required(&at, "");
    };
    let labels = child(child(template, "metadata"), "labels");
    if selector.iter().any(|(name, value)| labels.get(name) != Some(value)) {
        report_unmatched_labels(template, &at, errors);
    }
    pod_spec::validate_template(template, old.map(|old| child(child(old, "spec"), "template")), &at, errors);
    require_long_running(template, "ReplicationController", &at, errors);
}

static PRINTER: Printer = Printer {
    columns: REPLICA_COLUMNS,
    cells: |controller| replica_cells(controller, labels(controller.at("spec.selector"))),
};
