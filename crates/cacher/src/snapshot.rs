//! The state of a resource at one revision: [`Snapshot`], an ordered map with cheap clones that
//! share their nodes, and the lists read from it ([`ListItems`]).
//!
//! A clone increments two counters. Afterwards a change of one object copies only the path to it (a
//! few nodes of sixteen entries). So a list takes a clone, and lists and the writer never wait for
//! each other.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use imbl::OrdMap;
use listwatch_meta::{Key, KeyRange, Object, ObjectShape};

use crate::filter::Filter;
use crate::limits::{LIST_BATCH_OBJECTS, LIST_EXAMINED_BYTES_PER_POLL, LIST_EXAMINED_PER_POLL};
use crate::stats::Counters;

/// Objects in key order, with indexes by field value.
#[derive(Clone)]
pub(crate) struct Snapshot {
    objects: OrdMap<Key, Object>,
    indexes: Vec<Index>,
}

/// All objects ordered by the value of one field, then by key.
#[derive(Clone)]
struct Index {
    /// The position of the field in the shape.
    field: usize,
    entries: OrdMap<Arc<str>, Object>,
}

impl Snapshot {
    /// Creates an empty state with indexes on the fields at these positions of the shape.
    pub(crate) fn new(indexed: &[usize]) -> Self {
        let indexes = indexed.iter().map(|field| Index { field: *field, entries: OrdMap::new() }).collect();
        Snapshot { objects: OrdMap::new(), indexes }
    }

    /// The number of objects.
    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    /// The object at a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Object> {
        self.objects.get(key)
    }

    /// Inserts an object; returns the object that it replaces.
    pub(crate) fn insert(&mut self, object: Object, shape: &ObjectShape) -> Option<Object> {
        let key = object.key().clone();
        let previous = self.objects.insert(key, object.clone());
        for Index { field, entries } in &mut self.indexes {
            let value = object.field_at(*field, shape);
            let former = previous.as_ref().map(|previous| previous.field_at(*field, shape));
            if former.as_ref() == Some(&value) {
                // The usual case: the entry stays and its object is replaced.
                if let Some(position) = entries.get_mut(&*index_entry(&value, object.key())) {
                    *position = object.clone();
                    continue;
                }
            } else if let Some(former) = former {
                entries.remove(&*index_entry(&former, object.key()));
            }
            entries.insert(index_entry(&value, object.key()).into(), object.clone());
        }
        previous
    }

    /// Removes an object and returns it.
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

    /// The number of objects of the range after `key`.
    pub(crate) fn count_behind(&self, range: &KeyRange, key: &str) -> u64 {
        let range = (Bound::Excluded(key), Bound::Excluded(range.end()));
        self.objects.range::<_, str>(range).count() as u64
    }

    /// Whether the range has an object after `key`.
    pub(crate) fn any_behind(&self, range: &KeyRange, key: &str) -> bool {
        self.objects.range::<_, str>((Bound::Excluded(key), Bound::Excluded(range.end()))).next().is_some()
    }
}

/// The index entry `value NUL key`: entries of one value are adjacent and in key order. Values that
/// contain a NUL may interleave with others; the filter removes these.
fn index_entry(value: &str, key: &Key) -> String {
    let key = key.as_str();
    let mut entry = String::with_capacity(value.len() + 1 + key.len());
    entry.push_str(value);
    entry.push('\0');
    entry.push_str(key);
    entry
}

/// The objects of a list, in key order: an iterator that owns its data and is `Send`.
///
/// The iterator walks a snapshot lazily, a few objects at a time, so that a body is streamed without a copy of the set.
/// Dropping the iterator early is cheap. A clone is also cheap, and yields the same objects again.
///
/// A client must not make one step of the iterator examine a whole collection. So the objects of a list with a limit, or
/// with a selector that neither a key range nor an index covers, were examined before, with pauses for other tasks. The
/// iterator then has only the matching objects.
///
/// While the iterator exists, it keeps its snapshot or its objects alive. That costs the memory of all later changes and
/// deletions, at most the bytes of the whole resource, shared by all lists of one revision. The server bounds the time
/// for which a client may hold the iterator. [`CacherStats::open_walks`](crate::CacherStats::open_walks) counts the
/// iterators of lists without a limit.
#[derive(Clone)]
pub struct ListItems(Items);

#[derive(Clone)]
enum Items {
    Snapshot(Box<Walk>),
    Ready(ReadyObjects),
}

/// Objects that were examined before.
#[derive(Clone)]
struct ReadyObjects {
    /// Not a slice: a slice behind a counter would be a copy of the vector.
    objects: Arc<Vec<Object>>,
    /// The position of the next object.
    next: usize,
    open: Option<OpenWalk>,
}

impl ReadyObjects {
    fn rest(&self) -> &[Object] {
        self.objects.get(self.next..).unwrap_or_default()
    }

    fn next(&mut self) -> Option<Object> {
        let object = self.rest().first().cloned();
        self.next += usize::from(object.is_some());
        object
    }

    fn show(&mut self, take: &mut dyn FnMut(&Object) -> bool) -> bool {
        let stopped_at = self.rest().iter().position(|object| !take(object));
        self.next = stopped_at.map_or(self.objects.len(), |position| self.next + position + 1);
        stopped_at.is_some()
    }
}

/// A walk through the matching objects of a snapshot.
#[derive(Clone)]
struct Walk {
    snapshot: Snapshot,
    filter: Arc<Filter>,
    shape: Arc<ObjectShape>,
    source: Source,
    /// The key at which the next batch begins.
    from: Bound<Box<str>>,
    /// The key at which the walk ends.
    end: Box<str>,
    ready: VecDeque<Object>,
    done: bool,
    open: Option<OpenWalk>,
}

/// Counts as an open iteration until it is dropped.
struct OpenWalk(Arc<Counters>);

impl OpenWalk {
    fn new(counters: Arc<Counters>) -> Self {
        counters.open_walks.fetch_add(1, Relaxed);
        OpenWalk(counters)
    }
}

impl Clone for OpenWalk {
    fn clone(&self) -> Self {
        OpenWalk::new(self.0.clone())
    }
}

impl Drop for OpenWalk {
    fn drop(&mut self) {
        self.0.open_walks.fetch_sub(1, Relaxed);
    }
}

/// The result of examining the next few objects.
pub(crate) enum WalkStep {
    /// The next object.
    Object(Object),
    /// None of these objects matches; continue.
    Nothing,
    /// The walk is complete.
    End,
}

#[derive(Clone, Copy)]
enum Source {
    Objects,
    Index(usize),
}

impl ListItems {
    /// Walks the objects of `snapshot` that match, from the key `start` on.
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

    /// Counts the list in [`Counters::open_walks`] while it exists.
    pub(crate) fn counted(mut self, counters: &Arc<Counters>) -> Self {
        let open = Some(OpenWalk::new(counters.clone()));
        match &mut self.0 {
            Items::Snapshot(walk) => walk.open = open,
            Items::Ready(objects) => objects.open = open,
        }
        self
    }

    /// Whether a step examines matching objects only. Values of an indexed field that contain a NUL are an exception: they
    /// may lie between the entries of another value.
    pub(crate) fn examines_only_matches(&self) -> bool {
        let Items::Snapshot(walk) = &self.0 else { return true };
        let indexed = match walk.source {
            Source::Objects => None,
            Source::Index(index) => walk.snapshot.indexes.get(index).map(|index| index.field),
        };
        walk.filter.is_met_by_range(indexed)
    }

    /// Returns the next object, after examining at most [`LIST_BATCH_OBJECTS`] objects.
    pub(crate) fn look(&mut self) -> WalkStep {
        match &mut self.0 {
            Items::Ready(objects) => objects.next().map_or(WalkStep::End, WalkStep::Object),
            Items::Snapshot(walk) => {
                if walk.ready.is_empty() && !walk.done {
                    walk.refill();
                }
                match walk.ready.pop_front() {
                    Some(object) => WalkStep::Object(object),
                    None if walk.done => WalkStep::End,
                    None => WalkStep::Nothing,
                }
            }
        }
    }

    /// Passes the next objects to `take` by reference, until it returns false or no objects remain.
    /// A chunk of a list is filled with one call. Returns whether more objects may follow.
    pub fn show(&mut self, take: &mut dyn FnMut(&Object) -> bool) -> bool {
        match &mut self.0 {
            Items::Ready(objects) => objects.show(take),
            Items::Snapshot(walk) => walk.show(take),
        }
    }

    /// Creates a list of these objects.
    pub(crate) fn ready(objects: Vec<Object>) -> Self {
        ListItems(Items::Ready(ReadyObjects { objects: Arc::new(objects), next: 0, open: None }))
    }

    /// Moves the next objects to `objects`, which holds at most `limit`. Other tasks run after every
    /// [`LIST_EXAMINED_PER_POLL`] objects or [`LIST_EXAMINED_BYTES_PER_POLL`], also when none of them matches.
    pub(crate) async fn collected(mut self, limit: usize) -> Vec<Object> {
        let mut objects = Vec::new();
        while self.collect_some(&mut objects, limit) {
            tokio::task::yield_now().await;
        }
        objects
    }

    /// Examines objects up to [`LIST_EXAMINED_PER_POLL`] or [`LIST_EXAMINED_BYTES_PER_POLL`], and adds the matching ones.
    /// Returns whether more may follow.
    fn collect_some(&mut self, objects: &mut Vec<Object>, limit: usize) -> bool {
        let Items::Snapshot(walk) = &mut self.0 else {
            objects.extend(self.by_ref().take(limit.saturating_sub(objects.len())));
            return false;
        };
        if walk.done || objects.len() >= limit {
            return false;
        }
        walk.walk(LIST_EXAMINED_PER_POLL, LIST_EXAMINED_BYTES_PER_POLL, &mut |object| {
            objects.push(object.clone());
            objects.len() < limit
        });
        !walk.done && objects.len() < limit
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

    /// The lower bound of a walk is 0, because the number of matches is unknown.
    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Items::Ready(objects) => {
                let rest = objects.rest().len();
                (rest, Some(rest))
            }
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
        self.walk(LIST_BATCH_OBJECTS, usize::MAX, &mut |object| {
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
            self.walk(usize::MAX, usize::MAX, take);
        }
        !self.done
    }

    /// Passes the matching objects of at most `entries` entries to `take`, until it returns false, or until the selectors
    /// have examined `bytes` bytes of JSON.
    fn walk(&mut self, entries: usize, bytes: usize, take: &mut dyn FnMut(&Object) -> bool) {
        let bounds = (self.from.as_ref().map(|from| &**from), Bound::Excluded(&*self.end));
        let (filter, shape) = (&*self.filter, &*self.shape);
        let (selects, mut examined) = (filter.selects(), 0_usize);
        let mut take = |object: &Object| {
            if !filter.covers(object.key()) {
                return true;
            }
            if selects {
                examined = examined.saturating_add(object.json_slice().len());
            }
            (!filter.selects_object(object, shape) || take(object)) && examined < bytes
        };
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

/// Passes at most `entries` entries to `take`, until it returns false. Returns the last entry, or `None` at the end.
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
    fn index_lists_objects_with_one_field_value_in_key_order() {
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

    /// Two indexed fields, and three hundred objects of which few have the value `rare`.
    fn two_indexes() -> (Snapshot, Arc<ObjectShape>) {
        let fields = ["spec.nodeName", "status.phase"].map(SelectableField::string).to_vec();
        let shape = Arc::new(ObjectShape::new(true, fields));
        let mut snapshot = Snapshot::new(&[0, 1]);
        for n in 0..300 {
            let (node, phase) = (["rare", "node"][usize::from(n != 7)], ["rare", "phase"][usize::from(n < 298)]);
            let json = format!(r#"{{"metadata":{{}},"spec":{{"nodeName":"{node}"}},"status":{{"phase":"{phase}"}}}}"#);
            let key = Key::new("pods", Some("a"), &format!("x{n:03}")).unwrap();
            let object = Object::from_stored(key, Revision::new(1), Change::Added, json.as_bytes(), &shape).unwrap();
            snapshot.insert(object, &shape);
        }
        (snapshot, shape)
    }

    #[test]
    fn list_of_a_rare_field_value_examines_only_its_objects() {
        let (snapshot, shape) = two_indexes();
        for (fields, objects, examines_others) in [
            ("", 300, false),
            ("spec.nodeName=rare", 1, false),
            ("status.phase=rare", 2, false),
            ("spec.nodeName!=node", 1, true),
            ("metadata.name!=x299", 299, false),
            ("metadata.namespace=b", 0, false),
        ] {
            let selector = FieldSelector::parse(fields).unwrap();
            let filter = Filter::new("pods", &shape, &[0, 1], &Scope::All, LabelSelector::default(), &selector);
            let mut items = ListItems::walk(snapshot.clone(), Arc::new(filter), shape.clone(), "");
            let (mut shown, mut empty_batches) = (0, 0);
            loop {
                match items.look() {
                    WalkStep::Object(_) => shown += 1,
                    WalkStep::Nothing => empty_batches += 1,
                    WalkStep::End => break,
                }
            }
            assert_eq!((shown, empty_batches > 0), (objects, examines_others), "{fields}");
        }
    }

    #[test]
    fn show_passes_objects_until_the_reader_stops_or_none_remain() {
        let (snapshot, shape) = two_indexes();
        let none = FieldSelector::default();
        let filter = Arc::new(Filter::new("pods", &shape, &[], &Scope::All, LabelSelector::default(), &none));
        let walk = ListItems::walk(snapshot, filter, shape, "");
        let expected: Vec<Object> = walk.clone().collect();
        for (source, items) in [("walk", walk), ("page", ListItems::ready(expected.clone()))] {
            for begun in [0, 1, 64] {
                let mut items = items.clone();
                let mut seen: Vec<Object> = items.by_ref().take(begun).collect();
                let more = items.show(&mut |object| {
                    seen.push(object.clone());
                    seen.len() < begun + 3
                });
                assert_eq!((seen.len(), more), (begun + 3, true), "{source}: the reader stops at the third object");
                let mut last = items.clone();
                let mut count = seen.len();
                let mut stop_at_last = || {
                    last.show(&mut |_| {
                        count += 1;
                        count != 300
                    })
                };
                // A reader that has no room for the last object continues with the end of the list later.
                assert_eq!((stop_at_last(), stop_at_last()), (true, false), "{source}: the reader stops at the last");
                let more = items.show(&mut |object| {
                    seen.push(object.clone());
                    true
                });
                assert_eq!((seen.len(), more), (300, false), "{source}: the reader takes the rest");
                assert!(seen.iter().zip(&expected).all(|(seen, expected)| seen.key() == expected.key()), "{source}");
            }
        }
    }

    #[test]
    fn list_examines_a_bounded_number_of_objects_per_poll_even_if_none_matches() {
        use std::task::{Context, Poll, Waker};

        let shape = shape();
        let mut snapshot = Snapshot::new(&[]);
        let objects = 3 * LIST_EXAMINED_PER_POLL + 1;
        for n in 0..objects {
            snapshot.insert(pod("a", &format!("x{n:05}"), if n % 1_000 == 999 { "rare" } else { "node" }), &shape);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _entered = runtime.enter();
        for (labels, fields, limit, found, polls) in [
            ("app", "", usize::MAX, 0, 4),
            ("", "spec.nodeName=none", usize::MAX, 0, 4),
            ("", "spec.nodeName=rare", usize::MAX, 3, 4),
            ("", "spec.nodeName=rare", 1, 1, 1),
            ("", "spec.nodeName=rare", 2, 2, 2),
            ("", "", usize::MAX, objects, 4),
            ("", "", 5, 5, 1),
        ] {
            let (selector, terms) = (LabelSelector::parse(labels).unwrap(), FieldSelector::parse(fields).unwrap());
            let filter = Filter::new("pods", &shape, &[], &Scope::All, selector, &terms);
            let items = ListItems::walk(snapshot.clone(), Arc::new(filter), shape.clone(), "");
            let mut collected = std::pin::pin!(items.collected(limit));
            let mut polled = 1;
            let mut cx = Context::from_waker(Waker::noop());
            let seen = loop {
                match collected.as_mut().poll(&mut cx) {
                    Poll::Ready(seen) => break seen,
                    Poll::Pending => polled += 1,
                }
            };
            assert_eq!((seen.len(), polled), (found, polls), "{labels} {fields} {limit}");
        }
    }

    #[test]
    fn list_with_a_selector_pauses_after_the_examined_bytes_of_large_labels() {
        let shape = shape();
        let mut snapshot = Snapshot::new(&[]);
        let label = "x".repeat(LIST_EXAMINED_BYTES_PER_POLL * 3 / 8);
        for n in 0..7 {
            let key = Key::new("pods", Some("a"), &format!("x{n}")).unwrap();
            let json = format!(r#"{{"metadata":{{"labels":{{"large":"{label}"}}}}}}"#);
            let object = Object::from_stored(key, Revision::new(1), Change::Added, json.as_bytes(), &shape).unwrap();
            snapshot.insert(object, &shape);
        }
        for (labels, limit, steps) in [
            ("app", usize::MAX, vec![0, 0, 0]),
            ("large", usize::MAX, vec![3, 6, 7]),
            ("large", 4, vec![3, 4]),
            ("", usize::MAX, vec![7]),
            ("", 4, vec![4]),
        ] {
            let selector = LabelSelector::parse(labels).unwrap();
            let filter = Filter::new("pods", &shape, &[], &Scope::All, selector, &FieldSelector::default());
            let mut items = ListItems::walk(snapshot.clone(), Arc::new(filter), shape.clone(), "");
            let (mut objects, mut seen, mut more) = (Vec::new(), Vec::new(), true);
            while more {
                more = items.collect_some(&mut objects, limit);
                seen.push(objects.len());
            }
            assert_eq!(seen, steps, "{labels} {limit}");
        }
    }

    #[test]
    fn list_is_streamed_only_if_a_step_examines_no_other_objects() {
        let shape = Arc::new(ObjectShape::new(
            true,
            ["spec.nodeName", "status.phase", "spec.other"].map(SelectableField::string).to_vec(),
        ));
        let snapshot = Snapshot::new(&[0, 1]);
        let namespace = Scope::Namespace("a".to_owned());
        let object = Scope::Object { namespace: Some("a".to_owned()), name: "x".to_owned() };
        for (scope, labels, fields, is_streamed) in [
            (&Scope::All, "", "", true),
            (&namespace, "", "", true),
            (&object, "", "", true),
            (&object, "app=web", "metadata.name=y", true),
            (&Scope::All, "", "spec.nodeName=n", true),
            (&Scope::All, "", "spec.nodeName=n,spec.nodeName!=m", true),
            (&Scope::All, "", "spec.nodeName=n,metadata.namespace=a", true),
            (&namespace, "", "spec.nodeName=n", true),
            (&namespace, "app=web", "metadata.name=x", true),
            (&Scope::All, "", "metadata.namespace=a", true),
            (&Scope::All, "", "metadata.namespace=a,metadata.name=x", true),
            (&Scope::All, "", "metadata.namespace=a,metadata.namespace=b", false),
            (&namespace, "", "metadata.namespace=b", false),
            (&Scope::All, "", "metadata.namespace!=a", false),
            (&Scope::All, "", "metadata.name=x", false),
            (&Scope::All, "", "spec.nodeName!=n", false),
            (&Scope::All, "", "spec.nodeName=n,spec.nodeName=m", false),
            (&Scope::All, "", "spec.nodeName=n,status.phase=p", false),
            (&Scope::All, "", "spec.nodeName=n,metadata.name=x", false),
            (&Scope::All, "", "spec.other=x", false),
            (&Scope::All, "app=web", "", false),
            (&Scope::All, "app=web", "spec.nodeName=n", false),
            (&namespace, "app=web", "", false),
        ] {
            let (selector, terms) = (LabelSelector::parse(labels).unwrap(), FieldSelector::parse(fields).unwrap());
            let filter = Filter::new("pods", &shape, &[0, 1], scope, selector, &terms);
            let items = ListItems::walk(snapshot.clone(), Arc::new(filter), shape.clone(), "");
            assert_eq!(items.examines_only_matches(), is_streamed, "{scope:?} {labels} {fields}");
        }
    }

    #[test]
    fn list_counts_as_open_while_it_exists_whatever_its_source() {
        let (snapshot, shape) = two_indexes();
        let none = FieldSelector::default();
        let filter = Arc::new(Filter::new("pods", &shape, &[], &Scope::All, LabelSelector::default(), &none));
        let walk = ListItems::walk(snapshot, filter, shape, "");
        for items in [walk, ListItems::ready(Vec::new())] {
            let counters = Arc::new(Counters::default());
            let items = items.counted(&counters);
            let clone = items.clone();
            assert_eq!(counters.open_walks.load(Relaxed), 2);
            drop((items, clone));
            assert_eq!(counters.open_walks.load(Relaxed), 0);
        }
    }

    #[test]
    fn size_hint_is_exact_for_a_page_and_an_upper_bound_for_a_walk() {
        let (snapshot, shape) = two_indexes();
        let fields = FieldSelector::parse("spec.nodeName!=node").unwrap();
        let filter = Arc::new(Filter::new("pods", &shape, &[], &Scope::All, LabelSelector::default(), &fields));
        let mut walk = ListItems::walk(snapshot, filter, shape, "");
        let (least, most) = walk.size_hint();
        assert!(least <= 1 && most.is_some_and(|most| most >= 1), "one object matches");
        let mut page = ListItems::ready(vec![walk.next().unwrap(); 3]);
        assert_eq!(page.size_hint(), (3, Some(3)));
        assert!(page.next().is_some());
        assert_eq!(page.size_hint(), (2, Some(2)));
    }

    proptest! {
        #[test]
        fn walk_shows_the_state_at_its_start(
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
