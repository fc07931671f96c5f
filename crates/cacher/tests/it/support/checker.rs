//! Checks the guarantees of a watch against a sorted list of all changes. The text of a failure
//! begins with the broken guarantee.
//!
//! The model is simple: a [`Log`] is every change in order, and a watch is a position in the log.
//! The watch's next event is the first visible change after the position.

use std::collections::BTreeMap;

use listwatch_cacher::Delivery;
use listwatch_meta::{Change, Object};

/// One state of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub app: String,
    pub node: String,
    pub revision: u64,
    pub created: u64,
}

/// One change of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub revision: u64,
    pub path: String,
    pub before: Option<State>,
    pub after: Option<State>,
}

/// All changes.
#[derive(Default)]
pub struct Log {
    /// Every change, in order.
    pub real: Vec<Fact>,
    pub revision: u64,
    /// The number of restarts of a cache, which end its watches.
    pub restarts: u64,
}

pub type Objects = BTreeMap<String, State>;

impl Log {
    pub fn write(&mut self, revision: u64, path: &str, app: &str, node: &str) {
        let before = self.state(revision).remove(path);
        let created = before.as_ref().map_or(revision, |before| before.created);
        let after = State { app: app.to_owned(), node: node.to_owned(), revision, created };
        self.push(Fact { revision, path: path.to_owned(), before, after: Some(after) });
    }

    pub fn delete(&mut self, revision: u64, path: &str) {
        let before = self.state(revision).remove(path);
        self.push(Fact { revision, path: path.to_owned(), before, after: None });
    }

    fn push(&mut self, fact: Fact) {
        self.revision = fact.revision;
        self.real.push(fact);
    }

    /// The state at a revision.
    pub fn state(&self, revision: u64) -> Objects {
        let mut objects = Objects::new();
        for fact in self.real.iter().filter(|fact| fact.revision <= revision) {
            match &fact.after {
                Some(state) => objects.insert(fact.path.clone(), state.clone()),
                None => objects.remove(&fact.path),
            };
        }
        objects
    }
}

/// The conditions of a watch; all must hold.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub app: Option<String>,
    pub node: Option<String>,
}

impl Wanted {
    pub fn sees(&self, path: &str, state: &State) -> bool {
        let (namespace, name) = path.split_once('/').expect("namespace/name");
        let is = |wanted: &Option<String>, value: &str| wanted.as_deref().is_none_or(|wanted| wanted == value);
        is(&self.namespace, namespace)
            && is(&self.name, name)
            && is(&self.app, &state.app)
            && is(&self.node, &state.node)
    }

    /// The objects of a state that match.
    pub fn of(&self, mut objects: Objects) -> Objects {
        objects.retain(|path, state| self.sees(path, state));
        objects
    }

    fn view(&self, fact: &Fact) -> Option<Seen> {
        let before = fact.before.as_ref().filter(|state| self.sees(&fact.path, state));
        let after = fact.after.as_ref().filter(|state| self.sees(&fact.path, state));
        let (change, shown) = match (before, after) {
            (None, Some(after)) => (Change::Added, after),
            (Some(_), Some(after)) => (Change::Modified, after),
            (Some(before), None) => (Change::Deleted, before),
            (None, None) => return None,
        };
        let shown = Shown { path: fact.path.clone(), app: shown.app.clone(), revision: fact.revision };
        Some(Seen::Event(change, shown))
    }
}

/// One delivery, reduced to the checked values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Initial(Shown),
    Event(Change, Shown),
    Bookmark(u64),
    InitialEnd(u64),
    Error(u16),
    End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub path: String,
    pub app: String,
    pub revision: u64,
}

pub fn shown(object: &Object) -> Shown {
    Shown {
        path: format!("{}/{}", object.namespace(), object.name()),
        app: object.label("app").unwrap_or_default().into_owned(),
        revision: object.revision().get(),
    }
}

pub fn seen(delivery: &Delivery) -> Seen {
    match delivery {
        Delivery::Event(event) if event.is_initial() => Seen::Initial(shown(event.object())),
        Delivery::Event(event) => Seen::Event(event.change(), shown(event.object())),
        Delivery::Bookmark { revision, initial_events_end: true } => Seen::InitialEnd(revision.get()),
        Delivery::Bookmark { revision, .. } => Seen::Bookmark(revision.get()),
        Delivery::Error(status) => Seen::Error(status.code),
    }
}

/// Checks one watch.
#[derive(Debug)]
pub struct Checker {
    wanted: Wanted,
    /// The initial objects so far; `None` after the initial state.
    initial: Option<Vec<Shown>>,
    /// The revision up to which everything was delivered, and the number of changes delivered at
    /// this revision.
    place: u64,
    at_place: usize,
    /// The newest bookmark.
    bookmark: u64,
    /// The objects of a client's copy, each with its content and revision.
    copy: BTreeMap<String, (String, u64)>,
    over: bool,
    /// The number of restarts of the cache when the watch began.
    restarts: u64,
    /// Whether the watch may end between two revisions: it has a deadline, or its server stops.
    may_end: bool,
}

type Verdict = Result<(), String>;

impl Checker {
    /// A watch of everything after a revision.
    pub fn after(wanted: Wanted, revision: u64) -> Self {
        Checker { initial: None, ..Checker::initial(wanted, revision) }
    }

    /// A watch with initial events and the bookmark that ends them, at least as fresh as
    /// `revision`.
    pub fn initial(wanted: Wanted, revision: u64) -> Self {
        Checker {
            wanted,
            initial: Some(Vec::new()),
            place: revision,
            at_place: usize::MAX,
            bookmark: 0,
            copy: BTreeMap::new(),
            over: false,
            restarts: 0,
            may_end: false,
        }
    }

    /// Sets the beginning of the watch to now. Earlier restarts of the cache no longer justify `410
    /// Expired`.
    pub fn begun_at(self, log: &Log) -> Self {
        Checker { restarts: log.restarts, ..self }
    }

    /// Allows the watch to end without an error, because the watch has a deadline or its server
    /// stops.
    pub fn may_end(self) -> Self {
        Checker { may_end: true, ..self }
    }

    /// The revision from which a client would resume; `None` while it has none.
    pub fn resume_from(&self) -> Option<u64> {
        self.initial.is_none().then_some(self.place)
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Checks the next delivery. `oldest` is the oldest revision after which a watch may begin.
    pub fn see(&mut self, log: &Log, oldest: u64, seen: Seen) -> Verdict {
        if self.over && seen != Seen::End {
            return Err(format!("never silent: {seen:?} after the end"));
        }
        match &seen {
            Seen::Initial(shown) => match &mut self.initial {
                None => Err(format!("unique: initial {shown:?} after the end of the initial events")),
                Some(initial) if initial.last().is_some_and(|last| last.path >= shown.path) => {
                    Err(format!("ordered: initial {shown:?} is not behind {:?} in key order", initial.last()))
                }
                Some(initial) => {
                    initial.push(shown.clone());
                    Ok(())
                }
            },
            Seen::InitialEnd(revision) => self.end_initial(log, *revision),
            Seen::Event(_, shown) if self.initial.is_some() => {
                Err(format!("complete: {shown:?} before the end of the initial events"))
            }
            Seen::Event(change, shown) => {
                match change {
                    Change::Deleted => self.copy.remove(&shown.path),
                    _ => self.copy.insert(shown.path.clone(), (shown.app.clone(), shown.revision)),
                };
                self.event(log, &seen, shown.revision)
            }
            Seen::Bookmark(revision) => self.bookmark(log, *revision),
            Seen::Error(410) => {
                // The client lists again, so an incomplete revision is allowed.
                self.over = true;
                if self.place >= oldest && log.restarts == self.restarts {
                    return Err(format!(
                        "resumable: expired at {}, although everything after {oldest} is held",
                        self.place
                    ));
                }
                Ok(())
            }
            Seen::Error(code) => Err(format!("never silent: an unexpected error {code}")),
            Seen::End => {
                if self.over {
                    return Ok(());
                }
                self.over = true;
                if let Some(rest) = self.rest_of_revision(log) {
                    return Err(format!("atomic: the stream ended before {rest:?}"));
                }
                if self.may_end {
                    return Ok(());
                }
                Err("never silent: the stream ended without a word".to_owned())
            }
        }
    }

    fn end_initial(&mut self, log: &Log, revision: u64) -> Verdict {
        let Some(initial) = self.initial.take() else {
            return Err("unique: the initial events end twice".to_owned());
        };
        if revision < self.place {
            return Err(format!("read your writes: initial events at {revision}, asked for {}", self.place));
        }
        let expected: Vec<Shown> = self
            .wanted
            .of(log.state(revision))
            .into_iter()
            .map(|(path, state)| Shown { path, app: state.app, revision: state.revision })
            .collect();
        if initial != expected {
            return Err(format!("complete: the initial events at {revision} are {initial:?}, not {expected:?}"));
        }
        self.copy = initial.into_iter().map(|shown| (shown.path, (shown.app, shown.revision))).collect();
        (self.place, self.at_place, self.bookmark) = (revision, usize::MAX, revision);
        Ok(())
    }

    /// The next event of this watch.
    fn expected(&self, log: &Log) -> Option<Seen> {
        let here = log.real.iter().filter(|fact| fact.revision == self.place);
        let here = here.filter_map(|fact| self.wanted.view(fact)).nth(self.at_place);
        here.or_else(|| {
            let behind = log.real.iter().filter(|fact| fact.revision > self.place);
            behind.filter_map(|fact| self.wanted.view(fact)).next()
        })
    }

    fn event(&mut self, log: &Log, seen: &Seen, revision: u64) -> Verdict {
        let expected = self.expected(log);
        if expected.as_ref() == Some(seen) {
            let tie = revision == self.place && self.at_place != usize::MAX;
            self.at_place = if tie { self.at_place + 1 } else { 1 };
            self.place = revision;
            return Ok(());
        }
        if revision <= self.bookmark {
            return Err(format!("bookmarkable: {seen:?} after a bookmark at {}", self.bookmark));
        }
        if revision == self.place {
            return Err(format!("unique: {seen:?} comes again"));
        }
        if revision < self.place {
            return Err(format!("ordered: {seen:?} after revision {}", self.place));
        }
        match &expected {
            Some(Seen::Event(_, shown)) if shown.revision < revision => {
                Err(format!("complete: {seen:?} comes, {expected:?} was skipped"))
            }
            _ => Err(format!("filtered truthfully: {seen:?} comes where {expected:?} should")),
        }
    }

    /// The other visible changes of the incomplete revision.
    fn rest_of_revision(&self, log: &Log) -> Option<Seen> {
        let next = self.expected(log)?;
        let torn =
            self.at_place != usize::MAX && matches!(&next, Seen::Event(_, shown) if shown.revision == self.place);
        torn.then_some(next)
    }

    fn bookmark(&mut self, log: &Log, revision: u64) -> Verdict {
        if let Some(rest) = self.rest_of_revision(log) {
            return Err(format!("atomic: a bookmark at {revision} before {rest:?}"));
        }
        if self.initial.is_some() {
            return Err(format!("bookmarkable: a bookmark at {revision} within the initial events"));
        }
        if revision <= self.bookmark || revision < self.place {
            return Err(format!("ordered: a bookmark at {revision} after {}", self.place.max(self.bookmark)));
        }
        if revision > log.revision {
            return Err(format!("bookmarkable: a bookmark at {revision}, which has not happened"));
        }
        if let Some(Seen::Event(_, next)) = self.expected(log)
            && next.revision <= revision
        {
            return Err(format!("bookmarkable: a bookmark at {revision}, but {next:?} was not handed out"));
        }
        (self.place, self.at_place, self.bookmark) = (revision, usize::MAX, revision);
        Ok(())
    }

    /// Checks that nothing is missing once the watch is idle and the cache is complete.
    pub fn finish(&self, log: &Log) -> Verdict {
        if self.over {
            return Ok(());
        }
        if self.initial.is_some() {
            return Err("complete: the initial events never ended".to_owned());
        }
        match self.expected(log) {
            Some(missing) => Err(format!("complete: {missing:?} never came")),
            None => Ok(()),
        }
    }

    /// Checks that the copy of a watch with initial events equals the store.
    pub fn converged(&self, log: &Log) -> Verdict {
        let expected: BTreeMap<String, (String, u64)> = self
            .wanted
            .of(log.state(log.revision))
            .into_iter()
            .map(|(path, state)| (path, (state.app, state.revision)))
            .collect();
        if self.over || self.copy == expected {
            return Ok(());
        }
        Err(format!("converging: the reader holds {:?}, the store {expected:?}", self.copy))
    }
}

/// Checks a list against the state at its revision.
pub fn check_list(log: &Log, wanted: &Wanted, revision: u64, items: &[Shown]) -> Verdict {
    let expected: Vec<Shown> = wanted
        .of(log.state(revision))
        .into_iter()
        .map(|(path, state)| Shown { path, app: state.app, revision: state.revision })
        .collect();
    if items == expected {
        return Ok(());
    }
    Err(format!("one state: a list at {revision} shows {items:?}, not {expected:?}"))
}

/// The freshness that a list must have.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedFreshness {
    /// Whether the list requested the most recent state.
    pub consistent: bool,
    /// The newest revision that the reader has seen: acknowledged, delivered or requested.
    pub at_least: u64,
    /// The exact revision that the list requested.
    pub exactly: Option<u64>,
}

/// Checks the revision of a list.
pub fn check_revision(asked: ExpectedFreshness, revision: u64) -> Verdict {
    if revision < asked.at_least {
        let promise = if asked.consistent { "read your writes" } else { "no time travel" };
        return Err(format!("{promise}: a list shows {revision}, {} was known", asked.at_least));
    }
    match asked.exactly {
        Some(exactly) if exactly != revision => Err(format!("one state: asked for exactly {exactly}, got {revision}")),
        _ => Ok(()),
    }
}
