//! Jobs and cron jobs (`pkg/apis/batch/validation`).

mod indexes;
mod schedule;
mod status;

use std::collections::{BTreeMap, HashSet};

use listwatch_meta::selector::dns_label_problems;
use listwatch_schema::Path;
use serde_json::{Map, Value, json};

pub(crate) use status::job_status;

use listwatch_validation::field_rules::{immutable, not_negative};
use listwatch_validation::formats::{self, IMMUTABLE, domain_prefixed_path, label_selector, qualified_name};
use listwatch_validation::label_selector::LabelSelector;
use listwatch_validation::pod_spec;
use listwatch_validation::{Errors, Object, child, given, is_same, is_true, items, number, objects, shown_list, text};

/// Pods of an indexed job that run at once, and indexes of it that may fail.
const INDEXED_MAX: i64 = 100_000;
/// As [`INDEXED_MAX`], for a job of more completions than that with a limit for each index.
const HIGHLY_INDEXED_MAX: i64 = 10_000;
/// Rules of one failure policy, and of one success policy.
const FAILURE_RULES_MAX: usize = 20;
const SUCCESS_RULES_MAX: usize = 20;
/// Exit codes and conditions of one rule.
const EXIT_CODES_MAX: usize = 255;
const CONDITIONS_MAX: usize = 20;
/// Bytes of the name of a job's controller.
const MANAGED_BY_BYTES_MAX: usize = 63;
/// Bytes of the indexes of one rule.
const SUCCEEDED_INDEXES_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a cron job's name: its jobs get eleven more.
const CRON_JOB_NAME_BYTES_MAX: usize = 52;

const LABELS: [(&str, bool); 4] = [
    ("controller-uid", true),
    ("job-name", false),
    ("batch.kubernetes.io/controller-uid", true),
    ("batch.kubernetes.io/job-name", false),
];

/// `ValidateJob`. Of an update, kube-apiserver validates the spec twice, and both count.
pub(crate) fn job(job: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (spec, at) = (child(job, "spec"), Path::root("spec"));
    generated_selector(job, old, errors);
    whole_spec(spec, old, &at, errors);
    if text(spec, "completionMode") == "Indexed"
        && let Some(completions) = number(spec, "completions").filter(|completions| *completions > 0)
    {
        let name = text(child(job, "metadata"), "name");
        let hostname = format!("{name}-{}", completions - 1);
        if !dns_label_problems(&hostname).is_empty() {
            let at = Path::root("metadata");
            let why = format_args!("will not able to create pod with invalid DNS label: {hostname}");
            errors.invalid(&at.child("name"), name, why);
        }
    }
    if old.is_some() {
        whole_spec(spec, old, &at, errors);
    }
}

/// `validateGeneratedSelector`.
fn generated_selector(job: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (metadata, spec) = (child(job, "metadata"), child(job, "spec"));
    let Some(Value::Object(selector)) = given(spec, "selector") else { return };
    if is_true(spec, "manualSelector") {
        return;
    }
    let (name, uid) = (text(metadata, "name"), text(metadata, "uid"));
    let labels = child(child(child(spec, "template"), "metadata"), "labels");
    let at = Path::root("spec");
    let at = at.child("template");
    let at = at.child("metadata");
    let labels_at = at.child("labels");
    // Jobs of older servers have the shorter labels alone.
    let prefixed = old.is_none_or(|old| {
        let labels = child(child(child(child(old, "spec"), "template"), "metadata"), "labels");
        LABELS[2..].iter().all(|(label, _)| labels.contains_key(*label))
    });
    let mut expected = Map::new();
    for (label, is_uid) in &LABELS[..if prefixed { 4 } else { 2 }] {
        let wanted = if *is_uid { uid } else { name };
        expected.insert((*label).to_owned(), Value::from(wanted));
        match labels.get(*label).and_then(Value::as_str) {
            None => errors.required(&labels_at.key(label), &format!("must be '{wanted}'")),
            Some(found) if found != wanted => {
                let shown = shown_labels(labels);
                errors.invalid_value(&labels_at.key(label), shown, format_args!("must be '{wanted}'"));
            }
            Some(_) => {}
        }
    }
    if LabelSelector::of(selector).selects(&expected) == Some(false) {
        let at = Path::root("spec");
        let shown = Value::Object(selector.clone());
        errors.invalid_value(&at.child("selector"), shown, "`selector` not auto-generated");
    }
}

/// `ValidateJobSpec`.
fn whole_spec(spec: &Object, old: Option<&Object>, at: &Path<'_>, errors: &mut Errors) {
    let old = old.map(|old| child(old, "spec"));
    job_spec(spec, old, at, errors);
    let selector_at = at.child("selector");
    let Some(Value::Object(selector)) = given(spec, "selector") else {
        errors.required(&selector_at, "");
        return unselected(spec, at, errors);
    };
    let strict = old.is_none_or(|old| !formats::is_invalid_selector(old.get("selector")));
    label_selector(spec.get("selector"), strict, &selector_at, errors);
    let labels = child(child(child(spec, "template"), "metadata"), "labels");
    if LabelSelector::of(selector).selects(labels) == Some(false) {
        unselected(spec, at, errors);
    }
}

/// A job does not select its own pods.
fn unselected(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let at = at.child("template");
    let at = at.child("metadata");
    let shown = shown_labels(child(child(child(spec, "template"), "metadata"), "labels"));
    errors.invalid_value(&at.child("labels"), shown, "`selector` does not match template `labels`");
}

/// Labels as Go shows them: in order.
fn shown_labels(labels: &Object) -> Value {
    if labels.is_empty() {
        return Value::Null;
    }
    let sorted: BTreeMap<&String, &Value> = labels.iter().collect();
    json!(sorted)
}

/// `validateJobSpec`: what jobs and the templates of cron jobs have in common.
fn job_spec(spec: &Object, old: Option<&Object>, at: &Path<'_>, errors: &mut Errors) {
    let counts = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    not_negative(spec, &counts, at, errors);
    let (per_index, failed_max) = (number(spec, "backoffLimitPerIndex"), number(spec, "maxFailedIndexes"));
    if failed_max.is_some() && per_index.is_none() {
        errors.required(&at.child("backoffLimitPerIndex"), "when maxFailedIndexes is specified");
    }
    if let Some(manager) = given(spec, "managedBy").and_then(Value::as_str) {
        let at = at.child("managedBy");
        domain_prefixed_path(manager, &at, errors);
        if manager.len() > MANAGED_BY_BYTES_MAX {
            errors.too_long(&at, MANAGED_BY_BYTES_MAX);
        }
    }
    let mode = text(spec, "completionMode");
    if !matches!(mode, "" | "NonIndexed" | "Indexed") {
        errors.not_supported(&at.child("completionMode"), mode, &["NonIndexed", "Indexed"]);
    }
    match mode {
        "Indexed" => indexed(spec, at, errors),
        "" | "NonIndexed" => {
            for (name, value) in [("backoffLimitPerIndex", per_index), ("maxFailedIndexes", failed_max)] {
                if let Some(value) = value {
                    errors.invalid_value(&at.child(name), value, "requires indexed completion mode");
                }
            }
        }
        _ => {}
    }
    if let Some(Value::Object(policy)) = given(spec, "podFailurePolicy") {
        failure_policy(spec, policy, &at.child("podFailurePolicy"), errors);
    }
    if let Some(Value::Object(policy)) = given(spec, "successPolicy") {
        let at = at.child("successPolicy");
        if mode == "Indexed" {
            success_policy(spec, policy, &at, errors);
        } else {
            errors.invalid_value(&at, shown_success_policy(policy), "requires indexed completion mode");
        }
    }
    let replacement = text(spec, "podReplacementPolicy");
    let replacements: &[&str] =
        if given(spec, "podFailurePolicy").is_some() { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    if given(spec, "podReplacementPolicy").is_some() && !replacements.contains(&replacement) {
        errors.not_supported(&at.child("podReplacementPolicy"), replacement, replacements);
    }
    let template = child(spec, "template");
    let at = at.child("template");
    pod_spec::validate_template(template, old.map(|old| child(old, "template")), &at, errors);
    let at = at.child("spec");
    let at = at.child("restartPolicy");
    match text(child(template, "spec"), "restartPolicy") {
        "" | "Always" => errors.required(&at, "valid values: \"OnFailure\", \"Never\""),
        "Never" => {}
        "OnFailure" if given(spec, "podFailurePolicy").is_some() => {
            errors.invalid(&at, "OnFailure", "only \"Never\" is supported when podFailurePolicy is specified");
        }
        "OnFailure" => {}
        policy => errors.not_supported(&at, policy, &["OnFailure", "Never"]),
    }
}

fn indexed(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let [completions, parallelism, failed_max, per_index] =
        ["completions", "parallelism", "maxFailedIndexes", "backoffLimitPerIndex"].map(|name| number(spec, name));
    let parallelism_at = at.child("parallelism");
    let failed_at = at.child("maxFailedIndexes");
    if completions.is_none() {
        errors.required(&at.child("completions"), "when completion mode is Indexed");
    }
    if let Some(parallelism) = parallelism.filter(|parallelism| *parallelism > INDEXED_MAX) {
        let why = format_args!("must be less than or equal to {INDEXED_MAX} when completion mode is Indexed");
        errors.invalid_value(&parallelism_at, parallelism, why);
    }
    if let (Some(completions), Some(failed_max)) = (completions, failed_max)
        && failed_max > completions
    {
        errors.invalid_value(&failed_at, failed_max, "must be less than or equal to completions");
    }
    if let Some(failed_max) = failed_max.filter(|failed_max| *failed_max > INDEXED_MAX) {
        errors.invalid_value(&failed_at, failed_max, format_args!("must be less than or equal to {INDEXED_MAX}"));
    }
    if completions.is_none_or(|completions| completions <= INDEXED_MAX) || per_index.is_none() {
        return;
    }
    let why = format!(
        "must be less than or equal to {HIGHLY_INDEXED_MAX} when completions are above {INDEXED_MAX} and used with backoff limit per index"
    );
    if failed_max.is_none() {
        let why = format!("must be specified when completions is above {INDEXED_MAX}");
        errors.required(&failed_at, &why);
    }
    if let Some(parallelism) = parallelism.filter(|parallelism| *parallelism > HIGHLY_INDEXED_MAX) {
        errors.invalid_value(&parallelism_at, parallelism, &why);
    }
    if let Some(failed_max) = failed_max.filter(|failed_max| *failed_max > HIGHLY_INDEXED_MAX) {
        errors.invalid_value(&failed_at, failed_max, &why);
    }
}

fn failure_policy(spec: &Object, policy: &Object, at: &Path<'_>, errors: &mut Errors) {
    let at = at.child("rules");
    let count = items(policy, "rules").len();
    if count > FAILURE_RULES_MAX {
        errors.too_many(&at, count, FAILURE_RULES_MAX);
    }
    let pod = child(child(spec, "template"), "spec");
    let names: HashSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| objects(pod, list).map(|(_, container)| text(container, "name")))
        .collect();
    for (position, rule) in objects(policy, "rules") {
        failure_rule(spec, rule, &names, &at.index(position), errors);
    }
}

fn failure_rule(spec: &Object, rule: &Object, names: &HashSet<&str>, at: &Path<'_>, errors: &mut Errors) {
    const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
    let action_at = at.child("action");
    match text(rule, "action") {
        "" => errors.required(&action_at, "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]"),
        "FailIndex" if number(spec, "backoffLimitPerIndex").is_none() => {
            errors.invalid(&action_at, "FailIndex", "requires the backoffLimitPerIndex to be set");
        }
        action if !ACTIONS.contains(&action) => errors.not_supported(&action_at, action, &ACTIONS),
        _ => {}
    }
    let codes = given(rule, "onExitCodes").and_then(Value::as_object);
    if let Some(codes) = codes {
        exit_codes(codes, names, &at.child("onExitCodes"), errors);
    }
    let conditions = items(rule, "onPodConditions").len();
    let conditions_at = at.child("onPodConditions");
    if conditions > CONDITIONS_MAX {
        errors.too_many(&conditions_at, conditions, CONDITIONS_MAX);
    }
    for (position, pattern) in objects(rule, "onPodConditions") {
        let at = conditions_at.index(position);
        qualified_name(text(pattern, "type"), &at.child("type"), errors);
        match text(pattern, "status") {
            "" => errors.required(&at.child("status"), "valid values: [\"False\" \"True\" \"Unknown\"]"),
            "False" | "True" | "Unknown" => {}
            status => errors.not_supported(&at.child("status"), status, &["False", "True", "Unknown"]),
        }
    }
    let why = match (codes.is_some(), conditions > 0) {
        (true, true) => "specifying both OnExitCodes and OnPodConditions is not supported",
        (false, false) => "specifying one of OnExitCodes and OnPodConditions is required",
        _ => return,
    };
    without_value(at, why, errors);
}

/// An error that shows no value.
fn without_value(at: &Path<'_>, why: &str, errors: &mut Errors) {
    let message = format!("Invalid value: {why}");
    errors.push(listwatch_meta::FieldError { field: at.to_string(), reason: "FieldValueInvalid", message });
}

fn exit_codes(codes: &Object, names: &HashSet<&str>, at: &Path<'_>, errors: &mut Errors) {
    let operator = text(codes, "operator");
    match operator {
        "" => errors.required(&at.child("operator"), "valid values: [\"In\" \"NotIn\"]"),
        "In" | "NotIn" => {}
        _ => errors.not_supported(&at.child("operator"), operator, &["In", "NotIn"]),
    }
    if let Some(name) = given(codes, "containerName").and_then(Value::as_str).filter(|name| !names.contains(name)) {
        let why = "must be one of the container or initContainer names in the pod template";
        errors.invalid(&at.child("containerName"), name, why);
    }
    let at = at.child("values");
    let values: Vec<i64> = items(codes, "values").iter().map(|value| value.as_i64().unwrap_or(0)).collect();
    if values.is_empty() {
        errors.invalid_value(&at, shown_list(codes, "values"), "at least one value is required");
    } else if values.len() > EXIT_CODES_MAX {
        errors.too_many(&at, values.len(), EXIT_CODES_MAX);
    }
    let mut seen = HashSet::new();
    for (position, value) in values.iter().enumerate() {
        let at = at.index(position);
        if operator == "In" && *value == 0 {
            errors.invalid_value(&at, value, "must not be 0 for the In operator");
        }
        if !seen.insert(value) {
            errors.push(listwatch_meta::FieldError::duplicate(at, value));
        }
    }
    if !values.is_sorted() {
        errors.invalid_value(&at, shown_list(codes, "values"), "must be ordered");
    }
}

/// A success policy as Go shows it.
fn shown_success_policy(policy: &Object) -> Value {
    let rules = objects(policy, "rules").map(|(_, rule)| {
        json!({"SucceededIndexes": rule.get("succeededIndexes"), "SucceededCount": rule.get("succeededCount")})
    });
    let given = given(policy, "rules").is_some();
    json!({"Rules": given.then(|| rules.collect::<Vec<Value>>())})
}

fn success_policy(spec: &Object, policy: &Object, at: &Path<'_>, errors: &mut Errors) {
    let at = at.child("rules");
    let count = items(policy, "rules").len();
    if count == 0 {
        errors.required(&at, "at least one rules must be specified when the successPolicy is specified");
    }
    if count > SUCCESS_RULES_MAX {
        errors.too_many(&at, count, SUCCESS_RULES_MAX);
    }
    // A job without them was refused; kube-apiserver is not asked for one.
    let completions = number(spec, "completions").unwrap_or(0);
    for (position, rule) in objects(policy, "rules") {
        let at = at.index(position);
        let indexes = given(rule, "succeededIndexes").and_then(Value::as_str);
        let count = number(rule, "succeededCount");
        if indexes.is_none() && count.is_none() {
            errors.required(&at, "at least one of succeededCount or succeededIndexes must be specified");
        }
        let mut total = 0;
        if let Some(indexes) = indexes {
            let at = at.child("succeededIndexes");
            if indexes.len() > SUCCEEDED_INDEXES_BYTES_MAX {
                errors.too_long(&at, SUCCEEDED_INDEXES_BYTES_MAX);
            }
            match self::indexes::count(indexes, completions) {
                Ok(count) => total = count,
                Err(why) => errors.invalid(&at, indexes, format_args!("error parsing succeededIndexes: {why}")),
            }
        }
        let Some(count) = count else { continue };
        not_negative(rule, &["succeededCount"], &at, errors);
        let at = at.child("succeededCount");
        if count > completions {
            let why = format_args!("must be less than or equal to {completions} (the number of specified completions)");
            errors.invalid_value(&at, count, why);
        }
        if indexes.is_some() && count > total {
            let why = format_args!(
                "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
            );
            errors.invalid_value(&at, count, why);
        }
    }
}

/// `ValidateJobSpecUpdate`, behind the spec itself.
pub(crate) fn update_job(new: &Object, old: &Object, errors: &mut Errors) {
    let (after, before) = (child(new, "spec"), child(old, "spec"));
    let at = Path::root("spec");
    let completions = [after, before].map(|spec| number(spec, "completions"));
    if completions[0] != completions[1] {
        let at = at.child("completions");
        if text(after, "completionMode") != "Indexed" {
            let shown = completions[0].map_or(Value::Null, Value::from);
            errors.invalid_value(&at, shown, IMMUTABLE);
        } else if let Some(completions) = completions[0].filter(|new| Some(*new) != number(after, "parallelism")) {
            let why = "can only be modified in tandem with spec.parallelism";
            errors.invalid_value(&at, completions, why);
        }
    }
    immutable(new, old, "spec", "selector", errors);
    update_template(after, before, child(old, "status"), &at, errors);
    for name in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"] {
        immutable(new, old, "spec", name, errors);
    }
}

/// The template of a job that is suspended and has no pods may be placed elsewhere and sized differently.
fn update_template(after: &Object, before: &Object, status: &Object, at: &Path<'_>, errors: &mut Errors) {
    if is_same(after.get("template"), before.get("template")) {
        return;
    }
    let suspended = is_true(before, "suspend");
    let stopped = given(status, "startTime").is_none() || status::is_condition(status, "Suspended", "True");
    let movable = suspended && stopped && number(status, "active").unwrap_or(0) == 0;
    let (mut new, mut old) = (child(after, "template").clone(), child(before, "template").clone());
    if movable {
        free(&mut new);
        free(&mut old);
        unsized_containers(&mut new, &mut old);
    }
    if !is_same(Some(&Value::Object(new)), Some(&Value::Object(old))) {
        let shown = after.get("template").unwrap_or(&Value::Null);
        let at = at.child(if movable { "template.spec" } else { "template" });
        let shown = if movable { shown.get("spec").unwrap_or(&Value::Null) } else { shown };
        errors.invalid_value(&at, shown, IMMUTABLE);
    }
}

/// Takes out of a template where its pods run, and its metadata.
fn free(template: &mut Object) {
    template.shift_remove("metadata");
    let Some(Value::Object(spec)) = template.get_mut("spec") else { return };
    for name in ["nodeSelector", "tolerations", "schedulingGates"] {
        spec.shift_remove(name);
    }
    if let Some(Value::Object(affinity)) = spec.get_mut("affinity") {
        affinity.shift_remove("nodeAffinity");
    }
}

/// Takes out of containers that are in both templates what they ask for.
fn unsized_containers(new: &mut Object, old: &mut Object) {
    for list in ["containers", "initContainers"] {
        let containers = |template: &mut Object| -> Vec<Value> {
            template
                .get_mut("spec")
                .and_then(|spec| spec.get_mut(list)?.as_array_mut())
                .map(std::mem::take)
                .unwrap_or_default()
        };
        let (mut after, mut before) = (containers(new), containers(old));
        if after.len() == before.len() {
            for (new, old) in after.iter_mut().zip(&mut before) {
                if new.get("name") == old.get("name")
                    && let (Value::Object(new), Value::Object(old)) = (new, old)
                {
                    new.shift_remove("resources");
                    old.shift_remove("resources");
                }
            }
        }
        for (template, containers) in [(&mut *new, after), (&mut *old, before)] {
            if let Some(Value::Object(spec)) = template.get_mut("spec") {
                spec.insert(list.to_owned(), Value::Array(containers));
            }
        }
    }
}

/// `ValidateCronJobCreate` and `ValidateCronJobUpdate`.
pub(crate) fn cron_job(cron_job: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (spec, at) = (child(cron_job, "spec"), Path::root("spec"));
    let before = old.map(|old| child(old, "spec"));
    let zone = given(spec, "timeZone").and_then(Value::as_str);
    match text(spec, "schedule") {
        "" => errors.required(&at.child("schedule"), ""),
        schedule => {
            let at = at.child("schedule");
            if let Err(why) = self::schedule::parse(schedule) {
                errors.invalid(&at, schedule, why);
            }
            let bears_zone = before.is_some_and(|before| text(before, "schedule").contains("TZ"));
            if schedule.contains("TZ") {
                if bears_zone && zone.is_some() {
                    let why = "cannot use both timeZone field and TZ or CRON_TZ in schedule";
                    errors.invalid(&at, schedule, why);
                } else if !bears_zone {
                    let why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
                    errors.invalid(&at, schedule, why);
                }
            }
        }
    }
    not_negative(spec, &["startingDeadlineSeconds"], &at, errors);
    if let Some(zone) = zone
        && before.is_none_or(|before| before.get("timeZone") != spec.get("timeZone"))
        && let Err(why) = self::schedule::time_zone(zone)
    {
        errors.invalid(&at.child("timeZone"), zone, why);
    }
    match text(spec, "concurrencyPolicy") {
        "" => errors.required(&at.child("concurrencyPolicy"), ""),
        "Allow" | "Forbid" | "Replace" => {}
        policy => errors.not_supported(&at.child("concurrencyPolicy"), policy, &["Allow", "Forbid", "Replace"]),
    }
    let template = child(child(spec, "jobTemplate"), "spec");
    let template_at = at.child("jobTemplate");
    let template_at = template_at.child("spec");
    job_spec(template, before.map(|before| child(child(before, "jobTemplate"), "spec")), &template_at, errors);
    if let Some(selector) = given(template, "selector") {
        errors.invalid_value(&template_at.child("selector"), selector, "`selector` will be auto-generated");
    }
    if is_true(template, "manualSelector") {
        errors.push(listwatch_meta::FieldError {
            field: template_at.child("manualSelector").to_string(),
            reason: "FieldValueNotSupported",
            message: "Unsupported value: true: supported values: \"nil\", \"false\"".to_owned(),
        });
    }
    not_negative(spec, &["successfulJobsHistoryLimit", "failedJobsHistoryLimit"], &at, errors);
    let name = text(child(cron_job, "metadata"), "name");
    if old.is_none() && name.len() > CRON_JOB_NAME_BYTES_MAX {
        let at = Path::root("metadata");
        let why = format_args!("must be no more than {CRON_JOB_NAME_BYTES_MAX} characters");
        errors.invalid(&at.child("name"), name, why);
    }
}
