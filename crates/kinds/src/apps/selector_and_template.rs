//! Validates the selector and the pod template of workloads.
//!
//! Source: `pkg/apis/apps/validation` of Kubernetes v1.36.

use listwatch_json::Value;
use listwatch_schema::Path;
use listwatch_validation::field_rules::immutable;
use listwatch_validation::formats::label_selector;
use listwatch_validation::label_selector::LabelSelector;
use listwatch_validation::{Errors, Object, child, given, is_empty, pod_spec, text};

/// Validates a selector, which must not be empty. Returns whether it matches the labels of the template; `None` if the
/// selector is invalid.
pub(crate) fn validate_selector(spec: &Object, kind: &str, at: &Path<'_>, errors: &mut Errors) -> Option<bool> {
    let selector_at = at.child("selector");
    match given(spec, "selector") {
        None => errors.required(&selector_at, ""),
        Some(selector) => {
            label_selector(Some(selector), true, &selector_at, errors);
            reject_empty_selector(selector, kind, &selector_at, errors);
        }
    }
    selector_matches_template(spec)
}

/// Reports a selector that selects everything.
pub(crate) fn reject_empty_selector(selector: &Value, kind: &str, at: &Path<'_>, errors: &mut Errors) {
    let empty = |name: &str| is_empty(selector.get(name));
    if empty("matchLabels") && empty("matchExpressions") {
        errors.invalid_value(at, "{}", format_args!("empty selector is invalid for {kind}"));
    }
}

/// Whether the selector matches the labels of the template; `None` if it is invalid. An absent selector matches
/// nothing; an empty selector matches everything.
pub(crate) fn selector_matches_template(spec: &Object) -> Option<bool> {
    let Some(Value::Object(selector)) = given(spec, "selector") else { return Some(false) };
    let mut wrong = Errors::default();
    label_selector(Some(&Value::Object(selector.clone())), true, &Path::NIL, &mut wrong);
    if !wrong.is_empty() {
        return None;
    }
    let labels = child(child(child(spec, "template"), "metadata"), "labels");
    LabelSelector::of(selector).selects(labels)
}

/// Reports labels of the template that the selector does not match.
pub(crate) fn report_unmatched_labels(template: &Object, at: &Path<'_>, errors: &mut Errors) {
    let labels = child(child(template, "metadata"), "labels");
    let shown = if labels.is_empty() { Value::Null } else { Value::Object(labels.clone()) };
    let at = at.child("metadata");
    errors.invalid_value(&at.child("labels"), shown, "`selector` does not match template `labels`");
}

/// Reports a restart policy other than `Always` and an active deadline. Pods of a long-running workload have neither.
pub(crate) fn require_long_running(template: &Object, kind: &str, at: &Path<'_>, errors: &mut Errors) {
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

/// Validates the template of a ReplicaSet or Deployment (`ValidatePodTemplateSpecForReplicaSet`).
pub(crate) fn validate_replica_set_template(
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
        report_unmatched_labels(template, &at, errors);
    }
    pod_spec::validate_template(template, old.map(|old| child(old, "template")), &at, errors);
    require_long_running(template, "ReplicaSet", &at, errors);
}

/// Reports a changed selector.
pub(crate) fn validate_selector_unchanged(new: &Object, old: &Object, errors: &mut Errors) {
    immutable(new, old, "spec", "selector", errors);
}
