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
//! of [`super::node_ports`].
//!
//! Two services never share an address, for three reasons:
//! - A service is stored only by the write that made its claims and knows their revisions. Directly before the store
//!   write, the age of the claims must be below [`STORE_WAIT`] ([`Allocation::check_age`]). Otherwise the write fails
//!   and deletes its claims. The rule also holds with slow admission plugins and long request timeouts.
//! - A crash or an unknown outcome can leave a claim without a service. The next write that needs the address takes
//!   over the claim, but only after [`PENDING_WAIT`]. Before that, another server may still store the service.
//! - A claim is deleted only at the revision at which it was made. After the deletion of a service, a claim is deleted
//!   only if it is older than that deletion. A claim that was taken over is never deleted by its former owner.
//!
//! Limits:
//! - If a user deletes an `IPAddress` while its service exists, another service may receive the same address. The claim
//!   of an existing service is never recreated.
//! - The addresses of services that were stored by a server without claims count as free.
//! - If a client cancels its request between claim and store, the address stays blocked for [`PENDING_WAIT`]. The node
//!   ports stay blocked until the third consecutive run of the node port repair.

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use listwatch_json::{Map, Value, json};
use listwatch_meta::{FieldError, Key, Revision, Status};
use listwatch_storage::{CreateError, DeleteError};

use super::monotonic::Instant;
use super::node_ports::{NodePorts, PortsError, WantedPort};
use super::service_ranges::ServiceRanges;
use super::store;
use listwatch_kinds::PORT_TAKEN;
use listwatch_meta::go;
use listwatch_registry::Backend;
use listwatch_registry::{Registry, Resource};
use listwatch_validation::clock::{Clock, parse_timestamp};
use listwatch_validation::object_meta as meta;

/// The maximum time between the first claim and the start of the store write of the service.
const STORE_WAIT: Duration = Duration::from_secs(30);
/// The minimum age of a claim that may be taken over. The margin above [`STORE_WAIT`] covers the duration of one store
/// write and clock skew.
const PENDING_WAIT: Duration = Duration::from_secs(90);

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
    /// The start time of the first allocation.
    since: Option<Instant>,
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
    pub(super) node_ports: &'a NodePorts,
}

/// The addresses and ports of a stored service.
#[derive(Debug, Default, PartialEq)]
struct AllocatedValues {
    address: Option<Ipv4Addr>,
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
    /// 422 when a chosen address or port is taken, 500 when a range is full or the store fails.
    pub(super) async fn claim(
        self,
        allocators: Allocators<'_>,
        dry_run: bool,
        clock: &Clock,
    ) -> Result<Allocation, Status> {
        let mut allocation = Allocation { since: Some(Instant::now()), ..Allocation::default() };
        let result = self.claim_into(&mut allocation, allocators, dry_run, clock).await;
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
        Allocators { backend, registry, ranges, node_ports }: Allocators<'_>,
        dry_run: bool,
        clock: &Clock,
    ) -> Result<(), Status> {
        if let Some(choice) = self.address {
            let candidates = choice.candidates(ranges.address_candidates(random_in));
            let claim = |address| address_claim(registry, address, self, clock);
            let address = self.claim_one(backend, clock, dry_run, candidates, claim).await?;
            let Some((address, claim)) = address else {
                return Err(match choice {
                    Requested::Any => Status::internal("failed to allocate a serviceIP: range is full"),
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
    /// candidates are taken.
    async fn claim_one<T: Copy>(
        &self,
        backend: &Backend,
        clock: &Clock,
        dry_run: bool,
        candidates: impl Iterator<Item = T>,
        claim: impl Fn(T) -> Option<(Key, Bytes)>,
    ) -> Result<Option<(T, Option<(Key, Revision)>)>, Status> {
        for chosen in candidates {
            let Some((key, value)) = claim(chosen) else { return Ok(Some((chosen, None))) };
            if dry_run {
                let found = backend.storage().get(&key).await;
                let (found, _) = found.map_err(|error| store::read_failed(&error, SERVICES))?;
                let free = match found {
                    Some(found) => is_abandoned(backend, &found, clock).await?,
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
                    if is_abandoned(backend, &current, clock).await?
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

/// Builds the `IPAddress` object that claims an address. Returns `None` if that kind is not served.
fn address_claim(
    registry: &Registry,
    address: Ipv4Addr,
    owner: &AllocationRequest,
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
            "labels": {
                "ipaddress.kubernetes.io/ip-family": "IPv4",
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            },
        },
        "spec": {"parentRef": {"resource": "services", "namespace": owner.namespace, "name": owner.name}},
    });
    Some((key, claim.to_string().into()))
}

/// Whether a claim is older than [`PENDING_WAIT`], and its service is absent or does not use the claimed value. Returns
/// false for claims of other resources and for unreadable claims.
async fn is_abandoned(backend: &Backend, claim: &listwatch_storage::KeyValue, clock: &Clock) -> Result<bool, Status> {
    let Ok(object) = store::parse(claim) else { return Ok(false) };
    let made = parse_timestamp(meta::text(listwatch_validation::metadata(&object), "creationTimestamp"));
    if made.is_some_and(|made| clock.time() - made < PENDING_WAIT) {
        return Ok(false);
    }
    is_in_use(backend, &object).await.map(|has| !has)
}

/// Whether the service that a claim names exists and uses the claimed value.
async fn is_in_use(backend: &Backend, object: &Map) -> Result<bool, Status> {
    let owner = |field: &str| object.get("spec")?.get("parentRef")?.get(field)?.as_str();
    if owner("resource") != Some("services") || owner("group").is_some_and(|group| !group.is_empty()) {
        return Ok(true);
    }
    let (Some(namespace), Some(name)) = (owner("namespace"), owner("name")) else { return Ok(true) };
    let registry = backend.registry();
    let Some(services) = registry.find("", "v1", "services") else { return Ok(true) };
    let Ok(key) = services.key(Some(namespace), name) else { return Ok(true) };
    let (found, _) = backend.storage().get(&key).await.map_err(|error| store::read_failed(&error, SERVICES))?;
    let Some(found) = found else { return Ok(false) };
    let claimed = meta::text(listwatch_validation::metadata(object), "name");
    // An unreadable service may use any address.
    let Ok(service) = store::parse(&found) else { return Ok(true) };
    Ok(allocations_of(&service).address.is_some_and(|address| address.to_string() == claimed))
}

/// Takes over an abandoned claim. Returns `None` if another write changed the claim at the same time.
async fn take_over(backend: &Backend, claim: &listwatch_storage::KeyValue, value: Bytes) -> Option<Revision> {
    backend.storage().update(&claim.key, claim.modified, value, None).await.ok()
}

/// Returns the address and the ports of a stored service.
fn allocations_of(service: &Map) -> AllocatedValues {
    let Some(spec) = service.get("spec").and_then(Value::as_object) else { return AllocatedValues::default() };
    let ports = spec.get("ports").and_then(Value::as_array).into_iter().flatten();
    AllocatedValues {
        address: meta::text(spec, "clusterIP").parse().ok(),
        ports: ports.filter_map(node_port).chain(health_check_port(spec)).collect(),
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

/// Releases the address and the ports of `before` that `after` no longer uses (`None`: the service was deleted) since
/// revision `at`. Only the write that made this change may call this function.
pub(super) async fn release_unused(
    allocators: Allocators<'_>,
    resource: &Resource,
    before: &Map,
    after: Option<&Map>,
    at: Revision,
) {
    if !is_service(resource) {
        return;
    }
    let since = Instant::now();
    let Allocators { backend, registry, ranges, node_ports } = allocators;
    let kept = after.map(allocations_of).unwrap_or_default();
    let held = allocations_of(before);
    let unused: Vec<u16> = held.ports.iter().copied().filter(|port| !kept.ports.contains(port)).collect();
    node_ports.release(backend, ranges, &unused, since).await;
    let address = held.address.filter(|address| kept.address != Some(*address));
    let key = address.and_then(|address| {
        registry.find("networking.k8s.io", "v1", "ipaddresses")?.key(None, &address.to_string()).ok()
    });
    // A younger claim belongs to another service.
    if let Some(key) = key
        && let Ok((Some(found), _)) = backend.storage().get(&key).await
        && found.modified < at
    {
        delete_claim(backend, &key, found.modified).await;
    }
}

/// Deletes a claim if its revision is still `made`. After a failure, the claim remains until another write takes it
/// over.
async fn delete_claim(backend: &Backend, key: &Key, made: Revision) {
    match backend.storage().delete(key, made).await {
        // Another service took over the claim.
        Ok(_) | Err(DeleteError::Conflict { .. }) => {}
        Err(error) => tracing::warn!(%key, %error, "a claim of a service was not released"),
    }
}

impl Allocation {
    /// Adds the addresses, ports and claims of another allocation.
    pub(super) fn add(&mut self, more: Allocation) {
        self.addresses.extend(more.addresses);
        self.ports.extend(more.ports);
        self.claims.extend(more.claims);
        self.claimed_ports.extend(more.claimed_ports);
        self.since = [self.since, more.since].into_iter().flatten().min();
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
            node_ports.release(backend, ranges, &unused, since).await;
        }
        for claim in self.claims.iter().filter(|claim| used.address != Some(claim.of)) {
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
        ranges: &ServiceRanges,
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
        self.fill_address(ranges, spec, old, &mut request)?;
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
    pub(super) fn check_age(&self) -> Result<(), Status> {
        match self.since {
            Some(since) if since.elapsed() > STORE_WAIT => Err(Status::server_timeout("create", SERVICES)),
            _ => Ok(()),
        }
    }

    fn fill_address(
        &self,
        ranges: &ServiceRanges,
        spec: &mut Map,
        old: Option<&Map>,
        request: &mut AllocationRequest,
    ) -> Result<(), AllocationError> {
        const ADDRESS_FIELDS: [&str; 4] = ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"];
        let external = |spec: &Map| meta::text(spec, "type") == "ExternalName";
        if external(spec) {
            for field in ADDRESS_FIELDS.iter().chain(&["internalTrafficPolicy"]) {
                spec.shift_remove(field);
            }
            return Ok(());
        }
        let had = old.filter(|old| !external(old)).map(|old| meta::text(old, "clusterIP")).unwrap_or_default();
        let first = |spec: &Map| Some(spec.get("clusterIPs")?.as_array()?.first()?.as_str()?.to_owned());
        let mut chosen = match meta::text(spec, "clusterIP") {
            "" => first(spec).unwrap_or_default(),
            chosen => chosen.to_owned(),
        };
        if chosen.is_empty() {
            had.clone_into(&mut chosen);
        }
        if !had.is_empty() && chosen != had {
            let error = FieldError::invalid("spec.clusterIPs[0]", json!([chosen]), "may not change once set");
            return Err(Status::invalid("", "Service", &request.name, &[error]).into());
        }
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
                && !ranges.has_address(address)
            {
                let why = "the provided network does not match the current range";
                return Err(request.invalid_address(address, why).into());
            }
            if let Requested::This(address) = address
                && !ranges.is_allocatable(address)
            {
                let why = format!(
                    "the provided IP ({address}) is not in the valid range. The range of valid IPs is {}",
                    ranges.cluster_addresses()
                );
                return Err(request.invalid_address(address, &why).into());
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
        let headless = chosen == "None";
        spec.insert("clusterIP", Value::from(chosen.as_str()));
        spec.insert("clusterIPs", json!([chosen]));
        let families = spec.get("ipFamilies").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
        if !families || !headless {
            spec.insert("ipFamilies", json!(["IPv4"]));
        }
        if meta::text(spec, "ipFamilyPolicy").is_empty() {
            spec.insert("ipFamilyPolicy", json!("SingleStack"));
        }
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
        if !matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
            spec.shift_remove("allocateLoadBalancerNodePorts");
            spec.shift_remove("healthCheckNodePort");
            if spec.get("externalIPs").and_then(Value::as_array).is_none_or(Vec::is_empty) {
                spec.shift_remove("externalTrafficPolicy");
            }
        }
        if meta::text(spec, "externalTrafficPolicy") != "Local" {
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
            // A manifest that is applied again does not contain the allocated port.
            let same = old_ports.iter().find(|old| {
                old.get("port") == port_fields.get("port") && old.get("protocol") == port_fields.get("protocol")
            });
            let number = port_fields.get("port").and_then(Value::as_u64).filter(|_| begins);
            let kept = same.and_then(node_port).filter(|port| !explicit.contains(port));
            let shared = number.and_then(|number| own.get(&number).copied());
            if number.is_some_and(|number| shared.is_none() && asked_for.contains(&number)) {
                continue;
            }
            match kept.or(shared).or_else(|| free.next()) {
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
