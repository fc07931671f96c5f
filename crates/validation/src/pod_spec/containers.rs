//! Validates containers, init containers and ephemeral containers (`validateContainerCommon` and its callers).

use std::collections::{HashMap, HashSet};

use listwatch_json::Value;
use listwatch_schema::Path;

use super::security;
use super::volumes::{field_ref, resource_ref};
use super::{PodContext, each_container, resources};
use crate::field_rules::{descending_path, no_backsteps, required_one_of};
use crate::formats::{self, label, subdomain};
use crate::names;
use crate::names::NameRule;
use crate::{Errors, Object, child, given, is_empty, is_true, items, number, objects, text};

/// The largest number of restart rules of one container, and of exit codes of one rule.
const RESTART_RULES_MAX: usize = 20;
const RESTART_CODES_MAX: usize = 255;

const RESTARTS: [&str; 3] = ["Always", "Never", "OnFailure"];
const ALONE: &str = "may not be set for init containers without restartPolicy=Always";

/// The fields that an ephemeral container must not set, in the order of upstream's struct.
const NOT_EPHEMERAL: [(&str, &str); 9] = [
    ("ports", "ports"),
    ("resources", "resources"),
    ("resizePolicy", "resizePolicy"),
    ("restartPolicy", "restartPolicy"),
    ("restartPolicyRules", "restartPolicyRules"),
    ("livenessProbe", "livenessProbe"),
    ("readinessProbe", "readinessProbe"),
    ("startupProbe", "startupProbe"),
    ("lifecycle", "lifecycle"),
];

/// Validates `containers` (`validateContainers`).
pub(super) fn containers(pod: &PodContext<'_>, at: &Path<'_>, errors: &mut Errors) {
    let list_at = at.child("containers");
    if items(pod.spec, "containers").is_empty() {
        return errors.required(&list_at, "");
    }
    let mut seen = HashSet::new();
    for (position, container) in objects(pod.spec, "containers") {
        let at = list_at.index(position);
        common(pod, container, &at, errors);
        let name = text(container, "name");
        if !seen.insert(name) {
            errors.duplicate(&at.child("name"), name);
        }
        lifecycle_and_probes(pod, container, &at, errors);
        restarts(container, false, &at, errors);
    }
    let ports = objects(pod.spec, "containers");
    host_port_conflicts(ports, &list_at, errors);
}

/// Validates `initContainers` (`validateInitContainers`).
pub(super) fn init_containers(pod: &PodContext<'_>, at: &Path<'_>, errors: &mut Errors) {
    let list_at = at.child("initContainers");
    let mut seen: HashSet<&str> =
        objects(pod.spec, "containers").map(|(_, container)| text(container, "name")).collect();
    let restarted = |spec: &Object| {
        objects(spec, "initContainers").any(|(_, container)| {
            text(container, "restartPolicy") != "Always"
                && objects(container, "resizePolicy")
                    .any(|(_, policy)| text(policy, "restartPolicy") == "RestartContainer")
        })
    };
    let tolerated = pod.owner.old.is_some_and(restarted);
    for (position, container) in objects(pod.spec, "initContainers") {
        let at = list_at.index(position);
        common(pod, container, &at, errors);
        restarts(container, true, &at, errors);
        let sidecar = text(container, "restartPolicy") == "Always";
        let name = text(container, "name");
        if seen.contains(name) {
            errors.duplicate(&at.child("name"), name);
        } else if !name.is_empty() {
            seen.insert(name);
        }
        // Init containers run one after the other, so each is validated separately. Upstream
        // reports index 0 for each.
        host_port_conflicts(std::iter::once((0, container)), &list_at, errors);
        if sidecar {
            lifecycle_and_probes(pod, container, &at, errors);
        } else {
            for member in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                if given(container, member).is_some() {
                    errors.forbidden(&at.child(member), ALONE);
                }
            }
        }
        if !sidecar && !tolerated {
            let policies_at = at.child("resizePolicy");
            for (position, policy) in objects(container, "resizePolicy") {
                if text(policy, "restartPolicy") == "RestartContainer" {
                    let at = policies_at.index(position);
                    let why = "must not be set to 'RestartContainer' for non-sidecar initContainers";
                    errors.invalid(&at.child("restartPolicy"), "RestartContainer", why);
                }
            }
        }
    }
}

/// Validates `ephemeralContainers` (`validateEphemeralContainers`).
pub(super) fn ephemeral_containers(pod: &PodContext<'_>, at: &Path<'_>, errors: &mut Errors) {
    const WHY: &str = "cannot be set for an Ephemeral Container";
    if items(pod.spec, "ephemeralContainers").is_empty() {
        return;
    }
    let list_at = at.child("ephemeralContainers");
    let others: HashSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| objects(pod.spec, list).map(|(_, container)| text(container, "name")))
        .collect();
    let mut seen = others.clone();
    for (position, container) in objects(pod.spec, "ephemeralContainers") {
        let at = list_at.index(position);
        common(pod, container, &at, errors);
        image(container, &at, errors);
        let name = text(container, "name");
        if !seen.insert(name) {
            errors.duplicate(&at.child("name"), name);
        }
        let target = text(container, "targetContainerName");
        if !target.is_empty() && !others.contains(target) {
            not_found(target, &at.child("targetContainerName"), errors);
        }
        for (member, shown) in NOT_EPHEMERAL {
            if !is_empty(container.get(member)) {
                errors.forbidden(&at.child(shown), WHY);
            }
        }
        let mounts_at = at.child("volumeMounts");
        for (position, mount) in objects(container, "volumeMounts") {
            for member in ["subPath", "subPathExpr"] {
                if !text(mount, member).is_empty() {
                    let at = mounts_at.index(position);
                    errors.forbidden(&at.child(member), WHY);
                }
            }
        }
    }
}

fn not_found(name: &str, at: &Path<'_>, errors: &mut Errors) {
    errors.push(listwatch_meta::FieldError::not_found(at, listwatch_meta::go::quote(name)));
}

/// Validates the common fields of all containers (`validateContainerCommon`).
fn common(pod: &PodContext<'_>, container: &Object, at: &Path<'_>, errors: &mut Errors) {
    match text(container, "name") {
        "" => errors.required(&at.child("name"), ""),
        name => label(name, &at.child("name"), errors),
    }
    if text(container, "image").is_empty() {
        errors.required(&at.child("image"), "");
    }
    required_one_of(container, "terminationMessagePolicy", &["File", "FallbackToLogsOnError"], at, errors);
    ports(container, &at.child("ports"), errors);
    environment(container, &at.child("env"), errors);
    environment_sources(container, &at.child("envFrom"), errors);
    mounts(pod, container, &at.child("volumeMounts"), errors);
    devices(pod, container, &at.child("volumeDevices"), errors);
    required_one_of(container, "imagePullPolicy", &["Always", "IfNotPresent", "Never"], at, errors);
    resources::container_resources(child(container, "resources"), &pod.claims, &at.child("resources"), errors);
    resources::resize_policy(container, pod.spec, &at.child("resizePolicy"), errors);
    security::container_security_context(pod, container, at, errors);
}

/// Reports an image with leading or trailing spaces (`validateContainerOnlyForPod`).
pub(super) fn image(container: &Object, at: &Path<'_>, errors: &mut Errors) {
    let image = text(container, "image");
    if image.trim() != image {
        errors.invalid(&at.child("image"), image, "must not have leading or trailing whitespace");
    }
}

fn ports(container: &Object, at: &Path<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (position, port) in objects(container, "ports") {
        let (at, name) = (at.index(position), text(port, "name"));
        if !name.is_empty() {
            let before = errors.len();
            formats::port_name(name, &at.child("name"), errors);
            if errors.len() == before && !seen.insert(name) {
                errors.duplicate(&at.child("name"), name);
            }
        }
        match number(port, "containerPort").unwrap_or(0) {
            0 => errors.required(&at.child("containerPort"), ""),
            number => formats::port_number(number, &at.child("containerPort"), errors),
        }
        match number(port, "hostPort").unwrap_or(0) {
            0 => {}
            number => formats::port_number(number, &at.child("hostPort"), errors),
        }
        required_one_of(port, "protocol", &["SCTP", "TCP", "UDP"], &at, errors);
    }
}

/// Reports duplicate host ports (`checkHostPortConflicts`).
fn host_port_conflicts<'a>(containers: impl Iterator<Item = (usize, &'a Object)>, at: &Path<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (position, container) in containers {
        for (place, port) in objects(container, "ports") {
            let host = number(port, "hostPort").unwrap_or(0);
            let key = (text(port, "protocol"), text(port, "hostIP"), host);
            if host != 0 && !seen.insert(key) {
                let at = at.index(position);
                let at = at.child("ports");
                let at = at.index(place);
                errors.duplicate(&at.child("hostPort"), &format!("{}/{}/{}", key.0, key.1, key.2));
            }
        }
    }
}

/// Validates the name of a variable (`IsRelaxedEnvVarName`).
fn variable_name(name: &str, at: &Path<'_>, errors: &mut Errors) {
    if name.bytes().any(|byte| byte == b'=' || !(b' '..=b'~').contains(&byte)) {
        let why = "a valid environment variable name must consist only of printable ASCII characters other than '='";
        errors.invalid(at, name, why);
    }
}

/// The fields of the pod that an environment variable may refer to.
const VARIABLE_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

fn environment(container: &Object, at: &Path<'_>, errors: &mut Errors) {
    for (position, variable) in objects(container, "env") {
        let at = at.index(position);
        match text(variable, "name") {
            "" => errors.required(&at.child("name"), ""),
            name => variable_name(name, &at.child("name"), errors),
        }
        if let Some(Value::Object(from)) = given(variable, "valueFrom") {
            value_from(from, text(variable, "value"), &at.child("valueFrom"), errors);
        }
    }
}

fn value_from(from: &Object, value: &str, at: &Path<'_>, errors: &mut Errors) {
    let mut sources = 0;
    for name in ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"] {
        let Some(Value::Object(source)) = given(from, name) else { continue };
        sources += 1;
        let at = at.child(name);
        match name {
            "fieldRef" => field_ref(source, &VARIABLE_FIELDS, &at, errors),
            "resourceFieldRef" => resource_ref(source, false, &at, errors),
            "fileKeyRef" => file_key(source, &at, errors),
            _ => key_of(source, &at, errors),
        }
    }
    let why = if sources == 0 {
        "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
    } else if !value.is_empty() {
        "may not be specified when `value` is not empty"
    } else if sources > 1 {
        "may not have more than one field specified at a time"
    } else {
        return;
    };
    errors.invalid(at, "", why);
}

/// Validates a reference to a key of a ConfigMap or Secret.
fn key_of(source: &Object, at: &Path<'_>, errors: &mut Errors) {
    subdomain(text(source, "name"), &at.child("name"), errors);
    match text(source, "key") {
        "" => errors.required(&at.child("key"), ""),
        key => errors.problems(&at.child("key"), key, names::config_map_key_problems(key)),
    }
}

fn file_key(source: &Object, at: &Path<'_>, errors: &mut Errors) {
    match text(source, "key") {
        "" => errors.required(&at.child("key"), ""),
        key => variable_name(key, &at.child("key"), errors),
    }
    match text(source, "volumeName") {
        "" => errors.required(&at.child("volumeName"), ""),
        name => label(name, &at.child("volumeName"), errors),
    }
    match text(source, "path") {
        "" => errors.required(&at.child("path"), ""),
        path => no_backsteps(path, &at.child("path"), errors),
    }
}

/// Validates the volumes of variables that are read from files (`validateFileKeyRefVolumes`).
pub(super) fn files_of_variables(pod: &PodContext<'_>, at: &Path<'_>, errors: &mut Errors) {
    let mut volumes: Option<HashMap<&str, bool>> = None;
    for (list, position, container) in each_container(pod.spec) {
        for (place, variable) in objects(container, "env") {
            let source = given(child(variable, "valueFrom"), "fileKeyRef").and_then(Value::as_object);
            let Some(source) = source else { continue };
            let volumes = volumes.get_or_insert_with(|| {
                let volumes = objects(pod.spec, "volumes");
                volumes.map(|(_, volume)| (text(volume, "name"), given(volume, "emptyDir").is_some())).collect()
            });
            let name = text(source, "volumeName");
            let at = at.child(list);
            let at = at.index(position);
            let at = at.child("env");
            let at = at.index(place);
            let at = at.child("valueFrom");
            let at = at.child("fileKeyRef");
            match volumes.get(name) {
                None => not_found(name, &at.child("volumeName"), errors),
                Some(false) => {
                    let why = "referenced volume must be of type emptyDir";
                    errors.invalid(&at.child("volumeName"), name, why);
                }
                Some(true) => {}
            }
        }
    }
}

fn environment_sources(container: &Object, at: &Path<'_>, errors: &mut Errors) {
    for (position, from) in objects(container, "envFrom") {
        let at_one = at.index(position);
        variable_name(text(from, "prefix"), &at_one.child("prefix"), errors);
        let mut sources = 0;
        for name in ["configMapRef", "secretRef"] {
            let Some(Value::Object(source)) = given(from, name) else { continue };
            sources += 1;
            let at = at_one.child(name);
            match text(source, "name") {
                "" => errors.required(&at.child("name"), ""),
                // Upstream validates the name as a name prefix.
                name => errors.problems(&at.child("name"), name, names::problems(NameRule::Subdomain, name, true)),
            }
        }
        let why = match sources {
            0 => "must specify one of: `configMapRef` or `secretRef`",
            1 => continue,
            _ => "may not have more than one field specified at a time",
        };
        errors.invalid(at, "", why);
    }
}

fn mounts(pod: &PodContext<'_>, container: &Object, at: &Path<'_>, errors: &mut Errors) {
    if items(container, "volumeMounts").is_empty() {
        return;
    }
    let devices: HashMap<&str, &str> = objects(container, "volumeDevices")
        .map(|(_, device)| (text(device, "name"), text(device, "devicePath")))
        .collect();
    let device_paths: HashSet<&str> = devices.values().copied().collect();
    let mut seen = HashSet::new();
    for (position, mount) in objects(container, "volumeMounts") {
        let (at_one, name, path) = (at.index(position), text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            errors.required(&at_one.child("name"), "");
        }
        if !pod.volumes.contains_key(name) {
            not_found(name, &at_one.child("name"), errors);
        }
        if path.is_empty() {
            errors.required(&at_one.child("mountPath"), "");
        }
        if !seen.insert(path) {
            errors.invalid(&at_one.child("mountPath"), path, "must be unique");
        }
        if devices.contains_key(name) {
            errors.invalid(&at_one.child("name"), name, "must not already exist in volumeDevices");
        }
        if device_paths.contains(path) {
            let why = "must not already exist as a path in volumeDevices";
            errors.invalid(&at_one.child("mountPath"), path, why);
        }
        let (below, expression) = (text(mount, "subPath"), text(mount, "subPathExpr"));
        if !below.is_empty() {
            descending_path(below, &at.child("subPath"), errors);
        }
        if !expression.is_empty() {
            if !below.is_empty() {
                let why = "subPathExpr and subPath are mutually exclusive";
                errors.invalid(&at_one.child("subPathExpr"), expression, why);
            }
            descending_path(expression, &at.child("subPathExpr"), errors);
        }
        propagation(container, mount, at, errors);
    }
}

fn propagation(container: &Object, mount: &Object, at: &Path<'_>, errors: &mut Errors) {
    let propagation = given(mount, "mountPropagation").and_then(Value::as_str);
    if let Some(way) = propagation {
        let at = at.child("mountPropagation");
        let ways = ["Bidirectional", "HostToContainer", "None"];
        if !ways.contains(&way) {
            errors.not_supported(&at, way, &ways);
        }
        if way == "Bidirectional" && !is_true(child(container, "securityContext"), "privileged") {
            let why = "Bidirectional mount propagation is available only to privileged containers";
            errors.forbidden(&at, why);
        }
    }
    let at = at.child("recursiveReadOnly");
    match given(mount, "recursiveReadOnly").and_then(Value::as_str) {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if !is_true(mount, "readOnly") {
                errors.forbidden(&at, "may only be specified when readOnly is true");
            }
            if propagation.is_some_and(|way| way != "None") {
                errors.forbidden(&at, "may only be specified when mountPropagation is None or not specified");
            }
        }
        Some(other) => errors.not_supported(&at, other, &["Disabled", "Enabled", "IfPossible"]),
    }
}

fn devices(pod: &PodContext<'_>, container: &Object, at: &Path<'_>, errors: &mut Errors) {
    if items(container, "volumeDevices").is_empty() {
        return;
    }
    let mounts: HashMap<&str, &str> =
        objects(container, "volumeMounts").map(|(_, mount)| (text(mount, "name"), text(mount, "mountPath"))).collect();
    let mount_paths: HashSet<&str> = mounts.values().copied().collect();
    let (mut names, mut paths) = (HashSet::new(), HashSet::new());
    for (position, device) in objects(container, "volumeDevices") {
        let (at, name, path) = (at.index(position), text(device, "name"), text(device, "devicePath"));
        let (name_at, path_at) = (at.child("name"), at.child("devicePath"));
        if name.is_empty() {
            errors.required(&name_at, "");
        }
        if names.contains(name) {
            errors.invalid(&name_at, name, "must be unique");
        }
        match pod.volumes.get(name) {
            Some(true) => {}
            Some(false) => {
                let why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.invalid(&name_at, name, why);
            }
            None => not_found(name, &name_at, errors),
        }
        if path.is_empty() {
            errors.required(&path_at, "");
        }
        if paths.contains(path) {
            errors.invalid(&path_at, path, "must be unique");
        }
        if path.split('/').any(|part| part == "..") {
            errors.invalid(&path_at, path, "can not contain backsteps ('..')");
        } else {
            paths.insert(path);
        }
        if mounts.contains_key(name) {
            errors.invalid(&name_at, name, "must not already exist in volumeMounts");
        }
        if mount_paths.contains(path) {
            errors.invalid(&path_at, path, "must not already exist as a path in volumeMounts");
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
}

fn lifecycle_and_probes(pod: &PodContext<'_>, container: &Object, at: &Path<'_>, errors: &mut Errors) {
    if let Some(Value::Object(lifecycle)) = given(container, "lifecycle") {
        let at = at.child("lifecycle");
        for name in ["postStart", "preStop"] {
            if let Some(Value::Object(hook)) = given(lifecycle, name) {
                let kinds = ["exec", "httpGet", "tcpSocket", "sleep"];
                handler(pod, hook, &kinds, &at.child(name), errors);
            }
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(Value::Object(probe)) = given(container, name) else { continue };
        let at = at.child(name);
        handler(pod, probe, &["exec", "httpGet", "tcpSocket", "grpc"], &at, errors);
        for name in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
            if let Some(number) = number(probe, name).filter(|number| *number < 0) {
                errors.invalid_value(&at.child(name), number, formats::NOT_NEGATIVE);
            }
        }
        let grace = number(probe, "terminationGracePeriodSeconds");
        if let Some(seconds) = grace.filter(|seconds| *seconds <= 0) {
            errors.invalid_value(&at.child("terminationGracePeriodSeconds"), seconds, "must be greater than 0");
        }
        if name == "readinessProbe" {
            if let Some(seconds) = grace {
                let why = "must not be set for readinessProbes";
                errors.invalid_value(&at.child("terminationGracePeriodSeconds"), seconds, why);
            }
        } else {
            let successes = number(probe, "successThreshold").unwrap_or(0);
            if successes != 1 {
                errors.invalid_value(&at.child("successThreshold"), successes, "must be 1");
            }
        }
    }
}

/// Validates the handler of a probe or lifecycle hook (`validateHandler`).
fn handler(pod: &PodContext<'_>, handler: &Object, kinds: &[&str], at: &Path<'_>, errors: &mut Errors) {
    let mut found = false;
    for kind in kinds {
        let Some(Value::Object(action)) = given(handler, kind) else { continue };
        let at = at.child(kind);
        if found {
            errors.forbidden(&at, "may not specify more than 1 handler type");
            continue;
        }
        found = true;
        match *kind {
            "exec" if items(action, "command").is_empty() => errors.required(&at.child("command"), ""),
            "httpGet" => http_get(action, &at, errors),
            "tcpSocket" | "grpc" => port_or_name(action, &at, errors),
            "sleep" => {
                let seconds = number(action, "seconds").unwrap_or(0);
                if let Some(grace) = pod.grace_seconds.filter(|grace| !(0..=*grace).contains(&seconds)) {
                    let why =
                        format_args!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                    errors.invalid_value(&at, seconds, why);
                }
            }
            _ => {}
        }
    }
    if !found {
        errors.required(at, "must specify a handler type");
    }
}

fn http_get(action: &Object, at: &Path<'_>, errors: &mut Errors) {
    if text(action, "path").is_empty() {
        errors.required(&at.child("path"), "");
    }
    port_or_name(action, at, errors);
    let scheme = text(action, "scheme");
    if !matches!(scheme, "HTTP" | "HTTPS") {
        errors.not_supported(&at.child("scheme"), scheme, &["HTTP", "HTTPS"]);
    }
    for (_, header) in objects(action, "httpHeaders") {
        let name = text(header, "name");
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            let why = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
            errors.invalid(&at.child("httpHeaders"), name, why);
        }
    }
}

/// Validates a port number or port name (`ValidatePortNumOrName`).
fn port_or_name(action: &Object, at: &Path<'_>, errors: &mut Errors) {
    match action.get("port") {
        Some(Value::String(name)) => formats::port_name(name, &at.child("port"), errors),
        port => formats::port_number(port.and_then(Value::as_i64).unwrap_or(0), &at.child("port"), errors),
    }
}

/// Validates the restart policy and rules of a container (`validateContainerRestartPolicy`).
fn restarts(container: &Object, is_init: bool, at: &Path<'_>, errors: &mut Errors) {
    let policy = given(container, "restartPolicy").and_then(Value::as_str);
    let rules = items(container, "restartPolicyRules").len();
    match policy {
        None if rules == 0 => return,
        None => {
            let why = "must specify restartPolicy when restart rules are used";
            errors.required(&at.child("restartPolicy"), why);
            if is_init {
                return;
            }
        }
        Some(policy) if !RESTARTS.contains(&policy) => {
            errors.not_supported(&at.child("restartPolicy"), policy, &RESTARTS);
        }
        Some(_) => {}
    }
    let at = at.child("restartPolicyRules");
    if rules > RESTART_RULES_MAX {
        errors.too_many(&at, rules, RESTART_RULES_MAX);
    }
    for (position, rule) in objects(container, "restartPolicyRules") {
        let at = at.index(position);
        let actions = ["Restart", "RestartAllContainers"];
        if !actions.contains(&text(rule, "action")) {
            errors.not_supported(&at.child("action"), text(rule, "action"), &actions);
        }
        let at = at.child("exitCodes");
        let Some(Value::Object(codes)) = given(rule, "exitCodes") else {
            errors.required(&at, "must be specified");
            continue;
        };
        let operator = text(codes, "operator");
        if !matches!(operator, "In" | "NotIn") {
            errors.not_supported(&at.child("operator"), operator, &["In", "NotIn"]);
        }
        let count = items(codes, "values").len();
        if count > RESTART_CODES_MAX {
            errors.too_many(&at.child("values"), count, RESTART_CODES_MAX);
        }
    }
}
