//! Which columns a built-in kind shows and what its cells say: one [`Printer`] per kind.
//!
//! Rules: `pkg/printers/internalversion/printers.go` of Kubernetes v1.36, wide cells always made.
//! Where Kubernetes would have filled a field with a default before storing it, the printers show
//! that default.

mod core;
mod extension;
mod network;
mod pod;
mod storage;
mod text;
mod workload;

use time::OffsetDateTime;

use super::Cell;
use super::age::since;
use super::column::{Column, NAME};
use super::view::Json;

/// How a kind is shown.
pub(super) struct Printer {
    pub(super) columns: &'static [Column],
    pub(super) cells: fn(Printed<'_>) -> Vec<Cell>,
}

/// An object being shown. Its three large parts, and what every row needs of the first, are found in
/// one pass each.
#[derive(Clone, Copy)]
pub(super) struct Printed<'a> {
    object: Json<'a>,
    metadata: Json<'a>,
    name: Json<'a>,
    created: Json<'a>,
    deleted: Json<'a>,
    spec: Json<'a>,
    status: Json<'a>,
    now: OffsetDateTime,
}

impl<'a> Printed<'a> {
    pub(super) fn new(object: Json<'a>, now: OffsetDateTime) -> Self {
        let [metadata, spec, status] = object.get_all(["metadata", "spec", "status"]);
        let [name, created, deleted] = metadata.get_all(["name", "creationTimestamp", "deletionTimestamp"]);
        Printed { object, metadata, name, created, deleted, spec, status, now }
    }

    /// The whole object.
    pub(super) fn object(self) -> Json<'a> {
        self.object
    }

    pub(super) fn metadata(self) -> Json<'a> {
        self.metadata
    }

    /// A member of the object itself; for the three large ones there are methods.
    fn get(self, key: &str) -> Json<'a> {
        self.object.get(key)
    }

    /// The value at a dotted path.
    fn at(self, path: &str) -> Json<'a> {
        match path.split_once('.') {
            Some(("metadata", rest)) => self.metadata.at(rest),
            Some(("spec", rest)) => self.spec.at(rest),
            Some(("status", rest)) => self.status.at(rest),
            _ => self.object.at(path),
        }
    }

    fn spec(self) -> Json<'a> {
        self.spec
    }

    pub(super) fn status(self) -> Json<'a> {
        self.status
    }

    pub(super) fn name(self) -> String {
        self.name.string()
    }

    fn annotation(self, name: &str) -> Json<'a> {
        self.metadata.get("annotations").get(name)
    }

    fn is_being_deleted(self) -> bool {
        self.deleted.exists()
    }

    fn age(self) -> String {
        self.since(self.created)
    }

    fn since(self, time: Json<'_>) -> String {
        since(time.time(), self.now)
    }
}

/// The printer of a built-in resource.
pub(super) fn find(group: &str, plural: &str) -> &'static Printer {
    match (group, plural) {
        ("", "componentstatuses") => &core::COMPONENT_STATUS,
        ("", "configmaps") => &core::CONFIG_MAP,
        ("", "endpoints") => &network::ENDPOINTS,
        ("", "events") => &core::EVENT,
        ("", "namespaces") => &core::NAMESPACE,
        ("", "nodes") => &core::NODE,
        ("", "persistentvolumeclaims") => &storage::PERSISTENT_VOLUME_CLAIM,
        ("", "persistentvolumes") => &storage::PERSISTENT_VOLUME,
        ("", "pods") => &pod::POD,
        ("", "podtemplates") => &workload::POD_TEMPLATE,
        ("", "replicationcontrollers") => &workload::REPLICATION_CONTROLLER,
        ("", "resourcequotas") => &core::RESOURCE_QUOTA,
        ("", "secrets") => &core::SECRET,
        ("", "serviceaccounts") => &NAME_AND_AGE,
        ("", "services") => &network::SERVICE,
        ("admissionregistration.k8s.io", "mutatingadmissionpolicies") => &extension::MUTATING_POLICY,
        ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings") => &extension::POLICY_BINDING,
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations") => &extension::WEBHOOKS,
        ("admissionregistration.k8s.io", "validatingadmissionpolicies") => &extension::VALIDATING_POLICY,
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings") => &extension::POLICY_BINDING,
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations") => &extension::WEBHOOKS,
        ("apiregistration.k8s.io", "apiservices") => &extension::API_SERVICE,
        ("apps", "controllerrevisions") => &workload::CONTROLLER_REVISION,
        ("apps", "daemonsets") => &workload::DAEMON_SET,
        ("apps", "deployments") => &workload::DEPLOYMENT,
        ("apps", "replicasets") => &workload::REPLICA_SET,
        ("apps", "statefulsets") => &workload::STATEFUL_SET,
        ("autoscaling", "horizontalpodautoscalers") => &workload::HORIZONTAL_POD_AUTOSCALER,
        ("batch", "cronjobs") => &workload::CRON_JOB,
        ("batch", "jobs") => &workload::JOB,
        ("certificates.k8s.io", "certificatesigningrequests") => &extension::CERTIFICATE_SIGNING_REQUEST,
        ("coordination.k8s.io", "leases") => &core::LEASE,
        ("discovery.k8s.io", "endpointslices") => &network::ENDPOINT_SLICE,
        ("flowcontrol.apiserver.k8s.io", "flowschemas") => &extension::FLOW_SCHEMA,
        ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations") => &extension::PRIORITY_LEVEL,
        ("networking.k8s.io", "ingressclasses") => &network::INGRESS_CLASS,
        ("networking.k8s.io", "ingresses") => &network::INGRESS,
        ("networking.k8s.io", "ipaddresses") => &network::IP_ADDRESS,
        ("networking.k8s.io", "networkpolicies") => &network::NETWORK_POLICY,
        ("networking.k8s.io", "servicecidrs") => &network::SERVICE_CIDR,
        ("node.k8s.io", "runtimeclasses") => &core::RUNTIME_CLASS,
        ("policy", "poddisruptionbudgets") => &workload::POD_DISRUPTION_BUDGET,
        ("rbac.authorization.k8s.io", "clusterrolebindings" | "rolebindings") => &extension::ROLE_BINDING,
        ("resource.k8s.io", "deviceclasses" | "resourceclaimtemplates") => &NAME_AND_AGE,
        ("resource.k8s.io", "resourceclaims") => &extension::RESOURCE_CLAIM,
        ("resource.k8s.io", "resourceslices") => &extension::RESOURCE_SLICE,
        ("scheduling.k8s.io", "priorityclasses") => &core::PRIORITY_CLASS,
        ("storage.k8s.io", "csidrivers") => &storage::CSI_DRIVER,
        ("storage.k8s.io", "csinodes") => &storage::CSI_NODE,
        ("storage.k8s.io", "csistoragecapacities") => &storage::CSI_STORAGE_CAPACITY,
        ("storage.k8s.io", "storageclasses") => &storage::STORAGE_CLASS,
        ("storage.k8s.io", "volumeattachments") => &storage::VOLUME_ATTACHMENT,
        ("storage.k8s.io", "volumeattributesclasses") => &storage::VOLUME_ATTRIBUTES_CLASS,
        // Limit ranges, roles, definitions and whatever has no printer of its own.
        _ => &DEFAULT,
    }
}

/// What is shown of a kind without a printer (`rest.NewDefaultTableConvertor`).
static DEFAULT: Printer = Printer {
    columns: &[NAME, Column::date("Created At", "When the object was created, RFC 3339.")],
    cells: |object| vec![object.name().into(), object.created.string().into()],
};

static NAME_AND_AGE: Printer =
    Printer { columns: &[NAME, super::column::AGE], cells: |object| vec![object.name().into(), object.age().into()] };
