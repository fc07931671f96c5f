//! [`BuildError`]: the error of [`Builder::build`].

#[cfg(doc)]
use super::Builder;

/// The error of [`Builder::build`].
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The store does not respond.
    #[error(transparent)]
    Store(#[from] listwatch_storage::StoreFault),
    /// The namespaces that every cluster has could not be created.
    #[error("cannot create the initial namespaces: {0}")]
    Namespaces(String),
    /// The value of [`Builder::strict_transport_security`] is not valid in a header.
    #[error("{0:?} is not valid in a header")]
    Header(String),
    /// The certificates of [`Builder::kubelet`] cannot be used.
    #[error("cannot use the certificates for kubelets: {0}")]
    Kubelet(String),
    /// The definitions of custom resources could not be read.
    #[error("cannot read the custom resource definitions: {0}")]
    Definitions(String),
    /// The addresses of stored services could not be claimed.
    #[error("cannot repair the cluster IPs: {0}")]
    Addresses(String),
    /// The flow schemas and priority levels could not be read.
    #[error("cannot prepare priority and fairness: {0}")]
    FlowControl(String),
    /// The default roles and bindings could not be created, or roles and bindings could not be read.
    #[error("cannot prepare RBAC: {0}")]
    Rbac(String),
    /// A configuration of [`Builder::mutating_webhook`] or [`Builder::validating_webhook`] cannot be used, or the
    /// stored configurations could not be read.
    #[error("cannot prepare the webhooks: {0}")]
    Webhooks(String),
    /// The stored admission policies could not be read.
    #[error("cannot prepare the admission policies: {0}")]
    Policies(String),
    /// The audit log could not be opened.
    #[error("cannot open the audit log: {0}")]
    Audit(String),
    /// The objects that the Node authorizer needs could not be read.
    #[error("cannot prepare the Node authorizer: {0}")]
    Nodes(String),
}
