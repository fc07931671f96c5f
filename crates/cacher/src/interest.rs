//! Finds the watchers that may match an event: [`Interest`], an index of watchers by filter.
//!
//! Every watcher is listed under exactly one key, the most selective one of its filter (see [`IndexKey`]). An event is
//! looked up under its own key, its indexed fields and its labels, before and after the change. So with ten thousand
//! watchers of ten thousand nodes, an event examines one or two of them. The index returns candidates, which their
//! filters then check.

use std::collections::HashMap;

use crate::filter::{EventLabels, IndexKey};

/// Watchers by index key.
pub(crate) struct Interest {
    all: Members,
    keys: ByText,
    names: ByText,
    namespaces: ByText,
    /// One entry per indexed field: its position in the shape, and the watchers by value.
    fields: Vec<(usize, ByText)>,
    /// One entry per label that a watcher requires.
    labels: Vec<(Box<str>, ByText)>,
    /// The position of each watcher among those with the same index key, by watcher number. Removal therefore needs no
    /// search, even if ten thousand watchers end at once.
    positions: Vec<u32>,
}

type Members = Vec<u32>;
type ByText = HashMap<Box<str>, Members>;

impl Interest {
    /// Creates an empty index with the shape's fields at these positions.
    pub(crate) fn new(indexed: &[usize]) -> Self {
        Interest {
            all: Members::new(),
            keys: ByText::new(),
            names: ByText::new(),
            namespaces: ByText::new(),
            fields: indexed.iter().map(|position| (*position, ByText::new())).collect(),
            labels: Vec::new(),
            positions: Vec::new(),
        }
    }

    /// Adds a watcher, which must not be in the index.
    pub(crate) fn insert(&mut self, watcher: u32, index_key: &IndexKey) {
        let members = match self.position(index_key) {
            None => &mut self.all,
            Some((map, text)) => {
                if !map.contains_key(text) {
                    map.insert(text.into(), Members::new());
                }
                map.get_mut(text).expect("just seen")
            }
        };
        let position = members.len() as u32;
        members.push(watcher);
        if self.positions.len() <= watcher as usize {
            self.positions.resize(watcher as usize + 1, u32::MAX);
        }
        self.positions[watcher as usize] = position;
    }

    /// Removes a watcher, which must be listed under this index key.
    pub(crate) fn remove(&mut self, watcher: u32, index_key: &IndexKey) {
        let position = self.positions[watcher as usize] as usize;
        let members = match self.position(index_key) {
            None => Some(&mut self.all),
            Some((map, text)) => map.get_mut(text),
        };
        let moved = members.and_then(|members| {
            debug_assert_eq!(members[position], watcher);
            members.swap_remove(position);
            members.get(position).copied()
        });
        if let Some(moved) = moved {
            self.positions[moved as usize] = position as u32;
        }
        // Frees empty entries.
        match self.position(index_key) {
            None => {
                if self.all.is_empty() {
                    self.all = Members::new();
                }
            }
            Some((map, text)) => {
                if map.get(text).is_some_and(Vec::is_empty) {
                    map.remove(text);
                }
            }
        }
        if let IndexKey::Label(..) = index_key {
            self.labels.retain(|(_, map)| !map.is_empty());
        }
    }

    fn position<'a>(&'a mut self, index_key: &'a IndexKey) -> Option<(&'a mut ByText, &'a str)> {
        match index_key {
            IndexKey::All => None,
            IndexKey::Key(key) => Some((&mut self.keys, key)),
            IndexKey::Name(name) => Some((&mut self.names, name)),
            IndexKey::Namespace(namespace) => Some((&mut self.namespaces, namespace)),
            IndexKey::Field(position, value) => {
                let index = self.fields.iter().position(|(indexed, _)| indexed == position);
                let index = index.expect("a filter pins only fields that are indexed");
                Some((&mut self.fields[index].1, value))
            }
            IndexKey::Label(label, value) => {
                let index = self.labels.iter().position(|(known, _)| known == label).unwrap_or_else(|| {
                    self.labels.push((label.clone(), ByText::new()));
                    self.labels.len() - 1
                });
                Some((&mut self.labels[index].1, value))
            }
        }
    }

    /// Calls `visit` once for each watcher that may match the event.
    pub(crate) fn candidates(&self, labeled_event: &EventLabels<'_>, mut visit: impl FnMut(u32)) {
        let EventLabels { event, shape, .. } = labeled_event;
        let object = &event.object;
        self.all.iter().copied().for_each(&mut visit);
        let mut found = |map: &ByText, text: &str| {
            if let Some(members) = map.get(text) {
                members.iter().copied().for_each(&mut visit);
            }
        };
        if !self.keys.is_empty() {
            found(&self.keys, object.key().as_str());
        }
        if !self.names.is_empty() {
            found(&self.names, object.name());
        }
        if !self.namespaces.is_empty() {
            found(&self.namespaces, object.namespace());
        }
        for (position, map) in self.fields.iter().filter(|(_, map)| !map.is_empty()) {
            let now = object.field_at(*position, shape);
            if let Some(previous) = &event.previous {
                let before = previous.field_at(*position, shape);
                if before != now {
                    found(map, &before);
                }
            }
            found(map, &now);
        }
        for (label, map) in &self.labels {
            let now = labeled_event.label_now(label);
            if let Some(before) = labeled_event.label_before(label)
                && Some(before) != now
            {
                found(map, before);
            }
            if let Some(now) = now {
                found(map, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use listwatch_meta::{
        Change, Event, FieldSelector, Key, LabelSelector, Object, ObjectShape, Revision, SelectableField,
    };
    use proptest::prelude::*;

    use super::*;
    use crate::filter::{Filter, Scope};

    fn shape() -> ObjectShape {
        ObjectShape::new(true, vec![SelectableField::string("spec.nodeName")])
    }

    fn state(revision: u64, change: Change, (namespace, name, node, app): (&str, &str, &str, &str)) -> Object {
        let key = Key::new("pods", Some(namespace), name).unwrap();
        let json = format!(r#"{{"metadata":{{"labels":{{"app":"{app}"}}}},"spec":{{"nodeName":"{node}"}}}}"#);
        Object::from_stored(key, Revision::new(revision), change, json.as_bytes(), &shape()).unwrap()
    }

    fn filter() -> impl Strategy<Value = Filter> {
        let scope = prop_oneof![
            Just(Scope::All),
            "[ab]".prop_map(Scope::Namespace),
            ("[ab]", "[xy]").prop_map(|(namespace, name)| Scope::Object { namespace: Some(namespace), name }),
        ];
        let labels = prop::sample::select(vec!["", "app=p", "app=q", "app!=p", "app in (p,q)", "app"]);
        let fields = prop::sample::select(vec![
            "",
            "spec.nodeName=n",
            "spec.nodeName=",
            "spec.nodeName!=n",
            "metadata.name=x",
            "metadata.namespace=b",
        ]);
        (scope, labels, fields).prop_map(|(scope, labels, fields)| {
            let labels = LabelSelector::parse(labels).unwrap();
            Filter::new("pods", &shape(), &[0], &scope, labels, &FieldSelector::parse(fields).unwrap())
        })
    }

    #[test]
    fn event_examines_only_watchers_with_its_own_index_keys() {
        let object = |name: &str| Scope::Object { namespace: Some("a".to_owned()), name: name.to_owned() };
        let namespace = |name: &str| Scope::Namespace(name.to_owned());
        // Pairs of watchers, of which only the first can match the event.
        let watchers = [
            (object("x"), "", ""),
            (object("y"), "", ""),
            (namespace("a"), "", ""),
            (namespace("b"), "", ""),
            (Scope::All, "", "metadata.name=x"),
            (Scope::All, "", "metadata.name=y"),
            (Scope::All, "", "spec.nodeName=n"),
            (Scope::All, "", "spec.nodeName=m"),
            (Scope::All, "app=p", ""),
            (Scope::All, "app=q", ""),
        ];
        let mut interest = Interest::new(&[0]);
        for (id, (scope, labels, fields)) in watchers.iter().enumerate() {
            let (labels, fields) = (LabelSelector::parse(labels).unwrap(), FieldSelector::parse(fields).unwrap());
            interest.insert(id as u32, Filter::new("pods", &shape(), &[0], scope, labels, &fields).index_key());
        }
        let object = state(2, Change::Added, ("a", "x", "n", "p"));
        let event = Event { change: Change::Added, object, previous: None };
        let mut examined = Vec::new();
        interest.candidates(&EventLabels::new(&event, &shape()), |id| examined.push(id));
        examined.sort_unstable();
        assert_eq!(examined, [0, 2, 4, 6, 8]);
    }

    proptest! {
        #[test]
        fn candidates_contain_each_matching_watcher_exactly_once(
            filters in prop::collection::vec(filter(), 1..20),
            gone in prop::collection::vec(any::<bool>(), 20),
            namespace in "[ab]", name in "[xy]",
            before in prop::option::of(("n?", "[pq]")), now in prop::option::of(("n?", "[pq]")),
        ) {
            let previous = before.as_ref().map(|(node, app)| state(1, Change::Added, (&namespace, &name, node, app)));
            let event = match (&now, previous) {
                (Some((node, app)), previous) => {
                    let change = if previous.is_some() { Change::Modified } else { Change::Added };
                    Event { change, object: state(2, change, (&namespace, &name, node, app)), previous }
                }
                (None, Some(previous)) => Event {
                    change: Change::Deleted,
                    object: previous.at_change(Revision::new(2), Change::Deleted, &shape()),
                    previous: Some(previous),
                },
                (None, None) => return Ok(()),
            };
            let mut interest = Interest::new(&[0]);
            for (id, filter) in filters.iter().enumerate() {
                interest.insert(id as u32, filter.index_key());
            }
            for (id, filter) in filters.iter().enumerate().filter(|(id, _)| gone[*id]) {
                interest.remove(id as u32, filter.index_key());
            }
            let mut asked = Vec::new();
            let shape = shape();
            let labeled_event = EventLabels::new(&event, &shape);
            interest.candidates(&labeled_event, |id| asked.push(id as usize));
            asked.sort_unstable();
            for (id, filter) in filters.iter().enumerate() {
                let times = asked.iter().filter(|asked| **asked == id).count();
                let wanted = !gone[id] && filter.view(&labeled_event).is_some();
                prop_assert!(times <= 1, "watcher {} is asked {} times", id, times);
                prop_assert!(!wanted || times == 1, "watcher {} wants the event and is not asked", id);
                prop_assert!(!gone[id] || times == 0, "watcher {} is gone and is asked", id);
            }
        }
    }
}
