//! The state of a resource at one revision: [`Snapshot`], an ordered map of objects whose clones
//! cost nothing and share what they have in common, and the lists read from it ([`ListItems`]).
//!
//! A clone is two counters up; from then on a change of one object copies the path to it (a few
//! nodes of sixteen entries) and nothing else. So a list takes a clone, and neither waits for the
//! writer nor makes the writer wait.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use imbl::OrdMap;
use listwatch_meta::{Key, KeyRange, Object, ObjectShape};

use crate::filter::Filter;
use crate::limits::LIST_BATCH_OBJECTS;
use crate::stats::Counters;

/// Objects in key order, and by the values of indexed fields.
#[derive(Clone)]
pub(crate) struct Snapshot {
    objects: OrdMap<Key, Object>,
    indexes: Vec<Index>,
}

/// All objects ordered by the value of one field, then by key.
#[derive(Clone)]
struct Index {
    /// Position of the field in the shape.
    field: usize,
    entries: OrdMap<Arc<str>, Object>,
}

impl Snapshot {
    /// An empty state with indexes on the fields at these positions of the shape.
    pub(crate) fn new(indexed: &[usize]) -> Self {
        let indexes = indexed.iter().map(|field| Index { field: *field, entries: OrdMap::new() }).collect();
        Snapshot { objects: OrdMap::new(), indexes }
    }

    /// How many objects there are.
    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    /// The object at a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Object> {
        self.objects.get(key)
    }

    /// Puts an object in its place; returns what was there.
    pub(crate) fn insert(&mut self, object: Object, shape: &ObjectShape) -> Option<Object> {
        let key = object.key().clone();
        let previous = self.objects.insert(key, object.clone());
        for Index { field, entries } in &mut self.indexes {
            let value = object.field_at(*field, shape);
            let former = previous.as_ref().map(|previous| previous.field_at(*field, shape));
            if former.as_ref() == Some(&value) {
                // The usual case: the entry stays, and what it points at is replaced.
                if let Some(place) = entries.get_mut(&*index_entry(&value, object.key())) {
                    *place = object.clone();
                    continue;
                }
            } else if let Some(former) = former {
                entries.remove(&*index_entry(&former, object.key()));
            }
            entries.insert(index_entry(&value, object.key()).into(), object.clone());
        }
        previous
    }

    /// Takes an object away; returns it.
    pub(crate) fn remove(&mut self, key: &str, shape: &ObjectShape) -> Option<Object> {
        let previous = self.objects.remove(key)?;
        for Index { field, entries } in &mut self.indexes {
            entries.remove(&*index_entry(&previous.field_at(*field, shape), previous.key()));
        }
        Some(previous)
    }

    /// All objects, in key order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }

    /// How many objects of the range lie behind `key`.
    pub(crate) fn count_behind(&self, range: &KeyRange, key: &str) -> u64 {
        let range = (Bound::Excluded(key), Bound::Excluded(range.end()));
        self.objects.range::<_, str>(range).count() as u64
    }

    /// Does any object of the range lie behind `key`?
    pub(crate) fn any_behind(&self, range: &KeyRange, key: &str) -> bool {
        self.objects.range::<_, str>((Bound::Excluded(key), Bound::Excluded(range.end()))).next().is_some()
    }
}

/// `value NUL key`: all entries of one value are neighbours, in key order. A value that holds a NUL
/// may have strangers among its neighbours; the filter sorts them out.
fn index_entry(value: &str, key: &Key) -> String {
    let key = key.as_str();
    let mut entry = String::with_capacity(value.len() + 1 + key.len());
    entry.push_str(value);
    entry.push('\0');
    entry.push_str(key);
    entry
}

/// The objects of a list, in key order: an iterator that owns what it reads from and can be sent
/// anywhere.
///
/// It walks a snapshot as it is asked, a few objects at a time, so that a body can be streamed
/// without a copy of the set. Dropping it early costs nothing, and so does a clone, which gives the
/// same objects again.
///
/// While it is held it keeps the state that it shows: it costs the memory of what was changed or
/// deleted since, at most the bytes of the whole resource at that time, shared by all lists of one
/// revision. Nothing else waits for it. Whoever hands it to a client bounds for how long; how many
/// there are is in [`CacherStats::open_walks`](crate::CacherStats::open_walks).
#[derive(Clone)]
pub struct ListItems(Items);

#[derive(Clone)]
enum Items {
    Snapshot(Box<Walk>),
    Ready(std::vec::IntoIter<Object>),
}

/// A walk through the objects of a snapshot that match a filter.
#[derive(Clone)]
struct Walk {
    snapshot: Snapshot,
    filter: Arc<Filter>,
    shape: Arc<ObjectShape>,
    source: Source,
    /// Where the next look begins.
    from: Bound<Box<str>>,
    /// Where the walk ends.
    end: Box<str>,
    ready: VecDeque<Object>,
    done: bool,
    open: Option<Open>,
}

/// Counts the walks that are on their way.
struct Open(Arc<Counters>);

impl Open {
    fn new(counters: Arc<Counters>) -> Self {
        counters.open_walks.fetch_add(1, Relaxed);
        Open(counters)
    }
}

impl Clone for Open {
    fn clone(&self) -> Self {
        Open::new(self.0.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open_walks.fetch_sub(1, Relaxed);
    }
}

/// What a look at the next few objects found.
pub(crate) enum Looked {
    /// The next object.
    Object(Object),
    /// None of these matches; look on.
    Nothing,
    /// That was all.
    End,
}

#[derive(Clone, Copy)]
enum Source {
    Objects,
    Index(usize),
}

impl ListItems {
    /// The objects of `snapshot` that match, from the key `start` on.
    pub(crate) fn walk(snapshot: Snapshot, filter: Arc<Filter>, shape: Arc<ObjectShape>, start: &str) -> Self {
        let range = filter.range().starting_at(start);
        let pinned = filter.pinned_field().and_then(|(field, value)| {
            let index = snapshot.indexes.iter().position(|index| index.field == field)?;
            Some((index, value))
        });
        let (source, from, end) = match pinned {
            Some((index, value)) => {
                (Source::Index(index), format!("{value}\0{}", range.start()), format!("{value}\0{}", range.end()))
            }
            None => (Source::Objects, range.start().to_owned(), range.end().to_owned()),
        };
        let done = range.is_empty();
        ListItems(Items::Snapshot(Box::new(Walk {
            snapshot,
            filter,
            shape,
            source,
            from: Bound::Included(from.into()),
            end: end.into(),
            ready: VecDeque::new(),
            done,
            open: None,
        })))
    }

    /// The same, counted among [`Counters::open_walks`] while it is held.
    pub(crate) fn counted(mut self, counters: &Arc<Counters>) -> Self {
        if let Items::Snapshot(walk) = &mut self.0 {
            walk.open = Some(Open::new(counters.clone()));
        }
        self
    }

    /// The next object, or so much: looks at [`LIST_BATCH_OBJECTS`] objects at most.
    pub(crate) fn look(&mut self) -> Looked {
        match &mut self.0 {
            Items::Ready(objects) => objects.next().map_or(Looked::End, Looked::Object),
            Items::Snapshot(walk) => {
                if walk.ready.is_empty() && !walk.done {
                    walk.refill();
                }
                match walk.ready.pop_front() {
                    Some(object) => Looked::Object(object),
                    None if walk.done => Looked::End,
                    None => Looked::Nothing,
                }
            }
        }
    }

    /// Shows the next objects where they lie, until `take` has enough (it returns false) or there
    /// are no more: what a chunk of a list needs, in one go. Returns whether there may be more.
    pub fn show(&mut self, take: &mut dyn FnMut(&Object) -> bool) -> bool {
        match &mut self.0 {
            Items::Ready(objects) => objects.any(|object| !take(&object)),
            Items::Snapshot(walk) => walk.show(take),
        }
    }

    /// These objects.
    pub(crate) fn ready(objects: Vec<Object>) -> Self {
        ListItems(Items::Ready(objects.into_iter()))
    }
}

impl Iterator for ListItems {
    type Item = Object;

    fn next(&mut self) -> Option<Object> {
        match &mut self.0 {
            Items::Ready(objects) => objects.next(),
            Items::Snapshot(walk) => walk.next(),
        }
    }

    /// The lower bound is 0 for a walk: what a selector leaves is not known before.
    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Items::Ready(objects) => objects.size_hint(),
            Items::Snapshot(walk) => (walk.ready.len(), Some(walk.snapshot.len())),
        }
    }
}

impl fmt::Debug for ListItems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ListItems")
    }
}

impl Walk {
    fn next(&mut self) -> Option<Object> {
        while self.ready.is_empty() && !self.done {
            self.refill();
        }
        self.ready.pop_front()
    }

    fn refill(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        self.walk(LIST_BATCH_OBJECTS, &mut |object| {
            ready.push_back(object.clone());
            true
        });
        self.ready = ready;
    }

    fn show(&mut self, take: &mut dyn FnMut(&Object) -> bool) -> bool {
        while let Some(object) = self.ready.pop_front() {
            if !take(&object) {
                return true;
            }
        }
        if !self.done {
            self.walk(usize::MAX, take);
        }
        !self.done
    }

    /// Goes on through the entries, for at most so many, until `take` has enough.
    fn walk(&mut self, entries: usize, take: &mut dyn FnMut(&Object) -> bool) {
        let bounds = (self.from.as_ref().map(|from| &**from), Bound::Excluded(&*self.end));
        let (filter, shape) = (&*self.filter, &*self.shape);
        let mut take =
            |object: &Object| !(filter.covers(object.key()) && filter.selects_object(object, shape)) || take(object);
        let last = match self.source {
            Source::Objects => walk(&self.snapshot.objects, bounds, entries, &mut take),
            Source::Index(index) => walk(&self.snapshot.indexes[index].entries, bounds, entries, &mut take),
        };
        match last {
            Some(last) => self.from = Bound::Excluded(last),
            None => self.done = true,
        }
    }
}

/// Takes the next entries, for at most so many, until `take` has enough; returns the last one, or
/// `None` at the end.
fn walk<K: Ord + Clone + Borrow<str>>(
    map: &OrdMap<K, Object>,
    bounds: (Bound<&str>, Bound<&str>),
    entries: usize,
    take: &mut impl FnMut(&Object) -> bool,
) -> Option<Box<str>> {
    let last = map.range::<_, str>(bounds).zip(1..).find(|((_, object), count)| !take(object) || *count == entries);
    last.map(|((entry, _), _)| entry.borrow().into())
}

#[cfg(test)]
mod tests {
    use listwatch_meta::{Change, FieldSelector, LabelSelector, Revision, SelectableField};
    use proptest::prelude::*;

    use super::*;
    use crate::filter::Scope;

    fn shape() -> Arc<ObjectShape> {
        Arc::new(ObjectShape::new(true, vec![SelectableField::string("spec.nodeName")]))
    }

    fn pod(namespace: &str, name: &str, node: &str) -> Object {
        let key = Key::new("pods", Some(namespace), name).unwrap();
        let json = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{"nodeName":"{node}"}}}}"#);
        Object::from_stored(key, Revision::new(1), Change::Added, json.as_bytes(), &shape()).unwrap()
    }

    fn list(snapshot: &Snapshot, scope: &Scope, fields: &str) -> Vec<String> {
        let fields = FieldSelector::parse(fields).unwrap();
        let filter = Filter::new("pods", &shape(), &[0], scope, LabelSelector::default(), &fields);
        ListItems::walk(snapshot.clone(), Arc::new(filter), shape(), "")
            .map(|object| object.key().as_str()["/pods/".len()..].to_owned())
            .collect()
    }

    #[test]
    fn an_index_lists_one_value_in_key_order() {
        let mut snapshot = Snapshot::new(&[0]);
        for (namespace, name, node) in [("a", "x", "n1"), ("b", "y", "n1"), ("a", "z", "n2"), ("ab", "w", "")] {
            snapshot.insert(pod(namespace, name, node), &shape());
        }
        assert_eq!(list(&snapshot, &Scope::All, "spec.nodeName=n1"), ["a/x", "b/y"]);
        assert_eq!(list(&snapshot, &Scope::All, "spec.nodeName="), ["ab/w"]);
        assert_eq!(list(&snapshot, &Scope::Namespace("a".to_owned()), "spec.nodeName=n2"), ["a/z"]);
        snapshot.insert(pod("a", "x", "n2"), &shape());
        snapshot.remove("/pods/a/z", &shape());
        assert_eq!(list(&snapshot, &Scope::All, "spec.nodeName=n2"), ["a/x"]);
        assert_eq!(list(&snapshot, &Scope::All, "spec.nodeName=n1"), ["b/y"]);
        assert_eq!(list(&snapshot, &Scope::Namespace("a".to_owned()), ""), ["a/x"]);
    }

    proptest! {
        #[test]
        fn a_walk_shows_what_was_there_when_it_began(
            before in prop::collection::btree_map("[ab]", prop::collection::btree_set("[a-z]{1,2}", 0..200), 0..3),
            after in prop::collection::vec("[a-z]{1,2}", 0..50),
            shown in 0_usize..300,
        ) {
            let mut snapshot = Snapshot::new(&[0]);
            let mut expected = Vec::new();
            for (namespace, names) in &before {
                for name in names {
                    snapshot.insert(pod(namespace, name, "n"), &shape());
                    expected.push(format!("{namespace}/{name}"));
                }
            }
            let fields = FieldSelector::default();
            let filter = Arc::new(Filter::new("pods", &shape(), &[0], &Scope::All, LabelSelector::default(), &fields));
            let mut items = ListItems::walk(snapshot.clone(), filter, shape(), "");
            let mut seen: Vec<Object> = items.by_ref().take(10).collect();
            let mut room = shown;
            let mut more = true;
            while room > 0 && more {
                more = items.show(&mut |object| {
                    seen.push(object.clone());
                    room -= 1;
                    room % 7 != 0
                });
            }
            for name in &after {
                if snapshot.remove(&format!("/pods/a/{name}"), &shape()).is_none() {
                    snapshot.insert(pod("a", name, "m"), &shape());
                }
            }
            seen.extend(items);
            let seen: Vec<String> =
                seen.iter().map(|object| object.key().as_str()["/pods/".len()..].to_owned()).collect();
            prop_assert_eq!(seen, expected, "promise: a list is one state");
        }
    }
}
