//! [`OfferedObjects`]: objects of writes of this process, for the events of these writes.
//!
//! A write builds the object of its response, and the cache builds the same object from the event of the write. Offered,
//! the object is built once, and its encodings for the response, the watches and later reads are shared.

use std::collections::VecDeque;

use bytes::Bytes;
use listwatch_meta::{Change, Object};
use listwatch_storage::KeyValue;
use parking_lot::Mutex;

/// The largest number of offered objects whose events have not arrived.
const OBJECTS_MAX: usize = 8;

/// The largest offered object, in bytes of its stored value. The parse of a larger one is a small part of its write.
const OBJECT_BYTES_MAX: usize = 16 * 1024;

/// The objects of recent writes, the oldest first.
#[derive(Default)]
pub(crate) struct OfferedObjects(Mutex<VecDeque<Offer>>);

struct Offer {
    value: Bytes,
    object: Object,
}

impl OfferedObjects {
    /// Keeps the object of a stored value until its event, or a later one, arrives. Ignores a large object, and drops
    /// the oldest one if there are too many.
    pub(crate) fn offer(&self, value: &Bytes, object: &Object) {
        if value.len() > OBJECT_BYTES_MAX {
            return;
        }
        let offer = Offer { value: value.clone(), object: object.clone() };
        let mut offers = self.0.lock();
        let oldest = (offers.len() >= OBJECTS_MAX).then(|| offers.pop_front());
        offers.push_back(offer);
        drop(offers);
        drop(oldest);
    }

    /// Takes the object that [`Object::from_stored`] would build for this event. Drops the objects of earlier revisions,
    /// whose events have been handled.
    pub(crate) fn take(&self, entry: &KeyValue, change: Change) -> Option<Object> {
        let mut offers = self.0.lock();
        if offers.is_empty() {
            return None;
        }
        let of_event = |offer: &Offer| {
            let Offer { value, object } = offer;
            object.revision() == entry.modified
                && object.change() == change
                && *object.key() == entry.key
                && *value == entry.value
        };
        let taken = offers.iter().position(of_event).and_then(|at| offers.remove(at));
        offers.retain(|offer| offer.object.revision() > entry.modified);
        taken.map(|offer| offer.object)
    }
}

/// Whether `object` was built from this stored value: its JSON is the value with a resource version.
pub(crate) fn is_built_from(object: &Object, value: &[u8]) -> bool {
    let json = object.json_slice();
    let Some(added) = json.len().checked_sub(value.len()) else { return false };
    let common = json.iter().zip(value).take_while(|(a, b)| a == b).count();
    value[common..] == json[common + added..]
}

#[cfg(test)]
mod tests {
    use listwatch_meta::{Key, ObjectShape, Revision};

    use super::*;

    fn entry(name: &str, revision: u64, value: &str) -> KeyValue {
        let (key, modified) = (Key::new("pods", Some("a"), name).unwrap(), Revision::new(revision));
        KeyValue { key, value: value.to_owned().into(), created: Revision::new(1), modified, stale: false }
    }

    fn object(entry: &KeyValue, change: Change) -> Object {
        let shape = ObjectShape::new(true, Vec::new());
        Object::from_stored(entry.key.clone(), entry.modified, change, &entry.value, &shape).unwrap()
    }

    const VALUE: &str = r#"{"metadata":{"name":"x"},"spec":{"a":1}}"#;

    fn offered(entries: &[&KeyValue]) -> OfferedObjects {
        let offers = OfferedObjects::default();
        for entry in entries {
            offers.offer(&entry.value, &object(entry, Change::Modified));
        }
        offers
    }

    #[test]
    fn only_the_event_of_the_same_write_takes_an_offered_object() {
        let written = entry("x", 7, VALUE);
        let check = |event: &KeyValue, change: Change, expected: bool| {
            let taken = offered(&[&written]).take(event, change);
            assert_eq!(taken.is_some(), expected, "{event:?}, {change:?}");
            assert!(taken.is_none_or(|taken| taken.json() == object(event, change).json()));
        };
        check(&written, Change::Modified, true);
        check(&written, Change::Added, false);
        check(&entry("y", 7, VALUE), Change::Modified, false);
        check(&entry("x", 8, VALUE), Change::Modified, false);
        check(&entry("x", 7, &VALUE.replace('1', "2")), Change::Modified, false);
    }

    #[test]
    fn event_drops_the_offers_of_earlier_revisions_only() {
        let [first, second, third] = [5, 6, 7].map(|revision| entry("x", revision, VALUE));
        let offers = offered(&[&first, &third]);
        assert!(offers.take(&second, Change::Modified).is_none());
        assert!(offers.take(&first, Change::Modified).is_none(), "its event was handled before");
        assert!(offers.take(&third, Change::Modified).is_some());
        assert!(offers.take(&third, Change::Modified).is_none(), "an object is taken once");
    }

    #[test]
    fn offered_objects_are_few_and_small() {
        let many: Vec<KeyValue> = (0..2 * OBJECTS_MAX as u64).map(|n| entry("x", n + 1, VALUE)).collect();
        let offers = offered(&many.iter().collect::<Vec<_>>());
        assert_eq!(offers.0.lock().len(), OBJECTS_MAX);
        assert!(offers.take(&many[OBJECTS_MAX], Change::Modified).is_some(), "the newest ones remain");
        let sized = |bytes: usize| {
            let empty = r#"{"metadata":{"name":""}}"#;
            let name = "n".repeat(bytes - empty.len());
            entry("x", 1, &empty.replace(r#""""#, &format!(r#""{name}""#)))
        };
        for (bytes, kept) in [(OBJECT_BYTES_MAX, true), (OBJECT_BYTES_MAX + 1, false)] {
            let large = sized(bytes);
            assert_eq!(large.value.len(), bytes);
            assert_eq!(offered(&[&large]).take(&large, Change::Modified).is_some(), kept, "{bytes} bytes");
        }
    }

    #[test]
    fn object_is_built_from_its_value_and_no_other() {
        let written = entry("x", 7, VALUE);
        let object = object(&written, Change::Added);
        assert!(is_built_from(&object, VALUE.as_bytes()));
        for other in [
            r#"{"metadata":{"name":"y"},"spec":{"a":1}}"#,
            r#"{"metadata":{"name":"x"},"spec":{"a":2}}"#,
            r#"{"metadata":{"name":"x"},"spec":{"a":1},"status":{}}"#,
            r#"{"metadata":{"name":"x"}}"#,
        ] {
            assert!(!is_built_from(&object, other.as_bytes()), "{other}");
        }
        assert!(!is_built_from(&object, &[b' '; 1000]));
    }
}
