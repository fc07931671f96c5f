//! Tests random writes. A rejected write changes nothing, and watchers receive exactly the acknowledged writes of
//! concurrent clients.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use listwatch_cacher::{Delivery, Scope};
use listwatch_meta::{Change, FieldSelector, LabelSelector, ReadAt, WatchFrom, WatchRequest};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use tokio::time::Instant;

use super::*;

/// Generates a request, which may be malformed.
fn requests() -> impl Strategy<Value = (String, String)> {
    let name = prop_oneof![Just("a"), Just("b"), Just("C_"), Just("")];
    let line = prop_oneof![
        Just(post(MAPS)),
        Just(put(MAPS, "a")),
        Just(put(MAPS, "b")),
        Just(patch(MAPS, "a", MERGE)),
        Just(patch(MAPS, "a", JSON_PATCH)),
        Just(patch(MAPS, "a", "application/strategic-merge-patch+json")),
        Just(format!("DELETE {MAPS}/a")),
        Just(format!("DELETE {MAPS}/b?dryRun=All")),
        Just(format!("{}?fieldValidation=Strict", post(MAPS))),
        Just(post("/api/v1/namespaces/absent/configmaps")),
    ];
    let finalizers =
        prop_oneof![4 => Just("null"), 1 => Just(r#"["x.io/y"]"#), 1 => Just(r#"["bad"]"#), 1 => Just("7")];
    let version = prop_oneof![4 => Just("null"), 1 => Just(r#""1""#), 1 => Just(r#""x""#), 1 => Just(r#""0""#)];
    let data =
        prop_oneof![Just("null"), Just(r#"{"k":"v"}"#), Just(r#"{"k":"w"}"#), Just(r#"{"a b":"v"}"#), Just("[]")];
    let body = prop_oneof![
        8 => (name, finalizers, version, data).prop_map(|(name, finalizers, version, data)| format!(
            r#"{{"metadata":{{"name":"{name}","finalizers":{finalizers},"resourceVersion":{version}}},"data":{data}}}"#
        )),
        1 => Just(r#"[{"op":"add","path":"/data","value":{"j":"p"}}]"#.to_owned()),
        1 => Just(r#"[{"op":"test","path":"/data/k","value":"nope"}]"#.to_owned()),
        1 => Just(r#"{"$patch":"replace","data":{"s":"m"}}"#.to_owned()),
        1 => Just(r#"{"preconditions":{"uid":"other"}}"#.to_owned()),
        1 => "[{}\\[\\]\":,a-c0-9]{0,12}",
    ];
    (line, body)
}

/// Generates the requests of one test case.
fn request_sequences() -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::vec(requests(), 1..40)
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Rejected,
    /// A dry run without an error.
    DryRun,
    Accepted,
}

/// A bug that a test plants in the store after each response with this outcome.
#[derive(Clone, Copy, Debug)]
enum PlantedBug {
    /// The request stores another object.
    StoresObject(Outcome),
    /// The request emits an event that changes no content.
    EmitsEvent(Outcome),
}

/// Plants a bug directly in the store.
async fn plant(world: &World, bug: PlantedBug, outcome: Outcome) {
    let storage = world.writer.backend().storage();
    match bug {
        PlantedBug::StoresObject(of) if of == outcome => {
            let key = Key::from_path("/configmaps/default/planted").unwrap();
            storage.create(&key, "{}".into(), None).await.unwrap();
        }
        PlantedBug::EmitsEvent(of) if of == outcome => {
            let key = Key::from_path("/namespaces/default").unwrap();
            let found = storage.get(&key).await.unwrap().0.unwrap();
            storage.update(&key, found.modified, found.value, None).await.unwrap();
        }
        _ => {}
    }
}

/// Sends requests to a new server and compares the store before and after each one.
async fn check_effects(requests: &[(String, String)], bug: Option<PlantedBug>) -> Result<(), String> {
    let world = World::new().await;
    for (line, body) in requests {
        let (before, stored) = (world.revision().await, world.stored("/").await);
        let is_dry_run = line.contains("dryRun");
        // Delete options in the body override those in the query.
        let body = if is_dry_run && line.starts_with("DELETE") { "" } else { body.as_str() };
        let response = world.send(line, body).await;
        let (outcome, subject) = match &response {
            Err(_) => (Outcome::Rejected, "a rejected write"),
            Ok(_) if is_dry_run => (Outcome::DryRun, "a dry run"),
            Ok(_) => (Outcome::Accepted, "an accepted write"),
        };
        if let Some(bug) = bug {
            plant(&world, bug, outcome).await;
        }
        let events = world.revision().await - before;
        let is_accepted = outcome == Outcome::Accepted;
        let broken = if !is_accepted && world.stored("/").await != stored {
            "changed the stored objects".to_owned()
        } else if !is_accepted && events > 0 {
            "emitted an event".to_owned()
        } else if events > 1 {
            format!("emitted {events} events")
        } else {
            match &response {
                Err(status) if status.code < 400 => "returned no error code".to_owned(),
                Err(status) if status.message.is_empty() => "returned no message".to_owned(),
                _ => continue,
            }
        };
        let answer = match &response {
            Ok(response) => response.code.to_string(),
            Err(status) => format!("{} {}", status.code, status.message),
        };
        return Err(format!("Rejected without effect: {subject} {broken}: {line} {body}: {answer}"));
    }
    Ok(())
}

/// Runs [`check_effects`] in a new runtime.
fn effects_of(requests: &[(String, String)], bug: Option<PlantedBug>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(check_effects(requests, bug))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_rejected_write_changes_nothing(requests in request_sequences()) {
        effects_of(&requests, None).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn checker_reports_each_planted_bug_of_a_rejected_write() {
    for (bug, expected) in [
        (PlantedBug::StoresObject(Outcome::Rejected), "a rejected write changed the stored objects"),
        (PlantedBug::EmitsEvent(Outcome::Rejected), "a rejected write emitted an event"),
        (PlantedBug::StoresObject(Outcome::DryRun), "a dry run changed the stored objects"),
        (PlantedBug::EmitsEvent(Outcome::DryRun), "a dry run emitted an event"),
        (PlantedBug::EmitsEvent(Outcome::Accepted), "an accepted write emitted 2 events"),
    ] {
        let mut runner = TestRunner::deterministic();
        let sequences = request_sequences();
        let reported = (0..400).find_map(|_| {
            let requests = sequences.new_tree(&mut runner).unwrap().current();
            effects_of(&requests, Some(bug)).err()
        });
        let reported = reported.unwrap_or_else(|| "kept".to_owned());
        let expected = format!("Rejected without effect: {expected}: ");
        assert!(reported.starts_with(&expected), "the planted bug {bug:?} is reported as: {reported}");
    }
}

/// The acknowledged writes of one client.
#[derive(Default)]
struct Acknowledged {
    /// The revisions of creates and updates.
    revisions: BTreeSet<u64>,
    /// The number of deletions, whose responses contain no revision.
    deletions: usize,
}

/// An event that a watcher received.
#[derive(Clone)]
struct SeenEvent {
    name: String,
    revision: u64,
    is_deletion: bool,
}

/// The acknowledged writes of concurrent clients, the events of a watcher, and the revision of each stored object at
/// the end.
struct ConcurrentWrites {
    clients: Vec<Acknowledged>,
    events: Vec<SeenEvent>,
    stored: BTreeMap<String, u64>,
}

impl ConcurrentWrites {
    /// Checks that the events are exactly the acknowledged writes and lead to the stored objects.
    fn check(&self) -> Result<(), String> {
        let broken = |text: String| Err(format!("Rejected without effect: {text}"));
        let (mut written, mut deletions) = (BTreeSet::new(), 0);
        for client in &self.clients {
            for revision in &client.revisions {
                if !written.insert(*revision) {
                    return broken(format!("revision {revision} was acknowledged to two clients"));
                }
            }
            deletions += client.deletions;
        }
        let (mut seen, mut deleted, mut state) = (BTreeSet::new(), 0, BTreeMap::<String, u64>::new());
        for SeenEvent { name, revision, is_deletion } in &self.events {
            if *is_deletion {
                deleted += 1;
                if state.remove(name).is_none() {
                    return broken(format!("the event of revision {revision} deletes {name}, which is absent"));
                }
            } else {
                if !seen.insert(*revision) {
                    return broken(format!("the event of revision {revision} arrived twice"));
                }
                state.insert(name.clone(), *revision);
            }
        }
        if let Some(revision) = written.difference(&seen).next() {
            return broken(format!("the acknowledged write of revision {revision} has no event"));
        }
        if let Some(revision) = seen.difference(&written).next() {
            return broken(format!("the event of revision {revision} belongs to no acknowledged write"));
        }
        if deleted != deletions {
            return broken(format!("{deletions} deletions were acknowledged, and {deleted} arrived as events"));
        }
        if state != self.stored {
            return broken(format!("the events lead to {state:?}, but the store contains {:?}", self.stored));
        }
        Ok(())
    }
}

#[test]
fn checker_reports_each_planted_bug_of_concurrent_writes() {
    let event = |name: &str, revision, is_deletion| SeenEvent { name: name.to_owned(), revision, is_deletion };
    let correct = || ConcurrentWrites {
        clients: vec![
            Acknowledged { revisions: BTreeSet::from([3, 5]), deletions: 1 },
            Acknowledged { revisions: BTreeSet::from([4]), deletions: 0 },
        ],
        events: vec![event("a", 3, false), event("b", 4, false), event("a", 5, false), event("b", 6, true)],
        stored: BTreeMap::from([("a".to_owned(), 5)]),
    };
    assert_eq!(correct().check(), Ok(()));
    type Bug = (&'static str, fn(&mut ConcurrentWrites));
    let bugs: [Bug; 8] = [
        ("the acknowledged write of revision 3 has no event", |writes| drop(writes.events.remove(0))),
        ("1 deletions were acknowledged, and 0 arrived", |writes| drop(writes.events.pop())),
        ("the event of revision 5 arrived twice", |writes| writes.events.insert(3, writes.events[2].clone())),
        ("the event of revision 6 deletes b, which is absent", |writes| writes.events.push(writes.events[3].clone())),
        ("the event of revision 4 belongs to no acknowledged write", |writes| writes.clients[1].revisions.clear()),
        ("0 deletions were acknowledged, and 1 arrived", |writes| writes.clients[0].deletions = 0),
        ("revision 3 was acknowledged to two clients", |writes| writes.clients[1].revisions.extend([3])),
        ("the events lead to ", |writes| writes.stored.extend([("b".to_owned(), 4)])),
    ];
    for (expected, bug) in bugs {
        let mut writes = correct();
        bug(&mut writes);
        let reported = writes.check().err().unwrap_or_else(|| "kept".to_owned());
        let expected = format!("Rejected without effect: {expected}");
        assert!(reported.starts_with(&expected), "a bug against {expected:?} is reported as: {reported}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watcher_receives_exactly_the_acknowledged_writes_of_six_concurrent_writers() {
    const WRITERS: u64 = 6;
    const ROUNDS: u64 = 80;
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let world = Arc::new(World::new().await);
    let maps = world.writer.backend().registry().find("", "v1", "configmaps").unwrap().clone();
    let cacher = world.writer.backend().cacher(&maps);
    cacher.wait_ready().await.unwrap();
    let request = WatchRequest {
        from: WatchFrom::InitialEvents { at: ReadAt::Any, mark_end: false },
        bookmarks: false,
        timeout_seconds: None,
        labels: LabelSelector::default(),
        fields: FieldSelector::default(),
        shard: None,
    };
    let mut watcher = cacher.watch(&Scope::All, &request, Instant::now() + Duration::from_secs(600)).await.unwrap();

    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                let mut acknowledged = Acknowledged::default();
                for round in 0..ROUNDS {
                    // A deterministic pseudorandom sequence.
                    let dice = (writer * 7_919 + round * 104_729) % 997;
                    let name = NAMES[usize::try_from(dice % 3).unwrap()];
                    let value = format!("{writer}-{round}");
                    let (line, body) = match dice % 5 {
                        0 => (post(MAPS), format!(r#"{{"metadata":{{"name":"{name}"}},"data":{{"w":"{value}"}}}}"#)),
                        1 => (
                            patch(MAPS, name, JSON_PATCH),
                            format!(r#"[{{"op":"add","path":"/data","value":{{"j":"{value}"}}}}]"#),
                        ),
                        2 => (patch(MAPS, name, MERGE), format!(r#"{{"data":{{"m{writer}":"{value}"}}}}"#)),
                        3 => {
                            (put(MAPS, name), format!(r#"{{"metadata":{{"name":"{name}"}},"data":{{"u":"{value}"}}}}"#))
                        }
                        _ => (format!("DELETE {MAPS}/{name}"), String::new()),
                    };
                    match world.send(&line, &body).await {
                        Ok(WriteResponse { body: WriteBody::Object(object), .. }) => {
                            acknowledged.revisions.insert(object.revision().get());
                        }
                        Ok(_) => acknowledged.deletions += 1,
                        Err(status) => assert!(matches!(status.code, 404 | 409), "{line} {body}: {status:?}"),
                    }
                }
                acknowledged
            })
        })
        .collect();
    let mut clients = Vec::new();
    for writer in writers {
        clients.push(writer.await.unwrap());
    }
    // The watcher reads until the event of a last write, so that it also sees events that nobody acknowledged.
    let last = world.send(&post(MAPS), r#"{"metadata":{"name":"last"}}"#).await.unwrap();
    let WriteBody::Object(last) = last.body else { panic!("no object") };
    let last = last.revision().get();
    clients.push(Acknowledged { revisions: BTreeSet::from([last]), deletions: 0 });

    let mut events: Vec<SeenEvent> = Vec::new();
    while events.last().is_none_or(|event| event.revision < last) {
        let next = tokio::time::timeout(Duration::from_secs(20), watcher.next()).await;
        let Ok(Some(Delivery::Event(event))) = next else {
            let seen = events.last().map(|event| event.revision);
            panic!("Rejected without effect: no event arrived between {seen:?} and revision {last}")
        };
        let object = event.object();
        events.push(SeenEvent {
            name: object.name().to_owned(),
            revision: object.revision().get(),
            is_deletion: event.change() == Change::Deleted,
        });
    }
    let range = KeyRange::resource("configmaps");
    let page = world.writer.backend().storage().list(ListQuery { range, at: None, limit: 0 }).await.unwrap();
    let stored = page.items.iter().map(|item| (item.key.name().to_owned(), item.modified.get())).collect();
    let writes = ConcurrentWrites { clients, events, stored };
    writes.check().unwrap_or_else(|broken| panic!("{broken}"));
}
