//! CronJob (`batch/v1`): creates Jobs on a schedule.
//!
//! Source: `ValidateCronJobCreate` in `pkg/apis/batch/validation`, `pkg/apis/batch/v1/defaults.go` and `printCronJob` of
//! Kubernetes v1.36.

use listwatch_json::Value;
use listwatch_schema::Path;
use listwatch_validation::field_rules::{not_negative, required_one_of};
use listwatch_validation::{Errors, Object, child, given, is_true, text};

use super::cron_schedule;
use super::job::{FAILURE_POLICY_DEFAULTS, validate_job_spec};
use crate::defaults::Default::{Empty, Flag, If, In, Number, Text};
use crate::defaults::Defaults;
use crate::defaults::pod_spec::TEMPLATE;
use crate::{Kind, Subresource};
use listwatch_printers::Printer;
use listwatch_printers::text::{NONE, containers, selector_cell};
use listwatch_printers::workload::{CONTAINERS, IMAGES, SELECTOR};
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    short_names: &["cj"],
    generation: true,
    categories: &["all"],
    subresources: &[Subresource::Status],
    defaults: &DEFAULTS,
    pod_spec: &["spec", "jobTemplate", "spec", "template", "spec"],
    validate,
    warnings: listwatch_kind_warnings::workload::of_cron_job,
    printer: &PRINTER,
    ..Kind::namespaced("batch", "v1", "cronjobs", "CronJob")
};

static DEFAULTS: Defaults = Defaults(&[("spec", In(&SPEC_DEFAULTS))]);

static SPEC_DEFAULTS: Defaults = Defaults(&[
    ("concurrencyPolicy", Text("Allow")),
    ("suspend", Flag(false)),
    ("jobTemplate", In(&JOB_TEMPLATE_DEFAULTS)),
    ("successfulJobsHistoryLimit", Number(3)),
    ("failedJobsHistoryLimit", Number(1)),
]);

static JOB_TEMPLATE_DEFAULTS: Defaults = Defaults(&[("metadata", Empty), ("spec", In(&JOB_SPEC_DEFAULTS))]);

/// The defaults of the spec in a job template: only those of its pods. The other defaults apply when a Job is created.
static JOB_SPEC_DEFAULTS: Defaults =
    Defaults(&[("podFailurePolicy", If(&FAILURE_POLICY_DEFAULTS)), ("template", In(&TEMPLATE))]);

/// The largest size of the name of a CronJob, in bytes. The names of its Jobs have 11 bytes more.
const CRON_JOB_NAME_BYTES_MAX: usize = 52;

/// Validates a CronJob (`ValidateCronJobCreate`, `ValidateCronJobUpdate`).
fn validate(cron_job: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (spec, at) = (child(cron_job, "spec"), Path::root("spec"));
    let before = old.map(|old| child(old, "spec"));
    let zone = given(spec, "timeZone").and_then(Value::as_str);
    match text(spec, "schedule") {
        "" => errors.required(&at.child("schedule"), ""),
        schedule => {
            let at = at.child("schedule");
            if let Err(why) = cron_schedule::parse(schedule) {
                errors.invalid(&at, schedule, why);
            }
            let old_has_zone = before.is_some_and(|before| text(before, "schedule").contains("TZ"));
            if schedule.contains("TZ") {
                if old_has_zone && zone.is_some() {
                    let why = "cannot use both timeZone field and TZ or CRON_TZ in schedule";
                    errors.invalid(&at, schedule, why);
                } else if !old_has_zone {
                    let why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
                    errors.invalid(&at, schedule, why);
                }
            }
        }
    }
    not_negative(spec, &["startingDeadlineSeconds"], &at, errors);
    if let Some(zone) = zone
        && before.is_none_or(|before| before.get("timeZone") != spec.get("timeZone"))
    {
        for why in cron_schedule::time_zone_problems(zone) {
            errors.invalid(&at.child("timeZone"), zone, why);
        }
    }
    required_one_of(spec, "concurrencyPolicy", &["Allow", "Forbid", "Replace"], &at, errors);
    let template = child(child(spec, "jobTemplate"), "spec");
    let template_at = at.child("jobTemplate");
    let template_at = template_at.child("spec");
    validate_job_spec(template, before.map(|before| child(child(before, "jobTemplate"), "spec")), &template_at, errors);
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

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Schedule", "When jobs are made, in cron's words."),
        Column::text("Timezone", "The zone that the schedule is in."),
        Column::boolean("Suspend", "Whether no jobs are made for now."),
        Column::integer("Active", "How many of its jobs run."),
        Column::text("Last Schedule", "When the last job was made."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |cron| {
        let (spec, status) = (cron.spec(), cron.status());
        let last = status.get("lastScheduleTime");
        let template = spec.at("jobTemplate.spec.template");
        let (names, images) = containers(template);
        vec![
            cron.name().into(),
            spec.get("schedule").string().into(),
            spec.get("timeZone").string_or(NONE).into(),
            match spec.get("suspend").bool() {
                Some(true) => "True",
                Some(false) => "False",
                None => "<unset>",
            }
            .into(),
            status.get("active").count().into(),
            if last.exists() { cron.since(last) } else { NONE.to_owned() }.into(),
            cron.age().into(),
            names.into(),
            images.into(),
            selector_cell(spec.at("jobTemplate.spec.selector")).into(),
        ]
    },
};

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;
    use crate::testing::{check_defaults, defaulted_pod_template, pod_template};

    #[test]
    fn cron_job_defaults_equal_those_of_kube_apiserver() {
        check_defaults(
            &KIND,
            json!({"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": pod_template()}}}}),
            json!({"spec": {"schedule": "* * * * *", "concurrencyPolicy": "Allow", "suspend": false,
                "jobTemplate": {"metadata": {}, "spec": {"template": defaulted_pod_template()}},
                "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1}}),
        );
    }
}
