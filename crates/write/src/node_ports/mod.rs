//! Allocates node ports in the bitmap that kube-apiserver keeps at `/ranges/servicenodeports`.
//!
//! ```text
//!  service wants ports ─▶ set their bits (compare-and-swap) ─▶ store the service ─▶ (failed: clear them)
//!                         one write for all ports of the service
//! ```
//!
//! The object is a `RangeAllocation` in kube-apiserver's form, so that this server and kube-apiserver can use the same
//! store. Each change of the bitmap is a compare-and-swap on the revision. Two servers therefore never allocate the
//! same port.
//!
//! A bit has no owner. Three rules keep a port from being released while another service has it:
//! - Only the write that removed the port from a service, or that failed to store the service, clears the bit.
//! - The bit is cleared within [`RELEASE_WAIT`]. After that time, the repair clears it.
//! - A repair ([`repair`]) clears a bit without a service only after three repairs in a row have found the bit. This
//!   takes at least twice [`REPAIR_INTERVAL`].
//!
//! Earlier releases claimed each port with a key below `/ranges/servicenodeports/`. The first repair copies these
//! claims into the bitmap and deletes them. Servers of those releases must not run at the same time.
//!
//! Sources: `pkg/registry/core/service/allocator/storage/storage.go` and `pkg/registry/core/service/portallocator`.

mod bitmap;
mod record;
mod repair;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use futures_util::lock::Mutex;
use listwatch_meta::{GroupResource, Key, KeyRange, Status};
use listwatch_registry::Backend;
use listwatch_storage::{
    CreateError, Decision, DeleteError, GuaranteedUpdateError, KeyValue, ListQuery, Outcome, UpdateError, UpdateLimits,
    guaranteed_update,
};

use self::bitmap::PortBitmap;
use self::record::RangeAllocation;
use self::repair::{Leaks, Problem};
use super::monotonic::Instant;
use super::service_ranges::ServiceRanges;
use super::store;

/// The interval between two repairs of the node ports, as in kube-apiserver (`repairLoopInterval`).
pub const REPAIR_INTERVAL: Duration = Duration::from_secs(3 * 60);

/// Maximum time between the end of a port's use and the release of the port by this server. A repair of another server
/// can release the port only much later. During this time, the port therefore cannot belong to another service.
const RELEASE_WAIT: Duration = Duration::from_secs(120);

/// The number of attempts of one repair. During the last attempt, this server's own writes wait and cannot conflict.
const REPAIR_ATTEMPTS: u32 = 5;

/// The number of services per page of a repair.
const PAGE_ITEMS: usize = 500;

/// The resource name in kube-apiserver's errors about the bitmap.
const ALLOCATIONS: GroupResource<'_> = GroupResource { group: "", resource: "servicenodeportallocations" };

/// The key prefix of the claims of earlier releases.
const CLAIMS: &str = "ranges/servicenodeports";

/// A requested node port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WantedPort {
    /// Any free port.
    Any,
    /// A specific port.
    This(u16),
}

/// The reason why ports were not allocated.
#[derive(Debug)]
pub(super) enum PortsError {
    /// The requested port at this index is already allocated, or no port is free.
    Unavailable(usize),
    /// The store failed, or the bitmap cannot be used.
    Status(Box<Status>),
}

impl From<Status> for PortsError {
    fn from(status: Status) -> Self {
        PortsError::Status(Box::new(status))
    }
}

/// The reason why the current bitmap cannot be changed.
enum Refusal {
    /// The object does not exist yet.
    Absent,
    Ports(PortsError),
}

/// The allocator of node ports on one server.
#[derive(Debug, Default)]
pub(crate) struct NodePorts {
    /// The object after the last change by this server. The lock serializes the changes of this server.
    last: Mutex<Option<KeyValue>>,
}

fn allocation_key() -> Result<Key, Status> {
    Key::new("ranges", None, "servicenodeports").map_err(Status::internal)
}

impl NodePorts {
    /// Allocates all requested ports, or none. A dry run only reads. `draw` returns a random number in a range.
    ///
    /// # Errors
    /// [`PortsError::Unavailable`] for the first requested port that cannot be allocated.
    pub(super) async fn allocate(
        &self,
        backend: &Backend,
        ranges: &ServiceRanges,
        wanted: &[WantedPort],
        dry_run: bool,
        draw: impl Fn(RangeInclusive<u32>) -> u32,
    ) -> Result<Vec<u16>, PortsError> {
        if dry_run {
            let key = allocation_key()?;
            let found = backend.storage().get(&key).await;
            let (found, _) = found.map_err(|error| store::read_failed(&error, ALLOCATIONS))?;
            let mut bitmap = match &found {
                Some(found) => parse(found)?.bitmap(ranges.node_port_range()).map_err(Status::internal)?,
                None => used_ports(backend, ranges.node_port_range()).await?,
            };
            return take_all(&mut bitmap, ranges, wanted, &draw).map_err(PortsError::Unavailable);
        }
        let change = |bitmap: &mut PortBitmap| {
            take_all(bitmap, ranges, wanted, &draw).map(Some).map_err(PortsError::Unavailable)
        };
        self.update(backend, ranges, change).await.map(Option::unwrap_or_default)
    }

    /// Releases ports that no stored service has used since `since`. After a failure, the ports stay allocated until a
    /// repair.
    pub(super) async fn release(&self, backend: &Backend, ranges: &ServiceRanges, ports: &[u16], since: Instant) {
        if ports.is_empty() {
            return;
        }
        let change = |bitmap: &mut PortBitmap| {
            let is_late = since.elapsed() > RELEASE_WAIT;
            let mut has_changed = false;
            for port in ports.iter().filter(|_| !is_late) {
                has_changed |= bitmap.release(*port);
            }
            Ok(has_changed.then_some(()))
        };
        if let Err(PortsError::Status(status)) = self.update(backend, ranges, change).await {
            tracing::warn!(?ports, %status, "node ports stay allocated until the next repairs");
        }
    }

    /// Changes the bitmap. `change` may be called several times. If it returns `None`, the stored object stays
    /// unchanged.
    async fn update<T>(
        &self,
        backend: &Backend,
        ranges: &ServiceRanges,
        change: impl Fn(&mut PortBitmap) -> Result<Option<T>, PortsError>,
    ) -> Result<Option<T>, PortsError> {
        let key = allocation_key()?;
        let mut last = self.last.lock().await;
        loop {
            let mut changed = None;
            let decide = |found: Option<&KeyValue>| {
                let found = found.ok_or(Refusal::Absent)?;
                let refused = |status: Status| Refusal::Ports(status.into());
                let record = parse(found).map_err(refused)?;
                let mut bitmap =
                    record.bitmap(ranges.node_port_range()).map_err(|why| refused(Status::internal(why)))?;
                changed = change(&mut bitmap).map_err(Refusal::Ports)?;
                Ok(match &changed {
                    Some(_) => {
                        let value = record.with_ports(&ranges.node_port_range(), &bitmap);
                        Decision::Write { value, ttl: None }
                    }
                    None => Decision::Nothing,
                })
            };
            let storage = &**backend.storage();
            // Only a completed change leaves a known state behind.
            let known = last.take();
            match guaranteed_update(storage, &key, known, UpdateLimits::default(), decide).await {
                Ok(Outcome::Updated { current, .. }) => {
                    *last = Some(current);
                    return Ok(changed);
                }
                Ok(_) => return Ok(changed),
                Err(GuaranteedUpdateError::Refused(Refusal::Absent)) => create(backend, ranges).await?,
                Err(GuaranteedUpdateError::Refused(Refusal::Ports(error))) => return Err(error),
                Err(GuaranteedUpdateError::Contended { .. }) => {
                    return Err(Status::server_timeout("update", ALLOCATIONS).into());
                }
                Err(GuaranteedUpdateError::Fault(fault)) => {
                    return Err(store::store_failed("update", &fault, ALLOCATIONS).into());
                }
            }
        }
    }
}

/// Allocates the requested ports in the bitmap. If a port cannot be allocated, the error has the index of the request.
fn take_all(
    bitmap: &mut PortBitmap,
    ranges: &ServiceRanges,
    wanted: &[WantedPort],
    draw: &impl Fn(RangeInclusive<u32>) -> u32,
) -> Result<Vec<u16>, usize> {
    let is_chosen = |port: u16| wanted.contains(&WantedPort::This(port));
    let mut taken = Vec::with_capacity(wanted.len());
    for (index, wanted) in wanted.iter().enumerate() {
        let port = match wanted {
            WantedPort::This(port) => Some(*port),
            WantedPort::Any => ranges.node_port_bands().into_iter().flatten().find_map(|band| {
                let drawn = draw(u32::from(*band.start())..=u32::from(*band.end()));
                let start = u16::try_from(drawn).unwrap_or(*band.start());
                bitmap.free_port(&band, start, |port| !is_chosen(port))
            }),
        };
        taken.push(port.filter(|port| bitmap.take(*port)).ok_or(index)?);
    }
    Ok(taken)
}

fn parse(found: &KeyValue) -> Result<RangeAllocation, Status> {
    RangeAllocation::parse(&found.value)
        .map_err(|why| Status::internal(format_args!("the object at {} cannot be read: {why}", found.key)))
}

/// Creates the object from the stored services. Another server may create it first.
async fn create(backend: &Backend, ranges: &ServiceRanges) -> Result<(), Status> {
    let bitmap = used_ports(backend, ranges.node_port_range()).await?;
    let value = RangeAllocation::default().with_ports(&ranges.node_port_range(), &bitmap);
    match backend.storage().create(&allocation_key()?, value, None).await {
        Ok(_) | Err(CreateError::AlreadyExists { .. }) => Ok(()),
        Err(CreateError::Fault(fault)) => Err(store::store_failed("create", &fault, ALLOCATIONS)),
    }
}

/// Returns the ports of all stored services, and the ports claimed by earlier releases.
async fn used_ports(backend: &Backend, ports: RangeInclusive<u16>) -> Result<PortBitmap, Status> {
    let mut bitmap = PortBitmap::new(ports);
    let services = stored_services(backend).await?;
    let claims = former_claims(backend).await?;
    for port in services.ports.into_iter().flatten().chain(claims.iter().filter_map(claimed_port)) {
        bitmap.take(port);
    }
    Ok(bitmap)
}

/// The node ports of the stored services.
struct StoredServices {
    ports: Vec<BTreeSet<u16>>,
    /// False if some services are unreadable.
    is_complete: bool,
}

async fn stored_services(backend: &Backend) -> Result<StoredServices, Status> {
    let mut services = StoredServices { ports: Vec::new(), is_complete: true };
    let registry = backend.registry();
    let Some(resource) = registry.find("", "v1", "services") else { return Ok(services) };
    let mut range = KeyRange::resource(&resource.storage_prefix);
    loop {
        // Each page is a read of the latest state: a service stored meanwhile has set its bits before.
        let query = ListQuery { range: range.clone(), at: None, limit: PAGE_ITEMS };
        let page = backend.storage().list(query).await.map_err(|error| store::read_failed(&error, ALLOCATIONS))?;
        for item in &page.items {
            match record::ports_of_service(&item.value) {
                Ok(ports) if ports.is_empty() => {}
                Ok(ports) => services.ports.push(ports),
                Err(_) => services.is_complete = false,
            }
        }
        match page.items.last().filter(|_| page.more) {
            Some(last) => range = range.starting_at(&format!("{}\0", last.key)),
            None => return Ok(services),
        }
    }
}

/// Returns the claims of earlier releases.
async fn former_claims(backend: &Backend) -> Result<Vec<KeyValue>, Status> {
    let query = ListQuery { range: KeyRange::resource(CLAIMS), at: None, limit: 0 };
    let page = backend.storage().list(query).await.map_err(|error| store::read_failed(&error, ALLOCATIONS))?;
    Ok(page.items)
}

fn claimed_port(claim: &KeyValue) -> Option<u16> {
    claim.key.name().parse().ok()
}

/// Repairs the allocated node ports from the stored services. Stores the results of earlier repairs, for
/// [`Writer::repair_node_ports`](crate::Writer::repair_node_ports).
#[derive(Debug, Default)]
pub struct NodePortRepair {
    leaks: Leaks,
}

impl NodePortRepair {
    /// Runs one repair.
    ///
    /// # Errors
    /// 500 when the store fails or the object is unreadable, 409 when other servers changed the object during each
    /// attempt.
    pub(crate) async fn run_once(
        &mut self,
        backend: &Backend,
        ranges: &ServiceRanges,
        node_ports: &NodePorts,
    ) -> Result<(), Status> {
        for attempt in 1..=REPAIR_ATTEMPTS {
            let _turn = if attempt == REPAIR_ATTEMPTS { Some(node_ports.last.lock().await) } else { None };
            if self.attempt(backend, ranges).await? {
                return Ok(());
            }
        }
        Err(Status::server_timeout("update", ALLOCATIONS))
    }

    /// Makes one attempt of a repair. Returns false if another writer changed the object during the attempt.
    async fn attempt(&mut self, backend: &Backend, ranges: &ServiceRanges) -> Result<bool, Status> {
        let (storage, key, ports) = (backend.storage(), allocation_key()?, ranges.node_port_range());
        // The bitmap is read before the services. A service that is stored later has set its bits before.
        let (found, _) = storage.get(&key).await.map_err(|error| store::read_failed(&error, ALLOCATIONS))?;
        let claims = former_claims(backend).await?;
        let services = stored_services(backend).await?;
        let record = found.as_ref().map(parse).transpose()?.unwrap_or_default();
        let mut stored = match &found {
            Some(_) => record
                .own_bitmap()
                .map_err(|why| Status::internal(format_args!("unable to rebuild allocator from snapshot: {why}")))?,
            None => PortBitmap::new(ports.clone()),
        };
        for port in claims.iter().filter_map(claimed_port) {
            stored.take(port);
        }
        let (rebuilt, leaks, problems) =
            repair::repair(ports.clone(), &stored, &services.ports, services.is_complete, &self.leaks);
        let is_new = found.is_none();
        let written = match &found {
            Some(found) if !found.stale && record.bitmap(ports.clone()).as_ref() == Ok(&rebuilt) => true,
            Some(found) => {
                match storage.update(&key, found.modified, record.with_ports(&ports, &rebuilt), None).await {
                    Ok(_) => true,
                    Err(UpdateError::Conflict { .. }) => false,
                    Err(UpdateError::Fault(fault)) => return Err(store::store_failed("update", &fault, ALLOCATIONS)),
                }
            }
            None => match storage.create(&key, record.with_ports(&ports, &rebuilt), None).await {
                Ok(_) => true,
                Err(CreateError::AlreadyExists { .. }) => false,
                Err(CreateError::Fault(fault)) => return Err(store::store_failed("create", &fault, ALLOCATIONS)),
            },
        };
        if !written {
            return Ok(false);
        }
        self.leaks = leaks;
        for problem in problems {
            match problem {
                // A new bitmap has no ports yet.
                Problem::Unallocated(_) if is_new => {}
                Problem::Unallocated(port) => tracing::warn!(port, "the node port of a service was not allocated"),
                Problem::OutOfRange(port) => {
                    tracing::warn!(port, range = %ranges.node_ports(), "the node port of a service is not in the range; recreate the service");
                }
                Problem::Duplicate(port) => {
                    tracing::warn!(port, "two services have the same node port; recreate one of them");
                }
                Problem::Released(port) => tracing::info!(port, "released a node port without a service"),
            }
        }
        // The bitmap has all claimed ports now.
        for claim in claims {
            match storage.delete(&claim.key, claim.modified).await {
                Ok(_) | Err(DeleteError::Conflict { .. }) => {}
                Err(DeleteError::Fault(fault)) => return Err(store::store_failed("delete", &fault, ALLOCATIONS)),
            }
        }
        Ok(true)
    }
}
