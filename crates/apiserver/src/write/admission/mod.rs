//! Admission: plugins that change or reject writes after authorization and before the store.
//!
//! ```text
//!  decode ─▶ defaults ─▶ managed fields ─▶ mutating plugins ─▶ validate ─▶ allocate ─▶ validating plugins ─▶ store
//! ```
//!
//! A plugin is one file here (or outside this crate) and is added by
//! [`Builder`](crate::Builder). It names the requests that it handles; other writes cost it one
//! call of [`MutatingAdmission::handles`]. Built-in plugins have upstream's names
//! (`kube-apiserver --enable-admission-plugins`):
//!
//! | plugin | file | stage |
//! |---|---|---|
//! | NamespaceLifecycle | `namespace_lifecycle.rs` | before all others, also on delete |
//! | (definitions being deleted) | `definition_lifecycle.rs` | before all others |
//! | Priority | `priority.rs` | mutating |
//! | CertificateSubjectRestriction | `certificate_subject_restriction.rs` | validating |
//!
//! Not asked for: POSTs of `pods/binding`, `pods/eviction` and `serviceaccounts/token`, which create no object of the
//! resource; the deletion that an eviction makes is. A request whose computation is too expensive for an I/O worker
//! begins again on another thread: a plugin may see it twice.
//!
//! DefaultTolerationSeconds is part of the defaults of pods, and the eviction subresource enforces disruption
//! budgets.

mod certificate_subject_restriction;
pub(super) mod definition_lifecycle;
pub(super) mod namespace_lifecycle;
mod objects;
mod priority;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use listwatch_meta::{Status, UserInfo};
use serde_json::{Map, Value};

/// The future of an admission plugin.
pub type AdmissionFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send + 'a>>;

/// What a write does to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// The object is new.
    Create,
    /// The object replaces another one.
    Update,
    /// The object is deleted.
    Delete,
}

/// One write, as admission plugins see it (`admission.Attributes`).
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct AdmissionRequest<'a> {
    /// What the write does.
    pub operation: Operation,
    /// The API group of the resource in the path; `""` for core.
    pub group: &'a str,
    /// The version in the path.
    pub version: &'a str,
    /// The plural in the path, e.g. `pods`.
    pub resource: &'a str,
    /// The kind of the object.
    pub kind: &'a str,
    /// The subresource, e.g. `status`.
    pub subresource: Option<&'a str>,
    /// The namespace of the object.
    pub namespace: Option<&'a str>,
    /// The name; empty where it is generated later.
    pub name: &'a str,
    /// The user who writes.
    pub user: &'a UserInfo,
    /// Whether nothing will be stored.
    pub dry_run: bool,
    /// The object that is replaced or deleted, in the stored version.
    pub old_object: Option<&'a Map<String, Value>>,
    /// Reads other objects.
    pub objects: &'a dyn ObjectReader,
}

impl fmt::Debug for AdmissionRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AdmissionRequest { operation, group, resource, subresource, namespace, name, .. } = self;
        write!(f, "{operation:?} {group}/{resource}/{subresource:?} {namespace:?}/{name}")
    }
}

impl AdmissionRequest<'_> {
    /// The 403 of a plugin that rejects the write.
    pub fn forbidden(&self, why: impl fmt::Display) -> Status {
        let resource = listwatch_meta::GroupResource { group: self.group, resource: self.resource };
        Status::forbidden(resource, self.name, why)
    }
}

/// Reads stored objects for plugins.
pub trait ObjectReader: Send + Sync {
    /// The object at a path, in the version in which it is stored. `None` where there is none.
    ///
    /// # Errors
    /// What the store says, and 404 for a resource that is not served.
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
/// It may run several times for one request, when the object changed meanwhile.
pub trait MutatingAdmission: Send + Sync {
    /// The name, as upstream spells those of `--enable-admission-plugins`.
    fn name(&self) -> &str;

    /// Whether the plugin handles this write. Called for every write: cheap and pure.
    fn handles(&self, request: &AdmissionRequest<'_>) -> bool;

    /// Changes the object, which is in the stored version and has its defaults.
    fn admit<'a>(
        &'a self,
        request: &'a AdmissionRequest<'_>,
        object: &'a mut Map<String, Value>,
    ) -> AdmissionFuture<'a, ()>;
}

/// A plugin that may reject objects (`admission.ValidationInterface`).
///
/// It may run several times for one request, when the object changed meanwhile.
pub trait ValidatingAdmission: Send + Sync {
    /// The name, as upstream spells those of `--enable-admission-plugins`.
    fn name(&self) -> &str;

    /// Whether the plugin handles this write. Called for every write: cheap and pure.
    fn handles(&self, request: &AdmissionRequest<'_>) -> bool;

    /// Rejects the object with an error. The object is valid and as it would be stored; of a delete it is the
    /// stored object.
    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'_>,
        object: &'a Map<String, Value>,
    ) -> AdmissionFuture<'a, ()>;
}

/// The plugins of a server, in the order in which they run.
#[derive(Clone)]
pub(crate) struct AdmissionChain {
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
    /// Adds a plugin behind the others of its stage.
    pub(crate) fn add_mutating(&mut self, plugin: Arc<dyn MutatingAdmission>) {
        self.mutating.push(plugin);
    }

    /// Adds a plugin behind the others of its stage.
    pub(crate) fn add_validating(&mut self, plugin: Arc<dyn ValidatingAdmission>) {
        self.validating.push(plugin);
    }

    /// Runs the mutating plugins that handle the write.
    ///
    /// # Errors
    /// That of the first plugin that rejects the object.
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

    /// Runs the validating plugins that handle the write.
    ///
    /// # Errors
    /// That of the first plugin that rejects the object.
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

    /// Whether a validating plugin handles the write.
    pub(super) fn validates(&self, request: &AdmissionRequest<'_>) -> bool {
        self.validating.iter().any(|plugin| plugin.handles(request))
    }
}
