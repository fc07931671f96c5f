//! Kinds that make pods, scale them, or guard them.

use std::collections::HashSet;

use listwatch_meta::FieldError;
use serde_json::{Value, json};

use super::Rule::{Below, Check, Each, NotNegative, OneOf, Required};
use super::pods;
use super::{Errors, Object, Rules, child, given, int_or_percent, number, objects, quoted, selector, text};
use crate::label_selectors::LabelSelector;
use crate::registry::NameRule;

const TEMPLATE: Rules = &[Check(pods::template_labels), Below("spec", pods::SPEC)];
const ALWAYS: Rules = &[Check(always)];

pub(super) const DEPLOYMENT: Rules = &[Below(
    "spec",
    &[
        NotNegative("replicas"),
        Check(|spec, at, errors| selects(spec, at, "deployment", errors)),
        Below("template", TEMPLATE),
        Below("template", ALWAYS),
        Check(deployment_strategy),
        NotNegative("minReadySeconds"),
        NotNegative("revisionHistoryLimit"),
        Check(progress_deadline),
    ],
)];
pub(super) const REPLICA_SET: Rules = &[Below(
    "spec",
    &[
        NotNegative("replicas"),
        NotNegative("minReadySeconds"),
        Check(|spec, at, errors| selects(spec, at, "deployment", errors)),
        Below("template", TEMPLATE),
        Below("template", ALWAYS),
    ],
)];
pub(super) const DAEMON_SET: Rules = &[Below(
    "spec",
    &[
        Check(|spec, at, errors| selects(spec, at, "daemonset", errors)),
        Below("template", TEMPLATE),
        Below("template", ALWAYS),
        NotNegative("minReadySeconds"),
        Check(|spec, at, errors| update_strategy(spec, at, None, errors)),
        NotNegative("revisionHistoryLimit"),
    ],
)];
pub(super) const STATEFUL_SET: Rules = &[Below(
    "spec",
    &[
        Check(pod_management),
        Check(|spec, at, errors| update_strategy(spec, at, Some("must be 'RollingUpdate' or 'OnDelete'"), errors)),
        NotNegative("replicas"),
        NotNegative("minReadySeconds"),
        Check(|spec, at, errors| selects(spec, at, "statefulset", errors)),
        Check(template_with_claims),
        Below("template", ALWAYS),
    ],
)];
pub(super) const REPLICATION_CONTROLLER: Rules = &[Below(
    "spec",
    &[
        NotNegative("minReadySeconds"),
        Required("selector", ""),
        NotNegative("replicas"),
        Required("template", ""),
        Check(template_of_controller),
    ],
)];

pub(super) const JOB: Rules = &[Below("spec", JOB_SPEC)];
const JOB_SPEC: Rules = &[
    NotNegative("parallelism"),
    NotNegative("completions"),
    NotNegative("activeDeadlineSeconds"),
    NotNegative("backoffLimit"),
    NotNegative("ttlSecondsAfterFinished"),
    NotNegative("backoffLimitPerIndex"),
    OneOf("completionMode", &["NonIndexed", "Indexed"]),
    Check(completions),
    Below("template", TEMPLATE),
    Below("template", &[Check(ends)]),
];
pub(super) const CRON_JOB: Rules = &[
    Check(cron_job_name),
    Below(
        "spec",
        &[
            Required("schedule", ""),
            Check(schedule),
            NotNegative("startingDeadlineSeconds"),
            OneOf("concurrencyPolicy", &["Allow", "Forbid", "Replace"]),
            NotNegative("successfulJobsHistoryLimit"),
            NotNegative("failedJobsHistoryLimit"),
            Below("jobTemplate", &[Below("spec", JOB_SPEC)]),
        ],
    ),
];

pub(super) const AUTOSCALER: Rules = &[Below(
    "spec",
    &[
        Check(replica_range),
        Below("scaleTargetRef", &[Required("kind", ""), Required("name", ""), Check(target)]),
        Each(
            "metrics",
            &[OneOf("type", &["ContainerResource", "External", "Object", "Pods", "Resource"]), Check(metric_source)],
        ),
    ],
)];
pub(super) const BUDGET: Rules = &[Below(
    "spec",
    &[
        Check(budget),
        Check(|spec, at, errors| int_or_percent(spec, "minAvailable", at, errors)),
        Check(|spec, at, errors| int_or_percent(spec, "maxUnavailable", at, errors)),
        Check(|spec, at, errors| selector(spec, "selector", at, errors)),
        OneOf("unhealthyPodEvictionPolicy", &["AlwaysAllow", "IfHealthyBudget"]),
    ],
)];

/// The template as the pods will be: each claim template is a volume of its name, which containers
/// may mount, in place of one that the template has under that name.
fn template_with_claims(spec: &Object, at: &str, errors: &mut Errors) {
    let mut template = child(spec, "template").clone();
    let claims: Vec<&str> =
        objects(spec, "volumeClaimTemplates").map(|(_, claim)| text(child(claim, "metadata"), "name")).collect();
    let named: HashSet<&str> = claims.iter().copied().collect();
    if !claims.is_empty() {
        let mut pod = child(&template, "spec").clone();
        let declared = objects(&pod, "volumes").filter(|(_, volume)| !named.contains(text(volume, "name")));
        let mut volumes: Vec<Value> = declared.map(|(_, volume)| Value::Object(volume.clone())).collect();
        volumes.extend(claims.iter().map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}})));
        pod.insert("volumes".to_owned(), Value::Array(volumes));
        template.insert("spec".to_owned(), Value::Object(pod));
    }
    super::run(TEMPLATE, &template, &format!("{at}template."), errors);
}

/// The selector is there, says something, and means the pods of the template.
fn selects(spec: &Object, at: &str, kind: &str, errors: &mut Errors) {
    let labels = child(child(child(spec, "template"), "metadata"), "labels");
    match given(spec, "selector") {
        // Of a daemon set an absent one is only seen not to match.
        None if kind == "daemonset" => {}
        None => errors.push(FieldError::required(format!("{at}selector"), "")),
        Some(present) => {
            selector(spec, "selector", at, errors);
            if super::is_empty(Some(present)) {
                let why = format_args!("empty selector is invalid for {kind}");
                errors.push(FieldError::invalid(format!("{at}selector"), present, why));
                return;
            }
        }
    }
    let selector = LabelSelector::of(child(spec, "selector"));
    // What cannot be read was refused already.
    if selector.is_empty() || selector.selects(labels) == Some(false) {
        let shown = if labels.is_empty() { Value::Null } else { Value::Object(labels.clone()) };
        let why = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid(format!("{at}template.metadata.labels"), shown, why));
    }
}

/// Pods of these kinds never end by themselves.
fn always(template: &Object, at: &str, errors: &mut Errors) {
    let policy = text(child(template, "spec"), "restartPolicy");
    if matches!(policy, "OnFailure" | "Never") {
        errors.push(FieldError::not_supported(format!("{at}spec.restartPolicy"), policy, &["Always"]));
    }
}

/// Pods of a job end.
fn ends(template: &Object, at: &str, errors: &mut Errors) {
    if matches!(text(child(template, "spec"), "restartPolicy"), "" | "Always") {
        let why = "valid values: \"OnFailure\", \"Never\"";
        errors.push(FieldError::required(format!("{at}spec.restartPolicy"), why));
    }
}

/// A strategy as Go shows it.
fn shown_strategy(strategy: &Object) -> Value {
    json!({"Type": text(strategy, "type"), "RollingUpdate": null})
}

fn deployment_strategy(spec: &Object, at: &str, errors: &mut Errors) {
    let strategy = child(spec, "strategy");
    let rolling = given(strategy, "rollingUpdate").and_then(Value::as_object);
    let at = format!("{at}strategy");
    match (text(strategy, "type"), rolling) {
        ("Recreate", Some(_)) => {
            let why = "may not be specified when strategy `type` is 'Recreate'";
            errors.push(FieldError::forbidden(format!("{at}.rollingUpdate"), why));
        }
        ("RollingUpdate", None) => {
            let why = "this should be defaulted and never be nil";
            errors.push(FieldError::required(format!("{at}.rollingUpdate"), why));
        }
        ("RollingUpdate", Some(rolling)) => {
            let at = format!("{at}.rollingUpdate.");
            int_or_percent(rolling, "maxUnavailable", &at, errors);
            int_or_percent(rolling, "maxSurge", &at, errors);
            let nothing = |name: &str| rolling.get(name).is_some_and(|value| value == 0 || value == "0%");
            if nothing("maxUnavailable") && nothing("maxSurge") {
                let shown = rolling.get("maxUnavailable").unwrap_or(&Value::Null);
                let why = "may not be 0 when `maxSurge` is 0";
                errors.push(FieldError::invalid(format!("{at}maxUnavailable"), shown, why));
            }
            let percent =
                text(rolling, "maxUnavailable").strip_suffix('%').and_then(|digits| digits.parse::<u64>().ok());
            if percent.is_some_and(|percent| percent > 100) {
                let shown = quoted(text(rolling, "maxUnavailable"));
                errors.push(FieldError::invalid(format!("{at}maxUnavailable"), shown, "must not be greater than 100%"));
            }
        }
        ("Recreate" | "", _) => {}
        _ => errors.push(FieldError {
            field: at,
            reason: "FieldValueNotSupported",
            message: format!(
                "Unsupported value: {}: supported values: \"Recreate\", \"RollingUpdate\"",
                shown_strategy(strategy)
            ),
        }),
    }
}

fn update_strategy(spec: &Object, at: &str, invalid: Option<&str>, errors: &mut Errors) {
    let strategy = child(spec, "updateStrategy");
    if matches!(text(strategy, "type"), "" | "RollingUpdate" | "OnDelete") {
        return;
    }
    let (field, shown) = (format!("{at}updateStrategy"), shown_strategy(strategy));
    errors.push(match invalid {
        Some(why) => FieldError::invalid(field, shown, why),
        None => FieldError {
            field,
            reason: "FieldValueNotSupported",
            message: format!("Unsupported value: {shown}: supported values: \"RollingUpdate\", \"OnDelete\""),
        },
    });
}

fn pod_management(spec: &Object, at: &str, errors: &mut Errors) {
    let policy = text(spec, "podManagementPolicy");
    if !matches!(policy, "" | "OrderedReady" | "Parallel") {
        let why = "must be 'OrderedReady' or 'Parallel'";
        errors.push(FieldError::invalid(format!("{at}podManagementPolicy"), quoted(policy), why));
    }
}

fn progress_deadline(spec: &Object, at: &str, errors: &mut Errors) {
    not_above_ready(number(spec, "progressDeadlineSeconds"), spec, at, errors);
}

fn not_above_ready(deadline: Option<i64>, spec: &Object, at: &str, errors: &mut Errors) {
    let Some(deadline) = deadline else { return };
    super::not_negative(spec, "progressDeadlineSeconds", at, errors);
    if deadline <= number(spec, "minReadySeconds").unwrap_or(0) {
        let field = format!("{at}progressDeadlineSeconds");
        errors.push(FieldError::invalid(field, deadline, "must be greater than minReadySeconds"));
    }
}

/// A replication controller need not have been given a template to be shown what it lacks.
fn template_of_controller(spec: &Object, at: &str, errors: &mut Errors) {
    if let Some(Value::Object(template)) = given(spec, "template") {
        super::run(TEMPLATE, template, &format!("{at}template."), errors);
        super::run(ALWAYS, template, &format!("{at}template."), errors);
    }
}

fn completions(spec: &Object, at: &str, errors: &mut Errors) {
    if text(spec, "completionMode") == "Indexed" && given(spec, "completions").is_none() {
        errors.push(FieldError::required(format!("{at}completions"), "when completion mode is Indexed"));
    }
}

/// The jobs' names get eleven characters behind that of the cron job.
fn cron_job_name(cron_job: &Object, _: &str, errors: &mut Errors) {
    let name = text(child(cron_job, "metadata"), "name");
    if name.len() > 52 {
        errors.push(FieldError::invalid("metadata.name", quoted(name), "must be no more than 52 characters"));
    }
}

fn schedule(spec: &Object, at: &str, errors: &mut Errors) {
    let schedule = text(spec, "schedule");
    let mut wrong = |why: String| errors.push(FieldError::invalid(format!("{at}schedule"), quoted(schedule), why));
    if schedule.is_empty() {
        return;
    }
    if schedule.contains("TZ=") {
        return wrong("cannot use TZ or CRON_TZ in schedule, use timeZone field instead".to_owned());
    }
    const KNOWN: [&str; 7] = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
    if schedule.starts_with('@') {
        if !KNOWN.contains(&schedule) && !schedule.starts_with("@every ") {
            wrong(format!("unrecognized descriptor: {schedule}"));
        }
        return;
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != 5 {
        wrong(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
}

fn replica_range(spec: &Object, at: &str, errors: &mut Errors) {
    let (least, most) = (number(spec, "minReplicas"), number(spec, "maxReplicas").unwrap_or(0));
    if let Some(least) = least.filter(|least| *least < 1) {
        let why = "must be greater than or equal to 1";
        errors.push(FieldError::invalid(format!("{at}minReplicas"), least, why));
    }
    if most < 1 {
        errors.push(FieldError::required(format!("{at}maxReplicas"), "must be set and greater than 0"));
    }
    if least.is_some_and(|least| most < least) {
        let why = "must be greater than or equal to `minReplicas`";
        errors.push(FieldError::invalid(format!("{at}maxReplicas"), most, why));
    }
}

fn target(target: &Object, at: &str, errors: &mut Errors) {
    super::named(text(target, "name"), NameRule::PathSegment, &format!("{at}name"), errors);
    let version = text(target, "apiVersion");
    if version.is_empty() || (version == "v1" && text(target, "kind") != "ReplicationController") {
        let why = "apiVersion must specify API group";
        errors.push(FieldError::invalid(format!("{at}apiVersion"), quoted(version), why));
    }
}

fn metric_source(metric: &Object, at: &str, errors: &mut Errors) {
    let source = match text(metric, "type") {
        "ContainerResource" => "containerResource",
        "External" => "external",
        "Object" => "object",
        "Pods" => "pods",
        "Resource" => "resource",
        _ => return,
    };
    if given(metric, source).is_none() {
        let why = "must populate information for the given metric source";
        errors.push(FieldError::required(format!("{at}{source}"), why));
    }
}

fn budget(spec: &Object, at: &str, errors: &mut Errors) {
    let (least, most) = (given(spec, "minAvailable"), given(spec, "maxUnavailable"));
    if let (Some(least), Some(most)) = (least, most) {
        let shown = json!({"MinAvailable": least, "Selector": null, "MaxUnavailable": most,
            "UnhealthyPodEvictionPolicy": null});
        let why = "minAvailable and maxUnavailable cannot be both set";
        errors.push(FieldError::invalid(at.trim_end_matches('.'), shown, why));
    }
}
