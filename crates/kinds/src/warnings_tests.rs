//! Tests of the warnings: one object per line, with the texts of kube-apiserver v1.36.

use listwatch_json::{Value, json};

use crate::testing::map;
use crate::{Strategy, Subresource};

fn warnings(kind: &str, new: Value, old: Option<Value>, subresource: Option<&Subresource>) -> Vec<String> {
    let kind = crate::KINDS.iter().find(|known| known.kind == kind).expect("a built-in kind");
    Strategy::warnings(*kind, &map(new), old.map(map).as_ref(), subresource)
}

/// Checks the warnings of a create.
fn check(kind: &str, object: Value, expected: &[&str]) {
    assert_eq!(warnings(kind, object.clone(), None, None), expected, "{kind} {object}");
}

/// Checks the warnings of an update that changes the generation.
fn check_update(kind: &str, mut new: Value, old: Value, expected: &[&str]) {
    new["metadata"]["generation"] = json!(2);
    assert_eq!(warnings(kind, new.clone(), Some(old), None), expected, "{kind} {new}");
}

/// Checks the warnings of a write of the status.
fn check_status(kind: &str, status: Value, expected: &[&str]) {
    let object = json!({"metadata": {}, "spec": {}, "status": status});
    let found = warnings(kind, object.clone(), Some(object), Some(&Subresource::Status));
    assert_eq!(found, expected, "{kind} {status}");
}

/// Checks the warnings of a new pod with these members in its spec.
fn check_pod(spec: Value, expected: &[&str]) {
    check("Pod", json!({"metadata": {"name": "p"}, "spec": spec}), expected);
}

/// Checks the warnings of a new pod with one container.
fn check_container(container: Value, expected: &[&str]) {
    check_pod(json!({"containers": [container]}), expected);
}

const NULL_SELECTOR: &str = "a null labelSelector results in matching no pod";
const NOT_WHOLE: &str = "is invalid, must be an integer";
/// A pod template with one warning.
const TEMPLATE_WARNING: &str =
    "template.spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1";

fn template() -> Value {
    json!({"metadata": {}, "spec": {"terminationGracePeriodSeconds": -1}})
}

#[test]
fn ordinary_objects_have_no_warnings() {
    let container = |name: &str, port: i64| {
        json!({"name": name, "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "A", "value": "$(A)2"}],
            "ports": [{"name": name, "containerPort": port, "protocol": "TCP"}, {"containerPort": port, "protocol": "UDP"}],
            "resources": {"limits": {"memory": "1Gi", "cpu": "100m"}, "requests": {"memory": "1500", "ephemeral-storage": "1e3"}}})
    };
    let token = json!({"name": "t", "projected": {"sources": [
        {"serviceAccountToken": {"path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace"}]}}]}});
    let spec = json!({"containers": [container("a", 80), container("b", 81)], "volumes": [token, {"name": "e", "emptyDir": {}}],
        "nodeSelector": {"kubernetes.io/os": "linux"}, "terminationGracePeriodSeconds": 30,
        "topologySpreadConstraints": [{"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {}}],
        "hostAliases": [{"ip": "10.0.0.1"}, {"ip": "2001:db8::1"}], "imagePullSecrets": [{"name": "a"}, {"name": "b"}]});
    check_pod(spec.clone(), &[]);
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": spec});
    check("Deployment", json!({"metadata": {"name": "d"}, "spec": {"template": template}}), &[]);
    check(
        "Service",
        json!({"metadata": {}, "spec": {"type": "ClusterIP", "clusterIP": "None", "sessionAffinity": "None"}}),
        &[],
    );
    check_status(
        "Pod",
        json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "hostIPs": [{"ip": "10.1.0.1"}]}),
        &[],
    );
}

#[test]
fn deprecated_node_labels_are_reported() {
    for (key, why) in [
        ("beta.kubernetes.io/arch", r#"deprecated since v1.14; use "kubernetes.io/arch" instead"#),
        ("beta.kubernetes.io/os", r#"deprecated since v1.14; use "kubernetes.io/os" instead"#),
        (
            "failure-domain.beta.kubernetes.io/region",
            r#"deprecated since v1.17; use "topology.kubernetes.io/region" instead"#,
        ),
        (
            "failure-domain.beta.kubernetes.io/zone",
            r#"deprecated since v1.17; use "topology.kubernetes.io/zone" instead"#,
        ),
        (
            "beta.kubernetes.io/instance-type",
            r#"deprecated since v1.17; use "node.kubernetes.io/instance-type" instead"#,
        ),
        ("app.kubernetes.io/created-by", "deprecated since v1.9"),
        ("scheduler.alpha.kubernetes.io/preferAvoidPods", "deprecated since v1.22; use Taints and Tolerations instead"),
        ("node-role.kubernetes.io/master", r#"use "node-role.kubernetes.io/control-plane" instead"#),
    ] {
        check_pod(json!({"nodeSelector": {key: "x"}}), &[&format!("spec.nodeSelector[{key}]: {why}")]);
    }
    let os = "beta.kubernetes.io/os";
    let why = r#"deprecated since v1.14; use "kubernetes.io/os" instead"#;
    let term = json!({"matchExpressions": [{"key": os, "operator": "In", "values": ["a b"]}]});
    let affinity = "spec.affinity.nodeAffinity";
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    check_pod(
        json!({"affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": [term]}, preferred: [{"preference": term}]}}}),
        &[
            &format!("{affinity}.{required}.nodeSelectorTerms[0].matchExpressions[0].key: {os} is {why}"),
            &format!("{affinity}.{preferred}[0].preference.matchExpressions[0].key: {os} is {why}"),
            &format!(
                "{affinity}.{preferred}[0].preference.matchExpressions[0].values[0]: a b is invalid, {}",
                listwatch_meta::selector::label_value_problems("a b")[0]
            ),
        ],
    );
    check_pod(
        json!({"topologySpreadConstraints": [{"topologyKey": os}]}),
        &[
            &format!("spec.topologySpreadConstraints[0].topologyKey: {os} is {why}"),
            &format!("spec.topologySpreadConstraints[0].labelSelector: {NULL_SELECTOR}"),
        ],
    );
    check(
        "RuntimeClass",
        json!({"scheduling": {"nodeSelector": {os: "x"}}}),
        &[&format!("scheduling.nodeSelector: {why}")],
    );
    check(
        "StorageClass",
        json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": os, "values": ["x"]}]}]}),
        &[&format!("allowedTopologies[0].matchLabelExpressions[0].key: {why}")],
    );
    check(
        "CSIStorageCapacity",
        json!({"nodeTopology": {"matchExpressions": [{"key": os, "operator": "Exists"}], "matchLabels": {os: "x"}}}),
        &[
            &format!("nodeTopology.matchExpressions[0].key: {os} is {why}"),
            &format!("nodeTopology.matchLabels.{os}: {why}"),
        ],
    );
    check(
        "PersistentVolume",
        json!({"metadata": {}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}}),
        &[&format!("spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].key: {os} is {why}")],
    );
}

#[test]
fn annotations_of_pods_without_an_effect_are_reported() {
    for (key, why) in [
        (
            "scheduler.alpha.kubernetes.io/critical-pod",
            r#"non-functional in v1.16+; use the "priorityClassName" field instead"#,
        ),
        ("security.alpha.kubernetes.io/sysctls", r#"non-functional in v1.11+; use the "sysctls" field instead"#),
        ("security.alpha.kubernetes.io/unsafe-sysctls", r#"non-functional in v1.11+; use the "sysctls" field instead"#),
        (
            "seccomp.security.alpha.kubernetes.io/pod",
            r#"non-functional in v1.27+; use the "seccompProfile" field instead"#,
        ),
        (
            "container.seccomp.security.alpha.kubernetes.io/c",
            r#"non-functional in v1.27+; use the "seccompProfile" field instead"#,
        ),
    ] {
        let spec = json!({"containers": [{"name": "c"}]});
        let expected = format!("metadata.annotations[{key}]: {why}");
        check("Pod", json!({"metadata": {"name": "p", "annotations": {key: "x"}}, "spec": spec}), &[&expected]);
    }
    let profile = json!({"seccompProfile": {"type": "RuntimeDefault"}});
    let annotations = json!({"seccomp.security.alpha.kubernetes.io/pod": "runtime/default",
        "container.seccomp.security.alpha.kubernetes.io/c": "runtime/default"});
    let spec = json!({"securityContext": profile, "containers": [{"name": "c", "securityContext": profile}]});
    check("Pod", json!({"metadata": {"name": "p", "annotations": annotations}, "spec": spec}), &[]);
}

#[test]
fn app_armor_annotation_of_template_is_reported_unless_a_profile_says_the_same() {
    let key = "container.apparmor.security.beta.kubernetes.io/c";
    let template = |annotation: &str, profile: Value, of_container: Value| {
        let container = json!({"name": "c", "securityContext": {"appArmorProfile": of_container}});
        json!({"metadata": {"annotations": {key: annotation}},
            "spec": {"securityContext": {"appArmorProfile": profile}, "containers": [container]}})
    };
    let why = r#"deprecated since v1.30; use the "appArmorProfile" field instead"#;
    let warning = format!("template.metadata.annotations[{key}]: {why}");
    for (annotation, profile, is_reported) in [
        ("runtime/default", Value::Null, true),
        ("runtime/default", json!({"type": "RuntimeDefault"}), false),
        ("runtime/default", json!({"type": "Unconfined"}), true),
        ("unconfined", json!({"type": "Unconfined"}), false),
        ("localhost/a", json!({"type": "Localhost", "localhostProfile": "a"}), false),
        ("localhost/b", json!({"type": "Localhost", "localhostProfile": "a"}), true),
        ("localhost/", json!({"type": "Localhost", "localhostProfile": "a"}), true),
    ] {
        let template = template(annotation, profile, Value::Null);
        let expected: &[&str] = if is_reported { &[&warning] } else { &[] };
        check("PodTemplate", json!({"metadata": {}, "template": template}), expected);
    }
    let template = template("runtime/default", Value::Null, json!({"type": "Unconfined"}));
    check("PodTemplate", json!({"metadata": {}, "template": template}), &[]);
}

#[test]
fn deprecated_volume_plugins_are_reported() {
    let removed_in_1_25 = "deprecated in v1.22, non-functional in v1.25+";
    let removed_in_1_31 = "deprecated in v1.28, non-functional in v1.31+";
    for (member, shown, why) in [
        ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
        ("gitRepo", "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
        ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
        ("flocker", "flocker", removed_in_1_25),
        ("storageos", "storageOS", removed_in_1_25),
        ("quobyte", "quobyte", removed_in_1_25),
        ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
        ("cephfs", "cephfs", removed_in_1_31),
        ("rbd", "rbd", removed_in_1_31),
    ] {
        check_pod(json!({"volumes": [{"name": "v", member: {}}]}), &[&format!("spec.volumes[0].{shown}: {why}")]);
        if !matches!(member, "gitRepo" | "flocker" | "quobyte") {
            check(
                "PersistentVolume",
                json!({"metadata": {}, "spec": {member: {}}}),
                &[&format!("spec.{shown}: {why}")],
            );
        }
    }
    check_pod(
        json!({"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate":
            {"spec": {"resources": {"requests": {"storage": "500m"}}}}}}]}),
        &[&format!(
            "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests[storage]: fractional byte value \"500m\" {NOT_WHOLE}"
        )],
    );
}

#[test]
fn overlapping_paths_of_volumes_are_reported() {
    let items = |paths: &[&str]| -> Value { paths.iter().map(|path| json!({"key": "k", "path": path})).collect() };
    for (volume, expected) in [
        (json!({"configMap": {"name": "m", "items": items(&["a", "b", "ab"])}}), ""),
        (
            json!({"configMap": {"name": "m", "items": items(&["a", "a/"])}}),
            r#"volume "v" (ConfigMap "m"): overlapping paths: "a" with "a""#,
        ),
        (
            json!({"secret": {"secretName": "s", "items": items(&["a", "b", "a/x"])}}),
            r#"volume "v" (Secret "s"): overlapping paths: "a/x" with "a""#,
        ),
        (
            json!({"downwardAPI": {"items": items(&["a/x", "a"])}}),
            r#"volume "v" (DownwardAPI): overlapping paths: "a" with "a/x""#,
        ),
        (json!({"projected": {"sources": [{}]}}), r#"volume "v" (Projected) has no sources provided"#),
        (
            json!({"projected": {"sources": [{"configMap": {"name": "m", "items": items(&["a"])}},
                {"secret": {"name": "s", "items": items(&["a"])}}]}}),
            r#"volume "v" (Projected): overlapping paths: "a" (Secret "s") with "a" (ConfigMap "m")"#,
        ),
        (
            json!({"projected": {"sources": [{"downwardAPI": {"items": items(&["a"])}}, {"serviceAccountToken": {"path": "a/t"}}]}}),
            r#"volume "v" (Projected): overlapping paths: "a/t" (ServiceAccountToken) with "a" (DownwardAPI)"#,
        ),
        (
            json!({"projected": {"sources": [{"clusterTrustBundle": {"signerName": "s", "path": "a"}},
                {"podCertificate": {"keyPath": "a", "certificateChainPath": "c"}}]}}),
            r#"volume "v" (Projected): overlapping paths: "a" (PodCertificate key) with "a" (ClusterTrustBundle "s")"#,
        ),
        (
            json!({"projected": {"sources": [{"podCertificate": {"credentialBundlePath": "a", "certificateChainPath": "a"}}]}}),
            r#"volume "v" (Projected): overlapping paths: "a" (PodCertificate credential bundle) with "a" (PodCertificate chain)"#,
        ),
    ] {
        let mut volume = volume;
        volume["name"] = json!("v");
        let expected: &[&str] = if expected.is_empty() { &[] } else { &[expected] };
        check_pod(json!({"volumes": [volume]}), expected);
    }
}

#[test]
fn duplicate_and_empty_list_items_of_pods_are_reported() {
    check_pod(
        json!({"hostAliases": [{"ip": "1.1.1.1"}, {"ip": "1.1.1.2"}, {"ip": "1.1.1.1"}]}),
        &[r#"spec.hostAliases[2].ip: duplicate ip "1.1.1.1""#],
    );
    check_pod(
        json!({"imagePullSecrets": [{"name": "a"}, {"name": "a"}, {}]}),
        &[
            r#"spec.imagePullSecrets[1].name: duplicate name "a""#,
            r#"spec.imagePullSecrets[2].name: invalid empty name """#,
        ],
    );
    let many: Value = (0..40).chain([7]).map(|number| json!({"name": format!("s{number}")})).collect();
    check_pod(json!({ "imagePullSecrets": many }), &[r#"spec.imagePullSecrets[40].name: duplicate name "s7""#]);
}

#[test]
fn fractional_amounts_of_bytes_are_reported() {
    let fraction = |at: &str| format!("spec.{at}: fractional byte value \"1500m\" {NOT_WHOLE}");
    check_pod(
        json!({"overhead": {"memory": "1500m", "ephemeral-storage": "1500m", "cpu": "1500m"}}),
        &[&fraction("overhead[memory]"), &fraction("overhead[ephemeral-storage]")],
    );
    let amounts = json!({"memory": "1500m", "ephemeral-storage": "1500m", "cpu": "1500m"});
    check_container(
        json!({"name": "c", "resources": {"limits": amounts, "requests": amounts}}),
        &[
            &fraction("containers[0].resources.limits[memory]"),
            &fraction("containers[0].resources.requests[memory]"),
            &fraction("containers[0].resources.limits[ephemeral-storage]"),
            &fraction("containers[0].resources.requests[ephemeral-storage]"),
        ],
    );
    check(
        "PersistentVolumeClaim",
        json!({"metadata": {}, "spec": {"resources": {"requests": {"storage": "1500m"}, "limits": {"storage": "1500m"}}}}),
        &[&fraction("resources.requests[storage]"), &fraction("resources.limits[storage]")],
    );
}

#[test]
fn hidden_environment_variables_are_reported() {
    for (second, is_reported) in [
        (json!({"name": "A", "value": "$(A)2"}), false),
        (json!({"name": "A", "value": "$(A)"}), true),
        (json!({"name": "A", "value": "2"}), true),
        (json!({"name": "A", "valueFrom": {"fieldRef": {}}}), true),
    ] {
        let warning =
            r#"spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply"#;
        let expected: &[&str] = if is_reported { &[warning] } else { &[] };
        check_container(json!({"name": "c", "env": [{"name": "A", "value": "1"}, second]}), expected);
    }
}

#[test]
fn conflicting_ports_are_reported() {
    let (first, second) = ("spec.containers[0].ports[0]", "spec.containers[1].ports[0]");
    let port = |host: i64, ip: &str| json!({"containerPort": 80, "protocol": "TCP", "hostPort": host, "hostIP": ip});
    for (a, b, expected) in [
        (port(8, ""), port(9, ""), ""),
        (port(8, "1.1.1.1"), port(8, "1.1.1.2"), ""),
        (port(0, ""), port(0, ""), "duplicate"),
        (port(8, "1.1.1.1"), port(8, "1.1.1.1"), "duplicate"),
        (port(8, ""), port(0, ""), "overlapping"),
        (port(8, ""), port(8, "1.1.1.1"), "dangerously ambiguous"),
    ] {
        let warning = format!("{second}: {expected} port definition with {first}");
        let expected: &[&str] = if expected.is_empty() { &[] } else { &[&warning] };
        check_pod(json!({"containers": [{"name": "a", "ports": [a]}, {"name": "b", "ports": [b]}]}), expected);
    }
    check_container(
        json!({"name": "c", "ports": [{"name": "n", "containerPort": 80, "protocol": "TCP", "hostIP": "1.1.1.1"}]}),
        &[&format!(
            "{first}: hostIP set without hostPort: {{Name:n HostPort:0 ContainerPort:80 Protocol:TCP HostIP:1.1.1.1}}"
        )],
    );
    let named = |number: i64| json!([{"name": "http", "containerPort": number, "protocol": "TCP"}]);
    check_pod(
        json!({"initContainers": [{"name": "a", "ports": named(80)}], "containers": [{"name": "b", "ports": named(81)}]}),
        &[
            r#"spec.containers[0].ports[0]: duplicate port name "http" with spec.initContainers[0].ports[0], services and probes that select ports by name will use spec.initContainers[0].ports[0]"#,
        ],
    );
}

#[test]
fn affinity_terms_without_a_selector_are_reported() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    for kind in ["podAffinity", "podAntiAffinity"] {
        check_pod(
            json!({"affinity": {kind: {required: [{"labelSelector": {}}, {}], preferred: [{"podAffinityTerm": {}}]}}}),
            &[
                &format!("spec.affinity.{kind}.{required}[1].labelSelector: {NULL_SELECTOR}"),
                &format!("spec.affinity.{kind}.{preferred}[0].podAffinityTerm.labelSelector: {NULL_SELECTOR}"),
            ],
        );
    }
}

#[test]
fn addresses_in_other_notations_are_reported() {
    for (ip, expected) in [
        ("10.0.0.1", ""),
        ("2001:db8::1", ""),
        ("not an address", ""),
        ("010.0.0.1", r#"non-standard IP address "010.0.0.1" is invalid: use "10.0.0.1""#),
        ("::ffff:10.0.0.1", r#"non-standard IP address "::ffff:10.0.0.1" is invalid: use "10.0.0.1""#),
        ("2001:DB8::1", r#"IPv6 address "2001:DB8::1" should be in RFC 5952 canonical format ("2001:db8::1")"#),
        ("2001:db8:0::1", r#"IPv6 address "2001:db8:0::1" should be in RFC 5952 canonical format ("2001:db8::1")"#),
    ] {
        for (kind, member, at) in [
            ("Pod", "podIPs", "status.podIPs[0].ip"),
            ("Pod", "hostIPs", "status.hostIPs[0].ip"),
            ("Service", "loadBalancer", "status.loadBalancer.ingress[0]"),
            ("Ingress", "loadBalancer", "status.loadBalancer.ingress[0]"),
        ] {
            let list = json!([{ "ip": ip }]);
            let status =
                if member == "loadBalancer" { json!({member: {"ingress": list}}) } else { json!({ member: list }) };
            let warning = format!("{at}: {expected}");
            let expected: &[&str] = if expected.is_empty() { &[] } else { &[&warning] };
            check_status(kind, status, expected);
        }
    }
    let octal = r#"non-standard IP address "01.1.1.1" is invalid: use "1.1.1.1""#;
    check_pod(
        json!({"dnsConfig": {"nameservers": ["01.1.1.1"]}, "hostAliases": [{"ip": "01.1.1.1"}]}),
        &[&format!("spec.dnsConfig.nameservers[0]: {octal}"), &format!("spec.hostAliases[0].ip: {octal}")],
    );
    let addresses = json!([{"ip": "01.1.1.1"}]);
    let endpoints = |manager: &str| {
        json!({"metadata": {"labels": {"endpoints.kubernetes.io/managed-by": manager}},
            "subsets": [{"addresses": addresses, "notReadyAddresses": addresses}]})
    };
    check(
        "Endpoints",
        endpoints("me"),
        &[&format!("subsets[0].addresses[0].ip: {octal}"), &format!("subsets[0].notReadyAddresses[0].ip: {octal}")],
    );
    check("Endpoints", endpoints("endpoint-controller"), &[]);
    let slice = |manager: &str| {
        json!({"metadata": {"labels": {"endpointslice.kubernetes.io/managed-by": manager}}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["01.1.1.1"]}]})
    };
    check("EndpointSlice", slice("me"), &[&format!("endpoints[0].addresses[0]: {octal}")]);
    check("EndpointSlice", slice("endpointslice-controller.k8s.io"), &[]);
    check("EndpointSlice", slice("endpointslicemirroring-controller.k8s.io"), &[]);
    let fqdn = json!({"metadata": {}, "addressType": "FQDN"});
    check("EndpointSlice", fqdn.clone(), &["spec.addressType: FQDN endpoints are deprecated"]);
    check_update("EndpointSlice", fqdn.clone(), fqdn, &[]);
}

#[test]
fn ranges_in_other_notations_are_reported() {
    for (range, expected) in [
        ("10.0.0.0/8", ""),
        ("2001:db8::/64", ""),
        (
            "10.0.0.1/8",
            r#"CIDR value "10.0.0.1/8" is ambiguous in this context (should be "10.0.0.0/8" or "10.0.0.1/32"?)"#,
        ),
        (
            "2001:db8::1/64",
            r#"CIDR value "2001:db8::1/64" is ambiguous in this context (should be "2001:db8::/64" or "2001:db8::1/128"?)"#,
        ),
        ("010.0.0.0/8", r#"non-standard CIDR value "010.0.0.0/8" is invalid: use "10.0.0.0/8""#),
        ("10.0.0.0/08", r#"non-standard CIDR value "10.0.0.0/08" is invalid: use "10.0.0.0/8""#),
        ("::ffff:10.0.0.0/104", r#"non-standard CIDR value "::ffff:10.0.0.0/104" is invalid: use "10.0.0.0/8""#),
        (
            "2001:DB8::/64",
            r#"IPv6 CIDR value "2001:DB8::/64" should be in RFC 5952 canonical format ("2001:db8::/64")"#,
        ),
    ] {
        let check_range = |kind: &str, spec: Value, at: &str| {
            let warning = format!("{at}: {expected}");
            let expected: &[&str] = if expected.is_empty() { &[] } else { &[&warning] };
            check(kind, json!({"metadata": {}, "spec": spec}), expected);
        };
        check_range("Node", json!({"podCIDRs": [range]}), "spec.podCIDRs[0]");
        check_range("Service", json!({"loadBalancerSourceRanges": [range]}), "spec.loadBalancerSourceRanges[0]");
        let block = |cidr: &str, except: &[&str]| json!([{"ipBlock": {"cidr": cidr, "except": except}}]);
        let at = "spec.ingress[0].from[0].ipBlock.cidr";
        check_range("NetworkPolicy", json!({"ingress": [{"from": block(range, &[])}]}), at);
        let at = "spec.egress[0].to[0].ipBlock.except[0]";
        check_range("NetworkPolicy", json!({"egress": [{"to": block("0.0.0.0/0", &[range])}]}), at);
    }
}

#[test]
fn ignored_and_deprecated_fields_of_services_are_reported() {
    let deprecated = "spec.externalIPs is deprecated and may no longer be implemented in some clusters";
    for (spec, expected) in [
        (json!({"type": "ClusterIP", "externalIPs": ["1.1.1.1"]}), deprecated),
        (
            json!({"type": "ClusterIP", "clusterIP": "None", "sessionAffinity": "None", "loadBalancerIP": "1.1.1.1"}),
            "spec.loadBalancerIP is ignored for headless services",
        ),
        (
            json!({"type": "ClusterIP", "clusterIP": "None", "sessionAffinity": "None", "externalIPs": ["1.1.1.1"]}),
            "spec.externalIPs is ignored for headless services",
        ),
        (
            json!({"type": "ClusterIP", "clusterIP": "None", "sessionAffinity": "ClientIP"}),
            "spec.SessionAffinity is ignored for headless services",
        ),
        (
            json!({"type": "ClusterIP", "clusterIP": "fd00::1", "clusterIPs": ["FD00::1"]}),
            r#"spec.clusterIPs[0]: IPv6 address "FD00::1" should be in RFC 5952 canonical format ("fd00::1")"#,
        ),
        (
            json!({"type": "LoadBalancer", "loadBalancerIP": "01.1.1.1"}),
            r#"spec.loadBalancerIP: non-standard IP address "01.1.1.1" is invalid: use "1.1.1.1""#,
        ),
        (
            json!({"type": "ExternalName", "externalName": "a.b", "externalIPs": ["1.1.1.1"]}),
            r#"spec.externalIPs is ignored when spec.type is "ExternalName""#,
        ),
        (
            json!({"type": "ClusterIP", "externalName": "a.b"}),
            r#"spec.externalName is ignored when spec.type is not "ExternalName""#,
        ),
        (
            json!({"type": "ClusterIP", "trafficDistribution": "PreferClose"}),
            r#"spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone""#,
        ),
    ] {
        let service = json!({"metadata": {}, "spec": spec});
        check("Service", service.clone(), &[expected]);
        check_update("Service", service.clone(), service, &[expected]);
    }
    check(
        "Service",
        json!({"metadata": {"annotations": {"service.kubernetes.io/topology-aware-hints": "auto"}}, "spec": {}}),
        &[
            "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead",
        ],
    );
    check(
        "Service",
        json!({"metadata": {}, "spec": {"type": "ClusterIP", "externalIPs": ["01.1.1.1"]}}),
        &[r#"spec.externalIPs[0]: non-standard IP address "01.1.1.1" is invalid: use "1.1.1.1""#, deprecated],
    );
}

#[test]
fn name_of_workload_that_is_no_dns_label_is_reported_on_create() {
    let object = |name: &str| json!({"metadata": {"name": name}, "spec": {}});
    let warning = |used: &str, problem: &str| {
        format!(
            "metadata.name: this is used in {used}, which can result in surprising behavior; a DNS label is recommended: [{problem}]"
        )
    };
    for (kind, used) in [
        ("Pod", "the Pod's hostname"),
        ("Deployment", "Pod names and hostnames"),
        ("ReplicaSet", "Pod names and hostnames"),
        ("ReplicationController", "Pod names and hostnames"),
        ("Job", "Pod names and hostnames"),
        ("CronJob", "Pod names and hostnames"),
    ] {
        check(kind, object("a.b"), &[&warning(used, "must not contain dots")]);
        check_update(kind, object("a.b"), object("a.b"), &[]);
        check(kind, object("a"), &[]);
    }
    let long = format!("{}.b", "a".repeat(63));
    let problems = "must be no more than 63 characters must not contain dots";
    check("Deployment", object(&long), &[&warning("Pod names and hostnames", problems)]);
    check("DaemonSet", object("a.b"), &[]);
}

#[test]
fn template_is_checked_on_create_and_when_the_generation_changes() {
    for kind in ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController", "Job"] {
        let object =
            |template: Value| json!({"metadata": {"name": "a", "generation": 1}, "spec": {"template": template}});
        let warning = format!("spec.{TEMPLATE_WARNING}");
        check(kind, object(template()), &[&warning]);
        // Upstream passes the templates of replication controllers in the wrong order.
        let (new, old) = match kind {
            "ReplicationController" => (object(json!({})), object(template())),
            _ => (object(template()), object(json!({}))),
        };
        check_update(kind, new.clone(), old.clone(), &[&warning]);
        assert_eq!(warnings(kind, new.clone(), Some(old.clone()), None), [""; 0], "{kind} of the same generation");
        assert_eq!(warnings(kind, new, Some(old), Some(&Subresource::Status)), [""; 0], "status of {kind}");
    }
    let pod_template = |template: Value| json!({"metadata": {"generation": 1}, "template": template});
    check("PodTemplate", pod_template(template()), &[TEMPLATE_WARNING]);
    check_update("PodTemplate", pod_template(template()), pod_template(json!({})), &[TEMPLATE_WARNING]);
    let cron_job = |template: Value| json!({"metadata": {"name": "a", "generation": 1}, "spec": {"jobTemplate": {"spec": {"template": template}}}});
    let warning = format!("spec.jobTemplate.spec.{TEMPLATE_WARNING}");
    check("CronJob", cron_job(template()), &[&warning]);
    check_update("CronJob", cron_job(template()), cron_job(json!({})), &[&warning]);
    let pod = json!({"metadata": {"name": "a.b", "generation": 1}, "spec": {"terminationGracePeriodSeconds": -1}});
    check_update("Pod", pod.clone(), pod, &[]);
}

#[test]
fn scale_of_a_workload_has_the_warnings_of_its_template() {
    let object = |generation: i64| json!({"metadata": {"generation": generation}, "spec": {"template": template()}});
    let scale = Subresource::scale("spec.selector");
    let found = warnings("Deployment", object(2), Some(object(1)), Some(&scale));
    assert_eq!(found, [format!("spec.{TEMPLATE_WARNING}")]);
}

#[test]
fn daemon_set_update_that_keeps_the_template_has_no_warnings() {
    let set = |seconds: i64| json!({"metadata": {"generation": 1}, "spec": {"template": template(), "minReadySeconds": seconds}});
    check_update("DaemonSet", set(2), set(1), &[]);
}

#[test]
fn stateful_set_reports_its_claims_and_its_history_limit() {
    let set = json!({"metadata": {"name": "a"}, "spec": {"revisionHistoryLimit": -1,
        "volumeClaimTemplates": [{"spec": {"resources": {"requests": {"storage": "1500m"}}}}]}});
    let limit =
        "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended";
    let storage = |at: &str| {
        format!(
            "spec.volumeClaimTemplates[0]{at}.resources.requests[storage]: fractional byte value \"1500m\" {NOT_WHOLE}"
        )
    };
    check("StatefulSet", set.clone(), &[&storage(""), limit]);
    check_update("StatefulSet", set.clone(), set, &[&storage(".Spec"), limit]);
}

#[test]
fn huge_indexed_job_is_reported() {
    let spec = |completions: i64, parallelism: i64| json!({"completionMode": "Indexed", "completions": completions, "parallelism": parallelism});
    let why = "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail";
    check("Job", json!({"metadata": {"name": "a"}, "spec": spec(100_000, 10_001)}), &[]);
    check("Job", json!({"metadata": {"name": "a"}, "spec": spec(100_001, 10_001)}), &[&format!("spec: {why}")]);
    check(
        "CronJob",
        json!({"metadata": {"name": "a"}, "spec": {"jobTemplate": {"spec": spec(100_001, 10_001)}}}),
        &[&format!("spec.jobTemplate.spec: {why}")],
    );
}

#[test]
fn time_zone_in_schedule_is_reported_on_update() {
    let cron_job = json!({"metadata": {"name": "a"}, "spec": {"schedule": "TZ=UTC 0 * * * *"}});
    check("CronJob", cron_job.clone(), &[]);
    check_update(
        "CronJob",
        cron_job.clone(),
        cron_job,
        &[
            "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
        ],
    );
}

#[test]
fn deprecated_fields_of_nodes_and_volumes_are_reported() {
    check(
        "Node",
        json!({"metadata": {}, "spec": {"configSource": {}, "externalID": "x"}}),
        &[
            "spec.configSource: the feature is removed",
            "spec.externalID: this field is deprecated, and is unused by Kubernetes",
        ],
    );
    let class = r#"metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use "storageClassName" attribute instead"#;
    let annotations =
        json!({"volume.beta.kubernetes.io/storage-class": "x", "volume.beta.kubernetes.io/mount-options": "x"});
    check(
        "PersistentVolume",
        json!({"metadata": {"annotations": annotations}, "spec": {"persistentVolumeReclaimPolicy": "Recycle"}}),
        &[
            class,
            r#"metadata.annotations[volume.beta.kubernetes.io/mount-options]: deprecated since v1.31; use "mountOptions" attribute instead"#,
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
        ],
    );
    check("PersistentVolumeClaim", json!({"metadata": {"annotations": annotations}, "spec": {}}), &[class]);
}

#[test]
fn annotation_of_ingress_is_reported_on_create_without_a_class() {
    let ingress =
        |spec: Value| json!({"metadata": {"annotations": {"kubernetes.io/ingress.class": "nginx"}}, "spec": spec});
    let warning =
        r#"annotation "kubernetes.io/ingress.class" is deprecated, please use 'spec.ingressClassName' instead"#;
    check("Ingress", ingress(json!({})), &[warning]);
    check("Ingress", ingress(json!({"ingressClassName": "nginx"})), &[]);
    check_update("Ingress", ingress(json!({})), ingress(json!({})), &[]);
}

#[test]
fn annotation_of_service_account_is_reported_when_it_is_new() {
    let account = json!({"metadata": {"annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}});
    let warning = "metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets";
    check("ServiceAccount", account.clone(), &[warning]);
    check_update("ServiceAccount", account.clone(), json!({"metadata": {}}), &[warning]);
    check_update("ServiceAccount", account.clone(), account, &[]);
}

#[test]
fn quota_with_requests_above_limits_is_reported_on_create() {
    for (request, limit) in [
        ("requests.cpu", "limits.cpu"),
        ("cpu", "limits.cpu"),
        ("requests.memory", "limits.memory"),
        ("memory", "limits.memory"),
        ("requests.storage", "limits.storage"),
        ("requests.ephemeral-storage", "limits.ephemeral-storage"),
    ] {
        let quota = |requested: &str| json!({"metadata": {}, "spec": {"hard": {request: requested, limit: "2k"}}});
        let warning = format!("ResourceQuota {request} (3k) should be less than {limit} (2k)");
        check("ResourceQuota", quota("3k"), &[&warning]);
        check("ResourceQuota", quota("2k"), &[]);
        check_update("ResourceQuota", quota("3k"), quota("3k"), &[]);
    }
}

#[test]
fn token_requests_of_driver_without_secrets_are_reported() {
    let driver = |spec: Value| json!({"metadata": {}, "spec": spec});
    let requests = || driver(json!({"tokenRequests": [{"audience": ""}]}));
    let warning = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes";
    check("CSIDriver", requests(), &[warning]);
    check(
        "CSIDriver",
        driver(json!({"tokenRequests": [{"audience": ""}], "serviceAccountTokenInSecrets": false})),
        &[],
    );
    check_update("CSIDriver", requests(), driver(json!({})), &[warning]);
    check_update("CSIDriver", requests(), requests(), &[]);
}

#[test]
fn upper_case_driver_of_resource_slice_is_reported() {
    let slice = json!({"metadata": {}, "spec": {"driver": "GPU.example.com"}});
    let warning = r#"spec.driver: driver names should be lowercase; "GPU.example.com" contains uppercase characters"#;
    check("ResourceSlice", slice.clone(), &[warning]);
    check_update("ResourceSlice", slice.clone(), slice, &[warning]);
}

#[test]
fn reserved_names_of_admission_kinds_are_reported() {
    for kind in [
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "MutatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
    ] {
        let object = json!({"metadata": {"name": "a.static.k8s.io"}});
        let warning = r#"metadata.name: names ending with ".static.k8s.io" are reserved for static manifest-based configurations and cannot be managed via the API"#;
        check(kind, object.clone(), &[warning]);
        check_update(kind, object.clone(), object, &[warning]);
    }
}
