//! Repairs the claims of cluster addresses (IPAddresses) from the stored services: at the start of a server, every
//! three minutes, after a change of a service or of a claim, and when a new ServiceCIDR adds addresses.
//!
//! ```text
//!  start: repair all claims ─▶ run: watch from the revision of that repair ─▶ a change: repair the claims of its services
//!    ▲                                                                   │
//!    └── after the interval, when a watch ends, or for a new ServiceCIDR ┘
//! ```
//!
//! Between two repairs of all claims, a claim that may belong to a write in progress is repaired when it is old. If two
//! services have the same address, the second one gets the claim after the first one has lost or released it.
//!
//! Source: `pkg/registry/core/service/ipallocator/controller/repairip.go`, which kube-apiserver runs in the hook
//! `start-service-ip-repair-controllers`. Several servers on one store may all run this controller.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use listwatch_meta::{Revision, Status};
use listwatch_storage::{StoreEvent, Watch, WatchItem};
use listwatch_validation::{Object, child, text};
use listwatch_write::{
    AddressPlan, AddressRepairOutcome, FOLLOW_UPS_MAX, PendingClaim, REPAIR_INTERVAL, ServiceName, Writer, cluster_ips,
};
use tokio::time::Instant;

/// The name of the problem of this controller (upstream's name of the controller). The health check
/// [`node_ports::CHECK`](crate::node_ports::CHECK) covers this controller and the one of node ports.
pub const PROBLEM: &str = "ipallocator-repair-controller";

/// The minimum time between the starts of two repairs of all claims. A failed repair is retried after this time.
const RETRY: Duration = Duration::from_secs(10);
/// The time limit for the repair at the start of a server. kube-apiserver has the same limit.
const START_MAX: Duration = Duration::from_secs(60);
/// Delay before the next repair at the start of a server.
const START_RETRY: Duration = Duration::from_secs(1);
/// The number of failed repairs in a row that set the problem [`PROBLEM`]. A repair that leaves an address without a
/// claim has failed, too. Until the first success, one failed repair sets the problem.
const FAILURES: u32 = 3;
/// Delay between a change and the repair of its service, so that one repair covers several changes.
const PAUSE: Duration = Duration::from_millis(500);
/// The maximum number of changed services that wait for a repair. At the bound, all claims are repaired.
const CHANGED_MAX: usize = 1_000;
/// The number of changed services that are repaired at the same time.
const REPAIRS_AT_ONCE: usize = 16;

/// The controller on one server.
#[derive(Debug)]
pub struct IpAddressController {
    writer: Arc<Writer>,
    /// The revision before the last repair of all claims.
    repaired_at: Option<Revision>,
    /// The start of the last repair of all claims.
    started_at: Option<Instant>,
    /// Whether a repair of all claims has claimed all addresses.
    has_succeeded: bool,
    /// The number of repairs of all claims that failed or left an address without a claim, since the last success.
    failures: u32,
    /// The plan of the repair of all claims that is in progress or was dropped.
    plan: Option<AddressPlan>,
    follow_ups: FollowUps,
}

/// The claims and services that need a repair later, before the next repair of all claims.
#[derive(Debug, Default)]
struct FollowUps {
    /// The claims that may belong to a write in progress, at most [`FOLLOW_UPS_MAX`], and the times at which they are old.
    pending: BTreeMap<Ipv4Addr, (Instant, PendingClaim)>,
    /// The services whose address is claimed for another service, at most [`FOLLOW_UPS_MAX`].
    shared: BTreeSet<(Ipv4Addr, ServiceName)>,
    /// The services whose claim another writer changed during the repair, at most [`FOLLOW_UPS_MAX`]. They are repaired
    /// again after [`PAUSE`].
    conflicts: BTreeSet<ServiceName>,
}

impl FollowUps {
    fn add(&mut self, outcome: AddressRepairOutcome) {
        let now = Instant::now();
        for claim in outcome.pending {
            if self.pending.len() < FOLLOW_UPS_MAX || self.pending.contains_key(&claim.address) {
                self.pending.insert(claim.address, (now + claim.wait, claim));
            }
        }
        for shared in outcome.shared {
            if self.shared.len() < FOLLOW_UPS_MAX {
                self.shared.insert(shared);
            }
        }
        for service in outcome.conflicts {
            if self.conflicts.len() < FOLLOW_UPS_MAX {
                self.conflicts.insert(service);
            }
        }
    }

    /// Returns the time at which the first pending claim is old.
    fn due(&self) -> Option<Instant> {
        self.pending.values().map(|(due, _)| *due).min()
    }

    /// Removes and returns the services and addresses of the pending claims that are old.
    fn take_due(&mut self, now: Instant) -> Vec<(ServiceName, Option<Ipv4Addr>)> {
        let all = std::mem::take(&mut self.pending);
        let (due, pending): (BTreeMap<_, _>, _) = all.into_iter().partition(|(_, (due, _))| *due <= now);
        self.pending = pending;
        due.into_iter().map(|(address, (_, claim))| (claim.service, Some(address))).collect()
    }

    /// Returns the services with this address whose address is claimed for another service.
    fn sharing(&self, address: Ipv4Addr) -> impl Iterator<Item = ServiceName> {
        let all = self.shared.range((address, ServiceName::default())..);
        all.take_while(move |(shared, _)| *shared == address).map(|(_, service)| service.clone())
    }
}

/// The services whose claims an event may affect.
#[derive(Debug, Default, PartialEq, Eq)]
struct Affected {
    services: Vec<ServiceName>,
    /// The addresses that other services with the same address may now claim.
    freed: Vec<Ipv4Addr>,
}

/// The watches of services and of claims.
struct Watches {
    services: Watch,
    claims: Watch,
}

impl IpAddressController {
    /// Creates a controller that has not run yet.
    pub fn new(writer: Arc<Writer>) -> Self {
        IpAddressController {
            writer,
            repaired_at: None,
            started_at: None,
            has_succeeded: false,
            failures: 0,
            plan: None,
            follow_ups: FollowUps::default(),
        }
    }

    /// Repairs all claims before the server allocates the first address. Returns the delay before the next repair. A
    /// failed repair is retried for [`START_MAX`].
    ///
    /// # Errors
    /// The last error of the store, or the number of addresses that could not be claimed.
    pub async fn start(&mut self) -> Result<Duration, Status> {
        let deadline = Instant::now() + START_MAX;
        loop {
            let status = match tokio::time::timeout_at(deadline, self.repair()).await {
                Ok(Ok(0)) => return Ok(pause_after(0)),
                Ok(Ok(unclaimed)) => Status::internal(unclaimed_message(unclaimed)),
                Ok(Err(status)) => status,
                Err(_) => return Err(Status::timeout(self.timeout_message())),
            };
            if Instant::now() + START_RETRY >= deadline {
                return Err(status);
            }
            tracing::warn!(%status, "cannot repair the cluster IPs yet");
            tokio::time::sleep(START_RETRY).await;
        }
    }

    /// Returns the message for a repair at the start that took longer than [`START_MAX`].
    fn timeout_message(&self) -> String {
        match &self.plan {
            Some(plan) => {
                format!(
                    "the repair of cluster IPs is too slow: {} changed, {} not claimed",
                    plan.made(),
                    plan.unclaimed()
                )
            }
            None => "the store did not return all services and IPAddresses".to_owned(),
        }
    }

    /// Repairs all claims, and sets or clears the problem [`PROBLEM`]. Returns the number of addresses that could not be
    /// claimed.
    async fn repair(&mut self) -> Result<usize, Status> {
        self.started_at = Some(Instant::now());
        // The repair covers all ranges that are known from here on.
        self.writer.service_cidrs().take_growth();
        self.repaired_at = self.writer.backend().storage().current_revision().await.ok();
        let done = self.repair_all().await;
        let problem = match &done {
            Ok(0) => None,
            Ok(unclaimed) => Some(unclaimed_message(*unclaimed)),
            Err(status) => Some(status.message.clone()),
        };
        self.failures = if problem.is_none() { 0 } else { self.failures + 1 };
        self.has_succeeded |= problem.is_none();
        if problem.is_none() || !self.has_succeeded || self.failures >= FAILURES {
            self.writer.backend().bootstrap().set(PROBLEM, problem);
        }
        done
    }

    async fn repair_all(&mut self) -> Result<usize, Status> {
        self.plan = None;
        let reading = self.writer.read_addresses().await?;
        let plan = tokio::task::spawn_blocking(move || reading.plan()).await.map_err(Status::internal)?;
        let outcome = self.writer.apply_address_plan(self.plan.insert(plan)).await;
        self.plan = None;
        let unclaimed = outcome.unclaimed;
        self.follow_ups = FollowUps::default();
        self.follow_ups.add(outcome);
        Ok(unclaimed)
    }

    /// Returns the earliest time of the next repair of all claims.
    fn next_repair(&self) -> Instant {
        self.started_at.map_or_else(Instant::now, |started_at| started_at + RETRY)
    }

    /// Repairs the claims of changed services for `pause`, then all claims, until the future is dropped.
    pub async fn run(mut self, mut pause: Duration) {
        loop {
            let until = Instant::now() + pause;
            match self.watch().await {
                Ok(Some(watches)) => {
                    if let Err(why) = self.follow(watches, until).await {
                        tracing::warn!(why, "cannot repair the cluster IPs of changed services");
                    }
                }
                Ok(None) => tokio::time::sleep_until(until).await,
                Err(why) => tracing::warn!(why, "cannot watch services and IPAddresses"),
            }
            tokio::time::sleep_until(self.next_repair()).await;
            pause = match self.repair().await {
                Ok(unclaimed) => pause_after(unclaimed),
                Err(status) => {
                    tracing::warn!(%status, "cannot repair the cluster IPs");
                    RETRY
                }
            };
        }
    }

    /// Watches services and claims from the last repair on. Returns `None` if one of the resources is not served.
    async fn watch(&self) -> Result<Option<Watches>, String> {
        let backend = self.writer.backend();
        let registry = backend.registry();
        let (Some(services), Some(claims)) =
            (registry.find("", "v1", "services"), registry.find("networking.k8s.io", "v1", "ipaddresses"))
        else {
            return Ok(None);
        };
        let after = self.repaired_at.ok_or_else(|| "the store did not respond".to_owned())?;
        let watch = async |range| backend.storage().watch(range, after).await.map_err(|error| error.to_string());
        Ok(Some(Watches { services: watch(services.range(None)).await?, claims: watch(claims.range(None)).await? }))
    }

    /// Repairs the claims of changed services. Returns at `until`, or earlier if a ServiceCIDR has added addresses, a
    /// repair has failed or a change may affect any service.
    ///
    /// # Errors
    /// The reason why a watch has ended.
    async fn follow(&mut self, mut watches: Watches, mut until: Instant) -> Result<(), String> {
        let mut changed: BTreeSet<ServiceName> = BTreeSet::new();
        let mut due: Option<Instant> = None;
        loop {
            changed.append(&mut self.follow_ups.conflicts);
            if !changed.is_empty() {
                due.get_or_insert_with(|| Instant::now() + PAUSE);
            }
            let next = [due, self.follow_ups.due()].into_iter().flatten().fold(until, Instant::min);
            let item = tokio::select! {
                item = watches.services.next() => item,
                item = watches.claims.next() => item,
                () = self.writer.service_cidrs().wait_for_growth() => {
                    until = until.min(self.next_repair());
                    continue;
                }
                () = tokio::time::sleep_until(next) => {
                    let now = Instant::now();
                    if until <= now {
                        return Ok(());
                    }
                    let mut repairs = self.follow_ups.take_due(now);
                    if due.is_some_and(|due| due <= now) {
                        repairs.extend(std::mem::take(&mut changed).into_iter().map(|service| (service, None)));
                        due = None;
                    }
                    if !self.repair_some(repairs).await {
                        until = until.min(self.next_repair());
                    }
                    continue;
                }
            };
            match item {
                Some(WatchItem::Event(event)) => {
                    if let Some(Affected { services, freed }) = affected(&event) {
                        changed.extend(services);
                        changed.extend(freed.into_iter().flat_map(|address| self.follow_ups.sharing(address)));
                    } else {
                        until = until.min(self.next_repair());
                    }
                    if changed.len() > CHANGED_MAX {
                        changed.clear();
                        until = until.min(self.next_repair());
                    }
                }
                Some(WatchItem::Progress(_)) => {}
                Some(WatchItem::Expired { .. }) => return Err("the history of the store was compacted".to_owned()),
                Some(WatchItem::Lost(fault)) => return Err(fault.to_string()),
                None => return Err("the store was closed".to_owned()),
            }
        }
    }

    /// Repairs the claims of services, and the pending claims at the given addresses. Returns false if a repair failed.
    async fn repair_some(&mut self, services: Vec<(ServiceName, Option<Ipv4Addr>)>) -> bool {
        let repairs = futures_util::stream::iter(services).map(|(service, claimed)| {
            let writer = &self.writer;
            async move { (writer.repair_addresses_of(&service, claimed).await, service) }
        });
        let mut succeeded = true;
        for (done, service) in repairs.buffer_unordered(REPAIRS_AT_ONCE).collect::<Vec<_>>().await {
            match done {
                Ok(outcome) => {
                    succeeded &= outcome.unclaimed == 0;
                    self.follow_ups.add(outcome);
                }
                Err(status) => {
                    tracing::warn!(%status, %service, "cannot repair the cluster IPs of a service");
                    succeeded = false;
                }
            }
        }
        succeeded
    }
}

/// Returns the delay before the next repair of all claims.
fn pause_after(unclaimed: usize) -> Duration {
    if unclaimed > 0 { RETRY } else { REPAIR_INTERVAL }
}

fn unclaimed_message(unclaimed: usize) -> String {
    format!("{unclaimed} cluster IPs are not claimed")
}

/// Returns the services whose claims an event may affect, or `None` if these may be any services. A new claim belongs to
/// a service that is being created. The status of a service does not matter.
fn affected(event: &StoreEvent) -> Option<Affected> {
    let key = event.key();
    if !key.as_str().starts_with("/ipaddresses/") {
        let (before, after) = match event {
            StoreEvent::Put { current, previous } => (previous.as_ref(), Some(current)),
            StoreEvent::Delete { previous, .. } => (previous.as_ref(), None),
        };
        let name = ServiceName { namespace: key.namespace().to_owned(), name: key.name().to_owned() };
        let (before, after) = (before.map(cluster_ips), after.map(cluster_ips));
        let has_changed = after.is_some() && before != after;
        let kept = after.flatten().unwrap_or_default();
        let freed = before.flatten().into_iter().flatten().filter(|address| !kept.contains(address)).collect();
        return Some(Affected { services: has_changed.then_some(name).into_iter().collect(), freed });
    }
    let (before, after) = match event {
        StoreEvent::Put { previous: None, .. } => return Some(Affected::default()),
        StoreEvent::Put { current, previous: Some(previous) } => (owner(&previous.value)?, owner(&current.value)),
        StoreEvent::Delete { previous, .. } => (owner(&previous.as_ref()?.value)?, None),
    };
    let freed = if after.as_ref() == Some(&before) { None } else { key.name().parse().ok() };
    let services = [before, after.unwrap_or_default()].into_iter().flatten();
    Some(Affected { services: services.collect(), freed: freed.into_iter().collect() })
}

/// Returns the service that a claim names, if any. Returns `None` if the claim is unreadable.
#[allow(clippy::option_option, reason = "the three outcomes are named in the documentation")]
fn owner(claim: &[u8]) -> Option<Option<ServiceName>> {
    let claim: Object = serde_json::from_slice(claim).ok()?;
    let parent = child(child(&claim, "spec"), "parentRef");
    let is_service = text(parent, "group").is_empty() && text(parent, "resource") == "services";
    let field = |field: &str| text(parent, field).to_owned();
    Some(is_service.then(|| ServiceName { namespace: field("namespace"), name: field("name") }))
}

#[cfg(test)]
mod tests;
