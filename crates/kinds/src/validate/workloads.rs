//! Kinds that keep pods running: those of `apps`, replication controllers, and templates of pods that stand
//! alone (`pkg/apis/apps/validation`, `pkg/apis/core/validation`).

use std::collections::HashSet;

use listwatch_meta::FieldError;
use listwatch_schema::Path;
use serde_json::{Value, json};

use listwatch_validation::field_rules::{at_most_100_percent, immutable, int_or_percent, is_zero, not_negative};
use listwatch_validation::formats::{self, label, label_selector};
use listwatch_validation::label_selector::LabelSelector;
use listwatch_validation::pod_spec;
use listwatch_validation::volume_claim::{ClaimSpecOptions, claim_spec};
use listwatch_validation::{Errors, Object, child, given, is_same, number, objects, text};

/// A label selector that selects something; with whether it selects the labels of the template. Nothing where
/// it cannot be read.
fn selects(spec: &Object, kind: &str, at: &Path<'_>, errors: &mut Errors) -> Option<bool> {
    let selector_at = at.child("selector");
    match given(spec, "selector") {
        None => errors.required(&selector_at, ""),
        Some(selector) => {
            label_selector(Some(selector), true, &selector_at, errors);
            refuse_empty_selector(selector, kind, &selector_at, errors);
        }
    }
    read_selector(spec)
}

fn refuse_empty_selector(selector: &Value, kind: &str, at: &Path<'_>, errors: &mut Errors) {
    let empty = |name: &str| super::is_empty(selector.get(name));
    if empty("matchLabels") && empty("matchExpressions") {
        errors.invalid_value(at, "{}", format_args!("empty selector is invalid for {kind}"));
    }
}

/// Whether the selector selects the labels of the template; nothing where it cannot be read. An absent one
/// selects nothing, an empty one everything.
fn read_selector(spec: &Object) -> Option<bool> {
    let Some(Value::Object(selector)) = given(spec, "selector") else { return Some(false) };
    let mut wrong = Errors::default();
    label_selector(Some(&Value::Object(selector.clone())), true, &Path::NIL, &mut wrong);
    if !wrong.is_empty() {
        return None;
    }
    let labels = child(child(child(spec, "template"), "metadata"), "labels");
    LabelSelector::of(selector).selects(labels)
}

fn unselected(template: &Object, at: &Path<'_>, errors: &mut Errors) {
    let labels = child(child(template, "metadata"), "labels");
    let shown = if labels.is_empty() { Value::Null } else { Value::Object(labels.clone()) };
    let at = at.child("metadata");
    errors.invalid_value(&at.child("labels"), shown, "`selector` does not match template `labels`");
}

/// Pods that are replaced never end by themselves.
fn endless(template: &Object, kind: &str, at: &Path<'_>, errors: &mut Errors) {
    let spec = child(template, "spec");
    let at = at.child("spec");
    let policy = text(spec, "restartPolicy");
    if policy != "Always" {
        errors.not_supported(&at.child("restartPolicy"), policy, &["Always"]);
    }
    if given(spec, "activeDeadlineSeconds").is_some() {
        let why = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.forbidden(&at.child("activeDeadlineSeconds"), &why);
    }
}

/// `ValidatePodTemplateSpecForReplicaSet`.
fn template_of_replica_set(
    spec: &Object,
    old: Option<&Object>,
    selects: Option<bool>,
    at: &Path<'_>,
    errors: &mut Errors,
) {
    let Some(selects) = selects else {
        let shown = given(spec, "selector").cloned().unwrap_or_default();
        return errors.invalid_value(&at.child("selector"), shown, "invalid label selector");
    };
    let template = child(spec, "template");
    let at = at.child("template");
    if !selects {
        unselected(template, &at, errors);
    }
    pod_spec::validate_template(template, old.map(|old| child(old, "template")), &at, errors);
    endless(template, "ReplicaSet", &at, errors);
}

/// `ValidateDeploymentSpec`.
pub(crate) fn deployment(deployment: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (spec, at) = (child(deployment, "spec"), Path::root("spec"));
    not_negative(spec, &["replicas"], &at, errors);
    let matches = selects(spec, "deployment", &at, errors);
    template_of_replica_set(spec, old.map(|old| child(old, "spec")), matches, &at, errors);
    deployment_strategy(spec, &at.child("strategy"), errors);
    not_negative(spec, &["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"], &at, errors);
    if let Some(deadline) = number(spec, "progressDeadlineSeconds")
        && deadline <= number(spec, "minReadySeconds").unwrap_or(0)
    {
        let why = "must be greater than minReadySeconds";
        errors.invalid_value(&at.child("progressDeadlineSeconds"), deadline, why);
    }
}

fn deployment_strategy(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
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
        _ => not_a_strategy(strategy, &["Recreate", "RollingUpdate"], at, errors),
    }
}

/// A strategy as Go shows it.
fn shown_strategy(strategy: &Object) -> Value {
    let rolling = given(strategy, "rollingUpdate")
        .map(|rolling| json!({"MaxUnavailable": rolling.get("maxUnavailable"), "MaxSurge": rolling.get("maxSurge")}));
    json!({"Type": text(strategy, "type"), "RollingUpdate": rolling})
}

fn not_a_strategy(strategy: &Object, supported: &[&str], at: &Path<'_>, errors: &mut Errors) {
    let supported: Vec<String> = supported.iter().map(|one| format!("{one:?}")).collect();
    let message =
        format!("Unsupported value: {}: supported values: {}", shown_strategy(strategy), supported.join(", "));
    errors.push(FieldError { field: at.to_string(), reason: "FieldValueNotSupported", message });
}

/// `ValidateReplicaSetSpec`.
pub(crate) fn replica_set(set: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (spec, at) = (child(set, "spec"), Path::root("spec"));
    not_negative(spec, &["replicas", "minReadySeconds"], &at, errors);
    // Upstream's text names the other kind.
    let matches = selects(spec, "deployment", &at, errors);
    template_of_replica_set(spec, old.map(|old| child(old, "spec")), matches, &at, errors);
}

/// `ValidateReplicationControllerSpec`.
pub(crate) fn replication_controller(controller: &Object, old: Option<&Object>, errors: &mut Errors) {
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
        unselected(template, &at, errors);
    }
    pod_spec::validate_template(template, old.map(|old| child(child(old, "spec"), "template")), &at, errors);
    endless(template, "ReplicationController", &at, errors);
}

/// `ValidateDaemonSetSpec`.
pub(crate) fn daemon_set(set: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (spec, at) = (child(set, "spec"), Path::root("spec"));
    let template = child(spec, "template");
    let values_too = old.is_none_or(|old| !formats::is_invalid_selector(child(old, "spec").get("selector")));
    label_selector(spec.get("selector"), values_too, &at.child("selector"), errors);
    if read_selector(spec) == Some(false) {
        unselected(template, &at.child("template"), errors);
    }
    if let Some(selector) = given(spec, "selector") {
        refuse_empty_selector(selector, "daemonset", &at.child("selector"), errors);
    }
    let template_at = at.child("template");
    pod_spec::validate_template(template, old.map(|old| child(child(old, "spec"), "template")), &template_at, errors);
    endless(template, "DaemonSet", &template_at, errors);
    not_negative(spec, &["minReadySeconds"], &at, errors);
    daemon_set_strategy(child(spec, "updateStrategy"), &at.child("updateStrategy"), errors);
    not_negative(spec, &["revisionHistoryLimit"], &at, errors);
}

fn daemon_set_strategy(strategy: &Object, at: &Path<'_>, errors: &mut Errors) {
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
        _ => not_a_strategy(strategy, &["RollingUpdate", "OnDelete"], at, errors),
    }
}

/// `ValidateStatefulSet`, and of an update what it does not bear.
pub(crate) fn stateful_set(set: &Object, old: Option<&Object>, errors: &mut Errors) {
    let Some(old) = old else { return stateful_set_spec(set, None, true, errors) };
    let mut before = Errors::default();
    stateful_set_spec(old, Some(old), true, &mut before);
    stateful_set_spec(set, Some(old), before.is_empty(), errors);
}

fn stateful_set_spec(set: &Object, old: Option<&Object>, with_template: bool, errors: &mut Errors) {
    let (spec, at) = (child(set, "spec"), Path::root("spec"));
    match text(spec, "podManagementPolicy") {
        "" => errors.required(&at.child("podManagementPolicy"), ""),
        "OrderedReady" | "Parallel" => {}
        policy => errors.invalid(&at.child("podManagementPolicy"), policy, "must be 'OrderedReady' or 'Parallel'"),
    }
    stateful_set_strategy(child(spec, "updateStrategy"), &at.child("updateStrategy"), errors);
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
    match selects(spec, "statefulset", &at, errors) {
        None => errors.invalid_value(&at.child("selector"), given(spec, "selector").unwrap_or(&Value::Null), ""),
        Some(selects) => {
            if !selects {
                unselected(template, &template_at, errors);
            }
            let old = old.map(|old| child(child(old, "spec"), "template"));
            template_of_stateful_set(spec, old, with_template, &template_at, errors);
        }
    }
    endless(template, "StatefulSet", &template_at, errors);
}

fn stateful_set_strategy(strategy: &Object, at: &Path<'_>, errors: &mut Errors) {
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
        // How many may be missing needs a feature that is off.
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

/// The template as the pods will be: each claim template is a volume of its name, in place of one that the
/// template has under that name; hostname and subdomain are the controller's.
fn template_of_stateful_set(spec: &Object, old: Option<&Object>, whole: bool, at: &Path<'_>, errors: &mut Errors) {
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
        pod.insert("volumes".to_owned(), Value::Array(volumes));
    }
    template.insert("spec".to_owned(), Value::Object(pod));
    if whole {
        pod_spec::validate_template(&template, old, at, errors);
    }
    // Upstream looks at these once more.
    let metadata = child(&template, "metadata");
    formats::labels(metadata, "labels", &at.child("labels"), errors);
    pod_spec::validate_template_annotations(&template, at, errors);
}

/// What an update of a stateful set may change.
pub(crate) fn update_stateful_set(new: &Object, old: &Object, errors: &mut Errors) {
    const CHANGEABLE: [&str; 7] = [
        "replicas",
        "template",
        "updateStrategy",
        "minReadySeconds",
        "ordinals",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
    ];
    let (after, before) = (child(new, "spec"), child(old, "spec"));
    let names = after.keys().chain(before.keys().filter(|name| !after.contains_key(*name)));
    let changed = names
        .filter(|name| !CHANGEABLE.contains(&name.as_str()))
        .any(|name| !is_same(after.get(name), before.get(name)));
    if changed {
        let why = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        errors.forbidden(&Path::root("spec"), why);
    }
}

/// A selector that never changes.
pub(crate) fn update_selector(new: &Object, old: &Object, errors: &mut Errors) {
    immutable(new, old, "spec", "selector", errors);
}

/// A revision keeps its data.
pub(crate) fn update_controller_revision(new: &Object, old: &Object, errors: &mut Errors) {
    immutable(new, old, "", "data", errors);
}

/// `ValidatePodTemplate`.
pub(crate) fn pod_template(object: &Object, old: Option<&Object>, errors: &mut Errors) {
    let old = old.map(|old| child(old, "template"));
    pod_spec::validate_template(child(object, "template"), old, &Path::root("template"), errors);
}

/// `ValidateControllerRevisionCreate`; an update only keeps its data.
pub(crate) fn controller_revision(revision: &Object, old: Option<&Object>, errors: &mut Errors) {
    not_negative(revision, &["revision"], &Path::NIL, errors);
    if old.is_some() {
        return;
    }
    match revision.get("data") {
        None | Some(Value::Null) => errors.required(&Path::root("data"), "data is mandatory"),
        Some(Value::Object(_)) => {}
        Some(_) => errors.required(&Path::root("data"), "data must be a valid JSON object"),
    }
}
