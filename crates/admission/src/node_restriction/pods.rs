//! Writes of pods by nodes: mirror pods, and the status, eviction and deletion of the node's own pods
//! (`admitPod`, `admitPodStatus`, `admitPodEviction`).

use listwatch_access::node::api_reference;
use listwatch_json::Value;
use listwatch_meta::Status;
use listwatch_meta::go::quote;
use listwatch_validation::metadata;
use listwatch_validation::object_meta as meta;
use listwatch_validation::pod_spec::MIRROR_ANNOTATION;

use super::{NodeWrite, Object, is_same, map_of, text};
use crate::Operation;

impl NodeWrite<'_> {
    /// Checks a write of a pod or one of its subresources.
    pub(super) async fn pod(&self) -> Result<(), Status> {
        match (self.request.subresource, self.request.operation) {
            (None, Operation::Create) => self.mirror_pod().await,
            (None, Operation::Delete) => match self.runs(self.object) {
                true => Ok(()),
                false => self.forbidden(format_args!(
                    "node {} can only delete pods with spec.nodeName set to itself",
                    quote(self.node)
                )),
            },
            (None, other) => self.forbidden(format_args!(
                "unexpected operation {}, node {} can only create and delete mirror pods",
                quote(other.as_str()),
                quote(self.node)
            )),
            (Some("status"), _) => self.pod_status(),
            (Some("eviction"), Operation::Create) => {
                let pod = self.stored("pods", self.request.namespace, self.request.name).await?;
                match self.runs(&pod) {
                    true => Ok(()),
                    false => self.forbidden(format_args!(
                        "node {} can only evict pods with spec.nodeName set to itself",
                        self.node
                    )),
                }
            }
            (Some("eviction"), other) => self.forbidden(format_args!("unexpected operation {}", other.as_str())),
            (Some(other), _) => self.forbidden(format_args!(
                "unexpected pod subresource {}, only 'status' and 'eviction' are allowed",
                quote(other)
            )),
        }
    }

    /// Whether a pod is bound to this node.
    pub(super) fn runs(&self, pod: &Object) -> bool {
        text(pod, "spec", "nodeName") == self.node
    }

    /// Checks the creation of a pod: only a mirror pod of this node that refers to no API object is allowed.
    async fn mirror_pod(&self) -> Result<(), Status> {
        let node = quote(self.node);
        if map_of(self.object, "annotations").is_none_or(|all| !all.contains_key(MIRROR_ANNOTATION)) {
            return self.forbidden(format_args!(
                "pod does not have {} annotation, node {node} can only create mirror pods",
                quote(MIRROR_ANNOTATION)
            ));
        }
        if !self.runs(self.object) {
            return self.forbidden(format_args!("node {node} can only create pods with spec.nodeName set to itself"));
        }
        let owners = metadata(self.object).get("ownerReferences").and_then(Value::as_array);
        let owner = match owners.map(Vec::as_slice).unwrap_or_default() {
            [] => {
                let why = format_args!("node {node} can only create pods with an owner reference set to itself");
                return self.forbidden(why);
            }
            [owner] => owner,
            _ => {
                let why = format_args!("node {node} can only create pods with a single owner reference set to itself");
                return self.forbidden(why);
            }
        };
        let of = |field: &str| owner[field].as_str().unwrap_or_default();
        if of("apiVersion") != "v1" || of("kind") != "Node" || of("name") != self.node {
            return self
                .forbidden(format_args!("node {node} can only create pods with an owner reference set to itself"));
        }
        if owner["controller"] != true {
            let why = format_args!("node {node} can only create pods with a controller owner reference set to itself");
            return self.forbidden(why);
        }
        if owner["blockOwnerDeletion"] == true {
            let why = format_args!("node {node} must not set blockOwnerDeletion on an owner reference");
            return self.forbidden(why);
        }
        let stored = self.stored("nodes", None, self.node).await?;
        let uid = meta::text(metadata(&stored), "uid");
        if of("uid") != uid {
            return self.forbidden(format_args!("node {} UID mismatch: expected {} got {uid}", self.node, of("uid")));
        }
        match api_reference(self.object) {
            Ok(None) => Ok(()),
            Ok(Some(what)) => self.forbidden(format_args!("node {node} can not create pods that reference {what}")),
            Err(why) => self.forbidden(format_args!("error checking mirror pod for API references: {why}")),
        }
    }

    /// Checks a write of the status of a pod. The pod must run on the node, and labels and claims must not change.
    fn pod_status(&self) -> Result<(), Status> {
        let (Operation::Update, Some(old)) = (self.request.operation, self.request.old_object) else {
            return self.unexpected_operation();
        };
        let node = quote(self.node);
        if !self.runs(old) {
            let why = format_args!("node {node} can only update pod status for pods with spec.nodeName set to itself");
            return self.forbidden(why);
        }
        let labels = |object| metadata(object).get("labels");
        if !is_same(labels(old), labels(self.object)) {
            return self.forbidden(format_args!("node {node} cannot update labels through pod status"));
        }
        let status = |object: &Object, field: &str| object.get("status").and_then(|status| status.get(field)).cloned();
        let is_kept = |field: &str| is_same(status(old, field).as_ref(), status(self.object, field).as_ref());
        if !is_kept("resourceClaimStatuses") {
            return self.forbidden(format_args!("node {node} cannot update resource claim statues"));
        }
        if !is_kept("extendedResourceClaimStatus") {
            return self.forbidden(format_args!("node {node} cannot update extended resource claim status"));
        }
        Ok(())
    }
}
