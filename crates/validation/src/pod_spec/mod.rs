//! Validates pods, and the pod templates of other kinds.
//!
//! Rules: `ValidatePodSpec` in `pkg/apis/core/validation/validation.go` of Kubernetes v1.36. The functions follow
//! upstream's order, because clients receive the errors in that order.
//!
//! ```text
//!  pod ────────▶ annotations ─────────▶ spec ─▶ rules for new pods
//!  template ───▶ labels, annotations ─▶ spec ─▶ rules for templates
//! ```

mod annotations;
mod containers;
mod disabled_fields;
mod placement;
mod resources;
mod security;
mod volumes;

use std::collections::{BTreeSet, HashMap};

use listwatch_json::{Map, Value};
use listwatch_schema::Path;

pub use annotations::{APPARMOR_OF_CONTAINER, MIRROR_ANNOTATION};
pub use disabled_fields::drop_disabled_fields;
pub use placement::tolerations;
pub use resources::{container_resources, default_pod_level_resources};
pub use security::PROFILE_BYTES_MAX;

use crate::field_rules::{optional, required_one_of};
use crate::formats::{self, label, qualified_name, subdomain};
use crate::{Errors, Object, child, given, is_true, items, number, objects, shown_list, text, texts};

/// The largest value of an `int32`.
const INT32_MAX: i64 = 2_147_483_647;

/// The owner of a spec: a pod or a template.
#[derive(Clone, Copy)]
struct SpecOwner<'a> {
    /// Whether the owner is a pod, not a template.
    is_pod: bool,
    /// The name of the pod; empty for a template.
    name: &'a str,
    /// Whether the pod mirrors a static pod.
    is_mirror: bool,
    /// The spec before an update.
    old: Option<&'a Object>,
}

/// A spec, and the data that the rules for its containers need.
struct PodContext<'a> {
    owner: SpecOwner<'a>,
    spec: &'a Object,
    /// The names of the valid volumes. The value is true for a volume of a claim.
    volumes: HashMap<&'a str, bool>,
    /// The names of the pod's resource claims.
    claims: BTreeSet<&'a str>,
    /// `terminationGracePeriodSeconds`.
    grace_seconds: Option<i64>,
    /// Whether the pod runs in the host's user namespace.
    host_users: bool,
    /// The name of the operating system.
    os: Option<&'a str>,
}

/// Validates a pod (`validatePodMetadataAndSpec` and `ValidatePodCreate`).
pub fn validate_pod(pod: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (metadata, pod_spec) = (child(pod, "metadata"), child(pod, "spec"));
    let (notes_at, at) = (Path::root("metadata"), Path::root("spec"));
    let old_metadata = old.map(|old| child(old, "metadata"));
    annotations::validate(metadata, pod_spec, old_metadata, &notes_at.child("annotations"), errors);
    let owner = SpecOwner {
        is_pod: true,
        name: text(metadata, "name"),
        is_mirror: child(metadata, "annotations").contains_key(MIRROR_ANNOTATION),
        old: old.map(|old| child(old, "spec")),
    };
    validate_spec(pod_spec, owner, &at, errors);
    for list in ["containers", "initContainers"] {
        let at = at.child(list);
        for (position, container) in objects(pod_spec, list) {
            containers::image(container, &at.index(position), errors);
        }
    }
    if old.is_some() {
        return;
    }
    if !items(pod_spec, "ephemeralContainers").is_empty() {
        errors.forbidden(&at.child("ephemeralContainers"), "cannot be set on create");
    }
    if !text(pod_spec, "nodeName").is_empty() && !items(pod_spec, "schedulingGates").is_empty() {
        errors.forbidden(&at.child("nodeName"), "cannot be set until all schedulingGates have been cleared");
    }
    annotations::match_fields(metadata, pod_spec, &at, errors);
}

/// Validates the annotations of a pod in an update of the pod or of its status (`ValidatePodSpecificAnnotations`).
pub fn validate_pod_annotations(pod: &Object, old: &Object, errors: &mut Errors) {
    let (at, old) = (Path::root("metadata"), Some(child(old, "metadata")));
    annotations::validate(child(pod, "metadata"), child(pod, "spec"), old, &at.child("annotations"), errors);
}

/// Validates the annotations of a pod template. `old` is the template before an update.
pub fn validate_template_annotations(template: &Object, old: Option<&Object>, at: &Path<'_>, errors: &mut Errors) {
    let (metadata, pod_spec) = (child(template, "metadata"), child(template, "spec"));
    let notes_at = at.child("annotations");
    if let Some(Value::Object(notes)) = metadata.get("annotations") {
        crate::object_meta::validate_annotations_at(notes, &notes_at, errors);
    }
    annotations::validate(metadata, pod_spec, old.map(|old| child(old, "metadata")), &notes_at, errors);
}

/// Validates a pod template (`ValidatePodTemplateSpec`).
pub fn validate_template(template: &Object, old: Option<&Object>, at: &Path<'_>, errors: &mut Errors) {
    let (metadata, pod_spec) = (child(template, "metadata"), child(template, "spec"));
    formats::labels(metadata, "labels", &at.child("labels"), errors);
    validate_template_annotations(template, old, at, errors);
    let at = at.child("spec");
    let owner = SpecOwner { is_pod: false, name: "", is_mirror: false, old: old.map(|old| child(old, "spec")) };
    validate_spec(pod_spec, owner, &at, errors);
    annotations::match_fields(metadata, pod_spec, &at, errors);
    if !items(pod_spec, "ephemeralContainers").is_empty() {
        errors.forbidden(&at.child("ephemeralContainers"), "ephemeral containers not allowed in pod template");
    }
}

/// Validates a spec (`ValidatePodSpec`).
fn validate_spec<'a>(spec: &'a Object, owner: SpecOwner<'a>, at: &Path<'_>, errors: &mut Errors) {
    let volumes = volumes::validate(spec, owner, &at.child("volumes"), errors);
    let claims = resource_claims(spec, owner, &at.child("resourceClaims"), errors);
    let pod = PodContext {
        owner,
        spec,
        volumes,
        claims,
        grace_seconds: number(spec, "terminationGracePeriodSeconds"),
        host_users: spec.get("hostUsers") != Some(&Value::Bool(false)),
        os: given(spec, "os").and_then(Value::as_object).map(|os| text(os, "name")),
    };
    containers::containers(&pod, at, errors);
    containers::init_containers(&pod, at, errors);
    containers::ephemeral_containers(&pod, at, errors);
    resources::pod_resources(&pod, &at.child("resources"), errors);
    host_ports(&pod, &at.child("containers"), errors);
    required_one_of(spec, "restartPolicy", &["Always", "OnFailure", "Never"], at, errors);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    required_one_of(spec, "dnsPolicy", &policies, at, errors);
    formats::labels(spec, "nodeSelector", &at.child("nodeSelector"), errors);
    security::pod_security_context(&pod, at, errors);
    placement::affinity(spec, owner.old, &at.child("affinity"), errors);
    dns_config(spec, &at.child("dnsConfig"), errors);
    let gates_at = at.child("readinessGates");
    for (position, gate) in objects(spec, "readinessGates") {
        let at = gates_at.index(position);
        qualified_name(text(gate, "conditionType"), &at.child("conditionType"), errors);
    }
    scheduling_gates(spec, &at.child("schedulingGates"), errors);
    placement::topology_spread(spec, owner.old, &at.child("topologySpreadConstraints"), errors);
    security::host_processes(&pod, at, errors);
    security::user_namespace(&pod, at, errors);
    hostname_override(spec, &at.child("hostnameOverride"), errors);
    for (name, check) in
        [("serviceAccountName", subdomain as fn(&str, &Path<'_>, &mut Errors)), ("nodeName", subdomain)]
    {
        optional(spec, name, check, at, errors);
    }
    if let Some(seconds) = number(spec, "activeDeadlineSeconds").filter(|seconds| !(1..=INT32_MAX).contains(seconds)) {
        let why = format_args!("must be between 1 and {INT32_MAX}, inclusive");
        errors.invalid_value(&at.child("activeDeadlineSeconds"), seconds, why);
    }
    optional(spec, "hostname", label, at, errors);
    optional(spec, "subdomain", label, at, errors);
    placement::tolerations(items(spec, "tolerations"), &at.child("tolerations"), errors);
    host_aliases(spec, &at.child("hostAliases"), errors);
    optional(spec, "priorityClassName", subdomain, at, errors);
    if given(spec, "runtimeClassName").is_some() {
        subdomain(text(spec, "runtimeClassName"), &at.child("runtimeClassName"), errors);
    }
    if given(spec, "preemptionPolicy").is_some() {
        required_one_of(spec, "preemptionPolicy", &["PreemptLowerPriority", "Never"], at, errors);
    }
    if let Some(Value::Object(overhead)) = given(spec, "overhead") {
        resources::overhead(overhead, &at.child("overhead"), errors);
    }
    security::operating_system(&pod, at, errors);
    containers::files_of_variables(&pod, at, errors);
}

/// All containers with their list names and positions, in upstream's order.
fn each_container(spec: &Object) -> impl Iterator<Item = (&'static str, usize, &Map)> {
    ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|list| objects(spec, list).map(move |(position, container)| (list, position, container)))
}

fn resource_claims<'a>(
    spec: &'a Object,
    owner: SpecOwner<'_>,
    at: &Path<'_>,
    errors: &mut Errors,
) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    for (position, claim) in objects(spec, "resourceClaims") {
        if owner.is_mirror {
            errors.forbidden(&Path::root(""), "static pods do not support resource claims");
            continue;
        }
        let at = at.index(position);
        let name = text(claim, "name");
        if name.is_empty() {
            errors.required(&at.child("name"), "");
        } else if seen.insert(name) {
            label(name, &at.child("name"), errors);
        } else {
            errors.duplicate(&at.child("name"), name);
        }
        let of = |name: &str| given(claim, name).and_then(Value::as_str);
        let (direct, from_template) = (of("resourceClaimName"), of("resourceClaimTemplateName"));
        let why = match (direct, from_template) {
            (Some(_), Some(_)) => {
                Some("at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified")
            }
            (None, None) => Some("must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"),
            _ => None,
        };
        if let Some(why) = why {
            let shown = listwatch_json::json!({"Name": name, "ResourceClaimName": direct,
                "ResourceClaimTemplateName": from_template});
            errors.invalid_value(&at, shown, why);
        }
        if let Some(name) = direct {
            subdomain(name, &at.child("resourceClaimName"), errors);
        }
        if let Some(name) = from_template {
            subdomain(name, &at.child("resourceClaimTemplateName"), errors);
        }
    }
    seen.extend(objects(spec, "resourceClaims").map(|(_, claim)| text(claim, "name")).filter(|name| !name.is_empty()));
    seen
}

/// On the host's network, reports host ports that differ from container ports.
fn host_ports(pod: &PodContext<'_>, at: &Path<'_>, errors: &mut Errors) {
    if !is_true(pod.spec, "hostNetwork") {
        return;
    }
    for (position, container) in objects(pod.spec, "containers") {
        let at = at.index(position);
        let at = at.child("ports");
        for (position, port) in objects(container, "ports") {
            let host = number(port, "hostPort").unwrap_or(0);
            if (pod.owner.is_pod || host != 0) && host != number(port, "containerPort").unwrap_or(0) {
                let at = at.index(position);
                let why = "must match `containerPort` when `hostNetwork` is true";
                errors.invalid_value(&at.child("hostPort"), host, why);
            }
        }
    }
}

/// The largest number of name servers of a pod.
const NAMESERVERS_MAX: usize = 3;
/// The largest number of search domains of a pod, and their largest total length with separators, in bytes.
const SEARCHES_MAX: usize = 32;
const SEARCHES_BYTES_MAX: usize = 2048;

fn dns_config(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let config = given(spec, "dnsConfig").and_then(Value::as_object);
    if text(spec, "dnsPolicy") == "None" {
        match config {
            None => return errors.required(at, "must provide `dnsConfig` when `dnsPolicy` is None"),
            Some(config) if items(config, "nameservers").is_empty() => {
                let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
                return errors.required(&at.child("nameservers"), why);
            }
            Some(_) => {}
        }
    }
    let Some(config) = config else { return };
    let at_list = at.child("nameservers");
    if items(config, "nameservers").len() > NAMESERVERS_MAX {
        let why = format_args!("must not have more than {NAMESERVERS_MAX} nameservers");
        errors.invalid_value(&at_list, shown_list(config, "nameservers"), why);
    }
    for (position, server) in texts(config, "nameservers").enumerate() {
        formats::legacy_ip(server, &at_list.index(position), errors);
    }
    let at_list = at.child("searches");
    if items(config, "searches").len() > SEARCHES_MAX {
        let why = format_args!("must not have more than {SEARCHES_MAX} search paths");
        errors.invalid_value(&at_list, shown_list(config, "searches"), why);
    }
    let bytes: usize = texts(config, "searches").map(|search| search.len() + 1).sum();
    if bytes > SEARCHES_BYTES_MAX + 1 {
        let why = format_args!(
            "must not have more than {SEARCHES_BYTES_MAX} characters (including spaces) in the search list"
        );
        errors.invalid_value(&at_list, shown_list(config, "searches"), why);
    }
    for (position, search) in texts(config, "searches").enumerate().filter(|(_, search)| *search != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        errors.problems(&at_list.index(position), search, underscored_subdomain_problems(search));
    }
    let at_list = at.child("options");
    for (position, option) in objects(config, "options") {
        if text(option, "name").is_empty() {
            errors.required(&at_list.index(position), "must not be empty");
        }
    }
}

/// The problems of a subdomain that may have underscores (`IsDNS1123SubdomainWithUnderscore`).
fn underscored_subdomain_problems(value: &str) -> Vec<String> {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.strip_prefix('_').unwrap_or(label).as_bytes();
        bytes.first().is_some_and(|byte| word(*byte))
            && bytes.last().is_some_and(|byte| word(*byte))
            && bytes.iter().all(|byte| word(*byte) || matches!(byte, b'-' | b'_'))
    };
    let mut problems = Vec::new();
    if value.len() > 253 {
        problems.push("must be no more than 253 characters".to_owned());
    }
    if !value.split('.').all(is_label) {
        problems.push("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')".to_owned());
    }
    problems
}

fn scheduling_gates(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (position, gate) in objects(spec, "schedulingGates") {
        let (at, name) = (at.index(position), text(gate, "name"));
        qualified_name(name, &at, errors);
        if !seen.insert(name) {
            errors.duplicate(&at, name);
        }
    }
}

/// The length of `hostnameOverride` in bytes.
const HOSTNAME_BYTES_MAX: usize = 64;

fn hostname_override(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let Some(name) = given(spec, "hostnameOverride").and_then(Value::as_str) else { return };
    if is_true(spec, "setHostnameAsFQDN") {
        errors.forbidden(at, "may not be specified when setHostnameAsFQDN is true");
    }
    if is_true(spec, "hostNetwork") {
        errors.forbidden(at, "may not be specified when hostNetwork is true");
    }
    if name.len() > HOSTNAME_BYTES_MAX {
        errors.too_long(at, HOSTNAME_BYTES_MAX);
    }
    subdomain(name, at, errors);
}

fn host_aliases(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    for (position, alias) in objects(spec, "hostAliases") {
        let at = at.index(position);
        formats::legacy_ip(text(alias, "ip"), &at.child("ip"), errors);
        let at = at.child("hostnames");
        for (position, name) in texts(alias, "hostnames").enumerate() {
            subdomain(name, &at.index(position), errors);
        }
    }
}
