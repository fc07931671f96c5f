//! Tests reflector, delta queue and indexer against a model of a faulty server. Streams are cut,
//! versions expire, requests fail, caches lag, end markers are lost, objects cannot be decoded, and
//! the consumer is slow. The guarantees:
//!
//! - *converging*: after the faults stop, the copy equals the server;
//! - *complete*: every event since the last list was reported;
//! - *unique*: no change is reported twice;
//! - *no time travel*: no older state of an object follows a newer one;
//! - *once*: no version is decoded twice, unless an incomplete list was dropped;
//! - *quarantined*: exactly the undecodable objects are in quarantine;
//! - *indexed*: an index agrees with a scan of all objects.
//!
//! Each guarantee has a planted bug that the checker must detect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use listwatch_client::reflector::{
    Action, EventAction, FirstRead, Reflector, ReflectorConfig, ReflectorState, TimeAndRandom,
};
use listwatch_client::{
    Change, Compaction, Decode, DecodeError, Delta, DeltaFifo, FifoConfig, Index, Indexer, ObjectKey, Origin, Problem,
    RawObject, Stored as _, TypeName, Typed,
};
use listwatch_meta::{Change as EventChange, ListOptions, Status};
use listwatch_wire::{EventKind, ListMeta};
use proptest::prelude::*;

type State = BTreeMap<String, Item>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    uid: u64,
    version: u64,
    /// Whether the object can be decoded.
    good: bool,
}

/// Decodes the version as a number, and counts the calls.
#[derive(Clone, Default)]
struct Versions(Arc<Mutex<BTreeMap<(String, String), usize>>>);

impl Decode for Versions {
    type Stored = Typed<u64>;

    fn decode(&self, raw: &RawObject, key: ObjectKey, _: Option<&TypeName>) -> Result<Typed<u64>, DecodeError> {
        let version = raw.metadata().resource_version.into_owned();
        *self.0.lock().unwrap().entry((key.to_string(), version.clone())).or_default() += 1;
        let good = raw.json().ends_with(b"true}");
        let version = version.parse().map_err(DecodeError::new)?;
        if good { Ok(Typed::new(raw, version)) } else { Err(DecodeError::new("no good")) }
    }
}

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PlantedBug {
    None,
    /// Deletes are not reported.
    LoseDeletes,
    /// Every change is reported twice.
    ReportTwice,
    /// Old and new state of an update are swapped.
    SwapStates,
    /// Undecodable objects are dropped.
    DropUndecodable,
    /// Every event is decoded twice.
    DecodeTwice,
}

#[derive(Clone, Debug)]
struct RecordedChange {
    change: EventChange,
    name: String,
    item: Item,
}

/// The server's reaction to a WatchList.
#[derive(Clone, Copy, Debug, PartialEq)]
enum InitialEvents {
    Known,
    Refused,
    WithoutEnd,
}

struct Server {
    /// The state at every version; the last one is current.
    states: Vec<State>,
    /// The changes between versions; `history[v]` leads to `states[v + 1]`.
    history: Vec<RecordedChange>,
    /// Watches and page tokens from before this version are expired.
    window: u64,
    initial_events: InitialEvents,
    page_size: usize,
}

impl Server {
    fn current(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    fn write(&mut self, name: u8, operation: u8, good: bool) {
        let version = self.current() + 1;
        let name = format!("o{name}");
        let mut state = self.states.last().expect("there is a state").clone();
        let (change, item) = match state.get(&name).cloned() {
            None => (EventChange::Added, Item { uid: version, version, good }),
            Some(old) if operation == 0 => (EventChange::Deleted, Item { uid: old.uid, version, good: true }),
            Some(old) => (EventChange::Modified, Item { uid: old.uid, version, good }),
        };
        if change == EventChange::Deleted {
            state.remove(&name);
        } else {
            state.insert(name.clone(), item.clone());
        }
        self.states.push(state);
        self.history.push(RecordedChange { change, name, item });
    }

    /// The version of a lagging cache that must have reached `at_least`.
    fn lagging(&self, at_least: u64, lag: u64) -> u64 {
        self.current().saturating_sub(lag).max(at_least).max(1)
    }
}

/// The open request of the simulated client, if there is one.
#[derive(Debug)]
enum Exchange {
    Idle,
    List { options: ListOptions },
    Watch { options: ListOptions, open: bool, initial: Option<Vec<(String, Item)>>, at: u64 },
}

struct World {
    server: Server,
    reflector: Reflector,
    decoded: Versions,
    fifo: DeltaFifo<Versions>,
    indexer: Indexer<Typed<u64>>,
    by_parity: Index<Typed<u64>, u64>,
    /// Whether every state must be reported, because the queue may not compact.
    every: bool,
    /// The number of deltas that one step applies.
    pace: usize,
    plant: PlantedBug,
    exchange: Exchange,
    now: Instant,
    random: u64,
    /// The lag of the next responses.
    lag: u64,
    /// The failures of the next requests.
    failures: Vec<Problem>,
    /// The state of a reader that applies the changes.
    mirror: State,
    /// The newest version seen of each name, deletes included.
    newest: BTreeMap<String, u64>,
    /// Live changes since the last whole state, and the version of that state.
    live: Vec<(String, u64)>,
    since: u64,
    /// The names in the store at that state.
    held: BTreeSet<String>,
}

impl World {
    fn new(initial_events: InitialEvents, first_read: FirstRead, watch_list: bool) -> Self {
        World::with_fifo(initial_events, first_read, watch_list, FifoConfig::default())
    }

    fn with_fifo(initial_events: InitialEvents, first_read: FirstRead, watch_list: bool, fifo: FifoConfig) -> Self {
        let config = ReflectorConfig { first_read, watch_list, page_size: 2, ..ReflectorConfig::default() };
        let server =
            Server { states: vec![State::new(); 2], history: vec![filler()], window: 1, initial_events, page_size: 2 };
        let decoded = Versions::default();
        let mut indexer = Indexer::new();
        let by_parity = indexer.add_index(|version: &Typed<u64>| [**version % 2]);
        let mut world = World {
            server,
            reflector: Reflector::new(config),
            fifo: DeltaFifo::new(decoded.clone(), fifo),
            decoded,
            indexer,
            by_parity,
            every: fifo.compaction == Compaction::KeepEvery,
            pace: usize::MAX,
            plant: PlantedBug::None,
            exchange: Exchange::Idle,
            now: Instant::now(),
            random: 1,
            lag: 0,
            failures: Vec::new(),
            mirror: State::new(),
            newest: BTreeMap::new(),
            live: Vec::new(),
            since: 0,
            held: BTreeSet::new(),
        };
        let at = world.at();
        world.reflector.handle_start(at);
        world.act();
        world
    }

    fn at(&mut self) -> TimeAndRandom {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        TimeAndRandom { now: self.now, random: (self.random >> 11) as f64 / (1_u64 << 53) as f64 }
    }

    fn act(&mut self) {
        while let Some(action) = self.reflector.poll_action() {
            match action {
                Action::Begin => {
                    self.decoded.0.lock().unwrap().clear();
                    self.fifo.begin_replace(self.indexer.current());
                }
                Action::Close => self.exchange = Exchange::Idle,
                Action::List(options) => self.exchange = Exchange::List { options },
                Action::Watch(options) => {
                    self.exchange = Exchange::Watch { options, open: false, initial: None, at: 0 };
                }
                Action::Commit { version } => {
                    self.fifo.commit_replace(&version);
                    self.drain();
                }
            }
        }
    }

    /// Applies deltas, up to the consumer's speed.
    fn drain(&mut self) {
        for _ in 0..self.pace {
            if self.fifo.is_empty() {
                break;
            }
            self.take();
        }
        let twice = self.decoded.0.lock().unwrap().values().any(|count| *count > 1);
        assert!(!twice, "broke once: {:?}", self.decoded.0.lock().unwrap());
    }

    /// Applies one batch.
    fn take(&mut self) {
        let mut whole = None;
        let mut changes = Vec::new();
        for delta in self.fifo.pop_batch(self.indexer.current(), 3) {
            if let Delta::Replace(replacement) = &delta {
                whole = Some(replacement.version().to_owned());
            }
            if self.plant == PlantedBug::DropUndecodable && matches!(delta, Delta::Quarantine { .. }) {
                continue;
            }
            self.indexer.apply(delta, &mut changes);
        }
        self.fifo.finish_batch();
        match self.plant {
            PlantedBug::LoseDeletes => changes.retain(|change| !matches!(change, Change::Deleted { .. })),
            PlantedBug::ReportTwice => {
                changes = changes.iter().flat_map(|change| [change.clone(), change.clone()]).collect()
            }
            PlantedBug::SwapStates => {
                for change in &mut changes {
                    if let Change::Updated { old, new, .. } = change {
                        std::mem::swap(old, new);
                    }
                }
            }
            _ => {}
        }
        if let Some(version) = &whole {
            self.since = version.parse().expect("our versions are numbers");
            self.live.clear();
        }
        self.check(&changes);
        if whole.is_some() {
            self.check_copy(self.since);
            self.held = self.indexer.current().iter().map(|object| object.key().to_string()).collect();
        }
    }

    /// Checks that the copy is the server's state at this version, except for undecodable objects.
    fn check_copy(&self, version: u64) {
        let snapshot = self.indexer.current();
        let state = &self.server.states[version as usize];
        let set_aside: Vec<_> =
            snapshot.quarantine().map(|(key, entry)| (key.to_string(), entry.version().to_owned())).collect();
        let bad = state.iter().filter(|(_, item)| !item.good);
        let bad: Vec<_> = bad.map(|(name, item)| (name.clone(), item.version.to_string())).collect();
        assert_eq!(set_aside, bad, "broke quarantined: something else is set aside");
        for object in snapshot.iter() {
            let item = state.get(object.key().as_str());
            let item = item.expect("broke converging: the copy has what the server has not");
            assert_eq!(item.uid.to_string(), object.uid(), "broke converging: another object of that name");
            assert!(!item.good || **object == item.version, "broke converging: another version of {object:?}");
        }
        for (name, _) in state.iter().filter(|(_, item)| item.good) {
            assert!(snapshot.get(name).is_some(), "broke converging: the copy lacks {name}");
        }
        for parity in [0, 1] {
            let found: Vec<_> = snapshot.by_index(&self.by_parity, &parity).map(|object| **object).collect();
            let expected: Vec<_> = snapshot.iter().map(|object| **object).filter(|v| v % 2 == parity).collect();
            assert_eq!(found, expected, "broke indexed: parity {parity}");
        }
    }

    fn check(&mut self, changes: &[Change<Typed<u64>>]) {
        for change in changes {
            let name = change.key().name().to_owned();
            let version = match change {
                Change::Added { object, .. } => {
                    let item = Item {
                        uid: object.uid().parse().unwrap(),
                        version: object.resource_version().parse().unwrap(),
                        good: true,
                    };
                    let version = item.version;
                    assert!(self.mirror.insert(name.clone(), item).is_none(), "broke unique: {name} was added twice");
                    version
                }
                Change::Updated { old, new, .. } => {
                    let item = Item { uid: new.uid().parse().unwrap(), version: **new, good: true };
                    let version = item.version;
                    assert_ne!(old.resource_version(), new.resource_version(), "broke unique: {name} did not change");
                    assert!(**old < **new, "broke no time travel: {name} from {old:?} to {new:?}");
                    let before = self.mirror.insert(name.clone(), item).expect("broke unique: an update of nothing");
                    assert_eq!(before.version.to_string(), old.resource_version(), "the old state is another one");
                    version
                }
                Change::Deleted { last, .. } => {
                    assert!(self.mirror.remove(&name).is_some(), "broke unique: {name} was deleted twice");
                    last.resource_version().parse().unwrap()
                }
            };
            let newest = self.newest.entry(name.clone()).or_default();
            assert!(version >= *newest, "broke no time travel: {name}@{version} after @{newest}");
            *newest = version;
            if change.origin() == Origin::Live {
                self.live.push((name, version));
            }
        }
    }

    fn object(name: &str, item: &Item) -> RawObject {
        let json = format!(
            r#"{{"metadata":{{"name":"{name}","uid":"{}","resourceVersion":"{}"}},"good":{}}}"#,
            item.uid, item.version, item.good
        );
        RawObject::new(Bytes::from(json)).expect("valid JSON")
    }

    fn fail(&mut self, problem: Problem) {
        self.exchange = Exchange::Idle;
        let at = self.at();
        self.reflector.handle_problem(at, problem);
        self.act();
    }

    /// Performs one step of the open request: a response, an event, or nothing.
    fn deliver(&mut self) -> bool {
        if matches!(self.exchange, Exchange::List { .. } | Exchange::Watch { open: false, .. })
            && let Some(problem) = self.failures.pop()
        {
            self.fail(problem);
            return true;
        }
        match std::mem::replace(&mut self.exchange, Exchange::Idle) {
            Exchange::Idle => false,
            Exchange::List { options } => {
                self.answer_list(&options);
                true
            }
            Exchange::Watch { options, open: false, .. } => {
                self.answer_watch(options);
                true
            }
            Exchange::Watch { options, open, initial: Some(mut rest), at } if !rest.is_empty() => {
                let (name, item) = rest.remove(0);
                self.exchange = Exchange::Watch { options, open, initial: Some(rest), at };
                self.event(EventKind::Added, &Self::object(&name, &item));
                true
            }
            Exchange::Watch { options, open, initial: Some(_), at } => {
                self.exchange = Exchange::Watch { options, open, initial: None, at };
                if self.server.initial_events == InitialEvents::WithoutEnd {
                    return false;
                }
                let marker = format!(
                    r#"{{"metadata":{{"resourceVersion":"{at}","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}"#
                );
                self.event(EventKind::Bookmark, &RawObject::new(Bytes::from(marker)).expect("valid JSON"));
                true
            }
            Exchange::Watch { options, open, initial: None, at } => {
                let Some(happened) = self.server.history.get(at as usize).cloned() else {
                    self.exchange = Exchange::Watch { options, open, initial: None, at };
                    return false;
                };
                self.exchange = Exchange::Watch { options, open, initial: None, at: at + 1 };
                self.event(happened.change.into(), &Self::object(&happened.name, &happened.item));
                true
            }
        }
    }

    fn answer_list(&mut self, options: &ListOptions) {
        let asked: u64 = options.resource_version.as_str().parse().unwrap_or(0);
        let (version, start) = match options.continue_token.split_once('/') {
            Some((version, start)) => (version.parse().expect("our tokens"), start.parse().expect("our tokens")),
            None if options.resource_version.is_empty() => (self.server.current(), 0),
            None if asked > self.server.current() => {
                return self.fail(Problem::refused(Status::too_large_resource_version(
                    asked,
                    self.server.current(),
                    1,
                )));
            }
            None => (self.server.lagging(asked, self.lag), 0),
        };
        if !options.continue_token.is_empty() && version < self.server.window {
            return self.fail(Problem::refused(Status::expired_page(None)));
        }
        let state = self.server.states[version as usize].clone();
        let limit = if options.limit > 0 { self.server.page_size } else { usize::MAX };
        let moment = self.at();
        for (name, item) in state.iter().skip(start).take(limit) {
            let object = Self::object(name, item);
            match self.reflector.handle_item(moment, &object.metadata()) {
                EventAction::Collect => drop(self.fifo.collect(EventChange::Added, &object)),
                verdict => {
                    assert_eq!((verdict, options.limit), (EventAction::Ignore, 1), "a good item was passed over")
                }
            }
        }
        let more = state.len() > start.saturating_add(limit);
        let meta = ListMeta {
            resource_version: version.to_string(),
            continue_token: if more { format!("{version}/{}", start + limit) } else { String::new() },
            ..ListMeta::default()
        };
        self.reflector.handle_list_end(moment, &meta);
        self.act();
    }

    fn answer_watch(&mut self, options: ListOptions) {
        let asked: u64 = options.resource_version.as_str().parse().unwrap_or(0);
        let initial_events = options.send_initial_events == Some(true);
        if initial_events && self.server.initial_events == InitialEvents::Refused {
            return self.fail(Problem::refused(Status::failure(422, "Invalid", "sendInitialEvents is forbidden")));
        }
        if !initial_events && asked < self.server.window {
            return self.fail(Problem::refused(Status::expired_watch(asked, self.server.window)));
        }
        let (initial, at) = if initial_events {
            let most_recent = options.resource_version.is_empty();
            let version = if most_recent { self.server.current() } else { self.server.lagging(asked, self.lag) };
            let state = self.server.states[version as usize].clone();
            (Some(state.into_iter().collect()), version)
        } else {
            (None, asked)
        };
        self.exchange = Exchange::Watch { options, open: true, initial, at };
        let moment = self.at();
        self.reflector.handle_watch_open(moment);
        self.act();
    }

    fn event(&mut self, kind: EventKind, object: &RawObject) {
        let moment = self.at();
        let verdict = self.reflector.handle_event(moment, kind, &object.metadata());
        let change = match kind {
            EventKind::Added => EventChange::Added,
            EventKind::Modified => EventChange::Modified,
            _ => EventChange::Deleted,
        };
        if self.plant == PlantedBug::DecodeTwice && matches!(verdict, EventAction::Apply) {
            drop(self.decoded.decode(object, ObjectKey::new("", &object.metadata().name), None));
        }
        match verdict {
            EventAction::Apply => drop(self.fifo.push(self.indexer.current(), change, object)),
            EventAction::Collect => drop(self.fifo.collect(change, object)),
            EventAction::Bookmark | EventAction::Ignore => {}
            EventAction::Skip(reason) => panic!("a good event was passed over: {reason:?}"),
        }
        self.drain();
        self.act();
    }

    /// Advances the time without reaching a timeout.
    fn pass(&mut self, wait: Duration) {
        let due = self.reflector.poll_timeout();
        if due.is_none_or(|due| self.now + wait < due) {
            self.now += wait;
            let at = self.at();
            self.reflector.handle_timeout(at);
            assert!(self.reflector.poll_action().is_none(), "the reflector acted before its timeout");
        }
    }

    /// Advances the time to the next timeout of the reflector.
    fn tick(&mut self) {
        if let Some(due) = self.reflector.poll_timeout() {
            self.now = self.now.max(due);
            let at = self.at();
            self.reflector.handle_timeout(at);
            self.act();
        }
    }

    fn is_current(&self) -> bool {
        let at_end = matches!(&self.exchange, Exchange::Watch { open: true, initial: None, at, .. } if *at == self.server.current());
        self.fifo.is_empty() && at_end && matches!(self.reflector.state(), ReflectorState::Watching { .. })
    }
}

fn filler() -> RecordedChange {
    RecordedChange { change: EventChange::Added, name: String::new(), item: Item { uid: 0, version: 0, good: true } }
}

#[derive(Clone, Debug)]
enum Step {
    Write(u8, u8, bool),
    /// The consumer takes this number of batches.
    Take(u8),
    /// Advances the time without reaching a timeout.
    Pass(u8),
    Deliver(u8),
    /// The connection breaks.
    Cut,
    /// The server ends the response.
    End,
    /// The server drops its history.
    Expire,
    /// The server sends a bookmark, if all events were sent.
    Bookmark,
    Tick,
    /// The next requests fail.
    Fail(u8),
    /// The next responses come from a lagging cache.
    Lag(u8),
    /// The server sends an ERROR event.
    Error(u8),
}

fn problem(kind: u8) -> Problem {
    match kind % 6 {
        0 => Problem::refused(Status::too_many_requests("busy", 1)),
        1 => Problem::refused(Status::internal("x")),
        2 => Problem::disconnected("refused"),
        3 => Problem::refused(Status::expired_list()),
        4 => Problem::refused(Status::too_large_resource_version(9, 1, 1)),
        _ => Problem::malformed("x"),
    }
}

fn run(steps: &[Step], world: &mut World) {
    for step in steps {
        match step {
            Step::Write(name, operation, good) => world.server.write(*name, *operation, *good),
            Step::Take(batches) => {
                for _ in 0..*batches {
                    if !world.fifo.is_empty() {
                        world.take();
                    }
                }
            }
            Step::Pass(seconds) => world.pass(Duration::from_secs(u64::from(*seconds))),
            Step::Deliver(count) => {
                for _ in 0..*count {
                    if !world.deliver() {
                        break;
                    }
                }
            }
            Step::Cut => {
                if !matches!(world.exchange, Exchange::Idle) {
                    world.fail(Problem::disconnected("cut"));
                }
            }
            Step::End => {
                if matches!(world.exchange, Exchange::Watch { open: true, .. }) {
                    world.exchange = Exchange::Idle;
                    let at = world.at();
                    world.reflector.handle_stream_end(at);
                    world.act();
                }
            }
            Step::Expire => world.server.window = world.server.current(),
            Step::Bookmark => {
                if world.is_current() {
                    let version = world.server.current();
                    let bookmark = format!(r#"{{"metadata":{{"resourceVersion":"{version}"}}}}"#);
                    world.event(EventKind::Bookmark, &RawObject::new(Bytes::from(bookmark)).expect("valid JSON"));
                }
            }
            Step::Tick => world.tick(),
            Step::Fail(kind) => world.failures.push(problem(*kind)),
            Step::Lag(lag) => world.lag = u64::from(*lag),
            Step::Error(kind) => {
                if matches!(world.exchange, Exchange::Watch { open: true, .. }) {
                    world.fail(problem(*kind));
                }
            }
        }
    }
}

fn heal(world: &mut World) {
    world.failures.clear();
    world.lag = 0;
    world.pace = usize::MAX;
    world.drain();
    let begun = world.now;
    for _ in 0..500 {
        while world.deliver() {}
        if world.is_current() {
            break;
        }
        world.tick();
    }
    assert!(world.is_current(), "broke converging: {:?}", world.reflector.state());
    let healed = world.now.saturating_duration_since(begun);
    assert!(healed < Duration::from_secs(600), "broke converging: it took {} s", healed.as_secs());
    world.check_copy(world.server.current());
    let copy: State = world
        .indexer
        .current()
        .iter()
        .map(|object| {
            let item = Item { uid: object.uid().parse().unwrap(), version: **object, good: true };
            (object.key().to_string(), item)
        })
        .collect();
    assert_eq!(world.mirror, copy, "broke converging: the changes lead elsewhere");
    let mut held = world.held.clone();
    let mut happened = Vec::new();
    for RecordedChange { change, name, item } in &world.server.history[world.since as usize..] {
        let told = match change {
            EventChange::Deleted => held.remove(name),
            _ if item.good => {
                held.insert(name.clone());
                true
            }
            _ => false,
        };
        if told {
            happened.push((name.clone(), item.version));
        }
    }
    if world.every {
        assert_eq!(world.live, happened, "broke complete: the changes since the last list");
    } else {
        let mut rest = happened.iter();
        assert!(world.live.iter().all(|told| rest.any(|one| one == told)), "broke complete: told what never happened");
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u8..6, 0_u8..3, prop::bool::weighted(0.8))
            .prop_map(|(name, operation, good)| Step::Write(name, operation, good)),
        2 => (1_u8..5).prop_map(Step::Take),
        1 => any::<u8>().prop_map(Step::Pass),
        8 => (1_u8..8).prop_map(Step::Deliver),
        1 => Just(Step::Cut),
        1 => Just(Step::End),
        1 => Just(Step::Expire),
        1 => Just(Step::Bookmark),
        3 => Just(Step::Tick),
        1 => any::<u8>().prop_map(Step::Fail),
        1 => (0_u8..5).prop_map(Step::Lag),
        1 => any::<u8>().prop_map(Step::Error),
    ]
}

proptest! {
    #[test]
    fn copy_converges_after_any_sequence_of_faults(
        steps in prop::collection::vec(any_step(), 0..120),
        initial_events in prop_oneof![Just(InitialEvents::Known), Just(InitialEvents::Refused), Just(InitialEvents::WithoutEnd)],
        any_first in any::<bool>(),
        watch_list in any::<bool>(),
        pace in prop_oneof![Just(usize::MAX), 0_usize..3],
        latest in any::<bool>(),
        distinct_keys in any::<bool>(),
    ) {
        let first_read = if any_first { FirstRead::Any } else { FirstRead::MostRecent };
        let compaction = if latest { Compaction::LatestPerKey } else { Compaction::KeepEvery };
        let fifo = FifoConfig { compaction, distinct_keys, ..FifoConfig::default() };
        let mut world = World::with_fifo(initial_events, first_read, watch_list, fifo);
        world.pace = pace;
        run(&steps, &mut world);
        heal(&mut world);
    }
}

/// Shows that the checker can fail: a copy that misses one event must be detected.
#[test]
#[should_panic(expected = "broke")]
fn checker_detects_a_lost_event() {
    let mut world = World::new(InitialEvents::Known, FirstRead::MostRecent, true);
    run(&[Step::Deliver(8)], &mut world);
    world.server.write(1, 1, true);
    if let Exchange::Watch { at, .. } = &mut world.exchange {
        *at += 1; // the server skips it
    }
    world.server.write(2, 1, true);
    heal(&mut world);
}

/// A run in which a planted bug breaks its guarantee.
fn with(plant: PlantedBug) {
    let mut world = World::new(InitialEvents::Known, FirstRead::MostRecent, true);
    run(&[Step::Deliver(8)], &mut world);
    world.plant = plant;
    for (name, operation, good) in [(1, 1, true), (2, 1, true), (1, 1, true), (3, 1, false), (2, 0, true)] {
        world.server.write(name, operation, good);
    }
    heal(&mut world);
}

#[test]
fn checker_accepts_a_correct_run() {
    with(PlantedBug::None);
}

#[test]
#[should_panic(expected = "broke converging: the changes lead elsewhere")]
fn checker_detects_an_unreported_deletion() {
    with(PlantedBug::LoseDeletes);
}

#[test]
#[should_panic(expected = "broke unique")]
fn checker_detects_a_duplicate_change() {
    with(PlantedBug::ReportTwice);
}

#[test]
#[should_panic(expected = "broke no time travel")]
fn checker_detects_a_change_back_to_an_older_state() {
    with(PlantedBug::SwapStates);
}

#[test]
#[should_panic(expected = "broke quarantined")]
fn checker_detects_a_dropped_undecodable_object() {
    with(PlantedBug::DropUndecodable);
}

#[test]
#[should_panic(expected = "broke once")]
fn checker_detects_an_object_decoded_twice() {
    with(PlantedBug::DecodeTwice);
}
