//! [`Subresource`]: the subresources of kinds as one table of names, kinds of bodies and verbs.
//!
//! Discovery, OpenAPI and routing read this table. [`crate::WriteScope`] lists the fields that a write to a subresource
//! can change.
//!
//! Source: the storage maps in `pkg/registry/*/rest/storage_*.go` of Kubernetes v1.36.

use std::borrow::Cow;

/// A subresource of a served resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subresource {
    /// `/status`: writes only the status.
    Status,
    /// `/scale`: an `autoscaling/v1` Scale mapped onto the object by JSON paths (dotted, no leading dot).
    Scale {
        /// The path of the desired replicas, e.g. `spec.replicas`.
        spec_replicas: Cow<'static, str>,
        /// The path of the observed replicas, e.g. `status.replicas`.
        status_replicas: Cow<'static, str>,
        /// The path of the label selector: a string in custom resources, a LabelSelector in built-in kinds.
        selector: Option<Cow<'static, str>>,
    },
    /// `/finalize` of namespaces: writes only `spec.finalizers`.
    Finalize,
    /// `/binding` of pods: sets `spec.nodeName`.
    Binding,
    /// `/eviction` of pods: deletes the pod.
    Eviction,
    /// `/ephemeralcontainers` of pods: adds ephemeral containers.
    EphemeralContainers,
    /// `/resize` of pods: writes only the resources of containers.
    Resize,
    /// `/approval` of certificate signing requests: writes the conditions `Approved` and `Denied`.
    Approval,
    /// `/token` of service accounts: issues a token.
    Token,
    /// `/log` of pods: returns the log from the kubelet of the pod's node.
    Log,
    /// `/attach` of pods: a stream to the kubelet of the pod's node.
    Attach,
    /// `/exec` of pods: a stream to the kubelet of the pod's node.
    Exec,
    /// `/portforward` of pods: a stream to the kubelet of the pod's node.
    PortForward,
    /// `/proxy` of nodes, pods and services: forwards requests with the rest of the path to them.
    Proxy {
        /// The kind of the options, e.g. `PodProxyOptions`.
        options: &'static str,
    },
}

/// The kind of the bodies of a subresource, if it is not the kind of the resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignKind {
    /// The API group; `""` for core.
    pub group: &'static str,
    /// The version.
    pub version: &'static str,
    /// The kind.
    pub kind: &'static str,
}

/// One row of the table.
struct Row {
    name: &'static str,
    kind: Option<ForeignKind>,
    /// The verbs, sorted as in discovery.
    verbs: &'static [&'static str],
}

impl Subresource {
    /// `/scale` of a built-in kind, with the path of its label selector.
    pub(crate) const fn scale(selector: &'static str) -> Self {
        Subresource::Scale {
            spec_replicas: Cow::Borrowed("spec.replicas"),
            status_replicas: Cow::Borrowed("status.replicas"),
            selector: Some(Cow::Borrowed(selector)),
        }
    }

    fn row(&self) -> Row {
        const READ_WRITE: &[&str] = &["get", "patch", "update"];
        const POST: &[&str] = &["create"];
        const STREAM: &[&str] = &["create", "get"];
        const EVERYTHING: &[&str] = &["create", "delete", "get", "patch", "update"];
        const fn foreign(group: &'static str, kind: &'static str) -> Option<ForeignKind> {
            Some(ForeignKind { group, version: "v1", kind })
        }
        let (name, kind, verbs) = match self {
            Subresource::Status => ("status", None, READ_WRITE),
            Subresource::Scale { .. } => ("scale", foreign("autoscaling", "Scale"), READ_WRITE),
            Subresource::Finalize => ("finalize", None, &["update"][..]),
            Subresource::Binding => ("binding", foreign("", "Binding"), POST),
            Subresource::Eviction => ("eviction", foreign("policy", "Eviction"), POST),
            Subresource::EphemeralContainers => ("ephemeralcontainers", None, READ_WRITE),
            Subresource::Resize => ("resize", None, READ_WRITE),
            Subresource::Approval => ("approval", None, READ_WRITE),
            Subresource::Token => ("token", foreign("authentication.k8s.io", "TokenRequest"), POST),
            Subresource::Log => ("log", None, &["get"][..]),
            Subresource::Attach => ("attach", foreign("", "PodAttachOptions"), STREAM),
            Subresource::Exec => ("exec", foreign("", "PodExecOptions"), STREAM),
            Subresource::PortForward => ("portforward", foreign("", "PodPortForwardOptions"), STREAM),
            Subresource::Proxy { options } => ("proxy", foreign("", options), EVERYTHING),
        };
        Row { name, kind, verbs }
    }

    /// The name of the subresource, which is the last segment of the path.
    pub fn name(&self) -> &'static str {
        self.row().name
    }

    /// The kind of the request and response bodies; `None` if it is the kind of the resource.
    pub fn kind(&self) -> Option<ForeignKind> {
        self.row().kind
    }

    /// Whether the server forwards requests to a kubelet, pod or service.
    pub fn is_connect(&self) -> bool {
        use Subresource::{Attach, Exec, Log, PortForward, Proxy};
        matches!(self, Log | Attach | Exec | PortForward | Proxy { .. })
    }

    /// The verbs, sorted as discovery shows them.
    pub fn verbs(&self) -> &'static [&'static str] {
        self.row().verbs
    }

    /// Whether a request can have a path after the name of the subresource.
    pub fn takes_path(&self) -> bool {
        matches!(self, Subresource::Proxy { .. })
    }
}
