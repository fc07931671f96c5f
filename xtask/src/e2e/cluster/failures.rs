//! Scenarios in which a process dies, and the one with two API servers.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::failure::{Outcome, ensure, fail};
use crate::steps::seconds;

use super::components::{ApiServer, Program};
use super::workloads::{LIMIT, NEW, OLD, REPLICAS, settled};
use super::{
    Cluster, ScenarioResult, condition, deployment, holder, items, name, node_name, ready_nodes, rolled_out,
    running_pods,
};

/// The time limit until a standby replaces a killed leader.
const FAILOVER_LIMIT: Duration = Duration::from_secs(180);
/// The number of updated pods after which the server is killed.
const UPDATED_BEFORE_RESTART: u64 = 5;
const MANAGER_LEASE: &str = "lease kube-controller-manager -n kube-system";

/// The leading controller manager is killed, and a second one takes over.
pub(crate) fn leader_failover(cluster: &mut Cluster) -> Outcome<ScenarioResult> {
    const NAMESPACE: &str = "failover";
    cluster.namespace(NAMESPACE)?;
    cluster.apply(&deployment(NAMESPACE, "web", 2, OLD))?;
    cluster.until("two pods", LIMIT, "deployment web -n failover", |found| rolled_out(found, 2))?;
    let standby = cluster.launcher.controller_manager("standby-controller-manager", cluster.server.port)?;
    standby.wait_for_line("Attempting to acquire leader lease", FAILOVER_LIMIT)?;
    let first = cluster.until("a leader", LIMIT, MANAGER_LEASE, holder)?;
    for mut leader in cluster.managers.drain(..) {
        leader.kill();
        cluster.ended.push(leader);
    }
    cluster.managers.push(standby);
    let start = Instant::now();
    // Without a leader, the change is not processed.
    cluster.access.kube("scale deployment web -n failover --replicas=4")?;
    cluster.until("another leader", FAILOVER_LIMIT, MANAGER_LEASE, |lease| match holder(lease)? {
        same if same == first => Err("the killed one holds the lease".to_owned()),
        _ => Ok(()),
    })?;
    let took = start.elapsed();
    cluster.until("four pods", LIMIT, "deployment web -n failover", |found| rolled_out(found, 4))?;
    let state = settled(cluster, NAMESPACE, 4, "deployments,replicasets")?;
    cluster.leave(NAMESPACE)?;
    Ok(ScenarioResult { note: format!("the standby leads after {}", seconds(took)), state })
}

/// A kubelet dies: its node is tainted, its pods are evicted and replaced. Then it returns.
pub(crate) fn node_loss(cluster: &mut Cluster) -> Outcome<ScenarioResult> {
    const NAMESPACE: &str = "eviction";
    cluster.namespace(NAMESPACE)?;
    let replicas = cluster.nodes * 2;
    let mut web = deployment(NAMESPACE, "web", replicas, OLD);
    let toleration =
        |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2});
    web["spec"]["template"]["spec"]["tolerations"] =
        json!([toleration("node.kubernetes.io/unreachable"), toleration("node.kubernetes.io/not-ready")]);
    cluster.apply(&web)?;
    cluster.until("all pods", LIMIT, "deployment web -n eviction", |found| rolled_out(found, replicas))?;

    let list = cluster.get("pods -n eviction")?;
    let lost = items(&list).first().and_then(|pod| pod["spec"]["nodeName"].as_str()).unwrap_or_default().to_owned();
    let Some(at) = cluster.kubelets.iter().position(|kubelet| kubelet.name == lost) else {
        fail!("a pod is on {lost:?}, which is no hollow node");
    };
    let mut kubelet = cluster.kubelets.remove(at);
    let start = Instant::now();
    kubelet.kill();
    cluster.ended.push(kubelet);
    let taints = cluster.until("the node is unreachable", LIMIT, &format!("node {lost}"), |node| {
        condition(node, "Ready", "Unknown")?;
        let taints = node["spec"]["taints"].as_array().into_iter().flatten();
        let mut found: Vec<_> = taints.map(|taint| format!("{}:{}", taint["key"], taint["effect"])).collect();
        found.sort();
        let evicting = found.iter().any(|taint| taint.contains("unreachable") && taint.contains("NoExecute"));
        if evicting && found.len() == 2 { Ok(found) } else { Err(format!("taints {found:?}")) }
    })?;
    let noticed = start.elapsed();
    cluster.until("the pods are replaced", LIMIT, "pods -n eviction", |list| {
        let alive =
            |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null() && condition(pod, "Ready", "True").is_ok();
        let elsewhere = items(list).iter().filter(alive).filter(|pod| pod["spec"]["nodeName"] != lost.as_str()).count();
        if elsewhere == replicas {
            Ok(())
        } else {
            Err(format!("{elsewhere} of {replicas} pods are ready on other nodes"))
        }
    })?;
    let replaced = start.elapsed();

    let port = cluster.server.port;
    let kubelet = cluster.launcher.kubelet(&lost, port)?;
    cluster.kubelets.push(kubelet);
    let nodes = cluster.nodes;
    cluster.until("all nodes are ready again", LIMIT, "nodes", |list| ready_nodes(list, nodes))?;
    cluster.until("the taints are gone", LIMIT, &format!("node {lost}"), |node| match &node["spec"]["taints"] {
        Value::Null => Ok(()),
        taints => Err(format!("taints {taints}")),
    })?;
    let state = settled(cluster, NAMESPACE, replicas, "deployments,replicasets")?;
    cluster.leave(NAMESPACE)?;
    let note = format!("noticed after {}, pods replaced after {}", seconds(noticed), seconds(replaced));
    Ok(ScenarioResult { note, state: json!({"taints": taints, "objects": state}) })
}

/// The API server is killed in the middle of a rollout and comes back.
pub(crate) fn server_restart(cluster: &mut Cluster) -> Outcome<ScenarioResult> {
    const NAMESPACE: &str = "restart";
    cluster.namespace(NAMESPACE)?;
    cluster.apply(&deployment(NAMESPACE, "web", REPLICAS, OLD))?;
    let words = "deployment web -n restart";
    cluster.until("the first rollout", LIMIT, words, |found| rolled_out(found, REPLICAS))?;
    cluster.apply(&deployment(NAMESPACE, "web", REPLICAS, NEW))?;
    let updated = cluster.until("the rollout has begun", LIMIT, words, |found| {
        let updated = found["status"]["updatedReplicas"].as_u64().unwrap_or_default();
        let observed = found["status"]["observedGeneration"] == found["metadata"]["generation"];
        if observed && updated >= UPDATED_BEFORE_RESTART {
            Ok(updated)
        } else {
            Err(format!("{updated} pods are updated"))
        }
    })?;
    let took = cluster.server.kill_and_restart()?;
    cluster.until("the rollout goes on", LIMIT, words, |found| rolled_out(found, REPLICAS))?;
    let state = settled(cluster, NAMESPACE, REPLICAS, "deployments,replicasets,pods")?;
    cluster.leave(NAMESPACE)?;
    Ok(ScenarioResult {
        note: format!("killed at {updated} of {REPLICAS}, ready again after {}", seconds(took)),
        state,
    })
}

/// Two API servers on one etcd: the scheduler and every second kubelet use the second one, kube-controller-manager and
/// the other kubelets stay on the first one.
pub(crate) fn two_servers(cluster: &mut Cluster) -> Outcome<ScenarioResult> {
    const NAMESPACE: &str = "two-servers";
    let dir = cluster.access.dir.join("second");
    ensure!(!matches!(cluster.server.program(), Program::ListwatchEmbedded(_)), "the embedded store has one server");
    let second = ApiServer::start(cluster.server.program().clone(), &cluster.launcher.pki, &dir)?;
    let port = second.port;
    let there = super::access(&cluster.launcher, port, &dir)?;
    cluster.second = Some(second);

    // The scheduler and every second kubelet move to the second server.
    if let Some(mut scheduler) = cluster.scheduler.take() {
        scheduler.stop()?;
        cluster.ended.push(scheduler);
    }
    cluster.scheduler = Some(cluster.launcher.scheduler("scheduler-of-second", port)?);
    for index in (1..cluster.nodes).step_by(2) {
        let node = node_name(index);
        if let Some(at) = cluster.kubelets.iter().position(|kubelet| kubelet.name == node) {
            let mut kubelet = cluster.kubelets.remove(at);
            kubelet.kill();
            cluster.ended.push(kubelet);
        }
        cluster.kubelets.push(cluster.launcher.kubelet(&node, port)?);
    }

    cluster.namespace(NAMESPACE)?;
    let words = "deployment web -n two-servers";
    cluster.apply(&deployment(NAMESPACE, "web", REPLICAS, OLD))?;
    cluster.until("the first rollout", LIMIT, words, |found| rolled_out(found, REPLICAS))?;
    there.kubectl(["apply", "-f", "-"]).input(deployment(NAMESPACE, "web", REPLICAS, NEW).to_string()).text()?;
    cluster.until("the rollout by the other server", LIMIT, words, |found| {
        let image = &found["spec"]["template"]["spec"]["containers"][0]["image"];
        if *image == NEW { rolled_out(found, REPLICAS) } else { Err(format!("the image is {image}")) }
    })?;
    cluster.until("no pod is being deleted", LIMIT, "pods -n two-servers", |list| running_pods(list, REPLICAS))?;
    let nodes = cluster.nodes;
    cluster.until("all nodes are ready", LIMIT, "nodes", |list| ready_nodes(list, nodes))?;
    let kinds = "deployments,replicasets,pods -n two-servers";
    let versions = |list: &Value| -> Vec<String> {
        items(list).iter().map(|item| format!("{} {}", name(item), item["metadata"]["resourceVersion"])).collect()
    };
    let (here, other) = (versions(&cluster.get(kinds)?), versions(&there.get(&format!("get {kinds}"))?));
    ensure!(here == other, "the two servers show different objects: {here:?} and {other:?}");
    let state = settled(cluster, NAMESPACE, REPLICAS, "deployments,replicasets,pods")?;
    cluster.leave(NAMESPACE)?;
    Ok(ScenarioResult { note: format!("{} objects, the same on both", here.len()), state })
}
