//! Tests each check with a pod that violates it and a pod that does not.

use listwatch_json::json;

use super::super::super::testing::object;
use super::*;

fn found(level: Level, version: Version, pod: &Value) -> String {
    let pod = object(pod.clone());
    let view = Pod { metadata: child(&pod, "metadata"), spec: child(&pod, "spec") };
    details(&violations(Standard { level, version }, view))
}

fn check(spec: Value, expected: &str) {
    let pod = json!({ "spec": spec });
    assert_eq!(found(Level::Baseline, Version::Latest, &pod), expected, "{pod}");
}

fn secured(context: Value) -> Value {
    json!({"containers": [{"name": "c", "securityContext": context}]})
}

/// A pod that the restricted standard allows, changed by `change`.
fn restricted_pod(change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({"spec": {
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "c", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}});
    change(&mut pod["spec"]);
    pod
}

fn check_restricted(change: impl FnOnce(&mut Value), expected: &str) {
    let pod = restricted_pod(change);
    assert_eq!(found(Level::Restricted, Version::Latest, &pod), expected, "{pod}");
}

#[test]
fn baseline_rejects_pods_that_use_host_namespaces_paths_or_ports() {
    check(json!({"containers": [{"name": "c"}]}), "");
    check(
        json!({"hostNetwork": true, "hostPID": true, "hostIPC": true}),
        "host namespaces (hostNetwork=true, hostPID=true, hostIPC=true)",
    );
    let volumes = json!([{"name": "a", "hostPath": {}}, {"name": "b", "hostPath": {}}, {"name": "c", "emptyDir": {}}]);
    check(json!({ "volumes": volumes }), "hostPath volumes (volumes \"a\", \"b\")");
    let ports = json!([{"name": "c", "ports": [{"hostPort": 9}, {"hostPort": 80}, {"containerPort": 1}]}]);
    check(json!({ "containers": ports }), "hostPort (container \"c\" uses hostPorts 80, 9)");
    check(
        json!({"securityContext": {"windowsOptions": {"hostProcess": true}}}),
        "hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)",
    );
    let probe = json!([{"name": "c", "livenessProbe": {"httpGet": {"host": "h"}}, "lifecycle": {"preStop": {"tcpSocket": {"host": "i"}}}}]);
    check(
        json!({ "containers": probe }),
        "probe or lifecycle host (container \"c\" uses probe or lifecycle hosts \"h\", \"i\")",
    );
    let spec = json!({ "spec": {"containers": probe} });
    assert_eq!(found(Level::Baseline, Version::Minor(33), &spec), "", "the check is new in 1.34");
}

#[test]
fn baseline_rejects_containers_with_privileged_security_contexts() {
    check(
        secured(json!({"privileged": true})),
        "privileged (container \"c\" must not set securityContext.privileged=true)",
    );
    check(
        secured(json!({"capabilities": {"add": ["SYS_TIME", "CHOWN", "BPF"]}})),
        "non-default capabilities (container \"c\" must not include \"BPF\", \"SYS_TIME\" in securityContext.capabilities.add)",
    );
    check(
        secured(json!({"procMount": "Unmasked"})),
        "procMount (container \"c\" must not set securityContext.procMount to \"Unmasked\")",
    );
    check(secured(json!({"procMount": "Default"})), "");
    let mut in_user_namespace = secured(json!({"procMount": "Unmasked"}));
    in_user_namespace["hostUsers"] = json!(false);
    check(in_user_namespace, "");
    check(
        json!({"securityContext": {"seLinuxOptions": {"type": "x", "user": "u"}}, "containers": [{"name": "c", "securityContext": {"seLinuxOptions": {"role": "r"}}}]}),
        "seLinuxOptions (pod and container \"c\" set forbidden securityContext.seLinuxOptions: type \"x\"; user may not be set; role may not be set)",
    );
    check(secured(json!({"seLinuxOptions": {"type": "container_engine_t"}})), "");
    check(
        json!({"initContainers": [{"name": "i", "securityContext": {"seccompProfile": {"type": "Unconfined"}}}], "securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
        "seccompProfile (pod and container \"i\" must not set securityContext.seccompProfile.type to \"Unconfined\")",
    );
    check(
        json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}),
        "forbidden AppArmor profile (pod must not set AppArmor profile type to \"Unconfined\")",
    );
    let annotated = json!({"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}}, "spec": {}});
    assert_eq!(
        found(Level::Baseline, Version::Latest, &annotated),
        "forbidden AppArmor profile (annotation must not set AppArmor profile type to \"container.apparmor.security.beta.kubernetes.io/c=\"unconfined\"\")"
    );
}

#[test]
fn allowed_sysctls_and_seccomp_annotations_depend_on_the_standard_version() {
    let sysctl = |name: &str| json!({"spec": {"securityContext": {"sysctls": [{"name": name}]}}});
    for (name, first) in [
        ("net.ipv4.tcp_syncookies", 0),
        ("net.ipv4.ip_local_reserved_ports", 27),
        ("net.ipv4.tcp_fin_timeout", 29),
        ("net.ipv4.tcp_rmem", 32),
    ] {
        for minor in [0, 26, 28, 31, 32, 99] {
            let expected = if minor < first { format!("forbidden sysctls ({name})") } else { String::new() };
            assert_eq!(found(Level::Baseline, Version::Minor(minor), &sysctl(name)), expected, "{name} in 1.{minor}");
        }
    }
    let annotated =
        json!({"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}}, "spec": {}});
    assert_eq!(
        found(Level::Restricted, Version::Minor(18), &annotated),
        "seccompProfile (forbidden annotation seccomp.security.alpha.kubernetes.io/pod=\"unconfined\")"
    );
    assert_eq!(found(Level::Baseline, Version::Minor(19), &annotated), "");
}

#[test]
fn restricted_requires_explicit_security_contexts() {
    check_restricted(|_| {}, "");
    check_restricted(
        |spec| spec["containers"] = json!([{"name": "c"}, {"name": "d"}]),
        "allowPrivilegeEscalation != false (containers \"c\", \"d\" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (containers \"c\", \"d\" must set securityContext.capabilities.drop=[\"ALL\"])",
    );
    check_restricted(
        |spec| spec["securityContext"] = json!({}),
        "runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
    );
    check_restricted(
        |spec| spec["securityContext"]["runAsNonRoot"] = json!(false),
        "runAsNonRoot != true (pod must not set securityContext.runAsNonRoot=false)",
    );
    check_restricted(
        |spec| spec["containers"][0]["securityContext"]["runAsUser"] = json!(0),
        "runAsUser=0 (container \"c\" must not set runAsUser=0)",
    );
    check_restricted(
        |spec| spec["containers"][0]["securityContext"]["capabilities"]["add"] = json!(["NET_BIND_SERVICE", "CHOWN"]),
        "unrestricted capabilities (container \"c\" must not include \"CHOWN\" in securityContext.capabilities.add)",
    );
    check_restricted(
        |spec| spec["volumes"] = json!([{"name": "h", "hostPath": {}}, {"name": "n", "nfs": {}}, {"name": "s", "secret": {}}, {"name": "i", "image": {}}]),
        "restricted volume types (volumes \"h\", \"n\" use restricted volume types \"hostPath\", \"nfs\")",
    );
    check_restricted(
        |spec| {
            spec["hostUsers"] = json!(false);
            spec["securityContext"]["runAsNonRoot"] = json!(false);
            spec["containers"][0]["securityContext"]["runAsUser"] = json!(0);
            spec["containers"][0]["securityContext"]["procMount"] = json!("Unmasked");
        },
        "procMount (container \"c\" must not set securityContext.procMount to \"Unmasked\")",
    );
}

#[test]
fn restricted_checks_are_skipped_for_windows_pods_and_older_versions() {
    let windows = json!({"spec": {"os": {"name": "windows"}, "securityContext": {"runAsNonRoot": true}, "containers": [{"name": "c"}]}});
    assert_eq!(found(Level::Restricted, Version::Latest, &windows), "");
    let older = found(Level::Restricted, Version::Minor(24), &windows);
    assert!(older.contains("allowPrivilegeEscalation") && older.contains("unrestricted capabilities"), "{older}");
    let bare = json!({"spec": {"containers": [{"name": "c"}]}});
    let oldest = "runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true)";
    assert_eq!(found(Level::Restricted, Version::Minor(7), &bare), oldest);
    assert_eq!(found(Level::Privileged, Version::Latest, &bare), "");
}

#[test]
fn pod_security_checks_are_sorted_by_level_and_id() {
    let order: Vec<(Level, &str)> = CHECKS.iter().map(|check| (check.level, check.id)).collect();
    assert!(order.is_sorted(), "{order:?}");
    let ids: Vec<&str> = CHECKS.iter().map(|check| check.id).collect();
    for check in &CHECKS {
        assert!(check.replaces.is_empty() || ids.contains(&check.replaces), "{}", check.id);
    }
}
