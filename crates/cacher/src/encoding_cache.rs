//! [`EncodingCache`]: keeps encodings of objects in other media types and views for later requests, within a byte
//! bound.
//!
//! ```text
//!   Object ──▶ kept encodings: [(id, bytes), …]      dropped with the object
//!      ▲
//!      └────── EncodingCache: ring of weak references, the oldest first
//! ```
//!
//! An encoding is kept with its object, and is dropped when the object changes or is deleted. At the bound, most new
//! encodings are not kept. Every sixteenth new encoding replaces the oldest ones that were not read since the ring
//! last passed their objects (the second-chance algorithm). So a part of a list larger than the bound is served from the
//! cache, and the list does not evict its own encodings. Lists that are repeated gradually replace lists that are
//! not.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use listwatch_meta::{Object, WeakObject};
use parking_lot::{Mutex, MutexGuard};

/// Identifies an encoding: one media type in one view of one version. The encoder chooses the ids
/// and guarantees equal bytes for equal ids and objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EncodingId(u64);

impl EncodingId {
    /// Wraps this number.
    pub const fn new(id: u64) -> Self {
        EncodingId(id)
    }
}

/// The largest number of encodings that are kept of one object.
const OBJECT_ENCODINGS_MAX: usize = 8;
/// At the bound, one in this many new encodings may replace old ones.
const REPLACED_ONE_OF: usize = 16;
/// The maximum number of objects that are examined to make room for a new encoding.
const EXAMINED_MAX: usize = 8;

/// The number of references to dropped objects that the ring may always hold.
const RING_SLACK_OBJECTS: usize = 1024;

/// The encodings of one object, attached to it. The lock is held for one copy of the bytes.
type KeptEncodings = Mutex<Option<Box<Kept>>>;

struct Kept {
    encodings: Vec<Encoding>,
    totals: Arc<Totals>,
}

struct Encoding {
    id: EncodingId,
    bytes: Box<[u8]>,
    /// Whether the encoding was read since the ring last passed the object. One view of an object can be in demand
    /// while nobody reads the others.
    read: bool,
}

impl Encoding {
    /// The bytes that the cache accounts for this encoding.
    fn accounted(&self) -> usize {
        self.bytes.len() + OVERHEAD_BYTES
    }
}

impl Kept {
    fn new(totals: &Arc<Totals>) -> Self {
        totals.objects.fetch_add(1, Relaxed);
        Kept { encodings: Vec::with_capacity(1), totals: Arc::clone(totals) }
    }

    /// Removes and returns the encodings for which `keep` returns false.
    fn retain(&mut self, mut keep: impl FnMut(&mut Encoding) -> bool) -> Vec<Encoding> {
        let dropped: Vec<Encoding> = self.encodings.extract_if(.., |encoding| !keep(encoding)).collect();
        self.totals.bytes.fetch_sub(dropped.iter().map(Encoding::accounted).sum(), Relaxed);
        dropped
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.totals.objects.fetch_sub(1, Relaxed);
        self.totals.bytes.fetch_sub(self.encodings.iter().map(Encoding::accounted).sum(), Relaxed);
    }
}

/// The counters of a cache over all of its objects.
#[derive(Default)]
struct Totals {
    /// The number of objects with encodings.
    objects: AtomicUsize,
    /// The bytes of kept encodings, and of those that are about to be kept.
    bytes: AtomicUsize,
    /// The number of encodings for which there was no room.
    refused: AtomicUsize,
}

/// The accounted overhead of one kept encoding, in bytes: the list entry, and a share of the overhead of the object.
const OVERHEAD_BYTES: usize = 96;

/// Keeps encodings of objects for later requests. Cheap to clone; clones share the bound.
///
/// # Example
/// ```
/// use listwatch_cacher::{EncodingCache, EncodingId};
/// use listwatch_meta::{Change, Key, Object, ObjectShape, Revision};
///
/// let key = Key::new("configmaps", Some("default"), "web")?;
/// let json = br#"{"metadata":{"name":"web"}}"#;
/// let object = Object::from_stored(key, Revision::new(7), Change::Added, json, &ObjectShape::new(true, vec![]))?;
///
/// let (cache, id) = (EncodingCache::new(1 << 20), EncodingId::new(1));
/// assert_eq!(cache.read(&object, id, <[u8]>::to_vec), None);
/// assert!(cache.keep(&object, id, b"encoded"));
/// assert_eq!(cache.read(&object, id, <[u8]>::to_vec), Some(b"encoded".to_vec()));
/// drop(object);
/// assert_eq!(cache.bytes(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct EncodingCache(Arc<Inner>);

struct Inner {
    bytes_max: usize,
    totals: Arc<Totals>,
    /// Objects with encodings, in the order in which these were kept. An object occurs once for each time that an
    /// encoding was kept while the object had none.
    ring: Mutex<VecDeque<WeakObject>>,
}

impl EncodingCache {
    /// Creates a cache for `bytes_max` bytes of encodings, including their overhead. With 0 nothing is kept.
    pub fn new(bytes_max: usize) -> Self {
        EncodingCache(Arc::new(Inner { bytes_max, totals: Arc::default(), ring: Mutex::default() }))
    }

    /// The bytes of the kept encodings and their overhead.
    pub fn bytes(&self) -> usize {
        self.0.totals.bytes.load(Relaxed)
    }

    /// Passes a kept encoding of an object to `read`. Returns `None` if there is none.
    ///
    /// `read` runs under the object's lock, so it should only copy the bytes.
    pub fn read<R>(&self, object: &Object, id: EncodingId, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let mut kept = object.attachment::<KeptEncodings>()?.lock();
        let kept = kept.as_deref_mut()?;
        let encoding = kept.encodings.iter_mut().find(|encoding| encoding.id == id)?;
        encoding.read = true;
        Some(read(&encoding.bytes))
    }

    /// Keeps an encoding of an object, and replaces an earlier encoding with this id. Returns false if there is no
    /// room, or if another cache keeps encodings of the object. The bytes are copied.
    pub fn keep(&self, object: &Object, id: EncodingId, encoding: &[u8]) -> bool {
        let bytes = encoding.len() + OVERHEAD_BYTES;
        // The former encoding leaves first, so that its room can be used. No object is locked while others are examined.
        self.forget(object, id);
        if !self.reserve(bytes) {
            return false;
        }
        let unused = || {
            self.0.totals.bytes.fetch_sub(bytes, Relaxed);
            false
        };
        let Some(kept) = object.attachment_or_default::<KeptEncodings>() else { return unused() };
        let mut kept = kept.lock();
        let first = kept.is_none();
        let kept = kept.get_or_insert_with(|| Box::new(Kept::new(&self.0.totals)));
        let is_own = Arc::ptr_eq(&kept.totals, &self.0.totals);
        // Another thread may have kept the same encoding meanwhile.
        if !is_own
            || kept.encodings.len() >= OBJECT_ENCODINGS_MAX
            || kept.encodings.iter().any(|encoding| encoding.id == id)
        {
            return unused();
        }
        kept.encodings.push(Encoding { id, bytes: encoding.into(), read: false });
        if first {
            self.push(object.downgrade());
        }
        true
    }

    /// Drops an encoding of an object that this cache keeps.
    fn forget(&self, object: &Object, id: EncodingId) {
        let Some(kept) = object.attachment::<KeptEncodings>() else { return };
        let mut kept = kept.lock();
        if let Some(kept) = kept.as_deref_mut().filter(|kept| Arc::ptr_eq(&kept.totals, &self.0.totals)) {
            kept.retain(|encoding| encoding.id != id);
        }
    }

    /// The number of objects that one sweep of the whole cache examines.
    pub fn objects(&self) -> usize {
        self.ring().len()
    }

    /// Examines at most `objects_max` objects, in turn, and drops their encodings that were not read since the objects
    /// were last examined. Returns the number of examined objects. A periodic sweep of
    /// [`EncodingCache::objects`] objects frees the memory of lists that are not repeated.
    pub fn sweep(&self, objects_max: usize) -> usize {
        let mut batch: Vec<WeakObject> = {
            let mut ring = self.ring();
            let count = objects_max.min(ring.len());
            ring.drain(..count).collect()
        };
        let examined = batch.len();
        batch.retain(drop_unread);
        let mut ring = self.ring();
        ring.extend(batch);
        if ring.capacity() > 4 * ring.len() + RING_SLACK_OBJECTS {
            ring.shrink_to_fit();
        }
        examined
    }

    /// Accounts `bytes` more, if necessary after dropping unread encodings of at most [`EXAMINED_MAX`] objects. Returns
    /// false if they do not fit.
    fn reserve(&self, bytes: usize) -> bool {
        if bytes > self.0.bytes_max {
            return false;
        }
        let fits = || {
            let add = |total: usize| Some(total + bytes).filter(|total| *total <= self.0.bytes_max);
            self.0.totals.bytes.fetch_update(Relaxed, Relaxed, add).is_ok()
        };
        if fits() {
            return true;
        }
        if !self.0.totals.refused.fetch_add(1, Relaxed).is_multiple_of(REPLACED_ONE_OF) {
            return false;
        }
        for _ in 0..EXAMINED_MAX {
            let Some(oldest) = self.ring().pop_front() else { return false };
            if drop_unread(&oldest) {
                self.ring().push_back(oldest);
            }
            if fits() {
                return true;
            }
        }
        false
    }

    /// Adds an object to the ring. References to dropped objects are removed before they outnumber the others.
    fn push(&self, object: WeakObject) {
        let mut ring = self.ring();
        if ring.len() > 2 * self.0.totals.objects.load(Relaxed) + RING_SLACK_OBJECTS {
            ring.retain(|object| !object.is_dropped());
        }
        ring.push_back(object);
    }

    fn ring(&self) -> MutexGuard<'_, VecDeque<WeakObject>> {
        self.0.ring.lock()
    }
}

/// Drops the encodings of the object that were not read since the last call. Returns whether others remain.
fn drop_unread(object: &WeakObject) -> bool {
    let Some(object) = object.upgrade() else { return false };
    let Some(attached) = object.attachment::<KeptEncodings>() else { return false };
    let mut kept = attached.lock();
    let Some(present) = kept.as_deref_mut() else { return false };
    let unread = present.retain(|encoding| std::mem::take(&mut encoding.read));
    let remain = !present.encodings.is_empty();
    let empty = if remain { None } else { kept.take() };
    // Freed after the lock.
    drop(kept);
    drop((unread, empty));
    remain
}

impl fmt::Debug for EncodingCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncodingCache({} of {} bytes)", self.bytes(), self.0.bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use listwatch_meta::{Change, Key, ObjectShape, Revision};
    use proptest::prelude::*;

    use super::*;

    fn object(name: &str) -> Object {
        let key = Key::new("pods", Some("a"), name).unwrap();
        let shape = ObjectShape::new(true, Vec::new());
        Object::from_stored(key, Revision::new(1), Change::Added, br#"{"metadata":{}}"#, &shape).unwrap()
    }

    fn read(cache: &EncodingCache, object: &Object, id: u64) -> Option<Vec<u8>> {
        cache.read(object, EncodingId::new(id), <[u8]>::to_vec)
    }

    #[test]
    fn encodings_of_an_object_are_kept_by_id_and_replaced_by_a_newer_one() {
        let (cache, object) = (EncodingCache::new(10_000), object("x"));
        assert!(cache.keep(&object, EncodingId::new(1), b"one") && cache.keep(&object, EncodingId::new(2), b"two"));
        assert!(cache.keep(&object, EncodingId::new(1), b"first"));
        assert_eq!((read(&cache, &object, 1), read(&cache, &object, 2)), (Some(b"first".into()), Some(b"two".into())));
        assert_eq!(cache.bytes(), b"firsttwo".len() + 2 * OVERHEAD_BYTES);
        assert_eq!(read(&cache, &object.clone(), 1), Some(b"first".into()), "clones share their encodings");
        for id in 3..20 {
            assert_eq!(cache.keep(&object, EncodingId::new(id), b"x"), id <= OBJECT_ENCODINGS_MAX as u64, "{id}");
        }
        let other = EncodingCache::new(10_000);
        assert!(!other.keep(&object, EncodingId::new(1), b"x"), "an object belongs to one cache");
        drop(object);
        assert_eq!((cache.bytes(), other.bytes()), (0, 0));
    }

    #[test]
    fn repeated_list_larger_than_the_cache_is_partly_served_from_the_cache() {
        let cache = EncodingCache::new(100 * (100 + OVERHEAD_BYTES));
        let objects: Vec<Object> = (0..300).map(|n| object(&format!("o{n}"))).collect();
        let list = || {
            let mut hits = 0;
            for object in &objects {
                match read(&cache, object, 1) {
                    Some(_) => hits += 1,
                    None => assert!(cache.keep(object, EncodingId::new(1), &[0; 100]) || cache.bytes() > 0),
                }
            }
            hits
        };
        assert_eq!(list(), 0);
        list();
        for _ in 0..20 {
            assert!(list() >= 80, "a list that does not fit does not displace itself");
        }
    }

    #[test]
    fn outdated_encoding_is_replaced_in_a_full_cache() {
        let cache = EncodingCache::new(100 + OVERHEAD_BYTES);
        let (kept, other) = (object("kept"), object("other"));
        assert!(cache.keep(&kept, EncodingId::new(1), &[0; 100]));
        for byte in 1..20 {
            assert!(read(&cache, &kept, 1).is_some());
            assert!(!cache.keep(&other, EncodingId::new(1), &[0; 101]), "larger than the bound");
            assert!(cache.keep(&kept, EncodingId::new(1), &[byte; 100]));
            assert_eq!(read(&cache, &kept, 1), Some(vec![byte; 100]));
        }
        assert!(other.attachment::<KeptEncodings>().is_none(), "an object without encodings takes no memory for them");
    }

    #[test]
    fn repeated_reads_displace_encodings_that_nobody_reads() {
        let cache = EncodingCache::new(100 * (100 + OVERHEAD_BYTES));
        let objects: Vec<Object> = (0..200).map(|n| object(&format!("o{n}"))).collect();
        let (old, new) = objects.split_at(100);
        for object in old {
            assert!(cache.keep(object, EncodingId::new(1), &[0; 100]));
        }
        let mut hits = 0;
        for _ in 0..100 {
            let missed = |object: &&Object| read(&cache, object, 1).is_none();
            let misses: Vec<&Object> = new.iter().filter(missed).collect();
            hits = new.len() - misses.len();
            for object in misses {
                cache.keep(object, EncodingId::new(1), &[0; 100]);
            }
        }
        assert!(hits >= 80, "{hits} of 100 are kept");
    }

    #[test]
    fn unread_encoding_is_dropped_while_another_of_the_object_is_read() {
        let bytes_max = 200 * (100 + OVERHEAD_BYTES);
        let cache = EncodingCache::new(bytes_max);
        let objects: Vec<Object> = (0..100).map(|n| object(&format!("o{n}"))).collect();
        let list = |id: u64| {
            let missed = |object: &&Object| read(&cache, object, id).is_none();
            let misses: Vec<&Object> = objects.iter().filter(missed).collect();
            for object in &misses {
                cache.keep(object, EncodingId::new(id), &[0; 100]);
            }
            objects.len() - misses.len()
        };
        list(1);
        list(2);
        assert!(cache.bytes() == bytes_max && list(1) == 100 && list(2) == 100);
        let mut hits = 0;
        for _ in 0..60 {
            list(1);
            hits = list(3);
        }
        assert!(hits >= 80, "{hits} of 100 encodings of the view that is read are kept");
        assert_eq!(list(1), 100);
        cache.sweep(usize::MAX);
        list(1);
        cache.sweep(usize::MAX);
        assert_eq!((list(1), cache.bytes()), (100, bytes_max / 2), "a sweep drops the other views");
    }

    #[test]
    fn sweep_drops_encodings_without_a_read_since_the_last_sweep() {
        let cache = EncodingCache::new(10_000);
        let (used, unused) = (object("used"), object("unused"));
        for object in [&used, &unused] {
            assert!(cache.keep(object, EncodingId::new(1), b"x"));
            assert!(read(&cache, object, 1).is_some());
        }
        cache.sweep(usize::MAX);
        assert!(read(&cache, &used, 1).is_some());
        cache.sweep(usize::MAX);
        assert_eq!((read(&cache, &used, 1).is_some(), read(&cache, &unused, 1)), (true, None));
        cache.sweep(usize::MAX);
        cache.sweep(usize::MAX);
        assert_eq!((cache.bytes(), cache.ring().len()), (0, 0));
    }

    #[test]
    fn dropped_objects_do_not_accumulate_in_the_ring() {
        let cache = EncodingCache::new(1 << 20);
        let old = object("old");
        assert!(cache.keep(&old, EncodingId::new(1), b"x"));
        for n in 0..10 * RING_SLACK_OBJECTS {
            assert!(cache.keep(&object(&format!("o{n}")), EncodingId::new(1), b"x"));
        }
        assert!(cache.ring().len() <= RING_SLACK_OBJECTS + 4, "{} references", cache.ring().len());
        assert!(read(&cache, &old, 1).is_some());
    }

    #[test]
    fn ring_shrinks_after_its_objects_were_dropped() {
        let count = 4 * RING_SLACK_OBJECTS;
        let cache = EncodingCache::new(1 << 20);
        let many: Vec<Object> = (0..count).map(|n| object(&format!("o{n}"))).collect();
        assert!(many.iter().all(|object| cache.keep(object, EncodingId::new(1), b"x")));
        assert_eq!(cache.objects(), count, "a whole sweep examines each object");
        drop(many);
        for n in 0..4 {
            assert!(cache.keep(&object(&format!("new{n}")), EncodingId::new(1), b"x"));
        }
        assert!(cache.objects() <= RING_SLACK_OBJECTS, "{} references to dropped objects", cache.objects());
        cache.sweep(usize::MAX);
        assert_eq!(cache.objects(), 0);
        assert!(cache.ring().capacity() <= RING_SLACK_OBJECTS, "a sweep returns the memory of the ring");
    }

    proptest! {
        #[test]
        fn encoding_cache_bytes_stay_within_the_bound_and_end_at_zero(
            bytes_max in 0_usize..3_000,
            steps in prop::collection::vec((0_usize..8, 0_u64..3, 0_usize..1_500, 0_u8..8), 0..200),
        ) {
            let cache = EncodingCache::new(bytes_max);
            let mut objects: Vec<Object> = (0..8).map(|n| object(&format!("o{n}"))).collect();
            for (n, id, length, step) in steps {
                match step {
                    0 => objects[n] = object("new"),
                    1 => {
                        cache.sweep(3);
                    }
                    2..5 => {
                        let kept = read(&cache, &objects[n], id);
                        prop_assert!(kept.is_none_or(|bytes| bytes.iter().all(|byte| u64::from(*byte) == id)));
                    }
                    _ => {
                        let kept = cache.keep(&objects[n], EncodingId::new(id), &vec![id as u8; length]);
                        prop_assert!(!kept || read(&cache, &objects[n], id).is_some_and(|bytes| bytes.len() == length));
                    }
                }
                prop_assert!(cache.bytes() <= bytes_max, "promise: encodings stay within their bound");
            }
            drop(objects);
            prop_assert_eq!(cache.bytes(), 0);
        }
    }
}
