//! Pods, and the templates of pods in other kinds.

use std::collections::HashSet;

use listwatch_meta::FieldError;
use serde_json::{Map, Value};

use super::Rule::{Below, Check, Each, Labels, Name, NotNegative, OneOf, Required, Unique, Within};
use super::{Errors, Object, Rules, child, given, items, named, objects, port_name, quoted, text};
use crate::registry::NameRule;

/// The largest number that Kubernetes writes into 32 bits.
const INT32_MAX: i64 = 2_147_483_647;

pub(super) const POD: Rules = &[Below("spec", SPEC)];

/// The spec of a pod, wherever it stands.
pub(super) const SPEC: Rules = &[
    Check(volumes),
    Required("containers", ""),
    Each("containers", CONTAINER),
    Check(containers),
    OneOf("restartPolicy", &["Always", "OnFailure", "Never"]),
    OneOf("dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]),
    Labels("nodeSelector"),
    OneOf("preemptionPolicy", &["PreemptLowerPriority", "Never"]),
    Below("securityContext", &[Within("runAsUser", 0, INT32_MAX), Within("runAsGroup", 0, INT32_MAX)]),
    Check(affinity),
    Name("serviceAccountName", NameRule::Subdomain),
    Name("nodeName", NameRule::Subdomain),
    Within("activeDeadlineSeconds", 1, INT32_MAX),
    Name("hostname", NameRule::Label),
    Name("subdomain", NameRule::Label),
    Check(tolerations),
    Each(
        "topologySpreadConstraints",
        &[
            Check(skew),
            Required("topologyKey", "can not be empty"),
            OneOf("whenUnsatisfiable", &["DoNotSchedule", "ScheduleAnyway"]),
        ],
    ),
];

const VOLUME: Rules = &[Required("name", ""), Name("name", NameRule::Label), Check(one_source), Check(source)];

const CONTAINER: Rules = &[
    Required("name", ""),
    Name("name", NameRule::Label),
    Required("image", ""),
    Check(image),
    Each("ports", &[Check(container_port), Within("hostPort", 0, 65535), OneOf("protocol", &["SCTP", "TCP", "UDP"])]),
    Unique("ports", "name"),
    Check(environment),
    Check(probes),
    OneOf("imagePullPolicy", &["Always", "IfNotPresent", "Never"]),
    OneOf("terminationMessagePolicy", &["File", "FallbackToLogsOnError"]),
];

const PROBE: Rules = &[
    NotNegative("initialDelaySeconds"),
    NotNegative("timeoutSeconds"),
    NotNegative("periodSeconds"),
    NotNegative("successThreshold"),
    NotNegative("failureThreshold"),
];

/// Where a volume can come from, in the order in which kube-apiserver looks.
const SOURCES: [(&str, &str); 29] = [
    ("emptyDir", ""),
    ("hostPath", "path"),
    ("gitRepo", "repository"),
    ("gcePersistentDisk", "pdName"),
    ("awsElasticBlockStore", "volumeID"),
    ("secret", "secretName"),
    ("nfs", "server"),
    ("iscsi", "targetPortal"),
    ("glusterfs", "endpoints"),
    ("flocker", ""),
    ("persistentVolumeClaim", "claimName"),
    ("rbd", "monitors"),
    ("cinder", "volumeID"),
    ("cephfs", "monitors"),
    ("quobyte", "registry"),
    ("downwardAPI", ""),
    ("fc", ""),
    ("flexVolume", "driver"),
    ("configMap", "name"),
    ("azureFile", "secretName"),
    ("vsphereVolume", "volumePath"),
    ("photonPersistentDisk", "pdID"),
    ("portworxVolume", "volumeID"),
    ("azureDisk", "diskName"),
    ("storageos", ""),
    ("scaleIO", "gateway"),
    ("projected", ""),
    ("csi", "driver"),
    ("image", ""),
];

fn volumes(spec: &Object, at: &str, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (position, volume) in objects(spec, "volumes") {
        let at = format!("{at}volumes[{position}].");
        super::run(VOLUME, volume, &at, errors);
        let name = text(volume, "name");
        if !name.is_empty() && !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{at}name"), quoted(name)));
        }
    }
}

fn one_source(volume: &Object, at: &str, errors: &mut Errors) {
    let sources = SOURCES.iter().filter(|(source, _)| given(volume, source).is_some());
    for (source, _) in sources.skip(1) {
        errors.push(FieldError::forbidden(format!("{at}{source}"), "may not specify more than 1 volume type"));
    }
}

fn source(volume: &Object, at: &str, errors: &mut Errors) {
    let first = SOURCES.iter().find(|(source, _)| given(volume, source).is_some());
    if let Some((source, needed)) = first
        && !needed.is_empty()
        && super::is_empty(child(volume, source).get(*needed))
    {
        errors.push(FieldError::required(format!("{at}{source}.{needed}"), ""));
    }
}

/// What containers may not have in common, and what they need of the pod.
fn containers(spec: &Object, at: &str, errors: &mut Errors) {
    let volumes: HashSet<&str> = objects(spec, "volumes").map(|(_, volume)| text(volume, "name")).collect();
    let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
    for (position, container) in objects(spec, "initContainers") {
        super::run(CONTAINER, container, &format!("{at}initContainers[{position}]."), errors);
    }
    let mut seen = HashSet::new();
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for (position, container) in objects(spec, list) {
            let at = format!("{at}{list}[{position}].");
            let name = text(container, "name");
            if !name.is_empty() && !seen.insert(name) {
                errors.push(FieldError::duplicate(format!("{at}name"), quoted(name)));
            }
            mounts(container, &at, &volumes, errors);
            resources(container, &at, errors);
            for (position, port) in objects(container, "ports").filter(|_| host_network) {
                let host = super::number(port, "hostPort").unwrap_or(0);
                if host != 0 && Some(host) != super::number(port, "containerPort") {
                    let why = "must match `containerPort` when `hostNetwork` is true";
                    errors.push(FieldError::invalid(format!("{at}ports[{position}].hostPort"), host, why));
                }
            }
        }
    }
}

fn mounts(container: &Object, at: &str, volumes: &HashSet<&str>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (position, mount) in objects(container, "volumeMounts") {
        let at = format!("{at}volumeMounts[{position}].");
        let (name, path) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            errors.push(FieldError::required(format!("{at}name"), ""));
        }
        if !volumes.contains(name) {
            let (field, reason) = (format!("{at}name"), "FieldValueNotFound");
            errors.push(FieldError { field, reason, message: format!("Not found: {}", quoted(name)) });
        }
        if path.is_empty() {
            errors.push(FieldError::required(format!("{at}mountPath"), ""));
        } else if !seen.insert(path) {
            errors.push(FieldError::invalid(format!("{at}mountPath"), quoted(path), "must be unique"));
        }
    }
}

fn resources(container: &Object, at: &str, errors: &mut Errors) {
    let resources = child(container, "resources");
    let (limits, requests) = (child(resources, "limits"), child(resources, "requests"));
    for (kind, amounts) in [("limits", limits), ("requests", requests)] {
        for (name, amount) in amounts {
            if let Some(amount) = amount.as_str().filter(|amount| amount.starts_with('-')) {
                let why = "must be greater than or equal to 0";
                errors.push(FieldError::invalid(format!("{at}resources.{kind}[{name}]"), quoted(amount), why));
            }
        }
    }
    for (name, request) in requests {
        let limit = limits.get(name);
        let (Some(request), Some(limit)) = (request.as_str(), limit.and_then(Value::as_str)) else { continue };
        if crate::write::quantities::compare(request, limit) == Some(std::cmp::Ordering::Greater) {
            let why = format_args!("must be less than or equal to {name} limit of {limit}");
            errors.push(FieldError::invalid(format!("{at}resources.requests"), quoted(request), why));
        }
    }
}

fn image(container: &Object, at: &str, errors: &mut Errors) {
    let image = text(container, "image");
    if image.trim() != image {
        let why = "must not have leading or trailing whitespace";
        errors.push(FieldError::invalid(format!("{at}image"), quoted(image), why));
    }
}

fn container_port(port: &Object, at: &str, errors: &mut Errors) {
    let name = text(port, "name");
    if !name.is_empty() {
        port_name(name, &format!("{at}name"), errors);
    }
    match super::number(port, "containerPort").unwrap_or(0) {
        0 => errors.push(FieldError::required(format!("{at}containerPort"), "")),
        number => super::within(number, (1, 65535), format!("{at}containerPort"), errors),
    }
}

fn environment(container: &Object, at: &str, errors: &mut Errors) {
    for (position, variable) in objects(container, "env") {
        let at = format!("{at}env[{position}].");
        let name = text(variable, "name");
        if name.is_empty() {
            errors.push(FieldError::required(format!("{at}name"), ""));
        } else if name.bytes().any(|byte| byte == b'=' || !(b' '..=b'~').contains(&byte)) {
            let why =
                "a valid environment variable name must consist only of printable ASCII characters other than '='";
            errors.push(FieldError::invalid(format!("{at}name"), quoted(name), why));
        }
        let Some(Value::Object(from)) = given(variable, "valueFrom") else { continue };
        let wrong = |why: &str| FieldError::invalid(format!("{at}valueFrom"), "\"\"", why);
        if !text(variable, "value").is_empty() {
            errors.push(wrong("may not be specified when `value` is not empty"));
        }
        match from.values().filter(|value| !value.is_null()).count() {
            0 => errors.push(wrong(
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
            )),
            1 => {}
            _ => errors.push(wrong("may not have more than one field specified at a time")),
        }
    }
}

fn probes(container: &Object, at: &str, errors: &mut Errors) {
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(Value::Object(probe)) = given(container, name) else { continue };
        let at = format!("{at}{name}");
        handler(probe, &at, errors);
        super::run(PROBE, probe, &format!("{at}."), errors);
        let successes = super::number(probe, "successThreshold").unwrap_or(1);
        if name != "readinessProbe" && successes > 1 {
            errors.push(FieldError::invalid(format!("{at}.successThreshold"), successes, "must be 1"));
        }
    }
    for name in ["postStart", "preStop"] {
        if let Some(Value::Object(hook)) = given(child(container, "lifecycle"), name) {
            handler(hook, &format!("{at}lifecycle.{name}"), errors);
        }
    }
}

fn handler(handler: &Map<String, Value>, at: &str, errors: &mut Errors) {
    let kinds = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];
    let mut found = kinds.iter().filter(|kind| given(handler, kind).is_some());
    match found.next() {
        None => errors.push(FieldError::required(at, "must specify a handler type")),
        Some(&"exec") if items(child(handler, "exec"), "command").is_empty() => {
            errors.push(FieldError::required(format!("{at}.exec.command"), ""));
        }
        Some(_) => {}
    }
    for second in found {
        errors.push(FieldError::forbidden(format!("{at}.{second}"), "may not specify more than 1 handler type"));
    }
}

fn affinity(spec: &Object, at: &str, errors: &mut Errors) {
    let node = child(child(spec, "affinity"), "nodeAffinity");
    let Some(Value::Object(required)) = given(node, "requiredDuringSchedulingIgnoredDuringExecution") else { return };
    if items(required, "nodeSelectorTerms").is_empty() {
        let at = format!("{at}affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms");
        errors.push(FieldError::required(at, "must have at least one node selector term"));
    }
}

fn tolerations(spec: &Object, at: &str, errors: &mut Errors) {
    for (position, toleration) in objects(spec, "tolerations") {
        let at = format!("{at}tolerations[{position}].");
        let [key, operator, value, effect] = ["key", "operator", "value", "effect"].map(|name| text(toleration, name));
        if let (false, Err(why)) = (key.is_empty(), listwatch_meta::selector::validate_qualified_name(key)) {
            errors.push(FieldError::invalid(format!("{at}key"), quoted(key), why));
        }
        if key.is_empty() && operator != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(FieldError::invalid(format!("{at}operator"), quoted(operator), why));
        }
        if given(toleration, "tolerationSeconds").is_some() && effect != "NoExecute" {
            let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(format!("{at}effect"), quoted(effect), why));
        }
        match operator {
            "Exists" if !value.is_empty() => {
                let why = "value must be empty when `operator` is 'Exists'";
                errors.push(FieldError::invalid(format!("{at}operator"), quoted(value), why));
            }
            "" | "Equal" | "Exists" => {}
            other => {
                errors.push(FieldError::not_supported(format!("{at}operator"), other, &["Equal", "Exists"]));
            }
        }
        super::one_of(toleration, "effect", &at, &["NoSchedule", "PreferNoSchedule", "NoExecute"], errors);
    }
}

fn skew(constraint: &Object, at: &str, errors: &mut Errors) {
    let skew = super::number(constraint, "maxSkew").unwrap_or(0);
    if skew <= 0 {
        errors.push(FieldError::invalid(format!("{at}maxSkew"), skew, "must be greater than zero"));
    }
}

/// A name that must be a label where it is given, for other kinds' templates.
pub(super) fn template_labels(template: &Object, at: &str, errors: &mut Errors) {
    let metadata = child(template, "metadata");
    if let Some(Value::Object(labels)) = metadata.get("labels") {
        crate::write::metadata::validate_labels(labels, &format!("{at}metadata.labels"), errors);
    }
    named(text(metadata, "name"), NameRule::Subdomain, &format!("{at}metadata.name"), errors);
}
