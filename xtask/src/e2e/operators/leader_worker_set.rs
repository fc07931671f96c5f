//! LeaderWorkerSet (sigs.k8s.io/lws): defaulting and validating webhooks for its own kind and for pods.

use serde_json::{Value, json};

use crate::failure::{Outcome, ensure};

use super::installed::{Operator, has, items};
use super::managers::{Project, dry_run};
use super::{Scenario, scenario};

pub(super) const PROJECT: Project =
    Project { name: "lws", namespace: "lws-system", config: "config.lws.x-k8s.io/v1alpha1", certificates: None };

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario("install", |operator| PROJECT.install(operator)),
    scenario("webhook defaults", defaults),
    scenario("webhook denies", denies),
    scenario("dry run", runs_dry),
    scenario("controller reconciles", reconciles),
    scenario("pod webhook", pods),
    scenario("scale subresource", scales),
    scenario("webhook outage", |operator| {
        PROJECT.survives_an_outage(operator, &set("after-outage", 1, 1), "mleaderworkerset.kb.io")
    }),
];

/// A set with the fields that a user has to give.
fn set(name: &str, replicas: i64, size: i64) -> Value {
    json!({
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "namespace": "use"},
        "spec": {"replicas": replicas, "leaderWorkerTemplate": {"size": size, "workerTemplate": {
            "spec": {"containers": [{"name": "c", "image": "registry.k8s.io/pause:3.10"}]}}}},
    })
}

/// The values of the defaulting webhook, which the definition's schema does not have.
fn has_defaults(object: &Value) -> Outcome<()> {
    has(object, "/spec/leaderWorkerTemplate/restartPolicy", &json!("RecreateGroupOnPodRestart"))?;
    has(object, "/spec/networkConfig/subdomainPolicy", &json!("Shared"))?;
    has(object, "/spec/rolloutStrategy/rollingUpdateConfiguration/maxUnavailable", &json!(1))
}

fn defaults(operator: &mut Operator) -> Outcome<String> {
    let created = operator.create(&set("first", 1, 2))?;
    has_defaults(&created)?;
    // The managed fields name the user's manager for the webhook's fields as well, as on kube-apiserver.
    let managers: Vec<_> = created["metadata"]["managedFields"].as_array().into_iter().flatten().collect();
    ensure!(managers.len() <= 1, "the answer names {} managers", managers.len());
    Ok("restart policy, subdomain policy and rollout".to_owned())
}

fn denies(operator: &mut Operator) -> Outcome<String> {
    let denied = "admission webhook \"vleaderworkerset.kb.io\" denied the request: ";
    let text =
        format!("{denied}spec.leaderWorkerTemplate.size: Invalid value: 0: size must be equal or greater than 1");
    operator.create_is_denied(&set("bad", 1, 0), &text)?;
    let patch = json!({"spec": {"rolloutStrategy": {"rollingUpdateConfiguration": {"maxUnavailable": "200%"}}}});
    let text = format!(
        "{denied}spec.rolloutStrategy.rollingUpdateConfiguration.maxUnavailable: Invalid value: \"200%\": must not be \
         greater than 100%"
    );
    operator.patch_is_denied("leaderworkerset first -n use --type=merge", &patch, &text)?;
    Ok("a create and a patch, with the operator's texts".to_owned())
}

fn runs_dry(operator: &mut Operator) -> Outcome<String> {
    dry_run(operator, &set("dry", 1, 1), "leaderworkersets", has_defaults)?;
    Ok("defaulted and not stored".to_owned())
}

fn reconciles(operator: &mut Operator) -> Outcome<String> {
    let found = operator.until("the leaders' StatefulSet exists", "statefulset first -n use", |object| {
        has(object, "/spec/replicas", &json!(1)).map_err(|failure| failure.to_string())?;
        has(object, "/metadata/ownerReferences/0/kind", &json!("LeaderWorkerSet"))
            .map_err(|failure| failure.to_string())?;
        Ok(object.clone())
    })?;
    has(&found, "/metadata/ownerReferences/0/blockOwnerDeletion", &json!(true))?;
    operator.until("the headless service exists", "service first -n use", |object| {
        has(object, "/spec/clusterIP", &json!("None")).map_err(|failure| failure.to_string())
    })?;
    operator.until("the status is written", "leaderworkerset first -n use", |object| {
        let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let progressing =
            conditions.iter().any(|condition| condition["type"] == "Progressing" && condition["status"] == "True");
        if progressing { Ok(()) } else { Err(format!("conditions {conditions:?}")) }
    })?;
    operator.until("an event is recorded", "events -n use", |list| {
        let found = items(list)
            .iter()
            .any(|event| event["regarding"]["name"] == "first" || event["involvedObject"]["name"] == "first");
        if found { Ok(()) } else { Err(format!("{} events", items(list).len())) }
    })?;
    Ok("StatefulSet, headless service, status, event".to_owned())
}

/// Creates the leader's pod as the StatefulSet controller would. The pod webhook labels it, and the operator creates
/// the StatefulSet of its workers.
fn pods(operator: &mut Operator) -> Outcome<String> {
    let parent = operator.access.get("get statefulset first -n use")?;
    let mut metadata = parent["spec"]["template"]["metadata"].clone();
    metadata["name"] = json!("first-0");
    metadata["namespace"] = json!("use");
    let mut spec = parent["spec"]["template"]["spec"].clone();
    spec["hostname"] = json!("first-0");
    spec["subdomain"] = parent["spec"]["serviceName"].clone();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    let created = operator.create(&pod)?;
    has(&created, "/metadata/labels/leaderworkerset.sigs.k8s.io~1group-index", &json!("0"))?;
    let key = &created["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/group-key"];
    ensure!(key.as_str().is_some_and(|key| key.len() == 40), "the group key is {key}");
    let variables = created["spec"]["containers"][0]["env"].as_array().cloned().unwrap_or_default();
    let leader = variables.iter().find(|variable| variable["name"] == "LWS_LEADER_ADDRESS");
    let address = leader.map(|variable| variable["value"].clone()).unwrap_or_default();
    ensure!(address == "first-0.first.use", "LWS_LEADER_ADDRESS is {address}");
    operator.until("the workers' StatefulSet exists", "statefulset first-0 -n use", |object| {
        has(object, "/spec/replicas", &json!(1)).map_err(|failure| failure.to_string())?;
        has(object, "/metadata/ownerReferences/0/name", &json!("first-0")).map_err(|failure| failure.to_string())
    })?;
    // A pod of nobody passes through the same webhooks unchanged.
    let other = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": "use"},
        "spec": {"containers": [{"name": "c", "image": "registry.k8s.io/pause:3.10"}]}});
    let other = operator.create(&other)?;
    ensure!(other["metadata"]["labels"].is_null(), "another pod has labels: {}", other["metadata"]["labels"]);
    Ok("labels, environment and the workers' StatefulSet".to_owned())
}

/// `kubectl scale` writes through the scale subresource; the operator follows.
fn scales(operator: &mut Operator) -> Outcome<String> {
    operator.access.kube("scale leaderworkerset first -n use --replicas=3")?;
    operator.until("the leaders' StatefulSet is scaled", "statefulset first -n use", |object| {
        has(object, "/spec/replicas", &json!(3)).map_err(|failure| failure.to_string())
    })?;
    Ok("3 replicas".to_owned())
}
