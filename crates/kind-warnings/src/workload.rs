//! Warnings about the kinds with pod templates.
//!
//! Source: the strategies in `pkg/registry/apps`, `pkg/registry/batch`, `pkg/registry/core/podtemplate` and
//! `pkg/registry/core/replicationcontroller`, and `pkg/api/job/warnings.go`. An update has the warnings of the template
//! only if it changes `metadata.generation`.

use listwatch_json::Value;
use listwatch_meta::selector::dns_label_problems;
use listwatch_schema::Path;
use listwatch_validation::{Object, child, metadata, number, objects, text};

use crate::pod::add_template;
use crate::storage::add_claim_spec;
use crate::{Warnings, changes_generation};

const POD_NAMES: &str = "Pod names and hostnames";

/// An Indexed Job with more completions and more parallelism than these may lose track of its indexes.
const COMPLETIONS_SOFT_LIMIT: i64 = 100_000;
const PARALLELISM_SOFT_LIMIT: i64 = 10_000;

/// Warns of a name that is not a DNS label. `used_in` says what the name becomes a part of.
pub(crate) fn add_name(object: &Object, used_in: &str, warnings: &mut Warnings) {
    let problems = dns_label_problems(text(metadata(object), "name"));
    if !problems.is_empty() {
        // The list is formatted as Go formats a slice.
        let problems = problems.join(" ");
        warnings.add(format_args!(
            "metadata.name: this is used in {used_in}, which can result in surprising behavior; a DNS label is recommended: [{problems}]"
        ));
    }
}

fn add_template_of(object: &Object, warnings: &mut Warnings) {
    let at = Path::root("spec");
    add_template(child(child(object, "spec"), "template"), &at.child("template"), warnings);
}

/// Warnings of Deployments and ReplicaSets.
pub fn of_replicas(object: &Object, old: Option<&Object>, warnings: &mut Warnings) {
    if old.is_none() {
        add_name(object, POD_NAMES, warnings);
    }
    if old.is_none_or(|old| changes_generation(object, old)) {
        add_template_of(object, warnings);
    }
}

/// Warnings of ReplicationControllers. Like upstream, an update warns of the old template.
pub fn of_replication_controller(object: &Object, old: Option<&Object>, warnings: &mut Warnings) {
    match old {
        None => of_replicas(object, None, warnings),
        Some(old) if changes_generation(object, old) => add_template_of(old, warnings),
        Some(_) => {}
    }
}

/// Warnings of DaemonSets. Their names may have dots. Upstream compares the generation of the
/// template, which each change of the template increments.
pub fn of_daemon_set(set: &Object, old: Option<&Object>, warnings: &mut Warnings) {
    fn template(set: &Object) -> Option<&Value> {
        child(set, "spec").get("template")
    }
    if old.is_none_or(|old| changes_generation(set, old) && template(set) != template(old)) {
        add_template_of(set, warnings);
    }
}

/// Warnings of StatefulSets.
pub fn of_stateful_set(set: &Object, old: Option<&Object>, warnings: &mut Warnings) {
    if old.is_none_or(|old| changes_generation(set, old)) {
        add_template_of(set, warnings);
    }
    let (spec, at) = (child(set, "spec"), Path::root("spec"));
    let claims_at = at.child("volumeClaimTemplates");
    for (index, claim) in objects(spec, "volumeClaimTemplates") {
        let (claim, at) = (child(claim, "spec"), claims_at.index(index));
        // Upstream's paths differ.
        match old {
            None => add_claim_spec(claim, &at, warnings),
            Some(_) => add_claim_spec(claim, &at.child("Spec"), warnings),
        }
    }
    if number(spec, "revisionHistoryLimit").is_some_and(|limit| limit < 0) {
        warnings.add(format_args!(
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
        ));
    }
}

/// Warnings of PodTemplates.
pub fn of_pod_template(object: &Object, old: Option<&Object>, warnings: &mut Warnings) {
    if old.is_none_or(|old| changes_generation(object, old)) {
        add_template(child(object, "template"), &Path::root("template"), warnings);
    }
}

/// Warnings of Jobs.
pub fn of_job(job: &Object, old: Option<&Object>, warnings: &mut Warnings) {
    if old.is_none() {
        add_name(job, POD_NAMES, warnings);
    }
    if old.is_none_or(|old| changes_generation(job, old)) {
        add_job_spec(child(job, "spec"), &Path::root("spec"), warnings);
    }
}

/// Warnings of CronJobs.
pub fn of_cron_job(cron_job: &Object, old: Option<&Object>, warnings: &mut Warnings) {
    if old.is_none() {
        add_name(cron_job, POD_NAMES, warnings);
    }
    let spec = child(cron_job, "spec");
    if old.is_none_or(|old| changes_generation(cron_job, old)) {
        let at = Path::root("spec");
        let at = at.child("jobTemplate");
        add_job_spec(child(child(spec, "jobTemplate"), "spec"), &at.child("spec"), warnings);
    }
    if old.is_some() && text(spec, "schedule").contains("TZ") {
        // Upstream's path has "spec" twice.
        warnings.add(format_args!(
            "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
        ));
    }
}

/// Adds the warnings of the spec of a Job (`WarningsForJobSpec`).
fn add_job_spec(spec: &Object, at: &Path<'_>, warnings: &mut Warnings) {
    let above = |name: &str, limit: i64| number(spec, name).unwrap_or(0) > limit;
    if text(spec, "completionMode") == "Indexed"
        && above("completions", COMPLETIONS_SOFT_LIMIT)
        && above("parallelism", PARALLELISM_SOFT_LIMIT)
    {
        warnings.add(format_args!(
            "{at}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
        ));
    }
    add_template(child(spec, "template"), &at.child("template"), warnings);
}
