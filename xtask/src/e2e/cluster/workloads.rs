//! Scenarios of the workload controllers. Hollow kubelets start containers that never end, so the pods of Jobs get
//! their final phase through the status subresource.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::failure::{Outcome, ensure};
use crate::steps::seconds;

use super::metrics::MetricsServer;
use super::{Cluster, ScenarioResult, condition, deployment, items, name, rolled_out, running_pods, template};

/// The time limit until a workload reaches its state.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);
/// The number of pods of the Deployment that is rolled out.
pub(crate) const REPLICAS: usize = 20;
pub(crate) const OLD: &str = "registry.example/app:1";
pub(crate) const NEW: &str = "registry.example/app:2";

/// A Deployment of 20 replicas changes its image.
pub(crate) fn rolling_update(cluster: &mut Cluster) -> Outcome<ScenarioResult> {
    const NAMESPACE: &str = "rolling";
    cluster.namespace(NAMESPACE)?;
    cluster.apply(&deployment(NAMESPACE, "web", REPLICAS, OLD))?;
    let words = "deployment web -n rolling";
    cluster.until("the first rollout", LIMIT, words, |found| rolled_out(found, REPLICAS))?;
    let start = Instant::now();
    cluster.apply(&deployment(NAMESPACE, "web", REPLICAS, NEW))?;
    cluster.until("the rolling update", LIMIT, words, |found| rolled_out(found, REPLICAS))?;
    let took = start.elapsed();
    let state = settled(cluster, NAMESPACE, REPLICAS, "deployments,replicasets,pods")?;
    let sizes = |wanted: usize| items_of(&state).iter().filter(|item| item["spec"]["replicas"] == wanted).count();
    ensure!(sizes(0) == 1, "the old ReplicaSet has pods: {state}");
    cluster.leave(NAMESPACE)?;
    Ok(ScenarioResult { note: format!("{REPLICAS} replicas updated in {}", seconds(took)), state })
}

/// A Job of six pods, two at a time.
pub(crate) fn job(cluster: &mut Cluster) -> Outcome<ScenarioResult> {
    const NAMESPACE: &str = "jobs";
    cluster.namespace(NAMESPACE)?;
    cluster.apply(&json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "import", "namespace": NAMESPACE},
        "spec": {"completions": 6, "parallelism": 2, "template": job_template()},
    }))?;
    complete(cluster, NAMESPACE, "job import -n jobs")?;
    let list = cluster.get("pods -n jobs")?;
    let held = items(&list).iter().filter(|pod| pod["metadata"]["finalizers"].is_array()).count();
    ensure!(held == 0, "{held} pods of the finished Job keep a finalizer");
    let phases = count_phases(&list);
    let jobs = cluster.state(NAMESPACE, "jobs")?;
    cluster.leave(NAMESPACE)?;
    Ok(ScenarioResult { note: "6 pods succeeded".to_owned(), state: json!({"jobs": jobs, "phases": phases}) })
}

/// A CronJob creates its first Job at the next full minute.
pub(crate) fn cron_job(cluster: &mut Cluster) -> Outcome<ScenarioResult> {
    const NAMESPACE: &str = "cron";
    cluster.namespace(NAMESPACE)?;
    let cron = |suspend: bool| {
        json!({
            "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "tick", "namespace": NAMESPACE},
            "spec": {"schedule": "* * * * *", "concurrencyPolicy": "Forbid", "suspend": suspend,
                "jobTemplate": {"spec": {"template": job_template()}}},
        })
    };
    cluster.apply(&cron(false))?;
    let created = cluster.until("the first Job", LIMIT, "jobs -n cron", |list| match items(list) {
        [job, ..] => Ok(name(job)),
        [] => Err("no Job".to_owned()),
    })?;
    // No second Job may start while the first one is checked.
    cluster.apply(&cron(true))?;
    complete(cluster, NAMESPACE, &format!("job {created} -n cron"))?;
    cluster.until("the CronJob notes the success", LIMIT, "cronjob tick -n cron", |cron| {
        let active = cron["status"]["active"].is_null();
        let done = cron["status"]["lastSuccessfulTime"].is_string();
        if active && done { Ok(()) } else { Err(format!("active none: {active}, success noted: {done}")) }
    })?;
    let state = cluster.state(NAMESPACE, "cronjobs,jobs")?;
    cluster.leave(NAMESPACE)?;
    Ok(ScenarioResult { note: format!("{created} ran"), state })
}

/// A StatefulSet starts its pods one after the other, and removes the last ones first.
pub(crate) fn stateful_set(cluster: &mut Cluster) -> Outcome<ScenarioResult> {
    const NAMESPACE: &str = "stateful";
    cluster.namespace(NAMESPACE)?;
    cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db", "namespace": NAMESPACE},
            "spec": {"clusterIP": "None", "selector": {"app": "db"}, "ports": [{"port": 5432}]}},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db", "namespace": NAMESPACE},
            "spec": {"replicas": 3, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
                "template": template("db", OLD)}},
    ]}))?;
    cluster.until("three pods are ready", LIMIT, "statefulset db -n stateful", |set| {
        let ready = &set["status"]["readyReplicas"];
        if *ready == 3 { Ok(()) } else { Err(format!("{ready} pods are ready")) }
    })?;
    let pods = cluster.get("pods -n stateful")?;
    let mut pods: Vec<_> = items(&pods).to_vec();
    pods.sort_by_key(name);
    for pair in pods.windows(2) {
        let ready =
            pair[0]["status"]["conditions"].as_array().and_then(|all| all.iter().find(|one| one["type"] == "Ready"));
        let ready = ready.and_then(|ready| ready["lastTransitionTime"].as_str()).unwrap_or_default();
        let created = pair[1]["metadata"]["creationTimestamp"].as_str().unwrap_or_default();
        // Times of one format compare as text.
        ensure!(
            !ready.is_empty() && ready <= created,
            "{} is older than the readiness of {}",
            name(&pair[1]),
            name(&pair[0])
        );
    }
    cluster.access.kube("scale statefulset db -n stateful --replicas=1")?;
    let left = cluster.until("one pod is left", LIMIT, "pods -n stateful", |list| running_pods(list, 1))?;
    ensure!(left == ["db-0"], "scaling to one leaves {left:?}");
    cluster.until("the set counts one pod", LIMIT, "statefulset db -n stateful", |set| {
        let counts = (&set["status"]["replicas"], &set["status"]["availableReplicas"]);
        if *counts.0 == 1 && *counts.1 == 1 { Ok(()) } else { Err(format!("status counts {counts:?}")) }
    })?;
    let state = cluster.state(NAMESPACE, "statefulsets,controllerrevisions,pods")?;
    cluster.leave(NAMESPACE)?;
    Ok(ScenarioResult { note: "3 pods in order, then db-0 alone".to_owned(), state })
}

/// A DaemonSet has one pod on each node.
pub(crate) fn daemon_set(cluster: &mut Cluster) -> Outcome<ScenarioResult> {
    const NAMESPACE: &str = "daemons";
    cluster.namespace(NAMESPACE)?;
    cluster.apply(&json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent", "namespace": NAMESPACE},
        "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": template("agent", OLD)},
    }))?;
    let nodes = cluster.nodes;
    cluster.until("a pod on each node", LIMIT, "daemonset agent -n daemons", |set| {
        let available = &set["status"]["numberAvailable"];
        if *available == nodes { Ok(()) } else { Err(format!("{available} of {nodes} are available")) }
    })?;
    let list = cluster.get("pods -n daemons")?;
    let mut on: Vec<_> = items(&list).iter().map(|pod| pod["spec"]["nodeName"].to_string()).collect();
    on.sort();
    on.dedup();
    ensure!(on.len() == nodes, "the pods are on {on:?}");
    let state = settled_without_affinity(cluster, NAMESPACE, nodes)?;
    cluster.leave(NAMESPACE)?;
    Ok(ScenarioResult { note: format!("{nodes} nodes, one pod each"), state })
}

/// EndpointSlices follow the pods of a Service, and are deleted with the Service.
pub(crate) fn service(cluster: &mut Cluster) -> Outcome<ScenarioResult> {
    const NAMESPACE: &str = "services";
    cluster.namespace(NAMESPACE)?;
    cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": [
        deployment(NAMESPACE, "web", 3, OLD),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": NAMESPACE},
            "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}},
    ]}))?;
    let words = "endpointslices -n services -l kubernetes.io/service-name=web";
    let ready = |list: &Value, wanted: usize| {
        let endpoints = items(list).iter().flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
        let all: Vec<_> = endpoints.collect();
        let ready = all.iter().filter(|endpoint| endpoint["conditions"]["ready"] == true).count();
        if ready == wanted && all.len() == wanted {
            Ok(())
        } else {
            Err(format!("{ready} of {} endpoints are ready; wanted {wanted}", all.len()))
        }
    };
    cluster.until("three ready endpoints", LIMIT, words, |list| ready(list, 3))?;
    cluster.access.kube("scale deployment web -n services --replicas=1")?;
    cluster.until("one endpoint", LIMIT, words, |list| ready(list, 1))?;
    let slices = cluster.get(words)?;
    let port = &items(&slices)[0]["ports"][0];
    ensure!(port["port"] == 8080 && port["name"] == "http", "the slice has the port {port}");
    let slices = slices_without_pods(&slices);
    let services = cluster.state(NAMESPACE, "services")?;
    cluster.access.kube("delete service web -n services")?;
    cluster.until("no slice is left", LIMIT, words, |list| match items(list) {
        [] => Ok(()),
        left => Err(format!("{} slices", left.len())),
    })?;
    cluster.leave(NAMESPACE)?;
    Ok(ScenarioResult {
        note: "3 endpoints, then 1, then none".to_owned(),
        state: json!({"services": services, "slices": slices}),
    })
}

/// An autoscaler follows the CPU usage that the scenario sets.
pub(crate) fn autoscaler(cluster: &mut Cluster) -> Outcome<ScenarioResult> {
    const NAMESPACE: &str = "scaling";
    cluster.namespace(NAMESPACE)?;
    let metrics = MetricsServer::start(cluster, NAMESPACE)?;
    let served = cluster.access.kube("get --raw /apis/metrics.k8s.io/v1beta1/namespaces/scaling/pods")?;
    ensure!(served.contains("PodMetricsList"), "the aggregated API answers {served}");
    cluster.apply(&deployment(NAMESPACE, "web", 2, OLD))?;
    cluster.until("two pods", LIMIT, "deployment web -n scaling", |found| rolled_out(found, 2))?;
    cluster.apply(&json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": NAMESPACE},
        "spec": {"minReplicas": 2, "maxReplicas": 5,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
            "metrics": [{"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 50}}}]},
    }))?;
    // Requests are 10m: 15m is three times the target, 1m a fifth of it.
    for (cpu, replicas) in [("15m", 5), ("1m", 2)] {
        cluster.until(&format!("{replicas} replicas at {cpu}"), LIMIT, "pods -n scaling", |list| {
            let names: Vec<_> = items(list).iter().map(name).collect();
            metrics.feed(&names, cpu).map_err(|failure| failure.to_string())?;
            running_pods(list, replicas)
        })?;
    }
    cluster.until("the autoscaler has seen two replicas", LIMIT, "hpa web -n scaling", |hpa| {
        condition(hpa, "ScalingActive", "True")?;
        let status = &hpa["status"];
        let seen = (
            &status["currentReplicas"],
            &status["desiredReplicas"],
            &status["currentMetrics"][0]["resource"]["current"]["averageUtilization"],
        );
        if *seen.0 == 2 && *seen.1 == 2 && *seen.2 == 10 {
            Ok(())
        } else {
            Err(format!("current, desired, utilization: {seen:?}"))
        }
    })?;
    let state = settled(cluster, NAMESPACE, 2, "hpa,deployments")?;
    metrics.remove(cluster)?;
    cluster.leave(NAMESPACE)?;
    Ok(ScenarioResult { note: "2 → 5 → 2 replicas".to_owned(), state })
}

/// Deleting a namespace deletes all its objects.
pub(crate) fn namespace_deletion(cluster: &mut Cluster) -> Outcome<ScenarioResult> {
    const NAMESPACE: &str = "doomed";
    cluster.namespace(NAMESPACE)?;
    cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": [
        deployment(NAMESPACE, "web", 5, OLD),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": NAMESPACE},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": NAMESPACE,
            "finalizers": ["e2e.example/held"]}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "password", "namespace": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot", "namespace": NAMESPACE}},
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web", "namespace": NAMESPACE},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "endless", "namespace": NAMESPACE},
            "spec": {"template": job_template()}},
    ]}))?;
    cluster.until("the pods run", LIMIT, "pods -n doomed", |list| running_pods(list, 6))?;
    cluster.leave(NAMESPACE)?;
    let held = cluster.until("only the ConfigMap is left", LIMIT, "namespace doomed", |namespace| {
        condition(namespace, "NamespaceFinalizersRemaining", "True")?;
        condition(namespace, "NamespaceContentRemaining", "True")?;
        let remaining = namespace["status"]["conditions"].as_array().into_iter().flatten();
        let text: Vec<_> = remaining.filter_map(|one| one["message"].as_str()).collect();
        let text = text.join("; ");
        if text.contains("configmaps. has 1 resource instances") && !text.contains("pods.") {
            Ok(super::state::normalize(namespace))
        } else {
            Err(text)
        }
    })?;
    cluster
        .access
        .merge_patch("/api/v1/namespaces/doomed/configmaps/settings", &json!({"metadata": {"finalizers": null}}))?;
    cluster.until("the namespace is gone", LIMIT, "namespaces", |list| {
        if items(list).iter().any(|one| name(one) == NAMESPACE) { Err("it is there".to_owned()) } else { Ok(()) }
    })?;
    let left = cluster.get("all,configmaps,secrets,serviceaccounts,endpointslices,pdb -n doomed")?;
    ensure!(
        items(&left).is_empty(),
        "left in the deleted namespace: {:?}",
        items(&left).iter().map(name).collect::<Vec<_>>()
    );
    Ok(ScenarioResult { note: "held by a finalizer, then gone with 6 pods".to_owned(), state: held })
}

/// Waits until the namespace has exactly `pods` running pods, and returns its state.
pub(crate) fn settled(cluster: &Cluster, namespace: &str, pods: usize, kinds: &str) -> Outcome<Value> {
    cluster
        .until("no pod is being deleted", LIMIT, &format!("pods -n {namespace}"), |list| running_pods(list, pods))?;
    cluster.state(namespace, kinds)
}

/// As [`settled`], for a DaemonSet: the affinity of its pods names the node.
fn settled_without_affinity(cluster: &Cluster, namespace: &str, pods: usize) -> Outcome<Value> {
    let mut state = settled(cluster, namespace, pods, "daemonsets,controllerrevisions,pods")?;
    for pod in state.as_array_mut().into_iter().flatten().filter(|item| item["kind"] == "Pod") {
        pod["spec"]["affinity"] = json!("<chosen>");
    }
    if let Some(items) = state.as_array_mut() {
        items.sort_by_cached_key(Value::to_string);
    }
    Ok(state)
}

/// EndpointSlices without names of pods and nodes, which differ between runs.
fn slices_without_pods(list: &Value) -> Value {
    let mut state = super::state::normalize_list(list);
    for slice in state.as_array_mut().into_iter().flatten() {
        for endpoint in slice["endpoints"].as_array_mut().into_iter().flatten() {
            endpoint["targetRef"]["name"] = json!("<chosen>");
        }
    }
    state
}

fn items_of(state: &Value) -> &[Value] {
    state.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn job_template() -> Value {
    let mut template = template("job", OLD);
    template["spec"]["restartPolicy"] = json!("Never");
    template
}

/// Sets the phase Succeeded of each running pod in the namespace, until the Job is complete.
fn complete(cluster: &Cluster, namespace: &str, job: &str) -> Outcome<()> {
    cluster.until("the Job is complete", LIMIT, job, |job| {
        let pods = cluster.get(&format!("pods -n {namespace}")).map_err(|failure| failure.to_string())?;
        for pod in items(&pods).iter().filter(|pod| pod["status"]["phase"] == "Running") {
            let path = format!("/api/v1/namespaces/{namespace}/pods/{}/status", name(pod));
            let ended = cluster.access.merge_patch(&path, &json!({"status": {"phase": "Succeeded"}}));
            ended.map_err(|failure| failure.to_string())?;
        }
        condition(job, "Complete", "True")
    })
}

fn count_phases(list: &Value) -> Value {
    let mut phases = std::collections::BTreeMap::<String, usize>::new();
    for pod in items(list) {
        *phases.entry(pod["status"]["phase"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
    }
    json!(phases)
}
