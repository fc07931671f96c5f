//! StatefulSet (`apps/v1`): runs pods with stable names and volumes.
//!
//! Source: `ValidateStatefulSet` in `pkg/apis/apps/validation`, `pkg/apis/apps/v1/defaults.go` and `printStatefulSet`
//! of Kubernetes v1.36.

use std::collections::HashSet;

use listwatch_json::{Value, json};
use listwatch_k8s_types::Id;
use listwatch_schema::Path;
use listwatch_validation::field_rules::{drop_unless_used, not_negative};
use listwatch_validation::formats::{self, label};
use listwatch_validation::names::NameRule;
use listwatch_validation::typed_equality::is_equal_member;
use listwatch_validation::volume_claim::{ClaimSpecOptions, claim_spec};
use listwatch_validation::{Errors, Object, child, given, number, objects, pod_spec, text};

use super::replica_counts::{REPLICAS, StatusCounts};
use super::selector_and_template::{report_unmatched_labels, require_long_running, validate_selector};
use crate::defaults::Default::{Each, From, If, In, Number, Text};
use crate::defaults::pod_spec::TEMPLATE;
use crate::defaults::volume::CLAIM_SPEC;
use crate::defaults::{Defaults, missing};
use crate::kind::StoredText::{Always, With};
use crate::{Kind, Subresource};
use listwatch_printers::Printer;
use listwatch_printers::text::containers;
use listwatch_printers::workload::{CONTAINERS, IMAGES, READY_OF, count, replicas};
use listwatch_printers::{AGE, NAME};

pub(crate) static KIND: Kind = Kind {
    short_names: &["sts"],
    names: NameRule::Label,
    // Older servers accepted dots. Such objects can still be updated.
    update_names: Some(NameRule::Subdomain),
    generation: true,
    categories: &["all"],
    subresources: &[Subresource::scale("spec.selector"), Subresource::Status],
    defaults: &DEFAULTS,
    stored_texts: &[
        Always(r#""persistentVolumeClaimRetentionPolicy":{"#),
        With(r#""volumeClaimTemplates":["#, r#""volumeMode":""#),
    ],
    pod_spec: &["spec", "template", "spec"],
    initial_status: || Some(json!({"replicas": 0, "availableReplicas": 0})),
    prepare_for_create: |set, _| drop_max_unavailable(set, None),
    prepare_for_update: |set, old, _| drop_max_unavailable(set, Some(old)),
    validate,
    validate_update,
    validate_transition: |new, old, context, errors| COUNTS.validate_transition(new, old, context, errors),
    warnings: listwatch_kind_warnings::workload::of_stateful_set,
    printer: &PRINTER,
    ..Kind::namespaced("apps", "v1", "statefulsets", "StatefulSet")
};

static DEFAULTS: Defaults = Defaults(&[("spec", In(&SPEC_DEFAULTS))]);

static SPEC_DEFAULTS: Defaults = Defaults(&[
    ("serviceName", From(|_| Some(json!("")))),
    ("ordinals", If(&ORDINALS_DEFAULTS)),
    ("replicas", Number(1)),
    ("template", In(&TEMPLATE)),
    ("volumeClaimTemplates", Each(&CLAIM_TEMPLATE_DEFAULTS)),
    ("podManagementPolicy", Text("OrderedReady")),
    ("updateStrategy", In(&STRATEGY_DEFAULTS)),
    ("revisionHistoryLimit", Number(10)),
    ("persistentVolumeClaimRetentionPolicy", In(&RETENTION_DEFAULTS)),
]);

static STRATEGY_DEFAULTS: Defaults = Defaults(&[
    // The default applies only if the type is absent. An explicit RollingUpdate can lack the member.
    ("rollingUpdate", From(|strategy| missing(strategy, "type").then(|| json!({})))),
    ("type", Text("RollingUpdate")),
    ("rollingUpdate", If(&ROLLING_UPDATE_DEFAULTS)),
]);

static ROLLING_UPDATE_DEFAULTS: Defaults = Defaults(&[("partition", Number(0))]);

static RETENTION_DEFAULTS: Defaults = Defaults(&[("whenDeleted", Text("Retain")), ("whenScaled", Text("Retain"))]);

static ORDINALS_DEFAULTS: Defaults = Defaults(&[("start", Number(0))]);

static CLAIM_TEMPLATE_DEFAULTS: Defaults = Defaults(&[
    ("kind", Text("PersistentVolumeClaim")),
    ("apiVersion", Text("v1")),
    ("spec", In(&CLAIM_SPEC)),
    ("status", In(&CLAIM_STATUS_DEFAULTS)),
]);

static CLAIM_STATUS_DEFAULTS: Defaults = Defaults(&[("phase", Text("Pending"))]);

/// The rules for the counts in the status.
const COUNTS: StatusCounts = StatusCounts {
    not_negative: &[
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ],
    at_most: &[
        ("readyReplicas", "replicas", REPLICAS),
        ("currentReplicas", "replicas", REPLICAS),
        ("updatedReplicas", "replicas", REPLICAS),
        ("availableReplicas", "replicas", REPLICAS),
        ("availableReplicas", "readyReplicas", "status.readyReplicas"),
    ],
    never_decreases: "collisionCount",
};

/// Removes `maxUnavailable` unless the old object has it (`dropStatefulSetDisabledFields`). The feature gate
/// MaxUnavailableStatefulSet is off by default.
fn drop_max_unavailable(set: &mut Object, old: Option<&Object>) {
    drop_unless_used(set, old, &["spec", "updateStrategy", "rollingUpdate"], &["maxUnavailable"]);
}

/// Validates the object (`ValidateStatefulSet`). An update validates the template only if the old object is valid.
fn validate(set: &Object, old: Option<&Object>, errors: &mut Errors) {
    let Some(old) = old else { return validate_spec(set, None, true, errors) };
    let mut before = Errors::default();
    validate_spec(old, Some(old), true, &mut before);
    validate_spec(set, Some(old), before.is_empty(), errors);
}

fn validate_spec(set: &Object, old: Option<&Object>, with_template: bool, errors: &mut Errors) {
    let (spec, at) = (child(set, "spec"), Path::root("spec"));
    match text(spec, "podManagementPolicy") {
        "" => errors.required(&at.child("podManagementPolicy"), ""),
        "OrderedReady" | "Parallel" => {}
        policy => errors.invalid(&at.child("podManagementPolicy"), policy, "must be 'OrderedReady' or 'Parallel'"),
    }
    validate_strategy(child(spec, "updateStrategy"), &at.child("updateStrategy"), errors);
    if let Some(Value::Object(retention)) = given(spec, "persistentVolumeClaimRetentionPolicy") {
        let at = at.child("persistentVolumeClaimRetentionPolicy");
        for name in ["whenDeleted", "whenScaled"] {
            let policy = text(retention, name);
            if !matches!(policy, "Retain" | "Delete") {
                errors.not_supported(&at.child(name), policy, &["Retain", "Delete"]);
            }
        }
    }
    if old.is_none() {
        let at = at.child("volumeClaimTemplates");
        for (position, claim) in objects(spec, "volumeClaimTemplates") {
            let at = at.index(position);
            claim_spec(child(claim, "spec"), ClaimSpecOptions::ALL, &at.child("spec"), errors);
        }
    }
    not_negative(spec, &["replicas", "minReadySeconds"], &at, errors);
    if let Some(Value::Object(ordinals)) = given(spec, "ordinals") {
        not_negative(ordinals, &["start"], &at.child("ordinals"), errors);
    }
    let service = text(spec, "serviceName");
    if old.is_none() && !service.is_empty() {
        label(service, &at.child("serviceName"), errors);
    }
    let template_at = at.child("template");
    let template = child(spec, "template");
    match validate_selector(spec, "statefulset", &at, errors) {
        None => errors.invalid_value(&at.child("selector"), given(spec, "selector").unwrap_or(&Value::Null), ""),
        Some(selects) => {
            if !selects {
                report_unmatched_labels(template, &template_at, errors);
            }
            let old = old.map(|old| child(child(old, "spec"), "template"));
            validate_template(spec, old, with_template, &template_at, errors);
        }
    }
    require_long_running(template, "StatefulSet", &template_at, errors);
}

fn validate_strategy(strategy: &Object, at: &Path<'_>, errors: &mut Errors) {
    let rolling = given(strategy, "rollingUpdate").and_then(Value::as_object);
    let rolling_at = at.child("rollingUpdate");
    match (text(strategy, "type"), rolling) {
        ("", _) => errors.required(at, ""),
        ("OnDelete", None) | ("RollingUpdate", None) => {}
        ("OnDelete", Some(rolling)) => {
            let shown = json!({"Partition": number(rolling, "partition").unwrap_or(0),
                "MaxUnavailable": rolling.get("maxUnavailable")});
            errors.invalid_value(&rolling_at, shown, "only allowed for updateStrategy 'RollingUpdate'");
        }
        // The feature MaxUnavailableStatefulSet is off.
        ("RollingUpdate", Some(rolling)) => not_negative(rolling, &["partition"], &rolling_at, errors),
        _ => {
            let rolling = rolling.map(|rolling| {
                json!({"Partition": number(rolling, "partition").unwrap_or(0),
                    "MaxUnavailable": rolling.get("maxUnavailable")})
            });
            let shown = json!({"Type": text(strategy, "type"), "RollingUpdate": rolling});
            errors.invalid_value(at, shown, "must be 'RollingUpdate' or 'OnDelete'");
        }
    }
}

/// Validates the template in the form that the controller uses. Each claim template becomes a volume and replaces a
/// volume of the same name. The controller sets hostname and subdomain.
fn validate_template(spec: &Object, old: Option<&Object>, with_template: bool, at: &Path<'_>, errors: &mut Errors) {
    let mut template = child(spec, "template").clone();
    let mut pod = child(&template, "spec").clone();
    for name in ["hostname", "subdomain"] {
        pod.shift_remove(name);
    }
    let claims: Vec<&str> =
        objects(spec, "volumeClaimTemplates").map(|(_, claim)| text(child(claim, "metadata"), "name")).collect();
    if !claims.is_empty() {
        let mut seen: HashSet<&str> = HashSet::new();
        let mut volumes: Vec<Value> = claims
            .iter()
            .filter(|name| seen.insert(name))
            .map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}))
            .collect();
        let declared = objects(&pod, "volumes").filter(|(_, volume)| !seen.contains(text(volume, "name")));
        volumes.extend(declared.map(|(_, volume)| Value::Object(volume.clone())));
        pod.insert("volumes", Value::Array(volumes));
    }
    template.insert("spec", Value::Object(pod));
    if with_template {
        pod_spec::validate_template(&template, old, at, errors);
    }
    // Upstream validates labels and annotations twice.
    let metadata = child(&template, "metadata");
    formats::labels(metadata, "labels", &at.child("labels"), errors);
    pod_spec::validate_template_annotations(&template, old, at, errors);
}

/// Reports changes of fields that are immutable (`ValidateStatefulSetUpdate`).
fn validate_update(new: &Object, old: &Object, errors: &mut Errors) {
    const MUTABLE: [&str; 7] = [
        "replicas",
        "template",
        "updateStrategy",
        "minReadySeconds",
        "ordinals",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
    ];
    let (after, before) = (child(new, "spec"), child(old, "spec"));
    let names = after.keys().chain(before.keys().filter(|name| !after.contains_key(name)));
    let mut fixed = names.filter(|name| !MUTABLE.contains(&name.as_str()));
    if fixed.any(|name| !is_equal_member(Id::AppsStatefulSetSpec, name, after, before)) {
        let why = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        errors.forbidden(&Path::root("spec"), why);
    }
}

static PRINTER: Printer = Printer {
    columns: &[NAME, READY_OF, AGE, CONTAINERS, IMAGES],
    cells: |set| {
        let (names, images) = containers(set.at("spec.template"));
        vec![
            set.name().into(),
            format!("{}/{}", count(set.status(), "readyReplicas"), replicas(set)).into(),
            set.age().into(),
            names.into(),
            images.into(),
        ]
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_defaults, defaulted_pod_template, map, pod_template};

    #[test]
    fn max_unavailable_is_removed_unless_the_old_object_has_it() {
        let set = |rolling: Value| {
            let strategy = json!({"type": "RollingUpdate", "rollingUpdate": rolling});
            map(json!({"spec": {"updateStrategy": strategy}}))
        };
        let with = || json!({"partition": 0, "maxUnavailable": 1});
        for (new, old, expected) in [
            (with(), None, json!({"partition": 0})),
            (with(), Some(json!({"partition": 0})), json!({"partition": 0})),
            (with(), Some(Value::Null), json!({"partition": 0})),
            (with(), Some(json!({"maxUnavailable": 2})), with()),
            (Value::Null, None, Value::Null),
        ] {
            let mut new = set(new);
            let old = old.map(set);
            drop_max_unavailable(&mut new, old.as_ref());
            assert_eq!(new, set(expected), "{old:?}");
        }
    }

    #[test]
    fn update_rejects_changed_pointers_in_claim_templates() {
        let set = |claim: Value| map(json!({"spec": {"volumeClaimTemplates": [{"spec": claim}]}}));
        for (new, old, is_equal) in [
            (json!({"storageClassName": ""}), json!({}), false),
            (json!({}), json!({"storageClassName": ""}), false),
            (json!({"selector": {}}), json!({}), false),
            (
                json!({"resources": {"requests": {"storage": "1Gi"}}}),
                json!({"resources": {"requests": {"storage": "1024Mi"}}}),
                true,
            ),
            (json!({"accessModes": [], "resources": {}, "volumeName": ""}), json!({}), true),
        ] {
            let mut errors = Errors::default();
            validate_update(&set(new.clone()), &set(old.clone()), &mut errors);
            assert_eq!(errors.is_empty(), is_equal, "{old} to {new}");
        }
    }

    #[test]
    fn stateful_set_defaults_equal_those_of_kube_apiserver() {
        check_defaults(
            &KIND,
            json!({"spec": {"template": pod_template(), "volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {}}]}}),
            json!({"spec": {"replicas": 1, "serviceName": "", "template": defaulted_pod_template(), "podManagementPolicy": "OrderedReady",
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
                "revisionHistoryLimit": 10,
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
                "volumeClaimTemplates": [{"kind": "PersistentVolumeClaim", "apiVersion": "v1", "metadata": {"name": "d"},
                    "spec": {"volumeMode": "Filesystem"}, "status": {"phase": "Pending"}}]}}),
        );
    }
}
