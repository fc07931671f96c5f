//! Job (`batch/v1`): runs pods until they succeed.
//!
//! Source: `ValidateJob` in `pkg/apis/batch/validation`, `pkg/registry/batch/job/strategy.go`,
//! `pkg/apis/batch/v1/defaults.go` and `printJob` of Kubernetes v1.36.

use std::collections::{BTreeMap, HashSet};

use listwatch_json::{JsonString, Map, Value, json};
use listwatch_k8s_types::Id;
use listwatch_meta::selector::dns_label_problems;
use listwatch_schema::Path;
use listwatch_validation::field_rules::{not_negative, one_of, one_of_if_present};
use listwatch_validation::formats::{self, IMMUTABLE, domain_prefixed_path, label_selector, qualified_name};
use listwatch_validation::label_selector::LabelSelector;
use listwatch_validation::typed_equality::{is_equal, is_equal_member};
use listwatch_validation::{
    Errors, Object, child, child_mut, given, is_true, items, metadata, metadata_mut, number, objects, pod_spec,
    shown_list, text,
};

use super::completion_indexes;
use super::job_status::{self, is_condition, without_value};
use crate::defaults::Default::{Do, Each, Flag, From, If, In, Number, Text};
use crate::defaults::pod_spec::{TEMPLATE, labels_of_template};
use crate::defaults::{Defaults, missing};
use crate::kind::StoredText::{Always, Before};
use crate::{CreateContext, Field, Kind, Subresource};
use listwatch_printers::text::{containers, holds, selector_cell};
use listwatch_printers::workload::{CONTAINERS, IMAGES, SELECTOR, count};
use listwatch_printers::{AGE, Cell, Column, NAME, human_duration};
use listwatch_printers::{Printed, Printer};

pub(crate) static KIND: Kind = Kind {
    generation: true,
    categories: &["all"],
    fields: &[Field {
        label: "status.successful",
        path: "status.succeeded",
        default: "0",
        ..Field::new("status.successful")
    }],
    subresources: &[Subresource::Status],
    defaults: &DEFAULTS,
    stored_texts: &[
        Always(r#""completionMode":""#),
        Always(r#""suspend":"#),
        Always(r#""podReplacementPolicy":""#),
        Always(r#""manualSelector":"#),
        // The first labels are those of the Job. Labels of the template alone come later.
        Before(r#""labels":{"#, r#""spec":{"#),
    ],
    default_on_read: labels_of_template,
    pod_spec: &["spec", "template", "spec"],
    prepare_for_create,
    // The defaults skip a template without generated labels, which only an invalid Job has.
    prepare_for_update: |job, _, _| labels_of_template(job),
    validate,
    validate_update,
    validate_status: job_status::validate_status,
    warnings: listwatch_kind_warnings::workload::of_job,
    printer: &PRINTER,
    orphans_dependents: true,
    delete_warning: Some(
        "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
    ),
    ..Kind::namespaced("batch", "v1", "jobs", "Job")
};

static DEFAULTS: Defaults = Defaults(&[("spec", In(&SPEC_DEFAULTS)), ("metadata", Do(default_labels))]);

static SPEC_DEFAULTS: Defaults = Defaults(&[
    ("podFailurePolicy", If(&FAILURE_POLICY_DEFAULTS)),
    ("completions", From(|spec| missing(spec, "parallelism").then(|| json!(1)))),
    ("parallelism", Number(1)),
    ("backoffLimit", From(|spec| Some(if missing(spec, "backoffLimitPerIndex") { json!(6) } else { json!(i32::MAX) }))),
    ("completionMode", Text("NonIndexed")),
    ("suspend", Flag(false)),
    (
        "podReplacementPolicy",
        From(|spec| Some(json!(if missing(spec, "podFailurePolicy") { "TerminatingOrFailed" } else { "Failed" }))),
    ),
    ("manualSelector", Flag(false)),
    ("template", In(&TEMPLATE)),
]);

pub(crate) static FAILURE_POLICY_DEFAULTS: Defaults = Defaults(&[("rules", Each(&FAILURE_RULE_DEFAULTS))]);

static FAILURE_RULE_DEFAULTS: Defaults = Defaults(&[("onPodConditions", Each(&POD_CONDITION_DEFAULTS))]);

static POD_CONDITION_DEFAULTS: Defaults = Defaults(&[("status", Text("True"))]);

/// Copies the labels of the pod template to a Job without labels (`SetDefaults_Job`). In kube-apiserver both are then
/// the same map, so labels that `generateSelector` adds to the template also appear on the Job. This function skips
/// templates whose labels are not generated yet; [`prepare_for_create`] copies the labels of these templates.
fn default_labels(job: &mut Object) {
    let Some(spec) = job.get("spec") else { return };
    let manual = spec.get("manualSelector") == Some(&Value::Bool(true));
    let labels = spec.pointer("/template/metadata/labels");
    if manual || labels.and_then(|labels| labels.get("controller-uid")).is_some() {
        labels_of_template(job);
    }
}

/// Generates selector and labels from the UID, unless `manualSelector` is set (`generateSelector`).
fn prepare_for_create(job: &mut Object, context: CreateContext<'_>) {
    let name = text(metadata(job), "name").to_owned();
    let spec = child_mut(job, "spec");
    if spec.get("manualSelector") == Some(&Value::Bool(true)) {
        return;
    }
    let template = child_mut(spec, "template");
    let labels = child_mut(child_mut(template, "metadata"), "labels");
    for (label, value) in [
        ("batch.kubernetes.io/controller-uid", context.uid),
        ("batch.kubernetes.io/job-name", &name),
        ("controller-uid", context.uid),
        ("job-name", &name),
    ] {
        // Validation rejects other values that a client has set.
        labels.entry(label).or_insert_with(|| Value::from(value));
    }
    let generated = labels.clone();
    let selector = child_mut(child_mut(spec, "selector"), "matchLabels");
    selector.entry("batch.kubernetes.io/controller-uid").or_insert_with(|| context.uid.into());
    let metadata = metadata_mut(job);
    if metadata.get("labels").and_then(Value::as_object).is_none_or(Map::is_empty) {
        metadata.insert("labels", Value::Object(generated));
    }
}

/// The largest `parallelism` and `maxFailedIndexes` of an indexed Job.
const INDEXED_MAX: i64 = 100_000;

/// The largest `parallelism` and `maxFailedIndexes` of a Job with more than [`INDEXED_MAX`] completions and a backoff
/// limit per index.
const HIGHLY_INDEXED_MAX: i64 = 10_000;

/// The largest number of rules of one failure policy.
const FAILURE_RULES_MAX: usize = 20;

/// The largest number of rules of one success policy.
const SUCCESS_RULES_MAX: usize = 20;

/// The largest number of exit codes of one rule.
const EXIT_CODES_MAX: usize = 255;

/// The largest number of conditions of one rule.
const CONDITIONS_MAX: usize = 20;

/// The largest size of `managedBy`, in bytes.
const MANAGED_BY_BYTES_MAX: usize = 63;

/// The largest size of the indexes of one rule, in bytes.
const SUCCEEDED_INDEXES_BYTES_MAX: usize = 64 * 1024;

/// The labels that the server generates for pods. The value is the UID of the Job for `true`, and its name for `false`.
const LABELS: [(&str, bool); 4] = [
    ("controller-uid", true),
    ("job-name", false),
    ("batch.kubernetes.io/controller-uid", true),
    ("batch.kubernetes.io/job-name", false),
];

/// Validates a Job (`ValidateJob`). kube-apiserver validates the spec of an update twice and reports both results.
fn validate(job: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (spec, at) = (child(job, "spec"), Path::root("spec"));
    validate_generated_selector(job, old, errors);
    validate_spec(spec, old, &at, errors);
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
        validate_spec(spec, old, &at, errors);
    }
}

/// Validates the generated selector and labels (`validateGeneratedSelector`).
fn validate_generated_selector(job: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (metadata, spec) = (child(job, "metadata"), child(job, "spec"));
    let Some(Value::Object(selector)) = given(spec, "selector") else { return };
    if is_true(spec, "manualSelector") {
        return;
    }
    let (name, uid) = (text(metadata, "name"), text(metadata, "uid"));
    let labels = child(child(child(spec, "template"), "metadata"), "labels");
    let labels_at = Path::root("spec.template.metadata.labels");
    // Jobs of older servers have only the labels without prefix.
    let prefixed = old.is_none_or(|old| {
        let labels = child(child(child(child(old, "spec"), "template"), "metadata"), "labels");
        LABELS[2..].iter().all(|(label, _)| labels.contains_key(label))
    });
    let mut expected = Map::new();
    for (label, is_uid) in &LABELS[..if prefixed { 4 } else { 2 }] {
        let wanted = if *is_uid { uid } else { name };
        expected.insert((*label).to_owned(), Value::from(wanted));
        match labels.get(label).and_then(Value::as_str) {
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

/// Validates the spec of a Job (`ValidateJobSpec`).
fn validate_spec(spec: &Object, old: Option<&Object>, at: &Path<'_>, errors: &mut Errors) {
    let old = old.map(|old| child(old, "spec"));
    validate_job_spec(spec, old, at, errors);
    let selector_at = at.child("selector");
    let Some(Value::Object(selector)) = given(spec, "selector") else {
        errors.required(&selector_at, "");
        return report_unmatched_labels(spec, at, errors);
    };
    let strict = old.is_none_or(|old| !formats::is_invalid_selector(old.get("selector")));
    label_selector(spec.get("selector"), strict, &selector_at, errors);
    let labels = child(child(child(spec, "template"), "metadata"), "labels");
    if LabelSelector::of(selector).selects(labels) == Some(false) {
        report_unmatched_labels(spec, at, errors);
    }
}

/// Reports labels of the template that the selector does not match.
fn report_unmatched_labels(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let at = at.child("template.metadata");
    let shown = shown_labels(child(child(child(spec, "template"), "metadata"), "labels"));
    errors.invalid_value(&at.child("labels"), shown, "`selector` does not match template `labels`");
}

/// Labels as Go prints them, sorted.
fn shown_labels(labels: &Object) -> Value {
    if labels.is_empty() {
        return Value::Null;
    }
    let sorted: BTreeMap<&JsonString, &Value> = labels.iter().collect();
    json!(sorted)
}

/// Validates the fields that Jobs and job templates share (`validateJobSpec`).
pub(crate) fn validate_job_spec(spec: &Object, old: Option<&Object>, at: &Path<'_>, errors: &mut Errors) {
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
    one_of(spec, "completionMode", &["NonIndexed", "Indexed"], at, errors);
    match mode {
        "Indexed" => validate_indexed(spec, at, errors),
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
        validate_failure_policy(spec, policy, &at.child("podFailurePolicy"), errors);
    }
    if let Some(Value::Object(policy)) = given(spec, "successPolicy") {
        let at = at.child("successPolicy");
        if mode == "Indexed" {
            validate_success_policy(spec, policy, &at, errors);
        } else {
            errors.invalid_value(&at, shown_success_policy(policy), "requires indexed completion mode");
        }
    }
    let replacements: &[&str] =
        if given(spec, "podFailurePolicy").is_some() { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    one_of_if_present(spec, "podReplacementPolicy", replacements, at, errors);
    let template = child(spec, "template");
    let at = at.child("template");
    pod_spec::validate_template(template, old.map(|old| child(old, "template")), &at, errors);
    let at = at.child("spec.restartPolicy");
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

/// Validates the counts of an indexed Job.
fn validate_indexed(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
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

/// Validates `podFailurePolicy`.
fn validate_failure_policy(spec: &Object, policy: &Object, at: &Path<'_>, errors: &mut Errors) {
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
        validate_failure_rule(spec, rule, &names, &at.index(position), errors);
    }
}

fn validate_failure_rule(spec: &Object, rule: &Object, names: &HashSet<&str>, at: &Path<'_>, errors: &mut Errors) {
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
        validate_exit_codes(codes, names, &at.child("onExitCodes"), errors);
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

fn validate_exit_codes(codes: &Object, names: &HashSet<&str>, at: &Path<'_>, errors: &mut Errors) {
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

/// A success policy as Go prints it.
fn shown_success_policy(policy: &Object) -> Value {
    let rules = objects(policy, "rules").map(|(_, rule)| {
        json!({"SucceededIndexes": rule.get("succeededIndexes"), "SucceededCount": rule.get("succeededCount")})
    });
    let given = given(policy, "rules").is_some();
    json!({"Rules": given.then(|| rules.collect::<Vec<Value>>())})
}

/// Validates `successPolicy`.
fn validate_success_policy(spec: &Object, policy: &Object, at: &Path<'_>, errors: &mut Errors) {
    let at = at.child("rules");
    let count = items(policy, "rules").len();
    if count == 0 {
        errors.required(&at, "at least one rules must be specified when the successPolicy is specified");
    }
    if count > SUCCESS_RULES_MAX {
        errors.too_many(&at, count, SUCCESS_RULES_MAX);
    }
    // An indexed Job without completions has another error.
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
            match completion_indexes::count(indexes, completions) {
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

/// Reports changes of immutable fields (`ValidateJobSpecUpdate`).
fn validate_update(new: &Object, old: &Object, errors: &mut Errors) {
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
    let require_unchanged = |name: &str, errors: &mut Errors| {
        if !is_equal_member(Id::BatchJobSpec, name, after, before) {
            errors.invalid_value(&at.child(name), after.get(name).unwrap_or(&Value::Null), IMMUTABLE);
        }
    };
    require_unchanged("selector", errors);
    validate_template_update(after, before, child(old, "status"), &at, errors);
    for name in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"] {
        require_unchanged(name, errors);
    }
}

/// Validates a changed template. A suspended Job without pods can change scheduling and resources.
fn validate_template_update(after: &Object, before: &Object, status: &Object, at: &Path<'_>, errors: &mut Errors) {
    if is_equal_member(Id::BatchJobSpec, "template", after, before) {
        return;
    }
    let suspended = is_true(before, "suspend");
    let stopped = given(status, "startTime").is_none() || is_condition(status, "Suspended", "True");
    let movable = suspended && stopped && number(status, "active").unwrap_or(0) == 0;
    let (mut new, mut old) = (child(after, "template").clone(), child(before, "template").clone());
    if movable {
        remove_scheduling(&mut new);
        remove_scheduling(&mut old);
        remove_resources(&mut new, &mut old);
    }
    if !is_equal(Id::CorePodTemplateSpec, &new, &old) {
        let shown = after.get("template").unwrap_or(&Value::Null);
        let at = at.child(if movable { "template.spec" } else { "template" });
        let shown = if movable { shown.get("spec").unwrap_or(&Value::Null) } else { shown };
        errors.invalid_value(&at, shown, IMMUTABLE);
    }
}

/// Removes the metadata and the scheduling constraints of a template, which a suspended Job can change.
fn remove_scheduling(template: &mut Object) {
    template.shift_remove("metadata");
    let Some(Value::Object(spec)) = template.get_mut("spec") else { return };
    for name in ["nodeSelector", "tolerations", "schedulingGates"] {
        spec.shift_remove(name);
    }
    if let Some(Value::Object(affinity)) = spec.get_mut("affinity") {
        affinity.shift_remove("nodeAffinity");
        // An affinity without other rules can be added and removed.
        if affinity.is_empty() {
            spec.shift_remove("affinity");
        }
    }
}

/// Removes the resources of the containers that are in both templates, which a suspended Job can change.
fn remove_resources(new: &mut Object, old: &mut Object) {
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

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Status", "The state of the job in one word."),
        Column::text("Completions", "Pods that succeeded of pods that should."),
        Column::text("Duration", "How long the job ran, or has run so far."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells,
};

fn cells(job: Printed<'_>) -> Vec<Cell> {
    let (spec, status) = (job.spec(), job.status());
    let succeeded = count(status, "succeeded");
    let completions = match (spec.get("completions").int(), spec.get("parallelism").int()) {
        (Some(completions), _) => format!("{succeeded}/{completions}"),
        (None, Some(parallelism @ 2..)) => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    };
    let duration = match (status.get("startTime").time(), status.get("completionTime").time()) {
        (Some(start), Some(completion)) => human_duration(completion - start),
        (Some(start), None) => job.clock().age(start),
        (None, _) => String::new(),
    };
    let conditions = status.get("conditions");
    let state = if holds(conditions, "Complete") {
        "Complete"
    } else if holds(conditions, "Failed") {
        "Failed"
    } else if job.is_being_deleted() {
        "Terminating"
    } else {
        let states = ["Suspended", "FailureTarget", "SuccessCriteriaMet"];
        states.into_iter().find(|state| holds(conditions, state)).unwrap_or("Running")
    };
    let (names, images) = containers(spec.get("template"));
    vec![
        job.name().into(),
        state.into(),
        completions.into(),
        duration.into(),
        job.age().into(),
        names.into(),
        images.into(),
        selector_cell(spec.get("selector")).into(),
    ]
}

#[cfg(test)]
mod tests {
    use listwatch_meta::UserInfo;

    use super::*;
    use crate::testing::{check_defaults, defaulted_pod_template, map, pod_template};

    #[test]
    fn job_defaults_equal_those_of_kube_apiserver() {
        check_defaults(
            &KIND,
            json!({"spec": {"template": pod_template()}}),
            json!({"spec": {"parallelism": 1, "completions": 1, "backoffLimit": 6, "manualSelector": false,
                "template": defaulted_pod_template(), "completionMode": "NonIndexed", "suspend": false,
                "podReplacementPolicy": "TerminatingOrFailed"}}),
        );
    }

    #[test]
    fn new_job_selects_pods_by_its_uid() {
        let mut job = map(json!({"metadata": {"name": "j"}, "spec": {"template": {}}}));
        prepare_for_create(&mut job, CreateContext { uid: "u", now: "NOW", user: UserInfo::admin() });
        let labels = json!({"batch.kubernetes.io/controller-uid": "u", "batch.kubernetes.io/job-name": "j",
            "controller-uid": "u", "job-name": "j"});
        assert_eq!(job["spec"]["template"]["metadata"]["labels"], labels);
        assert_eq!(job["metadata"]["labels"], labels);
    }

    #[test]
    fn new_job_without_labels_gets_all_labels_of_its_template() {
        let check = |job: listwatch_json::Value, manual: bool, expected: &[&str]| {
            let mut job = map(job);
            job.insert(
                "spec".to_owned(),
                json!({"manualSelector": manual, "template": {"metadata": {"labels": {"app": "a"}}}}),
            );
            crate::defaults::apply(&DEFAULTS, &mut job);
            prepare_for_create(&mut job, CreateContext { uid: "u", now: "NOW", user: UserInfo::admin() });
            let labels: Vec<&JsonString> = job["metadata"]["labels"].as_object().unwrap().keys().collect();
            assert_eq!(labels, expected);
        };
        let generated =
            ["batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "controller-uid", "job-name"];
        let all: Vec<&str> = std::iter::once("app").chain(generated).collect();
        check(json!({"metadata": {"name": "j"}}), false, &all);
        check(json!({"metadata": {"name": "j"}}), true, &["app"]);
        // A client's labels are kept, also if they equal those of the template.
        check(json!({"metadata": {"name": "j", "labels": {"app": "a"}}}), false, &["app"]);
    }

    #[test]
    fn update_rejects_changed_template_except_scheduling_of_a_suspended_job() {
        let job = |suspend: bool, image: &str, zone: &str, started: bool| {
            let spec = json!({"nodeSelector": {"zone": zone}, "containers": [{"name": "c", "image": image}]});
            let status = if started { json!({"startTime": "2024-01-01T00:00:00Z"}) } else { json!({}) };
            map(json!({"spec": {"suspend": suspend, "template": {"spec": spec}}, "status": status}))
        };
        let check = |new: &Object, old: &Object, expected: Option<&str>| {
            let mut errors = Errors::default();
            validate_update(new, old, &mut errors);
            let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
            assert_eq!(fields, expected.into_iter().collect::<Vec<_>>(), "{new:?}");
        };
        let old = job(false, "a", "x", true);
        check(&old, &old, None);
        check(&job(false, "b", "x", true), &old, Some("spec.template"));
        check(&job(false, "a", "y", true), &old, Some("spec.template"));
        let suspended = job(true, "a", "x", false);
        check(&job(true, "a", "y", false), &suspended, None);
        check(&job(true, "b", "y", false), &suspended, Some("spec.template.spec"));
        check(&job(true, "a", "y", true), &job(true, "a", "x", true), Some("spec.template"));
    }

    #[test]
    fn update_rejects_changed_pointers_in_the_template() {
        let job = |suspend: bool, pod: Value| map(json!({"spec": {"suspend": suspend, "template": {"spec": pod}}}));
        let volume = |volume: Value| json!({ "volumes": [volume] });
        for (suspend, new, old, is_equal) in [
            (false, volume(json!({"emptyDir": {}})), volume(json!({})), false),
            (true, volume(json!({"emptyDir": {}})), volume(json!({})), false),
            (false, json!({"runtimeClassName": ""}), json!({}), false),
            (false, json!({"affinity": {}}), json!({}), false),
            (false, json!({"nodeSelector": {}, "hostNetwork": false}), json!({}), true),
            // A suspended Job can change its node affinity.
            (true, json!({"affinity": {"nodeAffinity": {}}}), json!({}), true),
            (true, json!({}), json!({"affinity": {}}), true),
            (true, json!({"affinity": {"podAffinity": {}}}), json!({}), false),
        ] {
            let mut errors = Errors::default();
            validate_update(&job(suspend, new.clone()), &job(suspend, old.clone()), &mut errors);
            assert_eq!(errors.is_empty(), is_equal, "{old} to {new}, suspended: {suspend}");
        }
    }
}
