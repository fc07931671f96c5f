//! Reflector and store against a model of a server that misbehaves: streams are cut, versions
//! expire, requests fail, states come from lagging caches, markers are swallowed. The promises:
//!
//! - *converging*: when the faults stop, the copy equals the server;
//! - *complete*: what happened since the last list was reported event by event, none missing;
//! - *unique*: nothing is reported twice;
//! - *no time travel*: of one object, no older state follows a newer one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use listwatch_client::reflector::{Action, FirstRead, Moment, Reflector, ReflectorConfig, ReflectorState, Verdict};
use listwatch_client::{Change, Origin, Problem, RawObject, StoreWriter};
use listwatch_meta::{Change as EventChange, ListOptions, Status};
use listwatch_wire::{EventKind, ListMeta};
use proptest::prelude::*;

type State = BTreeMap<String, Item>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    uid: u64,
    version: u64,
}

#[derive(Clone, Debug)]
struct Happened {
    change: EventChange,
    name: String,
    item: Item,
}

/// How the server treats a WatchList.
#[derive(Clone, Copy, Debug, PartialEq)]
enum InitialEvents {
    Known,
    Refused,
    WithoutEnd,
}

struct Server {
    /// The state at every version; the last one is current.
    states: Vec<State>,
    /// What led from each version to the next; `history[v]` made `states[v + 1]`.
    history: Vec<Happened>,
    /// Watches from before this version are expired, and so are page tokens.
    window: u64,
    initial_events: InitialEvents,
    page_size: usize,
}

impl Server {
    fn current(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    fn write(&mut self, name: u8, operation: u8) {
        let version = self.current() + 1;
        let name = format!("o{name}");
        let mut state = self.states.last().expect("there is a state").clone();
        let (change, item) = match state.get(&name).cloned() {
            None => (EventChange::Added, Item { uid: version, version }),
            Some(old) if operation == 0 => (EventChange::Deleted, Item { uid: old.uid, version }),
            Some(old) => (EventChange::Modified, Item { uid: old.uid, version }),
        };
        if change == EventChange::Deleted {
            state.remove(&name);
        } else {
            state.insert(name.clone(), item.clone());
        }
        self.states.push(state);
        self.history.push(Happened { change, name, item });
    }

    /// A version that a cache may be at which must have reached `at_least`.
    fn lagging(&self, at_least: u64, lag: u64) -> u64 {
        self.current().saturating_sub(lag).max(at_least).max(1)
    }
}

/// What is open between the two.
#[derive(Debug)]
enum Exchange {
    Idle,
    List { options: ListOptions },
    Watch { options: ListOptions, open: bool, initial: Option<Vec<(String, Item)>>, at: u64 },
}

struct World {
    server: Server,
    reflector: Reflector,
    writer: StoreWriter,
    exchange: Exchange,
    now: Instant,
    random: u64,
    /// How far behind the next answers may be.
    lag: u64,
    /// How the next requests fail.
    failures: Vec<Problem>,
    /// What a reader of the changes knows.
    mirror: State,
    /// The newest version seen of each name, deletes included.
    newest: BTreeMap<String, u64>,
    /// Live changes since the last whole state, and the version of that state.
    live: Vec<(String, u64)>,
    since: u64,
}

impl World {
    fn new(initial_events: InitialEvents, first_read: FirstRead, watch_list: bool) -> Self {
        let config = ReflectorConfig { first_read, watch_list, page_size: 2, ..ReflectorConfig::default() };
        let server =
            Server { states: vec![State::new(); 2], history: vec![filler()], window: 1, initial_events, page_size: 2 };
        let mut world = World {
            server,
            reflector: Reflector::new(config),
            writer: StoreWriter::new(),
            exchange: Exchange::Idle,
            now: Instant::now(),
            random: 1,
            lag: 0,
            failures: Vec::new(),
            mirror: State::new(),
            newest: BTreeMap::new(),
            live: Vec::new(),
            since: 0,
        };
        let at = world.at();
        world.reflector.handle_start(at);
        world.act();
        world
    }

    fn at(&mut self) -> Moment {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Moment { now: self.now, random: (self.random >> 11) as f64 / (1_u64 << 53) as f64 }
    }

    fn act(&mut self) {
        while let Some(action) = self.reflector.poll_action() {
            match action {
                Action::Begin => self.writer.begin_replace(),
                Action::Close => self.exchange = Exchange::Idle,
                Action::List(options) => self.exchange = Exchange::List { options },
                Action::Watch(options) => {
                    self.exchange = Exchange::Watch { options, open: false, initial: None, at: 0 };
                }
                Action::Commit { version } => {
                    let mut changes = Vec::new();
                    self.writer.commit_replace(&version, &mut changes);
                    self.since = version.parse().expect("our versions are numbers");
                    self.live.clear();
                    self.check(&changes);
                    let copy: Vec<_> = self.writer.current().iter().map(|object| object.name().to_owned()).collect();
                    let state = &self.server.states[self.since as usize];
                    assert_eq!(copy, state.keys().cloned().collect::<Vec<_>>(), "a list gave another state");
                }
            }
        }
    }

    fn check(&mut self, changes: &[Change]) {
        for change in changes {
            let name = change.key().name().to_owned();
            let version = match change {
                Change::Added { object, .. } => {
                    let item = Item {
                        uid: object.uid().parse().unwrap(),
                        version: object.resource_version().parse().unwrap(),
                    };
                    let version = item.version;
                    assert!(self.mirror.insert(name.clone(), item).is_none(), "broke unique: {name} was added twice");
                    version
                }
                Change::Updated { old, new, .. } => {
                    let item =
                        Item { uid: new.uid().parse().unwrap(), version: new.resource_version().parse().unwrap() };
                    let version = item.version;
                    assert_ne!(old.resource_version(), new.resource_version(), "broke unique: {name} did not change");
                    let before = self.mirror.insert(name.clone(), item).expect("an update of what was there");
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
        let json =
            format!(r#"{{"metadata":{{"name":"{name}","uid":"{}","resourceVersion":"{}"}}}}"#, item.uid, item.version);
        RawObject::new(Bytes::from(json)).expect("valid JSON")
    }

    fn fail(&mut self, problem: Problem) {
        self.exchange = Exchange::Idle;
        let at = self.at();
        self.reflector.handle_problem(at, problem);
        self.act();
    }

    /// One step of the open exchange: an answer, an event, or nothing if there is none.
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
                Verdict::Collect => self.writer.collect(EventChange::Added, &object),
                verdict => assert_eq!((verdict, options.limit), (Verdict::Ignore, 1), "a good item was passed over"),
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
        let mut changes = Vec::new();
        match verdict {
            Verdict::Apply => drop(self.writer.apply(change, object, &mut changes)),
            Verdict::Collect => self.writer.collect(change, object),
            Verdict::Bookmark | Verdict::Ignore => {}
            Verdict::Skip(reason) => panic!("a good event was passed over: {reason:?}"),
        }
        self.check(&changes);
        self.act();
    }

    /// Time goes by until the reflector wants something.
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
        at_end && matches!(self.reflector.state(), ReflectorState::Watching { .. })
    }
}

fn filler() -> Happened {
    Happened { change: EventChange::Added, name: String::new(), item: Item { uid: 0, version: 0 } }
}

#[derive(Clone, Debug)]
enum Step {
    Write(u8, u8),
    Deliver(u8),
    /// The connection breaks.
    Cut,
    /// The server ends the response.
    End,
    /// The server forgets its history.
    Expire,
    /// A bookmark, if everything was sent.
    Bookmark,
    Tick,
    /// The next requests fail.
    Fail(u8),
    /// The next answers come from a cache that is behind.
    Lag(u8),
    /// An ERROR event.
    Error(u8),
}

fn problem(kind: u8) -> Problem {
    match kind % 6 {
        0 => Problem::refused(Status::too_many_requests("busy", 1)),
        1 => Problem::refused(Status::internal("x")),
        2 => Problem::Disconnected { why: "refused".to_owned() },
        3 => Problem::refused(Status::expired_list()),
        4 => Problem::refused(Status::too_large_resource_version(9, 1, 1)),
        _ => Problem::Malformed { why: "x".to_owned() },
    }
}

fn run(steps: &[Step], world: &mut World) {
    for step in steps {
        match step {
            Step::Write(name, operation) => world.server.write(*name, *operation),
            Step::Deliver(count) => {
                for _ in 0..*count {
                    if !world.deliver() {
                        break;
                    }
                }
            }
            Step::Cut => {
                if !matches!(world.exchange, Exchange::Idle) {
                    world.fail(Problem::Disconnected { why: "cut".to_owned() });
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
    let state = world.server.states.last().expect("there is a state");
    assert_eq!(&world.mirror, state, "broke converging: the changes lead elsewhere");
    let copy: State = world
        .writer
        .current()
        .iter()
        .map(|object| {
            let item = Item { uid: object.uid().parse().unwrap(), version: object.resource_version().parse().unwrap() };
            (object.name().to_owned(), item)
        })
        .collect();
    assert_eq!(&copy, state, "broke converging: the copy is another one");
    let missed: Vec<_> = world.server.history[world.since as usize..]
        .iter()
        .map(|happened| (happened.name.clone(), happened.item.version))
        .collect();
    assert_eq!(world.live, missed, "broke complete: the changes since the last list");
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u8..6, 0_u8..3).prop_map(|(name, operation)| Step::Write(name, operation)),
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
    fn the_copy_converges_whatever_happens(
        steps in prop::collection::vec(any_step(), 0..120),
        initial_events in prop_oneof![Just(InitialEvents::Known), Just(InitialEvents::Refused), Just(InitialEvents::WithoutEnd)],
        any_first in any::<bool>(),
        watch_list in any::<bool>(),
    ) {
        let first_read = if any_first { FirstRead::Any } else { FirstRead::MostRecent };
        let mut world = World::new(initial_events, first_read, watch_list);
        run(&steps, &mut world);
        heal(&mut world);
    }
}

/// The checker must be able to fail: a copy that misses one event is caught.
#[test]
#[should_panic(expected = "broke")]
fn a_lost_event_is_noticed() {
    let mut world = World::new(InitialEvents::Known, FirstRead::MostRecent, true);
    run(&[Step::Deliver(8)], &mut world);
    world.server.write(1, 1);
    if let Exchange::Watch { at, .. } = &mut world.exchange {
        *at += 1; // the server skips it
    }
    world.server.write(2, 1);
    heal(&mut world);
}
