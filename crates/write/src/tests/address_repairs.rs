//! Tests the repair of the claims of cluster addresses.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use listwatch_json::json;
use listwatch_storage::{
    Capabilities, CreateError, DeleteError, ListPage, ReadError, StoreFault, StoreStats, UpdateError, Watch, WatchError,
};
use parking_lot::Mutex;

use super::allocations::{Allocations, FaultyStore};
use super::services::{SERVICES, body, edit_stored, later, lose, remove_stored};
use super::*;
use crate::ServiceName;

const CLAIM: &str = "/ipaddresses/10.96.0.10";
const CHOSEN: &str = r#"{"clusterIP":"10.96.0.10","ports":[{"port":80}]}"#;

/// Repairs all claims at the time of the world's clock. Returns the time until the first pending claim is old.
async fn repair(world: &World) -> Option<Duration> {
    let repair = world.writer.address_repair(&world.clock);
    let mut plan = repair.read().await.unwrap().plan();
    repair.carry_out(&mut plan).await.pending.iter().map(|claim| claim.wait).min()
}

/// Repairs the claims of one service of the namespace `default`, and its pending claim at an address.
async fn repair_of(world: &World, name: &str, claimed: Option<Ipv4Addr>) {
    let service = ServiceName { namespace: "default".to_owned(), name: name.to_owned() };
    world.writer.address_repair(&world.clock).run_for(&service, claimed).await.unwrap();
}

/// Stores a service as a server without claims does.
async fn store_without_claim(world: &World, name: &str, address: &str) {
    let service = json!({"kind": "Service", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"clusterIP": address, "ports": [{"port": 81}]}});
    let key = Key::from_path(&format!("/services/specs/default/{name}")).unwrap();
    world.writer.backend().storage().create(&key, service.to_string().into(), None).await.unwrap();
}

/// Checks that each service has a claim and each claim a service, and that another repair changes nothing.
async fn check_at_rest(world: &World) {
    Allocations::read(world).await.check_at_rest().unwrap_or_else(|broken| panic!("{broken}"));
    let before = world.revision().await;
    repair(world).await;
    assert_eq!(world.revision().await, before, "the repair of correct claims writes nothing");
}

#[tokio::test]
async fn service_stored_without_a_claim_gets_the_claim_of_its_address() {
    let world = World::new().await;
    store_without_claim(&world, "old", "10.96.0.10").await;
    repair(&world).await;
    assert_eq!(
        world.stored("/ipaddresses/").await,
        [
            r#"/ipaddresses/10.96.0.10={"kind":"IPAddress","apiVersion":"networking.k8s.io/v1","metadata":{"name":"10.96.0.10","uid":"UID","creationTimestamp":"NOW","labels":{"ipaddress.kubernetes.io/ip-family":"IPv4","ipaddress.kubernetes.io/managed-by":"ipallocator.k8s.io"}},"spec":{"parentRef":{"resource":"services","namespace":"default","name":"old"}}}"#
        ]
    );
    check_at_rest(&world).await;
    let taken = "Service \"t\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.0.10\"]: failed to allocate IP 10.96.0.10: provided IP is already allocated";
    world.refuse(&post(SERVICES), &body("t", CHOSEN), 422, taken).await;
}

#[tokio::test]
async fn deleted_claim_of_a_service_is_recreated() {
    let world = World::new().await;
    world.send(&post(SERVICES), &body("s", CHOSEN)).await.unwrap();
    remove_stored(&world, CLAIM).await;
    repair_of(&world, "s", None).await;
    check_at_rest(&world).await;
    // A service that does not exist, and one without an address.
    world.send(&post(SERVICES), &body("h", r#"{"clusterIP":"None"}"#)).await.unwrap();
    for name in ["gone", "h"] {
        repair_of(&world, name, None).await;
    }
    assert_eq!(world.stored("/ipaddresses/").await.len(), 1);
}

#[tokio::test]
async fn claim_with_a_wrong_reference_or_without_labels_is_corrected() {
    let world = World::new().await;
    world.send(&post(SERVICES), &body("s", CHOSEN)).await.unwrap();
    edit_stored(&world, CLAIM, |claim| claim["metadata"]["labels"] = json!({"a": "b"})).await;
    repair_of(&world, "s", None).await;
    let stored = world.stored("/ipaddresses/").await.concat();
    for label in [r#""a":"b""#, r#"ip-family":"IPv4""#, r#"managed-by":"ipallocator.k8s.io""#] {
        assert!(stored.contains(label), "{label}: {stored}");
    }
    check_at_rest(&world).await;

    let gateway =
        json!({"group": "gateway.networking.k8s.io", "resource": "gateways", "namespace": "default", "name": "g"});
    edit_stored(&world, CLAIM, |claim| claim["spec"]["parentRef"] = gateway).await;
    repair_of(&world, "s", None).await;
    check_at_rest(&world).await;

    // The claim may belong to a create in progress, so the repair waits.
    edit_stored(&world, CLAIM, |claim| claim["spec"]["parentRef"]["name"] = json!("creating")).await;
    assert_eq!(repair(&later(&world, 30)).await, Some(Duration::from_secs(60)));
    assert!(world.stored("/ipaddresses/").await.concat().contains("creating"));
    let world = later(&world, 90);
    assert_eq!(repair(&world).await, None);
    check_at_rest(&world).await;
}

#[tokio::test]
async fn claim_of_a_lost_service_is_deleted_only_after_pending_wait() {
    let world = World::new().await;
    world.send(&post(SERVICES), &body("s", CHOSEN)).await.unwrap();
    lose(&world, "s").await;
    assert_eq!(repair(&later(&world, 89)).await, Some(Duration::from_secs(1)));
    assert_eq!(world.stored("/ipaddresses/").await.len(), 1);
    repair(&later(&world, 90)).await;
    assert_eq!(world.stored("/ipaddresses/").await.len(), 0);
}

#[tokio::test]
async fn pending_claim_is_deleted_when_it_is_old_only_if_its_service_lacks_the_address() {
    let claimed = Some(Ipv4Addr::new(10, 96, 0, 10));
    let check = async |prepare: &[Step], claims: usize| {
        let first = World::new().await;
        let seconds = Arc::new(AtomicI64::new(parse_timestamp(NOW).unwrap().unix_timestamp()));
        let server = Race { writer: Arc::clone(&first.writer), seconds: Arc::clone(&seconds) };
        server.perform(prepare).await;
        repair_of(&World { writer: server.writer, clock: Clock::shared(seconds) }, "s", claimed).await;
        assert_eq!(first.stored("/ipaddresses/").await.len(), claims, "{prepare:?}");
    };
    check(&[Step::Claim("s"), Step::Wait(89)], 1).await;
    check(&[Step::Claim("s"), Step::Wait(90)], 0).await;
    check(&[Step::Create("s"), Step::Wait(90)], 1).await;
    check(&[Step::Claim("t"), Step::Wait(90)], 1).await;
}

#[tokio::test]
async fn claim_with_a_finalizer_is_only_marked_by_the_repair() {
    let world = World::new().await;
    world.send(&post(SERVICES), &body("s", CHOSEN)).await.unwrap();
    edit_stored(&world, CLAIM, |claim| claim["metadata"]["finalizers"] = json!(["a.b/c"])).await;
    lose(&world, "s").await;
    let world = later(&world, 90);
    repair(&world).await;
    let claims = world.stored("/ipaddresses/").await.concat();
    assert!(claims.contains("deletionTimestamp"), "{claims}");
    let before = world.revision().await;
    repair(&world).await;
    assert_eq!(world.revision().await, before, "a marked claim is not changed again");
}

#[tokio::test]
async fn allocation_from_a_full_range_reads_a_limited_number_of_services() {
    let inner = MemoryStorage::new();
    let first = World::over(inner.clone()).await;
    for host in 1..=254 {
        let claim = json!({"metadata": {"name": format!("10.43.0.{host}"), "creationTimestamp": "2020-01-01T00:00:00Z"},
            "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": format!("s{host}")}}});
        let key = Key::from_path(&format!("/ipaddresses/10.43.0.{host}")).unwrap();
        inner.create(&key, claim.to_string().into(), None).await.unwrap();
        store_without_claim(&first, &format!("s{host}"), &format!("10.43.0.{host}")).await;
    }
    let time = Arc::new(AtomicI64::new(parse_timestamp(NOW).unwrap().unix_timestamp()));
    let other = Race { writer: Arc::clone(&first.writer), seconds: Arc::clone(&time) };
    let store = Arc::new(ScriptedStore::new(inner, other, &[]));
    let ranges = ServiceRanges::default().with_cluster_addresses("10.43.0.0/24").unwrap();
    let writer = Arc::new(testing::writer(store.clone()).with_service_ranges(ranges));
    let world = World { writer, clock: Clock::shared(time) };
    let full = world.send(&post(SERVICES), &body("t", r#"{"ports":[{"port":80}]}"#)).await.unwrap_err();
    assert!(full.message.ends_with("range is full"), "{}", full.message);
    let reads = store.service_reads.load(Ordering::Relaxed);
    // The write also reads the service that it creates.
    assert!((64..=66).contains(&reads), "{reads} reads of services");
}

#[tokio::test]
async fn addresses_of_unreadable_services_and_claims_are_kept() {
    for unreadable in [CLAIM, "/services/specs/default/s"] {
        let world = World::new().await;
        world.send(&post(SERVICES), &body("s", CHOSEN)).await.unwrap();
        let (storage, key) = (world.writer.backend().storage(), Key::from_path(unreadable).unwrap());
        let (found, _) = storage.get(&key).await.unwrap();
        storage.update(&key, found.unwrap().modified, "k8s\0".into(), None).await.unwrap();
        let before = world.revision().await;
        repair(&later(&world, 1000)).await;
        assert_eq!(world.revision().await, before, "{unreadable}");
    }
}

#[tokio::test]
async fn address_of_a_service_outside_all_ranges_is_not_claimed() {
    let world = World::new().await;
    store_without_claim(&world, "outside", "192.168.0.10").await;
    store_without_claim(&world, "terminating", "10.200.0.10").await;
    let range = json!({"metadata": {"name": "r", "deletionTimestamp": NOW}, "spec": {"cidrs": ["10.200.0.0/24"]}});
    assert!(world.writer.service_cidrs().set("r", range.to_string().as_bytes()));
    repair(&world).await;
    let claims = world.stored("/ipaddresses/").await;
    assert_eq!(claims.len(), 1, "{claims:?}");
    assert!(claims[0].starts_with("/ipaddresses/10.200.0.10="), "{claims:?}");
}

/// A step of a user, of another server or of the time. All services have the same address.
#[derive(Clone, Copy, Debug)]
enum Step {
    Create(&'static str),
    Delete(&'static str),
    /// Stores a service: the last write of a create whose claim exists, or the write of a server without claims.
    Store(&'static str),
    /// Creates the claim for a service that is not stored yet, or takes over the present claim.
    Claim(&'static str),
    /// Removes the labels of the claim.
    RemoveLabels,
    /// Repairs all claims.
    Repair,
    /// Repairs the claims of one service.
    RepairOf(&'static str),
    /// The clock of all servers advances by this number of seconds.
    Wait(i64),
}

/// The steps before or after the call of the store with this method and path.
type Hook = (&'static str, &'static str, &'static [Step]);

/// A store on which other servers act before or after chosen calls of one server. Counts some of the calls.
struct ScriptedStore {
    inner: Arc<dyn Storage>,
    other: Race,
    hooks: Mutex<VecDeque<Hook>>,
    /// A planted bug: changes of claims succeed at any revision.
    ignores_revisions: bool,
    /// The number of reads of single services.
    service_reads: AtomicUsize,
    /// The number of claims that this server has deleted, and replaced or changed.
    deleted_claims: AtomicUsize,
    updated_claims: AtomicUsize,
}

/// One server, and the time of all servers.
#[derive(Clone)]
struct Race {
    writer: Arc<Writer>,
    seconds: Arc<AtomicI64>,
}

impl Race {
    async fn perform(&self, steps: &[Step]) {
        let world = World { writer: Arc::clone(&self.writer), clock: Clock::shared(Arc::clone(&self.seconds)) };
        for step in steps {
            match *step {
                Step::Create(name) => {
                    world.send(&post(SERVICES), &body(name, CHOSEN)).await.unwrap();
                }
                Step::Delete(name) => {
                    world.send(&format!("DELETE {SERVICES}/{name}"), "").await.unwrap();
                }
                Step::Store(name) => store_without_claim(&world, name, "10.96.0.10").await,
                Step::Claim(name) => {
                    let labels = json!({"ipaddress.kubernetes.io/ip-family": "IPv4",
                        "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"});
                    let claim = json!({"kind": "IPAddress", "apiVersion": "networking.k8s.io/v1",
                        "metadata": {"name": "10.96.0.10", "creationTimestamp": world.clock.now(), "labels": labels},
                        "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": name}}});
                    let key = Key::from_path(CLAIM).unwrap();
                    let storage = self.writer.backend().storage();
                    if storage.create(&key, claim.to_string().into(), None).await.is_err() {
                        let found = storage.get(&key).await.unwrap().0.unwrap();
                        storage.update(&key, found.modified, claim.to_string().into(), None).await.unwrap();
                    }
                }
                Step::RemoveLabels => {
                    edit_stored(&world, CLAIM, |claim| claim["metadata"]["labels"] = json!({})).await;
                }
                Step::Repair => {
                    repair(&world).await;
                }
                Step::RepairOf(name) => {
                    repair_of(&world, name, None).await;
                }
                Step::Wait(seconds) => {
                    self.seconds.fetch_add(seconds, Ordering::Relaxed);
                }
            }
        }
    }
}

impl ScriptedStore {
    fn new(inner: Arc<dyn Storage>, other: Race, hooks: &[Hook]) -> Self {
        ScriptedStore {
            inner,
            other,
            hooks: Mutex::new(hooks.iter().copied().collect()),
            ignores_revisions: false,
            service_reads: AtomicUsize::new(0),
            deleted_claims: AtomicUsize::new(0),
            updated_claims: AtomicUsize::new(0),
        }
    }

    /// Returns the revision at which a change succeeds: the expected one, or the present one with the planted bug.
    async fn revision(&self, key: &Key, expected: Revision) -> Revision {
        match self.inner.get(key).await {
            Ok((Some(found), _)) if self.ignores_revisions => found.modified,
            _ => expected,
        }
    }

    /// Performs the steps of the next hook if its method is `method` and its path is a prefix of `path`.
    async fn reach(&self, method: &str, path: &str) {
        let hook = {
            let mut hooks = self.hooks.lock();
            hooks.pop_front_if(|(next, prefix, _)| *next == method && path.starts_with(*prefix))
        };
        if let Some((_, _, steps)) = hook {
            // The steps of another server never reach this store, so the future is not recursive.
            Box::pin(self.other.perform(steps)).await;
        }
    }
}

#[async_trait::async_trait]
impl Storage for ScriptedStore {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        self.reach("before get", key.as_str()).await;
        self.service_reads.fetch_add(usize::from(key.as_str().starts_with("/services/specs/")), Ordering::Relaxed);
        let done = self.inner.get(key).await;
        self.reach("after get", key.as_str()).await;
        done
    }
    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        let is_services = query.range == KeyRange::resource("services/specs");
        let path = if is_services { "/services/specs/" } else { "" };
        self.reach("before list", path).await;
        let done = self.inner.list(query).await;
        self.reach("after list", path).await;
        done
    }
    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        self.reach("before create", key.as_str()).await;
        let done = self.inner.create(key, value, ttl).await;
        self.reach("after create", key.as_str()).await;
        done
    }
    async fn update(
        &self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, UpdateError> {
        self.reach("before update", key.as_str()).await;
        let done = self.inner.update(key, self.revision(key, expected).await, value, ttl).await;
        self.updated_claims.fetch_add(usize::from(done.is_ok()), Ordering::Relaxed);
        done
    }
    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
        self.reach("before delete", key.as_str()).await;
        let done = self.inner.delete(key, self.revision(key, expected).await).await;
        self.deleted_claims.fetch_add(usize::from(done.is_ok()), Ordering::Relaxed);
        done
    }
    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
        self.inner.watch(range, after).await
    }
    async fn current_revision(&self) -> Result<Revision, ReadError> {
        self.inner.current_revision().await
    }
    async fn compact(&self, revision: Revision) -> Result<(), ReadError> {
        self.inner.compact(revision).await
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn health(&self) -> Result<(), StoreFault> {
        self.inner.health().await
    }
    async fn stats(&self) -> Result<StoreStats, StoreFault> {
        self.inner.stats().await
    }
}

/// Prepares a store, and repairs on one server while another acts at the hooks. Checks the service that has claimed the
/// address, and that later repairs leave no claim without a service.
async fn check_race(prepare: &[Step], repair: Step, hooks: &[Hook], claimed_by: Option<&str>) {
    let inner = MemoryStorage::new();
    let first = World::over(inner.clone()).await;
    let seconds = Arc::new(AtomicI64::new(parse_timestamp(NOW).unwrap().unix_timestamp()));
    let other = Race { writer: Arc::clone(&first.writer), seconds: Arc::clone(&seconds) };
    other.perform(prepare).await;
    let store = Arc::new(ScriptedStore::new(inner, other.clone(), hooks));
    Race { writer: Arc::new(testing::writer(store.clone())), seconds }.perform(&[repair]).await;
    let case = format!("{prepare:?} {repair:?} {hooks:?}");
    assert!(store.hooks.lock().is_empty(), "a hook was not reached: {case}");
    let claims = first.stored("/ipaddresses/").await.concat();
    match claimed_by {
        Some(name) => assert!(claims.contains(&format!(r#""name":"{name}"}}}}}}"#)), "{case}: {claims}"),
        None => assert_eq!(claims, "", "{case}"),
    }
    Allocations::read(&first).await.check_services().unwrap_or_else(|broken| panic!("{broken}: {case}"));
    other.perform(&[Step::Wait(1000), Step::Repair]).await;
    Allocations::read(&first).await.check_at_rest().unwrap_or_else(|broken| panic!("{broken}: {case}"));
}

#[tokio::test]
async fn service_that_is_stored_during_a_stalled_repair_keeps_its_claim() {
    use Step::*;
    let after_list = [("after list", "/services/", [Store("n"), Wait(90)].as_slice())];
    check_race(&[Claim("n"), Wait(1)], Repair, &after_list, Some("n")).await;
    // The service `n` claims the address of `s` after the repair has read `s`.
    let hooks: [Hook; 2] = [
        ("before get", CLAIM, &[Delete("s"), Claim("n")]),
        ("after get", "/services/specs/default/n", &[Store("n"), Wait(90)]),
    ];
    check_race(&[Create("s")], RepairOf("s"), &hooks, Some("n")).await;
}

#[tokio::test]
async fn service_that_is_created_between_the_lists_of_a_repair_keeps_its_claim() {
    use Step::*;
    check_race(&[], Repair, &[("before list", "/services/", &[Create("n"), Wait(90)])], Some("n")).await;
    let replaced = [("before list", "/services/", [Delete("s"), Create("n"), Wait(90)].as_slice())];
    check_race(&[Create("s"), Wait(90)], Repair, &replaced, Some("n")).await;
    let deleted = [("before list", "/services/", [Delete("s")].as_slice())];
    check_race(&[Create("s"), Wait(90)], Repair, &deleted, None).await;
}

#[tokio::test]
async fn repair_whose_claim_another_server_changes_first_names_the_service() {
    use Step::*;
    for (prepare, change) in
        [([Store("s")].as_slice(), "before create"), (&[Store("s"), Claim("gone"), Wait(90)], "before update")]
    {
        let inner = MemoryStorage::new();
        let first = World::over(inner.clone()).await;
        let seconds = Arc::new(AtomicI64::new(parse_timestamp(NOW).unwrap().unix_timestamp()));
        let other = Race { writer: Arc::clone(&first.writer), seconds: Arc::clone(&seconds) };
        other.perform(prepare).await;
        let store = ScriptedStore::new(inner, other, &[(change, CLAIM, &[Store("n"), Claim("n")])]);
        let (writer, clock) = (testing::writer(Arc::new(store)), Clock::shared(seconds));
        let service = ServiceName { namespace: "default".to_owned(), name: "s".to_owned() };
        let conflicted = writer.address_repair(&clock).run_for(&service, None).await.unwrap();
        assert_eq!(conflicted.conflicts, std::slice::from_ref(&service), "{change}");
        let again = writer.address_repair(&clock).run_for(&service, None).await.unwrap();
        assert!(again.conflicts.is_empty(), "{change}");
        assert_eq!(again.shared, [(Ipv4Addr::new(10, 96, 0, 10), service)], "{change}");
    }
}

#[tokio::test]
async fn create_that_searches_an_address_for_longer_than_store_wait_fails() {
    let inner = MemoryStorage::new();
    let first = World::over(inner.clone()).await;
    for host in 9..=14 {
        let key = Key::from_path(&format!("/ipaddresses/10.96.0.{host}")).unwrap();
        let claim = json!({"metadata": {"creationTimestamp": NOW}, "spec": {}});
        inner.create(&key, claim.to_string().into(), None).await.unwrap();
    }
    const WAITS: [(&[Step], &str); 2] = [(&[Step::Wait(30)], "InternalError"), (&[Step::Wait(31)], "ServerTimeout")];
    for (wait, reason) in WAITS {
        let time = Arc::new(AtomicI64::new(parse_timestamp(NOW).unwrap().unix_timestamp()));
        let other = Race { writer: Arc::clone(&first.writer), seconds: Arc::clone(&time) };
        let store = ScriptedStore::new(inner.clone(), other, &[("before create", "/ipaddresses/", wait)]);
        let store = Arc::new(store);
        let ranges = ServiceRanges::default().with_cluster_addresses("10.96.0.8/29").unwrap();
        let writer = Arc::new(testing::writer(store).with_service_ranges(ranges));
        let world = World { writer, clock: Clock::shared(time) };
        let refused = world.send(&post(SERVICES), &body("s", r#"{"ports":[{"port":80}]}"#)).await.unwrap_err();
        assert_eq!((refused.code, &*refused.reason), (500, reason), "{wait:?}");
    }
}

#[tokio::test]
async fn service_that_changes_before_a_change_of_the_repair_keeps_or_loses_its_claim() {
    use Step::*;
    /// The preparation, and the change of the repair that it causes.
    const CHANGES: [(&[Step], &str); 3] = [
        (&[Store("s"), Claim("gone"), Wait(90)], "before update"),
        (&[Create("s"), RemoveLabels, Wait(90)], "before update"),
        (&[Store("s"), Wait(90)], "before create"),
    ];
    for (prepare, change) in CHANGES {
        for repair in [Repair, RepairOf("s")] {
            check_race(prepare, repair, &[(change, CLAIM, &[Delete("s")])], None).await;
            check_race(prepare, repair, &[(change, CLAIM, &[Delete("s"), Create("s"), Wait(90)])], Some("s")).await;
            check_race(prepare, repair, &[(change, CLAIM, &[Delete("s"), Create("n"), Wait(90)])], Some("n")).await;
            check_race(prepare, repair, &[(change, CLAIM, &[Delete("s"), Claim("n"), Store("n")])], Some("n")).await;
        }
    }
    check_race(&[Store("s")], Repair, &[("after create", CLAIM, &[Delete("s")])], None).await;
    let taken_over = [("before delete", CLAIM, [Create("n"), Wait(90)].as_slice())];
    check_race(&[Claim("gone"), Wait(90)], Repair, &taken_over, Some("n")).await;
}

/// Runs the writes of two servers and the repairs of two others at the same time, all on one slow store. Besides the
/// servers, a program changes claims: it creates old claims of absent services, which repairs delete and writes take over,
/// and gives claims of stored services to a gateway, which repairs replace, or delete after the deletion of the service.
///
/// Returns the number of claims that the repairs have deleted and replaced.
async fn race_repairs(ignores_revisions: bool) -> Result<(usize, usize), String> {
    const WORKERS: usize = 6;
    const ROUNDS: usize = 40;
    const OLD: &str = "2020-01-01T00:00:00Z";
    let storage = MemoryStorage::new();
    let first = World::over(storage.clone()).await;
    let seconds = Arc::new(AtomicI64::new(parse_timestamp(NOW).unwrap().unix_timestamp()));
    let other = Race { writer: Arc::clone(&first.writer), seconds };
    let slow = || FaultyStore::slow(storage.clone());
    let server = |writer: Writer| World { writer: Arc::new(writer), clock: later(&first, 0).clock };
    let servers =
        [Arc::new(server(testing::writer(Arc::new(slow())))), Arc::new(server(testing::writer(Arc::new(slow()))))];
    let observer = Arc::new(server(testing::writer(storage.clone())));
    let stores: Vec<_> = (0..2)
        .map(|_| {
            Arc::new(ScriptedStore { ignores_revisions, ..ScriptedStore::new(Arc::new(slow()), other.clone(), &[]) })
        })
        .collect();
    let is_done = Arc::new(AtomicBool::new(false));
    // Gateways have claims that the repair has not replaced yet.
    let check = async |observer: &World| {
        let found = Allocations::read(observer).await.check_services();
        found.or_else(|broken| if broken.ends_with("is claimed by default/gateway") { Ok(()) } else { Err(broken) })
    };
    let repairs: Vec<_> = stores
        .iter()
        .map(|store| {
            let world = server(testing::writer(store.clone()));
            let (observer, is_done) = (Arc::clone(&observer), Arc::clone(&is_done));
            tokio::spawn(async move {
                while !is_done.load(Ordering::Relaxed) {
                    repair(&world).await;
                    check(&observer).await?;
                }
                Ok::<(), String>(())
            })
        })
        .collect();
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let (world, storage) = (Arc::clone(&servers[worker % 2]), storage.clone());
            tokio::spawn(async move {
                for round in 0..ROUNDS {
                    let name = format!("s{worker}");
                    let address = format!("10.96.0.1{}", (worker * 5 + round) % 3);
                    let key = Key::from_path(&format!("/ipaddresses/{address}")).unwrap();
                    let labels = json!({"ipaddress.kubernetes.io/ip-family": "IPv4",
                        "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"});
                    let gone = json!({"metadata": {"name": address, "creationTimestamp": OLD, "labels": labels},
                        "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "gone"}}});
                    let _ = storage.create(&key, gone.to_string().into(), None).await;
                    let chosen = format!(r#"{{"clusterIP":"{address}","ports":[{{"port":80}}]}}"#);
                    let is_created = world.send(&post(SERVICES), &body(&name, &chosen)).await.is_ok();
                    if let Ok((Some(found), _)) = storage.get(&key).await {
                        let mut claim: Value = serde_json::from_slice(&found.value).unwrap();
                        if is_created && round % 2 == 0 {
                            claim["spec"]["parentRef"] =
                                json!({"group": "a.b", "resource": "gateways", "namespace": "default", "name": "gateway"});
                        } else if !is_created && claim["spec"]["parentRef"]["name"] == name.as_str() {
                            // A repair has made the claim for the deleted service of an earlier round.
                            claim["metadata"]["creationTimestamp"] = json!(OLD);
                        }
                        let _ = storage.update(&key, found.modified, claim.to_string().into(), None).await;
                    }
                    if !is_created {
                        continue;
                    }
                    for _ in 0..round % 7 {
                        tokio::task::yield_now().await;
                    }
                    let _ = world.send(&format!("DELETE {SERVICES}/{name}"), "").await;
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    is_done.store(true, Ordering::Relaxed);
    for repairs in repairs {
        repairs.await.unwrap()?;
    }
    // A claim that was replaced or created for a service that was deleted at the same time is now old.
    let rest = later(&observer, 1000);
    repair(&rest).await;
    check_at_rest(&rest).await;
    let count = |calls: fn(&ScriptedStore) -> &AtomicUsize| {
        stores.iter().map(|store| calls(store).load(Ordering::Relaxed)).sum()
    };
    Ok((count(|store| &store.deleted_claims), count(|store| &store.updated_claims)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn repairs_during_the_writes_of_two_servers_keep_each_address_claimed_once() {
    let (deleted, replaced) = race_repairs(false).await.unwrap_or_else(|broken| panic!("{broken}"));
    assert!(deleted > 0 && replaced > 0, "{deleted} claims deleted, {replaced} replaced");
}

#[tokio::test]
async fn race_of_repairs_and_writes_finds_a_repair_that_ignores_revisions() {
    assert!(race_repairs(true).await.is_err());
}
