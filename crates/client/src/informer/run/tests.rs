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
    let json = format!(r#"{{"metadata":{{"name":"{name}","uid":"{name}","resourceVersion":"{version}"}}}}"#);
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
}

impl Script {
    fn new(notices: impl IntoIterator<Item = Notice<Item>>) -> Self {
        let health = Reflection::with_seed(UnresponsiveServer, ReflectorConfig::default(), 1).health();
        Script { notices: notices.into_iter().collect(), indexer: Indexer::new(), health }
    }
}

#[async_trait]
impl Source<Item> for Script {
    async fn next(&mut self) -> Notice<Item> {
        tokio::time::sleep(BETWEEN_NOTICES).await;
        match self.notices.pop_front() {
            Some(notice) => notice,
            None => std::future::pending().await,
        }
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
    let shared = Arc::new(Shared::new("things".to_owned()));
    let script = Mutex::new(Some(Script::new(notices)));
    let make: MakeSource<Item> = Box::new(move |_| {
        let script = script.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::new(script.unwrap_or_else(|| Script::new([])))
    });
    let worker = Worker::merged(PartKind::Namespaces, ["part".to_owned()], make, Indexer::new(), &shared);
    let policy = Policy::Block { changes_max: 1, timeout: Duration::from_secs(3_600) };
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
