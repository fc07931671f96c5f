//! Tests the driver ([`Reflection`]) with WatchList and with list, against a server with a known
//! history and faults at any time. The guarantees:
//!
//! - *complete*: the copy at a version is the server's state at that version at any time, even
//!   between initial events;
//! - *legal history*, *unique*: each change follows the previously reported state;
//! - *converging*: after the faults stop, the copy equals the server.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::fake::Fake;
use listwatch_client::{Change, Notice, Object, Problem, Reflection, ReflectorConfig, Snapshot};
use listwatch_meta::Status;
use proptest::prelude::*;

/// The number of object names.
const NAMES: u8 = 6;

type State = BTreeMap<String, u64>;

fn version(object: &Object) -> u64 {
    object.resource_version().parse().expect("our versions are numbers")
}

fn copy(snapshot: &Snapshot) -> State {
    snapshot.iter().map(|object| (object.key().to_string(), version(object))).collect()
}

struct World {
    server: Fake,
    reflection: Reflection<Fake>,
    /// The state of a reader that applies the changes.
    mirror: State,
    synced: bool,
}

impl World {
    fn new(watch_list: bool) -> Self {
        let server = Fake::new();
        let config = ReflectorConfig { watch_list, check_server: false, ..ReflectorConfig::default() };
        let reflection = Reflection::with_seed(server.clone(), config, 7);
        World { server, reflection, mirror: State::new(), synced: false }
    }

    fn state_at(&self, version: u64) -> State {
        let at = |key: String| self.server.version_at(&key, version).map(|at| (key, at));
        self.server.keys().into_iter().filter_map(at).collect()
    }

    /// Checks that the store is the server's state at the store's version.
    fn check_store(&self) {
        let snapshot = self.reflection.store().snapshot();
        if !snapshot.is_synced() {
            assert_eq!(snapshot.version(), "", "broke resumable: a version before there is a whole state");
            assert_eq!(copy(&snapshot), State::new(), "broke complete: a part of the initial state is shown");
            return;
        }
        let version = snapshot.version().parse().expect("our versions are numbers");
        assert_eq!(copy(&snapshot), self.state_at(version), "broke complete: the copy at version {version}");
    }

    fn handle(&mut self, notice: Notice) {
        match notice {
            Notice::Changes(changes) => {
                for change in &changes {
                    let key = change.key().to_string();
                    match change {
                        Change::Added { object, .. } => {
                            assert_eq!(self.mirror.insert(key, version(object)), None, "broke unique");
                        }
                        Change::Updated { old, new, .. } => {
                            assert_eq!(
                                self.mirror.insert(key, version(new)),
                                Some(version(old)),
                                "broke legal history"
                            );
                        }
                        Change::Deleted { .. } => {
                            assert!(self.mirror.remove(&key).is_some(), "broke unique: deleted twice");
                        }
                    }
                }
                assert_eq!(
                    self.mirror,
                    copy(self.reflection.notice_snapshot()),
                    "broke complete: the changes lead elsewhere"
                );
            }
            Notice::Synced => self.synced = true,
            Notice::Skipped { key, .. } | Notice::Quarantined { key, .. } => panic!("{key} is a good object"),
            Notice::State(_) | Notice::Problem(_) => {}
        }
    }

    /// Handles the notices that arrive within this time.
    async fn run(&mut self, time: Duration) {
        let until = tokio::time::Instant::now() + time;
        while let Ok(notice) = tokio::time::timeout_at(until, self.reflection.next()).await {
            self.handle(notice);
            self.check_store();
        }
        self.check_store();
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8),
    Delete(u8),
    /// The driver runs for this number of milliseconds.
    Run(u16),
    Cut,
    Expire,
    Freeze,
    Refuse(bool),
    Lag(u8),
    /// The reflection is suspended, as by a stopped informer.
    Suspend,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..NAMES).prop_map(Step::Put),
        4 => (0..NAMES).prop_map(Step::Delete),
        4 => (0_u16..70).prop_map(Step::Run),
        2 => (0_u16..3_000).prop_map(Step::Run),
        1 => Just(Step::Cut),
        2 => Just(Step::Expire),
        1 => Just(Step::Freeze),
        1 => any::<bool>().prop_map(Step::Refuse),
        1 => (0_u8..6).prop_map(Step::Lag),
        1 => Just(Step::Suspend),
    ]
}

async fn play(steps: Vec<Step>, watch_list: bool) {
    let mut world = World::new(watch_list);
    let key = |name: u8| format!("n{}/o{name}", name % 2);
    for step in steps {
        match step {
            Step::Put(name) => drop(world.server.put(&key(name))),
            Step::Delete(name) => world.server.delete(&key(name)),
            Step::Run(millis) => world.run(Duration::from_millis(millis.into())).await,
            Step::Cut => world.server.cut(),
            Step::Expire => world.server.expire(),
            Step::Freeze => world.server.freeze(),
            Step::Refuse(refuse) => {
                let busy = Problem::refused(Status::too_many_requests("busy", 1));
                world.server.refuse(refuse.then_some(busy));
            }
            Step::Lag(versions) => world.server.lag(versions.into()),
            Step::Suspend => world.reflection.suspend(),
        }
        world.check_store();
    }
    world.server.refuse(None);
    world.run(Duration::from_secs(1_000)).await;
    assert!(world.synced, "broke converging: never synced");
    assert_eq!(world.mirror, world.state_at(u64::MAX), "broke converging");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn copy_equals_the_servers_state_at_its_version(
        steps in prop::collection::vec(any_step(), 0..50),
        watch_list in prop::bool::weighted(0.8),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(play(steps, watch_list));
    }
}

#[tokio::test(start_paused = true)]
async fn initial_events_of_a_watch_list_become_the_copy_at_its_end_marker() {
    let mut world = World::new(true);
    for name in 0..NAMES {
        world.server.put(&format!("n/o{name}"));
    }
    // The first batch of initial events has arrived, but not the end marker.
    world.run(Duration::from_millis(10)).await;
    assert!(!world.synced && world.reflection.store().snapshot().is_empty(), "broke complete: synced too early");
    world.run(Duration::from_secs(1)).await;
    assert!(world.synced, "broke converging: the end marker was not understood");
    assert_eq!(world.mirror.len(), usize::from(NAMES), "broke complete: initial events were lost");
    assert_eq!(world.reflection.store().snapshot().version(), "6");
    assert_eq!(world.server.whole_states(), 1, "the state was listed as well");
}

#[tokio::test(start_paused = true)]
async fn deletion_among_initial_events_removes_the_object() {
    let mut world = World::new(true);
    for name in ["a", "b", "c"] {
        world.server.put(&format!("n/{name}"));
    }
    world.server.put("n/b");
    world.server.delete("n/a");
    // The watch cache lags: the server sends a, b and c, then the update, the deletion, and the
    // marker.
    world.server.lag(2);
    world.run(Duration::from_secs(1)).await;
    let expected = State::from([("n/b".to_owned(), 4), ("n/c".to_owned(), 3)]);
    assert_eq!(world.mirror, expected, "broke complete: deletions before the end marker are reported");
    assert_eq!(copy(&world.reflection.store().snapshot()), expected);
}

#[tokio::test(start_paused = true)]
async fn version_does_not_move_before_the_end_marker_of_a_second_watch_list() {
    let mut world = World::new(true);
    for name in 0..NAMES {
        world.server.put(&format!("n/o{name}"));
    }
    world.run(Duration::from_secs(1)).await;
    assert_eq!(world.reflection.store().snapshot().version(), "6");
    // The version is expired, so the complete state arrives again, in batches.
    world.server.refuse(Some(Problem::disconnected("away")));
    world.server.expire();
    for name in 0..NAMES {
        world.server.put(&format!("n/o{name}"));
    }
    world.run(Duration::from_secs(1)).await;
    world.server.expire();
    world.server.refuse(None);
    let mut seen = Vec::new();
    for _ in 0..10_000 {
        world.run(Duration::from_millis(5)).await;
        let snapshot = world.reflection.store().snapshot();
        assert_eq!(snapshot.version(), world.reflection.reflector().version(), "two versions for one state");
        if seen.last().is_none_or(|last| *last != snapshot.version()) {
            seen.push(snapshot.version().to_owned());
        }
        if snapshot.version() == "12" {
            break;
        }
    }
    assert_eq!(seen, ["6", "12"], "broke resumable: the version moved before the end marker");
}

/// etcd removes the keys of an expired lease at one revision.
#[tokio::test(start_paused = true)]
async fn deletions_of_one_version_survive_a_cut_between_them() {
    let mut world = World::new(true);
    let keys = ["n/a", "n/b", "n/c", "n/d"];
    for key in keys {
        world.server.put(key);
    }
    world.run(Duration::from_secs(1)).await;
    let before = world.server.watches();
    world.server.cut_within(1);
    world.server.cut_within(3);
    world.server.delete_together(&keys);
    let until = tokio::time::Instant::now() + Duration::from_secs(10);
    let mut deleted = 0;
    while let Ok(notice) = tokio::time::timeout_at(until, world.reflection.next()).await {
        deleted += if let Notice::Changes(changes) = &notice { changes.len() } else { 0 };
        world.handle(notice);
    }
    assert_eq!(world.mirror, State::new(), "broke complete: deletions of the version after the cut were lost");
    assert_eq!(deleted, 4, "broke unique: a deletion was reported again");
    assert_eq!(world.server.watches() - before, 2, "each cut is followed by one watch");
    assert_eq!(world.server.whole_states(), 1, "the state was read again");
    world.check_store();
}
