//! Guarantee 18, "Allocated once": no two services have the same address or node port, whatever the order of concurrent
//! requests to two servers, and whichever calls of the store fail.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use listwatch_json::json;
use listwatch_storage::{
    Capabilities, CreateError, DeleteError, ListPage, ReadError, StoreFault, StoreStats, UpdateError, Watch, WatchError,
};
use parking_lot::Mutex;
use proptest::prelude::*;

use super::services::{SERVICES, bitmap_key, body, edit_stored, lose, ports_of_bitmap, remove_stored};
use super::*;

/// The stored services and the claims of addresses and node ports, at one revision.
///
/// The keys of both maps are values as a report shows them: `address 10.96.0.10` or `node port 30080`.
#[derive(Debug, Default)]
pub(super) struct Allocations {
    /// The services that have each value, as `namespace/name`.
    pub(super) services: BTreeMap<String, BTreeSet<String>>,
    /// The service that claims each address. The bitmap of node ports names no service.
    claims: BTreeMap<String, Option<String>>,
}

impl Allocations {
    pub(super) async fn read(world: &World) -> Self {
        let query = ListQuery { range: KeyRange::below("/"), at: None, limit: 0 };
        let page = world.writer.backend().storage().list(query).await.unwrap();
        let mut allocations = Allocations::default();
        for item in &page.items {
            let path = item.key.as_str();
            if let Some(name) = path.strip_prefix("/services/specs/") {
                for value in values_of_service(&item.value) {
                    allocations.services.entry(value).or_default().insert(name.to_owned());
                }
            } else if let Some(address) = path.strip_prefix("/ipaddresses/") {
                let claim: Value = serde_json::from_slice(&item.value).unwrap();
                let parent = |field: &str| claim["spec"]["parentRef"][field].as_str().unwrap_or_default();
                let service = format!("{}/{}", parent("namespace"), parent("name"));
                allocations.claims.insert(format!("address {address}"), Some(service));
            } else if item.key == bitmap_key() {
                let ports = ports_of_bitmap(&item.value).into_iter();
                allocations.claims.extend(ports.map(|port| (format!("node port {port}"), None)));
            }
        }
        allocations
    }

    /// Checks that no two services have the same address or node port, and that each service has claimed its values.
    /// This holds at every revision.
    pub(super) fn check_services(&self) -> Result<(), String> {
        for (value, services) in &self.services {
            let names = services.iter().map(String::as_str).collect::<Vec<_>>().join(" and ");
            if services.len() > 1 {
                return Err(format!("Allocated once: {names} have the same {value}"));
            }
            match self.claims.get(value) {
                None => return Err(format!("Allocated once: {value} of {names} is not claimed")),
                Some(Some(claimant)) if !services.contains(claimant) => {
                    return Err(format!("Allocated once: {value} of {names} is claimed by {claimant}"));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Checks the services, and that each claim belongs to a service. The latter holds while no write is in progress.
    pub(super) fn check_at_rest(&self) -> Result<(), String> {
        self.check_services()?;
        match self.claims.keys().find(|value| !self.services.contains_key(*value)) {
            Some(value) => Err(format!("Allocated once: {value} is claimed, but no service has it")),
            None => Ok(()),
        }
    }
}

/// Returns the address and the node ports of a stored service.
fn values_of_service(value: &[u8]) -> Vec<String> {
    let service: Value = serde_json::from_slice(value).unwrap();
    let spec = &service["spec"];
    let address = spec["clusterIP"].as_str().filter(|address| *address != "None");
    let ports = spec["ports"].as_array().into_iter().flatten().map(|port| &port["nodePort"]);
    let ports = ports.chain([&spec["healthCheckNodePort"]]).filter_map(Value::as_u64).filter(|port| *port > 0);
    let address = address.map(|address| format!("address {address}"));
    address.into_iter().chain(ports.map(|port| format!("node port {port}"))).collect()
}

/// A bug that a test plants in the store.
#[derive(Clone, Copy, Debug)]
enum AllocationBug {
    SharedAddress,
    SharedNodePort,
    SharedHealthCheckNodePort,
    UnclaimedAddress,
    UnclaimedNodePort,
    ClaimOfAnotherService,
    AddressClaimOutlivesService,
    NodePortClaimOutlivesUse,
}

/// Plants a bug in a store with the service `s`, which has the address 10.96.0.10 and the node port 30080.
async fn plant(world: &World, bug: AllocationBug) {
    const SERVICE: &str = "/services/specs/default/s";
    const CLAIM: &str = "/ipaddresses/10.96.0.10";
    let store_second = async |spec: Value| {
        let service = json!({"metadata": {"name": "t", "namespace": "default"}, "spec": spec});
        let key = Key::from_path("/services/specs/default/t").unwrap();
        world.writer.backend().storage().create(&key, service.to_string().into(), None).await.unwrap();
    };
    match bug {
        AllocationBug::SharedAddress => store_second(json!({"clusterIP": "10.96.0.10"})).await,
        AllocationBug::SharedNodePort => store_second(json!({"ports": [{"port": 80, "nodePort": 30080}]})).await,
        AllocationBug::SharedHealthCheckNodePort => store_second(json!({"healthCheckNodePort": 30080})).await,
        AllocationBug::UnclaimedAddress => remove_stored(world, CLAIM).await,
        AllocationBug::UnclaimedNodePort => remove_stored(world, bitmap_key().as_str()).await,
        AllocationBug::ClaimOfAnotherService => {
            edit_stored(world, CLAIM, |claim| claim["spec"]["parentRef"]["name"] = json!("t")).await;
        }
        AllocationBug::AddressClaimOutlivesService => lose(world, "s").await,
        AllocationBug::NodePortClaimOutlivesUse => {
            edit_stored(world, SERVICE, |service| service["spec"]["ports"] = json!([{"port": 80}])).await;
        }
    }
}

#[tokio::test]
async fn checker_reports_each_planted_bug_of_the_allocation() {
    let chosen = r#"{"type":"NodePort","clusterIP":"10.96.0.10","ports":[{"port":80,"nodePort":30080}]}"#;
    for (bug, expected) in [
        (AllocationBug::SharedAddress, "default/s and default/t have the same address 10.96.0.10"),
        (AllocationBug::SharedNodePort, "default/s and default/t have the same node port 30080"),
        (AllocationBug::SharedHealthCheckNodePort, "default/s and default/t have the same node port 30080"),
        (AllocationBug::UnclaimedAddress, "address 10.96.0.10 of default/s is not claimed"),
        (AllocationBug::UnclaimedNodePort, "node port 30080 of default/s is not claimed"),
        (AllocationBug::ClaimOfAnotherService, "address 10.96.0.10 of default/s is claimed by default/t"),
        (AllocationBug::AddressClaimOutlivesService, "address 10.96.0.10 is claimed, but no service has it"),
        (AllocationBug::NodePortClaimOutlivesUse, "node port 30080 is claimed, but no service has it"),
    ] {
        let world = World::new().await;
        world.send(&post(SERVICES), &body("s", chosen)).await.unwrap();
        assert_eq!(Allocations::read(&world).await.check_at_rest(), Ok(()), "before {bug:?}");
        plant(&world, bug).await;
        let reported = Allocations::read(&world).await.check_at_rest();
        assert_eq!(reported, Err(format!("Allocated once: {expected}")), "{bug:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn services_of_two_servers_never_share_an_address_or_port() {
    const WORKERS: usize = 8;
    const ROUNDS: usize = 60;
    let storage = MemoryStorage::new();
    let servers = [Arc::new(World::over(storage.clone()).await), {
        let writer = Arc::new(testing::writer(storage));
        Arc::new(World { writer, clock: Clock::fixed(parse_timestamp(NOW).unwrap()) })
    }];
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let world = Arc::clone(&servers[worker % servers.len()]);
            tokio::spawn(async move {
                // All workers compete for a few addresses and ports, and hold them briefly.
                for round in 0..ROUNDS {
                    let name = format!("s{}", (worker + round * 3) % 5);
                    let (address, port) = ((worker * 7 + round) % 3, (worker + round) % 3);
                    let chosen = format!(
                        r#"{{"type":"NodePort","clusterIP":"10.96.0.1{address}","ports":[{{"port":80,"nodePort":3000{port}}}]}}"#
                    );
                    let _ = world.send(&post(SERVICES), &body(&name, &chosen)).await;
                    let _ = world
                        .send(&patch(SERVICES, &name, MERGE), r#"{"spec":{"type":"ClusterIP","ports":[{"port":81}]}}"#)
                        .await;
                    let outside = format!(r#"{{"spec":{{"type":"NodePort","ports":[{{"port":81,"nodePort":3000{address}}}]}}}}"#);
                    let _ = world.send(&patch(SERVICES, &name, MERGE), &outside).await;
                    let allocations = Allocations::read(&world).await;
                    allocations.check_services().unwrap_or_else(|broken| panic!("{broken}"));
                    let _ = world.send(&format!("DELETE {SERVICES}/{name}"), "").await;
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    Allocations::read(&servers[0]).await.check_at_rest().unwrap_or_else(|broken| panic!("{broken}"));
}

/// The outcome of one call of the store.
#[derive(Clone, Copy, Debug)]
enum CallOutcome {
    /// Other requests run for this number of polls before the call.
    Wait(u8),
    /// The call fails without effect.
    Fail,
    /// A write takes effect, and its response is lost.
    LoseResponse,
}

/// A store whose calls have listed outcomes. After the last one, the list starts again.
pub(super) struct FaultyStore {
    inner: Arc<MemoryStorage>,
    outcomes: Mutex<VecDeque<CallOutcome>>,
}

impl FaultyStore {
    /// Returns a store each of whose calls takes effect at the second poll.
    pub(super) fn slow(inner: Arc<MemoryStorage>) -> Self {
        FaultyStore { inner, outcomes: Mutex::new([CallOutcome::Wait(1)].into()) }
    }

    /// Waits as the next outcome requires. Returns true if the response of a write must be lost.
    async fn next_outcome(&self) -> Result<bool, StoreFault> {
        let outcome = {
            let mut outcomes = self.outcomes.lock();
            let next = outcomes.pop_front();
            outcomes.extend(next);
            next
        };
        match outcome {
            Some(CallOutcome::Wait(polls)) => {
                let begun = tokio::time::Instant::now();
                for _ in 0..polls {
                    tokio::task::yield_now().await;
                }
                if begun.elapsed() < CALL_TIMEOUT { Ok(false) } else { Err(lost()) }
            }
            Some(CallOutcome::LoseResponse) => Ok(true),
            Some(CallOutcome::Fail) => Err(lost()),
            None => Ok(false),
        }
    }
}

fn lost() -> StoreFault {
    StoreFault::Unavailable("planned by the test".to_owned())
}

#[async_trait::async_trait]
impl Storage for FaultyStore {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        self.next_outcome().await?;
        self.inner.get(key).await
    }
    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        self.next_outcome().await?;
        self.inner.list(query).await
    }
    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        let is_lost = self.next_outcome().await?;
        let done = self.inner.create(key, value, ttl).await;
        if is_lost { Err(lost().into()) } else { done }
    }
    async fn update(
        &self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, UpdateError> {
        let is_lost = self.next_outcome().await?;
        let done = self.inner.update(key, expected, value, ttl).await;
        if is_lost { Err(lost().into()) } else { done }
    }
    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
        let is_lost = self.next_outcome().await?;
        let done = self.inner.delete(key, expected).await;
        if is_lost { Err(lost().into()) } else { done }
    }
    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
        self.inner.watch(range, after).await
    }
    async fn current_revision(&self) -> Result<Revision, ReadError> {
        self.next_outcome().await?;
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

/// One request for one of a few services, addresses and node ports.
#[derive(Clone, Debug)]
enum Step {
    Create {
        name: u8,
        address: Option<u8>,
        port: Option<u8>,
    },
    /// Changes the type to `ClusterIP`, which releases the node port.
    WithoutPort {
        name: u8,
    },
    WithPort {
        name: u8,
        port: Option<u8>,
    },
    /// Changes the type to `ExternalName`, which releases the address.
    WithoutAddress {
        name: u8,
    },
    Delete {
        name: u8,
    },
    /// Time passes for all clients, until an unused claim may be taken over.
    Later,
}

/// A time after which a claim without a service may be taken over.
const CLAIM_PENDING: Duration = Duration::from_secs(100);
/// The time after which a call of the store fails. Stores have such a limit, so that no write takes effect long after its
/// claims were checked.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = || 0..3_u8;
    let value = || prop::option::weighted(0.8, 0..3_u8);
    let step = prop_oneof![
        4 => (name(), value(), value()).prop_map(|(name, address, port)| Step::Create { name, address, port }),
        1 => name().prop_map(|name| Step::WithoutPort { name }),
        2 => (name(), value()).prop_map(|(name, port)| Step::WithPort { name, port }),
        1 => name().prop_map(|name| Step::WithoutAddress { name }),
        3 => name().prop_map(|name| Step::Delete { name }),
        1 => Just(Step::Later),
    ];
    prop::collection::vec(step, 1..12)
}

fn outcomes() -> impl Strategy<Value = Vec<CallOutcome>> {
    let outcome = prop_oneof![
        30 => (0..6_u8).prop_map(CallOutcome::Wait),
        1 => Just(CallOutcome::Fail),
        1 => Just(CallOutcome::LoseResponse),
    ];
    prop::collection::vec(outcome, 0..60)
}

async fn perform(world: &World, step: &Step) {
    let ports = |port: Option<u8>| match port {
        Some(port) => json!([{"port": 80, "nodePort": 30_000 + u32::from(port)}]),
        None => json!([{"port": 80}]),
    };
    let (line, request) = match step {
        Step::Create { name, address, port } => {
            let mut spec = json!({"type": "NodePort", "ports": ports(*port)});
            if let Some(address) = address {
                spec["clusterIP"] = json!(format!("10.96.0.1{address}"));
            }
            (post(SERVICES), body(&format!("s{name}"), &spec.to_string()))
        }
        Step::WithoutPort { name } => (
            patch(SERVICES, &format!("s{name}"), MERGE),
            r#"{"spec":{"type":"ClusterIP","ports":[{"port":81}]}}"#.to_owned(),
        ),
        Step::WithPort { name, port } => (
            patch(SERVICES, &format!("s{name}"), MERGE),
            json!({"spec": {"type": "NodePort", "externalName": null, "ports": ports(*port)}}).to_string(),
        ),
        Step::WithoutAddress { name } => (
            patch(SERVICES, &format!("s{name}"), MERGE),
            r#"{"spec":{"type":"ExternalName","externalName":"a.b","clusterIP":null,"clusterIPs":null}}"#.to_owned(),
        ),
        Step::Delete { name } => (format!("DELETE {SERVICES}/s{name}"), String::new()),
        Step::Later => return,
    };
    // Rejected requests and lost responses are part of the test.
    let _ = world.send(&line, &request).await;
}

#[tokio::test]
async fn steps_of_the_random_test_are_accepted_by_a_server_alone() {
    let world = World::new().await;
    let found = async || {
        let allocations = Allocations::read(&world).await;
        allocations.check_at_rest().unwrap_or_else(|broken| panic!("{broken}"));
        allocations.services.into_keys().collect::<Vec<_>>()
    };
    perform(&world, &Step::Create { name: 0, address: Some(1), port: Some(2) }).await;
    assert_eq!(found().await, ["address 10.96.0.11", "node port 30002"]);
    perform(&world, &Step::WithoutPort { name: 0 }).await;
    assert_eq!(found().await, ["address 10.96.0.11"]);
    perform(&world, &Step::WithPort { name: 0, port: Some(1) }).await;
    assert_eq!(found().await, ["address 10.96.0.11", "node port 30001"]);
    perform(&world, &Step::WithoutAddress { name: 0 }).await;
    assert_eq!(found().await, [""; 0]);
    perform(&world, &Step::Delete { name: 0 }).await;
    perform(&world, &Step::Create { name: 0, address: None, port: None }).await;
    assert_eq!(found().await.len(), 2);
}

/// Runs the steps of each client at the same time, on two servers in turn, and checks the store after each step.
async fn run_clients(clients: Vec<Vec<Step>>, outcomes: Vec<CallOutcome>) -> Result<(), String> {
    let storage = MemoryStorage::new();
    let first = World::over(storage.clone()).await;
    let server = || {
        let storage = FaultyStore { inner: storage.clone(), outcomes: Mutex::new(outcomes.clone().into()) };
        Arc::new(testing::writer(Arc::new(storage)))
    };
    let servers = [server(), server()];
    let begun = tokio::time::Instant::now();
    let no_call_fails = outcomes.iter().all(|outcome| matches!(outcome, CallOutcome::Wait(_)))
        && !clients.iter().flatten().any(|step| matches!(step, Step::Later));
    let observer = Arc::new(first);
    let clients: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(number, steps)| {
            let (writer, observer) = (Arc::clone(&servers[number % servers.len()]), Arc::clone(&observer));
            tokio::spawn(async move {
                for step in steps {
                    if let Step::Later = step {
                        tokio::time::advance(CLAIM_PENDING).await;
                    }
                    let time = parse_timestamp(NOW).unwrap() + begun.elapsed();
                    let world = World { writer: Arc::clone(&writer), clock: Clock::fixed(time) };
                    perform(&world, &step).await;
                    let found = Allocations::read(&observer).await.check_services();
                    found.map_err(|broken| format!("{broken} (after {step:?} of client {number})"))?;
                }
                Ok::<(), String>(())
            })
        })
        .collect();
    for client in clients {
        client.await.map_err(|error| error.to_string())??;
    }
    // A call that failed may leave a claim.
    if no_call_fails {
        Allocations::read(&observer).await.check_at_rest()?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_requests_to_two_servers_never_share_an_address_or_port(
        clients in prop::collection::vec(steps(), 2..5),
        outcomes in outcomes(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let done = runtime.block_on(run_clients(clients, outcomes));
        prop_assert!(done.is_ok(), "{}", done.unwrap_err());
    }
}
