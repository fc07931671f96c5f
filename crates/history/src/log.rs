//! [`StoreLog`]: the changes of the store, indexed for the checks.

use std::collections::BTreeMap;

use crate::record::{Change, Compaction, EventType, Record, Selector, State};

/// The store's changes.
#[derive(Debug, Default)]
pub(crate) struct StoreLog {
    /// All changes, sorted by revision.
    changes: Vec<Change>,
    /// The positions of the changes of each object.
    by_object: BTreeMap<String, Vec<usize>>,
    compactions: Vec<Compaction>,
}

/// An event that a watch must show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected<'a> {
    pub kind: EventType,
    pub object: &'a str,
    pub revision: u64,
    pub state: &'a State,
}

impl StoreLog {
    pub(crate) fn new(records: &[Record]) -> Self {
        let mut log = StoreLog::default();
        for record in records {
            match record {
                Record::Change(change) => log.changes.push(change.clone()),
                Record::Compaction(compaction) => log.compactions.push(compaction.clone()),
                _ => {}
            }
        }
        log.changes.sort_by_key(|change| change.revision);
        for (position, change) in log.changes.iter().enumerate() {
            log.by_object.entry(change.object.clone()).or_default().push(position);
        }
        log
    }

    pub(crate) fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The changes of an object, oldest first.
    pub(crate) fn changes_of(&self, object: &str) -> impl DoubleEndedIterator<Item = &Change> {
        self.by_object.get(object).into_iter().flatten().map(|&position| &self.changes[position])
    }

    /// The change of an object at a revision.
    pub(crate) fn at(&self, object: &str, revision: u64) -> Option<&Change> {
        self.last(object, revision).filter(|change| change.revision == revision)
    }

    /// The last change of an object up to a revision.
    pub(crate) fn last(&self, object: &str, revision: u64) -> Option<&Change> {
        let positions = self.by_object.get(object)?;
        let after = positions.partition_point(|&position| self.changes[position].revision <= revision);
        Some(&self.changes[positions[after.checked_sub(1)?]])
    }

    /// The changes of an object after a revision, oldest first.
    pub(crate) fn after<'s>(&'s self, object: &str, revision: u64) -> impl Iterator<Item = &'s Change> {
        let positions = self.by_object.get(object).map_or(&[][..], |positions| positions);
        let after = positions.partition_point(|&position| self.changes[position].revision <= revision);
        positions[after..].iter().map(|&position| &self.changes[position])
    }

    /// The selected objects at a revision.
    pub(crate) fn state_at(&self, revision: u64, selector: &Selector) -> BTreeMap<&str, (u64, &State)> {
        let mut state = BTreeMap::new();
        for change in self.changes.iter().take_while(|change| change.revision <= revision) {
            match &change.state {
                Some(after) if selector.matches(&change.object, after) => {
                    state.insert(&*change.object, (change.revision, after));
                }
                _ => {
                    state.remove(&*change.object);
                }
            }
        }
        state
    }

    /// The events of a watch that shows all changes of its scope.
    pub(crate) fn events<'a>(&'a self, selector: &Selector) -> Vec<Expected<'a>> {
        let mut before: BTreeMap<&str, &State> = BTreeMap::new();
        let mut events = Vec::new();
        for change in &self.changes {
            let (object, revision) = (&*change.object, change.revision);
            let previous = match &change.state {
                Some(state) => before.insert(object, state),
                None => before.remove(object),
            };
            let was = previous.filter(|state| selector.matches(object, state));
            let is = change.state.as_ref().filter(|state| selector.matches(object, state));
            let (kind, state) = match (was, is) {
                (None, None) => continue,
                (None, Some(is)) => (EventType::Added, is),
                (Some(_), Some(is)) => (EventType::Modified, is),
                (Some(was), None) => (EventType::Deleted, was),
            };
            events.push(Expected { kind, object, revision, state });
        }
        events
    }

    /// The oldest readable revision at a time, according to the recorded compactions.
    pub(crate) fn oldest_at(&self, at: u64) -> u64 {
        self.compactions.iter().filter(|one| one.at <= at).map(|one| one.revision).max().unwrap_or(0)
    }

    /// The number of changes after a revision.
    pub(crate) fn count_after(&self, revision: u64) -> u64 {
        (self.changes.len() - self.changes.partition_point(|change| change.revision <= revision)) as u64
    }
}
