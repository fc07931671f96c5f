//! Tests of changes, snapshots, indexes, waits and own writes.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use listwatch_meta::{Change as EventChange, LabelSelector};
use proptest::prelude::*;

use super::*;
use crate::decode::KeepJson;
use crate::delta_fifo::{DeltaFifo, FifoConfig};
use crate::object::RawObject;

fn raw(name: &str, uid: &str, version: u64) -> RawObject {
    labeled(name, uid, version, "{}")
}

fn labeled(name: &str, uid: &str, version: u64, labels: &str) -> RawObject {
    let json = format!(
        r#"{{"metadata":{{"namespace":"n","name":"{name}","uid":"{uid}","resourceVersion":"{version}","labels":{labels}}}}}"#
    );
    RawObject::new(Bytes::from(json)).unwrap()
}

fn object(raw: &RawObject) -> Object {
    let metadata = raw.metadata();
    Object::keep(raw, ObjectKey::new(&metadata.namespace, &metadata.name), None)
}

pub(crate) fn show(changes: &[Change]) -> Vec<String> {
    let name = |object: &Object| format!("{}@{}", object.name(), object.resource_version());
    let show = |change: &Change| match change {
        Change::Added { object, origin } => format!("+{} {origin:?}", name(object)),
        Change::Updated { old, new, origin } => format!("{}>{} {origin:?}", name(old), new.resource_version()),
        Change::Deleted { last, last_is_final, origin } => {
            format!("-{} {} {origin:?}", name(last), if *last_is_final { "final" } else { "known" })
        }
    };
    changes.iter().map(show).collect()
}

/// A store with its queue.
struct Copy {
    fifo: DeltaFifo<KeepJson>,
    indexer: Indexer,
}

impl Copy {
    fn new() -> Self {
        Copy { fifo: DeltaFifo::new(KeepJson, FifoConfig::default()), indexer: Indexer::new() }
    }

    fn drain(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        loop {
            let batch = self.fifo.pop_batch(self.indexer.current(), 10);
            if batch.is_empty() {
                return changes;
            }
            for delta in batch {
                self.indexer.apply(delta, &mut changes);
            }
        }
    }

    fn replace(&mut self, objects: &[RawObject], version: &str) -> Vec<Change> {
        self.fifo.begin_replace(self.indexer.current());
        for object in objects {
            self.fifo.collect(EventChange::Added, object);
        }
        self.fifo.commit_replace(version);
        self.drain()
    }

    fn event(&mut self, change: EventChange, object: &RawObject) -> Vec<Change> {
        self.fifo.push(self.indexer.current(), change, object);
        self.drain()
    }
}

#[test]
fn relist_reports_exactly_the_differences() {
    let mut copy = Copy::new();
    let first = [raw("a", "1", 1), raw("b", "2", 3), raw("c", "3", 4)];
    assert_eq!(show(&copy.replace(&first, "4")), ["+a@1 Initial", "+b@3 Initial", "+c@4 Initial"]);
    let second = [raw("a", "1", 1), raw("c", "9", 9), raw("d", "4", 8)];
    let expected = ["-b@3 known Relist", "-c@4 known Relist", "+c@9 Relist", "+d@8 Relist"];
    assert_eq!(show(&copy.replace(&second, "10")), expected);
    assert!(copy.replace(&second, "11").is_empty(), "an equal relist is no news");
    assert_eq!(copy.indexer.current().version(), "11");
}

#[test]
fn watch_events_become_added_updated_and_deleted() {
    use EventChange::{Added, Deleted, Modified};
    fn check(stored: Option<RawObject>, change: EventChange, object: RawObject, expected: &[&str]) {
        let mut copy = Copy::new();
        copy.replace(stored.as_slice(), "1");
        assert_eq!(show(&copy.event(change, &object)), expected, "{change:?} {object:?}");
    }
    let stored = || Some(raw("a", "1", 5));
    check(None, Added, raw("a", "1", 5), &["+a@5 Live"]);
    check(None, Modified, raw("a", "1", 5), &["+a@5 Live"]);
    check(None, Deleted, raw("a", "1", 5), &[]);
    check(stored(), Modified, raw("a", "1", 6), &["a@5>6 Live"]);
    check(stored(), Added, raw("a", "1", 6), &["a@5>6 Live"]);
    check(stored(), Added, raw("a", "1", 5), &[]);
    check(stored(), Modified, raw("a", "1", 4), &[]);
    check(stored(), Deleted, raw("a", "1", 4), &[]);
    check(stored(), Deleted, raw("a", "1", 7), &["-a@7 final Live"]);
    check(stored(), Deleted, raw("a", "2", 7), &["-a@5 known Live"]);
    check(stored(), Added, raw("a", "2", 7), &["-a@5 known Live", "+a@7 Live"]);
}

#[test]
fn indexer_rejects_older_versions() {
    let mut indexer = Indexer::new();
    let mut changes = Vec::new();
    let mut apply = |version| indexer.apply(Delta::Upsert(object(&raw("a", "1", version))), &mut changes);
    assert_eq!(apply(5), ApplyOutcome::Changed);
    assert_eq!(apply(5), ApplyOutcome::Unchanged);
    assert_eq!(apply(4), ApplyOutcome::Stale);
    assert_eq!(indexer.current().get("n/a").unwrap().resource_version(), "5");
}

#[test]
fn unchanged_object_keeps_its_allocation_across_a_relist() {
    let mut copy = Copy::new();
    copy.replace(&[raw("a", "1", 1)], "1");
    let before = copy.indexer.current().get("n/a").unwrap().clone();
    copy.replace(&[raw("a", "1", 1)], "2");
    assert!(before.is_same(copy.indexer.current().get("n/a").unwrap()), "a relist copied what had not changed");
}

#[test]
fn readers_see_whole_batches_and_snapshots_stay_unchanged() {
    let mut copy = Copy::new();
    let reader = copy.indexer.reader();
    copy.replace(&[raw("a", "1", 1), raw("b", "2", 2)], "2");
    assert!(reader.snapshot().is_empty(), "an unpublished state was visible");
    copy.indexer.publish();
    let snapshot = reader.snapshot();
    assert!(snapshot.is_synced() && !snapshot.is_empty());
    copy.event(EventChange::Deleted, &raw("a", "1", 3));
    copy.indexer.publish();
    assert_eq!((snapshot.len(), reader.snapshot().len()), (2, 1));
    assert_eq!(snapshot.iter().map(Object::name).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((snapshot.namespace("n").count(), snapshot.namespace("m").count()), (2, 0));
    let first = snapshot.get("n/a").unwrap().key().clone();
    assert_eq!(snapshot.after(Some(&first)).map(Object::name).collect::<Vec<_>>(), ["b"]);
}

#[test]
fn index_follows_changes_whenever_it_is_added() {
    let mut copy = Copy::new();
    // Each object has two values: its first letter and the parity of its version.
    let values = |object: &Object| {
        let odd = object.resource_version().parse::<u64>().unwrap() % 2 == 1;
        [object.name()[..1].to_owned(), if odd { "odd".to_owned() } else { "even".to_owned() }]
    };
    let index = copy.indexer.add_index(values);
    copy.replace(&[raw("a1", "1", 1), raw("a2", "2", 2), raw("b1", "3", 3)], "3");
    let names = |snapshot: &Snapshot, index: &Index<Object, String>, value: &str| -> Vec<String> {
        snapshot.by_index(index, &value.to_owned()).map(|object| object.name().to_owned()).collect()
    };
    let snapshot = copy.indexer.current();
    assert_eq!(names(snapshot, &index, "a"), ["a1", "a2"]);
    assert_eq!(names(snapshot, &index, "odd"), ["a1", "b1"]);
    assert_eq!(names(snapshot, &index, "z"), [""; 0]);
    assert_eq!(snapshot.index_values(&index), ["a", "b", "even", "odd"]);
    let old = snapshot.clone();
    copy.event(EventChange::Modified, &raw("a1", "1", 4));
    copy.event(EventChange::Deleted, &raw("b1", "3", 5));
    assert_eq!(names(copy.indexer.current(), &index, "even"), ["a1", "a2"]);
    assert_eq!(names(copy.indexer.current(), &index, "odd"), [""; 0]);
    assert_eq!(copy.indexer.current().index_values(&index), ["a", "even"]);
    assert_eq!(names(&old, &index, "odd"), ["a1", "b1"], "a snapshot changed");
    // An index that is added later contains the stored objects; older snapshots are searched.
    let late = copy.indexer.add_index(|object: &Object| [object.uid().into_owned()]);
    assert_eq!(names(copy.indexer.current(), &late, "2"), ["a2"]);
    assert_eq!(names(&old, &late, "3"), ["b1"]);
    assert_eq!(old.index_values(&late), ["1", "2", "3"]);
    assert_eq!(copy.indexer.current().keys_by_index(&late, &"2".to_owned()).len(), 1);
    copy.replace(&[raw("a2", "2", 2), raw("c1", "8", 8)], "9");
    assert_eq!(copy.indexer.current().index_values(&index), ["a", "c", "even"], "a relist left an index behind");
}

#[test]
fn index_queries_read_the_index_and_not_the_objects() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = || {
        let calls = calls.clone();
        move |object: &Object| {
            calls.fetch_add(1, Ordering::Relaxed);
            [object.name().to_owned()]
        }
    };
    let mut copy = Copy::new();
    let reader = copy.indexer.reader();
    let indexes = [copy.indexer.add_index(counted()), copy.indexer.add_index(counted())];
    copy.replace(&[raw("a", "1", 1), raw("b", "2", 2)], "2");
    copy.indexer.publish();
    let indexed = calls.load(Ordering::Relaxed);
    assert_eq!(indexed, 4, "an object is indexed once per index");
    for (snapshot, which) in [(copy.indexer.current(), "the writer's state"), (&*reader.snapshot(), "a reader's")] {
        for index in &indexes {
            assert_eq!(snapshot.by_index(index, &"b".to_owned()).count(), 1);
            assert_eq!(snapshot.keys_by_index(index, &"a".to_owned()), [ObjectKey::new("n", "a")]);
            assert_eq!(snapshot.index_values(index), ["a", "b"]);
        }
        assert_eq!(calls.load(Ordering::Relaxed), indexed, "a query of {which} examined objects");
    }
}

#[test]
fn index_of_another_store_is_computed_from_the_objects() {
    let (mut copy, mut other) = (Copy::new(), Copy::new());
    copy.indexer.add_index(|object: &Object| [object.name().to_owned()]);
    let by_uid = other.indexer.add_index(|object: &Object| [object.uid().into_owned()]);
    copy.replace(&[raw("a", "1", 1), raw("b", "2", 2)], "2");
    let snapshot = copy.indexer.current();
    assert_eq!(snapshot.index_values(&by_uid), ["1", "2"], "an index was taken for another one");
    assert_eq!(snapshot.keys_by_index(&by_uid, &"2".to_owned()), [ObjectKey::new("n", "b")]);
}

/// An object that counts the look-ups of its labels.
#[derive(Clone, Debug)]
struct Counted {
    object: Object,
    lookups: Arc<AtomicUsize>,
}

impl Stored for Counted {
    fn key(&self) -> &ObjectKey {
        self.object.key()
    }

    fn uid(&self) -> Cow<'_, str> {
        self.object.uid()
    }

    fn resource_version(&self) -> Cow<'_, str> {
        self.object.resource_version()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.object.is_same(&other.object)
    }

    fn size_bytes(&self) -> usize {
        self.object.size_bytes()
    }

    fn labels_json(&self) -> &[u8] {
        self.object.labels_json()
    }

    fn label(&self, key: &str) -> Option<Cow<'_, str>> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.object.label(key)
    }
}

#[test]
fn label_index_limits_a_selector_to_its_candidates() {
    let lookups = Arc::new(AtomicUsize::new(0));
    let mut indexer = Indexer::new();
    indexer.add_label_index();
    for n in 0..100_u64 {
        let labels = if n < 3 { r#"{"app":"web"}"# } else { r#"{"tier":"1"}"# };
        let object = object(&labeled(&format!("o{n}"), "1", n, labels));
        indexer.apply(Delta::Upsert(Counted { object, lookups: lookups.clone() }), &mut Vec::new());
    }
    let check = |selector: &str, found: usize, examined: usize| {
        lookups.store(0, Ordering::Relaxed);
        let selector = LabelSelector::parse(selector).unwrap();
        assert_eq!(indexer.current().select(&selector).len(), found, "{selector:?}");
        assert_eq!(lookups.load(Ordering::Relaxed), examined, "{selector:?} examined too many or too few objects");
    };
    check("app=web", 3, 3);
    check("app in (web,db)", 3, 3);
    check("app", 3, 3);
    check("app=db", 0, 0);
    // A label that is absent or different has no candidates in the index.
    check("!app", 97, 100);
    check("app!=web", 97, 100);
}

#[test]
fn label_index_does_not_change_selector_results() {
    let objects = [
        labeled("a", "1", 1, r#"{"app":"web","tier":"1"}"#),
        labeled("b", "2", 2, r#"{"app":"db","tier":"5"}"#),
        labeled("c", "3", 3, r#"{"app.x":"web"}"#),
        labeled("d", "4", 4, "{}"),
    ];
    for index_first in [true, false] {
        let mut plain = Copy::new();
        plain.replace(&objects, "4");
        let mut indexed = Copy::new();
        if index_first {
            indexed.indexer.add_label_index();
        }
        indexed.replace(&objects, "4");
        indexed.indexer.add_label_index();
        let check = |selector: &str, expected: &[&str]| {
            let selector = LabelSelector::parse(selector).unwrap();
            for copy in [&plain, &indexed] {
                let found = copy.indexer.current().select(&selector);
                let found: Vec<&str> = found.iter().map(|object| object.name()).collect();
                assert_eq!(found, expected, "{selector:?}");
            }
        };
        check("", &["a", "b", "c", "d"]);
        check("app=web", &["a"]);
        check("app in (web,db)", &["a", "b"]);
        check("app in (web,db),tier!=1", &["b"]);
        check("app", &["a", "b"]);
        check("!app", &["c", "d"]);
        check("tier>2", &["b"]);
        check("app!=web", &["b", "c", "d"]);
    }
}

#[tokio::test(start_paused = true)]
async fn wait_for_version_ends_at_a_bookmark() {
    let mut copy = Copy::new();
    let store = copy.indexer.reader();
    let second = Duration::from_secs(1);
    let late = store.wait_for_version("7", second).await.unwrap_err();
    assert!(matches!(&late, WaitError::TimedOut { reached, .. } if reached.is_empty()), "{late}");
    copy.replace(&[raw("a", "1", 5)], "5");
    copy.indexer.publish();
    assert_eq!(store.wait_for_version("5", second).await.unwrap().len(), 1);
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.wait_for_version("7", Duration::from_secs(60)).await.map(|seen| seen.version().to_owned()) }
    });
    tokio::task::yield_now().await;
    copy.fifo.push_version("6");
    copy.drain();
    copy.indexer.publish();
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished(), "a wait ended before its version");
    copy.fifo.push_version("9");
    copy.drain();
    copy.indexer.publish();
    assert_eq!(waiting.await.unwrap().unwrap(), "9");
    let odd = store.wait_for_version("x", second).await.unwrap_err();
    assert!(matches!(odd, WaitError::Incomparable { .. }), "{odd}");
    drop(copy);
    let ended = store.wait_for_version("10", second).await.unwrap_err();
    assert_eq!(ended, WaitError::Ended { reached: "9".to_owned() });
}

#[tokio::test(start_paused = true)]
async fn wait_until_synced_ends_with_the_initial_state() {
    let mut copy = Copy::new();
    let store = copy.indexer.reader();
    let second = Duration::from_secs(1);
    let early = store.wait_until_synced(second).await.unwrap_err();
    assert!(matches!(early, WaitError::TimedOut { .. }), "an empty store is synced: {early}");
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.wait_until_synced(Duration::from_secs(60)).await.map(|state| state.len()) }
    });
    tokio::task::yield_now().await;
    // An event before the initial state does not complete it.
    copy.event(EventChange::Added, &raw("a", "1", 1));
    copy.indexer.publish();
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished(), "synced before the initial state is complete");
    copy.replace(&[raw("a", "1", 1), raw("b", "2", 2)], "2");
    copy.indexer.publish();
    assert_eq!(waiting.await.unwrap(), Ok(2), "the state of the wait is not the initial state");
    drop(copy);
    assert!(store.wait_until_synced(second).await.is_ok(), "a store that ended has its state");
}

#[tokio::test(start_paused = true)]
async fn wait_for_a_change_misses_no_change() {
    let mut copy = Copy::new();
    let store = copy.indexer.reader();
    let seen = store.snapshot();
    copy.replace(&[raw("a", "1", 5)], "5");
    copy.indexer.publish();
    assert!(store.changed(&seen).await, "what was published before the wait was slept through");
    let seen = store.snapshot();
    assert!(tokio::time::timeout(Duration::from_secs(5), store.changed(&seen)).await.is_err());
    drop(copy);
    assert!(!store.changed(&seen).await);
}

#[test]
fn own_writes_overlay_the_store_until_it_catches_up() {
    let mut copy = Copy::new();
    let mut writes = OwnWrites::new(copy.indexer.reader());
    let read = |writes: &mut OwnWrites| writes.get("n/a").map(|object| object.resource_version().into_owned());
    copy.replace(&[raw("a", "1", 5), raw("b", "2", 2)], "5");
    copy.indexer.publish();
    assert_eq!(read(&mut writes).as_deref(), Some("5"));
    writes.record_write(object(&raw("a", "1", 8))).unwrap();
    writes.record_write(object(&raw("a", "1", 7))).unwrap();
    writes.record_write(object(&raw("c", "3", 9))).unwrap();
    assert_eq!(read(&mut writes).as_deref(), Some("8"), "an older answer took the place of a newer one");
    let list: Vec<String> = writes.list().iter().map(|object| format!("{object:?}")).collect();
    assert_eq!(list.len(), 3);
    assert!(list[0].starts_with("n/a@8") && list[2].starts_with("n/c@9"), "{list:?}");
    // The store sees version 8 of a, and later its deletion. Others deleted c before the store saw
    // it.
    copy.event(EventChange::Modified, &raw("a", "1", 8));
    copy.indexer.publish();
    assert_eq!(writes.forget_seen(), 1);
    copy.event(EventChange::Deleted, &raw("a", "1", 10));
    copy.fifo.push_version("11");
    copy.drain();
    copy.indexer.publish();
    assert_eq!(read(&mut writes), None);
    assert!(writes.get("n/c").is_none(), "what the store knows to be gone was brought back");
    assert_eq!(writes.forget_seen(), 0);
}

#[test]
fn own_deletions_hide_objects_until_the_store_catches_up() {
    let mut copy = Copy::new();
    let mut writes = OwnWrites::new(copy.indexer.reader());
    let key = ObjectKey::new("n", "a");
    copy.replace(&[raw("a", "1", 5)], "5");
    copy.indexer.publish();
    writes.record_deletion(&key, "1", None).unwrap();
    assert!(writes.get("n/a").is_none() && writes.list().is_empty());
    // A later object with the same name has another uid and is shown.
    copy.event(EventChange::Added, &raw("a", "2", 9));
    copy.indexer.publish();
    assert_eq!(writes.get("n/a").unwrap().uid(), "2");
    // An object that was created and deleted before the store saw either stays hidden.
    writes.record_write(object(&raw("b", "3", 12))).unwrap();
    let key = ObjectKey::new("n", "b");
    writes.record_deletion(&key, "3", None).unwrap();
    assert!(writes.get("n/b").is_none());
    copy.event(EventChange::Added, &raw("b", "3", 12));
    copy.indexer.publish();
    assert!(writes.get("n/b").is_none(), "a deleted object came back");
    copy.event(EventChange::Deleted, &raw("b", "3", 13));
    copy.fifo.push_version("13");
    copy.drain();
    copy.indexer.publish();
    assert!(writes.get("n/b").is_none());
    assert_eq!(writes.forget_seen(), 0);
    let odd = RawObject::new(Bytes::from_static(br#"{"metadata":{"name":"x","resourceVersion":"?"}}"#)).unwrap();
    assert!(matches!(writes.record_write(object(&odd)), Err(RecordError::Incomparable { .. })));
}

#[test]
fn late_response_does_not_replace_a_newer_own_write() {
    let mut copy = Copy::new();
    let mut writes = OwnWrites::new(copy.indexer.reader());
    let key = ObjectKey::new("n", "a");
    copy.replace(&[raw("a", "1", 5)], "5");
    copy.indexer.publish();
    let read = |writes: &mut OwnWrites| writes.get("n/a").map(|object| object.resource_version().into_owned());
    writes.record_write(object(&raw("a", "1", 7))).unwrap();
    writes.record_write(object(&raw("a", "1", 8))).unwrap();
    assert_eq!(read(&mut writes).as_deref(), Some("8"), "a newer write was not recorded");
    writes.record_deletion(&key, "1", Some("9")).unwrap();
    writes.record_write(object(&raw("a", "1", 8))).unwrap();
    assert_eq!(read(&mut writes), None, "a late response brought a deleted object back");
    writes.record_write(object(&raw("a", "2", 10))).unwrap();
    assert_eq!(read(&mut writes).as_deref(), Some("10"), "an object that was created again is hidden");
    writes.record_deletion(&key, "1", Some("9")).unwrap();
    assert_eq!(read(&mut writes).as_deref(), Some("10"), "a late deletion hides a newer object");
    // Without a version, any deletion hides the object until the next write.
    writes.record_deletion(&key, "2", None).unwrap();
    assert_eq!(read(&mut writes), None);
    writes.record_write(object(&raw("a", "3", 12))).unwrap();
    assert_eq!(read(&mut writes).as_deref(), Some("12"));
}

#[test]
fn own_deletion_does_not_wait_for_a_write_of_another_object() {
    let mut copy = Copy::new();
    let mut writes = OwnWrites::new(copy.indexer.reader());
    copy.replace(&[raw("a", "1", 5)], "5");
    copy.indexer.publish();
    writes.record_write(object(&raw("a", "2", 8))).unwrap();
    writes.record_deletion(&ObjectKey::new("n", "a"), "1", None).unwrap();
    copy.event(EventChange::Deleted, &raw("a", "1", 6));
    copy.event(EventChange::Added, &raw("a", "3", 7));
    copy.indexer.publish();
    assert_eq!(writes.get("n/a").unwrap().uid(), "3", "the deletion of one object hides another");
}

#[test]
fn unseen_own_writes_are_bounded() {
    let copy = Copy::new();
    let mut writes = OwnWrites::new(copy.indexer.reader());
    for number in 0..OWN_WRITES_MAX {
        writes.record_write(object(&raw(&format!("o{number}"), "1", 5))).unwrap();
    }
    assert_eq!(writes.record_write(object(&raw("x", "1", 5))), Err(RecordError::Full));
    writes.record_write(object(&raw("o1", "1", 6))).unwrap();
}

proptest! {
    /// A reader that receives only the changes ends with the same objects as the store, and every
    /// index agrees with a scan of all objects.
    #[test]
    fn changes_and_indexes_agree_with_the_state(
        steps in prop::collection::vec((0_u8..4, 0_u8..4, 0_u8..2, any::<bool>()), 1..60),
    ) {
        let mut copy = Copy::new();
        let by_uid = copy.indexer.add_index(|object: &Object| [object.uid().into_owned()]);
        let by_parity = copy.indexer.add_index(|object: &Object| {
            let version: u64 = object.resource_version().parse().unwrap();
            (0..version % 3).collect::<Vec<u64>>()
        });
        let mut mirror = BTreeMap::new();
        for (version, (name, operation, uid, relist)) in (1_u64..).zip(steps) {
            let object = raw(&format!("o{name}"), &uid.to_string(), version);
            let changes = if relist {
                let current = copy.indexer.current();
                let kept = current.iter().filter(|o| !o.name().ends_with('1'));
                let mut kept: Vec<RawObject> = kept.map(|o| RawObject::new(o.json().clone()).unwrap()).collect();
                kept.push(object);
                copy.replace(&kept, &version.to_string())
            } else {
                let kinds = [EventChange::Added, EventChange::Modified, EventChange::Deleted];
                copy.event(kinds[usize::from(operation.min(2))], &object)
            };
            for change in &changes {
                let key = change.key().clone();
                match change {
                    Change::Added { object, .. } => {
                        prop_assert!(mirror.insert(key, object.clone()).is_none(), "added twice");
                    }
                    Change::Updated { old, new, .. } => {
                        let before = mirror.insert(key, new.clone());
                        prop_assert!(before.is_some_and(|before| before.is_same(old)), "the old state was not the last");
                        prop_assert_eq!(old.uid(), new.uid());
                    }
                    Change::Deleted { last, .. } => {
                        let before = mirror.remove(&key);
                        prop_assert!(before.is_some_and(|before| before.uid() == last.uid()), "deleted what was not there");
                    }
                }
            }
            let snapshot = copy.indexer.current();
            let store: Vec<&Object> = snapshot.iter().collect();
            prop_assert_eq!(store.len(), mirror.len());
            prop_assert!(store.iter().zip(mirror.values()).all(|(a, b)| a.is_same(b)), "the changes lead elsewhere");
            let uids: BTreeSet<String> = snapshot.iter().map(|object| object.uid().into_owned()).collect();
            prop_assert_eq!(snapshot.index_values(&by_uid), uids.iter().cloned().collect::<Vec<_>>());
            for parity in 0..3 {
                let found: Vec<ObjectKey> = snapshot.by_index(&by_parity, &parity).map(|o| o.key().clone()).collect();
                let expected: Vec<ObjectKey> = snapshot
                    .iter()
                    .filter(|o| o.resource_version().parse::<u64>().unwrap() % 3 > parity)
                    .map(|o| o.key().clone())
                    .collect();
                prop_assert_eq!(found, expected, "an index says something else than its objects");
            }
        }
    }
}
