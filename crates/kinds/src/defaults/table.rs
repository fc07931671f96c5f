//! The table of defaults itself; see [`super`] for how it is read and where it comes from.

use serde_json::{Map, Value, json};

use super::Default::{Do, Each, Empty, Flag, From, If, In, Number, Positive, Text};
use super::{Defaults, NULL, missing};
use listwatch_validation::pod_spec::default_pod_level_resources;

// Pods and what holds their templates.

pub(crate) static HTTP_GET: Defaults = Defaults(&[("path", Text("/")), ("scheme", Text("HTTP"))]);
pub(crate) static GRPC: Defaults =
    Defaults(&[("service", From(|action| (!action.contains_key("service")).then(|| json!(""))))]);
pub(crate) static PROBE: Defaults = Defaults(&[
    ("httpGet", If(&HTTP_GET)),
    ("grpc", If(&GRPC)),
    ("timeoutSeconds", Number(1)),
    ("periodSeconds", Number(10)),
    ("successThreshold", Number(1)),
    ("failureThreshold", Number(3)),
]);
pub(crate) static HANDLER: Defaults = Defaults(&[("httpGet", If(&HTTP_GET))]);
pub(crate) static LIFECYCLE: Defaults = Defaults(&[("postStart", If(&HANDLER)), ("preStop", If(&HANDLER))]);
pub(crate) static PORT: Defaults = Defaults(&[("protocol", Text("TCP"))]);
pub(crate) static FIELD_REF: Defaults = Defaults(&[("apiVersion", Text("v1"))]);
pub(crate) static RESOURCE_REF: Defaults = Defaults(&[("divisor", Text("0"))]);
pub(crate) static WITH_FIELD_REF: Defaults =
    Defaults(&[("fieldRef", If(&FIELD_REF)), ("resourceFieldRef", If(&RESOURCE_REF))]);
pub(crate) static ENV: Defaults = Defaults(&[("valueFrom", If(&WITH_FIELD_REF))]);
pub(crate) static CONTAINER: Defaults = Defaults(&[
    ("ports", Each(&PORT)),
    ("env", Each(&ENV)),
    ("resources", Empty),
    ("livenessProbe", If(&PROBE)),
    ("readinessProbe", If(&PROBE)),
    ("startupProbe", If(&PROBE)),
    ("lifecycle", If(&LIFECYCLE)),
    ("terminationMessagePath", Text("/dev/termination-log")),
    ("terminationMessagePolicy", Text("File")),
    ("imagePullPolicy", From(|container| Some(pull_policy(container.get("image"))))),
]);

/// `rw-r--r--`, for volumes made of files.
pub(crate) static MODE: Defaults = Defaults(&[("defaultMode", Number(0o644))]);
pub(crate) static DOWNWARD_API: Defaults =
    Defaults(&[("items", Each(&WITH_FIELD_REF)), ("defaultMode", Number(0o644))]);
pub(crate) static DOWNWARD_API_PROJECTION: Defaults = Defaults(&[("items", Each(&WITH_FIELD_REF))]);
pub(crate) static TOKEN: Defaults = Defaults(&[("expirationSeconds", Number(3600))]);
pub(crate) static PROJECTION: Defaults =
    Defaults(&[("serviceAccountToken", If(&TOKEN)), ("downwardAPI", If(&DOWNWARD_API_PROJECTION))]);
pub(crate) static PROJECTED: Defaults = Defaults(&[("sources", Each(&PROJECTION)), ("defaultMode", Number(0o644))]);
pub(crate) static HOST_PATH: Defaults =
    Defaults(&[("type", From(|path| (!path.contains_key("type")).then(|| json!(""))))]);
pub(crate) static ISCSI: Defaults = Defaults(&[("iscsiInterface", Text("default"))]);
pub(crate) static CLAIM_SPEC: Defaults = Defaults(&[("volumeMode", Text("Filesystem"))]);
pub(crate) static CLAIM_TEMPLATE: Defaults = Defaults(&[("spec", If(&CLAIM_SPEC))]);
pub(crate) static EPHEMERAL: Defaults = Defaults(&[("volumeClaimTemplate", If(&CLAIM_TEMPLATE))]);
pub(crate) static IMAGE_VOLUME: Defaults =
    Defaults(&[("pullPolicy", From(|image| Some(pull_policy(image.get("reference")))))]);
pub(crate) static RBD: Defaults =
    Defaults(&[("pool", Text("rbd")), ("user", Text("admin")), ("keyring", Text("/etc/ceph/keyring"))]);
pub(crate) static AZURE_DISK: Defaults = Defaults(&[
    ("cachingMode", Text("ReadWrite")),
    ("fsType", Text("ext4")),
    ("readOnly", Flag(false)),
    ("kind", Text("Shared")),
]);
pub(crate) static SCALE_IO: Defaults = Defaults(&[("storageMode", Text("ThinProvisioned")), ("fsType", Text("xfs"))]);
pub(crate) static VOLUME: Defaults = Defaults(&[
    ("emptyDir", From(|volume| (!volume.keys().any(|name| name != "name")).then(|| json!({})))),
    ("secret", If(&MODE)),
    ("configMap", If(&MODE)),
    ("downwardAPI", If(&DOWNWARD_API)),
    ("projected", If(&PROJECTED)),
    ("hostPath", If(&HOST_PATH)),
    ("iscsi", If(&ISCSI)),
    ("rbd", If(&RBD)),
    ("azureDisk", If(&AZURE_DISK)),
    ("scaleIO", If(&SCALE_IO)),
    ("ephemeral", If(&EPHEMERAL)),
    ("image", If(&IMAGE_VOLUME)),
]);
pub(crate) static POD_SPEC: Defaults = Defaults(&[
    ("volumes", Each(&VOLUME)),
    ("initContainers", Each(&CONTAINER)),
    ("containers", Each(&CONTAINER)),
    ("ephemeralContainers", Each(&CONTAINER)),
    ("restartPolicy", Text("Always")),
    ("terminationGracePeriodSeconds", Number(30)),
    ("dnsPolicy", Text("ClusterFirst")),
    ("securityContext", Empty),
    ("schedulerName", Text("default-scheduler")),
    ("serviceAccount", Do(service_account)),
]);
pub(crate) static TEMPLATE: Defaults = Defaults(&[("metadata", Empty), ("spec", In(&POD_SPEC))]);

/// What holds for a pod itself but not for a template of pods.
pub(crate) static ONLY_PODS: Defaults = Defaults(&[
    ("containers", Each(&REQUESTS)),
    ("initContainers", Each(&REQUESTS)),
    ("hostNetwork", Do(host_ports)),
    ("tolerations", Do(tolerate_failing_nodes)),
    ("priority", From(priority)),
    ("enableServiceLinks", Flag(true)),
    ("preemptionPolicy", From(|spec| priority(spec).map(|_| json!("PreemptLowerPriority")))),
    ("resources", Do(default_pod_level_resources)),
]);

/// The priority of a pod without a class, and of the classes that every cluster has. Of others only
/// their objects know.
fn priority(spec: &Map<String, Value>) -> Option<Value> {
    match spec.get("priorityClassName").and_then(Value::as_str).unwrap_or_default() {
        "" => Some(json!(0)),
        "system-cluster-critical" => Some(json!(2_000_000_000)),
        "system-node-critical" => Some(json!(2_000_001_000)),
        _ => None,
    }
}

/// The account goes by two names.
fn service_account(spec: &mut Map<String, Value>) {
    for (from, to) in [("serviceAccountName", "serviceAccount"), ("serviceAccount", "serviceAccountName")] {
        if let Some(Value::String(name)) = spec.get(from)
            && !name.is_empty()
        {
            let name = name.clone();
            spec.insert(to.to_owned(), Value::String(name));
            return;
        }
    }
}

pub(crate) static REQUESTS: Defaults = Defaults(&[("resources", Do(requests_from_limits))]);
pub(crate) static POD: Defaults = Defaults(&[("spec", In(&POD_SPEC)), ("spec", In(&ONLY_PODS))]);
pub(crate) static POD_TEMPLATE: Defaults = Defaults(&[("template", In(&TEMPLATE))]);

pub(crate) static REPLICATION_CONTROLLER_SPEC: Defaults = Defaults(&[
    ("replicas", Number(1)),
    ("template", If(&TEMPLATE)),
    ("selector", From(|spec| spec.get("template")?.pointer("/metadata/labels").cloned())),
]);
pub(crate) static REPLICATION_CONTROLLER: Defaults =
    Defaults(&[("spec", In(&REPLICATION_CONTROLLER_SPEC)), ("metadata", Do(labels_of_template))]);

pub(crate) static ROLLING_QUARTER: Defaults = Defaults(&[("maxUnavailable", Text("25%")), ("maxSurge", Text("25%"))]);
pub(crate) static DEPLOYMENT_STRATEGY: Defaults = Defaults(&[
    ("type", Text("RollingUpdate")),
    ("rollingUpdate", From(when_rolling)),
    ("rollingUpdate", If(&ROLLING_QUARTER)),
]);
pub(crate) static DEPLOYMENT_SPEC: Defaults = Defaults(&[
    ("replicas", Number(1)),
    ("template", In(&TEMPLATE)),
    ("strategy", In(&DEPLOYMENT_STRATEGY)),
    ("revisionHistoryLimit", Number(10)),
    ("progressDeadlineSeconds", Number(600)),
]);
pub(crate) static DEPLOYMENT: Defaults = Defaults(&[("spec", In(&DEPLOYMENT_SPEC))]);

pub(crate) static REPLICA_SET_SPEC: Defaults = Defaults(&[("replicas", Number(1)), ("template", In(&TEMPLATE))]);
pub(crate) static REPLICA_SET: Defaults = Defaults(&[("spec", In(&REPLICA_SET_SPEC))]);

pub(crate) static ROLLING_ONE: Defaults = Defaults(&[("maxUnavailable", Number(1)), ("maxSurge", Number(0))]);
pub(crate) static DAEMON_SET_STRATEGY: Defaults = Defaults(&[
    ("type", Text("RollingUpdate")),
    ("rollingUpdate", From(when_rolling)),
    ("rollingUpdate", If(&ROLLING_ONE)),
]);
pub(crate) static DAEMON_SET_SPEC: Defaults = Defaults(&[
    ("template", In(&TEMPLATE)),
    ("updateStrategy", In(&DAEMON_SET_STRATEGY)),
    ("revisionHistoryLimit", Number(10)),
]);
pub(crate) static DAEMON_SET: Defaults = Defaults(&[("spec", In(&DAEMON_SET_SPEC))]);

pub(crate) static ROLLING_PARTITION: Defaults = Defaults(&[("partition", Number(0))]);
pub(crate) static STATEFUL_SET_STRATEGY: Defaults = Defaults(&[
    // Only an absent type brings the member with it; an explicit RollingUpdate may go without.
    ("rollingUpdate", From(|strategy| missing(strategy, "type").then(|| json!({})))),
    ("type", Text("RollingUpdate")),
    ("rollingUpdate", If(&ROLLING_PARTITION)),
]);
pub(crate) static RETENTION: Defaults = Defaults(&[("whenDeleted", Text("Retain")), ("whenScaled", Text("Retain"))]);
pub(crate) static CLAIM_STATUS: Defaults = Defaults(&[("phase", Text("Pending"))]);
pub(crate) static CLAIM_IN_TEMPLATE: Defaults = Defaults(&[
    ("kind", Text("PersistentVolumeClaim")),
    ("apiVersion", Text("v1")),
    ("spec", In(&CLAIM_SPEC)),
    ("status", In(&CLAIM_STATUS)),
]);
pub(crate) static ORDINALS: Defaults = Defaults(&[("start", Number(0))]);
pub(crate) static STATEFUL_SET_SPEC: Defaults = Defaults(&[
    ("serviceName", From(|_| Some(json!("")))),
    ("ordinals", If(&ORDINALS)),
    ("replicas", Number(1)),
    ("template", In(&TEMPLATE)),
    ("volumeClaimTemplates", Each(&CLAIM_IN_TEMPLATE)),
    ("podManagementPolicy", Text("OrderedReady")),
    ("updateStrategy", In(&STATEFUL_SET_STRATEGY)),
    ("revisionHistoryLimit", Number(10)),
    ("persistentVolumeClaimRetentionPolicy", In(&RETENTION)),
]);
pub(crate) static STATEFUL_SET: Defaults = Defaults(&[("spec", In(&STATEFUL_SET_SPEC))]);

pub(crate) static POD_CONDITION: Defaults = Defaults(&[("status", Text("True"))]);
pub(crate) static FAILURE_RULE: Defaults = Defaults(&[("onPodConditions", Each(&POD_CONDITION))]);
pub(crate) static FAILURE_POLICY: Defaults = Defaults(&[("rules", Each(&FAILURE_RULE))]);
pub(crate) static JOB_SPEC: Defaults = Defaults(&[
    ("podFailurePolicy", If(&FAILURE_POLICY)),
    ("completions", From(|spec| missing(spec, "parallelism").then(|| json!(1)))),
    ("parallelism", Number(1)),
    ("backoffLimit", From(|spec| Some(if missing(spec, "backoffLimitPerIndex") { json!(6) } else { json!(i32::MAX) }))),
    ("completionMode", Text("NonIndexed")),
    ("suspend", Flag(false)),
    (
        "podReplacementPolicy",
        From(|spec| Some(json!(if missing(spec, "podFailurePolicy") { "TerminatingOrFailed" } else { "Failed" }))),
    ),
    ("manualSelector", Flag(false)),
    ("template", In(&TEMPLATE)),
]);
pub(crate) static JOB: Defaults = Defaults(&[("spec", In(&JOB_SPEC)), ("metadata", Do(labels_of_template))]);
/// A job that does not exist yet keeps its choices open: only its pods are filled in.
pub(crate) static FUTURE_JOB_SPEC: Defaults =
    Defaults(&[("podFailurePolicy", If(&FAILURE_POLICY)), ("template", In(&TEMPLATE))]);
pub(crate) static JOB_TEMPLATE: Defaults = Defaults(&[("metadata", Empty), ("spec", In(&FUTURE_JOB_SPEC))]);
pub(crate) static CRON_JOB_SPEC: Defaults = Defaults(&[
    ("concurrencyPolicy", Text("Allow")),
    ("suspend", Flag(false)),
    ("jobTemplate", In(&JOB_TEMPLATE)),
    ("successfulJobsHistoryLimit", Number(3)),
    ("failedJobsHistoryLimit", Number(1)),
]);
pub(crate) static CRON_JOB: Defaults = Defaults(&[("spec", In(&CRON_JOB_SPEC))]);

fn when_rolling(strategy: &Map<String, Value>) -> Option<Value> {
    (strategy.get("type").and_then(Value::as_str) == Some("RollingUpdate")).then(|| json!({}))
}

/// `Always` for the tag `latest`, which an image without tag and digest has.
fn pull_policy(image: Option<&Value>) -> Value {
    let image = image.and_then(Value::as_str).unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    let latest = match (last.contains('@'), last.split_once(':')) {
        (true, _) => false,
        (false, Some((_, tag))) => tag == "latest",
        (false, None) => true,
    };
    json!(if latest { "Always" } else { "IfNotPresent" })
}

/// Requests that are not given are what the limits are.
fn requests_from_limits(container: &mut Map<String, Value>) {
    let Some(Value::Object(resources)) = container.get_mut("resources") else { return };
    let Some(Value::Object(limits)) = resources.get("limits") else { return };
    let limits = limits.clone();
    let requests = resources.entry("requests").or_insert_with(|| json!({}));
    if requests.is_null() {
        *requests = json!({});
    }
    if let Value::Object(requests) = requests {
        for (name, limit) in limits {
            requests.entry(name).or_insert(limit);
        }
    }
}

/// On the host's network a container's ports are the host's.
fn host_ports(spec: &mut Map<String, Value>) {
    if spec.get("hostNetwork") != Some(&Value::Bool(true)) {
        return;
    }
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        let ports = containers.filter_map(|container| container.get_mut("ports")?.as_array_mut()).flatten();
        for port in ports.filter_map(Value::as_object_mut) {
            if missing(port, "hostPort")
                && let Some(container_port) = port.get("containerPort").cloned()
            {
                port.insert("hostPort".to_owned(), container_port);
            }
        }
    }
}

/// Five minutes on a node that is failing, unless the pod says otherwise
/// (admission plugin DefaultTolerationSeconds).
fn tolerate_failing_nodes(spec: &mut Map<String, Value>) {
    let mut tolerations = match spec.get_mut("tolerations") {
        Some(Value::Array(tolerations)) => std::mem::take(tolerations),
        Some(Value::Null) | None => Vec::new(),
        Some(_) => return,
    };
    for taint in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = tolerations.iter().any(|toleration| {
            let text = |name: &str| toleration.get(name).and_then(Value::as_str).unwrap_or_default();
            matches!(text("key"), key if key == taint || key.is_empty()) && matches!(text("effect"), "NoExecute" | "")
        });
        if !tolerated {
            tolerations
                .push(json!({"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
        }
    }
    spec.insert("tolerations".to_owned(), Value::Array(tolerations));
}

/// An object without labels has those of its pods.
fn labels_of_template(object: &mut Map<String, Value>) {
    let labels = object.get("spec").and_then(|spec| spec.pointer("/template/metadata/labels")).cloned();
    let Some(labels @ Value::Object(_)) = labels else { return };
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        let none = metadata.get("labels").and_then(Value::as_object).is_none_or(Map::is_empty);
        if none {
            metadata.insert("labels".to_owned(), labels);
        }
    }
}

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
