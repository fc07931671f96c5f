//! [`Writer`]: handles the writes of clients and controllers.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use listwatch_access::{AuthenticatorChain, AuthorizerChain};
use listwatch_admission::{AdmissionChain, AdmissionPlugins, AdmissionRequest, Operation};
use listwatch_cacher::{ReadError, UndecodableValue};
use listwatch_json::{Map, Value};
use listwatch_meta::{Key, KeyRange, ReadAt, Revision, Status, UserInfo};
use listwatch_registry::{Backend, Registry, Resource, Subresource};
use listwatch_storage::{Decision, KeyValue, ListQuery, unreadable_reason};
use listwatch_validation::clock::Clock;
use listwatch_wire::query::Query;

use crate::action::Action;
use crate::address_repair::{AddressPlan, AddressReading, AddressRepair, AddressRepairOutcome, ServiceName};
use crate::admission::{StoredObjects, is_read_from_cache};
use crate::cleanups::Cleanups;
use crate::decode_error::DecodeErrorStyle;
use crate::expected::Expected;
use crate::node_ports::{NodePortRepair, NodePorts};
use crate::options::{self, Propagation};
use crate::pipeline::{ManagedFields, Write};
use crate::recent::RecentObjects;
use crate::request::{WriteBody, WriteContext, WriteRequest, WriteResponse, WriteVerb};
use crate::request_details::Details;
use crate::service_cidrs::ServiceCidrs;
use crate::service_ranges::ServiceRanges;
use crate::unenforced::{self, Enforced};
use crate::version_conversions::VersionConversions;
use crate::{binding, create, delete, evict, reviews, scale, store, token, update};

/// The page size of [`check_readable`], in objects.
const CHECK_PAGE_ITEMS: usize = 500;
/// The maximum number of values in an error of [`check_readable`].
const UNREADABLE_NAMED_MAX: usize = 100;

/// A request that connects to a pod, a node or a service.
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest<'a> {
    /// The resource in the path.
    pub resource: &'a Resource,
    /// The subresource in the path, e.g. `exec`.
    pub subresource: &'a str,
    /// The namespace in the path.
    pub namespace: Option<&'a str>,
    /// The name in the path.
    pub name: &'a str,
    /// The user who sends the request.
    pub user: &'a UserInfo,
    /// The options of the request, e.g. a `PodExecOptions`.
    pub options: &'a Map,
}

/// Writes objects for one server, on behalf of clients and of controllers.
///
/// A write of a CustomResourceDefinition waits until the server serves the definition, so that the client can use the
/// custom resource after the response. The controller `listwatch_controllers::definitions` ends that wait. Without this
/// controller, each such write takes three seconds longer.
#[derive(Debug)]
pub struct Writer {
    backend: Arc<Backend>,
    admission: AdmissionChain,
    ranges: ServiceRanges,
    service_cidrs: Arc<ServiceCidrs>,
    node_ports: Arc<NodePorts>,
    cleanups: Cleanups,
    enforced: Enforced,
    /// The trees of recently written objects.
    recent: RecentObjects,
}

impl Writer {
    /// Creates a writer for the state of a server, with these admission plugins.
    pub fn new(backend: Arc<Backend>, admission: AdmissionChain) -> Self {
        let ranges = ServiceRanges::default();
        Writer {
            backend,
            admission,
            service_cidrs: Arc::new(ServiceCidrs::new(&ranges)),
            ranges,
            node_ports: Arc::default(),
            cleanups: Cleanups::default(),
            enforced: Enforced::default(),
            recent: RecentObjects::default(),
        }
    }

    /// Sets the ranges from which addresses and node ports of services are allocated. All servers on one store must use
    /// the same ranges.
    #[must_use]
    pub fn with_service_ranges(mut self, ranges: ServiceRanges) -> Self {
        self.service_cidrs = Arc::new(ServiceCidrs::new(&ranges));
        self.ranges = ranges;
        self
    }

    /// Completes the deletions of services whose requests were dropped. Their addresses, node ports and Endpoints would
    /// otherwise remain. Call this method in one task for the life of the server. After the task was aborted,
    /// [`Writer::finish_cleanups`] completes the rest.
    pub async fn run_cleanups(&self) -> Infallible {
        self.cleanups.run().await
    }

    /// Completes the deletions of services whose requests were dropped, and returns when none is left. Call this method
    /// during the shutdown, after the last request.
    pub async fn finish_cleanups(&self) {
        self.cleanups.finish().await;
    }

    #[cfg(test)]
    pub(crate) fn recent(&self) -> &RecentObjects {
        &self.recent
    }

    /// Drops trees of objects that were not written for 30 s, at most 32. Returns whether there may be more. A write keeps
    /// the tree of its object for the next write, and drops old trees. Call this method periodically: without further
    /// writes, nothing else drops the trees.
    pub fn drop_recent_objects(&self) -> bool {
        self.recent.drop_old()
    }

    /// Sets whether this server enforces roles and bindings. If false, writes of these objects return a warning.
    #[must_use]
    pub fn with_enforced_rbac(mut self, enforces_rbac: bool) -> Self {
        self.enforced.rbac = enforces_rbac;
        self
    }

    /// Sets whether this server enforces flow schemas and priority levels. If false, writes of these objects return a
    /// warning.
    #[must_use]
    pub fn with_enforced_flow_control(mut self, enforces_flow_control: bool) -> Self {
        self.enforced.flow_control = enforces_flow_control;
        self
    }

    /// Sets the enabled admission plugins of this server. If a plugin is disabled, writes of the objects that the
    /// plugin would enforce return a warning.
    #[must_use]
    pub fn with_enforced_plugins(mut self, plugins: AdmissionPlugins) -> Self {
        self.enforced.plugins = plugins;
        self
    }

    /// Returns the ranges of the flags, from which addresses and node ports of services are allocated.
    pub fn service_ranges(&self) -> &ServiceRanges {
        &self.ranges
    }

    /// Returns the ranges of cluster addresses, which include those of stored ServiceCIDRs.
    pub fn service_cidrs(&self) -> &Arc<ServiceCidrs> {
        &self.service_cidrs
    }

    /// Returns the server state that this writer uses.
    pub fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }

    /// Handles the write of a client, without a deadline.
    ///
    /// # Errors
    /// The [`Status`] for the client.
    pub async fn write(&self, request: WriteRequest<'_>) -> Result<WriteResponse, Status> {
        let context = WriteContext::default();
        let mut written = self.write_in(request, &context).await?;
        written.warnings.extend(context.recorder.take_warnings());
        Ok(written)
    }

    /// Handles the write of a client with a context. The recorder of the context collects the warnings of admission
    /// plugins.
    ///
    /// # Errors
    /// The [`Status`] for the client.
    pub async fn write_in(&self, request: WriteRequest<'_>, context: &WriteContext) -> Result<WriteResponse, Status> {
        let verb = request.verb;
        let mut written = match self.write_at(&request, &Clock::default(), context).await {
            Err(status) if self.is_namespace_provided(&request, &status).await? => {
                self.write_at(&request, &Clock::default(), context).await?
            }
            written => written?,
        };
        written.warnings.extend(unenforced::warning(&request, &written.body, self.enforced));
        if matches!(verb, WriteVerb::Create | WriteVerb::Update | WriteVerb::Patch)
            && is_read_from_cache(request.resource)
            && let WriteBody::Object(object) = &written.body
            && let Some(cacher) = self.backend.running_cacher(request.resource.stored())
        {
            // The next write must be decided by this object. A cache that lags behind for long does not fail the write.
            let _ = cacher.get(object.key(), ReadAt::NotOlderThan(object.revision())).await;
        }
        // A deleted definition may disappear before its conditions are written.
        if self.backend.definitions().is_resource(request.resource)
            && matches!(verb, WriteVerb::Create | WriteVerb::Update | WriteVerb::Patch)
            && let WriteBody::Object(object) = &written.body
        {
            // The server must serve the custom resource before the client receives the answer.
            self.backend.definitions().has_applied(object.name(), object.revision()).await;
        }
        Ok(written)
    }

    /// Handles a write as [`Writer::write`] does, with times and ids from `clock`.
    pub(crate) async fn write_at(
        &self,
        request: &WriteRequest<'_>,
        clock: &Clock,
        context: &WriteContext,
    ) -> Result<WriteResponse, Status> {
        let resource = &**request.resource;
        let find = |name| resource.subresource(name).ok_or_else(Status::no_such_resource);
        let subresource = request.subresource.map(find).transpose()?;
        let registry = self.backend.registry();
        let manager = options::field_manager(request.query, request.user_agent);
        let conversions = resource.converts_by_webhook().then(|| VersionConversions::new(context.deadline));
        let write = Write {
            conversions: conversions.as_ref(),
            query: Some(request.query),
            subresource,
            namespace: request.namespace,
            name: request.name.unwrap_or_default(),
            verb: request.verb.as_str(),
            path_name: request.name.unwrap_or_default(),
            manager: &manager,
            ..self.begin(&registry, resource, request.user, clock, context)
        };
        action(request.verb, resource, subresource)?.carry_out(&write, request).await
    }

    /// Creates the missing namespace of a rejected creation, if the plugin NamespaceAutoProvision is enabled
    /// (`plugin/pkg/admission/namespace/autoprovision`). Returns whether the namespace exists afterwards. A dry run
    /// creates no namespace.
    ///
    /// # Errors
    /// 403 with the reason why the namespace cannot be created.
    async fn is_namespace_provided(&self, request: &WriteRequest<'_>, status: &Status) -> Result<bool, Status> {
        let Some(name) = request.namespace else { return Ok(false) };
        let is_missing = status.code == 404
            && status.details.as_ref().is_some_and(|of| (&*of.kind, &*of.name, &*of.group) == ("namespaces", name, ""));
        if !is_missing
            || !self.enforced.plugins.is_enabled("NamespaceAutoProvision")
            || request.query.get("dryRun").is_some()
        {
            return Ok(false);
        }
        let registry = self.backend.registry();
        let Some(namespaces) = registry.find("", "v1", "namespaces") else { return Ok(false) };
        let creation = WriteRequest {
            verb: WriteVerb::Create,
            resource: namespaces,
            namespace: None,
            name: None,
            subresource: None,
            query: &Query::default(),
            content_type: None,
            user: UserInfo::admin(),
            user_agent: Some("kube-apiserver"),
            body: Bytes::from(listwatch_json::json!({"metadata": {"name": name}}).to_string()),
        };
        match Box::pin(self.write(creation)).await {
            Ok(_) => Ok(true),
            // Another request was faster.
            Err(status) if status.code == 409 => Ok(true),
            Err(status) => {
                let object = request.name.unwrap_or("Unknown");
                Err(Status::forbidden(request.resource.gr(), object, status.message))
            }
        }
    }

    /// Builds the context of a write, without a name and with default options.
    fn begin<'a>(
        &'a self,
        registry: &'a Registry,
        resource: &'a Resource,
        user: &'a UserInfo,
        clock: &'a Clock,
        context: &'a WriteContext,
    ) -> Write<'a> {
        Write {
            backend: &self.backend,
            admission: &self.admission,
            objects: StoredObjects(&self.backend),
            recent: &self.recent,
            context,
            query: None,
            ranges: &self.ranges,
            service_cidrs: &self.service_cidrs,
            node_ports: &self.node_ports,
            cleanups: &self.cleanups,
            registry,
            resource,
            subresource: None,
            namespace: None,
            name: "",
            verb: "",
            path_name: "",
            dry_run: false,
            decode_errors: DecodeErrorStyle::Body,
            manager: "",
            user,
            managed_fields: ManagedFields::Untracked,
            clock,
            conversions: None,
        }
    }

    /// Runs the admission plugins for a request that connects to an object (`handlers.ConnectResource`). Returns the
    /// options, which plugins may have changed.
    ///
    /// # Errors
    /// The error of the first plugin that rejects the request.
    pub async fn admit_connect(&self, connect: &ConnectRequest<'_>, context: &WriteContext) -> Result<Map, Status> {
        let resource = connect.resource;
        let kind = connect.options.get("kind").and_then(Value::as_str).unwrap_or_default();
        let registry = self.backend.registry();
        let details = Details {
            registry: &registry,
            resource,
            operation: Operation::Connect,
            body: Some(Expected { kind, ..Expected::of(resource) }),
            query: None,
            dry_run: false,
            verb: "connect",
            path_name: connect.name,
            deletion: None,
            deadline: context.deadline,
            revision: None,
            recorder: &context.recorder,
        };
        let request = AdmissionRequest {
            operation: Operation::Connect,
            group: &resource.group,
            version: &resource.version,
            resource: &resource.plural,
            kind,
            subresource: Some(connect.subresource),
            namespace: connect.namespace.filter(|_| resource.namespaced),
            name: connect.name,
            user: connect.user,
            dry_run: false,
            old_object: None,
            objects: &StoredObjects(&self.backend),
            recorder: &context.recorder,
            details: &details,
            reinvocation: None,
        };
        let mut options = connect.options.clone();
        self.admission.mutate(&request, &mut options).await?;
        self.admission.validate(&request, &options).await?;
        Ok(options)
    }

    /// Evaluates a review of users, tokens or permissions. The recorder of the context collects the warnings of admission
    /// plugins.
    ///
    /// # Errors
    /// 400 for a body that does not decode as the review, 422 for an invalid review, and the error of the first plugin
    /// that rejects the review.
    pub async fn review(
        &self,
        authenticators: &AuthenticatorChain,
        authorizers: &AuthorizerChain,
        request: &WriteRequest<'_>,
        context: &WriteContext,
    ) -> Result<WriteResponse, Status> {
        let (registry, clock) = (self.backend.registry(), Clock::default());
        let write = Write {
            query: Some(request.query),
            namespace: request.namespace,
            ..self.begin(&registry, request.resource, request.user, &clock, context)
        };
        reviews::review(&write, authenticators, authorizers, request).await
    }

    /// Changes the status, finalizers or owner references of one object, on behalf of a controller. Conflicts are
    /// retried as for clients. This is the only write without validation and admission. `change` receives the stored
    /// tree and may be called several times. An absent object is not created.
    ///
    /// # Errors
    /// A [`Status`] when the store fails or holds an unreadable value.
    pub async fn amend(
        &self,
        resource: &Resource,
        key: &Key,
        mut change: impl FnMut(&mut Map) -> Amendment,
    ) -> Result<(), Status> {
        let decide = |found: Option<&KeyValue>| -> Result<Decision, Status> {
            let Some(found) = found else { return Ok(Decision::Nothing) };
            let old = store::parse(found)?;
            let mut new = old.clone();
            Ok(match change(&mut new) {
                Amendment::Remove => Decision::Delete,
                Amendment::Write if new != old || found.stale => {
                    Decision::Write { value: store::encode(&new), ttl: resource.ttl() }
                }
                Amendment::Write | Amendment::Leave => Decision::Nothing,
            })
        };
        let (registry, clock, context) = (self.backend.registry(), Clock::default(), WriteContext::default());
        let write = self.begin(&registry, resource, UserInfo::admin(), &clock, &context);
        write.amend(key, decide).await
    }

    /// Repairs the allocated node ports from the stored services. `repair` contains the results of earlier repairs.
    ///
    /// # Errors
    /// 500 when the store fails or the allocated ports are unreadable, or when other servers changed them during each
    /// attempt.
    pub async fn repair_node_ports(&self, repair: &mut NodePortRepair) -> Result<(), Status> {
        repair.run_once(&self.backend, &self.ranges, &self.node_ports).await
    }

    /// Reads all services and the claims of cluster addresses, for a full repair ([`AddressReading::plan`]).
    ///
    /// # Errors
    /// 500 when the store cannot list the services and claims.
    pub async fn read_addresses(&self) -> Result<AddressReading, Status> {
        let clock = Clock::default();
        self.address_repair(&clock).read().await
    }

    /// Makes the changes of a full repair of the claims of cluster addresses. A change that fails is logged. Stops if the
    /// store rejects many changes in a row.
    pub async fn apply_address_plan(&self, plan: &mut AddressPlan) -> AddressRepairOutcome {
        let clock = Clock::default();
        self.address_repair(&clock).carry_out(plan).await
    }

    /// Repairs the claims of the cluster addresses of one service. A change that fails is logged. `claimed` is the address
    /// of a [`PendingClaim`](crate::PendingClaim): if the service does not have the address, its old claim is deleted.
    ///
    /// # Errors
    /// 500 when the store cannot read the service or a claim.
    pub async fn repair_addresses_of(
        &self,
        service: &ServiceName,
        claimed: Option<Ipv4Addr>,
    ) -> Result<AddressRepairOutcome, Status> {
        let clock = Clock::default();
        self.address_repair(&clock).run_for(service, claimed).await
    }

    pub(crate) fn address_repair<'a>(&'a self, clock: &'a Clock) -> AddressRepair<'a> {
        AddressRepair { backend: &self.backend, service_cidrs: &self.service_cidrs, clock }
    }

    /// Deletes one object like a client's request with `propagationPolicy=Background`.
    ///
    /// # Errors
    /// A [`Status`] when the object cannot be deleted. For an absent object the result is [`Removal::Gone`].
    pub async fn remove(&self, resource: &Resource, key: &Key) -> Result<Removal, Status> {
        match self.delete(resource, key, &options::DeleteOptions::background()).await {
            Ok(deleted) if deleted.gone => Ok(Removal::Gone),
            Ok(_) => Ok(Removal::Held),
            Err(status) if status.code == 404 => Ok(Removal::Gone),
            Err(status) => Err(status),
        }
    }

    /// Deletes one object on behalf of the garbage collector. The uid and the revision at which the collector read the
    /// object are preconditions.
    ///
    /// # Errors
    /// 409 when the object was replaced or changed, 404 when the object is absent, and any other error of a client's
    /// delete.
    pub async fn collect(
        &self,
        resource: &Resource,
        key: &Key,
        (uid, revision): (&str, Revision),
        propagation: Propagation,
    ) -> Result<(), Status> {
        let options = options::DeleteOptions {
            propagation: Some(propagation),
            uid: Some(uid.to_owned()),
            resource_version: Some(revision.to_string()),
            ..options::DeleteOptions::default()
        };
        self.delete(resource, key, &options).await.map(drop)
    }

    async fn delete(
        &self,
        resource: &Resource,
        key: &Key,
        options: &options::DeleteOptions,
    ) -> Result<delete::Deleted, Status> {
        let registry = self.backend.registry();
        let clock = Clock::default();
        let context = WriteContext::default();
        let write = Write { name: key.name(), ..self.begin(&registry, resource, UserInfo::admin(), &clock, &context) };
        write.delete(key, options).await
    }
}

/// The change that a controller makes to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amendment {
    /// The changed tree is stored.
    Write,
    /// The object is deleted.
    Remove,
    /// The stored object stays unchanged.
    Leave,
}

/// Whether a key exists with a value that is not a readable object.
pub async fn is_unreadable(backend: &Backend, key: &Key) -> Result<bool, Status> {
    let (found, _) = backend.storage().get(key).await.map_err(Status::internal)?;
    Ok(found.is_some_and(|found| !store::is_readable(&found.value)))
}

/// Checks that all objects in a range can be read. Controllers call this before they change any of the objects.
///
/// # Errors
/// The error of the store, or 500 with the reason `StorageReadError` when objects cannot be read.
pub async fn check_readable(backend: &Backend, resource: &Resource, range: &KeyRange) -> Result<(), Status> {
    let mut range = range.clone();
    let mut unreadable = Vec::new();
    loop {
        let query = ListQuery { range: range.clone(), at: None, limit: CHECK_PAGE_ITEMS };
        let page = backend.storage().list(query).await.map_err(Status::internal)?;
        let values = page.items.iter().filter(|item| !store::is_readable(&item.value)).map(|item| {
            let reason = unreadable_reason(&item.value).unwrap_or("the stored value is not an object").into();
            UndecodableValue { key: item.key.clone(), reason }
        });
        unreadable.extend(values.take(UNREADABLE_NAMED_MAX - unreadable.len()));
        // The check stops after the first page with an unreadable object.
        match page.items.last().filter(|_| page.more && unreadable.is_empty()) {
            Some(last) => range = range.starting_at(&format!("{}\0", last.key)),
            None if unreadable.is_empty() => return Ok(()),
            None => return Err(ReadError::Undecodable(unreadable).status(resource.gr())),
        }
    }
}

/// The outcome of a deletion by a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// The object is absent.
    Gone,
    /// The object still exists, because of finalizers or a grace period.
    Held,
}

/// Selects the action for a verb on a resource or subresource.
///
/// # Errors
/// 405 for a verb that the subresource does not support.
fn action(
    verb: WriteVerb,
    resource: &Resource,
    subresource: Option<&Subresource>,
) -> Result<&'static dyn Action, Status> {
    Ok(match (subresource, verb) {
        (None, WriteVerb::Create) => &create::Create,
        (None, WriteVerb::Delete) => &delete::Delete,
        (None, WriteVerb::DeleteCollection) => &delete::DeleteCollection,
        (Some(_), WriteVerb::Delete | WriteVerb::DeleteCollection) => {
            return Err(Status::verb_not_supported("delete", resource.gr()));
        }
        (Some(Subresource::Binding), WriteVerb::Create) => &binding::Bind,
        (Some(Subresource::Eviction), WriteVerb::Create) => &evict::Evict,
        (Some(Subresource::Token), WriteVerb::Create) => &token::IssueToken,
        (Some(Subresource::Scale { .. }), WriteVerb::Patch) => &scale::PatchScale,
        (Some(Subresource::Scale { .. }), _) => &scale::UpdateScale,
        (_, WriteVerb::Update) => &update::Update,
        (_, WriteVerb::Patch) => &update::Patch,
        // The router rejects verbs that a subresource does not support.
        (Some(_), WriteVerb::Create) => return Err(Status::method_not_allowed()),
    })
}
