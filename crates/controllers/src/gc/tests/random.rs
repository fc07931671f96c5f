//! Random histories of writers and two collectors. Writers create objects, add and remove references, and delete
//! objects with every propagation policy. After the writers have stopped and the collectors are idle, the test
//! checks invariants on the store's content at each revision. The invariants need no dependency graph.
//!
//! The test also overwrites values in the store with unreadable bytes, and restores them later. For an unreadable
//! object, the checks use the last readable state. The final state is checked after all values have been restored.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use super::unreadable::UNREADABLE;
use super::*;

/// Number of ConfigMaps `m0`, `m1`, …; a small number makes references between them likely.
const NAMES: usize = 6;

/// Maximum number of histories in which the checker must report each planted bug.
const PLANTED_HISTORIES_MAX: usize = 200;

#[derive(Clone, Debug)]
enum Step {
    Create {
        name: usize,
        owners: Vec<(usize, bool)>,
        held: bool,
    },
    Refer {
        name: usize,
        owners: Vec<(usize, bool)>,
    },
    Delete {
        name: usize,
        policy: &'static str,
    },
    LetGo {
        name: usize,
    },
    /// Overwrites the stored value with an unreadable one.
    Damage {
        name: usize,
        value: usize,
    },
    /// Restores the damaged value.
    Mend {
        name: usize,
    },
    /// Lets the collectors run for this number of milliseconds.
    Pause(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = || 0..NAMES;
    let owners = || prop::collection::vec((0..NAMES, any::<bool>()), 0..3);
    let step = prop_oneof![
        6 => (name(), owners(), prop::bool::weighted(0.2))
            .prop_map(|(name, owners, held)| Step::Create { name, owners, held }),
        3 => (name(), owners()).prop_map(|(name, owners)| Step::Refer { name, owners }),
        4 => (name(), prop_oneof![Just("Background"), Just("Foreground"), Just("Orphan")])
            .prop_map(|(name, policy)| Step::Delete { name, policy }),
        2 => name().prop_map(|name| Step::LetGo { name }),
        2 => (name(), 0..UNREADABLE.len()).prop_map(|(name, value)| Step::Damage { name, value }),
        2 => name().prop_map(|name| Step::Mend { name }),
        2 => prop_oneof![Just(0_u64), Just(1), Just(200)].prop_map(Step::Pause),
    ];
    prop::collection::vec(step, 1..60)
}

/// The state of an object, as used by the invariants.
#[derive(Clone, Debug)]
struct Seen {
    uid: String,
    deleted: bool,
    foreground: bool,
    orphan: bool,
    held: bool,
    /// The uid of each owner, and the `blockOwnerDeletion` of the reference.
    owners: Vec<(String, bool)>,
}

impl Seen {
    /// Parses a stored value. Returns `None` if the value is unreadable.
    fn of(value: &[u8]) -> Option<Seen> {
        let facts = Facts::read(value)?;
        let held = std::str::from_utf8(value).unwrap().contains("x.io/hold");
        Some(Seen {
            uid: facts.uid,
            deleted: facts.deleted,
            foreground: facts.foreground,
            orphan: facts.orphan,
            held,
            owners: facts.owners.into_iter().map(|owner| (owner.uid, owner.blocks)).collect(),
        })
    }
}

type State = BTreeMap<String, Seen>;

/// Returns the state after an event. An unreadable value is treated as its last readable state.
fn state_after(event: &StoreEvent, before: Option<&Seen>) -> Option<Seen> {
    match event {
        StoreEvent::Put { current, .. } => Seen::of(&current.value).or_else(|| before.cloned()),
        StoreEvent::Delete { .. } => None,
    }
}

fn by_uid<'a>(state: &'a State, uid: &str) -> Option<&'a Seen> {
    state.values().find(|seen| seen.uid == uid)
}

/// Reports whether `from` waits for `wanted` through blocking dependents in foreground deletion.
fn waits_for(state: &State, from: &str, wanted: &str, seen: &mut Vec<String>) -> bool {
    if from == wanted {
        return true;
    }
    if seen.iter().any(|uid| uid == from) || !by_uid(state, from).is_some_and(|seen| seen.deleted && seen.foreground) {
        return false;
    }
    seen.push(from.to_owned());
    let blockers: Vec<String> = state
        .values()
        .filter(|other| other.owners.iter().any(|(uid, blocks)| uid == from && *blocks))
        .map(|other| other.uid.clone())
        .collect();
    blockers.iter().any(|uid| waits_for(state, uid, wanted, seen))
}

/// The original values of damaged objects, by the number of the ConfigMap.
type Damaged = BTreeMap<usize, Bytes>;

async fn perform(world: &World, step: &Step, damaged: &mut Damaged) {
    let path = |name: usize| format!("/api/v1/namespaces/a/configmaps/m{name}");
    let known = damaged.clone();
    let refer = async |owners: &[(usize, bool)]| {
        let mut list: Vec<Value> = Vec::new();
        for (owner, blocks) in owners {
            let path = format!("{MAPS}/m{owner}");
            // Writers have read the owner before the owner was damaged.
            let known = match known.get(owner) {
                Some(value) => Some(serde_json::from_slice(value).unwrap()),
                None => world.stored(&path).await,
            };
            list.extend(known.map(|object| reference(&object, *blocks)));
        }
        // Duplicate owners in one object are covered by another test.
        list.dedup_by_key(|owner| owner["uid"].clone());
        list
    };
    // Steps may be rejected, for example because an object already exists.
    let _ = match step {
        Step::Create { name, owners, held } => {
            let finalizers = if *held { json!(["x.io/hold"]) } else { Value::Null };
            let metadata =
                json!({"name": format!("m{name}"), "ownerReferences": refer(owners).await, "finalizers": finalizers});
            world.write("POST /api/v1/namespaces/a/configmaps", json!({"metadata": metadata})).await
        }
        Step::Refer { name, owners } => {
            let body = json!({"metadata": {"ownerReferences": refer(owners).await}});
            world.write(&format!("PATCH {}", path(*name)), body).await
        }
        Step::Delete { name, policy } => {
            world.write(&format!("DELETE {}", path(*name)), json!({"propagationPolicy": policy})).await
        }
        Step::Damage { name, value } => {
            let path = format!("{MAPS}/m{name}");
            if !damaged.contains_key(name) && world.raw(&path).await.is_some() {
                damaged.insert(*name, world.overwrite(&path, UNREADABLE[*value]).await);
            }
            Ok(())
        }
        Step::Mend { name } => {
            if let Some(value) = damaged.remove(name) {
                world.overwrite(&format!("{MAPS}/m{name}"), value).await;
            }
            Ok(())
        }
        Step::LetGo { name } if damaged.contains_key(name) => Ok(()),
        Step::LetGo { name } => {
            let Some(object) = world.stored(&format!("{MAPS}/m{name}")).await else { return };
            let finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
            let kept: Vec<Value> = finalizers.into_iter().filter(|name| name != "x.io/hold").collect();
            let version = &object["metadata"]["resourceVersion"];
            let body = json!({"metadata": {"finalizers": kept, "resourceVersion": version}});
            world.write(&format!("PATCH {}", path(*name)), body).await
        }
        Step::Pause(millis) => {
            tokio::time::sleep(Duration::from_millis(*millis)).await;
            Ok(())
        }
    };
}

async fn everything_that_happened(world: &World) -> Vec<StoreEvent> {
    let end = world.writer.backend().storage().current_revision().await.unwrap();
    let mut watch =
        world.writer.backend().storage().watch(KeyRange::resource("configmaps"), Revision::ZERO).await.unwrap();
    let mut events = Vec::new();
    watch.request_progress();
    while let Some(item) = watch.next().await {
        match item {
            WatchItem::Event(event) => events.push(event),
            WatchItem::Progress(at) if at >= end => break,
            WatchItem::Progress(_) => watch.request_progress(),
            other => panic!("the memory store has forgotten: {other:?}"),
        }
    }
    events
}

/// The delete requests of writers, by uid.
#[derive(Default)]
struct DeleteRequests {
    /// Objects that writers have deleted.
    deleted: Vec<String>,
    /// Objects that writers have deleted again with another propagation policy.
    again: Vec<String>,
}

/// Returns each pair of objects that wait for each other in this state, in both orders.
fn rings(state: &State) -> Vec<(String, String)> {
    let waiting: Vec<&str> =
        state.values().filter(|seen| seen.deleted && seen.foreground).map(|seen| seen.uid.as_str()).collect();
    let waits = |from: &str, wanted: &str| waits_for(state, from, wanted, &mut Vec::new());
    let mut rings = Vec::new();
    for one in &waiting {
        for other in &waiting {
            if one != other && waits(one, other) && waits(other, one) {
                rings.push(((*one).to_owned(), (*other).to_owned()));
            }
        }
    }
    rings
}

/// Returns an error that names the guarantee, if `is_kept` is false.
fn ensure(is_kept: bool, broken: impl FnOnce() -> String) -> Result<(), String> {
    if is_kept { Ok(()) } else { Err(format!("Collected: {}", broken())) }
}

/// Checks the invariants on one history.
fn check_history_invariants(events: &[StoreEvent], requests: &DeleteRequests) -> Result<(), String> {
    let mut state = State::new();
    // Revision and state at the time of each deletion mark. References added later do not delay the deletion.
    let mut marked: BTreeMap<String, (u64, State)> = BTreeMap::new();
    // Pairs that once waited for each other. Two collectors may break such a cycle at different members; afterwards
    // no member waits for the others.
    let mut ringed: BTreeSet<(String, String)> = BTreeSet::new();
    let has = |list: &[String], uid: &str| list.iter().any(|listed| listed == uid);
    for event in events {
        let (key, revision) = (event.key().to_string(), event.revision().get());
        let before = state.get(&key).cloned();
        let after = state_after(event, before.as_ref());
        if let Some(before) = &before {
            let goes = after.as_ref().is_none_or(|after| after.deleted) && !before.deleted;
            if goes && !has(&requests.deleted, &before.uid) {
                let living = before
                    .owners
                    .iter()
                    .find(|(uid, _)| by_uid(&state, uid).is_some_and(|owner| !(owner.deleted && owner.foreground)));
                ensure(living.is_none(), || {
                    format!("an object with a living owner was deleted: {key} of {living:?} at {revision}")
                })?;
                ensure(!before.owners.is_empty(), || {
                    format!("an object without owners was deleted: {key} at {revision}")
                })?;
            }
            let ended = after.as_ref().is_none_or(|after| after.uid == before.uid && !after.foreground);
            let steady = !has(&requests.again, &before.uid);
            if ended && steady && before.deleted && before.foreground {
                let (_, then) = &marked[&before.uid];
                for other in state.values() {
                    let blocks = |seen: &Seen| seen.owners.iter().any(|(uid, blocks)| *uid == before.uid && *blocks);
                    let knew = by_uid(then, &other.uid).is_some_and(blocks);
                    if knew && blocks(other) {
                        let of_a_ring = ringed.contains(&(before.uid.clone(), other.uid.clone()));
                        let waits = of_a_ring || waits_for(&state, &other.uid, &before.uid, &mut Vec::new());
                        ensure(waits, || {
                            let order = format!("{key} went at {revision} before a dependent that blocked it");
                            format!("foreground order: {order}: {other:?}")
                        })?;
                    }
                }
            }
            let let_go = after.as_ref().is_none_or(|after| after.uid == before.uid && !after.orphan);
            if let_go && steady && before.deleted && before.orphan {
                let (_, then) = &marked[&before.uid];
                for other in state.values() {
                    let refers = |seen: &Seen| seen.owners.iter().any(|(uid, _)| *uid == before.uid);
                    let knew = by_uid(then, &other.uid).is_some_and(refers);
                    ensure(!(knew && refers(other)) || other.uid == before.uid, || {
                        format!("{key} went before it was forgotten by {other:?}")
                    })?;
                }
            }
        }
        match after {
            Some(after) => {
                if after.deleted && !marked.contains_key(&after.uid) {
                    marked.insert(after.uid.clone(), (revision, state.clone()));
                }
                state.insert(key, after);
            }
            None => {
                state.remove(&key);
            }
        }
        ringed.extend(rings(&state));
    }
    for (key, seen) in &state {
        let absent = |uid: &str| by_uid(&state, uid).is_none();
        if !seen.owners.is_empty() && !seen.deleted {
            ensure(!seen.owners.iter().all(|(uid, _)| absent(uid)), || {
                format!("garbage: all owners of {key} are gone: {seen:?}")
            })?;
        }
        if seen.deleted && !seen.held {
            let waits = seen.foreground
                && state.values().any(|other| {
                    other.uid != seen.uid && other.owners.iter().any(|(uid, blocks)| *uid == seen.uid && *blocks)
                });
            ensure(waits, || format!("nothing holds {key} up, and it is still there: {seen:?}"))?;
        }
    }
    Ok(())
}

/// Performs the steps. Returns the events of the store and the delete requests of the writers.
async fn perform_all(steps: &[Step]) -> (Vec<StoreEvent>, DeleteRequests) {
    let world = World::new(2).await;
    let mut requests = DeleteRequests::default();
    let mut damaged = Damaged::new();
    for step in steps {
        if let Step::Delete { name, .. } = step
            && !damaged.contains_key(name)
            && let Some(object) = world.stored(&format!("{MAPS}/m{name}")).await
        {
            let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
            match object["metadata"]["deletionTimestamp"].is_null() {
                true => requests.deleted.push(uid),
                false => requests.again.push(uid),
            }
        }
        perform(&world, step, &mut damaged).await;
    }
    tokio::time::sleep(REST).await;
    for (name, value) in damaged {
        world.overwrite(&format!("{MAPS}/m{name}"), value).await;
    }
    tokio::time::sleep(REST).await;
    (everything_that_happened(&world).await, requests)
}

/// Performs the steps in paused time.
fn history(steps: &[Step]) -> (Vec<StoreEvent>, DeleteRequests) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(perform_all(steps))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn collectors_delete_exactly_the_garbage_of_random_histories(steps in steps()) {
        let (events, requests) = history(&steps);
        if let Err(broken) = check_history_invariants(&events, &requests) {
            prop_assert!(false, "{}", broken);
        }
    }
}

/// A bug of a collector, as seen in the history that the collector leaves.
#[derive(Clone, Copy, Debug)]
enum PlantedBug {
    /// The collector does not delete an object without living owners.
    KeepsGarbage,
    /// The collector deletes an object that has owners, even if an owner is alive.
    IgnoresLivingOwners,
    /// The collector deletes an object that has no owners.
    DeletesObjectWithoutOwners,
    /// A foreground deletion does not wait for blocking dependents.
    ReleasesForegroundOwnerEarly,
    /// An orphaning deletion does not wait until the dependents no longer refer to the owner.
    ReleasesOrphaningOwnerEarly,
    /// A foreground or orphaning deletion never completes.
    NeverReleasesOwner,
}

/// The states of an object before and after an event.
type Change = (Option<Seen>, Option<Seen>);

/// Returns the change of each event.
fn changes(events: &[StoreEvent]) -> Vec<Change> {
    let mut state = State::new();
    let mut changes = Vec::new();
    for event in events {
        let key = event.key().to_string();
        let before = state.remove(&key);
        let after = state_after(event, before.as_ref());
        if let Some(after) = &after {
            state.insert(key, after.clone());
        }
        changes.push((before, after));
    }
    changes
}

/// Returns the history with the bug at the event `at`. Returns `None` if the bug cannot occur at this event.
fn plant(
    bug: PlantedBug,
    events: &[StoreEvent],
    (before, after): &Change,
    requests: &DeleteRequests,
    at: usize,
) -> Option<Vec<StoreEvent>> {
    let (event, next) = (&events[at], at + 1);
    let is_same_key = |other: &StoreEvent| other.key() == event.key();
    let other_keys = |range: Range<usize>| events[range].iter().filter(|other| !is_same_key(other)).cloned();
    let removed = |other: &StoreEvent| is_same_key(other) && matches!(other, StoreEvent::Delete { .. });
    let created = |other: &StoreEvent| is_same_key(other) && matches!(other, StoreEvent::Put { previous: None, .. });
    let is_created_again = events[next..].iter().any(created);
    let was_alive = before.as_ref().is_some_and(|seen| !seen.deleted);
    let mut planted = events[..at].to_vec();
    match (bug, before, after) {
        (PlantedBug::KeepsGarbage, Some(before), after) => {
            let is_deleted = was_alive && after.as_ref().is_none_or(|after| after.deleted);
            if !is_deleted || requests.deleted.contains(&before.uid) || is_created_again {
                return None;
            }
            planted.extend(other_keys(at..events.len()));
        }
        (PlantedBug::IgnoresLivingOwners | PlantedBug::DeletesObjectWithoutOwners, _, Some(after)) => {
            let has_owners = matches!(bug, PlantedBug::IgnoresLivingOwners);
            if after.deleted || requests.deleted.contains(&after.uid) || after.owners.is_empty() == has_owners {
                return None;
            }
            let removal = StoreEvent::Delete { key: event.key().clone(), revision: event.revision(), previous: None };
            planted.extend([event.clone(), removal]);
            planted.extend(other_keys(next..events.len()));
        }
        (PlantedBug::ReleasesForegroundOwnerEarly | PlantedBug::ReleasesOrphaningOwnerEarly, _, Some(after)) => {
            let waits = match bug {
                PlantedBug::ReleasesForegroundOwnerEarly => after.foreground,
                _ => after.orphan,
            };
            if !(was_alive && after.deleted && waits) {
                return None;
            }
            let removal = next + events[next..].iter().position(removed)?;
            planted.extend([event.clone(), events[removal].clone()]);
            planted.extend(other_keys(next..removal));
            planted.extend_from_slice(&events[removal + 1..]);
        }
        (PlantedBug::NeverReleasesOwner, _, Some(after)) => {
            if !(was_alive && after.deleted && (after.foreground || after.orphan)) || is_created_again {
                return None;
            }
            planted.push(event.clone());
            planted.extend(other_keys(next..events.len()));
        }
        _ => return None,
    }
    Some(planted)
}

#[test]
fn checker_reports_each_planted_bug_in_a_history_of_collectors() {
    let mut unreported = vec![
        (PlantedBug::KeepsGarbage, "garbage: all owners of"),
        (PlantedBug::IgnoresLivingOwners, "an object with a living owner was deleted"),
        (PlantedBug::DeletesObjectWithoutOwners, "an object without owners was deleted"),
        (PlantedBug::ReleasesForegroundOwnerEarly, "before a dependent that blocked it"),
        (PlantedBug::ReleasesOrphaningOwnerEarly, "went before it was forgotten by"),
        (PlantedBug::NeverReleasesOwner, "and it is still there"),
    ];
    let mut runner = TestRunner::deterministic();
    for _ in 0..PLANTED_HISTORIES_MAX {
        if unreported.is_empty() {
            break;
        }
        let (events, requests) = history(&steps().new_tree(&mut runner).unwrap().current());
        check_history_invariants(&events, &requests).unwrap_or_else(|broken| panic!("{broken}"));
        let changes = changes(&events);
        unreported.retain(|(bug, text)| {
            let mut planted =
                changes.iter().enumerate().filter_map(|(at, change)| plant(*bug, &events, change, &requests, at));
            let reports = |broken: String| broken.starts_with("Collected: ") && broken.contains(text);
            !planted.any(|events| check_history_invariants(&events, &requests).is_err_and(reports))
        });
    }
    assert!(unreported.is_empty(), "Collected: the checker does not report {unreported:?}");
}
