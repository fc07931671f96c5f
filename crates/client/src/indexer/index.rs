//! Secondary indexes, which map a value to the objects that have it.
//!
//! An index is one persistent ordered set of (value, key). A snapshot of it costs one pointer. An
//! object with several values has several entries. An update that keeps its values does not touch
//! the index. Equal values share one allocation.

use std::any::Any;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use crate::object::ObjectKey;
use crate::stored::Stored;

/// A type whose values can be keys of an index.
pub trait IndexValue: Ord + Clone + Send + Sync + 'static {}

impl<V: Ord + Clone + Send + Sync + 'static> IndexValue for V {}

pub(crate) type IndexFunction<S, V> = dyn Fn(&S) -> Vec<V> + Send + Sync;

/// The handle of an index of a store of `S` by values `V`. Cheap to clone. See
/// [`Indexer::add_index`](super::Indexer::add_index).
pub struct Index<S, V> {
    pub(crate) function: Arc<IndexFunction<S, V>>,
    pub(crate) slot: usize,
}

impl<S, V> Clone for Index<S, V> {
    fn clone(&self) -> Self {
        Index { function: self.function.clone(), slot: self.slot }
    }
}

impl<S, V> fmt::Debug for Index<S, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({})", self.slot)
    }
}

/// One entry. Ordered by value, then key.
struct IndexEntry<V> {
    value: Arc<V>,
    key: ObjectKey,
}

impl<V> Clone for IndexEntry<V> {
    fn clone(&self) -> Self {
        IndexEntry { value: self.value.clone(), key: self.key.clone() }
    }
}

impl<V: Ord> PartialEq for IndexEntry<V> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<V: Ord> Eq for IndexEntry<V> {}

impl<V: Ord> PartialOrd for IndexEntry<V> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<V: Ord> Ord for IndexEntry<V> {
    fn cmp(&self, other: &Self) -> Ordering {
        let same = Arc::ptr_eq(&self.value, &other.value);
        let values = if same { Ordering::Equal } else { self.value.cmp(&other.value) };
        values.then_with(|| self.key.cmp(&other.key))
    }
}

/// An index over values of any type.
pub(crate) trait AnyIndex<S>: Send + Sync {
    /// Updates the index after a change of an object; `None` means absent.
    fn update(&mut self, old: Option<&S>, new: Option<&S>);

    /// Builds the index from all objects.
    fn rebuild(&mut self, objects: &OrdMap<ObjectKey, S>);

    fn boxed(&self) -> Box<dyn AnyIndex<S>>;

    fn as_any(&self) -> &dyn Any;
}

pub(crate) struct IndexBy<S, V> {
    function: Arc<IndexFunction<S, V>>,
    entries: OrdSet<IndexEntry<V>>,
}

impl<S: Stored, V: IndexValue> IndexBy<S, V> {
    pub(crate) fn new(function: Arc<IndexFunction<S, V>>) -> Self {
        IndexBy { function, entries: OrdSet::new() }
    }

    /// True if this is the index of that handle.
    pub(crate) fn is_of(&self, index: &Index<S, V>) -> bool {
        Arc::ptr_eq(&self.function, &index.function)
    }

    /// The keys of the objects with this value, in key order.
    pub(crate) fn keys<'s>(&'s self, value: &V) -> impl Iterator<Item = &'s ObjectKey> + use<'s, S, V> {
        let first = IndexEntry { value: Arc::new(value.clone()), key: ObjectKey::first() };
        let value = first.value.clone();
        self.entries.range(first..).take_while(move |place| *place.value == *value).map(|place| &place.key)
    }

    /// Values and keys from this value on, ordered by value, then key.
    pub(crate) fn from<'s>(&'s self, value: &V) -> impl Iterator<Item = (&'s V, &'s ObjectKey)> + use<'s, S, V> {
        let first = IndexEntry { value: Arc::new(value.clone()), key: ObjectKey::first() };
        self.entries.range(first..).map(|place| (&*place.value, &place.key))
    }

    /// The values that at least one object has, in order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        let mut last: Option<&Arc<V>> = None;
        self.entries.iter().filter_map(move |place| {
            let new = last.is_none_or(|last| !Arc::ptr_eq(last, &place.value) && **last != *place.value);
            last = Some(&place.value);
            new.then_some(&*place.value)
        })
    }

    fn values_of(&self, object: Option<&S>) -> Vec<V> {
        let mut values = object.map_or_else(Vec::new, |object| (self.function)(object));
        values.sort_unstable();
        values.dedup();
        values
    }

    fn insert(&mut self, value: V, key: ObjectKey) {
        let first = IndexEntry { value: Arc::new(value), key: ObjectKey::first() };
        let known = self.entries.get_next(&first).filter(|place| place.value == first.value);
        let value = known.map_or(first.value, |place| place.value.clone());
        self.entries.insert(IndexEntry { value, key });
    }
}

impl<S: Stored, V: IndexValue> AnyIndex<S> for IndexBy<S, V> {
    fn update(&mut self, old: Option<&S>, new: Option<&S>) {
        let (before, after) = (self.values_of(old), self.values_of(new));
        if before == after {
            return;
        }
        if let Some(old) = old {
            for value in &before {
                if after.binary_search(value).is_err() {
                    self.entries.remove(&IndexEntry { value: Arc::new(value.clone()), key: old.key().clone() });
                }
            }
        }
        if let Some(new) = new {
            for value in after {
                if before.binary_search(&value).is_err() {
                    self.insert(value, new.key().clone());
                }
            }
        }
    }

    fn rebuild(&mut self, objects: &OrdMap<ObjectKey, S>) {
        self.entries = OrdSet::new();
        for object in objects.values() {
            for value in self.values_of(Some(object)) {
                self.insert(value, object.key().clone());
            }
        }
    }

    fn boxed(&self) -> Box<dyn AnyIndex<S>> {
        Box::new(IndexBy { function: self.function.clone(), entries: self.entries.clone() })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The indexes of one snapshot.
pub(crate) struct Indexes<S>(Vec<Box<dyn AnyIndex<S>>>);

impl<S: Stored> Indexes<S> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn push(&mut self, index: impl AnyIndex<S> + 'static) {
        self.0.push(Box::new(index));
    }

    pub(crate) fn update(&mut self, old: Option<&S>, new: Option<&S>) {
        for index in &mut self.0 {
            index.update(old, new);
        }
    }

    pub(crate) fn rebuild(&mut self, objects: &OrdMap<ObjectKey, S>) {
        for index in &mut self.0 {
            index.rebuild(objects);
        }
    }

    /// The index of a handle, if this snapshot has it.
    pub(crate) fn get<V: IndexValue>(&self, index: &Index<S, V>) -> Option<&IndexBy<S, V>> {
        let found = self.0.get(index.slot)?.as_any().downcast_ref::<IndexBy<S, V>>()?;
        found.is_of(index).then_some(found)
    }
}

impl<S: Stored> Clone for Indexes<S> {
    fn clone(&self) -> Self {
        Indexes(self.0.iter().map(|index| index.boxed()).collect())
    }
}

impl<S> Default for Indexes<S> {
    fn default() -> Self {
        Indexes(Vec::new())
    }
}

impl<S> fmt::Debug for Indexes<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} indexes", self.0.len())
    }
}
