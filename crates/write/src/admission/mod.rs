//! Admission: plugins that change or reject writes after authorization and before the store.
//!
//! ```text
//!  decode ─▶ defaults ─▶ managed fields ─▶ mutating plugins ─▶ validate ─▶ allocate ─▶ validating plugins ─▶ store
//! ```
//!
//! Each built-in plugin is one file here. [`AdmissionChain`] also takes plugins of other crates.
//! The chain calls [`MutatingAdmission::handles`] for every write, and runs the plugin only if `handles` returns
//! true.
//! Built-in plugins have upstream's names (`kube-apiserver --enable-admission-plugins`):
//!
//! | plugin | file | stage |
//! |---|---|---|
//! | NamespaceLifecycle | `namespace_lifecycle.rs` | before all others, also on delete |
//! | (definitions being deleted) | `definition_lifecycle.rs` | before all others |
//! | Priority | `priority.rs` | mutating |
//! | CertificateSubjectRestriction | `certificate_subject_restriction.rs` | validating |
//! | NodeRestriction (off by default) | `node_restriction/` | mutating; validating on delete |
//! | (escalation checks of RBAC, with RBAC only) | `rbac_escalation.rs` | validating |
//!
//! Plugins see POSTs to `pods/binding`, `pods/eviction` and `serviceaccounts/token` as creations of the subresource, with
//! the object that was posted. They also see the deletion that an eviction causes.
//!
//! A plugin may see one request twice. If a computation is too expensive for an I/O worker, the request restarts on
//! another thread.
//!
//! DefaultTolerationSeconds is part of the defaults of pods, and the eviction subresource enforces disruption
//! budgets.

mod certificate_subject_restriction;
pub(super) mod definition_lifecycle;
pub(super) mod namespace_lifecycle;
mod node_restriction;
mod objects;
mod priority;
mod rbac_escalation;

pub use self::namespace_lifecycle::NAMESPACE_RECHECK;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use listwatch_meta::{Status, UserInfo};
use serde_json::{Map, Value};

pub use self::node_restriction::NodeRestriction;
pub use self::rbac_escalation::RbacEscalation;

/// The future that an admission plugin returns.
pub type AdmissionFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send + 'a>>;

/// The operation of a write (`admission.Operation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// The write creates an object.
    Create,
    /// The write replaces an object.
    Update,
    /// The write deletes an object.
    Delete,
    /// The request connects to a pod, a node or a service: `exec`, `attach`, `portforward` and `proxy`. The object holds
    /// the options. A plugin may reject them and must not change them.
    Connect,
}

/// One write, as admission plugins see it (`admission.Attributes`).
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct AdmissionRequest<'a> {
    /// The operation of the write.
    pub operation: Operation,
    /// The API group of the resource in the path; `""` for the core group.
    pub group: &'a str,
    /// The API version in the path, e.g. `v1`.
    pub version: &'a str,
    /// The plural name of the resource in the path, e.g. `pods`.
    pub resource: &'a str,
    /// The kind of the object, e.g. `Pod`.
    pub kind: &'a str,
    /// The subresource, e.g. `status`; `None` for the object itself.
    pub subresource: Option<&'a str>,
    /// The namespace of the object; `None` for cluster-scoped objects.
    pub namespace: Option<&'a str>,
    /// The name of the object; empty if the server generates the name later.
    pub name: &'a str,
    /// The user who sends the request.
    pub user: &'a UserInfo,
    /// Whether the request is a dry run, which stores nothing.
    pub dry_run: bool,
    /// The stored object before an update or a delete, in the storage version; `None` on create.
    pub old_object: Option<&'a Map<String, Value>>,
    /// A reader of other stored objects.
    pub objects: &'a dyn ObjectReader,
}

impl fmt::Debug for AdmissionRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AdmissionRequest { operation, group, resource, subresource, namespace, name, .. } = self;
        write!(f, "{operation:?} {group}/{resource}/{subresource:?} {namespace:?}/{name}")
    }
}

impl AdmissionRequest<'_> {
    /// Returns the 403 with which a plugin rejects the write.
    pub fn forbidden(&self, why: impl fmt::Display) -> Status {
        let resource = listwatch_meta::GroupResource { group: self.group, resource: self.resource };
        Status::forbidden(resource, self.name, why)
    }
}

/// Reads stored objects for admission plugins.
pub trait ObjectReader: Send + Sync {
    /// Reads one object in the storage version. Returns `None` if the object does not exist.
    ///
    /// # Errors
    /// 404 for a resource that is not served; otherwise the error of the store.
    fn get<'a>(
        &'a self,
        group: &'a str,
        version: &'a str,
        resource: &'a str,
        namespace: Option<&'a str>,
        name: &'a str,
    ) -> AdmissionFuture<'a, Option<Map<String, Value>>>;
}

/// A plugin that may change objects (`admission.MutationInterface`).
///
/// The server may run the plugin several times for one request, if another write changes the object meanwhile.
pub trait MutatingAdmission: Send + Sync {
    /// Returns the name of the plugin, as in `kube-apiserver --enable-admission-plugins`.
    fn name(&self) -> &str;

    /// Returns whether the plugin handles this write. The chain calls this method for every write, so implementations
    /// must be cheap and pure.
    fn handles(&self, request: &AdmissionRequest<'_>) -> bool;

    /// Changes the object, which is in the storage version and already has its defaults.
    fn admit<'a>(
        &'a self,
        request: &'a AdmissionRequest<'_>,
        object: &'a mut Map<String, Value>,
    ) -> AdmissionFuture<'a, ()>;
}

/// A plugin that may reject objects (`admission.ValidationInterface`).
///
/// The server may run the plugin several times for one request, if another write changes the object meanwhile.
pub trait ValidatingAdmission: Send + Sync {
    /// Returns the name of the plugin, as in `kube-apiserver --enable-admission-plugins`.
    fn name(&self) -> &str;

    /// Returns whether the plugin handles this write. The chain calls this method for every write, so implementations
    /// must be cheap and pure.
    fn handles(&self, request: &AdmissionRequest<'_>) -> bool;

    /// Validates the object; an error rejects the write. On create and update, the object is valid and final. On
    /// delete, the object is the stored one.
    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'_>,
        object: &'a Map<String, Value>,
    ) -> AdmissionFuture<'a, ()>;
}

/// The admission plugins of a server, in the order in which they run.
#[derive(Clone)]
pub struct AdmissionChain {
    mutating: Vec<Arc<dyn MutatingAdmission>>,
    validating: Vec<Arc<dyn ValidatingAdmission>>,
}

impl Default for AdmissionChain {
    fn default() -> Self {
        AdmissionChain {
            mutating: vec![Arc::new(priority::Priority)],
            validating: vec![Arc::new(certificate_subject_restriction::CertificateSubjectRestriction)],
        }
    }
}

impl fmt::Debug for AdmissionChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.mutating.iter().map(|plugin| plugin.name());
        f.debug_list().entries(names).entries(self.validating.iter().map(|plugin| plugin.name())).finish()
    }
}

impl AdmissionChain {
    /// Appends a mutating plugin to the chain.
    pub fn add_mutating(&mut self, plugin: Arc<dyn MutatingAdmission>) {
        self.mutating.push(plugin);
    }

    /// Appends a validating plugin to the chain.
    pub fn add_validating(&mut self, plugin: Arc<dyn ValidatingAdmission>) {
        self.validating.push(plugin);
    }

    /// Runs each mutating plugin that handles the write.
    ///
    /// # Errors
    /// The error of the first plugin that rejects the object.
    pub(super) async fn mutate(
        &self,
        request: &AdmissionRequest<'_>,
        object: &mut Map<String, Value>,
    ) -> Result<(), Status> {
        for plugin in &self.mutating {
            if plugin.handles(request) {
                plugin.admit(request, object).await?;
            }
        }
        Ok(())
    }

    /// Runs each validating plugin that handles the write.
    ///
    /// # Errors
    /// The error of the first plugin that rejects the object.
    pub(super) async fn validate(
        &self,
        request: &AdmissionRequest<'_>,
        object: &Map<String, Value>,
    ) -> Result<(), Status> {
        for plugin in &self.validating {
            if plugin.handles(request) {
                plugin.validate(request, object).await?;
            }
        }
        Ok(())
    }
}
