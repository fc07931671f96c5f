//! The objects of a read or a watch: [`Scope`] from the URL, narrowed by the field selector, and the remaining
//! selectors ([`Filter`]). [`IndexKey`] is the key under which an event finds a watcher.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeSet;

use listwatch_meta::selector::{FieldTerm, LabelOperator, LabelRequirement};
use listwatch_meta::{
    Change, Event, FieldSelector, Key, KeyRange, LabelSelector, Object, ObjectShape, ShardSelector, canary,
};

/// The part of a resource that a URL addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every object of the resource.
    All,
    /// The objects of one namespace.
    Namespace(String),
    /// One object.
    Object {
        /// The namespace of the object; `None` for cluster-scoped resources.
        namespace: Option<String>,
        /// The name of the object.
        name: String,
    },
}

/// The objects of one read or watch, compiled once per request.
#[derive(Debug)]
pub(crate) struct Filter {
    /// The keys that can match, narrowed by the exact namespace and name of the field selector.
    range: KeyRange,
    /// The base of a continue token's key: the URL's scope, without the field selector.
    collection: KeyRange,
    /// Whether every key of the resource can match. Most watchers of a busy resource are of this
    /// kind and skip the comparison of keys.
    everything: bool,
    /// A required name that the range cannot express, because any namespace matches.
    name: Option<Box<str>>,
    labels: Box<[LabelTest]>,
    fields: Box<[FieldTest]>,
    shard: Option<Box<ShardSelector>>,
    index_key: IndexKey,
    selects: bool,
}

/// The most selective index key of a watcher; see [`Interest`](crate::interest::Interest).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IndexKey {
    /// One object.
    Key(Box<str>),
    /// One name in any namespace.
    Name(Box<str>),
    /// One value of an indexed field, by the field's position in the shape.
    Field(usize, Box<str>),
    /// One value of a label.
    Label(Box<str>, Box<str>),
    /// One namespace.
    Namespace(Box<str>),
    /// Every event.
    All,
}

/// A requirement of a label selector in compact form. There may be one per watcher and requirement,
/// and a `BTreeSet` for a single value takes hundreds of bytes.
#[derive(Debug)]
struct LabelTest {
    label: Box<str>,
    operator: Operator,
}

#[derive(Debug)]
enum Operator {
    In(Box<[Box<str>]>),
    NotIn(Box<[Box<str>]>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

#[derive(Debug)]
struct FieldTest {
    field: Field,
    value: Box<str>,
    negated: bool,
}

#[derive(Debug)]
enum Field {
    Name,
    Namespace,
    At(usize),
    /// An unknown field, which equals no value. Request parsing rejects such selectors.
    Unknown,
}

impl Filter {
    /// Compiles a filter. `indexed` are the positions of the indexed fields in the shape.
    pub(crate) fn new(
        prefix: &str,
        shape: &ObjectShape,
        indexed: &[usize],
        scope: &Scope,
        labels: LabelSelector,
        fields: &FieldSelector,
    ) -> Self {
        let collection = match scope {
            Scope::Namespace(namespace) => KeyRange::namespace(prefix, namespace),
            Scope::All | Scope::Object { .. } => KeyRange::resource(prefix),
        };
        let nothing = || collection.starting_at(collection.end());
        let namespace = match scope {
            Scope::Namespace(namespace) => Some(namespace.as_str()),
            Scope::Object { namespace, .. } => namespace.as_deref(),
            Scope::All if shape.namespaced() => fields.requires_exact("metadata.namespace"),
            Scope::All => None,
        };
        let name = match scope {
            Scope::Object { name, .. } => Some(name.as_str()),
            _ => fields.requires_exact("metadata.name"),
        };
        // A cluster-scoped object may have a namespaced URL, as namespaces do.
        let placed = namespace.is_some() || !shape.namespaced() || matches!(scope, Scope::Object { .. });
        let (range, name, index_key) = match (name, namespace) {
            (Some(name), namespace) if placed => match Key::new(prefix, namespace, name) {
                Ok(key) => (KeyRange::single(&key), None, Some(IndexKey::Key(key.as_str().into()))),
                Err(_) => (nothing(), None, None), // no object can have such a name
            },
            (Some(name), _) => (collection.clone(), Some(Box::from(name)), Some(IndexKey::Name(name.into()))),
            (None, Some(namespace)) => (KeyRange::namespace(prefix, namespace), None, None),
            (None, None) => (collection.clone(), None, None),
        };
        let index_key = index_key
            .or_else(|| pinned_field(shape, indexed, fields))
            .or_else(|| pinned_label(&labels))
            .or_else(|| namespace.map(|namespace| IndexKey::Namespace(namespace.into())))
            .unwrap_or(IndexKey::All);
        let selects = !labels.is_empty() || !fields.is_empty();
        let tests = fields.terms().iter().map(|term| FieldTest::new(term, shape)).collect();
        let everything = matches!(scope, Scope::All) && range == collection && name.is_none();
        let labels = labels.requirements().iter().map(LabelTest::new).collect();
        Filter { range, collection, everything, name, labels, fields: tests, shard: None, index_key, selects }
    }

    /// Limits the filter to the objects of these shards.
    pub(crate) fn sharded(mut self, shard: Option<&ShardSelector>) -> Self {
        self.selects |= shard.is_some();
        self.shard = shard.cloned().map(Box::new);
        self
    }

    /// The keys that can match.
    pub(crate) fn range(&self) -> &KeyRange {
        &self.range
    }

    /// The key range of the collection. Keys in continue tokens are relative to the start of the range.
    pub(crate) fn collection(&self) -> &KeyRange {
        &self.collection
    }

    /// The index key under which events find a watcher with this filter.
    pub(crate) fn index_key(&self) -> &IndexKey {
        &self.index_key
    }

    /// Whether the request has a selector. Without one, `remainingItemCount` is exact.
    pub(crate) fn selects(&self) -> bool {
        self.selects
    }

    /// True when only one key can match.
    pub(crate) fn is_single(&self) -> bool {
        matches!(self.index_key, IndexKey::Key(_)) || self.range.is_empty()
    }

    /// Whether an object with this key can match.
    pub(crate) fn covers(&self, key: &Key) -> bool {
        self.everything
            || self.range.contains(key.as_str()) && self.name.as_deref().is_none_or(|name| name == key.name())
    }

    /// Whether the selectors match an object that [`Filter::covers`].
    pub(crate) fn selects_object(&self, object: &Object, shape: &ObjectShape) -> bool {
        !self.selects || self.matches(object, shape, |label| object.label(label))
    }

    /// The change that a watcher with this filter sees in an event. An object that begins to match
    /// is `ADDED`, and one that no longer matches is `DELETED`. `None` if the object matches
    /// neither before nor after.
    pub(crate) fn view(&self, labeled_event: &EventLabels<'_>) -> Option<Change> {
        let EventLabels { event, shape, .. } = labeled_event;
        if !self.covers(event.object.key()) {
            return None;
        }
        if !self.selects {
            return Some(event.change);
        }
        let now = event.change != Change::Deleted
            && self.matches(&event.object, shape, |label| labeled_event.now.get(&event.object, label));
        let before = event
            .previous
            .as_ref()
            .is_some_and(|previous| self.matches(previous, shape, |label| labeled_event.before.get(previous, label)));
        match (before, now) {
            (false, true) if canary!("cacher-shows-entering-as-modified") => Some(event.change),
            (false, true) => Some(Change::Added),
            (true, true) => Some(Change::Modified),
            (true, false) if canary!("cacher-ignores-objects-that-leave") => None,
            (true, false) => Some(Change::Deleted),
            (false, false) => None,
        }
    }

    fn matches<'a>(&self, object: &Object, shape: &ObjectShape, label: impl Fn(&str) -> Option<Cow<'a, str>>) -> bool {
        self.fields.iter().all(|test| test.matches(object, shape))
            && self.labels.iter().all(|test| test.matches(label(&test.label).as_deref()))
            && self.shard.as_ref().is_none_or(|shard| shard.matches(object))
    }

    /// The indexed field that this filter requires to have an exact value, for lists.
    pub(crate) fn pinned_field(&self) -> Option<(usize, &str)> {
        match &self.index_key {
            IndexKey::Field(position, value) => Some((*position, value)),
            _ => None,
        }
    }
}

/// An event with its labels, which are parsed once for all filters.
pub(crate) struct EventLabels<'e> {
    pub(crate) event: &'e Event,
    pub(crate) shape: &'e ObjectShape,
    now: Labels<'e>,
    before: Labels<'e>,
}

#[derive(Default)]
struct Labels<'e>(OnceCell<Vec<(&'e [u8], Cow<'e, str>)>>);

impl<'e> EventLabels<'e> {
    pub(crate) fn new(event: &'e Event, shape: &'e ObjectShape) -> Self {
        EventLabels { event, shape, now: Labels::default(), before: Labels::default() }
    }

    /// A label's value after the change, or in the last state of a deleted object.
    pub(crate) fn label_now(&self, name: &str) -> Option<Cow<'_, str>> {
        self.now.get(&self.event.object, name)
    }

    /// A label's value before the change.
    pub(crate) fn label_before(&self, name: &str) -> Option<Cow<'_, str>> {
        self.event.previous.as_ref().and_then(|previous| self.before.get(previous, name))
    }
}

impl<'e> Labels<'e> {
    fn get(&self, object: &'e Object, name: &str) -> Option<Cow<'_, str>> {
        let labels = self.0.get_or_init(|| {
            let mut labels = Vec::new();
            object.for_each_label(|name, value| labels.push((name, value)));
            labels
        });
        // Of a duplicate key the last one counts.
        let found = labels.iter().rev().find(|(known, _)| *known == name.as_bytes());
        found.map(|(_, value)| Cow::Borrowed(&**value))
    }
}

fn pinned_field(shape: &ObjectShape, indexed: &[usize], fields: &FieldSelector) -> Option<IndexKey> {
    fields.terms().iter().filter(|term| !term.negated).find_map(|term| {
        let position = shape.field_position(&term.field).filter(|position| indexed.contains(position))?;
        Some(IndexKey::Field(position, term.value.as_str().into()))
    })
}

fn pinned_label(labels: &LabelSelector) -> Option<IndexKey> {
    labels.requirements().iter().find_map(|requirement| match requirement.operator() {
        // Several values would list a watcher under several keys, and deliver an event twice.
        LabelOperator::In(values) if values.len() == 1 => {
            values.first().map(|value| IndexKey::Label(requirement.key().into(), value.as_str().into()))
        }
        _ => None,
    })
}

impl LabelTest {
    fn new(requirement: &LabelRequirement) -> Self {
        let packed = |values: &BTreeSet<String>| values.iter().map(|value| value.as_str().into()).collect();
        let operator = match requirement.operator() {
            LabelOperator::In(values) => Operator::In(packed(values)),
            LabelOperator::NotIn(values) => Operator::NotIn(packed(values)),
            LabelOperator::Exists => Operator::Exists,
            LabelOperator::DoesNotExist => Operator::DoesNotExist,
            LabelOperator::GreaterThan(bound) => Operator::GreaterThan(*bound),
            LabelOperator::LessThan(bound) => Operator::LessThan(*bound),
        };
        LabelTest { label: requirement.key().into(), operator }
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let among = |values: &[Box<str>]| value.is_some_and(|value| values.iter().any(|known| **known == *value));
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.operator {
            Operator::In(values) => among(values),
            Operator::NotIn(values) => !among(values),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan(bound) => number().is_some_and(|number| number > *bound),
            Operator::LessThan(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

impl FieldTest {
    fn new(term: &FieldTerm, shape: &ObjectShape) -> Self {
        let field = match term.field.as_str() {
            "metadata.name" => Field::Name,
            "metadata.namespace" => Field::Namespace,
            label => shape.field_position(label).map_or(Field::Unknown, Field::At),
        };
        FieldTest { field, value: term.value.as_str().into(), negated: term.negated }
    }

    fn matches(&self, object: &Object, shape: &ObjectShape) -> bool {
        let equal = match self.field {
            Field::Name => object.name() == &*self.value,
            Field::Namespace => object.namespace() == &*self.value,
            Field::At(position) => object.field_at(position, shape) == *self.value,
            Field::Unknown => false,
        };
        equal != self.negated
    }
}

#[cfg(test)]
mod tests {
    use listwatch_meta::{Revision, SelectableField};

    use super::*;

    fn shape() -> ObjectShape {
        ObjectShape::new(true, vec![SelectableField::string("spec.nodeName")])
    }

    fn filter(scope: &Scope, labels: &str, fields: &str) -> Filter {
        let labels = LabelSelector::parse(labels).unwrap();
        Filter::new("pods", &shape(), &[0], scope, labels, &FieldSelector::parse(fields).unwrap())
    }

    #[test]
    fn watcher_is_indexed_by_its_most_selective_requirement() {
        let namespace = Scope::Namespace("a".to_owned());
        let object = Scope::Object { namespace: Some("a".to_owned()), name: "x".to_owned() };
        let text = |text: &str| Box::<str>::from(text);
        for (scope, labels, fields, index_key) in [
            (&Scope::All, "", "", IndexKey::All),
            (&namespace, "", "", IndexKey::Namespace(text("a"))),
            (&object, "", "", IndexKey::Key(text("/pods/a/x"))),
            (&namespace, "", "metadata.name=x", IndexKey::Key(text("/pods/a/x"))),
            (&Scope::All, "", "metadata.name=x", IndexKey::Name(text("x"))),
            (&Scope::All, "", "metadata.name=x,metadata.namespace=a", IndexKey::Key(text("/pods/a/x"))),
            (&Scope::All, "", "metadata.namespace=a", IndexKey::Namespace(text("a"))),
            (&namespace, "app=web", "spec.nodeName=n1", IndexKey::Field(0, text("n1"))),
            (&namespace, "", "spec.nodeName!=n1", IndexKey::Namespace(text("a"))),
            (&namespace, "app=web", "", IndexKey::Label(text("app"), text("web"))),
            (&Scope::All, "app in (a,b),tier=x", "", IndexKey::Label(text("tier"), text("x"))),
            (&Scope::All, "app in (a,b)", "", IndexKey::All),
        ] {
            assert_eq!(filter(scope, labels, fields).index_key, index_key, "{scope:?} {labels} {fields}");
        }
    }

    #[test]
    fn compact_label_requirements_match_like_the_selector() {
        for text in ["a=x", "a!=x", "a in (x,y,7)", "a notin (x,7)", "a", "!a", "a>5", "a<5", "a=x,b!=y", "a in (),!b"]
        {
            let Ok(selector) = LabelSelector::parse(text) else { continue };
            let packed: Vec<_> = selector.requirements().iter().map(LabelTest::new).collect();
            for a in [None, Some(""), Some("x"), Some("y"), Some("5"), Some("7"), Some("-1")] {
                for b in [None, Some("y"), Some("z")] {
                    let value = |label: &str| if label == "a" { a } else { b };
                    let expected = selector.matches(|label| value(label).map(Cow::Borrowed));
                    let found = packed.iter().all(|test| test.matches(value(&test.label)));
                    assert_eq!(found, expected, "{text} with a={a:?}, b={b:?}");
                }
            }
        }
    }

    #[test]
    fn invalid_name_in_field_selector_matches_nothing() {
        let namespace = Scope::Namespace("a".to_owned());
        let filter = filter(&namespace, "", "metadata.name=x/y");
        assert!(filter.range().is_empty() && filter.is_single());
    }

    #[test]
    fn event_type_of_a_selector_watch_depends_on_the_old_and_new_state() {
        let shape = shape();
        let state = |revision, change, app: &str| {
            let json = format!(r#"{{"metadata":{{"name":"x","labels":{{"app":"{app}"}}}}}}"#);
            let key = Key::new("pods", Some("a"), "x").unwrap();
            Object::from_stored(key, Revision::new(revision), change, json.as_bytes(), &shape).unwrap()
        };
        let filter = filter(&Scope::All, "app=in", "");
        let (out, inside) = ("out", "in");
        for (before, now, seen) in [
            (None, Some(inside), Some(Change::Added)),
            (None, Some(out), None),
            (Some(out), Some(inside), Some(Change::Added)),
            (Some(inside), Some(inside), Some(Change::Modified)),
            (Some(inside), Some(out), Some(Change::Deleted)),
            (Some(out), Some(out), None),
            (Some(inside), None, Some(Change::Deleted)),
            (Some(out), None, None),
        ] {
            let previous = before.map(|app| state(1, Change::Added, app));
            let event = match (now, previous) {
                (Some(app), None) => {
                    Event { change: Change::Added, object: state(2, Change::Added, app), previous: None }
                }
                (Some(app), previous) => {
                    Event { change: Change::Modified, object: state(2, Change::Modified, app), previous }
                }
                (None, Some(previous)) => Event {
                    change: Change::Deleted,
                    object: previous.at_change(Revision::new(2), Change::Deleted, &shape),
                    previous: Some(previous),
                },
                (None, None) => unreachable!(),
            };
            assert_eq!(filter.view(&EventLabels::new(&event, &shape)), seen, "{before:?} to {now:?}");
        }
    }
}
