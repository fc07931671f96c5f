//! JobSet (sigs.k8s.io/jobset): defaulting and validating webhooks for its own kind and for pods.

use serde_json::{Value, json};

use crate::failure::Outcome;

use super::installed::{Operator, has, items};
use super::managers::{Project, dry_run};
use super::{Scenario, scenario};

pub(super) const PROJECT: Project = Project {
    name: "jobset",
    namespace: "jobset-system",
    config: "config.jobset.x-k8s.io/v1alpha1",
    certificates: Some("/tmp/k8s-webhook-server/serving-certs"),
};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario("install", |operator| PROJECT.install(operator)),
    scenario("webhook defaults", defaults),
    scenario("webhook denies", denies),
    scenario("dry run", runs_dry),
    scenario("controller reconciles", reconciles),
    scenario("suspend", suspends),
    scenario("success", succeeds),
    scenario("webhook outage", |operator| {
        PROJECT.survives_an_outage(operator, &set("after-outage", 1), "mjobset.kb.io")
    }),
];

/// A set with the fields that a user has to give.
fn set(name: &str, replicas: i64) -> Value {
    let job = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "c", "image": "registry.k8s.io/pause:3.10"}]}}}});
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name, "namespace": "use"},
        "spec": {"replicatedJobs": [{"name": "work", "replicas": replicas, "template": job}]},
    })
}

/// The values of the defaulting webhook, which the definition's schema does not have.
fn has_defaults(object: &Value) -> Outcome<()> {
    has(object, "/spec/successPolicy/operator", &json!("All"))?;
    has(object, "/spec/network/enableDNSHostnames", &json!(true))?;
    has(object, "/spec/replicatedJobs/0/template/spec/completionMode", &json!("Indexed"))?;
    has(object, "/spec/replicatedJobs/0/template/spec/template/spec/restartPolicy", &json!("OnFailure"))
}

fn defaults(operator: &mut Operator) -> Outcome<String> {
    has_defaults(&operator.create(&set("first", 2))?)?;
    Ok("success policy, network, completion mode, restart policy".to_owned())
}

fn denies(operator: &mut Operator) -> Outcome<String> {
    let denied = "admission webhook \"vjobset.kb.io\" denied the request: ";
    let mut bad = set("bad", 1);
    bad["spec"]["successPolicy"] = json!({"operator": "All", "targetReplicatedJobs": ["nobody"]});
    let text = format!("{denied}invalid replicatedJob name 'nobody' does not appear in .spec.ReplicatedJobs");
    operator.create_is_denied(&bad, &text)?;
    let long = set(&"x".repeat(70), 1);
    operator.create_is_denied(&long, "JobSet name is too long, job names generated for this JobSet")?;
    let patch = json!([{"op": "replace", "path": "/spec/replicatedJobs/0/name", "value": "renamed"}]);
    operator.patch_is_denied("jobset first -n use --type=json", &patch, "Value is immutable")?;
    Ok("two creates and a patch, with the operator's texts".to_owned())
}

fn runs_dry(operator: &mut Operator) -> Outcome<String> {
    dry_run(operator, &set("dry", 1), "jobsets", has_defaults)?;
    Ok("defaulted and not stored".to_owned())
}

fn reconciles(operator: &mut Operator) -> Outcome<String> {
    operator.until("the jobs exist", "jobs -n use -l jobset.sigs.k8s.io/jobset-name=first", |list| {
        if items(list).len() == 2 { Ok(()) } else { Err(format!("{} jobs", items(list).len())) }
    })?;
    operator.until("the headless service exists", "service first -n use", |object| {
        has(object, "/spec/clusterIP", &json!("None")).map_err(|failure| failure.to_string())
    })?;
    operator.until("the status is written", "jobset first -n use", |object| {
        has(object, "/status/replicatedJobsStatus/0/name", &json!("work")).map_err(|failure| failure.to_string())
    })?;
    Ok("two jobs, headless service, status".to_owned())
}

/// Suspends the set. The operator suspends its jobs and writes the condition.
fn suspends(operator: &mut Operator) -> Outcome<String> {
    let patch = |suspend: bool| {
        let patch = json!({"spec": {"suspend": suspend}}).to_string();
        let words = ["patch", "jobset", "first", "-n", "use", "--type=merge", "-p", &patch];
        operator.access.kubectl(words).text().map(drop)
    };
    patch(true)?;
    let words = "jobs -n use -l jobset.sigs.k8s.io/jobset-name=first";
    let suspended = |wanted: bool| {
        move |list: &Value| {
            let count = items(list).iter().filter(|job| job["spec"]["suspend"] == wanted).count();
            if count == 2 { Ok(()) } else { Err(format!("{count} jobs with suspend {wanted}")) }
        }
    };
    operator.until("the jobs are suspended", words, suspended(true))?;
    operator.until("the condition is written", "jobset first -n use", |object| {
        let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let there = conditions.iter().any(|entry| entry["type"] == "Suspended" && entry["status"] == "True");
        if there { Ok(()) } else { Err(format!("conditions {conditions:?}")) }
    })?;
    patch(false)?;
    operator.until("the jobs run again", words, suspended(false))?;
    Ok("and resumes".to_owned())
}

/// Completes the jobs as the job controller would. The operator completes the set.
fn succeeds(operator: &mut Operator) -> Outcome<String> {
    for job in items(&operator.access.get("get jobs -n use -l jobset.sigs.k8s.io/jobset-name=first")?) {
        let name = job["metadata"]["name"].as_str().unwrap_or_default();
        let now = operator.access.get(&format!("get job {name} -n use"))?["metadata"]["creationTimestamp"].clone();
        let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now, "lastProbeTime": now, "reason": "Done"});
        let status = json!({"status": {"startTime": now, "completionTime": now, "succeeded": 1, "ready": 0,
            "uncountedTerminatedPods": {}, "completedIndexes": "0",
            "conditions": [condition("SuccessCriteriaMet"), condition("Complete")]}});
        let words = ["patch", "job", name, "-n", "use", "--subresource=status", "--type=merge", "-p"];
        operator.access.kubectl(words).arg(status.to_string()).text()?;
    }
    operator.until("the set is completed", "jobset first -n use", |object| {
        has(object, "/status/terminalState", &json!("Completed")).map_err(|failure| failure.to_string())
    })?;
    Ok("terminal state Completed".to_owned())
}
