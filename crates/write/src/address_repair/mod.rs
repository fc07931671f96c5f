//! Repairs the claims of cluster addresses from the stored services: services that a server without claims has stored,
//! claims that users have deleted or changed, and claims that a crash has left.
//!
//! ```text
//!  IPAddresses ─┐
//!               ├─▶ plan (pure) ─▶ create, replace or delete a claim, at the revision that was read
//!  Services ────┘
//! ```
//!
//! A full repair has three parts: read everything, plan, change. The caller runs the plan, because it takes time for each
//! service. A repair of one service reads that service and its claims.
//!
//! The repair never makes two services share an address:
//! - The claims are read first. If a service is stored after that, its claim exists already, so creating a second claim
//!   fails.
//! - A claim of a service is replaced or deleted only if it is older than
//!   [`PENDING_WAIT`](super::services::PENDING_WAIT) before the services are read, and only if all services are
//!   readable. The write that made the claim has then stored its service, or cannot store it any more ([`plan()`]).
//! - Each change is a compare-and-swap. It fails if another server has changed the claim since it was read.
//!
//! If a service is deleted while its claim is changed, the claim may remain. A later repair deletes it.
//!
//! Differences from kube-apiserver: a wrong claim is replaced in place, so that no other service can take the address
//! in between. A claim that the repair replaces, or that a write of a service takes over, loses its finalizers. A claim
//! with finalizers that the repair deletes is only marked as being deleted. Problems are logged, without Events.
//! Addresses of the family IPv6 are not repaired, because this server allocates none.
//!
//! Source: `pkg/registry/core/service/ipallocator/controller/repairip.go`.

mod plan;
mod stored;

pub use self::plan::{FOLLOW_UPS_MAX, PendingClaim, ServiceName};

use std::future::poll_fn;
use std::net::Ipv4Addr;
use std::task::Poll;

use futures_util::future::join_all;
use listwatch_json::Value;
use listwatch_meta::{GroupResource, Key, KeyRange, Revision, Status};
use listwatch_registry::{Backend, Registry, Resource};
use listwatch_storage::{CreateError, KeyValue, ListQuery, UpdateError};
use listwatch_validation::clock::Clock;
use listwatch_validation::{child_mut, metadata_mut};
use time::OffsetDateTime;

use self::plan::{Change, Claim, Owner, Plan, Problem, StoredAddresses, plan};
use super::service_cidrs::ServiceCidrs;
use super::service_ranges::AddressSet;
use super::services::{FAMILY, FAMILY_LABEL, MANAGER, MANAGER_LABEL, address_claim, delete_address, delete_claim};
use super::store;

/// The number of objects per page of a repair. After each page, other tasks of the thread run.
const PAGE_ITEMS: usize = 100;
/// The maximum number of problems, of changes and of failed changes that one repair logs. The log then has their number.
const LOGGED_MAX: usize = 10;
/// The number of claims that a repair changes at the same time. A repair of a large store without claims would
/// otherwise wait for the store once per service.
const CHANGES_AT_ONCE: usize = 16;
/// The number of chunks in a row that have failed entirely, after which a repair stops. A single one may consist of
/// changes that always fail.
const FAILED_CHUNKS: usize = 2;

const ADDRESSES: GroupResource<'_> = GroupResource { group: "networking.k8s.io", resource: "ipaddresses" };

/// The result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressRepairOutcome {
    /// The claims that may belong to a write in progress, at most [`FOLLOW_UPS_MAX`].
    pub pending: Vec<PendingClaim>,
    /// The services whose address is claimed for another service, at most [`FOLLOW_UPS_MAX`]. When the claim is deleted
    /// or changed, they need a repair.
    pub shared: Vec<(Ipv4Addr, ServiceName)>,
    /// The services whose claim was not made because another writer had changed the claim, at most [`FOLLOW_UPS_MAX`].
    /// They need another repair soon.
    pub conflicts: Vec<ServiceName>,
    /// The number of addresses whose claim could not be created or replaced, because the store failed. Until the next
    /// repair, another service may get such an address.
    pub unclaimed: usize,
}

/// The stored services and claims, which a full repair has read.
#[derive(Debug)]
pub struct AddressReading {
    claims: Vec<Claim>,
    services: Vec<(ServiceName, Option<Vec<Ipv4Addr>>)>,
    /// The ranges of cluster addresses.
    in_range: AddressSet,
    /// A time before the services were read, as [`plan()`] requires.
    now: OffsetDateTime,
}

impl AddressReading {
    /// Decides which claims to change. The time grows with the number of services, so call this function on a thread
    /// that may block.
    pub fn plan(self) -> AddressPlan {
        let mut found = StoredAddresses::new();
        self.claims.into_iter().for_each(|claim| found.add_claim(claim));
        self.services.into_iter().for_each(|(name, addresses)| found.add_service(name, addresses));
        AddressPlan::new(plan(&found, |address| self.in_range.has_host(address), self.now))
    }
}

/// The changes of a full repair, and how many of them were made. If the repair is dropped, the plan has its progress.
#[derive(Debug)]
pub struct AddressPlan {
    plan: Plan,
    /// The number of changes that were tried.
    tried: usize,
    /// The number of changes that were made.
    made: usize,
    /// The number of claims that could not be created or replaced.
    failed_claims: usize,
}

impl AddressPlan {
    fn new(plan: Plan) -> Self {
        AddressPlan { plan, tried: 0, made: 0, failed_claims: 0 }
    }

    /// Returns the number of changes that were made.
    pub fn made(&self) -> usize {
        self.made
    }

    /// Returns the number of addresses whose claim is still to be created or replaced.
    pub fn unclaimed(&self) -> usize {
        let untried = self.plan.changes.get(self.tried..).unwrap_or_default();
        self.failed_claims + untried.iter().filter(|change| change.claimed_for().is_some()).count()
    }
}

/// A repair on one server.
#[derive(Clone, Copy)]
pub(crate) struct AddressRepair<'a> {
    pub(crate) backend: &'a Backend,
    pub(crate) service_cidrs: &'a ServiceCidrs,
    pub(crate) clock: &'a Clock,
}

impl AddressRepair<'_> {
    /// Reads all claims and services.
    ///
    /// # Errors
    /// 500 when the store cannot list the services and claims.
    pub(crate) async fn read(self) -> Result<AddressReading, Status> {
        let now = self.clock.time();
        let registry = self.backend.registry();
        let (mut claims, mut services) = (Vec::new(), Vec::new());
        if let Some((addresses_resource, services_resource)) = resources(&registry) {
            claims = self.read_all(addresses_resource, stored::claim).await?.into_iter().flatten().collect();
            services = self.read_all(services_resource, stored::service).await?;
        }
        Ok(AddressReading { claims, services, in_range: self.service_cidrs.addresses(), now })
    }

    /// Repairs the claims of the addresses of one service. A change that fails is logged, and the repair continues.
    /// If `claimed` is an address that the service does not have, also deletes its claim if this service is the owner
    /// and the claim is old.
    ///
    /// The addresses of the service are read before their claims. If the service is deleted in between, the repair may
    /// make a claim for a service that no longer exists. It takes no address from another service: the owner of each
    /// claim is read after the claim.
    ///
    /// # Errors
    /// 500 when the store cannot read the service, a claim or the owner of a claim.
    pub(crate) async fn run_for(
        self,
        service: &ServiceName,
        claimed: Option<Ipv4Addr>,
    ) -> Result<AddressRepairOutcome, Status> {
        // Before the services are read, as `plan` requires.
        let now = self.clock.time();
        let registry = self.backend.registry();
        let Some((addresses, services)) = resources(&registry) else { return Ok(AddressRepairOutcome::default()) };
        let own = match self.read_one(services, Some(&service.namespace), &service.name, stored::service).await? {
            Some((_, Some(own))) => own,
            // An unreadable service may have any address.
            Some((_, None)) => return Ok(AddressRepairOutcome::default()),
            None => Vec::new(),
        };
        let mut found = StoredAddresses::new();
        for address in own.iter().copied().chain(claimed.filter(|claimed| !own.contains(claimed))) {
            let claim = self.read_one(addresses, None, &address.to_string(), stored::claim).await?;
            let Some(claim) = claim.flatten() else { continue };
            match &claim.owner {
                Owner::Service(owner) if owner == service => {}
                // Another service may have the address.
                _ if !own.contains(&address) => continue,
                Owner::Service(owner) => {
                    let owner = self.read_one(services, Some(&owner.namespace), &owner.name, stored::service).await?;
                    if let Some((owner, its)) = owner {
                        // The claims of other addresses of the owner are unknown here.
                        let shared = its.map(|its| its.into_iter().filter(|one| *one == address).collect());
                        found.add_service(owner, shared);
                    }
                }
                Owner::Other | Owner::Unknown => {}
            }
            found.add_claim(claim);
        }
        found.add_service(service.clone(), Some(own));
        let in_range = self.service_cidrs.addresses();
        let mut plan = AddressPlan::new(plan(&found, |address| in_range.has_host(address), now));
        Ok(self.carry_out(&mut plan).await)
    }

    /// Reads all objects of a resource and converts each value.
    async fn read_all<T>(self, resource: &Resource, convert: fn(&KeyValue) -> T) -> Result<Vec<T>, Status> {
        let mut all = Vec::new();
        let mut range = KeyRange::resource(&resource.storage_prefix);
        loop {
            // Each page is a read of the latest state.
            let query = ListQuery { range: range.clone(), at: None, limit: PAGE_ITEMS };
            let page = self.backend.storage().list(query).await;
            let page = page.map_err(|error| store::read_failed(&error, resource.gr()))?;
            all.extend(page.items.iter().map(convert));
            yield_now().await;
            match page.items.last().filter(|_| page.more) {
                Some(last) => range = range.starting_at(&format!("{}\0", last.key)),
                None => return Ok(all),
            }
        }
    }

    /// Reads one object and converts its value. Returns `None` if the object is absent.
    async fn read_one<T>(
        self,
        resource: &Resource,
        namespace: Option<&str>,
        name: &str,
        convert: fn(&KeyValue) -> T,
    ) -> Result<Option<T>, Status> {
        // A claim may name a service whose name is invalid.
        let Ok(key) = resource.key(namespace, name) else { return Ok(None) };
        let found = self.backend.storage().get(&key).await;
        let (found, _) = found.map_err(|error| store::read_failed(&error, resource.gr()))?;
        Ok(found.as_ref().map(convert))
    }

    /// Makes the changes. A change that fails is logged. Stops when two whole chunks in a row have failed, because the
    /// store then does not respond, or rejects all writes.
    pub(crate) async fn carry_out(self, plan: &mut AddressPlan) -> AddressRepairOutcome {
        let registry = self.backend.registry();
        plan.plan.problems.iter().take(LOGGED_MAX).for_each(log);
        if plan.plan.problems.len() > LOGGED_MAX {
            tracing::warn!(problems = plan.plan.problems.len(), "more problems of cluster IPs than are logged");
        }
        let mut conflicts = Vec::new();
        let mut failed = 0;
        let mut failed_chunks = 0;
        for changes in plan.plan.changes.chunks(CHANGES_AT_ONCE) {
            let done = join_all(changes.iter().map(|change| self.apply(&registry, change))).await;
            let failed_before = failed;
            for (change, done) in changes.iter().zip(done) {
                match done {
                    Ok(true) => {
                        plan.made += 1;
                        if plan.made <= LOGGED_MAX {
                            log_change(change);
                        }
                    }
                    Ok(false) => {
                        let claimed_for = change.claimed_for().filter(|_| conflicts.len() < FOLLOW_UPS_MAX);
                        conflicts.extend(claimed_for.cloned());
                    }
                    Err(status) => {
                        failed += 1;
                        plan.failed_claims += usize::from(change.claimed_for().is_some());
                        if failed <= LOGGED_MAX {
                            tracing::warn!(?change, %status, "cannot change the claim of a cluster IP");
                        }
                    }
                }
            }
            plan.tried += changes.len();
            failed_chunks = if failed - failed_before == changes.len() { failed_chunks + 1 } else { 0 };
            if failed_chunks == FAILED_CHUNKS {
                break;
            }
        }
        let (made, untried) = (plan.made, plan.plan.changes.len() - plan.tried);
        if made > LOGGED_MAX || failed > LOGGED_MAX || untried > 0 {
            tracing::warn!(made, failed, untried, "more changes of the claims of cluster IPs than are logged");
        }
        AddressRepairOutcome {
            unclaimed: plan.unclaimed(),
            pending: std::mem::take(&mut plan.plan.pending),
            shared: std::mem::take(&mut plan.plan.shared),
            conflicts,
        }
    }

    /// Makes one change, unless another writer has changed the claim. Returns whether the change was made.
    async fn apply(self, registry: &Registry, change: &Change) -> Result<bool, Status> {
        let Some((addresses, _)) = resources(registry) else { return Ok(false) };
        match change {
            Change::Create(address, service) => self.create(registry, *address, service).await,
            Change::Replace(address, revision, service) => {
                let owner = (service.namespace.as_str(), service.name.as_str());
                let Some((key, value)) = address_claim(registry, *address, owner, self.clock) else { return Ok(false) };
                match updated(self.backend.storage().update(&key, *revision, value, None).await)? {
                    Some(made) => self.is_kept(registry, *address, service, &key, made).await,
                    None => Ok(false),
                }
            }
            Change::SetLabels(address, revision) => {
                let Some(found) = self.read_one(addresses, None, &address.to_string(), KeyValue::clone).await? else {
                    return Ok(false);
                };
                let mut claim = store::parse_free(&found)?;
                let labels = child_mut(metadata_mut(&mut claim), "labels");
                labels.insert(FAMILY_LABEL, Value::from(FAMILY));
                labels.insert(MANAGER_LABEL, Value::from(MANAGER));
                let done = self.backend.storage().update(&found.key, *revision, store::encode(&claim), None).await;
                updated(done).map(|made| made.is_some())
            }
            Change::Delete(address, revision) => {
                let found = self.read_one(addresses, None, &address.to_string(), KeyValue::clone).await?;
                let Some(found) = found.filter(|found| found.modified == *revision) else { return Ok(false) };
                let claim = store::parse_free(&found)?;
                delete_address(self.backend, addresses, &found, claim, self.clock.time()).await
            }
        }
    }

    /// Creates the claim of a service.
    async fn create(self, registry: &Registry, address: Ipv4Addr, service: &ServiceName) -> Result<bool, Status> {
        let owner = (service.namespace.as_str(), service.name.as_str());
        let Some((key, value)) = address_claim(registry, address, owner, self.clock) else { return Ok(false) };
        match self.backend.storage().create(&key, value, None).await {
            Ok(made) => self.is_kept(registry, address, service, &key, made).await,
            Err(CreateError::AlreadyExists { .. }) => Ok(false),
            Err(CreateError::Fault(fault)) => Err(store::store_failed("create", &fault, ADDRESSES)),
        }
    }

    /// Returns whether a service still has the address of a claim that this repair has made for it. If not, deletes the
    /// claim: the write that released the address did not find the claim.
    async fn is_kept(
        self,
        registry: &Registry,
        address: Ipv4Addr,
        service: &ServiceName,
        key: &Key,
        made: Revision,
    ) -> Result<bool, Status> {
        let Some((_, services)) = resources(registry) else { return Ok(true) };
        let current = self.read_one(services, Some(&service.namespace), &service.name, stored::service).await?;
        let has_address = match current {
            Some((_, Some(addresses))) => addresses.contains(&address),
            // An unreadable service may have the address.
            Some((_, None)) => true,
            None => false,
        };
        if !has_address {
            delete_claim(self.backend, key, made).await;
        }
        Ok(has_address)
    }
}

/// Returns the revision of an update, or `None` after a conflict.
fn updated(done: Result<Revision, UpdateError>) -> Result<Option<Revision>, Status> {
    match done {
        Ok(made) => Ok(Some(made)),
        Err(UpdateError::Conflict { .. }) => Ok(None),
        Err(UpdateError::Fault(fault)) => Err(store::store_failed("update", &fault, ADDRESSES)),
    }
}

/// Returns the IPv4 addresses of a stored service, or `None` if the service is unreadable.
pub fn cluster_ips(service: &KeyValue) -> Option<Vec<Ipv4Addr>> {
    stored::service(service).1
}

/// Returns the resources of claims and of services. `None` if one of them is not served.
fn resources(registry: &Registry) -> Option<(&Resource, &Resource)> {
    let addresses: &Resource = registry.find(ADDRESSES.group, "v1", ADDRESSES.resource)?;
    let services: &Resource = registry.find("", "v1", "services")?;
    Some((addresses, services))
}

/// Lets other tasks of the thread run. This crate does not depend on a runtime.
async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn log_change(change: &Change) {
    match change {
        Change::Create(address, service) => {
            tracing::warn!(%address, %service, "created the missing claim of a cluster IP");
        }
        Change::Replace(address, _, service) => {
            tracing::warn!(%address, %service, "replaced the wrong claim of a cluster IP");
        }
        Change::SetLabels(address, _) => tracing::info!(%address, "set the labels of the claim of a cluster IP"),
        Change::Delete(address, _) => tracing::info!(%address, "deleted the claim of a cluster IP without a service"),
    }
}

fn log(problem: &Problem) {
    match problem {
        Problem::OutOfRange(address, service) => {
            tracing::warn!(%address, %service, "a cluster IP is not within any service CIDR; recreate the service");
        }
        Problem::Duplicate(address, service, holder) => {
            tracing::warn!(%address, %service, %holder, "two services have the same cluster IP; recreate one of them");
        }
        Problem::UnreadableServices(count, first) => {
            tracing::warn!(count, %first, "unreadable services keep the claims of cluster IPs from being deleted");
        }
        Problem::UnreadableClaims(count, first) => {
            tracing::warn!(count, %first, "the claims of cluster IPs are unreadable and are not repaired");
        }
    }
}
