//! The objects of a read or a watch: [`Scope`] from the URL, narrowed by the field selector, and the remaining
//! selectors ([`Filter`]). [`IndexKey`] is the key under which an event finds a watcher.

use std::cell::OnceCell;

use listwatch_meta::selector::LabelOperator;
use listwatch_meta::{
    Change, Event, FieldSelector, Key, KeyRange, LabelSelector, Object, ObjectShape, ShardSelector, canary,
};

use crate::label_conditions::{LabelConditions, SortedLabels, is_among};

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
    labels: LabelConditions,
    /// At most one condition per field, so that a field is read once per object.
    fields: Box<[FieldCondition]>,
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

/// The condition on one field: all terms of the field selector on that field.
#[derive(Debug)]
struct FieldCondition {
    field: Field,
    values: FieldValues,
}

#[derive(Debug)]
enum FieldValues {
    Equal(Box<str>),
    /// None of these values, which are sorted.
    NotIn(Box<[Box<str>]>),
    /// The terms contradict each other, so no value is permitted.
    Contradiction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
        let fields = field_conditions(fields, shape);
        let everything = matches!(scope, Scope::All) && range == collection && name.is_none();
        let labels = LabelConditions::new(&labels);
        Filter { range, collection, everything, name, labels, fields, shard: None, index_key, selects }
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

    /// True when at most one key can match.
    pub(crate) fn is_single(&self) -> bool {
        self.requires_one_key() || self.range.is_empty()
    }

    /// True when the filter has the name of one object, and its namespace if the resource has namespaces.
    pub(crate) fn requires_one_key(&self) -> bool {
        matches!(self.index_key, IndexKey::Key(_))
    }

    /// Whether an object with this key can match.
    pub(crate) fn covers(&self, key: &Key) -> bool {
        self.everything
            || self.range.contains(key.as_str()) && self.name.as_deref().is_none_or(|name| name == key.name())
    }

    /// Whether a walk through the range examines no other objects than matching ones, or at most one. `indexed` is the
    /// field whose required value the walk finds in an index, by its position in the shape.
    pub(crate) fn is_met_by_range(&self, indexed: Option<usize>) -> bool {
        let is_implied = |condition: &FieldCondition| match (condition.field, &condition.values) {
            // Only a namespace of the field selector narrows the range of the collection.
            (Field::Namespace, FieldValues::Equal(_)) => self.range != self.collection,
            (Field::At(position), FieldValues::Equal(_)) => indexed == Some(position),
            _ => false,
        };
        let has_other_selector = !self.labels.is_empty() || self.shard.is_some() || self.name.is_some();
        self.is_single() || !has_other_selector && self.fields.iter().all(is_implied)
    }

    /// Whether the selectors match an object that [`Filter::covers`].
    pub(crate) fn selects_object(&self, object: &Object, shape: &ObjectShape) -> bool {
        !self.selects || self.matches(object, shape, || self.labels.match_object(object))
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
            && self.matches(&event.object, shape, || labeled_event.now.match_labels(&event.object, &self.labels));
        let before = event.previous.as_ref().is_some_and(|previous| {
            self.matches(previous, shape, || labeled_event.before.match_labels(previous, &self.labels))
        });
        match (before, now) {
            (false, true) if canary!("cacher-shows-entering-as-modified") => Some(event.change),
            (false, true) => Some(Change::Added),
            (true, true) => Some(Change::Modified),
            (true, false) if canary!("cacher-ignores-objects-that-leave") => None,
            (true, false) => Some(Change::Deleted),
            (false, false) => None,
        }
    }

    #[inline]
    fn matches(&self, object: &Object, shape: &ObjectShape, match_labels: impl FnOnce() -> bool) -> bool {
        self.fields.iter().all(|condition| condition.is_met_by(object, shape))
            && (self.labels.is_empty() || match_labels())
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
struct Labels<'e>(OnceCell<SortedLabels<'e>>);

impl<'e> EventLabels<'e> {
    pub(crate) fn new(event: &'e Event, shape: &'e ObjectShape) -> Self {
        EventLabels { event, shape, now: Labels::default(), before: Labels::default() }
    }

    /// A label's value after the change, or in the last state of a deleted object.
    pub(crate) fn label_now(&self, name: &str) -> Option<&str> {
        self.now.of(&self.event.object).get(name)
    }

    /// A label's value before the change.
    pub(crate) fn label_before(&self, name: &str) -> Option<&str> {
        self.event.previous.as_ref().and_then(|previous| self.before.of(previous).get(name))
    }
}

impl<'e> Labels<'e> {
    #[inline]
    fn of(&self, object: &'e Object) -> &SortedLabels<'e> {
        self.0.get_or_init(|| SortedLabels::new(object))
    }

    #[inline]
    fn match_labels(&self, object: &'e Object, conditions: &LabelConditions) -> bool {
        conditions.match_labels(self.of(object))
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

/// Joins the terms on each field.
fn field_conditions(selector: &FieldSelector, shape: &ObjectShape) -> Box<[FieldCondition]> {
    let mut terms: Vec<(Field, bool, &str)> =
        selector.terms().iter().map(|term| (Field::of(&term.field, shape), term.negated, &*term.value)).collect();
    terms.sort_unstable();
    terms.dedup();
    let of_fields = terms.chunk_by(|(one, ..), (other, ..)| one == other);
    let condition = |terms: &[(Field, bool, &str)]| {
        let (field, ..) = *terms.first()?;
        // `false` sorts first, so these are the values of `=`, then those of `!=`.
        let (equal, unequal) = terms.split_at(terms.partition_point(|(_, negated, _)| !negated));
        let values = match equal {
            [] if field == Field::Unknown => return None, // always met
            [] => FieldValues::NotIn(unequal.iter().map(|(_, _, value)| Box::from(*value)).collect()),
            [(_, _, value)] if field != Field::Unknown && unequal.iter().all(|(_, _, other)| other != value) => {
                FieldValues::Equal(Box::from(*value))
            }
            _ => FieldValues::Contradiction,
        };
        Some(FieldCondition { field, values })
    };
    of_fields.filter_map(condition).collect()
}

impl Field {
    fn of(label: &str, shape: &ObjectShape) -> Self {
        match label {
            "metadata.name" => Field::Name,
            "metadata.namespace" => Field::Namespace,
            label => shape.field_position(label).map_or(Field::Unknown, Field::At),
        }
    }
}

impl FieldCondition {
    fn is_met_by(&self, object: &Object, shape: &ObjectShape) -> bool {
        match self.field {
            Field::Name => self.values.permit(object.name()),
            Field::Namespace => self.values.permit(object.namespace()),
            Field::At(position) => self.values.permit(&object.field_at(position, shape)),
            Field::Unknown => false,
        }
    }
}

impl FieldValues {
    fn permit(&self, value: &str) -> bool {
        match self {
            FieldValues::Equal(expected) => **expected == *value,
            FieldValues::NotIn(values) => !is_among(values, value),
            FieldValues::Contradiction => false,
        }
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
    fn field_conditions_match_like_the_selector_and_read_each_field_once() {
        let shape = shape();
        let key = Key::new("pods", Some("a"), "x").unwrap();
        let json = br#"{"metadata":{"name":"x"},"spec":{"nodeName":"n1"}}"#;
        let object = Object::from_stored(key, Revision::new(1), Change::Added, json, &shape).unwrap();
        let many: Vec<String> = (0..1_000).map(|n| format!("spec.nodeName!=m{n}")).collect();
        for (text, conditions) in [
            ("", 0),
            ("spec.nodeName=n1", 1),
            ("spec.nodeName=n2", 1),
            ("spec.nodeName!=n1", 1),
            ("spec.nodeName!=n2", 1),
            ("spec.nodeName=n1,spec.nodeName!=n2", 1),
            ("spec.nodeName=n1,spec.nodeName!=n1", 1),
            ("spec.nodeName=n1,spec.nodeName=n2", 1),
            ("metadata.name=x,metadata.namespace=a,spec.nodeName!=n2,metadata.name!=y", 3),
            ("metadata.name!=x", 1),
            ("metadata.namespace=b", 1),
            ("spec.other=x", 1),
            ("spec.other!=x,spec.another!=y", 0),
            ("spec.other!=x,spec.another=y", 1),
            (&many.join(","), 1),
            (&format!("{},spec.nodeName!=n1", many.join(",")), 1),
        ] {
            let selector = FieldSelector::parse(text).unwrap();
            let found = field_conditions(&selector, &shape);
            let matches = found.iter().all(|condition| condition.is_met_by(&object, &shape));
            assert_eq!((matches, found.len()), (selector.matches(&object, &shape), conditions), "{text}");
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
