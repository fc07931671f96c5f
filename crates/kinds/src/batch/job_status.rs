//! Validates updates of the status of Jobs. Most rules apply only to fields that the update changes.
//!
//! Source: `validateJobStatus` and `ValidateJobUpdateStatus` in `pkg/apis/batch/validation` of Kubernetes v1.36.

use std::collections::HashSet;

use listwatch_json::Value;
use listwatch_schema::Path;

use super::completion_indexes;
use listwatch_validation::field_rules::not_negative;
use listwatch_validation::formats::IMMUTABLE;
use listwatch_validation::{Errors, Object, child, given, is_same, is_true, items, number, objects, text};

/// Whether the condition of the type `kind` has the status `state`.
pub(crate) fn is_condition(status: &Object, kind: &str, state: &str) -> bool {
    objects(status, "conditions")
        .any(|(_, condition)| text(condition, "type") == kind && text(condition, "status") == state)
}

/// The conditions of a Job that decide which transitions are valid.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Conditions {
    complete: bool,
    failed: bool,
    failure_target: bool,
    criteria_met: bool,
}

impl Conditions {
    fn of(status: &Object) -> Conditions {
        let is = |kind| is_condition(status, kind, "True");
        Conditions {
            complete: is("Complete"),
            failed: is("Failed"),
            failure_target: is("FailureTarget"),
            criteria_met: is("SuccessCriteriaMet"),
        }
    }

    fn finished(self) -> bool {
        self.complete || self.failed
    }
}

/// Validates the status of a Job (`ValidateJobUpdateStatus`).
pub(crate) fn validate_status(job: &Object, old: Option<&Object>, errors: &mut Errors) {
    let Some(old) = old else { return };
    let (spec, status, before) = (child(job, "spec"), child(job, "status"), child(old, "status"));
    let at = Path::root("status");
    not_negative(status, &["active", "succeeded", "failed", "ready", "terminating"], &at, errors);
    validate_uncounted(status, &at, errors);
    let (now, was) = (Conditions::of(status), Conditions::of(before));
    let changed = |name: &str| !is_same(status.get(name), before.get(name));
    let conditions_at = at.child("conditions");
    let condition = |why: &str, errors: &mut Errors| without_value(&conditions_at, why, errors);
    if (now.complete != was.complete || now.failed != was.failed) && now.complete && now.failed {
        condition("cannot set Complete=True and Failed=true conditions", errors);
    }
    let target_changed = now.complete != was.complete || now.failure_target != was.failure_target;
    if target_changed && now.complete && now.failure_target {
        condition("cannot set Complete=True and FailureTarget=true conditions", errors);
    }
    validate_times(status, before, now, was, &at, errors);
    if (now.failed != was.failed || changed("failedIndexes")) && now.failed && !now.failure_target {
        condition("cannot set Failed=True condition without the FailureTarget=true condition", errors);
    }
    let success_changed = now.complete != was.complete || now.criteria_met != was.criteria_met;
    if success_changed && now.complete && !now.criteria_met {
        condition("cannot set Complete=True condition without the SuccessCriteriaMet=true condition", errors);
    }
    validate_finished(spec, status, before, &at, errors);
    validate_indexes(spec, status, before, &at, errors);
    let count = |status: &Object, name: &str| number(status, name).unwrap_or(0);
    let finish_changed = now.finished() != was.finished();
    if (finish_changed || changed("terminating")) && count(status, "terminating") > 0 && now.finished() {
        let why = "terminating>0 is invalid for finished job";
        errors.invalid_value(&at.child("terminating"), count(status, "terminating"), why);
    }
    let ready_changed = changed("ready") || count(status, "active") != count(before, "active");
    if ready_changed && count(status, "ready") > count(status, "active") {
        let why = "cannot set more ready pods than active";
        errors.invalid_value(&at.child("ready"), count(status, "ready"), why);
    }
    if now.criteria_met && now.failed {
        condition("cannot set SuccessCriteriaMet=True and Failed=true conditions", errors);
    }
    if now.criteria_met && now.failure_target {
        condition("cannot set SuccessCriteriaMet=True and FailureTarget=true conditions", errors);
    }
    if given(spec, "successPolicy").is_some() && !now.criteria_met && now.complete {
        let why = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
        condition(why, errors);
    }
    validate_transitions(spec, status, before, now, was, &at, errors);
}

/// Reports an invalid field without showing its value.
pub(crate) fn without_value(at: &Path<'_>, why: &str, errors: &mut Errors) {
    let message = format!("Invalid value: {why}");
    errors.push(listwatch_meta::FieldError { field: at.to_string(), reason: "FieldValueInvalid", message });
}

/// Validates `uncountedTerminatedPods`.
fn validate_uncounted(status: &Object, at: &Path<'_>, errors: &mut Errors) {
    let Some(Value::Object(uncounted)) = given(status, "uncountedTerminatedPods") else { return };
    let at = at.child("uncountedTerminatedPods");
    let mut seen = HashSet::new();
    for list in ["succeeded", "failed"] {
        let at = at.child(list);
        for (position, uid) in items(uncounted, list).iter().enumerate() {
            let uid = uid.as_str().unwrap_or_default();
            if uid.is_empty() {
                errors.invalid(&at.index(position), uid, "must not be empty");
            } else if !seen.insert(uid) {
                errors.duplicate(&at.index(position), uid);
            }
        }
    }
}

/// Validates the times. Only complete Jobs have a completion time, and it is not before the start.
fn validate_times(
    status: &Object,
    before: &Object,
    now: Conditions,
    was: Conditions,
    at: &Path<'_>,
    errors: &mut Errors,
) {
    let of = |status: &Object, name: &str| given(status, name).and_then(Value::as_str).map(str::to_owned);
    let (completion, start) = (of(status, "completionTime"), of(status, "startTime"));
    let completion_at = at.child("completionTime");
    let completion_changed = completion != of(before, "completionTime");
    if now.complete != was.complete || completion_changed {
        match &completion {
            Some(time) if !now.complete => {
                let why = "cannot set completionTime when there is no Complete=True condition";
                errors.invalid(&completion_at, time, why);
            }
            None if now.complete => {
                errors.required(&completion_at, "completionTime is required for Complete jobs");
            }
            _ => {}
        }
    }
    if (completion_changed || start != of(before, "startTime"))
        && let (Some(completion), Some(start)) = (&completion, &start)
        && listwatch_validation::clock::parse_timestamp(completion)
            < listwatch_validation::clock::parse_timestamp(start)
    {
        errors.invalid(&completion_at, completion, "must be equal to or after `startTime`");
    }
}

/// Validates a finished Job: it has a start time and no active pods.
fn validate_finished(spec: &Object, status: &Object, before: &Object, at: &Path<'_>, errors: &mut Errors) {
    let (now, was) = (Conditions::of(status).finished(), Conditions::of(before).finished());
    let changed = |name: &str| !is_same(status.get(name), before.get(name));
    let active = number(status, "active").unwrap_or(0);
    let active_changed = active != number(before, "active").unwrap_or(0);
    if !now {
        return;
    }
    if (now != was || active_changed) && active > 0 {
        errors.invalid_value(&at.child("active"), active, "active>0 is invalid for finished job");
    }
    let never_begun = is_true(spec, "suspend") && number(spec, "completions") == Some(0);
    if (now != was || changed("startTime")) && !never_begun && given(status, "startTime").is_none() {
        errors.required(&at.child("startTime"), "startTime is required for finished job");
    }
    let uncounted = child(status, "uncountedTerminatedPods");
    let some = ["failed", "succeeded"].iter().any(|list| !items(uncounted, list).is_empty());
    if (now != was || changed("uncountedTerminatedPods")) && some {
        let list = |name: &str| uncounted.get(name).cloned().unwrap_or_default();
        let shown = listwatch_json::json!({"Succeeded": list("succeeded"), "Failed": list("failed")});
        errors.invalid_value(&at.child("uncountedTerminatedPods"), shown, "must be empty for finished job");
    }
}

/// Validates completed and failed indexes.
fn validate_indexes(spec: &Object, status: &Object, before: &Object, at: &Path<'_>, errors: &mut Errors) {
    let completions = number(spec, "completions");
    let (completed, failed) =
        (text(status, "completedIndexes"), given(status, "failedIndexes").and_then(Value::as_str));
    let completed_changed = completed != text(before, "completedIndexes");
    let failed_changed = failed != given(before, "failedIndexes").and_then(Value::as_str);
    let (completed_at, failed_at) = (at.child("completedIndexes"), at.child("failedIndexes"));
    let per_index = number(spec, "backoffLimitPerIndex");
    if let Some(completions) = completions {
        if completed_changed && let Err(why) = completion_indexes::count(completed, completions) {
            errors.invalid(&completed_at, completed, format_args!("error parsing completedIndexes: {why}"));
        }
        if failed_changed
            && per_index.is_some()
            && let Some(failed) = failed
            && let Err(why) = completion_indexes::count(failed, completions)
        {
            errors.invalid(&failed_at, failed, format_args!("error parsing failedIndexes: {why}"));
        }
    }
    if completed_changed && !completed.is_empty() && text(spec, "completionMode") != "Indexed" {
        let why = "cannot set non-empty completedIndexes when non-indexed completion mode";
        errors.invalid(&completed_at, completed, why);
    }
    let Some(failed) = failed else { return };
    if failed_changed && per_index.is_none() {
        errors.invalid(&failed_at, failed, "cannot set non-null failedIndexes when backoffLimitPerIndex is null");
    }
    if (failed_changed || completed_changed)
        && let Some(index) =
            completions.and_then(|completions| completion_indexes::overlap(completed, failed, completions))
    {
        let why = format_args!("failedIndexes and completedIndexes overlap at index: {index}");
        errors.invalid(&failed_at, failed, why);
    }
}

/// Reports removed terminal conditions, decreased counters and changed times.
fn validate_transitions(
    spec: &Object,
    status: &Object,
    before: &Object,
    now: Conditions,
    was: Conditions,
    at: &Path<'_>,
    errors: &mut Errors,
) {
    let conditions_at = at.child("conditions");
    for (kind, was, is) in [
        ("Failed", was.failed, now.failed),
        ("Complete", was.complete, now.complete),
        ("FailureTarget", was.failure_target, now.failure_target),
    ] {
        if was && !is {
            without_value(&conditions_at, &format!("cannot disable the terminal {kind}=True condition"), errors);
        }
    }
    let scales = text(spec, "completionMode") == "Indexed"
        && number(spec, "completions").is_some()
        && number(spec, "completions") == number(spec, "parallelism");
    for name in ["failed", "succeeded"] {
        let (count, counted) = (number(status, name).unwrap_or(0), number(before, name).unwrap_or(0));
        if count < counted && (name == "failed" || !scales) {
            errors.invalid_value(&at.child(name), count, format_args!("cannot decrease the {name} counter"));
        }
    }
    let time = |status: &Object, name: &str| given(status, name).cloned();
    let (completion, completed) = (time(status, "completionTime"), time(before, "completionTime"));
    if let (Some(completion), Some(completed)) = (&completion, completed)
        && *completion != completed
    {
        errors.invalid_value(&at.child("completionTime"), completion, IMMUTABLE);
    }
    let resumes = is_condition(before, "Suspended", "True") && is_condition(status, "Suspended", "False");
    let (start, started) = (time(status, "startTime"), time(before, "startTime"));
    if started.is_some() && start != started && !resumes && !is_true(spec, "suspend") {
        let why = "field is immutable for unsuspended job once set";
        errors.invalid_value(&at.child("startTime"), start.unwrap_or_default(), why);
    }
    if was.criteria_met && !now.criteria_met {
        without_value(&conditions_at, "cannot disable the SuccessCriteriaMet=True condition", errors);
    }
    if was.complete && !was.criteria_met && now.criteria_met {
        let why = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
        without_value(&conditions_at, why, errors);
    }
}
