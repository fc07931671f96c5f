//! The usage of a quota by an object (`pkg/quota/v1/evaluator/core`, `apiserver/pkg/quota/v1/generic`).

use std::collections::BTreeMap;

use listwatch_json::Value;
use listwatch_meta::quantity::Quantity;
use listwatch_validation::clock::parse_timestamp;
use listwatch_validation::resource_names::{is_extended, is_huge_page, is_native};
use listwatch_validation::{Object, child, given, metadata, number, objects, text};
use time::{Duration, OffsetDateTime};

use super::devices::{CLASS_RESOURCE_PREFIX, DeviceObjects};
use super::scopes::{Requirement, is_terminating, requirements, selects_claim, selects_pod};
use crate::amounts::{Amounts, add, amounts, of_pod};
use crate::default_class::claim_class;

/// The resources of pods that a quota can limit, besides the number of pods.
const COMPUTE: [&str; 9] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];
/// The resources that each container must specify if a quota limits them.
const STATED: [&str; 6] = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];
/// The suffix of resources per storage class.
const OF_STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";

/// The suffix of devices per device class (`ResourceClaimsPerClass`).
pub(super) const OF_DEVICE_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
/// The number of devices that is charged for a request for all devices (`AllocationResultsMaxSize`).
const ALLOCATED_DEVICES_MAX: usize = 32;

/// The rules by which the objects of one resource are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evaluator {
    /// Pods. The usage contains compute resources until the pod ends.
    Pods,
    /// Services: load balancers and node ports.
    Services,
    /// PersistentVolumeClaims: storage, also per storage class.
    Claims,
    /// ResourceClaims: devices per device class, also as the extended resources of the class.
    DeviceClaims(DeviceObjects),
    /// All other resources: the number of objects.
    Objects {
        /// `count/<resource>.<group>`.
        count: String,
        /// The short name, e.g. `configmaps`.
        short: Option<&'static str>,
    },
}

impl Evaluator {
    /// Creates the evaluator of a resource; that of ResourceClaims without any stored object.
    pub fn new(group: &str, resource: &str) -> Self {
        const SHORT: [&str; 4] = ["configmaps", "replicationcontrollers", "resourcequotas", "secrets"];
        match (group, resource) {
            ("", "pods") => Evaluator::Pods,
            ("", "services") => Evaluator::Services,
            ("", "persistentvolumeclaims") => Evaluator::Claims,
            ("resource.k8s.io", "resourceclaims") => Evaluator::DeviceClaims(DeviceObjects::default()),
            ("", _) => Evaluator::Objects {
                count: format!("count/{resource}"),
                short: SHORT.into_iter().find(|short| *short == resource),
            },
            _ => Evaluator::Objects { count: format!("count/{resource}.{group}"), short: None },
        }
    }

    /// Returns the groups and plural names of the resources whose objects use a name of a quota; none if no object uses
    /// the name. Pods and ResourceClaims both use extended resources.
    pub fn resources_of(name: &str) -> Vec<(&str, &str)> {
        const CLAIMS: (&str, &str) = ("resource.k8s.io", "resourceclaims");
        if let Some(counted) = name.strip_prefix("count/") {
            return vec![counted.split_once('.').map_or(("", counted), |(resource, group)| (group, resource))];
        }
        let is = |evaluator: &Evaluator| evaluator.counts(name);
        match () {
            () if extended_resource(name).is_some() => vec![("", "pods"), CLAIMS],
            () if is(&Evaluator::Pods) => vec![("", "pods")],
            () if is(&Evaluator::Services) => vec![("", "services")],
            () if is(&Evaluator::Claims) => vec![("", "persistentvolumeclaims")],
            () if name.ends_with(OF_DEVICE_CLASS) => vec![CLAIMS],
            () => match Evaluator::new("", name) {
                Evaluator::Objects { short: Some(_), .. } => vec![("", name)],
                _ => Vec::new(),
            },
        }
    }

    /// Whether the evaluator computes the usage of this quota resource (`MatchingResources`).
    pub(super) fn counts(&self, name: &str) -> bool {
        match self {
            Evaluator::Pods => {
                matches!(name, "count/pods" | "pods")
                    || COMPUTE.contains(&name)
                    || is_huge_page(name.strip_prefix("requests.").unwrap_or(name))
                    || extended_resource(name).is_some()
            }
            Evaluator::Services => {
                matches!(name, "count/services" | "services" | "services.nodeports" | "services.loadbalancers")
            }
            Evaluator::Claims => {
                let bare = name.split_once(OF_STORAGE_CLASS).map_or(name, |(_, bare)| bare);
                matches!(bare, "persistentvolumeclaims" | "requests.storage") || name == "count/persistentvolumeclaims"
            }
            Evaluator::DeviceClaims(stored) => {
                name == "count/resourceclaims.resource.k8s.io"
                    || name.ends_with(OF_DEVICE_CLASS)
                    || extended_resource(name).is_some_and(|resource| stored.has_class_of(resource))
            }
            Evaluator::Objects { count, short } => name == count || Some(name) == *short,
        }
    }

    /// Whether a write of this operation can increase the usage. `create` is false for updates.
    pub(super) fn handles(&self, create: bool, subresource: Option<&str>) -> bool {
        match (self, subresource) {
            (Evaluator::Pods, Some("resize")) => !create,
            (Evaluator::Claims, Some("status")) => !create,
            // Of the updates of pods, `evaluates` selects those that change a scope.
            (Evaluator::Pods | Evaluator::Services | Evaluator::Claims | Evaluator::DeviceClaims(_), None) => true,
            (_, None) => create,
            _ => false,
        }
    }

    /// Whether a handled write is charged. An update of a pod is charged only if the pod gets or loses
    /// `activeDeadlineSeconds`.
    pub(super) fn evaluates(&self, subresource: Option<&str>, old: Option<&Object>, new: &Object) -> bool {
        match (self, subresource, old) {
            (Evaluator::Pods, None, Some(old)) => is_terminating(old) != is_terminating(new),
            _ => true,
        }
    }

    /// Whether an object satisfies a requirement of a quota's scopes.
    pub(super) fn selects(&self, requirement: &Requirement, object: &Object) -> bool {
        match self {
            Evaluator::Pods => selects_pod(requirement, object),
            Evaluator::Claims => selects_claim(requirement, object),
            _ => false,
        }
    }

    /// Whether a quota counts an object: all of its scopes select the object.
    pub fn is_in_scope(&self, quota: &Object, object: &Object) -> bool {
        requirements(quota).iter().all(|requirement| self.selects(requirement, object))
    }

    /// Returns the usage of an object.
    pub(crate) fn usage(&self, object: &Object, now: OffsetDateTime) -> Amounts {
        match self {
            Evaluator::Pods => pod_usage(object, now),
            Evaluator::Services => service_usage(object),
            Evaluator::Claims => claim_usage(object),
            Evaluator::DeviceClaims(stored) => {
                let mut used = device_claim_usage(object);
                stored.add_extended_resources(object, &mut used);
                used
            }
            Evaluator::Objects { count, short } => {
                let names = [Some(count.as_str()), *short].into_iter().flatten();
                names.map(|name| (name.to_owned(), Quantity::from_count(1))).collect()
            }
        }
    }

    /// Checks that each container specifies the resources that a quota limits. A pod with resources of its own passes.
    pub(super) fn check_constraints(&self, limited: &[&str], object: &Object) -> Result<(), String> {
        if *self != Evaluator::Pods {
            return Ok(());
        }
        let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let spec = child(object, "spec");
        if has_pod_level_resources(spec) {
            return Ok(());
        }
        for list in ["containers", "initContainers"] {
            for (_, container) in objects(spec, list) {
                let stated = stated(child(container, "resources"));
                for name in limited.iter().filter(|name| STATED.contains(name)) {
                    if !stated.contains_key(*name) {
                        missing.entry(name).or_default().push(text(container, "name"));
                    }
                }
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let parts = missing.into_iter().map(|(name, mut containers)| {
            containers.sort_unstable();
            containers.dedup();
            format!("{name} for: {}", containers.join(","))
        });
        Err(format!("must specify {}", parts.collect::<Vec<_>>().join("; ")))
    }
}

/// Whether a pod has requests or limits of its own (`IsPodLevelResourcesSet`).
fn has_pod_level_resources(spec: &Object) -> bool {
    let own = child(spec, "resources");
    let names = ["requests", "limits"].into_iter().flat_map(|list| child(own, list).keys());
    names.into_iter().any(|name| matches!(name.as_str(), "cpu" | "memory") || is_huge_page(name))
}

/// Returns the extended resource that a name of a quota limits (`isExtendedResourceNameForQuota`). The resources of
/// device classes are among them, although their names belong to Kubernetes.
fn extended_resource(name: &str) -> Option<&str> {
    let resource = name.strip_prefix("requests.")?;
    (resource.starts_with(CLASS_RESOURCE_PREFIX) || !is_native(name)).then_some(resource)
}

/// Converts requests and limits to usage by the names of a quota.
fn compute_usage(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut used = Amounts::new();
    for name in ["cpu", "memory", "ephemeral-storage"] {
        if let Some(request) = requests.get(name) {
            used.insert(name.to_owned(), *request);
            used.insert(format!("requests.{name}"), *request);
        }
        if let Some(limit) = limits.get(name) {
            used.insert(format!("limits.{name}"), *limit);
        }
    }
    for (name, request) in requests {
        if is_huge_page(name) {
            used.insert(name.clone(), *request);
        }
        if is_huge_page(name) || is_extended(name) || name.starts_with(CLASS_RESOURCE_PREFIX) {
            used.insert(format!("requests.{name}"), *request);
        }
    }
    used
}

fn stated(resources: &Object) -> Amounts {
    compute_usage(&amounts(child(resources, "requests")), &amounts(child(resources, "limits")))
}

fn one(names: &[&str]) -> Amounts {
    names.iter().map(|name| ((*name).to_owned(), Quantity::from_count(1))).collect()
}

/// Returns the usage of a pod (`PodUsageFunc`).
pub(super) fn pod_usage(pod: &Object, now: OffsetDateTime) -> Amounts {
    let mut used = one(&["count/pods"]);
    if has_ended(pod, now) {
        return used;
    }
    add(&mut used, &one(&["pods"]));
    let sums = of_pod(pod, true);
    add(&mut used, &compute_usage(&sums.requests, &sums.limits));
    used
}

/// Whether a pod has ended, or is past the end of its deletion grace period (`QuotaV1Pod`).
pub fn has_ended(pod: &Object, now: OffsetDateTime) -> bool {
    if matches!(text(child(pod, "status"), "phase"), "Failed" | "Succeeded") {
        return true;
    }
    let metadata = metadata(pod);
    let deleted = parse_timestamp(text(metadata, "deletionTimestamp"));
    let grace = number(metadata, "deletionGracePeriodSeconds");
    deleted.zip(grace).is_some_and(|(deleted, grace)| now > deleted + Duration::seconds(grace))
}

fn service_usage(service: &Object) -> Amounts {
    let spec = child(service, "spec");
    let mut used = one(&["count/services", "services"]);
    let (mut balancers, mut node_ports) = (0, 0);
    let ports = || objects(spec, "ports").map(|(_, port)| port);
    match text(spec, "type") {
        "NodePort" => node_ports = ports().count(),
        "LoadBalancer" => {
            balancers = 1;
            let allocates = spec.get("allocateLoadBalancerNodePorts") != Some(&Value::Bool(false));
            let has_one = |port: &&Object| number(port, "nodePort").is_some_and(|port| port != 0);
            node_ports = if allocates { ports().count() } else { ports().filter(has_one).count() };
        }
        _ => {}
    }
    used.insert("services.loadbalancers".to_owned(), Quantity::from_count(balancers));
    used.insert("services.nodeports".to_owned(), Quantity::from_count(node_ports));
    used
}

fn claim_usage(claim: &Object) -> Amounts {
    let mut used = one(&["count/persistentvolumeclaims", "persistentvolumeclaims"]);
    let class = claim_class(claim);
    let of_class = |name: &str| format!("{class}{OF_STORAGE_CLASS}{name}");
    if !class.is_empty() {
        used.insert(of_class("persistentvolumeclaims"), Quantity::from_count(1));
    }
    let requests = amounts(child(child(child(claim, "spec"), "resources"), "requests"));
    // A claim that shrinks back after a failed expansion keeps what was allocated.
    let allocated = amounts(child(child(claim, "status"), "allocatedResources"));
    let storage = requests.get("storage").map(|asked| allocated.get("storage").map_or(*asked, |has| *has.max(asked)));
    if let Some(storage) = storage {
        used.insert("requests.storage".to_owned(), storage);
        if !class.is_empty() {
            used.insert(of_class("requests.storage"), storage);
        }
    }
    used
}

fn device_claim_usage(claim: &Object) -> Amounts {
    let mut used = one(&["count/resourceclaims.resource.k8s.io"]);
    for (_, request) in objects(child(child(claim, "spec"), "devices"), "requests") {
        // One of the alternatives is allocated, so the largest number of each class counts.
        let mut devices: BTreeMap<&str, usize> = BTreeMap::new();
        let alternatives = objects(request, "firstAvailable").map(|(_, alternative)| alternative);
        for wanted in alternatives.chain(given(request, "exactly").and_then(Value::as_object)) {
            let count = match text(wanted, "allocationMode") {
                "ExactCount" => {
                    number(wanted, "count").and_then(|count| usize::try_from(count).ok()).unwrap_or_default()
                }
                "All" => ALLOCATED_DEVICES_MAX,
                // Modes of other releases do not count.
                _ => 0,
            };
            let most = devices.entry(text(wanted, "deviceClassName")).or_default();
            *most = count.max(*most);
        }
        let of_class = |(class, count)| (format!("{class}{OF_DEVICE_CLASS}"), Quantity::from_count(count));
        add(&mut used, &devices.into_iter().map(of_class).collect());
    }
    used
}

/// Returns the hard limits in the status of a quota.
pub(super) fn hard_of_status(quota: &Object) -> Amounts {
    amounts(given(child(quota, "status"), "hard").and_then(Value::as_object).unwrap_or(&Object::new()))
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;
    use crate::amounts::print;
    use crate::testing::object;

    fn check(evaluator: &Evaluator, given: Value, expected: &str) {
        let now = parse_timestamp("2026-01-01T00:01:00Z").unwrap();
        assert_eq!(print(&evaluator.usage(&object(given.clone()), now)), expected, "{given}");
    }

    #[test]
    fn pod_quota_usage_contains_compute_resources_until_the_pod_ends() {
        let resources = json!({"requests": {"cpu": "1", "example.com/gpu": "2", "hugepages-2Mi": "4Mi"}, "limits": {"memory": "1Gi"}});
        let spec = json!({"containers": [{"name": "c", "resources": resources}]});
        let all = "count/pods=1,cpu=1,hugepages-2Mi=4Mi,limits.memory=1Gi,pods=1,requests.cpu=1,requests.example.com/gpu=2,requests.hugepages-2Mi=4Mi";
        check(&Evaluator::Pods, json!({ "spec": spec }), all);
        check(&Evaluator::Pods, json!({"spec": spec, "status": {"phase": "Succeeded"}}), "count/pods=1");
        let deleted = |grace: i64| json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace}, "spec": spec});
        check(&Evaluator::Pods, deleted(59), "count/pods=1");
        check(&Evaluator::Pods, deleted(60), all);
    }

    #[test]
    fn service_quota_usage_counts_load_balancers_and_node_ports_by_type() {
        let service = |kind: &str, allocate: Value| json!({"spec": {"type": kind, "allocateLoadBalancerNodePorts": allocate, "ports": [{"nodePort": 1}, {}]}});
        let used = |balancers: u8, ports: u8| {
            format!("count/services=1,services=1,services.loadbalancers={balancers},services.nodeports={ports}")
        };
        check(&Evaluator::Services, service("ClusterIP", json!(null)), &used(0, 0));
        check(&Evaluator::Services, service("NodePort", json!(null)), &used(0, 2));
        check(&Evaluator::Services, service("LoadBalancer", json!(true)), &used(1, 2));
        check(&Evaluator::Services, service("LoadBalancer", json!(false)), &used(1, 1));
    }

    #[test]
    fn resource_claim_quota_usage_counts_devices_by_class() {
        let exact = |class: &str, mode: &str, count: i64| json!({"allocationMode": mode, "count": count, "deviceClassName": class});
        let claim = json!({"spec": {"devices": {"requests": [
            {"name": "a", "exactly": exact("gold", "ExactCount", 2)},
            {"name": "b", "exactly": exact("gold", "ExactCount", 1)},
            {"name": "c", "exactly": exact("tin", "All", 0)},
            {"name": "d", "firstAvailable": [exact("gold", "ExactCount", 3), exact("iron", "ExactCount", 4), exact("gold", "Odd", 9)]},
        ]}}});
        let used = "count/resourceclaims.resource.k8s.io=1,gold.deviceclass.resource.k8s.io/devices=6,iron.deviceclass.resource.k8s.io/devices=4,\
            requests.deviceclass.resource.kubernetes.io/gold=6,requests.deviceclass.resource.kubernetes.io/iron=4,\
            requests.deviceclass.resource.kubernetes.io/tin=32,tin.deviceclass.resource.k8s.io/devices=32";
        let evaluator = Evaluator::new("resource.k8s.io", "resourceclaims");
        check(&evaluator, claim, used);
        check(&evaluator, json!({}), "count/resourceclaims.resource.k8s.io=1");
        let of = Evaluator::resources_of("gold.deviceclass.resource.k8s.io/devices");
        assert_eq!(of, [("resource.k8s.io", "resourceclaims")]);
        assert!(evaluator.handles(false, None) && !evaluator.handles(false, Some("status")));
    }

    #[test]
    fn volume_claim_quota_usage_counts_storage_by_class() {
        let claim = json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}});
        check(
            &Evaluator::Claims,
            claim,
            "count/persistentvolumeclaims=1,persistentvolumeclaims=1,requests.storage=1Gi",
        );
        let gold = json!({"spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "1Gi"}}}, "status": {"allocatedResources": {"storage": "2Gi"}}});
        check(
            &Evaluator::Claims,
            gold,
            "count/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/requests.storage=2Gi,persistentvolumeclaims=1,requests.storage=2Gi",
        );
        check(&Evaluator::new("", "secrets"), json!({}), "count/secrets=1,secrets=1");
        check(&Evaluator::new("apps", "deployments"), json!({}), "count/deployments.apps=1");
    }

    #[test]
    fn quota_resource_names_map_to_the_resources_that_use_them() {
        let claims = ("resource.k8s.io", "resourceclaims");
        for (name, expected) in [
            ("pods", vec![("", "pods")]),
            ("count/pods", vec![("", "pods")]),
            ("limits.memory", vec![("", "pods")]),
            ("requests.nvidia.com/gpu", vec![("", "pods"), claims]),
            ("requests.hugepages-2Mi", vec![("", "pods")]),
            ("requests.deviceclass.resource.kubernetes.io/gold", vec![("", "pods"), claims]),
            ("gold.deviceclass.resource.k8s.io/devices", vec![claims]),
            ("services.nodeports", vec![("", "services")]),
            ("requests.storage", vec![("", "persistentvolumeclaims")]),
            ("gold.storageclass.storage.k8s.io/requests.storage", vec![("", "persistentvolumeclaims")]),
            ("configmaps", vec![("", "configmaps")]),
            ("count/deployments.apps", vec![("apps", "deployments")]),
            ("count/widgets.example.com", vec![("example.com", "widgets")]),
            ("deployments", vec![]),
        ] {
            assert_eq!(Evaluator::resources_of(name), expected, "{name}");
        }
    }

    #[test]
    fn pod_is_rejected_unless_each_container_specifies_the_limited_resources() {
        let pod = object(json!({"spec": {
            "containers": [{"name": "b"}, {"name": "a", "resources": {"limits": {"cpu": "1"}}}],
            "initContainers": [{"name": "c", "resources": {"limits": {"cpu": "1"}, "requests": {"memory": "1"}}}]}}));
        let check = |limited: &[&str]| Evaluator::Pods.check_constraints(limited, &pod);
        assert_eq!(check(&["pods", "requests.ephemeral-storage"]), Ok(()));
        let expected = "must specify limits.cpu for: b; requests.memory for: a,b";
        assert_eq!(check(&["requests.memory", "limits.cpu"]), Err(expected.to_owned()));
        assert_eq!(Evaluator::Services.check_constraints(&["cpu"], &pod), Ok(()));
        for (resources, expected) in [
            (json!({"requests": {"memory": "1"}}), Ok(())),
            (json!({"limits": {"hugepages-2Mi": "2Mi"}}), Ok(())),
            (json!({"requests": {"ephemeral-storage": "1"}}), Err("must specify limits.cpu for: c".to_owned())),
            (json!({}), Err("must specify limits.cpu for: c".to_owned())),
        ] {
            let pod = object(json!({"spec": {"containers": [{"name": "c"}], "resources": resources}}));
            let found = Evaluator::Pods.check_constraints(&["limits.cpu"], &pod);
            assert_eq!(found, expected, "resources of the pod replace those of the containers: {pod:?}");
        }
    }
}
