//! [`ServiceCidrs`]: the ranges from which a server allocates cluster addresses: the range of the flag, and those of the
//! stored ServiceCIDRs.
//!
//! Source: `syncAllocators`, `getAllocator` and `isReady` in `pkg/registry/core/service/ipallocator/cidrallocator.go`.
//!
//! | range | used for new addresses |
//! |---|---|
//! | of a stored ServiceCIDR | while a ServiceCIDR with this range is ready and not being deleted |
//! | of the flag | the same, and while no ServiceCIDR has this range |
//!
//! A ServiceCIDR without the condition `Ready` is ready, so that it works without kube-controller-manager. As in
//! kube-apiserver, the range of the flag is not used while the ServiceCIDR `kubernetes` with this range is being
//! deleted.
//!
//! Limits:
//! - IPv6 ranges are not used: services get IPv4 addresses only.
//! - The server tries the range of the flag first, also if the range of a ServiceCIDR contains it. It then tries the
//!   others by the names of their ServiceCIDRs. kube-apiserver tries its ranges in random order.
//! - A change of a ServiceCIDR has effect when the event arrives. For this reason, a controller keeps a deleted
//!   ServiceCIDR for ten seconds.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use futures_util::task::AtomicWaker;
use parking_lot::RwLock;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::service_ranges::{AddressRange, AddressSet, ServiceRanges};

/// The maximum number of ranges of ready ServiceCIDRs that a service without a chosen address tries, besides the range
/// of the flag. This limits the cost of one write. Ranges that another range contains do not count. From further ranges,
/// by the names of their ServiceCIDRs, services only get addresses that they choose, and the log has a warning.
const RANGES_MAX: usize = 64;

/// The ranges of cluster addresses on one server. The controller `listwatch_controllers::service_cidrs` updates the
/// stored ServiceCIDRs. Without this controller, only the range of the flag is used.
#[derive(Debug)]
pub struct ServiceCidrs {
    /// The range of the flag `--service-cluster-ip-range`.
    flag: AddressRange,
    state: RwLock<State>,
    growth: Growth,
}

/// Whether new addresses have become usable since the last [`ServiceCidrs::wait_for_growth`].
#[derive(Debug, Default)]
struct Growth {
    has_grown: AtomicBool,
    waker: AtomicWaker,
}

#[derive(Debug)]
struct State {
    /// The stored ServiceCIDRs with an IPv4 range, by name. The map is much smaller than the watch cache of these
    /// objects.
    stored: BTreeMap<String, StoredRange>,
    /// The addresses of all ready ranges, which services may choose.
    ready: AddressSet,
    /// The ranges that a service without a chosen address tries, in this order. No range contains another, except that
    /// ranges of ServiceCIDRs may contain that of the flag.
    usable: Arc<[AddressRange]>,
    /// Whether `usable` lacks ready ranges because of [`RANGES_MAX`].
    has_too_many: bool,
}

/// The IPv4 range of a stored ServiceCIDR.
#[derive(Debug)]
struct StoredRange {
    range: AddressRange,
    /// Whether the ServiceCIDR is ready and not being deleted.
    is_ready: bool,
}

impl ServiceCidrs {
    /// Creates the ranges of a server that knows no stored ServiceCIDR yet.
    pub(crate) fn new(ranges: &ServiceRanges) -> Self {
        let flag = ranges.address_range();
        let ready = [flag].into_iter().collect();
        let state = State { stored: BTreeMap::new(), ready, usable: [flag].into(), has_too_many: false };
        ServiceCidrs { flag, state: RwLock::new(state), growth: Growth::default() }
    }

    /// Adds or replaces a stored ServiceCIDR. Returns false if the JSON cannot be read; the ServiceCIDR then has no
    /// effect.
    pub fn set(&self, name: &str, json: &[u8]) -> bool {
        let parsed = parse(json);
        let is_readable = parsed.is_some();
        self.change(|stored| match parsed.flatten() {
            Some(range) => {
                stored.insert(name.to_owned(), range);
            }
            None => {
                stored.remove(name);
            }
        });
        is_readable
    }

    /// Removes a stored ServiceCIDR.
    pub fn remove(&self, name: &str) {
        self.change(|stored| {
            stored.remove(name);
        });
    }

    /// Replaces all stored ServiceCIDRs, given as names and JSON. Returns the names of those that cannot be read.
    pub fn replace<'a>(&self, objects: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<&'a str> {
        let (mut ranges, mut unreadable) = (BTreeMap::new(), Vec::new());
        for (name, json) in objects {
            match parse(json) {
                Some(range) => ranges.extend(range.map(|range| (name.to_owned(), range))),
                None => unreadable.push(name),
            }
        }
        self.change(|stored| *stored = ranges);
        unreadable
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, StoredRange>)) {
        let mut state = self.state.write();
        let former = addresses_of(self.flag, &state.stored);
        change(&mut state.stored);
        let has_grown = state.stored.values().any(|stored| !former.contains(stored.range));
        let (ready, usable, has_too_many) = usable_ranges(self.flag, &state.stored);
        if has_too_many && !state.has_too_many {
            let maximum = RANGES_MAX;
            tracing::warn!(
                maximum,
                "too many ServiceCIDRs: services get only chosen addresses from the last ones, by name"
            );
        }
        state.ready = ready;
        state.usable = usable.into();
        state.has_too_many = has_too_many;
        drop(state);
        if has_grown {
            self.growth.has_grown.store(true, Ordering::Release);
            self.growth.waker.wake();
        }
    }

    /// Waits until [`ServiceCidrs::take_growth`] returns true. Only one task may wait.
    pub async fn wait_for_growth(&self) {
        poll_fn(|context| {
            self.growth.waker.register(context.waker());
            if self.take_growth() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Whether a range was added since the last call that returned true. Stored services without claims may have
    /// addresses in that range.
    pub fn take_growth(&self) -> bool {
        self.growth.has_grown.swap(false, Ordering::AcqRel)
    }

    /// Returns the ranges that a service without a chosen address tries, in this order.
    pub(crate) fn usable(&self) -> Arc<[AddressRange]> {
        Arc::clone(&self.state.read().usable)
    }

    /// Whether a new service may choose this address.
    pub(crate) fn is_usable(&self, address: Ipv4Addr) -> bool {
        self.state.read().ready.has_host(address)
    }

    /// Returns the addresses of all ranges, whether or not they are used for new addresses. Existing services may have
    /// these addresses.
    pub(crate) fn addresses(&self) -> AddressSet {
        addresses_of(self.flag, &self.state.read().stored)
    }
}

fn addresses_of(flag: AddressRange, stored: &BTreeMap<String, StoredRange>) -> AddressSet {
    stored.values().map(|stored| stored.range).chain([flag]).collect()
}

/// Returns the addresses of all ready ranges, the ranges that a service without a chosen address tries, and whether these
/// lack some at [`RANGES_MAX`].
fn usable_ranges(flag: AddressRange, stored: &BTreeMap<String, StoredRange>) -> (AddressSet, Vec<AddressRange>, bool) {
    let mut of_flag = stored.values().filter(|stored| stored.range == flag).peekable();
    let is_flag_usable = of_flag.peek().is_none() || of_flag.any(|stored| stored.is_ready);
    let ready = stored.values().filter(|stored| stored.is_ready && stored.range != flag).map(|stored| stored.range);
    let of_flag = is_flag_usable.then_some(flag);
    let all: AddressSet = ready.clone().chain(of_flag).collect();
    // The range of the flag stays even if another one contains it, so that it is tried first.
    let mut usable: Vec<AddressRange> = of_flag.into_iter().collect();
    let ranges_max = usable.len() + RANGES_MAX;
    for range in ready {
        // A range adds no address to a range that contains it.
        if !all.has_range(range) || usable.contains(&range) {
            continue;
        }
        if usable.len() == ranges_max {
            return (all, usable, true);
        }
        usable.push(range);
    }
    (all, usable, false)
}

/// Parses a stored ServiceCIDR. Returns `None` if the JSON cannot be read, and `Some(None)` for a ServiceCIDR without
/// an IPv4 range.
#[allow(clippy::option_option, reason = "the three outcomes are named in the documentation")]
fn parse(json: &[u8]) -> Option<Option<StoredRange>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        deletion_timestamp: Option<IgnoredAny>,
    }
    #[derive(Deserialize)]
    struct Spec {
        cidrs: Option<Vec<String>>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Condition {
        r#type: String,
        status: String,
    }
    #[derive(Deserialize)]
    struct Status {
        conditions: Option<Vec<Condition>>,
    }
    #[derive(Deserialize)]
    struct ServiceCidr {
        metadata: Metadata,
        spec: Option<Spec>,
        status: Option<Status>,
    }
    let cidr: ServiceCidr = serde_json::from_slice(json).ok()?;
    let ranges = cidr.spec.and_then(|spec| spec.cidrs).unwrap_or_default();
    let conditions = cidr.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.r#type == "Ready");
    let is_ready = cidr.metadata.deletion_timestamp.is_none() && ready.is_none_or(|ready| ready.status == "True");
    // A ServiceCIDR has at most one range of each family.
    let range = ranges.iter().find_map(|range| AddressRange::parse(range));
    Some(range.map(|range| StoredRange { range, is_ready }))
}

#[cfg(test)]
mod tests {
    use listwatch_json::{Value, json};

    use super::*;

    fn service_cidr(ranges: &[&str], ready: Option<&str>, is_deleted: bool) -> Value {
        let mut object = json!({"metadata": {"name": "x"}, "spec": {"cidrs": ranges}});
        if let Some(ready) = ready {
            object["status"] = json!({"conditions": [{"type": "Ready", "status": ready}]});
        }
        if is_deleted {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        object
    }

    fn cidrs(flag: &str, stored: &[(&str, Value)]) -> ServiceCidrs {
        let cidrs = ServiceCidrs::new(&ServiceRanges::default().with_cluster_addresses(flag).unwrap());
        for (name, object) in stored {
            assert!(cidrs.set(name, object.to_string().as_bytes()), "{name}");
        }
        cidrs
    }

    fn shown(cidrs: &ServiceCidrs) -> Vec<String> {
        cidrs.usable().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ranges_of_ready_service_cidrs_that_are_not_being_deleted_are_used() {
        let check = |ready: Option<&str>, is_deleted: bool, is_used: bool| {
            let object = service_cidr(&["fd00::/112", "10.1.0.0/24"], ready, is_deleted);
            let cidrs = cidrs("10.96.0.0/16", &[("a", object)]);
            let expected: &[&str] = if is_used { &["10.96.0.0/16", "10.1.0.0/24"] } else { &["10.96.0.0/16"] };
            assert_eq!(shown(&cidrs), expected, "{ready:?}, being deleted: {is_deleted}");
            assert_eq!(cidrs.is_usable(Ipv4Addr::new(10, 1, 0, 7)), is_used);
            assert!(cidrs.addresses().has_host(Ipv4Addr::new(10, 1, 0, 7)), "existing services keep their addresses");
        };
        check(None, false, true);
        check(Some("True"), false, true);
        check(Some("False"), false, false);
        check(Some("Unknown"), false, false);
        check(None, true, false);
        check(Some("True"), true, false);
    }

    #[test]
    fn range_of_the_flag_is_used_unless_no_service_cidr_with_this_range_is_ready() {
        let ready = || service_cidr(&["10.96.0.0/16"], Some("True"), false);
        let deleted = || service_cidr(&["10.96.0.0/16"], Some("True"), true);
        let check = |stored: &[(&str, Value)], expected: &[&str]| {
            assert_eq!(shown(&cidrs("10.96.0.0/16", stored)), expected, "{stored:?}");
        };
        check(&[], &["10.96.0.0/16"]);
        check(&[("kubernetes", ready())], &["10.96.0.0/16"]);
        check(&[("kubernetes", deleted())], &[]);
        check(&[("kubernetes", deleted()), ("same", ready())], &["10.96.0.0/16"]);
        check(&[("kubernetes", service_cidr(&["10.0.0.0/24"], None, true))], &["10.96.0.0/16"]);
    }

    #[test]
    fn flag_precedes_the_ranges_in_the_order_of_names_without_contained_ranges() {
        let range = |range: &str| service_cidr(&[range], None, false);
        let stored = [
            ("a", range("10.2.0.0/24")),
            ("b", range("10.1.0.0/16")),
            ("c", range("10.1.7.0/24")),
            ("d", range("10.2.0.0/24")),
            ("e", range("10.96.3.0/24")),
            ("f", range("fd00::/112")),
        ];
        let cidrs = cidrs("10.96.0.0/16", &stored);
        assert_eq!(shown(&cidrs), ["10.96.0.0/16", "10.2.0.0/24", "10.1.0.0/16"]);
        cidrs.remove("b");
        assert_eq!(shown(&cidrs), ["10.96.0.0/16", "10.2.0.0/24", "10.1.7.0/24"]);
        let wider = range("10.0.0.0/8").to_string();
        assert_eq!(cidrs.replace([("x", wider.as_bytes()), ("y", b"[]".as_slice())]), ["y"]);
        assert_eq!(shown(&cidrs), ["10.96.0.0/16", "10.0.0.0/8"], "the range of the flag precedes a wider one");
        assert!(!cidrs.set("x", b"k8s"), "an unreadable ServiceCIDR has no effect");
        assert_eq!(shown(&cidrs), ["10.96.0.0/16"]);
    }

    #[test]
    fn new_range_that_no_other_contains_is_a_growth() {
        let cidrs = cidrs("10.96.0.0/16", &[]);
        let check = |name: &str, range: &str, expected: bool| {
            assert!(cidrs.set(name, service_cidr(&[range], None, false).to_string().as_bytes()));
            assert_eq!(cidrs.take_growth(), expected, "{name} {range}");
            assert!(!cidrs.take_growth(), "a growth is taken once");
        };
        check("part", "10.96.3.0/24", false);
        check("other", "10.97.0.0/16", true);
        check("same", "10.97.0.0/16", false);
        check("wider", "10.0.0.0/8", true);
        cidrs.remove("wider");
        assert!(!cidrs.take_growth());
        check("wider", "10.0.0.0/8", true);
    }

    fn set_many(cidrs: &ServiceCidrs, range: impl Fn(usize) -> String) {
        for number in 0..=RANGES_MAX {
            let object = service_cidr(&[&range(number)], None, false);
            assert!(cidrs.set(&format!("r{number:03}"), object.to_string().as_bytes()));
        }
    }

    #[test]
    fn only_chosen_addresses_come_from_ready_service_cidrs_above_the_maximum() {
        let cidrs = cidrs("10.96.0.0/16", &[]);
        set_many(&cidrs, |number| format!("10.1.{number}.0/24"));
        let is_tried = |cidrs: &ServiceCidrs| shown(cidrs).contains(&"10.1.64.0/24".to_owned());
        assert_eq!(cidrs.usable().len(), RANGES_MAX + 1);
        assert!(!is_tried(&cidrs));
        let last = Ipv4Addr::new(10, 1, 64, 1);
        assert!(cidrs.is_usable(last));
        assert!(cidrs.addresses().has_host(last));
        cidrs.remove("r000");
        assert!(is_tried(&cidrs));
    }

    #[test]
    fn contained_ranges_do_not_count_toward_the_maximum() {
        let cidrs = cidrs("10.96.0.0/16", &[]);
        set_many(&cidrs, |number| format!("10.96.{number}.0/24"));
        assert!(cidrs.set("same", service_cidr(&["10.97.0.0/16"], None, false).to_string().as_bytes()));
        assert!(cidrs.set("z", service_cidr(&["10.97.0.0/16"], None, false).to_string().as_bytes()));
        assert_eq!(shown(&cidrs), ["10.96.0.0/16", "10.97.0.0/16"]);
        assert!(cidrs.is_usable(Ipv4Addr::new(10, 97, 0, 1)));
    }
}
