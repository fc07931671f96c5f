//! The subresources that kinds have, as one table: what each is called, which kind it takes and
//! answers, and which verbs it has.
//!
//! Discovery, OpenAPI and routing are read off this table; which parts of an object a write to a
//! subresource reaches is in [`crate::WriteScope`].

use std::borrow::Cow;

/// A subresource of a served resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subresource {
    /// `/status`: writes only the status.
    Status,
    /// `/scale`: an `autoscaling/v1` Scale mapped onto the object by JSON paths (dotted, no leading dot).
    Scale {
        /// Where the wanted replicas are, e.g. `spec.replicas`.
        spec_replicas: Cow<'static, str>,
        /// Where the observed replicas are, e.g. `status.replicas`.
        status_replicas: Cow<'static, str>,
        /// Where the label selector is: a text for custom resources, a LabelSelector for built-ins.
        selector: Option<Cow<'static, str>>,
    },
    /// `/finalize` of namespaces: writes only `spec.finalizers`.
    Finalize,
    /// `/binding` of pods: sets `spec.nodeName`.
    Binding,
    /// `/eviction` of pods: deletes the pod.
    Eviction,
    /// `/ephemeralcontainers` of pods.
    EphemeralContainers,
    /// `/resize` of pods: writes only what containers ask for and may use.
    Resize,
    /// `/approval` of certificate signing requests.
    Approval,
    /// `/token` of service accounts: issues one.
    Token,
    /// `/log` of pods: what the kubelet of the pod's node has.
    Log,
    /// `/attach` of pods: a stream to the kubelet of the pod's node.
    Attach,
    /// `/exec` of pods: a stream to the kubelet of the pod's node.
    Exec,
    /// `/portforward` of pods: a stream to the kubelet of the pod's node.
    PortForward,
    /// `/proxy` of nodes, pods and services: requests passed on to them, with the path behind it.
    Proxy {
        /// The kind of its options, e.g. `PodProxyOptions`.
        options: &'static str,
    },
}

/// How a subresource is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The object, or another view of it, is read and written.
    Object,
    /// A body of a kind of its own is posted, and something comes of it.
    Posted,
    /// The request is passed on to somebody who is no part of this server.
    Connected,
}

/// Group, version and kind of what a subresource takes and answers, where that is not the kind of its
/// resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignKind {
    /// The API group; `""` for core.
    pub group: &'static str,
    /// The version.
    pub version: &'static str,
    /// The kind.
    pub kind: &'static str,
}

/// One line of the table.
struct Row {
    name: &'static str,
    kind: Option<ForeignKind>,
    way: Way,
    /// Sorted, as discovery shows them.
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
        use Way::{Connected, Object, Posted};
        const READ_WRITE: &[&str] = &["get", "patch", "update"];
        const POST: &[&str] = &["create"];
        const STREAM: &[&str] = &["create", "get"];
        const EVERYTHING: &[&str] = &["create", "delete", "get", "patch", "update"];
        const fn foreign(group: &'static str, kind: &'static str) -> Option<ForeignKind> {
            Some(ForeignKind { group, version: "v1", kind })
        }
        let (name, kind, way, verbs) = match self {
            Subresource::Status => ("status", None, Object, READ_WRITE),
            Subresource::Scale { .. } => ("scale", foreign("autoscaling", "Scale"), Object, READ_WRITE),
            Subresource::Finalize => ("finalize", None, Object, &["update"][..]),
            Subresource::Binding => ("binding", foreign("", "Binding"), Posted, POST),
            Subresource::Eviction => ("eviction", foreign("policy", "Eviction"), Posted, POST),
            Subresource::EphemeralContainers => ("ephemeralcontainers", None, Object, READ_WRITE),
            Subresource::Resize => ("resize", None, Object, READ_WRITE),
            Subresource::Approval => ("approval", None, Object, READ_WRITE),
            Subresource::Token => ("token", foreign("authentication.k8s.io", "TokenRequest"), Posted, POST),
            Subresource::Log => ("log", None, Connected, &["get"][..]),
            Subresource::Attach => ("attach", foreign("", "PodAttachOptions"), Connected, STREAM),
            Subresource::Exec => ("exec", foreign("", "PodExecOptions"), Connected, STREAM),
            Subresource::PortForward => ("portforward", foreign("", "PodPortForwardOptions"), Connected, STREAM),
            Subresource::Proxy { options } => ("proxy", foreign("", options), Connected, EVERYTHING),
        };
        Row { name, kind, way, verbs }
    }

    /// The path element.
    pub fn name(&self) -> &'static str {
        self.row().name
    }

    /// What it takes and answers; `None` for the kind of its resource.
    pub fn kind(&self) -> Option<ForeignKind> {
        self.row().kind
    }

    /// How it is spoken to.
    pub fn way(&self) -> Way {
        self.row().way
    }

    /// Its verbs, sorted as discovery shows them.
    pub fn verbs(&self) -> &'static [&'static str] {
        self.row().verbs
    }

    /// May the path go on behind it?
    pub fn takes_path(&self) -> bool {
        matches!(self, Subresource::Proxy { .. })
    }
}
