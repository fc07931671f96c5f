//! DaemonSet (`apps/v1`): runs a pod on each node.
//!
//! Source: `ValidateDaemonSet` in `pkg/apis/apps/validation`, `pkg/registry/apps/daemonset/strategy.go`,
//! `pkg/apis/apps/v1/defaults.go` and `printDaemonSet` of Kubernetes v1.36.

use std::num::{IntErrorKind, ParseIntError};

use listwatch_json::{Value, json};
use listwatch_meta::go::quote;
use listwatch_schema::Path;
use listwatch_validation::field_rules::{at_most_100_percent, int_or_percent, is_zero, not_negative};
use listwatch_validation::formats::{is_invalid_selector, label_selector};
use listwatch_validation::null_members::is_equal_member;
use listwatch_validation::{Errors, Object, at, child, child_mut, given, metadata, metadata_mut, pod_spec, text};

use super::replica_counts::StatusCounts;
use super::selector_and_template::{
    reject_empty_selector, report_unmatched_labels, require_long_running, selector_matches_template,
    validate_selector_unchanged,
};
use super::update_strategy::{report_unsupported_strategy, rolling_update_default};
use crate::defaults::Default::{Do, From, In, Number, Text};
use crate::defaults::pod_spec::TEMPLATE;
use crate::defaults::{self, Defaults};
use crate::kind::StoredText::With;
use crate::{CreateContext, Kind, Subresource, UpdateContext};
use listwatch_printers::Printer;
use listwatch_printers::text::{containers, labels, selector_cell};
use listwatch_printers::workload::{CONTAINERS, IMAGES, READY, SELECTOR, count};
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    short_names: &["ds"],
    generation: true,
    categories: &["all"],
    subresources: &[Subresource::Status],
    normalize: check_template_generation,
    defaults: &DEFAULTS,
    stored_texts: &[With(r#""rollingUpdate":{"#, r#""maxSurge":"#)],
    pod_spec: &["spec", "template", "spec"],
    initial_status: || {
        Some(
            json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0}),
        )
    },
    prepare_for_create,
    prepare_for_update,
    validate,
    validate_update: validate_selector_unchanged,
    validate_transition: |new, old, context, errors| COUNTS.validate_transition(new, old, context, errors),
    warnings: listwatch_kind_warnings::workload::of_daemon_set,
    printer: &PRINTER,
    ..Kind::namespaced("apps", "v1", "daemonsets", "DaemonSet")
};

static DEFAULTS: Defaults = Defaults(&[("spec", In(&SPEC_DEFAULTS))]);

static SPEC_DEFAULTS: Defaults = Defaults(&[
    ("template", In(&TEMPLATE)),
    ("updateStrategy", In(&STRATEGY_DEFAULTS)),
    ("revisionHistoryLimit", Number(10)),
]);

static STRATEGY_DEFAULTS: Defaults = Defaults(&[
    ("type", Text("RollingUpdate")),
    ("rollingUpdate", From(rolling_update_default)),
    ("rollingUpdate", Do(rolling_update_counts)),
]);

static ROLLING_UPDATE_DEFAULTS: Defaults = Defaults(&[("maxUnavailable", Number(1)), ("maxSurge", Number(0))]);
/// The counts that Go prints for another strategy with `rollingUpdate`.
static ZERO_COUNTS: Defaults = Defaults(&[("maxUnavailable", Number(0)), ("maxSurge", Number(0))]);

/// Sets absent counts of `rollingUpdate`. Only the type `RollingUpdate` has defaults.
fn rolling_update_counts(strategy: &mut Object) {
    let is_rolling = text(strategy, "type") == "RollingUpdate";
    if let Some(Value::Object(rolling)) = strategy.get_mut("rollingUpdate") {
        defaults::apply(if is_rolling { &ROLLING_UPDATE_DEFAULTS } else { &ZERO_COUNTS }, rolling);
    }
}

/// The annotation that counts changes of the template. The API group `extensions/v1beta1` had a field for this number.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Requires an integer in the annotation, as upstream's conversion to the internal version does.
fn check_template_generation(set: &mut Object) -> Result<(), String> {
    let annotations = set.get("metadata").and_then(|metadata| metadata.get("annotations"));
    let Some(written) = annotations.and_then(|annotations| annotations.get(TEMPLATE_GENERATION)) else { return Ok(()) };
    parse_int(written.as_str().unwrap_or_default()).map(drop)
}

/// Parses a decimal number, with the error of Go's `strconv.ParseInt`.
pub(super) fn parse_int(written: &str) -> Result<i64, String> {
    written.parse().map_err(|error: ParseIntError| {
        let why = match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        format!("strconv.ParseInt: parsing {}: {why}", quote(written))
    })
}

/// Sets a template generation of at least 1.
fn prepare_for_create(set: &mut Object, _: CreateContext<'_>) {
    let written = template_generation(set).unwrap_or(1);
    set_template_generation(set, written.max(1));
}

/// Increments the template generation when the template changes. Clients cannot write it, not even with the status.
fn prepare_for_update(new: &mut Object, old: &Object, _: UpdateContext<'_>) {
    let before = template_generation(old).unwrap_or(1);
    let changed = !is_equal_member("template", at(new, "spec.template"), at(old, "spec.template"));
    set_template_generation(new, if changed { before.saturating_add(1) } else { before });
}

pub(crate) fn template_generation(object: &Object) -> Option<i64> {
    metadata(object).get("annotations")?.get(TEMPLATE_GENERATION)?.as_str()?.parse().ok()
}

pub(crate) fn set_template_generation(object: &mut Object, generation: i64) {
    let annotations = child_mut(metadata_mut(object), "annotations");
    annotations.insert(TEMPLATE_GENERATION, Value::from(generation.to_string()));
}

/// The rules for the counts in the status.
const COUNTS: StatusCounts = StatusCounts {
    not_negative: &[
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ],
    at_most: &[],
    never_decreases: "collisionCount",
};

/// Validates the spec (`ValidateDaemonSetSpec`).
fn validate(set: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (spec, at) = (child(set, "spec"), Path::root("spec"));
    let template = child(spec, "template");
    let label_values = old.is_none_or(|old| !is_invalid_selector(child(old, "spec").get("selector")));
    label_selector(spec.get("selector"), label_values, &at.child("selector"), errors);
    if selector_matches_template(spec) == Some(false) {
        report_unmatched_labels(template, &at.child("template"), errors);
    }
    if let Some(selector) = given(spec, "selector") {
        reject_empty_selector(selector, "daemonset", &at.child("selector"), errors);
    }
    let template_at = at.child("template");
    pod_spec::validate_template(template, old.map(|old| child(child(old, "spec"), "template")), &template_at, errors);
    require_long_running(template, "DaemonSet", &template_at, errors);
    not_negative(spec, &["minReadySeconds"], &at, errors);
    validate_strategy(child(spec, "updateStrategy"), &at.child("updateStrategy"), errors);
    not_negative(spec, &["revisionHistoryLimit"], &at, errors);
}

fn validate_strategy(strategy: &Object, at: &Path<'_>, errors: &mut Errors) {
    let rolling_at = at.child("rollingUpdate");
    match (text(strategy, "type"), given(strategy, "rollingUpdate").and_then(Value::as_object)) {
        ("OnDelete", _) => {}
        ("RollingUpdate", None) => errors.required(&rolling_at, ""),
        ("RollingUpdate", Some(rolling)) => {
            let names = ["maxUnavailable", "maxSurge"];
            names.iter().for_each(|name| int_or_percent(rolling, name, &rolling_at, errors));
            names.iter().for_each(|name| at_most_100_percent(rolling, name, &rolling_at, errors));
            let [none_unavailable, no_surge] = names.map(|name| is_zero(rolling.get(name)));
            if !none_unavailable && !no_surge {
                let shown = rolling.get("maxSurge").unwrap_or(&Value::Null);
                let why = "may not be set when maxUnavailable is non-zero";
                errors.invalid_value(&rolling_at.child("maxSurge"), shown, why);
            } else if none_unavailable && no_surge {
                errors.required(&rolling_at.child("maxUnavailable"), "cannot be 0 when maxSurge is 0");
            }
        }
        _ => report_unsupported_strategy(strategy, &["RollingUpdate", "OnDelete"], at, errors),
    }
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::integer("Desired", "How many nodes should run a pod."),
        Column::integer("Current", "How many of them do."),
        READY,
        Column::integer("Up-to-date", "How many pods have the wanted template."),
        Column::integer("Available", "How many pods have been ready for long enough."),
        Column::text("Node Selector", "The labels of the nodes that run a pod."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |set| {
        let (spec, status) = (set.spec(), set.status());
        let (names, images) = containers(spec.get("template"));
        vec![
            set.name().into(),
            count(status, "desiredNumberScheduled").into(),
            count(status, "currentNumberScheduled").into(),
            count(status, "numberReady").into(),
            count(status, "updatedNumberScheduled").into(),
            count(status, "numberAvailable").into(),
            labels(spec.at("template.spec.nodeSelector")).into(),
            set.age().into(),
            names.into(),
            images.into(),
            selector_cell(spec.get("selector")).into(),
        ]
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use listwatch_meta::UserInfo;

    use crate::testing::{check_defaults, defaulted_pod_template, map, pod_template};

    #[test]
    fn daemon_set_defaults_equal_those_of_kube_apiserver() {
        check_defaults(
            &KIND,
            json!({"spec": {"template": pod_template()}}),
            json!({"spec": {"template": defaulted_pod_template(), "revisionHistoryLimit": 10,
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}}}),
        );
        let on_delete = |rolling: Value| {
            json!({"spec": {"template": defaulted_pod_template(), "revisionHistoryLimit": 10,
                "updateStrategy": {"type": "OnDelete", "rollingUpdate": rolling}}})
        };
        check_defaults(&KIND, on_delete(json!({})), on_delete(json!({"maxUnavailable": 0, "maxSurge": 0})));
    }

    #[test]
    fn create_keeps_a_positive_template_generation() {
        let set = |generation: &str| map(json!({"metadata": {"annotations": {TEMPLATE_GENERATION: generation}}}));
        for (written, kept) in
            [("5", "5"), ("+5", "5"), ("0", "1"), ("-3", "1"), ("9223372036854775807", "9223372036854775807")]
        {
            let mut set = set(written);
            assert_eq!((KIND.normalize)(&mut set), Ok(()), "{written}");
            prepare_for_create(&mut set, CreateContext { uid: "u", now: "", user: UserInfo::admin() });
            assert_eq!(metadata(&set)["annotations"][TEMPLATE_GENERATION], *kept, "{written}");
        }
        for (written, why) in [
            ("x", "strconv.ParseInt: parsing \"x\": invalid syntax"),
            ("", "strconv.ParseInt: parsing \"\": invalid syntax"),
            ("99999999999999999999", "strconv.ParseInt: parsing \"99999999999999999999\": value out of range"),
        ] {
            assert_eq!((KIND.normalize)(&mut set(written)), Err(why.to_owned()), "{written}");
        }
        let null = json!({"metadata": {"annotations": {TEMPLATE_GENERATION: null}}});
        assert!((KIND.normalize)(&mut map(null)).is_err(), "null is decoded as an empty text");
        assert_eq!((KIND.normalize)(&mut map(json!({"metadata": {}}))), Ok(()));
    }

    #[test]
    fn status_update_keeps_the_template_generation() {
        let set = |annotations: Value| map(json!({"metadata": {"annotations": annotations}, "spec": {}}));
        let old = set(json!({TEMPLATE_GENERATION: "3"}));
        for written in [json!({TEMPLATE_GENERATION: "9"}), json!({})] {
            let mut new = set(written);
            let subresource = Some(&Subresource::Status);
            let context = UpdateContext { subresource, now: time::OffsetDateTime::UNIX_EPOCH };
            prepare_for_update(&mut new, &old, context);
            assert_eq!(new, old);
        }
    }
}
