//! The items of a watch ([`Delivery`], [`Delivered`]), and the event behind them, shared by the
//! history and all watchers, with its cached encodings.
//!
//! Most deliveries need no encoding: an object is stored within its own `ADDED`, `MODIFIED` or
//! `DELETED` frame. A watcher needs another frame if it accepts another media type, or if the
//! object begins or ceases to match its selector. The first watcher that needs an encoding creates
//! it. The encoding is cached with the event while the event is young and the byte bound permits
//! ([`Encodings`]).

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use bytes::{BufMut, Bytes, BytesMut};
use listwatch_meta::{Change, Event, Object, ObjectShape, Revision, Status, canary};
use parking_lot::Mutex;

use crate::encoding_cache::EncodingId;
use crate::encodings::Encodings;

/// One item of a watch.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// A change of an object, or an object of the initial state.
    Event(Delivered),
    /// Everything up to and including this revision has been delivered.
    Bookmark {
        /// The revision.
        revision: Revision,
        /// True for the bookmark that ends the initial events.
        initial_events_end: bool,
    },
    /// The reason why the watch ends. No item follows.
    Error(Box<Status>),
}

/// A change as one watcher sees it. Cheap to clone.
#[derive(Clone)]
pub struct Delivered(View);

#[derive(Clone)]
enum View {
    /// A change, with the state in the event.
    Event { event: Arc<SharedEvent>, change: Change },
    /// The object ceased to match: the state before, at the revision of the change.
    Left { event: Arc<SharedEvent>, object: Object },
    /// An object of the initial state.
    Initial(Object),
}

impl Delivered {
    pub(crate) fn new(event: Arc<SharedEvent>, change: Change, shape: &ObjectShape) -> Self {
        if change == Change::Deleted && event.event.change != Change::Deleted {
            let object = event.left(shape);
            return Delivered(View::Left { event, object });
        }
        Delivered(View::Event { event, change })
    }

    pub(crate) fn initial(object: Object) -> Self {
        Delivered(View::Initial(object))
    }

    /// The kind of change in this watcher's view.
    pub fn change(&self) -> Change {
        match &self.0 {
            View::Event { change, .. } => *change,
            View::Left { .. } => Change::Deleted,
            View::Initial(_) => Change::Added,
        }
    }

    /// The object to show: the new state or, for a deletion, the last visible state with the
    /// revision of the change. An initial object has its own revision.
    pub fn object(&self) -> &Object {
        match &self.0 {
            View::Event { event, .. } => &event.event.object,
            View::Left { object, .. } | View::Initial(object) => object,
        }
    }

    /// True for an object of the initial state; these are delivered in key order instead of
    /// revision order.
    pub fn is_initial(&self) -> bool {
        matches!(self.0, View::Initial(_))
    }

    /// The JSON watch frame `{"type":…,"object":…}` with its newline. All watchers share it, and it
    /// is encoded at most once. The exception is an initial object that was modified: each watcher
    /// copies its `ADDED` frame.
    pub fn json_frame(&self) -> Bytes {
        let change = self.change();
        let object = self.object();
        if object.change() == change {
            return object.frame();
        }
        match &self.0 {
            View::Event { event, .. } => {
                let Ok(frame) =
                    event.memo(MemoKey::JsonFrame(change), || Ok::<_, Infallible>(json_frame(change, object)));
                frame
            }
            View::Left { .. } | View::Initial(_) => json_frame(change, object),
        }
    }

    /// The change in another media type or view. `encode` runs at most once per id and change for
    /// all watchers of the change; the others wait and share the bytes. For initial objects it runs
    /// each time, because they belong to one watcher.
    ///
    /// The bytes stay cached while the event is among the newest 256 and the resource's encodings
    /// fit into [`Limits::encodings_bytes_max`](crate::Limits::encodings_bytes_max). A later
    /// watcher encodes again.
    pub fn encoded(&self, encoding: EncodingId, encode: impl FnOnce(Change, &Object) -> Bytes) -> Bytes {
        let Ok(bytes) = self.try_encoded(encoding, |change, object| Ok::<_, Infallible>(encode(change, object)));
        bytes
    }

    /// As [`Delivered::encoded`], for an encoding that may fail, for example because of an unknown
    /// field. A failure is not cached: the next watcher tries again.
    ///
    /// # Errors
    /// The error of `encode`.
    pub fn try_encoded<E>(
        &self,
        encoding: EncodingId,
        encode: impl FnOnce(Change, &Object) -> Result<Bytes, E>,
    ) -> Result<Bytes, E> {
        let (change, object) = (self.change(), self.object());
        match &self.0 {
            View::Event { event, .. } | View::Left { event, .. } => {
                event.memo(MemoKey::Encoding(encoding, change), || encode(change, object))
            }
            View::Initial(_) => encode(change, object),
        }
    }
}

impl fmt::Debug for Delivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.change(), self.object())
    }
}

fn json_frame(change: Change, object: &Object) -> Bytes {
    let json = object.json_slice();
    let mut frame = BytesMut::with_capacity(change.frame_head().len() + json.len() + 2);
    frame.put_slice(change.frame_head());
    frame.put_slice(json);
    frame.put_slice(b"}\n");
    frame.freeze()
}

/// An event of the history: immutable, ordered and shared.
pub(crate) struct SharedEvent {
    /// The event's position in the history; the next event has the next number.
    pub(crate) sequence: u64,
    /// The time when the event was received from the store.
    pub(crate) at: Instant,
    pub(crate) event: Event,
    /// Whether the stored value of an existing object cannot be decoded. `event` is then the
    /// deletion of the last readable state. No watch delivers the event, but watches that would see
    /// it end with `410 Expired`.
    pub(crate) undecodable: bool,
    encodings: Arc<Encodings>,
    memo: Mutex<Option<Box<Memo>>>,
}

/// The cached encodings of an event.
#[derive(Default)]
struct Memo {
    left: Option<Object>,
    slots: Vec<(MemoKey, Slot)>,
    /// The bytes of all encodings, as [`Encodings`] accounts them.
    bytes: usize,
}

/// A cached encoding. The lock is held during the encoding, so that other watchers of the same
/// encoding wait for it. Other encodings are not blocked.
type Slot = Arc<Mutex<Option<Bytes>>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum MemoKey {
    JsonFrame(Change),
    Encoding(EncodingId, Change),
}

impl SharedEvent {
    pub(crate) fn new(sequence: u64, at: Instant, event: Event, encodings: Arc<Encodings>) -> Self {
        SharedEvent { sequence, at, event, undecodable: false, encodings, memo: Mutex::new(None) }
    }

    /// Marks the event's object as undecodable.
    pub(crate) fn into_undecodable(self) -> Self {
        let mut event = self;
        event.undecodable = true;
        event
    }

    pub(crate) fn revision(&self) -> Revision {
        self.event.revision()
    }

    /// The state before the change, with the revision of the change, for watchers whose selector no
    /// longer matches.
    fn left(self: &Arc<Self>, shape: &ObjectShape) -> Object {
        let previous = self.event.previous.as_ref().filter(|_| !canary!("cacher-deletes-with-the-new-state"));
        let Some(previous) = previous else { return self.event.object.clone() };
        let object = {
            let mut memo = self.memo.lock();
            let memo = memo.get_or_insert_default();
            if let Some(left) = &memo.left {
                return left.clone();
            }
            let left = previous.at_change(self.revision(), Change::Deleted, shape);
            self.encodings.handle_made(left.heap_size());
            memo.bytes += left.heap_size();
            memo.left.insert(left).clone()
        };
        self.encodings.handle_kept(self);
        object
    }

    fn memo<E>(self: &Arc<Self>, key: MemoKey, encode: impl FnOnce() -> Result<Bytes, E>) -> Result<Bytes, E> {
        let slot = {
            let mut memo = self.memo.lock();
            let slots = &mut memo.get_or_insert_default().slots;
            match slots.iter().find(|(known, _)| *known == key) {
                Some((_, slot)) => slot.clone(),
                None => {
                    let slot = Slot::default();
                    slots.push((key, slot.clone()));
                    slot
                }
            }
        };
        let mut made = slot.lock();
        if let Some(bytes) = &*made {
            return Ok(bytes.clone());
        }
        let bytes = encode()?;
        *made = Some(bytes.clone());
        drop(made);
        self.encodings.handle_made(bytes.len());
        // If the event's encodings were dropped meanwhile, this one is not cached.
        let kept = self.memo.lock().as_mut().is_some_and(|memo| {
            let kept = memo.slots.iter().any(|(_, known)| Arc::ptr_eq(known, &slot));
            memo.bytes += if kept { bytes.len() } else { 0 };
            kept
        });
        if kept {
            self.encodings.handle_kept(self);
        } else {
            self.encodings.handle_forgotten(bytes.len());
        }
        Ok(bytes)
    }

    /// Whether any encoding is cached.
    pub(crate) fn has_encodings(&self) -> bool {
        self.memo.lock().is_some()
    }

    /// Drops the encodings. A later watcher encodes again.
    pub(crate) fn forget_encodings(&self) {
        if let Some(memo) = self.memo.lock().take() {
            self.encodings.handle_forgotten(memo.bytes);
        }
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        if let Some(memo) = self.memo.get_mut() {
            self.encodings.handle_forgotten(memo.bytes);
        }
    }
}

impl fmt::Debug for SharedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {} {:?}", self.sequence, self.event.change, self.event.object)
    }
}

#[cfg(test)]
mod tests {
    use listwatch_meta::Key;

    use super::*;

    fn shape() -> ObjectShape {
        ObjectShape::new(true, Vec::new())
    }

    fn state(revision: u64, change: Change) -> Object {
        let key = Key::new("pods", Some("a"), "x").unwrap();
        Object::from_stored(key, Revision::new(revision), change, br#"{"metadata":{"name":"x"}}"#, &shape()).unwrap()
    }

    fn modified() -> Arc<SharedEvent> {
        modified_in(&Arc::default())
    }

    fn modified_in(encodings: &Arc<Encodings>) -> Arc<SharedEvent> {
        let event = Event {
            change: Change::Modified,
            object: state(2, Change::Modified),
            previous: Some(state(1, Change::Added)),
        };
        Arc::new(SharedEvent::new(0, Instant::now(), event, encodings.clone()))
    }

    #[test]
    fn delivered_event_has_the_type_object_and_revision_of_the_view() {
        let event = modified();
        for (change, head, version) in [
            (Change::Modified, "{\"type\":\"MODIFIED\",\"object\":", "2"),
            (Change::Added, "{\"type\":\"ADDED\",\"object\":", "2"),
            (Change::Deleted, "{\"type\":\"DELETED\",\"object\":", "2"),
        ] {
            let delivered = Delivered::new(event.clone(), change, &shape());
            let frame = String::from_utf8(delivered.json_frame().to_vec()).unwrap();
            assert_eq!(
                frame,
                format!("{head}{{\"metadata\":{{\"resourceVersion\":\"{version}\",\"name\":\"x\"}}}}}}\n")
            );
            assert_eq!((delivered.change(), delivered.object().revision().get()), (change, 2));
        }
    }

    #[test]
    fn encoding_is_made_once_and_shared() {
        let event = modified();
        let delivered = |change| Delivered::new(event.clone(), change, &shape());
        for change in [Change::Added, Change::Modified, Change::Deleted] {
            let first = delivered(change).json_frame();
            assert_eq!(first.as_ptr(), delivered(change).json_frame().as_ptr(), "{change}: one allocation for all");
        }
        let id = EncodingId::new(7);
        let first = delivered(Change::Added).encoded(id, |_, _| Bytes::from(vec![1]));
        let second = delivered(Change::Added).encoded(id, |_, _| unreachable!("encoded before"));
        assert_eq!(first.as_ptr(), second.as_ptr());
        let other = delivered(Change::Modified).encoded(id, |change, _| Bytes::from(change.as_str()));
        assert_eq!(other, "MODIFIED", "another change is another encoding");
        event.forget_encodings();
        assert_eq!(delivered(Change::Added).encoded(id, |_, _| Bytes::from(vec![2])), vec![2]);
    }
    #[test]
    fn failed_encoding_is_retried_and_successful_one_is_cached() {
        let event = modified();
        let delivered = Delivered::new(event, Change::Modified, &shape());
        let id = EncodingId::new(1);
        assert_eq!(delivered.try_encoded(id, |_, _| Err::<Bytes, _>("no")), Err("no"));
        assert_eq!(delivered.try_encoded(id, |_, _| Ok::<_, ()>(Bytes::from("yes"))), Ok(Bytes::from("yes")));
        assert_eq!(delivered.try_encoded(id, |_, _| Err("not asked")), Ok(Bytes::from("yes")));
    }

    #[test]
    fn cached_encodings_stay_within_their_byte_bound() {
        let counters = Arc::new(crate::stats::Counters::default());
        let encodings = Encodings::new(200, counters.clone());
        let id = EncodingId::new(1);
        let held = || counters.encodings_bytes.load(std::sync::atomic::Ordering::Relaxed);
        let made = |event: &Arc<SharedEvent>, bytes: usize| {
            let mut made = false;
            Delivered::new(event.clone(), Change::Modified, &shape()).encoded(id, |_, _| {
                made = true;
                Bytes::from(vec![0; bytes])
            });
            made
        };
        let events: Vec<_> = (0..4).map(|_| modified_in(&encodings)).collect();
        assert!(made(&events[0], 100) && made(&events[1], 100) && !made(&events[0], 100));
        assert_eq!(held(), 200);
        assert!(made(&events[2], 100), "one too many: the oldest goes");
        assert_eq!(held(), 200);
        assert!(!made(&events[2], 100) && !made(&events[1], 100));
        assert!(made(&events[0], 100), "it is made again for a late watcher");
        assert!(made(&events[3], 1_000), "larger than the bound, and shared all the same");
        assert!(!made(&events[3], 1_000));
        assert_eq!(held(), 1_000);
        drop(events);
        assert_eq!(held(), 0);
        for _ in 0..1_000 {
            assert!(made(&modified_in(&encodings), 10));
        }
        assert_eq!((held(), encodings.carriers()), (0, 1), "dropped events are not accounted");
    }

    #[test]
    fn state_of_a_no_longer_matching_object_is_accounted_while_its_event_exists() {
        let counters = Arc::new(crate::stats::Counters::default());
        let event = modified_in(&Encodings::new(usize::MAX, counters.clone()));
        let held = || counters.encodings_bytes.load(std::sync::atomic::Ordering::Relaxed);
        let left = Delivered::new(event.clone(), Change::Deleted, &shape());
        assert_eq!(held(), left.object().heap_size());
        drop((left, event));
        assert_eq!(held(), 0, "a dropped event holds no bytes");
    }

    #[test]
    fn two_media_types_are_encoded_concurrently_and_once_each() {
        let event = modified();
        let made = std::sync::atomic::AtomicUsize::new(0);
        let both = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for n in 0..8 {
                let (event, made, both) = (event.clone(), &made, &both);
                scope.spawn(move || {
                    let id = EncodingId::new(n % 2);
                    let bytes = Delivered::new(event, Change::Modified, &shape()).encoded(id, |_, _| {
                        // Deadlocks if one encoding waits for the other.
                        both.wait();
                        made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        Bytes::from(vec![n as u8 % 2])
                    });
                    assert_eq!(bytes, vec![n as u8 % 2]);
                });
            }
        });
        assert_eq!(made.into_inner(), 2);
    }
}
