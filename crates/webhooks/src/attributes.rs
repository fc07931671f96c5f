//! One write as webhooks see it (`admission.Attributes`).

use listwatch_meta::UserInfo;
use serde_json::{Map, Value};

/// The operation of a write (`admission.Operation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The write creates an object.
    Create,
    /// The write replaces an object.
    Update,
    /// The write deletes an object.
    Delete,
    /// The request connects to an object, e.g. `pods/exec`.
    Connect,
}

impl Operation {
    /// The name in rules and in an AdmissionReview, e.g. `CREATE`.
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// A resource in one version, with the kind of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceName<'a> {
    /// The API group; `""` for the core group.
    pub group: &'a str,
    /// The API version, e.g. `v1`.
    pub version: &'a str,
    /// The plural name, e.g. `pods`.
    pub resource: &'a str,
    /// The kind of the objects. Of a subresource: the kind of its body, e.g. `Scale`.
    pub kind: &'a str,
}

impl ResourceName<'_> {
    /// Whether the resource is that of Namespace objects.
    fn is_namespaces(&self) -> bool {
        self.group.is_empty() && self.resource == "namespaces"
    }
}

/// One write, as webhooks see it.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// The operation of the write.
    pub operation: Operation,
    /// The resource and kind of the request.
    pub resource: ResourceName<'a>,
    /// The subresource, e.g. `status`; `""` for the object itself.
    pub subresource: &'a str,
    /// The namespace of the object; for a Namespace, its own name; `""` for other cluster-scoped objects.
    pub namespace: &'a str,
    /// The name of the object. Empty if the server generates the name later.
    pub name: &'a str,
    /// The user who sends the request, after impersonation.
    pub user: &'a UserInfo,
    /// Whether the request is a dry run.
    pub dry_run: bool,
    /// The new object; `None` on delete. On connect: the options of the connection.
    pub object: Option<&'a Map<String, Value>>,
    /// The stored object; `None` on create and connect.
    pub old_object: Option<&'a Map<String, Value>>,
    /// The CreateOptions, UpdateOptions or DeleteOptions of the request; `None` on connect.
    pub options: Option<&'a Map<String, Value>>,
}

impl Attributes<'_> {
    /// Whether the request is for a Namespace or for a subresource of one.
    pub(crate) fn is_for_namespaces(&self) -> bool {
        self.resource.is_namespaces()
    }

    /// Whether a rule of scope `Cluster` matches. A Namespace is cluster-scoped, although it has a namespace here.
    pub(crate) fn is_cluster_scoped(&self) -> bool {
        self.is_for_namespaces() || self.namespace.is_empty()
    }
}

/// Whether no webhook may judge objects of this kind: a webhook that rejects changes of its own configuration could never be
/// removed (`IsExemptAdmissionConfigurationResource`).
pub fn is_exempt(group: &str, kind: &str) -> bool {
    const KINDS: [&str; 6] = [
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "MutatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
    ];
    group == "admissionregistration.k8s.io" && KINDS.contains(&kind)
}
