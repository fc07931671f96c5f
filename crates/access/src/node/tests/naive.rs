//! Compares the graph with an evaluator that visits all objects, after each of many random changes.

use std::collections::BTreeMap;

use listwatch_json::{Value, json};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use super::super::graph::Graph;
use super::super::references::{PodReferences, Reference, VolumeReferences};
use crate::node::NodeGraphKind;

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const NAMESPACES: [&str; 2] = ["x", "y"];
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Clone, Debug)]
enum Op {
    SetPod(&'static str, &'static str, Value),
    RemovePod(&'static str, &'static str),
    SetVolume(&'static str, Value),
    RemoveVolume(&'static str),
    SetAttachment(&'static str, Option<&'static str>),
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMES[..])
}

fn namespace() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMESPACES[..])
}

fn node() -> impl Strategy<Value = Option<&'static str>> {
    prop::option::weighted(0.8, prop::sample::select(&NODES[..]))
}

fn pod() -> impl Strategy<Value = Value> {
    let names = || prop::collection::vec(name(), 0..3);
    let parts = (node(), any::<bool>(), prop::option::of(name()), names(), names(), names(), names());
    parts.prop_map(|(node, is_mirror, account, env, volumes, claims, resource_claims)| {
        let env: Vec<Value> = env.iter().map(|name| json!({"secretRef": {"name": name}})).collect();
        let maps: Vec<Value> = volumes.iter().map(|name| json!({"name": name, "configMap": {"name": name}})).collect();
        let claims = claims.iter().enumerate().map(|(at, name)| match at {
            0 => json!({"name": name, "persistentVolumeClaim": {"claimName": name}}),
            _ => json!({"name": name, "ephemeral": {}}),
        });
        let resource_claims: Vec<Value> =
            resource_claims.iter().map(|name| json!({"name": name, "resourceClaimName": name})).collect();
        let mut pod = json!({"metadata": {}, "spec": {
            "containers": [{"envFrom": env}],
            "volumes": maps.into_iter().chain(claims).collect::<Vec<_>>(),
            "resourceClaims": resource_claims,
        }});
        if let Some(node) = node {
            pod["spec"]["nodeName"] = json!(node);
        }
        if let Some(account) = account {
            pod["spec"]["serviceAccountName"] = json!(account);
        }
        if is_mirror && node == Some("n3") {
            pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        }
        pod
    })
}

fn volume() -> impl Strategy<Value = Value> {
    let secret = || prop::option::of((namespace(), name()));
    (prop::option::weighted(0.8, (namespace(), name())), secret(), secret()).prop_map(|(claim, stage, publish)| {
        let reference = |of: Option<(&str, &str)>| match of {
            Some((namespace, name)) => json!({"namespace": namespace, "name": name}),
            None => Value::Null,
        };
        json!({"spec": {"claimRef": reference(claim), "csi": {
            "nodeStageSecretRef": reference(stage),
            "controllerPublishSecretRef": reference(publish),
        }}})
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (namespace(), name(), pod()).prop_map(|(namespace, name, pod)| Op::SetPod(namespace, name, pod)),
        2 => (namespace(), name()).prop_map(|(namespace, name)| Op::RemovePod(namespace, name)),
        3 => (name(), volume()).prop_map(|(name, volume)| Op::SetVolume(name, volume)),
        1 => name().prop_map(Op::RemoveVolume),
        1 => (name(), node()).prop_map(|(name, node)| Op::SetAttachment(name, node)),
    ]
}

type Key = (&'static str, &'static str);

/// The stored objects, and decisions by visiting all of them, without any code of the graph.
#[derive(Default)]
struct Naive {
    pods: BTreeMap<Key, Value>,
    volumes: BTreeMap<&'static str, Value>,
    attachments: BTreeMap<&'static str, &'static str>,
    /// A planted defect: mirror pods grant access to the objects that they refer to.
    mirrors_grant: bool,
}

impl Naive {
    /// Returns the names of the objects of one kind to which a pod refers.
    fn references(&self, name: &str, pod: &Value, kind: Reference) -> Vec<String> {
        if pod["metadata"]["annotations"].is_object() && !self.mirrors_grant {
            return Vec::new();
        }
        let spec = &pod["spec"];
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        match kind {
            Reference::Secret => list(&spec["containers"][0]["envFrom"])
                .iter()
                .filter_map(|from| text(&from["secretRef"]["name"]))
                .collect(),
            Reference::ConfigMap => {
                list(&spec["volumes"]).iter().filter_map(|volume| text(&volume["configMap"]["name"])).collect()
            }
            Reference::PersistentVolumeClaim => {
                let claim = |volume: &Value| match volume["ephemeral"].is_object() {
                    true => Some(format!("{name}-{}", volume["name"].as_str()?)),
                    false => text(&volume["persistentVolumeClaim"]["claimName"]),
                };
                list(&spec["volumes"]).iter().filter_map(claim).collect()
            }
            Reference::ServiceAccount => text(&spec["serviceAccountName"]).into_iter().collect(),
            Reference::ResourceClaim => {
                list(&spec["resourceClaims"]).iter().filter_map(|claim| text(&claim["resourceClaimName"])).collect()
            }
        }
    }

    fn refers(&self, node: &str, kind: Reference, namespace: &str, name: &str) -> bool {
        self.pods.iter().any(|((of, pod_name), pod)| {
            *of == namespace
                && pod["spec"]["nodeName"] == node
                && self.references(pod_name, pod, kind).iter().any(|one| one == name)
        })
    }

    fn volume_is_used(&self, node: &str, volume: &Value) -> bool {
        let claim = &volume["spec"]["claimRef"];
        let (Some(namespace), Some(name)) = (claim["namespace"].as_str(), claim["name"].as_str()) else { return false };
        self.refers(node, Reference::PersistentVolumeClaim, namespace, name)
    }

    fn needs(&self, node: &str, kind: Reference, namespace: &str, name: &str) -> bool {
        self.refers(node, kind, namespace, name)
            || (kind == Reference::Secret
                && self.volumes.values().any(|volume| {
                    let secret = &volume["spec"]["csi"]["nodeStageSecretRef"];
                    secret["namespace"] == namespace && secret["name"] == name && self.volume_is_used(node, volume)
                }))
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::SetPod(namespace, name, pod) => drop(self.pods.insert((namespace, name), pod.clone())),
            Op::RemovePod(namespace, name) => drop(self.pods.remove(&(*namespace, *name))),
            Op::SetVolume(name, volume) => drop(self.volumes.insert(name, volume.clone())),
            Op::RemoveVolume(name) => drop(self.volumes.remove(name)),
            Op::SetAttachment(name, Some(node)) => drop(self.attachments.insert(name, node)),
            Op::SetAttachment(name, None) => drop(self.attachments.remove(name)),
        }
    }
}

fn apply(graph: &mut Graph, op: &Op) {
    match op {
        Op::SetPod(namespace, name, pod) => {
            let references = PodReferences::parse(name, pod.to_string().as_bytes()).unwrap();
            graph.set_pod(namespace, name, references.as_ref());
        }
        Op::RemovePod(namespace, name) => graph.remove(NodeGraphKind::Pod, namespace, name),
        Op::SetVolume(name, volume) => {
            let references = VolumeReferences::parse(volume.to_string().as_bytes()).unwrap();
            graph.set_volume(name, references.as_ref());
        }
        Op::RemoveVolume(name) => graph.remove(NodeGraphKind::PersistentVolume, "", name),
        Op::SetAttachment(name, node) => graph.set_attachment(name, *node),
    }
}

const KINDS: [Reference; 5] = [
    Reference::Secret,
    Reference::ConfigMap,
    Reference::PersistentVolumeClaim,
    Reference::ServiceAccount,
    Reference::ResourceClaim,
];

/// Compares all decisions. Returns the first difference.
fn difference(graph: &Graph, naive: &Naive) -> Option<String> {
    for node in NODES {
        for namespace in NAMESPACES {
            let ephemeral = NAMES.iter().flat_map(|pod| NAMES.map(|volume| format!("{pod}-{volume}")));
            for name in NAMES.map(str::to_owned).into_iter().chain(ephemeral) {
                for kind in KINDS {
                    let found = graph.needs(node, kind, namespace, &name);
                    if found != naive.needs(node, kind, namespace, &name) {
                        return Some(format!("{node} {kind:?} {namespace}/{name}: {found}"));
                    }
                }
                let pod = naive.pods.iter().find(|((of, one), _)| *of == namespace && *one == name);
                let runs = pod.is_some_and(|(_, pod)| pod["spec"]["nodeName"] == node);
                if graph.runs(node, namespace, &name) != runs {
                    return Some(format!("{node} pod {namespace}/{name}"));
                }
            }
        }
        for name in NAMES {
            let used = naive.volumes.get(name).is_some_and(|volume| naive.volume_is_used(node, volume));
            if graph.needs_volume(node, name) != used {
                return Some(format!("{node} volume {name}"));
            }
            if graph.has_attachment(node, name) != (naive.attachments.get(name) == Some(&node)) {
                return Some(format!("{node} attachment {name}"));
            }
        }
    }
    None
}

/// Applies changes and compares after each of them. At the end, removes all objects: the tables must be empty.
fn compare(ops: &[Op], mirrors_grant: bool) -> Result<(), String> {
    let (mut graph, mut naive) = (Graph::default(), Naive { mirrors_grant, ..Naive::default() });
    for (at, op) in ops.iter().enumerate() {
        apply(&mut graph, op);
        naive.apply(op);
        if let Some(difference) = difference(&graph, &naive) {
            return Err(format!("after change {at}: {difference}"));
        }
    }
    for kind in NodeGraphKind::ALL {
        for (namespace, name) in graph.objects(kind) {
            graph.remove(kind, &namespace, &name);
        }
    }
    match graph.entries() {
        0 => Ok(()),
        entries => Err(format!("{entries} entries are left of no objects")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn graph_decides_as_a_naive_evaluator_after_each_change(ops in prop::collection::vec(op(), 1..40)) {
        compare(&ops, false).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn comparison_with_a_faulty_naive_evaluator_finds_a_difference() {
    let mut runner = TestRunner::deterministic();
    let strategy = prop::collection::vec(op(), 40);
    let found = (0..50).any(|_| compare(&strategy.new_tree(&mut runner).unwrap().current(), true).is_err());
    assert!(found, "the comparison must find mirror pods that grant what they refer to");
}
