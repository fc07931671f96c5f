//! [`RecentObjects`]: keeps the trees of recently written objects, so that the next write of such an object parses
//! neither the object nor its managed fields.
//!
//! A Pod is created and bound, its kubelet writes its status several times, and it is deleted, all within seconds. Each of
//! these writes starts from the result of the previous one. Node statuses and leases are renewed all the time.
//!
//! [`RecentObjects::take`] returns a tree only if the found bytes are those to which the tree was encoded.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::RandomState;
use listwatch_json::Map;
use listwatch_meta::{Key, Revision};
use listwatch_storage::KeyValue;

use super::monotonic::Instant;
use super::ownership::ParsedManagedFields;

/// The maximum memory of all kept trees, in bytes. Beyond it, the oldest trees are dropped. 450 Pods of 3 kB fit.
pub(super) const RECENT_BYTES_MAX: usize = 8 << 20;
/// The maximum memory of one kept tree, in bytes. A larger one is not kept, because it would displace many small ones.
const OBJECT_BYTES_MAX: usize = 256 << 10;
/// The maximum size of the JSON of a kept tree, in bytes. It bounds the time in which a tree is weighed. The tree of a
/// larger object rarely fits.
const JSON_BYTES_MAX: usize = 64 << 10;
/// The maximum number of trees that one call drops because of their age. It bounds the time in which they are freed.
const EXPIRED_MAX: usize = 32;
/// The maximum time for which a tree is kept. Leases are renewed every 10 s by default.
const KEPT_MAX: Duration = Duration::from_secs(30);
/// The memory of an entry without its tree and its bytes: the key and the places in both maps.
const ENTRY_BYTES: usize = 512;

/// A tree that [`super::store::parse`] would return, with its managed fields if they were parsed or made.
pub(super) struct RecentObject {
    pub(super) tree: Map,
    pub(super) managed: Option<ParsedManagedFields>,
}

/// The trees of the latest writes.
#[derive(Default)]
pub(super) struct RecentObjects(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    entries: HashMap<Key, Entry, RandomState>,
    /// The keys by the numbers of their entries, oldest first.
    order: BTreeMap<u64, Key>,
    last_number: u64,
    bytes: usize,
}

struct Entry {
    number: u64,
    revision: Revision,
    /// The bytes of the tree, as they are stored or as the watch cache has them.
    value: Bytes,
    object: RecentObject,
    bytes: usize,
    written: Instant,
}

impl RecentObjects {
    /// Removes and returns the object of a stored or cached state. `None` if the object of this state is not kept.
    pub(super) fn take(&self, found: &KeyValue) -> Option<RecentObject> {
        let entry = {
            let mut kept = self.lock();
            // The found state can be older than the last write.
            kept.entries.get(&found.key).filter(|entry| entry.revision <= found.modified)?;
            kept.remove(&found.key)?
        };
        (entry.revision == found.modified
            && (is_same_buffer(&found.value, &entry.value)
                || is_same_state(&found.value, &entry.value, entry.revision)))
        .then_some(entry.object)
    }

    /// Replaces the bytes `stored` of a kept tree by those of the same state in the watch cache. The next write usually
    /// finds this buffer. Does nothing if the tree was kept with another buffer.
    pub(super) fn share(&self, key: &Key, stored: &Bytes, cached: Bytes) {
        let mut kept = self.lock();
        if let Some(entry) = kept.entries.get_mut(key).filter(|entry| is_same_buffer(&entry.value, stored)) {
            entry.value = cached;
        }
    }

    /// Keeps the tree of the stored or cached bytes `value` at `revision`, and drops the oldest trees beyond the limits.
    pub(super) fn keep(&self, key: &Key, revision: Revision, value: Bytes, object: RecentObject) {
        if value.len() > JSON_BYTES_MAX {
            return;
        }
        let managed = object.managed.as_ref().map_or(0, ParsedManagedFields::bytes);
        let bytes = ENTRY_BYTES + value.len() + managed + object.tree.heap_bytes();
        if bytes > OBJECT_BYTES_MAX {
            return;
        }
        let mut kept = self.lock();
        if kept.entries.get(key).is_some_and(|entry| entry.revision > revision) {
            return;
        }
        let mut dropped: Vec<Entry> = kept.remove(key).into_iter().collect();
        kept.last_number += 1;
        let number = kept.last_number;
        let entry = Entry { number, revision, value, object, bytes, written: Instant::now() };
        kept.bytes += bytes;
        kept.order.insert(number, key.clone());
        kept.entries.insert(key.clone(), entry);
        kept.drop_old(&mut dropped);
        // The trees are freed without the lock.
        drop(kept);
        drop(dropped);
    }

    /// Drops trees that are older than [`KEPT_MAX`], at most [`EXPIRED_MAX`]. Returns whether there may be more.
    pub(super) fn drop_old(&self) -> bool {
        let mut dropped = Vec::new();
        self.lock().drop_old(&mut dropped);
        dropped.len() >= EXPIRED_MAX
    }

    /// The number of kept trees.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().entries.len()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Each change leaves a valid state, so a panic elsewhere in the thread has broken nothing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn remove(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.order.remove(&entry.number);
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// Removes the oldest entries beyond [`RECENT_BYTES_MAX`], and up to [`EXPIRED_MAX`] entries that are too old.
    fn drop_old(&mut self, dropped: &mut Vec<Entry>) {
        while let Some(key) = self.order.values().next() {
            let is_old = |entry: &Entry| entry.written.elapsed() > KEPT_MAX;
            let expires = dropped.len() < EXPIRED_MAX && self.entries.get(key).is_some_and(is_old);
            if self.bytes <= RECENT_BYTES_MAX && !expires {
                break;
            }
            let key = key.clone();
            dropped.extend(self.remove(&key));
        }
    }
}

impl fmt::Debug for RecentObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.lock();
        f.debug_struct("RecentObjects").field("objects", &kept.entries.len()).field("bytes", &kept.bytes).finish()
    }
}

/// Whether two values are the same buffer. Both keep it alive, so no other value can have the same address.
fn is_same_buffer(one: &Bytes, other: &Bytes) -> bool {
    one.as_ptr() == other.as_ptr() && one.len() == other.len()
}

/// Whether two values are the stored or cached bytes of one state at `revision`. A cached value has the resource version
/// as the first member of its metadata (`listwatch_meta::Object`), a stored one has none.
pub(super) fn is_same_state(one: &[u8], other: &[u8], revision: Revision) -> bool {
    let (stored, cached) = if one.len() < other.len() { (one, other) } else { (other, one) };
    if stored.len() == cached.len() {
        return stored == cached;
    }
    let member = format!("\"resourceVersion\":\"{revision}\",");
    if cached.len() != stored.len() + member.len() {
        return false;
    }
    let Some(differs_at) = cached.iter().zip(stored).position(|(a, b)| a != b) else { return false };
    // The bytes behind the member may begin like the member itself.
    (0..=differs_at.min(member.len())).map(|back| differs_at - back).any(|at| {
        begins_metadata(&cached[..at])
            && cached[at..].starts_with(member.as_bytes())
            && cached[at + member.len()..] == stored[at..]
    })
}

/// Whether the metadata of an object begins behind these bytes, and not that of a part of the object, such as the template
/// of a Deployment.
fn begins_metadata(bytes: &[u8]) -> bool {
    if !bytes.ends_with(b"\"metadata\":{") {
        return false;
    }
    let mut depth = 0_usize;
    let (mut in_string, mut is_escaped) = (false, false);
    for byte in bytes {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    depth == 2 && !in_string
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;
    use listwatch_meta::{Change, Object, ObjectShape};
    use listwatch_registry::{encode_tree, parse_tree};

    use super::*;

    fn key(name: &str) -> Key {
        Key::new("pods", Some("default"), name).unwrap()
    }

    fn tree(name: &str, data: &str) -> Map {
        let tree = json!({"kind": "Pod", "metadata": {"name": name, "resources": "x"}, "data": data});
        tree.as_object().unwrap().clone()
    }

    fn found(key: &Key, value: Bytes, revision: u64) -> KeyValue {
        let modified = Revision::new(revision);
        KeyValue { key: key.clone(), value, created: Revision::ZERO, modified, stale: false }
    }

    fn keep(recent: &RecentObjects, name: &str, revision: u64, data: &str) -> Bytes {
        let tree = tree(name, data);
        let value = encode_tree(&tree);
        recent.keep(&key(name), Revision::new(revision), value.clone(), RecentObject { tree, managed: None });
        value
    }

    #[test]
    fn tree_is_returned_once_for_the_stored_or_the_cached_bytes_of_its_state() {
        let recent = RecentObjects::default();
        let stored = keep(&recent, "a", 7, "1");
        let taken = recent.take(&found(&key("a"), stored.clone(), 7)).unwrap();
        assert_eq!(taken.tree, parse_tree(&stored).unwrap());
        assert!(recent.take(&found(&key("a"), stored, 7)).is_none(), "it was taken");

        let stored = keep(&recent, "a", 7, "1");
        let shape = ObjectShape::new(true, Vec::new());
        let cached = Object::from_stored(key("a"), Revision::new(7), Change::Added, &stored, &shape).unwrap().json();
        assert_ne!(cached, stored);
        assert!(recent.take(&found(&key("a"), cached.clone(), 7)).is_some());

        for state in [cached.clone(), Bytes::copy_from_slice(&cached), encode_tree(&tree("a", "1"))] {
            let stored = keep(&recent, "a", 7, "1");
            recent.share(&key("a"), &stored, cached.clone());
            assert!(recent.take(&found(&key("a"), state, 7)).is_some());
        }
        let other = encode_tree(&tree("a", "2"));
        keep(&recent, "a", 7, "1");
        recent.share(&key("a"), &other, other.clone());
        assert!(
            recent.take(&found(&key("a"), other, 7)).is_none(),
            "another state of this revision, as after a restore"
        );
    }

    #[test]
    fn tree_is_not_returned_for_another_state() {
        let recent = RecentObjects::default();
        let other = encode_tree(&tree("a", "2"));
        let longer = encode_tree(&tree("a", "12"));
        for (state, why) in [
            (found(&key("a"), other.clone(), 7), "other bytes of the same length"),
            (found(&key("a"), longer, 7), "other bytes"),
            (found(&key("a"), keep(&recent, "a", 7, "1"), 8), "another revision"),
            (found(&key("b"), keep(&recent, "a", 7, "1"), 7), "another key"),
        ] {
            keep(&recent, "a", 7, "1");
            assert!(recent.take(&state).is_none(), "{why}");
        }
        let shape = ObjectShape::new(true, Vec::new());
        let cached = Object::from_stored(key("a"), Revision::new(7), Change::Added, &other, &shape).unwrap().json();
        keep(&recent, "a", 7, "1");
        assert!(recent.take(&found(&key("a"), cached, 7)).is_none(), "the cached form of other bytes");
    }

    #[test]
    fn member_with_the_text_of_a_resource_version_elsewhere_is_another_state() {
        let stored = br#"{"metadata":{"name":"a","labels":{"a":"b","c":"d"}}}"#;
        for elsewhere in [
            r#"{"metadata":{"name":"a","labels":{"a":"b","resourceVersion":"7","c":"d"}}}"#,
            r#"{"metadata":{"name":"a","labels":{"resourceVersion":"7","a":"b","c":"d"}}}"#,
            r#"{"metadata":{"name":"a","resourceVersion":"7","labels":{"a":"b","c":"d"}}}"#,
        ] {
            assert!(!is_same_state(elsewhere.as_bytes(), stored, Revision::new(7)), "{elsewhere}");
        }
        let stored = br#"{"data":"}]\"{","spec":{"template":{"metadata":{"name":"a"}}}}"#;
        let nested = r#"{"data":"}]\"{","spec":{"template":{"metadata":{"resourceVersion":"7","name":"a"}}}}"#;
        assert!(!is_same_state(nested.as_bytes(), stored, Revision::new(7)), "the metadata of a template");
        let stored = br#"{"data":"}]\"{[\\\\","metadata":{"name":"a"}}"#;
        let cached = r#"{"data":"}]\"{[\\\\","metadata":{"resourceVersion":"7","name":"a"}}"#;
        assert!(is_same_state(cached.as_bytes(), stored, Revision::new(7)));
        let stored = br#"{"metadata":{"name":"a","labels":{"a":"b","c":"d"}}}"#;
        let cached = r#"{"metadata":{"resourceVersion":"7","name":"a","labels":{"a":"b","c":"d"}}}"#;
        assert!(is_same_state(cached.as_bytes(), stored, Revision::new(7)));
        assert!(is_same_state(stored, cached.as_bytes(), Revision::new(7)));
        assert!(!is_same_state(cached.as_bytes(), stored, Revision::new(8)));
    }

    #[test]
    fn older_state_neither_replaces_nor_removes_a_newer_one() {
        let recent = RecentObjects::default();
        let newer = keep(&recent, "a", 8, "2");
        let older = keep(&recent, "a", 7, "1");
        assert!(recent.take(&found(&key("a"), older, 7)).is_none());
        assert!(recent.take(&found(&key("a"), newer, 8)).is_some());
    }

    #[test]
    fn memory_of_kept_trees_is_bounded() {
        let recent = RecentObjects::default();
        let data = "x".repeat(1000);
        for n in 0..10_000_u64 {
            keep(&recent, &format!("n{}", n % 7_000), n, &data);
            let kept = recent.lock();
            assert!(kept.bytes <= RECENT_BYTES_MAX && kept.order.len() == kept.entries.len());
        }
        let kept = recent.lock();
        assert!(kept.bytes > RECENT_BYTES_MAX / 2);
        assert_eq!(kept.bytes, kept.entries.values().map(|entry| entry.bytes).sum::<usize>());
        drop(kept);
        keep(&recent, "large", 10_001, &"x".repeat(JSON_BYTES_MAX));
        assert!(!recent.lock().entries.contains_key(&key("large")));
        let many: Map = (0..3_000).map(|at| (format!("{at}"), json!({"a": {}}))).collect();
        let tree = json!({"metadata": many}).as_object().unwrap().clone();
        let value = encode_tree(&tree);
        assert!(value.len() <= JSON_BYTES_MAX, "{}", value.len());
        recent.keep(&key("wide"), Revision::new(10_002), value, RecentObject { tree, managed: None });
        assert!(!recent.lock().entries.contains_key(&key("wide")));
    }

    #[tokio::test(start_paused = true)]
    async fn one_call_drops_a_bounded_number_of_old_trees() {
        let recent = RecentObjects::default();
        for n in 0..3 * EXPIRED_MAX {
            keep(&recent, &format!("n{n}"), 1, "1");
        }
        tokio::time::advance(KEPT_MAX + Duration::from_millis(1)).await;
        keep(&recent, "new", 2, "1");
        assert_eq!(recent.len(), 2 * EXPIRED_MAX + 1);
        assert!(recent.drop_old());
        assert!(recent.drop_old());
        assert!(!recent.drop_old());
        assert_eq!(recent.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn tree_is_dropped_after_30_seconds_without_a_write() {
        let recent = RecentObjects::default();
        let old = keep(&recent, "old", 1, "1");
        tokio::time::advance(KEPT_MAX + Duration::from_millis(1)).await;
        let new = keep(&recent, "new", 2, "1");
        assert!(recent.take(&found(&key("old"), old, 1)).is_none());
        recent.drop_old();
        assert!(recent.take(&found(&key("new"), new, 2)).is_some());
        keep(&recent, "new", 3, "1");
        tokio::time::advance(KEPT_MAX + Duration::from_millis(1)).await;
        recent.drop_old();
        let kept = recent.lock();
        assert_eq!((kept.bytes, kept.entries.len(), kept.order.len()), (0, 0, 0));
    }
}
