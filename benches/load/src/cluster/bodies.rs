//! The objects of the load, and the statuses of a pod's life ([`Step`]). Bodies that other benchmarks share are in
//! `benches/src/cluster.rs`.

use bytes::Bytes;
use listwatch_benches::cluster::{Node, Pod, PodCondition, PodStatus, REPLICA_SET, node_conditions, protobuf_of, time};

/// The namespace of the load.
pub(super) const NAMESPACE: &str = "load-cluster";
/// The label of the nodes of the load, as a member in JSON.
const LABEL: &str = r#""load":"cluster","#;
/// The number of endpoints in the EndpointSlice.
const ENDPOINTS: usize = 30;
/// The start of all times, in seconds from midnight.
const START_SECONDS: u64 = 8 * 3600;

/// The name of a pod.
pub(super) fn pod_name(pod: usize) -> String {
    format!("{REPLICA_SET}-{pod:05}")
}

/// The name of a node and of its lease.
pub(super) fn node_name(node: usize) -> String {
    format!("load-cluster-{node}")
}

fn host_ip(node: usize) -> String {
    format!("10.0.{}.{}", node / 250, node % 250 + 1)
}

fn pod_ip(pod: usize) -> String {
    format!("10.64.{}.{}", pod / 250 % 250, pod % 250 + 1)
}

/// A later time for each number, with microseconds.
pub(super) fn micro_time(number: usize) -> String {
    time(START_SECONDS + number as u64).replace('Z', ".123456Z")
}

/// The body of the pod that the ReplicaSet controller creates, about 1.5 KiB.
pub(super) fn pod_body(pod: usize, owner_uid: &str) -> Bytes {
    let probe = |path: &str, period: u32| {
        format!(
            r#"{{"httpGet":{{"path":"{path}","port":"http","scheme":"HTTP"}},"initialDelaySeconds":5,
            "timeoutSeconds":1,"periodSeconds":{period},"successThreshold":1,"failureThreshold":3}}"#
        )
    };
    let container = format!(
        r#""command":["/bin/shop","serve","--listen=:8080","--config=/etc/shop/config.yaml",
        "--database=postgres://database.load-cluster.svc.cluster.local:5432/shop","--log-format=json"],
        "envFrom":[{{"configMapRef":{{"name":"shop-settings"}}}},{{"secretRef":{{"name":"shop-credentials"}}}}],
        "lifecycle":{{"preStop":{{"exec":{{"command":["/bin/shop","drain","--timeout=20s"]}}}}}},
        "startupProbe":{},"livenessProbe":{},"readinessProbe":{},
        "volumeMounts":[{{"name":"config","mountPath":"/etc/shop","readOnly":true}},
        {{"name":"cache","mountPath":"/var/cache/shop"}}],"securityContext":{{"runAsNonRoot":true,
        "allowPrivilegeEscalation":false,"readOnlyRootFilesystem":true,"capabilities":{{"drop":["ALL"]}}}},"#,
        probe("/livez", 2),
        probe("/livez", 10),
        probe("/readyz", 5),
    );
    Pod {
        name: &pod_name(pod),
        owner_uid,
        metadata: r#""annotations":{
            "checksum/config":"f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b",
            "checksum/secret":"4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a",
            "prometheus.io/scrape":"true","prometheus.io/port":"8080",
            "kubectl.kubernetes.io/restartedAt":"2026-01-05T07:59:00Z"},"#,
        container: &container,
        spec: r#""volumes":[{"name":"config","configMap":{"name":"shop","defaultMode":420}},
            {"name":"cache","emptyDir":{}}],"topologySpreadConstraints":[{"maxSkew":1,
            "topologyKey":"kubernetes.io/hostname","whenUnsatisfiable":"ScheduleAnyway",
            "labelSelector":{"matchLabels":{"app":"web"}}}],
            "affinity":{"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":100,
            "podAffinityTerm":{"topologyKey":"kubernetes.io/hostname",
            "labelSelector":{"matchLabels":{"app":"web"}}}}]}},"#,
    }
    .body()
}

/// A change of a pod's status by the kubelet, in the order of the pod's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The kubelet has accepted the pod.
    Accepted,
    /// The sandbox has an address.
    SandboxReady,
    /// The container runs and is ready.
    Ready,
    /// After the deletion has begun: the container is not ready any more.
    NotReady,
    /// The container has ended.
    Succeeded,
}

impl Step {
    /// The steps of a pod's life, before and after the deletion begins. A life of four steps has no
    /// [`Step::SandboxReady`]: that change is part of the next one.
    pub(super) fn life(count: usize) -> (&'static [Step], &'static [Step]) {
        let before: &[Step] = match count {
            ..5 => &[Step::Accepted, Step::Ready],
            _ => &[Step::Accepted, Step::SandboxReady, Step::Ready],
        };
        (before, &[Step::NotReady, Step::Succeeded])
    }

    /// The kubelet's patch of the status.
    pub(super) fn patch(self, pod: usize, node: usize, uid: &str) -> Bytes {
        let time = time(START_SECONDS + self as u64);
        let container_id = format!("containerd://{pod:064x}");
        let started = r#""startedAt":"2026-01-05T08:00:02Z""#;
        let (phase, sandbox, ready, state) = match self {
            Step::Accepted | Step::SandboxReady => (
                "Pending",
                self == Step::SandboxReady,
                false,
                r#"{"waiting":{"reason":"ContainerCreating"}}"#.to_owned(),
            ),
            Step::Ready => ("Running", true, true, format!(r#"{{"running":{{{started}}}}}"#)),
            Step::NotReady => ("Running", true, false, format!(r#"{{"running":{{{started}}}}}"#)),
            Step::Succeeded => {
                let end = format!(
                    r#""exitCode":0,"reason":"Completed","finishedAt":"{time}","containerID":"{container_id}""#
                );
                ("Succeeded", false, false, format!(r#"{{"terminated":{{{started},{end}}}}}"#))
            }
        };
        let condition = |kind, is_true: bool, reason: &'static str| PodCondition {
            kind,
            status: if is_true { "True" } else { "False" },
            reason: (!is_true).then_some(reason).filter(|reason| !reason.is_empty()),
        };
        let why = if self == Step::Succeeded { "PodCompleted" } else { "ContainersNotReady" };
        let conditions = [
            condition("PodReadyToStartContainers", sandbox, ""),
            condition("Initialized", true, ""),
            condition("Ready", ready, why),
            condition("ContainersReady", ready, why),
        ];
        let pod_ip = pod_ip(pod);
        PodStatus {
            identity: ("uid", uid),
            phase,
            conditions: &conditions,
            time: &time,
            container_id: (phase != "Pending").then_some(&container_id),
            ready,
            container_state: &state,
            host_ip: &host_ip(node),
            pod_ip: (self != Step::Accepted).then_some(&pod_ip),
        }
        .patch()
    }
}

/// The event of a scheduled pod, as kube-scheduler creates it.
pub(super) fn scheduled_event(pod: usize, node: usize, uid: &str, version: &str) -> Bytes {
    let (name, node) = (pod_name(pod), node_name(node));
    let json = format!(
        r#"{{"metadata":{{"name":"{name}.{pod:016x}","namespace":"{NAMESPACE}"}},"eventTime":"{}",
        "reportingController":"default-scheduler","reportingInstance":"default-scheduler-load","action":"Binding",
        "reason":"Scheduled","regarding":{{"kind":"Pod","namespace":"{NAMESPACE}","name":"{name}","uid":"{uid}",
        "apiVersion":"v1","resourceVersion":"{version}"}},
        "note":"Successfully assigned {NAMESPACE}/{name} to {node}","type":"Normal"}}"#,
        micro_time(pod)
    );
    protobuf_of("events.k8s.io/v1", "Event", &json)
}

/// The options of the ReplicaSet controller's deletion: the grace period is that of the pod.
pub(super) fn delete_gracefully() -> Bytes {
    protobuf_of("v1", "DeleteOptions", "{}")
}

/// The options of the kubelet's deletion of an ended pod.
pub(super) fn delete_now(uid: &str) -> Bytes {
    let json = format!(r#"{{"gracePeriodSeconds":0,"preconditions":{{"uid":"{uid}"}}}}"#);
    protobuf_of("v1", "DeleteOptions", &json)
}

/// A node of about 4 KiB, as the kubelet creates it.
pub(super) fn node_body(number: usize) -> Bytes {
    let name = node_name(number);
    let system_uuid = format!("5f0c1d1e-0000-4000-8000-{number:012}");
    let status = format!(
        r#""addresses":[{{"type":"InternalIP","address":"{}"}},{{"type":"Hostname","address":"{name}"}}],
        "conditions":[{}],"daemonEndpoints":{{"kubeletEndpoint":{{"Port":10250}}}},
        "nodeInfo":{{"machineID":"{}","systemUUID":"{system_uuid}","bootID":"{system_uuid}",
        "kernelVersion":"6.12.0","osImage":"Debian GNU/Linux 13 (trixie)",
        "containerRuntimeVersion":"containerd://2.1.4","kubeletVersion":"v1.36.2",
        "kubeProxyVersion":"","operatingSystem":"linux","architecture":"amd64"}},
        "runtimeHandlers":[{{"name":"","features":{{"recursiveReadOnlyMounts":true,"userNamespaces":true}}}},
        {{"name":"runc","features":{{"recursiveReadOnlyMounts":true,"userNamespaces":true}}}}],
        "features":{{"supplementalGroupsPolicy":true}},"#,
        host_ip(number),
        node_conditions(&time(START_SECONDS)),
        system_uuid.replace('-', ""),
    );
    let labels = format!(
        r#"{LABEL}"beta.kubernetes.io/arch":"amd64","beta.kubernetes.io/os":"linux","kubernetes.io/arch":"amd64",
        "node.kubernetes.io/instance-type":"m6i.2xlarge",
        "topology.kubernetes.io/region":"eu-1","topology.kubernetes.io/zone":"eu-1a","#
    );
    let pod_cidr = format!("10.{}.{}.0/24", 64 + number / 256 % 64, number % 256);
    Node { name: &name, pod_cidr: &pod_cidr, labels: &labels, status: &status, digests: true }.body()
}

/// The heartbeat of a node's status; each number has another time.
pub(super) fn heartbeat(number: usize) -> String {
    time(START_SECONDS + 1 + number as u64)
}

/// The Deployment of the pods. `version` is empty for a new object; each number has another status.
pub(super) fn deployment_body(version: &str, number: usize) -> Bytes {
    let replicas = number % 50 + 1;
    let time = time(START_SECONDS + number as u64);
    let json = format!(
        r#"{{"metadata":{{"name":"web","namespace":"{NAMESPACE}","resourceVersion":"{version}",
        "labels":{{"app":"web"}}}},"spec":{{"replicas":50,"selector":{{"matchLabels":{{"app":"web"}}}},"template":{}}},
        "status":{{"observedGeneration":1,"replicas":{replicas},"updatedReplicas":{replicas},"readyReplicas":{replicas},
        "availableReplicas":{replicas},"conditions":[{{"type":"Available","status":"True",
        "lastUpdateTime":"{time}","lastTransitionTime":"{time}","reason":"MinimumReplicasAvailable",
        "message":"Deployment has minimum availability."}},
        {{"type":"Progressing","status":"True","lastUpdateTime":"{time}",
        "lastTransitionTime":"2026-01-05T08:00:00Z","reason":"ReplicaSetUpdated",
        "message":"ReplicaSet \"{REPLICA_SET}\" is progressing."}}]}}}}"#,
        template(r#""app":"web""#)
    );
    protobuf_of("apps/v1", "Deployment", &json)
}

/// The ReplicaSet that owns the pods, as [`deployment_body`].
pub(super) fn replica_set_body(deployment_uid: &str, version: &str, number: usize) -> Bytes {
    let replicas = number % 50 + 1;
    let labels = r#""app":"web","pod-template-hash":"5d7f9c6b8""#;
    let json = format!(
        r#"{{"metadata":{{"name":"{REPLICA_SET}","namespace":"{NAMESPACE}","resourceVersion":"{version}",
        "labels":{{{labels}}},"annotations":{{"deployment.kubernetes.io/desired-replicas":"50",
        "deployment.kubernetes.io/max-replicas":"63","deployment.kubernetes.io/revision":"1"}},
        "ownerReferences":[{{"apiVersion":"apps/v1","kind":"Deployment","name":"web","uid":"{deployment_uid}",
        "controller":true,"blockOwnerDeletion":true}}]}},
        "spec":{{"replicas":50,"selector":{{"matchLabels":{{{labels}}}}},"template":{}}},
        "status":{{"observedGeneration":1,"replicas":{replicas},"fullyLabeledReplicas":{replicas},
        "readyReplicas":{replicas},"availableReplicas":{replicas}}}}}"#,
        template(labels)
    );
    protobuf_of("apps/v1", "ReplicaSet", &json)
}

fn template(labels: &str) -> String {
    format!(
        r#"{{"metadata":{{"labels":{{{labels}}}}},"spec":{{"containers":[{{"name":"web","image":"shop:1",
        "ports":[{{"name":"http","containerPort":8080,"protocol":"TCP"}}],
        "resources":{{"requests":{{"cpu":"100m","memory":"64Mi"}}}}}}]}}}}"#
    )
}

/// The EndpointSlice of the pods. `version` is empty for a new object; each number has other endpoints.
pub(super) fn endpoint_slice_body(version: &str, number: usize) -> Bytes {
    let endpoint = |pod: usize| {
        format!(
            r#"{{"addresses":["{}"],"conditions":{{"ready":true,"serving":true,"terminating":false}},
            "nodeName":"{}","targetRef":{{"kind":"Pod","namespace":"{NAMESPACE}","name":"{}",
            "uid":"5f0c1d1e-0000-4000-8000-{pod:012}"}}}}"#,
            pod_ip(pod),
            node_name(pod % 10),
            pod_name(pod),
        )
    };
    let endpoints: Vec<String> = (number..number + ENDPOINTS).map(endpoint).collect();
    let json = format!(
        r#"{{"metadata":{{"name":"web-x2v5q","namespace":"{NAMESPACE}","resourceVersion":"{version}",
        "labels":{{"app":"web","kubernetes.io/service-name":"web",
        "endpointslice.kubernetes.io/managed-by":"endpointslice-controller.k8s.io"}}}},
        "addressType":"IPv4","endpoints":[{}],"ports":[{{"name":"http","port":8080,"protocol":"TCP"}}]}}"#,
        endpoints.join(",")
    );
    protobuf_of("discovery.k8s.io/v1", "EndpointSlice", &json)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn pod_node_and_slice_bodies_have_realistic_sizes() {
        let pod = pod_body(0, "5f0c1d1e-0000-4000-8000-000000000001");
        for (body, kib) in [(pod, 1.2..1.8), (node_body(0), 2.5..5.0), (endpoint_slice_body("7", 0), 3.0..8.0)] {
            let size = body.len() as f64 / 1024.0;
            assert!(kib.contains(&size), "{size} KiB, not {kib:?}");
        }
    }

    #[test]
    fn pod_status_patches_advance_from_pending_to_succeeded() {
        for (count, phases) in [
            (4, &["Pending", "Running", "Running", "Succeeded"][..]),
            (5, &["Pending", "Pending", "Running", "Running", "Succeeded"]),
        ] {
            let (before, after) = Step::life(count);
            assert_eq!(before.len() + after.len(), count);
            let patches: Vec<Value> = before
                .iter()
                .chain(after)
                .map(|step| serde_json::from_slice(&step.patch(3, 1, "a-uid")).unwrap())
                .collect();
            let phase: Vec<&Value> = patches.iter().map(|patch| &patch["status"]["phase"]).collect();
            assert_eq!(phase, phases);
            let ready = |patch: &&Value| patch["status"]["conditions"][2]["status"] == "True";
            assert_eq!(patches.iter().filter(ready).count(), 1, "ready once");
            assert!(patches.iter().all(|patch| patch["metadata"]["uid"] == "a-uid"));
            assert!(patches[0]["status"].get("podIP").is_none());
            let end = &patches[count - 1]["status"]["containerStatuses"][0]["state"];
            assert_eq!(end["terminated"]["exitCode"], 0);
        }
    }

    #[test]
    fn periodic_updates_differ_from_each_other() {
        for number in 0..100 {
            assert_ne!(deployment_body("", number), deployment_body("", number + 1));
            assert_ne!(replica_set_body("a-uid", "", number), replica_set_body("a-uid", "", number + 1));
            assert_ne!(endpoint_slice_body("", number), endpoint_slice_body("", number + 1));
            assert_ne!(heartbeat(number), heartbeat(number + 1));
            assert_ne!(micro_time(number), micro_time(number + 1));
        }
    }
}
