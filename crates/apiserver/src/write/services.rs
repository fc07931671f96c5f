//! Addresses and ports of services: which a service wants, and how they are claimed so that no two
//! services, of any server on the same store, ever have the same.
//!
//! ```text
//!  service wants an address ─▶ create IPAddress 10.96.x.y ─▶ store the service ─▶ (failed: delete it)
//!                                   taken? another one
//! ```
//!
//! A claim is a key of its own, created before the service and removed behind it: an `IPAddress`
//! object for an address, as kube-apiserver does since v1.33, and a key below `/ranges/` for a node
//! port.
//!
//! Why no two services have the same:
//! - Only who made a claim, and knows its revision, stores a service with it, and does so within
//!   [`STORE_WAIT`].
//! - A claim that a crash left behind, or a write of which nobody knows whether it happened, is taken over by
//!   the next one who comes upon it, but not before it is [`PENDING_WAIT`] old: until then its service may be
//!   on its way to the store, also on another server.
//! - A claim is given back at the revision at which it was made, or, behind a service that is gone, when it is
//!   older than that end. One that was taken over meanwhile is neither.
//!
//! What this does not cover:
//! - An `IPAddress` that somebody deletes by hand while its service has the address: the next one who comes
//!   may have it too. Nobody makes another claim for a service that is there.
//! - Services that another server stored without claims, such as those of a kube-apiserver, which keeps its
//!   node ports in one bitmap: what they hold looks free.
//! - A request that its client gives up between claim and store: nobody has the service, and what was claimed
//!   for it is free again only after [`PENDING_WAIT`].

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use listwatch_meta::{FieldError, Key, Revision, Status};
use listwatch_storage::{CreateError, DeleteError};
use serde_json::{Map, Value, json};

use super::{Clock, parse_timestamp, store};
use crate::backend::Backend;
use crate::registry::{Registry, Resource};
use listwatch_meta::go;
use listwatch_validation::object_meta as meta;

/// Cluster addresses come from 10.96.0.0/16, the range most clusters use.
const CLUSTER_NETWORK: u32 = u32::from_be_bytes([10, 96, 0, 0]);
const CLUSTER_PREFIX_BITS: u32 = 16;
/// Addresses below this offset are only given to who asks for them by name (cluster DNS and the
/// like).
const FIRST_FREE_OFFSET: u32 = 256;
/// The address of the service `kubernetes`: the first of the range.
const KUBERNETES_SERVICE_OFFSET: u32 = 1;
/// Node ports come from this range (`--service-node-port-range`).
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;
/// Random node ports come from this part of the range first, so that the part below stays free for those who choose
/// (KEP-3668: the static band has 16 to 128 ports, here 86).
const DYNAMIC_NODE_PORTS: std::ops::RangeInclusive<u16> = 30_086..=32_767;
/// So many random candidates are tried before the range counts as full; then the client gets a 500.
const CANDIDATES_MAX: usize = 512;

/// A service is stored so long after its first claim, or not at all.
const STORE_WAIT: Duration = Duration::from_secs(30);
/// A claim whose service cannot be found counts as left behind when it is this old. What is more than
/// [`STORE_WAIT`] is for a slow store and for clocks that differ.
const PENDING_WAIT: Duration = Duration::from_secs(90);

/// The address at which clients inside the cluster find the API server.
pub(crate) fn kubernetes_service_address() -> Ipv4Addr {
    Ipv4Addr::from(CLUSTER_NETWORK + KUBERNETES_SERVICE_OFFSET)
}

/// The range of cluster addresses, in CIDR notation.
pub(crate) fn service_range() -> String {
    format!("{}/{CLUSTER_PREFIX_BITS}", Ipv4Addr::from(CLUSTER_NETWORK))
}

/// What a service still needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Wanted {
    namespace: String,
    name: String,
    /// An address: any, or this one.
    address: Option<Choice<Ipv4Addr>>,
    ports: Vec<WantedPort>,
}

/// A node port that a service still needs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct WantedPort {
    choice: Choice<u16>,
    /// The place in `spec.ports` of who wants it; `None`: it is for health checks.
    place: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Choice<T> {
    Any,
    This(T),
}

/// What was claimed for a service.
#[derive(Debug, Default)]
pub(super) struct Grant {
    addresses: Vec<Ipv4Addr>,
    ports: Vec<u16>,
    /// The claims; empty when only tried.
    claims: Vec<Claim>,
    /// When the first of them was begun.
    since: Option<Instant>,
}

/// A claim that was made for a service.
#[derive(Debug)]
struct Claim {
    of: Claimed,
    key: Key,
    made: Revision,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Claimed {
    Address(Ipv4Addr),
    Port(u16),
}

fn is_service(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.plural == "services"
}

/// Why what a service has could not be written in.
pub(super) enum Unfilled {
    /// The client is told this.
    Status(Box<Status>),
    /// Something has to be claimed first.
    Wants(Wanted),
}

impl From<Status> for Unfilled {
    fn from(status: Status) -> Self {
        Unfilled::Status(Box::new(status))
    }
}

impl Wanted {
    /// Claims everything, or nothing.
    ///
    /// # Errors
    /// 422 when what the client chose is taken, 500 when a range is full or the store fails.
    pub(super) async fn claim(
        self,
        backend: &Backend,
        registry: &Registry,
        dry_run: bool,
        clock: &Clock,
    ) -> Result<Grant, Status> {
        let mut grant = Grant { since: Some(Instant::now()), ..Grant::default() };
        let result = self.claim_into(&mut grant, backend, registry, dry_run, clock).await;
        match result {
            Ok(()) => Ok(grant),
            Err(status) => {
                grant.release(backend).await;
                Err(status)
            }
        }
    }

    async fn claim_into(
        &self,
        grant: &mut Grant,
        backend: &Backend,
        registry: &Registry,
        dry_run: bool,
        clock: &Clock,
    ) -> Result<(), Status> {
        if let Some(choice) = self.address {
            let candidate = || {
                let offset = rand::random_range(FIRST_FREE_OFFSET..(1 << (32 - CLUSTER_PREFIX_BITS)) - 1);
                Some(Ipv4Addr::from(CLUSTER_NETWORK + offset))
            };
            let address = self
                .claim_one(backend, clock, dry_run, choice, candidate, |address| {
                    address_claim(registry, address, self, clock)
                })
                .await?;
            let Some((address, claim)) = address else {
                return Err(match choice {
                    Choice::Any => Status::internal("failed to allocate a serviceIP: range is full"),
                    Choice::This(address) => self.invalid_address(address, "provided IP is already allocated"),
                });
            };
            grant.addresses.push(address);
            grant.claims.extend(claim.map(|(key, made)| Claim { of: Claimed::Address(address), key, made }));
        }
        for wanted in &self.ports {
            // Another drawn one is only known by the grant when nothing is claimed.
            let free = |port: &u16| !grant.ports.contains(port) && !self.asks_for(*port);
            let tries = AtomicUsize::new(0);
            let candidate = || {
                let tried = tries.fetch_add(1, Ordering::Relaxed);
                let band = if tried < CANDIDATES_MAX / 2 { DYNAMIC_NODE_PORTS } else { NODE_PORTS };
                Some(rand::random_range(band)).filter(free)
            };
            let port = self
                .claim_one(backend, clock, dry_run, wanted.choice, candidate, |port| port_claim(port, self, clock))
                .await?;
            let Some((port, claim)) = port else {
                return Err(match (wanted.choice, wanted.place) {
                    (Choice::Any, _) => Status::internal("failed to allocate a nodePort: range is full"),
                    (Choice::This(port), Some(place)) => self.port_is_taken(place, port),
                    (Choice::This(port), None) => no_health_check_port(port, PORT_TAKEN),
                });
            };
            grant.ports.push(port);
            grant.claims.extend(claim.map(|(key, made)| Claim { of: Claimed::Port(port), key, made }));
        }
        Ok(())
    }

    /// Claims what was chosen, or the first free candidate; in a dry run it only looks whether that could be.
    /// `None`: taken, or none is free.
    async fn claim_one<T: Copy>(
        &self,
        backend: &Backend,
        clock: &Clock,
        dry_run: bool,
        choice: Choice<T>,
        candidate: impl Fn() -> Option<T>,
        claim: impl Fn(T) -> Option<(Key, Bytes)>,
    ) -> Result<Option<(T, Option<(Key, Revision)>)>, Status> {
        let candidates = match choice {
            Choice::Any => CANDIDATES_MAX,
            Choice::This(_) => 1,
        };
        for _ in 0..candidates {
            let chosen = match choice {
                Choice::Any => candidate(),
                Choice::This(chosen) => Some(chosen),
            };
            let Some(chosen) = chosen else { continue };
            let Some((key, value)) = claim(chosen) else { return Ok(Some((chosen, None))) };
            if dry_run {
                let found = backend.storage().get(&key).await;
                let (found, _) = found.map_err(|error| store::read_failed(&error, SERVICES))?;
                let free = match found {
                    Some(found) => is_left_behind(backend, &found, clock).await?,
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
                    if is_left_behind(backend, &current, clock).await?
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

    /// Does the service name this port itself?
    fn asks_for(&self, port: u16) -> bool {
        self.ports.iter().any(|wanted| wanted.choice == Choice::This(port))
    }

    fn port_is_taken(&self, place: usize, port: u16) -> Status {
        let error = FieldError::invalid(format!("spec.ports[{place}].nodePort"), port, PORT_TAKEN);
        Status::invalid("", "Service", &self.name, &[error])
    }

    fn invalid_address(&self, address: Ipv4Addr, why: &str) -> Status {
        let why = format_args!("failed to allocate IP {address}: {why}");
        let error = FieldError::invalid("spec.clusterIPs", json!([address.to_string()]), why);
        Status::invalid("", "Service", &self.name, &[error])
    }
}

/// Why a node port that was chosen cannot be had.
use listwatch_kinds::PORT_TAKEN;

/// The answer about a chosen port for health checks, which kube-apiserver gives as its own failure.
fn no_health_check_port(port: u16, why: &str) -> Status {
    Status::internal(format_args!("failed to allocate requested HealthCheck NodePort {port}: {why}"))
}

const SERVICES: listwatch_meta::GroupResource<'_> = listwatch_meta::GroupResource { group: "", resource: "services" };

/// The `IPAddress` object that claims an address; `None` where that kind is not served.
fn address_claim(registry: &Registry, address: Ipv4Addr, owner: &Wanted, clock: &Clock) -> Option<(Key, Bytes)> {
    let resource = registry.find("networking.k8s.io", "v1", "ipaddresses")?;
    let key = resource.key(None, &address.to_string()).ok()?;
    let claim = json!({
        "kind": resource.kind,
        "apiVersion": resource.api_version(),
        "metadata": {
            "name": address.to_string(),
            "uid": super::new_uid(clock),
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

/// The key that claims a node port. It belongs to no resource, so no client sees it.
fn port_claim(port: u16, owner: &Wanted, clock: &Clock) -> Option<(Key, Bytes)> {
    let key = port_key(port)?;
    let claim = json!({
        "metadata": {"name": port.to_string(), "creationTimestamp": clock.now()},
        "spec": {"parentRef": {"resource": "services", "namespace": owner.namespace, "name": owner.name}},
    });
    Some((key, claim.to_string().into()))
}

fn port_key(port: u16) -> Option<Key> {
    Key::new("ranges/servicenodeports", None, &port.to_string()).ok()
}

/// Is a claim old, and the service that it names gone or without what is claimed? Never so is a claim for
/// something else than a service: those are made and removed by others. Nor is one that cannot be read.
async fn is_left_behind(backend: &Backend, claim: &listwatch_storage::KeyValue, clock: &Clock) -> Result<bool, Status> {
    let Ok(object) = store::parse(claim) else { return Ok(false) };
    let made = parse_timestamp(meta::text(listwatch_validation::metadata(&object), "creationTimestamp"));
    if made.is_some_and(|made| clock.time() - made < PENDING_WAIT) {
        return Ok(false);
    }
    owner_has_it(backend, &object).await.map(|has| !has)
}

/// Does the service that a claim names exist and hold what is claimed?
async fn owner_has_it(backend: &Backend, object: &Map<String, Value>) -> Result<bool, Status> {
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
    // A service that cannot be read is there, and may hold anything.
    let Ok(service) = store::parse(&found) else { return Ok(true) };
    Ok(holdings(&service).iter().any(|held| match held {
        Claimed::Address(address) => address.to_string() == claimed,
        Claimed::Port(port) => port.to_string() == claimed,
    }))
}

/// Makes a claim whose owner is gone ours, if nobody else does at the same moment.
async fn take_over(backend: &Backend, claim: &listwatch_storage::KeyValue, value: Bytes) -> Option<Revision> {
    backend.storage().update(&claim.key, claim.modified, value, None).await.ok()
}

/// What a stored service has.
fn holdings(service: &Map<String, Value>) -> Vec<Claimed> {
    let Some(spec) = service.get("spec").and_then(Value::as_object) else { return Vec::new() };
    let address = meta::text(spec, "clusterIP").parse().ok().map(Claimed::Address);
    let ports = spec.get("ports").and_then(Value::as_array).into_iter().flatten();
    let ports = ports.filter_map(node_port).chain(health_check_port(spec)).map(Claimed::Port);
    address.into_iter().chain(ports).collect()
}

/// The port at which a load balancer asks whether a node has endpoints; only who keeps traffic on its node
/// has one.
fn health_check_port(spec: &Map<String, Value>) -> Option<u16> {
    if !needs_health_check(spec) {
        return None;
    }
    spec.get("healthCheckNodePort")?.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
}

fn needs_health_check(spec: &Map<String, Value>) -> bool {
    meta::text(spec, "type") == "LoadBalancer" && meta::text(spec, "externalTrafficPolicy") == "Local"
}

fn node_port(port: &Value) -> Option<u16> {
    port.get("nodePort")?.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
}

/// Gives back what a service had and its successor (`None`: it is gone) no longer has since revision `at`.
pub(super) async fn release_unused(
    backend: &Backend,
    registry: &Registry,
    resource: &Resource,
    before: &Map<String, Value>,
    after: Option<&Map<String, Value>>,
    at: Revision,
) {
    if !is_service(resource) {
        return;
    }
    let kept = after.map(holdings).unwrap_or_default();
    for held in holdings(before).into_iter().filter(|held| !kept.contains(held)) {
        let key = match held {
            Claimed::Address(address) => registry
                .find("networking.k8s.io", "v1", "ipaddresses")
                .and_then(|resource| resource.key(None, &address.to_string()).ok()),
            Claimed::Port(port) => port_key(port),
        };
        // A younger claim is somebody else's.
        if let Some(key) = key
            && let Ok((Some(found), _)) = backend.storage().get(&key).await
            && found.modified < at
        {
            forget(backend, &key, found.modified).await;
        }
    }
}

/// Removes a claim as it was made. What fails here is only a claim too many, which can be taken over.
async fn forget(backend: &Backend, key: &Key, made: Revision) {
    match backend.storage().delete(key, made).await {
        // Somebody took it over.
        Ok(_) | Err(DeleteError::Conflict { .. }) => {}
        Err(error) => tracing::warn!(%key, %error, "a claim of a service stays behind"),
    }
}

impl Grant {
    /// Adds what was claimed later.
    pub(super) fn add(&mut self, more: Grant) {
        self.addresses.extend(more.addresses);
        self.ports.extend(more.ports);
        self.claims.extend(more.claims);
        self.since = [self.since, more.since].into_iter().flatten().min();
    }

    /// Gives everything back.
    pub(super) async fn release(&self, backend: &Backend) {
        for claim in &self.claims {
            forget(backend, &claim.key, claim.made).await;
        }
    }

    /// Gives back what the stored service does not use: others may have changed it meanwhile.
    pub(super) async fn keep_used(&self, backend: &Backend, service: &Map<String, Value>) {
        if self.claims.is_empty() {
            return;
        }
        let used = holdings(service);
        for claim in self.claims.iter().filter(|claim| !used.contains(&claim.of)) {
            forget(backend, &claim.key, claim.made).await;
        }
    }

    /// Writes addresses and ports into a service, whose former state is `old`.
    ///
    /// # Errors
    /// [`Unfilled::Wants`] when something has to be claimed first; 422 when what the client chose
    /// cannot be.
    pub(super) fn fill(
        &self,
        resource: &Resource,
        object: &mut Map<String, Value>,
        old: Option<&Map<String, Value>>,
    ) -> Result<(), Unfilled> {
        if !is_service(resource) {
            return Ok(());
        }
        let metadata = listwatch_validation::metadata(object);
        let mut wanted = Wanted {
            namespace: meta::text(metadata, "namespace").to_owned(),
            name: meta::text(metadata, "name").to_owned(),
            ..Wanted::default()
        };
        let old = old.and_then(|old| old.get("spec")?.as_object());
        let spec = listwatch_validation::child_mut(object, "spec");
        self.fill_address(spec, old, &mut wanted)?;
        self.fill_ports(spec, old, &mut wanted)?;
        if wanted.address.is_some() || !wanted.ports.is_empty() {
            return Err(Unfilled::Wants(wanted));
        }
        if self.since.is_some_and(|since| since.elapsed() > STORE_WAIT) {
            return Err(Status::server_timeout("create", SERVICES).into());
        }
        Ok(())
    }

    fn fill_address(
        &self,
        spec: &mut Map<String, Value>,
        old: Option<&Map<String, Value>>,
        wanted: &mut Wanted,
    ) -> Result<(), Unfilled> {
        const ADDRESS_FIELDS: [&str; 4] = ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"];
        let external = |spec: &Map<String, Value>| meta::text(spec, "type") == "ExternalName";
        if external(spec) {
            for field in ADDRESS_FIELDS.iter().chain(&["internalTrafficPolicy"]) {
                spec.shift_remove(*field);
            }
            return Ok(());
        }
        let had = old.filter(|old| !external(old)).map(|old| meta::text(old, "clusterIP")).unwrap_or_default();
        let first = |spec: &Map<String, Value>| Some(spec.get("clusterIPs")?.as_array()?.first()?.as_str()?.to_owned());
        let mut chosen = match meta::text(spec, "clusterIP") {
            "" => first(spec).unwrap_or_default(),
            chosen => chosen.to_owned(),
        };
        if chosen.is_empty() {
            had.clone_into(&mut chosen);
        }
        if !had.is_empty() && chosen != had {
            let error = FieldError::invalid("spec.clusterIPs[0]", json!([chosen]), "may not change once set");
            return Err(Status::invalid("", "Service", &wanted.name, &[error]).into());
        }
        if had.is_empty() && chosen != "None" {
            let address = match chosen.as_str() {
                "" => Choice::Any,
                text => Choice::This(text.parse::<Ipv4Addr>().map_err(|_| {
                    let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
                    let error = FieldError::invalid("spec.clusterIPs[0]", go::quote(text), why);
                    Status::invalid("", "Service", &wanted.name, &[error])
                })?),
            };
            if let Choice::This(address) = address
                && u32::from(address) >> (32 - CLUSTER_PREFIX_BITS) != CLUSTER_NETWORK >> (32 - CLUSTER_PREFIX_BITS)
            {
                let why = "the provided network does not match the current range";
                return Err(wanted.invalid_address(address, why).into());
            }
            let granted = self.addresses.iter().find(|granted| match address {
                Choice::Any => true,
                Choice::This(address) => address == **granted,
            });
            match granted {
                Some(granted) => chosen = granted.to_string(),
                None => {
                    wanted.address = Some(address);
                    return Ok(());
                }
            }
        }
        let headless = chosen == "None";
        spec.insert("clusterIP".to_owned(), Value::String(chosen.clone()));
        spec.insert("clusterIPs".to_owned(), json!([chosen]));
        let families = spec.get("ipFamilies").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
        if !families || !headless {
            spec.insert("ipFamilies".to_owned(), json!(["IPv4"]));
        }
        if meta::text(spec, "ipFamilyPolicy").is_empty() {
            spec.insert("ipFamilyPolicy".to_owned(), json!("SingleStack"));
        }
        Ok(())
    }

    fn fill_ports(
        &self,
        spec: &mut Map<String, Value>,
        old: Option<&Map<String, Value>>,
        wanted: &mut Wanted,
    ) -> Result<(), Unfilled> {
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
        // A new service has one node port for each port, of all protocols; ports that come later have their own.
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
        let ask = |wanted: &mut Wanted, port: u16, place: Option<usize>| {
            if !had.contains(&port) && !self.ports.contains(&port) && !wanted.asks_for(port) {
                wanted.ports.push(WantedPort { choice: Choice::This(port), place });
            }
        };
        // Nothing else is behind the port for health checks.
        let checked_at = health_check.and_then(|asked| asked.or(old_health_check));
        for (place, port) in ports.iter_mut().enumerate() {
            let Value::Object(port_fields) = port else { continue };
            if !matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
                port_fields.shift_remove("nodePort");
                continue;
            }
            let asked = port_fields.get("nodePort").and_then(Value::as_i64).filter(|port| *port != 0);
            if let Some(asked) = asked {
                let valid = u16::try_from(asked).ok().filter(|port| NODE_PORTS.contains(port));
                let Some(asked) = valid else {
                    let why = "provided port is not in the valid range. The range of valid ports is 30000-32767";
                    let error = FieldError::invalid(format!("spec.ports[{place}].nodePort"), asked, why);
                    return Err(Status::invalid("", "Service", &wanted.name, &[error]).into());
                };
                if checked_at == Some(asked) {
                    if old_health_check != checked_at {
                        return Err(no_health_check_port(asked, PORT_TAKEN).into());
                    }
                    if !old_ports.iter().filter_map(node_port).any(|port| port == asked) {
                        return Err(wanted.port_is_taken(place, asked).into());
                    }
                }
                ask(wanted, asked, Some(place));
                continue;
            }
            if !outside {
                continue;
            }
            // A manifest that is applied again says nothing of the port it was given.
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
                Some(granted) => {
                    own.extend(number.map(|number| (number, granted)));
                    port_fields.insert("nodePort".to_owned(), json!(granted));
                }
                None => {
                    asked_for.extend(number);
                    wanted.ports.push(WantedPort { choice: Choice::Any, place: Some(place) });
                }
            }
        }
        match health_check {
            None => {}
            Some(Some(asked)) if had.contains(&asked) || NODE_PORTS.contains(&asked) => ask(wanted, asked, None),
            Some(Some(asked)) => {
                let why = "provided port is not in the valid range. The range of valid ports is 30000-32767";
                return Err(no_health_check_port(asked, why).into());
            }
            Some(None) => match old_health_check.or_else(|| free.next()) {
                Some(granted) => {
                    spec.insert("healthCheckNodePort".to_owned(), json!(granted));
                }
                None => wanted.ports.push(WantedPort { choice: Choice::Any, place: None }),
            },
        }
        Ok(())
    }
}
