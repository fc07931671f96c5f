//! The checks of the Pod Security Standards (`pod-security-admission/policy`).
//!
//! Baseline checks come first, then restricted ones, each group by its id. A restricted check may replace a baseline one.

use std::collections::BTreeSet;

use listwatch_json::Value;
use listwatch_validation::{Object, child, given, items, number, objects, text, texts};

use super::policy::{Level, Standard, Version};

/// A pod or the template of a pod.
#[derive(Clone, Copy)]
pub(super) struct Pod<'a> {
    pub(super) metadata: &'a Object,
    pub(super) spec: &'a Object,
}

/// A violation of a check: a short reason, and the parts of the pod that violate the check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Violation {
    reason: &'static str,
    detail: String,
}

type CheckFn = fn(Pod<'_>) -> Option<Violation>;

struct Check {
    id: &'static str,
    level: Level,
    /// The first minor version of each form of the check.
    versions: &'static [(u32, CheckFn)],
    /// The id of the baseline check that this check replaces, or an empty string.
    replaces: &'static str,
}

const fn baseline(id: &'static str, versions: &'static [(u32, CheckFn)]) -> Check {
    Check { id, level: Level::Baseline, versions, replaces: "" }
}

const fn restricted(id: &'static str, versions: &'static [(u32, CheckFn)], replaces: &'static str) -> Check {
    Check { id, level: Level::Restricted, versions, replaces }
}

static CHECKS: [Check; 19] = [
    baseline("appArmorProfile", &[(0, app_armor)]),
    baseline("capabilities_baseline", &[(0, capabilities_baseline)]),
    baseline("hostNamespaces", &[(0, host_namespaces)]),
    baseline("hostPathVolumes", &[(0, host_path_volumes)]),
    baseline("hostPorts", &[(0, host_ports)]),
    baseline("hostProbesAndHostLifecycle", &[(34, probe_hosts)]),
    baseline("privileged", &[(0, privileged)]),
    baseline("procMount", &[(0, proc_mount), (35, |pod| unless_user_namespace(pod, proc_mount))]),
    baseline("seLinuxOptions", &[(0, |pod| se_linux(pod, false)), (31, |pod| se_linux(pod, true))]),
    baseline("seccompProfile_baseline", &[(0, seccomp_annotations), (19, seccomp_baseline)]),
    baseline(
        "sysctls",
        &[
            (0, |pod| sysctls(pod, 5)),
            (27, |pod| sysctls(pod, 6)),
            (29, |pod| sysctls(pod, 10)),
            (32, |pod| sysctls(pod, 12)),
        ],
    ),
    baseline("windowsHostProcess", &[(0, host_process)]),
    restricted(
        "allowPrivilegeEscalation",
        &[(8, privilege_escalation), (25, |pod| unless_windows(pod, privilege_escalation))],
        "",
    ),
    restricted(
        "capabilities_restricted",
        &[(22, capabilities_restricted), (25, |pod| unless_windows(pod, capabilities_restricted))],
        "capabilities_baseline",
    ),
    restricted("procMount_restricted", &[(35, proc_mount)], "procMount"),
    restricted("restrictedVolumes", &[(0, restricted_volumes)], "hostPathVolumes"),
    restricted("runAsNonRoot", &[(0, run_as_non_root), (35, |pod| unless_user_namespace(pod, run_as_non_root))], ""),
    restricted("runAsUser", &[(23, run_as_user), (35, |pod| unless_user_namespace(pod, run_as_user))], ""),
    restricted(
        "seccompProfile_restricted",
        &[(19, seccomp_restricted), (25, |pod| unless_windows(pod, seccomp_restricted))],
        "seccompProfile_baseline",
    ),
];

/// Returns the violations of a standard by a pod.
pub(super) fn violations(standard: Standard, pod: Pod<'_>) -> Vec<Violation> {
    let minor = match standard.version {
        Version::Latest => u32::MAX,
        Version::Minor(minor) => minor,
    };
    let form = |check: &Check| check.versions.iter().rev().find(|(first, _)| *first <= minor).map(|(_, check)| *check);
    let applies = |check: &&Check| check.level <= standard.level && form(check).is_some();
    let replaced: Vec<&str> = CHECKS.iter().filter(applies).map(|check| check.replaces).collect();
    let remaining = CHECKS.iter().filter(applies).filter(|check| !replaced.contains(&check.id));
    remaining.filter_map(|check| form(check)?(pod)).collect()
}

/// Formats the reasons without details.
pub(super) fn reasons(violations: &[Violation]) -> String {
    violations.iter().map(|violation| violation.reason).collect::<Vec<_>>().join(", ")
}

/// Formats the reasons with their details: `reason (detail), reason`.
pub(super) fn details(violations: &[Violation]) -> String {
    let one = |violation: &Violation| match violation.detail.as_str() {
        "" => violation.reason.to_owned(),
        detail => format!("{} ({detail})", violation.reason),
    };
    violations.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn containers<'a>(pod: Pod<'a>) -> impl Iterator<Item = &'a Object> {
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    lists.into_iter().flat_map(move |list| objects(pod.spec, list)).map(|(_, container)| container)
}

fn security(holder: &Object) -> &Object {
    child(holder, "securityContext")
}

fn quoted<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
    if names.is_empty() { String::new() } else { format!("\"{}\"", names.join("\", \"")) }
}

fn plural<'a>(count: usize, one: &'a str, many: &'a str) -> &'a str {
    if count == 1 { one } else { many }
}

/// Formats names of containers: `container "a"` or `containers "a", "b"`.
fn named(containers: &[&str]) -> String {
    format!("{} {}", plural(containers.len(), "container", "containers"), quoted(containers))
}

/// Formats the parts of a pod that violate a rule: `pod and containers "a", "b"`. `None` if there are none.
fn setters(of_pod: bool, containers: &[&str]) -> Option<String> {
    match (of_pod, containers.is_empty()) {
        (false, true) => None,
        (true, true) => Some("pod".to_owned()),
        (false, false) => Some(named(containers)),
        (true, false) => Some(format!("pod and {}", named(containers))),
    }
}

/// Returns the names of the containers for which `breaks` is true.
fn breaking<'a>(pod: Pod<'a>, mut breaks: impl FnMut(&'a Object) -> bool) -> Vec<&'a str> {
    containers(pod).filter(|container| breaks(container)).map(|container| text(container, "name")).collect()
}

fn unless_windows(pod: Pod<'_>, check: CheckFn) -> Option<Violation> {
    if text(child(pod.spec, "os"), "name") == "windows" { None } else { check(pod) }
}

fn unless_user_namespace(pod: Pod<'_>, check: CheckFn) -> Option<Violation> {
    if pod.spec.get("hostUsers") == Some(&Value::Bool(false)) { None } else { check(pod) }
}

fn is_true(holder: &Object, member: &str) -> bool {
    holder.get(member) == Some(&Value::Bool(true))
}

fn app_armor(pod: Pod<'_>) -> Option<Violation> {
    const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
    let mut values = BTreeSet::new();
    let mut is_bad = |holder| {
        let Some(Value::Object(profile)) = given(security(holder), "appArmorProfile") else { return false };
        let kind = text(profile, "type");
        let bad = !matches!(kind, "RuntimeDefault" | "Localhost");
        if bad {
            values.insert(kind.to_owned());
        }
        bad
    };
    let of_pod = is_bad(pod.spec);
    let of_containers = breaking(pod, is_bad);
    let is_forbidden =
        |profile: &str| !profile.is_empty() && profile != "runtime/default" && !profile.starts_with("localhost/");
    let annotations: BTreeSet<String> = child(pod.metadata, "annotations")
        .iter()
        .filter_map(|(key, value)| Some((key, value.as_str()?)))
        .filter(|(key, value)| key.starts_with(ANNOTATION) && is_forbidden(value))
        .map(|(key, value)| format!("{key}={}", listwatch_meta::go::quote(value)))
        .collect();
    let mut who: Vec<String> = setters(of_pod, &of_containers).into_iter().collect();
    let mut shown: Vec<String> = values.into_iter().collect();
    if !annotations.is_empty() {
        who.push(plural(annotations.len(), "annotation", "annotations").to_owned());
        shown.extend(annotations);
    }
    if who.is_empty() {
        return None;
    }
    Some(Violation {
        reason: plural(shown.len(), "forbidden AppArmor profile", "forbidden AppArmor profiles"),
        detail: format!("{} must not set AppArmor profile type to {}", who.join(" and "), quoted(shown)),
    })
}

fn capabilities_baseline(pod: Pod<'_>) -> Option<Violation> {
    const ALLOWED: [&str; 13] = [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ];
    let (bad, forbidden) = adding_beyond(pod, &ALLOWED);
    if bad.is_empty() {
        return None;
    }
    Some(Violation {
        reason: "non-default capabilities",
        detail: format!("{} must not include {} in securityContext.capabilities.add", named(&bad), quoted(forbidden)),
    })
}

/// Returns the containers that add capabilities outside of `allowed`, and the names of these capabilities.
fn adding_beyond<'a>(pod: Pod<'a>, allowed: &[&str]) -> (Vec<&'a str>, BTreeSet<&'a str>) {
    let mut forbidden = BTreeSet::new();
    let bad = breaking(pod, |container| {
        let added = texts(child(security(container), "capabilities"), "add");
        let before = added.filter(|name| !allowed.contains(name)).map(|name| forbidden.insert(name)).count();
        before > 0
    });
    (bad, forbidden)
}

fn capabilities_restricted(pod: Pod<'_>) -> Option<Violation> {
    let missing =
        breaking(pod, |container| !texts(child(security(container), "capabilities"), "drop").any(|name| name == "ALL"));
    let (adding, forbidden) = adding_beyond(pod, &["NET_BIND_SERVICE"]);
    let mut detail = Vec::new();
    if !missing.is_empty() {
        detail.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", named(&missing)));
    }
    if !adding.is_empty() {
        let forbidden = quoted(forbidden);
        detail.push(format!("{} must not include {forbidden} in securityContext.capabilities.add", named(&adding)));
    }
    let violation = Violation { reason: "unrestricted capabilities", detail: detail.join("; ") };
    (!violation.detail.is_empty()).then_some(violation)
}

fn host_namespaces(pod: Pod<'_>) -> Option<Violation> {
    let shared: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|name| is_true(pod.spec, name))
        .map(|name| format!("{name}=true"))
        .collect();
    (!shared.is_empty()).then(|| Violation { reason: "host namespaces", detail: shared.join(", ") })
}

fn volumes_with<'a>(pod: Pod<'a>, is: impl Fn(&Object) -> bool) -> Vec<&'a str> {
    let volumes = objects(pod.spec, "volumes").map(|(_, volume)| volume);
    volumes.filter(|volume| is(volume)).map(|volume| text(volume, "name")).collect()
}

fn host_path_volumes(pod: Pod<'_>) -> Option<Violation> {
    let bad = volumes_with(pod, |volume| given(volume, "hostPath").is_some());
    let detail = || format!("{} {}", plural(bad.len(), "volume", "volumes"), quoted(&bad));
    (!bad.is_empty()).then(|| Violation { reason: "hostPath volumes", detail: detail() })
}

fn host_ports(pod: Pod<'_>) -> Option<Violation> {
    let mut ports = BTreeSet::new();
    let bad = breaking(pod, |container| {
        let found = objects(container, "ports").filter_map(|(_, port)| number(port, "hostPort"));
        let found: Vec<String> = found.filter(|port| *port != 0).map(|port| port.to_string()).collect();
        let any = !found.is_empty();
        ports.extend(found);
        any
    });
    if bad.is_empty() {
        return None;
    }
    let (uses, what) = (plural(bad.len(), "uses", "use"), plural(ports.len(), "hostPort", "hostPorts"));
    let ports = ports.into_iter().collect::<Vec<_>>().join(", ");
    Some(Violation { reason: "hostPort", detail: format!("{} {uses} {what} {ports}", named(&bad)) })
}

fn probe_hosts(pod: Pod<'_>) -> Option<Violation> {
    let (mut names, mut hosts) = (BTreeSet::new(), BTreeSet::new());
    for container in containers(pod) {
        let lifecycle = child(container, "lifecycle");
        let handlers = [
            child(container, "livenessProbe"),
            child(container, "readinessProbe"),
            child(container, "startupProbe"),
            child(lifecycle, "postStart"),
            child(lifecycle, "preStop"),
        ];
        let found = handlers.iter().flat_map(|handler| [child(handler, "httpGet"), child(handler, "tcpSocket")]);
        for host in found.map(|action| text(action, "host")).filter(|host| !host.is_empty()) {
            hosts.insert(host);
            names.insert(text(container, "name"));
        }
    }
    if names.is_empty() {
        return None;
    }
    let names: Vec<&str> = names.into_iter().collect();
    let uses = plural(names.len(), "uses", "use");
    let what = plural(hosts.len(), "probe or lifecycle host", "probe or lifecycle hosts");
    Some(Violation {
        reason: "probe or lifecycle host",
        detail: format!("{} {uses} {what} {}", named(&names), quoted(hosts)),
    })
}

fn privileged(pod: Pod<'_>) -> Option<Violation> {
    let bad = breaking(pod, |container| is_true(security(container), "privileged"));
    let detail = || format!("{} must not set securityContext.privileged=true", named(&bad));
    (!bad.is_empty()).then(|| Violation { reason: "privileged", detail: detail() })
}

fn proc_mount(pod: Pod<'_>) -> Option<Violation> {
    let mut kinds = BTreeSet::new();
    let bad = breaking(pod, |container| {
        let Some(kind) = given(security(container), "procMount").and_then(Value::as_str) else { return false };
        kind != "Default" && {
            kinds.insert(kind);
            true
        }
    });
    let detail = || format!("{} must not set securityContext.procMount to {}", named(&bad), quoted(&kinds));
    (!bad.is_empty()).then(|| Violation { reason: "procMount", detail: detail() })
}

fn se_linux(pod: Pod<'_>, allow_engine: bool) -> Option<Violation> {
    let (mut kinds, mut user, mut role) = (BTreeSet::new(), false, false);
    let mut is_bad = |holder| {
        let options = child(security(holder), "seLinuxOptions");
        let kind = text(options, "type").to_owned();
        let allowed = matches!(kind.as_str(), "" | "container_t" | "container_init_t" | "container_kvm_t")
            || (allow_engine && kind == "container_engine_t");
        if !allowed {
            kinds.insert(kind);
        }
        let sets = |member: &str| !text(options, member).is_empty();
        user |= sets("user");
        role |= sets("role");
        !allowed || sets("user") || sets("role")
    };
    let of_pod = is_bad(pod.spec);
    let who = setters(of_pod, &breaking(pod, is_bad))?;
    let mut what = Vec::new();
    if !kinds.is_empty() {
        what.push(format!("{} {}", plural(kinds.len(), "type", "types"), quoted(kinds)));
    }
    what.extend(user.then(|| "user may not be set".to_owned()));
    what.extend(role.then(|| "role may not be set".to_owned()));
    let detail = format!("{who} set forbidden securityContext.seLinuxOptions: {}", what.join("; "));
    Some(Violation { reason: "seLinuxOptions", detail })
}

fn seccomp_annotations(pod: Pod<'_>) -> Option<Violation> {
    const OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
    let keys = containers(pod)
        .map(|container| format!("container.seccomp.security.alpha.kubernetes.io/{}", text(container, "name")));
    let annotations = child(pod.metadata, "annotations");
    let is_valid =
        |value: &str| matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
    let forbidden: BTreeSet<String> = std::iter::once(OF_POD.to_owned())
        .chain(keys)
        .filter_map(|key| Some((annotations.get(&key)?.as_str()?, key)))
        .filter(|(value, _)| !is_valid(value))
        .map(|(value, key)| format!("{key}={}", listwatch_meta::go::quote(value)))
        .collect();
    if forbidden.is_empty() {
        return None;
    }
    let what = plural(forbidden.len(), "annotation", "annotations");
    let shown = forbidden.into_iter().collect::<Vec<_>>().join(", ");
    Some(Violation { reason: "seccompProfile", detail: format!("forbidden {what} {shown}") })
}

/// Returns the type of the seccomp profile of a pod or a container.
fn seccomp_type(holder: &Object) -> Option<&str> {
    given(security(holder), "seccompProfile").and_then(Value::as_object).map(|profile| text(profile, "type"))
}

fn is_allowed_seccomp(kind: &str) -> bool {
    matches!(kind, "Localhost" | "RuntimeDefault")
}

fn seccomp_baseline(pod: Pod<'_>) -> Option<Violation> {
    let mut kinds = BTreeSet::new();
    let mut is_bad = |holder| match seccomp_type(holder) {
        Some(kind) if !is_allowed_seccomp(kind) => {
            kinds.insert(kind.to_owned());
            true
        }
        _ => false,
    };
    let of_pod = is_bad(pod.spec);
    let who = setters(of_pod, &breaking(pod, is_bad))?;
    let detail = format!("{who} must not set securityContext.seccompProfile.type to {}", quoted(kinds));
    Some(Violation { reason: "seccompProfile", detail })
}

fn seccomp_restricted(pod: Pod<'_>) -> Option<Violation> {
    if let Some(explicit) = seccomp_baseline(pod) {
        return Some(explicit);
    }
    if seccomp_type(pod.spec).is_some() {
        return None;
    }
    let missing = breaking(pod, |container| seccomp_type(container).is_none());
    let detail = || {
        let who = named(&missing);
        format!("pod or {who} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"")
    };
    (!missing.is_empty()).then(|| Violation { reason: "seccompProfile", detail: detail() })
}

/// Checks that a pod sets only sysctls among the first `allowed` entries of the list `ALLOWED`.
fn sysctls(pod: Pod<'_>, allowed: usize) -> Option<Violation> {
    const ALLOWED: [&str; 12] = [
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_wmem",
    ];
    let names = objects(security(pod.spec), "sysctls").map(|(_, sysctl)| text(sysctl, "name"));
    let forbidden: Vec<&str> = names.filter(|name| !ALLOWED[..allowed].contains(name)).collect();
    (!forbidden.is_empty()).then(|| Violation { reason: "forbidden sysctls", detail: forbidden.join(", ") })
}

fn host_process(pod: Pod<'_>) -> Option<Violation> {
    let is_bad = |holder: &Object| is_true(child(security(holder), "windowsOptions"), "hostProcess");
    let who = setters(is_bad(pod.spec), &breaking(pod, is_bad))?;
    let detail = format!("{who} must not set securityContext.windowsOptions.hostProcess=true");
    Some(Violation { reason: "hostProcess", detail })
}

fn privilege_escalation(pod: Pod<'_>) -> Option<Violation> {
    let bad =
        breaking(pod, |container| security(container).get("allowPrivilegeEscalation") != Some(&Value::Bool(false)));
    let detail = || format!("{} must set securityContext.allowPrivilegeEscalation=false", named(&bad));
    (!bad.is_empty()).then(|| Violation { reason: "allowPrivilegeEscalation != false", detail: detail() })
}

fn restricted_volumes(pod: Pod<'_>) -> Option<Violation> {
    const ALLOWED: [&str; 9] = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    const OTHERS: [&str; 21] = [
        "hostPath",
        "gcePersistentDisk",
        "awsElasticBlockStore",
        "gitRepo",
        "nfs",
        "iscsi",
        "glusterfs",
        "rbd",
        "flexVolume",
        "cinder",
        "cephfs",
        "flocker",
        "fc",
        "azureFile",
        "vsphereVolume",
        "quobyte",
        "azureDisk",
        "photonPersistentDisk",
        "portworxVolume",
        "scaleIO",
        "storageos",
    ];
    let has =
        |volume: &Object, kinds: &[&'static str]| kinds.iter().copied().find(|kind| given(volume, kind).is_some());
    let kinds: BTreeSet<&str> = objects(pod.spec, "volumes")
        .filter(|(_, volume)| has(volume, &ALLOWED).is_none())
        .map(|(_, volume)| has(volume, &OTHERS).unwrap_or("unknown"))
        .collect();
    let bad = volumes_with(pod, |volume| has(volume, &ALLOWED).is_none());
    if bad.is_empty() {
        return None;
    }
    let detail = format!(
        "{} {} {} {} {}",
        plural(bad.len(), "volume", "volumes"),
        quoted(&bad),
        plural(bad.len(), "uses", "use"),
        plural(kinds.len(), "restricted volume type", "restricted volume types"),
        quoted(kinds)
    );
    Some(Violation { reason: "restricted volume types", detail })
}

fn run_as_non_root(pod: Pod<'_>) -> Option<Violation> {
    const REASON: &str = "runAsNonRoot != true";
    let says = |holder: &Object| security(holder).get("runAsNonRoot").and_then(Value::as_bool);
    let explicit = breaking(pod, |container| says(container) == Some(false));
    if let Some(who) = setters(says(pod.spec) == Some(false), &explicit) {
        let detail = format!("{who} must not set securityContext.runAsNonRoot=false");
        return Some(Violation { reason: REASON, detail });
    }
    let implicit = breaking(pod, |container| says(container).is_none() && says(pod.spec) != Some(true));
    let detail = || format!("pod or {} must set securityContext.runAsNonRoot=true", named(&implicit));
    (!implicit.is_empty()).then(|| Violation { reason: REASON, detail: detail() })
}

fn run_as_user(pod: Pod<'_>) -> Option<Violation> {
    let is_root = |holder: &Object| number(security(holder), "runAsUser") == Some(0);
    let who = setters(is_root(pod.spec), &breaking(pod, is_root))?;
    Some(Violation { reason: "runAsUser=0", detail: format!("{who} must not set runAsUser=0") })
}

/// Whether an update adds a container or changes an image. Other fields that the standards check cannot change.
pub(super) fn is_significant(new: &Object, old: &Object) -> bool {
    let (new, old) = (child(new, "spec"), child(old, "spec"));
    let image = |container: &Value| container.get("image").cloned().unwrap_or_default();
    let differs = |list: &str| {
        let (new, old) = (items(new, list), items(old, list));
        new.len() != old.len() || new.iter().zip(old).any(|(new, old)| image(new) != image(old))
    };
    let is_new_ephemeral = |container: &Value| {
        let same = |old: &&Value| old.get("name") == container.get("name");
        let known = items(old, "ephemeralContainers").iter().find(same);
        known.is_none_or(|known| image(known) != image(container))
    };
    differs("containers") || differs("initContainers") || items(new, "ephemeralContainers").iter().any(is_new_ephemeral)
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
