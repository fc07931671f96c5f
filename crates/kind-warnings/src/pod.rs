//! Warnings about pods and pod templates.
//!
//! Source: `pkg/api/pod/warnings.go` and the pod strategies in `pkg/registry/core/pod/strategy.go`.

use listwatch_meta::go::quote;
use listwatch_schema::Path;
use listwatch_validation::{Object, child, given, items, metadata, number, objects, text, texts};

use crate::addresses::add_ip;
use crate::containers::{APPARMOR, SECCOMP, add_containers};
use crate::node_labels::{add_term, deprecation};
use crate::ports::add_ports;
use crate::virtual_paths::add_overlaps;
use crate::volumes::add_volumes;
use crate::workload::add_name;
use crate::{Warnings, add_fractional, each_duplicate};

const NULL_SELECTOR: &str = "a null labelSelector results in matching no pod";

/// The annotations without an effect, with their messages.
const DEPRECATED_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        r#"non-functional in v1.16+; use the "priorityClassName" field instead"#,
    ),
    ("security.alpha.kubernetes.io/sysctls", r#"non-functional in v1.11+; use the "sysctls" field instead"#),
    ("security.alpha.kubernetes.io/unsafe-sysctls", r#"non-functional in v1.11+; use the "sysctls" field instead"#),
];

const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";

/// Warns the client that creates a pod. Updates have no warnings.
pub fn of_pod(pod: &Object, old: Option<&Object>, warnings: &mut Warnings) {
    if old.is_none() {
        add_name(pod, "the Pod's hostname", warnings);
        // AppArmor annotations were copied to fields already, with their warnings (`listwatch-pod-rules`).
        add_spec(child(pod, "spec"), metadata(pod), false, &Path::NIL, warnings);
    }
}

/// Warns the client that writes the status of a pod.
pub fn of_pod_status(pod: &Object, warnings: &mut Warnings) {
    let (status, at) = (child(pod, "status"), Path::root("status"));
    for list in ["podIPs", "hostIPs"] {
        let at = at.child(list);
        for (index, item) in objects(status, list) {
            add_ip(text(item, "ip"), &at.index(index).child("ip"), warnings);
        }
    }
}

/// Adds the warnings of a pod template (`GetWarningsForPodTemplate`).
pub(crate) fn add_template(template: &Object, at: &Path<'_>, warnings: &mut Warnings) {
    add_spec(child(template, "spec"), metadata(template), true, at, warnings);
}

/// Adds the warnings of a pod spec (`warningsForPodSpecAndMeta`). `at` is the path of the pod or the template. Only
/// templates have warnings about AppArmor annotations here.
fn add_spec(spec: &Object, metadata: &Object, is_template: bool, at: &Path<'_>, warnings: &mut Warnings) {
    let annotations = child(metadata, "annotations");
    let spec_at = at.child("spec");
    add_placement(spec, &spec_at, warnings);
    add_annotations(annotations, spec, at, warnings);
    add_volumes(spec, &spec_at, warnings);
    add_overlaps(spec, warnings);
    add_lists(spec, &spec_at, warnings);
    for name in ["memory", "ephemeral-storage"] {
        add_fractional(child(spec, "overhead"), name, &spec_at.child("overhead"), warnings);
    }
    let has = |prefix: &str| annotations.keys().any(|key| key.starts_with(prefix));
    let replaced = (has(SECCOMP), is_template && has(APPARMOR));
    add_containers(spec, annotations, replaced, at, warnings);
    add_ports(spec, &spec_at, warnings);
    if number(spec, "terminationGracePeriodSeconds").is_some_and(|seconds| seconds < 0) {
        let at = spec_at.child("terminationGracePeriodSeconds");
        warnings.add(format_args!("{at}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    add_pod_affinity(child(spec, "affinity"), &spec_at, warnings);
    let servers_at = spec_at.child("dnsConfig");
    let servers_at = servers_at.child("nameservers");
    for (index, server) in texts(child(spec, "dnsConfig"), "nameservers").enumerate() {
        add_ip(server, &servers_at.index(index), warnings);
    }
    let aliases_at = spec_at.child("hostAliases");
    for (index, alias) in objects(spec, "hostAliases") {
        add_ip(text(alias, "ip"), &aliases_at.index(index).child("ip"), warnings);
    }
}

/// Warns of deprecated labels of nodes, and of spread constraints that match no pod.
fn add_placement(spec: &Object, at: &Path<'_>, warnings: &mut Warnings) {
    let selector_at = at.child("nodeSelector");
    for key in child(spec, "nodeSelector").keys() {
        if let Some(why) = deprecation(key) {
            warnings.add(format_args!("{}: {why}", selector_at.key(key)));
        }
    }
    let affinity = child(child(spec, "affinity"), "nodeAffinity");
    if !affinity.is_empty() {
        let at = at.child("affinity");
        let at = at.child("nodeAffinity");
        let name = "requiredDuringSchedulingIgnoredDuringExecution";
        let required_at = at.child(name);
        let terms_at = required_at.child("nodeSelectorTerms");
        for (index, term) in objects(child(affinity, name), "nodeSelectorTerms") {
            add_term(term, false, &terms_at.index(index), warnings);
        }
        let name = "preferredDuringSchedulingIgnoredDuringExecution";
        let preferred_at = at.child(name);
        for (index, term) in objects(affinity, name) {
            let at = preferred_at.index(index);
            add_term(child(term, "preference"), true, &at.child("preference"), warnings);
        }
    }
    let constraints_at = at.child("topologySpreadConstraints");
    for (index, constraint) in objects(spec, "topologySpreadConstraints") {
        let (at, key) = (constraints_at.index(index), text(constraint, "topologyKey"));
        if let Some(why) = deprecation(key) {
            warnings.add(format_args!("{}: {key} is {why}", at.child("topologyKey")));
        }
        if given(constraint, "labelSelector").is_none() {
            warnings.add(format_args!("{}: {NULL_SELECTOR}", at.child("labelSelector")));
        }
    }
}

/// Warns of annotations of the pod that have no effect.
fn add_annotations(annotations: &Object, spec: &Object, at: &Path<'_>, warnings: &mut Warnings) {
    if annotations.is_empty() {
        return;
    }
    let at = at.child("metadata");
    let at = at.child("annotations");
    for (key, why) in DEPRECATED_ANNOTATIONS {
        if annotations.contains_key(key) {
            warnings.add(format_args!("{}: {why}", at.key(key)));
        }
    }
    let has_profile = given(child(spec, "securityContext"), "seccompProfile").is_some();
    if !has_profile && annotations.contains_key(SECCOMP_OF_POD) {
        let at = at.key(SECCOMP_OF_POD);
        warnings.add(format_args!(r#"{at}: non-functional in v1.27+; use the "seccompProfile" field instead"#));
    }
}

/// Warns of duplicate host aliases and image pull secrets.
fn add_lists(spec: &Object, at: &Path<'_>, warnings: &mut Warnings) {
    let aliases_at = at.child("hostAliases");
    each_duplicate(items(spec, "hostAliases"), "ip", |index, _, ip| {
        warnings.add(format_args!("{}: duplicate ip {}", aliases_at.index(index).child("ip"), quote(ip)));
    });
    let secrets_at = at.child("imagePullSecrets");
    each_duplicate(items(spec, "imagePullSecrets"), "name", |index, _, name| {
        warnings.add(format_args!("{}: duplicate name {}", secrets_at.index(index).child("name"), quote(name)));
    });
    for (index, secret) in objects(spec, "imagePullSecrets") {
        if text(secret, "name").is_empty() {
            warnings.add(format_args!(r#"{}: invalid empty name """#, secrets_at.index(index).child("name")));
        }
    }
}

/// Warns of affinity terms that match no pod.
fn add_pod_affinity(affinity: &Object, spec_at: &Path<'_>, warnings: &mut Warnings) {
    if affinity.is_empty() {
        return;
    }
    let at = spec_at.child("affinity");
    for kind in ["podAffinity", "podAntiAffinity"] {
        let (affinity, at) = (child(affinity, kind), at.child(kind));
        let name = "requiredDuringSchedulingIgnoredDuringExecution";
        let required_at = at.child(name);
        for (index, term) in objects(affinity, name) {
            if given(term, "labelSelector").is_none() {
                let at = required_at.index(index);
                warnings.add(format_args!("{}: {NULL_SELECTOR}", at.child("labelSelector")));
            }
        }
        let name = "preferredDuringSchedulingIgnoredDuringExecution";
        let preferred_at = at.child(name);
        for (index, term) in objects(affinity, name) {
            if given(child(term, "podAffinityTerm"), "labelSelector").is_none() {
                let at = preferred_at.index(index);
                let at = at.child("podAffinityTerm");
                warnings.add(format_args!("{}: {NULL_SELECTOR}", at.child("labelSelector")));
            }
        }
    }
}
