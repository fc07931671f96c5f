//! The attributes of one write that webhooks receive (`admission.Attributes`).

use listwatch_admission::{Operation, ResourceName};
use listwatch_json::Map;
use listwatch_meta::UserInfo;

/// The attributes of one write that webhooks receive.
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
    pub object: Option<&'a Map>,
    /// The stored object; `None` on create and connect.
    pub old_object: Option<&'a Map>,
    /// The CreateOptions, UpdateOptions or DeleteOptions of the request; `None` on connect.
    pub options: Option<&'a Map>,
}

impl Attributes<'_> {
    /// Whether the request is for a Namespace or for a subresource of one.
    pub(crate) fn is_for_namespaces(&self) -> bool {
        self.resource.group.is_empty() && self.resource.resource == "namespaces"
    }

    /// Whether a rule of scope `Cluster` matches. Namespaces are cluster-scoped, although `namespace` is set for them.
    pub(crate) fn is_cluster_scoped(&self) -> bool {
        self.is_for_namespaces() || self.namespace.is_empty()
    }
}

/// Whether objects of this kind are exempt from webhooks. Otherwise a webhook could reject the removal of its own
/// configuration (`IsExemptAdmissionConfigurationResource`).
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
