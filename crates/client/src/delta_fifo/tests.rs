//! Tests the guarantees of the queue, which include the rules of client-go's queues. A comment
//! names each intentional difference.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::decode::{KeepJson, decode_with};
use crate::indexer::{Change, Indexer, Origin};
use crate::stored::Typed;
use EventChange::{Added, Deleted, Modified};

fn raw(name: &str, uid: &str, version: u64) -> RawObject {
    RawObject::new(Bytes::from(format!(
        r#"{{"metadata":{{"name":"{name}","uid":"{uid}","resourceVersion":"{version}"}},"data":{version}}}"#
    )))
    .unwrap()
}

fn bad(name: &str, uid: &str, version: u64) -> RawObject {
    RawObject::new(Bytes::from(format!(
        r#"{{"metadata":{{"name":"{name}","uid":"{uid}","resourceVersion":"{version}"}},"data":"x"}}"#
    )))
    .unwrap()
}

/// A queue and its store.
struct QueueAndStore<D: Decode> {
    fifo: DeltaFifo<D>,
    indexer: Indexer<D::Stored>,
}

impl<D: Decode> QueueAndStore<D> {
    fn new(decoder: D, config: FifoConfig) -> Self {
        QueueAndStore { fifo: DeltaFifo::new(decoder, config), indexer: Indexer::new() }
    }

    fn push(&mut self, change: EventChange, object: &RawObject) -> PushOutcome {
        self.fifo.push(self.indexer.current(), change, object)
    }

    fn replace(&mut self, objects: &[RawObject], version: &str) {
        self.fifo.begin_replace(self.indexer.current());
        for object in objects {
            self.fifo.collect(Added, object);
        }
        assert!(self.fifo.commit_replace(version));
    }

    /// Applies the next batch and returns its changes.
    fn batch(&mut self, max: usize) -> Vec<String> {
        let mut changes = Vec::new();
        for delta in self.fifo.pop_batch(self.indexer.current(), max) {
            self.indexer.apply(delta, &mut changes);
        }
        self.indexer.publish();
        changes.iter().map(show).collect()
    }

    /// Applies everything that is queued.
    fn drain(&mut self) -> Vec<String> {
        let mut received = Vec::new();
        while !self.fifo.is_empty() {
            received.extend(self.batch(100));
        }
        received
    }

    fn state(&self) -> Vec<String> {
        self.indexer.current().iter().map(|object| format!("{object:?}")).collect()
    }
}

fn show<S: Stored>(change: &Change<S>) -> String {
    let name = |object: &S| format!("{}@{}", object.key(), object.resource_version());
    match change {
        Change::Added { object, origin } => format!("+{} {origin:?}", name(object)),
        Change::Updated { old, new, origin } => format!("{}>{} {origin:?}", name(old), new.resource_version()),
        Change::Deleted { last, last_is_final, origin } => {
            format!("-{} {} {origin:?}", name(last), if *last_is_final { "final" } else { "known" })
        }
    }
}

fn queue_with_every_delta() -> QueueAndStore<KeepJson> {
    QueueAndStore::new(KeepJson, FifoConfig::default())
}

fn latest() -> QueueAndStore<KeepJson> {
    QueueAndStore::new(KeepJson, FifoConfig { compaction: Compaction::LatestPerKey, ..FifoConfig::default() })
}

/// Decodes the number in `data` and counts its calls. Anything else is undecodable.
fn numbers() -> (QueueAndStore<impl Decode<Stored = Typed<u64>>>, Arc<AtomicU64>) {
    #[derive(serde::Deserialize)]
    struct Data {
        data: u64,
    }
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    let decoder = decode_with(move |raw| {
        counted.fetch_add(1, Ordering::Relaxed);
        let data: Data = serde_json::from_slice(raw.json()).map_err(DecodeError::new)?;
        Ok(data.data)
    });
    (QueueAndStore::new(decoder, FifoConfig::default()), calls)
}

#[test]
fn first_state_is_reported_as_initial_and_synced_after_it_is_applied() {
    let mut pair = queue_with_every_delta();
    pair.replace(&[raw("a", "1", 1), raw("b", "2", 2)], "2");
    assert!(!pair.indexer.current().is_synced(), "synced before the store has it");
    assert_eq!(pair.drain(), ["+a@1 Initial", "+b@2 Initial"]);
    assert!(pair.indexer.current().is_synced());
    assert_eq!(pair.indexer.current().version(), "2");
}

#[test]
fn relist_reports_deletions_before_changes() {
    let mut pair = queue_with_every_delta();
    pair.replace(&[raw("a", "1", 1), raw("b", "2", 2)], "2");
    pair.drain();
    pair.replace(&[raw("b", "2", 5)], "5");
    assert_eq!(pair.drain(), ["-a@1 known Relist", "b@2>5 Relist"]);
}

#[test]
fn relist_is_compared_with_queued_changes() {
    let mut pair = queue_with_every_delta();
    pair.push(Added, &raw("a", "1", 1));
    pair.replace(&[], "2");
    assert_eq!(pair.drain(), ["+a@1 Live", "-a@1 known Initial"]);
    // Also while a batch is being applied.
    let mut pair = queue_with_every_delta();
    pair.push(Added, &raw("a", "1", 1));
    let before = pair.indexer.current().clone();
    let taken = pair.fifo.pop_batch(&before, 10);
    pair.fifo.begin_replace(&before);
    pair.fifo.commit_replace("2");
    for delta in taken {
        pair.indexer.apply(delta, &mut Vec::new());
    }
    assert_eq!(pair.drain(), ["-a@1 known Initial"]);
    assert_eq!(pair.state(), [""; 0]);
}

#[test]
fn changed_uid_is_reported_as_delete_and_add() {
    let mut pair = queue_with_every_delta();
    pair.replace(&[raw("a", "1", 1)], "1");
    pair.drain();
    pair.push(Deleted, &raw("a", "1", 3));
    pair.replace(&[raw("a", "2", 4)], "4");
    assert_eq!(pair.drain(), ["-a@3 final Live", "+a@4 Relist"]);
    // client-go reports one update from the old object to the new one.
    pair.replace(&[raw("a", "3", 6)], "6");
    assert_eq!(pair.drain(), ["-a@4 known Relist", "+a@6 Relist"]);
    pair.push(Added, &raw("a", "4", 8));
    assert_eq!(pair.drain(), ["-a@6 known Live", "+a@8 Live"]);
}

#[test]
fn resync_never_reports_an_old_state() {
    let mut pair = queue_with_every_delta();
    pair.replace(&[raw("a", "1", 1), raw("b", "2", 2), raw("c", "3", 3)], "3");
    pair.drain();
    pair.push(Modified, &raw("a", "1", 5));
    pair.fifo.resync();
    // Changes precede the resync, which reports each object in its current state.
    assert_eq!(pair.batch(2), ["a@1>5 Live"]);
    assert_eq!(pair.batch(2), ["a@5>5 Resync", "b@2>2 Resync"]);
    pair.push(Modified, &raw("c", "3", 7));
    assert_eq!(pair.batch(2), ["c@3>7 Live"], "a resync went before what changed");
    assert_eq!(pair.batch(2), ["c@7>7 Resync"]);
    assert!(!pair.fifo.is_resyncing());
    // An object that changes during the resync is not reported in its old state.
    pair.fifo.resync();
    let sync = pair.fifo.pop_batch(pair.indexer.current(), 1);
    pair.push(Deleted, &raw("a", "1", 9));
    let mut changes = Vec::new();
    for delta in pair.fifo.pop_batch(pair.indexer.current(), 1).into_iter().chain(sync) {
        pair.indexer.apply(delta, &mut changes);
    }
    assert_eq!(changes.iter().map(show).collect::<Vec<_>>(), ["-a@9 final Live"]);
}

#[test]
fn distinct_keys_allows_each_key_once_per_batch() {
    let events = |pair: &mut QueueAndStore<KeepJson>| {
        pair.push(Added, &raw("a", "1", 1));
        pair.push(Added, &raw("b", "2", 2));
        pair.push(Modified, &raw("a", "1", 3));
    };
    let mut pair = QueueAndStore::new(KeepJson, FifoConfig { distinct_keys: true, ..FifoConfig::default() });
    events(&mut pair);
    assert_eq!(pair.batch(10), ["+a@1 Live", "+b@2 Live"]);
    assert_eq!(pair.batch(10), ["a@1>3 Live"]);
    // Otherwise only `max` limits a batch.
    let mut pair = queue_with_every_delta();
    events(&mut pair);
    assert_eq!(pair.batch(2), ["+a@1 Live", "+b@2 Live"]);
    assert_eq!(pair.batch(2), ["a@1>3 Live"]);
}

#[test]
fn replacement_is_a_separate_batch_and_may_be_empty() {
    let mut pair = queue_with_every_delta();
    pair.push(Added, &raw("z", "9", 1));
    pair.replace(&[raw("a", "1", 2), raw("b", "2", 3), raw("c", "3", 4)], "4");
    pair.push(Modified, &raw("a", "1", 5));
    pair.push(Modified, &raw("b", "2", 6));
    assert_eq!(pair.batch(100), ["+z@1 Live"]);
    let initial = ["-z@1 known Initial", "+a@2 Initial", "+b@3 Initial", "+c@4 Initial"];
    assert_eq!(pair.batch(1), initial, "a whole state was split");
    assert_eq!(pair.batch(100), ["a@2>5 Live", "b@3>6 Live"]);
    let mut empty = queue_with_every_delta();
    empty.replace(&[], "1");
    assert_eq!(empty.drain(), [""; 0]);
    assert!(empty.indexer.current().is_synced());
}

#[test]
fn order_across_objects_is_kept() {
    let mut pair = queue_with_every_delta();
    for (name, version) in [("b", 1), ("a", 2), ("b", 3), ("c", 4), ("a", 5)] {
        pair.push(Modified, &raw(name, name, version));
    }
    assert_eq!(pair.drain(), ["+b@1 Live", "+a@2 Live", "b@1>3 Live", "+c@4 Live", "a@2>5 Live"]);
}

#[test]
fn duplicate_and_older_events_are_dropped() {
    let mut pair = queue_with_every_delta();
    assert_eq!(pair.push(Deleted, &raw("a", "1", 1)), PushOutcome::Unchanged, "a delete of what never was");
    assert_eq!(pair.push(Added, &raw("a", "1", 2)), PushOutcome::Queued);
    assert_eq!(pair.push(Added, &raw("a", "1", 2)), PushOutcome::Unchanged, "what is queued was queued again");
    assert_eq!(pair.push(Modified, &raw("a", "1", 1)), PushOutcome::Stale);
    assert_eq!(pair.push(Deleted, &raw("a", "1", 4)), PushOutcome::Queued);
    assert_eq!(pair.push(Deleted, &raw("a", "1", 4)), PushOutcome::Unchanged, "two deletes are one");
    assert_eq!(pair.push(Added, &raw("a", "1", 3)), PushOutcome::Stale, "a deleted object came back");
    assert_eq!(pair.push(Added, &raw("a", "2", 5)), PushOutcome::Queued);
    assert_eq!(pair.drain(), ["+a@2 Live", "-a@4 final Live", "+a@5 Live"]);
    assert_eq!(pair.push(Added, &raw("a", "2", 5)), PushOutcome::Unchanged);
}

#[test]
fn latest_per_key_keeps_the_position_of_the_newest_state() {
    let mut pair = latest();
    pair.replace(&[raw("a", "1", 1)], "1");
    pair.drain();
    pair.push(Modified, &raw("a", "1", 2));
    pair.push(Added, &raw("b", "2", 3));
    pair.push(Modified, &raw("a", "1", 4));
    pair.push(Modified, &raw("b", "2", 5));
    assert_eq!((pair.fifo.len(), pair.drain()), (2, vec!["a@1>4 Live".to_owned(), "+b@5 Live".to_owned()]));
    // An object that was created and deleted in the queue is not reported; a known object's
    // deletion is.
    pair.push(Added, &raw("c", "3", 6));
    pair.push(Modified, &raw("b", "2", 7));
    pair.push(Deleted, &raw("c", "3", 8));
    pair.push(Deleted, &raw("b", "2", 9));
    assert_eq!(pair.drain(), ["-b@9 final Live"]);
    // Another uid is another object: the deletion of the previous one is reported.
    pair.push(Deleted, &raw("a", "1", 10));
    pair.push(Added, &raw("a", "5", 11));
    pair.push(Modified, &raw("a", "5", 12));
    assert_eq!(pair.drain(), ["-a@10 final Live", "+a@12 Live"]);
    assert_eq!(pair.fifo.bytes(), 0);
}

#[test]
fn latest_per_key_remembers_a_queued_deletion_after_a_later_object_is_omitted() {
    // The upsert of the first object is being applied. Its deletion is queued. The second object
    // was created and deleted within the queue.
    fn queue() -> QueueAndStore<KeepJson> {
        let mut pair = latest();
        pair.push(Added, &raw("a", "1", 1));
        let taken = pair.fifo.pop_batch(pair.indexer.current(), 10);
        pair.push(Deleted, &raw("a", "1", 3));
        pair.push(Added, &raw("a", "2", 4));
        pair.push(Deleted, &raw("a", "2", 5));
        for delta in taken {
            pair.indexer.apply(delta, &mut Vec::new());
        }
        pair
    }
    let mut pair = queue();
    pair.replace(&[], "6");
    assert_eq!(pair.drain(), ["-a@3 final Live"], "a relist reported a queued deletion once more");
    let mut pair = queue();
    assert_eq!(pair.push(Modified, &raw("a", "1", 2)), PushOutcome::Stale, "a deleted object came back");
    assert_eq!(pair.push(Modified, &raw("a", "2", 4)), PushOutcome::Stale, "a deleted object came back");
    assert_eq!(pair.drain(), ["-a@3 final Live"]);
}

#[test]
fn full_queue_stops_its_producer_and_drops_nothing() {
    let config = FifoConfig { bytes_max: 5 * (DELTA_BYTES + 80), ..FifoConfig::default() };
    let mut pair = QueueAndStore::new(KeepJson, config);
    let mut version = 0;
    while pair.fifo.has_room() {
        version += 1;
        pair.push(Added, &raw("a", "1", version));
    }
    assert!((4..=6).contains(&version), "{version} deltas");
    // Objects that were already read are accepted above the limit.
    pair.push(Added, &raw("b", "2", 100));
    assert!(!pair.fifo.has_room());
    assert_eq!(pair.fifo.len() as u64, version + 1);
    pair.batch(2);
    assert!(pair.fifo.has_room());
    assert_eq!(pair.drain().len() as u64, version - 1);
    assert_eq!(pair.fifo.bytes(), 0, "the books are wrong");
    // With `LatestPerKey` a constantly changing object does not fill the queue.
    let mut pair = QueueAndStore::new(KeepJson, FifoConfig { compaction: Compaction::LatestPerKey, ..config });
    for version in 1..10_000 {
        pair.push(Added, &raw("a", "1", version));
    }
    assert!(pair.fifo.has_room());
    assert!(pair.fifo.queue.len() < 2 * EMPTY_SLOTS_MAX, "emptied slots were kept");
    assert_eq!(pair.drain(), ["+a@9999 Live"]);
    // The state is still found after empty slots were removed.
    for version in 10_000..10_500 {
        pair.push(Added, &raw(&format!("o{}", version % 3), "1", version));
        pair.push(Added, &raw("b", "1", version));
        pair.push(Deleted, &raw("b", "1", version));
    }
    assert_eq!(pair.drain(), ["+o0@10497 Live", "+o1@10498 Live", "+o2@10499 Live"]);
}

#[test]
fn queue_accounts_each_object_and_each_delta() {
    let mut pair = queue_with_every_delta();
    let mut check = |promise: &str, push: &dyn Fn(&mut QueueAndStore<KeepJson>), more: usize| {
        let before = pair.fifo.bytes();
        push(&mut pair);
        assert_eq!(pair.fifo.bytes() - before, more, "{promise}");
    };
    let object = raw("a", "1", 1);
    let size = object.json().len();
    check("an upsert is its object and a delta", &|pair| drop(pair.push(Added, &object)), size + DELTA_BYTES);
    let last = raw("a", "1", 2);
    check("a deletion has its last state", &|pair| drop(pair.push(Deleted, &last)), size + DELTA_BYTES);
    check("an unknown deletion is not queued", &|pair| drop(pair.push(Deleted, &raw("b", "1", 3))), 0);
    check("a version is a delta", &|pair| pair.fifo.push_version("3"), DELTA_BYTES);
    check("a later version replaces it", &|pair| pair.fifo.push_version("4"), 0);
    check("a new uid is an upsert", &|pair| drop(pair.push(Added, &raw("a", "5", 5))), size + DELTA_BYTES);
    check("a last state of another uid is not kept", &|pair| drop(pair.push(Deleted, &raw("a", "6", 6))), DELTA_BYTES);
    pair.drain();
    assert_eq!(pair.fifo.bytes(), 0, "a drained queue still accounts bytes");
}

#[test]
fn replacement_counts_and_accounts_its_differences() {
    fn check(before: &[RawObject], after: &[RawObject], differences: (usize, usize)) {
        let mut pair = queue_with_every_delta();
        pair.replace(before, "5");
        pair.drain();
        pair.replace(after, "9");
        let deltas = differences.0 + differences.1 + 1;
        assert_eq!(
            pair.fifo.bytes(),
            DELTA_BYTES * deltas,
            "a difference is a delta, and so is the version: {after:?}"
        );
        let batch = pair.fifo.pop_batch(pair.indexer.current(), 1);
        let [Delta::Replace(replacement)] = &batch[..] else { panic!("not a replacement: {batch:?}") };
        assert_eq!((replacement.differences(), replacement.version()), (differences, "9"), "{after:?}");
    }
    let [a, b, c] = [raw("a", "1", 1), raw("b", "2", 2), raw("c", "3", 3)];
    check(&[], &[a.clone(), b.clone()], (0, 2));
    check(&[a.clone(), b.clone(), c.clone()], &[raw("a", "1", 6)], (2, 1));
    let only_a = std::slice::from_ref(&a);
    check(only_a, &[a.clone(), b, c, raw("d", "4", 4)], (0, 3));
    check(only_a, only_a, (0, 0));
}

#[test]
fn queue_is_full_at_exactly_its_limit() {
    let bytes = 2 * (raw("a", "1", 1).json().len() + DELTA_BYTES);
    for (bytes_max, has_room) in [(bytes + 1, true), (bytes, false), (bytes - 1, false)] {
        let mut pair = QueueAndStore::new(KeepJson, FifoConfig { bytes_max, ..FifoConfig::default() });
        pair.push(Added, &raw("a", "1", 1));
        assert!(pair.fifo.has_room());
        pair.push(Added, &raw("b", "2", 2));
        assert_eq!(pair.fifo.has_room(), has_room, "{bytes} of {bytes_max} bytes are queued");
    }
}

#[test]
fn changed_options_apply_to_later_deltas() {
    let mut pair = queue_with_every_delta();
    pair.push(Added, &raw("a", "1", 1));
    pair.push(Modified, &raw("a", "1", 2));
    pair.fifo.set_config(FifoConfig { compaction: Compaction::LatestPerKey, ..FifoConfig::default() });
    pair.push(Modified, &raw("a", "1", 3));
    pair.push(Modified, &raw("a", "1", 4));
    assert_eq!(pair.drain(), ["+a@1 Live", "a@1>4 Live"]);
}

#[test]
fn adjacent_version_deltas_are_merged() {
    let mut pair = queue_with_every_delta();
    pair.replace(&[], "1");
    for version in 2..100 {
        pair.fifo.push_version(&version.to_string());
    }
    assert_eq!(pair.fifo.len(), 2);
    pair.drain();
    assert_eq!(pair.indexer.current().version(), "99");
}

#[test]
fn transform_runs_once_per_version_of_an_object() {
    let (mut pair, calls) = numbers();
    let calls = || calls.load(Ordering::Relaxed);
    pair.replace(&[raw("a", "1", 1), raw("b", "2", 2)], "2");
    pair.drain();
    assert_eq!(calls(), 2);
    // A relist, a repeated event and a resync do not decode again.
    pair.replace(&[raw("a", "1", 1), raw("b", "2", 2)], "3");
    pair.push(Added, &raw("a", "1", 1));
    pair.fifo.resync();
    pair.drain();
    while pair.fifo.is_resyncing() {
        pair.batch(1);
    }
    assert_eq!(calls(), 2, "an object was transformed twice");
    pair.push(Modified, &raw("a", "1", 4));
    pair.push(Modified, &raw("a", "1", 4));
    pair.replace(&[raw("a", "1", 4), raw("b", "2", 2)], "5");
    assert_eq!((calls(), pair.drain()), (3, vec!["a@1>4 Live".to_owned()]));
}

#[test]
fn undecodable_object_is_quarantined_and_others_are_delivered() {
    let (mut pair, calls) = numbers();
    pair.replace(&[raw("a", "1", 1), bad("b", "2", 2), raw("c", "3", 3)], "3");
    assert_eq!(pair.drain(), ["+a@1 Initial", "+c@3 Initial"]);
    fn quarantined<D: Decode>(pair: &QueueAndStore<D>) -> Vec<String> {
        let entries = pair.indexer.current().quarantine();
        entries.map(|(key, entry)| format!("{key}@{}", entry.version())).collect()
    }
    assert_eq!(quarantined(&pair), ["b@2"]);
    let entry = pair.indexer.current().quarantined("b").unwrap();
    assert!(entry.error().to_string().contains("invalid type: string \"x\""), "{entry:?}");
    assert_eq!(entry.raw().unwrap(), bad("b", "2", 2).json());
    assert_eq!((entry.uid(), entry.version()), ("2", "2"));
    // The last decodable state stays, and no deletion is reported.
    assert!(matches!(pair.push(Modified, &bad("a", "1", 4)), PushOutcome::Quarantined(_)));
    pair.push(Modified, &raw("c", "3", 5));
    assert_eq!(pair.drain(), ["c@3>5 Live"]);
    assert_eq!(**pair.indexer.current().get("a").unwrap(), 1);
    assert_eq!(quarantined(&pair), ["a@4", "b@2"]);
    // The same version is not decoded again, and no older version replaces it.
    let before = calls.load(Ordering::Relaxed);
    assert_eq!(pair.push(Modified, &bad("a", "1", 4)), PushOutcome::Unchanged);
    assert_eq!(pair.push(Modified, &raw("a", "1", 3)), PushOutcome::Stale);
    pair.replace(&[bad("a", "1", 4), bad("b", "2", 2), raw("c", "3", 5)], "6");
    assert_eq!(pair.drain(), [""; 0]);
    assert_eq!(calls.load(Ordering::Relaxed), before);
    // A decodable version releases the key, and so does the deletion.
    pair.push(Modified, &raw("a", "1", 7));
    pair.push(Deleted, &bad("b", "2", 8));
    assert_eq!(pair.drain(), ["a@1>7 Live"]);
    assert_eq!(quarantined(&pair), [""; 0]);
    // A deletion with an undecodable last state carries the last decodable one.
    pair.push(Deleted, &bad("a", "1", 9));
    assert_eq!(pair.drain(), ["-a@7 known Live"]);
    // A relist without the object removes it, quarantined or not.
    pair.push(Modified, &bad("c", "3", 10));
    pair.push(Added, &bad("d", "4", 11));
    pair.replace(&[], "12");
    assert_eq!(pair.drain(), ["-c@5 known Relist"]);
    assert_eq!(quarantined(&pair), [""; 0]);
}

#[test]
fn undecodable_object_with_a_new_uid_removes_the_old_state() {
    let (mut pair, _) = numbers();
    pair.replace(&[raw("a", "1", 1), raw("b", "2", 2)], "2");
    pair.drain();
    pair.push(Modified, &bad("a", "9", 3));
    assert_eq!(pair.drain(), ["-a@1 known Live"]);
    pair.replace(&[bad("a", "9", 3), bad("b", "9", 4)], "5");
    assert_eq!(pair.drain(), ["-b@2 known Relist"]);
    assert_eq!((pair.indexer.current().len(), pair.indexer.current().quarantine().count()), (0, 2));
    pair.push(Modified, &raw("b", "9", 6));
    assert_eq!(pair.drain(), ["+b@6 Live"]);
}

#[test]
fn quarantine_is_released_in_every_order_of_events() {
    for compaction in [Compaction::KeepEvery, Compaction::LatestPerKey] {
        for applied in [false, true] {
            let (mut numbers, _) = numbers();
            numbers.fifo.config.compaction = compaction;
            for (change, object) in [
                (Added, bad("a", "1", 1)),
                (Modified, raw("a", "1", 2)),
                (Modified, bad("a", "1", 3)),
                (Deleted, raw("a", "1", 4)),
                (Added, raw("b", "2", 5)),
                (Modified, bad("b", "2", 6)),
                (Deleted, bad("b", "2", 7)),
            ] {
                numbers.push(change, &object);
                if applied {
                    numbers.drain();
                }
            }
            numbers.drain();
            let left = numbers.indexer.current().quarantine().count();
            assert_eq!((left, numbers.indexer.current().len()), (0, 0), "{compaction:?}, applied at once: {applied}");
            assert!(numbers.fifo.quarantine.is_empty() && numbers.fifo.quarantine_bytes == 0);
        }
    }
}

#[test]
fn quarantined_objects_are_decoded_again_on_request() {
    let ready = Arc::new(AtomicU64::new(0));
    let seen = ready.clone();
    let decoder = decode_with(move |_| match seen.load(Ordering::Relaxed) {
        0 => Err(DecodeError::new("not yet")),
        number => Ok(number),
    });
    let mut pair = QueueAndStore::new(decoder, FifoConfig::default());
    pair.replace(&[raw("a", "1", 1), raw("b", "2", 2)], "2");
    assert_eq!(pair.drain(), [""; 0]);
    assert_eq!(pair.fifo.retry_quarantined(pair.indexer.current()), 0);
    ready.store(7, Ordering::Relaxed);
    assert_eq!(pair.fifo.retry_quarantined(pair.indexer.current()), 2);
    assert_eq!(pair.drain(), ["+a@1 Live", "+b@2 Live"]);
    assert_eq!(pair.indexer.current().quarantine().count(), 0);
}

#[test]
fn quarantined_bytes_are_bounded() {
    let mut pair = QueueAndStore::new(decode_with(|_| Err::<(), _>(DecodeError::new("no"))), FifoConfig::default());
    let filler = "x".repeat(QUARANTINE_BYTES_MAX / 3);
    for name in ["a", "b", "c", "d"] {
        let json =
            format!(r#"{{"metadata":{{"name":"{name}","uid":"{name}","resourceVersion":"1"}},"data":"{filler}"}}"#);
        pair.push(Added, &RawObject::new(Bytes::from(json)).unwrap());
    }
    pair.drain();
    let kept: Vec<bool> = pair.indexer.current().quarantine().map(|(_, entry)| entry.raw().is_some()).collect();
    assert_eq!(kept, [true, true, false, false]);
}

#[test]
fn initial_events_may_delete_and_recreate_an_object() {
    let mut pair = queue_with_every_delta();
    pair.replace(&[raw("a", "1", 1), raw("b", "2", 2)], "2");
    pair.drain();
    pair.fifo.begin_replace(pair.indexer.current());
    for (change, object) in [
        (Added, raw("a", "1", 1)),
        (Added, raw("b", "2", 2)),
        (Added, raw("c", "3", 3)),
        (Deleted, raw("a", "1", 4)),
        (Deleted, raw("b", "2", 5)),
        (Added, raw("b", "9", 6)),
        (Deleted, raw("c", "3", 7)),
    ] {
        pair.fifo.collect(change, &object);
    }
    assert_eq!(pair.fifo.collect(Modified, &raw("b", "9", 5)), PushOutcome::Stale);
    pair.fifo.commit_replace("7");
    assert_eq!(pair.drain(), ["-a@1 known Relist", "-b@2 known Relist", "+b@6 Relist"]);
    assert_eq!(pair.fifo.collect(Added, &raw("x", "1", 1)), PushOutcome::NotCollecting);
}

#[test]
fn deletion_in_an_incomplete_state_is_queued_if_the_object_is_known() {
    let (mut pair, _) = numbers();
    pair.fifo.begin_replace(pair.indexer.current());
    let mut collect = |change, object: &RawObject| pair.fifo.collect(change, object);
    assert_eq!(collect(Deleted, &raw("a", "1", 1)), PushOutcome::Unchanged, "an unknown object was deleted");
    assert_eq!(collect(Added, &raw("a", "1", 2)), PushOutcome::Queued);
    assert_eq!(collect(Deleted, &raw("a", "1", 3)), PushOutcome::Queued, "a collected object");
    assert_eq!(collect(Deleted, &raw("a", "1", 3)), PushOutcome::Unchanged, "two deletions are one");
    assert!(matches!(collect(Added, &bad("b", "2", 4)), PushOutcome::Quarantined(_)));
    assert_eq!(collect(Deleted, &bad("b", "2", 5)), PushOutcome::Queued, "a quarantined object");
    pair.fifo.commit_replace("5");
    assert_eq!(pair.drain(), [""; 0]);
    assert_eq!(pair.indexer.current().quarantine().count(), 0, "a deleted object is still quarantined");
}

#[test]
fn discarded_collection_leaves_the_state_unchanged() {
    let mut pair = queue_with_every_delta();
    pair.replace(&[raw("a", "1", 1)], "1");
    pair.drain();
    pair.fifo.begin_replace(pair.indexer.current());
    pair.fifo.collect(Added, &raw("b", "2", 2));
    pair.fifo.discard_replace();
    assert_eq!(pair.fifo.collect(Added, &raw("c", "3", 3)), PushOutcome::NotCollecting);
    assert!(!pair.fifo.commit_replace("3"), "a discarded state was committed");
    pair.push(Modified, &raw("a", "1", 4));
    assert_eq!(pair.drain(), ["a@1>4 Live"]);
}

#[test]
fn relist_of_a_server_that_lost_its_history_is_accepted() {
    let mut pair = queue_with_every_delta();
    pair.replace(&[raw("a", "1", 90)], "90");
    pair.drain();
    pair.replace(&[raw("a", "1", 4)], "5");
    assert_eq!(pair.drain(), ["a@90>4 Relist"]);
    assert_eq!(pair.push(Modified, &raw("a", "1", 6)), PushOutcome::Queued);
}

#[test]
fn applied_keys_use_no_memory_in_the_queue() {
    let mut pair = latest();
    pair.replace(&[raw("a", "1", 1)], "1");
    for version in 2..50 {
        pair.push(Modified, &raw("a", "1", version));
        pair.push(Added, &raw(&format!("o{version}"), "1", version));
        pair.push(Deleted, &raw(&format!("o{version}"), "1", version + 100));
        pair.batch(1);
    }
    pair.drain();
    pair.fifo.finish_batch();
    assert_eq!(pair.fifo.layers.len(), 1);
    assert!(pair.fifo.layers[0].keys.is_empty() && pair.fifo.layers[0].below.is_none());
}

/// One event, one relist, or one action of the consumer.
#[derive(Clone, Debug)]
enum Step {
    Event { name: u8, operation: u8, undecodable: bool },
    Relist,
    Take(usize),
    Finish,
    Resync,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_u8..4, 0_u8..4, prop::bool::weighted(0.2))
            .prop_map(|(name, operation, undecodable)| Step::Event { name, operation, undecodable }),
        1 => Just(Step::Relist),
        3 => (1_usize..4).prop_map(Step::Take),
        3 => Just(Step::Finish),
        1 => Just(Step::Resync),
    ]
}

proptest! {
    /// The consumer works at any speed, with any policy. The changes are a legal history and end in
    /// the server's state.
    #[test]
    fn every_history_is_legal_and_ends_in_the_servers_state(
        steps in prop::collection::vec(any_step(), 0..120),
        latest in any::<bool>(),
        distinct_keys in any::<bool>(),
    ) {
        let (mut pair, _) = numbers();
        if latest {
            pair.fifo.config.compaction = Compaction::LatestPerKey;
        }
        pair.fifo.config.distinct_keys = distinct_keys;
        // uid, version, decodable
        let mut server: BTreeMap<String, (u64, u64, bool)> = BTreeMap::new();
        let mut mirror: BTreeMap<String, (String, u64)> = BTreeMap::new();
        let mut received: Vec<u64> = Vec::new();
        let mut taken = None;
        let make = |name: &str, (uid, version, good): (u64, u64, bool)| {
            if good { raw(name, &uid.to_string(), version) } else { bad(name, &uid.to_string(), version) }
        };
        let mut apply = |pair: &mut QueueAndStore<_>, batch: Vec<Delta<Typed<u64>>>| -> Result<(), TestCaseError> {
            let mut changes = Vec::new();
            for delta in batch {
                pair.indexer.apply(delta, &mut changes);
            }
            pair.indexer.publish();
            for change in changes {
                let name = change.key().to_string();
                let state = (change.object().uid().into_owned(), change.object().resource_version().parse().unwrap());
                if change.origin() == Origin::Live && !matches!(change, Change::Deleted { last_is_final: false, .. }) {
                    received.push(state.1);
                }
                match &change {
                    Change::Added { .. } => prop_assert!(mirror.insert(name, state).is_none(), "added twice"),
                    Change::Updated { old, origin, .. } => {
                        let before = mirror.insert(name, state.clone());
                        let old = (old.uid().into_owned(), old.resource_version().parse::<u64>().unwrap());
                        prop_assert_eq!(before.as_ref(), Some(&old), "the state before is another one");
                        prop_assert_eq!(&old.0, &state.0, "one object was taken for another");
                        prop_assert!(old.1 < state.1 || *origin == Origin::Resync, "went back in time");
                    }
                    Change::Deleted { .. } => {
                        let before = mirror.remove(&name);
                        prop_assert_eq!(before.map(|before| before.0), Some(state.0), "another one was deleted");
                    }
                }
            }
            Ok(())
        };
        for (version, step) in (1_u64..).zip(steps) {
            match step {
                Step::Event { name, operation, undecodable } => {
                    let name = format!("o{name}");
                    let good = !undecodable;
                    let (change, state) = match server.get(&name).copied() {
                        None => (Added, (version, version, good)),
                        Some((uid, _, _)) if operation == 0 => (Deleted, (uid, version, good)),
                        // The watch reports the deletion and the creation as one modification.
                        Some(_) if operation == 1 => (Modified, (version, version, good)),
                        Some((uid, _, _)) => (Modified, (uid, version, good)),
                    };
                    if change == Deleted {
                        server.remove(&name);
                    } else {
                        server.insert(name.clone(), state);
                    }
                    let pushed = pair.push(change, &make(&name, state));
                    prop_assert!(!matches!(pushed, PushOutcome::Stale | PushOutcome::Unchanged), "an event was lost");
                }
                Step::Relist => {
                    let objects: Vec<_> = server.iter().map(|(name, state)| make(name, *state)).collect();
                    pair.replace(&objects, &version.to_string());
                }
                Step::Take(max) if taken.is_none() => taken = Some(pair.fifo.pop_batch(pair.indexer.current(), max)),
                Step::Take(_) => {}
                Step::Finish => {
                    if let Some(batch) = taken.take() {
                        apply(&mut pair, batch)?;
                        pair.fifo.finish_batch();
                    }
                }
                Step::Resync => pair.fifo.resync(),
            }
        }
        if let Some(batch) = taken.take() {
            apply(&mut pair, batch)?;
        }
        while !pair.fifo.is_empty() {
            let batch = pair.fifo.pop_batch(pair.indexer.current(), 2);
            apply(&mut pair, batch)?;
        }
        pair.fifo.finish_batch();
        prop_assert!(received.is_sorted(), "order across objects was lost: {:?}", received);
        prop_assert_eq!(pair.fifo.bytes(), 0, "the books are wrong");
        prop_assert!(pair.fifo.layers.iter().all(|layer| layer.keys.is_empty()), "a key was kept for nothing");
        let snapshot = pair.indexer.current();
        let quarantined: Vec<String> = snapshot.quarantine().map(|(key, _)| key.to_string()).collect();
        let undecodable: Vec<String> =
            server.iter().filter(|(_, state)| !state.2).map(|(name, _)| name.clone()).collect();
        prop_assert_eq!(quarantined, undecodable, "quarantine is not what cannot be decoded");
        let expected: Vec<_> = server.iter().filter(|(_, state)| state.2).map(|(name, (uid, version, _))| (name.clone(), (uid.to_string(), *version))).collect();
        let found: Vec<_> = mirror.into_iter().filter(|(name, _)| server.get(name).is_none_or(|state| state.2)).collect();
        prop_assert_eq!(&found, &expected, "the changes lead elsewhere");
        let stored: Vec<_> = snapshot.iter().filter(|o| server.get(o.key().as_str()).is_none_or(|state| state.2)).map(|o| (o.key().to_string(), (o.uid().into_owned(), o.resource_version().parse::<u64>().unwrap()))).collect();
        prop_assert_eq!(stored, expected, "the store is another one");
    }
}
