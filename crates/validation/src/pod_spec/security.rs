//! Validates security contexts, user namespaces and operating systems of pods.

use std::collections::HashSet;

use listwatch_json::{Value, json};
use listwatch_schema::Path;

use super::{INT32_MAX, PodContext, each_container};
use crate::field_rules::descending_path;
use crate::formats::subdomain;
use crate::{Errors, Object, child, given, is_true, items, number, objects, text};

/// The length of a sysctl's name in bytes.
const SYSCTL_BYTES_MAX: usize = 253;
/// The length of the path of an AppArmor profile in bytes (`PATH_MAX` without the terminator).
pub const PROFILE_BYTES_MAX: usize = 4095;
/// The size of a GMSA credential spec in KiB.
const CREDENTIAL_KIB_MAX: usize = 64;
/// The lengths of a Windows user's name and domain in bytes.
const WINDOWS_USER_BYTES_MAX: usize = 104;
const WINDOWS_DOMAIN_BYTES_MAX: usize = 256;

fn id(holder: &Object, name: &str, at: &Path<'_>, errors: &mut Errors) {
    if let Some(id) = number(holder, name) {
        valid_id(id, &at.child(name), errors);
    }
}

fn valid_id(id: i64, at: &Path<'_>, errors: &mut Errors) {
    if !(0..=INT32_MAX).contains(&id) {
        errors.invalid_value(at, id, format_args!("must be between 0 and {INT32_MAX}, inclusive"));
    }
}

fn choice(holder: &Object, name: &str, supported: &[&str], at: &Path<'_>, errors: &mut Errors) {
    if given(holder, name).is_some() && !supported.contains(&text(holder, name)) {
        errors.not_supported(&at.child(name), text(holder, name), supported);
    }
}

/// Validates the security context of a pod (`validatePodSpecSecurityContext`).
pub(super) fn pod_security_context(pod: &PodContext<'_>, at: &Path<'_>, errors: &mut Errors) {
    let Some(Value::Object(context)) = given(pod.spec, "securityContext") else { return };
    let at = at.child("securityContext");
    for name in ["fsGroup", "runAsUser", "runAsGroup"] {
        id(context, name, &at, errors);
    }
    let groups_at = at.child("supplementalGroups");
    for (position, group) in items(context, "supplementalGroups").iter().enumerate() {
        valid_id(group.as_i64().unwrap_or(0), &groups_at.index(position), errors);
    }
    if is_true(pod.spec, "shareProcessNamespace") && is_true(pod.spec, "hostPID") {
        let why = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.invalid_value(&at.child("shareProcessNamespace"), true, why);
    }
    sysctls(pod, context, &at.child("sysctls"), errors);
    choice(context, "fsGroupChangePolicy", &["Always", "OnRootMismatch"], &at, errors);
    profiles(context, &at, windows_options, errors);
    choice(context, "supplementalGroupsPolicy", &["Merge", "Strict"], &at, errors);
    // The feature gate SELinuxMount is off: a pod may only keep an existing policy.
    let others = pod
        .owner
        .old
        .is_some_and(|old| !matches!(text(child(old, "securityContext"), "seLinuxChangePolicy"), "" | "Recursive"));
    let policies: &[&str] = if others { &["MountOption", "Recursive"] } else { &["Recursive"] };
    choice(context, "seLinuxChangePolicy", policies, &at, errors);
}

/// Validates the seccomp profile, calls `between`, then validates the AppArmor profile.
fn profiles(
    context: &Object,
    at: &Path<'_>,
    between: impl FnOnce(&Object, &Path<'_>, &mut Errors),
    errors: &mut Errors,
) {
    if let Some(Value::Object(profile)) = given(context, "seccompProfile") {
        seccomp(profile, &at.child("seccompProfile"), errors);
    }
    between(context, at, errors);
    if let Some(Value::Object(profile)) = given(context, "appArmorProfile") {
        app_armor(profile, &at.child("appArmorProfile"), errors);
    }
}

fn seccomp(profile: &Object, at: &Path<'_>, errors: &mut Errors) {
    let (kind, path) = (text(profile, "type"), given(profile, "localhostProfile").and_then(Value::as_str));
    match kind {
        "Localhost" | "RuntimeDefault" | "Unconfined" => {}
        "" => errors.required(&at.child("type"), "type is required when seccompProfile is set"),
        _ => errors.not_supported(&at.child("type"), kind, &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
    let at = at.child("localhostProfile");
    match (kind, path) {
        ("Localhost", None) => errors.required(&at, "must be set when seccomp type is Localhost"),
        ("Localhost", Some(path)) => descending_path(path, &at, errors),
        (_, Some(path)) => {
            let shown = json!({"Type": kind, "LocalhostProfile": path});
            errors.invalid_value(&at, shown, "can only be set when seccomp type is Localhost");
        }
        _ => {}
    }
}

fn app_armor(profile: &Object, at: &Path<'_>, errors: &mut Errors) {
    const NEEDED: &str = "must be set when AppArmor type is Localhost";
    let path = given(profile, "localhostProfile").and_then(Value::as_str);
    let path_at = at.child("localhostProfile");
    match (text(profile, "type"), path) {
        ("Localhost", None) => errors.required(&path_at, NEEDED),
        ("Localhost", Some(path)) => {
            if path.trim() != path {
                errors.invalid(&path_at, path, "must not be padded with whitespace");
            } else if path.is_empty() {
                errors.required(&path_at, NEEDED);
            }
            if path.len() > PROFILE_BYTES_MAX {
                errors.too_long(&path_at, PROFILE_BYTES_MAX);
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(path)) => {
            errors.invalid(&path_at, path, "can only be set when AppArmor type is Localhost");
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => errors.required(&at.child("type"), "type is required when appArmorProfile is set"),
        (kind, _) => errors.not_supported(&at.child("type"), kind, &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
}

fn sysctls(pod: &PodContext<'_>, context: &Object, at: &Path<'_>, errors: &mut Errors) {
    let old = pod.owner.old.map(|old| child(old, "securityContext"));
    let mut seen = HashSet::new();
    for (position, sysctl) in objects(context, "sysctls") {
        let at = at.index(position);
        let (at, name) = (at.child("name"), text(sysctl, "name"));
        if name.is_empty() {
            errors.required(&at, "");
        } else if !is_sysctl(name) {
            let why = format_args!(
                "must have at most {SYSCTL_BYTES_MAX} characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
            );
            errors.invalid(&at, name, why);
        } else if seen.contains(name) {
            errors.duplicate(&at, name);
        }
        seen.insert(name);
        // Pods that were stored before this rule may have sysctls.
        if old.is_some_and(|old| !items(old, "sysctls").is_empty()) {
            continue;
        }
        let (of_network, of_ipc) = namespaces(name);
        if is_true(pod.spec, "hostNetwork") && of_network {
            errors.invalid(&at, name, "may not be specified when 'hostNetwork' is true");
        } else if is_true(pod.spec, "hostIPC") && of_ipc {
            errors.invalid(&at, name, "may not be specified when 'hostIPC' is true");
        }
    }
}

fn is_sysctl(name: &str) -> bool {
    let word = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_segment = |segment: &str| {
        let bytes = segment.as_bytes();
        bytes.first().is_some_and(word)
            && bytes.last().is_some_and(word)
            && bytes.iter().all(|byte| word(byte) || matches!(byte, b'-' | b'_'))
    };
    name.len() <= SYSCTL_BYTES_MAX && name.split(['.', '/']).all(is_segment)
}

/// Returns whether a sysctl belongs to the network namespace, and whether to the IPC namespace.
fn namespaces(name: &str) -> (bool, bool) {
    // If the first separator is a slash, slashes and dots are swapped.
    let name = match name.find(['.', '/']) {
        Some(first) if name.as_bytes()[first] == b'/' => name
            .chars()
            .map(|c| {
                if c == '/' {
                    '.'
                } else if c == '.' {
                    '/'
                } else {
                    c
                }
            })
            .collect(),
        _ => name.to_owned(),
    };
    let ipc = matches!(
        name.as_str(),
        "kernel.sem"
            | "kernel.shmall"
            | "kernel.shmmax"
            | "kernel.shmmni"
            | "kernel.shm_rmid_forced"
            | "kernel.shm"
            | "kernel.msgmax"
            | "kernel.msgmnb"
            | "kernel.msgmni"
            | "kernel.msg"
    );
    (name.starts_with("net."), ipc || name.starts_with("fs.mqueue."))
}

/// Validates the security context of a container (`ValidateSecurityContext`).
pub(super) fn container_security_context(pod: &PodContext<'_>, container: &Object, at: &Path<'_>, errors: &mut Errors) {
    let Some(Value::Object(context)) = given(container, "securityContext") else { return };
    let at = at.child("securityContext");
    id(context, "runAsUser", &at, errors);
    id(context, "runAsGroup", &at, errors);
    choice(context, "procMount", &["Default", "Unmasked"], &at, errors);
    if pod.host_users && text(context, "procMount") == "Unmasked" {
        errors.invalid(&at.child("procMount"), "Unmasked", "`hostUsers` must be false to use `Unmasked`");
    }
    profiles(
        context,
        &at,
        |context, at, errors| {
            if context.get("allowPrivilegeEscalation") == Some(&Value::Bool(false)) {
                let mut contradicts = |why: &str| errors.invalid_value(at, shown_context(context), why);
                if is_true(context, "privileged") {
                    contradicts("cannot set `allowPrivilegeEscalation` to false and `privileged` to true");
                }
                let added = items(child(context, "capabilities"), "add");
                for _ in added.iter().filter(|added| *added == "CAP_SYS_ADMIN").take(1) {
                    contradicts("cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN");
                }
            }
            windows_options(context, at, errors);
        },
        errors,
    );
}

/// A security context in Go's form for errors.
fn shown_context(context: &Object) -> Value {
    let of = |name: &str| context.get(name).cloned().unwrap_or_default();
    let inside = |name: &str, members: &[(&str, &str)]| -> Value {
        let Some(Value::Object(object)) = given(context, name) else { return Value::Null };
        let shown = members.iter().map(|(go, member)| {
            let absent = if *go == "Type" || name == "seLinuxOptions" { json!("") } else { Value::Null };
            ((*go).to_owned(), object.get(member).cloned().unwrap_or(absent))
        });
        Value::Object(shown.collect())
    };
    let profile: &[(&str, &str)] = &[("Type", "type"), ("LocalhostProfile", "localhostProfile")];
    json!({
        "Capabilities": inside("capabilities", &[("Add", "add"), ("Drop", "drop")]),
        "Privileged": of("privileged"),
        "SELinuxOptions": inside("seLinuxOptions",
            &[("User", "user"), ("Role", "role"), ("Type", "type"), ("Level", "level")]),
        "WindowsOptions": inside("windowsOptions", &[("GMSACredentialSpecName", "gmsaCredentialSpecName"),
            ("GMSACredentialSpec", "gmsaCredentialSpec"), ("RunAsUserName", "runAsUserName"),
            ("HostProcess", "hostProcess")]),
        "RunAsUser": of("runAsUser"),
        "RunAsGroup": of("runAsGroup"),
        "RunAsNonRoot": of("runAsNonRoot"),
        "ReadOnlyRootFilesystem": of("readOnlyRootFilesystem"),
        "AllowPrivilegeEscalation": of("allowPrivilegeEscalation"),
        "ProcMount": of("procMount"),
        "SeccompProfile": inside("seccompProfile", profile),
        "AppArmorProfile": inside("appArmorProfile", profile),
    })
}

/// Validates `windowsOptions` (`validateWindowsSecurityContextOptions`).
fn windows_options(context: &Object, at: &Path<'_>, errors: &mut Errors) {
    let Some(Value::Object(options)) = given(context, "windowsOptions") else { return };
    let at = at.child("windowsOptions");
    let of = |name: &str| given(options, name).and_then(Value::as_str);
    if let Some(name) = of("gmsaCredentialSpecName") {
        subdomain(name, &at.child("gmsaCredentialSpecName"), errors);
    }
    if let Some(spec) = of("gmsaCredentialSpec") {
        let at = at.child("gmsaCredentialSpec");
        if spec.is_empty() {
            errors.invalid(&at, spec, "gmsaCredentialSpec cannot be an empty string");
        } else if spec.len() > CREDENTIAL_KIB_MAX * 1024 {
            errors.invalid(&at, spec, format_args!("gmsaCredentialSpec size must be under {CREDENTIAL_KIB_MAX} KiB"));
        }
    }
    if let Some(name) = of("runAsUserName") {
        windows_user(name, &at.child("runAsUserName"), errors);
    }
}

fn windows_user(name: &str, at: &Path<'_>, errors: &mut Errors) {
    let mut wrong = |why: String| errors.invalid(at, name, why);
    if name.is_empty() {
        return wrong("runAsUserName cannot be an empty string".to_owned());
    }
    if name.bytes().any(|byte| byte.is_ascii_control()) {
        return wrong("runAsUserName cannot contain control characters".to_owned());
    }
    if name.matches('\\').count() > 1 {
        return wrong("runAsUserName cannot contain more than one backslash".to_owned());
    }
    let (domain, user) = name.split_once('\\').map_or((None, name), |(domain, user)| (Some(domain), user));
    if let Some(domain) = domain {
        if domain.len() >= WINDOWS_DOMAIN_BYTES_MAX {
            wrong(format!("runAsUserName's Domain length must be under {WINDOWS_DOMAIN_BYTES_MAX} characters"));
        }
        let forbidden = ['\\', '/', ':', '*', '?', '"', '<', '>', '|'];
        let chars = domain.chars().count();
        let net_bios = (1..=15).contains(&chars) && !domain.contains(forbidden) && !domain.starts_with('.');
        let is_label = |label: &str| {
            let bytes = label.as_bytes();
            (1..=63).contains(&bytes.len())
                && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        if !net_bios && !domain.split('.').all(is_label) {
            wrong("runAsUserName's Domain doesn't match the NetBios nor the DNS format".to_owned());
        }
    }
    if user.is_empty() {
        wrong("runAsUserName's User cannot be empty".to_owned());
    } else if user.len() > WINDOWS_USER_BYTES_MAX {
        wrong(format!("runAsUserName's User length must not be longer than {WINDOWS_USER_BYTES_MAX} characters"));
    }
    if !user.is_empty() && user.chars().all(|c| matches!(c, '.' | ' ')) {
        wrong("runAsUserName's User cannot contain only periods or spaces".to_owned());
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        wrong("runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]".to_owned());
    }
}

fn windows_flag(holder: &Object) -> Option<bool> {
    child(child(holder, "securityContext"), "windowsOptions").get("hostProcess")?.as_bool()
}

/// Validates `hostProcess` of all containers together (`validateWindowsHostProcessPod`).
pub(super) fn host_processes(pod: &PodContext<'_>, at: &Path<'_>, errors: &mut Errors) {
    let of_pod = windows_flag(pod.spec);
    let (mut all, mut host) = (0usize, 0usize);
    for (list, position, container) in each_container(pod.spec) {
        all += 1;
        let own = windows_flag(container);
        if let (Some(of_pod), Some(own)) = (of_pod, own)
            && of_pod != own
        {
            let at = at.child(list);
            let at = at.index(position);
            let at = at.child("securityContext");
            let at = at.child("windowsOptions");
            let why = format_args!("pod hostProcess value must be identical if both are specified, was {of_pod}");
            errors.invalid_value(&at.child("hostProcess"), own, why);
        }
        host += usize::from(own.or(of_pod) == Some(true));
    }
    if host == 0 {
        return;
    }
    if host != all {
        let why = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.invalid(at, "", why);
    }
    if !is_true(pod.spec, "hostNetwork") {
        let why = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.invalid_value(&at.child("hostNetwork"), false, why);
    }
}

/// Reports host namespaces of a pod with its own user namespace (`validateHostUsers`).
pub(super) fn user_namespace(pod: &PodContext<'_>, at: &Path<'_>, errors: &mut Errors) {
    const WHY: &str = "when `hostUsers` is false";
    if pod.host_users {
        return;
    }
    for (name, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if is_true(pod.spec, name) {
            errors.forbidden(&at.child(shown), WHY);
        }
    }
    let tolerated = pod.owner.old.is_some_and(|old| {
        old.get("hostUsers") == Some(&Value::Bool(false))
            && each_container(old).any(|(.., container)| !items(container, "volumeDevices").is_empty())
    });
    for (list, position, container) in each_container(pod.spec) {
        if !items(container, "volumeDevices").is_empty() && !tolerated {
            let at = at.child(list);
            let at = at.index(position);
            errors.forbidden(&at.child("volumeDevices"), WHY);
        }
    }
}

/// Validates `os` and the fields that exclude it (`validateOS`).
pub(super) fn operating_system(pod: &PodContext<'_>, at: &Path<'_>, errors: &mut Errors) {
    let os_at = at.child("os");
    match pod.os {
        None => {}
        Some("") => errors.required(&os_at.child("name"), ""),
        Some("linux") => {
            const WHY: &str = "windows options cannot be set for a linux pod";
            let mut check = |holder: &Object, at: &Path<'_>| {
                if given(child(holder, "securityContext"), "windowsOptions").is_some() {
                    let at = at.child("securityContext");
                    errors.forbidden(&at.child("windowsOptions"), WHY);
                }
            };
            check(pod.spec, at);
            for (list, position, container) in each_container(pod.spec) {
                let at = at.child(list);
                check(container, &at.index(position));
            }
        }
        Some("windows") => windows(pod.spec, at, errors),
        Some(other) => errors.not_supported(&os_at, other, &["linux", "windows"]),
    }
}

/// Pod fields that are valid only on Linux. `true` marks fields of the spec, `false` fields of the pod security
/// context.
const LINUX_ONLY: [(&str, bool); 15] = [
    ("appArmorProfile", false),
    ("seLinuxOptions", false),
    ("hostUsers", true),
    ("hostPID", true),
    ("hostIPC", true),
    ("seccompProfile", false),
    ("fsGroup", false),
    ("fsGroupChangePolicy", false),
    ("sysctls", false),
    ("shareProcessNamespace", true),
    ("runAsUser", false),
    ("runAsGroup", false),
    ("supplementalGroups", false),
    ("supplementalGroupsPolicy", false),
    ("seLinuxChangePolicy", false),
];

/// Fields of container security contexts that are valid only on Linux.
const LINUX_CONTAINERS_ONLY: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

fn windows(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    const WHY: &str = "cannot be set for a windows pod";
    let context = child(spec, "securityContext");
    let context_at = at.child("securityContext");
    for (name, of_spec) in LINUX_ONLY {
        let (holder, at) = if of_spec { (spec, at) } else { (context, &context_at) };
        let set = match name {
            "hostPID" | "hostIPC" => is_true(holder, name),
            "sysctls" | "supplementalGroups" => !items(holder, name).is_empty(),
            _ => given(holder, name).is_some(),
        };
        if set {
            errors.forbidden(&at.child(name), WHY);
        }
    }
    for (list, position, container) in each_container(spec) {
        let context = child(container, "securityContext");
        for name in LINUX_CONTAINERS_ONLY.iter().filter(|name| given(context, name).is_some()) {
            let at = at.child(list);
            let at = at.index(position);
            let at = at.child("securityContext");
            errors.forbidden(&at.child(name), WHY);
        }
    }
}
