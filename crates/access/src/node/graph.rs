//! [`Graph`]: the objects that each node needs (`plugin/pkg/auth/authorizer/node/graph.go`).
//!
//! ```text
//!  node ◀─ pod ◀─ Secret, ConfigMap, ServiceAccount, ResourceClaim
//!           ▲
//!           └──── PersistentVolumeClaim ◀─ PersistentVolume ◀─ Secret
//!  node ◀─ VolumeAttachment, ResourceSlice
//! ```
//!
//! The edges are hash tables from an object to its nodes, so that a decision needs no search. The memory is linear in
//! the references of the stored pods and volumes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::references::{PodReferences, Reference, VolumeReferences};

/// The kinds of objects from which the graph is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeGraphKind {
    /// Pod.
    Pod,
    /// PersistentVolume.
    PersistentVolume,
    /// VolumeAttachment.
    VolumeAttachment,
    /// ResourceSlice.
    ResourceSlice,
}

impl NodeGraphKind {
    /// All kinds.
    pub const ALL: [NodeGraphKind; 4] = [
        NodeGraphKind::Pod,
        NodeGraphKind::PersistentVolume,
        NodeGraphKind::VolumeAttachment,
        NodeGraphKind::ResourceSlice,
    ];

    /// The API group, version and plural name of the resource.
    pub fn resource(self) -> (&'static str, &'static str, &'static str) {
        match self {
            NodeGraphKind::Pod => ("", "v1", "pods"),
            NodeGraphKind::PersistentVolume => ("", "v1", "persistentvolumes"),
            NodeGraphKind::VolumeAttachment => ("storage.k8s.io", "v1", "volumeattachments"),
            NodeGraphKind::ResourceSlice => ("resource.k8s.io", "v1", "resourceslices"),
        }
    }
}

const REFERENCES: usize = 5;

/// `namespace/name`. Namespaces have no slash, so the text is unambiguous.
type ObjectKey = Arc<str>;
type NodeName = Arc<str>;

/// The nodes with a pod that refers to an object, and the number of these pods.
type Users = HashMap<NodeName, u32>;

/// The objects that each node needs.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    pods: HashMap<ObjectKey, PodEdges>,
    /// For each kind of [`Reference`], the nodes that need an object, with the number of pods that refer to it.
    users: [HashMap<ObjectKey, Users>; REFERENCES],
    /// The PersistentVolumeClaims that the pods of each node use: the reverse of their entry in `users`.
    claims_of_node: HashMap<NodeName, HashSet<ObjectKey>>,
    volumes: HashMap<Arc<str>, VolumeEdges>,
    /// For each Secret, the PersistentVolumeClaims whose volumes need it, and the number of these volumes.
    claims_of_secret: HashMap<ObjectKey, HashMap<ObjectKey, u32>>,
    attachments: HashMap<Arc<str>, NodeName>,
    slices: HashMap<Arc<str>, NodeName>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PodEdges {
    node: NodeName,
    objects: Vec<(Reference, ObjectKey)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct VolumeEdges {
    claim: ObjectKey,
    secrets: Vec<ObjectKey>,
}

/// The key of an object. `None` for a namespace that no object can have.
fn key(namespace: &str, name: &str) -> Option<String> {
    (!namespace.contains('/')).then(|| format!("{namespace}/{name}"))
}

impl Graph {
    /// Sets the references of a pod. `None` for a pod without a node.
    pub(super) fn set_pod(&mut self, namespace: &str, name: &str, references: Option<&PodReferences>) {
        let Some(pod) = key(namespace, name) else { return };
        let edges = references.map(|references| {
            let objects = references.objects.iter();
            let objects = objects.filter_map(|(kind, name)| Some((*kind, key(namespace, name)?.into())));
            PodEdges { node: references.node.as_str().into(), objects: objects.collect() }
        });
        if self.pods.get(&*pod) == edges.as_ref() {
            return;
        }
        if let Some(former) = self.pods.remove(&*pod) {
            former.objects.iter().for_each(|(kind, object)| self.remove_user(*kind, object, &former.node));
        }
        if let Some(edges) = edges {
            edges.objects.iter().for_each(|(kind, object)| self.add_user(*kind, object, &edges.node));
            self.pods.insert(pod.into(), edges);
        }
    }

    fn add_user(&mut self, kind: Reference, object: &ObjectKey, node: &NodeName) {
        let users = self.users[kind as usize].entry(Arc::clone(object)).or_default();
        *users.entry(Arc::clone(node)).or_default() += 1;
        if kind == Reference::PersistentVolumeClaim {
            self.claims_of_node.entry(Arc::clone(node)).or_default().insert(Arc::clone(object));
        }
    }

    fn remove_user(&mut self, kind: Reference, object: &ObjectKey, node: &NodeName) {
        if !decrement(&mut self.users[kind as usize], object, node) || kind != Reference::PersistentVolumeClaim {
            return;
        }
        if let Some(claims) = self.claims_of_node.get_mut(node) {
            claims.remove(object);
            if claims.is_empty() {
                self.claims_of_node.remove(node);
            }
        }
    }

    /// Sets the references of a persistent volume. `None` for a volume without a claim.
    pub(super) fn set_volume(&mut self, name: &str, references: Option<&VolumeReferences>) {
        let edges = references.and_then(|VolumeReferences { claim, secrets }| {
            let secrets = secrets.iter().filter_map(|(namespace, name)| Some(key(namespace, name)?.into()));
            Some(VolumeEdges { claim: key(&claim.0, &claim.1)?.into(), secrets: secrets.collect() })
        });
        if self.volumes.get(name) == edges.as_ref() {
            return;
        }
        if let Some(former) = self.volumes.remove(name) {
            for secret in &former.secrets {
                decrement(&mut self.claims_of_secret, secret, &former.claim);
            }
        }
        if let Some(edges) = edges {
            for secret in &edges.secrets {
                let claims = self.claims_of_secret.entry(Arc::clone(secret)).or_default();
                *claims.entry(Arc::clone(&edges.claim)).or_default() += 1;
            }
            self.volumes.insert(name.into(), edges);
        }
    }

    /// Sets the node of a VolumeAttachment.
    pub(super) fn set_attachment(&mut self, name: &str, node: Option<&str>) {
        set_node(&mut self.attachments, name, node);
    }

    /// Sets the node of a ResourceSlice.
    pub(super) fn set_slice(&mut self, name: &str, node: Option<&str>) {
        set_node(&mut self.slices, name, node);
    }

    /// Removes an object.
    pub(super) fn remove(&mut self, kind: NodeGraphKind, namespace: &str, name: &str) {
        match kind {
            NodeGraphKind::Pod => self.set_pod(namespace, name, None),
            NodeGraphKind::PersistentVolume => self.set_volume(name, None),
            NodeGraphKind::VolumeAttachment => self.set_attachment(name, None),
            NodeGraphKind::ResourceSlice => self.set_slice(name, None),
        }
    }

    /// The namespaces and names of the objects of a kind.
    pub(super) fn objects(&self, kind: NodeGraphKind) -> Vec<(String, String)> {
        let cluster = |name: &Arc<str>| (String::new(), name.to_string());
        let namespaced = |key: &ObjectKey| {
            let (namespace, name) = key.split_once('/').unwrap_or_default();
            (namespace.to_owned(), name.to_owned())
        };
        match kind {
            NodeGraphKind::Pod => self.pods.keys().map(namespaced).collect(),
            NodeGraphKind::PersistentVolume => self.volumes.keys().map(cluster).collect(),
            NodeGraphKind::VolumeAttachment => self.attachments.keys().map(cluster).collect(),
            NodeGraphKind::ResourceSlice => self.slices.keys().map(cluster).collect(),
        }
    }

    /// Whether the pod is bound to the node.
    pub(super) fn runs(&self, node: &str, namespace: &str, name: &str) -> bool {
        let pod = key(namespace, name).and_then(|key| self.pods.get(&*key));
        pod.is_some_and(|pod| &*pod.node == node)
    }

    /// Whether a pod of the node needs the object, itself or through its volumes.
    pub(super) fn needs(&self, node: &str, kind: Reference, namespace: &str, name: &str) -> bool {
        let Some(key) = key(namespace, name) else { return false };
        self.is_user(node, kind, &key) || (kind == Reference::Secret && self.needs_for_volumes(node, &key))
    }

    fn is_user(&self, node: &str, kind: Reference, key: &str) -> bool {
        self.users[kind as usize].get(key).is_some_and(|users| users.contains_key(node))
    }

    /// Whether a pod of the node uses a PersistentVolumeClaim whose volume needs the Secret. Visits the shorter list:
    /// the claims of the node, or the claims whose volumes need the Secret.
    fn needs_for_volumes(&self, node: &str, secret: &str) -> bool {
        let (Some(of_node), Some(of_secret)) = (self.claims_of_node.get(node), self.claims_of_secret.get(secret))
        else {
            return false;
        };
        match of_node.len() < of_secret.len() {
            true => of_node.iter().any(|claim| of_secret.contains_key(claim)),
            false => of_secret.keys().any(|claim| of_node.contains(claim)),
        }
    }

    /// Whether a pod of the node needs the persistent volume.
    pub(super) fn needs_volume(&self, node: &str, name: &str) -> bool {
        let volume = self.volumes.get(name);
        volume.is_some_and(|volume| self.is_user(node, Reference::PersistentVolumeClaim, &volume.claim))
    }

    /// Whether the VolumeAttachment is the node's.
    pub(super) fn has_attachment(&self, node: &str, name: &str) -> bool {
        self.attachments.get(name).is_some_and(|of| &**of == node)
    }

    /// Whether the ResourceSlice is the node's.
    pub(super) fn has_slice(&self, node: &str, name: &str) -> bool {
        self.slices.get(name).is_some_and(|of| &**of == node)
    }

    /// The number of entries of each table. All are zero for a graph without objects.
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        let users = self.users.iter().flat_map(HashMap::values).map(|users| 1 + users.len()).sum::<usize>();
        let claims = self.claims_of_node.values().map(|claims| 1 + claims.len()).sum::<usize>();
        let secrets = self.claims_of_secret.values().map(|claims| 1 + claims.len()).sum::<usize>();
        let objects = self.pods.len() + self.volumes.len() + self.attachments.len() + self.slices.len();
        users + claims + secrets + objects
    }
}

/// Subtracts one from the count at `outer` and `inner`, and removes entries that become empty. Returns whether the
/// count became zero.
fn decrement(table: &mut HashMap<Arc<str>, HashMap<Arc<str>, u32>>, outer: &str, inner: &str) -> bool {
    let Some(counts) = table.get_mut(outer) else { return false };
    let Some(count) = counts.get_mut(inner) else { return false };
    *count -= 1;
    if *count > 0 {
        return false;
    }
    counts.remove(inner);
    if counts.is_empty() {
        table.remove(outer);
    }
    true
}

fn set_node(table: &mut HashMap<Arc<str>, NodeName>, name: &str, node: Option<&str>) {
    match node {
        Some(node) => drop(table.insert(name.into(), node.into())),
        None => drop(table.remove(name)),
    }
}
