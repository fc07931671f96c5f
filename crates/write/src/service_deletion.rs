//! Deletes services from the store, and cleans up after them (`afterDelete` of `pkg/registry/core/service/storage`).
//!
//! The clean-up releases the addresses and node ports, and deletes the Endpoints of the same name. Otherwise a new
//! service of this name could start with the endpoints of the deleted one. The deletion and the clean-up are one piece
//! of work that [`Cleanups`](super::cleanups::Cleanups) completes: a request that ends between them would leave the
//! Endpoints forever. The Endpoints also remain if the process is killed between them, or if the store has deleted the
//! service but reports a failure. Repairs find the addresses and ports.

use std::sync::Arc;

use listwatch_json::Map;
use listwatch_meta::{Key, Revision, Status};
use listwatch_registry::{Backend, Registry, Resource};
use listwatch_storage::{Decision, DeleteError, KeyValue, Step, StoreFault, UpdateLimits, UpdateLoop};
use time::OffsetDateTime;

use super::cleanups::TooManyDropped;
use super::delete::plan_deletion;
use super::node_ports::NodePorts;
use super::options::DeleteOptions;
use super::pipeline::Write;
use super::service_cidrs::ServiceCidrs;
use super::service_ranges::ServiceRanges;
use super::services::{self, Allocators};
use super::store;
use super::unmetered::unmetered;

/// The deletion of one service.
struct ServiceDeletion {
    backend: Arc<Backend>,
    ranges: ServiceRanges,
    service_cidrs: Arc<ServiceCidrs>,
    node_ports: Arc<NodePorts>,
    /// The stored service.
    service: KeyValue,
    now: OffsetDateTime,
}

impl Write<'_> {
    /// Deletes an object from the store at the revision `expected`. `current` is the object at this revision. If the
    /// object is a service, also cleans up after it, even if the request is dropped in the meantime. A failed clean-up
    /// does not fail the deletion. Fails as if the store was unavailable while too many such deletions have not ended.
    pub(super) async fn delete_stored(
        &self,
        key: &Key,
        expected: Revision,
        current: Option<&KeyValue>,
    ) -> Result<Revision, DeleteError> {
        match current {
            Some(current) if services::is_service(self.resource) => {
                let deletion = ServiceDeletion {
                    backend: Arc::clone(self.backend),
                    ranges: self.ranges.clone(),
                    service_cidrs: Arc::clone(self.service_cidrs),
                    node_ports: Arc::clone(self.node_ports),
                    service: current.clone(),
                    now: self.clock.time(),
                };
                self.cleanups.complete(deletion.carry_out(expected)).await.unwrap_or_else(|TooManyDropped| {
                    let why = "too many deletions of services have not ended, whose clients have disconnected";
                    Err(StoreFault::Unavailable(why.to_owned()).into())
                })
            }
            _ => self.backend.storage().delete(key, expected).await,
        }
    }

    /// Applies `decide` to the object at `key`, and retries when another write changed the object. An absent object
    /// is not created.
    ///
    /// # Errors
    /// The error of `decide`; a [`Status`] when the store fails.
    pub(super) async fn amend(
        &self,
        key: &Key,
        mut decide: impl FnMut(Option<&KeyValue>) -> Result<Decision, Status>,
    ) -> Result<(), Status> {
        let (storage, resource) = (self.backend.storage(), self.resource);
        let suggestion = store::suggestion(self.backend, resource, key);
        let mut update = UpdateLoop::new(key.clone(), suggestion, UpdateLimits::default());
        let mut current = None;
        loop {
            let Some(step) = update.step() else {
                return Err(Status::internal("the write ended without a result"));
            };
            let ended = match step {
                Step::Read => update.read(storage.get(key).await.map(|(found, _)| found)),
                Step::Decide(found) => {
                    let decision = decide(found.as_ref());
                    current = found;
                    update.decided(decision)
                }
                Step::Update { expected, value, ttl } => {
                    update.updated(storage.update(key, expected, value, ttl).await)
                }
                Step::Delete { expected } => update.deleted(self.delete_stored(key, expected, current.as_ref()).await),
                Step::Create { .. } => return Err(Status::internal("an amendment cannot create an object")),
            };
            if let Some(outcome) = ended {
                return store::done(outcome, "update", resource).map(drop);
            }
        }
    }
}

impl ServiceDeletion {
    /// Deletes the service, and cleans up after it. The clean-up uses no fuel of the request.
    async fn carry_out(self, expected: Revision) -> Result<Revision, DeleteError> {
        let at = self.backend.storage().delete(&self.service.key, expected).await?;
        // The service is deleted, so the clean-up must happen even without fuel.
        if let Ok(removed) = store::parse_free(&self.service) {
            unmetered(self.clean_up(&removed, at)).await;
        }
        Ok(at)
    }

    async fn clean_up(&self, removed: &Map, at: Revision) {
        let registry = self.backend.registry();
        // The release comes first, because it must start soon after the deletion.
        services::release_unused(self.allocators(&registry), removed, None, at, self.now).await;
        let Some(endpoints) = registry.find("", "v1", "endpoints") else { return };
        if let Err(status) = self.delete_endpoints(endpoints).await {
            let service = &self.service.key;
            tracing::warn!(%service, %status, "the Endpoints of a deleted service were not deleted");
        }
    }

    /// Deletes the Endpoints of the service without admission. If finalizers remain, only marks the Endpoints.
    async fn delete_endpoints(&self, endpoints: &Resource) -> Result<(), Status> {
        let service = &self.service.key;
        let key = endpoints.key(Some(service.namespace()), service.name())?;
        let options = DeleteOptions::default();
        let decide = |found: Option<&KeyValue>| -> Result<Decision, Status> {
            let Some(found) = found else { return Ok(Decision::Nothing) };
            Ok(plan_deletion(endpoints, store::parse(found)?, &options, self.now)?.decision)
        };
        store::run(&self.backend, endpoints, &key, false, decide).await.map(drop)
    }

    fn allocators<'a>(&'a self, registry: &'a Registry) -> Allocators<'a> {
        let ServiceDeletion { backend, ranges, service_cidrs, node_ports, .. } = self;
        Allocators { backend, registry, ranges, service_cidrs, node_ports }
    }
}
