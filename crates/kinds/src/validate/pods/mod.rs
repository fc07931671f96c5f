//! Pods, and the templates of pods in other kinds (`ValidatePodSpec` and what it calls in
//! `pkg/apis/core/validation/validation.go`). The functions follow upstream's order, which is that of the
//! causes.
//!
//! ```text
//!  pod ────────▶ metadata's annotations ─▶ spec ─▶ what only a new pod may not have
//!  template ───▶ labels, annotations ────▶ spec ─▶ what no template may have
//! ```

pub(crate) mod annotations;
pub(crate) mod containers;
pub(crate) mod placement;
pub(crate) mod resources;
pub(crate) mod security;
pub(crate) mod volumes;

use std::collections::{BTreeSet, HashMap};

use listwatch_schema::Path;
use serde_json::{Map, Value};

pub(crate) use placement::tolerations;
pub(crate) use resources::container_resources;
pub(crate) use resources::level_pod;

use listwatch_validation::formats::{self, label, qualified_name, subdomain};
use listwatch_validation::{Errors, Object, child, given, is_true, items, number, objects, text, texts};

/// The largest number that Kubernetes writes into 32 bits.
const INT32_MAX: i64 = 2_147_483_647;

/// What the rules for a spec depend on besides the spec.
#[derive(Clone, Copy)]
pub(crate) struct Holder<'a> {
    /// It is a pod, not a template.
    is_pod: bool,
    /// The name of the pod; empty for a template.
    name: &'a str,
    /// The pod is a mirror of one that its node runs on its own account.
    is_mirror: bool,
    /// The spec that is replaced.
    old: Option<&'a Object>,
}

/// What containers refer to in the spec around them.
pub(crate) struct Surroundings<'a> {
    holder: Holder<'a>,
    spec: &'a Object,
    /// The valid volumes; true for one of a claim.
    volumes: HashMap<&'a str, bool>,
    /// The names of the pod's resource claims.
    claims: BTreeSet<&'a str>,
    /// Seconds that the pod has to end in.
    grace: Option<i64>,
    /// The pod is in the host's user namespace.
    host_users: bool,
    /// The operating system, where one is named.
    os: Option<&'a str>,
}

/// `validatePodMetadataAndSpec` and `ValidatePodCreate`.
pub(crate) fn pod(pod: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (metadata, pod_spec) = (child(pod, "metadata"), child(pod, "spec"));
    let (notes_at, at) = (Path::root("metadata"), Path::root("spec"));
    annotations::validate(metadata, pod_spec, &notes_at.child("annotations"), errors);
    let holder = Holder {
        is_pod: true,
        name: text(metadata, "name"),
        is_mirror: child(metadata, "annotations").contains_key(annotations::MIRROR),
        old: old.map(|old| child(old, "spec")),
    };
    spec(pod_spec, holder, &at, errors);
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
    annotations::agree(metadata, pod_spec, &at, errors);
}

/// The annotations of a template, and what they say.
pub(crate) fn template_annotations(template: &Object, at: &Path<'_>, errors: &mut Errors) {
    let (metadata, pod_spec) = (child(template, "metadata"), child(template, "spec"));
    let notes_at = at.child("annotations");
    if let Some(Value::Object(notes)) = metadata.get("annotations") {
        listwatch_validation::object_meta::validate_annotations_at(notes, &notes_at, errors);
    }
    annotations::validate(metadata, pod_spec, &notes_at, errors);
}

/// `ValidatePodTemplateSpec`.
pub(crate) fn template(template: &Object, old: Option<&Object>, at: &Path<'_>, errors: &mut Errors) {
    let (metadata, pod_spec) = (child(template, "metadata"), child(template, "spec"));
    formats::labels(metadata, "labels", &at.child("labels"), errors);
    template_annotations(template, at, errors);
    let at = at.child("spec");
    let holder = Holder { is_pod: false, name: "", is_mirror: false, old: old.map(|old| child(old, "spec")) };
    spec(pod_spec, holder, &at, errors);
    annotations::agree(metadata, pod_spec, &at, errors);
    if !items(pod_spec, "ephemeralContainers").is_empty() {
        errors.forbidden(&at.child("ephemeralContainers"), "ephemeral containers not allowed in pod template");
    }
}

/// `ValidatePodSpec`.
fn spec<'a>(spec: &'a Object, holder: Holder<'a>, at: &Path<'_>, errors: &mut Errors) {
    let volumes = volumes::validate(spec, holder, &at.child("volumes"), errors);
    let claims = resource_claims(spec, holder, &at.child("resourceClaims"), errors);
    let around = Surroundings {
        holder,
        spec,
        volumes,
        claims,
        grace: number(spec, "terminationGracePeriodSeconds"),
        host_users: spec.get("hostUsers") != Some(&Value::Bool(false)),
        os: given(spec, "os").and_then(Value::as_object).map(|os| text(os, "name")),
    };
    containers::containers(&around, at, errors);
    containers::init_containers(&around, at, errors);
    containers::ephemeral_containers(&around, at, errors);
    resources::pod_resources(&around, &at.child("resources"), errors);
    host_ports(&around, &at.child("containers"), errors);
    required_one_of(spec, "restartPolicy", &["Always", "OnFailure", "Never"], at, errors);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    required_one_of(spec, "dnsPolicy", &policies, at, errors);
    formats::labels(spec, "nodeSelector", &at.child("nodeSelector"), errors);
    security::of_pod(&around, at, errors);
    placement::affinity(spec, holder.old, &at.child("affinity"), errors);
    dns_config(spec, &at.child("dnsConfig"), errors);
    let gates_at = at.child("readinessGates");
    for (position, gate) in objects(spec, "readinessGates") {
        let at = gates_at.index(position);
        qualified_name(text(gate, "conditionType"), &at.child("conditionType"), errors);
    }
    scheduling_gates(spec, &at.child("schedulingGates"), errors);
    placement::topology_spread(spec, holder.old, &at.child("topologySpreadConstraints"), errors);
    security::host_processes(&around, at, errors);
    security::user_namespace(&around, at, errors);
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
    security::operating_system(&around, at, errors);
    containers::files_of_variables(&around, at, errors);
}

/// A text of a list of choices, which has to be there.
fn required_one_of(object: &Object, name: &str, supported: &[&str], at: &Path<'_>, errors: &mut Errors) {
    match text(object, name) {
        "" => errors.required(&at.child(name), ""),
        value if supported.contains(&value) => {}
        value => errors.not_supported(&at.child(name), value, supported),
    }
}

/// A text that is of a form where it is not empty.
fn optional(object: &Object, name: &str, check: fn(&str, &Path<'_>, &mut Errors), at: &Path<'_>, errors: &mut Errors) {
    let value = text(object, name);
    if !value.is_empty() {
        check(value, &at.child(name), errors);
    }
}

/// All containers with where they stand, in the order in which upstream visits them.
fn each_container(spec: &Object) -> impl Iterator<Item = (&'static str, usize, &Map<String, Value>)> {
    ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|list| objects(spec, list).map(move |(position, container)| (list, position, container)))
}

fn resource_claims<'a>(spec: &'a Object, holder: Holder<'_>, at: &Path<'_>, errors: &mut Errors) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    for (position, claim) in objects(spec, "resourceClaims") {
        if holder.is_mirror {
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
            let shown = serde_json::json!({"Name": name, "ResourceClaimName": direct,
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

/// On the host's network a container's ports are the host's.
fn host_ports(around: &Surroundings<'_>, at: &Path<'_>, errors: &mut Errors) {
    if !is_true(around.spec, "hostNetwork") {
        return;
    }
    for (position, container) in objects(around.spec, "containers") {
        let at = at.index(position);
        let at = at.child("ports");
        for (position, port) in objects(container, "ports") {
            let host = number(port, "hostPort").unwrap_or(0);
            if (around.holder.is_pod || host != 0) && host != number(port, "containerPort").unwrap_or(0) {
                let at = at.index(position);
                let why = "must match `containerPort` when `hostNetwork` is true";
                errors.invalid_value(&at.child("hostPort"), host, why);
            }
        }
    }
}

/// Name servers of a pod.
const NAMESERVERS_MAX: usize = 3;
/// Domains in which a pod looks for a name, and their bytes with the spaces between them.
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
        errors.invalid_value(&at_list, super::shown_list(config, "nameservers"), why);
    }
    for (position, server) in texts(config, "nameservers").enumerate() {
        formats::legacy_ip(server, &at_list.index(position), errors);
    }
    let at_list = at.child("searches");
    if items(config, "searches").len() > SEARCHES_MAX {
        let why = format_args!("must not have more than {SEARCHES_MAX} search paths");
        errors.invalid_value(&at_list, super::shown_list(config, "searches"), why);
    }
    let bytes: usize = texts(config, "searches").map(|search| search.len() + 1).sum();
    if bytes > SEARCHES_BYTES_MAX + 1 {
        let why = format_args!(
            "must not have more than {SEARCHES_BYTES_MAX} characters (including spaces) in the search list"
        );
        errors.invalid_value(&at_list, super::shown_list(config, "searches"), why);
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

/// `IsDNS1123SubdomainWithUnderscore`.
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

/// Bytes of a name that a pod has in place of its own.
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
