//! Plays a plan: starts all parts, injects faults, ends them, and waits until every copy converges.

use std::collections::BTreeMap;
use std::time::Duration;

use listwatch_history::{Record, Selector};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cluster::{Cluster, Connector};
use crate::mirror::{self, Mirror, Processed};
use crate::objects::{NAMESPACES, Objects};
use crate::plan::{FaultKind, Plan};
use crate::reader::Reader;
use crate::store::FaultyStore;
use crate::trace::{Recorder, Trace};
use crate::watcher::Watcher;
use crate::writer::Writer;

/// Virtual time within which every copy must be equal to the store after all faults ended.
const CONVERGENCE_WAIT: Duration = Duration::from_secs(600);

/// Virtual time in which the servers write their own objects after the faults.
const OWN_WRITES_WAIT: Duration = Duration::from_secs(60);

/// Virtual time for all writes. A write without an answer after this time breaks a guarantee.
const WRITES_WAIT: Duration = Duration::from_secs(3_600);

/// Plays a plan on the runtime of the caller, whose clock is virtual.
pub(crate) async fn play(plan: &Plan) -> Trace {
    let recorder = Recorder::new();
    let mut rng = StdRng::seed_from_u64(plan.seed ^ 0x3012d);
    let store = FaultyStore::new(plan, &recorder);
    let cluster = Cluster::new(plan, &store, &recorder);
    for node in 0..plan.servers {
        cluster.start(node).await;
    }
    create_namespaces(&Connector::new(&cluster, rng.random())).await;

    let mut connector = || Connector::new(&cluster, rng.random());
    let (last, watch_last) = watch::channel(None);
    let mut watchers = JoinSet::new();
    let mut selectors: BTreeMap<String, Selector> = BTreeMap::new();
    for number in 0..plan.watchers {
        let (seed, is_slow) = (plan.seed.wrapping_add(1_000 + number as u64), plan.has(FaultKind::SlowReader));
        let watcher = Watcher::new(number as u64, connector(), &recorder, seed, is_slow, watch_last.clone());
        selectors.insert(watcher.name.clone(), watcher.selector().clone());
        let name = watcher.name.clone();
        watchers.spawn(async move { (name, watcher.run().await) });
    }
    let seeds = |kind: u64, number: usize| plan.seed.wrapping_mul(kind).wrapping_add(number as u64);
    let reflectors = 0..plan.reflectors;
    let mut mirrors: Vec<Mirror> =
        reflectors.map(|number| mirror::start_reflector(number, &connector(), &recorder, seeds(3, number))).collect();
    if plan.informer {
        mirrors.extend(mirror::start_informer(&connector(), &recorder, seeds(5, 0)));
    }
    let processed = plan.controller.then(|| mirror::start_controller(&connector(), &recorder, seeds(7, 0)));
    let mut readers = JoinSet::new();
    for number in 0..plan.readers {
        readers.spawn(Reader::new(number, connector(), &recorder, seeds(11, number)).run());
    }
    let mut writers = JoinSet::new();
    for number in 0..plan.writers {
        writers.spawn(Writer::new(number, connector(), &recorder, seeds(13, number)).run(plan.writes));
    }
    let (end_of_faults, mut ended) = watch::channel(());
    ended.mark_unchanged();
    let chaos = tokio::spawn(inject(plan.clone(), cluster.clone(), store.clone(), ended));
    let all_written = async { while writers.join_next().await.is_some() {} };
    if tokio::time::timeout(WRITES_WAIT, all_written).await.is_err() {
        recorder.broken("Available", format!("a write is not answered within {WRITES_WAIT:?}"));
    }

    // The faults end after the last one: a server that is down starts again.
    end_of_faults.send_replace(());
    store.heal();
    cluster.heal();
    let _ = chaos.await;
    readers.shutdown().await;
    recorder.note("all faults end");
    while !store.is_settled() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(OWN_WRITES_WAIT).await;
    let head = store.head().await;
    last.send_replace(Some(head));
    let expected = final_state(&recorder.trace());
    converge(&recorder, &expected, &mirrors, processed.as_ref(), &mut watchers, &selectors).await;
    recorder.note("the run ends");
    recorder.trace()
}

pub(crate) async fn create_namespaces(connector: &Connector) {
    for namespace in NAMESPACES {
        let body = format!(r#"{{"metadata":{{"name":"{namespace}"}}}}"#);
        // Conflicts mean that it exists.
        for _ in 0..100 {
            let call = connector.call("POST", "/api/v1/namespaces", "application/json", body.clone()).await;
            if matches!(call, Some((201 | 409, _))) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// The state of the store after the run, computed from the recorded changes.
fn final_state(trace: &Trace) -> Objects {
    let mut changes: Vec<_> = trace
        .records()
        .into_iter()
        .filter_map(|record| match record {
            Record::Change(change) => Some(change),
            _ => None,
        })
        .collect();
    changes.sort_by_key(|change| change.revision);
    let mut state = Objects::new();
    for change in changes {
        match change.state {
            Some(after) => drop(state.insert(change.object, (change.revision, after))),
            None => drop(state.remove(&change.object)),
        }
    }
    state
}

/// Waits until every copy is equal to the store.
async fn converge(
    recorder: &Recorder,
    expected: &Objects,
    mirrors: &[Mirror],
    processed: Option<&Processed>,
    watchers: &mut JoinSet<(String, Objects)>,
    selectors: &BTreeMap<String, Selector>,
) {
    let deadline = Instant::now() + CONVERGENCE_WAIT;
    while let Ok(ended) = tokio::time::timeout_at(deadline, watchers.join_next()).await {
        let Some(Ok((name, copy))) = ended else { break };
        let selector = &selectors[&name];
        let selected = expected.iter().filter(|(object, (_, state))| selector.matches(object, state));
        let selected: Objects = selected.map(|(object, state)| (object.clone(), state.clone())).collect();
        if copy != selected {
            recorder.broken("Converging", format!("{name} ends with another copy than the store: {copy:?}"));
        }
    }
    if !watchers.is_empty() {
        recorder.broken("Converging", format!("{} watchers do not reach the last revision", watchers.len()));
    }
    loop {
        let differing = mirrors.iter().find(|mirror| mirror.objects() != *expected);
        let unprocessed = processed.and_then(|processed| processed.missing(expected));
        if differing.is_none() && unprocessed.is_none() {
            return;
        }
        if Instant::now() >= deadline {
            if let Some(mirror) = differing {
                let objects = mirror.objects();
                let object = expected.keys().chain(objects.keys()).find(|key| expected.get(*key) != objects.get(*key));
                let object = object.cloned().unwrap_or_default();
                let evidence = format!("{} has {object} as {:?}", mirror.name, objects.get(&object));
                recorder.broken("Converging", format!("{evidence}, the store as {:?}", expected.get(&object)));
            }
            if let Some(object) = unprocessed {
                recorder.broken("Processed", format!("the last state of {object} was not reconciled"));
            }
            return;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Injects faults of servers and of the store, one after another, until `ended` changes.
async fn inject(plan: Plan, cluster: Cluster, store: FaultyStore, mut ended: watch::Receiver<()>) {
    let mut rng = StdRng::seed_from_u64(plan.seed ^ 0xc4a05);
    loop {
        let pause = Duration::from_millis(rng.random_range(100..2_000));
        if tokio::time::timeout(pause, ended.changed()).await.is_ok() {
            return;
        }
        let node = rng.random_range(0..plan.servers);
        let down = Duration::from_millis(rng.random_range(1..3_000));
        match rng.random_range(0..4) {
            0 if plan.has(FaultKind::ServerCrash) => {
                cluster.crash(node).await;
                tokio::time::sleep(down).await;
                cluster.start(node).await;
            }
            1 if plan.has(FaultKind::ServerShutdown) => {
                cluster.shut_down(node).await;
                tokio::time::sleep(down).await;
                cluster.start(node).await;
            }
            2 if plan.has(FaultKind::LeaderLoss) => store.lose_leader(down),
            3 if plan.has(FaultKind::Compaction) => store.forget(rng.random_range(0..20)).await,
            _ => {}
        }
    }
}
