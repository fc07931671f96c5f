//! Admission: plugins that change or reject writes after authorization and before the store.
//!
//! ```text
//!  decode ─▶ defaults ─▶ managed fields ─▶ mutating plugins ─▶ validate ─▶ allocate ─▶ validating plugins ─▶ store
//! ```
//!
//! Each built-in plugin is one file here. [`AdmissionChain`] also takes plugins of other crates.
//! The chain calls [`MutatingAdmission::handles`] for every write, and runs the plugin only if `handles` returns
//! true. `listwatch-write` calls the chain.
//! Built-in plugins have upstream's names (`kube-apiserver --enable-admission-plugins`):
//!
//! | plugin | file | stage |
//! |---|---|---|
//! | NamespaceLifecycle, NamespaceAutoProvision | in `listwatch-write` | before all others, the first also on delete |
//! | (definitions being deleted) | in `listwatch-write` | before all others |
//! | the others of kube-apiserver | one file each; `plugin_set.rs` has their order and defaults | both, also on delete |
//! | (authorization of writes that create) | `create_authorization.rs` | validating |
//! | (escalation checks of RBAC, with RBAC only) | `rbac_escalation.rs` | validating |
//! | (permission checks of ResourceClaims) | `resource_claims.rs` | validating |
//!
//! Plugins see POSTs to `pods/binding`, `pods/eviction` and `serviceaccounts/token` as creations of the subresource,
//! with the object that was posted. Plugins do not see the deletion that an eviction causes. Plugins see a review as a
//! creation, before its evaluation.
//!
//! A plugin may see one request twice. If a computation is too expensive for an I/O worker, the request restarts on
//! another thread. A plugin with an effect outside of the server and its store calls [`listwatch_meta::fuel::commit`]
//! before the effect, and ends if the result is false: the request restarts before the effect.
//!
//! The eviction subresource enforces disruption budgets.

#![forbid(unsafe_code)]

mod always;
mod always_pull_images;
mod amounts;
mod anti_affinity;
mod certificate_signers;
mod certificate_subject_restriction;
mod claim_resize;
mod configuration;
mod create_authorization;
mod default_class;
mod default_toleration_seconds;
mod details;
mod event_rate_limit;
mod extended_resource_toleration;
mod external_ips;
mod limit_ranger;
mod namespace_exists;
mod node_declared_features;
mod node_restriction;
mod node_taint;
mod owner_references;
mod plugin;
mod plugin_set;
mod pod_node_selector;
mod pod_resize;
mod pod_security;
mod pod_toleration_restriction;
mod pod_topology_labels;
mod priority;
mod rbac_escalation;
mod recorder;
mod reinvocation;
mod resource_claims;
pub mod resource_quota;
mod runtime_class;
mod service_account;
mod storage_in_use;
#[cfg(test)]
mod testing;
mod tolerations;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use listwatch_access::AuthorizerChain;
use listwatch_json::{Map, Value};
use listwatch_meta::{Status, UserInfo};

pub use self::configuration::{AdmissionConfiguration, InvalidConfiguration, LimitedResource};
pub use self::create_authorization::CreateAuthorization;
pub use self::default_toleration_seconds::TolerationSeconds;
pub use self::details::{KindName, PatchError, RequestDetails, ResourceName};
pub use self::event_rate_limit::EventLimit;
pub use self::node_restriction::NodeRestriction;
pub use self::plugin_set::{AdmissionPlugins, InvalidPlugins, PLUGINS, PluginInfo};
pub use self::pod_security::PodSecurityConfiguration;
pub use self::pod_toleration_restriction::TolerationRestriction;
pub use self::rbac_escalation::RbacEscalation;
pub use self::recorder::{ANNOTATION_BYTES_MAX, ANNOTATIONS_MAX, AdmissionRecorder};
pub use self::reinvocation::ReinvocationContext;
pub use self::resource_claims::ResourceClaimAuthorization;

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
    /// the options, which a plugin may change.
    Connect,
}

impl Operation {
    /// The name as upstream writes it, e.g. `CREATE`.
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// One write, as admission plugins see it (`admission.Attributes`).
#[derive(Clone, Copy)]
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
    pub old_object: Option<&'a Map>,
    /// A reader of other stored objects.
    pub objects: &'a dyn ObjectReader,
    /// Takes warnings for the client and annotations for the audit event.
    pub recorder: &'a AdmissionRecorder,
    /// The versions of the object, and the options of the request.
    pub details: &'a dyn RequestDetails,
    /// The state of the mutating pass; `None` outside of [`AdmissionChain::mutate`].
    pub reinvocation: Option<&'a ReinvocationContext>,
}

impl fmt::Debug for AdmissionRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AdmissionRequest { operation, group, resource, subresource, namespace, name, .. } = self;
        write!(f, "{operation:?} {group}/{resource}/{subresource:?} {namespace:?}/{name}")
    }
}

impl AdmissionRequest<'_> {
    /// Returns the 403 with which a plugin rejects the write of `object`. The message contains the object's name, or
    /// else its `generateName` (`admission.NewForbidden`).
    pub fn forbid(&self, object: &Map, why: impl fmt::Display) -> Status {
        let text = |member| listwatch_validation::text(listwatch_validation::metadata(object), member);
        let names = [text("name"), self.name, text("generateName"), "Unknown"];
        let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
        let resource = listwatch_meta::GroupResource { group: self.group, resource: self.resource };
        Status::forbidden(resource, name, why)
    }

    /// Reads one object with [`ObjectReader::get_cached`].
    pub(crate) async fn get_cached(
        &self,
        group: &str,
        resource: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<Map>, Status> {
        let json = self.objects.get_cached(group, "v1", resource, namespace, name).await?;
        json.map(|json| serde_json::from_slice(&json).map_err(Status::internal)).transpose()
    }

    /// Whether the stored object is being deleted.
    pub(crate) fn is_old_object_deleting(&self) -> bool {
        let is_set =
            |old| listwatch_validation::given(listwatch_validation::metadata(old), "deletionTimestamp").is_some();
        self.old_object.is_some_and(is_set)
    }

    /// Whether the request creates an object of this resource, and not a subresource.
    pub(crate) fn creates(&self, group: &str, resource: &str) -> bool {
        self.operation == Operation::Create
            && self.resource == resource
            && self.group == group
            && self.subresource.is_none()
    }

    /// Whether the request creates or updates an object of this resource, and not a subresource.
    pub(crate) fn writes(&self, group: &str, resource: &str) -> bool {
        matches!(self.operation, Operation::Create | Operation::Update)
            && self.resource == resource
            && self.group == group
            && self.subresource.is_none()
    }

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
    ) -> AdmissionFuture<'a, Option<Map>>;

    /// Reads the JSON of one object like [`ObjectReader::get`], but from the watch cache if the cache has it. The object may
    /// be older than the store's; an absent object is absent from the store. A resource that is not served has no objects.
    ///
    /// # Errors
    /// The error of the store.
    fn get_cached<'a>(
        &'a self,
        group: &'a str,
        version: &'a str,
        resource: &'a str,
        namespace: Option<&'a str>,
        name: &'a str,
    ) -> AdmissionFuture<'a, Option<Bytes>>;

    /// Lists the objects of one namespace, or of all namespaces with `None`, in the storage version. Reads the watch
    /// cache, which contains at least the creates and updates that this server has acknowledged. Returns at most
    /// `limit` objects, and none for a resource that is not served.
    ///
    /// # Errors
    /// The error of the cache.
    fn list<'a>(
        &'a self,
        group: &'a str,
        version: &'a str,
        resource: &'a str,
        namespace: Option<&'a str>,
        limit: usize,
    ) -> AdmissionFuture<'a, ListedObjects>;

    /// The plural names of the served resources of a kind, each with whether its objects have namespaces.
    fn resources_of_kind(&self, kind: KindName<'_>) -> Vec<(String, bool)>;

    /// Replaces the status of a ResourceQuota if the stored object still equals `old`. Returns whether it did. This is
    /// the only write of a plugin.
    ///
    /// # Errors
    /// The error of the store.
    fn swap_quota_status<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        old: &'a Map,
        status: Value,
    ) -> AdmissionFuture<'a, bool>;
}

/// The largest number of objects that a plugin reads to decide on one write, e.g. the quotas of a namespace. With more of
/// them, the write is rejected with 500.
pub const LISTED_MAX: usize = 1000;

/// Stored objects for a plugin.
#[derive(Debug, Default)]
pub struct ListedObjects {
    /// The objects as JSON, in the order of their keys.
    pub json: Vec<Bytes>,
    /// The number of objects beyond the limit.
    pub remaining: usize,
}

impl ListedObjects {
    /// Keeps only the objects whose JSON contains this text, such as the name of a rare member.
    pub(crate) fn with_text(mut self, text: &str) -> Self {
        let finder = memchr::memmem::Finder::new(text);
        self.json.retain(|json| finder.find(json).is_some());
        self
    }

    /// Parses all objects. `resource` is for the error.
    ///
    /// # Errors
    /// 500 if there are more objects than the limit, or if one cannot be read.
    pub fn all(self, resource: &str) -> Result<Vec<Map>, Status> {
        if self.remaining > 0 {
            return Err(Status::internal(format_args!("there are too many {resource} to enforce them")));
        }
        self.json.iter().map(|json| serde_json::from_slice(json).map_err(Status::internal)).collect()
    }
}

/// Several errors as `utilerrors.NewAggregate` prints them: `[a, b]`, each text once.
pub(crate) fn aggregate(problems: Vec<String>) -> Option<String> {
    let mut distinct: Vec<String> = Vec::new();
    for problem in problems {
        if !distinct.contains(&problem) {
            distinct.push(problem);
        }
    }
    match distinct.len() {
        0 | 1 => distinct.pop(),
        _ => Some(format!("[{}]", distinct.join(", "))),
    }
}

/// A plugin that may change objects (`admission.MutationInterface`).
///
/// The server may run the plugin several times for one request: if another write changes the object meanwhile, and once
/// more after a webhook has changed the object. The plugin must therefore be idempotent.
pub trait MutatingAdmission: Send + Sync {
    /// Returns the name of the plugin, as in `kube-apiserver --enable-admission-plugins`.
    fn name(&self) -> &str;

    /// Returns whether the plugin handles this write. The chain calls this method for every write, so implementations
    /// must be cheap and pure.
    fn handles(&self, request: &AdmissionRequest<'_>) -> bool;

    /// Changes the object, which is in the storage version and already has its defaults. On delete, the object is the
    /// stored one, and changes have no effect.
    fn admit<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a mut Map) -> AdmissionFuture<'a, ()>;
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
    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a Map) -> AdmissionFuture<'a, ()>;
}

/// The admission plugins of a server, in the order in which they run. The order depends only on the names. Plugins with
/// upstream's names are in upstream's order. Other plugins come after the built-in plugins, and before policies,
/// webhooks and ResourceQuota.
#[derive(Clone)]
pub struct AdmissionChain {
    mutating: Vec<Arc<dyn MutatingAdmission>>,
    validating: Vec<Arc<dyn ValidatingAdmission>>,
}

impl Default for AdmissionChain {
    /// Creates a chain of the default plugins that use no authorizer.
    fn default() -> Self {
        AdmissionChain::new(&AdmissionPlugins::default(), &AdmissionConfiguration::default(), None)
    }
}

impl fmt::Debug for AdmissionChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.mutating.iter().map(|plugin| plugin.name());
        f.debug_list().entries(names).entries(self.validating.iter().map(|plugin| plugin.name())).finish()
    }
}

/// Appends one plugin to both stages.
fn add_both<P: MutatingAdmission + ValidatingAdmission + 'static>(chain: &mut AdmissionChain, plugin: P) {
    let plugin = Arc::new(plugin);
    chain.add_mutating(Arc::clone(&plugin) as Arc<dyn MutatingAdmission>);
    chain.add_validating(plugin);
}

impl AdmissionChain {
    /// Creates a chain of the built-in plugins of a set. Without authorizers, the plugins that use them are omitted.
    pub fn new(
        plugins: &AdmissionPlugins,
        configuration: &AdmissionConfiguration,
        authorizers: Option<&AuthorizerChain>,
    ) -> Self {
        let mut chain = AdmissionChain { mutating: Vec::new(), validating: Vec::new() };
        for plugin in plugins.enabled() {
            chain.install(plugin.name, configuration, authorizers);
        }
        chain
    }

    /// Adds a built-in plugin. `listwatch-write` implements NamespaceLifecycle and NamespaceAutoProvision.
    /// Plugins whose feature gate is off are not implemented.
    fn install(&mut self, name: &str, configuration: &AdmissionConfiguration, authorizers: Option<&AuthorizerChain>) {
        match (name, authorizers) {
            ("NamespaceExists", _) => self.add_validating(Arc::new(namespace_exists::NamespaceExists)),
            ("LimitPodHardAntiAffinityTopology", _) => {
                self.add_validating(Arc::new(anti_affinity::LimitPodHardAntiAffinityTopology));
            }
            ("LimitRanger", _) => add_both(self, limit_ranger::LimitRanger),
            ("ServiceAccount", _) => add_both(self, service_account::ServiceAccount),
            ("NodeRestriction", Some(authorizers)) => add_both(self, NodeRestriction::new(authorizers.clone())),
            ("TaintNodesByCondition", _) => self.add_mutating(Arc::new(node_taint::TaintNodesByCondition)),
            ("AlwaysPullImages", _) => add_both(self, always_pull_images::AlwaysPullImages),
            ("PodSecurity", _) => {
                let plugin = pod_security::PodSecurity::new(configuration.pod_security.clone());
                self.add_validating(Arc::new(plugin));
            }
            ("PodNodeSelector", _) => {
                add_both(self, pod_node_selector::PodNodeSelector::new(configuration.node_selectors.clone()));
            }
            ("Priority", _) => add_both(self, priority::Priority),
            ("DefaultTolerationSeconds", _) => {
                let seconds = configuration.toleration_seconds;
                self.add_mutating(Arc::new(default_toleration_seconds::DefaultTolerationSeconds(seconds)));
            }
            ("PodTolerationRestriction", _) => {
                let restriction = configuration.tolerations.clone();
                add_both(self, pod_toleration_restriction::PodTolerationRestriction::new(restriction));
            }
            ("EventRateLimit", _) => {
                let plugin = event_rate_limit::EventRateLimit::new(configuration.event_limits.clone());
                self.add_validating(Arc::new(plugin));
            }
            ("OwnerReferencesPermissionEnforcement", Some(authorizers)) => {
                let plugin = owner_references::OwnerReferencesPermissionEnforcement::new(authorizers.clone());
                self.add_validating(Arc::new(plugin));
            }
            ("ExtendedResourceToleration", _) => {
                self.add_mutating(Arc::new(extended_resource_toleration::ExtendedResourceToleration));
            }
            ("DefaultStorageClass", _) => self.add_mutating(Arc::new(default_class::DefaultStorageClass)),
            ("StorageObjectInUseProtection", _) => {
                self.add_mutating(Arc::new(storage_in_use::StorageObjectInUseProtection));
            }
            ("PersistentVolumeClaimResize", _) => {
                self.add_validating(Arc::new(claim_resize::PersistentVolumeClaimResize))
            }
            ("RuntimeClass", _) => add_both(self, runtime_class::RuntimeClass),
            ("CertificateApproval", Some(authorizers)) => {
                self.add_validating(Arc::new(certificate_signers::CertificateApproval::new(authorizers.clone())));
            }
            ("CertificateSigning", Some(authorizers)) => {
                self.add_validating(Arc::new(certificate_signers::CertificateSigning::new(authorizers.clone())));
            }
            ("CertificateSubjectRestriction", _) => {
                self.add_validating(Arc::new(certificate_subject_restriction::CertificateSubjectRestriction));
            }
            ("DefaultIngressClass", _) => self.add_mutating(Arc::new(default_class::DefaultIngressClass)),
            ("DenyServiceExternalIPs", _) => self.add_validating(Arc::new(external_ips::DenyServiceExternalIps)),
            ("PodTopologyLabels", _) => self.add_mutating(Arc::new(pod_topology_labels::PodTopologyLabels)),
            ("NodeDeclaredFeatureValidator", _) => {
                self.add_validating(Arc::new(node_declared_features::NodeDeclaredFeatureValidator));
            }
            ("PodResizeValidator", _) => self.add_validating(Arc::new(pod_resize::PodResizeValidator)),
            ("ResourceQuota", _) => {
                let plugin = resource_quota::ResourceQuota::new(configuration.limited_resources.clone());
                self.add_validating(Arc::new(plugin));
            }
            ("AlwaysDeny", _) => add_both(self, always::AlwaysDeny),
            _ => {}
        }
    }

    /// Adds a mutating plugin, at the position that its name has in the order of plugins.
    pub fn add_mutating(&mut self, plugin: Arc<dyn MutatingAdmission>) {
        let position = plugin_set::position(plugin.name());
        let at = self.mutating.partition_point(|earlier| plugin_set::position(earlier.name()) <= position);
        self.mutating.insert(at, plugin);
    }

    /// Adds a validating plugin, at the position that its name has in the order of plugins.
    pub fn add_validating(&mut self, plugin: Arc<dyn ValidatingAdmission>) {
        let position = plugin_set::position(plugin.name());
        let at = self.validating.partition_point(|earlier| plugin_set::position(earlier.name()) <= position);
        self.validating.insert(at, plugin);
    }

    /// Runs each mutating plugin that handles the write, and once more if a plugin requests a second round
    /// ([`ReinvocationContext::request`]).
    ///
    /// # Errors
    /// The error of the first plugin that rejects the object.
    pub async fn mutate(&self, request: &AdmissionRequest<'_>, object: &mut Map) -> Result<(), Status> {
        let rounds = ReinvocationContext::default();
        let request = AdmissionRequest { reinvocation: Some(&rounds), ..*request };
        loop {
            for plugin in &self.mutating {
                if plugin.handles(&request) {
                    plugin.admit(&request, object).await?;
                }
            }
            if !rounds.begin_second_round() {
                return Ok(());
            }
        }
    }

    /// Runs each plugin that handles the deletion of an object: the mutating plugins, whose changes have no effect, then
    /// the validating plugins.
    ///
    /// # Errors
    /// The error of the first plugin that rejects the deletion.
    pub async fn admit_deletion(&self, request: &AdmissionRequest<'_>, object: &Map) -> Result<(), Status> {
        if self.mutating.iter().any(|plugin| plugin.handles(request)) {
            self.mutate(request, &mut object.clone()).await?;
        }
        self.validate(request, object).await
    }

    /// Runs each validating plugin that handles the write.
    ///
    /// # Errors
    /// The error of the first plugin that rejects the object.
    pub async fn validate(&self, request: &AdmissionRequest<'_>, object: &Map) -> Result<(), Status> {
        for plugin in &self.validating {
            if plugin.handles(request) {
                plugin.validate(request, object).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use listwatch_json::json;

    use super::*;
    use crate::details::NoDetails;

    struct NoObjects;

    impl ObjectReader for NoObjects {
        fn get<'a>(
            &'a self,
            _: &'a str,
            _: &'a str,
            _: &'a str,
            _: Option<&'a str>,
            _: &'a str,
        ) -> AdmissionFuture<'a, Option<Map>> {
            Box::pin(std::future::ready(Ok(None)))
        }

        fn get_cached<'a>(
            &'a self,
            _: &'a str,
            _: &'a str,
            _: &'a str,
            _: Option<&'a str>,
            _: &'a str,
        ) -> AdmissionFuture<'a, Option<Bytes>> {
            Box::pin(std::future::ready(Ok(None)))
        }

        fn list<'a>(
            &'a self,
            _: &'a str,
            _: &'a str,
            _: &'a str,
            _: Option<&'a str>,
            _: usize,
        ) -> AdmissionFuture<'a, ListedObjects> {
            Box::pin(std::future::ready(Ok(ListedObjects::default())))
        }

        fn resources_of_kind(&self, _: KindName<'_>) -> Vec<(String, bool)> {
            Vec::new()
        }

        fn swap_quota_status<'a>(&'a self, _: &'a str, _: &'a str, _: &'a Map, _: Value) -> AdmissionFuture<'a, bool> {
            Box::pin(std::future::ready(Ok(false)))
        }
    }

    /// Appends its name to a list of the object, and requests a second round in each round.
    struct Append(&'static str);

    static ROUNDS: Mutex<Vec<(&str, bool)>> = Mutex::new(Vec::new());

    impl MutatingAdmission for Append {
        fn name(&self) -> &str {
            self.0
        }

        fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
            request.operation != Operation::Connect
        }

        fn admit<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a mut Map) -> AdmissionFuture<'a, ()> {
            let rounds = request.reinvocation.expect("the chain sets it");
            ROUNDS.lock().unwrap().push((self.0, rounds.is_second_round()));
            rounds.request();
            object.insert(self.0.to_owned(), json!(rounds.is_second_round()));
            Box::pin(std::future::ready(Ok(())))
        }
    }

    #[tokio::test]
    async fn mutating_plugins_run_at_most_twice_and_never_change_a_deleted_object() {
        let mut chain = AdmissionChain::default();
        chain.add_mutating(Arc::new(Append("a")));
        chain.add_mutating(Arc::new(Append("b")));
        let (user, recorder) = (UserInfo::default(), AdmissionRecorder::default());
        let request = AdmissionRequest {
            operation: Operation::Create,
            group: "",
            version: "v1",
            resource: "configmaps",
            kind: "ConfigMap",
            subresource: None,
            namespace: Some("n"),
            name: "x",
            user: &user,
            dry_run: false,
            old_object: None,
            objects: &NoObjects,
            recorder: &recorder,
            details: &NoDetails::default(),
            reinvocation: None,
        };
        let mut object = Map::new();
        chain.mutate(&request, &mut object).await.unwrap();
        assert_eq!(Value::Object(object.clone()), json!({"a": true, "b": true}));
        let rounds = [("a", false), ("b", false), ("a", true), ("b", true)];
        assert_eq!(std::mem::take(&mut *ROUNDS.lock().unwrap()), rounds);
        let deletion = AdmissionRequest { operation: Operation::Delete, ..request };
        chain.admit_deletion(&deletion, &object).await.unwrap();
        assert_eq!(std::mem::take(&mut *ROUNDS.lock().unwrap()), rounds);
        let connect = AdmissionRequest { operation: Operation::Connect, ..request };
        chain.admit_deletion(&connect, &object).await.unwrap();
        assert!(ROUNDS.lock().unwrap().is_empty(), "no plugin handles it");
    }
}
