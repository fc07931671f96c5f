//! What built-in kinds demand of their fields, with kube-apiserver's texts and in its order
//! (`pkg/apis/*/validation` of v1.36, seen at a real server): one function for each kind, in a module for its group.
//!
//! ```text
//!  create ────────▶ validate(object)
//!  update ────────▶ validate(object, old) ─▶ validate_update(object, old)
//!  PUT …/status ──▶ validate_status(object, old)
//! ```
//!
//! Where it is not certain that kube-apiserver refuses an object, it is accepted. Objects of custom kinds are
//! checked by their schemas instead.

mod access;
mod admission;
mod aggregation;
mod autoscaling;
mod batch;
pub(super) mod certificates;
mod csi;
pub(super) mod devices;
pub(super) mod endpoints;
mod events;
mod flow_control;
mod networking;
pub(super) mod nodes;
pub(super) mod pods;
mod quotas;
mod rbac;
mod services;
mod storage;
pub(super) mod volumes;
mod webhooks;
mod workloads;

use listwatch_validation::*;

/// Validates an object; the second one is the object that it replaces.
type Check = fn(&Object, Option<&Object>, &mut Errors);

/// Validates an object of a built-in kind; `old` is the object that it replaces. Some rules bear in an update
/// what was stored before they came.
pub(super) fn validate(group: &str, kind: &str, object: &Object, old: Option<&Object>, errors: &mut Errors) {
    if let Some(check) = check_of(group, kind) {
        check(object, old, errors);
    }
}

/// The rules of a kind; some kinds have none but for their metadata.
fn check_of(group: &str, kind: &str) -> Option<Check> {
    Some(match (group, kind) {
        ("", "ConfigMap") => storage::config_map,
        ("", "Endpoints") => endpoints::endpoints,
        ("", "Event") => events::event,
        ("", "LimitRange") => quotas::limit_range,
        ("", "Namespace") => namespace,
        ("", "Node") => nodes::node,
        ("", "PersistentVolume") => volumes::volume,
        ("", "PersistentVolumeClaim") => volumes::claim,
        ("", "Pod") => pods::pod,
        ("", "PodTemplate") => workloads::pod_template,
        ("", "ReplicationController") => workloads::replication_controller,
        ("", "ResourceQuota") => quotas::resource_quota,
        ("", "Secret") => storage::secret,
        ("", "Service") => services::service,
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicy") => admission::mutating_policy,
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding") => admission::mutating_binding,
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration") => webhooks::mutating,
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => admission::validating_policy,
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding") => admission::validating_binding,
        ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration") => webhooks::validating,
        ("apiregistration.k8s.io", "APIService") => aggregation::api_service,
        ("apps", "ControllerRevision") => workloads::controller_revision,
        ("apps", "DaemonSet") => workloads::daemon_set,
        ("apps", "Deployment") => workloads::deployment,
        ("apps", "ReplicaSet") => workloads::replica_set,
        ("apps", "StatefulSet") => workloads::stateful_set,
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaling::autoscaler,
        ("batch", "CronJob") => batch::cron_job,
        ("batch", "Job") => batch::job,
        ("certificates.k8s.io", "CertificateSigningRequest") => certificates::request,
        ("coordination.k8s.io", "Lease") => access::lease,
        ("discovery.k8s.io", "EndpointSlice") => endpoints::endpoint_slice,
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => flow_control::flow_schema,
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => flow_control::priority_level,
        ("networking.k8s.io", "IPAddress") => networking::ip_address,
        ("networking.k8s.io", "Ingress") => networking::ingress,
        ("networking.k8s.io", "IngressClass") => networking::ingress_class,
        ("networking.k8s.io", "NetworkPolicy") => networking::network_policy,
        ("networking.k8s.io", "ServiceCIDR") => networking::service_cidr,
        ("node.k8s.io", "RuntimeClass") => access::runtime_class,
        ("policy", "PodDisruptionBudget") => autoscaling::budget,
        ("rbac.authorization.k8s.io", "ClusterRole") => rbac::cluster_role,
        ("rbac.authorization.k8s.io", "ClusterRoleBinding") => rbac::cluster_role_binding,
        ("rbac.authorization.k8s.io", "Role") => rbac::role,
        ("rbac.authorization.k8s.io", "RoleBinding") => rbac::role_binding,
        ("resource.k8s.io", "DeviceClass") => devices::device_class,
        ("resource.k8s.io", "ResourceClaim") => devices::claim,
        ("resource.k8s.io", "ResourceClaimTemplate") => devices::claim_template,
        ("resource.k8s.io", "ResourceSlice") => devices::resource_slice,
        ("scheduling.k8s.io", "PriorityClass") => access::priority_class,
        ("storage.k8s.io", "CSIDriver") => csi::csi_driver,
        ("storage.k8s.io", "CSINode") => csi::csi_node,
        ("storage.k8s.io", "CSIStorageCapacity") => csi::csi_storage_capacity,
        ("storage.k8s.io", "StorageClass") => csi::storage_class,
        ("storage.k8s.io", "VolumeAttachment") => csi::volume_attachment,
        ("storage.k8s.io", "VolumeAttributesClass") => csi::volume_attributes_class,
        _ => return None,
    })
}

/// Who holds a new namespace; of one that is there, `/finalize` says so.
fn namespace(namespace: &Object, old: Option<&Object>, errors: &mut Errors) {
    if old.is_none() {
        for finalizer in texts(child(namespace, "spec"), "finalizers") {
            super::kinds::namespaces::finalizer(finalizer, "spec.finalizers", errors);
        }
    }
}

/// Validates what an update changes: fields that never change, and transitions.
pub(super) fn validate_update(group: &str, kind: &str, new: &Object, old: &Object, errors: &mut Errors) {
    let check: fn(&Object, &Object, &mut Errors) = match (group, kind) {
        ("", "Secret") => storage::update_secret,
        ("apps", "ControllerRevision") => workloads::update_controller_revision,
        ("apps", "DaemonSet" | "Deployment" | "ReplicaSet") => workloads::update_selector,
        ("apps", "StatefulSet") => workloads::update_stateful_set,
        ("batch", "Job") => batch::update_job,
        ("node.k8s.io", "RuntimeClass") => access::update_runtime_class,
        ("rbac.authorization.k8s.io", "ClusterRoleBinding" | "RoleBinding") => rbac::update_binding,
        ("scheduling.k8s.io", "PriorityClass") => access::update_priority_class,
        _ => return,
    };
    check(new, old, errors);
}

/// Validates a status that is written through the subresource.
pub(super) fn validate_status(group: &str, kind: &str, new: &Object, old: &Object, errors: &mut Errors) {
    let check: Check = match (group, kind) {
        ("", "Node") => nodes::node_status,
        ("", "PersistentVolumeClaim") => volumes::claim_status,
        ("", "ResourceQuota") => quotas::resource_quota_status,
        ("", "Service") => services::service_status,
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => admission::policy_status,
        ("apiregistration.k8s.io", "APIService") => aggregation::status,
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaling::autoscaler_status,
        ("batch", "Job") => batch::job_status,
        ("flowcontrol.apiserver.k8s.io", "FlowSchema" | "PriorityLevelConfiguration") => flow_control::status,
        ("networking.k8s.io", "Ingress") => networking::ingress_status,
        ("policy", "PodDisruptionBudget") => autoscaling::budget_status,
        ("resource.k8s.io", "ResourceClaim") => devices::claim_status,
        ("storage.k8s.io", "VolumeAttachment") => csi::volume_attachment_status,
        _ => return,
    };
    check(new, Some(old), errors);
}

/// Finds what is wrong with an object that was sent in the second version of its kind, besides what is
/// wrong in either; `old` is what it is to replace, in the version in which both are stored.
pub(super) fn validate_by_second_version(
    group: &str,
    kind: &str,
    object: &Object,
    old: Option<&Object>,
    errors: &mut Errors,
) {
    if (group, kind) == ("", "Event") {
        match old {
            None => events::created(object, errors),
            Some(old) => events::updated(object, old, errors),
        }
    }
}

#[cfg(test)]
mod tests;
