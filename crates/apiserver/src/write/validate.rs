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
mod differences;
pub(super) mod endpoints;
mod events;
mod flow_control;
pub(super) mod formats;
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

use std::ops::{Deref, DerefMut};

use listwatch_meta::FieldError;
use listwatch_meta::selector::{label_value_problems, qualified_name_problems};
use listwatch_schema::limits::FIELD_ERRORS_MAX;
use serde_json::{Map, Value};

use super::names;
use crate::registry::NameRule;

type Object = Map<String, Value>;

/// What is wrong with an object: [`FIELD_ERRORS_MAX`] errors at most. The object is refused all the
/// same; what is wrong beyond them is left out.
#[derive(Debug, Default)]
pub(super) struct Errors(Vec<FieldError>);

impl Errors {
    /// Adds an error, where there is room for one.
    pub(super) fn push(&mut self, error: FieldError) {
        if self.0.len() < FIELD_ERRORS_MAX {
            self.0.push(error);
        }
    }

    /// Adds errors, as far as there is room.
    pub(super) fn extend(&mut self, errors: impl IntoIterator<Item = FieldError>) {
        let room = FIELD_ERRORS_MAX.saturating_sub(self.0.len());
        self.0.extend(errors.into_iter().take(room));
    }
}

impl Deref for Errors {
    type Target = Vec<FieldError>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Errors {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

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

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(members)) => members.is_empty(),
        Some(Value::Number(number)) => number.as_i64() == Some(0),
        Some(Value::Bool(_)) => false,
    }
}

/// The member, when it is given at all.
fn given<'a>(object: &'a Object, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null())
}

fn text<'a>(object: &'a Object, name: &str) -> &'a str {
    object.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn number(object: &Object, name: &str) -> Option<i64> {
    object.get(name).and_then(Value::as_i64)
}

/// A member that is an object; an empty one where it is not.
fn child<'a>(object: &'a Object, name: &str) -> &'a Object {
    static EMPTY: std::sync::LazyLock<Object> = std::sync::LazyLock::new(Map::new);
    object.get(name).and_then(Value::as_object).unwrap_or(&EMPTY)
}

fn items<'a>(object: &'a Object, name: &str) -> &'a [Value] {
    object.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The objects in a list, with their positions.
fn objects<'a>(object: &'a Object, name: &str) -> impl Iterator<Item = (usize, &'a Object)> {
    items(object, name).iter().enumerate().filter_map(|(position, item)| Some((position, item.as_object()?)))
}

fn one_of(object: &Object, name: &str, at: &str, supported: &[&str], errors: &mut Errors) {
    let value = text(object, name);
    if !value.is_empty() && !supported.contains(&value) {
        errors.push(FieldError::not_supported(format!("{at}{name}"), value, supported));
    }
}

/// A name, where one is given.
fn named(name: &str, rule: NameRule, field: &str, errors: &mut Errors) {
    if !name.is_empty() {
        for problem in names::problems(rule, name, false) {
            errors.push(FieldError::invalid(field, quoted(name), problem));
        }
    }
}

/// Adds an error for each problem of a value.
fn invalid_each(problems: Vec<String>, value: &str, field: &str, errors: &mut Errors) {
    for problem in problems {
        errors.push(FieldError::invalid(field, quoted(value), problem));
    }
}

/// A label or annotation key (`ValidateLabelName`, `ValidateQualifiedName`).
fn qualified_name(value: &str, field: &str, errors: &mut Errors) {
    invalid_each(qualified_name_problems(value), value, field, errors);
}

/// A flag that is set.
fn is_true(object: &Object, name: &str) -> bool {
    object.get(name) == Some(&Value::Bool(true))
}

/// The texts of a list.
fn texts<'a>(object: &'a Object, name: &str) -> impl Iterator<Item = &'a str> {
    items(object, name).iter().map(|item| item.as_str().unwrap_or_default())
}

/// A list as an error shows it.
fn shown_list(object: &Object, name: &str) -> Value {
    object.get(name).cloned().unwrap_or_default()
}

/// Are two values the same to `equality.Semantic.DeepEqual`? An empty list, an empty map and an empty text
/// are as good as none.
pub(super) fn is_same(a: Option<&Value>, b: Option<&Value>) -> bool {
    let none = |value: Option<&Value>| match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(members)) => members.values().all(|value| is_same(Some(value), None)),
        Some(_) => false,
    };
    match (a, b) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            a.iter().all(|(name, value)| is_same(Some(value), b.get(name)))
                && b.iter().all(|(name, value)| a.contains_key(name) || is_same(Some(value), None))
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(Some(a), Some(b)))
        }
        (a, b) if none(a) || none(b) => none(a) && none(b),
        (a, b) => a == b,
    }
}

/// The longest reason of a condition, and its longest message, in bytes.
const CONDITION_REASON_BYTES_MAX: usize = 1024;
const CONDITION_MESSAGE_BYTES_MAX: usize = 32 * 1024;

/// Conditions of the common type (`metav1.Condition`, `ValidateConditions`).
fn conditions(status: &Object, at: &str, errors: &mut Errors) {
    let mut seen = std::collections::HashSet::new();
    for (position, condition) in objects(status, "conditions") {
        let at = format!("{at}conditions[{position}].");
        let kind = text(condition, "type");
        if !seen.insert(kind) {
            errors.push(FieldError::duplicate(format!("{at}type"), quoted(kind)));
        }
        qualified_name(kind, &format!("{at}type"), errors);
        let supported = ["False", "True", "Unknown"];
        let state = text(condition, "status");
        if !supported.contains(&state) {
            errors.push(FieldError::not_supported(format!("{at}status"), state, &supported));
        }
        if let Some(generation) = number(condition, "observedGeneration").filter(|generation| *generation < 0) {
            let why = "must be greater than or equal to zero";
            errors.push(FieldError::invalid(format!("{at}observedGeneration"), generation, why));
        }
        if given(condition, "lastTransitionTime").is_none() {
            errors.push(FieldError::required(format!("{at}lastTransitionTime"), ""));
        }
        condition_reason(text(condition, "reason"), &format!("{at}reason"), errors);
        no_longer_than(text(condition, "message"), CONDITION_MESSAGE_BYTES_MAX, &format!("{at}message"), errors);
    }
}

fn condition_reason(reason: &str, field: &str, errors: &mut Errors) {
    if reason.is_empty() {
        errors.push(FieldError::required(field, ""));
        return;
    }
    let inside = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b',' | b':');
    let ends = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let bytes = reason.as_bytes();
    let begins = bytes.first().is_some_and(u8::is_ascii_alphabetic);
    if !begins || !ends(bytes.last()) || !bytes.iter().all(inside) {
        let why = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";
        errors.push(FieldError::invalid(field, quoted(reason), why));
    }
    no_longer_than(reason, CONDITION_REASON_BYTES_MAX, field, errors);
}

/// A text has no more bytes than that.
fn no_longer_than(text: &str, bytes_max: usize, field: &str, errors: &mut Errors) {
    if text.len() > bytes_max {
        errors.push(FieldError::too_long(field, format_args!("may not be more than {bytes_max} bytes")));
    }
}

/// A text as an error shows it.
fn quoted(text: &str) -> Value {
    Value::String(text.to_owned())
}

/// The name of a port (`IsValidPortName`): up to 15 of small letters, digits and dashes.
fn port_name(name: &str, field: &str, errors: &mut Errors) {
    let mut wrong = |why: &str| errors.push(FieldError::invalid(field, quoted(name), why));
    let bytes = name.as_bytes();
    if bytes.len() > 15 {
        wrong("must be no more than 15 characters");
    }
    if !bytes.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-') {
        wrong("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)");
    }
    if !bytes.iter().any(u8::is_ascii_lowercase) {
        wrong("must contain at least one letter (a-z)");
    }
    if name.contains("--") {
        wrong("must not contain consecutive hyphens");
    }
    if name.starts_with('-') || name.ends_with('-') {
        wrong("must not begin or end with a hyphen");
    }
}

/// A label selector.
fn selector(object: &Object, name: &str, at: &str, errors: &mut Errors) {
    let Some(Value::Object(selector)) = object.get(name) else { return };
    let field = format!("{at}{name}");
    if let Some(Value::Object(labels)) = selector.get("matchLabels") {
        super::metadata::validate_labels(labels, &format!("{field}.matchLabels"), errors);
    }
    for (position, requirement) in objects(selector, "matchExpressions") {
        let field = format!("{field}.matchExpressions[{position}]");
        let none = items(requirement, "values").is_empty();
        match text(requirement, "operator") {
            "In" | "NotIn" if none => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(format!("{field}.values"), why));
            }
            "Exists" | "DoesNotExist" if !none => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(format!("{field}.values"), why));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                let why = "not a valid selector operator";
                errors.push(FieldError::invalid(format!("{field}.operator"), quoted(other), why));
            }
        }
        qualified_name(text(requirement, "key"), &format!("{field}.key"), errors);
        for (position, value) in texts(requirement, "values").enumerate() {
            let problems = label_value_problems(value);
            if !problems.is_empty() {
                invalid_each(problems, value, &format!("{field}.values[{position}]"), errors);
            }
        }
    }
}

#[cfg(test)]
mod tests;
