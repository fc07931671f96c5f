//! Tests of the repair controller of cluster addresses on one server.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use listwatch_json::{Value, json};
use listwatch_meta::{Key, KeyRange};
use listwatch_storage::{
    Capabilities, CreateError, DeleteError, KeyValue, ListPage, ListQuery, MemoryStorage, ReadError, Storage,
    StoreFault, StoreStats, UpdateError, WatchError,
};
use listwatch_write::testing;

use super::*;

const CLAIM: &str = "/ipaddresses/10.96.0.11";
const SERVICE: &str = "/services/specs/old/s";

async fn get(storage: &MemoryStorage, path: &str) -> Option<(Value, Revision)> {
    let (found, _) = storage.get(&Key::from_path(path).unwrap()).await.unwrap();
    found.map(|found| (serde_json::from_slice(&found.value).unwrap(), found.modified))
}

async fn put(storage: &MemoryStorage, path: &str, object: Value) {
    let key = Key::from_path(path).unwrap();
    storage.create(&key, object.to_string().into(), None).await.unwrap();
}

async fn delete(storage: &MemoryStorage, path: &str) {
    let (_, revision) = get(storage, path).await.unwrap();
    storage.delete(&Key::from_path(path).unwrap(), revision).await.unwrap();
}

/// A service of a server that stores `clusterIP` alone.
fn service() -> Value {
    json!({"metadata": {"name": "s", "namespace": "old", "uid": "1"}, "spec": {"clusterIP": "10.96.0.11",
        "ports": [{"port": 81}]}})
}

fn claim(labels: Value) -> Value {
    json!({"metadata": {"name": "10.96.0.11", "uid": "2", "creationTimestamp": "2020-01-01T00:00:00Z",
        "labels": labels}, "spec": {"parentRef": {"resource": "services", "namespace": "old", "name": "s"}}})
}

fn labels() -> Value {
    json!({"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"})
}

async fn change(storage: &MemoryStorage, path: &str, change: impl FnOnce(&mut Value)) {
    let (mut object, revision) = get(storage, path).await.unwrap();
    change(&mut object);
    let key = Key::from_path(path).unwrap();
    storage.update(&key, revision, object.to_string().into(), None).await.unwrap();
}

async fn started(storage: &Arc<MemoryStorage>) -> Arc<Writer> {
    started_on(storage.clone()).await
}

async fn started_on(storage: Arc<dyn Storage>) -> Arc<Writer> {
    let writer = Arc::new(testing::writer(storage));
    let mut controller = IpAddressController::new(Arc::clone(&writer));
    let pause = controller.start().await.unwrap();
    assert_eq!(writer.backend().bootstrap().text(), None);
    tokio::spawn(controller.run(pause));
    writer
}

#[tokio::test(start_paused = true)]
async fn services_without_claims_get_them_at_the_start_and_after_a_change() {
    let storage = MemoryStorage::new();
    put(&storage, SERVICE, service()).await;
    put(&storage, CLAIM, claim(json!({}))).await;
    started(&storage).await;
    let (repaired, _) = get(&storage, CLAIM).await.unwrap();
    assert_eq!(repaired["metadata"]["labels"], labels(), "the start repairs");
    delete(&storage, CLAIM).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (recreated, _) = get(&storage, CLAIM).await.expect("a deleted claim is recreated");
    assert_eq!(recreated["spec"]["parentRef"], claim(json!({}))["spec"]["parentRef"]);
    put(&storage, "/services/specs/old/t", {
        let mut other = service();
        other["metadata"]["name"] = json!("t");
        other["spec"]["clusterIP"] = json!("10.96.0.12");
        other
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (created, _) = get(&storage, "/ipaddresses/10.96.0.12").await.expect("a stored service gets a claim");
    assert_eq!(created["spec"]["parentRef"]["name"], "t");
}

#[tokio::test(start_paused = true)]
async fn claim_of_an_absent_service_is_deleted_by_the_next_repair_of_all_claims() {
    let storage = MemoryStorage::new();
    started(&storage).await;
    put(&storage, CLAIM, claim(labels())).await;
    put(&storage, "/ipaddresses/10.96.0.12", claim(json!({}))).await;
    tokio::time::sleep(REPAIR_INTERVAL + RETRY).await;
    assert!(get(&storage, CLAIM).await.is_none());
    assert!(get(&storage, "/ipaddresses/10.96.0.12").await.is_some(), "it belongs to another controller");
}

#[tokio::test(start_paused = true)]
async fn controller_of_a_store_at_rest_writes_nothing() {
    let storage = MemoryStorage::new();
    put(&storage, SERVICE, service()).await;
    started(&storage).await;
    let revision = storage.current_revision().await.unwrap();
    started(&storage).await;
    tokio::time::sleep(3 * REPAIR_INTERVAL).await;
    assert_eq!(storage.current_revision().await.unwrap(), revision);
}

/// A store that fails to list services as often as the test says, and counts the lists of services and the reads of
/// single objects.
struct FailingStore {
    inner: Arc<MemoryStorage>,
    failures: AtomicUsize,
    lists: AtomicUsize,
    gets: AtomicUsize,
    /// The number of creates of claims that fail, too.
    failing_creates: AtomicUsize,
    /// The duration of a create, in seconds.
    create_seconds: AtomicU64,
}

fn fault() -> StoreFault {
    StoreFault::Unavailable("planned by the test".to_owned())
}

/// Decreases a number of failures. Returns false if it is 0.
fn decrease(failures: &AtomicUsize) -> bool {
    failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |failures| failures.checked_sub(1)).is_ok()
}

fn failing(failures: usize) -> Arc<FailingStore> {
    let failures = AtomicUsize::new(failures);
    Arc::new(FailingStore {
        inner: MemoryStorage::new(),
        failures,
        lists: AtomicUsize::new(0),
        gets: AtomicUsize::new(0),
        failing_creates: AtomicUsize::new(0),
        create_seconds: AtomicU64::new(0),
    })
}

#[async_trait::async_trait]
impl Storage for FailingStore {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.inner.get(key).await
    }
    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        if query.range == KeyRange::resource("services/specs") {
            self.lists.fetch_add(1, Ordering::Relaxed);
            if decrease(&self.failures) {
                return Err(fault().into());
            }
        }
        self.inner.list(query).await
    }
    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        tokio::time::sleep(Duration::from_secs(self.create_seconds.load(Ordering::Relaxed))).await;
        if decrease(&self.failing_creates) {
            return Err(fault().into());
        }
        self.inner.create(key, value, ttl).await
    }
    async fn update(
        &self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, UpdateError> {
        self.inner.update(key, expected, value, ttl).await
    }
    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
        self.inner.delete(key, expected).await
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

#[tokio::test(start_paused = true)]
async fn start_retries_failed_repairs_for_a_minute() {
    let check = async |failures: usize, failing_creates: usize, seconds: u64, error: Option<&str>| {
        let storage = failing(failures);
        put(&storage.inner, SERVICE, service()).await;
        let mut second = service();
        second["spec"]["clusterIP"] = json!("10.96.0.12");
        put(&storage.inner, "/services/specs/old/t", second).await;
        storage.failing_creates.store(failing_creates, Ordering::Relaxed);
        let mut controller = IpAddressController::new(Arc::new(testing::writer(storage.clone())));
        let begun = Instant::now();
        let found = controller.start().await.map_err(|status| status.message);
        assert_eq!(begun.elapsed().as_secs(), seconds, "{failures} failures");
        match error {
            None => assert!(get(&storage.inner, CLAIM).await.is_some(), "{failures} failures: {found:?}"),
            Some(error) => assert!(found.unwrap_err().contains(error), "{failures} failures"),
        }
    };
    check(0, 0, 0, None).await;
    check(3, 0, 3, None).await;
    check(usize::MAX, 0, 59, Some("could not be completed at this time")).await;
    check(0, usize::MAX, 59, Some("2 cluster IPs are not claimed")).await;
}

#[tokio::test(start_paused = true)]
async fn problem_after_the_first_success_needs_three_failures_in_a_row() {
    let storage = failing(1);
    let writer = Arc::new(testing::writer(storage.clone()));
    let mut controller = IpAddressController::new(Arc::clone(&writer));
    let problem = || writer.backend().bootstrap().text().is_some();
    assert!(controller.repair().await.is_err());
    assert!(problem(), "the first repair failed");
    assert!(controller.repair().await.is_ok());
    assert!(!problem());
    for _ in 0..2 {
        storage.failures.store(2, Ordering::Relaxed);
        for _ in 0..2 {
            assert!(controller.repair().await.is_err());
            assert!(!problem(), "two failures in a row set no problem");
        }
        assert!(controller.repair().await.is_ok());
    }
    storage.failures.store(3, Ordering::Relaxed);
    for _ in 0..3 {
        assert!(controller.repair().await.is_err());
    }
    assert!(problem(), "three failures in a row set the problem");
    assert!(controller.repair().await.is_ok());
    // A repair that leaves an address without a claim counts as a failure.
    put(&storage.inner, SERVICE, service()).await;
    storage.failures.store(1, Ordering::Relaxed);
    assert!(controller.repair().await.is_err());
    storage.failing_creates.store(2, Ordering::Relaxed);
    assert_eq!(controller.repair().await.unwrap(), 1);
    assert!(!problem(), "two failures in a row set no problem");
    assert_eq!(controller.repair().await.unwrap(), 1);
    assert!(problem(), "three failures in a row set the problem");
    assert_eq!(controller.repair().await.unwrap(), 0);
    assert!(!problem());
}

#[tokio::test(start_paused = true)]
async fn repairs_of_all_claims_start_at_least_ten_seconds_apart() {
    let storage = failing(0);
    let writer = Arc::new(testing::writer(storage.clone()));
    let mut controller = IpAddressController::new(Arc::clone(&writer));
    let pause = controller.start().await.unwrap();
    tokio::spawn(controller.run(pause));
    let before = storage.lists.load(Ordering::Relaxed);
    for second in 0..100 {
        let range = format!(r#"{{"metadata":{{"name":"r"}},"spec":{{"cidrs":["10.200.{second}.0/24"]}}}}"#);
        assert!(writer.service_cidrs().set("r", range.as_bytes()));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let repairs = storage.lists.load(Ordering::Relaxed) - before;
    assert!((9..=10).contains(&repairs), "{repairs} repairs in 100 seconds");
}

#[tokio::test(start_paused = true)]
async fn new_service_cidr_causes_a_repair_of_the_services_with_its_addresses() {
    let storage = MemoryStorage::new();
    let mut outside = service();
    outside["spec"]["clusterIP"] = json!("10.200.0.11");
    put(&storage, SERVICE, outside).await;
    let writer = started(&storage).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(get(&storage, "/ipaddresses/10.200.0.11").await.is_none(), "the address is in no range");
    assert!(writer.service_cidrs().set("r", br#"{"metadata":{},"spec":{"cidrs":["10.200.0.0/24"]}}"#));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(get(&storage, "/ipaddresses/10.200.0.11").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn repair_at_the_start_that_takes_too_long_reports_its_progress() {
    let storage = failing(0);
    for host in 0..64 {
        let mut service = service();
        service["spec"]["clusterIP"] = json!(format!("10.96.1.{host}"));
        put(&storage.inner, &format!("/services/specs/old/s{host}"), service).await;
    }
    storage.create_seconds.store(25, Ordering::Relaxed);
    let mut controller = IpAddressController::new(Arc::new(testing::writer(storage.clone())));
    let status = controller.start().await.unwrap_err();
    assert!(status.message.contains("32 changed, 32 not claimed"), "{}", status.message);
}

#[tokio::test(start_paused = true)]
async fn repair_stops_after_two_chunks_of_failed_creates_and_sets_the_problem() {
    let storage = failing(0);
    for host in 0..64 {
        let mut service = service();
        service["spec"]["clusterIP"] = json!(format!("10.96.1.{host}"));
        put(&storage.inner, &format!("/services/specs/old/s{host}"), service).await;
    }
    storage.create_seconds.store(10, Ordering::Relaxed);
    storage.failing_creates.store(usize::MAX, Ordering::Relaxed);
    let writer = Arc::new(testing::writer(storage.clone()));
    let mut controller = IpAddressController::new(Arc::clone(&writer));
    let begun = Instant::now();
    assert_eq!(controller.repair().await.unwrap(), 64);
    assert_eq!(begun.elapsed().as_secs(), 20, "two chunks were tried");
    assert!(writer.backend().bootstrap().text().is_some_and(|text| text.contains("64 cluster IPs are not claimed")));
    storage.failing_creates.store(0, Ordering::Relaxed);
    assert_eq!(controller.repair().await.unwrap(), 0);
    assert_eq!(writer.backend().bootstrap().text(), None);
}

#[tokio::test(start_paused = true)]
async fn chunk_of_failed_creates_does_not_block_later_changes() {
    let storage = failing(0);
    for host in 0..64 {
        let mut service = service();
        service["spec"]["clusterIP"] = json!(format!("10.96.1.{host}"));
        put(&storage.inner, &format!("/services/specs/old/s{host:02}"), service).await;
    }
    storage.failing_creates.store(16, Ordering::Relaxed);
    let mut controller = IpAddressController::new(Arc::new(testing::writer(storage.clone())));
    assert_eq!(controller.repair().await.unwrap(), 16);
}

#[tokio::test(start_paused = true)]
async fn status_of_a_service_costs_no_reads() {
    let storage = failing(0);
    put(&storage.inner, SERVICE, service()).await;
    started_on(storage.clone()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = storage.gets.load(Ordering::Relaxed);
    change(&storage.inner, SERVICE, |service| service["status"] = json!({"loadBalancer": {}})).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(storage.gets.load(Ordering::Relaxed), before);
    change(&storage.inner, SERVICE, |service| service["spec"]["clusterIP"] = json!("10.96.0.12")).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(storage.gets.load(Ordering::Relaxed) > before);
    assert!(get(&storage.inner, "/ipaddresses/10.96.0.12").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn second_service_with_an_address_gets_the_claim_that_the_first_one_releases() {
    const OTHER: &str = "/services/specs/old/t";
    for is_known_at_the_start in [true, false] {
        let storage = MemoryStorage::new();
        put(&storage, SERVICE, service()).await;
        if is_known_at_the_start {
            put(&storage, OTHER, service()).await;
        }
        started(&storage).await;
        if !is_known_at_the_start {
            put(&storage, OTHER, service()).await;
        }
        tokio::time::sleep(Duration::from_secs(15)).await;
        assert_eq!(get(&storage, CLAIM).await.unwrap().0["spec"]["parentRef"]["name"], "s");
        delete(&storage, SERVICE).await;
        delete(&storage, CLAIM).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (claim, _) = get(&storage, CLAIM).await.expect("the other service has the address");
        assert_eq!(claim["spec"]["parentRef"]["name"], "t");
    }
}

#[tokio::test(start_paused = true)]
async fn service_that_loses_the_race_for_a_claim_gets_it_after_the_holder_is_deleted() {
    // Both repairs start the create of the claim at 500 ms and end it at 1,500 ms. The loser is repaired again at
    // 2,000 ms.
    for deleted_after in [1_600, 3_000] {
        let storage = failing(0);
        started_on(storage.clone()).await;
        storage.create_seconds.store(1, Ordering::Relaxed);
        for name in ["s", "t"] {
            put(&storage.inner, &format!("/services/specs/old/{name}"), service()).await;
        }
        tokio::time::sleep(Duration::from_millis(deleted_after)).await;
        storage.create_seconds.store(0, Ordering::Relaxed);
        let (claim, _) = get(&storage.inner, CLAIM).await.unwrap();
        let holder = claim["spec"]["parentRef"]["name"].as_str().unwrap();
        delete(&storage.inner, &format!("/services/specs/old/{holder}")).await;
        delete(&storage.inner, CLAIM).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (claim, _) = get(&storage.inner, CLAIM).await.expect("the other service has the address");
        assert_ne!(claim["spec"]["parentRef"]["name"], holder, "{deleted_after} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn service_gets_the_claim_of_an_absent_service_that_is_deleted_while_it_is_young() {
    let storage = MemoryStorage::new();
    put(&storage, SERVICE, service()).await;
    put(&storage, CLAIM, {
        let mut young = claim(labels());
        young["metadata"]["creationTimestamp"] = json!("2200-01-01T00:00:00Z");
        young["spec"]["parentRef"]["name"] = json!("absent");
        young
    })
    .await;
    started(&storage).await;
    delete(&storage, CLAIM).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (claim, _) = get(&storage, CLAIM).await.expect("the service has the address");
    assert_eq!(claim["spec"]["parentRef"]["name"], "s");
}

#[tokio::test(start_paused = true)]
async fn claim_that_another_program_gives_to_another_object_is_corrected() {
    let storage = MemoryStorage::new();
    put(&storage, SERVICE, service()).await;
    put(&storage, CLAIM, claim(labels())).await;
    started(&storage).await;
    let gateway =
        json!({"group": "gateway.networking.k8s.io", "resource": "gateways", "namespace": "old", "name": "g"});
    let gone = json!({"resource": "services", "namespace": "old", "name": "gone"});
    for parent in [gateway, gone] {
        change(&storage, CLAIM, |claim| claim["spec"]["parentRef"] = parent.clone()).await;
        if parent["name"] == "gone" {
            change(&storage, CLAIM, |claim| claim["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z"))
                .await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (corrected, _) = get(&storage, CLAIM).await.unwrap();
        assert_eq!(corrected["spec"]["parentRef"]["name"], "s", "{parent}");
    }
}

/// Returns the labeled claim of the service `old/s` at the age of 87 to 88 seconds, and the time of its creation:
/// timestamps have no fractions. Ages count in the time of the system, so tests with this claim do not pause the time.
fn almost_old_claim() -> (Value, time::OffsetDateTime) {
    let mut claim = claim(labels());
    let created = time::OffsetDateTime::now_utc() - Duration::from_secs(87);
    claim["metadata"]["creationTimestamp"] = json!(listwatch_write::timestamp(created));
    (claim, created)
}

#[tokio::test]
async fn pending_claims_are_repaired_when_they_are_old_without_a_repair_of_all_claims() {
    for has_service in [true, false] {
        let storage = failing(0);
        let (claim, created) = almost_old_claim();
        put(&storage.inner, CLAIM, claim).await;
        if has_service {
            put(&storage.inner, "/services/specs/old/t", service()).await;
        }
        started_on(storage.clone()).await;
        let is_there = get(&storage.inner, CLAIM).await.is_some();
        // On a slow machine the claim may be old already. Its timestamp is up to a second before `created`.
        let is_young = time::OffsetDateTime::now_utc() < created + Duration::from_secs(89);
        assert!(is_there || !is_young, "the service of the claim may be stored later");
        let repaired = async || match get(&storage.inner, CLAIM).await {
            Some((claim, _)) => has_service && claim["spec"]["parentRef"]["name"] == "t",
            None => !has_service,
        };
        let wait = async {
            while !repaired().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait).await.expect("the claim is repaired when it is old");
        assert_eq!(storage.lists.load(Ordering::Relaxed), 1, "only the start lists the services");
    }
}

#[tokio::test(start_paused = true)]
async fn pending_claims_do_not_cause_repairs_of_all_claims() {
    let storage = failing(0);
    let mut young = claim(labels());
    young["metadata"]["creationTimestamp"] = json!("2200-01-01T00:00:00Z");
    put(&storage.inner, CLAIM, young).await;
    started_on(storage.clone()).await;
    tokio::time::sleep(REPAIR_INTERVAL - Duration::from_secs(1)).await;
    assert_eq!(storage.lists.load(Ordering::Relaxed), 1);
}

#[test]
fn follow_ups_are_limited() {
    let mut follow_ups = FollowUps::default();
    let name = |name: String| ServiceName { namespace: "a".to_owned(), name };
    let pending = |number: u32, service: &ServiceName| {
        vec![PendingClaim { address: Ipv4Addr::from_bits(number), service: service.clone(), wait: Duration::ZERO }]
    };
    for number in 0..2 * FOLLOW_UPS_MAX as u32 {
        let service = name(format!("s{number}"));
        follow_ups.add(AddressRepairOutcome {
            pending: pending(number, &service),
            shared: vec![(Ipv4Addr::from_bits(number), service.clone())],
            conflicts: vec![service],
            unclaimed: 0,
        });
    }
    let counts = [follow_ups.pending.len(), follow_ups.shared.len(), follow_ups.conflicts.len()];
    assert_eq!(counts, [FOLLOW_UPS_MAX; 3]);
    let later = name("later".to_owned());
    follow_ups.add(AddressRepairOutcome { pending: pending(0, &later), ..AddressRepairOutcome::default() });
    let (_, claim) = &follow_ups.pending[&Ipv4Addr::from_bits(0)];
    assert_eq!(claim.service, later, "the service of a known address is replaced");
}

#[test]
fn events_name_the_services_whose_claims_they_affect() {
    let entry = |path: &str, object: &Value| listwatch_storage::KeyValue {
        key: Key::from_path(path).unwrap(),
        value: object.to_string().into(),
        created: Revision::new(1),
        modified: Revision::new(2),
        stale: false,
    };
    let of = |names: &[&str], is_freed: bool| {
        let names = names.iter().map(|name| ServiceName { namespace: "old".to_owned(), name: (*name).to_owned() });
        let freed = if is_freed { vec![Ipv4Addr::new(10, 96, 0, 11)] } else { Vec::new() };
        Some(Affected { services: names.collect(), freed })
    };
    let with = |object: Value, field: &str, value: Value| {
        let mut object = object;
        *object.pointer_mut(field).unwrap() = value;
        object
    };
    let stored = entry(SERVICE, &service());
    let moved = entry(SERVICE, &with(service(), "/spec/clusterIP", json!("10.96.0.12")));
    let owned = entry(CLAIM, &claim(labels()));
    let other = entry(CLAIM, &with(claim(labels()), "/spec/parentRef/name", json!("t")));
    let gateway = entry(CLAIM, &with(claim(labels()), "/spec/parentRef/resource", json!("gateways")));
    let unreadable = entry(CLAIM, &json!("k8s"));
    let put = |current: &listwatch_storage::KeyValue, previous: Option<&listwatch_storage::KeyValue>| {
        affected(&StoreEvent::Put { current: current.clone(), previous: previous.cloned() })
    };
    let deleted = |key: &Key, previous: Option<&listwatch_storage::KeyValue>| {
        let revision = Revision::new(3);
        affected(&StoreEvent::Delete { key: key.clone(), revision, previous: previous.cloned() })
    };
    assert_eq!(put(&stored, None), of(&["s"], false));
    assert_eq!(put(&stored, Some(&stored)), of(&[], false), "the addresses are equal");
    assert_eq!(put(&moved, Some(&stored)), of(&["s"], true));
    assert_eq!(deleted(&stored.key, Some(&stored)), of(&[], true));
    assert_eq!(deleted(&stored.key, None), of(&[], false));
    assert_eq!(put(&owned, None), of(&[], false), "the service of a new claim is stored later");
    assert_eq!(put(&owned, Some(&owned)), of(&["s", "s"], false));
    assert_eq!(put(&other, Some(&owned)), of(&["s", "t"], true));
    assert_eq!(put(&gateway, Some(&owned)), of(&["s"], true));
    assert_eq!(put(&owned, Some(&gateway)), of(&["s"], true));
    assert_eq!(put(&unreadable, Some(&owned)), of(&["s"], true));
    assert_eq!(put(&owned, Some(&unreadable)), None, "any service may have the address");
    assert_eq!(deleted(&owned.key, Some(&owned)), of(&["s"], true));
    assert_eq!(deleted(&owned.key, Some(&gateway)), of(&[], true));
    assert_eq!(deleted(&owned.key, None), None);
}
