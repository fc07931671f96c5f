//! Deployment (`apps/v1`): rolls out ReplicaSets.
//!
//! Source: `ValidateDeployment` in `pkg/apis/apps/validation`, `pkg/apis/apps/v1/defaults.go` and `printDeployment` of
//! Kubernetes v1.36.

use listwatch_json::Value;
use listwatch_schema::Path;
use listwatch_validation::field_rules::{at_most_100_percent, int_or_percent, is_zero, not_negative};
use listwatch_validation::{Errors, Object, child, given, number, text};

use super::daemon_set::parse_int;
use super::replica_counts::{REPLICAS, StatusCounts};
use super::selector_and_template::{validate_replica_set_template, validate_selector, validate_selector_unchanged};
use super::update_strategy::{report_unsupported_strategy, rolling_update_default};
use crate::defaults::Default::{From, If, In, Number, Text};
use crate::defaults::Defaults;
use crate::defaults::pod_spec::TEMPLATE;
use crate::{Kind, MetadataScope, Subresource, WriteScope};
use listwatch_printers::Printer;
use listwatch_printers::text::{containers, selector};
use listwatch_printers::workload::{CONTAINERS, IMAGES, READY_OF, SELECTOR, count, replicas};
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    short_names: &["deploy"],
    generation: true,
    categories: &["all"],
    subresources: &[Subresource::scale("spec.selector"), Subresource::Status],
    normalize: check_rollback,
    defaults: &DEFAULTS,
    pod_spec: &["spec", "template", "spec"],
    validate,
    validate_update: validate_selector_unchanged,
    validate_transition: |new, old, context, errors| COUNTS.validate_transition(new, old, context, errors),
    status_write: WriteScope {
        metadata: MetadataScope::Without(&["labels"]),
        reset: &[&["spec"], &["metadata", "labels"]],
    },
    generation_counts_annotations: true,
    warnings: listwatch_kind_warnings::workload::of_replicas,
    printer: &PRINTER,
    ..Kind::namespaced("apps", "v1", "deployments", "Deployment")
};

static DEFAULTS: Defaults = Defaults(&[("spec", In(&SPEC_DEFAULTS))]);

static SPEC_DEFAULTS: Defaults = Defaults(&[
    ("replicas", Number(1)),
    ("template", In(&TEMPLATE)),
    ("strategy", In(&STRATEGY_DEFAULTS)),
    ("revisionHistoryLimit", Number(10)),
    ("progressDeadlineSeconds", Number(600)),
]);

static STRATEGY_DEFAULTS: Defaults = Defaults(&[
    ("type", Text("RollingUpdate")),
    ("rollingUpdate", From(rolling_update_default)),
    ("rollingUpdate", If(&ROLLING_UPDATE_DEFAULTS)),
]);

static ROLLING_UPDATE_DEFAULTS: Defaults = Defaults(&[("maxUnavailable", Text("25%")), ("maxSurge", Text("25%"))]);

/// The annotation with the revision of a rollback. The API group `extensions/v1beta1` had a field for this number.
pub(crate) const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";

/// Requires an integer in the annotation, and removes an empty one (`Convert_v1_Deployment_To_apps_Deployment`).
fn check_rollback(deployment: &mut Object) -> Result<(), String> {
    let annotations = deployment.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations"));
    let Some(Value::Object(annotations)) = annotations else { return Ok(()) };
    let Some(written) = annotations.get(ROLLBACK_TO) else { return Ok(()) };
    let written = written.as_str().unwrap_or_default();
    if written.is_empty() {
        annotations.shift_remove(ROLLBACK_TO);
        return Ok(());
    }
    let failed = |why| format!("failed to parse annotation[{ROLLBACK_TO}]={written} as int64: {why}");
    let revision = parse_int(written).map_err(failed)?.to_string();
    annotations.insert(ROLLBACK_TO, Value::from(revision));
    Ok(())
}

/// The rules for the counts in the status.
const COUNTS: StatusCounts = StatusCounts {
    not_negative: &[
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ],
    at_most: &[
        ("updatedReplicas", "replicas", REPLICAS),
        ("readyReplicas", "replicas", REPLICAS),
        ("availableReplicas", "replicas", REPLICAS),
        ("availableReplicas", "readyReplicas", "readyReplicas"),
    ],
    never_decreases: "collisionCount",
};

/// Validates the spec (`ValidateDeploymentSpec`).
fn validate(deployment: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (spec, at) = (child(deployment, "spec"), Path::root("spec"));
    not_negative(spec, &["replicas"], &at, errors);
    let matches = validate_selector(spec, "deployment", &at, errors);
    validate_replica_set_template(spec, old.map(|old| child(old, "spec")), matches, &at, errors);
    validate_strategy(spec, &at.child("strategy"), errors);
    not_negative(spec, &["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"], &at, errors);
    if let Some(deadline) = number(spec, "progressDeadlineSeconds")
        && deadline <= number(spec, "minReadySeconds").unwrap_or(0)
    {
        let why = "must be greater than minReadySeconds";
        errors.invalid_value(&at.child("progressDeadlineSeconds"), deadline, why);
    }
}

fn validate_strategy(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let strategy = child(spec, "strategy");
    let rolling = given(strategy, "rollingUpdate").and_then(Value::as_object);
    let rolling_at = at.child("rollingUpdate");
    match (text(strategy, "type"), rolling) {
        ("Recreate", Some(_)) => {
            errors.forbidden(&rolling_at, "may not be specified when strategy `type` is 'Recreate'");
        }
        ("Recreate", None) => {}
        ("RollingUpdate", None) => errors.required(&rolling_at, "this should be defaulted and never be nil"),
        ("RollingUpdate", Some(rolling)) => {
            int_or_percent(rolling, "maxUnavailable", &rolling_at, errors);
            int_or_percent(rolling, "maxSurge", &rolling_at, errors);
            if is_zero(rolling.get("maxUnavailable")) && is_zero(rolling.get("maxSurge")) {
                let shown = rolling.get("maxUnavailable").unwrap_or(&Value::Null);
                errors.invalid_value(&rolling_at.child("maxUnavailable"), shown, "may not be 0 when `maxSurge` is 0");
            }
            at_most_100_percent(rolling, "maxUnavailable", &rolling_at, errors);
        }
        _ => report_unsupported_strategy(strategy, &["Recreate", "RollingUpdate"], at, errors),
    }
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        READY_OF,
        // As in kube-apiserver, the type is string, and the cells are integers.
        Column::text("Up-to-date", "How many pods have the wanted template."),
        Column::text("Available", "How many pods have been ready for long enough."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |deployment| {
        let (spec, status) = (deployment.spec(), deployment.status());
        let (names, images) = containers(spec.get("template"));
        vec![
            deployment.name().into(),
            format!("{}/{}", count(status, "readyReplicas"), replicas(deployment)).into(),
            count(status, "updatedReplicas").into(),
            count(status, "availableReplicas").into(),
            deployment.age().into(),
            names.into(),
            images.into(),
            selector(spec.get("selector")).unwrap_or_else(|| "<invalid>".to_owned()).into(),
        ]
    },
};

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;
    use crate::testing::{check_defaults, defaulted_pod_template, map, pod_template};

    #[test]
    fn revision_of_a_rollback_must_be_an_integer() {
        let deployment = |annotations: Value| map(json!({"metadata": {"annotations": annotations}}));
        for (written, expected) in [
            (json!({ROLLBACK_TO: "7"}), Ok(json!({ROLLBACK_TO: "7"}))),
            (json!({ROLLBACK_TO: "", "a": "b"}), Ok(json!({"a": "b"}))),
            (json!({ROLLBACK_TO: "x"}), Err("strconv.ParseInt: parsing \"x\": invalid syntax")),
        ] {
            let mut normalized = deployment(written);
            let result = (KIND.normalize)(&mut normalized);
            let failed =
                |why| format!("failed to parse annotation[deprecated.deployment.rollback.to]=x as int64: {why}");
            match expected {
                Ok(expected) => assert_eq!((result, normalized), (Ok(()), deployment(expected))),
                Err(why) => assert_eq!(result, Err(failed(why))),
            }
        }
    }

    #[test]
    fn deployment_defaults_equal_those_of_kube_apiserver() {
        check_defaults(
            &KIND,
            json!({"spec": {"template": pod_template()}}),
            json!({"spec": {"replicas": 1, "template": defaulted_pod_template(),
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}},
                "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600}}),
        );
        check_defaults(
            &KIND,
            json!({"spec": {"replicas": 0, "strategy": {"type": "Recreate"}, "template": pod_template()}}),
            json!({"spec": {"replicas": 0, "template": defaulted_pod_template(), "strategy": {"type": "Recreate"},
                "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600}}),
        );
    }
}
