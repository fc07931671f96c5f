//! The table of defaults itself; see [`super`] for how it is read and where it comes from.

use serde_json::{Map, Value, json};

use super::Default::{Do, Each, Empty, Flag, From, If, In, Number, Positive, Text};
use super::pod_spec::PORT;
use super::volume::{AZURE_DISK, CLAIM_SPEC, HOST_PATH, ISCSI, RBD, SCALE_IO};
use super::{Defaults, NULL, missing};

// The network.

pub(crate) static SERVICE_PORT: Defaults = Defaults(&[
    ("protocol", Text("TCP")),
    ("targetPort", From(|port| port.get("port").cloned())),
    ("targetPort", Do(target_of_zero)),
]);

/// A target of zero is as good as none.
fn target_of_zero(port: &mut Map<String, Value>) {
    if port.get("targetPort") == Some(&json!(0))
        && let Some(number) = port.get("port").cloned()
    {
        port.insert("targetPort".to_owned(), number);
    }
}

pub(crate) static SERVICE_SPEC: Defaults = Defaults(&[
    ("ports", Each(&SERVICE_PORT)),
    ("type", Text("ClusterIP")),
    ("sessionAffinity", Text("None")),
    ("sessionAffinityConfig", Do(session_affinity)),
    ("externalTrafficPolicy", From(|spec| reachable_from_outside(spec).then(|| json!("Cluster")))),
    ("internalTrafficPolicy", From(|spec| (!is_type(spec, "ExternalName")).then(|| json!("Cluster")))),
    ("allocateLoadBalancerNodePorts", From(|spec| is_type(spec, "LoadBalancer").then(|| json!(true)))),
]);
pub(crate) static SERVICE: Defaults = Defaults(&[("spec", In(&SERVICE_SPEC)), ("status", Do(address_modes))]);

/// An address of a load balancer is a virtual one unless its status says otherwise.
fn address_modes(service: &mut Map<String, Value>) {
    if service.get("spec").and_then(|spec| spec.get("type")) != Some(&json!("LoadBalancer")) {
        return;
    }
    let points =
        service.get_mut("status").and_then(|status| status.pointer_mut("/loadBalancer/ingress")?.as_array_mut());
    for point in points.into_iter().flatten().filter_map(Value::as_object_mut) {
        if !missing(point, "ip") && !point.contains_key("ipMode") {
            point.insert("ipMode".to_owned(), json!("VIP"));
        }
    }
}

fn is_type(spec: &Map<String, Value>, name: &str) -> bool {
    spec.get("type").and_then(Value::as_str) == Some(name)
}

fn reachable_from_outside(spec: &Map<String, Value>) -> bool {
    let external = spec.get("externalIPs").and_then(Value::as_array).is_some_and(|ips| !ips.is_empty());
    is_type(spec, "NodePort") || is_type(spec, "LoadBalancer") || (is_type(spec, "ClusterIP") && external)
}

/// Sticky sessions last three hours.
fn session_affinity(spec: &mut Map<String, Value>) {
    match spec.get("sessionAffinity").and_then(Value::as_str) {
        Some("None") => {
            spec.shift_remove("sessionAffinityConfig");
        }
        Some("ClientIP") => {
            let timeout = spec.get("sessionAffinityConfig").and_then(|c| c.pointer("/clientIP/timeoutSeconds"));
            if timeout.is_none_or(Value::is_null) {
                spec.insert("sessionAffinityConfig".to_owned(), json!({"clientIP": {"timeoutSeconds": 10800}}));
            }
        }
        _ => {}
    }
}

pub(crate) static POLICY_RULE: Defaults = Defaults(&[("ports", Each(&PORT))]);
pub(crate) static NETWORK_POLICY_SPEC: Defaults = Defaults(&[
    ("ingress", Each(&POLICY_RULE)),
    ("egress", Each(&POLICY_RULE)),
    (
        "policyTypes",
        From(|spec| {
            let egress = spec.get("egress").and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
            Some(if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) })
        }),
    ),
]);
pub(crate) static NETWORK_POLICY: Defaults = Defaults(&[("spec", In(&NETWORK_POLICY_SPEC))]);
pub(crate) static CLASS_PARAMETERS: Defaults = Defaults(&[("scope", Text("Cluster"))]);
pub(crate) static INGRESS_CLASS_SPEC: Defaults = Defaults(&[("parameters", If(&CLASS_PARAMETERS))]);
pub(crate) static INGRESS_CLASS: Defaults = Defaults(&[("spec", If(&INGRESS_CLASS_SPEC))]);

// Storage.

pub(crate) static PERSISTENT_VOLUME_SPEC: Defaults = Defaults(&[
    ("persistentVolumeReclaimPolicy", Text("Retain")),
    ("volumeMode", Text("Filesystem")),
    ("hostPath", If(&HOST_PATH)),
    ("iscsi", If(&ISCSI)),
    ("rbd", If(&RBD)),
    ("azureDisk", If(&AZURE_DISK)),
    ("scaleIO", If(&SCALE_IO)),
]);
pub(crate) static PERSISTENT_VOLUME: Defaults = Defaults(&[("spec", In(&PERSISTENT_VOLUME_SPEC))]);
pub(crate) static PERSISTENT_VOLUME_CLAIM: Defaults = Defaults(&[("spec", In(&CLAIM_SPEC))]);

pub(crate) static STORAGE_CLASS: Defaults =
    Defaults(&[("reclaimPolicy", Text("Delete")), ("volumeBindingMode", Text("Immediate"))]);
pub(crate) static CSI_DRIVER_SPEC: Defaults = Defaults(&[
    ("attachRequired", Flag(true)),
    ("podInfoOnMount", Flag(false)),
    ("volumeLifecycleModes", From(|_| Some(json!(["Persistent"])))),
    ("storageCapacity", Flag(false)),
    ("fsGroupPolicy", Text("ReadWriteOnceWithFSType")),
    ("requiresRepublish", Flag(false)),
    ("seLinuxMount", Flag(false)),
]);
pub(crate) static CSI_DRIVER: Defaults = Defaults(&[("spec", In(&CSI_DRIVER_SPEC))]);

// Access, scheduling, scaling, extension.

pub(crate) static CSI_NODE_DRIVER: Defaults = Defaults(&[("topologyKeys", NULL)]);
pub(crate) static CSI_NODE_SPEC: Defaults = Defaults(&[("drivers", Each(&CSI_NODE_DRIVER))]);
pub(crate) static CSI_NODE: Defaults = Defaults(&[("spec", If(&CSI_NODE_SPEC))]);
pub(crate) static HORIZONTAL_POD_AUTOSCALER_SPEC: Defaults = Defaults(&[
    ("minReplicas", Number(1)),
    (
        "metrics",
        From(|_| {
            Some(json!([{"type": "Resource", "resource":
                {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]))
        }),
    ),
    ("behavior", If(&BEHAVIOR)),
]);
pub(crate) static BEHAVIOR: Defaults = Defaults(&[("scaleUp", In(&SCALE_UP)), ("scaleDown", In(&SCALE_DOWN))]);
pub(crate) static SCALE_UP: Defaults = Defaults(&[
    ("stabilizationWindowSeconds", Number(0)),
    ("selectPolicy", Text("Max")),
    (
        "policies",
        From(|_| {
            Some(json!([{"type": "Pods", "value": 4, "periodSeconds": 15},
                {"type": "Percent", "value": 100, "periodSeconds": 15}]))
        }),
    ),
]);
pub(crate) static SCALE_DOWN: Defaults = Defaults(&[
    ("selectPolicy", Text("Max")),
    ("policies", From(|_| Some(json!([{"type": "Percent", "value": 100, "periodSeconds": 15}])))),
]);
pub(crate) static HORIZONTAL_POD_AUTOSCALER: Defaults = Defaults(&[("spec", In(&HORIZONTAL_POD_AUTOSCALER_SPEC))]);

pub(crate) static SERVICE_REFERENCE: Defaults = Defaults(&[("port", Number(443))]);
pub(crate) static CLIENT_CONFIG: Defaults = Defaults(&[("service", If(&SERVICE_REFERENCE))]);
pub(crate) static RULE: Defaults = Defaults(&[("scope", Text("*"))]);
pub(crate) static WEBHOOK: Defaults = Defaults(&[
    ("clientConfig", If(&CLIENT_CONFIG)),
    ("rules", Each(&RULE)),
    ("failurePolicy", Text("Fail")),
    ("matchPolicy", Text("Equivalent")),
    ("namespaceSelector", Empty),
    ("objectSelector", Empty),
    ("timeoutSeconds", Number(10)),
]);
pub(crate) static REINVOCATION: Defaults = Defaults(&[("reinvocationPolicy", Text("Never"))]);
pub(crate) static VALIDATING_WEBHOOKS: Defaults = Defaults(&[("webhooks", Each(&WEBHOOK))]);
pub(crate) static MUTATING_WEBHOOKS: Defaults =
    Defaults(&[("webhooks", Each(&WEBHOOK)), ("webhooks", Each(&REINVOCATION))]);

pub(crate) static MATCH: Defaults = Defaults(&[
    ("matchPolicy", Text("Equivalent")),
    ("namespaceSelector", Empty),
    ("objectSelector", Empty),
    ("resourceRules", Each(&RULE)),
    ("excludeResourceRules", Each(&RULE)),
]);
pub(crate) static POLICY_SPEC: Defaults =
    Defaults(&[("failurePolicy", Text("Fail")), ("matchConstraints", If(&MATCH))]);
pub(crate) static ADMISSION_POLICY: Defaults = Defaults(&[("spec", In(&POLICY_SPEC))]);
pub(crate) static POLICY_BINDING_SPEC: Defaults = Defaults(&[("matchResources", If(&MATCH))]);
pub(crate) static POLICY_BINDING: Defaults = Defaults(&[("spec", If(&POLICY_BINDING_SPEC))]);
pub(crate) static API_SERVICE_SPEC: Defaults = Defaults(&[("service", If(&SERVICE_REFERENCE))]);
pub(crate) static API_SERVICE: Defaults = Defaults(&[("spec", If(&API_SERVICE_SPEC))]);

pub(crate) static DEVICE_REQUEST: Defaults = Defaults(&[
    ("allocationMode", Text("ExactCount")),
    ("count", Do(at_least_one)),
    ("tolerations", Each(&DEVICE_TOLERATION)),
]);
pub(crate) static DEVICE_TOLERATION: Defaults = Defaults(&[("operator", Text("Equal"))]);

/// A request for an exact number of devices is one for one at least.
fn at_least_one(request: &mut Map<String, Value>) {
    let none = request.get("count").is_none_or(|count| count.as_i64() == Some(0));
    if none && request.get("allocationMode") == Some(&json!("ExactCount")) {
        request.insert("count".to_owned(), json!(1));
    }
}

pub(crate) static REQUEST: Defaults =
    Defaults(&[("exactly", If(&DEVICE_REQUEST)), ("firstAvailable", Each(&DEVICE_REQUEST))]);
pub(crate) static DEVICES: Defaults = Defaults(&[("requests", Each(&REQUEST))]);
pub(crate) static CLAIM_OF_DEVICES_SPEC: Defaults = Defaults(&[("devices", In(&DEVICES))]);
pub(crate) static RESOURCE_CLAIM: Defaults = Defaults(&[("spec", If(&CLAIM_OF_DEVICES_SPEC))]);
pub(crate) static CLAIM_OF_DEVICES: Defaults = Defaults(&[("metadata", Empty), ("spec", If(&CLAIM_OF_DEVICES_SPEC))]);
pub(crate) static RESOURCE_CLAIM_TEMPLATE: Defaults = Defaults(&[("spec", If(&CLAIM_OF_DEVICES))]);
pub(crate) static POOL: Defaults = Defaults(&[("generation", Number(0))]);
pub(crate) static RESOURCE_SLICE_SPEC: Defaults = Defaults(&[("pool", If(&POOL))]);
pub(crate) static RESOURCE_SLICE: Defaults = Defaults(&[("spec", If(&RESOURCE_SLICE_SPEC))]);

pub(crate) static FLOW_SCHEMA_SPEC: Defaults = Defaults(&[("matchingPrecedence", Positive(1000))]);
pub(crate) static FLOW_SCHEMA: Defaults = Defaults(&[("spec", In(&FLOW_SCHEMA_SPEC))]);
pub(crate) static QUEUING: Defaults =
    Defaults(&[("queues", Positive(64)), ("handSize", Positive(8)), ("queueLengthLimit", Positive(50))]);
pub(crate) static LIMIT_RESPONSE: Defaults = Defaults(&[("queuing", If(&QUEUING))]);
pub(crate) static LIMITED: Defaults = Defaults(&[
    ("nominalConcurrencyShares", Number(30)),
    ("lendablePercent", Number(0)),
    ("limitResponse", If(&LIMIT_RESPONSE)),
]);
pub(crate) static EXEMPT: Defaults =
    Defaults(&[("nominalConcurrencyShares", Number(0)), ("lendablePercent", Number(0))]);
pub(crate) static PRIORITY_LEVEL_SPEC: Defaults = Defaults(&[("limited", If(&LIMITED)), ("exempt", If(&EXEMPT))]);
pub(crate) static PRIORITY_LEVEL: Defaults = Defaults(&[("spec", If(&PRIORITY_LEVEL_SPEC))]);
