//! Tests views of handlers against a model. Objects are written, and handlers stall, join late, are
//! reset, resynced or removed, and reach the informer's timeout, in any order. The guarantees:
//!
//! - *legal history*: an object is added before it is updated or deleted. An update's `old` is the
//!   state that the handler saw last. No older state follows a newer one. A name with another uid
//!   is deleted and added;
//! - *converging*: a handler that has taken all events has the current state;
//! - *every change*: a blocking handler within its timeout receives every change;
//! - *synced*: `Synced` follows each complete initial state once;
//! - *bounded*: the waiting events are bounded by the policy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use listwatch_client::informer::{Event, Policy, Reason, StopReason, View};
use listwatch_client::{Change, Delta, Indexer, ObjectKey, Origin, RawObject, Snapshot, Stored, Typed};
use proptest::prelude::*;

type Item = Typed<u64>;

/// The number of names.
const NAMES: u8 = 7;

const PERIOD: Duration = Duration::from_secs(10);

fn item(name: u8, uid: u64, version: u64) -> Item {
    let json = format!(r#"{{"metadata":{{"name":"o{name}","uid":"{uid}","resourceVersion":"{version}"}}}}"#);
    Typed::new(&RawObject::new(Bytes::from(json)).expect("valid JSON"), version)
}

/// A handler that applies its events and checks that they are a legal history.
struct Handler {
    view: View<Item>,
    policy: Policy,
    knows: BTreeMap<ObjectKey, Item>,
    newest: BTreeMap<ObjectKey, u64>,
    /// The changes of a batch that a blocking handler has not taken.
    rest: Vec<Change<Item>>,
    /// The versions that must be delivered, in order.
    owed: Vec<u64>,
    received: Vec<u64>,
    /// False once the informer has stopped waiting for this handler.
    patient: bool,
    began: bool,
    ended_initial: bool,
    /// Whether `Synced` is expected, initially or after a reset.
    unsynced: bool,
    resyncs: u64,
}

impl Handler {
    fn new(policy: Policy, resync: Option<Duration>) -> Self {
        Handler {
            view: View::new(policy, resync),
            policy,
            knows: BTreeMap::new(),
            newest: BTreeMap::new(),
            rest: Vec::new(),
            owed: Vec::new(),
            received: Vec::new(),
            patient: true,
            began: false,
            ended_initial: false,
            unsynced: true,
            resyncs: 0,
        }
    }

    /// Takes one event. Returns false if there is none.
    fn take(&mut self, now: Instant) -> bool {
        let Some(event) = self.view.take(now) else { return false };
        let reason = event.reason();
        match event {
            Event::Added { object, .. } => {
                self.check_version(&object);
                if reason == Some(Reason::Live) {
                    self.received.push(*object);
                }
                let before = self.knows.insert(object.key().clone(), object);
                assert!(before.is_none(), "broke legal history: {before:?} was added twice");
            }
            Event::Updated { old, new, .. } => {
                self.check_version(&new);
                let before = self.knows.insert(new.key().clone(), new.clone());
                assert!(
                    before.as_ref().is_some_and(|before| before.is_same(&old)),
                    "broke legal history: {new:?} follows {old:?}, but the handler saw {before:?}"
                );
                assert_eq!(old.uid(), new.uid(), "broke legal history: another object came without a deletion");
                if reason == Some(Reason::Resync) {
                    assert!(old.is_same(&new), "broke legal history: a resync brought news");
                    self.resyncs += 1;
                } else {
                    assert_ne!(*old, *new, "broke legal history: an update without a change");
                    self.received.push(*new);
                }
            }
            Event::Deleted { last, .. } => {
                let before = self.knows.remove(last.key());
                assert!(
                    before.as_ref().is_some_and(|before| before.uid() == last.uid()),
                    "broke legal history: {last:?} was deleted, and the handler saw {before:?}"
                );
                self.received.push(*last);
            }
            Event::Synced => {
                assert!(self.ended_initial, "broke synced when it is: the beginning was not whole");
                assert!(std::mem::take(&mut self.unsynced), "broke synced: received twice");
            }
            Event::Reset => {
                assert!(matches!(self.policy, Policy::DropAndResync { .. }), "a reset under {:?}", self.policy);
                self.unsynced = true;
                self.knows.clear();
            }
            Event::Quarantined { .. } | Event::Stopped(_) => panic!("nothing of the kind happened"),
        }
        true
    }

    fn check_version(&mut self, object: &Item) {
        let newest = self.newest.entry(object.key().clone()).or_default();
        assert!(**object >= *newest, "broke legal history: {object:?} came after @{newest}");
        *newest = **object;
    }

    fn push(&mut self, now: Instant, changes: &[Change<Item>], state: &Arc<Snapshot<Item>>) {
        if !self.began {
            return;
        }
        // After the replay a blocking handler must receive every change.
        if matches!(self.policy, Policy::Block { .. }) && !self.view.lag(now).replaying {
            self.owed.extend(changes.iter().map(|change| **change.object()));
        }
        let taken = self.view.begin_parts(now, changes, None, state.clone());
        self.rest = changes[taken..].to_vec();
        if self.rest.is_empty() {
            self.view.end_parts();
        }
    }

    /// Pushes the rest of a batch while the informer waits for this handler. Without `patient`, the
    /// wait has reached its timeout.
    fn push_rest(&mut self, now: Instant, patient: bool) {
        while !self.rest.is_empty() {
            if !self.view.has_room() {
                if patient && self.take(now) {
                    continue;
                }
                self.patient = false;
                self.view.stop_blocking();
            }
            let taken = self.view.push_part(now, &self.rest, None);
            assert!(taken > 0, "there was room for nothing");
            self.rest.drain(..taken);
        }
        self.view.end_parts();
    }

    fn check_bound(&self, now: Instant) {
        let waiting = self.view.lag(now).waiting;
        let bound = match self.policy {
            Policy::Coalesce => usize::from(NAMES),
            Policy::Block { changes_max, .. } => changes_max + usize::from(NAMES),
            Policy::DropAndResync { objects_max } => objects_max,
        };
        assert!(waiting <= bound, "broke bounded: {waiting} changes wait under {:?}", self.policy);
    }
}

struct World {
    now: Instant,
    indexer: Indexer<Item>,
    version: u64,
    handlers: Vec<Handler>,
    /// Whether the initial state is complete; a new handler then receives `Synced`.
    whole: bool,
}

#[derive(Clone, Debug)]
enum Step {
    /// A batch of writes: names with operations.
    Write(Vec<(u8, u8)>),
    /// A handler takes some events.
    Take(u8, u8),
    Join(Policy, bool),
    /// The initial state becomes complete.
    Whole,
    Time(u16),
    Remove(u8),
    /// Whether the informer waits for blocking handlers from now on.
    Wait(bool),
}

impl World {
    fn write(&mut self, writes: &[(u8, u8)]) -> Vec<Change<Item>> {
        let mut changes = Vec::new();
        for (name, operation) in writes {
            self.version += 1;
            let key = ObjectKey::new("", &format!("o{name}"));
            let old = self.indexer.current().get(key.as_str()).cloned();
            let delta = match (old, operation % 4) {
                (None, _) => Delta::Upsert(item(*name, self.version, self.version)),
                (Some(old), 0) => {
                    let uid = old.uid().parse().expect("ours");
                    Delta::Delete { key, last: Some(item(*name, uid, self.version)) }
                }
                // A gap: the deletion was not observed.
                (Some(_), 1) => Delta::Upsert(item(*name, self.version, self.version)),
                (Some(old), _) => Delta::Upsert(item(*name, old.uid().parse().expect("ours"), self.version)),
            };
            self.indexer.apply(delta, &mut changes);
        }
        self.indexer.apply(Delta::Version(self.version.to_string()), &mut changes);
        self.indexer.publish();
        changes
    }

    fn join(&mut self, policy: Policy, resync: bool) {
        let mut handler = Handler::new(policy, resync.then_some(PERIOD));
        handler.began = true;
        handler.ended_initial = self.whole;
        handler.view.begin(self.now, self.indexer.reader().snapshot());
        if self.whole {
            handler.view.end_initial();
        }
        self.handlers.push(handler);
    }

    fn run(&mut self, steps: &[Step]) {
        let mut wait = true;
        for step in steps {
            match step {
                Step::Write(writes) => {
                    for handler in &mut self.handlers {
                        handler.push_rest(self.now, wait);
                    }
                    let changes = self.write(writes);
                    let state = self.indexer.reader().snapshot();
                    for handler in &mut self.handlers {
                        handler.push(self.now, &changes, &state);
                    }
                }
                Step::Take(handler, events) => {
                    let count = self.handlers.len();
                    if let Some(handler) = self.handlers.get_mut(usize::from(*handler) % count.max(1)) {
                        for _ in 0..*events {
                            handler.take(self.now);
                        }
                    }
                }
                Step::Join(policy, resync) => self.join(*policy, *resync),
                Step::Whole => {
                    self.whole = true;
                    for handler in &mut self.handlers {
                        handler.ended_initial = true;
                        handler.view.end_initial();
                    }
                }
                Step::Time(millis) => self.now += Duration::from_millis(u64::from(*millis)),
                Step::Remove(handler) => {
                    if !self.handlers.is_empty() {
                        let at = usize::from(*handler) % self.handlers.len();
                        let mut handler = self.handlers.remove(at);
                        handler.push_rest(self.now, true);
                        handler.view.close(true);
                        let mut events = 0;
                        while handler.take(self.now) {
                            events += 1;
                            assert!(events < 10_000, "a removed handler receives events for ever");
                        }
                        assert!(handler.view.is_over(), "a removed handler took everything and is not over");
                    }
                }
                Step::Wait(patient) => wait = *patient,
            }
            for handler in &self.handlers {
                handler.check_bound(self.now);
            }
        }
    }

    /// Lets all handlers take all events, and compares them with the current state.
    fn settle(&mut self) {
        if !self.whole {
            self.run(&[Step::Whole]);
        }
        let state = self.indexer.reader().snapshot();
        for handler in &mut self.handlers {
            handler.push_rest(self.now, true);
            let mut events = 0;
            while handler.take(self.now) {
                events += 1;
                assert!(events < 10_000, "a handler receives events for ever although nothing changes");
            }
            let knows: Vec<_> = handler.knows.values().map(|object| (object.key().clone(), **object)).collect();
            let there: Vec<_> = state.iter().map(|object| (object.key().clone(), **object)).collect();
            assert_eq!(knows, there, "broke converging under {:?}", handler.policy);
            assert!(!handler.unsynced, "broke synced: not received");
            assert!(handler.view.has_synced());
            assert!(handler.view.is_idle(), "everything was taken, and something is left");
            let lag = handler.view.lag(self.now);
            assert_eq!((lag.waiting, lag.versions, lag.age), (0, Some(0), Duration::ZERO), "current, and behind");
            if matches!(handler.policy, Policy::Block { .. }) && handler.patient {
                let received: Vec<u64> =
                    handler.received.iter().rev().take(handler.owed.len()).rev().copied().collect();
                assert_eq!(received, handler.owed, "broke every change");
            }
        }
    }
}

fn any_policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::Coalesce),
        (1_usize..5).prop_map(|changes_max| Policy::Block { changes_max, timeout: Duration::from_secs(1) }),
        (1_usize..5).prop_map(|objects_max| Policy::DropAndResync { objects_max }),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => prop::collection::vec((0..NAMES, any::<u8>()), 1..6).prop_map(Step::Write),
        8 => (any::<u8>(), 1_u8..12).prop_map(|(handler, events)| Step::Take(handler, events)),
        2 => (any_policy(), any::<bool>()).prop_map(|(policy, resync)| Step::Join(policy, resync)),
        1 => Just(Step::Whole),
        3 => (0_u16..8_000).prop_map(Step::Time),
        1 => any::<u8>().prop_map(Step::Remove),
        1 => any::<bool>().prop_map(Step::Wait),
    ]
}

fn world() -> World {
    World { now: Instant::now(), indexer: Indexer::new(), version: 0, handlers: Vec::new(), whole: false }
}

proptest! {
    #[test]
    fn every_handler_sees_a_legal_history_for_any_sequence_of_steps(steps in prop::collection::vec(any_step(), 0..120)) {
        let mut world = world();
        world.join(Policy::Coalesce, true);
        world.run(&steps);
        world.settle();
    }
}

/// Shows that the checker can fail: a view that misses a change must be detected.
#[test]
#[should_panic(expected = "broke")]
fn checker_detects_a_lost_change() {
    let mut world = world();
    world.join(Policy::Coalesce, false);
    world.run(&[Step::Whole, Step::Write(vec![(0, 2)]), Step::Take(0, 5)]);
    let changes = world.write(&[(0, 2), (1, 2)]);
    let state = world.indexer.reader().snapshot();
    world.handlers[0].push(world.now, &changes[1..], &state);
    world.settle();
}

#[test]
fn changes_of_one_object_coalesce_into_one_event() {
    // Writes before the handler takes an event, writes before it takes more, and the expected
    // events.
    fn check(before: &[(u8, u8)], meanwhile: &[(u8, u8)], expected: &[&str]) {
        let mut world = world();
        world.write(before);
        world.join(Policy::Coalesce, false);
        world.run(&[Step::Whole, Step::Take(0, 50)]);
        for write in meanwhile {
            world.run(&[Step::Write(vec![*write])]);
        }
        let view = &mut world.handlers[0].view;
        let received = std::iter::from_fn(|| view.take(world.now)).map(|event| match event {
            Event::Added { object, .. } => format!("+{object:?}"),
            Event::Updated { old, new, .. } => format!("{old:?}>{}", *new),
            Event::Deleted { last, .. } => format!("-{last:?}"),
            other => format!("{other:?}"),
        });
        assert_eq!(received.collect::<Vec<_>>(), expected, "{before:?} then {meanwhile:?}");
    }
    const DELETE: u8 = 0;
    const REPLACE: u8 = 1;
    const UPDATE: u8 = 2;
    check(&[], &[(0, UPDATE), (0, UPDATE), (0, UPDATE)], &["+o0@3"]);
    check(&[], &[(0, UPDATE), (0, UPDATE), (0, DELETE)], &[]);
    check(&[(0, UPDATE)], &[(0, UPDATE), (0, UPDATE)], &["o0@1>3"]);
    check(&[(0, UPDATE)], &[(0, UPDATE), (0, DELETE)], &["-o0@3"]);
    check(&[(0, UPDATE)], &[(0, REPLACE)], &["-o0@1", "+o0@2"]);
    check(&[(0, UPDATE)], &[(0, UPDATE), (0, REPLACE), (0, UPDATE)], &["-o0@2", "+o0@4"]);
    check(&[(0, UPDATE)], &[(0, REPLACE), (0, DELETE)], &["-o0@1"]);
    check(&[(0, UPDATE)], &[(0, DELETE), (0, UPDATE), (0, DELETE), (0, UPDATE)], &["-o0@2", "+o0@5"]);
    // An object keeps the position of its first change.
    check(&[], &[(1, UPDATE), (0, UPDATE), (1, UPDATE), (1, UPDATE)], &["+o1@4", "+o0@2"]);
}

#[test]
fn constantly_changing_object_does_not_starve_others() {
    let mut world = world();
    world.join(Policy::Coalesce, false);
    world.run(&[Step::Whole, Step::Take(0, 5), Step::Write(vec![(0, 2), (1, 2), (2, 2)])]);
    let mut received = Vec::new();
    for _ in 0..3 {
        world.run(&[Step::Write(vec![(0, 2)])]);
        let event = world.handlers[0].view.take(world.now).expect("something waits");
        received.push(event.key().expect("of an object").to_string());
    }
    assert_eq!(received, ["o0", "o1", "o2"]);
}

#[test]
fn resync_is_spread_over_its_period() {
    let mut world = world();
    world.write(&(0..NAMES).map(|name| (name, 2)).collect::<Vec<_>>());
    world.join(Policy::Coalesce, true);
    world.run(&[Step::Whole, Step::Take(0, 50)]);
    let handler = &mut world.handlers[0];
    let mut at = Vec::new();
    for second in 0..40_u64 {
        let now = world.now + Duration::from_secs(second);
        while handler.take(now) {
            at.push(second);
        }
    }
    // The first pass begins one period after the start: seven objects in ten seconds.
    assert_eq!(at, [10, 12, 13, 15, 16, 18, 19, 20, 22, 23, 25, 26, 28, 29, 30, 32, 33, 35, 36, 38, 39]);
    assert_eq!(handler.resyncs, 21);
}

#[test]
fn resync_is_not_starved_by_waiting_changes() {
    let mut world = world();
    world.write(&[(0, 2), (1, 2)]);
    world.join(Policy::Coalesce, true);
    world.run(&[Step::Whole, Step::Take(0, 50), Step::Write(vec![(0, 2)])]);
    world.now += PERIOD * 3;
    for _ in 0..100 {
        world.run(&[Step::Write(vec![(0, 2)]), Step::Take(0, 1), Step::Time(200)]);
    }
    assert!(world.handlers[0].resyncs > 0, "the resync starved");
}

#[test]
fn replay_and_live_changes_alternate() {
    let mut world = world();
    world.write(&(0..NAMES).map(|name| (name, 2)).collect::<Vec<_>>());
    world.join(Policy::Coalesce, false);
    world.run(&[Step::Whole, Step::Take(0, 2), Step::Write(vec![(0, 2), (6, 2)])]);
    let view = &mut world.handlers[0].view;
    let received: Vec<String> =
        std::iter::from_fn(|| view.take(world.now)).map(|event| format!("{:?}", event.key())).take(3).collect();
    assert_eq!(received, ["Some(o0)", "Some(o2)", "Some(o3)"]);
}

// ---- exact sequences of one view ----

fn state(objects: &[Item], version: u64) -> Arc<Snapshot<Item>> {
    let mut indexer = Indexer::new();
    for object in objects {
        indexer.apply(Delta::Upsert(object.clone()), &mut Vec::new());
    }
    indexer.apply(Delta::Version(version.to_string()), &mut Vec::new());
    indexer.publish();
    indexer.reader().snapshot()
}

fn added(new: Item) -> Change<Item> {
    Change::Added { object: new, origin: Origin::Live }
}

fn updated(old: Item, new: Item) -> Change<Item> {
    Change::Updated { old, new, origin: Origin::Live }
}

fn deleted(last: Item) -> Change<Item> {
    Change::Deleted { last, last_is_final: true, origin: Origin::Live }
}

/// Takes all available events.
fn take_all(view: &mut View<Item>, now: Instant) -> Vec<String> {
    let name = |object: &Item| format!("{}@{}", object.key(), **object);
    let show = |event| match event {
        Event::Added { object, reason } => format!("+{} {reason:?}", name(&object)),
        Event::Updated { old, new, reason } => format!("{}>{} {reason:?}", name(&old), *new),
        Event::Deleted { last, reason, .. } => format!("-{} {reason:?}", name(&last)),
        other => format!("{other:?}"),
    };
    std::iter::from_fn(|| view.take(now)).map(show).collect()
}

/// A view whose handler has received this complete initial state.
fn synced_view(policy: Policy, resync: Option<Duration>, now: Instant, objects: &[Item], version: u64) -> View<Item> {
    let mut view = View::new(policy, resync);
    view.begin(now, state(objects, version));
    view.end_initial();
    assert_eq!(take_all(&mut view, now).len(), objects.len() + 1);
    view
}

#[test]
fn object_that_left_a_selector_and_matched_again_is_the_same_object() {
    // The handler has seen the object in version 1. It is deleted, and added as this object.
    fn check(again: &Item, expected: &[&str]) {
        let now = Instant::now();
        let seen = item(0, 1, 1);
        let mut view = synced_view(Policy::Coalesce, None, now, std::slice::from_ref(&seen), 1);
        view.push(now, &[deleted(seen)], None, state(&[], 2));
        view.push(now, &[added(again.clone())], None, state(std::slice::from_ref(again), 3));
        assert_eq!(take_all(&mut view, now), expected, "{again:?}");
    }
    check(&item(0, 1, 1), &[]);
    check(&item(0, 1, 3), &["o0@1>3 Live"]);
    check(&item(0, 2, 3), &["-o0@1 Live", "+o0@3 Live"]);
    // Versions are compared only within one object.
    check(&item(0, 2, 1), &["-o0@1 Live", "+o0@1 Live"]);
}

#[test]
fn object_that_was_never_delivered_keeps_its_first_reason() {
    let now = Instant::now();
    let mut view = synced_view(Policy::Coalesce, None, now, &[item(0, 1, 1)], 1);
    let [first, second] = [item(1, 2, 2), item(1, 2, 3)];
    view.push(now, &[added(first.clone())], Some(Reason::Initial), state(&[item(0, 1, 1), first.clone()], 2));
    let changes = [updated(first, second.clone()), updated(item(0, 1, 1), item(0, 1, 4))];
    view.push(now, &changes, Some(Reason::Relist), state(&[item(0, 1, 4), second.clone()], 4));
    view.push(now, &[updated(item(0, 1, 4), item(0, 1, 5))], None, state(&[item(0, 1, 5), second], 5));
    assert_eq!(take_all(&mut view, now), ["+o1@3 Initial", "o0@1>5 Live"]);
    assert_eq!((view.counts().coalesced, view.counts().delivered), (2, 4));
}

#[test]
fn synced_is_delivered_after_the_initial_changes_and_before_live_ones() {
    let now = Instant::now();
    let mut view = View::new(Policy::Coalesce, None);
    view.begin(now, state(&[], 0));
    assert_eq!(take_all(&mut view, now), [""; 0]);
    let [a, b, c] = [item(0, 1, 1), item(1, 2, 2), item(2, 3, 3)];
    view.push(now, &[added(a.clone())], Some(Reason::Initial), state(std::slice::from_ref(&a), 1));
    view.push(now, &[added(b.clone())], Some(Reason::Initial), state(&[a.clone(), b.clone()], 2));
    view.end_initial();
    view.push(now, &[added(c.clone())], None, state(&[a, b, c], 3));
    assert!(!view.has_synced(), "synced before the initial state was delivered");
    assert_eq!(take_all(&mut view, now), ["+o0@1 Initial", "+o1@2 Initial", "Synced", "+o2@3 Live"]);
    assert!(view.has_synced());
}

#[test]
fn drop_and_resync_drops_only_above_its_limit() {
    let now = Instant::now();
    let [a, b, c] = [item(0, 1, 1), item(1, 2, 2), item(2, 3, 3)];
    let mut view = synced_view(Policy::DropAndResync { objects_max: 2 }, None, now, &[], 0);
    view.push(now, &[added(a.clone()), added(b.clone())], None, state(&[a.clone(), b.clone()], 2));
    assert_eq!((view.lag(now).waiting, view.counts().resets), (2, 0), "dropped at the limit");
    view.push(now, &[added(c.clone())], None, state(&[a, b, c], 3));
    assert_eq!((view.lag(now).waiting, view.counts().resets), (0, 1), "not dropped above the limit");
    let expected = ["Reset", "+o0@1 Refill", "+o1@2 Refill", "+o2@3 Refill", "Synced"];
    assert_eq!(take_all(&mut view, now), expected);
}

#[test]
fn default_limits_of_policies_are_the_documented_ones() {
    assert_eq!(Policy::block(), Policy::Block { changes_max: 1_024, timeout: Duration::from_secs(10) });
    assert_eq!(Policy::drop_and_resync(), Policy::DropAndResync { objects_max: 10_000 });
}

#[test]
fn timed_out_handler_receives_every_change_again_after_half_of_its_queue() {
    let mut world = world();
    world.join(Policy::Block { changes_max: 4, timeout: Duration::from_secs(1) }, false);
    let update = || Step::Write(vec![(0, 2)]);
    world.run(&[Step::Whole, Step::Take(0, 5), update(), update(), update(), update()]);
    assert!(!world.handlers[0].view.has_room());
    world.handlers[0].view.stop_blocking();
    assert!(world.handlers[0].view.has_room(), "the informer still waits for a handler after its timeout");
    // Three of four changes wait: the next change is merged.
    world.run(&[Step::Take(0, 1), update()]);
    assert_eq!(world.handlers[0].view.lag(world.now).waiting, 3, "blocked again before half was processed");
    // Two of four wait: each further change counts.
    world.run(&[Step::Take(0, 1), update()]);
    assert_eq!(world.handlers[0].view.lag(world.now).waiting, 3, "coalesced after half was processed");
    let counts = world.handlers[0].view.counts();
    assert_eq!((counts.coalesced, counts.block_timeouts, counts.delivered), (1, 1, 3));
}

#[test]
fn informer_does_not_wait_for_a_closed_handler() {
    let now = Instant::now();
    for drain in [true, false] {
        let policy = Policy::Block { changes_max: 1, timeout: Duration::from_secs(1) };
        let mut view = synced_view(policy, None, now, &[], 0);
        let taken = view.begin_parts(now, &[added(item(0, 1, 1))], None, state(&[item(0, 1, 1)], 1));
        assert_eq!((taken, view.has_room()), (1, false));
        view.close(drain);
        assert!(view.has_room(), "a removed handler makes the informer wait, drain: {drain}");
    }
}

#[test]
fn resync_waits_for_the_initial_state_and_for_the_end_of_a_batch() {
    let start = Instant::now();
    let [a, b] = [item(0, 1, 1), item(1, 2, 2)];
    let mut view = View::new(Policy::Block { changes_max: 1, timeout: PERIOD }, Some(PERIOD));
    view.begin(start, state(&[a.clone(), b.clone()], 2));
    assert_eq!(take_all(&mut view, start), ["+o0@1 Initial", "+o1@2 Initial"]);
    assert!(!view.has_synced());
    assert_eq!(view.poll_timeout(), None, "a resync began before the initial state is complete");
    view.end_initial();
    assert_eq!(take_all(&mut view, start), ["Synced"]);
    assert_eq!(view.poll_timeout(), Some(start + PERIOD));
    // The state is already newer than the changes that the handler received.
    let now = start + PERIOD;
    let changes = [updated(a, item(0, 1, 3)), updated(b, item(1, 2, 4))];
    assert_eq!(view.begin_parts(now, &changes, None, state(&[item(0, 1, 3), item(1, 2, 4)], 4)), 1);
    assert_eq!(view.poll_timeout(), None);
    assert_eq!(take_all(&mut view, now), ["o0@1>3 Live"], "a resync overtook a change of its batch");
    assert_eq!(view.push_part(now, &changes[1..], None), 1);
    view.end_parts();
    assert_eq!(take_all(&mut view, now), ["o1@2>4 Live", "o0@3>3 Resync"], "the resync did not continue");
    assert_eq!(take_all(&mut view, now + PERIOD / 2), ["o1@4>4 Resync"]);
}

#[test]
fn lag_in_versions_is_the_distance_from_the_processed_version() {
    let now = Instant::now();
    let a = item(0, 1, 100);
    let mut view = synced_view(Policy::Coalesce, None, now, std::slice::from_ref(&a), 100);
    assert_eq!(view.lag(now).versions, Some(0));
    view.push(now, &[updated(a, item(0, 1, 103))], None, state(&[item(0, 1, 103)], 107));
    assert_eq!(view.lag(now).versions, Some(7));
    view.take(now);
    assert_eq!(view.lag(now).versions, Some(7), "an event that is being processed is not processed");
    view.take(now);
    assert_eq!(view.lag(now).versions, Some(0));
}

#[test]
fn stop_that_was_not_delivered_is_dropped_by_a_restart() {
    let now = Instant::now();
    let mut view = synced_view(Policy::Coalesce, None, now, &[], 0);
    view.stop(StopReason::Requested);
    view.restart();
    assert_eq!(take_all(&mut view, now), [""; 0], "a handler of a running informer was told of a stop");
    view.stop(StopReason::Requested);
    assert_eq!(take_all(&mut view, now), ["Stopped(Requested)"]);
    view.restart();
    assert_eq!(take_all(&mut view, now), [""; 0]);
}

#[test]
fn longest_resync_period_does_not_overflow() {
    let now = Instant::now();
    let a = item(0, 1, 1);
    let mut view = synced_view(Policy::Coalesce, Some(Duration::MAX), now, std::slice::from_ref(&a), 1);
    assert_eq!(take_all(&mut view, now), [""; 0]);
    let due = view.poll_timeout().expect("a resync is planned");
    assert_eq!(take_all(&mut view, due), ["o0@1>1 Resync"]);
    assert!(view.poll_timeout().is_some_and(|next| next > due));
}

/// As client-go, whose resync check is off for a period of zero.
#[test]
fn resync_period_of_zero_means_no_resync() {
    let now = Instant::now();
    let a = item(0, 1, 1);
    let mut view = synced_view(Policy::Coalesce, Some(Duration::ZERO), now, std::slice::from_ref(&a), 1);
    assert_eq!(take_all(&mut view, now), [""; 0]);
    assert_eq!(view.poll_timeout(), None, "a resync is planned");
    assert_eq!(take_all(&mut view, now + PERIOD), [""; 0]);
}

#[test]
fn stopped_informer_resyncs_no_handler_until_it_is_started_again() {
    let now = Instant::now();
    let objects = [item(0, 1, 1), item(1, 2, 2)];
    let mut view = synced_view(Policy::Coalesce, Some(PERIOD), now, &objects, 2);
    // The stop comes in the middle of a pass.
    assert_eq!(take_all(&mut view, now), [""; 0]);
    assert_eq!(take_all(&mut view, now + PERIOD), ["o0@1>1 Resync"]);
    view.stop(StopReason::Requested);
    let stopped = now + PERIOD * 3;
    assert_eq!(take_all(&mut view, stopped), ["Stopped(Requested)"], "a resync precedes or follows the stop");
    assert_eq!(view.poll_timeout(), None, "the handler is woken for a resync of a stopped informer");
    assert_eq!(take_all(&mut view, stopped + PERIOD), [""; 0]);
    view.restart();
    let restarted = stopped + PERIOD * 2;
    assert_eq!(take_all(&mut view, restarted), [""; 0], "a period begins with the start");
    assert_eq!(view.poll_timeout(), Some(restarted + PERIOD));
    assert_eq!(take_all(&mut view, restarted + PERIOD), ["o0@1>1 Resync"]);
}

/// The handle of a handler that has ended may live on.
#[test]
fn closed_view_holds_no_snapshot() {
    let now = Instant::now();
    let policy = Policy::Block { changes_max: 1, timeout: PERIOD };
    let objects = [item(0, 1, 1), item(1, 2, 2)];
    let mut view = synced_view(policy, None, now, &[], 0);
    let newest = state(&objects, 2);
    // A batch is pushed in parts, so the view holds two snapshots.
    assert_eq!(view.begin_parts(now, &objects.clone().map(added), None, newest.clone()), 1);
    view.close(false);
    assert_eq!(Arc::strong_count(&newest), 1, "an ended handler holds the cache of its last moment");
    view.begin(now, newest.clone());
    view.push(now, &objects.clone().map(added), None, newest.clone());
    assert_eq!(view.begin_parts(now, &objects.clone().map(added), None, newest.clone()), 2);
    assert_eq!(Arc::strong_count(&newest), 1, "an ended handler holds each new state of the cache");
    assert!(view.is_over() && view.is_idle());
    // A view that drains needs its snapshot to the end.
    let mut view = View::new(policy, None);
    view.begin(now, newest.clone());
    view.close(true);
    assert_eq!(take_all(&mut view, now), ["+o0@1 Initial", "+o1@2 Initial"]);
    assert!(view.is_over());
}
