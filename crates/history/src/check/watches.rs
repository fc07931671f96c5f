//! Checks watches against the store's log.

use std::collections::BTreeMap;

use super::violation;
use crate::log::{Expected, StoreLog};
use crate::record::{Bookmark, End, EndReason, Event, EventType, Record, Selector, Start, State, Watch};
use crate::{Expiry, Guarantee, Limits, Violation};

pub(crate) fn check(records: &[Record], log: &StoreLog, limits: &Limits) -> Vec<Violation> {
    let mut watches: BTreeMap<u64, (Option<&Watch>, Vec<Item<'_>>)> = BTreeMap::new();
    for record in records {
        match record {
            Record::Watch(watch) => watches.entry(watch.watch).or_default().0 = Some(watch),
            Record::Event(event) => watches.entry(event.watch).or_default().1.push(Item::Event(event)),
            Record::Bookmark(bookmark) => watches.entry(bookmark.watch).or_default().1.push(Item::Bookmark(bookmark)),
            Record::End(end) => watches.entry(end.watch).or_default().1.push(Item::End(end)),
            _ => {}
        }
    }
    // Many watches have the same selector.
    let mut events: Vec<(&Selector, Vec<Expected<'_>>)> = Vec::new();
    let mut violations = Vec::new();
    for (number, (watch, items)) in watches {
        let Some(watch) = watch else {
            // Without its start, nothing about the watch can be checked.
            violations.push(violation(Guarantee::Complete, format!("watch {number} has events and no recorded start")));
            continue;
        };
        let known = events.iter().position(|(selector, _)| **selector == watch.selector);
        let at = known.unwrap_or_else(|| {
            events.push((&watch.selector, log.events(&watch.selector)));
            events.len() - 1
        });
        violations.extend(Reader::new(watch, log, &events[at].1, limits).read(&items).err());
    }
    violations
}

enum Item<'a> {
    Event(&'a Event),
    Bookmark(&'a Bookmark),
    End(&'a End),
}

/// Checks the events of one watch, in the order of their arrival.
struct Reader<'a> {
    watch: &'a Watch,
    log: &'a StoreLog,
    /// The events that a watch with this selector must show, from the beginning of the history.
    events: &'a [Expected<'a>],
    limits: &'a Limits,
    /// The objects of the initial events so far; `None` after the initial events.
    initial: Option<BTreeMap<&'a str, (u64, &'a State)>>,
    /// The revision up to which all changes were shown.
    position: u64,
    /// The revision of the last event after the initial events.
    last_event: u64,
    /// The events of that revision that the watch has not shown yet. A transaction changes several objects at one
    /// revision.
    rest: Vec<Expected<'a>>,
    /// The revision of the last bookmark; 0 before the first.
    bookmark: u64,
}

impl<'a> Reader<'a> {
    fn new(watch: &'a Watch, log: &'a StoreLog, events: &'a [Expected<'a>], limits: &'a Limits) -> Self {
        let (initial, position) = match watch.start {
            Start::After(revision) => (None, revision),
            Start::InitialEvents(_) => (Some(BTreeMap::new()), 0),
        };
        Reader { watch, log, events, limits, initial, position, last_event: 0, rest: Vec::new(), bookmark: 0 }
    }

    fn fail<T>(&self, guarantee: Guarantee, evidence: String) -> Result<T, Violation> {
        Err(violation(guarantee, format!("watch {} of {} {evidence}", self.watch.watch, self.watch.client)))
    }

    fn read(mut self, items: &[Item<'a>]) -> Result<(), Violation> {
        for item in items {
            match item {
                Item::Event(event) if self.initial.is_some() => self.initial_event(event)?,
                Item::Event(event) => self.event(event)?,
                Item::Bookmark(bookmark) => self.bookmark(bookmark)?,
                Item::End(end) => self.end(end)?,
            }
        }
        Ok(())
    }

    fn initial_event(&mut self, event: &'a Event) -> Result<(), Violation> {
        let Event { object, revision, state, .. } = event;
        if self.log.at(object, *revision).and_then(|change| change.state.as_ref()) != Some(state) {
            return self
                .fail(Guarantee::Complete, format!("shows {object} at revision {revision} in a state it never had"));
        }
        if event.kind != EventType::Added {
            return self.fail(Guarantee::FilteredTruthfully, format!("has an initial event of type {:?}", event.kind));
        }
        let initial = self.initial.as_mut().expect("the initial events have not ended");
        if initial.insert(object, (*revision, state)).is_some() {
            return self.fail(Guarantee::Unique, format!("shows {object} twice in its initial events"));
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<(), Violation> {
        let (object, revision) = (&event.object, event.revision);
        if self.bookmark > 0 && revision <= self.bookmark {
            let bookmark = self.bookmark;
            return self
                .fail(Guarantee::Bookmarkable, format!("shows revision {revision} after the bookmark {bookmark}"));
        }
        let expected = if revision == self.last_event {
            match self.rest.iter().position(|expected| expected.object == object) {
                Some(at) => self.rest.remove(at),
                None => return self.fail(Guarantee::Unique, format!("shows revision {revision} of {object} twice")),
            }
        } else {
            self.next_revision(event)?
        };
        let Expected { kind, state, .. } = expected;
        if event.kind != kind {
            let evidence = format!("shows revision {revision} of {object} as {:?} instead of {kind:?}", event.kind);
            return self.fail(Guarantee::FilteredTruthfully, evidence);
        }
        if event.state != *state {
            let (shown, state) = (&event.state.value, &state.value);
            let evidence = format!("shows {object} at revision {revision} as {shown:?} instead of {state:?}");
            return self.fail(Guarantee::Complete, evidence);
        }
        (self.position, self.last_event) = (revision, revision);
        Ok(())
    }

    /// The expected event for the first event of a revision. The other events of the revision are stored in `rest`.
    fn next_revision(&mut self, event: &Event) -> Result<Expected<'a>, Violation> {
        let (object, revision, position) = (&event.object, event.revision, self.position);
        self.whole_revision()?;
        if revision <= position {
            let guarantee = if self.last_event == 0 { Guarantee::Unique } else { Guarantee::Ordered };
            return self.fail(guarantee, format!("shows revision {revision} after {position}"));
        }
        self.skipped(revision.saturating_sub(1))?;
        let mut of_revision = self.between(revision.saturating_sub(1), revision).to_vec();
        let Some(at) = of_revision.iter().position(|expected| expected.object == object) else {
            let kind = event.kind;
            let evidence =
                format!("shows {kind:?} {object} at revision {revision}, where nothing of its scope changed");
            let exists = self.log.at(object, revision).is_some();
            return self.fail(if exists { Guarantee::FilteredTruthfully } else { Guarantee::Complete }, evidence);
        };
        let expected = of_revision.remove(at);
        self.rest = of_revision;
        Ok(expected)
    }

    /// Fails if the watch has shown only a part of a revision.
    fn whole_revision(&self) -> Result<(), Violation> {
        match self.rest.first() {
            None => Ok(()),
            Some(Expected { object, revision, .. }) => {
                self.fail(Guarantee::Atomic, format!("shows a part of revision {revision}, without {object}"))
            }
        }
    }

    /// The events at revisions above `after`, up to and including `through`.
    fn between(&self, after: u64, through: u64) -> &'a [Expected<'a>] {
        let index = |revision: u64| self.events.partition_point(|event| event.revision <= revision);
        let (from, to) = (index(after), index(through));
        &self.events[from.min(to)..to]
    }

    /// Fails if the watch has not shown an event after its position, up to and including `through`.
    fn skipped(&self, through: u64) -> Result<(), Violation> {
        match self.between(self.position, through).first() {
            None => Ok(()),
            Some(Expected { kind, object, revision, .. }) => {
                let kind = format!("{kind:?}").to_uppercase();
                let evidence = format!("received no event for revision {revision}, where {object} is {kind}");
                self.fail(Guarantee::Complete, evidence)
            }
        }
    }

    fn bookmark(&mut self, bookmark: &Bookmark) -> Result<(), Violation> {
        let revision = bookmark.revision;
        if let Some(initial) = &self.initial {
            if !bookmark.ends_initial_events {
                return Ok(());
            }
            if let Start::InitialEvents(requested) = self.watch.start
                && revision < requested
            {
                let evidence = format!("starts with revision {revision}, and requested {requested} or later");
                return self.fail(Guarantee::NoTimeTravel, evidence);
            }
            let expected = self.log.state_at(revision, &self.watch.selector);
            if let Some(object) =
                expected.keys().chain(initial.keys()).find(|object| expected.get(*object) != initial.get(*object))
            {
                let evidence = format!("ends its initial events at revision {revision} with another state of {object}");
                return self.fail(Guarantee::Complete, evidence);
            }
            self.initial = None;
        } else {
            self.whole_revision()?;
            if revision < self.position {
                let position = self.position;
                return self.fail(Guarantee::Ordered, format!("has a bookmark {revision} after revision {position}"));
            }
            if let Err(skipped) = self.skipped(revision) {
                return Err(Violation { guarantee: Guarantee::Bookmarkable, ..skipped });
            }
        }
        (self.position, self.bookmark) = (revision, revision);
        Ok(())
    }

    fn end(&self, end: &End) -> Result<(), Violation> {
        match end.reason {
            EndReason::Expired => {}
            EndReason::Cut => return Ok(()),
            EndReason::Closed | EndReason::Failed => return self.whole_revision(),
        }
        let oldest = self.log.oldest_at(end.at);
        let is_evicted = match self.limits.expiry {
            Expiry::Compaction => false,
            Expiry::Window(changes) => self.log.count_after(self.position) > changes,
            Expiry::Any => true,
        };
        if self.position < oldest || is_evicted {
            return Ok(());
        }
        let evidence =
            format!("is expired at revision {}, and the store has all changes since {oldest}", self.position);
        self.fail(Guarantee::Resumable, evidence)
    }
}
