//! Writes of Node objects by nodes: a node may write only its own object, without taints, owner references and
//! restricted labels (`admitNode`, `k8s.io/kubelet/pkg/apis/well_known_labels.go`).

use listwatch_json::{JsonString, Map, Value};
use listwatch_meta::Status;
use listwatch_meta::go::quote;
use listwatch_validation::metadata;
use listwatch_validation::object_meta as meta;

use super::{NodeWrite, Object, is_same, map_of};
use crate::Operation;

/// Labels of `kubernetes.io` that a kubelet may set on its own Node object.
const KUBELET_LABELS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
/// Prefixes of labels that a kubelet may set on its own Node object.
const KUBELET_PREFIXES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// The prefix of labels that isolate workloads from nodes.
const RESTRICTED_PREFIX: &str = "node-restriction.kubernetes.io";

impl NodeWrite<'_> {
    /// Checks a write of a Node object or one of its subresources.
    pub(super) fn own_node(&self) -> Result<(), Status> {
        // The name of the stored object is the one in the path.
        let stored_name = self.request.old_object.map(|old| meta::text(metadata(old), "name"));
        let (node, asked) = (quote(self.node), stored_name.unwrap_or(self.request.name));
        if asked != self.node {
            return self.forbidden(format_args!("node {node} is not allowed to modify node {}", quote(asked)));
        }
        let config_source = |object: &Object| spec(object, "configSource").filter(|value| !value.is_null()).cloned();
        match (self.request.operation, self.request.old_object) {
            (Operation::Create, _) => {
                if config_source(self.object).is_some() {
                    let why = format_args!("node {node} is not allowed to create pods with a non-nil configSource");
                    return self.forbidden(why);
                }
                let labels = forbidden_labels(map_of(self.object, "labels"), None);
                match labels.is_empty() {
                    true => Ok(()),
                    false => self.forbidden(format_args!(
                        "node {node} is not allowed to set the following labels: {}",
                        labels.join(", ")
                    )),
                }
            }
            (Operation::Update, Some(old)) => {
                let source = config_source(self.object);
                if source.is_some() && !is_same(source.as_ref(), config_source(old).as_ref()) {
                    let why =
                        format_args!("node {node} is not allowed to update configSource to a new non-nil configSource");
                    return self.forbidden(why);
                }
                if !is_same(spec(self.object, "taints"), spec(old, "taints")) {
                    return self.forbidden(format_args!("node {node} is not allowed to modify taints"));
                }
                let owners = |object| metadata(object).get("ownerReferences");
                if !is_same(owners(self.object), owners(old)) {
                    return self.forbidden(format_args!("node {node} is not allowed to modify ownerReferences"));
                }
                let labels = forbidden_labels(map_of(self.object, "labels"), map_of(old, "labels"));
                match labels.is_empty() {
                    true => Ok(()),
                    false => self.forbidden(format_args!("is not allowed to modify labels: {}", labels.join(", "))),
                }
            }
            (Operation::Update, None) => self.unexpected_operation(),
            _ => Ok(()),
        }
    }
}

fn spec<'a>(object: &'a Object, field: &str) -> Option<&'a Value> {
    object.get("spec").and_then(|spec| spec.get(field))
}

/// Returns the changed labels that a node must not change, sorted.
fn forbidden_labels(new: Option<&Map>, old: Option<&Map>) -> Vec<String> {
    let of = |labels: Option<&Map>, key: &str| labels.and_then(|labels| labels.get(key)).cloned();
    let keys = new.into_iter().chain(old).flat_map(Map::keys);
    let mut keys: Vec<&JsonString> = keys.filter(|key| of(new, key) != of(old, key) && is_forbidden(key)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().map(|key| key.as_str().to_owned()).collect()
}

/// Whether a node must not add, change or remove a label.
fn is_forbidden(key: &str) -> bool {
    let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
    let is_in =
        |domain: &str| prefix == domain || prefix.strip_suffix(domain).is_some_and(|parent| parent.ends_with('.'));
    let is_kubelets = KUBELET_LABELS.contains(&key) || KUBELET_PREFIXES.into_iter().any(is_in);
    is_in(RESTRICTED_PREFIX) || ((is_in("kubernetes.io") || is_in("k8s.io")) && !is_kubelets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_labels_are_forbidden_except_those_that_kubelets_may_set() {
        for (key, expected) in [
            ("example.com/x", false),
            ("x", false),
            ("kubernetes.io", false),
            ("", false),
            ("/x", false),
            ("kubernetes.io/hostname", false),
            ("kubernetes.io/os", false),
            ("beta.kubernetes.io/arch", false),
            ("topology.kubernetes.io/zone", false),
            ("failure-domain.beta.kubernetes.io/zone", false),
            ("node.kubernetes.io/instance-type", false),
            ("node.kubernetes.io/x", false),
            ("a.node.kubernetes.io/x", false),
            ("kubelet.kubernetes.io/x", false),
            ("a.kubelet.kubernetes.io/x", false),
            ("notkubernetes.io/x", false),
            ("kubernetes.io.example.com/x", false),
            ("notnode-restriction.example.com/x", false),
            ("kubernetes.io/x", true),
            ("k8s.io/x", true),
            ("a.k8s.io/x", true),
            ("a.b.kubernetes.io/x", true),
            ("kubernetes.io/hostname2", true),
            ("topology.kubernetes.io/rack", true),
            ("node-role.kubernetes.io/control-plane", true),
            ("notnode.kubernetes.io/x", true),
            ("node-restriction.kubernetes.io/x", true),
            ("a.node-restriction.kubernetes.io/x", true),
            ("node-restriction.kubernetes.io/kubernetes.io/hostname", true),
        ] {
            assert_eq!(is_forbidden(key), expected, "{key}");
        }
    }
}
