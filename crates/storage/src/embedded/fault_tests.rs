//! Random scenarios of a whole store on a failing disk, compared with a model. Planted bugs test
//! the checker itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures_util::future::join_all;
use listwatch_meta::{Key, KeyRange, Revision};
use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestError, TestRunner};

use super::commit::Bug;
use super::faults::{FaultCounts, FaultRates, SimDisk};
use super::{EmbeddedOptions, EmbeddedStorage, Engine};
use crate::error::{CreateError, DeleteError, ReadError, StoreFault, UpdateError};
use crate::retention::Retention;
use crate::types::{ListQuery, Storage, StoreEvent, WatchItem};

/// The number of keys per writer. No other writer writes them.
const KEYS_PER_WRITER: usize = 3;

/// The number of attempts, some milliseconds apart, after which the store must work again.
const PATIENCE: usize = 2000;

/// The number of reads, two milliseconds apart, after which an expired key must be removed.
const EXPIRY_PATIENCE: usize = 5000;

/// A wall clock that nobody sets while the tests run: a reopened store reads the deadlines of its predecessor on it.
fn undisturbed_wall_clock() -> SystemTime {
    static START: LazyLock<(SystemTime, Instant)> = LazyLock::new(|| (SystemTime::now(), Instant::now()));
    START.0 + START.1.elapsed()
}

// ---- scenarios ----

/// The fault of the disk during a phase.
#[derive(Clone, Debug)]
enum Fault {
    Nothing,
    /// The power fails after this many writes and syncs.
    Power(u64),
    FaultRates(FaultRates),
    /// The number of blocks that can be allocated.
    Room(u64),
}

#[derive(Clone, Debug)]
struct Phase {
    fault: Fault,
    seed: u64,
    writers: usize,
    writes: usize,
    /// Whether the store is defragmented during the phase.
    defragment: bool,
    /// Compacts the history during the phase, up to this many revisions before the latest.
    compact: Option<u64>,
    /// Whether the store is closed and reopened after the phase, as after a power loss.
    reopen: bool,
}

#[derive(Clone, Debug)]
struct Scenario {
    retained: u64,
    phases: Vec<Phase>,
}

fn faults() -> impl Strategy<Value = Fault> {
    let chance = || prop_oneof![2 => Just(0_u32), 1 => 1..80_u32];
    let fault_rates = (chance(), chance(), chance(), chance(), chance(), prop_oneof![Just(0_u32), Just(500)]);
    let fault_rates = fault_rates.prop_map(|(read, write, set_len, sync, open, rename)| FaultRates {
        read,
        write,
        set_len,
        sync,
        open,
        rename,
    });
    prop_oneof![
        1 => Just(Fault::Nothing),
        4 => (1..300_u64).prop_map(Fault::Power),
        4 => fault_rates.prop_map(Fault::FaultRates),
        2 => (0..40_u64).prop_map(Fault::Room),
    ]
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    let compact = prop::option::weighted(0.3, 0..10_u64);
    let phase = (faults(), any::<u64>(), 1..5_usize, 1..16_usize, prop::bool::weighted(0.3), compact, any::<bool>());
    let phase = phase.prop_map(|(fault, seed, writers, writes, defragment, compact, reopen)| Phase {
        fault,
        seed,
        writers,
        writes,
        defragment,
        compact,
        reopen,
    });
    let retained = prop_oneof![Just(8_u64), Just(10_000)];
    (retained, prop::collection::vec(phase, 1..6)).prop_map(|(retained, phases)| Scenario { retained, phases })
}

// ---- the model ----

/// The possible states of a key. There are several only while a write's outcome is unknown.
#[derive(Clone, Debug)]
struct KeyStates {
    states: Vec<Option<Bytes>>,
    /// The revision of the state, if there is one state and the store reported it.
    revision: Option<Revision>,
    /// The earliest expiry, if the key has or may have a TTL.
    expires: Option<Expiry>,
}

#[derive(Clone, Copy, Debug)]
struct Expiry {
    not_before: Instant,
    /// Whether the key certainly has the TTL and must expire.
    certain: bool,
}

impl KeyStates {
    fn new(states: Vec<Option<Bytes>>, revision: Option<Revision>) -> Self {
        KeyStates { states, revision, expires: None }
    }

    /// Whether the key may be in this state.
    fn allows(&self, state: &Option<Bytes>) -> bool {
        let expired = || self.expires.is_some_and(|expiry| Instant::now() >= expiry.not_before);
        self.states.contains(state) || state.is_none() && expired()
    }
}

type Model = BTreeMap<Key, KeyStates>;
type Verdict = Result<(), String>;

fn require(kept: bool, broken: impl FnOnce() -> String) -> Verdict {
    if kept { Ok(()) } else { Err(broken()) }
}

/// Fails if an undamaged disk is reported as corrupt, because failures of a disk are not damage.
fn sound(fault: &StoreFault) -> Verdict {
    require(!matches!(fault, StoreFault::Corrupt(_)), || format!("a disk without damage is called corrupt: {fault}"))
}

struct Checker {
    disk: SimDisk,
    options: EmbeddedOptions,
    planted: Option<Bug>,
    model: Model,
    /// The newest revision reported to a writer or reader.
    last: Revision,
    /// The newest acknowledged compaction.
    compacted: Revision,
    /// The copy of a reader that watches during the writes, and the revision of the copy.
    copy: BTreeMap<Key, Bytes>,
    place: Revision,
    writes: usize,
}

impl Checker {
    fn new(retained: u64, planted: Option<Bug>) -> Self {
        let disk = SimDisk::default();
        Engine::create(&disk, 1 << 20).unwrap().close();
        let retention = Retention { age: Duration::ZERO, revisions: retained, bytes: 1 << 20 };
        let options = EmbeddedOptions { retention, cache_bytes: 1 << 20, reserve_bytes: 0 };
        let (model, copy) = (Model::new(), BTreeMap::new());
        let (last, compacted, place) = (Revision::ZERO, Revision::ZERO, Revision::new(1));
        Checker { disk, options, planted, model, last, compacted, copy, place, writes: 0 }
    }

    fn open(&self) -> Result<Arc<EmbeddedStorage>, String> {
        let opened = EmbeddedStorage::load(Arc::new(self.disk.clone()), self.options, undisturbed_wall_clock);
        let mut committer = opened.map_err(|error| format!("the store does not open: {error}"))?;
        committer.planted = self.planted;
        Ok(committer.start(None))
    }

    async fn run(&mut self, scenario: &Scenario) -> Verdict {
        let mut store = self.open()?;
        for phase in &scenario.phases {
            match &phase.fault {
                Fault::Nothing => {}
                Fault::Power(steps) => self.disk.lose_power_after(*steps),
                Fault::FaultRates(fault_rates) => self.disk.set_fault_rates(*fault_rates, phase.seed),
                Fault::Room(blocks) => self.disk.set_room(Some(*blocks)),
            }
            let defragment = async {
                if phase.defragment
                    && let Err(fault) = store.defragment().await
                {
                    sound(&fault)?;
                }
                Verdict::Ok(())
            };
            let compact = async {
                let Some(back) = phase.compact else { return Ok(Revision::ZERO) };
                tokio::time::sleep(Duration::from_millis(1)).await;
                let to = async {
                    let to = Revision::new(store.current_revision().await?.get().saturating_sub(back));
                    store.compact(to).await.map(|()| to)
                };
                match to.await {
                    Ok(to) => Ok(to),
                    Err(ReadError::Fault(fault)) => sound(&fault).map(|()| Revision::ZERO),
                    Err(error) => Err(format!("compaction fails: {error}")),
                }
            };
            self.writes += phase.writers * phase.writes;
            let writers =
                (0..phase.writers).map(|writer| write(&store, writer, phase.writes, self.writes, &self.model));
            let work = async { tokio::join!(defragment, compact, join_all(writers)) };
            let (defragmented, compacted, written) = tokio::select! {
                biased;
                broken = live(&store, &mut self.copy, &mut self.place) => return Err(broken),
                done = work => done,
            };
            defragmented?;
            self.compacted = self.compacted.max(compacted?);
            for written in written {
                let (model, last) = written?;
                self.model.extend(model);
                self.last = self.last.max(last);
            }
            // A watched change is as durable as an acknowledged write.
            self.last = self.last.max(self.place);
            self.disk.set_fault_rates(FaultRates::NONE, 0);
            self.disk.set_room(None);
            if matches!(phase.fault, Fault::Power(_)) || phase.reopen {
                store.close().await;
                self.disk.power_back(phase.seed);
                store = self.open()?;
            }
            self.check(&store).await?;
        }
        store.close().await;
        Ok(())
    }

    /// Checks all guarantees after the faults have ended.
    async fn check(&mut self, store: &EmbeddedStorage) -> Verdict {
        wait_until_recovered(store).await?;
        let page = store.list(all_pods()).await.map_err(|error| format!("a list fails: {error}"))?;
        require(page.revision >= self.last, || {
            format!("the revision went back from {} to {}", self.last, page.revision)
        })?;
        self.last = page.revision;
        let found: BTreeMap<_, _> =
            page.items.into_iter().map(|item| (item.key, (item.value, item.modified))).collect();
        for key in found.keys() {
            require(self.model.contains_key(key), || format!("{key} was never written"))?;
        }
        for (key, known) in &mut self.model {
            let (value, modified) = found.get(key).cloned().unzip();
            require(known.allows(&value), || match &known.states[..] {
                [_] => {
                    format!("an acknowledged write of {key} is lost, or one is there that was refused: {modified:?}")
                }
                _ => format!("{key} is neither in the state before a write nor in the one after: {modified:?}"),
            })?;
            if let (Some(told), Some(modified)) = (known.revision, modified) {
                require(told == modified, || format!("{key} was written at {told} and shows {modified}"))?;
            }
            let expires = known.expires.filter(|_| value.is_some());
            *known = KeyStates { states: vec![value], revision: modified, expires };
        }
        self.follow(store).await?;
        let copy: BTreeMap<_, _> = found.into_iter().map(|(key, (value, _))| (key, value)).collect();
        require(self.copy == copy, || "a reader's copy differs from the store".to_owned())?;
        let seen = store.verify().await.map_err(|fault| format!("a verification fails: {fault}"))?;
        require(seen.is_clean(), || format!("what is on disk contradicts itself: {:?}", seen.findings))?;
        let oldest = store.embedded_stats().map_err(|fault| fault.to_string())?.oldest;
        require(oldest >= self.compacted, || {
            format!("history was compacted to {}, and reaches back to {oldest}", self.compacted)
        })?;
        self.await_expiry(store).await
    }

    /// Checks that each key with a certain TTL expires.
    async fn await_expiry(&mut self, store: &EmbeddedStorage) -> Verdict {
        for (key, known) in &mut self.model {
            if !known.expires.is_some_and(|expiry| expiry.certain) {
                continue;
            }
            let mut tries = 0;
            while store.get(key).await.map_err(|error| format!("a get fails: {error}"))?.0.is_some() {
                require(tries < EXPIRY_PATIENCE, || format!("{key} outlives its TTL"))?;
                tries += 1;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            require(known.allows(&None), || format!("{key} is removed before its TTL is over"))?;
            *known = KeyStates::new(vec![None], None);
        }
        Ok(())
    }

    /// Updates the reader's copy from its revision on.
    async fn follow(&mut self, store: &EmbeddedStorage) -> Verdict {
        let watch = store.watch(KeyRange::resource("pods"), self.place).await;
        let mut watch = watch.map_err(|error| format!("a watch fails: {error}"))?;
        while self.place < self.last {
            match watch.next().await {
                Some(WatchItem::Event(event)) => {
                    let (at, next) = (event.revision(), self.place.next());
                    require(at == next, || format!("a watch shows {at} where {next} follows"))?;
                    self.place = at;
                    match event {
                        StoreEvent::Put { current, .. } => self.copy.insert(current.key, current.value),
                        StoreEvent::Delete { key, .. } => self.copy.remove(&key),
                    };
                }
                Some(WatchItem::Expired { .. }) => {
                    let stats = store.embedded_stats().map_err(|fault| fault.to_string())?;
                    require(self.place < stats.oldest, || format!("revision {} was held and is expired", self.place))?;
                    let known =
                        self.model.iter().filter_map(|(key, known)| Some((key.clone(), known.states[0].clone()?)));
                    self.copy = known.collect();
                    self.place = self.last;
                }
                other => return Err(format!("a watch on a sound disk says {other:?}")),
            }
        }
        Ok(())
    }
}

fn all_pods() -> ListQuery {
    ListQuery { range: KeyRange::resource("pods"), at: None, limit: 0 }
}

/// Waits until the store works again after the faults. The last fault may have closed the engine, and the store notices
/// it and reopens it in the background. Lists may be answered from memory; a verification reads the whole disk.
async fn wait_until_recovered(store: &EmbeddedStorage) -> Verdict {
    let mut tries = 0;
    loop {
        let listed = match store.list(all_pods()).await {
            Ok(_) => Ok(()),
            Err(ReadError::Fault(fault)) => Err(fault),
            Err(error) => return Err(format!("a list fails: {error}")),
        };
        let works = match listed {
            Ok(()) => store.verify().await.map(|_| ()),
            Err(fault) => Err(fault),
        };
        let Err(fault) = works else { return Ok(()) };
        sound(&fault)?;
        require(tries < PATIENCE, || format!("the store does not come back: {fault}"))?;
        tries += 1;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Follows the store during writes and resumes after faults; returns only when a guarantee is
/// broken.
async fn live(store: &EmbeddedStorage, copy: &mut BTreeMap<Key, Bytes>, place: &mut Revision) -> String {
    loop {
        if let Ok(mut watch) = store.watch(KeyRange::resource("pods"), *place).await {
            loop {
                match watch.next().await {
                    Some(WatchItem::Event(event)) => {
                        let (at, next) = (event.revision(), place.next());
                        if at != next {
                            return format!("a live watch shows {at} where {next} follows");
                        }
                        *place = at;
                        match event {
                            StoreEvent::Put { current, .. } => copy.insert(current.key, current.value),
                            StoreEvent::Delete { key, .. } => copy.remove(&key),
                        };
                    }
                    Some(WatchItem::Progress(_)) => {}
                    Some(WatchItem::Lost(fault)) => match sound(&fault) {
                        Ok(()) => break,
                        Err(broken) => return broken,
                    },
                    // The reader lists again after the faults; or the store is closed.
                    Some(WatchItem::Expired { .. }) | None => return std::future::pending().await,
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Writes the keys of one writer until done or until an outcome is unknown. Returns the states of the keys and the
/// newest reported revision.
async fn write(
    store: &EmbeddedStorage,
    writer: usize,
    writes: usize,
    from: usize,
    model: &Model,
) -> Result<(Model, Revision), String> {
    let (mut mine, mut last) = (Model::new(), Revision::ZERO);
    for n in from..from + writes {
        let key = Key::new("pods", Some("ns"), &format!("w{writer}-{}", n % KEYS_PER_WRITER)).unwrap();
        let nothing = || KeyStates::new(vec![None], None);
        let known = mine.get(&key).or(model.get(&key)).cloned().unwrap_or_else(nothing);
        let found = match store.get(&key).await {
            Ok((found, _)) => found,
            Err(ReadError::Fault(fault)) => {
                sound(&fault)?;
                break;
            }
            Err(error) => return Err(format!("a get fails: {error}")),
        };
        let before = found.as_ref().map(|found| found.value.clone());
        require(known.allows(&before), || format!("{key} reads as something that was not written"))?;
        let value = Bytes::from(format!("{writer} {n} ").repeat(if n % 11 == 5 { 30_000 } else { 1 + n * 331 % 900 }));
        let ttl = (n % 6 == 2).then(|| Duration::from_millis(3 + n as u64 % 5));
        let not_before = Instant::now() + ttl.unwrap_or_default();
        let (written, after) = match &found {
            None => (store.create(&key, value.clone(), ttl).await.map_err(of_create), Some(value)),
            Some(found) if n % 4 == 1 => (store.delete(&key, found.modified).await.map_err(of_delete), None),
            Some(found) => {
                (store.update(&key, found.modified, value.clone(), ttl).await.map_err(of_update), Some(value))
            }
        };
        let expires = ttl.filter(|_| after.is_some()).map(|_| Expiry { not_before, certain: true });
        match written {
            Ok(revision) => {
                require(revision > last, || format!("revision {revision} was given after {last}"))?;
                last = revision;
                let told = after.is_some().then_some(revision);
                mine.insert(key, KeyStates { states: vec![after], revision: told, expires });
            }
            // This error means that nothing was written.
            Err(Ok(StoreFault::NoSpace(_))) => {
                mine.insert(key, KeyStates { states: vec![before], revision: None, expires: known.expires });
            }
            Err(Ok(fault)) => {
                sound(&fault)?;
                let not_before = [expires, known.expires].into_iter().flatten().map(|expiry| expiry.not_before).min();
                let expires = not_before.map(|not_before| Expiry { not_before, certain: false });
                mine.insert(key, KeyStates { states: vec![before, after], revision: None, expires });
                break;
            }
            // The key's TTL expired in between.
            Err(Err(_)) if known.expires.is_some() && known.allows(&None) => {
                mine.insert(key, KeyStates::new(vec![None], None));
            }
            Err(Err(conflict)) => return Err(format!("nobody else writes {key}: {conflict}")),
        }
    }
    Ok((mine, last))
}

/// The store's fault, or else the error as text.
type Failed = Result<StoreFault, String>;

fn of_create(error: CreateError) -> Failed {
    if let CreateError::Fault(fault) = error { Ok(fault) } else { Err(error.to_string()) }
}

fn of_update(error: UpdateError) -> Failed {
    if let UpdateError::Fault(fault) = error { Ok(fault) } else { Err(error.to_string()) }
}

fn of_delete(error: DeleteError) -> Failed {
    if let DeleteError::Fault(fault) = error { Ok(fault) } else { Err(error.to_string()) }
}

fn run_scenario(scenario: &Scenario, planted: Option<Bug>, sync_lies: bool) -> (Verdict, FaultCounts) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut checker = Checker::new(scenario.retained, planted);
    checker.disk.set_sync_lies(sync_lies);
    let verdict = runtime.block_on(checker.run(scenario));
    (verdict, checker.disk.fault_counts())
}

/// For any disk faults: each acknowledged write is present, and each rejected write is absent. A write with an unknown
/// outcome is present completely or not at all. The revision never decreases, watches have no gap, and the disk is
/// consistent.
#[test]
fn guarantees_hold_under_any_disk_fault() {
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { ProptestConfig::default().cases } else { 150 };
    let mut runner = TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() });
    let sum = Mutex::new(FaultCounts::default());
    let verdict = runner.run(&scenarios(), |scenario| {
        let (verdict, fault_counts) = run_scenario(&scenario, None, false);
        let mut sum = sum.lock();
        sum.reads += fault_counts.reads;
        sum.writes += fault_counts.writes;
        sum.torn += fault_counts.torn;
        sum.syncs += fault_counts.syncs;
        sum.full += fault_counts.full;
        sum.lost += fault_counts.lost;
        sum.renames += fault_counts.renames;
        verdict.map_err(TestCaseError::fail)
    });
    match verdict {
        Ok(()) => {}
        Err(TestError::Fail(broken, scenario)) => panic!("{broken}\n{scenario:#?}"),
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
    let sum = *sum.lock();
    let FaultCounts { reads, writes, torn, syncs, full, lost, renames } = sum;
    for (count, what) in [(reads, "reads"), (writes, "writes"), (torn, "torn"), (syncs, "syncs"), (full, "full")] {
        assert!(count > 0, "no fault of the kind {what:?} fault_counts: {sum:?}");
    }
    assert!(lost > 0 && renames > 0, "{sum:?}");
}

/// Changes a scenario so that many revisions die while the store is copied. The copier and the committer are threads.
/// In an arbitrary scenario, a revision seldom dies after it was copied and before the copy ends.
fn make_revisions_die_during_copies(scenario: &mut Scenario) {
    scenario.retained = 8;
    for phase in &mut scenario.phases {
        *phase = Phase { fault: Fault::Nothing, writers: 4, writes: 15, defragment: true, ..phase.clone() };
    }
}

/// Shows that [`guarantees_hold_under_any_disk_fault`] can fail: each planted bug breaks a guarantee.
#[test]
fn checker_detects_each_planted_bug() {
    for (planted, sync_lies) in [
        (Some(Bug::AnswersTooEarly), false),
        (Some(Bug::TrustsFailedSync), false),
        (Some(Bug::DeniesWithoutLooking), false),
        (Some(Bug::RemovesTombstonesFirst), false),
        (Some(Bug::ForgetsWhatDied), false),
        (Some(Bug::ForgetsDeadlines), false),
        (Some(Bug::ForgetsCompaction), false),
        (None, true),
    ] {
        let mut runner = TestRunner::deterministic();
        let strategy = scenarios();
        let caught = (0..400).find_map(|_| {
            let mut scenario = strategy.new_tree(&mut runner).unwrap().current();
            if planted == Some(Bug::ForgetsWhatDied) {
                make_revisions_die_during_copies(&mut scenario);
            }
            run_scenario(&scenario, planted, sync_lies).0.err()
        });
        println!("{planted:?}: {caught:?}");
        assert!(caught.is_some(), "{planted:?} (a disk that lies about its syncs: {sync_lies}) is not caught");
    }
}

// ---- single faults ----

fn options() -> EmbeddedOptions {
    let retention = Retention { age: Duration::ZERO, revisions: 20, bytes: 1 << 20 };
    EmbeddedOptions { retention, cache_bytes: 1 << 20, reserve_bytes: 0 }
}

fn new_disk() -> SimDisk {
    let disk = SimDisk::default();
    Engine::create(&disk, 1 << 20).unwrap().close();
    disk
}

fn open(disk: &SimDisk) -> Arc<EmbeddedStorage> {
    open_with(disk, SystemTime::now)
}

fn open_with(disk: &SimDisk, wall: fn() -> SystemTime) -> Arc<EmbeddedStorage> {
    EmbeddedStorage::load(Arc::new(disk.clone()), options(), wall).unwrap().start(None)
}

fn key(n: u64) -> Key {
    Key::new("pods", Some("ns"), &format!("k{n}")).unwrap()
}

async fn listed(store: &EmbeddedStorage) -> BTreeMap<Key, (Revision, Bytes)> {
    let page = store.list(ListQuery { range: KeyRange::resource("pods"), at: None, limit: 0 }).await.unwrap();
    page.items.into_iter().map(|item| (item.key, (item.modified, item.value))).collect()
}

#[tokio::test]
async fn full_disk_fails_only_creates_and_updates() {
    let disk = new_disk();
    let store = open(&disk);
    let first = store.create(&key(1), vec![1; 3000].into(), None).await.unwrap();
    let mut watch = store.watch(KeyRange::resource("pods"), Revision::ZERO).await.unwrap();
    disk.set_room(Some(8));
    let mut last = first;
    let mut n = 2;
    for refused in 1..=3 {
        let error = loop {
            match store.create(&key(n), vec![2; 3000].into(), None).await {
                Ok(revision) => last = revision,
                Err(error) => break error,
            }
            n += 1;
        };
        assert!(matches!(error, CreateError::Fault(StoreFault::NoSpace(_))), "refusal {refused}: {error:?}");
        let (found, revision) = store.get(&key(1)).await.unwrap();
        assert_eq!((found.unwrap().value, revision), (Bytes::from(vec![1; 3000]), last), "reads go on");
    }
    for revision in first.get()..=last.get() {
        let item = watch.next().await;
        assert!(matches!(item, Some(WatchItem::Event(event)) if event.revision().get() == revision));
    }
    disk.set_room(None);
    let second = store.create(&key(n), vec![3; 3000].into(), None).await.unwrap();
    assert_eq!(second, last.next(), "a write that failed took no revision");
    assert!(matches!(watch.next().await, Some(WatchItem::Event(event)) if event.revision() == second));
    assert_eq!(listed(&store).await.len() as u64, n);
}

#[tokio::test]
async fn store_recovers_after_temporary_disk_failure() {
    let disk = new_disk();
    let store = open(&disk);
    let first = store.create(&key(1), "1".into(), None).await.unwrap();
    disk.set_broken(true);
    let error = store.create(&key(2), "2".into(), None).await.unwrap_err();
    assert!(matches!(error, CreateError::Fault(StoreFault::Unavailable(_))), "{error:?}");
    assert!(store.health().await.is_err());
    disk.set_broken(false);
    let mut watch = None;
    while watch.is_none() {
        // The committer retries by itself at its own interval.
        watch = store.watch(KeyRange::resource("pods"), first).await.ok();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    store.health().await.unwrap();
    let second = store.create(&key(3), "3".into(), None).await.unwrap();
    assert!(matches!(watch.unwrap().next().await, Some(WatchItem::Event(event)) if event.revision() == second));
}

/// The machine sets its wall clock after the store was opened, as after a boot without a battery.
#[tokio::test]
async fn ttl_set_after_wall_clock_correction_survives_restart() {
    static CORRECTED: AtomicBool = AtomicBool::new(false);
    fn wall() -> SystemTime {
        const DAY: Duration = Duration::from_secs(86_400);
        if CORRECTED.load(Ordering::Relaxed) { SystemTime::now() } else { SystemTime::now() - DAY }
    }
    const HOUR: Duration = Duration::from_secs(3600);
    let disk = new_disk();
    let store = open_with(&disk, wall);
    store.create(&key(1), "1".into(), Some(HOUR)).await.unwrap();
    CORRECTED.store(true, Ordering::Relaxed);
    store.create(&key(2), "2".into(), Some(HOUR)).await.unwrap();
    store.create(&key(3), "3".into(), Some(Duration::from_millis(20))).await.unwrap();
    let mut tries = 0;
    while store.get(&key(3)).await.unwrap().0.is_some() {
        tries += 1;
        assert!(tries < PATIENCE, "a TTL runs out on time whatever was done to the wall clock");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let (one, two) = (store.get(&key(1)).await.unwrap().0, store.get(&key(2)).await.unwrap().0);
    assert!(one.is_some() && two.is_some(), "and no other key goes early");
    assert!(store.verify().await.unwrap().is_clean());
    store.close().await;
    let store = open_with(&disk, wall);
    // The next commit removes expired keys.
    store.create(&key(4), "4".into(), None).await.unwrap();
    store.create(&key(5), "5".into(), None).await.unwrap();
    assert!(store.get(&key(2)).await.unwrap().0.is_some(), "a key never goes before its TTL is over");
}

/// A machine without a battery boots with a clock in the past, and nobody sets it.
#[tokio::test]
async fn ttl_ends_after_a_boot_with_a_clock_in_the_past() {
    const HOUR: Duration = Duration::from_secs(3600);
    fn wrong() -> SystemTime {
        SystemTime::now() - 24 * 365 * HOUR
    }
    let disk = new_disk();
    let store = open_with(&disk, SystemTime::now);
    store.create(&key(1), "1".into(), Some(Duration::from_millis(200))).await.unwrap();
    store.create(&key(2), "2".into(), Some(HOUR)).await.unwrap();
    store.close().await;
    disk.set_written(SystemTime::now());
    let store = open_with(&disk, wrong);
    let mut tries = 0;
    while store.get(&key(1)).await.unwrap().0.is_some() {
        tries += 1;
        assert!(tries < PATIENCE, "a TTL runs out although the clock is in the past");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(store.get(&key(2)).await.unwrap().0.is_some(), "a key never goes before its TTL is over");
    store.create(&key(3), "3".into(), Some(Duration::from_millis(20))).await.unwrap();
    while store.get(&key(3)).await.unwrap().0.is_some() {
        tries += 1;
        assert!(tries < 2 * PATIENCE, "a new TTL runs out, too");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// After one failed read, redb's handle fails every call. The store must therefore reopen the file even if no write
/// follows.
#[tokio::test]
async fn failed_read_does_not_fail_later_reads() {
    let disk = new_disk();
    let store = open(&disk);
    for n in 0..40 {
        store.create(&key(n), vec![n as u8; 100_000].into(), None).await.unwrap();
    }
    let expected = listed(&store).await;
    store.close().await;
    let store = open(&disk);
    disk.set_fault_rates(FaultRates { read: 1000, ..FaultRates::NONE }, 0);
    let error = store.get(&key(7)).await.unwrap_err();
    assert!(matches!(error, ReadError::Fault(StoreFault::Unavailable(_))), "{error:?}");
    disk.set_fault_rates(FaultRates::NONE, 0);
    let mut tries = 0;
    while store.get(&key(7)).await.is_err() {
        tries += 1;
        assert!(tries < PATIENCE, "reads do not come back");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(listed(&store).await, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// A flipped byte is detected when the store is opened or the value is read, or is in an unused part of the file.
    /// The byte never changes a value that is read, and never causes a panic.
    #[test]
    fn flipped_byte_is_detected_or_harmless(at in any::<usize>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let disk = new_disk();
        let expected = runtime.block_on(async {
            let store = open(&disk);
            for n in 0..30 {
                store.create(&key(n), vec![n as u8; 2000].into(), None).await.unwrap();
            }
            let expected = listed(&store).await;
            store.close().await;
            expected
        });
        disk.flip(at);
        std::panic::set_hook(Box::new(|_| {}));
        let opened = EmbeddedStorage::load(Arc::new(disk.clone()), options(), SystemTime::now);
        if let Ok(committer) = opened {
            let store = committer.start(None);
            runtime.block_on(async {
                for (key, (_, value)) in &expected {
                    if let Ok((found, _)) = store.get(key).await {
                        prop_assert_eq!(found.map(|found| found.value), Some(value.clone()));
                    }
                }
                Ok(())
            })?;
        }
    }
}
