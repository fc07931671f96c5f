//! Tables of decisions and reasons, and a comparison of the graph with a naive evaluator.

mod naive;

use std::sync::Arc;

use listwatch_json::{Value, json};
use listwatch_meta::{FieldSelector, UserInfo};

use super::*;
use crate::authorizer::{Attributes, Authorization, Authorizer as _, Decision};
use crate::rbac::PolicyRule;

const DECISIONS: &str = include_str!("decisions.txt");

pub(super) fn put(state: &NodeState, kind: NodeGraphKind, object: &Value) {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    state.set(kind, text("namespace"), text("name"), object.to_string().as_bytes()).unwrap();
}

fn pod(name: &str, node: &str, spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec});
    if !node.is_empty() {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}

fn secret_env(name: &str) -> Value {
    json!({"name": "c", "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": name, "key": "k"}}}]})
}

/// The objects of `decisions.txt`.
fn cluster() -> NodeState {
    let state = NodeState::default();
    let mut first = pod(
        "pod-a",
        "a",
        json!({
            "serviceAccountName": "sa-a",
            "imagePullSecrets": [{"name": "s-pull"}, {"name": ""}, {}],
            "initContainers": [secret_env("s-init")],
            "ephemeralContainers": [secret_env("s-ephemeral")],
            "containers": [{
                "name": "c",
                "env": [
                    {"name": "A", "value": "s-nobody"},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s-env", "key": "k"}}},
                    {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "c-env", "key": "k"}}},
                    {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
                "envFrom": [
                    {"secretRef": {"name": "s-env-from"}},
                    {"configMapRef": {"name": "c-env-from"}},
                    {"secretRef": {"name": "s-shared"}},
                ],
            }],
            "volumes": [
                {"name": "v1", "secret": {"secretName": "s-volume"}},
                {"name": "v2", "configMap": {"name": "c-volume"}},
                {"name": "v3", "projected": {"sources": [
                    {"secret": {"name": "s-projected"}},
                    {"configMap": {"name": "c-projected"}},
                    {"serviceAccountToken": {"path": "t"}},
                ]}},
                {"name": "v4", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s-csi"}}},
                {"name": "v5", "persistentVolumeClaim": {"claimName": "claim-a"}},
                {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
                {"name": "v6", "emptyDir": {}},
            ],
            "resourceClaims": [
                {"name": "r1", "resourceClaimName": "rc-named"},
                {"name": "r2", "resourceClaimTemplateName": "rc-template"},
                {"name": "r3", "resourceClaimTemplateName": "rc-template"},
            ],
        }),
    );
    first["status"] = json!({
        "resourceClaimStatuses": [{"name": "r2", "resourceClaimName": "rc-from-template"}, {"name": "r3"}],
        "extendedResourceClaimStatus": {"resourceClaimName": "rc-extended"},
    });
    put(&state, NodeGraphKind::Pod, &first);
    let second = json!({
        "serviceAccountName": "sa-b",
        "containers": [secret_env("s-b"), {"name": "d", "envFrom": [{"configMapRef": {"name": "c-b"}}]}],
        "volumes": [
            {"name": "v", "persistentVolumeClaim": {"claimName": "claim-b"}},
            {"name": "w", "secret": {"secretName": "s-shared"}},
        ],
        "resourceClaims": [{"name": "r", "resourceClaimName": "rc-b"}],
    });
    put(&state, NodeGraphKind::Pod, &pod("pod-b", "b", second));
    let mut mirror = pod(
        "mirror-a",
        "a",
        json!({
            "serviceAccountName": "sa-mirror",
            "containers": [secret_env("s-mirror"), {"envFrom": [{"configMapRef": {"name": "c-mirror"}}]}],
        }),
    );
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": ""});
    put(&state, NodeGraphKind::Pod, &mirror);
    put(&state, NodeGraphKind::Pod, &pod("pending", "", json!({"containers": [secret_env("s-pending")]})));
    let volume = |name: &str, spec: Value| {
        put(&state, NodeGraphKind::PersistentVolume, &json!({"metadata": {"name": name}, "spec": spec}));
    };
    let in_storage = |name: &str| json!({"namespace": "storage", "name": name});
    volume(
        "pv-a",
        json!({"claimRef": {"namespace": "ns", "name": "claim-a"}, "csi": {
            "driver": "d",
            "nodeStageSecretRef": in_storage("s-stage"),
            "nodePublishSecretRef": in_storage("s-publish"),
            "nodeExpandSecretRef": in_storage("s-expand"),
            "controllerPublishSecretRef": in_storage("s-controller-publish"),
            "controllerExpandSecretRef": in_storage("s-controller-expand"),
        }}),
    );
    let ceph = json!({"claimRef": {"namespace": "ns", "name": "claim-b"}, "cephfs": {"secretRef": {"name": "s-ceph"}}});
    volume("pv-b", ceph);
    volume("pv-free", json!({"csi": {"driver": "d", "nodeStageSecretRef": in_storage("s-unused")}}));
    let unused = json!({"namespace": "ns", "name": "claim-unused"});
    volume("pv-unused", json!({"claimRef": unused, "csi": {"nodeStageSecretRef": in_storage("s-unused")}}));
    for (name, node) in [("va-a", "a"), ("va-b", "b"), ("va-none", "")] {
        let attachment = json!({"metadata": {"name": name}, "spec": {"nodeName": node}});
        put(&state, NodeGraphKind::VolumeAttachment, &attachment);
    }
    for (name, spec) in [
        ("slice-a", json!({"nodeName": "a"})),
        ("slice-b", json!({"nodeName": "b"})),
        ("slice-all", json!({"allNodes": true})),
    ] {
        put(&state, NodeGraphKind::ResourceSlice, &json!({"metadata": {"name": name}, "spec": spec}));
    }
    state
}

/// The rules of the ClusterRole `system:node`. The authorizer applies the rules to resources that have no check per
/// node.
fn rules() -> Vec<PolicyRule> {
    let read = &["get", "list", "watch"];
    vec![
        PolicyRule::resources(&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
        PolicyRule::resources(
            &["create"],
            &["authorization.k8s.io"],
            &["localsubjectaccessreviews", "subjectaccessreviews"],
        ),
        PolicyRule::resources(read, &[""], &["services"]),
        PolicyRule::resources(&["create", "patch", "update"], &["", "events.k8s.io"], &["events"]),
        PolicyRule::resources(&["get"], &[""], &["endpoints"]),
        PolicyRule::resources(
            &["create", "get", "list", "watch"],
            &["certificates.k8s.io"],
            &["certificatesigningrequests"],
        ),
        PolicyRule::resources(read, &["storage.k8s.io"], &["csidrivers"]),
        PolicyRule::resources(read, &["node.k8s.io"], &["runtimeclasses"]),
        // The rule of the ClusterRole that the authorizer must not use for all nodes.
        PolicyRule::resources(read, &[""], &["secrets", "configmaps", "pods", "nodes"]),
    ]
}

fn user(name: &str, groups: &[&str]) -> UserInfo {
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    UserInfo { username: name.to_owned(), groups, ..UserInfo::default() }
}

fn ask(authorizer: &NodeAuthorizer, user: &UserInfo, verb: &str, line: &[&str]) -> Authorization {
    let absent = |text: &&str| if *text == "-" { "" } else { *text }.to_owned();
    let [resource, namespace, name] = [0, 1, 2].map(|at| line.get(at).map(absent).unwrap_or_default());
    let selector = FieldSelector::parse(line.get(3).copied().unwrap_or_default()).unwrap();
    if resource == "url" {
        let attributes = Attributes::path(user, verb, &namespace);
        return authorizer.decide(&attributes);
    }
    let (group, resource) = match resource.split_once('/') {
        Some((group, rest)) if group.contains('.') || group == "apps" => (group, rest),
        _ => ("", &*resource),
    };
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let attributes = Attributes {
        namespace: &namespace,
        name: &name,
        subresource,
        field_selector: selector.terms(),
        ..Attributes::resource(user, verb, group, resource)
    };
    authorizer.decide(&attributes)
}

#[test]
fn node_authorizer_decides_as_upstream_for_each_identity_and_request() {
    let authorizer = NodeAuthorizer::new(Arc::new(cluster()), rules());
    let users = [
        user("system:node:a", &["system:nodes"]),
        user("system:node:b", &["system:authenticated", "system:nodes"]),
        user("system:node:c", &["system:nodes"]),
        user("system:node:a", &["system:authenticated"]),
        user("alice", &["system:nodes"]),
    ];
    let (mut rows, mut wrong) = (0, Vec::new());
    for line in DECISIONS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (request, signs) = line.split_once(" => ").unwrap();
        assert_eq!(signs.len(), users.len(), "{line}");
        let words: Vec<&str> = request.split(' ').collect();
        for verb in words[0].split(',') {
            for resource in words[1].split(',') {
                for (user, sign) in users.iter().zip(signs.chars()) {
                    let mut rest = words[1..].to_vec();
                    rest[0] = resource;
                    let answer = ask(&authorizer, user, verb, &rest);
                    let expected = if sign == '+' { Decision::Allow } else { Decision::NoOpinion };
                    if answer.decision != expected {
                        wrong.push(format!("{verb} {line}: {} {answer:?}", user.username));
                    }
                    rows += 1;
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong decisions:\n{}", wrong.len(), wrong.join("\n"));
    assert!(rows >= 1_500, "{rows} rows");
}

#[test]
fn denied_node_requests_have_upstreams_reasons() {
    let authorizer = NodeAuthorizer::new(Arc::new(cluster()), rules());
    let node = user("system:node:a", &["system:nodes"]);
    let unrelated = "no relationship found between node 'a' and this object";
    for (line, expected) in [
        ("get secrets ns s-b", unrelated),
        ("get secrets ns -", "No Object name found"),
        ("update secrets ns s-env", "can only read resources of this type"),
        ("get secrets/status ns s-env", "cannot read subresource"),
        ("list secrets - s-env", "can only read namespaced object of this type"),
        ("list persistentvolumes - pv-a", "can only get individual resources of this type"),
        ("get persistentvolumes/status - pv-a", "cannot get subresource"),
        ("get persistentvolumes - pv-b", unrelated),
        ("get persistentvolumeclaims/status ns claim-a", "can only get/update/patch this type"),
        ("list serviceaccounts ns sa-a", "can only create tokens for individual service accounts"),
        ("create serviceaccounts/x ns sa-a", "can only create token subresource of serviceaccount"),
        ("create serviceaccounts/token ns sa-b", unrelated),
        (
            "list coordination.k8s.io/leases kube-node-lease -",
            "can only get, create, update, patch, or delete a node lease",
        ),
        ("get coordination.k8s.io/leases ns a", "can only access leases in the \"kube-node-lease\" system namespace"),
        (
            "get coordination.k8s.io/leases kube-node-lease b",
            "can only access node lease with the same name as the requesting node",
        ),
        ("list storage.k8s.io/csinodes - -", "can only get, create, update, patch, or delete a CSINode"),
        ("get storage.k8s.io/csinodes/status - a", "cannot authorize CSINode subresources"),
        ("get storage.k8s.io/csinodes - b", "can only access CSINode with the same name as the requesting node"),
        (
            "list resource.k8s.io/resourceslices - -",
            "can only list/watch/deletecollection resourceslices with nodeName field selector",
        ),
        ("get resource.k8s.io/resourceslices/status - slice-a", "cannot authorize ResourceSlice subresources"),
        (
            "bind resource.k8s.io/resourceslices - slice-a",
            "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection",
        ),
        ("list nodes - -", "node 'a' cannot read all nodes, only its own Node object"),
        ("get nodes - b", "node 'a' cannot read 'b', only its own Node object"),
        ("list pods - -", "can only list/watch pods with spec.nodeName field selector"),
        ("get pods ns pod-b", unrelated),
        ("get pods/log ns pod-a", ""),
        ("get apps/deployments ns x", ""),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = ask(&authorizer, &node, words[0], &words[1..]);
        assert_eq!((answer.decision, &*answer.reason), (Decision::NoOpinion, expected), "{line}");
    }
    let unnamed = ask(&authorizer, &user("system:node:", &["system:nodes"]), "get", &["nodes", "-", "-"]);
    assert_eq!(&*unnamed.reason, "unknown node for user \"system:node:\"");
}

#[test]
fn access_ends_when_the_object_that_grants_it_is_deleted_or_moved() {
    let state = Arc::new(cluster());
    let authorizer = NodeAuthorizer::new(Arc::clone(&state), rules());
    let [a, b] = ["system:node:a", "system:node:b"].map(|name| user(name, &["system:nodes"]));
    let allowed = |user: &UserInfo, line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        ask(&authorizer, user, words[0], &words[1..]).is_allowed()
    };
    let secret_of_volume = "get secrets storage s-stage";
    assert!(allowed(&a, secret_of_volume) && allowed(&a, "get secrets ns s-env"));
    // A volume that is bound to the claim of another node gives its Secrets to that node.
    let bound = json!({"metadata": {"name": "pv-a"}, "spec": {"claimRef": {"namespace": "ns", "name": "claim-b"},
        "csi": {"nodeStageSecretRef": {"namespace": "storage", "name": "s-stage"}}}});
    put(&state, NodeGraphKind::PersistentVolume, &bound);
    assert!(!allowed(&a, secret_of_volume) && allowed(&b, secret_of_volume));
    assert!(!allowed(&a, "get persistentvolumes - pv-a") && allowed(&b, "get persistentvolumes - pv-a"));
    state.remove(NodeGraphKind::PersistentVolume, "", "pv-a");
    assert!(!allowed(&b, secret_of_volume));
    // A pod of the same name on another node.
    put(&state, NodeGraphKind::Pod, &pod("pod-a", "b", json!({"containers": [secret_env("s-env")]})));
    assert!(!allowed(&a, "get secrets ns s-env") && allowed(&b, "get secrets ns s-env"));
    assert!(!allowed(&a, "get pods ns pod-a") && !allowed(&a, "create serviceaccounts/token ns sa-a"));
    state.remove(NodeGraphKind::Pod, "ns", "pod-a");
    assert!(!allowed(&b, "get secrets ns s-env") && allowed(&b, "get secrets ns s-shared"));
    // An object that cannot be read grants nothing.
    assert!(state.set(NodeGraphKind::Pod, "ns", "pod-b", b"{\"spec\": 1}").is_err());
    assert!(!allowed(&b, "get secrets ns s-shared"));
    // A relist without an object removes it.
    assert!(allowed(&a, "get storage.k8s.io/volumeattachments - va-a"));
    state.replace(NodeGraphKind::VolumeAttachment, []);
    assert!(!allowed(&a, "get storage.k8s.io/volumeattachments - va-a"));
}

#[test]
fn unsynced_graph_refuses_access_that_depends_on_it() {
    let state = Arc::new(NodeState::default());
    let authorizer = NodeAuthorizer::new(Arc::clone(&state), rules());
    let node = user("system:node:a", &["system:nodes"]);
    assert!(!state.is_synced());
    for (line, expected) in [
        ("get secrets ns s-env", false),
        ("get pods ns pod-a", false),
        ("create serviceaccounts/token ns sa-a", false),
        ("get nodes - a", true),
        ("get coordination.k8s.io/leases kube-node-lease a", true),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = ask(&authorizer, &node, words[0], &words[1..]);
        assert_eq!(answer.is_allowed(), expected, "{line}");
        assert_ne!(answer.decision, Decision::Deny, "{line}");
    }
    for kind in NodeGraphKind::ALL {
        assert!(!state.is_synced());
        state.replace(kind, []);
    }
    assert!(state.is_synced());
}

#[tokio::test]
async fn rules_review_of_a_node_is_incomplete() {
    let authorizer = NodeAuthorizer::new(Arc::new(cluster()), rules());
    let node = user("system:node:a", &["system:nodes"]);
    let found = authorizer.rules(&node, "ns").await;
    assert!(found.incomplete && found.resource_rules.is_empty());
    assert_eq!(found.evaluation_error, "node authorizer does not support user rule resolution");
    let other = user("alice", &["system:nodes"]);
    assert!(!authorizer.rules(&other, "ns").await.incomplete);
}
