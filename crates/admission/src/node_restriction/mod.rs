//! NodeRestriction: limits the writes of a kubelet to its own Node, its own pods and their objects
//! (`plugin/pkg/admission/noderestriction/admission.go`).
//!
//! | resource | a node may |
//! |---|---|
//! | pods | create mirror pods of itself, delete its own, write their status, evict them |
//! | nodes | write its own, without taints, owner references and restricted labels |
//! | persistentvolumeclaims | write only the status of the claim |
//! | serviceaccounts/token | request tokens bound to its pods, for audiences of their volumes |
//! | leases, csinodes | write its own |
//! | resourceslices | create and delete its own |
//! | certificatesigningrequests | request certificates for itself |
//!
//! Together with the Node authorizer, a kubelet reads and writes nothing of other nodes. As upstream, the plugin
//! ignores other users.

mod nodes;
mod pods;
mod tokens;

use listwatch_access::AuthorizerChain;
use listwatch_access::node::{NodeIdentity, node_identity};
use listwatch_json::{JsonString, Map, Value};
use listwatch_meta::go::quote;
use listwatch_meta::{GroupResource, Status};
use listwatch_validation::metadata;
use listwatch_validation::object_meta as meta;

use super::{AdmissionFuture, AdmissionRequest, MutatingAdmission, Operation, ValidatingAdmission};

/// The namespace of the Leases of nodes.
const NODE_LEASES: &str = "kube-node-lease";
/// The signers of the certificates of kubelets.
const KUBELET_SIGNERS: [&str; 2] = ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"];

type Object = Map;

/// The plugin that limits the writes of kubelets. Add the plugin to both stages of a chain. Creates and updates are
/// checked in the mutating stage, before the object is changed; deletions in the validating stage.
#[derive(Clone, Debug)]
pub struct NodeRestriction {
    authorizers: AuthorizerChain,
}

impl NodeRestriction {
    /// Creates the plugin. The authorizers decide on token audiences that no volume of the pod requests.
    pub fn new(authorizers: AuthorizerChain) -> Self {
        NodeRestriction { authorizers }
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        let node = match node_identity(request.user) {
            None => return Ok(()),
            Some(NodeIdentity::Unnamed) => {
                let user = quote(&request.user.username);
                return Err(request.forbidden(format_args!("could not determine node from user {user}")));
            }
            Some(NodeIdentity::Named(name)) => name,
        };
        let write = NodeWrite { node, request, object };
        match (request.group, request.resource) {
            ("", "pods") => write.pod().await,
            ("", "nodes") => write.own_node(),
            ("", "persistentvolumeclaims") => write.claim(),
            ("", "serviceaccounts") => write.token(&self.authorizers).await,
            ("certificates.k8s.io", "podcertificaterequests") => {
                Err(request.forbidden("PodCertificateRequest feature gate is disabled"))
            }
            ("coordination.k8s.io", "leases") => write.lease(),
            ("storage.k8s.io", "csinodes") => write.csi_node(),
            ("resource.k8s.io", "resourceslices") => write.resource_slice(),
            ("certificates.k8s.io", "certificatesigningrequests") => write.certificate_request(),
            _ => Ok(()),
        }
    }
}

impl MutatingAdmission for NodeRestriction {
    fn name(&self) -> &str {
        "NodeRestriction"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        matches!(request.operation, Operation::Create | Operation::Update) && node_identity(request.user).is_some()
    }

    fn admit<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a mut Map) -> AdmissionFuture<'a, ()> {
        Box::pin(self.check(request, object))
    }
}

impl ValidatingAdmission for NodeRestriction {
    fn name(&self) -> &str {
        "NodeRestriction"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.operation == Operation::Delete && node_identity(request.user).is_some()
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a Map) -> AdmissionFuture<'a, ()> {
        Box::pin(self.check(request, object))
    }
}

/// A write by a node. Each method checks one resource. On a delete, the object is the stored one.
struct NodeWrite<'a> {
    node: &'a str,
    request: &'a AdmissionRequest<'a>,
    object: &'a Object,
}

impl NodeWrite<'_> {
    fn forbidden<T>(&self, why: impl std::fmt::Display) -> Result<T, Status> {
        Err(self.request.forbidden(why))
    }

    /// Returns the 403 for an operation that the plugin does not expect, with Go's `%q`.
    fn unexpected_operation(&self) -> Result<(), Status> {
        self.forbidden(format_args!("unexpected operation {}", quote(self.request.operation.as_str())))
    }

    fn is_create(&self) -> bool {
        self.request.operation == Operation::Create
    }

    /// Reads a stored object of the core group.
    ///
    /// # Errors
    /// 404 if the object does not exist. The message has the singular resource name, as in upstream.
    async fn stored(&self, plural: &str, namespace: Option<&str>, name: &str) -> Result<Object, Status> {
        self.stored_of("", plural, namespace, name).await
    }

    async fn stored_of(
        &self,
        group: &str,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Object, Status> {
        let found = self.request.objects.get(group, "v1", plural, namespace, name).await?;
        let resource = plural.strip_suffix('s').unwrap_or(plural);
        found.ok_or_else(|| Status::not_found(GroupResource { group, resource }, name))
    }

    /// Compares the name of the object with the node's. A create names the object in its body.
    fn check_name(&self, why: &str) -> Result<(), Status> {
        // The name of the stored object is the one in the path.
        let name = meta::text(metadata(self.request.old_object.unwrap_or(self.object)), "name");
        if name == self.node { Ok(()) } else { self.forbidden(why) }
    }

    fn lease(&self) -> Result<(), Status> {
        if self.request.namespace != Some(NODE_LEASES) {
            return self
                .forbidden(format_args!("can only access leases in the {} system namespace", quote(NODE_LEASES)));
        }
        self.check_name("can only access node lease with the same name as the requesting node")
    }

    fn csi_node(&self) -> Result<(), Status> {
        self.check_name("can only access CSINode with the same name as the requesting node")
    }

    fn resource_slice(&self) -> Result<(), Status> {
        let verb = match self.request.operation {
            Operation::Create => "create",
            Operation::Delete => "delete",
            // The Node authorizer compares the stored object, and its node cannot be changed.
            _ => return Ok(()),
        };
        match text(self.object, "spec", "nodeName") == self.node {
            true => Ok(()),
            false => self
                .forbidden(format_args!("can only {verb} ResourceSlice with the same NodeName as the requesting node")),
        }
    }

    /// Allows only updates of the status of a PersistentVolumeClaim. The Node authorizer checks that a pod of the node
    /// uses the claim.
    fn claim(&self) -> Result<(), Status> {
        if self.request.subresource != Some("status") {
            return self.forbidden("may only update PVC status");
        }
        let (Operation::Update, Some(old)) = (self.request.operation, self.request.old_object) else {
            return self.unexpected_operation();
        };
        let changed = changed_members(&without_claim_status(old), &without_claim_status(self.object));
        match changed.is_empty() {
            true => Ok(()),
            false => self.forbidden(format_args!(
                "node {} is not allowed to update fields other than status.quantity and status.conditions: {}",
                quote(self.node),
                changed.join(", ")
            )),
        }
    }

    fn certificate_request(&self) -> Result<(), Status> {
        use base64::Engine as _;
        let spec = |field: &str| text(self.object, "spec", field);
        if !self.is_create() || !KUBELET_SIGNERS.contains(&spec("signerName")) {
            return Ok(());
        }
        let name = base64::engine::general_purpose::STANDARD
            .decode(spec("request"))
            .map_err(|error| error.to_string())
            .and_then(|pem| listwatch_kinds::certificate_request::CertificateRequest::from_pem(&pem)?.common_name());
        match name {
            Err(why) => self.forbidden(format_args!("unable to parse csr: {why}")),
            Ok(name) if name.strip_prefix("system:node:") == Some(self.node) => Ok(()),
            Ok(_) => self.forbidden(format_args!("can only create a node CSR with CN=system:node:{}", self.node)),
        }
    }
}

/// Returns the string at `member.field` of the object; empty if it is absent.
fn text<'a>(object: &'a Object, member: &str, field: &str) -> &'a str {
    object.get(member).and_then(|member| member.get(field)?.as_str()).unwrap_or_default()
}

/// Returns the annotations or labels of an object.
fn map_of<'a>(object: &'a Object, field: &str) -> Option<&'a Object> {
    metadata(object).get(field).and_then(Value::as_object)
}

/// Returns the claim without the status fields that a kubelet may change.
fn without_claim_status(claim: &Object) -> Object {
    let mut claim = claim.clone();
    if let Some(Value::Object(metadata)) = claim.get_mut("metadata") {
        metadata.shift_remove("resourceVersion");
        metadata.shift_remove("managedFields");
    }
    if let Some(Value::Object(status)) = claim.get_mut("status") {
        for field in ["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"] {
            status.shift_remove(field);
        }
    }
    claim
}

/// Returns the names of the members in which two objects differ. Absent, null and empty values are equal
/// (`apiequality.Semantic`).
fn changed_members(old: &Object, new: &Object) -> Vec<String> {
    let mut names: Vec<&JsonString> = old.keys().chain(new.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let is_changed = |name: &&JsonString| !is_same(old.get(name.as_str()), new.get(name.as_str()));
    names.into_iter().filter(is_changed).map(|name| name.as_str().to_owned()).collect()
}

/// Whether two values are equal. Absent, null and empty values are equal.
fn is_same(one: Option<&Value>, other: Option<&Value>) -> bool {
    match (one, other) {
        (Some(Value::Object(one)), Some(Value::Object(other))) => {
            one.keys().chain(other.keys()).all(|key| is_same(one.get(key), other.get(key)))
        }
        (Some(Value::Array(one)), Some(Value::Array(other))) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(Some(one), Some(other)))
        }
        (one, other) => one == other || (is_empty(one) && is_empty(other)),
    }
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(members)) => members.values().all(|value| is_empty(Some(value))),
        Some(_) => false,
    }
}
