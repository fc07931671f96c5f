//! What a watcher hands out ([`Delivery`], [`Delivered`]), and the event behind it, shared by the
//! history and by all watchers, with the encodings that were made of it.
//!
//! Most deliveries need no encoding at all: the object sits inside its own `ADDED`, `MODIFIED` or
//! `DELETED` frame since it left the store. Only a view that differs from what happened (a selector
//! that is entered or left) needs another frame, and another media type another encoding; each is
//! made once, by whoever needs it first, and kept beside the event while the event is young and
//! there is room ([`Encodings`]).

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use bytes::{BufMut, Bytes, BytesMut};
use listwatch_meta::{Change, Event, Object, ObjectShape, Revision, Status};
use parking_lot::Mutex;

use crate::encodings::Encodings;

/// One thing that a watcher hands out.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// A change of an object, or an object of the initial state.
    Event(Delivered),
    /// Everything up to and including this revision has been handed out.
    Bookmark {
        /// The revision.
        revision: Revision,
        /// True for the one that ends the initial events.
        initial_events_end: bool,
    },
    /// Why the watch ends. Nothing follows.
    Error(Box<Status>),
}

/// Names an encoding: one media type in one view of one version. Equal ids promise equal bytes for
/// the same change, so whoever encodes chooses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EncodingId(u64);

impl EncodingId {
    /// The encoding with this number.
    pub const fn new(id: u64) -> Self {
        EncodingId(id)
    }
}

/// A change as one watcher sees it. Cheap to clone.
#[derive(Clone)]
pub struct Delivered(View);

#[derive(Clone)]
enum View {
    /// Seen with the state the event carries.
    Event { event: Arc<SharedEvent>, change: Change },
    /// A selector was left: the state before, at the revision of the change.
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

    /// What happened, in this watcher's view.
    pub fn change(&self) -> Change {
        match &self.0 {
            View::Event { change, .. } => *change,
            View::Left { .. } => Change::Deleted,
            View::Initial(_) => Change::Added,
        }
    }

    /// The object to show: the new state; for a deletion the last state that was in view, with
    /// the revision of the change. An initial object has its own revision.
    pub fn object(&self) -> &Object {
        match &self.0 {
            View::Event { event, .. } => &event.event.object,
            View::Left { object, .. } | View::Initial(object) => object,
        }
    }

    /// True for an object of the initial state, which is handed out in key order and not in the
    /// order of revisions.
    pub fn is_initial(&self) -> bool {
        matches!(self.0, View::Initial(_))
    }

    /// The JSON watch frame `{"type":…,"object":…}` with its newline. Shared by all watchers and
    /// at most once encoded; an initial object that was ever modified is the exception, its
    /// `ADDED` frame is copied together for each watcher.
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

    /// The change in another media type or view: `encode` runs at most once per id and change, for
    /// all watchers that see this change; the others wait for it and share its bytes. For initial
    /// objects it runs each time: they belong to one watcher.
    ///
    /// The bytes stay beside the event while it is among the newest 256 and the resource's
    /// encodings fit into [`Limits::encodings_bytes_max`](crate::Limits::encodings_bytes_max); a
    /// watcher that comes later has them made again.
    pub fn encoded(&self, encoding: EncodingId, encode: impl FnOnce(Change, &Object) -> Bytes) -> Bytes {
        let Ok(bytes) = self.try_encoded(encoding, |change, object| Ok::<_, Infallible>(encode(change, object)));
        bytes
    }

    /// As [`Delivered::encoded`], for an encoding that may fail, such as one that does not know
    /// every field. A failure is not kept: the next watcher tries again.
    ///
    /// # Errors
    /// What `encode` says.
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

/// An event of the history: immutable, in one order, and shared.
pub(crate) struct SharedEvent {
    /// Its place in the history; the next event has the next number.
    pub(crate) sequence: u64,
    /// When it was taken from the store.
    pub(crate) at: Instant,
    pub(crate) event: Event,
    /// The object exists and its stored value is no object. `event` is then the deletion of the last
    /// state that could be read. Nobody receives it: it selects the watches that end with `410 Expired`.
    pub(crate) undecodable: bool,
    encodings: Arc<Encodings>,
    memo: Mutex<Option<Box<Memo>>>,
}

/// What was made of an event.
#[derive(Default)]
struct Memo {
    left: Option<Object>,
    slots: Vec<(MemoKey, Slot)>,
    /// Bytes of all that, as [`Encodings`] counts them.
    bytes: usize,
}

/// An encoding, once it is made. The lock is held by whoever makes it, and awaited by those who
/// need the same one; who needs another one is not kept.
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

    /// The same, for an object whose stored value is no object any more.
    pub(crate) fn into_undecodable(self) -> Self {
        let mut event = self;
        event.undecodable = true;
        event
    }

    pub(crate) fn revision(&self) -> Revision {
        self.event.revision()
    }

    /// The state before, at the revision of this change: what those see who leave it.
    fn left(self: &Arc<Self>, shape: &ObjectShape) -> Object {
        let Some(previous) = &self.event.previous else { return self.event.object.clone() };
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
        // The event's encodings may have been forgotten meanwhile: then this one is not kept.
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

    /// Does it carry anything that was made of it?
    pub(crate) fn has_encodings(&self) -> bool {
        self.memo.lock().is_some()
    }

    /// Gives the encodings back; a late watcher makes its own again.
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
    fn each_view_shows_the_right_state_revision_and_frame() {
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
    fn an_encoding_is_made_once_and_shared() {
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
    fn a_failed_encoding_is_tried_again_and_a_good_one_is_kept() {
        let event = modified();
        let delivered = Delivered::new(event, Change::Modified, &shape());
        let id = EncodingId::new(1);
        assert_eq!(delivered.try_encoded(id, |_, _| Err::<Bytes, _>("no")), Err("no"));
        assert_eq!(delivered.try_encoded(id, |_, _| Ok::<_, ()>(Bytes::from("yes"))), Ok(Bytes::from("yes")));
        assert_eq!(delivered.try_encoded(id, |_, _| Err("not asked")), Ok(Bytes::from("yes")));
    }

    #[test]
    fn encodings_take_no_more_than_their_bound_and_what_is_gone_counts_nothing() {
        let counters = Arc::new(crate::stats::Counters::default());
        let encodings = Encodings::new(250, counters.clone());
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
        assert_eq!((held(), encodings.carriers()), (0, 1), "what is gone leaves no trace");
    }

    #[test]
    fn two_media_types_are_made_side_by_side_and_each_once() {
        let event = modified();
        let made = std::sync::atomic::AtomicUsize::new(0);
        let both = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for n in 0..8 {
                let (event, made, both) = (event.clone(), &made, &both);
                scope.spawn(move || {
                    let id = EncodingId::new(n % 2);
                    let bytes = Delivered::new(event, Change::Modified, &shape()).encoded(id, |_, _| {
                        // Stuck for ever if one had to wait for the other.
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
