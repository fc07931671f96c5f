//! Pod (`v1`): a group of containers on one node.
//!
//! Source: `pkg/registry/core/pod/strategy.go`, `pkg/apis/core/v1/{defaults,conversion}.go` and `printPod` of Kubernetes
//! v1.36. [`pod_spec`] validates pods; [`listwatch_pod_rules`] completes new pods and validates updates.

use std::collections::{HashMap, VecDeque};

use listwatch_json::{Map, Value, json};
use listwatch_pod_rules::quality_of_service;
use listwatch_validation::pod_spec::{self, default_pod_level_resources};
use listwatch_validation::{Errors, Object, child, items};
use time::OffsetDateTime;

use crate::defaults::Default::{Do, Each, Flag, If, In};
use crate::defaults::pod_spec::POD_SPEC;
use crate::defaults::{Defaults, missing};
use crate::{CreateContext, Field, Kind, MetadataScope, Subresource, UpdateContext, WriteScope};
use listwatch_printers::text::{NONE, holds};
use listwatch_printers::{AGE, Cell, Column, Json, NAME};
use listwatch_printers::{Printed, Printer};

pub(crate) static KIND: Kind = Kind {
    short_names: &["po"],
    generation: true,
    graceful_delete: true,
    categories: &["all"],
    fields: &[
        // Clients of early releases send the alias (`pkg/apis/core/v1/conversion.go`).
        Field { indexed: true, alias: Some("spec.host"), ..Field::new("spec.nodeName") },
        Field::with_default("spec.restartPolicy", "Always"),
        Field::with_default("spec.schedulerName", "default-scheduler"),
        Field::new("spec.serviceAccountName"),
        Field::with_default("spec.hostNetwork", "false"),
        Field::with_default("status.phase", "Pending"),
        Field::new("status.podIP"),
        Field { label: "status.podIPs", path: "status.podIPs.-", default: "", ..Field::new("status.podIPs") },
        Field::new("status.nominatedNodeName"),
    ],
    subresources: &[
        Subresource::Status,
        Subresource::Attach,
        Subresource::Binding,
        Subresource::EphemeralContainers,
        Subresource::Eviction,
        Subresource::Exec,
        Subresource::Log,
        Subresource::PortForward,
        Subresource::Proxy { options: "PodProxyOptions" },
        Subresource::Resize,
    ],
    defaults: &DEFAULTS,
    pod_spec: &["spec"],
    admission_fields: &["priority", "preemptionPolicy"],
    prepare_for_create,
    prepare_for_update,
    validate: pod_spec::validate_pod,
    validate_transition,
    status_write: WriteScope {
        metadata: MetadataScope::Without(&["ownerReferences"]),
        reset: &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]],
    },
    create_warnings: listwatch_pod_rules::app_armor_warnings,
    warnings: listwatch_kind_warnings::pod::of_pod,
    status_warnings: listwatch_kind_warnings::pod::of_pod_status,
    printer: &PRINTER,
    zero_members: r#""spec":{"containers":null},"status":{}"#,
    returns_deleted: true,
    ..Kind::namespaced("", "v1", "pods", "Pod")
};

static DEFAULTS: Defaults =
    Defaults(&[("spec", In(&POD_SPEC)), ("spec", In(&POD_ONLY_DEFAULTS)), ("status", If(&STATUS_DEFAULTS))]);

static STATUS_DEFAULTS: Defaults = Defaults(&[("podIP", Do(synchronize_pod_ips))]);

/// Defaults of the spec that apply only to pods, and not to pod templates.
static POD_ONLY_DEFAULTS: Defaults = Defaults(&[
    ("containers", Each(&REQUEST_DEFAULTS)),
    ("initContainers", Each(&REQUEST_DEFAULTS)),
    ("hostNetwork", Do(host_ports)),
    ("enableServiceLinks", Flag(true)),
    ("resources", Do(default_pod_level_resources)),
]);

static REQUEST_DEFAULTS: Defaults = Defaults(&[("resources", Do(requests_from_limits))]);

/// The string of a member; `""` if it is absent.
fn text_of<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Makes `podIP` equal to the first address of `podIPs`. If both are present and differ, `podIP` wins, because clients
/// that do not know `podIPs` change only `podIP` (`Convert_v1_PodStatus_To_core_PodStatus` and its inverse).
fn synchronize_pod_ips(status: &mut Map) {
    let single = status.get("podIP").and_then(Value::as_str).unwrap_or_default();
    let first = status.get("podIPs").and_then(|addresses| addresses.get(0)).map(|first| text_of(first, "ip"));
    if single.is_empty() {
        if let Some(first) = first.filter(|first| !first.is_empty()) {
            let first = Value::from(first);
            status.insert("podIP", first);
        }
    } else if first != Some(single) {
        let addresses = json!([{ "ip": single }]);
        status.insert("podIPs", addresses);
    }
}

/// Copies limits to absent requests.
fn requests_from_limits(container: &mut Map) {
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

/// Applies the default of host ports in the host's network: the container port.
fn host_ports(spec: &mut Map) {
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
                port.insert("hostPort", container_port);
            }
        }
    }
}

/// Sets the status of a new pod, and completes its spec (`PrepareForCreate`).
fn prepare_for_create(pod: &mut Object, context: CreateContext<'_>) {
    listwatch_pod_rules::merge_label_keys(pod);
    let mut status = json!({"phase": "Pending"});
    if !items(child(pod, "spec"), "schedulingGates").is_empty() {
        status["conditions"] = json!([{"type": "PodScheduled", "status": "False", "lastProbeTime": null,
            "lastTransitionTime": context.now, "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates"}]);
    }
    status["qosClass"] = json!(quality_of_service(pod.get("spec")));
    pod.insert("status", status);
    listwatch_pod_rules::copy_app_armor_annotations(pod);
}

/// Keeps fields of the status that an older client omits (`PrepareForUpdate`).
fn prepare_for_update(new: &mut Object, old: &Object, context: UpdateContext<'_>) {
    let (Some(Subresource::Status), Some(Value::Object(new)), Some(Value::Object(old))) =
        (context.subresource, new.get_mut("status"), old.get("status"))
    else {
        return;
    };
    for name in ["qosClass", "observedGeneration"] {
        if let (None, Some(before)) = (new.get(name), old.get(name)) {
            new.insert(name, before.clone());
        }
    }
    // Conditions of the same type are matched in their order.
    let mut before: HashMap<&str, VecDeque<&Value>> = HashMap::new();
    for condition in items(old, "conditions") {
        before.entry(text_of(condition, "type")).or_default().push_back(condition);
    }
    for condition in new.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(same) = before.get_mut(text_of(condition, "type")).and_then(VecDeque::pop_front) else { continue };
        if let (None, Some(generation)) = (condition.get("observedGeneration"), same.get("observedGeneration")) {
            condition["observedGeneration"] = generation.clone();
        }
    }
}

/// Validates an update of a pod or of one of its subresources.
fn validate_transition(new: &Object, old: &Object, context: UpdateContext<'_>, errors: &mut Errors) {
    match context.subresource {
        None => listwatch_pod_rules::validate_update(new, old, errors),
        Some(Subresource::Status) => listwatch_pod_rules::validate_status(new, old, errors),
        Some(Subresource::EphemeralContainers) => listwatch_pod_rules::validate_ephemeral_containers(new, old, errors),
        Some(Subresource::Resize) => listwatch_pod_rules::validate_resize(new, old, errors),
        _ => {}
    }
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Ready", "Ready containers of all containers."),
        Column::text("Status", "The state of the pod's containers in one word."),
        Column::text("Restarts", "How often containers were restarted, and when the last time was."),
        AGE,
        Column::wide("IP", "The pod's address."),
        Column::wide("Node", "The node that the pod is bound to."),
        Column::wide("Nominated Node", "The node that is being cleared for the pod."),
        Column::wide("Readiness Gates", "Fulfilled readiness gates of all readiness gates."),
    ],
    cells,
};

/// The number of restarts, and the time of the last one.
#[derive(Clone, Copy, Default)]
struct Restarts {
    count: i64,
    last: Option<OffsetDateTime>,
}

impl Restarts {
    fn add(&mut self, container: Json<'_>) {
        self.count += container.get("restartCount").int().unwrap_or(0);
        self.last = self.last.max(container.at("lastState.terminated.finishedAt").time());
    }
}

fn cells(pod: Printed<'_>) -> Vec<Cell> {
    let (spec, status) = (pod.spec(), pod.status());
    let summary = Summary::of(pod);
    let restarts = match summary.restarts {
        Restarts { count: count @ 1.., last: Some(last) } => format!("{count} ({} ago)", pod.clock().age(last)),
        Restarts { count, .. } => count.to_string(),
    };
    let ip = status.get("podIPs").items().first().map_or_else(|| status.get("podIP"), |first| first.get("ip"));
    vec![
        pod.name().into(),
        format!("{}/{}", summary.ready, summary.containers).into(),
        summary.reason.into(),
        restarts.into(),
        pod.age().into(),
        ip.string_or(NONE).into(),
        spec.get("nodeName").string_or(NONE).into(),
        status.get("nominatedNodeName").string_or(NONE).into(),
        readiness_gates(spec, status).into(),
    ]
}

fn readiness_gates(spec: Json<'_>, status: Json<'_>) -> String {
    let gates = spec.get("readinessGates").items();
    if gates.is_empty() {
        return NONE.to_owned();
    }
    let conditions = status.get("conditions");
    let open = gates.iter().filter(|gate| holds(conditions, &gate.get("conditionType").string())).count();
    format!("{open}/{}", gates.len())
}

/// The values of the cells that depend on all containers.
struct Summary {
    ready: usize,
    containers: usize,
    reason: String,
    restarts: Restarts,
}

impl Summary {
    fn of(pod: Printed<'_>) -> Self {
        let (spec, status) = (pod.spec(), pod.status());
        let conditions = status.get("conditions");
        let phase = status.get("phase").string_or("Pending");
        let status_reason = status.get("reason").string();
        let mut reason = if status_reason.is_empty() { phase.clone() } else { status_reason.clone() };
        let gated = |condition: &Json<'_>| {
            condition.get("type").is("PodScheduled") && condition.get("reason").is("SchedulingGated")
        };
        if conditions.items().iter().any(gated) {
            reason = "SchedulingGated".to_owned();
        }

        let init_containers = spec.get("initContainers").items();
        // Sidecars are init containers that keep running.
        let sidecars: Vec<String> = init_containers
            .iter()
            .filter(|container| container.get("restartPolicy").is("Always"))
            .map(|container| container.get("name").string())
            .collect();
        let mut summary = Summary {
            ready: 0,
            containers: spec.get("containers").count() + sidecars.len(),
            reason,
            restarts: Restarts::default(),
        };
        let (initializing, sidecar_restarts) = summary.initialization(status, &sidecars, init_containers.len());
        if !initializing || holds(conditions, "Initialized") {
            // Restarts of completed init containers are not counted.
            summary.restarts = sidecar_restarts;
            summary.running(status);
        }
        if pod.is_being_deleted() {
            if status_reason == "NodeLost" {
                summary.reason = "Unknown".to_owned();
            } else if !matches!(phase.as_str(), "Succeeded" | "Failed") {
                summary.reason = "Terminating".to_owned();
            }
        }
        summary
    }

    /// Visits the init containers up to the first one that has not completed. Returns whether such a container exists,
    /// and the restarts of sidecars.
    fn initialization(&mut self, status: Json<'_>, sidecars: &[String], of: usize) -> (bool, Restarts) {
        let mut sidecar_restarts = Restarts::default();
        for (position, container) in status.get("initContainerStatuses").items().into_iter().enumerate() {
            let state = container.get("state");
            let (terminated, waiting) = (state.get("terminated"), state.at("waiting.reason").string());
            let sidecar = sidecars.contains(&container.get("name").string());
            self.restarts.add(container);
            if sidecar {
                sidecar_restarts.add(container);
            }
            if terminated.exists() && terminated.get("exitCode").int().unwrap_or(0) == 0 {
                continue;
            }
            if sidecar && container.get("started").bool() == Some(true) {
                self.ready += usize::from(container.get("ready").bool() == Some(true));
                continue;
            }
            self.reason = if terminated.exists() {
                format!("Init:{}", termination(terminated))
            } else if !waiting.is_empty() && waiting != "PodInitializing" {
                format!("Init:{waiting}")
            } else {
                format!("Init:{position}/{of}")
            };
            return (true, sidecar_restarts);
        }
        (false, sidecar_restarts)
    }

    /// Visits the containers from last to first. The cell shows the reason of the first container in the list that has
    /// one.
    fn running(&mut self, status: Json<'_>) {
        let (mut any_running, mut error) = (false, None);
        for container in status.get("containerStatuses").items().into_iter().rev() {
            let state = container.get("state");
            let (waiting, terminated) = (state.at("waiting.reason").string(), state.get("terminated"));
            self.restarts.add(container);
            if !waiting.is_empty() {
                self.reason = waiting;
            } else if terminated.exists() {
                self.reason = termination(terminated);
                if terminated.get("exitCode").int().unwrap_or(0) != 0 {
                    error = Some(self.reason.clone());
                }
            } else if container.get("ready").bool() == Some(true) && state.get("running").exists() {
                any_running = true;
                self.ready += 1;
            }
        }
        // A pod with a running container is not complete.
        if self.reason == "Completed" {
            match error {
                _ if any_running && holds(status.get("conditions"), "Ready") => self.reason = "Running".to_owned(),
                Some(error) => self.reason = error,
                None if any_running => self.reason = "NotReady".to_owned(),
                None => {}
            }
        }
    }
}

/// The reason for which a container terminated.
fn termination(terminated: Json<'_>) -> String {
    let number = |key| terminated.get(key).int().unwrap_or(0);
    match (terminated.get("reason").string(), number("signal")) {
        (reason, _) if !reason.is_empty() => reason,
        (_, 0) => format!("ExitCode:{}", number("exitCode")),
        (_, signal) => format!("Signal:{signal}"),
    }
}

#[cfg(test)]
mod tests {
    use listwatch_validation::clock::Clock;

    use super::*;
    use crate::testing::{check_defaults, defaulted_container, defaulted_pod_spec, map};

    #[test]
    fn pod_defaults_equal_those_of_kube_apiserver() {
        let mut limited = defaulted_container("nginx:1", "IfNotPresent");
        limited["resources"] = json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}});
        limited["ports"] = json!([{"containerPort": 80, "protocol": "TCP"}]);
        limited["livenessProbe"] = json!({"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "timeoutSeconds": 1,
            "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3});
        let mut expected = defaulted_pod_spec(limited);
        for (name, value) in [
            ("enableServiceLinks", json!(true)),
            (
                "volumes",
                json!([{"name": "v", "configMap": {"name": "x", "defaultMode": 420}}, {"name": "e", "emptyDir": {}},
                {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}],
                    "defaultMode": 420}}]),
            ),
        ] {
            expected[name] = value;
        }
        check_defaults(
            &KIND,
            json!({"spec": {"containers": [{"name": "c", "image": "nginx:1", "resources": {"limits": {"cpu": "1"}},
                    "ports": [{"containerPort": 80}], "livenessProbe": {"httpGet": {"port": 80}}}],
                "volumes": [{"name": "v", "configMap": {"name": "x"}}, {"name": "e"},
                    {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}}),
            json!({"spec": expected}),
        );
    }

    #[test]
    fn pod_ip_and_first_pod_ip_are_synchronized() {
        let check = |status: Value, expected: Value| {
            let mut pod = map(json!({ "status": status }));
            crate::defaults::apply(KIND.defaults, &mut pod);
            assert_eq!(pod["status"], expected);
        };
        let both = |single: &str, list: &[&str]| {
            let list: Vec<Value> = list.iter().map(|ip| json!({ "ip": ip })).collect();
            json!({"podIP": single, "podIPs": list})
        };
        check(json!({"podIP": "10.0.0.1"}), both("10.0.0.1", &["10.0.0.1"]));
        check(both("10.0.0.1", &[]), both("10.0.0.1", &["10.0.0.1"]));
        check(both("10.0.0.2", &["10.0.0.1", "fd00::1"]), both("10.0.0.2", &["10.0.0.2"]));
        check(json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}), both("10.0.0.1", &["10.0.0.1", "fd00::1"]));
        check(both("", &["fd00::1"]), both("fd00::1", &["fd00::1"]));
        check(both("10.0.0.1", &["10.0.0.1", "fd00::1"]), both("10.0.0.1", &["10.0.0.1", "fd00::1"]));
        check(json!({"phase": "Pending"}), json!({"phase": "Pending"}));
        check(json!({"podIPs": []}), json!({"podIPs": []}));
        // `hostIP` and `hostIPs` are validated, and not synchronized.
        check(json!({"hostIP": "10.0.0.1"}), json!({"hostIP": "10.0.0.1"}));
    }

    #[test]
    fn pod_level_requests_default_to_the_sum_of_the_containers() {
        let check = |containers: Value, inits: Value, resources: Value, expected: Value| {
            let spec = json!({"containers": containers, "initContainers": inits, "resources": resources});
            let Value::Object(mut pod) = json!({ "spec": spec }) else { panic!("not an object") };
            crate::defaults::apply(KIND.defaults, &mut pod);
            assert_eq!(pod["spec"]["resources"], expected);
        };
        let asks = |kind: &str, amounts: Value| json!([{"image": "i", "resources": {kind: amounts}}]);
        let most = json!({"limits": {"cpu": "3"}});
        check(
            asks("requests", json!({"cpu": "1500m", "memory": "1Gi"})),
            json!([]),
            most.clone(),
            json!({"limits": {"cpu": "3"}, "requests": {"cpu": "1500m", "memory": "1Gi"}}),
        );
        let pages = || asks("limits", json!({"hugepages-2Mi": "4Mi", "cpu": "1"}));
        let requests = json!({"cpu": "1", "hugepages-2Mi": "4Mi", "memory": "1Gi"});
        check(
            pages(),
            json!([]),
            json!({"limits": {"memory": "1Gi"}}),
            json!({"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}, "requests": requests}),
        );
        check(
            pages(),
            json!([]),
            json!({"requests": {"memory": "1Gi"}}),
            json!({"limits": {"hugepages-2Mi": "4Mi"}, "requests": requests}),
        );
        check(
            asks("requests", json!({"cpu": "100m"})),
            json!([{"image": "i", "resources": {"requests": {"cpu": "250m"}}},
                {"image": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "200m"}}}]),
            most,
            json!({"limits": {"cpu": "3"}, "requests": {"cpu": "300m"}}),
        );
        let none = json!({"limits": {"ephemeral-storage": "1"}});
        check(json!([]), json!([]), none.clone(), none);
    }

    #[test]
    fn new_gated_pod_has_a_scheduling_gated_condition() {
        let making = CreateContext { uid: "u", now: "NOW", user: listwatch_meta::UserInfo::admin() };
        let mut pod = map(json!({"spec": {"containers": [{}], "schedulingGates": [{"name": "g"}]}}));
        prepare_for_create(&mut pod, making);
        let expected = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
            "lastProbeTime": null, "lastTransitionTime": "NOW", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates"}], "qosClass": "BestEffort"});
        assert_eq!(pod["status"], expected);
        let mut free = map(json!({"spec": {"containers": [{}], "schedulingGates": []}}));
        prepare_for_create(&mut free, making);
        assert_eq!(free["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    }

    #[test]
    fn pod_status_update_keeps_absent_observed_fields() {
        let mut new = map(json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "X"}]}}));
        let old = map(json!({"status": {"qosClass": "Burstable", "observedGeneration": 3,
            "conditions": [{"type": "Ready", "status": "False", "observedGeneration": 2}]}}));
        let clock = Clock::default();
        prepare_for_update(
            &mut new,
            &old,
            UpdateContext { subresource: Some(&Subresource::Status), now: clock.time() },
        );
        let expected = json!({"qosClass": "Burstable", "observedGeneration": 3,
            "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 2}, {"type": "X"}]});
        assert_eq!(new["status"], expected);
    }
}
