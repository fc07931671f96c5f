//! [`NodeState`]: the graph that requests and watches share; [`NodeAuthorizer`] decides with it
//! (`plugin/pkg/auth/authorizer/node/node_authorizer.go`).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use listwatch_meta::UserInfo;
use listwatch_meta::go::quote;
use parking_lot::RwLock;

use super::graph::{Graph, NodeGraphKind};
use super::identity::{NodeIdentity, node_identity};
use super::references::{PodReferences, Reference, VolumeReferences, attachment_node, slice_node};
use crate::authorizer::{Attributes, Authorization, Authorizer, Reason};
use crate::maybe_future::MaybeFuture;
use crate::rbac::PolicyRule;
use crate::rules::UserRules;

/// The namespace of the Leases of nodes.
const NODE_LEASES: &str = "kube-node-lease";

/// The pods and volumes that decide which objects a node may read. Watches update the graph, and requests read it. An
/// object that has not arrived yet grants nothing.
#[derive(Debug, Default)]
pub struct NodeState {
    graph: RwLock<Graph>,
    /// One bit for each kind that was listed.
    listed: AtomicU8,
}

/// One object, parsed outside of the lock.
enum Parsed {
    Pod(Option<PodReferences>),
    Volume(Option<VolumeReferences>),
    Attachment(Option<String>),
    Slice(Option<String>),
}

impl Parsed {
    fn of(kind: NodeGraphKind, name: &str, json: &[u8]) -> Result<Self, serde_json::Error> {
        Ok(match kind {
            NodeGraphKind::Pod => Parsed::Pod(PodReferences::parse(name, json)?),
            NodeGraphKind::PersistentVolume => Parsed::Volume(VolumeReferences::parse(json)?),
            NodeGraphKind::VolumeAttachment => Parsed::Attachment(attachment_node(json)?),
            NodeGraphKind::ResourceSlice => Parsed::Slice(slice_node(json)?),
        })
    }

    fn put(&self, graph: &mut Graph, namespace: &str, name: &str) {
        match self {
            Parsed::Pod(references) => graph.set_pod(namespace, name, references.as_ref()),
            Parsed::Volume(references) => graph.set_volume(name, references.as_ref()),
            Parsed::Attachment(node) => graph.set_attachment(name, node.as_deref()),
            Parsed::Slice(node) => graph.set_slice(name, node.as_deref()),
        }
    }
}

/// The error of an object that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("invalid object for the Node authorizer: {0}")]
pub struct InvalidNodeGraphObject(#[from] serde_json::Error);

impl NodeState {
    /// Whether all kinds were listed. Until then, nodes are refused some objects that they need.
    pub fn is_synced(&self) -> bool {
        self.listed.load(Ordering::Acquire) == NodeGraphKind::ALL.iter().fold(0, |bits, kind| bits | bit(*kind))
    }

    /// Adds or replaces one object. The namespace is empty for cluster-scoped kinds.
    ///
    /// # Errors
    /// [`InvalidNodeGraphObject`] for an object that cannot be read. Such an object grants nothing.
    pub fn set(
        &self,
        kind: NodeGraphKind,
        namespace: &str,
        name: &str,
        json: &[u8],
    ) -> Result<(), InvalidNodeGraphObject> {
        match Parsed::of(kind, name, json) {
            Ok(parsed) => {
                parsed.put(&mut self.graph.write(), namespace, name);
                Ok(())
            }
            Err(error) => {
                self.remove(kind, namespace, name);
                Err(error.into())
            }
        }
    }

    /// Removes one object.
    pub fn remove(&self, kind: NodeGraphKind, namespace: &str, name: &str) {
        self.graph.write().remove(kind, namespace, name);
    }

    /// Replaces all objects of a kind: `(namespace, name, JSON)`. Objects that cannot be read grant nothing; their
    /// namespaces and names are returned. Requests are decided in between, after each object.
    pub fn replace<'a>(
        &self,
        kind: NodeGraphKind,
        objects: impl IntoIterator<Item = (&'a str, &'a str, &'a [u8])>,
    ) -> Vec<(&'a str, &'a str)> {
        let mut unreadable = Vec::new();
        let mut kept = HashSet::new();
        for (namespace, name, json) in objects {
            match self.set(kind, namespace, name, json) {
                Ok(()) => drop(kept.insert((namespace, name))),
                Err(_) => unreadable.push((namespace, name)),
            }
        }
        let known = self.graph.read().objects(kind);
        for (namespace, name) in known {
            if !kept.contains(&(namespace.as_str(), name.as_str())) {
                self.remove(kind, &namespace, &name);
            }
        }
        self.listed.fetch_or(bit(kind), Ordering::AcqRel);
        unreadable
    }
}

fn bit(kind: NodeGraphKind) -> u8 {
    1 << kind as u8
}

/// Decides on the requests of nodes (`--authorization-mode=Node`).
#[derive(Clone, Debug)]
pub struct NodeAuthorizer {
    state: Arc<NodeState>,
    rules: Arc<[PolicyRule]>,
}

impl NodeAuthorizer {
    /// An authorizer that reads the graph of this state. `rules` are those of the ClusterRole `system:node`. The
    /// authorizer applies the rules to resources that have no check per node.
    pub fn new(state: Arc<NodeState>, rules: impl Into<Arc<[PolicyRule]>>) -> Self {
        NodeAuthorizer { state, rules: rules.into() }
    }

    pub(super) fn decide(&self, attributes: &Attributes<'_>) -> Authorization {
        let name = match node_identity(attributes.user) {
            None => return Authorization::no_opinion(),
            Some(NodeIdentity::Unnamed) => {
                return refuse(format!("unknown node for user {}", quote(&attributes.user.username)));
            }
            Some(NodeIdentity::Named(name)) => name,
        };
        let request = NodeRequest { node: name, attributes, state: &self.state };
        if attributes.is_resource_request {
            match (attributes.api_group, attributes.resource) {
                ("", "secrets" | "configmaps") => return request.read_namespaced(),
                ("", "persistentvolumeclaims") => return request.claim(),
                ("", "persistentvolumes")
                | ("storage.k8s.io", "volumeattachments")
                | ("resource.k8s.io", "resourceclaims") => return request.get(),
                ("", "serviceaccounts") => return request.service_account(),
                ("coordination.k8s.io", "leases") => return request.lease(),
                ("storage.k8s.io", "csinodes") => return request.csi_node(),
                ("resource.k8s.io", "resourceslices") => return request.resource_slice(),
                ("", "nodes") => return request.node(),
                ("", "pods") => return request.pod(),
                // The feature gate PodCertificateRequest is off by default.
                ("certificates.k8s.io", "podcertificaterequests") => return Authorization::no_opinion(),
                _ => {}
            }
        }
        match self.rules.iter().any(|rule| rule.allows(attributes)) {
            true => Authorization::allow(""),
            false => Authorization::no_opinion(),
        }
    }
}

impl Authorizer for NodeAuthorizer {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
        MaybeFuture::ready(self.decide(attributes))
    }

    fn rules<'a>(&'a self, user: &'a UserInfo, _namespace: &'a str) -> MaybeFuture<'a, UserRules> {
        let mut rules = UserRules::default();
        if node_identity(user).is_some() {
            rules.incomplete = true;
            rules.evaluation_error = "node authorizer does not support user rule resolution".to_owned();
        }
        MaybeFuture::ready(rules)
    }
}

/// Leaves the decision to other authorizers. The client sees the reason if none allows the request.
fn refuse(reason: impl Into<Reason>) -> Authorization {
    Authorization { reason: reason.into(), ..Authorization::no_opinion() }
}

/// A request of a node. Each method decides on one resource.
struct NodeRequest<'a> {
    node: &'a str,
    attributes: &'a Attributes<'a>,
    state: &'a NodeState,
}

impl NodeRequest<'_> {
    fn is_verb(&self, verbs: &[&str]) -> bool {
        verbs.contains(&self.attributes.verb)
    }

    /// Allows the request if the graph has a path from the object to the node.
    fn related(&self) -> Authorization {
        let Attributes { api_group, resource, namespace, name, .. } = *self.attributes;
        if name.is_empty() {
            return refuse("No Object name found");
        }
        let graph = self.state.graph.read();
        let found = match (api_group, resource) {
            ("", "pods") => graph.runs(self.node, namespace, name),
            ("", "secrets") => graph.needs(self.node, Reference::Secret, namespace, name),
            ("", "configmaps") => graph.needs(self.node, Reference::ConfigMap, namespace, name),
            ("", "serviceaccounts") => graph.needs(self.node, Reference::ServiceAccount, namespace, name),
            ("", "persistentvolumeclaims") => graph.needs(self.node, Reference::PersistentVolumeClaim, namespace, name),
            ("resource.k8s.io", "resourceclaims") => graph.needs(self.node, Reference::ResourceClaim, namespace, name),
            // Objects without namespaces have vertices without one.
            _ if !namespace.is_empty() => false,
            ("", "persistentvolumes") => graph.needs_volume(self.node, name),
            ("storage.k8s.io", "volumeattachments") => graph.has_attachment(self.node, name),
            ("resource.k8s.io", "resourceslices") => graph.has_slice(self.node, name),
            _ => false,
        };
        drop(graph);
        match found {
            true => Authorization::allow(""),
            false => refuse(format!("no relationship found between node '{}' and this object", self.node)),
        }
    }

    /// Whether the selector narrows the request to objects with this node in `field`.
    fn selects_own(&self, field: &str) -> bool {
        let mut terms = self.attributes.field_selector.iter();
        terms.any(|term| !term.negated && term.field == field && term.value == self.node)
    }

    fn get(&self) -> Authorization {
        match () {
            () if self.attributes.verb != "get" => refuse("can only get individual resources of this type"),
            () if !self.attributes.subresource.is_empty() => refuse("cannot get subresource"),
            () => self.related(),
        }
    }

    fn read_namespaced(&self) -> Authorization {
        match () {
            () if !self.is_verb(&["get", "list", "watch"]) => refuse("can only read resources of this type"),
            () if !self.attributes.subresource.is_empty() => refuse("cannot read subresource"),
            () if self.attributes.namespace.is_empty() => refuse("can only read namespaced object of this type"),
            () => self.related(),
        }
    }

    fn claim(&self) -> Authorization {
        match self.attributes.subresource {
            "status" if self.is_verb(&["update", "patch"]) => self.related(),
            "status" => refuse("can only get/update/patch this type"),
            _ => self.get(),
        }
    }

    fn service_account(&self) -> Authorization {
        let Attributes { verb, subresource, name, .. } = *self.attributes;
        match (verb, subresource) {
            ("get", "") => self.read_namespaced(),
            ("create", _) if name.is_empty() => refuse("can only create tokens for individual service accounts"),
            ("create", "token") => self.related(),
            ("create", _) => refuse("can only create token subresource of serviceaccount"),
            _ => refuse("can only create tokens for individual service accounts"),
        }
    }

    fn lease(&self) -> Authorization {
        let Attributes { verb, namespace, name, .. } = *self.attributes;
        match () {
            () if !self.is_verb(&["get", "create", "update", "patch", "delete"]) => {
                refuse("can only get, create, update, patch, or delete a node lease")
            }
            () if namespace != NODE_LEASES => {
                refuse(format!("can only access leases in the {} system namespace", quote(NODE_LEASES)))
            }
            // A create names the object only in its body. NodeRestriction compares that name.
            () if verb != "create" && name != self.node => {
                refuse("can only access node lease with the same name as the requesting node")
            }
            () => Authorization::allow(""),
        }
    }

    fn csi_node(&self) -> Authorization {
        let Attributes { verb, subresource, name, .. } = *self.attributes;
        match () {
            () if !self.is_verb(&["get", "create", "update", "patch", "delete"]) => {
                refuse("can only get, create, update, patch, or delete a CSINode")
            }
            () if !subresource.is_empty() => refuse("cannot authorize CSINode subresources"),
            () if verb != "create" && name != self.node => {
                refuse("can only access CSINode with the same name as the requesting node")
            }
            () => Authorization::allow(""),
        }
    }

    fn resource_slice(&self) -> Authorization {
        if !self.attributes.subresource.is_empty() {
            return refuse("cannot authorize ResourceSlice subresources");
        }
        match self.attributes.verb {
            // NodeRestriction compares the node of the new object.
            "create" => Authorization::allow(""),
            "get" | "update" | "patch" | "delete" => self.related(),
            "watch" | "list" | "deletecollection" if self.selects_own("spec.nodeName") => Authorization::allow(""),
            "watch" | "list" | "deletecollection" => {
                refuse("can only list/watch/deletecollection resourceslices with nodeName field selector")
            }
            _ => refuse(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection",
            ),
        }
    }

    fn node(&self) -> Authorization {
        let Attributes { verb, subresource, name, .. } = *self.attributes;
        match (subresource, verb) {
            // NodeRestriction limits these writes to the node's own objects.
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Authorization::allow(""),
            // The graph is not asked, so that a kubelet can read its object before it exists.
            ("", "get" | "list" | "watch") if name == self.node => Authorization::allow(""),
            ("", "get" | "list" | "watch") if name.is_empty() => {
                refuse(format!("node '{}' cannot read all nodes, only its own Node object", self.node))
            }
            ("", "get" | "list" | "watch") => {
                refuse(format!("node '{}' cannot read '{name}', only its own Node object", self.node))
            }
            _ => Authorization::no_opinion(),
        }
    }

    fn pod(&self) -> Authorization {
        let Attributes { verb, subresource, name, .. } = *self.attributes;
        match (subresource, verb) {
            ("", "get") => self.related(),
            ("", "list" | "watch") if self.selects_own("spec.nodeName") => Authorization::allow(""),
            ("", "list" | "watch") if !name.is_empty() => self.related(),
            ("", "list" | "watch") => refuse("can only list/watch pods with spec.nodeName field selector"),
            // NodeRestriction limits these writes to mirror pods and pods of the node.
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
                Authorization::allow("")
            }
            _ => Authorization::no_opinion(),
        }
    }
}
