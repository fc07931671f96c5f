//! Allocates addresses and node ports of services. Claims in the store ensure that no two services share an address or
//! a node port, even if several servers use the same store.
//!
//! ```text
//!  service wants an address ─▶ create IPAddress 10.96.x.y ─▶ store the service ─▶ (failed: delete it)
//!                                   taken? another one
//! ```
//!
//! A claim is a separate key. The server creates the key before the service and deletes it after the service. An
//! address is claimed by an `IPAddress` object, as in kube-apiserver since v1.33. Node ports are claimed in the bitmap
//! of [`super::node_ports`]. The addresses come from the ranges of [`super::service_cidrs`].
//!
//! Two services never share an address, for three reasons:
//! - A service is stored only by the write that made its claims and knows their revisions. Directly before the store
//!   write, the age of the claims must be below [`STORE_WAIT`] ([`ClaimTime::check`]). Otherwise the write fails and
//!   deletes its claims. The rule also holds with slow admission plugins and long request timeouts.
//! - A crash or an unknown outcome can leave a claim without a service. The next write that needs the address takes
//!   over the claim, but only after [`PENDING_WAIT`]. Before that, another server may still store the service.
//! - A claim is deleted only at the revision at which it was made. After the deletion of a service, a claim is deleted
//!   only if it names the service and is older than that deletion. A claim that was taken over is never deleted by its
//!   former owner.
//!
//! [`super::address_repair`] creates the claims of services without claims, and deletes claims without services.
//!
//! Limits:
//! - If a user deletes an `IPAddress` while its service exists, another service may receive the same address until the
//!   repair has recreated the claim.
//! - The addresses of services that were stored by a server without claims count as free until the repair has claimed
//!   them. The repair at the start of a server precedes the first allocation. If that repair fails for a minute, the
//!   server does not start.
//! - If a client cancels its request between claim and store, the address stays blocked for [`PENDING_WAIT`]. The node
//!   ports stay blocked until the third consecutive run of the node port repair.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use listwatch_json::{Map, Value, json};
use listwatch_meta::{FieldError, Key, Revision, Status};
use listwatch_storage::{CreateError, Decision, DeleteError, KeyValue, UpdateError};

use super::delete::plan_deletion;
use super::ip_families::{IpFamilies, ip_families};
use super::monotonic::Instant;
use super::node_ports::{NodePorts, PortsError, WantedPort};
use super::options::DeleteOptions;
use super::service_cidrs::ServiceCidrs;
use super::service_ranges::{ServiceRanges, candidates_of_all};
use super::store;
use listwatch_kinds::PORT_TAKEN;
use listwatch_meta::go;
use listwatch_registry::Backend;
use listwatch_registry::{Registry, Resource};
use listwatch_validation::clock::{Clock, parse_timestamp};
use listwatch_validation::formats::sloppy_ip;
use listwatch_validation::object_meta as meta;
use listwatch_validation::{child, texts};
use time::OffsetDateTime;

/// The maximum time between the first claim and the start of the store write of the service.
const STORE_WAIT: Duration = Duration::from_secs(30);
/// The minimum age of a claim that may be taken over, or that a repair may delete. The margin above [`STORE_WAIT`]
/// covers the duration of one store write and clock skew.
pub(super) const PENDING_WAIT: Duration = Duration::from_secs(90);

/// The maximum number of old claims in one request whose services are read, to find a claim without a service. Further
/// claims count as taken. A full range would otherwise cost one more read per candidate.
const OWNER_CHECKS_MAX: usize = 64;

/// The label of a claim with the IP family of the address, and its value.
pub(super) const FAMILY_LABEL: &str = "ipaddress.kubernetes.io/ip-family";
pub(super) const FAMILY: &str = "IPv4";
/// The label of a claim with the controller that manages the claim, and its value for claims of services.
pub(super) const MANAGER_LABEL: &str = "ipaddress.kubernetes.io/managed-by";
pub(super) const MANAGER: &str = "ipallocator.k8s.io";

/// The addresses and ports that a service still needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AllocationRequest {
    namespace: String,
    name: String,
    /// The requested cluster address: any address or a specific one. `None` if the service needs no address.
    address: Option<Requested<Ipv4Addr>>,
    ports: Vec<PortRequest>,
}

/// A node port that a service still needs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PortRequest {
    choice: WantedPort,
    /// The index in `spec.ports`; `None` for the health check port.
    index: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Requested<T> {
    Any,
    This(T),
}

impl<T: Copy> Requested<T> {
    /// Returns the chosen value, or `any` if no value was chosen.
    fn candidates(self, any: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
        let (chosen, any) = match self {
            Requested::Any => (None, Some(any)),
            Requested::This(chosen) => (Some(chosen), None),
        };
        chosen.into_iter().chain(any.into_iter().flatten())
    }
}

/// Returns a random number in a range.
fn random_in(range: RangeInclusive<u32>) -> u32 {
    rand::random_range(range)
}

/// The addresses and ports that were allocated for a service.
#[derive(Debug, Default)]
pub(super) struct Allocation {
    addresses: Vec<Ipv4Addr>,
    ports: Vec<u16>,
    /// The claims of addresses in the store; empty in a dry run.
    claims: Vec<Claim>,
    /// The ports that this write allocated in the store; empty in a dry run.
    claimed_ports: Vec<u16>,
    /// The start of the first allocation.
    since: Option<ClaimTime>,
}

/// The time at which a write began to claim addresses and ports.
#[derive(Clone, Copy, Debug)]
struct ClaimTime {
    instant: Instant,
    /// The time of the wall clock. The monotonic clock stops while the machine is suspended, and other servers compare
    /// the age of claims with the wall clock.
    time: OffsetDateTime,
}

impl ClaimTime {
    fn now(clock: &Clock) -> Self {
        ClaimTime { instant: Instant::now(), time: clock.time() }
    }

    /// Checks that claims of this time may still be used for a store write.
    ///
    /// # Errors
    /// 500 with the reason `ServerTimeout` when the claims are older than [`STORE_WAIT`] on one of the two clocks.
    fn check(self, clock: &Clock) -> Result<(), Status> {
        let is_old = self.instant.elapsed() > STORE_WAIT || clock.time() - self.time > STORE_WAIT;
        if is_old { Err(Status::server_timeout("create", SERVICES)) } else { Ok(()) }
    }
}

/// A claim in the store: the address, the key, and the revision of the key.
#[derive(Debug)]
struct Claim {
    of: Ipv4Addr,
    key: Key,
    made: Revision,
}

/// The allocators of addresses and ports on one server.
#[derive(Clone, Copy)]
pub(super) struct Allocators<'a> {
    pub(super) backend: &'a Backend,
    pub(super) registry: &'a Registry,
    pub(super) ranges: &'a ServiceRanges,
    pub(super) service_cidrs: &'a ServiceCidrs,
    pub(super) node_ports: &'a NodePorts,
}

/// The addresses and ports of a stored service.
#[derive(Debug, Default, PartialEq)]
struct AllocatedValues {
    /// The addresses of both families. A kube-apiserver may have stored an IPv6 address.
    addresses: BTreeSet<IpAddr>,
    ports: Vec<u16>,
}

pub(super) fn is_service(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.plural == "services"
}

/// The reason why [`Allocation::fill`] could not complete a service.
pub(super) enum AllocationError {
    /// An error that ends the write, with the Status for the client.
    Status(Box<Status>),
    /// The addresses and ports that must be claimed first.
    Unclaimed(AllocationRequest),
}

impl From<Status> for AllocationError {
    fn from(status: Status) -> Self {
        AllocationError::Status(Box::new(status))
    }
}

impl AllocationRequest {
    /// Claims all addresses and ports, or none.
    ///
    /// # Errors
    /// 422 when a chosen address or port is taken, 500 when a range is full, the store fails, or the search for an
    /// address takes longer than [`STORE_WAIT`].
    pub(super) async fn claim(
        self,
        allocators: Allocators<'_>,
        dry_run: bool,
        clock: &Clock,
    ) -> Result<Allocation, Status> {
        let since = ClaimTime::now(clock);
        let mut allocation = Allocation { since: Some(since), ..Allocation::default() };
        let result = self.claim_into(&mut allocation, allocators, dry_run, clock, since).await;
        match result {
            Ok(()) => Ok(allocation),
            Err(status) => {
                allocation.release(allocators).await;
                Err(status)
            }
        }
    }

    async fn claim_into(
        &self,
        allocation: &mut Allocation,
        Allocators { backend, registry, ranges, service_cidrs, node_ports }: Allocators<'_>,
        dry_run: bool,
        clock: &Clock,
        since: ClaimTime,
    ) -> Result<(), Status> {
        if let Some(choice) = self.address {
            let candidates = choice.candidates(candidates_of_all(&service_cidrs.usable(), random_in));
            let owner = (self.namespace.as_str(), self.name.as_str());
            let claim = |address| address_claim(registry, address, owner, clock);
            let address = self.claim_one(backend, (clock, since), dry_run, candidates, claim).await?;
            let Some((address, claim)) = address else {
                return Err(match choice {
                    Requested::Any => Status::internal(format_args!(
                        "failed to allocate a serviceIP for Service {}: range is full",
                        go::quote(&self.name)
                    )),
                    Requested::This(address) => self.invalid_address(address, "provided IP is already allocated"),
                });
            };
            allocation.addresses.push(address);
            allocation.claims.extend(claim.map(|(key, made)| Claim { of: address, key, made }));
        }
        if self.ports.is_empty() {
            return Ok(());
        }
        let wanted: Vec<WantedPort> = self.ports.iter().map(|request| request.choice).collect();
        match node_ports.allocate(backend, ranges, &wanted, dry_run, random_in).await {
            Ok(ports) => {
                if !dry_run {
                    allocation.claimed_ports.extend(&ports);
                }
                allocation.ports.extend(ports);
                Ok(())
            }
            Err(PortsError::Status(status)) => Err(*status),
            Err(PortsError::Unavailable(index)) => {
                Err(match self.ports.get(index).map(|request| (request.choice, request.index)) {
                    Some((WantedPort::This(port), Some(index))) => self.port_is_taken(index, port),
                    Some((WantedPort::This(port), None)) => no_health_check_port(port, PORT_TAKEN),
                    _ => Status::internal("failed to allocate a nodePort: range is full"),
                })
            }
        }
    }

    /// Claims the first free candidate. A dry run only checks that the candidate is free. Returns `None` if all
    /// candidates are taken. A later candidate is only tried if a service could still be stored with it.
    async fn claim_one<T: Copy>(
        &self,
        backend: &Backend,
        (clock, since): (&Clock, ClaimTime),
        dry_run: bool,
        candidates: impl Iterator<Item = T>,
        claim: impl Fn(T) -> Option<(Key, Bytes)>,
    ) -> Result<Option<(T, Option<(Key, Revision)>)>, Status> {
        let mut checks = OWNER_CHECKS_MAX;
        for chosen in candidates {
            since.check(clock)?;
            let Some((key, value)) = claim(chosen) else { return Ok(Some((chosen, None))) };
            if dry_run {
                let found = backend.storage().get(&key).await;
                let (found, _) = found.map_err(|error| store::read_failed(&error, SERVICES))?;
                let free = match found {
                    Some(found) => is_abandoned(backend, &found, clock, &mut checks).await?,
                    None => true,
                };
                if free {
                    return Ok(Some((chosen, None)));
                }
                continue;
            }
            match backend.storage().create(&key, value.clone(), None).await {
                Ok(made) => return Ok(Some((chosen, Some((key, made))))),
                Err(CreateError::AlreadyExists { current, .. }) => {
                    if is_abandoned(backend, &current, clock, &mut checks).await?
                        && let Some(made) = take_over(backend, &current, value).await
                    {
                        return Ok(Some((chosen, Some((key, made)))));
                    }
                }
                Err(CreateError::Fault(fault)) => {
                    return Err(store::store_failed("create", &fault, SERVICES));
                }
            }
        }
        Ok(None)
    }

    /// Whether the service chooses this port itself.
    fn requests_port(&self, port: u16) -> bool {
        self.ports.iter().any(|request| request.choice == WantedPort::This(port))
    }

    fn port_is_taken(&self, index: usize, port: u16) -> Status {
        let error = FieldError::invalid(format!("spec.ports[{index}].nodePort"), port, PORT_TAKEN);
        Status::invalid("", "Service", &self.name, &[error])
    }

    fn invalid_address(&self, address: Ipv4Addr, why: &str) -> Status {
        let why = format_args!("failed to allocate IP {address}: {why}");
        let error = FieldError::invalid("spec.clusterIPs", json!([address.to_string()]), why);
        Status::invalid("", "Service", &self.name, &[error])
    }
}

/// Returns the error message for a port outside the range of node ports.
fn out_of_range(ranges: &ServiceRanges) -> String {
    format!("provided port is not in the valid range. The range of valid ports is {}", ranges.node_ports())
}

/// Returns the error for an unavailable health check port. As in kube-apiserver, this is an internal error.
fn no_health_check_port(port: u16, why: &str) -> Status {
    Status::internal(format_args!("failed to allocate requested HealthCheck NodePort {port}: {why}"))
}

const SERVICES: listwatch_meta::GroupResource<'_> = listwatch_meta::GroupResource { group: "", resource: "services" };

/// Builds the `IPAddress` object that claims an address for the service with this namespace and name. Returns `None` if
/// that kind is not served.
pub(super) fn address_claim(
    registry: &Registry,
    address: Ipv4Addr,
    (namespace, name): (&str, &str),
    clock: &Clock,
) -> Option<(Key, Bytes)> {
    let resource = registry.find("networking.k8s.io", "v1", "ipaddresses")?;
    let key = resource.key(None, &address.to_string()).ok()?;
    let claim = json!({
        "kind": resource.kind,
        "apiVersion": resource.api_version(),
        "metadata": {
            "name": address.to_string(),
            "uid": store::new_uid(clock),
            "creationTimestamp": clock.now(),
            "labels": {FAMILY_LABEL: FAMILY, MANAGER_LABEL: MANAGER},
        },
        "spec": {"parentRef": {"resource": "services", "namespace": namespace, "name": name}},
    });
    Some((key, claim.to_string().into()))
}

/// Whether a claim is older than [`PENDING_WAIT`], and its service is absent or does not use the claimed value. Returns
/// false for claims of other resources, for unreadable claims, and when `checks` is 0. Each read of a service reduces
/// `checks` by one.
async fn is_abandoned(backend: &Backend, claim: &KeyValue, clock: &Clock, checks: &mut usize) -> Result<bool, Status> {
    let Some(checks_left) = checks.checked_sub(1) else { return Ok(false) };
    let Ok(object) = store::parse(claim) else { return Ok(false) };
    let made = parse_timestamp(meta::text(listwatch_validation::metadata(&object), "creationTimestamp"));
    if made.is_some_and(|made| clock.time() - made < PENDING_WAIT) {
        return Ok(false);
    }
    let Some((namespace, name)) = owner_of(&object) else { return Ok(false) };
    *checks = checks_left;
    is_in_use(backend, &object, namespace, name).await.map(|has| !has)
}

/// Returns the namespace and name of the service that a claim names. `None` for a claim of another object.
fn owner_of(claim: &Map) -> Option<(&str, &str)> {
    let parent = child(child(claim, "spec"), "parentRef");
    let text = |field: &str| parent.get(field).and_then(Value::as_str);
    let is_service = text("resource") == Some("services") && text("group").is_none_or(str::is_empty);
    text("namespace").zip(text("name")).filter(|_| is_service)
}

/// Whether the service that a claim names exists and uses the claimed value.
async fn is_in_use(backend: &Backend, claim: &Map, namespace: &str, name: &str) -> Result<bool, Status> {
    let registry = backend.registry();
    let Some(services) = registry.find("", "v1", "services") else { return Ok(true) };
    let Ok(key) = services.key(Some(namespace), name) else { return Ok(true) };
    let (found, _) = backend.storage().get(&key).await.map_err(|error| store::read_failed(&error, SERVICES))?;
    let Some(found) = found else { return Ok(false) };
    let claimed = meta::text(listwatch_validation::metadata(claim), "name");
    // An unreadable service may use any address.
    let Ok(service) = store::parse(&found) else { return Ok(true) };
    Ok(allocations_of(&service).addresses.iter().any(|address| address.to_string() == claimed))
}

/// Takes over an abandoned claim. Returns `None` if another write changed the claim at the same time.
async fn take_over(backend: &Backend, claim: &KeyValue, value: Bytes) -> Option<Revision> {
    backend.storage().update(&claim.key, claim.modified, value, None).await.ok()
}

/// Returns the addresses and the ports of a stored service.
fn allocations_of(service: &Map) -> AllocatedValues {
    let Some(spec) = service.get("spec").and_then(Value::as_object) else { return AllocatedValues::default() };
    let ports = spec.get("ports").and_then(Value::as_array).into_iter().flatten();
    AllocatedValues {
        // Old servers stored `clusterIP` alone.
        addresses: texts(spec, "clusterIPs").chain([meta::text(spec, "clusterIP")]).filter_map(cluster_ip).collect(),
        ports: ports.filter_map(node_port).chain(health_check_port(spec)).collect(),
    }
}

/// Parses a cluster IP. Old servers stored numbers with leading zeros.
fn cluster_ip(text: &str) -> Option<IpAddr> {
    sloppy_ip(text).map(|address| address.to_canonical())
}

/// Parses a cluster IP of the family IPv4.
pub(super) fn ipv4_address(text: &str) -> Option<Ipv4Addr> {
    match cluster_ip(text)? {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

/// Returns the health check port of a load balancer. Only services with `externalTrafficPolicy: Local` have such a
/// port.
fn health_check_port(spec: &Map) -> Option<u16> {
    if !needs_health_check(spec) {
        return None;
    }
    spec.get("healthCheckNodePort")?.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
}

fn needs_health_check(spec: &Map) -> bool {
    meta::text(spec, "type") == "LoadBalancer" && meta::text(spec, "externalTrafficPolicy") == "Local"
}

fn node_port(port: &Value) -> Option<u16> {
    port.get("nodePort")?.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
}

/// Releases the addresses and the ports of the service `before` that `after` no longer uses. `after` is `None` for a
/// deleted service, and `at` is the revision of the change. Only the write that made this change may call this function.
pub(super) async fn release_unused(
    allocators: Allocators<'_>,
    before: &Map,
    after: Option<&Map>,
    at: Revision,
    now: OffsetDateTime,
) {
    let since = Instant::now();
    let Allocators { backend, registry, ranges, node_ports, .. } = allocators;
    let kept = after.map(allocations_of).unwrap_or_default();
    let held = allocations_of(before);
    let unused: Vec<u16> = held.ports.iter().copied().filter(|port| !kept.ports.contains(port)).collect();
    node_ports.release(backend, ranges, &unused, since).await;
    let Some(resource) = registry.find("networking.k8s.io", "v1", "ipaddresses") else { return };
    let metadata = listwatch_validation::metadata(before);
    let service = (meta::text(metadata, "namespace"), meta::text(metadata, "name"));
    for address in held.addresses.difference(&kept.addresses) {
        if let Ok(key) = resource.key(None, &address.to_string())
            && let Err(error) = release_claim(backend, resource, &key, service, at, now).await
        {
            tracing::warn!(%key, %error, "a claim of a service was not released");
        }
    }
}

/// Deletes the claim at `key` if it names this service and is older than `at`, the revision at which the service
/// released the address.
async fn release_claim(
    backend: &Backend,
    resource: &Resource,
    key: &Key,
    service: (&str, &str),
    at: Revision,
    now: OffsetDateTime,
) -> Result<(), Status> {
    let (found, _) = backend.storage().get(key).await.map_err(|error| store::read_failed(&error, resource.gr()))?;
    let Some(found) = found else { return Ok(()) };
    let claim = store::parse_free(&found)?;
    // Another service may have the same address. A younger claim belongs to a later service of this name.
    if owner_of(&claim) == Some(service) && found.modified < at {
        delete_address(backend, resource, &found, claim, now).await?;
    }
    Ok(())
}

/// Deletes an `IPAddress` if it is still at the revision of `found`. `object` is its tree. If it has finalizers, only
/// marks it as being deleted. Returns whether the store was changed.
pub(super) async fn delete_address(
    backend: &Backend,
    resource: &Resource,
    found: &KeyValue,
    object: Map,
    now: OffsetDateTime,
) -> Result<bool, Status> {
    let (storage, gr) = (backend.storage(), resource.gr());
    match plan_deletion(resource, object, &DeleteOptions::default(), now)?.decision {
        Decision::Delete => match storage.delete(&found.key, found.modified).await {
            Ok(_) => Ok(true),
            Err(DeleteError::Conflict { .. }) => Ok(false),
            Err(DeleteError::Fault(fault)) => Err(store::store_failed("delete", &fault, gr)),
        },
        Decision::Write { value, ttl } => match storage.update(&found.key, found.modified, value, ttl).await {
            Ok(_) => Ok(true),
            Err(UpdateError::Conflict { .. }) => Ok(false),
            Err(UpdateError::Fault(fault)) => Err(store::store_failed("update", &fault, gr)),
        },
        Decision::Nothing => Ok(false),
    }
}

/// Deletes a claim that this server has just made, if its revision is still `made`. After a failure, the claim remains
/// until another write takes it over, or a repair deletes it.
pub(super) async fn delete_claim(backend: &Backend, key: &Key, made: Revision) {
    match backend.storage().delete(key, made).await {
        // Another service took over the claim.
        Ok(_) | Err(DeleteError::Conflict { .. }) => {}
        Err(error) => tracing::warn!(%key, %error, "a claim of a service was not released"),
    }
}

impl Allocation {
    /// Adds the addresses, ports and claims of a later allocation.
    pub(super) fn add(&mut self, more: Allocation) {
        self.addresses.extend(more.addresses);
        self.ports.extend(more.ports);
        self.claims.extend(more.claims);
        self.claimed_ports.extend(more.claimed_ports);
        self.since = self.since.or(more.since);
    }

    /// Releases everything that this write allocated. The service was not stored.
    pub(super) async fn release(&self, allocators: Allocators<'_>) {
        self.release_except(allocators, &AllocatedValues::default()).await;
    }

    /// Releases the claims of this write that the stored service does not use.
    pub(super) async fn release_unused_claims(&self, allocators: Allocators<'_>, service: &Map) {
        if !self.claims.is_empty() || !self.claimed_ports.is_empty() {
            self.release_except(allocators, &allocations_of(service)).await;
        }
    }

    async fn release_except(&self, allocators: Allocators<'_>, used: &AllocatedValues) {
        let Allocators { backend, ranges, node_ports, .. } = allocators;
        let unused: Vec<u16> = self.claimed_ports.iter().copied().filter(|port| !used.ports.contains(port)).collect();
        if let Some(since) = self.since {
            node_ports.release(backend, ranges, &unused, since.instant).await;
        }
        for claim in self.claims.iter().filter(|claim| !used.addresses.contains(&claim.of.into())) {
            delete_claim(backend, &claim.key, claim.made).await;
        }
    }

    /// Writes the allocated addresses and ports into a service. `old` is the previous state of the service.
    ///
    /// # Errors
    /// [`AllocationError::Unclaimed`] when an address or port must be claimed first; 422 when a chosen address or port
    /// is invalid.
    pub(super) fn fill(
        &self,
        Allocators { ranges, service_cidrs, .. }: Allocators<'_>,
        resource: &Resource,
        object: &mut Map,
        old: Option<&Map>,
    ) -> Result<(), AllocationError> {
        if !is_service(resource) {
            return Ok(());
        }
        let metadata = listwatch_validation::metadata(object);
        let mut request = AllocationRequest {
            namespace: meta::text(metadata, "namespace").to_owned(),
            name: meta::text(metadata, "name").to_owned(),
            ..AllocationRequest::default()
        };
        let old = old.and_then(|old| old.get("spec")?.as_object());
        let spec = listwatch_validation::child_mut(object, "spec");
        self.fill_address(service_cidrs, spec, old, &mut request)?;
        self.fill_ports(ranges, spec, old, &mut request)?;
        if request.address.is_some() || !request.ports.is_empty() {
            return Err(AllocationError::Unclaimed(request));
        }
        Ok(())
    }

    /// Checks that the claims are not too old for a store write that starts now.
    ///
    /// # Errors
    /// 500 with the reason `ServerTimeout` when the claims are older than [`STORE_WAIT`].
    pub(super) fn check_age(&self, clock: &Clock) -> Result<(), Status> {
        self.since.map_or(Ok(()), |since| since.check(clock))
    }

    fn fill_address(
        &self,
        service_cidrs: &ServiceCidrs,
        spec: &mut Map,
        old: Option<&Map>,
        request: &mut AllocationRequest,
    ) -> Result<(), AllocationError> {
        let external = |spec: &Map| meta::text(spec, "type") == "ExternalName";
        if external(spec) {
            // Validation rejects all of these values but empty ones and the default of the former type.
            for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"] {
                spec.shift_remove(field);
            }
            return Ok(());
        }
        let families = ip_families(spec, old);
        let families = families.map_err(|errors| Status::invalid("", "Service", &request.name, &errors))?;
        let Some(IpFamilies { policy, families }) = families else { return Ok(()) };
        let had = old.filter(|old| !external(old)).map(|old| meta::text(old, "clusterIP")).unwrap_or_default();
        let mut chosen = meta::text(spec, "clusterIP").to_owned();
        if had.is_empty() && chosen != "None" {
            let address = match chosen.as_str() {
                "" => Requested::Any,
                text => Requested::This(text.parse::<Ipv4Addr>().map_err(|_| {
                    let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
                    let error = FieldError::invalid("spec.clusterIPs[0]", go::quote(text), why);
                    Status::invalid("", "Service", &request.name, &[error])
                })?),
            };
            if let Requested::This(address) = address
                && !service_cidrs.is_usable(address)
            {
                let why = "the provided network does not match the current range";
                return Err(request.invalid_address(address, why).into());
            }
            let allocated = self.addresses.iter().find(|allocated| match address {
                Requested::Any => true,
                Requested::This(address) => address == **allocated,
            });
            match allocated {
                Some(allocated) => chosen = allocated.to_string(),
                None => {
                    request.address = Some(address);
                    return Ok(());
                }
            }
        }
        spec.insert("clusterIP", Value::from(chosen.as_str()));
        spec.insert("clusterIPs", json!([chosen]));
        spec.insert("ipFamilies", json!(families));
        spec.insert("ipFamilyPolicy", Value::from(policy));
        Ok(())
    }

    fn fill_ports(
        &self,
        ranges: &ServiceRanges,
        spec: &mut Map,
        old: Option<&Map>,
        request: &mut AllocationRequest,
    ) -> Result<(), AllocationError> {
        let kind = meta::text(spec, "type").to_owned();
        let allocate = spec.get("allocateLoadBalancerNodePorts") != Some(&Value::Bool(false));
        let outside = kind == "NodePort" || (kind == "LoadBalancer" && allocate);
        // Validation rejects all of these values but empty ones, which Go omits.
        if meta::text(spec, "externalTrafficPolicy").is_empty() {
            spec.shift_remove("externalTrafficPolicy");
        }
        if !needs_health_check(spec) {
            spec.shift_remove("healthCheckNodePort");
        }
        let old_ports = old.and_then(|old| old.get("ports")?.as_array()).map(Vec::as_slice).unwrap_or_default();
        let old_health_check = old.and_then(health_check_port);
        let had: Vec<u16> = old_ports.iter().filter_map(node_port).chain(old_health_check).collect();
        // In a new service, ports with the same number share a node port across protocols. Ports added later do not.
        let begins = old.is_none();
        let health_check = needs_health_check(spec).then(|| health_check_port(spec));
        let mut own: HashMap<u64, u16> = HashMap::new();
        let mut asked_for: HashSet<u64> = HashSet::new();
        let Some(Value::Array(ports)) = spec.get_mut("ports") else { return Ok(()) };
        let explicit: Vec<u16> = ports.iter().filter_map(node_port).chain(health_check.flatten()).collect();
        for port in ports.iter().filter(|_| begins) {
            if let (Some(number), Some(chosen)) = (port.get("port").and_then(Value::as_u64), node_port(port)) {
                own.entry(number).or_insert(chosen);
            }
        }
        let mut free = self.ports.iter().copied().filter(|port| !explicit.contains(port));
        let ask = |request: &mut AllocationRequest, port: u16, index: Option<usize>| {
            if !had.contains(&port) && !self.ports.contains(&port) && !request.requests_port(port) {
                request.ports.push(PortRequest { choice: WantedPort::This(port), index });
            }
        };
        // No other port may use the number of the health check port.
        let checked_at = health_check.and_then(|asked| asked.or(old_health_check));
        for (index, port) in ports.iter_mut().enumerate() {
            let Value::Object(port_fields) = port else { continue };
            if !matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
                // kube-apiserver stores the node port of an ExternalName, and later releases it although another service
                // may use it.
                port_fields.shift_remove("nodePort");
                continue;
            }
            let asked = port_fields.get("nodePort").and_then(Value::as_i64).filter(|port| *port != 0);
            if let Some(asked) = asked {
                let valid = u16::try_from(asked).ok().filter(|port| ranges.has_port(*port));
                let Some(asked) = valid else {
                    let why = out_of_range(ranges);
                    let error = FieldError::invalid(format!("spec.ports[{index}].nodePort"), asked, why);
                    return Err(Status::invalid("", "Service", &request.name, &[error]).into());
                };
                if checked_at == Some(asked) {
                    if old_health_check != checked_at {
                        return Err(no_health_check_port(asked, PORT_TAKEN).into());
                    }
                    if !old_ports.iter().filter_map(node_port).any(|port| port == asked) {
                        return Err(request.port_is_taken(index, asked).into());
                    }
                }
                ask(request, asked, Some(index));
                continue;
            }
            if !outside {
                continue;
            }
            let number = port_fields.get("port").and_then(Value::as_u64).filter(|_| begins);
            let shared = number.and_then(|number| own.get(&number).copied());
            if number.is_some_and(|number| shared.is_none() && asked_for.contains(&number)) {
                continue;
            }
            match shared.or_else(|| free.next()) {
                Some(allocated) => {
                    own.extend(number.map(|number| (number, allocated)));
                    port_fields.insert("nodePort", json!(allocated));
                }
                None => {
                    asked_for.extend(number);
                    request.ports.push(PortRequest { choice: WantedPort::Any, index: Some(index) });
                }
            }
        }
        match health_check {
            None => {}
            Some(Some(asked)) if had.contains(&asked) || ranges.has_port(asked) => ask(request, asked, None),
            Some(Some(asked)) => {
                return Err(no_health_check_port(asked, &out_of_range(ranges)).into());
            }
            Some(None) => match old_health_check.or_else(|| free.next()) {
                Some(allocated) => {
                    spec.insert("healthCheckNodePort", json!(allocated));
                }
                None => request.ports.push(PortRequest { choice: WantedPort::Any, index: None }),
            },
        }
        Ok(())
    }
}
