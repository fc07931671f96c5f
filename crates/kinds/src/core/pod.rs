//! `Pod (v1)`: pods.

use listwatch_validation::pod_spec;

use crate::Subresource;
use crate::{Field, Kind, MetadataScope, WriteScope};

pub(crate) static KIND: Kind = Kind {
    short_names: &["po"],
    generation: true,
    graceful_delete: true,
    categories: &["all"],
    fields: &[
        Field { indexed: true, ..Field::new("spec.nodeName") },
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
    defaults: &crate::defaults::table::POD,
    admission_fields: &["tolerations", "priority", "preemptionPolicy"],
    prepare_for_create: crate::hooks::pods::create,
    prepare_for_update: crate::hooks::pods::update,
    validate: pod_spec::validate_pod,
    validate_transition: crate::hooks::pods::judge,
    status_write: WriteScope {
        metadata: MetadataScope::Without(&["ownerReferences"]),
        reset: &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]],
    },
    printer: &crate::printers::pod::POD,
    zero_members: r#""spec":{"containers":null},"status":{}"#,
    returns_deleted: true,
    ..Kind::namespaced("", "v1", "pods", "Pod")
};
