//! The bodies of the requests of a cluster's components: objects in protobuf, and the kubelet's strategic merge
//! patches.

use std::fmt::Write as _;

use bytes::Bytes;
use listwatch_wire::protobuf;

/// The media type of the objects.
pub const PROTOBUF: &str = protobuf::MEDIA_TYPE;
/// The `Accept` header that client-go sends with each request of a component.
pub const ACCEPT: &str = "application/vnd.kubernetes.protobuf,application/json";
/// The media type of the patches.
pub const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";
/// The name of the ReplicaSet that owns the pods.
pub const REPLICA_SET: &str = "web-5d7f9c6b8";

/// Encodes a JSON object as a protobuf body.
///
/// # Panics
/// If the JSON is not an object of this kind.
pub fn protobuf_of(api_version: &str, kind: &str, json: &str) -> Bytes {
    protobuf::encode(api_version, kind, json.as_bytes()).expect("a protobuf body").into()
}

/// Formats a time of 2026-01-05, in seconds from midnight.
pub fn time(seconds: u64) -> String {
    format!("2026-01-05T{:02}:{:02}:{:02}Z", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}

/// A pod as the ReplicaSet controller creates it. `metadata`, `container` and `spec` are further members in JSON, each
/// with a comma at its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pod<'a> {
    /// The name of the pod.
    pub name: &'a str,
    /// The uid of the ReplicaSet.
    pub owner_uid: &'a str,
    /// Further members of the metadata.
    pub metadata: &'a str,
    /// Further members of the container.
    pub container: &'a str,
    /// Further members of the spec.
    pub spec: &'a str,
}

impl Pod<'_> {
    /// The pod in protobuf.
    pub fn body(&self) -> Bytes {
        let Pod { name, owner_uid, metadata, container, spec } = self;
        let env: Vec<String> = (0..4).map(|at| format!(r#"{{"name":"SETTING_{at}","value":"value-{at}"}}"#)).collect();
        let json = format!(
            r#"{{"metadata":{{"name":"{name}","generateName":"{REPLICA_SET}-",{metadata}
            "labels":{{"app":"web","pod-template-hash":"5d7f9c6b8"}},
            "ownerReferences":[{{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"{REPLICA_SET}",
            "uid":"{owner_uid}","controller":true,"blockOwnerDeletion":true}}]}},
            "spec":{{"containers":[{{"name":"web","image":"shop:1","env":[{}],{container}
            "ports":[{{"name":"http","containerPort":8080,"protocol":"TCP"}}],
            "resources":{{"requests":{{"cpu":"100m","memory":"64Mi"}}}},
            "terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File",
            "imagePullPolicy":"IfNotPresent"}}],{spec}"restartPolicy":"Always","terminationGracePeriodSeconds":30,
            "dnsPolicy":"ClusterFirst","securityContext":{{}},"schedulerName":"default-scheduler"}}}}"#,
            env.join(",")
        );
        protobuf_of("v1", "Pod", &json)
    }
}

/// The Binding of a pod to a node, as the scheduler creates it.
pub fn binding(namespace: &str, pod: &str, node: &str) -> Bytes {
    let json = format!(
        r#"{{"metadata":{{"name":"{pod}","namespace":"{namespace}"}},"target":{{"kind":"Node","name":"{node}"}}}}"#
    );
    protobuf_of("v1", "Binding", &json)
}

/// A condition of a pod, and the reason for which it is not true.
#[derive(Clone, Copy, Debug)]
pub struct PodCondition {
    /// The type of the condition.
    pub kind: &'static str,
    /// `True` or `False`.
    pub status: &'static str,
    /// `None` for a true condition.
    pub reason: Option<&'static str>,
}

/// A change of a pod's status, as the kubelet sends it.
#[derive(Clone, Copy, Debug)]
pub struct PodStatus<'a> {
    /// The member of the metadata that identifies the pod, and its value.
    pub identity: (&'a str, &'a str),
    /// The phase.
    pub phase: &'a str,
    /// The changed conditions.
    pub conditions: &'a [PodCondition],
    /// The time of the change.
    pub time: &'a str,
    /// The id of the container; `None` before the runtime has created the container.
    pub container_id: Option<&'a str>,
    /// True if the container has started and is ready.
    pub ready: bool,
    /// The state of the container in JSON.
    pub container_state: &'a str,
    /// The address of the node.
    pub host_ip: &'a str,
    /// The address of the pod; `None` before the pod's sandbox exists.
    pub pod_ip: Option<&'a str>,
}

impl PodStatus<'_> {
    /// The strategic merge patch: a merge of lists by key, with the order of the conditions.
    pub fn patch(&self) -> Bytes {
        let PodStatus { identity: (member, identity), phase, time, ready, container_state, host_ip, .. } = self;
        let conditions: Vec<String> = self.conditions.iter().map(|condition| pod_condition(condition, time)).collect();
        let container_id = self.container_id.unwrap_or_default();
        let pod_ip = self.pod_ip.map_or(String::new(), |ip| format!(r#""podIP":"{ip}","podIPs":[{{"ip":"{ip}"}}],"#));
        format!(
            r#"{{"metadata":{{"{member}":"{identity}"}},"status":{{
            "$setElementOrder/conditions":[{{"type":"PodReadyToStartContainers"}},{{"type":"Initialized"}},
            {{"type":"Ready"}},{{"type":"ContainersReady"}},{{"type":"PodScheduled"}}],"conditions":[{}],
            "containerStatuses":[{{"containerID":"{container_id}","image":"shop:1","imageID":"fake://shop",
            "lastState":{{}},"name":"web","ready":{ready},"restartCount":0,"started":{ready},
            "state":{container_state}}}],"hostIP":"{host_ip}","hostIPs":[{{"ip":"{host_ip}"}}],"phase":"{phase}",
            {pod_ip}"startTime":"2026-01-05T08:00:00Z"}}}}"#,
            conditions.join(",")
        )
        .into()
    }
}

fn pod_condition(condition: &PodCondition, time: &str) -> String {
    let PodCondition { kind, status, reason } = condition;
    let mut json = format!(r#"{{"lastProbeTime":null,"lastTransitionTime":"{time}","#);
    if let Some(reason) = reason {
        let _ = write!(json, r#""message":"containers with unready status: [web]","reason":"{reason}","#);
    }
    let _ = write!(json, r#""observedGeneration":1,"status":"{status}","type":"{kind}"}}"#);
    json
}

/// A lease as its holder writes it. The holder has the name of the lease.
#[derive(Clone, Copy, Debug)]
pub struct Lease<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// The name of the lease and of the holder.
    pub name: &'a str,
    /// The uid of the node that owns the lease; `None` for a lease of a leader election.
    pub node_uid: Option<&'a str>,
    /// The time of the renewal.
    pub renew_time: &'a str,
    /// The resource version that is replaced; empty for a new lease.
    pub version: &'a str,
}

impl Lease<'_> {
    /// The lease in protobuf.
    pub fn body(&self) -> Bytes {
        let Lease { namespace, name, node_uid, renew_time, version } = self;
        let owner = node_uid.map_or(String::new(), |uid| {
            format!(r#","ownerReferences":[{{"apiVersion":"v1","kind":"Node","name":"{name}","uid":"{uid}"}}]"#)
        });
        let json = format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}","resourceVersion":"{version}"{owner}}},
            "spec":{{"holderIdentity":"{name}","leaseDurationSeconds":40,"renewTime":"{renew_time}"}}}}"#
        );
        protobuf_of("coordination.k8s.io/v1", "Lease", &json)
    }
}

/// A node with 20 images, as the kubelet creates it. `labels` and `status` are further members in JSON, each with a
/// comma at its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Node<'a> {
    /// The name of the node.
    pub name: &'a str,
    /// The addresses of the node's pods.
    pub pod_cidr: &'a str,
    /// Further labels.
    pub labels: &'a str,
    /// Further members of the status.
    pub status: &'a str,
    /// Whether each image has a second name, with its digest.
    pub digests: bool,
}

impl Node<'_> {
    /// The node in protobuf.
    pub fn body(&self) -> Bytes {
        let Node { name, pod_cidr, labels, status, digests } = self;
        let digest = |n: u32| format!(r#""registry.example.com/image-{n}@sha256:{n:064x}","#);
        let image = |n: u32| {
            let digest = if *digests { digest(n) } else { String::new() };
            format!(r#"{{"names":[{digest}"registry.example.com/image-{n}:1"],"sizeBytes":1{n:02}000000}}"#)
        };
        let images: Vec<String> = (0..20).map(image).collect();
        let json = format!(
            r#"{{"metadata":{{"name":"{name}",
            "labels":{{{labels}"kubernetes.io/hostname":"{name}","kubernetes.io/os":"linux"}}}},
            "spec":{{"podCIDR":"{pod_cidr}","podCIDRs":["{pod_cidr}"]}},
            "status":{{{status}"capacity":{{"cpu":"8","memory":"32Gi","pods":"110"}},
            "allocatable":{{"cpu":"8","memory":"32Gi","pods":"110"}},"images":[{}]}}}}"#,
            images.join(",")
        );
        protobuf_of("v1", "Node", &json)
    }
}

/// The conditions of a ready node in JSON, with the time of the heartbeat.
pub fn node_conditions(heartbeat: &str) -> String {
    let condition = |kind: &str, status: &str, reason: &str| {
        format!(
            r#"{{"lastHeartbeatTime":"{heartbeat}","lastTransitionTime":"2026-01-05T00:00:00Z",
            "message":"kubelet says so","reason":"{reason}","status":"{status}","type":"{kind}"}}"#
        )
    };
    [
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID"),
        condition("Ready", "True", "KubeletReady"),
    ]
    .join(",")
}

/// The strategic merge patch of a heartbeat in a node's status, as the kubelet sends it.
pub fn node_status_patch(heartbeat: &str) -> Bytes {
    format!(
        r#"{{"status":{{"$setElementOrder/conditions":[{{"type":"MemoryPressure"}},{{"type":"DiskPressure"}},
        {{"type":"PIDPressure"}},{{"type":"Ready"}}],"conditions":[{}]}}}}"#,
        node_conditions(heartbeat)
    )
    .into()
}
