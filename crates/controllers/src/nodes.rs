//! Updates the graph of the Node authorizer from the stored pods, volumes, attachments and slices
//! (`plugin/pkg/auth/authorizer/node/graph_populator.go`). [`rules`] returns the rules that apply to all nodes.

use std::sync::Arc;

use listwatch_access::node::{NodeGraphKind, NodeState};
use listwatch_access::rbac::PolicyRule;
use listwatch_meta::{Object, Status};
use listwatch_write::Writer;

use crate::feed::{self, ObjectCopy};

/// The ClusterRole whose rules the Node authorizer enforces.
const ROLE: &str = "system:node";

/// Updates the graph from the objects of one kind.
struct GraphCopy<'a>(&'a NodeState, NodeGraphKind);

impl ObjectCopy for GraphCopy<'_> {
    fn resource(&self) -> (&'static str, &'static str, &'static str) {
        self.1.resource()
    }

    fn set(&self, object: &Object) -> bool {
        self.0.set(self.1, object.namespace(), object.name(), object.json_slice()).is_ok()
    }

    fn remove(&self, namespace: &str, name: &str) {
        self.0.remove(self.1, namespace, name);
    }

    fn replace<'a>(&self, objects: &'a [Object]) -> Vec<(&'a str, &'a str)> {
        let parts = objects.iter().map(|object| (object.namespace(), object.name(), object.json_slice()));
        self.0.replace(self.1, parts)
    }
}

fn copies(state: &NodeState) -> [GraphCopy<'_>; 4] {
    NodeGraphKind::ALL.map(|kind| GraphCopy(state, kind))
}

/// Lists the objects into the graph. A server calls this before the first request, so that no decision is based on an
/// empty graph.
///
/// # Errors
/// The error of the store, or 504 if the store does not respond in time.
pub async fn load(writer: &Writer, state: &NodeState) -> Result<(), Status> {
    feed::load(writer, &copies(state), "the pods and volumes of nodes").await
}

/// Updates the graph until the future is dropped.
pub async fn follow(writer: Arc<Writer>, state: Arc<NodeState>) {
    feed::follow(&writer, &copies(&state)).await;
}

/// Returns the rules of the default ClusterRole `system:node` (`bootstrappolicy.NodeRules`). As in upstream, a change
/// of the stored role has no effect on the Node authorizer.
pub fn rules() -> Vec<PolicyRule> {
    crate::rbac::default_rules(ROLE)
}
