//! Kubernetes' built-in kinds as a table: what kube-apiserver v1.36 serves by default.
//!
//! One line says a kind's plural, name, short names and subresources; what follows the line is what
//! sets it apart. The facts come from each kind's strategy, its field label conversion, its storage
//! prefix and the published discovery documents of that release.
//!
//! Second versions of stored kinds (`events.k8s.io/v1`, `autoscaling/v1`) are [`crate::versions`]'.

use std::sync::{Arc, LazyLock};

use listwatch_meta::{ObjectShape, SelectableField};

use super::{NameRule, Resource, Strategy, Subresource};
use crate::versions::VERSIONS;

/// Events remove themselves after an hour (`--event-ttl`).
const EVENT_TTL_SECONDS: u64 = 3600;

/// All built-in resources, in the order in which discovery shows their groups.
pub(super) fn resources() -> Vec<Arc<Resource>> {
    let mut all = stored();
    for version in VERSIONS {
        let path = version.of();
        let stored = all.iter().find(|resource| resource.path() == path);
        if let Some(second) = stored.map(|stored| Arc::new(version.resource(stored))) {
            let behind = all.iter().rposition(|resource| resource.group == version.behind);
            all.insert(behind.map_or(all.len(), |at| at + 1), second);
        }
    }
    all
}

/// The resources of the versions in which objects are stored.
fn stored() -> Vec<Arc<Resource>> {
    [
        core(),
        workloads(),
        autoscaling_and_batch(),
        certificates(),
        networking(),
        policy_and_rbac(),
        storage(),
        extension(),
        scheduling_and_coordination(),
        dynamic_resources(),
        flow_control(),
    ]
    .into_iter()
    .flatten()
    .map(|row| Arc::new(row.build()))
    .collect()
}

/// What is answered and never stored: bindings, the states of components, and the questions of
/// `authentication.k8s.io` and `authorization.k8s.io`.
pub(super) fn unstored() -> &'static [Arc<Resource>] {
    static UNSTORED: LazyLock<Vec<Arc<Resource>>> = LazyLock::new(|| {
        let core = Group("", "v1");
        let (authentication, authorization) =
            (Group("authentication.k8s.io", "v1"), Group("authorization.k8s.io", "v1"));
        let rows = [
            core.namespaced("bindings", "Binding"),
            core.cluster("componentstatuses", "ComponentStatus")
                .short(&["cs"])
                .deprecated("v1 ComponentStatus is deprecated in v1.19+"),
            authentication.cluster("selfsubjectreviews", "SelfSubjectReview"),
            authentication.cluster("tokenreviews", "TokenReview"),
            authorization.namespaced("localsubjectaccessreviews", "LocalSubjectAccessReview"),
            authorization.cluster("selfsubjectaccessreviews", "SelfSubjectAccessReview"),
            authorization.cluster("selfsubjectrulesreviews", "SelfSubjectRulesReview"),
            authorization.cluster("subjectaccessreviews", "SubjectAccessReview"),
        ];
        rows.into_iter().map(|row| Arc::new(row.build())).collect()
    });
    &UNSTORED
}

fn core() -> Vec<Row> {
    let v1 = Group("", "v1");
    vec![
        v1.namespaced("configmaps", "ConfigMap").short(&["cm"]),
        v1.namespaced("endpoints", "Endpoints")
            .short(&["ep"])
            .stored_at("services/endpoints")
            .create_on_update()
            .deprecated("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
        v1.namespaced("events", "Event")
            .short(&["ev"])
            .field("involvedObject.kind")
            .field("involvedObject.namespace")
            .field("involvedObject.name")
            .field("involvedObject.uid")
            .field("involvedObject.apiVersion")
            .field("involvedObject.resourceVersion")
            .field("involvedObject.fieldPath")
            .field("reason")
            .field("reportingComponent")
            .field_at("source", "source.component", "")
            .stands_in("reportingComponent", "source")
            .field("type")
            .names(NameRule::PathSegment)
            .create_on_update()
            .ttl(EVENT_TTL_SECONDS),
        v1.namespaced("limitranges", "LimitRange").short(&["limits"]).create_on_update(),
        v1.cluster("namespaces", "Namespace")
            .short(&["ns"])
            .status()
            .sub(Subresource::Finalize)
            .field_or("status.phase", "Active")
            .names(NameRule::Label),
        v1.cluster("nodes", "Node")
            .short(&["no"])
            .status()
            .sub(Subresource::Proxy { options: "NodeProxyOptions" })
            .stored_at("minions")
            .field_or("spec.unschedulable", "false"),
        v1.namespaced("persistentvolumeclaims", "PersistentVolumeClaim").short(&["pvc"]).status(),
        v1.cluster("persistentvolumes", "PersistentVolume").short(&["pv"]).status(),
        v1.namespaced("pods", "Pod")
            .short(&["po"])
            .all()
            .status()
            .sub(Subresource::Attach)
            .sub(Subresource::Binding)
            .sub(Subresource::EphemeralContainers)
            .sub(Subresource::Eviction)
            .sub(Subresource::Exec)
            .sub(Subresource::Log)
            .sub(Subresource::PortForward)
            .sub(Subresource::Proxy { options: "PodProxyOptions" })
            .sub(Subresource::Resize)
            .indexed("spec.nodeName")
            .field_or("spec.restartPolicy", "Always")
            .field_or("spec.schedulerName", "default-scheduler")
            .field("spec.serviceAccountName")
            .field_or("spec.hostNetwork", "false")
            .field_or("status.phase", "Pending")
            .field("status.podIP")
            // A legal label that kube-apiserver never fills: no member of a list is called "-".
            .field_at("status.podIPs", "status.podIPs.-", "")
            .field("status.nominatedNodeName")
            .generation()
            .graceful_delete(),
        v1.namespaced("podtemplates", "PodTemplate").generation(),
        v1.namespaced("replicationcontrollers", "ReplicationController")
            .short(&["rc"])
            .all()
            .scale("spec.selector")
            .status()
            .stored_at("controllers")
            .field_or("status.replicas", "0")
            .generation(),
        v1.namespaced("resourcequotas", "ResourceQuota").short(&["quota"]).status(),
        v1.namespaced("secrets", "Secret").field_or("type", "Opaque"),
        v1.namespaced("serviceaccounts", "ServiceAccount").short(&["sa"]).sub(Subresource::Token),
        v1.namespaced("services", "Service")
            .short(&["svc"])
            .all()
            .status()
            .sub(Subresource::Proxy { options: "ServiceProxyOptions" })
            .stored_at("services/specs")
            .field("spec.clusterIP")
            .field_or("spec.type", "ClusterIP")
            // Since v1.36 a service's name may begin with a digit.
            .names(NameRule::Label)
            .create_on_update(),
        Group("apiregistration.k8s.io", "v1")
            .cluster("apiservices", "APIService")
            .extends_the_api()
            .status()
            .stored_at("apiregistration.k8s.io/apiservices")
            .names(NameRule::PathSegment)
            .version_required(),
    ]
}

fn workloads() -> Vec<Row> {
    let v1 = Group("apps", "v1");
    vec![
        v1.namespaced("controllerrevisions", "ControllerRevision"),
        v1.namespaced("daemonsets", "DaemonSet").short(&["ds"]).all().status().generation(),
        v1.namespaced("deployments", "Deployment")
            .short(&["deploy"])
            .all()
            .scale("spec.selector")
            .status()
            .generation(),
        v1.namespaced("replicasets", "ReplicaSet").short(&["rs"]).all().scale("spec.selector").status().generation(),
        v1.namespaced("statefulsets", "StatefulSet").short(&["sts"]).all().scale("spec.selector").status().generation(),
    ]
}

fn autoscaling_and_batch() -> Vec<Row> {
    let batch = Group("batch", "v1");
    vec![
        Group("autoscaling", "v2")
            .namespaced("horizontalpodautoscalers", "HorizontalPodAutoscaler")
            .short(&["hpa"])
            .all()
            .status(),
        batch.namespaced("cronjobs", "CronJob").short(&["cj"]).all().status().generation(),
        batch
            .namespaced("jobs", "Job")
            .all()
            .status()
            .field_at("status.successful", "status.succeeded", "0")
            .generation(),
    ]
}

fn certificates() -> Vec<Row> {
    vec![
        Group("certificates.k8s.io", "v1")
            .cluster("certificatesigningrequests", "CertificateSigningRequest")
            .short(&["csr"])
            .sub(Subresource::Approval)
            .status()
            .field("spec.signerName")
            .names(NameRule::PathSegment),
    ]
}

fn networking() -> Vec<Row> {
    let v1 = Group("networking.k8s.io", "v1");
    vec![
        v1.cluster("ingressclasses", "IngressClass").generation(),
        v1.namespaced("ingresses", "Ingress").short(&["ing"]).status().stored_at("ingress").generation(),
        // An address is its own name, and an IPv6 address is no DNS name.
        v1.cluster("ipaddresses", "IPAddress").short(&["ip"]).names(NameRule::Address),
        v1.namespaced("networkpolicies", "NetworkPolicy").short(&["netpol"]).generation(),
        v1.cluster("servicecidrs", "ServiceCIDR").status(),
    ]
}

fn policy_and_rbac() -> Vec<Row> {
    let rbac = Group("rbac.authorization.k8s.io", "v1");
    vec![
        Group("policy", "v1")
            .namespaced("poddisruptionbudgets", "PodDisruptionBudget")
            .short(&["pdb"])
            .status()
            .version_required()
            .generation(),
        rbac.cluster("clusterrolebindings", "ClusterRoleBinding").names(NameRule::PathSegment).create_on_update(),
        rbac.cluster("clusterroles", "ClusterRole").names(NameRule::PathSegment).create_on_update(),
        rbac.namespaced("rolebindings", "RoleBinding").names(NameRule::PathSegment).create_on_update(),
        rbac.namespaced("roles", "Role").names(NameRule::PathSegment).create_on_update(),
    ]
}

fn storage() -> Vec<Row> {
    let v1 = Group("storage.k8s.io", "v1");
    vec![
        v1.cluster("csidrivers", "CSIDriver").version_required(),
        v1.cluster("csinodes", "CSINode").version_required(),
        v1.namespaced("csistoragecapacities", "CSIStorageCapacity").version_required(),
        v1.cluster("storageclasses", "StorageClass").short(&["sc"]),
        v1.cluster("volumeattachments", "VolumeAttachment").status().version_required(),
        v1.cluster("volumeattributesclasses", "VolumeAttributesClass").short(&["vac"]),
    ]
}

fn extension() -> Vec<Row> {
    let admission = Group("admissionregistration.k8s.io", "v1");
    let admission = |plural, kind| admission.cluster(plural, kind).extends_the_api().version_required().generation();
    vec![
        admission("mutatingadmissionpolicies", "MutatingAdmissionPolicy"),
        admission("mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding"),
        admission("mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
        admission("validatingadmissionpolicies", "ValidatingAdmissionPolicy").status(),
        admission("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
        admission("validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
        Group("apiextensions.k8s.io", "v1")
            .cluster("customresourcedefinitions", "CustomResourceDefinition")
            .short(&["crd", "crds"])
            .extends_the_api()
            .status()
            .stored_at("apiextensions.k8s.io/customresourcedefinitions")
            .version_required()
            .generation(),
    ]
}

fn scheduling_and_coordination() -> Vec<Row> {
    vec![
        Group("scheduling.k8s.io", "v1").cluster("priorityclasses", "PriorityClass").short(&["pc"]).generation(),
        Group("coordination.k8s.io", "v1").namespaced("leases", "Lease").version_required().create_on_update(),
        Group("node.k8s.io", "v1").cluster("runtimeclasses", "RuntimeClass").version_required().create_on_update(),
        Group("discovery.k8s.io", "v1").namespaced("endpointslices", "EndpointSlice").generation(),
    ]
}

fn dynamic_resources() -> Vec<Row> {
    let v1 = Group("resource.k8s.io", "v1");
    vec![
        v1.cluster("deviceclasses", "DeviceClass").generation(),
        v1.namespaced("resourceclaims", "ResourceClaim").status(),
        v1.namespaced("resourceclaimtemplates", "ResourceClaimTemplate"),
        v1.cluster("resourceslices", "ResourceSlice").indexed("spec.nodeName").field("spec.driver").generation(),
    ]
}

fn flow_control() -> Vec<Row> {
    let v1 = Group("flowcontrol.apiserver.k8s.io", "v1");
    vec![
        v1.cluster("flowschemas", "FlowSchema").status().version_required().generation(),
        v1.cluster("prioritylevelconfigurations", "PriorityLevelConfiguration")
            .status()
            .version_required()
            .generation(),
    ]
}

/// A group and version whose kinds are being listed.
#[derive(Clone, Copy)]
struct Group(&'static str, &'static str);

impl Group {
    fn namespaced(self, plural: &'static str, kind: &'static str) -> Row {
        Row::new(self, plural, kind, true)
    }

    fn cluster(self, plural: &'static str, kind: &'static str) -> Row {
        Row::new(self, plural, kind, false)
    }
}

/// A resource being described; most of it has a usual value.
struct Row {
    resource: Resource,
    fields: Vec<SelectableField>,
    /// Pairs of fields: the first has the value of the second where it has none.
    stand_ins: Vec<(&'static str, &'static str)>,
}

impl Row {
    fn new(Group(group, version): Group, plural: &str, kind: &str, namespaced: bool) -> Self {
        Row {
            resource: Resource {
                group: group.to_owned(),
                version: version.to_owned(),
                kind: kind.to_owned(),
                list_kind: format!("{kind}List"),
                plural: plural.to_owned(),
                singular: kind.to_lowercase(),
                short_names: Vec::new(),
                categories: Vec::new(),
                namespaced,
                storage_prefix: plural.to_owned(),
                shape: Arc::new(ObjectShape::new(namespaced, Vec::new())),
                indexed_fields: Vec::new(),
                subresources: Vec::new(),
                strategy: Strategy {
                    unconditional_update: true,
                    create_on_update: false,
                    names: NameRule::Subdomain,
                    generation: false,
                    graceful_delete: false,
                    ttl_seconds: None,
                },
                custom: false,
                printer_columns: Vec::new(),
                schema: None,
                form: None,
                conversion: None,
                terminating: false,
                deprecation: None,
                storage_version: None,
                merging: std::sync::OnceLock::new(),
            },
            fields: Vec::new(),
            stand_ins: Vec::new(),
        }
    }

    fn short(mut self, names: &[&str]) -> Self {
        self.resource.short_names = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// Part of `kubectl get all`.
    fn all(mut self) -> Self {
        self.resource.categories.push("all".to_owned());
        self
    }

    /// Part of `kubectl get api-extensions`.
    fn extends_the_api(mut self) -> Self {
        self.resource.categories.push("api-extensions".to_owned());
        self
    }

    fn sub(mut self, subresource: Subresource) -> Self {
        self.resource.subresources.push(subresource);
        self
    }

    fn status(self) -> Self {
        self.sub(Subresource::Status)
    }

    fn scale(self, selector: &str) -> Self {
        self.sub(Subresource::Scale {
            spec_replicas: "spec.replicas".to_owned(),
            status_replicas: "status.replicas".to_owned(),
            selector: Some(selector.to_owned()),
        })
    }

    fn stored_at(mut self, prefix: &str) -> Self {
        self.resource.storage_prefix = prefix.to_owned();
        self
    }

    /// A selectable field that is `""` where absent.
    fn field(self, label: &str) -> Self {
        self.field_at(label, label, "")
    }

    /// A selectable field that Kubernetes fills with `default` when a client leaves it out.
    fn field_or(self, label: &str, default: &str) -> Self {
        self.field_at(label, label, default)
    }

    fn field_at(mut self, label: &str, path: &str, default: &str) -> Self {
        self.fields.push(SelectableField {
            label: label.to_owned(),
            path: path.split('.').map(str::to_owned).collect(),
            default: default.to_owned(),
        });
        self
    }

    /// The field `other` has the value of `field` where it has none of its own.
    fn stands_in(mut self, field: &'static str, other: &'static str) -> Self {
        self.stand_ins.push((other, field));
        self
    }

    /// A selectable field by which lists and dispatch are indexed.
    fn indexed(mut self, label: &str) -> Self {
        self.resource.indexed_fields.push(label.to_owned());
        self.field(label)
    }

    fn names(mut self, rule: NameRule) -> Self {
        self.resource.strategy.names = rule;
        self
    }

    /// An update must say which resource version it read.
    fn version_required(mut self) -> Self {
        self.resource.strategy.unconditional_update = false;
        self
    }

    /// Every answer warns so.
    fn deprecated(mut self, warning: &str) -> Self {
        self.resource.deprecation = Some(warning.to_owned());
        self
    }

    fn create_on_update(mut self) -> Self {
        self.resource.strategy.create_on_update = true;
        self
    }

    fn generation(mut self) -> Self {
        self.resource.strategy.generation = true;
        self
    }

    fn graceful_delete(mut self) -> Self {
        self.resource.strategy.graceful_delete = true;
        self
    }

    fn ttl(mut self, seconds: u64) -> Self {
        self.resource.strategy.ttl_seconds = Some(seconds);
        self
    }

    fn build(self) -> Resource {
        let mut resource = self.resource;
        let shape = ObjectShape::new(resource.namespaced, self.fields);
        let shape = self.stand_ins.iter().fold(shape, |shape, (absent, other)| shape.with_fallback(absent, other));
        resource.shape = Arc::new(shape);
        // Discovery lists subresources by name.
        resource.subresources.sort_by_key(Subresource::name);
        resource
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use crate::registry::{NameRule, Registry, Resource};

    fn find<'a>(registry: &'a Registry, path: &str) -> &'a Resource {
        let parts: Vec<&str> = path.split('/').collect();
        let (group, version, plural) = match parts[..] {
            [version, plural] => ("", version, plural),
            [group, version, plural] => (group, version, plural),
            _ => panic!("{path}"),
        };
        registry.find(group, version, plural).unwrap_or_else(|| panic!("{path} is served"))
    }

    #[test]
    fn nothing_is_served_or_stored_twice() {
        let registry = Registry::builtin();
        let (mut paths, mut prefixes, mut kinds) = (HashSet::new(), HashSet::new(), HashSet::new());
        for resource in registry.resources() {
            assert!(paths.insert((&resource.group, &resource.version, &resource.plural)), "{}", resource.plural);
            assert!(kinds.insert((&resource.group, &resource.version, &resource.kind)), "{}", resource.kind);
            if let Some(conversion) = &resource.conversion {
                assert_eq!(conversion.stored().storage_prefix, resource.storage_prefix, "{}", resource.plural);
                assert!(prefixes.contains(&resource.storage_prefix), "the stored version stands before the second");
                continue;
            }
            assert!(prefixes.insert(&resource.storage_prefix), "{} shares its storage", resource.plural);
            for indexed in &resource.indexed_fields {
                assert!(resource.shape.is_selectable(indexed), "{indexed} is indexed but not selectable");
            }
        }
        // No prefix is below another: a range over the upper one would hold the lower one's objects.
        for upper in &prefixes {
            let upper = format!("{upper}/");
            assert!(!prefixes.iter().any(|lower| lower.starts_with(&upper)), "something is stored below {upper}");
        }
    }

    #[test]
    fn objects_live_where_kubernetes_keeps_them() {
        let registry = Registry::builtin();
        for (path, prefix) in [
            ("v1/pods", "pods"),
            ("v1/services", "services/specs"),
            ("v1/endpoints", "services/endpoints"),
            ("v1/nodes", "minions"),
            ("v1/replicationcontrollers", "controllers"),
            ("networking.k8s.io/v1/ingresses", "ingress"),
            ("rbac.authorization.k8s.io/v1/roles", "roles"),
            ("apiextensions.k8s.io/v1/customresourcedefinitions", "apiextensions.k8s.io/customresourcedefinitions"),
        ] {
            assert_eq!(find(&registry, path).storage_prefix, prefix, "{path}");
        }
    }

    #[test]
    fn write_rules_are_those_of_the_strategies() {
        let registry = Registry::builtin();
        // path, unconditional update, create on update, generation
        for (path, unconditional, create, generation) in [
            ("v1/pods", true, false, true),
            ("v1/configmaps", true, false, false),
            ("v1/services", true, true, false),
            ("v1/endpoints", true, true, false),
            ("coordination.k8s.io/v1/leases", false, true, false),
            ("node.k8s.io/v1/runtimeclasses", false, true, false),
            ("apps/v1/deployments", true, false, true),
            ("policy/v1/poddisruptionbudgets", false, false, true),
            ("apiextensions.k8s.io/v1/customresourcedefinitions", false, false, true),
            ("rbac.authorization.k8s.io/v1/clusterroles", true, true, false),
        ] {
            let strategy = &find(&registry, path).strategy;
            let seen = (strategy.unconditional_update, strategy.create_on_update, strategy.generation);
            assert_eq!(seen, (unconditional, create, generation), "{path}");
        }
        assert_eq!(find(&registry, "v1/events").strategy.ttl_seconds, Some(3600));
        assert_eq!(find(&registry, "v1/services").strategy.names, NameRule::Label);
        assert!(find(&registry, "v1/pods").strategy.graceful_delete);
        assert!(!find(&registry, "v1/namespaces").serves_delete_collection());
    }

    #[test]
    fn field_labels_are_those_of_the_conversions() {
        let registry = Registry::builtin();
        for (path, label, selectable) in [
            ("v1/pods", "spec.nodeName", true),
            ("v1/pods", "status.podIPs", true),
            ("v1/pods", "spec.priority", false),
            ("v1/pods", "metadata.namespace", true),
            ("v1/nodes", "metadata.namespace", false),
            ("v1/secrets", "type", true),
            ("batch/v1/jobs", "status.successful", true),
            ("apps/v1/replicasets", "status.replicas", false),
            ("v1/events", "source", true),
        ] {
            assert_eq!(find(&registry, path).shape.is_selectable(label), selectable, "{path} by {label}");
        }
    }

    #[test]
    fn an_event_is_from_its_source_or_else_its_reporter() {
        use listwatch_meta::{Change, Object, Revision};
        let registry = Registry::builtin();
        let events = find(&registry, "v1/events");
        for (event, source) in [
            (r#"{"metadata":{},"source":{"component":"kubelet"},"reportingComponent":"x"}"#, "kubelet"),
            (r#"{"metadata":{},"source":{},"reportingComponent":"scheduler"}"#, "scheduler"),
            (r#"{"metadata":{},"reportingComponent":""}"#, ""),
        ] {
            let key = events.key(Some("n"), "e").unwrap();
            let object = Object::from_stored(key, Revision::new(1), Change::Added, event.as_bytes(), &events.shape);
            assert_eq!(object.unwrap().field("source", &events.shape).as_deref(), Some(source), "{event}");
        }
    }

    #[test]
    fn subresources_are_those_of_kube_apiserver() {
        let registry = Registry::builtin();
        let mut unusual = Vec::new();
        let mut scales = Vec::new();
        for resource in registry.resources() {
            for subresource in &resource.subresources {
                let line = format!("{}/{}", resource.plural, subresource.name());
                match subresource.name() {
                    "status" => assert_eq!(subresource.verbs(), ["get", "patch", "update"], "{line}"),
                    "scale" => scales.push(line),
                    _ => unusual.push(format!("{line}: {}", subresource.verbs().join(" "))),
                }
            }
        }
        unusual.sort();
        assert_eq!(
            unusual,
            [
                "certificatesigningrequests/approval: get patch update",
                "namespaces/finalize: update",
                "nodes/proxy: create delete get patch update",
                "pods/attach: create get",
                "pods/binding: create",
                "pods/ephemeralcontainers: get patch update",
                "pods/eviction: create",
                "pods/exec: create get",
                "pods/log: get",
                "pods/portforward: create get",
                "pods/proxy: create delete get patch update",
                "pods/resize: get patch update",
                "serviceaccounts/token: create",
                "services/proxy: create delete get patch update",
            ]
        );
        assert_eq!(
            scales,
            ["replicationcontrollers/scale", "deployments/scale", "replicasets/scale", "statefulsets/scale"]
        );
        let without_status: Vec<&str> = registry
            .resources()
            .iter()
            .filter(|resource| resource.conversion.is_none() && resource.subresource("status").is_none())
            .map(|resource| resource.plural.as_str())
            .collect();
        assert_eq!(
            without_status.join(" "),
            "configmaps endpoints events limitranges podtemplates secrets serviceaccounts controllerrevisions \
             ingressclasses ipaddresses networkpolicies clusterrolebindings clusterroles rolebindings roles \
             csidrivers csinodes csistoragecapacities storageclasses volumeattributesclasses \
             mutatingadmissionpolicies mutatingadmissionpolicybindings mutatingwebhookconfigurations \
             validatingadmissionpolicybindings validatingwebhookconfigurations priorityclasses leases \
             runtimeclasses endpointslices deviceclasses resourceclaimtemplates resourceslices",
            "all others have a status of their own"
        );
    }
}
