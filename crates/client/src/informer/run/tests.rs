//! Tests of the worker with a scripted part, for cases that [`Reflection`] does not produce.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::indexer::Origin;
use crate::informer::Event;
use crate::informer::handler::HandlerOptions;
use crate::informer::slot::{Slot, Timer};
use crate::informer::view::Policy;
use crate::list_watch::{ListStream, WatchStream};
use crate::object::RawObject;
use crate::reflector::ReflectorConfig;
use crate::stored::Typed;
use listwatch_meta::ListOptions;

type Item = Typed<u64>;

fn item(name: &str, version: u64) -> Item {
    item_of(name, name, version)
}

fn item_of(name: &str, uid: &str, version: u64) -> Item {
    let json = format!(r#"{{"metadata":{{"name":"{name}","uid":"{uid}","resourceVersion":"{version}"}}}}"#);
    Typed::new(&RawObject::new(Bytes::from(json)).unwrap(), version)
}

fn added(name: &str, version: u64, origin: Origin) -> Change<Item> {
    Change::Added { object: item(name, version), origin }
}

/// A server that never answers.
struct UnresponsiveServer;

#[async_trait]
impl ListWatch for UnresponsiveServer {
    async fn list(&self, _: ListOptions) -> Result<ListStream, Problem> {
        std::future::pending().await
    }

    async fn watch(&self, _: ListOptions) -> Result<WatchStream, Problem> {
        std::future::pending().await
    }
}

/// The pause between two notices, in which the handler takes the events of the first one.
const BETWEEN_NOTICES: Duration = Duration::from_secs(1);

/// A part that returns the given notices and then waits forever.
struct Script {
    notices: VecDeque<Notice<Item>>,
    indexer: Indexer<Item>,
    health: Health,
    /// The time between a published change and its notice. The version of such a script is that of its last object.
    late: Option<Duration>,
    /// The version of a bookmark after the last notice.
    bookmark: Option<u64>,
}

impl Script {
    fn new(notices: impl IntoIterator<Item = Notice<Item>>) -> Self {
        let health = Reflection::with_seed(UnresponsiveServer, ReflectorConfig::default(), 1).health();
        Script { notices: notices.into_iter().collect(), indexer: Indexer::new(), health, late: None, bookmark: None }
    }
}

#[async_trait]
impl Source<Item> for Script {
    async fn next(&mut self) -> Notice<Item> {
        tokio::time::sleep(BETWEEN_NOTICES).await;
        let Some(notice) = self.notices.pop_front() else {
            if let Some(version) = self.bookmark {
                self.indexer.apply(Delta::Version(version.to_string()), &mut Vec::new());
                self.indexer.publish();
            }
            return std::future::pending().await;
        };
        if let Notice::Changes(changes) = &notice {
            for change in changes {
                let delta = match change.clone() {
                    Change::Added { object: new, .. } | Change::Updated { new, .. } => Delta::Upsert(new),
                    Change::Deleted { last, .. } => Delta::Delete { key: last.key().clone(), last: Some(last) },
                };
                if let (Delta::Upsert(new), Some(_)) = (&delta, self.late) {
                    self.indexer.apply(Delta::Version(new.to_string()), &mut Vec::new());
                }
                self.indexer.apply(delta, &mut Vec::new());
            }
            self.indexer.publish();
            tokio::time::sleep(self.late.unwrap_or_default()).await;
        }
        notice
    }

    fn notice_snapshot(&self) -> Arc<Snapshot<Item>> {
        self.indexer.reader().snapshot()
    }

    fn store(&self) -> Store<Item> {
        self.indexer.reader()
    }

    fn health(&self) -> Health {
        self.health.clone()
    }

    fn indexer(&mut self) -> &mut Indexer<Item> {
        &mut self.indexer
    }

    fn suspend(&mut self) -> Vec<NoticeWithState<Item>> {
        Vec::new()
    }
}

async fn next(slot: &Slot<Item>) -> String {
    let mut timer = Timer::default();
    let event = std::future::poll_fn(|context| slot.poll_take(context, &mut timer));
    match tokio::time::timeout(Duration::from_secs(60), event).await {
        Ok(Some(Event::Added { object, reason })) => format!("+{}@{} {reason:?}", object.key(), *object),
        Ok(Some(Event::Updated { old, new, reason })) => format!("{}@{}>{} {reason:?}", new.key(), *old, *new),
        Ok(Some(Event::Deleted { last, reason, .. })) => format!("-{}@{} {reason:?}", last.key(), *last),
        Ok(Some(Event::Synced)) => "synced".to_owned(),
        Ok(Some(other)) => format!("{other:?}"),
        Ok(None) => "over".to_owned(),
        Err(_) => "nothing".to_owned(),
    }
}

/// The objects of a test: a handler, the commands, and the state shared with handles.
type Started = (Arc<Slot<Item>>, CommandSender<Item>, Arc<Shared<Item>>);

/// A merged informer over one part, and a handler with room for one change.
fn start(notices: Vec<Notice<Item>>) -> Started {
    let policy = Policy::Block { changes_max: 1, timeout: Duration::from_secs(3_600) };
    start_parts(PartKind::Namespaces, policy, [("part", notices)])
}

/// A merged informer over these parts, and a handler. A part that is added again has no notices.
fn start_parts<const N: usize>(kind: PartKind, policy: Policy, parts: [(&str, Vec<Notice<Item>>); N]) -> Started {
    let shared = Arc::new(Shared::new("things".to_owned()));
    let parts = parts.map(|(name, notices)| (name.to_owned(), notices));
    let names = parts.clone().map(|(name, _)| name);
    let scripts = Mutex::new(BTreeMap::from(parts));
    let make: MakeSource<Item> = Box::new(move |name| {
        let notices = scripts.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        Box::new(Script::new(notices.unwrap_or_default()))
    });
    let worker = Worker::merged(kind, names, make, Indexer::new(), &shared);
    let options = HandlerOptions::named("each").policy(policy);
    let slot = Arc::new(Slot::new(&options.name, options.policy, options.resync));
    shared.hub.add(slot.clone());
    let commands = worker.spawn(shared.clone());
    (slot, commands, shared)
}

/// One notice with changes of two reasons, which are two batches. The handler has room for neither.
fn two_batches() -> Vec<Notice<Item>> {
    let update = Change::Updated { old: item("x", 1), new: item("x", 3), origin: Origin::Relist };
    let changes = vec![added("x", 1, Origin::Live), added("y", 2, Origin::Live), update, added("z", 4, Origin::Relist)];
    vec![Notice::Synced, Notice::Changes(changes)]
}

#[tokio::test(start_paused = true)]
async fn second_batch_is_pushed_when_a_blocking_handler_has_all_of_the_first() {
    let (slot, _commands, _shared) = start(two_batches());
    let mut snapshot = Vec::new();
    for _ in 0..5 {
        snapshot.push(next(&slot).await);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let expected = ["synced", "+x@1 Live", "+y@2 Live", "x@1>3 Relist", "+z@4 Relist"];
    assert_eq!(snapshot, expected, "broke every change: two batches got in each other's way");
}

#[tokio::test(start_paused = true)]
async fn stop_between_two_batches_loses_neither() {
    let (slot, commands, shared) = start(two_batches());
    assert_eq!(next(&slot).await, "synced");
    // The task waits with the first batch.
    tokio::time::sleep(BETWEEN_NOTICES * 3).await;
    commands.stop.try_send(()).unwrap();
    let mut condition = shared.condition.subscribe();
    condition.wait_for(|condition| matches!(condition.phase, Phase::Stopped(_))).await.unwrap();
    let mut knows = BTreeMap::new();
    loop {
        match next(&slot).await {
            event if event.starts_with("Stopped") => break,
            event => {
                let (name, version) = event.trim_start_matches('+').split_once('@').expect(&event);
                let version = version.split(' ').next().unwrap_or_default();
                let version = version.rsplit('>').next().unwrap_or_default();
                knows.insert(name.to_owned(), version.to_owned());
            }
        }
    }
    let expected = [("x", "3"), ("y", "2"), ("z", "4")].map(|(name, version)| (name.to_owned(), version.to_owned()));
    assert_eq!(knows, BTreeMap::from(expected), "broke converging: a batch was dropped by the stop");
}

#[test]
fn changes_are_split_where_their_reason_changes() {
    let origins = [Origin::Live, Origin::Live, Origin::Relist, Origin::Live, Origin::Initial, Origin::Initial];
    let batches = split_by_origin(origins.map(|origin| added("x", 1, origin)).to_vec());
    let batches: Vec<Vec<Origin>> = batches.iter().map(|batch| batch.iter().map(Change::origin).collect()).collect();
    let (live, relist, initial) = (Origin::Live, Origin::Relist, Origin::Initial);
    assert_eq!(batches, [vec![live, live], vec![relist], vec![live], vec![initial, initial]]);
}

#[tokio::test(start_paused = true)]
async fn commands_are_deferred_up_to_their_bound_while_a_handler_blocks() {
    let (slot, commands, _shared) = start(two_batches());
    assert_eq!(next(&slot).await, "synced");
    // The task waits with the first batch.
    tokio::time::sleep(BETWEEN_NOTICES * 3).await;
    let executed = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut accepted = 0;
    loop {
        let executed = executed.clone();
        let count = Box::new(move |_: &mut Indexer<Item>| {
            executed.fetch_add(1, Ordering::Relaxed);
        });
        if commands.queue.try_send(Command::WithIndexer(count)).is_err() {
            break;
        }
        accepted += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(accepted, 2 * COMMANDS_MAX, "the worker and its channel hold a bounded number of commands each");
    assert_eq!(executed.load(Ordering::Relaxed), 0, "a command was executed in the middle of a batch");
    while next(&slot).await != "nothing" {}
    assert_eq!(executed.load(Ordering::Relaxed), accepted, "a deferred command was lost");
}

#[tokio::test(start_paused = true)]
async fn commands_that_wait_at_a_stop_are_executed() {
    let (slot, commands, shared) = start(two_batches());
    assert_eq!(next(&slot).await, "synced");
    // The task waits with the first batch.
    tokio::time::sleep(BETWEEN_NOTICES * 3).await;
    let executed = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = || {
        let executed = executed.clone();
        Command::WithIndexer(Box::new(move |_: &mut Indexer<Item>| {
            executed.fetch_add(1, Ordering::Relaxed);
        }))
    };
    let ((done, added), (done_again, removed)) = (oneshot::channel(), oneshot::channel());
    // The worker defers some commands, and the others are in its channel.
    for _ in 0..COMMANDS_MAX {
        assert!(commands.queue.try_send(count()).is_ok());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(commands.queue.try_send(Command::AddPart { name: "other".to_owned(), done }).is_ok());
    assert!(commands.queue.try_send(Command::RemovePart { name: "part".to_owned(), done: done_again }).is_ok());
    assert!(commands.queue.try_send(count()).is_ok());
    commands.stop.try_send(()).unwrap();
    let mut condition = shared.condition.subscribe();
    condition.wait_for(|condition| matches!(condition.phase, Phase::Stopped(_))).await.unwrap();
    assert_eq!((added.await, removed.await), (Ok(true), Ok(true)), "a command is reported as failed by a stop");
    assert_eq!(executed.load(Ordering::Relaxed), COMMANDS_MAX + 1, "a command was dropped by the stop");
    let parts: Vec<String> = shared.part_statuses().into_iter().map(|part| part.name).collect();
    assert_eq!(parts, ["other"]);
    assert!(commands.queue.try_send(count()).is_err(), "a command after the stop waits forever");
}

#[tokio::test(start_paused = true)]
async fn message_of_a_removed_part_is_not_taken_for_one_of_its_successor() {
    let changes = vec![added("x", 1, Origin::Live), added("y", 2, Origin::Live)];
    let late = vec![added("z", 3, Origin::Live)];
    let (slot, commands, _shared) = start(vec![Notice::Synced, Notice::Changes(changes), Notice::Changes(late)]);
    assert_eq!(next(&slot).await, "synced");
    // The worker waits with the first changes, and the late ones are in its channel.
    tokio::time::sleep(BETWEEN_NOTICES * 4).await;
    let name = || "part".to_owned();
    let ((done, removed), (done_again, added)) = (oneshot::channel(), oneshot::channel());
    assert!(commands.queue.try_send(Command::RemovePart { name: name(), done }).is_ok());
    assert!(commands.queue.try_send(Command::AddPart { name: name(), done: done_again }).is_ok());
    let mut received = Vec::new();
    while received.last().is_none_or(|last| last != "nothing") {
        received.push(next(&slot).await);
    }
    assert_eq!((removed.await, added.await), (Ok(true), Ok(true)));
    assert!(received[0].starts_with("+x@1"), "this test needs a worker that waited: {received:?}");
    assert!(!received.iter().any(|event| event.contains('z')), "a removed part still reports: {received:?}");
}

#[tokio::test(start_paused = true)]
async fn recreated_object_that_changes_its_shard_never_shows_an_older_version() {
    let deleted = |last: Item, last_is_final, origin| Change::Deleted { last, last_is_final, origin };
    let added = |uid: &str, version| Change::Added { object: item_of("o", uid, version), origin: Origin::Live };
    // One notice per second and shard.
    type Step = (Option<Change<Item>>, Option<Change<Item>>);
    let steps: [Step; 7] = [
        (Some(added("2", 9)), None),
        // An older object of the name is not shown.
        (None, Some(added("1", 5))),
        // A relist does not find the shown object: the server was restored.
        (Some(deleted(item_of("o", "2", 9), false, Origin::Relist)), None),
        (Some(added("3", 12)), None),
        (Some(deleted(item_of("o", "3", 14), true, Origin::Live)), None),
        // The other shard lags.
        (None, Some(Change::Updated { old: item_of("o", "1", 5), new: item_of("o", "1", 6), origin: Origin::Live })),
        (None, Some(deleted(item_of("o", "1", 8), true, Origin::Live))),
    ];
    let notice = |change: Option<Change<Item>>| match change {
        Some(change) => Notice::Changes(vec![change]),
        None => Notice::State(ReflectorState::Starting),
    };
    let (first, second): (Vec<_>, Vec<_>) =
        steps.into_iter().map(|(first, second)| (notice(first), notice(second))).unzip();
    let whole = |notices| [vec![Notice::Synced], notices].concat();
    let parts = [("p", whole(first)), ("q", whole(second))];
    let (slot, _commands, _shared) = start_parts(PartKind::Shards, Policy::Coalesce, parts);
    let expected = ["synced", "+o@9 Live", "-o@9 Relist", "+o@5 Relist", "-o@5 Live", "+o@12 Live", "-o@14 Live"];
    for event in expected {
        assert_eq!(next(&slot).await, event);
    }
    assert_eq!(next(&slot).await, "nothing", "an object that was deleted later came back");
}

#[tokio::test(start_paused = true)]
async fn merged_state_never_claims_the_version_of_an_object_that_it_lacks() {
    const BOOKMARK: u64 = 12;

    let shared = Arc::new(Shared::new("things".to_owned()));
    let notices = [1, 5, 9].map(|version| Notice::Changes(vec![added(&format!("o{version}"), version, Origin::Live)]));
    let make: MakeSource<Item> = Box::new(move |_| {
        let notices = std::iter::once(Notice::Synced).chain(notices.clone());
        Box::new(Script { late: Some(10 * MERGED_VERSION_TICK), bookmark: Some(BOOKMARK), ..Script::new(notices) })
    });
    let indexer = Indexer::new();
    let store = indexer.reader();
    let _commands =
        Worker::merged(PartKind::Namespaces, ["part".to_owned()], make, indexer, &shared).spawn(shared.clone());
    let mut seen = Vec::new();
    for _ in 0..60 {
        tokio::time::sleep(MERGED_VERSION_TICK).await;
        let snapshot = store.snapshot();
        let claimed = snapshot.version().parse::<u64>().unwrap_or_default();
        let newest = snapshot.iter().map(|object| **object).max().unwrap_or_default();
        let has_all = claimed <= newest || (claimed, newest) == (BOOKMARK, 9);
        assert!(has_all, "the merged state claims version {claimed}, and its newest object is {newest}");
        seen.push(claimed);
    }
    seen.dedup();
    assert_eq!(seen, [0, 1, 5, 9, BOOKMARK], "the version follows the objects and the bookmark");
}
