//! Decides which claims of cluster addresses a repair creates, changes and deletes.
//!
//! | service | claim of its address | change |
//! |---|---|---|
//! | has an address | absent | create the claim |
//! | has an address | of an object that is no service | replace the claim |
//! | has an address | of a service without the address, old | replace the claim |
//! | has an address | of the service, labels differ | set the labels |
//! | has an address | of another service with the address | none; the log has a warning |
//! | has an address outside all ranges | any | none; the log has a warning |
//! | no service has the address | managed, of an object that is no service | delete the claim |
//! | no service has the address | managed, of a service, old | delete the claim |
//!
//! A claim is old after [`PENDING_WAIT`]. A younger one may belong to a create or update in progress, which would store
//! its service without another look at the claim. kube-apiserver waits for 60 seconds. The plan lists these claims as
//! [`PendingClaim`]s, so that the caller can check them again.
//!
//! The age of a claim counts at `now`, which is a time before the services were read. If a claim is old at `now`, the
//! write that made it has ended: it has stored its service before `now`, or never stores it. So the services that are
//! read after `now` contain the service, unless another write has removed the address from it. A decision stays valid
//! while the revision of the claim is unchanged: a later write that wants the address changes that revision first.
//!
//! Source: `syncService` and `syncIPAddress` in `pkg/registry/core/service/ipallocator/controller/repairip.go`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use listwatch_meta::Revision;
use time::OffsetDateTime;

use super::super::services::PENDING_WAIT;

/// The maximum number of pending claims that a repair returns, of services that share an address, and of services whose
/// claim another writer changed. The next full repair finds the others.
pub const FOLLOW_UPS_MAX: usize = 1_000;

/// The namespace and the name of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The object for which an address is claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Service(ServiceName),
    /// An object that is no service, or no object.
    Other,
    /// The claim is unreadable, so any object may own the address.
    Unknown,
}

/// A stored `IPAddress`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) address: Ipv4Addr,
    pub(super) revision: Revision,
    pub(super) owner: Owner,
    pub(super) created: Option<OffsetDateTime>,
    /// Whether the labels say that the allocator of services manages the claim.
    pub(super) is_managed: bool,
    /// Whether the claim has all labels of the allocator.
    pub(super) has_labels: bool,
}

impl Claim {
    /// Returns the time until the claim is old, or `None` if the claim is old.
    fn pending(&self, now: OffsetDateTime) -> Option<Duration> {
        let left = PENDING_WAIT - (now - self.created?);
        Duration::try_from(left).ok().filter(|left| !left.is_zero())
    }
}

/// The stored services with their addresses, and the stored claims.
#[derive(Debug)]
pub(super) struct StoredAddresses {
    services: BTreeMap<ServiceName, Vec<Ipv4Addr>>,
    claims: BTreeMap<Ipv4Addr, Claim>,
    /// The unreadable services. A claim may belong to one of them.
    unreadable: Vec<ServiceName>,
}

impl StoredAddresses {
    pub(super) fn new() -> Self {
        StoredAddresses { services: BTreeMap::new(), claims: BTreeMap::new(), unreadable: Vec::new() }
    }

    pub(super) fn add_claim(&mut self, claim: Claim) {
        self.claims.insert(claim.address, claim);
    }

    /// Adds addresses of a service; `None` if the service is unreadable.
    pub(super) fn add_service(&mut self, name: ServiceName, addresses: Option<Vec<Ipv4Addr>>) {
        match addresses {
            Some(addresses) if addresses.is_empty() => {}
            Some(addresses) => self.services.entry(name).or_default().extend(addresses),
            None => self.unreadable.push(name),
        }
    }
}

/// A change of one claim in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Create the claim of an address for a service.
    Create(Ipv4Addr, ServiceName),
    /// Replace the claim at this revision by one for a service.
    Replace(Ipv4Addr, Revision, ServiceName),
    /// Set the labels of the claim at this revision.
    SetLabels(Ipv4Addr, Revision),
    /// Delete the claim at this revision.
    Delete(Ipv4Addr, Revision),
}

impl Change {
    /// Returns the service for which the change claims an address, if any.
    pub(super) fn claimed_for(&self) -> Option<&ServiceName> {
        match self {
            Change::Create(_, service) | Change::Replace(_, _, service) => Some(service),
            Change::SetLabels(..) | Change::Delete(..) => None,
        }
    }
}

/// A problem that a repair cannot solve, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// The address of a service is in no range.
    OutOfRange(Ipv4Addr, ServiceName),
    /// The address of the first service is claimed for the second one, which also has the address.
    Duplicate(Ipv4Addr, ServiceName, ServiceName),
    /// The number of unreadable services, and the first of them. No claim is deleted or taken from a service, because
    /// each claim may belong to one of them.
    UnreadableServices(usize, ServiceName),
    /// The number of unreadable claims, and the address of the first. They are not changed.
    UnreadableClaims(usize, Ipv4Addr),
}

/// A claim that may belong to a write in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingClaim {
    /// The claimed address.
    pub address: Ipv4Addr,
    /// A service that has the address. If there is none, the service that the claim names.
    pub service: ServiceName,
    /// The time until the claim is old.
    pub wait: Duration,
}

/// The result of the decision.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// The changes that claim an address are first: until they are made, another service may get the address.
    pub(super) changes: Vec<Change>,
    pub(super) problems: Vec<Problem>,
    /// The claims that can be changed when they are old, at most [`FOLLOW_UPS_MAX`].
    pub(super) pending: Vec<PendingClaim>,
    /// The services whose address is claimed for another service, at most [`FOLLOW_UPS_MAX`]. The other service may be
    /// absent.
    pub(super) shared: Vec<(Ipv4Addr, ServiceName)>,
}

impl Plan {
    fn add_pending(&mut self, address: Ipv4Addr, service: &ServiceName, wait: Duration) {
        if self.pending.len() < FOLLOW_UPS_MAX {
            self.pending.push(PendingClaim { address, service: service.clone(), wait });
        }
    }

    fn add_shared(&mut self, address: Ipv4Addr, service: &ServiceName) {
        if self.shared.len() < FOLLOW_UPS_MAX {
            self.shared.push((address, service.clone()));
        }
    }
}

/// Decides about all addresses of the services and all claims. `is_in_range` returns whether an address is in a range
/// of cluster addresses. `now` is a time before the services were read.
pub(super) fn plan(stored: &StoredAddresses, is_in_range: impl Fn(Ipv4Addr) -> bool, now: OffsetDateTime) -> Plan {
    let mut plan = Plan::default();
    if let Some(first) = stored.unreadable.first() {
        plan.problems.push(Problem::UnreadableServices(stored.unreadable.len(), first.clone()));
    }
    let has_unreadable = !stored.unreadable.is_empty();
    let mut unreadable = stored.claims.values().filter(|claim| claim.owner == Owner::Unknown);
    if let Some(first) = unreadable.next() {
        plan.problems.push(Problem::UnreadableClaims(1 + unreadable.count(), first.address));
    }
    let mut services: BTreeMap<Ipv4Addr, Vec<&ServiceName>> = BTreeMap::new();
    for (name, addresses) in &stored.services {
        for address in addresses {
            services.entry(*address).or_default().push(name);
        }
    }
    for (address, names) in &services {
        let (address, Some(first)) = (*address, names.first().copied()) else { continue };
        if !is_in_range(address) {
            plan.problems.extend(names.iter().map(|name| Problem::OutOfRange(address, (*name).clone())));
            continue;
        }
        let holder = match stored.claims.get(&address) {
            None => {
                plan.changes.push(Change::Create(address, first.clone()));
                first
            }
            Some(claim) => match &claim.owner {
                Owner::Unknown => continue,
                Owner::Service(owner) if names.contains(&owner) => {
                    if !claim.has_labels {
                        plan.changes.push(Change::SetLabels(address, claim.revision));
                    }
                    owner
                }
                Owner::Service(_) => {
                    let wait = claim.pending(now);
                    if wait.is_some() || has_unreadable {
                        // The claim may belong to a write in progress, or to an unreadable service.
                        names.iter().for_each(|service| plan.add_shared(address, service));
                        if let Some(wait) = wait.filter(|_| !has_unreadable) {
                            plan.add_pending(address, first, wait);
                        }
                        continue;
                    }
                    plan.changes.push(Change::Replace(address, claim.revision, first.clone()));
                    first
                }
                Owner::Other => {
                    plan.changes.push(Change::Replace(address, claim.revision, first.clone()));
                    first
                }
            },
        };
        for service in names.iter().filter(|name| **name != holder) {
            plan.problems.push(Problem::Duplicate(address, (*service).clone(), holder.clone()));
            plan.add_shared(address, service);
        }
    }
    plan.changes.sort_by_key(|change| change.claimed_for().is_none());
    if has_unreadable {
        return plan;
    }
    for claim in stored.claims.values().filter(|claim| claim.is_managed && !services.contains_key(&claim.address)) {
        match (&claim.owner, claim.pending(now)) {
            (Owner::Unknown, _) => {}
            (Owner::Service(owner), Some(wait)) => plan.add_pending(claim.address, owner, wait),
            (Owner::Service(_) | Owner::Other, _) => plan.changes.push(Change::Delete(claim.address, claim.revision)),
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
    const REVISION: Revision = Revision::new(7);
    const OLD: Duration = Duration::from_secs(90);
    const YOUNG: Duration = Duration::from_secs(89);

    fn now() -> OffsetDateTime {
        OffsetDateTime::UNIX_EPOCH + Duration::from_secs(1_000_000)
    }

    fn name(name: &str) -> ServiceName {
        ServiceName { namespace: "default".to_owned(), name: name.to_owned() }
    }

    fn owned_by(service: &str) -> Owner {
        Owner::Service(name(service))
    }

    fn claim(address: Ipv4Addr, owner: Owner, age: Duration) -> Claim {
        let created = Some(now() - age);
        Claim { address, revision: REVISION, owner, created, is_managed: true, has_labels: true }
    }

    fn stored(services: &[(&str, Ipv4Addr)], claims: &[Claim]) -> StoredAddresses {
        let mut stored = StoredAddresses::new();
        for (service, address) in services {
            stored.add_service(name(service), Some(vec![*address]));
        }
        claims.iter().for_each(|claim| stored.add_claim(claim.clone()));
        stored
    }

    fn decide(stored: &StoredAddresses) -> Plan {
        plan(stored, |address| address != OUTSIDE, now())
    }

    fn check(services: &[(&str, Ipv4Addr)], claims: &[Claim], changes: &[Change]) {
        let found = decide(&stored(services, claims));
        assert_eq!(found.changes, changes, "{services:?} {claims:?}");
        assert!(found.problems.is_empty(), "{services:?} {claims:?}");
    }

    #[test]
    fn service_without_a_claim_gets_one_and_a_correct_claim_stays() {
        check(&[("s", A)], &[], &[Change::Create(A, name("s"))]);
        check(&[("s", A)], &[claim(A, owned_by("s"), OLD)], &[]);
        check(&[("s", A)], &[claim(A, owned_by("s"), Duration::ZERO)], &[]);
        check(&[("s", A), ("t", B)], &[claim(B, owned_by("t"), OLD)], &[Change::Create(A, name("s"))]);
    }

    #[test]
    fn changes_that_claim_an_address_come_first() {
        let unlabeled = Claim { has_labels: false, ..claim(A, owned_by("s"), OLD) };
        let changes = [Change::Create(B, name("t")), Change::SetLabels(A, REVISION)];
        check(&[("s", A), ("t", B)], &[unlabeled], &changes);
    }

    #[test]
    fn claim_of_another_object_is_replaced_if_a_service_has_the_address() {
        let replaced = [Change::Replace(A, REVISION, name("s"))];
        check(&[("s", A)], &[claim(A, Owner::Other, Duration::ZERO)], &replaced);
        check(&[("s", A)], &[claim(A, owned_by("gone"), OLD)], &replaced);
        check(&[("s", A), ("t", B)], &[claim(A, owned_by("t"), OLD), claim(B, owned_by("t"), OLD)], &replaced);
        check(&[("s", A)], &[claim(A, owned_by("creating"), YOUNG)], &[]);
    }

    #[test]
    fn labels_of_a_claim_are_corrected_only_while_its_service_exists() {
        let bare = |owner: Owner| Claim { is_managed: false, has_labels: false, ..claim(A, owner, OLD) };
        check(&[("s", A)], &[bare(owned_by("s"))], &[Change::SetLabels(A, REVISION)]);
        check(&[], &[bare(owned_by("s"))], &[]);
        check(&[], &[bare(Owner::Other)], &[]);
    }

    #[test]
    fn managed_claim_without_a_service_is_deleted_only_when_it_is_old() {
        let deleted = [Change::Delete(A, REVISION)];
        check(&[], &[claim(A, owned_by("gone"), OLD)], &deleted);
        check(&[("s", B)], &[claim(A, owned_by("s"), OLD), claim(B, owned_by("s"), OLD)], &deleted);
        check(&[], &[claim(A, Owner::Other, Duration::ZERO)], &deleted);
        check(&[], &[Claim { created: None, ..claim(A, owned_by("gone"), OLD) }], &deleted);
        check(&[], &[claim(A, owned_by("creating"), YOUNG)], &[]);
        let aged = |address: Ipv4Addr, seconds: u64| claim(address, owned_by("creating"), Duration::from_secs(seconds));
        let young = [aged(A, 10), aged(B, 40)];
        let pending = |address: Ipv4Addr, service: &str, seconds: u64| PendingClaim {
            address,
            service: name(service),
            wait: Duration::from_secs(seconds),
        };
        let found = decide(&stored(&[], &young)).pending;
        assert_eq!(found, [pending(A, "creating", 80), pending(B, "creating", 50)]);
        let found = decide(&stored(&[("s", B)], &young)).pending;
        assert_eq!(found, [pending(B, "s", 50), pending(A, "creating", 80)], "the service with the address is named");
        let mut unreadable = stored(&[], &young);
        unreadable.add_service(name("unreadable"), None);
        assert!(decide(&unreadable).pending.is_empty(), "no claim is deleted while a service is unreadable");
    }

    #[test]
    fn plan_names_at_most_follow_ups_max_pending_claims_and_services_that_share_an_address() {
        let addresses = (1..=FOLLOW_UPS_MAX as u32 + 1).map(Ipv4Addr::from_bits);
        let claims: Vec<Claim> = addresses.map(|address| claim(address, owned_by("creating"), YOUNG)).collect();
        assert_eq!(decide(&stored(&[], &claims)).pending.len(), FOLLOW_UPS_MAX);
        let names: Vec<String> = (0..FOLLOW_UPS_MAX + 2).map(|number| format!("s{number}")).collect();
        let services: Vec<(&str, Ipv4Addr)> = names.iter().map(|name| (name.as_str(), A)).collect();
        assert_eq!(decide(&stored(&services, &[])).shared.len(), FOLLOW_UPS_MAX);
    }

    #[test]
    fn no_claim_is_taken_from_its_owner_while_services_are_unreadable() {
        let changes = |services: &[(&str, Ipv4Addr)], claims: &[Claim]| {
            let mut stored = stored(services, claims);
            stored.add_service(name("unreadable"), None);
            decide(&stored).changes
        };
        assert!(changes(&[], &[claim(A, owned_by("unreadable"), OLD)]).is_empty());
        assert!(changes(&[], &[claim(A, Owner::Other, OLD)]).is_empty());
        assert!(changes(&[("s", A)], &[claim(A, owned_by("unreadable"), OLD)]).is_empty());
        assert_eq!(changes(&[("s", A)], &[]), [Change::Create(A, name("s"))]);
    }

    #[test]
    fn unreadable_services_and_claims_are_counted_and_not_changed() {
        let claims = [claim(A, Owner::Unknown, OLD), claim(B, Owner::Unknown, OLD)];
        for services in [vec![], vec![("s", A)]] {
            let mut stored = stored(&services, &claims);
            stored.add_service(name("x"), None);
            stored.add_service(name("y"), None);
            let found = decide(&stored);
            assert!(found.changes.is_empty(), "{services:?}");
            let expected = [Problem::UnreadableServices(2, name("x")), Problem::UnreadableClaims(2, A)];
            assert_eq!(found.problems, expected, "{services:?}");
        }
    }

    #[test]
    fn shared_and_out_of_range_addresses_are_reported() {
        let found = decide(&stored(&[("s", A), ("t", A), ("u", OUTSIDE)], &[claim(A, owned_by("t"), OLD)]));
        assert!(found.changes.is_empty());
        let expected = [Problem::Duplicate(A, name("s"), name("t")), Problem::OutOfRange(OUTSIDE, name("u"))];
        assert_eq!(found.problems, expected);
        let unclaimed = decide(&stored(&[("s", A), ("t", A)], &[]));
        assert_eq!(unclaimed.changes, [Change::Create(A, name("s"))]);
        assert_eq!(unclaimed.problems, [Problem::Duplicate(A, name("t"), name("s"))]);
        assert_eq!(unclaimed.shared, [(A, name("t"))]);
        let mut pending = stored(&[("s", A), ("t", A)], &[claim(A, owned_by("creating"), YOUNG)]);
        assert_eq!(decide(&pending).shared, [(A, name("s")), (A, name("t"))], "the claim names an absent service");
        assert!(decide(&pending).problems.is_empty());
        pending.add_service(name("unreadable"), None);
        assert_eq!(decide(&pending).shared, [(A, name("s")), (A, name("t"))], "a service is unreadable");
        let kept = decide(&stored(&[("u", OUTSIDE)], &[claim(OUTSIDE, owned_by("u"), OLD)]));
        assert!(kept.changes.is_empty(), "a service keeps the claim of an address whose range was deleted");
    }
}
