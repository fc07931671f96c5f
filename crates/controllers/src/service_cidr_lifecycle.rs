//! Marks ServiceCIDRs as ready, and keeps a deleted ServiceCIDR while services have addresses that no other ServiceCIDR
//! contains.
//!
//! ```text
//!  created ─▶ add the finalizer, Ready=True
//!  deleted ─▶ do other ServiceCIDRs contain its ranges, or the address of each service?
//!               │ no                                      │ yes
//!               ▼                                         ▼
//!             Ready=False (Terminating), check again    10 s after the deletion, remove the finalizer
//! ```
//!
//! The ten seconds are the time in which all servers stop to allocate addresses from the ServiceCIDR.
//!
//! If several ServiceCIDRs with the same addresses are being deleted, the one with the widest range stays while services
//! need the addresses. Among equal ranges, the first one by name stays.
//!
//! Source: `pkg/controller/servicecidrs/servicecidrs_controller.go`, a controller of kube-controller-manager. Several
//! servers on one store may all run this controller.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use listwatch_json::{Value, json};
use listwatch_kinds::conditions::{self, NewCondition};
use listwatch_meta::{Key, Object, Status};
use listwatch_registry::Resource;
use listwatch_storage::{KeyValue, ListQuery};
use listwatch_validation::formats::Range;
use listwatch_validation::{Object as Tree, child, child_mut, given, metadata, metadata_mut, objects, text, texts};
use listwatch_write::{Amendment, Clock, Writer, parse_timestamp};
use parking_lot::Mutex;
use time::OffsetDateTime;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::feed::{self, ObjectCopy};
use crate::objects::list;
use crate::service_cidrs::SERVICE_CIDRS;

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
/// The minimum time between the deletion and the removal of the finalizer (`deletionGracePeriod`).
const GRACE_PERIOD: Duration = Duration::from_secs(10);
/// The interval of the checks whether the address that keeps a deleted ServiceCIDR is released.
const RECHECK: Duration = Duration::from_secs(1);
/// Delay before the next attempt after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// The number of IPAddresses per page of a check.
const PAGE_ITEMS: usize = 500;

const READY: NewCondition<'_> =
    NewCondition { kind: "Ready", status: "True", reason: "", message: "Kubernetes Service CIDR is ready" };
const TERMINATING: NewCondition<'_> = NewCondition {
    kind: "Ready",
    status: "False",
    reason: "Terminating",
    message: "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR",
};

/// A network in CIDR notation. The bits of an IPv4 network are the first 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    is_ipv4: bool,
    bits: u128,
    prefix: u32,
}

impl Network {
    fn parse(cidr: &str) -> Option<Self> {
        let range = Range::parse(cidr)?;
        let (is_ipv4, bits) = bits_of(range.network());
        Some(Network { is_ipv4, bits, prefix: range.prefix })
    }

    fn mask(self) -> u128 {
        u128::MAX.checked_shl(128 - self.prefix).unwrap_or_default()
    }

    /// Whether this network contains all addresses of another one (`ContainsPrefix` of `pkg/api/servicecidr`).
    fn contains(self, other: Network) -> bool {
        self.is_ipv4 == other.is_ipv4 && self.prefix <= other.prefix && other.bits & self.mask() == self.bits
    }

    /// Whether services can get an address from this network (`PrefixContainsIP` of `pkg/api/servicecidr`).
    fn has_host(self, address: IpAddr) -> bool {
        let (is_ipv4, bits) = bits_of(address);
        let last = self.bits | (!self.mask() & (u128::MAX << 96));
        is_ipv4 == self.is_ipv4 && bits & self.mask() == self.bits && bits != self.bits && !(is_ipv4 && bits == last)
    }
}

/// Returns whether an address is IPv4, and its bits.
fn bits_of(address: IpAddr) -> (bool, u128) {
    match address {
        IpAddr::V4(address) => (true, u128::from(u32::from(address)) << 96),
        IpAddr::V6(address) => (false, u128::from(address)),
    }
}

/// The part of a ServiceCIDR that decides the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ServiceCidr {
    networks: Vec<Network>,
    /// The time of the deletion, if the ServiceCIDR is being deleted.
    deleted_at: Option<OffsetDateTime>,
    has_finalizer: bool,
    /// Whether the condition `Ready` has the values of [`READY`].
    is_ready: bool,
}

impl ServiceCidr {
    fn of(object: &Tree) -> Self {
        let metadata = metadata(object);
        let deleted_at = given(metadata, "deletionTimestamp").map(|at| {
            // An unreadable time counts as long ago.
            at.as_str().and_then(parse_timestamp).unwrap_or(OffsetDateTime::UNIX_EPOCH)
        });
        let is_ready = objects(child(object, "status"), "conditions").any(|(_, condition)| {
            [("type", READY.kind), ("status", READY.status), ("reason", READY.reason), ("message", READY.message)]
                .into_iter()
                .all(|(field, value)| text(condition, field) == value)
        });
        ServiceCidr {
            networks: texts(child(object, "spec"), "cidrs").filter_map(Network::parse).collect(),
            deleted_at,
            has_finalizer: texts(metadata, "finalizers").any(|one| one == FINALIZER),
            is_ready,
        }
    }
}

/// All ServiceCIDRs by name.
type ServiceCidrs = BTreeMap<String, ServiceCidr>;

/// Whether another ServiceCIDR, which contains the addresses of this one in `range`, keeps this one from being needed. A
/// ServiceCIDR that is being deleted only does so for a smaller range, or for an equal one of a later name. So of several
/// ServiceCIDRs that are being deleted, one stays. A deleted ServiceCIDR without the finalizer does not count, because
/// this controller cannot keep it.
fn replaces((other_name, other, wider): (&str, &ServiceCidr, Network), (name, range): (&str, Network)) -> bool {
    other.deleted_at.is_none() || (other.has_finalizer && (wider.prefix, other_name) < (range.prefix, name))
}

/// Whether other ServiceCIDRs contain all ranges of this one, and may replace it.
fn has_parents(all: &ServiceCidrs, name: &str, cidr: &ServiceCidr) -> bool {
    let is_contained = |range: &Network| {
        let mut others = all.iter().filter(|(other, _)| *other != name);
        others.any(|(other_name, other)| {
            let mut parents = other.networks.iter().filter(|parent| parent.contains(*range));
            parents.any(|parent| replaces((other_name, other, *parent), (name, *range)))
        })
    };
    cidr.networks.iter().all(is_contained)
}

/// Whether this ServiceCIDR has an address, and no other one with the address may replace it.
fn is_only_range_of(all: &ServiceCidrs, name: &str, cidr: &ServiceCidr, address: IpAddr) -> bool {
    let Some(range) = cidr.networks.iter().find(|network| network.has_host(address)) else { return false };
    let mut others = all.iter().filter(|(other, _)| *other != name);
    !others.any(|(other_name, other)| {
        let mut networks = other.networks.iter().filter(|network| network.has_host(address));
        networks.any(|network| replaces((other_name, other, *network), (name, *range)))
    })
}

/// Adds the finalizer and sets the condition `Ready`, unless the ServiceCIDR is being deleted.
fn complete(stored: &mut Tree, now: &str) -> Amendment {
    let cidr = ServiceCidr::of(stored);
    if cidr.deleted_at.is_some() {
        return Amendment::Leave;
    }
    if !cidr.has_finalizer {
        let finalizers = texts(metadata(stored), "finalizers").chain([FINALIZER]).map(Value::from).collect();
        metadata_mut(stored).insert("finalizers", Value::Array(finalizers));
    }
    if !cidr.is_ready {
        set_condition(stored, READY, now);
    }
    Amendment::Write
}

/// Sets the condition of a ServiceCIDR that services still need.
fn mark_terminating(stored: &mut Tree, now: &str) -> Amendment {
    if ServiceCidr::of(stored).deleted_at.is_none() {
        return Amendment::Leave;
    }
    set_condition(stored, TERMINATING, now);
    Amendment::Write
}

/// Removes the finalizer of a ServiceCIDR that is being deleted.
fn release(stored: &mut Tree) -> Amendment {
    let cidr = ServiceCidr::of(stored);
    if cidr.deleted_at.is_none() || !cidr.has_finalizer {
        return Amendment::Leave;
    }
    let finalizers: Vec<Value> =
        texts(metadata(stored), "finalizers").filter(|one| *one != FINALIZER).map(Value::from).collect();
    if finalizers.is_empty() {
        return Amendment::Remove;
    }
    metadata_mut(stored).insert("finalizers", Value::Array(finalizers));
    Amendment::Write
}

fn set_condition(stored: &mut Tree, condition: NewCondition<'_>, now: &str) {
    let present = child_mut(stored, "status").entry("conditions").or_insert_with(|| json!([]));
    if !present.is_array() {
        *present = json!([]);
    }
    if let Some(present) = present.as_array_mut() {
        conditions::set(present, condition, now);
    }
}

/// The stored ServiceCIDRs, and the names of those that changed.
#[derive(Default)]
struct Changes {
    state: Mutex<State>,
    notify: Notify,
}

#[derive(Default)]
struct State {
    cidrs: Arc<ServiceCidrs>,
    changed: BTreeSet<String>,
}

impl Changes {
    /// Waits for a change. Returns the names of the changed ServiceCIDRs.
    async fn take(&self) -> BTreeSet<String> {
        loop {
            let changed = std::mem::take(&mut self.state.lock().changed);
            if !changed.is_empty() {
                return changed;
            }
            self.notify.notified().await;
        }
    }

    fn cidrs(&self) -> Arc<ServiceCidrs> {
        Arc::clone(&self.state.lock().cidrs)
    }

    fn change(&self, name: &str, cidr: Option<ServiceCidr>) {
        let mut state = self.state.lock();
        let cidrs = Arc::make_mut(&mut state.cidrs);
        match cidr {
            Some(cidr) => {
                cidrs.insert(name.to_owned(), cidr);
            }
            None => {
                cidrs.remove(name);
            }
        }
        state.changed.insert(name.to_owned());
        self.notify.notify_one();
    }
}

impl ObjectCopy for &Changes {
    fn resource(&self) -> (&'static str, &'static str, &'static str) {
        SERVICE_CIDRS
    }

    fn set(&self, object: &Object) -> bool {
        let cidr = serde_json::from_slice(object.json_slice()).ok().map(|object: Tree| ServiceCidr::of(&object));
        let is_readable = cidr.is_some();
        self.change(object.name(), cidr);
        is_readable
    }

    fn remove(&self, _: &str, name: &str) {
        self.change(name, None);
    }

    fn replace<'a>(&self, objects: &'a [Object]) -> Vec<(&'a str, &'a str)> {
        let (mut cidrs, mut unreadable) = (ServiceCidrs::new(), Vec::new());
        for object in objects {
            match serde_json::from_slice::<Tree>(object.json_slice()) {
                Ok(tree) => {
                    cidrs.insert(object.name().to_owned(), ServiceCidr::of(&tree));
                }
                Err(_) => unreadable.push(("", object.name())),
            }
        }
        let mut state = self.state.lock();
        state.changed.extend(cidrs.keys().cloned());
        state.cidrs = Arc::new(cidrs);
        self.notify.notify_one();
        unreadable
    }
}

/// A ServiceCIDR that is being deleted, or whose change failed.
struct Waiting {
    /// The time of the next check.
    until: Instant,
    /// The IPAddress that kept the ServiceCIDR at the last check.
    kept_by: Option<Key>,
}

/// Adds finalizers, sets conditions and completes deletions until the future is dropped.
pub async fn run(writer: Arc<Writer>) {
    let changes = Changes::default();
    let copies = [&changes];
    tokio::join!(feed::follow(&writer, &copies), settle_all(&writer, &changes));
}

/// Adds the finalizer and the condition to each stored ServiceCIDR that lacks them. A server that calls this at its
/// start does not change its objects right after the start. Failures are logged, and [`run`] retries them.
pub async fn prepare(writer: &Writer) {
    if let Err(status) = try_prepare(writer).await {
        tracing::warn!(%status, "cannot prepare the ServiceCIDRs");
    }
}

async fn try_prepare(writer: &Writer) -> Result<(), Status> {
    let Some(resource) = resource(writer) else { return Ok(()) };
    for stored in list(writer, &resource).await? {
        // The controller skips an unreadable object, too.
        let Ok(object) = serde_json::from_slice::<Tree>(&stored.value) else { continue };
        let cidr = ServiceCidr::of(&object);
        if cidr.deleted_at.is_none() && !(cidr.has_finalizer && cidr.is_ready) {
            writer.amend(&resource, &stored.key, |stored| complete(stored, &Clock::default().now())).await?;
        }
    }
    Ok(())
}

fn resource(writer: &Writer) -> Option<Arc<Resource>> {
    let (group, version, plural) = SERVICE_CIDRS;
    writer.backend().registry().find(group, version, plural).cloned()
}

async fn settle_all(writer: &Writer, changes: &Changes) {
    let mut waiting: BTreeMap<String, Waiting> = BTreeMap::new();
    loop {
        let next = waiting.values().map(|waiting| waiting.until).min();
        let due: BTreeSet<String> = tokio::select! {
            changed = changes.take() => {
                // The changed ServiceCIDR may contain the ranges of others, or no longer contain them.
                waiting.values_mut().for_each(|waiting| waiting.kept_by = None);
                changed.into_iter().chain(waiting.keys().cloned()).collect::<BTreeSet<String>>()
            }
            () = sleep_until(next) => {
                let now = Instant::now();
                waiting.iter().filter(|(_, waiting)| waiting.until <= now).map(|(name, _)| name.clone()).collect()
            }
        };
        for name in due {
            let kept_by = waiting.remove(&name).and_then(|waiting| waiting.kept_by);
            let next = match settle(writer, &changes.cidrs(), &name, kept_by).await {
                Ok(next) => next,
                Err(status) => {
                    tracing::warn!(%status, name, "cannot change a ServiceCIDR");
                    Some(Waiting { until: Instant::now() + RETRY, kept_by: None })
                }
            };
            waiting.extend(next.map(|next| (name, next)));
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Makes the next step for one ServiceCIDR. Returns when to check again.
async fn settle(
    writer: &Writer,
    all: &ServiceCidrs,
    name: &str,
    kept_by: Option<Key>,
) -> Result<Option<Waiting>, Status> {
    let (Some(cidr), Some(resource)) = (all.get(name), resource(writer)) else { return Ok(None) };
    let key = resource.key(None, name)?;
    let clock = Clock::default();
    let Some(deleted_at) = cidr.deleted_at else {
        if !(cidr.has_finalizer && cidr.is_ready) {
            writer.amend(&resource, &key, |stored| complete(stored, &clock.now())).await?;
        }
        return Ok(None);
    };
    if !cidr.has_finalizer {
        return Ok(None);
    }
    // If the grace period has ended at this time, the list below has all claims of the ServiceCIDR.
    let now = clock.time();
    if let Some(kept_by) = find_address(writer, all, name, cidr, kept_by).await? {
        writer.amend(&resource, &key, |stored| mark_terminating(stored, &clock.now())).await?;
        return Ok(Some(Waiting { until: Instant::now() + RECHECK, kept_by: Some(kept_by) }));
    }
    let left = Duration::try_from(GRACE_PERIOD - (now - deleted_at)).unwrap_or_default();
    if !left.is_zero() {
        return Ok(Some(Waiting { until: Instant::now() + left, kept_by: None }));
    }
    writer.amend(&resource, &key, release).await?;
    Ok(None)
}

/// Returns the key of an IPAddress of a service that only this ServiceCIDR has (`canDeleteCIDR`). `known` is the result
/// of the last check.
async fn find_address(
    writer: &Writer,
    all: &ServiceCidrs,
    name: &str,
    cidr: &ServiceCidr,
    known: Option<Key>,
) -> Result<Option<Key>, Status> {
    let storage = writer.backend().storage();
    if let Some(known) = known {
        // As long as this address is in use, the others need no check.
        let (found, _) = storage.get(&known).await.map_err(Status::internal)?;
        if found.is_some() {
            return Ok(Some(known));
        }
    }
    if has_parents(all, name, cidr) {
        return Ok(None);
    }
    let registry = writer.backend().registry();
    let Some(addresses) = registry.find("networking.k8s.io", "v1", "ipaddresses") else { return Ok(None) };
    let mut range = addresses.range(None);
    loop {
        let query = ListQuery { range: range.clone(), at: None, limit: PAGE_ITEMS };
        let page = storage.list(query).await.map_err(Status::internal)?;
        let keeps = |item: &&KeyValue| {
            let Ok(address) = item.key.name().parse::<IpAddr>() else { return false };
            is_only_range_of(all, name, cidr, address) && is_managed(&item.value, address)
        };
        if let Some(item) = page.items.iter().find(keeps) {
            return Ok(Some(item.key.clone()));
        }
        match page.items.last().filter(|_| page.more) {
            Some(last) => range = range.starting_at(&format!("{}\0", last.key)),
            None => return Ok(None),
        }
    }
}

/// Whether the labels of an IPAddress say that the allocator of services manages it. An unreadable one counts.
fn is_managed(json: &[u8], address: IpAddr) -> bool {
    let Ok(object) = serde_json::from_slice::<Tree>(json) else { return true };
    let labels = child(metadata(&object), "labels");
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    text(labels, "ipaddress.kubernetes.io/managed-by") == "ipallocator.k8s.io"
        && text(labels, "ipaddress.kubernetes.io/ip-family") == family
}

#[cfg(test)]
mod tests {
    use listwatch_storage::{MemoryStorage, Storage};
    use listwatch_write::testing;

    use super::*;

    fn tree(value: Value) -> Tree {
        match value {
            Value::Object(object) => object,
            other => panic!("{other} is not an object"),
        }
    }

    fn service_cidr(ranges: &[&str]) -> ServiceCidr {
        ServiceCidr::of(&tree(json!({"metadata": {"name": "x"}, "spec": {"cidrs": ranges}})))
    }

    fn all(ranges: &[(&str, &[&str])]) -> ServiceCidrs {
        ranges.iter().map(|(name, ranges)| ((*name).to_owned(), service_cidr(ranges))).collect()
    }

    #[test]
    fn service_cidr_is_deletable_if_others_contain_all_its_ranges() {
        let check = |own: &[&str], others: &[(&str, &[&str])], expected: bool| {
            let mut all = all(others);
            all.insert("own".to_owned(), service_cidr(own));
            assert_eq!(has_parents(&all, "own", &all["own"]), expected, "{own:?} {others:?}");
        };
        check(&["10.0.0.0/24"], &[], false);
        check(&["10.0.0.0/24"], &[("same", &["10.0.0.0/24"])], true);
        check(&["10.0.0.0/24"], &[("wider", &["10.0.0.0/16"])], true);
        check(&["10.0.0.0/16"], &[("narrower", &["10.0.0.0/24"])], false);
        check(&["10.0.0.0/24", "fd00::/112"], &[("wider", &["10.0.0.0/16"])], false);
        check(&["10.0.0.0/24", "fd00::/112"], &[("v4", &["10.0.0.0/16"]), ("v6", &["fd00::/64"])], true);
        check(&["0.0.0.0/0"], &[("v6", &["::/0"])], false);
    }

    #[test]
    fn address_keeps_the_only_service_cidr_that_has_it_as_a_host() {
        let check = |address: &str, others: &[(&str, &[&str])], expected: bool| {
            let mut all = all(others);
            all.insert("own".to_owned(), service_cidr(&["10.0.0.0/24", "fd00::/112"]));
            let found = is_only_range_of(&all, "own", &all["own"], address.parse().unwrap());
            assert_eq!(found, expected, "{address} {others:?}");
        };
        check("10.0.0.7", &[], true);
        check("10.0.1.7", &[], false);
        check("10.0.0.0", &[], false);
        check("10.0.0.255", &[], false);
        check("fd00::ffff", &[], true);
        check("fd00::", &[], false);
        check("10.0.0.7", &[("wider", &["10.0.0.0/16"])], false);
        check("10.0.0.8", &[("part", &["10.0.0.8/29"])], true);
        check("10.0.0.9", &[("part", &["10.0.0.8/29"])], false);
    }

    #[test]
    fn one_of_several_deleted_service_cidrs_stays_while_an_address_is_in_use() {
        let check = |deleted: &[(&str, &[&str])], others: &[(&str, &[&str])], address: &str, expected: Option<&str>| {
            let mut all = all(deleted);
            for cidr in all.values_mut() {
                cidr.deleted_at = Some(OffsetDateTime::UNIX_EPOCH);
                cidr.has_finalizer = true;
            }
            all.extend(super::tests::all(others));
            let address = address.parse().unwrap();
            let is_needed = |name: &str, cidr: &ServiceCidr| {
                !has_parents(&all, name, cidr) && is_only_range_of(&all, name, cidr, address)
            };
            let deleted_ones = all.iter().filter(|(_, cidr)| cidr.deleted_at.is_some());
            let needed = deleted_ones.filter(|(name, cidr)| is_needed(name, cidr)).map(|(name, _)| name.as_str());
            let needed: Vec<&str> = needed.collect();
            assert_eq!(needed, Vec::from_iter(expected), "{deleted:?} {others:?} {address}");
        };
        const NARROW: &[&str] = &["10.0.0.0/24"];
        const WIDE: &[&str] = &["10.0.0.0/16"];
        check(&[("a", NARROW), ("b", NARROW)], &[], "10.0.0.7", Some("a"));
        check(&[("a", NARROW), ("b", WIDE)], &[], "10.0.0.7", Some("b"));
        check(&[("a", NARROW), ("b", WIDE), ("c", WIDE)], &[], "10.0.0.7", Some("b"));
        check(&[("a", NARROW), ("b", WIDE)], &[("c", NARROW)], "10.0.0.7", None);
        check(&[("a", NARROW), ("b", WIDE)], &[("c", NARROW)], "10.0.1.7", Some("b"));
        // The range of each family stays in the ServiceCIDR where it is wider.
        let (v4, v6): (&[&str], &[&str]) = (&["10.0.0.0/16", "fd00::/112"], &["10.0.0.0/24", "fd00::/64"]);
        check(&[("a", v4), ("b", v6)], &[], "10.0.0.7", Some("a"));
        check(&[("a", v4), ("b", v6)], &[], "fd00::7", Some("b"));
    }

    #[test]
    fn deleted_service_cidr_replaces_another_one_only_while_it_has_the_finalizer() {
        let check = |is_deleted: bool, has_finalizer: bool, expected: bool| {
            let mut all = all(&[("own", &["10.0.0.0/24"]), ("wider", &["10.0.0.0/16"])]);
            let wider = all.get_mut("wider").unwrap();
            wider.deleted_at = is_deleted.then_some(OffsetDateTime::UNIX_EPOCH);
            wider.has_finalizer = has_finalizer;
            let address = "10.0.0.7".parse().unwrap();
            assert_eq!(has_parents(&all, "own", &all["own"]), expected, "{is_deleted} {has_finalizer}");
            assert_eq!(!is_only_range_of(&all, "own", &all["own"], address), expected, "{is_deleted} {has_finalizer}");
        };
        check(true, true, true);
        check(true, false, false);
        check(false, true, true);
        // The controller adds the finalizer to a new ServiceCIDR.
        check(false, false, true);
    }

    #[test]
    fn finalizer_and_condition_are_changed_only_if_the_stored_object_still_needs_it() {
        let object = |finalizers: Value, is_deleted: bool| {
            let deleted = if is_deleted { json!("2020-01-01T00:00:00Z") } else { json!(null) };
            tree(json!({"metadata": {"finalizers": finalizers, "deletionTimestamp": deleted}}))
        };
        let mut new = object(json!(["a"]), false);
        assert_eq!(complete(&mut new, "now"), Amendment::Write);
        assert_eq!(new["metadata"]["finalizers"], json!(["a", FINALIZER]));
        let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": "now", "reason": "",
            "message": "Kubernetes Service CIDR is ready"}]);
        assert_eq!(new["status"]["conditions"], ready);
        let before = new.clone();
        assert_eq!(complete(&mut new, "later"), Amendment::Write);
        assert_eq!(new, before, "a complete object stays as it is");
        assert_eq!(complete(&mut object(json!([]), true), "now"), Amendment::Leave);
        assert_eq!(mark_terminating(&mut object(json!([FINALIZER]), false), "now"), Amendment::Leave);
        let mut deleted = object(json!([FINALIZER]), true);
        assert_eq!(mark_terminating(&mut deleted, "now"), Amendment::Write);
        assert_eq!(deleted["status"]["conditions"][0]["reason"], "Terminating");
        assert_eq!(release(&mut deleted), Amendment::Remove, "it was the last finalizer");
        assert_eq!(release(&mut object(json!([FINALIZER]), false)), Amendment::Leave);
        let mut other = object(json!([FINALIZER, "a"]), true);
        assert_eq!(release(&mut other), Amendment::Write);
        assert_eq!(other["metadata"]["finalizers"], json!(["a"]));
    }

    struct Cluster {
        writer: Arc<Writer>,
        storage: Arc<MemoryStorage>,
    }

    impl Cluster {
        fn new() -> Self {
            let storage = MemoryStorage::new();
            Cluster { writer: Arc::new(testing::writer(storage.clone())), storage }
        }

        async fn get(&self, path: &str) -> Option<Value> {
            let (found, _) = self.storage.get(&Key::from_path(path).unwrap()).await.unwrap();
            found.map(|found| serde_json::from_slice(&found.value).unwrap())
        }

        async fn put(&self, path: &str, object: Value) {
            let key = Key::from_path(path).unwrap();
            self.storage.create(&key, object.to_string().into(), None).await.unwrap();
        }

        async fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
            let key = Key::from_path(path).unwrap();
            let found = self.storage.get(&key).await.unwrap().0.unwrap();
            let mut object: Value = serde_json::from_slice(&found.value).unwrap();
            change(&mut object);
            self.storage.update(&key, found.modified, object.to_string().into(), None).await.unwrap();
        }

        async fn wait_for(&self, path: &str, is: impl Fn(Option<&Value>) -> bool) {
            let wait = async {
                while !is(self.get(path).await.as_ref()) {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), wait).await.expect("the controller does its work");
        }
    }

    fn is_ready(cidr: Option<&Value>) -> bool {
        cidr.is_some_and(|cidr| {
            cidr["metadata"]["finalizers"] == json!([FINALIZER]) && cidr["status"]["conditions"][0]["status"] == "True"
        })
    }

    #[tokio::test]
    async fn deleted_service_cidr_is_kept_until_its_last_address_is_released() {
        const CIDR: &str = "/servicecidrs/a";
        const ADDRESS: &str = "/ipaddresses/10.0.0.7";
        let cluster = Cluster::new();
        let controller = tokio::spawn(run(Arc::clone(&cluster.writer)));
        let named = |name: &str| json!({"name": name, "uid": name, "creationTimestamp": "2020-01-01T00:00:00Z"});
        let cidr = |name: &str, range: &str| {
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": named(name),
                "spec": {"cidrs": [range]}})
        };
        cluster.put(CIDR, cidr("a", "10.0.0.0/24")).await;
        cluster.wait_for(CIDR, is_ready).await;
        let mut address = named("10.0.0.7");
        address["labels"] = json!({"ipaddress.kubernetes.io/ip-family": "IPv4",
            "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"});
        cluster.put(ADDRESS, json!({"metadata": address})).await;
        // The grace period is over.
        let delete = |object: &mut Value| object["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
        cluster.change(CIDR, delete).await;
        let is_terminating =
            |cidr: Option<&Value>| cidr.is_some_and(|cidr| cidr["status"]["conditions"][0]["reason"] == "Terminating");
        cluster.wait_for(CIDR, is_terminating).await;
        // Another ServiceCIDR with the range takes over.
        cluster.put("/servicecidrs/b", cidr("b", "10.0.0.0/16")).await;
        cluster.wait_for(CIDR, |cidr| cidr.is_none()).await;
        cluster.wait_for("/servicecidrs/b", is_ready).await;
        cluster.change("/servicecidrs/b", delete).await;
        cluster.wait_for("/servicecidrs/b", is_terminating).await;
        let key = Key::from_path(ADDRESS).unwrap();
        let found = cluster.storage.get(&key).await.unwrap().0.unwrap();
        cluster.storage.delete(&key, found.modified).await.unwrap();
        cluster.wait_for("/servicecidrs/b", |cidr| cidr.is_none()).await;
        controller.abort();
    }

    #[tokio::test]
    async fn service_cidrs_that_are_deleted_together_do_not_both_disappear_while_an_address_is_in_use() {
        let cluster = Cluster::new();
        let deleted = |name: &str, range: &str| {
            json!({"metadata": {"name": name, "uid": name, "finalizers": [FINALIZER],
                "deletionTimestamp": "2020-01-01T00:00:00Z"}, "spec": {"cidrs": [range]}})
        };
        cluster.put("/servicecidrs/a", deleted("a", "10.0.0.0/24")).await;
        cluster.put("/servicecidrs/b", deleted("b", "10.0.0.0/16")).await;
        let labels = json!({"ipaddress.kubernetes.io/ip-family": "IPv4",
            "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"});
        cluster.put("/ipaddresses/10.0.0.7", json!({"metadata": {"name": "10.0.0.7", "labels": labels}})).await;
        let controller = tokio::spawn(run(Arc::clone(&cluster.writer)));
        cluster.wait_for("/servicecidrs/a", |cidr| cidr.is_none()).await;
        let is_terminating =
            |cidr: Option<&Value>| cidr.is_some_and(|cidr| cidr["status"]["conditions"][0]["reason"] == "Terminating");
        cluster.wait_for("/servicecidrs/b", is_terminating).await;
        controller.abort();
    }

    #[tokio::test]
    async fn prepared_service_cidrs_are_not_changed_again() {
        let cluster = Cluster::new();
        cluster.put("/servicecidrs/a", json!({"metadata": {"name": "a"}, "spec": {"cidrs": ["10.0.0.0/24"]}})).await;
        prepare(&cluster.writer).await;
        assert!(is_ready(cluster.get("/servicecidrs/a").await.as_ref()));
        let revision = cluster.storage.current_revision().await.unwrap();
        let controller = tokio::spawn(run(Arc::clone(&cluster.writer)));
        prepare(&cluster.writer).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(cluster.storage.current_revision().await.unwrap(), revision);
        controller.abort();
    }
}
